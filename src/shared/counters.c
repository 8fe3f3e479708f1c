/*-------------------------------------------------------------------------
 *
 * counters.c
 *		What has happened so far, in numbers.
 *
 * See counters.h.  Open addressing: a lookup reads owner words without a lock
 * and stops at the first one that was never used.  The word of an entry that
 * was given back says so, and a lookup goes on behind it; unless the next one
 * was never used, for then nobody has ever gone further.  Entries are made and
 * given back under a spinlock.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "guc.h"
#include "shared/counters.h"

/* No database has OID 0. */
#define NEVER_USED UINT64CONST(0)
#define GIVEN_BACK UINT64CONST(1)

const int64 outbox_histogram_bounds[OUTBOX_HISTOGRAM_BOUNDS] = {
	10, 20, 50,
	100, 200, 500,
	1000, 2000, 5000,
	10000, 20000, 50000,
	100000, 200000, 500000,
	1000000, 2000000, 5000000,
	10000000, 20000000, 50000000,
	100000000, 200000000, 500000000,
	1000000000
};

typedef struct CountersShared
{
	slock_t		mutex;			/* guards the making of entries, and the number of them */
	int			nused;			/* by handlers */
	int			nentries;		/* they lie behind, from the next cache line on */
} CountersShared;

static CountersShared *shared = NULL;
static pg_atomic_uint64 *tally = NULL;

/* A quarter more than can be used, so that looking for what is not there ends soon. */
static int
table_size(void)
{
	int			most = outbox_max_stat_handlers + outbox_max_databases;

	return most + most / 4 + 1;
}

Size
outbox_counters_shmem_size(void)
{
	return add_size(sizeof(CountersShared) + 2 * PG_CACHE_LINE_SIZE, mul_size(table_size(), sizeof(OutboxCounters)));
}

OutboxCounters *
outbox_counters_entries(void)
{
	return (OutboxCounters *) TYPEALIGN(PG_CACHE_LINE_SIZE, (char *) shared + sizeof(CountersShared));
}

int
outbox_counters_size(void)
{
	return shared == NULL ? 0 : shared->nentries;
}

static void
init_entry(OutboxCounters *entry)
{
	pg_atomic_init_u64(&entry->owner, NEVER_USED);
	pg_atomic_init_u64(&entry->reset_at, 0);
	for (int i = 0; i < OUTBOX_COUNTERS; i++)
		pg_atomic_init_u64(&entry->counts[i], 0);
}

void
outbox_counters_shmem_startup(void)
{
	bool		found;

	StaticAssertStmt((int) OUTBOX_DISPATCHER_COUNTERS <= (int) OUTBOX_COUNTERS, "entries are too small for a dispatcher");
	shared = ShmemInitStruct("outbox counters", outbox_counters_shmem_size(), &found);
	if (found)
		return;
	SpinLockInit(&shared->mutex);
	shared->nused = 0;
	shared->nentries = table_size();
	for (int i = 0; i < shared->nentries; i++)
		init_entry(&outbox_counters_entries()[i]);
	if (!IsUnderPostmaster)
		outbox_counters_file_startup();
}

static inline uint64
owner_word(Oid dboid, int32 handler_id)
{
	return ((uint64) dboid << 32) | (uint32) handler_id;
}

static inline Oid
database_of(uint64 owner)
{
	return (Oid) (owner >> 32);
}

static inline int32
handler_of(uint64 owner)
{
	return (int32) (uint32) owner;
}

bool
outbox_counters_is_owner(uint64 owner)
{
	return OidIsValid(database_of(owner));
}

static inline OutboxCounters *
probe(uint64 owner, int step)
{
	uint32		start = murmurhash32((uint32) owner) ^ murmurhash32((uint32) (owner >> 32));

	return &outbox_counters_entries()[(start % shared->nentries + step) % shared->nentries];
}

/* The entry of an owner; without one, NULL, and where one could be made (NULL: nowhere). */
static OutboxCounters *
find_entry(uint64 owner, OutboxCounters **place)
{
	*place = NULL;
	for (int step = 0; step < shared->nentries; step++)
	{
		OutboxCounters *entry = probe(owner, step);
		uint64		found = pg_atomic_read_u64(&entry->owner);

		if (found == owner)
			return entry;
		if (*place == NULL && !outbox_counters_is_owner(found))
			*place = entry;
		if (found == NEVER_USED)
			break;
	}
	return NULL;
}

/* The numbers first: whoever sees the owner adds to them. */
static void
take_entry(OutboxCounters *entry, uint64 owner, TimestampTz now)
{
	for (int i = 0; i < OUTBOX_COUNTERS; i++)
		pg_atomic_write_u64(&entry->counts[i], 0);
	pg_atomic_write_u64(&entry->reset_at, (uint64) now);
	pg_write_barrier();
	pg_atomic_write_u64(&entry->owner, owner);
}

OutboxCounters *
outbox_counters_make(uint64 owner)
{
	bool		is_handler = handler_of(owner) != OUTBOX_COUNTED_DISPATCHER;
	TimestampTz now = GetCurrentTimestamp();
	OutboxCounters *place;
	OutboxCounters *entry;

	SpinLockAcquire(&shared->mutex);
	entry = find_entry(owner, &place);
	if (entry == NULL && place != NULL && !(is_handler && shared->nused >= outbox_max_stat_handlers))
	{
		take_entry(place, owner, now);
		entry = place;
		if (is_handler)
			shared->nused++;
	}
	SpinLockRelease(&shared->mutex);
	return entry;
}

/* Read without the mutex: who finds no room asks often, and is told so without it. */
static bool
is_full(void)
{
	return *(volatile int *) &shared->nused >= outbox_max_stat_handlers;
}

