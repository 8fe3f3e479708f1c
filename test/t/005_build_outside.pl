# A build outside of the source tree: every file is found, and nothing is
# written into the tree.
use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Copy qw(copy);
use File::Find qw(find);
use File::Path qw(make_path);
use File::Temp qw(tempdir);
use Test::More;

# The tree without what a build has left in it, where make would look for that.
my $here = abs_path(dirname(__FILE__) . '/../..');
my $root = tempdir(CLEANUP => 1) . '/tree';
find(
	{
		no_chdir => 1,
		wanted => sub {
			return $File::Find::prune = 1 if m{/(?:\.git|build|results|tmp_check)$};
			return make_path($_ =~ s/^\Q$here\E/$root/r) if -d;
			return if m{\.(?:o|so|bc)$} || m{/sql/outbox--} || m{/test/unit/\w+$} || m{/test/bench/\w+$} && !m{/run$};
			copy($_, s/^\Q$here\E/$root/r) or die "$_: $!";
		}
	},
	$here);
my $build = tempdir(CLEANUP => 1);
my $config = $ENV{PG_CONFIG} // 'pg_config';
my $make = qq(make -C "$build" -f "$root/Makefile" with_llvm=no PG_CONFIG="$config");

sub tree
{
	my %times;
	find({ no_chdir => 1, wanted => sub { $times{$_} = join ' ', (lstat $_)[7, 9] if -f $_ } }, $root);
	return \%times;
}

# One file of each kind is made; of the others it is seen that make knows how.
my $before = tree();
my $out = qx($make -s src/module.o src/policy/rules.o src/http/factory.o src/http/fast/http1_parser.o test/unit/ascii_test all -n 2>&1);
is($?, 0, 'everything can be made') or diag($out);
$out = qx($make -s src/module.o src/policy/rules.o src/http/factory.o src/http/fast/http1_parser.o test/unit/ascii_test \$(sed -n "s,^default_version = '\\(.*\\)',sql/outbox--\\1.sql,p" "$root/outbox.control") 2>&1);
is($?, 0, 'files of each kind are made') or diag($out);
ok(-s "$build/$_", "$_ is there") foreach qw(src/module.o src/http/fast/http1_parser.o test/unit/ascii_test);
is(scalar(() = glob "$build/sql/outbox--*.sql"), 1, 'the install script too');
is(qx("$build/test/unit/ascii_test" | grep -c '^not ok'), "0\n", 'and a program of the tests runs');
$out = qx($make -n install DESTDIR="$build/root" 2>&1);
is($?, 0, 'it can be installed') or diag($out);
my @missing = grep { !-e } $out =~ m{(\Q$root\E/[\w./-]+)}g;
is("@missing", '', 'from files that are there');
is_deeply(tree(), $before, 'the tree is as it was');

done_testing();
