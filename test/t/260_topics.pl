# Topics that are registered: their rules in other sessions, in a dump, after the
# extension came anew; with the rights of the functions' owners and of nobody
# else; and schemas, with a pg_jsonschema of the test's own.
use strict;
use warnings;

use OptionTable;
use OutboxCluster;
use OwnInstallation;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;
use UnitModule;

my $place = OwnInstallation->create;
local $ENV{PATH} = $place->path;
my $node = OutboxCluster->create('main', conf => 'outbox.enabled = off');
my $folder = PostgreSQL::Test::Utils::tempdir;

sub stage_as
{
	my ($role, $arguments, $database) = @_;
	my (undef, $out, $error) = $node->psql($database // 'postgres', "SET ROLE $role; SELECT outbox.stage($arguments) IS NOT NULL", extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $error eq '' ? $out : $error;
}

# --- a check that reads its owner's table, which producers may not, and writes a log of who asks, which it may not
$node->sql(<<'SQL');
CREATE ROLE shop LOGIN;
CREATE ROLE catalog LOGIN;
CREATE ROLE mallory LOGIN;
SELECT outbox.grant_producer('shop');
CREATE SCHEMA catalog AUTHORIZATION catalog;
CREATE SCHEMA mallory AUTHORIZATION mallory;
GRANT EXECUTE ON FUNCTION outbox.create_topic, outbox.alter_topic TO catalog, mallory;
GRANT USAGE ON SCHEMA catalog TO mallory;
SET ROLE catalog;
CREATE TABLE catalog.product (name text);
INSERT INTO catalog.product VALUES ('tea');
ALTER TABLE catalog.product ENABLE ROW LEVEL SECURITY;
ALTER TABLE catalog.product FORCE ROW LEVEL SECURITY;
CREATE POLICY everybody ON catalog.product USING (current_user = 'catalog');
CREATE FUNCTION catalog.known(payload jsonb) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM catalog.product p WHERE p.name = payload ->> 'product') THEN
		RAISE EXCEPTION 'there is no product %', payload -> 'product';
	END IF;
	RETURN true;
END $$;
SELECT outbox.create_topic('shop.ordered', description => 'Somebody wants something', check_function => 'catalog.known(jsonb)');
SQL
is(stage_as('shop', q{'shop.ordered', '{"product": "tea"}'}), 't', 'a check sees what its owner sees');
like(stage_as('shop', q{'shop.ordered', '{"product": "gold"}'}), qr/23514: +payload is refused by check_function catalog\.known\(\) of topic "shop\.ordered": there is no product "gold".*HINT: +Topic "shop\.ordered": Somebody wants something/s,
	'and says why, with the description');
like($node->sql_error('SET ROLE shop; SELECT * FROM catalog.product'), qr/42501/, 'which the producer does not');

# Sessions that were there before hear of it; those of other databases do not.
$node->extension('other');
my $session = PsqlSession->new($node);
like($session->run(q{SELECT outbox.stage('shop.ordered', '{"product": "tea"}')}), qr/^[0-9a-f-]{36}$/m, 'a session with the rules in its cache');
$node->sql(q{UPDATE catalog.product SET name = 'coffee'});
like($session->run(q{SELECT outbox.stage('shop.ordered', '{"product": "tea"}')}), qr/there is no product "tea"/, 'the check is run each time');
$node->sql(q{SELECT outbox.alter_topic('shop.ordered', reset => '{check_function}')});
like($session->run(q{SELECT outbox.stage('shop.ordered', '{"product": "tea"}')}), qr/^[0-9a-f-]{36}$/m, 'a change is in force in every session');
$node->sql(q{SELECT outbox.alter_topic('shop.ordered', check_function => 'catalog.known(jsonb)', require => '{key}')});
like($session->run(q{SELECT outbox.stage('shop.ordered', '{"product": "coffee"}')}), qr/requires key/, 'and so is the next one');
like(stage_as('postgres', q{'shop.ordered'}, 'other'), qr/^t$/, 'another database has its own');

# --- mallory does not get further than mallory
my %attempt = (
	# A function of somebody else, or of a superuser, is not hers to choose.
	q{outbox.create_topic('m.a', check_function => 'catalog.known(jsonb)')} => qr/42501: +check function catalog\.known\(.*\) belongs to role "catalog"/,
	q{outbox.create_topic('m.b', check_function => 'public.root(jsonb)')} => qr/42501: +check function public\.root\(.*\) would run as superuser/);
