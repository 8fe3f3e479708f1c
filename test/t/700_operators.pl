# Operators at work on a live dispatcher: what they hold, cancel and lock.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.rescan_interval = 1s\ndeadlock_timeout = 10s");
my $dispatcher = $node->wait_for_dispatcher;

sub state_of
{
	my $id = shift;
	return $node->sql("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$id'");
}

# cancel before it is sent: never sent.  In the session that staged it, which
# is early enough on a slow server as well.
$node->handler('h', ['t.*'], $receiver->url('/h'));
is($node->sql(<<'END'), 1, 'cancel what is scheduled');
SELECT outbox.stage('t.x', '{}', delay => interval '2 s') AS id \gset
SELECT outbox.cancel(:'id', reason => 'changed our mind');
END
my $next = $node->stage('t.x', '{}', delay => \"interval '2 s'");
ok($receiver->wait_for_requests(1, '/h'), 'what was scheduled behind it arrives');
is_deeply([ keys %{ $receiver->ids('/h') } ], [$next], 'the cancelled one does not');

# cancel while the request is out: the answer changes nothing.
$receiver->on('/h', { hang => 1 });
$receiver->forget;
my $id = $node->stage('t.x', '{}');
ok($receiver->wait_for_requests(1, '/h'), 'a request is out');
is($node->sql("SELECT outbox.cancel('$id', reason => 'too slow')"), 1, 'cancel while it is out');
is($receiver->release('/h', { status => 200 }), 1, 'then the answer comes');
$node->wait_for('SELECT in_flight FROM outbox.dispatchers', 0, 'and is taken');
is(state_of($id), 'cancelled 0', 'cancelled it stays');
is($node->sql("SELECT error FROM outbox.deliveries WHERE message_id = '$id'"), 'too slow', 'with its reason');
$id = $node->stage('t.x', '{}');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'delivered', 'the lane goes on');

# cancel and requeue while the first request of a budget is out: the old answer
# settles nothing that it does not belong to, so neither does a failure bury
# what has one attempt, nor does a success stand for the request that follows.
$node->sql('CREATE TABLE seen (attempt int, outcome text)');
$node->sql(<<'END');
CREATE ROLE judge;
GRANT INSERT ON seen TO judge;
CREATE FUNCTION note_outcome(s outbox.settlement) RETURNS void LANGUAGE sql AS $$ INSERT INTO public.seen VALUES (s.attempt, s.outcome) $$;
ALTER FUNCTION note_outcome OWNER TO judge;
END
$node->handler('only', ['only.*'], $receiver->url('/only'), max_attempts => 1);
$node->handler('told', ['told.*'], $receiver->url('/told'), max_attempts => 1, on_settle => 'note_outcome(outbox.settlement)');
$node->handler('later', ['later.*'], $receiver->url('/later'), max_attempts => 1);
foreach my $case ([ 'only', 500 ], [ 'only', 200 ], [ 'told', 500 ], [ 'told', 200 ])
{
	my ($handler, $status) = @$case;
	$receiver->on("/$handler", { hang => 1 });
	$receiver->forget;
	$id = $node->stage("$handler.x", '{}');
	ok($receiver->wait_for_requests(1, "/$handler"), 'a request is out');
	is($node->sql("SELECT outbox.cancel('$id') + outbox.requeue('$id')"), 2, 'cancel and requeue');
	is($receiver->release("/$handler", { status => $status }), 1, "it is answered $status");
	ok($receiver->wait_for_requests(2, "/$handler"), "$handler, $status: it is sent once more");
	$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$id'", 'delivered 2', 'the new one is what counts');
	is(join(' ', map { $_->{headers}{'outbox-attempt'} } $receiver->requests("/$handler")), '1 2', 'under a number of its own');
}
is($node->sql("SELECT string_agg(attempt || ' ' || outcome, ', ') FROM seen"), '2 delivered, 2 delivered', 'on_settle hears of the new ones only');

# What was never sent counts the same: nobody can tell.  It stays within its budget.
$node->sql("SELECT outbox.pause_handler('later')");
$id = $node->stage('later.x', '{}');
$node->sql("SELECT outbox.cancel('$id'), outbox.requeue('$id')") foreach 1 .. 2;
is($node->sql("SELECT attempts || ' ' || attempts_of_budget FROM outbox.deliveries WHERE message_id = '$id'"), '2 0', 'each requeue begins a budget');
$node->sql("SELECT outbox.resume_handler('later')");
$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$id'", 'delivered 3', 'which has its attempt');

