# Whose code runs with whose rights.  Nothing that a role without any special
# right can put into the database is run with the extension owner's rights or
# a worker's: triggers, foreign keys, default privileges, an owner that is no
# superuser any more.  (pgtap/privileges.sql has who may call what.)
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.rescan_interval = 1s
outbox.log_attempts = all
outbox.delivered_retention = 0
outbox.dead_retention = 0
END

# A role that was given more than it needs: GRANT ALL on the tables, but for
# what would let it write there itself.
$node->sql(<<'SQL');
CREATE ROLE mallory;
CREATE SCHEMA mallory AUTHORIZATION mallory;
GRANT USAGE ON SCHEMA mallory TO PUBLIC;
CREATE ROLE app;
CREATE ROLE "we ""rk' er";
GRANT EXECUTE ON FUNCTION outbox.stage, outbox.try_stage, outbox.stage_many, outbox.accept, outbox.create_handler TO app;
CREATE TABLE public.settled (n int);
GRANT ALL ON public.settled TO app;
CREATE SCHEMA app AUTHORIZATION app;
SQL

# --- triggers of a role that was granted TRIGGER, on every table and for every event
$node->sql('GRANT SELECT, REFERENCES, TRIGGER ON ALL TABLES IN SCHEMA outbox TO mallory');
my @tables = split /\n/, $node->sql("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' ORDER BY 1");
cmp_ok(scalar @tables, '>=', 10, 'tables');
my $traps = join '', map {
	my $table = $_;
	my $row = join '', map { "CREATE TRIGGER trap_row_$_ $_ INSERT OR UPDATE OR DELETE ON outbox.$table FOR EACH ROW EXECUTE FUNCTION mallory.spring();\n"
		  . "CREATE TRIGGER trap_statement_$_ $_ INSERT OR UPDATE OR DELETE ON outbox.$table FOR EACH STATEMENT EXECUTE FUNCTION mallory.spring();\n" } qw(BEFORE AFTER);
	$row . "CREATE CONSTRAINT TRIGGER trap_late AFTER INSERT OR UPDATE OR DELETE ON outbox.$table DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION mallory.spring();\n"
} @tables;
$node->sql(<<"SQL");
SET ROLE mallory;
CREATE TABLE mallory.sprung (what text, who name, super text);
GRANT ALL ON mallory.sprung TO PUBLIC;
CREATE FUNCTION mallory.spring() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN
	INSERT INTO mallory.sprung VALUES (concat_ws(' ', tg_name, tg_op, tg_table_name), current_user, current_setting('is_superuser'));
	RETURN coalesce(new, old);
END \$\$;
$traps
CREATE TABLE mallory.child (id uuid REFERENCES outbox.message ON DELETE CASCADE);
CREATE TRIGGER trap AFTER DELETE ON mallory.child FOR EACH ROW EXECUTE FUNCTION mallory.spring();
SQL
my $sprung = "SELECT string_agg(DISTINCT concat_ws(' ', what, 'as', who), ', ') FROM mallory.sprung";

