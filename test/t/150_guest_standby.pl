# A standby is silent, and takes over by itself: views answer and nothing can
# be staged or claimed until promotion; then what was committed and replicated
# is delivered, with nothing to be done.  Failover under load, asynchronous
# and synchronous, there and back again by pg_rewind.
use strict;
use warnings;

use HttpReceiver;
use JSON::PP ();
use OrderChecker;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;
use Time::HiRes qw(time);

my $receiver = HttpReceiver->start;
# A receiver that takes a moment has requests out when the server dies.
$receiver->on('/plain', { delay => 0.005 });
$receiver->on('/ordered', { delay => 0.002 });
$receiver->on('/failing', { per_message => [ { status => 500 }, {} ] });

my $first = OutboxCluster->create('first',
	init => { allows_streaming => 1 },
	conf => "outbox.rescan_interval = 1h\nmax_prepared_transactions = 10\nwal_log_hints = on\nwal_keep_size = 512MB");
my %concurrency = (plain => 20, ordered => 6, failing => 10);
my %options = (breaker_threshold => 0, max_attempts => 100, backoff => '{10 ms}', jitter => 0);
$first->handler($_, ['load.*'], $receiver->url("/$_"), concurrency => $concurrency{$_}, ordered => $_ eq 'ordered' ? 'true' : 'false', %options) foreach sort keys %concurrency;
$first->handler('one', ['one.*'], $receiver->url('/one'));
$first->sql("SELECT outbox.create_schedule('daily', every => '1 day', topic => 'nobody.takes')");
$first->handler('dead', ['dead.*'], 'http://127.0.0.1:1/', max_attempts => 1);
$first->sql('CREATE TABLE business (n int PRIMARY KEY)');
# Here nothing but the consumers' own sessions finds what there is to claim.
$first->extension('pull');
$first->sql('ALTER DATABASE pull SET outbox.enabled = off', 'postgres');
$first->handler($_, ["$_.*"], undef, database => 'pull', ordered => $_ eq 'keyed' ? 'true' : 'false') foreach qw(queue keyed other);

$first->backup('backup');
my $second = OutboxCluster->new('second');
$second->init_from_backup($first, 'backup', has_streaming => 1);
$second->start;

sub uuids { return '{' . join(',', @_) . '}'; }

#
# On the standby
#
my $processes = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%'";
my $id = $first->stage('one.x', '{"n": 1}', tenant => 't');
$first->stage('dead.x');
$first->wait_for_states('dead 1, delivered 1', 'the primary delivers');
$first->wait_for_catchup($second);
is($second->sql($processes), 0, 'nothing of outbox runs on the standby');
is($receiver->count('/one'), 1, 'and nothing was sent twice');

# Everything that can be read is read, and says what it says on the primary.
my $relations = q{SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'v')};
foreach my $relation (split / /, $first->sql($relations))
{
	# These are of the server's own memory, or say that it is a standby.
	next if $relation =~ /^(?:dispatchers|unrouted|retention|stat_dispatcher|stat_handlers|stat_histograms)$/;
	my $contents = "SELECT count(*), md5(string_agg(r::text, ',' ORDER BY r::text)) FROM (SELECT to_jsonb(t) - '{oldest_due_age,waiting_age,waiting_for,waiting_until,lifted_by}'::text[] AS r FROM outbox.$relation t) s";
	is($second->sql($contents), $first->sql($contents), "$relation answers on the standby");
}
is($second->sql("SELECT DISTINCT waiting_for || ': ' || lifted_by FROM outbox.handlers WHERE kind = 'push'"), 'dispatcher: promotion of this server', 'and what handlers wait for there');
is($second->sql('SELECT count(*) FROM outbox.dispatchers'), 0, 'dispatchers: there is none');
is($second->sql('SELECT state FROM outbox.retention'), 'standby', 'retention is its primary\'s');
is($second->sql('SELECT count(*) FROM outbox.verify()'), 0, 'verify() finds nothing wrong');
is($second->sql('SELECT status, dispatcher, newly_dead FROM outbox.health()'), 'ok|standby|1', 'health() does not blame a standby for being one, nor for what its primary has');
is($second->sql("CALL outbox.drain()"), '', 'drain() has nothing to wait for');

