# The extension comes, goes and changes under load; its tables are vacuumed,
# rebuilt, emptied and locked: nothing hangs, nothing is lost, and libraries
# and SQL objects that do not fit refuse each other with a hint.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use OwnInstallation;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;
use Time::HiRes qw(time usleep);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "max_prepared_transactions = 5\noutbox.rescan_interval = 1h");

sub is_gone
{
	my ($database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return $node->wait_for("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox dispatcher' AND datname = '$database'", 0, $name);
}

#
# DROP and CREATE.
#
$node->handler('h', ['a.*'], $receiver->url('/old'));
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query_safe(q{SELECT outbox.stage('a.b', '{"n": "before"}')});
$node->wait_for_states('delivered 1', 'a session stages');
$receiver->on('/old', { hang => 1 });
$node->stage('a.b', '{"n": "out"}');
ok($receiver->wait_for_requests(2, '/old'), 'a request is out');
my $start = time;
my (undef, undef, $warning) = $node->psql('postgres', 'DROP EXTENSION outbox');
like($warning, qr/WARNING:  outstanding deliveries that were dropped with extension "outbox": 1.*HINT/s, 'DROP EXTENSION says what goes with it');
cmp_ok(time - $start, '<', 5, 'and waits for no receiver');
is_gone('postgres', 'the dispatcher is gone');
$node->extension('postgres');
$node->wait_for_dispatcher;
$receiver->release('/old', { status => 200 });
$node->handler('h', ['a.*'], $receiver->url('/new'));
$session->query_safe(q{SELECT outbox.stage('a.b', '{"n": "after"}')});
$node->wait_for_states('delivered 1', 'the same session stages for the new one, whose handler has the same id');
is($receiver->count('/new'), 1, 'and it is sent there');
is($receiver->count('/old'), 2, 'and nothing to the old one');

# In one transaction: what the dispatcher knew of the handler that had the id,
# and how far it had read, is not that of the new one.
$receiver->on('/broken', { status => 500 });
$node->handler('broken', ['broken'], $receiver->url('/broken'), max_attempts => 1, breaker_threshold => 1, breaker_wait => '1 h', breaker_wait_max => '1 h');
$node->stage('broken');
$node->wait_for("SELECT breaker FROM outbox.handlers WHERE handler = 'broken'", 'open', 'a handler is broken');
$node->sql("SET client_min_messages = warning; BEGIN; DROP EXTENSION outbox; CREATE EXTENSION outbox;
	SELECT outbox.create_handler(name, ARRAY[name], '@{[ $receiver->url('/') ]}' || name) FROM unnest(ARRAY['first', 'second']) WITH ORDINALITY AS h (name, n) ORDER BY n;
	SELECT outbox.stage(name, deliver_at => clock_timestamp() - interval '1 h') FROM unnest(ARRAY['first', 'second']) AS h (name); COMMIT");
$node->wait_for_states('delivered 2', 'others, which have its id and that of another one, are not, and get what was due long ago');
$node->handler('h', ['a.*'], $receiver->url('/new'));

$node->sql('CREATE DATABASE trial');
my $error = $node->sql_error(q{SET client_min_messages = warning; BEGIN; CREATE EXTENSION outbox; SELECT outbox.stage('a.b'); ROLLBACK; SELECT outbox.stage('a.b')}, 'trial');
like($error, qr/3F000.*schema "outbox" does not exist/s, 'CREATE EXTENSION that is rolled back leaves nothing');
is($node->sql("SELECT count(*) FROM outbox.dispatchers WHERE database = 'trial'"), 0, 'nor is it shown');
$node->sql(q{
SET client_min_messages = warning;
CREATE EXTENSION outbox;
CREATE VIEW mine AS SELECT * FROM outbox.deliveries;
CREATE TABLE watched (id int PRIMARY KEY);
}, 'trial');
like($node->sql_error('DROP EXTENSION outbox', 'trial'), qr/2BP01/, 'what depends on it stops DROP EXTENSION');
$node->sql('SET client_min_messages = warning; DROP EXTENSION outbox CASCADE', 'trial');
is_gone('trial', 'CASCADE does not stop there');
is($node->sql("SELECT count(*) FROM pg_class WHERE relname = 'mine'", 'trial'), 0, 'and takes the view along');

# Ids of handlers begin again, but what claims have read of the handlers that
# had them does not count: rows put back from a dump are older than that.
# Nothing delivers here, so that nobody but the claims looks.
$node->extension('again');
$node->sql('ALTER DATABASE again SET outbox.enabled = off');
my $create = q{SET client_min_messages = warning; CREATE EXTENSION outbox;
	SELECT outbox.create_handler('free', '{f}'), outbox.create_handler('keyed', '{k}', ordered => true);};
my $claim = q{SELECT string_agg(c.topic, ' ') FROM (VALUES ('free'), ('keyed')) h (name), LATERAL (SELECT * FROM outbox.claim(h.name, 10)) c};
my $put_back = q{
	INSERT INTO outbox.message (id, staged_at, topic, key, payload)
	SELECT outbox_internal.id_floor(at), at, topic, 'key', '1' FROM (VALUES ('f', 1), ('k', 2)) t (topic, hours), LATERAL (SELECT clock_timestamp() - hours * interval '1 hour' AS at) a;
	INSERT INTO outbox.delivery (message_id, due_at, handler_id, key)
	SELECT m.id, m.staged_at, h.id, CASE WHEN h.ordered THEN m.key END FROM outbox.message m JOIN outbox.handler h ON m.topic = ANY (h.topics);};
my $work = "SELECT outbox.stage('f'), outbox.stage('k', key => 'key'); " . join('', map { "SELECT outbox.complete('$_', id, attempt) FROM outbox.claim('$_', 10);" } qw(free keyed free keyed));
$node->sql('SET client_min_messages = warning; DROP EXTENSION outbox', 'again');
my ($ids) = $node->sql($create, 'again');
$node->sql($work, 'again');
is($node->sql($claim, 'again'), '', 'claims have read what there is');
is($node->sql("SET client_min_messages = warning; DROP EXTENSION outbox; $create", 'again'), $ids, 'another outbox, whose handlers have the same ids');
$node->sql($put_back, 'again');
is($node->sql($claim, 'again'), 'f k', 'older messages are claimed there');
$node->sql("SET client_min_messages = warning; DROP EXTENSION outbox; BEGIN; $create $work ROLLBACK", 'again');
$node->sql("$create $put_back", 'again');
is($node->sql($claim, 'again'), 'f k', 'also after one that never was');
$node->sql($work, 'again');
is((split /\n/, $node->sql("SET client_min_messages = warning; BEGIN; DROP EXTENSION outbox; $create $put_back $claim; ROLLBACK", 'again'))[-1], 'f k', 'and in the transaction that makes it');

# A schema of that name that is somebody else's.
$node->sql('CREATE DATABASE squatter');
$node->sql(q{
CREATE SCHEMA outbox;
CREATE TABLE outbox.delivery (mine int);
CREATE TABLE outbox.installation (mine int);
BEGIN; INSERT INTO outbox.delivery VALUES (1); PREPARE TRANSACTION 'p';
}, 'squatter');
$node->sql(q{COMMIT PREPARED 'p'}, 'squatter');
like($node->sql_error('CREATE EXTENSION outbox', 'squatter'), qr/42P06.*schema "outbox" already exists/s, 'a schema of that name is in the way of CREATE EXTENSION');
$node->restart;
$node->stage('a.b', '{}');
$node->wait_for_states('delivered 3', 'and of nothing else');
is_gone('squatter', 'no dispatcher there');
$node->sql('DROP SCHEMA outbox CASCADE; CREATE SCHEMA outbox_internal', 'squatter');
like($node->sql_error('CREATE EXTENSION outbox', 'squatter'), qr/42P06.*schema "outbox_internal" already exists/s, 'and so is one of the other name');
$node->sql('DROP SCHEMA outbox_internal; SET client_min_messages = warning; CREATE EXTENSION outbox', 'squatter');
$node->wait_for_dispatcher('squatter');
pass('once it is gone there can be an outbox');

#
# SQL objects and library of different versions.
#
my ($version) = $node->sql("SELECT extversion FROM pg_extension WHERE extname = 'outbox'");
my $mark = -s $node->logfile;
my %helps = (
	'0.1' => 'Run ALTER EXTENSION outbox UPDATE.',
	'7.7' => 'Restart the server if the library was replaced while it ran; otherwise install the library of that version first.');
foreach my $other (sort keys %helps)
{
	$node->sql("UPDATE pg_extension SET extversion = '$other' WHERE extname = 'outbox'; SELECT outbox_internal.ring_handlers()", 'squatter');
	$node->wait_for(
		"SELECT state || ': ' || last_error FROM outbox.dispatchers WHERE database = 'squatter'",
		"version mismatch: SQL objects are of version $other but the library is version $version: $helps{$other}",
		"SQL objects of version $other: the dispatcher leaves and says why");
	foreach my $call (
		q{outbox.stage('a.b')}, q{outbox.try_stage('a.b')}, q{outbox.stage_many('a.b', '{"1"}'::jsonb[])},
		q{outbox.create_handler('x', '{x.*}', 'http://127.0.0.1:1/')}, q{outbox.pause_handler('x')}, q{outbox.claim('x')},
		q{outbox.complete('x', gen_random_uuid(), 1)})
	{
		like($node->sql_error("SELECT $call", 'squatter'),
			qr/55000.*extension "outbox" has SQL objects of version \Q$other\E but its library is version \Q$version\E.*DETAIL:.*knows nothing of these objects.*HINT:  \Q$helps{$other}\E/s,
			"$call refuses");
	}
	# Whatever else is called with whatever: nothing crashes.
	$node->sql(q{
	DO $$
	DECLARE
		f record;
	BEGIN
		FOR f IN SELECT p.oid::regproc AS name, p.prokind, p.pronargs - p.pronargdefaults AS n FROM pg_proc p
			WHERE p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND p.prorettype <> 'trigger'::regtype LOOP
			BEGIN
				EXECUTE format(CASE f.prokind WHEN 'p' THEN 'CALL %s(%s)' ELSE 'SELECT %s(%s)' END,
					f.name, (SELECT string_agg('NULL', ', ') FROM generate_series(1, f.n)));
			EXCEPTION WHEN OTHERS THEN
				NULL;
			END;
		END LOOP;
	END $$}, 'squatter');
	$node->sql("UPDATE pg_extension SET extversion = '$version' WHERE extname = 'outbox'; SELECT outbox_internal.ring_launcher()", 'squatter');
	$node->wait_for_dispatcher('squatter');
}
my @lines = slurp_file($node->logfile, $mark) =~ /WARNING:.*outbox sends nothing in database "squatter"/g;
is(scalar @lines, 2, 'the log has one line for each mismatch');

#
# Maintenance of the tables under load.
#
$receiver->forget;
my $n = 400;
my $load = IPC::Run::start(
	[ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-v', 'ON_ERROR_STOP=1', '-c',
		"DO \$\$ BEGIN FOR i IN 1..$n LOOP PERFORM outbox.stage('a.b', jsonb_build_object('n', i)); COMMIT; PERFORM pg_sleep(0.005); COMMIT; END LOOP; END \$\$" ],
	'2>', \my $load_error);
my @tables = qw(message delivery attempt handler handler_status handler_secret installation on_settle_queue event_queue consumer inbox);
foreach my $round (1 .. 2)
{
	$node->sql(join '; ', map { "VACUUM FULL outbox.$_" } @tables);
	$node->sql(join ";\n", map { "REINDEX TABLE CONCURRENTLY outbox.$_" } grep { $_ ne 'installation' } @tables);
	$node->sql(join ";\n", map { "REINDEX TABLE outbox.$_" } @tables);
	$node->sql(join ";\n", 'CLUSTER outbox.delivery USING delivery_pkey', 'CLUSTER outbox.message USING message_pkey');
}
ok($load->finish, 'staging goes on under VACUUM FULL, REINDEX and CLUSTER') or diag($load_error);
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state <> 'delivered'", 0, 'all is delivered');
is($receiver->count('/new'), $n, 'every message was sent');
is(scalar keys %{ $receiver->ids('/new') }, $n, 'once');

$receiver->on('/new', { hang => 1 });
$node->stage('a.b', '{}');
ok($receiver->wait_for_requests($n + 1, '/new'), 'a request is out');
$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');
$receiver->release('/new', { status => 200 });
$receiver->on('/new', {});
$node->stage('a.b', '{}');
$node->wait_for_states('delivered 1', 'TRUNCATE while a request is out: what is staged afterwards is delivered');

#
# Each table locked for a while, and all indexes, with an answer, a change of
# handlers and a look at everything to be dealt with, and counts to be taken
# anew because the doorbell has overflowed: the dispatcher never waits for the
# lock.
#
my $dispatcher = $node->dispatcher_pid;
my $elsewhere = PostgreSQL::Test::Utils::tempdir;
$node->sql("CREATE TABLESPACE elsewhere LOCATION '$elsewhere'");
my %locks = ((map { $_ => "LOCK TABLE outbox.$_ IN ACCESS EXCLUSIVE MODE" } @tables), indexes => 'ALTER INDEX ALL IN TABLESPACE pg_default SET TABLESPACE elsewhere');
foreach my $what (@tables, 'indexes')
{
	$receiver->on('/new', { hang => 1 });
	$receiver->forget;
	my $id = $node->stage('a.b', '{}');
	ok($receiver->wait_for_requests(1, '/new'), "$what: a request is out");
	my $locker = $node->background_psql('postgres', on_error_stop => 0);
	$locker->query_safe("BEGIN; $locks{$what}");
	$receiver->release('/new', { status => 500 });
	$receiver->on('/new', {});
	$node->sql('SELECT outbox_internal.ring_handlers(), outbox_internal.ring_rescan()');
	$node->sql('SELECT outbox_internal.ring(n, 0, clock_timestamp(), gen_random_uuid()) FROM generate_series(1000001, 1004000) AS n');
	my $waits = 0;
	foreach (1 .. 12)
	{
		$waits += $node->sql("SELECT count(*) FROM pg_stat_activity WHERE pid = $dispatcher AND wait_event_type = 'Lock'");
		usleep(20_000);
	}
	is($waits, 0, "$what: the dispatcher does not wait for the lock");
	$locker->query_safe('COMMIT');
	$locker->quit;
	$node->sql("SELECT outbox.retry_now('$id')");
	$node->wait_until("SELECT count(*) FROM outbox.deliveries WHERE message_id = '$id' AND (state = 'retrying' OR state = 'delivered')", 1);
	$node->sql("SELECT outbox.retry_now('$id')");
	$node->wait_for("SELECT state || ' ' || attempts FROM outbox.deliveries WHERE message_id = '$id'", 'delivered 2', "$what: and goes on afterwards");
}
is($node->dispatcher_pid, $dispatcher, 'it is the same dispatcher all along');
unlike(slurp_file($node->logfile, $mark), qr/gives up|lock timeout/, 'and it never had to give up');

#
# Something else in the place of a table, or a copy of it, whose indexes have
# other names: refused by sessions and workers, until the table is put back.
#
$node->handler('pull', ['pull.*'], undef);
my %key = (message => 'id', delivery => 'message_id', handler => 'id');
foreach my $table (sort keys %key)
{
	foreach my $kind (
		[ stage => 'VIEW', "CREATE VIEW outbox.$table AS TABLE outbox.away" ],
		[ stage => 'TABLE', "CREATE TABLE outbox.$table (LIKE outbox.away) PARTITION BY RANGE ($key{$table})" ],
		[ claim => 'TABLE', "CREATE TABLE outbox.$table (LIKE outbox.away INCLUDING ALL); INSERT INTO outbox.$table TABLE outbox.away" ])
	{
		my ($refused, $what, $create) = @$kind;
		$node->sql("ALTER TABLE outbox.$table RENAME TO away; $create");
		my $before = $node->dispatcher_pid;
		$node->sql("SELECT pg_terminate_backend($before)");
		my %calls = (stage => q{outbox.stage('a.b')}, claim => q{outbox.claim('pull')}, complete => q{outbox.complete('pull', gen_random_uuid(), 1)});
		my %errors = map { $_ => $node->sql_error("SELECT $calls{$_}") } sort keys %calls;
		# Workers, and sessions that claim, read handlers with SQL, which takes anything.
		like($errors{$refused}, qr/ERROR:  42809: "outbox\.\w+" is not an .*HINT:/s, "$refused refuses: $create") unless $table eq 'handler' && $refused eq 'claim';
		$node->wait_for("SELECT last_error ~ 'is not an' FROM outbox.dispatchers WHERE database = 'postgres'", 't', 'and so does the dispatcher') unless $table eq 'handler';
		$node->sql("DROP $what outbox.$table; ALTER TABLE outbox.away RENAME TO $table");
		$node->wait_for_dispatcher('postgres', $before);
	}
}
my $as_before = $node->stage('a.b', '{}');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$as_before'", 'delivered', 'once they are back they are used as before');

#
# The tables in which deliveries and messages are, locked for longer than any
# pause or timeout of a dispatcher, with answers, retries, changes of handlers
# and a look at everything to be dealt with.  What comes next goes on meanwhile.
#
my $long_mark = -s $node->logfile;
my %long = map { $_->[0] => { table => $_->[1] } } ([ postgres => 'delivery' ], [ squatter => 'message' ]);
$node->extension('beside');
$node->handler('h', ['a.*'], $receiver->url('/beside'), database => 'beside');
foreach my $database (sort keys %long)
{
	my $here = $long{$database};
	foreach my $what ('settles', 'fails')
	{
		my $path = "/$database-$what";
		$node->handler($what, ["$what.*"], $receiver->url($path), backoff => '{100 ms}', timeout => '1 hour', database => $database);
		$receiver->on($path, { hang => 1 });
		$node->stage_load("$what.item", 3, $database);
		ok($receiver->wait_for_requests(3, $path), "$database: requests are out: $path");
	}
	$here->{dispatcher} = $node->wait_for_dispatcher($database);
	$here->{locker} = PsqlSession->new($node, $database);
	$here->{locker}->run("BEGIN; LOCK TABLE outbox.$here->{table} IN ACCESS EXCLUSIVE MODE");
	$receiver->release("/$database-settles", { status => 200 });
	$receiver->release("/$database-fails", { status => 500 });
	$receiver->on("/$database-$_", {}) foreach ('settles', 'fails');
	$node->sql('SELECT outbox_internal.ring_handlers(), outbox_internal.ring_rescan()', $database);
	$here->{producer} = PsqlSession->new($node, $database);
	$here->{producer}->start(q{SELECT outbox.stage('settles.late') IS NOT NULL});
}

sub goes_on_beside
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $id = $node->stage('a.b', '{}', database => 'beside');
	return $node->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", 'delivered', $name, 'beside');
}
goes_on_beside('a third database delivers while the locks are taken');

#
# An update, in an installation of its own: a copy of the server's files, of
# which the libraries and the scripts can be replaced.
#
my $place = OwnInstallation->create;
my $root = $place->root;
my $library = $place->library;
my $http_library = $place->http_library;
my $extension = $place->extension_folder;

local $ENV{PATH} = $place->path;
# It ends as this one does: the linker may have stored "0", a setting's value,
# as the end of "1.0", or one version as the end of another.
(my $next = $version) =~ s/^\d/9/;
my $updated = OutboxCluster->create('updated');
$updated->handler('h', ['a.*'], $receiver->url('/updated'), backoff => '{100 ms}', max_attempts => 100);

# Producers that go on whatever happens; what they were told is staged counts.
my $stop_file = "$root/stop";
my $staged_file = "$root/staged";
my $producer = fork;
die "fork: $!" unless defined $producer;
if (!$producer)
{
	open my $out, '>', $staged_file;
	$out->autoflush;
	until (-e $stop_file)
	{
		my ($id, $ignored) = ('', '');
		IPC::Run::run([ 'psql', '-XqAt', '-d', $updated->connstr('postgres'), '-c', q{SELECT outbox.stage('a.b')} ], '>', \$id, '2>', \$ignored)
		  and print $out $id;
		usleep(10_000);
	}
	POSIX::_exit(0);
}
sub goes_on
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $count = $receiver->count('/updated');
	return ok($receiver->wait_for_requests($count + 5, '/updated'), $name);
}
goes_on('producers stage and messages are delivered');

