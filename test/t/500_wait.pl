# CALL outbox.wait(): prompt, one waiter a message, nothing held and nothing
# done while idle, and no wake-up lost when a waiter goes away.
use strict;
use warnings;

use List::Util qw(sum0);
use OutboxCluster;
use PsqlSession;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = OutboxCluster->create('main', conf => "max_connections = 260\nlog_min_messages = warning\n");
$node->handler('h', ['job'], undef);
$node->wait_for_dispatcher;

my $producer = PsqlSession->new($node);
my $consumer = PsqlSession->new($node);

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return $sorted[ $#sorted / 2 ];
}

# The state of a session: waiting means asleep inside outbox.wait().
sub asleep
{
	my @sessions = @_;
	my $pids = join ',', map { $_->backend } @sessions;
	return $node->wait_until(
		"SELECT count(*) FROM pg_stat_activity WHERE pid IN ($pids) AND state = 'active' AND wait_event = 'Extension'",
		scalar @sessions);
}

my $take = q{WITH c AS MATERIALIZED (SELECT id, attempt, payload FROM outbox.claim('h'))
	SELECT count(*) FILTER (WHERE outbox.complete('h', id, attempt)) FROM c};

#
# Promptness
#
my @latencies;
foreach my $round (1 .. 21)
{
	$consumer->start("CALL outbox.wait('h', '1 min')");
	asleep($consumer);
	my $before = time;
	$producer->start("SELECT count(outbox.stage('job'))");
	$consumer->finish;
	push @latencies, $consumer->answered_at - $before;
	$producer->finish;
	is($consumer->run($take), '1', 'what woke it can be claimed') if $round == 1;
	$consumer->run($take) if $round > 1;
}
my $p50 = median(@latencies);
# Nobody polls that often; how soon it was is for whoever reads the log.
cmp_ok($p50, '<', 1, sprintf 'staged, committed and woken within %.1f ms (median of %d)', $p50 * 1000, scalar @latencies);

is($consumer->run("CALL outbox.wait('h', '0')"), '', 'a wait of no time returns');
my $before = time;
is($consumer->run("CALL outbox.wait('h', '300 ms')"), '', 'a wait that nothing ends returns');
cmp_ok(time - $before, '>=', 0.3, 'when its time is up');
$producer->run("SELECT count(outbox.stage('job'))");
$before = time;
$consumer->run("CALL outbox.wait('h', '1 min')");
cmp_ok(time - $before, '<', 10, 'what is there already is not waited for');
$consumer->run($take);

# What falls due by itself: scheduled, retried, a lease that runs out.
my $due = q{extract(epoch FROM (SELECT max(due_at) FROM outbox.delivery))};

sub woken_when_due
{
	my ($what, $prepare, $make) = @_;
	my @late;
	foreach (1 .. 5)
	{
		$producer->run($prepare) if $prepare;
		$consumer->start("CALL outbox.wait('h', '1 min')");
		asleep($consumer);
		my $due_at = $producer->run("BEGIN; $make; SELECT $due; COMMIT");
		$consumer->finish;
		push @late, $consumer->answered_at - $due_at;
		my $claimed = $consumer->run($take);
		is($claimed, '1', "$what: claimed") if $_ == 1;
	}
	my $late = median(@late);
	cmp_ok($late, '>=', -0.002, "$what: not before it is due");
	cmp_ok($late, '<', 1, sprintf '%s: %.1f ms after it is due (median)', $what, $late * 1000);
	return;
}
my $leased = q{(SELECT message_id AS id, attempts AS attempt FROM outbox.delivery WHERE state = 2) c};
my $stage_and_lease = "BEGIN; SELECT FROM outbox.stage('job'); SELECT FROM outbox.claim('h'); COMMIT";
woken_when_due('scheduled', undef, "SELECT FROM outbox.stage('job', delay => '200 ms')");
woken_when_due('retried', $stage_and_lease, "SELECT FROM $leased WHERE outbox.retry('h', c.id, c.attempt, after => '200 ms')");
woken_when_due('lease expired', $stage_and_lease, "SELECT FROM $leased WHERE outbox.extend('h', c.id, c.attempt, '200 ms')");
$node->wait_for_states(join(', ', 'delivered ' . $node->sql("SELECT count(*) FROM outbox.deliveries")), 'everything is settled');

