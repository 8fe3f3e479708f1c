/*-------------------------------------------------------------------------
 *
 * key_order.h
 *		On ordered handlers: which delivery of a message key may go next.
 *
 * It is the leased one if there is one (it may go on once its lease has run
 * out), else the outstanding one with the smallest id; none at all if the
 * handler blocks on dead letters and one with a smaller id is dead.
 *
 * A claim that takes a delivery of a key holds a lock on (handler, key) until
 * its transaction ends, and looks again under a snapshot taken after it has
 * the lock.  So of two claims the second sees the lease of the first, and
 * never are two of one key leased, in whichever order messages commit.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_KEY_ORDER_H
#define OUTBOX_KEY_ORDER_H

#include "consume/pull_handler.h"
#include "consume/watermark.h"
#include "table/dead_key.h"
#include "table/delivery.h"

#define OUTBOX_HEAD_CACHE 64

/* What was found of a key under the walk's snapshot. */
typedef struct OutboxCachedHead
{
	uint32		hash;
	int			len;			/* of the key; -1: free */
	char	   *key;
	bool		exists;
	pg_uuid_t	id;
} OutboxCachedHead;

typedef struct OutboxKeyOrder
{
	const OutboxPullHandler *handler;
	OutboxDeliveryTable *table;
	const OutboxClaimStart *start;	/* for raising floors */
	Relation	keyed;
	Relation	leased;
	OutboxDeadKeys dead;		/* where those bar their key */
	IndexScanDesc keyed_scan;	/* under the walk's snapshot; NULL until used */
	IndexScanDesc leased_scan;
	TupleTableSlot *slot;		/* the head last found */
	OutboxCachedHead *cache;
} OutboxKeyOrder;

extern void outbox_key_order_open(OutboxKeyOrder *order, const OutboxPullHandler *handler,
								  OutboxDeliveryTable *table, const OutboxClaimStart *start);
extern void outbox_key_order_close(OutboxKeyOrder *order);

/* The active snapshot has changed: what was found before counts no longer. */
extern void outbox_key_order_new_snapshot(OutboxKeyOrder *order);

/* The delivery that may go next, in order->slot.  False if there is none. */
extern bool outbox_key_head(OutboxKeyOrder *order, const text *key);

/* Is this the id of the delivery that may go next?  Cheap for keys asked for before. */
extern bool outbox_key_is_head(OutboxKeyOrder *order, const text *key, const pg_uuid_t *id);

/*
 * Take the lock on the key, without waiting.  False if somebody else has it.
 * acquired: it was not ours before.
 */
extern bool outbox_key_lock(const OutboxPullHandler *handler, const text *key, bool *acquired);
extern void outbox_key_unlock(const OutboxPullHandler *handler, const text *key);

/* With the lock held: is it still the head, as of now? */
extern bool outbox_key_is_head_now(OutboxKeyOrder *order, const text *key, const pg_uuid_t *id);

/* How many keys one transaction should lock: its share of the server's lock table. */
extern int	outbox_key_lock_limit(void);

#endif							/* OUTBOX_KEY_ORDER_H */
