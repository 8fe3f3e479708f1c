-- stage(), try_stage() and stage_many(): what they write, refuse and return.
-- Handlers here are pull ones, so that nothing is sent and settled meanwhile.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never

-- The numbers that the library gives columns are the install script's.
SELECT attrelid::regclass, string_agg(attname, ', ' ORDER BY attnum) AS columns
FROM pg_attribute WHERE attrelid IN ('outbox.message'::regclass, 'outbox.delivery'::regclass, 'outbox.receipt'::regclass, 'outbox.handler_secret'::regclass) AND attnum > 0
GROUP BY attrelid ORDER BY attrelid::regclass::text;

SELECT outbox.create_handler('all', '{*}') IS NOT NULL AS created;
SELECT outbox.create_handler('invoices', '{invoice.*}', ordered => true) IS NOT NULL AS created;
SELECT outbox.create_handler('paid', '{invoice.paid,invoice.*,other}') IS NOT NULL AS created;
CREATE VIEW pg_temp.staged AS
SELECT m.topic, m.payload, m.key, m.dedupe_key, m.tenant, m.correlation_id, m.headers, m.min_version AS version, h.name AS handler, regress.state_name(d.state) AS state,
	d.key AS delivery_key, d.min_version AS delivery_version, d.due_at - m.staged_at AS due_in, d.attempts, d.budget_from, d.streak, d.code
FROM outbox.message m LEFT JOIN outbox.delivery d ON d.message_id = m.id LEFT JOIN outbox.handler h ON h.id = d.handler_id
ORDER BY m.id, h.name;

-- Defaults, and everything at once.
SELECT outbox.stage('invoice.paid') IS NOT NULL AS staged;
SELECT outbox.stage('invoice.sent', '{"a": [1, 2.50, null, "ü"]}', 'key', 'dedupe', 'tenant', 'correlation', '{"x-source": "test"}', delay => '1 hour', min_version => 3) IS NOT NULL AS staged;
SELECT * FROM staged \gx
-- The message is as new as the clock, not as the transaction, and so is the delivery.
BEGIN;
SELECT pg_sleep(0.01);
SELECT outbox.stage('clock') AS id \gset
SELECT m.staged_at > now() AS after_begin, d.due_at = m.staged_at AS due_at_once, m.staged_at <= clock_timestamp() AS not_ahead
FROM outbox.message m JOIN outbox.delivery d ON d.message_id = m.id WHERE m.id = :'id';
COMMIT;

-- Payloads: any JSON but SQL NULL.
SELECT outbox.stage('p', payload) IS NOT NULL AS staged FROM (VALUES ('null'::jsonb), ('0'), ('"x"'), ('[]'), ('true'), (jsonb_build_object('n', 1)), (to_jsonb('t'::text)), ('1'::text::jsonb)) v (payload);
SELECT payload FROM outbox.message WHERE topic = 'p' ORDER BY id;
SELECT regress.error_of('SELECT outbox.stage(''p'', NULL)');
SET outbox.max_payload_size = 100;
SELECT p AS text_bytes, regress.error_of(format('SELECT outbox.stage(''p'', %L)', to_jsonb(repeat('x', p - 2)))) FROM unnest(ARRAY[99, 100, 101, 1000]) p;
-- The limit is on the JSON text: escapes and large numbers count as written.
SELECT octet_length(p::text) AS text_bytes, regress.error_of(format('SELECT outbox.stage(''p'', %L)', p))
FROM (VALUES ('1e97'::jsonb), ('1e99'), ('1e100'), ('1e100000'), (to_jsonb(repeat(E'\n', 49))), (to_jsonb(repeat(E'\n', 50))), (to_jsonb(repeat(E'\x01', 16))), (to_jsonb(repeat(E'\x01', 17))),
	(to_jsonb(array_fill(true, ARRAY[16]))), (to_jsonb(array_fill(true, ARRAY[17]))), (to_jsonb(array_fill(false, ARRAY[14]))), (to_jsonb(array_fill(false, ARRAY[15]))),
	((SELECT jsonb_object_agg('k' || i, i) FROM generate_series(0, 9) i)), ((SELECT jsonb_object_agg('k' || i, jsonb_build_array(i, '{}'::jsonb)) FROM generate_series(0, 8) i)),
	((SELECT jsonb_agg(i) FROM generate_series(1, 30) i)), ((SELECT jsonb_agg(i) FROM generate_series(1, 20) i)), ((SELECT jsonb_agg('{}'::jsonb) FROM generate_series(1, 25))), ((SELECT jsonb_agg('[]'::jsonb) FROM generate_series(1, 26)))) v (p);
