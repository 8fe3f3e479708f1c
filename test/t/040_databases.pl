# CREATE EXTENSION in any database, in several at once; and without preload.
# An idle server does nothing.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', extension => 0, conf => 'outbox.rescan_interval = 1h');

is($node->sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox launcher'"), 1, 'the launcher runs');
is($node->sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox dispatcher'"), 0, 'no dispatcher without the extension');

# Each database gets a dispatcher of its own within a second of the commit.
$node->sql("CREATE DATABASE \"$_\"") foreach ('one', 'two', "odd name's");
foreach my $database ('one', 'two', "odd name's")
{
	my $start = time;
	$node->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', $database);
	my $pid;
	$pid = $node->sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox dispatcher' AND datname = " . $node->quote($database))
	  until $pid || time > $start + 20;
	ok($pid, "$database: a dispatcher runs");
	cmp_ok(time - $start, '<', 3, "$database: right after CREATE EXTENSION");
	$node->wait_for_dispatcher($database);
	is($node->sql('SELECT state FROM outbox.dispatchers WHERE pid = ' . $pid, $database), 'running', "$database: it is in the view");
	$node->handler('h', ['t.*'], $receiver->url("/$database" =~ s/[^a-z\/]/-/gr), database => $database);
}
is($node->sql("SELECT string_agg(database::text || ' ' || state, ', ' ORDER BY database::text COLLATE \"C\") FROM outbox.dispatchers", 'one'),
	"odd name's running, one running, two running", 'the view shows them all');
$node->stage('t.x', '{"n": 1}', database => $_) foreach ('one', 'two', "odd name's");
ok($receiver->wait_for_requests(1, $_), "$_: delivered") foreach qw(/one /two /odd-name-s);
is($receiver->count, 3, 'each by its own database only');

# Rolled back, CREATE EXTENSION leaves no dispatcher behind.
$node->sql('CREATE DATABASE rolled');
$node->sql('SET client_min_messages = warning; BEGIN; CREATE EXTENSION outbox; ROLLBACK', 'rolled');
$node->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', 'postgres');
$node->wait_for_dispatcher('postgres');
is($node->sql("SELECT count(*) FROM outbox.dispatchers WHERE database = 'rolled' AND pid IS NOT NULL"), 0, 'no dispatcher where CREATE EXTENSION was rolled back');

# DROP EXTENSION ends the dispatcher, CREATE again starts one.
$node->sql('DROP EXTENSION outbox CASCADE', 'two');
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox dispatcher' AND datname = 'two'", 0, 'DROP EXTENSION ends the dispatcher');
$node->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', 'two');
$node->wait_for_dispatcher('two');
$node->handler('h', ['t.*'], $receiver->url('/two-again'), database => 'two');
$node->stage('t.x', '{}', database => 'two');
ok($receiver->wait_for_requests(1, '/two-again'), 'CREATE EXTENSION again delivers again');

# A dropped database takes its dispatcher along, and nobody else's.
$node->sql('DROP DATABASE two');
is($node->sql("SELECT count(*) FROM pg_stat_activity WHERE datname = 'two'"), 0, 'DROP DATABASE succeeds with a live dispatcher');
$node->stage('t.x', '{"n": 2}', database => 'one');
ok($receiver->wait_for_requests(2, '/one'), 'the others go on');

# Switched off for one database, sending stops there; on again, it goes on.
$node->sql('ALTER DATABASE one SET outbox.enabled = off');
$node->reload;
$node->wait_for("SELECT state FROM outbox.dispatchers WHERE database = 'one'", 'disabled', 'outbox.enabled = off for one database is seen at reload');
$node->stage('t.x', '{"n": 3}', database => 'one');
$node->stage('t.x', '{"n": 3}', database => "odd name's");
ok($receiver->wait_for_requests(2, '/odd-name-s'), 'another database goes on');
is($receiver->count('/one'), 2, 'this one does not send');
$node->sql('ALTER DATABASE one RESET outbox.enabled');
$node->reload;
ok($receiver->wait_for_requests(3, '/one'), 'and goes on when switched on');

# Idle means idle: no transaction, no wake-up, no snapshot, for seconds.
$node->sql('CALL outbox.drain()', $_) foreach ('one', "odd name's");
my @pids = split /\n/, $node->sql("SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox %' ORDER BY 1");
is(scalar @pids, 4, 'launcher and three dispatchers');

sub wake_ups
{
	my $total = 0;
	foreach my $pid (@pids)
	{
		my ($n) = slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
		$total += $n;
	}
	return $total;
}

SKIP:
{
	skip 'needs /proc', 2 unless -r "/proc/$pids[0]/status";
	# Let what is still on its way (closing connections) come to rest.
	my ($before, $after) = (wake_ups(), -1);
	my $end = time + 30;
	while (time < $end)
	{
		sleep 3;
		$after = wake_ups();
		last if $after == $before;
		$before = $after;
	}
	is($after, $before, 'launcher and dispatchers did not wake up once in three seconds');
	is($node->sql('SELECT count(*) FROM pg_stat_activity WHERE pid IN (' . join(', ', @pids) . ') AND backend_xmin IS NOT NULL'), 0, 'and hold no snapshot');
}

# More databases than background workers: reported and retried, not a loop.
my $small = OutboxCluster->create('small', extension => 0, conf => "max_worker_processes = 4\nmax_logical_replication_workers = 0");
my @databases = map { "d$_" } 1 .. 5;
$small->extension($_) foreach @databases;
$small->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox dispatcher'", 3, 'as many dispatchers as there are workers');
$small->wait_for("SELECT count(*) FROM outbox.dispatchers WHERE pid IS NULL AND last_error LIKE '%max_worker_processes%'", 2, 'the others say why they do not run', 'd1');
my ($victim, $waiting) = split /\|/, $small->sql("SELECT min(database::text) FILTER (WHERE pid IS NOT NULL), min(database::text) FILTER (WHERE pid IS NULL) FROM outbox.dispatchers", 'd1');
$small->handler('h', ['t.*'], $receiver->url('/waiting'), database => $waiting);
$small->stage('t.x', '{}', database => $waiting);
$small->sql("DROP DATABASE $victim WITH (FORCE)");
$small->sql("DROP DATABASE $_ WITH (FORCE)") foreach grep { $_ ne $victim && $_ ne $waiting } @databases;
ok($receiver->wait_for_requests(1, '/waiting'), 'a waiting database gets a worker that became free');

# Without preload everything but pushing works, and says so.
my $bare = OutboxCluster->create('bare', preload => 0, extension => 0);
my ($status, $out, $error) = $bare->psql('postgres', 'CREATE EXTENSION outbox');
is($status, 0, 'CREATE EXTENSION without preload');
like($error, qr/NOTICE.*\n?.*shared_preload_libraries/s, 'with a notice that names the setting');
$bare->handler('h', ['t.*'], $receiver->url('/bare'), max_attempts => 1);
$bare->handler('p', ['t.*'], undef);
my $id = $bare->stage('t.x', '{}');
is($bare->sql("SELECT state FROM outbox.deliveries WHERE message_id = '$id' AND handler = 'h'"), 'pending', 'staging works');
is($bare->sql("SELECT database || ' ' || state || ' ' || (last_error LIKE '%shared_preload_libraries%') FROM outbox.dispatchers"), 'postgres not preloaded true',
	'the view says that nothing is pushed and what to do');
is($bare->sql('SELECT status FROM outbox.health()'), 'critical', 'and so does health()');
is($bare->sql("SELECT outbox.cancel('$id')"), 2, 'cancel works');
is($bare->sql("SELECT outbox.requeue('$id')"), 2, 'requeue works');
is($bare->sql("SELECT sum(pending) FROM outbox.backlog"), 2, 'the views work');
is($receiver->count('/bare'), 0, 'nothing was sent');
$bare->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'");
$bare->restart;
ok($receiver->wait_for_requests(1, '/bare'), 'what had been staged is sent once the library is preloaded');

unlike($_->log_text, qr/PANIC|terminated by signal/, $_->name . ': no crash') foreach ($node, $small, $bare);
done_testing();
