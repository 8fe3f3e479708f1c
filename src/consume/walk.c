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
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "consume/transaction.h"
#include "consume/waiters.h"
#include "consume/walk.h"
#include "dispatch/doorbell.h"

/* Dead entries that a look into the future steps over before it takes what it has. */
#define MAX_FUTURE_ENTRIES 1000

/* How often strays are taken off before the walk turns to the index. */
#define MAX_STRAY_ROUNDS 8

/* What was put back is looked at again after this time. */
#define RECHECK_US (1 * USECS_PER_SEC)

/* Step 1 of low_water.h, and the snapshot of step 2. */
static void
start_round(OutboxWalk *walk, int max_strays)
{
	const OutboxPullRef *ref = &walk->handler->ref;

	outbox_low_water_start(ref, walk->version, walk->now, max_strays, !walk->writing, &walk->start);
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

static bool
has_room(const OutboxWalk *walk)
{
	return walk->nunresolved < OUTBOX_STRAYS;
}

static void
add_unresolved(OutboxWalk *walk, const OutboxKey *key, int32 min_version)
{
	OutboxUnresolved *unresolved = &walk->unresolved[walk->nunresolved++];

	unresolved->key = *key;
	unresolved->min_version = min_version;
}

/* Offer a row of an ordered handler's key: only its head, and only with the key's lock. */
static OutboxVisit
offer_head(OutboxWalk *walk, const OutboxDeliveryRow *row)
{
	text	   *key = row->message_key;
	bool		acquired;
	OutboxVisit visit;

	/* Blocked: whatever blocks it will be reported when it is settled, which is after our snapshot. */
	if (!outbox_key_is_head(&walk->order, key, &row->key.id))
		return OUTBOX_VISIT_PASSED;
	if (!walk->writing)
		return walk->visitor(walk, row);

	if (!outbox_key_lock(walk->handler, key, &acquired))
		return OUTBOX_VISIT_UNRESOLVED;
	if (outbox_key_is_head_now(&walk->order, key, &row->key.id))
		visit = walk->visitor(walk, row);
	else
		visit = OUTBOX_VISIT_PASSED;
	if (acquired && visit != OUTBOX_VISIT_TAKEN)
		outbox_key_unlock(walk->handler, key);
	return visit;
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
	return walk->visitor(walk, row);
}

static void
count_visit(OutboxWalk *walk, OutboxVisit visit, const OutboxKey *key, int32 min_version)
{
	if (visit == OUTBOX_VISIT_UNRESOLVED)
		walk->found_held = true;
	if (visit == OUTBOX_VISIT_TAKEN)
		walk->taken++;
	else if (visit == OUTBOX_VISIT_UNRESOLVED && walk->writing && has_room(walk))
	{
		add_unresolved(walk, key, min_version);
		return;
	}
	/* What can be neither taken nor noted stays ahead; a walk that only looks does neither. */
	if (visit == OUTBOX_VISIT_UNRESOLVED || (visit == OUTBOX_VISIT_TAKEN && !walk->writing))
		walk->found = true;
}

/*
 * A row that was reported by itself.  Unlike in the index it may be anything
 * by now; and what is not for us has to stay reported for others.
 */
static void
visit_row_of_stray(OutboxWalk *walk)
{
	OutboxDeliveryRow row;
	OutboxVisit visit;

	outbox_deliveries_read(walk->table.slot, &row);
	if (row.state >= OUTBOX_DELIVERED)
		return;
	if (row.key.due_at > walk->now || row.min_version > walk->version)
		visit = OUTBOX_VISIT_UNRESOLVED;
	else
		visit = offer(walk, &row);
	/* Put back where it is now, which decides whether the position has passed it. */
	count_visit(walk, visit, &row.key, row.min_version);
}

/* On an ordered handler a reported message stands for its key: whoever is head of it now. */
static bool
find_head_of_stray(OutboxWalk *walk)
{
	OutboxDeliveryRow row;

	outbox_deliveries_read(walk->table.slot, &row);
	if (row.message_key == NULL)
		return true;
	if (!outbox_key_head(&walk->order, row.message_key))
		return false;
	outbox_deliveries_read(walk->order.slot, &row);
	return outbox_deliveries_find(&walk->table, &row.key.id, walk->handler->id);
}

/* Returns false if the position cannot be trusted any more. */
static bool
visit_stray(OutboxWalk *walk, const OutboxKey *stray)
{
	const OutboxPullHandler *handler = walk->handler;

	CHECK_FOR_INTERRUPTS();
	if (!outbox_deliveries_find(&walk->table, &stray->id, handler->id))
	{
		if (!handler->ordered)
			return true;
		/* Deleted, and which key it made way for is not known: a claim has to find out. */
		if (!walk->writing)
			walk->taken++;
		return !walk->writing;
	}
	if (!handler->ordered || find_head_of_stray(walk))
		visit_row_of_stray(walk);
	return true;
}

/* Go through the strays of this round. */
static void
visit_strays(OutboxWalk *walk)
{
	bool		trusted = true;

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
		outbox_low_water_reset(&walk->handler->ref);
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
visit_indexed(OutboxWalk *walk, const OutboxKey *key)
{
	OutboxDeliveryRow row;

	outbox_deliveries_read(walk->table.slot, &row);
	/* Consumers of that version have a position of their own. */
	if (row.min_version <= walk->version)
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
	OutboxKey	key;

	for (int entries = 0;; entries++)
	{
		outbox_outstanding_key(scan, &key);
		if (entries >= MAX_FUTURE_ENTRIES || index_fetch_heap(scan, slot))
			return key.due_at;
		if (index_getnext_tid(scan, ForwardScanDirection) == NULL)
			return DT_NOEND;
	}
}

/* Read the index from the position on.  Sets reached to what has been dealt with. */
static void
walk_index(OutboxWalk *walk, OutboxKey *reached)
{
	const OutboxKey *from = &walk->start.from;
	Relation	outstanding = outbox_deliveries_index(&walk->table, "delivery_outstanding");
	/* Everything below has been read; what is due at this very moment is looked at again. */
	const OutboxKey end = {walk->now, {{0}}};
	OutboxOutstandingStart scan_start;
	IndexScanDesc scan;

	walk->found = false;
	*reached = *from;
	scan = outbox_index_beginscan(walk->table.rel, outstanding, GetActiveSnapshot(), 2);
	scan->xs_want_itup = true;
	outbox_outstanding_rescan(scan, &scan_start, walk->handler->id, from, false);
	while (walk->taken < walk->wanted || walk->want_next_due)
	{
		OutboxKey	key;

		CHECK_FOR_INTERRUPTS();
		if (index_getnext_tid(scan, ForwardScanDirection) == NULL)
		{
			if (!walk->found)
				*reached = end;
			break;
		}
		outbox_outstanding_key(scan, &key);
		if (key.due_at > walk->now)
		{
			if (!walk->found)
				*reached = end;
			if (walk->want_next_due)
				walk->next_due = look_ahead(scan, walk->table.slot);
			break;
		}
		if (walk->taken >= walk->wanted)
		{
			/* There is more that is due, so the next check cannot come too soon. */
			walk->next_due = key.due_at;
			break;
		}
		if (index_fetch_heap(scan, walk->table.slot))
			visit_indexed(walk, &key);
		if (!walk->found)
			*reached = key;
	}
	index_endscan(scan);
	index_close(outstanding, NoLock);
}

void
outbox_walk(OutboxWalk *walk)
{
	OutboxKey	reached;

	walk->taken = 0;
	walk->next_due = DT_NOEND;
	walk->nunresolved = 0;
	walk->found_held = false;
	outbox_deliveries_open(&walk->table, walk->writing);
	outbox_key_order_open(&walk->order, walk->handler, &walk->table, &walk->start);

	walk_strays(walk);
	walk_index(walk, &reached);
	/* What this transaction sees cancelled may yet be rolled back. */
	outbox_low_water_finish(&walk->handler->ref, walk->version, &walk->start,
							outbox_doorbell_changed(walk->handler->id) ? NULL : &reached,
							walk->unresolved, walk->nunresolved);
	/* Whoever looked in the meantime did not see the strays that were taken off. */
	if (walk->nunresolved > 0)
		outbox_waiters_due_at(&walk->handler->ref, walk->now + RECHECK_US);

	outbox_key_order_close(&walk->order);
	outbox_deliveries_close(&walk->table);
	PopActiveSnapshot();
}
