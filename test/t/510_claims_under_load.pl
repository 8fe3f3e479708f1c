# Pull consumers under load: nothing is lost behind the position that claims
# start from, whatever rolls back, commits late, is retried or runs out; and
# of one key never two are out, and they go in order.  No rescan helps: it
# is put off for longer than the test runs.
use strict;
use warnings;

use OutboxCluster;
use POSIX ();
use PsqlSession;
use Test::More;
use Time::HiRes qw(usleep);

my $node = OutboxCluster->create('main', conf => "outbox.rescan_interval = '1 h'\nfsync = off\nautovacuum_naptime = '1 s'\n");
$node->handler('free', ['free'], undef, max_attempts => 1000, jitter => 0);
$node->handler('ordered', ['ordered'], undef, ordered => 'true', max_attempts => 1000, jitter => 0);

$node->sql(<<'END');
CREATE TABLE received (handler text, id uuid, key text, n bigint, nr bigserial);
CREATE UNLOGGED TABLE out_now (key text PRIMARY KEY, id uuid);
CREATE SEQUENCE numbers;

-- Stage one or many, now or soon, in a transaction that is short or not so short.
CREATE PROCEDURE produce(topic text, keys int, serialise boolean DEFAULT true) LANGUAGE plpgsql AS $$
DECLARE
	n int := CASE WHEN random() < 0.1 THEN 40 ELSE 1 + (random() * 3)::int END;
	k text := 'k' || (random() * keys)::int;
BEGIN
	-- As the order of keys is promised to producers that serialise on them.
	IF serialise THEN
		PERFORM pg_advisory_xact_lock(hashtext(k));
	END IF;
	PERFORM outbox.stage(topic, to_jsonb(nextval('numbers')), key => k,
		delay => CASE WHEN random() < 0.1 THEN interval '50 ms' * random() END)
	FROM generate_series(1, n);
	IF random() < 0.2 THEN
		PERFORM pg_sleep(0.03 * random());
	END IF;
	IF random() < 0.1 THEN
		ROLLBACK;
	END IF;
END $$;

-- Claim, commit, then settle in one of many ways, or not at all.
CREATE PROCEDURE consume(handler text, leased interval, careless boolean) LANGUAGE plpgsql AS $$
DECLARE
	c record;
	claimed record;
	dice float8;
