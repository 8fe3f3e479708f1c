# A test with a network and a name server of its own: it goes on in a new
# user, network and mount namespace, where /etc/resolv.conf and /etc/hosts are
# the test's, 127.0.0.1 and ::1 are all there is, and a name server on
# 127.0.0.1 answers as told.  Nothing of the machine's is touched.
#
#   BEGIN { OwnNames->enter(
#       'both.test' => [ '127.0.0.1', '::1' ],     # addresses
#       'never.test' => undef); }                  # no answer, ever
#
# Any other name does not exist.  Ends the test as skipped where the system
# does not let an ordinary user have namespaces.
package OwnNames;

use strict;
use warnings;

use File::Temp ();
use IO::Select;
use IO::Socket::INET;
use Socket qw(inet_pton AF_INET AF_INET6);

# What the new namespace runs first, as its root: then back to who we were.
my $script = <<'END';
set -e
ip link set lo up
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
shift
user=$1 group=$2
shift 2
"$1" -I test/lib -MOwnNames -e 'OwnNames->serve' &
exec unshare --user --map-user="$user" --map-group="$group" "$@"
END

sub enter
{
	my ($class, %names) = @_;
	if ($ENV{OUTBOX_OWN_NAMES})
	{
		# Wait until the name server is there.
		my $end = time + 30;
		until (_asks('exists.outbox.test'))
		{
			die "the name server does not start\n" if time > $end;
		}
		return;
	}
	my $missing = _missing();
	if ($missing)
	{
		print "1..0 # SKIP $missing\n";
		exit 0;
	}
	my $folder = File::Temp::tempdir('names_XXXXXX', TMPDIR => 1, CLEANUP => 1);
	_write("$folder/resolv.conf", "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n");
	_write("$folder/hosts", "127.0.0.1 localhost\n");
	_write("$folder/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n");
	local $ENV{OUTBOX_OWN_NAMES} = join ' ', 'exists.outbox.test=127.0.0.1',
	  map { "$_=" . (defined $names{$_} ? join ',', @{ $names{$_} } : 'silence') } sort keys %names;
	my $group = (split / /, $))[0];
	system 'unshare', '--user', '--map-root-user', '--net', '--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', $script, 'sh', $folder, $>, $group,
	  $^X, (map { "-I$_" } @INC), $0;
	exit($? >> 8 || $? & 127);
}

sub _missing
{
	foreach my $program (qw(unshare ip mount))
	{
		return "$program is not installed" unless grep { -x "$_/$program" } split(/:/, $ENV{PATH}), '/sbin', '/usr/sbin';
	}
	$ENV{PATH} .= ':/sbin:/usr/sbin';
	my $does = system 'unshare --user --map-root-user --net --mount --pid --fork unshare --user --map-user=' . $> . ' true 2>/dev/null';
	return $does ? 'ordinary users cannot have namespaces here' : undef;
}

sub _write
{
	my ($name, $text) = @_;
	open my $file, '>', $name or die "$name: $!";
	print $file $text;
	close $file or die "$name: $!";
	return;
}

# The name server: one question a packet, and never a word about some.
sub serve
{
	my %names = map { split /=/, $_, 2 } split / /, $ENV{OUTBOX_OWN_NAMES};
	my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 53, Proto => 'udp') or die "cannot serve names: $!";
	while (defined(my $asker = recv $socket, my $question, 4096, 0))
	{
		my $answer = _answer($question, \%names);
		send $socket, $answer, 0, $asker if defined $answer;
	}
	return;
}

sub _answer
{
	my ($question, $names) = @_;
	return if length $question < 17;
	my ($at, @labels) = (12);
	while (my $length = ord substr $question, $at, 1)
	{
		push @labels, substr $question, $at + 1, $length;
		$at += 1 + $length;
	}
	my $name = lc join '.', @labels;
	my $asked = substr $question, 12, $at + 5 - 12;
	my $type = unpack 'n', substr $question, $at + 1, 2;
	return if exists $names->{$name} && $names->{$name} eq 'silence';
	my @records;
	foreach my $address (split /,/, $names->{$name} // '')
	{
		my $is6 = $address =~ /:/;
		next unless $type == ($is6 ? 28 : 1);
		my $bytes = inet_pton($is6 ? AF_INET6 : AF_INET, $address);
		push @records, pack('n n n N n', 0xc00c, $type, 1, 0, length $bytes) . $bytes;
	}
	my $flags = exists $names->{$name} ? 0x8580 : 0x8583;
	return substr($question, 0, 2) . pack('n n n n n', $flags, 1, scalar @records, 0, 0) . $asked . join '', @records;
}

sub _asks
{
	my $name = shift;
	my $socket = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => 53, Proto => 'udp') or return 0;
	my $asked = join('', map { chr(length) . $_ } split /\./, $name) . "\0" . pack('n n', 1, 1);
	send $socket, pack('n n n n n n', 1, 0x0100, 1, 0, 0, 0) . $asked, 0;
	return 0 unless IO::Select->new($socket)->can_read(0.2);
	return defined recv $socket, my $answer, 4096, 0;
}

1;
