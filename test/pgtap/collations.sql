-- Texts that are looked up are compared by their bytes, whatever the database's
-- collation is and whatever becomes of it; and callers may pass texts of any.
BEGIN;
SELECT * FROM no_plan();

SELECT is_empty($$
	SELECT i.indexrelid::regclass, c.collname FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid
	CROSS JOIN LATERAL unnest(i.indcollation) x (oid) JOIN pg_collation c ON c.oid = x.oid
	WHERE t.relnamespace::regnamespace::text LIKE 'outbox%' AND c.collname <> 'C'
$$, 'no index goes by a collation that can change');
SELECT is_empty($$
	SELECT a.attrelid::regclass, a.attname, c.collname FROM pg_attribute a JOIN pg_class t ON t.oid = a.attrelid JOIN pg_collation c ON c.oid = a.attcollation
	WHERE t.relnamespace::regnamespace::text LIKE 'outbox%' AND t.relkind = 'r' AND t.relname <> 'schedule' AND a.attnum > 0
		AND a.attname IN ('key', 'dedupe_key', 'tenant', 'correlation_id', 'topic', 'handler', 'source') AND a.atttypid = 'text'::regtype AND c.collname <> 'C'
$$, 'nor is what is looked up compared by one (of a schedule it is what its messages will have)');

-- Texts of somebody's own collation, for every function that takes one.
SELECT outbox.create_handler('h', '{c.*}') IS NOT NULL AS made;
SELECT outbox.create_handler('push', '{c.*}', 'http://127.0.0.1:9/') IS NOT NULL AS made;
SELECT outbox.grant_consumer('h', current_user);
CREATE TEMP TABLE argument (name text, value text);
INSERT INTO argument VALUES ('topic', 'c.item'), ('payload', '{}'), ('payloads', '{}'), ('handler', 'h'), ('tenant', 't'), ('topics', '{c.*}'), ('url', 'http://127.0.0.1:9/'),
	('since', '-infinity'), ('role', current_user), ('source', 's'), ('message_id', 'm'), ('dry_run', 'true'), ('key', 'k'), ('correlation_id', 'c'), ('timeout', '0');
SELECT outbox.stage('c.item', key => 'k', tenant => 't', correlation_id => 'c') AS id \gset
INSERT INTO argument VALUES ('id', :'id'), ('ids', format('{%s}', :'id'));
CREATE FUNCTION pg_temp.state_of(call text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE call;
	RETURN '00000';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
CREATE TEMP VIEW call AS
SELECT p.proname, format(CASE p.prokind WHEN 'p' THEN 'CALL outbox.%I(%s)' ELSE 'SELECT outbox.%I(%s)' END, p.proname,
	(SELECT string_agg(format('%I => %L::%s', a.name, coalesce(v.value, CASE WHEN a.type = 'text'::regtype THEN 'x' END), format_type(a.type, NULL))
			|| CASE WHEN a.type = 'text'::regtype THEN ' COLLATE "POSIX"' ELSE '' END, ', ')
	FROM unnest(p.proargnames, coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargmodes) a (name, type, mode) LEFT JOIN argument v USING (name)
	WHERE coalesce(a.mode, 'i') = 'i' AND (a.type = 'text'::regtype OR v.value IS NOT NULL))) AS text
FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname NOT LIKE '\_%' AND 'text'::regtype = ANY (p.proargtypes::oid[]);
SELECT isnt(pg_temp.state_of(c.text), '42P22', 'texts of another collation: ' || c.text) FROM call c ORDER BY c.proname;
-- And of a collation that nobody told.
SELECT isnt(pg_temp.state_of(replace(c.text, ' COLLATE "POSIX"', '')), '42P22', 'of none: ' || c.text) FROM call c ORDER BY c.proname;

SELECT * FROM finish();
ROLLBACK;
