# Staging and consuming through PgBouncer in transaction mode, with the
# configuration of doc/recipes/pgbouncer.md: two clients that share one
# connection to the server.
use strict;
use warnings;

use HttpReceiver;
use IPC::Run;
use OutboxCluster;
use PgBouncer;
use PlacedOrders;
use PsqlSession;
use Recipes;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main');
my $page = Recipes->read('doc/recipes/pgbouncer.md');
my $pooler = PgBouncer->start($node) or plan skip_all => 'pgbouncer is not installed';
my $folder = $node->basedir . '/python';
$page->write($folder);
my ($port, $user) = ($pooler->port, scalar getpwuid $>);
my $through = "host=127.0.0.1 port=$port dbname=shop user=$user";
my $try = sub { my ($o, $e) = ('', ''); IPC::Run::run([ 'psql', '-XAtq', '-d', $through, '-c', $_[0] ], '>', \$o, '2>', \$e); chomp $o; return $o . $e; };

$node->handler('push', ['shop.*'], $receiver->url('/shop'));
$node->handler('pull', ['shop.order.*'], undef);
$node->sql('CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY, customer text); INSERT INTO shop.orders VALUES (1, $$Ada$$)');

# --- two clients, one connection, one transaction after the other
my @client = map { PsqlSession->new($node, $through) } 1 .. 2;
my $pid = $client[0]->run('SELECT pg_backend_pid()');
is($client[1]->run('SELECT pg_backend_pid()'), $pid, 'both have the same connection');
$client[0]->run(q{BEGIN; SELECT outbox.stage('shop.order.placed', '{"n": 1}'); SAVEPOINT s; SELECT outbox.stage('shop.order.placed', '{"n": 2}'); ROLLBACK TO s; COMMIT});
$client[1]->run(q{BEGIN; SELECT outbox.stage('shop.order.placed', '{"n": 3}'); ROLLBACK});
$client[0]->run(q{SELECT outbox.stage('shop.order.placed', '{"n": 4}')});
$receiver->wait_for_requests(2, '/shop');
is(join(', ', sort map { $_->{body} } $receiver->requests('/shop')), '{"n": 1}, {"n": 4}', 'what was committed is sent, and nothing else');
like($try->(q{\set VERBOSITY verbose}) . $try->(q{SELECT outbox.stage('Wrong')}), qr/ERROR:.*\n?HINT:/s, 'errors have their hints');

# --- a lease is its owner's, whichever connection
my ($id, $attempt) = split /\|/, $client[0]->run("SELECT id, attempt FROM outbox.claim('pull')");
$try->('SELECT 1');
$node->sql("SELECT pg_terminate_backend($pid, 10000)");
$node->wait_while_not(sub { $try->('SELECT pg_backend_pid()') =~ /^(\d+)$/ && $1 != $pid }, 'the pool has another connection');
is($try->("SELECT outbox.complete('pull', '$id', $attempt)"), 't', 'the lease is good there');
is($try->("SELECT id IS NOT NULL FROM outbox.claim('pull')"), 't', 'another claim');
is($try->("CALL outbox.wait('pull', '10 ms')"), '', 'waiting works');

# --- the page's Python: a setting for one transaction
SKIP:
{
	my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
	skip 'psycopg is not installed', 1 if system("$python -c 'import psycopg' > /dev/null 2>&1") != 0;
	$node->sql(q{SELECT outbox.watch('shop.orders', 'shop.row', actor => '{"userId": "app.user_id"}')});
	my ($said, $error) = ('', '');
	IPC::Run::run([ $python, '-c', "import sys, os; sys.path.insert(0, os.getcwd())\nfrom behind_pgbouncer import *\nfor n in range(20): rename_customer('u1', 1, f'Ada {n}')\nconnection.execute(\"UPDATE shop.orders SET customer = 'nobody knows who'\")" ],
		'>', \$said, '2>', \$error, init => sub { chdir $folder; @ENV{qw(PGHOST PGPORT PGDATABASE PGUSER)} = ('127.0.0.1', $port, 'shop', $user) });
	is($error, '', 'psycopg: no complaint');
	is($node->sql(q{SELECT string_agg(n || ' ' || u, ', ' ORDER BY u) FROM (SELECT coalesce(nullif(payload ->> 'userId', ''), 'nobody') AS u, count(*) AS n FROM outbox.message WHERE topic = 'shop.row.updated' GROUP BY 1) s}),
		'1 nobody, 20 u1', 'who did it is said of that transaction, and of no other');
	is($node->sql("SELECT count(*) FROM outbox.message WHERE topic = 'shop.order.renamed'"), 20, 'and what was staged beside it is there');
}

# --- the recipes of doc/recipes/python.md, through the same pool
SKIP:
{
	my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
	$node->sql('DROP SCHEMA shop CASCADE');
	my $recipes = Recipes->read('doc/recipes/python.md');
	$recipes->write($folder);
	$node->sql($_) foreach $recipes->sql;
	my %needs = (psycopg => 'psycopg', sqlalchemy => 'sqlalchemy, psycopg2', django => 'django, psycopg2');
	foreach my $library (sort keys %needs)
	{
		skip "$library is not installed", 1 if system("$python -c 'import $needs{$library}' > /dev/null 2>&1") != 0;
		PlacedOrders::try($node, "$library, through PgBouncer", command => [ $python, "$ENV{TESTDIR}/test/lib/recipes/place_orders.py", "with_$library" ],
			in => $folder, env => { PGHOST => '127.0.0.1', PGPORT => $port, PGDATABASE => 'shop' }, order_id => '9007199254740993');
	}
}

$pooler->stop;
$node->stop;
done_testing();