# What writes is refused the way PostgreSQL refuses it.
my %refused = (
	stage => "SELECT outbox.stage('one.x')",
	try_stage => "SELECT * FROM outbox.try_stage('one.x')",
	stage_many => "SELECT outbox.stage_many('one.x', ARRAY['1'::jsonb])",
	stage_text => "SELECT outbox.stage_text('one.x', 'text')",
	stage_bytes => "SELECT outbox.stage_bytes('one.x', '')",
	watch => "SELECT outbox.watch('pg_class')",
	unwatch => "SELECT outbox.unwatch('pg_class')",
	create_handler => "SELECT outbox.create_handler('new', '{n.*}')",
	alter_handler => "SELECT outbox.alter_handler('one', timeout => '1 s')",
	ensure_handler => "SELECT outbox.ensure_handler('one', '{one.*}', 'http://127.0.0.1:9/')",
	drop_handler => "SELECT outbox.drop_handler('one')",
	pause_handler => "SELECT outbox.pause_handler('one')",
	resume_handler => "SELECT outbox.resume_handler('one')",
	rotate_secret => "SELECT outbox.rotate_secret('one')",
	create_schedule => "SELECT outbox.create_schedule('new', every => '1 day', topic => 'one.x')",
	alter_schedule => "SELECT outbox.alter_schedule('daily', every => '2 days')",
	ensure_schedule => "SELECT outbox.ensure_schedule('daily', every => '2 days', topic => 'one.x')",
	drop_schedule => "SELECT outbox.drop_schedule('daily')",
	create_topic => "SELECT outbox.create_topic('new.topic')",
	alter_topic => "SELECT outbox.alter_topic('new.topic', description => 'x')",
	ensure_topic => "SELECT outbox.ensure_topic('new.topic')",
	drop_topic => "SELECT outbox.drop_topic('new.topic')",
	pause_schedule => "SELECT outbox.pause_schedule('daily')",
	resume_schedule => "SELECT outbox.resume_schedule('daily')",
	run_now => "SELECT outbox.run_now('daily')",
	run_schedules => 'CALL outbox.run_schedules()',
	claim => "SELECT outbox.claim('queue')",
	complete => "SELECT outbox.complete('queue', '$id', 1)",
	complete_many => "SELECT outbox.complete_many('queue', '{$id}', '{1}')",
	retry => "SELECT outbox.retry('queue', '$id', 1)",
	retry_many => "SELECT outbox.retry_many('queue', '{$id}', '{1}')",
	fail => "SELECT outbox.fail('queue', '$id', 1)",
	fail_many => "SELECT outbox.fail_many('queue', '{$id}', '{1}')",
	release => "SELECT outbox.release('queue', '$id', 1)",
	release_many => "SELECT outbox.release_many('queue', '{$id}', '{1}')",
	extend => "SELECT outbox.extend('queue', '$id', 1)",
	extend_many => "SELECT outbox.extend_many('queue', '{$id}', '{1}')",
	wait => "CALL outbox.wait('queue', '1 ms')",
	grant_consumer => "SELECT outbox.grant_consumer('queue', 'pg_monitor')",
	revoke_consumer => "SELECT outbox.revoke_consumer('queue', 'pg_monitor')",
	(map { my $part = $_; map { ("${_}_$part" => "SELECT outbox.${_}_$part('pg_monitor')") } qw(grant revoke) } qw(producer operator monitor)),
	accept => "SELECT outbox.accept('elsewhere', 'm')",
	requeue => "SELECT outbox.requeue('$id')",
	requeue_where => "SELECT outbox.requeue_where('one')",
	requeue_all => "CALL outbox.requeue_all('one')",
	replay => "SELECT outbox.replay('one', '-infinity')",
	cancel => "SELECT outbox.cancel('$id')",
	cancel_where => "SELECT outbox.cancel_where('one')",
	retry_now => "SELECT outbox.retry_now('$id')",
	reschedule => "SELECT outbox.reschedule('$id', now())",
	erase_tenant => "SELECT outbox.erase_tenant('t')",
	erase_key => "SELECT outbox.erase_key('k')",
	erase_message => "SELECT outbox.erase_message('$id')",
	prune => 'SELECT outbox.prune()',
	ensure_tenant_retention => "SELECT outbox.ensure_tenant_retention('t', '1 day')",
	drop_tenant_retention => "SELECT outbox.drop_tenant_retention('t')",
	adopt => 'SELECT outbox.adopt()',
	deliver_now => 'CALL outbox.deliver_now()');
