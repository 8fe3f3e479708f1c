# outbox.max_memory holds, whatever there is to send and however slow the
# receivers are, and keeps nobody waiting for ever.  There is no rescan: who
# waits for memory is looked at again when there is some.
use strict;
use warnings;

use Digest::MD5 qw(md5_hex);
use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;
use Time::HiRes qw(sleep);

plan skip_all => 'no /proc' unless -r "/proc/$$/status";

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main',
	conf => "outbox.max_memory = '8MB'\noutbox.max_payload_size = '64MB'\noutbox.rescan_interval = '1h'\noutbox.settler = off\nautovacuum = off");
my $dispatcher = $node->wait_for_dispatcher;

# About n bytes as text, and as much stored, which do not compress.
$node->sql(<<'END');
CREATE FUNCTION public.payload(n int) RETURNS jsonb LANGUAGE sql VOLATILE AS $$
SELECT jsonb_agg(md5(random()::text)) FROM generate_series(1, n / 36) $$
END

sub memory
{
	open my $in, '<', "/proc/$dispatcher/status" or die "the dispatcher is gone: $!";
	while (<$in>) { return $1 / 1024 if /^RssAnon:\s+(\d+)/; }
	return 0;
}

# Wait for a condition; returns the most memory there was meanwhile, in MB.
sub most_memory_until
{
	my ($condition, $name) = @_;
	my $most = memory();
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	until ($condition->())
	{
		if (time > $end)
		{
			fail($name);
			return $most;
		}
		my $now = memory();
		$most = $now if $now > $most;
		sleep 0.005;
	}
	pass($name);
	return $most;
}

sub delivered
{
	my ($topic, $number) = @_;
	return sub {
		$node->sql("SELECT count(*) FROM outbox.deliveries WHERE topic = '$topic' AND state = 'delivered'") == $number;
	};
}

# Does the path have what was staged, to the byte?
sub bodies_ok
{
	my ($path, $topic, $name) = @_;
	my @got = sort map { md5_hex($_->{body}) } $receiver->requests($path);
	my @staged = split /\n/, $node->sql("SELECT md5(payload::text) FROM outbox.message WHERE topic = '$topic' ORDER BY 1");
	return is("@got", "@staged", $name);
}

# Everything that a dispatcher keeps has been there once.
$node->handler('small', ['small.*'], $receiver->url('/small'), concurrency => 50);
$node->handler('warm', ['warm.*'], $receiver->url('/warm'));
$node->sql("SELECT outbox.stage('warm.x', public.payload(1000000))");
$node->sql("SELECT count(outbox.stage('small.warm', to_jsonb(repeat('x', 300)))) FROM generate_series(1, 2000)");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", 2001, 'a dispatcher at work');
bodies_ok('/warm', 'warm.x', 'a payload of 1 MB');
my $before = memory();

# --- many handlers, each with much to send to a receiver that does not answer
my $handlers = 10;
my $each = 10;
$receiver->on('/slow', { hang => 1 });
$node->handler("slow$_", ["slow$_.*"], $receiver->url("/slow/$_"), concurrency => $each, timeout => '10 min') foreach 1 .. $handlers;
$node->sql("SELECT count(outbox.stage('slow' || h || '.x', public.payload(500000))) FROM generate_series(1, $handlers) AS h, generate_series(1, $each)");
my $most = most_memory_until(sub { $receiver->count >= 2001 + 3 }, 'some of it is out');

# --- meanwhile another handler goes on, many messages at a time
my $transactions = $node->sql('SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()');
$node->sql("SELECT count(outbox.stage('small.beside', '{}')) FROM generate_series(1, 4000)");
my $beside = most_memory_until(delivered('small.beside', 4000), 'small messages are delivered beside it');
$most = $beside if $beside > $most;
$node->wait_until("SELECT n_tup_ins >= 6001 FROM pg_stat_all_tables WHERE relid = 'outbox.receipt'::regclass");
$transactions = $node->sql('SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()') - $transactions;
cmp_ok($transactions, '<', 1500, 'in batches');

