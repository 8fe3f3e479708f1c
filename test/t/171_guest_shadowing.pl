# A role that puts things of its own where outbox's SQL looks names up: for
# every operator, function, type and relation of pg_catalog that it might use
# one of the same name and arguments in a schema that comes first, and
# temporary relations.  None of them is ever used, whoever calls, and in no
# worker; nor does a function in a query on a view see rows that the view
# hides.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.rescan_interval = 1s\noutbox.log_attempts = all\noutbox.dead_retention = 0\noutbox.delivered_retention = 0");
my $url = $receiver->url('');

# The traps tell the log, which no rollback takes back.
$node->sql(<<'SQL');
CREATE ROLE mallory;
CREATE SCHEMA evil AUTHORIZATION mallory;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE SCHEMA functions;
CREATE FUNCTION functions.on_settle(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
GRANT USAGE ON SCHEMA functions TO PUBLIC;
ALTER FUNCTION functions.on_settle OWNER TO mallory;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA outbox TO mallory;
SELECT outbox.grant_operator('mallory'), outbox.grant_monitor('mallory');
SET ROLE mallory;
CREATE FUNCTION evil.spring(what text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RAISE LOG 'SPRUNG %', what;
	RETURN true;
END $$;
CREATE TABLE evil.types AS SELECT t.oid, t.typname FROM pg_type t
WHERE t.oid = ANY ('{bool,int2,int4,int8,float4,float8,numeric,text,name,"char",uuid,json,jsonb,timestamptz,timestamp,date,time,interval,oid,bytea,inet,cidr,
	regclass,regproc,regprocedure,regtype,regrole,regnamespace,unknown,_text,_int2,_int4,_int8,_uuid,_interval,_oid,_name,_bool,_jsonb,_aclitem,aclitem,xid,pg_lsn,
	anyelement,anyarray,anynonarray,anycompatible,anycompatiblearray}'::regtype[]);
DO $$
DECLARE
	x record;
	n int := 0;
	body text;
BEGIN
	-- Functions, aggregates as functions too.  Polymorphic ones return their argument's type, which will do.
	FOR x IN SELECT DISTINCT ON (p.proname, p.proargtypes) p.proname, p.proargtypes, p.prorettype::regtype AS result, p.proretset,
			array_to_string(ARRAY(SELECT a::regtype::text FROM unnest(p.proargtypes) a), ', ') AS arguments
		FROM pg_proc p
		WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a') AND p.provariadic = 0
			AND NOT EXISTS (SELECT FROM unnest(p.proargtypes) a WHERE a NOT IN (SELECT oid FROM evil.types WHERE typname <> 'unknown'))
			AND p.prorettype IN (SELECT oid FROM evil.types WHERE typname <> 'unknown')
			AND p.proname !~ '(in|out|recv|send|typmodin)$'
	LOOP
		body := format('BEGIN PERFORM evil.spring(%L); RETURN %s; END', 'function ' || x.proname, CASE WHEN x.proretset THEN '' ELSE 'NULL' END);
		EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s %s LANGUAGE plpgsql AS %L', x.proname, x.arguments, CASE WHEN x.proretset THEN 'SETOF' ELSE '' END, x.result, body);
		n := n + 1;
	END LOOP;
	-- Operators.
	FOR x IN SELECT o.oprname, o.oprleft, o.oprright, o.oprleft::regtype AS l, o.oprright::regtype AS r, o.oprresult::regtype AS result
		FROM pg_operator o
		WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprright IN (SELECT oid FROM evil.types) AND (o.oprleft = 0 OR o.oprleft IN (SELECT oid FROM evil.types))
			AND o.oprresult IN (SELECT oid FROM evil.types)
	LOOP
		n := n + 1;
		body := format('BEGIN PERFORM evil.spring(%L); RETURN NULL; END', format('operator %s (%s, %s)', x.oprname, x.l, x.r));
		EXECUTE format('CREATE FUNCTION evil.o%s(%s%s) RETURNS %s LANGUAGE plpgsql AS %L', n, CASE WHEN x.oprleft <> 0 THEN x.l || ', ' ELSE '' END, x.r, x.result, body);
		EXECUTE format('CREATE OPERATOR evil.%s (%s RIGHTARG = %s, FUNCTION = evil.o%s)', x.oprname, CASE WHEN x.oprleft <> 0 THEN 'LEFTARG = ' || x.l || ',' ELSE '' END, x.r, n);
	END LOOP;
	-- Types: domains whose check tells.
	FOR x IN SELECT t.typname FROM evil.types t JOIN pg_type p USING (oid) WHERE p.typtype = 'b' AND t.typname !~ '^_' AND t.typname <> 'unknown' LOOP
		n := n + 1;
		EXECUTE format('CREATE DOMAIN evil.%I AS pg_catalog.%1$I CHECK (evil.spring(%L))', x.typname, 'type ' || x.typname);
	END LOOP;
	-- Relations of the catalog and of outbox.
	FOR x IN SELECT c.oid, c.relname FROM pg_class c
		WHERE c.relnamespace IN ('pg_catalog'::regnamespace, 'outbox'::regnamespace) AND c.relkind IN ('r', 'v') AND has_table_privilege(c.oid, 'SELECT')
	LOOP
		n := n + 1;
		-- Columns of pseudo-types cannot be in a view.
		EXECUTE format('CREATE VIEW evil.%I AS SELECT %s FROM %s x WHERE evil.spring(%L)', x.relname,
			(SELECT string_agg(CASE WHEN a.atttypid = 'anyarray'::regtype THEN format('NULL::text AS %I', a.attname) ELSE format('x.%I', a.attname) END, ', ' ORDER BY a.attnum)
				FROM pg_attribute a WHERE a.attrelid = x.oid AND a.attnum > 0 AND NOT a.attisdropped),
			x.oid::regclass, 'relation ' || x.relname);
	END LOOP;
	RAISE LOG '% traps', n;
END $$;
SQL
cmp_ok($node->log_text =~ /(\d+) traps/ ? $1 : 0, '>', 1000, 'traps are set');

# What a session of the attacker adds for itself.
my $temporary = <<'SQL';
SELECT format('CREATE TEMP VIEW %I AS SELECT * FROM evil.%1$I', relname) FROM pg_class WHERE relnamespace = 'evil'::regnamespace AND relkind = 'v' \gexec
SELECT format('CREATE DOMAIN pg_temp.%I AS pg_catalog.%1$I CHECK (evil.spring(%L))', t.typname, 'temporary type ' || t.typname)
FROM evil.types t JOIN pg_catalog.pg_type p USING (oid) WHERE p.typtype = 'b' AND t.typname !~ '^_' AND t.typname <> 'unknown' \gexec
SQL

# Everything that may be called, without an operator or function in the call.
sub calls
{
	my $name = shift;
	return <<"SQL";
SELECT outbox.create_handler('$name', '{$name.*}', '$url/ok', headers => '{"a": "b"}', rules => '{"404": "cancel"}', backoff => '{1 s}', "authorization" => 'x', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', on_settle => 'functions.on_settle(outbox.settlement)');
SELECT outbox.create_handler('$name slow', '{$name.*}', '$url/fails', ordered => true, on_dead => 'block', max_attempts => 2, backoff => '{1 day}');
SELECT outbox.create_handler('$name pull', '{$name.*}', ordered => true, on_dead => 'block', rules => '{"*": {"streak": 2}}');
SELECT outbox.alter_handler('$name', timeout => '1 s', reset => '{connect_timeout}'), outbox.pause_handler('$name'), outbox.resume_handler('$name');
SELECT outbox.rotate_secret('$name', '1 hour');
SELECT outbox.grant_consumer('$name pull', 'mallory'), outbox.revoke_consumer('$name pull', 'mallory'), outbox.grant_consumer('$name pull', 'mallory');
SELECT outbox.revoke_monitor('mallory'), outbox.revoke_operator('mallory'), outbox.revoke_producer('mallory'), outbox.grant_producer('mallory'), outbox.grant_operator('mallory'), outbox.grant_monitor('mallory');
SELECT outbox.stage('$name.x', '{"a": 1}', key => 'k', headers => '{"x-a": "b"}', correlation_id => 'c') AS first \\gset
SELECT outbox.stage('$name.x', key => 'k', dedupe_key => '$name', tenant => '$name'), outbox.stage('$name.x', dedupe_key => '$name', tenant => '$name'), outbox.stage('$name.x', key => 'k', delay => '1 hour');
SELECT * FROM outbox.try_stage('$name.x', key => 'k2'), outbox.stage_many('$name.x', '{1,2}', '{a,b}', '{c$name,d$name}');
SELECT id, attempt FROM outbox.claim('$name pull') \\gset
SELECT outbox.extend('$name pull', :'id', :attempt, '1 min'), outbox.extend_many('$name pull', ARRAY[:'id']::pg_catalog.uuid[], ARRAY[:attempt]);
SELECT outbox.release('$name pull', :'id', :attempt), outbox.release_many('$name pull', ARRAY[:'id']::pg_catalog.uuid[], ARRAY[:attempt]);
SELECT id, attempt FROM outbox.claim('$name pull') \\gset
SELECT outbox.retry('$name pull', :'id', :attempt, 'x', '0', 'error'), outbox.fail('$name pull', :'id', :attempt);
SELECT id, attempt FROM outbox.claim('$name pull', 1, '1 min', 0) \\gset
SELECT outbox.fail('$name pull', :'id', :attempt), outbox.fail_many('$name pull', ARRAY[:'id']::pg_catalog.uuid[], ARRAY[:attempt]), outbox.retry_many('$name pull', ARRAY[:'id']::pg_catalog.uuid[], ARRAY[:attempt]);
SELECT outbox.complete('$name pull', :'id', :attempt), outbox.complete_many('$name pull', ARRAY[:'id']::pg_catalog.uuid[], ARRAY[:attempt]);
CALL outbox.wait('$name pull', '1 ms');
SELECT outbox.accept('s', '$name'), outbox.accept('s', '$name', '1 s');
SELECT outbox.requeue(:'id'), outbox.cancel(:'id', '$name pull', 'reason'), outbox.requeue(:'id', '$name pull');
SELECT outbox.requeue_where('$name', '$name.*', code => 'x', since => '-infinity', dry_run => true), outbox.replay('$name', '-infinity', backfill => true, dry_run => true), outbox.cancel_where('$name pull', '$name.*', dry_run => true);
SELECT outbox.requeue_where('$name', '$name.*', since => '-infinity', include_delivered => true, include_cancelled => true), outbox.replay('$name', '-infinity', backfill => true, max_rows => 5, settled_before => pg_catalog.now()), outbox.retry_now(:'first');
SELECT * FROM outbox.verify();
SELECT * FROM outbox.health();
SELECT outbox.status(:'first'), outbox.status(dedupe_key => '$name', tenant => '$name'), outbox.handlers_of('$name.x');
TABLE outbox.messages;
TABLE outbox.deliveries;
TABLE outbox.dead_letters;
TABLE outbox.attempts;
TABLE outbox.backlog;
TABLE outbox.blocked_keys;
TABLE outbox.handlers;
TABLE outbox.handler_stats;
TABLE outbox.dispatchers;
CALL outbox.drain('$name', '1 min');
SELECT outbox.cancel_where('$name pull'), outbox.erase_message(:'first'), outbox.erase_key('k2', '$name'), outbox.erase_tenant('$name', 5), outbox.erase_tenant('$name'), outbox.prune(1), outbox.prune();
SELECT outbox.adopt();
SQL
}

my $path = 'SET search_path = evil, pg_temp, public, pg_catalog, outbox;';
sub sprung
{
	my %what = map { $_ => 1 } $node->log_text =~ /SPRUNG (.*)/g;
	return join ', ', sort keys %what;
}

# The workers, and every new session, look there first as well; but for the
# test's own questions.
$node->sql('ALTER DATABASE postgres SET search_path = evil, pg_temp, public, pg_catalog, outbox');
$ENV{PGOPTIONS} = '-c search_path=pg_catalog';
$receiver->on('/fails', { status => 500 });
my $before = $node->dispatcher_pid;
$node->sql("SELECT pg_terminate_backend($before)");
isnt($node->wait_for_dispatcher('postgres', $before), '', 'a dispatcher has started with that path');

$node->sql("SET ROLE mallory;\n$temporary\n$path\n" . calls('attacker'));
is(sprung(), '', 'called by the attacker, nothing of his has run');
$node->sql("$temporary\n$path\n" . calls('superuser'));
is(sprung(), '', 'nor called by a superuser who looks names up there');
$node->sql("$path SELECT outbox.drop_handler('attacker'), outbox.drop_handler('attacker pull'), outbox.drop_handler('attacker slow')");
$node->wait_for("SELECT count(*) FROM outbox.on_settle_queue", 0, 'no function is left to be run');
cmp_ok($receiver->count('/ok'), '>', 0, 'messages were delivered');
cmp_ok($receiver->count('/fails'), '>', 0, 'or not');
is(sprung(), '', 'nor in the workers');

# The traps are set all the same.
$node->psql('postgres', "SET ROLE mallory;\n$temporary\n$path\nSELECT 1 = 1, clock_timestamp(), 'x'::text; TABLE pg_roles");
like(sprung(), qr/function clock_timestamp, operator = \(integer, integer\), relation pg_roles, (temporary )?type text/, 'each kind of trap works');

# A view hides rows from functions in the reader's query, too.
$node->sql(<<'SQL');
CREATE ROLE reader;
CREATE SCHEMA reader AUTHORIZATION reader;
GRANT SELECT ON outbox.dead_letters TO reader;
SELECT outbox.create_handler('buried', '{buried}'), outbox.create_handler('other', '{other}');
SELECT outbox.stage('buried', '{"seen": "dead"}'), outbox.stage('other', '{"seen": "alive"}');
SELECT outbox.fail('buried', id, attempt) FROM outbox.claim('buried');
SET ROLE reader;
CREATE TABLE reader.seen (payload jsonb);
CREATE FUNCTION reader.look(payload jsonb) RETURNS boolean STRICT COST 0.0000001 LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO reader.seen VALUES ($1);
	RETURN true;
END $$;
SQL
foreach my $off ('', 'SET enable_nestloop = off;', 'SET enable_hashjoin = off; SET enable_nestloop = off;')
{
	is($node->sql("SET ROLE reader; TRUNCATE reader.seen; $off CREATE TEMP TABLE t AS SELECT FROM outbox.dead_letters WHERE reader.look(payload); SELECT DISTINCT payload ->> 'seen' FROM reader.seen WHERE payload ? 'seen' ORDER BY 1"),
		'dead', "a reader of dead letters sees no other payloads ($off)");
}

unlike($node->log_text, qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
done_testing();
