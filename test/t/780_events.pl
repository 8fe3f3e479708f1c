# What outbox itself has to tell comes as messages to handlers that take topics of
# outbox.*: of each thing, to nobody who did not ask, not round in circles, and not
# too often.
use strict;
use warnings;

use HttpReceiver;
use IO::Socket::INET;
use IPC::Run;
use JSON::PP qw(decode_json);
use OutboxCluster;
use PsqlSession;
use Recipes;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main');
$node->wait_for_dispatcher;
my $soon = \"ARRAY['10 ms']::interval[]";

# The payloads that a path was sent of a topic.
sub events
{
	my ($path, $topic) = @_;
	return map { decode_json($_->{body}) } grep { $_->{headers}{'outbox-topic'} eq "outbox.$topic" } $receiver->requests($path);
}

sub event
{
	my ($path, $topic, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->wait_while_not(sub { scalar events($path, $topic) }, $name);
	my ($first) = events($path, $topic);
	return $first // {};
}

sub told { return $node->sql(q{SELECT coalesce(string_agg(topic || ' ' || n, ', ' ORDER BY topic), 'nothing') FROM (SELECT topic, count(*) AS n FROM outbox.message WHERE topic LIKE 'outbox.%' GROUP BY topic) AS t}); }

sub all_told
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_for('SELECT count(*) FROM outbox.event_queue', 0, $name);
}

# The minute is over for whatever happened until now.
sub end_minute { return $node->sql("UPDATE outbox.event_rate SET began_at = began_at - interval '1 min' WHERE topic <> ''; SELECT outbox_internal.ring_schedules()"); }

# --- while nobody takes any, nothing is written
$receiver->on('/dies', { status => 422, body => 'no such order' });
$node->handler('everything', ['*'], $receiver->url('/everything'));
$node->handler('dies', ['dies'], $receiver->url('/dies'), max_attempts => 1);
$node->stage('dies');
$node->sql("SELECT outbox.pause_handler('everything'), outbox.resume_handler('everything')");
$node->wait_for_states('dead 1, delivered 1');
is($node->sql("SELECT count(*) || ' ' || (SELECT count(*) FROM outbox.message WHERE topic LIKE 'outbox.%') || ' ' || pg_relation_size('outbox.event_queue') FROM outbox.event_queue"),
	'0 0 0', 'without a handler for events there are none, and no row was written');

# --- topics of outbox.* are nobody else's
foreach my $topic (qw(outbox outbox.delivery.dead outbox.x))
{
	like($node->sql_error("SELECT outbox.stage('$topic')"), qr/42939: .*topic "\Q$topic\E" is reserved/, "nobody stages $topic");
}
is($node->sql("SELECT status || ': ' || detail FROM outbox.try_stage('outbox.x')"), 'invalid: topic "outbox.x" is reserved', 'nor tries to');
like($node->sql_error("SELECT outbox.stage_many('outbox.x', '{1}')"), qr/42939/, 'nor many');
like($node->sql_error("SELECT outbox.stage_text('outbox.x', 'x')"), qr/42939/, 'nor a text');
like($node->sql_error("SELECT outbox.create_schedule('s', every => '1 hour', topic => 'outbox.x')"), qr/42939/, 'no schedule does');
like($node->sql_error("SELECT outbox.create_topic('outbox.delivery.*', max_payload => 1)"), qr/42939/, 'and nobody holds them to rules');
$node->sql('CREATE TABLE watched (id int PRIMARY KEY)');
like($node->sql_error("SELECT outbox.watch('watched', prefix => 'outbox')"), qr/42939: .*topic "outbox.created" is reserved/, 'no watched table announces as them');
is($node->sql("SELECT outbox.stage('outboxes.x') IS NOT NULL AND outbox.stage('my.outbox.x') IS NOT NULL"), 't', 'others may contain the word');
$node->wait_for_states('dead 1, delivered 3');

