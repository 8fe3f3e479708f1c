# Schedules: how late an occurrence is on an idle server, beside pg_sleep();
# what thousands of them cost between their occurrences; and how long it takes
# when all of them are due at once, beside as many stage() by hand, with the
# latency of deliveries meanwhile.
#
# Options: --schedules=N (10000), --messages=N (300), --seconds=N (10), --runs=N
use strict;
use warnings;

use POSIX ();

use OutboxBench;

my $many = option('schedules', 10_000);
my $messages = option('messages', 300);
my $seconds = option('seconds', 10);
my $node = bench_cluster('schedules');
my $record = $node->basedir . '/record';
open(my $create, '>', $record) or die $!;
close $create;
my $port = start_receiver('--record', $record);
my $ticks = POSIX::sysconf(POSIX::_SC_CLK_TCK());
$node->sql("SELECT outbox.create_handler('bench', '{bench.message.sent}', 'http://127.0.0.1:$port/')");

# Processor time of the idle dispatcher, in parts per thousand of one core.
sub idle_cost
{
	my $begun = dispatcher_cpu($node);
	my $from = Time::HiRes::time();
	Time::HiRes::sleep(5);
	return 1000 * (dispatcher_cpu($node) - $begun) / $ticks / (Time::HiRes::time() - $from);
}

# --- in time
$node->sql(q{SELECT outbox.create_schedule('second', every => '1 s', topic => 'bench.second')});
$node->wait_until("SELECT runs > $seconds FROM outbox.schedules");
my @late = split /\n/, $node->sql(q{SELECT 1000 * extract(epoch FROM staged_at - regexp_replace(dedupe_key, '^schedule:second:', '')::timestamptz) FROM outbox.message WHERE topic = 'bench.second' ORDER BY 1});
my @slept = split /\n/, $node->sql("SELECT 1000 * (extract(epoch FROM clock_timestamp() - t) - 0.2) FROM (SELECT clock_timestamp() AS t, pg_sleep(0.2) FROM generate_series(1, $seconds) OFFSET 0) v");
$node->sql(q{SELECT outbox.drop_schedule('second')});
report('an occurrence is late by', '%.1f ms, at most %.1f; pg_sleep() by %.1f', median(@late), $late[-1], median(@slept));

# --- between occurrences
my (%idle, %burst);
push @{ $idle{none} }, idle_cost() foreach 1 .. runs();
$node->sql("SELECT outbox.create_schedule('bench' || g, '\@yearly', topic => 'bench.schedule', payload => '{\"at\": \"{{scheduled_at}}\"}', grace => '1 hour') FROM generate_series(1, $many) g");
Time::HiRes::sleep(1);
push @{ $idle{many} }, idle_cost() foreach 1 .. runs();
report("idle dispatcher with $many schedules", '%8.1f per mille of a core, without: %.1f', median(@{ $idle{many} }), median(@{ $idle{none} }));

# --- all at once
latencies($node, $port, $record, 50);
foreach my $run (1 .. runs())
{
	my $quiet = latencies($node, $port, $record, $messages);
	my $due = $node->sql(<<'END');
WITH due AS (SELECT date_trunc('second', clock_timestamp()) + interval '3 s' AS at), moved AS (
	UPDATE outbox.schedule_status SET next_run_at = due.at, wake_at = due.at, runs = 0 FROM due)
SELECT at, outbox_internal.ring_schedules() FROM due
END
	$due =~ s/\|.*//;
	$node->wait_until("SELECT clock_timestamp() >= '$due'");
	my $busy = latencies($node, $port, $record, $messages);
	$node->wait_until('SELECT count(*) = 0 FROM outbox.schedule_status WHERE runs = 0');
	push @{ $burst{took} }, $node->sql("SELECT extract(epoch FROM max(last_run_at) - '$due') FROM outbox.schedule_status");
	foreach my $p (qw(p50 p99))
	{
		push @{ $burst{"quiet $p"} }, $quiet->{$p};
		push @{ $burst{"busy $p"} }, $busy->{$p};
	}
	push @{ $burst{stage} }, $node->sql(<<"END");
CREATE TEMP TABLE begun AS SELECT clock_timestamp() AS at;
DO \$\$ BEGIN FOR i IN 1..$many LOOP PERFORM outbox.stage('bench.schedule', '{"at": "2026-12-01T00:00:00Z"}', dedupe_key => 'run$run:' || i); IF i % 50 = 0 THEN COMMIT; END IF; END LOOP; END \$\$;
SELECT extract(epoch FROM clock_timestamp() - at) FROM begun
END
}
report("$many occurrences at once", '%8.2f s, %.2f times as many stage() in transactions of 50 (%.2f s)', median(@{ $burst{took} }), ratio($burst{took}, $burst{stage}), median(@{ $burst{stage} }));
foreach my $p (qw(p50 p99))
{
	report("latency $p of deliveries meanwhile", '%8d us, %.2f of that on a quiet server (%d)', median(@{ $burst{"busy $p"} }), ratio($burst{"busy $p"}, $burst{"quiet $p"}), median(@{ $burst{"quiet $p"} }));
}
$node->stop;
