# Rivals: what else brings jobs from a transaction to a receiver, in the same
# run, on the same server, with the same number of jobs and the same payload:
# a poller as one writes it by hand (SKIP LOCKED), graphile-worker and pg-boss,
# each as one process of Node, which are installed from npm into the temporary
# folder.  The workers are in test/bench/rivals, set up as their own
# documentation has it for many jobs.
#
#   staging    a business row and a job in one transaction, 8 clients
#   delivery   a backlog of jobs posted to the benchmark's receiver, with the
#              same number of requests out; to the last row that says so
#   no work    the same with nothing to do for a job: what the queue costs.
#              outbox by a consumer in Node, as the others
#   latency    one job at a time, from before the call that enqueues it, which
#              commits, to the receiver
#
# Each is durable: fsync and synchronous_commit are on.
#
# Options: --jobs=N (20000), --concurrency=N (50), --single=N (100, for
# latency), --seconds=N (5, of staging), --runs=N (3)
use strict;
use warnings;

use IPC::Run ();
use OutboxBench;
use PsqlSession;
use Time::HiRes qw(time usleep);

my $jobs = option('jobs', 20_000);
my $concurrency = option('concurrency', 50);
my $single = option('single', 100);
my $seconds = option('seconds', 5);
my $payload = q{jsonb_build_object('n', g, 'padding', repeat('x', 170))};
my $node = bench_cluster('rivals');
my $folder = $node->basedir . '/rivals';

if (system("cp -r '${\ bench_dir()}/rivals' '$folder' && cd '$folder' && npm install --no-audit --no-fund --ignore-scripts > npm.log 2>&1") != 0)
{
	report('rivals', 'left out: npm cannot install them');
	exit 0;
}
$ENV{DATABASE_URL} = sprintf 'postgresql://%s@/postgres?host=%s&port=%d', scalar(getpwuid $>), $node->host, $node->port;
# Its worker logs each job otherwise.
$ENV{NO_LOG_SUCCESS} = 1;
$ENV{CONCURRENCY} = $concurrency;

$node->sql(<<'END');
CREATE TABLE business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, amount numeric, paid boolean);
CREATE TABLE job (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, state smallint NOT NULL DEFAULT 0, attempts int NOT NULL DEFAULT 0,
	run_at timestamptz NOT NULL DEFAULT clock_timestamp(), locked_until timestamptz, topic text NOT NULL, payload jsonb NOT NULL);
CREATE INDEX job_due ON job (run_at) WHERE state = 0;
END
foreach my $rival (qw(graphile_worker pg_boss))
{
	system("cd '$folder' && node $rival.js setup > setup.log 2>&1") == 0 or die "$rival cannot be set up: see $folder/setup.log\n";
}

