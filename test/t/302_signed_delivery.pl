# Signed requests as receivers get them, through secrets that change, checked
# with the libraries that receivers use.
use strict;
use warnings;
use utf8;

use Encode qw(encode);
use HttpReceiver;
use JSON::PP ();
use OutboxCluster;
use Test::More;
use Verifiers;

my $verifiers = Verifiers->install or plan skip_all => Verifiers->missing;
my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('signed');
my $json = JSON::PP->new->utf8->canonical;
$ENV{PGCLIENTENCODING} = 'UTF8';

# Stage a message for a handler and return the request that came of it.
sub deliver
{
	my ($handler, $payload, %options) = @_;
	$receiver->forget;
	$node->stage("$handler.x", encode('UTF-8', $payload // '{"n": 1}'), %options);
	$receiver->wait_for_requests(1, "/$handler") or die "nothing came for $handler";
	my ($request) = $receiver->requests("/$handler");
	return $request;
}

sub verdict
{
	my ($check, $request, $secret) = @_;
	my $answer = $verifiers->check($check, $request, $secret);
	return exists $answer->{ok} ? 'accepted' : $answer->{error} =~ /signature/i ? 'refused' : $answer->{error};
}

sub handler
{
	my ($name, %options) = @_;
	$node->handler($name, ["$name.x"], $receiver->url("/$name"), %options);
	return;
}

# --- a generated secret, returned by rotation, rotated twice
handler('hmac', format => 'envelope');
my $first = $node->sql("SELECT outbox.rotate_secret('hmac', '0')");
my $request = deliver('hmac', '{"text": "naïve 😀"}');
is(verdict('standardwebhooks', $request, $first), 'accepted', 'standardwebhooks accepts what was delivered');
is(verdict('svix', $request, $first), 'accepted', 'so does svix');
is(verdict('svix', { %$request, body => $request->{body} . ' ' }, $first), 'refused', 'but not with another body');
is($json->decode($request->{body})->{data}{text}, 'naïve 😀', 'the payload arrives as it was staged');

my $second = $node->sql("SELECT outbox.rotate_secret('hmac')");
$node->wait_while_not(sub { (my @signatures = split / /, deliver('hmac')->{headers}{'webhook-signature'}) == 2 }, 'after a rotation two secrets sign');
$request = deliver('hmac');
is(verdict($_, $request, $first), 'accepted', "$_ still accepts by the old secret") foreach qw(standardwebhooks svix);
is(verdict($_, $request, $second), 'accepted', "$_ accepts by the new one") foreach qw(standardwebhooks svix);

# The old secret ends by itself: nothing is reloaded for that.
$node->sql("UPDATE outbox.handler_secret SET expires_at = clock_timestamp() + interval '1 s' WHERE expires_at IS NOT NULL");
$node->wait_while_not(sub { verdict('svix', deliver('hmac'), $first) eq 'refused' }, 'when its time is over the old secret signs no more');
is(verdict('svix', deliver('hmac'), $second), 'accepted', 'and the new one goes on');

# --- Ed25519
handler('ed25519', secret => 'whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==');
is(verdict('ed25519', deliver('ed25519'), 'whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4='), 'accepted', 'an Ed25519 signature verifies with the public key');
# Of many rotations in a row the latest sign.
my ($oldest, @rest) = split /\n/, $node->sql("SELECT outbox.rotate_secret('hmac') FROM generate_series(1, 30)");
$node->wait_while_not(sub { verdict('svix', deliver('hmac'), $rest[-1]) eq 'accepted' }, 'after thirty rotations the last one signs');
$request = deliver('hmac');
is(scalar(split / /, $request->{headers}{'webhook-signature'}), 10, 'ten sign');
is(verdict('svix', $request, $rest[-10]), 'accepted', 'the latest of the old ones too');
is(verdict('svix', $request, $rest[-11]), 'refused', 'an older one no more');
is($node->sql("SELECT count(*) FROM outbox.handler_secret WHERE handler_id = (SELECT handler_id FROM outbox.handlers WHERE handler = 'hmac')"), 10, 'nor is it kept');
# Rows that were written by hand are not bounded.
$node->sql("INSERT INTO outbox.handler_secret SELECT handler_id, kind, secret, created_at - n * interval '1 s', expires_at FROM outbox.handler_secret, generate_series(1, 30) n
	WHERE handler_id = (SELECT handler_id FROM outbox.handlers WHERE handler = 'hmac')");
$node->sql("SELECT outbox.alter_handler('hmac', headers => '{\"x-reloaded\": \"1\"}')");
$node->wait_while_not(sub { defined +($request = deliver('hmac'))->{headers}{'x-reloaded'} }, 'more secrets by hand');
is(scalar(split / /, $request->{headers}{'webhook-signature'}), 10, 'and still ten sign');

# --- a key pair that outbox makes
handler('paired');
my $made = $node->sql("SELECT outbox.rotate_secret('paired', scheme => 'whsk')");
like($made, qr/^whpk_/, 'a first secret for Ed25519: its public key is told');
is(verdict('ed25519', deliver('paired'), $made), 'accepted', 'and verifies');

my $public = $node->sql("SELECT outbox.rotate_secret('ed25519', '0')");
like($public, qr/^whpk_/, 'rotation returns a public key');
$node->wait_while_not(sub { verdict('ed25519', deliver('ed25519'), $public) eq 'accepted' }, 'and the new key pair signs');

# --- no secret, no signature; credentials are sent and shown to nobody
handler('bearer', authorization => 'Bearer t0ken-of-mine', headers => '{"x-api": "2"}');
$request = deliver('bearer');
ok(!exists $request->{headers}{'webhook-signature'}, 'without a secret there is no signature');
is($request->{headers}{authorization}, 'Bearer t0ken-of-mine', 'credentials are sent');
is($request->{headers}{'x-api'}, '2', 'and the handler\'s own headers');
unlike($node->sql("SELECT h::text FROM outbox.handlers h"), qr/t0ken|whsec_|whsk_/, 'the view of handlers shows no secret');
unlike($node->log_text, qr/t0ken|\Q$first\E|\Q$second\E/, 'nor does the log');

# --- CloudEvents and trace context from stage() to the receiver
my %trace = (traceparent => '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', tracestate => 'a=b');
foreach my $format (qw(cloudevents cloudevents-binary))
{
	handler($format, format => $format, secret => $second, headers => '{"ce-source": "https://shop.example/orders"}');
	$request = deliver($format, '{"total": "12.50"}', key => 'order-7', tenant => 'acme', correlation_id => 'c-1', headers => $json->encode(\%trace));
	is(verdict('svix', $request, $second), 'accepted', "$format: signed");
	my $events = $verifiers->check('cloudevents', $request)->{ok};
	is(scalar @{ $events || [] }, 1, "$format: the SDK reads one event") or next;
	my %got = map { $_ => $events->[0]{$_} } qw(id source type subject partitionkey tenant correlationid traceparent tracestate data);
	is_deeply(
		\%got,
		{
			id => $node->sql("SELECT max(message_id::text) FROM outbox.deliveries WHERE handler = '$format'"), source => 'https://shop.example/orders',
			type => "$format.x", subject => 'order-7', partitionkey => 'order-7', tenant => 'acme', correlationid => 'c-1', %trace, data => { total => '12.50' }
		},
		"$format: with every attribute");
	is($request->{headers}{$_}, $trace{$_}, "$format: $_ is a header as well") foreach sort keys %trace;
}

handler('plain', format => 'cloudevents');
is($json->decode(deliver('plain')->{body})->{source}, '/outbox/postgres', 'otherwise events come from the database');

# --- a database that is not UTF-8: the dispatcher converts outside of any transaction
$node->sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
$node->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', 'latin');
foreach my $format (qw(raw envelope))
{
	$node->handler("latin-$format", ["latin-$format.x"], $receiver->url("/latin-$format"), format => $format, secret => $second, database => 'latin');
	$request = deliver("latin-$format", '{"text": "naïve"}', tenant => encode('UTF-8', 'é'), database => 'latin');
	my $body = $json->decode($request->{body});
	is(($format eq 'raw' ? $body : $body->{data})->{text}, 'naïve', "LATIN1, $format: the body is UTF-8");
	is($request->{headers}{'outbox-tenant'}, '%C3%A9', "LATIN1, $format: so are headers");
	is(verdict('svix', $request, $second), 'accepted', "LATIN1, $format: and the signature is of what was sent");
}

$node->stop;
done_testing();
