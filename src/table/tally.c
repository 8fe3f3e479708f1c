/*-------------------------------------------------------------------------
 *
 * tally.c
 *		How many entries each handler has in an index, without reading them all.
 *
 * See tally.h.  This reads pages of a B-tree as they lie, in the same way as
 * the server's own scans: one page locked at a time, to the right by the links
 * between pages.  A page that splits meanwhile keeps its place and its smaller
 * entries, so what has moved is found behind it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/itup.h"
#include "access/nbtree.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "table/tally.h"

/* Of the leaves in the midst of one run so many are read, about. */
#define MOST_LEAVES 500

/*
 * So many samples are taken, about: half of them in the midst, half at the ends
 * of runs, and one at least of what a run has on a leaf.
 */
#define SAMPLES 2000
#define MOST_OF_A_LEAF 64

/* So many leaves are followed that a split has put behind one. */
#define MOST_SPLITS 8

/* A run as one number, in the order of the index; what begins before all. */
#define BEFORE_ALL PG_INT64_MIN

typedef struct Leaf
{
	BlockNumber block;
	int64		low;			/* the run that it begins with, or in which the one before has ended */
} Leaf;

typedef struct Tallying
{
	Relation	index;
	const TimestampTz *split_at;
	bool		with_killed;	/* entries that are marked as dead count */
	Leaf	   *leaves;
	int			nleaves;
	int			max_leaves;
	int			max_runs;
	int			max_samples;
	uint64		dice;
	OutboxTally *tally;
} Tallying;

/* Room for one more. */
static void *
with_room(void *array, int used, int *max, Size size)
{
	if (used < *max)
		return array;
	*max *= 2;
	return repalloc_huge(array, *max * size);
}

static Buffer
read_page(Tallying *t, BlockNumber block)
{
	Buffer		buffer;

	CHECK_FOR_INTERRUPTS();
	buffer = ReadBuffer(t->index, block);
	LockBuffer(buffer, BT_READ);
	return buffer;
}

static BTPageOpaque
opaque_of(Page page)
{
	return (BTPageOpaque) PageGetSpecialPointer(page);
}

static IndexTuple
item(Page page, OffsetNumber offset)
{
	return (IndexTuple) PageGetItem(page, PageGetItemId(page, offset));
}

/* The run that an item is of.  What a page above the leaves leaves out of a key comes before all. */
static int64
run_of(Tallying *t, IndexTuple itup)
{
	int			natts = BTreeTupleGetNAtts(itup, t->index);
	bool		isnull;
	bool		later = false;
	int32		handler_id;

	if (natts < 1)
		return BEFORE_ALL;
	handler_id = DatumGetInt32(index_getattr(itup, 1, RelationGetDescr(t->index), &isnull));
	if (t->split_at != NULL && natts > 1)
		later = DatumGetTimestampTz(index_getattr(itup, 2, RelationGetDescr(t->index), &isnull)) > *t->split_at;
	return (int64) handler_id * 2 + later;
}

/* The first page from the left that is a leaf, or just above the leaves; P_NONE if the index is empty. */
static BlockNumber
find_first_page(Tallying *t, bool *is_leaf)
{
	Buffer		buffer = read_page(t, BTREE_METAPAGE);
	BlockNumber block = BTPageGetMeta(BufferGetPage(buffer))->btm_fastroot;

	UnlockReleaseBuffer(buffer);
	while (block != P_NONE)
	{
		Page		page;
		BTPageOpaque opaque;

		buffer = read_page(t, block);
		page = BufferGetPage(buffer);
		opaque = opaque_of(page);
		if (!P_IGNORE(opaque) && opaque->btpo_level <= 1)
		{
			*is_leaf = P_ISLEAF(opaque);
			UnlockReleaseBuffer(buffer);
			break;
		}
		block = P_IGNORE(opaque) ? opaque->btpo_next : BTreeTupleGetDownLink(item(page, P_FIRSTDATAKEY(opaque)));
		UnlockReleaseBuffer(buffer);
	}
	return block;
}

static void
add_leaf(Tallying *t, BlockNumber block, int64 low)
{
	t->leaves = with_room(t->leaves, t->nleaves, &t->max_leaves, sizeof(Leaf));
	t->leaves[t->nleaves++] = (Leaf) {block, low};
}

