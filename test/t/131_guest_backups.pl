# A copy made by physical backup sends nothing by itself, and a standby goes
# on: backups restored with and without point-in-time recovery, in place, of
# copies and of standbys, pg_rewind, cold copies of the data directory at the
# same and at another site; with restarts and crashes in between, until
# outbox.adopt().  (Logical copies are in 130, failover under load in 150.)
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $receiver = HttpReceiver->start;

# Every server says in its requests who it is.
sub name_server
{
	my $node = shift;
	$node->append_conf('postgresql.conf', "outbox.user_agent = '" . $node->name . "'");
	return;
}

# How many requests came from a server.
sub sent_by
{
	my $node = shift;
	return scalar grep { $_->{headers}{'user-agent'} eq $node->name } map { $receiver->requests($_) } qw(/postgres /second);
}

my $origin = OutboxCluster->create('origin', extension => 0, init => { allows_streaming => 1 },
	conf => "wal_log_hints = on\nwal_keep_size = 512MB\noutbox.rescan_interval = 1s\noutbox.user_agent = 'origin'");
$origin->stop;
$origin->enable_archiving;
$origin->start;
foreach my $database (qw(postgres second))
{
	$origin->extension($database);
	$origin->handler('push', ['push.*'], $receiver->url("/$database"), database => $database);
	$origin->handler('pull', ['pull.*'], undef, database => $database);
	$origin->sql("SELECT outbox.pause_handler('push')", $database);
	$origin->stage($_, '{}', database => $database) foreach qw(push.first pull.first);
}
$origin->backup('backup');
$origin->stage('push.later');
$origin->sql('SELECT pg_create_restore_point($$later$$)');
$origin->sql('SELECT pg_switch_wal()');
$origin->sql("SELECT outbox.resume_handler('push')", $_) foreach qw(postgres second);
$origin->wait_for_states('delivered 2, pending 1', 'the original sends what is in the backup, and more');

# A server from a backup, not yet started.
sub restore
{
	my ($name, $from, $backup, %options) = @_;
	my $conf = delete $options{conf};
	my $node = OutboxCluster->new($name);
	$node->init_from_backup($from, $backup, %options);
	name_server($node);
	$node->append_conf('postgresql.conf', 'archive_mode = off');
	$node->append_conf('postgresql.conf', $conf) if defined $conf;
	return $node;
}

my $restored = 'this database was restored from a backup: nothing is sent until SELECT outbox.adopt() makes it the sender';

# A database holds its deliveries, whatever is asked to say so.
sub is_held
{
	my ($node, $database, $name, $reason) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$reason //= $restored;
	$node->wait_for("SELECT state || ': ' || last_error FROM outbox.dispatchers WHERE database = '$database'", "held: $reason", "$name: is held", $database);
	$node->sql("SELECT outbox.resume_handler('push')", $database);
	is($node->sql('SELECT status, reasons[1] FROM outbox.health()', $database), "critical|$reason", "$name: says health()");
	is($node->sql("SELECT hint FROM outbox.verify() WHERE finding = 'database is a copy'", $database), ucfirst($reason) . '.', "$name: and verify()");
	my $error = $node->sql_error("SELECT outbox.claim('pull')", $database);
	like($error, qr/ERROR:  55000: deliveries are held/, "$name: and claim()");
	like($error, qr/DETAIL:  \u\Q$reason\E\./, "$name: with the same reason");
	return;
}

