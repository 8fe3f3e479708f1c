# pg_upgrade takes everything along, while nothing is sent by either server;
# the new cluster holds its deliveries, says so, and sends once it is adopted.
#
# From the PostgreSQL of OLD_PG_CONFIG to that of NEW_PG_CONFIG (PG_CONFIG
# unless given), both with outbox installed: test/versions --upgrade arranges
# two of Debian's.  Skipped without OLD_PG_CONFIG.
use strict;
use warnings;

use Cwd qw(getcwd);
use File::Basename qw(dirname);
use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'OLD_PG_CONFIG does not name a PostgreSQL to upgrade from' unless $ENV{OLD_PG_CONFIG};

# What a pg_config says of its PostgreSQL.
sub installation
{
	my $config = shift;
	my ($bindir, $version) = map { my $answer = qx("$config" --$_); chomp $answer; $answer } qw(bindir version);
	die "$config says nothing\n" unless $version =~ /^PostgreSQL (\d+)/;
	return { bindir => $bindir, path => dirname($bindir), version => $version, major => $1 };
}
my $from = installation($ENV{OLD_PG_CONFIG});
my $to = installation($ENV{NEW_PG_CONFIG} || $ENV{PG_CONFIG});
plan skip_all => "$to->{version} is not newer than $from->{version}" unless $to->{major} > $from->{major};
note("from $from->{version} to $to->{version}");

# From 18 on initdb makes checksums of its own accord; both have to agree.
sub create
{
	my ($name, $installation) = @_;
	my $node = OutboxCluster->create($name,
		cluster => { install_path => $installation->{path} },
		init => { extra => $installation->{major} >= 18 ? ['--no-data-checksums'] : [] },
		conf => 'outbox.rescan_interval = 1s',
		start => 0);
	return $node;
}

my $receiver = HttpReceiver->start;
my $old = create('old', $from);
$old->start;
$old->extension('shop');
$old->extension('postgres');

# A bit of everything.
$old->sql(q{
CREATE ROLE producer; CREATE ROLE worker; CREATE ROLE on_call; CREATE ROLE app;
GRANT EXECUTE ON FUNCTION outbox.stage TO producer;
GRANT EXECUTE ON FUNCTION outbox.requeue, outbox.cancel TO on_call;
GRANT SELECT ON outbox.dead_letters TO on_call;
CREATE TABLE done (id uuid); ALTER TABLE done OWNER TO app;
CREATE FUNCTION settled(s outbox.settlement) RETURNS void LANGUAGE sql BEGIN ATOMIC INSERT INTO done VALUES (s.message_id); END;
ALTER FUNCTION settled(outbox.settlement) OWNER TO app;
CREATE VIEW overdue AS SELECT * FROM outbox.deliveries WHERE state = 'pending';
}, 'shop');
$old->handler('push', ['a.*'], $receiver->url('/push'), database => 'shop', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', authorization => 'Bearer x', headers => '{"x-a": "b"}',
	rules => '{"404": "cancel"}', backoff => '{1 h}', max_attempts => 2);
$old->handler('hooked', ['h.*'], $receiver->url('/hooked'), database => 'shop', on_settle => 'settled(outbox.settlement)');
$old->handler('keyed', ['k.*'], $receiver->url('/keyed'), database => 'shop', ordered => 'true');
$old->handler('pull', ['p.*'], undef, database => 'shop');
$old->handler('gone', ['g.*'], undef, database => 'shop');
$old->sql("SELECT outbox.drop_handler('gone'); SELECT outbox.grant_consumer('pull', 'worker'); SELECT outbox.accept('elsewhere', 'm1')", 'shop');
$old->stage('a.b', '{"n": 1}', database => 'shop', tenant => 't', key => 'k', dedupe_key => 'd', correlation_id => 'c', headers => '{"x-c": "d"}');
$old->stage('h.i', '{}', database => 'shop');
$old->wait_for_states('delivered 2', 'some are delivered', 'shop');
$receiver->on('/push', { status => 500, body => 'no' }, { status => 404 }, { headers => { 'outbox-outcome' => 'fail; code=never' } }, {});
foreach my $expected ('retrying', 'cancelled', 'dead')
{
	my $id = $old->stage('a.b', "{\"n\": \"$expected\"}", database => 'shop');
	$old->wait_for("SELECT state FROM outbox.deliveries WHERE message_id = '$id'", $expected, "one is $expected", 'shop');
}
$old->sql("SELECT outbox.stage('p.q') FROM generate_series(1, 4); SELECT outbox.complete('pull', id, attempt) FROM outbox.claim('pull')", 'shop');
my $lease = $old->sql("SELECT id, attempt FROM outbox.claim('pull', 1, '1 day')", 'shop');

# What is due and not sent, of a server that was stopped in between.
$old->append_conf('postgresql.conf', 'outbox.enabled = off');
$old->reload;
$old->wait_for("SELECT state FROM outbox.dispatchers WHERE database = 'shop'", 'disabled', 'sending stops', 'shop');
$old->stage('a.b', '{"n": "pending"}', database => 'shop') foreach 1, 2;
$old->stage('h.i', '{"n": "pending"}', database => 'shop');
my @keyed = map { $old->stage('k.l', "{\"n\": $_}", database => 'shop', key => 'key') } 1 .. 3;
my $states = 'cancelled 1, dead 1, delivered 3, leased 1, pending 8, retrying 1';
$old->wait_for_states($states, 'a bit of everything', 'shop');

