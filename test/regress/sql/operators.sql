-- The operators' functions and the views they look at.
-- Ids and times vary, so messages go by name here and times by comparison.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never
CREATE TEMP TABLE named (name text PRIMARY KEY, id uuid NOT NULL);
CREATE FUNCTION pg_temp.id(name text) RETURNS uuid STABLE LANGUAGE sql AS $$ SELECT n.id FROM named n WHERE n.name = $1 $$;
CREATE VIEW pg_temp.state AS
SELECT n.name, d.handler, d.state, d.attempts, d.attempts_of_budget, d.due_at <= clock_timestamp() AS due, d.settled_at IS NOT NULL AS settled,
	d.code, d.error
FROM named n JOIN outbox.deliveries d ON d.message_id = n.id
ORDER BY n.name, d.handler;

INSERT INTO outbox.handler (name, topics, url) VALUES
	('books', '{op.*}', 'http://127.0.0.1:9/books'),
	('mail', '{op.order.paid,op.order.sent}', 'http://127.0.0.1:9/mail');
INSERT INTO outbox.handler (name, topics, ordered, on_dead) VALUES ('keys', '{keyed.*}', true, 'block');
INSERT INTO named SELECT 'a', outbox.stage('op.order.paid', '{"n": 1}', tenant => 'acme', headers => '{"x-test": "1"}');
INSERT INTO named SELECT 'b', outbox.stage('op.order.sent', '{"n": 2}', tenant => 'acme');
INSERT INTO named SELECT 'c', outbox.stage('op.order.gone', '{"n": 3}', tenant => 'bolt');
INSERT INTO named SELECT 'd', outbox.stage('op.order.late', '{"n": 4}', delay => '1 hour');
SELECT * FROM pg_temp.state;

-- Play the dispatcher.
CREATE PROCEDURE pg_temp.settle(name text, handler text, state int, code text, error text DEFAULT NULL, http_status int DEFAULT NULL)
LANGUAGE sql AS $$
	WITH back AS (
		DELETE FROM outbox.receipt r USING outbox.handler h
		WHERE r.message_id = pg_temp.id($1) AND h.id = r.handler_id AND h.name = $2 RETURNING r.*)
	INSERT INTO outbox.delivery (message_id, due_at, handler_id, attempts, budget_from)
	SELECT message_id, now(), handler_id, attempts, budget_from FROM back;
	UPDATE outbox.delivery d SET state = $3, attempts = attempts + 1, streak = 1, code = $4, error = $5, http_status = $6,
		due_at = CASE WHEN $3 = 1 THEN clock_timestamp() + interval '1 hour' ELSE due_at END
	FROM outbox.handler h
	WHERE d.message_id = pg_temp.id($1) AND h.id = d.handler_id AND h.name = $2;
	WITH gone AS (DELETE FROM outbox.delivery d WHERE d.state > 2 RETURNING *)
	INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state, http_status, key, code, error)
	SELECT message_id, clock_timestamp(), handler_id, attempts, budget_from, state, http_status, CASE WHEN state = 4 THEN key END, code, error FROM gone;
$$;
CALL pg_temp.settle('a', 'books', 3, NULL, NULL, 200);
CALL pg_temp.settle('a', 'mail', 4, '500', 'oh no', 500);
CALL pg_temp.settle('b', 'books', 1, 'timeout', 'no answer');
CALL pg_temp.settle('c', 'books', 4, 'timeout', 'no answer');
SELECT * FROM pg_temp.state;
SELECT handler, topic, code, http_status, error, attempts, died_at >= staged_at AS later, payload, headers, tenant FROM outbox.dead_letters ORDER BY payload;
SELECT handler, kind, paused, pending, due, scheduled, retrying, leased, dead, oldest_due_age >= '0' AS aged FROM outbox.backlog ORDER BY handler COLLATE "C";

