-- Schedules without a worker: what they may be, and what comes of them by hand.
SET timezone = 'UTC';
SET datestyle = 'ISO';
SET client_min_messages = warning;
CALL regress.start_anew();

-- As if it were then: the next occurrence, and the creation that intervals are counted from.
CREATE PROCEDURE regress.set_back(called text, next timestamptz) LANGUAGE sql AS $$
	UPDATE outbox.schedule_status SET next_run_at = next, wake_at = next WHERE schedule_id = (SELECT id FROM outbox.schedule WHERE name = called);
	UPDATE outbox.schedule SET created_at = next WHERE name = called
$$;
-- The times that were staged, in minutes before this one.
CREATE FUNCTION regress.staged(called text) RETURNS text LANGUAGE sql AS $$
	SELECT count(*) || ' message(s): ' || coalesce(string_agg((extract(epoch FROM date_trunc('minute', clock_timestamp()) - regexp_replace(m.dedupe_key, '^schedule:[^:]*:', '')::timestamptz) / 60)::int::text, ' ' ORDER BY m.dedupe_key), '')
	FROM outbox.message m WHERE m.dedupe_key LIKE 'schedule:' || called || ':%'
$$;
-- Not within the last seconds of a minute, where the next one would be met.
CREATE PROCEDURE regress.early_in_minute() LANGUAGE plpgsql AS $$
BEGIN
	WHILE extract(second FROM clock_timestamp()) > 40 LOOP PERFORM pg_sleep(0.1); END LOOP;
END $$;

-- What it is.
SELECT outbox.create_schedule('report', '30 9 * * MON-FRI', topic => 'report.due', payload => '{"day": "{{scheduled_at}}", "{{scheduled_at}}": ["at {{scheduled_at}}", 1, null]}',
	timezone => 'Europe/Berlin', tenant => 'acme', key => 'k', headers => '{"x-a": "b"}', correlation_id => 'c', starts_at => '2030-01-01', ends_at => '2031-01-01') > 0 AS created;
SELECT name, state, next_run_at, failed_attempts, runs, missed, cron, every, topic, timezone, tenant, key, headers, catch_up, starts_at, ends_at, function, correlation_id, grace, timeout FROM outbox.schedules \gx
SELECT outbox.alter_schedule('report', reset => '{cron,starts_at,ends_at,tenant}', every => '90 s', catch_up => 'last');
SELECT next_run_at - now() < '91 s' AS soon, cron, every, tenant, catch_up, starts_at FROM outbox.schedules;
SELECT outbox.alter_schedule('report', new_name => 'renamed', payload => 'null');
SELECT name, payload, key FROM outbox.schedules;
SELECT outbox.ensure_schedule('renamed', every => '90 s', topic => 'report.due', catch_up => 'last') AS changed;
SELECT outbox.ensure_schedule('renamed', every => '90 s', topic => 'report.due', catch_up => 'last') AS changed;
SELECT outbox.ensure_schedule('other', every => '1 h', topic => 'other.due') AS changed;
SELECT outbox.pause_schedule('other', 'for now');
SELECT name, state, next_attempt_at, paused_reason, paused_by = session_user AS by_me FROM outbox.schedules WHERE name = 'other';
SELECT outbox.ensure_schedule('other', every => '2 h', topic => 'other.due') AS changed;
SELECT state, every FROM outbox.schedules WHERE name = 'other';
SELECT outbox.resume_schedule('other');
SELECT state, next_attempt_at = next_run_at AS goes_on FROM outbox.schedules WHERE name = 'other';
-- The call that creates one again.
SELECT outbox.create_schedule('it''s', '0 9 * * MON-FRI', topic => 'a.b', payload => '{"at": "{{scheduled_at}}"}', timezone => 'Europe/Berlin', starts_at => '2030-01-01', grace => '90 s', headers => '{"x": "\\"}') > 0 AS created;
SELECT outbox.schedule_definition(name) FROM outbox.schedules ORDER BY name;
SELECT regress.error_of(format('SELECT outbox.schedule_definition(%L)', s)) FROM unnest('{none,NULL}'::text[]) s;
SELECT name, to_jsonb(s) - '{id,created_at}'::text[] AS s, outbox.schedule_definition(name) AS definition INTO regress.before FROM outbox.schedule s;
SELECT outbox.drop_schedule(name) FROM regress.before;
DO $$ DECLARE d text; BEGIN FOR d IN SELECT definition FROM regress.before LOOP EXECUTE d; END LOOP; END $$;
SELECT b.name, b.s = to_jsonb(s) - '{id,created_at}'::text[] AS same FROM regress.before b LEFT JOIN outbox.schedule s ON s.name = b.name ORDER BY b.name;
DROP TABLE regress.before;
SELECT outbox.drop_schedule(name) FROM outbox.schedules;
SELECT count(*) FROM outbox.schedules;

