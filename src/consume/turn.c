/*-------------------------------------------------------------------------
 *
 * turn.c
 *		Sessions that claim from one handler take turns at choosing rows.
 *
 * Turns are numbered, and the handler's state has the number of the one
 * that is under way.  A session that was deprived of its turn, or whose
 * handler's state was given to another handler, finds another number there
 * and leaves it alone.
 *
 * When a turn ends one of those who wait is woken, but anybody may begin
 * meanwhile: to keep the turn for a session that has yet to be given a CPU
 * would make all others wait for the scheduler.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/condition_variable.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "consume/turn.h"

/* How long somebody waits for a turn.  Turns take microseconds as a rule. */
#define PATIENCE_MS 100

/* Our turn; 0: we have none. */
static uint64 mine = 0;
static OutboxPullRef mine_of;

/* Must be called with the state locked. */
static void
begin(const OutboxPullRef *ref)
{
	mine = ref->state->turn = ++ref->state->last_turn;
	mine_of = *ref;
}

/*
 * Begin if it is nobody's turn, or that of the given number.  If it is
 * another session's, returns false and says which turn it is.  True as well
 * when there is nothing to take turns at.
 */
static bool
try_begin(const OutboxPullRef *ref, uint64 instead_of, uint64 *turn)
{
	OutboxPullState *state = ref->state;
	bool		free;

	if (!outbox_pull_state_lock(ref))
		return true;
	*turn = state->turn;
	free = state->turn == 0 || state->turn == instead_of;
	if (free)
		begin(ref);
	outbox_pull_state_unlock(ref);
	return free;
}

static void
wait_and_begin(const OutboxPullRef *ref, uint64 first_seen)
{
	OutboxPullState *state = ref->state;
	TimestampTz until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), PATIENCE_MS);
	uint64		turn;

	ConditionVariablePrepareToSleep(&state->turn_ended);
	while (!try_begin(ref, 0, &turn))
	{
		long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);

		if (left <= 0)
		{
			(void) try_begin(ref, first_seen, &turn);
			break;
		}
		(void) ConditionVariableTimedSleep(&state->turn_ended, left, PG_WAIT_EXTENSION);
	}
	ConditionVariableCancelSleep();
}

void
outbox_turn_take(const OutboxPullRef *ref)
{
	uint64		turn;

	if (!try_begin(ref, 0, &turn))
		wait_and_begin(ref, turn);
}

void
outbox_turn_end(void)
{
	if (mine == 0)
		return;
	if (outbox_pull_state_lock(&mine_of))
	{
		if (mine_of.state->turn == mine)
			mine_of.state->turn = 0;
		outbox_pull_state_unlock(&mine_of);
	}
	mine = 0;
	/* Whatever has become of the state: who waits there looks again. */
	ConditionVariableSignal(&mine_of.state->turn_ended);
}
