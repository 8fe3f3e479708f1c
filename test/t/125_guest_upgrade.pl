# A new version comes to a server that works: the library with a restart, the
# SQL objects with ALTER EXTENSION UPDATE, in either order.  No producer, no
# consumer and no delivery fails meanwhile, grants and what depends on outbox
# stay, and an updated database has the same objects as a new one.
#
# The next version is made here: 9.0, which the present library can serve, and
# 9.1, which has a function of the next library.
use strict;
use warnings;

use ExtensionCatalog;
use HttpReceiver;
use OutboxCluster;
use OwnInstallation;
use PostgreSQL::Test::Utils qw(slurp_file append_to_file);
use PsqlSession;
use Test::More;
use POSIX ();
use Time::HiRes qw(usleep);

my $place = OwnInstallation->create;
local $ENV{PATH} = $place->path;
my $folder = $place->extension_folder;
my ($version) = slurp_file("$folder/outbox.control") =~ /default_version = '([^']+)'/;
my $install = slurp_file("$folder/outbox--$version.sql");

#
# The next library: this one with another table of versions and one more function.
#
my $source = slurp_file('src/common/sql_version.c');
$source =~ s/(served_versions\[\] = \{\n)/$1\t"9.1",\n\t"9.0",\n/ or die 'no table of versions';
$source .= <<'END';
PG_FUNCTION_INFO_V1(outbox_sql_novelty);
Datum
outbox_sql_novelty(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT32(9);
}
END
OwnInstallation::write_file($place->root . '/sql_version.c', $source);
my $made = qx(make -s with_llvm=no PG_CONFIG="$ENV{PG_CONFIG}" other-library OTHER_SOURCE="${\$place->root}/sql_version.c" OTHER_LIBRARY="${\$place->root}/next.so" 2>&1);
is($?, 0, 'the next library is made') or die $made;

#
# The next SQL objects: an argument, a column of a table, of a view and of a
# function, a new function; and how to get there.
#
sub statement
{
	my ($text, $begin) = @_;
	my ($found) = $text =~ /^(\Q$begin\E\b(?:(?!;\n|\$\$).)*(?:\$\$.*?\$\$)?(?:(?!;\n).)*;\n)/ms or die "no statement $begin";
	return $found;
}
my $next = $install;
my $update = "SET LOCAL lock_timeout = '5s';\n";
# A function that grows: the new one as the install script has it, under another name.
sub grow
{
	my ($name, $change) = @_;
	my $old = statement($next, "CREATE FUNCTION outbox.$name");
	my $new = $old;
	$change->() foreach $new;
	die "$name has not grown" if $new eq $old;
	$next =~ s/\Q$old\E/$new/;
	$update .= $new =~ s/^CREATE FUNCTION outbox\.\w+/CREATE FUNCTION outbox.model/r;
	$update .= "SELECT outbox_internal.grow('outbox.$name'::regproc::oid, 'outbox.model'::regproc::oid);\n";
	return;
}
grow('stage', sub { s/(?=\) RETURNS uuid)/, novelty text DEFAULT NULL/ });
grow('try_stage', sub { s/(?=,\s+OUT )/, novelty text DEFAULT NULL/ });
grow('health', sub { s/(\bOUT \w+ \w+)(\)\nLANGUAGE)/$1, OUT novelty int$2/ });
my $table = statement($next, 'CREATE TABLE outbox.message');
(my $new_table = $table) =~ s/\n\) WITH/,\n\tnovelty text\n) WITH/ or die 'no end of outbox.message';
$next =~ s/\Q$table\E/$new_table/;
$update .= "ALTER TABLE outbox.message ADD COLUMN novelty text;\n";
my $view = statement($next, 'CREATE VIEW outbox.attempts');
(my $new_view = $view) =~ s/\nFROM outbox\.attempt a/, m.novelty\nFROM outbox.attempt a/ or die 'no columns of outbox.attempts';
$next =~ s/\Q$view\E/$new_view/;
$update .= $new_view =~ s/^CREATE VIEW/CREATE OR REPLACE VIEW/r;
my $can = statement($next, 'CREATE FUNCTION outbox_internal.library_can');
(my $new_can = $can) =~ s/\$\$\n.*(?=\$\$;)/\$\$\n\tSELECT CASE library WHEN '$version' THEN '{stage,consume,configure,dispatch}' ELSE '{}' END::text[]\n/s or die 'no library_can';
$next =~ s/\Q$can\E/$new_can/;
$update .= $new_can =~ s/^CREATE FUNCTION/CREATE OR REPLACE FUNCTION/r;

