/*-------------------------------------------------------------------------
 *
 * delivery.h
 *		Rows of outbox.delivery, read and changed without a plan.
 *
 * Consumers' statements must not depend on what the planner makes of a
 * table of settled rows, so rows are found with index scans of our own,
 * locked and replaced the way the executor would do it.  No right on the
 * table is checked: the right to consume the handler is what counts.
 *
 * Everything opened here belongs to the memory context it is opened in and
 * is closed by an error's abort.  Process: any backend, in a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TABLE_DELIVERY_H
#define OUTBOX_TABLE_DELIVERY_H

#include "access/tableam.h"
#include "nodes/execnodes.h"
#include "utils/snapshot.h"

#include "table/outstanding.h"

/* The columns of outbox.delivery, as the install script defines them. */
enum
{
	Anum_delivery_message_id = 1,
	Anum_delivery_due_at,
	Anum_delivery_settled_at,
	Anum_delivery_handler_id,
	Anum_delivery_attempts,
	Anum_delivery_budget_from,
	Anum_delivery_state,
	Anum_delivery_streak,
	Anum_delivery_http_status,
	Anum_delivery_min_version,
	Anum_delivery_key,
	Anum_delivery_code,
	Anum_delivery_error
};

typedef struct OutboxDeliveryTable
{
	bool		writing;
	Relation	rel;
	Relation	pkey;
	TupleTableSlot *slot;		/* the row last read */
	IndexScanDesc by_id;		/* NULL until used under the present snapshot */

	/* writing only */
	EState	   *estate;
	ResultRelInfo *result;
	TupleTableSlot *changed;
} OutboxDeliveryTable;

/* What is known of the row in the slot. */
typedef struct OutboxDeliveryRow
{
	OutboxQueuePosition key;
	int32		handler_id;
	int32		attempts;
	int32		budget_from;
	int16		state;
	int16		streak;
	int32		min_version;	/* OUTBOX_ANY_VERSION: any */
	text	   *message_key;	/* NULL, or inside the slot */
} OutboxDeliveryRow;

extern void outbox_deliveries_open(OutboxDeliveryTable *table, bool writing);

/* Ends scans, closes, and makes what was changed visible to later commands. */
extern void outbox_deliveries_close(OutboxDeliveryTable *table);

/* An index of the table by name, opened. */
extern Relation outbox_deliveries_index(OutboxDeliveryTable *table, const char *name);

/* Find a row by its primary key under the active snapshot. */
extern bool outbox_deliveries_find(OutboxDeliveryTable *table, const pg_uuid_t *id, int32 handler_id);

/* The active snapshot has changed: later finds use the new one. */
extern void outbox_deliveries_new_snapshot(OutboxDeliveryTable *table);

extern void outbox_deliveries_read(TupleTableSlot *slot, OutboxDeliveryRow *row);

/* The text of a column of the row in the slot; NULL for NULL. */
extern char *outbox_deliveries_text(TupleTableSlot *slot, AttrNumber column);

/*
 * Which running transaction holds the row in the slot, as far as can be told
 * without trying: InvalidTransactionId if nobody seems to.  Several holders
 * at once are reported as BootstrapTransactionId, which nobody is.
 */
extern TransactionId outbox_deliveries_holder(TupleTableSlot *slot);

/*
 * Lock the row in the slot.  With LockWaitBlock waits for others and then
 * has the newest version of the row in the slot.
 */
extern TM_Result outbox_deliveries_lock(OutboxDeliveryTable *table, LockWaitPolicy wait_policy);

/* Change the locked row: begin, set columns, store.  Only columns that are set differ. */
extern void outbox_deliveries_begin_change(OutboxDeliveryTable *table);
extern void outbox_deliveries_set(OutboxDeliveryTable *table, AttrNumber column, Datum value);
extern void outbox_deliveries_set_null(OutboxDeliveryTable *table, AttrNumber column);
extern void outbox_deliveries_set_text(OutboxDeliveryTable *table, AttrNumber column, const char *value);
extern void outbox_deliveries_store_change(OutboxDeliveryTable *table);

#endif							/* OUTBOX_TABLE_DELIVERY_H */
