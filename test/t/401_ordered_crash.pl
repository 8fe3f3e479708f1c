# Order survives: whoever is killed, however often, in whichever moment, and
# when a standby takes over.  A receiver may see the end of what it had seen
# of a key again, in order; it never sees a message for the first time before
# the one it follows, and misses none.
use strict;
use warnings;

use HttpReceiver;
use OrderChecker;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
$receiver->on('/h', { delay => 0.001 });
my $node = OutboxCluster->create('main', conf => 'outbox.rescan_interval = 1h', init => { allows_streaming => 1 });
my $concurrency = 6;
$node->handler('h', ['load.*'], $receiver->url('/h'), ordered => 'true', concurrency => $concurrency,
	max_attempts => 100, backoff => \"ARRAY['5 ms']::interval[]", jitter => 0);
my $keys = 10;
my $staged = 0;
my @crashes;

# Producers that serialise on their business row.
$node->sql(<<"SQL");
CREATE TABLE account (name text PRIMARY KEY, n int NOT NULL DEFAULT 0);
INSERT INTO account SELECT 'key ' || i FROM generate_series(0, $keys - 1) AS i;
CREATE PROCEDURE produce(transactions int) LANGUAGE plpgsql AS \$\$
DECLARE
	chosen text;
	m int;
BEGIN
	FOR i IN 1 .. transactions LOOP
		chosen := 'key ' || floor(random() * $keys);
		UPDATE account SET n = n + 1 WHERE name = chosen RETURNING n INTO m;
		PERFORM outbox.stage('load.x', jsonb_build_object('n', m), key => chosen);
		IF random() < 0.1 THEN ROLLBACK; ELSE COMMIT; END IF;
		PERFORM pg_sleep(0.002);
	END LOOP;
END \$\$;
SQL

# Note when something dies: from when on it is dying until everything is up again.
sub crash
{
	my $code = shift;
	my $from = time;
	$code->();
	push @crashes, [ $from, time ];
	return;
}

# Stage messages of some keys, each transaction a few of them.
sub stage_load
{
	my $number = shift;
	my $from = $staged;
	$staged += $number;
	$node->sql(<<"SQL");
DO \$\$
BEGIN
	FOR i IN $from + 1 .. $staged LOOP
		PERFORM outbox.stage('load.x', jsonb_build_object('n', i), key => 'key ' || i % $keys);
		IF i % 7 = 0 THEN COMMIT; END IF;
	END LOOP;
END \$\$;
SQL
	return;
}

# Stage some and wait until the receiver has had a part of them.
sub load
{
	my ($number, $part, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = $receiver->count('/h');
	stage_load($number);
	ok($receiver->wait_for_requests($before + $part, '/h'), $name) || $node->explain_outbox;
	return;
}

sub check_load
{
	my ($server, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$server->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state <> 'delivered'", 0, "$name: everything is delivered");
	my $order = staged_order($server, 'h');
	check_history($order, [ history($receiver, '/h', 200) ], "$name: one at a time, when the one before is done with", crashes => \@crashes);
	return check_order($order, [ arrivals($receiver, '/h') ], "$name: in order", %options);
}

sub forget
{
	$receiver->forget;
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
	return;
}

# What is out or answered and not settled of a key when somebody dies: read
# ahead twice over, and it is sent again once for each death.
my $unsettled = 64 + 2;

# kill -9 of the dispatcher, again and again while one backlog drains.
stage_load(1500);
foreach my $round (1 .. 4)
{
	my $pid = $node->wait_for_dispatcher;
	load(400, 150, "the backlog drains, round $round");
	crash(
		sub {
			kill 'KILL', $pid;
			$node->wait_for_dispatcher('postgres', $pid);
		});
}
my $steps = check_load($node, 'kill -9 of the dispatcher');
cmp_ok($steps->{back} + $steps->{again}, '<=', 4 * $keys, 'each key goes back at most once for each death');
cmp_ok($receiver->count('/h') - $staged, '<=', 4 * $keys * $unsettled, 'and by a bounded number of messages');
forget();

# The same with a receiver that fails, while more is staged.  (A server that has
# crashed so often makes longer and longer pauses, but not once it was restarted.)
$node->restart;
srand 11;
$receiver->on('/h', (map { rand() < 0.2 ? { status => 500 } : { delay => 0.001 } } 1 .. 2000), { delay => 0.001 });
stage_load(1000);
foreach my $round (1 .. 3)
{
	my $pid = $node->wait_for_dispatcher;
	load(300, 150, "a receiver that fails, round $round");
	crash(
		sub {
			$round == 2 ? $node->sql("SELECT pg_terminate_backend($pid)") : kill 'KILL', $pid;
			$node->wait_for_dispatcher('postgres', $pid);
		});
}
$steps = check_load($node, 'a failing receiver');
cmp_ok($steps->{again}, '>', 100, 'attempts failed');
forget();
$receiver->on('/h', { delay => 0.001 });

# kill -9 of the postmaster, an immediate and a fast restart.
stage_load(1000);
foreach my $way ('kill9', 'immediate', 'fast')
{
	load(400, 150, "the backlog drains before $way");
	crash(
		sub {
			$way eq 'kill9' ? $node->kill9 : $node->stop($way);
			$way eq 'kill9' ? $node->start_after_crash : $node->start;
			$node->wait_for_dispatcher;
		});
}
check_load($node, 'crash and restart of the server');
forget();

# Failover: what committed is on the standby, settlements need not be.
$node->backup('backup');
my $standby = OutboxCluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$node->reload;
my @producers = map { IPC::Run::start([ 'psql', '-Xq', '-d', $node->connstr('postgres'), '-c', 'CALL produce(100000)' ], '<', \undef, '>', \my $out, '2>', \my $error) } 1 .. 3;
ok($receiver->wait_for_requests(300, '/h'), 'producers are at work before failover');
$node->wait_until("SELECT count(*) > 0 FROM outbox.deliveries WHERE state = 'delivered'");
my $settled_at_primary = $node->sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'");
crash(
	sub {
		$node->stop('immediate');
		$standby->promote;
		$standby->append_conf('postgresql.conf', "synchronous_standby_names = ''");
		$standby->reload;
		$standby->wait_for_dispatcher;
	});
$_->finish foreach @producers;
cmp_ok($settled_at_primary, '>', 0, 'some were settled at the primary');
$standby->sql('CALL produce(100)');
check_load($standby, 'failover');
is($standby->sql(<<'SQL'), '', 'ids are in the order in which the business rows changed, at the primary and at the standby');
SELECT key, id, n, place FROM (
	SELECT key, id, (payload ->> 'n')::int AS n, row_number() OVER (PARTITION BY key ORDER BY id) AS place FROM outbox.message) AS m
WHERE n <> place
SQL

$standby->stop;
$receiver->stop;
done_testing();
