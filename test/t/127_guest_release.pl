# doc/releasing.md, tried: a release is cut in a throw-away clone, the next
# version begun, a change made there with its upgrade script, and that released
# too.  t/126, run in the clone, passes with the right script and says what is
# wrong with a wrong one, or none.
use strict;
use warnings;

use Cwd qw(getcwd);
use File::Path qw(make_path);
use JSON::PP ();
use OwnInstallation;
use PostgreSQL::Test::Utils qw(slurp_file append_to_file);
use ReleasedVersions;
use Test::More;

plan skip_all => 'needs git' if system('git --version > /dev/null 2>&1') != 0;
plan skip_all => 'needs unzip or python3, to look into an archive' if system('unzip -v > /dev/null 2>&1') != 0 && system('python3 -c "import zipfile" > /dev/null 2>&1') != 0;

my $tree = getcwd();
my $place = OwnInstallation->create;
my $clone = $place->root . '/clone';
my $versions = ReleasedVersions->new($clone);
local $ENV{HOME} = $place->root;
local $ENV{GIT_CONFIG_NOSYSTEM} = 1;
delete @ENV{ grep { /^(?:GIT_DIR|GIT_WORK_TREE|MAKEFLAGS|MAKELEVEL|MFLAGS)$/ } keys %ENV };
my $make = qq(make -C "$clone" --no-print-directory with_llvm=no PG_CONFIG="$ENV{PG_CONFIG}");

