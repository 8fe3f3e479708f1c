# Who watches hears of a handler that fails, and of messages that nobody takes,
# long before anything is dead.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main');
$node->wait_for_dispatcher;

sub health
{
	my $of = shift;
	return "SELECT status || ': ' || array_to_string(ARRAY(SELECT regexp_replace(r, '\\d+ s', 'n s') FROM unnest(reasons) r WHERE r LIKE '%\"$of\"%'), ', ') FROM outbox.health('1 s', '1 day')";
}

# --- the receiver blames the message, so no breaker opens
# (Soon again at first, and then for as long as this test may take.)
my $fast = \"ARRAY['50 ms', '50 ms', '50 ms', '50 ms', '1 s']::interval[]";
$receiver->on('/refuses', { status => 422 });
$node->handler('refuses', ['refused'], $receiver->url('/refuses'), backoff => $fast, max_attempts => 1000);
my $id = $node->stage('refused');
$node->wait_for(
	"SELECT failing_since BETWEEN m.staged_at AND m.staged_at + interval '1 minute' AND recent_attempts > 3 AND recent_failures = recent_attempts "
	  . "AND failure_share = 1 AND breaker = 'closed' FROM outbox.handlers h, outbox.message m WHERE h.handler = 'refuses'",
	't', 'a handler shows since when it fails, and how much');
$node->wait_for("SELECT r LIKE 'handler \"refuses\" has failed for % s: % of % attempts within five minutes' FROM outbox.health('1 s', '1 day'), unnest(reasons) r WHERE r LIKE 'handler%'", 't',
	'health() says it');
is($node->sql("SELECT status || ' ' || failing_handlers || ' ' || dead FROM outbox.health('1 s', '1 day')"), 'warn 1 0', 'while nothing is dead');
is($node->sql("SELECT count(*) FROM outbox.health('1 day', '1 day'), unnest(reasons) r WHERE r LIKE 'handler%has failed for%'"), 0, 'not before warn_after');
my $since = $node->sql("SELECT failing_since FROM outbox.handlers");
my $written = $node->sql("SELECT xmin FROM outbox.handler_status WHERE failing_since IS NOT NULL");
my $pid = $node->dispatcher_pid;
$node->sql("SELECT pg_terminate_backend($pid)");
$node->wait_for_dispatcher('postgres', $pid);
$node->wait_for("SELECT xmin <> '$written' AND recent_attempts > 0 FROM outbox.handler_status WHERE failing_since IS NOT NULL", 't', 'attempts are counted on after a restart');
is($node->sql("SELECT failing_since FROM outbox.handlers"), $since, 'and it fails since when it did');
$receiver->on('/refuses', {});
$node->wait_for_states('delivered 1');
$node->wait_for("SELECT failing_since IS NULL FROM outbox.handlers", 't', 'a success ends it');

# --- a good part fails, now and then
$receiver->on('/some', map { ({ status => 422 }, { status => 200 }) } 1 .. 10);
$node->handler('some', ['some'], $receiver->url('/some'), concurrency => 1, backoff => \"ARRAY['1 hour']::interval[]");
$node->sql("SELECT outbox.stage('some') FROM generate_series(1, 20)");
$node->wait_for("SELECT recent_failures || ' of ' || recent_attempts FROM outbox.handlers WHERE handler = 'some'", '10 of 20', 'half of twenty attempts fail');
is($node->sql(health('some')), 'warn: handler "some" fails: 10 of 20 attempts within five minutes', 'which health() says too');
$node->sql("SELECT outbox.cancel_where('some'), outbox.drop_handler('some')");

# --- messages that nobody takes
is($node->sql('SELECT count(*) FROM outbox.unrouted'), 0, 'all have been taken');
$node->sql("SELECT outbox.stage('mistyped'), outbox.stage('mistyped')");
$node->sql("BEGIN; SELECT outbox.stage('rolled.back'); ROLLBACK");
$node->sql("SET outbox.unrouted = dead; SELECT outbox.stage('dead'); SELECT outbox.stage_many('dead', '{1,2}')");
$node->sql_error("SET outbox.unrouted = error; SELECT outbox.stage('refused.loudly')");
$node->sql("SET outbox.unrouted = error; SELECT outbox.try_stage('refused')");
$node->sql("SET outbox.unrouted = error; SELECT outbox.try_stage('refused.politely')");
is($node->sql("SELECT string_agg(concat_ws(' ', topic, messages, refused), ', ' ORDER BY topic) FROM outbox.unrouted"),
	'dead 3 0, mistyped 2 0, refused.loudly 0 1, refused.politely 0 1', 'are counted by topic, whatever outbox.unrouted says');
is($node->sql("SELECT count(*) FROM outbox.unrouted WHERE first_at <= last_at AND last_at BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp()"), 4, 'with their times');
is($node->sql(health('mistyped')), 'warn: messages of topic "mistyped", which no handler takes: 2', 'health() names them');
is($node->sql(health('refused.loudly')), 'warn: messages refused because no handler takes topic "refused.loudly": 1', 'and those that were refused');
my $many = join '; ', map { "SELECT outbox.stage('many.t$_')" } 1 .. 40;
$node->sql($many);
is($node->sql("SELECT count(*) || ' ' || bool_and(topic LIKE 'many.%') FROM outbox.unrouted"), '32 true', 'of many topics the last ones');

# In a database that keeps them by its setting nothing is wrong with that.
$node->sql('CREATE DATABASE fresh');
$node->safe_psql('fresh', 'CREATE EXTENSION outbox');
$node->sql("SELECT outbox.stage('nobody')", 'fresh');
is($node->sql("SELECT status || ': ' || array_to_string(reasons, ', ') FROM outbox.health()", 'fresh'), 'ok: messages of topic "nobody", which no handler takes: 1', 'it is no fault by itself');

$node->stop;
done_testing();
