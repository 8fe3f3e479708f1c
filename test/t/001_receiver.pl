# The tests' own HTTP receiver does what it is scripted to do: what other
# tests conclude from it is worth no more than this.
use strict;
use warnings;

use HttpReceiver;
use IO::Socket::INET;
use Socket qw(IPPROTO_TCP TCP_NODELAY);
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;

sub connect_to
{
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $receiver->port, Proto => 'tcp')
	  or return;
	setsockopt $socket, IPPROTO_TCP, TCP_NODELAY, 1;
	return $socket;
}

sub post
{
	my ($socket, $path, $body, %headers) = @_;
	my $head = join '', map { "$_: $headers{$_}\r\n" } sort keys %headers;
	syswrite $socket, "POST $path HTTP/1.1\r\nHost: x\r\nContent-Length: " . length($body) . "\r\n$head\r\n$body";
	return;
}

# One answer as (status, headers and body), '' when the connection closed.
sub answer
{
	my $socket = shift;
	my $in = '';
	while (1)
	{
		if ($in =~ /\A(HTTP\S* (\d+).*?\r\n\r\n)/s)
		{
			my ($head, $status) = ($1, $2);
			my ($length) = $head =~ /content-length: (\d+)/i;
			return ($status, $in) if length($in) >= length($head) + ($length || 0);
		}
		my $n = sysread $socket, $in, 65536, length $in;
		return ('', $in) unless $n;
	}
}

my $c = connect_to();
post($c, '/a', "one\n\0\xff", 'webhook-id' => 'id-1', 'X-Odd' => 'tab	bed');
is((answer($c))[0], 200, 'default answer');
post($c, '/a', 'two', 'webhook-id' => 'id-2');
is((answer($c))[0], 200, 'connection is kept');
my @got = $receiver->requests('/a');
is(scalar @got, 2, 'both requests are logged');
is("$got[0]{at} $got[0]{ended_at} $got[1]{at} $got[1]{ended_at}", '1 2 3 4', 'and when they were over');
is($got[0]{body}, "one\n\0\xff", 'body comes back byte for byte');
is($got[0]{headers}{'x-odd'}, "tab\tbed", 'so does a header');
is($got[0]{connection}, $got[1]{connection}, 'on one connection');
is_deeply($receiver->ids('/a'), { 'id-1' => 1, 'id-2' => 1 }, 'ids are counted');

$receiver->on('/b', { status => 503, headers => { 'Retry-After' => 7 }, body => 'busy' }, { status => 204 });
post($c, '/b/x', '');
my ($status, $text) = answer($c);
is($status, 503, 'first scripted answer');
like($text, qr/Retry-After: 7\r\n/, 'with its header');
post($c, '/b/x', '');
is((answer($c))[0], 204, 'second one');
post($c, '/b/x', '');
is((answer($c))[0], 204, 'the last one stays');
is(join(' ', map { $_->{status} } $receiver->requests('/b/x')), '503 204 204', 'what was answered is logged');

$receiver->on('/m', { per_message => [ { status => 500 }, { status => 200 } ] });
my @statuses;
foreach my $id (qw(p q p q))
{
	post($c, '/m', '', 'webhook-id' => $id);
	push @statuses, (answer($c))[0];
}
is("@statuses", '500 500 200 200', 'answers counted for each message');

my $before = time;
$receiver->on('/slow', { delay => 0.2 });
post($c, '/slow', '');
is((answer($c))[0], 200, 'delayed answer');
cmp_ok(time - $before, '>=', 0.2, 'is delayed');

$receiver->on('/hang', { hang => 1 });
my $h = connect_to();
post($h, '/hang', '');
ok($receiver->wait_for_requests(1, '/hang'), 'a hanging request is logged');
ok(!defined(($receiver->requests('/hang'))[0]{ended}), 'and not over');
is($receiver->in_flight('/hang'), 1, 'and in flight');
post($c, '/a', 'three');
is((answer($c))[0], 200, 'others go on');
is($receiver->release('/hang', { status => 202 }), 1, 'released');
is((answer($h))[0], 202, 'and answered');
is($receiver->in_flight('/hang'), 0, 'none in flight');

$receiver->on('/close', { close => 1 });
post($h, '/close', '');
is((answer($h))[0], '', 'closed before the answer');
is(($receiver->requests('/close'))[0]{status}, 0, 'which is logged');
$receiver->on('/raw', { raw => "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na\0\xe9" });
$h = connect_to();
post($h, '/raw', '');
is((answer($h))[1], "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na\0\xe9", 'raw bytes');
$receiver->on('/big', { size => 3_000_000 });
$h = connect_to();
post($h, '/big', '');
(undef, $text) = answer($h);
cmp_ok(length $text, '>', 3_000_000, 'a big body');

# Split and pipelined input.
my $raw = "POST /pipe HTTP/1.1\r\nContent-Length: 2\r\n\r\nxyPOST /pipe HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
foreach my $byte (split //, $raw) { syswrite $h, $byte; }
is((answer($h))[0], 200, 'first of two pipelined');
ok($receiver->wait_for_requests(2, '/pipe'), 'second one is read');
is(join(',', map { $_->{body} } $receiver->requests('/pipe')), 'xy,abc', 'with their bodies');

$receiver->go_away;
ok(!connect_to(), 'gone: refuses connections');
$receiver->come_back;
$c = connect_to();
ok($c, 'back on the same port');

# Many requests on many connections.
my @connections = map { connect_to() } 1 .. 50;
my $sent = 0;
foreach my $round (1 .. 100)
{
	post($_, '/load', '{"n":1}', 'webhook-id' => 'load-' . $sent++) foreach @connections;
	answer($_) foreach @connections;
}
is($receiver->count('/load'), 5000, '5000 requests over 50 connections');
is(scalar keys %{ $receiver->ids('/load') }, 5000, 'each once');
cmp_ok($receiver->stats->{accepted}, '>=', 50, 'connections are counted');

my $pid = $receiver->{pid};
$receiver->stop;
is(kill(0, $pid), 0, 'stopped');

done_testing();
