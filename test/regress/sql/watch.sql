-- outbox.watch(): what changes of a table stage, and what is refused.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never
CREATE VIEW pg_temp.staged AS SELECT topic, payload, key, tenant FROM outbox.message ORDER BY id;

CREATE SCHEMA shop;
CREATE TABLE shop.invoice (
	id int PRIMARY KEY,
	org_id text,
	amount numeric,
	note text,
	seen_at timestamptz,
	deleted_at timestamptz,
	gross numeric GENERATED ALWAYS AS (amount * 1.2) STORED
);

-- Every way to write, one message for each row; an update that changes nothing is silent.
SELECT outbox.watch('shop.invoice', 'billing.invoice');
INSERT INTO shop.invoice (id, org_id, amount) VALUES (1, 'acme', 10), (2, NULL, 20);
UPDATE shop.invoice SET amount = amount + 1;
UPDATE shop.invoice SET amount = amount;
UPDATE shop.invoice SET id = 3 WHERE id = 2;
INSERT INTO shop.invoice (id, amount) VALUES (1, 5), (4, 5) ON CONFLICT (id) DO UPDATE SET note = 'twice';
INSERT INTO shop.invoice (id, amount) VALUES (1, 5) ON CONFLICT (id) DO NOTHING;
COPY shop.invoice (id, amount) FROM stdin;
5	1
6	2
\.
DELETE FROM shop.invoice WHERE id > 4;
TRUNCATE shop.invoice;
SELECT * FROM pg_temp.staged;
CALL regress.empty();

-- Rolled back with the write.
BEGIN;
INSERT INTO shop.invoice (id) VALUES (1);
SAVEPOINT s;
INSERT INTO shop.invoice (id) VALUES (2);
ROLLBACK TO s;
COMMIT;
SELECT * FROM pg_temp.staged;
TRUNCATE shop.invoice;
CALL regress.empty();

-- All options.
SELECT outbox.watch('shop.invoice', 'billing.invoice', model => 'Invoice', tenant => 'org_id', include => '{amount,note}', ignore => '{seen_at,gross}',
	soft_delete => 'deleted_at', actor => '{"userId": "app.user_id", "impersonatedBy": "app.impersonator"}', context => '{"organisationId": "org_id"}', truncate => 'refuse');
SELECT relation, model, prefix, operations, truncate, record_id, tenant, key, include, ignore, soft_delete, actor, context, condition, owner = current_user AS owner_is_me, fires FROM outbox.watched \gx
INSERT INTO shop.invoice VALUES (1, 'acme', 10, 'ü "quoted"');
UPDATE shop.invoice SET seen_at = now();
BEGIN;
SET LOCAL app.user_id = '7';
SET LOCAL app.impersonator = '1';
UPDATE shop.invoice SET amount = 11, seen_at = now();
COMMIT;
-- Set in an earlier transaction only, so they are empty now.
UPDATE shop.invoice SET deleted_at = now();
UPDATE shop.invoice SET note = NULL;
UPDATE shop.invoice SET deleted_at = NULL;
UPDATE shop.invoice SET org_id = '';
DELETE FROM shop.invoice;
SELECT * FROM pg_temp.staged;
SELECT regress.error_of('TRUNCATE shop.invoice');
CALL regress.empty();

-- The same again is nothing; other options take the place of the old ones.
SELECT outbox.watch('shop.invoice', operations => '{delete}');
SELECT outbox.watch('shop.invoice', operations => '{delete}');
SELECT tgname FROM pg_trigger WHERE tgrelid = 'shop.invoice'::regclass ORDER BY tgname;
INSERT INTO shop.invoice (id) VALUES (1);
UPDATE shop.invoice SET amount = 1;
DELETE FROM shop.invoice;
SELECT * FROM pg_temp.staged;
SELECT outbox.unwatch('shop.invoice');
SELECT outbox.unwatch('shop.invoice');
SELECT count(*) FROM outbox.watched;
SELECT count(*) FROM pg_trigger WHERE tgrelid = 'shop.invoice'::regclass;
CALL regress.empty();