my %in_pull = map { $_ => 1 } qw(claim complete complete_many retry retry_many fail fail_many release release_many extend extend_many wait grant_consumer revoke_consumer);
my $writers = q{SELECT string_agg(DISTINCT proname, ' ' ORDER BY proname) FROM pg_proc
	WHERE pronamespace = 'outbox'::regnamespace AND proname NOT IN ('verify', 'health', 'drain', 'next_runs', 'announce', 'status', 'handlers_of',
		'handler_definition', 'schedule_definition', 'topic_definition', 'metrics', 'reset_stats', 'find_deliveries', 'message', 'staged', 'report')};
like($second->sql('SELECT outbox.metrics()'), qr/^outbox_dispatcher_up\{database="postgres"\} 0\n.*^outbox_deliveries_staged_total\{database="postgres",handler="one"\} 0$/ms, 'a standby has numbers of its own');
like($second->sql('SELECT outbox.report()'), qr/<title>ok: .*standby.*<\/html>$/s, 'and a report');
is(join(' ', sort keys %refused), $first->sql($writers), 'every public function but those is tried');
foreach my $function (sort keys %refused)
{
	like($second->sql_error($refused{$function}, $in_pull{$function} ? 'pull' : 'postgres'), qr/^psql:\S* ERROR:  25006: cannot /, "$function() is refused on the standby");
}
like($second->sql_error($refused{stage}), qr/ERROR:  25006: cannot execute outbox\.stage\(\) in a read-only transaction/, 'in the words of PostgreSQL');

# These stay connected through the promotion.
my $session = PsqlSession->new($second, 'postgres');
my $consumer = PsqlSession->new($second, 'pull');
like($session->run("SELECT outbox.stage('one.x')"), qr/ERROR/, 'a session that cannot stage yet');
like($consumer->run("SELECT outbox.claim('$_')"), qr/ERROR/, "nor claim from $_ yet") foreach qw(queue keyed other);

#
# What the primary leaves behind
#
sub prepare_transaction
{
	my ($name, $database, $topic, $key) = @_;
	my $out = $first->sql("BEGIN; SELECT outbox.stage('$topic', '{}', $key); PREPARE TRANSACTION '$name'", $database);
	return (split /\n/, $out)[0];
}
my %prepared = map { $_ => prepare_transaction($_, 'postgres', 'one.x', 'NULL') } qw(pushed forgotten);
$prepared{pulled} = prepare_transaction('pulled', 'pull', 'queue.x', 'NULL');
$prepared{keyed} = prepare_transaction('keyed', 'pull', 'keyed.x', "'c'");

