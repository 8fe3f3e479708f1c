-- What cron expressions mean, in the server's own time zones, and how bad ones are refused.
SET timezone = 'UTC';
SET datestyle = 'ISO';

SELECT * FROM outbox.next_runs('*/15 9-17 * * MON-FRI', after => '2026-03-27 17:00+00', n => 4);
SELECT * FROM outbox.next_runs('@hourly', n => 3, after => '2026-03-27 17:59:59.5+00');
SELECT count(*), min(r) > now() AS all_to_come FROM outbox.next_runs('* * * * *') r;

-- Where the clocks change: how many hours, and at what time of the day.
CREATE FUNCTION regress.local_runs(cron text, zone text, after timestamptz, n int) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(to_char(r AT TIME ZONE zone, 'MM-DD HH24:MI') || to_char(r, ' (HH24:MI)'), ', ' ORDER BY r) FROM outbox.next_runs(cron, zone, after, n) r
$$;
-- Berlin, an hour at 2 and at 3 o'clock.
SELECT regress.local_runs('30 2 * * *', 'Europe/Berlin', '2026-03-28 00:00+00', 3) AS forward,
	regress.local_runs('30 2 * * *', 'Europe/Berlin', '2026-10-24 00:00+00', 3) AS back;
SELECT regress.local_runs('*/30 * * * *', 'Europe/Berlin', '2026-03-29 00:30+00', 3) AS forward,
	regress.local_runs('*/30 * * * *', 'Europe/Berlin', '2026-10-24 23:59+00', 5) AS back;
-- Lord Howe, half an hour at 2 o'clock.
SELECT regress.local_runs('15 2 * * *', 'Australia/Lord_Howe', '2026-10-02 20:00+00', 2) AS forward,
	regress.local_runs('45 1 * * *', 'Australia/Lord_Howe', '2026-04-03 20:00+00', 2) AS back;
SELECT regress.local_runs('*/15 1-2 * * *', 'Australia/Lord_Howe', '2026-04-04 14:15+00', 7) AS back;
-- Beirut, at midnight: forward to 1, back to 23 o'clock.
SELECT regress.local_runs('0 0 * * *', 'Asia/Beirut', '2024-03-29 12:00+00', 3) AS forward,
	regress.local_runs('30 23 * * *', 'Asia/Beirut', '2024-10-25 12:00+00', 3) AS back;
SELECT regress.local_runs('@daily', 'Asia/Beirut', '2024-03-30 12:00+00', 2) AS forward;
-- Apia, a whole day that there was not: it has no occurrence.
SELECT regress.local_runs('0 12 * * *', 'Pacific/Apia', '2011-12-28 12:00+00', 3) AS forward;
-- Not by the clock of the session.
SET timezone = 'America/New_York';
SELECT to_char(r AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') FROM outbox.next_runs('0 9 * * *', after => '2026-01-01 00:00+00', n => 1) r;
SET timezone = 'UTC';

-- Leap days and month ends.
SELECT r::date FROM outbox.next_runs('0 0 29 2 *', after => '2095-01-01', n => 3) r;
SELECT r::date FROM outbox.next_runs('0 0 L * *', after => '2027-12-31', n => 4) r;
SELECT to_char(r, 'Dy YYYY-MM-DD') FROM outbox.next_runs('0 0 * * MON#2,FRIL', after => '2026-01-01', n => 4) r;
SELECT r FROM outbox.next_runs('*/20 59 23 31 12 *', after => '2026-01-01', n => 4) r;
SELECT count(*) AS beyond_what_a_timestamp_holds FROM outbox.next_runs('@yearly', after => '294276-01-01', n => 10);

-- Refused, with position and reason.
SELECT wrong, regress.error_of(format('SELECT outbox.next_runs(%L)', wrong)) AS error
FROM (VALUES (1, '60 * * * *'), (2, '* * 30 2 *'), (3, '* *'), (4, '0 0 * * MÖN'), (5, '0 0 Ä * *'), (6, '0 5/2 * * *'), (7, '@reboot')) v (n, wrong) ORDER BY n;
SELECT regress.error_of('SELECT outbox.next_runs(NULL)');
SELECT regress.error_of('SELECT outbox.next_runs(''@daily'', NULL)');
SELECT regress.error_of('SELECT outbox.next_runs(''@daily'', ''Europe/Brelin'')');
SELECT regress.error_of('SELECT outbox.next_runs(''@daily'', n => 0)');
SELECT regress.error_of('SELECT outbox.next_runs(''@daily'', n => 1001)');
SELECT regress.error_of('SELECT outbox.next_runs(''@daily'', after => ''infinity'')');
DROP FUNCTION regress.local_runs;
