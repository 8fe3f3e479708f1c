/*-------------------------------------------------------------------------
 *
 * queue.h
 *		The hand-overs that an on_settle worker knows of, a queue for each handler.
 *
 * Handlers take turns, one delivery at a time, so that one with a thousand
 * waiting delays another by one function call only.  Touches neither the
 * database nor shared memory.  Process: an on_settle worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ON_SETTLE_QUEUE_H
#define OUTBOX_ON_SETTLE_QUEUE_H

#include "outbox.h"

#include "lib/ilist.h"

#include "worker/backoff.h"

/* One that waits to be settled. */
typedef struct OutboxHandOver
{
	int32		handler_id;
	int64		queue_id;		/* its row of outbox.on_settle_queue */
	OutboxBackoff backoff;		/* of this one alone */
	dlist_node	link;
} OutboxHandOver;

typedef struct OutboxOnSettleQueue
{
	int32		handler_id;		/* key of the table of queues */
	TimestampTz not_before;		/* leave it alone until then */
	dlist_head	waiting;
	bool		listed;			/* among those that have something waiting */
	dlist_node	link;
} OutboxOnSettleQueue;

extern void outbox_on_settle_queues_init(MemoryContext context);

/* A hand-over that has been read. */
extern void outbox_on_settle_queue_add(int32 handler_id, int64 queue_id);

/*
 * The queue whose turn it is: not one of busy_handler, not one that is to be
 * left alone.  NULL for none; then *until is when that may change.
 */
extern OutboxOnSettleQueue *outbox_on_settle_queue_next(int32 busy_handler, TimestampTz now, TimestampTz *until);

/*
 * Take the first hand-over of that queue off, which goes behind the other
 * queues.  It is done with afterwards, or kept aside until its pause is over.
 */
extern OutboxHandOver *outbox_on_settle_queue_take(OutboxOnSettleQueue *queue);
extern void outbox_on_settle_queue_done(OutboxHandOver *hand_over);
extern void outbox_on_settle_queue_keep(OutboxHandOver *hand_over);

/* True if nothing waits anywhere. */
extern bool outbox_on_settle_queues_are_empty(void);

/* Forget every hand-over. */
extern void outbox_on_settle_queues_clear(void);

#endif							/* OUTBOX_ON_SETTLE_QUEUE_H */
