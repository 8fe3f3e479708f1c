/*-------------------------------------------------------------------------
 *
 * events.h
 *		Tells handlers that take outbox's own events what has happened.
 *
 * What has happened is in outbox.event_queue, where the transaction in which
 * it did has put it; which of it becomes a message is said in SQL, by
 * outbox_internal.tell_events(): at most so many a minute about one handler or
 * schedule, and how many there were beside those.
 *
 * Promises: each batch is a transaction of its own and takes no table lock
 * that somebody else holds.  Nothing here raises, and what fails is tried again
 * after a growing pause, so that no occurrence of a schedule waits for it.
 *
 * Process: the schedule worker that stages messages, between two occurrences.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SCHEDULE_EVENTS_H
#define OUTBOX_SCHEDULE_EVENTS_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* There is something to tell then, as far as is known; DT_NOEND: never. */
extern void outbox_events_expect(TimestampTz at);

/* Tell a batch of it, if its time has come. */
extern void outbox_events_work(TimestampTz now);

/* When that is the next time. */
extern TimestampTz outbox_events_next(void);

#endif							/* OUTBOX_SCHEDULE_EVENTS_H */
