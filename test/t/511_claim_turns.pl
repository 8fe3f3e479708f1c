# Sessions that claim from one handler take turns at choosing rows: a turn
# ends whatever becomes of the session that has it, nobody waits for one that
# is stopped, and nobody gets what another one has.
#
# To be met in its turn a session needs a long one: it has to step over very
# many deliveries that were settled, which an old snapshot keeps from being
# forgotten.
use strict;
use warnings;

use OutboxCluster;
use PsqlSession;
use Test::More;
use Time::HiRes qw(usleep);
use UnitModule;

my $dead = 100_000;
my $unit = UnitModule->build;
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.rescan_interval = '1 h'
autovacuum = off
fsync = off
max_connections = 80
END
$unit->create_functions($node, 'postgres');
my $handler = $node->handler('h', ['job'], undef, max_attempts => 100);
my $next = 1;

sub stage_next
{
	my $n = shift;
	$node->sql("SELECT count(outbox.stage('job', to_jsonb(n))) FROM generate_series($next, $next + $n - 1) n");
	$next += $n;
	return;
}

sub claim { return "SELECT string_agg(payload::text, ',' ORDER BY staged_at, id) FROM outbox.claim('h', $_[0], '1 h')"; }
sub turn { return $node->sql("SELECT unit.turn($handler)"); }

sub process_state
{
	my $pid = shift;
	open my $in, '<', "/proc/$pid/stat" or return 'gone';
	my $line = <$in>;
	return $line =~ /\) (\S)/ ? $1 : 'gone';
}

sub stop_process
{
	my $pid = shift;
	kill 'STOP', $pid or die "nobody to stop: $!";
	usleep 100 until process_state($pid) =~ /[Ttg]/;
	return;
}

# Start SQL that claims and stop the session in the middle of its turn;
# returns the turn's number.  $undo undoes what was claimed if that came first.
sub stop_in_turn
{
	my ($session, $sql, $undo) = @_;
	foreach my $try (1 .. 100)
	{
		# Positions go back to the beginning.
		$node->sql('SELECT outbox_internal.ring_rescan()');
		$session->start($sql);
		while ($session->busy)
		{
			stop_process($session->backend);
			my $turn = turn();
			return $turn if $turn != 0;
			kill 'CONT', $session->backend;
			usleep 1000;
		}
		$session->run($undo);
	}
	die 'never met in its turn';
}

sub go_on
{
	my $session = shift;
	kill 'CONT', $session->backend;
	return $session->finish;
}

$node->sql("SELECT count(*) FROM outbox.stage_many('job', ARRAY(SELECT to_jsonb(0) FROM generate_series(1, $dead)))");
my $old = PsqlSession->new($node);
$old->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
$node->sql('WITH gone AS (DELETE FROM outbox.delivery RETURNING *) INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state) SELECT message_id, now(), handler_id, 1, budget_from, 3 FROM gone');
my ($one, $two) = map { PsqlSession->new($node) } 1 .. 2;

