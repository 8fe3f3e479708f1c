-- What operators do is written down, once for each call that changed something.
CALL regress.start_anew();
CREATE VIEW pg_temp.done AS
SELECT a.action, a.login = session_user AS own, nullif(a.role, session_user) AS role, a.message_id IS NOT NULL AS message,
	a.arguments - 'scheduled_at' AS arguments, a.affected, a.reason
FROM outbox.actions a ORDER BY a.action_id;
TRUNCATE outbox.action;
CREATE ROLE regress_operator;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA outbox TO regress_operator;
GRANT SELECT ON ALL TABLES IN SCHEMA pg_temp TO regress_operator;

-- Handlers and schedules: no secret, no header, nothing of a URL that may be one.
SELECT outbox.create_handler('push', '{act.*}', 'https://example.com/hook?token=x', secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
	authorization => 'Bearer hidden', headers => '{"x-token": "hidden"}', timeout => '5 s') IS NOT NULL AS created;
SELECT outbox.alter_handler('push', timeout => '6 s', reset => '{headers}');
SELECT outbox.ensure_handler('pull', '{act.*}');
SELECT outbox.ensure_handler('pull', '{act.*}');
SELECT outbox.rotate_secret('push', reason => 'it is old') IS NOT NULL AS rotated;
SET ROLE regress_operator;
SELECT outbox.pause_handler('push', 'maintenance'), outbox.resume_handler('push', 'over');
RESET ROLE;
SELECT outbox.create_schedule('s', every => '1 day', topic => 'act.s', payload => '{"hidden": 1}') IS NOT NULL AS created;
SELECT outbox.pause_schedule('s', 'why'), outbox.resume_schedule('s', 'because'), outbox.run_now('s') IS NOT NULL AS ran, outbox.drop_schedule('s', 'done');
SELECT outbox.grant_monitor('regress_operator'), outbox.revoke_monitor('regress_operator');
SELECT outbox.ensure_tenant_retention('acme', '1 day'), outbox.drop_tenant_retention('acme'), outbox.drop_tenant_retention('acme');
SELECT * FROM pg_temp.done;
SELECT count(*) FROM outbox.actions a WHERE a::text ~ 'hidden|whsec|token|word';

-- Whatever is configured can be given a reason, which is not one of its options.
TRUNCATE outbox.action;
SELECT outbox.create_handler('why', '{act.*}', reason => 'create') IS NOT NULL AS created;
SELECT outbox.alter_handler('why', max_attempts => 2, reason => 'alter'), outbox.ensure_handler('why', '{act.*}', reason => 'ensure'),
	outbox.ensure_handler('why', '{act.*}', reason => 'nothing to do'), outbox.ensure_handler('why', '{act.*}', options => '{"max_attempts": 3, "reason": "in options"}');
SELECT outbox.create_schedule('why', every => '1 day', topic => 'act.s', reason => 'create') IS NOT NULL AS created;
SELECT outbox.alter_schedule('why', every => '2 days', reason => 'alter'), outbox.ensure_schedule('why', every => '1 day', topic => 'act.s', reason => 'ensure'), outbox.drop_schedule('why', 'drop');
SELECT outbox.create_topic('act.why', reason => 'create'), outbox.alter_topic('act.why', description => 'd', reason => 'alter'),
	outbox.ensure_topic('act.why', reason => 'ensure'), outbox.drop_topic('act.why', 'drop');
SELECT outbox.ensure_tenant_retention('acme', '1 day', reason => 'ensure'), outbox.drop_tenant_retention('acme', 'drop');
SELECT outbox.grant_consumer('why', 'regress_operator', 'grant'), outbox.revoke_consumer('why', 'regress_operator', 'revoke'), outbox.drop_handler('why', 'drop');
SELECT outbox.grant_producer('regress_operator', 'grant'), outbox.revoke_producer('regress_operator', 'revoke'), outbox.grant_operator('regress_operator', 'grant'),
	outbox.revoke_operator('regress_operator', 'revoke'), outbox.grant_monitor('regress_operator', 'grant'), outbox.revoke_monitor('regress_operator', 'revoke');
SELECT action, arguments, reason FROM pg_temp.done;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA outbox TO regress_operator;

