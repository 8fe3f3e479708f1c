/*-------------------------------------------------------------------------
 *
 * fetch.c
 *		Reads what is due, lane by lane.
 *
 * See fetch.h.  What a look at a lane has moved is put back if its
 * transaction fails.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/durable.h"
#include "dispatch/fetch.h"
#include "dispatch/key_scan.h"
#include "dispatch/memory.h"
#include "dispatch/message_reader.h"
#include "dispatch/order.h"
#include "dispatch/reading.h"
#include "dispatch/take.h"
#include "table/outstanding.h"
#include "table/relation.h"
#include "worker/clock.h"

/* Index entries that one look at a lane may examine, and one slice of a rescan. */
#define MAX_ENTRIES 20000
#define MAX_RESCAN_ENTRIES 2000

/* Memory that one look at a lane may take. */
#define MAX_READ_BYTES (4 * 1024 * 1024)

/* Lanes whose successors one transaction reads. */
#define MAX_SUCCESSOR_LANES 64

/* After a slice of a rescan the lane's next one waits this many times its duration. */
#define RESCAN_DUTY 30

/* Where a lane stood before this transaction read it. */
typedef struct SavedLane
{
	OutboxLane *lane;
	OutboxQueuePosition position;
	bool		more;
	TimestampTz next_due;
	int			nspans;
	OutboxSpan	spans[OUTBOX_MAX_SPANS];
} SavedLane;

/* What is open while a transaction reads. */
typedef struct Reader
{
	Relation	delivery;
	Relation	outstanding;
	IndexScanDesc scan;
	OutboxOutstandingStart start;
	TupleTableSlot *slot;
} Reader;

typedef enum ReadEnd
{
	READ_DONE,					/* nothing further in the range */
	READ_FUTURE,				/* what follows is not due yet */
	READ_ENOUGH					/* a bound was reached: there may be more */
} ReadEnd;

static MemoryContext deliveries_context = NULL;
static Reader reader;

static List *saved_lanes = NIL; /* outlives the transaction, which can fail after its commit */

void
outbox_fetch_init(MemoryContext context)
{
	deliveries_context = context;
	outbox_take_init(context);
}

static void
close_relations(void)
{
	if (reader.outstanding)
		relation_close(reader.outstanding, NoLock);
	if (reader.delivery)
		relation_close(reader.delivery, NoLock);
	memset(&reader, 0, sizeof(reader));
}

bool
outbox_fetch_begin(void)
{
	Snapshot	snapshot = GetActiveSnapshot();

	memset(&reader, 0, sizeof(reader));
	if ((reader.delivery = outbox_table_open_if_free("delivery", RowExclusiveLock)) == NULL ||
		(reader.outstanding = outbox_index_open_if_free(reader.delivery, "delivery_outstanding", AccessShareLock)) == NULL ||
		!outbox_key_scan_begin(reader.delivery, snapshot))
	{
		close_relations();
		return false;
	}
	if (!outbox_message_reader_open(snapshot))
	{
		outbox_key_scan_end();
		close_relations();
		return false;
	}

	outbox_durable_begin(snapshot);
	reader.scan = outbox_index_beginscan(reader.delivery, reader.outstanding, snapshot, 2);
	/* The key of an entry is needed even where its row is dead. */
	reader.scan->xs_want_itup = true;
	reader.slot = table_slot_create(reader.delivery, NULL);
	return true;
}

void
outbox_fetch_end(void)
{
	ExecDropSingleTupleTableSlot(reader.slot);
	index_endscan(reader.scan);
	outbox_key_scan_end();
	outbox_message_reader_close();
	close_relations();
}

/* A row that is due, in reader.slot, and not in memory. */
static void
see_row(OutboxLane *lane, const OutboxQueuePosition *key, OutboxReadBounds *bounds, TimestampTz now)
{
	if (lane->order != NULL && outbox_key_scan_row(lane, reader.slot, &key->id, bounds, now))
		return;
	bounds->rows--;
	outbox_take(lane, key, reader.slot, NULL, bounds);
}

