/*-------------------------------------------------------------------------
 *
 * settle_row.h
 *		Writes one outcome of a push delivery into its row.
 *
 * A row is changed only if it is still what was read: outstanding, same
 * attempt, not requeued since (the fence).  Which outcomes, when, and what is
 * done about those that cannot be written is settle.h's and settler.h's.
 *
 * Processes: the dispatcher and the settler, each in a transaction of its own
 * with an active snapshot.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SETTLE_ROW_H
#define OUTBOX_SETTLE_ROW_H

#include "dispatch/delivery.h"
#include "dispatch/receipt.h"

typedef enum OutboxSettleResult
{
	OUTBOX_SETTLED,
	OUTBOX_SETTLE_LOCKED,		/* somebody has locked or just changed the row */
	OUTBOX_SETTLE_OBSOLETE		/* the row is no longer what was read */
} OutboxSettleResult;

/* Open the tables for the transaction's rows; false if a lock on one is in the way, and nothing is open. */
extern bool outbox_settle_rows_begin(void);
extern void outbox_settle_rows_end(void);

/* Write the delivery's outcome, settled at now (wall time), or hand it over. */
extern OutboxSettleResult outbox_settle_row(const OutboxDelivery *delivery, TimestampTz now);

/* Of an obsolete one: when its row is due, if it is outstanding all the same (requeued); else DT_NOEND. */
extern TimestampTz outbox_settle_row_due_at(const OutboxDelivery *delivery);

/* Process: the settler.  Write receipts, and say of each whether it was written. */
extern void outbox_settle_receipts(const OutboxReceipt *receipts, int n, bool *written, TimestampTz now);

#endif							/* OUTBOX_SETTLE_ROW_H */
