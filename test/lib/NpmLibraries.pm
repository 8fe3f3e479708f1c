# The libraries of test/npm/package.json (NpmInstall.pm).
#
#   my $libraries = NpmLibraries->install or plan skip_all => NpmLibraries->missing;
#   $libraries->lend($folder);                 # what is run there finds them
package NpmLibraries;

use strict;
use warnings;

use Cwd qw(abs_path);
use NpmInstall qw(missing_program npm_install);

my $folder = 'test/npm';
my $missing;

sub missing { return $missing; }

# Undef if they cannot be had.
sub install
{
	my $class = shift;
	if (my $program = missing_program(qw(node npm)))
	{
		$missing = "$program is not installed";
		return;
	}
	my ($version) = qx(node --version) =~ /^v(\d+)/;
	if (($version // 0) < 20)
	{
		$missing = 'node is older than 20, from which on these libraries run';
		return;
	}
	if (my $why = npm_install($folder))
	{
		$missing = "npm cannot install the libraries: $why";
		return;
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
