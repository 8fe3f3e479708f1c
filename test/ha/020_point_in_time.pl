# Point-in-time recovery as doc/high-availability.md describes it: a server beside
# production, from pgBackRest and from pg_basebackup with the same archive, and the
# whole cluster of Patroni set back in place.  None of them sends anything before
# outbox.adopt(), through restarts, new standbys and a switchover; then what was
# outstanding at that time goes out.  A restored directory that Patroni is pointed at
# is a standby to PostgreSQL: there it is outbox.site that holds it.
use strict;
use warnings;

use HttpReceiver;
use PatroniCluster;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils qw(slurp_file);
use Recipes;
use Test::More;
use Time::HiRes qw(time);

my $missing = PatroniCluster::missing();
plan skip_all => "$missing is not installed" if $missing;

my $receiver = HttpReceiver->start;
my $cluster = PatroniCluster->create('shop', nodes => 2);
my $leader = $cluster->start;
ok($cluster->wait_until_whole(1), 'two nodes');
$cluster->pgbackrest($leader, 'stanza-create');
my $bin = qx("$ENV{PG_CONFIG}" --bindir) =~ s/\n//r;

$cluster->sql($leader, <<"SQL");
CREATE EXTENSION outbox;
CREATE TABLE purchase (n int PRIMARY KEY);
SELECT outbox.create_handler('push', ARRAY['shop.*'], '@{[ $receiver->url('/push') ]}');
SELECT outbox.create_handler('pull', ARRAY['shop.*']);
SQL

# Business rows and their messages, in a transaction each.
sub purchase
{
	my ($server, $from, $to) = @_;
	my @ids;
	foreach my $n ($from .. $to)
	{
		push @ids, $server->sql("INSERT INTO purchase VALUES ($n); SELECT outbox.stage('shop.purchase', jsonb_build_object('n', $n))") =~ /([0-9a-f-]{36})/;
	}
	return @ids;
}

sub sent_by { my $who = shift; return map { $_->{headers}{'webhook-id'} } grep { $_->{headers}{'user-agent'} eq $who } $receiver->requests('/push'); }

#
# Backups, and what happens afterwards
#
my $folder = $cluster->folder;
purchase($cluster->server($leader), 1, 10);
$cluster->pgbackrest($leader, 'backup', '--type=full');
{
	local $ENV{PGPASSWORD} = 'replication-password';
	IPC::Run::run([ "$bin/pg_basebackup", '-D', "$folder/base", '-c', 'fast', '-X', 'none', '-h', '127.0.0.1', '-p', $cluster->port($leader), '-U', 'replicator' ]) or die 'no backup';
}
purchase($cluster->server($leader), 11, 30);
$cluster->wait_for($leader, "SELECT count(*) FROM outbox.deliveries WHERE handler = 'push' AND state = 'delivered'", 30, 'thirty are delivered');

# What is being sent at the time to which we shall go back.
$receiver->on('/push', { hang => 1 });
my @outstanding = purchase($cluster->server($leader), 31, 50);
my $target = $cluster->sql($leader, 'SELECT clock_timestamp()');
$receiver->release('/push', {});
purchase($cluster->server($leader), 51, 90);
$cluster->wait_for($leader, "SELECT count(*) FROM outbox.deliveries WHERE handler = 'push' AND state = 'delivered'", 90, 'the original delivers these, and more');
my $segment = $cluster->sql($leader, 'SELECT pg_walfile_name(pg_switch_wal())');
$cluster->wait_for($leader, "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver", 't', 'the archive has all of it');

# Nothing is sent there, and it says so; nothing was, in spite of a restart.
sub check_held
{
	my ($server, $what, $sends_as, $n) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($server->sql('SELECT max(n) FROM purchase WHERE n < 1000'), 50, "$what: it is as it was then");
	ok($cluster->until_true(sub { $server->sql("SELECT state FROM outbox.dispatchers") eq 'held' }, 'held'), "$what: deliveries are held")
	  or diag($server->sql('SELECT state, last_error FROM outbox.dispatchers'));
	is($server->sql('SELECT status FROM outbox.health()'), 'critical', "$what: its health says so");
	my ($answer) = eval { $server->sql("SELECT outbox.claim('pull')") };
	like($@, qr/deliveries are held because this database is a copy/, "$what: and so does claim()");
	my ($staged) = purchase($server, $n, $n);
	ok($staged, "$what: producers go on");
	is(scalar(sent_by($sends_as)), 0, "$what: nothing was sent");
	return $staged;
}

