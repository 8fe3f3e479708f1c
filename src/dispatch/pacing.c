/*-------------------------------------------------------------------------
 *
 * pacing.c
 *		Whether a lane may send now.
 *
 * See pacing.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "dispatch/delivery.h"
#include "dispatch/handler_status.h"
#include "dispatch/pacing.h"
#include "dispatch/reading.h"
#include "dispatch/schedule.h"
#include "shared/errand.h"

/* A batch that is not full waits for more messages, but not for longer than its handler says. */
static TimestampTz
batch_deadline(const OutboxLane *lane)
{
	const OutboxDelivery *oldest;

	if (lane->handler->batch_wait == 0 || lane->nqueued >= lane->handler->batch_size || outbox_errand_runs())
		return DT_NOBEGIN;
	oldest = dlist_container(OutboxDelivery, link, lane->queue.head.next);
	return oldest->due_since + lane->handler->batch_wait * 1000;
}

TimestampTz
outbox_lane_held_until(OutboxLane *lane, TimestampTz now)
{
	TimestampTz when = Max(lane->hold_until, lane->unsent_until);

	if (outbox_errand_skips())
		return lane->unsent_until;
	when = Max(when, outbox_rate_limit_next(&lane->rate, now));
	when = Max(when, outbox_throttle_next(&lane->throttle, now));
	if (lane->breaker.state == OUTBOX_BREAKER_OPEN)
		when = Max(when, outbox_breaker_next(&lane->breaker));
	return when;
}

/* Could the lane send now, but for a batch that is not full before that time? */
static bool
is_free(OutboxLane *lane, TimestampTz now, TimestampTz full)
{
	TimestampTz not_before;

	if (lane->in_flight >= lane->handler->concurrency || outbox_lane_is_saturated(lane))
		return false;
	not_before = Max(outbox_lane_held_until(lane, now), full);
	if (not_before > now)
	{
		outbox_lane_wake_at(lane, not_before);
		return false;
	}
	return outbox_breaker_allows(&lane->breaker, now);
}

bool
outbox_lane_is_free(OutboxLane *lane, TimestampTz now)
{
	return !lane->paused && lane->handler != NULL && is_free(lane, now, DT_NOBEGIN);
}

bool
outbox_lane_may_send(OutboxLane *lane, TimestampTz now)
{
	return !lane->paused && lane->handler != NULL && lane->nqueued > 0 &&
		is_free(lane, now, batch_deadline(lane));
}

void
outbox_lane_renew(OutboxLane *lane)
{
	memset(&lane->breaker, 0, sizeof(lane->breaker));
	memset(&lane->throttle, 0, sizeof(lane->throttle));
	memset(&lane->failing, 0, sizeof(lane->failing));
	lane->hold_until = 0;
	lane->reads_after = 0;
	/* Something of before may be on its way into the row. */
	outbox_handler_status_changed(lane);
}

void
outbox_lane_hurry(OutboxLane *lane, TimestampTz now)
{
	lane->hold_until = 0;
	lane->reads_after = 0;
	if (lane->breaker.state == OUTBOX_BREAKER_OPEN)
		lane->breaker.until = Min(lane->breaker.until, now);
	outbox_lane_forget_unsent(lane, NULL, NULL);
	outbox_lane_reread(lane, DT_NOBEGIN);
	outbox_handler_status_changed(lane);
}
