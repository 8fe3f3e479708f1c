-- on_settle: which functions a handler can have, and with whose rights they
-- would run.  What they do is tested with a dispatcher.
SET client_min_messages = warning;
CREATE FUNCTION pg_temp.try(function text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN regress.error_of(format('SELECT outbox.create_handler(''tried'', ''{t}'', ''http://127.0.0.1:9/'', on_settle => %L)', function));
END $$;

CREATE ROLE regress_outbox_maker;
CREATE ROLE regress_outbox_owner;
GRANT EXECUTE ON FUNCTION outbox.create_handler, outbox.alter_handler TO regress_outbox_maker;
CREATE SCHEMA functions;
GRANT USAGE ON SCHEMA functions TO regress_outbox_maker;
CREATE FUNCTION functions.good(s outbox.settlement) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION functions.mine(s outbox.settlement) RETURNS int LANGUAGE sql AS 'SELECT 1';
ALTER FUNCTION functions.mine OWNER TO regress_outbox_maker;
ALTER FUNCTION functions.good OWNER TO regress_outbox_owner;
CREATE FUNCTION functions.no_argument() RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION functions.other_argument(s jsonb) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION functions.row_of_table(s outbox.delivery) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION functions.two_arguments(s outbox.settlement, n int DEFAULT 0) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION functions.a_set(s outbox.settlement) RETURNS SETOF int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION functions.any_row(s record) RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
CREATE PROCEDURE functions.a_procedure(s outbox.settlement) LANGUAGE sql AS 'SELECT';
CREATE FUNCTION functions.step(n int, s outbox.settlement) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE AGGREGATE functions.an_aggregate(outbox.settlement) (SFUNC = functions.step, STYPE = int);
CREATE FUNCTION functions.not_mine(s outbox.settlement) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION functions.of_superuser(s outbox.settlement) RETURNS void LANGUAGE sql AS 'SELECT';
ALTER FUNCTION functions.not_mine OWNER TO regress_outbox_owner;

-- The type is what the function is told, in this order.
SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
FROM pg_attribute WHERE attrelid = 'outbox.settlement'::regclass AND attnum > 0;

-- A handler of an ordinary role: the function's form counts, and that it belongs to that role.
SET ROLE regress_outbox_maker;
SELECT h, pg_temp.try(h) FROM unnest(ARRAY['functions.no_argument()', 'functions.other_argument(jsonb)', 'functions.row_of_table(outbox.delivery)',
	'functions.two_arguments(outbox.settlement, int)', 'functions.a_set(outbox.settlement)', 'functions.any_row(record)',
	'functions.a_procedure(outbox.settlement)', 'functions.an_aggregate(outbox.settlement)', 'functions.not_mine(outbox.settlement)', 'functions.of_superuser(outbox.settlement)', 'functions.nowhere(outbox.settlement)']) h;
SELECT pg_temp.try('functions.mine(outbox.settlement)');
SELECT regress.error_of('SELECT outbox.alter_handler(''tried'', on_settle => ''functions.no_argument()'')');
SELECT regress.error_of('SELECT outbox.create_handler(''pulled'', ''{t}'', on_settle => ''functions.good(outbox.settlement)'')');
RESET ROLE;
SELECT handler, creator, on_settle FROM outbox.handlers;
-- A superuser chooses any, for somebody else or for its own handler, but for what would run as a superuser.
SELECT regress.error_of('SELECT outbox.alter_handler(''tried'', on_settle => ''functions.not_mine(outbox.settlement)'')');
SELECT regress.error_of('SELECT outbox.alter_handler(''tried'', on_settle => ''functions.of_superuser(outbox.settlement)'')');
SELECT outbox.drop_handler('tried');
SELECT pg_temp.try('functions.of_superuser(outbox.settlement)');
SELECT pg_temp.try('functions.good(outbox.settlement)');
REVOKE EXECUTE ON FUNCTION functions.good FROM PUBLIC, regress_outbox_owner;
SELECT regress.error_of('SELECT outbox.alter_handler(''tried'', on_settle => ''functions.good(outbox.settlement)'')');
GRANT EXECUTE ON FUNCTION functions.good TO regress_outbox_owner;
-- A member of the owner may choose it.
SELECT outbox.drop_handler('tried');
GRANT regress_outbox_owner TO regress_outbox_maker;
SET ROLE regress_outbox_maker;
SELECT pg_temp.try('functions.good(outbox.settlement)');
RESET ROLE;
-- A creator that is gone has no part in it.
UPDATE outbox.handler SET creator = 'regress_outbox_nobody', creator_oid = 1 WHERE name = 'tried';
SELECT regress.error_of('SELECT outbox.alter_handler(''tried'', on_settle => ''functions.good(outbox.settlement)'')');

-- Rows of hand-overs and the type: who may what.
SELECT has_table_privilege('regress_outbox_maker', 'outbox.on_settle_queue', 'SELECT, INSERT, UPDATE, DELETE') AS queue_table,
	has_type_privilege('regress_outbox_maker', 'outbox.settlement', 'USAGE') AS settlement_type;

-- outbox.verify() knows a hand-over from a lease that nobody holds; health() sees one that waits.
SELECT outbox.alter_handler('tried', reset => '{on_settle}');
SELECT outbox.stage('t', '{}') AS id \gset
UPDATE outbox.delivery SET state = 2, due_at = 'infinity', attempts = 1 WHERE message_id = :'id';
SELECT finding, severity, hint FROM outbox.verify() WHERE severity = 'error';
INSERT INTO outbox.on_settle_queue (message_id, handler_id, attempt, finished_at, duration_us, due_at, state, streak)
SELECT d.message_id, d.handler_id, 1, now() - interval '61 s', 1000, now(), 3, 0 FROM outbox.delivery d WHERE d.message_id = :'id';
SELECT finding, severity FROM outbox.verify() WHERE severity = 'error';
SELECT regexp_replace(r, '\d+', 'N') AS reason FROM outbox.health(), unnest(reasons) r WHERE r ~ 'on_settle';
SELECT handler, leased, due FROM outbox.backlog WHERE handler = 'tried';

CALL regress.empty();
SELECT outbox.drop_handler('tried');
DROP SCHEMA functions CASCADE;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM regress_outbox_maker;
DROP ROLE regress_outbox_maker, regress_outbox_owner;
