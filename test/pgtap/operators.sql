-- Rules of the operators' functions, and who may call them.
BEGIN;
SELECT * FROM no_plan();

SET LOCAL client_min_messages = warning;
TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt;
DELETE FROM outbox.handler WHERE id <> 0;
INSERT INTO outbox.handler (name, topics) VALUES ('one', '{tap.*}'), ('two', '{tap.*}');

-- Every state: which function changes which, and to what.
CREATE TEMP TABLE rule (state int, verb text, after text, answer int);
INSERT INTO rule VALUES
	(0, 'requeue', 'pending', 0), (1, 'requeue', 'retrying', 0), (2, 'requeue', 'leased', 0),
	(3, 'requeue', 'delivered', 0), (4, 'requeue', 'pending', 1), (5, 'requeue', 'pending', 1),
	(0, 'cancel', 'cancelled', 1), (1, 'cancel', 'cancelled', 1), (2, 'cancel', 'cancelled', 1),
	(3, 'cancel', 'delivered', 0), (4, 'cancel', 'dead', 0), (5, 'cancel', 'cancelled', 0),
	(0, 'retry_now', 'pending', 1), (1, 'retry_now', 'retrying', 1), (2, 'retry_now', 'leased', 0),
	(3, 'retry_now', 'delivered', 0), (4, 'retry_now', 'dead', 0), (5, 'retry_now', 'cancelled', 0);

CREATE FUNCTION pg_temp.in_state(state int) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
	result uuid := outbox.stage('tap.rule');
BEGIN
	-- "one" is put in that state, "two" has its receipt.
	UPDATE outbox.delivery d
	SET state = CASE WHEN h.name = 'one' THEN in_state.state ELSE 3 END, attempts = 5, streak = 2, code = 'x', error = 'y', http_status = 500,
		due_at = CASE WHEN in_state.state IN (1, 2) THEN clock_timestamp() + interval '1 hour' ELSE d.due_at END
	FROM outbox.handler h WHERE d.message_id = result AND h.id = d.handler_id;
	WITH gone AS (DELETE FROM outbox.delivery d WHERE d.state > 2 RETURNING *)
	INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state, http_status, code, error)
	SELECT message_id, clock_timestamp(), handler_id, attempts, budget_from, gone.state, http_status, code, error FROM gone;
	RETURN result;
END $$;

CREATE FUNCTION pg_temp.rules() RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	r rule;
	message uuid;
	answer int;
	d record;
	was text;
BEGIN
	FOR r IN SELECT * FROM rule ORDER BY verb, state LOOP
		message := pg_temp.in_state(r.state);
		was := ('{pending,retrying,leased,delivered,dead,cancelled}'::text[])[r.state + 1];
		EXECUTE format('SELECT outbox.%I($1)', r.verb) INTO answer USING message;
		RETURN NEXT is(answer, r.answer, format('%s of a %s delivery answers %s', r.verb, was, r.answer));
		SELECT * INTO d FROM outbox.deliveries v WHERE v.message_id = message AND v.handler = 'one';
		RETURN NEXT is(d.state, r.after, format('%s leaves a %s delivery %s', r.verb, was, r.after));
		RETURN NEXT is(d.attempts, 5, 'attempts never decrease');
		IF r.answer = 1 THEN
			RETURN NEXT is(d.settled_at IS NOT NULL, d.state IN ('delivered', 'dead', 'cancelled'), 'settled_at says whether it is settled');
			RETURN NEXT ok(r.verb = 'cancel' OR d.due_at <= clock_timestamp(), 'due now');
			RETURN NEXT is(d.attempts_of_budget, CASE WHEN r.verb = 'requeue' THEN 0 ELSE 5 END, 'the budget is fresh after a requeue only');
		END IF;
		SELECT * INTO d FROM outbox.deliveries v WHERE v.message_id = message AND v.handler = 'two';
		RETURN NEXT ok(d.state = 'delivered' AND d.settled_at IS NOT NULL, 'the other handler''s receipt stays');
	END LOOP;
END $$;
SELECT pg_temp.rules();

SELECT is(v.state, ('{pending,retrying,leased,delivered,dead,cancelled}'::text[])[d.state + 1], 'the views name state ' || d.state || ' like everybody else')
FROM (SELECT message_id, handler_id, state FROM outbox.delivery UNION ALL SELECT message_id, handler_id, state FROM outbox.receipt) d JOIN outbox.deliveries v USING (message_id, handler_id);

-- A lease is fenced off by a cancel.
SELECT is((SELECT state FROM outbox.delivery WHERE state = 2 AND outbox.cancel(message_id) = 1 LIMIT 1), 2::smallint, 'a leased delivery is there to be cancelled');

