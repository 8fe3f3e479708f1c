# Batches: messages a second with batch_size 100, beside what it costs to
# record as many settlements by key in SQL and nothing else.
#
# Options: --messages=N (200000), --runs=N
use strict;
use warnings;

use OutboxBench;

my $messages = option('messages', 200_000);
my $node = bench_cluster('batches');
my $port = start_receiver();
$node->handler('bench', ['bench.*'], "http://127.0.0.1:$port/", batch_size => 100, concurrency => 4);

# Settlements a second of UPDATE by primary key, 1000 a transaction.
sub settle_rate
{
	$node->sql(<<'END');
CREATE OR REPLACE PROCEDURE settle_all() LANGUAGE plpgsql AS $$
DECLARE
	ids uuid[];
	last uuid := '00000000-0000-0000-0000-000000000000';
BEGIN
	SET enable_seqscan = off;
	SET enable_hashjoin = off;
	SET enable_mergejoin = off;
	LOOP
		ids := ARRAY(SELECT message_id FROM outbox.delivery WHERE message_id > last ORDER BY message_id LIMIT 1000);
		EXIT WHEN ids = '{}';
		last := ids[cardinality(ids)];
		WITH gone AS (DELETE FROM outbox.delivery d USING unnest(ids) AS i(id) WHERE d.message_id = i.id RETURNING d.*)
		INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state, http_status)
		SELECT message_id, clock_timestamp(), handler_id, 1, 0, 3, 200 FROM gone;
		COMMIT;
	END LOOP;
END $$;
END
	my $begun = Time::HiRes::time();
	$node->sql('CALL settle_all()');
	return $messages / (Time::HiRes::time() - $begun);
}

my %rate;
foreach (1 .. runs())
{
	foreach my $format (qw(raw cloudevents))
	{
		$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
		$node->sql("SELECT outbox.alter_handler('bench', format => '$format')");
		backlog($node, 'bench.message.sent', $messages, 200);
		push @{ $rate{$format} }, drain_rate($node);
	}
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
	backlog($node, 'bench.message.sent', $messages, 200);
	push @{ $rate{settle} }, settle_rate();
}
report("batches of 100, $_", '%8d messages/s, %.2f of settling alone in SQL (%d)', median(@{ $rate{$_} }), ratio($rate{$_}, $rate{settle}), median(@{ $rate{settle} }))
  foreach qw(raw cloudevents);
$node->stop;
