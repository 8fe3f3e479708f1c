/*-------------------------------------------------------------------------
 *
 * walk.c
 *		Goes through what a consumer may claim, oldest due first.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "consume/obligations.h"
#include "consume/turn.h"
#include "consume/waiters.h"
#include "consume/walk.h"
#include "shared/doorbell.h"
#include "table/message.h"

/* Dead entries that a look into the future steps over before it takes what it has. */
#define MAX_FUTURE_ENTRIES 1000

/* How often strays are taken off before the walk turns to the index. */
#define MAX_STRAY_ROUNDS 8

/* What was put back is looked at again after this time. */
#define RECHECK_US (1 * USECS_PER_SEC)

static void
begin_turn(OutboxWalk *walk)
{
	outbox_turn_take(&walk->handler->ref);
	walk->in_turn = true;
}

static void
end_turn(OutboxWalk *walk)
{
	outbox_turn_end();
	walk->in_turn = false;
}

/* Step 1 of watermark.h, and the snapshot of step 2. */
static void
start_round(OutboxWalk *walk, int max_strays)
{
	const OutboxPullRef *ref = &walk->handler->ref;

	outbox_watermark_start(ref, walk->version, walk->now, max_strays, !walk->writing, &walk->start);
	if (walk->writing)
	{
		for (int i = 0; i < walk->start.nstrays; i++)
			outbox_consume_owe(ref, &walk->start.strays[i]);
	}
	PushActiveSnapshot(GetLatestSnapshot());
}

static void
end_round(OutboxWalk *walk)
{
	outbox_deliveries_new_snapshot(&walk->table);
	outbox_key_order_new_snapshot(&walk->order);
	PopActiveSnapshot();
}

/* Step 4.  The position must not rise before what was unresolved until then is put back. */
static void
finish_round(OutboxWalk *walk, const OutboxQueuePosition *reached)
{
	outbox_watermark_finish(&walk->handler->ref, walk->version, &walk->start, reached,
							walk->unresolved, walk->nunresolved);
	walk->put_back |= walk->nunresolved > 0;
	walk->nunresolved = 0;
}

static bool
has_room(const OutboxWalk *walk)
{
	return walk->nunresolved + walk->nchosen < OUTBOX_STRAYS;
}

static void
add_unresolved(OutboxWalk *walk, const OutboxQueuePosition *key, int32 min_version)
{
	OutboxUnresolved *unresolved = &walk->unresolved[walk->nunresolved++];

	unresolved->key = *key;
	unresolved->min_version = min_version;
}

/* Nobody stands in the way of the row in table.slot. */
static OutboxVisit
visit(OutboxWalk *walk, const OutboxDeliveryRow *row)
{
	if (walk->writing)
		outbox_consume_owe(&walk->handler->ref, &row->key);
	return walk->visitor(walk, &row->key);
}

/* The same in our turn: look no closer at it now. */
static OutboxVisit
choose(OutboxWalk *walk, const OutboxDeliveryRow *row)
{
	OutboxChosen *chosen = &walk->chosen[walk->nchosen++];

	outbox_consume_owe(&walk->handler->ref, &row->key);
	chosen->key = row->key;
	chosen->min_version = row->min_version;
	chosen->tid = walk->table.slot->tts_tid;
	return OUTBOX_VISIT_CHOSEN;
}

/* Offer a row of an ordered handler's key: only its head, and only with the key's lock. */
static OutboxVisit
offer_head(OutboxWalk *walk, const OutboxDeliveryRow *row)
{
	text	   *key = row->message_key;
	bool		acquired;
	OutboxVisit result;

	/* Blocked: whatever blocks it will be reported when it is settled, which is after our snapshot. */
	if (!outbox_key_is_head(&walk->order, key, &row->key.id))
		return OUTBOX_VISIT_PASSED;
	if (!walk->writing)
		return visit(walk, row);

	if (!outbox_key_lock(walk->handler, key, &acquired))
		return OUTBOX_VISIT_UNRESOLVED;
	if (outbox_key_is_head_now(&walk->order, key, &row->key.id))
		result = visit(walk, row);
	else
		result = OUTBOX_VISIT_PASSED;
	if (acquired && result != OUTBOX_VISIT_TAKEN)
		outbox_key_unlock(walk->handler, key);
	return result;
}

