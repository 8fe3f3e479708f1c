# Hand-overs that cannot be settled: one keeps no other from being settled and
# does not fill the log; and what is known of one is not held against another
# that has its number after DROP and CREATE EXTENSION.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

$ENV{PGOPTIONS} = '-c statement_timeout=60s';

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.rescan_interval = 1h
outbox.on_settle_timeout = 200ms
END
$node->sql(<<'SQL');
CREATE ROLE app;
CREATE SCHEMA app AUTHORIZATION app;
SQL

# A handler with a function of the same name; the topic is t.NAME.
sub handler
{
	my ($name, $body) = @_;
	$node->sql(<<"SQL");
SET client_min_messages = warning;
CREATE FUNCTION app.$name(s outbox.settlement) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog AS \$\$ $body \$\$;
ALTER FUNCTION app.$name OWNER TO app;
SQL
	return $node->handler($name, ["t.$name"], $receiver->url("/$name"), on_settle => "app.$name(outbox.settlement)", max_attempts => 1);
}
sub outcome { return "SELECT concat_ws(': ', state, error) FROM outbox.deliveries WHERE handler = '$_[0]' ORDER BY message_id DESC LIMIT 1"; }

# --- one whose receipt cannot be written
handler($_, 'BEGIN END') foreach qw(bad fine);
my $bad = $node->sql("SELECT id FROM outbox.handler WHERE name = 'bad'");
$node->sql("CREATE INDEX refuse ON outbox.receipt ((1 / (attempts - 1))) WHERE attempts = 1 AND handler_id = $bad");
$node->stage('t.bad');
$node->wait_while_not(sub { return $node->log_text =~ /division by zero/ }, 'one cannot be settled, which is said');

# With the others in between, each failure would be the first one since a success.
my $failures = "SELECT xact_rollback FROM pg_stat_database WHERE datname = 'postgres'";
my $enough = $node->sql($failures) + 5;
my $n = 0;
$node->wait_while_not(
	sub {
		$node->stage('t.fine');
		$n++;
		return $node->wait_until("SELECT count(*) = $n FROM outbox.deliveries WHERE handler = 'fine' AND state = 'delivered'") && $node->sql($failures) >= $enough;
	},
	'it is tried again while others are settled');
cmp_ok(scalar(() = $node->log_text =~ /ERROR:  division by zero/g), '<=', 2, 'which does not fill the log');
$node->sql('DROP INDEX outbox.refuse');
$node->wait_for(outcome('bad'), 'delivered', 'once it can be settled, it is');
is($receiver->count('/bad'), 1, 'and nothing was sent again');

# --- one that ended its worker, and one of the same number
handler('stubborn', 'BEGIN LOOP BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END');
$node->stage('t.stubborn');
$node->wait_for(outcome('stubborn'), 'dead: on_settle function did not stop when it was cancelled after 200 ms (outbox.on_settle_timeout)', 'a function that does not stop is ended with its process');
my $number = $node->sql('SELECT last_value FROM outbox.on_settle_queue_id');
$node->sql('SET client_min_messages = warning; DROP EXTENSION outbox CASCADE; CREATE EXTENSION outbox');
$node->sql('DROP SCHEMA app CASCADE; CREATE SCHEMA app AUTHORIZATION app');
$node->wait_for_dispatcher;
handler('another', 'BEGIN END');
$node->sql("SELECT setval('outbox.on_settle_queue_id', $number, false)");
$node->stage('t.another');
$node->wait_for(outcome('another'), 'delivered', 'another extension may have the same number for another hand-over');

unlike($node->log_text, qr/PANIC|TRAP/, 'nothing untoward in the log');
$node->stop;
done_testing();
