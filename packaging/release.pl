#!/usr/bin/perl
# Cut a release of what is committed, or begin what comes after it; doc/releasing.md.
#
#   make release VERSION=0.9.0     what the tree has becomes 0.9.0: its install
#                                  script is frozen, its papers get their date, a
#                                  commit is made, and archives of it
#   make next VERSION=0.10.0       the tree becomes 0.10.0, not released yet, with
#                                  an upgrade script that has nothing to do yet
#
# Both change and commit nothing unless everything fits; neither tags nor pushes.
use strict;
use warnings;

use Cwd qw(realpath);
use File::Basename qw(dirname);
use POSIX qw(strftime);

my $root;
BEGIN { $root = realpath(dirname(__FILE__) . '/..') }
use lib "$root/test/lib";
use PgxnMeta;
use ReleasedVersions;

my ($do, $version) = @ARGV;
die "Usage: make release VERSION=X.Y.Z, or make next VERSION=X.Y.Z\n" unless @ARGV == 2 && $do =~ /^(?:cut|next)$/ && $version =~ /^(\d+\.\d+)(?:\.\d+)?$/;
my $sql_version = $1;
$version = "$sql_version.0" if $version eq $sql_version;

my $versions = ReleasedVersions->new($root);
my $present = $versions->distribution;
my $install = 'sql/install/outbox.sql';
my $unreleased = '(not released yet)';
my $now = $ENV{SOURCE_DATE_EPOCH} // time;
my $date = strftime('%Y-%m-%d', gmtime $now);
my $stamp = strftime('%a, %d %b %Y %H:%M:%S +0000', gmtime $now);

sub spew
{
	my ($name, $text) = @_;
	open my $out, '>:encoding(UTF-8)', "$root/$name" or die "$name: $!\n";
	print $out $text;
	close $out or die "$name: $!\n";
	return;
}

# Have code change a file's text, in $_, which it has to.
sub change
{
	my ($name, $code) = @_;
	my $text = $versions->slurp($name);
	my $before = $text;
	$code->() foreach $text;
	die "$name is not as packaging/release.pl expects it\n" if $text eq $before;
	return spew($name, $text);
}

sub git
{
	my @arguments = @_;
	open my $out, '-|', 'git', '-C', $root, @arguments or die "git: $!\n";
	my $text = do { local $/; <$out> } // '';
	close $out or die "git @arguments failed\n";
	return $text;
}

