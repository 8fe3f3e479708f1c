# doc/recipes/javascript.md does what it says, and so do the migration files of
# Node's libraries in doc/recipes/migrations.md.
use strict;
use warnings;

use IPC::Run;
use NpmLibraries;
use OutboxCluster;
use PgBouncer;
use PlacedOrders;
use Recipes;
use Test::More;

my $libraries = NpmLibraries->install or plan skip_all => NpmLibraries->missing;
my $node = OutboxCluster->create('main');
$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'");
$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
$node->restart;
my $page = Recipes->read('doc/recipes/javascript.md');
my $folder = $node->basedir . '/javascript';
$page->write($folder);
$libraries->lend($folder);
$node->sql($_) foreach $page->sql;
my %to = (PGHOST => '127.0.0.1', PGPORT => $node->port, PGDATABASE => 'postgres');

# Prisma's command line would download an engine that neither "generate" nor
# the client needs, unless it is told that there is one.
my %here = (PRISMA_SCHEMA_ENGINE_BINARY => '/bin/true', CHECKPOINT_DISABLE => '1', NO_UPDATE_NOTIFIER => '1');

sub run_in
{
	my ($in, $env, @command) = @_;
	my $out = '';
	my $done = IPC::Run::run(\@command, '<', \undef, '>&', \$out, init => sub { chdir $in; @ENV{ keys %$env } = values %$env; },
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	return ($done, $out);
}

# --- the recipes
my ($generated, $told) = run_in($folder, \%here, "$folder/node_modules/.bin/prisma", 'generate', '--schema', 'schema.prisma');
ok($generated, "Prisma's client is generated") or diag($told);
my @recipes = grep { /\.js$/ && !/^(?:payload|announce)\.js$/ } $page->files;
is(join(' ', @recipes), 'drizzle.js knex.js node-postgres.js prisma.js typeorm.js', 'the page has these recipes');
foreach my $recipe (@recipes)
{
	PlacedOrders::try($node, $recipe, command => [ 'node', "$ENV{TESTDIR}/test/lib/recipes/place_orders.js", "$folder/$recipe" ],
		in => $folder, env => \%to, order_id => '"9007199254740993"');
}

# --- the same through PgBouncer, in transaction mode
SKIP:
{
	my $pooler = PgBouncer->start($node) or skip 'pgbouncer is not installed', 1;
	PlacedOrders::try($node, "$_, through PgBouncer", command => [ 'node', "$ENV{TESTDIR}/test/lib/recipes/place_orders.js", "$folder/$_" ],
		in => $folder, env => { %to, PGPORT => $pooler->port, PGDATABASE => 'shop' }, order_id => '"9007199254740993"')
	  foreach @recipes;
	$pooler->stop;
}

# --- the table of values
$node->handler('later', ['a.b'], undef);
$node->sql('TRUNCATE outbox.message');
open my $script, '>', "$folder/values.js" or die $!;
print $script <<'END';
const { Client } = require('pg');
const { toPayload } = require('./payload');
(async () => {
	const client = new Client();
	await client.connect();
	const stage = async (payload, more = '', ...given) => (await client.query(`SELECT outbox.stage($1, $2${more}) AS id`, ['a.b', payload, ...given])).rows[0].id;
	const said = [];
	for (const payload of [{ b: Buffer.from([1]) }, { n: 1n }, [1, 2], 'paid', '"paid"', null, 'null', { a: null, b: undefined }]) {
		try {
			const id = await stage(payload);
			said.push((await client.query('SELECT payload::text FROM outbox.message WHERE id = $1', [id])).rows[0].payload);
		} catch (error) {
			said.push(error.code ?? error.name);
		}
	}
	said.push(toPayload([1n, null]), typeof await stage('1', ', deliver_at => $3::timestamptz', new Date('2090-01-01T00:00:00Z')));
	await stage('2', ', delay => $3::interval', '3650 days');
	await stage('3', ', headers => $3::jsonb', JSON.stringify({ 'x-a': 'b' }));
	console.log(said.join('; '));
	await client.end();
})();
END
close $script;
(undef, $told) = run_in($folder, { %to, PGUSER => scalar getpwuid $> }, 'node', 'values.js');
is($told, qq({"b": {"data": [1], "type": "Buffer"}}; TypeError; 22P02; 22P02; "paid"; 22004; null; {"a": null}; ["1",null]; string\n), 'values become what the table says');
is($node->sql("SELECT due_at = '2090-01-01 00:00+00' FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id WHERE payload = '1'"), 't', 'a Date is deliver_at');
is($node->sql("SELECT d.due_at - d.staged_at BETWEEN '3649 days' AND '3651 days' FROM outbox.deliveries d JOIN outbox.message m ON m.id = d.message_id WHERE payload = '2'"), 't', 'text is a delay');
is($node->sql("SELECT headers ->> 'x-a' FROM outbox.message WHERE payload = '3'"), 'b', 'an object is headers');

# --- an order whose message fails
sub keep_order
{
	my ($name, $script) = @_;
	open my $out, '>', "$folder/keep.js" or die $!;
	print $out "const { announce } = require('./announce');\n(async () => {\n$script\n})();\n";
	close $out;
	$node->sql('TRUNCATE shop.orders, outbox.message');
	my ($done, $said) = run_in($folder, { %to, PGUSER => 'shop_app' }, 'node', 'keep.js');
	is($node->sql("SELECT (SELECT count(*) FROM shop.orders) || ' ' || (SELECT string_agg(payload::text, ' ') FROM outbox.message)"), '1 1', "$name: the order is kept, and the message that was good") or diag($said);
	return;
}

my $order = "INSERT INTO shop.orders VALUES (1, 'Ada', 1)";
my $bad = "SELECT outbox.stage('No topic', '2')";
my $good = "SELECT outbox.stage('a.b', '1')";
keep_order('node-postgres, try_stage', <<"END");
const client = new (require('pg').Client)();
await client.connect();
await client.query(`BEGIN; $order; $good`);
if (await announce(client.query.bind(client), 'No topic', '2', 'k') !== null) throw 'staged';
await client.query('COMMIT');
await client.end();
END
keep_order('node-postgres, a savepoint', <<"END");
const client = new (require('pg').Client)();
await client.connect();
await client.query(`BEGIN; $order; $good; SAVEPOINT s`);
await client.query(`$bad`).catch(() => client.query('ROLLBACK TO s'));
await client.query('COMMIT');
await client.end();
END
keep_order('Prisma, try_stage', <<"END");
const { PrismaClient } = require('\@prisma/client');
const prisma = new PrismaClient({ adapter: new (require('\@prisma/adapter-pg').PrismaPg)({}) });
await prisma.\$transaction(async (tx) => {
	await tx.\$executeRawUnsafe(`$order`);
	await tx.\$executeRawUnsafe(`$good`);
	if (await announce((text, values) => tx.\$queryRawUnsafe(text, ...values), 'No topic', '2', 'k') !== null) throw 'staged';
});
await prisma.\$disconnect();
END
keep_order('Drizzle, a nested transaction', <<"END");
const pool = new (require('pg').Pool)();
const { sql } = require('drizzle-orm');
await require('drizzle-orm/node-postgres').drizzle({ client: pool }).transaction(async (tx) => {
	await tx.execute(sql.raw(`$order`));
	await tx.execute(sql.raw(`$good`));
	await tx.transaction((inner) => inner.execute(sql.raw(`$bad`))).catch(() => {});
});
await pool.end();
END
keep_order('Knex, a nested transaction', <<"END");
const knex = require('knex')({ client: 'pg', connection: {} });
await knex.transaction(async (trx) => {
	await trx.raw(`$order`);
	await trx.raw(`$good`);
	await trx.transaction((inner) => inner.raw(`$bad`)).catch(() => {});
});
await knex.destroy();
END
keep_order('TypeORM, a nested transaction', <<"END");
const source = await new (require('typeorm').DataSource)({ type: 'postgres' }).initialize();
await source.transaction(async (manager) => {
	await manager.query(`$order`);
	await manager.query(`$good`);
	await manager.transaction((inner) => inner.query(`$bad`)).catch(() => {});
	if (await announce(manager.query.bind(manager), 'No topic', '2', 'k') !== null) throw 'staged';
});
await source.destroy();
END

# --- migration files
my $migrations = Recipes->read('doc/recipes/migrations.md');
my $files = $node->basedir . '/migrations';
$migrations->write($files);
$libraries->lend($files);
$node->sql('DROP OWNED BY shop_app; DROP ROLE shop_app; DROP SCHEMA shop CASCADE');
my $url = 'https://billing.example/hooks';
my $is_there = "SELECT string_agg(handler || ' ' || url, ', ') || ' ' || has_function_privilege('shop_app', 'outbox.stage'::regproc, 'EXECUTE') FROM outbox.handlers";

sub database
{
	my $name = shift;
	$node->sql("CREATE DATABASE $name");
	my $bootstrap = $migrations->text('bootstrap.sql');
	$bootstrap =~ s/^CREATE ROLE.*\n//mg if $node->sql("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'shop_app')") eq 't';
	$node->sql("SET client_min_messages = warning; $bootstrap", $name);
	$node->sql("GRANT CREATE ON DATABASE $name TO shop_owner; GRANT CREATE ON SCHEMA public TO shop_owner", $name);
	return;
}

sub migrate
{
	my ($database, $name, $program) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($done, $said) = run_in($files, { %to, PGDATABASE => $database, PGUSER => 'shop_owner', BILLING_URL => $url }, 'node', '-e', "(async () => { $program })()");
	ok($done, $name) or diag($said);
	return;
}

database('by_knex');
my $knex = "const knex = require('knex')({ client: 'pg', connection: {}, migrations: { directory: './knex' } });";
migrate('by_knex', 'Knex migrates', "$knex await knex.migrate.latest(); await knex.destroy();");
is($node->sql($is_there, 'by_knex'), "billing $url true", 'Knex: there are the handler and the grant');
migrate('by_knex', 'Knex rolls back', "$knex await knex.migrate.rollback(); await knex.destroy();");
is($node->sql('SELECT count(*) FROM outbox.handlers', 'by_knex'), 0, 'Knex: the handler is gone');

database('by_typeorm');
my $typeorm = "const { DataSource } = require('typeorm'); const source = new DataSource({ type: 'postgres', migrations: Object.values(require('./typeorm/1767225600000-outbox.js')) }); await source.initialize();";
migrate('by_typeorm', 'TypeORM migrates', "$typeorm await source.runMigrations(); await source.destroy();");
is($node->sql($is_there, 'by_typeorm'), "billing $url true", 'TypeORM: there are the handler and the grant');
migrate('by_typeorm', 'TypeORM reverts', "$typeorm await source.undoLastMigration(); await source.destroy();");
is($node->sql('SELECT count(*) FROM outbox.handlers', 'by_typeorm'), 0, 'TypeORM: the handler is gone');

database('by_drizzle');
my $shown = $migrations->text('drizzle/0000_outbox.sql');
unlink "$files/drizzle/0000_outbox.sql";
open my $schema, '>', "$files/schema.js" or die $!;
close $schema;
(undef, $told) = run_in($files, {}, "$files/node_modules/.bin/drizzle-kit", 'generate', '--custom', '--name=outbox', '--dialect=postgresql', '--schema=./schema.js');
ok(-e "$files/drizzle/0000_outbox.sql", 'Drizzle makes the file') or diag($told);
open my $file, '>', "$files/drizzle/0000_outbox.sql" or die $!;
print $file $shown;
close $file;
migrate('by_drizzle', 'Drizzle migrates', "const { Pool } = require('pg'); const pool = new Pool(); await require('drizzle-orm/node-postgres/migrator').migrate(require('drizzle-orm/node-postgres').drizzle({ client: pool }), { migrationsFolder: './drizzle' }); await pool.end();");
is($node->sql($is_there, 'by_drizzle'), "billing $url true", 'Drizzle: there are the handler and the grant');

$node->stop;
done_testing();
