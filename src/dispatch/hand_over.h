/*-------------------------------------------------------------------------
 *
 * hand_over.h
 *		Hands outcomes over to the workers that run on_settle functions, and
 *		says when those are needed.
 *
 * A delivery of a handler with an on_settle function is not settled by the
 * dispatcher.  In the transaction that would settle it, its row is marked as
 * handed over and its outcome goes into outbox.on_settle_queue; from there an on_settle
 * worker takes it.  So neither is an outcome lost nor a request sent again,
 * whoever is killed, and no function can hold up the dispatcher.
 *
 * What is handed over still counts as unsettled of its lane, which stops at
 * a limit; on_settle workers ring for each that is done.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ON_SETTLE_H
#define OUTBOX_ON_SETTLE_H

#include "dispatch/lane.h"
#include "shared/shmem.h"

extern void outbox_on_settle_init(OutboxDatabase *db);

/* Write the outcome of a delivery whose row has been marked.  Must be connected to SPI. */
extern void outbox_on_settle_hand_over(const OutboxDelivery *delivery);

/* That has committed: the lane has one more delivery with the on_settle workers; and when all have been told, wake them. */
extern void outbox_on_settle_handed_over(OutboxLane *lane);
extern void outbox_on_settle_notify(void);

/* How many are with them, of all lanes. */
extern int	outbox_on_settle_outstanding(void);

/* The doorbell says that so many of a lane (NULL: of none that is known) have been settled. */
extern void outbox_on_settle_ended(OutboxLane *lane, int n);

/* Handlers were read: does any have an on_settle function? */
extern void outbox_on_settle_handlers_changed(void);

/*
 * Counts can go wrong when the doorbell overflows or rows are deleted by
 * hand: then they are taken anew, in a transaction with a snapshot.  False
 * if somebody's lock is in the way.
 */
extern void outbox_on_settle_distrust_counts(void);
extern bool outbox_on_settle_recount_is_due(TimestampTz now);
extern TimestampTz outbox_on_settle_recount_next(void);
extern bool outbox_on_settle_recount(TimestampTz now);

/*
 * Have the workers that are needed (crew.h), unless nothing may run in this database; and
 * when to come back if nothing happens before.
 */
extern void outbox_on_settle_attend(TimestampTz now, bool allowed);
extern TimestampTz outbox_on_settle_next(void);

/* Why no function can be run at the moment, in words; NULL: nothing is in the way. */
extern const char *outbox_on_settle_problem(void);

/* The same of the function that redacts error texts: they are withheld meanwhile. */
extern const char *outbox_redaction_problem(void);

#endif							/* OUTBOX_ON_SETTLE_H */
