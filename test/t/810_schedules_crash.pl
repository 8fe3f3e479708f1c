# Schedules while processes are killed and the server stops and starts: each
# occurrence takes place once, its function's writes and its message with it.
use strict;
use warnings;

use OutboxCluster;
use Test::More;
use Time::HiRes qw(usleep);

my $node = OutboxCluster->create('main', conf => 'fsync = off');
$node->wait_for_dispatcher;
$node->sql(<<'SQL');
CREATE ROLE app;
CREATE SCHEMA app AUTHORIZATION app;
GRANT EXECUTE ON FUNCTION outbox.create_schedule, outbox.stage TO app;
SET ROLE app;
CREATE TABLE app.calls (at timestamptz, tries int);
CREATE FUNCTION app.note(o outbox.occurrence) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.calls VALUES (o.scheduled_at, o.attempt);
	PERFORM outbox.stage('noted', to_jsonb(o.scheduled_at));
	PERFORM pg_sleep(0.2);
END $$;
SELECT outbox.create_schedule('function', every => '1 s', function => 'app.note(outbox.occurrence)', catch_up => 'all');
RESET ROLE;
SELECT outbox.create_schedule('message', every => '1 s', topic => 'tick', catch_up => 'all', payload => '"{{scheduled_at}}"');
SELECT outbox.create_schedule('skip', every => '1 s', topic => 'skip', grace => '0');
SELECT outbox.create_schedule('last', '@hourly', topic => 'last', catch_up => 'last');
SQL

# All seconds from the first one to the last, and each once.
sub each_once
{
	my ($what, $times, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($node->sql("SELECT CASE WHEN count(*) > 0 AND count(*) = count(DISTINCT t) AND count(*) = extract(epoch FROM max(t) - min(t)) + 1 THEN 'each once' ELSE string_agg(t::text, ' ' ORDER BY t) END FROM ($times) v (t)"),
		'each once', "$name: $what");
}

sub check
{
	my $name = shift;
	my ($message, $function) = map { $node->sql("SELECT runs FROM outbox.schedules WHERE name = '$_'") } qw(message function);
	$node->wait_for("SELECT bool_and(next_run_at > now() - interval '1 s' AND runs > CASE name WHEN 'message' THEN $message ELSE $function END) FROM outbox.schedules WHERE name IN ('message', 'function')", 't', "$name: they go on, and catch up");
	each_once('messages', "SELECT (payload #>> '{}')::timestamptz FROM outbox.message WHERE topic = 'tick'", $name);
	each_once('what functions wrote', 'SELECT at FROM app.calls', $name);
	each_once('what functions staged', "SELECT (payload #>> '{}')::timestamptz FROM outbox.message WHERE topic = 'noted'", $name);
	is($node->sql(q{SELECT string_agg(name || ' ' || missed, ', ') FROM outbox.schedules WHERE missed > 0 AND catch_up = 'all'}), '', "$name: none was missed");
	return;
}

check('at first');

# A process of the server is killed: all of them start anew, whatever they were at.
foreach my $victim ('outbox schedule worker', 'outbox dispatcher', 'outbox schedule worker')
{
	my $pid;
	$node->wait_while_not(sub { $pid = $node->sql("SELECT pid FROM pg_stat_activity WHERE backend_type = '$victim' ORDER BY wait_event = 'PgSleep' DESC NULLS LAST LIMIT 1") }, "there is an $victim");
	kill 'KILL', $pid;
	$node->wait_until("SELECT pg_postmaster_start_time() IS NOT NULL AND count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	check("kill -9 of the $victim");
}

# All at once.
foreach my $round (1 .. 3)
{
	usleep(137_000 * $round);
	$node->kill9;
	$node->start_after_crash;
	check("kill -9 of the server, round $round");
}

# Stopped and started: what was missed is caught up, or not.
my $missed = $node->sql(q{SELECT missed FROM outbox.schedules WHERE name = 'skip'});
$node->stop;
usleep(2_500_000);
$node->start;
check('stop and start');
cmp_ok($node->sql(q{SELECT missed FROM outbox.schedules WHERE name = 'skip'}), '>', $missed, 'who skips has missed some');
is($node->sql(q{SELECT count(*) = count(DISTINCT dedupe_key) FROM outbox.message WHERE topic = 'skip'}), 't', 'and none came twice');

# The last one only.  (It may be the hour.)
my ($hours_run, $hours_missed) = split /\|/, $node->sql(q{SELECT runs, missed FROM outbox.schedules WHERE name = 'last'});
$node->sql(q{UPDATE outbox.schedule_status SET next_run_at = date_trunc('hour', now()) - interval '5 hours', wake_at = date_trunc('hour', now()) - interval '5 hours'
	WHERE schedule_id = (SELECT id FROM outbox.schedule WHERE name = 'last')});
$node->restart;
$node->wait_for(q{SELECT runs || ' ' || missed || ' ' || (last_scheduled_at = date_trunc('hour', last_run_at)) FROM outbox.schedules WHERE name = 'last'}, join(' ', $hours_run + 1, $hours_missed + 5, 'true'), 'the last one after five hours');

unlike($node->log_text, qr/PANIC|TRAP/, 'nothing broke');
$node->stop;
done_testing();
