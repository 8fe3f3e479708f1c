# A real web server as the receiver: drains into nginx, and the transports on
# their own, beside a bare libcurl multi loop that posts as many bodies of the
# same size with the same headers and concurrency into the same nginx.
#
# Where nginx takes most of the machine, as with little to send, it bounds all
# of them alike; the processor time of the sending process tells more.
#
# Options: --messages=N (30000, fewer of large ones), --concurrency=N,N
# (10,50,100), --bytes=N,N (200,16384,1048576), --runs=N
use strict;
use warnings;

use NginxReceiver;
use OutboxBench;

if (my $missing = NginxReceiver->missing)
{
	print "nginx: $missing\n";
	exit 0;
}
my $nginx = NginxReceiver->start;
my $node = bench_cluster('nginx', conf => "outbox.max_payload_size = '2MB'");
$node->handler('bench', ['bench.*'], $nginx->url('plain'));

sub compare
{
	my ($what, $figures, $loop) = @_;
	my ($rates, $times) = map { my $key = $_; [ map { [ map { $_->{$key} } @$_ ] } $figures, $loop ] } qw(rate cpu_us);
	report($what, '%8d requests/s, %.2f of the loop; %.1f us of processor time, %.2f of the loop',
		median(@{ $rates->[0] }), ratio(@$rates), median(@{ $times->[0] }), ratio(@$times));
	return;
}

foreach my $bytes (split /,/, option('bytes', '200,16384,1048576'))
{
	# About as many bytes of large ones as of small ones, and a bound on their number in the tables.
	my $messages = option('messages', 30_000);
	$messages = $messages * 4096 / $bytes if $bytes > 4096;
	$messages = int($messages < 200 ? 200 : $messages);
	foreach my $concurrency (split /,/, option('concurrency', '10,50,100'))
	{
		my @load = ($nginx->url('plain'), $messages, $concurrency, $bytes);
		my (@loop, %of, @drain);
		$node->sql("SELECT outbox.alter_handler('bench', concurrency => $concurrency)");
		foreach (1 .. runs())
		{
			push @loop, load_figures('curl_loop', @load);
			push @{ $of{$_} }, load_figures("transport_loop --transport $_", @load) foreach qw(curl fast);
			$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
			$node->restart;
			backlog($node, 'bench.message.sent', $messages, $bytes);
			push @drain, drain_figures($node, $messages);
		}
		my $what = "nginx, $bytes bytes, concurrency $concurrency";
		compare("$what, bare libcurl loop", \@loop, \@loop);
		compare("$what, transport $_ alone", $of{$_}, \@loop) foreach qw(curl fast);
		compare("$what, drain", \@drain, \@loop);
	}
}
$node->stop;
