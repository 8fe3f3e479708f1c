/*-------------------------------------------------------------------------
 *
 * waiters.h
 *		Waking the backends that are inside outbox.wait().
 *
 * Each waiting backend has a slot, at the index of its procno, in a list of
 * its handler: highest consumer version first, then longest waiting first.
 * Whoever makes n deliveries claimable takes up to n waiters off the list,
 * marks them woken and sets their latches.  A woken waiter that finds
 * nothing (another consumer was faster) goes back to the list; one that
 * leaves without having looked (cancelled, terminated) passes its wake-up on.
 *
 * The head of the list is the keeper: only it sleeps no longer than until
 * next_check, then looks for what has fallen due by itself (scheduled
 * messages, retries, expired leases) and wakes as many as there are.  It is
 * also who looks again one second after a wake-up, in case the one woken
 * died before it claimed.  The others sleep until they are woken.  Wake-ups
 * prefer the second in the list, so that the keeper can stay.
 *
 * Process: any backend, a committing or aborting one too.  Spinlocks only;
 * nothing here raises or allocates.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_WAITERS_H
#define OUTBOX_WAITERS_H

#include "shared/pull_state.h"

/* What a waiter is to do next. */
typedef struct OutboxWaiterDuty
{
	bool		woken;			/* it was taken off the list since it last asked */
	bool		keeper;
	bool		lost;			/* the handler's state has changed hands: register again */
	TimestampTz next_check;		/* for the keeper */
	int			nwaiters;
} OutboxWaiterDuty;

/* Enter this backend into the list.  False if there is no state to wait on. */
extern bool outbox_waiter_enter(const OutboxPullRef *ref, int32 version);

/* What to do now.  A woken waiter is entered again, so that it misses nothing while it looks. */
extern void outbox_waiter_duty(const OutboxPullRef *ref, OutboxWaiterDuty *duty);

/* Leave.  True if the waiter had been woken and has not answered for it: pass it on or claim. */
extern bool outbox_waiter_leave(const OutboxPullRef *ref);

/* The keeper begins a check: what it is told of from now on counts for the next one. */
extern void outbox_waiters_begin_check(const OutboxPullRef *ref);

/* Something falls due at this time: the keeper is to look then. */
extern void outbox_waiters_due_at(const OutboxPullRef *ref, TimestampTz due_at);

/* n deliveries may be claimed now. */
extern void outbox_waiters_wake(const OutboxPullRef *ref, int n, TimestampTz now);

#endif							/* OUTBOX_WAITERS_H */
