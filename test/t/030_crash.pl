# Nothing that committed is lost, whoever is killed: the dispatcher, the
# launcher, a backend, the postmaster; under load.  Nothing that did not
# commit is sent.  Duplicates are what was sent and not yet settled, no more.
use strict;
use warnings;

use HttpReceiver;
use JSON::PP ();
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => 'outbox.rescan_interval = 1h');
my $concurrency = 20;
# A receiver that takes a moment has many requests out when somebody dies.
$receiver->on('/h', { delay => 0.005 });
$node->handler('h', ['load.*'], $receiver->url('/h'), concurrency => $concurrency);
$node->sql('CREATE TABLE business (n int PRIMARY KEY)');

# A producer runs for some seconds: each transaction writes a business row and
# its message, every third one rolls back.  What it committed it tells, to a
# file if one is named: nobody reads a pipe meanwhile, and a full one would
# stop it.
my $next = 0;

sub start_producer
{
	my ($seconds, %options) = @_;
	my $from = $next += 1_000_000;
	my $setting = $options{setting} || "synchronous_commit = on";
	my $pause = $options{pause} // 0.0005;
	my $limit = $options{limit} // 1_000_000;
	my $script = "$PostgreSQL::Test::Utils::tmp_check/producer_$from.sql";
	append_to_file($script, <<"SQL");
SET $setting;
CREATE TEMP SEQUENCE s START $from;
DO \$\$
DECLARE
	finish timestamptz := clock_timestamp() + interval '$seconds s';
	n int;
BEGIN
	WHILE clock_timestamp() < finish AND coalesce(n, 0) < $from + $limit LOOP
		n := nextval('s');
		INSERT INTO business VALUES (n);
		PERFORM outbox.stage('load.x', jsonb_build_object('n', n));
		IF n % 3 = 0 THEN
			ROLLBACK;
		ELSE
			COMMIT;
			RAISE INFO 'committed %', n;
		END IF;
		PERFORM pg_sleep($pause);
	END LOOP;
END \$\$;
SQL
	return IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-f', $script ],
		'<', '/dev/null', '>', '/dev/null', '2>', $options{told} // '/dev/null');
}

