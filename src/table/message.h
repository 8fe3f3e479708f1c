/*-------------------------------------------------------------------------
 *
 * message.h
 *		Messages found by their id.
 *
 * Process: any, in a transaction with an active snapshot.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TABLE_MESSAGE_H
#define OUTBOX_TABLE_MESSAGE_H

#include "access/genam.h"
#include "executor/tuptable.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

#include "table/columns.h"

typedef struct OutboxMessageTable
{
	Relation	rel;
	Relation	pkey;
	IndexScanDesc scan;			/* NULL until used under the present snapshot */
	TupleTableSlot *slot;		/* the message last found */
} OutboxMessageTable;

/* Open for reading; waits for a lock if somebody has one that conflicts. */
extern void outbox_messages_open(OutboxMessageTable *table);
extern void outbox_messages_close(OutboxMessageTable *table);

/* Find a message under the active snapshot. */
extern bool outbox_messages_find(OutboxMessageTable *table, const pg_uuid_t *id);

/* Does another snapshot, too, show the message that was found? */
extern bool outbox_messages_found_in(OutboxMessageTable *table, Snapshot snapshot);

#endif							/* OUTBOX_TABLE_MESSAGE_H */