-- Once for each time: skip.
CALL regress.early_in_minute();
SELECT outbox.create_schedule('skip', '* * * * *', topic => 'a.b', payload => '{"at": ["{{scheduled_at}}"]}', key => 'k') > 0 AS created;
CALL outbox.run_schedules();
SELECT regress.staged('skip');
CALL regress.set_back('skip', date_trunc('minute', now()));
CALL outbox.run_schedules();
CALL regress.set_back('skip', date_trunc('minute', now()));
CALL outbox.run_schedules();
SELECT regress.staged('skip'), runs, missed, last_run_at > last_scheduled_at AS late, next_run_at - last_scheduled_at AS then FROM outbox.schedules;
SELECT m.topic, m.key, m.payload -> 'at' ->> 0 = to_char(s.last_scheduled_at, 'YYYY-MM-DD"T"HH24:MI:00"Z"') AS time_in_payload, m.id = s.last_message_id AS known FROM outbox.message m, outbox.schedules s;
CALL regress.early_in_minute();
CALL regress.set_back('skip', date_trunc('minute', now()) - interval '20 minutes');
CALL outbox.run_schedules();
SELECT regress.staged('skip'), missed FROM outbox.schedules;
-- With a shorter grace none of those.
SELECT outbox.alter_schedule('skip', every => '10 min', reset => '{cron}');
CALL regress.set_back('skip', date_trunc('minute', now()) - interval '25 minutes');
CALL outbox.run_schedules();
SELECT regress.staged('skip'), missed, next_run_at > now() AS to_come FROM outbox.schedules;
SELECT outbox.drop_schedule('skip');

-- Last, and all.
CALL regress.early_in_minute();
SELECT outbox.create_schedule(c, '*/5 * * * *', topic => 'a.b', catch_up => c) > 0 AS created FROM unnest('{last,all}'::text[]) c;
CALL regress.set_back('last', to_timestamp(floor(extract(epoch FROM now()) / 300) * 300 - 1800));
CALL regress.set_back('all', to_timestamp(floor(extract(epoch FROM now()) / 300) * 300 - 1800));
CALL outbox.run_schedules();
SELECT name, count(m.id), runs, missed, next_run_at > now() AS to_come, last_scheduled_at > now() - interval '5 min' AS the_last FROM outbox.schedules s LEFT JOIN outbox.message m ON m.dedupe_key LIKE 'schedule:' || s.name || ':%' GROUP BY 1, 3, 4, 5, 6 ORDER BY 1;
-- Bounded.
CALL regress.empty();
SELECT outbox.alter_schedule('all', cron => '* * * * * *');
CALL regress.set_back('all', date_trunc('second', now()) - interval '3 hours');
CALL outbox.run_schedules();
SELECT count(*) BETWEEN 1000 AND 1100 AS as_many, missed BETWEEN 9780 AND 9900 AS others FROM outbox.message m, outbox.schedules s WHERE s.name = 'all' GROUP BY missed;
SELECT outbox.drop_schedule('all'), outbox.drop_schedule('last');

-- Until it ends.
SELECT outbox.create_schedule('ends', '* * * * *', topic => 'a.b', ends_at => now() + interval '10 minutes', catch_up => 'all') > 0 AS created;
UPDATE outbox.schedule SET ends_at = date_trunc('minute', now()) - interval '2 minutes';
CALL regress.set_back('ends', date_trunc('minute', now()) - interval '4 minutes');
CALL outbox.run_schedules();
SELECT name, state, next_run_at, next_attempt_at, runs, missed FROM outbox.schedules;
SELECT outbox.drop_schedule('ends');

