# Producers: what stage() costs beside a plain INSERT of the same payload
# into a table with one index, and in a transaction with a business row
# beside the same transaction with a hand-written outbox table; what a
# dedupe_key adds, and what 10,000 handlers that take nothing add.
#
# Options: --rows=N (50000), --seconds=N (5), --runs=N
use strict;
use warnings;

use OutboxBench;

my $rows = option('rows', 50_000);
my $seconds = option('seconds', 5);
my $node = bench_cluster('stage', conf => 'outbox.enabled = off');
$node->sql(<<'END');
CREATE TABLE plain (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), payload jsonb NOT NULL);
CREATE TABLE invoice (id bigserial PRIMARY KEY, amount numeric NOT NULL);
CREATE TABLE handmade (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic text NOT NULL, payload jsonb NOT NULL,
	created_at timestamptz NOT NULL DEFAULT now(), sent_at timestamptz);
CREATE INDEX ON handmade (created_at) WHERE sent_at IS NULL;
END
$node->handler('bench', ['bench.*'], 'http://127.0.0.1:9/');

# Microseconds per row of a statement run in a loop on the server.
sub per_row
{
	my ($statement) = @_;
	$node->sql('TRUNCATE plain, handmade, invoice');
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

# Transactions a second of a pgbench script.
sub tps
{
	my ($script, $clients) = @_;
	my $file = $node->basedir . '/script.sql';
	open(my $out, '>', $file) or die $!;
	print $out $script;
	close $out;
	$node->sql('TRUNCATE plain, handmade, invoice');
	my $text = qx(pgbench -n -M prepared -c $clients -j 2 -T $seconds -f $file -h ${\ $node->host} -p ${\ $node->port} postgres 2>&1);
	return $text =~ /tps = ([\d.]+)/ ? $1 : die "pgbench said: $text\n";
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

my $business = "BEGIN;\nINSERT INTO invoice (amount) VALUES (42);\n";
foreach my $clients (1, 8)
{
	my (@outbox, @handmade);
	foreach (1 .. runs())
	{
		push @handmade, tps($business . "INSERT INTO handmade (topic, payload) VALUES ('bench.message.sent', '{\"id\": 12345}');\nCOMMIT;\n", $clients);
		push @outbox, tps($business . "SELECT outbox.stage('bench.message.sent', '{\"id\": 12345}');\nCOMMIT;\n", $clients);
	}
	report("transaction with stage(), $clients client(s)", '%8d tps, %.2f of a hand-written outbox table (%d)', median(@outbox), ratio(\@outbox, \@handmade), median(@handmade));
}

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
