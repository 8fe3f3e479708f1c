# One slow receiver among 20: the rate of the others with one that answers
# after 10 s, and with one that refuses connections, beside none of that.
#
# Options: --messages=N (2000 for each handler), --runs=N
use strict;
use warnings;

use OutboxBench;

my $messages = option('messages', 2000);
my $node = bench_cluster('slow');
my $port = start_receiver();
my $slow = start_receiver('--delay-ms', 10_000);
my %url = (none => "http://127.0.0.1:$port/", slow => "http://127.0.0.1:$slow/", dead => 'http://127.0.0.1:1/');
$node->sql("SELECT outbox.create_handler('good' || g, ARRAY['bench.*'], '$url{none}') FROM generate_series(1, 19) AS g");
$node->handler('other', ['bench.*'], $url{none}, timeout => '60 s');

my %rate;
foreach (1 .. runs())
{
	foreach my $kind (qw(none slow dead))
	{
		$node->sql("SELECT outbox.alter_handler('other', url => '$url{$kind}')");
		$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt, outbox.handler_status');
		$node->restart;
		backlog($node, 'bench.message.sent', $messages, 200);
		my $before = $node->sql('SELECT clock_timestamp()');
		enable($node, 'on');
		$node->wait_until("SELECT NOT EXISTS (SELECT FROM outbox.delivery d JOIN outbox.handler h ON h.id = d.handler_id WHERE h.name LIKE 'good%')");
		push @{ $rate{$kind} }, $node->sql(<<"END");
SELECT (count(*) / extract(epoch FROM max(settled_at) - min(settled_at)))::bigint
FROM outbox.receipt d JOIN outbox.handler h ON h.id = d.handler_id WHERE h.name LIKE 'good%'
END
	}
}
report("19 handlers beside one that is $_", '%8d deliveries/s, %.2f of without (%d)', median(@{ $rate{$_} }), ratio($rate{$_}, $rate{none}), median(@{ $rate{none} })) foreach qw(slow dead);
$node->stop('immediate');
