# What a release depends on: META.json is what PGXN's specification asks for, and
# the versions, their frozen install scripts and the upgrade scripts fit
# together.  Both checks are held to made-up mistakes.  Needs no server.
use strict;
use warnings;

use File::Basename qw(dirname);
use File::Path qw(make_path);
use File::Temp qw(tempdir);
use JSON::PP ();
use Test::More;

use lib dirname(__FILE__) . '/../lib';
use PgxnMeta;
use ReleasedVersions;

my $root = dirname(__FILE__) . '/../..';

#
# META.json
#
my $text = do { open my $in, '<', "$root/META.json" or die "META.json: $!"; local $/; <$in> };
is(join("\n", PgxnMeta::problems(JSON::PP->new->decode($text))), '', 'META.json is valid');
sub wrong
{
	my ($change, $problem) = @_;
	my $meta = JSON::PP->new->decode($text);
	$change->() foreach $meta;
	like(join("\n", PgxnMeta::problems($meta)), $problem, "META.json: $problem");
	return;
}
foreach my $required (qw(name version abstract maintainer license provides meta-spec))
{
	wrong(sub { delete $_->{$required} }, qr/^META\.json has no \Q$required\E$/);
}
wrong(sub { $_->{version} = '0.9' }, qr/^META\.json\.version is no version: 0\.9$/);
wrong(sub { $_->{version} = '0.09.0' }, qr/^META\.json\.version is no version/);
wrong(sub { $_->{name} = 'out box' }, qr/^META\.json\.name is no term/);
wrong(sub { $_->{abstract} = '' }, qr/^META\.json\.abstract is no string/);
wrong(sub { $_->{maintainer} = [] }, qr/^META\.json\.maintainer is empty/);
wrong(sub { $_->{license} = 'PostgreSQL' }, qr/^META\.json\.license is no license/);
wrong(sub { $_->{license} = { PostgreSQL => 'somewhere' } }, qr/^META\.json\.license\.PostgreSQL is no uri/);
wrong(sub { $_->{provides}{outbox}{file} = '/sql/outbox.sql' }, qr/^META\.json\.provides\.outbox\.file is no path/);
wrong(sub { delete $_->{provides}{outbox}{version} }, qr/^META\.json\.provides\.outbox has no version/);
wrong(sub { $_->{prereqs}{running} = { requires => { plpgsql => 0 } } }, qr/^the name running in META\.json\.prereqs is no phase/);
wrong(sub { $_->{prereqs}{runtime}{needs} = { plpgsql => 0 } }, qr/^the name needs in META\.json\.prereqs\.runtime is no relation/);
wrong(sub { $_->{prereqs}{runtime}{requires}{PostgreSQL} = '14' }, qr/^META\.json\.prereqs\.runtime\.requires\.PostgreSQL is no range/);
wrong(sub { $_->{release_status} = 'beta' }, qr/^META\.json\.release_status is no status/);
wrong(sub { $_->{tags} = ['a/b'] }, qr/^META\.json\.tags\[0\] is no tag/);
wrong(sub { $_->{resources} = { repository => { type => 'Git' } } }, qr/^META\.json\.resources\.repository\.type is no lower/);
wrong(sub { $_->{'meta-spec'}{version} = '2.0.0' }, qr/^META\.json\.meta-spec\.version is no spec/);
wrong(sub { $_->{keywords} = ['outbox'] }, qr/^META\.json has a key that is unknown, keywords/);
{
	my $meta = JSON::PP->new->decode($text);
	@$meta{qw(x_more license)} = ({ any => [1] }, { 'The PostgreSQL License' => 'https://www.postgresql.org/about/licence' });
	$meta->{prereqs}{test}{recommends}{pgtap} = '>= 1.2.0, != 1.3.0, < 2.0.0-rc.1';
	is(join("\n", PgxnMeta::problems($meta)), '', 'custom keys, a licence by its address, ranges');
}

#
# Versions and their scripts
#
is(join("\n", ReleasedVersions->new($root)->problems), '', 'the versions of this tree fit together');
is_deeply([ sort { ReleasedVersions::compare($a, $b) } qw(1.0 0.10 0.9 0.9.1 0.2) ], [qw(0.2 0.9 0.9.1 0.10 1.0)], 'versions are compared by their numbers');

