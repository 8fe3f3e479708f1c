/*-------------------------------------------------------------------------
 *
 * send.h
 *		Turns queued deliveries into requests, and answers into outcomes.
 *
 * Process: the dispatcher, outside any transaction.  Everything that
 * reaches the transport is called with all signals blocked: the main loop
 * blocks them once per iteration.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SEND_H
#define OUTBOX_SEND_H

#include "dispatch/lane.h"
#include "http/transport.h"

/* Load the HTTP library and start it.  Raises if that fails. */
extern void outbox_send_init(MemoryContext context);

/* Tell the transport that settings have changed. */
extern void outbox_send_configure(void);

/* Start as many requests of the lane as it may have out. */
extern void outbox_send_lane(OutboxLane *lane, TimestampTz now);

/* Drive the sockets and judge whatever has been answered.  Returns how many requests ended. */
extern int	outbox_send_drive(bool after_long_absence);

/* For the main loop's wait: a descriptor, a time in ms (-1: none), and how many are out. */
extern int	outbox_send_fd(void);
extern long outbox_send_timeout(void);
extern int	outbox_send_in_flight(void);

/* How many deliveries are out: more than requests, where these are batches. */
extern int	outbox_send_deliveries_out(void);

/* A handler configuration is no longer current: free it when its last request has ended. */
extern void outbox_send_retire(OutboxHandler *handler);

#endif							/* OUTBOX_SEND_H */
