/*-------------------------------------------------------------------------
 *
 * backlog.c
 *		How much each handler has to do, and how much of it is dead.
 *
 * Monitors ask this every few seconds, whatever there is, so what it takes is
 * bounded: by what is looked at, not by what is there.  Two indexes begin with
 * the handler: that of what is outstanding, and that of the dead.  A tally
 * (table/tally.h) says how many entries each handler has in one.  Up to a bound
 * all rows are looked at, and every number is exact.  Beyond it the handlers
 * with the fewest are counted row by row still, for as long as these together
 * are within a fifth of the bound; of the others a sample is looked at, and
 * stands for the rest.  The oldest due one of a handler is the first in its
 * index, and looked for there.
 *
 * Rows that are gone and that vacuum has not come to, because it is behind or
 * held back, are passed over one by one, and these looks count as others do.
 * What is outstanding lies close together, and there is much of it that is gone;
 * the dead are strewn among receipts, a page each.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <math.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/visibilitymap.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
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
#include "table/tally.h"

/* So many rows that are gone are passed over, in all, to find the first ones that are there. */
#define MOST_PASSED_OVER 20000

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
	OUT_ARE_EXACT,
	OUT_COLUMNS
};

/* What is known of one handler.  No integers: a row that was looked at may stand for two and a half. */
typedef struct Count
{
	int32		handler_id;		/* key */
	double		by_state[OUTBOX_DELIVERED];
	double		due;
	double		scheduled;
	TimestampTz oldest_due_at;	/* of those that are due */
	double		dead;
	double		entries;		/* in the index that is being read */
	bool		estimated;		/* of what is being read */
	bool		are_exact;		/* all of the above */
} Count;

typedef struct Counts
{
	HTAB	   *by_handler;
	Count	   *last;			/* entries of one handler come in a row */
	TimestampTz now;
} Counts;

/* A table by one of its indexes. */
typedef struct Source
{
	Relation	rel;
	Relation	index;
	IndexScanDesc scan;
	IndexFetchTableData *fetch; /* of rows whose place is known */
	TupleTableSlot *slot;
	Buffer		map;
	bool		needs_row;		/* for more than to know whether it is there */
} Source;

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
		counts->last->are_exact = true;
	}
	return counts->last;
}

/* A row of outbox.delivery, which stands for so many. */
static void
count_outstanding(Counts *counts, Count *count, TupleTableSlot *slot, double n)
{
	bool		isnull;
	int16		state;
	TimestampTz due_at;

	slot_getsomeattrs(slot, Anum_delivery_state);
	state = DatumGetInt16(slot_getattr(slot, Anum_delivery_state, &isnull));
	due_at = DatumGetTimestampTz(slot_getattr(slot, Anum_delivery_due_at, &isnull));

	/* outbox.verify() tells of rows in the wrong table. */
	if (state >= 0 && state < OUTBOX_DELIVERED)
		count->by_state[state] += n;
	if (due_at <= counts->now)
	{
		count->due += n;
		count->oldest_due_at = Min(count->oldest_due_at, due_at);
	}
	else if (state == OUTBOX_PENDING)
		count->scheduled += n;
}

static void
count_row(Counts *counts, Count *count, Source *source, double n)
{
	if (source->needs_row)
		count_outstanding(counts, count, source->slot, n);
	else
		count->dead += n;
}

static void
open_source(Source *source, const char *table, const char *index, bool needs_row)
{
	memset(source, 0, sizeof(Source));
	source->rel = outbox_table_open(table, AccessShareLock);
	source->index = outbox_index_open(source->rel, index, AccessShareLock);
	source->scan = outbox_index_beginscan(source->rel, source->index, GetActiveSnapshot(), 1);
	source->scan->xs_want_itup = true;
	source->fetch = table_index_fetch_begin(source->rel);
	source->slot = table_slot_create(source->rel, NULL);
	source->map = InvalidBuffer;
	source->needs_row = needs_row;
}

static void
close_source(Source *source)
{
	if (BufferIsValid(source->map))
		ReleaseBuffer(source->map);
	ExecDropSingleTupleTableSlot(source->slot);
	table_index_fetch_end(source->fetch);
	index_endscan(source->scan);
	index_close(source->index, NoLock);
	table_close(source->rel, NoLock);
}

/* (Re)start the scan with the first entry of a handler, or behind it. */
static void
start_at(Source *source, int32 handler_id)
{
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTGreaterEqualStrategyNumber, F_INT4GE, Int32GetDatum(handler_id));
	index_rescan(source->scan, &key, 1, NULL, 0);
}

static int32
handler_at(Source *source)
{
	bool		isnull;

	return DatumGetInt32(index_getattr(source->scan->xs_itup, 1, source->scan->xs_itupdesc, &isnull));
}