-- requeue: dead ones only, receipts stay, and only within the tenant.
SELECT regress.error_of(format('SELECT outbox.requeue(%L, tenant => %L)', pg_temp.id('a'), 'bolt'));
SELECT outbox.requeue(pg_temp.id('a'), 'books');
SELECT outbox.requeue(pg_temp.id('a'));
SELECT outbox.requeue(pg_temp.id('a'));
SELECT outbox.requeue(pg_temp.id('b'));
SELECT outbox.requeue(pg_temp.id('c'), 'books', 'bolt');
SELECT * FROM pg_temp.state;
SELECT regress.error_of($$SELECT outbox.requeue(NULL)$$);
SELECT regress.error_of($$SELECT outbox.requeue('00000000-0000-7000-8000-000000000000')$$);
SELECT regress.error_of(format('SELECT outbox.requeue(%L, %L)', pg_temp.id('a'), 'nobody'));
SELECT regress.error_of(format('SELECT outbox.requeue(%L, %L)', pg_temp.id('c'), 'mail'));

-- cancel, and back again.
SELECT outbox.cancel(pg_temp.id('b'), 'mail', 'wrong amount');
SELECT outbox.cancel(pg_temp.id('b'), reason => 'wrong amount', tenant => 'acme');
SELECT outbox.cancel(pg_temp.id('b'));
SELECT * FROM pg_temp.state WHERE name = 'b';
SELECT regress.error_of(format('SELECT outbox.cancel(%L, tenant => %L)', pg_temp.id('b'), 'bolt'));
SELECT regress.error_of(format('SELECT outbox.cancel(%L, handler => %L)', pg_temp.id('b'), 'keys'));
SELECT outbox.requeue(pg_temp.id('b'));
SELECT * FROM pg_temp.state WHERE name = 'b';

-- retry_now.
CALL pg_temp.settle('b', 'mail', 1, '503');
SELECT name, handler, state, due FROM pg_temp.state WHERE name = 'b';
SELECT outbox.retry_now(pg_temp.id('b'), 'books');
SELECT outbox.retry_now(pg_temp.id('b'));
SELECT outbox.retry_now(pg_temp.id('b'));
SELECT outbox.retry_now(pg_temp.id('d'));
SELECT name, handler, state, due FROM pg_temp.state WHERE name IN ('b', 'd');

-- requeue_where.
CALL pg_temp.settle('a', 'mail', 4, '500');
CALL pg_temp.settle('b', 'mail', 4, '404');
CALL pg_temp.settle('b', 'books', 5, 'cancelled');
CALL pg_temp.settle('c', 'books', 4, 'timeout');
SELECT outbox.requeue_where(since => '-infinity', dry_run => true) AS everything_dead;
SELECT outbox.requeue_where(since => '-infinity', include_cancelled => true, dry_run => true) AS cancelled_too;
SELECT outbox.requeue_where(handler => 'mail', dry_run => true) AS mail;
SELECT outbox.requeue_where(topic => 'op.order.*', dry_run => true) AS below;
SELECT outbox.requeue_where(topic => 'op.order.gone', dry_run => true) AS one_topic;
SELECT outbox.requeue_where(tenant => 'acme', dry_run => true) AS acme;
SELECT outbox.requeue_where(tenant => 'acme', code => '404', dry_run => true) AS acme_404;
SELECT outbox.requeue_where(since => now() - interval '1 hour', until => now() - interval '30 minutes', dry_run => true) AS long_ago;
SELECT outbox.requeue_where(since => now() - interval '1 hour', until => 'infinity', dry_run => true) AS lately;
SELECT outbox.requeue_where(tenant => 'acme', include_delivered => true, dry_run => true) AS with_delivered;
SELECT outbox.requeue_where(since => '-infinity', max_rows => 2, dry_run => true) AS two;
SELECT * FROM pg_temp.state WHERE settled;
SELECT outbox.requeue_where(tenant => 'acme', max_rows => 1) AS oldest_first;
SELECT outbox.requeue_where(tenant => 'acme') AS rest;
SELECT name, handler, state FROM pg_temp.state WHERE name = 'b';
SELECT outbox.requeue_where(tenant => 'acme', include_cancelled => true) AS cancelled;
SELECT * FROM pg_temp.state;
SELECT regress.error_of('SELECT outbox.requeue_where()');
SELECT regress.error_of('SELECT outbox.requeue_where(dry_run => true, max_rows => 5)');
SELECT regress.error_of($$SELECT outbox.requeue_where(handler => 'nobody')$$);
SELECT regress.error_of($$SELECT outbox.requeue_where(topic => 'Op..x')$$);
SELECT regress.error_of($$SELECT outbox.requeue_where(since => 'today', until => 'yesterday')$$);
SELECT regress.error_of($$SELECT outbox.requeue_where(tenant => 'acme', max_rows => 0)$$);
SELECT regress.error_of($$SELECT outbox.requeue_where(tenant => 'acme', include_delivered => true, max_rows => 5)$$);

