/*-------------------------------------------------------------------------
 *
 * expiry.h
 *		Deliveries that have expired before they went out.
 *
 * A delivery with an end (expires_at, ttl, max_age) is cancelled with code
 * "expired" when that has come, whatever keeps it waiting: a pause, an open
 * breaker, a retry, nobody who claims it.  What is out has gone out: a request
 * that is not answered yet, a lease that has not run out, an on_settle
 * function that has not ended.  What comes of it counts; if that is another
 * attempt, there is none.
 *
 * One that cannot be cancelled, since something of a user's fails there, waits
 * alone: the looks go past it and come back after pauses that grow.
 *
 * They are found in the index delivery_expires from where the last look ended,
 * so that a look costs what has expired since.  What is met there and has
 * gone out is left to the next rescan, which looks at everything behind its
 * end once more.  A lane looks at the end of each delivery before it sends.
 *
 * The wall clock says when.  One that is set forward by more than ten seconds
 * is not believed for a minute: until it is set back, or the minute is over,
 * what only its new time makes expire is neither cancelled nor sent.
 *
 * Process: the dispatcher, while it serves; so not in a copy.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_EXPIRY_H
#define OUTBOX_EXPIRY_H

#include "dispatch/delivery.h"

/* Something expires then, by the wall clock (DT_NOEND: nothing); and the earliest such time that is known. */
extern void outbox_expiry_expect(TimestampTz end_at);
extern TimestampTz outbox_expiry_expected(void);

/* Look at everything behind its end once more. */
extern void outbox_expiry_request(void);

/* Called each time that both clocks have been compared (clock.h). */
extern void outbox_expiry_watch_clock(TimestampTz now);

/* When the next look is due; and one, in a transaction of its own: some of them, if there are many.  For perform(). */
extern TimestampTz outbox_expiry_next(void);
extern bool outbox_expiry_look(TimestampTz now);

/*
 * A look has failed.  If the error is one that lasts, the next ones cancel each
 * delivery apart from the others, and go past those that cannot be.  True if
 * there is no use in looking again at once.
 */
extern bool outbox_expiry_failed(bool lasts);

/* Why some that have expired are still there, in words (NULL: there are none). */
extern const char *outbox_expiry_problem(void);

/* May it be sent now? */
typedef enum OutboxFreshness
{
	OUTBOX_FRESH,
	OUTBOX_EXPIRED,
	OUTBOX_DOUBTFUL				/* not before outbox_expiry_doubt_ends() */
} OutboxFreshness;

extern OutboxFreshness outbox_expiry_judge(const OutboxDelivery *delivery, TimestampTz now);
extern TimestampTz outbox_expiry_doubt_ends(void);

/* The verdict on one that has expired: cancelled, without an attempt. */
extern void outbox_expiry_verdict(OutboxDelivery *delivery);

#endif							/* OUTBOX_EXPIRY_H */
