-- Who may do what: one table of every object of the extension against PUBLIC
-- and the parts that roles play.  Each cell is looked up in the catalog and
-- tried out: as a role that may not, a call fails for want of privilege; as
-- one that may, it does not, whatever else becomes of it.
BEGIN;
SELECT * FROM no_plan();

-- who: * everybody, P producer, C consumer, O operator, M monitor, W owner.
-- Of a relation it is who may read it; nobody but the owner may write.
CREATE TEMP TABLE privilege (kind text, objects text, who text);
INSERT INTO privilege VALUES
('function', 'stage stage_text stage_bytes try_stage stage_many watch unwatch announce', 'PW'),
('function', 'status handlers_of', 'POW'),
('function', 'claim complete complete_many retry retry_many fail fail_many release release_many extend extend_many', 'CW'),
('procedure', 'wait', 'CW'),
('function', 'find_deliveries message requeue requeue_where replay cancel cancel_where retry_now reschedule pause_handler resume_handler prune verify next_runs', 'OW'),
('function', 'pause_schedule resume_schedule run_now', 'OW'),
('procedure', 'run_schedules', 'OW'),
('function', 'create_schedule alter_schedule ensure_schedule drop_schedule schedule_definition', 'W'),
('function', 'create_topic alter_topic ensure_topic drop_topic topic_definition', 'W'),
('procedure', 'drain', 'OW'),
('procedure', 'deliver_now', 'OW'),
('function', 'health metrics', 'OMW'),
('function', 'reset_stats staged report', 'OW'),
('function', 'create_handler alter_handler ensure_handler drop_handler handler_definition rotate_secret erase_tenant erase_key erase_message adopt accept', 'W'),
('function', 'ensure_tenant_retention drop_tenant_retention', 'W'),
('procedure', 'requeue_all', 'OW'),
('view', 'actions', 'OW'),
('table', 'action', 'W'),
('sequence', 'action_id', 'W'),
('internal', 'note_action note_change forget_in_actions prune_actions requeue_batch count_settled skip_ahead describe_ahead', 'W'),
('function', 'grant_producer revoke_producer grant_consumer revoke_consumer grant_operator revoke_operator grant_monitor revoke_monitor', 'W'),
-- internal, in a schema that nobody but the owner may use: what a view calls
('internal', 'dispatchers backlog stat_handlers stat_histograms stat_dispatcher', 'OMW'),
('internal', 'is_own vacuum_holders bloat_warnings barred_keys', 'W'),
('internal', 'count reset_counters metric_list metric_label metric_samples', 'W'),
('internal', 'unrouted sender aside retention', 'OW'),
('internal', 'redact_fault', 'W'),
('internal', 'event_duration event_time event_of_action events_of_staging events_of_routing events_of_attempts events_of_outcome events_of_actions events_of_bulk', 'W'),
('internal', 'report_text report_count report_duration report_when report_bar report_place report_quantiles report_top report_table report_section report_style report_steps report_throughput report_histogram report_backlog report_failing report_slowest report_causes report_dead report_schedules report_unrouted report_retention report_actions died_since', 'W'),
-- rings and triggers
('internal', 'ring ring_handlers ring_status triggers trigger_faults library library_can require_library grow wrap_comments ring_rescan ring_launcher ring_schedules skip_row handler_changed status_changed home check_isolation is_copy why_copy place place_is_news note_place bring_forward seed_ids', 'W'),
-- checks
('internal', 'check_rules check_pattern check_url check_headers check_name check_number check_interval check_choice check_path', 'W'),
('internal', 'check_topics check_backoff check_handler check_options check_push_handler handler_fault warn_of_clear_text check_function check_rights check_filter', 'W'),
-- topics
('internal', 'topic_options check_require check_description check_schema schema_function check_test check_topic topic_fault ring_topics topic_changed', 'W'),
('internal', 'insert_topic lock_topic store_topic create_topic alter_topic ensure_topic drop_topic', 'W'),
-- the bodies of public functions, and what they have in common
('internal', 'creator rotate_secret store_secret stay_unseen public_key id_floor options formats store_handler store_secrets lock_handler is_given_secret changed_secrets', 'W'),
-- what has options, of whatever kind
('internal', 'options_of given check_reset reset_options changed_options assignments definition arguments arguments_help', 'W'),
('internal', 'insert_handler fill_handler create_handler change_handler alter_handler ensure_handler drop_handler pause_handler resume_handler renew_handler cancel_dropped cancel_rows', 'W'),
('internal', 'pull_handler_id part check_role grant_part revoke_part lock_grants refresh_consumers revoke_unused prune_expired', 'W'),
('internal', 'cancel_expired check_untried check_deliver_at ring_end dedupe_window keep_dedupe_keys', 'W'),
('internal', 'topic_taken retention_settings live_handler lock_message handler_of_message is_routed revive route_again ring_successors cancel cancel_blocking cancel_all choose_settled choose_blocking make_filter check_goes_on check_writable erase erase_all', 'W'),
('internal', 'page_part page_parts find_by_state find_by_message tenant_messages find_by_tenant', 'W'),
('internal', 'get_retention_rules prunable remove_messages prune_step lock_prune_position retain note_retention_error next_retention retention_warnings check_retention_tenant id_time', 'W'),
-- schedules
('internal', 'schedule_options check_schedule_name check_schedule_options check_schedule schedule_fault schedule_warnings check_may_run', 'W'),
('internal', 'next_run due_runs occurrence_text occurrence_payload occurrence_key schedule_anchor run_after stage_occurrence make_occurrence', 'W'),
('internal', 'lock_schedule populate_schedule insert_schedule fill_schedule store_schedule change_schedule create_schedule alter_schedule ensure_schedule', 'W'),
('internal', 'drop_schedule pause_schedule resume_schedule choose_occurrence note_occurrence note_failure run_messages begin_occurrence end_occurrence run_now next_wake', 'W'),
('view', 'messages deliveries waiting dead_letters attempts blocked_keys handlers unrouted schedules retention', 'OW'),
('view', 'holds', 'W'),
('view', 'watched topics', 'POW'),
('view', 'backlog handler_stats stat_handlers stat_histograms stat_dispatcher dispatchers', 'OMW'),
('table', 'installation message delivery receipt handler handler_status handler_secret attempt on_settle_queue consumer inbox tenant_retention prune_position retention_status schedule schedule_status topic', 'W'),
('table', 'dedupe_key', 'W'),
-- events
('table', 'event_queue event_rate', 'W'),
('internal', 'takes_events note_event stage_event tell_event tell_untold sift_events tell_events next_event prune_events event_warnings', 'W'),
('sequence', 'handler_id on_settle_queue_id schedule_id', 'W'),
('type', 'settlement occurrence staged_message', '*PCOMW'),
('internal type', 'event filter option page retention_rules', 'W'),
('schema', 'outbox', '*PCOMW'),
('schema', 'outbox_internal', 'W');
CREATE TEMP TABLE cell AS SELECT kind, object, who FROM privilege, string_to_table(objects, ' ') object;
SELECT is_empty($$ SELECT object FROM cell GROUP BY kind, object HAVING count(*) > 1 $$, 'each object is in the table once');

