-- stage(..., expires_at, ttl), max_age and outbox.reschedule(): what one session sees of them.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never
SET timezone = 'Europe/Berlin';
SELECT outbox.create_handler('all', '{*}') IS NOT NULL AS created;
SELECT outbox.create_handler('young', '{doc.*}', max_age => '10 min', ordered => true) IS NOT NULL AS created;
CREATE VIEW pg_temp.staged AS
SELECT m.payload, d.handler, d.state, d.code, d.error, d.attempts, round(extract(epoch FROM d.expires_at - m.staged_at)) AS expires_after,
	round(extract(epoch FROM d.due_at - m.staged_at)) AS due_after
FROM outbox.messages m LEFT JOIN outbox.deliveries d ON d.message_id = m.message_id ORDER BY m.message_id, d.handler;

-- The earlier one of the message's end and the handler's, which counts from when it is due.
SELECT outbox.stage('doc.saved', '1') IS NOT NULL AS staged;
SELECT outbox.stage('doc.saved', '2', ttl => '1 min') IS NOT NULL AS staged;
SELECT outbox.stage('doc.saved', '3', ttl => '1 h') IS NOT NULL AS staged;
SELECT outbox.stage('doc.saved', '4', ttl => '1 h', delay => '30 min') IS NOT NULL AS staged;
SELECT outbox.stage('doc.saved', '5', ttl => '1 h', delay => '55 min') IS NOT NULL AS staged;
SELECT outbox.stage('other', '6', expires_at => now() + interval '1 day', dedupe_key => 'six') IS NOT NULL AS staged;
SELECT status FROM outbox.try_stage('other', '7', ttl => '2 h', replace_key => 'a');
SELECT count(*) FROM outbox.stage_many('other', '{8,9}', ttl => '3 h');
SELECT count(*) FROM outbox.stage_many('other', '{10}', expires_at => now() + interval '1 day', delay => '1 h');
SELECT payload, handler, expires_after, due_after FROM pg_temp.staged;
SELECT payload, round(extract(epoch FROM expires_at - staged_at)) AS expires_after FROM outbox.messages WHERE expires_at IS NOT NULL ORDER BY message_id;
SELECT m.payload, round(extract(epoch FROM w.expires_at - m.staged_at)) AS expires_after FROM outbox.waiting w JOIN outbox.messages m USING (message_id) WHERE w.handler = 'young' ORDER BY message_id;
-- A handler that changes changes what is staged from then on.
SELECT outbox.alter_handler('young', max_age => '1 day');
SELECT outbox.stage('doc.saved', '11') IS NOT NULL AS staged;
SELECT outbox.alter_handler('young', reset => '{max_age}');
SELECT outbox.stage('doc.saved', '12') IS NOT NULL AS staged;
SELECT payload, handler, expires_after FROM pg_temp.staged WHERE payload::int > 10;
-- Years and months are as long wherever they are counted.
SELECT outbox.alter_handler('young', max_age => '1 year 1 mon');
SELECT outbox.stage('doc.saved', '13') AS aged \gset
SELECT expires_after FROM pg_temp.staged WHERE payload = '13' AND handler = 'young';
SELECT outbox.reschedule(:'aged', staged_at) FROM outbox.messages WHERE message_id = :'aged';
SELECT extract(epoch FROM expires_at - due_at)::int AS expires_after FROM outbox.deliveries WHERE message_id = :'aged' AND handler = 'young';
SELECT outbox.alter_handler('young', reset => '{max_age}');

-- Nobody claims what has expired; where no dispatcher is, prune() cancels it.
CALL regress.empty();
SELECT count(*) FROM outbox.stage_many('n', '{1,2,3}', ttl => '1 day');
SELECT outbox.stage('n', '4') IS NOT NULL AS staged;
UPDATE outbox.delivery SET expires_at = clock_timestamp() WHERE message_id IN (SELECT id FROM outbox.message WHERE payload IN ('1', '2'));
SELECT payload FROM outbox.claim('all', 10);
-- What is leased has gone out: it can be completed, or given back for nothing.
UPDATE outbox.delivery SET expires_at = clock_timestamp() WHERE message_id IN (SELECT id FROM outbox.message WHERE payload IN ('3', '4'));
SELECT id AS third FROM outbox.message WHERE payload = '3' \gset
SELECT id AS fourth FROM outbox.message WHERE payload = '4' \gset
DO $$ BEGIN
	-- With a dispatcher it is that who does it, in its own time.
	FOR i IN 1 .. 3000 LOOP
		PERFORM outbox.prune();
		EXIT WHEN (SELECT count(*) = 2 FROM outbox.receipt);
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT payload, handler, state, code, error, attempts FROM pg_temp.staged;
SELECT outbox.complete('all', :'third', 1);
SELECT outbox.release('all', :'fourth', 1);
SELECT count(*) FROM outbox.claim('all', 10);
DELETE FROM outbox.delivery;

