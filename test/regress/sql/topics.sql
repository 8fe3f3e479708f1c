-- Topics that are registered: what they may be, and what their messages are held to.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never
CREATE ROLE regress_outbox_catalog;
CREATE ROLE regress_outbox_other;
CREATE ROLE regress_outbox_producer;
CREATE SCHEMA regress_topics;
GRANT USAGE ON SCHEMA regress_topics TO PUBLIC;
GRANT CREATE ON SCHEMA regress_topics TO regress_outbox_catalog, regress_outbox_other;
GRANT EXECUTE ON FUNCTION outbox.create_topic, outbox.alter_topic, outbox.ensure_topic TO regress_outbox_catalog;
SELECT outbox.grant_producer('regress_outbox_producer');

SET ROLE regress_outbox_catalog;
CREATE FUNCTION regress_topics.has_total(payload jsonb) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$ SELECT (payload ->> 'total')::numeric >= 0 $$;
CREATE FUNCTION regress_topics.says_why(payload jsonb) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
BEGIN
	CASE payload ->> 'do'
		WHEN 'raise' THEN RAISE EXCEPTION 'do not' USING DETAIL = 'for a reason';
		WHEN 'cast' THEN RETURN (payload ->> 'n')::int > 0;
		WHEN 'assert' THEN ASSERT false, 'asserted';
		WHEN 'broken' THEN RETURN (SELECT n > 0 FROM no_such_table);
		WHEN 'null' THEN RETURN NULL;
		WHEN 'write' THEN CREATE TABLE regress_topics.mine (); RETURN true;
		WHEN 'role' THEN RETURN set_config('role', session_user::text, false) IS NOT NULL;
		WHEN 'temp' THEN CREATE TEMP TABLE mine (); RETURN true;
		WHEN 'set' THEN RETURN set_config('regress.left', 'behind', false) = 'behind';
		WHEN 'who' THEN RETURN current_user = 'regress_outbox_catalog' AND current_setting('search_path') = 'pg_catalog, pg_temp'
			AND current_setting('standard_conforming_strings') = 'on' AND current_setting('transform_null_equals') = 'off';
		WHEN 'kill' THEN RAISE EXCEPTION 'lost' USING ERRCODE = 'deadlock_detected';
		ELSE RETURN payload ->> 'do' = 'nothing';
	END CASE;
