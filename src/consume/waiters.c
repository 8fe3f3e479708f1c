/*-------------------------------------------------------------------------
 *
 * waiters.c
 *		Waking the backends that are inside outbox.wait().  See waiters.h.
 *
 * The list is linked by slot numbers and guarded by the mutex of the
 * handler's state; a slot belongs to the list it is in while waiting is set.
 * Latches are set after the mutex is released.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "compat.h"
#include "consume/waiters.h"
#include "shared/shmem.h"

/* How many waiters are taken off under one hold of the mutex. */
#define WAKE_SLICE 16

/* The keeper looks again so long after a wake-up. */
#define RECHECK_US (1000 * 1000)

static inline OutboxWaiter *
waiter(int slot)
{
	return &outbox_pull_shared->waiters[slot];
}

static void
unlink_waiter(OutboxPullState *state, int slot)
{
	OutboxWaiter *w = waiter(slot);

	if (w->previous >= 0)
		waiter(w->previous)->next = w->next;
	else
		state->first_waiter = w->next;
	if (w->next >= 0)
		waiter(w->next)->previous = w->previous;
	else
		state->last_waiter = w->previous;
	state->nwaiters--;
	w->waiting = false;
}

/* Behind everybody of the same or a higher version. */
static void
link_waiter(OutboxPullState *state, int slot)
{
	OutboxWaiter *w = waiter(slot);
	int			before = state->last_waiter;

	while (before >= 0 && waiter(before)->version < w->version)
		before = waiter(before)->previous;
	w->previous = before;
	if (before >= 0)
	{
		w->next = waiter(before)->next;
		waiter(before)->next = slot;
	}
	else
	{
		w->next = state->first_waiter;
		state->first_waiter = slot;
	}
	if (w->next >= 0)
		waiter(w->next)->previous = slot;
	else
		state->last_waiter = slot;
	state->nwaiters++;
	w->waiting = true;
}

bool
outbox_waiter_enter(const OutboxPullRef *ref, int32 version)
{
	int			slot = outbox_my_procno();
	OutboxWaiter *w;

	if (outbox_pull_shared == NULL || slot < 0 || slot >= outbox_pull_shared->max_waiters)
		return false;
	if (!outbox_pull_state_lock(ref))
		return false;
	w = waiter(slot);
	w->version = version;
	w->woken = false;
	link_waiter(ref->state, slot);
	outbox_pull_state_unlock(ref);
	return true;
}

void
outbox_waiter_duty(const OutboxPullRef *ref, OutboxWaiterDuty *duty)
{
	OutboxPullState *state = ref->state;
	int			slot = outbox_my_procno();
	OutboxWaiter *w = waiter(slot);

	memset(duty, 0, sizeof(OutboxWaiterDuty));
	if (!outbox_pull_state_lock(ref))
	{
		/* Only a state without waiters changes hands, so this one had taken us off: we were woken. */
		duty->lost = true;
		duty->woken = w->woken;
		w->woken = false;
		return;
	}
	duty->woken = w->woken;
	w->woken = false;
	if (!w->waiting)
		link_waiter(state, slot);
	duty->keeper = state->first_waiter == slot;
	duty->next_check = state->next_check;
	duty->nwaiters = state->nwaiters;
	outbox_pull_state_unlock(ref);
}

bool
outbox_waiter_leave(const OutboxPullRef *ref)
{
	OutboxPullState *state = ref->state;
	int			slot = outbox_my_procno();
	OutboxWaiter *w = outbox_pull_shared ? waiter(slot) : NULL;
	int			heir = -1;
	bool		woken;

	if (w == NULL)
		return false;
	if (!outbox_pull_state_lock(ref))
	{
		woken = w->woken;
		w->woken = false;
		return woken;
	}
	if (w->waiting)
	{
		bool		was_keeper = state->first_waiter == slot;

		unlink_waiter(state, slot);
		if (was_keeper)
			heir = state->first_waiter;
	}
	woken = w->woken;
	w->woken = false;
	outbox_pull_state_unlock(ref);

	/* The new keeper has to set its alarm. */
	outbox_set_latch(heir);
	return woken;
}

void
outbox_waiters_begin_check(const OutboxPullRef *ref)
{
	if (!outbox_pull_state_lock(ref))
		return;
	ref->state->next_check = DT_NOEND;
	outbox_pull_state_unlock(ref);
}

/* Returns whose latch to set, or -1.  Caller holds the mutex. */
static int
advance_check(OutboxPullState *state, TimestampTz at)
{
	if (at >= state->next_check)
		return -1;
	state->next_check = at;
	return state->first_waiter;
}

void
outbox_waiters_due_at(const OutboxPullRef *ref, TimestampTz due_at)
{
	int			keeper;

	if (!outbox_pull_state_lock(ref))
		return;
	keeper = advance_check(ref->state, due_at);
	outbox_pull_state_unlock(ref);
	outbox_set_latch(keeper);
}

/* Whom to wake: the second in the list if it can claim what the keeper can. */
static int
choose_waiter(const OutboxPullState *state)
{
	int			first = state->first_waiter;
	int			second = waiter(first)->next;

	if (second >= 0 && waiter(second)->version == waiter(first)->version)
		return second;
	return first;
}

/* Take up to n waiters off.  Returns how many there were to take. */
static int
wake_some(const OutboxPullRef *ref, int n, TimestampTz now)
{
	OutboxPullState *state = ref->state;
	int			latches[WAKE_SLICE + 1];
	int			nlatches = 0;
	int			keeper;

	if (!outbox_pull_state_lock(ref))
		return 0;
	keeper = state->first_waiter;
	while (nlatches < Min(n, WAKE_SLICE) && state->nwaiters > 0)
	{
		int			slot = choose_waiter(state);

		unlink_waiter(state, slot);
		waiter(slot)->woken = true;
		latches[nlatches++] = slot;
	}
	n = nlatches;
	if (nlatches > 0 && state->nwaiters > 0)
	{
		int			alarmed = advance_check(state, now + RECHECK_US);

		/* The keeper has changed, or its alarm has. */
		if (alarmed >= 0 || state->first_waiter != keeper)
			latches[nlatches++] = state->first_waiter;
	}
	outbox_pull_state_unlock(ref);

	for (int i = 0; i < nlatches; i++)
		outbox_set_latch(latches[i]);
	return n;
}

void
outbox_waiters_wake(const OutboxPullRef *ref, int n, TimestampTz now)
{
	while (n > 0)
	{
		int			woken = wake_some(ref, Min(n, WAKE_SLICE), now);

		if (woken == 0)
			return;
		n -= woken;
	}
}
