# on_settle functions are somebody's code in a process that belongs to a
# superuser: they get their creator's rights and no others, leave nothing
# behind in the session, and are ended when they take too long.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.on_settle_timeout = 5s
outbox.rescan_interval = 1h
END

$node->sql(<<'SQL');
CREATE ROLE app;
CREATE ROLE other;
CREATE SCHEMA app AUTHORIZATION app;
GRANT EXECUTE ON FUNCTION outbox.create_handler, outbox.stage TO app, other;
CREATE TABLE public.secret AS SELECT 'hidden'::text AS s;
CREATE TABLE public.guarded (owner name, n int);
ALTER TABLE public.guarded ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON public.guarded USING (owner = current_user);
GRANT SELECT, INSERT ON public.guarded TO app;
INSERT INTO public.guarded VALUES ('app', 1), ('other', 2);
SET ROLE app;
CREATE TABLE app.seen (n serial, handler text, what text);
GRANT USAGE ON SCHEMA app TO other;
GRANT ALL ON ALL TABLES IN SCHEMA app TO other;
GRANT ALL ON ALL SEQUENCES IN SCHEMA app TO other;
SQL

# A handler of a role, whose function has this body; one attempt only.
sub handler
{
	my ($name, $body, %options) = @_;
	my $owner = delete $options{owner} // 'app';
	my $database = delete $options{database} // 'postgres';
	my $arguments = join '', map { ", $_ => " . $node->quote($options{$_}) } sort keys %options;
	return $node->sql(<<"SQL", $database);
CREATE FUNCTION app.$name(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS \$f\$
$body
\$f\$;
ALTER FUNCTION app.$name OWNER TO $owner;
SET ROLE $owner;
SELECT outbox.create_handler('$name', '{t.$name}', '@{[$receiver->url("/$name")]}', on_settle => 'app.$name(outbox.settlement)', max_attempts => 1$arguments);
SQL
}

sub outcome
{
	my $handler = shift;
	return "SELECT concat_ws(' ', state, code) FROM outbox.deliveries WHERE handler = '$handler' ORDER BY message_id DESC LIMIT 1";
}

# Deliver one message; what became of it, and the error.
sub result
{
	my $name = shift;
	my $id = $node->stage("t.$name");
	$node->wait_until("SELECT state NOT IN ('pending', 'leased') FROM outbox.deliveries WHERE message_id = '$id'");
	return $node->sql("SELECT concat_ws(': ', state, error) FROM outbox.deliveries WHERE message_id = '$id'");
}

# --- what a function may not do
my %refused = (
	set_role => [ 'SET ROLE postgres', 'cannot set parameter "role" within security-definer function' ],
	set_role_other => [ 'SET ROLE other', 'cannot set parameter "role" within security-definer function' ],
	reset_role => [ 'RESET ROLE', 'cannot set parameter "role" within security-definer function' ],
	set_session => [ 'SET SESSION AUTHORIZATION postgres', 'cannot set parameter "session_authorization" within security-definer function' ],
	reset_session => [ 'RESET SESSION AUTHORIZATION', 'cannot set parameter "session_authorization" within security-definer function' ],
	discard => [ 'DISCARD ALL', qr/cannot/ ],
	config_role => [ "PERFORM set_config('role', 'postgres', false)", 'cannot set parameter "role" within security-definer function' ],
	temp_table => [ 'CREATE TEMP TABLE t (n int)', 'cannot create temporary table within security-restricted operation' ],
	temp_view => [ 'CREATE TEMP VIEW v AS SELECT 1', 'cannot create temporary table within security-restricted operation' ],
	hold_cursor => [ "EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT 1'", 'cannot create a cursor WITH HOLD within security-restricted operation' ],
	listen => [ "EXECUTE 'LISTEN x'", qr/cannot execute LISTEN/ ],
	prepare => [ "EXECUTE 'PREPARE p AS SELECT 1'", 'cannot execute PREPARE within security-restricted operation' ],
	replication => [ "SET session_replication_role = 'replica'", 'permission denied to set parameter "session_replication_role"' ],
	settings => [ 'SET outbox.enabled = off', 'permission denied to set parameter "outbox.enabled"' ],
	commit => [ 'COMMIT', 'invalid transaction termination' ],
	read_secret => [ "PERFORM x.s FROM public.secret x", 'permission denied for table secret' ],
	read_roles => [ 'PERFORM rolpassword FROM pg_authid', 'permission denied for table pg_authid' ],
	read_outbox => [ 'PERFORM FROM outbox.message', 'permission denied for table message' ],
	read_signing => [ 'PERFORM FROM outbox.handler_secret', 'permission denied for table handler_secret' ],
	read_file => [ "PERFORM pg_read_file('postgresql.conf')", qr/permission denied/ ],
	program => [ "COPY app.seen TO PROGRAM 'true'", qr/must be superuser|permission denied/ ],
	internal => [ "PERFORM outbox_internal.ring_rescan()", 'permission denied for schema outbox_internal' ],
	become => [ 'ALTER ROLE app SUPERUSER', qr/must be superuser|permission denied/ ]);
foreach my $name (sort keys %refused)
{
	my ($statement, $expected) = @{ $refused{$name} };
	handler($name, "BEGIN INSERT INTO app.seen (handler) VALUES (s.handler); $statement; END");
	my $result = result($name);
	ref $expected ? like($result, qr/^dead: .*$expected/, "$name is refused") : is($result, "dead: $expected", "$name is refused");
}
is($node->sql('SELECT count(*) FROM app.seen'), 0, 'nothing that came with it stays');

# --- what it sees, whatever another function has tried to leave behind
my $look = <<'SQL';
BEGIN
	INSERT INTO app.seen (handler, what) SELECT s.handler, concat_ws('|', current_user, current_setting('search_path'), current_setting('work_mem'),
		nullif(current_setting('app.x', true), ''), current_setting('row_security'), current_setting('DateStyle'), current_setting('transaction_read_only'),
		(SELECT string_agg(n::text, ',') FROM public.guarded), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'));
END
SQL
handler('look_before', $look);
is(result('look_before'), 'delivered', 'a function that looks around');
my $before = $node->sql("SELECT what FROM app.seen WHERE handler = 'look_before'");
is($before, 'app|pg_catalog, pg_temp|4MB|on|ISO, MDY|off|1|0', 'it has a fixed search_path, and row security');
handler('litter', <<'SQL');
BEGIN
	PERFORM set_config('search_path', 'app', false), set_config('work_mem', '1MB', false), set_config('app.x', 'left', false), set_config('DateStyle', 'German', false);
	PERFORM pg_advisory_lock(1);
	SET row_security = off;
	SET statement_timeout = 0;
	SET lock_timeout = 0;
	SET LOCAL transaction_read_only = on;
	SET CONSTRAINTS ALL DEFERRED;
END
SQL
is(result('litter'), 'delivered', 'a function that changes settings and takes a session lock');
handler('litter_and_fail', <<'SQL');
BEGIN
	PERFORM set_config('search_path', 'app', false), set_config('work_mem', '1MB', false), set_config('app.x', 'left', false), set_config('DateStyle', 'German', false);
	PERFORM pg_advisory_lock(2);
	RAISE EXCEPTION 'x';
END
SQL
is(result('litter_and_fail'), 'dead: x', 'and one that fails afterwards');
handler('look_after', $look);
is(result('look_after'), 'delivered', 'after them');
is($node->sql("SELECT what FROM app.seen WHERE handler = 'look_after'"), $before, 'all is as it was');
$node->sql('GRANT SELECT, INSERT ON public.guarded TO other');
handler('look_other', $look, owner => 'other');
is(result('look_other'), 'delivered', 'a function of another role');
like($node->sql("SELECT what FROM app.seen WHERE handler = 'look_other'"), qr/^other\|.*\|2\|0$/, 'has the rights of that one');

# --- whose rights: the function's owner's, whoever made the handler, and never a superuser's
$node->sql(<<"SQL");
CREATE FUNCTION app.as_owner(s outbox.settlement) RETURNS void LANGUAGE sql AS \$\$ INSERT INTO app.seen (handler, what) VALUES (s.handler, current_user) \$\$;
ALTER FUNCTION app.as_owner OWNER TO app;
SELECT outbox.create_handler('as_owner', '{t.as_owner}', '@{[$receiver->url("/as_owner")]}', on_settle => 'app.as_owner(outbox.settlement)', max_attempts => 1);
SQL
is(result('as_owner'), 'delivered', 'a handler of a superuser');
is($node->sql("SELECT what FROM app.seen WHERE handler = 'as_owner'"), 'app', 'has its function run as the owner');
like($node->sql_error("SET ROLE other; SELECT outbox.create_handler('taken', '{t.taken}', '@{[$receiver->url('/taken')]}', on_settle => 'app.as_owner(outbox.settlement)')"),
	qr/ERROR:  42501: on_settle function app\.as_owner\(outbox\.settlement\) belongs to role "app"/, 'nobody can have a function run that belongs to somebody else');
$node->sql('GRANT app TO other');
$node->sql("SET ROLE other; SELECT outbox.create_handler('taken', '{t.taken}', '@{[$receiver->url('/taken')]}', on_settle => 'app.as_owner(outbox.settlement)', max_attempts => 1)");
is(result('taken'), 'delivered', 'but a member of the owner can');
is($node->sql("SELECT what FROM app.seen WHERE handler = 'taken'"), 'app', 'as which it runs');
$node->sql('REVOKE app FROM other; ALTER FUNCTION app.as_owner OWNER TO postgres');
is(result('as_owner'), 'dead: on_settle function app.as_owner(outbox.settlement) would run as a superuser', 'not at all once that is a superuser');
handler('promoted', "BEGIN INSERT INTO app.seen (handler, what) VALUES (s.handler, current_user); END", owner => 'other');
$node->sql('ALTER ROLE other SUPERUSER');
is(result('promoted'), 'dead: on_settle function app.promoted(outbox.settlement) would run as a superuser', 'nor when the owner has become one');
$node->sql('ALTER ROLE other NOSUPERUSER; REVOKE USAGE ON SCHEMA app FROM other');
is(result('promoted'), 'dead: permission denied for schema app', 'an owner who has lost USAGE of the schema');
$node->sql('GRANT USAGE ON SCHEMA app TO other; REVOKE EXECUTE ON FUNCTION app.promoted FROM PUBLIC, other');
is(result('promoted'), 'dead: permission denied for function promoted', 'one who has lost EXECUTE');
$node->sql('DROP OWNED BY other; DROP ROLE other');
is(result('promoted'), 'dead: on_settle function app.promoted(outbox.settlement) does not exist', 'one who is gone, with the function');

# Rows cannot lend rights: not even whoever can change every row of outbox becomes another role by it.
$node->sql(<<'SQL');
CREATE ROLE forger BYPASSRLS;
GRANT pg_read_all_data, pg_write_all_data TO forger;
GRANT USAGE ON SCHEMA app TO forger;
GRANT ALL ON app.seen, app.seen_n_seq TO forger;
GRANT EXECUTE ON FUNCTION outbox.create_handler TO forger;
CREATE SCHEMA forger AUTHORIZATION forger;
SQL
$node->sql(<<"SQL");
SET ROLE forger;
CREATE FUNCTION forger.forged(s outbox.settlement) RETURNS void LANGUAGE sql AS \$\$ INSERT INTO app.seen (handler, what) VALUES (s.handler, current_user) \$\$;
SELECT outbox.create_handler('forged', '{t.forged}', '@{[$receiver->url("/forged")]}', on_settle => 'forger.forged(outbox.settlement)', max_attempts => 1);
SQL
foreach my $victim (qw(app postgres))
{
	# The owner's session does it, so that the trigger that tells of it may be executed.
	$node->sql("UPDATE outbox.handler SET creator = '$victim', creator_oid = '$victim'::regrole WHERE name = 'forged'");
	is(result('forged'), 'delivered', "a row that names $victim as the creator");
	is($node->sql("SELECT what FROM app.seen WHERE handler = 'forged' ORDER BY n DESC LIMIT 1"), 'forger', 'does not have the function run as that role');
}

# The creator is a role, not a name: one that is renamed stays it, and another that gets its name has no part in it.
$node->sql('CREATE ROLE renamed; GRANT USAGE ON SCHEMA app TO renamed; GRANT ALL ON ALL TABLES IN SCHEMA app TO renamed; GRANT ALL ON ALL SEQUENCES IN SCHEMA app TO renamed; GRANT EXECUTE ON FUNCTION outbox.create_handler, outbox.alter_handler TO renamed');
handler('named', "BEGIN INSERT INTO app.seen (handler, what) VALUES (s.handler, current_user); END", owner => 'renamed');
$node->sql('ALTER ROLE renamed RENAME TO second; CREATE ROLE renamed; GRANT USAGE ON SCHEMA app TO renamed; GRANT EXECUTE ON FUNCTION outbox.alter_handler TO renamed');
is($node->sql("SELECT finding || ' ' || severity FROM outbox.verify() WHERE handler = 'named'"), 'creator that was renamed info', 'outbox.verify() tells of a renamed creator');
is(result('named'), 'delivered', 'a creator who was renamed');
is($node->sql("SELECT what FROM app.seen WHERE handler = 'named'"), 'second', 'still is the one');
like($node->sql_error("SET ROLE renamed; SELECT outbox.alter_handler('named', on_settle => 'app.named(outbox.settlement)')"), qr/only role "renamed" can set/, 'one that has the name is not');
$node->sql("SET ROLE second; SELECT outbox.alter_handler('named', on_settle => 'app.named(outbox.settlement)')");
is($node->sql("SELECT creator FROM outbox.handlers WHERE handler = 'named'"), 'second', 'a change of the handler brings the name up to date');
$node->sql('DROP OWNED BY second; DROP ROLE second; CREATE ROLE second SUPERUSER');
is(result('named'), 'dead: on_settle function app.named(outbox.settlement) does not exist', 'it goes with its owner, whoever has the name then');
is($node->sql("SELECT finding || ' ' || severity FROM outbox.verify() WHERE handler = 'named'"), 'creator that is no role info', 'outbox.verify() tells of a creator who is gone');

# A function by the same name in a schema that comes first is not the one.
$node->sql(<<'SQL');
CREATE SCHEMA evil;
CREATE FUNCTION evil.look_before(s outbox.settlement) RETURNS void LANGUAGE sql AS 'SELECT 1 / 0';
GRANT USAGE ON SCHEMA evil TO PUBLIC;
ALTER DATABASE postgres SET search_path = evil, public;
SQL
$node->reload;
is(result('look_before'), 'delivered', 'search_path settings do not matter');

# --- deferred constraints count while the function still does
$node->sql(<<'SQL');
SET ROLE app;
CREATE TABLE app.parent (n int PRIMARY KEY);
CREATE TABLE app.child (n int REFERENCES app.parent DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE app.traced (who name);
CREATE FUNCTION app.trace() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.seen (handler, what) VALUES ('trigger', current_user);
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER trace AFTER INSERT ON app.traced DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.trace();
SQL
handler('orphan', 'BEGIN INSERT INTO app.child VALUES (1); END');
like(result('orphan'), qr/^dead: insert or update on table "child" violates foreign key constraint "child_n_fkey"/, 'a deferred constraint that is violated fails the function');
is($node->sql('SELECT count(*) FROM app.child'), 0, 'and nothing of it stays');
handler('adopted', 'BEGIN INSERT INTO app.parent VALUES (1); INSERT INTO app.child VALUES (1); END');
is(result('adopted'), 'delivered', 'one that holds does not');
handler('too_early', 'BEGIN INSERT INTO app.child VALUES (2); INSERT INTO app.parent VALUES (2); END');
like(result('too_early'), qr/^dead: insert or update on table "child" violates/, 'it is checked at once, not at the end');
handler('trigger', 'BEGIN INSERT INTO app.traced VALUES (1); END');
is(result('trigger'), 'delivered', 'a deferred trigger runs');
is($node->sql("SELECT string_agg(what, ',') FROM app.seen WHERE handler = 'trigger'"), 'app', 'with the rights of the function');
handler('defer', 'BEGIN SET CONSTRAINTS ALL DEFERRED; INSERT INTO app.traced VALUES (1); END');
is(result('defer'), 'dead: cannot fire deferred trigger within security-restricted operation', 'a function cannot put it off until it would have others');
is($node->sql('SELECT count(*) FROM app.traced'), 1, 'and nothing of it stays');
is($node->sql('SELECT count(*) FROM outbox.on_settle_queue'), 0, 'no hand-over is left');

# --- time: a slow function is cancelled, and nobody waits for it but its own handler
$node->sql("ALTER DATABASE postgres SET outbox.on_settle_timeout = '1500ms'");
$node->reload;
$node->sql('GRANT EXECUTE ON FUNCTION outbox.alter_handler TO app');
handler('sleepy', 'BEGIN PERFORM pg_sleep(60); END');
handler('quick', "BEGIN INSERT INTO app.seen (handler) VALUES (s.handler); END");
$node->sql("SELECT outbox.create_handler('bare', '{t.bare}', '@{[$receiver->url('/bare')]}')");
$node->sql("SELECT outbox.stage('t.sleepy') FROM generate_series(1, 9)");
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE query = 'on_settle of handler \"sleepy\"'", 1, 'a function that sleeps is running');
my $begin = time;
foreach my $round (1 .. 3)
{
	$node->sql("SELECT outbox.stage(t) FROM unnest('{t.quick,t.bare}'::text[]) t, generate_series(1, 100)");
	$node->wait_for("SELECT string_agg(handler || ' ' || n, ',') FROM (SELECT handler, count(*) AS n FROM outbox.deliveries WHERE handler IN ('quick', 'bare') AND state = 'delivered' GROUP BY 1 ORDER BY 1) x",
		"bare @{[100 * $round]},quick @{[100 * $round]}", "others go on meanwhile ($round)");
}
my $took = time - $begin;
my $slept = $node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'sleepy' AND state = 'dead'");
cmp_ok($slept, '<', 9, "while that function slept ($took s)");
$node->wait_for(q{SELECT string_agg(state || ' ' || code || ' ' || error, ', ') FROM outbox.deliveries WHERE handler = 'sleepy'},
	join(', ', ('dead on_settle_failed on_settle function was cancelled after 1500 ms (outbox.on_settle_timeout)') x 9), 'it is cancelled each time');
is($node->sql("SELECT count(*) FROM app.seen WHERE handler = 'quick'"), 300, 'each of the others had its call');

# It may wait for a lock for half the time.
handler('waiting', 'BEGIN LOCK TABLE app.parent; END');
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN; LOCK TABLE app.parent');
is(result('waiting'), 'dead: canceling statement due to lock timeout', 'a lock that nobody gives is waited for for half the time');
$locker->query_safe('ROLLBACK');
$locker->quit;

# One that catches its cancellation and goes on ends with its process, once.
handler('stubborn', <<'SQL');
BEGIN
	INSERT INTO app.seen (handler) VALUES (s.handler);
	LOOP
		BEGIN
			PERFORM pg_sleep(60);
		EXCEPTION WHEN query_canceled THEN
			NULL;
		END;
	END LOOP;
END
SQL
my $postmaster = $node->sql('SELECT pg_postmaster_start_time()');
like(result('stubborn'), qr/^dead: on_settle function did not stop when it was cancelled/, 'a function that does not stop is ended with its process');
is($node->sql('SELECT pg_postmaster_start_time()'), $postmaster, 'the server goes on');
is($node->sql("SELECT count(*) FROM app.seen WHERE handler = 'stubborn'"), 0, 'nothing it wrote stays');
is(result('quick'), 'delivered', 'and a new worker has taken over');

# An operator cancels it by hand.
$node->sql("ALTER DATABASE postgres SET outbox.on_settle_timeout = '60s'");
$node->reload;
my $id = $node->stage('t.sleepy');
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE query = 'on_settle of handler \"sleepy\"'", 1, 'the function sleeps again');
$node->sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query = 'on_settle of handler \"sleepy\"'");
$node->wait_for("SELECT concat_ws(' ', state, error) FROM outbox.deliveries WHERE message_id = '$id'", 'dead canceling statement due to user request', 'pg_cancel_backend() fails the function');
$node->sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker'");
is(result('quick'), 'delivered', 'an idle worker does not mind being cancelled');

# Nothing of what was told or done went into the log.
$node->stop;
my $log = $node->log_text;
unlike($log, qr/ERROR:(?!.*(statement|role|permission))/, 'failures of functions are not server errors');
unlike($log, qr/PANIC|TRAP|terminated by signal/, 'nothing crashed');
done_testing();
