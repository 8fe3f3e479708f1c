-- Pull consumers: claim and settle, fences, leases, versions, order, grants, the inbox.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never
CREATE TEMP TABLE claimed (nr serial, id uuid, attempt int, n int, key text);
-- Claim and remember; returns the numbers in the payloads, in the order they came.
CREATE FUNCTION pg_temp.take(handler text, max_messages int DEFAULT 1, version int DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
	WITH c AS (
		INSERT INTO claimed (id, attempt, n, key)
		SELECT c.id, c.attempt, (c.payload ->> 'n')::int, c.key FROM outbox.claim(take.handler, take.max_messages, version => take.version) c
		RETURNING *)
	SELECT string_agg(n::text, ',' ORDER BY nr) FROM c
$$;
-- The last claim of a message.
CREATE FUNCTION pg_temp.last(n int, OUT id uuid, OUT attempt int) LANGUAGE sql AS $$
	SELECT c.id, c.attempt FROM claimed c WHERE c.n = last.n ORDER BY c.nr DESC LIMIT 1
$$;
CREATE FUNCTION pg_temp.stage(n int, key text DEFAULT NULL, min_version int DEFAULT NULL) RETURNS int LANGUAGE sql AS $$
	SELECT 1 FROM outbox.stage('job.run', jsonb_build_object('n', n), key => key, min_version => stage.min_version)
$$;
CREATE VIEW pg_temp.receipts AS
SELECT (m.payload ->> 'n')::int AS n, d.state, d.attempts, d.attempts_of_budget AS of_budget, d.code, d.error,
	d.settled_at IS NOT NULL AS settled, d.due_at > now() AS later
FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id ORDER BY n;
-- As if the leases had run out, or the time of the retries had come.  A position
-- is never past the present, so claims find it there.  (Nobody is told: a
-- dispatcher that looks after leases would at times be faster than the claim.)
CREATE FUNCTION pg_temp.expire(only_n int DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
	UPDATE outbox.delivery d SET due_at = clock_timestamp() FROM outbox.message m
	WHERE m.id = d.message_id AND d.state IN (1, 2) AND (only_n IS NULL OR m.payload ->> 'n' = only_n::text)
$$;

SELECT outbox.create_handler('jobs', '{job.*}', max_attempts => 3, jitter => 0) IS NOT NULL AS created;
SELECT outbox.create_handler('pushed', '{other}', 'http://127.0.0.1:9/') IS NOT NULL AS created;

-- Oldest due first, everything of the message, a lease of the length asked for.
SELECT pg_temp.take('jobs');
SELECT outbox.stage('job.run', '{"n": 1, "list": [1, 2]}', 'k', NULL, 't', 'c', '{"x-h": "v"}') IS NOT NULL AS staged;
SELECT pg_temp.stage(n) FROM generate_series(2, 5) n;
SELECT attempt, topic, payload, key, tenant, correlation_id, headers, staged_at <= clock_timestamp() AS staged,
	leased_until - clock_timestamp() BETWEEN '59 minutes' AND '1 hour' AS lease
FROM outbox.claim('jobs', lease => '1 hour');
SELECT pg_temp.take('jobs', 2);
SELECT pg_temp.take('jobs', 10);
SELECT pg_temp.take('jobs', 10);
SELECT n, state, attempts FROM pg_temp.receipts;

-- Settling: once, by the attempt that holds the lease, on the right handler.
SELECT outbox.complete('jobs', id, attempt + 1), outbox.complete('jobs', id, 1), outbox.complete('jobs', id, 1) FROM pg_temp.last(2);
SELECT outbox.retry('jobs', id, attempt, 'busy', error => 'come back') FROM pg_temp.last(3);
SELECT outbox.retry('jobs', id, attempt) FROM pg_temp.last(3);
SELECT outbox.fail('jobs', id, attempt, 'bad.payload', 'no such account') FROM pg_temp.last(4);
SELECT outbox.extend('jobs', id, attempt, '2 hours') FROM pg_temp.last(5);
SELECT outbox.extend('jobs', id, attempt, '2 hours') FROM pg_temp.last(4);
SELECT outbox.complete('jobs', '00000000-0000-7000-8000-000000000000', 1);
SELECT * FROM pg_temp.receipts;
SELECT d.due_at - clock_timestamp() BETWEEN '119 minutes' AND '2 hours' AS extended FROM outbox.deliveries d, pg_temp.last(5) l WHERE d.message_id = l.id;
SELECT attempt, outcome, code, error, duration FROM outbox.attempts ORDER BY message_id, attempt;

-- Backoff, a time of the consumer's own, and the end of the budget.
SELECT round(extract(epoch FROM due_at - clock_timestamp())) AS first_backoff FROM outbox.deliveries WHERE state = 'retrying';
SELECT pg_temp.expire();
SELECT pg_temp.take('jobs', 10);
SELECT outbox.retry('jobs', id, attempt, after => '1 day') FROM pg_temp.last(3);
SELECT n, state, attempts, code FROM pg_temp.receipts WHERE n = 3;
SELECT round(extract(epoch FROM due_at - clock_timestamp()) / 3600) AS hours FROM outbox.deliveries WHERE state = 'retrying';
SELECT pg_temp.expire(3);
SELECT pg_temp.take('jobs', 1);
SELECT outbox.retry('jobs', id, attempt, 'busy', after => '0') FROM pg_temp.last(3);
SELECT * FROM pg_temp.receipts;

-- A lease that runs out is an attempt spent; the last one makes a dead letter.
SELECT pg_temp.expire();
SELECT pg_temp.take('jobs', 10);
SELECT n, state, attempts, code FROM pg_temp.receipts;
-- The consumer that lost its lease changes nothing; one whose lease ran out unnoticed still may.
SELECT outbox.complete('jobs', id, 1), outbox.retry('jobs', id, 2), outbox.fail('jobs', id, 2), outbox.extend('jobs', id, 2) FROM pg_temp.last(5);
SELECT pg_temp.expire();
SELECT outbox.complete('jobs', id, 3) FROM pg_temp.last(5);
SELECT pg_temp.take('jobs', 10);
SELECT n, state, attempts, code, error FROM pg_temp.receipts;
SELECT (m.payload ->> 'n')::int AS n, a.attempt, a.outcome, a.code FROM outbox.attempts a JOIN outbox.message m ON m.id = a.message_id ORDER BY 1, 2;
-- Requeued, it has its whole budget again and goes on counting.
SELECT outbox.requeue(message_id) FROM (SELECT message_id FROM outbox.dead_letters ORDER BY message_id) d;
SELECT pg_temp.take('jobs', 10);
SELECT n, state, attempts, of_budget FROM pg_temp.receipts;
SELECT outbox.cancel(id, reason => 'enough'), outbox.complete('jobs', id, attempt) FROM pg_temp.last(3);
SELECT n, state, code, error FROM pg_temp.receipts WHERE n = 3;

-- A lease that is given back has spent no attempt, however often; what the last real one left stays.
CALL regress.empty();
TRUNCATE claimed;
SELECT outbox_internal.ring_rescan();
SELECT pg_temp.stage(9);
SELECT pg_temp.take('jobs');
SELECT outbox.release('jobs', id, attempt) AS released, outbox.release('jobs', id, attempt) AS twice, outbox.complete('jobs', id, attempt) AS late FROM pg_temp.last(9);
SELECT n, state, attempts, of_budget, code FROM pg_temp.receipts;
SELECT pg_temp.take('jobs');
SELECT outbox.retry('jobs', id, attempt, 'busy', after => '0', error => 'come back') FROM pg_temp.last(9);
DO $$ BEGIN FOR i IN 1 .. 5 LOOP PERFORM pg_temp.take('jobs'); PERFORM outbox.release('jobs', l.id, l.attempt) FROM pg_temp.last(9) l; END LOOP; END $$;
SELECT n, state, attempts, of_budget, code, error FROM pg_temp.receipts;
SELECT pg_temp.take('jobs');
SELECT outbox.release('jobs', id, attempt, '1 day') FROM pg_temp.last(9);
SELECT n, state, attempts, of_budget, later FROM pg_temp.receipts;
SELECT round(extract(epoch FROM due_at - clock_timestamp()) / 3600) AS hours FROM outbox.deliveries;
SELECT pg_temp.expire();
SELECT pg_temp.take('jobs');
SELECT outbox.release_many('jobs', ARRAY[id, id], ARRAY[attempt, attempt - 1]) FROM pg_temp.last(9);
SELECT pg_temp.take('jobs');
SELECT outbox.retry('jobs', id, attempt, after => '0') FROM pg_temp.last(9);
SELECT pg_temp.take('jobs');
SELECT outbox.retry('jobs', id, attempt) FROM pg_temp.last(9);
SELECT n, state, attempts, of_budget FROM pg_temp.receipts;
SELECT a.attempt, a.outcome, a.code FROM outbox.attempts a ORDER BY 1;
SELECT count(*) AS findings FROM outbox.verify() WHERE severity <> 'info';

-- In bulk: in the order of the arguments, each as by itself.
CALL regress.empty();
TRUNCATE claimed;
SELECT outbox_internal.ring_rescan();
SELECT pg_temp.stage(n) FROM generate_series(1, 6) n;
SELECT pg_temp.take('jobs', 6);
SELECT outbox.complete_many('jobs', (SELECT array_agg(id ORDER BY nr DESC) FROM claimed WHERE n < 4), '{1,2,1}');
SELECT outbox.retry_many('jobs', ids, '{1,1}', 'later', '1 hour', 'x'), outbox.retry_many('jobs', ids, '{1,1}') FROM (SELECT array_agg(id) AS ids FROM claimed WHERE n IN (2, 4)) c;
SELECT outbox.extend_many('jobs', ids, '{1,1,1}') FROM (SELECT array_agg(id ORDER BY n) AS ids FROM claimed WHERE n IN (1, 5, 6)) c;
SELECT outbox.fail_many('jobs', ids || ids[1:1], '{1,1,1}', 'broken') FROM (SELECT array_agg(id ORDER BY n) AS ids FROM claimed WHERE n IN (5, 6)) c;
SELECT outbox.complete_many('jobs', '{}', '{}');
SELECT n, state, attempts, code, later FROM pg_temp.receipts;

-- All attempts logged, or none.
SET outbox.log_attempts = 'all';
SELECT pg_temp.stage(7);
SELECT pg_temp.take('jobs');
SELECT outbox.complete('jobs', id, attempt) FROM pg_temp.last(7);
SET outbox.log_attempts = 'none';
SELECT pg_temp.stage(8);
SELECT pg_temp.take('jobs');
SELECT outbox.fail('jobs', id, attempt) FROM pg_temp.last(8);
RESET outbox.log_attempts;
SELECT (m.payload ->> 'n')::int AS n, a.attempt, a.outcome, a.code FROM outbox.attempts a JOIN outbox.message m ON m.id = a.message_id ORDER BY 1, 2;

-- Rules of the handler hold for consumers' codes.
SELECT outbox.alter_handler('jobs', rules => '{"poison": "fail", "gone": "cancel", "flaky": {"streak": 2}}');
SELECT pg_temp.stage(n) FROM generate_series(11, 13) n;
SELECT pg_temp.take('jobs', 10);
SELECT outbox.retry('jobs', id, attempt, 'poison') FROM pg_temp.last(11);
SELECT outbox.retry('jobs', id, attempt, 'gone') FROM pg_temp.last(12);
SELECT outbox.retry('jobs', id, attempt, 'flaky', '0') FROM pg_temp.last(13);
SELECT pg_temp.take('jobs', 1);
SELECT outbox.retry('jobs', id, attempt, 'flaky', '0') FROM pg_temp.last(13);
SELECT n, state, attempts, code FROM pg_temp.receipts WHERE n > 10;

-- A transaction that rolls back has claimed and settled nothing; so has a savepoint.
CALL regress.empty();
TRUNCATE claimed;
SELECT outbox_internal.ring_rescan();
SELECT pg_temp.stage(n) FROM generate_series(1, 4) n;
BEGIN;
SELECT pg_temp.take('jobs', 2);
SAVEPOINT s;
SELECT pg_temp.take('jobs', 1);
ROLLBACK TO s;
SELECT pg_temp.take('jobs', 1);
ROLLBACK;
SELECT pg_temp.take('jobs', 10);
BEGIN;
SELECT outbox.complete('jobs', id, attempt) FROM pg_temp.last(1);
SAVEPOINT s;
SELECT outbox.complete('jobs', id, attempt) FROM pg_temp.last(2);
ROLLBACK TO s;
SELECT outbox.fail('jobs', id, attempt) FROM pg_temp.last(2);
SELECT outbox.complete('jobs', id, attempt) FROM pg_temp.last(1);
COMMIT;
SELECT n, state, attempts, code FROM pg_temp.receipts;
-- Claimed, settled and claimed again within one transaction.
BEGIN;
SELECT outbox.retry('jobs', id, attempt, after => '0') FROM pg_temp.last(3);
SELECT pg_temp.take('jobs', 1);
SELECT outbox.complete('jobs', id, attempt) FROM pg_temp.last(3);
COMMIT;
SELECT n, state, attempts, code FROM pg_temp.receipts;
-- What is staged can be claimed before it is committed, by nobody else, and goes with the transaction.
BEGIN;
SELECT pg_temp.stage(9);
SELECT pg_temp.take('jobs', 1);
ROLLBACK;
SELECT pg_temp.take('jobs', 1);
-- Under an old snapshot a claim still gets what has been committed since.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM outbox.message;
SELECT n, state FROM pg_temp.receipts WHERE n = 4;
SELECT outbox.complete('jobs', id, attempt) FROM pg_temp.last(4);
COMMIT;
BEGIN READ ONLY;
SELECT outbox.claim('jobs');
ROLLBACK;

-- Versions: older consumers leave newer messages alone, and are not held up by them.
CALL regress.empty();
TRUNCATE claimed;
SELECT outbox_internal.ring_rescan();
SELECT pg_temp.stage(1), pg_temp.stage(2, min_version => 2), pg_temp.stage(3, min_version => 3), pg_temp.stage(4), pg_temp.stage(5, min_version => 2);
SELECT pg_temp.take('jobs', 1);
SELECT pg_temp.take('jobs', 10);
SELECT pg_temp.take('jobs', 10, 1);
SELECT pg_temp.take('jobs', 1, 2);
SELECT outbox.retry('jobs', id, attempt, after => '0') FROM pg_temp.last(2);
SELECT pg_temp.take('jobs', 10);
SELECT pg_temp.take('jobs', 10, 2);
SELECT pg_temp.take('jobs', 10, 3);

-- Paused handlers give nothing out, but take back what is out.
SELECT outbox.pause_handler('jobs');
SELECT pg_temp.stage(6);
SELECT pg_temp.take('jobs', 10);
SELECT outbox.complete('jobs', id, attempt) FROM pg_temp.last(1);
SELECT outbox.resume_handler('jobs');
SELECT pg_temp.take('jobs', 10);

-- A message that is gone leaves a dead letter behind, not an error.
SELECT pg_temp.stage(7), pg_temp.stage(8);
DELETE FROM outbox.message WHERE payload ->> 'n' = '7';
SELECT pg_temp.take('jobs', 10);
SELECT state, attempts, code, error FROM outbox.deliveries WHERE topic IS NULL;
DELETE FROM outbox.receipt WHERE code = 'message_missing';

-- Order by key: one at a time, smallest id first; other keys and messages without one go on.
SELECT outbox.create_handler('ordered', '{seq.*}', ordered => true, jitter => 0, max_attempts => 3) IS NOT NULL AS created;
CALL regress.empty();
TRUNCATE claimed;
SELECT outbox_internal.ring_rescan();
CREATE FUNCTION pg_temp.stage_seq(n int, key text DEFAULT NULL, delay interval DEFAULT NULL) RETURNS int LANGUAGE sql AS $$
	SELECT 1 FROM outbox.stage('seq.x', jsonb_build_object('n', n), key => stage_seq.key, delay => stage_seq.delay)
$$;
SELECT pg_temp.stage_seq(1, 'a'), pg_temp.stage_seq(2, 'a'), pg_temp.stage_seq(3, 'b'), pg_temp.stage_seq(4), pg_temp.stage_seq(5, 'a'), pg_temp.stage_seq(6, 'b'), pg_temp.stage_seq(7);
SELECT pg_temp.take('ordered', 10);
SELECT pg_temp.take('ordered', 10);
SELECT outbox.complete('ordered', id, attempt) FROM pg_temp.last(1);
SELECT pg_temp.take('ordered', 10);
-- A retrying head blocks its key until its time has come and it is dealt with.
SELECT outbox.retry('ordered', id, attempt, after => '1 hour') FROM pg_temp.last(2);
SELECT pg_temp.take('ordered', 10);
SELECT pg_temp.expire(2);
SELECT pg_temp.take('ordered', 1);
-- So does a scheduled one.
SELECT outbox.complete('ordered', id, attempt) FROM pg_temp.last(2);
SELECT pg_temp.take('ordered', 1);
SELECT outbox.complete('ordered', id, attempt) FROM pg_temp.last(5);
SELECT pg_temp.stage_seq(8, 'a', '1 hour'), pg_temp.stage_seq(9, 'a');
SELECT pg_temp.take('ordered', 10);
SELECT outbox.cancel(message_id) FROM outbox.deliveries WHERE due_at > clock_timestamp() AND state = 'pending';
SELECT pg_temp.take('ordered', 10);
-- A dead head lets the next one go.
SELECT pg_temp.stage_seq(10, 'a');
SELECT outbox.fail('ordered', id, attempt) FROM pg_temp.last(9);
SELECT pg_temp.take('ordered', 10);
-- Requeued while a later one is out, it waits for that; then it goes before what comes after.
SELECT pg_temp.stage_seq(11, 'a');
SELECT outbox.requeue(id) FROM pg_temp.last(9);
SELECT pg_temp.take('ordered', 10);
SELECT outbox.complete('ordered', id, attempt) FROM pg_temp.last(10);
SELECT pg_temp.take('ordered', 10);
SELECT outbox.complete('ordered', id, attempt) FROM pg_temp.last(9);
SELECT pg_temp.take('ordered', 10);
SELECT outbox.complete('ordered', id, attempt) FROM pg_temp.last(11);
-- Erasing a head lets the next one go.
SELECT outbox.stage('seq.x', '{"n": 12}', 'e', tenant => 'gone') IS NOT NULL AS staged;
SELECT pg_temp.stage_seq(13, 'e');
SELECT pg_temp.take('ordered', 10);
SELECT outbox.erase_tenant('gone');
SELECT pg_temp.take('ordered', 10);

-- on_dead => block: the key waits for an operator.
SELECT outbox.create_handler('blocking', '{blk.*}', ordered => true, on_dead => 'block') IS NOT NULL AS created;
CREATE FUNCTION pg_temp.stage_blk(n int) RETURNS int LANGUAGE sql AS $$
	SELECT 1 FROM outbox.stage('blk.x', jsonb_build_object('n', n), key => 'k')
$$;
SELECT pg_temp.stage_blk(n) FROM generate_series(21, 24) n;
SELECT pg_temp.take('blocking', 10);
SELECT outbox.fail('blocking', id, attempt) FROM pg_temp.last(21);
SELECT pg_temp.take('blocking', 10);
SELECT outbox.requeue(id) FROM pg_temp.last(21);
SELECT pg_temp.take('blocking', 10);
SELECT outbox.fail('blocking', id, attempt) FROM pg_temp.last(21);
SELECT outbox.cancel(id) FROM pg_temp.last(21);
SELECT pg_temp.take('blocking', 10);
SELECT outbox.complete('blocking', id, attempt) FROM pg_temp.last(22);
SELECT pg_temp.take('blocking', 10);

-- Errors say what is wrong.
SELECT regress.error_of(c) FROM unnest(ARRAY[
	'SELECT outbox.claim(NULL)', 'SELECT outbox.claim(''nobody'')', 'SELECT outbox.claim(''pushed'')', 'SELECT outbox.claim(''(unrouted)'')',
	'SELECT outbox.claim(repeat(''x'', 100))',
	'SELECT outbox.claim(''jobs'', 0)', 'SELECT outbox.claim(''jobs'', 10001)', 'SELECT outbox.claim(''jobs'', NULL)',
	'SELECT outbox.claim(''jobs'', 1, ''0'')', 'SELECT outbox.claim(''jobs'', 1, ''-1 s'')', 'SELECT outbox.claim(''jobs'', 1, NULL)',
	'SELECT outbox.claim(''jobs'', 1, ''31 days'')', 'SELECT outbox.claim(''jobs'', 1, ''1 s'', -1)',
	'SELECT outbox.complete(''nobody'', ''00000000-0000-7000-8000-000000000000'', 1)',
	'SELECT outbox.complete(''pushed'', ''00000000-0000-7000-8000-000000000000'', 1)',
	'SELECT outbox.complete(''jobs'', NULL, 1)', 'SELECT outbox.complete(''jobs'', ''00000000-0000-7000-8000-000000000000'', 0)',
	'SELECT outbox.complete(''jobs'', ''00000000-0000-7000-8000-000000000000'', NULL)',
	'SELECT outbox.retry(''jobs'', ''00000000-0000-7000-8000-000000000000'', 1, ''two words'')',
	'SELECT outbox.retry(''jobs'', ''00000000-0000-7000-8000-000000000000'', 1, after => ''-1 s'')',
	'SELECT outbox.retry(''jobs'', ''00000000-0000-7000-8000-000000000000'', 1, after => ''2 years'')',
	'SELECT outbox.fail(''jobs'', ''00000000-0000-7000-8000-000000000000'', 1, '''')',
	'SELECT outbox.extend(''jobs'', ''00000000-0000-7000-8000-000000000000'', 1, ''0'')',
	'SELECT outbox.release(''pushed'', ''00000000-0000-7000-8000-000000000000'', 1)',
	'SELECT outbox.release(''jobs'', ''00000000-0000-7000-8000-000000000000'', 1, ''-1 s'')', 'SELECT outbox.release_many(''jobs'', ''{}'', NULL)',
	'SELECT outbox.complete_many(''jobs'', NULL, ''{}'')', 'SELECT outbox.complete_many(''jobs'', ''{}'', ''{1}'')',
	'SELECT outbox.complete_many(''jobs'', ARRAY[NULL]::uuid[], ''{1}'')', 'SELECT outbox.complete_many(''jobs'', ''{}'', ''{{1},{2}}'')',
	'CALL outbox.wait(''jobs'')']) c;
-- In a transaction block it is refused as well.
BEGIN;
CALL outbox.wait('jobs');
ROLLBACK;
CALL outbox.wait('jobs', '-1 s');
CALL outbox.wait('jobs', '2 days');
CALL outbox.wait(NULL);

-- Errors are kept up to a limit, cut between characters.
SET outbox.max_response_capture = 5;
TRUNCATE claimed;
SELECT pg_temp.stage(31);
SELECT pg_temp.take('jobs', 100) LIKE '%31';
SELECT outbox.fail('jobs', id, attempt, error => 'abcéé') FROM pg_temp.last(31);
RESET outbox.max_response_capture;
SELECT error FROM pg_temp.receipts WHERE n = 31;

-- Dropped while a message is out: whoever has it may still settle it; nothing new is claimed.
SELECT outbox.create_handler('short', '{short}') IS NOT NULL AS created;
SELECT outbox.stage('short', '{"n": 41}') IS NOT NULL AS staged;
SELECT pg_temp.take('short');
SELECT outbox.drop_handler('short');
SELECT outbox.complete('short', id, attempt) IS NOT NULL AS answered FROM pg_temp.last(41);
SELECT outbox.claim('short');

-- Grants: one role, one handler.
SELECT outbox.create_handler('granted', '{granted}') IS NOT NULL AS created;
SELECT outbox.stage('granted', '{"n": 51}') IS NOT NULL AS staged;
SELECT outbox.stage('granted', '{"n": 52}') IS NOT NULL AS staged;
SELECT pg_temp.stage(53);
SELECT pg_temp.take('jobs');
CREATE ROLE outbox_consumer;
CREATE ROLE outbox_member IN ROLE outbox_consumer;
CREATE ROLE "outbox Other";
GRANT ALL ON claimed, claimed_nr_seq TO PUBLIC;
SET ROLE outbox_consumer;
SELECT outbox.claim('granted');
RESET ROLE;
SELECT outbox.grant_consumer('granted', 'outbox_consumer'), outbox.grant_consumer('granted', 'outbox_consumer');
SELECT outbox.grant_consumer('jobs', 'outbox Other');
SELECT h.name, c.role FROM outbox.consumer c JOIN outbox.handler h ON h.id = c.handler_id ORDER BY 1, 2;
SET ROLE outbox_consumer;
INSERT INTO claimed (id, attempt, n) SELECT id, attempt, (payload ->> 'n')::int FROM outbox.claim('granted');
SELECT n FROM claimed WHERE n > 50 ORDER BY n;
SELECT outbox.claim('jobs');
SELECT outbox.complete('jobs', id, attempt) FROM claimed WHERE n = 53;
-- Another handler's delivery, by its right id, through the handler one has.
SELECT outbox.complete('granted', id, attempt) FROM claimed WHERE n = 53;
SELECT outbox.complete('granted', id, attempt) FROM claimed WHERE n = 51;
SELECT regress.error_of(c) FROM unnest(ARRAY['TABLE outbox.delivery', 'TABLE outbox.message', 'UPDATE outbox.delivery SET state = 3',
	'INSERT INTO outbox.delivery (message_id, handler_id, due_at) VALUES (''00000000-0000-7000-8000-000000000000'', 1, now())',
	'TABLE outbox.consumer', 'SELECT outbox.grant_consumer(''jobs'', ''outbox_consumer'')', 'SELECT outbox.requeue(''00000000-0000-7000-8000-000000000000'')',
	'SELECT outbox.accept(''s'', ''m'')', 'SELECT outbox_internal.prune_expired(''inbox'', 1)']) c;
RESET ROLE;
-- Members of the role may, and whoever calls through a function with the role's rights.
SET ROLE outbox_member;
SELECT payload FROM outbox.claim('granted');
RESET ROLE;
SELECT outbox.revoke_consumer('granted', 'outbox_consumer'), outbox.revoke_consumer('granted', 'outbox_consumer');
SET ROLE outbox_member;
SELECT outbox.claim('granted');
RESET ROLE;
SET ROLE "outbox Other";
SELECT outbox.claim('granted');
RESET ROLE;
SELECT regress.error_of(c) FROM unnest(ARRAY['SELECT outbox.grant_consumer(''pushed'', ''outbox_consumer'')',
	'SELECT outbox.grant_consumer(''jobs'', ''outbox_nobody'')', 'SELECT outbox.grant_consumer(''jobs'', NULL)', 'SELECT outbox.grant_consumer(NULL, ''outbox_consumer'')']) c;
SELECT outbox.revoke_consumer('jobs', 'outbox Other');
DROP ROLE outbox_member, outbox_consumer, "outbox Other";

-- A grant made in this very transaction counts, and is gone with it.
CREATE ROLE outbox_consumer;
GRANT EXECUTE ON FUNCTION outbox.claim TO outbox_consumer;
BEGIN;
SELECT outbox.grant_consumer('granted', 'outbox_consumer');
SET ROLE outbox_consumer;
SELECT count(*) FROM outbox.claim('granted');
ROLLBACK;
SET ROLE outbox_consumer;
SELECT outbox.claim('granted');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION outbox.claim FROM outbox_consumer;
DROP ROLE outbox_consumer;

-- A grant is the role's own, whatever it is called.
CREATE FUNCTION pg_temp.consumers() RETURNS TABLE (handler text, role name, known boolean) LANGUAGE sql AS $$
	SELECT h.name, c.role, r.rolname IS NOT NULL
	FROM outbox.consumer c JOIN outbox.handler h ON h.id = c.handler_id LEFT JOIN pg_roles r ON r.oid = c.role_oid ORDER BY 1, 2 $$;
CREATE FUNCTION pg_temp.may_claim(who name, handler text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text := 'yes';
BEGIN
	BEGIN
		PERFORM set_config('role', who, true);
		PERFORM outbox.claim(handler);
		RAISE SQLSTATE 'XXXXX';
	EXCEPTION WHEN insufficient_privilege THEN
		result := SQLERRM;
	WHEN SQLSTATE 'XXXXX' THEN
		NULL;
	END;
	RETURN result;
END $$;
CREATE ROLE outbox_first;
CREATE ROLE outbox_second;
SELECT outbox.grant_consumer('granted', 'outbox_first'), outbox.grant_consumer('jobs', 'outbox_second');
ALTER ROLE outbox_first RENAME TO outbox_third;
ALTER ROLE outbox_second RENAME TO outbox_first;
SELECT w AS role, h AS handler, pg_temp.may_claim(w, h) FROM unnest('{outbox_third,outbox_first}'::name[]) w, unnest('{granted,jobs}'::text[]) h;
SELECT finding, severity, handler, hint FROM outbox.verify() WHERE finding ~ 'consumer';
-- The next grant brings the names up to date, swapped ones too.
ALTER ROLE outbox_third RENAME TO outbox_second;
SELECT outbox.grant_consumer('granted', 'outbox_first');
SELECT * FROM pg_temp.consumers();
SELECT outbox.revoke_consumer('granted', 'outbox_third'), outbox.revoke_consumer('granted', 'outbox_second'), outbox.revoke_consumer('granted', 'outbox_first');
SELECT w AS role, pg_temp.may_claim(w, 'granted') FROM unnest('{outbox_first,outbox_second}'::name[]) w;
-- A dropped role's goes with it; another one of its name has no part in it.
SELECT outbox.grant_consumer('granted', 'outbox_second');
DROP OWNED BY outbox_second;
DROP ROLE outbox_second;
SELECT finding, severity, handler, hint FROM outbox.verify() WHERE finding ~ 'consumer';
CREATE ROLE outbox_second;
SELECT outbox.grant_consumer('jobs', 'outbox_second');
SELECT * FROM pg_temp.consumers();
SELECT pg_temp.may_claim('outbox_second', 'granted'), pg_temp.may_claim('outbox_second', 'jobs');
SELECT outbox.grant_consumer('granted', 'outbox_second');
DROP OWNED BY outbox_second;
DROP ROLE outbox_second;
SELECT outbox.revoke_consumer('granted', 'outbox_second'), outbox.revoke_consumer('granted', 'outbox_second'), outbox.revoke_consumer('jobs', 'outbox_second');
-- They end with the handler, and with the last one EXECUTE does, so that the role can be dropped.
SELECT outbox.create_handler('ending', '{ending}') IS NOT NULL AS created;
CREATE ROLE outbox_second;
SELECT outbox.grant_consumer('ending', 'outbox_first'), outbox.grant_consumer('ending', 'outbox_second');
SELECT outbox.drop_handler('ending');
SELECT * FROM pg_temp.consumers();
SELECT pg_temp.may_claim('outbox_first', 'ending'), pg_temp.may_claim('outbox_first', 'jobs'), pg_temp.may_claim('outbox_second', 'ending');
DROP ROLE outbox_second;
-- On another server the names count, once the copy is adopted.
UPDATE outbox.installation SET system_identifier = 1;
UPDATE outbox.consumer SET role_oid = 10;
SELECT pg_temp.may_claim('outbox_first', 'jobs');
SELECT outbox.adopt();
SELECT pg_temp.may_claim('outbox_first', 'jobs');
SELECT * FROM pg_temp.consumers();
UPDATE outbox.installation SET system_identifier = 1;
UPDATE outbox.consumer SET role = 'outbox_unknown';
SELECT outbox.adopt();
SELECT pg_temp.may_claim('outbox_first', 'jobs');
SELECT * FROM pg_temp.consumers();
SELECT finding, severity, handler, hint FROM outbox.verify() WHERE finding ~ 'consumer';
SELECT outbox.revoke_consumer('jobs', 'outbox_unknown');
-- Another database of the same server has the same roles, whatever their names are by now.
SELECT outbox.grant_consumer('jobs', 'outbox_first');
ALTER ROLE outbox_first RENAME TO outbox_second;
UPDATE outbox.installation SET database_oid = 1;
SELECT outbox.adopt();
SELECT pg_temp.may_claim('outbox_second', 'jobs');
SELECT outbox.revoke_consumer('jobs', 'outbox_second');
SELECT * FROM pg_temp.consumers();
DROP ROLE outbox_second;

-- In a copy nothing is claimed until it is adopted; what is out can be settled.
SELECT pg_temp.stage(61), pg_temp.stage(62);
SELECT pg_temp.take('jobs');
UPDATE outbox.installation SET database_oid = 1;
SELECT outbox.claim('jobs');
SELECT outbox.complete('jobs', id, attempt) FROM pg_temp.last(61);
SELECT outbox.adopt();
SELECT pg_temp.take('jobs');

-- The inbox.
SELECT outbox.accept('github', 'm1'), outbox.accept('github', 'm1'), outbox.accept('gitlab', 'm1'), outbox.accept('github', 'm2', '1 hour');
SELECT source, message_id, expires_at - accepted_at BETWEEN '59 minutes' AND '7 days' AS kept FROM outbox.inbox ORDER BY 1, 2;
BEGIN;
SELECT outbox.accept('github', 'm3');
ROLLBACK;
SELECT outbox.accept('github', 'm3');
-- Past its time it counts for nothing, pruned or not.
UPDATE outbox.inbox SET expires_at = now() - interval '1 s' WHERE message_id IN ('m1', 'm2');
SELECT outbox.accept('github', 'm1'), outbox.accept('github', 'm1');
SELECT outbox_internal.prune_expired('inbox', 1), outbox_internal.prune_expired('inbox', 10), outbox_internal.prune_expired('inbox', 10);
SELECT source, message_id FROM outbox.inbox ORDER BY 1, 2;
UPDATE outbox.inbox SET expires_at = now() - interval '1 s' WHERE message_id = 'm1';
SELECT messages FROM outbox.prune();
SELECT source, message_id FROM outbox.inbox ORDER BY 1, 2;
SELECT regress.error_of(c) FROM unnest(ARRAY['SELECT outbox.accept(NULL, ''m'')', 'SELECT outbox.accept(''s'', NULL)', 'SELECT outbox.accept('''', ''m'')',
	'SELECT outbox.accept(''s'', repeat(''x'', 1001))', 'SELECT outbox.accept(''s'', ''m'', NULL)', 'SELECT outbox.accept(''s'', ''m'', ''-1 s'')']) c;

-- Of a delivery that is tried without end, the first attempts and the last ones stay logged.
SELECT outbox.create_handler('endless', '{endless}', max_attempts => 1000, jitter => 0) IS NOT NULL AS created;
SELECT outbox.stage('endless') IS NOT NULL AS staged;
DO $$
DECLARE
	c record;
BEGIN
	FOR i IN 1 .. 250 LOOP
		SELECT id, attempt INTO STRICT c FROM outbox.claim('endless');
		ASSERT outbox.retry('endless', c.id, c.attempt, after => '0');
	END LOOP;
END $$;
SELECT count(*), min(attempt), max(attempt), count(*) FILTER (WHERE attempt BETWEEN 101 AND 150) AS in_the_middle FROM outbox.attempts WHERE handler = 'endless';
-- A count that somebody has set to the end of its range stays there.
UPDATE outbox.delivery SET attempts = 2147483647, budget_from = 2147483647;
SELECT attempt, outbox.complete('endless', id, attempt) FROM outbox.claim('endless');
SELECT state, attempts, attempts_of_budget FROM outbox.deliveries WHERE handler = 'endless';

CALL regress.start_anew();