# Every committed row arrived, no other did, and duplicates stay within a
# bound.  Says how many there were.
sub check_arrivals
{
	my ($name, $duplicates_allowed) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state <> 'delivered'", 0, "$name: everything is delivered");
	my %arrived;
	$arrived{ JSON::PP::decode_json($_->{body})->{n} }++ foreach $receiver->requests('/h');
	my %committed = map { $_ => 1 } split /\n/, $node->sql('SELECT n FROM business');
	my @lost = grep { !$arrived{$_} } keys %committed;
	my @ghosts = grep { !$committed{$_} } keys %arrived;
	my $duplicates = 0;
	$duplicates += $_ - 1 foreach values %arrived;
	cmp_ok(scalar keys %committed, '>', 50, "$name: there was a load (" . scalar(keys %committed) . ' committed)');
	is(scalar @lost, 0, "$name: no committed message is lost") or diag("lost: @lost[0 .. ($#lost > 9 ? 9 : $#lost)]");
	is(scalar @ghosts, 0, "$name: nothing arrived that did not commit") or diag("ghosts: @ghosts[0 .. ($#ghosts > 9 ? 9 : $#ghosts)]");
	cmp_ok($duplicates, '<=', $duplicates_allowed, "$name: duplicates are bounded ($duplicates)");
	my %ids;
	$ids{ $_->{headers}{'webhook-id'} }{ $_->{body} } = 1 foreach $receiver->requests('/h');
	is(scalar(grep { keys %$_ != 1 } values %ids), 0, "$name: an id always carries the same body");
	$receiver->forget;
	$node->sql('TRUNCATE business, outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
	return;
}

# How much may be sent and not yet settled when somebody dies: what is in
# flight and what has come back but waits for its settlement.
my $unsettled = 2000 + $concurrency;

# kill -9 of the dispatcher makes the postmaster restart everybody.
my $producer = start_producer(3);
ok($receiver->wait_for_requests(100, '/h'), 'the load runs');
my $pid = $node->wait_for_dispatcher;
kill 'KILL', $pid;
$producer->finish;
my $new_pid = $node->wait_for_dispatcher('postgres', $pid);
isnt($new_pid, $pid, 'the dispatcher came back after kill -9');
check_arrivals('kill -9 of the dispatcher', $unsettled);

# pg_terminate_backend is gentler: producers go on.
$producer = start_producer(3);
ok($receiver->wait_for_requests(100, '/h'), 'the load runs');
foreach my $round (1 .. 3)
{
	$pid = $node->wait_for_dispatcher;
	is($node->sql("SELECT pg_terminate_backend($pid)"), 't', "dispatcher terminated, round $round");
	$new_pid = $node->wait_for_dispatcher('postgres', $pid);
	isnt($new_pid, $pid, 'and back');
}
ok($producer->finish, 'producers did not notice');
check_arrivals('pg_terminate_backend of the dispatcher', 3 * $unsettled);

# The launcher, too.
$pid = $node->sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox launcher'");
$node->sql("SELECT pg_terminate_backend($pid)");
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox launcher' AND pid <> $pid", 1, 'the launcher came back');
$pid = $node->wait_for_dispatcher;
ok($pid, 'with a dispatcher');

# kill -9 of a backend in the middle of its transaction.
$producer = start_producer(3);
ok($receiver->wait_for_requests(100, '/h'), 'the load runs');
$pid = $node->sql("SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(0.0005)%' AND pid <> pg_backend_pid() LIMIT 1");
kill 'KILL', $pid;
$producer->finish;
$node->wait_for_dispatcher;
check_arrivals('kill -9 of a backend', $unsettled);

# kill -9 of the postmaster: everybody dies, then crash recovery.
$producer = start_producer(3);
ok($receiver->wait_for_requests(100, '/h'), 'the load runs');
$node->kill9;
$producer->finish;
$node->start_after_crash;
$node->wait_for_dispatcher;
check_arrivals('kill -9 of the postmaster', $unsettled);

# A restart in the middle: fast shutdown does not wait for a receiver.
$producer = start_producer(3);
$receiver->on('/h', { delay => 0.02 });
ok($receiver->wait_for_requests(100, '/h'), 'the load runs');
my $start = time;
$node->stop('fast');
cmp_ok(time - $start, '<', 5, 'fast shutdown under load takes less than 5 s');
$producer->finish;
$node->start;
$node->wait_for_dispatcher;
check_arrivals('restart', $unsettled);
$receiver->on('/h', { status => 200 });

# Asynchronous commits are visible before they are safe.  Those that a crash
# takes back must not have been sent: WAL is flushed first.
$node->append_conf('postgresql.conf', "wal_writer_delay = 10s\nwal_writer_flush_after = 0");
$node->reload;
my ($lost, $rounds) = (0, 0);
while ($rounds < 5 || ($lost == 0 && $rounds < 20))
{
	my $round = ++$rounds;
	my @told = map { "$PostgreSQL::Test::Utils::tmp_check/told_$_" } 0 .. 1;
	my $before = $receiver->count('/h');
	my @producers =
	  map { start_producer(20, setting => 'synchronous_commit = off', pause => 0, limit => 5000, told => $told[$_]) } 0 .. 1;
	ok($receiver->wait_for_requests($before + 200, '/h'), "asynchronous commits are delivered, round $round");
	$node->kill9;
	$_->finish foreach @producers;
	$node->start_after_crash;
	$node->wait_for_dispatcher;
	my %there = map { $_ => 1 } split /\n/, $node->sql('SELECT n FROM business');
	$lost += grep { !$there{$_} } map { slurp_file($_) =~ /committed (\d+)/g } @told;
	$node->wait_until("SELECT count(*) FROM outbox.backlog WHERE due > 0", 0);
}
cmp_ok($lost, '>', 0, "crashes took asynchronous commits back ($lost)");
check_arrivals('asynchronous commits', $rounds * $unsettled);

# The dispatcher's own settlements may be lost, too; then the messages are
# sent again, under the same id and the next attempt number at least as high.
$node->append_conf('postgresql.conf', 'outbox.settle_synchronous_commit = off');
$node->reload;
$node->sql('INSERT INTO business VALUES (1)');
$node->stage('load.x', '{"n": 1}');
ok($receiver->wait_for_requests(1, '/h'), 'sent once');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", 1, 'and settled');
$node->kill9;
$node->start_after_crash;
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", 1, 'delivered after the crash, whether the settlement survived or not');
my @attempts = map { $_->{headers}{'outbox-attempt'} } $receiver->requests('/h');
is_deeply([ sort { $a <=> $b } @attempts ], \@attempts, 'attempts never decrease');
cmp_ok(scalar @attempts, '<=', 2, 'and are few');

done_testing();
