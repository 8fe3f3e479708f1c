/*-------------------------------------------------------------------------
 *
 * crew.h
 *		Starts and watches the workers that run functions of users.
 *
 * Which of them are needed is said by hand_over.h, for handlers, and by
 * occurrences.h, for schedules.  They end with their dispatcher.
 *
 * Process: the dispatcher.  Nothing here raises.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_CREW_H
#define OUTBOX_CREW_H

#include "outbox.h"

#include "shared/function_slot.h"

extern void outbox_crew_init(OutboxDatabase *db);

/*
 * Take the state of a worker over from shared memory and the postmaster: what
 * its place says.  True if there is one, or one is about to be.
 */
extern bool outbox_crew_look(OutboxFunctionPlace place, OutboxFunctionSlotView *view, TimestampTz now);
extern bool outbox_crew_is_there(OutboxFunctionPlace place);

/* Start one that is not there, unless it has to pause. */
extern void outbox_crew_start(OutboxFunctionPlace place, TimestampTz now);

/* Until when it has to pause. */
extern TimestampTz outbox_crew_may_start_at(OutboxFunctionPlace place);

/* No background worker slot was free for one that is not there. */
extern bool outbox_crew_lacks(OutboxFunctionPlace place);

/* End a worker; all of them, and start no other: the dispatcher ends. */
extern void outbox_crew_dismiss(OutboxFunctionPlace place);
extern void outbox_crew_leave(void);
extern bool outbox_crew_is_leaving(void);
extern bool outbox_crew_is_gone(void);

#endif							/* OUTBOX_CREW_H */
