/*-------------------------------------------------------------------------
 *
 * replace.c
 *		The latest message of a replace_key takes the place of the one before.
 *
 * See replace.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/skey.h"
#include "access/table.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "stage/call_off.h"
#include "stage/replace.h"
#include "table/delivery.h"
#include "table/relation.h"

/* An advisory lock that no function of SQL takes: those have 1 and 2 here. */
#define REPLACE_LOCK_CLASS 4243

static const text *
tenant_of(const OutboxStageArguments *arguments)
{
	return arguments->tenant != NULL ? arguments->tenant : cstring_to_text("");
}

/* Keys with the same hash share a lock: they wait for each other in vain, and no more. */
static void
lock_key(const text *tenant, const text *key)
{
	uint32		tenant_hash = hash_bytes((const unsigned char *) VARDATA_ANY(tenant), VARSIZE_ANY_EXHDR(tenant));
	uint32		key_hash = hash_bytes((const unsigned char *) VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, tenant_hash, key_hash, REPLACE_LOCK_CLASS);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

/* The message with the highest id of a key. */
static bool
find_last(const text *tenant, const text *key, OutboxReplaced *replaced)
{
	Relation	rel = outbox_table_open("message", AccessShareLock);
	Relation	index = outbox_index_open(rel, "message_replace", AccessShareLock);
	IndexScanDesc scan = outbox_index_beginscan(rel, index, GetActiveSnapshot(), 2);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData keys[2];
	bool		isnull;
	bool		found;

	ScanKeyEntryInitialize(&keys[0], 0, 1, BTEqualStrategyNumber, InvalidOid, index->rd_indcollation[0], F_TEXTEQ, PointerGetDatum(tenant));
	ScanKeyEntryInitialize(&keys[1], 0, 2, BTEqualStrategyNumber, InvalidOid, index->rd_indcollation[1], F_TEXTEQ, PointerGetDatum(key));
	index_rescan(scan, keys, 2, NULL, 0);
	found = index_getnext_slot(scan, BackwardScanDirection, slot);
	if (found)
	{
		replaced->id = *DatumGetUUIDP(slot_getattr(slot, Anum_message_id, &isnull));
		replaced->since = DatumGetTimestampTz(slot_getattr(slot, Anum_message_replace_since, &isnull));
	}
	ExecDropSingleTupleTableSlot(slot);
	index_endscan(scan);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	return found;
}

static IndexScanDesc
scan_deliveries(OutboxDeliveryTable *table, const pg_uuid_t *id)
{
	IndexScanDesc scan = outbox_index_beginscan(table->rel, table->pkey, GetActiveSnapshot(), 1);
	ScanKeyData key;

	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(id));
	index_rescan(scan, &key, 1, NULL, 0);
	return scan;
}

static bool
is_untried(const OutboxDeliveryRow *row)
{
	return row->state == OUTBOX_PENDING && row->attempts == 0;
}

static bool
has_untried(const pg_uuid_t *id)
{
	OutboxDeliveryTable table;
	IndexScanDesc scan;
	bool		found = false;

	outbox_deliveries_open(&table, false);
	scan = scan_deliveries(&table, id);
	while (!found && index_getnext_slot(scan, ForwardScanDirection, table.slot))
	{
		OutboxDeliveryRow row;

		outbox_deliveries_read(table.slot, &row);
		found = is_untried(&row);
	}
	index_endscan(scan);
	outbox_deliveries_close(&table);
	return found;
}

/* Not later than max_delay after the first. */
static void
bound_delay(OutboxStageArguments *arguments, TimestampTz since)
{
	TimestampTz latest;

	if (arguments->max_delay == NULL)
		return;
	latest = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(since),
													 PointerGetDatum(arguments->max_delay)));
	arguments->due_at = Min(arguments->due_at, Max(latest, arguments->staged_at));
}

void
outbox_replace_find(OutboxNewMessage *message, OutboxStageArguments *arguments, OutboxReplaced *replaced)
{
	const text *tenant = tenant_of(arguments);

	memset(replaced, 0, sizeof(OutboxReplaced));
	lock_key(tenant, message->replace_key);
	PushActiveSnapshot(GetLatestSnapshot());
	replaced->is_outstanding = find_last(tenant, message->replace_key, replaced) && has_untried(&replaced->id);
	PopActiveSnapshot();

	message->replace_since = replaced->is_outstanding ? replaced->since : arguments->staged_at;
	bound_delay(arguments, message->replace_since);
}

static void
cancel_deliveries(const pg_uuid_t *id, OutboxCallOff *call_off)
{
	OutboxDeliveryTable table;
	IndexScanDesc scan;

	outbox_deliveries_open(&table, true);
	scan = scan_deliveries(&table, id);
	while (index_getnext_slot(scan, ForwardScanDirection, table.slot))
	{
		OutboxDeliveryRow row;

		CHECK_FOR_INTERRUPTS();
		outbox_deliveries_read(table.slot, &row);
		/* No producer waits for a consumer. */
		if (is_untried(&row))
			(void) outbox_call_off(&table, call_off);
	}
	index_endscan(scan);
	outbox_deliveries_close(&table);
}

void
outbox_replace(const OutboxReplaced *replaced)
{
	OutboxCallOff call_off = {.code = "replaced"};

	if (!replaced->is_outstanding)
		return;
	PushActiveSnapshot(GetLatestSnapshot());
	cancel_deliveries(&replaced->id, &call_off);
	PopActiveSnapshot();
	outbox_call_off_end(&call_off);
}
