# Ordered handlers while settlements fail: their transaction is aborted, the
# table or a row is locked, a message has vanished or cannot be read.  No key
# is left waiting, none has two in flight, and none goes past its head.
use strict;
use warnings;

use HttpReceiver;
use JSON::PP ();
use OrderChecker;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;
use Time::HiRes qw(usleep);

my $receiver = HttpReceiver->start;
# Nothing is found by chance, and answers wait to be settled together.
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.rescan_interval = 1h
outbox.settle_interval = 10s
END

# While public.fault has a row, a transaction that logs a failed attempt fails
# for want of space: at once, or when it has done everything but commit.
$node->sql(<<'END');
CREATE TABLE public.fault (at_once boolean);
CREATE FUNCTION public.no_space() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM public.fault WHERE at_once = (TG_WHEN = 'BEFORE')) THEN
		RAISE EXCEPTION 'no space' USING ERRCODE = 'disk_full';
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER no_space_at_once BEFORE INSERT ON outbox.attempt
	FOR EACH ROW EXECUTE FUNCTION public.no_space();
CREATE CONSTRAINT TRIGGER no_space AFTER INSERT ON outbox.attempt
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.no_space();
ALTER TABLE outbox.attempt ENABLE ALWAYS TRIGGER no_space_at_once, ENABLE ALWAYS TRIGGER no_space;
END

sub numbers
{
	my $path = shift;
	return join ' ', map { JSON::PP::decode_json($_->{body})->{n} } $receiver->requests($path);
}

sub states
{
	my ($handler, $where) = @_;
	return $node->sql("SELECT string_agg(state || ' ' || n, ', ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM outbox.deliveries WHERE handler = '$handler' AND @{[ $where // 'true' ]} GROUP BY state) AS s");
}

