# The floor plan of src/rooms.txt is the code's: no room includes what it may
# not, nothing runs in a circle, every header says which process runs it, and
# what belongs to one place is in no other.  Needs no server.
use strict;
use warnings;

use File::Basename qw(dirname);
use File::Find qw(find);
use Test::More;

my $root = dirname(__FILE__) . '/../..';
my %ground = map { $_ => 1 } qw(outbox.h compat.h guc.h);

sub slurp
{
	my $name = shift;
	open my $in, '<', "$root/$name" or die "$name: $!";
	local $/;
	return scalar <$in>;
}

# The room of a file or header, named as it is included.
sub room_of
{
	my $file = shift;
	return $file =~ m{^([^/]+)/} ? $1 : 'top';
}

# The plan: rooms in their order, and what each may include.
my (@rooms, %may);
foreach (grep { !/^\s*(#|$)/ } split /\n/, slurp('src/rooms.txt'))
{
	my ($room, @others) = split;
	ok(!$may{$room}, "src/rooms.txt names $room once");
	foreach my $other (@others)
	{
		ok($may{$other}, "$room includes $other, which stands above it in src/rooms.txt")
		  or diag("A room may name only rooms above it, so that nothing runs in a circle. Move the line, or what $room needs of $other into a room that both may include.");
	}
	push @rooms, $room;
	$may{$room} = { map { $_ => 1 } @others };
}

# The code: text of each file by its path below src.
my %text;
find({ no_chdir => 1, wanted => sub { $text{ s{^\Q$root\E/src/}{}r } = slurp(s{^\Q$root\E/}{}r) if /\.[ch]$/ } }, "$root/src");
cmp_ok(scalar keys %text, '>', 100, 'there is code to look at');

my %found = map { room_of($_) => 1 } keys %text;
is_deeply([ sort keys %found ], [ sort @rooms ], 'the folders of src are the rooms of src/rooms.txt')
  or diag('A new folder needs a line in src/rooms.txt and a row in doc/architecture.md.');

my (%used, @forbidden);
foreach my $file (sort keys %text)
{
	my $room = room_of($file);
	while ($text{$file} =~ /^#\s*include "([^"]+)"/mg)
	{
		my $header = $1;
		next if !exists $text{$header} || $ground{$header};
		my $other = room_of($header);
		next if $other eq $room;
		$used{$room}{$other} = 1;
		push @forbidden, "$file includes $header" unless $may{$room}{$other};
	}
}
is(join("\n", @forbidden), '', 'every room includes only what it may')
  or diag('Move what is needed into a room that both may include, or pass it in as an argument or a callback; see doc/architecture.md, "Rooms".');

foreach my $room (@rooms)
{
	my @unused = grep { !$used{$room}{$_} } sort keys %{ $may{$room} };
	is("@unused", '', "$room needs every room that it may include") or diag("Take it off the line of $room in src/rooms.txt.");
}

# What belongs to one place.
my @only = (
	[ qr/\bPG_VERSION_NUM\b/, 'versions of PostgreSQL', qr/^compat\.h$/ ],
	[ qr/^#\s*include <curl\//m, 'libcurl', qr/^http\// ]);
foreach (@only)
{
	my ($pattern, $what, $where) = @$_;
	my @elsewhere = grep { $_ !~ $where && $text{$_} =~ $pattern } sort keys %text;
	is("@elsewhere", '', "$what: only in the one place");
}
my @server = grep { m{^http/} && $_ ne 'http/module.c' && $text{$_} =~ /^#\s*include "(?:postgres|fmgr|c)\.h"/m } sort keys %text;
is("@server", '', 'nothing in http includes headers of the server') or diag('They raise errors and handle interrupts, neither of which may happen below libcurl.');

# What a reader finds at the top of a file.
my (@silent, @nameless);
foreach my $file (sort keys %text)
{
	my ($head) = $text{$file} =~ m{\A(/\*.*?\*/)}s;
	(my $base = $file) =~ s{.*/}{};
	push @nameless, $file unless defined $head && $head =~ /^ \* \Q$base\E\n \*\t\t\S/m;
	push @silent, $file if $file =~ /\.h$/ && ($head // '') !~ /\bProcess(?:es)?: \S/;
}
is("@nameless", '', 'every file begins with its name and what it is for');
is("@silent", '', 'every header says which process runs it') or diag('In its first comment: "Process: the dispatcher." or "Processes: ...".');

# Numbers of server tests: CONTRIBUTING.md has the subjects.
my @subjects;
my $contributing = slurp('CONTRIBUTING.md');
push @subjects, [ $1, $2 ] while $contributing =~ /^\| (\d{3}) to (\d{3}) \|/mg;
my (%number, @twice);
foreach my $file (map { s{.*/}{}r } sort glob "$root/test/t/*.pl")
{
	my ($number) = $file =~ /^(\d{3})_\w+\.pl$/;
	ok(defined $number, "$file has a number") or next;
	push @twice, "$number: $number{$number}, $file" if $number{$number};
	$number{$number} = $file;
	ok((grep { $_->[0] <= $number && $number <= $_->[1] } @subjects), "$number is of a subject that CONTRIBUTING.md has");
}
is(join("\n", @twice), '', 'no two files of test/t have the same number') or diag('CONTRIBUTING.md says which hundred is for what.');

done_testing();
