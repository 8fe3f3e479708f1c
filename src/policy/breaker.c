/*-------------------------------------------------------------------------
 *
 * breaker.c
 *		The circuit breaker of a lane.
 *
 * Promises: see breaker.h.  Pure.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "policy/breaker.h"

const char *
outbox_breaker_state_name(OutboxBreakerState state)
{
	switch (state)
	{
		case OUTBOX_BREAKER_CLOSED:
			return "closed";
		case OUTBOX_BREAKER_OPEN:
			return "open";
		case OUTBOX_BREAKER_HALF_OPEN:
			return "half-open";
	}
	return "closed";			/* keep compiler quiet */
}

bool
outbox_breaker_allows(const OutboxBreaker *breaker, int64 now)
{
	return breaker->state == OUTBOX_BREAKER_CLOSED ||
		(breaker->state == OUTBOX_BREAKER_OPEN && now >= breaker->until);
}

int64
outbox_breaker_next(const OutboxBreaker *breaker)
{
	return breaker->state == OUTBOX_BREAKER_OPEN ? breaker->until : OUTBOX_BREAKER_NEVER;
}

bool
outbox_breaker_sent(OutboxBreaker *breaker)
{
	if (breaker->state != OUTBOX_BREAKER_OPEN)
		return false;
	breaker->state = OUTBOX_BREAKER_HALF_OPEN;
	return true;
}

void
outbox_breaker_not_sent(OutboxBreaker *breaker, int64 now)
{
	if (breaker->state != OUTBOX_BREAKER_HALF_OPEN)
		return;
	breaker->state = OUTBOX_BREAKER_OPEN;
	breaker->until = now;
}

/* Stop sending for a while; the wait doubles from probe to probe. */
static void
open_breaker(OutboxBreaker *breaker, const OutboxBreakerPolicy *policy, const char *code, int64 now)
{
	int64		wait_max = Max(policy->wait_max, policy->wait);

	if (breaker->state == OUTBOX_BREAKER_CLOSED || breaker->wait <= 0)
		breaker->wait = policy->wait;
	else
		breaker->wait = breaker->wait > wait_max / 2 ? wait_max : breaker->wait * 2;

	breaker->state = OUTBOX_BREAKER_OPEN;
	breaker->until = breaker->wait > OUTBOX_BREAKER_NEVER - 1 - now ?
		OUTBOX_BREAKER_NEVER - 1 : now + breaker->wait;
	snprintf(breaker->reason, sizeof(breaker->reason),
			 "%d failures in a row, the last one: %s", breaker->failures, code);
}

static OutboxBreakerChange
note_success(OutboxBreaker *breaker)
{
	bool		was_failing = breaker->failing_since != 0 ||
		breaker->state != OUTBOX_BREAKER_CLOSED;

	/* A failure or two between successes is not worth a row's update. */
	if (breaker->state == OUTBOX_BREAKER_CLOSED && breaker->failures < OUTBOX_BREAKER_MIN_FAILURES)
		was_failing = false;
	memset(breaker, 0, sizeof(*breaker));
	return was_failing ? OUTBOX_BREAKER_CHANGED : OUTBOX_BREAKER_SAME;
}

static bool
is_to_be_disabled(const OutboxBreaker *breaker, const OutboxBreakerPolicy *policy, int64 now)
{
	return policy->disable_after > 0 &&
		breaker->failures >= OUTBOX_BREAKER_MIN_FAILURES &&
		now - breaker->failing_since >= policy->disable_after;
}

OutboxBreakerChange
outbox_breaker_note(OutboxBreaker *breaker, const OutboxBreakerPolicy *policy,
					bool failed, const char *code, int64 now)
{
	bool		opens;

	if (!failed)
		return note_success(breaker);

	if (breaker->failures == 0 && breaker->failing_since == 0)
		breaker->failing_since = now;
	if (breaker->failures < PG_INT32_MAX)
		breaker->failures++;

	opens = breaker->state == OUTBOX_BREAKER_HALF_OPEN ||
		(breaker->state == OUTBOX_BREAKER_CLOSED && policy->threshold > 0 &&
		 breaker->failures >= policy->threshold);
	if (opens)
		open_breaker(breaker, policy, code, now);

	if (is_to_be_disabled(breaker, policy, now))
	{
		snprintf(breaker->reason, sizeof(breaker->reason),
				 "failing for " INT64_FORMAT " seconds, the last failure: %s",
				 (now - breaker->failing_since) / 1000000, code);
		return OUTBOX_BREAKER_DISABLE;
	}

	/* Where the breaker never opens, the row still has to learn since when it fails. */
	if (opens || (breaker->state == OUTBOX_BREAKER_CLOSED &&
				  breaker->failures == OUTBOX_BREAKER_MIN_FAILURES))
		return OUTBOX_BREAKER_CHANGED;
	return OUTBOX_BREAKER_SAME;
}

void
outbox_breaker_restore(OutboxBreaker *breaker, const OutboxBreakerPolicy *policy,
					   OutboxBreakerState state, int64 until, int64 failing_since,
					   const char *reason, int64 now)
{
	int64		longest = Max(policy->wait, policy->wait_max);

	memset(breaker, 0, sizeof(*breaker));
	breaker->failing_since = Min(failing_since, now);
	if (failing_since != 0)
		breaker->failures = Max(policy->threshold, OUTBOX_BREAKER_MIN_FAILURES);
	if (state == OUTBOX_BREAKER_CLOSED)
		return;

	/* A probe that was out is lost: another one may go when its time comes. */
	breaker->state = OUTBOX_BREAKER_OPEN;
	breaker->wait = policy->wait;
	breaker->until = until - now > longest ? now + longest : until;
	strlcpy(breaker->reason, reason ? reason : "", sizeof(breaker->reason));
}
