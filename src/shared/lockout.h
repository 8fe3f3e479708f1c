/*-------------------------------------------------------------------------
 *
 * lockout.h
 *		Keeps dispatchers out of a database that a command needs for itself.
 *
 * A bar belongs to the backend whose command asks for it and falls when
 * that backend's transaction ends, so that the dispatcher comes back to what
 * the command has left.  It counts for nothing once that backend is gone.
 *
 * Backends raise and lower bars; the launcher and the dispatcher ask.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_BAR_H
#define OUTBOX_BAR_H

#include "shared/shmem.h"

/*
 * Bar dispatchers from the database of this slot, and tell which one, or
 * which hook worker without one, is there now (pid 0: none).  Raising it again is harmless.  False if so many
 * others have raised one that there is no room: try again.
 */
extern bool outbox_bar_raise(OutboxDatabase *slot, pid_t *pid, int *procno);

/* Lower every bar of this backend.  Called by the transaction callback; never fails. */
extern void outbox_bars_lower(void);

/* Caller holds the slot's mutex: has anybody raised a bar? */
extern bool outbox_bar_is_up_locked(const OutboxDatabase *slot);

/* The same with the mutex taken, and with bars of backends that are gone removed first. */
extern bool outbox_bar_is_up(OutboxDatabase *slot);

#endif							/* OUTBOX_BAR_H */
