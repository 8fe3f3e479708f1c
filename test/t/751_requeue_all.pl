# requeue_all(): any number of deliveries, batch by batch, whatever becomes of
# the call, and spread over time so that a receiver is not trampled.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;

my $node = OutboxCluster->create('main', conf => 'outbox.log_attempts = none');
my $receiver = HttpReceiver->start;
$node->wait_for_dispatcher;
$node->handler('down', ['down.*'], $receiver->url);
$node->sql(q{SELECT outbox.pause_handler('down')});

# Dead letters, and some that died otherwise, staged before and after each other.
my $dead = 25_000;
$node->sql(<<"SQL");
SELECT count(outbox.stage('down.item', jsonb_build_object('n', n), tenant => CASE WHEN n % 10 = 0 THEN 'acme' END)) FROM generate_series(1, $dead + 1000) n;
WITH gone AS (DELETE FROM outbox.delivery RETURNING *)
INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state, code)
SELECT message_id, now(), handler_id, 3, 0, 4, CASE WHEN row_number() OVER (ORDER BY message_id) <= $dead THEN '500' ELSE '404' END FROM gone;
SQL

# --- spread evenly over the time asked for, from now on
my $begin = $node->sql('SELECT clock_timestamp()');
$node->sql(q{CALL outbox.requeue_all(handler => 'down', code => '500', spread => '10 min', reason => 'they are back')});
is($node->sql(q{SELECT count(*) FROM outbox.deliveries WHERE state = 'pending'}), $dead, 'all of that code are back');
is($node->sql(q{SELECT count(*) FROM outbox.deliveries WHERE state = 'dead' AND code = '404'}), 1000, 'and no other');
is($node->sql(q{SELECT action, affected, reason FROM outbox.actions WHERE action = 'requeue_all'}), "requeue_all|$dead|they are back", 'one action says so');
is($node->sql(<<"SQL"), "10|2500|2500", 'each minute has its share');
SELECT count(*), min(n), max(n) FROM (
	SELECT floor(extract(epoch FROM due_at - (SELECT min(due_at) FROM outbox.delivery)) / 60) AS minute, count(*) AS n FROM outbox.delivery GROUP BY 1) v
SQL
is($node->sql("SELECT min(due_at) BETWEEN '$begin' AND clock_timestamp() FROM outbox.delivery"), 't', 'the first is due at once');

# --- ended in the middle: what was committed stays, and the rest is done by another call
$node->sql(q{SELECT outbox.cancel_where(handler => 'down', reason => 'again')});
my $held = PsqlSession->new($node);
$held->run('BEGIN');
# The batch that has this one waits for it.
$held->run(q{SELECT 1 FROM outbox.message WHERE id = (SELECT message_id FROM outbox.receipt WHERE state + 0 = 5 ORDER BY message_id OFFSET 15000 LIMIT 1) FOR UPDATE});
my $call = PsqlSession->new($node);
$call->start(q{CALL outbox.requeue_all(handler => 'down', include_cancelled => true, code => 'cancelled', reason => 'halfway')});
$node->wait_for(q{SELECT affected FROM outbox.actions WHERE reason = 'halfway'}, 10_000, 'a batch is committed while the next one waits');
is($node->sql(q{SELECT count(*) FROM outbox.delivery}), 10_000, 'and others see it');
$node->sql('SELECT pg_terminate_backend(' . $call->backend . ')');
$call->finish;
$held->run('ROLLBACK');
is($node->sql(q{SELECT affected FROM outbox.actions WHERE reason = 'halfway'}), 10_000, 'its action says how far it came');
$node->sql(q{CALL outbox.requeue_all(handler => 'down', include_cancelled => true, code => 'cancelled', reason => 'the rest')});
is($node->sql(q{SELECT affected FROM outbox.actions WHERE reason = 'the rest'}), $dead - 10_000, 'another call does the rest');

# --- each once, to a receiver that answers now
$node->sql(q{SELECT outbox.cancel_where(topic => 'down.*', since => '-infinity', max_rows => 20000)});
$node->sql(q{SELECT outbox.resume_handler('down')});
$node->wait_for(q{SELECT count(*) FROM outbox.delivery}, 0, 'they are delivered');
is($node->sql(q{SELECT count(*) FROM outbox.receipt WHERE state = 3}), $dead - 20_000, 'each');
is($node->sql(q{SELECT count(*) FROM outbox.verify() WHERE severity = 'error'}), 0, 'nothing contradicts itself');

$node->stop;
done_testing;
