# What a message costs: WAL to stage it and to deliver it, and the disk it
# takes once it has its receipt; the same while a transaction holds back vacuum.
#
# Options: --messages=N (300000), --concurrency=N (50)
use strict;
use warnings;

use OutboxBench;
use PsqlSession;

my $messages = option('messages', 300_000);
my $node = bench_cluster('sizes');
my $port = start_receiver();
$node->handler('bench', ['bench.*'], "http://127.0.0.1:$port/", concurrency => option('concurrency', 50));

sub wal { return $node->sql("SELECT pg_current_wal_lsn() - '0/0'"); }

sub disk
{
	return $node->sql("SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'");
}

sub measure
{
	my $what = shift;
	# What is settled before is the first checkpoint's: no images of whole pages are counted twice.
	$node->sql('CHECKPOINT');
	my ($wal, $disk) = (wal(), disk());
	backlog($node, 'bench.message.sent', $messages, 200);
	my ($staged, $staged_disk) = (wal(), disk());
	my $rate = drain_rate($node);
	report("$what: WAL to stage a message", '%5d bytes', ($staged - $wal) / $messages);
	report("$what: WAL to deliver it", '%5d bytes', (wal() - $staged) / $messages);
	report("$what: disk, outstanding", '%5d bytes', ($staged_disk - $disk) / $messages);
	report("$what: disk, with its receipt", '%5d bytes', (disk() - $disk) / $messages);
	report("$what: drain", '%5d deliveries/s', $rate);
	return;
}

measure('empty tables');
measure('again');
my $holder = PsqlSession->new($node);
$holder->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
measure('old snapshot');
$holder->close;
my $begun = Time::HiRes::time();
$node->sql("SELECT outbox.pause_handler('bench')");
my $n = $node->sql("SELECT outbox.requeue_where(handler => 'bench', include_delivered => true, max_rows => 100000, settled_before => now())");
report('requeue_where of 100000', '%5.1f s', Time::HiRes::time() - $begun);
die "requeue_where said $n\n" unless $n == 100000;
$begun = Time::HiRes::time();
$n = $node->sql("SELECT outbox.cancel_where(handler => 'bench', max_rows => 100000)");
report('cancel_where of 100000', '%5.1f s', Time::HiRes::time() - $begun);
die "cancel_where said $n\n" unless $n == 100000;
$begun = Time::HiRes::time();
$node->sql('SELECT outbox.health()') foreach 1 .. 5;
report('health()', '%6.1f ms', (Time::HiRes::time() - $begun) * 200);
$node->stop;
