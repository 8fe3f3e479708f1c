/*-------------------------------------------------------------------------
 *
 * lane.c
 *		One push handler's own queue and limits inside the dispatcher.
 *
 * See lane.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "dispatch/delivery.h"
#include "dispatch/lane.h"

/* Answers that wait for settlement count against their lane up to this many. */
#define MAX_UNSETTLED 2000

/* On a lane whose handler has an on_settle function, up to this many: its calls are what takes time. */
#define MAX_HANDED_OVER 200

typedef struct LaneEntry
{
	int32		handler_id;
	OutboxLane *lane;
} LaneEntry;

static MemoryContext lanes_context = NULL;
static HTAB *lanes = NULL;

void
outbox_lanes_init(MemoryContext context)
{
	HASHCTL		ctl;

	lanes_context = context;
	memset(&ctl, 0, sizeof(ctl));
	ctl.hcxt = context;
	ctl.keysize = sizeof(int32);
	ctl.entrysize = sizeof(LaneEntry);
	lanes = hash_create("outbox lanes", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

OutboxLane *
outbox_lane_find(int32 handler_id)
{
	LaneEntry  *entry = hash_search(lanes, &handler_id, HASH_FIND, NULL);

	return entry ? entry->lane : NULL;
}

OutboxLane *
outbox_lane_create(int32 handler_id)
{
	OutboxLane *lane = MemoryContextAllocZero(lanes_context, sizeof(OutboxLane));
	LaneEntry  *entry = hash_search(lanes, &handler_id, HASH_ENTER, NULL);

	entry->lane = lane;
	lane->handler_id = handler_id;
	lane->counted.handler_id = handler_id;
	lane->position.due_at = DT_NOBEGIN;
	lane->more = true;
	lane->next_due = DT_NOEND;
	dlist_init(&lane->queue);
	dlist_init(&lane->large);
	return lane;
}

void
outbox_lane_free(OutboxLane *lane)
{
	Assert(lane->in_flight == 0 && lane->unsettled == 0 && lane->nqueued == 0 && lane->nlarge == 0);
	hash_search(lanes, &lane->handler_id, HASH_REMOVE, NULL);
	pfree(lane);
}

void
outbox_lanes_each(void (*fn) (OutboxLane *lane, void *arg), void *arg)
{
	HASH_SEQ_STATUS status;
	LaneEntry  *entry;

	/* dynahash lets the entry just returned be deleted during the walk. */
	hash_seq_init(&status, lanes);
	while ((entry = hash_seq_search(&status)) != NULL)
		fn(entry->lane, arg);
}

bool
outbox_lane_is_saturated(const OutboxLane *lane)
{
	return lane->unsettled >= (lane->handler->on_settle ? MAX_HANDED_OVER : MAX_UNSETTLED);
}

static void
count_queued(OutboxLane *lane, const OutboxDelivery *delivery, int n)
{
	if (delivery->awaits_payload)
		lane->nlarge += n;
	else
		lane->nqueued += n;
	if (delivery->payload != NULL)
		lane->nloaded += n;
}

void
outbox_lane_enqueue(OutboxLane *lane, OutboxDelivery *delivery)
{
	delivery->phase = OUTBOX_PHASE_QUEUED;
	dlist_push_tail(delivery->awaits_payload ? &lane->large : &lane->queue, &delivery->link);
	count_queued(lane, delivery, 1);
}

void
outbox_lane_put_back(OutboxLane *lane, OutboxDelivery *delivery)
{
	delivery->phase = OUTBOX_PHASE_QUEUED;
	dlist_push_head(delivery->awaits_payload ? &lane->large : &lane->queue, &delivery->link);
	count_queued(lane, delivery, 1);
}

void
outbox_lane_unqueue(OutboxLane *lane, OutboxDelivery *delivery)
{
	dlist_delete(&delivery->link);
	count_queued(lane, delivery, -1);
}

OutboxDelivery *
outbox_lane_dequeue(OutboxLane *lane)
{
	OutboxDelivery *delivery;

	if (lane->nqueued == 0)
		return NULL;
	delivery = dlist_head_element(OutboxDelivery, link, &lane->queue);
	outbox_lane_unqueue(lane, delivery);
	lane->sent_since_read++;
	return delivery;
}
