# A Patroni cluster for tests: etcd and its nodes on free ports of 127.0.0.1, in
# a temporary folder, with the configuration that doc/high-availability.md shows.
#
#   my $cluster = PatroniCluster->create('shop', nodes => 3);
#   my $leader = $cluster->wait_for_leader;
#   $cluster->sql($leader, 'SELECT 1');
#   $cluster->kill_node($leader);           # as if its machine had lost power
#
# A node is named by its name, node1 and so on.  Whatever is started here ends
# with the test, and etcd and Patroni also with a test that is killed.
package PatroniCluster;

use strict;
use warnings;

use Cwd ();
use DirectSession;
use File::Basename qw(basename);
use HTTP::Tiny;
use JSON::PP ();
use OutboxCluster;
use Patience;
use POSIX qw(setsid);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils qw(slurp_file);
use Recipes;
use Test::More;
use Time::HiRes qw(time usleep);

# Whoever interrupts a test has it clean up.
$SIG{$_} = sub { exit 1 } foreach qw(INT TERM HUP);

my $page = 'doc/high-availability.md';
my @running;

# What the packages' programs are called; the name of one that is missing, or undef.
sub missing
{
	foreach my $program (qw(etcd patroni patronictl pgbackrest))
	{
		return $program unless grep { -x "$_/$program" } split /:/, $ENV{PATH};
	}
	return;
}

# Options: nodes (3), edit (a function that changes the text of each node's
# patroni.yml in $_), etcd (another cluster, whose etcd to take), repository
# (of another cluster's backups).
sub create
{
	my ($class, $scope, %options) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	my $self = bless { scope => $scope, folder => $folder, owner => $$, processes => {}, nodes => {}, edit => $options{edit} }, $class;
	push @running, $self;
	my $base = $ENV{TESTLOGDIR} || $folder;
	$self->{log} = "$base/" . basename($0, '.pl') . "_$scope";
	my $shown = Recipes->read($page);
	$self->{shown}{$_} = $shown->text($_) foreach qw(patroni.yml pgbackrest.conf);
	$self->{repository} = $options{repository} || "$folder/backups";
	mkdir $self->{repository};
	$self->{etcd} = $options{etcd} ? $options{etcd}{etcd} : $self->start_etcd;
	$self->configure("node$_") foreach 1 .. $options{nodes} || 3;
	return $self;
}

sub folder { return $_[0]{folder}; }
sub names { return sort keys %{ $_[0]{nodes} }; }
sub data_dir { return "$_[0]{folder}/$_[1]/data"; }
sub port { return $_[0]{nodes}{ $_[1] }{port}; }
sub log_file { return "$_[0]{log}_$_[1].log"; }

# A program in a process group of its own, that ends with this process.
sub _start
{
	my ($self, $name, @command) = @_;
	my $pid = fork // die "cannot fork: $!";
	if (!$pid)
	{
		setsid;
		# As in a service of its own: nothing of the test's own environment.
		delete @ENV{ grep { /^PG/ } keys %ENV };
		$ENV{PGBACKREST_CONFIG} = "$self->{folder}/$name/pgbackrest.conf" if $self->{nodes}{$name};
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', $self->log_file($name) or die "$name: $!";
		open STDERR, '>&', \*STDOUT;
		exec 'setpriv', '--pdeathsig', 'KILL', '--', @command or die "cannot run $command[0]: $!";
	}
	$self->{processes}{$name} = $pid;
	return $pid;
}

