# The settler: under load receipts are written by a second process, and
# whatever becomes of it, every delivery is settled once.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;
use Time::HiRes qw(time usleep);

plan skip_all => 'a settler needs a second processor' if !OutboxCluster::can_have_settler();

my $receiver = HttpReceiver->start;
# Answers are gathered for long, so that there are enough of them for two.
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.settle_interval = 10s
outbox.rescan_interval = 1h
END
my $settlers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox settler'";

sub load_messages
{
	my ($n, $database) = @_;
	return $node->stage_load('load.item', $n, $database);
}

my $staged = 0;

# Everything staged so far is delivered by the first attempt, and was sent so often.
sub check
{
	my ($name, %expected) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered' AND attempts = 1 AND http_status = 200 AND settled_at IS NOT NULL AND error IS NULL AND code IS NULL", $staged, "$name: all have their receipt");
	is($receiver->count('/load'), $staged, "$name: each was sent once") unless $expected{duplicates};
	return;
}

# A load under which a settler is running; returns the pid of one to which the
# code, if there is any, has done what it is to do.
sub load_with_settler
{
	my ($name, $code) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $pid;
	$staged += $node->load_settler('load', "$name: there is a settler", sub { $pid = shift; return !$code || $code->($pid); });
	return $pid;
}

$node->handler('load', ['load.*'], $receiver->url('/load'), concurrency => 50, timeout => '1 hour');
is($node->sql($settlers), 0, 'nobody is started without need');

# --- it comes with the load
load_with_settler('load');
check('load');
is($node->sql('SELECT count(*) FROM outbox.attempts'), 0, 'no attempt is logged that is not to be');
my $log = $node->log_text;
unlike($log, qr/WARNING|ERROR/, 'and nothing is said of it');

# --- rows that an operator holds, and deliveries that are cancelled while they are out
$node->sql("SELECT outbox.pause_handler('load')");
$staged += load_messages(500);
my $operator = PsqlSession->new($node);
$operator->run("BEGIN; SELECT count(*) FROM (SELECT FROM outbox.delivery WHERE state = 0 ORDER BY message_id LIMIT 100 FOR UPDATE) AS held");
$node->sql("SELECT outbox.resume_handler('load')");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'pending'", 100, 'rows that somebody holds wait, the others do not');
$operator->run('COMMIT');
check('held rows');
unlike($node->log_text, qr/WARNING|ERROR|FATAL/, 'and nobody has failed of it');

$receiver->on('/load', { hang => 1 });
$node->sql("SELECT outbox.stage('load.item')") foreach 1 .. 3;
$receiver->wait_for_requests($staged + 3, '/load');
my $cancelled = $node->sql("SELECT sum(outbox.cancel(message_id, reason => 'no longer wanted')) FROM (SELECT message_id FROM outbox.deliveries WHERE state = 'pending' ORDER BY message_id LIMIT 2) AS d");
is($cancelled, 2, 'two are cancelled while their requests are out');
$receiver->release;
$receiver->on('/load', { status => 200 });
$node->wait_for_states('cancelled 2, delivered ' . ($staged + 1), 'they stay cancelled');
$node->sql("DELETE FROM outbox.message WHERE id IN (SELECT message_id FROM outbox.deliveries WHERE state = 'cancelled')");
$node->sql("DELETE FROM outbox.receipt WHERE state = 5");
$staged++;

# --- the table is locked while answers come in
$receiver->on('/load', { delay => 0.2 });
my $sent = $receiver->count('/load');
$staged += load_messages(200);
$receiver->wait_for_requests($sent + 1, '/load');
$operator->run('BEGIN; LOCK TABLE outbox.delivery IN SHARE MODE');
$node->wait_for('SELECT in_flight FROM outbox.dispatchers', 0, 'while the table is locked nothing more is sent');
$operator->run('COMMIT');
$operator->close;
$receiver->on('/load', { status => 200 });
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", $staged, 'afterwards all is settled');
$receiver->forget;
$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
$staged = 0;