-- Of soft deletes only what is asked for.
SELECT outbox.watch('shop.invoice', soft_delete => 'deleted_at', operations => '{delete}', truncate => 'ignore');
INSERT INTO shop.invoice (id) VALUES (1);
UPDATE shop.invoice SET amount = 1;
UPDATE shop.invoice SET deleted_at = now();
UPDATE shop.invoice SET deleted_at = NULL;
TRUNCATE shop.invoice;
SELECT topic, payload FROM pg_temp.staged;
CALL regress.empty();
CREATE TABLE shop.flagged (id int PRIMARY KEY, gone boolean);
SELECT outbox.watch('shop.flagged', soft_delete => 'gone');
INSERT INTO shop.flagged VALUES (1, NULL), (2, false);
UPDATE shop.flagged SET gone = true;
UPDATE shop.flagged SET gone = false;
UPDATE shop.flagged SET gone = NULL;
SELECT payload FROM pg_temp.staged;
CALL regress.empty();

-- Keys: of one column, of several, none; a column that says what belongs together; too long for one.
CREATE TABLE shop.line (invoice int, "No." text, amount numeric, PRIMARY KEY (invoice, "No."));
SELECT outbox.watch('shop.line', include => '{No.}');
INSERT INTO shop.line VALUES (1, 'a', 1), (1, repeat('x', 300), 1);
SELECT outbox.watch('shop.line', key => 'invoice', record_id => '{No.}');
INSERT INTO shop.line VALUES (7, 'b', 1);
SELECT payload ->> 'recordId' AS record_id, key, length(key) FROM pg_temp.staged WHERE length(payload::text) < 200;
SELECT length(key), key ~ '^[0-9a-f]{64}$' AS is_digest FROM pg_temp.staged WHERE length(payload::text) > 200;
CALL regress.empty();

-- Values of every kind, as to_jsonb() makes them.
CREATE TYPE shop.mood AS ENUM ('glad', 'sad');
CREATE TABLE shop.kinds (id uuid PRIMARY KEY, i bigint, n numeric, t text, b boolean, j jsonb, js json, a int[], m shop.mood, d date, r shop.flagged, by bytea);
SELECT outbox.watch('shop.kinds', include => '{i,n,t,b,j,js,a,m,d,r,by}');
INSERT INTO shop.kinds VALUES ('8c6976e5-b541-4f44-9b5c-1d1d3f6e0a11', 1234567890123, 'NaN', 'x', true, '{"a": [1, {"b": null}]}', '[1]', '{1,2}', 'sad', '2026-01-02', ROW(1, true), '\x00ff');
INSERT INTO shop.kinds (id) VALUES ('8c6976e5-b541-4f44-9b5c-1d1d3f6e0a12');
SELECT outbox.message.payload = (SELECT jsonb_build_object('model', 'kinds', 'kind', 'created', 'recordId', id, 'values', to_jsonb(k) - 'id') FROM shop.kinds k WHERE k.id = (payload ->> 'recordId')::uuid) AS as_to_jsonb
FROM outbox.message ORDER BY id;
-- A large value that is left alone is not among the changed ones, wherever it is kept.
SELECT outbox.watch('shop.kinds');
UPDATE shop.kinds SET t = (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 1000) g), i = 1 WHERE i IS NOT NULL;
UPDATE shop.kinds SET b = false, t = t WHERE i = 1;
UPDATE shop.kinds SET t = t || '' WHERE i = 1;
UPDATE shop.kinds SET t = t || 'x' WHERE i = 1;
SELECT payload FROM pg_temp.staged WHERE payload ? 'changedFields';
CALL regress.empty();

-- Names of every kind.
CREATE SCHEMA "Üb er";
CREATE TABLE "Üb er"."Täble ""x""" ("Der Schlüssel" int PRIMARY KEY, "select" text, "a'b\c" text);
SELECT outbox.watch('"Üb er"."Täble ""x"""', tenant => 'select', include => ARRAY['a''b\c'], context => '["select"]', condition => 'NEW."select" IS DISTINCT FROM ''old'' /* OLD */');
SELECT relation, model, record_id, include, context, condition FROM outbox.watched WHERE model ~ 'T' \gx
INSERT INTO "Üb er"."Täble ""x""" VALUES (1, 'x', 'y'), (2, 'old', 'y');
SELECT * FROM pg_temp.staged;
CALL regress.empty();
DROP SCHEMA "Üb er" CASCADE;

-- A condition over both rows; what there is not is NULL.
CREATE TABLE shop.strict_article (id int PRIMARY KEY);
CREATE TABLE shop.article (id int PRIMARY KEY, state text, old text);
SELECT outbox.watch('shop.article', condition => $$coalesce(NEW.state, "old".state) = 'public' AND (OLD.id IS NULL OR NEW.old IS NULL OR Old.* IS DISTINCT FROM NEW.*) AND 'OLD' <> 'NEW' -- OLD$$);
SELECT tgname, pg_get_triggerdef(oid) ~ 'NULL::shop.article' AS has_null FROM pg_trigger WHERE tgrelid = 'shop.article'::regclass ORDER BY tgname;
INSERT INTO shop.article VALUES (1, 'draft'), (2, 'public');
UPDATE shop.article SET state = 'public';
UPDATE shop.article SET state = 'draft' WHERE id = 1;
DELETE FROM shop.article;
SELECT payload FROM pg_temp.staged;
CALL regress.empty();

