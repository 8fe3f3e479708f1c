-- Handlers: create, alter, drop, pause, resume, and every option's limits.
SET client_min_messages = warning;
CALL regress.start_anew();
\set SHOW_CONTEXT never
-- What becomes of create_handler() with these options, undone again.
CREATE FUNCTION pg_temp.try(options text, url text DEFAULT 'https://example.com/') RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('SELECT outbox.create_handler(''tried'', ''{t}'', %L, %s)', url, options);
	PERFORM outbox.drop_handler('tried');
	RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
	RETURN regress.error_of(format('SELECT outbox.create_handler(''tried'', ''{t}'', %L, %s)', url, options));
END $$;

-- Defaults, and what the view shows.
SELECT outbox.create_handler('plain', '{invoice.*}', 'http://127.0.0.1:9/') IS NOT NULL AS created;
SELECT outbox.create_handler('pulled', '{invoice.paid,order.*}') IS NOT NULL AS created;
SELECT handler, kind, topics, url, timeout, connect_timeout, concurrency, rate_limit, rate_burst, max_attempts, backoff,
	backoff_base, backoff_max, jitter, retry_after_max, rules, format, batch_size, batch_wait, http_version,
	breaker, breaker_threshold, breaker_wait, breaker_wait_max, disable_after, ordered, on_dead, on_settle,
	header_names, signs, authorizes, creator = current_user AS mine, paused_at
FROM outbox.handlers ORDER BY handler \gx
-- How long a message is tried: as the waits add up one by one.
SELECT gives_up_after FROM outbox.handlers WHERE handler = 'plain';
SELECT outbox.create_handler('tries ' || o.n, '{t}', 'http://a/', max_attempts => o.attempts, backoff_base => o.base, backoff_max => o.most, jitter => o.jitter, backoff => o.list) IS NOT NULL AS created
FROM (VALUES (1, 1, '2 s'::interval, '1 h'::interval, 0::float8, NULL::interval[]), (2, 2, '2 s', '1 h', 0.5, NULL), (3, 9, '2 s', '1 h', 0, NULL), (4, 12, '2 s', '1 h', 0, NULL),
	(5, 13, '2 s', '1 h', 1, NULL), (6, 1000, '1 ms', '30 days', 0.2, NULL), (7, 50, '1 h', '1 h', 0, NULL), (8, 5, '1 s', '8 s', 0, NULL),
	(9, 1, '2 s', '1 h', 0, '{1s,1min}'), (10, 2, '2 s', '1 h', 0, '{1s,1min}'), (11, 3, '2 s', '1 h', 0, '{1s,1min}'), (12, 10, '2 s', '1 h', 0.2, '{1s,1min}')) o (n, attempts, base, most, jitter, list);
SELECT h.handler, h.gives_up_after, extract(epoch FROM h.gives_up_after) BETWEEN s.seconds - 1 AND s.seconds + 1 AS as_added_up
FROM outbox.handlers h CROSS JOIN LATERAL (
	SELECT coalesce(sum((1 - h.jitter / 2) * coalesce(date_part('epoch', h.backoff[least(n, cardinality(h.backoff))]),
		least(date_part('epoch', h.backoff_max), date_part('epoch', h.backoff_base) * power(2, n - 1)))), 0) AS seconds
	FROM generate_series(1, h.max_attempts - 1) n) s
WHERE h.topics = '{t}' ORDER BY h.handler_id;
SELECT outbox.drop_handler(handler) FROM outbox.handlers WHERE topics = '{t}';

-- Everything at once.
CREATE ROLE regress_outbox_settler;
CREATE FUNCTION public.settled(outbox.settlement) RETURNS void LANGUAGE sql AS 'SELECT';
ALTER FUNCTION public.settled OWNER TO regress_outbox_settler;
SELECT outbox.create_handler('full', ARRAY['a', 'b.*', '*'], 'https://example.com:8443/hook?x=%20y',
	timeout => '3 s', connect_timeout => '500 ms', concurrency => 7, rate_limit => 0.5, rate_burst => 3,
	max_attempts => 3, backoff => ARRAY['1 s', '5 min']::interval[], backoff_base => '1 s', backoff_max => '1 min', jitter => 0,
	retry_after_max => '0', rules => '{"404": {"action": "fail"}}', format => 'cloudevents', headers => '{"x-b": "2", "X-A": "1"}',
	secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', authorization => 'Bearer token', batch_size => 100, batch_wait => '50 ms',
	http_version => '2', unix_socket => '/run/app/socket', tls_ca_file => '/etc/ca.pem', tls_certificate_file => '/etc/c.pem', tls_key_file => '/etc/k.pem',
	breaker_threshold => 5, breaker_wait => '1 s', breaker_wait_max => '2 s', disable_after => '1 day',
	ordered => true, on_dead => 'block', on_settle => 'public.settled(outbox.settlement)') IS NOT NULL AS created;
