/*-------------------------------------------------------------------------
 *
 * columns.h
 *		The columns of the tables that are read and written below SQL.
 *
 * Columns are addressed by number, as the install script defines them.
 * Later versions of the extension append columns, in the install script too,
 * and never move them; a regression test compares the two.
 *
 * Only what reads a row in a slot or fills one in for the row writer needs
 * them.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_COLUMNS_H
#define OUTBOX_COLUMNS_H

/* outbox.message */
enum
{
	Anum_message_id = 1,
	Anum_message_staged_at,
	Anum_message_payload,
	Anum_message_topic,
	Anum_message_key,
	Anum_message_tenant,
	Anum_message_correlation_id,
	Anum_message_headers,
	Anum_message_dedupe_key,
	Anum_message_min_version,
	Anum_message_deliver_at,
	Anum_message_replace_key,
	Anum_message_replace_since,
	Anum_message_expires_at,
	Anum_message_content_type,
	Anum_message_payload_text,
	Anum_message_payload_bytes,
	Anum_message_reused_key,
	Natts_message = Anum_message_reused_key
};

/* outbox.delivery: what is outstanding */
enum
{
	Anum_delivery_message_id = 1,
	Anum_delivery_due_at,
	Anum_delivery_handler_id,
	Anum_delivery_state,
	Anum_delivery_streak,
	Anum_delivery_attempts,
	Anum_delivery_budget_from,
	Anum_delivery_key,
	Anum_delivery_expires_at,
	Anum_delivery_min_version,
	Anum_delivery_http_status,
	Anum_delivery_code,
	Anum_delivery_error,
	Natts_delivery = Anum_delivery_error
};

/* outbox.receipt: what is settled */
enum
{
	Anum_receipt_message_id = 1,
	Anum_receipt_settled_at,
	Anum_receipt_handler_id,
	Anum_receipt_state,
	Anum_receipt_http_status,
	Anum_receipt_attempts,
	Anum_receipt_budget_from,
	Anum_receipt_code,
	Anum_receipt_error,
	Anum_receipt_key,
	Natts_receipt = Anum_receipt_key
};

/* outbox.dedupe_key */
enum
{
	Anum_dedupe_key_tenant = 1,
	Anum_dedupe_key_dedupe_key,
	Anum_dedupe_key_staged_at,
	Anum_dedupe_key_message_id,
	Anum_dedupe_key_topic,
	Anum_dedupe_key_key,
	Anum_dedupe_key_expires_at,
	Natts_dedupe_key = Anum_dedupe_key_expires_at
};

/* outbox.event_queue */
enum
{
	Anum_event_queue_happened_at = 1,
	Anum_event_queue_topic,
	Anum_event_queue_handler_id,
	Anum_event_queue_schedule_id,
	Anum_event_queue_message_id,
	Anum_event_queue_attempts,
	Anum_event_queue_http_status,
	Anum_event_queue_code,
	Anum_event_queue_error,
	Anum_event_queue_details,
	Natts_event_queue = Anum_event_queue_details
};

/* outbox.handler_secret */
enum
{
	Anum_handler_secret_handler_id = 1,
	Anum_handler_secret_kind,
	Anum_handler_secret_secret,
	Anum_handler_secret_created_at,
	Anum_handler_secret_expires_at,
	Natts_handler_secret = Anum_handler_secret_expires_at
};

#endif							/* OUTBOX_COLUMNS_H */