# --- a delivery that dies
$node->handler('chat', ['outbox.*'], $receiver->url('/chat'));
is($node->sql("SELECT string_agg(handler, ',') FROM outbox.handlers_of('outbox.delivery.dead')"), 'chat', 'handlers_of() knows who takes events: not who takes everything');
$node->sql("ALTER SYSTEM SET outbox.max_payload_size = 10; ALTER SYSTEM SET outbox.unknown_topics = error; SELECT pg_reload_conf()");
$node->sql("SELECT outbox.create_topic('*', require => '{key}', max_payload => 2)");
is($node->sql("SELECT array_to_string(handlers, ' ') FROM outbox.topics WHERE topic = '*'"), 'dies everything', 'nor are they among all topics in outbox.topics');
my $id = $node->stage('dies', undef, key => 'k', tenant => 'acme', correlation_id => 'request-1');
my $dead = event('/chat', 'delivery.dead', 'whoever takes events hears of a dead delivery');
is_deeply(
	{ map { $_ => $dead->{$_} } qw(handler messageId topic attempts httpStatus code) },
	{ handler => 'dies', messageId => $id, topic => 'dies', attempts => 1, httpStatus => 422, code => '422' },
	'of which handler and message, after how many attempts, and why');
like($dead->{error}, qr/no such order/, 'with the error text that is kept');
ok($dead->{happenedAt} && $dead->{stagedAt}, 'and when');
my ($request) = grep { $_->{headers}{'outbox-topic'} eq 'outbox.delivery.dead' } $receiver->requests('/chat');
is("$request->{headers}{'outbox-tenant'} $request->{headers}{'outbox-correlation-id'}", 'acme request-1', "it has the message's tenant and correlation id");
is($node->sql("SELECT tenant || ' ' || key || ' ' || correlation_id FROM outbox.message WHERE topic = 'outbox.delivery.dead'"), 'acme dies request-1', 'and the name of its handler as its key');
$node->sql("SELECT outbox.drop_topic('*')");
$node->sql("ALTER SYSTEM RESET ALL; SELECT pg_reload_conf()");
$receiver->forget;

# Without a correlation id of its own it has the message's id; and nobody takes it.
$node->sql("SET outbox.unrouted = dead; SELECT outbox.drop_handler('everything'); SELECT outbox.stage('nobody.takes.it')");
my $unrouted = event('/chat', 'delivery.dead', 'whoever takes events hears of what nobody takes, where that is kept as dead');
is($unrouted->{handler} . ' ' . $unrouted->{code}, '(unrouted) unrouted', 'with its code');
is($node->sql("SELECT correlation_id = payload ->> 'messageId' FROM outbox.message WHERE payload ->> 'code' = 'unrouted'"), 't', 'and correlates with the message');
$receiver->forget;

# A consumer that pulls.
$node->handler('pulled', ['pulled'], undef);
$node->stage('pulled');
$node->sql("BEGIN; SELECT outbox.fail('pulled', c.id, c.attempt, 'broken', 'beyond repair') FROM outbox.claim('pulled') c; ROLLBACK");
is($node->sql('SELECT count(*) FROM outbox.event_queue'), 0, 'what is rolled back has not died');
$node->sql("SELECT outbox.fail('pulled', c.id, c.attempt, 'broken', 'beyond repair') FROM outbox.claim('pulled') c");
my $failed = event('/chat', 'delivery.dead', 'a consumer that fails a delivery');
is(join(' ', @{$failed}{qw(handler code error attempts)}), 'pulled broken beyond repair 1', 'says why');
is(scalar events('/chat', 'delivery.dead'), 1, 'and the one that was rolled back is not told');
$receiver->forget;

# An on_settle function that fails.
$node->sql('CREATE FUNCTION refuse(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION $e$not today$e$; END$$; CREATE ROLE app; ALTER FUNCTION refuse OWNER TO app');
$node->handler('settled', ['settled'], $receiver->url('/settled'), on_settle => 'refuse(outbox.settlement)', max_attempts => 1);
$node->stage('settled');
like(event('/chat', 'delivery.dead', 'an on_settle worker')->{error}, qr/not today/, 'tells of what dies there');
$receiver->forget;

