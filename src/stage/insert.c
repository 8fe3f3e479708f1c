/*-------------------------------------------------------------------------
 *
 * insert.c
 *		The rows of a new message.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "stage/insert.h"
#include "table/event_queue.h"

static void
set_body(TupleTableSlot *row, const OutboxNewMessage *message)
{
	outbox_row_set_pointer(row, Anum_message_content_type, message->content_type);
	if (message->kind == OUTBOX_PAYLOAD_BYTES)
		outbox_row_set_pointer(row, Anum_message_payload_bytes, message->body);
	else
		outbox_row_set_pointer(row, Anum_message_payload_text, message->body);
}

void
outbox_insert_message(OutboxWriter *writer, const OutboxNewMessage *message)
{
	const OutboxStageArguments *arguments = message->arguments;
	TupleTableSlot *row = outbox_writer_start(writer, OUTBOX_TABLE_MESSAGE);

	outbox_row_set_pointer(row, Anum_message_id, &message->id);
	outbox_row_set(row, Anum_message_staged_at, TimestampTzGetDatum(arguments->staged_at));
	if (arguments->has_min_version)
		outbox_row_set(row, Anum_message_min_version, Int32GetDatum(arguments->min_version));
	outbox_row_set_pointer(row, Anum_message_topic, arguments->topic);
	outbox_row_set_pointer(row, Anum_message_key, message->key);
	outbox_row_set_pointer(row, message->reuses_key ? Anum_message_reused_key : Anum_message_dedupe_key, message->dedupe_key);
	outbox_row_set_pointer(row, Anum_message_tenant, arguments->tenant);
	outbox_row_set_pointer(row, Anum_message_correlation_id, arguments->correlation_id);
	outbox_row_set_pointer(row, Anum_message_headers, arguments->headers);
	outbox_row_set_pointer(row, Anum_message_payload, message->payload);
	if (arguments->due_at > arguments->staged_at)
		outbox_row_set(row, Anum_message_deliver_at, TimestampTzGetDatum(arguments->due_at));
	outbox_row_set_pointer(row, Anum_message_replace_key, message->replace_key);
	if (message->replace_key)
		outbox_row_set(row, Anum_message_replace_since, TimestampTzGetDatum(message->replace_since));
	if (arguments->end_at != DT_NOEND)
		outbox_row_set(row, Anum_message_expires_at, TimestampTzGetDatum(arguments->end_at));
	if (message->kind != OUTBOX_PAYLOAD_JSON)
		set_body(row, message);
	outbox_writer_insert(writer, OUTBOX_TABLE_MESSAGE);
}

TimestampTz
outbox_delivery_end(const OutboxNewMessage *message, const OutboxRoute *route)
{
	const OutboxStageArguments *arguments = message->arguments;

	/* It cannot be older than so long before it is due. */
	if (route->max_age == 0)
		return arguments->end_at;
	return Min(arguments->end_at, arguments->due_at + route->max_age);
}

void
outbox_insert_delivery(OutboxWriter *writer, const OutboxNewMessage *message,
					   const OutboxRoute *route)
{
	TimestampTz end_at = outbox_delivery_end(message, route);
	TupleTableSlot *row = outbox_writer_start(writer, OUTBOX_TABLE_DELIVERY);

	outbox_row_set_pointer(row, Anum_delivery_message_id, &message->id);
	outbox_row_set(row, Anum_delivery_due_at, TimestampTzGetDatum(message->arguments->due_at));
	outbox_row_set(row, Anum_delivery_handler_id, Int32GetDatum(route->handler_id));
	outbox_row_set(row, Anum_delivery_attempts, Int32GetDatum(0));
	outbox_row_set(row, Anum_delivery_budget_from, Int32GetDatum(0));
	outbox_row_set(row, Anum_delivery_state, Int16GetDatum(OUTBOX_PENDING));
	outbox_row_set(row, Anum_delivery_streak, Int16GetDatum(0));
	if (route->ordered)
		outbox_row_set_pointer(row, Anum_delivery_key, message->key);
	if (route->is_pull && message->arguments->has_min_version)
		outbox_row_set(row, Anum_delivery_min_version, Int32GetDatum(message->arguments->min_version));
	if (end_at != DT_NOEND)
		outbox_row_set(row, Anum_delivery_expires_at, TimestampTzGetDatum(end_at));
	outbox_writer_insert(writer, OUTBOX_TABLE_DELIVERY);
}

bool
outbox_insert_unrouted(OutboxWriter *writer, const OutboxNewMessage *message)
{
	const OutboxDeath death = {
		.message_id = message->id,
		.handler_id = OUTBOX_UNROUTED_HANDLER,
		.died_at = message->arguments->staged_at,
		.code = "unrouted",
		.error = "no handler takes this topic"
	};
	TupleTableSlot *row = outbox_writer_start(writer, OUTBOX_TABLE_RECEIPT);

	outbox_row_set_pointer(row, Anum_receipt_message_id, &message->id);
	outbox_row_set(row, Anum_receipt_settled_at, TimestampTzGetDatum(message->arguments->staged_at));
	outbox_row_set(row, Anum_receipt_handler_id, Int32GetDatum(OUTBOX_UNROUTED_HANDLER));
	outbox_row_set(row, Anum_receipt_attempts, Int32GetDatum(0));
	outbox_row_set(row, Anum_receipt_budget_from, Int32GetDatum(0));
	outbox_row_set(row, Anum_receipt_state, Int16GetDatum(OUTBOX_DEAD));
	outbox_row_set_text(row, Anum_receipt_code, "unrouted");
	outbox_row_set_text(row, Anum_receipt_error, death.error);
	outbox_writer_insert(writer, OUTBOX_TABLE_RECEIPT);
	if (!outbox_events_are_wanted())
		return false;
	outbox_event_queue_death(writer, &death);
	return true;
}