# Claims on the primary go on behind the prepared ones, which are the oldest.
my @queue = split /\n/, $first->sql("SELECT outbox.stage('queue.x') FROM generate_series(1, 10)", 'pull');
my @lines = split /\n/, $first->sql("SELECT id FROM outbox.claim('queue', 6, '1 h')", 'pull');
is_deeply([ sort @lines ], [ @queue[ 0 .. 5 ] ], 'six are leased at the primary');
$first->sql("SELECT outbox.complete('queue', '$queue[0]', 1), outbox.retry('queue', '$queue[1]', 1, after => '1 h'), outbox.retry('queue', '$queue[2]', 1, after => '0')", 'pull');
is($first->sql("SELECT id FROM outbox.claim('queue', 1, '1 ms')", 'pull'), $queue[6], 'one with a lease that runs out at once');
is($first->sql("BEGIN; SELECT id FROM outbox.claim('queue', 1); ROLLBACK", 'pull'), $queue[7], 'one whose claim is rolled back');
my %keyed = map { $_ => [ split /\n/, $first->sql("SELECT outbox.stage('keyed.x', '{}', '$_') FROM generate_series(1, 2)", 'pull') ] } qw(a b);
is($first->sql("SELECT id FROM outbox.claim('keyed', 1, '1 h')", 'pull'), $keyed{a}[0], 'the head of one key is leased');
$first->sql("SELECT outbox.pause_handler('other'); SELECT outbox.stage('other.x')", 'pull');

# Producers tell what has been committed, until their server is gone.
my $next = 0;
my @producers;

sub start_producers
{
	my ($server, $transactions) = @_;
	foreach my $producer (1, 2)
	{
		my $from = $next += 100_000;
		my $file = "$PostgreSQL::Test::Utils::tmp_check/producer_$from.sql";
		append_to_file($file, join '', "\\set ON_ERROR_STOP 1\n", map {
			my $n = $from + $_;
			my $key = "$producer-" . $_ % 5;
			"BEGIN; INSERT INTO business VALUES ($n); SELECT outbox.stage('load.x', '{\"n\": $n}', '$key'); COMMIT;\n\\echo committed $n\n"
		} 1 .. $transactions);
		my $out = '';
		my $handle = IPC::Run::start([ 'psql', '-XqAt', '-d', $server->connstr('postgres'), '-f', $file ], '<', \undef, '>', \$out, '2>', \my $error);
		push @producers, { handle => $handle, out => \$out };
	}
	return;
}

# Wait for them to end; what they committed.
sub finish_producers
{
	$_->{handle}->finish foreach @producers;
	my @committed = map { ${ $_->{out} } =~ /^committed (\d+)$/mg } @producers;
	@producers = ();
	return @committed;
}