# --- pauses
$node->sql("SELECT outbox.pause_handler('dies', 'maintenance'), outbox.pause_handler('dies', 'again')");
is(join(' ', @{ event('/chat', 'handler.paused', 'an operator pauses a handler') }{qw(handler reason)}), 'dies maintenance', 'and why is told');
$node->sql("SELECT outbox.resume_handler('dies', 'done'), outbox.resume_handler('dies')");
is(join(' ', @{ event('/chat', 'handler.resumed', 'and resumes it') }{qw(handler reason)}), 'dies done', 'which is told, too');
all_told('everything is');
is(scalar events('/chat', 'handler.paused') + events('/chat', 'handler.resumed'), 2, 'once each');
$node->sql("BEGIN; SELECT outbox.pause_handler('dies'); ROLLBACK");
$receiver->on('/gone', { status => 410 });
$node->handler('gone', ['gone'], $receiver->url('/gone'));
$receiver->forget;
$node->stage('gone');
is(join(' ', @{ event('/chat', 'handler.paused', 'a receiver that is gone has its handler paused') }{qw(handler by reason)}), 'gone receiver the receiver answered 410 Gone', 'and by whom is told');
is(scalar events('/chat', 'handler.paused'), 1, 'and nothing that was rolled back');
$receiver->forget;

# --- an outage
$receiver->on('/down', { status => 500 });
$node->handler('down', ['down'], $receiver->url('/down'), breaker_threshold => 2, breaker_wait => '50 ms', breaker_wait_max => '50 ms', backoff => $soon, max_attempts => 1000);
$node->stage('down');
my $failing = event('/chat', 'handler.failing', 'a receiver that is down');
like("$failing->{handler} $failing->{reason}", qr/^down .*500/, 'is told with the reason');
ok($failing->{since}, 'and since when');
my $pid = $node->dispatcher_pid;
$node->sql("SELECT pg_terminate_backend($pid)");
$node->wait_for_dispatcher('postgres', $pid);
$node->wait_for("SELECT breaker <> 'closed' FROM outbox.handlers WHERE handler = 'down'", 't', 'the next dispatcher goes on with it');
$receiver->on('/down', {});
is(event('/chat', 'handler.recovered', 'its end is told')->{handler}, 'down', 'of that handler');
all_told('that is all');
is(scalar events('/chat', 'handler.failing'), 1, 'an outage is told once, whatever probes and dispatchers there are');
$receiver->forget;
$receiver->on('/down', { status => 500 });
$node->sql("SELECT outbox.stage('down')");
event('/chat', 'handler.failing', 'another outage');
$node->sql("SELECT outbox.resume_handler('down')");
event('/chat', 'handler.recovered', 'is over for an operator who gives it a fresh start');
$receiver->on('/down', {});
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'down' AND state <> 'delivered'", 0, 'all of it has arrived');
$receiver->forget;

# --- schedules
$node->sql('CREATE TABLE works (yes boolean); CREATE FUNCTION tick(o outbox.occurrence) RETURNS void LANGUAGE plpgsql AS $$BEGIN IF NOT EXISTS (SELECT FROM public.works) THEN RAISE $e$out of order$e$; END IF; END$$; ALTER FUNCTION tick OWNER TO app; GRANT SELECT ON works TO app');
$node->sql("SELECT outbox.create_schedule('ticks', every => '1 s', function => 'tick(outbox.occurrence)', catch_up => 'all', tenant => 'acme')");
my $tick = event('/chat', 'schedule.failed', 'a schedule that fails');
is("$tick->{schedule} $tick->{error}", 'ticks out of order', 'is told with the error');
$node->wait_for("SELECT attempts > 2 FROM outbox.schedule_status", 't', 'however often it is tried');
is(scalar events('/chat', 'schedule.failed'), 1, 'once for an occurrence');
is($node->sql("SELECT string_agg(DISTINCT tenant, ',') FROM outbox.message WHERE topic = 'outbox.schedule.failed'"), 'acme', 'it is its tenant\'s');
$node->sql("INSERT INTO works VALUES (true); SELECT outbox.resume_schedule('ticks'); UPDATE outbox.schedule_status SET attempts = 1");
is(event('/chat', 'schedule.recovered', 'and its success is told')->{schedule}, 'ticks', 'of that one');
$node->sql("SELECT outbox.drop_schedule('ticks')");
all_told('that is all of schedules');
$receiver->forget;

