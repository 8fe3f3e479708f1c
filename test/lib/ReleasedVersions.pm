# Versions of the SQL objects that a tree has: the present one, those that were
# released, and the scripts that lead from one to another (CONTRIBUTING.md,
# "Growing"; doc/releasing.md).
#
#   my $versions = ReleasedVersions->new($root);
#   $versions->present                  # '0.10', of outbox.control
#   $versions->released                 # ('0.9'), the oldest first: sql/released
#   $versions->served                   # ('0.10', '0.9'): what the library knows
#   $versions->path('0.9', '0.10')      # ('0.9', '0.10'), or nothing if no scripts lead there
#   $versions->problems                 # what does not fit together, in sentences
#
# Reads files and nothing else.
package ReleasedVersions;

use strict;
use warnings;

use JSON::PP ();

sub new
{
	my ($class, $root) = @_;
	return bless { root => $root }, $class;
}

sub slurp
{
	my ($self, $name) = @_;
	open my $in, '<:encoding(UTF-8)', "$self->{root}/$name" or die "$name: $!\n";
	local $/;
	return scalar <$in>;
}

# Numbers with dots between them, in order.
sub compare
{
	my ($left, $right) = map { [ split /\./, $_ ] } @_;
	while (@$left || @$right)
	{
		my $order = (shift(@$left) // -1) <=> (shift(@$right) // -1);
		return $order if $order;
	}
	return 0;
}

# What must be there is looked for by a pattern; die and say so unless it is.
sub find
{
	my ($self, $file, $pattern, $what) = @_;
	return $self->slurp($file) =~ $pattern ? $1 : die "$file has no $what\n";
}

sub present { return $_[0]->find('outbox.control', qr/^default_version = '([\d.]+)'$/m, 'default_version'); }
sub library { return $_[0]->find('src/outbox.h', qr/^#define OUTBOX_SQL_VERSION "([^"]+)"$/m, 'OUTBOX_SQL_VERSION'); }
# The version of the whole, with a number more: of what is not SQL.
sub distribution { return JSON::PP->new->decode($_[0]->slurp('META.json'))->{version}; }

sub released
{
	my $self = shift;
	return sort { compare($a, $b) } map { m{/outbox--([\d.]+)\.sql$} ? $1 : () } glob "$self->{root}/sql/released/outbox--*.sql";
}

# Those that were released before the present one.
sub before
{
	my $self = shift;
	my $present = $self->present;
	return grep { $_ ne $present } $self->released;
}

sub served
{
	my $self = shift;
	my $list = $self->find('src/common/sql_version.c', qr/^static const char \*const served_versions\[\] = \{\n(.*?)^\};/ms, 'served_versions');
	return map { $_ eq 'OUTBOX_SQL_VERSION' ? $self->library : s/"//gr } $list =~ /(OUTBOX_SQL_VERSION|"[^"]+")/g;
}

# Scripts: [ from, to ].
sub upgrades
{
	my $self = shift;
	return map { m{/outbox--([\d.]+)--([\d.]+)\.sql$} ? [ $1, $2 ] : () } glob "$self->{root}/sql/upgrade/outbox--*--*.sql";
}

# The shortest way, as PostgreSQL takes it.
sub path
{
	my ($self, $from, $to) = @_;
	my @paths = ([$from]);
	my %seen = ($from => 1);
	while (my $path = shift @paths)
	{
		return @$path if $path->[-1] eq $to;
		push @paths, map { [ @$path, $_->[1] ] } grep { $_->[0] eq $path->[-1] && !$seen{ $_->[1] }++ } $self->upgrades;
	}
	return;
}

# The body of outbox_internal.library_can() in a script; undef if it has none.
sub library_can
{
	my ($self, $file) = @_;
	return ($self->slurp($file) =~ /^CREATE (?:OR REPLACE )?FUNCTION outbox_internal\.library_can\(.*?\$\$\n(.*?)\$\$;/ms)[0];
}

sub problems
{
	my $self = shift;
	my $root = $self->{root};
	my $present = $self->present;
	my $install = 'sql/install/outbox.sql';
	my @released = $self->released;
	my @before = $self->before;
	my @problems;

	push @problems, "The library speaks to objects of version ${\$self->library}, and outbox.control has $present" if $self->library ne $present;
	push @problems, "META.json has version ${\$self->distribution}, which does not begin with $present" if $self->distribution !~ /^\Q$present\E\.\d/;
	foreach my $version (grep { compare($_, $present) > 0 } @released)
	{
		push @problems, "Version $version was released and is younger than $present, the present one";
	}
	push @problems, "$install is not what was released as $present: what changes it belongs to a version of its own (make next)"
	  if -e "$root/sql/released/outbox--$present.sql" && $self->slurp($install) ne $self->slurp("sql/released/outbox--$present.sql");
	foreach my $version (@before)
	{
		push @problems, "No scripts in sql/upgrade lead from $version to $present" unless $self->path($version, $present);
	}
	my %known = map { $_ => 1 } @released, $present;
	foreach my $pair ($self->upgrades)
	{
		my ($from, $to) = @$pair;
		my $file = "sql/upgrade/outbox--$from--$to.sql";
		push @problems, "$file: no version $_ was released" foreach grep { !$known{$_} } $from, $to;
		my $text = $self->slurp($file);
		push @problems, "$file does not begin with SET LOCAL lock_timeout" unless $text =~ /\A(?:--.*\n|\\echo .*\n|\n|SELECT outbox_internal\.require_library\('\Q$to\E'\);\n)*SET LOCAL lock_timeout = /;
		push @problems, "$file does not end with SELECT outbox_internal.wrap_comments()" unless $text =~ /\nSELECT outbox_internal\.wrap_comments\(\);\s*\z/;
	}
	# A library serves its own objects and those of the release before.
	my @served = $self->served;
	my @serves = ($present, @before ? $before[-1] : ());
	push @problems, "The library serves @served, and has to serve @serves (src/common/sql_version.c)" if "@served" ne "@serves";
	if (@before)
	{
		my $said = $self->library_can($install) // '';
		push @problems, "outbox_internal.library_can() does not say what a library of version $before[-1] may do" unless $said =~ /'\Q$before[-1]\E'/;
	}
	# Scripts name functions of the library that is there when they run, the youngest.
	my %symbols;
	foreach my $file (glob "$root/src/*.c $root/src/*/*.c $root/src/*/*/*.c")
	{
		open my $in, '<', $file or die "$file: $!\n";
		local $/;
		$symbols{$_} = 1 foreach <$in> =~ /PG_FUNCTION_INFO_V1\((\w+)\)/g;
	}
	foreach my $file ((map { "sql/released/outbox--$_.sql" } @before), map { "sql/upgrade/outbox--$_->[0]--$_->[1].sql" } $self->upgrades)
	{
		my %named = map { $_ => 1 } $self->slurp($file) =~ /'MODULE_PATHNAME', '(\w+)'/g;
		push @problems, "$file names $_, which the library has not" foreach grep { !$symbols{$_} } sort keys %named;
	}
	return @problems;
}

1;
