/*-------------------------------------------------------------------------
 *
 * reading.h
 *		What is to be read for a lane: where, when and how much.
 *
 * Process: the dispatcher.  A lane reads forward: it remembers the last key
 * it read and goes on from there, so what is settled behind it costs
 * nothing.  What appears behind it (a late commit, a requeue) is read as a
 * span of its own, exactly; the position never moves back.
 *
 * Nothing here touches the database: fetch.c reads.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_READING_H
#define OUTBOX_READING_H

#include "dispatch/lane.h"
#include "shared/shmem.h"

/* The doorbell has something for this lane: note what is ahead and what lies behind. */
extern void outbox_lane_ring(OutboxLane *lane, const OutboxNotice *notice, TimestampTz now);

/* One key is (or will be) due: the dispatcher's own knowledge, such as a retry. */
extern void outbox_lane_expect(OutboxLane *lane, TimestampTz due_at, const pg_uuid_t *id, TimestampTz now);

/* Read everything outstanding once more: from the start (resume) or in slices (rescan). */
extern void outbox_lane_reread(OutboxLane *lane, TimestampTz from);
extern void outbox_lane_rescan(OutboxLane *lane);

/* Notices of keys from this due time on did not fit into the doorbell: every lane reads them again. */
extern void outbox_lanes_reread(TimestampTz from);

/* Forget the unsent copies of a lane in [lo, hi]; with lo NULL, all of them. */
extern void outbox_lane_forget_unsent(OutboxLane *lane, const OutboxQueuePosition *lo, const OutboxQueuePosition *hi);

/* True if reading could bring rows to send now. */
extern bool outbox_lane_wants_read(const OutboxLane *lane, TimestampTz now);

/* Called at each look at the lane: notes what has fallen due and sets the lane's timer for what will. */
extern void outbox_lane_watch_clock(OutboxLane *lane, TimestampTz now);

/* When a span may be read. */
extern TimestampTz outbox_lane_span_time(const OutboxLane *lane, const OutboxSpan *span);

/* How many more rows the lane would like to hold. */
extern int	outbox_lane_room(const OutboxLane *lane);

/*
 * Memory is short: forget what the lane may not send within a while.  It reads
 * that again when it may.
 */
extern void outbox_lane_give_back(OutboxLane *lane, TimestampTz now);

/* Called once per read: sets how far to read ahead from how fast the lane has been sending. */
extern void outbox_lane_adapt_read_ahead(OutboxLane *lane, TimestampTz now);

#endif							/* OUTBOX_READING_H */