# The HTTP library of another build, loaded by a dispatcher that starts anew.
my $original = slurp_file($http_library);
OwnInstallation::replace_file($http_library, sub { s/outbox_http_transport_\K\d/x/g });
$updated->sql('SELECT pg_terminate_backend(pid) FROM outbox.dispatchers');
$updated->wait_for('SELECT last_error FROM outbox.dispatchers', 'library outbox_http is of another build than library outbox',
	'an HTTP library of another build is refused');
OwnInstallation::replace_file($http_library, sub { $_ = $original });
goes_on('with the right one it goes on');

# The next version is installed: nothing changes until the server starts anew,
# then everything waits for ALTER EXTENSION UPDATE.
sub set_version
{
	my ($from, $to) = @_;
	OwnInstallation::replace_file($library, sub { s/(\0(?:outbox\/)?)\Q$from\E\0/$1$to\0/g });
	OwnInstallation::replace_file("$extension/outbox.control", sub { s/default_version = '\Q$from\E'/default_version = '$to'/ });
	return;
}
append_to_file("$extension/outbox--$version--$next.sql", <<'END');
ALTER TABLE outbox.message ADD COLUMN novelty text;
ALTER TABLE outbox.delivery ADD COLUMN novelty int;
CREATE FUNCTION outbox_internal.novelty() RETURNS int LANGUAGE sql RETURN 1;
END
append_to_file("$extension/outbox--$next--$version.sql", <<'END');
ALTER TABLE outbox.message DROP COLUMN novelty;
ALTER TABLE outbox.delivery DROP COLUMN novelty;
DROP FUNCTION outbox_internal.novelty();
END
set_version($version, $next);
goes_on('a new version on disk changes nothing yet');
$updated->restart;
$updated->wait_for("SELECT state FROM outbox.dispatchers", 'version mismatch', 'after a restart the new library waits');
like($updated->sql_error(q{SELECT outbox.stage('a.b')}), qr/55000.*SQL objects of version \Q$version\E but its library is version \Q$next\E.*ALTER EXTENSION outbox UPDATE/s,
	'and staging says what to do');
