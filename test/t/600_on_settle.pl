# on_settle: a function that runs in the transaction that settles a delivery.
# What it writes and the transition commit together, or neither does.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.on_settle_timeout = 5s
outbox.log_attempts = all
outbox.rescan_interval = 1h
END

# Handlers are created by an application role without special rights.
$node->sql(<<'SQL');
CREATE ROLE app;
CREATE SCHEMA app AUTHORIZATION app;
GRANT EXECUTE ON FUNCTION outbox.create_handler, outbox.alter_handler, outbox.drop_handler, outbox.stage TO app;
SET ROLE app;
CREATE TABLE app.settled (s outbox.settlement, xid xid DEFAULT pg_current_xact_id()::xid, who name DEFAULT current_user);
CREATE FUNCTION app.note(s outbox.settlement) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.settled (s) VALUES (s);
	RETURN 'ignored';
END $$;
SQL

# create_handler() as role app.
sub handler
{
	my ($name, $function, %options) = @_;
	my $arguments = join '', map { ", $_ => " . (ref $options{$_} ? ${ $options{$_} } : $node->quote($options{$_})) } sort keys %options;
	return $node->sql("SET ROLE app; SELECT outbox.create_handler('$name', '{t.$name}', '" . $receiver->url("/$name")
		  . "', on_settle => '$function(outbox.settlement)', backoff => '{20ms}', jitter => 0$arguments)");
}

sub outcome
{
	my $handler = shift;
	return "SELECT string_agg(concat_ws(' ', state, attempts, coalesce(code, '-'), http_status), ', ' ORDER BY message_id) FROM outbox.deliveries WHERE handler = '$handler'";
}

sub nothing_is_left
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_for('SELECT count(*) FROM outbox.on_settle_queue', 0, "$name: no hand-over is left");
}

# --- delivered: what the function is told, and that both commit together
handler('plain', 'app.note');
$receiver->on('/plain', { status => 201, body => "ok \x00\xff" });
my $id = $node->stage('t.plain', '{"n": 1}', key => 'k', tenant => 'acme', correlation_id => 'c');
$node->wait_for(outcome('plain'), 'delivered 1 - 201', 'a delivery with a function is delivered');
is($node->sql("SELECT concat_ws('|', (s).message_id = '$id', (s).handler, (s).topic, (s).payload, (s).key, (s).tenant, (s).correlation_id, (s).attempt, (s).outcome, coalesce((s).code, '-'), (s).http_status, (s).response) FROM app.settled"),
	't|plain|t.plain|{"n": 1}|k|acme|c|1|delivered|-|201|ok \x00\xff', 'the function was told all of it');
is($node->sql("SELECT s.xid = d.xmin FROM app.settled s, outbox.receipt d"), 't', 'its write and the transition are one transaction');
is($node->sql("SELECT (s).settled_at = d.settled_at FROM app.settled s, outbox.receipt d"), 't', 'of one time');
is($node->sql('SELECT DISTINCT who FROM app.settled'), 'app', 'it ran as the creator');
is($node->sql("SELECT concat_ws(' ', attempt, outcome, code, http_status, duration > '0') FROM outbox.attempts WHERE handler = 'plain'"),
	'1 delivered 201 t', 'the attempt is logged');
is($node->sql('SELECT due_at IS NULL FROM outbox.deliveries'), 't', 'the delivery is due no more');
nothing_is_left('delivered');
is($node->sql("SELECT backend_type, state, query FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker'"),
	'outbox on_settle worker|idle|waiting for outcomes', 'the worker says what it does');

# --- every outcome
handler('each', 'app.note', max_attempts => 2);
$node->sql('TRUNCATE app.settled');
$receiver->on('/each', { status => 500, body => 'first' }, { status => 200 });
$node->stage('t.each');
$node->wait_for(outcome('each'), 'delivered 2 - 200', 'retried, then delivered');
$receiver->on('/each', { status => 500 });
$node->stage('t.each');
$node->wait_for(outcome('each'), 'delivered 2 - 200, dead 2 500 500', 'retried, then dead');
$receiver->on('/each', { status => 200, headers => { 'outbox-outcome' => 'cancel; code=unwanted' } });
$node->stage('t.each');
$node->wait_for(outcome('each'), 'delivered 2 - 200, dead 2 500 500, cancelled 1 unwanted 200', 'cancelled');
is($node->sql("SELECT string_agg(concat_ws(' ', (s).attempt, (s).outcome, (s).code, (s).http_status, (s).response), ', ' ORDER BY (s).settled_at) FROM app.settled"),
	'1 retrying 500 500 first, 2 delivered 200, 1 retrying 500 500, 2 dead 500 500, 1 cancelled unwanted 200',
	'the function is told of each attempt');
