# Deliveries that expire: whatever keeps one waiting, it is cancelled when its
# end has come, and not before; what has gone out by then counts.
use strict;
use warnings;

use HttpReceiver;
use OutboxCluster;
use PsqlSession;
use Test::More;

my $receiver = HttpReceiver->start;
my $node = OutboxCluster->create('main', conf => "outbox.rescan_interval = 1h\nmax_prepared_transactions = 5");
my %push = (backoff_base => '1 h', backoff_max => '1 h', jitter => 0);
$node->handler($_, ["$_.*"], $receiver->url("/$_"), %push) foreach qw(paused retry out lock);
$node->handler('broken', ['broken.*'], $receiver->url('/broken'), %push, breaker_threshold => 1, breaker_wait => '1 h', breaker_wait_max => '1 h');
$node->handler('ordered', ['key.*'], $receiver->url('/ordered'), %push, ordered => 'true', concurrency => 1);
$node->handler('old', ['old.*'], $receiver->url('/old'), %push, max_age => '1 s');
$node->handler('batch', ['batch.*'], $receiver->url('/batch'), %push, batch_size => 10, concurrency => 1, format => 'envelope');
$node->handler('pull', ['pull.*']);
$node->handler('pull_ordered', ['pulled.*'], undef, ordered => 'true');
$node->sql(q{SELECT outbox.pause_handler('paused'), outbox.pause_handler('old')});

sub wait_for_state
{
	my ($id, $expected, $name) = @_;
	return $node->wait_for("SELECT concat_ws(' ', state, code, attempts) FROM outbox.deliveries WHERE message_id = '$id'", $expected, $name);
}

sub bodies
{
	my $path = shift;
	return join ' ', map { $_->{body} } $receiver->requests($path);
}

# --- whatever it waits for
my $id = $node->stage('paused.x', '1', ttl => '300 ms');
my $stays = $node->stage('paused.x', '2', ttl => '1 day');
wait_for_state($id, 'cancelled expired 0', 'paused');
$id = $node->stage('old.x', '1');
wait_for_state($id, 'cancelled expired 0', 'max_age of its handler');
$node->sql(q{SELECT outbox.resume_handler('paused')});
wait_for_state($stays, 'delivered 1', 'the other one is delivered');
is(bodies('/paused'), '2', 'and no more is sent');

$receiver->on('/broken', { status => 500 });
$node->stage('broken.first');
$node->wait_until("SELECT breaker = 'open' FROM outbox.handlers WHERE handler = 'broken'");
$id = $node->stage('broken.second', '{}', ttl => '300 ms');
wait_for_state($id, 'cancelled expired 0', 'an open breaker');

$receiver->on('/retry', { status => 500 });
$id = $node->stage('retry.x', '{}', ttl => '1 s');
wait_for_state($id, 'cancelled expired 1', 'its next attempt');
is($receiver->count('/retry'), 1, 'which there was none of');

$id = $node->stage('pull.x', '{}', ttl => '300 ms');
wait_for_state($id, 'cancelled expired 0', 'nobody who claims it');
$id = $node->stage('pull.x', '{}', ttl => '1 s');
is($node->sql("SELECT count(*) FROM outbox.claim('pull', lease => '1.5 s')"), 1, 'one is claimed before it expires');
$node->wait_until("SELECT expires_at < clock_timestamp() FROM outbox.deliveries WHERE message_id = '$id'");
is($node->sql("SELECT state FROM outbox.deliveries WHERE message_id = '$id'"), 'leased', 'a lease has gone out');
$node->wait_until("SELECT due_at < clock_timestamp() FROM outbox.deliveries WHERE message_id = '$id'");
is($node->sql("SELECT count(*) FROM outbox.claim('pull')"), 0, 'nobody claims it again');
wait_for_state($id, 'cancelled expired 1', 'and it is settled then');
$id = $node->stage('pull.x', '{}', ttl => '500 ms');
is($node->sql("SELECT count(*) FROM outbox.claim('pull')"), 1, 'another one is claimed');
$node->wait_until("SELECT expires_at < clock_timestamp() FROM outbox.deliveries WHERE message_id = '$id'");
is($node->sql("SELECT outbox.release('pull', '$id', 1)"), 't', 'and given back when it is over');
wait_for_state($id, 'cancelled expired 1', 'it is not handed out again');

