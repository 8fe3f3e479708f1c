-- outbox.dedupe_window: dedupe keys that count longer, or shorter, than their messages are kept.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never
SELECT outbox.create_handler('all', '{*}') IS NOT NULL AS created;
CREATE FUNCTION pg_temp.make_older(by interval) RETURNS void LANGUAGE sql AS $$
	UPDATE outbox.message SET staged_at = staged_at - by;
	UPDATE outbox.dedupe_key SET staged_at = staged_at - by, expires_at = expires_at - by;
$$;
-- A message that is settled long since, so that the next prune() takes it.
CREATE FUNCTION pg_temp.settle() RETURNS void LANGUAGE sql AS $$
	WITH gone AS (DELETE FROM outbox.delivery RETURNING *)
	INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state)
	SELECT message_id, '-infinity', handler_id, 1, 0, 3 FROM gone;
$$;
CREATE VIEW pg_temp.kept AS SELECT tenant, dedupe_key, topic, key, clock_timestamp() - staged_at < '1 min' AS is_new, message_id IN (SELECT id FROM outbox.message) AS has_message FROM outbox.dedupe_key ORDER BY 1, 2;
CREATE VIEW pg_temp.staged AS SELECT payload, tenant, dedupe_key, reused_key FROM outbox.messages ORDER BY message_id;
SET outbox.delivered_retention = 0;
SHOW outbox.dedupe_window;

-- Without one a key goes with its message.
SELECT outbox.stage('n', '1', dedupe_key => 'a') IS NOT NULL AS staged;
SELECT pg_temp.settle();
SELECT messages FROM outbox.prune();
SELECT status FROM outbox.try_stage('n', '2', dedupe_key => 'a');
SELECT * FROM pg_temp.kept;

-- Longer: the first one's id for as long as the window is, though it is gone.
CALL regress.empty();
SET outbox.dedupe_window = '1 d';
SELECT outbox.stage('n', '1', 'k', dedupe_key => 'a') AS first \gset
SELECT outbox.stage('n', '2', dedupe_key => 'a', tenant => 't') IS NOT NULL AS staged;
SELECT outbox.stage('n', '3') IS NOT NULL AS staged;
SELECT pg_temp.settle();
SELECT messages FROM outbox.prune();
SELECT * FROM pg_temp.kept;
SELECT id = :'first' AS same, status, detail FROM outbox.try_stage('n', '4', dedupe_key => 'a');
SELECT id = :'first' AS same, status, detail FROM outbox.try_stage('other', '5', dedupe_key => 'a');
SELECT regress.error_of($$SELECT outbox.stage('other', '5', dedupe_key => 'a')$$);
SELECT count(DISTINCT id) = 2 AND bool_or(id = :'first') AS same FROM outbox.stage_many('n', '{6,7,8}', dedupe_keys => '{a,b,b}') AS id;
SELECT count(*) FROM outbox.status(dedupe_key => 'a');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outbox.stage('n', '9', dedupe_key => 'a') = :'first' AS same;
COMMIT;
SELECT * FROM pg_temp.staged;
-- Nor do rows that were written in vain stay behind.
SELECT count(*) FROM outbox.delivery d WHERE NOT EXISTS (SELECT FROM outbox.message m WHERE m.id = d.message_id);
-- When it is over the key can be used again, and whether prune() has been there makes no difference.
SELECT pg_temp.make_older('25 h');
SELECT status FROM outbox.try_stage('n', '10', dedupe_key => 'a');
SELECT status FROM outbox.try_stage('n', '11', dedupe_key => 'a');
SELECT * FROM pg_temp.kept;
SELECT messages FROM outbox.prune();
SELECT * FROM pg_temp.kept;
-- The key of the second one takes the place of what is left of the first.
SELECT pg_temp.make_older('23 h');
SELECT pg_temp.settle();
SELECT messages FROM outbox.prune();
SELECT * FROM pg_temp.kept;

-- Shorter: used again although its message is there; that keeps its key.
CALL regress.empty();
SET outbox.dedupe_window = '1 min';
SELECT outbox.stage('n', '1', dedupe_key => 'a') AS first \gset
SELECT outbox.stage('n', '2', dedupe_key => 'a') = :'first' AS same;
SELECT pg_temp.make_older('2 min');
SELECT outbox.stage('n', '3', 'k', dedupe_key => 'a') AS second \gset
SELECT outbox.stage('n', '4', dedupe_key => 'a') = :'second' AS same;
SELECT status FROM outbox.try_stage('other', '5', dedupe_key => 'a');
SELECT * FROM pg_temp.staged;
SELECT * FROM pg_temp.kept;
SELECT message_id = :'second' AS last FROM outbox.status(dedupe_key => 'a');
SELECT count(DISTINCT id) FROM outbox.stage_many('n', '{6,7}', dedupe_keys => '{a,a}') AS id;
-- And again.
SELECT pg_temp.make_older('2 min');
SELECT count(DISTINCT id) FROM outbox.stage_many('n', '{8,9}', dedupe_keys => '{a,a}') AS id;
SELECT * FROM pg_temp.staged;
-- The first goes, which the others do not notice.
SELECT pg_temp.settle();
DELETE FROM outbox.receipt WHERE message_id <> :'first';
INSERT INTO outbox.delivery (message_id, due_at, handler_id) SELECT m.id, now(), h.id FROM outbox.message m, outbox.handler h WHERE m.id <> :'first' AND h.name = 'all';
SELECT messages FROM outbox.prune();
SELECT status FROM outbox.try_stage('n', '10', dedupe_key => 'a');
SELECT * FROM pg_temp.staged;
SELECT pg_temp.make_older('2 min');
SELECT status FROM outbox.try_stage('n', '11', dedupe_key => 'a');
SELECT * FROM pg_temp.staged;
-- A savepoint takes it back.
SELECT pg_temp.make_older('2 min');
BEGIN;
SAVEPOINT s;
SELECT status FROM outbox.try_stage('n', '12', dedupe_key => 'a');
ROLLBACK TO s;
SELECT status FROM outbox.try_stage('n', '13', dedupe_key => 'a');
COMMIT;
SELECT status FROM outbox.try_stage('n', '14', dedupe_key => 'a');

-- What is erased is so with its keys.
CALL regress.empty();
SET outbox.dedupe_window = '1 d';
SELECT count(outbox.stage('n', to_jsonb(g), 'k' || g, dedupe_key => 'd' || g, tenant => 't' || g % 2)) FROM generate_series(1, 4) AS g;
SELECT pg_temp.settle();
SELECT messages FROM outbox.prune();
SELECT * FROM outbox.erase_tenant('t1');
SELECT * FROM outbox.erase_key('k2', 't0');
SELECT * FROM pg_temp.kept;
SELECT status FROM outbox.try_stage('n', '5', dedupe_key => 'd2', tenant => 't0');
SET outbox.dedupe_window = '1 min';
SELECT pg_temp.make_older('2 min');
SELECT outbox.stage('n', '6', dedupe_key => 'd2', tenant => 't0') AS again \gset
SELECT messages FROM outbox.erase_message(:'again');
SELECT * FROM pg_temp.kept;

-- Without a window what is kept does not count, and goes when its own is over.
RESET outbox.dedupe_window;
SELECT status FROM outbox.try_stage('n', '7', dedupe_key => 'd4', tenant => 't0');
SELECT messages FROM outbox.prune();
SELECT * FROM pg_temp.kept;
SELECT pg_temp.make_older('1 d');
SELECT messages FROM outbox.prune();
SELECT * FROM pg_temp.kept;
CALL regress.empty();
