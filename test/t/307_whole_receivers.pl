# doc/recipes/whole-receivers.md: the receiver in Python, and messages that go from
# one PostgreSQL to another.  (Node and Go: suite npm.)
use strict;
use warnings;

use HttpReceiver;
use IPC::Run;
use OutboxCluster;
use Recipes;
use Test::More;
use WholeReceiver;

my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
plan skip_all => 'psycopg is not installed' if system("$python -c 'import psycopg' > /dev/null 2>&1") != 0;

my $node = OutboxCluster->create('main');
my $page = Recipes->read('doc/recipes/whole-receivers.md');
my $folder = $node->basedir . '/receivers';
$page->write($folder);
WholeReceiver::prepare($node);
WholeReceiver::try($node, 'python', command => [ $python, 'receiver.py' ], in => $folder);

# --- from one PostgreSQL to another, by two relays, one of which is killed
my $receiver = HttpReceiver->start;
my $hub = OutboxCluster->create('hub');
$node->sql($page->text('relay.source.sql'));
$hub->sql($page->text('relay.target.sql'));
$hub->handler('out', ['*'], $receiver->url('/out'));
my %env = (NAME => 'shop', LEASE => '2 seconds', SOURCE => $node->connstr('postgres') . ' user=relay', TARGET => $hub->connstr('postgres') . ' user=hub');
my $said = '';
my $start = sub { IPC::Run::start([ $python, 'relay.py' ], '<', \undef, '>&', \$said, init => sub { chdir $folder; @ENV{ keys %env } = values %env }) };
my @relays = map { $start->() } 1 .. 2;

$node->sql(q{SELECT outbox.stage('order.placed', '{"n": 0}', key => 'k', tenant => 't')});
$receiver->wait_for_requests(1, '/out');
$node->wait_for('SELECT count(*) FROM outbox.delivery', 0, 'one has gone all the way');
$node->sql(q{SELECT outbox.stage('order.placed', jsonb_build_object('n', n), correlation_id => 'c') FROM generate_series(1, 200) n});
$receiver->wait_for_requests(50, '/out');
$relays[0]->kill_kill(grace => 0);
$relays[0] = $start->();
$node->wait_for('SELECT count(*) FROM outbox.delivery', 0, 'all go all the way') or diag($said);
$hub->wait_for('SELECT count(*) FROM outbox.delivery', 0, 'and are delivered there');
is($hub->sql(q{SELECT count(*) || ' ' || count(DISTINCT payload) FROM outbox.message}), '201 201', 'once');
is(scalar($receiver->requests('/out')), 201, 'to who takes them there');
is($hub->sql(q{SELECT key || ' ' || tenant FROM outbox.message WHERE payload = '{"n": 0}'}), 'k t', 'with key and tenant');
is($hub->sql(q{SELECT correlation_id FROM outbox.message WHERE payload = '{"n": 0}'}), $node->sql(q{SELECT id FROM outbox.message WHERE payload = '{"n": 0}'}), 'and its id as correlation id');
is($hub->sql(q{SELECT count(*) FROM outbox.message WHERE correlation_id = 'c'}), 200, 'where it had none');
foreach my $relay (@relays)
{
	$relay->signal('TERM');
	$relay->finish;
}

$node->stop;
$hub->stop;
done_testing();
