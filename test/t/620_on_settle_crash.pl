# on_settle and everything that can end in the middle of it: nothing is lost,
# nothing is sent again, and no function has run twice to completion.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.on_settle_timeout = 5min
outbox.rescan_interval = 1h
deadlock_timeout = 20s
END

# Functions that wait for a gate; each one that has passed it leaves a row.
sub prepare
{
	my $database = shift;
	$node->sql(<<'SQL', $database);
CREATE SCHEMA app AUTHORIZATION app;
GRANT EXECUTE ON FUNCTION outbox.create_handler, outbox.drop_handler, outbox.stage TO app;
SET ROLE app;
CREATE TABLE app.gate (n int);
CREATE TABLE app.done (message_id uuid, handler text, attempt int);
CREATE FUNCTION app.pass_gate(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.done VALUES (s.message_id, s.handler, s.attempt);
	LOCK TABLE app.gate IN ROW EXCLUSIVE MODE;
END $$;
SQL
	handler($database, 'gated');
	return;
}

sub handler
{
	my ($database, $name) = @_;
	return $node->sql("SET ROLE app; SELECT outbox.create_handler('$name', '{t.$name}', '" . $receiver->url("/$name") . "', on_settle => 'app.pass_gate(outbox.settlement)')", $database);
}

sub close_gate
{
	my $database = shift // 'postgres';
	my $gate = $node->background_psql($database);
	$gate->query_safe('BEGIN; LOCK TABLE app.gate');
	return $gate;
}

my $running = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND query LIKE 'on_settle of handler%' AND wait_event_type = 'Lock'";

# Three messages, of which the function of the first is running.
sub hand_over
{
	my $database = shift // 'postgres';
	$receiver->forget;
	$node->sql('TRUNCATE app.done', $database);
	$node->stage('t.gated', '{}', database => $database) foreach 1 .. 3;
	$node->wait_for('SELECT count(*) FROM outbox.on_settle_queue', 3, 'three are handed over', $database);
	$node->wait_for($running, 1, 'the function of the first is running');
	return;
}

# All of the handler delivered, sent once, one call each.
sub check_only
{
	my ($handler, $name, $database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->wait_for("SELECT string_agg(DISTINCT state || ' ' || attempts, ', ') FROM outbox.deliveries WHERE handler = '$handler'", 'delivered 1', "$name: all are delivered", $database);
	is($receiver->count("/$handler"), 3, "$name: each was sent once");
	is($node->sql("SELECT count(*), count(DISTINCT message_id) FROM app.done WHERE handler = '$handler'", $database), '3|3', "$name: each function has run once to completion");
	return;
}

sub check
{
	my ($name, $database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	check_only('gated', $name, $database);
	$node->wait_for('SELECT count(*) FROM outbox.on_settle_queue', 0, "$name: no hand-over is left", $database);
	return;
}

sub on_settle_worker
{
	return $node->sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' ORDER BY backend_start LIMIT 1");
}

$node->sql('CREATE ROLE app');
prepare('postgres');

# --- the worker is terminated
my $gate = close_gate();
hand_over();
my $pid = on_settle_worker();
$node->sql("SELECT pg_terminate_backend($pid)");
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND pid <> $pid", 1, 'terminated, the worker comes back');
$gate->query_safe('COMMIT');
$gate->quit;
check('terminated worker');

# --- the spare worker is terminated while the first one is free
$node->sql(<<'SQL');
SET ROLE app;
CREATE TABLE app.gate_2 (n int);
CREATE FUNCTION app.pass_gate_2(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.done VALUES (s.message_id, s.handler, s.attempt);
	LOCK TABLE app.gate_2 IN ROW EXCLUSIVE MODE;
END $$;
SQL
$node->sql("SET ROLE app; SELECT outbox.create_handler('gated_2', '{t.gated_2}', '" . $receiver->url('/gated_2') . "', on_settle => 'app.pass_gate_2(outbox.settlement)')");
$gate = close_gate();
my $gate_2 = $node->background_psql('postgres');
$gate_2->query_safe('BEGIN; LOCK TABLE app.gate_2');
hand_over();
$node->stage('t.gated_2');
$node->wait_for($running, 2, 'while one function runs, a spare worker runs that of another handler');
$node->stage('t.gated_2') foreach 1 .. 2;
$node->wait_for('SELECT count(*) FROM outbox.on_settle_queue', 6, 'more are handed over');
$gate->query_safe('COMMIT');
$gate->quit;
check_only('gated', 'beside the spare');
$pid = $node->sql("SELECT pid FROM pg_stat_activity WHERE query = 'on_settle of handler \"gated_2\"'");
# It is idle once it has found that the spare has those that are left.
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND pid <> $pid AND state = 'idle'", 1, 'the first worker finds nothing to do');
$node->sql("SELECT pg_terminate_backend($pid)");
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE query = 'on_settle of handler \"gated_2\"' AND pid <> $pid", 1, 'the spare terminated, the first one takes over');
$gate_2->query_safe('COMMIT');
$gate_2->quit;
$node->wait_for("SELECT string_agg(DISTINCT state || ' ' || attempts, ', ') FROM outbox.deliveries WHERE handler = 'gated_2'", 'delivered 1', 'all are delivered');
is($receiver->count('/gated_2'), 3, 'each was sent once');
$node->sql("SET ROLE app; SELECT outbox.drop_handler('gated_2')");

# --- the dispatcher is terminated
$gate = close_gate();
hand_over();
$pid = on_settle_worker();
my $dispatcher = $node->dispatcher_pid;
my $begin = time;
$node->sql("SELECT pg_terminate_backend($dispatcher)");
$node->wait_for_dispatcher('postgres', $dispatcher);
cmp_ok(time - $begin, '<', 10, 'terminated, the dispatcher comes back');
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND pid <> $pid", 1, 'with a worker of its own');
$gate->query_safe('COMMIT');
$gate->quit;
check('terminated dispatcher');

# --- kill -9 of the worker: the server restarts
$gate = close_gate();
hand_over();
$pid = on_settle_worker();
kill 'KILL', $pid;
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"), 'kill -9 of the worker');
eval { $gate->{run}->kill_kill; };
$node->wait_for_dispatcher;
check('kill -9 of the worker');

# --- kill -9 of the postmaster
$gate = close_gate();
hand_over();
$node->kill9;
eval { $gate->{run}->kill_kill; };
$node->start_after_crash;
$node->wait_for_dispatcher;
check('kill -9 of the postmaster');

# --- fast shutdown while a function runs and does not return
$gate = close_gate();
hand_over();
$begin = time;
$node->stop('fast');
cmp_ok(time - $begin, '<', 5, 'a fast shutdown does not wait for a function');
eval { $gate->{run}->kill_kill; };
$node->start;
check('fast shutdown');

# --- DROP DATABASE and the like while a function runs
$node->extension('second');
prepare('second');
$gate = close_gate('second');
hand_over('second');
# Whoever holds the gate has to leave as well; the function waits on for its timeout.
$gate->query_safe('COMMIT');
$gate->quit;
check('second database', 'second');
$node->sql(<<'SQL', 'second');
CREATE OR REPLACE FUNCTION app.pass_gate(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.done VALUES (s.message_id, s.handler, s.attempt);
	IF EXISTS (SELECT FROM app.gate) THEN
		PERFORM pg_sleep(600);
	END IF;
END $$;
INSERT INTO app.gate VALUES (1);
SQL
$running = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND query LIKE 'on_settle of handler%' AND wait_event = 'PgSleep'";
hand_over('second');
$begin = time;
$node->sql('ALTER DATABASE second RENAME TO renamed');
cmp_ok(time - $begin, '<', 5, 'ALTER DATABASE RENAME does not wait for a function');
$node->wait_for($running, 1, 'which runs again afterwards');
$begin = time;
$node->sql('CREATE DATABASE copy TEMPLATE renamed');
cmp_ok(time - $begin, '<', 5, 'neither does a copy by TEMPLATE');
$node->wait_for("SELECT state FROM outbox.dispatchers WHERE database = 'copy'", 'held', 'the copy holds its deliveries');
is($node->sql('SELECT count(*) FROM outbox.on_settle_queue', 'copy'), 3, 'it has hand-overs');
$node->wait_for($running, 1, 'the function of the original runs again');
is($node->sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND datname = 'copy'"), 0, 'in the copy none does');
$node->sql('DELETE FROM app.gate', 'copy');
$node->sql('SELECT outbox.adopt()', 'copy');
$node->wait_for("SELECT string_agg(DISTINCT state || ' ' || attempts, ', ') FROM outbox.deliveries WHERE handler = 'gated'", 'delivered 1', 'until the copy is adopted', 'copy');
is($node->sql('SELECT count(*) FROM app.done', 'copy'), 3, 'then each has its call');
$begin = time;
$node->sql('DROP DATABASE renamed');
cmp_ok(time - $begin, '<', 5, 'DROP DATABASE does not wait for a function');
is($node->sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND datname = 'renamed'"), 0, 'and its worker is gone');

# --- DROP EXTENSION waits for the function that runs, no longer
$node->sql("INSERT INTO app.gate VALUES (1); ALTER DATABASE copy SET outbox.on_settle_timeout = '2s'", 'copy');
$node->reload;
hand_over('copy');
$begin = time;
$node->sql('DROP EXTENSION outbox CASCADE', 'copy');
cmp_ok(time - $begin, '<', 10, 'DROP EXTENSION waits for the function that runs, not for those behind it');
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%' AND datname = 'copy'", 0, 'and ends the workers');
$node->sql('DROP DATABASE copy');

# --- a deadlock with somebody who locks the tables: the worker gives way
my $url = $receiver->url('/crossing');
$node->sql(<<"SQL");
SET ROLE app;
CREATE FUNCTION app.cross(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	IF s.attempt = 1 THEN
		PERFORM pg_advisory_xact_lock(7);
	END IF;
	LOCK TABLE app.gate IN ROW EXCLUSIVE MODE;
END \$\$;
SELECT outbox.create_handler('crossing', '{t.crossing}', '$url', on_settle => 'app.cross(outbox.settlement)', backoff => '{1 ms}');
SQL
my $signal = PsqlSession->new($node);
$signal->run('SELECT pg_advisory_lock(7)');
my $locker = PsqlSession->new($node);
$locker->run('BEGIN; LOCK TABLE app.gate');
$receiver->forget;
$node->stage('t.crossing');
$node->wait_for("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", 1, 'a function runs that will want a table');
$locker->start('LOCK TABLE outbox.delivery; COMMIT');
$node->wait_for("SELECT count(*) FROM pg_locks WHERE relation = 'outbox.delivery'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted", 1, 'who has that table waits for the worker');
$signal->run('SELECT pg_advisory_unlock(7)');
is($locker->finish, '', 'it gets its lock');
$locker->close;
$signal->close;
$node->wait_for("SELECT string_agg(DISTINCT state || ' ' || attempts, ', ') FROM outbox.deliveries WHERE attempts > 1", 'delivered 2', 'the function has failed and run again');
like($node->sql("SELECT code || ': ' || error FROM outbox.attempts WHERE handler = 'crossing' AND outcome = 'retrying'"), qr/^on_settle_failed: deadlock detected/, 'which is on record');

# --- no worker to be had: it is said, and made up for
$node->append_conf('postgresql.conf', 'max_worker_processes = 3');
$node->restart;
$node->wait_for_dispatcher;
$receiver->forget;
$node->sql('TRUNCATE app.done');
$node->stage('t.gated') foreach 1 .. 3;
$node->wait_for('SELECT count(*) FROM outbox.on_settle_queue', 3, 'without a worker outcomes wait');
like($node->log_text, qr/WARNING:  outbox cannot run on_settle functions: no background worker slot is free/, 'which is said');
$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;
check('a worker at last');
$node->stop;

unlike($node->log_text, qr/PANIC|TRAP|could not find|deadlock/, 'nothing untoward in the log');
done_testing();