SELECT to_jsonb(h) - '{handler_id,created_at,creator,waiting_for,lifted_by}'::text[] AS full FROM outbox.handlers h WHERE handler = 'full';
SELECT kind, secret, expires_at FROM outbox.handler_secret ORDER BY kind;
SELECT h.headers FROM outbox.handler h WHERE name = 'full';
-- A reader of the view sees no secret in any column.
SELECT count(*) FROM outbox.handlers h WHERE h::text ~ 'token|whsec';

-- Names.
SELECT outbox.create_handler(n, '{t}') IS NOT NULL AS created FROM unnest(ARRAY['with "quotes" and ''more''', 'Größe 大', 'CAPITALS', 'capitals', ' ', repeat('n', 63)]) n;
SELECT regress.error_of(format('SELECT outbox.create_handler(%L, ''{t}'')', n))
FROM unnest(ARRAY[NULL, '', repeat('n', 64), repeat('é', 32), E'line\nfeed', E'\x7f', 'plain', '(unrouted)']) n;
SELECT outbox.drop_handler(handler) FROM outbox.handlers WHERE topics = '{t}';

-- Topics.
SELECT t, regress.error_of(format('SELECT outbox.create_handler(''x'', %L)', t))
FROM unnest(ARRAY[NULL, '{}', '{NULL}', '{{a},{b}}', '{""}', '{Invoice.paid}', '{invoice..paid}', '{.a}', '{a.}', '{a.*.b}', '{a*}', '{*.a}',
	'{**}', '{.*}', '{"a b"}', '{a/b}', '{é}']) t;
SELECT regress.error_of(format('SELECT outbox.create_handler(''x'', ARRAY[%L])', repeat('a', 256)));
SELECT regress.error_of('SELECT outbox.create_handler(''x'', array_fill(''a''::text, ARRAY[1001]))');
SELECT outbox.create_handler('x', ARRAY[repeat('a', 255), '*', 'a-b_c.0.*', 'a', 'a']) IS NOT NULL AS created;
SELECT outbox.drop_handler('x');

-- URLs.
SELECT u, regress.error_of(format('SELECT outbox.create_handler(''x'', ''{t}'', %L)', u))
FROM unnest(ARRAY['', 'example.com', 'ftp://example.com/', 'file:///etc/passwd', 'javascript:alert(1)', 'https:example.com', 'http://', 'https:///path', 'http://?a',
	'https://user:password@example.com/', 'https://user@example.com/', 'http://a b/', E'http://a/\r\nx-evil: 1', E'http://a/\t', 'http://a/ä', 'http://exämple.com/',
	'http://a/#fragment', 'http://a\b/', 'http://a/%zz', 'http://a/%4', 'http://a:0/', 'http://a:65536/', 'http://a:/', 'http://a:8o/', 'http://:80/',
	'http://[::1/', 'http://[::g]/', 'http://[::1]x/', 'http://[]/', 'http://::1/', 'http://a..b/', 'http://-a/', 'http://a_b-/', 'http://2130706433/', 'http://0x7f.1/',
	'http://127.1/', 'http://999.1.1.1/', 'http://a,b/']) u;
SELECT regress.error_of(format('SELECT outbox.create_handler(''x'', ''{t}'', %L)', 'http://' || repeat('a.', 127) || '/'));
SELECT regress.error_of(format('SELECT outbox.create_handler(''x'', ''{t}'', %L)', 'http://a/' || repeat('p', 2040)));
SELECT u, outbox.create_handler(u, '{t}', u) IS NOT NULL AS created
FROM unnest(ARRAY['http://a', 'HTTPS://Example.COM/', 'http://127.0.0.1:8080/a/b?c=d&e=%2F', 'http://[::1]:65535/', 'https://[2001:db8::1]', 'http://my_service.local./',
	'http://a/@b:c', 'https://xn--bcher-kva.example/?q=1@2', 'http://1.example/']) u;
SELECT outbox.drop_handler(handler) FROM outbox.handlers WHERE topics = '{t}';

