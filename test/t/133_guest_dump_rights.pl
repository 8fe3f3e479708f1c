# The owner of a database who is no superuser dumps it: all of it once a
# superuser has made that role exempt from row level security, and everything
# but outbox without.
use strict;
use warnings;

use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = OutboxCluster->create('main', conf => 'outbox.enabled = off');
my $folder = PostgreSQL::Test::Utils::tempdir;
$node->sql('CREATE ROLE shop LOGIN; CREATE DATABASE shop OWNER shop');
$node->sql('SET client_min_messages = warning; CREATE EXTENSION outbox', 'shop');
$node->sql('SET ROLE shop; CREATE SCHEMA app; CREATE TABLE app.invoice (id int); INSERT INTO app.invoice VALUES (42)', 'shop');
$node->handler('push', ['a.*'], 'http://127.0.0.1:9/', database => 'shop', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
$node->stage('a.b', '{"n": 1}', database => 'shop');

my @dump = ('pg_dump', '--role=shop', '-d', $node->connstr('shop'));
$node->command_fails_like([ @dump, '-f', "$folder/refused" ], qr/permission denied for (?:table|sequence) \w+/, 'a plain dump says what it may not read');
$node->command_ok([ @dump, '-n', 'app', '-f', "$folder/app" ], 'its own schemas it dumps');
my ($major) = qx("$ENV{PG_CONFIG}" --version) =~ /(\d+)/;
SKIP:
{
	skip 'pg_dump --exclude-extension is of PostgreSQL 17', 1 if $major < 17;
	$node->command_ok([ @dump, '--exclude-extension=outbox', '-f', "$folder/others" ], 'everything but the extension');
}

$node->sql('ALTER ROLE shop BYPASSRLS; GRANT pg_read_all_data TO shop');
$node->command_ok([ @dump, '-f', "$folder/all" ], 'exempt from row level security, and with the right to read: all of it');
$node->sql('CREATE DATABASE restored');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', "$folder/all" ], 'it can be restored');
is_deeply([ $node->outbox_contents('restored') ], [ $node->outbox_contents('shop') ], 'and has everything');

done_testing();
