# Receivers that fail, each in its own way: retries with backoff, dead
# letters and back, and nobody else is held up.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.max_response_capture = '1kB'");

# The state of a handler's only delivery: state, attempts, code, HTTP status.
sub outcome
{
	my $handler = shift;
	return $node->sql("SELECT concat_ws(' ', state, attempts, coalesce(code, '-'), http_status) FROM outbox.deliveries WHERE handler = " . $node->quote($handler));
}

sub wait_for_outcome
{
	my ($handler, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_for(
		"SELECT concat_ws(' ', state, attempts, coalesce(code, '-'), http_status) FROM outbox.deliveries WHERE handler = " . $node->quote($handler),
		$expected, $name);
}

# Retried by the explicit schedule, then delivered.
$receiver->on('/flaky', { status => 500, body => 'first' }, { status => 502, body => 'second' }, { status => 200 });
$node->handler('flaky', ['t.flaky'], $receiver->url('/flaky'), backoff => \"ARRAY['150 ms', '300 ms']::interval[]", jitter => 0);
my $id = $node->stage('t.flaky', '{}');
wait_for_outcome('flaky', 'delivered 3 - 200', 'delivered at the third attempt');
my @requests = $receiver->requests('/flaky');
is(join(',', map { $_->{headers}{'outbox-attempt'} } @requests), '1,2,3', 'attempts are numbered');
is(scalar(grep { $_->{headers}{'webhook-id'} eq $id } @requests), 3, 'under the same id');
cmp_ok($requests[1]{time} - $requests[0]{time}, '>=', 0.149, 'the first pause is as the schedule says');
cmp_ok($requests[2]{time} - $requests[1]{time}, '>=', 0.299, 'so is the second');
cmp_ok($requests[2]{time} - $requests[0]{time}, '<', 8, 'and not much longer');
is($node->sql("SELECT string_agg(concat_ws(' ', attempt, outcome, code, http_status, error), ', ' ORDER BY attempt) FROM outbox.attempts WHERE handler = 'flaky'"),
	'1 retrying 500 500 first, 2 retrying 502 502 second', 'failed attempts are logged');

# Dead after max_attempts, requeued with a fresh budget; the receipt of the
# other handler stays.
$receiver->on('/dead', { status => 418, body => 'I am a teapot' });
$node->handler('dead', ['t.dead'], $receiver->url('/dead'), max_attempts => 2, backoff => \"ARRAY['20 ms']::interval[]");
$node->handler('fine', ['t.dead'], $receiver->url('/fine'));
$id = $node->stage('t.dead', '{"why": "not"}', tenant => 'acme');
wait_for_outcome('dead', 'dead 2 418 418', 'dead after max_attempts');
is($node->sql("SELECT concat_ws('|', handler, topic, code, http_status, error, attempts, payload, tenant, died_at > staged_at) FROM outbox.dead_letters"),
	'dead|t.dead|418|418|I am a teapot|2|{"why": "not"}|acme|t', 'the dead letter says what, why and when');
is(outcome('fine'), 'delivered 1 - 200', 'the other handler has its receipt');
is($node->sql("SELECT outbox.requeue('$id')"), 1, 'requeue brings the dead one back');
wait_for_outcome('dead', 'dead 4 418 418', 'with a fresh budget of two attempts');
$receiver->on('/dead', { status => 201 });
is($node->sql("SELECT outbox.requeue('$id', 'dead')"), 1, 'requeue for one handler');
wait_for_outcome('dead', 'delivered 5 - 201', 'delivered at last');
is(join(',', map { $_->{headers}{'outbox-attempt'} } $receiver->requests('/dead')), '1,2,3,4,5', 'attempt numbers never repeat');
is($receiver->count('/fine'), 1, 'the handler that succeeded was called once');

# Every way of not answering properly.  One attempt each, dead at once.
my %bad = (
	'timeout' => [ { hang => 1 }, qr/^timeout/ ],
	'closed' => [ { close => 1 }, qr/^(body|other|connect)/ ],
	'reset' => [ { reset => 1 }, qr/^(body|other|connect)/ ],
	'garbage' => [ { raw => "\x00\x01nonsense\r\n\r\n" }, qr/^(body|other)/ ],
	'short' => [ { raw => "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort" }, qr/^body/ ],
	'redirect' => [ { status => 302, body => 'elsewhere', headers => { Location => $receiver->url('/stolen') } }, qr/^302/ ],
	'bytes' => [ { status => 500, body => "a\0b\xff\xfe\xc3(" }, qr/^500/ ],
	'big' => [ { status => 500, size => 5_000_000 }, qr/^500/ ],
	'binary' => [ { status => 500, body => "\1" x 3000 }, qr/^500/ ],
	'page' => [ { status => 502, body => "<html>\r\n<head><title>502</title></head>\r\n<body>\n<h1>Bad\nGateway</h1>\r\n</body></html>\r\n" }, qr/^502/ ],
	'line' => [ { status => 500, body => "one\r\ntwo\e[31m" }, qr/^500/ ]);
foreach my $name (sort keys %bad)
{
	$receiver->on("/bad/$name", $bad{$name}[0]);
	$node->handler($name, ["bad.$name"], $receiver->url("/bad/$name"), max_attempts => 1, timeout => '1 s');
	$node->stage("bad.$name", '{}');
}
foreach my $name (sort keys %bad)
{
	$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE handler = '$name'", 'dead 1', "$name: dead after one attempt");
	like($node->sql("SELECT code FROM outbox.deliveries WHERE handler = '$name'"), $bad{$name}[1], "$name: with its code");
}
is($receiver->count('/stolen'), 0, 'redirects are never followed');
is($node->sql("SELECT error FROM outbox.dead_letters WHERE handler = 'redirect'"),
	'the receiver answered 302, and redirects are not followed; it points to ' . $receiver->url('/stolen'), 'which the error says, and where it points');
cmp_ok($node->sql("SELECT octet_length(error) FROM outbox.dead_letters WHERE handler = 'big'"), '<=', 1024, 'of a big body the start is kept');
like($node->sql("SELECT error FROM outbox.dead_letters WHERE handler = 'bytes'"), qr/^a.*b/, 'NUL and invalid UTF-8 do no harm');
is($node->sql("SELECT error FROM outbox.dead_letters WHERE handler = 'page'"), '502 Bad Gateway', 'of a page what is to be read');
is($node->sql("SELECT error FROM outbox.dead_letters WHERE handler = 'line'"), 'one two\x1b[31m', 'on one line');
is($node->sql("SELECT count(*) FROM outbox.dead_letters WHERE error ~ '[\\x01-\\x1f]'"), 0, 'no control characters are kept');
is($node->sql("SELECT count(*) FROM outbox.dead_letters WHERE octet_length(error) > 1024"), 0, 'and nothing is longer than what is to be kept, escapes included');
is($node->sql("SELECT count(*) FROM outbox.dead_letters WHERE length(error) > 0"), scalar keys %bad, 'each says what went wrong');

# A gigabyte is read past, not stored, and holds nobody up meanwhile.
SKIP:
{
	my $status_file = '/proc/' . $node->dispatcher_pid . '/status';
	skip 'needs /proc', 4 unless -r $status_file;
	my ($before) = slurp_file($status_file) =~ /^VmHWM:\s+(\d+) kB/m;
	$receiver->on('/giga', { status => 500, size => 1_000_000_000 });
	my $small = HttpReceiver->start;
	$node->handler('giga', ['t.giga'], $receiver->url('/giga'), max_attempts => 1, timeout => '2 min');
	$node->handler('beside', ['t.beside'], $small->url('/beside'), concurrency => 1);
	$node->stage('t.giga', '{}');
	ok($receiver->wait_for_requests(1, '/giga'), 'a gigabyte is on its way');
	$node->stage('t.beside', '{}');
	ok($small->wait_for_requests(1, '/beside'), 'another handler is called meanwhile');
	wait_for_outcome('giga', 'dead 1 500 500', 'it is read to its end');
	my ($after) = slurp_file($status_file) =~ /^VmHWM:\s+(\d+) kB/m;
	cmp_ok($after - $before, '<', 16 * 1024, 'in little memory');
}

# Nobody there.
my $gone = HttpReceiver->start;
$node->handler('gone', ['t.gone'], $gone->url('/'), max_attempts => 1000, backoff => \"ARRAY['50 ms', '50 ms', '200 ms']::interval[]", jitter => 0,
	breaker_threshold => 1000);
$gone->go_away;
$id = $node->stage('t.gone', '{}');
$node->wait_for("SELECT state = 'retrying' AND code = 'connect' FROM outbox.deliveries WHERE handler = 'gone'", 't', 'a refused connection is retried');
$gone->come_back;
$node->wait_for("SELECT state FROM outbox.deliveries WHERE handler = 'gone'", 'delivered', 'until somebody is there');
is_deeply($gone->ids('/'), { $id => 1 }, 'the message arrived once');

# The connection that was kept is dead when the next message comes.
$gone->close_idle;
$id = $node->stage('t.gone', '{"n": 2}');
ok($gone->wait_for_requests(2), 'sent although the kept connection was closed');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'delivered', 'and delivered');

