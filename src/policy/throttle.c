/*-------------------------------------------------------------------------
 *
 * throttle.c
 *		The rate that a receiver which refuses for load is found to bear.
 *
 * Promises: see throttle.h.  Pure.
 *
 * What is cut to is measured, not guessed: how many requests a second were
 * taken, as an average that forgets within a second or two.  A burst that a
 * receiver has let through before it refused counts as a second's worth,
 * which is what most limits are counted by.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "policy/throttle.h"

#define SECOND 1000000.0

/* A refusal cuts the rate to this share of what was taken, at most once a second. */
#define CUT 0.8
#define CUT_INTERVAL SECOND

/* But not to less than this share of what it was, for few answers say little. */
#define DEEPEST_CUT 0.125

/* Requests a second: the first cut leaves so many, and none leaves less than the second. */
#define FIRST_FLOOR 2.0
#define FLOOR 0.2

/*
 * How fast it grows, as a share of itself each second: by so much while the
 * last refusal is recent, then twice as fast with every second, up to this.
 */
#define SLOW_GROWTH 0.04
#define SLOW_UNTIL (4 * SECOND)
#define FASTEST_GROWTH 3.0

/* A rate that the lane does not use by this share is not known to be borne, so it does not grow. */
#define USED_SHARE 0.25

/* Free again: so many times what was refused, or nothing refused for so long. */
#define FREE_AT 10.0
#define FREE_AFTER (60 * SECOND)

/* What was taken a second, as seen now. */
static double
taken_now(const OutboxThrottle *throttle, int64 now)
{
	double		age = (double) (now - throttle->taken_at) / SECOND;

	return age > 0 ? throttle->taken * exp(-age) : throttle->taken;
}

static void
set_rate(OutboxThrottle *throttle, double rate)
{
	throttle->rate = rate;
	outbox_rate_limit_set(&throttle->spacing, rate, 1);
}

int64
outbox_throttle_next(OutboxThrottle *throttle, int64 now)
{
	return outbox_rate_limit_next(&throttle->spacing, now);
}

void
outbox_throttle_take(OutboxThrottle *throttle, int64 now)
{
	outbox_rate_limit_take(&throttle->spacing, now);
}

bool
outbox_throttle_refused(OutboxThrottle *throttle, int64 sent_at, int64 now)
{
	bool		is_first = throttle->rate <= 0;
	double		rate = taken_now(throttle, now);

	throttle->refused_at = now;
	/* What was sent before the rate was cut says nothing of what it is now. */
	if (!is_first && (sent_at < throttle->cut_at || now - throttle->cut_at < CUT_INTERVAL))
		return false;
	if (!is_first)
		rate = Min(rate, throttle->rate);
	throttle->refused_rate = Max(rate, FLOOR);
	rate *= CUT;
	if (is_first)
		rate = Max(rate, FIRST_FLOOR);
	else
		rate = Max(rate, throttle->rate * DEEPEST_CUT);
	set_rate(throttle, Max(rate, FLOOR));
	/* The burst that led here counts: the next one goes an interval from now. */
	outbox_rate_limit_take(&throttle->spacing, now);
	throttle->cut_at = throttle->grown_at = now;
	return true;
}

/* Growth a second, so long after the last refusal. */
static double
growth(double since_refusal)
{
	if (since_refusal < SLOW_UNTIL)
		return SLOW_GROWTH;
	return Min(SLOW_GROWTH * exp2((since_refusal - SLOW_UNTIL) / SECOND), FASTEST_GROWTH);
}

static void
grow(OutboxThrottle *throttle, int64 now)
{
	double		elapsed = Min((double) (now - throttle->grown_at), SECOND) / SECOND;

	throttle->grown_at = now;
	if (throttle->taken < throttle->rate * USED_SHARE || elapsed <= 0)
		return;
	set_rate(throttle, throttle->rate * (1 + elapsed * growth((double) (now - throttle->refused_at))));
}

bool
outbox_throttle_taken(OutboxThrottle *throttle, int64 now)
{
	throttle->taken = taken_now(throttle, now) + 1;
	throttle->taken_at = now;
	if (throttle->rate <= 0)
		return false;
	grow(throttle, now);
	if (throttle->rate < FREE_AT * throttle->refused_rate && now - throttle->refused_at < FREE_AFTER)
		return false;
	set_rate(throttle, 0);
	return true;
}
