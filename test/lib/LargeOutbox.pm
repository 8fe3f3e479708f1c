# A database that has been at work for long: many settled deliveries, many dead,
# cancelled and outstanding ones, many handlers; and what the planner may know of
# all that.
#
#   LargeOutbox::handlers($node, 1000);
#   LargeOutbox::believe($node, 'stale');          # before, and before 'fresh' after, it is filled
#   LargeOutbox::fill($node, settled => 1_000_000, each => 300_000);
#   my $pages = LargeOutbox::buffers($node, 'SELECT * FROM outbox.health()');
#
# Handler "paused" has the outstanding ones, whose messages are the oldest; the
# others are h1, h2 ... and have equal shares.  Messages are of 1000 tenants, three
# of one correlation id, some hundred of a key.
package LargeOutbox;

use strict;
use warnings;

use JSON::PP ();

# What the planner may believe of the tables.
our @beliefs = ('fresh', 'analyzed, not vacuumed', 'stale', 'vacuumed when empty', 'none');

my @tables = map { "outbox.$_" } qw(message delivery receipt attempt);
my $tables = join ', ', @tables;

sub handlers
{
	my ($node, $n) = @_;
	$node->sql(<<"SQL");
SELECT outbox.create_handler('paused', '{large.paused}', 'http://127.0.0.1:9/'), outbox.pause_handler('paused');
INSERT INTO outbox.handler (name, topics, url) SELECT 'h' || g, ARRAY['large.h' || g], 'http://127.0.0.1:9/' FROM generate_series(1, $n) AS g;
SQL
	return;
}

# Add settled deliveries, and as many dead, cancelled and outstanding ones each.
sub fill
{
	my ($node, %size) = @_;
	my $each = $size{each} // 0;
	my $total = $size{settled} + 3 * $each;
	my $every = $each ? int(($size{settled} + 2 * $each) / $each) : 2**30;
	my $from = $size{days} // 20;
	$node->sql(<<"SQL");
SET synchronous_commit = off;
CREATE TEMP TABLE filled AS
SELECT n, overlay(id_floor::text PLACING lpad(to_hex(n), 12, '0') FROM 25)::uuid AS id, at
FROM (SELECT n, at, outbox_internal.id_floor(at) AS id_floor
	FROM (SELECT n, now() - interval '$from days' + n * (interval '1 day' / $total) AS at FROM generate_series(1, $total) AS n) AS s) AS s;
INSERT INTO outbox.message (id, staged_at, topic, key, tenant, correlation_id, payload)
SELECT id, at, 'large.' || CASE WHEN n <= $each THEN 'paused' ELSE 'h1' END, 'k' || n % 10000, 't' || n % 1000, 'c$from.' || n / 3,
	jsonb_build_object('n', n, 'padding', repeat('x', 150))
FROM filled;
CREATE TEMP TABLE taker AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS n, count(*) OVER () AS of FROM outbox.handler WHERE name LIKE 'h%';
INSERT INTO outbox.delivery (message_id, due_at, handler_id, attempts, state)
SELECT f.id, CASE WHEN n % 5 = 0 THEN now() + interval '1 day' ELSE at END, (SELECT id FROM outbox.handler WHERE name = 'paused'), n % 2, n % 2
FROM filled f WHERE n <= $each;
INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state, http_status, code, error)
SELECT f.id, f.at, t.id, 1, 0, s.state, CASE s.state WHEN 3 THEN 204 WHEN 4 THEN 500 END, CASE s.state WHEN 4 THEN '500' WHEN 5 THEN 'cancelled' END,
	CASE s.state WHEN 4 THEN 'no' END
FROM filled f JOIN taker t ON t.n = f.n % t.of
CROSS JOIN LATERAL (SELECT CASE f.n % $every WHEN 0 THEN 4 WHEN 1 THEN 5 ELSE 3 END AS state) AS s
WHERE f.n > $each ORDER BY f.n;
SQL
	return;
}

sub empty { $_[0]->sql("TRUNCATE $tables"); return; }

# Have the planner believe something of tables that are to be filled; called
# again with "after" once they are.  Autovacuum has to be off.
sub believe
{
	my ($node, $what, $after) = @_;
	if ($after)
	{
		$node->sql("VACUUM (ANALYZE) $tables") if $what eq 'fresh';
		$node->sql("ANALYZE $tables") if $what eq 'analyzed, not vacuumed';
		return;
	}
	empty($node);
	$node->sql('DELETE FROM pg_statistic WHERE starelid IN (' . join(', ', map { "'$_'::regclass" } @tables) . ')');
	return unless $what =~ /stale|empty/;
	fill($node, settled => 500, each => 0, days => 40);
	$node->sql("VACUUM (ANALYZE) $tables");
	return if $what eq 'stale';
	$node->sql(join ';', map { "DELETE FROM $_" } @tables);
	$node->sql("VACUUM (ANALYZE) $tables");
	return;
}

# Pages that a query touches, those that functions in it touch included.
sub buffers
{
	my ($node, $query) = @_;
	# Once to make the session's plans and read the catalogs, then to count.
	my $explain = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF, FORMAT JSON) $query";
	my $plans = $node->sql("BEGIN; $explain; ROLLBACK; SELECT ','; BEGIN; $explain; ROLLBACK");
	my $top = JSON::PP->new->decode("[$plans]")->[1][0]{Plan};
	return $top->{'Shared Hit Blocks'} + $top->{'Shared Read Blocks'};
}

1;
