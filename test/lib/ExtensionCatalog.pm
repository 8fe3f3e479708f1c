# What the extension's objects are, as text: everything the catalog says of
# them but oids.  Two databases that have the same text have the same objects.
package ExtensionCatalog;

use strict;
use warnings;

# One line for each fact, in order.
sub describe
{
	my ($node, $database) = @_;
	return $node->safe_psql($database, <<'END');
SET search_path = pg_catalog;
WITH member AS (
	SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
	WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'outbox'
), relation AS (
	SELECT c.* FROM pg_class c JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid
	UNION ALL
	SELECT c.* FROM pg_class c JOIN pg_type t ON t.typrelid = c.oid JOIN member m ON m.classid = 'pg_type'::regclass AND m.objid = t.oid WHERE c.relkind = 'c'
), fact (what, said) AS (
	SELECT 'member ' || pg_describe_object(m.classid, m.objid, 0), NULL FROM member m
	UNION ALL
	SELECT 'comment on ' || pg_describe_object(m.classid, m.objid, d.objsubid), d.description
	FROM member m JOIN pg_description d ON d.classoid = m.classid AND d.objoid = m.objid
	UNION ALL
	SELECT 'initial privileges of ' || pg_describe_object(m.classid, m.objid, i.objsubid), i.initprivs::text
	FROM member m JOIN pg_init_privs i ON i.classoid = m.classid AND i.objoid = m.objid
	UNION ALL
	SELECT DISTINCT 'dependency of ' || pg_describe_object(m.classid, m.objid, 0), concat_ws(' ', d.deptype, pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid))
	FROM member m JOIN pg_depend d ON d.classid = m.classid AND d.objid = m.objid WHERE d.refclassid <> 'pg_extension'::regclass
	UNION ALL
	SELECT 'routine ' || p.oid::regprocedure, concat_ws(' | ', p.prokind, p.prosecdef, p.proleakproof, p.proisstrict, p.proretset, p.provolatile, p.proparallel,
		p.procost, p.prorows, l.lanname, p.pronargs, p.pronargdefaults, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), p.proargnames,
		p.prosrc, p.probin, pg_get_function_sqlbody(p.oid), p.proconfig,
		ARRAY(SELECT concat(a.grantee::regrole, a.privilege_type) FROM aclexplode(p.proacl) a ORDER BY 1))
	FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
	UNION ALL
	SELECT 'relation ' || c.oid::regclass, concat_ws(' | ', c.relkind, c.relpersistence, c.reloptions, c.relrowsecurity, c.relforcerowsecurity, c.relreplident,
		ARRAY(SELECT concat(a.grantee::regrole, a.privilege_type) FROM aclexplode(c.relacl) a ORDER BY 1),
		CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END)
	FROM relation c
	UNION ALL
	SELECT concat('column ', c.oid::regclass, '.', row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum)), concat_ws(' | ', a.attname, format_type(a.atttypid, a.atttypmod),
		a.attnotnull, a.attstorage, a.attcompression, ARRAY(SELECT o FROM unnest(a.attoptions) o WHERE o ~ '^n_distinct'), a.attacl, a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid))
	FROM relation c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
	LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
	UNION ALL
	SELECT concat('constraint ', k.conname, ' of ', c.oid::regclass), concat_ws(' | ', pg_get_constraintdef(k.oid), k.convalidated)
	FROM relation c JOIN pg_constraint k ON k.conrelid = c.oid
	UNION ALL
	SELECT concat('index ', x.oid::regclass), concat_ws(' | ', pg_get_indexdef(x.oid), x.reloptions, i.indisvalid)
	FROM relation c JOIN pg_index i ON i.indrelid = c.oid JOIN pg_class x ON x.oid = i.indexrelid
	UNION ALL
	SELECT concat('trigger ', t.tgname, ' of ', c.oid::regclass), concat_ws(' | ', pg_get_triggerdef(t.oid), t.tgenabled)
	FROM relation c JOIN pg_trigger t ON t.tgrelid = c.oid AND NOT t.tgisinternal
	UNION ALL
	SELECT concat('policy ', y.polname, ' of ', c.oid::regclass), pg_get_expr(y.polqual, y.polrelid) FROM relation c JOIN pg_policy y ON y.polrelid = c.oid
	UNION ALL
	SELECT concat('sequence ', c.oid::regclass), concat_ws(' | ', s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmax, s.seqmin, s.seqcache, s.seqcycle)
	FROM relation c JOIN pg_sequence s ON s.seqrelid = c.oid
	UNION ALL
	SELECT 'schema ' || n.nspname, n.nspacl::text FROM pg_namespace n JOIN member m ON m.classid = 'pg_namespace'::regclass AND m.objid = n.oid
	UNION ALL
	SELECT concat('dumped ', x.config::regclass), x.condition FROM pg_extension e CROSS JOIN LATERAL unnest(e.extconfig, e.extcondition) x (config, condition) WHERE e.extname = 'outbox'
	UNION ALL
	SELECT 'version', e.extversion FROM pg_extension e WHERE e.extname = 'outbox'
)
SELECT concat(f.what, ': ', f.said) FROM fact f ORDER BY f.what COLLATE "C", f.said COLLATE "C";
END
}

1;
