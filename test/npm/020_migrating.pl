# doc/migrating.md: what waits in graphile-worker and in pg-boss is moved while
# their workers are at work: each job is done on one side, once.
use strict;
use warnings;

use IPC::Run;
use JSON::PP ();
use NpmLibraries;
use OutboxCluster;
use Recipes;
use Test::More;

my $libraries = NpmLibraries->install or plan skip_all => NpmLibraries->missing;
my $page = Recipes->read('doc/migrating.md');
my $node = OutboxCluster->create('main');
$node->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'");
$node->append_conf('pg_hba.conf', 'host all all 127.0.0.1/32 trust');
$node->restart;
my $folder = $node->basedir . '/workers';
mkdir $folder or die "$folder: $!";
$libraries->lend($folder);

sub write_file
{
	my ($name, $text) = @_;
	open my $out, '>', "$folder/$name" or die "$folder/$name: $!";
	print $out $text;
	close $out;
	return $name;
}

sub start
{
	my ($database, $script, $said) = @_;
	my $url = sprintf 'postgresql://%s@127.0.0.1:%d/%s', scalar(getpwuid $>), $node->port, $database;
	return IPC::Run::start([ 'node', $script ], '<', \undef, '>&', $said, init => sub { chdir $folder; @ENV{qw(DATABASE_URL NO_LOG_SUCCESS)} = ($url, 1) },
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
}

# Both: 300 jobs at once, 100 that fail when they are first tried, 10 for
# later; a worker that notes in a table what it did, and ends when it is told.
sub change_over
{
	my ($database, $setup, $worker, $outstanding) = @_;
	my ($said, $working) = ('', '');
	$node->extension($database);
	$node->sql('CREATE TABLE done (n int)', $database);
	$node->handler('new', ['invoice.*'], undef, database => $database);
	my $filler = start($database, write_file("$database.setup.js", $setup), \$said);
	ok($filler->finish, "$database: there are jobs") or diag($said);
	is($node->sql($outstanding, $database), 410, "$database: all of them");
	my $old = start($database, write_file("$database.worker.js", $worker), \$working);
	$node->wait_for('SELECT count(*) > 10 FROM done', 't', "$database: its worker is at work", $database);
	my ($moved, $first) = (0);
	$node->wait_while_not(
		sub {
			my $n = $node->sql($page->text("$database/move.sql"), $database);
			$first //= $n;
			$moved += $n;
			return $node->sql($outstanding, $database) == 0;
		},
		"$database: nothing is left");
	cmp_ok($first, '>', 0, "$database: the first time, $first are moved");
	$old->signal('TERM');
	$old->finish;
	is($node->sql('SELECT count(*) FROM outbox.message', $database), $moved, "$database: what was moved is staged");
	is($node->sql(q{SELECT count(*) || ' ' || count(DISTINCT n) || ' ' || sum(n) FROM (SELECT n FROM done UNION ALL SELECT (payload ->> 'invoice')::int FROM outbox.message) s}, $database),
		'410 410 84255', "$database: each job is on one side, once") or diag($working);
	is($node->sql(q{SELECT count(*) FROM outbox.deliveries WHERE due_at = '2090-01-01 00:00+00'}, $database), 10, "$database: what was for later is");
	is($node->sql(q{SELECT count(*) FROM outbox.message WHERE headers ->> 'x-job-id' IS NULL}, $database), 0, "$database: with the old ids");
	return;
}

change_over('graphile-worker', <<'END', <<'END', 'SELECT count(*) FROM graphile_worker.jobs');
const { runMigrations } = require('graphile-worker');
const { Client } = require('pg');
(async () => {
	await runMigrations({ connectionString: process.env.DATABASE_URL });
	const client = new Client({ connectionString: process.env.DATABASE_URL });
	await client.connect();
	await client.query(`SELECT count(graphile_worker.add_job('send_invoice', json_build_object('invoice', n, 'fails', n > 300 AND n <= 400),
		queue_name => CASE WHEN n % 10 = 0 THEN 'customer ' || n % 7 END, run_at => CASE WHEN n > 400 THEN '2090-01-01 00:00+00'::timestamptz END)) FROM generate_series(1, 410) n`);
	await client.end();
})();
END
const { run } = require('graphile-worker');
(async () => {
	const runner = await run({ connectionString: process.env.DATABASE_URL, concurrency: 4, noHandleSignals: true, taskList: {
		send_invoice: async (payload, { query, job }) => {
			if (payload.fails && job.attempts < 2) throw new Error('not yet');
			await query('INSERT INTO done VALUES ($1)', [payload.invoice]);
		} } });
	process.on('SIGTERM', () => runner.stop().then(() => process.exit(0)));
})();
END
is($node->sql(q{SELECT count(*) > 0 AND bool_and(key ~ '^customer [0-6]$') FROM outbox.message WHERE key IS NOT NULL}, 'graphile-worker'), 't', 'graphile-worker: queues became keys');

change_over('pg-boss', <<'END', <<'END', q{SELECT count(*) FROM pgboss.job WHERE name = 'invoice.send' AND state <= 'active'});
const PgBoss = require('pg-boss');
(async () => {
	const boss = new PgBoss({ connectionString: process.env.DATABASE_URL });
	await boss.start();
	await boss.createQueue('invoice.send', { name: 'invoice.send', retryLimit: 3 });
	const jobs = [];
	for (let n = 1; n <= 410; n++) {
		jobs.push({ name: 'invoice.send', data: { invoice: n, fails: n > 300 && n <= 400 }, retryLimit: 3, retryDelay: 3600, ...(n > 400 && { startAfter: '2090-01-01T00:00:00Z' }) });
	}
	await boss.insert(jobs);
	await boss.stop({ graceful: false });
	process.exit(0);
})();
END
const PgBoss = require('pg-boss');
const { Pool } = require('pg');
(async () => {
	const pool = new Pool({ connectionString: process.env.DATABASE_URL });
	const boss = new PgBoss({ connectionString: process.env.DATABASE_URL });
	boss.on('error', console.error);
	await boss.start();
	for (let worker = 0; worker < 8; worker++) {
		await boss.work('invoice.send', { batchSize: 1, pollingIntervalSeconds: 0.5 }, async (jobs) => {
			if (jobs.some((job) => job.data.fails)) throw new Error('not yet');
			await pool.query('INSERT INTO done SELECT unnest($1::int[])', [jobs.map((job) => job.data.invoice)]);
		});
	}
	process.on('SIGTERM', () => boss.stop({ graceful: false }).then(() => process.exit(0)));
})();
END

$node->stop;
done_testing();