-- What there is, as the catalog has it.
CREATE TEMP VIEW member AS
SELECT CASE d.classid
		WHEN 'pg_proc'::regclass THEN (SELECT CASE WHEN pronamespace = 'outbox_internal'::regnamespace THEN 'internal' WHEN prokind = 'f' THEN 'function' WHEN prokind = 'p' THEN 'procedure' ELSE prokind::text END FROM pg_proc WHERE oid = d.objid)
		WHEN 'pg_class'::regclass THEN (SELECT CASE relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE relkind::text END FROM pg_class WHERE oid = d.objid)
		WHEN 'pg_type'::regclass THEN (SELECT CASE WHEN typnamespace = 'outbox_internal'::regnamespace THEN 'internal type' ELSE 'type' END FROM pg_type WHERE oid = d.objid)
		WHEN 'pg_namespace'::regclass THEN 'schema'
		ELSE d.classid::regclass::text END AS kind,
	coalesce((SELECT proname FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid),
		(SELECT relname FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid),
		(SELECT typname FROM pg_type WHERE d.classid = 'pg_type'::regclass AND oid = d.objid),
		(SELECT nspname FROM pg_namespace WHERE d.classid = 'pg_namespace'::regclass AND oid = d.objid))::text AS object,
	d.objid
FROM pg_depend d
WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'outbox')
	-- Since PostgreSQL 17 the types that come along with relations and types are members as well.
	AND NOT EXISTS (
		SELECT FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
		WHERE d.classid = 'pg_type'::regclass AND t.oid = d.objid AND (t.typcategory = 'A' OR c.relkind <> 'c'));
SELECT set_eq('SELECT kind, object FROM member', 'SELECT kind, object FROM cell', 'the table has every object of the extension');