# --- no circles
# An event that dies makes no event; of a handler of events others hear, not itself.
$node->wait_for('SELECT count(*) FROM outbox.delivery WHERE handler_id <> (SELECT handler_id FROM outbox.handlers WHERE handler = $$gone$$)', 0, 'nothing is outstanding');
$node->sql('DELETE FROM outbox.event_rate WHERE topic <> $$$$; SELECT outbox.alter_handler($$chat$$, max_attempts => 1)');
$node->handler('pager', ['outbox.handler.*', 'mixed'], $receiver->url('/pager'), max_attempts => 1);
$receiver->on('/chat', { status => 422 });
$node->stage('dies');
$node->wait_for("SELECT count(*) FROM outbox.dead_letters WHERE handler = 'chat' AND topic = 'outbox.delivery.dead'", 1, 'an event dies');
all_told('of which nobody is told');
is($node->sql("SELECT count(*) FROM outbox.message WHERE topic = 'outbox.delivery.dead' AND payload ->> 'handler' = 'chat'"), 0, 'there is no event about it');
$receiver->on('/chat', {});
$receiver->forget;
$node->sql("SELECT outbox.pause_handler('pager')");
is(event('/chat', 'handler.paused', 'of a handler of events others hear')->{handler}, 'pager', 'that it is paused');
$node->sql("SELECT outbox.resume_handler('pager')");
event('/chat', 'handler.resumed', 'and resumed');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'pager' AND topic LIKE 'outbox.%'"), 0, 'but not the handler itself');
$receiver->on('/pager', { status => 422 });
$node->sql("SELECT outbox.alter_handler('pager', topics => '{outbox.*,mixed}'); SELECT outbox.stage('mixed')");
$node->wait_until("SELECT count(*) = 1 FROM outbox.message WHERE topic = 'outbox.delivery.dead' AND payload ->> 'handler' = 'pager'");
is($node->sql("SELECT string_agg(d.handler, ',') FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id WHERE d.topic = 'outbox.delivery.dead' AND m.payload ->> 'handler' = 'pager'"), 'chat',
	'nor of what died on it');
$receiver->on('/pager', {});

# --- a bounded rate: 5,000 deaths at once
$node->wait_for("SELECT count(*) FROM outbox.delivery", 0, 'nothing is outstanding any more');
end_minute();
all_told('nothing is to be told');
$node->wait_for("SELECT count(*) FROM outbox.event_rate WHERE topic <> '' AND untold > 0", 0, 'and nothing to be summed up');
$node->sql("DELETE FROM outbox.event_rate WHERE topic <> ''; SELECT outbox.drop_handler('pager')");
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state NOT IN ('delivered', 'dead', 'cancelled')", 0, 'all is quiet');
$receiver->forget;
my $last = $node->sql('SELECT id FROM outbox.message ORDER BY id DESC LIMIT 1');
my $was = $node->sql("SELECT count(*) FROM outbox.message WHERE topic = 'outbox.delivery.dead'");
$node->sql("SELECT count(outbox.stage('dies', tenant => CASE WHEN n % 5 = 0 THEN 'acme' END)) FROM generate_series(1, 5000) n");
$node->wait_for("SELECT count(*) FROM outbox.receipt r WHERE r.state = 4 AND r.message_id > '$last'", 5000, '5,000 deliveries die');
all_told('all of them are known');
is($node->sql("SELECT string_agg(told || ' ' || untold, ', ' ORDER BY tenant) FROM outbox.event_rate WHERE topic <> ''"), '10 3990, 10 990', 'ten of each tenant are told, the others counted');
is($node->sql("SELECT count(*) - $was FROM outbox.message WHERE topic = 'outbox.delivery.dead'"), 20, 'so there are no more messages than that');
end_minute();
$node->wait_while_not(sub { grep({ $_->{summary} } events('/chat', 'delivery.dead')) == 2 }, 'when the minute is over the others are summed up');
is(join(', ', sort map { "$_->{handler} $_->{count}" } grep { $_->{summary} } events('/chat', 'delivery.dead')), 'dies 3990, dies 990', 'by handler and tenant');
is($node->sql("SELECT coalesce(tenant, '-') FROM outbox.message WHERE topic = 'outbox.delivery.dead' AND payload ->> 'count' = '990'"), 'acme', 'each with its tenant');
$node->wait_for("SELECT count(*) FROM outbox.event_rate WHERE topic <> ''", 0, 'and nothing is kept of it');
is(scalar events('/chat', 'delivery.dead'), 22, 'that is all that was sent');