-- replay: what was delivered, and with backfill what a handler never had.
SELECT outbox.replay('books', now() - interval '1 hour', dry_run => true);
SELECT outbox.replay('books', now() - interval '1 hour');
SELECT * FROM pg_temp.state WHERE name = 'a';
CREATE FUNCTION pg_temp.new_handler(text, text[]) RETURNS void LANGUAGE sql AS $$
	INSERT INTO outbox.handler (name, topics, url) VALUES ($1, $2, 'http://127.0.0.1:9/')
$$;
SELECT pg_temp.new_handler('late', '{op.order.paid,op.order.gone}');
SELECT outbox.replay('late', '-infinity');
SELECT outbox.replay('late', '-infinity', backfill => true, dry_run => true);
SELECT outbox.replay('late', '-infinity', tenant => 'bolt', backfill => true);
SELECT outbox.replay('late', '-infinity', backfill => true);
SELECT outbox.replay('late', '-infinity', backfill => true);
SELECT * FROM pg_temp.state WHERE handler = 'late';
SELECT regress.error_of($$SELECT outbox.replay('books', NULL)$$);
SELECT regress.error_of($$SELECT outbox.replay('books', '-infinity', max_rows => 5)$$);
SELECT regress.error_of($$SELECT outbox.replay('nobody', 'today')$$);
SELECT regress.error_of($$SELECT outbox.replay('(unrouted)', 'today')$$);

-- A replay in batches goes on, though what it has chosen is delivered again meanwhile.
SELECT clock_timestamp() AS first_call \gset
INSERT INTO named SELECT 'r' || n, outbox.stage('op.order.gone', jsonb_build_object('r', n), tenant => 'replayed') FROM generate_series(1, 5) AS n;
SELECT outbox.cancel(pg_temp.id('r' || n), handler => 'late') FROM generate_series(1, 5) AS n;
CALL pg_temp.settle('r1', 'books', 3, NULL);
CALL pg_temp.settle('r2', 'books', 3, NULL);
CALL pg_temp.settle('r3', 'books', 3, NULL);
SELECT clock_timestamp() AS first_call \gset
CALL pg_temp.settle('r4', 'books', 3, NULL);
SELECT outbox.replay('books', '-infinity', tenant => 'replayed', max_rows => 2, settled_before => :'first_call');
SELECT name, state FROM pg_temp.state WHERE name LIKE 'r_' AND handler = 'books';
CALL pg_temp.settle('r1', 'books', 3, NULL);
CALL pg_temp.settle('r2', 'books', 3, NULL);
SELECT outbox.replay('books', '-infinity', tenant => 'replayed', max_rows => 2, settled_before => :'first_call');
SELECT name, state FROM pg_temp.state WHERE name LIKE 'r_' AND handler = 'books';
SELECT outbox.replay('books', '-infinity', tenant => 'replayed', max_rows => 2, settled_before => :'first_call');
SELECT messages, deliveries FROM outbox.erase_tenant('replayed');
DELETE FROM named WHERE name LIKE 'r_';

-- cancel_where.
SELECT outbox.cancel_where(tenant => 'acme', reason => 'customer left', dry_run => true);
SELECT outbox.cancel_where(tenant => 'acme', handler => 'books', reason => 'customer left');
SELECT outbox.cancel_where(topic => 'op.*', until => 'infinity', max_rows => 1);
SELECT * FROM pg_temp.state WHERE state = 'cancelled';
SELECT regress.error_of('SELECT outbox.cancel_where()');
SELECT regress.error_of($$SELECT outbox.cancel_where(handler => 'nobody')$$);

-- A dead delivery that holds up its key is cancelled, any other dead one is not.
INSERT INTO named SELECT 'k1', outbox.stage('keyed.x', key => 'one');
INSERT INTO named SELECT 'k2', outbox.stage('keyed.x', key => 'one');
CALL pg_temp.settle('k1', 'keys', 4, 'failed', 'head is dead');
SELECT outbox.cancel(pg_temp.id('k1'), reason => 'go on without it');
CALL pg_temp.settle('c', 'books', 4, 'timeout', 'kept');
SELECT outbox.cancel(pg_temp.id('c'), handler => 'books');
SELECT * FROM pg_temp.state WHERE name IN ('c', 'k1', 'k2');

