/*-------------------------------------------------------------------------
 *
 * failing.h
 *		How much of what a handler is sent fails, and since when all of it.
 *
 * For whoever watches: attempts and failures of the last few minutes, and
 * the time of the first failure since the last success.  Every attempt that
 * did not deliver is a failure here, whoever is to blame for it; what the
 * circuit breaker goes by is breaker.h.
 *
 * Pure: no clock (times are passed in, in microseconds of one clock that does
 * not step back), no allocation.  Process: the dispatcher, in a lane.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_FAILING_H
#define OUTBOX_FAILING_H

/* The present minute and those before it that are counted. */
#define OUTBOX_FAILING_MINUTES 5

/* Zeroed: nothing was tried. */
typedef struct OutboxFailing
{
	int64		since;			/* the first of the failures in a row; 0: the last attempt succeeded */
	int64		minute;			/* the present one, counted from 1970 or so */
	int			attempts[OUTBOX_FAILING_MINUTES];	/* a ring: minute modulo its length */
	int			failures[OUTBOX_FAILING_MINUTES];
} OutboxFailing;

/* An attempt has ended. */
extern void outbox_failing_note(OutboxFailing *failing, bool failed, int64 now);

/* The attempts of the last minutes, and how many of them failed. */
extern void outbox_failing_count(OutboxFailing *failing, int64 now, int *attempts, int *failures);

#endif							/* OUTBOX_FAILING_H */
