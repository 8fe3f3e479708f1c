/*-------------------------------------------------------------------------
 *
 * throttle.h
 *		The rate that a receiver which refuses for load is found to bear.
 *
 * A receiver that answers 429 or 503 says that it was asked too fast, but as
 * a rule not how fast it may be asked.  So its lane finds out: a refusal cuts
 * the rate to less than what has been taken lately, and from then on it grows
 * a little at first and faster the longer nothing is refused.  Around a
 * limit that stays it swings closely; one that has gone is left behind in
 * seconds.  A receiver that refuses now and then, however fast it is asked,
 * is not slowed down to nothing: one refusal among many is no reason, and
 * what did not help is not done again.
 *
 * Pure: no clock (times are passed in, in microseconds of one clock that does
 * not step), no allocation.  Process: the dispatcher, in a lane.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_THROTTLE_H
#define OUTBOX_THROTTLE_H

#include "policy/rate_limit.h"

/* Zeroed: free, and nothing is known. */
typedef struct OutboxThrottle
{
	double		rate;			/* requests a second that may go; 0: any number */
	double		refused_rate;	/* what it was when it was cut last */
	int64		cut_at;			/* us, as below */
	int64		refused_at;		/* the last refusal */
	int64		grown_at;
	double		taken;			/* requests a second that were not refused, of late */
	int64		taken_at;		/* when that was worked out */
	double		refused_share;	/* of the last few answers */
	int			answers;		/* so many, or more */
	int			taken_in_row;	/* since the last refusal */
	bool		helped;			/* the last cut: a good number in a row were taken after it */
	OutboxRateLimit spacing;
} OutboxThrottle;

/* The time from which on a request may go: now or earlier if it may go now. */
extern int64 outbox_throttle_next(OutboxThrottle *throttle, int64 now);

/* A request goes now.  Call it only when next() allows. */
extern void outbox_throttle_take(OutboxThrottle *throttle, int64 now);

/* Take up what was known before a restart: the rate it was cut to, 0 for none. */
extern void outbox_throttle_restore(OutboxThrottle *throttle, double rate, int64 now);

/*
 * A request that was sent at sent_at has been answered: refused for load, or
 * otherwise.  True if throttling has begun or ended, or its rate has been cut.
 */
extern bool outbox_throttle_refused(OutboxThrottle *throttle, int64 sent_at, int64 now);
extern bool outbox_throttle_taken(OutboxThrottle *throttle, int64 now);

#endif							/* OUTBOX_THROTTLE_H */
