# Schedules, by the server's worker: occurrences take place once and in time,
# functions as their owners, and none of them waits for another that fails.
use strict;
use warnings;

use OutboxCluster;
use PsqlSession;
use Test::More;

my $node = OutboxCluster->create('main');
$node->wait_for_dispatcher;

# The times of a schedule's messages are those from the first one on, each once, so many of them.
sub each_once
{
	my ($schedule, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($node->sql(<<"END"), 't', $name);
SELECT count(*) > 0 AND count(*) = count(DISTINCT t) AND count(*) = extract(epoch FROM max(t) - min(t)) + 1
FROM (SELECT regexp_replace(dedupe_key, '^schedule:[^:]*:', '')::timestamptz AS t FROM outbox.message WHERE dedupe_key LIKE 'schedule:$schedule:%') v
END
}

sub workers
{
	return "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox schedule worker'";
}

# Functions are those of a role without special rights.
$node->sql(<<'SQL');
CREATE ROLE app;
CREATE SCHEMA app AUTHORIZATION app;
GRANT EXECUTE ON FUNCTION outbox.create_schedule, outbox.alter_schedule, outbox.stage TO app;
SET ROLE app;
CREATE TABLE app.calls (o outbox.occurrence, who name DEFAULT current_user);
CREATE FUNCTION app.fan_out(o outbox.occurrence) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.calls (o) VALUES (o);
	PERFORM outbox.stage('shop.closed', jsonb_build_object('shop', n), dedupe_key => o.scheduled_at::text || n) FROM generate_series(1, 3) n;
END $$;
CREATE FUNCTION app.fail(o outbox.occurrence) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM outbox.stage('never');
	RAISE EXCEPTION 'attempt %', o.attempt;
END $$;
CREATE FUNCTION app.stubborn(o outbox.occurrence) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		BEGIN
			PERFORM pg_sleep(100);
		EXCEPTION WHEN query_canceled THEN NULL;
		END;
	END LOOP;
END $$;
CREATE FUNCTION app.greedy(o outbox.occurrence) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'RESET ROLE';
	EXECUTE 'ALTER ROLE app SUPERUSER';
END $$;
SQL

# --- without schedules there is no worker; with one that is far away neither
is($node->sql(workers()), 0, 'no schedule, no worker');
$node->sql(q{SELECT outbox.create_schedule('yearly', '@yearly', topic => 'a.b')});
$node->sql(q{SELECT outbox.create_schedule('second', every => '1 s', topic => 'tick', payload => '{"at": "{{scheduled_at}}"}', catch_up => 'all')});
$node->wait_for(q{SELECT runs >= 3 FROM outbox.schedules WHERE name = 'second'}, 't', 'a message each second');
each_once('second', 'each second once');
is($node->sql(q{SELECT bool_and(dedupe_key = 'schedule:second:' || (payload ->> 'at')) FROM outbox.message WHERE topic = 'tick'}), 't', 'its time is in the payload');
is($node->sql(q{SELECT bool_and(staged_at >= (payload ->> 'at')::timestamptz) FROM outbox.message WHERE topic = 'tick'}), 't', 'none before its time');
is($node->sql(q{SELECT string_agg(DISTINCT query, ',') FROM pg_stat_activity WHERE backend_type = 'outbox schedule worker'}) =~ /occurrences/, 1, 'the worker says what it does');

# --- a change is in force at once: one that is due soon, beside a worker that waits for another
$node->sql(q{SELECT outbox.alter_schedule('yearly', cron => '* * * * * *')});
$node->wait_for(q{SELECT runs >= 2 FROM outbox.schedules WHERE name = 'yearly'}, 't', 'a changed schedule');
$node->sql(q{SELECT outbox.pause_schedule('yearly')});
my $runs = $node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'yearly'});
my $seconds = $node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'second'});
# More than two seconds, so that the one that is paused misses some.
$node->wait_for("SELECT runs > $seconds + 3 FROM outbox.schedules WHERE name = 'second'", 't', 'while one is paused the other goes on');
is($node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'yearly'}), $runs, 'which does nothing');
$node->sql(q{SELECT outbox.resume_schedule('yearly')});
$node->wait_for("SELECT runs > $runs AND missed > 0 FROM outbox.schedules WHERE name = 'yearly'", 't', 'until it is resumed');
$node->sql(q{SELECT outbox.drop_schedule('yearly')});

# --- functions
$node->sql(q{SET ROLE app; SELECT outbox.create_schedule('fan', every => '1 s', function => 'app.fan_out(outbox.occurrence)', catch_up => 'all', tenant => 't')});
$node->wait_for(q{SELECT runs >= 3 FROM outbox.schedules WHERE name = 'fan'}, 't', 'a function runs');
is($node->sql(q{SELECT string_agg(DISTINCT who || ' ' || (o).tenant, ',') FROM app.calls}), 'app t', 'as its owner');
is($node->sql(q{SELECT count(*) = 3 * (SELECT count(*) FROM app.calls) FROM outbox.message WHERE topic = 'shop.closed'}), 't', 'and stages any number');
is($node->sql(q{SELECT count(*) FROM app.calls c JOIN outbox.message m ON m.topic = 'shop.closed' AND m.xmin = c.xmin AND m.dedupe_key LIKE (c.o).scheduled_at::text || '_'}) > 0, 1, 'in one transaction with what it writes');
is($node->sql(q{SELECT bool_and((o).previous_at = p) FROM (SELECT o, lag((o).scheduled_at) OVER (ORDER BY (o).scheduled_at) AS p FROM app.calls) v WHERE p IS NOT NULL}), 't', 'it is told of the one before');

