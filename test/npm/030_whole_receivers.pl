# doc/recipes/whole-receivers.md: the receivers in Node and Go.  (Python: t/307.)
use strict;
use warnings;

use IPC::Run;
use NpmLibraries;
use OutboxCluster;
use Recipes;
use Test::More;
use WholeReceiver;

my $node = OutboxCluster->create('main');
my $page = Recipes->read('doc/recipes/whole-receivers.md');
my $folder = $node->basedir . '/receivers';
$page->write($folder);
WholeReceiver::prepare($node);

SKIP:
{
	my $libraries = NpmLibraries->install or skip NpmLibraries->missing, 1;
	$libraries->lend($folder);
	WholeReceiver::try($node, $_, command => [ 'node', "$_.js" ], in => $folder) foreach qw(express fastify);
}

SKIP:
{
	my $libraries = '/usr/share/gocode';
	skip 'go is not installed, or its lib/pq is not', 1 unless -d "$libraries/src/github.com/lib/pq" && grep { -x "$_/go" } split /:/, $ENV{PATH};
	my $said = '';
	local @ENV{qw(GO111MODULE GOPATH GOCACHE GOFLAGS)} = ('off', $libraries, $node->basedir . '/gocache', '');
	ok(IPC::Run::run([ 'go', 'build', '-o', "$folder/receiver", "$folder/receiver.go" ], '<', \undef, '>&', \$said), 'the receiver in Go builds') or diag($said);
	WholeReceiver::try($node, 'go', command => ["$folder/receiver"], in => $folder);
}

$node->stop;
done_testing();