# What mallory cannot do without owning the tables.
foreach my $statement (
	'ALTER TABLE outbox.attempt ENABLE ALWAYS TRIGGER trap_row_before',
	'ALTER TABLE outbox.attempt ENABLE REPLICA TRIGGER trap_row_before',
	'CREATE INDEX ON outbox.message ((mallory.spring()))',
	'ALTER TABLE outbox.message ADD CHECK (topic IS NOT NULL)',
	'ALTER TABLE outbox.delivery ALTER error SET DEFAULT \'x\'',
	'CREATE RULE trap AS ON INSERT TO outbox.attempt DO ALSO NOTHING',
	'CREATE POLICY trap ON outbox.attempt USING (true)',
	'ALTER TABLE outbox.attempt ENABLE ROW LEVEL SECURITY',
	'CREATE TABLE mallory.heir () INHERITS (outbox.message)',
	'CREATE STATISTICS mallory.s ON topic, key FROM outbox.message',
	'CREATE CAST (text AS jsonb) WITHOUT FUNCTION',
	'CREATE CAST (outbox.settlement AS text) WITH INOUT AS IMPLICIT',
	'CREATE EVENT TRIGGER trap ON ddl_command_start EXECUTE FUNCTION mallory.spring()',
	'CREATE OPERATOR CLASS mallory.c DEFAULT FOR TYPE text USING btree AS STORAGE text',
	'CREATE FUNCTION outbox.stage(text) RETURNS uuid LANGUAGE sql AS \'SELECT NULL::uuid\'',
	'CREATE OR REPLACE FUNCTION outbox_internal.public_key(secret text) RETURNS text LANGUAGE sql AS \'SELECT 1\'',
	'CREATE OR REPLACE VIEW outbox.dispatchers AS SELECT 1',
	'ALTER FUNCTION outbox.stage SET search_path = mallory',
	'ALTER EXTENSION outbox ADD TABLE mallory.sprung',
	'SET session_replication_role = origin')
{
	like($node->sql_error("SET ROLE mallory; $statement"), qr/ERROR:  42501/, "refused: $statement");
}

# Everything that writes: producers, the dispatcher, on_settle functions, consumers, operators.
my $url = $receiver->url('');
$node->sql(<<"SQL");
SET ROLE app;
CREATE FUNCTION app.on_settle(s outbox.settlement) RETURNS void LANGUAGE sql AS 'INSERT INTO public.settled VALUES (1)';
SELECT outbox.create_handler('ok', '{ok.*,all}', '$url/ok', "authorization" => 'Bearer x'),
	outbox.create_handler('hooked', '{hooked.*,all}', '$url/hooked', on_settle => 'app.on_settle(outbox.settlement)'),
	outbox.create_handler('fails', '{fails.*}', '$url/fails', max_attempts => 2, backoff => '{1 ms}', breaker_threshold => 2, breaker_wait => '1 day', breaker_wait_max => '1 day'),
	outbox.create_handler('gone', '{gone.*}', '$url/gone'),
	outbox.create_handler('slow', '{slow.*}', '$url/ok', backoff => '{1 day}'),
	outbox.create_handler('pull "quoted'' one', '{pull.*,all}'),
	outbox.create_handler('dropped', '{dropped.*}', '$url/ok');
RESET ROLE;
SELECT outbox.grant_consumer('pull "quoted'' one', 'we "rk'' er'), outbox.grant_consumer('pull "quoted'' one', 'app');
SQL
$receiver->on('/fails', { status => 500, body => 'no' });
$receiver->on('/gone', { status => 410 });
$node->sql(<<'SQL');
SET ROLE app;
SELECT outbox.stage('all'), outbox.stage('all', dedupe_key => 'd'), outbox.stage('all', dedupe_key => 'd'), outbox.try_stage('all');
SELECT outbox.stage_many('all', '{1,2}');
SELECT outbox.stage('fails.x'), outbox.stage('gone.x'), outbox.stage('slow.x', tenant => 't', delay => '1 day'), outbox.stage('dropped.x', delay => '1 day');
SELECT outbox.accept('s', 'm'), outbox.accept('s', 'm');
SQL
$node->wait_for("SELECT string_agg(DISTINCT handler || ' ' || state, ', ' ORDER BY handler || ' ' || state) FROM outbox.deliveries",
	'dropped pending, fails dead, gone dead, hooked delivered, ok delivered, pull "quoted\' one pending, slow pending', 'all are delivered or dead');
