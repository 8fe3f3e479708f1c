# outbox.settle_synchronous_commit with a synchronous standby that comes and
# goes: what it has not confirmed is bounded for each handler, and no receipt
# waits for it: other handlers go on, and the server stops fast.  What an
# on_settle function wrote waits as the server is set to, in its own worker,
# and nothing that it staged is sent before.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# Answers that a handler may have unsettled, and requests it may have out.
my $bound = 2000;
my $concurrency = 10;

# The test's own sessions wait for no standby.
$ENV{PGOPTIONS} = '-c synchronous_commit=local';

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', init => { allows_streaming => 1 }, conf => <<'END');
outbox.rescan_interval = 1h
synchronous_commit = on
END
$node->sql(<<'SQL');
CREATE ROLE app;
CREATE SCHEMA app AUTHORIZATION app;
CREATE TABLE app.settled (id uuid);
GRANT INSERT ON app.settled TO app;
GRANT EXECUTE ON FUNCTION outbox.stage TO app;
CREATE FUNCTION app.note(s outbox.settlement) RETURNS void LANGUAGE sql SET search_path = pg_catalog
AS $$INSERT INTO app.settled VALUES (s.message_id); SELECT outbox.stage('follow')$$;
ALTER FUNCTION app.note OWNER TO app;
SQL
$node->handler('much', ['much'], $receiver->url('/much'), concurrency => $concurrency);
$node->handler('little', ['little'], $receiver->url('/little'));
$node->handler('hooked', ['hooked'], $receiver->url('/hooked'), on_settle => 'app.note(outbox.settlement)');
$node->handler('follow', ['follow'], $receiver->url('/follow'));
$node->backup('backup');
my $standby = OutboxCluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);

sub set_and_reload
{
	my %settings = @_;
	$node->sql("ALTER SYSTEM SET $_ = '$settings{$_}'") foreach keys %settings;
	$node->reload;
	return;
}

my %staged = (much => 0, little => 0, hooked => 0);

sub stage_some
{
	my ($topic, $n) = @_;
	$staged{$topic} += $n;
	$node->sql("SELECT outbox.stage('$topic') FROM generate_series(1, $n)");
	return;
}

sub count { return $node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = '$_[0]' AND state = 'delivered'"); }

sub all_of
{
	my ($handler, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = '$handler' AND state = 'delivered'", $staged{$handler}, $name);
}

# More than can remain unconfirmed.
sub up_to_the_bound
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $enough = count('much') + $bound;
	stage_some('much', $bound + 500);
	$node->wait_for("SELECT count(*) >= $enough FROM outbox.deliveries WHERE handler = 'much' AND state = 'delivered'", 't', "$name: without it, settlements go on");
	$node->wait_for('SELECT in_flight FROM outbox.dispatchers', 0, "$name: up to a bound");
	return;
}

# The standby is there.
$standby->start;
set_and_reload('synchronous_standby_names' => 'standby', 'outbox.settle_synchronous_commit' => 'on');
$node->wait_for("SELECT sync_state FROM pg_stat_replication", 'sync', 'the standby is synchronous');
stage_some('much', 2 * $bound + 500);
stage_some('hooked', 20);
all_of('much', 'what it confirms goes on without end');
all_of('hooked', 'so do functions');

foreach my $commit ('on', 'remote_write')
{
	# It is away.
	set_and_reload('outbox.settle_synchronous_commit' => $commit);
	$node->wait_for_catchup('standby', 'flush', $node->lsn('flush'));
	my $mark = -s $node->logfile;
	$standby->stop;
	my $before = count('much');
	up_to_the_bound($commit);
	stage_some('little', 5);
	stage_some('hooked', 5);
	all_of('little', "$commit: another handler goes on");
	my $followed = $receiver->count('/follow');
	$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND wait_event = 'SyncRep'", 1, "$commit: what a function wrote waits for it");
	stage_some('little', 5);
	all_of('little', "$commit: and holds up nobody else");
	is($receiver->count('/follow'), $followed, "$commit: nor is anything sent that it staged");
	$node->wait_while_not(sub { slurp_file($node->logfile, $mark) =~ /no synchronous standby confirms what outbox has settled/ }, "$commit: the log says why");
	cmp_ok(count('much') - $before, '<=', $bound + $concurrency, "$commit: what is not confirmed is bounded");
	is($node->sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%' AND backend_type <> 'outbox on_settle worker' AND wait_event = 'SyncRep'"), 0, "$commit: nobody else waits for it");

	# It comes back, or is not asked any more.
	if ($commit eq 'on')
	{
		$standby->start;
		all_of('much', "$commit: all goes on when it is back");
		all_of('hooked', "$commit: functions too");
		$node->wait_while_not(sub { $receiver->count('/follow') == $staged{hooked} }, "$commit: and what they staged is sent");
	}
	else
	{
		set_and_reload('outbox.settle_synchronous_commit' => 'local');
		all_of('much', "$commit: all goes on when it is not asked");
	}
}

# The server stops fast all the same.
set_and_reload('outbox.settle_synchronous_commit' => 'on');
up_to_the_bound('once more');
stage_some('hooked', 5);
my $begin = time;
$node->stop('fast');
cmp_ok(time - $begin, '<', 5, 'pg_ctl stop -m fast takes less than 5 s');
$node->start;
$standby->start;
all_of($_, "$_: a dispatcher that has just started begins anew") foreach qw(much hooked);
unlike($node->log_text, qr/PANIC|TRAP|terminated by signal|gives up/, 'no process has ended of any of it');
$node->stop;
done_testing();
