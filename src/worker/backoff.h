/*-------------------------------------------------------------------------
 *
 * backoff.h
 *		Pauses that grow while something keeps failing.
 *
 * Promises: the one place that says how long to wait after a failure, for
 * whatever can fail again and again: database work, one outcome that cannot
 * be written, a process that does not stay.  A pause doubles with each
 * failure in a row up to its limit and starts anew after a success.  No wait
 * is ever longer than its pause, whatever the clock does meanwhile.
 *
 * Allocates nothing and raises nothing.  All zeros is one that has not
 * failed.  Processes: all workers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_BACKOFF_H
#define OUTBOX_BACKOFF_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* The first pause and the longest one, in microseconds. */
typedef struct OutboxPauses
{
	int64		first;
	int64		longest;
} OutboxPauses;

/* For work in the database, which an operator may be about to make possible again. */
extern const OutboxPauses outbox_work_pauses;

typedef struct OutboxBackoff
{
	int			failures;		/* in a row */
	int64		pause;			/* the running one; 0: none */
	TimestampTz until;			/* when it is over */
} OutboxBackoff;

/* It has failed (again), or not. */
extern void outbox_backoff_fail(OutboxBackoff *backoff, const OutboxPauses *pauses, TimestampTz now);
extern void outbox_backoff_succeed(OutboxBackoff *backoff);

/* Something is in the way that is no failure, such as a lock: wait once. */
extern void outbox_backoff_wait(OutboxBackoff *backoff, int64 pause, TimestampTz now);

/*
 * A process that was started at a time has ended.  One that left of its own
 * accord, or that had lived for long, is not one that keeps failing: it may
 * be started again after the first pause.
 */
extern void outbox_backoff_process_ended(OutboxBackoff *backoff, bool failed, TimestampTz started, TimestampTz now);

/* Is it time to try?  After the clock was set back, until is put right here. */
extern bool outbox_backoff_is_over(OutboxBackoff *backoff, TimestampTz now);

/* When it will be time, for whoever decides how long to sleep; DT_NOBEGIN: it is. */
extern TimestampTz outbox_backoff_until(const OutboxBackoff *backoff);

#endif							/* OUTBOX_BACKOFF_H */
