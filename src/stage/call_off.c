/*-------------------------------------------------------------------------
 *
 * call_off.c
 *		Cancelling deliveries that have not gone out, without a plan.
 *
 * See call_off.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/counting.h"
#include "shared/doorbell.h"
#include "stage/call_off.h"

/* The key of a delivery that was cancelled. */
typedef struct FreedKey
{
	int32		handler_id;
	text	   *key;
} FreedKey;

static void
note_key(OutboxCallOff *call_off, const OutboxDeliveryRow *row)
{
	FreedKey   *freed;

	if (row->message_key == NULL)
		return;
	freed = palloc(sizeof(FreedKey));
	freed->handler_id = row->handler_id;
	freed->key = DatumGetTextPCopy(PointerGetDatum(row->message_key));
	call_off->keys = lappend(call_off->keys, freed);
}

bool
outbox_call_off(OutboxDeliveryTable *table, OutboxCallOff *call_off)
{
	OutboxOutcome outcome = {.state = OUTBOX_CANCELLED, .code = call_off->code, .error = call_off->error};
	OutboxDeliveryRow row;

	if (outbox_deliveries_lock(table, LockWaitSkip) != TM_Ok)
		return false;
	outbox_deliveries_read(table->slot, &row);
	outcome.attempts = row.attempts;
	outcome.budget_from = row.budget_from;
	outcome.settled_at = GetCurrentTimestamp();
	note_key(call_off, &row);
	if (!outbox_deliveries_settle(table, &outcome, true))
		return false;
	outbox_doorbell_note(row.handler_id, OUTBOX_NOTICE_REREAD, row.key.due_at, &row.key.id);
	outbox_count_outcome_at_commit(row.handler_id, OUTBOX_CANCELLED, call_off->code);
	return true;
}

/* The next of the key may go now. */
static void
note_successor(OutboxDeliveryTable *table, Relation keyed, const FreedKey *freed)
{
	IndexScanDesc scan = outbox_index_beginscan(table->rel, keyed, GetActiveSnapshot(), 2);
	ScanKeyData keys[2];
	OutboxDeliveryRow row;

	outbox_init_key_scan(keys, keyed, freed->handler_id, freed->key);
	index_rescan(scan, keys, 2, NULL, 0);
	if (index_getnext_slot(scan, ForwardScanDirection, table->slot))
	{
		outbox_deliveries_read(table->slot, &row);
		outbox_doorbell_note(row.handler_id, OUTBOX_NOTICE_DUE, row.key.due_at, &row.key.id);
	}
	index_endscan(scan);
}

void
outbox_call_off_end(OutboxCallOff *call_off)
{
	OutboxDeliveryTable table;
	Relation	keyed;
	ListCell   *cell;

	if (call_off->keys == NIL)
		return;
	PushActiveSnapshot(GetLatestSnapshot());
	outbox_deliveries_open(&table, false);
	keyed = outbox_deliveries_index(&table, "delivery_keyed");
	foreach(cell, call_off->keys)
	{
		CHECK_FOR_INTERRUPTS();
		note_successor(&table, keyed, lfirst(cell));
	}
	index_close(keyed, NoLock);
	outbox_deliveries_close(&table);
	PopActiveSnapshot();
	list_free_deep(call_off->keys);
	call_off->keys = NIL;
}
