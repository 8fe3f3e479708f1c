-- Rules, secrets and blocked networks: what is taken and what is refused.
\set VERBOSITY terse

-- Rules: every form there is
SELECT outbox_internal.check_rules('{}');
SELECT outbox_internal.check_rules('{"404": "cancel", "409": "ok", "410": "retry", "422": "fail", "*": {"max_attempts": 3}}');
SELECT outbox_internal.check_rules('{"timeout": {"streak": null}, "rate_limited": {"action": "retry", "max_attempts": null, "backoff_max": "1 min"},
	"5xx": {"max_attempts": 20, "backoff_max": "1 h", "on_exhaustion": "cancel"}, "connect": {"on_exhaustion": "dead", "streak": 32767}}');

-- What is none
\set VERBOSITY default
SELECT outbox_internal.check_rules('[]');
SELECT outbox_internal.check_rules('"404"');
SELECT outbox_internal.check_rules('{"4XX": "cancel"}');
SELECT outbox_internal.check_rules('{"404": "drop"}');
SELECT outbox_internal.check_rules('{"404": 3}');
SELECT outbox_internal.check_rules('{"404": {"attempts": 1}}');
SELECT outbox_internal.check_rules('{"404": {"streak": 0}}');
SELECT outbox_internal.check_rules('{"404": {"max_attempts": 1000001}}');
SELECT outbox_internal.check_rules('{"404": {"backoff_max": "soon"}}');
SELECT outbox_internal.check_rules('{"404": {"backoff_max": "-1 s"}}');
SELECT outbox_internal.check_rules('{"404": {"on_exhaustion": "give up"}}');
\set VERBOSITY terse
SELECT outbox_internal.check_rules('{"6xx": "cancel"}');
SELECT outbox_internal.check_rules('{"0xx": "cancel"}');
SELECT outbox_internal.check_rules('{"999": "cancel"}');
SELECT outbox_internal.check_rules('{"40": "cancel"}');
SELECT outbox_internal.check_rules('{"": "cancel"}');
SELECT outbox_internal.check_rules('{"rate limited": "cancel"}');
SELECT outbox_internal.check_rules(jsonb_build_object(repeat('x', 64), 'cancel'));
SELECT outbox_internal.check_rules('{"404": null}');
SELECT outbox_internal.check_rules('{"404": ["cancel"]}');
SELECT outbox_internal.check_rules('{"404": {"action": null}}');
SELECT outbox_internal.check_rules('{"404": {"streak": 1.5}}');
SELECT outbox_internal.check_rules('{"404": {"streak": -1}}');
SELECT outbox_internal.check_rules('{"404": {"streak": "5"}}');
SELECT outbox_internal.check_rules('{"404": {"streak": 1e300}}');
SELECT outbox_internal.check_rules('{"404": {"streak": 32768}}');
SELECT outbox_internal.check_rules('{"404": {"backoff_max": 5}}');
SELECT outbox_internal.check_rules('{"404": {"backoff_max": "2 years"}}');
SELECT outbox_internal.check_rules((SELECT jsonb_object_agg('code' || i, 'ok') FROM generate_series(1, 201) i));

-- Secrets
INSERT INTO outbox.handler (name, topics, url) VALUES ('pushes', '{a.*}', 'http://127.0.0.1/');
INSERT INTO outbox.handler (name, topics) VALUES ('pulls', '{a.*}');
CREATE FUNCTION secrets() RETURNS TABLE (prefix text, hours_left numeric) LANGUAGE sql AS $$
	SELECT substr(secret, 1, position('_' IN secret)), round(extract(epoch FROM expires_at - now())::numeric / 3600)
	FROM outbox.handler_secret ORDER BY created_at
$$;

SELECT outbox.rotate_secret('pushes') ~ '^whsec_[A-Za-z0-9+/]{43}=$' AS first_secret;
SELECT * FROM secrets();
SELECT outbox.rotate_secret('pushes') AS returned \gset
SELECT secret = :'returned' AS the_new_one FROM outbox.handler_secret WHERE expires_at IS NULL;
SELECT * FROM secrets();
-- a secret that is on its way out does not get more time
SELECT outbox.rotate_secret('pushes', '48 hours') ~ '^whsec_' AS rotated;
SELECT * FROM secrets();
SELECT outbox.rotate_secret('pushes', '0') ~ '^whsec_' AS rotated_at_once;
SELECT * FROM secrets();
SELECT count(DISTINCT outbox.rotate_secret('pushes', '0')) FROM generate_series(1, 100);
SELECT count(DISTINCT outbox.rotate_secret('pushes')) FROM generate_series(1, 100);
SELECT count(*) FROM outbox.handler_secret;
SELECT outbox.rotate_secret('pushes', '0', 'whsk') ~ '^whpk_' AS another_scheme;
SELECT outbox.rotate_secret('pushes', '0') ~ '^whpk_' AS the_same_again;
SELECT outbox.rotate_secret('pushes', '0', 'whsec') ~ '^whsec_' AS and_back;
SELECT regress.error_of('SELECT outbox.rotate_secret(''pushes'', scheme => ''rsa'')');

-- Ed25519 stays Ed25519, and its receivers get the public key
UPDATE outbox.handler_secret SET secret = 'whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==';
SELECT outbox.rotate_secret('pushes') AS returned \gset
SELECT outbox_internal.public_key(secret) = :'returned' AS public_key FROM outbox.handler_secret WHERE expires_at IS NULL;
SELECT * FROM secrets();
SELECT outbox_internal.public_key('whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==');
SELECT outbox_internal.public_key('whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc=') AS from_seed_alone;
SELECT outbox_internal.public_key('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw') IS NULL AS symmetric_has_none;

-- What is refused, never showing the secret
\set VERBOSITY default
SELECT outbox_internal.public_key('MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
SELECT outbox_internal.public_key('whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=');
SELECT outbox_internal.public_key('whsec_c2hvcnQ=');
SELECT outbox_internal.public_key('whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw');
SELECT outbox_internal.public_key('whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvw==');
\set VERBOSITY terse
SELECT outbox_internal.public_key('whsec_');
SELECT outbox_internal.public_key('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2La LaSw');
SELECT outbox_internal.public_key('whsec_' || encode(convert_to(repeat('x', 65), 'UTF8'), 'base64'));
SELECT outbox_internal.public_key('whsec_' || repeat('A', 100000));
SELECT outbox.rotate_secret('pulls');
SELECT outbox.rotate_secret('nobody');
SELECT outbox.rotate_secret('pushes', '-1 s');
SELECT outbox.rotate_secret('pushes', NULL);
DROP FUNCTION secrets;
DELETE FROM outbox.handler_secret;
DELETE FROM outbox.handler WHERE name IN ('pushes', 'pulls');

-- Networks
SET outbox.blocked_networks = '';
SET outbox.blocked_networks = 'private, 198.51.100.7, 2001:db8::/32';
SHOW outbox.blocked_networks;
\set VERBOSITY default
SET outbox.blocked_networks = 'private, 10.0.0.1/8';
SET outbox.blocked_networks = 'localhost';
RESET outbox.blocked_networks;
