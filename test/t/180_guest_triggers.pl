# What its tables' owner hangs on them with ENABLE ALWAYS fires on every write,
# those that go past the executor included: staging, claims and what consumers
# make of them, receipts by the dispatcher and by the settler, hand-overs and
# on_settle.  pg_repack relies on it: a table copied while it is written to.
use strict;
use warnings;

use HttpReceiver;
use IPC::Run;
use OutboxCluster;
use PsqlSession;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.settle_interval = 10s\n");

# Each table has a mirror that is written by its trigger alone; a trigger that
# is not ENABLE ALWAYS would spoil it.
$node->sql(<<'SQL');
CREATE SCHEMA app;
CREATE TABLE app.message AS TABLE outbox.message;
CREATE TABLE app.delivery AS TABLE outbox.delivery;
CREATE TABLE app.receipt AS TABLE outbox.receipt;
CREATE INDEX ON app.delivery (message_id, handler_id);
CREATE FUNCTION app.mirror() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	key text := CASE tg_table_name WHEN 'message' THEN '($1).id = id' ELSE '($1).message_id = message_id AND ($1).handler_id = handler_id' END;
	n int;
BEGIN
	IF current_user <> 'postgres' THEN
		RAISE LOG 'a trigger ran as %', current_user;
	END IF;
	IF tg_op <> 'INSERT' THEN
		EXECUTE format('DELETE FROM app.%I WHERE %s', tg_table_name, key) USING old;
		GET DIAGNOSTICS n = ROW_COUNT;
		IF n <> 1 THEN
			RAISE LOG 'a trigger missed something: % found %', tg_op, n;
		END IF;
	END IF;
	IF tg_op <> 'DELETE' THEN
		EXECUTE format('INSERT INTO app.%I SELECT ($1).*', tg_table_name) USING new;
	END IF;
	RETURN NULL;
END $$;
CREATE FUNCTION app.trap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE LOG 'an ordinary trigger fired'; RETURN coalesce(new, old); END $$;
CREATE TABLE app.settled (message_id uuid);
CREATE ROLE app;
GRANT USAGE ON SCHEMA app TO app;
GRANT INSERT ON app.settled TO app;
CREATE FUNCTION app.note(s outbox.settlement) RETURNS void LANGUAGE sql AS 'INSERT INTO app.settled VALUES (s.message_id)';
ALTER FUNCTION app.note OWNER TO app;
CREATE ROLE consumer LOGIN;
CREATE ROLE producer LOGIN;
SELECT outbox.grant_producer('producer');
SQL
foreach my $table (qw(message delivery receipt))
{
	$node->sql(<<"SQL");
CREATE TRIGGER mirror AFTER INSERT OR UPDATE OR DELETE ON outbox.$table FOR EACH ROW EXECUTE FUNCTION app.mirror();
ALTER TABLE outbox.$table ENABLE ALWAYS TRIGGER mirror;
CREATE TRIGGER trap BEFORE INSERT OR UPDATE OR DELETE ON outbox.$table FOR EACH ROW EXECUTE FUNCTION app.trap();
SQL
}

sub mirrored
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $table (qw(message delivery receipt))
	{
		is($node->sql("SELECT count(*) FROM ((TABLE outbox.$table EXCEPT ALL TABLE app.$table) UNION ALL (TABLE app.$table EXCEPT ALL TABLE outbox.$table)) d"),
			0, "$name: every write to $table was told");
	}
	return;
}

# --- pull: staged, claimed, extended, put off, failed, completed, put back
$node->handler('pull', ['pull.*'], undef, max_attempts => 2, jitter => 0);
$node->handler('keyed', ['pull.*'], undef, ordered => 'true');
$node->sql("SELECT outbox.grant_consumer('pull', 'consumer'), outbox.grant_consumer('keyed', 'consumer')");
$node->sql("SET ROLE producer; SELECT count(outbox.stage('pull.a', to_jsonb(i), key => 'k')) FROM generate_series(1, 20) i");
mirrored('staging');
$node->sql(q{SET ROLE consumer;
CREATE TEMP TABLE c AS SELECT row_number() OVER () AS n, * FROM outbox.claim('pull', 20);
SELECT outbox.extend('pull', id, attempt, '1 h') FROM c WHERE n = 1;
SELECT outbox.retry('pull', id, attempt, after => '0') FROM c WHERE n BETWEEN 2 AND 4;
SELECT outbox.fail('pull', id, attempt) FROM c WHERE n = 5;
SELECT outbox.complete_many('pull', array_agg(id), array_agg(attempt)) FROM c WHERE n > 5;
SELECT outbox.complete('keyed', id, attempt) FROM outbox.claim('keyed', 5);
SELECT outbox.claim('pull', 2, '1 microsecond')});
# One lease has run out with its last attempt, and the claim buries it.
$node->sql("SET ROLE consumer; SELECT count(*) FROM outbox.claim('pull', 20)");
mirrored('consumers');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'pull' AND state = 'dead'"), 3, 'leases have run out');
$node->sql("SELECT outbox.requeue_where(handler => 'pull'), outbox.replay('pull', '-infinity'), outbox.cancel_where(handler => 'keyed')");
mirrored('operators');
$node->sql(q{SELECT outbox.drop_handler('keyed'), outbox.drop_handler('pull')});
mirrored('a dropped handler');

