# Many handlers: latency and idle cost with 5000 handlers of which 10 have
# traffic, beside 10 handlers.
#
# Options: --handlers=N (5000), --messages=N (500), --runs=N
use strict;
use warnings;

use POSIX ();

use OutboxBench;

my $many = option('handlers', 5000);
my $messages = option('messages', 500);
my $node = bench_cluster('handlers');
my $record = $node->basedir . '/record';
open(my $create, '>', $record) or die $!;
close $create;
my $port = start_receiver('--record', $record);
my $ticks = POSIX::sysconf(POSIX::_SC_CLK_TCK());

# Processor time of the idle dispatcher, in parts per thousand of one core.
sub idle_cost
{
	my $begun = dispatcher_cpu($node);
	my $from = Time::HiRes::time();
	Time::HiRes::sleep(3);
	return 1000 * (dispatcher_cpu($node) - $begun) / $ticks / (Time::HiRes::time() - $from);
}

my %figures;
sub measure
{
	my $name = shift;
	latencies($node, $port, $record, 50);
	foreach (1 .. runs())
	{
		my $run = latencies($node, $port, $record, $messages);
		push @{ $figures{$name}{$_} }, $run->{$_} foreach keys %$run;
		push @{ $figures{$name}{idle} }, idle_cost();
	}
	return;
}

$node->sql(<<"END");
SELECT outbox.create_handler('bench' || g, ARRAY[CASE g WHEN 1 THEN 'bench.message.sent' ELSE 'bench.other' || g END], 'http://127.0.0.1:$port/')
FROM generate_series(1, 10) AS g
END
measure('few');
$node->sql(<<"END");
SELECT outbox.create_handler('idle' || g, ARRAY['idle.handler' || g], 'http://127.0.0.1:$port/') FROM generate_series(11, $many) AS g
END
measure('many');
foreach my $p (qw(p50 p99))
{
	report("latency $p with $many handlers", '%8d us, %.2f of that with 10 (%d)', median(@{ $figures{many}{$p} }), ratio($figures{many}{$p}, $figures{few}{$p}), median(@{ $figures{few}{$p} }));
}
report("idle dispatcher with $many handlers", '%8.1f per mille of a core, with 10: %.1f', median(@{ $figures{many}{idle} }), median(@{ $figures{few}{idle} }));
$node->stop;