-- The tenant scope.
INSERT INTO outbox.message (id, staged_at, topic, tenant, payload) VALUES ('00000000-0000-7000-8000-000000000001', now(), 'tap.x', 'acme', '1');
SELECT throws_ok($$SELECT outbox.cancel('00000000-0000-7000-8000-000000000001', tenant => 'bolt')$$, 'P0002', NULL, 'cancel for another tenant finds nothing');
SELECT throws_ok($$SELECT outbox.requeue('00000000-0000-7000-8000-000000000001', tenant => 'bolt')$$, 'P0002', NULL, 'so does requeue');
SELECT throws_ok($$SELECT outbox.retry_now('00000000-0000-7000-8000-000000000001', tenant => 'bolt')$$, 'P0002', NULL, 'so does retry_now');
SELECT lives_ok($$SELECT outbox.cancel('00000000-0000-7000-8000-000000000001', tenant => 'acme')$$, 'its own tenant finds it');

-- An operator needs EXECUTE and nothing else; the tables stay closed.
CREATE ROLE outbox_tap_operator;
CREATE ROLE outbox_tap_nobody;
GRANT EXECUTE ON FUNCTION outbox.requeue, outbox.requeue_where, outbox.cancel, outbox.cancel_where, outbox.retry_now, outbox.replay,
	outbox.erase_tenant, outbox.prune, outbox.verify, outbox.health TO outbox_tap_operator;
GRANT SELECT ON outbox.deliveries, outbox.dead_letters, outbox.backlog, outbox.attempts, outbox.handler_stats TO outbox_tap_operator;
GRANT EXECUTE ON FUNCTION outbox_internal.backlog(int, int) TO outbox_tap_operator;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pg_temp TO PUBLIC;
CREATE TABLE public.dead_one AS SELECT pg_temp.in_state(4) AS id;
GRANT SELECT ON public.dead_one TO outbox_tap_operator, outbox_tap_nobody;

-- Names that a hostile caller puts in the way change nothing.
CREATE SCHEMA trap;
CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
CREATE FUNCTION trap.eq(uuid, uuid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
CREATE OPERATOR trap.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = trap.eq);
GRANT USAGE ON SCHEMA trap TO outbox_tap_operator;

SET LOCAL ROLE outbox_tap_operator;
SET LOCAL search_path = trap, pg_catalog, public;
CREATE TEMP TABLE delivery (state int);
SELECT is(outbox.requeue((SELECT id FROM public.dead_one)), 1::bigint, 'an operator requeues');
SELECT is(outbox.cancel((SELECT id FROM public.dead_one)), 1::bigint, 'an operator cancels');
SELECT lives_ok($$SELECT outbox.requeue_where(handler => 'one')$$, 'an operator requeues in bulk');
SELECT lives_ok($$SELECT outbox.cancel_where(handler => 'one')$$, 'an operator cancels in bulk');
SELECT lives_ok($$SELECT outbox.retry_now((SELECT id FROM public.dead_one))$$, 'an operator hurries');
SELECT lives_ok($$SELECT outbox.replay('two', '-infinity')$$, 'an operator replays');
SELECT lives_ok($$SELECT outbox.prune()$$, 'an operator prunes');
SELECT lives_ok($$SELECT outbox.erase_tenant('acme')$$, 'an operator erases');
SELECT lives_ok($$SELECT * FROM outbox.verify()$$, 'an operator verifies');
SELECT lives_ok($$SELECT * FROM outbox.health()$$, 'an operator looks at the health');
SELECT lives_ok(format('SELECT * FROM outbox.%I', v), 'an operator reads outbox.' || v)
FROM unnest(ARRAY['deliveries', 'dead_letters', 'backlog', 'attempts', 'handler_stats']) AS v;
SELECT throws_ok($$SELECT outbox.adopt()$$, '42501', NULL, 'an operator does not adopt');
SELECT throws_ok($$SELECT outbox_internal.revive(NULL, NULL, NULL, false)$$, '42501', NULL, 'what is internal stays so');
SELECT throws_ok(format('SELECT * FROM outbox.%I', t), '42501', NULL, 'an operator does not read outbox.' || t)
FROM unnest(ARRAY['message', 'delivery', 'handler', 'handler_status', 'handler_secret', 'attempt', 'installation']) AS t;
RESET ROLE;
RESET search_path;

