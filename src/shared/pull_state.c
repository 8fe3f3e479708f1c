/*-------------------------------------------------------------------------
 *
 * pull_state.c
 *		The table of pull handlers in shared memory.
 *
 * Open addressing with a short probe sequence.  An owner word, once set, is
 * replaced but never cleared, so that a lookup may stop at the first word
 * that was never used and needs no lock; whoever then works on the entry
 * takes its mutex and compares the owner again.
 *
 * Lock order: the table's mutex, then an entry's.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/pull_state.h"

#define PROBE_LENGTH 32

OutboxPullShared *outbox_pull_shared = NULL;

Size
outbox_pull_shmem_size(void)
{
	return add_size(offsetof(OutboxPullShared, waiters),
					mul_size(outbox_max_backends(), sizeof(OutboxWaiter)));
}

static void
init_state(OutboxPullState *state)
{
	memset(state, 0, sizeof(OutboxPullState));
	pg_atomic_init_u64(&state->owner, 0);
	SpinLockInit(&state->mutex);
	ConditionVariableInit(&state->turn_ended);
}

/* Forget everything: claims read from the beginning. */
static void
reset_state(OutboxPullState *state)
{
	state->incarnation++;
	for (int i = 0; i < OUTBOX_POSITIONS; i++)
		state->positions[i].used = false;
	for (int i = 0; i < OUTBOX_KEY_FLOORS; i++)
		state->floors[i].len = -1;
	state->nstrays = 0;
	state->nclaimants = 0;
	state->turn = 0;
	state->first_waiter = -1;
	state->last_waiter = -1;
	state->nwaiters = 0;
	state->next_check = DT_NOBEGIN;
}

void
outbox_pull_shmem_startup(void)
{
	bool		found;

	outbox_pull_shared = ShmemInitStruct("outbox pull handlers", outbox_pull_shmem_size(), &found);
	if (found)
		return;

	SpinLockInit(&outbox_pull_shared->mutex);
	for (int i = 0; i < OUTBOX_PULL_STATES; i++)
	{
		init_state(&outbox_pull_shared->states[i]);
		reset_state(&outbox_pull_shared->states[i]);
	}
	outbox_pull_shared->max_waiters = outbox_max_backends();
	memset(outbox_pull_shared->waiters, 0, sizeof(OutboxWaiter) * outbox_pull_shared->max_waiters);
}

static inline uint64
owner_word(Oid dboid, int32 handler_id)
{
	return ((uint64) dboid << 32) | (uint32) handler_id;
}

static inline OutboxPullState *
probe(uint64 owner, int step)
{
	uint32		start = murmurhash32((uint32) owner) ^ murmurhash32((uint32) (owner >> 32));

	return &outbox_pull_shared->states[(start + step) % OUTBOX_PULL_STATES];
}

static OutboxPullState *
find_state(uint64 owner)
{
	for (int step = 0; step < PROBE_LENGTH; step++)
	{
		OutboxPullState *state = probe(owner, step);
		uint64		found = pg_atomic_read_u64(&state->owner);

		if (found == owner)
			return state;
		if (found == 0)
			return NULL;
	}
	return NULL;
}

/* The entry to hand over: an unused one, or the longest unused without waiters. */
static OutboxPullState *
choose_victim(uint64 owner)
{
	OutboxPullState *victim = NULL;

	for (int step = 0; step < PROBE_LENGTH; step++)
	{
		OutboxPullState *state = probe(owner, step);

		if (pg_atomic_read_u64(&state->owner) == 0)
			return state;
		/* Read without its mutex: a wrong choice costs a reread, and waiters are checked again. */
		if (state->nwaiters == 0 && (victim == NULL || state->last_used < victim->last_used))
			victim = state;
	}
	return victim;
}

static OutboxPullState *
make_state(uint64 owner)
{
	OutboxPullState *state;
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&outbox_pull_shared->mutex);
	state = find_state(owner);
	if (state == NULL && (state = choose_victim(owner)) != NULL)
	{
		SpinLockAcquire(&state->mutex);
		if (state->nwaiters == 0)
		{
			reset_state(state);
			state->last_used = now;
			pg_atomic_write_u64(&state->owner, owner);
			SpinLockRelease(&state->mutex);
		}
		else
		{
			SpinLockRelease(&state->mutex);
			state = NULL;
		}
	}
	SpinLockRelease(&outbox_pull_shared->mutex);
	return state;
}

OutboxPullState *
outbox_pull_state(Oid dboid, int32 handler_id, bool create)
{
	uint64		owner = owner_word(dboid, handler_id);
	OutboxPullState *state;

	if (outbox_pull_shared == NULL)
		return NULL;
	state = find_state(owner);
	if (state == NULL && create)
		state = make_state(owner);
	return state;
}

bool
outbox_pull_state_lock(const OutboxPullRef *ref)
{
	OutboxPullState *state = ref->state;

	if (state == NULL)
		return false;
	SpinLockAcquire(&state->mutex);
	if (pg_atomic_read_u64(&state->owner) == owner_word(ref->dboid, ref->handler_id))
		return true;
	SpinLockRelease(&state->mutex);
	return false;
}

void
outbox_pull_state_unlock(const OutboxPullRef *ref)
{
	SpinLockRelease(&ref->state->mutex);
}

void
outbox_pull_states_of(Oid dboid, void (*callback) (OutboxPullState *state))
{
	if (outbox_pull_shared == NULL)
		return;
	for (int i = 0; i < OUTBOX_PULL_STATES; i++)
	{
		OutboxPullState *state = &outbox_pull_shared->states[i];

		if (pg_atomic_read_u64(&state->owner) >> 32 == dboid)
			callback(state);
	}
}
