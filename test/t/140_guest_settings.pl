# Settings that would hurt: set for the role, for the database and for the
# server, they change nothing for the workers, nor for what a session's calls
# lead to; and whatever the server is told to log, what is sent, its headers
# and secrets are not in the log.  An idle dispatcher holds no snapshot.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PostgreSQL::Test::Utils;
use PsqlSession;
use Test::More;

# What would end or block a session that obeyed it; the test's own do not.
my %hurts = (
	statement_timeout => '1ms',
	lock_timeout => '1ms',
	idle_in_transaction_session_timeout => '1ms',
	idle_session_timeout => '1ms',
	transaction_timeout => '200ms',
	default_transaction_read_only => 'on',
	default_transaction_deferrable => 'on');

# What changes how statements are planned, written, read and compared.
my %odd = (
	search_path => 'nowhere',
	session_replication_role => 'replica',
	row_security => 'off',
	extra_float_digits => '-15',
	standard_conforming_strings => 'off',
	escape_string_warning => 'on',
	backslash_quote => 'off',
	array_nulls => 'off',
	transform_null_equals => 'on',
	bytea_output => 'escape',
	xmlbinary => 'hex',
	xmloption => 'document',
	DateStyle => 'SQL, DMY',
	IntervalStyle => 'sql_standard',
	TimeZone => 'Asia/Kathmandu',
	quote_all_identifiers => 'on',
	lc_messages => 'C',
	lc_numeric => 'C',
	exit_on_error => 'on',
	plan_cache_mode => 'force_generic_plan',
	force_parallel_mode => 'on',
	debug_parallel_query => 'on',
	jit => 'off',
	parallel_setup_cost => '0',
	min_parallel_table_scan_size => '0',
	work_mem => '64kB',
	constraint_exclusion => 'on',
	synchronous_commit => 'off',
	deadlock_timeout => '1ms',
	check_function_bodies => 'off',
	'plpgsql.extra_errors' => 'all',
	'plpgsql.extra_warnings' => 'all',
	'plpgsql.variable_conflict' => 'use_variable',
	(map { ("enable_$_" => 'off') } qw(seqscan indexscan indexonlyscan bitmapscan nestloop hashjoin mergejoin sort hashagg material memoize)));

# Everything the server can log about what it runs.
my %talkative = (
	log_statement => 'all',
	log_duration => 'on',
	log_min_duration_statement => '0',
	log_min_error_statement => 'debug5',
	log_parameter_max_length => '-1',
	log_parameter_max_length_on_error => '-1',
	log_error_verbosity => 'verbose',
	log_lock_waits => 'on',
	debug_print_parse => 'on',
	debug_print_rewritten => 'on',
	debug_print_plan => 'on',
	'auto_explain.log_min_duration' => '0',
	'auto_explain.log_analyze' => 'on',
	'auto_explain.log_buffers' => 'on',
	'auto_explain.log_verbose' => 'on',
	'auto_explain.log_triggers' => 'on',
	'auto_explain.log_nested_statements' => 'on',
	'auto_explain.log_parameter_max_length' => '-1');

# A session of the test itself, and one of a user who has to live with it all.
my $quiet = '-c log_statement=none -c log_duration=off -c log_min_duration_statement=-1 -c log_min_error_statement=panic -c log_error_verbosity=default'
  . ' -c auto_explain.log_min_duration=-1 -c debug_print_parse=off -c debug_print_rewritten=off -c debug_print_plan=off';
my $spared = join ' ', map { "-c $_=0" } qw(statement_timeout lock_timeout idle_in_transaction_session_timeout idle_session_timeout default_transaction_read_only default_transaction_deferrable exit_on_error);

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => <<'END');
shared_preload_libraries = 'outbox, auto_explain'
log_line_prefix = '%m [%p] %b '
outbox.rescan_interval = 1h
outbox.log_attempts = all
track_functions = all
END
my %known = map { $_ => 1 } split /\n/, $node->sql("SELECT lower(name) FROM pg_settings");
delete $hurts{transaction_timeout} unless $known{transaction_timeout};
$spared .= ' -c transaction_timeout=0' if $known{transaction_timeout};
$node->sql("LOAD 'plpgsql'");
foreach my $settings (\%odd, \%talkative)
{
	delete @{$settings}{ grep { !/plpgsql/ && !$known{ lc $_ } } keys %$settings };
}

