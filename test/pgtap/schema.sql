-- Rules that every object of the extension keeps, whatever is added later.
BEGIN;
SELECT * FROM no_plan();

SELECT has_schema('outbox');
SELECT tables_are('outbox', ARRAY(
	SELECT c.relname FROM pg_class c JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
	WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r'), 'every table in schema outbox belongs to the extension');

-- What a dump must carry along.
SELECT is_empty($$
	SELECT c.relname
	FROM pg_class c
	WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'S')
		AND NOT c.oid = ANY (SELECT unnest(extconfig) FROM pg_extension WHERE extname = 'outbox')
$$, 'every table and sequence is registered for pg_dump');

-- pg_upgrade refuses a cluster that has one of these in a table.
SELECT is_empty($$
	SELECT c.relname, a.attname
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE c.relnamespace = 'outbox'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind = 'r'
		AND a.atttypid IN ('regproc'::regtype, 'regprocedure'::regtype, 'regoper'::regtype, 'regoperator'::regtype,
			'regconfig'::regtype, 'regdictionary'::regtype, 'regnamespace'::regtype, 'regcollation'::regtype, 'regclass'::regtype)
$$, 'no column type that makes pg_upgrade refuse');

SELECT is_empty($$
	SELECT conrelid::regclass FROM pg_constraint WHERE contype = 'f' AND connamespace = 'outbox'::regnamespace
$$, 'no foreign keys: they would lock configuration rows on every insert');

SELECT is_empty($$
	SELECT relname FROM pg_class
	WHERE oid IN ('outbox.message'::regclass, 'outbox.delivery'::regclass, 'outbox.receipt'::regclass)
		AND NOT (reloptions @> '{vacuum_truncate=off}' AND array_to_string(reloptions, ' ') LIKE '%autovacuum_vacuum_scale_factor=0.02%')
$$, 'the big tables are vacuumed like queues');

-- What users see is what is for them: the rest has a schema that holds nothing else.
SELECT is_empty($$
	SELECT p.oid::regprocedure, obj_description(p.oid, 'pg_proc') FROM pg_proc p
	WHERE p.pronamespace = 'outbox'::regnamespace AND (p.proname ~ '^_' OR obj_description(p.oid, 'pg_proc') ~ '^Internal')
		OR p.pronamespace = 'outbox_internal'::regnamespace AND obj_description(p.oid, 'pg_proc') !~ '^Internal'
$$, 'schema outbox has the functions that are for users, outbox_internal all others');
SELECT is_empty($$
	SELECT o.oid FROM pg_class o WHERE o.relnamespace = 'outbox_internal'::regnamespace
		AND o.relkind <> 'c' AND (o.relkind <> 'v' OR coalesce(obj_description(o.oid, 'pg_class'), '') !~ '^Internal')
	UNION ALL SELECT o.oid FROM pg_type o LEFT JOIN pg_class v ON v.oid = o.typrelid
	WHERE o.typnamespace = 'outbox_internal'::regnamespace AND coalesce(v.relkind, 'n') NOT IN ('v', 'c') AND o.typcategory <> 'A'
$$, 'outbox_internal has nothing but functions, composite types for their arguments, and views that public ones share');

-- Every object says what it is.
SELECT is_empty($$
	SELECT p.oid::regprocedure FROM pg_proc p
	WHERE p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND obj_description(p.oid, 'pg_proc') IS NULL
$$, 'every function has a comment');
SELECT is_empty($$
	SELECT c.oid::regclass FROM pg_class c
	WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'v', 'm') AND obj_description(c.oid, 'pg_class') IS NULL
$$, 'every table and view has a comment');