sub wait_for_handler
{
	my ($handler, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_while_not(sub { states($handler) eq $expected }, $name // "$handler: $expected")
	  || diag("$handler is: " . states($handler));
}

sub handler
{
	my ($name, %options) = @_;
	$node->handler($name, ["$name.*"], $receiver->url("/$name"), ordered => 'true', backoff => \"ARRAY['30 ms']::interval[]", jitter => 0,
		breaker_threshold => 0, %options);
	return;
}

sub stage_key
{
	my ($handler, $key, @n) = @_;
	return map { $node->stage("$handler.x", qq({"n": $_}), key => $key) } @n;
}

# A request that stays out, so that what is answered beside it waits for the
# settle interval; and its end, upon which everything is settled.
handler('busy');
sub keep_busy
{
	my $before = $receiver->count('/busy');
	$receiver->on('/busy', { hang => 1 });
	$node->stage('busy.x', '{"n": 0}');
	ok($receiver->wait_for_requests($before + 1, '/busy'), 'a request is out');
	return;
}

sub stop_busy
{
	$receiver->release('/busy', {});
	return;
}

my $dispatcher = $node->dispatcher_pid;

# --- One that is read ahead turns out to have no message, while the one
# before it fails: what waits between them waits on.
foreach my $on_dead ('skip', 'block')
{
	my $name = "missing_$on_dead";
	handler($name, on_dead => $on_dead);
	keep_busy();
	$receiver->on("/$name", { hang => 1 });
	my @ids = stage_key($name, 'k', 1 .. 6);
	$receiver->wait_for_requests(1, "/$name");
	$node->sql("DELETE FROM outbox.message WHERE id IN ('$ids[3]', '$ids[5]')");
	$receiver->release("/$name", { status => 200 }, ({ status => 500, delay => 0.2 }) x 2, { delay => 0.01 });
	$receiver->wait_for_requests(2, "/$name");
	stop_busy();
	my $expected = $on_dead eq 'skip' ? 'dead 2, delivered 4' : 'dead 1, delivered 3, pending 2';
	wait_for_handler($name, $expected, "a message is missing behind a head that fails ($on_dead)");
	is(numbers("/$name"), $on_dead eq 'skip' ? '1 2 2 2 3 5' : '1 2 2 2 3', 'the others of its key in order');
	is($receiver->most_of_a_key("/$name"), 1, 'one at a time');
}

# --- The head has been cancelled and requeued while its request was out, and
# what says so cannot be settled: those behind it wait all the same.
handler('logs', max_attempts => 1);
foreach my $at_once ('true', 'false')
{
	my $name = "again_$at_once";
	handler($name, backoff => \"ARRAY['1 hour']::interval[]");
	# The first one dies and is requeued, so that it succeeds before the second
	# one, which has failed before, and has others read behind that.
	$receiver->on("/$name", { status => 400, headers => { 'outbox-outcome' => 'fail' } }, { status => 500 }, { status => 200 }, { hang => 1 });
	$receiver->on('/logs', { hang => 1 });
	my @ids = stage_key($name, 'k', 1 .. 5);
	wait_for_handler($name, 'dead 1, pending 3, retrying 1');
	$node->sql("SELECT outbox.requeue('$ids[0]'), outbox.retry_now('$ids[1]')");
	my $logged = $receiver->count('/logs');
	stage_key('logs', 'k', 1);
	ok($receiver->wait_for_requests(4, "/$name") && $receiver->wait_for_requests($logged + 1, '/logs'), 'two are out, others of the key behind it');
	$node->sql("SELECT outbox.cancel('$ids[1]')");
	$node->sql("SELECT outbox.requeue('$ids[1]')");
	$node->sql("INSERT INTO public.fault VALUES ($at_once)");
	$receiver->release("/$name", { status => 200 });
	$receiver->release('/logs', { status => 500 });
	$node->wait_for('SELECT last_error FROM outbox.dispatchers', 'no space', 'their settlement fails' . ($at_once eq 'true' ? ' at once' : ' at its end'));
	# Now there is something to read, and requests are out: settling can wait.
	keep_busy();
	is(numbers("/$name"), '1 2 1 2', 'nothing goes past the head');
	$node->sql('TRUNCATE public.fault');
	stop_busy();
	wait_for_handler($name, 'delivered 5');
	is(numbers("/$name"), '1 2 1 2 2 3 4 5', 'which is tried again before those behind it');
}

# --- Many are cancelled and requeued at once, which rings for a range: those
# that are out go again before those behind them.
handler('range', concurrency => 30);
$receiver->on('/range', { per_message => [ { status => 500 }, { hang => 1 } ] });
$node->sql(q{SELECT outbox.stage_many('range.x', ARRAY(SELECT jsonb_build_object('n', i) FROM generate_series(1, 60) AS i), ARRAY(SELECT 'k' || (i - 1) % 20 FROM generate_series(1, 60) AS i), tenant => 'all')});
$receiver->wait_for_requests(40, '/range');
$node->sql(q{SELECT outbox.cancel_where('range')});
$node->sql(q{SELECT outbox.requeue_where('range', include_cancelled => true)});
# Their answers are in before the requeued rows are.
keep_busy();
$receiver->release('/range', { status => 200 });
$node->wait_for("SELECT in_flight FROM outbox.dispatchers", 1, 'all are answered');
stop_busy();
wait_for_handler('range', 'delivered 60');
my $steps = check_order({ map { my $k = $_; ("k$k", [ map { $k + 1 + 20 * $_ } 0, 1, 2 ]) } 0 .. 19 },
	[ map { [ $_->{headers}{'outbox-key'}, JSON::PP::decode_json($_->{body})->{n} ] } $receiver->requests('/range') ], 'many requeued while they are out', back => 0);
is($steps->{again}, 40, 'the first of each twice more');
is($receiver->most_of_a_key('/range'), 1, 'one at a time');

# --- One is requeued that goes before those that are left, and is read by the
# very transaction that settles the last one known of its key.
$node->sql("ALTER SYSTEM SET outbox.settle_interval = '600ms'");
$node->reload;
handler('late', max_attempts => 1);
$receiver->on('/late', { status => 500 });
my ($late) = stage_key('late', 'k', 1);
wait_for_handler('late', 'dead 1');
keep_busy();
$receiver->on('/late', { status => 200 });
stage_key('late', 'k', 2);
$receiver->wait_for_requests(2, '/late');
# The answer is in, and waits until the dispatcher finds both at once.
$node->wait_for('SELECT in_flight FROM outbox.dispatchers', 1, 'it was answered');
kill 'STOP', $dispatcher;
$node->sql("SELECT outbox.requeue('$late')");
usleep(700_000);
kill 'CONT', $dispatcher;
wait_for_handler('late', 'delivered 2', 'the requeued one is not forgotten');
stop_busy();

# --- Settlements fail again and again while keys are under way: nothing is
# lost, sent twice at a time or out of order.
$receiver->forget;
handler('storm', max_attempts => 100, concurrency => 5);
srand 3;
$receiver->on('/storm', map { rand() < 0.3 ? { status => 500 } : { delay => 0.001 } } 1 .. 2000);
$node->sql('ALTER SYSTEM SET outbox.settle_interval = 5');
$node->reload;
foreach my $round (1 .. 6)
{
	$node->sql("INSERT INTO public.fault VALUES ($round % 2 = 0)");
	$node->sql(q{SELECT outbox.stage_many('storm.x', ARRAY(SELECT jsonb_build_object('n', i) FROM generate_series(1, 60) AS i), ARRAY(SELECT 'k' || i % 6 FROM generate_series(1, 60) AS i))});
	$node->wait_for('SELECT last_error FROM outbox.dispatchers', 'no space', "round $round: settlement fails");
	$node->sql('TRUNCATE public.fault');
	$node->wait_for('SELECT last_error IS NULL FROM outbox.dispatchers', 't', "round $round: and goes on");
}
wait_for_handler('storm', 'delivered 360');
check_order(staged_order($node, 'storm'), [ arrivals($receiver, '/storm') ], 'settlements that fail', back => 0);
is($receiver->most_of_a_key('/storm'), 1, 'one at a time');

# --- An operator holds the row of the head, then the whole table for a while,
# and the dispatcher is late: nothing of the key is settled before the head,
# and only what was out already goes past it.
handler('held');
handler('other');
# One of another key, settled together with whatever has been answered before.
my $others = 0;
sub settle_other
{
	my $name = shift;
	my $id = $node->stage('other.x', '{}', key => 'other ' . ++$others);
	$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'delivered', "another key goes on: $name");
	return;
}
$receiver->on('/held', { hang => 1 });
my @held = stage_key('held', 'k', 1 .. 5);
$receiver->wait_for_requests(1, '/held');
my $operator = PsqlSession->new($node);
$operator->run("BEGIN; SELECT FROM outbox.delivery WHERE message_id = '$held[0]' FOR UPDATE");
$receiver->release('/held', { status => 200 }, { hang => 1 });
ok($receiver->wait_for_requests(2, '/held'), 'the one behind it is out');
settle_other('while the row of the head is locked');
$receiver->release('/held', { status => 200 });
settle_other('and the one behind it has been answered');
foreach my $round (1 .. 3)
{
	# First one after the other falls due to be tried again, then all of them are overdue.
	$node->sql('BEGIN; LOCK TABLE outbox.delivery IN SHARE MODE; SELECT pg_sleep(0.25); COMMIT');
	kill 'STOP', $dispatcher;
	usleep(150_000);
	kill 'CONT', $dispatcher;
	settle_other("round $round");
	is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'held' AND state = 'delivered'"), 0, 'nothing is settled before the head');
}
is(numbers('/held'), '1 2', 'and nothing more is sent');
$operator->run('COMMIT');
$operator->close;
wait_for_handler('held', 'delivered 5');
is(numbers('/held'), '1 2 3 4 5', 'each was sent once and in order');

is($node->dispatcher_pid, $dispatcher, 'it is the same dispatcher all the time');
$node->stop;
$receiver->stop;
done_testing();
