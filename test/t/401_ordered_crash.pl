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

my $receiver = HttpReceiver->start;
$receiver->on('/h', { delay => 0.001 });
my $node = OutboxCluster->create('main', conf => 'outbox.rescan_interval = 1h', init => { allows_streaming => 1 });
my $concurrency = 6;
$node->handler('h', ['load.*'], $receiver->url('/h'), ordered => 'true', concurrency => $concurrency,
	max_attempts => 100, backoff => \"ARRAY['5 ms']::interval[]", jitter => 0);
my $keys = 10;
my $staged = 0;

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
	ok($receiver->wait_for_requests($before + $part, '/h'), $name);
	return;
}

sub check_load
{
	my ($server, $name, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$server->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state <> 'delivered'", 0, "$name: everything is delivered");
	return check_order(staged_order($server, 'h'), [ arrivals($receiver, '/h') ], "$name: in order", %options);
}

sub forget
{
	$receiver->forget;
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.attempt');
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
	kill 'KILL', $pid;
	$node->wait_for_dispatcher('postgres', $pid);
}
my $steps = check_load($node, 'kill -9 of the dispatcher');
cmp_ok($steps->{back} + $steps->{again}, '<=', 4 * $keys, 'each key goes back at most once for each death');
cmp_ok($receiver->count('/h') - $staged, '<=', 4 * $keys * $unsettled, 'and by a bounded number of messages');
forget();

# The same with a receiver that fails, while more is staged.
srand 11;
$receiver->on('/h', (map { rand() < 0.2 ? { status => 500 } : { delay => 0.001 } } 1 .. 2000), { delay => 0.001 });
stage_load(1000);
foreach my $round (1 .. 3)
{
	my $pid = $node->wait_for_dispatcher;
	load(300, 150, "a receiver that fails, round $round");
	$round == 2 ? $node->sql("SELECT pg_terminate_backend($pid)") : kill 'KILL', $pid;
	$node->wait_for_dispatcher('postgres', $pid);
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
	if ($way eq 'kill9')
	{
		$node->kill9;
		$node->start_after_crash;
	}
	else
	{
		$node->stop($way);
		$node->start;
	}
	$node->wait_for_dispatcher;
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
load(1500, 300, 'the backlog drains before failover');
my $settled_at_primary = $node->sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'");
$node->stop('immediate');
$standby->promote;
$standby->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$standby->reload;
$standby->wait_for_dispatcher;
cmp_ok($settled_at_primary, '>', 0, 'some were settled at the primary');
$standby->stage('load.x', '{"n": 0}', key => "key $_") foreach 0 .. $keys - 1;
check_load($standby, 'failover');

$standby->stop;
$receiver->stop;
done_testing();