# Run a command in the clone: what it says; $? is how it went.
sub run
{
	my $command = shift;
	return scalar qx(cd "$clone" && { $command; } 2>&1);
}
sub succeeds
{
	my ($command, $said, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $out = run($command);
	is($?, 0, "$name: $command") or diag($out);
	like($out, $said, $name);
	return $out;
}
sub refused
{
	my ($command, $said, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = run('git rev-parse HEAD; git status --porcelain');
	my $out = run($command);
	isnt($?, 0, "$name: it fails");
	like($out, $said, "$name: it says why");
	is(run('git rev-parse HEAD; git status --porcelain'), $before, "$name: nothing is changed");
	return;
}
sub change_file
{
	my ($file, $change) = @_;
	OwnInstallation::replace_file("$clone/$file", $change);
	return;
}
sub commit { return succeeds("git add -A && git commit -qm '$_[0]'", qr/\A\z/, $_[0]); }

make_path($clone);
system(qq(tar -C "$tree" -c --exclude-vcs --exclude='*.o' --exclude='*.so' --exclude='*.bc' --exclude=./tmp_check --exclude=./build . | tar -C "$clone" -x)) == 0
  or die 'no copy';
run("git init -q && git config user.name somebody && git config user.email somebody\@example.com && git config core.autocrlf false");
# The copy that is tested has no .gitignore.
append_to_file("$clone/.git/info/exclude", "/build/\n/sql/outbox--*.sql\n");
commit('What is there');

# A tree whose version was released goes on with another.
my ($x, $y) = $versions->present =~ /^(\d+)\.(\d+)$/;
if (grep { $_ eq $versions->present } $versions->released)
{
	$y++;
	succeeds("$make next VERSION=$x.$y.0", qr/The tree is \Q$x.$y.0\E now/, 'the version of this tree was released: another is begun');
}
my $first = "$x.$y";
my $second = $x . '.' . ($y + 1);

#
# The first release.
#
refused("$make release VERSION=$second", qr/^META\.json has version \Q$first.0\E$/m, 'a version that is not the tree\'s');
append_to_file("$clone/README.md", "\n");
refused("$make release VERSION=$first", qr/There are changes that are not committed:\n M README\.md/, 'changes that are not committed');
run('git checkout -q README.md');
refused("$make next VERSION=$second", qr/Version \Q$first.0\E has not been released/, 'a next version before this one was released');
change_file('META.json', sub { s/"release_status": "\w+"/"release_status": "beta"/ });
commit('A META.json that PGXN would refuse');
refused("$make release VERSION=$first", qr/^META\.json\.release_status is no status: beta$/m, 'a META.json that is wrong');
run('git reset -q --hard HEAD^');

foreach my $command ('make release', 'make next')
{
	like(slurp_file("$tree/doc/releasing.md"), qr/^```sh\n\Q$command\E VERSION=\d+\.\d+\.0\n```$/m, "doc/releasing.md has $command");
}
my $out = succeeds("$make release VERSION=$first", qr/git tag -a v\Q$first.0\E -m 'outbox \Q$first.0\E' [0-9a-f]+ /, 'a release is cut');
is(run('git log -1 --format=%s'), "Release $first.0\n", 'it is a commit');
is(run('git status --porcelain'), '', 'with everything');
is(slurp_file("$clone/sql/released/outbox--$first.sql"), slurp_file("$clone/sql/install/outbox.sql"), 'the install script is frozen');
like(slurp_file("$clone/CHANGELOG.md"), qr/^## \Q$first.0\E \(\d{4}-\d\d-\d\d\)$/m, 'CHANGELOG.md has the date');
like(slurp_file("$clone/debian/changelog"), qr/\Aoutbox \(\Q$first.0-1\E\) unstable; .*?\n -- .*> {2}\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d \+0000\n/s, 'debian/changelog too');
is(join("\n", $versions->problems), '', 'and all of it fits together');
my @files = sort map { "outbox-$first.0/$_" } split /\n/, run('git ls-tree -r --name-only HEAD');
my $archive = "$clone/build/outbox-$first.0";
sub files_of { return [ sort grep { !m{/$} } split /\n/, run($_[0]) ]; }
is_deeply(files_of("tar -tzf $archive.tar.gz"), \@files, 'an archive has what is committed, below one folder');
is_deeply(files_of("unzip -Z1 $archive.zip 2> /dev/null || python3 -c 'import sys, zipfile; print(*zipfile.ZipFile(sys.argv[1]).namelist(), sep=chr(10))' $archive.zip"), \@files, 'and PGXN\'s the same');
my ($sums) = $out =~ /((?:^[0-9a-f]{64} .*\n)+)/m;
is(run("$make dist") =~ s/^(?:mkdir|git|cd|\/).*\n//mgr, $sums, 'made again they are the same');
refused("$make release VERSION=$first", qr/^CHANGELOG\.md begins with "\Q$first.0\E \(\d/m, 'it is cut once');

#
# The next version: nothing in it, then a change.
#
succeeds("$make next VERSION=$second.0", qr/sql\/upgrade\/outbox--\Q$first--$second\E\.sql/, 'the next version is begun');
is(join("\n", $versions->problems), '', 'all of it fits together');
is(join(' ', $versions->served), "$second $first", 'the library serves both');
like(slurp_file("$clone/CHANGELOG.md"), qr/^## \Q$second.0\E \(not released yet\)\n\n## \Q$first.0\E /m, 'CHANGELOG.md has a place for what changes');

# What is installed of a tree: the scripts that make would install, and the
# library with its table of versions.
sub install
{
	my $folder = $place->extension_folder;
	unlink glob "$folder/outbox--*.sql";
	my $present = $versions->present;
	run("$make -s sql/outbox--$present.sql");
	my ($scripts) = run("$make -n install") =~ /^(.* -m 644 .*outbox--\Q$present\E\.sql.*)$/m or die 'make installs no scripts';
	foreach my $script ($scripts =~ m{(\S*sql/\S*outbox--[\d.]+(?:--[\d.]+)?\.sql)}g)
	{
		OwnInstallation::write_file("$folder/" . $script =~ s{.*/}{}r, slurp_file($script =~ m{^/} ? $script : "$clone/$script"));
	}
	OwnInstallation::write_file("$folder/outbox.control", slurp_file("$clone/outbox.control"));
	my $source = $place->root . '/sql_version.c';
	my $text = slurp_file("$clone/src/common/sql_version.c");
	$text =~ s/(#include "outbox\.h"\n)/$1#undef OUTBOX_SQL_VERSION\n#define OUTBOX_SQL_VERSION "$present"\n/ or die 'no header';
	OwnInstallation::write_file($source, $text);
	my $library = $place->root . '/next.so';
	my $made = qx(make -s with_llvm=no PG_CONFIG="$ENV{PG_CONFIG}" other-library OTHER_SOURCE="$source" OTHER_LIBRARY="$library" 2>&1);
	die $made if $? != 0;
	OwnInstallation::write_file($place->library, slurp_file($library));
	return;
}
my $runs = 0;
sub try_versions
{
	my @arguments = @_;
	install();
	my $data = $place->root . '/run' . ++$runs;
	make_path("$data/log");
	local $ENV{PATH} = $place->path;
	local $ENV{PERL5LIB} = "$clone/test/lib:$ENV{PERL5LIB}";
	local @ENV{qw(TESTDIR TESTDATADIR TESTLOGDIR)} = ($data, $data, "$data/log");
	return run(qq("$^X" test/t/126_guest_versions.pl @arguments));
}

# As it is begun.
$out = try_versions();
is($?, 0, "t/126 passes: from $first to $second, nothing has changed yet") or diag($out);
like($out, qr/ok \d+ - from \Q$first\E to \Q$second\E: the same objects as in a new database\n/, 'and has compared');
like($out, qr/ok \d+ - from \Q$first\E to \Q$second\E: a session that was there goes on\n/, 'and been at work meanwhile');

# A change of each kind.
my $install = 'sql/install/outbox.sql';
my $script = "sql/upgrade/outbox--$first--$second.sql";
my $new_function = <<'END';
CREATE FUNCTION outbox.novelty(n int DEFAULT 1) RETURNS int LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS 'SELECT n';
COMMENT ON FUNCTION outbox.novelty IS 'New';
END
my ($view) = slurp_file("$clone/$install") =~ /^(CREATE VIEW outbox\.attempts.*?;\n)/ms;
(my $new_view = $view) =~ s/\nFROM outbox\.attempt a/, a.novelty\nFROM outbox.attempt a/ or die 'no view';
my ($table) = slurp_file("$clone/$install") =~ /^(CREATE TABLE outbox\.attempt \(.*?\n\).*?;\n)/ms;
(my $new_table = $table) =~ s/\n(?=\))/,\n\tnovelty text\n/ or die 'no table';
change_file($install, sub {
	s/\Q$view\E/$new_view/;
	s/\Q$table\E/$new_table/;
	s/(?=^-+\n-- Grants: PUBLIC gets nothing)/$new_function\n/m;
});
my $right = slurp_file("$clone/$script");
my %statement = (
	column => "ALTER TABLE outbox.attempt ADD COLUMN novelty text;\n",
	view => $new_view =~ s/^CREATE /CREATE OR REPLACE /r,
	function => $new_function =~ s/^COMMENT.*//mr,
	comment => $new_function =~ s/^CREATE.*\n//mr,
	revoke => "REVOKE ALL ON FUNCTION outbox.novelty FROM PUBLIC;\n");
sub script_without
{
	my %without = map { $_ => 1 } @_;
	my $statements = join '', map { $without{$_} ? () : $statement{$_} } qw(column view function comment revoke);
	return OwnInstallation::write_file("$clone/$script", $right =~ s/(?=\nSELECT outbox_internal\.wrap_comments)/$statements/r);
}
script_without();
commit('Something new');
$out = try_versions();
is($?, 0, 't/126 passes with the right script') or diag($out);

foreach my $case (
	[ qr/function outbox\.novelty\(integer\): only in database fresh/, qw(function comment revoke) ],
	[ qr/comment on function outbox\.novelty\(integer\): only in database fresh/, 'comment' ],
	[ qr/initial privileges of function outbox\.novelty\(integer\): only in database fresh.*routine outbox\.novelty\(integer\): database updated has "/s, 'revoke' ],
	[ qr/column outbox\.attempts\.\d+: only in database fresh.*relation outbox\.attempts: database updated has "/s, 'view' ])
{
	my ($said, @without) = @$case;
	script_without(@without);
	$out = try_versions('catalog');
	isnt($?, 0, "t/126 fails with a script that has no @without");
	like($out, $said, 'and names it');
}
run("git rm -q --cached $script; rm $script");
$out = try_versions('catalog');
isnt($?, 0, 't/126 fails without a script');
like($out, qr/^not ok \d+ - there are scripts from \Q$first\E to \Q$second\E$/m, 'and misses it');
commit('A script that was forgotten');
refused("$make release VERSION=$second", qr/^No scripts in sql\/upgrade lead from \Q$first\E to \Q$second\E$/m, 'nor is such a version released');
run('git reset -q --hard HEAD^');

#
# The second release, and one that changes no SQL.
#
succeeds("$make release VERSION=$second", qr/git tag -a v\Q$second.0\E /, 'it is released as well');
is(join(' ', $versions->released), join(' ', grep({ ReleasedVersions::compare($_, $first) < 0 } ReleasedVersions->new($tree)->released), $first, $second), 'both are kept');
is(slurp_file("$clone/sql/released/outbox--$first.sql") =~ /novelty\(/ ? 'novelty' : '', '', 'the first as it was');
succeeds("$make next VERSION=$second.1", qr/The tree is \Q$second.1\E now/, 'a version without new SQL objects');
is($versions->present, $second, 'has those of the one before');
append_to_file("$clone/$install", "SELECT 1;\n");
commit('A change that was not to be');
refused("$make release VERSION=$second.1", qr/^sql\/install\/outbox\.sql is not what was released as \Q$second\E: /m, 'and none that are not');
run('git reset -q --hard HEAD^');
succeeds("$make release VERSION=$second.1", qr/with SQL objects of version \Q$second\E, which were released before/, 'else it is released');

# As once 1.0.0 is released, which is also the version of PGXN's specification.
change_file('META.json', sub { s/("meta-spec": \{\s*"version": ")[^"]+/$1$second.1/ });
commit('A specification of this very version');
succeeds("$make next VERSION=$second.2", qr/The tree is \Q$second.2\E now/, 'a version is begun');
my $meta = JSON::PP->new->decode(slurp_file("$clone/META.json"));
is("$meta->{version} $meta->{provides}{outbox}{version} $meta->{'meta-spec'}{version}", "$second.2 $second.2 $second.1", 'META.json keeps the version of its specification');

done_testing();
