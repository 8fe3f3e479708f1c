# outbox.deliver_now(): everything that is due is delivered from the calling
# session's point of view, with and without preload, as a dispatcher would.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;

my $receiver = HttpReceiver->start;

# What comes back, as "delivered retried dead cancelled expired waiting".
sub deliver
{
	my ($node, $arguments) = @_;
	return join ' ', split /\|/, $node->sql('CALL outbox.deliver_now(' . ($arguments // '') . ')');
}

# The ids that were sent there, in their order.
sub ids { return map { $_->{headers}{'webhook-id'} } $receiver->requests(@_); }

# Each subject begins with nothing.
sub fresh
{
	my $node = shift;
	$node->sql('SELECT outbox.drop_handler(handler) FROM outbox.handlers');
	$node->sql("SELECT outbox.cancel_where(since => '-infinity')");
	$node->sql('TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.action');
	$receiver->forget;
	$receiver->on('/', {});
	return;
}

# What must hold on either server.
sub try_all
{
	my ($node, $kind) = @_;

	# --- what has committed, once, with the headers and the signature of a dispatcher
	fresh($node);
	$node->handler('plain', ['a.*'], $receiver->url('/plain'), secret => 'whsec_' . 'QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=');
	my @ids = map { $node->stage('a.b', "{\"n\":$_}") } 1 .. 3;
	my $open = PsqlSession->new($node);
	$open->run(q{BEGIN; SELECT outbox.stage('a.b', '"not committed"')});
	is(deliver($node), '3 0 0 0 0 0', "$kind: three are delivered");
	is(join(' ', sort { $a cmp $b } ids('/plain')), join(' ', sort @ids), "$kind: these three, each once");
	like(($receiver->requests('/plain'))[0]{headers}{'webhook-signature'} // '', qr/^v1,/, "$kind: signed");
	is(deliver($node), '0 0 0 0 0 0', "$kind: nothing is left");
	$open->run('COMMIT');
	is(deliver($node), '1 0 0 0 0 0', "$kind: what commits later is delivered by the next call");
	$open->close;

	# --- many, through many requests at once
	$node->sql(q{SELECT count(outbox.stage('a.many', to_jsonb(n))) FROM generate_series(1, 3000) n});
	is(deliver($node), '3000 0 0 0 0 0', "$kind: thousands are delivered");
	is($receiver->count('/plain'), 3004, "$kind: each once");

	# --- what fails is retried when it is due, and not before; with skip_ahead to the end
	fresh($node);
	$receiver->on('/bad', { status => 500, body => 'no' });
	$node->handler('bad', ['a.*'], $receiver->url('/bad'), max_attempts => 4, backoff => \q{ARRAY['1 hour']::interval[]});
	$node->stage('a.b');
	is(deliver($node), '0 1 0 0 0 1', "$kind: an attempt fails, and the next one is not due");
	is(deliver($node), '0 0 0 0 0 1', "$kind: so it waits");
	is(deliver($node, 'skip_ahead => true'), '0 2 1 0 0 0', "$kind: without waiting it is dead after its last attempt");
	is($node->sql('SELECT state, attempts, code FROM outbox.deliveries'), 'dead|4|500', "$kind: after all of them");
	is($receiver->count('/bad'), 4, "$kind: each of which was sent");
	is($node->sql(q{SELECT action, role = session_user, affected, arguments FROM outbox.actions WHERE action = 'deliver_now'}), 'deliver_now|t|3|{"skip_ahead": true}', "$kind: one action says what was brought forward");

	# --- events of what happens meanwhile
	fresh($node);
	$node->handler('bad', ['a.*'], $receiver->url('/bad'), max_attempts => 2);
	$node->handler('listens', ['outbox.delivery.dead'], $receiver->url('/listens'));
	$node->stage('a.b');
	is(deliver($node, 'skip_ahead => true'), '1 1 1 0 0 0', "$kind: an event of its death is delivered in the same call");

	# --- in the end it works, through a breaker that would have opened, a rate and a Retry-After
	fresh($node);
	$receiver->on('/moody', (map { { status => 503, headers => { 'Retry-After' => 3600 } } } 1 .. 12), {});
	$node->handler('moody', ['a.*'], $receiver->url('/moody'), max_attempts => 20, rate_limit => 0.001, breaker_threshold => 2, breaker_wait => '1 h', breaker_wait_max => '1 h', concurrency => 1);
	$node->stage('a.b') foreach 1 .. 3;
	is(deliver($node, 'skip_ahead => true'), '3 12 0 0 0 0', "$kind: neither a rate nor a breaker nor the receiver's wish is waited for");
	is($node->sql(q{SELECT breaker FROM outbox.handlers WHERE handler = 'moody'}), 'closed', "$kind: and no breaker is open after it");
	$receiver->on('/moody', {});
	$node->stage('a.b') foreach 1 .. 3;
	is(deliver($node), '1 0 0 0 0 2', "$kind: without skip_ahead the rate holds, and what has to wait is counted");

	# --- delays, in their order; bounded rounds
	fresh($node);
	$receiver->on('/late', {});
	$node->handler('late', ['a.*'], $receiver->url('/late'), concurrency => 1);
	my @late = map { $node->sql("SELECT outbox.stage('a.b', '$_', delay => '$_ days')") } 3, 1, 2;
	is(deliver($node), '0 0 0 0 0 3', "$kind: what is scheduled waits");
	is(deliver($node, 'skip_ahead => true'), '3 0 0 0 0 0', "$kind: unless it is not to");
	is(join(' ', ids('/late')), join(' ', @late[1, 2, 0]), "$kind: and goes in the order of its times");
	$receiver->on('/late', { status => 500 });
	$node->sql(q{SELECT outbox.alter_handler('late', max_attempts => 1000)});
	my $endless = $node->stage('a.b');
	like($node->sql_error('CALL outbox.deliver_now(skip_ahead => true, max_rounds => 5)'),
		qr/54000.*has not come to an end after 5 rounds.*Still to come: message $endless for handler "late" after 6 attempts, the last one: 500.*HINT: /s, "$kind: rounds are bounded, and what comes back is named");
	is($receiver->count('/late'), 3 + 6, "$kind: by what was asked for");

	# --- ordered keys
	fresh($node);
	$receiver->on('/ordered', { status => 500 }, {});
	$node->handler('ordered', ['a.*'], $receiver->url('/ordered'), ordered => 'true', max_attempts => 5);
	my @ordered = map { $node->sql("SELECT outbox.stage('a.b', '$_', key => 'k')") } 1 .. 5;
	is(deliver($node), '0 1 0 0 0 5', "$kind: a key waits behind its head");
	is(deliver($node, 'skip_ahead => true'), '5 0 0 0 0 0', "$kind: unless its head need not wait");
	is(join(' ', ids('/ordered')), join(' ', $ordered[0], @ordered), "$kind: in their order");

	# --- on_settle functions and what they stage
	fresh($node);
	$node->sql(<<'SQL');
CREATE ROLE app;
CREATE SCHEMA app AUTHORIZATION app;
GRANT EXECUTE ON FUNCTION outbox.create_handler, outbox.stage TO app;
SET ROLE app;
CREATE TABLE app.settled (message_id uuid, outcome text);
CREATE FUNCTION app.note(s outbox.settlement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO app.settled VALUES (s.message_id, s.outcome);
	IF s.outcome = 'delivered' THEN
		PERFORM outbox.stage('c.followed', '{}');
	END IF;
END $$;
SQL
	$node->sql("SET ROLE app; SELECT outbox.create_handler('settles', '{a.*}', '" . $receiver->url('/settles') . "', on_settle => 'app.note(outbox.settlement)')");
	$node->handler('follows', ['c.*'], $receiver->url('/follows'));
	$node->stage('a.b') foreach 1 .. 3;
	is(deliver($node), '6 0 0 0 0 0', "$kind: outcomes go through on_settle, and what that stages is delivered too");
	is($node->sql('SELECT count(*), min(outcome) FROM app.settled'), '3|delivered', "$kind: its function has run");
	is($receiver->count('/follows'), 3, "$kind: each time");

	# --- schedules: what is due, and with skip_ahead the next one of each, once
	fresh($node);
	$node->handler('ticks', ['tick.*'], $receiver->url('/ticks'));
	$node->sql(q{SELECT outbox.create_schedule('daily', '0 3 * * *', topic => 'tick.daily', payload => '{}')});
	is(deliver($node), '0 0 0 0 0 0', "$kind: no occurrence is due");
	my $next = $node->sql(q{SELECT next_run_at FROM outbox.schedules});
	is(deliver($node, 'skip_ahead => true'), '1 0 0 0 0 0', "$kind: the next occurrence takes place");
	is($node->sql(qq{SELECT last_scheduled_at = '$next', next_run_at > '$next' FROM outbox.schedules}), 't|t', "$kind: that one, and the schedule goes on behind it");
	$node->sql(q{SELECT outbox.drop_schedule('daily')});

	# --- pull deliveries and paused handlers wait
	fresh($node);
	$node->handler('consumer', ['a.*'], undef);
	$node->handler('paused', ['a.*'], $receiver->url('/paused'));
	$node->sql(q{SELECT outbox.pause_handler('paused')});
	$node->handler('plain', ['a.*'], $receiver->url('/plain'));
	$node->stage('a.b');
	is(deliver($node, 'skip_ahead => true'), '1 0 0 0 0 2', "$kind: consumers and paused handlers are not served");

	# --- what has expired; a dispatcher sees to that even where it sends nothing
	fresh($node);
	$node->handler('plain', ['a.*'], $receiver->url('/plain'));
	$node->sql(q{SELECT outbox.stage('a.b', '1', ttl => '1 ms')});
	$node->wait_until(q{SELECT clock_timestamp() > max(expires_at) FROM outbox.messages}, 't');
	like(deliver($node), $kind eq 'preloaded' ? qr/^0 0 0 [01] [01] 0$/ : qr/^0 0 0 1 1 0$/, "$kind: what has expired is not sent");
	is($receiver->count('/plain'), 0, "$kind: indeed");

	# --- a call that is cancelled: at once, and what is out is settled or left due
	fresh($node);
	$receiver->on('/hangs', { hang => 1 });
	$node->handler('hangs', ['a.*'], $receiver->url('/hangs'), timeout => '1 min');
	$node->stage('a.b');
	my $call = PsqlSession->new($node);
	$call->start('CALL outbox.deliver_now()');
	$receiver->wait_for_requests(1, '/hangs');
	is($node->sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database() AND (backend_type LIKE 'outbox%' OR query LIKE 'CALL%')}), 0, "$kind: nobody holds a snapshot while a request is out");
	is($node->sql('SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE l.pid = ' . $call->backend . q{ AND c.relname IN ('message', 'delivery')}), 0, "$kind: nor a lock on a table");
	$node->sql('SELECT pg_cancel_backend(' . $call->backend . ')');
	like($call->finish, qr/canceling statement due to user request/, "$kind: a call can be cancelled");
	$receiver->release('/hangs');
	$node->wait_until('SELECT count(*) FROM outbox.delivery', 0);
	is($node->sql('SELECT state FROM outbox.deliveries'), 'delivered', "$kind: what was out is settled when it is answered in time");
	$receiver->on('/hangs', { hang => 1 });
	$node->stage('a.b');
	my $begin = time;
	like($node->sql_error(q{SET statement_timeout = '2 s'; CALL outbox.deliver_now()}), qr/57014.*statement timeout/s, "$kind: statement_timeout counts");
	like($node->sql_error(q{CALL outbox.deliver_now(timeout => '1 s')}), qr/55000.*not come to an end within its timeout/s, "$kind: and so does its own");
	cmp_ok(time - $begin, '<', 30, "$kind: neither waits for the receiver");
	$receiver->on('/hangs', {});
	$receiver->release('/hangs');
	$node->wait_until(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox dispatcher'}, $kind eq 'preloaded' ? 1 : 0);
	deliver($node);
	is($node->sql(q{SELECT string_agg(DISTINCT state, ' ') FROM outbox.deliveries}), 'delivered', "$kind: in the end it is delivered");

	# --- one at a time; a session that is killed takes its worker along
	$receiver->on('/hangs', { hang => 1 });
	$node->stage('a.b');
	$call = PsqlSession->new($node);
	$call->start('CALL outbox.deliver_now()');
	my $sent = $receiver->count('/hangs');
	$receiver->wait_for_requests($sent + 1, '/hangs') if $sent == 0;
	$node->wait_until(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 1}, 1);
	my $second = PsqlSession->new($node);
	$second->start('CALL outbox.deliver_now()');
	$node->wait_for(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}, 1, "$kind: a second call waits for the first one");
	like($node->sql_error(q{CALL outbox.deliver_now(timeout => '100 ms')}), qr/55P03.*lock timeout/s, "$kind: and no longer than it is told to");
	$receiver->on('/hangs', {});
	$receiver->release('/hangs');
	is($call->finish, '1|0|0|0|0|0', "$kind: the first one delivers");
	is($second->finish, '0|0|0|0|0|0', "$kind: and the second finds nothing");
	$receiver->on('/hangs', { hang => 1 });
	$node->stage('a.b');
	$call->start('CALL outbox.deliver_now()');
	$node->wait_until(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 2}, 1);
	$node->sql('SELECT pg_terminate_backend(' . $call->backend . ')');
	$node->wait_for(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}, 0, "$kind: a session that is terminated takes its worker along");
	$receiver->on('/hangs', {});
	$receiver->release('/hangs');
	$call->close;
	deliver($node);

	# --- who may, and what it must not be called with
	$node->sql(q{DROP ROLE IF EXISTS clerk; CREATE ROLE clerk LOGIN});
	like($node->sql_error('SET ROLE clerk; CALL outbox.deliver_now()'), qr/42501/, "$kind: not everybody may");
	$node->sql(q{SELECT outbox.grant_operator('clerk')});
	$node->stage('a.b');
	is($node->sql('SET ROLE clerk; CALL outbox.deliver_now()'), '1|0|0|0|0|0', "$kind: an operator may");
	like($node->sql_error('BEGIN; CALL outbox.deliver_now()'), qr/25001.*inside a transaction block.*HINT/s, "$kind: not in a transaction block");
	like($node->sql_error('CALL outbox.deliver_now(NULL)'), qr/22004.*skip_ahead must not be null/s, "$kind: no NULL");
	like($node->sql_error('CALL outbox.deliver_now(max_rounds => -1)'), qr/22023.*max_rounds/s, "$kind: no negative number");
	like($node->sql_error(q{CALL outbox.deliver_now(timeout => '-1 s')}), qr/22023.*timeout/s, "$kind: no negative time");
	like($node->sql_error('SET default_transaction_read_only = on; CALL outbox.deliver_now()'), qr/25006/, "$kind: not read-only");
	$node->sql(q{SELECT outbox.revoke_operator('clerk'); DROP ROLE clerk});

	# --- a copy
	$node->sql('UPDATE outbox.installation SET system_identifier = system_identifier + 1');
	like($node->sql_error('CALL outbox.deliver_now()'), qr/55000.*deliveries are held: this database is a copy.*HINT:  Call outbox.adopt/s, "$kind: a copy delivers nothing");
	$node->sql('SELECT outbox.adopt()');
	is($node->sql(q{SELECT count(*) FROM outbox.verify() WHERE severity = 'error'}), 0, "$kind: nothing contradicts itself");
	return;
}

