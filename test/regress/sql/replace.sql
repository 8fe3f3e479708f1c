-- stage(..., replace_key): the last message of a key takes the place of the one before.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never
SELECT outbox.create_handler('all', '{*}') IS NOT NULL AS created;
SELECT outbox.create_handler('ordered', '{doc.*}', ordered => true) IS NOT NULL AS created;
CREATE VIEW pg_temp.staged AS
SELECT m.payload, m.tenant, m.replace_key, d.handler, d.state, d.code, d.attempts FROM outbox.message m LEFT JOIN outbox.deliveries d ON d.message_id = m.id
ORDER BY m.id, d.handler;

-- The one before, of every handler; not of another key or tenant, nor without one.
SELECT outbox.stage('doc.saved', '1', replace_key => 'a') IS NOT NULL AS staged;
SELECT outbox.stage('doc.saved', '2', replace_key => 'b') IS NOT NULL AS staged;
SELECT outbox.stage('doc.saved', '3', replace_key => 'a', tenant => 't') IS NOT NULL AS staged;
SELECT outbox.stage('doc.saved', '4') IS NOT NULL AS staged;
SELECT outbox.stage('other', '5', replace_key => 'a') IS NOT NULL AS staged;
SELECT status FROM outbox.try_stage('other', '6', replace_key => 'a', tenant => 't');
SELECT * FROM pg_temp.staged;

-- Each its predecessor, in one transaction as well; rolled back with a savepoint.
CALL regress.empty();
BEGIN;
SELECT outbox.stage('n', '1', replace_key => 'a') IS NOT NULL AS staged;
SELECT outbox.stage('n', '2', replace_key => 'a') IS NOT NULL AS staged;
SAVEPOINT s;
SELECT outbox.stage('n', '3', replace_key => 'a') IS NOT NULL AS staged;
ROLLBACK TO s;
SELECT count(outbox.stage('n', to_jsonb(g), replace_key => 'a')) FROM generate_series(4, 6) AS g;
COMMIT;
SELECT * FROM pg_temp.staged;
-- Under an old snapshot, too.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM outbox.message;
SELECT outbox.stage('n', '7', replace_key => 'a') IS NOT NULL AS staged;
SELECT outbox.stage('n', '8', replace_key => 'a') IS NOT NULL AS staged;
COMMIT;
SELECT payload, state, code FROM pg_temp.staged WHERE payload::int > 5;

-- What has been tried stays: leased, retrying, requeued.
CALL regress.empty();
SELECT outbox.stage('doc.saved', '1', replace_key => 'a') IS NOT NULL AS staged;
SELECT count(*) FROM outbox.claim('all');
SELECT outbox.stage('doc.saved', '2', replace_key => 'a') IS NOT NULL AS staged;
SELECT * FROM pg_temp.staged;
SELECT id AS first FROM outbox.message WHERE payload = '1' \gset
SELECT outbox.retry('all', :'first', 1, after => '1 hour') AS retried;
SELECT outbox.stage('doc.saved', '3', replace_key => 'a') IS NOT NULL AS staged;
SELECT * FROM pg_temp.staged;

-- Put off by each other, but no later than max_delay after the first.
CALL regress.empty();
SELECT outbox.stage('n', to_jsonb(g), replace_key => 'a', delay => '1 hour', max_delay => '90 min') IS NOT NULL AS staged FROM generate_series(1, 2) AS g;
SELECT payload, deliver_at - staged_at AS delay, replace_since = min(staged_at) OVER () AS since_the_first FROM outbox.message ORDER BY id;
UPDATE outbox.message SET replace_since = replace_since - interval '1 hour';
SELECT outbox.stage('n', '3', replace_key => 'a', delay => '1 hour', max_delay => '90 min') AS third \gset
SELECT payload, round(extract(epoch FROM deliver_at - staged_at) / 60) AS minutes FROM outbox.message WHERE id = :'third';
UPDATE outbox.message SET replace_since = replace_since - interval '1 hour';
SELECT outbox.stage('n', '4', replace_key => 'a', delay => '1 hour', max_delay => '90 min') AS fourth \gset
SELECT m.payload, m.deliver_at IS NULL AND d.due_at = m.staged_at AS due_at_once FROM outbox.message m JOIN outbox.delivery d ON d.message_id = m.id WHERE m.id = :'fourth';
-- Once it is out, another row of them begins.
SELECT count(*) FROM outbox.claim('all');
SELECT outbox.stage('n', '5', replace_key => 'a', delay => '1 hour', max_delay => '90 min') AS fifth \gset
SELECT payload, deliver_at - staged_at AS delay, replace_since = staged_at AS is_the_first FROM outbox.message WHERE id = :'fifth';

-- A scheduled message with a dedupe_key knows its time as well.
SELECT outbox.stage('n', '6', dedupe_key => 'd', delay => '1 hour') AS sixth \gset
SELECT deliver_at - staged_at AS delay FROM outbox.message WHERE id = :'sixth';

-- What is refused.
SELECT arguments, regress.error_of(format('SELECT outbox.stage(''n'', %s)', arguments)) FROM unnest(ARRAY[$$replace_key => ''$$, $$replace_key => repeat('x', 256)$$,
	$$replace_key => 'a', dedupe_key => 'a'$$, $$max_delay => '1 h'$$, $$replace_key => 'a', max_delay => '-1 h'$$, $$replace_key => 'a', max_delay => '1000 years'$$]) AS arguments;
SELECT status, detail FROM outbox.try_stage('n', replace_key => 'a', dedupe_key => 'a');
