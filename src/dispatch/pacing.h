/*-------------------------------------------------------------------------
 *
 * pacing.h
 *		Whether a lane may send now.
 *
 * Process: the dispatcher.  What can hold a lane back: a pause, its
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

#endif							/* OUTBOX_PACING_H */
