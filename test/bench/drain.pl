# Drain: deliveries a second, one message a request with durable receipts,
# beside a bare libcurl multi loop that posts the same bodies and headers
# with the same concurrency and no database.
#
# Options: --messages=N (100000), --concurrency=N,N (10,50,100), --runs=N,
# --transport=auto|curl (both unless given)
use strict;
use warnings;

use OutboxBench;

my $messages = option('messages', 100_000);
my $bytes = 200;
my @transports = split /,/, option('transport', 'curl,auto');
my $node = bench_cluster('drain');
my $port = start_receiver();

$node->handler('bench', ['bench.*'], "http://127.0.0.1:$port/");
foreach my $concurrency (split /,/, option('concurrency', '10,50,100'))
{
	$node->sql("SELECT outbox.alter_handler('bench', concurrency => $concurrency)");
	my (%outbox, @curl);
	foreach (1 .. runs())
	{
		push @curl, curl_rate($port, $messages, $concurrency, $bytes);
		foreach my $transport (@transports)
		{
			$node->sql("ALTER SYSTEM SET outbox.transport = '$transport'");
			$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
			$node->restart;
			backlog($node, 'bench.message.sent', $messages, $bytes);
			push @{ $outbox{$transport} }, drain_rate($node);
		}
	}
	report("drain, concurrency $concurrency, bare libcurl loop", '%8d requests/s', median(@curl));
	report("drain, concurrency $concurrency, outbox.transport = $_", '%8d deliveries/s, %.2f of the loop', median(@{ $outbox{$_} }), ratio($outbox{$_}, \@curl)) foreach @transports;
}
$node->stop;