-- Handlers that are gone.
UPDATE outbox.handler SET dropped_at = now() WHERE name = 'mail';
CALL pg_temp.settle('a', 'mail', 4, '500');
SELECT regress.error_of(format('SELECT outbox.requeue(%L, %L)', pg_temp.id('a'), 'mail'));
SELECT outbox.requeue_where(since => '-infinity', code => '500', dry_run => true);
SELECT regress.error_of($$SELECT outbox.requeue_where(handler => 'mail')$$);

-- Messages that nobody took.
SET outbox.unrouted = dead;
INSERT INTO named SELECT 'u1', outbox.stage('lost.one');
INSERT INTO named SELECT 'u2', outbox.stage('lost.two');
RESET outbox.unrouted;
SELECT * FROM pg_temp.state WHERE name LIKE 'u%';
SELECT handler, dead FROM outbox.backlog WHERE dead > 0 ORDER BY handler COLLATE "C";
SELECT regress.error_of(format('SELECT outbox.requeue(%L)', pg_temp.id('u1')));
SELECT outbox.requeue_where(handler => '(unrouted)', dry_run => true);
SELECT pg_temp.new_handler('found', '{lost.*}');
SELECT outbox.requeue(pg_temp.id('u1'));
SELECT outbox.requeue_where(handler => '(unrouted)', dry_run => true);
SELECT outbox.requeue_where(topic => 'lost.*');
SELECT * FROM pg_temp.state WHERE name LIKE 'u%';

-- Every message, and what became of it.
SELECT n.name, m.topic, m.key, m.tenant, m.headers, m.payload, m.outstanding, m.delivered, m.dead, m.cancelled
FROM named n JOIN outbox.messages m ON m.message_id = n.id ORDER BY n.name;
-- The same for who staged it, without the content.
SELECT handler, state, attempts, due_at IS NOT NULL AS due, settled_at IS NOT NULL AS settled, code FROM outbox.status(pg_temp.id('a'));
SELECT handler, state FROM outbox.status(id => pg_temp.id('a'), tenant => 'acme');
SELECT handler, state FROM outbox.status(id => pg_temp.id('a'), tenant => 'bolt');
SELECT handler, state FROM outbox.status('00000000-0000-7000-8000-000000000000');
INSERT INTO named SELECT 's1', outbox.stage('op.order.paid', dedupe_key => 'order 1', tenant => 'acme');
INSERT INTO named SELECT 's2', outbox.stage('op.order.paid', dedupe_key => 'order 1');
INSERT INTO named SELECT 's3', outbox.stage('nobody.takes', dedupe_key => 'order 3');
SELECT n.name, s.handler, s.state FROM outbox.status(dedupe_key => 'order 1', tenant => 'acme') s LEFT JOIN named n ON n.id = s.message_id;
SELECT n.name, s.handler, s.state FROM outbox.status(dedupe_key => 'order 1') s LEFT JOIN named n ON n.id = s.message_id;
SELECT n.name, s.handler, s.state FROM outbox.status(dedupe_key => 'order 3') s LEFT JOIN named n ON n.id = s.message_id;
SELECT n.name, s.handler, s.state FROM outbox.status(dedupe_key => 'order 2') s LEFT JOIN named n ON n.id = s.message_id;
SELECT regress.error_of('SELECT outbox.status()');
SELECT regress.error_of(format('SELECT outbox.status(%L, %L)', pg_temp.id('a'), 'order 1'));
SELECT * FROM outbox.erase_message(pg_temp.id('s1'), 'acme');
SELECT * FROM outbox.erase_message(pg_temp.id('s2'));
SELECT * FROM outbox.erase_message(pg_temp.id('s3'));
SELECT regress.error_of(format('SELECT outbox.erase_message(%L)', pg_temp.id('s1')));
SELECT regress.error_of(format('SELECT outbox.erase_message(%L, %L)', pg_temp.id('a'), 'bolt'));
DELETE FROM named WHERE name LIKE 's_';
-- Who takes a topic.
SELECT * FROM outbox.handlers_of('op.order.paid');
SELECT * FROM outbox.handlers_of('keyed.x');
SELECT * FROM outbox.handlers_of('op');
SELECT regress.error_of($$SELECT outbox.handlers_of('op.*')$$);
SELECT regress.error_of($$SELECT outbox.handlers_of('Op')$$);
SELECT regress.error_of($$SELECT outbox.handlers_of(NULL)$$);

