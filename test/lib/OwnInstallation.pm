# An installation of PostgreSQL of a test's own, of which libraries and scripts
# can be replaced: a copy of the server's files, mostly by links.
#
#   my $place = OwnInstallation->create;
#   local $ENV{PATH} = $place->path;              # servers made from now on are of this one
#   OwnInstallation::replace_file($place->library, sub { s/old/new/ });
package OwnInstallation;

use strict;
use warnings;

use File::Basename qw(dirname);
use File::Copy qw(copy);
use File::Find qw(find);
use File::Path qw(make_path);
use PostgreSQL::Test::Utils qw(slurp_file);

sub create
{
	my $class = shift;
	my $root = PostgreSQL::Test::Utils::tempdir;
	my %dirs = map { my $dir = qx("$ENV{PG_CONFIG}" --$_); chomp $dir; ($_ => $dir) } qw(bindir sharedir pkglibdir);
	foreach my $dir (values %dirs)
	{
		find(
			{
				no_chdir => 1,
				wanted => sub {
					my $copy = "$root$_";
					return $File::Find::prune = 1 if m{/pgxs$};
					return make_path($copy) if -d $_;
					make_path(dirname($copy));
					# Programs and what is to be replaced are copied, the rest is not.
					return symlink $_, $copy unless m{/bin/(postgres|pg_ctl)$|outbox};
					copy($_, $copy) or die "$copy: $!";
					chmod +(stat $_)[2] & 0777, $copy;
				}
			},
			$dir);
	}
	return bless { root => $root, map { ($_ => "$root$dirs{$_}") } keys %dirs }, $class;
}

sub root { return $_[0]{root} }
sub path { return "$_[0]{bindir}:$ENV{PATH}" }
sub library { return "$_[0]{pkglibdir}/outbox.so" }
sub http_library { return "$_[0]{pkglibdir}/outbox_http.so" }
sub extension_folder { return "$_[0]{sharedir}/extension" }

# Write a file the way an installation does: another one in its place.
sub write_file
{
	my ($file, $text) = @_;
	open my $out, '>:raw', "$file.new" or die "$file.new: $!";
	print $out $text;
	close $out;
	rename "$file.new", $file or die "$file: $!";
	return;
}

# The same with what code makes of $_, the text that it has.
sub replace_file
{
	my ($file, $change) = @_;
	my $text = slurp_file($file);
	$change->() foreach $text;
	return write_file($file, $text);
}

1;
