-- outbox.message(): the story of a message, as it stands in the rows that are left.
SET datestyle = 'ISO';
CALL regress.start_anew();
TRUNCATE outbox.action;
SELECT count(outbox.create_handler(name, '{story.*}', backoff => '{0}')) FROM unnest('{a,b}'::text[]) name;

-- Without what differs from run to run.
CREATE FUNCTION regress.story(id uuid, tenant text DEFAULT NULL) RETURNS TABLE (event text, handler text, attempt int, detail text) LANGUAGE sql AS $$
	SELECT m.event, m.handler, m.attempt, replace(regexp_replace(regexp_replace(m.detail, '[0-9a-f]{8}-[0-9a-f-]{27}', '<id>', 'g'),
		'\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[-+]\d\d)', '<time>', 'g'), session_user, '<superuser>')
	FROM outbox.message(id, tenant) m
$$;

-- Two handlers, one of which fails it twice; then operators.
SELECT outbox.stage('story.told', '{"secret": "never shown"}', key => 'k', tenant => 'acme', correlation_id => 'c', headers => '{"x-trace": "1"}', dedupe_key => 'd') AS id \gset
SELECT * FROM regress.story(:'id');
SELECT outbox.complete('a', c.id, c.attempt) FROM outbox.claim('a') c;
SELECT outbox.retry('b', c.id, c.attempt, 'busy', after => '0 s', error => 'not now') FROM outbox.claim('b') c;
SELECT count(*) FROM outbox.claim('b');
SELECT * FROM regress.story(:'id');
SELECT outbox.fail('b', :'id', 2, 'broken', 'never');
SELECT outbox.requeue(:'id', 'b', reason => 'it was mended');
SELECT outbox.cancel(:'id', 'b', 'not after all', 'acme');
SELECT * FROM regress.story(:'id');
SELECT * FROM regress.story(:'id', 'acme') EXCEPT SELECT * FROM regress.story(:'id');
-- In order, and for programs.
SELECT bool_and(m.at >= p.at) AS in_order
FROM (SELECT at, lag(at) OVER () AS before FROM outbox.message(:'id')) m CROSS JOIN LATERAL (SELECT coalesce(m.before, m.at) AS at) p;
SELECT event, data - '{sent_at,action_id,login,role,handler_id}'::text[] AS data FROM outbox.message(:'id');
SELECT count(*) FROM outbox.message(:'id') m WHERE m::text LIKE '%never shown%';

-- Calls in bulk: those that met it, and none of those that passed it by.
SELECT outbox.requeue_where(handler => 'b', include_cancelled => true, reason => 'all of b') AS requeued;
SELECT event, handler, detail FROM regress.story(:'id') WHERE event LIKE '%\_%';
SELECT outbox.stage('story.other', tenant => 'globex') IS NOT NULL AS staged;
SELECT outbox.cancel_where(tenant => 'globex', reason => 'another one''s') AS cancelled;
SELECT outbox.cancel_where(handler => 'a', since => '-infinity', until => now() - interval '1 day') AS cancelled;
SELECT outbox.cancel_where(topic => 'story.told', reason => 'the whole topic') AS cancelled;
SELECT event, handler, detail FROM regress.story(:'id') WHERE event LIKE '%\_%' OR event = 'cancelled';
-- By what the log says of the attempts around them.
SELECT outbox.stage('story.logged') AS id \gset
SELECT outbox.fail('b', c.id, c.attempt, 'broken') FROM outbox.claim('b') c;
SELECT outbox.requeue_where(code => 'broken', handler => 'b', reason => 'first') AS requeued;
SELECT outbox.requeue_where(code => 'broken', handler => 'a') AS requeued;
SELECT outbox.fail('b', c.id, c.attempt, 'otherwise') FROM outbox.claim('b') c;
SELECT event, handler, detail FROM regress.story(:'id') WHERE event LIKE '%\_%';
SELECT outbox.stage('story.another', key => 'x') IS NOT NULL AS staged;
SELECT outbox.fail('b', c.id, c.attempt, 'otherwise') FROM outbox.claim('b') c;
SELECT outbox.requeue_where(code => 'otherwise', until => now() - interval '1 day') AS requeued;
SELECT outbox.requeue_where(code => 'otherwise', topic => 'story.another', reason => 'not this one') AS requeued;
SELECT outbox.cancel_where(topic => 'story.another', reason => 'nor this one') AS cancelled;
SELECT outbox.replay('b', '-infinity') AS replayed;
SELECT event, handler, detail FROM regress.story(:'id') WHERE event LIKE '%\_%';
CALL outbox.requeue_all(handler => 'b', code => 'otherwise', reason => 'in batches');
SELECT event, handler, detail FROM regress.story(:'id') WHERE event LIKE '%\_%';
-- Those of its handlers, while it was outstanding.
SELECT outbox.pause_handler('b', 'for a while'), outbox.pause_handler('a', 'this one, too'), outbox.resume_handler('b');
SELECT outbox.complete('a', c.id, c.attempt) FROM outbox.claim('a', max_messages => 10) c;
SELECT outbox.resume_handler('a');
SELECT outbox.complete('a', c.id, c.attempt) FROM outbox.claim('a', max_messages => 10) c;
SELECT outbox.pause_handler('a'), outbox.resume_handler('a');
SELECT outbox.drop_handler('b', 'not needed');
SELECT event, handler, detail FROM regress.story(:'id') WHERE event LIKE '%\_handler' OR event = 'cancelled';
SELECT outbox.drop_handler('a');

