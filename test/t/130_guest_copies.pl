# A copy brings everything along and sends nothing: dumps (whole, in any
# order, schema only, data only, over their own database) and logical
# subscribers, until outbox.adopt().  Template copies are with the databases.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', extension => 0, conf => "wal_level = logical\nmax_wal_senders = 8\nmax_replication_slots = 8\noutbox.rescan_interval = 1s\noutbox.on_settle_timeout = 1h");

# A bit of everything.
$node->extension('prod');
$node->sql(q{
CREATE ROLE worker;
CREATE FUNCTION settled(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_advisory_xact_lock(1);
END $$;
ALTER FUNCTION settled(outbox.settlement) OWNER TO worker}, 'prod');
$node->handler('push', ['a.*'], $receiver->url('/push'), database => 'prod', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', authorization => 'Bearer x',
	backoff => '{1 h}', max_attempts => 2);
$node->handler('pull', ['p.*'], undef, database => 'prod', ordered => 'true');
$node->handler('hooked', ['h.*'], $receiver->url('/hooked'), database => 'prod', on_settle => 'settled(outbox.settlement)');
$node->handler('gone', ['g.*'], $receiver->url('/gone'), database => 'prod');
$node->sql(q{
SELECT outbox.grant_consumer('pull', 'worker');
SELECT outbox.accept('elsewhere', 'm1');
SELECT outbox.create_topic('a.*', description => 'It is known', max_payload => 1000);
}, 'prod');
$node->stage('a.b', '{"n": "delivered"}', database => 'prod', tenant => 't', key => 'k', headers => '{"x-a": "b"}');
$node->wait_for_states('delivered 1', 'one is delivered', 'prod');
$receiver->on('/push', { status => 500, body => 'no' });
$node->stage('a.b', '{"n": "retrying"}', database => 'prod');
$node->wait_for_states('delivered 1, retrying 1', 'one is retrying', 'prod');
$receiver->on('/push', { status => 410 });
$node->stage('a.b', '{"n": "dead"}', database => 'prod');
$node->wait_for_states('dead 1, delivered 1, retrying 1', 'one is dead and its handler paused', 'prod');
$receiver->on('/push', {});
$node->sql("SELECT outbox.stage('p.q', '{}', 'key') FROM generate_series(1, 3); SELECT outbox.drop_handler('gone')", 'prod');
$node->sql("SELECT outbox.claim('pull')", 'prod');
$node->stage('a.b', '{"n": "pending"}', database => 'prod', dedupe_key => 'd');
$node->stage('a.b', '{"n": "held"}', database => 'prod');
$node->sql("SELECT outbox.pause_handler('pull', 'for a while')", 'prod');
# An outcome whose function does not come to an end.
my $blocker = $node->background_psql('prod', on_error_stop => 0);
$blocker->query_safe('SELECT pg_advisory_lock(1)');
$node->stage('h.i', '{}', database => 'prod');
$node->wait_for("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted", 1, 'one waits for its function');
$node->wait_for_states('dead 1, delivered 1, leased 2, pending 4, retrying 1', 'a bit of everything', 'prod');
my $sent = $receiver->count('/push');
my $hooked = $receiver->count('/hooked');

# Every table and sequence is registered, and none has a column that
# pg_upgrade refuses (it looks at what is stored, not at views).
is($node->sql(q{
SELECT string_agg(c.relname, ', ') FROM pg_class c
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'S', 'p', 'm')
	AND NOT EXISTS (SELECT FROM pg_extension e WHERE e.extname = 'outbox' AND c.oid = ANY (e.extconfig))}, 'prod'),
	'', 'every table and sequence is registered for dump');
is($node->sql(q{
SELECT string_agg(a.attrelid::regclass || '.' || a.attname, ', ') FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'm', 'i') AND a.attnum > 0 AND NOT a.attisdropped
	AND format_type(a.atttypid, NULL) ~ '^reg|^aclitem|^unknown|^"?sql_identifier|^abstime|^line$'}, 'prod'),
	'', 'no column has a type that pg_upgrade refuses');