my $user;

sub as_user
{
	my $answer = $user->run($_[0]);
	die "$_[0]\n$answer" if $answer =~ /^(ERROR|FATAL): /m;
	# What the server's settings have plpgsql say beside.
	return $answer =~ s/^(WARNING|HINT|LINE \d+|NOTICE|QUERY): .*\n|^ +\^\n//gmr;
}

# What must not be read anywhere.  The statements of the test take it from a
# table, so that their own texts do not have it.
my %hidden = (
	payload => 'hidden-in-the-payload',
	header => 'hidden-in-a-header',
	handler_header => 'hidden-in-what-the-handler-adds',
	token => 'hidden-in-the-authorization',
	secret => 'aGlkZGVuLWluLXRoZS1zZWNyZXQtaGlkZGVu');
$node->sql(<<"SQL");
CREATE ROLE app;
CREATE SCHEMA app AUTHORIZATION app;
CREATE TABLE app.vault AS SELECT '{"n": "$hidden{payload}"}'::jsonb AS payload, '{"x-message": "$hidden{header}"}'::jsonb AS headers,
	'{"x-handler": "$hidden{handler_header}"}'::jsonb AS handler_headers, 'Bearer $hidden{token}' AS authorization, 'whsec_$hidden{secret}' AS secret;
CREATE TABLE app.settled (handler text, outcome text, payload jsonb);
GRANT INSERT ON app.settled TO app;
CREATE FUNCTION app.note(s outbox.settlement) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS 'INSERT INTO app.settled VALUES (s.handler, s.outcome, s.payload)';
ALTER FUNCTION app.note OWNER TO app;
CREATE TABLE app.occurred (schedule text);
CREATE FUNCTION app.occurs(o outbox.occurrence) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS 'INSERT INTO app.occurred VALUES (o.schedule)';
ALTER FUNCTION app.occurs OWNER TO app;
CREATE FUNCTION app.fits(p jsonb) RETURNS boolean IMMUTABLE LANGUAGE sql SET search_path = pg_catalog AS 'SELECT p IS NOT NULL';
ALTER FUNCTION app.fits OWNER TO app;
GRANT INSERT ON app.occurred TO app;
SQL

my $me = $node->sql('SELECT current_user');
my %scopes = (
	'the role' => "ALTER ROLE \"$me\"",
	'the database' => 'ALTER DATABASE postgres',
	'the server' => 'ALTER SYSTEM');

sub set_for
{
	my ($scope, %settings) = @_;
	my $prefix = $scopes{$scope};
	# One of these is refused to a whole server.
	delete $settings{exit_on_error} if $scope eq 'the server';
	$node->sql("LOAD 'plpgsql';\n" . join '', map { "$prefix SET $_ = '$settings{$_}';\n" } sort keys %settings);
	$node->restart;
	local $ENV{PGOPTIONS} = $spared;
	$user = PsqlSession->new($node, 'postgres');
	my %now = map { split /\|/, $_, 2 } split /\n/, as_user("SELECT name, setting FROM pg_catalog.pg_settings");
	return \%now;
}

my $n = 0;