/*
 * Read the lane's keys from at on, up to and including hi (NULL: no end).
 * at moves with the entries that were looked at.
 */
static ReadEnd
read_range(OutboxLane *lane, OutboxQueuePosition *at, bool *after, const OutboxQueuePosition *hi,
		   OutboxReadBounds *bounds, TimestampTz now, TimestampTz *future)
{
	outbox_outstanding_rescan(reader.scan, &reader.start, lane->handler_id, at, *after);
	while (index_getnext_tid(reader.scan, ForwardScanDirection) != NULL)
	{
		OutboxDelivery *known;
		OutboxQueuePosition key;

		outbox_outstanding_key(reader.scan, &key);
		if (hi != NULL && outbox_position_cmp(&key, hi) > 0)
			return READ_DONE;
		if (key.due_at > outbox_to_wall(now))
		{
			*future = key.due_at;
			return READ_FUTURE;
		}
		if (bounds->rows <= 0 || bounds->bytes <= 0 || bounds->entries-- <= 0)
			return READ_ENOUGH;

		*at = key;
		*after = true;
		known = outbox_delivery_find(&key.id, lane->handler_id);
		if (known == NULL && index_fetch_heap(reader.scan, reader.slot))
			see_row(lane, &key, bounds, now);
		/* Its receipt may be written and it may be replayed, before the settler has answered. */
		else if (known != NULL && known->with_settler && index_fetch_heap(reader.scan, reader.slot))
			known->found_due_at = key.due_at;
	}
	return READ_DONE;
}

static void
save_lane(OutboxLane *lane)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(deliveries_context);
	SavedLane  *saved = palloc(sizeof(SavedLane));

	saved->lane = lane;
	saved->position = lane->position;
	saved->more = lane->more;
	saved->next_due = lane->next_due;
	saved->nspans = lane->nspans;
	memcpy(saved->spans, lane->spans, sizeof(OutboxSpan) * lane->nspans);
	saved_lanes = lappend(saved_lanes, saved);
	MemoryContextSwitchTo(oldcontext);
}

static void
forget_saved_lanes(void)
{
	list_free_deep(saved_lanes);
	saved_lanes = NIL;
}

/* A slice of a rescan: bounded in entries, and then the lane has peace for a while. */
static ReadEnd
read_rescan_slice(OutboxLane *lane, OutboxSpan *span, OutboxReadBounds *bounds, TimestampTz now,
				  TimestampTz *future)
{
	OutboxReadBounds slice = *bounds;
	TimestampTz begin = outbox_steady_time();
	ReadEnd		end;

	slice.entries = MAX_RESCAN_ENTRIES;
	end = read_range(lane, &span->at, &span->after, &span->hi, &slice, now, future);
	bounds->rows = slice.rows;
	bounds->bytes = slice.bytes;
	lane->rescan_after = now + (outbox_steady_time() - begin) * RESCAN_DUTY;
	return end;
}

/* Read what was rung for behind the position.  Returns false if a bound was reached. */
static bool
read_spans(OutboxLane *lane, OutboxReadBounds *bounds, TimestampTz now)
{
	int			i = 0;

	while (i < lane->nspans)
	{
		OutboxSpan *span = &lane->spans[i];
		TimestampTz future = DT_NOEND;
		ReadEnd		end;

		if (outbox_lane_span_time(lane, span) > now)
		{
			i++;
			continue;
		}
		if (span->rescan)
			end = read_rescan_slice(lane, span, bounds, now, &future);
		else
			end = read_range(lane, &span->at, &span->after, &span->hi, bounds, now, &future);

		if (end == READ_ENOUGH)
		{
			if (!span->rescan)
				return false;
			i++;
			continue;
		}
		/* Reading forward would not meet it, so the span waits for it. */
		if (end == READ_FUTURE)
		{
			span->not_before = future;
			i++;
			continue;
		}
		memmove(span, span + 1, sizeof(OutboxSpan) * (lane->nspans - i - 1));
		lane->nspans--;
	}
	return true;
}