# --- one that is larger than the bound goes when the others are through
$node->handler('huge', ['huge.*'], $receiver->url('/huge'), timeout => '10 min');
$node->sql("SELECT outbox.stage('huge.x', public.payload(12000000))");
cmp_ok($most - $before, '<', 8 + 4, 'memory keeps within its bound, and some for libraries');
note sprintf 'before: %.1f MB, most: %.1f MB', $before, $most;
$receiver->on('/slow', {});
$receiver->release('/slow', {});
$most = most_memory_until(
	sub {
		$node->sql("SELECT NOT EXISTS (SELECT FROM outbox.deliveries WHERE topic LIKE 'slow%' AND state <> 'delivered')") eq 't';
	},
	'they are delivered when there are answers');
cmp_ok($most - $before, '<', 8 + 2 * 13 + 4, 'whatever waits');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE topic = 'huge.x'", 'delivered', 'and so is one that is larger than the bound');
bodies_ok('/huge', 'huge.x', 'whole');
bodies_ok("/slow/$_", "slow$_.x", "those of handler $_ are whole") foreach 1, $handlers;
cmp_ok(memory() - $before, '<', 4, 'all of it is given back');

# --- handlers share what they send: 8 of these are out at once, though 4 MB hold only two of them
my @formats = qw(raw envelope cloudevents cloudevents-binary);
$receiver->on('/shared', { hang => 1 });
$node->handler("shared$_", ['shared.*'], $receiver->url("/shared/$_"), format => $formats[ $_ % 4 ], timeout => '10 min') foreach 1 .. 8;
$node->sql("SELECT outbox.stage('shared.x', public.payload(1500000))");
$most = most_memory_until(
	sub {
		8 == grep { $receiver->count("/shared/$_") } 1 .. 8;
	},
	'a message of 1.5 MB is out to eight handlers at once');
cmp_ok($most - $before, '<', 8, 'of which each has the same');
$receiver->release('/shared', {}, {});
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'shared.x' AND state = 'delivered'", 8, 'and delivered');

# --- what has been answered takes no memory, whenever it may be settled
$node->handler('answered', ['answered.*'], $receiver->url('/answered'), concurrency => 4);
my $holder = PsqlSession->new($node);
$holder->run('BEGIN; LOCK TABLE outbox.receipt IN SHARE MODE');
$node->sql("SELECT count(outbox.stage('answered.x', public.payload(500000))) FROM generate_series(1, 30)");
ok($receiver->wait_for_requests(30, '/answered'), 'nothing can be settled, and all of 15 MB is sent');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE topic = 'answered.x' AND state = 'delivered'"), 0, 'and answered');
$holder->run('COMMIT');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'answered.x' AND state = 'delivered'", 30, 'then settled');

# --- handlers that may not send for a while leave the memory to others
$node->sql("ALTER SYSTEM SET outbox.max_memory = '1MB'");
$node->reload;
$receiver->on('/later', { status => 503, headers => { 'Retry-After' => 10 } });
$node->handler("later$_", ["later$_.*"], $receiver->url("/later/$_"), concurrency => 1) foreach 1 .. 8;
$node->sql("SELECT count(outbox.stage('later' || h || '.x', to_jsonb(repeat('x', 30000)))) FROM generate_series(1, 8) AS h, generate_series(1, 20)");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic LIKE 'later%' AND attempts > 0", 8, 'eight handlers have to wait');
$node->sql("SELECT count(outbox.stage('small.last', to_jsonb(repeat('x', 30000)))) FROM generate_series(1, 100)");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'small.last' AND state = 'delivered'", 100, 'another one sends');
$receiver->on('/later', {});
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic LIKE 'later%' AND state = 'delivered'", 160, 'and so do they when they may again');

$node->stop;
done_testing();
