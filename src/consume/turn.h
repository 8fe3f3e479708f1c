/*-------------------------------------------------------------------------
 *
 * turn.h
 *		Sessions that claim from one handler take turns at choosing rows.
 *
 * Claims start reading where the handler's position is.  Sessions that do so
 * at the same time all read the same entries, and each steps over what the
 * others have locked.  So only one at a time chooses its rows: it reads them,
 * raises the position past them and lets the next one begin there.  Nothing
 * is locked, changed or waited for in a turn, and it ends long before the
 * transaction does.
 *
 * A turn is a courtesy.  Claims are right without it, which is why nobody
 * waits for long: whoever finds the same session in its turn all the time
 * takes the turn away from it (the session is stopped, or reads on and on),
 * and whoever is always too late claims without one.
 *
 * An error, a cancelled query, a terminated backend: the end of the
 * transaction or savepoint ends the turn.  A crash empties shared memory.
 *
 * Process: any backend, in a transaction.  Without shared memory there are
 * no turns, and everybody goes on at once.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TURN_H
#define OUTBOX_TURN_H

#include "shared/pull_state.h"

/*
 * Wait for our turn, or go on without one when that takes too long.  The
 * wait can be interrupted.
 */
extern void outbox_turn_take(const OutboxPullRef *ref);

/* End our turn, if we have one, and let the next session begin.  Neither raises nor allocates. */
extern void outbox_turn_end(void);

#endif							/* OUTBOX_TURN_H */
