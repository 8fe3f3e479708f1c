# The libraries of test/npm/package.json, installed on first use into the tree
# that the test runs in.  No install script of theirs is run.
#
#   my $libraries = NpmLibraries->install or plan skip_all => NpmLibraries->missing;
#   $libraries->lend($folder);                 # what is run there finds them
package NpmLibraries;

use strict;
use warnings;

use Cwd qw(abs_path);
use Fcntl qw(LOCK_EX);
use IPC::Run qw(run);

my $folder = 'test/npm';
my $missing;

sub missing { return $missing; }

# Undef if they cannot be had.  One test installs them, others that run beside
# it wait.
sub install
{
	my $class = shift;
	foreach my $program (qw(node npm))
	{
		next if grep { -x "$_/$program" } split /:/, $ENV{PATH};
		$missing = "$program is not installed";
		return;
	}
	my ($version) = qx(node --version) =~ /^v(\d+)/;
	if (($version // 0) < 20)
	{
		$missing = 'node is older than 20, from which on these libraries run';
		return;
	}
	open(my $lock, '>', "$folder/.lock") or die "cannot lock $folder: $!";
	flock($lock, LOCK_EX) or die "cannot lock $folder: $!";
	if (!-e "$folder/.installed")
	{
		my $output = '';
		if (!run [ 'npm', 'install', '--prefix', $folder, '--no-audit', '--no-fund', '--no-package-lock', '--ignore-scripts' ], '<', \undef, '>&', \$output)
		{
			$missing = 'npm cannot install the libraries: ' . (split /\n/, $output)[0];
			return;
		}
		open(my $mark, '>', "$folder/.installed") or die "$folder: $!";
	}
	return bless { modules => abs_path("$folder/node_modules") }, $class;
}

sub lend
{
	my ($self, $to) = @_;
	symlink $self->{modules}, "$to/node_modules" or die "$to/node_modules: $!";
	return;
}

1;
