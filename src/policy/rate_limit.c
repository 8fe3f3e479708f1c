/*-------------------------------------------------------------------------
 *
 * rate_limit.c
 *		A lane's rate limit.
 *
 * Promises: see rate_limit.h.  Pure.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "policy/rate_limit.h"

/* However small the rate: a request a year. */
#define LONGEST_INTERVAL (366.0 * 86400 * 1e6)

void
outbox_rate_limit_set(OutboxRateLimit *limit, double rate, int burst)
{
	if (!(rate > 0) || isinf(rate))
	{
		memset(limit, 0, sizeof(*limit));
		return;
	}
	limit->interval = Min(1e6 / rate, LONGEST_INTERVAL);
	limit->slack = limit->interval * (Max(burst, 1) - 1);
}

/*
 * When the bucket is full again, as seen at now.  It cannot be further ahead
 * than an empty bucket takes to fill: if it is, the rate was raised or the
 * caller's clock stepped back, and that is kept, so that the wait passes.
 */
static double
full_at(OutboxRateLimit *limit, int64 now)
{
	double		latest = (double) now + limit->slack + limit->interval;

	limit->full_at = Min(limit->full_at, latest);
	return Max(limit->full_at, (double) now);
}

int64
outbox_rate_limit_next(OutboxRateLimit *limit, int64 now)
{
	if (limit->interval <= 0)
		return now;
	return (int64) ceil(full_at(limit, now) - limit->slack);
}

void
outbox_rate_limit_take(OutboxRateLimit *limit, int64 now)
{
	if (limit->interval > 0)
		limit->full_at = full_at(limit, now) + limit->interval;
}
