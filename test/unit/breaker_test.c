/*-------------------------------------------------------------------------
 *
 * breaker_test.c
 *		The circuit breaker and the rate limit of a lane.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "policy/breaker.h"
#include "policy/rate_limit.h"

#include "tap.h"

#define SECOND INT64CONST(1000000)
#define DAY (86400 * SECOND)

static const OutboxBreakerPolicy policy = {
	.threshold = 3, .wait = 5 * SECOND, .wait_max = 20 * SECOND, .disable_after = 5 * DAY
};

static OutboxBreakerChange
fail(OutboxBreaker *breaker, int64 now)
{
	return outbox_breaker_note(breaker, &policy, true, "503", now);
}

static OutboxBreakerChange
succeed(OutboxBreaker *breaker, int64 now)
{
	return outbox_breaker_note(breaker, &policy, false, "", now);
}

static void
test_opening(void)
{
	OutboxBreaker breaker = {0};
	int64		now = 1000 * SECOND;

	ok(outbox_breaker_allows(&breaker, now), "a new breaker lets requests through");
	is_int(outbox_breaker_next(&breaker), OUTBOX_BREAKER_NEVER, "and waits for nothing");
	ok(!outbox_breaker_sent(&breaker), "sending changes nothing");
	is_int(fail(&breaker, now), OUTBOX_BREAKER_SAME, "one failure");
	is_int(fail(&breaker, now), OUTBOX_BREAKER_SAME, "two failures");
	is_int(succeed(&breaker, now), OUTBOX_BREAKER_SAME, "a success in between is not worth a row");
	is_int(breaker.failures, 0, "but starts the count again");
	fail(&breaker, now);
	fail(&breaker, now + 1);
	is_int(fail(&breaker, now + 2), OUTBOX_BREAKER_CHANGED, "the third in a row opens it");
	is_int(breaker.state, OUTBOX_BREAKER_OPEN, "it is open");
	is_int(breaker.failing_since, now, "since the first failure");
	is_str(breaker.reason, "3 failures in a row, the last one: 503", "and says why");
	ok(!outbox_breaker_allows(&breaker, now + 2), "nothing goes now");
	is_int(outbox_breaker_next(&breaker), now + 2 + policy.wait, "until the wait is over");
	is_int(fail(&breaker, now + 3), OUTBOX_BREAKER_SAME, "a late failure changes nothing");
	is_int(breaker.until, now + 2 + policy.wait, "not even the wait");
}

static void
test_probing(void)
{
	OutboxBreaker breaker = {0};
	int64		now = 1000 * SECOND;
	static const int64 waits[] = {10, 20, 20, 20};

	for (int i = 0; i < 3; i++)
		fail(&breaker, now);
	for (int i = 0; i < (int) lengthof(waits); i++)
	{
		now = breaker.until;
		ok(!outbox_breaker_allows(&breaker, now - 1), "not a microsecond early");
		ok(outbox_breaker_allows(&breaker, now), "a probe may go");
		ok(outbox_breaker_sent(&breaker), "it goes");
		is_int(breaker.state, OUTBOX_BREAKER_HALF_OPEN, "half open");
		ok(!outbox_breaker_allows(&breaker, now + DAY), "only one");
		is_int(outbox_breaker_next(&breaker), OUTBOX_BREAKER_NEVER, "its answer comes first");
		is_int(fail(&breaker, now + SECOND), OUTBOX_BREAKER_CHANGED, "it fails");
		is_int(breaker.until, now + SECOND + waits[i] * SECOND, "the wait grows to its maximum");
	}

	now = breaker.until;
	outbox_breaker_sent(&breaker);
	outbox_breaker_not_sent(&breaker, now);
	ok(outbox_breaker_allows(&breaker, now), "a probe that was never sent may be repeated at once");
	outbox_breaker_sent(&breaker);
	is_int(succeed(&breaker, now), OUTBOX_BREAKER_CHANGED, "a probe succeeds");
	is_int(breaker.state, OUTBOX_BREAKER_CLOSED, "closed again");
	is_str(breaker.reason, "", "without a reason");
	is_int(breaker.failing_since, 0, "and not failing");

	for (int i = 0; i < 3; i++)
		fail(&breaker, now);
	is_int(breaker.until, now + policy.wait, "the next time the wait starts small");
	is_int(succeed(&breaker, now), OUTBOX_BREAKER_CHANGED, "a late success closes an open one");
	ok(outbox_breaker_allows(&breaker, now), "and requests flow");
	outbox_breaker_not_sent(&breaker, now);
	is_int(breaker.state, OUTBOX_BREAKER_CLOSED, "a request not sent matters only to a probe");
}

static void
test_disabling(void)
{
	OutboxBreaker breaker = {0};
	OutboxBreakerPolicy never = {.threshold = 0, .disable_after = 5 * DAY};
	OutboxBreakerPolicy patient = policy;
	int64		now = 1000 * SECOND;

	fail(&breaker, now);
	is_int(fail(&breaker, now + 6 * DAY), OUTBOX_BREAKER_SAME, "two failures in six days do not disable");

	memset(&breaker, 0, sizeof(breaker));
	for (int i = 1; i < OUTBOX_BREAKER_MIN_FAILURES; i++)
	{
		fail(&breaker, now);
		outbox_breaker_sent(&breaker);
	}
	is_int(fail(&breaker, now + 5 * DAY - 1), OUTBOX_BREAKER_CHANGED, "not before the time is over");
	outbox_breaker_sent(&breaker);
	is_int(fail(&breaker, now + 5 * DAY), OUTBOX_BREAKER_DISABLE, "five days of failing disable");
	is_str(breaker.reason, "failing for 432000 seconds, the last failure: 503", "with a reason");

	patient.disable_after = 0;
	memset(&breaker, 0, sizeof(breaker));
	for (int i = 0; i < 100; i++)
	{
		ok(outbox_breaker_note(&breaker, &patient, true, "503", now + i * DAY) != OUTBOX_BREAKER_DISABLE,
		   "0 never disables");
		outbox_breaker_sent(&breaker);
	}

	memset(&breaker, 0, sizeof(breaker));
	for (int i = 1; i < OUTBOX_BREAKER_MIN_FAILURES; i++)
		is_int(outbox_breaker_note(&breaker, &never, true, "503", now), OUTBOX_BREAKER_SAME,
			   "a threshold of 0 never opens");
	is_int(outbox_breaker_note(&breaker, &never, true, "503", now), OUTBOX_BREAKER_CHANGED,
		   "but the row learns since when it fails");
	ok(outbox_breaker_allows(&breaker, now), "and requests flow");
	is_int(outbox_breaker_note(&breaker, &never, true, "503", now + 5 * DAY), OUTBOX_BREAKER_DISABLE,
		   "until it is disabled");
	is_int(outbox_breaker_note(&breaker, &never, false, "", now), OUTBOX_BREAKER_CHANGED,
		   "a success after that is worth a row");
}

static void
test_restoring(void)
{
	OutboxBreaker breaker;
	int64		now = 1000 * SECOND;

	outbox_breaker_restore(&breaker, &policy, OUTBOX_BREAKER_HALF_OPEN, now + SECOND, now - DAY,
						   "whatever", now);
	is_int(breaker.state, OUTBOX_BREAKER_OPEN, "a lost probe leaves it open");
	ok(!outbox_breaker_allows(&breaker, now), "not yet");
	ok(outbox_breaker_allows(&breaker, now + SECOND), "but when its time comes");
	is_str(breaker.reason, "whatever", "the reason is kept");
	outbox_breaker_sent(&breaker);
	is_int(fail(&breaker, now + 5 * DAY), OUTBOX_BREAKER_DISABLE, "failing counts from before the restart");

	outbox_breaker_restore(&breaker, &policy, OUTBOX_BREAKER_OPEN, now + DAY, now + DAY, "x", now);
	is_int(breaker.until, now + policy.wait_max, "written when the clock was ahead, it waits no longer than it ever does");
	is_int(breaker.failing_since, now, "and has not failed since later than now");

	outbox_breaker_restore(&breaker, &policy, OUTBOX_BREAKER_CLOSED, 0, 0, NULL, now);
	ok(outbox_breaker_allows(&breaker, now), "closed stays closed");
	is_str(outbox_breaker_state_name(OUTBOX_BREAKER_CLOSED), "closed", "name of closed");
	is_str(outbox_breaker_state_name(OUTBOX_BREAKER_OPEN), "open", "name of open");
	is_str(outbox_breaker_state_name(OUTBOX_BREAKER_HALF_OPEN), "half-open", "name of half-open");
}

static void
test_overflow(void)
{
	OutboxBreaker breaker = {0};
	OutboxBreakerPolicy huge = {.threshold = 1, .wait = PG_INT64_MAX, .wait_max = PG_INT64_MAX};

	outbox_breaker_note(&breaker, &huge, true, "x", PG_INT64_MAX - 5);
	ok(breaker.until < OUTBOX_BREAKER_NEVER && breaker.until > 0, "a huge wait does not overflow");
	outbox_breaker_sent(&breaker);
	outbox_breaker_note(&breaker, &huge, true, "x", 1);
	is_int(breaker.until, OUTBOX_BREAKER_NEVER - 1, "nor does doubling it");
	breaker.failures = PG_INT32_MAX;
	outbox_breaker_note(&breaker, &huge, true, "x", 1);
	is_int(breaker.failures, PG_INT32_MAX, "nor the count");
}

/* How many requests go in a time, if they go as soon as they may. */
static int
count_requests(OutboxRateLimit *limit, int64 from, int64 until)
{
	int			requests = 0;
	int64		now = from;

	while (now < until)
	{
		int64		next = outbox_rate_limit_next(limit, now);

		if (next > now)
		{
			now = next;
			continue;
		}
		outbox_rate_limit_take(limit, now);
		requests++;
		now++;
	}
	return requests;
}