/* A due row, outstanding under the snapshot, is in table.slot. */
static OutboxVisit
offer(OutboxWalk *walk, OutboxDeliveryRow *row)
{
	TransactionId holder = outbox_deliveries_holder(walk->table.slot);

	if (TransactionIdIsValid(holder))
		return outbox_claimant_is(&walk->handler->ref, holder) ? OUTBOX_VISIT_PASSED : OUTBOX_VISIT_UNRESOLVED;
	if (walk->handler->ordered && row->message_key != NULL)
		return offer_head(walk, row);
	return walk->choosing ? choose(walk, row) : visit(walk, row);
}

static void
count_visit(OutboxWalk *walk, OutboxVisit result, const OutboxQueuePosition *key, int32 min_version)
{
	if (result == OUTBOX_VISIT_UNRESOLVED)
		walk->found_locked = true;
	if (result == OUTBOX_VISIT_TAKEN)
		walk->taken++;
	else if (result == OUTBOX_VISIT_UNRESOLVED && walk->writing && has_room(walk))
	{
		add_unresolved(walk, key, min_version);
		return;
	}
	/* What can be neither taken nor noted stays ahead; a walk that only looks does neither. */
	if (result == OUTBOX_VISIT_UNRESOLVED || (result == OUTBOX_VISIT_TAKEN && !walk->writing))
		walk->found = true;
}

/*
 * Has the row expired?  Then it is nobody's to claim any more, but the
 * dispatcher's to settle: it knows how far the clock can be trusted.
 */
static bool
has_expired(OutboxWalk *walk, const OutboxDeliveryRow *row)
{
	if (row->end_at > walk->now)
		return false;
	if (walk->writing)
		outbox_doorbell_note_end(row->end_at);
	return true;
}

/*
 * A row that was reported by itself.  Unlike in the index it may be anything
 * by now; and what is not for us has to stay reported for others.
 */
static void
visit_row_of_stray(OutboxWalk *walk)
{
	OutboxDeliveryRow row;
	OutboxVisit result;

	outbox_deliveries_read(walk->table.slot, &row);
	if (row.state >= OUTBOX_DELIVERED)
		return;
	if (row.key.due_at > walk->now || row.min_version > walk->version)
		result = OUTBOX_VISIT_UNRESOLVED;
	else if (has_expired(walk, &row))
		result = OUTBOX_VISIT_PASSED;
	else
		result = offer(walk, &row);
	/* Put back where it is now, which decides whether the position has passed it. */
	count_visit(walk, result, &row.key, row.min_version);
}

/* On an ordered handler a reported message stands for its key: whoever is head of it now. */
static bool
find_head_of(OutboxWalk *walk, const text *key)
{
	OutboxDeliveryRow row;

	if (!outbox_key_head(&walk->order, key))
		return false;
	outbox_deliveries_read(walk->order.slot, &row);
	return outbox_deliveries_find(&walk->table, &row.key.id, walk->handler->id);
}

/*
 * The key of a message whose delivery has been settled, NULL if it has none.
 * False if the message is gone.
 */
static bool
find_key_of_settled(const pg_uuid_t *id, text **key)
{
	OutboxMessageTable messages;
	bool		found;
	bool		isnull = true;
	Datum		value = (Datum) 0;

	outbox_messages_open(&messages);
	found = outbox_messages_find(&messages, id);
	if (found)
		value = slot_getattr(messages.slot, Anum_message_key, &isnull);
	*key = isnull ? NULL : DatumGetTextPCopy(value);
	outbox_messages_close(&messages);
	return found;
}

/* The delivery of the stray is outstanding, and in table.slot. */
static void
visit_outstanding_stray(OutboxWalk *walk)
{
	OutboxDeliveryRow row;

	outbox_deliveries_read(walk->table.slot, &row);
	if (!walk->handler->ordered || row.message_key == NULL || find_head_of(walk, row.message_key))
		visit_row_of_stray(walk);
}

/* Returns false if the position cannot be trusted any more. */
static bool
visit_stray(OutboxWalk *walk, const OutboxQueuePosition *stray)
{
	text	   *key;

	CHECK_FOR_INTERRUPTS();
	if (outbox_deliveries_find(&walk->table, &stray->id, walk->handler->id))
	{
		visit_outstanding_stray(walk);
		return true;
	}
	if (!walk->handler->ordered)
		return true;
	if (find_key_of_settled(&stray->id, &key))
	{
		if (key != NULL && find_head_of(walk, key))
			visit_row_of_stray(walk);
		return true;
	}
	/* Deleted, and which key it made way for is not known: a claim has to find out. */
	if (!walk->writing)
		walk->taken++;
	return !walk->writing;
}

