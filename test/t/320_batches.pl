# Handlers that take batches: their size, their wait, their bodies, and what
# a receiver may say of single messages.
use strict;
use warnings;

use HttpReceiver;
use Compress::Zlib ();
use Encode qw(encode);
use JSON::PP ();
use OutboxCluster;
use PsqlSession;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('batches');
my $json = JSON::PP->new->utf8->canonical->allow_nonref;
my $fast = \"ARRAY['20 ms']::interval[]";

sub handler
{
	my ($name, %options) = @_;
	$node->handler($name, ["$name.x"], $receiver->url("/$name"), batch_size => 10, concurrency => 1, backoff => $fast, %options);
	return;
}

sub stage
{
	my ($name, $count) = @_;
	return split /\n/, $node->sql("SELECT outbox.stage('$name.x', jsonb_build_object('n', i)) FROM generate_series(1, $count) i ORDER BY i");
}

sub states_of
{
	my $name = shift;
	return "SELECT string_agg(concat_ws(' ', state, attempts, coalesce(code, '-'), http_status), ', ' ORDER BY message_id) FROM outbox.deliveries WHERE handler = '$name'";
}

sub all_delivered
{
	my ($name, $count) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = '$name' AND state = 'delivered'", $count, "$name: $count delivered");
	return;
}

# --- sizes: a burst becomes full batches, in order, each message once
handler('burst', format => 'envelope');
my @ids = stage('burst', 95);
all_delivered('burst', 95);
my @requests = $receiver->requests('/burst');
my @sizes = map { $_->{headers}{'outbox-batch'} } @requests;
cmp_ok(scalar @requests, '<=', 15, 'a burst of 95 takes few requests');
is((grep { $_ > 10 } @sizes), 0, 'none is larger than batch_size');
my @got = map { @{ $json->decode($_->{body}) } } @requests;
is_deeply([ map { $_->{id} } @got ], \@ids, 'every message once, in order');
is_deeply([ map { scalar @{ $json->decode($_->{body}) } } @requests ], \@sizes, 'outbox-batch is the size of the array');
is_deeply([ map { $_->{data}{n} } @got ], [ 1 .. 95 ], 'with its payload');
my %batch_ids = map { $_->{headers}{'webhook-id'} => 1 } @requests;
is(scalar keys %batch_ids, scalar @requests, 'each batch has an id of its own');

# --- a single message is a batch of one
handler('single');
stage('single', 1);
all_delivered('single', 1);
my ($request) = $receiver->requests('/single');
my $alone = $json->decode($request->{body});
is_deeply([ map { [ $_->{type}, $_->{data} ] } @$alone ], [ [ 'single.x', { n => 1 } ] ], 'raw: an array of one envelope');
is($alone->[0]{id}, $node->sql("SELECT message_id FROM outbox.deliveries WHERE handler = 'single'"), 'which says which message it is');
is($request->{headers}{'content-type'}, 'application/json', 'as JSON');

# --- batch_wait: messages that come one by one are gathered
my $session = PsqlSession->new($node);
handler('gathers', batch_wait => '3 s', format => 'envelope');
my $started = time;
$session->run("SELECT outbox.stage('gathers.x', '{}')") foreach 1 .. 5;
all_delivered('gathers', 5);
@requests = $receiver->requests('/gathers');
is(scalar @requests, 1, 'five messages staged one after the other are one request');
cmp_ok($requests[0]{time} - $started, '>=', 2.9, 'sent when the wait of the first was over');
handler('fills', batch_wait => '1 minute');
$started = time;
stage('fills', 10);
all_delivered('fills', 10);
@requests = $receiver->requests('/fills');
is($requests[0]{headers}{'outbox-batch'}, 10, 'a batch that is full');
cmp_ok($requests[0]{time} - $started, '<', 50, 'does not wait');
# One that is larger than what a lane reads ahead at first.
handler('large', batch_size => 60, batch_wait => '1 minute');
$session->run("SELECT count(outbox.stage('large.x', '{}')) FROM generate_series(1, 10)") foreach 1 .. 6;
all_delivered('large', 60);
is((join ',', map { $_->{headers}{'outbox-batch'} } $receiver->requests('/large')), '60', 'sixty that come in parts are gathered too');
# What waits goes by what its handler says now.
stage('fills', 5);
$started = time;
$node->sql("SELECT outbox.alter_handler('fills', batch_wait => '0 s')");
all_delivered('fills', 15);
cmp_ok(($receiver->requests('/fills'))[-1]{time} - $started, '<', 50, 'nor does one whose handler no longer says so');

