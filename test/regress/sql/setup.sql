-- What the other files share; it runs first.  Nothing is sent here, whether
-- the server has the library preloaded or not.
SET client_min_messages = warning;
CREATE SCHEMA regress;
GRANT USAGE ON SCHEMA regress TO PUBLIC;

-- What a command raises: SQLSTATE, message, detail and hint, without what
-- differs from run to run.  The command may meet a search_path of traps.
CREATE FUNCTION regress.error_of(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	message text;
	detail text;
	hint text;
	said text;
BEGIN
	EXECUTE command;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	said := pg_catalog.concat(message, pg_catalog.format(' (%s)', detail));
	said := pg_catalog.regexp_replace(said, 'Failing row contains \(.*\)\.', 'Failing row contains <row>.');
	said := pg_catalog.regexp_replace(said, '[0-9a-f]{8}-[0-9a-f-]{27}', '<id>', 'g');
	said := pg_catalog.replace(said, pg_catalog.format('"%s"', session_user), '"<superuser>"');
	RETURN pg_catalog.format('%s: %s | %s', SQLSTATE, pg_catalog.replace(said, ' ()', ''), hint);
END $$;

-- The name of a state, as every view shows it.
CREATE FUNCTION regress.state_name(state smallint) RETURNS text LANGUAGE sql AS $$
	SELECT ('{pending,retrying,leased,delivered,dead,cancelled}'::text[])[$1 + 1]
$$;

-- No messages any more, whatever state they were in; nor handlers.
CREATE PROCEDURE regress.empty() LANGUAGE sql AS $$
	TRUNCATE outbox.message, outbox.delivery, outbox.receipt, outbox.attempt, outbox.on_settle_queue, outbox.inbox, outbox.dedupe_key, outbox.event_queue
$$;
CREATE PROCEDURE regress.start_anew() LANGUAGE plpgsql AS $$
BEGIN
	CALL regress.empty();
	DELETE FROM outbox.handler WHERE id <> 0;
END $$;

-- A dispatcher that is here already has to hear of it.
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET outbox.enabled = off', current_database()); END $$;
DO $$
BEGIN
	PERFORM pg_reload_conf();
	WHILE EXISTS (SELECT FROM outbox.dispatchers WHERE database = current_database() AND state IN ('starting', 'running')) LOOP
		IF clock_timestamp() > now() + interval '3 minutes' THEN
			RAISE 'the dispatcher goes on sending';
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