sub sends
{
	my ($node, $database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = sent_by($node);
	$node->wait_for("SELECT state FROM outbox.dispatchers WHERE database = '$database'", 'running', "$name: runs", $database);
	$node->sql("SELECT outbox.resume_handler('push')", $database);
	$node->stage('push.new', '{}', database => $database);
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'push' AND state <> 'delivered'", 0, "$name: delivers", $database);
	cmp_ok(sent_by($node), '>', $before, "$name: over HTTP");
	is($node->sql("SELECT count(*) FROM outbox.verify() WHERE finding = 'database is a copy'", $database), 0, "$name: nothing is amiss");
	return;
}

sub adopt
{
	my ($node, $database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->sql('SELECT outbox.adopt()', $database), 't', "$name: is adopted");
	is($node->sql('SELECT outbox.adopt()', $database), 'f', "$name: once");
	sends($node, $database, $name);
	return;
}

sub file { return $_[0]->data_dir . '/outbox.restored'; }

#
# A backup that is started as it is
#
my $plain = restore('plain', $origin, 'backup');
$plain->start;
is_held($plain, $_, "restored, $_") foreach qw(postgres second);
like($plain->log_text, qr/LOG:  outbox sends nothing from this server, which is being restored from a backup\n.*DETAIL:  There is "backup_label" in the data directory, and no "standby\.signal"/, 'the log says so at the start');
like($plain->log_text, qr/LOG:  outbox dispatcher for database "second" holds its deliveries\n.*DETAIL:  \u\Q$restored\E\./, 'and for each database');
$plain->stage('push.own');
$plain->restart;
is_held($plain, 'postgres', 'restarted');
$plain->kill9;
$plain->start_after_crash;
is_held($plain, 'postgres', 'after a crash');
is(sent_by($plain), 0, 'nothing was sent in all that time');
is($plain->sql("SELECT string_agg(state, ',' ORDER BY state) FROM outbox.deliveries WHERE handler = 'push'"), 'pending,pending', 'or tried');
adopt($plain, 'postgres', 'restored');
is(sent_by($plain), 3, 'what was pending is sent: of the backup, staged while held, and new');
is($plain->sql("SELECT count(*) FROM outbox.claim('pull')"), 1, 'and can be claimed');
is_held($plain, 'second', 'the other database');
$plain->restart;
sends($plain, 'postgres', 'adopted and restarted');
is_held($plain, 'second', 'the other database, restarted');
$plain->extension('third');
$plain->handler('push', ['push.*'], $receiver->url('/second'), database => 'third');
$plain->handler('pull', ['pull.*'], undef, database => 'third');
sends($plain, 'third', 'an extension created in a restored server');

#
# Copies of a restored server, whose one database is adopted and the other is not
#
$plain->backup('backup');
my $again = restore('again', $plain, 'backup');
$again->start;
is_held($again, $_, "a backup of a copy, $_") foreach qw(postgres second third);
my $standby = restore('standby', $plain, 'backup', has_streaming => 1);
$standby->start;
ok(-e file($standby), 'a standby knows what it is a standby of');
is($standby->sql('SELECT status FROM outbox.health()', 'second'), 'critical', 'a standby of a copy says beforehand that it will hold');
$plain->stage('push.last');
$plain->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'push' AND state <> 'delivered'", 0, 'the copy sends');
$plain->wait_for_catchup($standby);
$plain->stop('immediate');
$standby->promote;
sends($standby, 'postgres', 'the standby of a copy, promoted');
is_held($standby, 'second', 'the standby of a copy, not adopted');

# Rewound, the server that was restored is a standby like any other.
$standby->sql('CHECKPOINT');
sub rewind
{
	my ($node, $source) = @_;
	my $conf = slurp_file($node->data_dir . '/postgresql.conf');
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	command_ok([ 'pg_rewind', '--target-pgdata', $node->data_dir, '--source-server', $source->connstr('postgres') ], $node->name . ' is rewound');
	unlink $node->data_dir . '/postgresql.conf';
	append_to_file($node->data_dir . '/postgresql.conf', $conf);
	return;
}
rewind($plain, $standby);
$plain->enable_streaming($standby);
$plain->start;
$standby->wait_for_catchup($plain);
$standby->stop('immediate');
$plain->promote;
sends($plain, 'postgres', 'rewound and promoted');
is_held($plain, 'second', 'rewound and promoted, not adopted');
adopt($plain, 'second', 'rewound and promoted');
# Rewound, but started as a server of its own.
$plain->sql('CHECKPOINT');
rewind($standby, $plain);
$standby->start;
is_held($standby, 'postgres', 'rewound and started without standby.signal');
$_->stop('immediate') foreach $plain, $standby, $again;

# A standby made from a restored server whose dispatcher has never run, and so
# has not written down what the server is.
my $silent = restore('silent', $origin, 'backup', conf => 'max_worker_processes = 0');
$silent->start;
is($silent->sql('SELECT restored, restored_as IS NULL FROM outbox.installation'), 'f|t', 'a restored server that has not noted what it is');
$silent->backup('backup');
my $heir = restore('heir', $silent, 'backup', has_streaming => 1);
$heir->start;
is($heir->sql('SELECT reasons[1] FROM outbox.health()'), $restored, 'its standby says that it will hold');
$silent->stop('immediate');
$heir->promote;
$heir->append_conf('postgresql.conf', 'max_worker_processes = 24');
$heir->restart;
is_held($heir, 'postgres', 'the standby of a copy that has noted nothing, promoted');
adopt($heir, 'postgres', 'the standby of a copy that has noted nothing');
$heir->stop;

# Managers of clusters start a server as a standby, each time, and promote it then:
# that makes nothing else of a copy, before or after it has noted what it is.
sub start_managed
{
	my ($node, $name, @settings) = @_;
	append_to_file($node->data_dir . '/standby.signal', '');
	$node->start;
	if (@settings)
	{
		is($node->sql('SELECT pg_is_in_recovery()'), 't', "$name: a standby");
		$node->append_conf('postgresql.conf', @settings);
		$node->restart;
	}
	$node->promote;
	return;
}
my $managed = restore('managed', $origin, 'backup', conf => 'max_worker_processes = 0');
$managed->start;
is($managed->sql('SELECT restored, restored_as IS NULL FROM outbox.installation'), 'f|t', 'another one that has not noted what it is');
$managed->stop;
start_managed($managed, 'managed', 'max_worker_processes = 24');
is_held($managed, 'postgres', 'a copy that was made a standby of nobody, and promoted');
is(sent_by($managed), 0, 'which has sent nothing');
$managed->stop;
start_managed($managed, 'managed again');
is_held($managed, 'postgres', 'and again');
adopt($managed, 'postgres', 'a copy that is managed');
$managed->kill9;
unlink $managed->data_dir . '/postmaster.pid';
append_to_file($managed->data_dir . '/standby.signal', '');
$managed->start_after_crash;
$managed->promote;
sends($managed, 'postgres', 'a copy that is managed, adopted, after a crash');
$managed->stop;

#
# Point-in-time recovery
#
my $target = "recovery_target_name = 'later'\nrecovery_target_action";
my $pitr = restore('pitr', $origin, 'backup', has_restoring => 1, standby => 0, conf => "$target = pause");
$pitr->start;
$pitr->wait_for("SELECT pg_get_wal_replay_pause_state()", 'paused', 'recovery waits at its target');
is($pitr->sql('SELECT status, reasons[1] FROM outbox.health()'), "critical|$restored", 'health() says what is to come');
$pitr->kill9;
$pitr->start_after_crash;
$pitr->wait_for("SELECT pg_get_wal_replay_pause_state()", 'paused', 'again after a crash');
$pitr->sql('SELECT pg_wal_replay_resume()');
$pitr->wait_for('SELECT pg_is_in_recovery()', 'f', 'recovery ends');
is_held($pitr, 'postgres', 'point-in-time recovery');
is($pitr->sql("SELECT string_agg(topic || ' ' || state, ', ' ORDER BY topic) FROM outbox.deliveries WHERE handler = 'push'"), 'push.first pending, push.later pending', 'with what was there at that time');
$pitr->restart;
is_held($pitr, 'postgres', 'point-in-time recovery, restarted');
adopt($pitr, 'postgres', 'point-in-time recovery');
is($pitr->sql("SELECT timeline_id > 1 FROM pg_control_checkpoint()"), 't', 'on a new timeline');
$pitr->stop;

# In place: the same server, a moment of its past.
my $before = $origin->sql('SELECT system_identifier FROM pg_control_system()');
my $in_place = restore('in_place', $origin, 'backup', has_restoring => 1, standby => 0, conf => "$target = promote");
$in_place->start;
$in_place->wait_until('SELECT pg_is_in_recovery()', 'f');
is_held($in_place, 'postgres', 'recovery that ends by itself');
adopt($in_place, 'postgres', 'recovery that ends by itself');
$in_place->backup('backup');
$in_place->stop;
my $mark = slurp_file(file($in_place));
my $kept = slurp_file($in_place->data_dir . '/postgresql.conf');
PostgreSQL::Test::RecursiveCopy::copypath($in_place->backup_dir . '/backup', $in_place->data_dir . '.new');
rename $in_place->data_dir, $in_place->data_dir . '.old' or die;
rename $in_place->data_dir . '.new', $in_place->data_dir or die;
chmod 0700, $in_place->data_dir;
$in_place->start;
isnt(slurp_file(file($in_place)), $mark, 'another restore has another mark');
is_held($in_place, 'postgres', 'restored once more in the same place');
is($in_place->sql('SELECT system_identifier FROM pg_control_system()'), $before, 'it is the same server by its identity');
$in_place->stop;

# Somebody changes their mind: what began as a recovery becomes a standby.
my $turned = restore('turned', $origin, 'backup', has_restoring => 1, standby => 0, conf => "$target = pause");
$turned->start;
$turned->wait_for("SELECT pg_get_wal_replay_pause_state()", 'paused', 'a recovery');
ok(-e file($turned), 'is noted');
$turned->stop;
unlink $turned->data_dir . '/recovery.signal';
$turned->append_conf('postgresql.conf', "recovery_target_name = ''");
$turned->enable_streaming($origin);
$turned->start;
ok(!-e file($turned), 'and forgotten when it becomes a standby');
$origin->wait_for_catchup($turned);
is($turned->sql("SELECT count(*) FROM unnest((SELECT reasons FROM outbox.health())) r WHERE r ~ 'adopt'"), 0, 'which has nothing to say of it');
$turned->promote;
sends($turned, 'postgres', 'promoted');
$turned->stop;

# Single-user mode recovers and takes the label away, too.
my $single = restore('single', $origin, 'backup');
command_ok([ 'postgres', '--single', '-D', $single->data_dir, 'postgres' ], 'single-user mode');
ok(!-e $single->data_dir . '/backup_label', 'takes the label away');
$single->start;
is_held($single, 'postgres', 'after single-user mode');
$single->stop;

# An empty file, a file that says something else: what cannot be read holds.
append_to_file(file($origin), "something else\n");
$origin->restart;
is_held($origin, 'postgres', 'a file that was written by hand');
unlink file($origin);
$origin->restart;
is_held($origin, 'postgres', 'is noted in the database');
adopt($origin, $_, 'written by hand') foreach qw(postgres second);

#
# Cold copies: nothing in the data directory tells, but the site does.
#
is($origin->sql('SELECT site FROM outbox.installation'), '', 'no site is set');
$origin->append_conf('postgresql.conf', "outbox.site = 'north'");
$origin->reload;
$origin->wait_for('SELECT site FROM outbox.installation', 'north', 'a site is noted when it is set', $_) foreach qw(postgres second);
my $follower = restore('follower', $origin, 'backup', has_streaming => 1, conf => "outbox.site = 'west'");
$follower->start;
$origin->stop;
$origin->backup_fs_cold('cold');
$origin->start;
my $elsewhere = "this database sends from site \"north\" and this is site";
my $cold = restore('cold', $origin, 'cold', conf => "outbox.site = 'south'");
$cold->start;
is_held($cold, 'postgres', 'a cold copy at another site', "$elsewhere \"south\": nothing is sent until SELECT outbox.adopt() makes it the sender");
$cold->restart;
is_held($cold, 'postgres', 'a cold copy at another site, restarted', "$elsewhere \"south\": nothing is sent until SELECT outbox.adopt() makes it the sender");
adopt($cold, 'postgres', 'a cold copy');
is($cold->sql('SELECT site FROM outbox.installation'), 'south', 'the new site is noted');
$cold->adjust_conf('postgresql.conf', 'outbox.site', "'east'");
$cold->reload;
is_held($cold, 'postgres', 'the site changes', 'this database sends from site "south" and this is site "east": nothing is sent until SELECT outbox.adopt() makes it the sender');
$cold->adjust_conf('postgresql.conf', 'outbox.site', "'south'");
$cold->reload;
sends($cold, 'postgres', 'the site is as it was');
$cold->stop;
# The environment of whoever starts the server says the same.
$cold->append_conf('postgresql.conf', "outbox.user_agent = 'cold'");
my $conf = slurp_file($cold->data_dir . '/postgresql.conf') =~ s/^outbox\.site.*\n//mgr;
unlink $cold->data_dir . '/postgresql.conf';
append_to_file($cold->data_dir . '/postgresql.conf', $conf);
{
	local $ENV{OUTBOX_SITE} = 'staging';
	$cold->start;
}
is($cold->sql('SHOW outbox.site'), 'staging', 'OUTBOX_SITE names the site');
is_held($cold, 'postgres', 'by the environment', 'this database sends from site "south" and this is site "staging": nothing is sent until SELECT outbox.adopt() makes it the sender');
$cold->stop;
$cold->start;
sends($cold, 'postgres', 'without a name nothing is compared');
$cold->stop;

# What is not recognised, as doc/copies.md says: the same site, by a cold copy.
my $same = restore('same', $origin, 'cold');
$same->start;
sends($same, 'postgres', 'a cold copy at the same site');
$same->stop;

# Nor is a backup that has recovered before the library was there to see it.
my $unseen = restore('unseen', $origin, 'backup', conf => "shared_preload_libraries = ''");
$unseen->start;
$unseen->adjust_conf('postgresql.conf', 'shared_preload_libraries', "'outbox'");
$unseen->restart;
sends($unseen, 'postgres', 'a backup first started without the library');
$unseen->stop;

# A standby at another site says beforehand that it will not go on.
$origin->wait_for_catchup($follower);
is($follower->sql('SELECT status, reasons[1] FROM outbox.health()'), "critical|$elsewhere \"west\": nothing is sent until SELECT outbox.adopt() makes it the sender", 'a standby at another site');
$follower->adjust_conf('postgresql.conf', 'outbox.site', "'north'");
$follower->reload;
$follower->wait_for("SELECT count(*) FROM unnest((SELECT reasons FROM outbox.health())) r WHERE r ~ 'adopt'", 0, 'and at the same');
$origin->stop('immediate');
$follower->promote;
sends($follower, 'postgres', 'a standby at the same site, promoted');

unlike($_->log_text, qr/PANIC|TRAP|terminated by signal/, $_->name . ': no process has crashed') foreach $origin, $plain, $again, $standby, $silent, $heir, $managed, $pitr, $in_place, $turned, $single, $cold, $same, $unseen, $follower;
done_testing();
