-- Rows as C writes them: no longer than what they say, many at a time, and whole where they have to be.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never
SELECT outbox.create_handler('all', '{*}') IS NOT NULL AND outbox.create_handler('most', '{*}') IS NOT NULL AS created;
CREATE VIEW pg_temp.deliveries AS SELECT state, streak, attempts, budget_from, key, code, error, min_version, expires_at, count(*) FROM outbox.delivery GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 1;
CREATE VIEW pg_temp.receipts AS SELECT state, http_status, attempts, budget_from, code, error, key, count(*) FROM outbox.receipt GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1;

-- How many fit on a page.  A delivery leaves room for what a lease or a retry makes of it.
SELECT count(*) FROM outbox.stage_many('row.small', array_fill('1'::jsonb, ARRAY[2000]));
SELECT (SELECT count(*) FROM outbox.message m WHERE m.ctid < '(1,0)') > 92 AS messages, (SELECT count(*) FROM outbox.delivery d WHERE d.ctid < '(1,0)') BETWEEN 60 AND 66 AS deliveries;
SELECT count(*) FROM outbox.claim('all', 1000);
SELECT count(*) >= 60 AS all_are_there_still FROM outbox.delivery d WHERE d.ctid < '(1,0)';
SELECT true = ALL (outbox.complete_many('all', array_agg(d.message_id), array_agg(d.attempts))) AS completed FROM outbox.delivery d WHERE d.state = 2;
SELECT count(*) > 130 AS receipts FROM outbox.receipt r WHERE r.ctid < '(1,0)';
SELECT * FROM pg_temp.deliveries;
SELECT * FROM pg_temp.receipts;

-- A table that was written anew says no longer what there is behind the end of a row.
VACUUM FULL outbox.delivery;
VACUUM FULL outbox.receipt;
VACUUM FULL outbox.message;
SELECT count(*) FROM outbox.stage_many('row.small', array_fill('1'::jsonb, ARRAY[100]));
SELECT count(*) FROM outbox.claim('all', 10);
SELECT true = ALL (outbox.complete_many('all', array_agg(d.message_id), array_agg(d.attempts))) AS completed FROM outbox.delivery d WHERE d.state = 2;
SELECT * FROM pg_temp.deliveries;
SELECT * FROM pg_temp.receipts;
SELECT count(*) AS findings FROM outbox.verify();

-- However often a delivery fails, its attempts take no more than so much.
SELECT outbox.create_handler('tries', '{tried}', max_attempts => 1000, backoff => '{1 ms}', jitter => 0) IS NOT NULL AS created;
SELECT outbox.stage('tried', '1') AS tried \gset
CREATE PROCEDURE pg_temp.try(n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM outbox.retry_now(d.message_id, 'tries') FROM outbox.delivery d WHERE d.state = 1;
		COMMIT;
		PERFORM outbox.retry('tries', c.id, c.attempt, 'no') FROM outbox.claim('tries') c;
		COMMIT;
	END LOOP;
END $$;
CALL pg_temp.try(200);
SELECT count(*), max(attempt) FROM outbox.attempt WHERE message_id = :'tried';
CALL pg_temp.try(50);
SELECT count(*), count(*) FILTER (WHERE attempt <= 100) AS first, count(*) FILTER (WHERE attempt > 150) AS last, max(attempt) FROM outbox.attempt WHERE message_id = :'tried';
SELECT outbox.drop_handler('tries');

-- More of one transaction than are inserted at once.
CALL regress.empty();
SELECT count(*) FROM outbox.stage_many('row.many', array_fill('1'::jsonb, ARRAY[5000]));
SELECT handler_id = 0 AS for_nobody, count(*), count(DISTINCT message_id) FROM outbox.delivery GROUP BY handler_id ORDER BY handler_id;
SELECT outbox.drop_handler('all'), outbox.drop_handler('most');
SET outbox.unrouted = 'dead';
SELECT count(*) FROM outbox.stage_many('row.many', array_fill('1'::jsonb, ARRAY[5000]));
SELECT code, count(*), count(DISTINCT message_id) FROM outbox.receipt GROUP BY code ORDER BY code;

-- All of them are there or none, also of those that were inserted before.
CALL regress.empty();
BEGIN;
CREATE UNIQUE INDEX only_one ON outbox.receipt (state) WHERE http_status IS NULL;
SELECT regress.error_of('SELECT count(*) FROM outbox.stage_many(''row.many'', array_fill(''1''::jsonb, ARRAY[5000]))');
SELECT count(*) FROM outbox.message;
ROLLBACK;
BEGIN;
ALTER TABLE outbox.receipt ADD CONSTRAINT never CHECK (code <> 'unrouted');
SELECT regress.error_of('SELECT outbox.stage(''row.one'', ''1'')');
ROLLBACK;
