# doc/growing.md: outboxes in three databases and one receiver, a tenant that
# moves, a hub, and a broker that is fed.
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

my $page = Recipes->read('doc/growing.md');
my $receivers = Recipes->read('doc/recipes/whole-receivers.md');
my $node = OutboxCluster->create('main', extension => 0);
my $folder = $node->basedir . '/growing';
$page->write($folder);
$receivers->write($folder);
WholeReceiver::prepare($node);

my $said = '';
sub start
{
	my ($script, %env) = @_;
	my %all = (PGHOST => '127.0.0.1', PGPORT => $node->port, PGUSER => scalar(getpwuid $>), %env);
	return IPC::Run::start([ $python, $script ], '<', \undef, '>&', \$said, init => sub { chdir $folder; @ENV{ keys %all } = values %all });
}

sub end
{
	foreach my $process (@_)
	{
		$process->signal('TERM');
		$process->finish;
	}
	return;
}

# --- three databases, one receiver, which is away at first
my @shards = qw(shard1 shard2 shard3);
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';
foreach my $shard (@shards)
{
	$node->sql("CREATE DATABASE $shard");
	foreach (1, 2)
	{
		my ($out, $error) = ('', '');
		my $script = $page->text('shard.sql');
		IPC::Run::run([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-v', "url=http://127.0.0.1:$port/hooks", '-v', "secret=$secret", '-d', $node->connstr($shard) ],
			'<', \$script, '>', \$out, '2>', \$error);
		is($out, $_ == 1 ? "{created}\n" : "{}\n", "$shard: the migration runs " . ($_ == 1 ? 'once' : 'twice'));
	}
	$node->sql("SELECT outbox.alter_handler('billing', backoff => ARRAY['100 ms']::interval[])", $shard);
}
$node->sql('INSERT INTO invoice SELECT generate_series(1, 30)', 'receiver');
$node->sql("SELECT outbox.stage('order.paid', jsonb_build_object('invoice', n, 'amount', '1'), key => n::text) FROM generate_series(1, 30) n", $_) foreach @shards;
my $receiver = start('receiver.py', PGDATABASE => 'receiver', PORT => $port, SECRET => $secret);
foreach my $shard (@shards)
{
	$node->wait_for('SELECT count(*) FROM outbox.delivery', 0, "$shard: everything is delivered", $shard);
	$node->sql("SELECT outbox.requeue_where(handler => 'billing', include_delivered => true)", $shard);
	$node->wait_for("SELECT count(*) || ' ' || bool_and(attempts > 1 AND state = 'delivered') FROM outbox.deliveries", '30 true', "$shard: and once more", $shard);
}
is($node->sql("SELECT (SELECT count(*) FROM seen) || ' ' || count(*) || ' ' || min(paid) || ' ' || max(paid) FROM invoice", 'receiver'), '90 30 3 3', 'the receiver did the work of each message once') or diag($said);
end($receiver);
my $echo = HttpReceiver->start;
$node->sql(sprintf(q{SELECT outbox.alter_handler('billing', url => '%s'); SELECT outbox.stage('order.seen')}, $echo->url('/hooks')), $_) foreach @shards;
$echo->wait_for_requests(3, '/hooks');
is(join(' ', sort map { $_->{headers}{'x-shard'} } $echo->requests('/hooks')), "@shards", 'a header says whose it is');

# --- a tenant that moves
$node->sql("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY, org text); SELECT outbox.watch('shop.orders', 'order', tenant => 'org')", $_) foreach @shards;
$node->sql("SELECT outbox.pause_handler('billing'); INSERT INTO shop.orders VALUES (1, 'acme'), (2, 'globex')", 'shard1');
is($node->sql($page->text('moved.sql'), 'shard1'), 1, 'something of the tenant has not been sent');
$node->sql("SELECT outbox.resume_handler('billing')", 'shard1');
$node->wait_for($page->text('moved.sql') =~ s/;.*//sr, 0, 'now it has', 'shard1');
$node->sql("CREATE TABLE arrived AS SELECT 1 AS id, 'acme' AS org", 'shard2');
my $before = $node->sql('SELECT count(*) FROM outbox.message', 'shard2');
$node->sql($page->text('copied.sql'), 'shard2');
is($node->sql("SELECT count(*) || ' ' || (SELECT count(*) FROM outbox.message) FROM shop.orders", 'shard2'), "1 $before", 'what is copied is not announced');
$node->sql("UPDATE shop.orders SET org = 'acme ltd'", 'shard2');
is($node->sql('SELECT count(*) FROM outbox.message', 'shard2'), $before + 1, 'what is changed then is');

# --- a hub
$node->extension('hub');
$node->sql($receivers->text('relay.target.sql'), 'hub');
my @relays;
foreach my $shard (@shards)
{
	my $source = $receivers->text('relay.source.sql');
	$source =~ s/^CREATE ROLE.*\n//m unless $shard eq 'shard1';
	$node->sql($source, $shard);
	push @relays, start('relay.py', NAME => $shard, SOURCE => $node->connstr($shard) . ' user=relay', TARGET => $node->connstr('hub') . ' user=hub');
	$node->sql("SELECT outbox.stage('order.placed', jsonb_build_object('shard', current_database(), 'n', n)) FROM generate_series(1, 20) n", $shard);
}
$node->wait_for("SELECT count(*) || ' ' || count(DISTINCT payload) || ' ' || count(DISTINCT correlation_id) FROM outbox.message", '60 60 60', 'the hub has what all shards have', 'hub') or diag($said);
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'relay' AND state <> 'delivered'", 0, "$_: the relay has receipts", $_) foreach @shards;
end(@relays);

# --- a broker: a file, and at times none
$node->extension('feed');
$node->sql($page->text('feed.sql'), 'feed');
open my $broker, '>', "$folder/broker.py" or die $!;
print $broker <<'END';
import os
def publish(batch):
    if os.path.exists('broker.away'):
        raise OSError('the broker is away')
    with open('broker.log', 'a') as log:
        for topic, key, identifier, body in batch:
            log.write(f'{topic} {key} {identifier} {body}\n')
END
close $broker;
open my $away, '>', "$folder/broker.away" or die $!;
close $away;
$node->sql("SELECT outbox.stage('order.placed', jsonb_build_object('n', n), key => 'k' || n % 7) FROM generate_series(1, 1200) n", 'feed');
my $feeder = start('feed.py', PGDATABASE => 'feed', PGUSER => 'feeder');
$node->wait_while_not(sub { $feeder->pump_nb; $said =~ /the broker is away/ }, 'the feeder is told that there is no broker');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", 'feed'), 0, 'and completes nothing');
unlink "$folder/broker.away";
$node->wait_for('SELECT count(*) FROM outbox.delivery', 0, 'the broker is back, and gets everything', 'feed');
is($node->sql("SELECT count(*) || ' ' || bool_and(state = 'delivered') FROM outbox.deliveries", 'feed'), '1200 true', 'all of it is delivered');
end($feeder);
open my $log, '<', "$folder/broker.log" or die $!;
my %published;
$published{ (split / /)[2] }++ while <$log>;
is(scalar(keys %published) . ' ' . (grep { $_ > 1 } values %published), '1200 0', 'each message is there, once');

$node->stop;
done_testing();
