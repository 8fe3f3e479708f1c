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

/*
 * Refusals count when they are at least this share of the last answers, of
 * about so many.  Another cut is made if the last one helped, which is when
 * so many in a row were taken after it, or if most are refused.
 */
#define COUNTING_SHARE 0.1
#define MEMORY 20
#define HELPED_AFTER 5
#define MOST 0.5

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

void
outbox_throttle_restore(OutboxThrottle *throttle, double rate, int64 now)
{
	memset(throttle, 0, sizeof(*throttle));
	if (!(rate > 0) || isinf(rate))
		return;
	throttle->refused_rate = rate;
	throttle->cut_at = throttle->refused_at = throttle->grown_at = now;
	set_rate(throttle, rate);
}

/* Take one answer into the share that is refused. */
static void
note_answer(OutboxThrottle *throttle, bool refused)
{
	throttle->answers = Min(throttle->answers + 1, MEMORY);
	throttle->refused_share += ((refused ? 1 : 0) - throttle->refused_share) / throttle->answers;
	throttle->taken_in_row = refused ? 0 : Min(throttle->taken_in_row + 1, HELPED_AFTER);
	if (throttle->taken_in_row == HELPED_AFTER)
		throttle->helped = true;
}

/* Is a refusal now, of a request that was sent after the last cut, reason for another one? */
static bool
counts(const OutboxThrottle *throttle, int64 now)
{
	if (throttle->refused_share < COUNTING_SHARE)
		return false;
	if (throttle->rate <= 0)
		return true;
	return now - throttle->cut_at >= CUT_INTERVAL && (throttle->helped || throttle->refused_share >= MOST);
}

bool
outbox_throttle_refused(OutboxThrottle *throttle, int64 sent_at, int64 now)
{
	bool		is_first = throttle->rate <= 0;
	double		rate = taken_now(throttle, now);

	throttle->refused_at = now;
	/* What was sent before the rate was cut says nothing of what it is now. */
	if (!is_first && sent_at < throttle->cut_at)
		return false;
	note_answer(throttle, true);
	if (!counts(throttle, now))
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
	throttle->helped = false;
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
	note_answer(throttle, false);
	if (throttle->rate <= 0)
		return false;
	grow(throttle, now);
	if (throttle->rate < FREE_AT * throttle->refused_rate && now - throttle->refused_at < FREE_AFTER)
		return false;
	set_rate(throttle, 0);
	return true;
}
