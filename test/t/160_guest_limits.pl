# At the limits of what a process may have: few descriptors, a receiver that
# refuses hundreds of connections at once, an answer of 100 MB, a payload of
# the greatest size, thousands of handlers.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.max_in_flight = 500
outbox.rescan_interval = 1h
outbox.log_attempts = none
END
$node->stop;

# Start the server with so few descriptors for each process.
sub start_with_descriptors
{
	my $limit = shift;
	system('sh', '-c', 'ulimit -n "$1" && exec "$2" -w -s -D "$3" -l "$4" start', 'sh', $limit,
		$node->installed_command('pg_ctl'), $node->data_dir, $node->logfile) == 0 or die "the server does not start with $limit descriptors";
	$node->_update_pid(1);
	return;
}

sub proc
{
	my ($pid, $file, $what) = @_;
	my ($value) = slurp_file("/proc/$pid/$file") =~ /^$what:\s+(\d+)/m;
	return $value;
}

sub descriptors { return scalar(() = glob "/proc/$_[0]/fd/*"); }

# --- 256 descriptors, and a handler that asks for 500 requests at once
start_with_descriptors(256);
$node->wait_for_dispatcher;
my $said = qr/outbox dispatcher can have (\d+) requests out at once, not 500/;
foreach my $transport ('auto', 'curl')
{
	my $mark = -s $node->logfile;
	$node->sql("ALTER SYSTEM SET outbox.transport = $transport");
	$node->reload;
	my $before = $node->wait_for_dispatcher;
	$node->sql("SELECT pg_terminate_backend($before)");
	my $pid = $node->wait_for_dispatcher('postgres', $before);
	my ($fits) = slurp_file($node->logfile, $mark) =~ $said;
	cmp_ok($fits // 0, '>', 20, "$transport: says how many requests fit");
	cmp_ok($fits // 0, '<', 128, "$transport: which are fewer than there are descriptors");
	SKIP:
	{
		skip 'needs /proc', 1 unless -r "/proc/$pid/limits";
		like(slurp_file("/proc/$pid/limits"), qr/^Max open files\s+256\s+256\s/m, "$transport: the dispatcher may have 256");
	}

	# A name that may stand for two addresses, of which one does not answer.
	my $url = 'http://localhost:' . $receiver->port;
	$node->handler("wide_$transport", ["$transport.wide"], "$url/wide_$transport", concurrency => 500, timeout => '10 min', breaker_threshold => 0);
	$node->handler("beside_$transport", ["$transport.beside"], "$url/beside_$transport");
	$receiver->on("/wide_$transport", { hang => 1 });
	$node->sql("SELECT outbox.stage('$transport.wide', jsonb_build_object('n', n)) FROM generate_series(1, 400) n");

	# The last tenth is for others.
	my $most = $fits - int($fits / 10);
	$node->wait_while_not(sub { $receiver->in_flight("/wide_$transport") == $most }, "$transport: all of those are out, but for the last tenth");
	$node->stage("$transport.beside");
	$node->wait_for("SELECT state FROM outbox.deliveries WHERE handler = 'beside_$transport'", 'delivered', "$transport: which serves another handler");
	is($receiver->in_flight("/wide_$transport"), $most, "$transport: no more than fit have been sent");
	$node->handler("large_$transport", ["$transport.large"], "$url/large_$transport");
	$receiver->on("/large_$transport", { size => 100_000_000 });
	$node->stage("$transport.large");
	$node->wait_for("SELECT state FROM outbox.deliveries WHERE handler = 'large_$transport'", 'delivered', "$transport: an answer of 100 MB is read meanwhile");
	$receiver->release("/wide_$transport");
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'wide_$transport' AND state = 'delivered' AND attempts = 1", 400, "$transport: everything is delivered at the first attempt");
	my $ids = $receiver->ids("/wide_$transport");
	is(scalar(grep { $_ == 1 } values %$ids), 400, "$transport: and was sent once");
	my @lines = slurp_file($node->logfile, $mark) =~ /$said/g;
	is(scalar @lines, 1, "$transport: it was said once");
	is($node->dispatcher_pid, $pid, "$transport: by a dispatcher that has stayed");
}
unlike($node->log_text, qr/too many open files|out of file descriptors/i, 'nobody has run out of descriptors');
my $mark = -s $node->logfile;
$node->sql('ALTER SYSTEM SET outbox.max_in_flight = 20');
$node->reload;
$node->sql("ALTER SYSTEM RESET outbox.max_in_flight");
$node->reload;
$node->stop;
$node->start;
$node->wait_for_dispatcher;
unlike(slurp_file($node->logfile, $mark), qr/outbox dispatcher can have (?!\d+ requests out at once, not 500)/, 'with the usual number of descriptors there is nothing to say');

# --- a receiver that refuses hundreds of connections at once
my $pid = $node->dispatcher_pid;
SKIP:
{
	skip 'needs /proc', 3 unless -r "/proc/$pid/smaps_rollup";
	my $refusing = HttpReceiver->start;
	$node->handler('refused', ['refused'], $refusing->url('/refused'), concurrency => 500, max_attempts => 2, backoff => '{1 ms}', breaker_threshold => 0);
	$refusing->go_away;
	my ($messages, @memory, @descriptors) = (0);
	my $stable = sub { return @memory > 3 && $memory[-1] - $memory[-4] < 512; };

	# What it reads ahead takes its place once; what leaks goes on growing.
	foreach my $wave (10_000, (1000) x 20)
	{
		$messages += $wave;
		$node->sql("SELECT outbox.stage('refused') FROM generate_series(1, $wave)");
		$node->wait_until("SELECT count(*) = $messages FROM outbox.deliveries WHERE handler = 'refused' AND state = 'dead' AND code = 'connect'") or last;
		push @memory, proc($pid, 'smaps_rollup', 'Anonymous');
		push @descriptors, descriptors($pid);
		last if $stable->();
	}
	is($messages, 9000 + 1000 * @memory, 'thousands of messages die of connections that are refused');
	note("memory in kB: @memory, descriptors: @descriptors");
	ok($stable->(), 'the dispatcher does not grow of it');
	cmp_ok($descriptors[-1] - $descriptors[0], '<', 10, 'nor does it have more open');
	$refusing->come_back;
	$node->sql("SELECT outbox.requeue_where(handler => 'refused', max_rows => 500)");
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'refused' AND state = 'delivered'", 500, 'and it delivers once it is let in');
}

# --- a payload of the greatest size, and of one byte more
$node->handler('great', ['great'], $receiver->url('/great'));
my $limit = $node->sql("SELECT setting::int FROM pg_settings WHERE name = 'outbox.max_payload_size'");
$node->sql("SELECT outbox.stage('great', to_jsonb(repeat('x', $limit - 2)))");
ok($receiver->wait_for_requests(1, '/great'), 'a payload of exactly outbox.max_payload_size is sent');
my ($request) = $receiver->requests('/great');
is($request->{body}, '"' . 'x' x ($limit - 2) . '"', 'whole');
like($node->sql_error("SELECT outbox.stage('great', to_jsonb(repeat('x', $limit - 1)))"), qr/ERROR:  54000: .*HINT: /s, 'one of a byte more is refused');
like($node->sql_error("SELECT outbox.stage_many('great', ARRAY['1'::jsonb, to_jsonb(repeat('x', $limit - 1))])"), qr/ERROR:  54000: /, 'among others too');
is($node->sql("SELECT status FROM outbox.try_stage('great', to_jsonb(repeat('x', $limit - 1)))"), 'invalid', 'and named by try_stage()');
is($node->sql('SELECT count(*) FROM outbox.message WHERE topic = \'great\''), 1, 'nothing of those was staged');

# --- ten thousand handlers
$node->sql(<<"SQL");
WITH created AS (INSERT INTO outbox.handler (name, topics, url)
	SELECT 'many_' || n, ARRAY['many.' || n], '@{[ $receiver->url('/many/') ]}' || n FROM generate_series(1, 10000) n RETURNING id)
INSERT INTO outbox.handler_status (handler_id) SELECT id FROM created
SQL
$node->sql("SELECT outbox.stage('many.' || n) FROM unnest(ARRAY[1, 5000, 10000]) n");
foreach my $n (1, 5000, 10_000)
{
	ok($receiver->wait_for_requests(1, "/many/$n"), "of 10,000 handlers number $n gets its message");
}
$node->sql("SELECT outbox.stage('many.' || n) FROM generate_series(1, 10000) n");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic LIKE 'many.%' AND state = 'delivered'", 10_003, 'and each of them gets one');
my $begin = time;
is($node->sql("SELECT outbox.alter_handler('many_77', url => '" . $receiver->url('/other') . "') IS NULL"), 'f', 'one of them is changed');
# Soon: after reading that many handlers the dispatcher rests for a multiple of the time it took.
$node->wait_while_not(sub { $node->stage('many.77'); return $receiver->count('/other') > 0; }, 'and is used as it is now');
note(sprintf 'after %.3f s; memory of the dispatcher in kB: %d', time - $begin, proc($pid, 'smaps_rollup', 'Anonymous')) if -r "/proc/$pid/smaps_rollup";
is($node->dispatcher_pid, $pid, 'by the same dispatcher as before');

# What changes no route makes no session read them all again.
my $session = PsqlSession->new($node, 'postgres');
my $reads = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relid = 'outbox.handler'::regclass";
$session->run("BEGIN; SELECT outbox.stage('many.1')");
is($session->run($reads), 1, 'a session that stages reads the handlers');
$node->sql("SELECT outbox.pause_handler('many_5', 'a while'), outbox.resume_handler('many_5'), outbox.rotate_secret('many_5')");
$session->run("SELECT outbox.stage('many.1')");
is($session->run($reads), 1, 'not again when one was paused or has a new secret');
$node->sql("SELECT outbox.alter_handler('many_5', topics => '{many.1}')");
my $id = $session->run("SELECT outbox.stage('many.1')");
is($session->run($reads), 2, 'but when one takes other topics');
$session->run('COMMIT');
$node->wait_for("SELECT string_agg(handler || ' ' || state, ', ' ORDER BY handler) FROM outbox.deliveries WHERE message_id = '$id'", 'many_1 delivered, many_5 delivered', 'and both get the message');
$session->close;

unlike($node->log_text, qr/PANIC|TRAP|terminated by signal|gives up/, 'no process has ended of any of it');
$node->stop;
done_testing();