is($node->sql('SELECT count(*) FROM public.settled'), 5, 'functions ran');
$node->wait_for("SELECT string_agg(handler || ' ' || CASE WHEN paused_at IS NULL THEN breaker ELSE 'paused' END, ', ' ORDER BY handler) FROM outbox.handlers WHERE handler IN ('gone', 'fails')", 'fails open, gone paused', 'a breaker is open and a handler paused');
$node->sql(<<'SQL');
SET ROLE "we ""rk' er";
SELECT outbox.claim('pull "quoted'' one', 5);
SQL
foreach my $how ('complete(%1$L, %2$L, 1)', 'complete_many(%1$L, ARRAY[%2$L]::uuid[], \'{1}\')', 'retry(%1$L, %2$L, 1)', 'fail(%1$L, %2$L, 1)', 'extend(%1$L, %2$L, 1, \'1 hour\')', 'release(%1$L, %2$L, 1, \'1 hour\')')
{
	my $call = $node->sql("SELECT format('outbox.$how', handler, message_id) FROM outbox.deliveries WHERE state = 'leased' ORDER BY message_id LIMIT 1" =~ s/'(outbox\..*?)', handler/q{$q$} . $1 . q{$q$, handler}/er);
	like($node->sql("SET ROLE \"we \"\"rk' er\"; SELECT $call"), qr/t/, "a consumer calls $call");
}
$node->sql('INSERT INTO mallory.child SELECT id FROM outbox.message');
$node->sql(<<'SQL');
SELECT outbox.resume_handler('gone'), outbox.requeue_where(handler => 'gone'), outbox.replay('ok', '-infinity');
SELECT outbox.cancel(message_id, handler => 'slow'), outbox.requeue(message_id, 'slow') FROM outbox.deliveries WHERE handler = 'slow';
SQL
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler IN ('ok', 'gone') AND state IN ('pending', 'retrying')", 0, 'again');
$receiver->on('/ok', { status => 500 });
$node->sql("SELECT outbox.stage('slow.y')");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'slow' AND state = 'retrying'", 1, 'retrying');
$node->sql(<<'SQL');
SELECT outbox.retry_now(message_id) FROM outbox.deliveries WHERE state = 'retrying';
SELECT outbox.cancel_where(handler => 'slow'), outbox.cancel_where(handler => 'pull "quoted'' one');
SELECT outbox.erase_tenant('t');
SELECT outbox.pause_handler('ok'), outbox.resume_handler('ok'), outbox.alter_handler('ok', timeout => '1 s', new_name => 'fine'), outbox.rotate_secret('fine');
SELECT outbox.drop_handler('dropped');
SELECT outbox.revoke_consumer('pull "quoted'' one', 'app');
SELECT outbox.prune();
SELECT outbox.drop_handler('pull "quoted'' one');
SQL
$node->sql("BEGIN; SET LOCAL session_replication_role = replica; UPDATE outbox.installation SET database_oid = 1; COMMIT; SELECT outbox.adopt()");
is($node->sql('SELECT count(*) FROM outbox.message m JOIN outbox.receipt d ON d.message_id = m.id WHERE d.settled_at < now() - interval \'1 hour\''), 0, 'pruned');
cmp_ok($node->sql('SELECT count(*) FROM mallory.child c WHERE NOT EXISTS (SELECT FROM outbox.message m WHERE m.id = c.id)'), '>', 0, 'what mallory refers to was removed');
$node->wait_for("SELECT count(*) FROM outbox.on_settle_queue", 0, 'nothing is left to run');
is($node->sql($sprung), '', 'no trigger of mallory has fired');

# The traps are set all the same, and outbox.verify() sees them.
$node->sql(q{UPDATE outbox.handler SET timeout = timeout});
like($node->sql($sprung), qr/trap_late UPDATE handler as postgres, .*trap_statement_before UPDATE handler as postgres/, 'they fire for whoever changes a table by hand');
is($node->sql("SELECT string_agg(finding || ' ' || severity || ' ' || n, ', ' ORDER BY finding) FROM (SELECT finding, severity, sum(rows_found) AS n FROM outbox.verify() WHERE finding ~ 'trigger|foreign|rights|owner' GROUP BY 1, 2) v"),
	'foreign key onto a table of outbox warning 1, table that others have rights on warning ' . @tables . ', trigger of somebody else warning ' . 5 * @tables, 'outbox.verify() reports them');
