/*-------------------------------------------------------------------------
 *
 * delivery.c
 *		Deliveries: found, locked, leased, settled, without a plan.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "fmgr.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "table/delivery.h"
#include "table/event_queue.h"
#include "table/relation.h"

void
outbox_deliveries_open(OutboxDeliveryTable *table, bool writing)
{
	LOCKMODE	lockmode = writing ? RowExclusiveLock : AccessShareLock;

	memset(table, 0, sizeof(OutboxDeliveryTable));
	table->writing = writing;
	table->rel = outbox_table_open("delivery", lockmode);
	if (RelationGetNumberOfAttributes(table->rel) < Natts_delivery)
		elog(ERROR, "table outbox.delivery has %d columns instead of %d",
			 RelationGetNumberOfAttributes(table->rel), Natts_delivery);
	table->pkey = outbox_deliveries_index(table, "delivery_pkey");
	table->slot = table_slot_create(table->rel, NULL);
	if (writing)
		outbox_writer_begin(&table->writer);
}

void
outbox_deliveries_new_snapshot(OutboxDeliveryTable *table)
{
	if (table->by_id != NULL)
		index_endscan(table->by_id);
	table->by_id = NULL;
}

void
outbox_deliveries_close(OutboxDeliveryTable *table)
{
	outbox_deliveries_new_snapshot(table);
	ExecDropSingleTupleTableSlot(table->slot);
	index_close(table->pkey, NoLock);
	table_close(table->rel, NoLock);
	if (table->writing)
		outbox_writer_end(&table->writer);
}

Relation
outbox_deliveries_index(OutboxDeliveryTable *table, const char *name)
{
	return outbox_index_open(table->rel, name, table->writing ? RowExclusiveLock : AccessShareLock);
}

static void
init_pkey_scan(ScanKey keys, const pg_uuid_t *id, int32 handler_id)
{
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(id));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(handler_id));
}

bool
outbox_deliveries_find(OutboxDeliveryTable *table, const pg_uuid_t *id, int32 handler_id)
{
	ScanKeyData keys[2];

	if (table->by_id == NULL)
		table->by_id = outbox_index_beginscan(table->rel, table->pkey, GetActiveSnapshot(), 2);
	init_pkey_scan(keys, id, handler_id);
	index_rescan(table->by_id, keys, 2, NULL, 0);
	return index_getnext_slot(table->by_id, ForwardScanDirection, table->slot);
}

static bool
is_same_delivery(TupleTableSlot *slot, const pg_uuid_t *id, int32 handler_id)
{
	bool		isnull;
	Datum		found = slot_getattr(slot, Anum_delivery_message_id, &isnull);

	return memcmp(DatumGetUUIDP(found), id, UUID_LEN) == 0 &&
		DatumGetInt32(slot_getattr(slot, Anum_delivery_handler_id, &isnull)) == handler_id;
}

/*
 * The row is as a rule still where it was read, which saves a descent of the
 * index.  If it moved, or another row took its place (VACUUM FULL, or an
 * update and a vacuum), the key finds it; it may also lie beyond the end
 * after a TRUNCATE.
 */
bool
outbox_deliveries_find_at(OutboxDeliveryTable *table, const ItemPointerData *tid, const pg_uuid_t *id, int32 handler_id)
{
	ItemPointerData at = *tid;

	if (table->nblocks == 0)
		table->nblocks = RelationGetNumberOfBlocks(table->rel);
	if (ItemPointerIsValid(&at) && ItemPointerGetBlockNumber(&at) < table->nblocks &&
		table_tuple_fetch_row_version(table->rel, &at, GetActiveSnapshot(), table->slot) &&
		is_same_delivery(table->slot, id, handler_id))
		return true;
	return outbox_deliveries_find(table, id, handler_id);
}

void
outbox_deliveries_read(TupleTableSlot *slot, OutboxDeliveryRow *row)
{
	bool		isnull;
	Datum		value;

	/* One pass; the columns behind these are rarely set. */
	slot_getsomeattrs(slot, Anum_delivery_min_version);
	row->key.id = *DatumGetUUIDP(slot_getattr(slot, Anum_delivery_message_id, &isnull));
	row->key.due_at = DatumGetTimestampTz(slot_getattr(slot, Anum_delivery_due_at, &isnull));
	row->handler_id = DatumGetInt32(slot_getattr(slot, Anum_delivery_handler_id, &isnull));
	row->attempts = DatumGetInt32(slot_getattr(slot, Anum_delivery_attempts, &isnull));
	row->budget_from = DatumGetInt32(slot_getattr(slot, Anum_delivery_budget_from, &isnull));
	row->state = DatumGetInt16(slot_getattr(slot, Anum_delivery_state, &isnull));
	row->streak = DatumGetInt16(slot_getattr(slot, Anum_delivery_streak, &isnull));
	value = slot_getattr(slot, Anum_delivery_min_version, &isnull);
	row->min_version = isnull ? OUTBOX_ANY_VERSION : DatumGetInt32(value);
	value = slot_getattr(slot, Anum_delivery_key, &isnull);
	row->message_key = isnull ? NULL : DatumGetTextPP(value);
	value = slot_getattr(slot, Anum_delivery_expires_at, &isnull);
	row->end_at = isnull ? DT_NOEND : DatumGetTimestampTz(value);
}