# retry_now does not wait for the backoff.
$receiver->on('/hurry', { status => 500 }, { status => 200 });
$node->handler('hurry', ['t.hurry'], $receiver->url('/hurry'), backoff => \"ARRAY['1 hour']::interval[]", jitter => 0);
$id = $node->stage('t.hurry', '{}');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE handler = 'hurry'", 'retrying', 'an hour to wait');
is($node->sql("SELECT outbox.retry_now('$id')"), 1, 'an operator hurries it');
wait_for_outcome('hurry', 'delivered 2 - 200', 'and it is tried at once');

# One receiver hangs, one is slow, one refuses: the others go on at full speed.
$receiver->forget;
$receiver->on('/hangs', { hang => 1 });
$receiver->on('/slow', { delay => 0.5 });
$node->handler('hangs', ['mix.*'], $receiver->url('/hangs'), concurrency => 5, timeout => '60 s');
$node->handler('slow', ['mix.*'], $receiver->url('/slow'), concurrency => 2);
$gone->go_away;
$node->handler('refuses', ['mix.*'], $gone->url('/x'), backoff => \"ARRAY['100 ms']::interval[]", max_attempts => 1000);
$node->handler('quick', ['mix.*'], $receiver->url('/quick'), concurrency => 10);
$node->sql("SELECT count(outbox.stage('mix.x', '{}')) FROM generate_series(1, 500)");
my $start = time;
ok($receiver->wait_for_requests(500, '/quick', 30), 'the quick one got all of its 500');
my $took = time - $start;
cmp_ok($took, '<', 20, 'in a moment');
note(sprintf '%.2f s', $took);
is($receiver->most_in_flight('/hangs'), 5, 'the hanging one holds its own concurrency and no more');
cmp_ok($receiver->most_in_flight('/slow'), '<=', 2, 'so does the slow one');
cmp_ok($receiver->count('/slow'), '<', 500, 'which is still at it');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'quick' AND state <> 'delivered'"), 0, 'with receipts') if $node->sql("CALL outbox.drain('quick')") eq '';

