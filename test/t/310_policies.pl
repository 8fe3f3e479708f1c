# What receivers say is done: outcomes, rules, Retry-After, 410, the circuit
# breaker, rate limits and blocked networks, with real answers to real
# requests.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('policies');
my $fast = \"ARRAY['20 ms']::interval[]";

sub handler
{
	my ($name, %options) = @_;
	$node->handler($name, ["$name.x"], $receiver->url("/$name"), %options);
	return;
}

# State, attempts, code and status of a handler's deliveries, in stage order.
sub outcomes_of
{
	my $name = shift;
	return "SELECT string_agg(concat_ws(' ', state, attempts, coalesce(code, '-'), http_status), ', ' ORDER BY message_id) "
	  . "FROM outbox.deliveries WHERE handler = '$name'";
}

# Stage one message for a handler that answers like this, and see how it ends.
my $cases = 0;

sub ends
{
	my ($answers, $options, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $handler = 'case' . ++$cases;
	$receiver->on("/$handler", @$answers);
	handler($handler, backoff => $fast, max_attempts => 3, %$options);
	$node->stage("$handler.x");
	$node->wait_for(outcomes_of($handler), $expected, $name);
	return $handler;
}

# --- the receiver's word wins over the status
sub says
{
	my ($status, $outcome) = @_;
	return { status => $status, headers => { 'outbox-outcome' => $outcome } };
}
ends([ says(500, 'ok') ], {}, 'delivered 1 - 500', 'ok on a 500');
ends([ says(200, 'fail; code=bad.total') ], {}, 'dead 1 bad.total 200', 'fail on a 200');
ends([ says(200, 'cancel; code=obsolete') ], {}, 'cancelled 1 obsolete 200', 'cancel on a 200');
ends([ says(200, 'retry; code=not_yet; after=0'), { status => 204 } ], {}, 'delivered 2 - 204', 'retry on a 200');
ends([ says(200, 'fail; code="x"') ], {}, 'delivered 1 - 200', 'what is not understood is passed over');
ends([ says(503, 'retry; after=0') ], {}, 'dead 3 retry 503', 'asking for a retry spends the budget too');

# --- rules
sub rules
{
	return { rules => shift };
}
ends([ { status => 404 } ], rules('{"404": "cancel"}'), 'cancelled 1 404 404', 'a rule for a status');
ends([ { status => 409 } ], rules('{"409": "ok"}'), 'delivered 1 - 409', 'a status that counts as success');
ends([ { status => 422 } ], rules('{"4xx": {"action": "fail"}}'), 'dead 1 422 422', 'a rule for a class');
ends([ { status => 500 } ], rules('{"5xx": {"max_attempts": 5, "on_exhaustion": "cancel"}}'), 'cancelled 5 500 500', 'attempts of its own, cancelled at the end');
ends([ { status => 500 }, { status => 502 }, { status => 500 } ], rules('{"*": {"max_attempts": null}, "500": {"streak": 3}}'), 'dead 5 500 500', 'a streak is counted in a row');
ends([ says(503, 'retry; code=busy; after=0') ], rules('{"busy": {"max_attempts": 2}}'), 'dead 2 busy 503', 'a rule for a receiver\'s code');
ends([ { close => 1 } ], rules('{"connect": "cancel"}'), 'cancelled 1 connect', 'a rule for a failure of the transport');
my $handler = ends([ { hang => 1 } ], { rules => '{"timeout": {"streak": 2}}', timeout => '200 ms' }, 'dead 2 timeout', 'two timeouts in a row');
$receiver->release("/$handler") if $receiver->can('release');

# --- Retry-After: at least so long, for 429 and 503 the whole lane
$receiver->on('/late', { status => 500, headers => { 'Retry-After' => 1 } }, { status => 200 });
handler('late', backoff => $fast);
$node->stage('late.x');
$node->wait_for(outcomes_of('late'), 'delivered 2 - 200', 'retried after Retry-After');
my @requests = $receiver->requests('/late');
cmp_ok($requests[1]{time} - $requests[0]{time}, '>=', 0.99, 'not before the second is over');

$receiver->on('/capped', { status => 500, headers => { 'Retry-After' => 'Fri, 31 Dec 9999 23:59:59 GMT' } }, { status => 200 });
handler('capped', backoff => $fast, retry_after_max => '300 ms');
$node->stage('capped.x');
$node->wait_for(outcomes_of('capped'), 'delivered 2 - 200', 'a date too far away is capped by the handler');

foreach my $status (429, 503)
{
	my $name = "lane$status";
	$receiver->on("/$name", { status => $status, headers => { 'Retry-After' => 1 } }, { status => 200 });
	handler($name, backoff => $fast, concurrency => 1);
	$node->stage("$name.x");
	$receiver->wait_for_requests(1, "/$name");
	$node->wait_for("SELECT attempts > 0 FROM outbox.deliveries WHERE handler = '$name'", 't', "$status: retried later");
	$node->stage("$name.x") foreach 1 .. 3;
	# Another lane goes on meanwhile.
	$node->stage('late.x');
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'late' AND state = 'delivered'", $status == 429 ? 2 : 3, "$status: other handlers do not wait");
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = '$name' AND state = 'delivered'", 4, "$status: all delivered in the end");
	@requests = $receiver->requests("/$name");
	cmp_ok($requests[1]{time} - $requests[0]{time}, '>=', 0.99, "$status: the whole lane waited");
	is($node->sql("SELECT max(attempts) FROM outbox.deliveries WHERE handler = '$name'"), 2, "$status: which cost the others no attempt");
}

# --- 410: the receiver said stop
$receiver->on('/gone', { status => 410 });
handler('gone', backoff => $fast, concurrency => 1);
$node->sql("SELECT outbox.stage('gone.x') FROM generate_series(1, 3)");
$node->wait_for("SELECT paused_by || ': ' || paused_reason FROM outbox.handlers WHERE handler = 'gone'", 'receiver: the receiver answered 410 Gone', '410 pauses the handler');
$node->wait_for("SELECT string_agg(DISTINCT state, ',') FROM outbox.deliveries WHERE handler = 'gone' AND attempts = 0", 'pending', 'what was not sent stays pending');
like($node->sql("SELECT string_agg(concat_ws(' ', state, code), ',' ORDER BY message_id) FROM outbox.deliveries WHERE handler = 'gone'"), qr/^dead 410,pending/, 'what was sent is dead');
$receiver->on('/gone', { status => 200 });
$node->sql("SELECT outbox.resume_handler('gone')");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'gone' AND state IN ('pending', 'retrying')", 0, 'resumed, it delivers');
ends([ { status => 410 }, { status => 200 } ], rules('{"410": "retry"}'), 'delivered 2 - 200', 'a rule for 410 keeps it going');

# --- the circuit breaker
$receiver->on('/broken', { status => 503 });
handler('broken', concurrency => 1, breaker_threshold => 3, breaker_wait => '300 ms', breaker_wait_max => '600 ms', backoff => \"ARRAY['1 hour']::interval[]");
$node->sql("SELECT outbox.stage('broken.x') FROM generate_series(1, 50)");
$node->wait_for("SELECT breaker IN ('open', 'half-open') AND breaker_reason LIKE '% failures in a row, the last one: 503' AND failing_since < clock_timestamp() FROM outbox.handlers WHERE handler = 'broken'", 't', 'three failures open the breaker, which says why');
ok($receiver->wait_for_requests(5, '/broken'), 'it probes');
my $untried = $node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'broken' AND state = 'pending' AND attempts = 0");
@requests = $receiver->requests('/broken');
cmp_ok($untried, '>=', 50 - @requests, 'the others stay pending and spend no attempt');
cmp_ok($requests[3]{time} - $requests[2]{time}, '>=', 0.29, 'the first probe waits');
is(scalar(grep { $requests[$_]{time} - $requests[ $_ - 1 ]{time} < 0.59 } 4 .. $#requests), 0, 'all further ones longer');

# The state survives the dispatcher, and other handlers do not notice.
my $pid = $node->dispatcher_pid;
$node->sql("SELECT pg_terminate_backend($pid)");
$node->wait_for_dispatcher('postgres', $pid);
$node->wait_for("SELECT breaker IN ('open', 'half-open') FROM outbox.handlers WHERE handler = 'broken'", 't', 'a new dispatcher finds it open');
$receiver->on('/broken', { status => 200 });
$node->wait_for("SELECT concat_ws(' ', breaker, breaker_reason, failing_since) FROM outbox.handlers WHERE handler = 'broken'", 'closed', 'one success closes it');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'broken' AND state = 'pending'", 0, 'and everything pending is delivered');

# While it is open nothing dies, however few attempts there are: its probes spend none.
$receiver->on('/down', { status => 500 });
handler('down', concurrency => 1, breaker_threshold => 2, breaker_wait => '20 ms', breaker_wait_max => '20 ms', max_attempts => 3, backoff => $fast,
	rules => '{"500": {"streak": 3}}');
$node->sql("SELECT outbox.stage('down.x') FROM generate_series(1, 3)");
ok($receiver->wait_for_requests(30, '/down'), 'thirty attempts of three messages that have three each');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'down' AND state IN ('pending', 'retrying') AND attempts_of_budget < 3"), 3, 'have not killed one of them');
$receiver->on('/down', { status => 422 });
$node->wait_for("SELECT string_agg(state || ' ' || code, ', ') FROM outbox.deliveries WHERE handler = 'down'", 'dead 422, dead 422, dead 422', 'once the handler answers, the budgets run on');
my %last;
is(scalar(grep { my $r = $_; my $id = $r->{headers}{'webhook-id'}; my $n = $r->{headers}{'outbox-attempt'}; my $bad = $n <= ($last{$id} // 0); $last{$id} = $n; $bad } $receiver->requests('/down')),
	0, 'and attempts are numbered on');

# One message that always fails does not open it, nor do the receiver's own verdicts.
$receiver->on('/healthy', { per_message => [ { status => 200 } ] });
$receiver->on('/healthy', says(500, 'fail; code=bad'));
handler('healthy', concurrency => 1, breaker_threshold => 3, backoff => $fast);
$node->sql("SELECT outbox.stage('healthy.x') FROM generate_series(1, 10)");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'healthy' AND state = 'dead'", 10, 'ten messages refused by the receiver');
is($node->sql("SELECT breaker FROM outbox.handlers WHERE handler = 'healthy'"), 'closed', 'do not open the breaker');

# Failing for long enough pauses it.
$receiver->on('/hopeless', { status => 500 });
handler('hopeless', concurrency => 1, breaker_threshold => 20, breaker_wait => '20 ms', breaker_wait_max => '20 ms', max_attempts => 2, backoff => $fast);
# Less than create_handler() takes: nobody wants to wait for that long here.
$node->sql("UPDATE outbox.handler SET disable_after = '1 s' WHERE name = 'hopeless'");
$node->sql("SELECT outbox.stage('hopeless.x') FROM generate_series(1, 200)");
$node->wait_for("SELECT paused_by || ' ' || (paused_reason LIKE 'failing for % seconds, the last failure: 500') FROM outbox.handlers WHERE handler = 'hopeless'", 'breaker true', 'disable_after pauses a handler that keeps failing');
$receiver->on('/hopeless', { status => 200 });
$node->sql("SELECT outbox.resume_handler('hopeless')");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'hopeless' AND state IN ('pending', 'retrying')", 0, 'resumed, it starts afresh');
is($node->sql("SELECT concat_ws(' ', breaker, paused_at, failing_since) FROM outbox.handlers WHERE handler = 'hopeless'"), 'closed', 'with a closed breaker');

# --- an operator's open transaction holds up nothing but what is written into the row
$receiver->on('/held', { status => 410 });
handler('held', concurrency => 1);
handler('other', concurrency => 1);
my $operator = $node->background_psql('postgres');
$operator->query_safe("BEGIN; UPDATE outbox.handler_status SET paused_reason = NULL");
$node->sql("SELECT outbox.stage('held.x') FROM generate_series(1, 3)");
ok($receiver->wait_for_requests(1, '/held'), 'a 410 whose pause cannot be written');
foreach my $n (1 .. 5)
{
	$node->stage('other.x');
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'other' AND state = 'delivered'", $n, "delivery $n of another handler is settled meanwhile");
}
$operator->query_safe('ROLLBACK; BEGIN; LOCK TABLE outbox.handler_status');
$receiver->on('/other', { status => 410 });
$node->stage('other.x');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'other' AND state = 'dead'", 1, 'nor does a lock on the table hold up settlement');
$operator->query_safe('ROLLBACK');
$operator->quit;
$node->wait_for("SELECT count(*) FROM outbox.handlers WHERE handler IN ('held', 'other') AND paused_by = 'receiver'", 2, 'both pauses are written in the end');
is($receiver->count('/held'), 1, 'and held from the first moment');

# --- rate limit: what counts is how long after staging a request may come at
# the earliest, which no load on the machine makes shorter.
handler('slow', rate_limit => 20, rate_burst => 2, concurrency => 10);
handler('quick', concurrency => 10);
my $started = time;
$node->sql("SELECT outbox.stage('slow.x') FROM generate_series(1, 22)");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'slow' AND state = 'delivered'", 22, 'all delivered under a rate limit');
@requests = $receiver->requests('/slow');
cmp_ok($requests[-1]{time} - $started, '>=', 0.99, '22 requests with a burst of 2 take a second at 20 a second');
is(scalar(grep { $requests[$_]{time} - $started < ($_ - 1) / 20 - 0.01 } 2 .. $#requests), 0, 'and come evenly');
$node->sql("SELECT outbox.alter_handler('slow', rate_limit => 0.001)");
$node->sql("SELECT outbox.stage('slow.x'), outbox.stage('quick.x') FROM generate_series(1, 22)");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'quick' AND state = 'delivered'", 22, 'which slows nobody else');
cmp_ok($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'slow' AND state = 'pending'"), '>=', 18, 'while one is held back');
$node->sql("SELECT outbox.cancel_where(handler => 'slow')");
handler('drops', rate_limit => 0.5, rate_burst => 1);
$started = time;
$node->sql("SELECT outbox.stage('drops.x') FROM generate_series(1, 2)");
ok($receiver->wait_for_requests(2, '/drops'), 'a fractional rate');
@requests = $receiver->requests('/drops');
cmp_ok($requests[1]{time} - $started, '>=', 1.98, 'of one request in two seconds');

# --- blocked networks
handler('inside', max_attempts => 2, backoff => $fast);
$node->stage('inside.x');
$node->wait_for(outcomes_of('inside'), 'delivered 1 - 200', 'nothing is blocked at first');
$node->sql("ALTER SYSTEM SET outbox.blocked_networks = 'private'");
$node->reload;
my $before = $receiver->count('/inside');
$node->stage('inside.x');
$node->wait_for("SELECT concat_ws(' ', state, attempts, code, http_status) FROM outbox.deliveries WHERE handler = 'inside' ORDER BY message_id DESC LIMIT 1",
	'dead 2 blocked', 'private covers loopback, also on a connection that was open before');
is($receiver->count('/inside'), $before, 'and the receiver hears nothing');
$node->sql("ALTER SYSTEM SET outbox.blocked_networks = '10.0.0.0/8, ::/1'");
$node->reload;
$node->stage('inside.x');
$node->wait_for("SELECT concat_ws(' ', state, attempts, code, http_status) FROM outbox.deliveries WHERE handler = 'inside' ORDER BY message_id DESC LIMIT 1",
	'delivered 1 200', 'other networks do not cover it');

$node->stop;
done_testing();
