# Rows that were changed by hand or are older than half of all transaction ids
# are delivered like any other.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "autovacuum = off\n");

# The index has two entries of the message then, the dead one first.
$node->handler('changed', ['t.changed'], $receiver->url('/changed'));
$node->sql("SELECT outbox.pause_handler('changed')");
$node->stage('t.changed', qq({"n": $_})) foreach 1 .. 3;
$node->sql(q{UPDATE outbox.message SET dedupe_key = 'by hand', payload = '{"n": 20}' WHERE payload = '{"n": 2}'});
$node->sql("SELECT outbox.resume_handler('changed')");
$node->wait_for_states('delivered 3', 'a message whose row was changed is delivered');
is(join(' ', sort map { $_->{body} } $receiver->requests('/changed')), '{"n": 1} {"n": 20} {"n": 3}', 'as it is now');

# Deliveries that wait, frozen, while more than two billion transactions pass.
$node->handler('old', ['t.old'], $receiver->url('/old'));
$node->handler('pulled', ['t.old'], undef);
$node->sql("SELECT outbox.pause_handler('old')");
$node->stage('t.old', qq({"n": $_})) foreach 1 .. 3;

# Have the server think that it has got to a transaction id, with all that was before frozen.
sub pass_transactions
{
	my $xid = shift;
	$node->sql('ALTER DATABASE template0 ALLOW_CONNECTIONS true');
	$node->sql('VACUUM FREEZE', $_) foreach qw(template0 template1 postgres);
	$node->sql('ALTER DATABASE template0 ALLOW_CONNECTIONS false; CHECKPOINT');
	$node->stop;
	open(my $segment, '>', sprintf('%s/pg_xact/%04X', $node->data_dir, $xid >> 20)) or die "no segment of the commit log: $!";
	print $segment "\0" x (32 * 8192);
	close $segment;
	system($node->config_data('--bindir') . "/pg_resetwal -x $xid " . $node->data_dir . ' > /dev/null') == 0 or die 'pg_resetwal failed';
	$node->start;
	return;
}
pass_transactions($_ << 20) foreach 1150, 2200;
$node->sql('VACUUM FREEZE', $_) foreach qw(template1 postgres);
ok(!-e $node->data_dir . '/pg_xact/0000', 'the commit log of their transactions is gone');
$node->wait_for_dispatcher;
$node->sql("SELECT outbox.resume_handler('old')");
$node->wait_for("SELECT string_agg(DISTINCT concat_ws(' ', state, attempts, code), ', ') FROM outbox.deliveries WHERE handler = 'old'", 'delivered 1', 'they are delivered');
is($node->sql("SELECT count(*) FROM outbox.claim('pulled', 10)"), 3, 'and claimed');

done_testing();
