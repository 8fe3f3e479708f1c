# Retention by the server itself: what is past its time goes, whatever else goes
# on and whatever crashes, and nothing else does.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;

# Retention of one tenth of a second between rounds; what is old is made so by hand.
my $node = OutboxCluster->create('main', conf => "outbox.prune_interval = 100\noutbox.prune_batch_size = 50\nmax_prepared_transactions = 5");
my $receiver = HttpReceiver->start;
$node->wait_for_dispatcher;

# Messages that were staged and settled so long ago, in a state, for handlers.
$node->sql(<<'SQL');
CREATE PROCEDURE settled(n int, age interval, state int, handlers text[], tenant text DEFAULT NULL, key text DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
	base uuid := outbox_internal.id_floor(clock_timestamp() - age);
	ids uuid[] := ARRAY(SELECT (left(base::text, 24) || lpad(to_hex(g + nextval('settled_id')), 12, '0'))::uuid FROM generate_series(1, n) g);
BEGIN
	INSERT INTO outbox.message (id, staged_at, topic, tenant, key, payload) SELECT i, clock_timestamp() - age, 'old.' || state, settled.tenant, settled.key, '{}' FROM unnest(ids) i;
	INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state, key)
	SELECT i, clock_timestamp() - age, h.id, 1, 0, settled.state, CASE WHEN h.ordered AND settled.state = 4 THEN settled.key END
	FROM unnest(ids) i JOIN outbox.handler h ON h.name = ANY (handlers);
	INSERT INTO outbox.attempt (message_id, handler_id, attempt, finished_at, outcome)
	SELECT i, h.id, 1, clock_timestamp() - age, settled.state FROM unnest(ids) i JOIN outbox.handler h ON h.name = ANY (handlers);
END $$;
CREATE SEQUENCE settled_id;
CREATE VIEW left_over AS SELECT coalesce(string_agg(format('%s:%s:%s', topic, age, n), ' ' ORDER BY topic, age), '') AS is FROM (
	SELECT topic, floor(extract(epoch FROM clock_timestamp() - staged_at) / 86400) AS age, count(*) AS n FROM outbox.message GROUP BY 1, 2) v;
SQL
$node->handler('books', ['books.*'], $receiver->url);
$node->handler('slow', ['books.*'], $receiver->url);

# The first round is a minute after the installation.
$node->sql('UPDATE outbox.retention_status SET next_at = now()');
$node->sql('SELECT outbox_internal.ring_schedules()');

# --- by default: delivered 7 days, dead and cancelled 30, outstanding never
is($node->sql('SELECT state IN (\'idle\', \'working\') FROM outbox.retention'), 't', 'it is on by default');
sub round_done
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# Two: one may have begun before.
	my $begun = $node->sql('SELECT clock_timestamp()');
	$node->wait_for("SELECT completed_at > '$begun' AND round_began_at IS NULL FROM outbox.retention", 't', "$name: a round");
	$begun = $node->sql('SELECT clock_timestamp()');
	return $node->wait_for("SELECT completed_at > '$begun' FROM outbox.retention", 't', "$name: and another one");
}
$node->sql(<<'SQL');
CALL settled(120, '8 days', 3, '{books,slow}');
CALL settled(10, '6 days', 3, '{books}');
CALL settled(70, '8 days', 4, '{books}');
CALL settled(7, '31 days', 4, '{books}');
CALL settled(7, '31 days', 5, '{books}');
CALL settled(3, '8 days', 5, '{books}');
CALL settled(60, '9 days', 3, '{}');
SQL
# One whose second delivery is outstanding, however old; and one that was settled late.
# In one transaction, so that no round comes between.
$node->sql(<<'SQL');
BEGIN;
CALL settled(1, '100 days', 3, '{books}');
SELECT outbox.pause_handler('slow');
INSERT INTO outbox.delivery (message_id, handler_id, due_at)
SELECT m.id, h.id, now() FROM outbox.message m, outbox.handler h WHERE m.staged_at < now() - interval '99 days' AND h.name = 'slow';
CALL settled(5, '20 days', 3, '{books}');
UPDATE outbox.receipt SET settled_at = now() - interval '1 hour' WHERE message_id IN (SELECT id FROM outbox.message WHERE staged_at BETWEEN now() - interval '21 days' AND now() - interval '19 days');
COMMIT;
SQL
round_done('defaults');
my $kept = $node->sql('SELECT "is" FROM left_over');
is($kept, 'old.3:6:10 old.3:20:5 old.3:100:1 old.4:8:70 old.5:8:3', 'what is past its time has gone, and nothing else');
is($node->sql('SELECT count(*) FROM outbox.attempt a WHERE NOT EXISTS (SELECT FROM outbox.message m WHERE m.id = a.message_id)'), 0, 'its attempts with it');
is($node->sql('SELECT count(*) FROM outbox.receipt a WHERE NOT EXISTS (SELECT FROM outbox.message m WHERE m.id = a.message_id)'), 0, 'and its receipts');
is($node->sql('SELECT messages, deliveries, attempts FROM outbox.retention'), '194|254|254', 'outbox.retention counts what has gone') or diag $node->sql('SELECT * FROM outbox.retention');
is($node->sql('SELECT behind FROM outbox.retention'), '00:00:00', 'and nothing waits');