-- The same for every text of 1 to 300 bytes that a mixed value can have.
SELECT count(*) AS wrong FROM (
	SELECT octet_length(p::text) > 100 AS too_long, (t).status = 'invalid' AS refused
	FROM generate_series(1, 300) i, LATERAL (SELECT jsonb_build_object('a' || i % 7, repeat(E'x"\n', i % 30), 'b', i::numeric * 1.5, 'c', array_fill(i % 2 = 0, ARRAY[i % 9]), 'd', jsonb_build_array(NULL, '{}', repeat('ü', i % 11))) AS p) x,
		LATERAL outbox.try_stage('p', p) t
) r WHERE too_long <> refused;
RESET outbox.max_payload_size;

-- Topics.
SELECT left(t, 12) AS t, regress.error_of(format('SELECT outbox.stage(%L)', t))
FROM unnest(ARRAY[NULL, '', 'a', 'a.b-c_d.0', '.', 'a.', '.a', 'a..b', 'A', 'a b', 'a.*', '*', 'é', E'a\n', 'a/b', repeat('t', 255)]) t;
SELECT regress.error_of(format('SELECT outbox.stage(%L)', repeat('t', 256)));

-- Key, dedupe_key, tenant, correlation_id.
SELECT a, regress.error_of(format('SELECT outbox.stage(''a'', %s => '''')', a)) AS empty, regress.error_of(format('SELECT outbox.stage(''a'', %s => repeat(''é'', 128))', a)) AS too_long,
	regress.error_of(format('SELECT outbox.stage(''a'', %s => repeat(''x'', 255))', a)) AS longest, regress.error_of(format('SELECT outbox.stage(''a'', %s => E''any\n"thing" ü'')', a)) AS any
FROM unnest(ARRAY['key', 'dedupe_key', 'tenant', 'correlation_id']) a \gx

-- Headers.
SELECT h, regress.error_of(format('SELECT outbox.stage(''a'', headers => %L)', h))
FROM unnest(ARRAY['{"x-a": "b", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"}', '{}', 'null', '[]', '{"x": 1}', '{"x": "a\nb"}', '{"x": ""}', '{"bad name": "x"}',
	'{"content-type": "x"}', '{"Host": "x"}', '{"CONTENT-LENGTH": "1"}', '{"webhook-id": "x"}', '{"outbox-attempt": "x"}', '{"idempotency-key": "x"}', '{"authorization": "x"}', '{"ce-id": "x"}', '{"x": "1", "X": "2"}']) h;

-- Times.
SELECT a, regress.error_of('SELECT outbox.stage(''a'', ' || a || ')')
FROM unnest(ARRAY['deliver_at => ''infinity''', 'deliver_at => ''-infinity''', 'deliver_at => clock_timestamp() + interval ''101 years''', 'deliver_at => clock_timestamp() + interval ''99 years''', 'deliver_at => now(), delay => ''1 s''',
	'delay => ''-1 s''', 'delay => ''1 day -25 hours''', 'delay => ''101 years''', 'delay => ''178000000 years''', 'delay => ''-178000000 years''', 'delay => ''2147483647 days''', 'delay => ''-2147483647 days''', 'delay => ''0''', 'delay => ''1 month''']) a;
CALL regress.empty();
SELECT outbox.stage('a', deliver_at => '2001-01-01') IS NOT NULL AS staged;
SELECT outbox.stage('a', deliver_at => '2100-01-01 00:00+00') IS NOT NULL AS staged;
SELECT outbox.stage('a', delay => '1 day 2 hours') IS NOT NULL AS staged;
SELECT CASE WHEN d.due_at = m.staged_at THEN 'now' WHEN d.due_at = m.staged_at + interval '1 day 2 hours' THEN 'later' ELSE (d.due_at AT TIME ZONE 'UTC')::text END AS due
FROM outbox.message m JOIN outbox.delivery d ON d.message_id = m.id ORDER BY m.id;
SELECT regress.error_of(format('SELECT outbox.stage(''a'', min_version => %s)', v)) FROM unnest(ARRAY[0, -1, 1]) v;

