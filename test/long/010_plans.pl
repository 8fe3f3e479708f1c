# With a million settled deliveries nothing that runs often reads the whole
# table: not the views that are watched, not the operators' functions, not
# the dispatcher, not a consumer.  Counted by the server's own statistics, in
# sessions without any planner setting.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $rows = $ENV{OUTBOX_LONG_ROWS} || 1_000_000;
my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "shared_buffers = 256MB\nautovacuum = off\nmax_wal_size = 4GB");
$node->handler('push', ['push.*'], $receiver->url('/push'));
$node->handler('pull', ['pull.*'], undef);
$node->handler('busy', ['busy.*'], $receiver->url('/busy'));

# Settled messages of the last ten days, 1000 of them dead.
sub fill
{
	$node->sql(<<"SQL");
TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt;
INSERT INTO outbox.message (id, staged_at, topic, tenant, payload)
SELECT overlay(outbox_internal.id_floor(at)::text PLACING lpad(to_hex(n), 12, '0') FROM 25)::uuid, at, 'busy.thing', 't' || n % 100, '{}'
FROM (SELECT n, now() - interval '10 days' * (1 - n / $rows.0) - interval '1 hour' AS at FROM generate_series(1, $rows) AS n) AS s;
INSERT INTO outbox.receipt (message_id, handler_id, settled_at, attempts, budget_from, state, code)
SELECT m.id, h.id, m.staged_at, 1, 0, CASE WHEN row_number() OVER () % ($rows / 1000) = 0 THEN 4 ELSE 3 END, NULL
FROM outbox.message m, outbox.handler h WHERE h.name = 'busy';
INSERT INTO outbox.attempt (message_id, handler_id, attempt, finished_at, outcome)
SELECT message_id, handler_id, 1, settled_at, 4 FROM outbox.receipt WHERE state = 4;
SQL
	return;
}

# Scans of whole tables, and rows read by them, so far.
sub whole_scans
{
	$node->sql('SELECT pg_stat_force_next_flush()') if $node->pg_version >= 15;
	return $node->sql("SELECT coalesce(sum(seq_scan), 0) FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname IN ('message', 'receipt')");
}

sub check_statement
{
	my ($name, $sql, $expected, $limit) = @_;
	$limit ||= 2;
	my $before = whole_scans();
	my $start = time;
	my $answer = $node->sql("$sql; SELECT pg_stat_force_next_flush()");
	my $took = time - $start;
	$answer =~ s/\n?\z//;
	like($answer, $expected, "$name: right answer");
	is(whole_scans() - $before, 0, "$name: no scan of a whole table");
	cmp_ok($took, '<', $limit, sprintf '%s: in time (%.2f s)', $name, $took);
	return;
}

plan skip_all => 'the statistics are flushed on demand since PostgreSQL 15' if $node->pg_version < 15;

foreach my $analyzed (1, 0)
{
	my $what = $analyzed ? 'analyzed' : 'never analyzed';
	fill();
	if ($analyzed)
	{
		$node->sql('VACUUM (ANALYZE) outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
	}
	else
	{
		$node->sql("DELETE FROM pg_statistic WHERE starelid IN ('outbox.message'::regclass, 'outbox.delivery'::regclass, 'outbox.receipt'::regclass)");
	}

	check_statement("$what: backlog", "SELECT dead FROM outbox.backlog WHERE handler = 'busy'", qr/^1000/);
	check_statement("$what: all of backlog", 'SELECT count(*), sum(due) FROM outbox.backlog', qr/^3\|0/);
	check_statement("$what: health", 'SELECT status, dead FROM outbox.health()', qr/^ok\|1000/);
	check_statement("$what: dead letters", 'SELECT count(*) FROM outbox.dead_letters', qr/^1000/);
	check_statement("$what: dead letters of a handler", "SELECT count(*) FROM outbox.dead_letters WHERE handler = 'busy' AND code IS NULL", qr/^1000/);
	# A view cannot pin its plan; this one is for people.
	check_statement("$what: handler_stats", 'SELECT count(*) FROM outbox.handler_stats', qr/^0/) if $analyzed;
	my $id = $node->sql('SELECT message_id FROM outbox.receipt WHERE state = 4 LIMIT 1');
	check_statement("$what: one delivery", "SELECT state FROM outbox.deliveries WHERE message_id = '$id'", qr/^dead/);
	check_statement("$what: what one waits for", "SELECT count(*) FROM outbox.waiting WHERE message_id = '$id'", qr/^0/);
	check_statement("$what: what those of a handler wait for", "SELECT count(*) FROM outbox.waiting WHERE handler = 'busy'", qr/^0/);
	check_statement("$what: what handlers wait for", 'SELECT count(waiting_for) FROM outbox.handlers', qr/^\d+/);
	check_statement("$what: its attempts", "SELECT outcome FROM outbox.attempts WHERE message_id = '$id'", qr/^dead/);
	check_statement("$what: requeue", "BEGIN; SELECT outbox.requeue('$id'); ROLLBACK", qr/^1/);
	check_statement("$what: cancel", "BEGIN; SELECT outbox.cancel('$id'); ROLLBACK", qr/^0/);
	check_statement("$what: retry_now", "BEGIN; SELECT outbox.retry_now('$id'); ROLLBACK", qr/^0/);
	check_statement("$what: requeue_where by handler", "BEGIN; SELECT outbox.requeue_where(handler => 'busy', max_rows => 10); ROLLBACK", qr/^10/);
	check_statement("$what: requeue_where, dry run", "SELECT outbox.requeue_where(handler => 'busy', tenant => 't1', dry_run => true)", qr/^\d+/);
	check_statement("$what: requeue_where by time", "BEGIN; SELECT outbox.requeue_where(since => now() - interval '1 day', max_rows => 5); ROLLBACK", qr/^5/);
	check_statement("$what: cancel_where", "BEGIN; SELECT outbox.cancel_where(handler => 'busy'); ROLLBACK", qr/^0/);
	check_statement("$what: replay by time",
		"BEGIN; SELECT outbox.replay('busy', now() - interval '70 minutes', max_rows => 100, settled_before => now()); ROLLBACK", qr/^100/);
	check_statement("$what: drain", "CALL outbox.drain()", qr/^/);
	check_statement("$what: staging", "SELECT count(outbox.stage('pull.x')) FROM generate_series(1, 100)", qr/^100/);
	check_statement("$what: claim", "SELECT count(*) FROM outbox.claim('pull', 100)", qr/^100/);
	check_statement("$what: prune", 'SELECT messages FROM outbox.prune(20000)', qr/^20000/, 5);

	# The dispatcher drains a load without reading whole tables either.
	$receiver->forget;
	my $before = whole_scans();
	$node->sql("SELECT count(outbox.stage('push.x')) FROM generate_series(1, 2000)");
	ok($receiver->wait_for_requests(2000, '/push'), "$what: 2000 are pushed");
	$node->sql("CALL outbox.drain('push')");
	is(scalar(grep { $_ != 1 } values %{ $receiver->ids('/push') }), 0, "$what: each once");
	my $pid = $node->dispatcher_pid;
	$node->sql("SELECT pg_terminate_backend($pid)");
	$node->wait_for_dispatcher('postgres', $pid);
	is(whole_scans() - $before, 0, "$what: the dispatcher scans no whole table");
}

done_testing();