# For each: how one job is enqueued and many are, when none is left, its worker (none: the dispatcher), what empties its tables.
my %outbox = (enqueue => "outbox.stage('%s', $payload)", left => 'SELECT FROM outbox.delivery', empty => 'outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
my %ways = (
	'outbox' => { %outbox, topic => 'push.job' },
	'outbox, consumer' => { %outbox, topic => 'pull.job', worker => 'consumer' },
	'SKIP LOCKED poller' => {
		insert => "INSERT INTO job (topic, payload) SELECT 'bench.job', $payload",
		left => 'SELECT FROM job WHERE state < 3', empty => 'job', worker => 'poller'
	},
	'graphile-worker' => {
		enqueue => "graphile_worker.add_job('deliver', $payload\::json)",
		left => 'SELECT FROM graphile_worker._private_jobs', empty => 'graphile_worker._private_jobs', worker => 'graphile_worker'
	},
	'pg-boss' => {
		insert => "INSERT INTO pgboss.job (name, data) SELECT 'bench', $payload",
		left => "SELECT FROM pgboss.job WHERE name = 'bench' AND state < 'completed'", empty => 'pgboss.job', worker => 'pg_boss'
	});
my @delivering = ('outbox', 'SKIP LOCKED poller', 'graphile-worker', 'pg-boss');

sub enqueue
{
	my ($way, $n) = @_;
	my $w = $ways{$way};
	my $each = $w->{insert} // 'SELECT ' . sprintf($w->{enqueue}, $w->{topic} // '');
	return "$each FROM generate_series($n) g";
}

sub empty
{
	my $way = shift;
	$node->sql("TRUNCATE $ways{$way}{empty}");
	$node->sql('SELECT outbox_internal.ring_rescan()');
	return;
}

sub start_worker
{
	my ($way, $port, $soon) = @_;
	local @ENV{qw(TARGET SOON)} = (defined $port ? "http://127.0.0.1:$port/" : '', $soon ? 1 : 0);
	my $worker = { said => '' };
	$worker->{run} = IPC::Run::start([ 'node', "$ways{$way}{worker}.js" ], '<', \undef, '>', \$worker->{said}, '2>', "$folder/worker.log", init => sub { chdir $folder });
	return $worker;
}

sub wait_for_word
{
	my ($worker, $word) = @_;
	until ($worker->{said} =~ /^$word$/m)
	{
		die "a worker has ended: see $folder/worker.log\n" unless $worker->{run}->pumpable;
		$worker->{run}->pump;
	}
	return;
}

sub stop_worker
{
	my $worker = shift;
	$worker->{run}->signal('TERM');
	$worker->{run}->finish;
	return;
}

# Transactions a second of 8 clients that write a business row and, unless it is the yardstick, a job.
sub staging_rate
{
	my $way = shift;
	my $file = "$folder/stage.sql";
	open(my $out, '>', $file) or die "$file: $!";
	print $out "BEGIN;\nINSERT INTO business (amount, paid) VALUES (99.5, true);\n";
	print $out enqueue($way, '1, 1') . ";\n" if defined $way;
	print $out "COMMIT;\n";
	close $out;
	my $text = qx(pgbench -n -M prepared -c 8 -j 2 -T $seconds -f $file -h ${\ $node->host} -p ${\ $node->port} postgres 2>&1);
	return $text =~ /tps = ([\d.]+)/ ? $1 : die "pgbench said: $text\n";
}

# Jobs a second, from the first to the last one, and bytes of WAL for each from enqueueing on.
sub job_rate
{
	my ($way, $port) = @_;
	empty($way);
	enable($node, 'off') if $way eq 'outbox';
	my $wal = $node->sql('CHECKPOINT; SELECT pg_current_wal_insert_lsn()');
	$node->sql(enqueue($way, "1, $jobs"));
	$node->sql("VACUUM ANALYZE $ways{$way}{empty}");
	my $worker = $ways{$way}{worker} && start_worker($way, $port);
	my $begun;
	if ($worker)
	{
		wait_for_word($worker, 'working');
		$begun = time;
	}
	else
	{
		$begun = time;
		enable($node, 'on');
	}
	my $session = PsqlSession->new($node);
	usleep(20_000) until $session->run("SELECT NOT EXISTS ($ways{$way}{left})") eq 't';
	my $took = time - $begun;
	stop_worker($worker) if $worker;
	my $bytes = $session->run("SELECT pg_current_wal_insert_lsn() - '$wal'");
	$session->close;
	return { rate => $jobs / $took, wal => $bytes / $jobs };
}

# Microseconds from the call to the receiver, of one job after the other.
sub delays
{
	my ($way, $record) = @_;
	empty($way);
	unlink $record;
	my $port = start_receiver('--record', $record);
	enable($node, 'on');
	$node->sql("SELECT outbox.alter_handler('push', url => 'http://127.0.0.1:$port/')");
	my $worker = $ways{$way}{worker} && start_worker($way, $port, 1);
	wait_for_word($worker, 'ready') if $worker;
	my $session = PsqlSession->new($node);
	my @delays;
	foreach my $n (0 .. $single)
	{
		# Not in step with what polls.
		usleep(20_000 + rand 100_000);
		my $called = time;
		$session->run(enqueue($way, '1, 1'));
		my @lines;
		until (@lines > $n)
		{
			usleep(2_000);
			open(my $in, '<', $record) or next;
			@lines = <$in>;
		}
		my ($arrived) = $lines[-1] =~ /^(\d+)/;
		# The first one opens connections.
		push @delays, $arrived - $called * 1e6 if $n > 0;
	}
	$session->close;
	stop_worker($worker) if $worker;
	stop_receiver($port);
	return sort { $a <=> $b } @delays;
}

$node->handler('push', ['push.*'], 'http://127.0.0.1:9/', concurrency => $concurrency);
$node->handler('pull', ['pull.*'], undef);

my (%staged, %bare);
enable($node, 'off');
foreach (1 .. runs())
{
	push @{ $bare{rate} }, staging_rate();
	foreach my $way (@delivering)
	{
		empty($way);
		push @{ $staged{$way} }, staging_rate($way);
		empty($way);
	}
}
report('business row alone, 8 clients', '%8d transactions/s', median(@{ $bare{rate} }));
report("business row and job, $_", '%8d transactions/s, %.2f of the row alone', median(@{ $staged{$_} }), ratio($staged{$_}, $bare{rate})) foreach @delivering;

my $port = start_receiver();
$node->sql("SELECT outbox.alter_handler('push', url => 'http://127.0.0.1:$port/')");
foreach my $case ([ 'delivery', \@delivering, $port ], [ 'no work', [ 'outbox, consumer', @delivering[ 1 .. 3 ] ], undef ])
{
	my ($what, $ways, $to) = @$case;
	my (%rate, %wal);
	foreach (1 .. runs())
	{
		foreach my $way (@$ways)
		{
			my $figures = job_rate($way, $to);
			push @{ $rate{$way} }, $figures->{rate};
			push @{ $wal{$way} }, $figures->{wal};
		}
	}
	foreach my $way (@$ways)
	{
		report("$what, $way", '%8d jobs/s, outbox %.2f of it; %d bytes of WAL a job', median(@{ $rate{$way} }), ratio($rate{ $ways->[0] }, $rate{$way}), median(@{ $wal{$way} }));
	}
}
stop_receiver($port);

foreach my $way (@delivering)
{
	my @delays = delays($way, $node->basedir . '/record');
	report("latency, $way", '%8.1f ms p50, %.1f ms p99', $delays[ @delays / 2 ] / 1000, $delays[ @delays * 0.99 ] / 1000);
}
$node->stop;
