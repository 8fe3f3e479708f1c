/*-------------------------------------------------------------------------
 *
 * schedule.h
 *		Which lanes are to be looked at, and when.
 *
 * Process: the dispatcher.  A lane is ready (something may be done for it
 * now), crowded (it could send, but too many requests of all lanes are out)
 * or neither, and may wait for a time besides.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SCHEDULE_H
#define OUTBOX_SCHEDULE_H

#include "dispatch/lane.h"

/* Prepare, once per process. */
extern void outbox_schedule_init(void);

/* Have the lane looked at; and the next one that wants to be, NULL for none. */
extern void outbox_lane_ready(OutboxLane *lane);
extern OutboxLane *outbox_lane_next_ready(void);
extern bool outbox_lanes_any_ready(void);

/* The lane can send, or read, no more until requests end or memory is given back, of whatever lane; and some have. */
extern void outbox_lane_crowded(OutboxLane *lane);
extern void outbox_lanes_have_room(void);
extern bool outbox_lanes_any_crowded(void);

/* Have the lane looked at when that time has come, if not before; and those whose time has. */
extern void outbox_lane_wake_at(OutboxLane *lane, TimestampTz when);
extern void outbox_lanes_fire_timers(TimestampTz now);

/* When the earliest timer fires; DT_NOEND: none. */
extern TimestampTz outbox_lanes_next_timer(void);

/* The lane is about to be freed. */
extern void outbox_lane_unschedule(OutboxLane *lane);

#endif							/* OUTBOX_SCHEDULE_H */
