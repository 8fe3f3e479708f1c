# What health() judges beside delivery itself: a dispatcher that stands still,
# keys that are barred, whoever holds back vacuum, tables that are mostly empty.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "max_prepared_transactions = 5\n");
$node->wait_for_dispatcher;

# Status and the reasons that match, with arguments.
sub health
{
	my ($like, $arguments) = @_;
	return "SELECT concat_ws(': ', status, (SELECT string_agg(regexp_replace(r, '[0-9]+ s\\y', 'N s'), ', ') FROM unnest(reasons) r WHERE r LIKE " . $node->quote($like) . ")) FROM outbox.health(" . ($arguments // '') . ")";
}

is($node->sql('SELECT concat_ws(\' \', status, reasons, blocked_keys, vacuum_held_by) FROM outbox.health()'), 'ok {} 0', 'all is well');
is($node->sql("SELECT count(*) FROM outbox.dispatchers WHERE moved_at BETWEEN clock_timestamp() - interval '20 s' AND clock_timestamp()"), 1, 'the loop comes round, though there is nothing to do');

# --- the dead
$receiver->on('/h', { status => 404 });
$node->handler('h', ['h'], $receiver->url('/h'), max_attempts => 1);
$node->sql("SELECT outbox.stage('h') FROM generate_series(1, 3)");
$node->wait_for_states('dead 3');
is($node->sql(health('%died%')), 'warn: deliveries that died within the last hour: 3', 'deaths are worth a warning');
is($node->sql(health('%died%', 'warn_dead => 4')), 'ok', 'from as many on as one says');
is($node->sql(health('%died%', 'critical_dead => 3')), 'critical: deliveries that died within the last hour: 3', 'or more than that');
is($node->sql(health('%died%', 'warn_dead => NULL')), 'ok', 'or none');
like($node->sql_error("SELECT outbox.health($_)"), qr/22023.*invalid threshold.*HINT/s, "refused: $_") foreach 'warn_dead => 0', 'warn_dead => 5, critical_dead => 4', "warn_transaction => '-1 s'", 'warn_size => -1';

# --- keys that wait for the dead
$node->handler('orders', ['o'], undef, ordered => 'true', on_dead => 'block', max_attempts => 1);
$node->sql("SELECT outbox.stage_many('o', '{1,2,3,4}', '{a,a,b,c}')");
$node->sql("DO \$\$ DECLARE c record; BEGIN FOR c IN SELECT * FROM outbox.claim('orders', 3) LOOP PERFORM outbox.fail('orders', c.id, c.attempt); END LOOP; END \$\$");
is($node->sql(health('%keys%', 'warn_dead => NULL')), 'warn: handler "orders": keys that wait for a dead delivery: 1 (outbox.blocked_keys shows which)', 'a key that waits for a dead delivery');
is($node->sql('SELECT blocked_keys FROM outbox.health()'), 1, 'one, for nobody waits behind the others');
$node->sql("SELECT outbox.cancel_where('orders')");
is($node->sql(health('%', 'warn_dead => NULL')), 'ok', 'all is well again');

# --- who holds back vacuum
my $session = PsqlSession->new($node);
$session->run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.message");
my $pid = $session->backend;
is($node->sql(health('%vacuum%', "warn_dead => NULL, warn_transaction => '0 s'")),
	"warn: a transaction of process $pid (" . $node->sql('SELECT current_user') . ", session, idle in transaction) has held back vacuum for N s: outbox's tables grow meanwhile", 'an old transaction');
is($node->sql("SELECT vacuum_held_by || ' ' || (vacuum_held_age_seconds > 0) FROM outbox.health(warn_transaction => '0 s')"), "$pid true", 'and its process');
is($node->sql(health('%vacuum%', "warn_dead => NULL")), 'ok', 'not before warn_transaction');
is($node->sql(health('%vacuum%', "warn_dead => NULL, warn_transaction => NULL")), 'ok', 'nor without it');
$session->run('ROLLBACK');
$node->sql("BEGIN; CREATE TABLE public.t (); PREPARE TRANSACTION 'p'");
like($node->sql(health('%vacuum%', "warn_dead => NULL, warn_transaction => '0 s'")), qr/^warn: prepared transaction 'p' has held back vacuum for N s/, 'a prepared one');
$node->sql("ROLLBACK PREPARED 'p'");

# --- a table that is mostly empty
$node->handler('bulk', ['bulk'], undef);
$node->stage_load('bulk', 5000);
is($node->sql(health('%takes%', 'warn_dead => NULL, warn_size => 100000')), 'ok', 'what is full of deliveries is no waste');
$node->sql("SELECT outbox.cancel_where('bulk')");
like($node->sql(health('%takes%', 'warn_dead => NULL, warn_size => 100000')), qr/^warn: outbox\.delivery takes \d+ kB for 0 outstanding deliveries/, 'what was, is');
is($node->sql(health('%takes%', 'warn_dead => NULL')), 'ok', 'from warn_size on');

# --- after a restart nothing is known of attempts, but since when all fail
$receiver->on('/late', { status => 500 });
$node->handler('late', ['late'], $receiver->url('/late'), backoff => \"ARRAY['1 hour']::interval[]");
$node->stage('late');
$node->wait_for("SELECT failing_since IS NOT NULL FROM outbox.handlers WHERE handler = 'late'", 't', 'a handler fails');
$node->restart_with('outbox.enabled' => 'off');
$node->wait_for("SELECT state FROM outbox.dispatchers", 'disabled', 'the next dispatcher sends nothing');
is($node->sql("UPDATE outbox.handler_status SET recent_attempts = 0, recent_failures = 0; " . health('%late%', "'0 s', '1 day', NULL")), 'critical: handler "late" has failed for N s', 'of no attempts no share is told');
$node->restart_with('outbox.enabled' => 'on');
$node->sql("SELECT outbox.cancel_where('late')");

# --- a dispatcher that stands still
my $dispatcher = $node->wait_for_dispatcher;
kill 'STOP', $dispatcher;
$node->wait_for(health('%stood still%', "warn_after => '1 s', warn_dead => NULL"), "warn: dispatcher (process $dispatcher) has stood still for N s", 'a dispatcher that was stopped');
is($node->sql(health('%stood still%', "'0 s', '1 s', NULL")), "critical: dispatcher (process $dispatcher) has stood still for N s", 'for too long');
kill 'CONT', $dispatcher;
$node->wait_for(health('%', "warn_dead => NULL"), 'ok', 'and goes on');

$node->stop;
done_testing;
