# Work in the database that fails: what the dispatcher knows stays in memory
# and is tried for ever, one thing that fails keeps nothing else from being
# done, and nothing is sent again because of it.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;

# Whatever waits for a lock here waits in vain.
$ENV{PGOPTIONS} = '-c statement_timeout=60s';

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.rescan_interval = 1h
outbox.log_attempts = none
END
my $pid = $node->wait_for_dispatcher;

sub same_process
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->dispatcher_pid, $pid, "$_[0]: it is the same process");
	return;
}

# --- no outcome can be written, for a reason that says nothing of how long
$node->handler('all', ['all'], $receiver->url('/all'), concurrency => 5);
# Whatever table an outcome goes to.
my @tables = split /\n/, $node->sql("SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND relname IN ('delivery', 'receipt')");
sub refuse_outcomes
{
	my $condition = shift // 'true';
	$node->sql("CREATE INDEX refuse_$_ ON outbox.$_ ((1 / (attempts - 1))) WHERE attempts = 1 AND $condition") foreach @tables;
	return;
}
sub let_outcomes { $node->sql("DROP INDEX outbox.refuse_$_") foreach @tables; return; }

refuse_outcomes();
$node->stage_load('all', 20);
$receiver->wait_for_requests(20, '/all');
my $failures = sub { return scalar(() = $node->log_text =~ /division by zero/g); };
$node->wait_for("SELECT state || ': ' || right(last_error, 16) FROM outbox.dispatchers", 'running: division by zero', 'what is wrong is shown');
like($node->sql("SELECT status, reasons[1] FROM outbox.health()"), qr/^warn\|dispatcher: .*division by zero$/m, 'health() says so too');
# More often than the five times that once ended the process.
my $aborted = "SELECT xact_rollback FROM pg_stat_database WHERE datname = 'postgres'";
my $before = $node->sql($aborted);
$node->wait_for("SELECT xact_rollback >= $before + 8 FROM pg_stat_database WHERE datname = 'postgres'", 't', 'it is tried again and again');
same_process('outcomes that cannot be written');
is($receiver->count('/all'), 20, 'nothing is sent again meanwhile');
cmp_ok($failures->(), '<=', 5, 'and the log is not filled with it');
let_outcomes();
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'all' AND state = 'delivered' AND attempts = 1", 20, 'once they can be written, they are');
is($receiver->count('/all'), 20, 'and each was sent once');
$node->wait_for('SELECT last_error IS NULL FROM outbox.dispatchers', 't', 'nothing is wrong any more');
same_process('afterwards');

# --- those of one handler cannot be written
$node->handler('broken', ['both'], $receiver->url('/broken'));
$node->handler('good', ['both'], $receiver->url('/good'));
refuse_outcomes("handler_id = " . $node->sql("SELECT id FROM outbox.handler WHERE name = 'broken'"));
$node->stage_load('both', 10) foreach 1 .. 3;
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'good' AND state = 'delivered'", 30, 'what cannot be written of one handler keeps nothing of another one waiting');
$node->wait_for('SELECT last_error FROM outbox.dispatchers', 'outcomes that cannot be written: 30, the latest for: division by zero', 'it is put aside, and counted');
$node->wait_for("SELECT DISTINCT concat_ws(' | ', handler, detail, waiting_until > clock_timestamp() - interval '1 minute') FROM outbox.waiting WHERE waiting_for = 'aside'",
	'broken | outcomes that cannot be written: 30, the latest for: division by zero | t', 'outbox.waiting says of which deliveries');
$node->stage_load('both', 10);
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'good' AND state = 'delivered'", 40, 'nor later');
let_outcomes();
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'broken' AND state = 'delivered' AND attempts = 1", 40, 'all of it is written once it can be');
is($receiver->count('/broken'), 40, 'and was sent once');
$node->wait_for('SELECT last_error IS NULL FROM outbox.dispatchers', 't', 'nothing is aside any more');
same_process('outcomes put aside');

