# Certificates for tests, made with the openssl program in a folder of their
# own, which goes away with the object.
#
#   my $certificates = Certificates->new;
#   $certificates->authority('ca');
#   $certificates->issue('good', authority => 'ca', names => ['DNS:localhost']);
#   ... $certificates->file('good.crt'), $certificates->file('good.key') ...
package Certificates;

use strict;
use warnings;

use File::Temp ();
use IPC::Run qw(run);
use POSIX qw(strftime);

# Why certificates cannot be made here, or nothing.
sub missing
{
	return if grep { -x "$_/openssl" } split /:/, $ENV{PATH};
	return 'openssl is not installed';
}

sub new
{
	my $class = shift;
	my $folder = File::Temp->newdir('certificates_XXXXXX', TMPDIR => 1);
	return bless { folder => $folder }, $class;
}

sub file
{
	my ($self, $name) = @_;
	return "$self->{folder}/$name";
}

sub write
{
	my ($self, $name, $text) = @_;
	open my $file, '>', $self->file($name) or die "$name: $!";
	print $file $text;
	close $file or die "$name: $!";
	return $self->file($name);
}

sub read
{
	my ($self, $name) = @_;
	open my $file, '<', $self->file($name) or die "$name: $!";
	local $/;
	return scalar <$file>;
}

sub _openssl
{
	my (@arguments) = @_;
	my $output = '';
	run [ 'openssl', @arguments ], '<', \undef, '>&', \$output or die "openssl @arguments failed:\n$output";
	return;
}

sub _time
{
	my $days = shift;
	return strftime('%Y%m%d%H%M%SZ', gmtime(time + $days * 86400));
}

sub authority
{
	my ($self, $name) = @_;
	my $config = $self->write("$name.cnf", <<"END");
[req]
distinguished_name = dn
x509_extensions = authority
prompt = no
[dn]
CN = authority $name
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
END
	_openssl('req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-sha256', '-days', '30',
		'-config', $config, '-keyout', $self->file("$name.key"), '-out', $self->file("$name.crt"));
	return;
}

# A certificate with these names, valid from and to so many days from now,
# signed by an authority or else by itself.
sub issue
{
	my ($self, $name, %options) = @_;
	my $authority = $options{authority} // $name;
	my $names = join ',', @{ $options{names} || ['DNS:nobody.test'] };
	$self->write("$name.$_", '') foreach qw(db db.attr);
	my $config = $self->write("$name.cnf", <<"END");
[req]
distinguished_name = dn
prompt = no
[dn]
CN = $name
[ca]
default_ca = this
[this]
database = @{[ $self->file("$name.db") ]}
new_certs_dir = $self->{folder}
default_md = sha256
rand_serial = yes
policy = any
x509_extensions = leaf
[any]
commonName = supplied
[leaf]
basicConstraints = critical, CA:FALSE
subjectAltName = $names
END
	_openssl('req', '-new', '-newkey', 'rsa:2048', '-nodes', '-config', $config,
		'-keyout', $self->file("$name.key"), '-out', $self->file("$name.csr"));
	_openssl('ca', '-batch', '-notext', '-config', $config, '-in', $self->file("$name.csr"), '-out', $self->file("$name.crt"),
		'-keyfile', $self->file("$authority.key"), ($options{authority} ? ('-cert', $self->file("$authority.crt")) : '-selfsign'),
		'-startdate', _time($options{from} // -1), '-enddate', _time($options{to} // 30));
	return;
}

1;