#
# Holding nothing
#
$consumer->start("CALL outbox.wait('h', '10 min')");
asleep($consumer);
my $backend = $consumer->backend;
is($node->sql("SELECT string_agg(locktype, ',') FROM pg_locks WHERE pid = $backend"), 'virtualxid', 'holds no lock');
is($node->sql("SELECT backend_xid IS NULL AND backend_xmin IS NULL FROM pg_stat_activity WHERE pid = $backend"), 't', 'and no snapshot');
$node->sql("SELECT outbox.pause_handler('h')");
$producer->run("SELECT count(outbox.stage('job'))");
ok($consumer->busy, 'neither pausing nor a message that comes meanwhile ends it');
$node->sql("SELECT outbox.resume_handler('h')");
is($consumer->finish, '', 'resuming does');
is($consumer->run($take), '1', 'with the message that had come');

# In isolation levels that keep a snapshot it holds none either.
$consumer->start("SET default_transaction_isolation = 'repeatable read'; CALL outbox.wait('h', '10 min')");
asleep($consumer);
is($node->sql("SELECT backend_xmin IS NULL FROM pg_stat_activity WHERE pid = $backend"), 't', 'no snapshot under REPEATABLE READ');
$producer->run("SELECT count(outbox.stage('job'))");
$consumer->finish;
$consumer->run("RESET default_transaction_isolation");
is($consumer->run($take), '1', 'claimed');

#
# Where it may be called
#
like($consumer->run("BEGIN; CALL outbox.wait('h', '0')"), qr/cannot run inside a transaction block/, 'not in a transaction block');
$consumer->run('ROLLBACK');
is($consumer->run(q{DO $$ BEGIN CALL outbox.wait('h', '1 ms'); CALL outbox.wait('h', '1 ms'); END $$}), '', 'in a DO block on its own');
like($consumer->run(q{BEGIN; DO $$ BEGIN CALL outbox.wait('h', '1 ms'); END $$}), qr/cannot run inside/, 'but not within a transaction');
$consumer->run('ROLLBACK');
like($consumer->run(q{SET statement_timeout = '200 ms'; CALL outbox.wait('h', '1 min')}), qr/statement timeout/, 'statement_timeout ends it');
$consumer->run('RESET statement_timeout');
like($consumer->run("CALL outbox.wait('nobody')"), qr/does not exist/, 'unknown handler');

#
# Two hundred idle consumers
#
$producer->run('CREATE TABLE busy (n int)');
my @waiters = map { PsqlSession->new($node) } 1 .. 200;
$_->start("CALL outbox.wait('h', '20 min')") foreach @waiters;
ok(asleep(@waiters), '200 consumers wait');

sub switches
{
	return sum0 map {
		my $file = '/proc/' . $_->backend . '/status';
		open my $in, '<', $file or die "$file: $!";
		my ($n) = map { /^voluntary_ctxt_switches:\s+(\d+)/ ? $1 : () } <$in>;
		$n
	} @_;
}
# Something has to pass the time in which nothing may happen: other commits do.
my $quiet = switches(@waiters);
foreach (1 .. 100) { $producer->run("INSERT INTO busy VALUES ($_)"); usleep(10_000); }
# A wake-up for each commit would be 20000 of them, a look once a second 200; a busy system makes a few.
cmp_ok(switches(@waiters) - $quiet, '<', 100, 'none of them does anything while nothing happens');

my @left = @waiters;
my $claimed = 0;
my $woken = 0;