-- Other options: what is refused, and the ends of each range.
SELECT o, pg_temp.try(o) FROM unnest(ARRAY[
	'timeout => ''0''', 'timeout => ''-1 s''', 'timeout => ''1 ms''', 'timeout => ''1 hour''', 'timeout => ''61 min''',
	'connect_timeout => ''0''', 'connect_timeout => ''2 hours''', 'concurrency => 0', 'concurrency => -1', 'concurrency => 1000', 'concurrency => 1001',
	'rate_limit => 0', 'rate_limit => -0.5', 'rate_limit => ''NaN''', 'rate_limit => ''Infinity''', 'rate_limit => 0.001', 'rate_burst => 0',
	'max_attempts => 0', 'max_attempts => 1', 'max_attempts => 1001',
	'backoff => ''{}''', 'backoff => ''{1s,NULL}''', 'backoff => ''{-1s}''', 'backoff => ''{31 days}''', 'backoff => ''{{1s},{2s}}''', 'backoff => array_fill(''1 s''::interval, ARRAY[101])',
	'backoff => ''{0}''', 'backoff_base => ''0''', 'backoff_base => ''-1 s''', 'backoff_base => ''1 hour''', 'backoff_base => ''1 hour'', backoff_max => ''1 hour''',
	'backoff_max => ''31 days''', 'backoff_max => ''1 s''', 'jitter => -0.1', 'jitter => 1.1', 'jitter => ''NaN''', 'jitter => 1', 'retry_after_max => ''-1 s''', 'retry_after_max => ''31 days''',
	'rules => ''{"404": {"action": "explode"}}''', 'rules => ''[]''', 'rules => ''null''', 'headers => ''null''', 'headers => ''[]''', 'headers => ''"x"''',
	'format => ''xml''', 'format => ''''', 'format => ''cloudevents-binary''', 'format => ''cloudevents-binary'', batch_size => 2',
	'batch_size => 0', 'batch_size => 1001', 'batch_wait => ''-1 ms''', 'batch_wait => ''61 s''', 'http_version => ''3''', 'http_version => ''1.1''',
	'unix_socket => ''relative''', 'unix_socket => ''/a''', 'unix_socket => ''/'' || repeat(''s'', 107)', 'tls_ca_file => ''x''', 'tls_ca_file => E''/a\nb''', 'tls_key_file => ''/k''',
	'secret => ''generate''', 'secret => ''''', 'secret => ''hunter2''', 'secret => ''whsec_!''', 'secret => ''whsec_c2hvcnQ=''', 'authorization => ''''', 'authorization => E''Bearer x\r\nx-evil: 1''',
	'breaker_threshold => -1', 'breaker_wait => ''0''', 'breaker_wait => ''1 hour''', 'breaker_wait_max => ''2 days''', 'disable_after => ''0''', 'disable_after => ''-5 days''', 'disable_after => ''4000 days''',
	'on_dead => ''stop''', 'on_dead => ''block''', 'on_dead => ''block'', ordered => true', 'on_settle => ''pg_catalog.sum(int)''', 'on_settle => ''pg_catalog.generate_series(int,int)''']) o;
SELECT pg_temp.try('tls_ca_file => ''/ca.pem''', 'http://example.com/');
SELECT h, pg_temp.try(format('headers => %L', h)) FROM unnest(ARRAY['{"a b": "c"}', '{"": "c"}', '{"x": 1}', '{"x": {}}', '{"x": null}', '{"x": ""}', '{"x": "a\r\nb: c"}', '{"x": "a\u007f"}', '{"x:": "a"}',
	'{"Host": "a"}', '{"content-length": "1"}', '{"Webhook-Id": "1"}', '{"outbox-topic": "1"}', '{"idempotency-key": "1"}', '{"Authorization": "Basic eA=="}', '{"transfer-encoding": "chunked"}', '{"connection": "close"}',
	'{"x": "1", "X": "2"}', '{"x-ok": "ü 1"}', '{}']) h;
SELECT pg_temp.try(format('headers => %L', (SELECT jsonb_object_agg('x' || i, 'v') FROM generate_series(1, 65) i)));
SELECT pg_temp.try(format('headers => %L', jsonb_build_object('x', repeat('v', 4097))));
SELECT pg_temp.try(format('headers => %L', jsonb_build_object('x', repeat('v', 4096), 'y', repeat('v', 4096))));
SELECT pg_temp.try(format('headers => %L', jsonb_build_object(repeat('x', 129), 'v')));
-- Options that need a URL.
SELECT o, regress.error_of(format('SELECT outbox.create_handler(''x'', ''{t}'', %s)', o)) FROM unnest(ARRAY['timeout => ''1 s''', 'concurrency => 1', 'headers => ''{"a": "b"}''',
	'secret => ''whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw''', 'authorization => ''x''', 'on_settle => ''public.settled(outbox.settlement)''']) o;