/* Go through the strays of this round, which are ours and no matter of turns. */
static void
visit_strays(OutboxWalk *walk)
{
	bool		trusted = true;

	if (walk->start.nstrays > 0)
		end_turn(walk);

	for (int i = 0; i < walk->start.nstrays; i++)
	{
		if (walk->taken < walk->wanted && has_room(walk))
			trusted &= visit_stray(walk, &walk->start.strays[i]);
		else if (!walk->writing)
			break;
		else if (has_room(walk))
			add_unresolved(walk, &walk->start.strays[i], OUTBOX_ANY_VERSION);
		else
			trusted = false;
	}
	if (!trusted)
	{
		outbox_watermark_reset(&walk->handler->ref);
		end_round(walk);
		start_round(walk, 0);
	}
}

/*
 * How many strays to take off.  No more than are wanted, so that others find
 * some too; ever more when those in front are of no use, until none is left out.
 */
static int
strays_of_round(const OutboxWalk *walk, int round)
{
	if (!walk->writing)
		return OUTBOX_STRAYS;
	return Min(walk->wanted - walk->taken, OUTBOX_STRAYS) << (round - 1);
}

/* All strays as far as they are wanted; leaves the last round's snapshot active. */
static void
walk_strays(OutboxWalk *walk)
{
	for (int round = 1;; round++)
	{
		start_round(walk, strays_of_round(walk, round));
		visit_strays(walk);
		if (!walk->start.more_strays || !walk->writing || walk->taken >= walk->wanted ||
			round == MAX_STRAY_ROUNDS || !has_room(walk))
			return;
		end_round(walk);
	}
}

/* A visible row of the index. */
static void
visit_indexed(OutboxWalk *walk, const OutboxQueuePosition *key)
{
	OutboxDeliveryRow row;

	outbox_deliveries_read(walk->table.slot, &row);
	/* Consumers of that version have a position of their own. */
	if (row.min_version <= walk->version && !has_expired(walk, &row))
		count_visit(walk, offer(walk, &row), key, row.min_version);
}

/*
 * Read on from what is not due any more, to the first row that is there.
 * Dead entries have to be stepped over; after many of them the time of the
 * last one will do, since nothing falls due before.
 */
static TimestampTz
look_ahead(IndexScanDesc scan, TupleTableSlot *slot)
{
	OutboxQueuePosition key;

	for (int entries = 0;; entries++)
	{
		outbox_outstanding_key(scan, &key);
		if (entries >= MAX_FUTURE_ENTRIES || index_fetch_heap(scan, slot))
			return key.due_at;
		if (index_getnext_tid(scan, ForwardScanDirection) == NULL)
			return DT_NOEND;
	}
}

/* Has the walk found what it came for, or should it stop looking? */
static bool
has_enough(const OutboxWalk *walk)
{
	return walk->taken + walk->nchosen >= walk->wanted || (walk->choosing && !has_room(walk)) ||
		walk->nunseen >= OUTBOX_MAX_UNSEEN;
}

/* The least key above one of a row. */
static OutboxQueuePosition
key_after(const OutboxQueuePosition *key)
{
	OutboxQueuePosition after = *key;

	for (int i = UUID_LEN - 1; i >= 0; i--)
	{
		if (++after.id.data[i] != 0)
			return after;
	}
	after.due_at++;
	return after;
}

/*
 * Read the index from the position on.  Sets reached to what has been dealt
 * with.  Returns whether there may be more that is due.
 */
static bool
walk_index(OutboxWalk *walk, OutboxQueuePosition *reached)
{
	const OutboxQueuePosition *from = &walk->start.from;
	/* Everything below has been read; what is due at this very moment is looked at again. */
	const OutboxQueuePosition end = {walk->now, {{0}}};
	OutboxOutstandingStart scan_start;
	IndexScanDesc scan;
	bool		more = true;

	walk->found = false;
	*reached = *from;
	scan = outbox_index_beginscan(walk->table.rel, walk->outstanding, GetActiveSnapshot(), 2);
	scan->xs_want_itup = true;
	outbox_outstanding_rescan(scan, &scan_start, walk->handler->id, from, false);
	while (!has_enough(walk) || walk->want_next_due)
	{
		OutboxQueuePosition key;

		CHECK_FOR_INTERRUPTS();
		if (index_getnext_tid(scan, ForwardScanDirection) == NULL)
		{
			more = false;
			if (!walk->found)
				*reached = end;
			break;
		}
		outbox_outstanding_key(scan, &key);
		if (key.due_at > walk->now)
		{
			more = false;
			if (!walk->found)
				*reached = end;
			if (walk->want_next_due)
				walk->next_due = look_ahead(scan, walk->table.slot);
			break;
		}
		if (has_enough(walk))
		{
			/* There is more that is due, so the next check cannot come too soon. */
			walk->next_due = key.due_at;
			break;
		}
		if (index_fetch_heap(scan, walk->table.slot))
			visit_indexed(walk, &key);
		if (!walk->found)
			*reached = key_after(&key);
	}
	index_endscan(scan);
	return more;
}