sub check_adopted
{
	my ($server, $what, $sends_as, @staged) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar(sent_by($sends_as)), 0, "$what: still nothing was sent");
	$server->sql('SELECT outbox.adopt()');
	ok($cluster->until_true(sub { sent_by($sends_as) >= @outstanding + @staged }, 'it sends'), "$what: once adopted it sends");
	is_deeply([ sort(sent_by($sends_as)) ], [ sort @outstanding, @staged ], "$what: what was outstanding then, and what was staged since");
	is($server->sql("SELECT array_to_string(reasons, '; ') FROM outbox.health(warn_after => '1 h', critical_after => '1 h')"), '', "$what: nothing is wrong any more");
	ok($server->sql("SELECT count(*) FROM outbox.claim('pull', 1000)") > 0, "$what: and consumers get theirs");
	return;
}

#
# A server beside production
#
my @beside;

sub beside
{
	my ($name, $data) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $socket = "$folder/$name";
	mkdir $socket;
	my %settings = (
		port => $port,
		listen_addresses => '',
		unix_socket_directories => $socket,
		'outbox.user_agent' => $name,
		'outbox.rescan_interval' => '1s');
	my $self = bless { name => $name, data => $data, host => $socket, port => $port,
		options => join(' ', map { "-c $_='$settings{$_}'" } sort keys %settings) }, 'Beside';
	push @beside, $self;
	return $self;
}