# --- without preload
my $plain = OutboxCluster->create('plain', preload => 0, conf => "max_logical_replication_workers = 0\n");
try_all($plain, 'not preloaded');

# Nobody can ring for what changes while it delivers; it looks for that itself.
fresh($plain);
$receiver->on('/hangs', { hang => 1 });
$plain->handler('hangs', ['a.*'], $receiver->url('/hangs'), timeout => '1 min', concurrency => 1);
$plain->stage('a.b');
my $running = PsqlSession->new($plain);
$running->start('CALL outbox.deliver_now()');
$receiver->wait_for_requests(1, '/hangs');
my @unsent = map { $plain->sql("SELECT outbox.stage('a.b', '$_')") } 1 .. 3;
$plain->handler('first', ['first'], $receiver->url('/first'));
$plain->stage('first');
ok($receiver->wait_for_requests(1, '/first'), 'it hears of a handler and a message that are younger than the call');
$plain->sql("SELECT outbox.cancel('$unsent[0]'), outbox.erase_message('$unsent[1]')");
$plain->handler('second', ['second'], $receiver->url('/second'));
$plain->stage('second');
ok($receiver->wait_for_requests(1, '/second'), 'and again');
$receiver->on('/hangs', {});
$receiver->release('/hangs');
is($running->finish, '4|0|0|0|0|0', 'and not of what was cancelled or erased meanwhile');
is(join(' ', (ids('/hangs'))[1 .. 1]), $unsent[2], 'nor has it sent that');
is($receiver->count('/hangs'), 2, 'at all');
$running->close;
is($plain->sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%'}), 0, 'no process of ours stays');
$plain->append_conf('postgresql.conf', 'max_worker_processes = 0');
$plain->restart;
like($plain->sql_error('CALL outbox.deliver_now()'), qr/53400.*no background worker slot is free.*HINT:  Increase max_worker_processes from 0 to at least 1/s, 'without a worker slot it says so');
$plain->append_conf('postgresql.conf', 'max_worker_processes = 1');
$plain->restart;
fresh($plain);
$plain->sql("SET ROLE app; SELECT outbox.create_handler('settles', '{a.*}', '" . $receiver->url('/settles') . "', on_settle => 'app.note(outbox.settlement)')");
$plain->stage('a.b');
like($plain->sql_error('CALL outbox.deliver_now()'), qr/55000.*on_settle functions are not run.*max_worker_processes is 1, and at least 2 is needed/s, 'and so does what lacks one for on_settle');
$plain->stop;

# --- preloaded, in the place of a dispatcher that sends nothing
my $main = OutboxCluster->create('main', conf => "outbox.enabled = off\n");
my $dispatcher = q{SELECT state FROM outbox.dispatchers WHERE database = 'postgres'};
$main->wait_for($dispatcher, 'disabled', 'there is a dispatcher that sends nothing');
try_all($main, 'preloaded');
$main->wait_for($dispatcher, 'disabled', 'the dispatcher is back, and still sends nothing');

# --- beside one that sends: nothing is sent twice, and it goes on afterwards
$main->append_conf('postgresql.conf', 'outbox.enabled = on');
$main->reload;
$main->wait_for($dispatcher, 'running', 'the dispatcher sends now');
fresh($main);
$main->handler('both', ['a.*'], $receiver->url('/both'), concurrency => 2);
my $load = PsqlSession->new($main);
$load->start(q{SELECT count(outbox.stage('a.b', to_jsonb(n))) FROM generate_series(1, 2000) n});
$load->finish;
my @calls = map { deliver($main) } 1 .. 3;
$main->stage('a.b');
$main->wait_for('SELECT count(*) FROM outbox.delivery', 0, 'the dispatcher goes on after the calls');
is($receiver->count('/both'), 2001, 'nothing was sent twice');
is($main->sql(q{SELECT sum(delivered) FROM outbox.stat_handlers WHERE handler = 'both'}), 2001, 'and all of it is counted');

$main->stop;
done_testing();
