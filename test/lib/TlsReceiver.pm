# Receivers that speak TLS, HTTP/1.1 and HTTP/2: any number of them in one
# node process, on free ports of 127.0.0.1.  test/lib/node/tls_receiver.js says
# what they can do to requests.
#
#   my $receivers = TlsReceiver->start(
#       good => { cert => $file, key => $file },
#       two => { cert => $file, key => $file, http2 => 1 });
#   ... $receivers->url('good', '/path') ...
#   my @requests = $receivers->requests('good');
#
# Options of each are those of node's tls.createServer(), files by name.
package TlsReceiver;

use strict;
use warnings;

use File::Temp qw(tempfile);
use JSON::PP ();
use Patience;
use Time::HiRes qw(time usleep);

my @running;
my $json = JSON::PP->new->utf8;

# Why there can be none here, or nothing.
sub missing
{
	return if grep { -x "$_/node" } split /:/, $ENV{PATH};
	return 'node is not installed, so there are no receivers that speak TLS';
}

sub start
{
	my ($class, %servers) = @_;
	my ($config, $config_name) = tempfile('tls_receiver_XXXXXX', TMPDIR => 1, UNLINK => 1);
	print $config $json->encode(\%servers);
	close $config;
	my ($log, $log_name) = tempfile('tls_receiver_log_XXXXXX', TMPDIR => 1, UNLINK => 1);
	pipe my $read, my $write or die "pipe: $!";
	my $pid = fork // die "fork: $!";
	if (!$pid)
	{
		open STDIN, '<&', $read;
		open STDOUT, '>&', $log;
		close $write;
		exec 'node', 'test/lib/node/tls_receiver.js', $config_name or POSIX::_exit(127);
	}
	close $read;
	my $self = bless { pid => $pid, owner => $$, pipe => $write, log => $log, rest => '', records => [] }, $class;
	push @running, $self;
	seek $log, 0, 0;
	open $self->{log}, '<:raw', $log_name or die "$log_name: $!";
	my $end = time + Patience::seconds();
	until ($self->{ports})
	{
		die "the TLS receivers do not start\n" if time > $end || waitpid($pid, 1) != 0;
		$self->_read;
		$self->{ports} = shift @{ $self->{records} };
		usleep 10_000;
	}
	return $self;
}

sub port { return $_[0]{ports}{ $_[1] } // die "no receiver $_[1]"; }

sub url
{
	my ($self, $server, $path, $host) = @_;
	return 'https://' . ($host // '127.0.0.1') . ':' . $self->port($server) . ($path // '/');
}

# Requests that a server read in full, of one path if that is given: hashes of
# server, path, version (HTTP), protocol (TLS), connection, headers, peer (the
# name in the client's certificate) and body.
sub requests
{
	my ($self, $server, $path) = @_;
	$self->_read;
	return grep { $_->{server} eq $server && (!defined $path || $_->{path} eq $path) } @{ $self->{records} };
}

sub _read
{
	my $self = shift;
	1 while sysread $self->{log}, $self->{rest}, 1 << 20, length $self->{rest};
	push @{ $self->{records} }, $json->decode($1) while $self->{rest} =~ s/^([^\n]*)\n//;
	return;
}

sub stop
{
	my $self = shift;
	return unless $self->{pid} && $self->{owner} == $$;
	close $self->{pipe};
	kill 'KILL', $self->{pid};
	waitpid $self->{pid}, 0;
	$self->{pid} = 0;
	return;
}

END
{
	my $status = $?;
	$_->stop foreach @running;
	$? = $status;
}

1;
