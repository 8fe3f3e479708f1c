# Operators and monitors: what they ask, in a database that has been at work for
# long, and what they change in bulk.  Milliseconds, the median of some runs, for
# each of the things that the planner may believe of the tables; microseconds a
# delivery of what is changed.
#
# Options: --settled=N (1000000), --each=N (300000; dead, cancelled and
# outstanding ones), --handlers=N (1000), --runs=N, --belief=TEXT (one of
# them), --more=N (0; so many again of each, of which monitors are asked once more)
use strict;
use warnings;

use LargeOutbox;
use OutboxBench;
use PsqlSession;
use Time::HiRes qw(time);

my $settled = option('settled', 1_000_000);
my $each = option('each', 300_000);
my $handlers = option('handlers', 1000);
my $belief = option('belief', '');
my $more = option('more', 0);
my $node = bench_cluster('operators', conf => "outbox.enabled = off\nautovacuum = off\noutbox.delivered_retention = '1 day'\noutbox.dead_retention = '365 days'");
LargeOutbox::handlers($node, $handlers);
$node->sql("SELECT outbox.create_handler('ordered', '{large.ordered}', ordered => true), outbox.create_handler('late', '{large.h1}')");
my $session;

sub timed
{
	my ($sql) = @_;
	my $begun = time;
	my $answer = $session->run($sql);
	return ((time - $begun) * 1000, $answer);
}

sub asked
{
	my ($what, $sql) = @_;
	my @took = map { (timed("SELECT count(*) FROM ($sql OFFSET 0) AS s"))[0] } 1 .. runs();
	report("$what", '%8.1f ms', median(@took));
	return;
}

# What is polled, and how near what is estimated comes to what there is.
sub monitored
{
	my ($beside) = @_;
	asked("health()$beside", 'SELECT * FROM outbox.health()');
	asked("report()$beside", 'SELECT * FROM outbox.report()');
	asked("backlog$beside", 'SELECT * FROM outbox.backlog');
	asked("metrics()$beside", 'SELECT * FROM outbox.metrics()');
	my @shown = split /\|/, $session->run('SELECT sum(pending), sum(retrying), sum(due), sum(dead), count(*) FILTER (WHERE counts_are_exact) FROM outbox.backlog');
	my @are = split /\|/, $session->run('SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE due_at <= now()), (SELECT count(*) FROM outbox.receipt WHERE state = 4) FROM outbox.delivery');
	report("backlog: pending, retrying, due, dead as shown$beside", '%.3f, %.3f, %.3f, %.3f of what there is; %d handlers exact', (map { $shown[$_] / ($are[$_] || 1) } 0 .. 3), $shown[4]);
	return;
}

# Taken back afterwards.
sub changed
{
	my ($what, $sql, $n) = @_;
	$session->run('BEGIN');
	my ($took, $answer) = timed($sql);
	$session->run('ROLLBACK');
	report($what, '%8.1f ms, %6.1f us each of %d', $took, $took * 1000 / ($answer || 1), $answer);
	return;
}

