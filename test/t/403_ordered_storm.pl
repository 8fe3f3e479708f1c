# Everything at once: producers that serialise on their business row, a
# receiver that fails at random, operators who cancel, requeue, lock, pause
# and alter, settlements that fail, and crashes of the dispatcher, of a backend
# and of the server.  What was tried when, pushed, in batches and pulled, has
# to come out in order, without a gap and never two of a key at a time.
#
# Chance is seeded: STORM_SEED=N in the environment repeats its choices,
# though not the moments in which they fall.
use strict;
use warnings;

use HttpReceiver;
use JSON::PP ();
use List::Util qw(shuffle);
use OrderChecker;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;
use Time::HiRes qw(time usleep);

my $seed = $ENV{STORM_SEED} // int(rand 1_000_000);
note("STORM_SEED=$seed");
srand $seed;
local $SIG{PIPE} = 'IGNORE';

my $keys = 14;
my $producers = 3;
my $transactions = 35;    # of each producer in each round
my $actions = 9;          # of operators in each round
my $consumers = 2;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.rescan_interval = 1h\nmax_connections = 40");
my %quick = (ordered => 'true', max_attempts => 1000, backoff => \"ARRAY['3 ms', '15 ms']::interval[]", jitter => 0, breaker_threshold => 0,
	rules => '{"418": "fail"}');
my $push = $node->handler('push', ['storm.*'], $receiver->url('/push'), %quick, concurrency => 6);
$node->handler('batch', ['storm.*'], $receiver->url('/batch'), %quick, concurrency => 4, batch_size => 5, format => 'envelope', on_dead => 'block');
my $pull = $node->handler('pull', ['storm.*'], undef, ordered => 'true', max_attempts => 1000);

$node->sql(<<"SQL");
CREATE TABLE account (name text PRIMARY KEY, n int NOT NULL DEFAULT 0);
INSERT INTO account SELECT 'key ' || i FROM generate_series(1, $keys) AS i;

-- Each transaction changes an account and stages one or a few messages that say so.
CREATE PROCEDURE produce(seed float8, transactions int) LANGUAGE plpgsql AS \$\$
DECLARE
	chosen text;
	m int;
BEGIN
	PERFORM setseed(seed);
	FOR i IN 1 .. transactions LOOP
		chosen := 'key ' || 1 + floor(random() ^ 2 * $keys);
		FOR j IN 1 .. CASE WHEN random() < 0.15 THEN 4 ELSE 1 END LOOP
			UPDATE account SET n = n + 1 WHERE name = chosen RETURNING n INTO m;
			IF random() < 0.1 THEN
				PERFORM pg_sleep(0.003);
			END IF;
			PERFORM outbox.stage('storm.changed', jsonb_build_object('n', m), key => chosen);
		END LOOP;
		IF random() < 0.1 THEN ROLLBACK; ELSE COMMIT; END IF;
	END LOOP;
END \$\$;

-- What consumers do, each thing written down in the transaction that does it.
CREATE TABLE consumed (at int GENERATED ALWAYS AS IDENTITY, time float8 DEFAULT extract(epoch FROM clock_timestamp()),
	what text, id uuid, attempt int, key text, leased_until timestamptz);
CREATE TABLE consumers_stop ();
CREATE PROCEDURE consume(seed float8) LANGUAGE plpgsql AS \$\$
DECLARE
	claims consumed[];
	c consumed;
	r float8;