/*
 * Leaves from left to right.  The first item of a page has no key; the high
 * key of the page before it says what it would be.
 */
static void
list_leaves(Tallying *t)
{
	bool		is_leaf = false;
	BlockNumber block = find_first_page(t, &is_leaf);
	int64		low = BEFORE_ALL;

	if (block != P_NONE && is_leaf)
	{
		add_leaf(t, block, BEFORE_ALL);
		return;
	}
	while (block != P_NONE)
	{
		Buffer		buffer = read_page(t, block);
		Page		page = BufferGetPage(buffer);
		BTPageOpaque opaque = opaque_of(page);

		if (!P_IGNORE(opaque))
		{
			OffsetNumber first = P_FIRSTDATAKEY(opaque);

			for (OffsetNumber offset = first; offset <= PageGetMaxOffsetNumber(page); offset++)
			{
				if (offset > first)
					low = run_of(t, item(page, offset));
				add_leaf(t, BTreeTupleGetDownLink(item(page, offset)), low);
			}
			if (!P_RIGHTMOST(opaque))
				low = run_of(t, item(page, P_HIKEY));
		}
		block = opaque->btpo_next;
		UnlockReleaseBuffer(buffer);
	}
}

/* Behind the last item from "first" on that is of the same run. */
static OffsetNumber
end_of_run(Tallying *t, Page page, OffsetNumber first, OffsetNumber max, int64 run)
{
	OffsetNumber low = first;
	OffsetNumber high = max;

	while (low < high)
	{
		OffsetNumber middle = high - (high - low) / 2;

		if (run_of(t, item(page, middle)) == run)
			low = middle;
		else
			high = middle - 1;
	}
	return low + 1;
}

/* How many entries an item has. */
static int
entries_of(Tallying *t, Page page, OffsetNumber offset)
{
	if (ItemIdIsDead(PageGetItemId(page, offset)) && !t->with_killed)
		return 0;
	return BTreeTupleIsPosting(item(page, offset)) ? BTreeTupleGetNPosting(item(page, offset)) : 1;
}

/* NULL: it lies before the last one, so this page has been read twice. */
static OutboxRun *
find_run(Tallying *t, int64 run)
{
	OutboxTally *tally = t->tally;
	int32		handler_id = (int32) (run >> 1);
	bool		later = run & 1;

	if (tally->nruns > 0)
	{
		OutboxRun  *last = &tally->runs[tally->nruns - 1];

		if (last->handler_id == handler_id && last->later == later)
			return last;
		if (run < (int64) last->handler_id * 2 + last->later)
			return NULL;
	}
	tally->runs = with_room(tally->runs, tally->nruns, &t->max_runs, sizeof(OutboxRun));
	tally->runs[tally->nruns] = (OutboxRun) {.handler_id = handler_id, .later = later, .first_sample = tally->nsamples};
	return &tally->runs[tally->nruns++];
}

static void
add_sample(Tallying *t, OutboxRun *run, IndexTuple itup, int nth, double stands_for)
{
	OutboxTally *tally = t->tally;

	tally->samples = with_room(tally->samples, tally->nsamples, &t->max_samples, sizeof(OutboxSample));
	tally->samples[tally->nsamples].tid = BTreeTupleIsPosting(itup) ? *BTreeTupleGetPostingN(itup, nth) : itup->t_tid;
	tally->samples[tally->nsamples].stands_for = stands_for;
	tally->nsamples++;
	run->nsamples++;
}

/*
 * Of n entries in equal parts, any one of the nth part: always the same one of
 * each would see every other row of those that alternate.  Not by chance,
 * either, so that what has not changed is answered in the same way again.
 */
static int
choose_one(Tallying *t, int n, int parts, int nth)
{
	t->dice = t->dice * UINT64CONST(6364136223846793005) + UINT64CONST(1442695040888963407);
	return (int) ((nth + (t->dice >> 40) / (double) (1 << 24)) * n / parts);
}