/* Whether nobody need look for the row: everybody sees all of its page. */
static bool
is_all_visible(Source *source, ItemPointer tid)
{
	return !source->needs_row && VM_ALL_VISIBLE(source->rel, ItemPointerGetBlockNumber(tid), &source->map);
}

/* Does the snapshot show the row of the entry that the scan is at? */
static bool
is_there(Source *source)
{
	return is_all_visible(source, &source->scan->xs_heaptid) || index_fetch_heap(source->scan, source->slot);
}

/*
 * The same of a row whose entry was read some time ago.  If another row has its
 * place by now, that one is too young for the snapshot; a page that has become
 * all-visible since can make a dead row one of these, which a sample can bear.
 */
static bool
is_still_there(Source *source, ItemPointerData tid)
{
	bool		again = false;

	return is_all_visible(source, &tid) ||
		table_index_fetch_tuple(source->fetch, &tid, GetActiveSnapshot(), source->slot, &again, NULL);
}

static int
compare_entries(const void *a, const void *b)
{
	double		left = (*(Count *const *) a)->entries;
	double		right = (*(Count *const *) b)->entries;

	return left < right ? -1 : left > right;
}

/* Which handlers have too many to look at each?  Returns how many of them there are. */
static int
choose(Counts *counts, const OutboxTally *tally, int bound)
{
	Count	  **chosen;
	Count	   *count;
	HASH_SEQ_STATUS status;
	int			n = 0;
	int			nestimated = 0;
	double		entries = 0;
	double		looks = 0;

	hash_seq_init(&status, counts->by_handler);
	while ((count = hash_seq_search(&status)) != NULL)
	{
		count->entries = 0;
		count->estimated = false;
	}
	for (int i = 0; i < tally->nruns; i++)
	{
		count_of(counts, tally->runs[i].handler_id)->entries += tally->runs[i].entries;
		entries += tally->runs[i].entries;
	}
	if (entries <= bound)
		return 0;

	chosen = palloc(sizeof(Count *) * Max(hash_get_num_entries(counts->by_handler), 1));
	hash_seq_init(&status, counts->by_handler);
	while ((count = hash_seq_search(&status)) != NULL)
		chosen[n++] = count;
	qsort(chosen, n, sizeof(Count *), compare_entries);
	for (int i = 0; i < n; i++)
	{
		looks += chosen[i]->entries;
		if (looks <= bound / 5)
			continue;
		chosen[i]->estimated = true;
		chosen[i]->are_exact = false;
		nestimated++;
	}
	pfree(chosen);
	return nestimated;
}

/* Look at all rows but those of handlers that have too many. */
static void
count_each(Counts *counts, Source *source)
{
	start_at(source, INT_MIN);
	while (index_getnext_tid(source->scan, ForwardScanDirection) != NULL)
	{
		Count	   *count = count_of(counts, handler_at(source));

		CHECK_FOR_INTERRUPTS();
		if (!count->estimated)
		{
			if (is_there(source))
				count_row(counts, count, source, 1);
		}
		else if (count->handler_id < INT_MAX)
			start_at(source, count->handler_id + 1);
		else
			break;
	}
}

static void
count_samples(Counts *counts, Source *source, const OutboxTally *tally)
{
	for (int i = 0; i < tally->nruns; i++)
	{
		const OutboxRun *run = &tally->runs[i];
		Count	   *count = count_of(counts, run->handler_id);

		if (!count->estimated)
			continue;
		for (int j = 0; j < run->nsamples; j++)
		{
			const OutboxSample *sample = &tally->samples[run->first_sample + j];

			CHECK_FOR_INTERRUPTS();
			if (is_still_there(source, sample->tid))
				count_row(counts, count, source, sample->stands_for);
		}
	}
}

/*
 * The first row of a handler is its oldest.  Where too many come before it that
 * are gone, the oldest of the samples has to do, which is no older.
 */
static void
find_oldest(Counts *counts, Count *count, Source *source, int most)
{
	start_at(source, count->handler_id);
	for (int i = 0; i < most; i++)
	{
		Count		first = {.oldest_due_at = DT_NOEND};

		if (index_getnext_tid(source->scan, ForwardScanDirection) == NULL || handler_at(source) != count->handler_id)
			return;
		CHECK_FOR_INTERRUPTS();
		if (!index_fetch_heap(source->scan, source->slot))
			continue;
		/* It is one of those that there are, if no sample was. */
		count_outstanding(counts, &first, source->slot, 1);
		for (int state = 0; state < OUTBOX_DELIVERED; state++)
			count->by_state[state] = Max(count->by_state[state], first.by_state[state]);
		count->scheduled = Max(count->scheduled, first.scheduled);
		count->due = first.due > 0 ? Max(count->due, 1) : 0;
		count->oldest_due_at = first.oldest_due_at;
		return;
	}
}

