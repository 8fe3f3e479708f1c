# PgBouncer before a test's server, with the configuration that
# doc/recipes/pgbouncer.md shows, but for the places of this machine and a pool
# of one connection, which all clients of a user share.
#
#   my $pooler = PgBouncer->start($node) or plan skip_all => 'pgbouncer is not installed';
#   ... $pooler->port, on 127.0.0.1; the database is called shop ...
#   $pooler->stop;
package PgBouncer;

use strict;
use warnings;

use IPC::Run;
use IO::Socket::INET;
use PostgreSQL::Test::Cluster;
use Recipes;

sub start
{
	my ($class, $node) = @_;
	my ($program) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH}), '/usr/sbin';
	return unless $program;
	my $folder = $node->basedir . '/pgbouncer';
	mkdir $folder or die "$folder: $!";
	my $self = bless { port => PostgreSQL::Test::Cluster::get_free_port(), log => '' }, $class;
	my $user = getpwuid $>;
	my $ini = Recipes->read('doc/recipes/pgbouncer.md')->text('pgbouncer.ini');
	my %here = (listen_port => $self->{port}, auth_type => 'trust', auth_file => "$folder/userlist.txt", default_pool_size => 1,
		shop => "host=@{[ $node->host ]} port=@{[ $node->port ]} dbname=postgres");
	foreach my $name (sort keys %here)
	{
		$ini =~ s/^\Q$name\E = .*$/$name = $here{$name}/m or die "pgbouncer.md has no $name";
	}
	write_file("$folder/pgbouncer.ini", $ini . "unix_socket_dir =\nadmin_users = $user\n");
	write_file("$folder/userlist.txt", join '', map { qq("$_" ""\n) } $user, 'shop_app');
	$self->{process} = IPC::Run::start([ $program, "$folder/pgbouncer.ini" ], '<', \undef, '>&', \$self->{log});
	$node->wait_while_not(
		sub {
			$self->{process}->pump_nb;
			return IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port});
		},
		'PgBouncer is there')
	  or die $self->{log};
	return $self;
}

sub write_file
{
	my ($file, $text) = @_;
	open my $out, '>', $file or die "$file: $!";
	print $out $text;
	close $out or die "$file: $!";
	return;
}

sub port { return $_[0]{port}; }

sub stop
{
	my $self = shift;
	$self->{process}->signal('INT');
	$self->{process}->finish;
	return;
}

1;
