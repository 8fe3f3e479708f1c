# replace_key with a dispatcher at work: of many messages in a row the last is
# delivered, soon enough where max_delay says so; an ordered key goes on when
# its head is replaced; and stagers of one key at once leave one outstanding.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => 'outbox.rescan_interval = 1h');
$node->handler('all', ['doc.*'], $receiver->url('/all'));
$node->handler('ordered', ['key.*'], $receiver->url('/ordered'), ordered => 'true');

# Debounced.
$node->sql(q{SELECT count(outbox.stage('doc.saved', to_jsonb(g), replace_key => 'd', delay => '1 s')) FROM generate_series(1, 50) AS g});
$node->wait_for_states('cancelled 49, delivered 1', 'one of fifty is delivered');
is(join(' ', map { $_->{body} } $receiver->requests('/all')), '50', 'the last');
is($node->sql(q{SELECT DISTINCT code FROM outbox.deliveries WHERE state = 'cancelled'}), 'replaced', 'the others are replaced');

# One that would be put off for an hour goes when max_delay is over.
$node->sql(q{SELECT outbox.stage('doc.saved', '"bounded"', replace_key => 'e', delay => '1 h', max_delay => '100 ms')});
$receiver->wait_for_requests(2, '/all');
is(($receiver->requests('/all'))[-1]{body}, '"bounded"', 'max_delay');

# Its key waits for a head that is due in an hour; that is replaced by one behind.
$node->sql(q{SELECT outbox.stage('key.x', '"head"', 'k', replace_key => 'h', delay => '1 h')});
$node->sql(q{SELECT outbox.stage('key.x', '"behind"', 'k')});
$node->sql(q{SELECT outbox.stage('key.x', '"last"', 'k', replace_key => 'h')});
$receiver->wait_for_requests(2, '/ordered');
is(join(' ', map { $_->{body} } $receiver->requests('/ordered')), '"behind" "last"', 'an ordered key goes on');

# Many at once: one of the key is outstanding at the end.
$node->sql('SELECT outbox.pause_handler(\'all\')');
my $script = $node->basedir . '/stage.sql';
append_to_file($script, "SELECT outbox.stage('doc.saved', '\"many\"', replace_key => 'm');\n");
{
	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	my ($out, $error) = ('', '');
	ok(IPC::Run::run([ 'pgbench', '-n', '-c', 8, '-j', 2, '-t', 50, '-f', $script, 'postgres' ], '>', \$out, '2>', \$error), 'eight clients stage') or diag($error);
}
is($node->sql(q{SELECT string_agg(state || ' ' || n, ', ' ORDER BY state) FROM (SELECT d.state, count(*) AS n FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id WHERE m.replace_key = 'm' GROUP BY 1) c}),
	'cancelled 399, pending 1', 'and one is outstanding');
is($node->sql(q{SELECT d.state FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id WHERE m.replace_key = 'm' ORDER BY m.id DESC LIMIT 1}), 'pending', 'the last');

$node->stop;
done_testing();
