/*-------------------------------------------------------------------------
 *
 * message_id.c
 *		Message ids: uuid v7, strictly increasing on one server.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/itup.h"
#include "access/nbtree.h"
#include "access/table.h"
#include "access/tableam.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "shared/shmem.h"
#include "stage/message_id.h"
#include "table/relation.h"

#define FRACTION_BITS 12
#define FRACTION_UNITS (1 << FRACTION_BITS)
#define MAX_TIMESTAMP ((UINT64CONST(1) << 60) - 1)

/* An id further ahead of the clock than this needs something else that says that it was made here. */
#define TRUSTED_LEAD_US (INT64CONST(86400) * 1000000)

/* pg_strong_random costs a system call; one call serves so many ids. */
#define POOL_IDS 128

static uint8 random_pool[POOL_IDS * 8];
static int	random_left = 0;

/* Without shared memory, the last timestamp of this backend. */
static uint64 my_last_id = 0;
static bool my_ids_seeded = false;

static uint64
timestamp_of_clock(TimestampTz at)
{
	const int64 unix_epoch = ((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE)) * USECS_PER_DAY;
	int64		us;
	uint64		ms;

	if (TIMESTAMP_IS_NOBEGIN(at) || at <= -unix_epoch)
		return 0;
	if (TIMESTAMP_IS_NOEND(at))
		return MAX_TIMESTAMP;
	us = at + unix_epoch;
	ms = us / 1000;
	return (ms << FRACTION_BITS) | ((us % 1000) * FRACTION_UNITS / 1000);
}

/* An id of this timestamp whose 62 random bits are given by random, or zero for NULL. */
static void
compose_id(uint64 timestamp, const uint8 *random, pg_uuid_t *id)
{
	uint64		ms = timestamp >> FRACTION_BITS;
	uint32		fraction = timestamp & (FRACTION_UNITS - 1);

	for (int i = 0; i < 6; i++)
		id->data[i] = (ms >> (40 - 8 * i)) & 0xff;
	id->data[6] = 0x70 | (fraction >> 8);
	id->data[7] = fraction & 0xff;
	if (random)
		memcpy(&id->data[8], random, 8);
	else
		memset(&id->data[8], 0, 8);
	id->data[8] = 0x80 | (id->data[8] & 0x3f);
}

static bool
is_version_7(const pg_uuid_t *id)
{
	return (id->data[6] & 0xf0) == 0x70 && (id->data[8] & 0xc0) == 0x80;
}

static uint64
timestamp_of_id(const pg_uuid_t *id)
{
	uint64		ms = 0;

	for (int i = 0; i < 6; i++)
		ms = (ms << 8) | id->data[i];
	return (ms << FRACTION_BITS) | ((uint64) (id->data[6] & 0x0f) << 8) | id->data[7];
}

/* Raise a last timestamp to at least this one. */
static void
raise_last_id(uint64 timestamp)
{
	uint64		last;

	if (outbox_shared == NULL)
	{
		my_last_id = Max(my_last_id, timestamp);
		return;
	}
	last = pg_atomic_read_u64(&outbox_shared->last_id);
	while (last < timestamp &&
		   !pg_atomic_compare_exchange_u64(&outbox_shared->last_id, &last, timestamp))
		;
}

uint64
outbox_message_ids_reserve(TimestampTz now, int n)
{
	uint64		clock = timestamp_of_clock(now);
	uint64		last;
	uint64		first;

	if (outbox_shared == NULL)
	{
		first = Max(clock, my_last_id + 1);
		my_last_id = first + n - 1;
		return first;
	}
	last = pg_atomic_read_u64(&outbox_shared->last_id);
	do
	{
		first = Max(clock, last + 1);
	} while (!pg_atomic_compare_exchange_u64(&outbox_shared->last_id, &last, first + n - 1));
	return first;
}

void
outbox_message_id_make(uint64 timestamp, pg_uuid_t *id)
{
	if (random_left == 0)
	{
		if (!pg_strong_random(random_pool, sizeof(random_pool)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random bits for a message id")));
		random_left = POOL_IDS;
	}
	random_left--;
	compose_id(timestamp, &random_pool[random_left * 8], id);
}

/* The smallest id a message staged at that time could have; infinities are clamped. */
static void
id_floor(TimestampTz at, pg_uuid_t *id)
{
	compose_id(timestamp_of_clock(at), NULL, id);
}

int64
outbox_message_id_lead(void)
{
	if (outbox_shared == NULL)
		return 0;
	return (int64) (pg_atomic_read_u64(&outbox_shared->last_id) >> FRACTION_BITS) -
		(int64) (timestamp_of_clock(GetCurrentTimestamp()) >> FRACTION_BITS);
}

/* Was the message of the entry that the scan is on staged at the time that its id says, give or take? */
static bool
agrees_with_staged_at(IndexScanDesc scan, TupleTableSlot *slot, uint64 timestamp)
{
	AttrNumber	attnum = get_attnum(RelationGetRelid(scan->heapRelation), "staged_at");
	TimestampTz staged_at;
	bool		isnull;

	if (attnum == InvalidAttrNumber || !index_fetch_heap(scan, slot))
		return false;
	staged_at = DatumGetTimestampTz(slot_getattr(slot, attnum, &isnull));
	return !isnull && !TIMESTAMP_NOT_FINITE(staged_at) &&
		timestamp >= timestamp_of_clock(staged_at - TRUSTED_LEAD_US) &&
		timestamp <= timestamp_of_clock(staged_at + TRUSTED_LEAD_US);
}

static void
report_stranger(const pg_uuid_t *id)
{
	ereport(WARNING,
			(errmsg("message id %s was not made by outbox and is ignored",
					DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(id)))),
			 is_version_7(id) ?
			 errdetail("Its time is more than a day ahead of the clock and of its staged_at, and no other id is near it.") :
			 errdetail("It is not a uuid v7."),
			 errhint("Stage messages with outbox.stage() rather than inserting them.")));
}

