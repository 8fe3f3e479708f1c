# Producers: what stage() costs beside a plain INSERT of the same payload
# into a table with one index, and in a transaction with a business row
# beside the same transaction with a hand-written outbox table; what a
# dedupe_key adds, what rules of a topic add, and what 10,000 handlers that take
# nothing add.
#
# The time that a disk takes for a flush varies by a factor of two from second
# to second, which is more than what is compared.  So one client mixes both
# transactions at random, and each waits for the flush of its own WAL only.
# Of several clients the flushes are shared: they take turns, in many pairs.
#
# Options: --rows=N (50000), --seconds=N (15; of each), --runs=N
use strict;
use warnings;

use OutboxBench;

my $rows = option('rows', 50_000);
my $seconds = option('seconds', 15);
my $node = bench_cluster('stage', conf => 'outbox.enabled = off');
$node->sql(<<'END');
CREATE TABLE plain (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), payload jsonb NOT NULL);
CREATE TABLE invoice (id bigserial PRIMARY KEY, amount numeric NOT NULL);
CREATE TABLE handmade (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic text NOT NULL, payload jsonb NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now(), sent_at timestamptz);
CREATE INDEX ON handmade (created_at) WHERE sent_at IS NULL;
END
$node->handler('bench', ['bench.*'], 'http://127.0.0.1:9/');

sub empty { $node->sql('TRUNCATE plain, handmade, invoice, outbox.message, outbox.delivery, outbox.receipt'); return; }

# Microseconds per row of a statement run in a loop on the server.
sub per_row
{
	my ($statement) = @_;
	empty();
	return $node->sql(<<"END");
CREATE OR REPLACE FUNCTION bench(n int) RETURNS float8 LANGUAGE plpgsql AS \$\$
DECLARE
	begun timestamptz := clock_timestamp();
	payload jsonb := jsonb_build_object('id', 12345, 'padding', repeat('x', 170));
BEGIN
	FOR i IN 1 .. n LOOP $statement; END LOOP;
	RETURN extract(epoch FROM clock_timestamp() - begun) * 1e6 / n;
END \$\$;
SELECT bench($rows)::numeric(10, 2);
END
}

