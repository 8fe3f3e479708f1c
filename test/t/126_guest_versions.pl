# From every version that was released to the present one: an updated database has
# the objects that a new one has, down to comments and initial privileges, and
# what was staged, claimed, dead or planned before goes on, for sessions that
# were there meanwhile as well.
#
# The present version itself goes through the same without an update, so that
# what is tried here works while nothing has been released yet.
#
# With the argument "catalog" it ends after the comparison (t/127).
use strict;
use warnings;

use ExtensionCatalog;
use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use PostgreSQL::Test::Utils qw(slurp_file append_to_file);
use ReleasedVersions;
use Test::More;
use POSIX ();
use Time::HiRes qw(usleep);

my $versions = ReleasedVersions->new('.');
my $present = $versions->present;
my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.rescan_interval = 1h");

sub create
{
	my ($database, $version) = @_;
	$node->sql("CREATE DATABASE $database");
	return $node->sql("SET client_min_messages = warning; CREATE EXTENSION outbox VERSION '$version'", $database);
}

#
# The catalog, and the rows that the scripts make.
#
is(ExtensionCatalog::differences($node, 'postgres', 'postgres'), '', 'what is compared is the same each time');
create('fresh', $present);
my %leads = ($present => 1);
foreach my $old ($versions->before)
{
	$leads{$old} = $node->sql("SELECT path FROM pg_extension_update_paths('outbox') WHERE source = '$old' AND target = '$present'");
	ok($leads{$old}, "there are scripts from $old to $present") or next;
	create('updated', $old);
	$node->sql('ALTER EXTENSION outbox UPDATE', 'updated');
	is(ExtensionCatalog::differences($node, 'updated', 'fresh'), '', "from $old to $present: the same objects as in a new database");
	is(join("\n", $node->outbox_contents('updated')), join("\n", $node->outbox_contents('fresh')), "from $old to $present: and the same rows");
	$node->sql('DROP DATABASE updated WITH (FORCE)');
}

if ("@ARGV" eq 'catalog')
{
	done_testing();
	exit;
}

#
# At work, from versions that the library serves.
#
my $folder = PostgreSQL::Test::Utils::tempdir;
# A producer that goes on in one session with a statement it has prepared.
sub produce
{
	my ($database, $file) = @_;
	my $pid = fork;
	die "fork: $!" unless defined $pid;
	return $pid if $pid;
	my $session = PsqlSession->new($node, $database);
	$session->run(q{PREPARE staging AS SELECT 'staged ' || outbox.stage('push.running', key => 'k')});
	until (-e "$folder/stop")
	{
		my $answer = $session->run('EXECUTE staging');
		append_to_file($file, $answer =~ /^staged (\S+)$/m ? "$1\n" : "failed: $answer\n");
		usleep(5_000);
	}
	POSIX::_exit(0);
}
sub lines
{
	my @lines = -e $_[0] ? split /\n/, slurp_file($_[0]) : ();
	return @lines;
}

