# What could make a lane forget work, or look for it without end.  A rescan
# would hide most of this, so there is none.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use POSIX ();
use PsqlSession;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.rescan_interval = '1h'\noutbox.max_in_flight = 4\nautovacuum = off");
my $dispatcher = $node->wait_for_dispatcher;

sub state_of
{
	my $id = shift;
	return "SELECT state FROM outbox.deliveries WHERE message_id = '$id'";
}

# Processor time of a process so far, in seconds.
sub processor_time
{
	my $pid = shift;
	open my $stat, '<', "/proc/$pid/stat" or return;
	my ($fields) = <$stat> =~ /\) (.*)/;
	return ((split / /, $fields)[11] + (split / /, $fields)[12]) / POSIX::sysconf(&POSIX::_SC_CLK_TCK);
}

# More index entries of settled rows than one look may examine, which vacuum
# cannot remove: the lane reads on by itself.
$node->handler('behind', ['behind.*'], $receiver->url('/behind'));
$node->stage('behind.first');
ok($receiver->wait_for_requests(1, '/behind'), 'a lane works');
my $holder = PsqlSession->new($node);
$holder->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.message');
$node->sql("SELECT outbox.pause_handler('behind')");
$node->sql("SELECT count(outbox.stage('behind.bulk')) FROM generate_series(1, 45000)");
is($node->sql("SELECT outbox.cancel_where(handler => 'behind')"), 45000, 'many deliveries are settled');
$node->sql("SELECT outbox.resume_handler('behind')");
my $id = $node->stage('behind.last');
$node->wait_for(state_of($id), 'delivered', 'what comes behind them is delivered');
$holder->run('COMMIT');

# A paused lane whose scheduled message falls due has nothing to do until it is resumed.
SKIP:
{
	skip 'no /proc', 1 unless defined processor_time($$);
	$node->handler('idle', ['idle.*'], $receiver->url('/idle'));
	$id = $node->stage('idle.x', '{}', delay => \"interval '200 ms'");
	$node->sql("SELECT outbox.pause_handler('idle')");
	$node->wait_for("SELECT due_at < clock_timestamp() FROM outbox.deliveries WHERE message_id = '$id'", 't', 'the message of a paused handler is due');
	my ($begin, $used) = (time, processor_time($dispatcher));
	$node->wait_until("SELECT due_at < clock_timestamp() - interval '1 s' FROM outbox.deliveries WHERE message_id = '$id'", 't');
	cmp_ok(processor_time($dispatcher) - $used, '<', (time - $begin) / 10, 'and the dispatcher sleeps');
	$node->sql("SELECT outbox.resume_handler('idle')");
	$node->wait_for(state_of($id), 'delivered', 'until it is resumed');
}

# The same when it falls due behind others that a slow receiver holds up.
SKIP:
{
	skip 'no /proc', 1 unless defined processor_time($$);
	$receiver->on('/slow', { hang => 1 });
	$node->handler('slow', ['slow.*'], $receiver->url('/slow'), concurrency => 1);
	$node->stage('slow.x');
	ok($receiver->wait_for_requests(1, '/slow'), 'a request is out');
	$id = $node->stage('slow.later', '{}', delay => \"interval '400 ms'");
	$node->sql("SELECT count(outbox.stage('slow.more')) FROM generate_series(1, 50)");
	$node->sql("SELECT count(outbox.stage('slow.more', delay => interval '300 ms')) FROM generate_series(1, 50)");
	$node->wait_for("SELECT due_at < clock_timestamp() FROM outbox.deliveries WHERE message_id = '$id'", 't', 'more falls due');
	my ($begin, $used) = (time, processor_time($dispatcher));
	$node->wait_until("SELECT due_at < clock_timestamp() - interval '1 s' FROM outbox.deliveries WHERE message_id = '$id'", 't');
	cmp_ok(processor_time($dispatcher) - $used, '<', (time - $begin) / 10, 'and the dispatcher sleeps');
	$receiver->on('/slow', {});
	$receiver->release('/slow', {});
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'slow' AND state = 'delivered'", 102, 'until there is an answer');
}

