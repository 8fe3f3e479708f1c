# The tests in Node of doc/recipes/testing.md pass, on a server that preloads the
# library and on one that does not, and fail where what they test does.
use strict;
use warnings;

use IPC::Run;
use NpmLibraries;
use OutboxCluster;
use Recipes;
use Test::More;

my $libraries = NpmLibraries->install or plan skip_all => NpmLibraries->missing;
my $page = Recipes->read('doc/recipes/testing.md');

sub run_tests
{
	my $node = shift;
	my $out = '';
	my $url = sprintf 'postgres://%s@127.0.0.1:%d/postgres', (getpwuid $<)[0], $node->port;
	IPC::Run::run([ 'node', '--test', '--test-reporter=tap', 'orders.test.js' ], '<', \undef, '>&', \$out,
		init => sub { chdir $node->basedir . '/page'; $ENV{DATABASE_URL} = $url; },
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return $out;
}

foreach my $preload (0, 1)
{
	my $kind = $preload ? 'preloaded' : 'not preloaded';
	my $node = OutboxCluster->create("server$preload", preload => $preload, conf => "outbox.enabled = off\nlisten_addresses = '127.0.0.1'\n");
	$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
	$node->restart;
	my $folder = $node->basedir . '/page';
	$page->write($folder);
	$libraries->lend($folder);
	$node->sql(($page->sql)[0]);
	my $out = run_tests($node);
	ok($out =~ /^# pass 3$/m && $out =~ /^# fail 0$/m, "$kind: the tests in Node pass") or diag($out);
	$node->sql(q{SELECT outbox.alter_handler('accounting', topics => ARRAY['nothing'])});
	like(run_tests($node), qr/^# fail 2$/m, "$kind: and fail where a handler does not get it");
	$node->stop;
}

done_testing();
