# Why something is not sent: every reason is one column of outbox.waiting (and
# of outbox.handlers, where it is the handler's), with until when, and it is
# lifted by what somebody would try who reads that.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.on_settle_timeout = '60s'");
$node->wait_for_dispatcher;
my $hour = \"ARRAY['1 hour']::interval[]";

sub handler
{
	my ($name, %options) = @_;
	return $node->handler($name, ["$name.x"], $receiver->url("/$name"), concurrency => 1, backoff => $hour, jitter => 0, %options);
}

sub stage
{
	my ($name, %options) = @_;
	return $node->stage("$name.x", '{}', %options);
}

# What a message waits for, in how many minutes that ends, what lifts it and what else there is to say.
sub waits
{
	my ($id, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_for(
		"SELECT concat_ws(' | ', waiting_for, round(extract(epoch FROM waiting_until - clock_timestamp()) / 60), lifted_by, detail) FROM outbox.waiting WHERE message_id = '$id'",
		$expected, $name);
}

# The same of a handler, but for the last.
sub handler_waits
{
	my ($handler, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_for(
		"SELECT concat_ws(' | ', waiting_for, round(extract(epoch FROM waiting_until - clock_timestamp()) / 60), lifted_by) FROM outbox.handlers WHERE handler = '$handler'",
		$expected, $name);
}

sub delivered
{
	my ($id, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'delivered', $name);
}

# --- of one delivery
handler('plain');
$receiver->on('/plain', { hang => 1 });
my $id = stage('plain');
$receiver->wait_for_requests(1, '/plain');
waits($id, 'turn | itself: it is sent, or among the next', 'one that is out waits for nothing');
$receiver->on('/plain', { status => 500, body => 'no' });
$receiver->release;
delivered($id, 'the receiver answers in the end');
$id = stage('plain', delay => '2 hours');
waits($id, 'scheduled | 120 | outbox.retry_now()', 'a delay');
is($node->sql("SELECT outbox.retry_now('$id')"), 1, 'which an operator can cut short');
waits($id, 'backoff | 60 | outbox.retry_now() | 500: no', 'a failed attempt');
$receiver->on('/plain', {});
is($node->sql("SELECT outbox.retry_now('$id')"), 1, 'and another one');
delivered($id, 'it is sent at once');
is($node->sql("SELECT outbox.retry_now('$id')"), 0, 'and then it waits for nothing');
is($node->sql('SELECT count(*) FROM outbox.waiting'), 0, 'nothing does');

# --- the receiver asked for time
foreach my $status (429, 503)
{
	my $name = "asks$status";
	handler($name);
	my $refusal = { status => $status, headers => { 'Retry-After' => 3600 } };
	my $lifted_by = 'outbox.retry_now(), outbox.resume_handler(), or another url';
	my %lift = (
		retry_now => sub { return "SELECT outbox.retry_now('$_[0]')" },
		resume => sub { return "SELECT outbox.resume_handler('$name')" },
		url => sub { return "SELECT outbox.alter_handler('$name', url => '" . $receiver->url("/$name") . "')" });
	foreach my $how (sort keys %lift)
	{
		$receiver->on("/$name", $refusal);
		my $refused = stage($name);
		handler_waits($name, "retry_after | 60 | $lifted_by", "$status: Retry-After holds the handler");
		waits($refused, "backoff | 60 | outbox.retry_now() | $status: the receiver answered $status with an empty body", 'the one that was refused waits for itself');
		$id = stage($name);
		waits($id, "retry_after | 60 | $lifted_by", 'another one waits for the handler');
		if ($how eq 'resume')
		{
			my $pid = $node->dispatcher_pid;
			my $before = $receiver->count("/$name");
			$node->sql("SELECT pg_terminate_backend($pid)");
			$node->wait_for_dispatcher('postgres', $pid);
			delivered(stage('plain'), 'a new dispatcher is at work');
			waits($id, "retry_after | 60 | $lifted_by", 'and holds it');
			is($receiver->count("/$name"), $before, 'as the receiver sees');
		}
		$receiver->on("/$name", {});
		$node->sql($lift{$how}->($id));
		delivered($id, "lifted by $how");
		handler_waits($name, '', 'so that nothing is held any more');
		is($node->sql("SELECT outbox.retry_now('$refused')"), 1, 'the first one has to be told by itself');
		delivered($refused, 'and goes');
	}
}

# --- the circuit breaker
my %lift = (
	retry_now => sub { return "SELECT outbox.retry_now('$_[0]')" },
	resume => sub { return "SELECT outbox.resume_handler('$_[1]')" },
	url => sub { return "SELECT outbox.alter_handler('$_[1]', url => '" . $receiver->url("/moved") . "')" });
foreach my $how (sort keys %lift)
{
	my $name = "broken_$how";
	my $where = $how eq 'url' ? '/moved' : "/$name";
	handler($name, breaker_threshold => 2, breaker_wait => '1 hour', breaker_wait_max => '1 hour');
	$receiver->on("/$name", { status => 500 });
	stage($name) foreach 1 .. 2;
	handler_waits($name, 'breaker | 60 | a probe that succeeds, outbox.retry_now(), outbox.resume_handler(), or another url', "$how: an open breaker holds the handler");
	my @ids = map { stage($name) } 1 .. 30;
	waits($ids[29], 'breaker | 60 | a probe that succeeds, outbox.retry_now(), outbox.resume_handler(), or another url | 2 failures in a row, the last one: 500', 'and what is due');
	$receiver->on("/$name", {}) unless $how eq 'url';
	my $before = $receiver->count($where);
	$node->sql($lift{$how}->($ids[29], $name));
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = '$name' AND state = 'delivered'", 30, "lifted by $how");
	handler_waits($name, '', 'the breaker is closed');
	is([ $receiver->requests($where) ]->[$before]{headers}{'webhook-id'}, $ids[29], 'the one in a hurry went first') if $how eq 'retry_now';
}

# A probe that an operator asked for fails like any other, and spends as little.
handler('still', breaker_threshold => 1, breaker_wait => '1 hour', breaker_wait_max => '1 hour', max_attempts => 2);
$receiver->on('/still', { status => 500 });
$id = stage('still');
foreach my $n (1 .. 4)
{
	ok($receiver->wait_for_requests($n, '/still'), "attempt $n");
	$node->wait_for("SELECT attempts || ' ' || state FROM outbox.deliveries WHERE message_id = '$id'", "$n retrying", 'is settled');
	handler_waits('still', 'breaker | 60 | a probe that succeeds, outbox.retry_now(), outbox.resume_handler(), or another url', 'the breaker is open');
	$node->sql("SELECT outbox.retry_now('$id')");
}

# --- a pause, what is slowed down, and a rate
handler('paused');
$node->sql("SELECT outbox.pause_handler('paused', 'for the test')");
$id = stage('paused');
waits($id, 'paused | outbox.resume_handler() | ' . $node->sql('SELECT current_user') . ': for the test', 'a pause');
$node->sql("SELECT outbox.resume_handler('paused')");
delivered($id, 'which resume_handler() ends');

handler('slow', rate_limit => 0.001);
stage('slow');
$receiver->wait_for_requests(1, '/slow');
$id = stage('slow');
waits($id, 'rate_limit | outbox.alter_handler(), option rate_limit | at 0.001 requests a second', 'a limit of the rate');
$node->sql("SELECT outbox.alter_handler('slow', rate_limit => 1000)");
delivered($id, 'which alter_handler() raises');

handler('refuses', backoff => \"ARRAY['20 ms']::interval[]");
$receiver->on('/refuses', { status => 429 });
$id = stage('refuses') foreach 1 .. 3;
$node->wait_for("SELECT lifted_by FROM outbox.waiting WHERE waiting_for = 'throttled' LIMIT 1", 'answers other than 429 and 503, outbox.resume_handler(), or another url', 'a receiver that refuses for load');
$receiver->on('/refuses', {});
$node->wait_for("SELECT count(*) FROM outbox.waiting WHERE handler = 'refuses'", 0, 'until it does not');

# --- order
handler('ordered', ordered => 'true', on_dead => 'block', rules => '{"422": "fail"}');
$receiver->on('/ordered', { status => 500 });
my @ids = map { stage('ordered', key => 'k') } 1 .. 2;
waits($ids[0], 'backoff | 60 | outbox.retry_now() | 500: the receiver answered 500 with an empty body', 'the first of a key');
waits($ids[1], "order | the end of the message before it, see outbox.blocked_keys | message $ids[0]", 'those behind it wait for it');
$receiver->on('/ordered', { status => 422 });
$node->sql("SELECT outbox.retry_now('$ids[0]')");
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$ids[0]'", 'dead', 'it is dead');
waits($ids[1], "order | the end of the message before it, see outbox.blocked_keys | message $ids[0]", 'and still in the way');
$receiver->on('/ordered', {});
$node->sql("SELECT outbox.cancel('$ids[0]')");
delivered($ids[1], 'until it is cancelled');

# --- consumers, and functions
$node->sql("SELECT outbox.create_handler('pulled', ARRAY['pulled.x'])");
$id = stage('pulled');
waits($id, 'consumer | outbox.claim()', 'one that nobody has claimed');
my $newer = $node->stage('pulled.x', '{}', min_version => 2);
waits($newer, 'consumer | outbox.claim() | with version 2 or more', 'one that is for newer consumers');
$node->sql("SELECT outbox.claim('pulled', lease => '10 minutes')");
waits($id, 'lease | 10 | its consumer, or the end of the lease', 'one that a consumer has');
$node->sql("SELECT outbox.complete('pulled', '$id', 1)");
is($node->sql("SELECT count(*) FROM outbox.waiting WHERE message_id = '$id'"), 0, 'and one that is done');

$node->sql(<<'SQL');
CREATE ROLE app;
CREATE SCHEMA app AUTHORIZATION app;
CREATE TABLE app.gate ();
ALTER TABLE app.gate OWNER TO app;
CREATE FUNCTION app.pass_gate(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	LOCK TABLE app.gate IN ACCESS SHARE MODE;
END $$;
ALTER FUNCTION app.pass_gate OWNER TO app;
SQL
handler('gated', on_settle => 'app.pass_gate(outbox.settlement)');
my $gate = $node->background_psql('postgres');
$gate->query_safe('BEGIN; LOCK TABLE app.gate');
$id = stage('gated');
waits($id, 'on_settle | the end of its on_settle function, or outbox.cancel()', 'one whose function waits for a lock');
$gate->query_safe('COMMIT');
$gate->quit;
delivered($id, 'which it gets');

# --- nothing is pushed at all
$node->sql("ALTER SYSTEM SET outbox.enabled = off");
$node->reload;
$id = stage('plain');
waits($id, 'disabled | outbox.enabled = on, and a reload', 'outbox.enabled is off');
handler_waits('plain', 'disabled | outbox.enabled = on, and a reload', 'for every push handler');
handler_waits('pulled', '', 'and no pull handler');
$node->sql("ALTER SYSTEM RESET outbox.enabled");
$node->reload;
delivered($id, 'until it is on');

$node->sql("UPDATE outbox.installation SET database_oid = 1");
$id = stage('plain');
waits($id, 'copy | outbox.adopt(), if this database is to send | this database is a copy of another one: nothing is sent until SELECT outbox.adopt() makes it the sender', 'a copy');
handler_waits('pulled', 'copy | outbox.adopt(), if this database is to send', 'for every handler');
$node->sql('SELECT outbox.adopt()');
delivered($id, 'until it is adopted');

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
$id = stage('plain');
waits($id, "dispatcher | shared_preload_libraries = 'outbox', and a restart | not preloaded: nothing is pushed: add outbox to shared_preload_libraries in postgresql.conf (shared_preload_libraries = 'outbox') and restart the server", 'no dispatcher');
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'");
$node->restart;
delivered($id, 'until there is one');

$node->stop;
done_testing();