# --- in flight is gone out
$receiver->on('/out', { hang => 1 });
my $answered = $node->stage('out.answered', '{}', ttl => '500 ms');
$receiver->wait_for_requests(1, '/out') or die 'no request';
$node->wait_until("SELECT expires_at < clock_timestamp() - interval '200 ms' FROM outbox.deliveries WHERE message_id = '$answered'");
is($node->sql("SELECT state FROM outbox.deliveries WHERE message_id = '$answered'"), 'pending', 'a request that is out');
$receiver->release('/out', {}, { hang => 1 });
wait_for_state($answered, 'delivered 1', 'its answer counts');
my $failed = $node->stage('out.failed', '{}', ttl => '500 ms');
$receiver->wait_for_requests(2, '/out') or die 'no request';
$node->wait_until("SELECT expires_at < clock_timestamp() FROM outbox.deliveries WHERE message_id = '$failed'");
$receiver->release('/out', { status => 500 }, {});
wait_for_state($failed, 'cancelled expired 1', 'and if it has failed, that was the last');

# What comes of it in an on_settle function, too.
$node->sql(q{CREATE ROLE app; CREATE SCHEMA app AUTHORIZATION app; SET ROLE app;
	CREATE FUNCTION app.wait(outbox.settlement) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock(252)'});
$node->handler('settled', ['settled.*'], $receiver->url('/settled'), %push, on_settle => 'app.wait(outbox.settlement)');
$receiver->on('/settled', { status => 500 });
my $locker = PsqlSession->new($node);
$locker->run('SELECT pg_advisory_lock(252)');
$id = $node->stage('settled.x', '{}', ttl => '1 s');
$node->wait_until("SELECT state = 'leased' FROM outbox.deliveries WHERE message_id = '$id'");
$node->wait_until("SELECT expires_at < clock_timestamp() - interval '200 ms' FROM outbox.deliveries WHERE message_id = '$id'");
is($node->sql("SELECT state FROM outbox.deliveries WHERE message_id = '$id'"), 'leased', 'one whose function has not ended');
$locker->run('SELECT pg_advisory_unlock(252)');
wait_for_state($id, 'cancelled expired 1', 'is not tried again');

# --- before it is sent, even if its row cannot be written then
$receiver->on('/lock', { hang => 1 });
$node->sql("SELECT outbox.alter_handler('lock', concurrency => 1)");
$node->stage('lock.first');
$receiver->wait_for_requests(1, '/lock') or die 'no request';
$id = $node->stage('lock.second', '{}', ttl => '300 ms');
$locker->run("BEGIN; SELECT FROM outbox.delivery WHERE message_id = '$id' FOR UPDATE");
$node->wait_until("SELECT expires_at < clock_timestamp() FROM outbox.deliveries WHERE message_id = '$id'");
$receiver->release('/lock', {}, {});
$stays = $node->stage('lock.third');
wait_for_state($stays, 'delivered 1', 'the handler goes on');
is($node->sql("SELECT state FROM outbox.deliveries WHERE message_id = '$id'"), 'pending', 'while somebody holds the row');
is($receiver->count('/lock'), 2, 'what has expired is not sent');
$locker->run('ROLLBACK');
$locker->close;
wait_for_state($id, 'cancelled expired 0', 'and cancelled when it is free');

# A row that somebody holds keeps neither those behind it nor, on an ordered handler, other keys.
$node->sql(q{SELECT outbox.pause_handler('paused')});
$id = $node->stage('paused.held', '{}', ttl => '300 ms');
$locker = PsqlSession->new($node);
$locker->run("BEGIN; SELECT FROM outbox.delivery WHERE message_id = '$id' FOR UPDATE");
$node->sql(q{SELECT count(*) FROM outbox.stage_many('paused.behind', array_fill('1'::jsonb, '{3000}'), ttl => '500 ms')});
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'paused.behind' AND code = 'expired'", 3000, 'those behind one that is held');
is($node->sql("SELECT state FROM outbox.deliveries WHERE message_id = '$id'"), 'pending', 'which waits');
$locker->run('ROLLBACK');
wait_for_state($id, 'cancelled expired 0', 'until it is free');
$node->sql(q{SELECT outbox.resume_handler('paused')});
$node->handler('ordered_lock', ['keyed.*'], $receiver->url('/ordered_lock'), %push, ordered => 'true', concurrency => 1);
$receiver->on('/ordered_lock', { hang => 1 });
$node->stage('keyed.first', '0', key => 'busy');
$receiver->wait_for_requests(1, '/ordered_lock') or die 'no request';
$id = $node->stage('keyed.x', '1', key => 'k', ttl => '300 ms');
$stays = $node->stage('keyed.x', '2', key => 'k');
$locker->run("BEGIN; SELECT FROM outbox.delivery WHERE message_id = '$id' FOR UPDATE");
$node->wait_until("SELECT expires_at < clock_timestamp() FROM outbox.deliveries WHERE message_id = '$id'");
$receiver->release('/ordered_lock', {}, {});
wait_for_state($node->stage('keyed.x', '3', key => 'other'), 'delivered 1', 'another key');
is($node->sql("SELECT string_agg(state, ' ') FROM outbox.deliveries WHERE message_id IN ('$id', '$stays')"), 'pending pending', 'its own waits behind it');
$locker->run('ROLLBACK');
$locker->close;
wait_for_state($stays, 'delivered 1', 'until that is cancelled');
is(bodies('/ordered_lock'), '0 3 2', 'which was not sent');

# One that is given another time when it has been found to be over.
$node->handler('moved', ['moved.*'], $receiver->url('/moved'), %push, max_age => '3 s');
$node->sql(q{SELECT outbox.pause_handler('moved')});
$id = $node->stage('moved.x', '1');
$node->sql(q{SELECT outbox.alter_handler('moved', max_age => '1 h')});
my $mover = PsqlSession->new($node);
$mover->run("BEGIN; SELECT outbox.reschedule('$id', clock_timestamp())");
$node->wait_until("SELECT expires_at < clock_timestamp() FROM outbox.deliveries WHERE message_id = '$id'");
$node->sql(q{SELECT outbox.resume_handler('moved')});
wait_for_state($node->stage('moved.x', '2'), 'delivered 1', 'its handler has passed one that is being rescheduled');
$mover->run('COMMIT');
$mover->close;
wait_for_state($id, 'delivered 1', 'which is delivered');

# --- ordered keys go on
$receiver->on('/ordered', { status => 500 }, {});
my @ids = ($node->stage('key.x', '1', key => 'k', ttl => '1 s'), map { $node->stage('key.x', $_, key => 'k') } 2, 3);
wait_for_state($ids[0], 'cancelled expired 1', 'the head of a key');
wait_for_state($ids[2], 'delivered 1', 'and those behind it go');
is(bodies('/ordered'), '1 2 3', 'in order');
$node->sql(q{SELECT outbox.pause_handler('ordered')});
@ids = map { $node->stage('key.x', $_, key => 'k', $_ == 5 ? (ttl => '300 ms') : ()) } 4 .. 6;
wait_for_state($ids[1], 'cancelled expired 0', 'one in the middle');
$node->sql(q{SELECT outbox.resume_handler('ordered')});
wait_for_state($ids[2], 'delivered 1', 'is left out');
is(bodies('/ordered'), '1 2 3 4 6', 'of the key');
$id = $node->stage('pulled.x', '1', key => 'k', ttl => '300 ms');
$node->stage('pulled.x', '2', key => 'k');
wait_for_state($id, 'cancelled expired 0', 'the head of a key of consumers');
is($node->sql(q{SELECT payload FROM outbox.claim('pull_ordered')}), '2', 'lets the next one go');

# --- of a batch some
$receiver->on('/batch', { hang => 1 });
$node->stage('batch.first');
$receiver->wait_for_requests(1, '/batch') or die 'no request';
$node->sql(q{SELECT count(outbox.stage('batch.x', to_jsonb(g), ttl => CASE WHEN g % 2 = 1 THEN interval '300 ms' END)) FROM generate_series(1, 6) AS g});
$node->wait_for("SELECT string_agg(m.payload::text, ' ' ORDER BY m.message_id) FROM outbox.deliveries d JOIN outbox.messages m USING (message_id) WHERE d.topic = 'batch.x' AND d.code = 'expired'", '1 3 5', 'some of a batch');
$receiver->release('/batch', {}, {});
$node->wait_for("SELECT string_agg(m.payload::text, ' ' ORDER BY m.message_id) FROM outbox.deliveries d JOIN outbox.messages m USING (message_id) WHERE d.topic = 'batch.x' AND d.state = 'delivered'", '2 4 6', 'the others are delivered');

# --- many at once, and one whose transaction commits when it is over
$node->sql(q{SELECT outbox.pause_handler('paused')});
my $session = PsqlSession->new($node);
my $before = $node->sql("SELECT count(*) FROM outbox.receipt WHERE code = 'expired'");
$session->run(q{BEGIN; SELECT outbox.stage('paused.amid', ttl => '100 ms')});
$node->sql(q{SELECT count(*) FROM outbox.stage_many('paused.many', array_fill('1'::jsonb, '{10000}'), ttl => '500 ms')});
$session->run(qq{DO \$\$BEGIN WHILE (SELECT count(*) FROM outbox.receipt WHERE code = 'expired') = $before LOOP PERFORM pg_sleep(0.001); END LOOP; END\$\$; COMMIT});
$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'paused.many' AND code = 'expired'", 10000, 'thousands with one end');
$node->wait_for("SELECT concat_ws(' ', state, code) FROM outbox.deliveries WHERE topic = 'paused.amid'", 'cancelled expired', 'one that commits amid them');
$session->run(q{BEGIN; SELECT outbox.stage('paused.late', ttl => '100 ms')});
$session->run(q{SELECT pg_sleep(0.2)});
# Others are swept meanwhile.
wait_for_state($node->stage('paused.x', '{}', ttl => '300 ms'), 'cancelled expired 0', 'one that ends later');
$session->run('COMMIT');
$session->close;
$node->wait_for("SELECT concat_ws(' ', state, code) FROM outbox.deliveries WHERE topic = 'paused.late'", 'cancelled expired', 'one that commits late');

# --- what cannot be cancelled waits alone, whether it fails at once or at commit
$node->sql(q{CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
		IF EXISTS (SELECT FROM outbox.message m WHERE m.id = NEW.message_id AND m.topic = TG_ARGV[0]) THEN RAISE 'kept: %', TG_ARGV[0]; END IF;
		RETURN NULL;
	END$$;
	CREATE TRIGGER keep_now AFTER INSERT ON outbox.receipt FOR EACH ROW WHEN (NEW.code = 'expired') EXECUTE FUNCTION public.keep('paused.now');
	CREATE CONSTRAINT TRIGGER keep_later AFTER INSERT ON outbox.receipt DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.code = 'expired') EXECUTE FUNCTION public.keep('paused.later');
	ALTER TABLE outbox.receipt ENABLE ALWAYS TRIGGER keep_now, ENABLE ALWAYS TRIGGER keep_later});
foreach my $topic (qw(paused.now paused.later))
{
	my @kept = map { $node->stage($topic, '{}', ttl => '100 ms') } 1 .. 3;
	$node->sql(q{SELECT count(*) FROM outbox.stage_many('paused.after', array_fill('1'::jsonb, '{200}'), ttl => '300 ms')});
	$node->wait_for("SELECT count(*) FROM outbox.deliveries WHERE topic = 'paused.after' AND state = 'cancelled'", 200, "$topic: those behind");
	$node->wait_for("SELECT last_error FROM outbox.dispatchers", "expired deliveries that cannot be cancelled, the latest for: kept: $topic", 'operators are told');
	is($node->sql("SELECT string_agg(DISTINCT state, ' ') FROM outbox.deliveries WHERE topic = '$topic'"), 'pending', 'nothing comes of the others');
	$node->sql("DELETE FROM outbox.receipt r USING outbox.message m WHERE m.id = r.message_id AND m.topic = 'paused.after'");
	$node->sql($topic eq 'paused.now' ? 'DROP TRIGGER keep_now ON outbox.receipt' : 'DROP TRIGGER keep_later ON outbox.receipt');
	wait_for_state($_, 'cancelled expired 0', 'before they can be') foreach @kept;
	$node->wait_until('SELECT last_error IS NULL FROM outbox.dispatchers');
}

# --- brought back: a new life
$node->sql(q{SELECT outbox.resume_handler('paused')});
is($node->sql(q{SELECT outbox.requeue_where(topic => 'paused.late', code => 'expired', include_cancelled => true)}), 1, 'what has expired can be requeued');
$node->wait_for("SELECT concat_ws(' ', state, code) FROM outbox.deliveries WHERE topic = 'paused.late'", 'delivered', 'and is delivered');
is($node->sql(q{SELECT outbox.replay('paused', '-infinity', topic => 'paused.late')}), 1, 'so can it be replayed');
$node->wait_for("SELECT state || attempts FROM outbox.deliveries WHERE topic = 'paused.late'", 'delivered3', 'once more');

# --- by hand, which a rescan finds; in a prepared transaction
$node->sql(q{SELECT outbox.pause_handler('paused')});
$id = $node->stage('paused.x');
$node->sql("UPDATE outbox.delivery SET expires_at = clock_timestamp() WHERE message_id = '$id'");
$node->sql('SELECT outbox_internal.ring_rescan()');
wait_for_state($id, 'cancelled expired 0', 'an end that was set by hand');
$node->sql("BEGIN; SELECT outbox.stage('paused.prepared', ttl => '100 ms'); PREPARE TRANSACTION 'p'");
$node->sql("COMMIT PREPARED 'p'");
$node->wait_for("SELECT concat_ws(' ', state, code) FROM outbox.deliveries WHERE topic = 'paused.prepared'", 'cancelled expired', 'one that was prepared');

# --- while nothing is sent, but not in a copy
$node->sql(q{ALTER DATABASE postgres SET outbox.enabled = off});
$node->reload;
$node->wait_until("SELECT state = 'disabled' FROM outbox.dispatchers");
$id = $node->stage('out.x', '{}', ttl => '300 ms');
wait_for_state($id, 'cancelled expired 0', 'disabled');
my $identity = $node->sql('SELECT system_identifier FROM outbox.installation');
$node->sql('UPDATE outbox.installation SET system_identifier = 1; SELECT outbox_internal.ring_status()');
$node->wait_until("SELECT state = 'held' FROM outbox.dispatchers");
$id = $node->stage('out.x', '{}', ttl => '100 ms');
$node->wait_until("SELECT expires_at < clock_timestamp() - interval '300 ms' FROM outbox.deliveries WHERE message_id = '$id'");
is($node->sql("SELECT state FROM outbox.deliveries WHERE message_id = '$id'"), 'pending', 'nothing expires in a copy');
$node->sql('SELECT outbox.adopt()');
wait_for_state($id, 'cancelled expired 0', 'until it is adopted');

# --- after a restart
$node->stop;
$node->start;
$node->sql(q{ALTER DATABASE postgres RESET outbox.enabled});
$node->reload;
$node->wait_for_dispatcher;
$id = $node->stage('paused.x', '{}', ttl => '500 ms');
$node->stop('immediate');
$node->start;
wait_for_state($id, 'cancelled expired 0', 'after a crash');
is($node->sql("SELECT count(*) FROM outbox.verify() WHERE severity <> 'info'"), 0, 'nothing contradicts itself');
$node->stop;
done_testing();
