/*-------------------------------------------------------------------------
 *
 * take.h
 *		Takes deliveries into memory, with their messages.
 *
 * Process: the dispatcher, inside a transaction that reads (fetch.h).  What
 * is taken becomes sendable only when that has committed and all of it is
 * durable.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TAKE_H
#define OUTBOX_TAKE_H

#include "executor/tuptable.h"
#include "utils/relcache.h"

#include "dispatch/lane.h"

/* How much one look at a lane may still read. */
typedef struct OutboxReadBounds
{
	int			rows;
	int			entries;
	int64		bytes;
} OutboxReadBounds;

/* Prepare, once per process. */
extern void outbox_take_init(MemoryContext context);

/*
 * Take the visible row of a delivery that is due, with its message; order_key
 * is NULL for one that goes freely.
 */
extern void outbox_take(OutboxLane *lane, const OutboxQueuePosition *at, TupleTableSlot *slot,
						struct OutboxOrderKey *order_key, OutboxReadBounds *bounds);

/*
 * The transaction has committed and what it read is durable: hand it to its
 * lanes, or to settlement what cannot be sent.  Never raises.
 */
extern void outbox_take_finish(void);

/*
 * The transaction has failed: forget what was taken.  If one particular
 * delivery could not be read, it is returned, not queued, else NULL.
 */
extern OutboxDelivery *outbox_take_abort(void);

#endif							/* OUTBOX_TAKE_H */
