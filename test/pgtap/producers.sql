-- Producers and handlers: signatures that clients rely on, rights, and the
-- state every staged delivery begins in.
BEGIN;
SELECT * FROM no_plan();

SELECT function_returns('outbox', 'stage', ARRAY['text', 'jsonb', 'text', 'text', 'text', 'text', 'jsonb', 'timestamp with time zone', 'interval', 'integer', 'text', 'interval', 'timestamp with time zone', 'interval'], 'uuid');
SELECT function_returns('outbox', 'stage_text', ARRAY['text', 'text', 'text', 'text', 'text', 'text', 'text', 'jsonb', 'timestamp with time zone', 'interval', 'integer', 'text', 'interval', 'timestamp with time zone', 'interval'], 'uuid');
SELECT function_returns('outbox', 'stage_bytes', ARRAY['text', 'bytea', 'text', 'text', 'text', 'text', 'text', 'jsonb', 'timestamp with time zone', 'interval', 'integer', 'text', 'interval', 'timestamp with time zone', 'interval'], 'uuid');
-- But for the payload and its content type they have stage()'s arguments, in its order: src/stage/stage.c reads them so.
SELECT is(array_remove(p.proargnames, 'content_type'), s.proargnames, p.proname || ' has the arguments of stage') FROM pg_proc p, pg_proc s
WHERE p.oid IN ('outbox.stage_text'::regproc, 'outbox.stage_bytes'::regproc) AND s.oid = 'outbox.stage'::regproc;
SELECT is(p.proargnames[3], 'content_type', p.proname || ' has its content type behind the payload') FROM pg_proc p WHERE p.oid IN ('outbox.stage_text'::regproc, 'outbox.stage_bytes'::regproc);
SELECT function_returns('outbox', 'try_stage', ARRAY['text', 'jsonb', 'text', 'text', 'text', 'text', 'jsonb', 'timestamp with time zone', 'interval', 'integer', 'text', 'interval', 'timestamp with time zone', 'interval'], 'record');
SELECT function_returns('outbox', 'stage_many', ARRAY['text', 'jsonb[]', 'text[]', 'text[]', 'text', 'text', 'jsonb', 'timestamp with time zone', 'interval', 'integer', 'timestamp with time zone', 'interval'], 'setof uuid');
SELECT is(proargnames, names, proname || ' names its arguments')
FROM (VALUES
	('outbox.stage', '{topic,payload,key,dedupe_key,tenant,correlation_id,headers,deliver_at,delay,min_version,replace_key,max_delay,expires_at,ttl}'::text[]),
	('outbox.try_stage', '{topic,payload,key,dedupe_key,tenant,correlation_id,headers,deliver_at,delay,min_version,replace_key,max_delay,expires_at,ttl,id,status,detail}'),
	('outbox.stage_many', '{topic,payloads,keys,dedupe_keys,tenant,correlation_id,headers,deliver_at,delay,min_version,expires_at,ttl}'),
	('outbox.drop_handler', '{handler,reason}'), ('outbox.pause_handler', '{handler,reason}'), ('outbox.resume_handler', '{handler,reason}')) v (f, names)
	JOIN pg_proc p ON p.oid = v.f::regproc;
SELECT is((pronargs - pronargdefaults)::int, required, proname || ' requires as few arguments as it can')
FROM (VALUES ('outbox.stage', 1), ('outbox.stage_text', 2), ('outbox.stage_bytes', 2), ('outbox.try_stage', 1), ('outbox.stage_many', 2), ('outbox.create_handler', 2), ('outbox.alter_handler', 1),
	('outbox.drop_handler', 1), ('outbox.pause_handler', 1), ('outbox.resume_handler', 1)) v (f, required) JOIN pg_proc p ON p.oid = v.f::regproc;
SELECT is(proparallel::text, 'u', proname || ' is parallel unsafe') FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname ~ '^((try_)?stage|stage_(text|bytes)|[a-z]+_handler$)';

-- The state a delivery begins in.
SELECT lives_ok($$ SELECT outbox.create_handler('pull', '{s.*}', ordered => true), outbox.create_handler('push', '{s.*}', 'http://127.0.0.1:9/') $$, 'handlers');
SELECT lives_ok($$ SELECT outbox.stage('s.now', key => 'k'), outbox.stage('s.later', key => 'k', delay => '1 hour', min_version => 2) $$, 'messages');
SELECT results_eq($$ SELECT m.topic COLLATE "default", h.name COLLATE "default", d.state, d.attempts, d.budget_from, d.streak, d.code IS NULL AND d.error IS NULL AND d.http_status IS NULL, d.key COLLATE "default", d.min_version
		FROM outbox.message m JOIN outbox.delivery d ON d.message_id = m.id JOIN outbox.handler h ON h.id = d.handler_id ORDER BY m.id, h.name $$,
	$$ VALUES ('s.now', 'pull', 0::smallint, 0, 0, 0::smallint, true, 'k', NULL::int), ('s.now', 'push', 0::smallint, 0, 0, 0::smallint, true, NULL, NULL),
		('s.later', 'pull', 0::smallint, 0, 0, 0::smallint, true, 'k', 2), ('s.later', 'push', 0::smallint, 0, 0, 0::smallint, true, NULL, NULL) $$,
	'a delivery begins pending and untried; key where order counts, version where consumers have one');

