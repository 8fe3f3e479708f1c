# Consumers maintain whatever indexes outbox.delivery and outbox.receipt have at the moment, those
# of an operator as well, though a session keeps what it takes to do so.
use strict;
use warnings;

use OutboxCluster;
use PsqlSession;
use Test::More;

my $node = OutboxCluster->create('main', conf => "fsync = off\nautovacuum = off\n");
$node->handler('h', ['job'], undef, max_attempts => 100);
$node->sql("SELECT count(outbox.stage('job', to_jsonb(n))) FROM generate_series(1, 100) n");

my $consumer = PsqlSession->new($node);
my $round = 'SELECT count(*) FROM (SELECT outbox.fail($$h$$, id, attempt, error => $$broken$$) AS done FROM outbox.claim($$h$$, 5)) s WHERE done';
sub works { return is($consumer->run($round), 5, shift); }

# What a query finds with the named index, and what it finds without.
sub found_with
{
	my ($index, $condition) = @_;
	my $query = "SELECT count(*) FROM outbox.receipt WHERE $condition";
	my $plan = $node->sql("SET enable_seqscan = off; EXPLAIN $query");
	return "not with the index: $plan" unless $plan =~ /\b$index\b/;
	return $node->sql("SET enable_seqscan = off; $query") . ' of ' . $node->sql("SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; $query");
}

works('a consumer claims and settles');
$node->sql('CREATE INDEX own_error ON outbox.receipt (error) WHERE error IS NOT NULL');
works('an index is made meanwhile');
is(found_with('own_error', "error = 'broken'"), '10 of 10', 'it has what was there and what came later');
$node->sql('REINDEX INDEX outbox.own_error');
works('it is made anew');
is(found_with('own_error', "error = 'broken'"), '15 of 15', 'and has everything');
$node->sql('DROP INDEX outbox.own_error');
works('it is dropped');

# Other kinds keep things between insertions.
$node->sql("CREATE INDEX own_words ON outbox.receipt USING gin (to_tsvector('simple', error)) WITH (fastupdate = off)");
$node->sql('CREATE INDEX own_times ON outbox.receipt USING brin (settled_at)');
foreach my $i (1 .. 3)
{
	works("indexes of other kinds, round $i");
	# Which makes sessions build what they know of them anew.
	$node->sql('ANALYZE outbox.delivery, outbox.receipt');
}
is(found_with('own_words', "to_tsvector('simple', error) @@ to_tsquery('simple', 'broken')"), '35 of 35', 'they have everything');
is(found_with('own_times', "settled_at > '2020-01-01'"), '35 of 35', 'all of them');
$node->sql('DROP INDEX outbox.own_words, outbox.own_times');
works('they are dropped');
$consumer->run('BEGIN');
is($consumer->run('SAVEPOINT s; ' . $round . '; ROLLBACK TO s'), 5, 'a savepoint is rolled back');
works('the transaction goes on');
$consumer->run('COMMIT');
is($node->sql("SELECT count(*) FROM outbox.receipt WHERE state = 4"), 45, 'everything was settled once');

done_testing();
