# Pull consumers: 50 of them claiming at once, beside the usual UPDATE ...
# WHERE id IN (SELECT ... FOR UPDATE SKIP LOCKED LIMIT n) RETURNING * on a
# hand-written table; and whether claiming and completing stays as fast while
# another session holds an old snapshot and so keeps vacuum from removing
# anything.
#
# Claiming one message at a time and committing it durably measures the disk:
# both ways flush WAL once a claim, for several consumers together.
#
# Options: --consumers=N (50), --transactions=N (200, each), --settled=N
# (500000, completed under the old snapshot), --runs=N
use strict;
use warnings;

use OutboxBench;
use PsqlSession;

my $consumers = option('consumers', 50);
my $transactions = option('transactions', 200);
my $settled = option('settled', 500_000);
my $node = bench_cluster('claims', conf => "outbox.enabled = off\nmax_connections = 200\n");

$node->handler('bench', ['bench.*'], undef);
$node->sql(<<'END');
CREATE TABLE job (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), state smallint NOT NULL DEFAULT 0, attempts int NOT NULL DEFAULT 0,
	run_at timestamptz NOT NULL DEFAULT clock_timestamp(), locked_until timestamptz, topic text NOT NULL, key text, payload jsonb NOT NULL);
CREATE INDEX job_due ON job (run_at) WHERE state = 0;
END

my $payload = q{jsonb_build_object('n', g, 'padding', repeat('x', 180))};

sub fill
{
	my $n = shift;
	$node->sql('TRUNCATE job, outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
	$node->sql("INSERT INTO job (topic, payload) SELECT 'bench.job', $payload FROM generate_series(1, $n) g");
	stage($n);
	$node->sql('VACUUM ANALYZE job');
	$node->sql("VACUUM ANALYZE outbox.$_") foreach qw(message delivery);
	$node->sql('CHECKPOINT');
	return;
}

sub stage
{
	my $n = shift;
	$node->sql("SELECT outbox_internal.ring_rescan();
		SELECT count(*) FROM (SELECT array_agg($payload) AS p FROM generate_series(1, $n) g GROUP BY g / 1000) b, LATERAL outbox.stage_many('bench.job', p)");
	return;
}

# Claims a second by all consumers together.
sub claims
{
	my ($sql, $synchronous) = @_;
	my $file = $node->basedir . '/claim.sql';
	open(my $out, '>', $file) or die $!;
	print $out "$sql;\n";
	close $out;
	local $ENV{PGOPTIONS} = "-c synchronous_commit=$synchronous";
	my $text = qx(pgbench -n -M prepared -c $consumers -j 2 -t $transactions -f $file -h ${\ $node->host} -p ${\ $node->port} postgres 2>&1);
	return $text =~ /tps = ([\d.]+)/ ? $1 : die "pgbench said: $text\n";
}

foreach my $case ([ 10, 'on' ], [ 1, 'on' ], [ 10, 'off' ], [ 1, 'off' ])
{
	my ($messages, $synchronous) = @$case;
	my $usual = "UPDATE job SET state = 2, attempts = attempts + 1, locked_until = clock_timestamp() + interval '5 minutes' "
	  . "WHERE id IN (SELECT id FROM job WHERE state = 0 AND run_at <= clock_timestamp() ORDER BY run_at FOR UPDATE SKIP LOCKED LIMIT $messages) RETURNING *";
	my (@ours, @usual);
	foreach (1 .. runs())
	{
		fill($consumers * $transactions * $messages * 1.2);
		push @usual, claims($usual, $synchronous);
		push @ours, claims("SELECT * FROM outbox.claim('bench', $messages)", $synchronous);
	}
	report(
		"$consumers consumers claiming $messages at a time" . ($synchronous eq 'off' ? ', synchronous_commit off' : ''),
		'%8d messages/s, %.2f of SKIP LOCKED (%d)',
		median(@ours) * $messages, ratio(\@ours, \@usual), median(@usual) * $messages);
}

# Claim and complete so many, ten or more at a time; messages a second.
sub work
{
	my ($n, $at_once) = @_;
	return $node->sql(<<"END");
CREATE OR REPLACE PROCEDURE work(n int, at_once int, INOUT rate float8) LANGUAGE plpgsql AS \$\$
DECLARE
	begun timestamptz := clock_timestamp();
	ids uuid[];
	attempts int[];
BEGIN
	FOR i IN 1 .. n / at_once LOOP
		SELECT array_agg(c.id), array_agg(c.attempt) INTO ids, attempts FROM outbox.claim('bench', at_once) c;
		COMMIT;
		IF false = ANY (outbox.complete_many('bench', ids, attempts)) OR cardinality(ids) <> at_once THEN
			RAISE EXCEPTION 'a message was lost';
		END IF;
		COMMIT;
	END LOOP;
	rate := n / extract(epoch FROM clock_timestamp() - begun);
END \$\$;
SET synchronous_commit = off;
CALL work($n, $at_once, NULL);
END
}

my $slice = 20_000;
$node->sql('TRUNCATE job, outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
stage($settled + $slice);
$node->sql("VACUUM ANALYZE outbox.$_") foreach qw(message delivery);
my $old = PsqlSession->new($node);
$old->run('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
work(1000, 10);
my @first = map { work($slice, 10) } 1 .. 3;
work($settled - 3 * $slice, 1000);
# With the backlog gone, claims find what is new behind all that is dead.
stage(3 * $slice);
my @last = map { work($slice, 10) } 1 .. 3;
$old->run('COMMIT');
report("claim and complete, after $settled under an old snapshot", '%8d messages/s, %.2f of the rate at the start (%d)',
	median(@last), ratio(\@last, \@first), median(@first));