# Let those who are woken claim one message each, until so many are claimed.
sub serve
{
	my $wanted = shift;
	my $end = time + 30;
	while ($claimed < $wanted && time < $end)
	{
		foreach my $session (PsqlSession::wait_any(1, @left))
		{
			$woken++;
			@left = grep { $_ != $session } @left;
			$claimed += $session->run($take);
		}
	}
	return;
}
$before = switches(@left);
$producer->run("SELECT count(outbox.stage('job'))");
serve(1);
is($claimed, 1, 'a message wakes a consumer that claims it');
$producer->run("SELECT count(outbox.stage('job')) FROM generate_series(1, 10)");
serve(11);
is($claimed, 11, 'ten messages wake ten');
foreach (1 .. 20)
{
	$producer->run("SELECT count(outbox.stage('job'))");
	serve(11 + $_);
}
is($claimed, 31, 'and twenty, one by one');
cmp_ok($woken, '<=', 36, "$woken of them were woken for 31 messages");
# The keeper looks again a second after a wake-up; what has been claimed by then wakes nobody.
$node->wait_until("SELECT clock_timestamp() - max(settled_at) > '1500 ms' FROM outbox.receipt", 't');
cmp_ok($woken + PsqlSession::wait_any(0, @left), '<=', 36, 'and nobody afterwards');
cmp_ok(switches(@left) - $before, '<', 31 * 20, 'the others slept on');

# A fast shutdown is not held up, and they all hear of it.
$before = time;
$node->stop('fast');
cmp_ok(time - $before, '<', 20, 'waiting consumers do not hold up a fast shutdown');
my @answers = map { $_->finish } @left;
my $again = grep { $_ eq '' } @answers;
my @odd = grep { $_ ne '' && !/terminating connection|server closed/ } @answers;
is("@odd", '', 'and are told');
cmp_ok($woken + $again, '<=', 36, 'but for the few that had been woken');
$_->close foreach @waiters, $consumer, $producer;
$node->start;

#
# A waiter that goes away passes its wake-up on
#
$producer = PsqlSession->new($node);
foreach my $how ('pg_cancel_backend', 'pg_terminate_backend')
{
	my $taken_over = 0;
	# Were the wake-up lost, the next look of the one who keeps watch would find the message after a second.
	foreach my $try (1 .. 5)
	{
		my ($first, $second) = map { PsqlSession->new($node) } 1 .. 2;
		$first->start("CALL outbox.wait('h', '10 min')");
		asleep($first);
		$second->start("CALL outbox.wait('h', '10 min')");
		asleep($second);
		# The second in the list is who is woken; it does not get to look.
		kill 'STOP', $second->backend;
		my $staged = time;
		$producer->run("SELECT count(outbox.stage('job'))");
		$producer->run("SELECT $how(" . $second->backend . ')');
		kill 'CONT', $second->backend;
		$first->finish;
		my $took = $first->answered_at - $staged;
		like($second->finish, qr/canceling statement|terminating connection/, "$how: it went away") if $try == 1;
		is($first->run($take), '1', "$how: the other one has the message") if $try == 1;
		$first->run($take) if $try > 1;
		$_->close foreach $first, $second;
		if ($took < 0.9)
		{
			$taken_over = $took;
			last;
		}
	}
	cmp_ok($taken_over, '>', 0, sprintf '%s: the wake-up went to the next waiter after %.0f ms', $how, $taken_over * 1000);
}

