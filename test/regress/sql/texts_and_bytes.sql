-- stage_text() and stage_bytes(): what they write, refuse and show, and what
-- consumers get of it.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never

SELECT outbox.create_handler('pull', '{*}') IS NOT NULL AS created;

-- Defaults, and everything at once.
SELECT outbox.stage_text('t', 'naïve') IS NOT NULL AS staged;
SELECT outbox.stage_bytes('t', '\x00ff') IS NOT NULL AS staged;
SELECT outbox.stage_text('t', '<x/>', 'application/xml', 'key', 'dedupe', 'tenant', 'correlation', '{"x-source": "test"}', delay => '1 hour', min_version => 3) IS NOT NULL AS staged;
SELECT outbox.stage_bytes('t', '', 'image/png', replace_key => 'r', delay => '1 hour', max_delay => '1 min') IS NOT NULL AS staged;
SELECT topic, payload, content_type, payload_text, payload_bytes_length AS length, left(payload_bytes_sha256, 12) AS sha256, key, dedupe_key, tenant, correlation_id, headers, min_version FROM outbox.messages ORDER BY message_id \gx
SELECT m.payload_bytes_sha256 = encode(sha256('\x00ff'), 'hex') AS same FROM outbox.messages m WHERE m.payload_bytes_length = 2;
SELECT payload_text, d.due_at - m.staged_at AS due_in, r.min_version FROM outbox.message m JOIN outbox.deliveries d ON d.message_id = m.id JOIN outbox.delivery r ON r.message_id = m.id WHERE d.due_at > m.staged_at ORDER BY m.id;
SELECT outbox.stage_text('ttl', 'x', ttl => '2 hours') IS NOT NULL AND outbox.stage_bytes('ttl', 'x', dedupe_key => 'ttl', ttl => '3 hours') IS NOT NULL AS staged;
SELECT expires_at - staged_at AS ttl, payload_text, payload_bytes_length FROM outbox.messages WHERE topic = 'ttl' ORDER BY message_id;

-- A dedupe_key is one over all kinds of payloads, a replace_key too.
SELECT count(DISTINCT id) AS ids FROM (VALUES (outbox.stage('d', '1', dedupe_key => 'd')), (outbox.stage_text('d', 'x', dedupe_key => 'd')), (outbox.stage_bytes('d', 'x', dedupe_key => 'd'))) v (id);
SELECT count(DISTINCT id) AS ids FROM (VALUES (outbox.stage_bytes('d', '\x01', 'a/b', dedupe_key => 'e')), (outbox.stage_bytes('d', '\x02', dedupe_key => 'e')), (outbox.stage_text('d', 'x', dedupe_key => 'e'))) v (id);
SELECT regress.error_of('SELECT outbox.stage_text(''other'', ''x'', dedupe_key => ''d'')');
SELECT payload, content_type, payload_text, payload_bytes FROM outbox.message WHERE topic = 'd' ORDER BY id;
SELECT outbox.stage_text('r', 'r', replace_key => 'r', delay => '1 hour') IS NOT NULL AS staged;
SELECT content_type, code FROM outbox.deliveries JOIN outbox.messages USING (message_id) WHERE code = 'replaced';

-- Payloads.
SELECT regress.error_of('SELECT outbox.stage_text(''p'', NULL)'), regress.error_of('SELECT outbox.stage_bytes(''p'', NULL)');
SET outbox.max_payload_size = 100;
SELECT n, regress.error_of(format('SELECT outbox.stage_text(''p'', repeat(''x'', %s))', n)), regress.error_of(format('SELECT outbox.stage_text(''p'', repeat(''ü'', %s))', n / 2)) AS umlauts,
	regress.error_of(format('SELECT outbox.stage_bytes(''p'', decode(repeat(''00'', %s), ''hex''))', n)) AS bytes
FROM unnest(ARRAY[99, 100, 101, 102, 100000]) n;
RESET outbox.max_payload_size;

