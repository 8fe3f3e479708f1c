# Watched tables: changes reach their handler in order, whoever writes; what
# announces them goes along with a dump, into tables whose columns have other
# numbers, and starts nothing while it is restored; and what only later
# releases of PostgreSQL have: MERGE, columns that are computed when read.
use strict;
use warnings;

use HttpReceiver;
use JSON::PP qw(decode_json);
use OutboxCluster;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "wal_level = logical");
my $version = $node->sql('SHOW server_version_num');
$node->handler('search', ['shop.*'], $receiver->url('/search'), ordered => 'true', concurrency => 20);

# What a client program says on standard error, if it fails.
sub run_on
{
	my @command = @_;
	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	my ($out, $error) = ('', '');
	return IPC::Run::run([@command], '>', \$out, '2>', \$error) ? '' : "@command: $error";
}

sub topics { return $node->sql(q{SELECT string_agg(topic || ' ' || coalesce(payload ->> 'recordId', ''), ', ' ORDER BY id) FROM outbox.message WHERE topic ~ '^}. $_[0] . q{'}, $_[1]); }

# Several writers, one row each time: each record's changes arrive in the order they were made.
$node->sql(q{
CREATE SCHEMA shop;
CREATE TABLE shop.stock (id int PRIMARY KEY, n int NOT NULL, unused text);
SELECT outbox.watch('shop.stock', 'shop.stock', include => '{n}');
INSERT INTO shop.stock SELECT g, 0 FROM generate_series(1, 5) AS g});
my $script = $node->basedir . '/bump.sql';
append_to_file($script, "\\set id random(1, 5)\nUPDATE shop.stock SET n = n + 1 WHERE id = :id;\n");
is(run_on('pgbench', '-n', '-c', 4, '-t', 50, '-f', $script, 'postgres'), '', 'four clients write');
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE state = 'delivered'", 205, 'all changes are delivered');
my (%last, @late);
foreach my $request ($receiver->requests('/search'))
{
	my $payload = decode_json($request->{body});
	my $expected = $payload->{kind} eq 'created' ? 0 : $last{ $payload->{recordId} } + 1;
	push @late, $request->{body} if $payload->{values}{n} != $expected;
	$last{ $payload->{recordId} } = $payload->{values}{n};
}
is("@late", '', 'each record in the order of its changes');

# A dump: of a table without the dropped column, and one whose column was renamed and told anew.
$node->sql(q{
ALTER TABLE shop.stock DROP COLUMN unused;
ALTER TABLE shop.stock ADD COLUMN "Täg" text;
CREATE TABLE shop.person (gone int, name text, number int PRIMARY KEY, org text);
ALTER TABLE shop.person DROP COLUMN gone;
SELECT outbox.watch('shop.person', 'shop.person', tenant => 'org', condition => 'coalesce(NEW.name, OLD.name) <> ''nobody''');
ALTER TABLE shop.person RENAME COLUMN name TO "full name";
ALTER TABLE shop.person RENAME COLUMN org TO organisation;
SELECT outbox.watch('shop.person', 'shop.person', tenant => 'organisation', condition => 'coalesce(NEW."full name", OLD."full name") <> ''nobody''');
CREATE TABLE shop.log (at date, id int) PARTITION BY RANGE (at);
CREATE TABLE shop.log_1 PARTITION OF shop.log FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
SELECT outbox.watch('shop.log', 'shop.log', record_id => '{id}', truncate => 'refuse');
INSERT INTO shop.person VALUES ('Ann', 1, 'acme'), ('nobody', 2, 'acme');
INSERT INTO shop.log VALUES ('2026-01-01', 1)});
is(topics('shop.(person|log)'), 'shop.person.created 1, shop.log.created 1', 'changes before the dump');
my $watched = 'SELECT * FROM outbox.watched ORDER BY relation::text';
my $definitions = q{SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname ~ '^outbox_watch' ORDER BY tgrelid::regclass::text, tgname};
my $dump = $node->basedir . '/dump';
is(run_on('pg_dump', '-Fc', '-f', $dump, 'postgres'), '', 'pg_dump');
$node->sql('CREATE DATABASE restored');
is(run_on('pg_restore', '-d', 'restored', $dump), '', 'pg_restore');
is($node->sql($watched, 'restored'), $node->sql($watched), 'the same tables are watched in the same way');
is($node->sql($definitions, 'restored'), $node->sql($definitions), 'by the same triggers');
is(topics('shop.(person|log)', 'restored'), topics('shop.(person|log)'), 'the restored rows are not announced');
isnt($node->sql(q{SELECT attnum FROM pg_attribute WHERE attrelid = 'shop.person'::regclass AND attname = 'number'}, 'restored'),
	$node->sql(q{SELECT attnum FROM pg_attribute WHERE attrelid = 'shop.person'::regclass AND attname = 'number'}), 'columns have other numbers there');
