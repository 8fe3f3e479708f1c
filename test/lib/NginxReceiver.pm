# nginx as a receiver for benchmarks: a real web server, plain and over TLS, on
# free ports of 127.0.0.1, that reads each request and answers 204.
#
#   my $nginx = NginxReceiver->start;
#   ... $nginx->url('plain'), $nginx->url('tls'), $nginx->url('closing') ...
#   ... $nginx->ca_file ...
#
# tls speaks HTTP/1.1 and HTTP/2, as the client likes; closing is HTTP/1.1 over
# TLS and ends the connection with each answer; stranger is that with a
# certificate that nobody trusts.  It ends with the object.
package NginxReceiver;

use strict;
use warnings;

use Certificates;
use File::Temp ();
use IO::Socket::INET;
use Patience;
use PostgreSQL::Test::Cluster;
use Time::HiRes qw(time usleep);

# Debian has it where an ordinary user does not look.
my ($program) = grep { -x $_ } map { "$_/nginx" } split(/:/, $ENV{PATH}), qw(/usr/sbin /usr/local/sbin);

# Why there can be none here, or nothing.
sub missing
{
	return 'nginx is not installed' unless $program;
	return Certificates->missing;
}

sub start
{
	my $class = shift;
	my $folder = File::Temp->newdir('nginx_XXXXXX', TMPDIR => 1);
	my $certificates = Certificates->new;
	my %ports = map { $_ => PostgreSQL::Test::Cluster::get_free_port() } qw(plain tls closing stranger);
	my $self = bless { folder => $folder, certificates => $certificates, ports => \%ports, owner => $$ }, $class;

	$certificates->authority('ca');
	$certificates->issue('good', authority => 'ca', names => ['DNS:localhost']);
	$certificates->issue('stranger', names => ['DNS:localhost']);
	_write("$folder/ok", '');
	_write("$folder/nginx.conf", $self->_config);
	$self->{pid} = fork // die "fork: $!";
	if (!$self->{pid})
	{
		exec $program, '-p', "$folder", '-c', "$folder/nginx.conf" or POSIX::_exit(127);
	}
	my $end = time + Patience::seconds();
	until (IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $ports{plain}))
	{
		die "nginx does not start\n" if time > $end || waitpid($self->{pid}, 1) != 0;
		usleep 10_000;
	}
	return $self;
}

# nginx answers before it has read a body, and resets the stream of HTTP/2 it
# came on, unless something wants the body: a mirror does.
sub _config
{
	my $self = shift;
	my ($folder, $ports) = @$self{qw(folder ports)};
	my %file = map { $_ => $self->{certificates}->file($_) } qw(good.crt good.key stranger.crt stranger.key);
	my $temporary = join "\n", map { "${_}_temp_path $folder/$_;" } qw(client_body proxy fastcgi uwsgi scgi);
	my $answer = <<"END";
root $folder;
location / { mirror /mirror; try_files /ok =404; error_page 405 =204 \@answer; }
location = /mirror { internal; return 204; }
location \@answer { return 204; }
END
	return <<"END";
daemon off;
worker_processes 1;
pid $folder/pid;
error_log $folder/error.log warn;
events { worker_connections 4096; }
http {
access_log off;
$temporary
client_max_body_size 0;
client_body_buffer_size 2m;
keepalive_timeout 300;
keepalive_requests 1000000000;
ssl_certificate $file{'good.crt'};
ssl_certificate_key $file{'good.key'};
server { listen 127.0.0.1:$ports->{plain}; $answer }
server { listen 127.0.0.1:$ports->{tls} ssl http2; $answer }
server { listen 127.0.0.1:$ports->{closing} ssl; keepalive_timeout 0; $answer }
server { listen 127.0.0.1:$ports->{stranger} ssl; ssl_certificate $file{'stranger.crt'}; ssl_certificate_key $file{'stranger.key'}; keepalive_timeout 0; $answer }
}
END
}

sub _write
{
	my ($name, $text) = @_;
	open my $file, '>', $name or die "$name: $!";
	print $file $text;
	close $file or die "$name: $!";
	return;
}

sub url
{
	my ($self, $server) = @_;
	return "http://127.0.0.1:$self->{ports}{plain}/" if $server eq 'plain';
	return "https://localhost:$self->{ports}{$server}/";
}

sub ca_file { return $_[0]{certificates}->file('ca.crt'); }

sub DESTROY
{
	my $self = shift;
	local ($?, $!);
	return unless $self->{pid} && $self->{owner} == $$;
	kill 'TERM', $self->{pid};
	waitpid $self->{pid}, 0;
	return;
}

1;