# A program in Python of this tree, whose last argument is a log in this folder.
sub run_python
{
	my ($self, $log, @command) = @_;
	my $tree = $ENV{TESTDIR} || '.';
	return $self->_start($log =~ s/\.log$//r, '/usr/bin/python3', "$tree/$command[0]", @command[ 1 .. $#command ], "$self->{folder}/$log");
}

sub start_etcd
{
	my $self = shift;
	my ($clients, $peers) = map { 'http://127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port() } 1, 2;
	$self->_start('etcd', 'etcd', '--name', 'etcd', '--data-dir', "$self->{folder}/etcd",
		'--listen-client-urls', $clients, '--advertise-client-urls', $clients,
		'--listen-peer-urls', $peers, '--initial-advertise-peer-urls', $peers, '--initial-cluster', "etcd=$peers");
	$self->until_true(sub { HTTP::Tiny->new(timeout => 2)->get("$clients/health")->{success} }, 'etcd runs') or die 'no etcd';
	return $clients =~ s{^http://}{}r;
}

# The files that the page shows, with this node's places in them.
sub configure
{
	my ($self, $name) = @_;
	my $node = $self->{nodes}{$name} = { map { $_ => PostgreSQL::Test::Cluster::get_free_port() } qw(port rest) };
	my $home = "$self->{folder}/$name";
	mkdir $home;
	my $user = getpwuid $>;
	my $bin = qx("$ENV{PG_CONFIG}" --bindir) =~ s/\n//r;
	my $data = $self->data_dir($name);
	my %text = %{ $self->{shown} };
	foreach (values %text)
	{
		s/10\.0\.0\.\d+:2379(?:,10\.0\.0\.\d+:2379)*/$self->{etcd}/;
		s/10\.0\.0\.\d+:5432/127.0.0.1:$node->{port}/g;
		s/10\.0\.0\.\d+:8008/127.0.0.1:$node->{rest}/g;
		s{10\.0\.0\.0/24}{127.0.0.1/32}g;
		s{/var/lib/postgresql/15/main}{$data}g;
		s{/usr/lib/postgresql/15/bin}{$bin}g;
		s{/etc/pgbackrest\.conf}{$home/pgbackrest.conf}g;
		s{/var/lib/pgbackrest}{$self->{repository}}g;
		s{/var/lib/postgresql/}{$home/}g;
		s{/var/run/postgresql}{$home}g;
		s/^(pg1-path=.*)$/$1\npg1-port=$node->{port}\npg1-socket-path=$home\npg1-user=$user/m;
		s/^name: .*$/name: $name/m;
		s/^scope: .*$/scope: $self->{scope}/m;
		s/username: postgres/username: $user/g;
		# What the test goes by: who sent a request, and when what happened.
		s/^(\s+)(unix_socket_directories: .*)$/$1$2\n$1outbox.user_agent: $name\n$1log_line_prefix: '%n '\n$1log_min_messages: info\n$1log_checkpoints: 'off'/m;
	}
	$text{'pgbackrest.conf'} .= "\n[global:archive-push]\nlog-level-console=warn\n";
	$text{'pgbackrest.conf'} =~ s/^\[global\]$/[global]\nlog-path=$home\nlock-path=$home\nspool-path=$home/m;
	if ($self->{edit})
	{
		local $_ = $text{'patroni.yml'};
		$self->{edit}->($name);
		$text{'patroni.yml'} = $_;
	}
	foreach my $file (keys %text)
	{
		open my $out, '>', "$home/$file" or die "$home/$file: $!";
		print $out $text{$file};
		close $out;
	}
	return;
}

sub start_node
{
	my ($self, $name) = @_;
	return $self->_start($name, 'patroni', "$self->{folder}/$name/patroni.yml");
}

# The first node makes the cluster; when it leads, the others follow.
sub start
{
	my $self = shift;
	my ($first, @others) = $self->names;
	$self->start_node($first);
	$self->wait_for_leader($first);
	$self->start_node($_) foreach @others;
	return $first;
}

# A program ends as with its service; Patroni takes its server along.
sub stop_process
{
	my ($self, $name) = @_;
	my $pid = delete $self->{processes}{$name} or return;
	kill 'TERM', $pid;
	waitpid $pid, 0;
	return;
}

sub stop_node { my ($self, $name) = @_; return $self->stop_process($name); }

# What a node's Patroni says of the cluster: members by name.
sub members
{
	my $self = shift;
	foreach my $name ($self->names)
	{
		next unless $self->{processes}{$name};
		my $answer = HTTP::Tiny->new(timeout => 2)->get("http://127.0.0.1:$self->{nodes}{$name}{rest}/cluster");
		next unless $answer->{success};
		my $said = eval { JSON::PP::decode_json($answer->{content}) } or next;
		return { map { $_->{name} => $_ } @{ $said->{members} } };
	}
	return {};
}

# The node whose server accepts writes, as it says itself, among those named.
sub leader
{
	my ($self, @among) = @_;
	foreach my $name (@among ? @among : $self->names)
	{
		my ($answer) = $self->try_sql($name, 'SELECT NOT pg_is_in_recovery()', 1);
		return $name if ($answer // '') eq 't';
	}
	return;
}

sub wait_for_leader
{
	my ($self, @among) = @_;
	my $leader;
	$self->until_true(sub { $leader = $self->leader(@among) }, "there is a leader among @among");
	return $leader // BAIL_OUT('there is no leader');
}

# All nodes that were started follow the leader, one of them as its synchronous
# standby if there is to be one.
sub wait_until_whole
{
	my ($self, $synchronous) = @_;
	my $others = (my @started = grep { $self->{processes}{$_} } $self->names) - 1;
	my $done = $self->until_true(
		sub {
			my $members = $self->members;
			my @following = grep { ($_->{role} // '') ne 'leader' && ($_->{state} // '') =~ /^(?:running|streaming)$/ } values %$members;
			my $leader = $self->leader or return 0;
			my ($streaming) = $self->try_sql($leader, "SELECT count(*) FROM pg_stat_replication WHERE application_name LIKE 'node%' AND state = 'streaming'");
			return
				 @following == $others
			  && ($streaming // 0) == $others
			  && (!$synchronous || grep { $_->{role} eq 'sync_standby' } @following);
		},
		'all nodes follow');
	diag(JSON::PP->new->canonical->pretty->encode($self->members)) unless $done;
	return $done;
}

sub synchronous_standby
{
	my $self = shift;
	my $members = $self->members;
	my ($name) = grep { $members->{$_}{role} eq 'sync_standby' } sort keys %$members;
	return $name;
}

# patronictl ARGUMENTS; what it says.
sub ctl
{
	my ($self, @arguments) = @_;
	my ($first) = $self->names;
	my ($out, $error) = ('', '');
	IPC::Run::run([ 'timeout', '120', 'patronictl', '-c', "$self->{folder}/$first/patroni.yml", @arguments ], '<', \undef, '>', \$out, '2>', \$error)
	  or die "patronictl @arguments: $out$error";
	return $out;
}

sub set_option
{
	my ($self, %options) = @_;
	$self->ctl('edit-config', '--force', '--quiet', (map { ('--set', "$_=$options{$_}") } sort keys %options), $self->{scope});
	return;
}

# pgbackrest ARGUMENTS, with a node's configuration.
sub pgbackrest
{
	my ($self, $name, @arguments) = @_;
	my ($out, $error) = ('', '');
	IPC::Run::run([ 'pgbackrest', "--config=$self->{folder}/$name/pgbackrest.conf", '--stanza=shop', @arguments ], '<', \undef, '>', \$out, '2>', \$error)
	  or die "pgbackrest @arguments: $out$error";
	return $out;
}

#
# SQL
#
sub session
{
	my ($self, $name, $database) = @_;
	return DirectSession->new($self->server($name), $database // 'postgres');
}

# A node as those take it who ask a server: by host and port, or by sql().
sub server
{
	my ($self, $name) = @_;
	return bless { cluster => $self, name => $name, host => "$self->{folder}/$name", port => $self->port($name) }, 'PatroniCluster::Server';
}

# The answer, or undef and an error.
sub try_sql
{
	my ($self, $name, $sql, $patience) = @_;
	my ($answer, $error);
	eval {
		local $SIG{ALRM} = sub { die "no answer\n" };
		alarm $patience if $patience;
		my $session = $self->session($name) or die $@;
		($answer, $error) = $session->ask($sql);
		1;
	} or $error = $@;
	alarm 0;
	return $error eq '' ? ($answer, '') : (undef, $error);
}

sub sql
{
	my ($self, $name, $sql) = @_;
	my ($answer, $error) = $self->try_sql($name, $sql);
	die "$name: $error in $sql" unless defined $answer;
	return $answer;
}

# For libpq: all nodes, so that it finds the one that accepts writes.
sub conninfo
{
	my ($self, %more) = @_;
	my @names = $self->names;
	return join ' ', 'host=' . join(',', map { '127.0.0.1' } @names), 'port=' . join(',', map { $self->port($_) } @names),
	  'dbname=postgres target_session_attrs=read-write connect_timeout=2', map { "$_=$more{$_}" } sort keys %more;
}

#
# Waiting, on conditions
#
sub until_true
{
	my ($self, $code, $what, $seconds) = @_;
	my $end = time + ($seconds || Patience::seconds());
	while (1)
	{
		my $answer = eval { $code->() };
		return $answer if $answer;
		last if time > $end;
		usleep(50_000);
	}
	Patience::in_vain();
	diag("waited in vain: $what" . ($@ ? " ($@)" : ''));
	return;
}

sub wait_for
{
	my ($self, $name, $sql, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $last;
	my $done = $self->until_true(sub { ($last) = $self->try_sql($name, $sql); ($last // '') eq $expected }, $what);
	ok($done, $what) or diag("$sql\nlast answer: " . ($last // 'none'));
	return $done;
}

# When a server last said something, by its own clock; undef: never since that place of its log.
sub said_at
{
	my ($self, $name, $pattern, $from) = @_;
	my $log = slurp_file($self->log_file($name), $from || 0);
	my @at = $log =~ /^(\d+\.\d+) \w+:  (?:$pattern)/mg;
	return $at[-1];
}

#
# Trouble
#
# All processes of a node: Patroni, the postmaster, and the children of both.
sub node_processes
{
	my ($self, $name) = @_;
	my %parent;
	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		open my $stat, '<', $file or next;
		my ($pid, $parent) = (<$stat> // '') =~ /^(\d+) \(.*\) \S (\d+)/s or next;
		$parent{$pid} = $parent;
	}
	my %ours = map { $_ => 1 } grep { exists $parent{$_} } $self->{processes}{$name} // 0, $self->postmaster($name) // 0;
	my $n = 0;
	while ($n != keys %ours)
	{
		$n = keys %ours;
		$ours{$_} = 1 foreach grep { $ours{ $parent{$_} } } keys %parent;
	}
	return sort { $a <=> $b } keys %ours;
}

sub postmaster
{
	my ($self, $name) = @_;
	open my $in, '<', $self->data_dir($name) . '/postmaster.pid' or return;
	my ($pid) = (<$in> // '') =~ /^(\d+)/;
	return unless $pid;
	my $started = OutboxCluster::started_at($pid) or return;
	my $folder = readlink("/proc/$pid/cwd") // '';
	return $folder eq Cwd::realpath($self->data_dir($name)) ? $pid : undef;
}

# Everything of a node stands still, as when its machine is frozen.
sub freeze_node
{
	my ($self, $name) = @_;
	my ($before, @all) = (0);
	while (@all = $self->node_processes($name), @all != $before)
	{
		$before = @all;
		kill 'STOP', @all;
	}
	return @all;
}

# The server of a frozen node moves again, its Patroni is gone.
sub thaw_server
{
	my ($self, $name, @processes) = @_;
	my $patroni = delete $self->{processes}{$name};
	kill 'KILL', $patroni;
	waitpid $patroni, 0;
	kill 'CONT', @processes;
	return;
}

# Everything of a node is gone at once, as when its machine loses power.
sub kill_node
{
	my ($self, $name) = @_;
	my @all = $self->freeze_node($name);
	my $at = time;
	kill 'KILL', @all;
	my $patroni = delete $self->{processes}{$name};
	waitpid $patroni, 0 if $patroni;
	$self->until_true(sub { !grep { defined OutboxCluster::started_at($_) } @all }, "$name is dead");
	return $at;
}

# Those of a node's processes whose title is like this.
sub processes_titled
{
	my ($self, $name, $pattern) = @_;
	return grep { (eval { slurp_file("/proc/$_/cmdline") } // '') =~ $pattern } $self->node_processes($name);
}

sub stop
{
	my $self = shift;
	return unless $self->{owner} == $$;
	foreach my $name ($self->names)
	{
		my @all = $self->node_processes($name);
		kill 'STOP', @all;
		kill 'KILL', $self->node_processes($name);
	}
	foreach my $pid (values %{ $self->{processes} })
	{
		kill 'KILL', $pid;
		waitpid $pid, 0;
	}
	$self->{processes} = {};
	return;
}

END
{
	my $status = $?;
	$_->stop foreach @running;
	$? = $status;
}

package PatroniCluster::Server;

sub host { return $_[0]{host}; }
sub port { return $_[0]{port}; }
sub sql { my ($self, $sql) = @_; return $self->{cluster}->sql($self->{name}, $sql); }

1;
