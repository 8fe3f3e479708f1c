-- Producers and handlers: signatures that clients rely on, rights, and the
-- state every staged delivery begins in.
BEGIN;
SELECT * FROM no_plan();

SELECT function_returns('outbox', 'stage', ARRAY['text', 'jsonb', 'text', 'text', 'text', 'text', 'jsonb', 'timestamp with time zone', 'interval', 'integer'], 'uuid');
SELECT function_returns('outbox', 'try_stage', ARRAY['text', 'jsonb', 'text', 'text', 'text', 'text', 'jsonb', 'timestamp with time zone', 'interval', 'integer'], 'record');
SELECT function_returns('outbox', 'stage_many', ARRAY['text', 'jsonb[]', 'text[]', 'text[]', 'text', 'text', 'jsonb', 'timestamp with time zone', 'interval', 'integer'], 'setof uuid');
SELECT is(proargnames, names, proname || ' names its arguments')
FROM (VALUES
	('outbox.stage', '{topic,payload,key,dedupe_key,tenant,correlation_id,headers,deliver_at,delay,min_version}'::text[]),
	('outbox.try_stage', '{topic,payload,key,dedupe_key,tenant,correlation_id,headers,deliver_at,delay,min_version,id,status,detail}'),
	('outbox.stage_many', '{topic,payloads,keys,dedupe_keys,tenant,correlation_id,headers,deliver_at,delay,min_version}'),
	('outbox.drop_handler', '{name}'), ('outbox.pause_handler', '{name,reason}'), ('outbox.resume_handler', '{name}')) v (f, names)
	JOIN pg_proc p ON p.oid = v.f::regproc;
SELECT is((pronargs - pronargdefaults)::int, required, proname || ' requires as few arguments as it can')
FROM (VALUES ('outbox.stage', 1), ('outbox.try_stage', 1), ('outbox.stage_many', 2), ('outbox.create_handler', 2), ('outbox.alter_handler', 1),
	('outbox.drop_handler', 1), ('outbox.pause_handler', 1), ('outbox.resume_handler', 1)) v (f, required) JOIN pg_proc p ON p.oid = v.f::regproc;
SELECT is(proparallel::text, 'u', proname || ' is parallel unsafe') FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname ~ '^((try_)?stage|[a-z]+_handler$)';

-- Every option of a handler can be set at creation, changed and reset, and is
-- stored and shown; what is decided once is not.
SELECT set_eq($$ SELECT unnest(outbox._options()) UNION SELECT unnest('{name,topics,url,ordered}'::text[]) $$,
	$$ SELECT unnest(proargnames) FROM pg_proc WHERE oid = 'outbox.create_handler'::regproc $$, 'create_handler takes every option');
SELECT set_eq($$ SELECT unnest(outbox._options()) UNION SELECT unnest('{name,new_name,topics,url,reset}'::text[]) $$,
	$$ SELECT unnest(proargnames) FROM pg_proc WHERE oid = 'outbox.alter_handler'::regproc $$, 'alter_handler takes every option but ordered');
SELECT set_eq($$ SELECT unnest(outbox._options()) EXCEPT SELECT unnest('{secret,authorization}'::text[]) UNION SELECT unnest('{id,name,topics,url,ordered,creator,creator_oid,created_at,dropped_at,home}'::text[]) $$,
	$$ SELECT attname::text FROM pg_attribute WHERE attrelid = 'outbox.handler'::regclass AND attnum > 0 AND NOT attisdropped $$, 'every option has a column');
SELECT is_empty($$ SELECT attname::text FROM pg_attribute WHERE attrelid = 'outbox.handler'::regclass AND attnum > 0 AND NOT attisdropped AND attname NOT IN ('headers', 'dropped_at', 'home', 'creator_oid')
	EXCEPT SELECT attname::text FROM pg_attribute WHERE attrelid = 'outbox.handlers'::regclass $$, 'the view shows every column but headers and those that are internal');
SELECT is_empty($$ SELECT unnest(outbox._push_options()) EXCEPT SELECT unnest(outbox._options()) $$, 'push options are options');

-- Each option, one by one, ends up in its column, whatever its place in the argument list.
CREATE FUNCTION pg_temp.stored(option text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	EXECUTE format('SELECT outbox.create_handler(''probe'', ''{t}'', ''https://example.com/'', %I => %L)', option, value);
	EXECUTE format('SELECT %I FROM outbox.handler WHERE name = ''probe'' AND dropped_at IS NULL', option) INTO result;
	PERFORM outbox.drop_handler('probe');
	RETURN result;
END $$;
SELECT is(pg_temp.stored(option, value), value, option || ' is stored')
FROM (VALUES ('timeout', '00:00:07'), ('connect_timeout', '00:00:03'), ('concurrency', '3'), ('rate_limit', '2.5'), ('rate_burst', '4'), ('retry_after_max', '00:10:00'), ('format', 'envelope'),
	('headers', '{"x-a": "b"}'), ('batch_size', '5'), ('batch_wait', '00:00:00.02'), ('http_version', '2'), ('unix_socket', '/s'), ('tls_ca_file', '/ca'), ('tls_certificate_file', '/c'),
	('breaker_threshold', '9'), ('breaker_wait', '00:00:06'), ('breaker_wait_max', '00:00:08'), ('disable_after', '2 days'), ('max_attempts', '6'), ('backoff', '{00:00:01,00:00:02}'),
	('backoff_base', '00:00:04'), ('backoff_max', '00:00:09'), ('jitter', '0.3'), ('rules', '{"404": {"action": "fail"}}'), ('ordered', 'true')) v (option, value);

-- The state a delivery begins in.
SELECT lives_ok($$ SELECT outbox.create_handler('pull', '{s.*}', ordered => true), outbox.create_handler('push', '{s.*}', 'http://127.0.0.1:9/') $$, 'handlers');
SELECT lives_ok($$ SELECT outbox.stage('s.now', key => 'k'), outbox.stage('s.later', key => 'k', delay => '1 hour', min_version => 2) $$, 'messages');
SELECT results_eq($$ SELECT m.topic, h.name, d.state, d.attempts, d.budget_from, d.streak, d.settled_at IS NULL AND d.code IS NULL AND d.error IS NULL AND d.http_status IS NULL, d.key, d.min_version
		FROM outbox.message m JOIN outbox.delivery d ON d.message_id = m.id JOIN outbox.handler h ON h.id = d.handler_id ORDER BY m.id, h.name $$,
	$$ VALUES ('s.now', 'pull', 0::smallint, 0, 0, 0::smallint, true, 'k', NULL::int), ('s.now', 'push', 0::smallint, 0, 0, 0::smallint, true, NULL, NULL),
		('s.later', 'pull', 0::smallint, 0, 0, 0::smallint, true, 'k', 2), ('s.later', 'push', 0::smallint, 0, 0, 0::smallint, true, NULL, NULL) $$,
	'a delivery begins pending and untried; key where order counts, version where consumers have one');

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

SELECT * FROM finish();
ROLLBACK;
