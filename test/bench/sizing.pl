# What messages, deliveries and handlers take: bytes on disk and WAL for each
# message with one, three and ten handlers, processor time, memory.
# doc/tuning.md has the figures.
#
# Options: --messages=N (100000, for ten handlers a tenth of it), --records=1 (which WAL
# records make up the bytes), --parts=bulk,steady,shared,handlers,keys
use strict;
use warnings;

use OutboxBench;
use POSIX ();
use PsqlSession;

my $messages = option('messages', 100_000);
my $ticks = POSIX::sysconf(POSIX::_SC_CLK_TCK());
# Images of whole pages, of which there is one for each that is changed after a checkpoint, come on top.
my $node = bench_cluster('sizing', conf => 'full_page_writes = off');
my $port = start_receiver();
my $payload = q{jsonb_build_object('n', g, 'padding', repeat('x', 170))};

sub handlers
{
	my ($n, $topic) = @_;
	$node->handler("bench$_", [ $topic // 'bench.*' ], "http://127.0.0.1:$port/", concurrency => 50) foreach 1 .. $n;
	return;
}

sub start_anew
{
	$node->sql("SELECT outbox.drop_handler(handler) FROM outbox.handlers WHERE handler <> '(unrouted)'");
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
	return;
}

sub lsn { return $node->sql('SELECT pg_current_wal_insert_lsn()'); }

sub bytes_between
{
	my ($from, $to) = @_;
	return $node->sql("SELECT '$to'::pg_lsn - '$from'::pg_lsn");
}

sub disk
{
	return $node->sql("SELECT sum(pg_total_relation_size(('outbox.' || t)::regclass)) FROM unnest('{@{[join ',', @_]}}'::text[]) t");
}

# Bytes of WAL by what they say of which relation.
sub show_records
{
	my ($what, $from, $to, $n) = @_;
	my %name = map { split /\|/ } split /\n/, $node->sql(q{SELECT pg_relation_filenode(oid), relname FROM pg_class WHERE pg_relation_filenode(oid) IS NOT NULL});
	my %sum;
	open(my $in, '-|', 'pg_waldump', '-p', $node->data_dir . '/pg_wal', '-s', $from, '-e', $to) or die $!;
	while (my $line = readline $in)
	{
		next unless $line =~ m{^rmgr: (\w+)\s+len \(rec/tot\):\s+\d+/\s*(\d+),.*desc: (\w+)(?:.*?rel \d+/\d+/(\d+))?};
		# Each begins at a multiple of eight.
		$sum{"$1 $3 " . ($4 ? $name{$4} // '?' : '')} += ($2 + 7) & ~7;
	}
	close $in;
	report("  $what: $_", '%7.1f bytes', $sum{$_} / $n) foreach grep { $sum{$_} / $n >= 0.5 } sort { $sum{$b} <=> $sum{$a} } keys %sum;
	return;
}

sub settler_pid { return $node->sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox settler'"); }

# One, three and ten handlers: in bulk, so that commits count for nothing.
sub measure_bulk
{
	my $handlers = shift;
	my $n = int($messages / $handlers);
	my $what = $handlers == 1 ? 'one handler' : "$handlers handlers";
	start_anew();
	handlers($handlers);
	enable($node, 'off');
	my $session = PsqlSession->new($node);
	$session->run("SELECT outbox.stage('bench.message.sent', '1')");
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
	my ($cpu, $from) = (process_cpu($session->{backend}), lsn());
	$session->run("SELECT count(outbox.stage('bench.message.sent', $payload)) FROM generate_series(1, $n) AS g");
	$cpu = process_cpu($session->{backend}) - $cpu;
	my $staged = lsn();
	my $outstanding = disk(qw(message delivery receipt));
	my ($dispatcher, $settler_before) = (dispatcher_cpu($node), settler_pid());
	drain($node);
	my $settler = settler_pid();
	$dispatcher = dispatcher_cpu($node) - $dispatcher + ($settler ? process_cpu($settler) : 0);
	my $settled = lsn();
	report("$what: WAL to stage a message", '%7d bytes', bytes_between($from, $staged) / $n);
	show_records('stage', $from, $staged, $n) if option('records');
	report("$what: WAL to deliver it", '%7d bytes', bytes_between($staged, $settled) / $n);
	show_records('deliver', $staged, $settled, $n) if option('records');
	report("$what: disk, outstanding", '%7d bytes', $outstanding / $n);
	report("$what: disk, message and its receipts", '%7d bytes', disk(qw(message receipt)) / $n);
	report("$what: disk for messages alone", '%7d bytes', disk('message') / $n);
	report("$what: processor, stage()", '%7.1f us', $cpu / $ticks * 1e6 / $n);
	report("$what: processor of dispatcher and settler, a delivery", '%7.1f us', $dispatcher / $ticks * 1e6 / $n / $handlers);
	$session->close;
	return;
}

# As messages come in day and night: a commit for each, delivered at once.
sub measure_steady
{
	my ($n, $clients) = (int($messages / 4), 4);
	start_anew();
	handlers(1);
	enable($node, 'on');
	my $script = $node->basedir . '/stage.sql';
	open(my $out, '>', $script) or die $!;
	print $out "SELECT outbox.stage('bench.message.sent', $payload) FROM (SELECT :client_id * 100000 AS g) s;\n";
	close $out;
	my $each = int($n / $clients);
	my $from = lsn();
	qx(pgbench -n -c $clients -t $each -f $script -h ${\ $node->host} -p ${\ $node->port} postgres 2>&1);
	$node->wait_until('SELECT NOT EXISTS (SELECT FROM outbox.delivery)', 't');
	report('one by one: WAL of a message, commits included', '%7d bytes', bytes_between($from, lsn()) / $each / $clients);
	report('one by one: disk, message and its receipt', '%7d bytes', disk(qw(message receipt)) / $each / $clients);
	return;
}

sub backend_memory
{
	my $session = shift;
	return $session->run("SELECT sum(total_bytes) FROM pg_backend_memory_contexts WHERE name LIKE '%outbox%' OR parent LIKE '%outbox%'");
}

# What handlers take that have nothing to do, beyond a few.
sub measure_handlers
{
	start_anew();
	handlers(1);
	drain_one();
	my $dispatcher = dispatcher_memory($node);
	my $few = stager_memory();
	my $n = 0;
	foreach my $more (1000, 10_000)
	{
		$node->sql("SELECT outbox.create_handler('idle' || g, ARRAY['idle.handler' || g], 'http://127.0.0.1:$port/') FROM generate_series($n + 1, $more) AS g");
		$n = $more;
		drain_one();
		report("$n handlers: memory of the dispatcher for each", '%7.1f kB', (dispatcher_memory($node) - $dispatcher) / $n);
		report("$n handlers: memory of a session that stages for each", '%7.2f kB', (stager_memory() - $few) / 1024 / $n);
	}
	return;
}

sub drain_one
{
	$node->sql("SELECT outbox.stage('bench.message.sent', '1')");
	$node->wait_until('SELECT NOT EXISTS (SELECT FROM outbox.delivery)', 't');
	return;
}

sub stager_memory
{
	my $session = PsqlSession->new($node);
	$session->run("SELECT outbox.stage('bench.message.sent', '1')");
	my $bytes = backend_memory($session);
	$session->close;
	$node->wait_until('SELECT NOT EXISTS (SELECT FROM outbox.delivery)', 't');
	return $bytes;
}

# Keys whose first message waits for its next attempt.
sub measure_keys
{
	my %memory;
	my $keys = 4000;
	my $failing = start_receiver('--status', 500);
	foreach my $ordered ('false', 'true')
	{
		start_anew();
		$node->restart;
		$node->handler('keyed', ['keyed.*'], "http://127.0.0.1:$failing/", concurrency => 50, ordered => $ordered, breaker_threshold => 0, backoff_base => '1 hour');
		enable($node, 'off');
		$node->sql("SELECT count(outbox.stage('keyed.x', '1', key => 'customer-' || g)) FROM generate_series(1, $keys) g");
		enable($node, 'on');
		$node->wait_until("SELECT count(*) FROM outbox.delivery WHERE state = 1", $keys);
		$memory{$ordered} = dispatcher_memory($node);
	}
	report('an ordered key that waits: memory of the dispatcher', '%7.2f kB', ($memory{true} - $memory{false}) / $keys);
	return;
}

sub measure_shared
{
	report("shared memory: $_", '%7d kB', $node->sql("SELECT allocated_size / 1024 FROM pg_shmem_allocations WHERE name = '$_'"))
		foreach 'outbox', 'outbox counters', 'outbox pull handlers';
	report('shared memory: of that for each of outbox.max_databases', '%7.1f kB', $node->sql("SELECT allocated_size / 1024.0 / current_setting('outbox.max_databases')::int FROM pg_shmem_allocations WHERE name = 'outbox'"));
	return;
}

my %parts = (
	bulk => sub { measure_bulk($_) foreach 1, 3, 10; },
	steady => \&measure_steady,
	shared => \&measure_shared,
	handlers => \&measure_handlers,
	keys => \&measure_keys);
$parts{$_}->() foreach split /,/, option('parts', 'bulk,steady,shared,handlers,keys');
$node->stop;
