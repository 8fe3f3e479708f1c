# Counts of what savepoints stage: however they nest, end and follow each other,
# what committed is counted, and no more memory is kept than it takes.
use strict;
use warnings;

use OutboxCluster;
use PsqlSession;
use Test::More;

my @handlers = map { "h$_" } 1 .. 12;
my $node = OutboxCluster->create('main');
$node->handler($_, [$_]) foreach @handlers;

my %expected = map { $_ => 0 } @handlers;

sub counted
{
	return $node->sql(q{SELECT string_agg(handler || ' ' || staged, ' ' ORDER BY handler) FROM outbox.stat_handlers});
}

# A transaction at random, with what of it counts: one hash for each savepoint that is open.
srand 721;
foreach my $n (1 .. 60)
{
	my @open = ({});
	my @statements = ('BEGIN');
	foreach (1 .. 40)
	{
		my $what = rand;
		if ($what < 0.5)
		{
			my $handler = $handlers[ rand(@handlers) ];
			push @statements, "SELECT outbox.stage('$handler')";
			$open[-1]{$handler}++;
		}
		elsif ($what < 0.7)
		{
			push @statements, "SAVEPOINT s$#open";
			push @open, {};
		}
		elsif ($#open > 0)
		{
			# Any of those that are open: those within it end with it.
			my $to = 1 + int rand($#open);
			my $name = 's' . ($to - 1);
			my @ended = splice @open, $to;
			push @statements, $what < 0.85 ? "RELEASE $name" : "ROLLBACK TO $name; RELEASE $name";
			next if $what >= 0.85;
			foreach my $ended (@ended)
			{
				$open[-1]{$_} += $ended->{$_} foreach keys %$ended;
			}
		}
	}
	my $commits = $n % 5 > 0;
	$node->sql(join '; ', @statements, $commits ? 'COMMIT' : 'ROLLBACK');
	next unless $commits;
	foreach my $open (@open)
	{
		$expected{$_} += $open->{$_} foreach keys %$open;
	}
}
is(counted(), join(' ', map { "$_ $expected{$_}" } sort keys %expected), 'savepoints at random');

# --- many, one after the other, within another one
my $session = PsqlSession->new($node);
sub memory
{
	my $names = shift;
	my ($bytes) = $session->run("SELECT 'memory ' || coalesce(sum(total_bytes), 0) FROM pg_backend_memory_contexts WHERE name IN ($names)") =~ /memory (\d+)/;
	return $bytes;
}

my $before = counted();
$session->run(q{SELECT outbox.stage('h1')});
my $everywhere = "'TopMemoryContext', 'outbox counting'";
my $at_first = memory($everywhere);
$session->run(<<'SQL');
BEGIN; SAVEPOINT around;
DO $$BEGIN
	FOR i IN 1 .. 5000 LOOP
		BEGIN
			PERFORM outbox.stage('h1'), outbox.stage('h2');
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP;
END$$;
SQL
cmp_ok(memory($everywhere), '<', $at_first + 50_000, 'what they have added takes no more memory for there being many');
$session->run('ROLLBACK');
is(counted(), $before =~ s/h1 (\d+)/'h1 ' . ($1 + 1)/er, 'none of it counts');

# --- a transaction that has much to count, and what it leaves
$node->sql(q{SELECT count(outbox.create_handler('many' || n, ARRAY['many'], NULL)) FROM generate_series(1, 300) n});
$session->run(q{BEGIN; SAVEPOINT s; SELECT outbox.stage('many')});
cmp_ok(memory(q{'outbox counting'}), '>', 20_000, 'counts of hundreds of handlers take memory');
$session->run('ROLLBACK');
cmp_ok(memory(q{'outbox counting'}), '<', 10_000, 'which is given back when they are taken off');
$session->run(q{BEGIN; SELECT outbox.stage('many'); COMMIT});
cmp_ok(memory(q{'outbox counting'}), '<', 10_000, 'or counted');
$session->close;
$node->stop;
done_testing();
