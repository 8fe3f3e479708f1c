# Memory and descriptors of the dispatcher over many deliveries, half of
# them failing at their first attempt.
#
# Options: --messages=N (2000000), --steps=N (10)
use strict;
use warnings;

use OutboxBench;

my $messages = option('messages', 2_000_000);
my $steps = option('steps', 10);
my $node = bench_cluster('memory');
my $port = start_receiver('--fail-every', 2);
$node->handler('bench', ['bench.*'], "http://127.0.0.1:$port/", concurrency => 50, breaker_threshold => 0,
	backoff => \"ARRAY['1 ms']::interval[]", max_attempts => 30);
my (@memory, @descriptors);
foreach (1 .. $steps)
{
	backlog($node, 'bench.message.sent', $messages / $steps, 200);
	drain($node);
	push @memory, dispatcher_memory($node);
	push @descriptors, dispatcher_descriptors($node);
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
}
report("$messages deliveries, half failing: memory after $_ of $steps parts", '%8.1f MB', $memory[ $_ - 1 ] / 1024) foreach 1, int($steps / 2), $steps;
report("descriptors first and last", '%8d, %d', $descriptors[0], $descriptors[-1]);
$node->stop;