# The server dies under load.
sub crash_under_load
{
	my ($server, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	start_producers($server, 20_000);
	ok($receiver->wait_for_requests(300, "/$_"), "$name: the load reaches /$_") foreach sort keys %concurrency;
	$server->stop('immediate');
	my @committed = finish_producers();
	cmp_ok(scalar @committed, '>=', 300, "$name: and then it dies (" . scalar(@committed) . ' committed)');
	return @committed;
}

# Everything that was replicated has arrived where it belongs; twice only if
# no settlement of it had been replicated when the server was promoted.
sub check_deliveries
{
	my ($server, $promoted_at, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my %duplicates;
	$server->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'load.x' AND state <> 'delivered'", 0, "$name: everything is delivered");
	foreach my $handler (sort keys %concurrency)
	{
		my $rows = JSON::PP->new->decode($server->sql("SELECT json_object_agg(message_id, settled_at < to_timestamp($promoted_at)) FROM outbox.deliveries WHERE handler = '$handler'"));
		my $arrived = $receiver->ids("/$handler");
		my $once = $handler eq 'failing' ? 2 : 1;
		my @lost = grep { !$arrived->{$_} } keys %$rows;
		my @again = grep { ($arrived->{$_} || 0) > $once } keys %$rows;
		my @receipts = grep { $rows->{$_} } @again;
		my @often = grep { $arrived->{$_} > $once + 1 } @again;
		is(scalar @lost, 0, "$name: $handler: nothing that was replicated is lost (" . scalar(keys %$rows) . ')') or diag("@lost");
		is(scalar @receipts, 0, "$name: $handler: nothing is sent again that has a receipt") or diag("@receipts");
		is(scalar @often, 0, "$name: $handler: and the rest at most once more (" . scalar(@again) . ')') or diag("@often");
		$duplicates{$handler} = @again;
	}
	my $order = staged_order($server, 'ordered');
	my %known = map { $_ => 1 } map { @$_ } values %$order;
	# What the old server had sent and did not replicate is gone.
	check_order($order, [ grep { $known{ $_->[1] } } arrivals($receiver, '/ordered') ], "$name: the order of keys is kept");
	return \%duplicates;
}

#
# Asynchronous failover
#
# A message with an id an hour ahead, as left by a server whose clock was.
my $ahead = $first->sql("INSERT INTO outbox.message (id, staged_at, topic, payload) VALUES (outbox_internal.id_floor(clock_timestamp() + interval '1 hour'), now(), 'nobody.x', '1') RETURNING id");
$first->wait_for_catchup($second);
crash_under_load($first, 'asynchronous');
is($second->sql($processes), 0, 'the standby is silent to the end');
unlike($second->log_text, qr/outbox (?:launcher|dispatcher)/, 'and has nothing to say');
my $promoted_at = time;
$second->promote;
start_producers($second, 200);
my $highest = $second->sql("SELECT id FROM outbox.message WHERE staged_at < to_timestamp($promoted_at) ORDER BY id DESC LIMIT 1");
is($highest, $ahead, 'the highest id is one that is ahead of the clock');
$id = $session->run("SELECT outbox.stage('one.x')");
cmp_ok($id, 'gt', $highest, 'a session that was there before stages, with a higher id');
$second->sql("COMMIT PREPARED 'pushed'; ROLLBACK PREPARED 'forgotten'");
ok(finish_producers() == 400, 'the load goes on');
$second->wait_for("SELECT state FROM outbox.dispatchers WHERE database = 'postgres'", 'running', 'the promoted server delivers, with nothing to adopt');
check_deliveries($second, $promoted_at, 'asynchronous');
is($second->sql("SELECT count(*) FROM outbox.message WHERE id <= '$highest' AND staged_at > to_timestamp($promoted_at)"), 0, 'no id has gone backwards');
$second->wait_for("SELECT string_agg(DISTINCT state, ', ') FROM outbox.deliveries WHERE handler = 'one'", 'delivered', 'what was prepared at the old primary is delivered');
my $ids = $receiver->ids('/one');
is_deeply([ @$ids{ $id, @prepared{qw(pushed forgotten)} } ], [ 1, 1, undef ], 'committed or not as was said later');

#
# Consumers
#
my $lease = "SELECT string_agg(id::text, ' ' ORDER BY id)";
is($consumer->run("$lease FROM outbox.claim('queue', 100)"), join(' ', sort @queue[ 2, 6 .. 9 ]), 'a consumer gets what is due: retried, expired, rolled back and new');
is($consumer->run("SELECT outbox.complete_many('queue', '" . uuids(@queue[ 3, 4, 5, 0, 1 ]) . "', '{1,1,1,1,1}')"), '{t,t,t,f,f}', 'leases of the old primary can be settled, each once');
is($consumer->run("SELECT outbox.complete('queue', '$queue[6]', 1), outbox.complete('queue', '$queue[6]', 2)"), 'f|t', 'attempts count on');
is($consumer->run("SELECT attempts, state FROM outbox.deliveries WHERE message_id = '$queue[1]'"), '1|retrying', 'a retry waits until its time has come');
is($consumer->run("$lease FROM outbox.claim('keyed', 100)"), $keyed{b}[0], 'the head of a free key');
is($consumer->run("SELECT outbox.complete('keyed', '$keyed{a}[0]', 1)"), 't', 'the lease of the other ends');
is($consumer->run("$lease FROM outbox.claim('keyed', 100)"), $keyed{a}[1], 'and its successor follows');
is($consumer->run("SELECT count(*) FROM outbox.claim('other')"), 0, 'a handler that was paused meanwhile is known to be');
$second->sql("SELECT outbox.resume_handler('other')", 'pull');
is($consumer->run("SELECT count(*) FROM outbox.claim('other')"), 1, 'and resumed');

# Claims have read on; what is committed now was staged before.
is($consumer->run("SELECT count(*) FROM outbox.claim('$_')"), 0, "nothing more of $_") foreach qw(queue keyed);
$consumer->start("CALL outbox.wait('queue', '5 min')");
$second->wait_for("SELECT count(*) FROM pg_stat_activity WHERE pid = " . $consumer->backend . " AND wait_event = 'Extension'", 1, 'a consumer waits');
$second->sql("COMMIT PREPARED 'pulled'", 'pull');
is($consumer->finish, '', 'until a transaction that was prepared at the old primary commits');
is($consumer->run("$lease FROM outbox.claim('queue', 100)"), $prepared{pulled}, 'whose message it gets');
$second->sql("COMMIT PREPARED 'keyed'", 'pull');
is($consumer->run("$lease FROM outbox.claim('keyed', 100)"), $prepared{keyed}, 'also on an ordered handler');
$_->close foreach $session, $consumer;

#
# Back again: the old primary follows, by pg_rewind, and synchronously.
#
# Until then the control file names the old timeline, and pg_rewind sees none to rewind to.
$second->sql('CHECKPOINT');
my $conf = slurp_file($first->data_dir . '/postgresql.conf');
command_ok([ 'pg_rewind', '--target-pgdata', $first->data_dir, '--source-server', $second->connstr('postgres') ], 'the old primary is rewound');
unlink $first->data_dir . '/postgresql.conf';
append_to_file($first->data_dir . '/postgresql.conf', $conf);
$first->enable_streaming($second);
my $mark = -s $first->logfile;
$first->start;
$second->append_conf('postgresql.conf', "synchronous_standby_names = '*'\nsynchronous_commit = remote_apply\noutbox.settle_synchronous_commit = on");
$second->reload;
$second->wait_for("SELECT string_agg(sync_state, ',') FROM pg_stat_replication", 'sync', 'and has become a synchronous standby');
is($first->sql($processes), 0, 'a silent one');
$receiver->forget;
$second->sql('TRUNCATE business, outbox.message, outbox.delivery, outbox.receipt, outbox.attempt');

my @committed = crash_under_load($second, 'synchronous');
unlike(slurp_file($first->logfile, $mark), qr/outbox (?:launcher|dispatcher)/, 'it has nothing to say');
$promoted_at = time;
$first->promote;
start_producers($first, 100);
push @committed, finish_producers();
my $duplicates = check_deliveries($first, $promoted_at, 'synchronous');
cmp_ok($duplicates->{$_}, '<=', 2000 + $concurrency{$_}, "$_: duplicates are what was out and not settled") foreach sort keys %$duplicates;
my %staged = map { $_ => 1 } split /\n/, $first->sql("SELECT payload ->> 'n' FROM outbox.message WHERE topic = 'load.x'");
my %business = map { $_ => 1 } split /\n/, $first->sql('SELECT n FROM business');
is_deeply(\%staged, \%business, 'messages are there with their business rows');
is(scalar(grep { !$staged{$_} } @committed), 0, 'no commit that was acknowledged is lost');
my @ghosts = grep { !$staged{ JSON::PP::decode_json($_->{body})->{n} } } map { $receiver->requests("/$_") } sort keys %concurrency;
is(scalar @ghosts, 0, 'nothing was sent that the standby did not have');
my (%attempt, $back);
foreach my $request ($receiver->requests('/failing'))
{
	my ($message, $attempt) = @{ $request->{headers} }{qw(webhook-id outbox-attempt)};
	$back++ if $attempt < ($attempt{$message} || 0);
	$attempt{$message} = $attempt;
}
is($back, undef, 'no attempt has gone backwards');
is($first->sql('SELECT count(*) FROM outbox.verify()'), 0, 'all is well');

unlike($_->log_text, qr/PANIC|TRAP|terminated by signal/, $_->name . ': no process has crashed') foreach ($first, $second);
done_testing();