-- A pause is not caught up by who skips, whatever the grace.
SELECT outbox.create_schedule(c, every => '1 s', topic => 'a.b', catch_up => c) > 0 AS created FROM unnest('{skip,last}'::text[]) c;
SELECT outbox.pause_schedule('skip'), outbox.pause_schedule('last');
UPDATE outbox.schedule_status SET next_run_at = next_run_at - interval '10 s';
UPDATE outbox.schedule SET created_at = created_at - interval '20 s';
CALL outbox.run_schedules();
SELECT clock_timestamp() AS before \gset
SELECT outbox.resume_schedule('skip'), outbox.resume_schedule('last');
SELECT name, missed >= 9 AS missed, next_run_at > CASE name WHEN 'skip' THEN :'before' ELSE now() END AS to_come FROM outbox.schedules ORDER BY 1;
SELECT outbox.drop_schedule('skip'), outbox.drop_schedule('last');

-- By hand.
CALL regress.empty();
SELECT outbox.create_schedule('hand', '0 0 1 1 *', topic => 'a.b', payload => '"{{scheduled_at}}"') > 0 AS created;
SELECT outbox.run_now('hand', '2020-01-01 00:00:00.7') = outbox.run_now('hand', '2020-01-01') AS once;
SELECT outbox.run_now('hand') IS NOT NULL AS now;
SELECT payload FROM outbox.message ORDER BY id LIMIT 1;
SELECT runs, next_run_at = date_trunc('year', now()) + interval '1 year' AS unmoved FROM outbox.schedules;
SELECT outbox.run_now('hand', next_run_at) IS NOT NULL AS ahead FROM outbox.schedules;
SELECT next_run_at = date_trunc('year', now()) + interval '2 years' AS moved_on FROM outbox.schedules;

-- What fails waits alone, and is told.
SELECT outbox.create_schedule('good', '0 0 1 1 *', topic => 'a.b') > 0 AS created;
UPDATE outbox.schedule SET topic = 'Not a topic' WHERE name = 'hand';
CALL regress.set_back('hand', date_trunc('minute', now()));
CALL regress.set_back('good', date_trunc('minute', now()));
UPDATE outbox.schedule SET grace = '1 year';
CALL outbox.run_schedules();
SELECT name, state, failed_attempts, last_error, next_attempt_at - last_error_at AS again, runs FROM outbox.schedules ORDER BY name;
SELECT regexp_replace(r, '\d{4}-.*\+00', '<time>') FROM outbox.health(), unnest(reasons) r WHERE r ~ 'schedule';
SELECT finding, severity, hint FROM outbox.verify() WHERE finding ~ 'schedule';
UPDATE outbox.schedule SET timezone = 'Mars/Base' WHERE name = 'hand';
SELECT finding, severity, hint FROM outbox.verify() WHERE finding ~ 'schedule';
UPDATE outbox.schedule_status SET wake_at = now() WHERE attempts > 0;
CALL outbox.run_schedules();
SELECT name, state, failed_attempts, last_error, next_attempt_at - last_error_at AS again FROM outbox.schedules WHERE name = 'hand';
SELECT outbox.alter_schedule('hand', topic => 'a.b', timezone => 'UTC');
SELECT outbox.drop_schedule(name) FROM outbox.schedules;

-- A function: as its owner, in the transaction of its occurrence.
CREATE ROLE regress_scheduler;
CREATE SCHEMA regress_app AUTHORIZATION regress_scheduler;
GRANT EXECUTE ON FUNCTION outbox.stage, outbox.create_schedule, outbox.alter_schedule TO regress_scheduler;
SET ROLE regress_scheduler;
CREATE TABLE regress_app.calls (o outbox.occurrence, who name DEFAULT current_user);
CREATE FUNCTION regress_app.fan_out(o outbox.occurrence) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO regress_app.calls (o) VALUES (o);
	PERFORM outbox.stage('shop.closed', jsonb_build_object('shop', n)) FROM generate_series(1, 3) n;
	IF o.payload ? 'fail' AND o.attempt < 2 THEN
		RAISE EXCEPTION 'not today' USING DETAIL = 'Tomorrow.';
	END IF;
	RETURN 1;