BEGIN
	PERFORM setseed(seed);
	WHILE NOT EXISTS (SELECT FROM consumers_stop) LOOP
		WITH claimed AS MATERIALIZED (
			SELECT * FROM outbox.claim('pull', 1 + floor(random() * 4)::int, CASE WHEN random() < 0.2 THEN interval '20 ms' ELSE '2 s' END)
		), noted AS (
			INSERT INTO consumed (what, id, attempt, key, leased_until)
			SELECT 'claim', t.id, t.attempt, t.key, t.leased_until FROM claimed t
			RETURNING *
		)
		SELECT coalesce(array_agg(n::consumed), '{}') INTO claims FROM noted n;
		COMMIT;
		IF cardinality(claims) = 0 THEN
			PERFORM pg_sleep(0.01);
		END IF;
		FOREACH c IN ARRAY claims LOOP
			r := random();
			IF c.leased_until < clock_timestamp() + interval '1 s' AND r < 0.4 THEN
				-- Left alone, until its lease runs out.
				c.what := 'nothing';
			ELSIF r < 0.85 THEN
				CONTINUE WHEN NOT outbox.complete('pull', c.id, c.attempt);
				c.what := 'done';
			ELSIF r < 0.97 THEN
				CONTINUE WHEN NOT outbox.retry('pull', c.id, c.attempt, after => interval '5 ms');
				c.what := 'retry';
			ELSE
				CONTINUE WHEN NOT outbox.fail('pull', c.id, c.attempt);
				c.what := 'done';
			END IF;
			INSERT INTO consumed (what, id, attempt, key) VALUES (c.what, c.id, c.attempt, c.key);
			COMMIT;
		END LOOP;
	END LOOP;
END \$\$;

-- While there is a row, some of the transactions that log a failed attempt fail.
CREATE TABLE fault (share float8);
CREATE FUNCTION no_space() RETURNS trigger LANGUAGE plpgsql AS \$\$
BEGIN
	IF random() < (SELECT max(share) FROM public.fault) THEN
		RAISE EXCEPTION 'no space' USING ERRCODE = 'disk_full';
	END IF;
	RETURN NEW;
END \$\$;
CREATE TRIGGER no_space_at_once BEFORE INSERT ON outbox.attempt FOR EACH ROW WHEN (NEW.handler_id <> $pull) EXECUTE FUNCTION no_space();
CREATE CONSTRAINT TRIGGER no_space AFTER INSERT ON outbox.attempt
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.handler_id <> $pull) EXECUTE FUNCTION no_space();
ALTER TABLE outbox.attempt ENABLE ALWAYS TRIGGER no_space_at_once, ENABLE ALWAYS TRIGGER no_space;
SQL

# How the receiver answers, request by request, and then well.
my @kinds = ((map { { delay => 0.001 * $_ } } 0, 0, 1, 1, 2, 3, 5, 20), { status => 502 }, { status => 500, delay => 0.002 }, { reset => 1 }, { close => 1, delay => 0.002 });
$receiver->on('/push', (map { rand() < 0.02 ? { status => 418 } : $kinds[ rand @kinds ] } 1 .. 3000), {});
# Of a batch some items fail, or the whole of it.  An answer that names an item which is not there is none.
my @failed = map { rand() < 0.1 ? undef : [ grep { rand() < 0.06 } 0 .. 4 ] } 1 .. 2000;
sub batch_answer
{
	my $failed = shift;
	return { status => 502, delay => 0.001 } unless defined $failed;
	return { delay => 0.002 } unless @$failed;
	return { body => JSON::PP::encode_json({ failed => [ map { { index => $_ } } @$failed ] }) };
}
$receiver->on('/batch', (map { batch_answer($_) } @failed), {});

my (%touched, @crashes);
my ($operator, $locker);

sub start_psql
{
	my $sql = shift;
	return IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', $sql ], '<', \undef, '>', \my $out, '2>', \my $err);
}

# One of the deliveries that are in these states, as [handler, id]; nothing if there is none.
sub pick
{
	my $states = shift;
	my $found = $operator->run(
		"SELECT h.name || ' ' || d.message_id FROM (SELECT handler_id, message_id, state FROM outbox.delivery UNION ALL SELECT handler_id, message_id, state FROM outbox.receipt) d JOIN outbox.handler h ON h.id = d.handler_id WHERE d.state IN ($states) ORDER BY random() LIMIT 1");
	return $found =~ /^(\w+) ([0-9a-f-]{36})$/ ? ($1, $2) : ();
}

