/*-------------------------------------------------------------------------
 *
 * call_off.h
 *		Cancelling deliveries that have not gone out, without a plan.
 *
 * What operators cancel they cancel in SQL; this is for what calls deliveries
 * off by itself: a message that another one has replaced, one that has
 * expired.  Nobody who has locked a row is waited for.  Who has to hear of it
 * hears at commit, the next of an ordered key included.
 *
 * Process: any, in a transaction that may write, with an active snapshot.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_CALL_OFF_H
#define OUTBOX_CALL_OFF_H

#include "nodes/pg_list.h"

#include "table/delivery.h"

/* Why. */
typedef struct OutboxCallOff
{
	const char *code;
	const char *error;			/* NULL: nothing more is to be said */

	/* Keys of ordered handlers that may go on; of the memory context that was current. */
	List	   *keys;
} OutboxCallOff;

/* Cancel the delivery in the table's slot.  False if somebody has it or has changed it. */
extern bool outbox_call_off(OutboxDeliveryTable *table, OutboxCallOff *call_off);

/* All are cancelled, and the table is closed: tell of those that may go now, under the latest snapshot. */
extern void outbox_call_off_end(OutboxCallOff *call_off);

#endif							/* OUTBOX_CALL_OFF_H */