-- Attempts and statistics.
INSERT INTO outbox.attempt (message_id, handler_id, attempt, finished_at, duration, outcome, http_status, code, error)
SELECT pg_temp.id('a'), h.id, 1, now(), '12 ms', 1, 500, '500', 'oh no' FROM outbox.handler h WHERE h.name = 'books';
SELECT handler, topic, attempt, outcome, duration, code, http_status, error, tenant FROM outbox.attempts;
SELECT handler, deliveries, delivered, delivered_at_once, outstanding, dead, cancelled, attempts FROM outbox.handler_stats ORDER BY handler COLLATE "C";

-- verify finds what was done by hand, and nothing else.
SELECT finding, severity, rows_found, handler FROM outbox.verify();
INSERT INTO outbox.delivery (message_id, handler_id, due_at)
SELECT r.message_id, r.handler_id, now() FROM outbox.receipt r WHERE r.message_id = pg_temp.id('a') AND r.handler_id = (SELECT id FROM outbox.handler WHERE name = 'mail');
UPDATE outbox.receipt SET state = 0 WHERE message_id = pg_temp.id('k1');
UPDATE outbox.receipt SET budget_from = 9 WHERE message_id = pg_temp.id('b') AND handler_id = (SELECT id FROM outbox.handler WHERE name = 'books');
UPDATE outbox.receipt SET attempts = 0 WHERE message_id = pg_temp.id('a') AND handler_id = (SELECT id FROM outbox.handler WHERE name = 'books');
UPDATE outbox.delivery SET state = 2 WHERE message_id = pg_temp.id('u1') AND handler_id <> 0;
INSERT INTO outbox.delivery (message_id, handler_id, due_at, state) VALUES (pg_temp.id('u1'), 0, now(), 1);
DELETE FROM outbox.receipt WHERE message_id = pg_temp.id('u1') AND handler_id = 0;
INSERT INTO outbox.delivery (message_id, handler_id, due_at) VALUES ('00000000-0000-7000-8000-00000000000a', 999999, now());
INSERT INTO outbox.attempt (message_id, handler_id, attempt, finished_at, outcome) VALUES ('00000000-0000-7000-8000-00000000000a', 0, 1, now(), 1);
DELETE FROM outbox.delivery WHERE message_id = pg_temp.id('u2');
DELETE FROM outbox.receipt WHERE message_id = pg_temp.id('u2');
ALTER TABLE outbox.handler DISABLE TRIGGER handler_changed;
SELECT finding, severity, rows_found, handler FROM outbox.verify();
SELECT message_id, hint FROM outbox.verify() WHERE finding = 'delivery without message';
SELECT hint FROM outbox.verify() WHERE finding = 'trigger that is not as installed';
ALTER TABLE outbox.handler ENABLE ALWAYS TRIGGER handler_changed;

-- erase_tenant, erase_key.
SELECT messages FROM outbox.erase_tenant('acme', 1);
SELECT * FROM outbox.erase_tenant('acme');
SELECT * FROM outbox.erase_tenant('acme');
SELECT name FROM pg_temp.state GROUP BY name ORDER BY name;
SELECT regress.error_of($$SELECT outbox.erase_tenant('')$$);
SELECT regress.error_of('SELECT outbox.erase_tenant(NULL)');
SELECT regress.error_of($$SELECT outbox.erase_tenant('acme', 0)$$);
SELECT count(outbox.stage('keyed.x', key => 'gone', tenant => t)) FROM unnest('{acme,acme,bolt,bolt,bolt}'::text[]) t;
SELECT * FROM outbox.erase_key('gone', 'acme');
SELECT * FROM outbox.erase_key('gone', max_messages => 2);
SELECT * FROM outbox.erase_key('gone');
SELECT * FROM outbox.erase_key('gone');
SELECT regress.error_of($$SELECT outbox.erase_key('')$$);

