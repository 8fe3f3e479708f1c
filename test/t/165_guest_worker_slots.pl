# A server with too few background workers, or a database that lets nobody in:
# outbox.dispatchers and outbox.health() say what is missing and how much of it.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
# The launcher has one of them, and there is nobody else who takes one.
my $node = OutboxCluster->create('main', conf => <<'END');
max_logical_replication_workers = 0
max_worker_processes = 1
END
$node->sql(<<'SQL');
CREATE ROLE app;
CREATE SCHEMA app AUTHORIZATION app;
CREATE FUNCTION app.note(s outbox.settlement) RETURNS void LANGUAGE sql AS '';
ALTER FUNCTION app.note OWNER TO app;
SQL
$node->handler('plain', ['plain'], $receiver->url('/plain'));
$node->wait_for("SELECT state || ': ' || last_error FROM outbox.dispatchers WHERE database = current_database()",
	'failed: no background worker slot is free: max_worker_processes is 1, and at least 2 is needed', 'without a worker, the row says what is missing');
like($node->sql('SELECT status, reasons[1] FROM outbox.health()'), qr/^critical\|nothing is pushed: dispatcher is failed \(.*max_worker_processes is 1, and at least 2 is needed\)$/, 'so does health()');
$node->stage('plain');
is($node->sql("SELECT waiting_for || ': ' || detail FROM outbox.waiting"), 'dispatcher: failed: no background worker slot is free: max_worker_processes is 1, and at least 2 is needed', 'and so is what a message waits for');

$node->append_conf('postgresql.conf', 'max_worker_processes = 2');
$node->restart;
ok($node->wait_for_dispatcher, 'that many are enough');
$node->wait_for_states('delivered 1');
is($node->sql('SELECT status FROM outbox.health()'), 'ok', 'and all is well');
$node->handler('noted', ['noted'], $receiver->url('/noted'), on_settle => 'app.note(outbox.settlement)');
$node->stage('noted');
$node->wait_for("SELECT state || ': ' || last_error FROM outbox.dispatchers",
	'running: on_settle functions are not run, as no background worker slot is free: max_worker_processes is 2, and at least 3 is needed', 'functions need another one');
like($node->sql('SELECT status, reasons[1] FROM outbox.health()'), qr/^warn\|dispatcher: on_settle functions are not run,.*max_worker_processes is 2, and at least 3 is needed$/, 'health() knows it');
is($node->sql("SELECT waiting_for || ': ' || detail FROM outbox.waiting"), 'on_settle: on_settle functions are not run, as no background worker slot is free: max_worker_processes is 2, and at least 3 is needed', 'and the delivery that waits for one says so');
$node->append_conf('postgresql.conf', 'max_worker_processes = 3');
$node->restart;
$node->wait_for("SELECT state FROM outbox.deliveries WHERE topic = 'noted'", 'delivered', 'with it they are run');
is($node->sql('SELECT status FROM outbox.health()'), 'ok', 'and all is well again');

# --- a database that allows no connections
$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->restart;
$node->extension('closed');
$node->wait_for_dispatcher('closed');
$node->sql('ALTER DATABASE closed ALLOW_CONNECTIONS false');
$node->wait_for("SELECT state || ': ' || last_error FROM outbox.dispatchers WHERE database = 'closed'",
	'stopped: this database allows no connections (ALTER DATABASE ... ALLOW_CONNECTIONS)', 'a database that lets nobody in is said to be so');
$node->sql('ALTER DATABASE closed ALLOW_CONNECTIONS true');
ok($node->wait_for_dispatcher('closed'), 'and has its dispatcher back when it does');

# --- no slot for a database
$node->append_conf('postgresql.conf', 'outbox.max_databases = 1');
$node->restart;
$node->wait_until("SELECT count(*) = 1 FROM outbox.dispatchers WHERE state = 'running'");
my @rows = map { $node->sql("SELECT state || ': ' || last_error FROM outbox.dispatchers WHERE database = current_database() AND state <> 'running'", $_) } 'postgres', 'closed';
is(join('', @rows), 'stopped: all slots for databases are in use: outbox.max_databases is 1, and at least 2 is needed', 'of two databases with one slot, the other one says what is missing');

# --- crashes that follow on each other
$node->append_conf('postgresql.conf', 'outbox.max_databases = 64');
$node->restart;
my $pid = $node->wait_for_dispatcher;
foreach my $pause (1, 2)
{
	kill 'KILL', $pid;
	$node->wait_while_not(sub { $node->log_text =~ /outbox starts no dispatcher for $pause s, because the server has crashed/ }, "after a crash there is a pause of $pause s");
	$pid = $node->wait_for_dispatcher('postgres', $pid);
}
$node->restart;
$node->wait_for_dispatcher;
unlike($node->log_text =~ s/.*starts no dispatcher for 2 s//sr, qr/outbox starts no dispatcher/, 'a restart is no crash');
$node->stop;
done_testing();
