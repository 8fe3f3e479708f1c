/*-------------------------------------------------------------------------
 *
 * lane.c
 *		One push handler's own queue and limits inside the dispatcher.
 *
 * See lane.h.  The memory of a lane is bounded by how far it reads ahead,
 * never by its backlog.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "dispatch/handler_status.h"
#include "dispatch/lane.h"
#include "dispatch/order.h"

/* A lane reads ahead what it sends in about this time, and at least its concurrency. */
#define READ_AHEAD_US 25000
#define MIN_READ_AHEAD 16
#define MAX_READ_AHEAD 1000

/* On a lane that sends batches, at most so many unless one batch takes more. */
#define MAX_QUEUED_IN_BATCHES 5000

/* Answers that wait for settlement count against their lane up to this many. */
#define MAX_UNSETTLED 2000

/* On a lane whose handler has an on_settle function, up to this many: its calls are what takes time. */
#define MAX_HANDED_OVER 200

/* All unsent copies together. */
#define MAX_QUEUED_BYTES (32 * 1024 * 1024)

typedef struct DeliveryKey
{
	pg_uuid_t	id;
	int32		handler_id;
} DeliveryKey;

typedef struct DeliveryEntry
{
	DeliveryKey key;
	OutboxDelivery *delivery;
} DeliveryEntry;

typedef struct LaneEntry
{
	int32		handler_id;
	OutboxLane *lane;
} LaneEntry;

static MemoryContext lanes_context = NULL;
static HTAB *lanes = NULL;
static HTAB *deliveries = NULL;
static size_t deliveries_bytes = 0;

static dlist_head ready_lanes = DLIST_STATIC_INIT(ready_lanes);
static dlist_head crowded_lanes = DLIST_STATIC_INIT(crowded_lanes);
static pairingheap *timers = NULL;

/* The heap keeps the largest first, so the earliest time must compare as largest. */
static int
compare_timers(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	TimestampTz ta = pairingheap_const_container(OutboxLane, timer, a)->wake_at;
	TimestampTz tb = pairingheap_const_container(OutboxLane, timer, b)->wake_at;

	return ta < tb ? 1 : (ta > tb ? -1 : 0);
}

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

	ctl.keysize = sizeof(DeliveryKey);
	ctl.entrysize = sizeof(DeliveryEntry);
	deliveries = hash_create("outbox deliveries", 1024, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	timers = pairingheap_allocate(compare_timers, NULL);
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
	lane->position.due_at = DT_NOBEGIN;
	lane->more = true;
	lane->next_due = DT_NOEND;
	lane->target = MIN_READ_AHEAD;
	dlist_init(&lane->queue);
	outbox_lane_ready(lane);
	return lane;
}

void
outbox_lane_order(OutboxLane *lane)
{
	outbox_order_create(lane, lanes_context);
}

static void
stop_timer(OutboxLane *lane)
{
	if (lane->in_timers)
		pairingheap_remove(timers, &lane->timer);
	lane->in_timers = false;
}

/* Take the lane off the list it is in. */
static void
unlist(OutboxLane *lane)
{
	if (lane->is_ready || lane->is_crowded)
		dlist_delete(&lane->ready_link);
	lane->is_ready = false;
	lane->is_crowded = false;
}

