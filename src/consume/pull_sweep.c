/*-------------------------------------------------------------------------
 *
 * pull_sweep.c
 *		Looks after pull handlers that no consumer may be looking after.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "consume/key_order.h"
#include "consume/obligations.h"
#include "consume/outcome_row.h"
#include "consume/pull_sweep.h"
#include "consume/waiters.h"
#include "table/relation.h"

/* Index entries of one slice. */
#define SLICE_ENTRIES 2000

/* After a slice the next one waits this many times its duration. */
#define SLICE_DUTY 30

/* When a table lock is in the way. */
#define LOCKED_RETRY_US (1 * USECS_PER_SEC)

static const OutboxQueuePosition beginning = {DT_NOBEGIN, {{0}}};

/* The round: handlers still to be done, the first of them from cursor on. */
static int32 *handlers = NULL;
static int	nhandlers = 0;
static int	current = 0;
static OutboxQueuePosition cursor = {DT_NOBEGIN, {{0}}};
static TimestampTz next_slice = DT_NOEND;

/* What is open during a slice. */
typedef struct Tending
{
	OutboxPullHandler handler;
	OutboxDeliveryTable table;
	OutboxKeyOrder order;
	OutboxClaimStart start;
	TimestampTz now;
	List	   *attempts;
} Tending;

void
outbox_pull_sweep_begin(List *handler_ids)
{
	ListCell   *lc;

	/* A round under way is finished first, so that the ends of long queues have their turn. */
	if (current < nhandlers || handler_ids == NIL)
		return;
	if (handlers != NULL)
		pfree(handlers);
	handlers = MemoryContextAlloc(TopMemoryContext, sizeof(int32) * list_length(handler_ids));
	nhandlers = 0;
	foreach(lc, handler_ids)
		handlers[nhandlers++] = lfirst_int(lc);
	current = 0;
	cursor = beginning;
	next_slice = DT_NOBEGIN;
}

TimestampTz
outbox_pull_sweep_next(void)
{
	return next_slice;
}

static void
next_handler(void)
{
	current++;
	cursor = beginning;
	if (current >= nhandlers)
		next_slice = DT_NOEND;
}

static void
bury(Tending *t, const OutboxDeliveryRow *offered)
{
	OutboxDeliveryRow row;
	OutboxVerdict verdict;

	if (!outbox_lease_exhausts(&t->handler, t->table.slot, offered, &verdict))
		return;
	outbox_consume_hold(&t->handler.ref, &offered->key, true);
	if (outbox_deliveries_lock(&t->table, LockWaitSkip) != TM_Ok)
		return;
	outbox_deliveries_read(t->table.slot, &row);
	outbox_write_outcome(&t->handler, &t->table, &row, &verdict, OUTBOX_LEASE_EXPIRED_ERROR,
						 row.key.due_at, t->now, &t->attempts);
}

/* Should somebody have been told of this row, which lies behind the position? */
static bool
is_forgotten(Tending *t, const OutboxDeliveryRow *row)
{
	TransactionId holder;

	if (!outbox_watermark_is_behind(&t->handler.ref, &row->key, row->min_version))
		return false;
	holder = outbox_deliveries_holder(t->table.slot);
	if (TransactionIdIsValid(holder) && outbox_claimant_is(&t->handler.ref, holder))
		return false;
	return !t->handler.ordered || row->message_key == NULL ||
		outbox_key_is_head(&t->order, row->message_key, &row->key.id);
}

static void
sweep_row(Tending *t)
{
	OutboxDeliveryRow row;

	outbox_deliveries_read(t->table.slot, &row);
	if (is_forgotten(t, &row))
	{
		outbox_watermark_report(&t->handler.ref, &row.key);
		outbox_waiters_wake(&t->handler.ref, 1, t->now);
	}
	if (row.state == OUTBOX_LEASED)
		bury(t, &row);
}

/* Read on from the cursor.  False when what is due has all been seen. */
static bool
sweep_entries(Tending *t)
{
	Relation	outstanding = outbox_deliveries_index(&t->table, "delivery_outstanding");
	IndexScanDesc scan = outbox_index_beginscan(t->table.rel, outstanding, GetActiveSnapshot(), 2);
	OutboxOutstandingStart scan_start;
	bool		more = true;

	scan->xs_want_itup = true;
	outbox_outstanding_rescan(scan, &scan_start, t->handler.id, &cursor, true);
	for (int entries = 0; more && entries < SLICE_ENTRIES; entries++)
	{
		CHECK_FOR_INTERRUPTS();
		more = index_getnext_tid(scan, ForwardScanDirection) != NULL;
		if (!more)
			break;
		outbox_outstanding_key(scan, &cursor);
		more = cursor.due_at <= t->now;
		if (more && index_fetch_heap(scan, t->table.slot))
			sweep_row(t);
	}
	index_endscan(scan);
	index_close(outstanding, NoLock);
	return more;
}

static bool
sweep_handler(Tending *t)
{
	OutboxPullHandler unfloored = t->handler;
	bool		more;

	/* Floors are no help here: what is looked for may have been forgotten below one. */
	unfloored.ref.state = NULL;
	t->start.tracked = false;

	PushActiveSnapshot(GetLatestSnapshot());
	outbox_deliveries_open(&t->table, true);
	outbox_key_order_open(&t->order, &unfloored, &t->table, &t->start);
	more = sweep_entries(t);
	outbox_key_order_close(&t->order);
	outbox_deliveries_close(&t->table);
	PopActiveSnapshot();
	outbox_log_noted_attempts(t->attempts);
	return more;
}

/* What a slice touches. */
static const OutboxTableLock slice_locks[] = {
	{"handler", AccessShareLock}, {"handler_status", AccessShareLock}, {"installation", AccessShareLock}, {"consumer", AccessShareLock},
	{"delivery", RowExclusiveLock}, {"receipt", RowExclusiveLock}, {"attempt", RowExclusiveLock},
	{"event_queue", RowExclusiveLock}
};

void
outbox_pull_sweep_slice(TimestampTz now)
{
	Tending		t = {0};

	if (current >= nhandlers)
		return;
	if (!outbox_lock_all_if_free(slice_locks, lengthof(slice_locks)))
	{
		next_slice = now + LOCKED_RETRY_US;
		return;
	}
	t.now = GetCurrentTimestamp();
	if (!outbox_pull_handler_by_id(handlers[current], &t.handler) || !sweep_handler(&t))
		next_handler();
	if (current < nhandlers)
		next_slice = now + (GetCurrentTimestamp() - t.now) * SLICE_DUTY;
}
