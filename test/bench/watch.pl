# Watched tables: what announcing each row costs beside a plpgsql AFTER trigger
# that does one plain INSERT a row, in one statement of many rows; and what a
# watch adds to an UPDATE of one row, beside the same without one.
#
# Options: --rows=N (100000; of a statement), --updates=N (20000), --runs=N
use strict;
use warnings;

use OutboxBench;

my $rows = option('rows', 100_000);
my $updates = option('updates', 20_000);
my $node = bench_cluster('watch', conf => 'outbox.enabled = off');
$node->sql(<<'END');
CREATE TABLE bare (id int PRIMARY KEY, n int NOT NULL, note text);
CREATE TABLE watched (LIKE bare INCLUDING ALL);
CREATE TABLE conditional (LIKE bare INCLUDING ALL);
CREATE TABLE logged (LIKE bare INCLUDING ALL);
CREATE TABLE log (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic text NOT NULL, payload jsonb NOT NULL);
CREATE FUNCTION log_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO log (topic, payload) VALUES ('bench.logged.' || lower(TG_OP), jsonb_build_object('recordId', NEW.id));
	RETURN NULL;
END $$;
CREATE TRIGGER log AFTER INSERT OR UPDATE ON logged FOR EACH ROW EXECUTE FUNCTION log_change();
SELECT outbox.watch('watched', 'bench.watched');
SELECT outbox.watch('conditional', 'bench.conditional', condition => 'NEW.n < 0');
END
$node->handler('bench', ['bench.*'], 'http://127.0.0.1:9/');

sub empty { $node->sql('TRUNCATE log, outbox.message, outbox.delivery, outbox.receipt; CHECKPOINT'); return; }

# Rows a second of one INSERT.
sub bulk
{
	my ($table) = @_;
	$node->sql("ALTER TABLE $table DISABLE TRIGGER USER; TRUNCATE $table; ALTER TABLE $table ENABLE TRIGGER USER");
	empty();
	my $begun = Time::HiRes::time();
	$node->sql("INSERT INTO $table SELECT g, g, repeat('x', 100) FROM generate_series(1, $rows) g");
	return $rows / (Time::HiRes::time() - $begun);
}

# Microseconds of an UPDATE of one row, in a loop on the server.
sub update
{
	my ($table) = @_;
	empty();
	return $node->sql(<<"END");
CREATE OR REPLACE FUNCTION bench(m int) RETURNS float8 LANGUAGE plpgsql AS \$\$
DECLARE
	begun timestamptz := clock_timestamp();
BEGIN
	FOR i IN 1 .. m LOOP UPDATE $table SET n = n + 1 WHERE id = i; END LOOP;
	RETURN extract(epoch FROM clock_timestamp() - begun) * 1e6 / m;
END \$\$;
SELECT bench($updates)::numeric(10, 2);
END
}

my (%bulk, %update);
foreach (1 .. runs())
{
	push @{ $bulk{$_} }, bulk($_) foreach qw(bare conditional logged watched);
}
foreach (1 .. runs())
{
	push @{ $update{$_} }, update($_) foreach qw(bare conditional logged watched);
}
report("INSERT of $rows rows, watched", '%8d rows/s, %.2f of a trigger with one INSERT (%d)', median(@{ $bulk{watched} }), ratio($bulk{watched}, $bulk{logged}), median(@{ $bulk{logged} }));
report('and if its condition never holds', '%8d rows/s, %.2f of an unwatched table (%d)', median(@{ $bulk{conditional} }), ratio($bulk{conditional}, $bulk{bare}), median(@{ $bulk{bare} }));
report('UPDATE of one row, watched', '%8.1f us more than the %.1f us without (a trigger with one INSERT: %.1f us more)',
	median(map { $update{watched}[$_] - $update{bare}[$_] } 0 .. $#{ $update{bare} }), median(@{ $update{bare} }),
	median(map { $update{logged}[$_] - $update{bare}[$_] } 0 .. $#{ $update{bare} }));
$node->stop;
