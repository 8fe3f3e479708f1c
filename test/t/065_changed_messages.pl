# A message that an operator has changed by hand, so that its row is a later
# version in the same place, is read for several handlers at once: each gets
# it, and the primary key goes on finding it.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "autovacuum = off\n");
my @handlers = qw(a b c);

$node->handler($_, ['t.changed'], $receiver->url("/$_")) foreach @handlers;
$node->sql("SELECT outbox.pause_handler('$_')") foreach @handlers;
my $id = $node->stage('t.changed', '{"n": 2}');
$node->sql(q{UPDATE outbox.message SET payload = '{"n": 20}'});
is($node->sql("SELECT ctid <> '(0,1)' FROM outbox.message"), 't', 'the row is another version');
$node->sql('SELECT ' . join ', ', map { "outbox.resume_handler('$_')" } @handlers);
$node->wait_for("SELECT string_agg(concat_ws(' ', handler, state, attempts, code), ', ' ORDER BY handler) FROM outbox.deliveries",
	'a delivered 1, b delivered 1, c delivered 1', 'every handler has got it');
is($_->{body}, '{"n": 20}', "$_->{path}: as it was changed") foreach $receiver->requests;
is($node->sql("SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM outbox.message WHERE id = '$id'"), 1,
	'and the primary key finds it');

done_testing;
