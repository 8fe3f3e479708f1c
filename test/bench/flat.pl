# Flat: the rate of a drain does not decay while another session holds an
# old snapshot, with many delivered rows in the table, or with a large
# backlog; and the dispatcher's memory does not grow with the backlog.
#
# Options: --snapshot=N (400000), --settled=N (1000000), --backlog=N
# (2000000), --slice=N (20000), --runs=N
use strict;
use warnings;

use OutboxBench;

my $slice = option('slice', 20_000);
my $node = bench_cluster('flat');
my $port = start_receiver();
$node->handler('bench', ['bench.*'], "http://127.0.0.1:$port/", concurrency => 50);

sub start_over { $node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt'); return; }

my $n = option('snapshot', 400_000);
if ($n > 0)
{
	my (@first, @last);
	foreach (1 .. runs())
	{
		start_over();
		my $holder = $node->background_psql('postgres');
		$holder->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.delivery');
		backlog($node, 'bench.message.sent', $n, 200);
		my $before = drain($node);
		push @first, slice_rate($node, $before, 0, $slice);
		push @last, slice_rate($node, $before, $n - $slice, $slice);
		$holder->quit;
	}
	report("old snapshot held, last $slice of $n", '%8d deliveries/s, %.2f of the first %d (%d)', median(@last), ratio(\@last, \@first), $slice, median(@first));
}

$n = option('settled', 1_000_000);
if ($n > 0)
{
	my (@empty, @full);
	start_over();
	fill_settled($node, 'bench', $n);
	foreach (1 .. runs())
	{
		backlog($node, 'bench.message.sent', $slice * 2, 200);
		push @full, drain_rate($node);
	}
	foreach (1 .. runs())
	{
		start_over();
		backlog($node, 'bench.message.sent', $slice * 2, 200);
		push @empty, drain_rate($node);
	}
	report("$n delivered rows in the table", '%8d deliveries/s, %.2f of an empty table (%d)', median(@full), ratio(\@full, \@empty), median(@empty));
}

$n = option('backlog', 2_000_000);
if ($n > 0)
{
	my (@first, @last);
	my $most = 0;
	foreach (1 .. runs())
	{
		start_over();
		backlog($node, 'bench.message.sent', 1000, 200);
		drain($node);
		my $memory = dispatcher_memory($node);
		start_over();
		backlog($node, 'bench.message.sent', $n, 200);
		my $before = drain($node, undef, sub {
			my $now = dispatcher_memory($node) - $memory;
			$most = $now if $now > $most;
		});
		push @first, slice_rate($node, $before, 0, $slice);
		push @last, slice_rate($node, $before, $n - $slice, $slice);
	}
	report("backlog of $n, last $slice", '%8d deliveries/s, %.2f of the first %d', median(@last), ratio(\@last, \@first), $slice);
	report("backlog of $n, dispatcher's memory above its start", '%8.1f MB at most', $most / 1024);
}
$node->stop;