sub add
{
	my ($text, $new) = @_;
	$text =~ s/(?=^-+\n-- Grants: PUBLIC gets nothing)/$new/m or die 'no grants';
	return $text;
}
my $added = <<'END';
CREATE FUNCTION outbox.novelty() RETURNS int LANGUAGE sql AS 'SELECT 1';
COMMENT ON FUNCTION outbox.novelty IS 'New';
END
my $written_in_c = <<'END';
CREATE FUNCTION outbox.novelty_in_c() RETURNS int LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_sql_novelty';
COMMENT ON FUNCTION outbox.novelty_in_c IS 'New in C';
END
$next = add($next, $added);
my $last = add($next, $written_in_c);
my %scripts = (
	"outbox--$version--9.0.sql" => "$update$added REVOKE ALL ON FUNCTION outbox.novelty FROM PUBLIC;\n",
	'outbox--9.0.sql' => $next,
	'outbox--9.0--9.1.sql' => "SELECT outbox_internal.require_library('9.1');\n$written_in_c REVOKE ALL ON FUNCTION outbox.novelty_in_c FROM PUBLIC;\n",
	'outbox--9.1.sql' => $last);

OwnInstallation::write_file("$folder/$_", $scripts{$_}) foreach keys %scripts;

#
# A server at work in two databases, with what users build upon outbox.
#
my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => 'outbox.rescan_interval = 1h');
my @databases = qw(postgres second);
$node->extension('second');
$node->sql("CREATE ROLE shop LOGIN; CREATE ROLE support; CREATE ROLE worker LOGIN; CREATE ROLE grafana");

my $dependants = <<'END';
GRANT EXECUTE ON FUNCTION outbox.try_stage TO shop WITH GRANT OPTION;
SELECT outbox.grant_producer('shop'), outbox.grant_operator('support'), outbox.grant_monitor('grafana');
SELECT outbox.create_handler('pull', ARRAY['pull.*']), outbox.grant_consumer('pull', 'worker');
GRANT SELECT ON outbox.attempts TO shop;
CREATE SCHEMA shop AUTHORIZATION shop;
SET ROLE shop;
CREATE VIEW shop.staging AS SELECT outbox.stage('a.view') AS few, outbox.stage(topic => 'a.named', min_version => 3, key => 'k') AS named,
	outbox.stage('a.all', '{}', 'k', NULL, 'tenant', 'correlation', '{}', NULL, interval '0', 1) AS all_of_them;
CREATE VIEW shop.trying AS SELECT t.id, t.status FROM outbox.try_stage('a.try') AS t;
CREATE VIEW shop.failures AS SELECT * FROM outbox.attempts;
CREATE FUNCTION shop.atomic() RETURNS uuid BEGIN ATOMIC SELECT outbox.stage('a.atomic', delay => interval '0'); END;
CREATE FUNCTION shop.by_name() RETURNS uuid LANGUAGE plpgsql AS $$ BEGIN RETURN outbox.stage('a.plpgsql'); END $$;
CREATE TABLE shop.item (n int, staged uuid DEFAULT outbox.stage('a.default'));
ALTER TABLE shop.item ENABLE ROW LEVEL SECURITY;
ALTER TABLE shop.item FORCE ROW LEVEL SECURITY;
CREATE POLICY staging ON shop.item USING (true) WITH CHECK (outbox.stage('a.policy') IS NOT NULL);
CREATE RULE also AS ON UPDATE TO shop.item DO ALSO SELECT outbox.stage('a.rule') IS NOT NULL;
RESET ROLE;
CREATE VIEW public.status AS SELECT h.status, h.failing_handlers FROM outbox.health() AS h;
GRANT SELECT ON public.status TO grafana;
END
my $use = <<'END';
SET ROLE shop;
SELECT count(few) + count(named) + count(all_of_them) FROM shop.staging;
SELECT status FROM shop.trying;
SELECT count(*) >= 0 FROM shop.failures;
SELECT shop.atomic() IS NOT NULL, shop.by_name() IS NOT NULL;
INSERT INTO shop.item (n) VALUES (1);
UPDATE shop.item SET n = 2;
SET ROLE grafana;
SELECT status <> '' FROM public.status;
SELECT status <> '' FROM outbox.health();
SET ROLE support;
SELECT outbox.pause_handler('push'), outbox.resume_handler('push');
SELECT count(*) FROM outbox.handlers;
END
my $used = '';

