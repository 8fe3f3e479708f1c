# pg_restore --data-only --disable-triggers leaves the extension's triggers
# switched off for the extension itself.  health() says so, and whatever is
# changed with its functions is noticed all the same: by producers' sessions,
# by consumers' and by the dispatcher.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => 'outbox.rescan_interval = 1h');
$node->sql('CREATE ROLE worker');
$node->handler('kept', ['kept.*'], $receiver->url('/kept'));
$node->handler('pull', ['pull.*'], undef);
$node->sql(q{SELECT outbox.grant_consumer('pull', 'worker')});

# What a restore leaves.
my $file = PostgreSQL::Test::Utils::tempdir . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $file, $node->connstr('postgres') ], 'dumped');
$node->extension('restored');
$node->sql('SET client_min_messages = warning; DELETE FROM outbox.installation; DELETE FROM outbox.handler', 'restored');
$node->command_ok([ 'pg_restore', '--data-only', '--disable-triggers', '-d', $node->connstr('restored'), $file ], 'restored without triggers');
my $off = $node->sql(q{SELECT count(*) FROM pg_trigger WHERE tgrelid IN ('outbox.handler'::regclass, 'outbox.installation'::regclass) AND NOT tgisinternal AND tgenabled <> 'A'}, 'restored');
cmp_ok($off, '>', 0, 'triggers are not as they were installed');
my $health = q{SELECT status || ': ' || array_to_string(reasons, '; ') FROM outbox.health()};
like($node->sql($health, 'restored'), qr/^critical: .*trigger handler_changed on outbox\.handler is switched off for outbox itself.*ALTER TABLE outbox\.handler ENABLE ALWAYS TRIGGER handler_changed/,
	'health() is critical and says what to do');
# Data only is rows only: EXECUTE on the consumers' functions is granted again.
$node->sql(q{SELECT outbox.adopt(), outbox.grant_consumer('pull', 'worker')}, 'restored');
$node->wait_for_dispatcher('restored');

# Every trigger disabled, in the worst of ways.
my @tables = qw(handler handler_status handler_secret consumer installation);
$node->sql(join '; ', (map { "ALTER TABLE outbox.$_ DISABLE TRIGGER ALL" } @tables), 'DROP TRIGGER status_changed ON outbox.consumer');
like($node->sql($health), qr/^critical: .*trigger status_changed on outbox\.consumer is missing.*CREATE TRIGGER status_changed AFTER/, 'a trigger that is missing');
like($node->sql($health), qr/trigger status_changed on outbox\.handler_status is disabled/, 'one that is disabled');

foreach my $database ('postgres', 'restored')
{
	my $path = "/$database";
	my $producer = PsqlSession->new($node, $database);
	my $consumer = PsqlSession->new($node, $database);
	my $routed = sub { return $producer->run("WITH s AS MATERIALIZED (SELECT outbox.stage('new.item') AS id) SELECT id FROM s") };
	my $arrives = sub {
		my ($name, $where) = @_;
		my $before = $receiver->count($where);
		$routed->();
		return ok($receiver->wait_for_requests($before + 1, $where), "$database: $name");
	};
	$routed->();
	like($consumer->run(q{SET ROLE worker; SELECT count(*) FROM outbox.claim('pull')}), qr/^0$/, "$database: a consumer looks");

	$node->handler('new', ['new.*'], $receiver->url("$path-1"), database => $database);
	$arrives->('a new handler gets what a session stages that was there before', "$path-1");
	$node->sql("SELECT outbox.alter_handler('new', url => '" . $receiver->url("$path-2") . "')", $database);
	$arrives->('a changed one gets it where it is now', "$path-2");
	$node->handler('beside', ['new.*'], $receiver->url("$path-3"), database => $database);
	$arrives->('another one', "$path-3");
	$node->sql(q{SELECT outbox.pause_handler('new')}, $database);
	my $before = $receiver->count("$path-2");
	$arrives->('while the first one is paused', "$path-3");
	is($receiver->count("$path-2"), $before, "$database: the paused one gets nothing");
	$node->sql(q{SELECT outbox.resume_handler('new')}, $database);
	ok($receiver->wait_for_requests($before + 1, "$path-2"), "$database: until it is resumed");
	$node->sql(q{SELECT outbox.rotate_secret('new')}, $database);
	$arrives->('with a secret', "$path-2");
	my @requests = $receiver->requests("$path-2");
	ok($requests[-1]{headers}{'webhook-signature'}, "$database: it is signed");
	$node->sql(q{SELECT outbox.drop_handler('new')}, $database);
	my $id = $routed->();
	is($node->sql("SELECT string_agg(handler, ' ') FROM outbox.deliveries WHERE message_id = '$id'", $database), 'beside', "$database: a dropped one gets no more");

	$node->sql(q{SELECT outbox.revoke_consumer('pull', 'worker')}, $database);
	like($consumer->run(q{SELECT count(*) FROM outbox.claim('pull')}), qr/permission denied/, "$database: a session that consumed notices that it may not any more");
	$node->sql(q{SELECT outbox.grant_consumer('pull', 'worker')}, $database);
	is($consumer->run(q{SELECT count(*) FROM outbox.claim('pull')}), 0, "$database: and that it may again");
	$node->sql(q{SELECT outbox.pause_handler('pull')}, $database);
	$producer->run(q{SELECT outbox.stage('pull.item')});
	is($consumer->run(q{SELECT count(*) FROM outbox.claim('pull')}), 0, "$database: a paused handler gives nothing");
	$node->sql(q{SELECT outbox.resume_handler('pull')}, $database);
	is($consumer->run(q{SELECT count(*) FROM outbox.claim('pull')}), 1, "$database: a resumed one does");
}

# As verify() and health() say.
foreach my $database ('postgres', 'restored')
{
	$node->sql(q{DO $$
		DECLARE
			remedy text;
		BEGIN
			FOR remedy IN SELECT f.remedy FROM outbox_internal.trigger_faults() f LOOP
				EXECUTE remedy;
			END LOOP;
		END $$}, $database);
	is($node->sql(q{SELECT count(*) FROM outbox.verify() WHERE finding ~ 'trigger'}, $database), 0, "$database: verify() finds no trigger any more");
	unlike($node->sql($health, $database), qr/trigger/, "$database: nor does health()");
	$node->sql(q{UPDATE outbox.handler SET url = url || '-by-hand' WHERE name = 'beside'}, $database);
	$node->sql(q{SELECT outbox.stage('new.item')}, $database);
	ok($receiver->wait_for_requests(1, "/$database-3-by-hand"), "$database: what is edited by hand is noticed again");
}

done_testing();