# Settling fails while a lane wants to read: it reads once that is over.
$node->sql(<<'END');
CREATE SEQUENCE public.tries;
CREATE FUNCTION public.no_space() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('public.tries');
	RAISE EXCEPTION 'no space' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER no_space BEFORE INSERT ON outbox.attempt FOR EACH ROW EXECUTE FUNCTION public.no_space();
ALTER TABLE outbox.attempt ENABLE ALWAYS TRIGGER no_space;
END
$receiver->on('/fails', { status => 500 });
$node->handler('fails', ['fails.*'], $receiver->url('/fails'), max_attempts => 1);
$node->handler('reads', ['reads.*'], $receiver->url('/reads'));
my $failing = $node->stage('fails.x');
$node->wait_for('SELECT is_called FROM public.tries', 't', 'settling fails');
$id = $node->stage('reads.x');
my $tries = $node->sql('SELECT last_value FROM public.tries');
$node->wait_for("SELECT last_value > $tries FROM public.tries", 't', 'and again');
$node->sql('DROP TRIGGER no_space ON outbox.attempt');
$node->wait_for(state_of($failing), 'dead', 'then it does not');
$node->wait_for(state_of($id), 'delivered', 'and what was to be read meanwhile is delivered');

# All requests that may be out are out.  A lane that has a message in memory
# looks in vain for more, and sends it when there is room again.
$receiver->on('/hog', { hang => 1 });
$node->handler('hog', ['hog.*'], $receiver->url('/hog'), timeout => '1 h');
$node->handler('waits', ['waits.*'], $receiver->url('/waits'));
$node->sql("SELECT count(outbox.stage('hog.x')) FROM generate_series(1, 4)");
ok($receiver->wait_for_requests(4, '/hog'), 'as many requests are out as may be');
$id = $node->stage('waits.x');
$node->sql("BEGIN; SAVEPOINT s; SELECT outbox.stage('waits.never'); ROLLBACK TO s; COMMIT") foreach 1 .. 5;
is($receiver->count('/waits'), 0, 'a message has to wait for room');
$receiver->on('/hog', {});
is($receiver->release('/hog', {}), 4, 'there is room');
$node->wait_for(state_of($id), 'delivered', 'and it is delivered');

# The doorbell overflows, and what did not fit is that a message was cancelled
# which is in memory already.  It takes its time to create that many handlers.
$receiver->on('/queue', { hang => 1 });
$node->handler('queue', ['queue.*'], $receiver->url('/queue'), concurrency => 1, timeout => '1 h');
$node->stage('queue.out');
ok($receiver->wait_for_requests(1, '/queue'), 'a request is out');
my @queued = map { $node->stage('queue.waits') } 1 .. 3;
$node->sql("SELECT count(outbox.create_handler('crowd' || i, ARRAY['crowd'])) FROM generate_series(1, 1100) i");
# A reload has taken all of them in, so the lane has read what came before it.
$node->handler('witness', ['witness'], $receiver->url('/witness'));
$node->stage('witness');
ok($receiver->wait_for_requests(1, '/witness'), 'the dispatcher has seen all of them');
kill 'STOP', $dispatcher;
$node->stage('crowd');
$node->sql("SELECT outbox.cancel('$queued[1]')");
kill 'CONT', $dispatcher;
$receiver->on('/queue', {});
$node->stage('witness');
ok($receiver->wait_for_requests(2, '/witness'), 'the doorbell was emptied');
$receiver->release('/queue', {});
$node->wait_for(state_of($queued[2]), 'delivered', 'the queue goes on');
is($receiver->ids('/queue')->{ $queued[1] }, undef, 'without the cancelled one');

