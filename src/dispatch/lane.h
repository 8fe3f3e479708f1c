/*-------------------------------------------------------------------------
 *
 * lane.h
 *		One push handler's own queue and limits inside the dispatcher.
 *
 * Process: the dispatcher.  A lane reads forward: it remembers the last key
 * it read and goes on from there, so what is settled behind it costs
 * nothing.  What appears behind it (a late commit, a requeue) is read as a
 * span of its own, exactly; the position never moves back.
 *
 * Nothing here touches SPI, relations or the network: fetch.c reads,
 * send.c sends, settle.c settles.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_LANE_H
#define OUTBOX_LANE_H

#include "outbox.h"

#include "storage/itemptr.h"

#include "dispatch/handlers.h"
#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "policy/breaker.h"
#include "policy/rate_limit.h"
#include "shared/shmem.h"

#define OUTBOX_MAX_SPANS 16

typedef enum OutboxDeliveryPhase
{
	OUTBOX_PHASE_QUEUED,		/* read, not yet sent */
	OUTBOX_PHASE_SENT,			/* its request is out */
	OUTBOX_PHASE_ANSWERED		/* judged, not yet settled */
} OutboxDeliveryPhase;

/* Where a delivery that has a key stands among those of its key (order.h). */
typedef enum OutboxOrderState
{
	OUTBOX_ORDER_READ,			/* by the running transaction */
	OUTBOX_ORDER_WAITING,		/* for the one before it */
	OUTBOX_ORDER_OUT,			/* in the lane's queue, or sent */
	OUTBOX_ORDER_OK,			/* answered with success, not settled */
	OUTBOX_ORDER_FAILED,		/* answered otherwise, not settled */
	OUTBOX_ORDER_SETTLED,		/* by the running transaction */
	OUTBOX_ORDER_STATES
} OutboxOrderState;

typedef struct OutboxOrder OutboxOrder;

/* A delivery the dispatcher has in memory. */
typedef struct OutboxDelivery
{
	/* identity: the key of the table of deliveries in memory */
	pg_uuid_t	id;
	int32		handler_id;

	OutboxDeliveryPhase phase;
	struct OutboxLane *lane;
	dlist_node	link;			/* lane queue, or the list of outcomes to settle */

	/* the row as it was read: where it was, and the fence of its settlement */
	ItemPointerData tid;
	TimestampTz due_at;
	int32		attempts;
	int32		budget_from;
	int			streak;
	char		code[OUTBOX_CODE_LEN];	/* of the attempt before */

	/* the message, as the request formats want it */
	struct OutboxMessage *message;
	size_t		bytes;			/* what it costs of the lane's and the dispatcher's bounds */

	/* the outcome */
	OutboxVerdict verdict;
	int			http_status;
	char	   *error;			/* NULL: none */
	int64		duration_us;
	TimestampTz finished_at;
	TimestampTz next_due_at;	/* when RETRYING */
	bool		attempted;		/* a request went out, so an attempt is spent */
	bool		has_on_settle;		/* an on_settle function takes part in its settlement: hand it over */
	char	   *response;		/* for that function; NULL: none */
	bool		is_plain;		/* while it waits for settlement: it can go to the settler */
	bool		settle_here;	/* the settler could not settle it */
	TimestampTz settle_after;	/* somebody holds the row: not before this */
	bool		obsolete;		/* the row was no longer what was read */
	bool		with_settler;
	TimestampTz found_due_at;	/* of the row after all this; DT_NOEND: it is settled */

	/* on ordered lanes */
	struct OutboxOrderKey *order_key;	/* NULL: it has no key, or goes freely */
	dlist_node	order_link;
	OutboxOrderState order_state;
	OutboxOrderState order_before;	/* the state before it was SETTLED */
	bool		pinned;		/* those behind it wait until it is settled: somebody holds or has changed its row */
} OutboxDelivery;

