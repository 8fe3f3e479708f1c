/*-------------------------------------------------------------------------
 *
 * apply.h
 *		Settles one delivery together with its handler's on_settle function.
 *
 * One transaction: the function's writes, the delivery's transition, the log
 * of the attempt and the end of the hand-over commit together or not at all.
 * If the function fails, what commits is the attempt's failure.
 *
 * Process: an on_settle worker, outside a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ON_SETTLE_SETTLE_H
#define OUTBOX_ON_SETTLE_SETTLE_H

#include "outbox.h"

typedef enum OutboxOnSettleResult
{
	OUTBOX_ON_SETTLE_DONE,			/* settled; or nothing was left to settle, and the row is gone */
	OUTBOX_ON_SETTLE_GONE,			/* there is no such row: the other worker was faster */
	OUTBOX_ON_SETTLE_ROW_LOCKED,			/* somebody holds the delivery, or a table: later */
	OUTBOX_ON_SETTLE_BUSY			/* the other worker is at it, or runs this handler's function: later */
} OutboxOnSettleResult;

/*
 * Settle the delivery of a row of outbox.on_settle_queue.  With give_up the function is
 * not run any more: it has failed for that reason.  Raises if the database
 * work fails: then nothing has been committed.
 */
extern OutboxOnSettleResult outbox_on_settle_settle(int64 queue_id, const char *give_up);

/*
 * What is to be kept of an error text (common/redaction.h), in a transaction of
 * its own, or NULL.  Raises if there can be no transaction.
 */
extern const char *outbox_on_settle_redact(char *text);

/*
 * Read rows of outbox.on_settle_queue with ids above *after, in their order, and move
 * *after.  Sets *more if there are more than were read at once.  False, and
 * nothing was read, if somebody holds one of the tables: later.
 */
extern bool outbox_on_settle_read(int64 *after, void (*found) (int32 handler_id, int64 queue_id), bool *more);

#endif							/* OUTBOX_ON_SETTLE_SETTLE_H */