# --- CloudEvents have a type of their own for batches
handler('events', format => 'cloudevents');
stage('events', 2);
all_delivered('events', 2);
@requests = $receiver->requests('/events');
is($requests[0]{headers}{'content-type'}, 'application/cloudevents-batch+json', 'cloudevents: their type');
is_deeply([ map { $_->{data}{n} } @{ $json->decode($requests[0]{body}) } ], [ 1, 2 ], 'cloudevents: an array');

# --- the whole batch fails
$receiver->on('/fails', { status => 500 }, { status => 200 });
handler('fails', batch_wait => '200 ms', format => 'envelope');
stage('fails', 3);
$node->wait_for(states_of('fails'), join(', ', ('delivered 2 - 200') x 3), 'a 500 fails every message of a batch, which come again');
@requests = $receiver->requests('/fails');
is($requests[0]{headers}{'webhook-id'}, $requests[1]{headers}{'webhook-id'}, 'as the same batch under the same id');
is($requests[-1]{headers}{'outbox-attempt'}, 2, 'as the second attempt');

# --- single messages fail
sub answers
{
	return { status => 200, body => $json->encode(shift), headers => { 'content-type' => 'application/json' } };
}
$receiver->on('/names', answers({ failed => [ { index => 0, action => 'fail', code => 'bad' }, { index => 2, action => 'cancel' }, 4 ] }), { status => 200 });
handler('names', batch_wait => '200 ms', format => 'envelope');
@ids = stage('names', 5);
$node->wait_for(states_of('names'), 'dead 1 bad 200, delivered 1 - 200, cancelled 1 cancelled 200, delivered 1 - 200, delivered 2 - 200', 'an answer names what failed, and how');
@requests = $receiver->requests('/names');
is_deeply([ map { $_->{id} } @{ $json->decode($requests[1]{body}) } ], [ $ids[4] ], 'only what is to be retried comes again');

handler('byid', batch_wait => '200 ms', format => 'envelope', rules => '{"late": {"max_attempts": 1, "on_exhaustion": "cancel"}}');
$node->sql("SELECT outbox.pause_handler('byid')");
@ids = stage('byid', 3);
$receiver->on('/byid', answers({ note => 'two of them', failed => [ $ids[1], { id => uc $ids[2], code => 'late' } ] }), { status => 200 });
$node->sql("SELECT outbox.resume_handler('byid')");
$node->wait_for(states_of('byid'), 'delivered 1 - 200, delivered 2 - 200, cancelled 1 late 200', 'by id, and rules apply to their codes');

$receiver->on('/unreadable', { status => 200, body => '{"failed": [99]}' }, { status => 200 });
handler('unreadable', batch_wait => '200 ms');
stage('unreadable', 2);
$node->wait_for(states_of('unreadable'), 'delivered 2 - 200, delivered 2 - 200', 'an answer that cannot be read retries all');
is($node->sql("SELECT DISTINCT code || ': ' || error FROM outbox.attempts WHERE handler = 'unreadable'"), 'batch_answer: {"failed": [99]}', 'and the log says why');

# Only what can be read counts as success: none of these was meant for a receipt.
my $named = '{"failed": [0]}';
my %unread = (
	bom => { body => "\xef\xbb\xbf$named" },
	wide => { body => encode('UTF-16', $named) },
	prefix => { body => ")]}',\n$named", headers => { 'content-type' => 'application/json' } },
	deep => { body => '{"x": ' . ('[' x 70) . (']' x 70) . ', "failed": [0]}' },
	spoilt => { body => '{oops, "failed": [0]}' },
	cut => { body => '{"fai' },
	blanks => { body => ' ' x 70_000 . $named },
	brotli => { body => "\x0b\x02\x80ab\x03", headers => { 'content-encoding' => 'br', 'content-type' => 'application/json' } });