# What a database says of its grants and dependants.
sub grants
{
	my $database = shift;
	return $node->sql(<<'END', $database);
SELECT p.oid::regproc, a.grantor::regrole, a.grantee::regrole, a.privilege_type, a.is_grantable FROM pg_proc p, aclexplode(p.proacl) a
WHERE p.pronamespace = 'outbox'::regnamespace AND a.grantee NOT IN (0, 10) ORDER BY 1, 2, 3, 4;
SELECT c.oid::regclass, a.grantor::regrole, a.grantee::regrole, a.privilege_type, a.is_grantable FROM pg_class c, aclexplode(c.relacl) a
WHERE c.relnamespace = 'outbox'::regnamespace AND a.grantee NOT IN (0, 10) ORDER BY 1, 2, 3, 4;
SELECT c.oid::regclass, pg_get_viewdef(c.oid) FROM pg_class c WHERE c.relkind = 'v' AND c.relnamespace IN ('shop'::regnamespace, 'public'::regnamespace) ORDER BY 1;
END
}

my %grants;
foreach my $database (@databases)
{
	$node->handler('push', ['a.*'], $receiver->url("/$database"), backoff => '{100 ms}', max_attempts => 100, database => $database);
	$node->sql("SET client_min_messages = warning; $dependants", $database);
	$used = $node->sql($use, $database);
	$grants{$database} = grants($database);
}

# Producers and consumers that go on whatever happens.  What they are told is
# staged or done counts; that the server stops is no failure of theirs.
my $stop_file = $place->root . '/stop';
my @children;

sub record
{
	my ($name, $text) = @_;
	append_to_file($place->root . "/$name", "$text\n");
	return;
}

sub go_on
{
	my ($name, $database, $role, $turn) = @_;
	my $pid = fork;
	die "fork: $!" unless defined $pid;
	return push @children, $pid if $pid;
	my $session;
	local $SIG{PIPE} = 'IGNORE';
	my $ask = sub {
		my ($sql) = @_;
		my $answer = eval {
			$session //= PsqlSession->new($node, $database);
			$session->run($sql);
		} // '';
		return $answer if $answer =~ /^(?:staged|claimed|done|none|ready)/m;
		record("$name.failed", $answer) if $answer =~ /ERROR/ || $answer =~ /FATAL/ && $answer !~ /shutting down|starting up|administrator command/;
		# Connect anew, and say again who this is and what it is going to do.
		$session = undef;
		return '';
	};
	until (-e $stop_file)
	{
		$ask->("SET ROLE $role; PREPARE staging AS SELECT 'staged ' || outbox.stage(\$1, key => 'k'); SELECT 'ready'") unless $session;
		$turn->($ask) if $session;
		usleep(5_000);
	}
	POSIX::_exit(0);
}

foreach my $database (@databases)
{
	foreach my $topic ('a.b', 'pull.b')
	{
		go_on("staged-$topic-$database", $database, 'shop', sub {
			my ($id) = $_[0]->("EXECUTE staging('$topic')") =~ /^staged (\S+)$/m;
			record("staged-$topic-$database", $id) if $id;
		});
	}
	go_on("done-$database", $database, 'worker', sub {
		my $ask = shift;
		my ($id, $attempt) = $ask->(q{SELECT coalesce((SELECT 'claimed ' || id || ' ' || attempt FROM outbox.claim('pull')), 'none')}) =~ /^claimed (\S+) (\d+)$/m;
		return $ask->(q{CALL outbox.wait('pull', '100 ms'); SELECT 'none'}) unless $id;
		record("done-$database", $id) if $ask->("SELECT 'done ' || outbox.complete('pull', '$id', $attempt)") =~ /^done true$/m;
	});
}

sub lines
{
	my $file = $place->root . "/$_[0]";
	return -e $file ? split /\n/, slurp_file($file) : ();
}

