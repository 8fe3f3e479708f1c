# Libraries from npm, for tests: those of a folder's package.json are installed on
# first use into the tree that the tests run in.  No install script of theirs is
# run.  Where no registry answers, the first test that asks finds out, and the
# others that run with it are told.
package NpmInstall;

use strict;
use warnings;

use Exporter qw(import);
use Fcntl qw(LOCK_EX);
use IPC::Run qw(run);

our @EXPORT_OK = qw(missing_program npm_install);

# One that does not answer is not asked again and again for minutes.
my @options = qw(--no-audit --no-fund --no-package-lock --ignore-scripts
  --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-retry-maxtimeout=2000 --fetch-timeout=60000);

# The first of these programs that is not installed; undef if all are.
sub missing_program
{
	foreach my $program (@_)
	{
		return $program unless grep { -x "$_/$program" } split /:/, $ENV{PATH};
	}
	return;
}

# Undef, or why they cannot be had.  One test installs them, others that run beside it wait.
sub npm_install
{
	my $folder = shift;
	open(my $lock, '>', "$folder/.lock") or die "cannot lock $folder: $!";
	flock($lock, LOCK_EX) or die "cannot lock $folder: $!";
	return if -e "$folder/.installed";
	# In a tree in which tests are run again and again it is asked once an hour.
	my $answer = "$folder/.missing";
	if (-e $answer && -M $answer < 1 / 24)
	{
		open(my $in, '<', $answer) or die "$answer: $!";
		return scalar <$in>;
	}
	my $output = '';
	my $installed = run [ 'npm', 'install', '--prefix', $folder, @options ], '<', \undef, '>&', \$output;
	open(my $out, '>', $installed ? "$folder/.installed" : $answer) or die "$folder: $!";
	return if $installed;
	my $why = (split /\n/, $output)[0] || 'it does not say why';
	print $out $why;
	return $why;
}

1;