char *
outbox_deliveries_text(TupleTableSlot *slot, AttrNumber column)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

/* Who holds a row of which this much is known. */
static TransactionId
holder_of(uint16 infomask, TransactionId xmax)
{
	if (infomask & HEAP_XMAX_INVALID)
		return InvalidTransactionId;
	if (infomask & HEAP_XMAX_IS_MULTI)
	{
		if (MultiXactIdIsRunning(xmax, HEAP_XMAX_IS_LOCKED_ONLY(infomask)))
			return BootstrapTransactionId;
		return InvalidTransactionId;
	}
	if (TransactionIdIsCurrentTransactionId(xmax) || !TransactionIdIsInProgress(xmax))
		return InvalidTransactionId;
	return xmax;
}

TransactionId
outbox_deliveries_holder(TupleTableSlot *slot)
{
	BufferHeapTupleTableSlot *heap = (BufferHeapTupleTableSlot *) slot;
	HeapTupleHeader header;
	uint16		infomask;
	TransactionId xmax;

	if (!TTS_IS_BUFFERTUPLE(slot))
		return InvalidTransactionId;
	header = heap->base.tuple->t_data;
	/* The two belong together, and only under the lock are they sure to. */
	LockBuffer(heap->buffer, BUFFER_LOCK_SHARE);
	infomask = header->t_infomask;
	xmax = HeapTupleHeaderGetRawXmax(header);
	LockBuffer(heap->buffer, BUFFER_LOCK_UNLOCK);
	return holder_of(infomask, xmax);
}

TM_Result
outbox_deliveries_lock(OutboxDeliveryTable *table, LockWaitPolicy wait_policy)
{
	TM_FailureData failure;
	ItemPointerData tid = table->slot->tts_tid;
	uint8		flags = wait_policy == LockWaitBlock ? TUPLE_LOCK_FLAG_FIND_LAST_VERSION : 0;
	TM_Result	result;

	/* It may have to be deleted, which takes more than a change of it. */
	result = table_tuple_lock(table->rel, &tid, GetActiveSnapshot(), table->slot,
							  GetCurrentCommandId(true), LockTupleExclusive,
							  wait_policy, flags, &failure);
	if (result == TM_Invisible)
		elog(ERROR, "attempted to lock an invisible delivery");
	return result;
}

/* Have the row in the slot locked, without waiting for anybody. */
static bool
hold_row(OutboxDeliveryTable *table, bool locked)
{
	return locked || outbox_deliveries_lock(table, LockWaitSkip) == TM_Ok;
}

static void
set_streak(TupleTableSlot *row, int streak)
{
	outbox_row_set(row, Anum_delivery_streak, Int16GetDatum(Min(streak, PG_INT16_MAX)));
}

static bool
write_retry(OutboxDeliveryTable *table, const OutboxOutcome *outcome, bool locked)
{
	TupleTableSlot *row;

	if (!hold_row(table, locked))
		return false;
	row = outbox_writer_start_from(&table->writer, OUTBOX_TABLE_DELIVERY, table->slot);
	outbox_row_set(row, Anum_delivery_due_at, TimestampTzGetDatum(outcome->due_at));
	outbox_row_set(row, Anum_delivery_attempts, Int32GetDatum(outcome->attempts));
	outbox_row_set(row, Anum_delivery_budget_from, Int32GetDatum(outcome->budget_from));
	outbox_row_set(row, Anum_delivery_state, Int16GetDatum(outcome->state));
	set_streak(row, outcome->streak);
	outbox_row_set_null(row, Anum_delivery_http_status);
	if (outcome->http_status != 0)
		outbox_row_set(row, Anum_delivery_http_status, Int16GetDatum(outcome->http_status));
	outbox_row_set_text(row, Anum_delivery_code, outcome->code);
	outbox_row_set_text(row, Anum_delivery_error, outcome->error);
	outbox_writer_update(&table->writer, OUTBOX_TABLE_DELIVERY, table->slot);
	return true;
}