SELECT outbox.create_handler('x', '{t}', max_attempts => 2, backoff => '{1s}', jitter => 0.1, ordered => true, on_dead => 'block') IS NOT NULL AS created;
SELECT outbox.drop_handler('x');
-- Nothing is left of what was refused.
SELECT handler FROM outbox.handlers ORDER BY handler;
SELECT count(*) FROM outbox.handler_secret;

-- Alter: NULL keeps, reset puts back, the rest is as at creation.
SELECT outbox.alter_handler('full', timeout => '4 s', headers => '{"x-c": "3"}', secret => 'whsec_' || encode('abcdefghijklmnopqrstuvwx', 'base64'));
SELECT timeout, concurrency, header_names, rate_limit, signs, authorizes FROM outbox.handlers WHERE handler = 'full';
SELECT kind, secret FROM outbox.handler_secret ORDER BY kind;
SELECT outbox.alter_handler('full', reset => ARRAY(SELECT o.name FROM outbox_internal.options() o WHERE NOT 'creation' = ANY (o.scope)));
SELECT jsonb_object_agg(a.key, a.value) AS differs_from_plain
FROM outbox.handlers f, outbox.handlers p, jsonb_each(to_jsonb(f) - '{handler_id,created_at}'::text[]) a, jsonb_each(to_jsonb(p)) b
WHERE f.handler = 'full' AND p.handler = 'plain' AND a.key = b.key AND a.value <> b.value;
SELECT count(*) FROM outbox.handler_secret;
SELECT outbox.rotate_secret('full') IS NOT NULL AS told;
SELECT kind, secret ~ '^whsec_[A-Za-z0-9+/]{43}=$' AS generated FROM outbox.handler_secret;
SELECT outbox.alter_handler('full', new_name => 'renamed', topics => '{c.*}', url => 'http://127.0.0.1:9/other', on_dead => 'block');
SELECT handler, topics, url, ordered, on_dead FROM outbox.handlers WHERE handler = 'renamed';
SELECT outbox.alter_handler('renamed');
SELECT regress.error_of(c) FROM unnest(ARRAY[
	'SELECT outbox.alter_handler(''full'', timeout => ''1 s'')', 'SELECT outbox.alter_handler(NULL)', 'SELECT outbox.alter_handler(''(unrouted)'', max_attempts => 2)',
	'SELECT outbox.alter_handler(''renamed'', new_name => ''plain'')', 'SELECT outbox.alter_handler(''renamed'', new_name => '''')', 'SELECT outbox.alter_handler(''renamed'', topics => ''{}'')',
	'SELECT outbox.alter_handler(''renamed'', url => ''x'')', 'SELECT outbox.alter_handler(''renamed'', concurrency => 0)', 'SELECT outbox.alter_handler(''renamed'', backoff_base => ''1 day'')',
	'SELECT outbox.alter_handler(''renamed'', reset => ''{nonsense}'')', 'SELECT outbox.alter_handler(''renamed'', reset => ''{url}'')', 'SELECT outbox.alter_handler(''renamed'', reset => ''{NULL}'')',
	'SELECT outbox.alter_handler(''renamed'', reset => ''{id = 7, dropped_at}'')', 'SELECT outbox.alter_handler(''renamed'', timeout => ''1 s'', reset => ''{timeout}'')',
	'SELECT outbox.alter_handler(''pulled'', url => ''http://a/'')', 'SELECT outbox.alter_handler(''pulled'', timeout => ''1 s'')', 'SELECT outbox.alter_handler(''pulled'', reset => ''{timeout}'')',
	'SELECT outbox.alter_handler(''renamed'', ordered => false)']) c;
SELECT handler, topics, url, concurrency FROM outbox.handlers ORDER BY handler;

-- Options as one object: the same as by name, and what is mistyped is named.
SELECT outbox.create_handler('object', '{o}', 'https://example.com/', concurrency => 3, options => '{"timeout": "20 s", "jitter": 0, "breaker_threshold": 0,
	"backoff": ["1 s", "1 min"], "rules": {"404": "cancel"}, "headers": {"x-a": "b"}, "ordered": true, "on_dead": "block", "rate_limit": null,
	"on_settle": "public.settled(outbox.settlement)", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "authorization": "Bearer token"}') IS NOT NULL AS created;
SELECT concurrency, timeout, jitter, breaker_threshold, backoff, rules, header_names, ordered, on_dead, rate_limit, on_settle, signs, authorizes FROM outbox.handlers WHERE handler = 'object';
SELECT kind, secret FROM outbox.handler_secret WHERE handler_id = (SELECT handler_id FROM outbox.handlers WHERE handler = 'object') ORDER BY kind;
SELECT outbox.alter_handler('object', options => '{"topics": ["p.*", "q"], "url": "https://example.com/two", "timeout": 30, "reset": ["concurrency", "secret"]}');
SELECT topics, url, timeout, concurrency, signs FROM outbox.handlers WHERE handler = 'object';
SELECT o, regress.error_of(format('SELECT outbox.alter_handler(''object'', options => %L)', o)) FROM unnest(ARRAY['{"timout": "1 s"}', '{"max_atempts": 3}', '{"TIMEOUT": "1 s"}',
	'{"x": 1}', '{"": 1}', '{"name": "n"}', '{"handler": "n"}', '{"options": {}}', '{"ordered": true}', '[]', '"timeout"', '{"concurrency": "ten"}', '{"concurrency": [1]}',
	'{"timeout": {"s": 1}}', '{"timeout": "soon"}', '{"on_settle": "public.nothing(outbox.settlement)"}', '{"rules": ["404"]}', '{"rules": "x"}', '{"concurrency": 0}']) o;
SELECT regress.error_of(c) FROM unnest(ARRAY['SELECT outbox.alter_handler(''object'', timeout => ''1 s'', options => ''{"timeout": "2 s"}'')',
	'SELECT outbox.create_handler(''y'', ''{y}'', options => ''{"topics": ["z"]}'')', 'SELECT outbox.create_handler(''y'', ''{y}'', options => jsonb_build_object(repeat(''timeout'', 100), 1))',
	'SELECT outbox.create_handler(''y'', ''{y}'', options => ''{"timeout": "1 s"}'')', 'SELECT outbox.create_handler(''y'', ''{y}'', timout => ''1 s'')']) c;
SELECT outbox.drop_handler('object');

-- Pause and resume.
SELECT outbox.pause_handler('plain', 'maintenance');
SELECT paused_at > now() - interval '1 minute' AS paused, paused_by = current_user AS by_me, paused_reason FROM outbox.handlers WHERE handler = 'plain';
CREATE TEMP TABLE pause AS SELECT paused_at FROM outbox.handlers WHERE handler = 'plain';
SELECT outbox.pause_handler('plain');
SELECT h.paused_at = p.paused_at AS since_the_first_pause, h.paused_reason FROM outbox.handlers h, pause p WHERE handler = 'plain';
UPDATE outbox.handler_status SET breaker = 'open', breaker_reason = 'timeout', breaker_until = 'infinity', failing_since = now();
SELECT outbox.resume_handler('plain');
SELECT paused_at, paused_by, paused_reason, breaker, breaker_reason, breaker_until, failing_since FROM outbox.handlers WHERE handler = 'plain';
SELECT outbox.resume_handler('plain');
SELECT regress.error_of(c) FROM unnest(ARRAY['SELECT outbox.pause_handler(''nobody'')', 'SELECT outbox.pause_handler(NULL)', 'SELECT outbox.resume_handler(''nobody'')', 'SELECT outbox.pause_handler(''(unrouted)'')']) c;

-- Drop: outstanding deliveries are cancelled, receipts stay, the name is free, the id is not used again.
SELECT outbox.create_handler('dropped', '{drop.*}', max_attempts => 2) AS old_id \gset
SELECT outbox.create_handler('kept', '{drop.*}') IS NOT NULL AS created;
SELECT count(*) FROM (SELECT outbox.stage('drop.a', to_jsonb(i)) FROM generate_series(1, 4) i) s;
UPDATE outbox.delivery d SET state = n - 1, attempts = 1
FROM (SELECT message_id, row_number() OVER (ORDER BY message_id) AS n FROM outbox.delivery WHERE handler_id = :old_id) o
WHERE d.message_id = o.message_id AND d.handler_id = :old_id;
WITH gone AS (DELETE FROM outbox.delivery WHERE handler_id = :old_id AND state = 3 RETURNING *)
INSERT INTO outbox.receipt (message_id, settled_at, handler_id, attempts, budget_from, state) SELECT message_id, now(), handler_id, attempts, 0, 3 FROM gone;
SELECT outbox.drop_handler('dropped');
SELECT regress.state_name(d.state) AS state, d.code, d.settled_at IS NOT NULL AS settled, count(*)
FROM outbox.receipt d WHERE d.handler_id = :old_id GROUP BY 1, 2, 3 ORDER BY 1, 2;
SELECT count(*) FROM outbox.delivery WHERE handler_id = :old_id;
SELECT regress.state_name(d.state) AS state, count(*) FROM outbox.delivery d JOIN outbox.handlers h ON h.handler_id = d.handler_id WHERE h.handler = 'kept' GROUP BY 1;
SELECT count(*) FROM outbox.handlers WHERE handler = 'dropped';
SELECT outbox.create_handler('dropped', '{drop.*}') > :old_id AS new_id;
SELECT count(*) FROM outbox.delivery d JOIN outbox.handlers h ON h.handler_id = d.handler_id WHERE h.handler = 'dropped';
SELECT outbox.drop_handler('dropped');
SELECT regress.error_of(c) FROM unnest(ARRAY['SELECT outbox.drop_handler(''dropped'')', 'SELECT outbox.drop_handler(''nobody'')', 'SELECT outbox.drop_handler(''(unrouted)'')']) c;
-- More than one batch, and what a transaction stages that has not seen the drop.
SELECT outbox.create_handler('big', '{big}') AS big_id \gset
SELECT count(*) FROM outbox.stage_many('big', array_fill('1'::jsonb, ARRAY[25000]));
SELECT outbox.drop_handler('big');
SELECT regress.state_name(d.state) AS state, d.code, count(*) FROM outbox.receipt d WHERE d.handler_id = :big_id GROUP BY 1, 2;
INSERT INTO outbox.delivery (message_id, handler_id, due_at) VALUES (gen_random_uuid(), :big_id, now());
SELECT outbox_internal.cancel_dropped(:big_id);
SELECT outbox_internal.cancel_dropped(:big_id);

-- Who may do what.
CREATE ROLE regress_outbox_admin;
CREATE ROLE regress_outbox_other;
GRANT EXECUTE ON FUNCTION outbox.create_handler, outbox.alter_handler, outbox.drop_handler, outbox.pause_handler TO regress_outbox_admin, regress_outbox_other;
CREATE FUNCTION public.forbidden(outbox.settlement) RETURNS void LANGUAGE sql AS 'SELECT';
REVOKE EXECUTE ON FUNCTION public.forbidden FROM PUBLIC;
-- A function runs as its owner, which these may act as.
GRANT regress_outbox_settler TO regress_outbox_admin, regress_outbox_other;
SET ROLE regress_outbox_admin;
SELECT outbox.create_handler('mine', '{m}', 'https://example.com/', on_settle => 'public.settled(outbox.settlement)') IS NOT NULL AS created;
SELECT pg_temp.try(o) FROM unnest(ARRAY['unix_socket => ''/a''', 'tls_ca_file => ''/a''', 'tls_certificate_file => ''/a''', 'tls_key_file => ''/a''', 'on_settle => ''public.forbidden(outbox.settlement)''']) o;
SELECT regress.error_of(c) FROM unnest(ARRAY['SELECT outbox.alter_handler(''mine'', reset => ''{tls_ca_file}'')', 'SELECT outbox.alter_handler(''renamed'', on_settle => ''public.settled(outbox.settlement)'')',
	'SELECT outbox.alter_handler(''renamed'', reset => ''{on_settle}'')',
	'SELECT outbox_internal.create_handler(''postgres'', ''{name}'', ''{x}'')', 'SELECT * FROM outbox.handler', 'SELECT * FROM outbox.handlers', 'SELECT * FROM outbox.handler_secret', 'SELECT outbox.resume_handler(''mine'')']) c;
