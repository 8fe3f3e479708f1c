/*-------------------------------------------------------------------------
 *
 * backlog.c
 *		How much each handler has to do, and how much of it is dead.
 *
 * Monitors ask this every few seconds, whatever there is: so both counts are
 * one pass over rows or index entries, without a plan.  outbox.delivery has
 * what is outstanding and nothing else, so it is read as it lies; the dead
 * have an index to themselves, whose entries say all there is to know but for
 * pages that vacuum has not been to since.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/visibilitymap.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/hsearch.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/result_set.h"
#include "compat.h"
#include "outbox.h"
#include "table/columns.h"
#include "table/relation.h"

/* The columns that outbox_internal.backlog() returns. */
enum
{
	OUT_HANDLER_ID,
	OUT_PENDING,
	OUT_DUE,
	OUT_SCHEDULED,
	OUT_RETRYING,
	OUT_LEASED,
	OUT_OLDEST_DUE_AT,
	OUT_DEAD,
	OUT_COLUMNS
};

/* What is known of one handler. */
typedef struct Count
{
	int32		handler_id;		/* key */
	int64		by_state[OUTBOX_DELIVERED];
	int64		due;
	int64		scheduled;
	TimestampTz oldest_due_at;	/* of those that are due */
	int64		dead;
} Count;

typedef struct Counts
{
	HTAB	   *by_handler;
	Count	   *last;			/* rows of one handler come in a row as a rule */
	TimestampTz now;
} Counts;

static Count *
count_of(Counts *counts, int32 handler_id)
{
	bool		found;

	if (counts->last != NULL && counts->last->handler_id == handler_id)
		return counts->last;
	counts->last = hash_search(counts->by_handler, &handler_id, HASH_ENTER, &found);
	if (!found)
	{
		memset(counts->last, 0, sizeof(Count));
		counts->last->handler_id = handler_id;
		counts->last->oldest_due_at = DT_NOEND;
	}
	return counts->last;
}

static void
count_row(Counts *counts, TupleTableSlot *slot)
{
	bool		isnull;
	Count	   *count;
	int16		state;
	TimestampTz due_at;

	slot_getsomeattrs(slot, Anum_delivery_state);
	count = count_of(counts, DatumGetInt32(slot_getattr(slot, Anum_delivery_handler_id, &isnull)));
	state = DatumGetInt16(slot_getattr(slot, Anum_delivery_state, &isnull));
	due_at = DatumGetTimestampTz(slot_getattr(slot, Anum_delivery_due_at, &isnull));

	/* outbox.verify() tells of rows in the wrong table. */
	if (state >= 0 && state < OUTBOX_DELIVERED)
		count->by_state[state]++;
	if (due_at <= counts->now)
	{
		count->due++;
		count->oldest_due_at = Min(count->oldest_due_at, due_at);
	}
	else if (state == OUTBOX_PENDING)
		count->scheduled++;
}

static void
count_outstanding(Counts *counts)
{
	Relation	rel = outbox_table_open("delivery", AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, GetActiveSnapshot(), 0, NULL);

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		count_row(counts, slot);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	table_close(rel, NoLock);
}

/* Does the snapshot show the row of the entry that the scan is at? */
static bool
is_visible(IndexScanDesc scan, TupleTableSlot *slot, Buffer *map)
{
	ItemPointer tid = &scan->xs_heaptid;

	return VM_ALL_VISIBLE(scan->heapRelation, ItemPointerGetBlockNumber(tid), map) || index_fetch_heap(scan, slot);
}

static void
count_dead(Counts *counts)
{
	Relation	rel = outbox_table_open("receipt", AccessShareLock);
	Relation	index = outbox_index_open(rel, "receipt_dead", AccessShareLock);
	IndexScanDesc scan = outbox_index_beginscan(rel, index, GetActiveSnapshot(), 0);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Buffer		map = InvalidBuffer;

	scan->xs_want_itup = true;
	index_rescan(scan, NULL, 0, NULL, 0);
	while (index_getnext_tid(scan, ForwardScanDirection) != NULL)
	{
		bool		isnull;
		Datum		handler_id = index_getattr(scan->xs_itup, 1, RelationGetDescr(index), &isnull);

		CHECK_FOR_INTERRUPTS();
		if (is_visible(scan, slot, &map))
			count_of(counts, DatumGetInt32(handler_id))->dead++;
	}
	if (BufferIsValid(map))
		ReleaseBuffer(map);
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
}

static void
return_count(ReturnSetInfo *result, const Count *count)
{
	Datum		values[OUT_COLUMNS];
	bool		isnull[OUT_COLUMNS] = {false};

	values[OUT_HANDLER_ID] = Int32GetDatum(count->handler_id);
	values[OUT_PENDING] = Int64GetDatum(count->by_state[OUTBOX_PENDING]);
	values[OUT_DUE] = Int64GetDatum(count->due);
	values[OUT_SCHEDULED] = Int64GetDatum(count->scheduled);
	values[OUT_RETRYING] = Int64GetDatum(count->by_state[OUTBOX_RETRYING]);
	values[OUT_LEASED] = Int64GetDatum(count->by_state[OUTBOX_LEASED]);
	values[OUT_OLDEST_DUE_AT] = TimestampTzGetDatum(count->oldest_due_at);
	isnull[OUT_OLDEST_DUE_AT] = count->due == 0;
	values[OUT_DEAD] = Int64GetDatum(count->dead);
	tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
}

PG_FUNCTION_INFO_V1(outbox_sql_backlog);

/* outbox_internal.backlog() */
Datum
outbox_sql_backlog(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = outbox_begin_result_set(fcinfo, OUT_COLUMNS);
	Counts		counts = {.now = GetCurrentTimestamp()};
	HASHCTL		control = {.keysize = sizeof(int32), .entrysize = sizeof(Count), .hcxt = CurrentMemoryContext};
	HASH_SEQ_STATUS status;
	Count	   *count;

	counts.by_handler = hash_create("outbox backlog", 256, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	count_outstanding(&counts);
	count_dead(&counts);
	hash_seq_init(&status, counts.by_handler);
	while ((count = hash_seq_search(&status)) != NULL)
		return_count(result, count);
	PG_RETURN_NULL();
}
