# Headers of an answer that are kept with a logged attempt, whatever carried it.
use strict;
use warnings;

use Certificates;
use HttpReceiver;
use JSON::PP ();
use OutboxCluster;
use TlsReceiver;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.log_attempts = all\noutbox.log_response_headers = 'X-Request-Id, via,x-many , x-odd, x-long'");
$node->wait_for_dispatcher;

# The latest logged attempt of a message; waits for so many.
sub kept
{
	my ($id, $n) = @_;
	$node->wait_until("SELECT count(*) FROM outbox.attempts WHERE message_id = '$id'", $n // 1);
	return $node->sql("SELECT coalesce(response_headers::text, 'none') FROM outbox.attempts WHERE message_id = '$id' ORDER BY attempt DESC LIMIT 1");
}

foreach my $transport ('auto', 'curl')
{
	if ($transport eq 'curl')
	{
		my $pid = $node->dispatcher_pid;
		$node->sql("ALTER SYSTEM SET outbox.transport = curl");
		$node->sql("SELECT pg_reload_conf(), pg_terminate_backend($pid)");
		$node->wait_for_dispatcher('postgres', $pid);
	}
	my $path = "/$transport";
	$receiver->on($path, { status => 200, headers => { 'x-request-id' => 'r-17', 'Via' => '1.1 proxy', 'set-cookie' => 'session=hidden' } });
	$node->handler($transport, [$transport], $receiver->url($path), backoff => \"'{10 ms}'", max_attempts => 2);
	is(kept($node->stage($transport)), '{"via": "1.1 proxy", "x-request-id": "r-17"}', "$transport: those that are named, and no others");
	$receiver->on($path, { status => 500, body => 'no', headers => { 'X-REQUEST-ID' => 'r-18' } }, { status => 200 });
	my $id = $node->stage($transport);
	is(kept($id, 2), 'none', "$transport: of the next attempt what that one answered");
	is($node->sql("SELECT response_headers ->> 'x-request-id' FROM outbox.attempts WHERE message_id = '$id' AND attempt = 1"), 'r-18', "$transport: whatever the case of its name");
	is($node->sql("SELECT data -> 'response_headers' ->> 'x-request-id' || ' ' || detail FROM outbox.message('$id') WHERE event = 'attempt' AND attempt = 1") =~ s/[\d.]+ m?s\b/n ms/r,
		'r-18 retrying, HTTP 500, after n ms, x-request-id r-18: no', "$transport: outbox.message() tells of it");

	# Odd, long and many; nothing of an answer that another one followed.
	my $long = 'y' x 300;
	$receiver->on($path, { raw => "HTTP/1.1 103 Early Hints\r\nx-request-id: early\r\n\r\n"
		  . "HTTP/1.1 200 OK\r\nx-odd: a\"\\b\xff\x01\r\nx-many: 1\r\nx-many: 2\r\nx-long: $long\r\n" . "x-many: $long\r\n" x 20 . "content-length: 0\r\n\r\n" });
	$id = $node->stage($transport);
	kept($id);
	is($node->sql("SELECT concat_ws(' ', response_headers ? 'x-request-id', length(response_headers ->> 'x-long'), left(response_headers ->> 'x-many', 7), octet_length(response_headers::text) BETWEEN 1800 AND 2300, response_headers ->> 'x-odd') FROM outbox.attempts WHERE message_id = '$id'"),
		'f 255 1, 2, y t a"\\b\xff\x01', "$transport: they are bounded and printable");

	$receiver->on($path, { close => 1 });
	is(kept($node->stage($transport), 2), 'none', "$transport: no answer has none");
}

# --- a batch, and what an on_settle function settles
$receiver->on('/batch', { status => 500, headers => { 'x-request-id' => 'b-1' } });
$node->handler('batch', ['batch'], $receiver->url('/batch'), batch_size => 10, max_attempts => 1);
$node->sql("SELECT outbox.stage('batch') FROM generate_series(1, 3)");
$node->wait_for("SELECT count(*) || ' ' || min(response_headers::text) || ' ' || max(response_headers::text) FROM outbox.attempts WHERE handler = 'batch'",
	'3 {"x-request-id": "b-1"} {"x-request-id": "b-1"}', 'each of a batch has those of its answer');
$node->sql(<<'SQL');
CREATE ROLE app;
CREATE FUNCTION settled(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS 'BEGIN NULL; END';
ALTER FUNCTION settled OWNER TO app;
SQL
$receiver->on('/function', { status => 200, headers => { 'x-request-id' => 'f-1' } });
$node->handler('function', ['function'], $receiver->url('/function'), on_settle => 'settled(outbox.settlement)');
is(kept($node->stage('function')), '{"x-request-id": "f-1"}', 'so has what an on_settle function settled');

# --- the list can be changed, and what is not a list is refused
$node->sql("ALTER SYSTEM SET outbox.log_response_headers = 'set-cookie'");
$node->sql('SELECT pg_reload_conf()');
$receiver->on('/cookie', { status => 200, headers => { 'x-request-id' => 'c-1', 'Set-Cookie' => 'a=b; Secure' } });
$node->handler('cookie', ['cookie'], $receiver->url('/cookie'));
$node->wait_while_not(sub { kept($node->stage('cookie')) eq '{"set-cookie": "a=b; Secure"}' }, 'a reload is enough to keep others, and a cookie if that is named');
$node->sql('ALTER SYSTEM SET outbox.log_response_headers = \'\'');
$node->sql('SELECT pg_reload_conf()');
$node->wait_while_not(sub { kept($node->stage('cookie')) eq 'none' }, 'and none');
like($node->sql_error("ALTER SYSTEM SET outbox.log_response_headers = '$_->[0]'"), qr/ERROR:  22023: invalid value.*\nDETAIL:  $_->[1]\nHINT:  Separate names/, "$_->[2] is refused")
  foreach ['a b', '"a b" is not the name of a header\.', 'a blank in a name'], ['a,,b', '"" is not the name of a header\.', 'an empty name'],
  [join(',', 'a' .. 'q'), 'At most 16 headers can be named\.', 'a seventeenth name'], ['x' x 64, '"x+" is not the name of a header\.', 'a long name'];
like($node->sql_error("CREATE ROLE nobody LOGIN; SET ROLE nobody; SET outbox.log_response_headers = 'x'"), qr/ERROR:  42501:/, 'superusers only');

# --- HTTP/2
SKIP:
{
	my $missing = Certificates->missing // TlsReceiver->missing;
	skip $missing, 2 if $missing;
	my $certificates = Certificates->new;
	$certificates->authority('ca');
	$certificates->issue('good', authority => 'ca', names => [ 'IP:127.0.0.1', 'DNS:localhost' ]);
	my $receivers = TlsReceiver->start(two => { cert => $certificates->file('good.crt'), key => $certificates->file('good.key'), http2 => JSON::PP::true });
	$node->sql("ALTER SYSTEM SET outbox.log_response_headers = 'date'");
	$node->sql('SELECT pg_reload_conf()');
	$node->handler('two', ['two'], $receivers->url('two', '/two'), http_version => '2', tls_ca_file => $certificates->file('ca.crt'));
	$node->wait_while_not(sub { kept($node->stage('two')) =~ /^\{"date": "\w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT"\}$/ }, 'over HTTP/2, too');
	is(($receivers->requests('two'))[-1]{version}, '2.0', 'which it was');
}

done_testing();
