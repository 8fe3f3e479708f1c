/*-------------------------------------------------------------------------
 *
 * take.c
 *		Takes deliveries into memory, with their messages.
 *
 * See take.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/tuptable.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "dispatch/durable.h"
#include "dispatch/message_reader.h"
#include "dispatch/order.h"
#include "dispatch/schedule.h"
#include "dispatch/settle.h"
#include "dispatch/take.h"
#include "table/columns.h"
#include "worker/clock.h"

static MemoryContext deliveries_context = NULL;

/* By the running transaction; and the one whose message is being read. */
static dlist_head taken = DLIST_STATIC_INIT(taken);
static OutboxDelivery *reading = NULL;

void
outbox_take_init(MemoryContext context)
{
	deliveries_context = context;
}

/* The delivery in slot, without its message, in the deliveries' context and in their table. */
static OutboxDelivery *
build(OutboxLane *lane, const OutboxQueuePosition *at, TupleTableSlot *slot)
{
	OutboxDelivery *delivery = MemoryContextAllocZero(deliveries_context, sizeof(OutboxDelivery));
	bool		isnull;
	Datum		value;

	delivery->id = at->id;
	delivery->handler_id = lane->handler_id;
	delivery->lane = lane;
	delivery->tid = slot->tts_tid;
	delivery->due_at = at->due_at;
	delivery->due_since = Min(outbox_to_steady(at->due_at), outbox_steady_time());
	delivery->attempts = DatumGetInt32(slot_getattr(slot, Anum_delivery_attempts, &isnull));
	delivery->budget_from = DatumGetInt32(slot_getattr(slot, Anum_delivery_budget_from, &isnull));
	delivery->streak = DatumGetInt16(slot_getattr(slot, Anum_delivery_streak, &isnull));
	value = slot_getattr(slot, Anum_delivery_code, &isnull);
	if (!isnull)
		text_to_cstring_buffer(DatumGetTextPP(value), delivery->code, sizeof(delivery->code));
	value = slot_getattr(slot, Anum_delivery_expires_at, &isnull);
	delivery->end_at = isnull ? DT_NOEND : DatumGetTimestampTz(value);
	/* What is read was committed no earlier than the first commit that was told of and is not read yet. */
	delivery->waits_since = Max(delivery->due_at, lane->rung_at);
	outbox_delivery_add(delivery);

	/* Should its message be unreadable, outbox_take_abort() knows whose it was. */
	reading = delivery;
	return delivery;
}

/*
 * One that has no attempt left, by an operator's hand, is not tried once
 * more.  Nor is one whose attempts can be counted no further.
 */
static bool
bury_exhausted(OutboxDelivery *delivery)
{
	OutboxState state;

	if (delivery->attempts == delivery->budget_from && delivery->attempts < PG_INT32_MAX)
		return false;
	state = outbox_judge_untried(&delivery->lane->handler->retry, delivery->attempts - delivery->budget_from,
								 delivery->code, delivery->streak);
	if (delivery->attempts == PG_INT32_MAX && state == OUTBOX_RETRYING)
		state = OUTBOX_DEAD;
	if (state == OUTBOX_RETRYING)
		return false;
	delivery->verdict.state = state;
	strlcpy(delivery->verdict.code, delivery->code[0] ? delivery->code : "max_attempts", sizeof(delivery->verdict.code));
	delivery->verdict.streak = delivery->streak;
	delivery->error = MemoryContextStrdup(deliveries_context, "no attempt was left when it was read");
	return true;
}

/* A delivery whose message is gone cannot be sent, now or later. */
static void
bury_without_message(OutboxDelivery *delivery)
{
	outbox_judge_missing(&delivery->verdict);
	delivery->error = MemoryContextStrdup(deliveries_context, OUTBOX_MESSAGE_MISSING_ERROR);
}

static void
read_message(OutboxDelivery *delivery)
{
	size_t		size;

	delivery->message = outbox_message_read(&delivery->id, deliveries_context);
	if (delivery->message == NULL)
	{
		bury_without_message(delivery);
		return;
	}
	delivery->awaits_payload = delivery->message->large;
	/* Of one that was tried before, only that is known. */
	if (delivery->attempts > 0)
		delivery->waits_since = delivery->message->staged_at;
	size = GetMemoryChunkSpace(delivery->message);
	outbox_delivery_grow(delivery, size + outbox_request_room(delivery->lane->handler->form, delivery->message, size));
}

/* Both are kept until the transaction is over; then they are queued. */
void
outbox_take(OutboxLane *lane, const OutboxQueuePosition *at, TupleTableSlot *slot,
			struct OutboxOrderKey *order_key, OutboxReadBounds *bounds)
{
	OutboxDelivery *delivery;

	/* Not while its message is being read: should it fail, that is not the message's fault. */
	outbox_durable_note(slot);
	delivery = build(lane, at, slot);
	if (order_key != NULL)
		outbox_order_take(order_key, delivery);

	if (!bury_exhausted(delivery))
		read_message(delivery);
	reading = NULL;

	dlist_push_tail(&taken, &delivery->link);
	if (delivery->message != NULL)
		outbox_message_note_durability();
	bounds->bytes -= delivery->memory;
}

void
outbox_take_finish(void)
{
	int			n = 0;

	while (!dlist_is_empty(&taken))
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, dlist_pop_head_node(&taken));

		n++;
		if (delivery->message == NULL)
			outbox_outcome_add(delivery);
		else if (outbox_order_arrived(delivery))
		{
			outbox_lane_enqueue(delivery->lane, delivery);
			outbox_lane_ready(delivery->lane);
		}
	}
	if (n > 0)
		outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_READ, n);
}

OutboxDelivery *
outbox_take_abort(void)
{
	OutboxDelivery *poison = reading;

	while (!dlist_is_empty(&taken))
		outbox_order_discard(dlist_container(OutboxDelivery, link, dlist_pop_head_node(&taken)));
	reading = NULL;
	return poison;
}
