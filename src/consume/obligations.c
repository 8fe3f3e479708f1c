/*-------------------------------------------------------------------------
 *
 * obligations.c
 *		What a transaction that claims or settles owes when it ends.
 *
 * Notes are kept per handler and subtransaction.  Each has room for a fixed
 * number of keys; what does not fit is remembered by its lowest key, and
 * reporting that makes claims read again from there.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "consume/obligations.h"
#include "consume/turn.h"
#include "consume/waiters.h"
#include "consume/watermark.h"
#include "shared/doorbell.h"

#define MAX_KEYS 128
#define MAX_XIDS 8

/* Notes kept allocated from one transaction to the next. */
#define KEEP_NOTES 4

/* Keys, and the lowest of those that did not fit. */
typedef struct KeyList
{
	int			n;
	int			more;
	OutboxQueuePosition lowest;
	OutboxQueuePosition keys[MAX_KEYS];
} KeyList;

typedef struct Note
{
	OutboxPullRef ref;
	SubTransactionId subid;
	bool		claimed;
	int			nxids;
	TransactionId xids[MAX_XIDS];	/* registered as claimants */
	KeyList		owed;
	KeyList		moved;
	KeyList		revisit;		/* only the ids count */
} Note;

/* An array of pointers, so that growing it copies little; the first nallocated are there. */
static Note **notes = NULL;
static int	nnotes = 0;
static int	nallocated = 0;
static int	max_notes = 0;

static void
add_key(KeyList *list, const OutboxQueuePosition *key)
{
	/* Several attempts at one row in a row leave one note. */
	if (list->n > 0 && outbox_position_cmp(&list->keys[list->n - 1], key) == 0)
		return;
	if (list->n < MAX_KEYS)
	{
		list->keys[list->n++] = *key;
		return;
	}
	if (list->more == 0 || outbox_position_cmp(key, &list->lowest) < 0)
		list->lowest = *key;
	list->more++;
}

static void
merge_keys(KeyList *into, const KeyList *from)
{
	for (int i = 0; i < from->n; i++)
		add_key(into, &from->keys[i]);
	if (from->more > 0)
	{
		if (into->more == 0 || outbox_position_cmp(&from->lowest, &into->lowest) < 0)
			into->lowest = from->lowest;
		into->more += from->more;
	}
}

static Note *
append_note(const OutboxPullRef *ref, SubTransactionId subid)
{
	Note	   *note;

	if (nnotes == max_notes)
	{
		int			size = max_notes == 0 ? 16 : max_notes * 2;

		if (notes == NULL)
			notes = MemoryContextAlloc(TopMemoryContext, sizeof(Note *) * size);
		else
			notes = repalloc(notes, sizeof(Note *) * size);
		max_notes = size;
	}
	if (nnotes == nallocated)
	{
		notes[nallocated] = MemoryContextAlloc(TopMemoryContext, sizeof(Note));
		nallocated++;
	}
	note = notes[nnotes++];
	note->ref = *ref;
	note->subid = subid;
	note->claimed = false;
	note->nxids = 0;
	note->owed.n = note->owed.more = 0;
	note->moved.n = note->moved.more = 0;
	note->revisit.n = note->revisit.more = 0;
	return note;
}

static Note *
find_note(int32 handler_id, SubTransactionId subid)
{
	for (int i = nnotes - 1; i >= 0; i--)
	{
		if (notes[i]->ref.handler_id == handler_id && notes[i]->subid == subid)
			return notes[i];
	}
	return NULL;
}

static Note *
note_of(const OutboxPullRef *ref)
{
	SubTransactionId subid = GetCurrentSubTransactionId();
	Note	   *note = find_note(ref->handler_id, subid);

	return note != NULL ? note : append_note(ref, subid);
}

/* Others may pass the rows that we hold, as long as they can see that it is us who hold them. */
static void
register_claimant(Note *note)
{
	TransactionId xid = GetCurrentTransactionId();

	if (note->nxids > 0 && TransactionIdEquals(note->xids[note->nxids - 1], xid))
		return;
	if (note->nxids < MAX_XIDS && outbox_claimant_add(&note->ref, xid))
		note->xids[note->nxids++] = xid;
}

void
outbox_consume_hold(const OutboxPullRef *ref, const OutboxQueuePosition *key, bool claim)
{
	Note	   *note = note_of(ref);

	if (claim)
		note->claimed = true;
	add_key(&note->owed, key);
	register_claimant(note);
}

void
outbox_consume_claim(const OutboxPullRef *ref)
{
	Note	   *note = note_of(ref);

	note->claimed = true;
	register_claimant(note);
}

void
outbox_consume_owe(const OutboxPullRef *ref, const OutboxQueuePosition *key)
{
	add_key(&note_of(ref)->owed, key);
}

void
outbox_consume_moved(const OutboxPullRef *ref, const OutboxQueuePosition *key)
{
	add_key(&note_of(ref)->moved, key);
}

