/*-------------------------------------------------------------------------
 *
 * settler.h
 *		The dispatcher's side of the settler: a second process that writes
 *		receipts while the dispatcher drives its sockets.
 *
 * Process: the dispatcher.  Under load (and with a second processor) a
 * settler is started, and plain successes go to it instead of the
 * dispatcher's own settlement; everything else is settled as ever.  What is
 * with the settler still counts as unsettled of its lane and stays in
 * memory.  The settlement's fence makes giving something to both harmless,
 * so whatever goes wrong with a settler, what it had is simply taken back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SETTLER_H
#define OUTBOX_SETTLER_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* Once, in the dispatcher: the settler ends with it, whatever way it ends. */
extern void outbox_settler_init(void);

/*
 * Once per iteration, outside of transactions: take what the settler has
 * answered, give it what waits, start one or let it go.  Nothing is given
 * while allowed is false; out is how many deliveries are out.  Raises only for want of memory.
 */
extern void outbox_settler_attend(TimestampTz now, bool allowed, int out);

/* How many outcomes are with the settler. */
extern int	outbox_settler_outstanding(void);

/* When outbox_settler_attend() has something to do although nobody rings; DT_NOEND: never. */
extern TimestampTz outbox_settler_next(void);

/* The dispatcher is about to leave: start no other one, and have this one end; what it leaves undone is taken back. */
extern void outbox_settler_leave(void);

/* True once no settler of this dispatcher is running. */
extern bool outbox_settler_is_gone(void);

#endif							/* OUTBOX_SETTLER_H */
