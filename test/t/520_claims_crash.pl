# Pull consumers and crashes: what was claimed comes back, what was completed
# stays completed, positions begin anew, and nothing is handed out that a
# crash could still undo.
use strict;
use warnings;

use OutboxCluster;
use PsqlSession;
use Test::More;
use Time::HiRes qw(usleep);

my $node = OutboxCluster->create('main', conf => <<'END');
outbox.rescan_interval = '1 h'
max_prepared_transactions = 5
wal_writer_delay = '10 s'
wal_writer_flush_after = '1 GB'
bgwriter_delay = '10 s'
autovacuum = off
END
$node->handler('h', ['job'], undef, max_attempts => 100);

my $take = sub {
	my $n = shift;
	return "SELECT string_agg(payload::text, ',' ORDER BY staged_at, id) FROM outbox.claim('h', $n, '10 min')";
};
my $stage = sub { return "SELECT count(outbox.stage('job', to_jsonb(n))) FROM generate_series($_[0], $_[1]) n" };

sub signal_backend
{
	my ($session, $signal) = @_;
	kill $signal, $session->backend;
	return;
}

sub wait_for_restart
{
	$node->poll_query_until('postgres', 'SELECT true') or die 'the server did not come back';
	return;
}

#
# A terminated consumer: its claim is rolled back and found, though others have gone past it.
#
$node->sql($stage->(1, 4));
my $one = PsqlSession->new($node);
is($one->run('BEGIN; ' . $take->(2)), '1,2', 'one consumer has two');
is($node->sql($take->(10)), '3,4', 'another one goes past them');
$node->sql('SELECT pg_terminate_backend(' . $one->backend . ')');
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE pid = " . $one->backend, 0, 'terminated');
is($node->sql($take->(10)), '1,2', 'what it had is found');
$one->close;
# A client that is simply gone.
$node->sql($stage->(5, 6));
$one = PsqlSession->new($node);
is($one->run('BEGIN; ' . $take->(1)), '5', 'a consumer has one');
is($node->sql($take->(10)), '6', 'another one goes past it');
my $backend = $one->backend;
$one->close;
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE pid = $backend", 0, 'its client goes away');
is($node->sql($take->(10)), '5', 'what it had is found');

#
# A prepared transaction may settle but not claim.
#
$node->sql($stage->(7, 8));
$one = PsqlSession->new($node);
$one->run('BEGIN; ' . $take->(1));
like($one->run("PREPARE TRANSACTION 'p'"), qr/cannot PREPARE a transaction that has claimed messages/, 'a claim cannot be prepared');
is($node->sql($take->(1)), '7', 'it is rolled back');
my $complete7 = "SELECT outbox.complete('h', message_id, attempts) FROM outbox.delivery JOIN outbox.message m ON m.id = message_id WHERE payload = '7'";
is($one->run("BEGIN; $complete7; PREPARE TRANSACTION 'p'"), 't', 'a settlement can');
$node->restart;
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'"), 0, 'not settled yet');
$node->sql("COMMIT PREPARED 'p'");
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'"), 1, 'settled');
$one->close;

#
# kill -9 of a backend that holds a claim, while others are at work and one waits.
#
$node->sql("SELECT count(*) FROM outbox.claim('h', 10)");
$node->sql($stage->(11, 14));
$one = PsqlSession->new($node);
my $two = PsqlSession->new($node);
my $waiter = PsqlSession->new($node);
is($one->run('BEGIN; ' . $take->(2)), '11,12', 'one holds a claim');
is($two->run($take->(1)), '13', 'another has committed one');
$two->run("SELECT outbox.complete('h', message_id, attempts) FROM outbox.delivery JOIN outbox.message m ON m.id = message_id WHERE payload = '13'");
$two->run($take->(1));
$waiter->start("CALL outbox.wait('h', '10 min')");
$node->wait_until("SELECT count(*) FROM pg_stat_activity WHERE pid = " . $waiter->backend . " AND wait_event = 'Extension'", 1);
signal_backend($one, 'KILL');
like($waiter->finish, qr/terminat|server closed|connection/, 'the server restarts');
wait_for_restart();
is($node->sql($take->(10)), '11,12', 'the claim that had not committed is found');
is($node->sql("SELECT string_agg(m.payload::text || ' ' || d.state, ',' ORDER BY m.id) FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id WHERE m.payload::int > 10"),
	'11 leased,12 leased,13 delivered,14 leased', 'leases and receipts are as they were');