# The life of some messages, as a user's session causes it.
sub live
{
	my $scope = shift;
	my $h = 'h' . ++$n;
	$receiver->forget;
	$receiver->on("/$h-fails", { status => 500, body => 'no' });
	my $url = $receiver->url("/$h");

	as_user("SELECT outbox.create_handler('$h', ARRAY['$h.ok'], '$url', headers => handler_headers, secret => secret, \"authorization\" => vault.authorization,
		rate_limit => 1234.5678901234567, rate_burst => 100, jitter => 0.12345678901234568, timeout => '12.345678 s', backoff => '{1.000001 s, 1 day 2 h, 1 mon}',
		retry_after_max => '1 day 00:00:01', rules => '{\"5xx\": {\"max_attempts\": 2, \"backoff_max\": \"1.5 s\"}}', on_settle => 'app.note(outbox.settlement)') FROM app.vault");
	as_user("SELECT outbox.create_handler('$h-fails', ARRAY['$h.fails'], '$url-fails', max_attempts => 1, unix_socket => NULL)");
	as_user("SELECT outbox.create_handler('$h-pull', ARRAY['$h.pull'])");
	as_user("SELECT outbox.create_topic('$h.fails', check_function => 'app.fits(jsonb)')");
	my $exact = "SELECT rate_limit::text || ' ' || jitter || ' ' || timeout || ' ' || backoff::text || ' ' || retry_after_max FROM outbox.handlers WHERE handler = '$h'";
	my $read = sub { local $ENV{PGOPTIONS} = "$spared $quiet -c extra_float_digits=1 -c IntervalStyle=postgres"; return $node->sql($_[0]); };
	is($read->($exact), '1234.5678901234567 0.12345678901234568 00:00:12.345678 {00:00:01.000001,"1 day 02:00:00","1 mon"} 1 day 00:00:01', "$scope: options of a handler are exactly what was asked for");
	as_user("SELECT outbox.alter_handler('$h', concurrency => 7)");
	as_user("SELECT outbox.alter_handler('$h', rate_limit => 1234.5678901234569, batch_wait => '0')");
	is($read->($exact), '1234.567890123457 0.12345678901234568 00:00:12.345678 {00:00:01.000001,"1 day 02:00:00","1 mon"} 1 day 00:00:01', "$scope: and stay so when others change");

	as_user("SELECT outbox.stage('$h.ok', payload, headers => headers, dedupe_key => '$h', tenant => 't') FROM app.vault");
	as_user("SELECT id IS NOT NULL FROM outbox.try_stage('$h.ok', '{}', dedupe_key => '$h', tenant => 't')");
	as_user("SELECT outbox.stage_many('$h.fails', ARRAY[payload, payload]) FROM app.vault");
	as_user("SELECT outbox.stage('$h.pull', jsonb_build_object('i', i)) FROM generate_series(1, 5) i");
	$node->wait_for("SELECT string_agg(handler || ' ' || state, ', ' ORDER BY handler, topic) FROM outbox.deliveries WHERE handler IN ('$h', '$h-fails')",
		"$h delivered, $h-fails dead, $h-fails dead", "$scope: messages are delivered, or die of what the receiver says");
	my ($request) = $receiver->requests("/$h");
	is($request->{body}, qq({"n": "$hidden{payload}"}), "$scope: with their payload");
	is(join(' ', @{ $request->{headers} }{qw(x-message x-handler authorization)}), "$hidden{header} $hidden{handler_header} Bearer $hidden{token}", "$scope: and their headers");
	like($request->{headers}{'webhook-signature'}, qr/^v1,/, "$scope: and signed");
	as_user("SELECT outbox.alter_handler('$h', rate_limit => 1234.5)");
	as_user("SELECT outbox.stage('$h.ok', payload) FROM app.vault");
	$receiver->wait_for_requests(2, "/$h");
	is(scalar(keys %{ { map { $_->{connection} => 1 } $receiver->requests("/$h") } }), 2, "$scope: a handler that has changed a little is used as it is now");
	$node->wait_for("SELECT DISTINCT outcome || ' ' || (payload ->> 'n') FROM app.settled WHERE handler = '$h'", "delivered $hidden{payload}", "$scope: the on_settle function has run");
	$node->wait_for('SELECT count(*) FROM outbox.on_settle_queue', 0, "$scope: and has settled it");

	# Operators.
	$receiver->on("/$h-fails", {});
	is(as_user("SELECT outbox.requeue_where(handler => '$h-fails', topic => '$h.*', since => clock_timestamp() - interval '1 h')"), 2, "$scope: dead letters are requeued");
	as_user("CALL outbox.drain('$h-fails', '1 min')");
	is(as_user("SELECT count(*) FROM outbox.deliveries WHERE handler = '$h-fails' AND state = 'delivered'"), 2, "$scope: and drained");
	as_user("SELECT outbox.pause_handler('$h', 'for a while')");
	my $id = as_user("SELECT outbox.stage('$h.ok', payload) FROM app.vault");
	is(as_user("SELECT outbox.cancel('$id', reason => 'not wanted')"), 1, "$scope: cancelled");
	as_user("SELECT outbox.resume_handler('$h')");
	my $rotated = as_user("SELECT outbox.rotate_secret('$h', '1 h')");
	like($rotated, qr/^whsec_/, "$scope: a secret is rotated");
	$hidden{"rotated $n"} = substr $rotated, 6;
	# Until the dispatcher has read the new secret, it signs with the old one alone.
	$node->wait_while_not(
		sub {
			as_user("SELECT outbox.stage('$h.ok', payload) FROM app.vault");
			return grep { ($_->{headers}{'webhook-signature'} // '') =~ / v1,/ } $receiver->requests("/$h");
		},
		"$scope: and signs with the old one, too");

	# Consumers.
	as_user("CALL outbox.wait('$h-pull', '1 min')");
	my @claimed = split /\n/, as_user("SELECT id, attempt FROM outbox.claim('$h-pull', 5, '1 min') ORDER BY id");
	is(scalar @claimed, 5, "$scope: five are claimed");
	my @calls = ('complete($)', "retry(\$, 'later', '1 s')", "fail(\$, 'bad')", "extend(\$, '2 min')", 'complete($)');
	foreach my $call (@calls)
	{
		my ($claimed, $attempt) = split /\|/, shift @claimed;
		$call =~ s/\$/'$h-pull', '$claimed', $attempt/;
		is(as_user("SELECT outbox.$call"), 't', "$scope: $call");
	}
	is(as_user("SELECT outbox.accept('$scope', 'm1'), outbox.accept('$scope', 'm1')"), 't|f', "$scope: accepted once");

	# Schedules: those that stage, and those that have a function.
	as_user("SELECT outbox.create_handler('$h-occurs', ARRAY['$h.occurs'])");
	as_user("SELECT outbox.create_schedule('$h', every => '1 s', topic => '$h.occurs', payload => payload, headers => headers) FROM app.vault");
	as_user("SELECT outbox.create_schedule('$h-runs', every => '1 s', function => 'app.occurs(outbox.occurrence)', payload => payload) FROM app.vault");
	as_user("SELECT outbox.run_now('$h')");
	as_user("SELECT outbox.run_now('$h-runs')");
	$node->wait_for("SELECT count(*) > 1 FROM outbox.message WHERE topic = '$h.occurs'", 't', "$scope: a schedule stages messages");
	$node->wait_for("SELECT count(*) > 1 FROM app.occurred WHERE schedule = '$h-runs'", 't', "$scope: another one runs a function");

	# Housekeeping.
	is(as_user('SELECT count(*) FROM outbox.verify()'), 0, "$scope: outbox.verify() finds nothing");
	is(as_user("SELECT position(handler_headers ->> 'x-handler' IN outbox.handler_definition('$h')) > 0, position(payload ->> 'n' IN outbox.schedule_definition('$h')) > 0 FROM app.vault"),
		't|t', "$scope: definitions have all");
	like(as_user('SELECT status FROM outbox.health()'), qr/^(ok|warn)$/, "$scope: outbox.health() answers");
	# What would lose messages by an old snapshot refuses one (isolation/erase_and_settle).
	as_user("SET default_transaction_isolation = 'read committed'");
	as_user('SELECT * FROM outbox.prune(1000)');
	is(as_user("SELECT messages FROM outbox.erase_tenant('t')"), 1, "$scope: a tenant is erased");
	as_user('RESET default_transaction_isolation');
	as_user("SELECT outbox.drop_schedule('$h'), outbox.drop_schedule('$h-runs'), outbox.drop_handler('$h-occurs')");
	as_user("SELECT outbox.drop_handler('$h'), outbox.drop_handler('$h-fails'), outbox.drop_handler('$h-pull')");
	return;
}

# Receipts that a settler writes beside the dispatcher.  Some of the rows tell
# what is in force while they are written.
sub settle_beside
{
	my $scope = shift;
	my %pinned = (
		statement_timeout => '0',
		lock_timeout => '2s',
		idle_in_transaction_session_timeout => '0',
		idle_session_timeout => '0',
		default_transaction_isolation => 'read committed',
		transaction_isolation => 'read committed',
		default_transaction_read_only => 'off',
		transaction_read_only => 'off',
		transaction_deferrable => 'off',
		search_path => 'pg_catalog, pg_temp',
		session_replication_role => 'replica',
		row_security => 'off',
		deadlock_timeout => '100ms',
		synchronous_commit => 'local');
	my $told = join ', ', map { "current_setting('$_')" } sort keys %pinned;
	$receiver->forget;
	# Answers are gathered for long, so that there are enough of them for two.
	$node->sql('ALTER SYSTEM SET outbox.log_attempts = failures');
	$node->sql("ALTER SYSTEM SET outbox.settle_interval = '10 s'");
	$node->reload;
	$node->handler('load', ['load.*'], $receiver->url('/load'), concurrency => 50, timeout => '1 hour');
	$node->sql(<<"SQL");
CREATE FUNCTION app.tell(smallint) RETURNS smallint IMMUTABLE LANGUAGE plpgsql AS \$\$
BEGIN
	RAISE LOG 'receipt under %', concat_ws('|', $told);
	RETURN \$1;
END \$\$;
CREATE INDEX told ON outbox.receipt (app.tell(state)) WHERE state = 3 AND uuid_hash(message_id) % 20 = 0;
SQL
	my $mark = -s $node->logfile;
	my $receipts = sub { return map { [ /\] outbox (settler|dispatcher) LOG: .*receipt under (.*)/ ] } grep { /receipt under/ } split /\n/, slurp_file($node->logfile, $mark); };
	my $staged = $node->load_settler('load', "$scope: a settler writes receipts",
		sub { return $node->wait_until_done('load') && grep { ($_->[0] // '') eq 'settler' } $receipts->(); });
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'load' AND state = 'delivered' AND attempts = 1 AND http_status = 200", $staged, "$scope: all are written");
	is($receiver->count('/load'), $staged, "$scope: and nothing was sent twice");
	my %seen = map { $_->[1] => 1 } grep { @$_ } $receipts->();
	is_deeply([ keys %seen ], [ join '|', map { $pinned{$_} } sort keys %pinned ], "$scope: under the settings that they need");
	$node->sql("DROP INDEX outbox.told; DROP FUNCTION app.tell; SELECT outbox.drop_handler('load'); TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt");
	return;
}

# The log lines of the workers that are no LOG or DEBUG.
sub complaints
{
	my $mark = shift;
	return join "\n", grep { /\] outbox (launcher|dispatcher|on_settle worker|settler) (?!LOG|DEBUG|DETAIL|HINT|CONTEXT|STATEMENT|LOCATION)[A-Z]+:/ } split /\n/, slurp_file($node->logfile, $mark);
}

$ENV{PGOPTIONS} = "$spared $quiet";
my %isolation = ('the role' => 'serializable', 'the database' => 'repeatable read', 'the server' => 'serializable');
foreach my $scope ('the role', 'the database', 'the server')
{
	my %settings = (%hurts, %odd, %talkative, default_transaction_isolation => $isolation{$scope});
	# What takes its time is tried once.
	delete @settings{ grep { /debug_print/ } keys %settings } unless $scope eq 'the server';
	delete @settings{ grep { /parallel/ } keys %settings } unless $scope eq 'the database';
	# Generic plans show parameters, custom ones have made constants of them.
	$settings{plan_cache_mode} = 'auto' if $scope eq 'the database';
	my $now = set_for($scope, %settings);
	is(join(', ', map { $now->{$_} =~ s/"//gr } qw(default_transaction_isolation search_path extra_float_digits session_replication_role log_statement)),
		"$isolation{$scope}, nowhere, -15, replica, all", "$scope: the settings are in force");

	# A serializable transaction that writes is what a deferrable one waits for.
	my $writer = $node->background_psql('postgres');
	$writer->query_safe('BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; CREATE TABLE app.open (n int)');
	my $before = $node->wait_for_dispatcher;
	$node->sql("SELECT pg_terminate_backend($before)");
	my $dispatcher = $node->wait_for_dispatcher('postgres', $before);
	isnt($dispatcher, '', "$scope: a dispatcher has started");
	my $mark = -s $node->logfile;
	live($scope);
	SKIP:
	{
		skip 'a settler needs a second processor', 4 unless OutboxCluster::can_have_settler();
		settle_beside($scope);
	}
	$writer->query_safe('ROLLBACK');
	$writer->quit;
	is($node->dispatcher_pid, $dispatcher, "$scope: and is the same in the end");
	is(complaints($mark), '', "$scope: none of the workers has complained");
	$user->close;
	$node->sql("$scopes{$scope} RESET ALL") unless $scope eq 'the server';
	$node->sql("ALTER SYSTEM RESET outbox.$_") foreach qw(log_attempts settle_interval);
}
$node->restart;

# Errors do not tell either: a receiver repeats what it got, and the row that
# says so cannot be written.
$receiver->on('/repeats', { status => 500, body => "not this: $hidden{payload}" });
$node->handler('repeats', ['repeats'], $receiver->url('/repeats'), max_attempts => 1);
$node->sql("ALTER TABLE outbox.attempt ADD CONSTRAINT never CHECK (code <> '500') NOT VALID");
$node->sql("SELECT outbox.stage('repeats', payload, headers => headers) FROM app.vault");
$node->wait_while_not(sub { $node->log_text =~ /violates check constraint "never"/ }, 'a row that cannot be written is reported');
$node->sql('ALTER TABLE outbox.attempt DROP CONSTRAINT never');
$node->wait_for("SELECT state || ' ' || error FROM outbox.deliveries WHERE handler = 'repeats'", "dead not this: $hidden{payload}", 'and written once it can be');
{
	local $ENV{PGOPTIONS} = $spared;
	$user = PsqlSession->new($node, 'postgres');
	# Warnings quote functions that are written for standard_conforming_strings.
	like(as_user("SELECT position(payload ->> 'n' IN outbox.report()) > 0 FROM app.vault"), qr/^t\z/m, 'a report quotes what a receiver has said');
	$user->close;
}

# While a request is out there is no transaction, no snapshot and no word of
# what it carries; and none that others had is kept.
sub dispatcher_holds
{
	return $node->sql("SELECT coalesce(backend_xid::text, '-') || ' ' || coalesce(backend_xmin::text, '-') FROM pg_stat_activity WHERE backend_type = 'outbox dispatcher'");
}

# Nor anything to write of its own: that an attempt has failed is noted a little later.
$node->wait_for("SELECT recent_failures > 0 FROM outbox.handlers WHERE handler = 'repeats'", 't', 'that the receiver failed is noted');
$node->handler('hangs', ['hangs'], $receiver->url('/hangs'), secret => "whsec_$hidden{secret}", timeout => '10 min');
$receiver->on('/hangs', { hang => 1 });
$node->sql("SELECT outbox.stage('hangs', payload, headers => headers) FROM app.vault");
$node->wait_while_not(sub { $receiver->in_flight('/hangs') == 1 }, 'a request is out');
my @activity = split /\n/, $node->sql("SELECT backend_type, query FROM pg_stat_activity WHERE pid <> pg_backend_pid()");
ok((grep { /^outbox dispatcher\|delivering messages$/ } @activity), 'pg_stat_activity says that messages are being delivered');
is(join("\n", grep { my $line = $_; grep { index($line, $_) >= 0 } values %hidden } @activity), '', 'and not which');
$node->wait_while_not(sub { dispatcher_holds() eq '- -' }, 'the dispatcher holds neither a transaction id nor a snapshot');
is(join(', ', map { dispatcher_holds() } 1 .. 10), join(', ', ('- -') x 10), 'nor does it take one while it waits');
$node->handler('busy', ['busy'], $receiver->url('/busy'));
my $oldest = 0;
foreach my $i (1 .. 10)
{
	$node->sql("SELECT outbox.stage('busy')");
	my $age = $node->sql("SELECT coalesce(age(backend_xmin), 0) FROM pg_stat_activity WHERE backend_type = 'outbox dispatcher'");
	$oldest = $age if $age > $oldest;
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE handler = 'busy' AND state = 'delivered'", $i, "message $i of another handler is delivered meanwhile");
}
cmp_ok($oldest, '<', 10, 'a snapshot of the dispatcher never gets old');
$receiver->release('/hangs');
$node->wait_for("SELECT state FROM outbox.deliveries WHERE handler = 'hangs'", 'delivered', 'the request that was out has been answered');
$node->wait_while_not(sub { dispatcher_holds() eq '- -' }, 'an idle dispatcher holds nothing');
is(join(', ', map { dispatcher_holds() } 1 .. 10), join(', ', ('- -') x 10), 'at any time');

# All of what the server was told to log is in its log but for what is hidden.
my $log = $node->log_text;
ok($log =~ $_, "the log has $_") foreach qr/Query Text: /, qr/Output: /, qr/plan:\s.*\{PLANNEDSTMT/, qr/client backend LOG: .*duration: .*plan:/, qr/outbox dispatcher LOG: .*duration: .*plan:/;
foreach my $what (sort keys %hidden)
{
	my $numbers = join ' ', unpack 'C*', $hidden{$what};
	ok(index($log, $hidden{$what}) < 0 && index($log, $numbers) < 0, "what is hidden is not in the log: $what");
}
done_testing();