# --- one that fails, one that cannot be stopped, one that wants too much
$node->sql(q{SET ROLE app; SELECT outbox.create_schedule('fail', every => '1 hour', function => 'app.fail(outbox.occurrence)', starts_at => now() + interval '1 s'),
	outbox.create_schedule('greedy', every => '1 hour', function => 'app.greedy(outbox.occurrence)', starts_at => now() + interval '1 s')});
$node->wait_for(q{SELECT failed_attempts >= 2 FROM outbox.schedules WHERE name = 'fail'}, 't', 'a function that fails is tried again');
is($node->sql(q{SELECT state || ' ' || (last_error ~ '^attempt [0-9]+$') || ' ' || runs FROM outbox.schedules WHERE name = 'fail'}), 'retrying true 0', 'the view says so');
is($node->sql(q{SELECT count(*) FROM outbox.message WHERE topic = 'never'}), 0, 'nothing that it wrote stays');
like($node->sql('SELECT reasons FROM outbox.health()'), qr/schedule \\"fail\\" has failed \d+ times/, 'health() tells');
$node->wait_for(q{SELECT failed_attempts >= 1 FROM outbox.schedules WHERE name = 'greedy'}, 't', 'a function cannot leave its role');
is($node->sql(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'app'}), 'f', 'nor take rights');
$node->sql(q{SELECT outbox.drop_schedule('greedy')});

$node->sql(q{SET ROLE app; SELECT outbox.create_schedule('stubborn', every => '1 hour', function => 'app.stubborn(outbox.occurrence)', timeout => '50 ms', starts_at => now() + interval '1 s')});
$node->wait_for(q{SELECT last_error ~ 'did not stop when it was cancelled' FROM outbox.schedules WHERE name = 'stubborn'}, 't', 'one that does not stop is ended with its process');
$runs = $node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'second'});
my $calls = $node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'fan'});
$node->wait_for("SELECT runs > $runs FROM outbox.schedules WHERE name = 'second'", 't', 'messages of others go on');
$node->wait_for("SELECT runs > $calls FROM outbox.schedules WHERE name = 'fan'", 't', 'and their functions');
$node->sql(q{SELECT outbox.drop_schedule('stubborn'), outbox.drop_schedule('fail')});

# --- somebody holds a schedule's row
my $holder = PsqlSession->new($node);
$holder->run(q{BEGIN; SELECT outbox.pause_schedule('fan')});
$runs = $node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'second'});
$node->wait_for("SELECT runs > $runs + 1 FROM outbox.schedules WHERE name = 'second'", 't', 'one that is held delays no other');
$holder->run('ROLLBACK');
$calls = $node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'fan'});
$node->wait_for("SELECT runs > $calls FROM outbox.schedules WHERE name = 'fan'", 't', 'and goes on when it is let go');
# Or a table of ours: nobody waits behind the worker.
$holder->run('BEGIN; LOCK TABLE outbox.schedule IN ACCESS EXCLUSIVE MODE');
$holder->run('ROLLBACK');
$holder->close;

# --- settings: nothing while outbox.enabled is off
$node->sql('ALTER SYSTEM SET outbox.enabled = off');
$node->reload;
$node->wait_for(workers(), 0, 'no worker while outbox.enabled is off');
$node->sql('ALTER SYSTEM RESET outbox.enabled');
$node->reload;
$node->wait_for(workers() . ' AND query ~ \'occurrences\'', 2, 'they come again');
$node->wait_for(q{SELECT bool_and(next_run_at > now()) FROM outbox.schedules}, 't', 'what was missed is caught up');
each_once('second', 'and each second took place once');

# --- a worker that is terminated comes back
$node->sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox schedule worker'});
$runs = $node->sql(q{SELECT runs FROM outbox.schedules WHERE name = 'second'});
$node->wait_for("SELECT runs > $runs + 1 FROM outbox.schedules WHERE name = 'second'", 't', 'a worker that was terminated is started again');

# --- by hand beside the worker: still each once
$node->sql('CALL outbox.run_schedules()') foreach 1 .. 5;
each_once('second', 'CALL outbox.run_schedules() beside the worker');
is($node->sql(q{SELECT count(*) = count(DISTINCT (o).scheduled_at) FROM app.calls}), 't', 'functions as well');

# --- it leaves when there is nothing to do for long
$node->sql(q{SELECT outbox.drop_schedule(name) FROM outbox.schedules});
$node->sql(q{SELECT outbox.create_schedule('yearly', '@yearly', topic => 'a.b')});
$node->wait_for(workers(), 0, 'without an occurrence nearby there is no worker');

# --- a schedule in a prepared transaction is heard of
SKIP:
{
	$node->append_conf('postgresql.conf', 'max_prepared_transactions = 5');
	$node->restart;
	$node->wait_for_dispatcher;
	$node->sql(q{BEGIN; SELECT outbox.create_schedule('prepared', every => '1 s', topic => 'a.b'); PREPARE TRANSACTION 'p'});
	$node->sql(q{COMMIT PREPARED 'p'});
	$node->wait_for(q{SELECT runs > 0 FROM outbox.schedules WHERE name = 'prepared'}, 't', 'a schedule that was prepared');
}

# --- the extension goes and comes
$node->sql('DROP EXTENSION outbox CASCADE');
$node->wait_for(workers(), 0, 'no worker without the extension');
$node->extension('postgres');
$node->sql(q{SELECT outbox.create_schedule('anew', every => '1 s', topic => 'a.b')});
$node->wait_for(q{SELECT runs > 0 FROM outbox.schedules}, 't', 'and schedules of a new one run');

unlike($node->log_text, qr/PANIC|TRAP|segfault/, 'nothing broke');
$node->stop;
done_testing();