SELECT is_empty($$
	SELECT c.oid::regclass, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v' AND a.attnum > 0 AND coalesce(col_description(c.oid, a.attnum), '') = ''
$$, 'every column of a view has a comment');
SELECT is_empty($$
	SELECT DISTINCT pg_describe_object(d.classoid, d.objoid, d.objsubid)
	FROM pg_extension e JOIN pg_depend m ON m.refclassid = 'pg_extension'::regclass AND m.refobjid = e.oid AND m.deptype = 'e'
		JOIN pg_description d ON d.classoid = m.classid AND d.objoid = m.objid
	WHERE e.extname = 'outbox' AND d.description ~ '[^\n]{111}'
$$, 'no line of a comment is wider than 110 columns');
SELECT matches(obj_description('outbox.stage'::regproc, 'pg_proc'), '\n  \S', 'what goes on is indented');
SELECT is_empty($$
	SELECT c.oid::regclass, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
	WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v' AND a.atttypid = 'interval'::regtype
		AND NOT EXISTS (SELECT FROM pg_attribute s WHERE s.attrelid = c.oid AND s.attname = a.attname || '_seconds' AND s.atttypid = 'float8'::regtype)
		AND NOT (c.relname = 'handlers' AND EXISTS (SELECT FROM outbox_internal.options() o WHERE o.name = a.attname))
		AND NOT (c.relname = 'schedules' AND EXISTS (SELECT FROM outbox_internal.schedule_options() o WHERE o.name = a.attname))
$$, 'what is an interval is there in seconds too, for exporters that know numbers only');

-- One name for one thing.
SELECT is_empty($$
	SELECT c.oid::regclass FROM pg_class c
	WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v' AND c.relname NOT IN ('actions', 'dispatchers', 'messages', 'retention', 'schedules', 'stat_dispatcher', 'topics', 'unrouted', 'watched')
		AND 2 <> (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND (a.attname, a.atttypid) IN (('handler', 'text'::regtype), ('handler_id', 'int'::regtype)))
$$, 'every view of deliveries or handlers can be joined by handler or handler_id');
SELECT is_empty($$
	SELECT p.oid::regprocedure FROM pg_proc p
	WHERE p.pronamespace = 'outbox'::regnamespace
		AND ('name' = ANY (p.proargnames) AND p.proname !~ 'schedule|run'
			OR 'handler' = ANY (p.proargnames) AND p.proargnames[1] <> 'handler' AND NOT (p.proargnames[1] = 'id' AND p.proargnames[greatest(2, p.pronargs - p.pronargdefaults + 1)] = 'handler')
				AND coalesce(p.proargmodes[array_position(p.proargnames, 'handler')], 'i') IN ('i', 'b'))
$$, 'a handler is called handler, and comes first, or after the message''s id first of what may be left out');

-- One signature per name: untyped driver parameters make overloads ambiguous.
SELECT is_empty($$
	SELECT proname FROM pg_proc WHERE pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) GROUP BY pronamespace, proname HAVING count(*) > 1
$$, 'one signature per name');

-- Nothing for PUBLIC but the name of the schema.
SELECT is_empty($$
	SELECT p.oid::regprocedure
	FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
	WHERE p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND a.grantee = 0
$$, 'PUBLIC may execute nothing');
SELECT is_empty($$
	SELECT c.oid::regclass
	FROM pg_class c, aclexplode(c.relacl) a
	WHERE c.relnamespace = 'outbox'::regnamespace AND a.grantee = 0
$$, 'PUBLIC may read no table, view or sequence');

-- Whoever acts with the owner's rights pins where names are looked up.
SELECT is_empty($$
	SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
	WHERE p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND l.lanname IN ('sql', 'plpgsql')
		AND (p.prosecdef OR l.lanname = 'plpgsql')
		AND NOT coalesce(p.proconfig, '{}') && ARRAY['search_path=pg_catalog, pg_temp']
$$, 'functions that act for the owner, and all PL/pgSQL, pin search_path');
SELECT is_empty($$
	SELECT p.oid::regprocedure FROM pg_proc p
	WHERE p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND p.prosecdef AND p.provolatile = 'v'
		AND NOT coalesce(p.proconfig, '{}') && ARRAY['session_replication_role=replica']
$$, 'functions that write for the owner fire no triggers but those it wants');
SELECT is_empty($$
	SELECT p.oid::regprocedure FROM pg_proc p
	WHERE p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND p.provolatile = 'v' AND p.proparallel = 's'
$$, 'nothing volatile claims to be parallel safe');

SELECT * FROM finish();
ROLLBACK;