# Of which server ($node unless named).
sub contents
{
	my ($database, $on) = @_;
	return ($on // $node)->outbox_contents($database);
}

sub is_held
{
	my ($database, $name, $on) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$on //= $node;
	return $on->wait_for("SELECT state || ': ' || last_error FROM outbox.dispatchers WHERE database = '$database'",
		'held: this database is a copy of another one: nothing is sent until SELECT outbox.adopt() makes it the sender', $name, $database);
}

sub run_on
{
	my ($on, @command) = @_;
	local $ENV{PGHOST} = $on->host;
	local $ENV{PGPORT} = $on->port;
	my ($out, $error) = ('', '');
	my $status = IPC::Run::run([@command], '>', \$out, '2>', \$error);
	return $status ? '' : "@command: $error";
}

my ($contents, $sequences) = contents('prod');
my $dir = PostgreSQL::Test::Utils::tempdir;
is(run_on($node, 'pg_dump', '-Fc', '-f', "$dir/whole", 'prod'), '', 'pg_dump');

# Restored whole.
$node->sql('CREATE DATABASE whole');
my $mark = -s $node->logfile;
is(run_on($node, 'pg_restore', '-d', 'whole', "$dir/whole"), '', 'pg_restore');
is_held('whole', 'a restored database holds its deliveries');
is_deeply([ contents('whole') ], [ $contents, $sequences ], 'and has everything');
is($node->sql("SELECT string_agg(finding, ', ') FROM outbox.verify() WHERE finding = 'database is a copy'", 'whole'), 'database is a copy', 'outbox.verify() says so');
is($node->sql('SELECT status FROM outbox.health()', 'whole'), 'critical', 'and outbox.health()');
my @lines = slurp_file($node->logfile, $mark) =~ /database "whole" (holds its deliveries|sends|is running)/g;
is_deeply([ grep { /holds/ } @lines ], ['holds its deliveries'], 'the log says it once');

# Restored piece by piece in an order that could hardly be worse, each piece
# given time to be looked at.
sub restore_part
{
	my ($database, $archive, $pattern, $not) = @_;
	local $ENV{PGHOST} = $node->host;
	my @list = grep { /$pattern/ && !($not && /$not/) } split /\n/, qx(pg_restore -l $archive);
	open my $out, '>', "$dir/list" or die;
	print $out map { "$_\n" } @list;
	close $out;
	return run_on($node, 'pg_restore', '-d', $database, '-L', "$dir/list", $archive);
}
# Wait until a dispatcher that is not held has looked at everything anew.
sub looked_at
{
	my $database = shift;
	$node->wait_until("SELECT count(*) > 0 FROM outbox.dispatchers WHERE database = '$database' AND state IN ('running', 'held')", 't', $database);
	my $scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'delivery_outstanding'";
	my $before = $node->sql("SELECT outbox_internal.ring_handlers(); SELECT outbox_internal.ring_rescan(); $scans", $database) =~ s/\s//gr;
	$node->wait_until("SELECT state = 'held' OR ($scans) > $before FROM outbox.dispatchers WHERE database = '$database'", 't', $database);
	return;
}
$node->sql('CREATE DATABASE pieces');
is(restore_part('pieces', "$dir/whole", qr/ EXTENSION | FUNCTION /), '', 'first the extension');
looked_at('pieces');
foreach my $table (qw(delivery receipt on_settle_queue attempt handler handler_status handler_secret message installation consumer inbox topic tenant_retention action))
{
	is(restore_part('pieces', "$dir/whole", qr/ TABLE DATA outbox \Q$table\E /), '', "then $table");
	looked_at('pieces');
}
is(restore_part('pieces', "$dir/whole", qr/ SEQUENCE SET /), '', 'then the sequences');
is_held('pieces', 'restored in pieces it holds its deliveries');
is_deeply([ contents('pieces') ], [ $contents, $sequences ], 'and nothing has happened to them');

# Data only, into an outbox of its own; schema only.
$node->extension('data');
$node->wait_for_dispatcher('data');
is(run_on($node, 'pg_dump', '-Fc', '--data-only', '-f', "$dir/data", 'prod'), '', 'pg_dump --data-only');
is(run_on($node, 'pg_restore', '-d', 'data', "$dir/data"), '', 'restored');
is_held('data', 'data of another database is held');
is_deeply([ contents('data') ], [ $contents, $sequences ], 'and complete');
$node->sql('CREATE DATABASE schema');
is(run_on($node, 'pg_dump', '-Fc', '--schema-only', '-f', "$dir/schema", 'prod'), '', 'pg_dump --schema-only');
is(run_on($node, 'pg_restore', '-d', 'schema', "$dir/schema"), '', 'restored');
$node->wait_for_dispatcher('schema');
$node->handler('own', ['o.*'], $receiver->url('/own'), database => 'schema');
$node->stage('o.p', '{}', database => 'schema');
$node->wait_for_states('delivered 1', 'a schema without data is an outbox of its own', 'schema');
is($receiver->count('/own'), 1, 'that delivers');

# Over its own database: what was sent since the dump would be sent again.
$node->sql('CREATE DATABASE again');
is(run_on($node, 'pg_restore', '-d', 'again', "$dir/whole"), '', 'a copy');
is($node->sql('SELECT outbox.adopt()', 'again'), 't', 'that is adopted');
$node->wait_for_dispatcher('again');
is(run_on($node, 'pg_dump', '-Fc', '-f', "$dir/again", 'again'), '', 'and dumped');
is(run_on($node, 'pg_restore', '--clean', '--if-exists', '-d', 'again', "$dir/again"), '', 'and restored over itself');
is_held('again', 'is held');
is($receiver->count('/push'), $sent, 'nothing was sent by any of them');

# adopt() makes it the sender.
$node->sql("SELECT outbox.resume_handler('push')", 'whole');
is($node->sql("SELECT count(*) FROM outbox.deliveries WHERE handler = 'push' AND state = 'pending'", 'whole'), 2, 'a resumed handler of a copy sends nothing either');
is($node->sql('SELECT outbox.adopt()', 'whole'), 't', 'adopt() says that it was held');
$node->wait_for_states('dead 1, delivered 4, leased 1, pending 2, retrying 1', 'and what was pending is delivered, and what waited for its function settled', 'whole');
is($receiver->count('/push'), $sent + 2, 'each once');
is($receiver->count('/hooked'), $hooked, 'the latter is not sent again');
is($node->sql("SET ROLE worker; SELECT count(*) FROM outbox.claim('pull')", 'whole'), 0, 'who could consume can');
is($node->sql('SELECT outbox.adopt()', 'whole'), 'f', 'a second adopt() has nothing to do');
my ($highest, $new) = split /\|/, $node->sql("SELECT max(id), outbox.create_handler('new', '{n.*}', 'http://127.0.0.1:1/') FROM outbox.handler", 'whole');
cmp_ok($new, '>', $highest, 'ids of handlers go on');

# The original has not been disturbed by any of this.
is_deeply([ contents('prod') ], [ $contents, $sequences ], 'the original is as it was');

# A logical subscriber of all tables, on another server.
$blocker->quit;
$node->wait_for_states('dead 1, delivered 2, leased 1, pending 4, retrying 1', 'the function has ended', 'prod');
($contents) = contents('prod');
my $subscriber = OutboxCluster->create('subscriber', extension => 0, conf => "outbox.rescan_interval = 1s\nmax_logical_replication_workers = 8\nmax_worker_processes = 30");
$subscriber->sql('CREATE ROLE worker');
$subscriber->extension('prod');
$subscriber->wait_for_dispatcher('prod');
$node->sql('CREATE PUBLICATION everything FOR ALL TABLES', 'prod');
is($node->sql(q{
SELECT string_agg(c.relname, ', ') FROM pg_class c LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r' AND (c.relreplident = 'n' OR c.relreplident = 'd' AND i.indexrelid IS NULL)}, 'prod'),
	'', 'every table can be published with its updates');
$subscriber->sql("CREATE SUBSCRIPTION copy CONNECTION '" . $node->connstr('prod') =~ s/'/''/gr . "' PUBLICATION everything", 'prod');
$subscriber->wait_for("SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'", 0, 'the initial copy is complete', 'prod');
is_held('prod', 'a subscriber holds its deliveries', $subscriber);
is((contents('prod', $subscriber))[0], $contents, 'and has them all');

# What happens at the publisher goes on, and arrives.
$node->sql("SELECT outbox.rotate_secret('push'); SELECT outbox.resume_handler('push'); SELECT outbox.adopt()", 'prod');
$node->wait_for_states('dead 1, delivered 4, leased 1, pending 2, retrying 1', 'the publisher delivers', 'prod');
is($receiver->count('/push'), $sent + 4, 'once');
$node->sql('UPDATE outbox.installation SET installed_at = installed_at', 'prod');
($contents) = contents('prod');
$subscriber->wait_while_not(sub { (contents('prod', $subscriber))[0] eq $contents }, 'the subscriber follows');
is_held('prod', 'and holds', $subscriber);

# The subscriber takes over, from a server whose clock is ahead.
$subscriber->sql("BEGIN; SELECT outbox.stage('a.b'); ROLLBACK", 'prod');
my $ahead = $node->sql("INSERT INTO outbox.message (id, staged_at, topic, payload) VALUES (outbox_internal.id_floor(clock_timestamp() + interval '1 hour'), now(), 'x.y', '1') RETURNING id", 'prod');
$node->stage('a.b', '{"n": "last"}', database => 'prod');
$node->wait_for_states('dead 1, delivered 5, leased 1, pending 2, retrying 1', 'a last one', 'prod');
$node->wait_for_catchup('copy', 'replay', $node->lsn('write'));
$subscriber->sql('DROP SUBSCRIPTION copy', 'prod');
is($subscriber->sql('SELECT outbox.adopt()', 'prod'), 't', 'the subscriber is adopted');
$subscriber->wait_for_dispatcher('prod');
my $before = $receiver->count('/push');
cmp_ok($subscriber->stage('a.b', '{"n": "first"}', database => 'prod'), 'gt', $ahead, 'ids of messages go on there');
$subscriber->wait_for_states('dead 1, delivered 6, leased 1, pending 2, retrying 1', 'and delivers', 'prod');
is($receiver->count('/push'), $before + 1, 'only what is new');
($highest, $new) = split /\|/, $subscriber->sql("SELECT max(id), outbox.create_handler('new', '{n.*}', 'http://127.0.0.1:1/') FROM outbox.handler", 'prod');
cmp_ok($new, '>', $highest, 'and those of handlers, too');

unlike($_->log_text, qr/PANIC|TRAP|terminated by signal/, $_->name . ': no process has crashed') foreach ($node, $subscriber);
done_testing();