-- Deliveries: with a reason, not for dry runs, not for what changed nothing.
TRUNCATE outbox.action;
CREATE TEMP TABLE named AS SELECT n, outbox.stage('act.x', '{}', tenant => CASE WHEN n <= 2 THEN 'acme' END, key => 'private') AS id FROM generate_series(1, 6) n;
SELECT outbox.cancel(id, 'pull', 'not wanted') FROM named WHERE n = 1;
SELECT outbox.cancel(id, 'pull', 'not wanted') FROM named WHERE n = 1;
SELECT outbox.retry_now(id, 'push', reason => 'hurry') FROM named WHERE n = 1;
SELECT outbox.reschedule(id, now() + interval '1 h', 'push', reason => 'later') FROM named WHERE n = 2;
SELECT outbox.requeue(id, reason => 'after all') FROM named WHERE n = 1;
SELECT outbox.cancel_where(handler => 'pull', dry_run => true), outbox.cancel_where(handler => 'pull', tenant => 'nobody');
SELECT outbox.cancel_where(handler => 'pull', reason => 'none of them');
SELECT outbox.requeue_where(handler => 'pull', include_cancelled => true, reason => 'all of them', dry_run => true),
	outbox.requeue_where(tenant => 'acme', include_cancelled => true, reason => 'all of theirs');
SELECT action, message, arguments - 'deliver_at' AS arguments, affected, reason FROM pg_temp.done;

-- Spread: due one after the other.
SELECT outbox.cancel_where(handler => 'pull') AS cancelled, outbox.requeue_where(handler => 'pull', include_cancelled => true, spread => '1 h') AS requeued;
SELECT date_trunc('second', due_at - min(due_at) OVER () + interval '0.5 s') AS after FROM outbox.deliveries WHERE handler = 'pull' ORDER BY 1;
SELECT min(due_at) > now() - interval '1 min' AS begins_now FROM outbox.deliveries WHERE handler = 'pull';
SELECT regress.error_of(c) FROM unnest(ARRAY['SELECT outbox.requeue_where(handler => ''pull'', spread => ''-1 s'')', 'SELECT outbox.requeue_where(handler => ''pull'', spread => ''31 days'')',
	'SELECT outbox.replay(''pull'', ''-infinity'', spread => ''-1 s'')']) c;

-- All of them, in batches; refused where it could not commit.
SELECT outbox.cancel_where(handler => 'pull') AS cancelled;
CALL outbox.requeue_all(handler => 'pull', include_cancelled => true, spread => '1 h', reason => 'the whole lot');
CALL outbox.requeue_all(handler => 'pull', include_cancelled => true);
SELECT date_trunc('second', due_at - min(due_at) OVER () + interval '0.5 s') AS after FROM outbox.deliveries WHERE handler = 'pull' ORDER BY 1;
SELECT action, arguments, affected, reason FROM pg_temp.done WHERE action = 'requeue_all';
BEGIN;
CALL outbox.requeue_all(handler => 'pull');
ROLLBACK;
SELECT regress.error_of('CALL outbox.requeue_all(handler => ''pull'')');
\set VERBOSITY terse
CALL outbox.requeue_all();
CALL outbox.requeue_all(handler => 'nobody');
\set VERBOSITY default

-- What was erased is not kept, nor what it was.
SELECT messages FROM outbox.erase_message((SELECT id FROM named WHERE n = 1), reason => 'asked for');
SELECT messages FROM outbox.erase_tenant('acme', reason => 'left us');
SELECT messages FROM outbox.erase_key('private', reason => 'a request');
SELECT action, message, arguments - 'deliver_at' AS arguments, affected, reason FROM pg_temp.done;
SELECT count(*) FROM outbox.actions a WHERE a::text ~ 'acme|private';

-- Old ones go.
UPDATE outbox.action SET acted_at = now() - interval '400 days' WHERE action LIKE 'erase%';
SELECT outbox.prune() IS NOT NULL AS pruned;
SELECT count(*) FROM outbox.actions WHERE action LIKE 'erase%';
SET outbox.action_retention = 0;
SELECT outbox.prune() IS NOT NULL AS pruned;
SELECT count(*) FROM outbox.actions;
RESET outbox.action_retention;

-- Operators read it, and that is all.
SELECT outbox.grant_operator('regress_operator');
SET ROLE regress_operator;
SELECT action, affected FROM outbox.actions;
DELETE FROM outbox.actions;
UPDATE outbox.actions SET reason = 'x';
INSERT INTO outbox.actions (action) VALUES ('x');
DELETE FROM outbox.action;
RESET ROLE;
SELECT outbox.drop_handler('push', 'not needed'), outbox.drop_handler('pull');
SELECT action, role, reason FROM pg_temp.done;
DROP OWNED BY regress_operator;
DROP ROLE regress_operator;
CALL regress.empty();