# What pgbench says of transactions that insert a business row and do what a
# statement says; of several it takes one at random each time.
sub pgbench
{
	my ($clients, $time, @statements) = @_;
	my @files = map { $node->basedir . "/script$_.sql" } 0 .. $#statements;
	foreach my $i (0 .. $#statements)
	{
		open(my $out, '>', $files[$i]) or die $!;
		print $out "BEGIN;\nINSERT INTO invoice (amount) VALUES (42);\n$statements[$i];\nCOMMIT;\n";
		close $out;
	}
	return qx(pgbench -n -M prepared -c $clients -j 2 -T $time @{[map { "-f $_" } @files]} -h ${\ $node->host} -p ${\ $node->port} postgres 2>&1);
}

# Transactions a second of clients that all do the same.
sub tps
{
	my ($clients, $statement) = @_;
	my $text = pgbench($clients, 1, $statement);
	return $text =~ /tps = ([\d.]+)/ ? $1 : die "pgbench said: $text\n";
}

# The average duration of each of two mixed transactions, in ms.
sub durations
{
	my $text = pgbench(1, 2 * $seconds, @_);
	my @durations = $text =~ /^ - latency average = ([\d.]+) ms/mg;
	return @durations == 2 ? @durations : die "pgbench said: $text\n";
}

my (@stage, @plain);
foreach (1 .. runs())
{
	push @plain, per_row('INSERT INTO plain (payload) VALUES (payload)');
	push @stage, per_row("PERFORM outbox.stage('bench.message.sent', payload)");
}
report('stage() with one handler, per call', '%8.1f us, %.2f of a plain INSERT (%.1f us)', median(@stage), ratio(\@stage, \@plain), median(@plain));

report('stage() that no handler takes, per call', '%8.1f us', median(map { per_row("PERFORM outbox.stage('nobody.takes.this', payload)") } 1 .. runs()));
report('stage() with a dedupe_key, per call', '%8.1f us',
	median(map { per_row("PERFORM outbox.stage('bench.message.sent', payload, dedupe_key => gen_random_uuid()::text)") } 1 .. runs()));

# Beside a stage() of the same topic that nobody has registered, just before.
$node->sql(<<'END');
CREATE ROLE checker;
CREATE FUNCTION in_plpgsql(payload jsonb) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$BEGIN RETURN (payload ->> 'id')::int > 0; END$$;
CREATE FUNCTION in_sql(payload jsonb) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$SELECT (payload ->> 'id')::int > 0$$;
ALTER FUNCTION in_plpgsql OWNER TO checker;
ALTER FUNCTION in_sql OWNER TO checker;
END
my $keyed = "PERFORM outbox.stage('bench.message.sent', payload, key => 'k')";
foreach my $rule ([ 'another topic registered', 'other.topic' ], [ 'require and max_payload', 'bench.*', q(require => '{key}', max_payload => 1000) ],
	[ 'a check in PL/pgSQL', 'bench.*', q(check_function => 'in_plpgsql(jsonb)') ], [ 'a check in SQL', 'bench.*', q(check_function => 'in_sql(jsonb)') ])
{
	my ($name, @call) = @$rule;
	my (@with, @without);
	foreach (1 .. runs())
	{
		push @without, per_row($keyed);
		$node->sql("SELECT outbox.create_topic('$call[0]'" . ($call[1] ? ", $call[1]" : '') . ')');
		push @with, per_row($keyed);
		$node->sql("SELECT outbox.drop_topic('$call[0]')");
	}
	report("stage() with $name, per call", '%8.1f us, %.2f of one without', median(@with), ratio(\@with, \@without));
}

my $by_hand = q(INSERT INTO handmade (topic, payload) VALUES ('bench.message.sent', '{"id": 12345}'));
my $by_stage = q(SELECT outbox.stage('bench.message.sent', '{"id": 12345}'));

empty();
my (@outbox, @handmade);
foreach (1 .. runs())
{
	my ($hand, $stage) = durations($by_hand, $by_stage);
	push @handmade, 1000 / $hand;
	push @outbox, 1000 / $stage;
}
report('transaction with stage(), 1 client', '%8d tps, %.2f of a hand-written outbox table (%d)', median(@outbox), ratio(\@outbox, \@handmade), median(@handmade));

empty();
@outbox = @handmade = ();
foreach (1 .. $seconds)
{
	push @handmade, tps(8, $by_hand);
	push @outbox, tps(8, $by_stage);
}
report('transaction with stage(), 8 clients', '%8d tps, %.2f of a hand-written outbox table (%d)', median(@outbox), ratio(\@outbox, \@handmade), median(@handmade));

my @bulk;
foreach (1 .. runs())
{
	my $begun = Time::HiRes::time();
	$node->sql("SELECT count(*) FROM outbox.stage_many('bench.message.sent', ARRAY(SELECT jsonb_build_object('n', g, 'padding', repeat('x', 170)) FROM generate_series(1, 100000) AS g))");
	push @bulk, 100_000 / (Time::HiRes::time() - $begun);
}
report('stage_many() of 100000', '%8d messages/s', median(@bulk));

# Each query is a session of its own, so the first call reads all handlers.
$node->sql(q{SELECT count(outbox.create_handler('many' || g, ARRAY['many.' || g, 'below.' || g || '.*'], 'http://127.0.0.1:9/')) FROM generate_series(1, 10000) AS g});
report('stage() among 10000 more handlers, per call', '%8.1f us, %.1f ms for the first one of a session',
	median(map { per_row("PERFORM outbox.stage('bench.message.sent', payload)") } 1 .. runs()),
	median(map { $node->sql(q{SELECT outbox.stage('bench.message.sent'), clock_timestamp() - statement_timestamp() AS d}) =~ /:([\d.]+)$/ ? $1 * 1000 : die } 1 .. runs()));
$node->stop;