# What others than its owner, who has every right of the version, may do.
sub rights
{
	my ($acl, $owner) = @_;
	return "(SELECT string_agg(grantee::regrole || ':' || privilege_type, ' ' ORDER BY grantee::regrole::text, privilege_type) FROM aclexplode($acl) WHERE grantee <> $owner)";
}

# Every object with its rights, and what belongs to the extension; in some
# versions that counts the types of rows, in others not.
sub objects
{
	my $node = shift;
	my ($of_function, $of_relation) = (rights('p.proacl', 'p.proowner'), rights('c.relacl', 'c.relowner'));
	return join "\n", sort map { split /\n/, $node->sql($_, 'shop') } (
		qq{SELECT p.oid::regprocedure, $of_function, p.proowner::regrole FROM pg_proc p WHERE p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace)},
		qq{SELECT c.oid::regclass, c.relkind, c.reloptions, c.relreplident, $of_relation FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace},
		q{SELECT t.tgrelid::regclass, t.tgname, t.tgenabled FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = 'outbox'::regnamespace},
		q{SELECT e.extversion, (SELECT string_agg(x::regclass::text, ' ' ORDER BY x::regclass::text) FROM unnest(e.extconfig) x) FROM pg_extension e WHERE e.extname = 'outbox'},
		q{SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'outbox') AND deptype = 'e' AND classid <> 'pg_type'::regclass});
}
my @contents = $old->outbox_contents('shop');
my $objects = objects($old);
my $sent = scalar(my @before = $receiver->requests);
my $highest = $old->sql('SELECT id FROM outbox.message ORDER BY id DESC LIMIT 1', 'shop');
$old->stop;

# Both servers are started by pg_upgrade and might send.
$old->append_conf('postgresql.conf', 'outbox.enabled = on');
my $new = create('new', $to);
my $folder = getcwd();
chdir PostgreSQL::Test::Utils::tempdir or die;
{
	local %ENV = $new->_get_env;
	command_ok(
		[
			"$to->{bindir}/pg_upgrade", '--no-sync', '--old-datadir', $old->data_dir, '--new-datadir', $new->data_dir,
			'--old-bindir', $from->{bindir}, '--new-bindir', $to->{bindir}, '--socketdir', $new->host,
			'--old-port', $old->port, '--new-port', $new->port
		],
		'pg_upgrade');
}
chdir $folder or die;
is(scalar(my @during = $receiver->requests), $sent, 'nothing was sent meanwhile');

$new->start;
foreach my $database ('shop', 'postgres')
{
	$new->wait_for("SELECT state || ': ' || last_error FROM outbox.dispatchers WHERE database = '$database'",
		'held: this database is a copy of another one: nothing is sent until SELECT outbox.adopt() makes it the sender', "$database is held", $database);
}
is_deeply([ $new->outbox_contents('shop') ], \@contents, 'messages, deliveries and handlers have come along');
is(objects($new), $objects, 'and all objects with their rights');
is($new->sql("SELECT string_agg(finding, ', ') FROM outbox.verify()", 'shop'), 'database is a copy', 'outbox.verify() says that it is a copy');
is($new->sql('SELECT status FROM outbox.health()', 'shop'), 'critical', 'and outbox.health()');
like($new->sql_error("SELECT outbox.claim('pull')", 'shop'), qr/55000.*HINT:.*outbox\.adopt\(\)/s, 'nothing can be claimed');
# Two looks at everything later it still has sent nothing.
foreach my $round (1, 2)
{
	$new->sql('SELECT outbox_internal.ring_handlers(); SELECT outbox_internal.ring_rescan()', 'shop');
	$new->wait_for("SELECT state FROM outbox.dispatchers WHERE database = 'shop'", 'held', 'it goes on holding them', 'shop');
}
is(scalar(my @after = $receiver->requests), $sent, 'nothing is sent');
is(scalar(my @lines = $new->log_text =~ /database "shop" holds its deliveries/g), 1, 'the log says it once');
unlike($new->log_text, qr/database "shop" is running/, 'and that it runs not at all');

is($new->sql('SELECT outbox.adopt()', 'shop'), 't', 'adopt() says that it was held');
$new->wait_for_states('cancelled 1, dead 1, delivered 9, leased 1, pending 2, retrying 1', 'what was due is delivered', 'shop');
is($receiver->count('/push'), 6, 'each once');
is_deeply([ map { $_->{headers}{'webhook-id'} } $receiver->requests('/keyed') ], \@keyed, 'in order');
is($new->sql('SELECT count(*) FROM done', 'shop'), 2, 'on_settle functions run');
is($new->sql("SELECT outbox.complete('pull', '" . join("', ", split /\|/, $lease) . ')', 'shop'), 't', 'a lease of the old server can be settled');
is($new->sql("SET ROLE worker; SELECT count(*) FROM outbox.claim('pull', 10)", 'shop'), 2, 'its consumers claim the rest');
cmp_ok($new->sql("SET ROLE producer; SELECT outbox.stage('a.b', '{\"n\": \"new\"}')", 'shop'), 'gt', $highest, 'its producers stage');
$new->wait_for_states('cancelled 1, dead 1, delivered 11, leased 2, retrying 1', 'and that is delivered', 'shop');
is($new->sql("SELECT outbox.requeue(message_id) FROM outbox.dead_letters", 'shop'), 1, 'a dead letter is requeued');
$new->wait_for_states('cancelled 1, delivered 12, leased 2, retrying 1', 'and delivered', 'shop');
is($new->sql("SELECT state FROM outbox.dispatchers WHERE database = 'postgres'"), 'held', 'the other database is still held');
unlike($_->log_text, qr/PANIC|TRAP|terminated by signal/, $_->name . ': no process has crashed') foreach $old, $new;

done_testing();