static void
find_all_oldest(Counts *counts, Source *source, int most)
{
	HASH_SEQ_STATUS status;
	Count	   *count;

	hash_seq_init(&status, counts->by_handler);
	while ((count = hash_seq_search(&status)) != NULL)
	{
		if (count->estimated)
			find_oldest(counts, count, source, most);
	}
}

static void
count_index(Counts *counts, const char *table, const char *index, bool needs_row, int bound)
{
	Source		source;
	OutboxTally *tally;
	int			nestimated;

	open_source(&source, table, index, needs_row);
	tally = outbox_tally_take(source.index, needs_row ? &counts->now : NULL);
	nestimated = choose(counts, tally, bound);
	count_each(counts, &source);
	if (nestimated > 0)
		count_samples(counts, &source, tally);
	if (nestimated > 0 && needs_row)
		find_all_oldest(counts, &source, Max(MOST_PASSED_OVER / nestimated, 20));
	close_source(&source);
}

static Datum
whole(double n)
{
	return Int64GetDatum((int64) rint(n));
}

static void
return_count(ReturnSetInfo *result, const Count *count)
{
	Datum		values[OUT_COLUMNS];
	bool		isnull[OUT_COLUMNS] = {false};

	/* All of it was gone. */
	if (count->are_exact && count->dead == 0 &&
		count->by_state[OUTBOX_PENDING] + count->by_state[OUTBOX_RETRYING] + count->by_state[OUTBOX_LEASED] + count->due == 0)
		return;
	values[OUT_HANDLER_ID] = Int32GetDatum(count->handler_id);
	values[OUT_PENDING] = whole(count->by_state[OUTBOX_PENDING]);
	values[OUT_DUE] = whole(count->due);
	values[OUT_SCHEDULED] = whole(count->scheduled);
	values[OUT_RETRYING] = whole(count->by_state[OUTBOX_RETRYING]);
	values[OUT_LEASED] = whole(count->by_state[OUTBOX_LEASED]);
	values[OUT_OLDEST_DUE_AT] = TimestampTzGetDatum(count->oldest_due_at);
	isnull[OUT_OLDEST_DUE_AT] = count->oldest_due_at == DT_NOEND;
	values[OUT_DEAD] = whole(count->dead);
	values[OUT_ARE_EXACT] = BoolGetDatum(count->are_exact);
	tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
}

PG_FUNCTION_INFO_V1(outbox_sql_backlog);

/* outbox_internal.backlog(exact_outstanding int, exact_dead int) */
Datum
outbox_sql_backlog(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = outbox_begin_result_set(fcinfo, OUT_COLUMNS);
	Counts		counts = {.now = GetCurrentTimestamp()};
	HASHCTL		control = {.keysize = sizeof(int32), .entrysize = sizeof(Count), .hcxt = CurrentMemoryContext};
	HASH_SEQ_STATUS status;
	Count	   *count;

	counts.by_handler = hash_create("outbox backlog", 256, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	count_index(&counts, "delivery", "delivery_outstanding", true, PG_GETARG_INT32(0));
	count_index(&counts, "receipt", "receipt_dead", false, PG_GETARG_INT32(1));
	hash_seq_init(&status, counts.by_handler);
	while ((count = hash_seq_search(&status)) != NULL)
		return_count(result, count);
	PG_RETURN_NULL();
}

PG_FUNCTION_INFO_V1(outbox_sql_died_since);

/*
 * outbox_internal.died_since(since timestamptz, most bigint): the newest first, up
 * to "most" of them, and as many again that have been requeued or removed since.
 */
Datum
outbox_sql_died_since(PG_FUNCTION_ARGS)
{
	TimestampTz since = PG_GETARG_TIMESTAMPTZ(0);
	int64		most = PG_GETARG_INT64(1);
	int64		n = 0;
	bool		is_exact = true;
	bool		isnull[2] = {false};
	Datum		values[2];
	TupleDesc	desc;
	Source		source;
	ScanKeyData key;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	open_source(&source, "receipt", "receipt_died", false);
	ScanKeyInit(&key, 1, BTGreaterStrategyNumber, F_TIMESTAMPTZ_GT, TimestampTzGetDatum(since));
	index_rescan(source.scan, &key, 1, NULL, 0);
	for (int64 i = 0; index_getnext_tid(source.scan, BackwardScanDirection) != NULL; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (n >= most || i / 2 >= most)
		{
			is_exact = false;
			break;
		}
		n += is_there(&source);
	}
	close_source(&source);
	values[0] = Int64GetDatum(n);
	values[1] = BoolGetDatum(is_exact);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, isnull)));
}