# --- outcomes that fail only when they commit say nothing of which they are
$node->handler('commits', ['commits'], $receiver->url('/commits'), concurrency => 20);
$node->sql(<<'END');
CREATE TABLE refused (message_id uuid);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF EXISTS (SELECT FROM public.refused r WHERE r.message_id OPERATOR(pg_catalog.=) NEW.message_id) THEN
		RAISE EXCEPTION 'not at commit';
	END IF;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON outbox.receipt DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();
ALTER TABLE outbox.receipt ENABLE ALWAYS TRIGGER refuse;
BEGIN;
WITH staged AS (SELECT n, outbox.stage('commits') AS id FROM generate_series(1, 60) n) INSERT INTO refused SELECT id FROM staged WHERE n IN (1, 31, 60);
COMMIT;
END
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'commits' AND state = 'delivered'", 57, 'what can be committed is, whatever waits beside it');
$node->wait_for('SELECT last_error FROM outbox.dispatchers', 'outcomes that cannot be written: 3, the latest for: not at commit', 'the others are found and put aside');
is($receiver->count('/commits'), 60, 'each was sent once');
same_process('outcomes that cannot be committed');

# --- a planned end writes what can be written by then, whatever pause it is in
my $rolled_back = $node->sql($aborted);
$node->wait_for("SELECT xact_rollback >= $rolled_back + 12 FROM pg_stat_database WHERE datname = 'postgres'", 't', 'pauses grow');
$node->sql('DELETE FROM refused WHERE message_id <> (SELECT r.message_id FROM refused r ORDER BY r.message_id LIMIT 1)');
$node->sql("SELECT pg_terminate_backend($pid)");
$pid = $node->wait_for_dispatcher('postgres', $pid);
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'commits' AND state = 'delivered' AND attempts = 1", 59, 'what can be written at the end is written');
$receiver->wait_for_requests(61, '/commits');
$node->wait_for('SELECT last_error FROM outbox.dispatchers', 'outcomes that cannot be written: 1, the latest for: not at commit', 'the one that cannot be is sent again');
is($receiver->count('/commits'), 61, 'and no other');
$node->sql('TRUNCATE refused');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'commits' AND state = 'delivered'", 60, 'until it can be');
is($receiver->count('/commits'), 61, 'once');
$node->sql('DROP TRIGGER refuse ON outbox.receipt');

# --- and waits for a row that somebody holds
$node->handler('held', ['held'], $receiver->url('/held'));
$receiver->on('/held', { hang => 1 });
my $held = $node->stage('held');
$receiver->wait_for_requests(1, '/held');
my $holder = PsqlSession->new($node);
$node->append_conf('postgresql.conf', 'outbox.shutdown_grace = 1h');
$node->reload;
$node->wait_for("SELECT setting FROM pg_settings WHERE name = 'outbox.shutdown_grace'", 3600000);
$holder->run("BEGIN; SELECT FROM outbox.delivery WHERE message_id = '$held' FOR UPDATE");
$receiver->release('/held');
$node->wait_for('SELECT in_flight FROM outbox.dispatchers', 0, 'it is answered');
$node->sql("SELECT pg_terminate_backend($pid)");
$holder->run('COMMIT');
$holder->close;
$pid = $node->wait_for_dispatcher('postgres', $pid);
$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$held'", 'delivered 1', 'a row that was held is written when it is let go');
is($receiver->count('/held'), 1, 'and not sent again');

# --- the handlers cannot be read: outcomes are written all the same
$node->handler('slow', ['slow'], $receiver->url('/slow'));
$receiver->on('/slow', { hang => 1 });
$node->stage('slow');
$receiver->wait_for_requests(1, '/slow');
my $operator = PsqlSession->new($node);
$operator->run('BEGIN; LOCK TABLE outbox.handler_secret IN ACCESS EXCLUSIVE MODE');
$node->sql('SELECT outbox_internal.ring_handlers()');
$receiver->release('/slow');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE handler = 'slow'", 'delivered', 'while handlers cannot be read, outcomes are written');

