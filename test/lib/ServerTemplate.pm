# New servers for tests: initdb once, and copies of what it made.
#
# initdb takes a second or more of a processor, and a run makes some hundred
# servers.  Those with the same options are copies of one that is made when it
# is first wanted, and kept beside the test's data for the other files of a
# run.  Each gets a system identifier of its own, as initdb would have given it,
# for outbox tells servers apart by theirs.
package ServerTemplate;

use strict;
use warnings;

use Cwd qw(realpath);
use Digest::MD5 qw(md5_hex);
use Fcntl qw(:flock);
use PostgreSQL::Test::Utils ();
use Time::HiRes qw(gettimeofday);

# What system_or_bail('initdb', ...) of PostgreSQL::Test::Cluster does, while code runs.
sub with_copies
{
	my $code = shift;
	my $plain = \&PostgreSQL::Test::Utils::system_or_bail;
	no warnings 'redefine';
	local *PostgreSQL::Test::Utils::system_or_bail = sub {
		my ($program, @arguments) = @_;
		my ($at) = grep { $arguments[$_] =~ /^(?:-D|--pgdata)$/ } 0 .. $#arguments;
		return $plain->(@_) unless $program eq 'initdb' && defined $at && $ENV{TESTDATADIR};
		my $to = $arguments[ $at + 1 ];
		my $template = template($plain, @arguments[ 0 .. $at ], undef, @arguments[ $at + 2 .. $#arguments ]);
		rmdir $to;
		$plain->('cp', '-RPp', $template, $to);
		set_system_identifier($to);
		return;
	};
	return $code->();
}

# The template for these arguments, where undef stands for its folder.
sub template
{
	my ($run, @arguments) = @_;
	my ($initdb) = grep { -x } map { "$_/initdb" } split /:/, $ENV{PATH};
	my $folder = "$ENV{TESTDATADIR}/template_" . md5_hex(join "\0", realpath($initdb // 'initdb'), map { $_ // '' } @arguments);
	open my $lock, '>>', "$folder.lock" or die "$folder.lock: $!";
	flock $lock, LOCK_EX or die "$folder.lock: $!";
	return $folder if -d $folder;
	$run->('initdb', map { $_ // "$folder.new" } @arguments);
	rename "$folder.new", $folder or die "$folder: $!";
	return $folder;
}

# Castagnoli's, as PostgreSQL computes it.
my @crc_table = map { my $c = $_; $c = $c & 1 ? $c >> 1 ^ 0x82f63b78 : $c >> 1 foreach 1 .. 8; $c } 0 .. 255;

# Go on with a checksum that was given out, or begin one.
sub crc
{
	my ($bytes, $before) = @_;
	my $crc = ($before // 0) ^ 0xffffffff;
	$crc = $crc_table[ ($crc ^ $_) & 0xff ] ^ $crc >> 8 foreach unpack 'C*', $bytes;
	return $crc ^ 0xffffffff;
}

# Where the control file's checksum is: at the place that holds that of all before it.
sub crc_place
{
	my @words = unpack '(a4)*', shift;
	my $crc;
	foreach my $n (0 .. $#words)
	{
		return 4 * $n if $n && unpack('L', $words[$n]) == $crc;
		$crc = crc($words[$n], $crc);
	}
	die 'no checksum in pg_control';
}

# The identifier stands in the control file and in the first page of each segment of WAL.
sub set_system_identifier
{
	my $folder = shift;
	my ($seconds, $microseconds) = gettimeofday;
	my $identifier = pack 'Q', $seconds << 32 | $microseconds << 12 | $$ & 0xfff;
	change_file(
		"$folder/global/pg_control",
		sub {
			my $at = crc_place($_);
			substr($_, 0, 8) = $identifier;
			substr($_, $at, 4) = pack 'L', crc(substr($_, 0, $at));
		},
		8192);
	opendir my $segments, "$folder/pg_wal" or die "$folder/pg_wal: $!";
	change_file("$folder/pg_wal/$_", sub { substr($_, 24, 8) = $identifier }, 32) foreach grep { /^[0-9A-F]{24}$/ } readdir $segments;
	return;
}

# Have code change the first bytes of a file, in $_.
sub change_file
{
	my ($file, $change, $length) = @_;
	open my $handle, '+<:raw', $file or die "$file: $!";
	read $handle, my $bytes, $length or die "$file: $!";
	$change->() foreach $bytes;
	seek $handle, 0, 0;
	print $handle $bytes;
	close $handle or die "$file: $!";
	return;
}

1;