$_->close foreach $one, $two, $waiter;
$waiter = PsqlSession->new($node);
$waiter->start("CALL outbox.wait('h', '10 min')");
$node->wait_until("SELECT count(*) FROM pg_stat_activity WHERE pid = " . $waiter->backend . " AND wait_event = 'Extension'", 1);
$node->sql($stage->(15, 15));
is($waiter->finish, '', 'waiting works again');
is($node->sql($take->(10)), '15', 'and so does what it waited for');
$waiter->close;

#
# What is handed out is durable, even if its producer committed asynchronously and so does the consumer.
#
$node->sql('CHECKPOINT');
my $producer = PsqlSession->new($node);
my $consumer = PsqlSession->new($node);
$_->run('SET synchronous_commit = off') foreach $producer, $consumer;
$producer->run($stage->(21, 21));
is($consumer->run($take->(1)), '21', 'an asynchronous commit is claimed');
# Had the claim not flushed, this one's commit record would be as lost as the other's.
$producer->run($stage->(22, 22));
$node->stop('immediate');
$_->close foreach $producer, $consumer;
$node->start;
is($node->sql("SELECT count(*) FROM outbox.message WHERE payload = '21'"), 1, 'and survives a crash, since a consumer has seen it');
is($node->sql("SELECT count(*) FROM outbox.message WHERE payload = '22'"), 0, 'unlike one that nobody has seen, which shows that this crash loses what is not flushed');

#
# kill -9 of the postmaster under load: every committed message is completed, each receipt but once.
#
$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
$node->sql(<<'END');
CREATE TABLE staged (n int PRIMARY KEY);
CREATE TABLE worked (n int PRIMARY KEY);
CREATE SEQUENCE numbers;
CREATE PROCEDURE produce() LANGUAGE plpgsql AS $$
DECLARE
	n int := nextval('numbers');
BEGIN
	INSERT INTO staged VALUES (n);
	PERFORM outbox.stage('job', to_jsonb(n));
END $$;
-- The work and its receipt in one transaction: exactly once, whatever happens in between.
CREATE PROCEDURE consume() LANGUAGE plpgsql AS $$
DECLARE
	c record;
	claimed jsonb;
BEGIN
	SELECT jsonb_agg(to_jsonb(x)) INTO claimed FROM outbox.claim('h', 3, '2 s') x;
	COMMIT;
	FOR c IN SELECT * FROM jsonb_to_recordset(claimed) AS x(id uuid, attempt int, payload jsonb) LOOP
		IF outbox.complete('h', c.id, c.attempt) THEN
			INSERT INTO worked VALUES ((c.payload #>> '{}')::int);
		END IF;
		COMMIT;
	END LOOP;
END $$;
END
foreach my $round (1 .. 3)
{
	my $file = $node->basedir . '/load.sql';
	open my $out, '>', $file or die $!;
	print $out "CALL produce();\nCALL produce();\nCALL consume();\n";
	close $out;
	my ($output, $errors) = ('', '');
	my $load = IPC::Run::start([ 'pgbench', '-n', '-c', 8, '-T', 60, '-f', $file, 'postgres' ], '>', \$output, '2>', \$errors,
		init => sub { $ENV{PGHOST} = $node->host; $ENV{PGPORT} = $node->port; });
	my $before = $node->sql('SELECT count(*) FROM worked');
	$node->wait_until("SELECT count(*) > $before + 300 FROM worked", 't');
	$node->kill9;
	$load->finish;
	$node->start_after_crash;
}
my $drain = q{WITH c AS MATERIALIZED (SELECT * FROM outbox.claim('h', 1000)), d AS MATERIALIZED (SELECT *, outbox.complete('h', id, attempt) AS done FROM c)
	INSERT INTO worked SELECT (payload #>> '{}')::int FROM d WHERE done};
$node->wait_for("$drain; SELECT count(*) FROM outbox.delivery", 0, 'after three crashes everything is completed');
is($node->sql('SELECT count(*) FROM staged FULL JOIN worked USING (n) WHERE staged IS NULL OR worked IS NULL'), 0,
	'every committed message was worked on once, and nothing else was');
note($node->sql('SELECT count(*) FROM worked') . ' messages');

done_testing();
