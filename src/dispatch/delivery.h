/*-------------------------------------------------------------------------
 *
 * delivery.h
 *		The deliveries that the dispatcher has in memory.
 *
 * Process: the dispatcher.  A delivery comes into memory when it is read
 * (take.h), waits in its lane's queue, is sent, answered and settled, and
 * leaves.  Each of the modules it passes through has its part of the struct.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DISPATCH_DELIVERY_H
#define OUTBOX_DISPATCH_DELIVERY_H

#include "outbox.h"

#include "lib/ilist.h"
#include "storage/itemptr.h"

#include "policy/outcome.h"
#include "worker/backoff.h"

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
	TimestampTz due_at;			/* by the wall clock, as everything of a row */
	TimestampTz due_since;		/* by the steady one */
	TimestampTz end_at;			/* by when it has to have gone out, by the wall clock; DT_NOEND: it never expires */
	TimestampTz waits_since;	/* by the wall clock: when it was committed, or was due if that was later */
	int32		attempts;
	int32		budget_from;
	int			streak;
	char		code[OUTBOX_CODE_LEN];	/* of the attempt before */

	/* the message, as the request formats want it */
	struct OutboxMessage *message;	/* NULL once it has been answered */
	size_t		memory;			/* what it takes, a large payload apart (memory.h) */
	bool		awaits_payload; /* which is large, and not there yet (payload.h) */
	struct OutboxPayload *payload;	/* NULL: it is not large, or was not asked for */
	dlist_node	payload_link;	/* among those that share it */

	/* the outcome */
	OutboxVerdict verdict;
	int			http_status;
	char	   *error;			/* NULL: none */
	bool		error_is_raw;	/* it says what came from elsewhere */
	uint64		ticket;			/* of that, while it is being redacted; 0: not yet (redact.h) */
	int64		duration_us;
	TimestampTz finished_at;	/* by the wall clock */
	TimestampTz answered_at;	/* the same by the steady one */
	TimestampTz next_due_at;	/* when RETRYING */
	bool		attempted;		/* a request went out, so an attempt is spent */
	bool		has_on_settle;		/* an on_settle function takes part in its settlement: hand it over */
	char	   *response;		/* for that function; NULL: none */
	char	   *response_headers;	/* for the log, a JSON object; NULL: none */
	bool		is_plain;		/* while it waits for settlement: it can go to the settler */
	bool		settle_here;	/* the settler could not settle it */
	TimestampTz settle_after;	/* somebody holds the row: not before this */
	OutboxBackoff trouble;		/* it could not be written: when to try again, alone */
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

/* Prepare, once per process. */
extern void outbox_deliveries_init(MemoryContext context);

/* The table of deliveries in memory, across lanes, by message and handler. */
extern OutboxDelivery *outbox_delivery_find(const pg_uuid_t *id, int32 handler_id);
extern void outbox_delivery_add(OutboxDelivery *delivery);

/* Take it out of the table and give its memory back.  One that may have a key leaves by outbox_order_discard(). */
extern void outbox_delivery_free(OutboxDelivery *delivery);

/* It takes so much more memory. */
extern void outbox_delivery_grow(OutboxDelivery *delivery, size_t bytes);

/* It will not be sent: give back what only sending needs. */
extern void outbox_delivery_drop_message(OutboxDelivery *delivery);

#endif							/* OUTBOX_DISPATCH_DELIVERY_H */