$updated->sql('ALTER EXTENSION outbox UPDATE');
goes_on('ALTER EXTENSION UPDATE, and it goes on');
is($updated->sql('SELECT outbox_internal.novelty()'), 1, 'with the new objects');

# Back to the old library, under which the new objects are refused in turn.
set_version($next, $version);
$updated->restart;
$updated->wait_for("SELECT state FROM outbox.dispatchers", 'version mismatch', 'an old library does not work on new objects');
$updated->sql("ALTER EXTENSION outbox UPDATE TO '$version'");
goes_on('until they are taken back');

# ALTER EXTENSION UPDATE while the library fits the old objects.
$updated->sql("ALTER EXTENSION outbox UPDATE TO '$next'");
$updated->wait_for("SELECT state FROM outbox.dispatchers", 'version mismatch', 'objects updated under a library that is older');
$updated->sql("ALTER EXTENSION outbox UPDATE TO '$version'");
goes_on('and back');

append_to_file($stop_file, '');
waitpid $producer, 0;
$updated->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state <> 'delivered'", 0, 'all is delivered in the end');
my $sent = $receiver->ids('/updated');
my @staged = split /\n/, slurp_file($staged_file);
is_deeply([ grep { !$sent->{$_} } @staged ], [], 'whatever producers were told is staged was sent: ' . @staged . ' messages');