{
	package Beside;
	our @ISA = ('PatroniCluster::Server');

	sub sql
	{
		my ($self, $sql) = @_;
		my $session = DirectSession->new($self, 'postgres') or die $@;
		my ($answer, $error) = $session->ask($sql);
		die "$self->{name}: $error in $sql" if $error ne '';
		return $answer;
	}

	sub start
	{
		my $self = shift;
		local $ENV{PGBACKREST_CONFIG} = "$folder/$leader/pgbackrest.conf";
		system("$bin/pg_ctl", '-s', '-w', '-D', $self->{data}, '-l', ($ENV{TESTLOGDIR} || $folder) . "/beside_$self->{name}.log", '-o', "$self->{options} -c archive_mode=off -c synchronous_standby_names=''", 'start') == 0 or die "$self->{name} does not start";
		return $cluster->until_true(sub { $self->sql('SELECT NOT pg_is_in_recovery()') eq 't' }, 'recovery ends');
	}

	sub stop { my ($self, $mode) = @_; return system("$bin/pg_ctl", '-s', '-w', '-D', $self->{data}, '-m', $mode // 'fast', 'stop'); }
}

END { my $status = $?; $_->stop('immediate') foreach grep { -e "$_->{data}/postmaster.pid" } @beside; $? = $status; }

# As the page shows it, with the places of this test.
my $page = Recipes->read('doc/high-availability.md');
my %staged;
foreach my $name (qw(pgbackrest pg_basebackup))
{
	my $data = $name eq 'pgbackrest' ? "$folder/restored" : "$folder/base";
	my $server = beside($name, $data);
	my $script = $page->text($name eq 'pgbackrest' ? 'beside.sh' : 'beside_base.sh');
	$script =~ s{/srv/(?:look|base)}{$data}g;
	$script =~ s{/usr/lib/postgresql/15/bin}{$bin}g;
	$script =~ s{2026-12-01 12:00:00\+00}{$target}g;
	$script =~ s{-c port=\d+}{$server->{options}};
	local $ENV{PGBACKREST_CONFIG} = "$folder/$leader/pgbackrest.conf";
	is(system('bash', '-e', '-c', "exec > $data.said 2>&1\n$script"), 0, "$name: the script of the page") or diag(slurp_file("$data.said"));
	ok($cluster->until_true(sub { $server->sql('SELECT NOT pg_is_in_recovery()') eq 't' }, 'recovery ends'), "$name: restored to $target");
	@{ $staged{$name} } = check_held($server, $name, $name, 1001);
	$server->stop('immediate');
	ok($server->start, "$name: a crash later");
	push @{ $staged{$name} }, check_held($server, "$name after a crash", $name, 1002);
}
check_adopted($_, $_->{name}, $_->{name}, @{ $staged{ $_->{name} } }) foreach @beside;
is(scalar(sent_by($leader)), 90, 'the original has sent nothing twice');
$_->stop foreach @beside;

#
# The whole cluster goes back, in place: as the page says.
#
$cluster->stop_node($_) foreach reverse($leader, grep { $_ ne $leader } $cluster->names);
my $removed = '';
IPC::Run::run([ 'patronictl', '-c', "$folder/node1/patroni.yml", 'remove', 'shop' ], '<', \"shop\nYes I am aware\n", '>', \$removed, '2>&1') or die $removed;
foreach my $name ($cluster->names)
{
	my $data = $cluster->data_dir($name);
	rename $data, "$data.before" or die "$data: $!";
}
my $method = $page->text('point-in-time.yml') =~ s/^bootstrap:\n//r;
$method =~ s/--target="[^"]*"/--target="$target"/;
my $yml = "$folder/node1/patroni.yml";
my $text = slurp_file($yml) =~ s/^bootstrap:\n/bootstrap:\n$method/mr;
$text =~ s/outbox\.user_agent: node1/outbox.user_agent: set-back/;
open(my $out, '>', $yml) or die $!;
print $out $text;
close $out;
my $second = "$folder/node2/patroni.yml";
my $other = slurp_file($second) =~ s/outbox\.user_agent: node2/outbox.user_agent: set-back/r;
open($out, '>', $second) or die $!;
print $out $other;
close $out;

$cluster->start_node('node1');
$leader = $cluster->wait_for_leader('node1');
my @set_back = check_held($cluster->server($leader), 'in place', 'set-back', 1001);
$cluster->stop_node('node1');
$cluster->start_node('node1');
$leader = $cluster->wait_for_leader('node1');
push @set_back, check_held($cluster->server($leader), 'in place, after a restart by Patroni', 'set-back', 1002);
$cluster->start_node('node2');
ok($cluster->wait_until_whole(1), 'in place: the other node follows');
$cluster->ctl('switchover', 'shop', '--candidate', 'node2', '--force');
$leader = $cluster->wait_for_leader('node2');
push @set_back, check_held($cluster->server($leader), 'in place, after a switchover', 'set-back', 1003);
ok($cluster->wait_until_whole(1), 'in place: and the other one follows');
check_adopted($cluster->server($leader), 'in place', 'set-back', @set_back);
$cluster->ctl('switchover', 'shop', '--candidate', 'node1', '--force');
$leader = $cluster->wait_for_leader('node1');
my $before = sent_by('set-back');
purchase($cluster->server($leader), 2001, 2010);
ok($cluster->until_true(sub { sent_by('set-back') >= $before + 10 }, 'it sends'), 'in place: once adopted, a switchover changes nothing');
$cluster->stop_node($_) foreach $cluster->names;

#
# Patroni is pointed at a restored directory, elsewhere
#
my $elsewhere = PatroniCluster->create('elsewhere', nodes => 1, etcd => $cluster, repository => "$folder/backups",
	edit => sub { s/outbox\.site: shop/outbox.site: elsewhere/ or die 'no site'; s/outbox\.user_agent: node1/outbox.user_agent: elsewhere/; s/archive_mode: 'on'/archive_mode: 'off'/;
		s/^(postgresql:\n)/$1  recovery_conf:\n    restore_command: pgbackrest --stanza=shop archive-get %f "%p"\n/m; });
mkdir $elsewhere->data_dir('node1'), 0700;
$elsewhere->pgbackrest('node1', '--type=time', "--target=$target", '--archive-mode=off', 'restore');
$elsewhere->start_node('node1');
$elsewhere->wait_for_leader('node1');
$elsewhere->wait_for('node1', 'SELECT state FROM outbox.dispatchers', 'held', 'elsewhere: held by the name of the site');
cmp_ok($elsewhere->sql('node1', 'SELECT max(n) FROM purchase'), '>', 50, 'elsewhere: Patroni has not stopped at that time');
is(scalar(sent_by('elsewhere')), 0, 'elsewhere: nothing was sent');

done_testing();