foreach my $what (grep { $belief eq '' || $_ eq $belief } @LargeOutbox::beliefs)
{
	LargeOutbox::believe($node, $what);
	LargeOutbox::fill($node, settled => $settled, each => $each);
	LargeOutbox::believe($node, $what, 1);
	$session = PsqlSession->new($node);
	my ($id, $tenant, $key, $correlation) = split /\|/, $session->run('SELECT m.id, m.tenant, m.key, m.correlation_id FROM outbox.delivery d JOIN outbox.message m ON m.id = d.message_id WHERE d.state = 1 ORDER BY 1 LIMIT 1');
	report("statistics: $what", '');
	monitored('');
	asked('report(), all of it', "SELECT * FROM outbox.report('20 days')");
	asked('handlers', 'SELECT * FROM outbox.handlers');
	asked('stat_handlers', 'SELECT * FROM outbox.stat_handlers');
	asked('dead_letters, the newest 50', 'SELECT * FROM outbox.dead_letters ORDER BY died_at DESC LIMIT 50');
	asked('dead_letters of a handler', "SELECT * FROM outbox.dead_letters WHERE handler = 'h7'");
	asked('dead_letters of a tenant', "SELECT * FROM outbox.dead_letters WHERE tenant = '$tenant'");
	asked('dead_letters of a key', "SELECT * FROM outbox.dead_letters WHERE key = '$key'");
	asked('dead_letters of a correlation id', "SELECT * FROM outbox.dead_letters WHERE correlation_id = '$correlation'");
	asked('deliveries: outstanding of a handler, 50', "SELECT * FROM outbox.deliveries WHERE state = 'pending' AND handler = 'paused' LIMIT 50");
	asked('deliveries: dead of a handler', "SELECT * FROM outbox.deliveries WHERE state = 'dead' AND handler = 'h7'");
	asked('deliveries: outstanding of a tenant', "SELECT * FROM outbox.deliveries WHERE state IN ('pending', 'retrying', 'leased') AND tenant = '$tenant'");
	asked('deliveries: outstanding of a key', "SELECT * FROM outbox.deliveries WHERE state IN ('pending', 'retrying', 'leased') AND key = '$key'");
	asked('deliveries: of a key', "SELECT * FROM outbox.deliveries WHERE key = '$key'");
	asked('deliveries: of a correlation id', "SELECT * FROM outbox.deliveries WHERE correlation_id = '$correlation'");
	asked('messages: of a tenant', "SELECT * FROM outbox.messages WHERE tenant = '$tenant'");
	asked('messages: of a correlation id', "SELECT * FROM outbox.messages WHERE correlation_id = '$correlation'");
	asked('find_deliveries: dead of a tenant', "SELECT * FROM outbox.find_deliveries(state => 'dead', tenant => '$tenant')");
	asked('find_deliveries: outstanding of a tenant', "SELECT * FROM outbox.find_deliveries(state => 'outstanding', tenant => '$tenant')");
	asked('find_deliveries: of a tenant', "SELECT * FROM outbox.find_deliveries(tenant => '$tenant')");
	asked('find_deliveries: of a key', "SELECT * FROM outbox.find_deliveries(key => '$key')");
	asked('find_deliveries: outstanding of a handler', "SELECT * FROM outbox.find_deliveries('paused', 'outstanding')");
	asked('find_deliveries: dead of a handler', "SELECT * FROM outbox.find_deliveries('h7', 'dead')");
	asked('find_deliveries: the newest', 'SELECT * FROM outbox.find_deliveries()');
	asked('status()', "SELECT * FROM outbox.status('$id')");
	asked('message(): of an outstanding one', "SELECT * FROM outbox.message('$id')");
	asked('message(): of a dead one', "SELECT * FROM outbox.message('" . $session->run('SELECT message_id FROM outbox.receipt WHERE state + 0 = 4 ORDER BY handler_id LIMIT 1') . "')");
	asked('handler_stats', 'SELECT * FROM outbox.handler_stats');
	changed('requeue_where() of all dead', "SELECT outbox.requeue_where(since => '-infinity')");
	changed('requeue_where(max_rows => 10000)', "SELECT outbox.requeue_where(since => '-infinity', max_rows => 10000)");
	changed('requeue_where() of a handler', "SELECT outbox.requeue_where(handler => 'h7')");
	changed('cancel_where() of a handler', "SELECT outbox.cancel_where(handler => 'paused')");
	changed('cancel_where(max_rows => 10000)', "SELECT outbox.cancel_where(handler => 'paused', max_rows => 10000)");
	changed('cancel_where() of a tenant', "SELECT outbox.cancel_where(tenant => '$tenant')");
	changed('replay(), the last day', "SELECT outbox.replay('h7', now() - interval '20 days')");
	changed('replay(backfill)', "SELECT outbox.replay('late', '-infinity', backfill => true, max_rows => 10000, settled_before => now())");
	changed('erase_tenant()', "SELECT messages FROM outbox.erase_tenant('$tenant')");
	changed('drop_handler()', "WITH d AS MATERIALIZED (SELECT outbox.drop_handler('paused')) SELECT $each FROM d");
	$session->run("SELECT count(outbox.stage('large.ordered', key => 'o' || n % 100)) FROM generate_series(1, 20000) n");
	changed('cancel_where() of an ordered handler', "SELECT outbox.cancel_where(handler => 'ordered')");
	my @pruned = map { (timed('SELECT messages FROM outbox.prune(1000)'))[0] } 1 .. 100;
	report('prune(1000) beside what is kept, 100 calls', '%8.1f ms the first, %.1f the longest, %.1f the median', $pruned[0], (sort { $b <=> $a } @pruned)[0], median(@pruned));
	if ($more)
	{
		LargeOutbox::fill($node, settled => 0, each => $more, days => 10);
		LargeOutbox::believe($node, $what, 1);
		monitored(", $more more of each");
	}
	$session->close;
}
$node->stop;
