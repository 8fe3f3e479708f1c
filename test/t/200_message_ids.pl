# Message ids increase strictly on one server: over its databases, backends,
# restarts and crashes, also when the clock is behind the ids, by hours or by
# days, and whatever somebody inserted by hand.
use strict;
use warnings;

use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = OutboxCluster->create('main', conf => "outbox.enabled = off\nautovacuum = off\n");
$node->extension('second');

sub next_id { return $node->sql('SELECT outbox.stage(\'t\')', $_[0]); }

# A row with an id of that time, as a server would leave it whose clock was ahead.
sub insert_ahead
{
	my ($interval) = @_;
	return "INSERT INTO outbox.message (id, staged_at, topic, payload) VALUES (outbox_internal.id_floor(clock_timestamp() + interval '$interval'), now(), 't', '1') RETURNING id";
}

# Sessions and databases take turns.
my @ids = map { next_id($_ % 2 ? 'postgres' : 'second') } 1 .. 10;
is_deeply([ sort @ids ], \@ids, 'ids increase over two databases');

# Eight backends at once: no id twice, and each backend's own increase.
$node->sql('CREATE TABLE seen (n bigserial, backend int DEFAULT pg_backend_pid(), id uuid)');
$node->pgbench("--no-vacuum --client=8 --jobs=2 --transactions=500",
	0, [qr{4000/4000}], [qr{^}], 'eight producers',
	{ ids_concurrent => "INSERT INTO seen (id) SELECT outbox.stage('t') FROM generate_series(1, 3);\n" });
is($node->sql('SELECT count(*), count(DISTINCT id) FROM seen'), '12000|12000', 'no id was drawn twice');
is($node->sql('SELECT count(*) FROM (SELECT id < lag(id) OVER (PARTITION BY backend ORDER BY n) AS back FROM seen) s WHERE back'),
	0, 'no backend went backwards');
is($node->sql('SELECT count(*) FROM outbox.message WHERE id < outbox_internal.id_floor(staged_at)'), 0, 'no id is older than its message');

# An id ahead of the clock is followed after a restart, as if the clock had stepped back.
my $ahead = $node->sql(insert_ahead('1 hour'));
$node->restart;
my $id = next_id('postgres');
cmp_ok($id, 'gt', $ahead, 'a restarted server goes on above the highest id');
cmp_ok(next_id('second'), 'gt', $id, 'in every database');
is($node->sql("SELECT max(staged_at) <= clock_timestamp() AND bool_and(id >= outbox_internal.id_floor(staged_at)) FROM outbox.message"), 't', 'while messages keep the time of the clock');
is($node->sql("SELECT bool_and(d) FROM (SELECT id > lag(id) OVER (ORDER BY n) AS d FROM outbox.stage_many('t', array_fill('1'::jsonb, ARRAY[1000])) WITH ORDINALITY AS s (id, n)) s"), 't', 'a thousand at once as well');

# So is one whose transaction did not commit before the crash.
my $session = $node->background_psql('postgres');
$session->query_safe('BEGIN');
my $lost = $session->query_safe(insert_ahead('2 hours'));
$node->sql('CHECKPOINT');
$node->stop('immediate');
$session->{run}->finish;
$node->start;
is($node->sql("SELECT count(*) FROM outbox.message WHERE id = '$lost'"), 0, 'a message that did not commit is gone');
cmp_ok(next_id('postgres'), 'gt', $lost, 'its id is not handed out again');

# Nor does a clock that has fallen days behind have them go down: a message
# that was staged at the time of its id was made here.
sub restart_and_stage
{
	my ($name, $above) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->stop('immediate');
	$node->start;
	my ($status, $out, $error) = $node->psql('postgres', "SELECT outbox.stage('t')");
	cmp_ok($out, 'gt', $above, $name);
	is($error, '', "$name: without a warning");
	return $out;
}
my $future = "clock_timestamp() + interval '3 days'";
$ahead = $node->sql("INSERT INTO outbox.message (id, staged_at, topic, payload) VALUES (outbox_internal.id_floor($future), $future, 't', '1') RETURNING id");
$id = restart_and_stage('a clock that is days behind', $ahead);
$id = next_id('postgres');
cmp_ok(next_id('second'), 'gt', $id, 'in the other database as well');
$id = next_id('postgres');
# By then the message that agreed with its id may have been pruned.
$node->sql("DELETE FROM outbox.message WHERE id = '$ahead'");
$id = restart_and_stage('and still is', $id);
is($node->sql("SELECT max(staged_at) <= clock_timestamp() FROM outbox.message"), 't', 'while messages keep the time of the clock');

# One that nobody drew is reported and ignored.
$node->sql("INSERT INTO outbox.message (id, staged_at, topic, payload) VALUES ('ffffffff-ffff-4fff-bfff-ffffffffffff', now(), 't', '1')");
$node->sql(insert_ahead('10 years'));
$node->stop('immediate');
$node->start;
my ($status, $out, $error) = $node->psql('postgres', q{SELECT outbox.stage('t') < outbox_internal.id_floor(now() + interval '4 days')});
is($out, 't', 'an id years ahead does not carry the others along');
# The dispatcher may have looked first, and has nobody to tell but the log.
like($error . $node->log_text, qr/WARNING:  message id ffffffff-ffff-4fff-bfff-ffffffffffff was not made by outbox/, 'with a warning');
($status, $out, $error) = $node->psql('postgres', q{SELECT outbox.stage('t') < outbox_internal.id_floor(now() + interval '4 days')});
is("$out$error", 't', 'that comes once');

$node->stop;
done_testing();
