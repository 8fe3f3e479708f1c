# outbox.backlog and outbox.health() count every row up to a bound, and beyond it
# the handlers with few; of the others they look at a sample, and say so.  What
# is looked at is bounded also where rows that are gone stand in front of those
# that are there, because vacuum is held back.
use strict;
use warnings;

use OutboxCluster;
use PsqlSession;
use Test::More;

my $node = OutboxCluster->create('main', conf => "outbox.enabled = off\nautovacuum = off\nfsync = off");
$node->handler($_, [$_], undef) foreach qw(many some few later none);
$node->handler('dying', ['dying'], undef, max_attempts => 1);

# What is there, counted by reading all of it.
$node->sql(<<'SQL');
CREATE VIEW public.counted AS
SELECT h.name AS handler, count(d.handler_id) FILTER (WHERE d.state = 0) AS pending, count(d.handler_id) FILTER (WHERE d.due_at <= now()) AS due,
	count(d.handler_id) FILTER (WHERE d.state = 0 AND d.due_at > now()) AS scheduled, count(d.handler_id) FILTER (WHERE d.state = 1) AS retrying,
	count(d.handler_id) FILTER (WHERE d.state = 2) AS leased, (SELECT count(*) FROM outbox.receipt r WHERE r.state = 4 AND r.handler_id = h.id) AS dead,
	min(d.due_at) FILTER (WHERE d.due_at <= now()) AS oldest_due_at
FROM outbox.handler h LEFT JOIN outbox.delivery d ON d.handler_id = h.id WHERE h.dropped_at IS NULL AND h.id <> 0 GROUP BY h.id, h.name
SQL

my $columns = 'handler, pending, due, scheduled, retrying, leased, dead, oldest_due_at';

# Names of the handlers that are shown otherwise than they are, in their order.
sub differing { return $node->sql("SELECT string_agg(DISTINCT handler, ' ' ORDER BY handler) FROM (SELECT $columns FROM public.counted EXCEPT SELECT $columns FROM outbox.backlog) d"); }

# Of a handler: each number as a share of what there is, of those that are not small; and the oldest due time.
sub is_about
{
	my ($handler, $what) = @_;
	my @numbers = qw(pending due scheduled retrying leased dead);
	my @off = split /\|/, $node->sql('SELECT ' . join(', ', map { "CASE WHEN c.$_ > 500 THEN round(b.$_ / c.$_\::numeric, 3) ELSE 1 END" } @numbers)
		. ", b.counts_are_exact, b.oldest_due_at IS NOT DISTINCT FROM c.oldest_due_at FROM outbox.backlog b JOIN public.counted c USING (handler) WHERE handler = '$handler'");
	is($off[6], 'f', "$what: $handler is estimated");
	is($off[7], 't', "$what: its oldest due one is known nevertheless");
	is(scalar(grep { $_ < 0.8 || $_ > 1.25 } @off[0 .. 5]), 0, "$what: $handler is as it is, more or less (@off[0 .. 5])");
	return;
}

# --- up to the bounds
$node->stage_load('many', 2500);
$node->stage_load('some', 300);
$node->stage_load('few', 3);
$node->sql("SELECT outbox.stage('later', deliver_at => now() + interval '1 hour') FROM generate_series(1, 7)");
$node->sql("SELECT count(*) FROM outbox.claim('many', 400); SELECT count(outbox.retry('many', id, attempt, 'busy', '1 hour')) FROM outbox.claim('many', 200)");
$node->stage_load('dying', 1200);
$node->sql("SELECT count(outbox.fail('dying', id, attempt, 'bad')) FROM outbox.claim('dying', 1100)");
is(differing(), '', 'up to 20,000 outstanding and 5000 dead, every number is right');
is($node->sql('SELECT bool_and(counts_are_exact) FROM outbox.backlog'), 't', 'and is said to be');
is($node->sql('SELECT counts_are_exact, dead, newly_dead, due + scheduled + retrying + leased - (SELECT count(*) FROM outbox.delivery) FROM outbox.health()'), 't|1100|1100|0', 'by health(), too');