SKIP:
{
	skip 'no /proc', 1 if process_state($$) eq 'gone';

	# Stopped in its turn.
	stage_next(6);
	my $turn = stop_in_turn($one, 'BEGIN; ' . claim(2), 'ROLLBACK');
	is($two->run(claim(2)), '1,2', 'nobody waits for a session that was stopped in its turn');
	is(turn(), 0, 'and it has lost its turn');
	is($node->sql(claim(1)), '3', 'others go on');
	is(go_on($one), '4,5', 'so does the one that was stopped, with what is left');
	is(turn(), 0, 'it has no turn');
	is($two->run(claim(10)), '6', 'nobody gets what it has');
	$one->run('ROLLBACK');
	is($two->run(claim(10)), '4,5', 'until it is rolled back');

	# Cancelled while it waits.
	stage_next(2);
	$turn = stop_in_turn($one, 'BEGIN; ' . claim(1), 'ROLLBACK');
	$two->run("SET statement_timeout = '20 ms'");
	like($two->run(claim(1)), qr/canceling statement due to statement timeout/, 'who waits for a turn can be cancelled');
	is(turn(), $turn, 'which leaves the turn to the one that has it');
	$two->run('RESET statement_timeout');
	is(go_on($one), '7', 'that one goes on');
	is(turn(), 0, 'and its turn ends with its choice, not with its transaction');
	is($two->run(claim(10)), '8', 'the one that was cancelled claims again');
	$one->run('COMMIT');

	# An error.
	stage_next(2);
	stop_in_turn($one, 'BEGIN; ' . claim(1), 'ROLLBACK');
	$node->sql('SELECT pg_cancel_backend(' . $one->backend . ')');
	like(go_on($one), qr/canceling statement due to user request/, 'cancelled in its turn');
	is(turn(), 0, 'the error ends the turn');
	$one->run('ROLLBACK');
	is($two->run(claim(1)), '9', 'the next one claims what it was about to');

	# An error that is caught.
	stop_in_turn($one, "BEGIN; DO \$\$ BEGIN PERFORM outbox.claim('h', 1, '1 h'); EXCEPTION WHEN query_canceled THEN RAISE WARNING 'caught'; END \$\$", 'ROLLBACK');
	$node->sql('SELECT pg_cancel_backend(' . $one->backend . ')');
	like(go_on($one), qr/caught/, 'cancelled in its turn, and its transaction goes on');
	is(turn(), 0, 'the turn does not');
	is($one->run(claim(10) . '; COMMIT'), '10', 'it claims once more');

	# Terminated.
	stage_next(2);
	stop_in_turn($one, 'BEGIN; ' . claim(1), 'ROLLBACK');
	$node->sql('SELECT pg_terminate_backend(' . $one->backend . ')');
	like(go_on($one), qr/terminating connection/, 'terminated in its turn');
	$node->wait_for('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $one->backend, 0, 'gone');
	is(turn(), 0, 'and so is its turn');
	$one->close;
	is($two->run(claim(1)), '11', 'the next one claims');

	# Whoever waits for a turn may hold rows: nobody waits for those in a turn.
	stage_next(3);
	$one = PsqlSession->new($node);
	is($two->run('BEGIN; ' . claim(2)), '12,13', 'one holds rows');
	stop_in_turn($one, 'BEGIN; ' . claim(1), 'ROLLBACK');
	is($two->run(claim(1)), '14', 'and claims while another one is in its turn');
	is(go_on($one), '15', 'which passes what it holds');
	$two->run('ROLLBACK');
	is($one->run(claim(10)), '12,13,14', 'and gets it when it is given back');
	$one->run('COMMIT');

	# kill -9.
	stage_next(2);
	stop_in_turn($one, 'BEGIN; ' . claim(1), 'ROLLBACK');
	$two->start(claim(1));
	kill 'KILL', $one->backend;
	like($one->finish, qr/terminat|server closed|connection/, 'killed in its turn');
	$two->finish;
	$node->poll_query_until('postgres', 'SELECT true') or die 'the server did not come back';
	is(turn(), 0, 'it is nobody\'s turn');
	$_->close foreach $one, $two, $old;
	isnt($node->sql(claim(1)), '', 'and claims go on');
}

# Many at a time.
$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
$node->sql('SELECT outbox_internal.ring_rescan()');
$node->sql("SELECT count(*) FROM outbox.stage_many('job', ARRAY(SELECT to_jsonb(0) FROM generate_series(1, 7500)))");
$node->sql('CREATE TABLE owned (id uuid PRIMARY KEY)');
my $file = $node->basedir . '/claim.sql';
open my $out, '>', $file or die $!;
print $out "INSERT INTO owned SELECT id FROM outbox.claim('h', 10, '1 h');\n";
close $out;
$node->command_ok([ 'pgbench', '-n', '-c', 50, '-j', 2, '-t', 15, '-f', $file, 'postgres' ], '50 consumers claim at once');
is($node->sql('SELECT count(*) FROM owned'), 7500, 'no message has two owners, none is left out');
is($node->sql(claim(1)), '', 'nothing is left');
is(turn(), 0, 'nor any turn');

done_testing();