# retry_now on a delivery whose retry is out already does not send it twice at once.
$receiver->on('/h', { status => 500 }, { hang => 1 });
$node->handler('once', ['once.*'], $receiver->url('/once'), backoff => \"ARRAY['1 ms', '1 hour']::interval[]", jitter => 0);
$receiver->on('/once', { status => 500 }, { hang => 1 });
$id = $node->stage('once.x', '{}');
ok($receiver->wait_for_requests(2, '/once'), 'the retry is out');
$node->sql("SELECT outbox.retry_now('$id')");
$node->sql("UPDATE outbox.delivery SET due_at = clock_timestamp() WHERE message_id = '$id'");
$node->sql('SELECT outbox_internal.ring_rescan()');
$node->handler('after', ['after.*'], $receiver->url('/after'));
$node->stage('after.x', '{}');
ok($receiver->wait_for_requests(1, '/after'), 'the dispatcher has looked since');
is($receiver->count('/once'), 2, 'it is not sent a second time meanwhile');
$receiver->release('/once', { status => 200 });
$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$id'", 'delivered 2', 'and settled once');

# An operator's open transaction on one delivery stalls no other.
$receiver->on('/h', { hang => 1 });
$receiver->forget;
$id = $node->stage('t.x', '{"held": true}');
ok($receiver->wait_for_requests(1, '/h'), 'a request is out');
my $operator = $node->background_psql('postgres');
$operator->query_safe("BEGIN; SELECT FROM outbox.delivery WHERE message_id = '$id' FOR UPDATE");
$receiver->release('/h', { status => 200 });
my $start = time;
$node->sql("SELECT count(outbox.stage('t.x', '{}')) FROM generate_series(1, 200)");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'h' AND state = 'delivered' AND settled_at > now() - interval '1 minute' AND message_id > '$id'",
	200, 'others are sent and settled while an operator holds one');
cmp_ok(time - $start, '<', 10, 'without waiting for it');
is(state_of($id), 'pending 0', 'the one that is held is not settled yet');
is($receiver->ids('/h')->{$id}, 1, 'nor sent again');
$operator->query_safe('COMMIT');
$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$id'", 'delivered 1', 'it is settled when the operator lets go');

# An uncommitted requeue is not sent; committed, it is.
$receiver->forget;
$receiver->on('/h', { status => 410 });
$node->handler('d', ['dead.*'], $receiver->url('/d'), max_attempts => 1);
$receiver->on('/d', { status => 500 });
$id = $node->stage('dead.x', '{}');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'dead', 'a dead letter');
$receiver->on('/d', { status => 200 });
$operator->query_safe("BEGIN; SELECT outbox.requeue('$id')");
$node->stage('dead.y', '{}');
ok($receiver->wait_for_requests(2, '/d'), 'another message goes past');
is($receiver->ids('/d')->{$id}, 1, 'an uncommitted requeue is not sent');
$operator->query_safe('COMMIT');
$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$id'", 'delivered 2', 'it is once it commits');
$operator->query_safe("BEGIN; SELECT outbox.requeue_where(include_delivered => true, since => '-infinity', topic => 'dead.x')");
$operator->query_safe('ROLLBACK');
$node->sql('CALL outbox.drain()');
is($receiver->ids('/d')->{$id}, 2, 'a requeue that is rolled back is not');
is($node->sql("SELECT outbox.replay('d', now() - interval '1 hour')"), 2, 'replay what was delivered');
$node->wait_for("SELECT string_agg(state || ' ' || attempts, ', ' ORDER BY attempts) FROM outbox.deliveries WHERE handler = 'd'", 'delivered 2, delivered 3', 'delivered again, with higher attempts');
$receiver->on('/h', { status => 200 });

# Somebody locks a table for a while: nothing is lost, the sockets go on being
# served, and everything follows when the lock is gone.
foreach my $table (qw(delivery message handler handler_status attempt))
{
	$receiver->forget;
	$receiver->on('/lock', { hang => 1 });
	$node->handler("lock_$table", ["lock.$table"], $receiver->url('/lock'), concurrency => 3);
	$node->sql("SELECT count(outbox.stage('lock.$table', '{}')) FROM generate_series(1, 3)");
	ok($receiver->wait_for_requests(3, '/lock'), "$table: three requests are out");
	$operator->query_safe("BEGIN; LOCK TABLE outbox.$table IN ACCESS EXCLUSIVE MODE");
	is($receiver->release('/lock', { status => 200 }), 3, "$table: they are answered while the table is locked");
	is($node->sql("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $dispatcher AND locktype = 'relation'"), 0, "$table: the dispatcher does not queue up for the lock");
	like($node->sql("SELECT state FROM outbox.dispatchers WHERE pid = $dispatcher"), qr/running/, "$table: it is there");
	$operator->query_safe('COMMIT');
	$node->wait_for("SELECT string_agg(DISTINCT state || ' ' || attempts, ',') FROM outbox.deliveries WHERE handler = 'lock_$table'", 'delivered 1', "$table: settled once the lock is gone");
	$node->stage("lock.$table", '{}');
	ok($receiver->wait_for_requests(4, '/lock'), "$table: and the next one is sent");
}
is($node->dispatcher_pid, $dispatcher, 'all by the same dispatcher');

