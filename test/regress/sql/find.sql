-- find_deliveries(): pages are the same as what the view shows, in whatever way
-- they are found.
CALL regress.start_anew();
SELECT count(outbox.create_handler(name, '{find.*}')) FROM unnest('{a,b,gone}'::text[]) name;
SELECT count(outbox.stage('find.' || (ARRAY['one', 'two', 'three'])[1 + n % 3], to_jsonb(n), key => 'k' || n % 4,
	tenant => CASE WHEN n % 5 > 0 THEN 't' || n % 2 END, correlation_id => 'c' || n / 4)) FROM generate_series(1, 60) n;
SELECT outbox.drop_handler('gone');
SELECT count(outbox.create_handler('gone', '{find.one}'));
SELECT count(outbox.stage('find.one', to_jsonb(n), tenant => 't1', key => 'k1')) FROM generate_series(1, 3) n;
SELECT count(*) FROM (SELECT outbox.complete('a', c.id, c.attempt) FROM outbox.claim('a', max_messages => 25) c) s;
SELECT count(*) FROM (SELECT outbox.fail('b', c.id, c.attempt, 'no') FROM outbox.claim('b', max_messages => 15) c) s;
SELECT count(*) FROM outbox.claim('b', max_messages => 5);
SELECT outbox.cancel_where(handler => 'b', topic => 'find.two');
SELECT handler, state, count(*) FROM outbox.deliveries GROUP BY 1, 2 ORDER BY 1, 2;

-- All of it in pages of 7, by every combination of filters.
CREATE FUNCTION regress.pages(state text, handler text, tenant text, topic text, key text, correlation_id text, size int) RETURNS SETOF outbox.deliveries
LANGUAGE plpgsql AS $$
DECLARE
	shown outbox.deliveries;
	n int;
BEGIN
	LOOP
		n := 0;
		FOR shown IN SELECT * FROM outbox.find_deliveries(handler, state, tenant, topic, key, correlation_id,
			before_message_id => shown.message_id, before_handler_id => shown.handler_id, max_rows => size)
		LOOP
			n := n + 1;
			RETURN NEXT shown;
		END LOOP;
		EXIT WHEN n < size;
	END LOOP;
END $$;
CREATE TABLE regress.asked AS
SELECT row_number() OVER () AS n, s.*, h.*, t.*, p.*, k.*, c.*
FROM unnest('{NULL,pending,leased,outstanding,delivered,dead,cancelled}'::text[]) s (state),
	unnest('{NULL,a,b,gone}'::text[]) h (handler), unnest('{NULL,t1}'::text[]) t (tenant),
	unnest('{NULL,find.one}'::text[]) p (topic), unnest('{NULL,k1}'::text[]) k (key), unnest('{NULL,c3}'::text[]) c (correlation_id);
CREATE FUNCTION regress.wrong_pages() RETURNS SETOF regress.asked LANGUAGE sql AS $$
	SELECT a.* FROM regress.asked a
	WHERE ARRAY(SELECT d FROM outbox.deliveries d
			WHERE (a.state IS NULL OR d.state = a.state OR a.state = 'outstanding' AND d.state IN ('pending', 'retrying', 'leased'))
				AND (a.handler IS NULL OR d.handler = a.handler) AND (a.tenant IS NULL OR d.tenant = a.tenant) AND (a.topic IS NULL OR d.topic = a.topic)
				AND (a.key IS NULL OR d.key = a.key) AND (a.correlation_id IS NULL OR d.correlation_id = a.correlation_id)
			ORDER BY d.message_id DESC, d.handler_id DESC)
		IS DISTINCT FROM ARRAY(SELECT p FROM regress.pages(a.state, a.handler, a.tenant, a.topic, a.key, a.correlation_id, 7) p)
$$;
SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT FROM outbox.find_deliveries(a.handler, a.state, a.tenant, a.topic, a.key, a.correlation_id))) AS that_find_something FROM regress.asked a;
SELECT * FROM regress.wrong_pages();
-- A tenant's outstanding ones are looked at a thousand messages at a time.
SELECT outbox.create_handler('heap', '{heap.*}') IS NOT NULL AS created;
SELECT count(outbox.stage(CASE WHEN n > 2 THEN 'heap.much' ELSE 'heap.rare' END, tenant => CASE n % 50 WHEN 0 THEN 't2' ELSE 'heap' END)) FROM generate_series(1, 2600) n;
SELECT count(*) FROM outbox.find_deliveries(tenant => 'heap', state => 'outstanding', topic => 'heap.rare');
SELECT count(*), count(DISTINCT message_id) FROM outbox.find_deliveries(tenant => 'heap', state => 'pending', max_rows => 2600);
SELECT count(*) FROM outbox.find_deliveries(tenant => 'heap', state => 'dead');
SELECT outbox.cancel_where('heap');
SELECT count(*) FROM outbox.find_deliveries(tenant => 'heap', state => 'outstanding');
SELECT count(*) FROM outbox.find_deliveries(tenant => 'heap', state => 'cancelled', topic => 'heap.rare');
SELECT messages FROM outbox.erase_tenant('heap');
-- Of a time.
SELECT count(*) FROM outbox.find_deliveries(since => now() - interval '1 day', until => now() + interval '1 day', max_rows => 1000);
SELECT count(*) FROM outbox.find_deliveries(since => now() + interval '1 day');
SELECT count(*) FROM outbox.find_deliveries(until => now() - interval '1 day', tenant => 't1');
-- Without the handler's id: what is before all of a message's.
SELECT count(*) FROM outbox.find_deliveries(before_message_id => (SELECT message_id FROM outbox.find_deliveries(max_rows => 1)), max_rows => 1000);

SELECT regress.error_of('SELECT * FROM outbox.find_deliveries(state => ''ded'')');
SELECT regress.error_of('SELECT * FROM outbox.find_deliveries(handler => ''nobody'')');
SELECT regress.error_of('SELECT * FROM outbox.find_deliveries(topic => ''A b'')');
SELECT regress.error_of('SELECT * FROM outbox.find_deliveries(max_rows => 0)');
SELECT regress.error_of('SELECT * FROM outbox.find_deliveries(max_rows => 10001)');
SELECT regress.error_of('SELECT * FROM outbox.find_deliveries(max_rows => NULL)');
SELECT regress.error_of('SELECT * FROM outbox.find_deliveries(before_handler_id => 3)');
SELECT regress.error_of('SELECT * FROM outbox.find_deliveries(since => ''2020-01-02'', until => ''2020-01-01'')');
DROP FUNCTION regress.wrong_pages(), regress.pages(text, text, text, text, text, text, int);
DROP TABLE regress.asked;
CALL regress.start_anew();
