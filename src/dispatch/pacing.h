/*-------------------------------------------------------------------------
 *
 * pacing.h
 *		Whether a lane may send now.
 *
 * Process: the dispatcher.  What can hold a lane back, and what an operator
 * lifts of it: a pause, its
 * concurrency, answers that wait for settlement, a batch that is not full,
 * its rate limit, a receiver that asked for time or refuses what comes too
 * fast, its circuit breaker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_PACING_H
#define OUTBOX_PACING_H

#include "dispatch/lane.h"

/* True if the lane may start a request now; sets its timer if a time is all that it waits for. */
extern bool outbox_lane_may_send(OutboxLane *lane, TimestampTz now);

/* An operator wants the lane to start as if nothing was known of its receiver. */
extern void outbox_lane_renew(OutboxLane *lane);

/*
 * An operator wants a delivery of the lane to be sent at once: nothing is
 * held, and a breaker that is open probes now.  Its position is the first, so
 * that what was queued before is read again behind it.
 */
extern void outbox_lane_hurry(OutboxLane *lane, TimestampTz now);

/* The same, whether there is anything to send or not. */
extern bool outbox_lane_is_free(OutboxLane *lane, TimestampTz now);

/* The earliest time that everything that can hold a lane back agrees to; in the past if none does. */
extern TimestampTz outbox_lane_held_until(OutboxLane *lane, TimestampTz now);

#endif							/* OUTBOX_PACING_H */