SELECT outbox.watch('shop.strict_article', condition => 'OLD IS NULL');
INSERT INTO shop.strict_article VALUES (1);
DELETE FROM shop.strict_article;
SELECT payload FROM pg_temp.staged;
CALL regress.empty();

-- Foreign keys that cascade.
CREATE TABLE shop.author (id int PRIMARY KEY);
CREATE TABLE shop.book (id int PRIMARY KEY, author int REFERENCES shop.author ON DELETE CASCADE ON UPDATE CASCADE);
SELECT outbox.watch('shop.book');
INSERT INTO shop.author VALUES (1), (2);
INSERT INTO shop.book VALUES (1, 1), (2, 2);
UPDATE shop.author SET id = 3 WHERE id = 1;
DELETE FROM shop.author;
SELECT payload FROM pg_temp.staged;
CALL regress.empty();

-- Partitions, with columns in another order; a row that moves is deleted and created.
CREATE TABLE shop.event (at date, id int, kind text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE shop.event_1 PARTITION OF shop.event FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
SELECT outbox.watch('shop.event', record_id => '{id}', tenant => 'kind', condition => 'coalesce(NEW.kind, OLD.kind) <> ''secret''');
CREATE TABLE shop.event_2 (gone int, kind text, id int NOT NULL, at date NOT NULL);
ALTER TABLE shop.event_2 DROP COLUMN gone;
ALTER TABLE shop.event ATTACH PARTITION shop.event_2 FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
INSERT INTO shop.event VALUES ('2026-01-01', 1, 'a'), ('2026-02-01', 2, 'b'), ('2026-02-01', 3, 'secret');
INSERT INTO shop.event_2 VALUES ('c', 4, '2026-02-02');
UPDATE shop.event SET kind = 'd' WHERE id = 2;
UPDATE shop.event SET at = '2026-01-02' WHERE id = 2;
ALTER TABLE shop.event RENAME COLUMN id TO number;
ALTER TABLE shop.event RENAME COLUMN kind TO sort;
UPDATE shop.event SET sort = 'e' WHERE number = 4;
DELETE FROM shop.event;
TRUNCATE shop.event;
SELECT topic, payload, tenant, key FROM pg_temp.staged;
SELECT regress.error_of('SELECT outbox.watch(''shop.event_1'')');
SELECT regress.error_of('SELECT outbox.unwatch(''shop.event_1'')');
SELECT relation, record_id, tenant FROM outbox.watched WHERE relation = 'shop.event'::regclass;
SELECT outbox.watch('shop.event');
SELECT outbox.unwatch('shop.event');
SELECT count(*) FROM pg_trigger WHERE tgname ~ '^outbox_watch' AND tgrelid IN ('shop.event'::regclass, 'shop.event_1'::regclass, 'shop.event_2'::regclass);
CALL regress.empty();

-- Columns renamed, replaced, added, dropped, changed in type.
CREATE TABLE shop.item (id int PRIMARY KEY, org int, name text, color text);
SELECT outbox.watch('shop.item', tenant => 'org', include => '{name,color}', ignore => '{color}');
INSERT INTO shop.item VALUES (1, 1, 'a', 'red');
ALTER TABLE shop.item RENAME COLUMN org TO organisation;
ALTER TABLE shop.item RENAME COLUMN name TO title;
UPDATE shop.item SET title = 'b';
SELECT finding, severity, hint FROM outbox.verify() WHERE finding ~ 'watched';
ALTER TABLE shop.item ADD COLUMN size int DEFAULT 1;
UPDATE shop.item SET title = 'c';
UPDATE shop.item SET size = 2;
ALTER TABLE shop.item DROP COLUMN color;
UPDATE shop.item SET size = 3;
-- As in a migration to a wider key: the new column takes the name over.
ALTER TABLE shop.item ADD COLUMN new_id bigint;
UPDATE shop.item SET new_id = 10000000000;
ALTER TABLE shop.item DROP CONSTRAINT item_pkey;
ALTER TABLE shop.item RENAME COLUMN id TO old_id;
ALTER TABLE shop.item RENAME COLUMN new_id TO id;
UPDATE shop.item SET size = 4;
ALTER TABLE shop.item ALTER COLUMN organisation TYPE text;
UPDATE shop.item SET size = 5;
SELECT payload, tenant FROM pg_temp.staged;
-- Without its tenant nothing can be announced.
ALTER TABLE shop.item DROP COLUMN organisation;
SELECT regress.error_of('UPDATE shop.item SET size = 6');
SELECT outbox.watch('shop.item', record_id => '{id}');
UPDATE shop.item SET size = 6;
CALL regress.empty();

-- As other triggers do, these fire for what is written here, not for what is replicated, unless they are told to.
SET session_replication_role = replica;
UPDATE shop.item SET size = 7;
SELECT count(*) FROM pg_temp.staged;
ALTER TABLE shop.item ENABLE ALWAYS TRIGGER outbox_watch_update;
UPDATE shop.item SET size = 8;
SELECT count(*) FROM pg_temp.staged;
RESET session_replication_role;
ALTER TABLE shop.item DISABLE TRIGGER USER;
UPDATE shop.item SET size = 9;
SELECT count(*) FROM pg_temp.staged;
SELECT fires FROM outbox.watched WHERE relation = 'shop.item'::regclass;
CALL regress.empty();

-- Who may: the owner who is a producer.  Who writes needs no right here.
CREATE ROLE regress_watch_owner;
CREATE ROLE regress_watch_writer;
CREATE ROLE regress_watch_other;
GRANT USAGE ON SCHEMA shop, regress TO regress_watch_owner, regress_watch_writer, regress_watch_other;
CREATE TABLE shop.own (id int PRIMARY KEY, t text);
ALTER TABLE shop.own OWNER TO regress_watch_owner;
GRANT ALL ON shop.own TO regress_watch_writer, regress_watch_other;
SET ROLE regress_watch_owner;
SELECT regress.error_of('SELECT outbox.watch(''shop.own'')');
RESET ROLE;
SELECT outbox.grant_producer('regress_watch_owner'), outbox.grant_producer('regress_watch_other');
SET ROLE regress_watch_other;
SELECT regress.error_of('SELECT outbox.watch(''shop.own'')');
SELECT regress.error_of('SELECT outbox.unwatch(''shop.own'')');
SET ROLE regress_watch_owner;
-- The condition is no way to more rights than these.
SELECT left(regress.error_of($$SELECT outbox.watch('shop.own', condition => 'true) EXECUTE FUNCTION outbox.announce(''x''); ALTER ROLE regress_watch_owner SUPERUSER; CREATE TRIGGER x AFTER INSERT ON shop.own FOR EACH ROW WHEN (true')$$), 5) AS error;
SELECT outbox.watch('shop.own');
SELECT relation FROM outbox.watched WHERE owner = current_user;
SET ROLE regress_watch_writer;
SELECT regress.error_of('SELECT outbox.stage(''x'')');
INSERT INTO shop.own VALUES (1, 'x');
RESET ROLE;
SELECT * FROM pg_temp.staged;
-- The right is the owner's at the time of the change.
SELECT outbox.revoke_producer('regress_watch_owner');
SELECT finding, severity, hint FROM outbox.verify() WHERE finding ~ 'watched' AND hint ~ 'own';
SET ROLE regress_watch_writer;
SELECT regress.error_of('UPDATE shop.own SET t = ''y''');
UPDATE shop.own SET t = t;
SELECT regress.error_of('TRUNCATE shop.own');
RESET ROLE;
ALTER TABLE shop.own OWNER TO regress_watch_other;
SET ROLE regress_watch_writer;
UPDATE shop.own SET t = 'y';
RESET ROLE;
SELECT payload FROM pg_temp.staged;
CALL regress.empty();
-- Its condition runs as the writer, as those of other triggers do.
SET ROLE regress_watch_other;
SELECT outbox.watch('shop.own', condition => 'current_user = ''regress_watch_writer''');
UPDATE shop.own SET t = 'owner';
SET ROLE regress_watch_writer;
UPDATE shop.own SET t = 'writer';
RESET ROLE;
SELECT count(*) FROM pg_temp.staged;
SELECT outbox.revoke_producer('regress_watch_other');
DROP TABLE shop.own;
REVOKE ALL ON SCHEMA shop, regress FROM regress_watch_owner, regress_watch_writer, regress_watch_other;
DROP ROLE regress_watch_owner, regress_watch_writer, regress_watch_other;
CALL regress.empty();

-- A change that cannot be announced fails, and says why.
CREATE TABLE shop.strict (id int PRIMARY KEY, org text, t text);
SELECT outbox.watch('shop.strict', tenant => 'org', include => '{t}');
SELECT regress.error_of($$INSERT INTO shop.strict VALUES (1, repeat('x', 300))$$);
SELECT regress.error_of($$INSERT INTO shop.strict VALUES (1, 'x', repeat('x', 300000))$$);
SET outbox.unrouted = error;
SELECT regress.error_of($$INSERT INTO shop.strict VALUES (1)$$);
RESET outbox.unrouted;
SELECT count(*) FROM shop.strict;

-- A trigger on outbox's own tables that leads back to the watched one.
CREATE FUNCTION shop.back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF pg_trigger_depth() < 4 THEN
		INSERT INTO shop.strict VALUES ((SELECT max(id) + 1 FROM shop.strict), 'back', (NEW.payload ->> 'recordId'));
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER back AFTER INSERT ON outbox.message FOR EACH ROW EXECUTE FUNCTION shop.back();
ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER back;
INSERT INTO shop.strict VALUES (1);
SELECT payload FROM pg_temp.staged;
DROP TRIGGER back ON outbox.message;
CALL regress.empty();

-- What is refused.
CREATE VIEW shop.view AS SELECT 1 AS id;
CREATE TABLE shop.keyless (a int);
CREATE TABLE shop.taken (id int PRIMARY KEY);
CREATE TRIGGER outbox_watch_insert BEFORE INSERT ON shop.taken FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
SELECT call, regress.error_of('SELECT outbox.watch(' || call || ')') FROM (VALUES (1, 'NULL'), (2, '0'), (3, '''shop.view'''), (4, '''outbox.message'''), (5, '''outbox.handler'''), (6, '''pg_catalog.pg_class'''),
	(7, '''shop.keyless'''), (8, '''shop.taken'''),
	(9, '''shop.strict'', ''Bad'''), (10, '''shop.strict'', repeat(''x'', 250)'), (11, '''shop.strict'', record_id => ''{nope}'''), (12, '''shop.strict'', tenant => ''ORG'''),
	(13, '''shop.strict'', include => ''{ctid}'''), (14, '''shop.strict'', ignore => ''{t,nope}'''), (15, '''shop.strict'', soft_delete => ''nope'''), (16, '''shop.strict'', key => ''nope'''),
	(17, '''shop.strict'', include => ''{NULL}'''), (18, '''shop.strict'', actor => ''[]''::jsonb'), (19, '''shop.strict'', actor => ''1'''), (20, '''shop.strict'', actor => ''{"kind": "app.x"}'''),
	(21, '''shop.strict'', actor => ''{"a": {"b": 1}}'''), (22, '''shop.strict'', actor => ''{"a": "app.x"}'', context => ''{"a": "org"}'''), (23, '''shop.strict'', context => ''{"a": "nope"}'''),
	(24, '''shop.strict'', condition => ''nope'''), (25, '''shop.strict'', condition => ''NEW.nope = 1'''), (26, '''shop.strict'', condition => '''''), (27, '''shop.strict'', condition => ''$$'''),
	(28, '''shop.strict'', operations => ''{}'''), (29, '''shop.strict'', operations => ''{insert,truncate}'''), (30, '''shop.strict'', truncate => ''no''')) v (n, call) ORDER BY n;
SELECT regress.error_of('SELECT outbox.unwatch(NULL)');
SELECT regress.error_of('SELECT outbox.announce()');
CREATE TRIGGER by_hand AFTER INSERT ON shop.keyless FOR EACH ROW EXECUTE FUNCTION outbox.announce();
SELECT regress.error_of('INSERT INTO shop.keyless VALUES (1)');
DROP TRIGGER by_hand ON shop.keyless;
CREATE TRIGGER by_hand BEFORE INSERT ON shop.keyless FOR EACH ROW EXECUTE FUNCTION outbox.announce('{}');
SELECT regress.error_of('INSERT INTO shop.keyless VALUES (1)');
DROP TRIGGER by_hand ON shop.keyless;
CREATE TRIGGER by_hand AFTER INSERT ON shop.keyless FOR EACH ROW EXECUTE FUNCTION outbox.announce('{}');
SELECT regress.error_of('INSERT INTO shop.keyless VALUES (1)');

DROP SCHEMA shop CASCADE;
SELECT count(*) FROM outbox.watched;
