/*-------------------------------------------------------------------------
 *
 * call.h
 *		Runs a handler's on_settle function with the rights of its owner.
 *
 * The function is somebody's code in a process that belongs to a superuser.
 * It runs as the role that owns it, never as a superuser, inside a
 * security-restricted operation: it cannot change roles, create temporary
 * objects or leave anything behind in the session.  Settings it changes are
 * put back, deferrable constraints are checked at once, and timers end it
 * when it takes too long.
 *
 * Process: an on_settle worker, in a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ON_SETTLE_CALL_H
#define OUTBOX_ON_SETTLE_CALL_H

#include "outbox.h"

#define OUTBOX_SETTLEMENT_COLUMNS 13

typedef struct OutboxOnSettleCall
{
	const char *function;		/* as outbox.handler.on_settle says it */

	/* the argument: the columns of type outbox.settlement */
	Datum		values[OUTBOX_SETTLEMENT_COLUMNS];
	bool		nulls[OUTBOX_SETTLEMENT_COLUMNS];
} OutboxOnSettleCall;

/* Once per process. */
extern void outbox_on_settle_call_init(void);

/*
 * Run the function in a subtransaction.  Returns NULL if it succeeded: what
 * it wrote is now part of the transaction.  Otherwise nothing of it is left,
 * and the result says why, in the current memory context.  Must be connected
 * to SPI.
 */
extern char *outbox_on_settle_call(const OutboxOnSettleCall *call);

/* Outside a transaction: take back what a function may have left in the session. */
extern void outbox_on_settle_clean_up(void);

#endif							/* OUTBOX_ON_SETTLE_CALL_H */