# Do all of it and commit it, or nothing: nothing else was changed before.
sub commit
{
	my ($message, $code) = @_;
	return if eval {
		$code->();
		git('add', '--all');
		git('commit', '--quiet', '--message', $message);
		1;
	};
	my $error = $@;
	git('reset', '--quiet', '--hard', 'HEAD');
	git('clean', '--quiet', '--force', 'sql/released', 'sql/upgrade');
	refuse_if($error =~ s/\n\z//r);
	return;
}

sub refuse_if
{
	my @problems = @_ or return;
	print STDERR map { "$_\n" } @problems, "Nothing has been changed.";
	exit 1;
}

sub committed
{
	my $changes = git('status', '--porcelain');
	return $changes eq '' ? () : "There are changes that are not committed:\n$changes" =~ s/\n\z//r;
}

# What the papers of this version say of it.
sub papers
{
	my ($heading, $package) = map { $versions->slurp($_) } qw(CHANGELOG.md debian/changelog);
	my $meta = JSON::PP->new->decode($versions->slurp('META.json'));
	my ($newest) = $heading =~ /^## (.*)$/m;
	my ($packaged, $suite) = $package =~ /\A\w+ \(([^)]+)\) (\S+);/;
	return (newest => $newest // '', packaged => $packaged // '', suite => $suite // '', meta => [ PgxnMeta::problems($meta) ],
		provided => $meta->{provides}{outbox}{version} // '');
}

sub cut
{
	my %paper = papers();
	my ($frozen) = grep { $_ eq $sql_version } $versions->released;
	refuse_if(
		committed(),
		$version eq $present ? () : "META.json has version $present",
		@{ $paper{meta} },
		$paper{provided} eq $version ? () : "META.json provides outbox in version $paper{provided}",
		$paper{newest} eq "$version $unreleased" ? () : "CHANGELOG.md begins with \"$paper{newest}\", not with \"$version $unreleased\"",
		$paper{packaged} eq "$version~dev-1" && $paper{suite} eq 'UNRELEASED' ? () : "debian/changelog begins with ($paper{packaged}) $paper{suite}, not with ($version~dev-1) UNRELEASED",
		(grep { $_ eq "v$version" } split /\n/, git('tag', '--list')) ? "There is a tag v$version" : (),
		$versions->problems);

	commit("Release $version", sub {
		spew("sql/released/outbox--$sql_version.sql", $versions->slurp($install)) unless $frozen;
		change('CHANGELOG.md', sub { s/^## \Q$version $unreleased\E$/## $version ($date)/m });
		change('debian/changelog', sub {
			s/\A(\w+) \(\Q$version~dev-1\E\) UNRELEASED;/$1 ($version-1) unstable;/;
			# The first entry's date.
			s/^( -- .*?> {2}).*$/$1$stamp/m;
		});
	});
	print "outbox $version is committed, with SQL objects of version $sql_version", $frozen ? ", which were released before.\n" : ".\n";
	return;
}

sub after
{
	my %paper = papers();
	refuse_if(
		committed(),
		ReleasedVersions::compare($version, $present) > 0 ? () : "$version is not younger than $present",
		$paper{newest} =~ /^\Q$present\E \(\d/ ? () : "Version $present has not been released: CHANGELOG.md begins with \"$paper{newest}\"",
		(grep { $_ eq $versions->present } $versions->released) ? () : "sql/released has no outbox--${\$versions->present}.sql",
		$versions->problems);

	my $old = $versions->present;
	my ($maintainer) = $versions->slurp('debian/changelog') =~ /^ -- (.*?>)/m;
	commit("Begin $version", sub {
		change('META.json', sub { s/"version": "\Q$present\E"(?=.*"meta-spec")/"version": "$version"/gs });
		change('CHANGELOG.md', sub { s/^(?=## \Q$present\E )/## $version $unreleased\n\n/m });
		change('debian/changelog', sub { $_ = "outbox ($version~dev-1) UNRELEASED; urgency=medium\n\n  * New version.\n\n -- $maintainer  $stamp\n\n$_" });
		grow($old) if $sql_version ne $old;
	});
	print "The tree is $version now, not released yet.\n";
	print "What changes $install is done to older objects by sql/upgrade/outbox--$old--$sql_version.sql.\n" if $sql_version ne $old;
	return;
}

# New SQL objects: the library serves the old ones too, and the old library the new ones.
sub grow
{
	my $old = shift;
	my $body = "\tSELECT CASE library WHEN '$old' THEN '{stage,consume,configure,dispatch}' ELSE '{}' END::text[]\n";
	change('outbox.control', sub { s/^default_version = .*$/default_version = '$sql_version'/m });
	change('src/outbox.h', sub { s/^(#define OUTBOX_SQL_VERSION ).*$/$1"$sql_version"/m });
	change('doc/settings.md', sub { s{^(\| `outbox\.user_agent` \| outbox/)[\d.]+}{$1$sql_version}m });
	change('src/common/sql_version.c', sub { s/^(static const char \*const served_versions\[\] = \{\n)(?:\t.*\n)*(?=\};)/$1\tOUTBOX_SQL_VERSION,\n\t"$old",\n/m });
	change($install, sub { s/^(CREATE FUNCTION outbox_internal\.library_can\(.*?\$\$\n).*?(?=\$\$;)/$1$body/ms });
	my ($function) = $versions->slurp($install) =~ /^(CREATE FUNCTION outbox_internal\.library_can\(.*?\$\$;\n)/ms;
	$function =~ s/^CREATE /CREATE OR REPLACE /;
	spew("sql/upgrade/outbox--$old--$sql_version.sql", <<"END");
-- From $old to $sql_version.  What an upgrade script may do, and how: CONTRIBUTING.md, "Growing".
\\echo Use "ALTER EXTENSION outbox UPDATE TO '$sql_version'" to load this file. \\quit

SET LOCAL lock_timeout = '5s';

$function
SELECT outbox_internal.wrap_comments();
END
	return;
}

$do eq 'cut' ? cut() : after();