bool
outbox_consume_bound(const OutboxPullRef *ref, pg_uuid_t *id)
{
	if (outbox_doorbell_changed(ref->handler_id))
		return false;
	for (int i = 0; i < nnotes; i++)
	{
		const KeyList *owed = &notes[i]->owed;

		if (notes[i]->ref.handler_id != ref->handler_id)
			continue;
		if (owed->more > 0)
			return false;
		for (int j = 0; j < owed->n; j++)
		{
			if (memcmp(owed->keys[j].id.data, id->data, UUID_LEN) < 0)
				*id = owed->keys[j].id;
		}
	}
	return true;
}

void
outbox_consume_revisit(const OutboxPullRef *ref, const pg_uuid_t *id)
{
	OutboxQueuePosition key = {DT_NOBEGIN, *id};

	add_key(&note_of(ref)->revisit, &key);
}

/*
 * Ends of transactions.  Nothing below may fail.
 */

/* What may be claimed now wakes waiters, the earliest of the rest sets their alarm. */
static void
announce(const OutboxPullRef *ref, int due, TimestampTz next, TimestampTz now)
{
	if (next < DT_NOEND)
		outbox_waiters_due_at(ref, next);
	if (due > 0)
		outbox_waiters_wake(ref, due, now);
}

static void
report_positions(const OutboxPullRef *ref, const KeyList *list)
{
	static const pg_uuid_t lowest_id = {{0}};

	for (int i = 0; i < list->n; i++)
		outbox_watermark_report(ref, &list->keys[i]);
	if (list->more > 0)
		outbox_watermark_report_several(ref, &list->lowest, &lowest_id);
}

static void
report_keys(const OutboxPullRef *ref, const KeyList *list, TimestampTz now)
{
	TimestampTz next = DT_NOEND;
	int			due = 0;

	report_positions(ref, list);
	for (int i = 0; i < list->n; i++)
	{
		if (list->keys[i].due_at <= now)
			due++;
		else
			next = Min(next, list->keys[i].due_at);
	}
	if (list->more > 0)
	{
		if (list->lowest.due_at <= now)
			due += list->more;
		next = Min(next, Max(list->lowest.due_at, now));
	}
	announce(ref, due, next, now);
}

static void
report_revisits(const OutboxPullRef *ref, const KeyList *list, TimestampTz now)
{
	for (int i = 0; i < list->n; i++)
		outbox_watermark_revisit(ref, &list->keys[i].id);
	if (list->more > 0)
		outbox_watermark_reset(ref);
	announce(ref, list->n + list->more, DT_NOEND, now);
}

static void
unregister(Note *note)
{
	for (int i = 0; i < note->nxids; i++)
		outbox_claimant_remove(&note->ref, note->xids[i]);
	note->nxids = 0;
}

/*
 * Operators' functions note what they change in the doorbell, not here.  In
 * a transaction that consumes as well, others have taken the rows they held
 * for claimed ones.
 */
static void
report_taken_back(const OutboxPullRef *ref)
{
	if (outbox_doorbell_changed(ref->handler_id))
	{
		outbox_watermark_reset(ref);
		outbox_waiters_due_at(ref, DT_NOBEGIN);
	}
}

static void
finish_note(Note *note, bool committed, TimestampTz now)
{
	/* The state may have been handed on since, and even made anew elsewhere. */
	note->ref.state = outbox_pull_state(note->ref.dboid, note->ref.handler_id, false);
	if (note->ref.state == NULL)
		return;
	if (committed)
	{
		report_keys(&note->ref, &note->moved, now);
		report_revisits(&note->ref, &note->revisit, now);
	}
	else
	{
		report_keys(&note->ref, &note->owed, now);
		report_taken_back(&note->ref);
	}
	unregister(note);
}

/*
 * Others have passed the rows that are held, and nobody will report them if
 * the prepared transaction is rolled back.  So they are reported now, when
 * they can no longer be taken for a claimant's, and are looked at again and
 * again until the transaction has ended.
 */
static void
finish_prepared(Note *note, TimestampTz now)
{
	note->ref.state = outbox_pull_state(note->ref.dboid, note->ref.handler_id, false);
	if (note->ref.state == NULL)
		return;
	unregister(note);
	report_positions(&note->ref, &note->owed);
	report_taken_back(&note->ref);
	outbox_waiters_due_at(&note->ref, now);
}

static void
forget_notes(void)
{
	nnotes = 0;
	while (nallocated > KEEP_NOTES)
		pfree(notes[--nallocated]);
}

static void
finish_all(bool committed)
{
	TimestampTz now;

	if (nnotes == 0)
		return;
	now = GetCurrentTimestamp();
	for (int i = 0; i < nnotes; i++)
		finish_note(notes[i], committed, now);
	forget_notes();
}

void
outbox_consume_at_commit(void)
{
	finish_all(true);
}

void
outbox_consume_at_abort(void)
{
	outbox_turn_end();
	finish_all(false);
}

