-- The roles that PostgreSQL itself defines, the owner of a database and one with
-- CREATEROLE: one row for each, with what it can read, change, set and call of
-- everything there is.  None of them was granted anything of the extension.
BEGIN;
SELECT * FROM no_plan();

-- Something in every table and view.
SELECT outbox.create_handler('push', '{roles.*}', 'http://127.0.0.1:9/', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', authorization => 'Bearer secret') IS NOT NULL AS push,
	outbox.create_handler('pull', '{roles.*}', ordered => true) IS NOT NULL AS pull;
SELECT outbox.stage('roles.item', '{"n": 1}', key => 'k') IS NOT NULL AS staged;
CREATE ROLE "outbox test consumer";
SELECT outbox.grant_consumer('pull', 'outbox test consumer');
INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state, code)
SELECT m.id, now(), h.id, 1, 0, 4, '500' FROM outbox.message m, outbox.handler h WHERE h.name = 'push';
DELETE FROM outbox.delivery d USING outbox.handler h WHERE h.id = d.handler_id AND h.name = 'push';
UPDATE outbox.delivery SET state = 1, due_at = now() + interval '1 h', attempts = 1;
INSERT INTO outbox.attempt (message_id, handler_id, attempt, finished_at, outcome) SELECT r.message_id, r.handler_id, 1, now(), 4 FROM outbox.receipt r;
INSERT INTO outbox.on_settle_queue (message_id, finished_at, duration_us, due_at, handler_id, attempt, state, streak) SELECT r.message_id, now(), 1, now(), r.handler_id, 1, 4, 0 FROM outbox.receipt r;
INSERT INTO outbox.inbox (source, message_id, expires_at) VALUES ('s', 'm', now() + interval '1 h');

CREATE TEMP VIEW object AS
SELECT c.oid, CASE c.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' END AS kind, c.oid::regclass::text AS name
FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
WHERE d.refobjid = (SELECT e.oid FROM pg_extension e WHERE e.extname = 'outbox') AND c.relkind IN ('r', 'v', 'S');
CREATE TEMP VIEW routine AS
SELECT p.oid, p.proname, p.prokind, p.proargtypes FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
WHERE d.refobjid = (SELECT e.oid FROM pg_extension e WHERE e.extname = 'outbox');

-- reads: of tables none is "denied", or "hidden" where it sees no row of them; of
-- views "rows" where it sees them.  writes: of tables, whether it comes to that.
CREATE TEMP TABLE kind_of_role (role text, made text, since int, reads_tables text, reads_views text, reads_sequences text, writes_tables text, sets_sequences text);
INSERT INTO kind_of_role VALUES
('pg_read_all_data', 'GRANT pg_read_all_data TO %I', 140000, 'hidden', 'rows', 'rows', 'denied', 'denied'),
('pg_write_all_data', 'GRANT pg_write_all_data TO %I', 140000, 'denied', 'denied', 'denied', 'hidden', 'rows'),
('both of them', 'GRANT pg_read_all_data, pg_write_all_data TO %I', 140000, 'hidden', 'rows', 'rows', 'hidden', 'rows'),
('pg_maintain', 'GRANT pg_maintain TO %I', 170000, 'denied', 'denied', 'denied', 'denied', 'denied'),
('pg_checkpoint', 'GRANT pg_checkpoint TO %I', 150000, 'denied', 'denied', 'denied', 'denied', 'denied'),
('pg_signal_backend', 'GRANT pg_signal_backend TO %I', 140000, 'denied', 'denied', 'denied', 'denied', 'denied'),
('pg_execute_server_program', 'GRANT pg_execute_server_program, pg_read_server_files, pg_write_server_files TO %I', 140000, 'denied', 'denied', 'denied', 'denied', 'denied'),
('owner of the database', 'ALTER DATABASE ' || quote_ident(current_database()) || ' OWNER TO %I', 140000, 'denied', 'denied', 'denied', 'denied', 'denied'),
('CREATEROLE', 'ALTER ROLE %I CREATEROLE CREATEDB REPLICATION', 140000, 'denied', 'denied', 'denied', 'denied', 'denied');
DELETE FROM kind_of_role WHERE since > current_setting('server_version_num')::int;

DO $$
DECLARE
	r record;
BEGIN
	FOR r IN SELECT * FROM kind_of_role LOOP
		EXECUTE format('CREATE ROLE %I', 'outbox test ' || r.role);
		EXECUTE format(r.made, 'outbox test ' || r.role);
	END LOOP;
END $$;