foreach my $old (grep { $leads{$_} } $versions->served)
{
	my $database = 'from_' . $old =~ tr/./_/r;
	my $name = "from $old to $present";
	create($database, $old);
	$receiver->on("/$database/broken", { status => 400 }, { status => 200 });
	$node->handler('push', ['push.*'], $receiver->url("/$database/push"), database => $database);
	$node->handler('held', ['held.*'], $receiver->url("/$database/held"), database => $database);
	$node->handler('ordered', ['ordered.*'], $receiver->url("/$database/ordered"), ordered => 'true', database => $database);
	$node->handler('broken', ['broken.*'], $receiver->url("/$database/broken"), max_attempts => 1, database => $database);
	$node->handler('pull', ['pull.*'], undef, database => $database);
	$node->sql(<<'END', $database);
SELECT outbox.pause_handler('held'), outbox.pause_handler('ordered');
SELECT outbox.create_topic('pull.work', max_payload => 1000);
SELECT outbox.create_schedule('daily', '@daily', topic => 'push.daily');
SELECT outbox.stage('held.a', '{"n": 1}', dedupe_key => 'once', tenant => 't', headers => '{"x-a": "b"}');
SELECT outbox.stage_text('held.text', 'as it is'), outbox.stage_bytes('held.bytes', '\x00ff');
SELECT count(outbox.stage('ordered.a', jsonb_build_object('n', n), key => 'k')) FROM generate_series(1, 20) n;
SELECT count(outbox.stage('pull.work', jsonb_build_object('n', n))) FROM generate_series(1, 4) n;
SELECT outbox.stage('broken.a'), outbox.stage('push.a');
END
	$node->wait_for("SELECT string_agg(handler || ' ' || state, ', ' ORDER BY handler) FROM outbox.deliveries WHERE handler IN ('broken', 'push')",
		'broken dead, push delivered', "$name: at work", $database);
	my $consumer = PsqlSession->new($node, $database);
	my ($leased, $attempt) = split /\|/, $consumer->run(q{SELECT id, attempt FROM outbox.claim('pull')});
	$consumer->run(q{PREPARE claiming AS SELECT id, attempt FROM outbox.claim('pull')});
	$consumer->run('EXECUTE claiming');
	my $definitions = $node->sql("SELECT handler, kind, topics, url, ordered, paused_at, handler_id FROM outbox.handlers ORDER BY handler", $database);
	my $file = "$folder/$database";
	my $producer = produce($database, $file);
	$node->wait_while_not(sub { lines($file) > 10 }, "$name: a producer is at work");

	$node->sql('ALTER EXTENSION outbox UPDATE', $database) if $old ne $present;
	my $before = lines($file);
	is(ExtensionCatalog::differences($node, $database, 'fresh'), '', "$name: the same objects, with rows in them");
	is($node->sql("SELECT handler, kind, topics, url, ordered, paused_at, handler_id FROM outbox.handlers ORDER BY handler", $database), $definitions, "$name: the handlers are what they were");

	$node->wait_while_not(sub { lines($file) > $before + 10 }, "$name: a session that was there goes on");
	append_to_file("$folder/stop", '');
	waitpid $producer, 0;
	unlink "$folder/stop";
	is(join("\n", grep { /failed/ } lines($file)), '', "$name: none of its calls has failed");
	is($consumer->run("SELECT outbox.complete('pull', '$leased', $attempt)"), 't', "$name: what was leased is settled by who leased it");
	like($consumer->run('EXECUTE claiming'), qr/^\S+\|1$/, "$name: a statement that was prepared before claims another");
	is($node->sql(q{SELECT state FROM outbox.deliveries WHERE handler = 'pull' ORDER BY state}, $database), "delivered\nleased\nleased\npending", "$name: all that is pulled is where it was left");

	is($node->sql(q{SELECT status FROM outbox.try_stage('held.a', dedupe_key => 'once', tenant => 't')}, $database), 'exists', "$name: a dedupe key is known");
	like($node->sql_error(q{SELECT outbox.stage('pull.work', jsonb_build_object('x', repeat('x', 2000)))}, $database), qr/payload/, "$name: a topic's rule holds");
	is($node->sql(q{SELECT name, next_run_at > now() FROM outbox.schedules}, $database), 'daily|t', "$name: a schedule has its next occurrence");
	$node->sql(q{SELECT outbox.resume_handler('held'), outbox.resume_handler('ordered'), outbox.requeue_where(handler => 'broken')}, $database);
	$node->wait_for(q{SELECT string_agg(DISTINCT state, ' ') FROM outbox.deliveries WHERE handler <> 'pull'}, 'delivered', "$name: whatever waited is delivered, a dead letter that was brought back too", $database);
	my $sent = $receiver->ids("/$database/push");
	is(join(' ', grep { !$sent->{$_} } lines($file)), '', "$name: whatever the producer was told is staged was sent: " . lines($file));
	is(join(' ', map { $_->{body} } $receiver->requests("/$database/ordered")), join(' ', map { qq({"n": $_}) } 1 .. 20), "$name: in order where asked");
	is(join(' ', sort map { $_->{body} } $receiver->requests("/$database/held")), join(' ', sort '{"n": 1}', 'as it is', "\0\xff"), "$name: bodies are what was staged");
	is($node->sql(q{SELECT finding FROM outbox.verify() WHERE severity <> 'info'}, $database), '', "$name: verify() finds nothing");
	is($node->sql(q{SELECT r FROM outbox.health(), unnest(reasons) r WHERE r LIKE '%version%'}, $database), '', "$name: and health() nothing to update");
}

done_testing();
