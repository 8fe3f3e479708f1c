# Ordered handlers: messages of one key are tried one at a time in stage
# order, whatever fails, commits late, is requeued, cancelled or locked by an
# operator; other keys, other handlers and messages without a key go on.
use strict;
use warnings;
use utf8;

use HttpReceiver;
use JSON::PP ();
use OrderChecker;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;


my $receiver = HttpReceiver->start;
# Nothing is found by chance: a rescan does not come while this runs.
my $node = OutboxCluster->create('main', conf => 'outbox.rescan_interval = 1h');

# The members n of the bodies that arrived on a path, in order of arrival.
sub numbers
{
	my $path = shift;
	return join ' ', map { JSON::PP::decode_json($_->{body})->{n} } $receiver->requests($path);
}

sub states
{
	my $handler = shift;
	return $node->sql("SELECT string_agg(state || ' ' || n, ', ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM outbox.deliveries WHERE handler = '$handler' GROUP BY state) AS s");
}

sub wait_for_handler
{
	my ($handler, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_while_not(sub { states($handler) eq $expected }, $name // "$handler: $expected")
	  || diag("$handler is: " . states($handler));
}

# For receivers that hang until they are released, however slow the test is.
my %patient = (ordered => 'true', timeout => '1 hour');
my %quick = (backoff => \"ARRAY['20 ms']::interval[]", jitter => 0);

# --- Producers that serialise on their business row before they stage, some
# of which roll back, and a receiver that fails now and then.
srand 7;
$receiver->on('/accounts', (map { rand() < 0.15 ? { status => 500, delay => 0.001 } : { delay => 0.002 } } 1 .. 1500), { delay => 0.001 });
$node->handler('accounts', ['account.*'], $receiver->url('/accounts'), ordered => 'true', concurrency => 8, max_attempts => 50, %quick);
$node->sql('CREATE TABLE account (name text PRIMARY KEY, n int NOT NULL DEFAULT 0)');
$node->sql(q{INSERT INTO account SELECT 'account ' || i FROM generate_series(1, 12) AS i});
my @producers;
foreach my $producer (1 .. 4)
{
	my $script = "$PostgreSQL::Test::Utils::tmp_check/accounts_$producer.sql";
	append_to_file($script, <<"SQL");
SELECT setseed($producer / 10.0);
DO \$\$
DECLARE
	chosen text;
	m int;
BEGIN
	FOR i IN 1..300 LOOP
		chosen := 'account ' || 1 + floor(random() * 12);
		UPDATE account SET n = n + 1 WHERE name = chosen RETURNING n INTO m;
		PERFORM outbox.stage('account.changed', jsonb_build_object('n', m), key => chosen);
		IF random() < 0.1 THEN ROLLBACK; ELSE COMMIT; END IF;
	END LOOP;
END \$\$;
SQL
	push @producers, IPC::Run::start([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', $script ],
		'<', \undef, '>', \my $out, '2>', \my $err);
}
$_->finish or die 'a producer failed' foreach @producers;
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'accounts' AND state <> 'delivered'", 0, 'concurrent producers: everything is delivered');
my $order = staged_order($node, 'accounts');
my $steps = check_order($order, [ arrivals($receiver, '/accounts') ], 'concurrent producers: in order', back => 0);
is($steps->{next}, $node->sql('SELECT sum(n) FROM account'), 'as many as there were changes');
cmp_ok($steps->{again}, '>', 50, 'with failures in between');
is($receiver->most_of_a_key('/accounts'), 1, 'never two of one key in flight');
cmp_ok($receiver->most_in_flight('/accounts'), '>', 1, 'but of other keys');
my %last;
my @wrong = grep {
	my $key = $_->{headers}{'outbox-key'};
	my $n = JSON::PP::decode_json($_->{body})->{n};
	my $before = $last{$key} // 0;
	$last{$key} = $n;
	$n != $before && $n != $before + 1
} $receiver->requests('/accounts');
is(scalar @wrong, 0, 'which is the order in which the business rows changed');

# --- Keys are any text; deliveries without one go freely.
$node->handler('keys', ['keys.*'], $receiver->url('/keys'), %patient, concurrency => 20);
$receiver->on('/keys', { hang => 1 });
my @keys = ("it's", 'a "quoted" one', 'back\\slash', '100%', "\$\$", 'grüße 🎉', ' ', "new\nline", 'x' x 255, 'ü' x 127);
foreach my $round (1 .. 3)
{
	$node->stage('keys.x', '{}', key => $_) foreach @keys;
	$node->stage('keys.x', '{}');
}
$receiver->wait_for_requests(@keys + 3, '/keys');
is($receiver->in_flight('/keys'), @keys + 3, 'one of each key is in flight, and all without a key');
$receiver->release('/keys');
wait_for_handler('keys', 'delivered ' . 3 * (@keys + 1), 'keys of any text are delivered');
check_order(staged_order($node, 'keys'), [ arrivals($receiver, '/keys') ], 'and in order', back => 0);
is($receiver->most_of_a_key('/keys'), 1, 'one at a time');

# --- A head that fails blocks its key alone; dead, it is skipped.
$node->handler('skip', ['skip.*'], $receiver->url('/skip'), %patient, max_attempts => 3, %quick);
$node->handler('twin', ['skip.*'], $receiver->url('/twin'), ordered => 'true');
$receiver->on('/skip', { hang => 1 });
my @ids = map { $node->stage('skip.x', qq({"n": $_}), key => 'k') } 1 .. 3;
$receiver->wait_for_requests(1, '/skip');
wait_for_handler('twin', 'delivered 3', 'another handler goes on with the same key');
is(numbers('/twin'), '1 2 3', 'in order');
is($receiver->count('/skip'), 1, 'while this one waits');
$receiver->release('/skip', { status => 500 }, ({ status => 500 }) x 2, { status => 200 });
wait_for_handler('skip', 'dead 1, delivered 2', 'after the last attempt of the head the next one goes');
is($node->sql("SELECT message_id FROM outbox.dead_letters WHERE handler = 'skip'"), $ids[0], 'the head is dead');
is(numbers('/skip'), '1 1 1 2 3', 'the others of its key followed');

# --- Or it blocks, until an operator acts.
foreach my $way ('requeue', 'cancel', 'alter', 'erase')
{
	my $handler = "block_$way";
	my $path = "/$handler";
	$receiver->on($path, { status => 500 });
	$node->handler($handler, ["$handler.*"], $receiver->url($path), ordered => 'true', on_dead => 'block', max_attempts => 2, breaker_threshold => 1000, %quick);
	my $id = $node->stage("$handler.x", '{"n": 1}', key => 'k', tenant => 'first');
	wait_for_handler($handler, 'dead 1', "$way: the first of its key dies");
	$receiver->on($path, { status => 200 });
	$node->stage("$handler.x", qq({"n": $_}), key => 'k') foreach 2 .. 4;
	$node->stage("$handler.x", '{"n": 10}', key => 'other');
	$receiver->wait_for_requests(3, $path);
	wait_for_handler($handler, 'dead 1, delivered 1, pending 3', "$way: a dead head blocks its key, not another one");
	is(numbers($path), '1 1 10', "$way: nothing of the key was sent");

	if ($way eq 'requeue') { $node->sql("SELECT outbox.requeue('$id')"); }
	elsif ($way eq 'cancel') { $node->sql("SELECT outbox.cancel('$id')"); }
	elsif ($way eq 'alter') { $node->sql("SELECT outbox.alter_handler('$handler', on_dead => 'skip')"); }
	else { $node->sql("SELECT outbox.erase_tenant('first')"); }

	my %expected = (
		requeue => [ 'delivered 5', '1 1 10 1 2 3 4' ],
		cancel => [ 'cancelled 1, delivered 4', '1 1 10 2 3 4' ],
		alter => [ 'dead 1, delivered 4', '1 1 10 2 3 4' ],
		erase => [ 'delivered 4', '1 1 10 2 3 4' ]);
	wait_for_handler($handler, $expected{$way}[0], "$way: the key goes on");
	is(numbers($path), $expected{$way}[1], "$way: in order");
}

# --- A dead one that is requeued comes next, behind what is in flight.
$node->handler('again', ['again.*'], $receiver->url('/again'), %patient, max_attempts => 1);
$receiver->on('/again', { status => 500 });
my $dead = $node->stage('again.x', '{"n": 1}', key => 'k');
wait_for_handler('again', 'dead 1');
$receiver->on('/again', { hang => 1 });
$node->stage('again.x', qq({"n": $_}), key => 'k') foreach 2 .. 4;
$receiver->wait_for_requests(2, '/again');
$node->sql("SELECT outbox.requeue('$dead')");
$receiver->release('/again', { status => 200 }, { delay => 0.05 });
wait_for_handler('again', 'delivered 4', 'all are delivered after a requeue');
is(numbers('/again'), '1 2 1 3 4', 'the requeued one came next');
is($receiver->most_of_a_key('/again'), 1, 'and not beside another one');

# Also when it is the one in flight.
$node->sql(q{SELECT outbox.alter_handler('again', max_attempts => 5, backoff => ARRAY['10 ms']::interval[])});
$receiver->on('/again', { status => 500 }, { hang => 1 });
my @three = map { $node->stage('again.x', qq({"n": $_}), key => 'k3') } 11 .. 13;
$receiver->wait_for_requests(7, '/again');
$node->sql("SELECT outbox.cancel('$three[0]')");
$node->sql("SELECT outbox.requeue('$three[0]')");
$receiver->release('/again', { status => 200 });
wait_for_handler('again', 'delivered 7', 'cancelled and requeued while in flight');
is(numbers('/again'), '1 2 1 3 4 11 11 11 12 13', 'it is tried again before those behind it');

# --- Many of a key, replayed together, come in stage order again.
$receiver->forget;
$node->sql(q{SELECT outbox.stage_many('again.y', ARRAY(SELECT jsonb_build_object('n', i) FROM generate_series(100, 199) AS i), array_fill('many'::text, ARRAY[100]))});
wait_for_handler('again', 'delivered 107');
$node->sql(q{SELECT outbox.replay('again', '-infinity', topic => 'again.y')});
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'again' AND topic = 'again.y' AND attempts = 2 AND state = 'delivered'", 100, 'replayed');
is(numbers('/again'), join(' ', 100 .. 199, 100 .. 199), 'a replay keeps the order');

# --- One that is due later holds up those behind it.
$node->handler('later', ['later.*'], $receiver->url('/later'), %patient);
$node->stage('later.x', '{"n": 1}', key => 'k', delay => '1 second');
$node->stage('later.x', '{"n": 2}', key => 'k');
wait_for_handler('later', 'delivered 2');
is(numbers('/later'), '1 2', 'a scheduled message is waited for by those behind it');
$receiver->forget;
my $scheduled = $node->stage('later.x', '{"n": 1}', key => 'k', delay => '1 hour');
$node->stage('later.x', '{"n": 2}', key => 'k');
$node->stage('later.x', '{"n": 10}', key => 'other');
wait_for_handler('later', 'delivered 3, pending 2', 'but not by another key');
$node->sql("SELECT outbox.cancel('$scheduled')");
wait_for_handler('later', 'cancelled 1, delivered 4', 'until it is cancelled');

# --- One with a smaller id that commits late is tried when it appears.
$receiver->forget;
$receiver->on('/later', { hang => 1 });
my ($late_in, $late_out, $late_timer) = ('', '', IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
my $late_psql = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres') ], '<', \$late_in, '>', \$late_out, $late_timer);
$late_in .= "BEGIN; SELECT outbox.stage('later.x', '{\"n\": 1}', key => 'late');\n\\echo staged\n";
$late_psql->pump until $late_out =~ /staged/;
$node->stage('later.x', qq({"n": $_}), key => 'late') foreach 2 .. 5;
$receiver->wait_for_requests(1, '/later');
$late_in .= "COMMIT;\n\\echo done\n";
$late_psql->pump until $late_out =~ /done/;
$late_in .= "\\q\n";
$late_psql->finish;
$receiver->release('/later', { status => 200 });
wait_for_handler('later', 'cancelled 1, delivered 9', 'a late commit is delivered');
is(numbers('/later'), '2 1 3 4 5', 'next, behind what was in flight');
is($receiver->most_of_a_key('/later'), 1, 'one at a time');

# --- An operator who holds the row of the head: those behind it are sent, but
# nothing of the key is settled before it.
$node->handler('held', ['held.*'], $receiver->url('/held'), %patient);
$receiver->on('/held', { hang => 1 });
my @held = map { $node->stage('held.x', qq({"n": $_}), key => 'k') } 1 .. 3;
$receiver->wait_for_requests(1, '/held');
my ($lock_in, $lock_out) = ('', '');
my $lock_psql = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres') ], '<', \$lock_in, '>', \$lock_out, $late_timer);
$lock_in .= "BEGIN; SELECT 'locked' FROM outbox.delivery WHERE message_id = '$held[0]' FOR UPDATE;\n";
$lock_psql->pump until $lock_out =~ /locked/;
$receiver->release('/held', { status => 200 });
$receiver->wait_for_requests(2, '/held');
$node->stage('held.x', '{"n": 10}', key => 'other');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE handler = 'held' AND key = 'other'", 'delivered', 'while a row is locked another key goes on');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'held' AND key = 'k' AND state = 'delivered'"), 0, 'nothing of its key is settled');
$lock_in .= "COMMIT;\n\\q\n";
$lock_psql->finish;
wait_for_handler('held', 'delivered 4', 'after that all is');
like(numbers('/held'), qr/^1 2 (10 3|3 10)$/, 'once each and in order') or diag(numbers('/held'));

# --- Keys with many messages take turns: none waits until others are drained.
$node->handler('turns', ['turns.*'], $receiver->url('/turns'), ordered => 'true', concurrency => 2);
$node->sql("SELECT outbox.pause_handler('turns')");
$receiver->on('/turns', { delay => 0.005 });
$node->sql(q{SELECT outbox.stage_many('turns.x', ARRAY(SELECT jsonb_build_object('n', i) FROM generate_series(1, 1800) AS i), ARRAY(SELECT 'k' || i % 60 FROM generate_series(1, 1800) AS i))});
$node->sql("SELECT outbox.resume_handler('turns')");
wait_for_handler('turns', 'delivered 1800');
my @turns = arrivals($receiver, '/turns');
my %half = map { $_->[0] => 1 } @turns[ 0 .. 899 ];
is(scalar keys %half, 60, 'all keys have had a turn when half is delivered');
check_order(staged_order($node, 'turns'), \@turns, 'taking turns', back => 0);

# --- A pause in the middle of a key.
$node->handler('paused', ['paused.*'], $receiver->url('/paused'), %patient, concurrency => 4);
$receiver->on('/paused', ({ delay => 0.002 }) x 50, { hang => 1 });
$node->sql(q{SELECT outbox.stage_many('paused.x', ARRAY(SELECT jsonb_build_object('n', i) FROM generate_series(1, 400) AS i), ARRAY(SELECT 'k' || i % 3 FROM generate_series(1, 400) AS i))});
$receiver->wait_for_requests(53, '/paused');
$node->sql("SELECT outbox.pause_handler('paused')");
# The dispatcher may still have to hear of it.
$receiver->release('/paused', { delay => 0.1 });
$node->wait_for("SELECT in_flight FROM outbox.dispatchers WHERE database = 'postgres'", 0, 'paused: nothing is in flight any more');
cmp_ok($receiver->count('/paused'), '<', 400, 'paused in the middle');
$receiver->on('/paused', { delay => 0.002 });
$node->sql("SELECT outbox.resume_handler('paused')");
wait_for_handler('paused', 'delivered 400');
check_order(staged_order($node, 'paused'), [ arrivals($receiver, '/paused') ], 'a pause in the middle', back => 0);
is($receiver->most_of_a_key('/paused'), 1, 'one at a time');

$node->stop;
$receiver->stop;
done_testing();
