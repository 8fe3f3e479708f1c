# Changes that the doorbell does not tell one by one, rows changed by hand,
# and how much a look at a key may read.  A rescan would hide most of this, so
# there is none.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.rescan_interval = '1h'\nautovacuum = off\nmax_prepared_transactions = 10");
$node->wait_for_dispatcher;

sub state_of
{
	my $id = shift;
	return "SELECT state FROM outbox.deliveries WHERE message_id = '$id'";
}

# Stage or change something in a transaction that is prepared under a name.
sub prepare
{
	my ($name, $sql) = @_;
	my @lines = split /\n/, $node->sql("BEGIN; $sql; PREPARE TRANSACTION '$name'");
	return $lines[0];
}

# More index entries of settled rows than a slice of a rescan looks at, which
# vacuum cannot remove, so that a rescan takes its time.
$node->handler('rescanned', ['rescanned.*'], $receiver->url('/rescanned'));
my @prepared = map { prepare("rescanned$_", "SELECT outbox.stage('rescanned.x')") } 1 .. 5;
my $holder = PsqlSession->new($node);
$holder->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.message');
$node->sql("SELECT outbox.pause_handler('rescanned')");
$node->sql("SELECT count(outbox.stage('rescanned.bulk')) FROM generate_series(1, 40000)");
is($node->sql("SELECT outbox.cancel_where(handler => 'rescanned')"), 40000, 'many deliveries are settled');
$node->sql("SELECT outbox.resume_handler('rescanned')");
my $id = $node->stage('rescanned.last');
$node->wait_for(state_of($id), 'delivered', 'the lane has read past them');

# Each is committed while the rescan that the one before asked for goes on, behind where it started.
foreach my $n (1 .. 5)
{
	$node->sql("COMMIT PREPARED 'rescanned$n'");
	$node->wait_for(state_of($prepared[ $n - 1 ]), 'delivered', "prepared transaction $n is delivered");
}
$holder->run('COMMIT');

# What is in memory and is cancelled, or erased, by COMMIT PREPARED is not sent.
$receiver->on('/queue', { hang => 1 });
$node->handler('queue', ['queue.*'], $receiver->url('/queue'), concurrency => 1, timeout => '1 h');
$node->stage('queue.out');
ok($receiver->wait_for_requests(1, '/queue'), 'a request is out');
my @queued = map { $node->stage('queue.waits', '{}', tenant => $_ == 2 ? 'gone' : 'stays') } 1 .. 4;
# A message of another handler, read later, tells that these have been read.
$node->handler('witness', ['witness'], $receiver->url('/witness'));
$node->stage('witness');
ok($receiver->wait_for_requests(1, '/witness'), 'the others wait in memory');
prepare('cancels', "SELECT outbox.cancel('$queued[0]')");
prepare('erases', "SELECT outbox.erase_tenant('gone')");
$node->sql("COMMIT PREPARED 'cancels'");
$node->sql("COMMIT PREPARED 'erases'");
$node->stage('witness');
ok($receiver->wait_for_requests(2, '/witness'), 'the doorbell has been emptied');
$receiver->on('/queue', {});
$receiver->release('/queue', {});
$node->wait_for(state_of($queued[3]), 'delivered', 'the queue goes on');
is($receiver->ids('/queue')->{ $queued[0] }, undef, 'without the one that was cancelled');
is($receiver->ids('/queue')->{ $queued[1] }, undef, 'and the one that was erased');
is($receiver->ids('/queue')->{ $queued[2] }, 1, 'but with the other one');

# A row that has no attempt left, by hand or because the handler allows fewer, is not tried once more.
$receiver->on('/spent', { status => 500 });
$node->handler('spent', ['spent.*'], $receiver->url('/spent'), max_attempts => 5, breaker_threshold => 0,
	backoff => \"ARRAY['1 ms', '1 ms', '1 h']::interval[]");
$node->sql("SELECT outbox.pause_handler('spent')");
my %spent = map { $_ => $node->stage("spent.$_") } qw(most huge requeued fewer);
$node->sql("UPDATE outbox.delivery SET attempts = 5 WHERE message_id = '$spent{most}'");
$node->sql("UPDATE outbox.delivery SET attempts = 2147483647 WHERE message_id = '$spent{huge}'");
$node->sql("UPDATE outbox.delivery SET attempts = 2147483647, budget_from = 2147483647 WHERE message_id = '$spent{requeued}'");
$node->sql("UPDATE outbox.delivery SET attempts = 3, code = '503', streak = 3, state = 1 WHERE message_id = '$spent{fewer}'");
$node->sql("SELECT outbox.alter_handler('spent', max_attempts => 3)");
my $tried = $node->stage('spent.tried');
$node->sql("SELECT outbox.resume_handler('spent')");
$node->wait_for("SELECT state || ' ' || code || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$spent{most}'", 'dead max_attempts 5', 'attempts at the maximum');
$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$spent{huge}'", 'dead 2147483647', 'far above it');
$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$spent{requeued}'", 'dead 2147483647', 'that cannot be counted further');
$node->wait_for("SELECT state || ' ' || code || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$spent{fewer}'", 'dead 503 3', 'of which fewer are allowed now');
$node->wait_for(state_of($tried), 'dead', 'one that has attempts left');
is(join(' ', map { $_->{headers}{'webhook-id'} } $receiver->requests('/spent')), "$tried $tried $tried", 'alone was tried, as often as it may be');
is($node->sql("SELECT DISTINCT error FROM outbox.deliveries WHERE message_id IN ('$spent{most}', '$spent{huge}')"), 'no attempt was left when it was read', 'why says the row');

# Behind the head of a key there are ever so many entries of settled rows: a
# look for what may be read ahead ends after a thousand of them.
$receiver->on('/keyed', { hang => 1 });
$node->handler('keyed', ['keyed.*'], $receiver->url('/keyed'), ordered => 'true', timeout => '1 h');
$node->sql("SELECT outbox.pause_handler('keyed')");
my $head = $node->stage('keyed.head', '{}', key => 'k');
$holder->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.message');
$node->sql("SELECT count(outbox.stage('keyed.bulk', key => 'k')) FROM generate_series(1, 30000)");
is($node->sql("SELECT outbox.cancel_where(handler => 'keyed', topic => 'keyed.bulk')"), 30000, 'many of a key are settled');
my @later = map { $node->stage('keyed.later', '{}', key => 'k') } 1 .. 3;
my $read = q{SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'delivery_keyed'};
my $before = $node->sql($read);
$node->sql("SELECT outbox.resume_handler('keyed')");
ok($receiver->wait_for_requests(1, '/keyed'), 'the head is sent');
push @later, $node->stage('keyed.later', '{}', key => 'k');
$node->stage('witness');
ok($receiver->wait_for_requests(3, '/witness'), 'the doorbell has been emptied again');
$node->sql("SELECT outbox.stage('witness')");
$node->wait_until("SELECT count(*) = 4 FROM outbox.deliveries WHERE handler = 'witness' AND state = 'delivered'");
$node->wait_until("SELECT idx_tup_read > $before FROM pg_stat_user_indexes WHERE indexrelname = 'delivery_keyed'");
cmp_ok($node->sql($read) - $before, '<', 20000, 'and few of the others are looked at');
$receiver->on('/keyed', {});
$receiver->release('/keyed', {});
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'keyed' AND state = 'delivered'", 5, 'what lies behind them is found all the same');
is(join(' ', map { $_->{headers}{'webhook-id'} } $receiver->requests('/keyed')), join(' ', $head, @later), 'in order');
$holder->run('COMMIT');
$node->stop;
done_testing();
