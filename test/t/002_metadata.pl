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

my ($default) = $control =~ /^default_version = '(\d+\.\d+)'$/m;
like($meta->{version}, qr/^\Q$default\E\./, 'outbox.control and META.json agree');
my ($library) = slurp('src/outbox.h') =~ /OUTBOX_SQL_VERSION "([^"]+)"/;
is($library, $default, 'the library expects the SQL objects it comes with');
like(slurp('CHANGELOG.md'), qr/^## \Q$meta->{version}\E /m, 'CHANGELOG.md has this version');
like(slurp('debian/changelog'), qr/\A\w+ \(\Q$meta->{version}\E[~-]/, 'debian/changelog too, on top');
like(slurp('doc/settings.md'), qr/^\| `outbox\.user_agent` \| outbox\/\Q$default\E \|/m, 'doc/settings.md says how requests name it');
unlike($install, qr/\bCREATE OR REPLACE\b/, 'the install script replaces nothing of others');

# The pages know everything that a user can call, read or set; each kind has its own.
my $settings_page = slurp('doc/settings.md');
my @pages = map { s{^\Q$root\E/}{}r } "$root/README.md", "$root/CONTRIBUTING.md", sort(glob "$root/doc/*.md"), sort(glob "$root/doc/*/*.md");
my $told_users = join "\n", map { slurp($_) } grep { !/(?:CONTRIBUTING|architecture|reference)\.md$/ } @pages;
my %seen;
foreach my $name ($install =~ /^CREATE (?:FUNCTION|PROCEDURE|VIEW) outbox\.([a-z]\w*)/mg)
{
	like($told_users, qr/\b\Q$name\E\b/, "the pages mention $name") unless $seen{$name}++;
}
foreach my $view ($install =~ /^CREATE VIEW (outbox\.[a-z]\w*)/mg)
{
	like($told_users, qr/`\Q$view\E`/, "the pages mention $view");
}
foreach my $name (slurp('src/guc.c') =~ /Variable\("(outbox\.\w+)"/g)
{
	like($settings_page, qr/^\| `\Q$name\E` \|/m, "doc/settings.md has $name");
}
# The pages about the inside name what is there: files by their path, below src
# or test or not; ranges of tests by their first; functions; every room.
my %source = map { s{.*/}{}r => 1 } glob "$root/src/*/*.[ch] $root/src/*/*/*.[ch]";
foreach my $page (@pages)
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
	like(slurp('doc/benchmarks.md'), qr/^\| `\Q$bench\E` \|/m, "doc/benchmarks.md says what the benchmark $bench measures");
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

# doc/settings.md says of each setting when a change of it is in force: that depends on
# who reads it, workers or the sessions of users.
my ($settings) = $settings_page =~ /\n(\| setting .*?)\n(?:\n|\z)/s;
my %in_force = $settings =~ /^\| `outbox\.(\w+)` \|[^|]*\| ([^|]*?) \|/mg;
my %reader = map { $_ => do { local $/; local @ARGV = glob "$root/src/$_/*.c"; join '', <> } } qw(consume dispatch on_settle operate stage table worker);
my %read_by;
foreach my $setting (slurp('src/guc.c') =~ /"outbox\.(\w+)",/g)
{
	my @rooms = grep { $reader{$_} =~ /\boutbox_\Q$setting\E\b/ } keys %reader;
	# What logs attempts, what retention goes by and what checks addresses is there for both, or read elsewhere.
	@rooms = ({ log_attempts => [qw(consume dispatch)], (map { $_ => [qw(operate worker)] } qw(delivered_retention dead_retention action_retention prune_batch_size prune_interval)), dedupe_window => [qw(stage worker)], blocked_networks => ['dispatch'], log_response_headers => ['dispatch'], redact_function => [qw(consume dispatch)], max_databases => [] }->{$setting} || \@rooms)->@*;
	$read_by{$setting} = join ', ', (grep { /^(?:dispatch|on_settle|worker)$/ } @rooms) ? 'reload' : (), (grep { /^(?:consume|operate|stage)$/ } @rooms) ? 'session' : ();
}
@read_by{qw(max_databases max_stat_handlers transport)} = qw(restart restart start);
is_deeply(\%in_force, \%read_by, 'doc/settings.md says when each setting is in force');

# The table of doc/errors.md has what callers can meet, and nothing else.
my %raised = map { $_ => 1 } $install =~ /ERRCODE = '([a-z_]+)'/g;
foreach my $text (map { slurp(s{^\Q$root\E/}{}r) } map { glob "$root/src/$_/*.c" } qw(common format handler consume operate policy schedule shared stage table watch))
{
	while ($text =~ /\b(?:ereport\(ERROR,|outbox_fault\()(.*?);\n/sg)
	{
		my $error = $1;
		$raised{ lc $_ } = 1 foreach $error =~ /ERRCODE_(?:T_R_)?(\w+)/g;
	}
}
# Those are the library's own mistakes, want of memory, and a trigger put where it does not belong.
delete @raised{qw(internal_error out_of_memory e_r_i_e_trigger_protocol_violated)};
# From a snapshot that is too old: PostgreSQL's, with a hint of outbox.
$raised{serialization_failure} = 1;
my ($table) = slurp('doc/errors.md') =~ /\n(\| SQLSTATE .*?)\n(?:\n|\z)/s;
my %told;
foreach my $row (split /\n/, $table)
{
	my ($states, $names, $when, $remedy) = map { s/^\s+|\s+$//gr } (split /\|/, $row)[ 1 .. 4 ];
	next if $states =~ /^(?:SQLSTATE|-+)/;
	@told{ split /, /, $names } = split /, /, $states;
	ok($when && $remedy, "doc/errors.md says when $names is raised and what to do");
}
is(join(' ', sort keys %told), join(' ', sort keys %raised), 'doc/errors.md lists the errors that are raised');
my $headers = qx(@{[ $ENV{PG_CONFIG} || 'pg_config' ]} --includedir-server 2>/dev/null) =~ s/\n//r . '/utils/errcodes.h';
SKIP:
{
	skip "SQLSTATEs: no $headers", 1 unless -e $headers;
	my $codes = do { local (@ARGV, $/) = $headers; <> };
	my %state = map { my ($name, $characters) = @$_; lc $name => $characters =~ s/[', ]//gr }
	  map { [/ERRCODE_(\w+) MAKE_SQLSTATE\(([^)]*)\)/] } grep { /MAKE_SQLSTATE/ } split /\n/, $codes;
	is(join(' ', map { "$_ " . ($state{$_} // $state{"t_r_$_"} // '?') } sort keys %told), join(' ', map { "$_ $told{$_}" } sort keys %told), 'by their SQLSTATE');
}

# So does the table of codes of doc/outcomes.md.
my ($codes) = slurp('doc/outcomes.md') =~ /\n(\| code \|.*?)\n(?:\n|\z)/s;
my %code = map { $_ => 1 } map { /`([a-z_]+)`/g } map { (split /\|/)[1] } split /\n/, $codes;
my %given = map { $_ => 1 } ($install =~ /\bcode = '([a-z_]+)', \w+ = /g, $install =~ /cancel_rows\(places, '([a-z_]+)'/g, $install =~ /\bcode text DEFAULT '([a-z_]+)'/g);
foreach my $text (map { slurp(s{^\Q$root\E/}{}r) } map { glob "$root/src/$_/*.[ch]" } qw(consume dispatch on_settle policy stage))
{
	$given{$_} = 1 foreach ($text =~ /(?:\bcode\b|_code\b)(?:(?!\n).)*"([a-z_]+)"(?:, sizeof|\);|\};)/g,
		$text =~ /#define (?:OUTBOX_LEASE_EXPIRED|OUTBOX_BATCH_ANSWER_CODE|ON_SETTLE_FAILED) "([a-z_]+)"/g);
	my ($failures) = $text =~ /\nfailure_code\(.*?\{(.*?)\n\}/s;
	$given{$_} = 1 foreach ($failures // '') =~ /return "([a-z]+)";/g;
	my ($said) = $text =~ /\nmean_said\(.*?\{(.*?)\n\}/s;
	$given{$_} = 1 foreach grep { $_ ne 'ok' } ($said // '') =~ /"([a-z]+)"/g;
}
is(join(' ', sort keys %code), join(' ', sort keys %given), 'doc/outcomes.md lists the codes that are given');

# Links lead somewhere: to a file of the tree, and to a heading of a page, which GitHub names so.
sub anchor_of
{
	my $heading = lc shift;
	$heading =~ s/[^\w -]//g;
	return $heading =~ tr/ /-/r;
}
my %anchors = map { my $page = $_; $page => { map { anchor_of($_) => 1 } slurp($page) =~ /^#+ (.*)$/mg } } @pages;
foreach my $page (@pages)
{
	my @broken;
	my ($folder) = $page =~ m{^(.*/)?};
	my $text = slurp($page) =~ s/^```.*?^```$//msgr;
	foreach my $link (grep { !/^\w+:/ } $text =~ /\]\(([^)\s]+)\)/g)
	{
		my ($file, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
		my $target = $file eq '' ? $page : ($folder // '') . $file;
		1 while $target =~ s{[^/]+/\.\./}{};
		push @broken, $link if !-e "$root/$target" || (defined $anchor && !$anchors{$target}{$anchor});
	}
	is("@broken", '', "$page: its links lead somewhere");
	# A front page or another page leads to each.
	next if $page =~ /^(?:README|CONTRIBUTING)\.md$/;
	my ($name) = $page =~ m{^doc/(.*)$};
	ok((grep { $_ ne $page && slurp($_) =~ m{\]\((?:\.\./|doc/)*\Q$name\E[)#]} } @pages), "$page: is linked to");
}
cmp_ok(scalar(split /\n/, slurp('README.md')), '<', 250, 'README.md is a front door');

done_testing();
