/*-------------------------------------------------------------------------
 *
 * insert.h
 *		The rows of a new message.
 *
 * What they promise is row_writer.h's to keep.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_INSERT_H
#define OUTBOX_INSERT_H

#include "stage/new_message.h"
#include "stage/routes.h"
#include "table/row_writer.h"

extern void outbox_insert_message(OutboxWriter *writer, const OutboxNewMessage *message);

/* When the message expires for a handler; DT_NOEND: never. */
extern TimestampTz outbox_delivery_end(const OutboxNewMessage *message, const OutboxRoute *route);

/* One delivery of the message, pending. */
extern void outbox_insert_delivery(OutboxWriter *writer, const OutboxNewMessage *message,
								   const OutboxRoute *route);

/* The dead letter of a message that nobody takes.  True if handlers want to be told of it: see event_queue.h. */
extern bool outbox_insert_unrouted(OutboxWriter *writer, const OutboxNewMessage *message);

#endif							/* OUTBOX_INSERT_H */
