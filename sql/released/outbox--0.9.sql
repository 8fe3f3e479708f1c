-- outbox: the transactional outbox, inside the database.
--
-- One readable file, in the order a message walks: tables, producers,
-- handlers, consumers, operators, views, grants.  Run by CREATE EXTENSION
-- as a superuser with search_path = pg_catalog, pg_temp.
--
-- House rules: every object is schema-qualified; functions that act with the
-- owner's rights pin search_path, and session_replication_role if they write:
-- as a replica, so that of the triggers on these tables only those fire that
-- are ENABLE ALWAYS, which takes their owner; PUBLIC gets nothing (see the end).
--
-- How it works together with the library: doc/architecture.md, "States of a
-- delivery" above all.
\echo Use "CREATE EXTENSION outbox" to load this file. \quit

CREATE SCHEMA outbox;
COMMENT ON SCHEMA outbox IS 'Transactional outbox: messages, their deliveries and the handlers that take them';

-- What only outbox itself calls is out of its users' sight, and nobody can name
-- it but the owner.  Views and column defaults that call such a function were
-- parsed here, so that their readers need no USAGE.
CREATE SCHEMA outbox_internal;
COMMENT ON SCHEMA outbox_internal IS 'What outbox itself calls, for nobody else';

-----------------------------------------------------------------------------
-- Tables
-----------------------------------------------------------------------------

-- Which database this outbox was installed in.  A dump, a template copy or a
-- logical subscriber carries a row that names another one, and handlers that
-- are at home elsewhere: deliveries are held there until outbox.adopt().  The
-- id tells a dump restored over its own database.  No key on purpose: a
-- restore must be able to add its row beside the one CREATE EXTENSION wrote.
--
-- A restored backup has the row of the original.  restored_as is the id of
-- the last restore of the data directory that the row was told of, and
-- restored whether it waits for outbox.adopt().  site is outbox.site, once it
-- had a name there.
CREATE TABLE outbox.installation (
	id uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
	system_identifier bigint NOT NULL,
	database_oid oid NOT NULL,
	installed_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	restored_as text,
	restored boolean NOT NULL DEFAULT false,
	site text NOT NULL DEFAULT ''
);
COMMENT ON TABLE outbox.installation IS 'Identity of the database this outbox may send from; see outbox.adopt()';

CREATE FUNCTION outbox_internal.place(OUT restored_as text, OUT site text) RETURNS record
LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_place';
COMMENT ON FUNCTION outbox_internal.place IS 'Internal: the id of the backup''s restore that this data directory comes from, NULL if from none; and outbox.site';

INSERT INTO outbox.installation (system_identifier, database_oid, restored_as, site)
SELECT c.system_identifier, d.oid, p.restored_as, p.site
FROM pg_catalog.pg_control_system() c, pg_catalog.pg_database d, outbox_internal.place() p
WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database();

CREATE FUNCTION outbox_internal.home() RETURNS uuid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT i.id FROM outbox.installation i, pg_control_system() c, pg_database d
	WHERE d.datname = current_database() AND i.system_identifier = c.system_identifier AND i.database_oid = d.oid
	ORDER BY i.installed_at DESC LIMIT 1
$$;
COMMENT ON FUNCTION outbox_internal.home IS 'Internal: id of the installation that is this database; NULL in a copy';

-- What a producer staged.  Written once, never updated.
--
-- The order of columns, here and in the two tables below, is that of src/table/columns.h
-- and counts: what is NULL, or has the value it was added with, at the end of a row
-- takes no room there (src/table/row_writer.c), and eight columns need no larger header.
--
-- Whatever is compared or looked up as a text is so by its bytes, COLLATE "C":
-- an index by the database's own collation is corrupt once the C library or ICU
-- sorts otherwise, as they do from one release of a system to the next.
CREATE TABLE outbox.message (
	id uuid NOT NULL CONSTRAINT message_pkey PRIMARY KEY,
	staged_at timestamptz NOT NULL,
	-- NULL: it is a text or bytes, which come last
	payload jsonb,
	topic text COLLATE "C" NOT NULL,
	key text COLLATE "C",
	tenant text COLLATE "C",
	correlation_id text COLLATE "C",
	headers jsonb,
	dedupe_key text COLLATE "C",
	min_version int,
	-- of one that is scheduled: nobody may get it sooner, however late it is routed
	deliver_at timestamptz,
	replace_key text COLLATE "C",
	-- when the first was staged of those of its replace_key that have replaced each other
	replace_since timestamptz,
	-- by when it has to have gone out; handlers may want it sooner, see outbox.delivery
	expires_at timestamptz,
	-- of a payload that is no jsonb value: what it is, and one of the two
	content_type text COLLATE "C",
	payload_text text COLLATE "C",
	payload_bytes bytea,
	-- its dedupe_key, where an older message has that in its row: outbox.dedupe_window was over for it
	reused_key text COLLATE "C"
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05);
COMMENT ON TABLE outbox.message IS 'Messages as staged: written once by outbox.stage(), removed by retention: by the server itself, or by outbox.prune()';
-- For operators; who names none of these pays for none of them.
-- With the id, so that a tenant's messages are found newest first, however many.
CREATE INDEX message_tenant ON outbox.message (tenant, id) WHERE tenant IS NOT NULL;
CREATE INDEX message_key ON outbox.message (key) WHERE key IS NOT NULL;
CREATE INDEX message_correlation ON outbox.message (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE UNIQUE INDEX message_dedupe ON outbox.message ((COALESCE(tenant, '')), dedupe_key) WHERE dedupe_key IS NOT NULL;
CREATE INDEX message_replace ON outbox.message ((COALESCE(tenant, '')), replace_key, id) WHERE replace_key IS NOT NULL;

-- What is outstanding: one message for one handler that is still to be
-- delivered.  state: 0 pending, 1 retrying, 2 leased.  A leased row's due_at is
-- the end of its lease.  key is set only on ordered handlers.  Settlement takes
-- the row out of here and puts a receipt into outbox.receipt, so this table is
-- as large as the backlog; requeue and replay bring it back.  Vacuum does not
-- pause here: what it has not removed is read again and again.  The large
-- tables, messages and receipts, it goes through as the server is set to.
-- No foreign keys: they would lock the handler row on every insert.  No check
-- either: it would be compiled for every staged message, a tenth of its cost.
CREATE TABLE outbox.delivery (
	message_id uuid NOT NULL,
	due_at timestamptz NOT NULL,
	handler_id int NOT NULL,
	CONSTRAINT delivery_pkey PRIMARY KEY (message_id, handler_id) WITH (deduplicate_items = off)
-- So much of each page stays free for the second versions that leases and retries write there, which are longer.
) WITH (fillfactor = 47, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);
-- Added to a table that is there, so that rows which end before them have these values.
ALTER TABLE outbox.delivery
	ADD COLUMN state smallint NOT NULL DEFAULT 0,
	ADD COLUMN streak smallint NOT NULL DEFAULT 0,
	ADD COLUMN attempts int NOT NULL DEFAULT 0,
	ADD COLUMN budget_from int NOT NULL DEFAULT 0,
	ADD COLUMN key text COLLATE "C",
	-- by when it has to have gone out: that of the message or of its handler's max_age, the earlier one
	ADD COLUMN expires_at timestamptz,
	ADD COLUMN min_version int,
	ADD COLUMN http_status smallint,
	ADD COLUMN code text,
	ADD COLUMN error text;
COMMENT ON TABLE outbox.delivery IS 'Outstanding deliveries: one message for one handler, its state and when it is due; what is settled is in outbox.receipt';
CREATE INDEX delivery_outstanding ON outbox.delivery (handler_id, due_at, message_id);
-- On ordered handlers: the first of a key, and its leased one, which bars it.
CREATE INDEX delivery_keyed ON outbox.delivery (handler_id, key, message_id) WHERE key IS NOT NULL;
CREATE INDEX delivery_leased ON outbox.delivery (handler_id, key, message_id) WHERE state = 2 AND key IS NOT NULL;
CREATE INDEX delivery_expires ON outbox.delivery (expires_at, message_id) WHERE expires_at IS NOT NULL;

-- What is settled: the receipt of a delivery.  state: 3 delivered, 4 dead,
-- 5 cancelled.  Never one of a message and handler that outbox.delivery has as
-- well: each is in one of the two, and moves from one to the other within a
-- transaction.  Appended and packed full; key is set only on dead ones of
-- ordered handlers, which bar their key if on_dead is block.
CREATE TABLE outbox.receipt (
	message_id uuid NOT NULL,
	settled_at timestamptz NOT NULL,
	handler_id int NOT NULL,
	state smallint NOT NULL,
	http_status smallint,
	CONSTRAINT receipt_pkey PRIMARY KEY (message_id, handler_id) WITH (deduplicate_items = off)
) WITH (fillfactor = 100, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05);
-- As above: of what was delivered at once nothing of this is in the row.
ALTER TABLE outbox.receipt
	ADD COLUMN attempts int NOT NULL DEFAULT 1,
	ADD COLUMN budget_from int NOT NULL DEFAULT 0,
	ADD COLUMN code text,
	ADD COLUMN error text,
	ADD COLUMN key text COLLATE "C";
COMMENT ON TABLE outbox.receipt IS 'Receipts: what became of deliveries that are settled, one for each message and handler, until retention removes it';
-- Few among many.  The condition is written so that no statistics of the column
-- speak of it: the planner always takes it for rare, and this index with it.
CREATE INDEX receipt_dead ON outbox.receipt (handler_id, message_id) WHERE state + 0 = 4;
CREATE INDEX receipt_died ON outbox.receipt (settled_at) WHERE state + 0 = 4;
CREATE INDEX receipt_cancelled ON outbox.receipt (handler_id, message_id) WHERE state + 0 = 5;
CREATE INDEX receipt_buried ON outbox.receipt (message_id, handler_id) WHERE state + 0 IN (4, 5);
CREATE INDEX receipt_blocking ON outbox.receipt (handler_id, key, message_id) WHERE key IS NOT NULL;

-- The formats of requests: a table in the library (src/format/format.c).
CREATE FUNCTION outbox_internal.formats(OUT name text, OUT batches boolean) RETURNS SETOF record
LANGUAGE c IMMUTABLE PARALLEL SAFE ROWS 4 AS 'MODULE_PATHNAME', 'outbox_sql_formats';
COMMENT ON FUNCTION outbox_internal.formats IS 'Internal: the formats that the library can send, and which of them in batches';

-- What handlers, schedules and topics can be told is a row of such an option
-- and nowhere else: columns of tables and views, arguments of functions and what
-- their comments say, what is accepted, stored, compared and reset all follow
-- from here.
--
-- type: that of the argument, and of the column (a regprocedure is kept as
-- its name).  initial: the default, NULL for none.  low and high: the range of
-- a number or an interval; high of a text: it is an absolute path of at most
-- so many bytes.  choices: what a text may be.  checker: the function that
-- raises what is wrong with the value.  scope: "push", for handlers with a URL;
-- "superuser", for them to set; "creation", only for who creates it, never
-- changed; "json", for any JSON value, where others are objects.  secret: its
-- kind in outbox.handler_secret, where it is kept.  shown: what the view shows
-- instead of the value.
CREATE TYPE outbox_internal.option AS (
	name text,
	type text,
	initial text,
	low text,
	high text,
	choices text[],
	checker text,
	scope text[],
	secret text,
	shown text,
	help text
);
COMMENT ON TYPE outbox_internal.option IS 'Internal: what can be said of a handler, a schedule or a topic: what it is, what it may be and what it is for';

-- Those of a handler.  What remains is who reads it (the dispatcher:
-- src/dispatch/handlers.c) and doc/handlers.md.
CREATE FUNCTION outbox_internal.options() RETURNS SETOF outbox_internal.option
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE ROWS 30 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	-- Not in SQL, which would plan all of this anew at each call.
	RETURN QUERY VALUES
	('timeout', 'interval', '30 s', '1 ms', '1 hour', NULL::text[], NULL, '{push}'::text[], NULL, NULL, 'of a request'),
	('connect_timeout', 'interval', '5 s', '1 ms', '1 hour', NULL, NULL, '{push}', NULL, NULL, 'of its connection'),
	('concurrency', 'int', '10', '1', '1000', NULL, NULL, '{push}', NULL, NULL, 'requests at once'),
	('rate_limit', 'float8', NULL, '0.001', '1000000', NULL, NULL, '{push}', NULL, NULL, 'requests per second'),
	('rate_burst', 'int', '1', '1', '1000000', NULL, NULL, '{push}', NULL, NULL, 'how many of them at once after a rest'),
	('max_attempts', 'int', '20', '1', '1000', NULL, NULL, '{}', NULL, NULL, 'then the delivery is dead'),
	('backoff', 'interval[]', NULL, NULL, NULL, NULL, 'check_backoff', '{}', NULL, NULL, 'a list of waits, of which the last repeats, instead of the two that follow'),
	('backoff_base', 'interval', '2 s', '1 ms', '30 days', NULL, NULL, '{}', NULL, NULL, 'the first wait, doubling'),
	('backoff_max', 'interval', '4 h', '1 ms', '30 days', NULL, NULL, '{}', NULL, NULL, 'to this one'),
	('jitter', 'float8', '0.2', '0', '1', NULL, NULL, '{}', NULL, NULL, 'the random share of a wait'),
	('retry_after_max', 'interval', '1 h', '0', '30 days', NULL, NULL, '{push}', NULL, NULL, 'the most that a receiver may ask for'),
	('rules', 'jsonb', NULL, NULL, NULL, NULL, 'check_rules', '{}', NULL, NULL, 'what outcomes lead to, by their code'),
	('format', 'text', 'raw', NULL, NULL, ARRAY(SELECT f.name FROM outbox_internal.formats() f), NULL, '{push}', NULL, NULL, 'of the body'),
	('headers', 'jsonb', NULL, NULL, NULL, NULL, 'check_headers', '{push}', NULL,
		'ARRAY(SELECT k FROM pg_catalog.jsonb_object_keys(h.headers) k ORDER BY k) AS header_names', 'to send along'),
	('secret', 'text', NULL, NULL, NULL, NULL, NULL, '{push}', 'signing',
		'EXISTS (SELECT FROM outbox.handler_secret x WHERE x.handler_id OPERATOR(pg_catalog.=) h.id AND x.kind OPERATOR(pg_catalog.=) ''signing'') AS signs',
		'to sign with: whsec_... or whsk_...; outbox.rotate_secret() makes one, and tells it'),
	('authorization', 'text', NULL, NULL, NULL, NULL, NULL, '{push}', 'authorization',
		'EXISTS (SELECT FROM outbox.handler_secret x WHERE x.handler_id OPERATOR(pg_catalog.=) h.id AND x.kind OPERATOR(pg_catalog.=) ''authorization'') AS authorizes',
		'the value of that header'),
	('batch_size', 'int', '1', '1', '1000', NULL, NULL, '{push}', NULL, NULL, 'messages in a request'),
	('batch_wait', 'interval', '0', '0', '1 minute', NULL, NULL, '{push}', NULL, NULL, 'how long to wait for more of them'),
	('http_version', 'text', '1.1', NULL, NULL, '{1.1,2}', NULL, '{push}', NULL, NULL, 'of HTTP'),
	('unix_socket', 'text', NULL, NULL, '107', NULL, NULL, '{push,superuser}', NULL, NULL, 'to connect to instead of the URL''s host'),
	('tls_ca_file', 'text', NULL, NULL, '1023', NULL, NULL, '{push,superuser}', NULL, NULL, 'whom to trust (PEM)'),
	('tls_certificate_file', 'text', NULL, NULL, '1023', NULL, NULL, '{push,superuser}', NULL, NULL, 'to show (PEM)'),
	('tls_key_file', 'text', NULL, NULL, '1023', NULL, NULL, '{push,superuser}', NULL, NULL, 'its key (PEM)'),
	('breaker_threshold', 'int', '20', '0', '1000000', NULL, NULL, '{push}', NULL, NULL, 'failures in a row after which sending stops, 0 for never'),
	('breaker_wait', 'interval', '5 s', '1 ms', '1 day', NULL, NULL, '{push}', NULL, NULL, 'for so long, doubling'),
	('breaker_wait_max', 'interval', '5 min', '1 ms', '1 day', NULL, NULL, '{push}', NULL, NULL, 'to this'),
	('disable_after', 'interval', '5 days', '1 minute', '3650 days', NULL, NULL, '{push}', NULL, NULL, 'of failure the handler is paused'),
	('ordered', 'boolean', 'false', NULL, NULL, NULL, NULL, '{creation}', NULL, NULL, 'messages of one key are tried one at a time in stage order'),
	('on_dead', 'text', 'skip', NULL, NULL, '{skip,block}', NULL, '{}', NULL, NULL, 'whether a dead one holds up its key'),
	('on_settle', 'regprocedure', NULL, NULL, NULL, NULL, NULL, '{push}', NULL, NULL,
		'a function of one argument of type outbox.settlement that is run in the transaction that settles each attempt, as the role that owns it. If it raises an error, nothing it wrote stays and the attempt counts as failed with code on_settle_failed: the message is sent again'),
	('max_age', 'interval', NULL, '1 s', '3650 days', NULL, NULL, '{}', NULL, NULL,
		'how long after it was due at first a delivery may go out: then it is cancelled with code expired. It holds for what is staged, requeued or replayed from then on; a day of it has 24 hours'),
	('delivered_retention', 'interval', NULL, '0', '36500 days', NULL, NULL, '{}', NULL, NULL, 'how long delivered messages are kept, instead of outbox.delivered_retention'),
	('dead_retention', 'interval', NULL, '0', '36500 days', NULL, NULL, '{}', NULL, NULL, 'how long dead and cancelled ones are, instead of outbox.dead_retention');
END $$;
COMMENT ON FUNCTION outbox_internal.options IS 'Internal: every option of a handler';

CREATE SEQUENCE outbox.handler_id AS int;

-- Configuration only.  Pauses, the breaker and counters live in
-- handler_status, so that they do not invalidate every backend's routes.
-- An id is never reused; a dropped handler keeps its row.  The options of
-- outbox_internal.options() are columns too, added below.
CREATE TABLE outbox.handler (
	id int NOT NULL DEFAULT pg_catalog.nextval('outbox.handler_id') CONSTRAINT handler_pkey PRIMARY KEY,
	name text COLLATE "C" NOT NULL,
	topics text[] NOT NULL,
	url text,
	-- by its oid in the database that is home; the name is for other servers, and for people
	creator text NOT NULL DEFAULT SESSION_USER,
	creator_oid oid NOT NULL DEFAULT pg_catalog.to_regrole(pg_catalog.quote_ident(SESSION_USER)),
	created_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	dropped_at timestamptz,
	-- the installation it sends from; rows of a copy arrive in any order, and none may be sent before all are there
	home uuid DEFAULT outbox_internal.home()
);
DO $$
DECLARE
	option record;
BEGIN
	FOR option IN SELECT * FROM outbox_internal.options() LOOP
		CONTINUE WHEN option.secret IS NOT NULL;
		EXECUTE pg_catalog.format('ALTER TABLE outbox.handler ADD COLUMN %I %s', option.name, pg_catalog.replace(option.type, 'regprocedure', 'text'));
		IF option.initial IS NOT NULL THEN
			EXECUTE pg_catalog.format('ALTER TABLE outbox.handler ALTER COLUMN %I SET DEFAULT %L, ALTER COLUMN %1$I SET NOT NULL', option.name, option.initial);
		END IF;
	END LOOP;
END $$;
COMMENT ON TABLE outbox.handler IS 'Handlers and their options; change them with outbox.create_handler() and its kin';
ALTER SEQUENCE outbox.handler_id OWNED BY outbox.handler.id;
CREATE UNIQUE INDEX handler_name ON outbox.handler (name) WHERE dropped_at IS NULL;

CREATE FUNCTION outbox_internal.takes_events(patterns text[]) RETURNS boolean
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_takes_events';
COMMENT ON FUNCTION outbox_internal.takes_events IS 'Internal: is one of the topic patterns for outbox''s own events (outbox.*)?';
-- Those that take events, as a rule none: who has something to tell looks here first (src/table/event_queue.c).
CREATE INDEX handler_events ON outbox.handler (id) WHERE outbox_internal.takes_events(topics) AND dropped_at IS NULL;

-- Handler 0 keeps what nobody takes when outbox.unrouted = dead.
INSERT INTO outbox.handler (id, name, topics, creator, creator_oid) VALUES (0, '(unrouted)', '{}', 'outbox', 0);

CREATE TABLE outbox.handler_status (
	handler_id int NOT NULL CONSTRAINT handler_status_pkey PRIMARY KEY,
	paused_at timestamptz,
	paused_by text,
	paused_reason text,
	breaker text NOT NULL DEFAULT 'closed' CONSTRAINT handler_status_breaker CHECK (breaker IN ('closed', 'open', 'half-open')),
	breaker_reason text,
	breaker_until timestamptz,
	failing_since timestamptz,
	throttled_to double precision,
	-- until when the receiver asked to be left alone, and since when it has failed as the breaker sees it
	held_until timestamptz,
	down_since timestamptz,
	-- of the last five minutes
	recent_attempts int NOT NULL DEFAULT 0,
	recent_failures int NOT NULL DEFAULT 0,
	-- how often an operator gave it a fresh start: the dispatcher forgets what it knew
	renewals int NOT NULL DEFAULT 0
);
COMMENT ON TABLE outbox.handler_status IS 'Pauses and circuit breakers of handlers, how many of their attempts fail, until when they are held, and to how many requests a second they have been slowed down';

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
	-- those that outbox.log_response_headers names
	response_headers jsonb,
	CONSTRAINT attempt_pkey PRIMARY KEY (message_id, handler_id, attempt)
) WITH (vacuum_truncate = off);
COMMENT ON TABLE outbox.attempt IS 'Log of attempts; outcome is the delivery state the attempt led to (1 retrying, 3 delivered, 4 dead, 5 cancelled)';

-- Outcomes that wait for their handler's on_settle function.  The dispatcher
-- adds a row in the transaction that marks the delivery as handed over
-- (leased, due at infinity); an on_settle worker takes it away in the one that
-- settles the delivery.  Few rows: bounded for each handler.
CREATE SEQUENCE outbox.on_settle_queue_id;

CREATE TABLE outbox.on_settle_queue (
	id bigint NOT NULL DEFAULT pg_catalog.nextval('outbox.on_settle_queue_id') CONSTRAINT on_settle_queue_pkey PRIMARY KEY,
	message_id uuid NOT NULL,
	finished_at timestamptz NOT NULL,
	duration_us bigint NOT NULL,
	due_at timestamptz NOT NULL,
	handler_id int NOT NULL,
	attempt int NOT NULL,
	state smallint NOT NULL,
	streak smallint NOT NULL,
	http_status smallint,
	code text,
	error text,
	response text,
	response_headers jsonb
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE outbox.on_settle_queue IS 'Outcomes of attempts that wait for their handler''s on_settle function; due_at and state are what the delivery is to have then';
ALTER SEQUENCE outbox.on_settle_queue_id OWNED BY outbox.on_settle_queue.id;

-- Who may consume a pull handler.  The role's oid is what counts, so that a
-- renamed role keeps its right and a new one of an old name gets none; but
-- only in the database where the right was granted.  Elsewhere oids mean
-- others, and outbox.adopt() finds the roles by their names.  EXECUTE on the
-- consumers' functions is granted along with it.
CREATE TABLE outbox.consumer (
	handler_id int NOT NULL,
	role name NOT NULL,
	role_oid oid NOT NULL,
	home uuid DEFAULT outbox_internal.home(),
	granted_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	granted_by name NOT NULL DEFAULT SESSION_USER,
	CONSTRAINT consumer_pkey PRIMARY KEY (handler_id, role)
);
COMMENT ON TABLE outbox.consumer IS 'Roles that may consume a pull handler, by their oid in the database that is their home; see outbox.grant_consumer()';

-- Messages that this database has accepted from elsewhere.
CREATE TABLE outbox.inbox (
	source text COLLATE "C" NOT NULL,
	message_id text COLLATE "C" NOT NULL,
	accepted_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	expires_at timestamptz NOT NULL,
	CONSTRAINT inbox_pkey PRIMARY KEY (source, message_id)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE outbox.inbox IS 'Messages accepted from elsewhere, each once until it expires; see outbox.accept()';
CREATE INDEX inbox_expires ON outbox.inbox (expires_at);

-- Dedupe keys that count by outbox.dedupe_window although no message's row has
-- them: their message was pruned, or an older one that is kept has it still (src/stage/dedupe.h).
-- tenant is empty where there is none; key is the message's, by which it can be erased.
CREATE TABLE outbox.dedupe_key (
	tenant text COLLATE "C" NOT NULL,
	dedupe_key text COLLATE "C" NOT NULL,
	staged_at timestamptz NOT NULL,
	message_id uuid NOT NULL,
	topic text COLLATE "C" NOT NULL,
	key text COLLATE "C",
	expires_at timestamptz NOT NULL,
	CONSTRAINT dedupe_key_pkey PRIMARY KEY (tenant, dedupe_key)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE outbox.dedupe_key IS 'Dedupe keys that are kept without their message, or used again beside an older one; see outbox.dedupe_window';
CREATE INDEX dedupe_key_expires ON outbox.dedupe_key (expires_at);
CREATE INDEX dedupe_key_key ON outbox.dedupe_key (key) WHERE key IS NOT NULL;

-- How long messages of a tenant are kept where that is not as for the others;
-- NULL: as for the others.
CREATE TABLE outbox.tenant_retention (
	tenant text COLLATE "C" NOT NULL CONSTRAINT tenant_retention_pkey PRIMARY KEY,
	delivered_retention interval,
	dead_retention interval
);
COMMENT ON TABLE outbox.tenant_retention IS 'How long messages of a tenant are kept; see outbox.ensure_tenant_retention()';

-- How far retention has come.  Of each of the times that messages are kept for,
-- the youngest message that was looked at when it was that old; and without such a
-- time, how far the look at everything older has come, which finds what was settled
-- late, or had to be kept when it was looked at first.  No row until it is needed; a
-- subscriber that has pruned gets its publisher's beside its own, and either will do.
CREATE TABLE outbox.prune_position (
	reached uuid NOT NULL,
	kept_for interval
) WITH (vacuum_truncate = off, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE outbox.prune_position IS 'Where retention goes on, for each of the times that messages are kept for';

-- What the server's own retention has done, and when it goes on.  A round removes
-- what was to go when it began (began_at, NULL between two rounds).  seen_at is the
-- clock when it was last looked at, held_until until when it is not believed.
-- Without a key for the reason that prune_position has none; home says whose it is.
CREATE TABLE outbox.retention_status (
	next_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '1 min'::interval,
	seen_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	held_until timestamptz,
	began_at timestamptz,
	swept int NOT NULL DEFAULT 0,
	completed_at timestamptz,
	last_error text,
	last_error_at timestamptz,
	counted_since timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	messages bigint NOT NULL DEFAULT 0,
	deliveries bigint NOT NULL DEFAULT 0,
	attempts bigint NOT NULL DEFAULT 0,
	inbox bigint NOT NULL DEFAULT 0,
	actions bigint NOT NULL DEFAULT 0,
	home uuid DEFAULT outbox_internal.home()
) WITH (vacuum_truncate = off, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE outbox.retention_status IS 'What the server''s own retention has removed, and when it goes on; the view outbox.retention shows it';
INSERT INTO outbox.retention_status DEFAULT VALUES;

-- What operators have done: a row for each call of a function that changed
-- something, in the transaction of that call.  Nobody but the owner can write here.
CREATE SEQUENCE outbox.action_id;

CREATE TABLE outbox.action (
	id bigint NOT NULL DEFAULT pg_catalog.nextval('outbox.action_id') CONSTRAINT action_pkey PRIMARY KEY,
	acted_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	action text NOT NULL,
	login text NOT NULL DEFAULT SESSION_USER,
	role text NOT NULL,
	message_id uuid,
	arguments jsonb NOT NULL,
	affected bigint NOT NULL,
	reason text
) WITH (vacuum_truncate = off);
COMMENT ON TABLE outbox.action IS 'What operators have done; the view outbox.actions shows it';
CREATE INDEX action_message ON outbox.action (message_id, id) WHERE message_id IS NOT NULL;
CREATE INDEX action_bulk ON outbox.action (acted_at) WHERE message_id IS NULL;
CREATE INDEX action_tenant ON outbox.action (((arguments OPERATOR(pg_catalog.->>) 'tenant') COLLATE "C")) WHERE (arguments OPERATOR(pg_catalog.->>) 'tenant') IS NOT NULL;
ALTER SEQUENCE outbox.action_id OWNED BY outbox.action.id;

-- What has happened that handlers may want to be told of, noted in the transaction in
-- which it did, while there is a handler that takes events; the schedule worker makes
-- messages of it (outbox_internal.tell_events()).  topic is that of the event; the
-- columns in the middle are those of a delivery that died, details what else is to be
-- in the payload.  Without a key: rows are taken from anywhere.
CREATE TABLE outbox.event_queue (
	happened_at timestamptz NOT NULL,
	topic text COLLATE "C" NOT NULL,
	handler_id int,
	schedule_id int,
	message_id uuid,
	attempts int,
	http_status smallint,
	code text,
	error text,
	details jsonb
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE outbox.event_queue IS 'What handlers that take outbox''s own events are still to be told of';

-- How many events of a topic there were about one handler or schedule (about) and
-- tenant (empty: none) in the minute that began at began_at: told one by one, and
-- untold, which a last one sums up.  Row ('', 0, '') is locked by who is at it; it is made
-- when it is needed, or a subscriber could not take over its publisher's.
CREATE TABLE outbox.event_rate (
	topic text COLLATE "C" NOT NULL,
	about int NOT NULL,
	tenant text COLLATE "C" NOT NULL,
	began_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	told int NOT NULL DEFAULT 0,
	untold bigint NOT NULL DEFAULT 0,
	first_at timestamptz,
	last_at timestamptz,
	CONSTRAINT event_rate_pkey PRIMARY KEY (topic, about, tenant)
) WITH (vacuum_truncate = off, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE outbox.event_rate IS 'How many of outbox''s own events there were within the last minute, and how many of them have not been told';

-- Those of a schedule.  New ones go last.
CREATE FUNCTION outbox_internal.schedule_options() RETURNS SETOF outbox_internal.option
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE ROWS 16 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN QUERY VALUES
	('cron', 'text', NULL, NULL, NULL, NULL::text[], NULL, '{}'::text[], NULL, NULL, 'when, as outbox.next_runs() takes it'),
	('every', 'interval', NULL, '1 s', '366 days', NULL, NULL, '{}', NULL, NULL, 'instead of cron: how long from one occurrence to the next, counted from starts_at or else from the creation; a day of it has 24 hours'),
	('topic', 'text', NULL, NULL, NULL, NULL, NULL, '{}', NULL, NULL, 'of the messages'),
	('payload', 'jsonb', '{}', NULL, NULL, NULL, NULL, '{json}', NULL, NULL, 'of the messages; {{scheduled_at}} in its strings becomes the time of the occurrence'),
	('timezone', 'text', 'UTC', NULL, NULL, NULL, NULL, '{}', NULL, NULL, 'whose clock cron goes by'),
	('tenant', 'text', NULL, NULL, NULL, NULL, NULL, '{}', NULL, NULL, 'of the messages'),
	('key', 'text', NULL, NULL, NULL, NULL, NULL, '{}', NULL, NULL, 'of the messages'),
	('headers', 'jsonb', NULL, NULL, NULL, NULL, NULL, '{}', NULL, NULL, 'of the messages'),
	('catch_up', 'text', 'skip', NULL, NULL, '{skip,last,all}', NULL, '{}', NULL, NULL, 'which missed occurrences are made up for'),
	('starts_at', 'timestamptz', NULL, NULL, NULL, NULL, NULL, '{}', NULL, NULL, 'no occurrence is before it'),
	('ends_at', 'timestamptz', NULL, NULL, NULL, NULL, NULL, '{}', NULL, NULL, 'none is after it'),
	('function', 'regprocedure', NULL, NULL, NULL, NULL, NULL, '{}', NULL, NULL,
		'instead of topic: a function of one argument of type outbox.occurrence that stages what there is to stage. It is run in a transaction of its own as the role that owns it; if it raises an error nothing that it wrote stays, and it is run again later'),
	('correlation_id', 'text', NULL, NULL, NULL, NULL, NULL, '{}', NULL, NULL, 'of the messages'),
	('grace', 'interval', '1 min', '0', '366 days', NULL, NULL, '{}', NULL, NULL, 'an occurrence that cannot begin within so long after its time is missed'),
	('timeout', 'interval', '30 s', '10 ms', '1 hour', NULL, NULL, '{}', NULL, NULL, 'how long the function may take'),
	('ttl', 'interval', NULL, '1 s', '366 days', NULL, NULL, '{}', NULL, NULL, 'how long after it was staged a message may go out; then it is cancelled with code expired');
END $$;
COMMENT ON FUNCTION outbox_internal.schedule_options IS 'Internal: every option of a schedule';

-- Those of a topic.  New ones go last.
CREATE FUNCTION outbox_internal.topic_options() RETURNS SETOF outbox_internal.option
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE ROWS 8 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN QUERY VALUES
	('description', 'text', NULL, NULL, NULL, NULL::text[], 'check_description', '{}'::text[], NULL, NULL, 'what it is, for people; shown to whoever breaks a rule of it'),
	('require', 'text[]', NULL, NULL, NULL, NULL, 'check_require', '{}', NULL, NULL, 'which of these arguments its messages must have: key, dedupe_key, tenant, correlation_id, headers, min_version, replace_key, expires_at (or ttl)'),
	('max_payload', 'int', NULL, '1', '268435456', NULL, NULL, '{}', NULL, NULL, 'the most bytes of a payload, of JSON as text'),
	('check_function', 'regprocedure', NULL, NULL, NULL, NULL, NULL, '{}', NULL, NULL,
		'a stable or immutable function of one argument of type jsonb, the payload, that returns boolean: what is not true is refused, and so is what it raises an error about. It is run as the role that owns it, in the transaction that stages'),
	('schema', 'jsonb', NULL, NULL, NULL, NULL, 'check_schema', '{}', NULL, NULL, 'a JSON Schema that payloads match, where extension pg_jsonschema is there; as with a check_function, what is no JSON is refused');
END $$;
COMMENT ON FUNCTION outbox_internal.topic_options IS 'Internal: every option of a topic';

CREATE FUNCTION outbox_internal.options_of(kind text) RETURNS SETOF outbox_internal.option
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE ROWS 30 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF kind = 'handler' THEN
		RETURN QUERY SELECT * FROM outbox_internal.options();
	ELSIF kind = 'topic' THEN
		RETURN QUERY SELECT * FROM outbox_internal.topic_options();
	ELSE
		RETURN QUERY SELECT * FROM outbox_internal.schedule_options();
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.options_of IS 'Internal: every option of a handler, a schedule or a topic';

CREATE SEQUENCE outbox.schedule_id AS int;

CREATE TABLE outbox.schedule (
	id int NOT NULL DEFAULT pg_catalog.nextval('outbox.schedule_id') CONSTRAINT schedule_pkey PRIMARY KEY,
	name text COLLATE "C" NOT NULL CONSTRAINT schedule_name UNIQUE,
	creator text NOT NULL DEFAULT SESSION_USER,
	created_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
	-- as outbox.handler.home
	home uuid DEFAULT outbox_internal.home()
);
DO $$
DECLARE
	option record;
BEGIN
	FOR option IN SELECT * FROM outbox_internal.schedule_options() LOOP
		EXECUTE pg_catalog.format('ALTER TABLE outbox.schedule ADD COLUMN %I %s', option.name, pg_catalog.replace(option.type, 'regprocedure', 'text'));
		IF option.initial IS NOT NULL THEN
			EXECUTE pg_catalog.format('ALTER TABLE outbox.schedule ALTER COLUMN %I SET DEFAULT %L, ALTER COLUMN %1$I SET NOT NULL', option.name, option.initial);
		END IF;
	END LOOP;
END $$;
COMMENT ON TABLE outbox.schedule IS 'Schedules and their options; change them with outbox.create_schedule() and its kin';
ALTER SEQUENCE outbox.schedule_id OWNED BY outbox.schedule.id;

-- What becomes of them, apart from what they are, so that an occurrence writes
-- little.  next_run_at is the occurrence that comes next or is being tried,
-- attempts how often that has failed, wake_at when there is something to do:
-- infinity for never.
CREATE TABLE outbox.schedule_status (
	schedule_id int NOT NULL CONSTRAINT schedule_status_pkey PRIMARY KEY,
	attempts int NOT NULL DEFAULT 0,
	runs_function boolean NOT NULL,
	wake_at timestamptz NOT NULL,
	next_run_at timestamptz,
	last_scheduled_at timestamptz,
	last_run_at timestamptz,
	last_message_id uuid,
	last_error text,
	last_error_at timestamptz,
	runs bigint NOT NULL DEFAULT 0,
	missed bigint NOT NULL DEFAULT 0,
	paused_at timestamptz,
	paused_by text,
	paused_reason text
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE outbox.schedule_status IS 'When each schedule occurs next, and how it went so far';
CREATE INDEX schedule_status_wake ON outbox.schedule_status (runs_function, wake_at);

-- What is known of topics, for whoever registers them: nobody has to.  A row
-- is a topic or a pattern; messages are held to the rules of all that take
-- their topic.  Backends cache them (src/stage/topic_rules.c).
CREATE TABLE outbox.topic (
	topic text COLLATE "C" NOT NULL CONSTRAINT topic_pkey PRIMARY KEY,
	creator text NOT NULL DEFAULT SESSION_USER,
	created_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
DO $$
DECLARE
	option record;
BEGIN
	FOR option IN SELECT * FROM outbox_internal.topic_options() LOOP
		EXECUTE pg_catalog.format('ALTER TABLE outbox.topic ADD COLUMN %I %s', option.name, pg_catalog.replace(option.type, 'regprocedure', 'text'));
		IF option.initial IS NOT NULL THEN
			EXECUTE pg_catalog.format('ALTER TABLE outbox.topic ALTER COLUMN %I SET DEFAULT %L, ALTER COLUMN %1$I SET NOT NULL', option.name, option.initial);
		END IF;
	END LOOP;
END $$;
COMMENT ON TABLE outbox.topic IS 'Topics that are registered, and what their messages are held to; change them with outbox.create_topic() and its kin';

-- A publication of all tables takes these along; those without a key could
-- not be updated then.
ALTER TABLE outbox.installation REPLICA IDENTITY FULL;
ALTER TABLE outbox.handler_secret REPLICA IDENTITY FULL;
ALTER TABLE outbox.prune_position REPLICA IDENTITY FULL;
ALTER TABLE outbox.retention_status REPLICA IDENTITY FULL;
ALTER TABLE outbox.event_queue REPLICA IDENTITY FULL;

-- A restored dump or an upgraded cluster keeps everything.
SELECT pg_catalog.pg_extension_config_dump('outbox.installation', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.message', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.delivery', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.receipt', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.handler_id', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.handler', 'WHERE id OPERATOR(pg_catalog.<>) 0');
SELECT pg_catalog.pg_extension_config_dump('outbox.handler_status', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.handler_secret', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.attempt', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.on_settle_queue_id', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.on_settle_queue', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.consumer', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.inbox', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.tenant_retention', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.dedupe_key', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.prune_position', 'WHERE false');
SELECT pg_catalog.pg_extension_config_dump('outbox.retention_status', 'WHERE false');
SELECT pg_catalog.pg_extension_config_dump('outbox.action_id', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.action', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.schedule_id', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.schedule', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.schedule_status', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.topic', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.event_queue', 'WHERE false');
SELECT pg_catalog.pg_extension_config_dump('outbox.event_rate', 'WHERE false');

-----------------------------------------------------------------------------
-- Plumbing: not for callers
-----------------------------------------------------------------------------

-- The one place that writes down what an operator has done: called by each
-- function that does something, when it has been done, with what it was told.  A call
-- that changed nothing leaves nothing.  caller is the role that called, where that is
-- known; otherwise it is the one that SET ROLE chose, or who logged in.
CREATE FUNCTION outbox_internal.note_action(action text, arguments jsonb, affected bigint, reason text DEFAULT NULL, message_id uuid DEFAULT NULL,
	caller text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	-- A subscriber of a publication has its publisher's rows and not its sequence.
	WHILE affected > 0 LOOP
		INSERT INTO outbox.action (action, role, message_id, arguments, affected, reason)
		VALUES (note_action.action, coalesce(caller, nullif(current_setting('role'), 'none'), session_user), note_action.message_id,
			jsonb_strip_nulls(note_action.arguments), note_action.affected, note_action.reason)
		ON CONFLICT ON CONSTRAINT action_pkey DO NOTHING;
		EXIT WHEN FOUND;
		PERFORM setval('outbox.action_id', max(a.id)) FROM outbox.action a;
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.note_action IS 'Internal: write down what an operator has done: the function, what it was told, how much it changed, why, for which message if it was for one, and the role that called it';

-- The same for what travels as names and texts.  Of secrets and of headers, which may
-- hold some, only that they were given is kept; of a URL no query, which may.
CREATE FUNCTION outbox_internal.note_change(action text, caller text, given jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	hidden text;
BEGIN
	FOREACH hidden IN ARRAY '{secret,authorization,headers,payload}'::text[] LOOP
		IF given ? hidden THEN
			given := jsonb_set(given, ARRAY[hidden], '"(not kept)"');
		END IF;
	END LOOP;
	IF given ? 'url' THEN
		given := jsonb_set(given, '{url}', to_jsonb(regexp_replace(given ->> 'url', '[?#].*$', '')));
	END IF;
	PERFORM outbox_internal.note_action(action, given - 'reason', 1, given ->> 'reason', NULL, caller);
END $$;
COMMENT ON FUNCTION outbox_internal.note_change IS 'Internal: write down that a handler or a schedule was created or changed, with what was given but secrets';

-- What has been erased is not to be found among what was done to it.
CREATE FUNCTION outbox_internal.forget_in_actions(ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
	UPDATE outbox.action a SET message_id = NULL, arguments = '{}', reason = NULL WHERE a.message_id = ANY (ids);
END $$;
COMMENT ON FUNCTION outbox_internal.forget_in_actions IS 'Internal: take these messages out of what was done to them';

CREATE FUNCTION outbox_internal.prune_actions(batch int) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
	before timestamptz := clock_timestamp() - (SELECT r.actions FROM outbox_internal.retention_settings() r);
	n bigint;
BEGIN
	-- In the order of their ids, which is that of their times, give or take.  Only those
	-- that go are locked: a lock is a write, and this is asked in each round.
	DELETE FROM outbox.action a WHERE a.ctid = ANY (ARRAY(
		SELECT l.ctid FROM outbox.action l
		WHERE l.ctid = ANY (ARRAY(
			SELECT o.ctid FROM (SELECT i.ctid, i.acted_at FROM outbox.action i ORDER BY i.id LIMIT batch) AS o
			WHERE o.acted_at < before))
		FOR UPDATE SKIP LOCKED));
	GET DIAGNOSTICS n = ROW_COUNT;
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox_internal.prune_actions IS 'Internal: remove up to so many actions that are older than outbox.action_retention; returns how many';

-- Ring the doorbell for one delivery when this transaction commits.
-- kind: 0 it is due or will be, 1 it changed (unsent copies are forgotten), 2 it
-- is due and is to go out at once, whatever its handler waits for.
CREATE FUNCTION outbox_internal.ring(handler_id int, kind int, due_at timestamptz, id uuid) RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring';
COMMENT ON FUNCTION outbox_internal.ring IS 'Internal: tell the dispatcher about one delivery at commit';

CREATE FUNCTION outbox_internal.ring_end(end_at timestamptz) RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring_end';
COMMENT ON FUNCTION outbox_internal.ring_end IS 'Internal: tell the dispatcher at commit that an outstanding delivery expires then';

CREATE FUNCTION outbox_internal.ring_handlers() RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring_handlers';
COMMENT ON FUNCTION outbox_internal.ring_handlers IS 'Internal: tell every session and the dispatcher at commit that handlers changed';

CREATE FUNCTION outbox_internal.ring_status() RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring_status';
COMMENT ON FUNCTION outbox_internal.ring_status IS 'Internal: tell consumers and the dispatcher at commit that a pause, a secret, a grant or the installation changed, and where messages go has not';

CREATE FUNCTION outbox_internal.ring_rescan() RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring_rescan';
COMMENT ON FUNCTION outbox_internal.ring_rescan IS 'Internal: ask the dispatcher at commit to look at every outstanding delivery once';

CREATE FUNCTION outbox_internal.ring_launcher() RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring_launcher';
COMMENT ON FUNCTION outbox_internal.ring_launcher IS 'Internal: ask the launcher at commit to look for databases that need a dispatcher';

CREATE FUNCTION outbox_internal.ring_schedules() RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring_schedules';
COMMENT ON FUNCTION outbox_internal.ring_schedules IS 'Internal: tell the dispatcher at commit that something is to be done for a schedule at another time';

-- Something has happened that handlers may want to be told of: about a handler or a
-- schedule, with what is to be in the payload.  Written with what it tells of, and
-- only if there is a handler that takes events.
CREATE FUNCTION outbox_internal.note_event(topic text, handler_id int, schedule_id int, details jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF EXISTS (SELECT FROM outbox.handler h WHERE outbox_internal.takes_events(h.topics) AND h.dropped_at IS NULL) THEN
		INSERT INTO outbox.event_queue (happened_at, topic, handler_id, schedule_id, details)
		VALUES (clock_timestamp(), note_event.topic, note_event.handler_id, note_event.schedule_id, jsonb_strip_nulls(note_event.details));
		PERFORM outbox_internal.ring_schedules();
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.note_event IS 'Internal: have handlers that take outbox''s own events told of something, with that in the payload';

CREATE FUNCTION outbox_internal.ring_topics() RETURNS void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_ring_topics';
COMMENT ON FUNCTION outbox_internal.ring_topics IS 'Internal: tell every session at commit that topics changed';

-- The subscriber of a publication of all tables has a handler 0 of its own.
CREATE FUNCTION outbox_internal.skip_row() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox_internal.skip_row IS 'Internal trigger: leave a row out that is there already';

-- What a handler is may also be changed by hand: then these tell the routes
-- that backends have cached, and the dispatcher.
CREATE FUNCTION outbox_internal.handler_changed() RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_handler_changed';
COMMENT ON FUNCTION outbox_internal.handler_changed IS 'Internal trigger: invalidate cached routes and tell the dispatcher';

CREATE FUNCTION outbox_internal.status_changed() RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_status_changed';
COMMENT ON FUNCTION outbox_internal.status_changed IS 'Internal trigger: tell the dispatcher that a pause, a secret or the installation changed';

CREATE FUNCTION outbox_internal.topic_changed() RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_topic_changed';
COMMENT ON FUNCTION outbox_internal.topic_changed IS 'Internal trigger: invalidate cached rules of topics';

-- The triggers there are, all ENABLE ALWAYS; outbox.health() and
-- outbox.verify() compare.  The functions of this extension need none but the
-- first: they say themselves what they change, because a restore can leave
-- triggers switched off (pg_restore --data-only --disable-triggers).
CREATE FUNCTION outbox_internal.triggers(OUT on_table text, OUT name text, OUT definition text) RETURNS SETOF record
LANGUAGE plpgsql IMMUTABLE ROWS 6 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN QUERY
	SELECT t.on_table, t.name, format('CREATE TRIGGER %s %s ON outbox.%s FOR EACH %s', t.name, t.events, t.on_table, t.execution)
	FROM (VALUES
		('handler', 'keep_unrouted', 'BEFORE INSERT', 'ROW WHEN (NEW.id OPERATOR(pg_catalog.=) 0) EXECUTE FUNCTION outbox_internal.skip_row()'),
		('handler', 'handler_changed', 'AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE', 'STATEMENT EXECUTE FUNCTION outbox_internal.handler_changed()'),
		-- Not for updates of the breaker: those are the dispatcher's own.
		('handler_status', 'status_changed', 'AFTER INSERT OR UPDATE OF paused_at, renewals OR DELETE OR TRUNCATE', 'STATEMENT EXECUTE FUNCTION outbox_internal.status_changed()'),
		('handler_secret', 'status_changed', 'AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE', 'STATEMENT EXECUTE FUNCTION outbox_internal.status_changed()'),
		('consumer', 'status_changed', 'AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE', 'STATEMENT EXECUTE FUNCTION outbox_internal.status_changed()'),
		('installation', 'status_changed', 'AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE', 'STATEMENT EXECUTE FUNCTION outbox_internal.status_changed()'),
		('topic', 'topic_changed', 'AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE', 'STATEMENT EXECUTE FUNCTION outbox_internal.topic_changed()'))
		AS t (on_table, name, events, execution);
END $$;
COMMENT ON FUNCTION outbox_internal.triggers IS 'Internal: the triggers on the tables of this extension, each with the statement that makes it';

DO $$
DECLARE
	t record;
BEGIN
	FOR t IN SELECT * FROM outbox_internal.triggers() LOOP
		EXECUTE t.definition;
		EXECUTE pg_catalog.format('ALTER TABLE outbox.%I ENABLE ALWAYS TRIGGER %I', t.on_table, t.name);
	END LOOP;
END $$;

CREATE FUNCTION outbox_internal.trigger_faults(OUT on_table text, OUT name text, OUT fault text, OUT remedy text) RETURNS SETOF record
LANGUAGE plpgsql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN QUERY
	SELECT t.on_table, t.name,
		CASE WHEN g.tgname IS NULL THEN 'missing' WHEN g.tgenabled = 'D' THEN 'disabled' ELSE 'switched off for outbox itself' END,
		concat(CASE WHEN g.tgname IS NULL THEN t.definition || '; ' END, format('ALTER TABLE outbox.%I ENABLE ALWAYS TRIGGER %I', t.on_table, t.name))
	FROM outbox_internal.triggers() t
	LEFT JOIN pg_trigger g ON g.tgrelid = to_regclass('outbox.' || quote_ident(t.on_table)) AND g.tgname = t.name AND NOT g.tgisinternal
	WHERE g.tgenabled IS DISTINCT FROM 'A';
END $$;
COMMENT ON FUNCTION outbox_internal.trigger_faults IS 'Internal: which triggers of this extension are not as they were installed, and the statements that put them right';

-----------------------------------------------------------------------------
-- Policies and secrets of handlers
-----------------------------------------------------------------------------

CREATE FUNCTION outbox_internal.check_rules(rules jsonb) RETURNS void
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_check_rules';
COMMENT ON FUNCTION outbox_internal.check_rules IS 'Internal: raise invalid_parameter_value, naming the rule and the field, unless this is an object of rules as outbox.create_handler() takes them';

-- No statement has a secret among its parameters, where tools that watch
-- statements would log it: what was given to the running call of
-- outbox.create_handler() or outbox.alter_handler(), or what is generated, goes
-- into the table in C.
CREATE FUNCTION outbox_internal.store_secret(handler_id int, kind text, source text, created_at timestamptz) RETURNS text
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_store_secret';
COMMENT ON FUNCTION outbox_internal.store_secret IS 'Internal: store a secret of kind signing or authorization; source is whsec (HMAC-SHA256) or whsk (Ed25519) for a new one, or the option it was given with to the call that is running. Returns what a receiver needs to verify with a signing secret, NULL for an authorization; raises invalid_parameter_value for what is none';

-- Nor are headers and payloads to be in the server's log, with the plans of what
-- looks at options or errors otherwise (outbox.verify(), outbox.report(),
-- definitions).  In force until the function ends that calls this one, or its
-- block with an EXCEPTION, as if it were in a SET of it; it has to have some SET.
CREATE FUNCTION outbox_internal.stay_unseen() RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_stay_unseen';
COMMENT ON FUNCTION outbox_internal.stay_unseen IS 'Internal: until the function that calls this ends, auto_explain and debug_print_plan log none of the statements in it';

CREATE FUNCTION outbox_internal.public_key(secret text) RETURNS text
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_public_key';
COMMENT ON FUNCTION outbox_internal.public_key IS 'Internal: the whpk_ public key of a whsk_ secret, NULL for a whsec_ one; raises invalid_parameter_value for what is neither';

-- Rotation keeps the scheme: who verifies HMAC gets a new secret, who verifies
-- Ed25519 a new public key.  The handler row is locked, not written: two
-- rotations follow each other and no route is invalidated.
CREATE FUNCTION outbox_internal.rotate_secret(caller text, names text[], texts text[]) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts);
	handler text := given ->> 'handler';
	keep interval := given ->> 'keep';
	scheme text := given ->> 'scheme';
	rotated int := outbox_internal.live_handler(handler);
	at timestamptz := clock_timestamp();
BEGIN
	PERFORM outbox_internal.check_choice('scheme', scheme, '{whsec,whsk}');
	IF keep IS NULL OR keep < interval '0' OR keep > interval '366 days' THEN
		RAISE EXCEPTION 'invalid time to keep the old secret: %', coalesce(keep::text, 'NULL')
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'It is an interval between 0 (the old secret ends at once) and a year.';
	END IF;

	PERFORM FROM outbox.handler h WHERE h.id = rotated AND h.url IS NOT NULL FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'handler "%" is not called over HTTP, so it has no signing secret', handler
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Only handlers with a URL sign their requests.';
	END IF;

	IF scheme IS NULL THEN
		SELECT CASE WHEN outbox_internal.public_key(s.secret) IS NULL THEN 'whsec' ELSE 'whsk' END INTO scheme FROM outbox.handler_secret s
		WHERE s.handler_id = rotated AND s.kind = 'signing' ORDER BY s.created_at DESC LIMIT 1;
	END IF;
	UPDATE outbox.handler_secret s SET expires_at = least(s.expires_at, at + keep)
	WHERE s.handler_id = rotated AND s.kind = 'signing';
	DELETE FROM outbox.handler_secret s
	WHERE s.handler_id = rotated AND s.kind = 'signing' AND s.expires_at <= at;
	-- No more sign than OUTBOX_MAX_SIGNATURES, the new one among them.
	DELETE FROM outbox.handler_secret s
	WHERE s.ctid = ANY (ARRAY(SELECT o.ctid FROM outbox.handler_secret o
		WHERE o.handler_id = rotated AND o.kind = 'signing' ORDER BY o.created_at DESC OFFSET 9));

	PERFORM outbox_internal.note_change('rotate_secret', caller, given);
	RETURN outbox_internal.store_secret(rotated, 'signing', coalesce(scheme, 'whsec'), at);
END $$;
COMMENT ON FUNCTION outbox_internal.rotate_secret IS 'Internal: body of outbox.rotate_secret()';

CREATE FUNCTION outbox.rotate_secret(handler text, keep interval DEFAULT '24 hours', scheme text DEFAULT NULL, reason text DEFAULT NULL) RETURNS text
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner';
COMMENT ON FUNCTION outbox.rotate_secret IS
'Give a push handler a new signing secret, or its first, and return what its receiver needs to verify with it, this once:
the whsec_ secret (HMAC-SHA256), or the whpk_ public key of a whsk_ one (Ed25519).
keep: for so long requests carry signatures by the old secrets as well, the latest nine of them.
scheme: whsec or whsk; NULL for that of the old secret, whsec if there is none.
reason: kept in outbox.actions, which keeps no secret.
Errors: undefined_object for an unknown handler, invalid_parameter_value for a pull handler or bad arguments.';

-----------------------------------------------------------------------------
-- Producers
-----------------------------------------------------------------------------

-- Pieces of a time range over message ids: a message staged at time t has an
-- id at or after id_floor(t).
CREATE FUNCTION outbox_internal.id_floor(at timestamptz) RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_id_floor';
COMMENT ON FUNCTION outbox_internal.id_floor IS 'Internal: the smallest id that a message staged at that time could have';

CREATE FUNCTION outbox_internal.seed_ids() RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_seed_ids';
COMMENT ON FUNCTION outbox_internal.seed_ids IS 'Internal: have the ids of messages go on above the highest one there is, which came from another server';

CREATE FUNCTION outbox.stage(topic text, payload jsonb DEFAULT '{}', key text DEFAULT NULL, dedupe_key text DEFAULT NULL,
	tenant text DEFAULT NULL, correlation_id text DEFAULT NULL, headers jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, min_version int DEFAULT NULL,
	replace_key text DEFAULT NULL, max_delay interval DEFAULT NULL, expires_at timestamptz DEFAULT NULL, ttl interval DEFAULT NULL) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_stage';
COMMENT ON FUNCTION outbox.stage IS
'Stage a message in the running transaction: it is delivered to every handler that takes its topic if, and only if, the transaction commits.
topic: lowercase words of a-z, 0-9, _ and - joined by dots, up to 255 bytes.
payload: any JSON value but SQL NULL, up to outbox.max_payload_size as text. Cast json, text and numbers: pass to_jsonb(x), x::jsonb or jsonb_build_object(...).
key: what the message is about; on ordered handlers messages of one key are delivered in stage order.
dedupe_key: a second message with the same one is not staged, for as long as the first is kept, or for outbox.dedupe_window after it was staged; unique within a tenant (messages without one are one tenant), over all topics and producers: begin it with what it is about, as in invoice-42-paid.
tenant, correlation_id: whose it is and what it belongs to. Each of key, dedupe_key, tenant and correlation_id has up to 255 bytes and may not be empty.
headers: a JSON object of strings, sent as HTTP headers; up to 64.
deliver_at, or delay: not before that time, or that much later; up to 100 years ahead. A time in the past means now. Days and months of a delay are counted in the session''s TimeZone, as in now() + delay: a day over a change of the clocks has 23 or 25 hours.
min_version: consumers that claim with a lower version leave the message alone.
replace_key: the message takes the place of the one before with the same replace_key in the tenant: deliveries of that one which have not been tried are cancelled with code replaced, in this transaction. Who stages another one waits until it has ended. With a delay, only the last of many in a row is delivered. Up to 255 bytes; not together with a dedupe_key.
max_delay: however many replace each other, the last is due no later than so long after the first.
expires_at, or ttl: by that time, or within so long from now, it has to have gone out; a delivery that has not is cancelled with code expired, and so is one that would have to be tried again after that. A request that is out and a lease have gone out. Later than it is due, up to 100 years ahead; days and months as those of a delay.
Returns the message id, a uuid v7, or that of the first message with the same dedupe_key.
Errors: null_value_not_allowed, invalid_parameter_value, datetime_field_overflow and program_limit_exceeded for arguments as above; reserved_name for a topic of outbox''s own events (outbox.*); unique_violation when dedupe_key was used for another topic; undefined_object when no handler takes the topic and outbox.unrouted is error, or nobody has registered it and outbox.unknown_topics is; what outbox.create_topic() says for a message that breaks a rule of its topic; serialization_failure when a duplicate is invisible to a REPEATABLE READ or SERIALIZABLE transaction.';

CREATE FUNCTION outbox.stage_text(topic text, payload text, content_type text DEFAULT 'text/plain; charset=utf-8',
	key text DEFAULT NULL, dedupe_key text DEFAULT NULL,
	tenant text DEFAULT NULL, correlation_id text DEFAULT NULL, headers jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, min_version int DEFAULT NULL,
	replace_key text DEFAULT NULL, max_delay interval DEFAULT NULL, expires_at timestamptz DEFAULT NULL, ttl interval DEFAULT NULL) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_stage_text';
COMMENT ON FUNCTION outbox.stage_text IS
'Like outbox.stage(), for a payload that is a text: XML, CSV, or JSON that has to arrive as it is written. It is sent as it is, in UTF-8 whatever the encoding of the database is; within an envelope or a structured CloudEvent as a JSON string, or as the JSON that it is.
payload: any text but SQL NULL, up to outbox.max_payload_size in UTF-8.
content_type: what the text is, as the HTTP header of that name says it: type/subtype and parameters, up to 255 bytes; no charset but utf-8. If the subtype is json or ends with +json, the text has to be JSON.
The other arguments, the result and the errors are those of outbox.stage(), and invalid_text_representation for JSON that is none.';

CREATE FUNCTION outbox.stage_bytes(topic text, payload bytea, content_type text DEFAULT 'application/octet-stream',
	key text DEFAULT NULL, dedupe_key text DEFAULT NULL,
	tenant text DEFAULT NULL, correlation_id text DEFAULT NULL, headers jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, min_version int DEFAULT NULL,
	replace_key text DEFAULT NULL, max_delay interval DEFAULT NULL, expires_at timestamptz DEFAULT NULL, ttl interval DEFAULT NULL) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_stage_bytes';
COMMENT ON FUNCTION outbox.stage_bytes IS
'Like outbox.stage(), for a payload of bytes: protobuf, Avro, an image, a text in another encoding. They are sent as they are; within an envelope or a structured CloudEvent as data_base64, a JSON string of their base64.
payload: any bytes but SQL NULL, up to outbox.max_payload_size.
content_type: what they are, as the HTTP header of that name says it: type/subtype and parameters, up to 255 bytes.
The other arguments, the result and the errors are those of outbox.stage().';

CREATE FUNCTION outbox.try_stage(topic text, payload jsonb DEFAULT '{}', key text DEFAULT NULL, dedupe_key text DEFAULT NULL,
	tenant text DEFAULT NULL, correlation_id text DEFAULT NULL, headers jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, min_version int DEFAULT NULL,
	replace_key text DEFAULT NULL, max_delay interval DEFAULT NULL, expires_at timestamptz DEFAULT NULL, ttl interval DEFAULT NULL,
	OUT id uuid, OUT status text, OUT detail text) RETURNS record
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_try_stage';
COMMENT ON FUNCTION outbox.try_stage IS
'Like outbox.stage(), but tells what is wrong with the arguments instead of raising it. Arguments as there.
Returns one row. status created: staged as id. exists: id is the first message with this dedupe_key. dedupe_conflict: the dedupe_key belongs to message id, of another topic. invalid: detail says which argument is wrong, which rule of its topic the message breaks, that nobody has registered the topic where outbox.unknown_topics is error, or that no handler takes it where outbox.unrouted is.
Call it in FROM, as in SELECT * FROM outbox.try_stage(...): PostgreSQL runs (outbox.try_stage(...)).* once for each column.
Errors that are not about the arguments, such as serialization_failure or a read-only transaction, are raised.';

CREATE FUNCTION outbox.stage_many(topic text, payloads jsonb[], keys text[] DEFAULT NULL, dedupe_keys text[] DEFAULT NULL,
	tenant text DEFAULT NULL, correlation_id text DEFAULT NULL, headers jsonb DEFAULT NULL,
	deliver_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL, min_version int DEFAULT NULL,
	expires_at timestamptz DEFAULT NULL, ttl interval DEFAULT NULL) RETURNS SETOF uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_stage_many';
COMMENT ON FUNCTION outbox.stage_many IS
'Stage many messages of one topic at once.
payloads: one message each, none NULL. keys, dedupe_keys: NULL, or as many elements as payloads, NULL where a message has none. The other arguments hold for all of them, as in outbox.stage(); there is no replace_key.
Returns the message ids in the order of payloads; where a dedupe_key repeats, in the array or in the table, that of the first message.
Errors: as outbox.stage(), and array_subscript_error for arrays of more than one dimension or of different length. All are staged or none.';

-----------------------------------------------------------------------------
-- Watched tables
--
-- What is watched is written nowhere but in the triggers: outbox.watch() runs
-- as its caller, who owns the table, and makes them with their options as the
-- one argument (src/watch).
-----------------------------------------------------------------------------

CREATE FUNCTION outbox.announce() RETURNS trigger
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_announce';
COMMENT ON FUNCTION outbox.announce IS
'The trigger function of watched tables: stages a message for each change of a row. outbox.watch() makes the triggers, and passes the options as their one argument.
Raises insufficient_privilege while the table''s owner has no right to execute this function; undefined_column if a column is gone that messages cannot do without; object_not_in_prerequisite_state for a TRUNCATE that is refused; and what outbox.stage() does. The change fails with it.';

CREATE FUNCTION outbox.watch(relation regclass, prefix text DEFAULT 'model', model text DEFAULT NULL, record_id text[] DEFAULT NULL,
	tenant text DEFAULT NULL, key text DEFAULT NULL, include text[] DEFAULT NULL, ignore text[] DEFAULT NULL,
	soft_delete text DEFAULT NULL, actor jsonb DEFAULT NULL, context jsonb DEFAULT NULL, condition text DEFAULT NULL,
	operations text[] DEFAULT '{insert,update,delete}', truncate text DEFAULT NULL) RETURNS text
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_watch';
COMMENT ON FUNCTION outbox.watch IS
'Announce the changes of a table: each row that is inserted, updated or deleted, whoever writes it and however, stages a message in the same transaction. For the table''s owner. Called again it changes the watch to exactly these options.
relation: a table, partitioned or not.
prefix: topics are prefix.created, prefix.updated, prefix.deleted and prefix.truncated.
model: what the payload calls the table; its name, if not given.
record_id: columns that tell the rows apart; the primary key, if not given.
tenant: the column with the tenant of the message. key: the column with its key; if not given, the key is model:recordId, so that ordered handlers get the changes of each record in order.
include: columns whose values go into the payload, as "values"; no others do.
ignore: columns that do not count: an update of nothing else is silent.
soft_delete: a column that is set (true, if it is a boolean) in rows that count as deleted: the update that sets it is a delete, the one that clears it a creation with "restored": true.
actor: an object of fields of the payload and settings of the session, such as {"userId": "app.user_id"}; what is not set is left out.
context: an object of fields of the payload and columns, such as {"ownerId": "owner_id"}, or an array of columns.
condition: an SQL expression over OLD and NEW, the WHEN of the triggers. For an INSERT all of OLD is NULL, for a DELETE all of NEW. It runs with the rights of the role that writes.
operations: some of insert, update and delete. A soft delete counts as delete, its opposite as insert.
truncate: announce, refuse or ignore; if not given, announce where deletes are.
The payload has model, kind (created, updated, deleted, truncated), recordId (an object where there are several columns), previousRecordId if that has changed, tenantId, changedFields of an update, and what is asked for. An update that changes nothing is silent.
Returns created, changed or unchanged.
Errors: insufficient_privilege for others than the owner; wrong_object_type for what is no table; undefined_column, undefined_object without a primary key and record_id; invalid_parameter_value for options; feature_not_supported for generated columns that are not stored; object_not_in_prerequisite_state for a partition of a watched table; and what CREATE TRIGGER raises about the condition.';

CREATE FUNCTION outbox.unwatch(relation regclass) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_unwatch';
COMMENT ON FUNCTION outbox.unwatch IS
'End outbox.watch() of a table; what it has staged stays. For the table''s owner. Returns whether it was watched. Raises insufficient_privilege for others, object_not_in_prerequisite_state for a partition of a watched table';

-----------------------------------------------------------------------------
-- Handlers
-----------------------------------------------------------------------------

-- The public functions of this section know who calls them, which one with
-- SECURITY DEFINER cannot: outbox_sql_as_owner notes the caller and runs the
-- function of the same name in schema outbox_internal as the owner, with the
-- arguments that are not NULL as two arrays, names and texts.

CREATE FUNCTION outbox_internal.check_pattern(pattern text) RETURNS void
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_check_pattern';
COMMENT ON FUNCTION outbox_internal.check_pattern IS 'Internal: raise invalid_parameter_value unless it is a topic pattern';

CREATE FUNCTION outbox_internal.check_url(url text) RETURNS void
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_check_url';
COMMENT ON FUNCTION outbox_internal.check_url IS 'Internal: raise invalid_parameter_value unless requests may go to this URL';

CREATE FUNCTION outbox_internal.check_headers(headers jsonb) RETURNS void
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_check_headers';
COMMENT ON FUNCTION outbox_internal.check_headers IS 'Internal: raise invalid_parameter_value unless a handler may send these headers';

-- What an on_settle function is called with.
CREATE TYPE outbox.settlement AS (
	message_id uuid,
	handler text,
	topic text,
	payload jsonb,
	key text,
	tenant text,
	correlation_id text,
	attempt int,
	outcome text,
	code text,
	http_status int,
	response text,
	settled_at timestamptz,
	content_type text,
	payload_text text,
	payload_bytes bytea
);
COMMENT ON TYPE outbox.settlement IS
'What an on_settle function is told: the message, the handler''s name, the attempt that has been made and its outcome (delivered, retrying, dead, cancelled) with its code (NULL if delivered), the HTTP status (NULL if there was no answer), the start of the response, as much of it as outbox.max_response_capture keeps, and the time of this settlement. content_type and payload_text or payload_bytes are of a message whose payload is a text or bytes, and then payload is NULL';

-- The options of a call as one object: jsonb ones as they are, the rest as text.
CREATE FUNCTION outbox_internal.given(names text[], texts text[], kind text DEFAULT 'handler') RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := jsonb_object(names, texts);
	o outbox_internal.option;
BEGIN
	FOR o IN SELECT * FROM outbox_internal.options_of(kind) t WHERE t.type = 'jsonb' AND given ? t.name LOOP
		given := jsonb_set(given, ARRAY[o.name], (given ->> o.name)::jsonb);
		IF jsonb_typeof(given -> o.name) <> 'object' AND NOT 'json' = ANY (o.scope) THEN
			RAISE EXCEPTION '% must be a JSON object', o.name
				USING ERRCODE = 'invalid_parameter_value',
					HINT = format('Leave it out if there are none; outbox.alter_%s() removes them with reset.', kind);
		END IF;
	END LOOP;
	RETURN given;
END $$;
COMMENT ON FUNCTION outbox_internal.given IS 'Internal: the arguments of a call about a handler, a schedule or a topic as one JSON object';

CREATE FUNCTION outbox_internal.check_name(name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF name IS NULL THEN
		RAISE EXCEPTION 'handler must not be null'
			USING ERRCODE = 'null_value_not_allowed', HINT = 'Any text of 1 to 63 bytes without control characters is a name.';
	ELSIF name = '' THEN
		RAISE EXCEPTION 'handler name must not be empty'
			USING ERRCODE = 'invalid_name', HINT = 'Any text of 1 to 63 bytes without control characters is a name.';
	ELSIF octet_length(name) > 63 THEN
		RAISE EXCEPTION 'handler name is too long: % bytes', octet_length(name)
			USING ERRCODE = 'name_too_long', HINT = 'A name has at most 63 bytes.';
	ELSIF name ~ '[\x01-\x1f\x7f]' THEN
		RAISE EXCEPTION 'handler name has a control character'
			USING ERRCODE = 'invalid_name', HINT = 'Any text of 1 to 63 bytes without control characters is a name.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_name IS 'Internal: raise null_value_not_allowed, invalid_name or name_too_long unless a handler may have this name';

CREATE FUNCTION outbox_internal.check_number(option text, value float8, low float8, high float8) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF NOT value BETWEEN low AND high THEN
		RAISE EXCEPTION 'invalid %: %', option, value
			USING ERRCODE = 'invalid_parameter_value', HINT = format('It is a number from %s to %s.', low, high);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_number IS 'Internal: raise invalid_parameter_value unless a number is in range';

CREATE FUNCTION outbox_internal.check_interval(option text, value interval, low text, high text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF value IS NULL OR NOT value BETWEEN low::interval AND high::interval THEN
		RAISE EXCEPTION 'invalid %: %', option, coalesce(value::text, 'NULL')
			USING ERRCODE = 'invalid_parameter_value', HINT = format('It is an interval from %s to %s.', low, high);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_interval IS 'Internal: raise invalid_parameter_value unless an interval is in range';

CREATE FUNCTION outbox_internal.check_choice(option text, value text, choices text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF NOT value = ANY (choices) THEN
		RAISE EXCEPTION 'invalid %: "%"', option, value
			USING ERRCODE = 'invalid_parameter_value', HINT = format('It is one of %s.', array_to_string(choices, ', '));
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_choice IS 'Internal: raise invalid_parameter_value unless a text is one of several';

-- A path of the server's file system.
CREATE FUNCTION outbox_internal.check_path(option text, value text, max_length int) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF value !~ '^/' OR value ~ '[\x01-\x1f\x7f]' OR octet_length(value) > max_length THEN
		RAISE EXCEPTION 'invalid %: "%"', option, value
			USING ERRCODE = 'invalid_parameter_value',
				HINT = format('It is an absolute path of up to %s bytes without control characters.', max_length);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_path IS 'Internal: raise invalid_parameter_value unless a text is an absolute path';

CREATE FUNCTION outbox_internal.check_topics(topics text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	pattern text;
BEGIN
	IF topics IS NULL OR EXISTS (SELECT FROM unnest(topics) t WHERE t IS NULL) THEN
		RAISE EXCEPTION 'topics must not be null, nor any of them'
			USING ERRCODE = 'null_value_not_allowed', HINT = 'Use ARRAY[''*''] to take every topic.';
	ELSIF array_ndims(topics) IS DISTINCT FROM 1 OR cardinality(topics) > 1000 THEN
		RAISE EXCEPTION 'topics must be a list of 1 to 1000 patterns'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Use ARRAY[''*''] to take every topic.';
	END IF;
	FOREACH pattern IN ARRAY topics LOOP
		PERFORM outbox_internal.check_pattern(pattern);
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.check_topics IS 'Internal: raise null_value_not_allowed or invalid_parameter_value unless these are topic patterns';

CREATE FUNCTION outbox_internal.check_backoff(backoff interval[]) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	step interval;
BEGIN
	IF array_ndims(backoff) IS DISTINCT FROM 1 OR cardinality(backoff) > 100 THEN
		RAISE EXCEPTION 'backoff must be a list of 1 to 100 intervals'
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'The first is the wait after the first attempt; the last one repeats. Reset it to return to backoff_base and backoff_max.';
	END IF;
	FOREACH step IN ARRAY backoff LOOP
		PERFORM outbox_internal.check_interval('backoff', step, '0', '30 days');
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.check_backoff IS 'Internal: raise invalid_parameter_value unless this is a list of waits';

-- What has options is walked over by these, whatever it is: a row of the table
-- of that kind.  Each option by itself, as its row says.
CREATE FUNCTION outbox_internal.check_options(kind text, item anyelement) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := to_jsonb(item);
	o outbox_internal.option;
	value text;
BEGIN
	FOR o IN SELECT * FROM outbox_internal.options_of(kind) t WHERE t.secret IS NULL AND (given ->> 'url' IS NOT NULL OR NOT 'push' = ANY (t.scope)) LOOP
		value := given ->> o.name;
		CONTINUE WHEN value IS NULL AND o.initial IS NULL;
		IF o.choices IS NOT NULL THEN
			PERFORM outbox_internal.check_choice(o.name, value, o.choices);
		ELSIF o.type = 'interval' AND o.low IS NOT NULL THEN
			PERFORM outbox_internal.check_interval(o.name, value::interval, o.low, o.high);
		ELSIF o.type IN ('int', 'float8') THEN
			PERFORM outbox_internal.check_number(o.name, value::float8, o.low::float8, o.high::float8);
		ELSIF o.type = 'text' AND o.high IS NOT NULL THEN
			PERFORM outbox_internal.check_path(o.name, value, o.high::int);
		ELSIF o.checker IS NOT NULL THEN
			EXECUTE format('SELECT outbox_internal.%I(($1).%I)', o.checker, o.name) USING item;
		END IF;
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.check_options IS 'Internal: raise invalid_parameter_value unless each option has a value that it can have';

CREATE FUNCTION outbox_internal.check_reset(kind text, reset text[], given jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	option text;
	can_be_reset text[] := ARRAY(SELECT o.name FROM outbox_internal.options_of(kind) o WHERE NOT 'creation' = ANY (o.scope));
BEGIN
	FOREACH option IN ARRAY reset LOOP
		IF option IS NULL OR NOT option = ANY (can_be_reset) THEN
			RAISE EXCEPTION 'there is no option "%" to reset', coalesce(option, 'NULL')
				USING ERRCODE = 'invalid_parameter_value',
					HINT = format('Options that can be reset are %s.', array_to_string(can_be_reset, ', '));
		ELSIF given ? option THEN
			RAISE EXCEPTION 'option % is both given and reset', option
				USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out of one of them.';
		END IF;
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.check_reset IS 'Internal: raise invalid_parameter_value unless these options can be reset by a call that gives those';

CREATE FUNCTION outbox_internal.reset_options(kind text, item anyelement, reset text[]) RETURNS anyelement
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN jsonb_populate_record(item, coalesce((
		SELECT jsonb_object_agg(o.name, CASE WHEN o.type = 'jsonb' THEN o.initial::jsonb ELSE to_jsonb(o.initial) END)
		FROM outbox_internal.options_of(kind) o WHERE o.secret IS NULL AND o.name = ANY (reset)), '{}'));
END $$;
COMMENT ON FUNCTION outbox_internal.reset_options IS 'Internal: the same with these options at their defaults';

CREATE FUNCTION outbox_internal.changed_options(kind text, old anyelement, new anyelement) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT ARRAY(SELECT o.name FROM outbox_internal.options_of(kind) o WHERE o.secret IS NULL AND to_jsonb(new) -> o.name IS DISTINCT FROM to_jsonb(old) -> o.name)
$$;
COMMENT ON FUNCTION outbox_internal.changed_options IS 'Internal: in which options the two differ, secrets aside';

CREATE FUNCTION outbox_internal.assignments(kind text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT string_agg(format('%I = ($1).%1$I', o.name), ', ') FROM outbox_internal.options_of(kind) o WHERE o.secret IS NULL
$$;
COMMENT ON FUNCTION outbox_internal.assignments IS 'Internal: what an UPDATE sets that stores the options of its parameter $1';

-- As somebody would write it, whatever the session has set.
CREATE FUNCTION outbox_internal.definition(kind text, arguments text, item anyelement) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET intervalstyle = postgres SET datestyle = iso SET extra_float_digits = 1 AS $$
DECLARE
	o outbox_internal.option;
	value text;
	named text[];
	result text := format('SELECT outbox.create_%s(%s', kind, arguments);
BEGIN
	PERFORM outbox_internal.stay_unseen();
	named := outbox_internal.changed_options(kind, item,
		outbox_internal.reset_options(kind, item, ARRAY(SELECT t.name FROM outbox_internal.options_of(kind) t)));
	FOR o IN SELECT * FROM outbox_internal.options_of(kind) t WHERE t.name = ANY (named) LOOP
		EXECUTE format('SELECT ($1).%I::text', o.name) INTO value USING item;
		result := result || format(CASE WHEN o.type IN ('int', 'float8', 'boolean') THEN E',\n\t%I => %s' ELSE E',\n\t%I => %L' END, o.name, value);
	END LOOP;
	RETURN result || ')';
END $$;
COMMENT ON FUNCTION outbox_internal.definition IS 'Internal: the call that creates the same, with these arguments and the options that are not at their defaults';

CREATE FUNCTION outbox_internal.arguments(kind text, changing boolean DEFAULT false) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT string_agg(format('%I %s DEFAULT NULL', o.name, o.type), ', ') FROM outbox_internal.options_of(kind) o WHERE NOT (changing AND 'creation' = ANY (o.scope))
$$;
COMMENT ON FUNCTION outbox_internal.arguments IS 'Internal: the options as a function declares them, for creating or for changing';

CREATE FUNCTION outbox_internal.arguments_help(kind text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT string_agg(concat(o.name, ' (' || coalesce(o.initial, 'none') || '): ', o.help, '; one of ' || array_to_string(o.choices, ', '),
		CASE WHEN 'superuser' = ANY (o.scope) THEN '; superusers only' END, '.'), E'\n')
	FROM outbox_internal.options_of(kind) o
$$;
COMMENT ON FUNCTION outbox_internal.arguments_help IS 'Internal: the options as a comment on a function lists them';

-- The one place that knows what an acceptable handler is, but for its name,
-- secrets, on_settle function and who may set what: each option by itself,
-- then those that have to suit each other.
CREATE FUNCTION outbox_internal.check_handler(h outbox.handler) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM outbox_internal.check_topics(h.topics);
	IF h.url IS NOT NULL THEN
		PERFORM outbox_internal.check_url(h.url);
	END IF;
	PERFORM outbox_internal.check_options('handler', h);
	IF h.backoff_base > h.backoff_max THEN
		RAISE EXCEPTION 'backoff_base is longer than backoff_max: % and %', h.backoff_base, h.backoff_max
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Set backoff_max too.';
	END IF;
	IF h.on_dead = 'block' AND NOT h.ordered THEN
		RAISE EXCEPTION 'on_dead can be block only on an ordered handler'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'A handler is made ordered when it is created: ordered => true.';
	END IF;
	IF h.url IS NOT NULL THEN
		PERFORM outbox_internal.check_push_handler(h);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_handler IS 'Internal: raise invalid_parameter_value unless these are acceptable options';

CREATE FUNCTION outbox_internal.check_push_handler(h outbox.handler) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF h.batch_size > 1 AND NOT (SELECT f.batches FROM outbox_internal.formats() f WHERE f.name = h.format) THEN
		RAISE EXCEPTION 'format % cannot be sent in batches', h.format
			USING ERRCODE = 'invalid_parameter_value',
				HINT = format('Use a batch_size of 1, or one of the formats %s.', (SELECT string_agg(f.name, ', ') FROM outbox_internal.formats() f WHERE f.batches));
	END IF;
	IF h.tls_key_file IS NOT NULL AND h.tls_certificate_file IS NULL THEN
		RAISE EXCEPTION 'tls_key_file needs tls_certificate_file'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Name the certificate that the key belongs to.';
	END IF;
	IF num_nonnulls(h.tls_ca_file, h.tls_certificate_file) > 0 AND h.url !~* '^https:' THEN
		RAISE EXCEPTION 'tls_ca_file and tls_certificate_file need a URL that begins with https://'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Change the URL, or leave them out.';
	END IF;
	IF h.breaker_wait > h.breaker_wait_max THEN
		RAISE EXCEPTION 'breaker_wait is longer than breaker_wait_max: % and %', h.breaker_wait, h.breaker_wait_max
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Set breaker_wait_max too.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_push_handler IS 'Internal: what options of a handler with a URL have to suit each other';

-- Credentials that anybody on the way can read are allowed, but not without a
-- word.  What stays on this machine is not on any way.
CREATE FUNCTION outbox_internal.warn_of_clear_text(h outbox.handler) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF h.url ~* '^http://(?!(localhost|127(\.[0-9]{1,3}){3}|\[::1\])([:/?]|$))' AND h.unix_socket IS NULL
		AND EXISTS (SELECT FROM outbox.handler_secret s WHERE s.handler_id = h.id AND s.kind = 'authorization') THEN
		RAISE WARNING 'authorization of handler "%" is sent unencrypted', h.name
			USING HINT = 'Use a URL that begins with https://: on the way to this one anybody can read it.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.warn_of_clear_text IS 'Internal: warn if a handler sends its authorization over a network without TLS';

-- The role that created a handler; NULL if it is gone, or in a copy, where the
-- same oid may be another's.
-- It is not given the whole row: the server may log what it is given.
CREATE FUNCTION outbox_internal.creator(creator_oid oid, home uuid) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT r.oid FROM pg_roles r WHERE r.oid = creator.creator_oid AND creator.home IS NOT DISTINCT FROM outbox_internal.home()
$$;
COMMENT ON FUNCTION outbox_internal.creator IS 'Internal: the role that created a handler, from its columns of these names; NULL if it is not a role of this database';

-- Whether a handler or a schedule can have a function: what names the option.
-- It runs with the rights of its owner, whom the catalog knows and no row of
-- ours can change, so only who may act as the owner chooses it; and never with
-- those of a superuser: it is somebody's code in a worker's hands.
CREATE FUNCTION outbox_internal.check_function(what text, given text, argument text, caller text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	function regprocedure := to_regprocedure(given);
	called text := CASE what WHEN 'function' THEN what ELSE what || ' function' END;
	proc record;
	runner record;
BEGIN
	SELECT p.prokind, p.proretset, p.proowner, p.pronargs = 1 AND p.proargtypes[0] = argument::regtype AS fits
	INTO proc FROM pg_proc p WHERE p.oid = function;
	IF proc.prokind IS NULL OR proc.prokind <> 'f' OR proc.proretset THEN
		RAISE EXCEPTION '% is not a plain function: %', what, given
			USING ERRCODE = 'wrong_object_type', HINT = 'Procedures, aggregates, window functions and functions that return sets cannot be called.';
	ELSIF NOT proc.fits THEN
		RAISE EXCEPTION '% % does not take one argument of type %', called, given, argument
			USING ERRCODE = 'invalid_function_definition',
				HINT = format('Define it like this: CREATE FUNCTION my_schema.my_function(x %s) RETURNS void ... What it returns is ignored.', argument);
	END IF;

	SELECT r.rolname, r.rolsuper INTO runner FROM pg_roles r WHERE r.oid = proc.proowner;
	IF runner.rolsuper THEN
		RAISE EXCEPTION '% % would run as superuser "%"', called, given, runner.rolname
			USING ERRCODE = 'insufficient_privilege',
				HINT = 'It runs as its owner. Give it to the role it should run as with ALTER FUNCTION ... OWNER TO.';
	ELSIF NOT pg_has_role(caller, proc.proowner, 'USAGE') THEN
		RAISE EXCEPTION '% % belongs to role "%"', called, given, runner.rolname
			USING ERRCODE = 'insufficient_privilege',
				HINT = 'It runs as its owner, so only who may act as that role can choose it. Create a function of your own, or have that role or a superuser do it.';
	ELSIF NOT has_function_privilege(runner.rolname, function, 'EXECUTE') THEN
		RAISE EXCEPTION 'permission denied for function %', given
			USING ERRCODE = 'insufficient_privilege', HINT = format('Role "%s", as which it would run, needs EXECUTE on it.', runner.rolname);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_function IS 'Internal: raise wrong_object_type, invalid_function_definition or insufficient_privilege unless an option of that name can be this function, with an argument of that type, and this role may choose it';

-- Who may set what.  An on_settle function decides what becomes of a handler's
-- deliveries, so it is the creator's to choose; paths name files of the server;
-- credentials are not to be had by sending them elsewhere.
CREATE FUNCTION outbox_internal.check_rights(h outbox.handler, options text[], on_settle text, caller text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	superuser boolean := (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = caller);
	creator boolean := superuser OR coalesce(pg_has_role(caller, outbox_internal.creator(h.creator_oid, h.home), 'USAGE'), false);
	push_options text[] := ARRAY(SELECT o.name FROM outbox_internal.options() o WHERE 'push' = ANY (o.scope));
	superuser_options text[] := ARRAY(SELECT o.name FROM outbox_internal.options() o WHERE 'superuser' = ANY (o.scope));
BEGIN
	IF h.url IS NULL AND 'on_settle' = ANY (options) THEN
		RAISE EXCEPTION 'option on_settle needs a handler with a URL'
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Consumers of a handler without a URL settle in their own transaction: outbox.complete() and what they write commit together.';
	ELSIF h.url IS NULL AND options && push_options THEN
		RAISE EXCEPTION 'option % needs a handler with a URL', (SELECT o FROM unnest(options) o WHERE o = ANY (push_options) LIMIT 1)
			USING ERRCODE = 'invalid_parameter_value', HINT = 'A handler without a URL is for consumers that claim its messages.';
	END IF;
	IF options && superuser_options AND NOT superuser THEN
		RAISE EXCEPTION 'only a superuser can set or reset %', regexp_replace(array_to_string(superuser_options, ', '), ', (\w+)$', ' and \1')
			USING ERRCODE = 'insufficient_privilege', HINT = 'They name files of the server. Ask a superuser to set them.';
	END IF;
	IF 'on_settle' = ANY (options) AND NOT creator THEN
		RAISE EXCEPTION 'only role "%" can set or reset on_settle of handler "%"', h.creator, h.name
			USING ERRCODE = 'insufficient_privilege', HINT = 'It decides what becomes of the handler''s deliveries. Ask that role, or a superuser.';
	END IF;
	IF 'url' = ANY (options) AND h.unix_socket IS NOT NULL AND NOT superuser THEN
		RAISE EXCEPTION 'only a superuser can change the URL of handler "%"', h.name
			USING ERRCODE = 'insufficient_privilege', HINT = 'Requests go to its unix_socket, a socket of the server.';
	ELSIF 'url' = ANY (options) AND NOT 'authorization' = ANY (options) AND NOT creator
		AND EXISTS (SELECT FROM outbox.handler_secret s WHERE s.handler_id = h.id AND s.kind = 'authorization') THEN
		RAISE EXCEPTION 'only role "%" can change the URL of handler "%" and keep its authorization', h.creator, h.name
			USING ERRCODE = 'insufficient_privilege', HINT = 'It would be sent to the new URL. Pass authorization along with that, or reset it.';
	END IF;
	IF on_settle IS NOT NULL THEN
		PERFORM outbox_internal.check_function('on_settle', on_settle, 'outbox.settlement', caller);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_rights IS 'Internal: raise insufficient_privilege unless the caller may set these options of this handler';

CREATE FUNCTION outbox_internal.store_handler(h outbox.handler) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	EXECUTE format('UPDATE outbox.handler t SET creator = $2, name = ($1).name, topics = ($1).topics, url = ($1).url, %s WHERE t.id = ($1).id',
		outbox_internal.assignments('handler'))
	USING h, coalesce((SELECT r.rolname FROM pg_roles r WHERE r.oid = outbox_internal.creator(h.creator_oid, h.home)), h.creator);
EXCEPTION WHEN unique_violation THEN
	RAISE EXCEPTION 'handler "%" already exists', h.name
		USING ERRCODE = 'duplicate_object', HINT = 'Choose another name, or drop that handler first.';
END $$;
COMMENT ON FUNCTION outbox_internal.store_handler IS 'Internal: write all options of a handler';

-- Replace what is given, take away what is reset.
CREATE FUNCTION outbox_internal.store_secrets(handler_id int, given jsonb, reset text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
	changed text[] := reset || ARRAY(SELECT jsonb_object_keys(given));
	at timestamptz := clock_timestamp();
BEGIN
	DELETE FROM outbox.handler_secret s
	WHERE s.handler_id = $1 AND CASE s.kind WHEN 'signing' THEN 'secret' ELSE s.kind END = ANY (changed);
	IF given ? 'secret' THEN
		PERFORM outbox_internal.store_secret($1, 'signing', 'secret', at);
	END IF;
	IF given ? 'authorization' THEN
		PERFORM outbox_internal.store_secret($1, 'authorization', 'authorization', at);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.store_secrets IS 'Internal: write the secrets of a handler';

-- One with a name alone, or no row if there is one of that name; waits for
-- whoever is making or dropping it.
CREATE FUNCTION outbox_internal.insert_handler(handler text, caller text) RETURNS outbox.handler
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	h outbox.handler;
BEGIN
	INSERT INTO outbox.handler (name, topics, creator, creator_oid)
	SELECT handler, '{}', r.rolname, r.oid FROM pg_roles r WHERE r.rolname = caller
	ON CONFLICT (name) WHERE dropped_at IS NULL DO NOTHING RETURNING * INTO h;
	RETURN h;
END $$;
COMMENT ON FUNCTION outbox_internal.insert_handler IS 'Internal: a new handler that has nothing but its name yet; NULL if there is one of that name';

CREATE FUNCTION outbox_internal.fill_handler(h outbox.handler, given jsonb, names text[], caller text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	h := jsonb_populate_record(h, given);
	PERFORM outbox_internal.check_rights(h, names, given ->> 'on_settle', caller);
	PERFORM outbox_internal.check_handler(h);
	PERFORM outbox_internal.store_handler(h);
	PERFORM outbox_internal.store_secrets(h.id, given, '{}');
	PERFORM outbox_internal.warn_of_clear_text(h);
	INSERT INTO outbox.handler_status (handler_id) VALUES (h.id);
	PERFORM outbox_internal.ring_handlers();
END $$;
COMMENT ON FUNCTION outbox_internal.fill_handler IS 'Internal: give a handler of outbox_internal.insert_handler() what the call has given';

CREATE FUNCTION outbox_internal.create_handler(caller text, names text[], texts text[]) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts);
	h outbox.handler;
BEGIN
	PERFORM outbox_internal.check_name(given ->> 'handler');
	IF NOT given ? 'topics' THEN
		PERFORM outbox_internal.check_topics(NULL);
	END IF;
	h := outbox_internal.insert_handler(given ->> 'handler', caller);
	IF h.id IS NULL THEN
		RAISE EXCEPTION 'handler "%" already exists', given ->> 'handler'
			USING ERRCODE = 'duplicate_object', HINT = 'Choose another name, change it with outbox.alter_handler() or outbox.ensure_handler(), or drop it first.';
	END IF;
	PERFORM outbox_internal.fill_handler(h, given, names, caller);
	PERFORM outbox_internal.note_change('create_handler', caller, given);
	RETURN h.id;
END $$;
COMMENT ON FUNCTION outbox_internal.create_handler IS 'Internal: body of outbox.create_handler()';

-- A handler that can be changed, locked; nobody can change the built-in one.
CREATE FUNCTION outbox_internal.lock_handler(handler text) RETURNS outbox.handler
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	h outbox.handler;
BEGIN
	SELECT t.* INTO h FROM outbox.handler t WHERE t.id = outbox_internal.live_handler(handler) FOR UPDATE;
	IF h.id = 0 THEN
		RAISE EXCEPTION 'handler "%" is built in and cannot be changed', handler
			USING ERRCODE = 'insufficient_privilege', HINT = 'The setting outbox.unrouted says what it is used for.';
	ELSIF h.dropped_at IS NOT NULL THEN
		RAISE EXCEPTION 'handler "%" was dropped meanwhile', handler
			USING ERRCODE = 'undefined_object', HINT = 'The view outbox.handlers lists the handlers there are.';
	END IF;
	RETURN h;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_handler IS 'Internal: a handler by name, locked; raises undefined_object if there is none';

-- From one set of options to another.  options: those that are new; given and
-- reset: which secrets are replaced and taken away.
CREATE FUNCTION outbox_internal.change_handler(old outbox.handler, new outbox.handler, options text[], given jsonb, reset text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM outbox_internal.check_handler(new);
	PERFORM outbox_internal.store_handler(new);
	PERFORM outbox_internal.store_secrets(new.id, given, reset);
	IF options && '{url,authorization}' THEN
		PERFORM outbox_internal.warn_of_clear_text(new);
	END IF;
	-- It may be another receiver, or the same one with what it wanted.
	IF options && '{url,unix_socket,tls_ca_file,tls_certificate_file,tls_key_file,http_version,authorization,secret,headers,format,timeout,connect_timeout}' THEN
		PERFORM outbox_internal.renew_handler(new.id);
	END IF;
	PERFORM outbox_internal.ring_handlers();
	-- Claims have passed what waits behind dead letters.  (The dispatcher sees for itself.)
	IF old.on_dead = 'block' AND new.on_dead <> 'block' AND new.url IS NULL THEN
		PERFORM outbox_internal.ring_rescan();
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.change_handler IS 'Internal: give a handler, which is locked, other options';

CREATE FUNCTION outbox_internal.alter_handler(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts);
	reset text[] := ARRAY(SELECT DISTINCT o FROM unnest((given ->> 'reset')::text[]) o);
	h outbox.handler := outbox_internal.lock_handler(given ->> 'handler');
	new outbox.handler;
BEGIN
	IF h.url IS NULL AND given ? 'url' THEN
		RAISE EXCEPTION 'handler "%" has no URL and cannot get one', h.name
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Push or pull is decided when a handler is created; create another one.';
	END IF;
	PERFORM outbox_internal.check_rights(h, names || reset, given ->> 'on_settle', caller);
	PERFORM outbox_internal.check_reset('handler', reset, given);
	IF given ? 'new_name' THEN
		PERFORM outbox_internal.check_name(given ->> 'new_name');
		given := jsonb_set(given, '{name}', given -> 'new_name');
	END IF;
	new := jsonb_populate_record(outbox_internal.reset_options('handler', h, reset), given);
	PERFORM outbox_internal.change_handler(h, new, names || reset, given, reset);
	PERFORM outbox_internal.note_change('alter_handler', caller, given - 'name');
END $$;
COMMENT ON FUNCTION outbox_internal.alter_handler IS 'Internal: body of outbox.alter_handler()';

-- What is given is compared, not written again: a secret that is given each
-- time is no new one each time.
CREATE FUNCTION outbox_internal.is_given_secret(secret text, option text) RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_is_given_secret';
COMMENT ON FUNCTION outbox_internal.is_given_secret IS 'Internal: is this what that option was given with to the call that is running?';

CREATE FUNCTION outbox_internal.changed_secrets(handler_id int, given jsonb) RETURNS text[]
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
	SELECT ARRAY(
		SELECT o.name FROM outbox_internal.options() o
		WHERE o.secret IS NOT NULL AND given ? o.name AND NOT EXISTS (
			SELECT FROM outbox.handler_secret s
			WHERE s.handler_id = $1 AND s.kind = o.secret AND s.expires_at IS NULL AND outbox_internal.is_given_secret(s.secret, o.name)))
$$;
COMMENT ON FUNCTION outbox_internal.changed_secrets IS 'Internal: which of the secrets that are given a handler does not have';

CREATE FUNCTION outbox_internal.ensure_handler(caller text, names text[], texts text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts);
	h outbox.handler;
	new outbox.handler;
	secrets text[];
	changed text[];
	fixed text;
BEGIN
	PERFORM outbox_internal.check_name(given ->> 'handler');
	IF NOT given ? 'topics' THEN
		PERFORM outbox_internal.check_topics(NULL);
	END IF;
	-- Until it is there and ours, or made: others may do the same at the same time.
	LOOP
		PERFORM FROM outbox.handler t WHERE t.name = given ->> 'handler' COLLATE "C" AND t.dropped_at IS NULL FOR UPDATE;
		EXIT WHEN FOUND;
		h := outbox_internal.insert_handler(given ->> 'handler', caller);
		IF h.id IS NOT NULL THEN
			PERFORM outbox_internal.fill_handler(h, given, names, caller);
			PERFORM outbox_internal.note_change('ensure_handler', caller, given);
			RETURN '{created}';
		END IF;
	END LOOP;
	h := outbox_internal.lock_handler(given ->> 'handler');

	new := outbox_internal.reset_options('handler', h, ARRAY(SELECT o.name FROM outbox_internal.options() o WHERE NOT given ? o.name));
	new := jsonb_populate_record(new, given);
	changed := outbox_internal.changed_options('handler', h, new);
	SELECT o.name INTO fixed FROM outbox_internal.options() o WHERE 'creation' = ANY (o.scope) AND o.name = ANY (changed) LIMIT 1;
	IF fixed IS NOT NULL OR (h.url IS NULL) = (given ? 'url') THEN
		RAISE EXCEPTION '%', CASE
				WHEN fixed IS NOT NULL THEN format('option %s of handler "%s" cannot be changed', fixed, h.name)
				WHEN h.url IS NULL THEN format('handler "%s" has no URL and cannot get one', h.name)
				ELSE format('handler "%s" has a URL and cannot do without', h.name) END
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'That is decided when a handler is created. Pass what it has, choose another name, or drop it first.';
	END IF;
	IF h.url IS DISTINCT FROM new.url THEN
		changed := array_prepend('url', changed);
	END IF;
	IF h.topics IS DISTINCT FROM new.topics THEN
		changed := array_prepend('topics', changed);
	END IF;
	-- What an option needs is asked of those that are given; whom it takes, of those that change.
	secrets := outbox_internal.changed_secrets(h.id, given);
	PERFORM outbox_internal.check_rights(h, changed || ARRAY(SELECT o.name FROM outbox_internal.options() o WHERE given ? o.name AND (h.url IS NULL OR o.secret IS NOT NULL)),
		CASE WHEN 'on_settle' = ANY (changed) THEN given ->> 'on_settle' END, caller);
	changed := changed || secrets;
	IF changed <> '{}' THEN
		PERFORM outbox_internal.change_handler(h, new, changed,
			given - ARRAY(SELECT o.name FROM outbox_internal.options() o WHERE o.secret IS NOT NULL AND NOT o.name = ANY (secrets)), '{}');
		PERFORM outbox_internal.note_change('ensure_handler', caller, given);
	END IF;
	RETURN changed;
END $$;
COMMENT ON FUNCTION outbox_internal.ensure_handler IS 'Internal: body of outbox.ensure_handler()';

-- Deliveries that the caller has locked, by where they are, to cancelled.  The
-- one statement that settles in SQL.  Not by their keys: a table of what is
-- outstanding is often empty when it is vacuumed, and the planner, which then
-- takes it for empty, would read all of it for each of them.
CREATE FUNCTION outbox_internal.count(handler_id int, what text, n bigint) RETURNS bigint
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_count';
COMMENT ON FUNCTION outbox_internal.count IS 'Internal: once this transaction commits, n more deliveries of the handler were staged, requeued, cancelled or expired; returns n';

CREATE FUNCTION outbox_internal.cancel_rows(places tid[], code text, reason text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
	n bigint;
BEGIN
	WITH gone AS (
		DELETE FROM outbox.delivery d WHERE d.ctid = ANY (places)
		RETURNING d.message_id, d.handler_id, d.attempts, d.budget_from
	), written AS (
		INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state, code, error)
		SELECT g.message_id, clock_timestamp(), g.handler_id, g.attempts, g.budget_from, 5, cancel_rows.code, reason FROM gone g
		RETURNING handler_id)
	SELECT sum(outbox_internal.count(c.handler_id, 'cancelled', c.n)) INTO n
	FROM (SELECT w.handler_id, count(*) AS n FROM written w GROUP BY w.handler_id) AS c;
	RETURN coalesce(n, 0);
END $$;
COMMENT ON FUNCTION outbox_internal.cancel_rows IS 'Internal: cancel the deliveries at these places, which the caller has locked, with that code; returns how many';

-- Settle what is outstanding for a dropped handler, a batch at a time, each
-- reading on where the one before ended.  A row that somebody holds is left,
-- and what a transaction stages that has not seen the drop comes later: the
-- dispatcher cancels these when it rescans.
CREATE FUNCTION outbox_internal.cancel_dropped(dropped int, max_rows bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
	reached_due timestamptz := '-infinity';
	reached uuid := '00000000-0000-0000-0000-000000000000';
	ids uuid[];
	due timestamptz[];
	places tid[];
	total bigint := 0;
BEGIN
	WHILE max_rows IS NULL OR total < max_rows LOOP
		SELECT array_agg(f.message_id), array_agg(f.due_at), array_agg(f.place) INTO ids, due, places
		FROM (
			SELECT d.due_at, d.message_id, d.ctid AS place FROM outbox.delivery d
			WHERE d.handler_id = dropped AND (d.due_at, d.message_id) > (reached_due, reached)
				AND EXISTS (SELECT FROM outbox.handler h WHERE h.id = dropped AND h.dropped_at IS NOT NULL)
			ORDER BY d.due_at, d.message_id LIMIT least(10000, max_rows - total)
			FOR UPDATE SKIP LOCKED) AS f;
		EXIT WHEN ids IS NULL;
		reached := ids[cardinality(ids)];
		reached_due := due[cardinality(due)];
		total := total + outbox_internal.cancel_rows(places, 'handler_dropped', NULL);
	END LOOP;
	RETURN total;
END $$;
COMMENT ON FUNCTION outbox_internal.cancel_dropped IS 'Internal: cancel, with code handler_dropped, the outstanding deliveries of a dropped handler that nobody holds, up to so many; returns how many';

CREATE FUNCTION outbox_internal.drop_handler(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts);
	h outbox.handler := outbox_internal.lock_handler(given ->> 'handler');
	consumers oid[];
BEGIN
	UPDATE outbox.handler t SET dropped_at = clock_timestamp() WHERE t.id = h.id;
	DELETE FROM outbox.handler_status s WHERE s.handler_id = h.id;
	DELETE FROM outbox.handler_secret s WHERE s.handler_id = h.id;
	IF h.url IS NULL THEN
		PERFORM outbox_internal.lock_grants();
		WITH gone AS (DELETE FROM outbox.consumer c WHERE c.handler_id = h.id RETURNING c.role_oid)
		SELECT array_agg(g.role_oid) INTO consumers FROM gone g;
		PERFORM outbox_internal.revoke_unused(consumers);
	END IF;
	PERFORM outbox_internal.ring_handlers();
	PERFORM outbox_internal.cancel_dropped(h.id);
	PERFORM outbox_internal.note_change('drop_handler', caller, given);
END $$;
COMMENT ON FUNCTION outbox_internal.drop_handler IS 'Internal: body of outbox.drop_handler()';

CREATE FUNCTION outbox_internal.pause_handler(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts);
	h outbox.handler := outbox_internal.lock_handler(given ->> 'handler');
	was_paused boolean := EXISTS (SELECT FROM outbox.handler_status s WHERE s.handler_id = h.id AND s.paused_at IS NOT NULL);
BEGIN
	INSERT INTO outbox.handler_status AS s (handler_id, paused_at, paused_by, paused_reason)
	VALUES (h.id, clock_timestamp(), caller, given ->> 'reason')
	ON CONFLICT (handler_id) DO UPDATE SET
		paused_at = coalesce(s.paused_at, excluded.paused_at), paused_by = excluded.paused_by, paused_reason = excluded.paused_reason;
	PERFORM outbox_internal.ring_status();
	PERFORM outbox_internal.note_event('outbox.handler.paused', h.id, NULL, jsonb_build_object('by', caller, 'reason', given ->> 'reason'))
	WHERE NOT was_paused;
	PERFORM outbox_internal.note_change('pause_handler', caller, given);
END $$;
COMMENT ON FUNCTION outbox_internal.pause_handler IS 'Internal: body of outbox.pause_handler()';

-- What the dispatcher has learned of a receiver holds no longer.
CREATE FUNCTION outbox_internal.renew_handler(renewed int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	was_down boolean := EXISTS (SELECT FROM outbox.handler_status s WHERE s.handler_id = renewed AND s.breaker <> 'closed');
BEGIN
	UPDATE outbox.handler_status s SET
		renewals = s.renewals + 1, breaker = 'closed', breaker_reason = NULL, breaker_until = NULL, failing_since = NULL, down_since = NULL,
		throttled_to = NULL, held_until = NULL, recent_attempts = 0, recent_failures = 0
	WHERE s.handler_id = renewed;
	PERFORM outbox_internal.note_event('outbox.handler.recovered', renewed, NULL, jsonb_build_object('reason', 'it was given a fresh start'))
	WHERE was_down;
	PERFORM outbox_internal.ring_status();
END $$;
COMMENT ON FUNCTION outbox_internal.renew_handler IS 'Internal: close a handler''s breaker, end a wait that its receiver asked for, and forget how it did';

CREATE FUNCTION outbox_internal.resume_handler(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts);
	h outbox.handler := outbox_internal.lock_handler(given ->> 'handler');
BEGIN
	UPDATE outbox.handler_status s SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
	WHERE s.handler_id = h.id AND s.paused_at IS NOT NULL;
	IF FOUND THEN
		PERFORM outbox_internal.note_event('outbox.handler.resumed', h.id, NULL, jsonb_build_object('by', caller, 'reason', given ->> 'reason'));
	END IF;
	PERFORM outbox_internal.renew_handler(h.id);
	PERFORM outbox_internal.ring_status();
	PERFORM outbox_internal.note_change('resume_handler', caller, given);
END $$;
COMMENT ON FUNCTION outbox_internal.resume_handler IS 'Internal: body of outbox.resume_handler()';

-- create_handler() and its kin, whose arguments are the options.
DO $do$
DECLARE
	arguments text := outbox_internal.arguments('handler');
BEGIN
	EXECUTE pg_catalog.format($sql$
CREATE FUNCTION outbox.create_handler(handler text, topics text[], url text DEFAULT NULL, options jsonb DEFAULT NULL, %s, reason text DEFAULT NULL) RETURNS int
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner'
	$sql$, arguments);
	EXECUTE pg_catalog.format('COMMENT ON FUNCTION outbox.create_handler IS %L', pg_catalog.format(
'Create a handler. Messages staged from then on whose topic it takes are delivered to it.
handler: its name, any text of up to 63 bytes. topics: patterns it takes, each a topic (invoice.paid), everything below one (invoice.*) or * for all, which are all but outbox''s own events: those are for who names outbox.* or one of them.
url: where messages are posted, http or https. Without one, consumers claim the messages. Options by name, NULL for the default:
%s
options: a JSON object of further options; one that is mistyped there is named. reason: kept in outbox.actions.
Returns the handler''s id.
Errors: null_value_not_allowed, invalid_parameter_value, invalid_name or name_too_long for bad options; wrong_object_type or invalid_function_definition for a function that on_settle cannot be; duplicate_object; insufficient_privilege.', outbox_internal.arguments_help('handler')));

	EXECUTE pg_catalog.format($sql$
CREATE FUNCTION outbox.alter_handler(handler text, new_name text DEFAULT NULL, topics text[] DEFAULT NULL, url text DEFAULT NULL,
	reset text[] DEFAULT NULL, options jsonb DEFAULT NULL, %s, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner'
	$sql$, outbox_internal.arguments('handler', true));
	EXECUTE pg_catalog.format($sql$
CREATE FUNCTION outbox.ensure_handler(handler text, topics text[], url text DEFAULT NULL, options jsonb DEFAULT NULL, %s, reason text DEFAULT NULL) RETURNS text[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner'
	$sql$, arguments);
END $do$;
COMMENT ON FUNCTION outbox.alter_handler IS
'Change a handler: options as in outbox.create_handler(), NULL keeps what is there.
new_name: rename it. topics: for messages staged from then on. url: another URL, but not one where there was none; the handler''s authorization goes there too, so whoever is not its creator has to give or reset that as well. secret, authorization: replace what is there.
reset: names of options to put back to their defaults. Whether a handler is ordered, and whether it pushes, is decided when it is created.
reason: kept in outbox.actions.
options: a JSON object of further options, or of any argument but the first; one that is mistyped there is named.
Requests that are out finish with the options they had. A change of where or how requests go (url, unix_socket, tls_..., http_version, authorization, secret, headers, format, timeouts) closes the handler''s circuit breaker and ends a wait that its receiver asked for, as outbox.resume_handler() does. Errors: undefined_object if there is no such handler, otherwise as outbox.create_handler().';
COMMENT ON FUNCTION outbox.ensure_handler IS
'Have a handler with exactly these options, those that are not given being the defaults: create it, change it, or leave it alone if it is so already, as migrations and configuration kept as code do again and again. Arguments as in outbox.create_handler(). It stays paused if it is, and keeps its secret and authorization unless others are given.
Several may run at once, for the same handler too: one waits for the other.
reason: kept in outbox.actions, if anything was changed.
Returns the names of the arguments that were changed, none if nothing was, and created alone if there was no such handler. What counts as changed is what outbox.alter_handler() says of it.
Errors: object_not_in_prerequisite_state where what was decided when it was created would have to change (ordered, and whether it has a URL); serialization_failure if somebody else has created or changed it since the snapshot of a REPEATABLE READ or SERIALIZABLE transaction; otherwise as outbox.create_handler() and outbox.alter_handler().';

CREATE FUNCTION outbox.handler_definition(handler text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	h outbox.handler;
	secrets text;
BEGIN
	SELECT t.* INTO h FROM outbox.handler t WHERE t.id = outbox_internal.live_handler(handler) AND t.id <> 0;
	IF h.id IS NULL THEN
		RETURN NULL;
	END IF;
	SELECT string_agg(o.name, ' and ') INTO secrets FROM outbox_internal.options() o
	WHERE EXISTS (SELECT FROM outbox.handler_secret s WHERE s.handler_id = h.id AND s.kind = o.secret);
	RETURN concat('-- It also has ' || secrets || E', which are not shown.\n',
		outbox_internal.definition('handler', concat_ws(', ', quote_literal(h.name), quote_literal(h.topics), quote_literal(h.url)), h));
END $$;
COMMENT ON FUNCTION outbox.handler_definition IS
'The call of outbox.create_handler() that creates the same handler, with the options that are not at their defaults, in another database for one. Secrets are not part of it: a comment before the call says that there are some. Values of headers are.
handler: its name. Returns a statement without a semicolon at its end; NULL for the built-in one.
Errors: undefined_object if there is no such handler.';

CREATE FUNCTION outbox.drop_handler(handler text, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner';
COMMENT ON FUNCTION outbox.drop_handler IS
'Drop a handler: it takes no more messages, its outstanding deliveries are cancelled with code handler_dropped, its receipts stay and its name is free again. Requests that are out finish. Consumers lose their right to it, as by outbox.revoke_consumer().
reason: kept in outbox.actions.
Errors: undefined_object if there is no such handler.';

CREATE FUNCTION outbox.pause_handler(handler text, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner';
COMMENT ON FUNCTION outbox.pause_handler IS
'Pause a handler: its messages wait, and none of their attempts are spent, until outbox.resume_handler(). Requests that are out finish. Pausing a paused one changes the reason.
Errors: undefined_object if there is no such handler.';

CREATE FUNCTION outbox.resume_handler(handler text, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner';
COMMENT ON FUNCTION outbox.resume_handler IS
'End whatever keeps a handler''s messages waiting: a pause, whoever began it, its circuit breaker, a wait that its receiver asked for (Retry-After), the rate that it was slowed down to. What is due is sent at once; messages that wait for their own next attempt go on waiting, see outbox.retry_now().
reason: kept in outbox.actions.
Errors: undefined_object if there is no such handler.';

-----------------------------------------------------------------------------
-- Topics
--
-- Whoever registers topics says what they are and what their messages are held
-- to.  The library reads the rules when it stages (src/stage/topic_rules.c).
-----------------------------------------------------------------------------

CREATE FUNCTION outbox_internal.check_require(require text[]) RETURNS void
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_check_require';
COMMENT ON FUNCTION outbox_internal.check_require IS 'Internal: raise invalid_parameter_value unless these are arguments that a topic can require';

CREATE FUNCTION outbox_internal.check_description(description text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF octet_length(description) > 1000 THEN
		RAISE EXCEPTION 'description is too long: % bytes', octet_length(description)
			USING ERRCODE = 'invalid_parameter_value', HINT = 'It has at most 1000 bytes.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_description IS 'Internal: raise invalid_parameter_value unless a topic may have this description';

-- Only those in C, which only a superuser can make: whoever owns the extension
-- could put another one in its place.
CREATE FUNCTION outbox_internal.schema_function(name text) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT p.oid
	FROM pg_extension e
	JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
	JOIN pg_proc p ON p.oid = d.objid
	JOIN pg_language l ON l.oid = p.prolang
	WHERE e.extname = 'pg_jsonschema' AND l.lanname = 'c' AND p.proname = schema_function.name COLLATE "C" AND p.pronargs <= 2
		AND (p.proname, p.proargtypes::oid[]::regtype[]::text, p.prorettype) IN (
			('jsonb_matches_schema', '[0:1]={json,jsonb}', 'boolean'::regtype),
			('jsonschema_validation_errors', '[0:1]={json,json}', 'text[]'::regtype),
			('jsonschema_is_valid', '[0:0]={json}', 'boolean'::regtype))
$$;
COMMENT ON FUNCTION outbox_internal.schema_function IS 'Internal: a function of extension pg_jsonschema; NULL if it is not there';

CREATE FUNCTION outbox_internal.check_schema(schema jsonb) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	is_valid oid := outbox_internal.schema_function('jsonschema_is_valid');
	valid boolean := true;
BEGIN
	IF outbox_internal.schema_function('jsonb_matches_schema') IS NULL THEN
		RAISE EXCEPTION 'a schema needs extension pg_jsonschema'
			USING ERRCODE = 'feature_not_supported', HINT = 'Install it, or have a check_function look at payloads.';
	END IF;
	IF is_valid IS NOT NULL THEN
		EXECUTE format('SELECT %s($1::json)', is_valid::regproc) INTO valid USING schema;
	END IF;
	IF valid IS NOT TRUE THEN
		RAISE EXCEPTION 'schema is not a valid JSON Schema'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'jsonschema_is_valid() of extension pg_jsonschema says so.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_schema IS 'Internal: raise feature_not_supported without extension pg_jsonschema, invalid_parameter_value unless it takes this for a schema';

-- In whose hands a function is: outbox_internal.check_function().
CREATE FUNCTION outbox_internal.check_test(given text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF to_regprocedure(given) IS NULL THEN
		RAISE EXCEPTION 'check_function % does not exist', given
			USING ERRCODE = 'undefined_function', HINT = 'Create it, or name another one.';
	ELSIF NOT EXISTS (SELECT FROM pg_proc p WHERE p.oid = to_regprocedure(given) AND p.prokind = 'f' AND NOT p.proretset
		AND p.prorettype = 'boolean'::regtype AND p.pronargs = 1 AND p.proargtypes[0] = 'jsonb'::regtype AND p.provolatile <> 'v') THEN
		RAISE EXCEPTION 'check_function % is not a stable or immutable function of one jsonb that returns boolean', given
			USING ERRCODE = 'invalid_function_definition', HINT = 'Define it like this: CREATE FUNCTION my_schema.my_function(payload jsonb) RETURNS boolean IMMUTABLE ...';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_test IS 'Internal: raise undefined_function or invalid_function_definition unless this can be the check_function of a topic';

CREATE FUNCTION outbox_internal.check_topic(t outbox.topic) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM outbox_internal.check_pattern(t.topic);
	IF outbox_internal.takes_events(ARRAY[t.topic]) THEN
		RAISE EXCEPTION 'topic "%" is reserved', t.topic
			USING ERRCODE = 'reserved_name', HINT = 'Topics that begin with outbox. are for what outbox itself has to tell; nobody can hold that to rules.';
	END IF;
	PERFORM outbox_internal.check_options('topic', t);
	IF t.check_function IS NOT NULL THEN
		PERFORM outbox_internal.check_test(t.check_function);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_topic IS 'Internal: raise invalid_parameter_value and others unless these are acceptable options of a topic';

-- What is wrong with a topic; NULL if nothing is.
CREATE FUNCTION outbox_internal.topic_fault(t outbox.topic) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM outbox_internal.stay_unseen();
	PERFORM outbox_internal.check_topic(t);
	IF t.check_function IS NOT NULL THEN
		PERFORM outbox_internal.check_function('check', t.check_function, 'jsonb', current_user);
	END IF;
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	RETURN SQLERRM;
END $$;
COMMENT ON FUNCTION outbox_internal.topic_fault IS 'Internal: what is wrong with the options of a topic, NULL for nothing';

-- options: those that are new.
CREATE FUNCTION outbox_internal.store_topic(t outbox.topic, options text[], caller text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM outbox_internal.check_topic(t);
	IF t.check_function IS NOT NULL AND 'check_function' = ANY (options) THEN
		PERFORM outbox_internal.check_function('check', t.check_function, 'jsonb', caller);
	END IF;
	EXECUTE format('UPDATE outbox.topic t SET %s WHERE t.topic = ($1).topic', outbox_internal.assignments('topic')) USING t;
	PERFORM outbox_internal.ring_topics();
END $$;
COMMENT ON FUNCTION outbox_internal.store_topic IS 'Internal: check and write all options of a topic';

-- As outbox_internal.insert_handler().
CREATE FUNCTION outbox_internal.insert_topic(given jsonb, caller text) RETURNS outbox.topic
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	t outbox.topic;
BEGIN
	IF NOT given ? 'topic' THEN
		RAISE EXCEPTION 'topic must not be null'
			USING ERRCODE = 'null_value_not_allowed', HINT = 'It is a topic (invoice.paid), or a pattern as handlers have: invoice.* or *.';
	END IF;
	PERFORM outbox_internal.check_pattern(given ->> 'topic');
	INSERT INTO outbox.topic (topic, creator) VALUES (given ->> 'topic', caller) ON CONFLICT ON CONSTRAINT topic_pkey DO NOTHING RETURNING * INTO t;
	RETURN t;
END $$;
COMMENT ON FUNCTION outbox_internal.insert_topic IS 'Internal: a new topic that has nothing but its name yet; NULL if it is there';

CREATE FUNCTION outbox_internal.lock_topic(topic text) RETURNS outbox.topic
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	t outbox.topic;
BEGIN
	SELECT x.* INTO t FROM outbox.topic x WHERE x.topic = lock_topic.topic COLLATE "C" FOR UPDATE;
	IF t.topic IS NULL THEN
		RAISE EXCEPTION 'topic "%" is not registered', coalesce(topic, 'NULL')
			USING ERRCODE = 'undefined_object', HINT = 'The view outbox.topics lists the topics there are.';
	END IF;
	RETURN t;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_topic IS 'Internal: a registered topic, locked; raises undefined_object if there is none';

CREATE FUNCTION outbox_internal.create_topic(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts, 'topic');
	t outbox.topic := outbox_internal.insert_topic(given, caller);
BEGIN
	IF t.topic IS NULL THEN
		RAISE EXCEPTION 'topic "%" is registered already', given ->> 'topic'
			USING ERRCODE = 'duplicate_object', HINT = 'Change it with outbox.alter_topic() or outbox.ensure_topic(), or drop it first.';
	END IF;
	PERFORM outbox_internal.store_topic(jsonb_populate_record(t, given), names, caller);
	PERFORM outbox_internal.note_change('create_topic', caller, given);
END $$;
COMMENT ON FUNCTION outbox_internal.create_topic IS 'Internal: body of outbox.create_topic()';

CREATE FUNCTION outbox_internal.alter_topic(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts, 'topic');
	reset text[] := ARRAY(SELECT DISTINCT o FROM unnest((given ->> 'reset')::text[]) o);
	t outbox.topic := outbox_internal.lock_topic(given ->> 'topic');
BEGIN
	PERFORM outbox_internal.check_reset('topic', reset, given);
	PERFORM outbox_internal.store_topic(jsonb_populate_record(outbox_internal.reset_options('topic', t, reset), given), names, caller);
	PERFORM outbox_internal.note_change('alter_topic', caller, given);
END $$;
COMMENT ON FUNCTION outbox_internal.alter_topic IS 'Internal: body of outbox.alter_topic()';

CREATE FUNCTION outbox_internal.ensure_topic(caller text, names text[], texts text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts, 'topic');
	t outbox.topic;
	new outbox.topic;
	changed text[];
BEGIN
	-- As outbox_internal.ensure_handler() does.
	LOOP
		PERFORM FROM outbox.topic x WHERE x.topic = given ->> 'topic' COLLATE "C" FOR UPDATE;
		EXIT WHEN FOUND;
		t := outbox_internal.insert_topic(given, caller);
		IF t.topic IS NOT NULL THEN
			PERFORM outbox_internal.store_topic(jsonb_populate_record(t, given), names, caller);
			PERFORM outbox_internal.note_change('ensure_topic', caller, given);
			RETURN '{created}';
		END IF;
	END LOOP;
	t := outbox_internal.lock_topic(given ->> 'topic');
	new := outbox_internal.reset_options('topic', t, ARRAY(SELECT o.name FROM outbox_internal.topic_options() o WHERE NOT given ? o.name));
	new := jsonb_populate_record(new, given);
	changed := outbox_internal.changed_options('topic', t, new);
	IF changed <> '{}' THEN
		PERFORM outbox_internal.store_topic(new, changed, caller);
		PERFORM outbox_internal.note_change('ensure_topic', caller, given);
	END IF;
	RETURN changed;
END $$;
COMMENT ON FUNCTION outbox_internal.ensure_topic IS 'Internal: body of outbox.ensure_topic()';

CREATE FUNCTION outbox_internal.drop_topic(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts, 'topic');
	t outbox.topic := outbox_internal.lock_topic(given ->> 'topic');
BEGIN
	DELETE FROM outbox.topic x WHERE x.topic = t.topic;
	PERFORM outbox_internal.ring_topics();
	PERFORM outbox_internal.note_change('drop_topic', caller, given);
END $$;
COMMENT ON FUNCTION outbox_internal.drop_topic IS 'Internal: body of outbox.drop_topic()';

-- create_topic() and its kin, whose arguments are the options.
DO $do$
DECLARE
	arguments text := outbox_internal.arguments('topic');
BEGIN
	EXECUTE pg_catalog.format($sql$
CREATE FUNCTION outbox.create_topic(topic text, %s, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner'
	$sql$, arguments);
	EXECUTE pg_catalog.format('COMMENT ON FUNCTION outbox.create_topic IS %L', pg_catalog.format(
'Register a topic: say what it is and what its messages are held to. Nobody has to: other topics are staged as ever, unless outbox.unknown_topics is error.
topic: a topic (invoice.paid), everything below one (invoice.*) or * for all. A message is held to the rules of all that take its topic. Options by name, NULL for the default:
%s
reason: kept in outbox.actions.
Rules are looked at by outbox.stage() and its kin, by the triggers of outbox.watch() and by schedules; what is staged already is left alone. A message that breaks one is refused with null_value_not_allowed (require), program_limit_exceeded (max_payload) or check_violation (check_function, schema), and the description as a hint; outbox.try_stage() calls it invalid. Of the errors of a check_function those of SQLSTATE classes 22, 23 and P0 are taken to be about the payload, all others are raised as they are. Its search_path is pg_catalog, and neither it nor what it calls can write (read_only_sql_transaction), change roles, make temporary objects or leave anything in the session.
Errors: null_value_not_allowed, invalid_parameter_value for bad options; undefined_function or invalid_function_definition for what check_function cannot be; insufficient_privilege unless the caller may act as its owner, or if that is a superuser; feature_not_supported for a schema without extension pg_jsonschema; reserved_name for outbox''s own events (outbox.*); duplicate_object.', outbox_internal.arguments_help('topic')));

	EXECUTE pg_catalog.format($sql$
CREATE FUNCTION outbox.alter_topic(topic text, reset text[] DEFAULT NULL, %s, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner'
	$sql$, arguments);
	EXECUTE pg_catalog.format($sql$
CREATE FUNCTION outbox.ensure_topic(topic text, %s, reason text DEFAULT NULL) RETURNS text[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner'
	$sql$, arguments);
END $do$;
COMMENT ON FUNCTION outbox.alter_topic IS
'Change a registered topic: options as in outbox.create_topic(), NULL keeps what is there. For messages that are staged from its commit on.
reset: names of options to take away.
reason: kept in outbox.actions.
Errors: undefined_object if there is no such topic, otherwise as outbox.create_topic().';
COMMENT ON FUNCTION outbox.ensure_topic IS
'Have a topic registered with exactly these options, those that are not given being the defaults: create it, change it, or leave it alone if it is so already. Several may run at once, for the same topic too.
reason: kept in outbox.actions, if anything was changed.
Returns the names of the options that were changed, none if nothing was, and created alone if there was no such topic. Errors: as outbox.create_topic().';

CREATE FUNCTION outbox.drop_topic(topic text, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner';
COMMENT ON FUNCTION outbox.drop_topic IS
'Forget a registered topic and its rules. Messages of it stay, and can be staged as before, unless outbox.unknown_topics is error.
reason: kept in outbox.actions.
Errors: undefined_object if there is no such topic.';

CREATE FUNCTION outbox.topic_definition(topic text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	t outbox.topic;
BEGIN
	SELECT x.* INTO t FROM outbox.topic x WHERE x.topic = topic_definition.topic COLLATE "C";
	IF t.topic IS NULL THEN
		RAISE EXCEPTION 'topic "%" is not registered', coalesce(topic, 'NULL')
			USING ERRCODE = 'undefined_object', HINT = 'The view outbox.topics lists the topics there are.';
	END IF;
	RETURN outbox_internal.definition('topic', quote_literal(t.topic), t);
END $$;
COMMENT ON FUNCTION outbox.topic_definition IS
'The call of outbox.create_topic() that registers the same topic.
topic: as it was registered. Returns a statement without a semicolon at its end. Errors: undefined_object if there is no such topic.';

-----------------------------------------------------------------------------
-- Consumers (pull)
--
-- Functions in C that look neither at rights on tables nor at plans: who may
-- call them for a handler is checked against outbox.consumer, and rows are
-- found by index scans of their own.
-----------------------------------------------------------------------------

CREATE FUNCTION outbox.claim(handler text, max_messages int DEFAULT 1, lease interval DEFAULT '5 minutes', version int DEFAULT NULL)
RETURNS TABLE (id uuid, attempt int, topic text, payload jsonb, key text, tenant text, correlation_id text, headers jsonb,
	staged_at timestamptz, leased_until timestamptz, content_type text, payload_text text, payload_bytes bytea)
LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'outbox_sql_claim';
COMMENT ON FUNCTION outbox.claim IS
'Lease messages of a pull handler, the oldest due ones first. Waits for no other consumer''s transaction, and no two get the same message.
Claim, commit, then work: only a committed claim counts its attempt, and a claim that is rolled back never was. Settle each message by its id and attempt with outbox.complete(), outbox.retry() or outbox.fail(), in the transaction of the work it caused; outbox.extend() prolongs the lease, outbox.release() gives it back.
handler: name of a pull handler. max_messages: 1 to 10000. lease: how long, up to 30 days; a message that is not settled by then is claimed by the next consumer, with code lease_expired for the attempt, or is dead after the handler''s max_attempts.
version: the consumer''s version; messages staged with a higher min_version are left alone. NULL is 0.
On an ordered handler at most one message of a key is out at a time, the one with the smallest id first, and one claim returns at most half of max_locks_per_transaction messages.
Returns a row for each message; none if nothing is due or the handler is paused. content_type and one of payload_text and payload_bytes are set, and payload is NULL, where the payload is a text or bytes. Rows that were written in the transaction that staged a message are seen by the claiming statement and all later ones, in every isolation level: messages that are too young for its snapshot are left to others.
Errors: undefined_object for an unknown or dropped handler, wrong_object_type for a push handler, insufficient_privilege unless outbox.grant_consumer() allows it, invalid_parameter_value and null_value_not_allowed for arguments as above, read_only_sql_transaction, object_not_in_prerequisite_state in a copy of the database before outbox.adopt(). A transaction that has claimed cannot be prepared (feature_not_supported).';

CREATE FUNCTION outbox.complete(handler text, id uuid, attempt int) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_complete';
COMMENT ON FUNCTION outbox.complete IS
'A claimed message has been dealt with: its delivery becomes delivered when this transaction commits. Call it in the transaction that holds the work, and roll back if it returns false.
handler, id, attempt: as claimed.
Returns true, or false and changes nothing if the lease is lost: settled before, claimed by another consumer after it ran out, or cancelled. A lease that ran out but that nobody has claimed since still counts.
Waits for nobody but whoever holds the delivery''s row. Errors: as outbox.claim().';

CREATE FUNCTION outbox.complete_many(handler text, ids uuid[], attempts int[]) RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_complete_many';
COMMENT ON FUNCTION outbox.complete_many IS
'As outbox.complete(), for many messages at once.
ids, attempts: as claimed, of equal length, up to 10000, without nulls.
Returns what outbox.complete() would for each, in the order of ids: true = ALL (...) says that no lease was lost. Errors: as there.';

CREATE FUNCTION outbox.retry(handler text, id uuid, attempt int, code text DEFAULT 'retry', after interval DEFAULT NULL, error text DEFAULT NULL) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_retry';
COMMENT ON FUNCTION outbox.retry IS
'A claimed message could not be dealt with now: it falls due again after the handler''s backoff, or is dead if this was the last of its max_attempts. The handler''s rules for the code apply.
handler, id, attempt: as claimed. code: why, 1 to 63 letters, digits, dots, dashes and underscores. after: when to try again in place of the backoff, up to 365 days. error: what happened, in words; kept up to outbox.max_response_capture bytes.
Returns true, or false and changes nothing if the lease is lost. Errors: as outbox.claim().';

CREATE FUNCTION outbox.retry_many(handler text, ids uuid[], attempts int[], code text DEFAULT 'retry', after interval DEFAULT NULL, error text DEFAULT NULL) RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_retry_many';
COMMENT ON FUNCTION outbox.retry_many IS
'As outbox.retry(), for many messages at once, all with the same code, time and error.
ids, attempts: as claimed, of equal length, up to 10000, without nulls.
Returns what outbox.retry() would for each, in the order of ids. Errors: as there.';

CREATE FUNCTION outbox.fail(handler text, id uuid, attempt int, code text DEFAULT 'failed', error text DEFAULT NULL) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_fail';
COMMENT ON FUNCTION outbox.fail IS
'A claimed message can never be dealt with: its delivery is dead, whatever attempts are left, until an operator requeues it. The handler''s rules for the code apply.
handler, id, attempt: as claimed. code, error: as in outbox.retry().
Returns true, or false and changes nothing if the lease is lost. Errors: as outbox.claim().';

CREATE FUNCTION outbox.fail_many(handler text, ids uuid[], attempts int[], code text DEFAULT 'failed', error text DEFAULT NULL) RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_fail_many';
COMMENT ON FUNCTION outbox.fail_many IS
'As outbox.fail(), for many messages at once, all with the same code and error.
ids, attempts: as claimed, of equal length, up to 10000, without nulls.
Returns what outbox.fail() would for each, in the order of ids. Errors: as there.';

CREATE FUNCTION outbox.release(handler text, id uuid, attempt int, after interval DEFAULT NULL) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_release';
COMMENT ON FUNCTION outbox.release IS
'Give a claimed message back without having tried it, as a consumer does that shuts down: it can be claimed again as if it had not been. Its attempt is not one of max_attempts and is not logged; the next claim has the next attempt number all the same, so whoever held this lease has lost it.
handler, id, attempt: as claimed. after: when it is to be claimed again in place of at once, up to 365 days.
Returns true, or false and changes nothing if the lease is lost. Errors: as outbox.claim().';

CREATE FUNCTION outbox.release_many(handler text, ids uuid[], attempts int[], after interval DEFAULT NULL) RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_release_many';
COMMENT ON FUNCTION outbox.release_many IS
'As outbox.release(), for many messages at once.
ids, attempts: as claimed, of equal length, up to 10000, without nulls.
Returns what outbox.release() would for each, in the order of ids. Errors: as there.';

CREATE FUNCTION outbox.extend(handler text, id uuid, attempt int, lease interval DEFAULT '5 minutes') RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_extend';
COMMENT ON FUNCTION outbox.extend IS
'Keep a claimed message for longer: its lease ends so long from now. Call it in a transaction of its own, so that others see it.
handler, id, attempt: as claimed. lease: up to 30 days.
Returns true, or false and changes nothing if the lease is lost. Errors: as outbox.claim().';

CREATE FUNCTION outbox.extend_many(handler text, ids uuid[], attempts int[], lease interval DEFAULT '5 minutes') RETURNS boolean[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_extend_many';
COMMENT ON FUNCTION outbox.extend_many IS
'As outbox.extend(), for many messages at once.
ids, attempts: as claimed, of equal length, up to 10000, without nulls.
Returns what outbox.extend() would for each, in the order of ids. Errors: as there.';

CREATE PROCEDURE outbox.wait(handler text, timeout interval DEFAULT '30 s', version int DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_sql_wait';
COMMENT ON PROCEDURE outbox.wait IS
'Wait until a message of a pull handler can be claimed: one that has just been committed, or one that falls due. Call it when outbox.claim() returned nothing, then claim again.
Commits first, and holds no snapshot, lock or transaction id while it waits; so it cannot run inside a transaction block or function (active_sql_transaction). Each message wakes one waiter or so, and another consumer may still be faster.
handler: name of a pull handler. timeout: up to 1 day; it returns after that time if nothing came. version: as in outbox.claim().
Waits on while the handler is paused. Errors: object_not_in_prerequisite_state unless the library is preloaded, insufficient_resources when about 256 pull handlers of the server have waiting consumers already, undefined_object when the handler is dropped, and others as outbox.claim().';

CREATE FUNCTION outbox_internal.pull_handler_id(handler text) RETURNS int
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	result int := outbox_internal.live_handler(handler);
BEGIN
	IF EXISTS (SELECT FROM outbox.handler h WHERE h.id = result AND h.url IS NOT NULL) THEN
		RAISE EXCEPTION 'handler "%" is a push handler', handler
			USING ERRCODE = 'wrong_object_type', HINT = 'Only handlers without a URL have consumers.';
	END IF;
	RETURN result;
END $$;
COMMENT ON FUNCTION outbox_internal.pull_handler_id IS 'Internal: the id of a live pull handler by name; raises undefined_object or wrong_object_type';

-- What a role needs to play its part, as GRANT names it.  A view that calls a
-- function, an internal one of the same name, needs EXECUTE on that as well.
CREATE FUNCTION outbox_internal.part(part text, OUT routines text, OUT views text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT (SELECT string_agg(f.oid::regprocedure::text, ', ') FROM pg_proc f
			WHERE f.pronamespace = 'outbox'::regnamespace AND f.proname = ANY (p.routines)
				OR f.pronamespace = 'outbox_internal'::regnamespace
					AND (f.proname = ANY (p.views) OR f.proname IN ('sender', 'aside') AND 'waiting' = ANY (p.views))),
		(SELECT string_agg('outbox.' || v, ', ') FROM unnest(p.views) v)
	FROM (VALUES
		('producer', '{stage,stage_text,stage_bytes,try_stage,stage_many,status,handlers_of,watch,unwatch,announce}'::text[], '{watched,topics}'::text[]),
		('consumer', '{claim,complete,complete_many,retry,retry_many,fail,fail_many,release,release_many,extend,extend_many,wait}', '{}'),
		('operator', '{requeue,requeue_where,requeue_all,replay,cancel,cancel_where,retry_now,reschedule,pause_handler,resume_handler,prune,drain,deliver_now,verify,next_runs,pause_schedule,resume_schedule,run_now,run_schedules,health,metrics,reset_stats,status,handlers_of,find_deliveries,message,staged,report}',
			'{messages,deliveries,waiting,dead_letters,attempts,backlog,blocked_keys,handlers,handler_stats,stat_handlers,stat_histograms,stat_dispatcher,dispatchers,unrouted,watched,schedules,retention,actions,topics}'),
		('monitor', '{health,metrics}', '{backlog,handler_stats,stat_handlers,stat_histograms,stat_dispatcher,dispatchers}')) p (part, routines, views)
	WHERE p.part = part.part
$$;
COMMENT ON FUNCTION outbox_internal.part IS 'Internal: the routines that a producer, consumer, operator or monitor has to be able to execute, and the views it has to read';

CREATE FUNCTION outbox_internal.check_role(role name) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF role IS NULL OR NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = role COLLATE "C") THEN
		RAISE EXCEPTION 'role "%" does not exist', coalesce(role, 'NULL')
			USING ERRCODE = 'undefined_object', HINT = 'Pass the name of a role as CREATE ROLE made it.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_role IS 'Internal: raise undefined_object if there is no such role';

CREATE FUNCTION outbox_internal.grant_part(part text, role name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	p record;
BEGIN
	PERFORM outbox_internal.check_role(role);
	PERFORM outbox_internal.lock_grants();
	SELECT * INTO p FROM outbox_internal.part(part);
	EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', p.routines, role);
	IF p.views IS NOT NULL THEN
		EXECUTE format('GRANT SELECT ON %s TO %I', p.views, role);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.grant_part IS 'Internal: grant a role what its part needs; raises undefined_object if there is no such role';

CREATE FUNCTION outbox_internal.revoke_part(part text, role name) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	p record;
BEGIN
	PERFORM outbox_internal.check_role(role);
	PERFORM outbox_internal.lock_grants();
	SELECT * INTO p FROM outbox_internal.part(part);
	EXECUTE format('REVOKE EXECUTE ON ROUTINE %s FROM %I', p.routines, role);
	IF p.views IS NOT NULL THEN
		EXECUTE format('REVOKE SELECT ON %s FROM %I', p.views, role);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.revoke_part IS 'Internal: take back what outbox_internal.grant_part() granted';

-- Whoever changes rights waits for the others who do: two that changed those
-- on one function at once would fail.
CREATE FUNCTION outbox_internal.lock_grants() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	LOCK TABLE outbox.consumer IN SHARE ROW EXCLUSIVE MODE;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_grants IS 'Internal: wait for whoever is changing who may do what';

-- Roles that were renamed get their new name, so that a dump has it, and
-- those that were dropped lose their rows.
CREATE FUNCTION outbox_internal.refresh_consumers() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	here uuid := outbox_internal.home();
	renamed outbox.consumer[];
BEGIN
	DELETE FROM outbox.consumer c
	WHERE c.home = here AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = c.role_oid);
	-- Two steps, because roles may have swapped their names.
	WITH gone AS (
		DELETE FROM outbox.consumer c USING pg_roles r
		WHERE c.home = here AND r.oid = c.role_oid AND r.rolname <> c.role
		RETURNING c)
	SELECT array_agg(g.c) INTO renamed FROM gone g;
	INSERT INTO outbox.consumer (handler_id, role, role_oid, home, granted_at, granted_by)
	SELECT n.handler_id, r.rolname, n.role_oid, n.home, n.granted_at, n.granted_by
	FROM unnest(renamed) n JOIN pg_roles r ON r.oid = n.role_oid;
END $$;
COMMENT ON FUNCTION outbox_internal.refresh_consumers IS 'Internal: bring the names of consumers up to date and forget dropped roles';

CREATE FUNCTION outbox_internal.revoke_unused(roles oid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	unused name;
BEGIN
	FOR unused IN
		SELECT r.rolname FROM pg_roles r
		WHERE r.oid = ANY (roles)
			AND NOT EXISTS (SELECT FROM outbox.consumer c WHERE c.role_oid = r.oid AND c.home = outbox_internal.home())
	LOOP
		PERFORM outbox_internal.revoke_part('consumer', unused);
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.revoke_unused IS 'Internal: take EXECUTE on the consumers'' functions from those of these roles that consume nothing any more';

CREATE FUNCTION outbox.grant_consumer(handler text, role name, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	pull_id int;
BEGIN
	PERFORM outbox_internal.lock_grants();
	pull_id := outbox_internal.pull_handler_id(handler);
	PERFORM outbox_internal.grant_part('consumer', role);
	PERFORM outbox_internal.refresh_consumers();
	-- A row of the same name that counts for nobody may be left of a copy.
	INSERT INTO outbox.consumer AS c (handler_id, role, role_oid)
	SELECT pull_id, r.rolname, r.oid FROM pg_roles r WHERE r.rolname = grant_consumer.role COLLATE "C"
	ON CONFLICT ON CONSTRAINT consumer_pkey
	DO UPDATE SET role_oid = excluded.role_oid, home = excluded.home, granted_at = excluded.granted_at, granted_by = excluded.granted_by
	WHERE c.role_oid <> excluded.role_oid OR c.home IS DISTINCT FROM excluded.home;
	PERFORM outbox_internal.note_action('grant_consumer', jsonb_build_object('handler', handler, 'role', role), 1, reason);
	PERFORM outbox_internal.ring_status();
END $$;
COMMENT ON FUNCTION outbox.grant_consumer IS
'Allow a role, and the members of it, to consume one pull handler: to claim its messages, wait for them and settle them, and nothing else. Granting twice is once.
handler: name of a pull handler. role: name of a role.
reason: kept in outbox.actions.
Grants EXECUTE on the consumers'' functions as well; each call of them is checked against the handlers the role was granted. The grant is the role''s own: it stays when the role is renamed and ends when it is dropped. In a copy of the database it counts again after outbox.adopt(), for the role that has the name there.
Errors: undefined_object for an unknown handler or role, wrong_object_type for a push handler.';

CREATE FUNCTION outbox.revoke_consumer(handler text, role name, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	here uuid := outbox_internal.home();
	pull_id int;
	consumers oid[];
BEGIN
	PERFORM outbox_internal.lock_grants();
	pull_id := outbox_internal.pull_handler_id(handler);
	-- Here the name is that of a role; of a dropped one, or in a copy, it is what was granted.
	WITH gone AS (
		DELETE FROM outbox.consumer c
		WHERE c.handler_id = pull_id AND CASE
			WHEN c.home = here AND EXISTS (SELECT FROM pg_roles r WHERE r.oid = c.role_oid)
				THEN c.role_oid = (SELECT r.oid FROM pg_roles r WHERE r.rolname = revoke_consumer.role COLLATE "C")
			ELSE c.role = revoke_consumer.role COLLATE "C" END
		RETURNING c.role_oid)
	SELECT array_agg(g.role_oid) INTO consumers FROM gone g;
	PERFORM outbox_internal.refresh_consumers();
	PERFORM outbox_internal.revoke_unused(consumers);
	PERFORM outbox_internal.note_action('revoke_consumer', jsonb_build_object('handler', handler, 'role', role), (consumers IS NOT NULL)::int, reason);
	PERFORM outbox_internal.ring_status();
	RETURN consumers IS NOT NULL;
END $$;
COMMENT ON FUNCTION outbox.revoke_consumer IS
'Take back what outbox.grant_consumer() allowed. What the role has leased it can no longer settle; it falls due when the lease runs out.
handler: name of a pull handler. role: name of a role, which need not exist any more.
reason: kept in outbox.actions.
EXECUTE on the consumers'' functions is revoked with the role''s last handler. Returns true if it had been granted. Errors: as outbox.grant_consumer().';

-- Who plays which part.  (Consumers: above, one handler at a time.)

CREATE FUNCTION outbox.grant_producer(role name, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	PERFORM outbox_internal.grant_part('producer', role);
	PERFORM outbox_internal.note_action('grant_producer', jsonb_build_object('role', role), 1, reason);
END $$;
COMMENT ON FUNCTION outbox.grant_producer IS
'Allow a role, and the members of it, to stage messages: EXECUTE on outbox.stage(), outbox.stage_text(), outbox.stage_bytes(), outbox.try_stage(), outbox.stage_many(), outbox.status() and outbox.handlers_of(), outbox.watch() and outbox.unwatch() for tables of its own, SELECT on outbox.watched and outbox.topics, and nothing else.
role: name of a role. These are ordinary grants, which REVOKE and DROP OWNED BY take back as well.
reason: kept in outbox.actions.
Errors: undefined_object for an unknown role.';

CREATE FUNCTION outbox.revoke_producer(role name, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	PERFORM outbox_internal.revoke_part('producer', role);
	PERFORM outbox_internal.note_action('revoke_producer', jsonb_build_object('role', role), 1, reason);
END $$;
COMMENT ON FUNCTION outbox.revoke_producer IS
'Take back what outbox.grant_producer() allowed.
reason: kept in outbox.actions.
Errors: as there.';

CREATE FUNCTION outbox.grant_operator(role name, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	PERFORM outbox_internal.grant_part('operator', role);
	PERFORM outbox_internal.note_action('grant_operator', jsonb_build_object('role', role), 1, reason);
END $$;
COMMENT ON FUNCTION outbox.grant_operator IS
'Allow a role, and the members of it, to look after deliveries: to read every view, payloads included, and to execute requeue, requeue_where, requeue_all, replay, cancel, cancel_where, retry_now, reschedule, pause_handler, resume_handler, pause_schedule, resume_schedule, run_now, run_schedules, next_runs, prune, drain, deliver_now, verify, health, report, metrics, reset_stats, find_deliveries, message, staged, status and handlers_of. Not to make or change handlers or schedules, which is to send messages anywhere, nor to erase, adopt or grant.
role: name of a role. These are ordinary grants, which REVOKE and DROP OWNED BY take back as well.
reason: kept in outbox.actions.
Errors: undefined_object for an unknown role.';

CREATE FUNCTION outbox.revoke_operator(role name, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	PERFORM outbox_internal.revoke_part('operator', role);
	PERFORM outbox_internal.note_action('revoke_operator', jsonb_build_object('role', role), 1, reason);
END $$;
COMMENT ON FUNCTION outbox.revoke_operator IS
'Take back what outbox.grant_operator() allowed, and with it what a monitor may see.
reason: kept in outbox.actions.
Errors: as there.';

CREATE FUNCTION outbox.grant_monitor(role name, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	PERFORM outbox_internal.grant_part('monitor', role);
	PERFORM outbox_internal.note_action('grant_monitor', jsonb_build_object('role', role), 1, reason);
END $$;
COMMENT ON FUNCTION outbox.grant_monitor IS
'Allow a role, and the members of it, to watch: to read outbox.backlog, outbox.handler_stats, outbox.stat_handlers, outbox.stat_histograms, outbox.stat_dispatcher and outbox.dispatchers, and to execute outbox.health() and outbox.metrics(). These show figures and names of handlers, no content. Members of pg_monitor can do so without it.
role: name of a role. These are ordinary grants, which REVOKE and DROP OWNED BY take back as well.
reason: kept in outbox.actions.
Errors: undefined_object for an unknown role.';

CREATE FUNCTION outbox.revoke_monitor(role name, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	PERFORM outbox_internal.revoke_part('monitor', role);
	PERFORM outbox_internal.note_action('revoke_monitor', jsonb_build_object('role', role), 1, reason);
END $$;
COMMENT ON FUNCTION outbox.revoke_monitor IS
'Take back what outbox.grant_monitor() allowed, to an operator as well.
reason: kept in outbox.actions.
Errors: as there.';

CREATE FUNCTION outbox.accept(source text, message_id text, ttl interval DEFAULT '7 days') RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_accept';
COMMENT ON FUNCTION outbox.accept IS
'For receivers with a database: has this message not been accepted before? Call it first thing in the transaction that does the work; if it returns false the work has been done already, so answer as if it had been done now.
source: who sent it, such as the outbox-handler header. message_id: its idempotency key, such as the webhook-id header. Each has 1 to 1000 bytes.
ttl: how long to remember; longer than the sender keeps retrying, up to 100 years.
Returns true the first time, and again after ttl. If another transaction is accepting the same message it waits for that one: false if it commits, true if it rolls back. Under REPEATABLE READ and above an entry that the snapshot does not show is a serialization_failure.
Errors: null_value_not_allowed and invalid_parameter_value for arguments as above. Expired entries are removed by the server itself, or by outbox.prune().';

-- For outbox.inbox and outbox.dedupe_key, whose rows say themselves when they are over.
CREATE FUNCTION outbox_internal.prune_expired(relation text, batch int) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
	n bigint;
BEGIN
	-- The time is none of the query's: what changes while it runs is no condition of an
	-- index, and all that has not expired would be read each time.
	EXECUTE format('DELETE FROM outbox.%1$I r WHERE r.ctid = ANY (ARRAY(
		SELECT e.ctid FROM outbox.%1$I e
		WHERE e.expires_at <= $1
		ORDER BY e.expires_at
		LIMIT $2
		FOR UPDATE SKIP LOCKED))', relation) USING clock_timestamp(), batch;
	GET DIAGNOSTICS n = ROW_COUNT;
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox_internal.prune_expired IS 'Internal: remove up to so many expired rows of outbox.inbox or outbox.dedupe_key, those that nobody is accepting or using again; returns how many';

CREATE FUNCTION outbox_internal.dedupe_window() RETURNS interval
LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_dedupe_window';
COMMENT ON FUNCTION outbox_internal.dedupe_window IS 'Internal: outbox.dedupe_window as it is set now; NULL: dedupe keys are kept as long as their messages';

-- Of messages that are about to be removed, which the caller has locked: in
-- the same transaction, so that whoever finds the row gone finds the key here.
CREATE FUNCTION outbox_internal.keep_dedupe_keys(ids uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	how_long CONSTANT interval := outbox_internal.dedupe_window();
BEGIN
	IF how_long IS NULL THEN
		RETURN;
	END IF;
	INSERT INTO outbox.dedupe_key AS k (tenant, dedupe_key, staged_at, message_id, topic, key, expires_at)
	SELECT coalesce(m.tenant, ''), m.dedupe_key, m.staged_at, m.id, m.topic, m.key, m.staged_at + how_long
	FROM outbox.message m
	WHERE m.id = ANY (ids) AND m.dedupe_key IS NOT NULL AND m.staged_at > clock_timestamp() - how_long
	ORDER BY 1, 2
	-- One that has been used again since is the younger one's.
	ON CONFLICT (tenant, dedupe_key) DO UPDATE
	SET staged_at = EXCLUDED.staged_at, message_id = EXCLUDED.message_id, topic = EXCLUDED.topic, key = EXCLUDED.key, expires_at = EXCLUDED.expires_at
	WHERE k.staged_at < EXCLUDED.staged_at;
END $$;
COMMENT ON FUNCTION outbox_internal.keep_dedupe_keys IS 'Internal: keep the dedupe keys of these messages for what is left of outbox.dedupe_window; does nothing without one';

-----------------------------------------------------------------------------
-- Operators
--
-- All of them act with the owner's rights once EXECUTE was granted, lock the
-- rows they change in (message_id, handler_id) order, and tell the dispatcher
-- at commit.  Whoever brings a settled delivery back locks its message first,
-- so that retention cannot remove it in between.
-----------------------------------------------------------------------------

CREATE FUNCTION outbox_internal.topic_taken(patterns text[], topic text) RETURNS boolean
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_topic_taken';
COMMENT ON FUNCTION outbox_internal.topic_taken IS 'Internal: does one of the topic patterns take this topic? Raises invalid_parameter_value for a bad pattern';

CREATE FUNCTION outbox_internal.retention_settings(OUT delivered interval, OUT dead interval, OUT batch int, OUT auto boolean, OUT every interval, OUT actions interval)
LANGUAGE c STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_retention_settings';
COMMENT ON FUNCTION outbox_internal.retention_settings IS 'Internal: outbox.delivered_retention, outbox.dead_retention, outbox.prune_batch_size, outbox.auto_prune, outbox.prune_interval and outbox.action_retention as they are set now';

-- The id of a handler that is still there.
CREATE FUNCTION outbox_internal.live_handler(handler text) RETURNS int
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	result int;
BEGIN
	SELECT h.id INTO result FROM outbox.handler h WHERE h.name = handler COLLATE "C" AND h.dropped_at IS NULL;
	IF result IS NOT NULL THEN
		RETURN result;
	END IF;
	IF EXISTS (SELECT FROM outbox.handler h WHERE h.name = handler COLLATE "C") THEN
		RAISE EXCEPTION 'handler "%" was dropped', handler
			USING ERRCODE = 'undefined_object',
				HINT = 'Nothing can be delivered to a dropped handler; create one and use outbox.replay() with backfill.';
	END IF;
	IF handler IS NULL THEN
		RAISE EXCEPTION 'handler must not be null'
			USING ERRCODE = 'null_value_not_allowed', HINT = 'The view outbox.handlers lists the handlers there are.';
	END IF;
	RAISE EXCEPTION 'handler "%" does not exist', handler
		USING ERRCODE = 'undefined_object', HINT = 'The view outbox.handlers lists the handlers there are.';
END $$;
COMMENT ON FUNCTION outbox_internal.live_handler IS 'Internal: the id of a handler by name; raises undefined_object if it does not exist or was dropped, null_value_not_allowed for NULL';

-- A message by id, within a tenant if one is named; locked against prune()
-- and other operators, so that one does not miss what another brings back.
CREATE FUNCTION outbox_internal.lock_message(id uuid, tenant text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF id IS NULL THEN
		RAISE EXCEPTION 'message id must not be null'
			USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass the id that outbox.stage() returned.';
	END IF;
	PERFORM FROM outbox.message m
	WHERE m.id = lock_message.id AND (lock_message.tenant IS NULL OR m.tenant = lock_message.tenant COLLATE "C")
	FOR NO KEY UPDATE;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'message % does not exist%', id, CASE WHEN tenant IS NULL THEN '' ELSE format(' for tenant "%s"', tenant) END
			USING ERRCODE = 'no_data_found',
				HINT = 'Messages are removed once all their deliveries are settled and past retention.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_message IS 'Internal: lock a message against prune() and other operators; raises no_data_found if there is none';

-- The handler of one delivery, by name; any handler that has one of it.
CREATE FUNCTION outbox_internal.handler_of_message(id uuid, handler text) RETURNS int
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	result int;
BEGIN
	SELECT h.id INTO result
	FROM (
		SELECT d.handler_id FROM outbox.delivery d WHERE d.message_id = handler_of_message.id
		UNION ALL
		SELECT r.handler_id FROM outbox.receipt r WHERE r.message_id = handler_of_message.id) AS d
	JOIN outbox.handler h ON h.id = d.handler_id
	WHERE h.name = handler COLLATE "C"
	ORDER BY h.dropped_at IS NULL DESC, h.id DESC
	LIMIT 1;
	IF result IS NULL THEN
		PERFORM outbox_internal.live_handler(handler);
		RAISE EXCEPTION 'message % has no delivery for handler "%"', id, handler
			USING ERRCODE = 'no_data_found',
				HINT = 'The view outbox.deliveries shows which handlers a message was routed to.';
	END IF;
	RETURN result;
END $$;
COMMENT ON FUNCTION outbox_internal.handler_of_message IS 'Internal: the handler of that name which the message was routed to; raises if there is none';

-- What a bulk operator chooses by; where a field is NULL, by the others.  Of one
-- message: lowest and highest are its id.
CREATE TYPE outbox_internal.filter AS (
	handler_id int,
	lowest uuid,
	highest uuid,
	topic text,
	tenant text,
	code text,
	settled_before timestamptz
);
COMMENT ON TYPE outbox_internal.filter IS 'Internal: which deliveries are meant; lowest and highest are ids of messages, topic is a pattern';

-- Refuse what would select nothing or mean something else.
CREATE FUNCTION outbox_internal.check_filter(topic text, since timestamptz, until timestamptz, max_rows bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF since > until THEN
		RAISE EXCEPTION 'since must not be later than until'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'The range includes since and excludes until.';
	END IF;
	IF max_rows <= 0 THEN
		RAISE EXCEPTION 'max_rows must be positive'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for no limit.';
	END IF;
	IF topic IS NOT NULL THEN
		PERFORM outbox_internal.topic_taken(ARRAY[topic], 'x');
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_filter IS 'Internal: raises invalid_parameter_value for an impossible filter';

-- The filter that these arguments of a bulk operator mean.
CREATE FUNCTION outbox_internal.make_filter(handler text, since timestamptz, until timestamptz, topic text, tenant text, code text,
	settled_before timestamptz) RETURNS outbox_internal.filter
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	f outbox_internal.filter;
BEGIN
	IF handler IS NOT NULL THEN
		f.handler_id := outbox_internal.live_handler(handler);
	END IF;
	f.lowest := outbox_internal.id_floor(coalesce(since, '-infinity'));
	f.highest := outbox_internal.id_floor(coalesce(until, 'infinity'));
	f.topic := topic;
	f.tenant := tenant;
	f.code := code;
	f.settled_before := settled_before;
	RETURN f;
END $$;
COMMENT ON FUNCTION outbox_internal.make_filter IS 'Internal: the filter that arguments of that name mean; raises undefined_object if there is no such handler';

CREATE FUNCTION outbox_internal.check_goes_on(called text, max_rows bigint, settled_before timestamptz) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF max_rows IS NOT NULL AND settled_before IS NULL THEN
		RAISE EXCEPTION 'outbox.%() needs settled_before along with max_rows to deliver again what was delivered', called
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'A second call would choose the same deliveries, once they have been delivered again. Pass the time of the first call with each of them.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_goes_on IS 'Internal: raises invalid_parameter_value if a second call of that function would choose the same deliveries again';

-- Is there a delivery or a receipt of this message for this handler?  Looks
-- under the latest snapshot, whatever the transaction's, and in both tables
-- under the same: whoever has locked the message can rely on a no.
CREATE FUNCTION outbox_internal.is_routed(message_id uuid, handler_id int) RETURNS boolean
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_is_routed';
COMMENT ON FUNCTION outbox_internal.is_routed IS 'Internal: does a handler have a delivery or a receipt of this message, as of now?';

-- Which receipts of these states are meant, oldest message first, and where
-- they are.  Nothing is locked: what has changed before the caller locks it is
-- no longer there, or no longer in one of the states.  Parameters are folded
-- into the plan, and plans that would read a table whole, or depend on what the
-- planner believes of it, are ruled out.  What the message says is looked up one
-- by one, and only if it is asked for.
CREATE FUNCTION outbox_internal.choose_settled(f outbox_internal.filter, states smallint[], max_rows bigint, OUT ids uuid[], OUT places tid[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	live int[] := ARRAY(SELECT h.id FROM outbox.handler h WHERE h.dropped_at IS NULL);
BEGIN
	SELECT array_agg(c.message_id), array_agg(c.place) INTO ids, places
	FROM (
		SELECT r.message_id, r.ctid AS place
		FROM outbox.receipt r
		WHERE r.state = ANY (states) AND (3 = ANY (states) OR r.state + 0 IN (4, 5)) AND (states <> '{4}' OR r.state + 0 = 4)
			AND r.message_id >= f.lowest AND r.message_id <= f.highest
			AND (f.handler_id IS NULL OR r.handler_id = f.handler_id) AND r.handler_id = ANY (live) AND r.handler_id <> 0
			AND (f.settled_before IS NULL OR r.settled_at < f.settled_before)
			AND (f.code IS NULL OR r.code = f.code)
			AND (f.tenant IS NULL OR f.tenant = (SELECT m.tenant FROM outbox.message m WHERE m.id = r.message_id))
			AND (f.topic IS NULL OR outbox_internal.topic_taken(ARRAY[f.topic], (SELECT m.topic FROM outbox.message m WHERE m.id = r.message_id)))
		ORDER BY r.message_id, r.handler_id
		LIMIT max_rows) AS c;
END $$;
COMMENT ON FUNCTION outbox_internal.choose_settled IS 'Internal: the messages and the places of receipts in these states, up to so many, oldest message first; NULL if there is none';

-- On a standby nothing is done, not even if there is nothing to do.
CREATE FUNCTION outbox_internal.check_writable(called text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF current_setting('transaction_read_only')::boolean THEN
		RAISE EXCEPTION 'cannot execute outbox.%() in a read-only transaction', called
			USING ERRCODE = 'read_only_sql_transaction', HINT = 'Call it on the primary, in a transaction that may write.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_writable IS 'Internal: raise read_only_sql_transaction for a function of that name where nothing can be written';

-- Settled deliveries back to pending.  The one place that does it.  They begin a
-- new life: their handler's max_age counts anew, and an end of the message that
-- has passed is forgotten, since whoever brings them back wants them delivered.
-- Its plans
-- find rows by their keys or places and hold for any number of them, so a
-- session makes them once.
CREATE FUNCTION outbox_internal.revive(f outbox_internal.filter, states smallint[], max_rows bigint, dry_run boolean,
	spread interval DEFAULT NULL, since timestamptz DEFAULT NULL, total bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	-- One time for all of them: then they are read in the order of their ids.
	at timestamptz := clock_timestamp();
	ids uuid[];
	places tid[];
	n bigint;
BEGIN
	IF f.lowest = f.highest THEN
		SELECT array_agg(r.message_id), array_agg(r.ctid) INTO ids, places
		FROM outbox.receipt r
		WHERE r.message_id = f.lowest AND (f.handler_id IS NULL OR r.handler_id = f.handler_id) AND r.state = ANY (states)
			AND r.handler_id <> 0 AND (SELECT h.dropped_at IS NULL FROM outbox.handler h WHERE h.id = r.handler_id);
	ELSE
		SELECT c.ids, c.places INTO ids, places FROM outbox_internal.choose_settled(f, states, max_rows) c;
	END IF;
	IF dry_run OR places IS NULL THEN
		RETURN coalesce(cardinality(places), 0);
	END IF;
	-- So that prune() cannot remove them.
	PERFORM FROM outbox.message m WHERE m.id = ANY (ids) ORDER BY m.id FOR NO KEY UPDATE;
	WITH gone AS (
		-- By where they are, as cancel_rows() does; what else is needed by scalar subqueries, each by its key.
		DELETE FROM outbox.receipt r
		WHERE r.ctid = ANY (places) AND r.state = ANY (states) AND (SELECT true FROM outbox.message m WHERE m.id = r.message_id)
		RETURNING r.message_id, r.handler_id, r.attempts, r.state, r.budget_from
	), counted AS (
		-- The first request of a budget may be out still for what was cancelled
		-- before its answer came.  It counts as made, or its answer would pass for
		-- one to the request that is sent now: both would have the same number.
		SELECT g.message_id, g.handler_id, g.attempts + CASE
			WHEN g.state = 5 AND g.attempts = g.budget_from AND g.attempts < 2147483647
				AND (SELECT h.url IS NOT NULL FROM outbox.handler h WHERE h.id = g.handler_id) THEN 1 ELSE 0 END AS attempts,
			CASE WHEN spread IS NULL THEN at ELSE coalesce(since, at) + spread * ((row_number() OVER () - 1)::float8 / coalesce(total, cardinality(places))) END AS due_at
		FROM gone g
	), revived AS (
		INSERT INTO outbox.delivery (message_id, handler_id, due_at, attempts, budget_from, min_version, key, expires_at)
		SELECT g.message_id, g.handler_id, g.due_at, g.attempts, g.attempts,
			CASE WHEN (SELECT h.url IS NULL FROM outbox.handler h WHERE h.id = g.handler_id)
				THEN (SELECT m.min_version FROM outbox.message m WHERE m.id = g.message_id) END,
			CASE WHEN (SELECT h.ordered FROM outbox.handler h WHERE h.id = g.handler_id)
				THEN (SELECT m.key FROM outbox.message m WHERE m.id = g.message_id) END,
			least((SELECT m.expires_at FROM outbox.message m WHERE m.id = g.message_id AND m.expires_at > at),
				g.due_at + (SELECT make_interval(secs => extract(epoch FROM h.max_age)::float8) FROM outbox.handler h WHERE h.id = g.handler_id))
		FROM counted g
		RETURNING handler_id, due_at, message_id, expires_at
	)
	SELECT sum(outbox_internal.count(g.handler_id, 'requeued', g.n)) INTO n
	FROM (
		SELECT rung.handler_id, count(*) AS n
		FROM (SELECT r.handler_id, outbox_internal.ring(r.handler_id, 0, r.due_at, r.message_id), outbox_internal.ring_end(r.expires_at) FROM revived r OFFSET 0) AS rung
		GROUP BY rung.handler_id) AS g;
	RETURN coalesce(n, 0);
END $$;
COMMENT ON FUNCTION outbox_internal.revive IS 'Internal: bring settled deliveries back to pending with a fresh attempt budget; returns how many.  spread: due one after the other over that time, from since on, as if they were total';

-- A delivery to a handler that takes the topic and has not had the message:
-- for dead letters nobody took, and for handlers younger than the message.
-- What is chosen is looked at again when its message is locked, as everybody
-- does who gives an old message a new delivery.
CREATE FUNCTION outbox_internal.route_again(f outbox_internal.filter, only_unrouted boolean, states smallint[], max_rows bigint, dry_run boolean,
	spread interval DEFAULT NULL, since timestamptz DEFAULT NULL, total bigint DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET join_collapse_limit = 1 SET jit = off AS $$
DECLARE
	ids uuid[];
	handlers int[];
	n bigint;
BEGIN
	SELECT array_agg(c.message_id), array_agg(c.handler_id) INTO ids, handlers
	FROM (
		SELECT m.id AS message_id, h.id AS handler_id
		FROM (
			SELECT all_of_them.* FROM outbox.message all_of_them
			WHERE NOT only_unrouted AND all_of_them.id >= f.lowest AND all_of_them.id <= f.highest
			UNION ALL
			SELECT unrouted.* FROM outbox.receipt r JOIN outbox.message unrouted ON unrouted.id = r.message_id
			WHERE only_unrouted AND r.state + 0 IN (4, 5) AND r.state = ANY (states) AND (states <> '{4}' OR r.state + 0 = 4) AND r.handler_id = 0
				AND (f.settled_before IS NULL OR r.settled_at < f.settled_before)
				AND r.message_id >= f.lowest AND r.message_id <= f.highest) AS m
		JOIN outbox.handler h ON h.dropped_at IS NULL AND h.id <> 0 AND outbox_internal.topic_taken(h.topics, m.topic)
		WHERE (f.handler_id IS NULL OR h.id = f.handler_id)
			AND (f.tenant IS NULL OR m.tenant = f.tenant)
			AND (f.topic IS NULL OR outbox_internal.topic_taken(ARRAY[f.topic], m.topic))
			AND NOT EXISTS (SELECT FROM outbox.delivery d WHERE d.message_id = m.id AND d.handler_id = h.id)
			AND NOT EXISTS (SELECT FROM outbox.receipt r WHERE r.message_id = m.id AND r.handler_id = h.id)
		ORDER BY m.id, h.id
		LIMIT max_rows) AS c;
	IF dry_run OR ids IS NULL THEN
		RETURN coalesce(cardinality(ids), 0);
	END IF;

	PERFORM FROM outbox.message m WHERE m.id = ANY (ids) ORDER BY m.id FOR NO KEY UPDATE;
	WITH routed AS (
		INSERT INTO outbox.delivery (message_id, handler_id, due_at, min_version, key, expires_at)
		SELECT c.message_id, c.handler_id, c.due_at,
			CASE WHEN (SELECT h.url IS NULL FROM outbox.handler h WHERE h.id = c.handler_id)
				THEN (SELECT m.min_version FROM outbox.message m WHERE m.id = c.message_id) END,
			CASE WHEN (SELECT h.ordered FROM outbox.handler h WHERE h.id = c.handler_id)
				THEN (SELECT m.key FROM outbox.message m WHERE m.id = c.message_id) END,
			least((SELECT m.expires_at FROM outbox.message m WHERE m.id = c.message_id AND m.expires_at > c.due_at),
				c.due_at + (SELECT make_interval(secs => extract(epoch FROM h.max_age)::float8) FROM outbox.handler h WHERE h.id = c.handler_id))
		FROM (
			SELECT u.message_id, u.handler_id, greatest(
					CASE WHEN spread IS NULL THEN clock_timestamp()
						ELSE coalesce(since, clock_timestamp()) + spread * ((u.n - 1)::float8 / coalesce(total, cardinality(ids))) END,
					(SELECT m.deliver_at FROM outbox.message m WHERE m.id = u.message_id)) AS due_at
			FROM unnest(ids, handlers) WITH ORDINALITY AS u (message_id, handler_id, n)) AS c
		WHERE (SELECT true FROM outbox.message m WHERE m.id = c.message_id) AND NOT outbox_internal.is_routed(c.message_id, c.handler_id)
		ON CONFLICT DO NOTHING
		RETURNING handler_id, due_at, message_id, expires_at
	), answered AS (
		-- The dead letter nobody took has been taken.
		UPDATE outbox.receipt r
		SET state = 5, code = 'rerouted', error = NULL, settled_at = clock_timestamp()
		WHERE r.ctid = ANY (ARRAY(
			SELECT (SELECT u.ctid FROM outbox.receipt u WHERE u.message_id = c.message_id AND u.handler_id = 0 AND u.state = 4)
			FROM (SELECT DISTINCT v.message_id FROM routed v) AS c))
	)
	SELECT sum(outbox_internal.count(g.handler_id, 'staged', g.n)) INTO n
	FROM (
		SELECT rung.handler_id, count(*) AS n
		FROM (SELECT r.handler_id, outbox_internal.ring(r.handler_id, 0, r.due_at, r.message_id), outbox_internal.ring_end(r.expires_at) FROM routed r OFFSET 0) AS rung
		GROUP BY rung.handler_id) AS g;
	RETURN coalesce(n, 0);
END $$;
COMMENT ON FUNCTION outbox_internal.route_again IS 'Internal: give messages a delivery to handlers that take their topic and have not had them; returns how many.  spread, since, total: as in outbox_internal.revive()';

CREATE FUNCTION outbox.requeue(id uuid, handler text DEFAULT NULL, tenant text DEFAULT NULL, reason text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	only_handler int;
	f outbox_internal.filter;
	n bigint;
BEGIN
	PERFORM outbox_internal.lock_message(id, tenant);
	IF handler IS NOT NULL THEN
		only_handler := outbox_internal.handler_of_message(id, handler);
	END IF;
	f.handler_id := only_handler;
	f.lowest := id;
	f.highest := id;
	n := outbox_internal.revive(f, '{4,5}', NULL, false);
	IF EXISTS (SELECT FROM outbox.receipt r WHERE r.message_id = id AND r.handler_id = 0 AND (only_handler IS NULL OR only_handler = 0)) THEN
		f.handler_id := NULL;
		n := n + outbox_internal.route_again(f, true, '{4,5}', NULL, false);
	END IF;
	IF n > 0 THEN
		PERFORM outbox_internal.note_action('requeue', jsonb_build_object('handler', handler, 'tenant', tenant), n, reason, id);
		RETURN n;
	END IF;

	-- Say so when what is dead cannot be brought back.
	IF EXISTS (
		SELECT FROM outbox.receipt r JOIN outbox.handler h ON h.id = r.handler_id
		WHERE r.message_id = requeue.id AND r.state IN (4, 5) AND h.dropped_at IS NOT NULL
			AND (only_handler IS NULL OR r.handler_id = only_handler))
	THEN
		RAISE EXCEPTION 'message % cannot be requeued: its handler was dropped', id
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Create a handler that takes its topic and use outbox.replay() with backfill.';
	END IF;
	IF EXISTS (
		SELECT FROM outbox.receipt r
		WHERE r.message_id = requeue.id AND r.state = 4 AND r.handler_id = 0 AND (only_handler IS NULL OR only_handler = 0))
	THEN
		RAISE EXCEPTION 'message % cannot be requeued: no handler takes its topic', id
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Create a handler for the topic first.';
	END IF;
	RETURN 0;
END $$;
COMMENT ON FUNCTION outbox.requeue IS
'Bring the dead and cancelled deliveries of a message back: pending, due now, with a fresh attempt budget. An expires_at of the message that has passed counts no more, and max_age of a handler counts from now.
id: the message. handler: only this handler''s delivery. tenant: only if the message is this tenant''s. reason: kept in outbox.actions.
A message that no handler took (outbox.unrouted = dead) goes to the handlers that take its topic now, not before the time that it was scheduled for.
Receipts of handlers that succeeded stay, and what is outstanding is left alone.
One that was cancelled before any attempt of its budget was settled may have a request out still: where requests are pushed that counts as an attempt made, so that its answer changes nothing.
Returns the number of deliveries brought back, 0 if none was dead or cancelled.
Errors: no_data_found if there is no such message or delivery, undefined_object for an unknown handler, object_not_in_prerequisite_state if its handler was dropped or nobody takes its topic.';

CREATE FUNCTION outbox.requeue_where(handler text DEFAULT NULL, topic text DEFAULT NULL, tenant text DEFAULT NULL, code text DEFAULT NULL,
	since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, include_delivered boolean DEFAULT false,
	max_rows bigint DEFAULT NULL, dry_run boolean DEFAULT false,
	include_cancelled boolean DEFAULT false, settled_before timestamptz DEFAULT NULL,
	spread interval DEFAULT NULL, reason text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	f outbox_internal.filter;
	states smallint[] := '{4}';
	n bigint := 0;
BEGIN
	PERFORM outbox_internal.check_filter(topic, since, until, max_rows);
	IF num_nonnulls(handler, topic, tenant, code, since, until) = 0 THEN
		RAISE EXCEPTION 'requeue_where needs a filter'
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Name a handler, topic, tenant, code or time range; since => ''-infinity'' means everything.';
	END IF;
	PERFORM outbox_internal.check_interval('spread', coalesce(spread, '0'), '0', '30 days');
	f := outbox_internal.make_filter(handler, since, until, topic, tenant, code, settled_before);
	IF NOT coalesce(dry_run, false) THEN
		PERFORM outbox_internal.check_writable('requeue_where');
	END IF;
	IF include_cancelled THEN
		states := states || 5::smallint;
	END IF;
	IF include_delivered THEN
		PERFORM outbox_internal.check_goes_on('requeue_where', max_rows, settled_before);
		states := states || 3::smallint;
	END IF;
	IF f.handler_id IS DISTINCT FROM 0 THEN
		n := outbox_internal.revive(f, states, max_rows, coalesce(dry_run, false), spread);
	END IF;
	IF (f.handler_id IS NULL OR f.handler_id = 0) AND (code IS NULL OR code = 'unrouted') AND (max_rows IS NULL OR n < max_rows) THEN
		f.handler_id := NULL;
		n := n + outbox_internal.route_again(f, true, states, max_rows - n, coalesce(dry_run, false), spread);
	END IF;
	IF NOT coalesce(dry_run, false) THEN
		PERFORM outbox_internal.note_action('requeue_where', jsonb_build_object('handler', handler, 'topic', topic, 'tenant', tenant, 'code', code, 'since', since, 'until', until,
			'include_delivered', nullif(include_delivered, false), 'include_cancelled', nullif(include_cancelled, false), 'max_rows', max_rows,
			'settled_before', settled_before, 'spread', spread), n, reason);
	END IF;
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox.requeue_where IS
'Bring many dead deliveries back at once, as outbox.requeue() does for one message.
Every argument narrows the choice and at least one of the first six is needed: handler (name), topic (a pattern, as handlers have), tenant, code (of the last outcome), since and until (time of staging; until is excluded).
include_cancelled: also what was cancelled. include_delivered: also deliver again what was delivered. max_rows: at most so many, oldest first; call it again until it returns 0, each time in a transaction of its own, and nobody waits for long. settled_before: only what was settled before that time; the same with each of those calls, it keeps out what has been settled again since. dry_run: change nothing, only count.
spread: not all of them at once, but due one after the other over this time, at most 30 days, so that a receiver that has just come back is not trampled. reason: kept in outbox.actions.
outbox.requeue_all() does any number in batches, each committed by itself.
Outstanding deliveries and those of dropped handlers are never touched. All in the caller''s transaction.
Returns the number of deliveries. Errors: undefined_object for an unknown handler, invalid_parameter_value for an impossible filter, or for include_delivered with max_rows but without settled_before.';

-- One batch of outbox.requeue_all(): what the one before returned goes into the
-- next one, and NULLs into the first.  The action grows with each batch, so it says
-- how many were brought back whatever becomes of the rest.
CREATE FUNCTION outbox_internal.requeue_batch(handler text, topic text, tenant text, code text, since timestamptz, until timestamptz,
	include_delivered boolean, include_cancelled boolean, spread interval, reason text,
	INOUT began timestamptz, INOUT action_id bigint, INOUT total bigint, INOUT done bigint, INOUT reached uuid, OUT ended boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	batch CONSTANT int := 10000;
	past_all CONSTANT uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
	f outbox_internal.filter;
	states smallint[] := '{4}'::smallint[] || CASE WHEN include_cancelled THEN '{5}'::smallint[] END || CASE WHEN include_delivered THEN '{3}'::smallint[] END;
	chosen uuid[];
	at timestamptz;
	n bigint := 0;
BEGIN
	IF began IS NULL THEN
		PERFORM outbox_internal.check_filter(topic, since, until, NULL);
		PERFORM outbox_internal.check_interval('spread', coalesce(spread, '0'), '0', '30 days');
		IF num_nonnulls(handler, topic, tenant, code, since, until) = 0 THEN
			RAISE EXCEPTION 'requeue_all needs a filter'
				USING ERRCODE = 'invalid_parameter_value',
					HINT = 'Name a handler, topic, tenant, code or time range; since => ''-infinity'' means everything.';
		END IF;
		began := clock_timestamp();
		done := 0;
	END IF;
	f := outbox_internal.make_filter(handler, since, until, topic, tenant, code, began);
	IF spread IS NOT NULL AND total IS NULL THEN
		total := greatest(outbox_internal.count_settled(f, states), 1);
	END IF;
	at := began + spread * (done::float8 / total);
	IF reached IS DISTINCT FROM past_all AND f.handler_id IS DISTINCT FROM 0 THEN
		f.lowest := greatest(f.lowest, reached);
		chosen := (SELECT c.ids FROM outbox_internal.choose_settled(f, states, batch) c);
		f.highest := chosen[cardinality(chosen)];
	END IF;
	IF f.lowest < f.highest AND chosen IS NOT NULL THEN
		n := outbox_internal.revive(f, states, NULL, false, spread, at, total);
		reached := f.highest;
		ended := false;
	ELSE
		-- Then what nobody took.
		reached := past_all;
		IF (f.handler_id IS NULL OR f.handler_id = 0) AND (code IS NULL OR code = 'unrouted') THEN
			f := outbox_internal.make_filter(handler, since, until, topic, tenant, code, began);
			f.handler_id := NULL;
			n := outbox_internal.route_again(f, true, states, batch, false, spread, at, total);
		END IF;
		ended := n = 0;
	END IF;
	done := done + n;
	IF action_id IS NOT NULL THEN
		UPDATE outbox.action a SET affected = done WHERE a.id = action_id;
	ELSIF n > 0 THEN
		PERFORM outbox_internal.note_action('requeue_all', jsonb_build_object('handler', handler, 'topic', topic, 'tenant', tenant, 'code', code, 'since', since, 'until', until,
			'include_delivered', nullif(include_delivered, false), 'include_cancelled', nullif(include_cancelled, false), 'spread', spread), n, reason);
		action_id := currval('outbox.action_id');
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.requeue_batch IS 'Internal: one batch of outbox.requeue_all(), which goes on from what the one before returned';

CREATE FUNCTION outbox_internal.count_settled(f outbox_internal.filter, states smallint[]) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	n bigint := 0;
	c record;
BEGIN
	LOOP
		SELECT cardinality(q.ids) AS n, q.ids[cardinality(q.ids)] AS last INTO c FROM outbox_internal.choose_settled(f, states, 10000) q;
		n := n + coalesce(c.n, 0);
		EXIT WHEN c.n IS NULL OR c.n < 10000;
		-- The next id.
		f.lowest := (left(c.last::text, 24) || lpad(to_hex(('x' || right(c.last::text, 12))::bit(48)::bigint + 1), 12, '0'))::uuid;
	END LOOP;
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox_internal.count_settled IS 'Internal: about how many receipts in these states are meant';

CREATE PROCEDURE outbox.requeue_all(handler text DEFAULT NULL, topic text DEFAULT NULL, tenant text DEFAULT NULL, code text DEFAULT NULL,
	since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, include_delivered boolean DEFAULT false, include_cancelled boolean DEFAULT false,
	spread interval DEFAULT NULL, reason text DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_sql_requeue_all';
COMMENT ON PROCEDURE outbox.requeue_all IS
'Bring back all that outbox.requeue_where() would, however many, in batches of 10000 that are committed one by one: in bounded memory, and nobody waits for long. What settles after the call has begun is left alone. It cannot run inside a transaction block.
handler, topic, tenant, code, since, until, include_delivered, include_cancelled: as there, and one of the first six is needed.
spread: due one after the other over this time from the beginning of the call on, at most 30 days. reason: kept in outbox.actions; the row there says how many have been brought back so far, and stays if the call is cancelled.
Errors: undefined_object for an unknown handler, invalid_parameter_value for an impossible filter or spread, active_sql_transaction inside a transaction block or function, read_only_sql_transaction.';

CREATE FUNCTION outbox.replay(handler text, since timestamptz, until timestamptz DEFAULT NULL, topic text DEFAULT NULL, tenant text DEFAULT NULL,
	backfill boolean DEFAULT false, max_rows bigint DEFAULT NULL, dry_run boolean DEFAULT false,
	settled_before timestamptz DEFAULT NULL, spread interval DEFAULT NULL, reason text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	f outbox_internal.filter;
	n bigint;
BEGIN
	IF since IS NULL THEN
		RAISE EXCEPTION 'since must not be null'
			USING ERRCODE = 'null_value_not_allowed', HINT = 'since => ''-infinity'' means everything that is still retained.';
	END IF;
	PERFORM outbox_internal.check_filter(topic, since, until, max_rows);
	PERFORM outbox_internal.check_interval('spread', coalesce(spread, '0'), '0', '30 days');
	PERFORM outbox_internal.check_goes_on('replay', max_rows, settled_before);
	IF NOT coalesce(dry_run, false) THEN
		PERFORM outbox_internal.check_writable('replay');
	END IF;
	PERFORM outbox_internal.live_handler(handler);
	f := outbox_internal.make_filter(handler, since, until, topic, tenant, NULL, settled_before);
	IF f.handler_id = 0 THEN
		RAISE EXCEPTION 'handler "%" cannot be replayed', handler
			USING ERRCODE = 'invalid_parameter_value', HINT = 'It keeps what nobody took; use outbox.requeue_where().';
	END IF;
	n := outbox_internal.revive(f, '{3}', max_rows, coalesce(dry_run, false), spread);
	IF backfill AND (max_rows IS NULL OR n < max_rows) THEN
		n := n + outbox_internal.route_again(f, false, NULL, max_rows - n, coalesce(dry_run, false), spread);
	END IF;
	IF NOT coalesce(dry_run, false) THEN
		PERFORM outbox_internal.note_action('replay', jsonb_build_object('handler', handler, 'since', since, 'until', until, 'topic', topic, 'tenant', tenant,
			'backfill', nullif(backfill, false), 'max_rows', max_rows, 'settled_before', settled_before, 'spread', spread), n, reason);
	END IF;
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox.replay IS
'Deliver again to one handler what it was delivered: pending, due now, with a fresh attempt budget, under the same message id and the next attempt number.
handler: name. since, until: time of staging; until is excluded and may be left out. topic: a pattern. tenant: only this tenant''s.
backfill: also messages of the handler''s topics that it never had, staged before it was created or before it took the topic; none before the time that it was scheduled for.
max_rows: at most so many, oldest first; call it again until it returns 0. settled_before: only what was delivered before that time, which is needed with max_rows: the same with each call, so that none delivers again what the one before it has delivered again. dry_run: change nothing, only count. spread, reason: as in outbox.requeue_where().
Dead and cancelled deliveries are left to outbox.requeue_where(). Only what retention has not removed can be replayed.
Returns the number of deliveries. Errors: undefined_object for an unknown or dropped handler, invalid_parameter_value for an impossible range, or for max_rows without settled_before.';

-- Tell the dispatcher at commit of those that may be tried now that what was
-- before them of their keys is settled.
CREATE FUNCTION outbox_internal.ring_successors(handlers int[], keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
BEGIN
	PERFORM outbox_internal.ring(s.handler_id, 0, s.due_at, s.message_id)
	FROM (SELECT DISTINCT u.handler_id, u.key FROM unnest(handlers, keys) AS u (handler_id, key) WHERE u.key IS NOT NULL) AS k
	CROSS JOIN LATERAL (
		SELECT d.handler_id, d.due_at, d.message_id FROM outbox.delivery d
		WHERE d.handler_id = k.handler_id AND d.key = k.key
		ORDER BY d.message_id LIMIT 1) AS s;
END $$;
COMMENT ON FUNCTION outbox_internal.ring_successors IS 'Internal: tell the dispatcher at commit about the first outstanding delivery of each of these keys';

-- Outstanding deliveries to cancelled.  They are chosen and locked by one
-- statement, because they move: one that is claimed or retried meanwhile is
-- followed to where it is then.
CREATE FUNCTION outbox_internal.cancel(f outbox_internal.filter, reason text, max_rows bigint, dry_run boolean) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	ids uuid[];
	handlers int[];
	due timestamptz[];
	keys text[];
	places tid[];
	n bigint;
BEGIN
	IF f.lowest = f.highest THEN
		SELECT array_agg(c.message_id), array_agg(c.handler_id), array_agg(c.due_at), array_agg(c.key), array_agg(c.place)
		INTO ids, handlers, due, keys, places
		FROM (
			SELECT d.message_id, d.handler_id, d.due_at, d.key, d.ctid AS place
			FROM outbox.delivery d
			WHERE d.message_id = f.lowest AND (f.handler_id IS NULL OR d.handler_id = f.handler_id)
			ORDER BY d.message_id, d.handler_id
			FOR UPDATE) AS c;
	ELSE
		EXECUTE format($q$
			SELECT array_agg(c.message_id), array_agg(c.handler_id), array_agg(c.due_at), array_agg(c.key), array_agg(c.place)
			FROM (
				SELECT d.message_id, d.handler_id, d.due_at, d.key, d.ctid AS place
				FROM outbox.delivery d
				WHERE d.message_id >= $1 AND d.message_id <= $2
					AND ($3 IS NULL OR d.handler_id = $3)
					AND ($4 IS NULL OR $4 = (SELECT m.tenant FROM outbox.message m WHERE m.id = d.message_id))
					AND ($5 IS NULL OR outbox_internal.topic_taken(ARRAY[$5], (SELECT m.topic FROM outbox.message m WHERE m.id = d.message_id)))
				ORDER BY d.message_id, d.handler_id
				LIMIT $6 %s) AS c
			$q$, CASE WHEN dry_run THEN '' ELSE 'FOR UPDATE' END)
		INTO ids, handlers, due, keys, places
		USING f.lowest, f.highest, f.handler_id, f.tenant, f.topic, max_rows;
	END IF;
	IF dry_run OR places IS NULL THEN
		RETURN coalesce(cardinality(places), 0);
	END IF;
	n := outbox_internal.cancel_rows(places, 'cancelled', reason);
	PERFORM outbox_internal.ring(c.handler_id, 1, c.due_at, c.message_id)
	FROM unnest(ids, handlers, due) AS c (message_id, handler_id, due_at);
	PERFORM outbox_internal.ring_successors(handlers, keys);
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox_internal.cancel IS 'Internal: cancel outstanding deliveries; returns how many';

-- Dead deliveries that hold up their key, to cancelled: those of a filter, or of one message.
CREATE FUNCTION outbox_internal.choose_blocking(f outbox_internal.filter, blocking int[], max_rows bigint, OUT places tid[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
	SELECT array_agg(c.place) INTO places
	FROM (
		SELECT r.ctid AS place
		FROM outbox.receipt r
		WHERE r.key IS NOT NULL AND r.handler_id = ANY (blocking) AND r.message_id >= f.lowest AND r.message_id <= f.highest
			AND (f.tenant IS NULL OR f.tenant = (SELECT m.tenant FROM outbox.message m WHERE m.id = r.message_id))
			AND (f.topic IS NULL OR outbox_internal.topic_taken(ARRAY[f.topic], (SELECT m.topic FROM outbox.message m WHERE m.id = r.message_id)))
		ORDER BY r.message_id, r.handler_id
		LIMIT max_rows) AS c;
END $$;
COMMENT ON FUNCTION outbox_internal.choose_blocking IS 'Internal: the places of dead letters of these handlers that hold up their keys, up to so many, oldest message first; NULL if there is none';

CREATE FUNCTION outbox_internal.cancel_blocking(f outbox_internal.filter, reason text, max_rows bigint, dry_run boolean) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	blocking int[] := ARRAY(SELECT h.id FROM outbox.handler h
		WHERE h.on_dead = 'block' AND h.dropped_at IS NULL AND (f.handler_id IS NULL OR h.id = f.handler_id));
	places tid[];
	handlers int[];
	keys text[];
	n bigint;
BEGIN
	IF blocking = '{}' THEN
		RETURN 0;
	ELSIF f.lowest = f.highest THEN
		-- By the message, never by the index of those that block.
		SELECT array_agg(r.ctid) INTO places FROM outbox.receipt r
		WHERE r.message_id = f.lowest AND r.handler_id = ANY (blocking) AND r.key || '' IS NOT NULL;
	ELSE
		places := outbox_internal.choose_blocking(f, blocking, max_rows);
	END IF;
	IF dry_run OR places IS NULL THEN
		RETURN coalesce(cardinality(places), 0);
	END IF;
	-- The keys are read before they are taken away.
	SELECT array_agg(r.handler_id), array_agg(r.key) INTO handlers, keys
	FROM (SELECT r.handler_id, r.key FROM outbox.receipt r WHERE r.ctid = ANY (places) AND r.key IS NOT NULL FOR UPDATE) AS r;
	WITH cancelled AS (
		UPDATE outbox.receipt r
		SET state = 5, key = NULL, code = 'cancelled', error = reason, http_status = NULL, settled_at = clock_timestamp()
		WHERE r.ctid = ANY (places) AND r.key IS NOT NULL
		RETURNING r.handler_id, r.message_id)
	SELECT sum(outbox_internal.count(g.handler_id, 'cancelled', g.n)) INTO n
	FROM (
		SELECT rung.handler_id, count(*) AS n
		FROM (SELECT c.handler_id, outbox_internal.ring(c.handler_id, 1, 'infinity', c.message_id) FROM cancelled c OFFSET 0) AS rung
		GROUP BY rung.handler_id) AS g;
	PERFORM outbox_internal.ring_successors(handlers, keys);
	RETURN coalesce(n, 0);
END $$;
COMMENT ON FUNCTION outbox_internal.cancel_blocking IS 'Internal: cancel dead deliveries that hold up their key; returns how many';

-- What stands in the way: first what is outstanding, then the dead that block.
CREATE FUNCTION outbox_internal.cancel_all(f outbox_internal.filter, reason text, max_rows bigint, dry_run boolean) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	n bigint;
BEGIN
	n := outbox_internal.cancel(f, reason, max_rows, dry_run);
	IF max_rows IS NULL OR n < max_rows THEN
		n := n + outbox_internal.cancel_blocking(f, reason, max_rows - n, dry_run);
	END IF;
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox_internal.cancel_all IS 'Internal: cancel outstanding deliveries and dead ones that hold up their key; returns how many';

CREATE FUNCTION outbox.cancel(id uuid, handler text DEFAULT NULL, reason text DEFAULT NULL, tenant text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	f outbox_internal.filter;
	n bigint;
BEGIN
	PERFORM outbox_internal.lock_message(id, tenant);
	IF handler IS NOT NULL THEN
		f.handler_id := outbox_internal.handler_of_message(id, handler);
	END IF;
	f.lowest := id;
	f.highest := id;
	n := outbox_internal.cancel_all(f, reason, NULL, false);
	PERFORM outbox_internal.note_action('cancel', jsonb_build_object('handler', handler, 'tenant', tenant), n, reason, id);
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox.cancel IS
'Cancel the outstanding deliveries of a message, and dead ones that hold up their key (on_dead => block).
id: the message. handler: only this handler''s delivery. reason: kept as the deliveries'' error, with code cancelled, and in outbox.actions. tenant: only if the message is this tenant''s.
A request that is out is not called back, but its answer no longer changes the delivery; a consumer that holds the lease gets false from complete() and its kin.
Returns the number of deliveries cancelled, 0 if all were settled.
Errors: no_data_found if there is no such message or delivery, undefined_object for an unknown handler.';

CREATE FUNCTION outbox.cancel_where(handler text DEFAULT NULL, topic text DEFAULT NULL, tenant text DEFAULT NULL,
	since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL, reason text DEFAULT NULL,
	max_rows bigint DEFAULT NULL, dry_run boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	n bigint;
BEGIN
	PERFORM outbox_internal.check_filter(topic, since, until, max_rows);
	IF num_nonnulls(handler, topic, tenant, since, until) = 0 THEN
		RAISE EXCEPTION 'cancel_where needs a filter'
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Name a handler, topic, tenant or time range; since => ''-infinity'' means everything.';
	END IF;
	n := outbox_internal.cancel_all(outbox_internal.make_filter(handler, since, until, topic, tenant, NULL, NULL), reason, max_rows, coalesce(dry_run, false));
	IF NOT coalesce(dry_run, false) THEN
		PERFORM outbox_internal.note_action('cancel_where', jsonb_build_object('handler', handler, 'topic', topic, 'tenant', tenant, 'since', since, 'until', until, 'max_rows', max_rows), n, reason);
	END IF;
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox.cancel_where IS
'Cancel many outstanding deliveries at once, as outbox.cancel() does for one message.
Every argument narrows the choice and at least one of the first five is needed: handler (name), topic (a pattern), tenant, since and until (time of staging; until is excluded).
reason: kept as the deliveries'' error, and in outbox.actions. max_rows: at most so many, oldest first; call it again until it returns 0, each time in a transaction of its own, and no consumer waits for long. dry_run: change nothing, only count.
Returns the number of deliveries. Errors: undefined_object for an unknown handler, invalid_parameter_value for an impossible filter.';

-- What was staged while the clock was ahead is due when it says so: at once.
-- Up to a thousand, from the id given on; returns the last of
-- them, NULL if there was none.  Waits for nobody who has locked a row.
CREATE FUNCTION outbox_internal.bring_forward(after uuid) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	clock timestamptz := clock_timestamp();
	reached text;
BEGIN
	WITH ahead AS MATERIALIZED (
		SELECT d.ctid AS place, d.due_at
		FROM outbox.message m JOIN outbox.delivery d ON d.message_id = m.id
		WHERE m.id >= greatest(after, outbox_internal.id_floor(clock)) AND m.staged_at > clock
			AND d.state = 0 AND d.due_at = m.staged_at
		ORDER BY m.id
		LIMIT 1000
		FOR UPDATE OF d SKIP LOCKED
	), moved AS (
		UPDATE outbox.delivery d
		SET due_at = clock
		FROM ahead a
		WHERE d.ctid = a.place
		RETURNING d.handler_id, a.due_at AS due_before, d.due_at, d.message_id
	)
	SELECT max(rung.message_id::text) INTO reached
	FROM (
		SELECT outbox_internal.ring(v.handler_id, 1, v.due_before, v.message_id), outbox_internal.ring(v.handler_id, 0, v.due_at, v.message_id), v.message_id
		FROM moved v OFFSET 0) AS rung;
	RETURN reached::uuid;
END $$;
COMMENT ON FUNCTION outbox_internal.bring_forward IS 'Internal: make due what was staged while the clock was ahead; the last of them, NULL if there was none';

CREATE FUNCTION outbox.retry_now(id uuid, handler text DEFAULT NULL, tenant text DEFAULT NULL, reason text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
	only_handler int;
	handlers int[];
	due timestamptz[];
	places tid[];
	n bigint;
BEGIN
	PERFORM outbox_internal.lock_message(id, tenant);
	IF handler IS NOT NULL THEN
		only_handler := outbox_internal.handler_of_message(id, handler);
	END IF;

	SELECT array_agg(c.handler_id), array_agg(c.due_at), array_agg(c.place) INTO handlers, due, places
	FROM (
		SELECT d.handler_id, d.due_at, d.ctid AS place
		FROM outbox.delivery d
		WHERE d.message_id = retry_now.id AND d.state IN (0, 1)
			AND (only_handler IS NULL OR d.handler_id = only_handler)
		ORDER BY d.message_id, d.handler_id
		FOR UPDATE) AS c;
	PERFORM outbox_internal.ring(c.handler_id, 1, c.due_at, retry_now.id) FROM unnest(handlers, due) AS c (handler_id, due_at);
	-- Due before whatever else is, so that it comes first.
	WITH hurried AS (
		UPDATE outbox.delivery d
		SET due_at = least(clock_timestamp(), (
			SELECT q.due_at FROM outbox.delivery q WHERE q.handler_id = d.handler_id
			ORDER BY q.due_at, q.message_id LIMIT 1) - interval '1 microsecond')
		WHERE d.ctid = ANY (places)
		RETURNING d.handler_id, d.due_at, d.message_id
	)
	SELECT count(*) INTO n
	FROM (SELECT outbox_internal.ring(h.handler_id, 2, h.due_at, h.message_id) FROM hurried h OFFSET 0) AS rung;
	PERFORM outbox_internal.note_action('retry_now', jsonb_build_object('handler', handler, 'tenant', tenant), n, reason, id);
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox.retry_now IS
'Send the outstanding deliveries of a message at once: not at the end of their backoff, nor at their deliver_at, and before what else waits for the same handler. If that waits because its receiver asked for it (Retry-After) or because its circuit breaker is open, it does not wait any longer: the delivery is the breaker''s next probe. A pause, a limit of the rate and the order of a key hold. The attempt counts as any other.
id: the message. handler: only this handler''s delivery. tenant: only if the message is this tenant''s. reason: kept in outbox.actions.
Returns the number of deliveries hurried, 0 if all are settled or leased. For a pull handler the next claim gets it.
Errors: no_data_found if there is no such message or delivery, undefined_object for an unknown handler.';

-- Why a message cannot be rescheduled; says nothing of what can.
CREATE FUNCTION outbox_internal.check_untried(id uuid, only_handler int) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	d record;
BEGIN
	SELECT h.name AS handler, u.what, u.hint INTO d
	FROM (
		SELECT o.handler_id, CASE WHEN o.state = 2 THEN 'is leased' ELSE 'has been tried' END AS what,
			CASE WHEN o.state = 2 THEN 'Its consumer has it, or its on_settle function has not ended.'
				ELSE 'Its backoff says when it is tried again; outbox.retry_now() hurries it, outbox.cancel() calls it off.' END AS hint
		FROM outbox.delivery o WHERE o.message_id = check_untried.id AND o.state <> 0
		UNION ALL
		SELECT r.handler_id, 'is ' || ('{delivered,dead,cancelled}'::text[])[r.state - 2],
			CASE WHEN r.state = 3 THEN 'outbox.replay() delivers it again.' ELSE 'outbox.requeue() brings it back.' END
		FROM outbox.receipt r WHERE r.message_id = check_untried.id) AS u
	JOIN outbox.handler h ON h.id = u.handler_id
	WHERE only_handler IS NULL OR u.handler_id = only_handler
	ORDER BY h.name LIMIT 1;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'message % has no delivery', id
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'No handler took its topic when it was staged. outbox.replay() with backfill gives it to one.';
	END IF;
	RAISE EXCEPTION 'message % cannot be rescheduled: its delivery for handler "%" %', id, d.handler, d.what
		USING ERRCODE = 'object_not_in_prerequisite_state', HINT = d.hint;
END $$;
COMMENT ON FUNCTION outbox_internal.check_untried IS 'Internal: raise object_not_in_prerequisite_state for a message of which nothing is left that has not been tried';

-- As outbox.stage() takes it: a time in the past means now.
CREATE FUNCTION outbox_internal.check_deliver_at(deliver_at timestamptz) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF deliver_at IS NULL THEN
		RAISE EXCEPTION 'deliver_at must not be null'
			USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass the time before which it is not to be delivered; now() means at once.';
	END IF;
	IF NOT isfinite(deliver_at) OR deliver_at > clock_timestamp() + interval '36525 days' THEN
		RAISE EXCEPTION 'deliver_at is infinite or too far ahead'
			USING ERRCODE = 'datetime_field_overflow', HINT = 'A message can be scheduled up to 100 years ahead.';
	END IF;
	RETURN greatest(deliver_at, clock_timestamp());
END $$;
COMMENT ON FUNCTION outbox_internal.check_deliver_at IS 'Internal: the time that is meant; raises null_value_not_allowed and datetime_field_overflow';

CREATE FUNCTION outbox.reschedule(id uuid, deliver_at timestamptz, handler text DEFAULT NULL, tenant text DEFAULT NULL, reason text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
	due timestamptz;
	ends timestamptz;
	only_handler int;
	handlers int[];
	due_before timestamptz[];
	places tid[];
	n bigint;
BEGIN
	PERFORM outbox_internal.lock_message(id, tenant);
	due := outbox_internal.check_deliver_at(deliver_at);
	IF handler IS NOT NULL THEN
		only_handler := outbox_internal.handler_of_message(id, handler);
	END IF;
	-- One that has passed was forgotten when the delivery was brought back; one that has it still is about to be cancelled.
	SELECT m.expires_at INTO ends FROM outbox.message m
	WHERE m.id = reschedule.id AND (m.expires_at > clock_timestamp() OR EXISTS (
		SELECT FROM outbox.delivery d
		WHERE d.message_id = m.id AND d.state = 0 AND d.expires_at <= m.expires_at AND (only_handler IS NULL OR d.handler_id = only_handler)));
	IF ends <= due THEN
		RAISE EXCEPTION 'message % expires before that time', id
			USING ERRCODE = 'invalid_parameter_value',
				HINT = format('It expires at %s. Pass an earlier time, or stage it anew.', ends);
	END IF;

	SELECT array_agg(c.handler_id), array_agg(c.due_at), array_agg(c.place) INTO handlers, due_before, places
	FROM (
		SELECT d.handler_id, d.due_at, d.ctid AS place
		FROM outbox.delivery d
		WHERE d.message_id = reschedule.id AND d.state = 0
			AND (only_handler IS NULL OR d.handler_id = only_handler)
		ORDER BY d.message_id, d.handler_id
		FOR UPDATE) AS c;
	IF places IS NULL THEN
		PERFORM outbox_internal.check_untried(id, only_handler);
	END IF;
	PERFORM outbox_internal.ring(c.handler_id, 1, c.due_at, reschedule.id) FROM unnest(handlers, due_before) AS c (handler_id, due_at);
	WITH moved AS (
		UPDATE outbox.delivery d
		SET due_at = due,
			expires_at = least(ends, due + (SELECT make_interval(secs => extract(epoch FROM h.max_age)::float8) FROM outbox.handler h WHERE h.id = d.handler_id))
		WHERE d.ctid = ANY (places)
		RETURNING d.handler_id, d.due_at, d.message_id, d.expires_at
	)
	SELECT count(*) INTO n
	FROM (SELECT outbox_internal.ring(v.handler_id, 0, v.due_at, v.message_id), outbox_internal.ring_end(v.expires_at) FROM moved v OFFSET 0) AS rung;
	PERFORM outbox_internal.note_action('reschedule', jsonb_build_object('handler', handler, 'tenant', tenant, 'deliver_at', deliver_at), n, reason, id);
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox.reschedule IS
'Give deliveries of a message that have not been tried another time: not before that, sooner or later than they were due.
id: the message. deliver_at: up to 100 years ahead; a time in the past means now. handler: only this handler''s delivery. tenant: only if the message is this tenant''s. reason: kept in outbox.actions.
Those that have been tried, are leased or settled are left alone. One that is being sent at that moment is not called back: its answer counts, and if it is to be tried again its backoff says when. On an ordered handler a key keeps its order: those behind one that is put off wait for it, and one that is due sooner waits for those before it. A handler''s max_age counts from the new time.
Returns the number of deliveries rescheduled, which is not 0.
Errors: null_value_not_allowed, datetime_field_overflow, invalid_parameter_value if the message expires before that time, object_not_in_prerequisite_state if nothing of it is left that has not been tried, no_data_found if there is no such message or delivery, undefined_object for an unknown handler.';

-- What looks again at rows that it has locked needs a new snapshot for that.
CREATE FUNCTION outbox_internal.check_isolation(called text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
		RAISE EXCEPTION 'outbox.%() cannot run in isolation level %', called, upper(current_setting('transaction_isolation'))
			USING ERRCODE = 'feature_not_supported',
				HINT = 'Its snapshot does not show what has been brought back since, which would lose its message. Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_isolation IS 'Internal: raise feature_not_supported for a function of that name in a transaction that goes on with its first snapshot';

-- Everything of some messages, which the caller has locked.
CREATE FUNCTION outbox_internal.erase(ids uuid[], OUT messages bigint, OUT deliveries bigint, OUT attempts bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
	-- Events about them quote their errors.  Who is telling some goes first, so that they
	-- are seen, and nobody tells more until this is over.
	PERFORM FROM outbox.event_rate r WHERE r.topic = '' FOR SHARE;
	ids := ids || ARRAY(
		SELECT e.id FROM outbox.message e
		-- There can be none before anything was told, or anybody took events; who did may not any more.
		WHERE (EXISTS (SELECT FROM outbox.event_rate) OR EXISTS (SELECT FROM outbox.handler h WHERE outbox_internal.takes_events(h.topics)))
			AND e.correlation_id = ANY (ARRAY(SELECT coalesce(m.correlation_id, m.id::text) FROM outbox.message m WHERE m.id = ANY (ids)))
			AND e.topic = 'outbox.delivery.dead' AND e.payload ->> 'messageId' = ANY (ids::text[]) AND e.id <> ALL (ids)
		ORDER BY e.id FOR UPDATE);
	-- First what is outstanding, locked: what is settled meanwhile has its
	-- receipt in the snapshot of the next statement, and nothing is settled after that.
	PERFORM FROM outbox.delivery d WHERE d.message_id = ANY (ids)
	ORDER BY d.message_id, d.handler_id FOR UPDATE;
	WITH outstanding AS (
		DELETE FROM outbox.delivery d WHERE d.message_id = ANY (ids)
		RETURNING d.handler_id, d.due_at, d.message_id, true AS matters
	), settled AS (
		-- What is dead may have held up its key.
		DELETE FROM outbox.receipt r WHERE r.message_id = ANY (ids)
		RETURNING r.handler_id, 'infinity'::timestamptz AS due_at, r.message_id, r.key IS NOT NULL AS matters
	)
	SELECT count(*) + 0 * count(g.rung) INTO deliveries
	FROM (
		SELECT CASE WHEN g.matters THEN outbox_internal.ring(g.handler_id, 1, g.due_at, g.message_id)::text END AS rung
		FROM (SELECT * FROM outstanding UNION ALL SELECT * FROM settled) AS g OFFSET 0) AS g;
	DELETE FROM outbox.attempt a WHERE a.message_id = ANY (ids);
	GET DIAGNOSTICS attempts = ROW_COUNT;
	PERFORM outbox_internal.forget_in_actions(ids);
	DELETE FROM outbox.on_settle_queue k WHERE k.message_id = ANY (ids);
	DELETE FROM outbox.event_queue q WHERE q.message_id = ANY (ids);
	DELETE FROM outbox.dedupe_key k USING outbox.message m
	WHERE m.id = ANY (ids) AND m.reused_key IS NOT NULL AND k.tenant = coalesce(m.tenant, '') AND k.dedupe_key = m.reused_key AND k.message_id = m.id;
	DELETE FROM outbox.message m WHERE m.id = ANY (ids);
	GET DIAGNOSTICS messages = ROW_COUNT;
END $$;
COMMENT ON FUNCTION outbox_internal.erase IS 'Internal: delete messages that the caller has locked, with all that is known of them; returns how many messages, deliveries and attempts';

-- The same for messages of a tenant or of a key or of both, a batch at a time.
CREATE FUNCTION outbox_internal.erase_all(called text, tenant text, key text, max_messages bigint, OUT messages bigint, OUT deliveries bigint, OUT attempts bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	batch CONSTANT int := 10000;
	chosen uuid[];
	ids uuid[];
	e record;
BEGIN
	PERFORM outbox_internal.check_isolation(called);
	PERFORM outbox_internal.check_writable(called);
	IF max_messages <= 0 THEN
		RAISE EXCEPTION 'max_messages must be positive'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for no limit.';
	END IF;
	messages := 0;
	deliveries := 0;
	attempts := 0;
	SELECT array_agg(v.id ORDER BY v.id) INTO chosen
	FROM (
		SELECT m.id FROM outbox.message m
		WHERE (erase_all.tenant IS NULL OR m.tenant = erase_all.tenant COLLATE "C") AND (erase_all.key IS NULL OR m.key = erase_all.key COLLATE "C")
		LIMIT max_messages) AS v;
	FOR i IN 1 .. coalesce(cardinality(chosen), 0) BY batch LOOP
		SELECT array_agg(v.id) INTO ids
		FROM (SELECT m.id FROM outbox.message m WHERE m.id = ANY (chosen[i : i + batch - 1]) ORDER BY m.id FOR UPDATE) AS v;
		CONTINUE WHEN ids IS NULL;
		SELECT * INTO e FROM outbox_internal.erase(ids);
		messages := messages + e.messages;
		deliveries := deliveries + e.deliveries;
		attempts := attempts + e.attempts;
	END LOOP;
	-- What is kept of messages that were pruned.
	DELETE FROM outbox.dedupe_key k
	WHERE (erase_all.tenant IS NULL OR k.tenant = erase_all.tenant COLLATE "C") AND (erase_all.key IS NULL OR k.key = erase_all.key COLLATE "C");
END $$;
COMMENT ON FUNCTION outbox_internal.erase_all IS 'Internal: body of outbox.erase_tenant() and outbox.erase_key(), which is called so';

CREATE FUNCTION outbox.erase_tenant(tenant text, max_messages bigint DEFAULT NULL, reason text DEFAULT NULL, OUT messages bigint, OUT deliveries bigint, OUT attempts bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	IF tenant IS NULL OR tenant = '' THEN
		RAISE EXCEPTION 'tenant must not be null or empty'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the tenant that the messages were staged with.';
	END IF;
	SELECT e.* INTO messages, deliveries, attempts FROM outbox_internal.erase_all('erase_tenant', tenant, NULL, max_messages) e;
	UPDATE outbox.action a SET arguments = a.arguments - 'tenant', reason = NULL WHERE (a.arguments ->> 'tenant') COLLATE "C" = erase_tenant.tenant;
	-- What is still to be summed up.
	PERFORM FROM outbox.event_rate r WHERE r.topic = '' FOR SHARE;
	DELETE FROM outbox.event_rate r WHERE r.tenant = erase_tenant.tenant COLLATE "C";
	PERFORM outbox_internal.note_action('erase_tenant', jsonb_build_object('max_messages', max_messages), messages, reason);
END $$;
COMMENT ON FUNCTION outbox.erase_tenant IS
'Delete everything of one tenant: its messages with their deliveries, outstanding ones too, and attempts, and the dedupe keys that are kept of it (outbox.dedupe_window). What is being sent at that moment is not called back.
tenant: as the messages were staged with. max_messages: stop after so many; call it again until it returns 0 messages, each call in a transaction of its own, and no consumer waits for long. reason: kept in outbox.actions, which keeps neither the tenant nor what else was erased, and forgets what it had of that.
All in the caller''s transaction. Reads that tenant''s messages only.
Returns how many messages, deliveries and attempts were deleted. Errors: invalid_parameter_value if tenant is NULL or empty or max_messages not positive, feature_not_supported above READ COMMITTED.';

CREATE FUNCTION outbox.erase_key(key text, tenant text DEFAULT NULL, max_messages bigint DEFAULT NULL, reason text DEFAULT NULL, OUT messages bigint, OUT deliveries bigint, OUT attempts bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	IF key IS NULL OR key = '' THEN
		RAISE EXCEPTION 'key must not be null or empty'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the key that the messages were staged with.';
	END IF;
	SELECT e.* INTO messages, deliveries, attempts FROM outbox_internal.erase_all('erase_key', tenant, key, max_messages) e;
	PERFORM outbox_internal.note_action('erase_key', jsonb_build_object('max_messages', max_messages), messages, reason);
END $$;
COMMENT ON FUNCTION outbox.erase_key IS
'Delete everything about one key, as outbox.erase_tenant() does for a tenant.
key: as the messages were staged with. tenant: only this tenant''s. max_messages, reason: as there.
Returns how many messages, deliveries and attempts were deleted. Errors: as there, for key.';

CREATE FUNCTION outbox.erase_message(id uuid, tenant text DEFAULT NULL, reason text DEFAULT NULL, OUT messages bigint, OUT deliveries bigint, OUT attempts bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	PERFORM outbox_internal.check_isolation('erase_message');
	PERFORM outbox_internal.lock_message(id, tenant);
	SELECT e.* INTO messages, deliveries, attempts FROM outbox_internal.erase(ARRAY[id]) e;
	PERFORM outbox_internal.note_action('erase_message', '{}', messages, reason);
END $$;
COMMENT ON FUNCTION outbox.erase_message IS
'Delete one message with its deliveries, outstanding ones too, attempts, and the events about it. What is being sent at that moment is not called back.
id: the message. tenant: only if the message is this tenant''s. reason: kept in outbox.actions, without which message it was.
Returns how many messages, deliveries and attempts were deleted. Errors: null_value_not_allowed, no_data_found if there is no such message, feature_not_supported above READ COMMITTED.';

CREATE FUNCTION outbox.status(id uuid DEFAULT NULL, dedupe_key text DEFAULT NULL, tenant text DEFAULT NULL)
RETURNS TABLE (message_id uuid, handler text, state text, attempts int, due_at timestamptz, settled_at timestamptz, code text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
	found_id uuid;
BEGIN
	IF num_nonnulls(id, dedupe_key) <> 1 THEN
		RAISE EXCEPTION 'status needs a message id or a dedupe_key'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass one of the two: what outbox.stage() returned, or the dedupe_key, and tenant if it was staged with one.';
	END IF;
	IF dedupe_key IS NOT NULL THEN
		-- The last one of those that are kept, where it was used again.
		SELECT f.id INTO found_id
		FROM (
			SELECT m.id FROM outbox.message m
			WHERE coalesce(m.tenant, '') = coalesce(status.tenant, '') AND m.dedupe_key = status.dedupe_key
			UNION ALL
			SELECT m.id FROM outbox.dedupe_key k JOIN outbox.message m ON m.id = k.message_id
			WHERE k.tenant = coalesce(status.tenant, '') AND k.dedupe_key = status.dedupe_key) AS f
		ORDER BY f.id DESC LIMIT 1;
	ELSE
		SELECT m.id INTO found_id FROM outbox.message m
		WHERE m.id = status.id AND (status.tenant IS NULL OR m.tenant = status.tenant COLLATE "C");
	END IF;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	RETURN QUERY
	SELECT found_id, (SELECT h.name FROM outbox.handler h WHERE h.id = d.handler_id), ('{pending,retrying,leased,delivered,dead,cancelled}'::text[])[d.state + 1],
		d.attempts, d.due_at, d.settled_at, d.code
	FROM (
		SELECT o.handler_id, o.state, o.attempts, o.due_at, NULL::timestamptz AS settled_at, o.code FROM outbox.delivery o WHERE o.message_id = found_id
		UNION ALL
		SELECT r.handler_id, r.state, r.attempts, NULL, r.settled_at, r.code FROM outbox.receipt r WHERE r.message_id = found_id) AS d
	ORDER BY 2;
	IF NOT FOUND THEN
		message_id := found_id;
		RETURN NEXT;
	END IF;
END $$;
COMMENT ON FUNCTION outbox.status IS
'What has become of a message, for its producer: no content, and of the outcome only its code.
id: what outbox.stage() returned; or dedupe_key: what it was staged with, along with tenant. tenant: only if the message is this tenant''s; for a dedupe_key, NULL is a message without one.
Returns a row for each handler that the message was routed to: state as in outbox.deliveries, attempts made, when it is due if it is outstanding, when it was settled if it is, and the code of the last outcome. One row with message_id alone if nobody took it, none if there is no such message (any more).
Errors: invalid_parameter_value unless one of id and dedupe_key is given.';

CREATE FUNCTION outbox.handlers_of(topic text) RETURNS TABLE (handler text, kind text, paused boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF topic IS NULL THEN
		RAISE EXCEPTION 'topic must not be null' USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass a topic as outbox.stage() takes it.';
	END IF;
	PERFORM outbox_internal.check_pattern(topic);
	IF topic LIKE '%*' THEN
		RAISE EXCEPTION 'invalid topic: "%"', topic
			USING ERRCODE = 'invalid_parameter_value', HINT = 'A pattern is not a topic: messages have none that ends in an asterisk.';
	END IF;
	RETURN QUERY
	SELECT h.name, CASE WHEN h.url IS NULL THEN 'pull' ELSE 'push' END, s.paused_at IS NOT NULL
	FROM outbox.handler h LEFT JOIN outbox.handler_status s ON s.handler_id = h.id
	WHERE h.dropped_at IS NULL AND h.id <> 0 AND outbox_internal.topic_taken(h.topics, topic)
	ORDER BY h.name;
END $$;
COMMENT ON FUNCTION outbox.handlers_of IS
'Who takes a topic: the handlers that a message staged now would be delivered to.
topic: as outbox.stage() takes it.
Returns a row for each: its name, whether it pushes or is pulled from, and whether it is paused. None: the message would be unrouted.
Errors: null_value_not_allowed, invalid_parameter_value for what is no topic.';

-- How long what is kept, as of a time: a time before which what was settled goes.
-- handlers are those that have times of their own, and what these are; tenants says
-- whether any tenant has.  kept_for are the different times, the shortest first.
CREATE TYPE outbox_internal.retention_rules AS (
	at timestamptz,
	delivered_before timestamptz,
	dead_before timestamptz,
	handlers int[],
	handlers_delivered_before timestamptz[],
	handlers_dead_before timestamptz[],
	tenants boolean,
	blocking int[],
	kept_for interval[]
);
COMMENT ON TYPE outbox_internal.retention_rules IS 'Internal: before when what was settled is to go, and which handlers and tenants have times of their own';

-- Handlers that were dropped go on having theirs.
CREATE FUNCTION outbox_internal.get_retention_rules(at timestamptz) RETURNS outbox_internal.retention_rules
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	r outbox_internal.retention_rules;
	s record;
BEGIN
	SELECT * INTO s FROM outbox_internal.retention_settings();
	r.at := at;
	r.delivered_before := at - s.delivered;
	r.dead_before := at - s.dead;
	SELECT coalesce(array_agg(h.id), '{}'), array_agg(at - coalesce(h.delivered_retention, s.delivered)), array_agg(at - coalesce(h.dead_retention, s.dead))
	INTO r.handlers, r.handlers_delivered_before, r.handlers_dead_before
	FROM outbox.handler h WHERE num_nonnulls(h.delivered_retention, h.dead_retention) > 0;
	r.tenants := EXISTS (SELECT FROM outbox.tenant_retention);
	SELECT coalesce(array_agg(h.id), '{}') INTO r.blocking
	FROM outbox.handler h WHERE h.on_dead = 'block' AND h.dropped_at IS NULL;
	SELECT array_agg(k.kept_for ORDER BY k.kept_for) INTO r.kept_for
	FROM (
		SELECT DISTINCT v.kept_for
		FROM (
			SELECT unnest(ARRAY[s.delivered, s.dead]) AS kept_for
			UNION ALL SELECT unnest(ARRAY[h.delivered_retention, h.dead_retention]) FROM outbox.handler h
			UNION ALL SELECT unnest(ARRAY[t.delivered_retention, t.dead_retention]) FROM outbox.tenant_retention t) AS v
		WHERE v.kept_for IS NOT NULL) AS k;
	RETURN r;
END $$;
COMMENT ON FUNCTION outbox_internal.get_retention_rules IS 'Internal: how long what is to be kept, as settings, handlers and tenants say, counted back from a time';

-- Which of these messages are settled, and for long enough.  They lie side by side, so
-- what there is of all of them is read in one go, from the first to the last, and never
-- a whole table: which is why there is nothing but index scans and hashes of them.
-- A dead letter that holds up its key goes on doing so.
-- A tenant's time goes before its handler's, and that before the setting.
CREATE FUNCTION outbox_internal.prunable(ids uuid[], r outbox_internal.retention_rules) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_nestloop = off SET enable_mergejoin = off SET enable_hashjoin = on SET jit = off AS $$
DECLARE
	lowest CONSTANT uuid := ids[1];
	highest CONSTANT uuid := ids[cardinality(ids)];
	at CONSTANT timestamptz := r.at;
	delivered_before CONSTANT timestamptz := r.delivered_before;
	dead_before CONSTANT timestamptz := r.dead_before;
	blocking CONSTANT int[] := r.blocking;
	result uuid[];
BEGIN
	IF r.handlers = '{}' AND NOT r.tenants THEN
		SELECT array_agg(v.id ORDER BY v.id) INTO result
		FROM unnest(ids) AS v (id)
		LEFT JOIN (
			SELECT t.message_id, bool_and(
				greatest(t.settled_at, CASE WHEN t.handler_id = 0 AND t.state = 4
						THEN (SELECT m.deliver_at FROM outbox.message m WHERE m.id = t.message_id) END)
					< CASE WHEN t.state = 3 THEN delivered_before ELSE dead_before END
				AND (t.key IS NULL OR t.handler_id <> ALL (blocking))) AS is_over
			FROM outbox.receipt t WHERE t.message_id >= lowest AND t.message_id <= highest
			GROUP BY t.message_id) AS s ON s.message_id = v.id
		WHERE NOT EXISTS (SELECT FROM outbox.delivery d WHERE d.message_id = v.id AND d.message_id >= lowest AND d.message_id <= highest)
			AND coalesce(s.is_over, (SELECT greatest(m.staged_at, m.deliver_at) < delivered_before FROM outbox.message m WHERE m.id = v.id));
	ELSE
		SELECT array_agg(v.id ORDER BY v.id) INTO result
		FROM unnest(ids) AS v (id)
		LEFT JOIN (
			SELECT t.message_id, bool_and(
				greatest(t.settled_at, CASE WHEN t.handler_id = 0 AND t.state = 4
						THEN (SELECT m.deliver_at FROM outbox.message m WHERE m.id = t.message_id) END)
					< coalesce(
						CASE WHEN r.tenants THEN (
							SELECT at - CASE WHEN t.state = 3 THEN k.delivered_retention ELSE k.dead_retention END FROM outbox.tenant_retention k
							WHERE k.tenant = (SELECT m.tenant FROM outbox.message m WHERE m.id = t.message_id)) END,
						CASE WHEN t.state = 3 THEN r.handlers_delivered_before[array_position(r.handlers, t.handler_id)]
							ELSE r.handlers_dead_before[array_position(r.handlers, t.handler_id)] END,
						CASE WHEN t.state = 3 THEN delivered_before ELSE dead_before END)
				AND (t.key IS NULL OR t.handler_id <> ALL (blocking))) AS is_over
			FROM outbox.receipt t WHERE t.message_id >= lowest AND t.message_id <= highest
			GROUP BY t.message_id) AS s ON s.message_id = v.id
		WHERE NOT EXISTS (SELECT FROM outbox.delivery d WHERE d.message_id = v.id AND d.message_id >= lowest AND d.message_id <= highest)
			AND coalesce(s.is_over, (SELECT greatest(m.staged_at, m.deliver_at) < coalesce(
					(SELECT at - k.delivered_retention FROM outbox.tenant_retention k WHERE k.tenant = m.tenant), delivered_before)
				FROM outbox.message m WHERE m.id = v.id));
	END IF;
	RETURN result;
END $$;
COMMENT ON FUNCTION outbox_internal.prunable IS 'Internal: those of these messages, whose ids ascend, that nothing keeps any more, in the same order; NULL if none';

-- What the dispatcher does where there is one, which knows what has gone out
-- (src/dispatch/expiry.c).  Without preload nothing is pushed.
CREATE FUNCTION outbox_internal.cancel_expired(batch int) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
	-- As in prune_expired().
	at CONSTANT timestamptz := clock_timestamp();
	places tid[];
BEGIN
	IF NOT EXISTS (SELECT FROM outbox_internal.sender() s WHERE s.state = 'not preloaded' AND s.why_copy IS NULL) THEN
		RETURN 0;
	END IF;
	SELECT array_agg(c.place) INTO places
	FROM (
		SELECT d.ctid AS place FROM outbox.delivery d
		WHERE d.expires_at <= at AND (d.state <> 2 OR d.due_at <= at)
		ORDER BY d.expires_at
		LIMIT batch
		FOR UPDATE SKIP LOCKED) AS c;
	IF places IS NULL THEN
		RETURN 0;
	END IF;
	RETURN outbox_internal.cancel_rows(places, 'expired', 'it had not been delivered when it expired');
END $$;
COMMENT ON FUNCTION outbox_internal.cancel_expired IS 'Internal: where the library is not preloaded, cancel up to so many deliveries that have expired and that nobody holds, with code expired; returns how many';

-- Remove these messages, whose ids ascend, with all there is of them.  Read from the
-- first to the last, as in prunable(); what is locked is found again where it is.
CREATE FUNCTION outbox_internal.remove_messages(chosen uuid[], r outbox_internal.retention_rules, OUT messages bigint, OUT deliveries bigint, OUT attempts bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_nestloop = off SET enable_mergejoin = off SET enable_hashjoin = on SET jit = off AS $$
DECLARE
	lowest CONSTANT uuid := chosen[1];
	highest CONSTANT uuid := chosen[cardinality(chosen)];
	ids uuid[];
	locked uuid[];
	places tid[];
BEGIN
	messages := 0;
	deliveries := 0;
	attempts := 0;
	-- Look again once the messages are locked: whoever brought a delivery
	-- back held its message until it committed.
	SELECT array_agg(v.id ORDER BY v.id), array_agg(v.place ORDER BY v.id) INTO locked, places
	FROM (
		SELECT m.id, m.ctid AS place FROM outbox.message m
		WHERE m.id >= lowest AND m.id <= highest AND m.id IN (SELECT unnest(chosen))
		FOR UPDATE OF m SKIP LOCKED) AS v;
	IF locked IS NULL THEN
		RETURN;
	END IF;
	ids := outbox_internal.prunable(locked, r);
	IF ids IS NULL THEN
		RETURN;
	END IF;
	IF ids <> locked THEN
		places := ARRAY(SELECT v.place FROM unnest(locked, places) AS v (id, place) WHERE v.id IN (SELECT unnest(ids)));
	END IF;
	PERFORM outbox_internal.keep_dedupe_keys(ids);
	DELETE FROM outbox.receipt t WHERE t.message_id >= lowest AND t.message_id <= highest AND t.message_id IN (SELECT unnest(ids));
	GET DIAGNOSTICS deliveries = ROW_COUNT;
	DELETE FROM outbox.attempt a WHERE a.message_id >= lowest AND a.message_id <= highest AND a.message_id IN (SELECT unnest(ids));
	GET DIAGNOSTICS attempts = ROW_COUNT;
	DELETE FROM outbox.message m WHERE m.ctid = ANY (places);
	GET DIAGNOSTICS messages = ROW_COUNT;
END $$;
COMMENT ON FUNCTION outbox_internal.remove_messages IS 'Internal: remove those of these messages, whose ids ascend, that nobody has locked and that still nothing keeps; returns how many messages, deliveries and attempts are gone';

-- Look at the next messages behind here, batch of them, that were staged before
-- kept_for ago (NULL: before the shortest of these times), and remove up to
-- max_messages of them.  The one place that does it: outbox.prune() and the server's
-- own retention go on from there.  ended: there was none to look at.
CREATE FUNCTION outbox_internal.prune_step(r outbox_internal.retention_rules, kept_for interval, batch int, max_messages bigint,
	INOUT here uuid, OUT ended boolean, OUT seen bigint, OUT messages bigint, OUT deliveries bigint, OUT attempts bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	ceiling uuid := outbox_internal.id_floor(r.at - coalesce(kept_for, r.kept_for[1]));
	-- Not within the query, which would read all ids that are not: see prune_expired().
	ahead CONSTANT uuid := outbox_internal.id_floor(clock_timestamp() + interval '1 minute');
	ids uuid[];
BEGIN
	messages := 0;
	deliveries := 0;
	attempts := 0;
	-- Ids that are ahead of the clock say nothing of their messages' age.
	IF kept_for IS NULL AND EXISTS (SELECT FROM outbox.message m WHERE m.id > ahead) THEN
		ceiling := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
	END IF;
	SELECT array_agg(v.id) INTO ids
	FROM (
		SELECT m.id FROM outbox.message m
		WHERE m.id > here AND m.id < ceiling
		ORDER BY m.id LIMIT batch) AS v;
	ended := ids IS NULL;
	seen := coalesce(cardinality(ids), 0);
	IF ended THEN
		RETURN;
	END IF;
	here := ids[seen];
	ids := outbox_internal.prunable(ids, r);
	IF cardinality(ids) > max_messages THEN
		-- All before this one were looked at.
		ids := ids[1 : max_messages];
		here := ids[max_messages];
	END IF;
	IF ids IS NULL THEN
		RETURN;
	END IF;

	SELECT * INTO messages, deliveries, attempts FROM outbox_internal.remove_messages(ids, r);
END $$;
COMMENT ON FUNCTION outbox_internal.prune_step IS 'Internal: remove those of the next few messages that nothing keeps any more; returns where to go on, how many were looked at and how many messages, deliveries and attempts are gone';

-- Where to go on of one of these times, locked; place is NULL if somebody has it.
CREATE FUNCTION outbox_internal.lock_prune_position(kept_for interval, OUT here uuid, OUT place tid)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	LOOP
		SELECT p.ctid, p.reached INTO place, here FROM outbox.prune_position p
		WHERE p.kept_for IS NOT DISTINCT FROM lock_prune_position.kept_for LIMIT 1 FOR UPDATE SKIP LOCKED;
		IF FOUND THEN
			RETURN;
		END IF;
		SELECT p.reached INTO here FROM outbox.prune_position p WHERE p.kept_for IS NOT DISTINCT FROM lock_prune_position.kept_for LIMIT 1;
		IF FOUND THEN
			RETURN;
		END IF;
		INSERT INTO outbox.prune_position (reached, kept_for) VALUES ('00000000-0000-0000-0000-000000000000', lock_prune_position.kept_for);
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_prune_position IS 'Internal: how far retention has come with what is kept for that long, and the place of that row if nobody else has locked it';

CREATE FUNCTION outbox.prune(max_messages bigint DEFAULT NULL, OUT messages bigint, OUT deliveries bigint, OUT attempts bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	nil CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
	-- What a bounded call looks at beyond what it removes.
	most_kept CONSTANT int := 10000;
	r outbox_internal.retention_rules;
	batch int;
	kept bigint := 0;
	step interval;
	place tid;
	here uuid;
	again boolean;
	n bigint;
	s record;
BEGIN
	PERFORM outbox_internal.check_isolation('prune');
	IF max_messages <= 0 THEN
		RAISE EXCEPTION 'max_messages must be positive'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for no limit.';
	END IF;
	SELECT t.batch INTO batch FROM outbox_internal.retention_settings() t;
	r := outbox_internal.get_retention_rules(clock_timestamp());
	messages := 0;
	deliveries := 0;
	attempts := 0;
	-- A bounded call goes on where the last one ended, or each would step over all that is kept.
	FOREACH step IN ARRAY CASE WHEN max_messages IS NULL THEN ARRAY[NULL::interval] ELSE r.kept_for || NULL::interval END LOOP
		EXIT WHEN messages >= max_messages OR max_messages IS NOT NULL AND kept >= most_kept;
		here := nil;
		IF max_messages IS NOT NULL THEN
			SELECT q.here, q.place INTO here, place FROM outbox_internal.lock_prune_position(step) q;
		END IF;
		-- The look at all that is older begins again at its end, if nothing has come of this call yet.
		again := step IS NULL AND here > nil;
		LOOP
			SELECT * INTO s FROM outbox_internal.prune_step(r, step, batch, max_messages - messages, here);
			here := CASE WHEN s.ended AND step IS NULL THEN nil ELSE s.here END;
			messages := messages + s.messages;
			deliveries := deliveries + s.deliveries;
			attempts := attempts + s.attempts;
			kept := kept + s.seen - s.messages;
			EXIT WHEN s.ended AND NOT (again AND messages = 0) OR messages >= max_messages OR max_messages IS NOT NULL AND kept >= most_kept;
			again := again AND NOT s.ended;
		END LOOP;
		IF place IS NOT NULL THEN
			UPDATE outbox.prune_position q SET reached = here WHERE q.ctid = place;
		END IF;
	END LOOP;
	PERFORM outbox_internal.note_action('prune', jsonb_build_object('max_messages', max_messages), messages);
	-- Whoever calls this believes the clock.
	UPDATE outbox.retention_status t SET seen_at = clock_timestamp(), held_until = NULL
	WHERE t.ctid = ANY (ARRAY(SELECT w.ctid FROM outbox.retention_status w WHERE w.held_until IS NOT NULL FOR UPDATE SKIP LOCKED));

	-- Without a dispatcher nobody else does.
	LOOP
		n := outbox_internal.cancel_expired(batch);
		EXIT WHEN n < batch OR max_messages IS NOT NULL;
	END LOOP;
	-- A bounded call takes one batch of the inbox along.
	LOOP
		n := outbox_internal.prune_expired('inbox', batch);
		EXIT WHEN n < batch OR max_messages IS NOT NULL;
	END LOOP;
	-- And of the dedupe keys twice what it may have put there.
	LOOP
		n := outbox_internal.prune_expired('dedupe_key', 2 * batch);
		EXIT WHEN n < 2 * batch OR max_messages IS NOT NULL;
	END LOOP;
	LOOP
		n := outbox_internal.prune_actions(batch);
		EXIT WHEN n < batch OR max_messages IS NOT NULL;
	END LOOP;
	LOOP
		n := outbox_internal.prune_events(batch);
		EXIT WHEN n < batch OR max_messages IS NOT NULL;
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox.prune IS
'Remove messages whose deliveries are all settled and past retention, with their deliveries and attempts: what the server does by itself while outbox.auto_prune is on; for servers without the library preloaded, and for whoever does not want to wait.
outbox.delivered_retention for delivered ones and for messages that nobody took, outbox.dead_retention for dead and cancelled ones, each counted from settlement, unless their tenant (outbox.ensure_tenant_retention()), or else their handler, has times of its own; of a message that nobody took, from the time that it was scheduled for, if it was. A dead one that holds up its key (on_dead => block) stays until it is requeued or cancelled.
Expired entries of outbox.inbox, and rows of outbox.actions older than outbox.action_retention, go as well. With outbox.dedupe_window the dedupe keys of what is removed are kept for the rest of it, and go then. Where the library is not preloaded, deliveries that have expired (expires_at, ttl, max_age) are cancelled along.
max_messages: stop after so many, outbox.prune_batch_size a statement. Such a call goes on where the last one ended, first with what has come of age since, then with all that is older, and when it has come to the end the next one begins again with the oldest; it also stops after having met 10000 messages that have to be kept, so it costs what it removes. Without, all of them are looked at, the oldest first. All in the caller''s transaction: call it often with a limit rather than seldom without, so that no long transaction holds back vacuum.
Several calls may run at once, beside the server''s own: each takes other messages, and none waits for a locked one.
Returns how many messages, deliveries and attempts were removed. Errors: invalid_parameter_value if max_messages is not positive, feature_not_supported above READ COMMITTED.';

CREATE FUNCTION outbox_internal.id_time(id uuid) RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)
$$;
COMMENT ON FUNCTION outbox_internal.id_time IS 'Internal: when a message of this id was staged, by its id';

-- One batch of the server's own retention, in a transaction of its own: of what is to
-- go as of the beginning of the round, the youngest first that has just come of age,
-- then what the look at all that is older meets, so much of it in a round that what
-- has to be kept costs little; then the inbox.  Nothing is left to do: the round ends.
--
-- A clock that was set forward would have everything go at once.  So one that has
-- gone further than the shortest time that anything is kept for, within bounds, since
-- it was last looked at, is believed after it has gone on for as long; each round
-- looks, and so does one that removes nothing.  The same for a database that is new to
-- this, with messages that came from elsewhere.
CREATE FUNCTION outbox_internal.retain(OUT did_some boolean, OUT behind interval)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	nil CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
	-- What a round looks at that has to be kept.
	most_swept CONSTANT int := 20000;
	own_home uuid := outbox_internal.home();
	clock timestamptz := clock_timestamp();
	settings record;
	r outbox_internal.retention_rules;
	st outbox.retention_status;
	status_place tid;
	hold interval;
	step interval;
	here uuid;
	place tid;
	s record;
	n bigint;
BEGIN
	did_some := false;
	SELECT * INTO settings FROM outbox_internal.retention_settings();
	SELECT t.ctid INTO status_place FROM outbox.retention_status t WHERE t.home = own_home LIMIT 1 FOR UPDATE SKIP LOCKED;
	IF status_place IS NULL THEN
		IF NOT EXISTS (SELECT FROM outbox.retention_status t WHERE t.home = own_home) THEN
			DELETE FROM outbox.retention_status t WHERE t.home IS DISTINCT FROM own_home;
			INSERT INTO outbox.retention_status (seen_at, held_until) SELECT '-infinity', NULL;
			did_some := true;
		END IF;
		RETURN;
	END IF;
	SELECT t.* INTO st FROM outbox.retention_status t WHERE t.ctid = status_place;
	IF st.began_at IS NULL AND outbox_internal.next_retention() > clock THEN
		RETURN;
	END IF;
	r := outbox_internal.get_retention_rules(coalesce(st.began_at, clock));
	hold := greatest(interval '10 min', least(interval '1 day', r.kept_for[1]));
	IF clock < st.seen_at - interval '1 min' THEN
		st.held_until := NULL;
		st.began_at := NULL;
	ELSIF clock > st.seen_at + hold THEN
		st.held_until := CASE WHEN EXISTS (SELECT FROM outbox.message) THEN clock + hold END;
	END IF;
	st.seen_at := clock;
	IF st.held_until > clock THEN
		UPDATE outbox.retention_status t SET seen_at = clock, held_until = st.held_until, began_at = NULL, next_at = clock + settings.every
		WHERE t.ctid = status_place;
		RETURN;
	END IF;
	st.held_until := NULL;
	IF st.began_at IS NULL THEN
		st.began_at := clock;
		st.swept := 0;
		r := outbox_internal.get_retention_rules(clock);
	END IF;

	FOREACH step IN ARRAY r.kept_for || NULL::interval LOOP
		EXIT WHEN step IS NULL AND st.swept >= most_swept;
		SELECT q.here, q.place INTO here, place FROM outbox_internal.lock_prune_position(step) q;
		CONTINUE WHEN place IS NULL;
		SELECT * INTO s FROM outbox_internal.prune_step(r, step, settings.batch, NULL, here);
		IF s.ended THEN
			CONTINUE WHEN step IS NOT NULL;
			s.here := nil;
			st.swept := most_swept;
		ELSIF step IS NULL THEN
			st.swept := st.swept + s.seen - s.messages;
		ELSE
			behind := r.at - step - outbox_internal.id_time(s.here);
		END IF;
		UPDATE outbox.prune_position q SET reached = s.here WHERE q.ctid = place;
		st.messages := st.messages + s.messages;
		st.deliveries := st.deliveries + s.deliveries;
		st.attempts := st.attempts + s.attempts;
		did_some := NOT s.ended;
		EXIT;
	END LOOP;
	IF NOT did_some THEN
		n := outbox_internal.prune_expired('inbox', settings.batch);
		st.inbox := st.inbox + n;
		did_some := n > 0;
		-- Twice what a step may have put there.
		n := outbox_internal.prune_expired('dedupe_key', 2 * settings.batch);
		did_some := did_some OR n > 0;
	END IF;
	IF NOT did_some THEN
		n := outbox_internal.prune_actions(settings.batch);
		st.actions := st.actions + n;
		did_some := n > 0;
	END IF;
	IF NOT did_some THEN
		did_some := outbox_internal.prune_events(settings.batch) > 0;
	END IF;
	IF NOT did_some THEN
		DELETE FROM outbox.prune_position p WHERE p.ctid = ANY (ARRAY(
			SELECT q.ctid FROM outbox.prune_position q WHERE q.kept_for <> ALL (r.kept_for) FOR UPDATE SKIP LOCKED));
		st.next_at := greatest(st.began_at + settings.every, clock);
		st.began_at := NULL;
		st.completed_at := clock;
		PERFORM outbox_internal.note_event('outbox.retention.recovered', NULL, NULL, '{}') WHERE st.last_error IS NOT NULL;
		st.last_error := NULL;
		st.last_error_at := NULL;
	END IF;
	UPDATE outbox.retention_status t SET next_at = st.next_at, seen_at = st.seen_at, held_until = NULL, began_at = st.began_at, swept = st.swept,
		completed_at = st.completed_at, last_error = st.last_error, last_error_at = st.last_error_at,
		messages = st.messages, deliveries = st.deliveries, attempts = st.attempts, inbox = st.inbox, actions = st.actions
	WHERE t.ctid = status_place;
END $$;
COMMENT ON FUNCTION outbox_internal.retain IS 'Internal: one batch of the server''s own retention; whether it has done anything, and how long ago what comes next was to go';

CREATE FUNCTION outbox_internal.note_retention_error(error text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	-- Told once, until a round is complete again.
	PERFORM outbox_internal.note_event('outbox.retention.failed', NULL, NULL, jsonb_build_object('error', left(error, 2000)))
	WHERE NOT EXISTS (SELECT FROM outbox.retention_status t WHERE t.last_error IS NOT NULL);
	UPDATE outbox.retention_status t SET last_error = error, last_error_at = clock_timestamp()
	WHERE t.ctid = ANY (ARRAY(SELECT w.ctid FROM outbox.retention_status w FOR UPDATE SKIP LOCKED));
END $$;
COMMENT ON FUNCTION outbox_internal.note_retention_error IS 'Internal: keep what the server''s own retention has failed with';

CREATE FUNCTION outbox_internal.next_retention() RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	-- None is so far away, unless the clock was set back.
	SELECT CASE WHEN min(t.next_at) <= clock_timestamp() + min(q.every) THEN min(t.next_at) ELSE '-infinity' END
	FROM outbox_internal.retention_settings() q LEFT JOIN outbox.retention_status t ON t.home = outbox_internal.home()
$$;
COMMENT ON FUNCTION outbox_internal.next_retention IS 'Internal: when the server''s own retention has something to do; -infinity: at once';

CREATE FUNCTION outbox_internal.check_retention_tenant(tenant text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF tenant IS NULL OR tenant = '' THEN
		RAISE EXCEPTION 'tenant must not be null or empty'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the tenant that the messages are staged with.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_retention_tenant IS 'Internal: raise invalid_parameter_value unless this can be a tenant';

CREATE FUNCTION outbox.ensure_tenant_retention(tenant text, delivered_retention interval DEFAULT NULL, dead_retention interval DEFAULT NULL, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	PERFORM outbox_internal.check_retention_tenant(tenant);
	IF num_nonnulls(delivered_retention, dead_retention) = 0 THEN
		RAISE EXCEPTION 'one of delivered_retention and dead_retention must be given'
			USING ERRCODE = 'null_value_not_allowed', HINT = 'outbox.drop_tenant_retention() has the tenant''s messages kept as all others.';
	END IF;
	PERFORM outbox_internal.check_interval('delivered_retention', coalesce(delivered_retention, '0'), '0', '36500 days');
	PERFORM outbox_internal.check_interval('dead_retention', coalesce(dead_retention, '0'), '0', '36500 days');
	INSERT INTO outbox.tenant_retention AS t (tenant, delivered_retention, dead_retention)
	VALUES (ensure_tenant_retention.tenant, ensure_tenant_retention.delivered_retention, ensure_tenant_retention.dead_retention)
	ON CONFLICT ON CONSTRAINT tenant_retention_pkey
	DO UPDATE SET delivered_retention = excluded.delivered_retention, dead_retention = excluded.dead_retention;
	PERFORM outbox_internal.note_action('ensure_tenant_retention', jsonb_build_object('tenant', tenant, 'delivered_retention', delivered_retention, 'dead_retention', dead_retention), 1, reason);
END $$;
COMMENT ON FUNCTION outbox.ensure_tenant_retention IS
'Have messages of a tenant kept for longer or less long than the others, whatever handlers they were delivered to.
tenant: as the messages are staged with. delivered_retention: how long after its settlement what was delivered is kept; dead_retention: what is dead or cancelled. Each from 0 to 36500 days; NULL: as for the others. What was said of that tenant before is replaced.
reason: kept in outbox.actions.
Errors: invalid_parameter_value for a bad tenant or interval, null_value_not_allowed if neither is given.';

CREATE FUNCTION outbox.drop_tenant_retention(tenant text, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	PERFORM outbox_internal.check_retention_tenant(tenant);
	DELETE FROM outbox.tenant_retention t WHERE t.tenant = drop_tenant_retention.tenant COLLATE "C";
	IF FOUND THEN
		PERFORM outbox_internal.note_action('drop_tenant_retention', jsonb_build_object('tenant', tenant), 1, reason);
		RETURN true;
	END IF;
	RETURN false;
END $$;
COMMENT ON FUNCTION outbox.drop_tenant_retention IS
'Have messages of a tenant kept as all others are.
tenant: as given to outbox.ensure_tenant_retention().
reason: kept in outbox.actions.
Returns whether it had times of its own. Errors: invalid_parameter_value for a bad tenant.';

CREATE PROCEDURE outbox.drain(handler text DEFAULT NULL, timeout interval DEFAULT '1 minute')
LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_sql_drain';
COMMENT ON PROCEDURE outbox.drain IS
'Wait until nothing outstanding is due. What is scheduled for later, waits for its next attempt or is leased is not waited for.
handler: for this one only, push or pull. NULL: for all push handlers that are not paused; consumers may be away, and what is paused waits for an operator.
Looks again and again, each time in a transaction of its own, and holds no snapshot, lock or row in between; so it cannot run inside a transaction block.
timeout: raises object_not_in_prerequisite_state if something is still due after that time, and at once if the handler named is paused and has due deliveries.
Other errors: undefined_object for an unknown handler, active_sql_transaction inside a transaction block or function, invalid_parameter_value for a negative timeout.';

-- outbox.deliver_now(skip_ahead => true), one step: make due what push handlers that
-- are not paused have to come, in the order in which it would have come, and what the
-- first step finds of schedules.  Called by the dispatcher that reads it all again then,
-- so nobody is rung for.  The action grows with each step.
CREATE FUNCTION outbox_internal.skip_ahead(schedules boolean, caller text, INOUT action_id bigint, OUT brought bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
	most CONSTANT int := 10000;
	clock timestamptz := clock_timestamp();
	places tid[];
	n bigint;
BEGIN
	SELECT array_agg(c.place ORDER BY c.due_at, c.message_id) INTO places
	FROM (
		SELECT ahead.*
		FROM outbox.handler h LEFT JOIN outbox.handler_status s ON s.handler_id = h.id
		CROSS JOIN LATERAL (
			SELECT d.ctid AS place, d.due_at, d.message_id FROM outbox.delivery d
			WHERE d.handler_id = h.id AND d.due_at > clock AND d.due_at < 'infinity'
			ORDER BY d.due_at, d.message_id LIMIT most FOR UPDATE SKIP LOCKED) ahead
		WHERE h.url IS NOT NULL AND h.dropped_at IS NULL AND s.paused_at IS NULL
		LIMIT most) c;
	UPDATE outbox.delivery d SET due_at = clock - interval '1 microsecond' * (cardinality(places) - c.nth)
	FROM unnest(places) WITH ORDINALITY c (place, nth)
	WHERE d.ctid = c.place;
	GET DIAGNOSTICS brought = ROW_COUNT;
	IF schedules THEN
		UPDATE outbox.schedule_status t SET wake_at = clock
		WHERE t.wake_at > clock AND t.wake_at < 'infinity' AND (SELECT c.home FROM outbox.schedule c WHERE c.id = t.schedule_id) = outbox_internal.home();
		GET DIAGNOSTICS n = ROW_COUNT;
		brought := brought + n;
	END IF;
	IF action_id IS NOT NULL THEN
		UPDATE outbox.action a SET affected = a.affected + brought WHERE a.id = action_id;
	ELSIF brought > 0 THEN
		PERFORM outbox_internal.note_action('deliver_now', '{"skip_ahead": true}', brought, NULL, NULL, caller);
		action_id := currval('outbox.action_id');
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.skip_ahead IS 'Internal: make due what push handlers have to come, and the next occurrences of schedules if asked to; how much that was';

CREATE FUNCTION outbox_internal.describe_ahead() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
	SELECT string_agg(format('message %s for handler "%s" after %s attempts%s', c.message_id, c.name, c.attempts, ', the last one: ' || c.code), '; '
		ORDER BY c.due_at, c.message_id)
	FROM (
		SELECT h.name, ahead.*
		FROM outbox.handler h LEFT JOIN outbox.handler_status s ON s.handler_id = h.id
		CROSS JOIN LATERAL (
			SELECT d.message_id, d.due_at, d.attempts, d.code FROM outbox.delivery d
			WHERE d.handler_id = h.id AND d.due_at > clock_timestamp() AND d.due_at < 'infinity'
			ORDER BY d.due_at, d.message_id LIMIT 3) ahead
		WHERE h.url IS NOT NULL AND h.dropped_at IS NULL AND s.paused_at IS NULL
		LIMIT 3) c
$$;
COMMENT ON FUNCTION outbox_internal.describe_ahead IS 'Internal: some of what push handlers have to come, in words; NULL if they have nothing';

CREATE PROCEDURE outbox.deliver_now(skip_ahead boolean DEFAULT false, max_rounds int DEFAULT 100, timeout interval DEFAULT '1 minute',
	INOUT delivered bigint DEFAULT NULL, INOUT retried bigint DEFAULT NULL, INOUT dead bigint DEFAULT NULL,
	INOUT cancelled bigint DEFAULT NULL, INOUT expired bigint DEFAULT NULL, INOUT waiting bigint DEFAULT NULL)
LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_sql_deliver_now';
COMMENT ON PROCEDURE outbox.deliver_now IS
'Deliver all that is due and has been committed, come back when that is done, and say what became of it: for tests, and for servers that do not preload the library. On one that does it takes the dispatcher''s place for the time, also where outbox.enabled is off.
It starts a background worker, which does what a dispatcher does, as it does it: on_settle functions run, and schedules that are due. What is due but has to wait, for a rate, for a receiver that asked for time, for an open breaker or behind its key, is left.
skip_ahead: wait for nothing. What is to come is made due again and again until nothing is: deliveries with a deliver_at and retries, so that what always fails is dead at the end; and of each schedule the next occurrence, once. No rate is kept meanwhile, and no breaker opens; one that was open is closed. The clock stays where it is: nothing expires by it.
max_rounds: with skip_ahead, how often that may be done, each time with up to 10000; raises program_limit_exceeded, and says what still comes back, if there is more. What was done until then stays.
timeout: raises object_not_in_prerequisite_state if it takes longer. Then, and if the call is cancelled, what is out gets the time of outbox.shutdown_grace to be answered and is left due otherwise.
delivered, retried, dead, cancelled, expired: answers, to be left out: how many deliveries ended so in this call, or an attempt in another one to come; what has expired is also among the dead or cancelled. waiting: how many are outstanding after it, those of consumers and of paused handlers included.
One call at a time has a database; others wait for it, for their timeout at most, and raise lock_not_available then. Cannot run inside a transaction block.
Other errors: configuration_limit_exceeded if no background worker slot is free, object_not_in_prerequisite_state in a copy before outbox.adopt(), object_in_use if the dispatcher does not make room, active_sql_transaction, read_only_sql_transaction, invalid_parameter_value for a negative limit, null_value_not_allowed.';

CREATE FUNCTION outbox_internal.why_copy() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
	SELECT CASE
			WHEN count(i.id) <> 1
				OR NOT bool_and(i.system_identifier = c.system_identifier AND i.database_oid = d.oid)
				OR EXISTS (SELECT FROM outbox.handler h
					WHERE h.dropped_at IS NULL AND h.id <> 0 AND h.home IS DISTINCT FROM (SELECT min(own.id::text)::uuid FROM outbox.installation own))
				OR EXISTS (SELECT FROM outbox.schedule x WHERE x.home IS DISTINCT FROM (SELECT min(own.id::text)::uuid FROM outbox.installation own))
				THEN 'this database is a copy of another one'
			WHEN bool_or(i.restored OR p.restored_as IS NOT NULL AND p.restored_as IS DISTINCT FROM i.restored_as)
				THEN 'this database was restored from a backup'
			WHEN bool_or(i.site <> '' AND p.site <> '' AND i.site <> p.site)
				THEN format('this database sends from site "%s" and this is site "%s"', max(i.site), max(p.site))
		END || ': nothing is sent until SELECT outbox.adopt() makes it the sender'
	FROM outbox_internal.place() p, pg_control_system() c
	JOIN pg_database d ON d.datname = current_database()
	LEFT JOIN outbox.installation i ON true
$$;
COMMENT ON FUNCTION outbox_internal.why_copy IS 'Internal: why this database counts as a copy, whose deliveries are held until outbox.adopt(); NULL if it is none. It is unless the one row of outbox.installation names this database, knows of the restore that it comes from, was at this site, and every handler is at home there';

CREATE FUNCTION outbox_internal.is_copy() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT outbox_internal.why_copy() IS NOT NULL
$$;
COMMENT ON FUNCTION outbox_internal.is_copy IS 'Internal: is this database a copy whose deliveries are held until outbox.adopt()?';

-- A restore is noted where it happened, so that standbys hear of it; a name
-- of the site, where nothing is held, when there is one for the first time.
CREATE FUNCTION outbox_internal.place_is_news() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT EXISTS (SELECT FROM outbox.installation i, outbox_internal.place() p
		WHERE p.restored_as IS NOT NULL AND p.restored_as IS DISTINCT FROM i.restored_as
			OR i.site = '' AND p.site <> '' AND NOT outbox_internal.is_copy())
$$;
COMMENT ON FUNCTION outbox_internal.place_is_news IS 'Internal: is there something for outbox_internal.note_place() to write down?';

CREATE FUNCTION outbox_internal.note_place() RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
	UPDATE outbox.installation i SET site = p.site
	FROM outbox_internal.place() p WHERE i.site = '' AND p.site <> '' AND NOT outbox_internal.is_copy();
	UPDATE outbox.installation i SET restored_as = p.restored_as, restored = true
	FROM outbox_internal.place() p WHERE p.restored_as IS NOT NULL AND p.restored_as IS DISTINCT FROM i.restored_as;
	SELECT outbox_internal.ring_status()
$$;
COMMENT ON FUNCTION outbox_internal.note_place IS 'Internal: have outbox.installation know of the restore that this data directory comes from, and of its site';

CREATE FUNCTION outbox.adopt(reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	was_copy boolean;
	same_server uuid[];
	new_home uuid;
BEGIN
	LOCK TABLE outbox.installation IN SHARE ROW EXCLUSIVE MODE;
	was_copy := outbox_internal.is_copy();
	IF was_copy THEN
		same_server := ARRAY(SELECT i.id FROM outbox.installation i, pg_control_system() c WHERE i.system_identifier = c.system_identifier);
		DELETE FROM outbox.installation;
		INSERT INTO outbox.installation (system_identifier, database_oid, restored_as, site)
		SELECT c.system_identifier, d.oid, p.restored_as, p.site
		FROM outbox_internal.place() p, pg_control_system() c, pg_database d WHERE d.datname = current_database()
		RETURNING id INTO new_home;
		-- The clock of the server they come from may be ahead.
		PERFORM outbox_internal.seed_ids();
		-- Roles of another server are found by their names.  A row without a role stays for outbox.verify() to tell.
		UPDATE outbox.handler h SET home = new_home,
			creator_oid = CASE WHEN h.home = ANY (same_server) THEN h.creator_oid
				ELSE coalesce((SELECT r.oid FROM pg_roles r WHERE r.rolname = h.creator), 0) END;
		UPDATE outbox.schedule x SET home = new_home;
		UPDATE outbox.consumer c SET home = new_home,
			role_oid = CASE WHEN c.home = ANY (same_server) THEN c.role_oid
				ELSE coalesce((SELECT r.oid FROM pg_roles r WHERE r.rolname = c.role), 0) END;
		-- Logical replication brings rows, but not sequences.
		PERFORM setval('outbox.handler_id', h.highest)
		FROM (SELECT max(h.id) AS highest FROM outbox.handler h) h, outbox.handler_id q WHERE h.highest >= greatest(q.last_value, 1);
		PERFORM setval('outbox.schedule_id', x.highest)
		FROM (SELECT max(x.id) AS highest FROM outbox.schedule x) x, outbox.schedule_id q WHERE x.highest >= q.last_value;
		PERFORM setval('outbox.on_settle_queue_id', k.highest)
		FROM (SELECT max(k.id) AS highest FROM outbox.on_settle_queue k) k, outbox.on_settle_queue_id q WHERE k.highest >= q.last_value;
	END IF;
	PERFORM outbox_internal.note_action('adopt', '{}', was_copy::int, reason);
	PERFORM outbox_internal.ring_handlers();
	PERFORM outbox_internal.ring_rescan();
	PERFORM outbox_internal.ring_launcher();
	RETURN was_copy;
END $$;
COMMENT ON FUNCTION outbox.adopt IS
'Let this database send. A copy holds its deliveries, because the original may be sending them: a restored dump, a template copy, a logical subscriber, a restored physical backup, a server at another outbox.site. Call this once it is certain that the original will not, or that sending twice is right.
What is outstanding is delivered from the commit on; cancel what should not be before. No other operation needs it: crash recovery, failover, rename and moving a tablespace keep the identity.
reason: kept in outbox.actions.
Returns true if the database was held, false if it could send already. Only the owner of the extension and superusers may call it.';

-- What is wrong with a handler's options; NULL if nothing is.
CREATE FUNCTION outbox_internal.handler_fault(h outbox.handler) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM outbox_internal.stay_unseen();
	PERFORM outbox_internal.check_name(h.name);
	PERFORM outbox_internal.check_handler(h);
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	RETURN SQLERRM;
END $$;
COMMENT ON FUNCTION outbox_internal.handler_fault IS 'Internal: what outbox_internal.check_handler() would raise, NULL for nothing';

-- The same of a schedule, but for what takes staging a message to know.
CREATE FUNCTION outbox_internal.schedule_fault(s outbox.schedule) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM outbox_internal.stay_unseen();
	PERFORM outbox_internal.check_schedule_name(s.name);
	PERFORM outbox_internal.check_schedule_options(s);
	IF s.function IS NOT NULL THEN
		PERFORM outbox_internal.check_function('function', s.function, 'outbox.occurrence', current_user);
	END IF;
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	RETURN SQLERRM;
END $$;
COMMENT ON FUNCTION outbox_internal.schedule_fault IS 'Internal: what is wrong with the options of a schedule, NULL for nothing';

CREATE FUNCTION outbox_internal.redact_fault() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given text := coalesce(current_setting('outbox.redact_function', true), '');
	names text[];
	f record;
BEGIN
	IF given = '' THEN
		RETURN NULL;
	END IF;
	BEGIN
		names := parse_ident(given);
	EXCEPTION WHEN invalid_parameter_value THEN
		-- The library is less strict.
		names := string_to_array(given, '.');
	END;
	SELECT p.oid, p.prokind, p.proretset, p.prorettype, p.provolatile, p.proowner, r.rolname, r.rolsuper INTO f
	FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace LEFT JOIN pg_roles r ON r.oid = p.proowner
	WHERE n.nspname = names[1] AND p.proname = names[2] AND p.proargtypes = '25'::oidvector;
	RETURN CASE
		WHEN f.oid IS NULL THEN format('%s(text) does not exist', given)
		WHEN f.prokind <> 'f' OR f.proretset OR f.prorettype <> 'text'::regtype OR f.provolatile = 'v' THEN format('%s(text) is not a stable or immutable function that returns text', given)
		WHEN f.rolsuper THEN format('%s(text) would run as a superuser, its owner %I', given, f.rolname)
		WHEN NOT has_function_privilege(f.proowner, f.oid, 'EXECUTE') THEN format('%s(text): its owner %I may not execute it', given, f.rolname) END;
END $$;
COMMENT ON FUNCTION outbox_internal.redact_fault IS 'Internal: why outbox.redact_function, as this session has it, cannot be called; NULL if it can, or there is none';

CREATE FUNCTION outbox.verify() RETURNS TABLE (finding text, severity text, rows_found bigint, message_id uuid, handler text, hint text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
	RETURN QUERY
	WITH routed AS NOT MATERIALIZED (
		SELECT d.message_id, d.handler_id, d.attempts, d.budget_from, d.state, false AS settled FROM outbox.delivery d
		UNION ALL
		SELECT r.message_id, r.handler_id, r.attempts, r.budget_from, r.state, true FROM outbox.receipt r
	), problem (finding, severity, message_id, handler_id, hint) AS (
		SELECT 'delivery without message', 'error', d.message_id, d.handler_id,
			'The message was removed by hand. Delete the delivery from outbox.delivery or outbox.receipt.'
		FROM routed d LEFT JOIN outbox.message m ON m.id = d.message_id
		WHERE m.id IS NULL
		UNION ALL
		SELECT 'delivery without handler', 'error', d.message_id, d.handler_id,
			'The handler''s row was removed by hand. Delete the delivery, or restore the handler with that id.'
		FROM routed d LEFT JOIN outbox.handler h ON h.id = d.handler_id
		WHERE h.id IS NULL
		UNION ALL
		SELECT 'delivery both outstanding and settled', 'error', d.message_id, d.handler_id,
			'It cannot be settled as long as its receipt is there. Delete the row in outbox.delivery if it has been delivered, else the one in outbox.receipt.'
		FROM outbox.delivery d JOIN outbox.receipt r ON r.message_id = d.message_id AND r.handler_id = d.handler_id
		UNION ALL
		SELECT 'delivery in the wrong table', 'error', d.message_id, d.handler_id,
			'The row was changed by hand. Outstanding ones (state 0 to 2) belong into outbox.delivery, settled ones (3 to 5) into outbox.receipt.'
		FROM routed d WHERE d.state NOT BETWEEN CASE WHEN d.settled THEN 3 ELSE 0 END AND CASE WHEN d.settled THEN 5 ELSE 2 END
		UNION ALL
		SELECT 'outstanding delivery of a dropped handler', 'warning', d.message_id, d.handler_id,
			'Nobody will deliver it. Call outbox.cancel() for the message.'
		FROM outbox.handler h JOIN outbox.delivery d ON d.handler_id = h.id
		WHERE h.dropped_at IS NOT NULL
		UNION ALL
		SELECT 'outstanding delivery that nobody takes', 'error', d.message_id, d.handler_id,
			'Only settled deliveries belong to the built-in handler. Call outbox.cancel() for the message.'
		FROM outbox.delivery d WHERE d.handler_id = 0
		UNION ALL
		SELECT 'outstanding delivery that has expired', 'warning', d.message_id, d.handler_id,
			'No dispatcher has cancelled it; where the library is not preloaded, call outbox.prune().'
		FROM outbox.delivery d
		WHERE d.expires_at < clock_timestamp() - interval '10 minutes' AND (d.state <> 2 OR d.due_at < clock_timestamp() - interval '10 minutes')
			AND NOT outbox_internal.is_copy()
		UNION ALL
		SELECT 'lease on a push handler', 'error', d.message_id, d.handler_id,
			'It does not wait for an on_settle function, and nobody will settle it. Call outbox.cancel() and outbox.requeue() for the message.'
		FROM outbox.handler h JOIN outbox.delivery d ON d.handler_id = h.id AND d.state = 2
		WHERE h.url IS NOT NULL AND NOT EXISTS (
			SELECT FROM outbox.on_settle_queue k WHERE k.message_id = d.message_id AND k.handler_id = d.handler_id AND k.attempt = d.attempts)
		UNION ALL
		SELECT 'attempt budget beyond the attempts', 'error', d.message_id, d.handler_id,
			'The row was changed by hand. Set budget_from to attempts.'
		FROM routed d WHERE d.budget_from > d.attempts OR d.budget_from < 0
		UNION ALL
		SELECT 'logged attempt beyond the delivery''s count', 'error', a.message_id, a.handler_id,
			'Attempts never decrease: the delivery was changed by hand. Set attempts to the highest one logged.'
		FROM outbox.attempt a JOIN routed d ON d.message_id = a.message_id AND d.handler_id = a.handler_id
		WHERE a.attempt > d.attempts
		UNION ALL
		SELECT 'logged attempt without delivery', 'warning', a.message_id, a.handler_id,
			'The delivery was removed by hand. Delete the attempt.'
		FROM outbox.attempt a LEFT JOIN routed d ON d.message_id = a.message_id AND d.handler_id = a.handler_id
		WHERE d.message_id IS NULL
		UNION ALL
		SELECT 'message without delivery', 'info', m.id, NULL,
			'No handler took its topic when it was staged (outbox.unrouted = delivered).'
		FROM outbox.message m
		WHERE NOT EXISTS (SELECT FROM routed d WHERE d.message_id = m.id)
	), summary AS (
		-- The first one as a text of fixed width: nothing is collected, however many there are.
		SELECT p.finding, p.severity, count(*) AS n, min(concat(p.message_id, lpad(p.handler_id::text, 10, '0')) COLLATE "C") AS first, p.hint
		FROM problem p GROUP BY p.finding, p.severity, p.hint
	)
	SELECT s.finding, s.severity, s.n, left(s.first, 36)::uuid, coalesce(h.name, nullif(ltrim(substr(s.first, 37), '0'), '')), s.hint
	FROM summary s LEFT JOIN outbox.handler h ON h.id = nullif(substr(s.first, 37), '')::int
	UNION ALL
	SELECT 'index that is not valid', 'error', 1, NULL, NULL, format('REINDEX INDEX outbox.%I.', c.relname)
	FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
	WHERE c.relnamespace = 'outbox'::regnamespace AND NOT i.indisvalid
	UNION ALL
	SELECT 'trigger that is not as installed', 'error', 1, NULL, NULL, format('Trigger %I on outbox.%I is %s. %s.', f.name, f.on_table, f.fault, f.remedy)
	FROM outbox_internal.trigger_faults() f
	UNION ALL
	SELECT 'trigger of somebody else', CASE WHEN t.tgenabled = 'A' THEN 'error' ELSE 'warning' END, 1, NULL, NULL,
		format('%s of role %I runs for %s. DROP TRIGGER %I ON %s, unless it is wanted.', t.tgfoid::regprocedure, pg_get_userbyid(p.proowner),
			CASE WHEN t.tgenabled = 'A' THEN 'whoever changes the table, outbox included' ELSE 'whoever changes the table by hand, though not for outbox' END,
			t.tgname, t.tgrelid::regclass)
	FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
	WHERE c.relnamespace = 'outbox'::regnamespace AND NOT t.tgisinternal AND p.pronamespace <> 'outbox_internal'::regnamespace
	UNION ALL
	SELECT 'foreign key onto a table of outbox', 'warning', 1, NULL, NULL,
		format('outbox.prune() and the like remove rows without regard to it. ALTER TABLE %s DROP CONSTRAINT %I.', k.conrelid::regclass, k.conname)
	FROM pg_constraint k JOIN pg_class c ON c.oid = k.confrelid
	WHERE c.relnamespace = 'outbox'::regnamespace AND k.contype = 'f'
	UNION ALL
	SELECT 'table that others have rights on', 'warning', count(DISTINCT c.oid), NULL, NULL,
		format('Nobody needs them, and who writes there can act for others. REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM %s, then grant the views again.',
			CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
	FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
	WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'S') AND a.grantee <> c.relowner
	GROUP BY a.grantee
	UNION ALL
	SELECT 'row level security that is switched off', 'error', 1, NULL, NULL,
		format('Members of pg_read_all_data and pg_write_all_data can read and change the table. ALTER TABLE %s ENABLE ROW LEVEL SECURITY, and drop what policies it has.', c.oid::regclass)
	FROM pg_class c
	WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p')
		AND (NOT c.relrowsecurity OR EXISTS (SELECT FROM pg_policy y WHERE y.polrelid = c.oid))
	UNION ALL
	SELECT 'owner that is not a superuser', 'error', 1, NULL, NULL,
		format('Functions that act with its rights fail. ALTER ROLE %I SUPERUSER, or give schema outbox and what is in it to a superuser.', r.rolname)
	FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
	WHERE n.nspname = 'outbox' AND NOT r.rolsuper
	UNION ALL
	SELECT 'handler with options that it cannot have', 'error', 1, NULL, h.name,
		format('The row was changed by hand, and the handler may not be served: %s. Put it right with outbox.alter_handler().', f.fault)
	FROM outbox.handler h CROSS JOIN LATERAL outbox_internal.handler_fault(h) f (fault)
	WHERE h.dropped_at IS NULL AND h.id <> 0 AND f.fault IS NOT NULL
	UNION ALL
	SELECT 'schedule with options that it cannot have', 'error', 1, NULL, NULL,
		format('The row was changed by hand, or its function was, and schedule "%s" fails: %s. Put it right with outbox.alter_schedule().', x.name, f.fault)
	FROM outbox.schedule x CROSS JOIN LATERAL outbox_internal.schedule_fault(x) f (fault)
	WHERE f.fault IS NOT NULL
	UNION ALL
	SELECT 'topic with options that it cannot have', 'error', 1, NULL, NULL,
		format('The row was changed by hand, or its function or pg_jsonschema was, and messages of topic "%s" may be refused: %s. Put it right with outbox.alter_topic().', x.topic, f.fault)
	FROM outbox.topic x CROSS JOIN LATERAL outbox_internal.topic_fault(x) f (fault)
	WHERE f.fault IS NOT NULL
	UNION ALL
	SELECT 'creator that is no role', 'info', 1, NULL, h.name,
		format('Role %I is gone: only superusers can change what is the creator''s to change, its on_settle function for one. Create the handler anew.', h.creator)
	FROM outbox.handler h
	WHERE h.dropped_at IS NULL AND h.id <> 0 AND NOT outbox_internal.is_copy() AND outbox_internal.creator(h.creator_oid, h.home) IS NULL
	UNION ALL
	SELECT 'creator that was renamed', 'info', 1, NULL, h.name,
		format('A dump would have its old name %L. Call outbox.alter_handler(%L).', h.creator, h.name)
	FROM outbox.handler h JOIN pg_roles r ON r.oid = outbox_internal.creator(h.creator_oid, h.home)
	WHERE h.dropped_at IS NULL AND h.id <> 0 AND r.rolname <> h.creator
	UNION ALL
	SELECT 'consumer that is no role', 'warning', 1, NULL, h.name,
		format('Nobody consumes by this grant. outbox.revoke_consumer(%L, %L) removes it; if the role is there again, outbox.grant_consumer(%1$L, %2$L).', h.name, c.role)
	FROM outbox.consumer c JOIN outbox.handler h ON h.id = c.handler_id
	WHERE h.dropped_at IS NULL AND NOT outbox_internal.is_copy()
		AND (c.home IS DISTINCT FROM outbox_internal.home() OR NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = c.role_oid))
	UNION ALL
	SELECT 'consumer that was renamed', 'info', 1, NULL, h.name,
		format('A dump would have its old name %L. Call outbox.grant_consumer(%L, %L).', c.role, h.name, r.rolname)
	FROM outbox.consumer c JOIN outbox.handler h ON h.id = c.handler_id JOIN pg_roles r ON r.oid = c.role_oid
	WHERE h.dropped_at IS NULL AND c.home = outbox_internal.home() AND r.rolname <> c.role
	UNION ALL
	SELECT 'watched table whose owner may not announce', 'error', 1, NULL, NULL,
		format('Changes of %s fail. SELECT outbox.grant_producer(%L), or outbox.unwatch().', w.relation, w.owner)
	FROM outbox.watched w
	WHERE w.fires <> 'disabled' AND NOT has_function_privilege(w.owner, 'outbox.announce()', 'EXECUTE')
	UNION ALL
	-- Of a column that is found by its number only.
	SELECT 'watched table with a column that was renamed', 'info', 1, NULL, NULL,
		format('A dump would have its old name %L. Call outbox.watch() for %s with the new one.', c.name, w.relation)
	FROM (
		SELECT DISTINCT t.tgrelid::regclass AS relation, convert_from(substr(t.tgargs, 1, length(t.tgargs) - 1), getdatabaseencoding())::jsonb AS options
		FROM pg_trigger t WHERE t.tgfoid = 'outbox.announce()'::regprocedure AND t.tgparentid = 0 AND t.tgnargs = 1) w
	CROSS JOIN LATERAL jsonb_each_text(w.options -> 'columns') c (name, number)
	WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = w.relation AND a.attname = c.name AND NOT a.attisdropped)
		AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = w.relation AND a.attnum = c.number::int AND NOT a.attisdropped)
	UNION ALL
	SELECT 'function to redact error texts that cannot be called', 'error', 1, NULL, NULL,
		format('Error texts are withheld, since %s. Put it right, or set outbox.redact_function to another one.', f.fault)
	FROM outbox_internal.redact_fault() f (fault) WHERE f.fault IS NOT NULL
	UNION ALL
	SELECT 'database is a copy', 'warning', 1, NULL, NULL, overlay(w.why PLACING upper(left(w.why, 1)) FROM 1 FOR 1) || '.'
	FROM outbox_internal.why_copy() w (why) WHERE w.why IS NOT NULL
	ORDER BY 2, 1;
END $$;
COMMENT ON FUNCTION outbox.verify IS
'Look for rows and objects that contradict each other, as they can be after changes made by hand or a partial restore. Reads the tables whole.
Returns one row for each kind of finding, none if all is well: what it is, severity (error, warning, info), how many rows, one of them (the oldest message and its handler), and what to do.';

-- What outbox.health() says of schedules, of ten of them at most.
CREATE FUNCTION outbox_internal.schedule_warnings(warn_after interval) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT coalesce(array_agg(w.why ORDER BY w.name), '{}')
	FROM (
		SELECT s.name, CASE
			WHEN t.last_run_at > clock_timestamp() + warn_after THEN format('schedule "%s" has run while the clock was ahead, and waits for %s (outbox.resume_schedule() has it go on from now)', s.name, t.next_run_at)
			WHEN t.attempts > 0 THEN format('schedule "%s" has failed %s times for its occurrence of %s (outbox.schedules says why)', s.name, t.attempts, t.next_run_at)
			ELSE format('schedule "%s" has waited since %s for its occurrence to take place', s.name, t.next_run_at) END AS why
		FROM outbox.schedule_status t JOIN outbox.schedule s ON s.id = t.schedule_id
		WHERE (t.attempts > 0 OR t.last_run_at > clock_timestamp() + warn_after) AND t.paused_at IS NULL OR t.wake_at < clock_timestamp() - warn_after AND NOT pg_is_in_recovery()
		ORDER BY s.name LIMIT 10) w
$$;
COMMENT ON FUNCTION outbox_internal.schedule_warnings IS 'Internal: which schedules fail, or are not looked after';

-- By the first row that there is, which is as old as any, or nearly so.
CREATE FUNCTION outbox_internal.event_warnings(warn_after interval) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT coalesce(array_agg(format('events (outbox.*) have waited since %s to become messages (the server''s log says why, if it has been tried)', w.happened_at)), '{}')
	FROM (SELECT q.happened_at FROM outbox.event_queue q LIMIT 1) AS w
	WHERE w.happened_at < clock_timestamp() - warn_after AND NOT pg_is_in_recovery()
$$;
COMMENT ON FUNCTION outbox_internal.event_warnings IS 'Internal: whether handlers that take events are not told';

-- What outbox.health() says of retention.
CREATE FUNCTION outbox_internal.retention_warnings() RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT array_remove(ARRAY[
		CASE WHEN r.last_error IS NOT NULL THEN format('retention fails: %s', r.last_error) END,
		CASE WHEN r.state = 'clock' THEN format('retention waits until %s, or for SELECT outbox.prune(1): the clock has gone forward by more than it is believed', date_trunc('second', r.held_until)) END,
		CASE WHEN r.state IN ('idle', 'working') AND r.behind > interval '1 day' THEN format('retention is behind by %s', justify_hours(date_trunc('minute', r.behind))) END], NULL)
	FROM outbox_internal.retention() r
$$;
COMMENT ON FUNCTION outbox_internal.retention_warnings IS 'Internal: that retention fails, waits or lags by more than a day, in words; none if all is well';

-- What keeps vacuum from the rows of this database, and has for so long.  A
-- standby and its slot have no time, so they are judged by how far they are behind.
CREATE FUNCTION outbox_internal.vacuum_holders(longer_than interval, OUT pid int, OUT age interval, OUT why text) RETURNS SETOF record
LANGUAGE sql STABLE ROWS 3 SET search_path = pg_catalog, pg_temp AS $$
	SELECT v.pid, v.age, v.why
	FROM (
		SELECT a.pid, clock_timestamp() - a.xact_start AS age,
			format('a transaction of process %s (%s) has held back vacuum for %s s: outbox''s tables grow meanwhile', a.pid,
				concat_ws(', ', a.usename, nullif(a.application_name, ''), a.state), floor(extract(epoch FROM clock_timestamp() - a.xact_start))) AS why
		FROM pg_stat_activity a
		WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'
			AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.xact_start < clock_timestamp() - longer_than
		UNION ALL
		SELECT NULL, clock_timestamp() - p.prepared,
			format('prepared transaction %L has held back vacuum for %s s (COMMIT PREPARED or ROLLBACK PREPARED ends it)', p.gid, floor(extract(epoch FROM clock_timestamp() - p.prepared)))
		FROM pg_prepared_xacts p
		WHERE p.database = current_database() AND p.prepared < clock_timestamp() - longer_than
		UNION ALL
		SELECT r.pid, NULL, format('standby "%s" holds back vacuum by %s transactions (hot_standby_feedback)', r.application_name, age(r.backend_xmin))
		FROM pg_stat_replication r WHERE age(r.backend_xmin) > 1000000
		UNION ALL
		SELECT NULL, NULL, format('replication slot "%s", which nobody uses, holds back vacuum by %s transactions', s.slot_name, age(s.xmin))
		FROM pg_replication_slots s WHERE NOT s.active AND age(s.xmin) > 1000000) v
	WHERE longer_than IS NOT NULL
	ORDER BY v.age DESC NULLS LAST LIMIT 3
$$;
COMMENT ON FUNCTION outbox_internal.vacuum_holders IS 'Internal: up to three of those that keep vacuum from this database''s rows, and have for longer than that';

-- Tables that are much larger than what is in them.  The file of deliveries is
-- as large as the largest backlog was, and most of it is free.
CREATE FUNCTION outbox_internal.bloat_warnings(outstanding bigint, warn_size bigint) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT coalesce(array_agg(w.why ORDER BY w.relname), '{}')
	FROM (
		SELECT c.relname, format('outbox.delivery takes %s for %s outstanding deliveries (VACUUM (FULL) outbox.delivery, once nothing holds back vacuum, gives that back)',
			pg_size_pretty(s.size), outstanding) AS why
		FROM pg_class c CROSS JOIN LATERAL pg_total_relation_size(c.oid) s (size)
		WHERE c.oid = 'outbox.delivery'::regclass AND s.size > warn_size AND s.size > outstanding * 2000
		UNION ALL
		SELECT c.relname, format('outbox.%I has %s dead rows beside %s (of %s): autovacuum does not keep up, or is held back', c.relname, s.dead, s.live, pg_size_pretty(pg_relation_size(c.oid)))
		FROM pg_class c CROSS JOIN LATERAL (SELECT pg_stat_get_dead_tuples(c.oid) AS dead, pg_stat_get_live_tuples(c.oid) AS live) s
		WHERE c.oid IN ('outbox.message'::regclass, 'outbox.receipt'::regclass, 'outbox.attempt'::regclass, 'outbox.inbox'::regclass)
			AND s.dead > s.live AND s.dead > 100000 AND pg_relation_size(c.oid) > warn_size) w
	WHERE warn_size IS NOT NULL
$$;
COMMENT ON FUNCTION outbox_internal.bloat_warnings IS 'Internal: which tables are larger than that, in bytes, and mostly empty or dead';

-- Keys that wait for a dead delivery.  A thousand of the dead that may bar one are looked at.
CREATE FUNCTION outbox_internal.barred_keys(OUT handler text, OUT keys bigint) RETURNS SETOF record
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
	SELECT dead.name, count(DISTINCT dead.key)
	FROM (
		SELECT h.name, h.id, r.key, r.message_id FROM outbox.handler h
		CROSS JOIN LATERAL (
			SELECT o.key, o.message_id FROM outbox.receipt o WHERE o.handler_id = h.id AND o.key IS NOT NULL
			ORDER BY o.key, o.message_id LIMIT 1000) r
		WHERE h.on_dead = 'block' AND h.dropped_at IS NULL
		LIMIT 1000) dead
	WHERE EXISTS (SELECT FROM outbox.delivery d WHERE d.handler_id = dead.id AND d.key = dead.key AND d.message_id > dead.message_id)
	GROUP BY dead.name
$$;
COMMENT ON FUNCTION outbox_internal.barred_keys IS 'Internal: on which handlers dead deliveries bar their keys while others of these wait, and how many keys';

CREATE FUNCTION outbox_internal.died_since(since timestamptz, most bigint, OUT n bigint, OUT is_exact boolean) RETURNS record
LANGUAGE c STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'outbox_sql_died_since';
COMMENT ON FUNCTION outbox_internal.died_since IS 'Internal: how many of the dead have died since then, up to so many; is_exact: these are all';

CREATE FUNCTION outbox.health(warn_after interval DEFAULT '1 minute', critical_after interval DEFAULT '10 minutes',
	warn_dead bigint DEFAULT 1, critical_dead bigint DEFAULT NULL, warn_transaction interval DEFAULT '1 hour', warn_size bigint DEFAULT 1073741824,
	OUT status text, OUT reasons text[], OUT dispatcher text, OUT dispatcher_pid int, OUT in_flight int,
	OUT due bigint, OUT oldest_due_age interval, OUT oldest_due_age_seconds float8, OUT scheduled bigint, OUT retrying bigint, OUT leased bigint,
	OUT dead bigint, OUT newly_dead bigint, OUT paused_handlers int, OUT failing_handlers int,
	OUT blocked_keys bigint, OUT vacuum_held_by int, OUT vacuum_held_age interval, OUT vacuum_held_age_seconds float8, OUT counts_are_exact boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	critical text[] := '{}';
	warn text[] := '{}';
	failures text[] := '{}';
	info text[];
	pushing boolean;
	problem text;
	shortage text;
	shortage_since timestamptz;
	still_for interval;
	pending bigint;
	on_settle_age interval;
	waiting text[];
	blocked text[];
	-- Not within the query: what changes while it runs is no condition of an index.
	hour_ago timestamptz := clock_timestamp() - interval '1 hour';
	died_are_exact boolean;
	busy int[];
	failing record;
BEGIN
	IF warn_after IS NULL OR critical_after IS NULL OR warn_after > critical_after THEN
		RAISE EXCEPTION 'warn_after must not be longer than critical_after'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Both are ages of the oldest due delivery.';
	ELSIF warn_dead > critical_dead OR warn_dead < 1 OR critical_dead < 1 OR warn_transaction < interval '0' OR warn_size < 0 THEN
		RAISE EXCEPTION 'invalid threshold of outbox.health()'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'warn_dead and critical_dead are numbers from 1, the first not above the second; warn_transaction and warn_size are not negative. NULL switches one off.';
	END IF;

	SELECT d.state, d.pid, d.in_flight, d.last_error, d.shortage, d.shortage_since, clock_timestamp() - d.moved_at
	INTO dispatcher, dispatcher_pid, in_flight, problem, shortage, shortage_since, still_for
	FROM outbox_internal.dispatchers() d WHERE d.database = current_database();
	dispatcher := CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE coalesce(dispatcher, 'stopped') END;
	in_flight := coalesce(in_flight, 0);

	SELECT coalesce(sum(b.pending), 0), coalesce(sum(b.due), 0), coalesce(sum(b.scheduled), 0), coalesce(sum(b.retrying), 0), coalesce(sum(b.leased), 0),
		coalesce(sum(b.dead), 0), max(b.oldest_due_age) FILTER (WHERE NOT b.paused), count(*) FILTER (WHERE b.paused),
		array_agg(format('handler "%s" is paused with %s%s due deliveries', b.handler, CASE WHEN NOT b.counts_are_exact THEN 'about ' END, b.due) ORDER BY b.handler) FILTER (WHERE b.paused AND b.due > 0),
		coalesce(bool_and(b.counts_are_exact), true), array_agg(b.handler_id) FILTER (WHERE b.pending + b.retrying + b.leased > 0)
	INTO pending, due, scheduled, retrying, leased, dead, oldest_due_age, paused_handlers, waiting, counts_are_exact, busy
	FROM outbox.backlog b;
	oldest_due_age_seconds := date_part('epoch', oldest_due_age);
	-- No more than it takes to judge.
	SELECT d.n, d.is_exact INTO newly_dead, died_are_exact FROM outbox_internal.died_since(hour_ago, greatest(5000, warn_dead, critical_dead)) d;
	counts_are_exact := counts_are_exact AND died_are_exact;
	-- Numbers are as the dispatcher last wrote them.
	failing_handlers := 0;
	FOR failing IN
		SELECT h.name, s.breaker, s.recent_attempts AS attempts, s.recent_failures AS failures,
			CASE WHEN s.failing_since < clock_timestamp() - warn_after THEN extract(epoch FROM clock_timestamp() - s.failing_since) END AS seconds
		FROM outbox.handler_status s JOIN outbox.handler h ON h.id = s.handler_id
		WHERE h.dropped_at IS NULL AND (s.breaker <> 'closed'
			OR s.failing_since < clock_timestamp() - warn_after AND h.id = ANY (busy)
			OR s.recent_attempts >= 10 AND s.recent_failures * 2 >= s.recent_attempts AND dispatcher = 'running')
		ORDER BY s.failing_since, h.name
	LOOP
		failing_handlers := failing_handlers + 1;
		CONTINUE WHEN failing_handlers > 10;
		failures := failures || format('handler "%s" %s%s%s', failing.name,
			CASE WHEN failing.seconds IS NOT NULL THEN format('has failed for %s s', floor(failing.seconds)) ELSE 'fails' END,
			CASE WHEN failing.attempts > 0 THEN format(': %s of %s attempts within five minutes', failing.failures, failing.attempts) END,
			CASE WHEN failing.breaker <> 'closed' THEN ', circuit breaker open' END);
	END LOOP;
	pushing := EXISTS (SELECT FROM outbox.handler h WHERE h.url IS NOT NULL AND h.dropped_at IS NULL);

	IF outbox_internal.is_copy() THEN
		critical := critical || outbox_internal.why_copy();
	ELSIF pushing AND dispatcher NOT IN ('running', 'starting', 'standby') THEN
		critical := critical || format('nothing is pushed: dispatcher is %s%s', dispatcher, ' (' || problem || ')');
	ELSIF dispatcher = 'running' AND problem IS NOT NULL AND problem IS DISTINCT FROM shortage THEN
		warn := warn || format('dispatcher: %s', problem);
	END IF;
	-- Its loop comes round every ten seconds at least, whatever there is to do.
	IF dispatcher = 'running' AND still_for > greatest(critical_after, interval '15 seconds') THEN
		critical := critical || format('dispatcher (process %s) has stood still for %s s', dispatcher_pid, floor(extract(epoch FROM still_for)));
	ELSIF dispatcher = 'running' AND still_for > greatest(warn_after, interval '15 seconds') THEN
		warn := warn || format('dispatcher (process %s) has stood still for %s s', dispatcher_pid, floor(extract(epoch FROM still_for)));
	END IF;
	IF shortage_since < clock_timestamp() - critical_after THEN
		critical := critical || format('requests cannot be sent since %s: %s', date_trunc('second', shortage_since), shortage);
	ELSIF shortage IS NOT NULL THEN
		warn := warn || format('requests cannot be sent since %s: %s', date_trunc('second', shortage_since), shortage);
	END IF;
	critical := critical || ARRAY(
		SELECT format('trigger %I on outbox.%I is %s, so changes made by hand are not noticed: %s', f.name, f.on_table, f.fault, f.remedy)
		FROM outbox_internal.trigger_faults() f);
	-- What a standby has is its primary's to get rid of.
	IF dispatcher = 'standby' THEN
		reasons := critical;
		status := CASE WHEN cardinality(critical) > 0 THEN 'critical' ELSE 'ok' END;
		RETURN;
	END IF;
	IF oldest_due_age > critical_after THEN
		critical := critical || format('oldest due delivery has waited for %s s', floor(extract(epoch FROM oldest_due_age)));
	ELSIF oldest_due_age > warn_after THEN
		warn := warn || format('oldest due delivery has waited for %s s', floor(extract(epoch FROM oldest_due_age)));
	END IF;
	SELECT clock_timestamp() - min(k.finished_at) INTO on_settle_age FROM outbox.on_settle_queue k;
	IF on_settle_age > warn_after THEN
		warn := warn || format('an outcome has waited for its on_settle function for %s s', floor(extract(epoch FROM on_settle_age)));
	END IF;
	IF newly_dead >= critical_dead THEN
		critical := critical || format('deliveries that died within the last hour: %s%s', newly_dead, CASE WHEN NOT died_are_exact THEN ' or more' END);
	ELSIF newly_dead >= warn_dead THEN
		warn := warn || format('deliveries that died within the last hour: %s%s', newly_dead, CASE WHEN NOT died_are_exact THEN ' or more' END);
	END IF;
	SELECT coalesce(sum(b.keys), 0), array_agg(format('handler "%s": keys that wait for a dead delivery: %s (outbox.blocked_keys shows which)', b.handler, b.keys) ORDER BY b.handler)
	INTO blocked_keys, blocked FROM outbox_internal.barred_keys() b;
	warn := warn || blocked[1:10] || waiting[1:10];
	SELECT e.extversion INTO problem FROM pg_extension e WHERE e.extname = 'outbox' AND e.extversion <> outbox_internal.library();
	IF problem IS NOT NULL THEN
		warn := warn || format('SQL objects are of version %s and the library is version %s: run ALTER EXTENSION outbox UPDATE, or restart the server', problem, outbox_internal.library());
	END IF;
	warn := warn || failures;
	IF failing_handlers > 10 THEN
		warn := warn || format('handlers that fail: %s', failing_handlers);
	END IF;

	warn := warn || outbox_internal.schedule_warnings(warn_after);
	warn := warn || outbox_internal.event_warnings(warn_after);
	warn := warn || outbox_internal.retention_warnings();

	SELECT h.pid, h.age, date_part('epoch', h.age) INTO vacuum_held_by, vacuum_held_age, vacuum_held_age_seconds
	FROM outbox_internal.vacuum_holders(warn_transaction) h ORDER BY h.age DESC NULLS LAST LIMIT 1;
	warn := warn || ARRAY(SELECT h.why FROM outbox_internal.vacuum_holders(warn_transaction) h ORDER BY h.age DESC NULLS LAST)
		|| outbox_internal.bloat_warnings(pending + retrying + leased, warn_size);

	-- Kept ones are no fault by themselves, but what a mistyped topic or pattern looks like.
	warn := warn || ARRAY(
		SELECT format('messages refused because no handler takes topic "%s": %s', n.topic, n.refused)
		FROM outbox_internal.unrouted() n WHERE n.refused > 0 AND n.last_at > clock_timestamp() - interval '1 hour'
		ORDER BY n.last_at DESC LIMIT 3);
	info := ARRAY(
		SELECT format('messages of topic "%s", which no handler takes: %s', n.topic, n.messages)
		FROM outbox_internal.unrouted() n WHERE n.messages > 0 AND n.last_at > clock_timestamp() - interval '1 hour'
		ORDER BY n.last_at DESC LIMIT 3);

	reasons := critical || warn || info;
	status := CASE WHEN cardinality(critical) > 0 THEN 'critical' WHEN cardinality(warn) > 0 THEN 'warn' ELSE 'ok' END;
END $$;
COMMENT ON FUNCTION outbox.health IS
'One row for monitoring: status (ok, warn, critical) with its reasons, and the figures behind them.
warn_after, critical_after: ages of the oldest due delivery, paused handlers aside, from which status is warn or critical.
warn_dead, critical_dead: so many deliveries that died within the last hour are.
warn_transaction: a transaction that has held back vacuum for longer is.
warn_size: bytes from which a table of the extension that is mostly empty, or full of dead rows, is. NULL switches one of the last four off.
Critical: this database is a copy that holds its deliveries, nothing is pushed although there are push handlers, a trigger of the extension is missing or switched off, as a restore can leave it, or requests have not left this machine for longer than critical_after, for want of local ports, descriptors, memory or permission: what it is short of, since when, and what lifts that; so does a dispatcher that has stood still for so long, as one that was stopped or waits for a disk. Warn: the same for less long, deliveries died within the last hour, dead deliveries bar keys of which others wait, a transaction, a prepared one, a standby or its slot holds back vacuum, a table is bloated, a paused handler has due deliveries, a handler fails, messages were refused within the last hour because no handler takes them, an outcome has waited for its on_settle function for longer than warn_after, an occurrence of a schedule fails, or nobody has come to it for longer than that (call outbox.run_schedules(), or preload the library), retention fails, waits because it does not believe the clock, or is behind by more than a day, or something that the dispatcher has to do cannot be done at the moment (last_error of outbox.dispatchers says what).
dispatcher, dispatcher_pid, in_flight: as outbox.dispatchers shows them; dispatcher is standby on a server that is one, where nothing is to be sent before it is promoted: figures are shown, but not judged. due, scheduled, retrying, leased, dead: sums over outbox.backlog. newly_dead: died within the last hour; of more than 5000, or than warn_dead or critical_dead, no more are counted.
counts_are_exact: false if one of these numbers is estimated, or is a part of what there is; nothing is judged by the difference.
blocked_keys: keys that wait for a dead delivery; of these a thousand are looked at. vacuum_held_by, vacuum_held_age: process id of the oldest transaction that is older than warn_transaction, NULL for one that is prepared, and its age.
failing_handlers: a push handler fails if none of its attempts has succeeded for longer than warn_after and something of it is outstanding, if at least half of its attempts within five minutes failed and these were at least ten, or if its circuit breaker is not closed; the columns failing_since, recent_attempts and recent_failures of outbox.handlers show what that goes by. Up to ten are named.
Reasons also name up to three topics of outbox.unrouted that were met within the last hour; messages that were staged all the same change no status.
Takes as long whatever there is: see outbox.backlog.';

-----------------------------------------------------------------------------
-- Schedules
-----------------------------------------------------------------------------

CREATE FUNCTION outbox.next_runs(cron text, timezone text DEFAULT 'UTC', after timestamptz DEFAULT NULL, n int DEFAULT 10) RETURNS SETOF timestamptz
LANGUAGE c STABLE PARALLEL SAFE ROWS 10 AS 'MODULE_PATHNAME', 'outbox_sql_next_runs';
COMMENT ON FUNCTION outbox.next_runs IS
'What a cron expression means: the times of its next occurrences.
cron: minute, hour, day of the month, month and day of the week, or six fields with seconds in front. A field is *, or a list of values and ranges, with a step after * or a range; months and weekdays have names (JAN, MON); L is the last day of the month, L-2 the second before it, FRIL the last Friday, MON#2 the second Monday. @yearly, @monthly, @weekly, @daily and @hourly stand for what they say. If neither day field begins with *, either of them is enough.
timezone: a name that TimeZone takes. Where its clocks change, times of the day that are left out occur once, at the change, and those that come twice the first time only; a rule whose hour or minute begins with * goes by the clock on the wall.
after: the occurrences are later than that; NULL for now. n: how many, up to 1000.
Errors: invalid_parameter_value, with the position and the reason for a bad expression; null_value_not_allowed.';

-- What a schedule's function is called with.
CREATE TYPE outbox.occurrence AS (
	schedule text,
	scheduled_at timestamptz,
	attempt int,
	payload jsonb,
	tenant text,
	key text,
	headers jsonb,
	correlation_id text,
	timezone text,
	previous_at timestamptz
);
COMMENT ON TYPE outbox.occurrence IS
'What a schedule''s function is told: the schedule''s name, the time of the occurrence, which try at it this is (from 1), the payload with that time in it, the other options of messages as the schedule has them, its time zone, and the time of the occurrence before that took place (NULL for the first)';

CREATE FUNCTION outbox_internal.next_run(cron text, timezone text, every interval, anchor timestamptz, after timestamptz) RETURNS timestamptz
LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_next_run';
COMMENT ON FUNCTION outbox_internal.next_run IS 'Internal: the first occurrence later than a time; NULL for none. Either every, with its anchor, or cron and timezone; raises invalid_parameter_value for what is neither an expression nor a time zone';

CREATE FUNCTION outbox_internal.due_runs(cron text, timezone text, every interval, anchor timestamptz, first timestamptz, until timestamptz, keep int,
	OUT run_at timestamptz, OUT passed bigint) RETURNS record
LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_due_runs';
COMMENT ON FUNCTION outbox_internal.due_runs IS 'Internal: of the occurrences from first, which is one, up to until the earliest of the newest keep, at most 1000, and how many lie before that one, of which at most 10000 are counted';

CREATE FUNCTION outbox_internal.occurrence_text(at timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
$$;
COMMENT ON FUNCTION outbox_internal.occurrence_text IS 'Internal: the time of an occurrence, as payloads and dedupe keys have it';

CREATE FUNCTION outbox_internal.occurrence_payload(payload jsonb, at timestamptz) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	-- In JSON two braces in a row are part of a string, and the time needs no escapes in one.
	SELECT replace(payload::text, '{{scheduled_at}}', outbox_internal.occurrence_text(at))::jsonb
$$;
COMMENT ON FUNCTION outbox_internal.occurrence_payload IS 'Internal: a schedule''s payload with the time of an occurrence in it';

CREATE FUNCTION outbox_internal.check_schedule_name(name text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF name IS NULL OR name = '' OR octet_length(name) > 63 OR name ~ '[\x01-\x1f\x7f]' THEN
		RAISE EXCEPTION 'invalid schedule name: %', coalesce(quote_literal(name), 'NULL')
			USING ERRCODE = 'invalid_name', HINT = 'Any text of 1 to 63 bytes without control characters is a name.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_schedule_name IS 'Internal: raise invalid_name unless a schedule may have this name';

-- Each option by itself, then those that have to suit each other.
CREATE FUNCTION outbox_internal.check_schedule_options(s outbox.schedule) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM outbox_internal.check_options('schedule', s);
	IF num_nonnulls(s.cron, s.every) <> 1 THEN
		RAISE EXCEPTION 'a schedule has either cron or every'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'cron is an expression such as ''0 9 * * MON-FRI'', every an interval such as ''10 minutes''. To change from one to the other, give the one and reset the other.';
	ELSIF extract(year FROM s.every) <> 0 OR extract(month FROM s.every) <> 0 THEN
		RAISE EXCEPTION 'every must not have months: %', s.every
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Months differ in length: use cron, such as ''0 0 1 * *''.';
	ELSIF date_trunc('second', s.every) <> s.every THEN
		RAISE EXCEPTION 'every must be whole seconds: %', s.every
			USING ERRCODE = 'invalid_parameter_value', HINT = 'One second is the shortest.';
	ELSIF octet_length(s.cron) > 255 THEN
		RAISE EXCEPTION 'cron expression is too long: % bytes', octet_length(s.cron)
			USING ERRCODE = 'invalid_parameter_value', HINT = 'It has at most 255 bytes.';
	ELSIF num_nonnulls(s.topic, s.function) <> 1 THEN
		RAISE EXCEPTION 'a schedule has either a topic or a function'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'With a topic it stages a message at each occurrence; a function stages what it likes itself.';
	ELSIF NOT isfinite(s.starts_at) OR NOT isfinite(s.ends_at) OR s.starts_at > s.ends_at THEN
		RAISE EXCEPTION 'starts_at and ends_at must be finite, and in this order'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave out the one that there is not.';
	END IF;
	PERFORM outbox_internal.next_run(s.cron, s.timezone, NULL, NULL, clock_timestamp()) WHERE s.cron IS NOT NULL;
END $$;
COMMENT ON FUNCTION outbox_internal.check_schedule_options IS 'Internal: raise invalid_parameter_value unless these options of a schedule are acceptable, what makes a message aside';

CREATE FUNCTION outbox_internal.check_schedule(s outbox.schedule) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM outbox_internal.check_schedule_options(s);
	-- What a message may be is outbox.stage()'s to say.  Nobody hears of this one, which is taken back.
	BEGIN
		PERFORM set_config('outbox.unrouted', 'delivered', true);
		PERFORM outbox_internal.stage_occurrence(s, date_trunc('second', clock_timestamp()), NULL) WHERE s.topic IS NOT NULL;
		RAISE EXCEPTION 'taken back' USING ERRCODE = 'OK000', HINT = 'Nobody sees this.';
	EXCEPTION WHEN SQLSTATE 'OK000' THEN
		NULL;
	END;
END $$;
COMMENT ON FUNCTION outbox_internal.check_schedule IS 'Internal: raise invalid_parameter_value, or what outbox.stage() raises, unless these are acceptable options';

CREATE FUNCTION outbox_internal.stage_occurrence(s outbox.schedule, at timestamptz, dedupe_key text) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	RETURN outbox.stage(s.topic, outbox_internal.occurrence_payload(s.payload, at), key => s.key, dedupe_key => stage_occurrence.dedupe_key,
		tenant => s.tenant, correlation_id => s.correlation_id, headers => s.headers, ttl => s.ttl);
END $$;
COMMENT ON FUNCTION outbox_internal.stage_occurrence IS 'Internal: stage the message of an occurrence';

CREATE FUNCTION outbox_internal.occurrence_key(name text, at timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT 'schedule:' || name || ':' || outbox_internal.occurrence_text(at)
$$;
COMMENT ON FUNCTION outbox_internal.occurrence_key IS 'Internal: the dedupe key of the message of an occurrence';

-- Where an interval is counted from.
CREATE FUNCTION outbox_internal.schedule_anchor(s outbox.schedule) RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	-- Occurrences are whole seconds, and none is before starts_at.
	SELECT date_trunc('second', coalesce(s.starts_at + interval '999999 microseconds', s.created_at))
$$;
COMMENT ON FUNCTION outbox_internal.schedule_anchor IS 'Internal: an occurrence that the others of a schedule with an interval are counted from';

CREATE FUNCTION outbox_internal.run_after(s outbox.schedule, after timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	run timestamptz := outbox_internal.next_run(s.cron, s.timezone, s.every, outbox_internal.schedule_anchor(s), greatest(after, s.starts_at - interval '1 microsecond'));
BEGIN
	RETURN CASE WHEN s.ends_at IS NULL OR run <= s.ends_at THEN run END;
END $$;
COMMENT ON FUNCTION outbox_internal.run_after IS 'Internal: the first occurrence of a schedule after a time, NULL for none';

-- A schedule, locked against those who change it, and its status against those who run it.
CREATE FUNCTION outbox_internal.lock_schedule(name text, OUT s outbox.schedule, OUT st outbox.schedule_status) RETURNS record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	SELECT t.* INTO s FROM outbox.schedule t WHERE t.name = lock_schedule.name COLLATE "C" FOR UPDATE;
	IF s.id IS NULL THEN
		RAISE EXCEPTION 'schedule "%" does not exist', coalesce(name, 'NULL')
			USING ERRCODE = 'undefined_object', HINT = 'The view outbox.schedules lists the schedules there are.';
	END IF;
	SELECT t.* INTO st FROM outbox.schedule_status t WHERE t.schedule_id = s.id FOR UPDATE;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_schedule IS 'Internal: a schedule by name, locked; waits while its function runs; raises undefined_object if there is none';

CREATE FUNCTION outbox_internal.populate_schedule(s outbox.schedule, given jsonb) RETURNS outbox.schedule
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	s := jsonb_populate_record(s, given);
	-- JSON's null is a payload.
	IF given ? 'payload' THEN
		s.payload := given -> 'payload';
	END IF;
	RETURN s;
END $$;
COMMENT ON FUNCTION outbox_internal.populate_schedule IS 'Internal: a schedule with other options';

-- Check and write what a schedule is to be.
CREATE FUNCTION outbox_internal.store_schedule(s outbox.schedule, caller text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM outbox_internal.check_schedule(s);
	IF s.function IS NOT NULL THEN
		PERFORM outbox_internal.check_function('function', s.function, 'outbox.occurrence', caller);
	END IF;
	EXECUTE format('UPDATE outbox.schedule t SET name = ($1).name, %s WHERE t.id = ($1).id', outbox_internal.assignments('schedule')) USING s;
EXCEPTION WHEN unique_violation THEN
	RAISE EXCEPTION 'schedule "%" already exists', s.name
		USING ERRCODE = 'duplicate_object', HINT = 'Choose another name, or drop that schedule first.';
END $$;
COMMENT ON FUNCTION outbox_internal.store_schedule IS 'Internal: check and write all options of a schedule';

-- As outbox_internal.insert_handler().
CREATE FUNCTION outbox_internal.insert_schedule(schedule text, caller text) RETURNS outbox.schedule
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	s outbox.schedule;
BEGIN
	INSERT INTO outbox.schedule (name, creator) VALUES (schedule, caller) ON CONFLICT (name) DO NOTHING RETURNING * INTO s;
	RETURN s;
END $$;
COMMENT ON FUNCTION outbox_internal.insert_schedule IS 'Internal: a new schedule that has nothing but its name yet; NULL if there is one of that name';

CREATE FUNCTION outbox_internal.fill_schedule(s outbox.schedule, given jsonb, caller text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	first timestamptz;
BEGIN
	s := outbox_internal.populate_schedule(s, given);
	PERFORM outbox_internal.store_schedule(s, caller);
	first := outbox_internal.run_after(s, clock_timestamp());
	IF first IS NULL THEN
		RAISE EXCEPTION 'schedule "%" has no occurrence to come', s.name
			USING ERRCODE = 'invalid_parameter_value', HINT = 'ends_at is before the first one. outbox.next_runs() shows when a cron expression occurs.';
	END IF;
	INSERT INTO outbox.schedule_status (schedule_id, runs_function, wake_at, next_run_at) VALUES (s.id, s.function IS NOT NULL, first, first);
	PERFORM outbox_internal.ring_schedules();
END $$;
COMMENT ON FUNCTION outbox_internal.fill_schedule IS 'Internal: give a schedule of outbox_internal.insert_schedule() what the call has given';

CREATE FUNCTION outbox_internal.create_schedule(caller text, names text[], texts text[]) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts, 'schedule');
	s outbox.schedule;
BEGIN
	PERFORM outbox_internal.check_schedule_name(given ->> 'name');
	s := outbox_internal.insert_schedule(given ->> 'name', caller);
	IF s.id IS NULL THEN
		RAISE EXCEPTION 'schedule "%" already exists', given ->> 'name'
			USING ERRCODE = 'duplicate_object', HINT = 'Choose another name, change it with outbox.alter_schedule() or outbox.ensure_schedule(), or drop it first.';
	END IF;
	PERFORM outbox_internal.fill_schedule(s, given, caller);
	PERFORM outbox_internal.note_change('create_schedule', caller, given);
	RETURN s.id;
END $$;
COMMENT ON FUNCTION outbox_internal.create_schedule IS 'Internal: body of outbox.create_schedule()';

-- From one set of options to another.  What is missed or being tried stays so,
-- unless the times are others.
CREATE FUNCTION outbox_internal.change_schedule(old outbox.schedule, new outbox.schedule, st outbox.schedule_status, caller text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	next timestamptz := st.next_run_at;
BEGIN
	PERFORM outbox_internal.store_schedule(new, caller);
	IF (old.cron, old.every, old.timezone, old.starts_at, old.ends_at) IS DISTINCT FROM (new.cron, new.every, new.timezone, new.starts_at, new.ends_at) THEN
		next := outbox_internal.run_after(new, greatest(clock_timestamp(), st.last_scheduled_at));
	END IF;
	UPDATE outbox.schedule_status t
	SET runs_function = new.function IS NOT NULL, attempts = 0, next_run_at = next,
		wake_at = CASE WHEN t.paused_at IS NULL THEN coalesce(next, 'infinity') ELSE 'infinity' END
	WHERE t.schedule_id = new.id;
	PERFORM outbox_internal.ring_schedules();
END $$;
COMMENT ON FUNCTION outbox_internal.change_schedule IS 'Internal: give a schedule, which is locked, other options';

CREATE FUNCTION outbox_internal.alter_schedule(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts, 'schedule');
	reset text[] := ARRAY(SELECT DISTINCT o FROM unnest((given ->> 'reset')::text[]) o);
	locked record := outbox_internal.lock_schedule(given ->> 'name');
	new outbox.schedule;
BEGIN
	IF given ? 'new_name' THEN
		PERFORM outbox_internal.check_schedule_name(given ->> 'new_name');
		given := jsonb_set(given, '{name}', given -> 'new_name');
	END IF;
	PERFORM outbox_internal.check_reset('schedule', reset, given);
	new := outbox_internal.populate_schedule(outbox_internal.reset_options('schedule', locked.s, reset), given);
	PERFORM outbox_internal.change_schedule(locked.s, new, locked.st, caller);
	PERFORM outbox_internal.note_change('alter_schedule', caller, CASE WHEN given ? 'new_name' THEN jsonb_set(given, '{name}', to_jsonb((locked.s).name)) ELSE given END);
END $$;
COMMENT ON FUNCTION outbox_internal.alter_schedule IS 'Internal: body of outbox.alter_schedule()';

CREATE FUNCTION outbox_internal.ensure_schedule(caller text, names text[], texts text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts, 'schedule');
	locked record;
	s outbox.schedule;
	new outbox.schedule;
	changed text[];
BEGIN
	PERFORM outbox_internal.check_schedule_name(given ->> 'name');
	-- As outbox_internal.ensure_handler() does.
	LOOP
		PERFORM FROM outbox.schedule t WHERE t.name = given ->> 'name' COLLATE "C" FOR UPDATE;
		EXIT WHEN FOUND;
		s := outbox_internal.insert_schedule(given ->> 'name', caller);
		IF s.id IS NOT NULL THEN
			PERFORM outbox_internal.fill_schedule(s, given, caller);
			PERFORM outbox_internal.note_change('ensure_schedule', caller, given);
			RETURN '{created}';
		END IF;
	END LOOP;
	locked := outbox_internal.lock_schedule(given ->> 'name');
	s := locked.s;
	new := outbox_internal.reset_options('schedule', s, ARRAY(SELECT o.name FROM outbox_internal.schedule_options() o WHERE NOT given ? o.name));
	new := outbox_internal.populate_schedule(new, given);
	changed := outbox_internal.changed_options('schedule', s, new);
	IF changed <> '{}' THEN
		PERFORM outbox_internal.change_schedule(s, new, locked.st, caller);
		PERFORM outbox_internal.note_change('ensure_schedule', caller, given);
	END IF;
	RETURN changed;
END $$;
COMMENT ON FUNCTION outbox_internal.ensure_schedule IS 'Internal: body of outbox.ensure_schedule()';

CREATE FUNCTION outbox_internal.drop_schedule(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts, 'schedule');
	locked record := outbox_internal.lock_schedule(given ->> 'name');
BEGIN
	DELETE FROM outbox.schedule t WHERE t.id = (locked.s).id;
	DELETE FROM outbox.schedule_status t WHERE t.schedule_id = (locked.s).id;
	PERFORM outbox_internal.note_change('drop_schedule', caller, given);
END $$;
COMMENT ON FUNCTION outbox_internal.drop_schedule IS 'Internal: body of outbox.drop_schedule()';

CREATE FUNCTION outbox_internal.pause_schedule(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts, 'schedule');
	locked record := outbox_internal.lock_schedule(given ->> 'name');
BEGIN
	UPDATE outbox.schedule_status t
	SET wake_at = 'infinity', paused_at = coalesce(t.paused_at, clock_timestamp()), paused_by = caller, paused_reason = given ->> 'reason'
	WHERE t.schedule_id = (locked.s).id;
	PERFORM outbox_internal.note_change('pause_schedule', caller, given);
END $$;
COMMENT ON FUNCTION outbox_internal.pause_schedule IS 'Internal: body of outbox.pause_schedule()';

-- Whoever catches nothing up goes on from now, whatever its grace is: a pause
-- was meant.
CREATE FUNCTION outbox_internal.resume_schedule(caller text, names text[], texts text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	given jsonb := outbox_internal.given(names, texts, 'schedule');
	locked record := outbox_internal.lock_schedule(given ->> 'name');
	s outbox.schedule := locked.s;
	st outbox.schedule_status := locked.st;
	at timestamptz := clock_timestamp();
	due record;
	next timestamptz := st.next_run_at;
	passed bigint := 0;
BEGIN
	IF s.catch_up = 'skip' AND st.next_run_at <= least(at, s.ends_at) AND st.paused_at IS NOT NULL THEN
		SELECT * INTO due FROM outbox_internal.due_runs(s.cron, s.timezone, s.every, outbox_internal.schedule_anchor(s), st.next_run_at, least(at, s.ends_at), 1);
		passed := due.passed + 1;
		next := outbox_internal.run_after(s, at);
	ELSIF st.next_run_at > outbox_internal.run_after(s, at) AND st.last_scheduled_at IS DISTINCT FROM outbox_internal.run_after(s, at) THEN
		-- The clock was ahead, and by that it had its next ones.
		next := outbox_internal.run_after(s, at);
	END IF;
	UPDATE outbox.schedule_status t
	SET wake_at = coalesce(next, 'infinity'), next_run_at = next, attempts = 0, missed = t.missed + passed,
		paused_at = NULL, paused_by = NULL, paused_reason = NULL
	WHERE t.schedule_id = s.id;
	PERFORM outbox_internal.ring_schedules();
	PERFORM outbox_internal.note_change('resume_schedule', caller, given);
END $$;
COMMENT ON FUNCTION outbox_internal.resume_schedule IS 'Internal: body of outbox.resume_schedule()';

-- Which occurrence of a schedule is to be had at a time, now that there is one
-- due: scheduled_at, NULL if all that are due are missed; whether it has been
-- tried before; how many due ones are passed over; which one follows.  One
-- that has begun in time is tried on however late it becomes.
CREATE FUNCTION outbox_internal.choose_occurrence(s outbox.schedule, st outbox.schedule_status, at timestamptz,
	OUT scheduled_at timestamptz, OUT attempt int, OUT passed bigint, OUT following timestamptz) RETURNS record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	SELECT d.run_at, d.passed INTO scheduled_at, passed
	FROM outbox_internal.due_runs(s.cron, s.timezone, s.every, outbox_internal.schedule_anchor(s),
		st.next_run_at, greatest(st.next_run_at, least(at, s.ends_at)), CASE s.catch_up WHEN 'all' THEN 1000 ELSE 1 END) d;
	attempt := CASE WHEN scheduled_at = st.next_run_at THEN st.attempts + 1 ELSE 1 END;
	IF s.catch_up = 'skip' AND attempt = 1 AND scheduled_at < at - s.grace THEN
		passed := passed + 1;
		following := outbox_internal.run_after(s, at);
		scheduled_at := NULL;
	ELSE
		following := outbox_internal.run_after(s, scheduled_at);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.choose_occurrence IS 'Internal: which of the due occurrences of a schedule is to take place, if any';

-- It has taken place, or those that were due are missed.
CREATE FUNCTION outbox_internal.note_occurrence(schedule_id int, scheduled_at timestamptz, passed bigint, following timestamptz, message_id uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	at timestamptz := clock_timestamp();
BEGIN
	PERFORM outbox_internal.note_event('outbox.schedule.recovered', NULL, t.schedule_id,
		jsonb_build_object('scheduledAt', note_occurrence.scheduled_at, 'attempt', t.attempts + 1))
	FROM outbox.schedule_status t
	WHERE t.schedule_id = note_occurrence.schedule_id AND t.attempts > 0 AND note_occurrence.scheduled_at IS NOT NULL;
	UPDATE outbox.schedule_status t
	SET attempts = 0, next_run_at = following,
		-- One that is due already lets others go first.
		wake_at = CASE WHEN following IS NULL THEN 'infinity' ELSE greatest(following, at) END,
		missed = t.missed + passed, runs = t.runs + (note_occurrence.scheduled_at IS NOT NULL)::int,
		last_scheduled_at = coalesce(note_occurrence.scheduled_at, t.last_scheduled_at),
		last_run_at = CASE WHEN note_occurrence.scheduled_at IS NULL THEN t.last_run_at ELSE at END,
		last_message_id = CASE WHEN note_occurrence.scheduled_at IS NULL THEN t.last_message_id ELSE message_id END
	WHERE t.schedule_id = note_occurrence.schedule_id;
END $$;
COMMENT ON FUNCTION outbox_internal.note_occurrence IS 'Internal: an occurrence of a schedule has taken place, or with none the due ones were missed';

-- It could not take place: again after 1, 2, 4 ... seconds, up to five minutes,
-- or when the next one is due, if that does not wait for this one.
CREATE FUNCTION outbox_internal.note_failure(schedule_id int, scheduled_at timestamptz, attempt int, passed bigint, following timestamptz, error text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	at timestamptz := clock_timestamp();
BEGIN
	UPDATE outbox.schedule_status t
	SET attempts = attempt, next_run_at = coalesce(note_failure.scheduled_at, t.next_run_at), missed = t.missed + passed,
		wake_at = least(at + least(interval '1 s' * 2 ^ least(attempt - 1, 20), interval '5 min'),
			CASE WHEN (SELECT s.catch_up FROM outbox.schedule s WHERE s.id = t.schedule_id) <> 'all' THEN following END),
		last_error = left(error, 2000), last_error_at = at
	WHERE t.schedule_id = note_failure.schedule_id;
	-- One for an occurrence, however often it is tried.
	PERFORM outbox_internal.note_event('outbox.schedule.failed', NULL, note_failure.schedule_id,
		jsonb_build_object('scheduledAt', note_failure.scheduled_at, 'error', left(error, 2000)))
	WHERE attempt = 1;
END $$;
COMMENT ON FUNCTION outbox_internal.note_failure IS 'Internal: an occurrence of a schedule could not take place, and is tried again';

-- The messages of occurrences that are due, up to so many of them in one
-- transaction; returns how many were looked after.  Each has a subtransaction,
-- so that one that fails takes no other along: not more of them than a backend
-- shows to others in shared memory (64).  Not those of a copy, of which a
-- restore may have come to the status first.
CREATE FUNCTION outbox_internal.run_messages(max int) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET session_replication_role = replica
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
	at timestamptz := clock_timestamp();
	home uuid := outbox_internal.home();
	st outbox.schedule_status;
	s outbox.schedule;
	chosen record;
	id uuid;
	n int := 0;
BEGIN
	FOR st IN
		SELECT t.* FROM outbox.schedule_status t
		WHERE NOT t.runs_function AND t.wake_at <= at AND (SELECT c.home FROM outbox.schedule c WHERE c.id = t.schedule_id) = home
		ORDER BY t.wake_at LIMIT max FOR UPDATE SKIP LOCKED
	LOOP
		n := n + 1;
		SELECT st.next_run_at AS scheduled_at, st.attempts + 1 AS attempt, 0 AS passed, NULL::timestamptz AS following INTO chosen;
		BEGIN
			-- As it is now that its status is locked.
			SELECT c.* INTO s FROM outbox.schedule c WHERE c.id = st.schedule_id;
			chosen := outbox_internal.choose_occurrence(s, st, at);
			id := NULL;
			IF chosen.scheduled_at IS NOT NULL THEN
				id := outbox_internal.stage_occurrence(s, chosen.scheduled_at, outbox_internal.occurrence_key(s.name, chosen.scheduled_at));
			END IF;
			PERFORM outbox_internal.note_occurrence(st.schedule_id, chosen.scheduled_at, chosen.passed, chosen.following, id);
		EXCEPTION WHEN OTHERS THEN
			PERFORM outbox_internal.note_failure(st.schedule_id, chosen.scheduled_at, chosen.attempt, chosen.passed, chosen.following, SQLERRM);
		END;
	END LOOP;
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox_internal.run_messages IS 'Internal: stage the messages of up to so many occurrences that are due; returns how many schedules were looked after';

CREATE FUNCTION outbox_internal.next_wake(functions boolean) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
	home uuid := outbox_internal.home();
BEGIN
	RETURN (
		SELECT t.wake_at FROM outbox.schedule_status t
		WHERE t.runs_function = functions AND t.wake_at < 'infinity' AND (SELECT c.home FROM outbox.schedule c WHERE c.id = t.schedule_id) = home
		ORDER BY t.wake_at LIMIT 1);
END $$;
COMMENT ON FUNCTION outbox_internal.next_wake IS 'Internal: when there is something to do for the first of the schedules that run functions, or that stage messages; NULL for never';

CREATE FUNCTION outbox_internal.make_occurrence(s outbox.schedule, st outbox.schedule_status, at timestamptz, attempt int) RETURNS outbox.occurrence
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT ROW(s.name, at, attempt, outbox_internal.occurrence_payload(s.payload, at), s.tenant, s.key, s.headers, s.correlation_id, s.timezone,
		st.last_scheduled_at)::outbox.occurrence
$$;
COMMENT ON FUNCTION outbox_internal.make_occurrence IS 'Internal: what a schedule''s function is told of an occurrence';

-- The occurrence whose function is to be run next, its schedule's status
-- locked until the transaction ends; without a schedule if there is none.  The
-- function runs in between, from C (src/schedule/run.c), and not within these,
-- whose settings are not for it.
CREATE FUNCTION outbox_internal.begin_occurrence(OUT schedule_id int, OUT scheduled_at timestamptz, OUT attempt int, OUT passed bigint, OUT following timestamptz,
	OUT function text, OUT timeout_ms int, OUT occurrence outbox.occurrence) RETURNS record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET session_replication_role = replica
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
	at timestamptz := clock_timestamp();
	home uuid := outbox_internal.home();
	st outbox.schedule_status;
	s outbox.schedule;
BEGIN
	LOOP
		schedule_id := NULL;
		SELECT t.* INTO st FROM outbox.schedule_status t
		WHERE t.runs_function AND t.wake_at <= at AND (SELECT c.home FROM outbox.schedule c WHERE c.id = t.schedule_id) = home
		ORDER BY t.wake_at LIMIT 1 FOR UPDATE SKIP LOCKED;
		EXIT WHEN NOT FOUND;
		BEGIN
			schedule_id := st.schedule_id;
			SELECT c.* INTO s FROM outbox.schedule c WHERE c.id = st.schedule_id;
			SELECT c.* INTO scheduled_at, attempt, passed, following FROM outbox_internal.choose_occurrence(s, st, at) c;
			IF scheduled_at IS NOT NULL THEN
				function := s.function;
				timeout_ms := ceil(extract(epoch FROM s.timeout) * 1000);
				occurrence := outbox_internal.make_occurrence(s, st, scheduled_at, attempt);
				EXIT;
			END IF;
			PERFORM outbox_internal.note_occurrence(st.schedule_id, NULL, passed, following, NULL);
		EXCEPTION WHEN OTHERS THEN
			PERFORM outbox_internal.note_failure(st.schedule_id, NULL, st.attempts + 1, 0, NULL, SQLERRM);
		END;
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.begin_occurrence IS 'Internal: lock the next schedule whose function is to be run, and say for which occurrence';

CREATE FUNCTION outbox_internal.end_occurrence(schedule_id int, scheduled_at timestamptz, attempt int, passed bigint, following timestamptz, failure text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
BEGIN
	IF failure IS NULL THEN
		PERFORM outbox_internal.note_occurrence(schedule_id, scheduled_at, passed, following, NULL);
	ELSE
		PERFORM outbox_internal.note_failure(schedule_id, scheduled_at, attempt, passed, following, failure);
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.end_occurrence IS 'Internal: what became of the function of outbox_internal.begin_occurrence()';

-- An occurrence by hand: stages its message, or says which function is to be
-- run for it in this transaction.
CREATE FUNCTION outbox_internal.run_now(name text, at timestamptz, OUT message_id uuid, OUT function text, OUT timeout_ms int, OUT occurrence outbox.occurrence) RETURNS record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	locked record := outbox_internal.lock_schedule(name);
	s outbox.schedule := locked.s;
	st outbox.schedule_status := locked.st;
	scheduled_at timestamptz := date_trunc('second', coalesce(at, clock_timestamp()));
	awaited boolean := scheduled_at = st.next_run_at;
BEGIN
	IF NOT isfinite(at) THEN
		RAISE EXCEPTION 'scheduled_at must be a finite time'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out for now.';
	END IF;
	IF s.function IS NULL THEN
		message_id := outbox_internal.stage_occurrence(s, scheduled_at, outbox_internal.occurrence_key(s.name, scheduled_at));
	ELSE
		function := s.function;
		timeout_ms := ceil(extract(epoch FROM s.timeout) * 1000);
		occurrence := outbox_internal.make_occurrence(s, st, scheduled_at, CASE WHEN awaited THEN st.attempts + 1 ELSE 1 END);
	END IF;
	IF awaited THEN
		PERFORM outbox_internal.note_occurrence(s.id, scheduled_at, 0, outbox_internal.run_after(s, scheduled_at), message_id);
		UPDATE outbox.schedule_status t SET wake_at = 'infinity' WHERE t.schedule_id = s.id AND t.paused_at IS NOT NULL;
	ELSE
		UPDATE outbox.schedule_status t
		SET runs = t.runs + 1, last_run_at = clock_timestamp(), last_message_id = run_now.message_id
		WHERE t.schedule_id = s.id;
	END IF;
	PERFORM outbox_internal.note_action('run_now', jsonb_build_object('name', s.name, 'scheduled_at', scheduled_at), 1, NULL, message_id);
END $$;
COMMENT ON FUNCTION outbox_internal.run_now IS 'Internal: body of outbox.run_now(), but for the function, which C runs';

-- Who calls outbox.run_schedules() is told why nothing may run.
CREATE FUNCTION outbox_internal.check_may_run() RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
		RAISE EXCEPTION 'outbox.run_schedules() cannot run in isolation level %', upper(current_setting('transaction_isolation'))
			USING ERRCODE = 'feature_not_supported',
				HINT = 'Others may have had an occurrence since its snapshot was taken. SET default_transaction_isolation = ''read committed'' for the session that calls it.';
	END IF;
	IF outbox_internal.is_copy() THEN
		RAISE EXCEPTION 'schedules are held: %', outbox_internal.why_copy()
			USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call outbox.adopt() if this database is to send. The original may be staging the same messages.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_may_run IS 'Internal: raise object_not_in_prerequisite_state in a copy, feature_not_supported above READ COMMITTED';

-- create_schedule() and its kin, whose arguments are the options.
DO $do$
DECLARE
	arguments text := outbox_internal.arguments('schedule');
BEGIN
	EXECUTE pg_catalog.format($sql$
CREATE FUNCTION outbox.create_schedule(name text, %s, reason text DEFAULT NULL) RETURNS int
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner'
	$sql$, arguments);
	EXECUTE pg_catalog.format('COMMENT ON FUNCTION outbox.create_schedule IS %L', pg_catalog.format(
'Create a schedule: at each of its occurrences a message is staged, or a function run, once. The first one is the next after now.
name: any text of up to 63 bytes; the dedupe key of each message is schedule:NAME:TIME. Options by name, NULL for the default:
%s
reason: kept in outbox.actions.
An occurrence is missed if it cannot begin within grace of its time, or another one is due as well: the server was down or a standby, the schedule paused, the database held as a copy. catch_up says which of them take place after all: none (skip), the last (last), or all of them in their order, but not more than the newest 1000 (all).
Returns the schedule''s id. Errors: invalid_parameter_value and others as outbox.stage() for bad options, with the position and the reason for a bad cron expression; invalid_name; wrong_object_type or invalid_function_definition for a function that it cannot be; duplicate_object; insufficient_privilege unless the caller may act as the function''s owner, or if that is a superuser.', outbox_internal.arguments_help('schedule')));

	-- An expression in the second place is not to be taken for a name.
	EXECUTE pg_catalog.format($sql$
CREATE FUNCTION outbox.alter_schedule(name text, reset text[] DEFAULT NULL, new_name text DEFAULT NULL, %s, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner'
	$sql$, arguments);
	EXECUTE pg_catalog.format($sql$
CREATE FUNCTION outbox.ensure_schedule(name text, %s, reason text DEFAULT NULL) RETURNS text[]
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner'
	$sql$, arguments);
END $do$;
COMMENT ON FUNCTION outbox.alter_schedule IS
'Change a schedule: options as in outbox.create_schedule(), NULL keeps what is there.
new_name: rename it. reset: names of options to put back to their defaults.
reason: kept in outbox.actions.
If its times change, the next occurrence is the first of the new ones after now. An occurrence that has failed is tried again at once. Waits while the schedule''s function runs. Errors: undefined_object if there is no such schedule, otherwise as outbox.create_schedule().';
COMMENT ON FUNCTION outbox.ensure_schedule IS
'Have a schedule with exactly these options, those that are not given being the defaults: create it, change it, or leave it alone if it is so already. It stays paused if it is.
reason: kept in outbox.actions, if anything was changed.
Returns the names of the options that were changed, none if nothing was, and created alone if there was no such schedule. Errors: as outbox.create_schedule().';

CREATE FUNCTION outbox.schedule_definition(name text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	s outbox.schedule;
BEGIN
	SELECT t.* INTO s FROM outbox.schedule t WHERE t.name = schedule_definition.name COLLATE "C";
	IF s.id IS NULL THEN
		RAISE EXCEPTION 'schedule "%" does not exist', coalesce(name, 'NULL')
			USING ERRCODE = 'undefined_object', HINT = 'The view outbox.schedules lists the schedules there are.';
	END IF;
	RETURN outbox_internal.definition('schedule', quote_literal(s.name), s);
END $$;
COMMENT ON FUNCTION outbox.schedule_definition IS
'The call of outbox.create_schedule() that creates the same schedule, with the options that are not at their defaults.
name: of the schedule. Returns a statement without a semicolon at its end. Errors: undefined_object if there is no such schedule.';

CREATE FUNCTION outbox.drop_schedule(name text, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner';
COMMENT ON FUNCTION outbox.drop_schedule IS
'Drop a schedule. What it has staged stays. Waits while its function runs.
reason: kept in outbox.actions.
Errors: undefined_object if there is no such schedule.';

CREATE FUNCTION outbox.pause_schedule(name text, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner';
COMMENT ON FUNCTION outbox.pause_schedule IS
'Pause a schedule: until outbox.resume_schedule() its occurrences are missed. Waits while its function runs. Pausing a paused one changes the reason.
Errors: undefined_object if there is no such schedule.';

CREATE FUNCTION outbox.resume_schedule(name text, reason text DEFAULT NULL) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_as_owner';
COMMENT ON FUNCTION outbox.resume_schedule IS
'End a schedule''s pause: what was missed meanwhile is made up for as its catch_up says. An occurrence that has failed is tried again at once. One that waits for a time that the clock had reached before it was set back goes on from now.
reason: kept in outbox.actions.
Errors: undefined_object if there is no such schedule.';

CREATE FUNCTION outbox.run_now(name text, scheduled_at timestamptz DEFAULT NULL) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_run_now';
COMMENT ON FUNCTION outbox.run_now IS
'Have an occurrence of a schedule now, in this transaction, paused or not: for one that was missed, or to try the schedule out.
name: of the schedule. scheduled_at: for which time, in whole seconds; NULL for now.
Returns the message''s id: that of the first one if the occurrence of that time has taken place already; NULL where the schedule runs a function.
Errors: undefined_object if there is no such schedule, invalid_parameter_value for an infinite time, external_routine_exception if the function fails, otherwise as outbox.stage().';

CREATE PROCEDURE outbox.run_schedules()
LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_sql_run_schedules';
COMMENT ON PROCEDURE outbox.run_schedules IS
'Have the occurrences of schedules that are due, and tell handlers that take outbox''s own events (outbox.*) what has happened. On a server that preloads the library this goes by itself; on another one, call it at least each minute, from pg_cron or the like.
Goes on until none is due, but not for longer than a minute; what it does meanwhile is committed bit by bit, so it cannot run inside a transaction block. Any number of calls may run at once, beside the server''s worker too: each occurrence takes place once.
What fails is seen in outbox.schedules and tried again by a later call. Errors: active_sql_transaction inside a transaction block or function, object_not_in_prerequisite_state in a copy of the database before outbox.adopt(), feature_not_supported above READ COMMITTED.';

-----------------------------------------------------------------------------
-- Events: what outbox itself has to tell, as messages
--
-- Handlers take them by naming topics of outbox.*; nobody else can stage such.
-- Whatever happens is noted in outbox.event_queue by the transaction in which it
-- does (outbox_internal.note_event(), src/table/event_queue.c).  The schedule worker,
-- or who calls outbox.run_schedules(), makes messages of it: no settlement waits
-- for that, and none fails by it.
--
-- No loops: an event that dies makes none, and none that is about a handler goes to
-- that handler.  A bounded rate: of each topic ten a minute about one handler or
-- schedule and tenant, and 1000 in all; the rest of that minute is summed up, in as
-- many sums at most.
-----------------------------------------------------------------------------

CREATE FUNCTION outbox_internal.stage_event(topic text, payload jsonb, key text, tenant text, correlation_id text, about int) RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_stage_event';
COMMENT ON FUNCTION outbox_internal.stage_event IS 'Internal: stage an event for the handlers that take it, but for the one it is about; NULL, and nothing is staged, if there is none';

-- What is told of it: what is known of the handler or the schedule, and of the delivery that died.
CREATE FUNCTION outbox_internal.tell_event(q outbox.event_queue) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$
DECLARE
	handler text := (SELECT h.name FROM outbox.handler h WHERE h.id = q.handler_id);
	m record;
	s record;
BEGIN
	SELECT x.topic, x.tenant, x.correlation_id, x.staged_at INTO m FROM outbox.message x WHERE x.id = q.message_id;
	SELECT x.name, x.tenant INTO s FROM outbox.schedule x WHERE x.id = q.schedule_id;
	RETURN outbox_internal.stage_event(q.topic,
		jsonb_strip_nulls(jsonb_build_object('happenedAt', q.happened_at, 'handler', handler, 'schedule', s.name,
			'messageId', q.message_id, 'topic', m.topic, 'stagedAt', m.staged_at, 'attempts', q.attempts,
			'httpStatus', q.http_status, 'code', q.code, 'error', q.error)) || coalesce(q.details, '{}'),
		coalesce(handler, s.name), coalesce(m.tenant, s.tenant), coalesce(m.correlation_id, q.message_id::text), q.handler_id);
END $$;
COMMENT ON FUNCTION outbox_internal.tell_event IS 'Internal: stage the message of one event; returns its id, NULL if nobody takes it';

-- How many more there were in the minute that is over.
CREATE FUNCTION outbox_internal.tell_untold(r outbox.event_rate) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$
DECLARE
	of_handler boolean := r.topic LIKE 'outbox.handler.%' OR r.topic LIKE 'outbox.delivery.%';
	handler text := (SELECT h.name FROM outbox.handler h WHERE h.id = r.about AND of_handler);
	schedule text := (SELECT s.name FROM outbox.schedule s WHERE s.id = r.about AND NOT of_handler);
BEGIN
	RETURN outbox_internal.stage_event(r.topic,
		jsonb_strip_nulls(jsonb_build_object('summary', true, 'count', r.untold, 'firstAt', r.first_at, 'lastAt', r.last_at,
			'handler', handler, 'schedule', schedule)),
		coalesce(handler, schedule), nullif(r.tenant, ''), NULL, CASE WHEN of_handler THEN r.about END);
END $$;
COMMENT ON FUNCTION outbox_internal.tell_untold IS 'Internal: stage the message that sums up events that were not told one by one; returns its id, NULL if nobody takes it';

-- What is waiting, but for events about messages that are events: whom each is about,
-- whose it is, and whether it may be told by itself, after what has been in this minute.
CREATE FUNCTION outbox_internal.sift_events(queue outbox.event_queue[], OUT q outbox.event_queue, OUT about int, OUT tenant text, OUT tells boolean) RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
	WITH known AS (
		SELECT u.q, u.nth, coalesce((u.q).handler_id, (u.q).schedule_id, 0) AS about,
			coalesce((SELECT m.tenant FROM outbox.message m WHERE m.id = (u.q).message_id),
				(SELECT s.tenant FROM outbox.schedule s WHERE s.id = (u.q).schedule_id), '') AS tenant
		FROM (SELECT queue[i] AS q, i AS nth FROM generate_subscripts(queue, 1) i) AS u
		WHERE NOT EXISTS (SELECT FROM outbox.message m WHERE m.id = (u.q).message_id AND outbox_internal.takes_events(ARRAY[m.topic]))
	), of_one AS (
		SELECT k.*, coalesce(r.told, 0) AS told,
			row_number() OVER (PARTITION BY (k.q).topic, k.about, k.tenant ORDER BY (k.q).happened_at, k.nth) + coalesce(r.told, 0) <= 10 AS few
		FROM known k LEFT JOIN outbox.event_rate r ON r.topic = (k.q).topic AND r.about = k.about AND r.tenant = k.tenant COLLATE "C"
	), of_all AS (
		SELECT o.*, o.few AND row_number() OVER (PARTITION BY (o.q).topic, o.few ORDER BY (o.q).happened_at, o.nth) + coalesce(t.told, 0) <= 1000 AS tells
		FROM of_one o LEFT JOIN (SELECT r.topic, sum(r.told) AS told FROM outbox.event_rate r GROUP BY r.topic) AS t ON t.topic = (o.q).topic
	), summed AS (
		-- Those of which none can be told by itself are summed up together, or there would be as many sums.
		SELECT a.*, a.told > 0 OR bool_or(a.tells) OVER (PARTITION BY (a.q).topic, a.about, a.tenant) AS is_own FROM of_all a
	)
	SELECT s.q, CASE WHEN s.is_own THEN s.about ELSE -1 END, CASE WHEN s.is_own THEN s.tenant ELSE '' END, s.tells
	FROM summed s ORDER BY (s.q).happened_at, s.nth
$$;
COMMENT ON FUNCTION outbox_internal.sift_events IS 'Internal: what is to be told of these, in their order: about which handler or schedule each is, of which tenant, and whether by itself or summed up';

CREATE FUNCTION outbox_internal.tell_events(OUT did_some boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET session_replication_role = replica SET jit = off AS $$
DECLARE
	batch CONSTANT int := 1000;
	at timestamptz := clock_timestamp();
	queue outbox.event_queue[];
	r outbox.event_rate;
	s record;
BEGIN
	did_some := false;
	-- One at a time, or each would have ten a minute to tell.
	PERFORM FROM outbox.event_rate x WHERE x.topic = '' FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		INSERT INTO outbox.event_rate (topic, about, tenant) VALUES ('', 0, '') ON CONFLICT ON CONSTRAINT event_rate_pkey DO NOTHING;
		IF NOT FOUND THEN
			RETURN;
		END IF;
	END IF;

	-- Minutes that are over.  One that is to come is one of before the clock was set back.
	FOR r IN
		DELETE FROM outbox.event_rate x
		WHERE x.topic <> '' AND (x.began_at <= at - interval '1 min' OR x.began_at > at + interval '1 min') RETURNING *
	LOOP
		did_some := true;
		IF r.untold > 0 THEN
			PERFORM outbox_internal.tell_untold(r);
		END IF;
	END LOOP;

	WITH gone AS (
		DELETE FROM outbox.event_queue q
		WHERE q.ctid = ANY (ARRAY(SELECT l.ctid FROM outbox.event_queue l LIMIT batch FOR UPDATE SKIP LOCKED)) RETURNING q)
	SELECT array_agg(g.q) INTO queue FROM gone g;
	IF queue IS NULL THEN
		RETURN;
	END IF;
	did_some := true;
	FOR s IN SELECT * FROM outbox_internal.sift_events(queue) f WHERE f.tells LOOP
		PERFORM outbox_internal.tell_event(s.q);
	END LOOP;
	INSERT INTO outbox.event_rate AS x (topic, about, tenant, began_at, told, untold, first_at, last_at)
	SELECT (f.q).topic, f.about, f.tenant, at, count(*) FILTER (WHERE f.tells), count(*) FILTER (WHERE NOT f.tells),
		min((f.q).happened_at) FILTER (WHERE NOT f.tells), max((f.q).happened_at) FILTER (WHERE NOT f.tells)
	FROM outbox_internal.sift_events(queue) f GROUP BY 1, 2, 3
	ON CONFLICT ON CONSTRAINT event_rate_pkey DO UPDATE SET told = x.told + excluded.told, untold = x.untold + excluded.untold,
		first_at = least(x.first_at, excluded.first_at), last_at = greatest(x.last_at, excluded.last_at);
END $$;
COMMENT ON FUNCTION outbox_internal.tell_events IS 'Internal: make messages of what handlers that take events are to be told of, a batch; false if there was nothing, or somebody else is at it';

CREATE FUNCTION outbox_internal.next_event() RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF EXISTS (SELECT FROM outbox.event_queue) THEN
		RETURN '-infinity';
	END IF;
	RETURN (SELECT min(r.began_at) + interval '1 min' FROM outbox.event_rate r WHERE r.untold > 0);
END $$;
COMMENT ON FUNCTION outbox_internal.next_event IS 'Internal: when there is an event to be told; -infinity: at once; NULL: none is known of';

CREATE FUNCTION outbox_internal.prune_events(batch int) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	n bigint;
BEGIN
	-- Nobody has come to them for a day, and they are no news any more.
	DELETE FROM outbox.event_queue q WHERE q.ctid = ANY (ARRAY(
		SELECT l.ctid FROM outbox.event_queue l WHERE l.happened_at < clock_timestamp() - interval '1 day' LIMIT batch FOR UPDATE SKIP LOCKED));
	GET DIAGNOSTICS n = ROW_COUNT;
	RETURN n;
END $$;
COMMENT ON FUNCTION outbox_internal.prune_events IS 'Internal: remove up to so many events that nobody was told of within a day; returns how many';

-----------------------------------------------------------------------------
-- Views
--
-- Whoever may SELECT from a view needs nothing else, so they call no function
-- of the extension: EXECUTE on it would be checked against the reader.  Two are
-- of what only a function knows, or counts fast enough (backlog, dispatchers);
-- outbox.grant_monitor() and outbox.grant_operator() grant it along.
-----------------------------------------------------------------------------

CREATE VIEW outbox.messages AS
SELECT m.id AS message_id, m.topic, m.key, m.tenant, m.correlation_id, m.dedupe_key, m.staged_at, m.min_version, m.headers, m.payload,
	(SELECT pg_catalog.count(*) FROM outbox.delivery d WHERE d.message_id OPERATOR(pg_catalog.=) m.id) AS outstanding,
	(SELECT pg_catalog.count(*) FROM outbox.receipt r WHERE r.message_id OPERATOR(pg_catalog.=) m.id AND r.state OPERATOR(pg_catalog.=) 3) AS delivered,
	(SELECT pg_catalog.count(*) FROM outbox.receipt r WHERE r.message_id OPERATOR(pg_catalog.=) m.id AND r.state OPERATOR(pg_catalog.=) 4) AS dead,
	(SELECT pg_catalog.count(*) FROM outbox.receipt r WHERE r.message_id OPERATOR(pg_catalog.=) m.id AND r.state OPERATOR(pg_catalog.=) 5) AS cancelled,
	m.expires_at,
	m.content_type, m.payload_text, pg_catalog.octet_length(m.payload_bytes) AS payload_bytes_length,
	pg_catalog.encode(pg_catalog.sha256(m.payload_bytes), 'hex') AS payload_bytes_sha256,
	m.reused_key
-- A view of one table alone could be written to.
FROM outbox.message m CROSS JOIN (SELECT) AS nothing;
COMMENT ON VIEW outbox.messages IS
'Every message as it was staged, payload included, and how many of its deliveries are outstanding, delivered, dead and cancelled; none of either: nobody took it. Found by an index: message_id, tenant, key, correlation_id, and dedupe_key together with COALESCE(tenant, '''')';

CREATE FUNCTION outbox_internal.is_own(xid xid) RETURNS boolean
LANGUAGE c STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'outbox_sql_is_own';
COMMENT ON FUNCTION outbox_internal.is_own IS 'Internal: whether that is the transaction that runs, or a savepoint of it';

-- Of plain text, which tests compare with values of theirs.
CREATE TYPE outbox.staged_message AS (
	message_id uuid,
	topic text,
	payload jsonb,
	key text,
	tenant text,
	correlation_id text,
	headers jsonb,
	dedupe_key text,
	deliver_at timestamptz,
	expires_at timestamptz,
	content_type text,
	payload_text text,
	payload_bytes bytea,
	handlers text[]
);
COMMENT ON TYPE outbox.staged_message IS
'What outbox.staged() returns: a message as it was staged, and the names of the handlers that it goes to. deliver_at: NULL if it is due at once. payload: NULL for a text or bytes, whose content_type and payload_text or payload_bytes are set';

-- Ids are in the order of their times, so what is this transaction's is at the end.
CREATE FUNCTION outbox.staged(topic text DEFAULT NULL, key text DEFAULT NULL, tenant text DEFAULT NULL) RETURNS SETOF outbox.staged_message
LANGUAGE sql STABLE SECURITY DEFINER ROWS 10 SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
	SELECT m.id, m.topic, m.payload, m.key, m.tenant, m.correlation_id, m.headers, m.dedupe_key, m.deliver_at, m.expires_at, m.content_type, m.payload_text, m.payload_bytes,
		ARRAY(SELECT h.name FROM outbox.delivery d JOIN outbox.handler h ON h.id = d.handler_id WHERE d.message_id = m.id ORDER BY h.name)
	FROM outbox.message m
	WHERE m.id >= outbox_internal.id_floor(transaction_timestamp() - interval '1 second') AND outbox_internal.is_own(m.xmin)
		AND (staged.topic IS NULL OR outbox_internal.topic_taken(ARRAY[staged.topic], m.topic))
		AND (staged.key IS NULL OR m.key = staged.key) AND (staged.tenant IS NULL OR m.tenant = staged.tenant)
	ORDER BY m.id
$$;
COMMENT ON FUNCTION outbox.staged IS
'What the running transaction has staged so far, in the order of staging, and who gets it: for tests that roll back, and for assertions in pgTAP.
topic: only of these topics, a pattern as handlers have them. key, tenant: only with these.
Sees messages of this transaction alone, its triggers and functions included, whoever has written them; so it is for operators and the owner, and for roles of tests that were granted it.
Errors: invalid_parameter_value for a bad pattern.';

-- A part for each state of receipts, so that who asks for one reads no others; and
-- each with joins of its own, because only then it can be entered from either
-- end: from what is known of the delivery, or from what is known of the message.
CREATE VIEW outbox.deliveries AS
SELECT d.message_id, h.name AS handler, m.topic, ('{pending,retrying,leased}'::text[])[d.state OPERATOR(pg_catalog.+) 1] AS state, d.attempts, d.attempts OPERATOR(pg_catalog.-) d.budget_from AS attempts_of_budget,
	m.staged_at, d.due_at AS due_at, NULL::timestamptz AS settled_at, d.code, d.http_status, d.error, m.key, m.tenant, m.correlation_id, d.handler_id, d.expires_at
FROM outbox.delivery d
LEFT JOIN outbox.message m ON m.id OPERATOR(pg_catalog.=) d.message_id
LEFT JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) d.handler_id
UNION ALL
SELECT r.message_id, h.name AS handler, m.topic, 'delivered' AS state, r.attempts, r.attempts OPERATOR(pg_catalog.-) r.budget_from AS attempts_of_budget,
	m.staged_at, NULL AS due_at, r.settled_at AS settled_at, r.code, r.http_status, r.error, m.key, m.tenant, m.correlation_id, r.handler_id, NULL::timestamptz AS expires_at
FROM outbox.receipt r
LEFT JOIN outbox.message m ON m.id OPERATOR(pg_catalog.=) r.message_id
LEFT JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) r.handler_id
WHERE r.state + 0 NOT IN (4, 5)
UNION ALL
SELECT r.message_id, h.name AS handler, m.topic, 'dead' AS state, r.attempts, r.attempts OPERATOR(pg_catalog.-) r.budget_from AS attempts_of_budget,
	m.staged_at, NULL AS due_at, r.settled_at AS settled_at, r.code, r.http_status, r.error, m.key, m.tenant, m.correlation_id, r.handler_id, NULL AS expires_at
FROM outbox.receipt r
LEFT JOIN outbox.message m ON m.id OPERATOR(pg_catalog.=) r.message_id
LEFT JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) r.handler_id
WHERE r.state + 0 = 4
UNION ALL
SELECT r.message_id, h.name AS handler, m.topic, 'cancelled' AS state, r.attempts, r.attempts OPERATOR(pg_catalog.-) r.budget_from AS attempts_of_budget,
	m.staged_at, NULL AS due_at, r.settled_at AS settled_at, r.code, r.http_status, r.error, m.key, m.tenant, m.correlation_id, r.handler_id, NULL AS expires_at
FROM outbox.receipt r
LEFT JOIN outbox.message m ON m.id OPERATOR(pg_catalog.=) r.message_id
LEFT JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) r.handler_id
WHERE r.state + 0 = 5;
COMMENT ON VIEW outbox.deliveries IS
'Every delivery: one message for one handler, its state (pending, retrying, leased, delivered, dead, cancelled), attempts so far and of the present budget, when it is due if it is outstanding (for a leased one: until when), when it was settled if it is, the outcome of the last attempt, and when it expires if it is outstanding';

-- The message is there twice.  By its tenant, key or correlation id (k) the dead
-- ones can be found from either end, as in outbox.deliveries.  Its payload (m) is looked up for each of
-- them (OFFSET 0: and never joined the other way round), so that a function in the
-- reader's query sees no other payloads than these.
CREATE VIEW outbox.dead_letters AS
SELECT d.message_id, h.name AS handler, k.topic, d.code, d.http_status, d.error, d.attempts, k.staged_at, d.settled_at AS died_at,
	m.payload, m.headers, k.key, k.tenant, k.correlation_id, d.handler_id,
	m.content_type, m.payload_text, pg_catalog.octet_length(m.payload_bytes) AS payload_bytes_length,
	pg_catalog.encode(pg_catalog.sha256(m.payload_bytes), 'hex') AS payload_bytes_sha256
FROM outbox.receipt d
LEFT JOIN outbox.message k ON k.id OPERATOR(pg_catalog.=) d.message_id
LEFT JOIN LATERAL (
	SELECT x.payload, x.headers, x.content_type, x.payload_text, x.payload_bytes
	FROM outbox.message x WHERE x.id OPERATOR(pg_catalog.=) d.message_id OFFSET 0) AS m ON true
LEFT JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) d.handler_id
WHERE d.state + 0 = 4;
COMMENT ON VIEW outbox.dead_letters IS
'Deliveries that will not be tried again unless an operator requeues them: what it was, why it died (code, HTTP status, error or start of the response), when, after how many attempts';

CREATE FUNCTION outbox_internal.backlog(exact_outstanding int DEFAULT 20000, exact_dead int DEFAULT 5000, OUT handler_id int, OUT pending bigint, OUT due bigint, OUT scheduled bigint, OUT retrying bigint,
	OUT leased bigint, OUT oldest_due_at timestamptz, OUT dead bigint, OUT counts_are_exact boolean) RETURNS SETOF record
LANGUAGE c STABLE STRICT PARALLEL RESTRICTED ROWS 100 AS 'MODULE_PATHNAME', 'outbox_sql_backlog';
COMMENT ON FUNCTION outbox_internal.backlog IS 'Internal: what outbox.backlog shows of handlers that have something outstanding or dead; exact for so many of either, and beyond that for a fifth of it, of the handlers with the fewest';

CREATE VIEW outbox.backlog AS
SELECT h.name AS handler, CASE WHEN h.id OPERATOR(pg_catalog.=) 0 THEN 'none' WHEN h.url IS NULL THEN 'pull' ELSE 'push' END AS kind, s.paused_at IS NOT NULL AS paused,
	COALESCE(c.pending, 0) AS pending, COALESCE(c.due, 0) AS due, COALESCE(c.scheduled, 0) AS scheduled,
	COALESCE(c.retrying, 0) AS retrying, COALESCE(c.leased, 0) AS leased, COALESCE(c.dead, 0) AS dead,
	c.oldest_due_at, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) c.oldest_due_at AS oldest_due_age,
	pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) c.oldest_due_at) AS oldest_due_age_seconds, h.id AS handler_id,
	COALESCE(c.counts_are_exact, true) AS counts_are_exact
FROM outbox.handler h
LEFT JOIN outbox.handler_status s ON s.handler_id OPERATOR(pg_catalog.=) h.id
LEFT JOIN outbox_internal.backlog() c ON c.handler_id OPERATOR(pg_catalog.=) h.id
WHERE (h.dropped_at IS NULL AND h.id OPERATOR(pg_catalog.<>) 0) OR c.handler_id IS NOT NULL;
COMMENT ON VIEW outbox.backlog IS
'What each handler has to do: pending (never tried), of which scheduled for later; retrying; leased; due of all of these (an expired lease is due); the time and age of the oldest due one; and how many are dead. Takes as long whatever there is: while there are no more than 20000 outstanding and 5000 dead ones, every number is exact; beyond that, those of the handlers with the fewest are, up to a fifth of that in all, and the others are estimated from a sample (counts_are_exact is false), in sum to a few percent as a rule, of one among hundreds of them less surely. Rows that are gone and that vacuum has not removed count as if they were there, for what is exact. The oldest due one is the oldest, unless many such rows come before it, 20000 divided among the handlers that are estimated: then it may be older. Dropped handlers and the built-in one (kind none) are shown while they have outstanding or dead ones';

CREATE VIEW outbox.blocked_keys AS
WITH RECURSIVE waiting_key AS (
	-- From key to key in the index, however many deliveries each has.
	(SELECT d.handler_id, d.key FROM outbox.delivery d
	WHERE d.key IS NOT NULL
	ORDER BY d.handler_id, d.key LIMIT 1)
	UNION ALL
	SELECT n.handler_id, n.key
	FROM waiting_key k
	CROSS JOIN LATERAL (
		SELECT d.handler_id, d.key FROM outbox.delivery d
		WHERE d.key IS NOT NULL AND ROW(d.handler_id, d.key) OPERATOR(pg_catalog.>) ROW(k.handler_id, k.key)
		ORDER BY d.handler_id, d.key LIMIT 1) AS n
), known_key AS (
	SELECT k.handler_id, k.key FROM waiting_key k
	UNION
	SELECT h.id, r.key
	FROM outbox.handler h
	JOIN outbox.receipt r ON r.handler_id OPERATOR(pg_catalog.=) h.id
	WHERE h.on_dead OPERATOR(pg_catalog.=) 'block' AND r.key IS NOT NULL
), head AS (
	SELECT k.handler_id, k.key, b.message_id,
		CASE WHEN b.state OPERATOR(pg_catalog.=) 0 THEN 'scheduled' ELSE ('{pending,retrying,leased,delivered,dead,cancelled}'::text[])[b.state OPERATOR(pg_catalog.+) 1] END AS why
	FROM known_key k
	JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) k.handler_id
	CROSS JOIN LATERAL (
		-- Whichever of these comes first; what is leased goes before all.
		(SELECT d.message_id, d.state, d.due_at, 0 AS place FROM outbox.delivery d
		WHERE d.handler_id OPERATOR(pg_catalog.=) k.handler_id AND d.key OPERATOR(pg_catalog.=) k.key AND d.state OPERATOR(pg_catalog.=) 2
		ORDER BY d.message_id LIMIT 1)
		UNION ALL
		(SELECT d.message_id, d.state, d.due_at, 1 FROM outbox.delivery d
		WHERE d.handler_id OPERATOR(pg_catalog.=) k.handler_id AND d.key OPERATOR(pg_catalog.=) k.key
		ORDER BY d.message_id LIMIT 1)
		UNION ALL
		(SELECT r.message_id, r.state, NULL, 1 FROM outbox.receipt r
		WHERE r.handler_id OPERATOR(pg_catalog.=) k.handler_id AND r.key OPERATOR(pg_catalog.=) k.key
			AND h.on_dead OPERATOR(pg_catalog.=) 'block'
		ORDER BY r.message_id LIMIT 1)
		ORDER BY place, message_id LIMIT 1) AS b
	WHERE h.dropped_at IS NULL
		AND (b.state OPERATOR(pg_catalog.<>) 0 OR b.due_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp())
)
SELECT h.name AS handler, b.key, b.why,
	(SELECT pg_catalog.count(*) FROM outbox.delivery d
	WHERE d.handler_id OPERATOR(pg_catalog.=) b.handler_id AND d.key OPERATOR(pg_catalog.=) b.key
		AND d.message_id OPERATOR(pg_catalog.<>) b.message_id) AS waiting,
	m.staged_at AS waiting_since, pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) m.staged_at AS waiting_age,
	pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) m.staged_at) AS waiting_age_seconds,
	b.message_id AS head_id, d.attempts AS head_attempts, d.code AS head_code, d.error AS head_error,
	d.due_at AS next_due_at, d.settled_at AS died_at, b.handler_id
FROM head b
JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) b.handler_id
CROSS JOIN LATERAL (
	SELECT o.attempts, o.code, o.error, o.due_at, NULL::timestamptz AS settled_at FROM outbox.delivery o
	WHERE o.message_id OPERATOR(pg_catalog.=) b.message_id AND o.handler_id OPERATOR(pg_catalog.=) b.handler_id
	UNION ALL
	SELECT r.attempts, r.code, r.error, NULL, r.settled_at FROM outbox.receipt r
	WHERE r.message_id OPERATOR(pg_catalog.=) b.message_id AND r.handler_id OPERATOR(pg_catalog.=) b.handler_id) AS d
LEFT JOIN LATERAL (
	SELECT f.message_id FROM outbox.delivery f
	WHERE f.handler_id OPERATOR(pg_catalog.=) b.handler_id AND f.key OPERATOR(pg_catalog.=) b.key
		AND f.message_id OPERATOR(pg_catalog.<>) b.message_id
	ORDER BY f.message_id LIMIT 1) AS w ON true
LEFT JOIN outbox.message m ON m.id OPERATOR(pg_catalog.=) w.message_id
WHERE w.message_id IS NOT NULL OR b.why OPERATOR(pg_catalog.=) 'dead';
COMMENT ON VIEW outbox.blocked_keys IS
'Keys of ordered handlers whose next delivery cannot be tried now although others wait behind it: why (retrying, scheduled for later, leased, or dead where the handler blocks on that, with or without others behind), how many wait, since when the oldest of them does, the delivery that holds them up with its attempts and last outcome, when it is due next (a leased one: until when), and when it died.
A dead one waits for outbox.requeue() or outbox.cancel(), or for on_dead => skip. Keys that are merely busy are not shown. Costs a few index lookups for each key with outstanding deliveries';

CREATE VIEW outbox.attempts AS
SELECT a.message_id, h.name AS handler, m.topic, a.attempt,
	('{pending,retrying,leased,delivered,dead,cancelled}'::text[])[a.outcome OPERATOR(pg_catalog.+) 1] AS outcome, a.finished_at, a.duration,
	pg_catalog.date_part('epoch', a.duration) AS duration_seconds,
	a.code, a.http_status, a.error, m.tenant, a.handler_id, a.response_headers
FROM outbox.attempt a
LEFT JOIN outbox.message m ON m.id OPERATOR(pg_catalog.=) a.message_id
LEFT JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) a.handler_id;
COMMENT ON VIEW outbox.attempts IS
'Attempts that were logged (outbox.log_attempts: failures, all or none): when they ended, how long they took, the state they led the delivery to, and the headers of the answer that outbox.log_response_headers names. Of a delivery that is tried more than 200 times the first 100 and the last 100 are kept';

CREATE VIEW outbox.handler_stats AS
SELECT h.name AS handler, pg_catalog.count(*) AS deliveries,
	pg_catalog.count(*) FILTER (WHERE d.state OPERATOR(pg_catalog.=) 3) AS delivered,
	pg_catalog.count(*) FILTER (WHERE d.state OPERATOR(pg_catalog.=) 3 AND d.attempts OPERATOR(pg_catalog.=) 1) AS delivered_at_once,
	pg_catalog.count(*) FILTER (WHERE d.state OPERATOR(pg_catalog.<) 3) AS outstanding,
	pg_catalog.count(*) FILTER (WHERE d.state OPERATOR(pg_catalog.=) 4) AS dead,
	pg_catalog.count(*) FILTER (WHERE d.state OPERATOR(pg_catalog.=) 5) AS cancelled,
	pg_catalog.sum(d.attempts) AS attempts,
	pg_catalog.percentile_cont(0.5) WITHIN GROUP (ORDER BY d.settled_at OPERATOR(pg_catalog.-) m.staged_at) FILTER (WHERE d.state OPERATOR(pg_catalog.=) 3) AS latency_p50,
	pg_catalog.date_part('epoch', pg_catalog.percentile_cont(0.5) WITHIN GROUP (ORDER BY d.settled_at OPERATOR(pg_catalog.-) m.staged_at) FILTER (WHERE d.state OPERATOR(pg_catalog.=) 3)) AS latency_p50_seconds,
	pg_catalog.percentile_cont(0.99) WITHIN GROUP (ORDER BY d.settled_at OPERATOR(pg_catalog.-) m.staged_at) FILTER (WHERE d.state OPERATOR(pg_catalog.=) 3) AS latency_p99,
	pg_catalog.date_part('epoch', pg_catalog.percentile_cont(0.99) WITHIN GROUP (ORDER BY d.settled_at OPERATOR(pg_catalog.-) m.staged_at) FILTER (WHERE d.state OPERATOR(pg_catalog.=) 3)) AS latency_p99_seconds,
	pg_catalog.max(d.settled_at) FILTER (WHERE d.state OPERATOR(pg_catalog.=) 3) AS last_delivered_at, d.handler_id
FROM (
	-- The smallest id of a message staged an hour ago: its first 48 bits are milliseconds.  (With an upper
	-- bound as well, a planner without statistics takes the range for a small one.)
	SELECT (pg_catalog.lpad(pg_catalog.to_hex(pg_catalog.floor(EXTRACT(epoch FROM pg_catalog.now() OPERATOR(pg_catalog.-) '1 hour'::interval)
		OPERATOR(pg_catalog.*) 1000)::bigint), 12, '0') OPERATOR(pg_catalog.||) '70008000000000000000')::uuid AS id) AS hour_ago
JOIN outbox.message m ON m.id OPERATOR(pg_catalog.>=) hour_ago.id AND m.id OPERATOR(pg_catalog.<=) 'ffffffff-ffff-ffff-ffff-ffffffffffff'
JOIN (
	SELECT o.message_id, o.handler_id, o.state, o.attempts, NULL::timestamptz AS settled_at FROM outbox.delivery o
	UNION ALL
	SELECT r.message_id, r.handler_id, r.state, r.attempts, r.settled_at FROM outbox.receipt r) AS d
	ON d.message_id OPERATOR(pg_catalog.=) m.id AND d.message_id OPERATOR(pg_catalog.>=) hour_ago.id
LEFT JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) d.handler_id
GROUP BY d.handler_id, h.name;
COMMENT ON VIEW outbox.handler_stats IS
'How each handler did with the messages staged within the last hour: deliveries by state, attempts spent, time from staging to settlement (p50, p99). Reads that hour''s rows by the primary key, nothing older';

CREATE FUNCTION outbox_internal.dispatchers(OUT database name, OUT pid int, OUT state text, OUT in_flight int, OUT last_error text, OUT since timestamptz,
	OUT shortage text, OUT shortage_since timestamptz, OUT moved_at timestamptz)
RETURNS SETOF record
LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'outbox_sql_dispatchers';
COMMENT ON FUNCTION outbox_internal.dispatchers IS 'Internal: what outbox.dispatchers shows';

CREATE VIEW outbox.dispatchers AS SELECT * FROM outbox_internal.dispatchers();
COMMENT ON VIEW outbox.dispatchers IS 'One row for each database of this server that has an outbox: its dispatcher''s pid (NULL if none runs), state, requests in flight, last error and since when; and, while requests cannot leave this machine, what it is short of, what lifts that, and since when; and when its loop last came round, which is every ten seconds at least';

CREATE FUNCTION outbox_internal.unrouted(OUT topic text, OUT messages bigint, OUT refused bigint, OUT first_at timestamptz, OUT last_at timestamptz)
RETURNS SETOF record
LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED ROWS 32 AS 'MODULE_PATHNAME', 'outbox_sql_unrouted';
COMMENT ON FUNCTION outbox_internal.unrouted IS 'Internal: what outbox.unrouted shows';

CREATE VIEW outbox.unrouted AS SELECT * FROM outbox_internal.unrouted();
COMMENT ON VIEW outbox.unrouted IS
'Topics that no handler took when messages of them were staged, whatever outbox.unrouted was: how many messages were staged all the same, how many were refused (outbox.unrouted = error), the first and the last time. Counted in shared memory since the server started, so only where outbox is preloaded: a message when its transaction commits, a refused one at once. The 32 topics that were met last';

-- Numbers: what has happened so far.

CREATE FUNCTION outbox_internal.stat_handlers(OUT handler_id int, OUT stats_reset timestamptz,
	OUT staged bigint, OUT requeued bigint, OUT delivered bigint, OUT retried bigint, OUT dead bigint, OUT cancelled bigint, OUT expired bigint,
	OUT answers_2xx bigint, OUT answers_3xx bigint, OUT answers_4xx bigint, OUT answers_5xx bigint,
	OUT timeouts bigint, OUT connect_failures bigint, OUT tls_failures bigint, OUT blocked bigint, OUT other_failures bigint,
	OUT completed bigint, OUT refused bigint, OUT leases_expired bigint, OUT bytes_sent bigint,
	OUT requests bigint, OUT request_seconds float8, OUT request_p50_seconds float8, OUT request_p99_seconds float8,
	OUT deliveries_timed bigint, OUT delivery_seconds float8, OUT delivery_p50_seconds float8, OUT delivery_p99_seconds float8,
	OUT wake_ups bigint, OUT wake_up_seconds float8, OUT wake_up_p50_seconds float8, OUT wake_up_p99_seconds float8)
RETURNS SETOF record
LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED ROWS 100 AS 'MODULE_PATHNAME', 'outbox_sql_stat_handlers';
COMMENT ON FUNCTION outbox_internal.stat_handlers IS 'Internal: what outbox.stat_handlers shows of handlers that something has been counted of';

CREATE VIEW outbox.stat_handlers AS
SELECT h.name AS handler, CASE WHEN h.id OPERATOR(pg_catalog.=) 0 THEN 'none' WHEN h.url IS NULL THEN 'pull' ELSE 'push' END AS kind,
	COALESCE(c.staged, 0) AS staged, COALESCE(c.requeued, 0) AS requeued, COALESCE(c.delivered, 0) AS delivered, COALESCE(c.retried, 0) AS retried,
	COALESCE(c.dead, 0) AS dead, COALESCE(c.cancelled, 0) AS cancelled, COALESCE(c.expired, 0) AS expired,
	COALESCE(c.answers_2xx OPERATOR(pg_catalog.+) c.answers_3xx OPERATOR(pg_catalog.+) c.answers_4xx OPERATOR(pg_catalog.+) c.answers_5xx
		OPERATOR(pg_catalog.+) c.timeouts OPERATOR(pg_catalog.+) c.connect_failures OPERATOR(pg_catalog.+) c.tls_failures OPERATOR(pg_catalog.+) c.blocked
		OPERATOR(pg_catalog.+) c.other_failures OPERATOR(pg_catalog.+) c.completed OPERATOR(pg_catalog.+) c.refused OPERATOR(pg_catalog.+) c.leases_expired, 0) AS attempts,
	COALESCE(c.answers_2xx, 0) AS answers_2xx, COALESCE(c.answers_3xx, 0) AS answers_3xx, COALESCE(c.answers_4xx, 0) AS answers_4xx, COALESCE(c.answers_5xx, 0) AS answers_5xx,
	COALESCE(c.timeouts, 0) AS timeouts, COALESCE(c.connect_failures, 0) AS connect_failures, COALESCE(c.tls_failures, 0) AS tls_failures,
	COALESCE(c.blocked, 0) AS blocked, COALESCE(c.other_failures, 0) AS other_failures,
	COALESCE(c.completed, 0) AS completed, COALESCE(c.refused, 0) AS refused, COALESCE(c.leases_expired, 0) AS leases_expired,
	COALESCE(c.requests, 0) AS requests, COALESCE(c.bytes_sent, 0) AS bytes_sent,
	COALESCE(c.request_seconds, 0) AS request_seconds, c.request_p50_seconds, c.request_p99_seconds,
	COALESCE(c.deliveries_timed, 0) AS deliveries_timed, COALESCE(c.delivery_seconds, 0) AS delivery_seconds, c.delivery_p50_seconds, c.delivery_p99_seconds,
	COALESCE(c.wake_ups, 0) AS wake_ups, COALESCE(c.wake_up_seconds, 0) AS wake_up_seconds, c.wake_up_p50_seconds, c.wake_up_p99_seconds,
	c.stats_reset, h.id AS handler_id
FROM outbox.handler h
LEFT JOIN outbox_internal.stat_handlers() c ON c.handler_id OPERATOR(pg_catalog.=) h.id
WHERE h.dropped_at IS NULL AND (h.id OPERATOR(pg_catalog.<>) 0 OR c.handler_id IS NOT NULL);
COMMENT ON VIEW outbox.stat_handlers IS
'What has happened to each handler''s deliveries since stats_reset: how many were staged, settled and tried, what came back, and how long that took. Numbers only grow, are kept over a restart of the server but not over a crash, and are those of committed transactions; attempts count when they end, whatever is written of them. Counted in shared memory, so only where outbox is preloaded, and for outbox.max_stat_handlers handlers of the server: others show zeros, and outbox.stat_dispatcher.uncounted grows. A dropped handler''s numbers go with it. See outbox.stat_histograms for more than two quantiles, outbox.reset_stats() to begin anew, outbox.metrics() for Prometheus';

CREATE FUNCTION outbox_internal.stat_histograms(OUT handler_id int, OUT histogram text, OUT le_seconds float8, OUT n bigint, OUT cumulative bigint)
RETURNS SETOF record
LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED ROWS 1000 AS 'MODULE_PATHNAME', 'outbox_sql_stat_histograms';
COMMENT ON FUNCTION outbox_internal.stat_histograms IS 'Internal: what outbox.stat_histograms shows';

CREATE VIEW outbox.stat_histograms AS
SELECT h.name AS handler, c.histogram, c.le_seconds, c.n, c.cumulative, h.id AS handler_id
FROM outbox_internal.stat_histograms() c
JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) c.handler_id AND h.dropped_at IS NULL;
COMMENT ON VIEW outbox.stat_histograms IS
'How long things have taken since outbox.stat_handlers.stats_reset, sorted into buckets: 10, 20 and 50 microseconds, 100, 200, 500 and so on up to 1000 seconds, and what took longer. One row for each handler, histogram (request: from sending to the end of the answer; delivery: from the commit, or the time that it was scheduled for, to the answer that delivered it, of a message that took more than one attempt from its staging, and on a pull handler to its first claim; wake_up: from a commit to the dispatcher that hears of it) and bucket';

CREATE FUNCTION outbox_internal.stat_dispatcher(OUT stats_reset timestamptz, OUT starts bigint, OUT turns bigint, OUT busy_us bigint, OUT waiting_us bigint,
	OUT transactions bigint, OUT failed_transactions bigint, OUT deliveries_read bigint, OUT requests bigint, OUT connections_reused bigint, OUT unsent bigint,
	OUT settled bigint, OUT settled_by_settler bigint, OUT doorbell_overflows bigint, OUT uncounted bigint) RETURNS SETOF record
LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED ROWS 1 AS 'MODULE_PATHNAME', 'outbox_sql_stat_dispatcher';
COMMENT ON FUNCTION outbox_internal.stat_dispatcher IS 'Internal: what outbox.stat_dispatcher shows';

CREATE VIEW outbox.stat_dispatcher AS
SELECT c.starts, c.turns, c.busy_us::float8 OPERATOR(pg_catalog./) 1000000 AS busy_seconds, c.waiting_us::float8 OPERATOR(pg_catalog./) 1000000 AS waiting_seconds,
	c.transactions, c.failed_transactions, c.deliveries_read, c.requests, c.connections_reused, c.unsent, c.settled, c.settled_by_settler,
	c.doorbell_overflows, c.uncounted, c.stats_reset
FROM outbox_internal.stat_dispatcher() c;
COMMENT ON VIEW outbox.stat_dispatcher IS
'What this database''s dispatcher has done since stats_reset, over its restarts: one row, none before there was one or where outbox is not preloaded. Kept and reset as outbox.stat_handlers. busy_seconds against waiting_seconds says how near it is to what one process can do';

CREATE FUNCTION outbox_internal.reset_counters(handler_id int) RETURNS void
LANGUAGE c VOLATILE PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'outbox_sql_reset_counters';
COMMENT ON FUNCTION outbox_internal.reset_counters IS 'Internal: have the counters of a handler begin at zero; NULL: of all of this database, and its dispatcher''s';

CREATE FUNCTION outbox.reset_stats(handler text DEFAULT NULL, reason text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE
	only_handler int;
BEGIN
	IF handler IS NOT NULL THEN
		only_handler := outbox_internal.live_handler(handler);
	END IF;
	-- A standby has numbers of its own, and keeps no record.
	IF NOT pg_is_in_recovery() THEN
		PERFORM outbox_internal.note_action('reset_stats', jsonb_build_object('handler', handler), 1, reason);
	END IF;
	PERFORM outbox_internal.reset_counters(only_handler);
END $$;
COMMENT ON FUNCTION outbox.reset_stats IS
'Have the numbers of outbox.stat_handlers and outbox.stat_histograms begin at zero again, at once and whatever becomes of the transaction.
handler: of this one only; NULL: of all, and those of outbox.stat_dispatcher.
reason: kept in outbox.actions.
Errors: undefined_object if there is no such handler.';

CREATE FUNCTION outbox_internal.metric_list(OUT place int, OUT name text, OUT type text, OUT help text) RETURNS SETOF record
LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 40 SET search_path = pg_catalog, pg_temp AS $$
	SELECT row_number() OVER ()::int, 'outbox_' || m.name, m.type, m.help
	FROM (VALUES
		('build_info', 'gauge', 'Version of the library; always 1.'),
		('dispatcher_up', 'gauge', 'Whether the dispatcher of the database runs and may send.'),
		('requests_in_flight', 'gauge', 'Requests that are out.'),
		('backlog_deliveries', 'gauge', 'Outstanding deliveries by state.'),
		('backlog_due_deliveries', 'gauge', 'Outstanding deliveries that are due.'),
		('backlog_oldest_due_age_seconds', 'gauge', 'For how long the oldest due delivery has been due; 0 if none is.'),
		('dead_deliveries', 'gauge', 'Dead letters there are.'),
		('handler_paused', 'gauge', 'Whether the handler is paused.'),
		('handler_breaker_open', 'gauge', 'Whether the circuit breaker of the handler is not closed.'),
		('deliveries_staged_total', 'counter', 'Deliveries staged.'),
		('deliveries_requeued_total', 'counter', 'Settled deliveries brought back.'),
		('deliveries_delivered_total', 'counter', 'Deliveries that were delivered.'),
		('deliveries_retried_total', 'counter', 'Attempts after which the delivery was to be tried again.'),
		('deliveries_dead_total', 'counter', 'Deliveries that became dead letters.'),
		('deliveries_cancelled_total', 'counter', 'Deliveries that were cancelled.'),
		('deliveries_expired_total', 'counter', 'Deliveries that were given up for their age, which count as what they ended as, too.'),
		('attempts_total', 'counter', 'Attempts by what came back.'),
		('sent_bytes_total', 'counter', 'Bytes of the bodies of requests.'),
		('request_duration_seconds', 'histogram', 'Time from sending a request to its end.'),
		('delivery_duration_seconds', 'histogram', 'Time from a commit to the answer that delivered, or to the first claim.'),
		('wake_up_delay_seconds', 'histogram', 'Time from a commit to the dispatcher that hears of it.'),
		('dispatcher_starts_total', 'counter', 'Starts of the dispatcher.'),
		('dispatcher_turns_total', 'counter', 'Turns of the loop of the dispatcher.'),
		('dispatcher_busy_seconds_total', 'counter', 'Time that the dispatcher was busy.'),
		('dispatcher_waiting_seconds_total', 'counter', 'Time that the dispatcher waited.'),
		('dispatcher_transactions_total', 'counter', 'Transactions of the dispatcher that committed.'),
		('dispatcher_failed_transactions_total', 'counter', 'Transactions of the dispatcher that failed.'),
		('dispatcher_deliveries_read_total', 'counter', 'Deliveries read into the memory of the dispatcher.'),
		('dispatcher_requests_total', 'counter', 'Requests that have ended.'),
		('dispatcher_reused_connections_total', 'counter', 'Requests on a connection that had carried one before.'),
		('dispatcher_unsent_requests_total', 'counter', 'Requests that could not leave this machine, and were taken back.'),
		('dispatcher_settled_total', 'counter', 'Outcomes written, by which process.'),
		('dispatcher_doorbell_overflows_total', 'counter', 'Times that more was rung for than the doorbell holds.'),
		('dispatcher_uncounted_total', 'counter', 'Counts lost because outbox.max_stat_handlers handlers are counted already.')) m (name, type, help)
$$;
COMMENT ON FUNCTION outbox_internal.metric_list IS 'Internal: the metrics of outbox.metrics(), in their order';

CREATE FUNCTION outbox_internal.metric_label(name text, value text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT format('%s="%s"', name, replace(replace(replace(value, '\', '\\'), '"', '\"'), E'\n', '\n'))
$$;
COMMENT ON FUNCTION outbox_internal.metric_label IS 'Internal: a label with its value as Prometheus''s text format wants it';

-- A value of a metric, or one of the several that a histogram has, in its place among those of the same labels.
CREATE FUNCTION outbox_internal.metric_samples(OUT name text, OUT labels text, OUT place int, OUT suffix text, OUT last_label text, OUT value text) RETURNS SETOF record
LANGUAGE sql STABLE ROWS 1000 SET search_path = pg_catalog, pg_temp SET jit = off AS $$
	WITH db AS MATERIALIZED (
		SELECT outbox_internal.metric_label('database', current_database()) AS labels
	), handler AS MATERIALIZED (
		SELECT db.labels || ',' || outbox_internal.metric_label('handler', h.name) AS labels, h.id, h.url IS NOT NULL AS pushes
		-- Without statistics the planner takes one handler in two hundred for not dropped; of a CASE it believes every other.
		FROM db, outbox.handler h WHERE CASE WHEN h.dropped_at IS NULL THEN true END
	), histogram AS MATERIALIZED (
		-- Read once, so that the count of a histogram is that of its buckets.
		SELECT CASE h.histogram WHEN 'wake_up' THEN 'wake_up_delay_seconds' ELSE h.histogram || '_duration_seconds' END AS name,
			'le="' || CASE h.le_seconds WHEN 'Infinity' THEN '+Inf' ELSE h.le_seconds::text END || '"' AS le, h.*
		FROM outbox_internal.stat_histograms() h
	)
	SELECT 'build_info', db.labels, 0, '', outbox_internal.metric_label('version', outbox_internal.library()), '1' FROM db
	UNION ALL
	SELECT v.name, db.labels, 0, '', NULL, v.value
	FROM db CROSS JOIN (SELECT) one LEFT JOIN outbox_internal.dispatchers() d ON d.database = current_database()
	CROSS JOIN LATERAL (VALUES
		('dispatcher_up', CASE WHEN d.state = 'running' THEN '1' ELSE '0' END),
		('requests_in_flight', coalesce(d.in_flight, 0)::text)) v (name, value)
	UNION ALL
	SELECT v.name, handler.labels, v.place, '', v.last_label, v.value
	FROM handler JOIN outbox.backlog b ON b.handler_id = handler.id
	CROSS JOIN LATERAL (VALUES
		('backlog_deliveries', 1, 'state="pending"', b.pending::text),
		('backlog_deliveries', 2, 'state="retrying"', b.retrying::text),
		('backlog_deliveries', 3, 'state="leased"', b.leased::text),
		('backlog_due_deliveries', 0, NULL, b.due::text),
		('backlog_oldest_due_age_seconds', 0, NULL, coalesce(b.oldest_due_age_seconds, 0)::text),
		('dead_deliveries', 0, NULL, b.dead::text),
		('handler_paused', 0, NULL, b.paused::int::text)) v (name, place, last_label, value)
	UNION ALL
	SELECT 'handler_breaker_open', handler.labels, 0, '', NULL, (coalesce(s.breaker, 'closed') <> 'closed')::int::text
	FROM handler LEFT JOIN outbox.handler_status s ON s.handler_id = handler.id WHERE handler.pushes
	UNION ALL
	SELECT v.name, handler.labels, v.place, '', v.last_label, v.value::text
	FROM handler JOIN outbox.stat_handlers s ON s.handler_id = handler.id
	CROSS JOIN LATERAL (VALUES
		('deliveries_staged_total', 0, NULL, s.staged),
		('deliveries_requeued_total', 0, NULL, s.requeued),
		('deliveries_delivered_total', 0, NULL, s.delivered),
		('deliveries_retried_total', 0, NULL, s.retried),
		('deliveries_dead_total', 0, NULL, s.dead),
		('deliveries_cancelled_total', 0, NULL, s.cancelled),
		('deliveries_expired_total', 0, NULL, s.expired),
		('attempts_total', 1, 'class="2xx"', s.answers_2xx),
		('attempts_total', 2, 'class="3xx"', s.answers_3xx),
		('attempts_total', 3, 'class="4xx"', s.answers_4xx),
		('attempts_total', 4, 'class="5xx"', s.answers_5xx),
		('attempts_total', 5, 'class="timeout"', s.timeouts),
		('attempts_total', 6, 'class="connect"', s.connect_failures),
		('attempts_total', 7, 'class="tls"', s.tls_failures),
		('attempts_total', 8, 'class="blocked"', s.blocked),
		('attempts_total', 9, 'class="other"', s.other_failures),
		('attempts_total', 11, 'class="completed"', s.completed),
		('attempts_total', 12, 'class="refused"', s.refused),
		('attempts_total', 13, 'class="lease_expired"', s.leases_expired),
		('sent_bytes_total', 0, NULL, s.bytes_sent)) v (name, place, last_label, value)
	WHERE CASE WHEN handler.pushes THEN v.place <= 10 ELSE v.name <> 'sent_bytes_total' AND (v.place = 0 OR v.place > 10) END
	UNION ALL
	SELECT h.name, handler.labels, row_number() OVER (PARTITION BY h.handler_id, h.histogram ORDER BY h.le_seconds)::int, '_bucket',
		h.le, h.cumulative::text
	FROM handler JOIN histogram h ON h.handler_id = handler.id
	WHERE handler.pushes OR h.histogram = 'delivery'
	UNION ALL
	SELECT h.name, handler.labels, 1002, '_count', NULL, h.cumulative::text
	FROM handler JOIN histogram h ON h.handler_id = handler.id
	WHERE h.le_seconds = 'Infinity' AND (handler.pushes OR h.histogram = 'delivery')
	UNION ALL
	SELECT v.name, handler.labels, v.place, v.suffix, NULL, v.value
	FROM handler JOIN outbox_internal.stat_handlers() s ON s.handler_id = handler.id
	CROSS JOIN LATERAL (VALUES
		('request_duration_seconds', 1001, '_sum', s.request_seconds::text),
		('delivery_duration_seconds', 1001, '_sum', s.delivery_seconds::text),
		('wake_up_delay_seconds', 1001, '_sum', s.wake_up_seconds::text)) v (name, place, suffix, value)
	WHERE handler.pushes OR v.name = 'delivery_duration_seconds'
	UNION ALL
	SELECT v.name, db.labels, v.place, '', v.last_label, v.value
	FROM db, outbox.stat_dispatcher s
	CROSS JOIN LATERAL (VALUES
		('dispatcher_starts_total', 0, NULL, s.starts::text),
		('dispatcher_turns_total', 0, NULL, s.turns::text),
		('dispatcher_busy_seconds_total', 0, NULL, s.busy_seconds::text),
		('dispatcher_waiting_seconds_total', 0, NULL, s.waiting_seconds::text),
		('dispatcher_transactions_total', 0, NULL, s.transactions::text),
		('dispatcher_failed_transactions_total', 0, NULL, s.failed_transactions::text),
		('dispatcher_deliveries_read_total', 0, NULL, s.deliveries_read::text),
		('dispatcher_requests_total', 0, NULL, s.requests::text),
		('dispatcher_reused_connections_total', 0, NULL, s.connections_reused::text),
		('dispatcher_unsent_requests_total', 0, NULL, s.unsent::text),
		('dispatcher_settled_total', 1, 'by="dispatcher"', s.settled::text),
		('dispatcher_settled_total', 2, 'by="settler"', s.settled_by_settler::text),
		('dispatcher_doorbell_overflows_total', 0, NULL, s.doorbell_overflows::text),
		('dispatcher_uncounted_total', 0, NULL, s.uncounted::text)) v (name, place, last_label, value)
$$;
COMMENT ON FUNCTION outbox_internal.metric_samples IS 'Internal: the values of outbox.metrics()';

CREATE FUNCTION outbox.metrics() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 SET jit = off AS $$
	SELECT string_agg(m.text, '' ORDER BY m.place)
	FROM (
		SELECT l.place, concat('# HELP ', l.name, ' ', l.help, E'\n# TYPE ', l.name, ' ', l.type, E'\n',
			string_agg(l.name || s.suffix || '{' || s.labels || coalesce(',' || s.last_label, '') || '} ' || s.value || E'\n', '' ORDER BY s.labels COLLATE "C", s.place)) AS text
		FROM outbox_internal.metric_list() l
		JOIN outbox_internal.metric_samples() s ON 'outbox_' || s.name = l.name
		GROUP BY l.place, l.name, l.type, l.help) m
$$;
COMMENT ON FUNCTION outbox.metrics IS
'The numbers of outbox.stat_handlers, outbox.stat_histograms, outbox.stat_dispatcher and outbox.backlog in Prometheus''s text format, with HELP and TYPE, labelled with database and handler: for an exporter, a textfile collector or psql -At. Times are in seconds, sizes in bytes.
Reads what outbox.backlog does, which estimates large numbers, and shared memory.';

CREATE FUNCTION outbox_internal.aside(OUT message_id uuid, OUT handler_id int, OUT until timestamptz) RETURNS SETOF record
LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED ROWS 1 AS 'MODULE_PATHNAME', 'outbox_sql_aside';
COMMENT ON FUNCTION outbox_internal.aside IS 'Internal: up to 16 deliveries of this database whose outcomes are in but could not be written, and when that is tried again';

CREATE FUNCTION outbox_internal.sender(OUT state text, OUT problem text, OUT why_copy text) RETURNS record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
	SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE coalesce(d.state, 'stopped') END,
		coalesce(d.last_error, d.shortage), outbox_internal.why_copy()
	FROM (SELECT) one LEFT JOIN outbox_internal.dispatchers() d ON d.database = current_database()
$$;
COMMENT ON FUNCTION outbox_internal.sender IS 'Internal: state of this database''s dispatcher and what it cannot do, as outbox.dispatchers shows them; why the database counts as a copy, NULL if it does not';

CREATE VIEW outbox.actions AS
SELECT a.id AS action_id, a.acted_at, a.action, a.login, a.role, a.message_id, a.arguments, a.affected, a.reason
FROM outbox.action a CROSS JOIN (SELECT) AS nothing;
COMMENT ON VIEW outbox.actions IS
'What operators have done: a row for each call of a function that changed something, for as long as outbox.action_retention says. Found by an index: action_id, message_id, and ->> ''tenant'' of the arguments';

CREATE FUNCTION outbox_internal.retention(OUT state text, OUT next_at timestamptz, OUT round_began_at timestamptz, OUT completed_at timestamptz,
	OUT held_until timestamptz, OUT behind interval, OUT messages bigint, OUT deliveries bigint, OUT attempts bigint, OUT inbox bigint, OUT actions bigint,
	OUT counted_since timestamptz, OUT last_error text, OUT last_error_at timestamptz) RETURNS record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
	clock timestamptz := clock_timestamp();
	r outbox_internal.retention_rules := outbox_internal.get_retention_rules(clock);
	step interval;
	first uuid;
BEGIN
	SELECT t.next_at, t.began_at, t.completed_at, t.held_until, t.messages, t.deliveries, t.attempts, t.inbox, t.actions, t.counted_since, t.last_error, t.last_error_at
	INTO next_at, round_began_at, completed_at, held_until, messages, deliveries, attempts, inbox, actions, counted_since, last_error, last_error_at
	FROM outbox.retention_status t WHERE t.home = outbox_internal.home() LIMIT 1;
	SELECT CASE
		WHEN g.state = 'standby' THEN g.state
		WHEN g.why_copy IS NOT NULL THEN 'copy'
		WHEN NOT q.auto THEN 'off'
		WHEN g.state <> 'running' THEN 'no dispatcher'
		WHEN held_until > clock THEN 'clock'
		WHEN round_began_at IS NOT NULL THEN 'working'
		ELSE 'idle' END INTO state
	FROM outbox_internal.sender() g, outbox_internal.retention_settings() q;
	IF state <> 'clock' THEN
		held_until := NULL;
	END IF;
	behind := '0';
	FOREACH step IN ARRAY r.kept_for LOOP
		SELECT m.id INTO first FROM outbox.message m
		WHERE m.id > coalesce((SELECT p.reached FROM outbox.prune_position p WHERE p.kept_for = step LIMIT 1), '00000000-0000-0000-0000-000000000000')
		ORDER BY m.id LIMIT 1;
		behind := greatest(behind, clock - step - outbox_internal.id_time(first));
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.retention IS 'Internal: what outbox.retention shows';

CREATE VIEW outbox.retention AS
SELECT r.state, r.next_at, r.round_began_at, r.completed_at, r.held_until, r.behind, pg_catalog.date_part('epoch', r.behind) AS behind_seconds,
	r.messages, r.deliveries, r.attempts, r.inbox, r.actions, r.counted_since, r.last_error, r.last_error_at
FROM outbox_internal.retention() r;
COMMENT ON VIEW outbox.retention IS
'What the server''s own retention has done, and what waits for it: one row. state: idle (between two rounds), working, clock (it went forward by more than it is believed, see held_until), off (outbox.auto_prune), copy (until outbox.adopt()), no dispatcher (of this database that is running: call outbox.prune()), standby. When the next round begins, since when one is going on, when the last one was completed; how long ago the first message that it has not looked at was to go (behind: under load it waits); what it has removed in all, since when; and what it has failed with, until a round is completed';

-- What keeps all of a handler's messages waiting: the outermost reason, since
-- to lift another one is of no use before that.
CREATE VIEW outbox_internal.holds AS
SELECT h.id AS handler_id, w.waiting_for,
	CASE w.waiting_for WHEN 'breaker' THEN s.breaker_until WHEN 'retry_after' THEN s.held_until END AS waiting_until,
	CASE w.waiting_for
		WHEN 'copy' THEN 'outbox.adopt(), if this database is to send'
		WHEN 'disabled' THEN 'outbox.enabled = on, and a reload'
		WHEN 'dispatcher' THEN CASE g.state
			WHEN 'standby' THEN 'promotion of this server'
			WHEN 'not preloaded' THEN 'shared_preload_libraries = ''outbox'', and a restart'
			WHEN 'version mismatch' THEN 'ALTER EXTENSION outbox UPDATE'
			WHEN 'locked out' THEN 'the end of the command that needs the database to itself'
			ELSE 'its start, which is tried again and again; the server''s log says more' END
		WHEN 'paused' THEN 'outbox.resume_handler()'
		WHEN 'breaker' THEN 'a probe that succeeds, outbox.retry_now(), outbox.resume_handler(), or another url'
		WHEN 'retry_after' THEN 'outbox.retry_now(), outbox.resume_handler(), or another url'
		WHEN 'throttled' THEN 'answers other than 429 and 503, outbox.resume_handler(), or another url'
		WHEN 'rate_limit' THEN 'outbox.alter_handler(), option rate_limit' END AS lifted_by,
	CASE w.waiting_for
		WHEN 'copy' THEN g.why_copy
		WHEN 'dispatcher' THEN pg_catalog.concat_ws(': ', g.state, g.problem)
		WHEN 'paused' THEN pg_catalog.concat_ws(': ', s.paused_by, s.paused_reason)
		WHEN 'breaker' THEN s.breaker_reason
		WHEN 'throttled' THEN pg_catalog.concat('at ', pg_catalog.round(s.throttled_to::numeric, 1), ' requests a second')
		WHEN 'rate_limit' THEN pg_catalog.concat('at ', h.rate_limit, ' requests a second') END AS detail,
	CASE WHEN h.url IS NOT NULL THEN g.problem END AS problem
FROM outbox.handler h
LEFT JOIN outbox.handler_status s ON s.handler_id OPERATOR(pg_catalog.=) h.id
CROSS JOIN outbox_internal.sender() g
CROSS JOIN LATERAL (SELECT CASE
	WHEN g.why_copy IS NOT NULL THEN 'copy'
	WHEN h.url IS NOT NULL AND g.state OPERATOR(pg_catalog.=) 'disabled' THEN 'disabled'
	WHEN h.url IS NOT NULL AND g.state OPERATOR(pg_catalog.<>) 'running' THEN 'dispatcher'
	WHEN s.paused_at IS NOT NULL THEN 'paused'
	WHEN h.url IS NULL THEN NULL
	WHEN s.breaker OPERATOR(pg_catalog.<>) 'closed' THEN 'breaker'
	WHEN s.held_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'retry_after'
	WHEN s.throttled_to IS NULL AND h.rate_limit IS NULL THEN NULL
	-- The time as a query by itself is a condition of the index: see prune_expired().
	WHEN (SELECT true FROM outbox.delivery d WHERE d.handler_id OPERATOR(pg_catalog.=) h.id AND d.due_at OPERATOR(pg_catalog.<=) (SELECT pg_catalog.clock_timestamp())
		ORDER BY d.due_at LIMIT 1) THEN CASE WHEN s.throttled_to IS NOT NULL THEN 'throttled' ELSE 'rate_limit' END
	END AS waiting_for) w
-- A CASE, because without statistics the planner takes the plain condition for a rare one, and joins all with all.
WHERE CASE WHEN h.dropped_at IS NULL THEN h.id OPERATOR(pg_catalog.<>) 0 END;
COMMENT ON VIEW outbox_internal.holds IS 'Internal: what keeps all of a handler''s messages waiting, if anything does';

CREATE VIEW outbox.waiting AS
SELECT d.message_id, h.name AS handler, m.topic, ('{pending,retrying,leased}'::text[])[d.state OPERATOR(pg_catalog.+) 1] AS state, w.waiting_for,
	CASE WHEN w.waiting_for IN ('scheduled', 'backoff', 'lease') THEN d.due_at WHEN w.waiting_for OPERATOR(pg_catalog.=) 'aside' THEN a.until WHEN w.waiting_for OPERATOR(pg_catalog.=) g.waiting_for THEN g.waiting_until END AS waiting_until,
	CASE w.waiting_for
		WHEN 'on_settle' THEN 'the end of its on_settle function, or outbox.cancel()'
		WHEN 'lease' THEN 'its consumer, or the end of the lease'
		WHEN 'scheduled' THEN 'outbox.retry_now()'
		WHEN 'backoff' THEN 'outbox.retry_now()'
		WHEN 'order' THEN 'the end of the message before it, see outbox.blocked_keys'
		WHEN 'aside' THEN 'whatever detail says: it is tried again by itself, and not sent again'
		WHEN 'consumer' THEN 'outbox.claim()'
		WHEN 'turn' THEN 'itself: it is sent, or among the next'
		ELSE g.lifted_by END AS lifted_by,
	CASE
		WHEN w.waiting_for OPERATOR(pg_catalog.=) 'backoff' THEN pg_catalog.concat_ws(': ', d.code, d.error)
		WHEN w.waiting_for OPERATOR(pg_catalog.=) 'order' THEN pg_catalog.concat('message ', b.message_id)
		WHEN w.waiting_for OPERATOR(pg_catalog.=) 'consumer' AND d.min_version OPERATOR(pg_catalog.>) 0 THEN pg_catalog.concat('with version ', d.min_version, ' or more')
		WHEN w.waiting_for IN ('on_settle', 'aside', 'turn') THEN g.problem
		WHEN w.waiting_for OPERATOR(pg_catalog.=) g.waiting_for THEN g.detail END AS detail,
	d.due_at, d.attempts, m.key, m.tenant, m.correlation_id, d.handler_id, d.expires_at
FROM outbox.delivery d
JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) d.handler_id
JOIN outbox_internal.holds g ON g.handler_id OPERATOR(pg_catalog.=) d.handler_id
LEFT JOIN outbox_internal.aside() a ON a.message_id OPERATOR(pg_catalog.=) d.message_id AND a.handler_id OPERATOR(pg_catalog.=) d.handler_id
LEFT JOIN outbox.message m ON m.id OPERATOR(pg_catalog.=) d.message_id
-- Of an ordered handler: what has to be settled before it.
CROSS JOIN LATERAL (SELECT CASE WHEN d.key IS NOT NULL THEN COALESCE(
	(SELECT l.message_id FROM outbox.delivery l
	WHERE l.handler_id OPERATOR(pg_catalog.=) d.handler_id AND l.key OPERATOR(pg_catalog.=) d.key AND l.state OPERATOR(pg_catalog.=) 2
		AND l.message_id OPERATOR(pg_catalog.<>) d.message_id
	ORDER BY l.message_id LIMIT 1),
	(SELECT r.message_id FROM outbox.receipt r
	WHERE r.handler_id OPERATOR(pg_catalog.=) d.handler_id AND r.key OPERATOR(pg_catalog.=) d.key AND r.message_id OPERATOR(pg_catalog.<) d.message_id
		AND h.on_dead OPERATOR(pg_catalog.=) 'block'
	ORDER BY r.message_id LIMIT 1),
	(SELECT f.message_id FROM outbox.delivery f
	WHERE f.handler_id OPERATOR(pg_catalog.=) d.handler_id AND f.key OPERATOR(pg_catalog.=) d.key AND f.message_id OPERATOR(pg_catalog.<) d.message_id
	ORDER BY f.message_id LIMIT 1)) END AS message_id) b
CROSS JOIN LATERAL (SELECT CASE
	WHEN d.state OPERATOR(pg_catalog.=) 2 AND h.url IS NOT NULL THEN 'on_settle'
	WHEN d.state OPERATOR(pg_catalog.=) 2 AND d.due_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'lease'
	WHEN g.waiting_for IN ('copy', 'disabled', 'dispatcher', 'paused') THEN g.waiting_for
	WHEN a.message_id IS NOT NULL THEN 'aside'
	WHEN d.due_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN CASE WHEN d.state OPERATOR(pg_catalog.=) 0 THEN 'scheduled' ELSE 'backoff' END
	WHEN b.message_id IS NOT NULL THEN 'order'
	WHEN g.waiting_for IS NOT NULL THEN g.waiting_for
	WHEN h.url IS NULL THEN 'consumer'
	ELSE 'turn' END AS waiting_for) w;
COMMENT ON VIEW outbox.waiting IS
'Why each outstanding delivery is not delivered yet, in one column: waiting_for, the outermost reason where there are several; until when, where that is known; what lifts it; and what more is known (detail).
Of the whole handler: copy (this database is one), disabled (outbox.enabled), dispatcher (there is none that sends: detail says why), paused, breaker (the circuit breaker is open: until the next probe), retry_after (the receiver asked for time), throttled (it refuses for load), rate_limit.
Of the delivery: scheduled (deliver_at or delay), backoff (until its next attempt), order (a message of its key comes first: detail says which), lease (a consumer has it), aside (its answer is in, but could not be written), on_settle (its answer is in, and its function has not ended), consumer (nobody has claimed it; detail has its min_version), turn (nothing holds it: it is being sent, or among the next; detail says what the dispatcher cannot do, if anything).
outbox.handlers has the same columns for each handler';

COMMENT ON COLUMN outbox.waiting.message_id IS 'The message';
COMMENT ON COLUMN outbox.waiting.handler IS 'Name of the handler it is to be delivered to';
COMMENT ON COLUMN outbox.waiting.topic IS 'Its topic';
COMMENT ON COLUMN outbox.waiting.state IS 'pending, retrying or leased';
COMMENT ON COLUMN outbox.waiting.waiting_for IS 'What keeps it from being delivered, the outermost reason where there are several';
COMMENT ON COLUMN outbox.waiting.waiting_until IS 'Until when, where that is known';
COMMENT ON COLUMN outbox.waiting.lifted_by IS 'What lifts it';
COMMENT ON COLUMN outbox.waiting.detail IS 'What more is known: who paused and why, the last error, the message before it';
COMMENT ON COLUMN outbox.waiting.due_at IS 'When it is due; of a leased one, until when';
COMMENT ON COLUMN outbox.waiting.attempts IS 'Attempts made';
COMMENT ON COLUMN outbox.waiting.key IS 'What it is about';
COMMENT ON COLUMN outbox.waiting.tenant IS 'Whose it is';
COMMENT ON COLUMN outbox.waiting.correlation_id IS 'What it belongs to';
COMMENT ON COLUMN outbox.waiting.handler_id IS 'Id of the handler';
COMMENT ON COLUMN outbox.waiting.expires_at IS 'When it is cancelled with code expired if it has not gone out; NULL: never';
COMMENT ON COLUMN outbox.unrouted.topic IS 'The topic';
COMMENT ON COLUMN outbox.unrouted.messages IS 'Messages of it that were staged although no handler took them';
COMMENT ON COLUMN outbox.unrouted.refused IS 'Calls that were refused because no handler took it';
COMMENT ON COLUMN outbox.unrouted.first_at IS 'When the first of these was met';
COMMENT ON COLUMN outbox.unrouted.last_at IS 'When the last was';

-- Those that say how deliveries go come first, the other options as they are declared.
DO $do$
DECLARE
	options text;
BEGIN
	SELECT pg_catalog.string_agg(COALESCE(o.shown, 'h.' || pg_catalog.quote_ident(o.name)), ', ')
	INTO options FROM outbox_internal.options() o WHERE NOT o.name OPERATOR(pg_catalog.=) ANY ('{ordered,on_dead,on_settle}');
	EXECUTE pg_catalog.format($sql$
CREATE VIEW outbox.handlers AS
SELECT h.name AS handler, CASE WHEN h.url IS NULL THEN 'pull' ELSE 'push' END AS kind, h.topics, h.url, h.ordered, h.on_dead, h.on_settle,
	s.paused_at, s.paused_by, s.paused_reason,
	CASE WHEN h.url IS NOT NULL THEN COALESCE(s.breaker, 'closed') END AS breaker, s.breaker_reason, s.breaker_until, s.failing_since,
	s.recent_attempts, s.recent_failures,
	CASE WHEN s.recent_attempts OPERATOR(pg_catalog.>) 0
		THEN pg_catalog.round(s.recent_failures::numeric OPERATOR(pg_catalog./) s.recent_attempts, 2) END AS failure_share, s.throttled_to, s.held_until, o.waiting_for, o.waiting_until, o.lifted_by,
	g.gives_up_after,
	pg_catalog.date_part('epoch', g.gives_up_after) AS gives_up_after_seconds, h.creator, h.created_at, h.id AS handler_id, %s
FROM outbox.handler h LEFT JOIN outbox.handler_status s ON s.handler_id OPERATOR(pg_catalog.=) h.id
LEFT JOIN outbox_internal.holds o ON o.handler_id OPERATOR(pg_catalog.=) h.id
-- The waits between the attempts, as src/policy/outcome.c has them, each without half of its random share.
CROSS JOIN LATERAL (SELECT h.max_attempts::float8 OPERATOR(pg_catalog.-) 1 AS waits,
	pg_catalog.date_part('epoch', h.backoff_base) AS first, pg_catalog.date_part('epoch', h.backoff_max) AS longest) w
CROSS JOIN LATERAL (SELECT CASE WHEN w.first OPERATOR(pg_catalog.<) w.longest
	THEN LEAST(w.waits, pg_catalog.ceil(pg_catalog.ln(w.longest OPERATOR(pg_catalog./) w.first) OPERATOR(pg_catalog./) pg_catalog.ln(2::float8))) ELSE 0 END AS doubling) d
CROSS JOIN LATERAL (SELECT CASE WHEN h.backoff IS NULL
	THEN (w.first OPERATOR(pg_catalog.*) (pg_catalog.power(2::float8, d.doubling) OPERATOR(pg_catalog.-) 1))
		OPERATOR(pg_catalog.+) (w.longest OPERATOR(pg_catalog.*) (w.waits OPERATOR(pg_catalog.-) d.doubling))
	ELSE (SELECT COALESCE(pg_catalog.sum(pg_catalog.date_part('epoch', b.step) OPERATOR(pg_catalog.*)
			CASE WHEN b.n OPERATOR(pg_catalog.<) pg_catalog.cardinality(h.backoff) THEN 1 ELSE w.waits OPERATOR(pg_catalog.-) b.n::float8 OPERATOR(pg_catalog.+) 1 END), 0)
		FROM pg_catalog.unnest(h.backoff) WITH ORDINALITY AS b (step, n) WHERE b.n::float8 OPERATOR(pg_catalog.<=) w.waits) END
	OPERATOR(pg_catalog.*) (1 OPERATOR(pg_catalog.-) (h.jitter OPERATOR(pg_catalog./) 2)) AS seconds) t
CROSS JOIN LATERAL (SELECT pg_catalog.justify_hours(pg_catalog.make_interval(secs =>
	CASE WHEN t.seconds OPERATOR(pg_catalog.<) 60 THEN t.seconds ELSE pg_catalog.round(t.seconds) END)) AS gives_up_after) g
WHERE h.dropped_at IS NULL AND h.id OPERATOR(pg_catalog.<>) 0
	$sql$, options);
END $do$;
COMMENT ON VIEW outbox.handlers IS 'Handlers that are there, push (with a URL) and pull: their options, pause, circuit breaker, the requests a second to which one is slowed down because its receiver answers 429 or 503, and how long after its first attempt a message is given up about (its waits together, if it keeps failing while others do not). No secrets: only whether there is one, and the names of the headers';
COMMENT ON COLUMN outbox.handlers.failing_since IS 'Since when no attempt has succeeded; NULL if the last one did';
COMMENT ON COLUMN outbox.handlers.recent_attempts IS 'Attempts within the last five minutes, as last written';
COMMENT ON COLUMN outbox.handlers.recent_failures IS 'How many of these did not deliver';
COMMENT ON COLUMN outbox.handlers.failure_share IS 'Their share; NULL without attempts';
COMMENT ON COLUMN outbox.handlers.held_until IS 'Until when the receiver asked to be left alone (Retry-After); it has passed if it lies in the past';
COMMENT ON COLUMN outbox.handlers.waiting_for IS 'What keeps all of its messages waiting, as in outbox.waiting; NULL for nothing';
COMMENT ON COLUMN outbox.handlers.waiting_until IS 'Until when, where that is known';
COMMENT ON COLUMN outbox.handlers.lifted_by IS 'What lifts it';
COMMENT ON COLUMN outbox.handlers.gives_up_after IS 'How long after its first attempt a message that keeps failing is dead, about: the waits between its attempts without half of their jitter';

-- The catalog's own triggers say what is watched; of a table's it is one that speaks for all.
CREATE VIEW outbox.watched AS
SELECT w.relation, w.options OPERATOR(pg_catalog.->>) 'model' AS model, w.options OPERATOR(pg_catalog.->>) 'prefix' AS prefix,
	ARRAY(SELECT pg_catalog.jsonb_array_elements_text(w.options OPERATOR(pg_catalog.->) 'operations')) AS operations,
	COALESCE(w.options OPERATOR(pg_catalog.->>) 'truncate',
		CASE WHEN (w.options OPERATOR(pg_catalog.->) 'operations') OPERATOR(pg_catalog.?) 'delete' THEN 'announce' ELSE 'ignore' END) AS truncate,
	ARRAY(SELECT pg_catalog.jsonb_array_elements_text(w.options OPERATOR(pg_catalog.->) 'record_id')) AS record_id,
	w.options OPERATOR(pg_catalog.->>) 'tenant' AS tenant, w.options OPERATOR(pg_catalog.->>) 'key' AS key,
	ARRAY(SELECT pg_catalog.jsonb_array_elements_text(w.options OPERATOR(pg_catalog.->) 'include')) AS include,
	ARRAY(SELECT pg_catalog.jsonb_array_elements_text(w.options OPERATOR(pg_catalog.->) 'ignore')) AS ignore,
	w.options OPERATOR(pg_catalog.->>) 'soft_delete' AS soft_delete, w.options OPERATOR(pg_catalog.->) 'actor' AS actor,
	w.options OPERATOR(pg_catalog.->) 'context' AS context, w.options OPERATOR(pg_catalog.->>) 'condition' AS condition,
	w.owner, w.fires
FROM (
	SELECT DISTINCT ON (t.tgrelid) t.tgrelid::regclass AS relation, pg_catalog.pg_get_userbyid(c.relowner) AS owner,
		CASE t.tgenabled WHEN 'O' THEN 'origin' WHEN 'A' THEN 'always' WHEN 'R' THEN 'replica' ELSE 'disabled' END AS fires,
		pg_catalog.convert_from(pg_catalog.substr(t.tgargs, 1, pg_catalog.length(t.tgargs) OPERATOR(pg_catalog.-) 1), pg_catalog.getdatabaseencoding())::jsonb AS options
	FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.tgrelid
	WHERE t.tgfoid OPERATOR(pg_catalog.=) 'outbox.announce()'::regprocedure AND t.tgparentid OPERATOR(pg_catalog.=) 0 AND t.tgnargs OPERATOR(pg_catalog.=) 1
	ORDER BY t.tgrelid, t.tgname) AS w;
COMMENT ON VIEW outbox.watched IS
'Tables whose changes are announced, with the options of outbox.watch() as they were given or taken, their owner, and for which sessions the triggers fire';
COMMENT ON COLUMN outbox.watched.relation IS 'The table; of a partitioned one the top';
COMMENT ON COLUMN outbox.watched.model IS 'What payloads call it';
COMMENT ON COLUMN outbox.watched.prefix IS 'Of the topics: prefix.created, prefix.updated, prefix.deleted, prefix.truncated';
COMMENT ON COLUMN outbox.watched.operations IS 'What is announced: insert, update, delete';
COMMENT ON COLUMN outbox.watched.truncate IS 'What becomes of a TRUNCATE: announce, refuse, ignore';
COMMENT ON COLUMN outbox.watched.record_id IS 'Columns that tell the rows apart';
COMMENT ON COLUMN outbox.watched.tenant IS 'The column with the tenant of the message; NULL: none';
COMMENT ON COLUMN outbox.watched.key IS 'The column with its key; NULL: the record is';
COMMENT ON COLUMN outbox.watched.include IS 'Columns whose values go into the payload';
COMMENT ON COLUMN outbox.watched.ignore IS 'Columns whose changes do not count';
COMMENT ON COLUMN outbox.watched.soft_delete IS 'The column that is set in rows that count as deleted; NULL: none';
COMMENT ON COLUMN outbox.watched.actor IS 'Fields of the payload and the settings they are taken from; NULL: none';
COMMENT ON COLUMN outbox.watched.context IS 'Fields of the payload and the columns they are taken from; NULL: none';
COMMENT ON COLUMN outbox.watched.condition IS 'Which changes count, as it was given; NULL: all';
COMMENT ON COLUMN outbox.watched.owner IS 'The table''s owner, with whose right messages are staged';
COMMENT ON COLUMN outbox.watched.fires IS 'For which session_replication_role: origin, always, replica, disabled; see ALTER TABLE ... ENABLE TRIGGER';

-- What their columns are.  A row is for the view that it names, or for every
-- view with such a column.  What shows an option of a handler is described by
-- outbox_internal.options(), and what ends in _seconds repeats an interval.
DO $do$
DECLARE
	shown record;
BEGIN
	FOR shown IN
		WITH described (view, name, meaning) AS (VALUES
			(NULL, 'message_id', 'Id of the message, as outbox.stage() returned it'),
			(NULL, 'handler', 'Name of the handler'),
			(NULL, 'handler_id', 'Its id, which tells handlers of one name apart when one was dropped'),
			(NULL, 'kind', 'push (with a URL), pull (without), none (what keeps messages that nobody takes)'),
			(NULL, 'topic', 'Topic of the message'),
			(NULL, 'key', 'Key of the message'),
			(NULL, 'tenant', 'Tenant of the message'),
			(NULL, 'correlation_id', 'Correlation id of the message'),
			(NULL, 'payload', 'Payload of the message; NULL if it is a text or bytes'),
			(NULL, 'content_type', 'What a payload is that is a text or bytes; NULL: JSON'),
			(NULL, 'payload_text', 'The payload of a message that was staged with outbox.stage_text()'),
			(NULL, 'payload_bytes_length', 'How many bytes the payload has of a message that was staged with outbox.stage_bytes()'),
			(NULL, 'payload_bytes_sha256', 'Their SHA-256, in hexadecimal digits'),
			(NULL, 'headers', 'Headers of the message'),
			(NULL, 'staged_at', 'When the message was staged'),
			(NULL, 'due_at', 'When the next attempt is due; of a leased one, when its lease ends; NULL once settled'),
			(NULL, 'settled_at', 'When it became delivered, dead or cancelled'),
			(NULL, 'died_at', 'When it became dead'),
			(NULL, 'code', 'Why the last attempt did not deliver: an HTTP status, a failure such as timeout, or what the receiver said'),
			(NULL, 'http_status', 'HTTP status of the last answer'),
			(NULL, 'error', 'The last error, or the start of the response to the last attempt'),
			('deliveries', 'state', 'pending, retrying, leased, delivered, dead or cancelled'),
			(NULL, 'attempts', 'Attempts that have been made'),
			('deliveries', 'attempts_of_budget', 'Those since it was staged or requeued, which max_attempts counts'),
			('backlog', 'paused', 'Whether the handler is paused'),
			('backlog', 'counts_are_exact', 'Whether each of its rows was counted; false: they are too many, and its numbers are estimated'),
			(NULL, 'pending', 'Deliveries that have not been tried yet'),
			(NULL, 'due', 'Outstanding deliveries that are due, with leases that ran out'),
			(NULL, 'scheduled', 'Of the pending ones, those due later'),
			(NULL, 'retrying', 'Deliveries that wait for their next attempt'),
			(NULL, 'leased', 'Deliveries that a consumer or an on_settle function works on'),
			(NULL, 'dead', 'Dead letters'),
			(NULL, 'cancelled', 'Cancelled deliveries'),
			(NULL, 'oldest_due_at', 'Since when the oldest of the due ones is due'),
			(NULL, 'oldest_due_age', 'For how long the oldest of the due ones has been due'),
			('blocked_keys', 'key', 'The key'),
			('blocked_keys', 'why', 'What the delivery at its head is: retrying, scheduled, leased, or dead where on_dead is block'),
			('blocked_keys', 'waiting', 'Outstanding deliveries behind it'),
			('blocked_keys', 'waiting_since', 'When the oldest of those behind it was staged'),
			('blocked_keys', 'waiting_age', 'How long ago that is'),
			('blocked_keys', 'head_id', 'Message id of the delivery at the head'),
			('blocked_keys', 'head_attempts', 'Attempts that it has had'),
			('blocked_keys', 'head_code', 'Code of its last attempt'),
			('blocked_keys', 'head_error', 'Error of its last attempt'),
			('blocked_keys', 'next_due_at', 'When it is due next; of a leased one, when its lease ends'),
			('blocked_keys', 'died_at', 'When it became dead'),
			('attempts', 'attempt', 'Number of the attempt, from 1'),
			('attempts', 'outcome', 'State that it led the delivery to'),
			('attempts', 'finished_at', 'When it ended'),
			('attempts', 'response_headers', 'Headers of the answer that outbox.log_response_headers names, by their names in lower case; NULL for none'),
			('attempts', 'duration', 'How long it took; NULL for attempts of consumers'),
			('attempts', 'code', 'Why it did not deliver; NULL if it did'),
			('attempts', 'http_status', 'HTTP status of its answer'),
			('attempts', 'error', 'Its error, or the start of the response'),
			('handler_stats', 'deliveries', 'Deliveries of messages that were staged within the last hour'),
			('handler_stats', 'delivered', 'Those that are delivered'),
			('handler_stats', 'delivered_at_once', 'Those that were delivered by the first attempt'),
			('handler_stats', 'outstanding', 'Those that are pending, retrying or leased'),
			('handler_stats', 'attempts', 'Attempts made for all of them'),
			('handler_stats', 'latency_p50', 'Time from staging to delivery that half of the delivered ones took at most'),
			('handler_stats', 'latency_p99', 'Time from staging to delivery that 99 of 100 took at most'),
			('handler_stats', 'last_delivered_at', 'When the last of them was delivered'),
			('handlers', 'topics', 'Patterns of the topics that it takes'),
			('handlers', 'url', 'Where messages are posted; NULL for a pull handler'),
			('handlers', 'paused_at', 'Since when it is paused; NULL if it is not'),
			('handlers', 'paused_by', 'Role that paused it, receiver (410) or breaker (disable_after)'),
			('handlers', 'paused_reason', 'Why it is paused'),
			('handlers', 'breaker', 'Its circuit breaker: closed, open or half-open (one probe); NULL for a pull handler'),
			('handlers', 'breaker_reason', 'Why the breaker is not closed'),
			('handlers', 'breaker_until', 'When the next probe is sent'),
			('handlers', 'failing_since', 'Since when all of its attempts fail; NULL if the last one did not'),
			('handlers', 'throttled_to', 'Requests a second to which it is slowed down because its receiver answers 429 or 503; NULL if it is not'),
			('handlers', 'header_names', 'Names of the headers that are sent along'),
			('handlers', 'signs', 'Whether it has a signing secret'),
			('handlers', 'authorizes', 'Whether it has a value of the header authorization'),
			('handlers', 'creator', 'Role that created it'),
			('handlers', 'created_at', 'When it was created'),
			('dispatchers', 'database', 'Name of the database'),
			('dispatchers', 'pid', 'Process id of its dispatcher; NULL if none runs'),
			('dispatchers', 'state', 'running, starting, disabled, held, locked out, terminated, failed, stopped, version mismatch or not preloaded'),
			('dispatchers', 'in_flight', 'Requests that are out'),
			('dispatchers', 'last_error', 'What cannot be done at the moment, and why'),
			('dispatchers', 'since', 'Since when it is in this state'),
			('dispatchers', 'shortage', 'What this machine lacks to send: descriptors, local ports, memory'),
			('dispatchers', 'shortage_since', 'Since when it lacks that'),
			('dispatchers', 'moved_at', 'When its loop last came round, which it does every ten seconds at least; NULL if none runs'),
			('messages', 'dedupe_key', 'Dedupe key of the message'),
			('messages', 'expires_at', 'By when it has to have gone out, as it was staged; NULL: it never expires'),
			('messages', 'reused_key', 'Its dedupe key, where an older message that is kept has the same (outbox.dedupe_window)'),
			('deliveries', 'expires_at', 'When it is cancelled with code expired if it has not gone out; NULL: never, or it is settled'),
			('waiting', 'expires_at', 'When it is cancelled with code expired if it has not gone out; NULL: never'),
			('messages', 'min_version', 'Version from which on consumers may claim it'),
			('messages', 'outstanding', 'Its deliveries that are pending, retrying or leased'),
			('messages', 'delivered', 'Those that are delivered'),
			('stat_handlers', 'staged', 'Deliveries that were staged, or that an operator had routed to it later'),
			(NULL, 'requeued', 'Settled deliveries that an operator brought back'),
			('stat_handlers', 'delivered', 'Deliveries that were delivered'),
			(NULL, 'retried', 'Attempts after which the delivery was to be tried again'),
			('stat_handlers', 'dead', 'Deliveries that became dead'),
			('stat_handlers', 'cancelled', 'Deliveries that were cancelled'),
			(NULL, 'expired', 'Deliveries that were given up for their age, which count as what they ended as, too'),
			('stat_handlers', 'attempts', 'Attempts, the sum of the twelve columns that follow'),
			(NULL, 'answers_2xx', 'Attempts that were answered with a status from 200 to 299, whatever the answer to a batch said of the single message'),
			(NULL, 'answers_3xx', 'From 300 to 399'),
			(NULL, 'answers_4xx', 'From 400 to 499'),
			(NULL, 'answers_5xx', 'From 500 to 599'),
			(NULL, 'timeouts', 'Attempts that were not answered in time'),
			(NULL, 'connect_failures', 'Attempts for which the name could not be resolved or no connection be made'),
			(NULL, 'tls_failures', 'Attempts that failed in TLS'),
			(NULL, 'blocked', 'Attempts at an address that outbox.blocked_networks forbids'),
			(NULL, 'other_failures', 'Attempts that failed otherwise, as by an answer that is broken'),
			(NULL, 'completed', 'Attempts that a consumer completed'),
			('stat_handlers', 'refused', 'Attempts that a consumer ended by retry() or fail()'),
			(NULL, 'leases_expired', 'Attempts whose lease ran out'),
			('stat_handlers', 'requests', 'Requests that have ended; one carries a batch'),
			(NULL, 'bytes_sent', 'Bytes of the bodies of these'),
			(NULL, 'request_seconds', 'How long these took together, from sending to the end of the answer'),
			(NULL, 'request_p50_seconds', 'How long half of them took at most, as near as the buckets tell'),
			(NULL, 'request_p99_seconds', 'How long 99 of 100 took at most'),
			(NULL, 'deliveries_timed', 'Deliveries whose time from commit to answer was taken'),
			(NULL, 'delivery_seconds', 'These times together: from the commit, or the time that it was scheduled for, to the answer that delivered it; from its staging if it took more than one attempt; on a pull handler to its first claim'),
			(NULL, 'delivery_p50_seconds', 'How long half of them took at most, as near as the buckets tell'),
			(NULL, 'delivery_p99_seconds', 'How long 99 of 100 took at most'),
			(NULL, 'wake_ups', 'Notices of commits that the dispatcher has heard'),
			(NULL, 'wake_up_seconds', 'How long after the commit that was, together'),
			(NULL, 'wake_up_p50_seconds', 'How long half of them took at most, as near as the buckets tell'),
			(NULL, 'wake_up_p99_seconds', 'How long 99 of 100 took at most'),
			(NULL, 'stats_reset', 'Since when this is counted; NULL: nothing has been'),
			('stat_histograms', 'histogram', 'What was timed: request, delivery or wake_up'),
			(NULL, 'le_seconds', 'The upper bound of the bucket, which belongs to it'),
			(NULL, 'n', 'How many times are in it'),
			(NULL, 'cumulative', 'How many are in it and those below'),
			('stat_dispatcher', 'starts', 'How often a dispatcher has started'),
			(NULL, 'turns', 'Turns of its loop'),
			(NULL, 'busy_seconds', 'How long it was busy'),
			(NULL, 'waiting_seconds', 'How long it waited'),
			(NULL, 'transactions', 'Transactions that it has committed'),
			(NULL, 'failed_transactions', 'Those that failed'),
			(NULL, 'deliveries_read', 'Deliveries that it has read into memory'),
			('stat_dispatcher', 'requests', 'Requests that have ended'),
			(NULL, 'connections_reused', 'Those on a connection that had carried one before'),
			(NULL, 'unsent', 'Requests that could not leave this machine, and were taken back'),
			(NULL, 'settled', 'Outcomes that it has written itself'),
			(NULL, 'settled_by_settler', 'Receipts that its settler has written'),
			(NULL, 'doorbell_overflows', 'How often more was rung for than the doorbell holds'),
			(NULL, 'uncounted', 'What was not counted in outbox.stat_handlers, because outbox.max_stat_handlers are counted already'),
			('unrouted', 'messages', 'Messages of the topic that were staged though no handler took it'),
			('unrouted', 'refused', 'Those that were refused'),
			('unrouted', 'first_at', 'When that was met first'),
			('unrouted', 'last_at', 'When that was met last'),
			(NULL, 'waiting_for', 'What it waits for'),
			(NULL, 'waiting_until', 'Until when that lasts by itself; NULL: until something else happens'),
			(NULL, 'lifted_by', 'What ends it'),
			('waiting', 'state', 'pending, retrying or leased'),
			('waiting', 'detail', 'More of it'),
			('handlers', 'recent_attempts', 'Attempts within five minutes'),
			('handlers', 'recent_failures', 'Those of them that failed'),
			('handlers', 'failure_share', 'The share of them that failed, from 0 to 1'),
			('handlers', 'held_until', 'Until when its receiver has asked to be left alone (Retry-After)'),
			('handlers', 'gives_up_after', 'How long after its first attempt a message is given up about, if it keeps failing'),
			('actions', 'action_id', 'Number of the row, which increases'),
			('actions', 'acted_at', 'When it was done'),
			('actions', 'action', 'Name of the function that was called'),
			('actions', 'login', 'Role that had logged in (session_user)'),
			('actions', 'role', 'Role that called, of functions for handlers and schedules; else the one chosen with SET ROLE, or login'),
			('actions', 'message_id', 'The message, of what was done to one; NULL once it has been erased'),
			('actions', 'arguments', 'What it was told, without secrets, headers and payloads, and without what was erased'),
			('actions', 'affected', 'How many deliveries, messages or objects it changed'),
			('actions', 'reason', 'Why, as it was given'),
			('retention', 'state', 'idle, working, clock, off, copy, no dispatcher or standby'),
			('retention', 'next_at', 'When the next round begins, or when this one was to'),
			('retention', 'round_began_at', 'Since when a round is going on; NULL between two'),
			('retention', 'completed_at', 'When the last round had nothing left to do'),
			('retention', 'held_until', 'The clock was set forward, or nobody has looked at it for long: nothing is removed before this, or before a call of outbox.prune()'),
			('retention', 'behind', 'How long ago the first message that has not been looked at was to go'),
			('retention', 'messages', 'Messages removed by the server''s own retention; calls of outbox.prune() are not counted'),
			('retention', 'deliveries', 'Their receipts'),
			('retention', 'attempts', 'Their logged attempts'),
			('retention', 'actions', 'Rows of outbox.actions that were older than outbox.action_retention'),
			('retention', 'inbox', 'Entries of the inbox that had expired'),
			('retention', 'counted_since', 'Since when these are counted'),
			('retention', 'last_error', 'What it has failed with; NULL once a round is completed'),
			('retention', 'last_error_at', 'When'),
			('watched', 'relation', 'The table'),
			('watched', 'model', 'What the payload calls it'),
			('watched', 'prefix', 'What topics begin with'),
			('watched', 'operations', 'Which of insert, update and delete are announced'),
			('watched', 'truncate', 'What a TRUNCATE does: announce, refuse or ignore'),
			('watched', 'record_id', 'Columns that tell its rows apart'),
			('watched', 'tenant', 'Column with the tenant of messages'),
			('watched', 'key', 'Column with their key; NULL: it is model:recordId'),
			('watched', 'include', 'Columns whose values the payload has'),
			('watched', 'ignore', 'Columns that do not count'),
			('watched', 'soft_delete', 'Column that is set in rows that count as deleted'),
			('watched', 'actor', 'Fields of the payload and settings of the session'),
			('watched', 'context', 'Fields of the payload and columns'),
			('watched', 'condition', 'Expression that says which changes are announced'),
			('watched', 'owner', 'Owner of the table, with whose right to stage it is announced'),
			('watched', 'fires', 'For which sessions its triggers fire: origin, always, replica, disabled'))
		SELECT v.relname AS view, a.attname AS name, COALESCE(
			(SELECT d.meaning FROM described d WHERE d.view OPERATOR(pg_catalog.=) v.relname AND d.name OPERATOR(pg_catalog.=) a.attname),
			(SELECT d.meaning FROM described d WHERE d.view IS NULL AND d.name OPERATOR(pg_catalog.=) a.attname),
			(SELECT 'Option: ' OPERATOR(pg_catalog.||) o.help FROM outbox_internal.options() o
				WHERE v.relname OPERATOR(pg_catalog.=) 'handlers' AND o.name OPERATOR(pg_catalog.=) a.attname),
			(SELECT pg_catalog.format('%s, in seconds', i.attname) FROM pg_catalog.pg_attribute i
				WHERE i.attrelid OPERATOR(pg_catalog.=) v.oid AND a.attname OPERATOR(pg_catalog.=) pg_catalog.concat(i.attname, '_seconds'))) AS meaning
		FROM pg_catalog.pg_class v JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) v.oid
		WHERE v.relnamespace OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace AND v.relkind OPERATOR(pg_catalog.=) 'v' AND a.attnum OPERATOR(pg_catalog.>) 0
	LOOP
		EXECUTE pg_catalog.format('COMMENT ON COLUMN outbox.%I.%I IS %L', shown.view, shown.name, shown.meaning);
	END LOOP;
END $do$;

-- Options as they are declared, after what says how it goes.
DO $do$
DECLARE
	options text;
BEGIN
	SELECT pg_catalog.string_agg('s.' || pg_catalog.quote_ident(o.name), ', ') INTO options FROM outbox_internal.schedule_options() o;
	EXECUTE pg_catalog.format($sql$
CREATE VIEW outbox.schedules AS
SELECT s.id AS schedule_id, s.name,
	CASE WHEN t.paused_at IS NOT NULL THEN 'paused' WHEN t.next_run_at IS NULL THEN 'ended' WHEN t.attempts OPERATOR(pg_catalog.>) 0 THEN 'retrying' ELSE 'active' END AS state,
	t.next_run_at, t.attempts AS failed_attempts, t.wake_at AS next_attempt_at, t.last_scheduled_at, t.last_run_at, t.last_message_id,
	t.last_error, t.last_error_at, t.runs, t.missed, t.paused_at, t.paused_by, t.paused_reason, s.creator, s.created_at, %s
FROM outbox.schedule s JOIN outbox.schedule_status t ON t.schedule_id OPERATOR(pg_catalog.=) s.id
	$sql$, options);
END $do$;
COMMENT ON VIEW outbox.schedules IS 'Schedules: when each occurs next, how it went so far, its pause and its options';
DO $do$
DECLARE
	c record;
BEGIN
	FOR c IN
		SELECT * FROM (VALUES
			('schedule_id', 'Its number, which is not used again'),
			('name', 'Its name, which dedupe keys of its messages begin with'),
			('state', 'active; retrying: the occurrence of next_run_at has failed and is tried again; paused; ended: no occurrence is to come'),
			('next_run_at', 'The occurrence that comes next or is being tried; while it is paused, the one that it would go on from'),
			('failed_attempts', 'How often that occurrence has failed'),
			('next_attempt_at', 'When something is to be done: at its time, or again after a failure; infinity while it is paused or has ended'),
			('last_scheduled_at', 'The time of the last occurrence that took place'),
			('last_run_at', 'When that was, or outbox.run_now() was called'),
			('last_message_id', 'The message of the last occurrence; NULL where a function stages them'),
			('last_error', 'Why an occurrence failed last'),
			('last_error_at', 'When that was'),
			('runs', 'How many occurrences have taken place, those by outbox.run_now() included'),
			('missed', 'How many were missed and not made up for, or failed until the next one came; of one outage at most 10000 are counted'),
			('paused_at', 'Since when it is paused; NULL: it is not'),
			('paused_by', 'Which role paused it'),
			('paused_reason', 'Why, in the words of outbox.pause_schedule()'),
			('creator', 'The role that created it'),
			('created_at', 'When it was created')) v (name, help)
		UNION ALL SELECT o.name, 'Option: ' || o.help FROM outbox_internal.schedule_options() o
	LOOP
		EXECUTE pg_catalog.format('COMMENT ON COLUMN outbox.schedules.%I IS %L', c.name, c.help);
	END LOOP;
END $do$;

-- Two patterns have topics in common if one takes the other, or what is in front of its asterisk.
DO $do$
DECLARE
	options text;
BEGIN
	SELECT pg_catalog.string_agg('t.' || pg_catalog.quote_ident(o.name), ', ') INTO options FROM outbox_internal.topic_options() o;
	EXECUTE pg_catalog.format($sql$
CREATE VIEW outbox.topics AS
SELECT t.topic, %s,
	ARRAY(
		SELECT h.name::text FROM outbox.handler h
		WHERE h.dropped_at IS NULL AND h.id OPERATOR(pg_catalog.<>) 0 AND EXISTS (
			SELECT FROM pg_catalog.unnest(h.topics) p
			WHERE p OPERATOR(pg_catalog.=) t.topic
				OR pg_catalog.right(p, 1) OPERATOR(pg_catalog.=) '*' AND pg_catalog.starts_with(t.topic, pg_catalog.rtrim(p, '*'))
				OR pg_catalog.right(t.topic, 1) OPERATOR(pg_catalog.=) '*' AND pg_catalog.starts_with(p, pg_catalog.rtrim(t.topic, '*'))
				-- events are not for *
				AND NOT (t.topic OPERATOR(pg_catalog.=) '*' AND (p OPERATOR(pg_catalog.=) 'outbox' OR pg_catalog.starts_with(p, 'outbox.'))))
		ORDER BY h.name) AS handlers,
	t.creator, t.created_at
-- A view of one table alone could be written to.
FROM outbox.topic t CROSS JOIN (SELECT) AS nothing
	$sql$, options);
END $do$;
COMMENT ON VIEW outbox.topics IS 'Topics that are registered: what they are, what their messages are held to, and which handlers take them, or of a pattern some of them';
DO $do$
DECLARE
	c record;
BEGIN
	FOR c IN
		SELECT * FROM (VALUES
			('topic', 'The topic, or the pattern that takes it'),
			('handlers', 'Names of the handlers that take it, or of a pattern some topic that it takes; none: nobody is told'),
			('creator', 'The role that created it'),
			('created_at', 'When it was created')) v (name, help)
		UNION ALL SELECT o.name, 'Option: ' || o.help FROM outbox_internal.topic_options() o
	LOOP
		EXECUTE pg_catalog.format('COMMENT ON COLUMN outbox.topics.%I IS %L', c.name, c.help);
	END LOOP;
END $do$;

-----------------------------------------------------------------------------
-- Looking for deliveries, a page at a time, newest message first.
--
-- Which end is entered decides how long it takes, so the planner does not
-- choose it: a message's correlation id, key or tenant, or the deliveries
-- themselves, whose indexes go by state, handler and message.  What is found is
-- keys; the view is asked for those.
-----------------------------------------------------------------------------

CREATE TYPE outbox_internal.page AS (
	outstanding smallint[],
	settled text[],
	handler_id int,
	handler_ids int[],
	tenant text,
	topic text,
	key text,
	correlation_id text,
	lowest uuid,
	highest uuid,
	before_message_id uuid,
	before_handler_id int,
	max_rows int
);
COMMENT ON TYPE outbox_internal.page IS 'Internal: which deliveries a page is to show: outstanding states, settled ones as conditions of their indexes; handler_id is of the only handler of a name, handler_ids of several';

-- The part of a page that is in one table under one condition; of_message says
-- which messages.  Row constructors are compared as keys of an index.
CREATE FUNCTION outbox_internal.page_part(rel text, condition text, f outbox_internal.page, of_message text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT format('(SELECT d.message_id, d.handler_id FROM outbox.%I d WHERE %s', rel, condition)
		|| CASE WHEN f.handler_id IS NOT NULL THEN ' AND d.handler_id = ($1).handler_id' WHEN f.handler_ids IS NOT NULL THEN ' AND d.handler_id = ANY (($1).handler_ids)' ELSE '' END
		|| CASE WHEN f.before_message_id IS NOT NULL THEN ' AND (d.message_id, d.handler_id) < (($1).before_message_id, ($1).before_handler_id)' ELSE '' END
		|| of_message || ' ORDER BY d.message_id DESC, d.handler_id DESC LIMIT ($1).max_rows)'
$$;
COMMENT ON FUNCTION outbox_internal.page_part IS 'Internal: a query for keys of deliveries in one table under a condition, newest message first';

CREATE FUNCTION outbox_internal.page_parts(f outbox_internal.page, of_message text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT string_agg(outbox_internal.page_part(p.rel, p.condition, f, of_message), ' UNION ALL ')
	FROM (
		SELECT 'delivery', CASE cardinality(f.outstanding) WHEN 3 THEN 'true' ELSE 'd.state = ANY (($1).outstanding)' END WHERE cardinality(f.outstanding) > 0
		UNION ALL
		SELECT 'receipt', c FROM unnest(f.settled) c) p (rel, condition)
$$;
COMMENT ON FUNCTION outbox_internal.page_parts IS 'Internal: the queries for all states that a page is to show';

-- By the states and handlers of deliveries; what the message says is looked up
-- one by one, and only if it is asked for.
CREATE FUNCTION outbox_internal.find_by_state(f outbox_internal.page, OUT message_ids uuid[], OUT handler_ids int[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET max_parallel_workers_per_gather = 0
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
	EXECUTE format('SELECT array_agg(c.message_id), array_agg(c.handler_id) FROM (SELECT * FROM (%s) u ORDER BY message_id DESC, handler_id DESC LIMIT ($1).max_rows) c',
		outbox_internal.page_parts(f, ' AND d.message_id >= ($1).lowest AND d.message_id <= ($1).highest'
			|| CASE WHEN f.topic IS NOT NULL THEN ' AND outbox_internal.topic_taken(ARRAY[($1).topic], (SELECT m.topic FROM outbox.message m WHERE m.id = d.message_id))' ELSE '' END))
	INTO message_ids, handler_ids USING f;
END $$;
COMMENT ON FUNCTION outbox_internal.find_by_state IS 'Internal: the deliveries of a page by their states and handlers; NULL if there is none';

-- By the correlation id, key or tenant of messages.  A tenant is compared as a
-- range of one value: that order only its own index has, whatever the planner
-- believes of the tenant.
CREATE FUNCTION outbox_internal.find_by_message(f outbox_internal.page, OUT message_ids uuid[], OUT handler_ids int[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET max_parallel_workers_per_gather = 0
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	range text := ' AND m.id >= ($1).lowest AND m.id <= ($1).highest'
		|| CASE WHEN f.before_message_id IS NOT NULL THEN ' AND m.id <= ($1).before_message_id' ELSE '' END;
	further text := CASE WHEN f.topic IS NOT NULL THEN ' AND outbox_internal.topic_taken(ARRAY[($1).topic], m.topic)' ELSE '' END;
	messages text;
BEGIN
	IF coalesce(f.correlation_id, f.key) IS NULL THEN
		messages := 'SELECT m.id FROM outbox.message m WHERE m.tenant >= ($1).tenant AND m.tenant <= ($1).tenant' || range || further || ' ORDER BY m.tenant DESC, m.id DESC';
	ELSE
		messages := format('SELECT m.id FROM (SELECT * FROM outbox.message x WHERE x.%I = ($1).%1$I OFFSET 0) m WHERE true', CASE WHEN f.correlation_id IS NOT NULL THEN 'correlation_id' ELSE 'key' END)
			|| range || further
			|| CASE WHEN f.correlation_id IS NOT NULL AND f.key IS NOT NULL THEN ' AND m.key = ($1).key' ELSE '' END
			|| CASE WHEN f.tenant IS NOT NULL THEN ' AND m.tenant = ($1).tenant' ELSE '' END
			|| ' ORDER BY m.id DESC';
	END IF;
	-- The messages are read in that order for as long as the page is not full.
	EXECUTE format('SELECT array_agg(c.message_id), array_agg(c.handler_id) FROM (SELECT d.* FROM (%s) s CROSS JOIN LATERAL (SELECT * FROM (%s) u ORDER BY handler_id DESC OFFSET 0) d LIMIT ($1).max_rows) c',
		messages, outbox_internal.page_parts(f, ' AND d.message_id = s.id'))
	INTO message_ids, handler_ids USING f;
END $$;
COMMENT ON FUNCTION outbox_internal.find_by_message IS 'Internal: the deliveries of a page by the correlation id, key or tenant of their messages; NULL if there is none';

CREATE FUNCTION outbox_internal.tenant_messages(tenant text, outstanding boolean, lowest uuid, highest uuid, below boolean, most int) RETURNS SETOF uuid
LANGUAGE c STABLE STRICT PARALLEL RESTRICTED AS 'MODULE_PATHNAME', 'outbox_sql_tenant_messages';
COMMENT ON FUNCTION outbox_internal.tenant_messages IS 'Internal: up to so many messages of a tenant that have something outstanding, or else dead or cancelled, newest first, from highest or below it down to lowest; some may be gone';

-- By the tenant of messages and the states of deliveries at once, a thousand messages at a time.
CREATE FUNCTION outbox_internal.find_by_tenant(f outbox_internal.page, OUT message_ids uuid[], OUT handler_ids int[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET max_parallel_workers_per_gather = 0
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	highest uuid := least(f.highest, f.before_message_id);
	below boolean := false;
	ids uuid[];
	part record;
	query text := format('SELECT array_agg(c.message_id) AS message_ids, array_agg(c.handler_id) AS handler_ids FROM ('
			'SELECT d.* FROM unnest($2) WITH ORDINALITY s (id, n) CROSS JOIN LATERAL (SELECT * FROM (%s) u ORDER BY handler_id DESC OFFSET 0) d ORDER BY s.n, d.handler_id DESC LIMIT ($1).max_rows) c',
		outbox_internal.page_parts(f, ' AND d.message_id = s.id'
			|| CASE WHEN f.topic IS NOT NULL THEN ' AND outbox_internal.topic_taken(ARRAY[($1).topic], (SELECT m.topic FROM outbox.message m WHERE m.id = s.id))' ELSE '' END));
BEGIN
	message_ids := '{}';
	handler_ids := '{}';
	LOOP
		ids := ARRAY(SELECT t FROM outbox_internal.tenant_messages(f.tenant, cardinality(f.outstanding) > 0, f.lowest, highest, below, 1000) t);
		EXECUTE query INTO part USING f, ids;
		message_ids := message_ids || part.message_ids;
		handler_ids := handler_ids || part.handler_ids;
		EXIT WHEN cardinality(ids) < 1000 OR cardinality(message_ids) >= f.max_rows;
		highest := ids[1000];
		below := true;
	END LOOP;
	message_ids := message_ids[:f.max_rows];
	handler_ids := handler_ids[:f.max_rows];
END $$;
COMMENT ON FUNCTION outbox_internal.find_by_tenant IS 'Internal: the outstanding deliveries of a page, or the dead or cancelled ones, by the tenant of their messages';

CREATE FUNCTION outbox.find_deliveries(handler text DEFAULT NULL, state text DEFAULT NULL, tenant text DEFAULT NULL, topic text DEFAULT NULL,
	key text DEFAULT NULL, correlation_id text DEFAULT NULL, since timestamptz DEFAULT NULL, until timestamptz DEFAULT NULL,
	before_message_id uuid DEFAULT NULL, before_handler_id int DEFAULT NULL, max_rows int DEFAULT 100) RETURNS SETOF outbox.deliveries
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
	f outbox_internal.page;
	page_keys record;
BEGIN
	PERFORM outbox_internal.check_filter(topic, since, until, NULL);
	IF (max_rows BETWEEN 1 AND 10000) IS NOT TRUE THEN
		RAISE EXCEPTION 'max_rows must be between 1 and 10000'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'For the next page pass message_id and handler_id of the last row as before_message_id and before_handler_id.';
	END IF;
	IF before_handler_id IS NOT NULL AND before_message_id IS NULL THEN
		RAISE EXCEPTION 'before_handler_id needs before_message_id'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass message_id and handler_id of the last row of the page before.';
	END IF;
	SELECT s.outstanding, s.settled INTO f.outstanding, f.settled
	FROM (VALUES ('pending', '{0}'::smallint[], '{}'::text[]), ('retrying', '{1}', '{}'), ('leased', '{2}', '{}'), ('outstanding', '{0,1,2}', '{}'),
		('delivered', '{}', '{d.state + 0 NOT IN (4\, 5)}'), ('dead', '{}', '{d.state + 0 = 4}'), ('cancelled', '{}', '{d.state + 0 = 5}'),
		(NULL, '{0,1,2}', '{d.state + 0 NOT IN (4\, 5),d.state + 0 = 4,d.state + 0 = 5}')) AS s (name, outstanding, settled)
	WHERE s.name IS NOT DISTINCT FROM state;
	IF NOT FOUND THEN
		RAISE EXCEPTION 'no state is called "%"', state
			USING ERRCODE = 'invalid_parameter_value', HINT = 'There are pending, retrying, leased, delivered, dead and cancelled, and outstanding for the first three.';
	END IF;
	IF handler IS NOT NULL THEN
		-- Of handlers that were dropped, too: what they had is still there.
		f.handler_ids := ARRAY(SELECT h.id FROM outbox.handler h WHERE h.name = handler ORDER BY h.id);
		IF f.handler_ids = '{}' THEN
			PERFORM outbox_internal.live_handler(handler);
		ELSIF cardinality(f.handler_ids) = 1 THEN
			f.handler_id := f.handler_ids[1];
		END IF;
	END IF;
	f.tenant := tenant;
	f.topic := topic;
	f.key := key;
	f.correlation_id := correlation_id;
	f.lowest := outbox_internal.id_floor(coalesce(since, '-infinity'));
	f.highest := outbox_internal.id_floor(coalesce(until, 'infinity'));
	f.before_message_id := before_message_id;
	f.before_handler_id := coalesce(before_handler_id, -2147483648);
	f.max_rows := max_rows;
	-- The tenant's own order shows what is wanted at once, unless that may be little
	-- of very much.
	IF num_nonnulls(key, correlation_id) > 0 OR tenant IS NOT NULL AND (state IS NULL OR state = 'delivered') THEN
		page_keys := outbox_internal.find_by_message(f);
	ELSIF tenant IS NOT NULL THEN
		page_keys := outbox_internal.find_by_tenant(f);
	ELSE
		page_keys := outbox_internal.find_by_state(f);
	END IF;
	RETURN QUERY SELECT d.*
	FROM ROWS FROM (unnest(page_keys.message_ids), unnest(page_keys.handler_ids)) WITH ORDINALITY AS c (message_id, handler_id, n)
	CROSS JOIN LATERAL (SELECT * FROM outbox.deliveries x WHERE x.message_id = c.message_id AND x.handler_id = c.handler_id OFFSET 0) AS d
	ORDER BY c.n;
END $$;
COMMENT ON FUNCTION outbox.find_deliveries IS
'A page of outbox.deliveries, newest message first, in the same time whatever the planner believes of the tables.
handler: its name; of dropped ones of that name, too.
state: pending, retrying, leased, delivered, dead or cancelled, or outstanding for the first three. NULL: any.
tenant, key, correlation_id: of the message. topic: a pattern.
since, until: when the message was staged, from since and before until.
before_message_id, before_handler_id: message_id and handler_id of the last row of the page before; without the second what is before all deliveries of that message.
max_rows: how many at most, 1 to 10000.
Each page costs what it shows and what it passes over: with a correlation_id, key or tenant what other conditions leave out of its messages (if only outstanding, dead or cancelled ones of a tenant are asked for, no rows, but entries of an index: of its messages, or of these, whatever is less); else what topic leaves out, and handler among outstanding and delivered ones.
Errors: invalid_parameter_value for an unknown state, an impossible range or a wrong max_rows, undefined_object for an unknown handler.';

-----------------------------------------------------------------------------
-- The story of a message: what is known of it, in the order of time.
--
-- A function for each kind of thing that is known, and outbox.message() to put
-- them in order.  Each finds what it reads by an index, and nothing is left to
-- the planner: its settings are pinned by outbox.message(), which calls them.
-----------------------------------------------------------------------------

CREATE TYPE outbox_internal.event AS (
	at timestamptz,
	rank int,
	event text,
	handler text,
	attempt int,
	detail text,
	data jsonb
);
COMMENT ON TYPE outbox_internal.event IS 'Internal: something that happened to a message; rank orders what happened at the same time';

-- An interval, as short as it can be read.
CREATE FUNCTION outbox_internal.event_duration(took interval) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT CASE WHEN s < 1 THEN round(s * 1000, 1) || ' ms' ELSE round(s, 1) || ' s' END
	FROM (SELECT extract(epoch FROM took)::numeric AS s) t
$$;
COMMENT ON FUNCTION outbox_internal.event_duration IS 'Internal: an interval in milliseconds or seconds; NULL for NULL';

CREATE FUNCTION outbox_internal.event_time(at timestamptz) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT date_trunc('milliseconds', at)::text
$$;
COMMENT ON FUNCTION outbox_internal.event_time IS 'Internal: a time within a text, to the millisecond';

-- Its staging, the occurrence that it is the message of, and what it replaced.
CREATE FUNCTION outbox_internal.events_of_staging(id uuid) RETURNS SETOF outbox_internal.event
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	m outbox.message;
	bytes bigint;
	occurrence text[];
	replaced uuid;
BEGIN
	SELECT * INTO m FROM outbox.message x WHERE x.id = events_of_staging.id;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	bytes := octet_length(coalesce(m.payload::text, m.payload_text));
	IF bytes IS NULL THEN
		bytes := octet_length(m.payload_bytes);
	END IF;
	occurrence := regexp_match(coalesce(m.dedupe_key, m.reused_key), '^schedule:(.+):(\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\dZ)$');
	IF occurrence IS NOT NULL THEN
		RETURN NEXT (m.staged_at, 0, 'occurrence', NULL, NULL, format('of schedule "%s" for %s', occurrence[1], occurrence[2]),
			jsonb_build_object('schedule', occurrence[1], 'scheduled_at', occurrence[2]))::outbox_internal.event;
	END IF;
	RETURN NEXT (m.staged_at, 1, 'staged', NULL, NULL,
		concat_ws(', ', m.topic, 'key ' || m.key, 'tenant ' || m.tenant, 'correlation id ' || m.correlation_id,
			format('%s bytes of %s', bytes, coalesce(m.content_type, 'application/json')),
			'not before ' || outbox_internal.event_time(m.deliver_at), 'expires at ' || outbox_internal.event_time(m.expires_at)),
		jsonb_strip_nulls(jsonb_build_object('topic', m.topic, 'key', m.key, 'tenant', m.tenant, 'correlation_id', m.correlation_id, 'headers', m.headers,
			'dedupe_key', coalesce(m.dedupe_key, m.reused_key), 'replace_key', m.replace_key, 'deliver_at', m.deliver_at, 'expires_at', m.expires_at,
			'min_version', m.min_version, 'content_type', m.content_type, 'payload_length', bytes)))::outbox_internal.event;
	IF m.replace_key IS NOT NULL THEN
		SELECT p.id INTO replaced FROM outbox.message p
		WHERE coalesce(p.tenant, '') = coalesce(m.tenant, '') AND p.replace_key = m.replace_key AND p.id < m.id
		ORDER BY p.id DESC LIMIT 1;
		IF EXISTS (SELECT FROM outbox.receipt r WHERE r.message_id = replaced AND r.state = 5 AND r.code = 'replaced') THEN
			RETURN NEXT (m.staged_at, 2, 'replaces', NULL, NULL, format('message %s, where that had not been tried', replaced),
				jsonb_build_object('message_id', replaced, 'replace_key', m.replace_key))::outbox_internal.event;
		END IF;
	END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.events_of_staging IS 'Internal: that a message was staged, by which schedule, and which one it replaced; none if it is gone';

-- Every handler that has it.  A younger one cannot have had it when it was staged.
CREATE FUNCTION outbox_internal.events_of_routing(id uuid) RETURNS SETOF outbox_internal.event
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT (coalesce(greatest(m.staged_at, h.created_at), d.at), 3, CASE WHEN d.handler_id = 0 THEN 'unrouted' ELSE 'routed' END, h.name, NULL,
		CASE WHEN d.handler_id = 0 THEN 'no handler took its topic'
			WHEN h.id IS NULL THEN 'to a handler whose row is gone'
			ELSE concat_ws(', ', CASE WHEN h.url IS NULL THEN 'to be claimed' ELSE 'to ' || u.url END,
				CASE WHEN h.created_at > m.staged_at THEN 'after it was staged, as the handler is younger; when is not kept' END,
				'dropped at ' || outbox_internal.event_time(h.dropped_at)) END,
		jsonb_strip_nulls(jsonb_build_object('handler_id', d.handler_id, 'url', u.url, 'format', CASE WHEN h.url IS NOT NULL THEN h.format END, 'ordered', nullif(h.ordered, false),
			'dropped_at', h.dropped_at)))::outbox_internal.event
	FROM (
		SELECT o.handler_id, o.due_at AS at FROM outbox.delivery o WHERE o.message_id = events_of_routing.id
		UNION ALL
		SELECT r.handler_id, r.settled_at FROM outbox.receipt r WHERE r.message_id = events_of_routing.id) AS d
	LEFT JOIN outbox.message m ON m.id = events_of_routing.id
	LEFT JOIN outbox.handler h ON h.id = d.handler_id
	CROSS JOIN LATERAL (SELECT regexp_replace(h.url, '[?#].*$', '') AS url) AS u
	UNION ALL
	SELECT (m.staged_at, 3, 'unrouted', NULL, NULL, 'no handler took its topic', NULL)::outbox_internal.event
	FROM outbox.message m
	WHERE m.id = events_of_routing.id AND NOT EXISTS (SELECT FROM outbox.delivery o WHERE o.message_id = m.id)
		AND NOT EXISTS (SELECT FROM outbox.receipt r WHERE r.message_id = m.id)
$$;
COMMENT ON FUNCTION outbox_internal.events_of_routing IS 'Internal: which handlers a message was routed to, or that there is none';

-- As far as they are logged.  The time of a request is that of its answer less what that took.
CREATE FUNCTION outbox_internal.events_of_attempts(id uuid) RETURNS SETOF outbox_internal.event
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT (a.finished_at, 5, 'attempt', h.name, a.attempt,
		concat_ws(': ', concat_ws(', ', s.outcome, 'HTTP ' || a.http_status, nullif(a.code, a.http_status::text), 'after ' || outbox_internal.event_duration(a.duration),
			(SELECT string_agg(v.key || ' ' || v.value, ', ' ORDER BY v.key) FROM jsonb_each_text(a.response_headers) v)), a.error),
		jsonb_strip_nulls(jsonb_build_object('outcome', s.outcome, 'sent_at', a.finished_at - a.duration, 'duration_ms', round(extract(epoch FROM a.duration)::numeric * 1000, 3),
			'http_status', a.http_status, 'code', a.code, 'response_headers', a.response_headers)))::outbox_internal.event
	FROM outbox.attempt a
	LEFT JOIN outbox.handler h ON h.id = a.handler_id
	CROSS JOIN LATERAL (SELECT ('{pending,retrying,leased,delivered,dead,cancelled}'::text[])[a.outcome + 1] AS outcome) AS s
	WHERE a.message_id = events_of_attempts.id
$$;
COMMENT ON FUNCTION outbox_internal.events_of_attempts IS 'Internal: the attempts of a message that were logged';

-- How each delivery stands: its receipt, or as of now what it waits for.
CREATE FUNCTION outbox_internal.events_of_outcome(id uuid) RETURNS SETOF outbox_internal.event
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT (r.settled_at, 6, ('{delivered,dead,cancelled}'::text[])[r.state - 2], h.name, nullif(r.attempts, 0),
		concat_ws(': ', concat_ws(', ', nullif(r.code, r.http_status::text), 'HTTP ' || r.http_status,
			CASE r.attempts WHEN 0 THEN 'without an attempt' WHEN 1 THEN 'after 1 attempt' ELSE format('after %s attempts', r.attempts) END,
			'by message ' || n.id), r.error),
		jsonb_strip_nulls(jsonb_build_object('attempts', r.attempts, 'attempts_of_budget', r.attempts - r.budget_from, 'http_status', r.http_status, 'code', r.code,
			'replaced_by', n.id)))::outbox_internal.event
	FROM outbox.receipt r
	LEFT JOIN outbox.handler h ON h.id = r.handler_id
	LEFT JOIN LATERAL (
		SELECT x.id FROM outbox.message m
		CROSS JOIN LATERAL (
			SELECT y.id FROM outbox.message y
			WHERE coalesce(y.tenant, '') = coalesce(m.tenant, '') AND y.replace_key = m.replace_key AND y.id > m.id
			ORDER BY y.id LIMIT 1) AS x
		WHERE m.id = r.message_id AND r.state = 5 AND r.code = 'replaced') AS n ON true
	WHERE r.message_id = events_of_outcome.id
	UNION ALL
	SELECT (clock_timestamp(), 8, ('{pending,retrying,leased}'::text[])[d.state + 1], h.name, nullif(d.attempts, 0),
		concat_ws(', ', 'waits for ' || w.waiting_for || coalesce(' until ' || outbox_internal.event_time(w.waiting_until), ''),
			CASE WHEN w.waiting_until IS NULL AND isfinite(d.due_at) THEN 'due at ' || outbox_internal.event_time(d.due_at) END,
			'expires at ' || outbox_internal.event_time(d.expires_at), w.detail),
		jsonb_strip_nulls(jsonb_build_object('attempts', d.attempts, 'attempts_of_budget', d.attempts - d.budget_from, 'due_at', d.due_at, 'expires_at', d.expires_at,
			'waiting_for', w.waiting_for, 'waiting_until', w.waiting_until, 'lifted_by', w.lifted_by, 'http_status', d.http_status, 'code', d.code,
			'error', d.error)))::outbox_internal.event
	FROM outbox.delivery d
	LEFT JOIN outbox.handler h ON h.id = d.handler_id
	LEFT JOIN LATERAL (SELECT * FROM outbox.waiting v WHERE v.message_id = d.message_id AND v.handler_id = d.handler_id OFFSET 0) AS w ON true
	WHERE d.message_id = events_of_outcome.id
$$;
COMMENT ON FUNCTION outbox_internal.events_of_outcome IS 'Internal: how each delivery of a message was settled, or what it waits for now';

CREATE FUNCTION outbox_internal.event_of_action(a outbox.action, effect text) RETURNS outbox_internal.event
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT (a.acted_at, 7, a.action, a.arguments ->> 'handler', NULL,
		concat_ws(': ', concat_ws(', ', 'by ' || a.login || CASE WHEN a.role <> a.login THEN ' as ' || a.role ELSE '' END, effect), a.reason),
		jsonb_strip_nulls(jsonb_build_object('action_id', a.id, 'login', a.login, 'role', a.role, 'arguments', nullif(a.arguments, '{}'), 'affected', a.affected,
			'reason', a.reason)))::outbox_internal.event
$$;
COMMENT ON FUNCTION outbox_internal.event_of_action IS 'Internal: what an operator has done, as an event of a message; effect: what is to be said of it beside who and why';

-- What operators did to this message by its id.
CREATE FUNCTION outbox_internal.events_of_actions(id uuid, tenant text) RETURNS SETOF outbox_internal.event
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT outbox_internal.event_of_action(a, CASE WHEN a.action = 'reschedule' THEN 'to ' || outbox_internal.event_time((a.arguments ->> 'deliver_at')::timestamptz) END)
	FROM outbox.action a
	WHERE a.message_id = events_of_actions.id AND (events_of_actions.tenant IS NULL OR a.arguments ->> 'tenant' = events_of_actions.tenant)
$$;
COMMENT ON FUNCTION outbox_internal.events_of_actions IS 'Internal: what operators have done to a message by its id; tenant: only what they were told it was that tenant''s';

-- What operators did to many, or to a handler, where it can be shown to have met a
-- delivery of this message.  Of a call in bulk only its filter is kept, so it is
-- shown where that fits and
--   the delivery stands as the call's own transaction has written it, or
--   the log has an attempt before the call that it could bring back, and there was
--   a further one, or is to be, after it.
-- What a filter cannot say: rows that were locked or beyond max_rows.
CREATE FUNCTION outbox_internal.events_of_bulk(id uuid) RETURNS SETOF outbox_internal.event
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
	m record;
	since timestamptz;
	until timestamptz;
	handlers text[];
BEGIN
	SELECT x.id, x.staged_at, x.topic, x.tenant, x.xmin AS written_by INTO m FROM outbox.message x WHERE x.id = events_of_bulk.id;
	IF NOT FOUND THEN
		RETURN;
	END IF;
	since := m.staged_at;
	-- What came after its last settlement has not met it.  A call writes down when it was over.
	SELECT CASE WHEN bool_or(o.settled_at IS NULL) THEN 'infinity' ELSE max(o.settled_at) + interval '1 hour' END,
		array_agg((SELECT h.name FROM outbox.handler h WHERE h.id = o.handler_id)) INTO until, handlers
	FROM (
		SELECT d.handler_id, NULL::timestamptz AS settled_at FROM outbox.delivery d WHERE d.message_id = m.id
		UNION ALL
		SELECT r.handler_id, r.settled_at FROM outbox.receipt r WHERE r.message_id = m.id) AS o;
	RETURN QUERY
	WITH delivered AS MATERIALIZED (
		SELECT d.handler_id, h.name, d.xmin AS written_by, NULL::timestamptz AS settled_at, d.attempts, NULL::text AS code
		FROM outbox.delivery d JOIN outbox.handler h ON h.id = d.handler_id WHERE d.message_id = m.id
		UNION ALL
		SELECT r.handler_id, h.name, r.xmin, r.settled_at, r.attempts, r.code
		FROM outbox.receipt r JOIN outbox.handler h ON h.id = r.handler_id WHERE r.message_id = m.id
	), done AS MATERIALIZED (
		SELECT a AS action, a.xmin AS written_by FROM outbox.action a
		WHERE a.message_id IS NULL AND a.acted_at >= since AND a.acted_at <= until
			AND a.action IN ('requeue_where', 'requeue_all', 'replay', 'cancel_where', 'pause_handler', 'resume_handler', 'alter_handler', 'ensure_handler', 'rotate_secret', 'drop_handler')
			AND (a.arguments ->> 'handler' IS NULL OR a.arguments ->> 'handler' = ANY (handlers))
			AND (a.arguments ->> 'tenant' IS NULL OR a.arguments ->> 'tenant' = m.tenant)
	), met AS (
		-- Several between two attempts: one of them it was.
		SELECT c.action, d.name, f.how,
			count(*) FILTER (WHERE f.how = 'brought back') OVER (PARTITION BY d.handler_id, l.attempt) + CASE WHEN EXISTS (
				SELECT FROM outbox.action s WHERE s.message_id = m.id AND s.action = 'requeue' AND s.acted_at > l.finished_at) THEN 1 ELSE 0 END AS choices
		FROM done c
		CROSS JOIN delivered d
		CROSS JOIN LATERAL (SELECT (c.action).action AS name, (c.action).arguments AS told, (c.action).acted_at AS acted_at) AS t
		-- The last attempt before it that is logged.
		LEFT JOIN LATERAL (
			SELECT l.attempt, l.outcome, l.code, l.finished_at FROM outbox.attempt l
			WHERE l.message_id = m.id AND l.handler_id = d.handler_id AND l.finished_at < t.acted_at
			ORDER BY l.attempt DESC LIMIT 1) AS l ON true
		CROSS JOIN LATERAL (
			SELECT CASE
				WHEN t.name NOT IN ('requeue_where', 'requeue_all', 'replay', 'cancel_where') THEN
					CASE WHEN t.told ->> 'handler' = d.name AND (d.settled_at IS NULL OR d.settled_at >= t.acted_at OR d.written_by = c.written_by) THEN 'handler' END
				WHEN coalesce(t.told ->> 'handler', d.name) <> d.name OR coalesce(t.told ->> 'tenant', m.tenant, '') <> coalesce(m.tenant, '')
					OR m.id < outbox_internal.id_floor((t.told ->> 'since')::timestamptz) OR m.id >= outbox_internal.id_floor((t.told ->> 'until')::timestamptz)
					OR NOT outbox_internal.topic_taken(ARRAY[coalesce(t.told ->> 'topic', m.topic)], m.topic) THEN NULL
				WHEN d.written_by = c.written_by AND d.written_by <> m.written_by AND (t.name = 'cancel_where') = (d.settled_at IS NOT NULL) THEN 'written'
				WHEN t.name <> 'cancel_where' AND (d.settled_at IS NULL OR d.attempts > l.attempt) AND l.finished_at < coalesce((t.told ->> 'settled_before')::timestamptz, 'infinity')
					AND coalesce(t.told ->> 'code', l.code) IS NOT DISTINCT FROM l.code
					AND (t.name <> 'replay' AND l.outcome = 4 OR l.outcome = 3 AND (t.name = 'replay' OR t.told @> '{"include_delivered": true}')
						OR l.outcome = 5 AND t.told @> '{"include_cancelled": true}') THEN 'brought back' END AS how) AS f
		WHERE f.how IS NOT NULL
	)
	SELECT (e).at, (e).rank, (e).event, coalesce(x.name, (e).handler), (e).attempt, (e).detail, (e).data
	FROM met x
	CROSS JOIN LATERAL (
		SELECT outbox_internal.event_of_action(x.action, CASE
			WHEN x.how = 'brought back' AND x.choices > 1 THEN 'this delivery among others, if no other call before the next attempt did'
			WHEN x.how <> 'handler' THEN 'this delivery among others' END) AS e) AS v;
END $$;
COMMENT ON FUNCTION outbox_internal.events_of_bulk IS 'Internal: calls of operators in bulk that can be shown to have met a message, and changes of its handlers while it was outstanding';

CREATE FUNCTION outbox.message(id uuid, tenant text DEFAULT NULL)
RETURNS TABLE (at timestamptz, event text, handler text, attempt int, detail text, data jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 20 SET search_path = pg_catalog, pg_temp SET max_parallel_workers_per_gather = 0
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
	theirs text := tenant;
	is_there boolean;
BEGIN
	IF message.id IS NULL THEN
		RAISE EXCEPTION 'message id must not be null'
			USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass the id that outbox.stage() returned.';
	END IF;
	SELECT theirs IS NULL OR m.tenant = theirs COLLATE "C" INTO is_there FROM outbox.message m WHERE m.id = message.id;
	IF is_there IS NULL AND theirs IS NULL THEN
		-- Rows put right by hand may lack theirs.
		is_there := nullif(EXISTS (SELECT FROM outbox.delivery d WHERE d.message_id = message.id)
			OR EXISTS (SELECT FROM outbox.receipt r WHERE r.message_id = message.id), false);
	END IF;
	IF is_there THEN
		RETURN QUERY
		SELECT e.at, e.event, e.handler, e.attempt, e.detail, e.data
		FROM (
			SELECT * FROM outbox_internal.events_of_staging(message.id)
			UNION ALL SELECT * FROM outbox_internal.events_of_routing(message.id)
			UNION ALL SELECT * FROM outbox_internal.events_of_attempts(message.id)
			UNION ALL SELECT * FROM outbox_internal.events_of_outcome(message.id)
			UNION ALL SELECT * FROM outbox_internal.events_of_actions(message.id, NULL)
			UNION ALL SELECT * FROM outbox_internal.events_of_bulk(message.id)) AS e
		ORDER BY e.at, e.rank, e.handler, e.attempt, (e.data ->> 'action_id')::bigint;
		RETURN;
	END IF;
	IF is_there IS NULL THEN
		-- What was done to one that has been removed since is kept for longer.
		RETURN QUERY
		SELECT e.at, e.event, e.handler, e.attempt, e.detail, e.data
		FROM (
			SELECT * FROM outbox_internal.events_of_actions(message.id, theirs)
			UNION ALL
			SELECT outbox_internal.id_time(message.id), 0, 'staged', NULL, NULL, 'removed since, with its deliveries and attempts: what operators did is left', NULL
			WHERE EXISTS (SELECT FROM outbox_internal.events_of_actions(message.id, theirs))) AS e
		ORDER BY e.at, e.rank, (e.data ->> 'action_id')::bigint;
	END IF;
	IF is_there IS FALSE OR NOT FOUND THEN
		RAISE EXCEPTION 'message % does not exist%', message.id, CASE WHEN theirs IS NULL THEN '' ELSE format(' for tenant "%s"', theirs) END
			USING ERRCODE = 'no_data_found',
				HINT = 'Messages are removed once all their deliveries are settled and past retention.';
	END IF;
END $$;
COMMENT ON FUNCTION outbox.message IS
'All that is known of one message, in the order of time: a row for each thing that happened. In milliseconds, whatever else is kept.
id: the message. tenant: only if the message is this tenant''s.
at: when. handler, attempt: whose delivery, and which attempt. detail: in words. data: the same for programs, and more of it.
event: what it was. occurrence: a schedule staged it (its dedupe key says so; what a schedule''s function stages says nothing of it). staged: topic, key, tenant, correlation id, size of the payload; who staged it is not kept. replaces: the message of the same replace_key whose place it took. routed, unrouted: to which handler, with its URL as it is now; what is routed later (backfill) does not say when.
attempt: one that was logged (outbox.log_attempts; by default those that delivered are not, of more than 200 the first and the last 100 are): what it led to, HTTP status, code, how long it took, headers of the answer (outbox.log_response_headers), error.
delivered, dead, cancelled: how a delivery was settled, which of several times the last. pending, retrying, leased: how one stands as of now, and what it waits for, as in outbox.waiting; when a lease began is not kept, nor are leases that are over but for their attempt.
Any other event is the name of a function that an operator called, as in outbox.actions: those for this message; those in bulk (requeue_where, requeue_all, replay, cancel_where) that can be shown to have met it, because its delivery stands as that call has left it, or because an attempt before it had ended what another one after it went on with; and those that changed one of its handlers while it was outstanding, under the name that the handler has now. Of a call in bulk only the filter is kept: others may have met it that cannot be told from those that passed it by.
Of a message that was removed since what operators did to it by its id is left, for as long as outbox.action_retention says.
Errors: null_value_not_allowed, no_data_found if nothing is known of such a message.';

-----------------------------------------------------------------------------
-- The report: one page of HTML for whoever is woken up.
--
-- Functions for small pieces of HTML, then one for each section.  Whatever
-- comes from users or receivers passes through report_text(); what is written
-- here is ASCII, and well-formed as XML.  Sections show the worst ten and count
-- the rest.  Of the large tables only index ranges of a bounded number of rows
-- are read, in functions of their own that pin the plan.
-----------------------------------------------------------------------------

-- A text as content or attribute, cut after max characters.  Control characters XML does not allow.
CREATE FUNCTION outbox_internal.report_text(value text, max int DEFAULT 300) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT replace(replace(replace(replace(replace(regexp_replace(left(value, max), '[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]', '?', 'g'),
		'&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '"', '&quot;'), '''', '&#39;') || CASE WHEN length(value) > max THEN '&#8230;' ELSE '' END
$$;
COMMENT ON FUNCTION outbox_internal.report_text IS 'Internal: a text as HTML, cut after max characters';

CREATE FUNCTION outbox_internal.report_count(n numeric) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT to_char(n, 'FM999,999,999,999,999,990')
$$;
COMMENT ON FUNCTION outbox_internal.report_count IS 'Internal: a number with its thousands apart';

CREATE FUNCTION outbox_internal.report_duration(seconds float8) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT CASE
		WHEN seconds = 'infinity' THEN 'over 1000 s'
		WHEN seconds < 0.001 THEN round(seconds::numeric * 1000000) || ' &#181;s'
		WHEN seconds < 1 THEN round(seconds::numeric * 1000) || ' ms'
		WHEN seconds < 10 THEN trim_scale(round(seconds::numeric, 1)) || ' s'
		WHEN seconds < 120 THEN round(seconds) || ' s'
		WHEN seconds < 7200 THEN floor(seconds / 60) || ' min'
		WHEN seconds < 172800 THEN floor(seconds / 3600) || ' h'
		ELSE floor(seconds / 86400) || ' days' END
$$;
COMMENT ON FUNCTION outbox_internal.report_duration IS 'Internal: seconds in the unit that suits them';

CREATE FUNCTION outbox_internal.report_when(at timestamptz) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT format('<span title="%s">%s</span>', to_char(at, 'YYYY-MM-DD HH24:MI:SS TZ'),
		CASE WHEN at > clock_timestamp() THEN 'in ' || outbox_internal.report_duration(extract(epoch FROM at - clock_timestamp())::float8)
			ELSE outbox_internal.report_duration(extract(epoch FROM clock_timestamp() - at)::float8) || ' ago' END)
	WHERE isfinite(at)
$$;
COMMENT ON FUNCTION outbox_internal.report_when IS 'Internal: a time as its distance from now, and itself to whoever points at it';

CREATE FUNCTION outbox_internal.report_bar(share float8, look text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT format('<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="8"/><rect class="%s" width="%s" height="8"/></svg>',
		look, round(100 * greatest(0, least(1, coalesce(share, 0)))::numeric, 1))
$$;
COMMENT ON FUNCTION outbox_internal.report_bar IS 'Internal: a horizontal bar of a share of 1';

-- Where a time is between 100 us and 1000 s, a seventh of the width for each power of ten.
CREATE FUNCTION outbox_internal.report_place(seconds float8) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT round(((log(greatest(0.0001, least(1000, seconds))) + 4) * 100 / 7)::numeric, 1)
$$;
COMMENT ON FUNCTION outbox_internal.report_place IS 'Internal: the place of a time on a logarithmic scale from 100 us to 1000 s, in percent';

CREATE FUNCTION outbox_internal.report_quantiles(p50 float8, p99 float8) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT format('<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="8"/><path class="tick" d="%s"/><rect class="delivered" x="%s" y="2" width="%s" height="4"/><rect class="mark" x="%2$s" width="1" height="8"/></svg>',
		'M14.3 0V8M28.6 0V8M42.9 0V8M57.1 0V8M71.4 0V8M85.7 0V8', least(99, outbox_internal.report_place(p50)),
		greatest(1, outbox_internal.report_place(p99) - outbox_internal.report_place(p50)))
	WHERE p50 IS NOT NULL
$$;
COMMENT ON FUNCTION outbox_internal.report_quantiles IS 'Internal: a bar from p50 to p99 on the scale of report_place()';

-- The next higher one of 1, 2, 5, 10, 20 ...
CREATE FUNCTION outbox_internal.report_top(highest float8) RETURNS float8
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT min(m * p.power) FROM unnest('{1,2,5,10}'::float8[]) m, (SELECT power(10::float8, floor(log(greatest(1, highest)))) AS power) p
	WHERE m * p.power >= greatest(1, highest)
$$;
COMMENT ON FUNCTION outbox_internal.report_top IS 'Internal: where the axis of a chart ends';

-- Heads are set apart by |; those of columns of numbers begin with #.
CREATE FUNCTION outbox_internal.report_table(heads text, rows text, rest text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT format('<div class="scroll"><table><thead><tr>%s</tr></thead><tbody>%s</tbody></table></div>%s',
		(SELECT string_agg(CASE WHEN h LIKE '#%' THEN '<th class="n">' || substr(h, 2) ELSE '<th>' || h END || '</th>', '' ORDER BY n) FROM string_to_table(heads, '|') WITH ORDINALITY u (h, n)),
		rows, '<p class="rest">' || rest || '</p>')
$$;
COMMENT ON FUNCTION outbox_internal.report_table IS 'Internal: a table of rows that are HTML already, and what the rest is, if anything';

CREATE FUNCTION outbox_internal.report_section(title text, note text, body text, instead text, look_at text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT format('<section><h2>%s%s</h2>%s<p class="more"><code>%s</code></p></section>', title, ' <small>' || note || '</small>',
		coalesce(body, '<p class="nothing">' || instead || '</p>'), outbox_internal.report_text(look_at))
$$;
COMMENT ON FUNCTION outbox_internal.report_section IS 'Internal: a section with its title, a note beside it, what to say where there is nothing, and where to look further';

CREATE FUNCTION outbox_internal.report_style() RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
	SELECT '
:root { color-scheme: light dark; --page: #f3f5f8; --card: #ffffff; --line: #dfe4ea; --text: #18202a; --quiet: #566270; --track: #e9edf2;
	--delivered: #2f6fde; --outstanding: #d08700; --dead: #cf222e; --ok: #17733a; --warn: #8a5a00; --critical: #b4161f;
	--ok-page: #e3f5e8; --warn-page: #fdf1d6; --critical-page: #fde4e4 }
@media (prefers-color-scheme: dark) { :root { --page: #0f1318; --card: #181e26; --line: #2b333e; --text: #e7ebf0; --quiet: #9daab8; --track: #252d37;
	--delivered: #5d9bff; --outstanding: #e8ac3f; --dead: #ff6b6b; --ok: #62d68b; --warn: #f2bd55; --critical: #ff8a85;
	--ok-page: #12301f; --warn-page: #352a10; --critical-page: #421a1b } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 20px; max-width: 1240px; background: var(--page); color: var(--text); font: 14px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
h1 { font-size: 16px; margin: 0 } h2 { font-size: 15px; margin: 0 0 10px } small { font-weight: normal; color: var(--quiet); font-size: 12px; margin-left: 4px }
p { margin: 0 } ul { margin: 8px 0 0; padding-left: 18px } li, td, dd { overflow-wrap: anywhere; unicode-bidi: isolate }
.verdict { display: flex; gap: 24px; padding: 18px 20px; border-radius: 8px; border-left: 8px solid; margin-bottom: 14px }
.verdict .status { font-size: 30px; line-height: 1.2; font-weight: 700; white-space: nowrap } .verdict .about { color: var(--quiet) }
.ok { background: var(--ok-page); border-color: var(--ok) } .ok .status { color: var(--ok) }
.warn { background: var(--warn-page); border-color: var(--warn) } .warn .status { color: var(--warn) }
.critical { background: var(--critical-page); border-color: var(--critical) } .critical .status { color: var(--critical) }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(104px, 1fr)); gap: 10px; margin: 0 0 14px }
dl div, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px }
dt { color: var(--quiet); font-size: 12px } dd small { display: block; margin: 0 } dd { margin: 0; font-size: 20px; font-variant-numeric: tabular-nums } dd.bad { color: var(--critical) } dd.odd { color: var(--warn) }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); gap: 0 14px }
section { padding: 14px 16px; margin-bottom: 14px; min-width: 0 }
.scroll { overflow-x: auto } table { width: 100%; border-collapse: collapse; font-size: 13px }
th { text-align: left; font-weight: 600; font-size: 12px; color: var(--quiet); white-space: nowrap } th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top }
th:last-child, td:last-child { padding-right: 0 } .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap } td.g { width: 12%; min-width: 90px; padding-top: 9px } td.w { min-width: 120px } .s { white-space: nowrap }
.bad { color: var(--critical); font-weight: 600 } .odd { color: var(--warn); font-weight: 600 } .quiet, .rest, .nothing, .more { color: var(--quiet) }
.rest, .nothing, .more { font-size: 12px; margin-top: 8px } .nothing { font-size: 13px; margin: 2px 0 } code { font: 12px ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere }
svg { display: block; width: 100% } svg.bar { height: 10px; border-radius: 2px } svg text { fill: var(--quiet); font-size: 11px; font-family: inherit }
.track { fill: var(--track) } .grid { stroke: var(--line); fill: none; vector-effect: non-scaling-stroke } .tick { stroke: var(--card); stroke-width: 2; vector-effect: non-scaling-stroke } .mark { fill: var(--text) } .delivered { fill: var(--delivered) } .outstanding { fill: var(--outstanding) } .dead { fill: var(--dead) }
.quantile { stroke: var(--text); stroke-dasharray: 3 2 } svg text.strong { fill: var(--text); font-weight: 600 } .key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 4px 0 12px }
.key.first { margin-left: 0 } .key.delivered { background: var(--delivered) } .key.outstanding { background: var(--outstanding) } .key.dead { background: var(--dead) }
footer { color: var(--quiet); font-size: 12px } @media print { body { max-width: none } section { break-inside: avoid } }
'
$$;
COMMENT ON FUNCTION outbox_internal.report_style IS 'Internal: the style sheet of outbox.report()';

-- What became of messages that were staged lately: in sixty steps, by their ids,
-- which begin with the time.  Each step has eight pieces; of each at most 200
-- messages are read, and if there are more it is taken to go on as these do.
CREATE FUNCTION outbox_internal.report_steps(first_at timestamptz, step interval, OUT n int, OUT messages float8, OUT outstanding float8, OUT dead float8,
	OUT sampled boolean) RETURNS SETOF record
LANGUAGE plpgsql STABLE ROWS 60 SET search_path = pg_catalog, pg_temp SET max_parallel_workers_per_gather = 0
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
	milliseconds CONSTANT float8 := extract(epoch FROM step) * 1000 / 8;
BEGIN
	RETURN QUERY
	SELECT g.piece / 8, sum(c.messages * t.times), sum(s.outstanding * t.times), sum(s.dead * t.times), bool_or(p.last IS NOT NULL)
	FROM generate_series(0, 479) g (piece)
	CROSS JOIN LATERAL (SELECT outbox_internal.id_floor(first_at + g.piece * step / 8) AS low, outbox_internal.id_floor(first_at + (g.piece + 1) * step / 8) AS high OFFSET 0) r
	CROSS JOIN LATERAL (
		SELECT (SELECT m.id FROM outbox.message m WHERE m.id >= r.low AND m.id < r.high ORDER BY m.id OFFSET 199 LIMIT 1) AS last OFFSET 0) p
	CROSS JOIN LATERAL (
		SELECT CASE WHEN p.last IS NULL THEN (SELECT count(*) FROM outbox.message m WHERE m.id >= r.low AND m.id < r.high) ELSE 200 END AS messages OFFSET 0) c
	-- Of the last one that was read, how long after the beginning it was staged: a time in milliseconds is what an id begins with.
	CROSS JOIN LATERAL (
		SELECT CASE WHEN p.last IS NULL THEN 1 ELSE greatest(1, milliseconds / (1
			+ ('x' || left(replace(p.last::text, '-', ''), 12))::bit(48)::bigint - ('x' || left(replace(r.low::text, '-', ''), 12))::bit(48)::bigint)) END AS times) t
	CROSS JOIN LATERAL (
		SELECT count(*) FILTER (WHERE d.outstanding AND NOT d.dead) AS outstanding, count(*) FILTER (WHERE d.dead) AS dead
		FROM (
			SELECT u.message_id, bool_or(u.outstanding) AS outstanding, bool_or(u.dead) AS dead
			FROM (
				(SELECT o.message_id, true AS outstanding, false AS dead FROM outbox.delivery o
				WHERE o.message_id >= r.low AND o.message_id < r.high AND o.message_id <= coalesce(p.last, r.high) ORDER BY o.message_id LIMIT 500)
				UNION ALL
				(SELECT b.message_id, false, b.state = 4 FROM outbox.receipt b
				WHERE b.state + 0 IN (4, 5) AND b.message_id >= r.low AND b.message_id < r.high AND b.message_id <= coalesce(p.last, r.high) ORDER BY b.message_id LIMIT 500)) u
			GROUP BY u.message_id) d
		WHERE c.messages > 0) s
	GROUP BY g.piece / 8;
END $$;
COMMENT ON FUNCTION outbox_internal.report_steps IS 'Internal: how many messages were staged in each of sixty steps of time, and of how many of them something is outstanding or dead, estimated where there are too many to read';

CREATE FUNCTION outbox_internal.report_throughput(period interval) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	WITH scale AS MATERIALIZED (
		SELECT date_trunc('second', clock_timestamp()) + interval '1 second' - period AS first_at, period / 60 AS step, extract(epoch FROM period)::float8 AS seconds
	), step AS MATERIALIZED (
		SELECT s.*, greatest(0, s.messages - s.outstanding - s.dead) AS done FROM scale, outbox_internal.report_steps(scale.first_at, scale.step) s
	), chart AS MATERIALIZED (
		SELECT outbox_internal.report_top(max(messages)) AS top, sum(messages) AS messages, bool_or(sampled) AS sampled FROM step
	), bar AS (
		SELECT string_agg(format('<g><title>%s: %s done, %s outstanding, %s dead</title>%s</g>', to_char(scale.first_at + step.n * scale.step, 'YYYY-MM-DD HH24:MI:SS'),
			outbox_internal.report_count(step.done::numeric), outbox_internal.report_count(step.outstanding::numeric), outbox_internal.report_count(step.dead::numeric), part.rects), '' ORDER BY step.n) AS all_bars
		FROM scale, chart, step
		CROSS JOIN LATERAL (
			-- One upon the other; what there is at all is two pixels high.
			SELECT string_agg(format('<rect class="%s" x="%s" y="%s" width="17" height="%s"/>', p.look, 62 + step.n * 19, round((160 - p.top)::numeric, 1), round(p.height::numeric, 1)), '' ORDER BY p.place) AS rects
			FROM (
				SELECT v.*, sum(v.height) OVER (ORDER BY v.place) AS top
				FROM (
					SELECT w.place, w.look, CASE WHEN w.value > 0 THEN greatest(2, 148 * w.value / chart.top) ELSE 0 END AS height
					FROM (VALUES (1, 'delivered', step.done), (2, 'outstanding', step.outstanding), (3, 'dead', step.dead)) w (place, look, value)) v) p
			WHERE p.height > 0) part
		WHERE step.messages > 0
	)
	SELECT outbox_internal.report_section('Throughput', format('messages staged within %s, and how they stand; each bar is %s', outbox_internal.report_duration(scale.seconds), outbox_internal.report_duration(scale.seconds / 60)),
		CASE WHEN chart.messages > 0 THEN format(
			'<svg viewBox="0 0 1208 184" role="img"><path class="grid" d="M58 160.5H1204M58 86.5H1204M58 12.5H1204"/>'
			'<text x="52" y="164" text-anchor="end">0</text><text x="52" y="90" text-anchor="end">%s</text><text x="52" y="16" text-anchor="end">%s</text>%s%s</svg>',
			trim_scale((chart.top / 2)::numeric), outbox_internal.report_count(chart.top::numeric), bar.all_bars,
			(SELECT string_agg(format('<text x="%s" y="180" text-anchor="%s">%s</text>', 62 + q * 285, ('{start,middle,middle,middle,end}'::text[])[q + 1],
				to_char(scale.first_at + q * 15 * scale.step, CASE WHEN period > '1 day' THEN 'MM-DD HH24:MI' WHEN period < '10 minutes' THEN 'HH24:MI:SS' ELSE 'HH24:MI' END)), '' ORDER BY q) FROM generate_series(0, 4) q))
			|| format('<p class="rest"><span class="key delivered first"></span>done<span class="key outstanding"></span>outstanding somewhere<span class="key dead"></span>dead somewhere.&#160; %s%s messages, %s a second%s</p>',
				CASE WHEN chart.sampled THEN 'About ' ELSE '' END, outbox_internal.report_count(chart.messages::numeric),
				trim_scale(round((chart.messages / scale.seconds)::numeric, CASE WHEN chart.messages < scale.seconds THEN 3 WHEN chart.messages < 100 * scale.seconds THEN 1 ELSE 0 END)),
				CASE WHEN chart.sampled THEN '; high bars are estimated' ELSE '' END) END,
		'Nothing was staged within this time.', 'SELECT * FROM outbox.handler_stats')
	FROM scale, chart, bar
$$;
COMMENT ON FUNCTION outbox_internal.report_throughput IS 'Internal: the section about what was staged lately';

-- One histogram of all handlers, without the buckets at both ends that are empty.
CREATE FUNCTION outbox_internal.report_histogram(which text, title text, look_at text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	WITH bucket AS MATERIALIZED (
		SELECT h.le_seconds, sum(h.n)::float8 AS n, row_number() OVER (ORDER BY h.le_seconds) - 1 AS place
		FROM outbox_internal.stat_histograms() h WHERE h.histogram = which GROUP BY h.le_seconds
	), chart AS MATERIALIZED (
		SELECT outbox_internal.report_top(max(n)) AS top, sum(n) AS total FROM bucket
	), quantile AS (
		SELECT q.place, q.share, min(b.le_seconds) AS seconds, min(b.place) AS bucket
		FROM (VALUES (1, 0.5::float8), (2, 0.9), (3, 0.99)) q (place, share), chart,
			(SELECT le_seconds, place, sum(n) OVER (ORDER BY le_seconds) AS cumulative FROM bucket) b
		WHERE b.cumulative >= q.share * chart.total AND chart.total > 0 GROUP BY q.place, q.share
	)
	SELECT outbox_internal.report_section(title, (SELECT string_agg(format('p%s &#8804; %s', 100 * share, outbox_internal.report_duration(seconds)), ', ' ORDER BY place) FROM quantile),
		CASE WHEN chart.total > 0 THEN format(
			'<svg viewBox="0 0 560 178" role="img"><path class="grid" d="M40 148.5H560M40 84.5H560M40 20.5H560"/><text x="36" y="152" text-anchor="end">0</text><text x="36" y="24" text-anchor="end">%s</text>%s%s%s</svg>',
			(SELECT CASE WHEN top >= 1000000 THEN round(top / 1000000) || 'M' WHEN top >= 1000 THEN round(top / 1000) || 'k' ELSE round(top)::text END FROM chart),
			(SELECT string_agg(format('<g><title>%s: %s</title><rect class="delivered" x="%s" y="%s" width="17" height="%s"/></g>',
				CASE WHEN le_seconds = 'infinity' THEN '' ELSE 'up to ' END || outbox_internal.report_duration(le_seconds), outbox_internal.report_count(n::numeric),
				43 + place * 19.8, round((148 - greatest(2, 128 * n / top))::numeric, 1), round(greatest(2, 128 * n / top)::numeric, 1)), '' ORDER BY place) FROM bucket WHERE n > 0),
			(SELECT string_agg(format('<text x="%s" y="166" text-anchor="middle">%s</text>', 51.5 + place * 19.8, outbox_internal.report_duration(le_seconds)), '' ORDER BY place)
				FROM bucket WHERE place % 3 = 0 AND le_seconds <> 'infinity'),
			-- Those of one bucket share a line.
			(SELECT string_agg(format('<path class="quantile" d="M%s 14V148"/><text class="strong" x="%1$s" y="11" text-anchor="%s">%s</text>', 61.5 + bucket * 19.8,
				-- To the outside, since they can be next to each other.
				CASE WHEN names LIKE 'p50%p99' THEN 'middle' WHEN names LIKE 'p50%' THEN 'end' WHEN names LIKE '%p99' THEN 'start' ELSE 'middle' END, names), '')
				FROM (SELECT bucket, string_agg('p' || 100 * share, ' ' ORDER BY place) AS names FROM quantile GROUP BY bucket) q)) END,
		'Nothing has been counted yet.', look_at)
	FROM chart
$$;
COMMENT ON FUNCTION outbox_internal.report_histogram IS 'Internal: the section about one kind of times';

CREATE FUNCTION outbox_internal.report_backlog() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	WITH busy AS MATERIALIZED (
		SELECT b.*, b.pending + b.retrying + b.leased AS outstanding, row_number() OVER (ORDER BY b.oldest_due_at, b.due DESC, b.handler) AS place,
			CASE WHEN b.counts_are_exact THEN '' ELSE '&#8776;' END AS about, b.due::float8 / nullif(max(b.due) OVER (), 0) AS share, b.oldest_due_age_seconds / nullif(max(b.oldest_due_age_seconds) OVER (), 0) AS age
		FROM outbox.backlog b WHERE b.pending + b.retrying + b.leased > 0
	)
	SELECT outbox_internal.report_section('Backlog', 'the oldest first', (
			SELECT outbox_internal.report_table('Handler|#Due||Oldest due||#Scheduled|#Retrying|#Leased|Held by|Lifted by',
				string_agg(format('<tr><td class="w">%s%s</td><td class="n">%s</td><td class="g">%s</td><td class="s %s">%s</td><td class="g">%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td>%s</td><td class="quiet">%s</td></tr>',
					outbox_internal.report_text(b.handler), CASE WHEN b.kind = 'push' THEN '' ELSE ' <small>' || b.kind || '</small>' END, b.about || outbox_internal.report_count(b.due), outbox_internal.report_bar(b.share, 'outstanding'),
					CASE WHEN b.oldest_due_age_seconds > 600 THEN 'bad' WHEN b.oldest_due_age_seconds > 60 THEN 'odd' ELSE '' END,
					outbox_internal.report_duration(b.oldest_due_age_seconds), outbox_internal.report_bar(b.age, CASE WHEN b.oldest_due_age_seconds > 600 THEN 'dead' ELSE 'outstanding' END),
					b.about || outbox_internal.report_count(b.scheduled), b.about || outbox_internal.report_count(b.retrying), b.about || outbox_internal.report_count(b.leased),
					outbox_internal.report_text(concat_ws(': ', coalesce(o.waiting_for, CASE b.kind WHEN 'pull' THEN 'consumer' END), o.detail), 160), outbox_internal.report_text(coalesce(o.lifted_by, CASE b.kind WHEN 'pull' THEN 'outbox.claim()' END))), '' ORDER BY b.place),
				(SELECT format('and %s more handlers with %s due of %s outstanding deliveries', outbox_internal.report_count(count(*)), outbox_internal.report_count(sum(r.due)), outbox_internal.report_count(sum(r.outstanding)))
				FROM busy r WHERE r.place > 10 HAVING count(*) > 0))
			FROM busy b LEFT JOIN outbox_internal.holds o ON o.handler_id = b.handler_id WHERE b.place <= 10 HAVING count(*) > 0),
		'Nothing is outstanding.', 'SELECT * FROM outbox.backlog; SELECT * FROM outbox.waiting WHERE handler = ...')
$$;
COMMENT ON FUNCTION outbox_internal.report_backlog IS 'Internal: the section about what is outstanding';

CREATE FUNCTION outbox_internal.report_failing() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	WITH failing AS MATERIALIZED (
		SELECT s.*, h.name, row_number() OVER (ORDER BY s.breaker <> 'closed' DESC, s.failing_since, s.recent_failures DESC, h.name) AS place
		FROM outbox.handler_status s JOIN outbox.handler h ON h.id = s.handler_id
		WHERE h.dropped_at IS NULL
			AND (s.breaker <> 'closed' OR s.failing_since IS NOT NULL OR s.recent_failures > 0 OR s.held_until > clock_timestamp() OR s.throttled_to IS NOT NULL)
	), came_back AS (
		SELECT t.handler_id, string_agg(v.name || ' ' || outbox_internal.report_count(v.n), ', ' ORDER BY v.n DESC) AS answers
		FROM outbox_internal.stat_handlers() t CROSS JOIN LATERAL (VALUES ('2xx', t.answers_2xx), ('3xx', t.answers_3xx), ('4xx', t.answers_4xx), ('5xx', t.answers_5xx),
			('timeout', t.timeouts), ('connect', t.connect_failures), ('tls', t.tls_failures), ('blocked', t.blocked), ('other', t.other_failures)) v (name, n)
		WHERE v.n > 0 AND t.handler_id IN (SELECT f.handler_id FROM failing f WHERE f.place <= 10) GROUP BY t.handler_id
	)
	SELECT outbox_internal.report_section('Failing handlers', 'within five minutes, as the dispatcher last wrote it', (
			SELECT outbox_internal.report_table('Handler|Fails since|#Failed||Circuit breaker|Asks for less|Came back so far',
				string_agg(format('<tr><td class="w">%s</td><td class="s">%s</td><td class="n">%s of %s</td><td class="g">%s</td><td>%s</td><td>%s</td><td>%s</td></tr>',
					outbox_internal.report_text(f.name), outbox_internal.report_when(f.failing_since), outbox_internal.report_count(f.recent_failures), outbox_internal.report_count(f.recent_attempts),
					outbox_internal.report_bar(f.recent_failures::float8 / nullif(f.recent_attempts, 0), 'dead'),
					CASE WHEN f.breaker <> 'closed' THEN concat_ws(' ', '<span class="bad">' || f.breaker || '</span>', outbox_internal.report_when(f.breaker_until), outbox_internal.report_text(f.breaker_reason)) END,
					concat_ws(', ', outbox_internal.report_when(f.held_until), trim_scale(round(f.throttled_to::numeric, 1)) || ' requests a second'), c.answers), '' ORDER BY f.place),
				(SELECT format('and %s more', outbox_internal.report_count(count(*))) FROM failing r WHERE r.place > 10 HAVING count(*) > 0))
			FROM failing f LEFT JOIN came_back c ON c.handler_id = f.handler_id WHERE f.place <= 10 HAVING count(*) > 0),
		'None fails.', 'SELECT * FROM outbox.handlers WHERE failing_since IS NOT NULL')
$$;
COMMENT ON FUNCTION outbox_internal.report_failing IS 'Internal: the section about handlers that fail';

CREATE FUNCTION outbox_internal.report_slowest() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	WITH asked AS MATERIALIZED (
		SELECT h.name, t.*, row_number() OVER (ORDER BY t.request_p99_seconds DESC, t.request_p50_seconds DESC, h.name) AS place
		FROM outbox_internal.stat_handlers() t JOIN outbox.handler h ON h.id = t.handler_id WHERE h.dropped_at IS NULL AND t.requests > 0
	)
	SELECT outbox_internal.report_section('Slowest receivers', 'from p50 to p99; the scale is from 100 &#181;s to 1000 s, with a line for each power of ten', (
			SELECT outbox_internal.report_table('Handler|#Requests|Request|#p50|#p99|Commit to answer|#p50|#p99',
				string_agg(format('<tr><td class="w">%s</td><td class="n">%s</td><td class="g">%s</td><td class="n">%s</td><td class="n">%s</td><td class="g">%s</td><td class="n">%s</td><td class="n">%s</td></tr>',
					outbox_internal.report_text(a.name), outbox_internal.report_count(a.requests),
					outbox_internal.report_quantiles(a.request_p50_seconds, a.request_p99_seconds), outbox_internal.report_duration(a.request_p50_seconds), outbox_internal.report_duration(a.request_p99_seconds),
					outbox_internal.report_quantiles(a.delivery_p50_seconds, a.delivery_p99_seconds), outbox_internal.report_duration(a.delivery_p50_seconds), outbox_internal.report_duration(a.delivery_p99_seconds)), '' ORDER BY a.place),
				(SELECT format('and %s more that answer sooner', outbox_internal.report_count(count(*))) FROM asked r WHERE r.place > 10 HAVING count(*) > 0))
			FROM asked a WHERE a.place <= 10 HAVING count(*) > 0),
		'No request has been counted yet.', 'SELECT * FROM outbox.stat_handlers ORDER BY request_p99_seconds DESC NULLS LAST')
$$;
COMMENT ON FUNCTION outbox_internal.report_slowest IS 'Internal: the section about the times of receivers';

-- The newest thousand dead ones, whose index says when they died.
CREATE FUNCTION outbox_internal.report_causes(OUT handler_id int, OUT code text, OUT http_status smallint, OUT deliveries bigint, OUT last_at timestamptz,
	OUT message_id uuid, OUT topic text, OUT error text) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET max_parallel_workers_per_gather = 0
SET enable_seqscan = off SET enable_sort = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
	RETURN QUERY
	WITH dead AS MATERIALIZED (
		SELECT r.handler_id, r.code, r.http_status, r.settled_at, r.message_id, r.error FROM outbox.receipt r WHERE r.state + 0 = 4 ORDER BY r.settled_at DESC LIMIT 1000
	), cause AS MATERIALIZED (
		SELECT DISTINCT ON (d.handler_id, d.code, d.http_status) d.*, count(*) OVER (PARTITION BY d.handler_id, d.code, d.http_status) AS deliveries
		FROM dead d ORDER BY d.handler_id, d.code, d.http_status, d.settled_at DESC
	)
	SELECT c.handler_id, c.code, c.http_status, c.deliveries, c.settled_at, c.message_id,
		(SELECT m.topic::text FROM outbox.message m WHERE m.id = c.message_id), c.error
	FROM cause c;
END $$;
COMMENT ON FUNCTION outbox_internal.report_causes IS 'Internal: of which handlers and codes the newest thousand dead letters are, with the newest one of each';

CREATE FUNCTION outbox_internal.report_dead(dead bigint) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	WITH cause AS MATERIALIZED (
		SELECT h.name, c.*, c.deliveries::float8 / max(c.deliveries) OVER () AS share, row_number() OVER (ORDER BY c.deliveries DESC, c.last_at DESC) AS place
		FROM outbox_internal.report_causes() c LEFT JOIN outbox.handler h ON h.id = c.handler_id
	)
	SELECT outbox_internal.report_section('Dead letters', CASE WHEN dead > 1000 THEN format('%s, of which the newest 1,000 died of', outbox_internal.report_count(dead)) ELSE 'by what they died of' END, (
			SELECT outbox_internal.report_table('Handler|Cause|#Deliveries||Last|Topic|Error|Message',
				string_agg(format('<tr><td class="w">%s</td><td>%s</td><td class="n">%s</td><td class="g">%s</td><td class="s">%s</td><td class="w">%s</td><td class="w">%s</td><td><code>%s</code></td></tr>',
					outbox_internal.report_text(c.name), outbox_internal.report_text(concat_ws(' ', c.code, nullif(c.http_status::text, c.code)), 80), outbox_internal.report_count(c.deliveries),
					outbox_internal.report_bar(c.share, 'dead'), outbox_internal.report_when(c.last_at), outbox_internal.report_text(c.topic, 100), outbox_internal.report_text(c.error, 200), c.message_id), '' ORDER BY c.place),
				(SELECT format('and %s more causes of %s deliveries', outbox_internal.report_count(count(*)), outbox_internal.report_count(sum(r.deliveries))) FROM cause r WHERE r.place > 10 HAVING count(*) > 0))
			FROM cause c WHERE c.place <= 10 HAVING count(*) > 0),
		'There are none.', 'SELECT * FROM outbox.find_deliveries(state => ''dead'', handler => ...); SELECT outbox.requeue_where(handler => ..., code => ..., dry_run => true)')
$$;
COMMENT ON FUNCTION outbox_internal.report_dead IS 'Internal: the section about dead letters';

CREATE FUNCTION outbox_internal.report_schedules() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	WITH schedule AS MATERIALIZED (
		SELECT s.*, row_number() OVER (ORDER BY s.state = 'retrying' DESC, s.state = 'ended', s.state = 'paused', s.next_run_at, s.name) AS place FROM outbox.schedules s
	)
	SELECT outbox_internal.report_section('Schedules', 'those that fail first, then what comes next', (
			SELECT outbox_internal.report_table('Schedule|State|Next occurrence|Last|#Runs|#Missed|Last error',
				string_agg(format('<tr><td class="w">%s</td><td class="%s">%s</td><td class="s">%s</td><td class="s">%s</td><td class="n">%s</td><td class="n">%s</td><td>%s</td></tr>',
					outbox_internal.report_text(s.name), CASE s.state WHEN 'retrying' THEN 'bad' WHEN 'paused' THEN 'odd' ELSE '' END,
					CASE WHEN s.failed_attempts > 0 THEN format('%s, failed %s times', s.state, s.failed_attempts) ELSE s.state END, outbox_internal.report_when(s.next_run_at),
					outbox_internal.report_when(s.last_run_at), outbox_internal.report_count(s.runs), outbox_internal.report_count(s.missed),
					outbox_internal.report_text(s.last_error, 200) || coalesce(' <small>' || outbox_internal.report_when(s.last_error_at) || '</small>', '')), '' ORDER BY s.place),
				(SELECT format('and %s more', outbox_internal.report_count(count(*))) FROM schedule r WHERE r.place > 10 HAVING count(*) > 0))
			FROM schedule s WHERE s.place <= 10 HAVING count(*) > 0),
		'There are none.', 'SELECT * FROM outbox.schedules')
$$;
COMMENT ON FUNCTION outbox_internal.report_schedules IS 'Internal: the section about schedules';

CREATE FUNCTION outbox_internal.report_unrouted() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	WITH topic AS MATERIALIZED (
		SELECT u.*, row_number() OVER (ORDER BY u.refused > 0 DESC, u.last_at DESC) AS place FROM outbox_internal.unrouted() u
	)
	SELECT outbox_internal.report_section('Topics that no handler takes', 'since the server started', (
			SELECT outbox_internal.report_table('Topic|#Staged|#Refused|First|Last',
				string_agg(format('<tr><td class="w">%s</td><td class="n">%s</td><td class="n">%s</td><td class="s">%s</td><td class="s">%s</td></tr>', outbox_internal.report_text(t.topic, 100),
					outbox_internal.report_count(t.messages), outbox_internal.report_count(t.refused), outbox_internal.report_when(t.first_at), outbox_internal.report_when(t.last_at)), '' ORDER BY t.place),
				(SELECT format('and %s more', outbox_internal.report_count(count(*))) FROM topic r WHERE r.place > 10 HAVING count(*) > 0))
			FROM topic t WHERE t.place <= 10 HAVING count(*) > 0),
		'None was met.', 'SELECT * FROM outbox.unrouted')
$$;
COMMENT ON FUNCTION outbox_internal.report_unrouted IS 'Internal: the section about topics that nobody takes';

CREATE FUNCTION outbox_internal.report_retention() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT outbox_internal.report_section('Retention', 'what has been removed in all', (
			SELECT outbox_internal.report_table('State|Behind|Next round|Last completed|#Messages|#Deliveries|#Attempts|#Inbox|Last error',
				string_agg(format('<tr><td class="%s">%s</td><td class="s">%s</td><td class="s">%s</td><td class="s">%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td class="n">%s</td><td>%s</td></tr>',
					CASE WHEN r.state IN ('idle', 'working', 'standby') THEN '' ELSE 'odd' END, concat_ws(' ', r.state, outbox_internal.report_when(r.held_until)), CASE WHEN r.behind_seconds >= 1 THEN outbox_internal.report_duration(r.behind_seconds) ELSE '&#8211;' END,
					outbox_internal.report_when(r.next_at), outbox_internal.report_when(r.completed_at), outbox_internal.report_count(r.messages), outbox_internal.report_count(r.deliveries),
					outbox_internal.report_count(r.attempts), outbox_internal.report_count(r.inbox), concat_ws(' ', outbox_internal.report_text(r.last_error), outbox_internal.report_when(r.last_error_at))), ''), NULL)
			FROM outbox.retention r HAVING count(*) > 0),
		'Nothing is known of it.', 'SELECT * FROM outbox.retention')
$$;
COMMENT ON FUNCTION outbox_internal.report_retention IS 'Internal: the section about what is removed';

CREATE FUNCTION outbox_internal.report_actions() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
	SELECT outbox_internal.report_section('Actions', 'what operators did last', (
			SELECT outbox_internal.report_table('When|Who|What|With|#Affected|Reason',
				string_agg(format('<tr><td class="s">%s</td><td class="w">%s</td><td>%s</td><td>%s</td><td class="n">%s</td><td>%s</td></tr>',
					outbox_internal.report_when(a.acted_at), outbox_internal.report_text(concat_ws(' as ', a.login, nullif(a.role, a.login))), outbox_internal.report_text(a.action),
					outbox_internal.report_text(concat_ws(', ', 'message ' || a.message_id, (SELECT string_agg(g.key || ': ' || g.value, ', ') FROM jsonb_each_text(a.arguments) g)), 200),
					outbox_internal.report_count(a.affected), outbox_internal.report_text(a.reason)), '' ORDER BY a.id DESC), NULL)
			FROM (SELECT * FROM outbox.action t ORDER BY t.id DESC LIMIT 10) AS a HAVING count(*) > 0),
		'There were none.', 'SELECT * FROM outbox.actions ORDER BY action_id DESC')
$$;
COMMENT ON FUNCTION outbox_internal.report_actions IS 'Internal: the section about what operators did';

CREATE FUNCTION outbox.report(period interval DEFAULT '1 hour') RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET extra_float_digits = 1 AS $$
#variable_conflict use_variable
DECLARE
	h record;
	dispatcher record;
	verdict text;
	figures text;
	about text;
BEGIN
	-- Receivers repeat in their errors what they were sent.
	PERFORM outbox_internal.stay_unseen();
	IF (period BETWEEN interval '1 minute' AND interval '366 days') IS NOT TRUE THEN
		RAISE EXCEPTION 'period must be between 1 minute and 366 days'
			USING ERRCODE = 'invalid_parameter_value', HINT = 'It is divided into the sixty bars of the chart of throughput.';
	END IF;
	SELECT * INTO h FROM outbox.health();
	about := CASE WHEN h.counts_are_exact THEN '' ELSE '&#8776;' END;
	SELECT s.*, s.busy_seconds / nullif(s.busy_seconds + s.waiting_seconds, 0) AS busy INTO dispatcher FROM outbox.stat_dispatcher s;
	verdict := format('<header class="verdict %s"><p class="status">%s</p><div><h1>outbox in database %s</h1><p class="about">%s, outbox %s, PostgreSQL %s%s</p>%s</div></header>',
		h.status, CASE h.status WHEN 'ok' THEN '&#10003; OK' WHEN 'warn' THEN '&#9888; Warning' ELSE '&#10007; Critical' END,
		outbox_internal.report_text(current_database()), to_char(clock_timestamp(), 'YYYY-MM-DD HH24:MI:SS TZ'), outbox_internal.report_text(outbox_internal.library()),
		outbox_internal.report_text(split_part(current_setting('server_version'), ' ', 1)), ', port ' || current_setting('port'),
		coalesce((SELECT '<ul>' || string_agg('<li>' || outbox_internal.report_text(r.reason, 500) || '</li>', '' ORDER BY r.n) || '</ul>' FROM unnest(h.reasons) WITH ORDINALITY r (reason, n)),
			'<p>Nothing wants attention.</p>'));
	figures := (
		SELECT '<dl>' || string_agg(format('<div><dt>%s</dt><dd class="%s">%s</dd></div>', f.name, f.look, f.value), '' ORDER BY f.n) || '</dl>'
		FROM (VALUES
			(1, 'Dispatcher', CASE WHEN h.dispatcher IN ('running', 'standby') THEN '' ELSE 'odd' END, outbox_internal.report_text(h.dispatcher) || coalesce(' <small>' || round(100 * dispatcher.busy) || '% busy</small>', '')),
			(2, 'Requests in flight', '', outbox_internal.report_count(h.in_flight)),
			(3, 'Due', '', about || outbox_internal.report_count(h.due)),
			(4, 'Oldest due', CASE WHEN h.oldest_due_age_seconds > 600 THEN 'bad' WHEN h.oldest_due_age_seconds > 60 THEN 'odd' ELSE '' END, coalesce(outbox_internal.report_duration(h.oldest_due_age_seconds), '&#8211;')),
			(5, 'Scheduled', '', about || outbox_internal.report_count(h.scheduled)),
			(6, 'Retrying', CASE WHEN h.retrying > 0 THEN 'odd' ELSE '' END, about || outbox_internal.report_count(h.retrying)),
			(7, 'Leased', '', about || outbox_internal.report_count(h.leased)),
			(8, 'Dead', CASE WHEN h.newly_dead > 0 THEN 'bad' ELSE '' END, about || outbox_internal.report_count(h.dead) || CASE WHEN h.newly_dead > 0 THEN ' <small>' || outbox_internal.report_count(h.newly_dead) || ' this hour</small>' ELSE '' END),
			(9, 'Failing handlers', CASE WHEN h.failing_handlers > 0 THEN 'bad' ELSE '' END, outbox_internal.report_count(h.failing_handlers)),
			(10, 'Paused handlers', CASE WHEN h.paused_handlers > 0 THEN 'odd' ELSE '' END, outbox_internal.report_count(h.paused_handlers))) f (n, name, look, value));
	RETURN concat_ws(E'\n', '<!DOCTYPE html>',
		'<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>',
		-- So that nothing runs or is loaded, whatever found its way in.
		'<meta http-equiv="Content-Security-Policy" content="default-src ''none''; style-src ''unsafe-inline''"/>',
		'<title>' || h.status || ': outbox in ' || outbox_internal.report_text(current_database()) || '</title><style>' || outbox_internal.report_style() || '</style></head><body>',
		verdict, figures,
		outbox_internal.report_throughput(period),
		outbox_internal.report_backlog(),
		outbox_internal.report_failing(),
		outbox_internal.report_dead(h.dead),
		'<div class="pair">',
		outbox_internal.report_histogram('delivery', 'From commit to answer', 'SELECT * FROM outbox.stat_histograms WHERE histogram = ''delivery'''),
		outbox_internal.report_histogram('request', 'Requests', 'SELECT * FROM outbox.stat_histograms WHERE histogram = ''request'''),
		'</div>',
		outbox_internal.report_slowest(),
		outbox_internal.report_schedules(),
		outbox_internal.report_unrouted(),
		outbox_internal.report_retention(),
		outbox_internal.report_actions(),
		'<footer>Latencies and what came back are counted ' || coalesce('since ' || to_char(dispatcher.stats_reset, 'YYYY-MM-DD HH24:MI:SS TZ'), 'where outbox is preloaded')
			|| '. Times are those of time zone ' || outbox_internal.report_text(current_setting('TimeZone')) || '.</footer></body></html>');
END $$;
COMMENT ON FUNCTION outbox.report IS
'One page of HTML about how it stands, to be written to a file and opened in a browser: no scripts, nothing that is loaded from elsewhere, light or dark as the reader prefers. The verdict of outbox.health() first, then its figures, throughput, backlog and its age by handler, handlers that fail, dead letters by their causes, latencies, the slowest receivers, schedules, topics that nobody takes, and retention. Of each kind it shows the ten worst, and how many more there are.
period: how far back throughput is shown, 1 minute to 366 days, in sixty bars; one of more than a thousand messages or so is estimated.
It has errors of dead letters, which may quote what receivers answered: for operators, not for monitors.
Numbers after an almost-equal sign are estimated, as in outbox.backlog. Reads what that does, the newest 1000 dead letters, shared memory, and up to 1600 messages for each bar.
Errors: invalid_parameter_value for an impossible period.';

-----------------------------------------------------------------------------
-- Growing: what update scripts work with (CONTRIBUTING.md, "Growing")
-----------------------------------------------------------------------------

CREATE FUNCTION outbox_internal.library() RETURNS text
LANGUAGE c STABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_sql_library';
COMMENT ON FUNCTION outbox_internal.library IS 'Internal: the version of these SQL objects that the library which is loaded was written for';

CREATE FUNCTION outbox_internal.require_library(version text) RETURNS void
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_sql_require_library';
COMMENT ON FUNCTION outbox_internal.require_library IS 'Internal: raise object_not_in_prerequisite_state if the library that is loaded is older than this version of the SQL objects and does not know it; first of all in an update script that has something new of the library';

-- Asked by a library that does not know this version, because it is older and
-- is still loaded: the server has not been restarted since the update.
CREATE FUNCTION outbox_internal.library_can(library text) RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
	SELECT '{}'::text[]
$$;
COMMENT ON FUNCTION outbox_internal.library_can IS 'Internal: what a library that was written for an older version may do with these objects: of stage, consume, configure and dispatch';

-- Replacing a function cannot add an argument, and dropping it takes along grants
-- and fails where somebody's view, policy or function depends on the old one.  So
-- the old function becomes the new one where it is: the planner adds the new
-- arguments' defaults to calls that were stored without them, as it does for
-- any other that is left out.  A statement that has begun goes on with the
-- arguments it began with, which C and SQL notice and PL/pgSQL would not.
CREATE FUNCTION outbox_internal.grow(grown regprocedure, model regprocedure) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	was pg_proc;
	becomes pg_proc;
	added int;
	had_columns text[];
	has_columns text[];
BEGIN
	SELECT p.* INTO STRICT was FROM pg_proc p WHERE p.oid = grown;
	SELECT p.* INTO STRICT becomes FROM pg_proc p WHERE p.oid = model;
	added := becomes.pronargs - was.pronargs;
	SELECT array_agg(concat(a.name, ' ', a.type::regtype) ORDER BY a.n) INTO had_columns
	FROM unnest(was.proargnames, was.proallargtypes, was.proargmodes) WITH ORDINALITY a (name, type, mode, n) WHERE a.mode IN ('o', 'b', 't');
	SELECT array_agg(concat(a.name, ' ', a.type::regtype) ORDER BY a.n) INTO has_columns
	FROM unnest(becomes.proargnames, becomes.proallargtypes, becomes.proargmodes) WITH ORDINALITY a (name, type, mode, n) WHERE a.mode IN ('o', 'b', 't');
	IF (was.prokind, was.proretset, was.prorettype) IS DISTINCT FROM (becomes.prokind, becomes.proretset, becomes.prorettype)
		OR (was.proargtypes::oid[])[0:was.pronargs - 1] IS DISTINCT FROM (becomes.proargtypes::oid[])[0:was.pronargs - 1]
		OR was.proargnames[1:was.pronargs] IS DISTINCT FROM becomes.proargnames[1:was.pronargs]
		OR becomes.pronargdefaults < was.pronargdefaults + added
		OR had_columns IS DISTINCT FROM has_columns[1:cardinality(had_columns)] THEN
		RAISE EXCEPTION 'function % cannot grow into %', grown, model
			USING ERRCODE = 'invalid_function_definition',
				HINT = 'New arguments come after the others and have defaults, new columns come after the others, and nothing else changes.';
	ELSIF added > 0 AND (SELECT l.lanname FROM pg_language l WHERE l.oid = becomes.prolang) NOT IN ('c', 'sql') THEN
		RAISE EXCEPTION 'function % cannot get arguments in its language', grown
			USING ERRCODE = 'invalid_function_definition', HINT = 'Write it in C or SQL; it can call one in PL/pgSQL that is new.';
	END IF;

	DELETE FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = grown AND d.deptype = 'n';
	UPDATE pg_depend d SET objid = grown WHERE d.classid = 'pg_proc'::regclass AND d.objid = model AND d.deptype = 'n';
	EXECUTE format('DROP ROUTINE %s', model);
	UPDATE pg_proc p SET prolang = becomes.prolang, procost = becomes.procost, prorows = becomes.prorows, provariadic = becomes.provariadic,
		prosupport = becomes.prosupport, prosecdef = becomes.prosecdef, proleakproof = becomes.proleakproof, proisstrict = becomes.proisstrict,
		provolatile = becomes.provolatile, proparallel = becomes.proparallel, pronargs = becomes.pronargs, pronargdefaults = becomes.pronargdefaults,
		proargtypes = becomes.proargtypes, proallargtypes = becomes.proallargtypes, proargmodes = becomes.proargmodes,
		proargnames = becomes.proargnames, proargdefaults = becomes.proargdefaults, protrftypes = becomes.protrftypes,
		prosrc = becomes.prosrc, probin = becomes.probin, prosqlbody = becomes.prosqlbody, proconfig = becomes.proconfig
	WHERE p.oid = grown;
END $$;
COMMENT ON FUNCTION outbox_internal.grow IS 'Internal: make of a function what another one is, which has more arguments or columns, and drop that one. Its name, grants and comment and whatever depends on it stay. Raises invalid_function_definition unless it goes on taking every call that it took';

-- psql shows a comment as it is.  So that nobody has to wrap lines in this
-- script, and lines that are put together from options are wrapped too, it is
-- done here, of all objects there are.
CREATE FUNCTION outbox_internal.wrap_comments() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	object record;
BEGIN
	FOR object IN
		SELECT CASE WHEN i.type LIKE '% column' THEN 'COLUMN' WHEN i.type = 'composite type' THEN 'TYPE' ELSE i.type END AS type, i.identity,
			(SELECT string_agg(CASE WHEN length(l.line) > 110 THEN rtrim(regexp_replace(l.line, '(.{1,108})( +|$)', E'\\1\n  ', 'g'), E'\n ') ELSE l.line END,
					E'\n' ORDER BY l.n)
				FROM regexp_split_to_table(d.description, '\n') WITH ORDINALITY l (line, n)) AS wrapped
		FROM pg_extension e JOIN pg_depend m ON m.refclassid = 'pg_extension'::regclass AND m.refobjid = e.oid AND m.deptype = 'e'
			JOIN pg_description d ON d.classoid = m.classid AND d.objoid = m.objid
			CROSS JOIN LATERAL pg_identify_object(d.classoid, d.objoid, d.objsubid) i
		WHERE e.extname = 'outbox' AND d.description ~ '[^\n]{111}'
	LOOP
		EXECUTE format('COMMENT ON %s %s IS %L', object.type, object.identity, object.wrapped);
	END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.wrap_comments IS 'Internal: break lines of comments that are wider than 110 columns; what goes on is indented';
SELECT outbox_internal.wrap_comments();

-----------------------------------------------------------------------------
-- Grants: PUBLIC gets nothing
-----------------------------------------------------------------------------

REVOKE ALL ON ALL ROUTINES IN SCHEMA outbox, outbox_internal FROM PUBLIC;

-- Nor does anybody else, whatever ALTER DEFAULT PRIVILEGES says of what the
-- installing role creates.
DO $$
DECLARE
	grantee text;
BEGIN
	FOR grantee IN
		SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::pg_catalog.regrole::text END
		FROM (
			SELECT n.nspacl AS acl, n.nspowner AS owner FROM pg_catalog.pg_namespace n WHERE n.nspname IN ('outbox', 'outbox_internal')
			UNION ALL
			SELECT c.relacl, c.relowner FROM pg_catalog.pg_class c WHERE c.relnamespace = 'outbox'::pg_catalog.regnamespace
			UNION ALL
			SELECT p.proacl, p.proowner FROM pg_catalog.pg_proc p
			WHERE p.pronamespace IN ('outbox'::pg_catalog.regnamespace, 'outbox_internal'::pg_catalog.regnamespace)) o
		CROSS JOIN LATERAL pg_catalog.aclexplode(o.acl) a
		WHERE a.grantee <> o.owner
	LOOP
		EXECUTE 'REVOKE ALL ON SCHEMA outbox, outbox_internal FROM ' || grantee;
		EXECUTE 'REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM ' || grantee;
		EXECUTE 'REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM ' || grantee;
		EXECUTE 'REVOKE ALL ON ALL ROUTINES IN SCHEMA outbox, outbox_internal FROM ' || grantee;
	END LOOP;
END $$;

-- Roles that may read or write every table there is (pg_read_all_data,
-- pg_write_all_data, and whoever can grant those) do so without any grant: row
-- level security without a policy shows them no row and takes none from them.
-- It does not bind the tables' owner, with whose rights functions, views and
-- workers read and write.
DO $$
DECLARE
	name text;
BEGIN
	FOR name IN
		SELECT c.relname FROM pg_catalog.pg_class c
		WHERE c.relnamespace = 'outbox'::pg_catalog.regnamespace AND c.relkind IN ('r', 'p')
	LOOP
		EXECUTE pg_catalog.format('ALTER TABLE outbox.%I ENABLE ROW LEVEL SECURITY', name);
	END LOOP;
END $$;
GRANT USAGE ON SCHEMA outbox TO PUBLIC;

-- Figures without any content of messages are for those who monitor servers.
GRANT SELECT ON outbox.backlog, outbox.handler_stats, outbox.stat_handlers, outbox.stat_histograms, outbox.stat_dispatcher, outbox.dispatchers TO pg_monitor;
GRANT EXECUTE ON FUNCTION outbox_internal.dispatchers(), outbox_internal.backlog(int, int), outbox_internal.stat_handlers(), outbox_internal.stat_histograms(),
	outbox_internal.stat_dispatcher(), outbox.metrics(), outbox.health(interval, interval, bigint, bigint, interval, bigint) TO pg_monitor;

-- Ids of handlers begin again: whatever shared memory knows of handlers of an
-- earlier outbox in this database is not of these.
SELECT outbox_internal.ring_rescan();
SELECT outbox_internal.reset_counters(NULL);

-- The launcher starts a dispatcher here as soon as this commits.
SELECT outbox_internal.ring_launcher();
