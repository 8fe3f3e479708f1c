/*-------------------------------------------------------------------------
 *
 * delivery.h
 *		Deliveries: found, locked, leased, settled, without a plan.
 *
 * The one owner of the rows of outbox.delivery and outbox.receipt below SQL.
 * What every process writes of an outcome it writes here: an outstanding
 * delivery is changed in its place, a settled one leaves outbox.delivery and
 * its receipt is put into outbox.receipt, in the same transaction.  Rows are
 * found with index scans of our own, since nothing may depend on what the
 * planner makes of the tables.  No right on them is checked: the right to do
 * what is being done is what counts.
 *
 * Everything opened here belongs to the memory context it is opened in and
 * is closed by an error's abort.  Process: any, in a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TABLE_DELIVERY_H
#define OUTBOX_TABLE_DELIVERY_H

#include "access/tableam.h"
#include "utils/snapshot.h"

#include "table/outstanding.h"
#include "table/row_writer.h"

typedef struct OutboxDeliveryTable
{
	bool		writing;
	Relation	rel;
	Relation	pkey;
	TupleTableSlot *slot;		/* the row last read */
	IndexScanDesc by_id;		/* NULL until used under the present snapshot */
	BlockNumber nblocks;		/* of the table, when it was opened; 0 until asked */
	bool		asked_for_events;	/* the next is known */
	bool		tells_events;	/* what dies is queued for those who take events: event_queue.h */
	bool		has_events;		/* something has been */
	OutboxWriter writer;
} OutboxDeliveryTable;

/* What is known of the row in the slot. */
typedef struct OutboxDeliveryRow
{
	OutboxQueuePosition	key;
	int32		handler_id;
	int32		attempts;
	int32		budget_from;
	int16		state;
	int16		streak;
	int32		min_version;	/* OUTBOX_ANY_VERSION: any */
	text	   *message_key;	/* NULL, or inside the slot */
	TimestampTz end_at;			/* by when it has to have gone out; DT_NOEND: it never expires */
} OutboxDeliveryRow;

/* What an attempt has led to, or what else ends a delivery. */
typedef struct OutboxOutcome
{
	OutboxState state;			/* RETRYING, or a final one */
	int32		attempts;		/* made so far, this one included */
	int32		budget_from;	/* those of them that an earlier budget has paid for */
	int			streak;
	int			http_status;	/* 0: none */
	const char *code;			/* NULL or empty: none */
	const char *error;			/* NULL: none */
	TimestampTz due_at;			/* when RETRYING */
	TimestampTz settled_at;		/* when final */
} OutboxOutcome;

/* Attempts made when one more has been; a count that somebody has set to the end of its range stays there. */
static inline int32
outbox_next_attempt(int32 attempts)
{
	return attempts < PG_INT32_MAX ? attempts + 1 : attempts;
}

extern void outbox_deliveries_open(OutboxDeliveryTable *table, bool writing);

/* Ends scans, closes, and makes what was changed visible to later commands. */
extern void outbox_deliveries_close(OutboxDeliveryTable *table);

/* An index of the table by name, opened. */
extern Relation outbox_deliveries_index(OutboxDeliveryTable *table, const char *name);

/* Find an outstanding delivery by its primary key under the active snapshot. */
extern bool outbox_deliveries_find(OutboxDeliveryTable *table, const pg_uuid_t *id, int32 handler_id);

/* The same, looking first where it was read (an invalid tid: nowhere). */
extern bool outbox_deliveries_find_at(OutboxDeliveryTable *table, const ItemPointerData *tid, const pg_uuid_t *id, int32 handler_id);

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

/*
 * Write an outcome into the delivery in the slot.  locked: this transaction
 * has locked it.  Otherwise nobody is waited for: false, and nothing is
 * written, if somebody has it or has changed it.
 */
extern bool outbox_deliveries_settle(OutboxDeliveryTable *table, const OutboxOutcome *outcome, bool locked);

/*
 * Lease the delivery in the slot until due_at.  What the attempt before left
 * stays, but where that was a lease that has run out: expired says so.
 */
extern bool outbox_deliveries_lease(OutboxDeliveryTable *table, int32 attempts, int32 budget_from, TimestampTz due_at,
									const OutboxOutcome *expired, bool locked);

#endif							/* OUTBOX_TABLE_DELIVERY_H */
