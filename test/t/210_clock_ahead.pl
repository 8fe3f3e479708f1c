# What was staged while the clock was ahead does not wait until the clock has
# caught up, nor does what was staged later for the same key wait behind it;
# what was put off on purpose stays where it is.  The clock itself is not
# touched: rows are left as a server leaves them whose clock was ahead.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.rescan_interval = 500ms");
$node->handler('plain', ['x'], $receiver->url('/plain'));
$node->handler('keyed', ['x'], $receiver->url('/keyed'), ordered => 'true');
$node->handler('pull', ['x'], undef, ordered => 'true');
$node->handler('late', ['late'], $receiver->url('/late'));
$node->sql("SELECT outbox.pause_handler(h) FROM unnest('{plain,keyed,late}'::text[]) h");

# Messages of topic x for keys a and b, and one without, from a clock three hours ahead.
my $ahead = "clock_timestamp() + interval '3 hours'";
sub stage_ahead
{
	my ($topic, $n, $state, $due, @keys) = @_;
	my $keys = join ', ', map { $node->quote($_) } @keys;
	my $handlers = $topic eq 'x' ? 'plain,keyed,pull' : 'late';
	return split /\n/, $node->sql(<<"SQL");
WITH staged AS MATERIALIZED (
	SELECT outbox_internal.id_floor(t) AS id, t AS at, key
	FROM (SELECT $ahead + n * interval '1 ms' AS t, k.key FROM generate_series(1, $n) n, LATERAL (SELECT (ARRAY[$keys])[1 + n % @{[scalar @keys]}]) k (key)) s
), message AS (
	INSERT INTO outbox.message (id, staged_at, topic, key, payload) SELECT id, at, '$topic', key, '1' FROM staged RETURNING id
), delivery AS (
	INSERT INTO outbox.delivery (message_id, handler_id, due_at, state, attempts, key)
	SELECT s.id, h.id, $due, $state, $state, CASE WHEN h.ordered THEN s.key END
	FROM staged s, outbox.handler h WHERE h.name = ANY ('{$handlers}')
)
SELECT id FROM message ORDER BY id
SQL
}
my @first = stage_ahead('x', 3, 0, 's.at', undef, 'a', 'b');
# Put off on purpose, or by a retry.
my ($delayed) = stage_ahead('late', 1, 0, "s.at + interval '1 hour'", undef);
my ($retrying) = stage_ahead('late', 1, 1, 's.at', undef);
# Many, so that it takes several goes.
my @many = stage_ahead('x', 1500, 0, 's.at', 'a', 'b', 'c');

# The clock is set back.  Whoever starts then finds the ids ahead of it.
my $mark = -s $node->logfile;
$node->restart;
my @later = map { $node->stage('x', '2', key => $_) } qw(a b);
cmp_ok($later[0], 'gt', $many[-1], 'new ids are above those');
$node->sql("SELECT outbox.resume_handler(h) FROM unnest('{plain,keyed,late}'::text[]) h");
$node->wait_for("SELECT string_agg(handler || ' ' || n, ', ' ORDER BY handler) FROM (SELECT handler, count(*) AS n FROM outbox.deliveries WHERE topic = 'x' AND state = 'delivered' GROUP BY handler) d",
	'keyed 1505, plain 1505', 'all is delivered, hours before the clock has caught up');
my %keys = map { split /\|/ } split /\n/, $node->sql("SELECT id, coalesce(key, '-') FROM outbox.message");
foreach my $key (qw(a b))
{
	my @arrived = map { $_->{headers}{'webhook-id'} } grep { $keys{ $_->{headers}{'webhook-id'} } eq $key } $receiver->requests('/keyed');
	is_deeply(\@arrived, [ sort @arrived ], "in order, the later ones of key $key last");
	is($arrived[-1], $later[$key eq 'a' ? 0 : 1], "up to the last");
}
is($node->sql("SELECT count(*) > 1 FROM outbox.claim('pull', 1000)"), 't', 'consumers can claim');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE topic = 'x' AND due_at > clock_timestamp() + interval '1 hour'"), 0, 'nothing of it is due in the future');
my ($log) = PostgreSQL::Test::Utils::slurp_file($node->logfile, $mark);
is(scalar(() = $log =~ /WARNING:  outbox message ids are \d+ seconds ahead of the clock/g), 1, 'the log says so once');

# What waits for a time that was asked for, and a retry, wait for the clock.
is($node->sql("SELECT string_agg(message_id || ' ' || state || ' ' || (due_at > clock_timestamp() + interval '1 hour'), ', ' ORDER BY message_id) FROM outbox.deliveries WHERE handler = 'late'"),
	"$delayed pending true, $retrying retrying true", 'what was put off stays');
is($node->sql("SELECT outbox.retry_now('$retrying')"), 1, 'a retry can be hurried');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$retrying'", 'delivered', 'and is delivered');

# Retention goes by the time of settlement, wherever the ids are.
is($node->sql("SET outbox.delivered_retention = 0; SELECT messages FROM outbox.prune(); SELECT count(*) FROM outbox.message WHERE id = '$retrying'"), "1\n0", 'what is ahead of the clock can be pruned');

# A step of the clock while the server runs: what it leaves behind is found as well.
$node->sql("SELECT outbox.pause_handler('plain')");
$ahead = "clock_timestamp() + interval '6 hours'";
my @again = stage_ahead('x', 2, 0, 's.at', 'a', 'b');
$node->sql('SELECT outbox_internal.seed_ids()');
$node->sql("SELECT outbox.resume_handler('plain')");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'x' AND handler IN ('plain', 'keyed') AND state <> 'delivered'", 0, 'after another step');
is($receiver->count('/plain'), 1507, 'each was sent once');
is($receiver->count('/keyed'), 1507, 'also in order');

unlike($node->log_text, qr/ERROR|PANIC|TRAP|terminated by signal/, 'nothing went wrong');
done_testing();