BEGIN
	CREATE TEMP TABLE IF NOT EXISTS mine (id uuid, attempt int, key text, payload jsonb);
	-- Or else rolling back a session's first claim takes the table away.
	COMMIT;
	TRUNCATE mine;
	-- A claim within a savepoint that may be rolled back, then one outside.
	BEGIN
		INSERT INTO mine SELECT id, attempt, key, payload FROM outbox.claim(handler, 1 + (random() * 5)::int, leased);
		IF handler = 'ordered' THEN
			INSERT INTO out_now SELECT key, id FROM mine;
		END IF;
		IF random() < 0.1 THEN
			RAISE EXCEPTION USING ERRCODE = 'OB001';
		END IF;
	EXCEPTION WHEN SQLSTATE 'OB001' THEN
		NULL;
	END;
	IF random() < 0.1 THEN
		ROLLBACK;
		RETURN;
	END IF;
	IF random() < 0.8 THEN
		COMMIT;
	END IF;
	FOR c IN SELECT * FROM mine LOOP
		dice := random();
		IF dice < 0.7 THEN
			IF outbox.complete(handler, c.id, c.attempt) THEN
				INSERT INTO received (handler, id, key, n) VALUES (handler, c.id, c.key, (c.payload #>> '{}')::bigint);
				DELETE FROM out_now o WHERE o.id = c.id;
			END IF;
		ELSIF dice < 0.85 OR NOT careless THEN
			IF outbox.retry(handler, c.id, c.attempt, after => CASE WHEN dice < 0.8 THEN interval '0' ELSE interval '20 ms' END) THEN
				DELETE FROM out_now o WHERE o.id = c.id;
			END IF;
		ELSIF dice < 0.9 THEN
			PERFORM outbox.extend(handler, c.id, c.attempt, '100 ms');
		END IF;
		IF random() < 0.3 THEN
			COMMIT;
		ELSIF random() < 0.05 THEN
			ROLLBACK;
			IF handler = 'ordered' THEN
				-- Give up what is still out, as a consumer that ends would have to.
				FOR claimed IN SELECT m.* FROM mine m JOIN out_now o USING (id) LOOP
					IF outbox.retry(handler, claimed.id, claimed.attempt, after => '0') THEN
						DELETE FROM out_now o WHERE o.id = claimed.id;
					END IF;
				END LOOP;
			END IF;
			RETURN;
		END IF;
	END LOOP;
END $$;

-- An operator who looks at rows, touches them, requeues and cancels nothing.
CREATE PROCEDURE meddle() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM FROM outbox.delivery ORDER BY message_id LIMIT 5 FOR UPDATE SKIP LOCKED;
	PERFORM pg_sleep(0.02 * random());
	IF random() < 0.5 THEN
		ROLLBACK;
	END IF;
	PERFORM outbox.retry_now(message_id) FROM outbox.delivery WHERE state = 1 LIMIT 1;
END $$;
END

sub pgbench
{
	my ($seconds, @scripts) = @_;
	my $dir = $node->basedir;
	my @files;
	foreach my $i (0 .. $#scripts)
	{
		my ($weight, $sql) = @{ $scripts[$i] };
		open my $out, '>', "$dir/script$i.sql" or die $!;
		print $out "$sql;\n";
		close $out;
		push @files, '-f', "$dir/script$i.sql\@$weight";
	}
	my ($out, $err) = ('', '');
	my $pgbench = IPC::Run::start([ 'pgbench', '-n', '-c', 12, '-j', 2, '-T', $seconds, @files, 'postgres' ],
		'>', \$out, '2>', \$err, init => sub { @ENV{qw(PGHOST PGPORT PGAPPNAME)} = ($node->host, $node->port, 'load'); });
	$node->wait_until("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'load'", 12);
	my $harasser = harass(split /,/, $node->sql("SELECT string_agg(pid::text, ',') FROM pg_stat_activity WHERE application_name = 'load'"));
	$pgbench->finish;
	kill 'TERM', $harasser;
	waitpid $harasser, 0;
	diag($err) if $pgbench->result(0) || $err =~ /error/i;
	return $pgbench->result(0) == 0 && $err !~ /ERROR/;
}

# Races are lost at moments that are too short to be hit by chance.  Stopping
# sessions wherever they are makes the moments long.
sub harass
{
	my @pids = grep { /^[1-9]\d*$/ } @_;
	die 'nobody to harass' unless @pids;
	my $harasser = fork // die "fork: $!";
	return $harasser if $harasser;
	my $ending = 0;
	$SIG{TERM} = sub { $ending = 1; };
	until ($ending)
	{
		my $pid = $pids[ rand @pids ];
		last unless kill 'STOP', $pid;
		usleep(rand 5000);
		kill 'CONT', $pid;
		usleep(rand 1000);
	}
	POSIX::_exit(0);
}

# Take what is left, and see that it all comes: false if something cannot be found for so long.
sub drain
{
	my $handler = shift;
	$node->sql(<<"END");
DO \$\$
DECLARE
	n int;
	found timestamptz := clock_timestamp();
BEGIN
	LOOP
		WITH c AS MATERIALIZED (SELECT * FROM outbox.claim('$handler', 1000)),
		d AS MATERIALIZED (SELECT *, outbox.complete('$handler', id, attempt) AS done FROM c ORDER BY staged_at, id)
		INSERT INTO received (handler, id, key, n) SELECT '$handler', id, key, (payload #>> '{}')::bigint FROM d WHERE done;
		GET DIAGNOSTICS n = ROW_COUNT;
		COMMIT;
		IF n > 0 THEN
			found := clock_timestamp();
		END IF;
		EXIT WHEN clock_timestamp() - found > '20 s'
			OR NOT EXISTS (SELECT FROM outbox.delivery d JOIN outbox.handler h ON h.id = d.handler_id WHERE h.name = '$handler');
	END LOOP;
END \$\$
END
	return $node->sql("SELECT count(*) = 0 FROM outbox.delivery d JOIN outbox.handler h ON h.id = d.handler_id WHERE h.name = '$handler'") eq 't';
}

ok( pgbench(
		10,
		[ 5, "CALL produce('free', 5)" ],
		[ 8, "CALL consume('free', '300 ms', true)" ],
		[ 1, 'CALL meddle()' ]),
	'producers, careless consumers and an operator side by side');
ok(drain('free'), 'everything is found') or diag($node->sql('SELECT state, count(*), min(due_at), now() FROM outbox.delivery GROUP BY 1'));
is($node->sql("SELECT count(*) = count(DISTINCT id) AND count(*) = (SELECT count(*) FROM outbox.message) FROM received WHERE handler = 'free'"),
	't', 'and every message was completed exactly once');
note($node->sql("SELECT count(*), max(attempts) FROM outbox.deliveries"));

$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
ok( pgbench(
		10,
		[ 5, "CALL produce('ordered', 10)" ],
		[ 8, "CALL consume('ordered', '10 min', false)" ],
		[ 1, 'CALL meddle()' ]),
	'of a key never two are out');
is($node->sql("SELECT count(*) FROM out_now"), $node->sql("SELECT count(*) FROM outbox.delivery WHERE state = 2"), 'what is leased is what consumers have');
$node->sql("SELECT outbox.retry('ordered', message_id, attempts, after => '0') FROM outbox.delivery WHERE state = 2");
ok(drain('ordered'), 'everything is found');
is($node->sql("SELECT count(*) = count(DISTINCT id) AND count(*) = (SELECT count(*) FROM outbox.message) FROM received WHERE handler = 'ordered'"),
	't', 'every message was completed exactly once');
is($node->sql("SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY key ORDER BY nr) AS before FROM received WHERE handler = 'ordered') r WHERE n < before"),
	0, 'and in the order of its key');
note($node->sql("SELECT count(*), max(attempts) FROM outbox.deliveries"));

# Producers that do not serialise on their keys commit smaller ids after larger ones.
$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt, received');
ok( pgbench(
		6,
		[ 6, "CALL produce('ordered', 2, false)" ],
		[ 12, "CALL consume('ordered', '10 min', false)" ]),
	'even when earlier messages commit late, never two of a key are out');
$node->sql("SELECT outbox.retry('ordered', message_id, attempts, after => '0') FROM outbox.delivery WHERE state = 2");
ok(drain('ordered'), 'everything is found');
is($node->sql("SELECT count(*) = count(DISTINCT id) AND count(*) = (SELECT count(*) FROM outbox.message) FROM received WHERE handler = 'ordered'"),
	't', 'every message was completed exactly once');

# What nobody reported is found by the rescan, and leases that have run out for the last time are buried by it.
$node->handler('forgotten', ['forgotten'], undef, max_attempts => 1);
$node->sql("SELECT count(outbox.stage('forgotten')) FROM generate_series(1, 3)");
$node->sql("SELECT count(*) FROM outbox.claim('forgotten', 1, '1 h')");
$node->sql("SELECT count(*) FROM outbox.claim('forgotten', 2, '1 s')");
# Something is claimed, so that the position is beyond what is then put right by hand.
$node->sql("UPDATE outbox.delivery SET state = 0, attempts = 0, due_at = staged_at FROM outbox.message m WHERE m.id = message_id AND state = 2 AND due_at > now() + interval '1 min'");
is($node->sql("SELECT count(*) FROM outbox.claim('forgotten', 10)"), 0, 'a row put right by hand lies behind what has been read');
# Also where nothing is pushed on purpose: consumers go on there.
$node->sql("ALTER SYSTEM SET outbox.enabled = off");
$node->sql("ALTER SYSTEM SET outbox.rescan_interval = '500 ms'");
$node->sql('SELECT pg_reload_conf()');
$node->wait_for('SELECT state FROM outbox.dispatchers', 'disabled', 'nothing is pushed');
$node->wait_for("SELECT count(*) FROM outbox.dead_letters WHERE handler = 'forgotten' AND code = 'lease_expired'", 2, 'exhausted leases are dead without a consumer');
$node->wait_for("SELECT count(*) FROM outbox.claim('forgotten', 10)", 1, 'a row put right by hand is found');
$node->sql("ALTER SYSTEM RESET outbox.enabled");

# More pull handlers than have a place in shared memory at a time: those that
# have lost theirs are read from the beginning.
$node->sql("SELECT outbox.create_handler('many' || n, ARRAY['many.t' || n]) FROM generate_series(1, 300) n");
foreach my $round (1 .. 2)
{
	$node->sql("SELECT outbox.stage('many.t' || n, to_jsonb(m)) FROM generate_series(1, 300) n, generate_series(1, 3) m");
	my $open = PsqlSession->new($node);
	is($open->run("BEGIN; SELECT count(*) FROM generate_series(1, 300) n, LATERAL outbox.claim('many' || n, 1)"), 300, "round $round: 300 handlers, one claim on each");
	is($node->sql("SELECT count(*) FROM generate_series(1, 300) n, LATERAL outbox.claim('many' || n, 10) c WHERE outbox.complete('many' || n, c.id, c.attempt)"),
		600, 'others get the rest');
	$open->run('ROLLBACK');
	$open->close;
	is($node->sql("SELECT count(*) FROM generate_series(1, 300) n, LATERAL outbox.claim('many' || n, 10) c WHERE outbox.complete('many' || n, c.id, c.attempt)"),
		300, 'and what was rolled back, once it is');
}

done_testing();