static void
test_rate_limit(void)
{
	OutboxRateLimit limit = {0};
	int64		now = INT64CONST(1760000000) * SECOND;

	ok(outbox_rate_limit_next(&limit, now) <= now, "no limit: now");
	outbox_rate_limit_take(&limit, now);
	ok(outbox_rate_limit_next(&limit, now) <= now, "and again");

	outbox_rate_limit_set(&limit, 10, 1);
	ok(outbox_rate_limit_next(&limit, now) <= now, "the first goes at once");
	outbox_rate_limit_take(&limit, now);
	is_int(outbox_rate_limit_next(&limit, now), now + 100000, "the second a tenth of a second later");
	is_int(count_requests(&limit, now, now + 100 * SECOND), 999, "evenly after that");

	memset(&limit, 0, sizeof(limit));
	outbox_rate_limit_set(&limit, 10, 5);
	is_int(count_requests(&limit, now, now + SECOND), 14, "a burst of 5 and 9 more in a second");
	is_int(count_requests(&limit, now + 60 * SECOND, now + 61 * SECOND), 14, "a rest fills the burst, no more");

	memset(&limit, 0, sizeof(limit));
	outbox_rate_limit_set(&limit, 0.1, 1);
	outbox_rate_limit_take(&limit, now);
	is_int(outbox_rate_limit_next(&limit, now), now + 10 * SECOND, "one in ten seconds");
	memset(&limit, 0, sizeof(limit));
	outbox_rate_limit_set(&limit, 3, 1);
	is_int(count_requests(&limit, now, now + 100 * SECOND), 300, "thirds do not drift");
	memset(&limit, 0, sizeof(limit));
	outbox_rate_limit_set(&limit, 1e-300, 1);
	outbox_rate_limit_take(&limit, now);
	ok(outbox_rate_limit_next(&limit, now) > now + 300 * DAY, "an absurd rate is a slow one");

	memset(&limit, 0, sizeof(limit));
	outbox_rate_limit_set(&limit, 1, 1);
	outbox_rate_limit_take(&limit, now);
	is_int(outbox_rate_limit_next(&limit, now - 3600 * SECOND), now - 3600 * SECOND + SECOND,
		   "a clock that steps back costs one interval, not an hour");
	is_int(outbox_rate_limit_next(&limit, now - 3600 * SECOND + SECOND / 2), now - 3600 * SECOND + SECOND,
		   "and that interval passes");
	outbox_rate_limit_set(&limit, 0, 1);
	ok(outbox_rate_limit_next(&limit, now) <= now, "the limit can be lifted");
	outbox_rate_limit_set(&limit, 10, -3);
	outbox_rate_limit_take(&limit, now);
	is_int(outbox_rate_limit_next(&limit, now), now + 100000, "a burst below 1 is 1");
}

int
main(void)
{
	test_opening();
	test_probing();
	test_disabling();
	test_restoring();
	test_overflow();
	test_rate_limit();
	return tap_done();
}