-- The parts, as a DBA would give them out.
CREATE ROLE "outbox test nobody";
CREATE ROLE "outbox test producer";
CREATE ROLE "outbox test consumer";
CREATE ROLE "outbox test operator";
CREATE ROLE "outbox test monitor";
SELECT outbox.create_handler('privileges', '{privileges}') IS NOT NULL AS created;
SELECT outbox.grant_producer('outbox test producer'), outbox.grant_consumer('privileges', 'outbox test consumer'),
	outbox.grant_operator('outbox test operator'), outbox.grant_monitor('outbox test monitor');
CREATE TEMP TABLE part AS SELECT letter, role FROM (VALUES ('*', 'outbox test nobody'), ('P', 'outbox test producer'), ('C', 'outbox test consumer'),
	('O', 'outbox test operator'), ('M', 'outbox test monitor'), ('W', current_user::text)) v (letter, role);

-- In the catalog.
CREATE FUNCTION pg_temp.may(kind text, object oid, role text) RETURNS boolean LANGUAGE sql AS $$
	SELECT CASE
		WHEN kind IN ('function', 'procedure', 'internal') THEN has_function_privilege(role, object, 'EXECUTE')
		WHEN kind IN ('table', 'view') THEN has_table_privilege(role, object, 'SELECT')
		WHEN kind = 'sequence' THEN has_sequence_privilege(role, object, 'USAGE, SELECT, UPDATE')
		WHEN kind = 'type' THEN has_type_privilege(role, object, 'USAGE')
		WHEN kind = 'internal type' THEN has_schema_privilege(role, 'outbox_internal', 'USAGE')
		WHEN kind = 'schema' THEN has_schema_privilege(role, object, 'USAGE') END $$;