# Somebody locks what the dispatcher wants to read anew: deliveries go on.
$node->handler('goes', ['goes.*'], $receiver->url('/goes'), secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
my $producer = PsqlSession->new($node);
$producer->run("SELECT outbox.stage('goes.x')");
ok($receiver->wait_for_requests(1, '/goes'), 'a lane works');
my $locker = PsqlSession->new($node);
$locker->run('BEGIN; LOCK TABLE outbox.handler_secret');
$node->sql("SELECT outbox.pause_handler('behind'); SELECT outbox.resume_handler('behind')");
my $begin = time;
foreach my $n (2 .. 6)
{
	$producer->run("SELECT outbox.stage('goes.x')");
	ok($receiver->wait_for_requests($n, '/goes'), "message $n is delivered");
}
cmp_ok(time - $begin, '<', 2, 'and none waits for the lock');
$locker->run('COMMIT');

# Slow receivers may take up what requests there can be, but for a tenth that
# is kept for handlers without any.
$node->sql('ALTER SYSTEM SET outbox.max_in_flight = 20');
$node->reload;
$receiver->on("/$_", { hang => 1 }) foreach qw(many few);
$node->handler($_, ["$_.x"], $receiver->url("/$_"), concurrency => 100) foreach qw(many few fast);
$node->sql("SELECT count(outbox.stage('many.x')) FROM generate_series(1, 50)");
ok($receiver->wait_for_requests(18, '/many'), 'one handler takes up nearly everything');
$node->sql("SELECT count(outbox.stage('few.x')) FROM generate_series(1, 5)");
ok($receiver->wait_for_requests(1, '/few'), 'another one gets a request out');
$node->sql("SELECT count(outbox.stage('fast.x')) FROM generate_series(1, 5)");
ok($receiver->wait_for_requests(5, '/fast'), 'and a third one goes on');
is($receiver->count('/many') . ' ' . $receiver->count('/few'), '18 1', 'while the slow ones wait');
$receiver->on("/$_", {}) foreach qw(many few);
$receiver->release("/$_", {}) foreach qw(many few);
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered' AND topic IN ('many.x', 'few.x')", 55, 'until they answer');

# The request that was to find out whether the receiver is well again cannot
# be written: the next one finds out.
$node->sql("CREATE DATABASE jp TEMPLATE template0 ENCODING 'EUC_JP' LOCALE 'C'");
$node->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', 'jp');
my $jp = $node->wait_for_dispatcher('jp');
$receiver->on('/probe', { status => 500 }, { status => 200 });
$node->handler('probe', ['probe.*'], $receiver->url('/probe'), breaker_threshold => 1, breaker_wait => '100 ms', backoff_base => '1 hour',
	backoff_max => '1 hour', database => 'jp');
$node->stage('probe.fails', '{}', database => 'jp');
$node->wait_for("SELECT breaker FROM outbox.handlers", 'open', 'the breaker opens', 'jp');
$node->sql("SELECT outbox.stage('probe.odd', jsonb_build_object('x', convert_from('\\xa9a1', 'EUC_JP')))", 'jp');
$node->wait_for("SELECT state || ' ' || code || ' ' || attempts FROM outbox.deliveries WHERE topic = 'probe.odd'", 'dead unreadable 0',
	'a message that cannot be written is dead', 'jp');
$node->stage('probe.well', '{}', database => 'jp');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE topic = 'probe.well'", 'delivered', 'the next one is sent', 'jp');
is($node->dispatcher_pid('jp'), $jp, 'all of it by one dispatcher');

# While nothing is sent, nobody wakes the dispatcher for deliveries; what the
# doorbell has and what did not fit into it is sent afterwards.
sub wake_ups
{
	open my $status, '<', "/proc/$dispatcher/status" or return 0;
	local $/;
	return <$status> =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : 0;
}

$node->handler('quiet', ['quiet.*'], $receiver->url('/quiet'));
foreach my $n (50, 3000)
{
	$receiver->forget;
	$node->sql('ALTER SYSTEM SET outbox.enabled = off; SELECT pg_reload_conf()');
	$node->wait_for('SELECT state FROM outbox.dispatchers WHERE database = current_database()', 'disabled', 'sending is off');
	my $before = wake_ups();
	$node->sql("DO \$\$ BEGIN FOR i IN 1 .. $n LOOP PERFORM outbox.stage('quiet.x'); COMMIT; END LOOP; END \$\$");
	cmp_ok(wake_ups() - $before, '<', $n / 2, "$n commits do not wake the dispatcher each");
	$node->sql('ALTER SYSTEM SET outbox.enabled = on; SELECT pg_reload_conf()');
	ok($receiver->wait_for_requests($n, '/quiet'), 'all of it is sent when sending is on again');
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'quiet' AND state <> 'delivered'", 0, 'and settled');
}

is($node->dispatcher_pid, $dispatcher, 'all by one dispatcher');
$node->stop;
done_testing();