void
outbox_lane_free(OutboxLane *lane)
{
	Assert(lane->in_flight == 0 && lane->unsettled == 0);
	outbox_lane_forget_queued(lane, NULL, NULL);
	outbox_order_free(lane);
	stop_timer(lane);
	outbox_handler_status_forget(lane);
	unlist(lane);
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

/*
 * Note a span behind the position.  When there is no room for another one,
 * it is merged with the last: reading too much is only slower, because rows
 * that are in memory or settled are passed over.
 */
static void
add_span(OutboxLane *lane, const OutboxQueuePosition *lo, const OutboxQueuePosition *hi, bool rescan)
{
	OutboxSpan *span;

	if (lane->nspans < OUTBOX_MAX_SPANS)
	{
		lane->spans[lane->nspans++] = (OutboxSpan) {*lo, false, *hi, rescan, DT_NOBEGIN};
		return;
	}
	span = &lane->spans[OUTBOX_MAX_SPANS - 1];
	if (outbox_position_cmp(lo, &span->at) < 0)
	{
		span->at = *lo;
		span->after = false;
	}
	if (outbox_position_cmp(hi, &span->hi) > 0)
		span->hi = *hi;
	span->rescan = span->rescan && rescan;
	span->not_before = DT_NOBEGIN;
}

void
outbox_lane_ring(OutboxLane *lane, const OutboxNotice *notice, TimestampTz now)
{
	if (notice->kind == OUTBOX_NOTICE_REREAD)
	{
		outbox_lane_forget_queued(lane, &notice->lo, &notice->hi);
		if (lane->order)
			outbox_order_changed(lane->order, notice);
	}

	if (outbox_position_cmp(&notice->hi, &lane->position) > 0)
	{
		if (notice->lo.due_at <= now)
			lane->more = true;
		else
			lane->next_due = Min(lane->next_due, notice->lo.due_at);
	}
	if (outbox_position_cmp(&notice->lo, &lane->position) <= 0)
	{
		const OutboxQueuePosition *hi = outbox_position_cmp(&notice->hi, &lane->position) < 0 ? &notice->hi : &lane->position;

		add_span(lane, &notice->lo, hi, false);
	}
	outbox_lane_ready(lane);
}

void
outbox_lane_expect(OutboxLane *lane, TimestampTz due_at, const pg_uuid_t *id, TimestampTz now)
{
	OutboxQueuePosition key = {due_at, *id};
	OutboxNotice notice = {lane->handler_id, OUTBOX_NOTICE_DUE, key, key};

	outbox_lane_ring(lane, &notice, now);
}

void
outbox_lane_reread(OutboxLane *lane, TimestampTz from)
{
	OutboxQueuePosition lo = {from};

	lane->more = true;
	if (outbox_position_cmp(&lo, &lane->position) <= 0)
		add_span(lane, &lo, &lane->position, false);
	outbox_lane_ready(lane);
}

static void
rewind_one(OutboxLane *lane, void *arg)
{
	OutboxQueuePosition lo = {*(TimestampTz *) arg};
	OutboxQueuePosition hi = {DT_NOEND};
	OutboxNotice notice = {lane->handler_id, OUTBOX_NOTICE_REREAD, lo, hi};

	/* It may be that copies in memory are stale. */
	outbox_lane_forget_queued(lane, &lo, &hi);
	outbox_lane_reread(lane, lo.due_at);
	if (lane->order)
	{
		/* What was lost may have been that the head of a key has gone. */
		outbox_order_changed(lane->order, &notice);
		outbox_lane_rescan(lane);
	}
}

void
outbox_lanes_reread(TimestampTz from)
{
	outbox_lanes_each(rewind_one, &from);
}

void
outbox_lane_rescan(OutboxLane *lane)
{
	OutboxQueuePosition lo = {DT_NOBEGIN};

	if (lane->order)
		outbox_order_forget_blocked(lane->order);
	outbox_lane_ready(lane);
	/* A rescan that has not ended yet need not begin again. */
	for (int i = 0; i < lane->nspans; i++)
	{
		if (lane->spans[i].rescan)
			return;
	}
	lane->more = true;
	if (outbox_position_cmp(&lo, &lane->position) < 0)
		add_span(lane, &lo, &lane->position, true);
}

/* How many deliveries the lane holds when it has read as far ahead as it should. */
static int
capacity(const OutboxLane *lane)
{
	int64		batches = (int64) lane->handler->concurrency * lane->handler->batch_size;

	return Max(lane->target, Min(batches, Max(lane->handler->batch_size, MAX_QUEUED_IN_BATCHES)));
}

TimestampTz
outbox_lane_span_time(const OutboxLane *lane, const OutboxSpan *span)
{
	return span->rescan ? Max(span->not_before, lane->rescan_after) : span->not_before;
}

/* True if one of the lane's spans may be read now. */
static bool
has_readable_span(const OutboxLane *lane, TimestampTz now)
{
	for (int i = 0; i < lane->nspans; i++)
	{
		if (outbox_lane_span_time(lane, &lane->spans[i]) <= now)
			return true;
	}
	return false;
}

void
outbox_lane_watch_clock(OutboxLane *lane, TimestampTz now)
{
	/* A time that has passed must not be waited for again: the lane may be unable to read just now. */
	if (lane->next_due <= now)
	{
		lane->more = true;
		lane->next_due = DT_NOEND;
	}
	outbox_lane_wake_at(lane, lane->next_due);
	for (int i = 0; i < lane->nspans; i++)
	{
		TimestampTz when = outbox_lane_span_time(lane, &lane->spans[i]);

		if (when > now)
			outbox_lane_wake_at(lane, when);
	}
}

bool
outbox_lane_wants_read(const OutboxLane *lane, TimestampTz now)
{
	if (lane->paused || lane->handler == NULL)
		return false;
	if (!lane->more && lane->next_due > now && !has_readable_span(lane, now) &&
		!outbox_order_has_wanted(lane->order))
		return false;
	/* A batch that waits to become full can only become so by reading. */
	return lane->nqueued <= Max(capacity(lane) / 2, lane->handler->batch_size - 1) &&
		outbox_lane_room(lane) > 0;
}

static bool
has_too_many_unsettled(const OutboxLane *lane)
{
	return lane->unsettled >= (lane->handler->on_settle ? MAX_HANDED_OVER : MAX_UNSETTLED);
}

int
outbox_lane_room(const OutboxLane *lane)
{
	if (has_too_many_unsettled(lane))
		return 0;
	/* Every lane may go on, but where there are thousands of them none takes much. */
	if (deliveries_bytes > MAX_QUEUED_BYTES)
		return lane->nqueued > 0 ? 0 : 1;
	return capacity(lane) - lane->nqueued;
}

/* A batch that is not full waits for more messages, but not for longer than its handler says. */
static TimestampTz
batch_deadline(const OutboxLane *lane)
{
	const OutboxDelivery *oldest;

	if (lane->handler->batch_wait == 0 || lane->nqueued >= lane->handler->batch_size)
		return DT_NOBEGIN;
	oldest = dlist_container(OutboxDelivery, link, lane->queue.head.next);
	return oldest->due_at + lane->handler->batch_wait * 1000;
}

/* The earliest time that everything that can hold a lane back agrees to; in the past if it may send now. */
static TimestampTz
time_to_send(OutboxLane *lane, TimestampTz now)
{
	TimestampTz when = Max(lane->hold_until, batch_deadline(lane));

	when = Max(when, outbox_rate_limit_next(&lane->rate, now));
	if (lane->breaker.state == OUTBOX_BREAKER_OPEN)
		when = Max(when, outbox_breaker_next(&lane->breaker));
	return when;
}

bool
outbox_lane_may_send(OutboxLane *lane, TimestampTz now)
{
	TimestampTz not_before;

	if (lane->paused || lane->handler == NULL || lane->nqueued == 0)
		return false;
	if (lane->in_flight >= lane->handler->concurrency || has_too_many_unsettled(lane))
		return false;
	not_before = time_to_send(lane, now);
	if (not_before > now)
	{
		outbox_lane_wake_at(lane, not_before);
		return false;
	}
	return outbox_breaker_allows(&lane->breaker, now);
}

void
outbox_lane_ready(OutboxLane *lane)
{
	if (lane->is_ready)
		return;
	unlist(lane);
	lane->is_ready = true;
	dlist_push_tail(&ready_lanes, &lane->ready_link);
}

void
outbox_lane_crowded(OutboxLane *lane)
{
	if (lane->is_ready || lane->is_crowded)
		return;
	lane->is_crowded = true;
	dlist_push_tail(&crowded_lanes, &lane->ready_link);
}

void
outbox_lanes_have_room(void)
{
	while (!dlist_is_empty(&crowded_lanes))
		outbox_lane_ready(dlist_head_element(OutboxLane, ready_link, &crowded_lanes));
}

OutboxLane *
outbox_lane_next_ready(void)
{
	OutboxLane *lane;

	if (dlist_is_empty(&ready_lanes))
		return NULL;
	lane = dlist_head_element(OutboxLane, ready_link, &ready_lanes);
	unlist(lane);
	return lane;
}

bool
outbox_lanes_any_ready(void)
{
	return !dlist_is_empty(&ready_lanes);
}

void
outbox_lane_wake_at(OutboxLane *lane, TimestampTz when)
{
	if (when == DT_NOEND || (lane->in_timers && lane->wake_at <= when))
		return;
	stop_timer(lane);
	lane->wake_at = when;
	pairingheap_add(timers, &lane->timer);
	lane->in_timers = true;
}

void
outbox_lanes_fire_timers(TimestampTz now)
{
	while (!pairingheap_is_empty(timers))
	{
		OutboxLane *lane = pairingheap_container(OutboxLane, timer, pairingheap_first(timers));

		if (lane->wake_at > now)
			break;
		stop_timer(lane);
		outbox_lane_ready(lane);
	}
}

TimestampTz
outbox_lanes_next_timer(void)
{
	if (pairingheap_is_empty(timers))
		return DT_NOEND;
	return pairingheap_container(OutboxLane, timer, pairingheap_first(timers))->wake_at;
}

static DeliveryKey
delivery_key(const pg_uuid_t *id, int32 handler_id)
{
	DeliveryKey key;

	memset(&key, 0, sizeof(key));
	key.id = *id;
	key.handler_id = handler_id;
	return key;
}

OutboxDelivery *
outbox_delivery_find(const pg_uuid_t *id, int32 handler_id)
{
	DeliveryKey key = delivery_key(id, handler_id);
	DeliveryEntry *entry = hash_search(deliveries, &key, HASH_FIND, NULL);

	return entry ? entry->delivery : NULL;
}

void
outbox_delivery_add(OutboxDelivery *delivery)
{
	DeliveryKey key = delivery_key(&delivery->id, delivery->handler_id);
	DeliveryEntry *entry = hash_search(deliveries, &key, HASH_ENTER, NULL);

	entry->delivery = delivery;
	deliveries_bytes += delivery->bytes;
}

void
outbox_delivery_grow(OutboxDelivery *delivery, size_t bytes)
{
	delivery->bytes += bytes;
	deliveries_bytes += bytes;
}

void
outbox_delivery_free(OutboxDelivery *delivery)
{
	DeliveryKey key = delivery_key(&delivery->id, delivery->handler_id);

	outbox_order_remove(delivery);
	hash_search(deliveries, &key, HASH_REMOVE, NULL);
	deliveries_bytes -= delivery->bytes;
	if (delivery->message)
		pfree(delivery->message);
	if (delivery->error)
		pfree(delivery->error);
	if (delivery->response)
		pfree(delivery->response);
	pfree(delivery);
}

int
outbox_deliveries_in_memory(void)
{
	return (int) hash_get_num_entries(deliveries);
}

size_t
outbox_deliveries_bytes(void)
{
	return deliveries_bytes;
}

static void
count_queued(OutboxLane *lane, OutboxDelivery *delivery)
{
	delivery->phase = OUTBOX_PHASE_QUEUED;
	lane->nqueued++;
	lane->queued_bytes += delivery->bytes;
}

void
outbox_lane_enqueue(OutboxLane *lane, OutboxDelivery *delivery)
{
	dlist_push_tail(&lane->queue, &delivery->link);
	count_queued(lane, delivery);
}

void
outbox_lane_put_back(OutboxLane *lane, OutboxDelivery *delivery)
{
	if (outbox_order_taken_back(delivery))
		return;
	dlist_push_head(&lane->queue, &delivery->link);
	count_queued(lane, delivery);
}

void
outbox_lane_unqueue(OutboxLane *lane, OutboxDelivery *delivery)
{
	dlist_delete(&delivery->link);
	lane->nqueued--;
	lane->queued_bytes -= delivery->bytes;
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

void
outbox_lane_forget_queued(OutboxLane *lane, const OutboxQueuePosition *lo, const OutboxQueuePosition *hi)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &lane->queue)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);
		OutboxQueuePosition key = {delivery->due_at, delivery->id};

		if (lo != NULL && (outbox_position_cmp(&key, lo) < 0 || outbox_position_cmp(&key, hi) > 0))
			continue;
		outbox_lane_unqueue(lane, delivery);
		outbox_delivery_free(delivery);
	}
	if (lo == NULL && lane->order)
		outbox_order_forget_waiting(lane->order);
}

void
outbox_lane_adapt_read_ahead(OutboxLane *lane, TimestampTz now)
{
	int64		elapsed = Max(1, now - lane->last_read);
	int64		target = (int64) lane->sent_since_read * READ_AHEAD_US / elapsed;

	/* A queue that ran dry says nothing of how fast the lane could have been. */
	if (lane->nqueued == 0 && lane->sent_since_read > 0)
		target = Max(target, Min(elapsed, READ_AHEAD_US) < READ_AHEAD_US ? lane->target * 2 : lane->target);
	lane->target = Max(Min(target, MAX_READ_AHEAD), MIN_READ_AHEAD);
	lane->last_read = now;
	lane->sent_since_read = 0;
}