-- What replaces it, and what it replaced.
SELECT outbox.create_handler('c', '{story.*}') IS NOT NULL AS created;
SELECT outbox.stage('story.replaced', replace_key => 'r', delay => '1 h') AS first \gset
SELECT outbox.stage('story.replaced', replace_key => 'r', delay => '1 h') AS second \gset
SELECT outbox.stage('story.replaced', replace_key => 'r', delay => '1 h') AS third \gset
SELECT * FROM regress.story(:'second');
SELECT m.data ->> 'replaced_by' = :'second' AS by_the_second FROM outbox.message(:'first') m WHERE m.event = 'cancelled';
SELECT m.data ->> 'message_id' = :'first' AS the_first FROM outbox.message(:'second') m WHERE m.event = 'replaces';
SELECT * FROM regress.story(:'third');
SELECT outbox.reschedule(:'third', now() + interval '2 h', reason => 'later');
SELECT event, detail FROM regress.story(:'third') WHERE event IN ('reschedule', 'pending');

-- A schedule's, one that nobody took, one that a younger handler got, and other payloads.
SELECT outbox.create_schedule('nightly: one', every => '1 day', topic => 'story.scheduled') IS NOT NULL AS created;
SELECT outbox.run_now('nightly: one') AS id \gset
SELECT event, detail FROM regress.story(:'id') WHERE event IN ('occurrence', 'staged');
SELECT outbox.drop_schedule('nightly: one');
SELECT outbox.stage('nobody.takes') AS id \gset
SELECT * FROM regress.story(:'id');
SELECT outbox.create_handler('younger', '{nobody.*}', 'https://example.com/hook?token=hidden') IS NOT NULL AS created;
SELECT outbox.replay('younger', '-infinity', backfill => true);
SELECT event, handler, detail FROM regress.story(:'id') WHERE event IN ('routed', 'unrouted', 'replay');
SELECT count(*) FROM outbox.message(:'id') m WHERE m::text LIKE '%hidden%';
SET outbox.unrouted = dead;
SELECT outbox.stage_text('nowhere', 'ä', 'text/plain') AS id \gset
RESET outbox.unrouted;
SELECT * FROM regress.story(:'id');
SELECT event, detail FROM regress.story((SELECT outbox.stage_bytes('story.bytes', '\x0001ff', expires_at => now() + interval '1 h'))) WHERE event IN ('staged', 'pending');

-- What is left of one that is gone; what was never there, or is somebody else's.
SELECT outbox.stage('story.pruned', tenant => 'acme') AS id \gset
SELECT outbox.cancel(:'id', tenant => 'acme', reason => 'gone soon');
SELECT regress.error_of(format('SELECT * FROM outbox.message(%L, %L)', :'id', 'globex'));
SET outbox.dead_retention = 0;
SELECT outbox.prune() IS NOT NULL AS pruned;
RESET outbox.dead_retention;
SELECT * FROM regress.story(:'id');
SELECT count(*) FROM outbox.message(:'id', 'acme');
SELECT regress.error_of(format('SELECT * FROM outbox.message(%L, %L)', :'id', 'globex'));
SELECT outbox.stage('story.erased', tenant => 'acme') AS id \gset
SELECT outbox.cancel(:'id');
SELECT messages FROM outbox.erase_message(:'id');
SELECT regress.error_of(format('SELECT * FROM outbox.message(%L)', :'id'));
SELECT regress.error_of(c) FROM unnest('{SELECT * FROM outbox.message(NULL),SELECT * FROM outbox.message(''ffffffff-ffff-ffff-ffff-ffffffffffff'')}'::text[]) c;
-- Rows that lack their message, and a handler's.
SELECT outbox.stage('story.odd') AS id \gset
DELETE FROM outbox.message WHERE id = :'id';
SELECT * FROM regress.story(:'id');
DELETE FROM outbox.handler WHERE name = 'c';
SELECT * FROM regress.story(:'id');
TRUNCATE outbox.action;
CALL regress.start_anew();