SET LOCAL ROLE outbox_tap_nobody;
SELECT throws_ok(format('SELECT * FROM outbox.%s', f), '42501', NULL, 'without a grant nobody calls ' || f)
FROM unnest(ARRAY['requeue(NULL)', 'requeue_where()', 'cancel(NULL)', 'cancel_where()', 'retry_now(NULL)', $$replay('one', now())$$,
	$$erase_tenant('x')$$, 'prune()', 'verify()', 'health()', 'adopt()']) AS f;
SELECT throws_ok(format('SELECT outbox_internal.%s', f), '42501', NULL, 'what is internal nobody calls: ' || f)
FROM unnest(ARRAY['id_floor(now())', $$ring(0, 0, now(), '00000000-0000-7000-8000-000000000001')$$]) AS f;
SELECT throws_ok(format('SELECT * FROM outbox.%I', v), '42501', NULL, 'without a grant nobody reads outbox.' || v)
FROM unnest(ARRAY['deliveries', 'dead_letters', 'backlog', 'attempts', 'handler_stats', 'dispatchers']) AS v;
RESET ROLE;

-- The server looks each minute for what is over: by an index, of which it reads no
-- more than that, and without a write to what stays.
INSERT INTO outbox.inbox (source, message_id, expires_at) SELECT 'tap', n::text, now() + interval '1 day' FROM generate_series(1, 300) n;
INSERT INTO outbox.dedupe_key (tenant, dedupe_key, staged_at, message_id, topic, expires_at)
SELECT '', n::text, now(), '00000000-0000-7000-8000-000000000001', 'tap.kept', now() + interval '1 day' FROM generate_series(1, 300) n;
SELECT count(*) AS staged FROM outbox.stage_many('tap.kept', ARRAY(SELECT '{}'::jsonb FROM generate_series(1, 300))) \gset
INSERT INTO outbox.action (action, role, arguments, affected) VALUES ('tap', 'tap', '{}', 1);
CREATE TEMP TABLE entries_read AS
SELECT i, pg_stat_get_xact_tuples_returned(i::regclass) AS n
FROM unnest(ARRAY['outbox.inbox_expires', 'outbox.dedupe_key_expires', 'outbox.message_pkey']) i;
SELECT lives_ok('SELECT outbox.prune(1)', 'prune() when there is nothing to remove');
SELECT cmp_ok(pg_stat_get_xact_tuples_returned(e.i::regclass) - e.n, '<', 100::bigint, 'it does not read all of ' || e.i) FROM entries_read e;
SELECT is(count(*), 0::bigint, 'and locks no action') FROM outbox.action WHERE action = 'tap' AND xmax <> 0::text::xid;
-- What is over goes.
UPDATE outbox.inbox SET expires_at = now() - interval '1 day' WHERE message_id::int <= 10;
UPDATE outbox.dedupe_key SET expires_at = now() - interval '1 day' WHERE topic = 'tap.kept' AND dedupe_key::int <= 10;
UPDATE outbox.action SET acted_at = '2000-01-01' WHERE action = 'tap';
SELECT results_eq($$SELECT outbox_internal.prune_expired('inbox', 7), outbox_internal.prune_expired('dedupe_key', 7), outbox_internal.prune_actions(100000)$$, 'VALUES (7::bigint, 7::bigint, 1::bigint)', 'what is over goes, so much of it');
SELECT results_eq($$SELECT outbox_internal.prune_expired('inbox', 7), outbox_internal.prune_expired('dedupe_key', 7), outbox_internal.prune_actions(100000)$$, 'VALUES (3::bigint, 3::bigint, 0::bigint)', 'and nothing else');

-- Nor does outbox.handlers read what is scheduled for later to know whether something is due.
CREATE FUNCTION pg_temp.plan_of(query text) RETURNS SETOF text LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
	RETURN QUERY EXECUTE 'EXPLAIN (COSTS OFF) ' || query;
END $$;
SELECT ok(bool_or(line ~ 'Index Cond: .*due_at <='), 'what is due is found by its index')
FROM pg_temp.plan_of('SELECT waiting_for FROM outbox.handlers') line;

-- Monitoring reads figures, and no content.
CREATE ROLE outbox_tap_monitor;
GRANT pg_monitor TO outbox_tap_monitor;
SET LOCAL ROLE outbox_tap_monitor;
SELECT lives_ok('SELECT * FROM outbox.' || v, 'a monitor reads outbox.' || v) FROM unnest(ARRAY['backlog', 'handler_stats', 'dispatchers', 'health()']) AS v;
SELECT throws_ok('SELECT * FROM outbox.' || v, '42501', NULL, 'a monitor does not read outbox.' || v)
FROM unnest(ARRAY['deliveries', 'dead_letters', 'attempts', 'message', 'verify()', 'prune()']) AS v;
RESET ROLE;

SELECT * FROM finish();
ROLLBACK;
