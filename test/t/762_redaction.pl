# outbox.redact_function: error texts go through it before they are kept, wherever
# they come from, and what it cannot redact is withheld.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Built from two halves, so that the statements of this test do not have it.
my $card = '4111' . '-2222-secret';
my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.redact_function = 'app.redact'\nlog_min_messages = debug1\nmax_worker_processes = 20");
$node->wait_for_dispatcher;
$node->sql(<<'SQL');
CREATE ROLE app;
CREATE ROLE worker LOGIN;
CREATE SCHEMA app AUTHORIZATION app;
CREATE FUNCTION app.redact(t text) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
	IF t LIKE '%break%' THEN RAISE EXCEPTION 'cannot redact %', t USING ERRCODE = '22P02'; END IF;
	IF t LIKE '%sleep%' THEN PERFORM pg_sleep(60); END IF;
	IF t LIKE '%nothing%' THEN RETURN NULL; END IF;
	IF t LIKE '%who%' THEN RETURN current_user || ' ' || current_setting('search_path'); END IF;
	IF t LIKE '%write%' THEN PERFORM nextval('app.s'); END IF;
	RETURN regexp_replace(t, '\d{4}-\d{4}-\w+', 'xxxx', 'g');
END $$;
ALTER FUNCTION app.redact OWNER TO app;
CREATE SEQUENCE app.s OWNED BY NONE;
ALTER SEQUENCE app.s OWNER TO app;
SQL

# What is kept of a failed attempt, in the delivery, and in the log if that says something else.
sub kept
{
	my ($id, $attempts) = @_;
	$attempts //= 1;
	$node->wait_until("SELECT attempts >= $attempts FROM outbox.deliveries WHERE message_id = '$id'", 't');
	return $node->sql("SELECT coalesce(d.error, 'none') || CASE WHEN a.error IS DISTINCT FROM d.error THEN ' but ' || coalesce(a.error, 'none') ELSE '' END "
		  . "FROM outbox.deliveries d LEFT JOIN outbox.attempts a ON a.message_id = d.message_id AND a.attempt = d.attempts WHERE d.message_id = '$id'");
}

my %failing = (backoff => \"'{1 hour}'");
my $n = 0;
sub answered
{
	my ($body, %options) = @_;
	my $name = 'h' . ++$n;
	$receiver->on("/$name", { status => 500, body => $body });
	$node->handler($name, [$name], $receiver->url("/$name"), %failing, %options);
	return kept($node->stage($name));
}

# --- what receivers answer
is(answered("card $card refused"), 'card xxxx refused', 'an answer is redacted');
is(answered('nothing to see'), 'none', 'of which nothing may be kept');
is(answered("break $card"), 'withheld: could not be redacted, outbox.redact_function failed (22P02)', 'one that cannot be redacted is withheld');
is(answered('who'), 'app pg_catalog, pg_temp', 'the function has the rights of its owner and a search_path of its own');
is(answered('write'), 'withheld: could not be redacted, outbox.redact_function failed (25006)', 'and may not write');
like(answered("sleep $card"), qr/^withheld: could not be redacted(?:, outbox\.redact_function failed \(57014\))?$/, 'it may not take long');
is(answered('x' x 10_000 . $card), 'x' x 2048, 'nor be long');
$node->sql('ALTER SYSTEM SET outbox.max_response_capture = 65536');
$node->sql('SELECT pg_reload_conf()');
$node->wait_while_not(sub { length(answered('x' x 10_000 . $card)) == 4095 }, 'whatever is captured');

# A batch, and many at once.
$receiver->on('/many', { status => 422, body => "card $card" });
$node->handler('many', ['many'], $receiver->url('/many'), batch_size => 20, max_attempts => 1);
$node->sql("SELECT outbox.stage('many', to_jsonb(g)) FROM generate_series(1, 400) g");
$node->wait_for("SELECT string_agg(DISTINCT CASE WHEN error LIKE 'withheld: could not be redacted%' THEN 'card xxxx' ELSE error END, ' ') || ' ' || count(*) FROM outbox.dead_letters WHERE handler = 'many'",
	'card xxxx 400', 'many at once are redacted, or withheld');

