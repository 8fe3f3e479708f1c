/*-------------------------------------------------------------------------
 *
 * slot.h
 *		A dispatcher's hold on its database's slot in shared memory.
 *
 * Process: the dispatcher.  Taking the slot is what makes it the only one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SLOT_H
#define OUTBOX_SLOT_H

#include "shared/shmem.h"

/*
 * Become the dispatcher of a database.  Returns NULL if it has one already,
 * is locked out, or no slot is free.  The slot is let go at process exit: as
 * failed, unless outbox_slot_leave() said otherwise.
 */
extern OutboxDatabase *outbox_slot_take(Oid dboid);

/* The extension is here: show the slot.  database is what it is called in messages of this process. */
extern void outbox_slot_name(const char *database);

/* Say what the dispatcher does, in the log too when that has changed; text (or NULL) becomes last_error. */
extern void outbox_slot_state(OutboxDispatcherState state, const char *text);
extern void outbox_slot_error(const char *text);

/* The loop has come round, with so many requests out; by the wall clock. */
extern void outbox_slot_moves(int in_flight, TimestampTz now);

/* What this machine lacks to send, and since when; NULL: nothing. */
extern void outbox_slot_shortage(const char *text, TimestampTz since);
/* Show these deliveries, at most OUTBOX_MAX_ASIDE, whose outcomes could not be written. */
extern void outbox_slot_aside(const OutboxAside *aside, int n);

/*
 * Say whether the dispatcher sends.  While it does not, nobody wakes it for
 * deliveries: when it sends again, it has to empty the doorbell after this.
 */
extern void outbox_slot_sends(bool sends);

/* True if DROP DATABASE or the like asks the dispatcher to leave. */
extern bool outbox_slot_is_locked_out(void);

/* The process is about to exit on purpose: leave the slot in this state, and with this text if there is one. */
extern void outbox_slot_leave(OutboxDispatcherState state, const char *text);

#endif							/* OUTBOX_SLOT_H */