-- What this transaction has staged, whatever savepoint it was in, and nobody else.
SELECT throws_ok($$ DO $do$ BEGIN PERFORM outbox.stage('own.undone'); RAISE 'undone'; END $do$ $$, 'P0001', 'undone', 'a savepoint is rolled back');
SELECT lives_ok($$ SELECT outbox.stage('own.a', '{"n": 1}', key => 'k') $$, 'one is released');
SELECT lives_ok($$ SELECT outbox.stage('own.b', tenant => 't'), outbox.stage('own.b') $$, 'and another one');
SELECT results_eq($$ SELECT topic, payload, key, tenant, handlers FROM outbox.staged('own.*') $$,
	$$ VALUES ('own.a', '{"n": 1}'::jsonb, 'k', NULL, '{}'::text[]), ('own.b', '{}', NULL, 't', '{}'), ('own.b', '{}', NULL, NULL, '{}') $$, 'staged() shows what the transaction has staged, in order');
SELECT results_eq($$ SELECT (SELECT count(*) FROM outbox.staged('own.b', tenant => 't')), (SELECT count(*) FROM outbox.staged('own.*', key => 'k')) $$, $$ VALUES (1::bigint, 1::bigint) $$, 'of a tenant, with a key');
SELECT throws_ok($$ SELECT outbox.staged('*a*') $$, '22023', NULL, 'a bad pattern is refused');

SELECT results_eq($$ SELECT topic, handlers FROM (SELECT outbox.stage('s.now')) x CROSS JOIN LATERAL outbox.staged('own.a') $$, $$ VALUES ('own.a', '{}'::text[]) $$, 'and who gets it');
SELECT isnt((SELECT handlers FROM outbox.staged('s.now') LIMIT 1), '{}', 'if anybody does');

-- A role that may stage may do nothing else.
CREATE ROLE outbox_test_producer;
GRANT EXECUTE ON FUNCTION outbox.stage TO outbox_test_producer;
SELECT is_empty($$ SELECT p.oid::regprocedure FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace AND has_function_privilege('outbox_test_producer', p.oid, 'EXECUTE') AND p.proname <> 'stage' $$,
	'a producer can call stage and no other function');
SELECT is_empty($$ SELECT c.oid::regclass FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'v')
	AND has_table_privilege('outbox_test_producer', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER') $$, 'a producer can touch no table or view');
SELECT is(has_schema_privilege('outbox_test_producer', 'outbox', 'CREATE'), false, 'a producer can create nothing in the schema');
SET ROLE outbox_test_producer;
SELECT lives_ok($$ SELECT outbox.stage('s.now', dedupe_key => 'd') $$, 'a producer stages');
SELECT lives_ok($$ SELECT outbox.stage('s.now', dedupe_key => 'd') $$, 'a producer stages a duplicate');
SELECT throws_ok($$ SELECT id FROM outbox.message $$, '42501', NULL, 'a producer reads no message');
RESET ROLE;
SELECT results_eq($$ SELECT count(*) FROM outbox.message WHERE dedupe_key = 'd' $$, $$ VALUES (1::bigint) $$, 'one message came of it');

-- What is looked up is so by its index, though the table was empty when the plan
-- was made, and the statistics say that it still is.
ANALYZE outbox.inbox, outbox.message;
CREATE TEMP VIEW scans AS SELECT sum(seq_scan)::bigint AS n FROM pg_stat_xact_all_tables WHERE relid IN ('outbox.inbox'::regclass, 'outbox.message'::regclass);
SELECT n AS scans FROM scans \gset
SELECT is((SELECT count(*) FILTER (WHERE outbox.accept('source', (i / 2)::text)) FROM generate_series(0, 39) i), 20::bigint, 'accepted once each');
SELECT is((SELECT count(DISTINCT outbox.stage('s.now', dedupe_key => 'looked up ' || i / 2)) FROM generate_series(0, 39) i), 20::bigint, 'staged once each');
SELECT is(n, :scans::bigint, 'accept() and the look-up of a dedupe_key read no table whole') FROM scans;

SELECT * FROM finish();
ROLLBACK;
