# Names: unknown ones, ones that nobody ever answers for, ones with several
# addresses of which some are dead or blocked.  All of it, server and
# receivers, runs in a network of its own with a name server of its own.
use strict;
use warnings;

use OwnNames;
BEGIN
{
	OwnNames->enter(
		'four.test' => ['127.0.0.1'],
		'six.test' => ['::1'],
		'both.test' => [ '::1', '127.0.0.1' ],
		'silent6.test' => [ '::1', '127.0.0.1' ],
		'empty.test' => [],
		'never.test' => undef,
		'never2.test' => undef);
}

use HttpReceiver;
use IO::Select;
use IO::Socket::IP;
use OutboxCluster;
use Socket qw(SOMAXCONN);
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $port = $receiver->port;
my $receiver6 = HttpReceiver->start(address => '::1');
my $node = OutboxCluster->create('names');
my $fast = \"ARRAY['20 ms']::interval[]";

sub outcome_of
{
	my $name = shift;
	return "SELECT concat_ws(' ', state, attempts, coalesce(code, '-'), http_status) FROM outbox.deliveries WHERE handler = '$name' ORDER BY message_id DESC LIMIT 1";
}

sub ends
{
	my ($name, $url, $expected, $what, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->handler($name, ["$name.x"], $url, backoff => $fast, max_attempts => 2, breaker_threshold => 0, %options);
	$node->stage("$name.x");
	return $node->wait_for(outcome_of($name), $expected, "$name: $what");
}

# An IPv6 listener that accepts nobody and whose queue is full: who connects
# to it hears nothing.  Undef where the system answers all the same.
my @queued;

sub silent_listener
{
	my $silent_port = shift;
	my $listener = IO::Socket::IP->new(LocalHost => '::1', LocalPort => $silent_port, Listen => 1, V6Only => 1, ReuseAddr => 1) or return;
	foreach (1 .. 20)
	{
		my $socket = IO::Socket::IP->new(PeerHost => '::1', PeerPort => $silent_port, Blocking => 0);
		push @queued, $socket if $socket;
		return $listener if $socket && !IO::Select->new($socket)->can_write(0.3);
	}
	return;
}
my $silent = silent_listener($port);

my $delivered = 'delivered 1 - 200';
foreach my $t ('auto', 'curl')
{
	$node->restart_with('outbox.transport' => $t, 'outbox.blocked_networks' => '');
	ends("four_$t", "http://four.test:$port/four", $delivered, 'a name with an IPv4 address');
	ends("six_$t", 'http://six.test:' . $receiver6->port . '/six', $delivered, 'a name with nothing but an IPv6 address');
	ends("literal_$t", $receiver6->url('/literal'), $delivered, 'an IPv6 address');

	# Nobody listens on the IPv6 side of this one.
	my $alone = HttpReceiver->start;
	ends("refused_$t", 'http://both.test:' . $alone->port . '/', $delivered, 'IPv6 refuses, IPv4 answers');
	SKIP:
	{
		skip 'no way to be silent here', 1 unless $silent;
		ends("silent_$t", "http://silent6.test:$port/silent", $delivered, 'IPv6 is silent, IPv4 answers');
	}
	ends("nobody_$t", 'http://nobody.test/', 'dead 2 dns', 'no such name');
	ends("empty_$t", 'http://empty.test/', 'dead 2 dns', 'a name without an address');
	like($node->sql("SELECT error FROM outbox.dead_letters WHERE handler = 'nobody_$t'"), qr/nobody\.test/, "nobody_$t: the name is in the error");
	is($node->sql("SELECT count(*) FROM outbox.attempts WHERE handler = 'nobody_$t' AND code = 'dns'"), 2, "nobody_$t: it was retried");

	# --- a lookup that never ends, beside a handler that goes on
	$node->handler("never$_", ["$t.never"], "http://never" . ($_ % 2 ? '' : '2') . ".test/$_", backoff => $fast, max_attempts => 2, breaker_threshold => 0,
		connect_timeout => '6 s', concurrency => 4) foreach $t eq 'auto' ? (1 .. 4) : (5 .. 8);
	$node->handler("steady_$t", ["$t.steady"], $receiver->url("/steady_$t"), concurrency => 1);
	$node->stage("$t.never") foreach 1 .. 2;
	$node->wait_for('SELECT max(in_flight) >= 8 FROM outbox.dispatchers', 't', "$t: eight lookups hang");
	my $started = time;
	my $n = 0;
	my $longest = 0;
	while (time - $started < 3)
	{
		$node->sql("SELECT outbox.stage('$t.steady') FROM generate_series(1, 50)");
		$n += 50;
		last unless $receiver->wait_for_requests($n, "/steady_$t");
	}
	is($node->sql('SELECT max(in_flight) >= 8 FROM outbox.dispatchers'), 't', "$t: they still hang");
	my @requests = $receiver->requests("/steady_$t");
	is(scalar @requests, $n, "$t: another handler has all of its $n messages");

	# Bursts of fifty in a row: the gaps within one are the dispatcher's.
	foreach my $i (1 .. $#requests)
	{
		my $gap = $requests[$i]{time} - $requests[ $i - 1 ]{time};
		$longest = $gap if $i % 50 && $gap > $longest;
	}
	note(sprintf '%s: %d messages, the longest gap was %.0f ms', $t, $n, $longest * 1000);
	cmp_ok($longest, '<', 1, "$t: without a stall");
	$node->wait_for("SELECT string_agg(DISTINCT concat_ws(' ', state, attempts, code), ',') FROM outbox.deliveries WHERE topic = '$t.never'", 'dead 2 timeout', "$t: the lookups time out");

	# Nor do they hold up a stop.
	$node->stage("$t.never");
	$node->wait_for('SELECT max(in_flight) >= 4 FROM outbox.dispatchers', 't', "$t: more of them");
	my $stopped = time;
	$node->stop('fast');
	cmp_ok(time - $stopped, '<', 15, "$t: the server stops meanwhile");
	note(sprintf '%s: stopped within %.1f s', $t, time - $stopped);
	$node->start;
	$node->sql("SELECT outbox.drop_handler('never$_')") foreach $t eq 'auto' ? (1 .. 4) : (5 .. 8);

	# --- blocked networks after the lookup
	$node->restart_with('outbox.blocked_networks' => '::/0');
	ends("guarded_$t", 'http://both.test:' . $alone->port . '/guarded', $delivered, 'the address that is not blocked is taken');
	ends("guarded6_$t", 'http://six.test:' . $receiver6->port . '/guarded', 'dead 2 blocked', 'a name whose only address is blocked');
	$node->restart_with('outbox.blocked_networks' => 'private');
	my $before = $alone->stats->{accepted} + $receiver6->stats->{accepted};
	ends("inside$_\_$t", "http://$_.test:" . $alone->port . '/inside', 'dead 2 blocked', 'private, by its name') foreach qw(four six both);
	is($alone->stats->{accepted} + $receiver6->stats->{accepted}, $before, "$t: nobody was connected to");
	$alone->stop;
}

unlike($node->log_text, qr/PANIC|terminated by signal/, 'the server took no harm');
$node->stop;
done_testing();
