/*-------------------------------------------------------------------------
 *
 * occurrences.h
 *		Has the schedule workers there when occurrences of schedules are due,
 *		and when retention is.
 *
 * The dispatcher knows one time of each of the two kinds of schedules, those
 * that stage a message and those that run a function: when there is something
 * to do for the first of them.  A worker is started a little before that, so
 * that it is there in time, and leaves by itself when it has nothing to do for
 * a while.  So schedules cost nothing between their occurrences, however many
 * there are.  The worker for those that stage messages also looks after
 * retention, and is started for that too, once somebody else does not lack the
 * background worker slot.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_OCCURRENCES_H
#define OUTBOX_OCCURRENCES_H

#include "shared/shmem.h"

extern void outbox_occurrences_init(OutboxDatabase *db);

/* Read these times, because somebody has changed schedules, a worker has left, or it is asked for. */
extern void outbox_occurrences_request(void);
extern TimestampTz outbox_occurrences_look_next(void);

/* The same, in a transaction with a snapshot.  False if somebody's lock is in the way. */
extern bool outbox_occurrences_look(TimestampTz now);

/*
 * Have the workers that are needed (crew.h), unless nothing may run in this
 * database; and when to come back if nothing happens before.
 */
extern void outbox_occurrences_attend(TimestampTz now, bool allowed);
extern TimestampTz outbox_occurrences_next(void);

/* Was there nothing to do for any schedule at the last look?  While a worker does something, only another look can tell. */
extern bool outbox_occurrences_are_over(TimestampTz now);

/* Why no schedule can be run at the moment, in words; NULL: nothing is in the way. */
extern const char *outbox_occurrences_problem(void);

#endif							/* OUTBOX_OCCURRENCES_H */