CREATE FUNCTION pg_temp.may_change(kind text, object oid, role text) RETURNS boolean LANGUAGE sql AS $$
	SELECT CASE
		WHEN kind IN ('table', 'view') THEN has_table_privilege(role, object, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
			OR has_any_column_privilege(role, object, 'INSERT, UPDATE, REFERENCES')
		WHEN kind = 'schema' THEN has_schema_privilege(role, object, 'CREATE') END $$;
SELECT is((SELECT string_agg(p.letter, '' ORDER BY position(p.letter IN '*PCOMW')) FROM part p WHERE pg_temp.may(c.kind, m.objid, p.role)), c.who, format('%s %s: granted to those who need it', c.kind, c.object))
FROM cell c JOIN member m USING (kind, object);
SELECT is_empty($$
	SELECT m.kind, m.object, p.role FROM member m, part p
	WHERE pg_temp.may_change(m.kind, m.objid, p.role) IS DISTINCT FROM (p.letter = 'W') AND m.kind IN ('table', 'view', 'schema')
$$, 'nobody but the owner may write');

-- Tried out.
CREATE FUNCTION pg_temp.error_of(role text, statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('role', role, true);
	EXECUTE statement;
	RAISE EXCEPTION 'taken back' USING ERRCODE = 'OK000';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
-- Arguments from a table: constants could be folded without a look at rights.
CREATE FUNCTION pg_temp.call(routine oid) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN p.prokind = 'p'
		THEN format('CALL %s(%s)', p.oid::regproc, (SELECT string_agg(format('NULL::%s', format_type(t, NULL)), ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY a (t, n)))
		ELSE format('SELECT %s(%s) FROM (SELECT %s OFFSET 0) v', p.oid::regproc,
			(SELECT string_agg('v.a' || n, ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY a (t, n)),
			(SELECT string_agg(format('NULL::%s AS a%s', format_type(t, NULL), n), ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY a (t, n))) END
	FROM pg_proc p WHERE p.oid = routine $$;
CREATE TEMP VIEW trial AS
SELECT m.kind, m.object, 'used' AS how, pg_temp.call(m.objid) AS statement FROM member m WHERE m.kind IN ('function', 'procedure', 'internal')
UNION ALL SELECT m.kind, m.object, 'used', format('SELECT count(*) FROM %s', m.objid::regclass) FROM member m WHERE m.kind IN ('table', 'view')
UNION ALL SELECT m.kind, m.object, 'used', format(s, 'outbox.' || m.object) FROM member m, unnest('{SELECT nextval(%L),"SELECT setval(%L, 1)",SELECT last_value FROM %s}'::text[]) s WHERE m.kind = 'sequence'
UNION ALL SELECT m.kind, m.object, 'used', format('CREATE FUNCTION pg_temp.f(outbox.%I) RETURNS int LANGUAGE sql AS ''SELECT 1''', m.object) FROM member m WHERE m.kind = 'type'
UNION ALL SELECT m.kind, m.object, 'used', format('SELECT %L::regproc', m.object || CASE m.object WHEN 'outbox' THEN '.stage' ELSE '.home' END) FROM member m WHERE m.kind = 'schema'
UNION ALL SELECT m.kind, m.object, 'written', format(s, m.object, (SELECT attname FROM pg_attribute WHERE attrelid = m.objid AND attnum = 1))
	FROM member m, unnest('{INSERT INTO outbox.%I DEFAULT VALUES,UPDATE outbox.%I SET %I = DEFAULT WHERE false,DELETE FROM outbox.%I WHERE false,TRUNCATE outbox.%I}'::text[]) s WHERE m.kind = 'table'
UNION ALL SELECT m.kind, m.object, 'written', format('CREATE TABLE %I.x ()', m.object) FROM member m WHERE m.kind = 'schema';
SELECT is(
	(SELECT string_agg(p.letter, '' ORDER BY position(p.letter IN '*PCOMW')) FROM part p WHERE pg_temp.error_of(p.role, t.statement) <> '42501'),
	CASE WHEN t.how = 'used' AND c.kind <> 'internal' THEN c.who ELSE 'W' END, format('%s %s: %s', c.kind, c.object, t.statement))
FROM cell c JOIN trial t USING (kind, object);
SELECT is_empty($$
	SELECT m.object, p.role, s FROM member m, part p, unnest('{INSERT INTO %s DEFAULT VALUES,UPDATE %s SET %I = DEFAULT WHERE false,DELETE FROM %s WHERE false}'::text[]) s
	WHERE m.kind = 'view'
		AND pg_temp.error_of(p.role, format(s, m.objid::regclass, (SELECT attname FROM pg_attribute WHERE attrelid = m.objid AND attnum = 1))) NOT IN ('42501', '55000')
$$, 'views cannot be written');

-- Nothing is left when it is taken back.
SELECT outbox.revoke_producer('outbox test producer'), outbox.revoke_consumer('privileges', 'outbox test consumer'),
	outbox.revoke_operator('outbox test operator'), outbox.revoke_monitor('outbox test monitor');
SELECT is_empty($$ SELECT m.kind, m.object, p.role FROM member m, part p WHERE p.letter IN ('P', 'C', 'O', 'M') AND m.kind NOT IN ('type', 'schema') AND pg_temp.may(m.kind, m.objid, p.role) $$, 'revoked');
SELECT lives_ok('DROP ROLE "outbox test nobody", "outbox test producer", "outbox test consumer", "outbox test operator", "outbox test monitor"', 'and the roles can be dropped');
SELECT throws_ok(format('SELECT outbox.%I(%L)', f, r), '42704', NULL, format('%s of %s', f, coalesce(r, 'NULL')))
FROM unnest('{grant_producer,grant_operator,grant_monitor,revoke_producer,revoke_operator,revoke_monitor}'::text[]) f, unnest('{"outbox test nobody",public,NULL}'::text[]) r;

-- What has the name of a public function is the same for every part.
SELECT is(has_table_privilege('pg_monitor', 'outbox.backlog', 'SELECT') AND has_table_privilege('pg_monitor', 'outbox.handler_stats', 'SELECT')
	AND has_table_privilege('pg_monitor', 'outbox.dispatchers', 'SELECT') AND has_function_privilege('pg_monitor', 'outbox.health'::regproc, 'EXECUTE')
	AND NOT has_table_privilege('pg_monitor', 'outbox.deliveries', 'SELECT'), true, 'pg_monitor is a monitor');

-- What each part may is said in the comment of the function that grants it.
SELECT is_empty($$
	SELECT p.part, f.proname FROM unnest('{producer,operator,monitor}'::text[]) p (part), pg_proc f
	WHERE f.pronamespace = 'outbox'::regnamespace AND f.prorettype <> 'trigger'::regtype
		AND (SELECT routines FROM outbox_internal.part(p.part)) ~ ('\moutbox\.' || f.proname || '\(')
		AND obj_description(format('outbox.grant_%s', p.part)::regproc) !~ ('\m' || f.proname || '\M')
	UNION ALL
	SELECT p.part, v FROM unnest('{producer,monitor}'::text[]) p (part), regexp_split_to_table((SELECT views FROM outbox_internal.part(p.part)), ', ') v
	WHERE strpos(obj_description(format('outbox.grant_%s', p.part)::regproc), v) = 0
$$, 'comments name all that a producer, an operator and a monitor may');

SELECT * FROM finish();
ROLLBACK;