$receiver->on('/each', { close => 1 });
$node->sql('TRUNCATE app.settled');
$node->stage('t.each');
$node->wait_for("SELECT concat_ws(' ', (s).outcome, (s).code <> '', (s).http_status IS NULL, (s).response IS NULL) FROM app.settled WHERE (s).attempt = 2",
	'dead t t t', 'without an answer there is no status and no response');
nothing_is_left('each outcome');

# --- the function raises an error: nothing of it stays, the message is sent again
$node->sql(<<'SQL');
SET ROLE app;
CREATE FUNCTION app.fail_once(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.settled (s) VALUES (s);
	IF s.attempt = 1 THEN
		RAISE EXCEPTION 'not now' USING DETAIL = 'later';
	END IF;
END $$;
CREATE FUNCTION app.fail(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.settled (s) VALUES (s);
	RAISE EXCEPTION 'never';
END $$;
TRUNCATE app.settled;
SQL
handler('once', 'app.fail_once');
$node->stage('t.once');
$node->wait_for(outcome('once'), 'delivered 2 - 200', 'a function that fails once: delivered at the second attempt');
is($receiver->count('/once'), 2, 'the receiver was called for each attempt');
is($node->sql("SELECT string_agg(concat_ws(' ', attempt, outcome, code, http_status, error), ', ' ORDER BY attempt) FROM outbox.attempts WHERE handler = 'once'"),
	'1 retrying on_settle_failed 200 not now: later, 2 delivered 200', 'the failure is logged as such');
is($node->sql("SELECT string_agg((s).attempt::text, ',') FROM app.settled"), '2', 'what the failed call wrote is gone');

handler('never', 'app.fail', max_attempts => 3);
$node->sql('TRUNCATE app.settled');
$id = $node->stage('t.never');
$node->wait_for(outcome('never'), 'dead 3 on_settle_failed 200', 'a function that always fails: dead after max_attempts');
is($receiver->count('/never'), 3, 'it was sent for each attempt');
is($node->sql("SELECT error FROM outbox.dead_letters WHERE handler = 'never'"), 'never', 'the dead letter says why');
is($node->sql('SELECT count(*) FROM app.settled'), 0, 'nothing it wrote is there');
$node->sql("SET ROLE app; SELECT outbox.alter_handler('never', on_settle => 'app.note(outbox.settlement)')");
is($node->sql("SELECT outbox.requeue('$id')"), 1, 'requeued after the function was replaced');
$node->wait_for(outcome('never'), 'delivered 4 - 200', 'it is delivered');
is($node->sql('SELECT (s).attempt FROM app.settled'), 4, 'and the new function has run');

# A rule for the code decides otherwise.
handler('ruled', 'app.fail', rules => '{"on_settle_failed": {"action": "fail"}}');
$node->stage('t.ruled');
$node->wait_for(outcome('ruled'), 'dead 1 on_settle_failed 200', 'a rule for on_settle_failed counts');
nothing_is_left('failures');

# --- chaining: the function stages the next message
$node->sql(<<'SQL');
SET ROLE app;
CREATE FUNCTION app.chain(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF s.outcome = 'delivered' AND (s.payload ->> 'n')::int < 5 THEN
		PERFORM outbox.stage(s.topic, jsonb_build_object('n', (s.payload ->> 'n')::int + 1), correlation_id => s.correlation_id);
	END IF;
END $$;
SQL
handler('chain', 'app.chain');
$node->stage('t.chain', '{"n": 1}', correlation_id => 'chain');
$node->wait_for(outcome('chain'), join(', ', ('delivered 1 - 200') x 5), 'five links of a chain');
is($node->sql("SELECT count(*) FROM outbox.message WHERE correlation_id = 'chain'"), 5, 'and no more');

# --- the function is changed, taken away, or gone
handler('gone', 'app.note', max_attempts => 2);
$node->sql('SET ROLE app; ALTER FUNCTION app.note(outbox.settlement) RENAME TO note_2');
$node->stage('t.gone');
$node->wait_for(outcome('gone'), 'dead 2 on_settle_failed 200', 'without its function a delivery fails');
is($node->sql("SELECT error FROM outbox.dead_letters WHERE handler = 'gone'"),
	'on_settle function app.note(outbox.settlement) does not exist', 'and says so');
$node->sql('SET ROLE app; ALTER FUNCTION app.note_2(outbox.settlement) RENAME TO note');
$node->sql("SET ROLE app; SELECT outbox.alter_handler('gone', reset => '{on_settle}')");
$node->sql('TRUNCATE app.settled');
$node->sql("SELECT outbox.requeue_where(handler => 'gone')");
$node->wait_for(outcome('gone'), 'delivered 3 - 200', 'without the option no function runs');
is($node->sql('SELECT count(*) FROM app.settled'), 0, 'none has');

# --- operators: a function waits for a lock, and with it what is behind it
$node->sql(<<'SQL');
SET ROLE app;
CREATE TABLE app.gate (n int);
INSERT INTO app.gate VALUES (0);
CREATE FUNCTION app.pass_gate(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	LOCK TABLE app.gate IN ROW EXCLUSIVE MODE;
	INSERT INTO app.settled (s) VALUES (s);
END $$;
SQL
$node->safe_psql('postgres', "ALTER DATABASE postgres SET outbox.on_settle_timeout = '60s'");
$node->reload;
handler('gated', 'app.pass_gate');
my $gate = $node->background_psql('postgres');
$gate->query_safe('BEGIN; LOCK TABLE app.gate');
my @gated = map { $node->stage('t.gated', "{\"n\": $_}") } 1 .. 4;
$node->wait_for("SELECT count(*) FROM outbox.on_settle_queue k JOIN outbox.handlers h ON h.handler_id = k.handler_id WHERE h.handler = 'gated'", 4, 'four are handed over');
is($node->sql(outcome('gated')), join(', ', ('leased 1 -') x 4), 'their state is leased, the attempt counted');
is($node->sql("SELECT due_at FROM outbox.deliveries WHERE handler = 'gated' LIMIT 1"), 'infinity', 'and nobody is to try them');
is($node->sql("SELECT outbox.cancel('$gated[2]', reason => 'no more')"), 1, 'the third one can be cancelled');
is($node->sql("SELECT string_agg(finding, ',') FROM outbox.verify() WHERE severity = 'error'"), '', 'outbox.verify() finds nothing wrong with it');
my $holder = $node->background_psql('postgres');
$holder->query_safe("BEGIN; SELECT FROM outbox.delivery WHERE message_id = '$gated[1]' FOR UPDATE");
$gate->query_safe('COMMIT');
$node->wait_for(outcome('gated'), 'delivered 1 - 200, leased 1 -, cancelled 1 cancelled, delivered 1 - 200',
	'a delivery that somebody holds waits, others do not');
is($node->sql("SELECT string_agg((s).payload ->> 'n', ',') FROM app.settled WHERE (s).handler = 'gated'"), '1,4', 'no function was called for the cancelled one');
$holder->query_safe('COMMIT');
$node->wait_for(outcome('gated'), 'delivered 1 - 200, delivered 1 - 200, cancelled 1 cancelled, delivered 1 - 200', 'and is settled once it is free');
nothing_is_left('operators');

# A requeue after the cancel makes a new attempt; the old outcome is void.
$gate->query_safe('BEGIN; LOCK TABLE app.gate');
$node->sql("TRUNCATE app.settled; SELECT outbox.requeue('$gated[2]')");
$node->wait_for("SELECT attempts FROM outbox.deliveries WHERE message_id = '$gated[2]'", 2, 'requeued and handed over');
my $blocker = $node->stage('t.gated', '{"n": 5}');
$node->wait_for("SELECT attempts FROM outbox.deliveries WHERE message_id = '$blocker'", 1, 'another one is handed over behind it');
$node->sql("SELECT outbox.cancel('$blocker'); SELECT outbox.requeue('$blocker')");
$node->wait_for("SELECT attempts FROM outbox.deliveries WHERE message_id = '$blocker'", 2, 'cancelled and requeued while handed over: sent again');
$gate->query_safe('COMMIT');
$node->wait_for("SELECT string_agg((s).payload ->> 'n' || ' ' || (s).attempt, ',' ORDER BY 1) FROM (SELECT s FROM app.settled) AS x (s)", '3 2,5 2', 'one call each, for the newest attempt');
nothing_is_left('requeue');

# --- what is handed over is bounded, and the lane goes on when there is room again
$gate->query_safe('BEGIN; LOCK TABLE app.gate');
$receiver->forget;
$node->sql("SELECT count(outbox.stage('t.gated', jsonb_build_object('n', n))) FROM generate_series(1, 1000) n");
$node->wait_for('SELECT count(*) >= 200 FROM outbox.on_settle_queue', 't', 'the limit is reached');
my $before = -1;
$node->wait_while_not(sub { my $n = $receiver->count('/gated'); my $same = $n == $before; $before = $n; select undef, undef, undef, 0.5; return $same },
	'the lane stops');
cmp_ok($before, '<=', 200 + 2 * 10, "when about 200 wait ($before)");
my $backend = $node->sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox dispatcher' AND datname = 'postgres'");
$gate->query_safe('COMMIT');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'gated' AND state <> 'delivered' AND state <> 'cancelled'", 0, 'then all are delivered');
is($receiver->count('/gated'), 1000, 'each was sent once');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'gated' AND state = 'delivered'"),
	$node->sql("SELECT count(DISTINCT (s).message_id) + 3 FROM app.settled WHERE (s).handler = 'gated'"), 'each with its call');
is($node->sql("SELECT count(*) - count(DISTINCT (s).message_id) FROM app.settled"), 0, 'of which there is one each');
nothing_is_left('bound');

# --- erasing a tenant erases its hand-overs
$gate->query_safe('BEGIN; LOCK TABLE app.gate');
$node->stage('t.gated', '{}', tenant => 'erased') foreach 1 .. 2;
$node->wait_for('SELECT count(*) FROM outbox.on_settle_queue', 2, 'two of a tenant are handed over');
my $erase = $node->background_psql('postgres');
$erase->query_until(qr/erasing/, "\\echo erasing\nSELECT outbox.erase_tenant('erased');\n");
$node->wait_for("SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE 'SELECT outbox.erase_tenant%' AND wait_event_type = 'Lock'", 't',
	'erasing waits for the delivery whose function runs');
$gate->query_safe('COMMIT');
$erase->quit;
$node->wait_for("SELECT (SELECT count(*) FROM outbox.on_settle_queue) + (SELECT count(*) FROM outbox.message WHERE tenant = 'erased')", 0, 'then nothing is left');

# --- DROP HANDLER while handed over
$gate->query_safe('BEGIN; LOCK TABLE app.gate');
$node->stage('t.gated') foreach 1 .. 3;
$node->wait_for('SELECT count(*) FROM outbox.on_settle_queue', 3, 'three are handed over');
$node->sql("TRUNCATE app.settled; SET ROLE app; SELECT outbox.drop_handler('gated')");
$gate->query_safe('COMMIT');
nothing_is_left('drop handler');
is($node->sql("SELECT string_agg(state || ' ' || coalesce(code, '-'), ', ' ORDER BY message_id) FROM (SELECT * FROM outbox.deliveries WHERE handler = 'gated' ORDER BY message_id DESC LIMIT 3) d"),
	'delivered -, cancelled handler_dropped, cancelled handler_dropped', 'dropping the handler cancels those whose function has not begun');
is($node->sql('SELECT count(*) FROM app.settled'), 1, 'only the one that was running committed');

# --- without any function the worker leaves
$node->sql("SET ROLE app; SELECT outbox.drop_handler(name) FROM (VALUES ('plain'), ('each'), ('once'), ('never'), ('ruled'), ('chain'), ('gone')) v (name)");
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker'", 0, 'without any function the worker leaves');

$_->quit foreach $gate, $holder;
$node->stop;
my $log = $node->log_text;
unlike($log, qr/PANIC|TRAP|(?<!shutting down)FATAL:  (?!the database system|terminating connection)/, 'nothing fatal in the log');
done_testing();