# Maintenance that rewrites or empties its tables.
$receiver->forget;
$node->sql('VACUUM FULL outbox.delivery');
$node->sql('VACUUM FULL outbox.receipt');
$node->sql('VACUUM FULL outbox.message');
$node->sql('REINDEX TABLE outbox.delivery');
$node->sql('REINDEX TABLE outbox.receipt');
$node->sql('REINDEX TABLE CONCURRENTLY outbox.message');
$node->sql('CLUSTER outbox.delivery USING delivery_pkey');
$node->sql('CLUSTER outbox.receipt USING receipt_pkey');
$node->sql('ANALYZE');
$node->stage('t.x', '{}');
ok($receiver->wait_for_requests(1, '/h'), 'delivers after VACUUM FULL, REINDEX and CLUSTER');
$node->sql('CALL outbox.drain()');
$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
$node->stage('t.x', '{}');
ok($receiver->wait_for_requests(2, '/h'), 'and after TRUNCATE');

# drain holds nothing while it waits, and ends when there is nothing left.
$receiver->on('/h', { hang => 1 });
$receiver->forget;
$node->stage('t.x', '{}');
ok($receiver->wait_for_requests(1, '/h'), 'a request is out');
my ($in, $out, $err) = ('', '', '');
my $drain = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', "CALL outbox.drain('h', '1 minute')", '-c', "SELECT 'drained'" ],
	'<', \$in, '>', \$out, '2>', \$err);
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL outbox.drain%' AND wait_event = 'Extension'", 1, 'drain waits');
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL outbox.drain%' AND backend_xmin IS NULL AND backend_xid IS NULL", 1, 'holding no snapshot');
$receiver->release('/h', { status => 200 });
ok($drain->finish, 'drain ends');
like($out, qr/drained/, 'without an error');

# What nobody gets rid of by himself is not waited for: a consumer's backlog, a paused handler's.
$node->handler('away', ['t.x'], undef);
$node->handler('stopped', ['t.x'], $receiver->url('/stopped'));
$node->sql("SELECT outbox.pause_handler('stopped')");
$node->stage('t.x', '{}');
$node->sql('CALL outbox.drain()');
is($node->sql("SELECT string_agg(handler || ' ' || due, ', ' ORDER BY handler) FROM outbox.backlog WHERE due > 0"), 'away 1, stopped 1', 'drain leaves pull handlers and paused ones out');
like($node->sql_error("CALL outbox.drain('stopped', '1 h')"), qr/55000.*handler "stopped" is paused and has due deliveries/s, 'and says so at once of one that is named');
$node->sql("SELECT outbox.drop_handler('away'), outbox.drop_handler('stopped')");

# A copy holds its deliveries until it is adopted.
$node->sql('INSERT INTO outbox.installation (system_identifier, database_oid) VALUES (1, 1)');
$node->wait_for('SELECT state FROM outbox.dispatchers', 'held', 'a foreign identity: deliveries are held');
$receiver->forget;
$node->stage('t.x', '{}');
is($node->sql('SELECT outbox.adopt()'), 't', 'adopt');
ok($receiver->wait_for_requests(1, '/h'), 'and they are delivered');
$node->wait_for('SELECT state FROM outbox.dispatchers', 'running', 'as ever');

# Prune removes what is settled; what is outstanding goes on.
$node->sql('CALL outbox.drain()');
is($node->sql('SET outbox.delivered_retention = 0; SET outbox.dead_retention = 0; SELECT messages > 0 FROM outbox.prune()'), 't', 'prune');
is($node->sql('SELECT count(*) FROM outbox.message'), 0, 'nothing is left');
is($node->sql('SELECT count(*) FROM outbox.verify()'), 0, 'verify finds nothing wrong');
is($node->sql('SELECT status FROM outbox.health()'), 'ok', 'and health is ok');
is($node->dispatcher_pid, $dispatcher, 'the dispatcher never restarted');
$operator->quit;

unlike($node->log_text, qr/PANIC|FATAL|terminated by signal/, 'no crash');
done_testing();
