# What the extension's objects are, as text: everything the catalog says of
# them but oids.  Two databases that have the same text have the same objects.
#
#   is(ExtensionCatalog::differences($node, 'updated', 'fresh'), '', 'the same objects');
package ExtensionCatalog;

use strict;
use warnings;

# In what two databases differ: of each fact the first line that does.
sub differences
{
	my ($node, @databases) = @_;
	my @facts;
	foreach my $database (@databases)
	{
		my %said;
		foreach my $fact (split /\n(?!\t)/, describe($node, $database))
		{
			# Of some, dependencies above all, there are several.
			my ($what, $said) = split /: /, $fact, 2;
			push @{ $said{$what} }, split /\n/, $said;
		}
		push @facts, \%said;
	}
	my @differences;
	my %all = map { %$_ } @facts;
	foreach my $what (sort keys %all)
	{
		my ($one, $other) = map { $_->{$what} } @facts;
		push @differences, "$what: only in database $databases[$one ? 0 : 1]" and next if !$one || !$other;
		my ($n) = grep { ($one->[$_] // '') ne ($other->[$_] // '') } 0 .. ($#$one > $#$other ? $#$one : $#$other);
		push @differences, "$what: " . join ', but ', map { "database $databases[$_] has \"" . ($facts[$_]{$what}[$n] // 'no more') . '"' } 0, 1 if defined $n;
	}
	return join "\n", @differences;
}

# A line for each fact, in order, and one that begins with a tab for each line more that it has.
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
	SELECT 'comment on ' || pg_describe_object(p.classid, p.objid, 0), d.description
	FROM (
		SELECT 'pg_class'::regclass, i.indexrelid FROM pg_index i JOIN relation c ON c.oid = i.indrelid
		UNION ALL SELECT 'pg_constraint'::regclass, k.oid FROM pg_constraint k JOIN relation c ON c.oid = k.conrelid
		UNION ALL SELECT 'pg_trigger'::regclass, t.oid FROM pg_trigger t JOIN relation c ON c.oid = t.tgrelid
		UNION ALL SELECT 'pg_policy'::regclass, y.oid FROM pg_policy y JOIN relation c ON c.oid = y.polrelid
	) p (classid, objid) JOIN pg_description d ON d.classoid = p.classid AND d.objoid = p.objid
	UNION ALL
	SELECT 'owner of ' || pg_describe_object(m.classid, m.objid, 0), coalesce(p.proowner, c.relowner, n.nspowner, t.typowner)::regrole::text
	FROM member m LEFT JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
	LEFT JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
	LEFT JOIN pg_namespace n ON m.classid = 'pg_namespace'::regclass AND n.oid = m.objid
	LEFT JOIN pg_type t ON m.classid = 'pg_type'::regclass AND t.oid = m.objid
	UNION ALL
	SELECT 'initial privileges of ' || pg_describe_object(m.classid, m.objid, i.objsubid), i.initprivs::text
	FROM member m JOIN pg_init_privs i ON i.classoid = m.classid AND i.objoid = m.objid
	UNION ALL
	SELECT DISTINCT 'dependency of ' || pg_describe_object(m.classid, m.objid, 0), concat_ws(' ', d.deptype, pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid))
	FROM member m JOIN pg_depend d ON d.classid = m.classid AND d.objid = m.objid WHERE d.refclassid <> 'pg_extension'::regclass
	UNION ALL
	SELECT 'type ' || t.oid::regtype, concat_ws(' | ', t.typtype, t.typcategory, t.typnotnull, t.typdefault, nullif(t.typbasetype, 0)::regtype, t.typacl,
		ARRAY(SELECT e.enumlabel FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder),
		ARRAY(SELECT pg_get_constraintdef(k.oid) FROM pg_constraint k WHERE k.contypid = t.oid ORDER BY k.conname))
	FROM pg_type t JOIN member m ON m.classid = 'pg_type'::regclass AND m.objid = t.oid
	UNION ALL
	SELECT 'routine ' || p.oid::regprocedure, concat_ws(' | ', p.prokind, p.prosecdef, p.proleakproof, p.proisstrict, p.proretset, p.provolatile, p.proparallel,
		p.procost, p.prorows, l.lanname, p.pronargs, p.pronargdefaults, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), p.proargnames,
		p.prosrc, p.probin, pg_get_function_sqlbody(p.oid), p.proconfig,
		ARRAY(SELECT concat(a.grantee::regrole, a.privilege_type) FROM aclexplode(p.proacl) a ORDER BY 1))
	FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
	UNION ALL
	SELECT 'relation ' || c.oid::regclass, concat_ws(' | ', c.relkind, c.relpersistence, c.reloptions, c.relrowsecurity, c.relforcerowsecurity, c.relreplident,
		ARRAY(SELECT concat(a.grantee::regrole, a.privilege_type) FROM aclexplode(c.relacl) a ORDER BY 1),
		(SELECT h.reloptions FROM pg_class h WHERE h.oid = c.reltoastrelid AND c.reltoastrelid <> 0),
		CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END)
	FROM relation c
	UNION ALL
	SELECT concat('column ', c.oid::regclass, '.', row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum)), concat_ws(' | ', a.attname, format_type(a.atttypid, a.atttypmod),
		a.attnotnull, a.attidentity, a.attgenerated, a.attstattarget, a.attstorage, a.attcompression, ARRAY(SELECT o FROM unnest(a.attoptions) o WHERE o ~ '^n_distinct'), a.attacl, a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid))
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
	SELECT concat('policy ', y.polname, ' of ', c.oid::regclass), concat_ws(' | ', y.polcmd, y.polpermissive,
		ARRAY(SELECT CASE r WHEN 0 THEN 'public' ELSE r::regrole::text END FROM unnest(y.polroles) r ORDER BY 1),
		pg_get_expr(y.polqual, y.polrelid), 'check', pg_get_expr(y.polwithcheck, y.polrelid)) FROM relation c JOIN pg_policy y ON y.polrelid = c.oid
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
SELECT replace(concat(f.what, ': ', f.said), E'\n', E'\n\t') FROM fact f ORDER BY f.what COLLATE "C", f.said COLLATE "C";
END
}

1;