/* The entry of somebody in this database, made if there is room. */
static OutboxCounters *
entry_of(int32 handler_id)
{
	uint64		owner = owner_word(MyDatabaseId, handler_id);
	OutboxCounters *place;
	OutboxCounters *entry;

	if (shared == NULL || !OidIsValid(MyDatabaseId))
		return NULL;
	entry = find_entry(owner, &place);
	if (entry != NULL || (handler_id != OUTBOX_COUNTED_DISPATCHER && is_full()))
		return entry;
	return outbox_counters_make(owner);
}

/* Where somebody is counted now: where he was, unless the entry has changed hands. */
static inline OutboxCounters *
counters_of(OutboxCounted *counted)
{
	if (counted->counters == NULL ||
		pg_atomic_read_u64(&counted->counters->owner) != owner_word(MyDatabaseId, counted->handler_id))
		counted->counters = entry_of(counted->handler_id);
	return counted->counters;
}

static inline void
add(OutboxCounters *counters, int counter, int64 n)
{
	(void) pg_atomic_fetch_add_u64(&counters->counts[counter], n);
}

void
outbox_counters_tally(pg_atomic_uint64 *counts)
{
	tally = counts;
}

bool
outbox_counters_wanted(void)
{
	return shared != NULL || tally != NULL;
}

void
outbox_count(OutboxCounted *counted, int counter, int64 n)
{
	OutboxCounters *counters = counters_of(counted);

	if (tally != NULL && counted->handler_id != OUTBOX_COUNTED_DISPATCHER && counter < OUTBOX_COUNT_TIMES)
		(void) pg_atomic_fetch_add_u64(&tally[counter], n);
	if (counters != NULL)
		add(counters, counter, n);
	else if (counted->handler_id != OUTBOX_COUNTED_DISPATCHER)
		outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_UNCOUNTED, 1);
}

void
outbox_count_dispatcher(OutboxDispatcherCounter counter, int64 n)
{
	static OutboxCounted dispatcher = {OUTBOX_COUNTED_DISPATCHER};

	outbox_count(&dispatcher, counter, n);
}

int
outbox_bucket_counter(OutboxHistogram histogram, int64 us)
{
	int			low = 0;
	int			high = OUTBOX_HISTOGRAM_BOUNDS;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (us <= outbox_histogram_bounds[middle])
			high = middle;
		else
			low = middle + 1;
	}
	return outbox_sum_counter(histogram) + 1 + low;
}

/* Clocks of two processes may differ by a little: no time is negative. */
void
outbox_count_time(OutboxCounted *counted, OutboxHistogram histogram, int64 us)
{
	OutboxCounters *counters = counters_of(counted);

	if (counters == NULL)
		return;
	us = Max(us, 0);
	add(counters, outbox_sum_counter(histogram), us);
	add(counters, outbox_bucket_counter(histogram, us), 1);
}

int
outbox_counters_handlers(int32 *handler_ids, int max)
{
	int			n = 0;

	for (int i = 0; i < outbox_counters_size() && n < max; i++)
	{
		uint64		owner = pg_atomic_read_u64(&outbox_counters_entries()[i].owner);

		if (database_of(owner) == MyDatabaseId && handler_of(owner) != OUTBOX_COUNTED_DISPATCHER)
			handler_ids[n++] = handler_of(owner);
	}
	return n;
}

/*
 * Before a word that was never used those that were given back are as good as
 * that, so that a table in which entries come and go does not fill up with
 * them.  Caller holds the mutex.
 */
static void
tidy(int i)
{
	OutboxCounters *entries = outbox_counters_entries();

	if (pg_atomic_read_u64(&entries[(i + 1) % shared->nentries].owner) != NEVER_USED)
		return;
	for (int n = 0; n < shared->nentries && pg_atomic_read_u64(&entries[i].owner) == GIVEN_BACK; n++)
	{
		pg_atomic_write_u64(&entries[i].owner, NEVER_USED);
		i = (i + shared->nentries - 1) % shared->nentries;
	}
}

/* Give an entry back, if it is still this owner's. */
static void
give_back(OutboxCounters *entry, uint64 owner)
{
	SpinLockAcquire(&shared->mutex);
	if (pg_atomic_read_u64(&entry->owner) == owner)
	{
		pg_atomic_write_u64(&entry->owner, GIVEN_BACK);
		if (handler_of(owner) != OUTBOX_COUNTED_DISPATCHER)
			shared->nused--;
		tidy(entry - outbox_counters_entries());
	}
	SpinLockRelease(&shared->mutex);
}

void
outbox_counters_forget(int32 handler_id)
{
	uint64		owner = owner_word(MyDatabaseId, handler_id);
	OutboxCounters *place;
	OutboxCounters *entry = shared == NULL ? NULL : find_entry(owner, &place);

	if (entry != NULL)
		give_back(entry, owner);
}

void
outbox_counters_forget_database(Oid dboid)
{
	for (int i = 0; i < outbox_counters_size(); i++)
	{
		OutboxCounters *entry = &outbox_counters_entries()[i];
		uint64		owner = pg_atomic_read_u64(&entry->owner);

		if (outbox_counters_is_owner(owner) && database_of(owner) == dboid)
			give_back(entry, owner);
	}
}

void
outbox_counters_keep(bool (*exists) (Oid dboid))
{
	for (int i = 0; i < outbox_counters_size(); i++)
	{
		OutboxCounters *entry = &outbox_counters_entries()[i];
		uint64		owner = pg_atomic_read_u64(&entry->owner);

		if (outbox_counters_is_owner(owner) && !exists(database_of(owner)))
			give_back(entry, owner);
	}
}
