/*-------------------------------------------------------------------------
 *
 * lockout.h
 *		Keeps dispatchers out of a database that a command needs for itself.
 *
 * A lockout belongs to the backend whose command asks for it and falls when
 * that backend's transaction ends, so that the dispatcher comes back to what
 * the command has left.  It counts for nothing once that backend is gone.
 *
 * Processes: any backend raises and lowers lockouts; the workers ask.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_LOCKOUT_H
#define OUTBOX_LOCKOUT_H

#include "shared/shmem.h"

/*
 * Lock dispatchers out of the database of this slot, and tell which one, or
 * which on_settle worker without one, is there now (pid 0: none).  Raising it
 * again is harmless.  False if so many others have raised one that there is no
 * room: try again.
 */
extern bool outbox_lockout_raise(OutboxDatabase *slot, pid_t *pid, int *procno);

/* Lower every lockout of this backend.  Called by the transaction callback; never fails. */
extern void outbox_lockouts_lower(void);

/* What this process does is done for that session: its lockouts are for others. */
extern void outbox_lockout_exempt(pid_t session);

/* Caller holds the slot's mutex: has anybody raised a lockout? */
extern bool outbox_is_locked_out_locked(const OutboxDatabase *slot);

/* The same with the mutex taken, and with lockouts of backends that are gone removed first. */
extern bool outbox_lockout_is_up(OutboxDatabase *slot);

#endif							/* OUTBOX_LOCKOUT_H */
