# Ordered handlers that take batches: several messages of a key share a
# request in order, never two requests; the item that fails stops its key.
use strict;
use warnings;

use HttpReceiver;
use JSON::PP ();
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => 'outbox.rescan_interval = 1h');

# What arrived on a path: a list of requests, each a list of [key, n].
sub batches
{
	my $path = shift;
	return map {
		[ map { [ $_->{data}{k}, $_->{data}{n} ] } @{ JSON::PP::decode_json($_->{body}) } ]
	} $receiver->requests($path);
}

# The same as text: requests by bars, items as key and number.
sub batches_text
{
	return join ' | ', map { join ' ', map { "$_->[0]$_->[1]" } @$_ } batches(@_);
}

# Stage messages 1 to n of some keys, round the keys, in one transaction.
sub stage_keys
{
	my ($topic, $n, @keys) = @_;
	my $list = join ', ', map { "'$_'" } @keys;
	$node->sql("SELECT count(outbox.stage('$topic', jsonb_build_object('k', k, 'n', n), key => k)) FROM generate_series(1, $n) AS n, unnest(ARRAY[$list]) AS k");
	return;
}

sub wait_for_handler
{
	my ($handler, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_for("SELECT string_agg(state || ' ' || n, ', ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM outbox.deliveries WHERE handler = '$handler' GROUP BY state) AS s",
		$expected, $name // "$handler: $expected");
}

sub handler
{
	my ($name, %options) = @_;
	$node->handler($name, ["$name.*"], $receiver->url("/$name"), ordered => 'true', backoff => \"ARRAY['20 ms']::interval[]", jitter => 0,
		breaker_threshold => 0, %options);
	return;
}

# --- One key fills batches, one after the other.
handler('one', batch_size => 10, concurrency => 4);
$receiver->on('/one', { delay => 0.005 });
stage_keys('one.x', 200, 'a');
wait_for_handler('one', 'delivered 200');
is(join(' ', map { map { $_->[1] } @$_ } batches('/one')), join(' ', 1 .. 200), 'one key: in order across batches');
is($receiver->most_in_flight('/one'), 1, 'one batch at a time');
cmp_ok($receiver->count('/one'), '<', 40, 'in full batches (' . $receiver->count('/one') . ' of up to 10 for 200)');
cmp_ok(scalar(grep { @$_ > 10 } batches('/one')), '==', 0, 'none too big');

# --- Many keys and a receiver that fails items at random.  An item counts if
# the receiver did not fail it nor one of its key before it in the request.
handler('mixed', batch_size => 7, concurrency => 3, max_attempts => 100);
srand 5;
my @failed = map { [ grep { rand() < 0.12 } 0 .. 6 ] } 1 .. 400;
$failed[3] = undef;    # the whole request
$receiver->on('/mixed', (map { $_ ? { delay => 0.002, body => JSON::PP::encode_json({ failed => [ map { { index => $_ } } @$_ ] }) } : { status => 500 } } @failed), { delay => 0.002 });
stage_keys('mixed.x', 60, qw(a b c d e));
wait_for_handler('mixed', 'delivered 300');
my %done;
my ($wrong, $unsorted, $stopped) = (0, 0, 0);
my $number = 0;
foreach my $batch (batches('/mixed'))
{
	my $failed = $number < @failed ? $failed[$number] : [];
	$number++;
	# An answer that names an item which is not there is no answer.
	$failed = undef if defined $failed && grep { $_ > $#$batch } @$failed;
	my (%bad, %last);
	foreach my $place (0 .. $#$batch)
	{
		my ($key, $n) = @{ $batch->[$place] };
		$unsorted++ if defined $last{$key} && $n != $last{$key} + 1;
		$last{$key} = $n;
		if (!defined $failed || grep { $_ == $place } @$failed) { $bad{$key} = 1; }
		elsif ($bad{$key}) { $stopped++; }
		elsif ($n == ($done{$key} // 0) + 1) { $done{$key} = $n; }
		else { $wrong++; }
	}
}
is($wrong, 0, 'what counts is in order, each message once');
is($unsorted, 0, 'in a request those of a key follow each other');
is(join(' ', map { $done{$_} } sort keys %done), '60 60 60 60 60', 'none is missing');
cmp_ok($stopped, '>', 5, "and items behind a failed one of their key were sent again ($stopped)");
is($node->sql("SELECT count(*) FROM outbox.attempts WHERE handler = 'mixed' AND outcome = 'delivered'"), 0, 'attempts that count as not tried are not logged');

# --- A failed request: the head is tried again alone, then the others follow.
handler('whole', batch_size => 5);
$receiver->on('/whole', { hang => 1 });
stage_keys('whole.x', 4, 'a');
$receiver->wait_for_requests(1, '/whole');
$receiver->release('/whole', { status => 200 }, { status => 500 }, { status => 500 }, { status => 200 });
wait_for_handler('whole', 'delivered 4');
is(batches_text('/whole'), 'a1 | a2 a3 a4 | a2 | a2 | a3 a4', 'a head that failed goes alone until it is done with');
is($node->sql("SELECT string_agg(attempts::text, ' ' ORDER BY message_id) FROM outbox.deliveries WHERE handler = 'whole'"), '1 3 1 1', 'and those behind it spend no attempt on it');

# --- An item that is dead or cancelled is done with, and does not stop its key...
handler('skips', batch_size => 5);
$receiver->on('/skips', { status => 200 }, { body => '{"failed": [{"index": 0, "action": "fail"}, {"index": 2, "action": "cancel"}]}' }, { status => 200 });
stage_keys('skips.x', 5, 'a');
wait_for_handler('skips', 'cancelled 1, dead 1, delivered 3');
is(batches_text('/skips'), 'a1 | a2 a3 a4 a5', 'a dead item does not stop its key where dead letters are skipped');

# --- ... unless the handler blocks on dead letters.
handler('blocks', batch_size => 5, on_dead => 'block');
$receiver->on('/blocks', { status => 200 }, { body => '{"failed": [{"index": 1, "action": "fail", "code": "bad"}]}' }, { status => 200 });
stage_keys('blocks.x', 5, 'a');
wait_for_handler('blocks', 'dead 1, delivered 2, pending 2');
is($node->sql('SELECT handler, key, why, waiting, head_code FROM outbox.blocked_keys'), 'blocks|a|dead|2|bad', 'its key is blocked');
is(batches_text('/blocks'), 'a1 | a2 a3 a4 a5', 'from there on');
$node->sql("SELECT outbox.requeue(head_id) FROM outbox.blocked_keys");
wait_for_handler('blocks', 'delivered 5');
like(batches_text('/blocks'), qr/^a1 \| a2 a3 a4 a5 \| a3 \| a4 a5$/, 'requeued, it goes first, and the others follow') or diag(batches_text('/blocks'));

# --- A crash in the middle of batches.
handler('crash', batch_size => 6, concurrency => 4);
$receiver->on('/crash', { delay => 0.004 });
stage_keys('crash.x', 150, qw(a b c d));
$receiver->wait_for_requests(15, '/crash');
my $pid = $node->dispatcher_pid;
kill 'KILL', $pid;
$node->wait_for_dispatcher('postgres', $pid);
wait_for_handler('crash', 'delivered 600');
my %furthest;
$wrong = 0;
my %before;
foreach my $item (map { @$_ } batches('/crash'))
{
	my ($key, $n) = @$item;
	$wrong++ if $n > ($furthest{$key} // 0) + 1 || ($n != ($before{$key} // 0) + 1 && $n > ($before{$key} // 0));
	$before{$key} = $n;
	$furthest{$key} = $n if $n > ($furthest{$key} // 0);
}
is($wrong, 0, 'a crash in the middle: first arrivals in order, and what comes again as well');
is(join(' ', map { $furthest{$_} } sort keys %furthest), '150 150 150 150', 'no gap');

$node->stop;
$receiver->stop;
done_testing();