/* Keys to be read exactly, behind the lane's position. */
typedef struct OutboxSpan
{
	OutboxQueuePosition at;				/* where reading goes on */
	bool		after;			/* at itself has been read */
	OutboxQueuePosition hi;				/* the last key, included */
	bool		rescan;			/* nobody rang for it: read it in small slices */
	TimestampTz not_before;		/* after the clock stepped back, at can be in the future */
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
	TimestampTz next_due;		/* earliest key ahead that is known to be in the future */
	OutboxSpan	spans[OUTBOX_MAX_SPANS];
	int			nspans;
	TimestampTz rescan_after;	/* the next slice of a rescan may be read then */

	/* what is in memory */
	dlist_head	queue;
	int			nqueued;
	size_t		queued_bytes;
	int			in_flight;		/* requests out */
	int			unsettled;		/* answered, not settled */
	int			handed_over;	/* of these, with the on_settle workers */

	/* how far to read ahead */
	int			target;
	int			sent_since_read;
	TimestampTz last_read;

	/* reasons not to send now */
	TimestampTz hold_until;		/* the receiver asked for time */
	OutboxBreaker breaker;
	OutboxRateLimit rate;

	/* what is to be written into handler_status (handler_status.c) */
	bool		status_listed;
	dlist_node	status_link;
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
extern void outbox_lane_free(OutboxLane *lane);

/* From now on the lane's deliveries that have a key go in order. */
extern void outbox_lane_order(OutboxLane *lane);

/* Call fn for every lane; fn may free the lane it is given. */
extern void outbox_lanes_each(void (*fn) (OutboxLane *lane, void *arg), void *arg);

/* A ring of the doorbell for this lane: note what is ahead and what lies behind. */
extern void outbox_lane_ring(OutboxLane *lane, const OutboxNotice *notice, TimestampTz now);

/* One key is (or will be) due: the dispatcher's own knowledge, such as a retry. */
extern void outbox_lane_expect(OutboxLane *lane, TimestampTz due_at, const pg_uuid_t *id, TimestampTz now);

/* Read everything outstanding once more: from the start (resume) or in slices (rescan). */
extern void outbox_lane_reread(OutboxLane *lane, TimestampTz from);
extern void outbox_lane_rescan(OutboxLane *lane);

/* Strokes for keys from this due time on did not fit into the doorbell: every lane reads them again. */
extern void outbox_lanes_reread(TimestampTz from);

/* True if reading could bring rows to send now. */
extern bool outbox_lane_wants_read(const OutboxLane *lane, TimestampTz now);

/* Called at each look at the lane: notes what has fallen due and sets the lane's timer for what will. */
extern void outbox_lane_watch_clock(OutboxLane *lane, TimestampTz now);

/* When a span may be read. */
extern TimestampTz outbox_lane_span_time(const OutboxLane *lane, const OutboxSpan *span);

/* How many more rows the lane would like to hold. */
extern int	outbox_lane_room(const OutboxLane *lane);

/* Called once per read: sets how far to read ahead from how fast the lane has been sending. */
extern void outbox_lane_adapt_read_ahead(OutboxLane *lane, TimestampTz now);

/* True if the lane may start a request now; sets hold times into wake_at otherwise. */
extern bool outbox_lane_may_send(OutboxLane *lane, TimestampTz now);

/* Scheduling: lanes that have something to look at, and lanes that wait for a time. */
extern void outbox_lane_ready(OutboxLane *lane);
extern OutboxLane *outbox_lane_next_ready(void);
extern bool outbox_lanes_any_ready(void);

/* The lane can send no more until requests end, of whatever lane; and some have. */
extern void outbox_lane_crowded(OutboxLane *lane);
extern void outbox_lanes_have_room(void);
extern void outbox_lane_wake_at(OutboxLane *lane, TimestampTz when);
extern void outbox_lanes_fire_timers(TimestampTz now);

/* When the earliest lane timer fires; DT_NOEND: none. */
extern TimestampTz outbox_lanes_next_timer(void);

/* The table of deliveries in memory, across lanes. */
extern OutboxDelivery *outbox_delivery_find(const pg_uuid_t *id, int32 handler_id);
extern void outbox_delivery_add(OutboxDelivery *delivery);
extern void outbox_delivery_grow(OutboxDelivery *delivery, size_t bytes);
extern void outbox_delivery_free(OutboxDelivery *delivery);
extern int	outbox_deliveries_in_memory(void);
extern size_t outbox_deliveries_bytes(void);

/* Queue a delivery that was read, and take the first one out again. */
extern void outbox_lane_enqueue(OutboxLane *lane, OutboxDelivery *delivery);
extern OutboxDelivery *outbox_lane_dequeue(OutboxLane *lane);

/* Put a delivery that could not be sent back to the front. */
extern void outbox_lane_put_back(OutboxLane *lane, OutboxDelivery *delivery);

/* Take a certain one out of the queue. */
extern void outbox_lane_unqueue(OutboxLane *lane, OutboxDelivery *delivery);

/* Forget the unsent copies of a lane in [lo, hi]; with lo NULL, all of them. */
extern void outbox_lane_forget_queued(OutboxLane *lane, const OutboxQueuePosition *lo, const OutboxQueuePosition *hi);

#endif							/* OUTBOX_LANE_H */
