/*-------------------------------------------------------------------------
 *
 * duties.h
 *		What the dispatcher does in the database.
 *
 *		settings	take up what ALTER DATABASE and the like have set
 *		reload		read the handlers that have changed
 *		recount		count what is with the on_settle workers
 *		rescan		look at everything outstanding
 *		schedules	read when there is something to do for the first of them
 *		status		write what has changed of handlers' states
 *		settle		write outcomes
 *		read		read what is due
 *
 * Promises: nothing here raises, whatever the database says, and nothing ends
 * the process: an outcome is in memory until it is written, and tried for
 * ever.  Each duty that fails is tried again after pauses of its own, which
 * grow; the others go on meanwhile, in transactions of their own.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DUTIES_H
#define OUTBOX_DUTIES_H

#include "dispatch/lane.h"
#include "shared/shmem.h"

/* The context that is current between two pieces of work. */
extern void outbox_duties_init(OutboxDatabase *db, MemoryContext context);

/*
 * What a worker that settles alone takes from the database's settings, with
 * what only the dispatcher needs.  In a transaction; false if somebody's lock
 * is in the way.
 */
extern bool outbox_duties_take_settings(void);

/* Settings have changed, or could not be read at the start; have they been read since? */
extern void outbox_duties_request_settings(void);
extern bool outbox_duties_know_settings(void);

/* Settings, handlers and the periodic looks, each if it is due.  True if handlers were read. */
extern bool outbox_duties_maintain(TimestampTz now);

/* This lane is to be read by the next outbox_duties_settle_and_read(); false: not by that one, too many are. */
extern bool outbox_duties_want_read(OutboxLane *lane);

/* Write what is to be written, then read, if that is due. */
extern void outbox_duties_settle_and_read(TimestampTz now, bool sends);

/* May something be written now?  Not in a pause after it could not. */
extern bool outbox_duties_may_settle(TimestampTz now);

/* The process is about to end: what could not be written is tried again at once. */
extern void outbox_duties_last_chance(void);

/* Does anything wait until it may be tried again? */
extern bool outbox_duties_pause(TimestampTz now);

/* When there will be something to do. */
extern TimestampTz outbox_duties_next(TimestampTz now, bool sends);

/* What cannot be done at the moment, in words; NULL: all goes well. */
extern const char *outbox_duties_problem(void);

#endif							/* OUTBOX_DUTIES_H */