END $$;
CREATE FUNCTION regress_topics.volatile(payload jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION regress_topics.no_boolean(payload jsonb) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION regress_topics.of_text(payload text) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION regress_topics.set_of(payload jsonb) RETURNS SETOF boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
SET ROLE regress_outbox_other;
CREATE FUNCTION regress_topics.others(payload jsonb) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
RESET ROLE;
CREATE FUNCTION regress_topics.superusers(payload jsonb) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';

-- What it is.
SET ROLE regress_outbox_catalog;
SELECT outbox.create_topic('billing.invoice.paid', description => 'An invoice was paid. Owner: team billing', require => '{tenant,key}', max_payload => 1000, check_function => 'regress_topics.has_total(jsonb)');
SELECT outbox.create_topic('billing.*', description => 'What the billing service says');
RESET ROLE;
SELECT outbox.create_handler('crm', '{billing.invoice.*}') IS NOT NULL AS created, outbox.create_handler('all', '{*}') IS NOT NULL AS created, outbox.create_handler('exact', '{billing.invoice.paid,x}') IS NOT NULL AS created, outbox.create_handler('none', '{billing.invoice.paid.late,billingx.a}') IS NOT NULL AS created;
SELECT topic, description, require, max_payload, check_function, schema, handlers, creator FROM outbox.topics ORDER BY topic;
SELECT outbox.drop_handler(handler) FROM outbox.handlers;
SELECT outbox.create_topic('*', description => 'Everything');
SELECT topic, handlers FROM outbox.topics ORDER BY topic;
SELECT outbox.drop_topic('*');

-- A producer sees the catalogue, and what it did wrong.
SET ROLE regress_outbox_producer;
SELECT topic, description FROM outbox.topics ORDER BY topic;
SELECT outbox.stage('billing.invoice.paid', '{"total": 1}', key => 'k', tenant => 't') IS NOT NULL AS staged;
SELECT outbox.stage('billing.invoice.sent', '{}') IS NOT NULL AS staged, outbox.stage('other.topic') IS NOT NULL AS staged;
SELECT c, regress.error_of(format('SELECT outbox.stage(''billing.invoice.paid'', %s)', c)) FROM unnest(ARRAY['''{"total": 1}''', '''{"total": 1}'', tenant => ''t''', '''{"total": 1}'', key => ''k''', '''{"total": -1}'', key => ''k'', tenant => ''t''', '''{}'', key => ''k'', tenant => ''t''',
	'''{"total": "x"}'', key => ''k'', tenant => ''t''', 'jsonb_build_object(''total'', 1, ''more'', repeat(''x'', 1000)), key => ''k'', tenant => ''t''', 'NULL', '''{"total": 2}'', key => ''k'', tenant => ''t''']) c;
SELECT status, detail FROM outbox.try_stage('billing.invoice.paid', '{"total": 1}');
SELECT status, detail FROM outbox.try_stage('billing.invoice.paid', '{"total": -1}', key => 'k', tenant => 't');
SELECT status, detail FROM outbox.try_stage('billing.invoice.paid', '{"total": 1}', key => 'k', tenant => 't', dedupe_key => 'd');
SELECT status, detail FROM outbox.try_stage('billing.invoice.paid', '{"total": 1}', key => 'k', tenant => 't', dedupe_key => 'd');
SELECT regress.error_of($$SELECT outbox.stage_many('billing.invoice.paid', ARRAY['{"total": 1}', '{"total": -1}']::jsonb[], keys => '{a,b}', tenant => 't')$$);
SELECT regress.error_of($$SELECT outbox.stage_many('billing.invoice.paid', ARRAY['{"total": 1}', '{"total": 2}']::jsonb[], keys => '{a,NULL}', tenant => 't')$$);
SELECT count(*) FROM outbox.stage_many('billing.invoice.paid', (SELECT array_agg(jsonb_build_object('total', n)) FROM generate_series(1, 100) n), keys => (SELECT array_agg(n::text) FROM generate_series(1, 100) n), tenant => 't');
RESET ROLE;
SELECT topic, count(*) FROM outbox.message GROUP BY topic ORDER BY topic;

-- Each argument that can be required.
SELECT outbox.create_topic('required.' || r, require => ARRAY[r]) IS NOT NULL AS created FROM unnest('{key,dedupe_key,tenant,correlation_id,headers,min_version,replace_key,expires_at}'::text[]) r;
SELECT r, regress.error_of(format('SELECT outbox.stage(%L)', 'required.' || r)) AS without, regress.error_of(format('SELECT outbox.stage(%L, %I => %L)', 'required.' || r, r, CASE r WHEN 'headers' THEN '{}' WHEN 'expires_at' THEN (now() + interval '1 hour')::text ELSE '1' END)) AS with
FROM unnest('{key,dedupe_key,tenant,correlation_id,headers,min_version,replace_key,expires_at}'::text[]) r;
SELECT outbox.stage('required.expires_at', ttl => '1 hour') IS NOT NULL AS with_ttl;
SELECT outbox.drop_topic(topic) FROM outbox.topics WHERE topic LIKE 'required.%';

-- What a function may do: say no, or why; nothing else.
SELECT outbox.create_topic('said', description => 'Says why', check_function => 'regress_topics.says_why(jsonb)') IS NOT NULL AS created;
GRANT SELECT ON outbox.topics TO regress_outbox_catalog;
SET ROLE regress_outbox_producer;
SELECT d, regress.error_of(format('SELECT outbox.stage(''said'', %L)', jsonb_build_object('do', d, 'n', d))) FROM unnest('{nothing,something,raise,cast,assert,broken,null,write,role,temp,set,who,kill}'::text[]) d;
SET standard_conforming_strings = off;
SET transform_null_equals = on;
SET search_path = regress_topics, pg_catalog;
SELECT outbox.stage('said', '{"do": "who"}') IS NOT NULL AS whatever_the_session_has_set;
SELECT current_setting('standard_conforming_strings') AS strings, current_setting('transform_null_equals') AS nulls, current_setting('search_path') AS search_path;
RESET standard_conforming_strings;
RESET transform_null_equals;
RESET search_path;
SELECT coalesce(current_setting('regress.left', true), '') = '' AS nothing_left, current_user;
SELECT status, detail FROM outbox.try_stage('said', '{"do": "raise"}');
SELECT * FROM outbox.try_stage('said', '{"do": "broken"}');
RESET ROLE;
-- Texts and bytes: JSON is looked at, what is not is refused.
SELECT regress.error_of('SELECT outbox.stage_text(''said'', ' || p || ')') FROM unnest(ARRAY['''{"do": "nothing"}'', ''application/json''', '''{"do": "raise"}'', ''application/json''', '''{"do": "nothing"}''', '''"\u0000"'', ''application/json''']) p;
SELECT regress.error_of('SELECT outbox.stage_bytes(''said'', ''{"do": "nothing"}'', ''application/json'')');
SELECT outbox.create_topic('short', max_payload => 3);
SELECT regress.error_of('SELECT outbox.stage_text(''short'', ''four'')'), regress.error_of('SELECT outbox.stage_text(''short'', ''two'')'), regress.error_of('SELECT outbox.stage_bytes(''short'', ''four'')'), regress.error_of('SELECT outbox.stage_bytes(''short'', ''two'')');
SELECT outbox.drop_topic('short');
-- A deferred constraint of the producer's stays deferred.
BEGIN;
CREATE TABLE regress_topics.later (n int CONSTRAINT later_key UNIQUE DEFERRABLE INITIALLY DEFERRED);
INSERT INTO regress_topics.later VALUES (1), (1);
SELECT outbox.stage('said', '{"do": "nothing"}') IS NOT NULL AS staged;
SELECT regress.error_of('SELECT outbox.stage(''said'', ''{"do": "raise"}'')');
DELETE FROM regress_topics.later;
COMMIT;
DROP TABLE regress_topics.later;

-- The most general pattern first, and what costs nothing before what does.
SELECT outbox.create_topic('*', require => '{correlation_id}') IS NOT NULL AS all, outbox.create_topic('said.*', max_payload => 20) IS NOT NULL AS below, outbox.create_topic('said.it', check_function => 'regress_topics.says_why(jsonb)', require => '{key}') IS NOT NULL AS exact;
SELECT regress.error_of('SELECT outbox.stage(' || c || ')') FROM unnest(ARRAY['''said.it''', '''said.it'', correlation_id => ''c''', '''said.it'', correlation_id => ''c'', key => ''k''', '''said.it'', ''{"do": "nothing", "n": 1}'', correlation_id => ''c'', key => ''k''', '''said.it'', ''{"do": "nothing"}'', correlation_id => ''c'', key => ''k''']) c;
SELECT outbox.drop_topic(t) FROM unnest('{*,said.*,said.it}'::text[]) t;

-- Unknown topics.
SET outbox.unknown_topics = error;
SELECT regress.error_of('SELECT outbox.stage(''unknown'')');
SELECT status, detail FROM outbox.try_stage('unknown');
SELECT outbox.stage('billing.anything') IS NOT NULL AS staged;
SET outbox.unrouted = error;
SELECT regress.error_of('SELECT outbox.stage(''unknown'')'), regress.error_of('SELECT outbox.stage(''billing.anything'')');
RESET outbox.unrouted;
SET ROLE regress_outbox_producer;
SELECT regress.error_of('SET outbox.unknown_topics = allow');
RESET ROLE;
RESET outbox.unknown_topics;
SELECT outbox.stage('unknown') IS NOT NULL AS staged;

-- Alter, ensure, definition.
SELECT outbox.alter_topic('billing.invoice.paid', max_payload => 2000, reset => '{require}');
SELECT outbox.topic_definition(topic) FROM outbox.topics ORDER BY topic;
SELECT outbox.ensure_topic('billing.invoice.paid', description => 'An invoice was paid. Owner: team billing', max_payload => 2000, check_function => 'regress_topics.has_total(jsonb)') AS changed;
SELECT outbox.ensure_topic('billing.invoice.paid', description => 'Paid', max_payload => 2000) AS changed;
SELECT outbox.ensure_topic('new.topic', require => '{key}') AS changed;
SELECT outbox.ensure_topic('new.topic') AS changed;
SELECT outbox.ensure_topic('new.topic') AS changed;
-- Who may not act as the function's owner can change the rest.
SET ROLE regress_outbox_other;
SELECT regress.error_of('SELECT outbox.alter_topic(''said'', description => ''x'')');
RESET ROLE;
GRANT EXECUTE ON FUNCTION outbox.alter_topic, outbox.ensure_topic TO regress_outbox_other;
SET ROLE regress_outbox_other;
SELECT outbox.alter_topic('said', description => 'Says it');
SELECT regress.error_of('SELECT outbox.alter_topic(''said'', check_function => ''regress_topics.says_why(jsonb)'')');
SELECT outbox.ensure_topic('said', check_function => 'regress_topics.says_why(jsonb)') AS changed;
SELECT outbox.alter_topic('said', check_function => 'regress_topics.others(jsonb)');
RESET ROLE;
SELECT to_jsonb(t) - 'created_at' AS topic INTO regress_topics.before FROM outbox.topic t;
DO $$ DECLARE d text[]; BEGIN
	d := ARRAY(SELECT outbox.topic_definition(topic) FROM outbox.topics);
	PERFORM outbox.drop_topic(topic) FROM outbox.topics;
	FOR i IN 1 .. cardinality(d) LOOP EXECUTE d[i]; END LOOP; END $$;
SELECT b.topic ->> 'topic' AS topic, b.topic - 'creator' = to_jsonb(t) - '{creator,created_at}'::text[] AS same FROM regress_topics.before b LEFT JOIN outbox.topic t ON t.topic = b.topic ->> 'topic' ORDER BY 1;

-- What is refused.
SET ROLE regress_outbox_catalog;
SELECT c, regress.error_of('SELECT outbox.create_topic(' || c || ')') FROM unnest(ARRAY['NULL', '''''', '''A''', '''a.*.b''', '''billing.*''', '''x'', require => ''{payload}''', '''x'', require => ''{NULL}''', '''x'', max_payload => 0', '''x'', max_payload => 268435457',
	'''x'', description => repeat(''d'', 1001)', '''x'', schema => ''[]''', '''x'', schema => ''{"type": "object"}''', '''x'', check_function => ''regress_topics.volatile(jsonb)''', '''x'', check_function => ''regress_topics.no_boolean(jsonb)''', '''x'', check_function => ''regress_topics.of_text(text)''',
	'''x'', check_function => ''regress_topics.set_of(jsonb)''', '''x'', check_function => ''regress_topics.others(jsonb)''', '''x'', check_function => ''regress_topics.superusers(jsonb)''', '''x'', check_function => ''regress_topics.nothing(jsonb)''']) c;
SELECT regress.error_of('SELECT outbox.alter_topic(' || c || ')') FROM unnest(ARRAY['NULL', '''none''', '''said'', reset => ''{topic}''', '''said'', reset => ''{require}'', require => ''{key}''', '''said'', max_payload => -1']) c;
RESET ROLE;
SELECT regress.error_of('SELECT outbox.drop_topic(''none'')'), regress.error_of('SELECT outbox.topic_definition(''none'')');

-- A function that changes under our feet.
SELECT outbox.stage('said') IS NOT NULL AS staged;
CREATE OR REPLACE FUNCTION regress_topics.others(payload jsonb) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT false';
SELECT regress.error_of('SELECT outbox.stage(''said'')');
ALTER FUNCTION regress_topics.others OWNER TO CURRENT_USER;
SELECT regress.error_of('SELECT outbox.stage(''said'')');
SELECT regress.error_of('SELECT * FROM outbox.try_stage(''said'')');
SELECT finding, severity, replace(hint, session_user, '<superuser>') AS hint FROM outbox.verify() WHERE finding LIKE 'topic%';
ALTER FUNCTION regress_topics.others OWNER TO regress_outbox_other;
ALTER FUNCTION regress_topics.others VOLATILE;
SELECT regress.error_of('SELECT outbox.stage(''said'')');
ALTER FUNCTION regress_topics.others IMMUTABLE;
REVOKE EXECUTE ON FUNCTION regress_topics.others FROM PUBLIC, regress_outbox_other;
SELECT regress.error_of('SELECT outbox.stage(''said'')');
GRANT EXECUTE ON FUNCTION regress_topics.others TO regress_outbox_other;
SELECT regress.error_of('SELECT outbox.stage(''said'')');
ALTER FUNCTION regress_topics.others RENAME TO renamed;
SELECT regress.error_of('SELECT outbox.stage(''said'')');
SELECT finding, severity, replace(hint, session_user, '<superuser>') AS hint FROM outbox.verify() WHERE finding LIKE 'topic%';
ALTER FUNCTION regress_topics.renamed RENAME TO others;
SELECT regress.error_of('SELECT outbox.stage(''said'')');
DROP FUNCTION regress_topics.others;
CREATE FUNCTION regress_topics.others(payload jsonb) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT ''x''';
SELECT regress.error_of('SELECT outbox.stage(''said'')');
SELECT outbox.alter_topic('said', reset => '{check_function}');
SELECT outbox.stage('said') IS NOT NULL AS staged;

-- Schedules and watched tables are held to the same.
SELECT outbox.alter_topic('said', require => '{tenant}', description => 'Whose?');
SELECT regress.error_of('SELECT outbox.create_schedule(''s'', ''@daily'', topic => ''said'')');
SELECT outbox.create_schedule('s', '@daily', topic => 'said', tenant => 't') IS NOT NULL AS created;
SELECT outbox.alter_topic('said', require => '{tenant,key}');
SELECT regress.error_of('SELECT outbox.run_now(''s'')');
SELECT outbox.drop_schedule('s');
CREATE TABLE regress_topics.thing (id int PRIMARY KEY, tenant text);
SELECT outbox.watch('regress_topics.thing', prefix => 'thing', tenant => 'tenant');
SELECT outbox.create_topic('thing.*', require => '{tenant}', description => 'Things have tenants');
SELECT regress.error_of('INSERT INTO regress_topics.thing VALUES (1, NULL)');
INSERT INTO regress_topics.thing VALUES (2, 't');
SELECT id FROM regress_topics.thing;

-- In the transaction that changes it, and after it was taken back.
BEGIN;
SELECT outbox.alter_topic('thing.*', require => '{min_version}');
SELECT regress.error_of('INSERT INTO regress_topics.thing VALUES (3, ''t'')');
ROLLBACK;
INSERT INTO regress_topics.thing VALUES (3, 't');
-- By hand.
UPDATE outbox.topic SET require = '{nonsense}' WHERE topic = 'thing.*';
SELECT finding, severity, replace(hint, session_user, '<superuser>') AS hint FROM outbox.verify() WHERE finding LIKE 'topic%';
INSERT INTO regress_topics.thing VALUES (4, NULL);
DELETE FROM outbox.topic;
SELECT outbox.stage('said') IS NOT NULL AS staged;

-- A text that is JSON need not have a value, where nothing looks at that.
SELECT outbox.create_topic('text', require => '{key}', max_payload => 100);
SELECT outbox.stage_text('text', '{"a": "\u0000"}', 'application/json', key => 'k') IS NOT NULL AS staged;
SELECT outbox.drop_topic('text');

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM regress_outbox_catalog, regress_outbox_other;
REVOKE ALL ON outbox.topics FROM regress_outbox_catalog;
SELECT outbox.revoke_producer('regress_outbox_producer');
DROP SCHEMA regress_topics CASCADE;
DROP ROLE regress_outbox_catalog, regress_outbox_other, regress_outbox_producer;
CALL regress.start_anew();
