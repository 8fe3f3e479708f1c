/*-------------------------------------------------------------------------
 *
 * lane.h
 *		One push handler's own queue and limits inside the dispatcher.
 *
 * Process: the dispatcher.  The lanes, and what waits in each one's queue.
 * reading.h says what is to be read for a lane, pacing.h whether it may send,
 * schedule.h when it is looked at.
 *
 * Nothing here touches SPI, relations or the network: fetch.c reads,
 * send.c sends, settle.c settles.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_LANE_H
#define OUTBOX_LANE_H

#include "outbox.h"

#include "lib/ilist.h"
#include "lib/pairingheap.h"

#include "dispatch/delivery.h"
#include "dispatch/handlers.h"
#include "policy/breaker.h"
#include "policy/failing.h"
#include "policy/rate_limit.h"
#include "policy/throttle.h"
#include "shared/counters.h"

#define OUTBOX_MAX_SPANS 16

typedef struct OutboxOrder OutboxOrder;

/* What memory is taken for (memory.h). */
typedef enum OutboxMemory
{
	OUTBOX_MEMORY_DELIVERIES,
	OUTBOX_MEMORY_PAYLOADS,
	OUTBOX_MEMORIES
} OutboxMemory;

/* Keys to be read exactly, behind the lane's position. */
typedef struct OutboxSpan
{
	OutboxQueuePosition at;				/* where reading goes on */
	bool		after;			/* at itself has been read */
	OutboxQueuePosition hi;				/* the last key, included */
	bool		rescan;			/* nobody rang for it: read it in small slices */
	TimestampTz not_before;		/* by the wall clock: what follows is not due before */
} OutboxSpan;

typedef struct OutboxLane
{
	int32		handler_id;		/* key of the table of lanes */
	OutboxHandler *handler;
	bool		paused;
	bool		seen;			/* by the last reload: others are dropped */
	OutboxOrder *order;			/* NULL: deliveries go freely */

	/* the position, and what is known to lie ahead of it */
	OutboxQueuePosition position;
	bool		more;			/* rows ahead may be due */
	TimestampTz next_due;		/* earliest key ahead that is known to be in the future, by the wall clock */
	OutboxSpan	spans[OUTBOX_MAX_SPANS];
	int			nspans;
	TimestampTz rescan_after;	/* the next slice of a rescan may be read then */
	TimestampTz rung_at;		/* by the wall clock: when the first commit of what is still to be read was; 0: nobody knows */

	/* what is in memory */
	dlist_head	queue;
	int			nqueued;
	dlist_head	large;			/* those that wait for their payload, apart (payload.h) */
	int			nlarge;
	int			nloaded;		/* of both, those whose payload is there or on its way */
	size_t		memory[OUTBOX_MEMORIES];
	int			in_flight;		/* requests out */
	int			unsettled;		/* answered, not settled */
	int			handed_over;	/* of these, with the on_settle workers */

	/* how far to read ahead */
	int			target;
	int			sent_since_read;
	TimestampTz last_read;
	TimestampTz reads_after;	/* memory was short, and it may not send before */

	/* reasons not to send now */
	TimestampTz hold_until;		/* the receiver asked for time */
	TimestampTz unsent_until;	/* nothing could leave this machine just now */
	OutboxBreaker breaker;
	OutboxRateLimit rate;
	OutboxThrottle throttle;

	OutboxCounted counted;

	/* how it does, and how often it was given a fresh start by an operator */
	OutboxFailing failing;
	int			renewals;

	/* what is to be written into handler_status, and what of failing is there (handler_status.c) */
	bool		status_listed;
	dlist_node	status_link;
	bool		watched;
	dlist_node	watch_link;
	TimestampTz watch_at;
	int			looks;			/* since it was written */
	TimestampTz shown_since;
	int			shown_attempts;
	int			shown_failures;
	char		pause_by[16];	/* "": nobody asked for a pause */
	char		pause_reason[OUTBOX_BREAKER_REASON_LEN];

	/* scheduling */
	bool		is_ready;
	bool		is_crowded;		/* cannot send because too many requests of all lanes are out */
	dlist_node	ready_link;		/* of either */
	bool		in_timers;
	TimestampTz wake_at;
	pairingheap_node timer;
} OutboxLane;

/* The table of lanes, by handler id. */
extern void outbox_lanes_init(MemoryContext context);
extern OutboxLane *outbox_lane_find(int32 handler_id);
extern OutboxLane *outbox_lane_create(int32 handler_id);

/* Nothing of it may be in memory, out or scheduled any more. */
extern void outbox_lane_free(OutboxLane *lane);

/* Call fn for every lane; fn may free the lane it is given. */
extern void outbox_lanes_each(void (*fn) (OutboxLane *lane, void *arg), void *arg);

/* True if so many answers wait for settlement that the lane sends and reads no more. */
extern bool outbox_lane_is_saturated(const OutboxLane *lane);

/*
 * Queue a delivery that was read, and take the first one out again; NULL if
 * there is none that could be sent.
 */
extern void outbox_lane_enqueue(OutboxLane *lane, OutboxDelivery *delivery);
extern OutboxDelivery *outbox_lane_dequeue(OutboxLane *lane);

/* Put a delivery that could not be sent back to the front. */
extern void outbox_lane_put_back(OutboxLane *lane, OutboxDelivery *delivery);

/* Take a certain one out of the queue. */
extern void outbox_lane_unqueue(OutboxLane *lane, OutboxDelivery *delivery);

#endif							/* OUTBOX_LANE_H */
