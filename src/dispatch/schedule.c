/*-------------------------------------------------------------------------
 *
 * schedule.c
 *		Which lanes are to be looked at, and when.
 *
 * See schedule.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/pairingheap.h"
#include "utils/timestamp.h"

#include "dispatch/schedule.h"

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
outbox_schedule_init(void)
{
	timers = pairingheap_allocate(compare_timers, NULL);
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

bool
outbox_lanes_any_crowded(void)
{
	return !dlist_is_empty(&crowded_lanes);
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

void
outbox_lane_unschedule(OutboxLane *lane)
{
	stop_timer(lane);
	unlist(lane);
}
