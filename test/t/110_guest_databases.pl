# What a DBA does to databases works as if outbox were not there: commands
# that need a database for themselves get it promptly, with a live dispatcher
# and a receiver that hangs, and delivery comes back by itself.
use strict;
use warnings;

use HttpReceiver;
use List::Util qw(min);
use OutboxCluster;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', extension => 0);

sub outbox_in
{
	my $database = shift;
	$node->extension($database);
	$node->handler('h', ['a.*'], $receiver->url("/$database"), database => $database);
	$node->wait_for_dispatcher($database);
	return;
}

# Have a request hang in a database.
sub hang_in
{
	my ($database, $path) = @_;
	$receiver->on($path, { hang => 1 });
	my $before = $receiver->count($path);
	my $id = $node->stage('a.b', '{}', database => $database);
	$node->wait_while_not(sub { $receiver->count($path) > $before }, "a receiver hangs on a request of $database");
	return $id;
}

sub promptly
{
	my ($sql, $name, $database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $start = time;
	my ($status, $out, $error) = $node->psql($database // 'postgres', $sql);
	is($status, 0, $name) or diag($error);
	cmp_ok(time - $start, '<', 6, 'promptly');
	return;
}

sub delivers
{
	my ($database, $path, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$receiver->on($path, {});
	my $id = $node->stage('a.b', '{}', database => $database);
	$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'delivered', $name, $database);
	return;
}

sub all_delivered
{
	my ($database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state <> 'delivered'", 0, $name, $database);
	return;
}

outbox_in($_) foreach qw(shop gone forced other);

# DROP DATABASE: one with a dispatcher and a request that hangs, with FORCE
# and without; and one without an outbox, while requests hang elsewhere.
hang_in($_, "/$_") foreach qw(shop gone forced);
promptly('DROP DATABASE gone', 'DROP DATABASE with a live dispatcher and a request that is out');
promptly('DROP DATABASE forced WITH (FORCE)', 'DROP DATABASE WITH (FORCE)');
$node->sql('CREATE DATABASE unrelated');
promptly('DROP DATABASE unrelated', 'DROP DATABASE of another one while a receiver hangs');
is($node->sql("SELECT string_agg(database::text, ' ' ORDER BY database::text COLLATE \"C\") FROM outbox.dispatchers", 'shop'),
	'other shop', 'the dropped ones are gone from outbox.dispatchers');

# RENAME and SET TABLESPACE.
promptly('ALTER DATABASE shop RENAME TO store', 'ALTER DATABASE RENAME while a request is out');
$receiver->on('/shop', {});
all_delivered('store', 'what was out is sent again under the new name');
my $tablespace = PostgreSQL::Test::Utils::tempdir;
$node->sql("CREATE TABLESPACE elsewhere LOCATION '$tablespace'");
hang_in('store', '/shop');
promptly('ALTER DATABASE store SET TABLESPACE elsewhere', 'ALTER DATABASE SET TABLESPACE while a request is out');
$receiver->on('/shop', {});
all_delivered('store', 'what was out is sent again from there');
promptly('ALTER DATABASE store SET TABLESPACE pg_default', 'and back');
delivers('store', '/shop', 'the identity has stayed: nothing needs to be adopted');

# A copy by TEMPLATE: the original goes on, the copy sends nothing.
hang_in('store', '/shop');
promptly('CREATE DATABASE copy TEMPLATE store', 'CREATE DATABASE TEMPLATE of one with a live dispatcher');
$receiver->on('/shop', {});
all_delivered('store', 'the original goes on');
my $requests = $receiver->count('/shop');
$node->wait_for("SELECT state FROM outbox.dispatchers WHERE database = 'copy'", 'held', 'the copy holds its deliveries', 'copy');
$node->stage('a.b', '{}', database => 'copy');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE state = 'pending'", 'copy'), 2, 'the one it came with and a new one');
delivers('store', '/shop', 'and whatever the original does');
is($receiver->count('/shop'), $requests + 1, 'the copy has sent nothing');

# Two copies at once, and commands that fail: the lockout falls with the last of them.
my @sessions = map { $node->background_psql('postgres', on_error_stop => 0) } 1 .. 2;
$sessions[$_]->query("CREATE DATABASE twin$_ TEMPLATE store") foreach 0 .. 1;
$_->quit foreach @sessions;
is($node->sql("SELECT count(*) FROM pg_database WHERE datname ~ '^twin'"), 2, 'two copies at once');
my ($status, undef, $error) = $node->psql('postgres', 'CREATE DATABASE copy TEMPLATE store');
like($error, qr/already exists/, 'a command that fails');
delivers('store', '/shop', 'the dispatcher is back in any case');

# In a transaction block the database stays free until its end.
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query_safe('BEGIN; ALTER DATABASE store RENAME TO shop');
is($node->sql("SELECT state || ' ' || (pid IS NULL) FROM outbox.dispatchers WHERE database = 'store'", 'other'),
	'locked out true', 'RENAME in a transaction block locks the dispatcher out');
$session->query_safe('ROLLBACK');
delivers('store', '/shop', 'until it is rolled back');
$session->query_safe('BEGIN; ALTER DATABASE store RENAME TO shop');
my $pid = $session->query_safe('SELECT pg_backend_pid()');
$node->sql("SELECT pg_terminate_backend($pid)");
eval { $session->quit };
delivers('store', '/shop', 'or its session is terminated');

# Who may not run a command cannot disturb the dispatcher with it either.
$node->sql('CREATE ROLE nobody LOGIN; CREATE ROLE creator LOGIN CREATEDB');
my $dispatcher = $node->wait_for_dispatcher('store');
foreach my $attempt (
	[ nobody => 'DROP DATABASE store', qr/must be owner/ ],
	[ nobody => 'DROP DATABASE store WITH (FORCE)', qr/must be owner/ ],
	[ nobody => 'ALTER DATABASE store RENAME TO mine', qr/must be owner/ ],
	[ creator => 'ALTER DATABASE store SET TABLESPACE elsewhere', qr/must be owner/ ],
	[ nobody => 'CREATE DATABASE mine TEMPLATE store', qr/permission denied to create database/ ],
	[ creator => 'CREATE DATABASE mine TEMPLATE store', qr/permission denied to copy database/ ])
{
	my ($role, $sql, $expected) = @$attempt;
	(undef, undef, $error) = $node->psql('other', $sql, extra_params => [ '-U', $role ]);
	like($error, $expected, "$role: $sql is refused");
}
is($node->sql("SELECT pid FROM outbox.dispatchers WHERE database = 'store'", 'other'), $dispatcher, 'the dispatcher has not noticed');

# Databases that refuse connections and templates have no dispatcher.
foreach my $property ([ 'ALLOW_CONNECTIONS false', 'ALLOW_CONNECTIONS true' ], [ 'IS_TEMPLATE true', 'IS_TEMPLATE false' ])
{
	my ($off, $on) = @$property;
	$node->sql("ALTER DATABASE store $off");
	$node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox dispatcher' AND datname = 'store'",
		0, "no dispatcher in a database with $off");
	$node->sql("ALTER DATABASE store $on");
	delivers('store', '/shop', "and one again with $on");
}
unlike($node->log_text, qr/FATAL:.*(does not exist|not currently accepting|dropped)/, 'no dispatcher was started where it could not be');
$node->stop;

# Many databases, few with an outbox, room for far fewer workers and slots than
# there are databases.
my $many = OutboxCluster->create(
	'many',
	extension => 0,
	conf => "max_worker_processes = 9\noutbox.max_databases = 4\nlog_min_messages = debug1");
my $databases = 100;
my @with_outbox = (1, $databases / 2, $databases);
my $mark = 0;

# How often a dispatcher has been started in a database.
sub starts
{
	my %starts;
	my $text = slurp_file($many->logfile, $mark);
	$starts{$1}++ while $text =~ /starting background worker process "outbox dispatcher for database "(\w+)""/g;
	return \%starts;
}

# Every database has been looked into, postgres as well, however long that takes
# as long as it goes on.
sub all_looked_into
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $seen = 0;
	while ($seen <= $databases)
	{
		my $before = $seen;
		$many->wait_while_not(sub { ($seen = keys %{ starts() }) >= min($before + 50, $databases + 1) }, "$name, after $before") or last;
	}
	return;
}

# By several sessions, as each spends its time waiting for files.
my @creators = map { PsqlSession->new($many) } 1 .. 4;
my @names = map { "d$_" } 1 .. $databases;
while (@names)
{
	$_->start(join ";\n", map { "CREATE DATABASE $_" } splice @names, 0, 5) foreach @creators;
	is(join('', map { $_->finish } @creators), '', 'databases are created, ' . @names . ' to go');
}
$_->close foreach @creators;
all_looked_into('each of the new databases is looked into');
$many->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', "d$_") foreach @with_outbox;
foreach my $n (@with_outbox)
{
	$many->handler('h', ['a.*'], $receiver->url("/d$n"), database => "d$n");
	$many->wait_for_dispatcher("d$n");
}
$mark = -s $many->logfile;
$many->restart;
$many->stage('a.b', '{}', database => "d$_") foreach @with_outbox;
all_looked_into('after a restart each database is looked into');
ok($receiver->wait_for_requests(1, "/d$_"), "d$_ delivers") foreach @with_outbox;
is_deeply([ grep { $_ != 1 } values %{ starts() } ], [], 'once');
is($many->sql('SELECT count(*) FROM outbox.dispatchers', 'd1'), 3, 'only three are shown');
$mark = -s $many->logfile;
$many->sql('CREATE DATABASE another');
$many->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', 'd20');
$many->wait_for_dispatcher('d20');
$many->wait_while_not(sub { starts()->{another} }, 'a new database is looked into');
is_deeply([ sort keys %{ starts() } ], [ 'another', 'd20' ], 'and of the others only the one that has got the extension');

# More outboxes than there are slots: reported once, and served when there is room.
$many->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', 'd5');
$many->wait_while_not(sub { slurp_file($many->logfile, $mark) =~ /all slots for databases are in use/ },
	'one database too many is reported');
like(slurp_file($many->logfile, $mark), qr/HINT:  Increase outbox\.max_databases/, 'with what to do about it');
$many->handler('h', ['a.*'], $receiver->url('/d5'), database => 'd5');
$many->stage('a.b', '{}', database => 'd5');
$many->sql('DROP DATABASE d20');
ok($receiver->wait_for_requests(1, '/d5'), 'and served when another is dropped');
my @reports = slurp_file($many->logfile, $mark) =~ /WARNING:.*all slots/g;
is(scalar @reports, 1, 'the report was made once');
unlike($many->log_text, qr/FATAL(?!:  terminating connection)|WARNING:.*no background worker/, 'looking into many databases has not run out of workers');
$many->stop;

unlike($_->log_text, qr/PANIC|TRAP|terminated by signal/, $_->name . ': no process has crashed') foreach ($node, $many);
done_testing();