foreach my $name (sort keys %unread)
{
	$receiver->on("/$name", { status => 200, %{ $unread{$name} } }, { status => 200 });
	handler($name, batch_wait => '200 ms');
	stage($name, 2);
}
foreach my $name (sort keys %unread)
{
	$node->wait_for(states_of($name), 'delivered 2 - 200, delivered 2 - 200', "$name: an answer that cannot be read retries all");
	is($node->sql("SELECT DISTINCT code FROM outbox.attempts WHERE handler = '$name'"), 'batch_answer', "$name: with a code that says so");
}
like($node->sql("SELECT DISTINCT error FROM outbox.attempts WHERE handler = 'brotli'"), qr/\bbr\b/, 'an error in words, where the body is none');

# What can be read is read: a coding that was undone, names that are escaped.
my %read = (
	gzip => { body => Compress::Zlib::memGzip($named), headers => { 'content-encoding' => 'gzip' } },
	escaped => { body => '{"f\u0061iled": [0]}' },
	html => { body => $named, headers => { 'content-type' => 'text/html' } });
foreach my $name (sort keys %read)
{
	$receiver->on("/$name", { status => 200, %{ $read{$name} } }, { status => 200 });
	handler($name, batch_wait => '200 ms');
	stage($name, 2);
}
$node->wait_for(states_of($_), 'delivered 2 - 200, delivered 1 - 200', "$_: an answer that can be read") foreach sort keys %read;

# And what cannot be an answer is none.
my %plain = (page => { body => "<html>\n{}" }, thanks => { body => 'thanks {}' }, empty => { body => '' }, lambda => { body => 'ok', headers => { 'content-type' => 'application/json' } });
foreach my $name (sort keys %plain)
{
	$receiver->on("/$name", { status => 200, %{ $plain{$name} } });
	handler($name, batch_wait => '200 ms');
	stage($name, 2);
}
$node->wait_for(states_of($_), 'delivered 1 - 200, delivered 1 - 200', "$_: no answer of this kind") foreach sort keys %plain;

$receiver->on('/long', { status => 200, body => $json->encode({ failed => [1], padding => 'x' x 20000 }) }, { status => 200 });
handler('long', batch_wait => '200 ms');
stage('long', 2);
$node->wait_for(states_of('long'), 'delivered 1 - 200, delivered 2 - 200', 'an answer longer than what is kept of others is read');

$receiver->on('/says', { status => 200, body => '{"failed": [0]}', headers => { 'outbox-outcome' => 'ok' } });
handler('says');
stage('says', 2);
$node->wait_for(states_of('says'), 'delivered 1 - 200, delivered 1 - 200', 'outbox-outcome speaks for the whole batch and wins');

# --- a batch is one request to limits and breaker
handler('limited', rate_limit => 2, batch_wait => '100 ms');
my $before = time;
stage('limited', 20);
all_delivered('limited', 20);
@requests = $receiver->requests('/limited');
is(scalar @requests, 2, 'twenty messages in two requests');
# Since before the first was sent: when a slow receiver read it says nothing.
cmp_ok($requests[1]{time} - $before, '>=', 0.48, 'at two requests a second');
$receiver->on('/breaks', { status => 503 });
handler('breaks', breaker_threshold => 2, breaker_wait => '1 hour', breaker_wait_max => '1 hour', backoff => \"ARRAY['1 hour']::interval[]");
stage('breaks', 30);
$node->wait_for("SELECT breaker || ' ' || breaker_reason FROM outbox.handlers WHERE handler = 'breaks'", 'open 2 failures in a row, the last one: 503', 'two failed batches are two failures');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'breaks' AND attempts = 0"), 10, 'the third was never sent');

$node->stop;
done_testing();