# --- push: settled by the dispatcher, and handed over to a function
$receiver->on('/push', { status => 200 }, { status => 500 }, { status => 200 }, { status => 410 });
$node->handler('push', ['push.*'], $receiver->url('/push'), max_attempts => 2, backoff_base => '1 ms', jitter => 0);
$node->handler('told', ['push.*'], $receiver->url('/told'), on_settle => 'app.note(outbox.settlement)');
$node->sql("SELECT count(outbox.stage('push.a')) FROM generate_series(1, 3)");
$node->wait_for("SELECT count(*) FROM app.settled", 3, 'functions have run');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'told' AND state = 'delivered'", 3, 'and their deliveries are settled');
$node->wait_for("SELECT count(*) FROM outbox.delivery WHERE handler_id = (SELECT id FROM outbox.handler WHERE name = 'push') AND state = 0", 0, 'all were tried');
mirrored('push and on_settle');
$node->sql("SELECT outbox.drop_handler('push'), outbox.drop_handler('told')");

# --- the settler
SKIP:
{
	skip 'a settler needs a second processor', 4 if !OutboxCluster::can_have_settler();
	$node->handler('load', ['load.*'], $receiver->url('/load'), concurrency => 50, timeout => '1 hour');
	my $staged = $node->load_settler('load', 'a settler writes receipts');
	$node->wait_for("SELECT count(*) FROM outbox.receipt r JOIN outbox.handler h ON h.id = r.handler_id WHERE h.name = 'load' AND r.state = 3", $staged, 'all of them');
	mirrored('the settler');
	is($receiver->count('/load'), $staged, 'each was sent once');
	$node->sql("SELECT outbox.drop_handler('load')");
}
unlike($node->log_text, qr/a trigger missed something|an ordinary trigger fired|a trigger ran as/, 'with the rights of the owner, nothing was missed, and no other trigger fires');
$node->sql("DROP TRIGGER mirror ON outbox.$_; DROP TRIGGER trap ON outbox.$_") foreach qw(message delivery receipt);

# --- pg_repack, under load
SKIP:
{
	my $repack = $node->config_data('--bindir') . '/pg_repack';
	skip 'no pg_repack', 6 unless -x $repack && eval { $node->sql('SET client_min_messages = warning; CREATE EXTENSION pg_repack'); 1 };
	$receiver->forget;
	$receiver->on('/told', { status => 200 });
	$node->handler('h', ['repack.*'], $receiver->url('/h'));
	$node->handler('f', ['repack.*'], $receiver->url('/told'), on_settle => 'app.note(outbox.settlement)');
	$node->handler('p', ['repack.*'], undef);
	$node->sql('TRUNCATE app.settled; CREATE TABLE app.done (message_id uuid)');
	my $consumer = PsqlSession->new($node);
	my $staged = 0;
	foreach my $table (qw(delivery receipt delivery receipt))
	{
		my $run = IPC::Run::start([ $repack, '-h', $node->host, '-p', $node->port, '-U', 'postgres', '-d', 'postgres', '-t', "outbox.$table", '--no-analyze' ],
			'<', \undef, '>', \my $out, '2>', \my $error);
		# As long as it runs, and a little more.
		for (my $last = 0; !$last;)
		{
			$last = !$run->pumpable;
			$run->pump_nb if !$last;
			$node->sql("SELECT count(outbox.stage('repack.a')) FROM generate_series(1, 20)");
			$staged += 20;
			$consumer->run(q{BEGIN; WITH c AS MATERIALIZED (SELECT * FROM outbox.claim('p', 30)), d AS (INSERT INTO app.done SELECT id FROM c RETURNING 1)
				SELECT count(*) FILTER (WHERE outbox.complete('p', id, attempt)) FROM c; COMMIT});
		}
		ok($run->finish, "pg_repack of $table") or diag($error);
	}
	$node->wait_while_not(
		sub {
			$consumer->run(q{BEGIN; WITH c AS MATERIALIZED (SELECT * FROM outbox.claim('p', 100)), d AS (INSERT INTO app.done SELECT id FROM c RETURNING 1)
				SELECT count(*) FILTER (WHERE outbox.complete('p', id, attempt)) FROM c; COMMIT});
			return $node->sql("SELECT count(*) FROM outbox.receipt r JOIN outbox.handler h ON h.id = r.handler_id WHERE h.name IN ('h', 'f', 'p') AND r.state = 3") == 3 * $staged;
		},
		'every delivery has its receipt');
	is($receiver->count('/h'), $staged, 'each was sent once');
	is($receiver->count('/told'), $staged, 'those with a function as well');
	is($node->sql('SELECT count(*) FROM app.settled'), $staged, 'which has run once for each');
	is($node->sql('SELECT count(*) FROM app.done'), $staged, 'and consumers have done each once');
	is($node->sql("SELECT string_agg(finding, ', ') FROM outbox.verify() WHERE severity = 'error'"), '', 'nothing contradicts anything');
}

done_testing();