$node->sql(q{CREATE FUNCTION public.root(payload jsonb) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true'});
like($node->sql_error("SET ROLE mallory; SELECT $_"), $attempt{$_}, "refused: $_") foreach sort keys %attempt;
$node->sql(<<'SQL');
SET ROLE mallory;
CREATE TABLE mallory.loot (who name, session name);
CREATE FUNCTION mallory.checks(payload jsonb) RETURNS boolean STABLE LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE payload ->> 'run';
	RETURN true;
END $$;
-- A stable function may call a volatile one.
CREATE FUNCTION mallory.loots() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO mallory.loot VALUES (current_user, session_user);
	RETURN true;
END $$;
CREATE FUNCTION mallory.trap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO mallory.loot VALUES (current_user, 'deferred');
	RETURN NULL;
END $$;
CREATE SEQUENCE mallory.number;
CREATE FUNCTION mallory.tells() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	ASSERT (current_user, session_user, current_setting('transaction_read_only')) = ('mallory', session_user, 'on');
END $$;
CREATE TABLE mallory.later (n int);
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON mallory.later DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION mallory.trap();
CREATE FUNCTION mallory.later() RETURNS boolean LANGUAGE sql AS 'INSERT INTO mallory.later VALUES (1) RETURNING true';
SELECT outbox.create_topic('m.*', check_function => 'mallory.checks(jsonb)');
SQL
foreach my $case (
	[ 'RESET ROLE', qr/ERROR/ ], [ 'SET SESSION AUTHORIZATION DEFAULT', qr/ERROR/ ], [ q{SELECT set_config('role', 'none', false)}, qr/42501|cannot/ ],
	[ 'ALTER ROLE mallory SUPERUSER', qr/ERROR/ ], [ q{SELECT pg_read_file('postgresql.conf')}, qr/permission denied/ ], [ 'SELECT * FROM outbox.message', qr/permission denied/ ],
	[ 'CREATE TEMP TABLE t ()', qr/ERROR/ ], [ 'COMMIT', qr/ERROR/ ])
{
	my ($run, $error) = @$case;
	like(stage_as('postgres', "'m.x', " . $node->quote(qq({"run": "$run"}))), $error, "a superuser stages: $run");
}
# Nor does it write with its own: it was asked whether a payload will do.
foreach my $write ('INSERT INTO mallory.loot VALUES (1)', 'SELECT mallory.loots()', 'SELECT mallory.later()', "SELECT nextval('mallory.number')", 'SET transaction_read_only = off', "SELECT set_config('transaction_read_only', 'off', true)")
{
	like(stage_as('postgres', "'m.x', " . $node->quote(qq({"run": "$write"}))), qr/25006: +cannot|25001|is not allowed in a non-volatile function/, "it does not write: $write");
}
my $listener = PsqlSession->new($node);
$listener->run('LISTEN m');
is(stage_as('postgres', q{'m.x', '{"run": "SELECT mallory.tells()"}'}), 't', 'what it may do it does, as itself');
is(stage_as('postgres', q{'m.x', '{"run": "SELECT pg_notify($$m$$, $$y$$), pg_advisory_xact_lock(260)"}'}), 't', 'or says');
unlike($listener->run('SELECT 1'), qr/notification/i, 'and nothing of it is left');
$listener->close;
is($node->sql('SELECT count(*) FROM mallory.loot'), 0, 'nothing was written');
is(stage_as('postgres', q{'m.x', '{"run": "SET search_path = mallory; SET statement_timeout = 0"}'}) =~ /ERROR/ ? 'refused' : 'done', 'refused', 'settings are no business of a stable function');
# Made into something else after it was chosen.
$node->sql(q{ALTER FUNCTION mallory.checks SECURITY DEFINER SET search_path = mallory});
like(stage_as('postgres', q{'m.x', '{"run": "RESET ROLE"}'}), qr/ERROR/, 'SECURITY DEFINER makes no difference');
$node->sql(q{DROP FUNCTION mallory.checks; CREATE FUNCTION mallory.checks(payload jsonb) RETURNS text STABLE LANGUAGE sql AS 'SELECT ''t'''; ALTER FUNCTION mallory.checks OWNER TO mallory});
like(stage_as('shop', q{'m.x'}), qr/42P13: +check_function mallory\.checks\(pg_catalog\.jsonb\) is not a stable or immutable function of one jsonb that returns boolean/, 'another type of answer is not taken for a boolean');
# Names that the producer's session puts in the way.
$node->sql('CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO PUBLIC; CREATE DOMAIN trap.jsonb AS text; CREATE FUNCTION catalog.known(trap.jsonb) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$SELECT true$$');
$node->sql(q{CREATE FUNCTION trap.eq(text, text) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true'; CREATE OPERATOR trap.= (FUNCTION = trap.eq, LEFTARG = text, RIGHTARG = text)});
my $trapped = PsqlSession->new($node);
$trapped->run('SET search_path = trap, pg_catalog');
like($trapped->run(q{SELECT outbox.stage('shop.ordered', '{"product": "gold"}'::pg_catalog.jsonb, key => 'k')}), qr/there is no product "gold"/, 'search_path makes no difference');
$trapped->close;
$node->sql(q{SELECT outbox.drop_topic('m.*'); DROP SCHEMA mallory CASCADE; DROP SCHEMA trap CASCADE});

# --- a check that stages, or changes the rules meanwhile
$node->sql(<<'SQL');
SELECT outbox.grant_producer('catalog');
SET ROLE catalog;
CREATE FUNCTION catalog.stages(payload jsonb) RETURNS boolean STABLE LANGUAGE sql AS $$SELECT outbox.stage('shop.ordered', '{"product": "coffee"}', key => 'k') IS NOT NULL$$;
CREATE FUNCTION catalog.makes(payload jsonb) RETURNS boolean STABLE LANGUAGE sql AS $$SELECT outbox.create_topic('nested.made') IS NOT NULL$$;
SELECT outbox.create_topic('nested.stages', check_function => 'catalog.stages(jsonb)');
SELECT outbox.create_topic('nested.makes', check_function => 'catalog.makes(jsonb)');
SQL
like(stage_as('shop', q{'nested.stages', '{}'}), qr/25006: +cannot execute outbox\.stage\(\) in a read-only transaction/, 'a check may not stage');
like(stage_as('shop', q{'nested.makes', '{}'}), qr/25006: +cannot execute/, 'nor register topics');
is(stage_as('shop', q{'shop.ordered', '{"product": "coffee"}', key => 'k'}), 't', 'who has called it may write on');
$node->sql(q{SELECT outbox.drop_topic(topic) FROM outbox.topics WHERE topic LIKE 'nested%'});

# --- cancelled by its user
$node->sql(q{SET ROLE catalog; CREATE FUNCTION catalog.slow(payload jsonb) RETURNS boolean STABLE LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(1000); RETURN true; END$$;
	SELECT outbox.create_topic('slow', check_function => 'catalog.slow(jsonb)')});
my $slow = PsqlSession->new($node);
$slow->run(q{SET statement_timeout = '50 ms'});
like($slow->run(q{SELECT outbox.stage('slow')}), qr/canceling statement due to statement timeout/, 'statement_timeout ends a check that takes too long');
like($slow->run(q{SELECT status FROM outbox.try_stage('slow')}), qr/canceling statement/, 'whoever asks');
like($slow->run(q{SELECT outbox.stage('shop.ordered', '{"product": "coffee"}', key => 'k')}), qr/^[0-9a-f-]{36}$/m, 'and the session goes on');
$slow->close;
$node->sql(q{SELECT outbox.drop_topic('slow')});

# --- unknown topics, for a database
$node->sql('ALTER DATABASE other SET outbox.unknown_topics = error');
like(stage_as('postgres', q{'shop.ordered'}, 'other'), qr/42704: +topic "shop\.ordered" is unknown/, 'no topic is known where none is registered');
$node->sql(q{SELECT outbox.create_topic('shop.*')}, 'other');
is(stage_as('postgres', q{'shop.ordered'}, 'other'), 't', 'a pattern makes them known');

# --- a dump has all of it
my ($before) = $node->outbox_contents('postgres');
$node->command_ok([ 'pg_dump', '-Fc', '-d', $node->connstr('postgres'), '-f', "$folder/dump" ], 'dumped');
foreach my $restore ([ restored => [] ], [ parts => ['--section=pre-data'], ['--section=data'], ['--section=post-data'] ], [ disabled => ['--schema-only'], [ '--data-only', '--disable-triggers' ] ])
{
	my ($database, @steps) = @$restore;
	$node->sql("CREATE DATABASE $database");
	my $open = PsqlSession->new($node, $database);
	$node->command_ok([ 'pg_restore', @$_, '-d', $node->connstr($database), "$folder/dump" ], "$database: restored @$_") foreach @steps;
	is(($node->outbox_contents($database))[0], $before, "$database: with everything");
	like(stage_as('shop', q{'shop.ordered', '{"product": "gold"}', key => 'k'}, $database), qr/there is no product "gold"/, "$database: rules hold");
	like($open->run(q{SELECT outbox.stage('shop.ordered', '{}')}), qr/requires key/, "$database: in a session that was there before");
	is($node->sql(q{SELECT count(*) FROM outbox.verify() WHERE finding LIKE 'topic%'}, $database), 0, "$database: nothing is wrong with them");
}

# --- the extension goes and comes while sessions are there
like($session->run(q{SELECT outbox.stage('shop.ordered', '{}')}), qr/requires key/, 'a session with rules');
$node->sql('DROP EXTENSION outbox CASCADE');
like($session->run(q{SELECT outbox.stage('shop.ordered', '{}')}), qr/does not exist/, 'none without the extension');
$node->extension('postgres');
like($session->run(q{SELECT outbox.stage('shop.ordered', '{}')}), qr/^[0-9a-f-]{36}$/m, 'a new one knows no topic');
$node->sql(q{SELECT outbox.create_topic('shop.*', require => '{tenant}')});
like($session->run(q{SELECT outbox.stage('shop.ordered', '{}')}), qr/requires tenant/, 'and then one');
$node->sql(q{BEGIN; SELECT outbox.drop_topic('shop.*'); SAVEPOINT s; SELECT outbox.create_topic('shop.*', require => '{key}'); ROLLBACK TO s; SELECT outbox.stage('shop.ordered'); ROLLBACK});
like($session->run(q{SELECT outbox.stage('shop.ordered', '{}')}), qr/requires tenant/, 'what was rolled back is as it was');

# --- schemas
like($node->sql_error(q{SELECT outbox.create_topic('json.a', schema => '{"required": "id"}')}), qr/0A000: +a schema needs extension pg_jsonschema/, 'no schema without the extension');
my $unit = UnitModule->build;
my $library = $node->quote($unit->{library});
OwnInstallation::write_file($place->extension_folder . '/pg_jsonschema.control', "default_version = '1'\nrelocatable = true\n");
OwnInstallation::write_file($place->extension_folder . '/pg_jsonschema--1.sql', <<"SQL");
CREATE FUNCTION jsonb_matches_schema(schema json, instance jsonb) RETURNS boolean LANGUAGE c IMMUTABLE STRICT AS $library, 'unit_matches_schema';
CREATE FUNCTION jsonschema_validation_errors(schema json, instance json) RETURNS text[] LANGUAGE c IMMUTABLE STRICT AS $library, 'unit_schema_errors';
CREATE FUNCTION jsonschema_is_valid(schema json) RETURNS boolean LANGUAGE c IMMUTABLE STRICT AS $library, 'unit_schema_is_valid';
SQL
$node->sql('CREATE SCHEMA extensions; CREATE EXTENSION pg_jsonschema SCHEMA extensions');
$node->sql(q{SELECT outbox.grant_producer('shop'), outbox.create_topic('json.a', schema => '{"required": "id"}', description => 'Has an id')});
is(stage_as('shop', q{'json.a', '{"id": 1}'}), 't', 'a payload that matches its schema');
like(stage_as('shop', q{'json.a', '{"n": 1}'}), qr/23514: +payload does not match the schema of topic "json\.a": "id" is a required property.*HINT: +Topic "json\.a": Has an id/s, 'and one that does not');
like($session->run(q{SELECT status, detail FROM outbox.try_stage('json.a', '[]')}), qr/invalid\|payload does not match the schema/, 'try_stage() says so');
like($node->sql_error(q{SELECT outbox.create_topic('json.b', schema => '{"bad": true}')}), qr/22023: +schema is not a valid JSON Schema/, 'a schema is looked at');
is($node->sql(q{SELECT outbox.topic_definition('json.a')}), qq{SELECT outbox.create_topic('json.a',\n\tdescription => 'Has an id',\n\tschema => '{"required": "id"}')}, 'it is in the definition');
# One that somebody who owns the extension, but is no superuser, puts in its place.
$node->sql(q{ALTER EXTENSION pg_jsonschema DROP FUNCTION extensions.jsonb_matches_schema; CREATE FUNCTION public.jsonb_matches_schema(json, jsonb) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT true';
	ALTER EXTENSION pg_jsonschema ADD FUNCTION public.jsonb_matches_schema(json, jsonb)});
like(stage_as('shop', q{'json.a', '{"n": 1}'}), qr/0A000: +the schema of topic "json\.a" needs extension pg_jsonschema/, 'a function that is not in C is none of the extension');
like($node->sql(q{SELECT hint FROM outbox.verify() WHERE finding = 'topic with options that it cannot have'}), qr/messages of topic "json\.a" may be refused: a schema needs extension pg_jsonschema/, 'verify() tells');

# --- the documents know each option
my %option = map { split /\|/, $_, 2 } split /\n/, $node->sql('SELECT name, initial FROM outbox_internal.topic_options()');
my %documented = OptionTable::read_table('doc/producers.md', 'option of a topic');
is_deeply(\%documented, \%option, 'doc/producers.md has each option with its default');
my $comment = $node->sql(q{SELECT obj_description('outbox.create_topic'::regproc)});
like($comment, qr/^\Q$_\E \(.*\): ./m, "$_: in the comment on create_topic()") foreach sort keys %option;

$session->close;
unlike($node->log_text, qr/PANIC|TRAP|segfault|was terminated by signal/, 'nothing broke');
$node->stop;
done_testing();
