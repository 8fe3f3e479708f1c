# Ordered handlers.  What many messages that wait behind a failing head of
# their key cost other keys; how fast one key drains beside a handler without
# order that sends one at a time, also that key once it is let go; what many
# distinct keys cost the dispatcher in memory; and the first for claims.
#
# Options: --waiting=N (100000; the promise is about 1000000), --messages=N
# (20000, of other keys), --keys=N (100000), --runs=N (3)
use strict;
use warnings;

use OutboxBench;
use Time::HiRes qw(time);

my $waiting = option('waiting', 100_000);
my $messages = option('messages', 20_000);
my $keys = option('keys', 100_000);

my $node = bench_cluster('ordered', conf => 'autovacuum_naptime = 1s');
my $failing = start_receiver('--fail-key', 'stuck');
my $fine = start_receiver();
my %retries = (backoff => \"ARRAY['10 s']::interval[]", jitter => 0, max_attempts => 1000, breaker_threshold => 0);
foreach my $handler (qw(free held single))
{
	$node->handler($handler, ["$handler.*"], "http://127.0.0.1:$failing/", ordered => 'true', concurrency => 50, %retries);
}

$node->handler('solo', ['solo.*'], "http://127.0.0.1:$failing/", concurrency => 1, %retries);

# Stage messages of 1000 keys while nothing is delivered.
sub stage_keys
{
	my ($topic, $n, $key) = @_;
	$node->sql("SELECT count(outbox.stage('$topic', jsonb_build_object('n', g, 'padding', repeat('x', 170)), key => $key)) FROM generate_series(1, $n) AS g");
	return;
}

# Deliveries a second of a topic's messages staged from now on.
sub rate_of
{
	my ($topic, $n, $key) = @_;
	enable($node, 'off');
	my $before = $node->sql('SELECT clock_timestamp()');
	stage_keys($topic, $n, $key);
	$node->sql('CHECKPOINT');
	enable($node, 'on');
	$node->wait_until("SELECT count(*) = 0 FROM outbox.delivery WHERE key IS DISTINCT FROM 'stuck'") || die "it did not drain\n";
	return slice_rate($node, $before);
}

# The others beside a key that does not move, and without one.
enable($node, 'off');
stage_keys('held.stuck', $waiting, "'stuck'");
enable($node, 'on');
$node->wait_until("SELECT count(*) > 0 FROM outbox.blocked_keys WHERE key = 'stuck' AND why = 'retrying'");
my %rate;
foreach (1 .. runs())
{
	push @{ $rate{$_} }, rate_of("$_.x", $messages, "'key ' || g % 1000") foreach qw(free held);
}
report("other keys beside $waiting that wait behind a failing head", '%8d deliveries/s, %.2f of without (%d)',
	median(@{ $rate{held} }), ratio($rate{held}, $rate{free}), median(@{ $rate{free} }));

# After a restart all of them are passed by once more.
enable($node, 'off');
my $before = $node->sql('SELECT clock_timestamp()');
stage_keys('held.x', 1, "'first'");
$node->restart;
my $start = time;
enable($node, 'on');
$node->wait_until("SELECT count(*) = 0 FROM outbox.delivery WHERE key <> 'stuck'");
report('time to the first delivery of another key after a restart', '%8.2f s', time - $start);

# One key by itself, and the one that was stuck.
foreach (1 .. runs())
{
	push @{ $rate{$_} }, rate_of("$_.one", $messages, "'one'") foreach qw(solo single);
}
report('one key', '%8d deliveries/s, %.2f of one at a time without order (%d)',
	median(@{ $rate{single} }), ratio($rate{single}, $rate{solo}), median(@{ $rate{solo} }));
$before = $node->sql('SELECT clock_timestamp()');
$node->sql("SELECT outbox.alter_handler('held', url => 'http://127.0.0.1:$fine/')");
$node->sql("SELECT outbox.retry_now(head_id) FROM outbox.blocked_keys");
{
	local $PostgreSQL::Test::Utils::timeout_default = 1800;
	$node->wait_until('SELECT NOT EXISTS (SELECT FROM outbox.delivery)') || die "it did not drain\n";
}
my $part = int($waiting / 10);
my ($first, $last) = map { slice_rate($node, $before, $_, $part) } $part, $waiting - $part;
report("the key that was stuck, $waiting messages", '%8d deliveries/s, %.2f of one at a time without order', slice_rate($node, $before), slice_rate($node, $before) / median(@{ $rate{solo} }));
report('its last tenth', '%8d deliveries/s, %.2f of its second', $last, $last / $first);

# Memory: many keys that are delivered, and as many that are all blocked.
$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
$node->restart;
$node->wait_for_dispatcher;
my $memory = dispatcher_memory($node);
enable($node, 'off');
stage_keys('free.x', 3 * $keys, "'key ' || g % $keys");
drain($node);
report("memory over $keys keys that are delivered", '%8.1f MB above the start (%.1f)', (dispatcher_memory($node) - $memory) / 1024, $memory / 1024);
enable($node, 'off');
$node->sql("SELECT outbox.alter_handler('free', url => 'http://127.0.0.1:$failing/', backoff => ARRAY['1 hour']::interval[])");
stop_receiver($failing);
stage_keys('free.x', 3 * $keys, "'key ' || g % $keys");
enable($node, 'on');
$node->wait_until("SELECT count(*) >= $keys FROM outbox.delivery WHERE state = 1") || die "the keys were not all tried\n";
report("memory over $keys keys that are all blocked", '%8.1f MB above the start', (dispatcher_memory($node) - $memory) / 1024);

# Claims: the same question for a consumer.
$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
$node->handler("pull_$_", ["pull_$_.*"], undef, ordered => 'true') foreach qw(free held);
stage_keys('pull_held.stuck', $waiting, "'stuck'");
$node->sql("SELECT outbox.retry('pull_held', id, attempt, after => '1 day') FROM outbox.claim('pull_held')");
$node->sql(<<'END');
CREATE PROCEDURE consume(handler text) LANGUAGE plpgsql AS $$
DECLARE
	ids uuid[];
	attempts int[];
BEGIN
	LOOP
		SELECT array_agg(c.id), array_agg(c.attempt) INTO ids, attempts FROM outbox.claim(handler, 100) c;
		EXIT WHEN ids IS NULL;
		COMMIT;
		PERFORM outbox.complete_many(handler, ids, attempts);
		COMMIT;
	END LOOP;
END $$;
END
my %claims;
foreach my $run (1 .. runs())
{
	foreach my $handler (qw(pull_free pull_held))
	{
		stage_keys("$handler.x", $messages, "'key ' || g % 1000");
		my $start = time;
		$node->sql("CALL consume('$handler')");
		push @{ $claims{$handler} }, $messages / (time - $start);
	}
}
report("claims of other keys beside $waiting that wait", '%8d deliveries/s, %.2f of without (%d)',
	median(@{ $claims{pull_held} }), ratio($claims{pull_held}, $claims{pull_free}), median(@{ $claims{pull_free} }));
$node->stop('immediate');
