/*-------------------------------------------------------------------------
 *
 * message.c
 *		Messages found by their id.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/tableam.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "table/message.h"
#include "table/relation.h"

void
outbox_messages_open(OutboxMessageTable *table)
{
	table->rel = outbox_table_open("message", AccessShareLock);
	if (RelationGetNumberOfAttributes(table->rel) < Natts_message)
		elog(ERROR, "table outbox.message has %d columns instead of %d",
			 RelationGetNumberOfAttributes(table->rel), Natts_message);
	table->pkey = outbox_index_open(table->rel, "message_pkey", AccessShareLock);
	table->slot = table_slot_create(table->rel, NULL);
	table->scan = NULL;
}

void
outbox_messages_close(OutboxMessageTable *table)
{
	if (table->scan)
		index_endscan(table->scan);
	ExecDropSingleTupleTableSlot(table->slot);
	index_close(table->pkey, NoLock);
	table_close(table->rel, NoLock);
}

bool
outbox_messages_find(OutboxMessageTable *table, const pg_uuid_t *id)
{
	ScanKeyData key;

	if (table->scan != NULL && table->scan->xs_snapshot != GetActiveSnapshot())
	{
		index_endscan(table->scan);
		table->scan = NULL;
	}
	if (table->scan == NULL)
		table->scan = outbox_index_beginscan(table->rel, table->pkey, GetActiveSnapshot(), 1);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(id));
	index_rescan(table->scan, &key, 1, NULL, 0);
	return index_getnext_slot(table->scan, ForwardScanDirection, table->slot);
}

bool
outbox_messages_found_in(OutboxMessageTable *table, Snapshot snapshot)
{
	return table_tuple_satisfies_snapshot(table->rel, table->slot, snapshot);
}
