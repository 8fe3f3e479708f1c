/*-------------------------------------------------------------------------
 *
 * delivery.c
 *		Rows of outbox.delivery, read and changed without a plan.
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
#include "catalog/pg_am.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "table/delivery.h"
#include "table/relation.h"

/*
 * What ExecInsertIndexTuples() works with.  To set it up costs as much as to
 * change some rows, most of it for the predicates of partial indexes, so it
 * is kept from one call to the next.  Only the relations are opened anew.
 */
typedef struct IndexUpkeep
{
	bool		valid;
	bool		changed;		/* something was changed since the last set-up began */
	MemoryContext context;		/* everything below, and the executor's state */
	Oid			relid;
	int			nindexes;
	Oid		   *indexes;
	EState	   *estate;
	ResultRelInfo *result;
} IndexUpkeep;

static IndexUpkeep upkeep = {0};

static void
relation_changed(Datum arg, Oid relid)
{
	bool		ours = relid == InvalidOid || relid == upkeep.relid;

	for (int i = 0; i < upkeep.nindexes && !ours; i++)
		ours = relid == upkeep.indexes[i];
	if (!ours)
		return;
	upkeep.valid = false;
	upkeep.changed = true;
}

/* Other kinds of indexes keep a state between insertions that must not outlive the relation. */
static bool
can_be_kept(const ResultRelInfo *result)
{
	for (int i = 0; i < result->ri_NumIndices; i++)
	{
		if (result->ri_IndexRelationDescs[i]->rd_rel->relam != BTREE_AM_OID)
			return false;
	}
	return true;
}

static void
set_up_upkeep(Relation rel)
{
	MemoryContext oldcontext;

	if (upkeep.context == NULL)
	{
		upkeep.context = AllocSetContextCreate(TopMemoryContext, "outbox delivery indexes", ALLOCSET_SMALL_SIZES);
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	}
	upkeep.valid = false;
	upkeep.changed = false;
	upkeep.nindexes = 0;
	/* Deletes the executor's state of last time as well. */
	MemoryContextReset(upkeep.context);
	oldcontext = MemoryContextSwitchTo(upkeep.context);
	upkeep.relid = RelationGetRelid(rel);
	upkeep.estate = CreateExecutorState();
	upkeep.result = makeNode(ResultRelInfo);
	InitResultRelInfo(upkeep.result, rel, 0, NULL, 0);
	ExecOpenIndices(upkeep.result, false);
	upkeep.indexes = palloc(sizeof(Oid) * Max(1, upkeep.result->ri_NumIndices));
	for (int i = 0; i < upkeep.result->ri_NumIndices; i++)
		upkeep.indexes[i] = RelationGetRelid(upkeep.result->ri_IndexRelationDescs[i]);
	upkeep.nindexes = upkeep.result->ri_NumIndices;
	upkeep.valid = !upkeep.changed && can_be_kept(upkeep.result);
	MemoryContextSwitchTo(oldcontext);
}

/* Must be called with the table locked, so that no index comes or goes. */
static void
open_indexes(OutboxDeliveryTable *table)
{
	if (upkeep.valid && upkeep.relid == RelationGetRelid(table->rel))
	{
		upkeep.result->ri_RelationDesc = table->rel;
		for (int i = 0; i < upkeep.nindexes; i++)
			upkeep.result->ri_IndexRelationDescs[i] = index_open(upkeep.indexes[i], RowExclusiveLock);
	}
	else
		set_up_upkeep(table->rel);
	table->estate = upkeep.estate;
	table->result = upkeep.result;
}

static void
close_indexes(OutboxDeliveryTable *table)
{
	ResetPerTupleExprContext(table->estate);
	ExecCloseIndices(table->result);
}

void
outbox_deliveries_open(OutboxDeliveryTable *table, bool writing)
{
	LOCKMODE	lockmode = writing ? RowExclusiveLock : AccessShareLock;

	memset(table, 0, sizeof(OutboxDeliveryTable));
	table->writing = writing;
	table->rel = outbox_table_open("delivery", lockmode);
	if (RelationGetNumberOfAttributes(table->rel) < Anum_delivery_error)
		elog(ERROR, "table outbox.delivery has %d columns instead of %d",
			 RelationGetNumberOfAttributes(table->rel), Anum_delivery_error);
	table->pkey = outbox_deliveries_index(table, "delivery_pkey");
	table->slot = table_slot_create(table->rel, NULL);
	if (!writing)
		return;

	open_indexes(table);
	table->changed = table_slot_create(table->rel, NULL);
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
	if (table->writing)
	{
		ExecDropSingleTupleTableSlot(table->changed);
		close_indexes(table);
	}
	index_close(table->pkey, NoLock);
	table_close(table->rel, NoLock);
	if (table->writing)
		CommandCounterIncrement();
}

Relation
outbox_deliveries_index(OutboxDeliveryTable *table, const char *name)
{
	return outbox_index_open(table->rel, name, table->writing ? RowExclusiveLock : AccessShareLock);
}

bool
outbox_deliveries_find(OutboxDeliveryTable *table, const pg_uuid_t *id, int32 handler_id)
{
	ScanKeyData keys[2];

	if (table->by_id == NULL)
		table->by_id = outbox_index_beginscan(table->rel, table->pkey, GetActiveSnapshot(), 2);
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(id));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(handler_id));
	index_rescan(table->by_id, keys, 2, NULL, 0);
	return index_getnext_slot(table->by_id, ForwardScanDirection, table->slot);
}

void
outbox_deliveries_read(TupleTableSlot *slot, OutboxDeliveryRow *row)
{
	bool		isnull;
	Datum		value;

	/* One pass; the columns behind min_version are rarely set. */
	slot_getsomeattrs(slot, Anum_delivery_key);
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

	result = table_tuple_lock(table->rel, &tid, GetActiveSnapshot(), table->slot,
							  GetCurrentCommandId(true), LockTupleNoKeyExclusive,
							  wait_policy, flags, &failure);
	if (result == TM_Invisible)
		elog(ERROR, "attempted to lock an invisible delivery");
	return result;
}

void
outbox_deliveries_begin_change(OutboxDeliveryTable *table)
{
	int			natts = table->slot->tts_tupleDescriptor->natts;

	slot_getallattrs(table->slot);
	ExecClearTuple(table->changed);
	memcpy(table->changed->tts_values, table->slot->tts_values, sizeof(Datum) * natts);
	memcpy(table->changed->tts_isnull, table->slot->tts_isnull, sizeof(bool) * natts);
}

void
outbox_deliveries_set(OutboxDeliveryTable *table, AttrNumber column, Datum value)
{
	table->changed->tts_values[column - 1] = value;
	table->changed->tts_isnull[column - 1] = false;
}

void
outbox_deliveries_set_null(OutboxDeliveryTable *table, AttrNumber column)
{
	table->changed->tts_values[column - 1] = (Datum) 0;
	table->changed->tts_isnull[column - 1] = true;
}

void
outbox_deliveries_set_text(OutboxDeliveryTable *table, AttrNumber column, const char *value)
{
	if (value == NULL || value[0] == '\0')
		outbox_deliveries_set_null(table, column);
	else
		outbox_deliveries_set(table, column, CStringGetTextDatum(value));
}

void
outbox_deliveries_store_change(OutboxDeliveryTable *table)
{
	ExecStoreVirtualTuple(table->changed);
	if (!outbox_update_row(table->rel, table->slot, table->changed, table->result, table->estate))
		elog(ERROR, "a locked delivery was changed by somebody else");
	ResetPerTupleExprContext(table->estate);
}
