# What is sent: bodies, header lines, signatures.  No dispatcher is needed for
# that: the modules are asked directly.
use strict;
use warnings;
use utf8;

use Encode qw(encode);
use JSON::PP ();
use OutboxCluster;
use Test::More;
use UnitModule;

my $unit = UnitModule->build;
my $node = OutboxCluster->create('formats', preload => 0, extension => 0);
$unit->create_functions($node, 'postgres');

my $json = JSON::PP->new->utf8->canonical;
my $id = '0199c000-0000-7000-8000-000000000001';
my %plain = (id => $id, staged_at => '2025-10-09 08:53:20.5+00', topic => 'billing.invoice.paid', payload => { n => 1 });

sub request
{
	my ($form, @messages) = @_;
	return $unit->request($node, 'postgres', $form, \@messages);
}

# --- the lines of every request
my $request = request({ handler => 'books', user_agent => 'outbox/1.0' }, \%plain);
is_deeply($request->{lines},
	[
		'user-agent: outbox/1.0', 'outbox-handler: books', "webhook-id: $id", 'webhook-timestamp: 1760000400', "idempotency-key: $id",
		'content-type: application/json', 'outbox-topic: billing.invoice.paid', 'outbox-attempt: 1'
	],
	'a plain message has these lines and no other');
is($request->{body}, '{"n": 1}', 'raw: the body is the payload');

my %full = (
	%plain,
	key => 'invoice 7%',
	tenant => 'Ärzte "1"',
	correlation_id => 'c-1',
	attempt => 12,
	headers => {
		'traceparent' => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
		'tracestate' => 'vendor=a, other@x=b',
		'X-Priority' => 'very high'
	});
$request = request({ handler => 'Büros "A"', user_agent => 'outbox/1.0' }, \%full);
my $headers = $request->{headers};
is($headers->{'outbox-handler'}, 'B%C3%BCros%20%22A%22', 'a handler name is percent-encoded');
is($headers->{'outbox-key'}, 'invoice%207%25', 'so is a key, and its percent sign');
is($headers->{'outbox-tenant'}, '%C3%84rzte%20%221%22', 'so is a tenant');
is($headers->{'outbox-correlation-id'}, 'c-1', 'what is visible ASCII stays');
is($headers->{'outbox-attempt'}, 12, 'the attempt is the one about to be made');
is($headers->{traceparent}, $full{headers}{traceparent}, 'traceparent goes on');
is($headers->{tracestate}, $full{headers}{tracestate}, 'and tracestate with it');
is($headers->{'x-priority'}, 'very high', 'a header of the message, its name in lower case');

# --- nothing staged can forge or inject a header
my %evil = (
	%plain,
	topic => "a\r\nx-evil: 1",
	key => "k\nx-evil: 1",
	tenant => "t\r\n\r\nGET / HTTP/1.1",
	correlation_id => "\t\x01\x7f ",
	headers => {
		"x-a\r\nx-evil" => '1',
		'x-b' => "v\r\nx-evil: 1",
		'x c' => '1',
		'' => '1',
		'x-d:' => '1',
		'x-e' => ' padded ',
		'x-f' => 'naïve',
		'x-g' => [1],
		'Host' => 'evil',
		'content-length' => '0',
		'Transfer-Encoding' => 'chunked',
		'Connection' => 'close',
		'webhook-id' => 'forged',
		'WEBHOOK-SIGNATURE' => 'forged',
		'outbox-attempt' => '0',
		'idempotency-key' => 'forged',
		'authorization' => 'forged',
		'cookie' => 'forged',
		'content-type' => 'text/html',
		'user-agent' => 'forged',
		'ce-id' => 'forged',
		'traceparent' => "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
	});