SELECT outbox.alter_handler('mine', reset => '{on_settle}');
SELECT outbox.alter_handler('mine', on_settle => 'public.settled(outbox.settlement)');
SELECT outbox.pause_handler('mine');
SET ROLE regress_outbox_other;
SELECT regress.error_of('SELECT outbox.alter_handler(''mine'', on_settle => ''public.settled(outbox.settlement)'')');
SELECT outbox.alter_handler('mine', timeout => '1 s');
-- Credentials go nowhere else at the word of somebody who need not know them.
SET ROLE regress_outbox_admin;
SELECT outbox.alter_handler('mine', "authorization" => 'Bearer x', url => 'https://example.com/a');
SELECT outbox.alter_handler('mine', url => 'https://example.com/b');
SET ROLE regress_outbox_other;
SELECT regress.error_of('SELECT outbox.alter_handler(''mine'', url => ''https://example.org/'')');
SELECT outbox.alter_handler('mine', url => 'https://example.org/', "authorization" => 'Bearer y');
SELECT outbox.alter_handler('mine', url => 'https://example.net/', reset => '{authorization}');
SELECT outbox.alter_handler('mine', url => 'https://example.net/a');
RESET ROLE;
SELECT outbox.create_handler('socket', '{m}', 'http://localhost/', unix_socket => '/run/some.sock') IS NOT NULL AS created;
SET ROLE regress_outbox_other;
SELECT regress.error_of('SELECT outbox.alter_handler(''socket'', url => ''http://localhost/other'')');
RESET ROLE;
SELECT outbox.alter_handler('socket', url => 'http://localhost/other');
SELECT creator, on_settle, timeout, paused_by FROM outbox.handlers WHERE handler = 'mine';
-- The caller is whoever calls, not whoever logged in: a superuser who runs
-- somebody's SECURITY DEFINER function lends it no rights.
CREATE FUNCTION public.create_for_me() RETURNS int SECURITY DEFINER LANGUAGE sql AS $$ SELECT outbox.create_handler('lent', '{m}', 'https://example.com/', on_settle => 'public.settled(outbox.settlement)') $$;
ALTER FUNCTION public.create_for_me() OWNER TO regress_outbox_other;
SELECT public.create_for_me() IS NOT NULL AS created;
SELECT creator FROM outbox.handlers WHERE handler = 'lent';
-- Names of functions do not depend on the search_path of who passes them.
CREATE SCHEMA "Odd name";
CREATE FUNCTION "Odd name"."On Settle"(outbox.settlement) RETURNS void LANGUAGE sql AS 'SELECT';
ALTER FUNCTION "Odd name"."On Settle" OWNER TO regress_outbox_settler;
SET search_path = "Odd name";
SELECT outbox.create_handler('elsewhere', '{m}', 'https://example.com/', on_settle => '"On Settle"(outbox.settlement)') IS NOT NULL AS created;
RESET search_path;
SELECT on_settle FROM outbox.handlers WHERE handler = 'elsewhere';
-- Read-only transactions.
BEGIN READ ONLY;
SELECT regress.error_of('SELECT outbox.pause_handler(''mine'')');
COMMIT;