my @operations = (
	sub {
		my (undef, $id) = pick('0, 1, 2') or return;
		$touched{$id} = 1;
		return $operator->run("SELECT outbox.cancel('$id')");
	},
	sub {
		my (undef, $id) = pick('4, 5') or return;
		$touched{$id} = 1;
		return $operator->run("SELECT outbox.requeue('$id')");
	},
	sub {
		my ($handler, $id) = pick('0, 1, 2') or return;
		$touched{$id} = 1;
		$operator->run("SELECT outbox.cancel('$id', handler => '$handler')");
		return $operator->run("SELECT outbox.requeue('$id')");
	},
	sub {
		my ($handler, $id) = pick('1') or return;
		return $operator->run("SELECT outbox.retry_now('$id')");
	},
	sub {
		return if $locker->busy;
		return $locker->start('BEGIN; SELECT count(*) FROM (SELECT FROM outbox.delivery ORDER BY random() LIMIT 6 FOR UPDATE SKIP LOCKED) AS l; SELECT pg_sleep(0.12); COMMIT');
	},
	sub { return $operator->run('BEGIN; LOCK TABLE outbox.delivery IN SHARE MODE; SELECT pg_sleep(0.03); COMMIT'); },
	sub {
		my $handler = (qw(push batch))[ rand 2 ];
		$operator->run("SELECT outbox.pause_handler('$handler')");
		usleep(rand 30_000);
		return $operator->run("SELECT outbox.resume_handler('$handler')");
	},
	sub { return $operator->run('SELECT outbox.alter_handler(\'push\', concurrency => ' . (1 + int rand 8) . ')'); },
	sub { return $operator->run('SELECT outbox.alter_handler(\'batch\', batch_size => ' . (2 + int rand 4) . ', concurrency => ' . (1 + int rand 4) . ')'); },
	sub {
		$operator->run('INSERT INTO fault VALUES (0.5)');
		usleep(rand 100_000);
		return $operator->run('TRUNCATE fault');
	});

# What ends a round: something dies.  Returns what has to be true afterwards.
my %ends = (
	'kill -9 of the dispatcher' => sub {
		my $pid = $node->dispatcher_pid;
		kill 'KILL', $pid;
		$node->wait_for_dispatcher('postgres', $pid);
	},
	'termination of the dispatcher' => sub {
		my $pid = $node->dispatcher_pid;
		$node->sql("SELECT pg_terminate_backend($pid)");
		$node->wait_for_dispatcher('postgres', $pid);
	},
	'kill -9 of a backend' => sub {
		my $pid = $node->dispatcher_pid;
		kill 'KILL', $operator->backend;
		$node->wait_for_dispatcher('postgres', $pid);
	},
	'kill -9 of the postmaster' => sub {
		$node->kill9;
		$node->start_after_crash;
		$node->wait_for_dispatcher;
	},
	'an immediate restart' => sub {
		$node->stop('immediate');
		$node->start;
		$node->wait_for_dispatcher;
	});

foreach my $end (shuffle sort keys %ends)
{
	($operator, $locker) = map { PsqlSession->new($node) } 1 .. 2;
	my @running = ((map { start_psql('CALL produce(' . rand() . ", $transactions)") } 1 .. $producers),
		(map { start_psql('CALL consume(' . rand() . ')') } 1 .. $consumers));
	my $arrived = $receiver->count('/push');
	foreach (1 .. $actions)
	{
		$operations[ rand @operations ]->();
		usleep(rand 20_000);
	}
	# Not before something has been sent, unless all has been.
	$node->wait_until('SELECT NOT EXISTS (SELECT FROM outbox.delivery WHERE handler_id = ' . $push . ')')
	  if $receiver->count('/push') == $arrived;
	$node->sql('INSERT INTO fault VALUES (0.5)') if rand() < 0.5;
	my $from = time;
	$ends{$end}->();
	push @crashes, [ $from, time ];
	$node->sql('TRUNCATE fault');
	# Whatever it did not end goes on, and ends by itself.
	$node->sql('INSERT INTO consumers_stop DEFAULT VALUES');
	$_->finish foreach @running;
	$node->sql('TRUNCATE consumers_stop');
	$_->close foreach $operator, $locker;
	pass("went on after $end");
}