# Everything goes on in both databases, for sessions that were there before and
# for new ones, and with all that depends on outbox.
sub goes_on
{
	my $name = shift;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $database (@databases)
	{
		my %before = map { ($_ => scalar lines("$_-$database")) } qw(staged-a.b staged-pull.b done);
		my $received = $receiver->count("/$database");
		$node->wait_while_not(
			sub { $receiver->count("/$database") > $received + 10 && !grep { lines("$_-$database") < $before{$_} + 10 } keys %before },
			"$name: $database: producers, consumers and deliveries go on")
		  or die join "\n", map { lines("$_-$database.failed") } qw(staged-a.b staged-pull.b done);
		is($node->sql($use, $database), $used, "$name: $database: what depends on outbox works");
		is(grants($database), $grants{$database}, "$name: $database: grants and dependants are as they were");
		is($node->sql(q{SELECT state FROM outbox.dispatchers WHERE database = current_database()}, $database), 'running', "$name: $database: dispatched");
	}
	return;
}
goes_on('before');

#
# The next version is installed: on disk.
#
my $old_library = slurp_file($place->library);
OwnInstallation::write_file($place->library, slurp_file($place->root . '/next.so'));
OwnInstallation::replace_file("$folder/outbox.control", sub { s/default_version = '\Q$version\E'/default_version = '9.1'/ });
goes_on('a new version on disk');

# First the objects.
my $error = $node->sql_error('ALTER EXTENSION outbox UPDATE', 'second');
like($error, qr/55000.*SQL objects of version 9\.1 need a younger library than the one that is loaded, \Q$version\E.*DETAIL:.*Nothing has been changed.*HINT:.*Restart the server/s,
	'what has something new of the library says that it has to be loaded first');
is($node->sql("SELECT extversion FROM pg_extension WHERE extname = 'outbox'", 'second'), $version, 'and has changed nothing');
$node->sql("ALTER EXTENSION outbox UPDATE TO '9.0'", 'second');
goes_on('the objects updated, the library not');
is($node->sql(q{SELECT outbox.stage('a.new', novelty => 'x') IS NOT NULL, (SELECT status FROM outbox.try_stage('a.new', novelty => 'x'))}, 'second'), 't|created', 'there is the new argument');
is($node->sql(q{SELECT count(*) FILTER (WHERE novelty IS NULL), (SELECT novelty IS NULL FROM outbox.health()) FROM (SELECT novelty FROM outbox.attempts LIMIT 0) a}, 'second'), '0|t', 'and the new columns');
like($node->sql(q{SELECT array_to_string(reasons, ', ') FROM outbox.health()}, 'second'), qr/SQL objects are of version 9\.0 and the library is version \Q$version\E/, 'health() says that they differ');

# Objects that let an older library do less.
$node->sql(q{CREATE OR REPLACE FUNCTION outbox_internal.library_can(library text) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp
	AS $$ SELECT '{stage}'::text[] $$; SELECT outbox_internal.ring_handlers()}, 'second');
$node->wait_for("SELECT state FROM outbox.dispatchers WHERE database = 'second'", 'version mismatch', 'objects that the library may not dispatch: the dispatcher leaves', 'second');
like($node->sql("SELECT last_error FROM outbox.dispatchers WHERE database = 'second'", 'second'),
	qr/^SQL objects are of version 9\.0 but the library is version \Q$version\E: Restart the server/, 'and says what helps');
is($node->sql(q{SELECT outbox.stage('a.b') IS NOT NULL}, 'second'), 't', 'staging goes on');
foreach my $call (q{outbox.pause_handler('push')}, q{outbox.claim('pull')})
{
	like($node->sql_error("SELECT $call", 'second'),
		qr/55000.*SQL objects of version 9\.0 but its library is version \Q$version\E.*DETAIL:.*this library can stage, but not consume, configure and dispatch.*HINT:.*Restart the server/s,
		"$call is refused");
}
my $refused = () = lines('done-second.failed');
$node->sql(($scripts{"outbox--$version--9.0.sql"} =~ /(CREATE OR REPLACE FUNCTION outbox_internal\.library_can.*?\$\$;)/s)[0] . '; SELECT outbox_internal.ring_handlers(), outbox_internal.ring_launcher()', 'second');
$node->wait_for_dispatcher('second');
unlink $place->root . '/done-second.failed';
goes_on('allowed again');

#
# The library: one database has the new objects, the other the old ones.
#
$node->restart;
$node->wait_for_dispatcher($_) foreach @databases;
goes_on('the server restarted');
like($node->sql(q{SELECT array_to_string(reasons, ', ') FROM outbox.health()}), qr/SQL objects are of version \Q$version\E and the library is version 9\.1: run ALTER EXTENSION outbox UPDATE/, 'health() says what is to be done');
$node->sql('ALTER EXTENSION outbox UPDATE', $_) foreach @databases;
goes_on('all updated');
is($node->sql(q{SELECT outbox.novelty_in_c(), outbox.stage('a.new', novelty => 'x') IS NOT NULL}, $_), '9|t', "$_: what is new works") foreach @databases;
is($node->sql(q{SELECT 'version' FROM outbox.health(), unnest(reasons) r WHERE r LIKE '%version%'}, $_), '', "$_: nothing differs") foreach @databases;