# A request that is out holds no transaction, snapshot or lock.
is($node->sql("SELECT count(*) FROM pg_stat_activity WHERE pid = " . $node->dispatcher_pid . " AND (backend_xid IS NOT NULL)"), 0,
	'no transaction is held while requests are out');
$receiver->on('/slow', { delay => 0 });
$node->sql("SELECT outbox.cancel_where(handler => 'refuses')");
ok($receiver->wait_for_requests(500, '/slow'), 'the slow one catches up');
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE pid = " . $node->dispatcher_pid . " AND backend_xmin IS NULL", '1', 'nor a snapshot');
is($node->sql("SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND pid = " . $node->dispatcher_pid), 0, 'nor a lock');

# Released, the five that hang are settled, and the rest follow.
is($receiver->release('/hangs', { status => 200 }), 5, 'five hang');
ok($receiver->wait_for_requests(500, '/hangs'), 'the rest follows');
$node->sql("CALL outbox.drain('hangs')");
is(scalar(grep { $_ != 1 } values %{ $receiver->ids('/hangs') }), 0, 'each once');

# Stop says stop: 410 kills the message and pauses the handler.
$receiver->on('/gone', { status => 410 });
$node->handler('stops', ['t.stop'], $receiver->url('/gone'));
$node->stage('t.stop', '{}');
wait_for_outcome('stops', 'dead 1 410 410', '410 is dead at once');
$node->wait_for("SELECT paused FROM outbox.backlog WHERE handler = 'stops'", 't', 'and pauses the handler');

unlike($node->log_text, qr/PANIC|FATAL|ERROR/, 'no failure of a receiver is one of the server');
done_testing();