# --- what it had to pass, it finds later: the look at all that is older
$node->sql(q{UPDATE outbox.receipt SET settled_at = now() - interval '8 days' WHERE settled_at > now() - interval '2 hours'});
round_done('settled late');
is($node->sql('SELECT "is" FROM left_over'), 'old.3:6:10 old.3:100:1 old.4:8:70 old.5:8:3', 'what was settled late has gone');

# --- times of handlers and of tenants; a tenant's before its handler's
$node->sql(<<'SQL');
SELECT outbox.alter_handler('books', dead_retention => '3 days');
SELECT outbox.ensure_tenant_retention('acme', '1 day');
SELECT outbox.ensure_tenant_retention('keep', '365 days', '365 days');
SELECT outbox.create_handler('long', '{x}', delivered_retention => '50 days');
CALL settled(4, '2 days', 3, '{books}', 'acme');
CALL settled(4, '2 days', 3, '{books}', 'other');
CALL settled(4, '2 days', 4, '{slow}', 'acme');
CALL settled(4, '40 days', 4, '{books}', 'keep');
CALL settled(4, '40 days', 3, '{books,long}');
CALL settled(4, '60 days', 3, '{books,long}');
SQL
round_done('overrides');
is($node->sql('SELECT "is" FROM left_over'), 'old.3:2:4 old.3:6:10 old.3:40:4 old.3:100:1 old.4:2:4 old.4:40:4', 'handlers and tenants have times of their own');
is($node->sql(q{SELECT count(*) FROM outbox.message WHERE tenant = 'acme' AND topic = 'old.3'}), 0, 'a tenant may have a shorter one');
$node->sql(q{SELECT outbox.drop_tenant_retention('keep'), outbox.alter_handler('long', reset => '{delivered_retention}')});
round_done('overrides taken back');
is($node->sql('SELECT "is" FROM left_over'), 'old.3:2:4 old.3:6:10 old.3:100:1 old.4:2:4', 'and none any more');

# --- a dead letter that holds up its key, one that is brought back at that moment, the inbox
$node->sql(<<'SQL');
SELECT outbox.create_handler('ordered', '{y}', ordered => true, on_dead => 'block');
CALL settled(1, '40 days', 4, '{ordered}', key => 'k');
CALL settled(2, '50 days', 4, '{slow}');
SQL
is($node->sql(q{SELECT count(*) > 0 FROM outbox.blocked_keys}), 't', 'a key is held up');
my $operator = PsqlSession->new($node);
# In the same transaction, so that no round comes between.
$operator->run('BEGIN');
$operator->run(q{CALL settled(1, '60 days', 4, '{slow}')});
$operator->run(q{SELECT outbox.requeue(message_id) FROM outbox.deliveries WHERE handler = 'slow' AND staged_at < now() - interval '59 days' AND state = 'dead'});
$node->sql(q{INSERT INTO outbox.inbox (source, message_id, expires_at) SELECT 's', g, now() - interval '1 s' FROM generate_series(1, 120) g});
$node->sql(q{INSERT INTO outbox.inbox (source, message_id, expires_at) VALUES ('s', 'kept', now() + interval '1 day')});
round_done('beside an operator');
is($node->sql(q{SELECT count(*) FROM outbox.message WHERE topic = 'old.4' AND staged_at < now() - interval '39 days'}), 1, 'what blocks its key stays');
$operator->run('COMMIT');
round_done('after the operator');
is($node->sql(q{SELECT count(*) FROM outbox.delivery d JOIN outbox.message m ON m.id = d.message_id WHERE m.topic = 'old.4'}), 1, 'what was brought back stays');
is($node->sql('SELECT count(*), min(message_id) FROM outbox.inbox'), '1|kept', 'expired entries of the inbox are gone');
$operator->close;

# --- somebody holds a message, or a table: it goes on with the others, and comes back
my $holder = PsqlSession->new($node);
$holder->run('BEGIN');
$holder->run(q{LOCK TABLE outbox.receipt IN SHARE MODE});
$holder->run(q{CALL settled(120, '8 days', 3, '{books}', 'held')});
$holder->run(q{SELECT outbox.stage('while.locked')});
$holder->run('COMMIT');
$holder->close;
$node->wait_for(q{SELECT count(*) FROM outbox.message WHERE tenant = 'held'}, 0, 'a lock on a table holds it up, and no longer');
is($node->sql('SELECT last_error IS NULL FROM outbox.retention'), 't', 'which is no error');

