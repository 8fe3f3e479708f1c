# From a committed row to a delivered request: what commits is sent, what
# does not is not, to every handler that takes the topic and to no other.
use strict;
use warnings;

use HttpReceiver;
use JSON::PP ();
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => 'max_prepared_transactions = 5');

# Bodies that arrived at a path, decoded, in order of their member n.
sub numbers
{
	my $path = shift;
	return join ',', sort { $a <=> $b } map { JSON::PP::decode_json($_->{body})->{n} } $receiver->requests($path);
}

$node->handler('all', ['*'], $receiver->url('/all'));
$node->handler('orders', ['shop.order.*'], $receiver->url('/orders'));
$node->handler('paid', [ 'shop.order.paid', 'shop.invoice.paid' ], $receiver->url('/paid'), headers => '{"x-static": "yes"}');
$node->handler('other', ['other.*'], $receiver->url('/other'));

# One message, three handlers that take it.
my $id = $node->stage('shop.order.paid', '{"n": 1, "text": "gr\u00fc\u00dfe"}',
	key => 'order-1', tenant => 'acme', correlation_id => 'c-1', headers => '{"x-message": "m"}');
$node->wait_for_states('delivered 3', 'one message is delivered to the three handlers that take it');
my ($request) = $receiver->requests('/paid');
is($request->{method}, 'POST', 'as a POST');
is(JSON::PP::decode_json($request->{body})->{text}, "gr\x{fc}\x{df}e", 'with its payload, in UTF-8');
my %expected = (
	'content-type' => 'application/json',
	'webhook-id' => $id,
	'idempotency-key' => $id,
	'outbox-topic' => 'shop.order.paid',
	'outbox-handler' => 'paid',
	'outbox-attempt' => 1,
	'outbox-tenant' => 'acme',
	'outbox-key' => 'order-1',
	'outbox-correlation-id' => 'c-1',
	'x-static' => 'yes',
	'x-message' => 'm');
is($request->{headers}{$_}, $expected{$_}, "header $_") foreach sort keys %expected;
cmp_ok(abs($request->{headers}{'webhook-timestamp'} - time), '<', 60, 'header webhook-timestamp is now');
is($receiver->count('/other'), 0, 'and to no other');
is($node->sql("SELECT string_agg(DISTINCT attempts || ' ' || (settled_at >= staged_at), ',') FROM outbox.deliveries"),
	'1 true', 'one attempt each, receipts with their time');

# What does not commit is not sent.
$receiver->forget;
$node->sql(<<'SQL');
BEGIN;
SELECT outbox.stage('shop.order.made', '{"n": 10}');
ROLLBACK;
BEGIN;
SELECT outbox.stage('shop.order.made', '{"n": 11}');
SAVEPOINT a;
SELECT outbox.stage('shop.order.made', '{"n": 12}');
ROLLBACK TO a;
SELECT outbox.stage('shop.order.made', '{"n": 13}');
SAVEPOINT b;
SELECT outbox.stage('shop.order.made', '{"n": 14}');
RELEASE b;
SAVEPOINT c;
SAVEPOINT d;
SELECT outbox.stage('shop.order.made', '{"n": 15}');
RELEASE d;
ROLLBACK TO c;
COMMIT;
DO $$
BEGIN
	PERFORM outbox.stage('shop.order.made', '{"n": 16}');
	BEGIN
		PERFORM outbox.stage('shop.order.made', '{"n": 17}');
		RAISE EXCEPTION 'no';
	EXCEPTION WHEN raise_exception THEN
		PERFORM outbox.stage('shop.order.made', '{"n": 18}');
	END;
END $$;
SQL
$node->sql('CALL outbox.drain()');
is(numbers('/orders'), '11,13,14,16,18', 'what committed arrived, what was rolled back did not');
is(numbers('/all'), '11,13,14,16,18', 'at every handler alike');
is($node->sql('SELECT count(*) FROM outbox.message'), 6, 'and left no row');

# From functions, triggers and every isolation level.
$receiver->forget;
$node->sql(<<'SQL');
CREATE TABLE trade (n int);
CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM outbox.stage('shop.order.traded', jsonb_build_object('n', NEW.n));
	RETURN NULL;
END $$;
CREATE TRIGGER announce AFTER INSERT ON trade FOR EACH ROW EXECUTE FUNCTION announce();
CREATE CONSTRAINT TRIGGER announce_late AFTER UPDATE ON trade DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION announce();
INSERT INTO trade SELECT generate_series(1, 3);
UPDATE trade SET n = n + 10;
BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO trade VALUES (21);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO trade VALUES (22);
COMMIT;
SQL
$node->sql('CALL outbox.drain()');
is(numbers('/orders'), '1,2,3,11,12,13,21,22', 'from triggers, deferred ones too, at every isolation level');

# Two-phase commit: sent after COMMIT PREPARED, by any session.
$receiver->forget;
$node->sql("BEGIN; SELECT outbox.stage('shop.order.prepared', '{\"n\": 30}'); PREPARE TRANSACTION 'kept'");
$node->sql("BEGIN; SELECT outbox.stage('shop.order.prepared', '{\"n\": 31}'); PREPARE TRANSACTION 'dropped'");
$node->stage('shop.order.after', '{"n": 32}');
ok($receiver->wait_for_requests(1, '/orders'), 'others go on');
is(numbers('/orders'), '32', 'nothing of a prepared transaction is sent');
$node->sql("ROLLBACK PREPARED 'dropped'");
my $before = time;
$node->sql("COMMIT PREPARED 'kept'");
ok($receiver->wait_for_requests(2, '/orders'), 'sent after COMMIT PREPARED');
cmp_ok(time - $before, '<', 10, 'without waiting for the rescan interval');
$node->sql('CALL outbox.drain()');
is(numbers('/orders'), '30,32', 'and nothing of what was rolled back');