END $$;
SELECT outbox.create_schedule('fan', '0 0 1 1 *', function => 'regress_app.fan_out(outbox.occurrence)', payload => '{"at": "{{scheduled_at}}"}', key => 'k', tenant => 't', grace => '1 year') > 0 AS created;
RESET ROLE;
CALL regress.empty();
CALL regress.set_back('fan', date_trunc('year', now()));
CALL outbox.run_schedules();
SELECT (o).schedule, (o).attempt, (o).key, (o).tenant, (o).timezone, (o).previous_at, (o).scheduled_at = date_trunc('year', now()) AS of_this_year, (o).payload ->> 'at' = to_char(now(), 'YYYY-01-01"T"00:00:00"Z"') AS in_payload, who FROM regress_app.calls;
SELECT topic, count(*) FROM outbox.message GROUP BY 1;
SELECT runs, last_message_id, state FROM outbox.schedules;
-- It fails: nothing of it is there, and it is tried again.
SELECT outbox.alter_schedule('fan', payload => '{"fail": true}');
CALL regress.set_back('fan', date_trunc('year', now()));
CALL outbox.run_schedules();
SELECT failed_attempts, last_error, state, runs FROM outbox.schedules;
SELECT count(*) AS messages, (SELECT count(*) FROM regress_app.calls) AS calls FROM outbox.message;
UPDATE outbox.schedule_status SET wake_at = now();
CALL outbox.run_schedules();
SELECT failed_attempts, state, runs FROM outbox.schedules;
SELECT count(*) AS messages, (SELECT max((o).attempt) FROM regress_app.calls) AS attempt FROM outbox.message;
SELECT outbox.run_now('fan', '2020-01-01');
SELECT outbox.alter_schedule('fan', payload => '{}');
SELECT outbox.run_now('fan', '2020-01-01'), (SELECT count(*) FROM outbox.message) AS before;
SELECT count(*) AS messages FROM outbox.message;
-- Too slow.
SET ROLE regress_scheduler;
CREATE FUNCTION regress_app.slow(o outbox.occurrence) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(60)';
SELECT outbox.alter_schedule('fan', function => 'regress_app.slow(outbox.occurrence)', timeout => '20 ms');
RESET ROLE;
CALL regress.set_back('fan', date_trunc('year', now()));
CALL outbox.run_schedules();
SELECT failed_attempts, last_error FROM outbox.schedules;
-- Somebody does not wait for it: a session goes on after that.
SELECT outbox.alter_schedule('fan', timeout => '1 min');
SET statement_timeout = '50 ms';
SELECT outbox.run_now('fan', '2020-01-01');
RESET statement_timeout;
SELECT 'goes on' AS session;
-- It is gone.
DROP FUNCTION regress_app.slow;
UPDATE outbox.schedule_status SET wake_at = now();
CALL outbox.run_schedules();
SELECT failed_attempts, last_error FROM outbox.schedules;
SELECT finding, severity, hint FROM outbox.verify() WHERE finding ~ 'schedule';