static void
read_forward(OutboxLane *lane, OutboxReadBounds *bounds, TimestampTz now)
{
	bool		after = true;
	TimestampTz future = DT_NOEND;

	outbox_lane_watch_clock(lane, now);
	if (!lane->more)
		return;
	if (read_range(lane, &lane->position, &after, NULL, bounds, now, &future) != READ_ENOUGH)
	{
		lane->more = false;
		lane->next_due = future;
	}
}

static void
set_bounds(const OutboxLane *lane, OutboxReadBounds *bounds)
{
	bounds->entries = MAX_ENTRIES;
	bounds->bytes = Min(outbox_memory_allowance(OUTBOX_MEMORY_DELIVERIES, lane), MAX_READ_BYTES);
	bounds->rows = bounds->bytes > 0 ? outbox_lane_room(lane) : 0;
}

void
outbox_fetch_lane(OutboxLane *lane, TimestampTz now)
{
	OutboxReadBounds bounds;

	save_lane(lane);
	outbox_lane_adapt_read_ahead(lane, now);
	set_bounds(lane, &bounds);
	outbox_key_scan_wanted(lane, &bounds, now);
	if (read_spans(lane, &bounds, now))
		read_forward(lane, &bounds, now);
	/* All that was told of has been read, or is not due. */
	if (!lane->more && lane->nspans == 0)
		lane->rung_at = 0;
}

void
outbox_fetch_successors(TimestampTz now)
{
	OutboxLane *lanes[MAX_SUCCESSOR_LANES];
	int			n = outbox_order_lanes(lanes, MAX_SUCCESSOR_LANES);

	for (int i = 0; i < n; i++)
	{
		OutboxReadBounds bounds;

		/* Where others are yet to be read, those come along with them. */
		if (lanes[i]->more)
			continue;
		set_bounds(lanes[i], &bounds);
		outbox_key_scan_wanted(lanes[i], &bounds, now);
	}
}

void
outbox_fetch_flush(void)
{
	outbox_durable_flush();
}

void
outbox_fetch_finish(void)
{
	forget_saved_lanes();
	outbox_take_finish();
}

OutboxDelivery *
outbox_fetch_abort(void)
{
	OutboxDelivery *poison = outbox_take_abort();
	ListCell   *lc;

	foreach(lc, saved_lanes)
	{
		SavedLane  *saved = lfirst(lc);

		saved->lane->position = saved->position;
		saved->lane->more = true;
		saved->lane->next_due = saved->next_due;
		saved->lane->nspans = saved->nspans;
		memcpy(saved->lane->spans, saved->spans, sizeof(OutboxSpan) * saved->nspans);
	}
	forget_saved_lanes();

	outbox_durable_forget();
	outbox_message_reader_forget();
	outbox_key_scan_abort();
	memset(&reader, 0, sizeof(reader));
	return poison;
}

bool
outbox_fetch_next_handler(int32 after, int32 *handler_id)
{
	ScanKeyData keys[2];
	bool		isnull;

	/* The scan always takes two keys; the second one excludes nothing. */
	ScanKeyInit(&keys[0], 1, BTGreaterStrategyNumber, F_INT4GT, Int32GetDatum(after));
	ScanKeyInit(&keys[1], 1, BTLessEqualStrategyNumber, F_INT4LE, Int32GetDatum(PG_INT32_MAX));
	index_rescan(reader.scan, keys, 2, NULL, 0);
	if (index_getnext_tid(reader.scan, ForwardScanDirection) == NULL)
		return false;
	*handler_id = DatumGetInt32(index_getattr(reader.scan->xs_itup, 1, reader.scan->xs_itupdesc, &isnull));
	return true;
}
