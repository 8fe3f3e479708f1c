-- A consumer of a pull handler in plain SQL: psql -v handler=NAME -f consumer.sql
--
-- Takes what is there, then waits for one message more, five seconds at
-- most.  The work here is a row in the table ledger.  It commits together
-- with the receipt of its message or not at all, so each message is entered
-- exactly once, however often consumers die.
\set ON_ERROR_STOP 1

-- What this session has claimed and not settled yet.
CREATE TEMP TABLE claimed (id uuid PRIMARY KEY, attempt int NOT NULL, payload jsonb NOT NULL);

-- All that is there, a hundred at a time, as a set: claim and commit, then
-- work and settle in one transaction for all of them.
CREATE PROCEDURE pg_temp.work_off(handler text) LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		TRUNCATE claimed;
		INSERT INTO claimed SELECT c.id, c.attempt, c.payload FROM outbox.claim(handler, 100) c;
		EXIT WHEN NOT FOUND;
		-- From here on the attempts count, and others see the leases.
		COMMIT;

		-- What can never be dealt with.
		PERFORM outbox.fail_many(handler, array_agg(c.id), array_agg(c.attempt), 'bad_payload', 'amount is not a number')
		FROM claimed c WHERE jsonb_typeof(c.payload -> 'amount') IS DISTINCT FROM 'number'
		HAVING count(*) > 0;

		-- The rest: only what is still ours is entered, and entered as it is completed.
		WITH mine AS MATERIALIZED (
			SELECT c.*, outbox.complete(handler, c.id, c.attempt) AS kept
			FROM claimed c WHERE jsonb_typeof(c.payload -> 'amount') = 'number')
		INSERT INTO ledger (message_id, account, amount)
		SELECT id, payload ->> 'account', (payload ->> 'amount')::numeric FROM mine WHERE kept;
		COMMIT;
	END LOOP;
END $$;

CALL pg_temp.work_off(:'handler');

-- Outside any transaction: returns as soon as something can be claimed.
CALL outbox.wait(:'handler', '5 s');

-- And again, if something came.
CALL pg_temp.work_off(:'handler');