-- Ids: version 7, strictly increasing, as old as the message.
CALL regress.empty();
SELECT count(*) FROM (SELECT outbox.stage('a') FROM generate_series(1, 5000)) s;
SELECT count(*), count(DISTINCT id), bool_and(id::text ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$') AS version_7,
	bool_and(id >= outbox_internal.id_floor(staged_at)) AS at_or_after_floor, bool_and(id < outbox_internal.id_floor(staged_at + interval '1 day')) AS near
FROM outbox.message;
-- In stage order: the row's place in the table is its place in time.
SELECT count(*) AS out_of_order FROM (SELECT id, lag(id) OVER (ORDER BY ctid) AS previous FROM outbox.message) o WHERE id <= previous;
-- Each has 62 bits of its own.
SELECT count(DISTINCT substr(id::text, 20)) FROM outbox.message;
SELECT outbox_internal.id_floor(t) FROM (VALUES ('1969-07-20'::timestamptz), ('1970-01-01 00:00:00+00'), ('2022-02-22 19:22:22+00'), ('2022-02-22 19:22:22.0005+00'), ('infinity'), ('-infinity')) v (t);
-- An id that was inserted by hand and is no version 7, or years ahead, is not followed.
SELECT id AS last_id FROM outbox.message ORDER BY id DESC LIMIT 1 \gset
INSERT INTO outbox.message (id, staged_at, topic, payload) VALUES ('ffffffff-ffff-4fff-bfff-ffffffffffff', now(), 'a', '1'), (outbox_internal.id_floor(now() + interval '10 years'), now(), 'a', '1');
\c -
SET client_min_messages = error;
SELECT outbox.stage('a') > :'last_id' AS above, outbox.stage('a') < outbox_internal.id_floor(now() + interval '1 day') AS near;
DELETE FROM outbox.message WHERE id > outbox_internal.id_floor(now() + interval '1 day');

SET client_min_messages = warning;

-- Routing: exact, prefix, everything; each handler once; as handlers change.
CALL regress.empty();
CREATE FUNCTION pg_temp.takers(t text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	staged uuid := outbox.stage(t);
BEGIN
	RETURN (SELECT string_agg(h.name, ' ' ORDER BY h.name) FROM outbox.delivery d JOIN outbox.handler h ON h.id = d.handler_id WHERE d.message_id = staged);
END $$;
SELECT t, pg_temp.takers(t) FROM unnest(ARRAY['invoice', 'invoice.paid', 'invoice.sent', 'invoice.sent.twice', 'invoices', 'other', 'other.x', 'x']) t;
SELECT outbox.create_handler('new', '{x,y.*}') IS NOT NULL AS created;
SELECT pg_temp.takers('x');
SELECT outbox.alter_handler('new', topics => '{y.*}');
SELECT pg_temp.takers('x'), pg_temp.takers('y.z');
SELECT outbox.pause_handler('new');
SELECT pg_temp.takers('y.z');
SELECT outbox.drop_handler('new');
SELECT pg_temp.takers('y.z');
-- Also within a transaction, its savepoints and its end.
BEGIN;
SELECT outbox.create_handler('mine', '{x}') IS NOT NULL AS created;
SELECT pg_temp.takers('x');
SAVEPOINT s;
SELECT outbox.drop_handler('mine');
SELECT pg_temp.takers('x');
ROLLBACK TO s;
SELECT pg_temp.takers('x');
ROLLBACK;
SELECT pg_temp.takers('x');
-- And when rows are changed by hand.
UPDATE outbox.handler SET topics = '{z}' WHERE name = 'paid';
SELECT pg_temp.takers('z'), pg_temp.takers('other');
UPDATE outbox.handler SET topics = '{invoice.paid,invoice.*,other}' WHERE name = 'paid';
-- Routing by hash agrees with matching one by one, with many handlers and topics.
SELECT count(outbox.create_handler('h' || i, ARRAY[CASE i % 4 WHEN 0 THEN format('t%s.*', i % 20) WHEN 1 THEN format('t%s.u%s', i % 20, i % 7) WHEN 2 THEN format('t%s.u%s.*', i % 20, i % 7) ELSE format('t%s', i % 20) END,
	format('t%s.u%s.v%s', i % 3, i % 5, i % 2)])) FROM generate_series(1, 200) i;
CALL regress.empty();
SELECT count(outbox.stage(format('t%s', i % 25) || CASE WHEN i % 3 > 0 THEN format('.u%s', i % 9) ELSE '' END || CASE WHEN i % 3 > 1 THEN format('.v%s', i % 4) ELSE '' END)) FROM generate_series(1, 2000) i;
SELECT count(*) > 3000 AS many FROM outbox.delivery;
SELECT count(*) AS differing FROM (
	SELECT m.id, h.id FROM outbox.message m JOIN outbox.handler h ON h.dropped_at IS NULL AND EXISTS (
		SELECT FROM unnest(h.topics) p WHERE p = '*' OR p = m.topic OR (right(p, 2) = '.*' AND starts_with(m.topic, left(p, -1))))
	EXCEPT ALL SELECT message_id, handler_id FROM outbox.delivery) x;
SELECT count(*) AS superfluous FROM (
	SELECT message_id, handler_id FROM outbox.delivery EXCEPT ALL
	SELECT m.id, h.id FROM outbox.message m JOIN outbox.handler h ON h.dropped_at IS NULL AND EXISTS (
		SELECT FROM unnest(h.topics) p WHERE p = '*' OR p = m.topic OR (right(p, 2) = '.*' AND starts_with(m.topic, left(p, -1))))) x;
-- More topics than are remembered.
SELECT count(outbox.stage('many.' || i)) FROM generate_series(1, 3000) i;
SELECT count(DISTINCT d.message_id) FROM outbox.delivery d JOIN outbox.message m ON m.id = d.message_id WHERE m.topic LIKE 'many.%';
SELECT count(*) FROM (SELECT outbox.drop_handler(handler) FROM outbox.handlers WHERE handler ~ '^h\d+$') d;

-- A message nobody takes.
SELECT outbox.drop_handler('all');
CALL regress.empty();
SELECT outbox.stage('nobody', key => 'k') IS NOT NULL AS staged;
SET outbox.unrouted = 'dead';
SELECT outbox.stage('nobody', key => 'k', delay => '1 day') IS NOT NULL AS staged;
SELECT m.topic, d.handler_id, regress.state_name(d.state) AS state, d.code, d.error, d.settled_at = m.staged_at AS settled, d.attempts, d.key FROM outbox.message m LEFT JOIN outbox.receipt d ON d.message_id = m.id ORDER BY m.id;
SELECT count(*) FROM outbox.delivery;
SET outbox.unrouted = 'error';
SELECT regress.error_of('SELECT outbox.stage(''nobody'')');
SELECT * FROM outbox.try_stage('nobody');
SELECT outbox.stage('invoice.paid') IS NOT NULL AS staged;
RESET outbox.unrouted;

-- Deduplication: within a tenant, over all topics.
CALL regress.empty();
SELECT outbox.stage('invoice.paid', '1', dedupe_key => 'd') AS first \gset
SELECT outbox.stage('invoice.paid', '2', dedupe_key => 'd') = :'first' AS same;
SELECT outbox.stage('invoice.paid', '3', dedupe_key => 'd', tenant => 't') <> :'first' AS other;
SELECT outbox.stage('invoice.paid', '4', dedupe_key => 'd', tenant => 't') <> :'first' AS other;
SELECT regress.error_of('SELECT outbox.stage(''invoice.sent'', dedupe_key => ''d'')');
SELECT payload, tenant, (SELECT count(*) FROM outbox.delivery d WHERE d.message_id = m.id) AS deliveries FROM outbox.message m ORDER BY id;
-- In one statement, in one transaction, after a savepoint's rollback.
SELECT count(DISTINCT outbox.stage('invoice.paid', dedupe_key => 'once')) FROM generate_series(1, 3);
BEGIN;
SAVEPOINT s;
SELECT outbox.stage('invoice.paid', '5', dedupe_key => 's') AS undone \gset
ROLLBACK TO s;
SELECT outbox.stage('invoice.paid', '6', dedupe_key => 's') <> :'undone' AS another;
COMMIT;
SELECT payload FROM outbox.message WHERE dedupe_key = 's';
-- Free again once the message has gone.
DELETE FROM outbox.message WHERE dedupe_key = 's';
SELECT outbox.stage('invoice.paid', '7', dedupe_key => 's') IS NOT NULL AS staged;

-- try_stage.
CALL regress.empty();
SELECT (outbox.try_stage('invoice.paid', dedupe_key => 'd')).status;
SELECT t.id = m.id AS same, t.status, t.detail FROM outbox.message m, outbox.try_stage('invoice.paid', dedupe_key => 'd') t;
SELECT t.id = m.id AS same, t.status, t.detail FROM outbox.message m, outbox.try_stage('invoice.sent', dedupe_key => 'd') t;
SELECT t.* FROM (VALUES ('Bad', '{}'::jsonb, NULL, NULL::jsonb, NULL::interval), (NULL, '{}', NULL, NULL, NULL), ('a', NULL, NULL, NULL, NULL), ('a', '{}', '', NULL, NULL), ('a', '{}', NULL, '[]', NULL), ('a', '{}', NULL, '{"host": "x"}', NULL), ('a', '{}', NULL, NULL, '-1 s')) v (topic, payload, key, headers, delay),
	LATERAL outbox.try_stage(v.topic, v.payload, v.key, headers => v.headers, delay => v.delay) t;
SELECT count(*) FROM outbox.message;

-- stage_many.
CALL regress.empty();
CREATE TEMP TABLE many (id uuid, n serial);
INSERT INTO many SELECT * FROM outbox.stage_many('invoice.paid', ARRAY['1', '"two"', 'null']::jsonb[], ARRAY['k', NULL, 'l'], ARRAY[NULL, 'd', 'e'], 'tenant', 'correlation', '{"x-a": "b"}', delay => '1 min', min_version => 2);
SELECT n, m.payload, m.key, m.dedupe_key, m.tenant, m.correlation_id, m.headers, m.min_version, count(d) AS deliveries, min(d.due_at - m.staged_at) AS due_in, array_agg(d.key ORDER BY d.handler_id) AS delivery_keys
FROM many JOIN outbox.message m USING (id) JOIN outbox.delivery d ON d.message_id = m.id GROUP BY n, m.id ORDER BY n;
-- Duplicates in the array and in the table.
INSERT INTO many SELECT * FROM outbox.stage_many('invoice.paid', ARRAY['3', '4', '5', '6', '7']::jsonb[], dedupe_keys => ARRAY['f', 'd', 'f', NULL, 'e'], tenant => 'tenant');
SELECT n, m.payload FROM many JOIN outbox.message m USING (id) WHERE n > 3 ORDER BY n;
SELECT payload, dedupe_key FROM outbox.message ORDER BY id;
SELECT count(*) FROM outbox.stage_many('invoice.paid', '{}');
-- What array_agg() makes of no rows is no message either.
SELECT count(*) FROM outbox.stage_many('invoice.paid', NULL, keys => NULL);
SELECT regress.error_of('SELECT outbox.stage_many(''invoice.paid'', NULL, ''{k}'')');
CREATE TABLE public.item (id int, label text);
CREATE FUNCTION public.announce_items() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM outbox.stage_many('item.added', array_agg(to_jsonb(n) ORDER BY n.id), keys => array_agg(n.id::text ORDER BY n.id)) FROM new_items n;
	RETURN NULL;
END $$;
CREATE TRIGGER announce AFTER INSERT ON public.item REFERENCING NEW TABLE AS new_items FOR EACH STATEMENT EXECUTE FUNCTION public.announce_items();
INSERT INTO public.item SELECT WHERE false;
INSERT INTO public.item VALUES (1, 'one'), (2, 'two');
SELECT topic, key, payload FROM outbox.message WHERE topic = 'item.added' ORDER BY id;
DELETE FROM outbox.delivery WHERE message_id IN (SELECT id FROM outbox.message WHERE topic = 'item.added');
DELETE FROM outbox.message WHERE topic = 'item.added';
DROP TABLE public.item;
SELECT count(*), count(DISTINCT s), bool_and(s > l) AS increasing FROM (SELECT s, lag(s, 1, '00000000-0000-0000-0000-000000000000') OVER (ORDER BY n) AS l FROM outbox.stage_many('invoice.paid', array_fill('{"a": 1}'::jsonb, ARRAY[30000])) WITH ORDINALITY m (s, n)) x;
SELECT count(*) FROM outbox.delivery;
SELECT outbox.stage_many('invoice.paid', '{1,2}') IS NOT NULL AS ids LIMIT 1;
CALL regress.empty();
SELECT regress.error_of('SELECT outbox.stage_many(' || a || ')') FROM unnest(ARRAY['''a'', NULL', '''a'', ''{1,NULL}''', '''a'', ''{1,2}'', ''{k}''', '''a'', ''{1}'', ''{k,l}''', '''a'', ''{1,2}'', NULL, ''{}''', '''a'', ''{{1},{2}}''', '''a'', ''{1}'', ''{{k}}''',
	'''A'', ''{1}''', '''a'', ''{1,2}'', ''{k,""}''', '''a'', ''{1,2}'', NULL, ARRAY[''d'', '''']', '''a'', ''{1}'', delay => ''-1 s''', 'NULL, ''{1}''']) a;
SELECT outbox.stage('invoice.sent', dedupe_key => 'd') IS NOT NULL AS staged;
SELECT regress.error_of('SELECT outbox.stage_many(''invoice.paid'', ''{1,2}'', dedupe_keys => ''{x,d}'')');
SELECT topic, count(*) FROM outbox.message GROUP BY topic;

-- Where it may be called: functions, triggers, savepoints, any isolation level.
CALL regress.empty();
CREATE TABLE public.business (id int PRIMARY KEY);
CREATE FUNCTION public.announce() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM outbox.stage('invoice.paid', to_jsonb(new)); RETURN new; END $$;
CREATE TRIGGER announce AFTER INSERT ON public.business FOR EACH ROW EXECUTE FUNCTION public.announce();
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO public.business VALUES (1), (2);
SAVEPOINT s;
INSERT INTO public.business VALUES (3);
ROLLBACK TO s;
DO $$ BEGIN PERFORM outbox.stage('invoice.paid', '"do"'); BEGIN PERFORM outbox.stage('invoice.paid', '"undone"'); RAISE 'x'; EXCEPTION WHEN OTHERS THEN NULL; END; END $$;
COMMIT;
BEGIN;
INSERT INTO public.business VALUES (4);
ROLLBACK;
INSERT INTO public.business VALUES (5);
SELECT payload, count(d) AS deliveries FROM outbox.message m JOIN outbox.delivery d ON d.message_id = m.id GROUP BY m.id ORDER BY m.id;
-- A transaction that wrote sees what it staged, also in the command that follows in a function.
DO $$ DECLARE staged uuid := outbox.stage('invoice.paid', '"seen"'); BEGIN ASSERT EXISTS (SELECT FROM outbox.message WHERE id = staged) AND (SELECT count(*) = 2 FROM outbox.delivery WHERE message_id = staged); END $$;
-- Days and months of a delay are counted in the session's time zone.
SELECT outbox.create_handler('zoned', '{zoned.*}') > 0 AS created;
SET TimeZone = 'Europe/Berlin';
SELECT count(outbox.stage('zoned.' || m, delay => make_interval(months => m, days => 1))) FROM generate_series(1, 12) m;
SELECT count(*) FROM outbox.message m JOIN outbox.delivery d ON d.message_id = m.id WHERE m.topic LIKE 'zoned.%'
	AND d.due_at = m.staged_at + make_interval(months => split_part(m.topic, '.', 2)::int, days => 1);
RESET TimeZone;
BEGIN READ ONLY;
SELECT regress.error_of(c) FROM unnest(ARRAY['SELECT outbox.stage(''a'')', 'SELECT outbox.try_stage(''a'')', 'SELECT outbox.stage_many(''a'', ''{1}'')']) c;
COMMIT;
SELECT proname, provolatile, proparallel FROM pg_proc WHERE oid IN ('outbox.stage'::regproc, 'outbox.try_stage'::regproc, 'outbox.stage_many'::regproc) ORDER BY 1;
-- Checks that somebody put on the tables are kept, and triggers that the owner wants to fire whatever happens.
CREATE TABLE public.audit (n int, what text);
CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.audit VALUES (1, format('%s %s %s', tg_when, tg_level, tg_table_name)); RETURN new; END $$;
CREATE TRIGGER a BEFORE INSERT ON outbox.message FOR EACH ROW EXECUTE FUNCTION public.audit();
CREATE TRIGGER b AFTER INSERT ON outbox.message FOR EACH ROW EXECUTE FUNCTION public.audit();
CREATE TRIGGER c BEFORE INSERT ON outbox.message FOR EACH STATEMENT EXECUTE FUNCTION public.audit();
CREATE TRIGGER d AFTER INSERT ON outbox.message FOR EACH STATEMENT EXECUTE FUNCTION public.audit();
CREATE TRIGGER e AFTER INSERT ON outbox.delivery FOR EACH ROW EXECUTE FUNCTION public.audit();
SELECT outbox.stage('invoice.paid') IS NOT NULL AS staged;
SELECT outbox.stage('invoice.paid', dedupe_key => 'trigger') IS NOT NULL AS staged;
SELECT what, sum(n) FROM public.audit GROUP BY what ORDER BY what;
ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER a, ENABLE ALWAYS TRIGGER b, ENABLE ALWAYS TRIGGER c, ENABLE ALWAYS TRIGGER d;
ALTER TABLE outbox.delivery ENABLE ALWAYS TRIGGER e;
SELECT outbox.stage('invoice.paid') IS NOT NULL AS staged;
SELECT what, sum(n) FROM public.audit GROUP BY what ORDER BY what;
DROP TRIGGER a ON outbox.message; DROP TRIGGER b ON outbox.message; DROP TRIGGER c ON outbox.message; DROP TRIGGER d ON outbox.message; DROP TRIGGER e ON outbox.delivery;
ALTER TABLE outbox.message ADD CONSTRAINT no_x CHECK (topic <> 'x');
SELECT regress.error_of('SELECT outbox.stage(''x'')');
ALTER TABLE outbox.message DROP CONSTRAINT no_x;

-- A role with EXECUTE on stage() can stage, and nothing else.
CREATE ROLE regress_outbox_producer;
GRANT EXECUTE ON FUNCTION outbox.stage TO regress_outbox_producer;
SET ROLE regress_outbox_producer;
SELECT outbox.stage('invoice.paid', dedupe_key => 'p') = outbox.stage('invoice.paid', dedupe_key => 'p') AS same;
SELECT regress.error_of(c) FROM unnest(ARRAY['SELECT outbox.try_stage(''a'')', 'SELECT outbox.stage_many(''a'', ''{1}'')', 'SELECT * FROM outbox.message', 'INSERT INTO outbox.message (id) VALUES (NULL)', 'DELETE FROM outbox.delivery',
	'SELECT * FROM outbox.handlers', 'SELECT outbox_internal.id_floor(now())', 'SELECT outbox.create_handler(''x'', ''{x}'')', 'SELECT nextval(''outbox.handler_id'')', 'CREATE TABLE outbox.x ()']) c;
-- Whatever its search_path and operators are.
RESET ROLE;
CREATE SCHEMA regress_outbox_shadow AUTHORIZATION regress_outbox_producer;
SET ROLE regress_outbox_producer;
CREATE FUNCTION regress_outbox_shadow.bad(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'the shadow was called'; END $$;
CREATE OPERATOR regress_outbox_shadow.= (LEFTARG = text, RIGHTARG = text, FUNCTION = regress_outbox_shadow.bad);
CREATE TABLE regress_outbox_shadow.message (id int);
SET search_path = regress_outbox_shadow, pg_catalog;
SELECT regress.error_of('SELECT ''a''::text = ''b''::text');
SELECT outbox.stage('invoice.paid', dedupe_key => 'q') IS NOT DISTINCT FROM outbox.stage('invoice.paid', dedupe_key => 'q') AS same;
RESET search_path;
RESET ROLE;
DROP SCHEMA regress_outbox_shadow CASCADE;
REVOKE ALL ON FUNCTION outbox.stage FROM regress_outbox_producer;
DROP ROLE regress_outbox_producer;

-- Dropped and created again in one session, nothing is left over.  (What it
-- says of what is outstanding depends on preload.)
SET client_min_messages = error;
DROP EXTENSION outbox;
SET client_min_messages = warning;
SELECT regress.error_of('SELECT outbox.stage(''a'')');
CREATE EXTENSION outbox;
SELECT outbox.create_handler('again', '{*}') IS NOT NULL AS created;
SELECT outbox.stage('a', dedupe_key => 'd') = outbox.stage('a', dedupe_key => 'd') AS same;
SELECT count(*) FROM outbox.delivery;
SELECT outbox.drop_handler('again');

DROP TABLE public.business, public.audit;
DROP FUNCTION public.announce(), public.audit();
CALL regress.empty();
