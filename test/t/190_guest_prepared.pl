# Two-phase commit: what a prepared transaction has staged or changed is
# noticed when it is committed, also by another session after a restart, and
# those that have nothing to do with outbox cost it nothing.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => <<'END');
max_prepared_transactions = 10
outbox.rescan_interval = 1h
END
$node->handler('h', ['p.*'], $receiver->url('/h'));
$node->sql('CREATE TABLE other (n int)');
$node->wait_for_dispatcher;

sub prepare
{
	my ($name, $sql, $database) = @_;
	return $node->sql("BEGIN; $sql; PREPARE TRANSACTION '$name'", $database);
}
sub commit_prepared { return $node->sql("COMMIT PREPARED '$_[0]'", $_[1]); }

# --- staged, and committed by another session
prepare('staged', "SELECT outbox.stage('p.one')");
prepare('unrelated', 'INSERT INTO other VALUES (1)');
$node->stage('p.two');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", 1, 'what is committed is delivered');
commit_prepared('unrelated');
commit_prepared('staged');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", 2, 'and so is what was prepared, once it is committed');

# --- over a restart
prepare('staged', "SELECT outbox.stage('p.one')");
prepare('made', "SELECT outbox.create_handler('made', '{q.*}', '" . $receiver->url('/made') . "')");
$node->restart;
$node->wait_for_dispatcher;
$node->stage('p.two');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", 3, 'a dispatcher that was started meanwhile has read everything');
commit_prepared('staged');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", 4, 'and finds what is committed after that');
commit_prepared('made');
$node->stage('q.one');
ok($receiver->wait_for_requests(1, '/made'), 'a handler that was made in a prepared transaction is known');

# --- one that stages nothing but changes what is out of sight
$node->sql("SELECT outbox.pause_handler('h')");
my $id = $node->stage('p.three');
prepare('cancelled', "SELECT outbox.cancel('$id', reason => 'no longer wanted')");
commit_prepared('cancelled');
$node->sql("SELECT outbox.resume_handler('h')");
$node->stage('p.four');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE topic = 'p.four'", 'delivered', 'others go on');
is($node->sql("SELECT state FROM outbox.deliveries WHERE message_id = '$id'"), 'cancelled', 'what was cancelled is not sent');

# --- unrelated ones make nobody read anything
my $looks = "SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relid = 'outbox.handler_status'::regclass";
sub look_once
{
	my $seen = $node->sql($looks);
	$node->sql('SELECT outbox_internal.ring_handlers()');
	$node->wait_until("SELECT ($looks) > $seen");
	return $node->sql($looks);
}
my $before = look_once();
my $one = look_once() - $before;
foreach my $n (1 .. 20)
{
	prepare("unrelated $n", "INSERT INTO other VALUES ($n)");
	commit_prepared("unrelated $n");
}
cmp_ok(look_once() - $before, '<', 10 * $one, 'committing what has nothing to do with outbox makes nobody read the handlers');

# --- the extension itself
$node->sql('CREATE DATABASE late');
prepare('created', 'SET LOCAL client_min_messages = warning; CREATE EXTENSION outbox', 'late');
$node->restart;
commit_prepared('created', 'late');
ok($node->wait_for_dispatcher('late'), 'an extension that was created so gets its dispatcher');

$node->stop;
done_testing();