# Let it all end well; what blocks its key as a dead letter is brought back.
$node->sql("SELECT outbox.resume_handler('$_')") foreach qw(push batch);
my @last = map { start_psql('CALL consume(' . rand() . ')') } 1 .. $consumers;
$node->wait_while_not(
	sub {
		$touched{$_} = 1 foreach split /\n/, $node->sql("SELECT head_id FROM outbox.blocked_keys WHERE why = 'dead' AND outbox.requeue(head_id) > 0");
		return !$node->sql('SELECT count(*) FROM outbox.delivery');
	},
	'nothing is left');
$node->sql('INSERT INTO consumers_stop DEFAULT VALUES');
$_->finish foreach @last;

is($node->sql(<<'SQL'), '', 'ids are in the order in which the business rows changed');
SELECT key, id, n, place FROM (
	SELECT key, id, (payload ->> 'n')::int AS n, row_number() OVER (PARTITION BY key ORDER BY id) AS place FROM outbox.message) AS m
WHERE n <> place
SQL
is($node->sql('SELECT count(*) FROM outbox.message'), $node->sql('SELECT sum(n) FROM account'), 'there are as many messages as changes');
$node->sql("DROP TRIGGER $_ ON outbox.attempt") foreach qw(no_space_at_once no_space);
is($node->sql('SELECT * FROM outbox.verify()'), '', 'nothing contradicts anything');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'cancelled' AND message_id <> ALL ('{" . join(',', keys %touched) . "}')"),
	0, 'only what an operator touched is cancelled');

# Pushed: done with a 200, or dead with a 418, which is skipped.
my $steps = check_history(staged_order($node, 'push'), [ history($receiver, '/push', 200, 418) ], "pushed, with STORM_SEED=$seed", crashes => \@crashes, touched => \%touched);
cmp_ok($steps->{again}, '>', 20, 'attempts failed');

# In batches: an item is done with unless it failed or one of its key before it did.
my (@items, $wide);
my $number = 0;
foreach my $request ($receiver->requests('/batch'))
{
	my @batch = @{ JSON::PP::decode_json($request->{body}) };
	my $failed = $number < @failed ? $failed[$number] : [];
	$number++;
	$failed = undef if defined $failed && grep { $_ > $#batch } @$failed;
	my (%stopped, %before);
	foreach my $place (0 .. $#batch)
	{
		my $id = $batch[$place]{id};
		my $key = $batch[$place]{key};
		next if $stopped{$key};
		my $done = defined $failed && !grep { $_ == $place } @$failed;
		push @items, { %$request, key => $key, id => $id, done => $done, at => $request->{at} + $place / 10 };
		# Those of a key come one after the other; the last one is over when the request is.
		$before{$key}{ended_at} = $before{$key}{at} if $before{$key};
		$wide++ if $before{$key};
		$before{$key} = $items[-1];
		$stopped{$key} = 1 unless $done;
	}
}
check_history(staged_order($node, 'batch'), \@items, "in batches, with STORM_SEED=$seed", crashes => \@crashes, touched => \%touched);
cmp_ok($wide, '>', 5, 'several of a key shared a request');

# Pulled: until it is settled, cancelled or its lease has run out.
my (@claims, %open);
foreach my $row (split /\n/, $node->sql('SELECT at, time, what, id, attempt, key, extract(epoch FROM leased_until) FROM consumed ORDER BY at'))
{
	my ($at, $time, $what, $id, $attempt, $key, $until) = split /\|/, $row;
	if ($what eq 'claim')
	{
		$_->{ended_at} //= $at - 1 foreach grep { $_->{until} <= $time } values %open;
		push @claims, $open{"$id $attempt"} = { at => $at, time => $time, id => $id, key => $key, until => $touched{$id} ? 0 : $until };
		next;
	}
	next if $what eq 'nothing';
	my $claim = delete $open{"$id $attempt"};
	$claim->{ended_at} = $at;
	$claim->{done} = $what eq 'done';
}
$steps = check_history(staged_order($node, 'pull'), \@claims, "pulled, with STORM_SEED=$seed", touched => \%touched);
cmp_ok($steps->{again}, '>', 20, 'some were claimed again');

diag("STORM_SEED=$seed") unless Test::More->builder->is_passing;
$node->stop;
$receiver->stop;
done_testing();
