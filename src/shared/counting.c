/*-------------------------------------------------------------------------
 *
 * counting.c
 *		Numbers of what a transaction does, counted when it commits.
 *
 * See counting.h.  There is one note for each handler and counter, found by a
 * walk through the first few and by a table beyond that.  What savepoints have
 * added is also in a list of its own, in the order of their depth, from which
 * it is taken off again: one entry for each depth and note, whatever number of
 * savepoints there was.  Memory is kept for the next transaction, unless it has
 * become more than most need.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "common/session.h"
#include "shared/counting.h"
#include "shared/shmem.h"

PG_FUNCTION_INFO_V1(outbox_sql_count);

/* So many notes are walked through. */
#define FEW 8

/* So many entries of each kind are kept room for when a transaction has ended. */
#define KEPT 256

/* A note: so many of a counter, of a handler. */
typedef struct Note
{
	uint64		key;
	int64		n;
	int			added;			/* the deepest of what savepoints have added to it; -1: nothing */
} Note;

/* What savepoints of a depth have added to a note. */
typedef struct Added
{
	int			depth;
	int			note;
	int			below;			/* the next one of the same note, of a lesser depth; -1: none */
	int64		n;
} Added;

typedef struct Place
{
	uint64		key;
	char		status;
	int			note;
} Place;

#define SH_PREFIX place
#define SH_ELEMENT_TYPE Place
#define SH_KEY_TYPE uint64
#define SH_KEY key
#define SH_HASH_KEY(tb, key) ((uint32) (((key) * UINT64CONST(0x9E3779B97F4A7C15)) >> 32))
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static MemoryContext context = NULL;	/* of all of it */
static Note *notes = NULL;
static int	nnotes = 0;
static int	max_notes = 0;
static place_hash *places = NULL;	/* of notes beyond the first few */

static Added *added = NULL;
static int	nadded = 0;
static int	max_added = 0;

static inline uint64
key_of(int32 handler_id, int counter)
{
	StaticAssertStmt(OUTBOX_COUNTERS <= 256, "counters do not fit into a key");
	return ((uint64) (uint32) handler_id << 8) | counter;
}

/* Room for one more in an array. */
static void *
with_room(void *array, int used, int *max, Size size)
{
	int			more = Max(2 * *max, 32);

	if (used < *max)
		return array;
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "outbox counting", ALLOCSET_SMALL_SIZES);
	array = array == NULL ? MemoryContextAlloc(context, more * size) : repalloc_huge(array, more * size);
	/* Not before: memory may have run out. */
	*max = more;
	return array;
}

static int
find_note(uint64 key)
{
	Place	   *place;

	for (int i = 0; i < Min(nnotes, FEW); i++)
	{
		if (notes[i].key == key)
			return i;
	}
	if (nnotes <= FEW)
		return -1;
	place = place_lookup(places, key);
	return place == NULL ? -1 : place->note;
}

/* The table first: if there is no memory for it, the note has not been made. */
static int
make_note(uint64 key)
{
	notes = with_room(notes, nnotes, &max_notes, sizeof(Note));
	if (nnotes >= FEW)
	{
		bool		found;

		if (places == NULL)
			places = place_create(context, 64, NULL);
		place_insert(places, key, &found)->note = nnotes;
	}
	notes[nnotes] = (Note) {key, 0, -1};
	return nnotes++;
}

/* A savepoint has added n to a note. */
static void
note_added(int depth, int note, int64 n)
{
	int			last = notes[note].added;

	if (last >= 0 && added[last].depth == depth)
	{
		added[last].n += n;
		return;
	}
	added = with_room(added, nadded, &max_added, sizeof(Added));
	added[nadded] = (Added) {depth, note, last, n};
	notes[note].added = nadded++;
}

static void
note(int32 handler_id, int counter, int64 n)
{
	uint64		key = key_of(handler_id, counter);
	int			depth = GetCurrentTransactionNestLevel();
	int			i;

	/* Where nothing is counted, nothing is noted. */
	if (!outbox_counters_wanted())
		return;
	i = find_note(key);
	if (i < 0)
		i = make_note(key);
	if (depth > 1)
		note_added(depth, i, n);
	notes[i].n += n;
}

void
outbox_count_at_commit(int32 handler_id, OutboxCounter counter, int64 n)
{
	note(handler_id, counter, n);
}

void
outbox_count_time_at_commit(int32 handler_id, OutboxHistogram histogram, int64 us)
{
	us = Max(us, 0);
	note(handler_id, outbox_sum_counter(histogram), us);
	note(handler_id, outbox_bucket_counter(histogram, us), 1);
}

