/*-------------------------------------------------------------------------
 *
 * reading.c
 *		What is to be read for a lane: where, when and how much.
 *
 * See reading.h.  The memory of a lane is bounded by how far it reads ahead,
 * never by its backlog.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "dispatch/delivery.h"
#include "dispatch/order.h"
#include "dispatch/pacing.h"
#include "dispatch/payload.h"
#include "dispatch/reading.h"
#include "dispatch/schedule.h"
#include "worker/clock.h"

/* A lane reads ahead what it sends in about this time, and at least its concurrency. */
#define READ_AHEAD_US 25000
#define MIN_READ_AHEAD 16
#define MAX_READ_AHEAD 1000

/* On a lane that sends batches, at most so many unless one batch takes more. */
#define MAX_QUEUED_IN_BATCHES 5000

/* What may be sent within so long is not given back when memory is short. */
#define GIVE_BACK_US (1 * USECS_PER_SEC)

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

/* The lowest and the highest of a list, and of what they are already. */
static void
stretch(dlist_head *list, OutboxQueuePosition *lo, OutboxQueuePosition *hi)
{
	dlist_iter	iter;

	dlist_foreach(iter, list)
	{
		const OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);
		OutboxQueuePosition at = {delivery->due_at, delivery->id};

		if (outbox_position_cmp(&at, lo) < 0)
			*lo = at;
		if (outbox_position_cmp(&at, hi) > 0)
			*hi = at;
	}
}

void
outbox_lane_give_back(OutboxLane *lane, TimestampTz now)
{
	OutboxQueuePosition lo = {DT_NOEND};
	OutboxQueuePosition hi = {DT_NOBEGIN};
	TimestampTz until;

	if (lane->handler == NULL || lane->nqueued + lane->nlarge + outbox_order_waiting(lane->order) == 0)
		return;
	until = outbox_lane_held_until(lane, now);
	if (until < now + GIVE_BACK_US)
		return;
	stretch(&lane->queue, &lo, &hi);
	stretch(&lane->large, &lo, &hi);
	outbox_lane_forget_unsent(lane, NULL, NULL);
	if (outbox_position_cmp(&lo, &hi) <= 0)
		add_span(lane, &lo, &hi, false);
	lane->reads_after = until;
	outbox_lane_wake_at(lane, until);
}

static void
forget_unsent(OutboxLane *lane, dlist_head *list, const OutboxQueuePosition *lo, const OutboxQueuePosition *hi)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, list)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);
		OutboxQueuePosition key = {delivery->due_at, delivery->id};

		if (lo != NULL && (outbox_position_cmp(&key, lo) < 0 || outbox_position_cmp(&key, hi) > 0))
			continue;
		outbox_lane_unqueue(lane, delivery);
		outbox_order_discard(delivery);
	}
}

void
outbox_lane_forget_unsent(OutboxLane *lane, const OutboxQueuePosition *lo, const OutboxQueuePosition *hi)
{
	forget_unsent(lane, &lane->queue, lo, hi);
	forget_unsent(lane, &lane->large, lo, hi);
	if (lo == NULL && lane->order)
		outbox_order_forget_waiting(lane->order);
	if (lane->nlarge == 0)
		outbox_payloads_let_others_go(lane);
}

void
outbox_lane_ring(OutboxLane *lane, const OutboxNotice *notice, TimestampTz now)
{
	if (notice->kind == OUTBOX_NOTICE_REREAD)
	{
		outbox_lane_forget_unsent(lane, &notice->lo, &notice->hi);
		if (lane->order)
			outbox_order_changed(lane->order, notice);
	}
	if (notice->rung_at != 0 && (lane->rung_at == 0 || notice->rung_at < lane->rung_at))
		lane->rung_at = notice->rung_at;

	if (outbox_position_cmp(&notice->hi, &lane->position) > 0)
	{
		if (notice->lo.due_at <= outbox_to_wall(now))
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
reread_one(OutboxLane *lane, void *arg)
{
	OutboxQueuePosition lo = {*(TimestampTz *) arg};
	OutboxQueuePosition hi = {DT_NOEND};
	OutboxNotice notice = {lane->handler_id, OUTBOX_NOTICE_REREAD, lo, hi};

	/* It may be that copies in memory are stale. */
	outbox_lane_forget_unsent(lane, &lo, &hi);
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
	outbox_lanes_each(reread_one, &from);
}

void
outbox_lane_rescan(OutboxLane *lane)
{
	OutboxQueuePosition lo = {DT_NOBEGIN};

	if (lane->order)
		outbox_order_forget_blocked(lane->order);
	outbox_lane_ready(lane);
	for (int i = 0; i < lane->nspans; i++)
	{
		OutboxSpan *span = &lane->spans[i];

		if (!span->rescan)
			continue;
		/* One that has not ended yet need not begin again, unless it only waits for what is to come. */
		if (span->not_before != DT_NOBEGIN)
			*span = (OutboxSpan) {lo, false, lane->position, true, DT_NOBEGIN};
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
	TimestampTz not_before = outbox_to_steady(span->not_before);

	return span->rescan ? Max(not_before, lane->rescan_after) : not_before;
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
	if (lane->next_due <= outbox_to_wall(now))
	{
		lane->more = true;
		lane->next_due = DT_NOEND;
	}
	outbox_lane_wake_at(lane, outbox_to_steady(lane->next_due));
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
	if (lane->paused || lane->handler == NULL || lane->reads_after > now)
		return false;
	if (!lane->more && lane->next_due > outbox_to_wall(now) && !has_readable_span(lane, now) &&
		!outbox_order_has_wanted(lane->order))
		return false;
	/* A batch that waits to become full can only become so by reading. */
	return lane->nqueued + lane->nlarge <= Max(capacity(lane) / 2, lane->handler->batch_size - 1) &&
		outbox_lane_room(lane) > 0;
}

int
outbox_lane_room(const OutboxLane *lane)
{
	return outbox_lane_is_saturated(lane) ? 0 : capacity(lane) - lane->nqueued - lane->nlarge;
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
