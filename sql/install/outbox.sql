-- outbox: the transactional outbox, inside the database.
--
-- One readable file, in the order a message walks: tables, producers,
-- handlers, consumers, operators, views, grants.  Run by CREATE EXTENSION
-- as a superuser with search_path = pg_catalog, pg_temp.
--
-- House rules: every object is schema-qualified; functions that act with the
-- owner's rights pin search_path; PUBLIC gets nothing (see the end).
\echo Use "CREATE EXTENSION outbox" to load this file. \quit

CREATE SCHEMA outbox;
COMMENT ON SCHEMA outbox IS 'Transactional outbox: messages, their deliveries and the handlers that take them';

-----------------------------------------------------------------------------
-- Tables
-----------------------------------------------------------------------------

-- Which database this outbox was installed in.  A dump, a template copy or a
-- logical subscriber carries a row that names another one: deliveries are
-- held there until outbox.adopt().  No key on purpose: a restore must be able
-- to add the foreign row beside the one CREATE EXTENSION wrote.
CREATE TABLE outbox.installation (
	system_identifier bigint NOT NULL,
	database_oid oid NOT NULL,
	installed_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE outbox.installation IS 'Identity of the database this outbox may send from; see outbox.adopt()';

INSERT INTO outbox.installation (system_identifier, database_oid)
SELECT c.system_identifier, d.oid
FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d
WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database();

-- What a producer staged.  Written once, never updated.
CREATE TABLE outbox.message (
	id uuid NOT NULL CONSTRAINT message_pkey PRIMARY KEY,
	staged_at timestamptz NOT NULL,
	min_version int,
	topic text NOT NULL,
	key text,
	dedupe_key text,
	tenant text,
	correlation_id text,
	headers jsonb,
	payload jsonb NOT NULL
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);
COMMENT ON TABLE outbox.message IS 'Messages as staged: written once by outbox.stage(), removed by outbox.prune()';
CREATE UNIQUE INDEX message_dedupe ON outbox.message ((COALESCE(tenant, '')), dedupe_key) WHERE dedupe_key IS NOT NULL;

-- One message for one handler.  state: 0 pending, 1 retrying, 2 leased,
-- 3 delivered, 4 dead, 5 cancelled; below 3 is outstanding.  A leased row's
-- due_at is the end of its lease.  key is set only on ordered handlers.
-- No foreign keys: they would lock the handler row on every insert.  No check
-- either: it would be compiled for every staged message, a tenth of its cost.
CREATE TABLE outbox.delivery (
	message_id uuid NOT NULL,
	due_at timestamptz NOT NULL,
	settled_at timestamptz,
	handler_id int NOT NULL,
	attempts int NOT NULL DEFAULT 0,
	budget_from int NOT NULL DEFAULT 0,
	state smallint NOT NULL DEFAULT 0,
	streak smallint NOT NULL DEFAULT 0,
	http_status smallint,
	min_version int,
	key text,
	code text,
	error text,
	CONSTRAINT delivery_pkey PRIMARY KEY (message_id, handler_id)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);
COMMENT ON TABLE outbox.delivery IS 'Deliveries: one message for one handler, its state and, once settled, its receipt';
CREATE INDEX delivery_outstanding ON outbox.delivery (handler_id, due_at, message_id) WHERE state < 3;
CREATE INDEX delivery_keyed ON outbox.delivery (handler_id, key, message_id) WHERE state < 3 AND key IS NOT NULL;
CREATE INDEX delivery_buried ON outbox.delivery (handler_id, message_id) WHERE state IN (4, 5);

CREATE SEQUENCE outbox.handler_id AS int;

-- Configuration only.  Pauses, the breaker and counters live in
-- handler_status, so that they do not invalidate every backend's routes.
-- An id is never reused; a dropped handler keeps its row.
CREATE TABLE outbox.handler (
	id int NOT NULL DEFAULT pg_catalog.nextval('outbox.handler_id') CONSTRAINT handler_pkey PRIMARY KEY,
	name text NOT NULL,
	topics text[] NOT NULL,
	url text,
	creator text NOT NULL DEFAULT SESSION_USER,
	created_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	dropped_at timestamptz,
	-- requests
	timeout interval NOT NULL DEFAULT '30 s',
	connect_timeout interval NOT NULL DEFAULT '5 s',
	concurrency int NOT NULL DEFAULT 10,
	rate_limit float8,
	rate_burst int NOT NULL DEFAULT 1,
	headers jsonb,
	format text NOT NULL DEFAULT 'raw',
	batch_size int NOT NULL DEFAULT 1,
	batch_wait interval NOT NULL DEFAULT '0',
	http_version text NOT NULL DEFAULT '1.1',
	unix_socket text,
	tls_ca_file text,
	tls_certificate_file text,
	tls_key_file text,
	-- retries
	max_attempts int NOT NULL DEFAULT 8,
	backoff interval[],
	backoff_base interval NOT NULL DEFAULT '2 s',
	backoff_max interval NOT NULL DEFAULT '15 min',
	jitter float8 NOT NULL DEFAULT 0.2,
	retry_after_max interval NOT NULL DEFAULT '1 h',
	rules jsonb,
	breaker_threshold int NOT NULL DEFAULT 20,
	breaker_wait interval NOT NULL DEFAULT '5 s',
	breaker_wait_max interval NOT NULL DEFAULT '5 min',
	disable_after interval NOT NULL DEFAULT '5 days',
	-- order and hooks
	ordered boolean NOT NULL DEFAULT false,
	on_dead text NOT NULL DEFAULT 'skip',
	on_settle text
);
COMMENT ON TABLE outbox.handler IS 'Handlers and their options; change them with outbox.create_handler() and its kin';
ALTER SEQUENCE outbox.handler_id OWNED BY outbox.handler.id;
CREATE UNIQUE INDEX handler_name ON outbox.handler (name) WHERE dropped_at IS NULL;

-- Handler 0 keeps what nobody takes when outbox.unrouted = dead.
INSERT INTO outbox.handler (id, name, topics, creator) VALUES (0, '(unrouted)', '{}', 'outbox');

CREATE TABLE outbox.handler_status (
	handler_id int NOT NULL CONSTRAINT handler_status_pkey PRIMARY KEY,
	paused_at timestamptz,
	paused_by text,
	paused_reason text,
	breaker text NOT NULL DEFAULT 'closed' CONSTRAINT handler_status_breaker CHECK (breaker IN ('closed', 'open', 'half-open')),
	breaker_reason text,
	breaker_until timestamptz,
	failing_since timestamptz
);
COMMENT ON TABLE outbox.handler_status IS 'Pauses and circuit breakers of handlers';

CREATE TABLE outbox.handler_secret (
	handler_id int NOT NULL,
	kind text NOT NULL CONSTRAINT handler_secret_kind CHECK (kind IN ('signing', 'authorization')),
	secret text NOT NULL,
	created_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	expires_at timestamptz
);
COMMENT ON TABLE outbox.handler_secret IS 'Signing secrets and credentials of handlers; readable by nobody but the owner';
CREATE INDEX handler_secret_handler ON outbox.handler_secret (handler_id);

-- Attempts that failed (all or none of them, by outbox.log_attempts).
CREATE TABLE outbox.attempt (
	message_id uuid NOT NULL,
	handler_id int NOT NULL,
	attempt int NOT NULL,
	finished_at timestamptz NOT NULL,
	duration interval,
	outcome smallint NOT NULL,
	http_status smallint,
	code text,
	error text,
	CONSTRAINT attempt_pkey PRIMARY KEY (message_id, handler_id, attempt)
) WITH (vacuum_truncate = off);
COMMENT ON TABLE outbox.attempt IS 'Log of attempts; outcome is the delivery state the attempt led to (1 retrying, 3 delivered, 4 dead, 5 cancelled)';

-- A restored dump or an upgraded cluster keeps everything.
SELECT pg_catalog.pg_extension_config_dump('outbox.installation', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.message', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.delivery', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.handler_id', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.handler', 'WHERE id OPERATOR(pg_catalog.<>) 0');
SELECT pg_catalog.pg_extension_config_dump('outbox.handler_status', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.handler_secret', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.attempt', '');

-----------------------------------------------------------------------------
-- Plumbing: not for callers
-----------------------------------------------------------------------------

-- Ring the doorbell for one delivery when this transaction commits.
-- kind: 0 it is due or will be, 1 it changed (unsent copies are forgotten).
CREATE FUNCTION outbox._ring(handler_id int, kind int, due_at timestamptz, id uuid) RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring';
COMMENT ON FUNCTION outbox._ring(int, int, timestamptz, uuid) IS 'Internal: tell the dispatcher about one delivery at commit';

CREATE FUNCTION outbox._ring_handlers() RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring_handlers';
COMMENT ON FUNCTION outbox._ring_handlers() IS 'Internal: tell the dispatcher at commit that handlers or their status changed';

CREATE FUNCTION outbox._ring_rescan() RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring_rescan';
COMMENT ON FUNCTION outbox._ring_rescan() IS 'Internal: ask the dispatcher at commit to look at every outstanding delivery once';

CREATE FUNCTION outbox._ring_launcher() RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring_launcher';
COMMENT ON FUNCTION outbox._ring_launcher() IS 'Internal: ask the launcher at commit to look for databases that need a dispatcher';

-- Any change of outbox.handler, however it was made, invalidates the routes
-- that backends have cached and has the dispatcher read its handlers again.
CREATE FUNCTION outbox._handler_changed() RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_handler_changed';
COMMENT ON FUNCTION outbox._handler_changed() IS 'Internal trigger: invalidate cached routes and tell the dispatcher';

CREATE TRIGGER handler_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.handler
FOR EACH STATEMENT EXECUTE FUNCTION outbox._handler_changed();
ALTER TABLE outbox.handler ENABLE ALWAYS TRIGGER handler_changed;

CREATE FUNCTION outbox._status_changed() RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_status_changed';
COMMENT ON FUNCTION outbox._status_changed() IS 'Internal trigger: tell the dispatcher that a pause, a secret or the installation changed';

CREATE TRIGGER status_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.handler_status
FOR EACH STATEMENT EXECUTE FUNCTION outbox._status_changed();
ALTER TABLE outbox.handler_status ENABLE ALWAYS TRIGGER status_changed;
CREATE TRIGGER status_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.handler_secret
FOR EACH STATEMENT EXECUTE FUNCTION outbox._status_changed();
ALTER TABLE outbox.handler_secret ENABLE ALWAYS TRIGGER status_changed;
CREATE TRIGGER status_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.installation
FOR EACH STATEMENT EXECUTE FUNCTION outbox._status_changed();
ALTER TABLE outbox.installation ENABLE ALWAYS TRIGGER status_changed;

CREATE FUNCTION outbox._state_name(state smallint) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE state WHEN 0 THEN 'pending' WHEN 1 THEN 'retrying' WHEN 2 THEN 'leased'
	WHEN 3 THEN 'delivered' WHEN 4 THEN 'dead' WHEN 5 THEN 'cancelled' END;
COMMENT ON FUNCTION outbox._state_name(smallint) IS 'Internal: the name of a delivery state, as every view shows it';

-----------------------------------------------------------------------------
-- Producers
-----------------------------------------------------------------------------

-- Pieces of a time range over message ids: a message staged at time t has an
-- id at or after _id_floor(t).
CREATE FUNCTION outbox._id_floor(at timestamptz) RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_id_floor';
COMMENT ON FUNCTION outbox._id_floor(timestamptz) IS 'Internal: the smallest id that a message staged at that time could have';

CREATE FUNCTION outbox.stage(topic text, payload jsonb DEFAULT '{}', key text DEFAULT NULL, dedupe_key text DEFAULT NULL,
	tenant text DEFAULT NULL, correlation_id text DEFAULT NULL, headers jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, min_version int DEFAULT NULL) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_stage';
COMMENT ON FUNCTION outbox.stage(text, jsonb, text, text, text, text, jsonb, timestamptz, interval, int) IS
'Stage a message in the running transaction: it is delivered to every handler that takes its topic if, and only if, the transaction commits.
topic: lowercase words of a-z, 0-9, _ and - joined by dots, up to 255 bytes.
payload: any JSON value but SQL NULL, up to outbox.max_payload_size as text. Cast json, text and numbers: pass to_jsonb(x), x::jsonb or jsonb_build_object(...).
key: what the message is about; on ordered handlers messages of one key are delivered in stage order.
dedupe_key: a second message with the same one is not staged, for as long as the first is kept; unique within a tenant.
tenant, correlation_id: whose it is and what it belongs to. Each of key, dedupe_key, tenant and correlation_id has up to 255 bytes and may not be empty.
headers: a JSON object of strings, sent as HTTP headers; up to 64.
deliver_at, or delay: not before that time, or that much later; up to 100 years ahead. A time in the past means now.
min_version: consumers that claim with a lower version leave the message alone.
Returns the message id, a uuid v7, or that of the first message with the same dedupe_key.
Errors: null_value_not_allowed, invalid_parameter_value, reserved_name, datetime_field_overflow and program_limit_exceeded for arguments as above; unique_violation when dedupe_key was used for another topic; undefined_object when no handler takes the topic and outbox.unrouted is error; serialization_failure when a duplicate is invisible to a REPEATABLE READ or SERIALIZABLE transaction.';

CREATE FUNCTION outbox.try_stage(topic text, payload jsonb DEFAULT '{}', key text DEFAULT NULL, dedupe_key text DEFAULT NULL,
	tenant text DEFAULT NULL, correlation_id text DEFAULT NULL, headers jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, min_version int DEFAULT NULL,
	OUT id uuid, OUT status text, OUT detail text) RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_try_stage';
COMMENT ON FUNCTION outbox.try_stage(text, jsonb, text, text, text, text, jsonb, timestamptz, interval, int) IS
'Like outbox.stage(), but tells what is wrong with the arguments instead of raising it. Arguments as there.
Returns one row. status created: staged as id. exists: id is the first message with this dedupe_key. dedupe_conflict: the dedupe_key belongs to message id, of another topic. invalid: detail says which argument is wrong, or that no handler takes the topic where outbox.unrouted is error.
Errors that are not about the arguments, such as serialization_failure or a read-only transaction, are raised.';

CREATE FUNCTION outbox.stage_many(topic text, payloads jsonb[], keys text[] DEFAULT NULL, dedupe_keys text[] DEFAULT NULL,
	tenant text DEFAULT NULL, correlation_id text DEFAULT NULL, headers jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, min_version int DEFAULT NULL) RETURNS SETOF uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_stage_many';
COMMENT ON FUNCTION outbox.stage_many(text, jsonb[], text[], text[], text, text, jsonb, timestamptz, interval, int) IS
'Stage many messages of one topic at once.
payloads: one message each, none NULL. keys, dedupe_keys: NULL, or as many elements as payloads, NULL where a message has none. The other arguments hold for all of them, as in outbox.stage().
Returns the message ids in the order of payloads; where a dedupe_key repeats, in the array or in the table, that of the first message.
Errors: as outbox.stage(), and array_subscript_error for arrays of more than one dimension or of different length. All are staged or none.';

-----------------------------------------------------------------------------
-- Handlers
-----------------------------------------------------------------------------

-----------------------------------------------------------------------------
-- Consumers (pull)
-----------------------------------------------------------------------------

-----------------------------------------------------------------------------
-- Operators
-----------------------------------------------------------------------------

-----------------------------------------------------------------------------
-- Views
-----------------------------------------------------------------------------

CREATE FUNCTION outbox._dispatchers(OUT database name, OUT pid int, OUT state text, OUT in_flight int, OUT last_error text, OUT since timestamptz)
RETURNS SETOF record
LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'outbox_sql_dispatchers';
COMMENT ON FUNCTION outbox._dispatchers() IS 'Internal: what outbox.dispatchers shows';

CREATE VIEW outbox.dispatchers AS SELECT * FROM outbox._dispatchers();
COMMENT ON VIEW outbox.dispatchers IS 'One row for each database of this server that has an outbox: its dispatcher''s pid (NULL if none runs), state, requests in flight, last error and since when';

-----------------------------------------------------------------------------
-- Grants: PUBLIC gets nothing
-----------------------------------------------------------------------------

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
REVOKE ALL ON ALL PROCEDURES IN SCHEMA outbox FROM PUBLIC;
GRANT USAGE ON SCHEMA outbox TO PUBLIC;

-- The launcher starts a dispatcher here as soon as this commits.
SELECT outbox._ring_launcher();