# --- off, and on again
$node->sql('ALTER SYSTEM SET outbox.auto_prune = off');
$node->sql('SELECT pg_reload_conf()');
$node->wait_for('SELECT state FROM outbox.retention', 'off', 'it can be switched off');
$node->wait_for(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox schedule worker'}, 0, 'then no worker is there for it');
$node->sql(q{CALL settled(5, '8 days', 3, '{books}', 'off')});
is($node->sql(q{SELECT count(*) FROM outbox.message WHERE tenant = 'off'}), 5, 'and nothing goes');
is($node->sql(q{SELECT messages FROM outbox.prune(3)}), 3, 'but by hand');
$node->sql('ALTER SYSTEM RESET outbox.auto_prune');
$node->sql('SELECT pg_reload_conf()');
$node->wait_for(q{SELECT count(*) FROM outbox.message WHERE tenant = 'off'}, 0, 'until it is on again');

# --- what fails is told, and tried again
$node->sql(<<'SQL');
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
CREATE TRIGGER refuse BEFORE DELETE ON outbox.message FOR EACH ROW EXECUTE FUNCTION refuse();
ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER refuse;
CALL settled(5, '8 days', 3, '{books}', 'refused');
SQL
$node->wait_for('SELECT last_error FROM outbox.retention', 'not this one', 'outbox.retention says what it fails with');
is($node->sql(q{SELECT array_to_string(reasons, ' ') LIKE '%retention fails: not this one%' FROM outbox.health()}), 't', 'and outbox.health() does');
$node->sql('DROP TRIGGER refuse ON outbox.message');
$node->wait_for(q{SELECT count(*) FROM outbox.message WHERE tenant = 'refused'}, 0, 'it tries again');
$node->wait_for('SELECT last_error IS NULL FROM outbox.retention', 't', 'and forgets it');

# --- the clock goes forward: nothing is removed before it has gone on, or somebody says so
$node->sql(q{UPDATE outbox.retention_status SET seen_at = seen_at - interval '25 hours'});
$node->wait_for('SELECT state FROM outbox.retention', 'clock', 'a clock that jumps is not believed');
$node->sql(q{CALL settled(5, '8 days', 3, '{books}', 'clock')});
my $next = $node->sql('SELECT next_at FROM outbox.retention');
$node->wait_for("SELECT next_at > '$next' FROM outbox.retention", 't', 'it looks at it again and again');
is($node->sql(q{SELECT count(*) FROM outbox.message WHERE tenant = 'clock'}), 5, 'and removes nothing');
is($node->sql(q{SELECT held_until BETWEEN now() + interval '23 hours' AND now() + interval '25 hours' FROM outbox.retention}), 't', 'for a day');
is($node->sql(q{SELECT array_to_string(reasons, ' ') LIKE '%retention waits%' FROM outbox.health()}), 't', 'outbox.health() says so');
$node->sql('SELECT outbox.prune(1)');
$node->wait_for(q{SELECT count(*) FROM outbox.message WHERE tenant = 'clock'}, 0, 'a call of prune() has it go on');
$node->sql(q{UPDATE outbox.retention_status SET seen_at = now() + interval '1 year', next_at = now() + interval '1 year', held_until = now() + interval '1 year'});
$node->sql(q{CALL settled(5, '8 days', 3, '{books}', 'back')});
$node->sql('SELECT pg_reload_conf()');
$node->restart;
$node->wait_for(q{SELECT count(*) FROM outbox.message WHERE tenant = 'back'}, 0, 'one that was set back is');

# --- a copy does not, until it is adopted
$node->sql(q{UPDATE outbox.installation SET system_identifier = system_identifier + 1});
$node->wait_for('SELECT state FROM outbox.retention', 'copy', 'a copy does not');
$node->sql(q{CALL settled(5, '8 days', 3, '{books}', 'copy')});
$node->sql('SELECT outbox.adopt()');
$node->wait_for('SELECT state FROM outbox.retention', 'clock', 'nor at once when it is adopted');
is($node->sql(q{SELECT count(*) FROM outbox.message WHERE tenant = 'copy'}), 5, 'what it came with stays for a while');
$node->sql('SELECT outbox.prune(1)');
$node->wait_for(q{SELECT count(*) FROM outbox.message WHERE tenant = 'copy'}, 0, 'it does then');

# --- killed at work, over and over, beside deliveries
$node->sql(q{SELECT outbox.resume_handler('slow')});
$node->sql(q{CALL settled(3000, '8 days', 3, '{books,slow}', 'crash')});
foreach my $round (1 .. 3)
{
	$node->sql(qq{SELECT outbox.stage('books.sold') FROM generate_series(1, 200)});
	my $before = $node->sql('SELECT count(*) FROM outbox.message WHERE tenant = \'crash\'');
	$node->wait_for("SELECT count(*) < $before OR count(*) = 0 FROM outbox.message WHERE tenant = 'crash'", 't', "crash $round: at work");
	if ($round == 2)
	{
		$node->sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox schedule worker'});
	}
	else
	{
		$node->kill9;
		$node->start_after_crash;
	}
	$node->wait_for_dispatcher;
	is($node->sql(q{SELECT count(*) FROM outbox.verify() WHERE severity = 'error'}), 0, "crash $round: nothing is left behind");
}
$node->wait_for(q{SELECT count(*) FROM outbox.message WHERE tenant = 'crash'}, 0, 'all is gone in the end');
$node->wait_for(q{SELECT count(*) FROM outbox.receipt r JOIN outbox.message m ON m.id = r.message_id WHERE m.topic = 'books.sold' AND r.state = 3}, 1200, 'and all is delivered');

$node->stop;
done_testing;
