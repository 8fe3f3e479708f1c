# on_settle on ordered handlers: the next message of a key is sent when the
# function's transaction for the one before has committed, and not before.
use strict;
use warnings;

use HttpReceiver;
use JSON::PP ();
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => <<'END');
outbox.rescan_interval = 1h
outbox.on_settle_timeout = 5min
END
$node->sql(<<'SQL');
CREATE ROLE app;
CREATE SCHEMA app AUTHORIZATION app;
GRANT EXECUTE ON FUNCTION outbox.create_handler TO app;
SET ROLE app;
CREATE TABLE app.done (handler text, key text, n int, attempt int, at timestamptz DEFAULT clock_timestamp(), seq serial);
CREATE TABLE app.gate (n int);
-- Fails the first attempt of every fifth message, and all attempts of message 13.
CREATE FUNCTION app.note(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	n int := (s.payload ->> 'n')::int;
BEGIN
	IF s.attempt = 1 AND n % 5 = 0 OR n = 13 THEN
		RAISE EXCEPTION 'not yet';
	END IF;
	INSERT INTO app.done (handler, key, n, attempt) VALUES (s.handler, s.key, n, s.attempt);
END $$;
CREATE FUNCTION app.pass_gate(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	LOCK TABLE app.gate IN ROW EXCLUSIVE MODE;
	INSERT INTO app.done (handler, key, n, attempt) VALUES (s.handler, s.key, (s.payload ->> 'n')::int, s.attempt);
END $$;
SQL

sub handler
{
	my ($name, $function, %options) = @_;
	my $arguments = join '', map { ", $_ => " . $node->quote($options{$_}) } sort keys %options;
	return $node->sql("SET ROLE app; SELECT outbox.create_handler('$name', '{t.$name}', '" . $receiver->url("/$name")
		  . "', on_settle => 'app.$function(outbox.settlement)', ordered => true, backoff => '{30ms}', jitter => 0$arguments)");
}

# The messages of a path as key => [n, ...], as they arrived; batches taken apart.
sub arrivals
{
	my $path = shift;
	my %arrived;
	foreach my $request ($receiver->requests($path))
	{
		my $body = JSON::PP::decode_json($request->{body});
		push @{ $arrived{ $_->{k} } }, { n => $_->{n}, time => $request->{time} } foreach ref $body eq 'ARRAY' ? map { $_->{data} } @$body : $body;
	}
	return \%arrived;
}

# Of each key, a message arrives only when those before it are done with.
sub check_order
{
	my ($name, $path, $handler) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $arrived = arrivals($path);
	my %done;
	foreach (split /\n/, $node->sql("SELECT key, n, extract(epoch FROM at) FROM app.done WHERE handler = '$handler'"))
	{
		my ($key, $n, $at) = split /\|/;
		$done{$key}{$n} = $at;
	}
	my $wrong = 0;
	my $early = 0;
	foreach my $key (grep { $_ ne 'none' } keys %$arrived)
	{
		my $last = 0;
		foreach my $request (@{ $arrived->{$key} })
		{
			$wrong++ if $request->{n} < $last || $request->{n} > $last + 1;
			my $before = $done{$key}{ $request->{n} - 1 };
			$early++ if defined $before && $request->{time} < $before;
			$last = $request->{n};
		}
	}
	is($wrong, 0, "$name: messages of a key arrive in order, again only while they fail");
	is($early, 0, "$name: and after the function of the one before");
	return;
}

foreach my $case ([ plain => {} ], [ batched => { batch_size => 10 } ], [ many => { concurrency => 50 } ])
{
	my ($name, $options) = @$case;
	handler($name, 'note', max_attempts => 3, %$options);
	$node->sql("SELECT count(outbox.stage('t.$name', jsonb_build_object('k', 'k' || k, 'n', n), key => 'k' || k)) FROM generate_series(1, 20) n, generate_series(1, 5) k");
	$node->wait_for("SELECT string_agg(state || ' ' || n, ', ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM outbox.deliveries WHERE handler = '$name' GROUP BY 1) x",
		'dead 5, delivered 95', "$name: all are settled, those whose function always fails are dead");
	is($node->sql("SELECT string_agg(DISTINCT attempts::text, ',' ORDER BY attempts::text) FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id WHERE handler = '$name' AND (m.payload ->> 'n')::int % 5 = 0"), '2', "$name: each fifth at the second attempt");
	is($node->sql("SELECT count(*) FROM (SELECT n < lag(n) OVER (PARTITION BY key ORDER BY seq) AS back FROM app.done WHERE handler = '$name') x WHERE back"), 0, "$name: functions run in order");
	check_order($name, "/$name", $name);
}

# A dead one that blocks its key.
handler('strict', 'note', max_attempts => 2, on_dead => 'block');
$node->sql("SELECT count(outbox.stage('t.strict', jsonb_build_object('k', 'a', 'n', n), key => 'a')) FROM generate_series(12, 15) n");
$node->wait_for("SELECT string_agg(state || ' ' || attempts, ', ' ORDER BY message_id) FROM outbox.deliveries WHERE handler = 'strict'",
	'delivered 1, dead 2, pending 0, pending 0', 'on_dead => block: a function that always fails blocks its key');
$node->sql("SELECT outbox.cancel(message_id) FROM outbox.deliveries WHERE handler = 'strict' AND state = 'dead'");
$node->wait_for("SELECT string_agg(state || ' ' || attempts, ', ' ORDER BY message_id) FROM outbox.deliveries WHERE handler = 'strict'",
	'delivered 1, cancelled 2, delivered 1, delivered 2', 'until an operator cancels it');

# While a function runs its key waits; keys it does not hold go on, and so do messages without one.
handler('gated', 'pass_gate');
my $gate = $node->background_psql('postgres');
$gate->query_safe('BEGIN; LOCK TABLE app.gate');
$node->sql("SELECT count(outbox.stage('t.gated', jsonb_build_object('k', 'k' || k, 'n', n), key => 'k' || k)) FROM generate_series(1, 3) n, generate_series(1, 4) k");
$node->sql("SELECT count(outbox.stage('t.gated', jsonb_build_object('k', 'none', 'n', n))) FROM generate_series(1, 3) n");
$node->wait_for('SELECT count(*) FROM outbox.on_settle_queue', 7, 'the first of each key is sent, and all without a key');
is($receiver->count('/gated'), 7, 'no more than that');

# Cancelling one that is handed over lets its key go on; a restart forgets nothing.
my ($id, $key) = split /\|/, $node->sql("SELECT k.message_id, m.key FROM outbox.on_settle_queue k JOIN outbox.message m ON m.id = k.message_id WHERE m.key IS NOT NULL ORDER BY k.id DESC LIMIT 1");
$node->sql("SELECT outbox.cancel('$id')");
$node->wait_for("SELECT count(*) FROM outbox.on_settle_queue k JOIN outbox.message m ON m.id = k.message_id WHERE m.key = '$key' AND m.payload ->> 'n' = '2'", 1, 'a cancelled one lets its key go on');
my $dispatcher = $node->dispatcher_pid;
$node->sql("SELECT pg_terminate_backend($dispatcher)");
$node->wait_for_dispatcher('postgres', $dispatcher);
$id = $node->stage('t.gated', '{"k": "z", "n": 1}', key => 'z');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'leased', 'a new dispatcher sends');
is($receiver->count('/gated'), 9, 'nothing that is handed over, nothing behind it');
$gate->query_safe('COMMIT');
$gate->quit;
$node->wait_for("SELECT string_agg(state || ' ' || n, ', ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM outbox.deliveries WHERE handler = 'gated' GROUP BY 1) x",
	'cancelled 1, delivered 15', 'then all go on');
check_order('gated', '/gated', 'gated');
is($receiver->count('/gated'), 16, 'each was sent once');
$node->wait_for('SELECT count(*) FROM outbox.on_settle_queue', 0, 'no hand-over is left');
$node->stop;
unlike($node->log_text, qr/PANIC|TRAP|ERROR/, 'nothing untoward in the log');
done_testing();