like($node->sql("SELECT hint FROM outbox.verify() WHERE finding = 'trigger of somebody else' LIMIT 1"), qr/^mallory\.spring\(\) of role mallory runs for whoever changes the table by hand/, 'and says whose they are');
$node->sql('ALTER TABLE outbox.handler ENABLE ALWAYS TRIGGER trap_late');
is($node->sql("SELECT count(*) FROM outbox.verify() WHERE finding = 'trigger of somebody else' AND severity = 'error'"), 1, 'one that outbox would run is an error');
$node->sql('DROP OWNED BY mallory CASCADE');
is($node->sql("SELECT count(*) FROM outbox.verify() WHERE finding ~ 'trigger|foreign|rights|owner'"), 0, 'then they are gone');

# --- what ALTER DEFAULT PRIVILEGES gives away is not given
$node->sql('CREATE DATABASE defaults');
$node->sql(<<'SQL', 'defaults');
CREATE ROLE "Read er";
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO "Read er", PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO "Read er", PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO "Read er";
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO "Read er";
SET client_min_messages = warning;
CREATE EXTENSION outbox;
SQL
is($node->sql(q{
SELECT string_agg(o, ', ') FROM (
	SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'v') AND has_table_privilege('Read er', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
	UNION ALL SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege('Read er', c.oid, 'USAGE, SELECT, UPDATE') END
	UNION ALL SELECT p.proname FROM pg_proc p WHERE p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND has_function_privilege('Read er', p.oid, 'EXECUTE')
	UNION ALL SELECT n.nspname FROM pg_namespace n WHERE n.nspname IN ('outbox', 'outbox_internal') AND has_schema_privilege('Read er', n.oid, CASE n.nspname WHEN 'outbox' THEN 'CREATE' ELSE 'CREATE, USAGE' END)) AS x (o)}, 'defaults'),
	'', 'default privileges open nothing');
is($node->sql("SELECT has_table_privilege('pg_monitor', 'outbox.backlog', 'SELECT')", 'defaults'), 't', 'what is granted on purpose is');