/* The items from first to before end are of one run; "wanted" samples are taken of them. */
static void
add_items(Tallying *t, Page page, OffsetNumber first, OffsetNumber end, int wanted, double weight)
{
	OutboxRun  *run = find_run(t, run_of(t, item(page, first)));
	int			n = 0;
	int			passed = 0;
	int			taken = 0;
	int			next;

	for (OffsetNumber offset = first; offset < end; offset++)
		n += entries_of(t, page, offset);
	if (run == NULL || n == 0)
		return;
	run->entries += n * weight;
	wanted = Max(Min(wanted, n), 1);
	next = choose_one(t, n, wanted, taken);
	for (OffsetNumber offset = first; offset < end && taken < wanted; offset++)
	{
		int			entries = entries_of(t, page, offset);

		while (taken < wanted && next < passed + entries)
		{
			add_sample(t, run, item(page, offset), next - passed, weight * n / wanted);
			next = choose_one(t, n, wanted, ++taken);
		}
		passed += entries;
	}
}

/* Read one leaf, which stands for so many.  Returns the one to its right. */
static BlockNumber
read_leaf(Tallying *t, BlockNumber block, int wanted, double weight)
{
	Buffer		buffer = read_page(t, block);
	Page		page = BufferGetPage(buffer);
	BTPageOpaque opaque = opaque_of(page);
	BlockNumber next = opaque->btpo_next;

	if (P_ISLEAF(opaque) && !P_IGNORE(opaque))
	{
		OffsetNumber first = P_FIRSTDATAKEY(opaque);
		OffsetNumber max = PageGetMaxOffsetNumber(page);
		OffsetNumber end;

		for (OffsetNumber offset = first; offset <= max; offset = end)
		{
			end = end_of_run(t, page, offset, max, run_of(t, item(page, offset)));
			add_items(t, page, offset, end, wanted * (end - offset) / (max - first + 1), weight);
		}
	}
	UnlockReleaseBuffer(buffer);
	return next;
}

/* Is all of a leaf, and all of the next one, of one run?  What comes last in a run is often all there is of it. */
static bool
is_within(Tallying *t, int i)
{
	const Leaf *leaf = &t->leaves[i];

	return i + 2 < t->nleaves && leaf[0].low == leaf[1].low && leaf[1].low == leaf[2].low;
}

static int
count_within(Tallying *t)
{
	int			n = 0;

	for (int i = 0; i < t->nleaves; i++)
		n += is_within(t, i);
	return n;
}

/* Read a leaf at the end of a run, and what splits have put between it and the next one. */
static void
read_outer(Tallying *t, int i, int wanted)
{
	BlockNumber block = t->leaves[i].block;
	BlockNumber until = i + 1 < t->nleaves ? t->leaves[i + 1].block : P_NONE;

	for (int n = 0; block != until && block != P_NONE && n <= MOST_SPLITS; n++)
		block = read_leaf(t, block, wanted, 1);
}

static void
read_leaves(Tallying *t)
{
	int			within = count_within(t);
	int			outer = t->nleaves - within;
	int			inner = Min(within, MOST_LEAVES);
	int			of_inner = Min(Max(SAMPLES / 2 / Max(inner, 1), 1), MOST_OF_A_LEAF);
	int			of_outer = Min(Max(SAMPLES / 2 / Max(outer, 1), 1), MOST_OF_A_LEAF);
	int			n;

	for (int i = 0; i < t->nleaves; i += n)
	{
		int			reading;

		for (n = 0; is_within(t, i + n); n++)
			;
		if (n == 0)
		{
			read_outer(t, i, of_outer);
			n = 1;
			continue;
		}
		reading = Max((int) ((int64) n * inner / within), 1);
		for (int j = 0; j < reading; j++)
			(void) read_leaf(t, t->leaves[i + (int) ((2 * j + 1) * (int64) n / (2 * reading))].block, of_inner, (double) n / reading);
	}
}

OutboxTally *
outbox_tally_take(Relation index, const TimestampTz *split_at)
{
	Tallying	t = {
		.index = index,
		.split_at = split_at,
		/* Nothing is dead to a standby because it is to its primary. */
		.with_killed = RecoveryInProgress(),
		.max_leaves = 256,
		.max_runs = 64,
		.max_samples = 256
	};

	t.tally = palloc0(sizeof(OutboxTally));
	t.tally->runs = palloc(t.max_runs * sizeof(OutboxRun));
	t.tally->samples = palloc(t.max_samples * sizeof(OutboxSample));
	t.leaves = palloc(t.max_leaves * sizeof(Leaf));
	list_leaves(&t);
	read_leaves(&t);
	pfree(t.leaves);
	return t.tally;
}