-- Content types.
SELECT c, regress.error_of(format('SELECT outbox.stage_text(''c'', ''1'', %L)', c)) AS text, regress.error_of(format('SELECT outbox.stage_bytes(''c'', ''1'', %L)', c)) AS bytes
FROM unnest(ARRAY[NULL, '', 'text', 'text/plain', 'Text/Plain;charset="UTF-8"', 'text/plain; charset=latin1', 'multipart/form-data; boundary=xyz', E'text/plain\r\nx-evil: 1', E'text/plain; a="\n"', 'text/plain ', 'text/plän']) c;
SELECT regress.error_of(format('SELECT outbox.stage_text(''c'', ''1'', ''a/'' || repeat(''x'', %s))', n)) FROM unnest(ARRAY[253, 254]) n;
-- What calls itself JSON is JSON, as it is written; bytes are not looked at.
SELECT p, regress.error_of(format('SELECT outbox.stage_text(''c'', %L, ''application/vnd.x+json'')', p)) AS text, regress.error_of(format('SELECT outbox.stage_bytes(''c'', %L, ''application/json'')', convert_to(p, 'UTF8'))) AS bytes
FROM unnest(ARRAY['', ' ', '1', '"x"', ' {"b": 1, "a": 1.0, "b": [null]} ', '{"a": 1', '[1] 2', '{a: 1}', 'nul', '"\u0000"', '"\ud800"', E'"\n"', 'NaN']) p;
SELECT left(regress.error_of('SELECT outbox.stage_text(''c'', repeat(''['', 250000), ''application/json'')'), 33);
-- It is an argument, not a header.
SELECT regress.error_of('SELECT outbox.stage_text(''c'', ''x'', headers => ''{"content-type": "text/html"}'')');
-- What the others check.
SELECT regress.error_of('SELECT outbox.stage_text(NULL, ''x'')'), regress.error_of('SELECT outbox.stage_bytes(''X'', ''x'')') AS topic, regress.error_of('SELECT outbox.stage_text(''x'', ''x'', key => '''')') AS key,
	regress.error_of('SELECT outbox.stage_bytes(''x'', ''x'', delay => ''-1 s'')') AS delay, regress.error_of('SELECT outbox.stage_text(''x'', ''x'', max_delay => ''1 s'')') AS max_delay \gx
BEGIN READ ONLY;
SELECT outbox.stage_text('x', 'x');
ROLLBACK;
BEGIN READ ONLY;
SELECT outbox.stage_bytes('x', 'x');
ROLLBACK;
-- Literals of no type, and prepared statements whose parameters have none, find the one function.
PREPARE text_of AS SELECT outbox.stage_text($1, $2, content_type => $3, key => $4) IS NOT NULL AS staged;
EXECUTE text_of('x', 'x', 'a/b', 'k');
PREPARE bytes_of AS SELECT outbox.stage_bytes($1, $2, key => $3) IS NOT NULL AS staged;
EXECUTE bytes_of('x', '\x01', 'k');

-- What consumers get.
CALL regress.empty();
SELECT outbox.stage('one', '{"n": 1}') IS NOT NULL AND outbox.stage_text('two', 'ü') IS NOT NULL AND outbox.stage_bytes('three', '\x00', 'a/b') IS NOT NULL
	AND outbox.stage_text('four', '{"b": 1.0}', 'application/json') IS NOT NULL AS staged;
SELECT topic, payload, content_type, payload_text, payload_bytes FROM outbox.claim('pull', 10) ORDER BY id;

-- A dead letter shows them, a requeue brings them back.
SELECT outbox.fail('pull', id, 1, 'broken') FROM outbox.message ORDER BY id;
SELECT topic, payload, content_type, payload_text, payload_bytes_length AS length, left(payload_bytes_sha256, 12) AS sha256 FROM outbox.dead_letters ORDER BY message_id;
SELECT outbox.requeue(message_id, handler) FROM outbox.dead_letters ORDER BY message_id;
SELECT topic, payload, content_type, payload_text, payload_bytes FROM outbox.claim('pull', 10) ORDER BY id;

-- Rows of JSON are as large as they would be without the columns.
SELECT DISTINCT pg_column_size(m.*) - pg_column_size(ROW(m.id, m.staged_at, m.min_version, m.topic, m.key, m.dedupe_key, m.tenant, m.correlation_id, m.headers, m.payload, m.deliver_at, m.replace_key, m.replace_since)) AS more
FROM outbox.message m WHERE topic = 'one';