# Scheduled: not before its time, and others do not wait for it.
$receiver->forget;
$node->sql(<<'SQL');
SELECT outbox.stage('shop.order.later', '{"n": 40}', delay => '700 ms');
SELECT outbox.stage('shop.order.later', '{"n": 41}', deliver_at => clock_timestamp() + interval '1 day');
SELECT outbox.stage('shop.order.later', '{"n": 42}', deliver_at => clock_timestamp() - interval '1 day');
SELECT outbox.stage('shop.order.later', '{"n": 43}');
SQL
my $due = $node->sql("SELECT extract(epoch FROM staged_at) + 0.7 FROM outbox.message WHERE payload = '{\"n\": 40}'");
$node->wait_while_not(sub { numbers('/orders') eq '40,42,43' }, 'a delayed message arrives');
my ($late) = grep { $_->{body} =~ /40/ } $receiver->requests('/orders');
cmp_ok($late->{time}, '>=', $due - 0.001, 'not before it is due');
cmp_ok($late->{time} - $due, '<', 10, 'and long before the next rescan');
is($node->sql("SELECT sum(scheduled) FROM outbox.backlog WHERE handler = 'orders'"), 1, 'one is scheduled for later');

# Handlers that change while it runs.
$receiver->forget;
$node->sql("SELECT outbox.pause_handler('orders', 'maintenance')");
$node->stage('shop.order.x', '{"n": 50}');
ok($receiver->wait_for_requests(1, '/all'), 'other handlers go on while one is paused');
is($node->sql("SELECT due || ' ' || paused FROM outbox.backlog WHERE handler = 'orders'"), '1 true', 'the paused one keeps it');
is($receiver->count('/orders'), 0, 'and sends nothing');
$node->sql("SELECT outbox.resume_handler('orders')");
ok($receiver->wait_for_requests(1, '/orders'), 'it goes on when resumed');

$node->sql("SELECT outbox.alter_handler('orders', url => " . $node->quote($receiver->url('/moved')) . ')');
$node->stage('shop.order.x', '{"n": 51}');
ok($receiver->wait_for_requests(1, '/moved'), 'a changed URL is used at once');
is(numbers('/orders'), '50', 'and the old one no longer');

$node->sql("SELECT outbox.alter_handler('orders', topics => ARRAY['shop.parcel.*'])");
$node->stage('shop.parcel.sent', '{"n": 52}');
$node->stage('shop.order.x', '{"n": 53}');
$node->sql('CALL outbox.drain()');
is(numbers('/moved'), '51,52', 'changed topics count from the next message on');

$node->sql("SELECT outbox.pause_handler('other')");
$node->stage('other.x', '{"n": 54}');
$node->sql("SELECT outbox.drop_handler('other')");
$node->stage('other.x', '{"n": 55}');
$node->wait_for("SELECT string_agg(state || ' ' || code, ',') FROM outbox.deliveries WHERE handler = 'other'", 'cancelled handler_dropped',
	'dropping a handler cancels what is outstanding');
is($receiver->count('/other'), 0, 'and sends nothing more');

# Names are as free as PostgreSQL's.
$receiver->forget;
my $name = q{Ärger "mit" 'Namen' \ } . ('x' x 38);
$node->handler($name, ['odd.*'], $receiver->url('/odd'));
$node->stage('odd.name', '{"n": 60}');
ok($receiver->wait_for_requests(1, '/odd'), 'a handler with an odd name is delivered to');
like(($receiver->requests('/odd'))[0]{headers}{'outbox-handler'}, qr/^%C3%84rger/, 'the header carries it percent-encoded');
$node->sql('CALL outbox.drain()');
is($node->sql('SELECT state FROM outbox.deliveries WHERE handler = ' . $node->quote($name)), 'delivered', 'and so does the view');

# 20,000 messages of one transaction, each exactly once.
$receiver->forget;
$node->handler('bulk', ['bulk.*'], $receiver->url('/bulk'), concurrency => 50);
$node->sql("SELECT outbox.drop_handler('all')");
$before = time;
is($node->sql("SELECT count(outbox.stage('bulk.item', jsonb_build_object('n', n))) FROM generate_series(1, 20000) AS n"), 20000, '20000 staged at once');
ok($receiver->wait_for_requests(20000, '/bulk', 3 * $PostgreSQL::Test::Utils::timeout_default), 'all arrive');
note(sprintf '%.1f s', time - $before);
$node->sql("CALL outbox.drain('bulk')");
my $ids = $receiver->ids('/bulk');
is(scalar keys %$ids, 20000, 'under as many ids');
is(scalar(grep { $_ != 1 } values %$ids), 0, 'each exactly once');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'bulk' AND state = 'delivered' AND attempts = 1"), 20000, 'each with its receipt');
cmp_ok($receiver->most_in_flight('/bulk'), '<=', 50, 'never more at once than the handler allows');

# One row in pg_stat_activity says what the dispatcher is and does.
like($node->sql("SELECT backend_type || ': ' || query FROM pg_stat_activity WHERE pid = " . $node->dispatcher_pid), qr/outbox dispatcher: \S/,
	'pg_stat_activity names the dispatcher and what it does');
unlike($node->log_text, qr/PANIC|FATAL|ERROR/, 'nothing went wrong on the way');

done_testing();