-- denied; hidden: allowed, but of no row; rows.  What it did is taken back.
CREATE FUNCTION pg_temp.outcome(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
BEGIN
	PERFORM set_config('role', 'outbox test ' || role, true);
	EXECUTE statement INTO n;
	RAISE EXCEPTION '%', CASE WHEN n > 0 THEN 'rows' ELSE 'hidden' END USING ERRCODE = 'OK000';
EXCEPTION
	WHEN insufficient_privilege THEN
		RETURN CASE WHEN SQLERRM LIKE '%row-level security%' THEN 'hidden' ELSE 'denied' END;
	WHEN SQLSTATE 'OK000' THEN
		RETURN SQLERRM;
END $$;

SELECT isnt_empty(format('SELECT FROM outbox.%I', name), name || ' has something to see')
FROM unnest('{message,delivery,receipt,handler,handler_status,handler_secret,attempt,on_settle_queue,consumer,inbox,installation}'::text[]) name;
SELECT is(pg_temp.outcome(k.role, format('SELECT count(*) FROM %s', o.name)), k.reads_tables, format('%s reads %s', k.role, o.name)) FROM kind_of_role k, object o WHERE o.kind = 'table';
-- Whoever reads views reads them as one who was granted SELECT on each, and nothing else.
CREATE ROLE "outbox test reader";
SELECT lives_ok(format('GRANT SELECT ON %s TO "outbox test reader"', string_agg(o.name, ', ')), 'a reader of views') FROM object o WHERE o.kind = 'view';
SELECT is(pg_temp.outcome(k.role, format('SELECT count(*) FROM %s', o.name)),
	CASE k.reads_views WHEN 'rows' THEN pg_temp.outcome('reader', format('SELECT count(*) FROM %s', o.name)) ELSE k.reads_views END,
	format('%s reads %s', k.role, o.name)) FROM kind_of_role k, object o WHERE o.kind = 'view';
SELECT is(pg_temp.outcome('reader', 'SELECT count(*) FROM ' || name), 'rows', name || ' has something to see') FROM unnest('{outbox.dead_letters,outbox.attempts}'::text[]) name;
SELECT is(pg_temp.outcome(k.role, format('SELECT 1 + 0 * last_value FROM %s', o.name)), k.reads_sequences, format('%s reads %s', k.role, o.name)) FROM kind_of_role k, object o WHERE o.kind = 'sequence';
SELECT is(pg_temp.outcome(k.role, format('SELECT setval(%L, 1000)', o.name)), k.sets_sequences, format('%s sets %s', k.role, o.name)) FROM kind_of_role k, object o WHERE o.kind = 'sequence';
-- Without a condition or RETURNING, which would need the right to read as well.
CREATE FUNCTION pg_temp.written(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	n bigint;
BEGIN
	PERFORM set_config('role', 'outbox test ' || role, true);
	EXECUTE statement;
	GET DIAGNOSTICS n = ROW_COUNT;
	RAISE EXCEPTION '%', CASE WHEN n > 0 THEN 'rows' ELSE 'hidden' END USING ERRCODE = 'OK000';
EXCEPTION
	WHEN insufficient_privilege THEN
		RETURN CASE WHEN SQLERRM LIKE '%row-level security%' THEN 'hidden' ELSE 'denied' END;
	WHEN SQLSTATE 'OK000' THEN
		RETURN SQLERRM;
END $$;
SELECT is(pg_temp.written(k.role, format(s, o.name, a.attname)), k.writes_tables, format('%s: ' || s, k.role, o.name, a.attname))
FROM kind_of_role k, object o JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum = 1, unnest('{UPDATE %s SET %I = DEFAULT,DELETE FROM %s}'::text[]) s WHERE o.kind = 'table';
SELECT isnt(pg_temp.written(k.role, format('INSERT INTO %s DEFAULT VALUES', o.name)), 'rows', format('%s inserts nothing into %s', k.role, o.name))
FROM kind_of_role k, object o WHERE o.kind = 'table' AND o.name NOT IN ('outbox.handler_status');
SELECT is(pg_temp.written(k.role, format('TRUNCATE %s', o.name)), 'denied', format('%s does not empty %s', k.role, o.name)) FROM kind_of_role k, object o WHERE o.kind = 'table';

-- What it runs as, and who may choose it, is in rows that nobody but the owner changes.
SELECT is(pg_temp.written(k.role, statement), k.writes_tables, format('%s: %s', k.role, statement))
FROM kind_of_role k, unnest(ARRAY['UPDATE outbox.handler SET creator_oid = 10', 'UPDATE outbox.handler SET on_settle = $$pg_catalog.pg_terminate_backend(int)$$',
	'UPDATE outbox.handler SET url = $$http://127.0.0.1:1/$$', 'UPDATE outbox.consumer SET role_oid = 10']) statement;

-- No routine, none of the internal ones either.
SELECT is_empty($$ SELECT k.role, r.proname FROM kind_of_role k, routine r WHERE has_function_privilege('outbox test ' || k.role, r.oid, 'EXECUTE') $$, 'none of them may call anything');
SELECT is_empty($$ SELECT k.role, n.nspname FROM kind_of_role k, pg_namespace n WHERE n.nspname LIKE 'outbox%' AND has_schema_privilege('outbox test ' || k.role, n.oid, 'CREATE') $$, 'none may create anything in the schemas');
SELECT is_empty($$ SELECT k.role FROM kind_of_role k, pg_extension e WHERE e.extname = 'outbox' AND pg_has_role('outbox test ' || k.role, e.extowner, 'MEMBER') $$, 'nor is the owner of the extension');

-- Secrets: whoever reads all data reads none.
SELECT isnt(pg_temp.outcome(k.role, format('SELECT count(*) FROM %s v WHERE to_jsonb(v)::text ~ %L', o.name, secret)), 'rows', format('%s finds no secret in %s', k.role, o.name))
FROM kind_of_role k, object o, unnest('{whsec_,Bearer}'::text[]) secret WHERE o.kind = 'view';
-- Payloads it does read, as every view: doc/security.md.
SELECT is(pg_temp.outcome('pg_read_all_data', 'SELECT count(payload) FROM outbox.dead_letters'), 'rows', 'payloads of dead letters are data');

-- A role with CREATEROLE makes itself a member, where PostgreSQL lets it, and has no more of it than those.
SELECT is(pg_temp.written('CREATEROLE', $$ DO $do$ BEGIN
		BEGIN
			GRANT pg_read_all_data, pg_write_all_data TO "outbox test CREATEROLE";
		EXCEPTION WHEN insufficient_privilege THEN
			RAISE 'not before PostgreSQL 16' USING ERRCODE = 'insufficient_privilege';
		END;
		UPDATE outbox.handler SET creator_oid = 10;
		IF FOUND THEN RAISE 'changed'; END IF;
	END $do$ $$), CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'denied' ELSE 'hidden' END, 'CREATEROLE gets no further');

SELECT * FROM finish();
ROLLBACK;
