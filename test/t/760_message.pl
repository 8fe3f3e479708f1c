# outbox.message(): the story of a message that was pushed, refused, given up and
# brought back, as whoever is on call reads it.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.log_attempts = all");
$node->wait_for_dispatcher;

# Event, handler, attempt and detail of each, without what differs from run to run.
sub story
{
	my $id = shift;
	return $node->sql(<<"SQL");
SELECT string_agg(concat_ws(' ', event, handler, attempt) || ': ' || replace(regexp_replace(regexp_replace(regexp_replace(detail, '127.0.0.1:\\d+', 'host'),
	'[\\d.]+ m?s\\y', 'n ms', 'g'), '\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d[.\\d]*[-+]\\d\\d', 'then', 'g'), session_user, 'me'), E'\\n' ORDER BY at, n)
FROM outbox.message('$id') WITH ORDINALITY AS m (at, event, handler, attempt, detail, data, n)
SQL
}

# --- refused until it is given up, then brought back
$receiver->on('/orders', { status => 500, body => 'no room' }, { status => 422, body => '{"reason": "odd"}' }, { status => 200 });
$node->handler('orders', ['order.*'], $receiver->url('/orders') . '?key=hidden', max_attempts => 2, backoff => \"'{10 ms}'");
my $id = $node->stage('order.placed', '{}', tenant => 'acme');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'dead', 'it is given up');
$node->sql("SELECT outbox.requeue_where(handler => 'orders', tenant => 'acme', reason => 'mended')");
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'delivered', 'and delivered after all');
is(story($id), <<'END' =~ s/\n\z//r, 'its story is told in order');
staged: order.placed, tenant acme, 2 bytes of application/json
routed orders: to http://host/orders
attempt orders 1: retrying, HTTP 500, after n ms: no room
attempt orders 2: dead, HTTP 422, after n ms: {"reason": "odd"}
requeue_where orders: by me, this delivery among others: mended
attempt orders 3: delivered, HTTP 200, after n ms
delivered orders 3: HTTP 200, after 3 attempts
END
is($node->sql("SELECT bool_and((data ->> 'sent_at')::timestamptz < at AND (data ->> 'duration_ms')::numeric > 0) FROM outbox.message('$id') WHERE event = 'attempt'"),
	't', 'each attempt says when it went out');
is($node->sql("SELECT count(*) FROM outbox.message('$id') m WHERE m::text LIKE '%hidden%'"), 0, 'the query of a URL is not told');

# --- one that waits, and what for
$receiver->on('/orders', { status => 503, headers => { 'Retry-After' => 3600 } });
$id = $node->stage('order.placed');
$node->wait_for("SELECT waiting_for FROM outbox.waiting WHERE message_id = '$id'", 'backoff', 'another one waits');
like(story($id), qr/^retrying orders 1: waits for backoff until then, 503: the receiver answered 503 with an empty body\z/m, 'it says what for');
$node->sql("SELECT outbox.pause_handler('orders', 'INC-17')");
like(story($id), qr/^pause_handler orders: by me: INC-17\nretrying orders 1: waits for paused, due at then, .*INC-17\z/m, 'a pause of its handler is part of its story');

# --- an operator may, and a producer may not
$node->sql("CREATE ROLE on_call LOGIN; SELECT outbox.grant_operator('on_call'); CREATE ROLE shop LOGIN; SELECT outbox.grant_producer('shop')");
is($node->sql("SET ROLE on_call; SELECT count(*) > 3 FROM outbox.message('$id')"), 't', 'an operator reads it');
like($node->sql_error("SET ROLE shop; SELECT * FROM outbox.message('$id')"), qr/permission denied for function message/, 'a producer does not');

done_testing();