# Many handlers at once share a bound, and what is beyond it has one sum.
$node->sql("INSERT INTO outbox.event_queue (happened_at, topic, handler_id, schedule_id) SELECT clock_timestamp(), 'outbox.schedule.failed', NULL, -n FROM generate_series(2, 2500) n; SELECT outbox_internal.ring_schedules()");
all_told('2,499 schedules fail');
is($node->sql("SELECT sum(told) || ' ' || sum(untold) || ' ' || count(*) FROM outbox.event_rate WHERE topic <> ''"), '1000 1499 1001', '1,000 are told, the others summed up together');
$node->sql("DELETE FROM outbox.event_rate WHERE topic <> ''");

# --- what is erased is not told of
$node->sql('ALTER SYSTEM SET outbox.enabled = off; SELECT pg_reload_conf()');
$node->wait_for("SELECT state FROM outbox.dispatchers WHERE database = 'postgres'", 'disabled', 'nothing is sent');
my $raced = $node->stage('pulled');
$node->sql("SELECT outbox.fail('pulled', c.id, c.attempt) FROM outbox.claim('pulled', 10) c");
my $teller = PsqlSession->new($node);
$teller->run('BEGIN; SELECT outbox_internal.tell_events()');
my $eraser = PsqlSession->new($node);
$eraser->start("SELECT messages FROM outbox.erase_message('$raced')");
$node->wait_until('SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $eraser->backend, 't');
$teller->run('COMMIT');
is($eraser->finish, 2, 'what is told of a message while it is erased is erased with it');
$_->close foreach $teller, $eraser;
my $erased = $node->stage('pulled', undef, tenant => 'erased');
my $kept = $node->stage('pulled');
$node->sql("SELECT outbox.fail('pulled', c.id, c.attempt) FROM outbox.claim('pulled', 10) c");
is($node->sql('SELECT count(*) FROM outbox.event_queue'), 2, 'two wait to be told');
$node->sql("INSERT INTO outbox.event_rate (topic, about, tenant, untold) VALUES ('outbox.delivery.dead', 1, 'erased', 3)");
$node->sql("SELECT outbox.erase_tenant('erased')");
is($node->sql("SELECT count(*) FROM outbox.event_rate WHERE tenant = 'erased'"), 0, 'nor is anything summed up of it');
$node->sql("SELECT outbox.alter_handler('chat', topics => '{no.events}')");
is($node->sql('SELECT string_agg(message_id::text, $$,$$) FROM outbox.event_queue'), $kept, 'of what is erased nobody hears');
foreach my $about ($id, $failed->{messageId})
{
	is($node->sql("SELECT count(*) FROM outbox.message WHERE topic = 'outbox.delivery.dead' AND payload ->> 'messageId' = '$about'"), 1, 'there is an event about a message');
	is($node->sql("SELECT messages FROM outbox.erase_message('$about')"), 2, 'which is erased with it, also where nobody takes events any more');
}
$node->sql("SELECT outbox.alter_handler('chat', topics => '{outbox.*}')");

# --- a crash loses none and tells none twice
$node->kill9;
$node->start_after_crash;
is($node->sql('SELECT count(*) FROM outbox.event_queue'), 1, 'after a crash it waits still');
$node->sql("UPDATE outbox.event_queue SET happened_at = happened_at - interval '23 hours'; SELECT outbox.prune()");
is($node->sql('SELECT count(*) FROM outbox.event_queue'), 1, 'for a day');
$node->sql("CALL outbox.run_schedules()");
is($node->sql("SELECT count(*) FROM outbox.message WHERE topic = 'outbox.delivery.dead' AND payload ->> 'messageId' = '$kept'"), 1, 'run_schedules() tells it by hand');
is($node->sql('SELECT count(*) FROM outbox.event_queue'), 0, 'once');
$node->sql("INSERT INTO outbox.event_queue (happened_at, topic) VALUES (clock_timestamp() - interval '25 hours', 'outbox.x'); SELECT outbox.prune()");
is($node->sql('SELECT count(*) FROM outbox.event_queue'), 0, 'what nobody has come to for a day is removed');
$node->sql('ALTER SYSTEM RESET outbox.enabled; SELECT pg_reload_conf()');
$node->wait_while_not(sub { grep({ ($_->{messageId} // '') eq $kept } events('/chat', 'delivery.dead')) == 1 }, 'and it arrives');

# --- nobody's trouble with events is anybody else's
$node->sql(<<'SQL');
CREATE FUNCTION no_events() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF NEW.topic LIKE 'outbox.%' THEN RAISE 'no events here'; END IF; RETURN NEW; END$$;
CREATE TRIGGER no_events BEFORE INSERT ON outbox.message FOR EACH ROW EXECUTE FUNCTION no_events();
ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER no_events;
SELECT outbox.create_schedule('goes_on', every => '1 s', topic => 'pulled');
SQL
$node->stage('dies');
$node->wait_for("SELECT count(*) > 0 FROM outbox.event_queue", 't', 'an event that cannot be staged waits');
$node->wait_for("SELECT runs > 2 FROM outbox.schedules", 't', 'while schedules go on');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'dies' AND state <> 'dead'"), 0, 'and what died is dead');
$node->wait_for("SELECT count(*) FROM outbox.health('10 ms', '1 day') h, unnest(h.reasons) r WHERE r LIKE 'events (outbox.*) have waited since %'", 1, 'health() says it');
$node->sql("SELECT outbox.drop_schedule('goes_on'); DROP TRIGGER no_events ON outbox.message");
all_told('it is told when that is possible');

# Nor does a settlement wait for who holds the handlers.
$node->handler('goes_on', ['gone.on'], $receiver->url('/goes_on'));
$receiver->on('/dies', { hang => 1 });
$receiver->forget;
my $held = $node->stage('dies');
ok($receiver->wait_for_requests(1, '/dies'), 'a request is out');
my $holder = PsqlSession->new($node);
$holder->run('BEGIN; LOCK TABLE outbox.handler IN ACCESS EXCLUSIVE MODE');
$receiver->release('/dies', { status => 422 }, { status => 422 });
$node->wait_for("SELECT state FROM outbox.receipt WHERE message_id = '$held'", 4, 'its delivery dies while somebody holds the handlers');
$holder->run('ROLLBACK');
$node->wait_while_not(sub { grep({ ($_->{messageId} // '') eq $held } events('/chat', 'delivery.dead')) == 1 }, 'and is told afterwards');

# While somebody holds the queue itself, deaths alone wait.
$holder->run('BEGIN; LOCK TABLE outbox.event_queue IN ACCESS EXCLUSIVE MODE');
$held = $node->stage('dies');
my $other = $node->stage('gone.on');
$node->wait_for("SELECT state FROM outbox.receipt WHERE message_id = '$other'", 3, 'while somebody holds the events, what is delivered is settled');
is($node->sql("SELECT count(*) FROM outbox.delivery WHERE message_id = '$held'"), 1, 'and what has died waits');
$holder->run('ROLLBACK');
$holder->close;
$node->wait_while_not(sub { grep({ ($_->{messageId} // '') eq $held } events('/chat', 'delivery.dead')) == 1 }, 'and is told afterwards');

# --- retention
$node->sql(<<'SQL');
CREATE TABLE kept AS SELECT 1 AS id;
CREATE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF EXISTS (SELECT FROM public.kept) THEN RAISE 'it stays'; END IF; RETURN OLD; END$$;
CREATE TRIGGER kept BEFORE DELETE ON outbox.receipt FOR EACH ROW EXECUTE FUNCTION kept();
ALTER TABLE outbox.receipt ENABLE ALWAYS TRIGGER kept;
SQL
$node->sql("ALTER SYSTEM SET outbox.delivered_retention = 0; ALTER SYSTEM SET outbox.prune_interval = '1 s'; SELECT pg_reload_conf(); UPDATE outbox.retention_status SET next_at = now()");
is(event('/chat', 'retention.failed', 'retention that fails')->{error}, 'it stays', 'is told with the error');
$node->sql('DELETE FROM kept');
event('/chat', 'retention.recovered', 'and so is the round after which it does not');
is(scalar events('/chat', 'retention.failed'), 1, 'once each');
$node->sql('ALTER SYSTEM RESET ALL; SELECT pg_reload_conf(); DROP TRIGGER kept ON outbox.receipt');
$receiver->forget;

# --- the last handler for events goes
$node->sql("SELECT outbox.drop_handler('chat')");
my $after = told();
$node->stage('dies');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'dies' AND state <> 'dead'", 0, 'one more dies');
is($node->sql('SELECT count(*) FROM outbox.event_queue') . ' ' . told(), "0 $after", 'and nobody is to be told');

# --- a chat, by the recipe
SKIP:
{
	skip 'no python3', 5 unless grep { -x "$_/python3" } split /:/, $ENV{PATH};
	my $folder = $node->basedir;
	Recipes->read('doc/recipes/chat.md')->write($folder);
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $script = IPC::Run::start([ 'python3', "$folder/to_chat.py" ], '<', \undef, '>&', \my $said,
		init => sub { @ENV{qw(TOKEN CHAT_URL PORT)} = ('one', $receiver->url('/text'), $port) });
	$node->wait_while_not(sub { IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port) }, 'it listens');
	$receiver->on('/text', { status => 429, headers => { 'retry-after' => '1' } }, {});
	$node->sql("DELETE FROM outbox.event_rate WHERE topic <> ''");
	$node->handler('text', ['outbox.*'], "http://127.0.0.1:$port/", authorization => 'Bearer one');
	$node->sql("SELECT outbox.pause_handler('dies', 'see there')");
	$node->wait_for("SELECT string_agg(state, ',') FROM outbox.deliveries WHERE handler = 'text'", 'delivered', 'the chat has an event');
	is(join("\n", map { decode_json($_->{body})->{text} } $receiver->requests('/text')), join("\n", ('dies was paused by postgres: see there') x 2), 'as a line, again when it was asked to');
	$node->sql("SELECT outbox.resume_handler('dies')");
	$node->stage('dies');
	$node->wait_for("SELECT count(*) || ' ' || count(*) FILTER (WHERE state = 'delivered') FROM outbox.deliveries WHERE handler = 'text'", '3 3', 'others');
	like(join("\n", map { decode_json($_->{body})->{text} } $receiver->requests('/text')), qr/dies goes on/, 'are told, too');
	like(join("\n", map { decode_json($_->{body})->{text} } $receiver->requests('/text')), qr/dies: a delivery of dies is dead after 1 attempts: 422/, 'with what there is');
	$node->sql("SELECT outbox.drop_handler('text')");
	$script->signal('TERM');
	$script->finish;
}

# --- without preload, by hand
my $bare = OutboxCluster->create('bare', preload => 0);
$bare->handler('chat', ['outbox.*'], $receiver->url('/bare'));
$bare->handler('pulled', ['pulled'], undef);
$bare->stage('pulled');
$bare->sql("SELECT outbox.fail('pulled', c.id, c.attempt) FROM outbox.claim('pulled') c; SELECT outbox.pause_handler('pulled')");
$bare->sql('CALL outbox.deliver_now()');
is(join(' ', sort map { $_->{headers}{'outbox-topic'} } $receiver->requests('/bare')), 'outbox.delivery.dead outbox.handler.paused', 'deliver_now() delivers events, too');

$bare->stop;
$node->stop;
done_testing();
