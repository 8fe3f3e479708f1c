/*-------------------------------------------------------------------------
 *
 * handler_status.h
 *		What the dispatcher itself writes into outbox.handler_status: circuit
 *		breakers, rates that receivers were found to bear, how much fails, for
 *		how long a receiver wants to be left alone, and pauses that a receiver or
 *		the breaker asked for.
 *
 * Process: the dispatcher.  Changes are noted in the lane and written with
 * the next database work; until then they already hold in memory.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HANDLER_STATUS_H
#define OUTBOX_HANDLER_STATUS_H

#include "dispatch/lane.h"

/* The lane's breaker, what its rate is cut to or until when it is held has changed. */
extern void outbox_handler_status_changed(OutboxLane *lane);

/*
 * An attempt has ended.  How many fail is written some seconds after the
 * first failure, and from then on when it has changed, until nothing fails.
 */
extern void outbox_handler_status_attempted(OutboxLane *lane, bool failed, TimestampTz now);

/* Look whether lanes whose attempts fail have news of that. */
extern void outbox_handler_status_look(TimestampTz now);

/* Stop the lane at once and pause its handler: by is "receiver" or "breaker". */
extern void outbox_lane_pause(OutboxLane *lane, const char *by, const char *reason);

/* When something is to be written: DT_NOEND for nothing, DT_NOBEGIN for now. */
extern TimestampTz outbox_handler_status_next(void);

/*
 * Write what is due, in a transaction; then say whether that has committed.
 * Never waits: what somebody else holds stays due a little later.
 */
extern void outbox_handler_status_write(TimestampTz now);
extern void outbox_handler_status_finish(void);
extern void outbox_handler_status_abort(void);

/* The lane is about to be freed. */
extern void outbox_handler_status_forget(OutboxLane *lane);

#endif							/* OUTBOX_HANDLER_STATUS_H */