# --- it is cancelled, terminated, and stopped
load_with_settler('cancelled');
foreach (1 .. 20)
{
	$node->sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox settler'");
	usleep(5000);
}
my $pid = load_with_settler('terminated', sub { return $node->sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox settler' AND pid = $_[0]") eq 't'; });
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", 0, 'a settler that is terminated ends');
check('terminated');

# It holds no row then: nobody could settle that.
$pid = load_with_settler('another one', sub { return $node->wait_until_done('load') && kill 'STOP', $_[0]; });
$staged += load_messages(500);
check('a settler that does not answer');
kill 'CONT', $pid;
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", 0, 'is given up, and what it still does harms nobody');
check('late');

# --- settlement fails
load_with_settler('before failures');
check('before failures');
$node->handler('broken', ['broken.*'], $receiver->url('/broken'));
my $id = $node->sql("SELECT id FROM outbox.handler WHERE name = 'broken'");
$node->sql("CREATE INDEX broken ON outbox.receipt ((1 / (attempts - 1))) WHERE attempts = 1 AND handler_id = $id");
$node->stage('broken.item');
$node->wait_while_not(sub { return $node->log_text =~ /division by zero/; }, 'a settlement that fails is reported');
$node->sql('DROP INDEX outbox.broken');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE handler = 'broken'", 'delivered', 'what it was about is settled once it can be');
$node->sql("SELECT outbox.drop_handler('broken')");
$node->sql("DELETE FROM outbox.message WHERE topic = 'broken.item'");
$node->sql("DELETE FROM outbox.receipt WHERE handler_id = $id");
$node->wait_for_dispatcher;

# --- it ends with its dispatcher, comes with the next one, and is in nobody's way
my $dispatcher = $node->dispatcher_pid;
$pid = load_with_settler('after failures');
$node->sql("SELECT pg_terminate_backend($dispatcher)");
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", 0, 'a settler ends with its dispatcher');
$node->wait_for_dispatcher('postgres', $dispatcher);
load_with_settler('another dispatcher');
check('another dispatcher');

# --- what the owner has put into his tables runs with his rights
$node->sql('CREATE DATABASE other; CREATE ROLE dba SUPERUSER');
$node->sql(<<'SQL', 'other');
SET ROLE dba;
SET client_min_messages = warning;
CREATE EXTENSION outbox;
CREATE FUNCTION tell(smallint) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	-- Of the workers, which have no application name.
	IF current_user <> 'dba' AND current_setting('application_name') = '' THEN RAISE LOG 'index of delivery ran as %', current_user; END IF;
	RETURN true;
END $$;
CREATE INDEX ON outbox.receipt (tell(state));
SQL
$node->handler('load', ['load.*'], $receiver->url('/other'), concurrency => 50, database => 'other');
load_messages(6000, 'other');
$node->wait_for("$settlers AND datname = 'other'", 1, 'another database has a settler of its own', 'other');
my $begin = time;
$node->sql('CREATE DATABASE copy TEMPLATE other');
$node->sql('DROP DATABASE copy');
$node->sql('DROP DATABASE other');
cmp_ok(time - $begin, '<', 30, 'it does not keep anybody from copying and dropping the database');
is($node->sql("$settlers AND datname = 'other'"), 0, 'and is gone');
unlike($node->log_text, qr/index of delivery ran as/, 'it has written with the rights of the owner');

# --- kill -9: the server starts again, and duplicates are bounded
load_with_settler('kill', sub { return kill 'KILL', $_[0]; });
$node->wait_until('SELECT true');
$node->wait_for_dispatcher('postgres');
check('kill', duplicates => 1);
my $unsettled = 2000 + 50;
my $requests = $receiver->count('/load');
cmp_ok($requests - $staged, '<=', $unsettled, 'duplicates are bounded (' . ($requests - $staged) . ')');
$receiver->forget;
$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
$staged = 0;

# --- the setting
load_with_settler('before the setting');
$node->sql('ALTER SYSTEM SET outbox.settler = off');
$node->reload;
$node->wait_for($settlers, 0, 'outbox.settler = off ends it');
check('setting');
$staged += load_messages(3000);
check('without');
is($node->sql($settlers), 0, 'and none comes');
$node->sql('ALTER SYSTEM RESET outbox.settler');
$node->reload;

# --- DROP EXTENSION
load_with_settler('before the drop');
$node->sql('DROP EXTENSION outbox CASCADE');
$node->wait_for($settlers, 0, 'DROP EXTENSION ends it');
$node->sql('CREATE EXTENSION outbox');
$receiver->forget;
$node->wait_for_dispatcher;
$node->handler('load', ['load.*'], $receiver->url('/load'), concurrency => 50, timeout => '1 hour');
$staged = 0;

# --- room for one, until a worker that is needed wants it
$node->sql('CREATE DATABASE late');
$node->append_conf('postgresql.conf', 'max_worker_processes = 4');
$node->restart;
$node->wait_for_dispatcher;
load_with_settler('room');
$node->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', 'late');
$node->wait_while_not(
	sub {
		$staged += load_messages(1000) if $node->sql('SELECT count(*) FROM outbox.delivery') < 4000;
		return $node->dispatcher_pid('late');
	},
	'a settler makes room for the dispatcher of another database');
check('made room');
$node->sql('DROP DATABASE late');

# --- no room for one: all goes on without
$node->append_conf('postgresql.conf', 'max_worker_processes = 3');
$node->restart;
$node->wait_for_dispatcher;
$staged += load_messages(4000);
check('no room');
is($node->sql($settlers), 0, 'there was no room for a settler');
$node->stop;

unlike($node->log_text, qr/PANIC|TRAP|deadlock/, 'nothing untoward in the log');
done_testing();
