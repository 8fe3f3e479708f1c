# The package's papers agree with each other: META.json for PGXN (META spec
# 1.0.0), outbox.control and the install script.
use strict;
use warnings;

use File::Basename qw(dirname);
use JSON::PP ();
use Test::More;

my $root = dirname(__FILE__) . '/../..';

sub slurp
{
	my $name = shift;
	open my $in, '<', "$root/$name" or die "$name: $!";
	local $/;
	return scalar <$in>;
}

my $meta = JSON::PP->new->decode(slurp('META.json'));
my $control = slurp('outbox.control');
my $install = slurp('sql/install/outbox.sql');

foreach my $field (qw(name version abstract maintainer license provides meta-spec))
{
	ok(defined $meta->{$field}, "META.json has $field");
}
is($meta->{'meta-spec'}{version}, '1.0.0', 'for the spec it was written to');
like($meta->{version}, qr/^\d+\.\d+\.\d+$/, 'version is semantic');
is($meta->{license}, 'postgresql', 'licence is one that the spec knows');
is_deeply([ keys %{ $meta->{provides} } ], ['outbox'], 'provides the extension');
my $provided = $meta->{provides}{outbox};
is($provided->{version}, $meta->{version}, 'in the same version');
ok(-f "$root/$provided->{$_}", "$_ exists: $provided->{$_}") foreach qw(file docfile);
foreach my $phase (values %{ $meta->{prereqs} })
{
	foreach my $needs (values %$phase)
	{
		like($_, qr/^(0|\d+\.\d+\.\d+)$/, 'a prerequisite is a semantic version') foreach values %{$needs};
	}
}

my ($default) = $control =~ /^default_version = '(\d+\.\d+)'/m;
like($meta->{version}, qr/^\Q$default\E\./, 'outbox.control and META.json agree');
my ($library) = slurp('src/outbox.h') =~ /OUTBOX_SQL_VERSION "([^"]+)"/;
is($library, $default, 'the library expects the SQL objects it comes with');
like(slurp('CHANGELOG.md'), qr/^## \Q$default\E /m, 'CHANGELOG.md has this version');
unlike($install, qr/\bCREATE OR REPLACE\b/, 'the install script replaces nothing of others');

# README.md knows everything that a user can call, read or set.
my $readme = slurp('README.md');
my %seen;
foreach my $name ($install =~ /^CREATE (?:FUNCTION|PROCEDURE|VIEW) outbox\.([a-z]\w*)/mg)
{
	like($readme, qr/\b\Q$name\E\b/, "README.md mentions $name") unless $seen{$name}++;
}
foreach my $name (slurp('src/guc.c') =~ /Variable\("(outbox\.\w+)"/g)
{
	like($readme, qr/`\Q$name\E`/, "README.md mentions $name");
}
# The pages about the inside name what is there: files by their path, below src
# or test or not; ranges of tests by their first; functions; every room.
my %source = map { s{.*/}{}r => 1 } glob "$root/src/*/*.[ch] $root/src/*/*/*.[ch]";
foreach my $page ('doc/architecture.md', 'CONTRIBUTING.md', 'README.md', map { s{^\Q$root\E/}{}r } glob "$root/doc/*.md")
{
	my $text = slurp($page);
	my %named = map { $_ => 1 } $text =~ m{`((?:(?:src|test|sql|doc|expected)/|(?:[\w.-]+/)+(?=[\w.-]+\.(?:md|h|c|txt|pl|sql)))[\w./-]*\w|[\w-]+\.(?:md|h|c|txt|pl|sql))`}g;
	# Not placeholders in capitals.
	my @gone = grep { !/NAME|OLD|\dxx/ } sort keys %named;
	@gone = grep { my $name = $_; !$source{$name} && !grep { -e "$root/$_$name" } '', 'src/', 'test/', 'sql/install/' } @gone;
	is("@gone", '', "$page: the files it names are there");
	my @files = map { s{.*/}{}r } glob "$root/test/t/*.pl $root/test/long/*.pl";
	my @tests = grep { my $number = $_; !grep { /^\Q$number\E_/ } @files } sort keys %{ { map { $_ => 1 } $text =~ m{\b(?:t|long)/(\d{3})\b}g } };
	is("@tests", '', "$page: so are the tests");
	my @functions = grep { $install !~ /\boutbox\Q$_\E\b/ } sort keys %{ { map { $_ => 1 } $text =~ m{`outbox((?:_internal)?\.[a-z_]+)(?:`|\()}g } };
	@functions = grep { !/^\.(?:sql|control|restored)$/ && slurp('src/guc.c') !~ /"outbox\Q$_\E"/ } @functions;
	is("@functions", '', "$page: and what of SQL it names");
}
foreach my $bench (map { s{.*/(.*)\.pl$}{$1}r } glob "$root/test/bench/*.pl")
{
	like($readme, qr/^\| `\Q$bench\E` \|/m, "README.md says what the benchmark $bench measures");
}
my %section = map { $_ => 1 } slurp('doc/architecture.md') =~ /^## (.*)$/mg;
foreach my $file ('sql/install/outbox.sql', 'src/rooms.txt', map { s{^\Q$root\E/}{}r } glob "$root/src/*.[ch] $root/src/*/*.[ch] $root/src/*/*/*.[ch]")
{
	my $text = slurp($file) =~ s{\n(?: \*|--|#)[ \t]*}{ }gr;
	next unless $text =~ m{architecture\.md};
	my ($list) = $text =~ m{architecture\.md, ((?:"[^"]+"(?: and |, )?)+)};
	my @unknown = grep { !$section{$_} } ($list // '') =~ /"([^"]+)"/g;
	is("@unknown", '', "$file points to sections of doc/architecture.md") if defined $list;
}
foreach my $room (slurp('src/rooms.txt') =~ /^([a-z_]\w*)\t/mg)
{
	next if $room eq 'top';
	like(slurp('doc/architecture.md'), qr/^\| `\Q$room\E` \|/m, "doc/architecture.md says what $room is for");
}

# "Every error has a hint": whatever a call is refused for by name.
my @without;
foreach my $file (map { glob "$root/src/$_/*.c" } qw(stage handler schedule consume operate policy))
{
	my $text = slurp($file =~ s{^\Q$root\E/}{}r);
	while ($text =~ /ereport\(ERROR,(.*?)\);\n/sg)
	{
		my $error = $1;
		push @without, $error =~ /(errmsg\("[^"]*")/ unless $error =~ /errhint/ || $error =~ /ERRCODE_(?:INTERNAL_ERROR|E_R_I_E\w*)/;
	}
}
while ($install =~ /(RAISE EXCEPTION .*?;)/sg)
{
	my $error = $1;
	push @without, $error unless $error =~ /\bHINT\b/;
}
is(join("\n", @without), '', 'every error of a call has a hint');

foreach my $link ($readme =~ /\]\(#([a-z-]+)\)/g)
{
	my ($heading) = grep { lc($_) =~ s/[^a-z ]//gr =~ s/ /-/gr eq $link } $readme =~ /^#+ (.*)$/mg;
	ok(defined $heading, "README.md has the section $link");
}

done_testing();