-- Refused.
CREATE FUNCTION regress_app.super(o outbox.occurrence) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION regress_app.other(o outbox.settlement) RETURNS void LANGUAGE sql AS '';
ALTER FUNCTION regress_app.other OWNER TO regress_scheduler;
CREATE ROLE regress_other;
CREATE FUNCTION regress_app.others(o outbox.occurrence) RETURNS void LANGUAGE sql AS '';
ALTER FUNCTION regress_app.others OWNER TO regress_other;
SELECT wrong, regress.error_of('SELECT outbox.create_schedule(' || wrong || ')') AS error FROM (VALUES
	(1, $$'fan', '@daily', topic => 'a'$$),
	(2, $$'', '@daily', topic => 'a'$$),
	(3, $$NULL, '@daily', topic => 'a'$$),
	(4, $$repeat('x', 64), '@daily', topic => 'a'$$),
	(5, $$'x', '@daily'$$),
	(6, $$'x', '@daily', topic => 'a', function => 'regress_app.fan_out(outbox.occurrence)'$$),
	(7, $$'x', topic => 'a'$$),
	(8, $$'x', '@daily', '1 h', topic => 'a'$$),
	(9, $$'x', '61 * * * *', topic => 'a'$$),
	(10, $$'x', repeat('1,', 200) || '1 * * * *', topic => 'a'$$),
	(11, $$'x', every => '0.5 s', topic => 'a'$$),
	(12, $$'x', every => '1.5 s', topic => 'a'$$),
	(13, $$'x', every => '1 month', topic => 'a'$$),
	(14, $$'x', every => '2 years', topic => 'a'$$),
	(15, $$'x', '@daily', topic => 'A'$$),
	(16, $$'x', '@daily', topic => 'a', key => ''$$),
	(17, $$'x', '@daily', topic => 'a', headers => '[]'$$),
	(18, $$'x', '@daily', topic => 'a', payload => to_jsonb(repeat('x', 300000))$$),
	(19, $$'x', '@daily', topic => 'a', timezone => 'Nowhere'$$),
	(20, $$'x', '@daily', topic => 'a', catch_up => 'some'$$),
	(21, $$'x', '@daily', topic => 'a', starts_at => '2030-01-02', ends_at => '2030-01-01'$$),
	(22, $$'x', '@daily', topic => 'a', ends_at => '2020-01-01'$$),
	(23, $$'x', '@daily', topic => 'a', starts_at => 'infinity'$$),
	(24, $$'x', '@daily', topic => 'a', grace => '-1 s'$$),
	(25, $$'x', '@daily', function => 'regress_app.super(outbox.occurrence)'$$),
	(26, $$'x', '@daily', function => 'regress_app.other(outbox.settlement)'$$),
	(27, $$'x', '@daily', function => 'pg_catalog.sum(int)'$$),
	(28, $$'x', '@daily', function => 'regress_app.fan_out(outbox.occurrence)', timeout => '2 h'$$)) v (n, wrong) ORDER BY n;
SET ROLE regress_scheduler;
SELECT outbox.create_schedule('x', '@daily', function => 'regress_app.others(outbox.occurrence)');
SELECT outbox.drop_schedule('fan');
RESET ROLE;
SELECT call, regress.error_of('SELECT outbox.' || call) AS error FROM (VALUES
	(1, $$alter_schedule('nobody', topic => 'a')$$),
	(2, $$alter_schedule(NULL)$$),
	(3, $$alter_schedule('fan', reset => '{colour}')$$),
	(4, $$alter_schedule('fan', reset => '{timeout}', timeout => '1 s')$$),
	(5, $$alter_schedule('fan', new_name => '')$$),
	(6, $$drop_schedule('nobody')$$),
	(7, $$pause_schedule('nobody')$$),
	(8, $$resume_schedule('nobody')$$),
	(9, $$run_now('nobody')$$),
	(10, $$run_now('fan', '-infinity')$$),
	(11, $$run_now('fan')$$)) v (n, call) ORDER BY n;
BEGIN;
CALL outbox.run_schedules();
ROLLBACK;
SET default_transaction_isolation = 'repeatable read';
CALL outbox.run_schedules();
RESET default_transaction_isolation;
SELECT outbox.drop_schedule('fan');

-- Times in an odd format come through.
SET datestyle = 'SQL, DMY';
SET timezone = 'Asia/Kolkata';
SET intervalstyle = 'sql_standard';
SELECT outbox.create_schedule('odd', every => '1 day 2 hours', topic => 'a.b', starts_at => '2030-03-02 00:00+00') > 0 AS created;
RESET intervalstyle;
SET datestyle = 'ISO';
SET timezone = 'UTC';
SELECT starts_at, every, next_run_at FROM outbox.schedules;
SELECT outbox.drop_schedule('odd');

DROP OWNED BY regress_scheduler, regress_other CASCADE;
DROP ROLE regress_scheduler, regress_other;
DROP PROCEDURE regress.set_back, regress.early_in_minute;
DROP FUNCTION regress.staged;
CALL regress.empty();
