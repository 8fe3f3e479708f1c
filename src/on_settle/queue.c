/*-------------------------------------------------------------------------
 *
 * queue.c
 *		The hand-overs that an on_settle worker knows of, a queue for each handler.
 *
 * See on_settle/queue.h.  One that has to wait for a time is kept aside and
 * joins its queue's end when the time has come.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "on_settle/queue.h"

/* The other worker may be done with its handler before that, but wakes nobody if it was quick. */
#define BUSY_RETRY_US (100 * 1000)

static MemoryContext hand_overs_context = NULL;
static HTAB *queues = NULL;
static dlist_head listed = DLIST_STATIC_INIT(listed);
static dlist_head aside = DLIST_STATIC_INIT(aside);

void
outbox_on_settle_queues_init(MemoryContext context)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(int32);
	ctl.entrysize = sizeof(OutboxOnSettleQueue);
	ctl.hcxt = context;
	queues = hash_create("outbox on_settle queues", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	hand_overs_context = AllocSetContextCreate(context, "outbox hand-overs", ALLOCSET_DEFAULT_SIZES);
}

static void
append(OutboxHandOver *hand_over)
{
	bool		found;
	OutboxOnSettleQueue *queue = hash_search(queues, &hand_over->handler_id, HASH_ENTER, &found);

	if (!found)
	{
		queue->not_before = DT_NOBEGIN;
		queue->listed = false;
		dlist_init(&queue->waiting);
	}
	dlist_push_tail(&queue->waiting, &hand_over->link);
	if (!queue->listed)
		dlist_push_tail(&listed, &queue->link);
	queue->listed = true;
}

void
outbox_on_settle_queue_add(int32 handler_id, int64 queue_id)
{
	OutboxHandOver *hand_over = MemoryContextAllocZero(hand_overs_context, sizeof(OutboxHandOver));

	hand_over->handler_id = handler_id;
	hand_over->queue_id = queue_id;
	append(hand_over);
}

void
outbox_on_settle_queue_keep(OutboxHandOver *hand_over)
{
	dlist_push_tail(&aside, &hand_over->link);
}

void
outbox_on_settle_queue_done(OutboxHandOver *hand_over)
{
	pfree(hand_over);
}

/* Those whose time has come join their queues; returns when the next one's does. */
static TimestampTz
take_from_aside(TimestampTz now)
{
	TimestampTz until = DT_NOEND;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &aside)
	{
		OutboxHandOver *hand_over = dlist_container(OutboxHandOver, link, iter.cur);

		if (outbox_backoff_is_over(&hand_over->backoff, now))
		{
			dlist_delete(iter.cur);
			append(hand_over);
		}
		else
			until = Min(until, outbox_backoff_until(&hand_over->backoff));
	}
	return until;
}

OutboxOnSettleQueue *
outbox_on_settle_queue_next(int32 busy_handler, TimestampTz now, TimestampTz *until)
{
	dlist_iter	iter;

	*until = take_from_aside(now);
	dlist_foreach(iter, &listed)
	{
		OutboxOnSettleQueue *queue = dlist_container(OutboxOnSettleQueue, link, iter.cur);

		if (queue->not_before > now)
			*until = Min(*until, queue->not_before);
		else if (queue->handler_id != busy_handler)
			return queue;
		else
			*until = Min(*until, now + BUSY_RETRY_US);
	}
	return NULL;
}

OutboxHandOver *
outbox_on_settle_queue_take(OutboxOnSettleQueue *queue)
{
	OutboxHandOver *first = dlist_container(OutboxHandOver, link, dlist_pop_head_node(&queue->waiting));

	dlist_delete(&queue->link);
	queue->listed = !dlist_is_empty(&queue->waiting);
	if (queue->listed)
		dlist_push_tail(&listed, &queue->link);
	return first;
}

bool
outbox_on_settle_queues_are_empty(void)
{
	return dlist_is_empty(&listed) && dlist_is_empty(&aside);
}

void
outbox_on_settle_queues_clear(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &listed)
	{
		OutboxOnSettleQueue *queue = dlist_container(OutboxOnSettleQueue, link, iter.cur);

		dlist_delete(iter.cur);
		queue->listed = false;
		dlist_init(&queue->waiting);
	}
	dlist_init(&aside);
	MemoryContextReset(hand_overs_context);
}