$node->sql(q{
DELETE FROM outbox.message;
INSERT INTO shop.person VALUES ('Bob', 3, 'acme'), ('nobody', 4, 'acme');
UPDATE shop.log SET id = 2;
UPDATE shop.stock SET "Täg" = 'x' WHERE id = 1}, 'restored');
is(topics('shop', 'restored'), 'shop.person.created 3, shop.log.updated 2, shop.stock.updated 1', 'and changes are');
is($node->sql(q{SELECT tenant FROM outbox.message WHERE topic = 'shop.person.created'}, 'restored'), 'acme', 'with what was asked for');
is(scalar(grep { $_ ne '' } $node->sql(q{SELECT finding FROM outbox.verify() WHERE finding ~ 'watched'}, 'restored')), 0, 'verify() has nothing to say');

# A column that was renamed and not told: the dump has its old name only.
$node->sql(q{ALTER TABLE shop.person RENAME COLUMN organisation TO org});
like($node->sql(q{SELECT hint FROM outbox.verify() WHERE finding = 'watched table with a column that was renamed'}), qr/'organisation'.*shop\.person/, 'verify() tells before');
$node->sql(q{INSERT INTO shop.person VALUES ('Eve', 5, 'acme')});
is($node->sql(q{SELECT tenant FROM outbox.message WHERE payload ->> 'recordId' = '5' AND topic = 'shop.person.created'}), 'acme', 'here it is found');
is(run_on('pg_dump', '-Fc', '-f', $dump, 'postgres'), '', 'pg_dump');
$node->sql('CREATE DATABASE stale');
is(run_on('pg_restore', '-d', 'stale', $dump), '', 'pg_restore');
like($node->sql_error(q{INSERT INTO shop.person VALUES ('Joe', 6, 'acme')}, 'stale'), qr/column "organisation" of relation "person" does not exist/, 'there it is said which is missing');
is($node->sql(q{SELECT outbox.watch('shop.person', 'shop.person', tenant => 'org')}, 'stale'), 'changed', 'and can be told anew');
$node->sql(q{INSERT INTO shop.person VALUES ('Joe', 6, 'acme')}, 'stale');

# The extension takes what announces along, and only when it is told to.
like($node->sql_error('DROP EXTENSION outbox', 'stale'), qr/other objects depend on it/, 'DROP EXTENSION says what is watched');
$node->sql('SET client_min_messages = warning; DROP EXTENSION outbox CASCADE; CREATE EXTENSION outbox', 'stale');
is($node->sql('SELECT count(*) FROM outbox.watched', 'stale'), 0, 'DROP EXTENSION CASCADE ends the watches');
$node->sql(q{INSERT INTO shop.person VALUES ('Kim', 7, 'acme')}, 'stale');

# A session that has written before sees what others change of a watch, and a prepared transaction announces as well.
my $session = PsqlSession->new($node);
$session->run('UPDATE shop.stock SET n = n + 1 WHERE id = 1');
$node->sql(q{SELECT outbox.watch('shop.stock', 'shop.shelf')});
$session->run('UPDATE shop.stock SET n = n + 1 WHERE id = 1');
is(topics('shop.shelf'), 'shop.shelf.updated 1', 'new options at once');
$node->sql(q{SELECT outbox.unwatch('shop.stock')});
$session->run('UPDATE shop.stock SET n = n + 1 WHERE id = 1');
is(topics('shop.shelf'), 'shop.shelf.updated 1', 'and their end');
$session->close;

SKIP:
{
	skip 'MERGE is of PostgreSQL 15', 1 if $version < 150000;
	$node->sql(q{
SELECT outbox.watch('shop.stock', 'shop.merged');
MERGE INTO shop.stock s USING (VALUES (1, 0), (2, 0), (9, 9)) v (id, n) ON s.id = v.id
WHEN MATCHED AND v.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET n = -1 WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.n)});
	is($node->sql(q{SELECT string_agg(topic || ' ' || (payload ->> 'recordId'), ', ' ORDER BY payload ->> 'recordId') FROM outbox.message WHERE topic ~ '^shop.merged'}),
		'shop.merged.deleted 1, shop.merged.updated 2, shop.merged.created 9', 'MERGE');
}

SKIP:
{
	skip 'virtual generated columns are of PostgreSQL 18', 2 if $version < 180000;
	$node->sql('CREATE TABLE shop.computed (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a + 1) VIRTUAL)');
	like($node->sql_error(q{SELECT outbox.watch('shop.computed', include => '{b}')}), qr/include cannot be column "b", which is computed when it is read/, 'virtual columns are refused');
	$node->sql(q{SELECT outbox.watch('shop.computed', 'shop.computed'); INSERT INTO shop.computed VALUES (1, 1); UPDATE shop.computed SET a = 2});
	is($node->sql(q{SELECT payload -> 'changedFields' FROM outbox.message WHERE topic = 'shop.computed.updated'}), '["a"]', 'and never among the changed ones');
}

$node->stop;
done_testing();