-- prune.
CALL regress.empty();
TRUNCATE named;
INSERT INTO named SELECT 'p' || n, outbox.stage('op.order.gone', jsonb_build_object('n', n)) FROM generate_series(1, 6) AS n;
CALL pg_temp.settle('p1', 'books', 3, NULL);
CALL pg_temp.settle('p1', 'late', 3, NULL);
CALL pg_temp.settle('p2', 'books', 3, NULL);
CALL pg_temp.settle('p3', 'books', 3, NULL);
CALL pg_temp.settle('p3', 'late', 4, '500');
CALL pg_temp.settle('p4', 'books', 5, 'cancelled');
CALL pg_temp.settle('p4', 'late', 3, NULL);
CALL pg_temp.settle('p5', 'books', 3, NULL);
CALL pg_temp.settle('p5', 'late', 3, NULL);
CALL pg_temp.settle('p6', 'books', 3, NULL);
CALL pg_temp.settle('p6', 'late', 3, NULL);
INSERT INTO outbox.attempt (message_id, handler_id, attempt, finished_at, outcome)
SELECT pg_temp.id('p1'), h.id, 1, now(), 3 FROM outbox.handler h WHERE h.name IN ('books', 'late');
SELECT * FROM outbox.prune();
SET outbox.delivered_retention = 0;
SET outbox.prune_batch_size = 2;
SELECT * FROM outbox.prune(1);
SELECT * FROM outbox.prune();
SELECT name, handler, state FROM pg_temp.state;
SET outbox.dead_retention = 0;
SELECT * FROM outbox.prune();
SELECT name, handler, state FROM pg_temp.state;
SELECT regress.error_of('SELECT outbox.prune(0)');
-- A call with a limit goes on where the last one ended, and begins again at the end.
CALL regress.empty();
TRUNCATE named;
DELETE FROM outbox.prune_position;
INSERT INTO named SELECT 'p' || n, outbox.stage('op.order.gone', jsonb_build_object('n', n)) FROM generate_series(1, 6) AS n;
DO $$ BEGIN
	FOR i IN 1 .. 6 LOOP
		CALL pg_temp.settle('p' || i, 'late', 3, NULL);
		IF i > 2 THEN CALL pg_temp.settle('p' || i, 'books', 3, NULL); END IF;
	END LOOP;
END $$;
SELECT messages FROM outbox.prune(1);
CALL pg_temp.settle('p1', 'books', 3, NULL);
SELECT messages FROM outbox.prune(1);
SELECT name, count(*) FROM pg_temp.state GROUP BY name ORDER BY name;
SELECT messages FROM outbox.prune(3);
SELECT messages FROM outbox.prune(3);
SELECT messages FROM outbox.prune(3);
SELECT name, handler, state FROM pg_temp.state;
CALL pg_temp.settle('p2', 'books', 3, NULL);
SELECT messages FROM outbox.prune(3);
-- A message without a delivery goes by the retention of delivered ones.
SELECT outbox.stage('nobody.cares') IS NOT NULL AS staged;
SET outbox.delivered_retention = '1 h';
SELECT * FROM outbox.prune();
SET outbox.delivered_retention = 0;
SELECT * FROM outbox.prune();

-- One that is scheduled, and that nobody takes yet, waits for its time.
TRUNCATE named;
INSERT INTO named SELECT 'kept', outbox.stage('nobody.cares', delay => '1 h');
INSERT INTO named SELECT 'past', outbox.stage('nobody.cares', deliver_at => '2001-01-01');
SET outbox.unrouted = dead;
INSERT INTO named SELECT 'dead', outbox.stage('nobody.cares', delay => '1 h');
RESET outbox.unrouted;
SELECT * FROM outbox.prune();
SELECT n.name, m.deliver_at - m.staged_at AS after FROM named n JOIN outbox.message m ON m.id = n.id ORDER BY n.name;
SELECT pg_temp.new_handler('cares', '{nobody.*}');
SELECT outbox.requeue(pg_temp.id('dead')), outbox.replay('cares', '-infinity', topic => 'nobody.cares', backfill => true);
SELECT n.name, d.state, d.due_at - d.staged_at AS after FROM named n JOIN outbox.deliveries d ON d.message_id = n.id WHERE d.handler = 'cares' ORDER BY n.name;
SELECT outbox.drop_handler('cares');
SELECT * FROM outbox.prune();
RESET outbox.delivered_retention;
RESET outbox.dead_retention;
RESET outbox.prune_batch_size;