# --- and a dispatcher that starts then waits without work
$node->sql("SELECT pg_terminate_backend($pid)");
$node->wait_for("SELECT count(*) FROM outbox.dispatchers WHERE pid <> $pid", 1, 'another dispatcher comes');
$pid = $node->dispatcher_pid;
SKIP:
{
	skip 'needs /proc', 2 unless -r "/proc/$pid/status";
	my $sleeps = sub { return slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : 0; };
	my $ticks = sub { my @f = split ' ', slurp_file("/proc/$pid/stat") =~ s/^.*\)//sr; return $f[11] + $f[12]; };
	my ($slept, $used) = ($sleeps->(), $ticks->());
	$node->wait_while_not(sub { $sleeps->() >= $slept + 30 }, 'which sleeps between two looks');
	cmp_ok($ticks->() - $used, '<', 100, 'and does not use up a processor');
}
$operator->run('COMMIT');
$node->wait_for_dispatcher;

# --- settings cannot be read while requests are out
$receiver->forget;
$receiver->on('/slow', { hang => 1 });
$node->stage('slow');
$receiver->wait_for_requests(1, '/slow');
# Nobody can connect then, either.
my $session = PsqlSession->new($node);
$operator->run('BEGIN; LOCK TABLE pg_db_role_setting IN ACCESS EXCLUSIVE MODE');
$node->append_conf('postgresql.conf', 'outbox.log_attempts = failures');
$node->reload;
$session->run("SELECT outbox.stage('all') FROM generate_series(1, 5)");
$node->wait_while_not(sub { return $session->run("SELECT count(*) FROM outbox.deliveries WHERE handler = 'all' AND state = 'delivered'") == 25 }, 'while settings cannot be read, others are delivered');
is($session->run('SELECT pid FROM outbox.dispatchers'), $pid, 'by the same process');
$operator->run('COMMIT');
$receiver->release('/slow');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'slow' AND state = 'delivered' AND attempts = 1", 2, 'what was out is delivered');
is($receiver->count('/slow'), 1, 'and was sent once');
same_process('afterwards');

# --- a setting that was given to the role, and taken back
$node->sql('ALTER ROLE CURRENT_USER SET outbox.enabled = off');
$node->reload;
$node->wait_for('SELECT state FROM outbox.dispatchers', 'disabled', 'a setting of the role is taken up');
$node->sql("ALTER DATABASE postgres SET outbox.enabled = on");
$node->sql('ALTER ROLE CURRENT_USER RESET outbox.enabled');
$node->reload;
$node->wait_for('SELECT state FROM outbox.dispatchers', 'running', 'taken back, that of the database is in force');
$node->sql("ALTER DATABASE postgres SET outbox.enabled = off");
$node->reload;
$node->wait_for('SELECT state FROM outbox.dispatchers', 'disabled', 'which can be changed');
$node->sql("ALTER DATABASE postgres RESET outbox.enabled");
$node->reload;
$node->wait_for('SELECT state FROM outbox.dispatchers', 'running', 'and taken back as well');

# --- a planned end waits for what is out
$receiver->forget;
$receiver->on('/slow', { delay => 4 });
$node->stage('slow');
$receiver->wait_for_requests(1, '/slow');
$node->sql("SELECT pg_terminate_backend($pid)");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'slow' AND state = 'delivered' AND attempts = 1", 3, 'an answer that comes within outbox.shutdown_grace is waited for');
$pid = $node->wait_for_dispatcher('postgres', $pid);
is($receiver->count('/slow'), 1, 'so nothing is sent twice');

# One that is not to wait does not.
$node->sql('ALTER SYSTEM SET outbox.shutdown_grace = 0');
$node->reload;
$receiver->on('/slow', { hang => 1 });
$node->stage('slow');
$receiver->wait_for_requests(2, '/slow');
$node->wait_for("SELECT setting FROM pg_settings WHERE name = 'outbox.shutdown_grace'", 0);
$node->sql("SELECT pg_terminate_backend($pid)");
$pid = $node->wait_for_dispatcher('postgres', $pid);
$receiver->wait_for_requests(3, '/slow');
$receiver->release('/slow');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'slow' AND state = 'delivered'", 4, 'without a grace, what was out is sent again');

unlike($node->log_text, qr/PANIC|TRAP|terminated by signal|gives up/, 'no process has ended of any of it');
$_->close foreach $operator, $session;
$node->stop;
done_testing();