# --- beyond it
$node->stage_load('many', 30_000);
$node->sql("SELECT count(outbox.stage('many', deliver_at => now() + interval '1 hour')) FROM generate_series(1, 5000)");
$node->sql("SELECT count(*) FROM outbox.claim('many', 6000); SELECT count(outbox.retry('many', id, attempt, 'busy', '1 hour')) FROM outbox.claim('many', 6000)");
is($node->sql("SELECT string_agg(handler, ' ' ORDER BY handler) FROM outbox.backlog WHERE NOT counts_are_exact"), 'many', 'beyond that, those of the handlers with the fewest');
like(differing(), qr/^(?:many)?$/, 'are right still');
is_about('many', 'of many');
is($node->sql('SELECT counts_are_exact FROM outbox.health()'), 'f', 'health() says that a number is none to compute with');

# --- the dead
$node->stage_load('dying', 11_000);
$node->sql("SELECT count(outbox.fail('dying', id, attempt, 'bad')) FROM outbox.claim('dying', 10000) UNION ALL SELECT count(outbox.fail('dying', id, attempt, 'bad')) FROM outbox.claim('dying', 100)");
$node->sql('VACUUM outbox.delivery');
is_about('dying', 'of 11,000 dead');
like($node->sql("SELECT newly_dead, reasons FROM outbox.health()"), qr/^5000\|.*died within the last hour: 5000 or more/, 'no more are counted than it takes');
like($node->sql("SELECT status, newly_dead, reasons FROM outbox.health(critical_dead => 9000)"), qr/^critical\|9000\|.*died within the last hour: 9000 or more/, 'to judge');
is($node->sql("SELECT status FROM outbox.health('1 day', '2 days', NULL, 20000)"), 'ok', 'by any threshold');
$node->sql("SELECT outbox.requeue_where('dying', max_rows => 11000)");
is($node->sql("SELECT abs(dead - (SELECT count(*) FROM outbox.receipt WHERE state = 4)) < 100, counts_are_exact FROM outbox.backlog WHERE handler = 'dying'"), 't|f', 'of entries whose rows have been requeued none counts, more or less');

# --- what is gone is in front of what is there
my $holder = PsqlSession->new($node);
$holder->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.delivery');
$node->stage_load('some', 45_000);
$node->sql("DELETE FROM outbox.delivery d USING outbox.handler h WHERE h.id = d.handler_id AND h.name = 'some'; VACUUM outbox.delivery");
$node->stage_load('some', 40);
my $pages = $node->sql('EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) SELECT * FROM outbox_internal.backlog()');
my ($hit, $read) = ($pages =~ /shared hit=(\d+)/ ? $1 : 0, $pages =~ /read=(\d+)/ ? $1 : 0);
cmp_ok($hit + $read, '<', 45_000, 'not all of it is looked at');
my ($due, $oldest, $exact) = split /\|/, $node->sql("SELECT b.due, b.oldest_due_at >= c.oldest_due_at, b.counts_are_exact FROM outbox.backlog b JOIN public.counted c USING (handler) WHERE handler = 'some'");
cmp_ok($due, '>', 0, "of 40 behind 45,000 that are gone some are found ($due)");
cmp_ok($due, '<', 1000, 'and not many more');
is("$oldest $exact", 't f', 'the oldest of them is none of those that are gone');
$holder->run('COMMIT');
$node->sql('VACUUM outbox.delivery');
is($node->sql("SELECT b.due, b.oldest_due_at = c.oldest_due_at, b.counts_are_exact FROM outbox.backlog b JOIN public.counted c USING (handler) WHERE handler = 'some'"), '40|t|t', 'all is known again once they have been removed');

# --- what is not there any more is not shown
$node->sql("SELECT outbox.cancel_where('few'), outbox.drop_handler('later', reason => 'test')");
is($node->sql("SELECT count(*) FROM outbox.backlog WHERE handler = 'later'"), 0, 'a dropped handler without anything is not shown');
is($node->sql("SELECT count(*) FROM outbox_internal.backlog(0, 0)"), $node->sql("SELECT count(*) FROM outbox_internal.backlog() WHERE pending + dead + retrying + leased > 0"), 'whatever the bound is')
  or diag($node->sql('SELECT * FROM outbox_internal.backlog(0, 0)'));

$node->stop;
done_testing;