# A tree that has released 0.9 and 0.10, and is 0.11.
my $can = "CREATE FUNCTION outbox_internal.library_can(library text) RETURNS text[] AS \$\$\n\tSELECT CASE library WHEN '0.10' THEN '{stage}' END::text[]\n\$\$;\n";
my $up = "-- Why\nSET LOCAL lock_timeout = '5s';\nSELECT 1;\nSELECT outbox_internal.wrap_comments();\n";
my %tree = (
	'outbox.control' => "default_version = '0.11'\n",
	'META.json' => '{"version": "0.11.0"}',
	'src/outbox.h' => "#define OUTBOX_SQL_VERSION \"0.11\"\n",
	'src/common/sql_version.c' => "static const char *const served_versions[] = {\n\tOUTBOX_SQL_VERSION,\n\t\"0.10\",\n};\nPG_FUNCTION_INFO_V1(outbox_sql_old);\n",
	'sql/install/outbox.sql' => $can,
	'sql/released/outbox--0.9.sql' => "CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_sql_old';\n",
	'sql/released/outbox--0.10.sql' => "SELECT 1;\n",
	'sql/upgrade/outbox--0.9--0.10.sql' => $up,
	'sql/upgrade/outbox--0.10--0.11.sql' => "SELECT outbox_internal.require_library('0.11');\n$up");

sub problems_of
{
	my %files = (%tree, @_);
	my $folder = tempdir(CLEANUP => 1);
	foreach my $name (grep { defined $files{$_} } keys %files)
	{
		make_path(dirname("$folder/$name"));
		open my $out, '>', "$folder/$name" or die "$name: $!";
		print $out $files{$name};
		close $out;
	}
	return join "\n", ReleasedVersions->new($folder)->problems;
}
is(problems_of(), '', 'a tree after two releases');
is(problems_of('sql/released/outbox--0.11.sql' => $can), '', 'one that was just released');
is(problems_of('sql/upgrade/outbox--0.9--0.11.sql' => $up), '', 'a shorter way beside the longer one');
foreach my $case (
	[ qr/^No scripts in sql\/upgrade lead from 0\.10 to 0\.11$/m, 'sql/upgrade/outbox--0.10--0.11.sql' => undef ],
	[ qr/^No scripts in sql\/upgrade lead from 0\.9 to 0\.11$/m, 'sql/upgrade/outbox--0.9--0.10.sql' => undef ],
	[ qr/^sql\/install\/outbox\.sql is not what was released as 0\.11: /m, 'sql/released/outbox--0.11.sql' => "SELECT 2;\n" ],
	[ qr/^Version 0\.12 was released and is younger than 0\.11/m, 'sql/released/outbox--0.12.sql' => "SELECT 2;\n" ],
	[ qr/^sql\/upgrade\/outbox--0\.8--0\.9\.sql: no version 0\.8 was released/m, 'sql/upgrade/outbox--0.8--0.9.sql' => $up ],
	[ qr/0\.10--0\.11\.sql does not begin with SET LOCAL lock_timeout/m, 'sql/upgrade/outbox--0.10--0.11.sql' => "SELECT 1;\n$up" ],
	[ qr/0\.10--0\.11\.sql does not end with SELECT outbox_internal\.wrap_comments/m, 'sql/upgrade/outbox--0.10--0.11.sql' => "${up}SELECT 1;\n" ],
	[ qr/^The library serves 0\.11, and has to serve 0\.11 0\.10 /m, 'src/common/sql_version.c' => "static const char *const served_versions[] = {\n\tOUTBOX_SQL_VERSION,\n};\nPG_FUNCTION_INFO_V1(outbox_sql_old);\n" ],
	[ qr/does not say what a library of version 0\.10 may do/m, 'sql/install/outbox.sql' => $can =~ s/0\.10/0.9/r ],
	[ qr/^sql\/released\/outbox--0\.9\.sql names outbox_sql_old, which the library has not$/m, 'src/common/sql_version.c' => $tree{'src/common/sql_version.c'} =~ s/PG_FUNCTION.*//r ],
	[ qr/^The library speaks to objects of version 0\.10, and outbox\.control has 0\.11$/m, 'src/outbox.h' => "#define OUTBOX_SQL_VERSION \"0.10\"\n" ],
	[ qr/^META\.json has version 0\.10\.0, which does not begin with 0\.11$/m, 'META.json' => '{"version": "0.10.0"}' ])
{
	my ($problem, %files) = @$case;
	like(problems_of(%files), $problem, "a tree: $problem");
}

done_testing();