append_to_file($stop_file, '');
waitpid $_, 0 foreach @children;
foreach my $database (@databases)
{
	is(join("\n", lines("$_-$database.failed")), '', "$database: nobody failed: $_") foreach qw(staged-a.b staged-pull.b done);
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'push' AND state <> 'delivered'", 0, "$database: all that is pushed is delivered", $database);
	my $sent = $receiver->ids("/$database");
	my @staged = lines("staged-a.b-$database");
	is_deeply([ grep { !$sent->{$_} } @staged ], [], "$database: whatever producers were told is staged was sent: " . @staged);
	my %settled = map { $_ => 1 } split /\n/, $node->sql("SELECT message_id FROM outbox.deliveries WHERE handler = 'pull' AND state = 'delivered'", $database);
	my @done = lines("done-$database");
	is_deeply([ grep { !$settled{$_} } @done ], [], "$database: whatever consumers were told is done is: " . @done);
	is($node->sql('SELECT count(*) FROM outbox.verify() WHERE severity <> $$info$$', $database), 0, "$database: verify() finds nothing");
}

#
# What was updated is what is new.  (From versions that were released: t/126.)
#
foreach my $new ('9.0', '9.1')
{
	$node->sql("DROP DATABASE IF EXISTS $_; CREATE DATABASE $_") foreach qw(fresh updated);
	$node->sql("SET client_min_messages = warning; CREATE EXTENSION outbox VERSION '$new'", 'fresh');
	$node->sql("SET client_min_messages = warning; CREATE EXTENSION outbox VERSION '$version'; ALTER EXTENSION outbox UPDATE TO '$new'", 'updated');
	is(ExtensionCatalog::differences($node, 'updated', 'fresh'), '', "from $version to $new: the same objects as in a new database");
}
# Scripts of versions that the library has left behind may stand on the way.
is($node->sql("SELECT outbox_internal.require_library('0.1'), outbox_internal.require_library('9.1')"), '|', 'a script may need a library that is older than this one');
like($node->sql_error("SELECT outbox_internal.require_library('9.10')"), qr/55000.*version 9\.10 need a younger library/s, 'but no younger one');

#
# What cannot grow.
#
my $grow = sub {
	my ($old, $model) = @_;
	return $node->sql_error("CREATE FUNCTION public.f(a int, b text DEFAULT NULL) $old; CREATE FUNCTION public.model$model;
		SELECT outbox_internal.grow((SELECT oid FROM pg_proc WHERE proname = 'f'), (SELECT oid FROM pg_proc WHERE proname = 'model'))");
};
my $sql = q{LANGUAGE sql AS 'SELECT 1'};
my $int = "RETURNS int $sql";
foreach my $case (
	[ $int, "(a int, b text DEFAULT NULL, c int) $int", 'a new argument without a default' ],
	[ $int, "(a int, c int DEFAULT 1, b text DEFAULT NULL) $int", 'a new argument before others' ],
	[ $int, "(a int, b text, c int DEFAULT 1) $int", 'an old argument without its default' ],
	[ $int, "(a int, x text DEFAULT NULL, c int DEFAULT 1) $int", 'another name' ],
	[ $int, "(a int, b int DEFAULT NULL, c int DEFAULT 1) $int", 'another type' ],
	[ $int, "(a int, b text DEFAULT NULL, c int DEFAULT 1) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'", 'another result' ])
{
	my ($old, $model, $name) = @$case;
	like($grow->($old, $model), qr/42P13.*cannot grow into|42P13.*input parameters after one with a default value must also have defaults/s, "$name is refused");
	$node->sql('DROP FUNCTION IF EXISTS public.f; DROP FUNCTION IF EXISTS public.model');
}
like($grow->($int, '(a int, b text DEFAULT NULL, c int DEFAULT 1) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN c; END $$'), qr/42P13.*cannot get arguments in its language.*HINT:.*C or SQL/s,
	'a language that would read arguments which a running statement does not give');

done_testing();