/*
 * The highest timestamp in the primary key, whoever wrote it and whether or
 * not it committed; 0 if there is none.  All that were made here count, also
 * where the clock has fallen far behind them: ids must never go down.
 *
 * But somebody may have inserted a uuid by hand that is not a v7 or lies
 * years ahead, and following it would put every later message there.  So one
 * that is more than a day ahead of the clock has to have something that says
 * that it was made here: it agrees with its message's time of staging, as
 * every id does but those made while the clock was behind; or it follows
 * closely upon another one, as those do.  Others are ignored, and the first
 * of them is reported.
 */
static uint64
scan_backward(IndexScanDesc scan, TupleTableSlot *slot)
{
	const uint64 day = timestamp_of_clock(TRUSTED_LEAD_US) - timestamp_of_clock(0);
	uint64		trusted = timestamp_of_clock(GetCurrentTimestamp() + TRUSTED_LEAD_US);
	uint64		candidate = 0;
	bool		reported = false;
	pg_uuid_t	id;

	while (index_getnext_tid(scan, BackwardScanDirection) != NULL)
	{
		bool		isnull;
		pg_uuid_t	lower = *DatumGetUUIDP(index_getattr(scan->xs_itup, 1, scan->xs_itupdesc, &isnull));
		uint64		timestamp = timestamp_of_id(&lower);
		const pg_uuid_t *report;

		CHECK_FOR_INTERRUPTS();
		if (is_version_7(&lower))
		{
			if (candidate != 0 && candidate - timestamp <= day)
				return candidate;
			report = candidate != 0 ? &id : NULL;
		}
		else
			report = &lower;
		if (report != NULL && !reported)
		{
			report_stranger(report);
			reported = true;
		}
		if (report == &lower)
			continue;
		if (timestamp <= trusted || agrees_with_staged_at(scan, slot, timestamp))
			return timestamp;
		candidate = timestamp;
		id = lower;
	}
	if (candidate != 0 && !reported)
		report_stranger(&id);
	return 0;
}

static uint64
highest_timestamp(void)
{
	Relation	heap = outbox_table_open("message", AccessShareLock);
	Relation	index = outbox_index_open(heap, "message_pkey", AccessShareLock);
	TupleTableSlot *slot = table_slot_create(heap, NULL);
	IndexScanDesc scan;
	uint64		result;

	/* SnapshotAny also keeps serializable transactions from locking the end of the index. */
	scan = outbox_index_beginscan(heap, index, SnapshotAny, 0);
	scan->xs_want_itup = true;
	scan->ignore_killed_tuples = false;
	index_rescan(scan, NULL, 0, NULL, 0);
	result = scan_backward(scan, slot);
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, AccessShareLock);
	table_close(heap, AccessShareLock);
	return result;
}

void
outbox_message_ids_seed(void)
{
	OutboxDatabase *db;

	if (my_ids_seeded)
		return;
	db = outbox_my_database();
	if (db == NULL || pg_atomic_read_u32(&db->ids_seeded) == 0)
	{
		raise_last_id(highest_timestamp());
		if (db)
			pg_atomic_write_u32(&db->ids_seeded, 1);
	}
	my_ids_seeded = true;
}

PG_FUNCTION_INFO_V1(outbox_sql_seed_ids);

/* outbox_internal.seed_ids(): rows have come from elsewhere since ids were last seeded. */
Datum
outbox_sql_seed_ids(PG_FUNCTION_ARGS)
{
	raise_last_id(highest_timestamp());
	PG_RETURN_VOID();
}

PG_FUNCTION_INFO_V1(outbox_sql_id_floor);

/* outbox_internal.id_floor(at) */
Datum
outbox_sql_id_floor(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = palloc(UUID_LEN);

	id_floor(PG_GETARG_TIMESTAMPTZ(0), id);
	PG_RETURN_UUID_P(id);
}