$request = request({ handler => "h\r\nx-evil: 1", user_agent => 'outbox/1.0', secrets => ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'] }, \%evil);
$headers = $request->{headers};
is((join '|', grep { /[^ -~]/ } @{ $request->{lines} }), '', 'every line is visible ASCII and blanks');
is_deeply(
	[ sort keys %$headers ],
	[
		sort qw(content-type user-agent outbox-handler webhook-id webhook-timestamp webhook-signature idempotency-key
		  outbox-topic outbox-attempt outbox-key outbox-tenant outbox-correlation-id x-b x-e x-f)
	],
	'just the lines that may be there, once each');
is($headers->{'outbox-topic'}, 'a%0D%0Ax-evil:%201', 'line ends are encoded in a topic');
is($headers->{'outbox-correlation-id'}, '%09%01%7F%20', 'and everything else that is not visible');
is($headers->{'x-b'}, 'v%0D%0Ax-evil: 1', 'line ends are encoded in a header of the message');
is($headers->{'x-e'}, '%20padded%20', 'blanks around a value would be lost, so they are too');
is($headers->{'x-f'}, 'na%C3%AFve', 'and what is not ASCII, as UTF-8');
is($headers->{'content-type'}, 'application/json', 'the type is the handler\'s to say');
is($headers->{'webhook-id'}, $id, 'the id is the message\'s own');

# --- a handler's own headers
$request = request(
	{
		handler => 'h', user_agent => 'outbox/1.0', authorization => 'Bearer s3cret',
		headers => { 'X-Api' => 'v 2', 'User-Agent' => 'mine/1', 'Content-Type' => 'application/vnd.x+json', 'x-shared' => 'handler', 'Host' => 'evil', 'ce-id' => 'x' }
	},
	{ %plain, headers => { 'X-Shared' => 'message', 'x-other' => '1' } });
$headers = $request->{headers};
is($headers->{'x-api'}, 'v 2', 'a handler\'s own header');
is($headers->{'user-agent'}, 'mine/1', 'it may name itself');
is($headers->{'content-type'}, 'application/vnd.x+json', 'and the type of its bodies');
is($headers->{authorization}, 'Bearer s3cret', 'and its credentials');
is($headers->{'x-shared'}, 'handler', 'the handler\'s word counts before a message\'s');
is($headers->{'x-other'}, '1', 'other headers of the message are not affected');
ok(!exists $headers->{host} && !exists $headers->{'ce-id'}, 'what is reserved is passed over');

# --- what a producer must not say of the request, a handler's operator may
my @operators = qw(accept cf-connecting-ip forwarded if-none-match origin referer remote-user sec-fetch-site true-client-ip via
  X-HTTP-Method-Override X-HTTP-Method x-method-override X-Forwarded-For x-forwarded-host x-original-url x-rewrite-url x-real-ip
  x-client-ip x-cluster-client-ip x-remote-addr x-requested-with);
my %says = map { $_ => 'DELETE' } @operators;
$headers = request({ handler => 'h' }, { %plain, headers => { %says, 'x-mine' => 'kept', 'accept-encoding' => 'gzip' } })->{headers};
is_deeply([ grep { exists $headers->{ lc $_ } } @operators ], [], 'not a message');
is($headers->{'x-mine'}, 'kept', 'which may say other things');
$headers = request({ handler => 'h', headers => { %says, 'Accept-Encoding' => 'gzip' } }, \%plain)->{headers};
is_deeply([ grep { ($headers->{ lc $_ } // '') ne 'DELETE' } @operators ], [], 'a handler');
ok(!exists $headers->{'accept-encoding'}, 'but how an answer is written, nobody');

# --- trace context
foreach my $case (
	[ '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00', 1, 'not sampled' ],
	[ 'cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes-later', 1, 'a later version' ],
	[ '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x', 0, 'version 00 has no more fields' ],
	[ 'ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 0, 'version ff' ],
	[ '00-00000000000000000000000000000000-b7ad6b7169203331-01', 0, 'a trace id of zeros' ],
	[ '00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01', 0, 'a parent id of zeros' ],
	[ '00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01', 0, 'capitals' ],
	[ '00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01', 0, 'too short' ],
	[ '', 0, 'empty' ])
{
	my ($value, $sent, $name) = @$case;
	my $got = request({ handler => 'h' }, { %plain, headers => { traceparent => $value, tracestate => 'a=b' } })->{headers};
	is($got->{traceparent}, $sent ? $value : undef, "traceparent, $name");
	is($got->{tracestate}, $sent ? 'a=b' : undef, "tracestate goes with it, $name");
}
foreach my $case (
	[ 'a=1,b=2', 1 ], [ 'a=1, ,b=2', 1 ], [ 'tenant@system=x:y;z', 1 ], [ 'A=1', 0 ], [ 'a', 0 ], [ 'a=', 0 ], [ '=1', 0 ], [ '', 0 ], [ 'a=b=c', 0 ],
	[ "a=\x{e9}", 0 ], [ join(',', map { "k$_=v" } 1 .. 32), 1 ], [ join(',', map { "k$_=v" } 1 .. 33), 0 ], [ 'a=' . 'x' x 511, 0 ])
{
	my ($value, $sent) = @$case;
	my $got = request({ handler => 'h' }, { %plain, headers => { traceparent => $full{headers}{traceparent}, tracestate => $value } })->{headers};
	is($got->{tracestate}, $sent ? $value : undef, 'tracestate of ' . length($value) . ' characters ' . ($sent ? 'is sent' : 'is not sent'));
}

# A handler's own word in this counts, and the two are not mixed.
foreach my $own ({ Traceparent => 'mine' }, { TRACESTATE => 'mine' })
{
	my $got = request({ handler => 'h', headers => $own }, \%full);
	my ($name) = map { lc } keys %$own;
	is_deeply([ grep { /^trace/ } @{ $got->{lines} } ], ["$name: mine"], "a handler's own $name, and the message's not");
}

# --- envelope
$request = request({ handler => 'h', format => 'envelope' }, \%full);
is($request->{headers}{'content-type'}, 'application/json', 'envelope: its type');
is_deeply(
	$json->decode($request->{body}),
	{
		id => $id, type => 'billing.invoice.paid', timestamp => '2025-10-09T08:53:20.500000Z', key => 'invoice 7%',
		tenant => 'Ärzte "1"', correlation_id => 'c-1', data => { n => 1 }
	},
	'envelope: everything known');
is_deeply($json->decode(request({ handler => 'h', format => 'envelope' }, \%plain)->{body}),
	{ id => $id, type => 'billing.invoice.paid', timestamp => '2025-10-09T08:53:20.500000Z', data => { n => 1 } },
	'envelope: nothing that is not');
is(request({ handler => 'h', format => 'envelope' }, { %full, attempt => 2 })->{body}, $request->{body},
	'every attempt sends the same bytes');

# --- CloudEvents
$request = request({ handler => 'h', format => 'cloudevents', source => 'https://shop.example/' }, \%full);
is($request->{headers}{'content-type'}, 'application/cloudevents+json', 'cloudevents: its type');
my %event = (
	specversion => '1.0', id => $id, source => 'https://shop.example/', type => 'billing.invoice.paid', time => '2025-10-09T08:53:20.500000Z',
	subject => 'invoice 7%', partitionkey => 'invoice 7%', tenant => 'Ärzte "1"', correlationid => 'c-1', datacontenttype => 'application/json',
	traceparent => $full{headers}{traceparent}, tracestate => $full{headers}{tracestate}, data => { n => 1 });
is_deeply($json->decode($request->{body}), \%event, 'cloudevents: every attribute');

$request = request({ handler => 'h', format => 'cloudevents-binary', headers => { 'CE-Source' => 'urn:shop' } }, \%full);
is($request->{body}, '{"n": 1}', 'cloudevents-binary: the body is the payload');
is_deeply(
	{ map { $_ => $request->{headers}{$_} } grep { /^ce-/ } keys %{ $request->{headers} } },
	{
		'ce-specversion' => '1.0', 'ce-id' => $id, 'ce-source' => 'urn:shop', 'ce-type' => 'billing.invoice.paid',
		'ce-time' => '2025-10-09T08:53:20.500000Z', 'ce-subject' => 'invoice%207%25', 'ce-partitionkey' => 'invoice%207%25',
		'ce-tenant' => '%C3%84rzte%20%221%22', 'ce-correlationid' => 'c-1',
		'ce-traceparent' => $full{headers}{traceparent}, 'ce-tracestate' => 'vendor=a,%20other@x=b'
	},
	'cloudevents-binary: the attributes are in its headers');
my %odd = (
	%plain, topic => 'a%b"c', key => "%41 \"\x{20ac}\x{1f600}~", tenant => '%', correlation_id => '"',
	headers => { traceparent => $full{headers}{traceparent}, tracestate => 'a=50%"x"' });
$request = request({ handler => 'h', format => 'cloudevents-binary', headers => { 'ce-source' => '/shop%20"1"?a=%C3%A9' } }, \%odd);
is_deeply(
	{ map { $_ => $request->{headers}{$_} } grep { /^ce-/ && !/^ce-(id|time|traceparent|specversion)$/ } keys %{ $request->{headers} } },
	{
		'ce-source' => '/shop%2520%221%22?a=%25C3%25A9', 'ce-type' => 'a%25b%22c', 'ce-subject' => '%2541%20%22%E2%82%AC%F0%9F%98%80~',
		'ce-partitionkey' => '%2541%20%22%E2%82%AC%F0%9F%98%80~', 'ce-tenant' => '%25', 'ce-correlationid' => '%22',
		'ce-tracestate' => 'a=50%25%22x%22'
	},
	'cloudevents-binary: percent signs, quotes, blanks and what is not ASCII are encoded in all of them');
is($request->{headers}{tracestate}, 'a=50%"x"', 'but not in the header that is not an attribute');
is($json->decode(request({ handler => 'h', format => 'cloudevents', headers => { 'ce-source' => 'urn:shop', 'content-type' => 'text/x' } }, \%plain)->{body})->{source},
	'urn:shop', 'a handler says where its events come from');
is(request({ handler => 'h', format => 'cloudevents', headers => { 'content-type' => 'text/x' } }, \%plain)->{headers}{'content-type'},
	'application/cloudevents+json', 'but not what a structured event is');

# --- batches
my %second = (%plain, id => '0199c000-0000-7000-8000-000000000002', payload => ['x'], attempt => 4);
my %batches = (
	envelope => [ map { { id => $_->{id}, type => $_->{topic}, timestamp => '2025-10-09T08:53:20.500000Z', data => $_->{payload} } } \%plain, \%second ]);
$batches{$_} = [
	map {
		{
			specversion => '1.0', id => $_->{id}, source => '/outbox/b%C3%BCro%201', type => $_->{topic}, time => '2025-10-09T08:53:20.500000Z',
			datacontenttype => 'application/json', data => $_->{payload}
		}
	} \%plain, \%second
  ]
  foreach qw(cloudevents);
# A payload alone would not say which message it is.
$batches{raw} = $batches{envelope};
foreach my $format (sort keys %batches)
{
	is(join(', ', map { $_->{id} } @{ $batches{$format} }), "$id, $second{id}", "$format: every item says which message it is");
	$request = request({ handler => 'h', format => $format, batch => JSON::PP::true }, \%plain, \%second);
	is_deeply($json->decode($request->{body}), $batches{$format}, "$format: a batch of two");
	is($request->{headers}{'content-type'}, $format =~ /^cloud/ ? 'application/cloudevents-batch+json' : 'application/json', "$format: its type");
	is($request->{headers}{'outbox-batch'}, 2, "$format: its size");
	is($request->{headers}{'outbox-attempt'}, 4, "$format: the highest attempt");
	is($request->{headers}{'outbox-topic'}, 'billing.invoice.paid', "$format: the topic they share");
	is_deeply($json->decode(request({ handler => 'h', format => $format, batch => JSON::PP::true }, \%second)->{body}),
		[ $batches{$format}[1] ], "$format: a batch of one is a batch");
}
my (undef, undef, $refusal) = $node->psql('postgres',
	"SELECT unit.request('{\"handler\": \"h\", \"format\": \"cloudevents-binary\", \"batch\": true}', '{}', now())");
like($refusal, qr/format cloudevents-binary cannot be sent in batches/, 'cloudevents-binary: not in batches');
my $batch_id = request({ handler => 'h', batch => JSON::PP::true }, \%plain, \%second)->{headers}{'webhook-id'};
like($batch_id, qr/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/, 'a batch has an id of its own');
is(request({ handler => 'h', batch => JSON::PP::true }, { %plain, attempt => 9 }, \%second)->{headers}{'webhook-id'}, $batch_id,
	'which stays the same for the same messages');
isnt(request({ handler => 'h', batch => JSON::PP::true }, \%plain)->{headers}{'webhook-id'}, $batch_id, 'and differs for others');
isnt(request({ handler => 'h', batch => JSON::PP::true }, \%plain)->{headers}{'webhook-id'}, $id, 'a batch of one is not its message');
ok(!exists request({ handler => 'h', batch => JSON::PP::true }, { %plain, topic => 'a.b' }, \%second)->{headers}{'outbox-topic'},
	'a batch of several topics has no topic');

# --- other encodings: everything leaves as UTF-8

my @secrets = ('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==');

foreach my $case ([ 'LATIN1', 'é' ], [ 'EUC_JP', '日本' ], [ 'UTF8', '日é😀' ])
{
	my ($encoding, $word) = @$case;
	my $database = lc $encoding;
	$node->safe_psql('postgres', "CREATE DATABASE $database ENCODING '$encoding' LOCALE 'C' TEMPLATE template0");
	$unit->create_functions($node, $database);
	foreach my $format (qw(raw envelope cloudevents cloudevents-binary))
	{
		local $ENV{PGCLIENTENCODING} = 'UTF8';
		my $got = $unit->request($node, $database, { handler => 'h', format => $format },
			[ { %plain, payload => $word, tenant => $word, headers => { 'x-t' => $word } } ]);
		my $encoded = join '', map { sprintf '%%%02X', ord } split //, encode('UTF-8', $word);
		my $body = $json->allow_nonref->decode($got->{body});
		is(ref $body ? $body->{data} : $body, $word, "$encoding, $format: the body");
		is($got->{headers}{'outbox-tenant'}, $encoded, "$encoding, $format: a header of data");
		is($got->{headers}{'x-t'}, $encoded, "$encoding, $format: a header of the message");

		# A large payload is a part by itself, which changes nothing of what is sent and signed.
		foreach my $batch ($format eq 'cloudevents-binary' ? (0) : (0, 1))
		{
			my %form = (handler => 'h', format => $format, batch => $batch ? JSON::PP::true : JSON::PP::false, secrets => \@secrets);
			my @messages = map { { %plain, payload => [ $word, $_ ], key => $word, tenant => $word } } 1 .. ($batch ? 7 : 1);
			my @large = map { { %$_, ($_->{payload}[1] % 3 == 1 ? (large => JSON::PP::true) : ()) } } @messages;
			is_deeply($unit->request($node, $database, \%form, \@large), $unit->request($node, $database, \%form, \@messages),
				"$encoding, $format: large payloads" . ($batch ? ', some of a batch' : ''));
		}
	}
}
$node->safe_psql('postgres', "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0");
$unit->create_functions($node, 'ascii');
$request = $unit->request($node, 'ascii', { handler => 'h' }, [ { %plain, payload => 'é', tenant => 'é' } ]);
is($request->{body}, encode('UTF-8', '"é"'), 'SQL_ASCII: bytes go out as they are');
is($request->{headers}{'outbox-tenant'}, '%C3%A9', 'SQL_ASCII: in headers as well');

is($unit->request($node, 'ascii', { handler => 'h', format => 'envelope' }, [ { %plain, payload => '日é😀' } ])->{body} =~ /"data": ?"(.*)"/ ? $1 : undef,
	encode('UTF-8', '日é😀'), 'SQL_ASCII: in an envelope too');
foreach my $format (qw(raw envelope cloudevents cloudevents-binary))
{
	my (undef, undef, $error) = $node->psql('ascii', <<"END");
SELECT unit.request('{"handler": "h", "format": "$format"}', ARRAY[jsonb_build_object('id', '$id', 'staged_at', 'now', 'topic', 'a', 'payload', E'na\\xefve')], now())
END
	like($error, qr/invalid byte sequence for encoding "UTF8": 0xef/, "SQL_ASCII, $format: what is not UTF-8 is no JSON, and not sent");
}

# --- a request gives back what it took for a moment, also when it cannot be written
foreach my $case ([ 'latin1', q{to_jsonb(repeat(chr(233), 100))} ], [ 'euc_jp', q{to_jsonb(repeat(convert_from('\\xc6fc', 'EUC_JP'), 100))} ],
	[ 'euc_jp', q{to_jsonb(repeat(convert_from('\\xfcfe', 'EUC_JP'), 100))}, 'not to be had in UTF-8' ])
{
	my ($database, $word, $fails) = @$case;
	my $grown = $node->safe_psql($database, <<"END");
SELECT * FROM unit.request_growth('{"handler": "h", "format": "envelope"}',
	ARRAY[jsonb_build_object('id', '$id', 'staged_at', 'now', 'topic', 'a', 'payload', $word, 'key', $word, 'tenant', $word, 'headers', jsonb_build_object('x-t', $word))],
	20000)
END
	is($grown, ($fails ? 20000 : 0) . '|0|' . ($fails ? 't' : 'f'), "$database: no memory is left behind" . ($fails ? ', by a word that is ' . $fails : ''));
}

# --- signatures: the published vectors
my $hmac_secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';
my $ed25519_secret = 'whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==';
my $hmac = 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=';
my $ed25519 = 'v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==';

sub sign
{
	my ($secrets, $expires) = @_;
	return $node->safe_psql('postgres',
		"SELECT unit.sign('{$secrets}', '{$expires}', 'msg_p5jXN8AQM9LWM0D4loKWxJek', '2025-10-09 09:00:00+00', '1614265330', '{\"test\": 2432232314}')");
}
is(sign($hmac_secret, ''), $hmac, 'HMAC-SHA256 as published');
is(sign($ed25519_secret, ''), $ed25519, 'Ed25519 as published');
is(sign("$hmac_secret,$ed25519_secret", ''), "$hmac $ed25519", 'both at once');
is(sign("$hmac_secret,$ed25519_secret", 'infinity,2025-10-09 09:00:00+00'), $hmac, 'a secret that has expired signs no more');
is(sign("$hmac_secret,$ed25519_secret", '2025-10-09 08:00:00+00,2025-10-09 09:00:01+00'), $ed25519, 'one that is about to still does');
is(sign($hmac_secret, '2020-01-01 00:00:00+00'), '', 'no signature when all have expired');
ok(!exists request({ handler => 'h' }, \%plain)->{headers}{'webhook-signature'}, 'and none without a secret');
# Signers give back what they hold: thousands of them in one session.
is($node->safe_psql('postgres',
	"SELECT count(DISTINCT unit.sign('{$hmac_secret,$ed25519_secret}', '{}', 'msg_p5jXN8AQM9LWM0D4loKWxJek', now(), '1614265330', '{\"test\": 2432232314}')) FROM generate_series(1, 5000)"),
	'1', 'signing is repeatable');
unlike($node->log_text, qr/leak/, 'and leaks nothing that the server knows of');

$node->stop;
done_testing();