-- adopt: the identity is this database and no other.
SELECT outbox.adopt() AS was_copy;
INSERT INTO outbox.installation (system_identifier, database_oid) VALUES (1, 1);
SELECT finding, severity FROM outbox.verify() WHERE finding LIKE '%copy%';
SELECT status, reasons[1] FROM outbox.health();
SELECT outbox.adopt() AS was_copy;
DELETE FROM outbox.installation;
SELECT outbox.adopt() AS was_copy;
SELECT count(*), bool_and(i.system_identifier = c.system_identifier AND i.database_oid = d.oid) AS own
FROM outbox.installation i, pg_control_system() c, pg_database d WHERE d.datname = current_database();

-- health.  (What nobody takes is known with shared memory only.)
CREATE FUNCTION pg_temp.own_reasons(reasons text[]) RETURNS text[] LANGUAGE sql AS $$
	SELECT coalesce(array_agg(r ORDER BY n), '{}') FROM unnest(reasons) WITH ORDINALITY AS u (r, n) WHERE r NOT LIKE '%no handler takes%'
$$;
DELETE FROM outbox.handler WHERE url IS NOT NULL;
CALL regress.empty();
INSERT INTO outbox.handler (name, topics) VALUES ('pulled', '{pull.*}');
SELECT status, pg_temp.own_reasons(reasons) AS reasons, due, oldest_due_age, scheduled, retrying, leased, dead, newly_dead, paused_handlers, failing_handlers FROM outbox.health();
SELECT count(outbox.stage('pull.x')) FROM generate_series(1, 3);
SELECT status, pg_temp.own_reasons(reasons) AS reasons, due, oldest_due_age > '0' AS aged FROM outbox.health();
UPDATE outbox.delivery SET due_at = due_at - interval '5 min';
SELECT status, reasons[1] ~ '^oldest due delivery has waited for 30[0-9] s$' AS waited FROM outbox.health();
SELECT status FROM outbox.health('1 s', '1 min');
SELECT status FROM outbox.health('1 h', '2 h');
SELECT regress.error_of($$SELECT outbox.health('2 h', '1 h')$$);
SELECT regress.error_of($$SELECT outbox.report('59 s')$$);
SELECT regress.error_of($$SELECT outbox.report(NULL)$$);
SELECT outbox.report() ~ '^<!DOCTYPE html>.*<title>warn: .*oldest due delivery has waited for 30[0-9] s.*</html>$' AS reported;
INSERT INTO outbox.handler_status (handler_id, paused_at, breaker) SELECT id, now(), 'open' FROM outbox.handler WHERE name = 'pulled';
WITH gone AS (DELETE FROM outbox.delivery WHERE message_id = (SELECT id FROM outbox.message ORDER BY id LIMIT 1) RETURNING *)
INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state) SELECT message_id, now(), handler_id, 1, 0, 4 FROM gone;
SELECT status, pg_temp.own_reasons(reasons) AS reasons, due, oldest_due_age, dead, newly_dead, paused_handlers, failing_handlers FROM outbox.health();
DELETE FROM outbox.handler_status;

-- drain.
SELECT regress.error_of($$CALL outbox.drain()$$);
BEGIN;
CALL outbox.drain('pulled', '1 ms');
ROLLBACK;
CALL outbox.drain('nobody');
CALL outbox.drain('pulled', '-1 s');
CALL outbox.drain('pulled', NULL);
CALL outbox.drain('pulled', '1 ms');
-- Of all of them those are meant that nobody has to see to.
CALL outbox.drain(timeout => '1 ms');
SELECT outbox.create_handler('pushed', '{drain}', 'http://127.0.0.1:9/') IS NOT NULL AS created;
SELECT outbox.stage('drain') IS NOT NULL AS staged;
CALL outbox.drain(timeout => '1 ms');
SELECT outbox.pause_handler('pushed', 'drained nowhere');
CALL outbox.drain(timeout => '1 ms');
CALL outbox.drain('pushed', '1 hour');
SELECT outbox.resume_handler('pushed');
CALL outbox.drain('pushed', '1 ms');
UPDATE outbox.delivery SET due_at = now() + interval '1 day' WHERE state = 0;
CALL outbox.drain('pushed', '1 ms');
CALL outbox.drain('pulled', '1 ms');
CALL outbox.drain();

CALL regress.start_anew();