# The keeper is cancelled in the middle of its look: the next one looks in its place.
{
	my $operator = PsqlSession->new($node);
	my ($keeper, $next) = map { PsqlSession->new($node) } 1 .. 2;
	foreach ($keeper, $next) { $_->start("CALL outbox.wait('h', '10 min')"); asleep($_); }
	$producer->run("SELECT count(outbox.stage('job', delay => '3 s'))");
	$operator->run('BEGIN; LOCK TABLE outbox.delivery');
	$node->wait_until('SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $keeper->backend, 1);
	$producer->run('SELECT pg_cancel_backend(' . $keeper->backend . ')');
	like($keeper->finish, qr/canceling statement/, 'the keeper is cancelled while it looks');
	$operator->run('ROLLBACK');
	ok(scalar PsqlSession::wait_any(30, $next), 'the next one keeps watch and finds what has fallen due');
	$next->finish if !$next->busy;
	is($next->run($take), '1', 'and claims it');
	$_->close foreach $operator, $keeper, $next;
}

# One that was woken and is never heard of again costs the others a second at most.
my ($patient, $gone) = map { PsqlSession->new($node) } 1 .. 2;
foreach ($patient, $gone) { $_->start("CALL outbox.wait('h', '10 min')"); asleep($_); }
$producer->run("SELECT count(outbox.stage('job'))");
$gone->finish;
$patient->finish;
cmp_ok($patient->answered_at - $gone->answered_at, '<', 5, 'a consumer that returns and does not claim is made up for');
is($patient->run($take), '1', 'by another one');

# A claim that is rolled back, and a settlement that lets the next of a key go, wake too.
$patient->start("CALL outbox.wait('h', '10 min')");
$producer->run("SELECT count(outbox.stage('job'))");
$patient->finish;
$gone->run("BEGIN; SELECT FROM outbox.claim('h')");
$patient->start("CALL outbox.wait('h', '10 min')");
asleep($patient);
$gone->run('ROLLBACK');
is($patient->finish, '', 'a rolled-back claim wakes a waiter');
is($patient->run($take), '1', 'who gets the message');

$node->handler('o', ['seq'], undef, ordered => 'true');
$producer->run("SELECT count(outbox.stage('seq', key => 'k')) FROM generate_series(1, 2)");
$gone->run("SELECT FROM outbox.claim('o')");
$patient->start("CALL outbox.wait('o', '10 min')");
asleep($patient);
$gone->run("SELECT outbox.complete('o', message_id, 1) FROM outbox.delivery WHERE state = 2");
is($patient->finish, '', 'settling the head of a key wakes a waiter for the next');
is($patient->run("SELECT count(*) FROM outbox.claim('o')"), '1', 'who gets it');

# Versions: only a consumer that may claim it is woken.
my ($old, $new) = ($gone, $patient);
$old->start("CALL outbox.wait('h', '10 min', 1)");
asleep($old);
$new->start("CALL outbox.wait('h', '10 min', 2)");
asleep($new);
$producer->run("SELECT count(outbox.stage('job', min_version => 2))");
is($new->finish, '', 'a message for newer consumers wakes a newer one');
ok($old->busy, 'and no older one');
is($new->run("SELECT count(*) FROM outbox.claim('h', version => 2) c WHERE outbox.complete('h', c.id, c.attempt)"), '1', 'it claims it');
$producer->run("SELECT count(outbox.stage('job'))");
is($old->finish, '', 'a message for everybody wakes the older one');
is($old->run($take), '1', 'it claims it');

# A row that an operator holds is not waited for busily, and found when it is free.
$producer->run("SELECT count(outbox.stage('job'))");
$gone->run("BEGIN; SELECT FROM outbox.delivery WHERE state = 0 FOR UPDATE");
$patient->start("CALL outbox.wait('h', '10 min')");
asleep($patient);
$before = switches($patient);
$node->wait_until("SELECT clock_timestamp() - query_start > '2 s' FROM pg_stat_activity WHERE pid = " . $patient->backend, 't');
cmp_ok(switches($patient) - $before, '<', 40, 'looked at now and then while it is held');
ok($patient->busy, 'and not taken for claimable');
$gone->run('ROLLBACK');
is($patient->finish, '', 'found once it is free');
is($patient->run($take), '1', 'and claimed');

# More than there are waiters for, on a handler that nobody has waited on, and falling due at once.
$node->handler('w', ['more'], undef);
$producer->run("SELECT count(outbox.stage('more')) FROM generate_series(1, 3)");
$patient->run("SET statement_timeout = '30 s'");
is($patient->run("CALL outbox.wait('w', '1 min')"), '', 'three messages end a wait as one does');
is($patient->run("SELECT count(*) FROM outbox.claim('w', 10) c WHERE outbox.complete('w', c.id, c.attempt)"), '3', 'and are claimed');
$patient->start("CALL outbox.wait('w', '1 min')");
asleep($patient);
$producer->run("SELECT count(outbox.stage('more', delay => '200 ms')) FROM generate_series(1, 3)");
is($patient->finish, '', 'three that fall due together do, too');
$patient->run('RESET statement_timeout');

# A handler that goes away.
$patient->start("CALL outbox.wait('h', '10 min')");
asleep($patient);
$node->sql("SELECT outbox.drop_handler('h')");
like($patient->finish, qr/handler "h" was dropped/, 'dropping the handler ends the wait');

#
# Without preload there is nothing to wait on
#
$_->close foreach $patient, $gone, $producer;
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
my $error = $node->sql_error("CALL outbox.wait('o')");
like($error, qr/55000.*needs the library to be preloaded/, 'without preload it says so');
like($error, qr/Add outbox to shared_preload_libraries/, 'and what to do');

done_testing();