void
outbox_consume_before_prepare(void)
{
	for (int i = 0; i < nnotes; i++)
	{
		if (notes[i]->claimed)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has claimed messages"),
					 errdetail("If it were rolled back later, nobody would know that the messages can be claimed again."),
					 errhint("Claim in a transaction of its own, commit it, then work; completing a message in a prepared transaction is fine.")));
	}
	/* What it has settled is to be looked for once it is committed. */
	if (nnotes > 0)
		outbox_doorbell_note_rescan();
}

/* What was settled travels with the prepared transaction; COMMIT PREPARED asks for a rescan. */
void
outbox_consume_at_prepare(void)
{
	TimestampTz now;

	if (nnotes == 0)
		return;
	now = GetCurrentTimestamp();
	for (int i = 0; i < nnotes; i++)
		finish_prepared(notes[i], now);
	forget_notes();
}

/* A savepoint is released: its notes become its parent's. */
static void
merge_into_parent(int i, SubTransactionId parent)
{
	Note	   *note = notes[i];
	Note	   *into = find_note(note->ref.handler_id, parent);

	if (into == NULL)
	{
		note->subid = parent;
		return;
	}
	into->claimed |= note->claimed;
	merge_keys(&into->owed, &note->owed);
	merge_keys(&into->moved, &note->moved);
	merge_keys(&into->revisit, &note->revisit);
	while (note->nxids > 0 && into->nxids < MAX_XIDS)
		into->xids[into->nxids++] = note->xids[--note->nxids];
	/* Rows held by an id that is no longer registered cannot be passed, which is slower but safe. */
	unregister(note);
	note->subid = InvalidSubTransactionId;
}

/* Remove what merging and rolling back have emptied; the memory stays in the array. */
static void
compact(void)
{
	int			kept = 0;

	for (int i = 0; i < nnotes; i++)
	{
		if (notes[i]->subid != InvalidSubTransactionId)
		{
			Note	   *note = notes[kept];

			notes[kept++] = notes[i];
			notes[i] = note;
		}
	}
	nnotes = kept;
}

void
outbox_consume_at_subtransaction(SubXactEvent event, SubTransactionId subid,
								 SubTransactionId parent, void *arg)
{
	bool		changed = false;

	/* An error that is caught ends in a savepoint's rollback. */
	if (event == SUBXACT_EVENT_ABORT_SUB)
		outbox_turn_end();
	if (nnotes == 0 || (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB))
		return;
	for (int i = 0; i < nnotes; i++)
	{
		if (notes[i]->subid != subid)
			continue;
		changed = true;
		if (event == SUBXACT_EVENT_COMMIT_SUB)
			merge_into_parent(i, parent);
		else
		{
			finish_note(notes[i], false, GetCurrentTimestamp());
			notes[i]->subid = InvalidSubTransactionId;
		}
	}
	if (changed)
		compact();
}

/*
 * The doorbell
 */

static bool
hear_ring(Oid dboid, const OutboxNotice *notice, TimestampTz now)
{
	OutboxPullRef ref = {dboid, notice->handler_id, outbox_pull_state(dboid, notice->handler_id, false)};
	bool		single = notice->count == 1;

	if (ref.state == NULL)
		return false;
	if (notice->kind == OUTBOX_NOTICE_REREAD && !single)
		outbox_watermark_reset(&ref);
	else
	{
		if (notice->kind == OUTBOX_NOTICE_REREAD)
			outbox_watermark_revisit(&ref, &notice->lo.id);
		if (single)
			outbox_watermark_report(&ref, &notice->lo);
		else
			outbox_watermark_report_several(&ref, &notice->lo, &notice->first_id);
	}
	announce(&ref, notice->lo.due_at <= now ? notice->count : 0,
			 single && notice->lo.due_at <= now ? DT_NOEND : Max(notice->lo.due_at, now), now);
	return true;
}

static OutboxPullRef
ref_of(OutboxPullState *state)
{
	uint64		owner = pg_atomic_read_u64(&state->owner);

	return (OutboxPullRef) {(Oid) (owner >> 32), (int32) (uint32) owner, state};
}

static void
wake_everybody(OutboxPullState *state)
{
	OutboxPullRef ref = ref_of(state);

	outbox_waiters_wake(&ref, outbox_pull_shared->max_waiters, GetCurrentTimestamp());
}

static void
reset_and_wake(OutboxPullState *state)
{
	OutboxPullRef ref = ref_of(state);

	outbox_watermark_reset(&ref);
	outbox_waiters_due_at(&ref, GetCurrentTimestamp());
}

static void
hear_handlers_changed(Oid dboid)
{
	outbox_pull_states_of(dboid, wake_everybody);
}

static void
hear_rescan(Oid dboid)
{
	outbox_pull_states_of(dboid, reset_and_wake);
}

void
outbox_consume_listen(void)
{
	static const OutboxDoorbellListener listener = {hear_ring, hear_handlers_changed, hear_rescan};

	outbox_doorbell_listen(&listener);
}
