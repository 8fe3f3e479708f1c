# doc/recipes/testing.md does what it says: its tests in pgTAP and Python pass,
# on a server that preloads the library and on one that does not, and fail
# where what they test does.  (Node: suite npm.)
use strict;
use warnings;

use IPC::Run;
use OutboxCluster;
use Recipes;
use Test::More;

my $page = Recipes->read('doc/recipes/testing.md');
is(join(' ', $page->files), 'orders.test.js test/accounting_is_down.sql test/orders.sql test_orders.py', 'the page has these files');
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';

# Run a command beside the page's files; what it printed, and how it ended.
sub run_in
{
	my ($node, @command) = @_;
	my $out = '';
	my %to = (PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', DATABASE_URL => $node->connstr('postgres'));
	IPC::Run::run(\@command, '<', \undef, '>&', \$out, init => sub { chdir $node->basedir . '/page'; @ENV{ keys %to } = values %to },
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return ($? >> 8, $out);
}

sub run_pgtap
{
	my ($node, $file) = @_;
	my ($status, $out) = run_in($node, $node->installed_command('psql'), '-XqAt', '-v', 'ON_ERROR_STOP=1', '-f', $file);
	return ($status == 0 && $out =~ /^1\.\.\d+$/m && $out !~ /^not ok|Looks like/m, $out);
}

foreach my $preload (0, 1)
{
	my $kind = $preload ? 'preloaded' : 'not preloaded';
	my $node = OutboxCluster->create("server$preload", preload => $preload, conf => "outbox.enabled = off\n");
	$page->write($node->basedir . '/page');
	# Nobody delivers to the examples' hosts before a test leads its handlers elsewhere.
	$node->sql(($page->sql)[0]);
	SKIP:
	{
		skip 'pgTAP is not installed', 3 unless $node->sql("SELECT count(*) FROM pg_available_extensions WHERE name = 'pgtap'");
		$node->sql('CREATE EXTENSION pgtap');
		foreach my $file ('test/orders.sql', 'test/accounting_is_down.sql')
		{
			my ($passed, $out) = run_pgtap($node, $file);
			ok($passed, "$kind: $file passes") or diag($out);
		}
		$node->sql(q{CREATE OR REPLACE FUNCTION shop.place_order(id int) RETURNS uuid LANGUAGE sql AS 'SELECT gen_random_uuid()'});
		ok(!(run_pgtap($node, 'test/orders.sql'))[0], "$kind: and fails where nothing is staged");
		$node->sql(q{DROP FUNCTION shop.place_order; DROP SCHEMA shop; SELECT outbox.drop_handler(handler) FROM outbox.handlers});
		$node->sql(($page->sql)[0]);
	}
	SKIP:
	{
		skip 'psycopg is not installed', 2 unless system("$python -c 'import psycopg' > /dev/null 2>&1") == 0;
		my ($status, $out) = run_in($node, $python, '-m', 'unittest', '-v', 'test_orders');
		like($out, qr/^Ran 3 tests.*^OK$/ms, "$kind: the tests in Python pass");
		$node->sql(q{SELECT outbox.alter_handler('accounting', topics => ARRAY['nothing'])});
		($status, $out) = run_in($node, $python, '-m', 'unittest', 'test_orders');
		like($out, qr/^FAILED \(failures=2\)$/m, "$kind: and fail where a handler does not get it");
	}
	$node->stop;
}

done_testing();