/* Our turn is over: see which of the chosen rows we get. */
static void
offer_chosen(OutboxWalk *walk)
{
	int			n = walk->nchosen;

	for (int i = 0; i < n; i++)
	{
		const OutboxChosen *chosen = &walk->chosen[i];

		CHECK_FOR_INTERRUPTS();
		ExecClearTuple(walk->table.slot);
		walk->table.slot->tts_tid = chosen->tid;
		/* What room it kept is free for it if it is unresolved. */
		walk->nchosen--;
		count_visit(walk, walk->visitor(walk, &chosen->key), &chosen->key, chosen->min_version);
	}
}

/* Our turn, which has begun.  Sets more to whether there may be more that is due; returns how many rows it chose. */
static int
walk_in_turn(OutboxWalk *walk, bool *more)
{
	OutboxQueuePosition reached;
	int			nchosen;

	walk->choosing = true;
	*more = walk_index(walk, &reached);
	walk->choosing = false;
	nchosen = walk->nchosen;
	finish_round(walk, &reached);
	end_turn(walk);
	offer_chosen(walk);
	return nchosen;
}

/* A new snapshot and position after rows were changed; the strays have been gone through. */
static void
start_over(OutboxWalk *walk, bool in_turn)
{
	end_round(walk);
	/* So that rows of ours do not come up once more. */
	CommandCounterIncrement();
	if (in_turn)
		begin_turn(walk);
	start_round(walk, 0);
}

/*
 * Turn by turn, until there is enough or nothing more.  Returns false if
 * that gets no further, because others hold very many rows.
 */
static bool
walk_turns(OutboxWalk *walk)
{
	bool		more = true;

	while (more && walk->taken < walk->wanted)
	{
		if (!walk->in_turn)
			start_over(walk, true);
		if (walk_in_turn(walk, &more) == 0 && more)
			return false;
	}
	end_turn(walk);
	return true;
}

/* What is changed in this transaction by operators' functions may yet be rolled back. */
static bool
may_raise_position(const OutboxWalk *walk)
{
	return !outbox_doorbell_changed(walk->handler->id);
}

static void
walk_without_turns(OutboxWalk *walk)
{
	OutboxQueuePosition reached;

	end_turn(walk);
	(void) walk_index(walk, &reached);
	finish_round(walk, may_raise_position(walk) ? &reached : NULL);
}

/* On ordered handlers keys have locks of their own, and which rows can be had is known only with them. */
static void
walk_with_turns(OutboxWalk *walk)
{
	if (walk_turns(walk))
	{
		finish_round(walk, NULL);
		return;
	}
	start_over(walk, false);
	walk_without_turns(walk);
}

void
outbox_walk(OutboxWalk *walk)
{
	bool		turns = walk->writing && !walk->handler->ordered && may_raise_position(walk);

	walk->taken = 0;
	walk->next_due = DT_NOEND;
	walk->unresolved = palloc(sizeof(OutboxUnresolved) * OUTBOX_STRAYS);
	walk->nunresolved = 0;
	walk->put_back = false;
	walk->chosen = turns ? palloc(sizeof(OutboxChosen) * OUTBOX_STRAYS) : NULL;
	walk->nchosen = 0;
	walk->found_locked = false;
	walk->nunseen = 0;
	outbox_deliveries_open(&walk->table, walk->writing);
	outbox_key_order_open(&walk->order, walk->handler, &walk->table, &walk->start);
	walk->outstanding = outbox_deliveries_index(&walk->table, "delivery_outstanding");

	if (turns)
		begin_turn(walk);
	walk_strays(walk);
	if (turns && walk->start.tracked)
		walk_with_turns(walk);
	else
		walk_without_turns(walk);
	/* Whoever looked in the meantime did not see the strays that were taken off. */
	if (walk->put_back)
		outbox_waiters_due_at(&walk->handler->ref, walk->now + RECHECK_US);
	/* Those are for others, who can have them at once. */
	if (walk->nunseen > 0)
		outbox_waiters_due_at(&walk->handler->ref, walk->now);

	index_close(walk->outstanding, NoLock);
	outbox_key_order_close(&walk->order);
	outbox_deliveries_close(&walk->table);
	PopActiveSnapshot();
}