# --- what on_settle functions and those of schedules fail with
$node->sql(<<'SQL');
CREATE FUNCTION app.settled(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'card %', (s.payload ->> 'b') || (s.payload ->> 'a'); END $$;
CREATE FUNCTION app.occurred(o outbox.occurrence) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'card %', (o.payload ->> 'b') || (o.payload ->> 'a'); END $$;
ALTER FUNCTION app.settled OWNER TO app;
ALTER FUNCTION app.occurred OWNER TO app;
SQL
$receiver->on('/settled', { status => 200 });
$node->handler('settled', ['settled'], $receiver->url('/settled'), on_settle => 'app.settled(outbox.settlement)', %failing);
is(kept($node->stage('settled', '{"a": "-2222-secret", "b": "4111"}')), 'card xxxx', 'an error of an on_settle function is redacted');
$node->sql(q{SELECT outbox.create_schedule('s', every => '1 s', function => 'app.occurred(outbox.occurrence)', payload => '{"a": "-2222-secret", "b": "4111"}')});
$node->wait_for("SELECT last_error LIKE '%xxxx%' AND last_error NOT LIKE '%4111%' FROM outbox.schedules", 't', 'one of a schedule, too');
$node->sql("SELECT outbox.drop_schedule('s')");

# --- what consumers say
$node->handler('pull', ['pull'], undef, %failing);
$node->sql("SELECT outbox.grant_consumer('pull', 'worker')");
sub said
{
	my ($text, $call) = @_;
	my $id = $node->stage('pull');
	$node->sql(sprintf "SET ROLE worker; SELECT outbox.%s('pull', c.id, c.attempt, error => replace('$text', '#', '4111' || '-2222-secret')) FROM outbox.claim('pull') c", $call);
	return kept($id);
}
is(said("card #", 'fail'), 'card xxxx', 'what a consumer says is redacted');
is(said("card #", 'retry'), 'card xxxx', 'however it says it');
is(said("break #", 'fail'), 'withheld: could not be redacted, outbox.redact_function failed (22P02)', 'or withheld');
is(said("who", 'fail'), 'app pg_catalog, pg_temp', 'with the rights of the owner');
like(said("sleep #", 'fail'), qr/failed \(57014\)$/, 'and in a second at most');
is($node->sql("SELECT last_value || ' ' || is_called FROM app.s"), '1 false', 'nothing was written by it');

# --- nothing raw has been kept anywhere
sub files_with_text
{
	$node->sql('CHECKPOINT');
	return join ' ', grep { -f && index(slurp_file($_), $card) >= 0 } split /\n/, `find @{[ $node->data_dir ]} -type f`;
}
is(files_with_text(), '', 'no file of the server has the text');
ok(index($node->log_text, $card) < 0, 'nor has its log');

# --- what is not fit to be called
my $raw = sub { answered("card $card") };
foreach my $case (
	[ 'ALTER FUNCTION app.redact OWNER TO ' . $node->sql('SELECT session_user'), 'ALTER FUNCTION app.redact OWNER TO app', '42501', 'would run as a superuser' ],
	[ 'ALTER FUNCTION app.redact VOLATILE', 'ALTER FUNCTION app.redact STABLE', '42P13', 'stable or immutable' ],
	[ 'ALTER FUNCTION app.redact RENAME TO gone', 'ALTER FUNCTION app.gone RENAME TO redact', '42883', 'does not exist' ],
	[ 'REVOKE EXECUTE ON FUNCTION app.redact FROM PUBLIC, app', 'GRANT EXECUTE ON FUNCTION app.redact TO app', '42501', 'may not execute' ])
{
	my ($spoil, $mend, $sqlstate, $says) = @$case;
	is($node->sql("SELECT count(*) FROM outbox.verify() WHERE finding LIKE '%redact%'"), 0, 'outbox.verify() finds nothing wrong with it');
	$node->sql($spoil);
	is($raw->(), "withheld: could not be redacted, outbox.redact_function failed ($sqlstate)", "a function that $says: texts are withheld");
	like($node->sql("SELECT string_agg(hint, ' ') FROM outbox.verify() WHERE finding LIKE '%redact%'"), qr/\Q$says\E/, 'and outbox.verify() says so');
	$node->sql($mend);
}
like($node->sql_error("ALTER SYSTEM SET outbox.redact_function = '$_'"), qr/ERROR:  22023: .*\nDETAIL:  A function is named by its schema and its name\.\nHINT:  Write it without its argument/, "\"$_\" is refused")
  foreach 'redact', 'app.redact(text)', 'a.b.c';
like($node->sql_error("SET ROLE worker; SET outbox.redact_function = ''"), qr/ERROR:  42501:/, 'superusers only');

# --- a worker that is killed in the middle takes nothing along but the text
$receiver->on('/killed', { status => 500, body => "sleep $card" });
$node->handler('killed', ['killed'], $receiver->url('/killed'), %failing);
my $id = $node->stage('killed');
$node->wait_until("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND state = 'active'", 1) for 1;
like(kept($id), qr/^withheld: could not be redacted/, 'a text whose worker has gone is withheld');
is(answered("card $card"), 'card xxxx', 'and the next one is redacted');

# --- a dispatcher that ends writes what it has
$receiver->on('/ends', { status => 500, body => "sleep $card" });
$node->handler('ends', ['ends'], $receiver->url('/ends'), %failing);
$id = $node->stage('ends');
$receiver->wait_for_requests(1, '/ends');
my $pid = $node->dispatcher_pid;
$node->sql("SELECT pg_terminate_backend($pid)");
like(kept($id), qr/^withheld: could not be redacted/, 'a dispatcher that ends withholds what it has in hand');
is(scalar(my @sent = $receiver->requests('/ends')), 1, 'which was sent once');
$node->wait_for_dispatcher('postgres', $pid);

# --- a server that crashes has kept nothing, and tries again
$receiver->on('/crash', { status => 500, body => "sleep $card" }, { status => 200 });
$node->handler('crash', ['crash'], $receiver->url('/crash'), %failing);
$id = $node->stage('crash');
$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox on_settle worker' AND query = 'redacting an error text' AND state = 'active'", 1, 'a text is being redacted');
$node->stop('immediate');
$node->start;
$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$id'", 'delivered 1', 'after a crash its message is sent again');
is(files_with_text(), '', 'still no file has any text');
ok(index($node->log_text, $card) < 0, 'nor has the log');

# --- without it
$node->sql("ALTER SYSTEM SET outbox.redact_function = ''");
$node->sql('SELECT pg_reload_conf()');
$node->wait_while_not(sub { answered("card $card") eq "card $card" }, 'a reload ends it');
done_testing();