# --- roles that need no grant: what PostgreSQL defines, and who can grant it
$node->sql(<<'SQL');
CREATE ROLE reader;
GRANT pg_read_all_data TO reader;
CREATE ROLE writer;
GRANT pg_read_all_data, pg_write_all_data TO writer;
CREATE ROLE builder CREATEROLE;
CREATE ROLE landlord;
CREATE DATABASE rented OWNER landlord;
SQL
# Before PostgreSQL 16 such a role can grant itself whatever is not a superuser's.
my $self_made = $node->sql('SHOW server_version_num') < 160000;
$node->sql('SET ROLE builder; GRANT pg_read_all_data, pg_write_all_data TO builder') if $self_made;
$node->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', 'rented');
foreach my $database (qw(postgres rented))
{
	$node->sql("SELECT outbox.create_handler('secret', '{secret}', '$url/ok', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', timeout => '9 s'), outbox.create_handler('drawn', '{drawn}'), outbox.grant_consumer('drawn', 'reader'), outbox.stage('drawn'), outbox.accept('s', 'mine')", $database);
}
my %rows = map { my $table = $_; ($table => $node->sql("SELECT count(*) FROM outbox.$table", 'rented')) } @tables;
foreach my $role (qw(reader writer), $self_made ? 'builder' : ())
{
	is($node->sql("SET ROLE $role; SELECT count(*) FROM outbox.$_", 'rented'), 0, "$role sees no row of $_") foreach @tables;
	is($node->sql("SET ROLE $role; SELECT count(*) FROM pg_stats WHERE schemaname = 'outbox'", 'rented'), 0, "$role sees no statistics of columns");
	is($node->sql("SET ROLE $role; COPY outbox.handler_secret TO STDOUT", 'rented'), '', "$role copies nothing");
	like($node->sql_error("SET ROLE $role; SET row_security = off; SELECT count(*) FROM outbox.message", 'rented'), qr/ERROR:  42501: query would be affected by row-level security policy/, "$role cannot switch that off");
	like($node->sql_error("SET ROLE $role; $_", 'rented'), qr/ERROR:  42501/, "$role: $_")
	  foreach 'TRUNCATE outbox.message', "SELECT outbox.stage('drawn')", ($role eq 'reader' ? () : "SELECT outbox.claim('drawn')"), 'ALTER TABLE outbox.message DISABLE ROW LEVEL SECURITY', "SELECT outbox.adopt()";
}
foreach my $role ('writer', $self_made ? 'builder' : ())
{
	foreach my $table (@tables)
	{
		my $column = $node->sql("SELECT attname FROM pg_attribute WHERE attrelid = 'outbox.$table'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum LIMIT 1", 'rented');
		# Triggers of a statement run all the same, and need EXECUTE of whoever changes the table.
		foreach my $statement ("UPDATE outbox.$table SET $column = $column", "DELETE FROM outbox.$table")
		{
			my ($status, $out, $error) = $node->psql('rented', "SET ROLE $role; $statement");
			ok($status == 0 || $error =~ /permission denied/, "$role: $statement") or diag($error);
		}
		like($node->sql_error("SET ROLE $role; INSERT INTO outbox.$table SELECT (SELECT r FROM (SELECT NULL::outbox.$table) x (r)).*", 'rented'), qr/ERROR:  (?:42501|23502)/, "$role: INSERT INTO outbox.$table");
	}
	foreach my $view (split /\n/, $node->sql("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v'", 'rented'))
	{
		is($node->sql("SELECT pg_relation_is_updatable('outbox.$view'::regclass, true)", 'rented'), 0, "nothing can be written through $view");
	}
}
is_deeply({ map { my $table = $_; ($table => $node->sql("SELECT count(*) FROM outbox.$table", 'rented')) } @tables }, \%rows, 'every row is still there');
like($node->sql_error("SET ROLE writer; INSERT INTO outbox.consumer (handler_id, role, role_oid, home, granted_at, granted_by) VALUES (2, 'writer', 'writer'::regrole, gen_random_uuid(), now(), 'writer')", 'rented'), qr/ERROR:  42501: new row violates row-level security policy for table "consumer"/, 'a row of its own is refused');
is($node->sql("SELECT handler || ' ' || timeout FROM outbox.handlers WHERE handler = 'secret'", 'rented'), 'secret 00:00:09', 'and as it was');
like($node->sql_error("SET ROLE landlord; $_", 'rented'), qr/ERROR:  42501/, "the database's owner: $_")
  foreach 'SELECT FROM outbox.message', 'SELECT FROM outbox.handler_secret', 'UPDATE outbox.handler SET timeout = timeout', "SELECT outbox.stage('drawn')", 'SELECT FROM outbox.dead_letters', 'DROP TABLE outbox.message', 'CREATE TABLE outbox.mine ()', 'ALTER EXTENSION outbox UPDATE', 'DROP EXTENSION outbox';
is($node->sql("SELECT string_agg(DISTINCT r.rolname || ' ' || p.proname, ', ') FROM pg_roles r, pg_proc p WHERE r.rolname ~ '^pg_' AND p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND has_function_privilege(r.oid, p.oid, 'EXECUTE') AND p.proname NOT IN ('health', 'metrics', 'dispatchers', 'backlog', 'stat_handlers', 'stat_histograms', 'stat_dispatcher')", 'rented'), '', 'no predefined role may execute anything but what pg_monitor is granted');