OutboxCounter
outbox_state_counter(OutboxState state)
{
	switch (state)
	{
		case OUTBOX_DELIVERED:
			return OUTBOX_COUNT_DELIVERED;
		case OUTBOX_DEAD:
			return OUTBOX_COUNT_DEAD;
		case OUTBOX_CANCELLED:
			return OUTBOX_COUNT_CANCELLED;
		default:
			return OUTBOX_COUNT_RETRIED;
	}
}

void
outbox_count_outcome_at_commit(int32 handler_id, OutboxState state, const char *code)
{
	note(handler_id, outbox_state_counter(state), 1);
	if (code != NULL && strcmp(code, OUTBOX_CODE_EXPIRED) == 0)
		note(handler_id, OUTBOX_COUNT_EXPIRED, 1);
}

/* Clears the table in place, or frees all; nothing is allocated. */
static void
forget(void)
{
	if (Max(max_notes, max_added) > KEPT)
	{
		MemoryContextReset(context);
		notes = NULL;
		added = NULL;
		places = NULL;
		max_notes = max_added = 0;
	}
	else if (nnotes > FEW)
		place_reset(places);
	nnotes = 0;
	nadded = 0;
}

void
outbox_counting_at_commit(void)
{
	OutboxCounted counted = {0};

	if (nnotes == 0)
		return;
	for (int i = 0; i < nnotes; i++)
	{
		int32		handler_id = (int32) (notes[i].key >> 8);

		/* Notes of one handler come in a row as a rule. */
		if (handler_id != counted.handler_id)
			counted = (OutboxCounted) {handler_id};
		if (notes[i].n != 0)
			outbox_count(&counted, (int) (notes[i].key & 0xFF), notes[i].n);
	}
	forget();
}

void
outbox_counting_at_abort(void)
{
	if (nnotes != 0)
		forget();
}

/* The last entry is of a savepoint that is rolled back. */
static void
take_off(void)
{
	Added	   *last = &added[--nadded];

	notes[last->note].n -= last->n;
	notes[last->note].added = last->below;
}

/* An entry of a savepoint that is released goes to the one around it: into its entry, or as one, behind the others there. */
static void
hand_up(const Added *entry, int depth)
{
	Note	   *note = &notes[entry->note];

	if (entry->below >= 0 && added[entry->below].depth == depth)
	{
		added[entry->below].n += entry->n;
		note->added = entry->below;
		return;
	}
	added[nadded] = *entry;
	added[nadded].depth = depth;
	note->added = nadded++;
}

/* The outermost transaction takes nothing off. */
static void
forget_added(void)
{
	for (int i = 0; i < nadded; i++)
		notes[added[i].note].added = -1;
	nadded = 0;
}

/* What a savepoint has added goes to the one around it, or is taken off. */
void
outbox_counting_at_subtransaction(SubXactEvent event, SubTransactionId subid,
								  SubTransactionId parent, void *arg)
{
	int			depth;
	int			end = nadded;

	if (nadded == 0 || (event != SUBXACT_EVENT_COMMIT_SUB && event != SUBXACT_EVENT_ABORT_SUB))
		return;
	depth = GetCurrentTransactionNestLevel();
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		while (nadded > 0 && added[nadded - 1].depth >= depth)
			take_off();
		return;
	}
	if (depth == 2)
	{
		forget_added();
		return;
	}
	while (nadded > 0 && added[nadded - 1].depth >= depth)
		nadded--;
	for (int i = nadded; i < end; i++)
	{
		Added		entry = added[i];

		hand_up(&entry, depth - 1);
	}
}

/* outbox_internal.count(handler_id, what, n): for what is done in SQL. */
Datum
outbox_sql_count(PG_FUNCTION_ARGS)
{
	static const struct
	{
		const char *name;
		OutboxCounter counter;
	}			kinds[] = {
		{"staged", OUTBOX_COUNT_STAGED},
		{"requeued", OUTBOX_COUNT_REQUEUED},
		{"cancelled", OUTBOX_COUNT_CANCELLED},
		{"expired", OUTBOX_COUNT_EXPIRED}
	};
	char	   *what = text_to_cstring(PG_GETARG_TEXT_PP(1));

	for (int i = 0; i < lengthof(kinds); i++)
	{
		if (strcmp(kinds[i].name, what) != 0)
			continue;
		note(PG_GETARG_INT32(0), kinds[i].counter, PG_GETARG_INT64(2));
		PG_RETURN_INT64(PG_GETARG_INT64(2));
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unknown counter \"%s\"", what)));
}