DROP SCHEMA "Odd name" CASCADE;
DROP FUNCTION public.create_for_me(), public.settled(outbox.settlement), public.forbidden(outbox.settlement);
SELECT outbox.drop_handler(handler) FROM outbox.handlers;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM regress_outbox_admin, regress_outbox_other;
DROP ROLE regress_outbox_admin, regress_outbox_other, regress_outbox_settler;
CALL regress.empty();

-- Ensure: creates, changes or leaves alone, and says which.
CALL regress.start_anew();
CREATE ROLE regress_outbox_settler;
CREATE FUNCTION public.settled(outbox.settlement) RETURNS void LANGUAGE sql AS 'SELECT';
ALTER FUNCTION public.settled OWNER TO regress_outbox_settler;
SELECT outbox.ensure_handler('kept', '{a.*}', 'https://example.com/', timeout => '3 s', headers => '{"x-a": "1"}', authorization => 'Bearer token') AS changed;
SELECT outbox.ensure_handler('kept', '{a.*}', 'https://example.com/', timeout => '00:00:03', headers => '{"x-a": "1"}', authorization => 'Bearer token') AS changed;
SELECT outbox.ensure_handler('kept', '{a.*}', 'https://example.com/', timeout => '3 s', options => '{"headers": {"x-a": "1"}}') AS changed;
SELECT outbox.pause_handler('kept', 'for now');
SELECT xmin::text AS before FROM outbox.handler WHERE name = 'kept' \gset
SELECT outbox.ensure_handler('kept', '{a.*}', 'https://example.com/', timeout => '3 s', headers => '{"x-a": "1"}') AS changed;
SELECT xmin::text = :'before' AS left_alone FROM outbox.handler WHERE name = 'kept';
-- What is not named goes back to its default; a pause and secrets stay.
SELECT outbox.ensure_handler('kept', '{a.*,b}', 'https://example.com/other', concurrency => 3) AS changed;
SELECT topics, url, timeout, concurrency, header_names, authorizes, signs, paused_reason FROM outbox.handlers WHERE handler = 'kept';
-- A secret that is given is compared, and replaces what is there if it is another.
SELECT outbox.ensure_handler('kept', '{a.*,b}', 'https://example.com/other', concurrency => 3, secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw') AS changed;
SELECT outbox.ensure_handler('kept', '{a.*,b}', 'https://example.com/other', concurrency => 3, secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', authorization => 'Bearer token') AS changed;
SELECT outbox.rotate_secret('kept') IS NOT NULL AS rotated;
SELECT outbox.ensure_handler('kept', '{a.*,b}', 'https://example.com/other', concurrency => 3) AS changed;
SELECT count(*) FROM outbox.handler_secret WHERE kind = 'signing';
SELECT outbox.ensure_handler('kept', '{a.*,b}', 'https://example.com/other', concurrency => 3, secret => 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw') AS changed;
SELECT count(*) FROM outbox.handler_secret WHERE kind = 'signing';
SELECT outbox.ensure_handler('pulled', '{a.*}', ordered => true, on_dead => 'block') AS changed;
SELECT outbox.ensure_handler('pulled', '{a.*}', ordered => true) AS changed;
SELECT regress.error_of('SELECT outbox.ensure_handler(' || c || ')') FROM unnest(ARRAY['''kept'', ''{a.*}''', '''pulled'', ''{a.*}'', ''http://a/''', '''pulled'', ''{a.*}''', '''kept'', ''{a.*}'', ''http://a/'', ordered => true',
	'''kept'', NULL', '''kept'', ''{}'', ''http://a/''', 'NULL, ''{a}''', ''''', ''{a}''', '''(unrouted)'', ''{a}''', '''new'', ''{A}''', '''new'', ''{a}'', timeout => ''1 s''', '''pulled'', ''{a.*}'', ordered => true, timeout => ''30 s''',
	'''kept'', ''{a.*}'', ''http://a/'', timeout => ''0''', '''kept'', ''{a.*}'', ''http://a/'', headers => ''[]''', '''kept'', ''{a.*}'', ''http://a/'', secret => ''whsec_!''', '''kept'', ''{a.*}'', ''http://a/'', options => ''{"timeuot": "1 s"}''']) c;
SELECT handler, topics, url, concurrency, ordered, on_dead FROM outbox.handlers ORDER BY handler;
-- In the transaction that dropped it; by one who may not change all of it.
BEGIN;
SELECT outbox.drop_handler('pulled');
SELECT outbox.ensure_handler('pulled', '{b.*}') AS changed;
SELECT outbox.ensure_handler('pulled', '{b.*}') AS changed;
ROLLBACK;
SELECT outbox.ensure_handler('files', '{a.*}', 'https://example.com/', tls_ca_file => '/etc/ca.pem', on_settle => 'public.settled(outbox.settlement)') AS changed;
CREATE ROLE regress_outbox_admin;
GRANT EXECUTE ON FUNCTION outbox.ensure_handler TO regress_outbox_admin;
SET ROLE regress_outbox_admin;
SELECT outbox.ensure_handler('files', '{a.*}', 'https://example.com/', tls_ca_file => '/etc/ca.pem', on_settle => 'public.settled(outbox.settlement)', concurrency => 2) AS changed;
SELECT regress.error_of('SELECT outbox.ensure_handler(''files'', ''{a.*}'', ''https://example.com/'', ' || c || ')') FROM unnest(ARRAY['tls_ca_file => ''/etc/ca.pem''', 'on_settle => ''public.settled(outbox.settlement)''']) c;
SELECT regress.error_of('SELECT outbox.ensure_handler(''kept'', ''{a.*,b}'', ''https://example.com/elsewhere'')');
SELECT outbox.ensure_handler('kept', '{a.*,b}', 'https://example.com/elsewhere', authorization => 'Bearer token') AS changed;
SELECT outbox.ensure_handler('mine', '{a.*}') AS changed;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION outbox.ensure_handler FROM regress_outbox_admin;
DROP ROLE regress_outbox_admin;

-- The call that creates one again; secrets are not in it.
SELECT outbox.alter_handler('kept', timeout => '90 s', rate_limit => 0.1, backoff => '{1 s,5 min}', headers => '{"x-a": "it''s \\ 1"}', rules => '{"404": {"action": "fail"}}');
SET intervalstyle = iso_8601;
SET extra_float_digits = -5;
SELECT outbox.handler_definition(h) FROM unnest('{kept,pulled,files,mine,(unrouted)}'::text[]) h;
RESET intervalstyle;
RESET extra_float_digits;
SELECT regress.error_of(format('SELECT outbox.handler_definition(%L)', h)) FROM unnest('{none,NULL}'::text[]) h;
SELECT outbox.create_handler(n, '{t}') IS NOT NULL AS created FROM unnest(ARRAY['with "quotes" and ''more''', 'Größe 大', 'back\slash']) n;
CREATE TABLE regress.before AS SELECT name, to_jsonb(h) - '{id,created_at}'::text[] AS h, outbox.handler_definition(name) AS definition FROM outbox.handler h WHERE id <> 0 AND dropped_at IS NULL;
SELECT outbox.drop_handler(name) FROM regress.before;
DO $$ DECLARE d text; BEGIN FOR d IN SELECT definition FROM regress.before LOOP EXECUTE d; END LOOP; END $$;
SELECT b.name, b.h = to_jsonb(h) - '{id,created_at}'::text[] AS same FROM regress.before b LEFT JOIN outbox.handler h ON h.name = b.name AND h.dropped_at IS NULL ORDER BY b.name;
DROP TABLE regress.before;
CALL regress.start_anew();
DROP FUNCTION public.settled;
DROP ROLE regress_outbox_settler;
