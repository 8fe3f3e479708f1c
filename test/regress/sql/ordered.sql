-- Ordered handlers as SQL sees them: which key is blocked, and by what.
SET client_min_messages = warning;
CALL regress.start_anew();

SELECT outbox.create_handler('skips', ARRAY['ord.*'], ordered => true) > 0 AS created;
SELECT outbox.create_handler('blocks', ARRAY['ord.*'], ordered => true, on_dead => 'block') > 0 AS created;
SELECT outbox.create_handler('loose', ARRAY['ord.*']) > 0 AS created;

CREATE TEMP VIEW blocked AS
SELECT b.handler, b.key, b.why, b.waiting, m.payload ->> 'n' AS head, b.head_attempts, b.head_code, b.head_error,
	b.waiting_since IS NULL AS nothing_waits, b.waiting_age >= '0' AS aged, b.next_due_at > now() AS due_later, b.died_at IS NOT NULL AS died
FROM outbox.blocked_keys b JOIN outbox.message m ON m.id = b.head_id
ORDER BY b.handler, b.key COLLATE "C";

-- Nothing is blocked that may go.
SELECT count(outbox.stage('ord.x', jsonb_build_object('n', n), key => k)) FROM unnest(ARRAY['a', 'b', 'it''s "c"']) AS k, generate_series(1, 3) AS n;
SELECT outbox.stage('ord.x', '{"n": 9}') IS NOT NULL AS without_key;
SELECT * FROM blocked;
SELECT handler_id = (SELECT handler_id FROM outbox.handlers WHERE handler = 'loose') AS loose, count(key) AS keys FROM outbox.delivery GROUP BY 1 ORDER BY 1;

-- What is leased, until it is completed, holds up those behind it.
SELECT key, payload FROM outbox.claim('skips', 10) ORDER BY key COLLATE "C" NULLS LAST;
SELECT * FROM blocked;
SELECT count(*) AS none_left FROM outbox.claim('skips', 10);

-- A retry holds up, a failure does not where dead letters are skipped.
CREATE FUNCTION pg_temp.settle(how text, at_handler text, of_key text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	d record;
	done boolean;
BEGIN
	SELECT v.message_id, v.attempts INTO d FROM outbox.deliveries v
	WHERE v.handler = at_handler AND v.key = of_key AND v.state = 'leased' ORDER BY v.message_id LIMIT 1;
	IF how = 'complete' THEN
		done := outbox.complete(at_handler, d.message_id, d.attempts);
	ELSIF how = 'retry' THEN
		done := outbox.retry(at_handler, d.message_id, d.attempts, 'later', '1 hour', 'not now');
	ELSE
		done := outbox.fail(at_handler, d.message_id, d.attempts, 'bad', 'never');
	END IF;
	RETURN done;
END $$;
SELECT pg_temp.settle('retry', 'skips', 'a'), pg_temp.settle('fail', 'skips', 'b'), pg_temp.settle('complete', 'skips', 'it''s "c"');
SELECT * FROM blocked;
SELECT key, payload, attempt FROM outbox.claim('skips', 10) ORDER BY key COLLATE "C";

-- Where they block, a dead letter holds up its key until an operator acts.
SELECT key, payload FROM outbox.claim('blocks', 10) ORDER BY key COLLATE "C" NULLS LAST;
SELECT pg_temp.settle('fail', 'blocks', 'a'), pg_temp.settle('fail', 'blocks', 'b'), pg_temp.settle('complete', 'blocks', 'it''s "c"');
SELECT * FROM blocked WHERE handler = 'blocks';
SELECT key, payload FROM outbox.claim('blocks', 10) ORDER BY key COLLATE "C";
SELECT outbox.requeue(head_id, 'blocks') FROM outbox.blocked_keys WHERE handler = 'blocks' AND key = 'a';
SELECT outbox.cancel(head_id, 'blocks', 'given up') FROM outbox.blocked_keys WHERE handler = 'blocks' AND key = 'b';
SELECT * FROM blocked WHERE handler = 'blocks';
SELECT key, payload, attempt FROM outbox.claim('blocks', 10) ORDER BY key COLLATE "C";

-- A dead one is shown even if nothing waits behind it.
SELECT pg_temp.settle('complete', 'blocks', 'it''s "c"');
SELECT count(*) FROM outbox.claim('blocks', 10);
SELECT pg_temp.settle('fail', 'blocks', 'it''s "c"');
SELECT * FROM blocked WHERE handler = 'blocks' AND why = 'dead';

-- outbox.prune() leaves it, however old it is, but not one that was skipped.
WITH gone AS (
	DELETE FROM outbox.delivery WHERE NOT EXISTS (SELECT FROM outbox.message m WHERE m.id = message_id AND m.key = 'a') RETURNING *)
INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state)
SELECT message_id, clock_timestamp(), handler_id, 1, 0, 3 FROM gone;
SET outbox.delivered_retention = 0;
SET outbox.dead_retention = 0;
SELECT messages, deliveries FROM outbox.prune();
RESET outbox.delivered_retention;
RESET outbox.dead_retention;
SELECT handler, key, payload FROM outbox.dead_letters ORDER BY handler;
SELECT outbox.stage('ord.x', '{"n": 4}', key => 'it''s "c"') IS NOT NULL AS staged;
SELECT key, payload FROM outbox.claim('blocks', 10) WHERE key LIKE 'it%';
SELECT outbox.alter_handler('blocks', on_dead => 'skip');
SELECT key, payload FROM outbox.claim('blocks', 10) WHERE key LIKE 'it%';
SELECT * FROM blocked WHERE handler = 'blocks' AND why = 'dead';

-- One that is scheduled holds up those behind it.
SELECT outbox.stage('ord.x', '{"n": 1}', key => 'later', delay => '1 hour') IS NOT NULL AS scheduled;
SELECT * FROM blocked WHERE key = 'later';
SELECT outbox.stage('ord.x', '{"n": 2}', key => 'later') IS NOT NULL AS staged;
SELECT * FROM blocked WHERE key = 'later';

-- Dropped handlers are not shown.
SELECT outbox.drop_handler('blocks');
SELECT DISTINCT handler FROM blocked;
