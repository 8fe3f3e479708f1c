# outbox.reschedule(): a dispatcher, a claim and a waiter hear of the new time,
# sooner or later, and a key of an ordered handler keeps its order.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => 'outbox.rescan_interval = 1h');
$node->handler('plain', ['plain.*'], $receiver->url('/plain'));
$node->handler('slow', ['slow.*'], $receiver->url('/slow'), concurrency => 1);
$node->handler('ordered', ['key.*'], $receiver->url('/ordered'), ordered => 'true');
$node->handler('pull', ['pull.*']);

sub reschedule
{
	my ($id, $when) = @_;
	return $node->sql("SELECT outbox.reschedule('$id', $when)");
}

sub is_delivered
{
	my ($id, $name) = @_;
	return $node->wait_for("SELECT state || attempts FROM outbox.deliveries WHERE message_id = '$id'", 'delivered1', $name);
}

sub bodies
{
	my $path = shift;
	return join ' ', map { $_->{body} } $receiver->requests($path);
}

# Sooner.
my $id = $node->stage('plain.x', '1', delay => '1 h');
is(reschedule($id, 'now()'), 1, 'due now');
is_delivered($id, 'what was due in an hour is sent');
$id = $node->stage('plain.x', '2', delay => '1 h');
reschedule($id, q{now() + interval '200 ms'});
is_delivered($id, 'or when it says');

# Later: not at the time that it had, nor when its lane has read it already.
$id = $node->stage('plain.x', '3', delay => '300 ms');
my $after = $node->stage('plain.x', '4', delay => '600 ms');
reschedule($id, q{now() + interval '1 h'});
is_delivered($after, 'the one that was to follow');
is(bodies('/plain'), '1 2 4', 'the one before it is put off');
$receiver->on('/slow', { hang => 1 }, {});
$node->stage('slow.first', '"first"');
$receiver->wait_for_requests(1, '/slow') or die 'no request';
my @ids = map { $node->stage('slow.x', $_) } 1 .. 3;
reschedule($ids[1], q{now() + interval '1 h'});
$receiver->release('/slow');
is_delivered($ids[2], 'one of a queue');
is(bodies('/slow'), '"first" 1 3', 'leaves it');
reschedule($ids[1], 'now()');
is_delivered($ids[1], 'and comes back');

# An ordered key: its head may be put off or hurried, those behind it wait for it.
@ids = map { $node->stage('key.x', $_, key => 'k', $_ == 1 ? (delay => '1 h') : ()) } 1 .. 3;
reschedule($ids[1], 'now()');
reschedule($ids[2], q{now() + interval '300 ms'});
$node->stage('key.x', '"other"', key => 'o');
$receiver->wait_for_requests(1, '/ordered');
is(bodies('/ordered'), '"other"', 'those behind the head wait for it');
reschedule($ids[0], 'now()');
is_delivered($ids[2], 'until that is hurried');
is(bodies('/ordered'), '"other" 1 2 3', 'and go in stage order');

# Consumers that wait.
$id = $node->stage('pull.x', '1', delay => '1 h');
my $session = PsqlSession->new($node);
$session->start(q{CALL outbox.wait('pull', '1 min')});
$node->wait_until("SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'CALL outbox.wait%' AND wait_event_type = 'Extension'");
reschedule($id, 'now()');
$session->finish;
is($node->sql(q{SELECT payload FROM outbox.claim('pull')}), '1', 'a waiter is woken for it');
$session->close;
$node->stop;
done_testing();