/* The receipt of the delivery in the slot; its key matters only where it may bar others. */
static void
write_receipt(OutboxDeliveryTable *table, const OutboxOutcome *outcome)
{
	TupleTableSlot *found = table->slot;
	TupleTableSlot *row = outbox_writer_start(&table->writer, OUTBOX_TABLE_RECEIPT);
	Datum		key;
	bool		isnull;

	outbox_row_set(row, Anum_receipt_message_id, slot_getattr(found, Anum_delivery_message_id, &isnull));
	outbox_row_set(row, Anum_receipt_settled_at, TimestampTzGetDatum(outcome->settled_at));
	outbox_row_set(row, Anum_receipt_handler_id, slot_getattr(found, Anum_delivery_handler_id, &isnull));
	outbox_row_set(row, Anum_receipt_attempts, Int32GetDatum(outcome->attempts));
	outbox_row_set(row, Anum_receipt_budget_from, Int32GetDatum(outcome->budget_from));
	outbox_row_set(row, Anum_receipt_state, Int16GetDatum(outcome->state));
	if (outcome->http_status != 0)
		outbox_row_set(row, Anum_receipt_http_status, Int16GetDatum(outcome->http_status));
	if (outcome->state == OUTBOX_DEAD)
	{
		key = slot_getattr(found, Anum_delivery_key, &isnull);
		if (!isnull)
			outbox_row_set(row, Anum_receipt_key, key);
	}
	outbox_row_set_text(row, Anum_receipt_code, outcome->code);
	outbox_row_set_text(row, Anum_receipt_error, outcome->error);
	outbox_writer_insert(&table->writer, OUTBOX_TABLE_RECEIPT);
}

/* Who takes events is told of it. */
static void
queue_death(OutboxDeliveryTable *table, const OutboxOutcome *outcome)
{
	OutboxDeath death = {
		.died_at = outcome->settled_at,
		.attempts = outcome->attempts,
		.http_status = outcome->http_status,
		.code = outcome->code,
		.error = outcome->error
	};
	bool		isnull;

	if (!table->asked_for_events)
		table->tells_events = outbox_events_are_wanted();
	table->asked_for_events = true;
	if (!table->tells_events)
		return;
	death.message_id = *DatumGetUUIDP(slot_getattr(table->slot, Anum_delivery_message_id, &isnull));
	death.handler_id = DatumGetInt32(slot_getattr(table->slot, Anum_delivery_handler_id, &isnull));
	outbox_event_queue_death(&table->writer, &death);
	table->has_events = true;
}

bool
outbox_deliveries_settle(OutboxDeliveryTable *table, const OutboxOutcome *outcome, bool locked)
{
	if (outcome->state < OUTBOX_DELIVERED)
		return write_retry(table, outcome, locked);
	if (!outbox_writer_delete(&table->writer, OUTBOX_TABLE_DELIVERY, table->slot, locked))
		return false;
	write_receipt(table, outcome);
	if (outcome->state == OUTBOX_DEAD)
		queue_death(table, outcome);
	return true;
}

bool
outbox_deliveries_lease(OutboxDeliveryTable *table, int32 attempts, int32 budget_from, TimestampTz due_at,
						const OutboxOutcome *expired, bool locked)
{
	TupleTableSlot *row;

	if (!hold_row(table, locked))
		return false;
	row = outbox_writer_start_from(&table->writer, OUTBOX_TABLE_DELIVERY, table->slot);
	outbox_row_set(row, Anum_delivery_state, Int16GetDatum(OUTBOX_LEASED));
	outbox_row_set(row, Anum_delivery_attempts, Int32GetDatum(attempts));
	outbox_row_set(row, Anum_delivery_budget_from, Int32GetDatum(budget_from));
	outbox_row_set(row, Anum_delivery_due_at, TimestampTzGetDatum(due_at));
	if (expired != NULL)
	{
		outbox_row_set_text(row, Anum_delivery_code, expired->code);
		set_streak(row, expired->streak);
		outbox_row_set_null(row, Anum_delivery_error);
	}
	outbox_writer_update(&table->writer, OUTBOX_TABLE_DELIVERY, table->slot);
	return true;
}

/* Is there a row of this pair in a table, by its primary key, under the active snapshot? */
static bool
has_row(const char *name, const char *pkey_name, const pg_uuid_t *id, int32 handler_id)
{
	Relation	rel = outbox_table_open(name, AccessShareLock);
	Relation	pkey = outbox_index_open(rel, pkey_name, AccessShareLock);
	IndexScanDesc scan = outbox_index_beginscan(rel, pkey, GetActiveSnapshot(), 2);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData keys[2];
	bool		found;

	init_pkey_scan(keys, id, handler_id);
	index_rescan(scan, keys, 2, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot);
	ExecDropSingleTupleTableSlot(slot);
	index_endscan(scan);
	index_close(pkey, NoLock);
	table_close(rel, NoLock);
	return found;
}

PG_FUNCTION_INFO_V1(outbox_sql_is_routed);

/* outbox_internal.is_routed(message_id, handler_id) */
Datum
outbox_sql_is_routed(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *id = PG_GETARG_UUID_P(0);
	int32		handler_id = PG_GETARG_INT32(1);
	bool		routed;

	PushActiveSnapshot(GetLatestSnapshot());
	routed = has_row("delivery", "delivery_pkey", id, handler_id) ||
		has_row("receipt", "receipt_pkey", id, handler_id);
	PopActiveSnapshot();
	PG_RETURN_BOOL(routed);
}