#
# The locks are still held, and given back now.
#
goes_on_beside('the third database still delivers');
foreach my $database (sort keys %long)
{
	my $here = $long{$database};
	my ($locker, $producer) = @{$here}{qw(locker producer)};
	my $dispatcher = "FROM pg_stat_activity WHERE backend_type = 'outbox dispatcher' AND datname = '$database'";
	$node->wait_for("SELECT clock_timestamp() - xact_start > interval '15 s' FROM pg_stat_activity WHERE pid = " . $locker->backend, 't', "$database: outbox.$here->{table} has been locked for long", 'beside');
	is($node->sql("SELECT pid || ' ' || (wait_event_type IS DISTINCT FROM 'Lock') $dispatcher", 'beside'), "$here->{dispatcher} true", "$database: the dispatcher is still the same and does not wait for the lock");
	ok($producer->busy, "$database: who stages waits for it");
	$locker->run('COMMIT');
	is($producer->finish, 't', "$database: and has staged once it is given back");
	$node->wait_for("SELECT string_agg(handler || ' ' || state || ' ' || attempts || ' ' || n, ', ' ORDER BY handler) FROM (SELECT handler, state, attempts, count(*) AS n FROM outbox.deliveries WHERE handler IN ('settles', 'fails') GROUP BY 1, 2, 3) AS d",
		'fails delivered 2 3, settles delivered 1 4', "$database: nothing is lost", $database);
	is($receiver->count("/$database-settles") . ' ' . $receiver->count("/$database-fails"), '4 6', "$database: nor sent more often than that");
	is($node->sql("SELECT pid $dispatcher", 'beside'), $here->{dispatcher}, "$database: by the same dispatcher");
	$_->close foreach ($locker, $producer);
}
unlike(slurp_file($node->logfile, $long_mark), qr/gives up|lock timeout/, 'none of them had to give up');
$node->stop;

unlike($_->log_text, qr/PANIC|TRAP|terminated by signal/, $_->name . ': no process has crashed') foreach ($node, $updated);
done_testing();
