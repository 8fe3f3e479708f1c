# Retention by the server itself: what it costs a drain that goes on beside it,
# how much it removes meanwhile, and how fast it is when nothing else is to be
# done, beside the drain and beside a plain DELETE of the same rows.
#
# Options: --messages=N (200000), --old=N (400000), --runs=N
use strict;
use warnings;

use OutboxBench;
use POSIX ();
use Time::HiRes qw(time usleep);

my $messages = option('messages', 200_000);
my $old = option('old', 400_000);
my $node = bench_cluster('retention', conf => "outbox.prune_interval = '1 s'\noutbox.delivered_retention = '1 h'");
my $port = start_receiver();
$node->handler('bench', ['bench.*'], "http://127.0.0.1:$port/", concurrency => 50);

# Retention on or off; nothing of it is at work when it is off.
sub retention
{
	my $on = shift;
	$node->sql("ALTER SYSTEM SET outbox.auto_prune = $on");
	$node->sql('SELECT pg_reload_conf()');
	$node->wait_until("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox schedule worker'", 0) if $on eq 'off';
	return;
}

sub start_anew
{
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt');
	$node->sql('DELETE FROM outbox.prune_position');
	return;
}

# Messages that came of age ten minutes ago: behind by so little, retention leaves the processor to the drain.
sub fill
{
	fill_settled($node, 'bench', $old);
	$node->sql(<<'END');
CREATE TEMP TABLE ids AS SELECT m.id, (left(outbox_internal.id_floor(now() - interval '70 min')::text, 24) || right(m.id::text, 12))::uuid AS young FROM outbox.message m;
UPDATE outbox.message m SET id = i.young, staged_at = now() - interval '70 min' FROM ids i WHERE i.id = m.id;
UPDATE outbox.receipt r SET message_id = i.young, settled_at = now() - interval '70 min' FROM ids i WHERE i.id = r.message_id;
END
	$node->sql('VACUUM (FULL, ANALYZE) outbox.message, outbox.receipt');
	return;
}

sub removed { return $node->sql('SELECT messages FROM outbox.retention'); }

sub is_left { return $node->sql("SELECT count(*) FROM outbox.message WHERE payload ? 'old'"); }

my (@alone, @beside, @meanwhile, @idle, @cpu, @plain);
foreach (1 .. runs())
{
	retention('off');
	start_anew();
	fill();
	backlog($node, 'bench.message.sent', $messages, 200);
	push @alone, drain_rate($node);

	start_anew();
	fill();
	backlog($node, 'bench.message.sent', $messages, 200);
	retention('on');
	my $begin = time;
	push @beside, drain_rate($node);
	push @meanwhile, ($old - is_left()) / (time - $begin);

	retention('off');
	start_anew();
	fill();
	$node->sql('CHECKPOINT');
	# As long as the settler has not left, the dispatcher counts as busy.
	$node->wait_until("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox settler'", 0);
	my $before = removed();
	my $all = $before + $old;
	retention('on');
	# From the first batch on.  The table would have to be read through to see whether it is empty.
	usleep(2000) until removed() > $before;
	my $worker = $node->sql("SELECT min(pid) FROM pg_stat_activity WHERE backend_type = 'outbox schedule worker'");
	my $cpu = process_cpu($worker);
	($before, $begin) = (removed(), time);
	$node->wait_until("SELECT messages >= $all FROM outbox.retention", 't');
	push @idle, (removed() - $before) / (time - $begin);
	push @cpu, (process_cpu($worker) - $cpu) * 1e6 / POSIX::sysconf(POSIX::_SC_CLK_TCK()) / (removed() - $before);

	retention('off');
	start_anew();
	fill();
	$node->sql('CHECKPOINT');
	$begin = time;
	$node->sql('DELETE FROM outbox.receipt; DELETE FROM outbox.message');
	push @plain, $old / (time - $begin);
}
report('drain beside retention', '%8d deliveries/s, %.2f of without', median(@beside), ratio(\@beside, \@alone));
report('retention meanwhile', '%8d messages/s', median(@meanwhile));
report('retention with nothing else to do', '%8d messages/s, %.2f of a DELETE, %.2f of the drain',
	median(@idle), ratio(\@idle, \@plain), ratio(\@idle, \@alone));
report('processor of its worker', '%8.1f us a message', median(@cpu));
$node->stop;