# What that must not break: dumps, by whoever may see everything.
sub dump_as
{
	my ($role, @more) = @_;
	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	my ($out, $error) = ('', '');
	IPC::Run::run([ 'pg_dump', '-d', 'rented', "--role=$role", @more ], '>', \$out, '2>', \$error);
	return wantarray ? ($out, $error) : $out;
}
like(scalar dump_as('postgres'), qr/^COPY outbox\.handler_secret .*\n\d+\t\w+\t/m, 'a superuser dumps it all');
my ($out, $error) = dump_as('reader');
like($error, qr/query would be affected by row-level security policy/, 'pg_dump of who may not fails, instead of leaving it out');
is($node->sql("SELECT count(*) FROM outbox.verify() WHERE severity = 'error'", 'rented'), 0, 'outbox.verify() is content');
$node->sql('ALTER TABLE outbox.handler_secret DISABLE ROW LEVEL SECURITY; CREATE POLICY open ON outbox.message USING (true)', 'rented');
is($node->sql("SELECT count(*) FROM outbox.verify() WHERE finding = 'row level security that is switched off' AND severity = 'error'", 'rented'), 2, 'until it is switched off');

# --- an owner that is no superuser any more: what it does to its tables runs with its rights
$node->sql('CREATE ROLE dba SUPERUSER; CREATE DATABASE lost');
$node->sql('SET client_min_messages = warning; SET ROLE dba; CREATE EXTENSION outbox', 'lost');
$node->wait_for_dispatcher('lost');
$node->sql('ALTER ROLE dba NOSUPERUSER; GRANT CREATE ON DATABASE lost TO dba');
$node->sql(<<"SQL", 'lost');
CREATE ROLE hooker;
CREATE FUNCTION public.hook(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
ALTER FUNCTION public.hook OWNER TO hooker;
SELECT outbox.create_handler('ok', '{a}', '$url/fine'), outbox.create_handler('hooked', '{a}', '$url/fine', on_settle => 'public.hook(outbox.settlement)');
SET ROLE dba;
CREATE SCHEMA dba;
CREATE FUNCTION dba.tell() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN RAISE LOG '% ran as %', tg_table_name, current_user; RETURN coalesce(new, old); END \$\$;
CREATE FUNCTION dba.tell(what text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS \$\$ BEGIN RAISE LOG '% ran as %', what, current_user; RETURN true; END \$\$;
CREATE INDEX ON outbox.delivery ((dba.tell('index of delivery')), state);
ALTER TABLE outbox.attempt ADD CHECK (dba.tell('check of attempt'));
CREATE CONSTRAINT TRIGGER late AFTER INSERT OR DELETE ON outbox.on_settle_queue DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dba.tell();
ALTER TABLE outbox.on_settle_queue ENABLE ALWAYS TRIGGER late;
CREATE TRIGGER soon AFTER INSERT ON outbox.attempt FOR EACH ROW EXECUTE FUNCTION dba.tell();
ALTER TABLE outbox.attempt ENABLE ALWAYS TRIGGER soon;
CREATE OR REPLACE FUNCTION outbox_internal.why_copy() RETURNS text LANGUAGE plpgsql AS \$\$ BEGIN PERFORM dba.tell('function of outbox'); RETURN NULL; END \$\$;
SQL
my $before = $node->dispatcher_pid('lost');
$node->sql("SELECT pg_terminate_backend($before)");
$node->wait_for_dispatcher('lost', $before);
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND datname = 'lost'", 1, 'the workers have started with what the owner has changed');
$node->stage('a', '{}', database => 'lost');
$node->wait_for_states('delivered 2', 'delivery goes on', 'lost');
# Of the workers, which have no application name.
my %ran = map { $_ => 1 } $node->log_text =~ /\[\d+\] LOG:  (.+ ran as .+)/g;
is(join(', ', sort keys %ran), 'attempt ran as dba, check of attempt ran as dba, function of outbox ran as dba, index of delivery ran as dba, on_settle_queue ran as dba', 'all of it ran with the rights of the owner');
is($node->sql("SELECT count(*) FROM outbox.verify() WHERE finding = 'owner that is not a superuser' AND severity = 'error'", 'lost'), 1, 'outbox.verify() reports the owner');

unlike($node->log_text, qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
done_testing();
