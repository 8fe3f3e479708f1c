# A receiver that refuses what comes too fast: the lane finds its rate, nothing
# dies of it, and once it is free again so is the lane.
#
# Arguments: how many messages, and how many a second the receiver takes.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my ($messages, $rate) = @ARGV ? @ARGV : (400, 50);
my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main');
$node->wait_for_dispatcher;
my %refusal = (
	plain => { status => 429 },
	busy => { status => 503, body => 'busy' },
	timed => { status => 429, headers => { 'Retry-After' => 1 } },);
foreach my $name (sort keys %refusal)
{
	$receiver->on("/$name", { per_second => $rate, refused => $refusal{$name} });
	# Of ordinary failures not one would be forgiven.
	$node->handler($name, ['flood'], $receiver->url("/$name"), concurrency => 20, max_attempts => 1, backoff_base => '500 ms', breaker_threshold => 0);
}

$node->sql("SELECT count(outbox.stage('flood')) FROM generate_series(1, $messages)");
$node->wait_for("SELECT count(*) FROM outbox.handlers WHERE throttled_to BETWEEN 0.2 AND $rate", 3, 'an operator sees what they are slowed down to');
$node->wait_for("SELECT state || ' ' || count(*) FROM outbox.deliveries GROUP BY state", 'delivered ' . 3 * $messages, 'all is delivered, although each may be tried once only');
foreach my $name (sort keys %refusal)
{
	my @statuses = map { $_->{status} } $receiver->requests("/$name");
	my $refused = grep { $_ != 200 } @statuses;
	# At first a flood meets it.
	my @settled = @statuses[ $rate + 40 .. $#statuses ];
	my $refused_later = grep { $_ != 200 } @settled;
	cmp_ok($refused, '>', 0, "$name: $refused of " . @statuses . ' were refused');
	cmp_ok($refused_later, '<', @settled / 5, "$refused_later of the later " . @settled);
}
is($node->sql("SELECT count(*) FROM outbox.attempts WHERE code IN ('429', '503') AND outcome <> 'retrying'"), 0, 'each refusal was one');
is($node->sql('SELECT max(attempts - budget_from) FROM outbox.receipt WHERE state = 3'), 1, 'and spent no attempt');
my ($last) = reverse $receiver->requests('/plain');
is($last->{headers}{'outbox-attempt'}, $node->sql("SELECT attempts FROM outbox.deliveries WHERE handler = 'plain' AND message_id = '$last->{headers}{'webhook-id'}'"), 'attempts are numbered on');

# Free again: what is staged goes out faster and faster, until nothing is held back.
$receiver->on("/$_", {}) foreach sort keys %refusal;
my $rounds = 0;
until ($node->sql('SELECT count(*) FROM outbox.handlers WHERE throttled_to IS NOT NULL') == 0)
{
	last if ++$rounds > 500;
	$node->sql("SELECT count(outbox.stage('flood')) FROM generate_series(1, 100)");
	$node->wait_until("SELECT NOT EXISTS (SELECT FROM outbox.delivery)");
}
is($node->sql("SELECT string_agg(handler || ' ' || throttled_to, ', ') FROM outbox.handlers WHERE throttled_to IS NOT NULL"), '', 'nothing is held back any more');

# It is kept over a restart, and forgotten when the handler is resumed.
$node->sql("UPDATE outbox.handler_status SET throttled_to = 0.25 WHERE handler_id = (SELECT id FROM outbox.handler WHERE name = 'plain')");
$node->restart;
$receiver->forget;
$node->sql("SELECT count(outbox.stage('flood')) FROM generate_series(1, 5)");
ok($receiver->wait_for_requests(5, '/busy'), 'others go on');
ok($receiver->wait_for_requests(1, '/plain'), 'one of the throttled one goes');
cmp_ok($receiver->count('/plain'), '<', 3, 'and not all of them');
$node->sql("SELECT outbox.pause_handler('plain'); SELECT outbox.resume_handler('plain')");
ok($receiver->wait_for_requests(5, '/plain'), 'resumed, all go');
is($node->sql("SELECT count(*) FROM outbox.handlers WHERE throttled_to IS NOT NULL"), 0, 'nothing is shown any more');
$node->stop;
done_testing();