-- A requeue begins a new life: an end that has passed is forgotten, one that has not holds.
CALL regress.empty();
SELECT outbox.alter_handler('young', max_age => '5 min');
SELECT outbox.stage('doc.saved', '1', ttl => '1 min') AS first \gset
UPDATE outbox.message SET expires_at = clock_timestamp() WHERE id = :'first';
SELECT outbox.stage('doc.saved', '2', ttl => '1 day') AS second \gset
SELECT outbox.cancel(:'first'), outbox.cancel(:'second');
SELECT outbox.requeue(:'first'), outbox.requeue(:'second');
SELECT payload, handler, state, expires_after FROM pg_temp.staged;
SELECT outbox.create_handler('later', '{doc.*}') IS NOT NULL AS created;
SELECT outbox.replay('later', '-infinity', backfill => true);
SELECT payload, handler, state, expires_after FROM pg_temp.staged WHERE handler = 'later';
SELECT outbox.drop_handler('later');
DELETE FROM outbox.handler WHERE name = 'later';

-- What is refused.
SELECT arguments, regress.error_of(format('SELECT outbox.stage(''n'', %s)', arguments)) FROM unnest(ARRAY[$$ttl => '1 h', expires_at => now() + interval '1 h'$$,
	$$ttl => '0'$$, $$ttl => '-1 h'$$, $$ttl => '1000 years'$$, $$expires_at => 'infinity'$$, $$expires_at => now() - interval '1 h'$$, $$expires_at => now() + interval '200 years'$$,
	$$ttl => '1 h', delay => '1 h'$$, $$ttl => '1 h', deliver_at => now() + interval '2 h'$$]) AS arguments;
SELECT status, detail FROM outbox.try_stage('n', ttl => '1 h', delay => '1 h');
SELECT regress.error_of($$SELECT outbox.stage_many('n', '{1}', ttl => '-1 h')$$);
SELECT regress.error_of($$SELECT outbox.alter_handler('young', max_age => '0')$$);

-- outbox.reschedule(): sooner and later, of one handler or of all; max_age counts from the new time.
CALL regress.empty();
SELECT outbox.stage('doc.saved', '1', delay => '1 h', ttl => '3 h') AS first \gset
SELECT outbox.reschedule(:'first', now() + interval '2 h');
SELECT handler, expires_after, due_after FROM pg_temp.staged;
SELECT outbox.reschedule(:'first', now() - interval '2 h', 'all');
SELECT handler, round(due_after / 60) AS due_after_minutes FROM pg_temp.staged;
SELECT payload FROM outbox.claim('all');
SELECT outbox.reschedule(:'first', now() + interval '1 min');
SELECT handler, state, round(due_after / 60) AS due_after_minutes FROM pg_temp.staged;
SELECT regress.error_of(format('SELECT outbox.reschedule(%L, now(), ''all'')', :'first'));
SELECT outbox.retry('all', :'first', 1, after => '1 h');
SELECT regress.error_of(format('SELECT outbox.reschedule(%L, now(), ''all'')', :'first'));
SELECT outbox.cancel(:'first', 'all');
SELECT regress.error_of(format('SELECT outbox.reschedule(%L, now(), ''all'')', :'first'));
-- What a requeue has brought back has not been tried since.
SELECT outbox.requeue(:'first', 'all');
SELECT outbox.reschedule(:'first', now() + interval '1 min', 'all');
SELECT regress.error_of(format('SELECT outbox.reschedule(%L, %L)', :'first', m.expires_at)) ~ '^22023: message <id> expires before that time \| It expires at .*\. Pass an earlier time, or stage it anew\.$' AS refused
FROM outbox.message m;
SELECT regress.error_of(format('SELECT outbox.reschedule(%L, %L)', :'first', at)) FROM unnest(ARRAY[NULL, 'infinity', '3000-01-01']) AS at;
SELECT regress.error_of($$SELECT outbox.reschedule('00000000-0000-7000-8000-000000000001', now())$$);
SELECT regress.error_of($$SELECT outbox.reschedule(NULL, now())$$);
SELECT regress.error_of(format('SELECT outbox.reschedule(%L, now(), tenant => ''t'')', :'first'));
SELECT regress.error_of(format('SELECT outbox.reschedule(%L, now(), ''nobody'')', :'first'));
-- What is over gets no other time, though nothing has cancelled it yet.
BEGIN;
SELECT outbox.stage('doc.saved', '2', ttl => '1 ms') AS over \gset
DO $$ BEGIN WHILE clock_timestamp() <= (SELECT max(expires_at) FROM outbox.message WHERE payload = '2') LOOP END LOOP; END $$;
SELECT regress.error_of(format('SELECT outbox.reschedule(%L, now() + interval ''1 h'')', :'over')) ~ '^22023: message <id> expires before that time' AS refused;
ROLLBACK;
DELETE FROM outbox.handler WHERE id <> 0;
DELETE FROM outbox.delivery;
SELECT outbox.stage('nobody.takes', '1') AS unrouted \gset
SELECT regress.error_of(format('SELECT outbox.reschedule(%L, now())', :'unrouted'));
