/*-------------------------------------------------------------------------
 *
 * rate_limit.h
 *		A lane's rate limit: so many requests a second, evenly spread.
 *
 * A token bucket kept as one number, the time at which the bucket would be
 * full again.  Rates may be fractional (0.1: one request in ten seconds).
 *
 * Pure: no clock (times are passed in, in microseconds of one clock), no
 * allocation.  Process: the dispatcher, in a lane.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RATE_LIMIT_H
#define OUTBOX_RATE_LIMIT_H

#include "outbox.h"

/* Zeroed: no limit. */
typedef struct OutboxRateLimit
{
	double		interval;		/* us from one request to the next; 0: no limit */
	double		slack;			/* us by which requests may be early: the burst */
	double		full_at;		/* us */
} OutboxRateLimit;

/*
 * Set the rate (requests a second; 0 or less: no limit) and the burst (how
 * many may go at once after a rest; less than 1 counts as 1).  What was
 * taken before stays taken.
 */
extern void outbox_rate_limit_set(OutboxRateLimit *limit, double rate, int burst);

/*
 * The time from which on a request may go: now or earlier if it may go now.
 * Never further away than one interval, whatever the clock has done.
 */
extern int64 outbox_rate_limit_next(OutboxRateLimit *limit, int64 now);

/* A request goes now.  Call it only when next() allows. */
extern void outbox_rate_limit_take(OutboxRateLimit *limit, int64 now);

#endif							/* OUTBOX_RATE_LIMIT_H */
