/*-------------------------------------------------------------------------
 *
 * receipt.h
 *		What a dispatcher and its settler tell each other.
 *
 * Under load most outcomes are plain successes, and to settle one is to
 * write its receipt.  The dispatcher sends them to the settler, a process of
 * its own, in messages through a pair of queues in a segment of dynamic
 * shared memory that the dispatcher has created.  Everything here lives in
 * those messages: no pointers.
 *
 * The settler says hello when it is ready.  Then each OutboxReceipts is
 * answered by one OutboxReceiptFates, in the same order, once the
 * transaction that settled it has committed or failed.
 *
 * Processes: the dispatcher and its settler.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RECEIPT_H
#define OUTBOX_RECEIPT_H

#include "outbox.h"

#include "storage/itemptr.h"

/* Receipts in one message. */
#define OUTBOX_MAX_RECEIPTS 500

/* Messages that may be unanswered; the queues have room for so many. */
#define OUTBOX_MAX_RECEIPT_MESSAGES 8

/* Where the queues are in the segment. */
#define OUTBOX_RECEIPT_MAGIC 0x0b0c5e77
#define OUTBOX_RECEIPT_KEY_TO_SETTLER 0
#define OUTBOX_RECEIPT_KEY_TO_DISPATCHER 1

/* A delivery that has been delivered: the row that was read. */
typedef struct OutboxReceipt
{
	pg_uuid_t	id;
	int32		handler_id;
	int32		attempts;
	int32		budget_from;
	int16		http_status;
	ItemPointerData tid;
} OutboxReceipt;

typedef struct OutboxReceipts
{
	int32		n;
	OutboxReceipt receipts[OUTBOX_MAX_RECEIPTS];
} OutboxReceipts;

#define outbox_receipts_size(n) (offsetof(OutboxReceipts, receipts) + (n) * sizeof(OutboxReceipt))

/* Is the receipt written?  One that is not goes back to the dispatcher, which settles it as any other outcome. */
typedef struct OutboxReceiptFates
{
	int32		n;				/* 0: hello */
	bool		written[OUTBOX_MAX_RECEIPTS];
} OutboxReceiptFates;

#define outbox_receipt_fates_size(n) (offsetof(OutboxReceiptFates, written) + (n) * sizeof(bool))

#endif							/* OUTBOX_RECEIPT_H */
