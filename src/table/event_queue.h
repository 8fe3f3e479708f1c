/*-------------------------------------------------------------------------
 *
 * event_queue.h
 *		Deaths of deliveries that handlers want to be told of.
 *
 * Whoever settles a delivery as dead leaves a row in outbox.event_queue, in
 * the same transaction, if any handler takes outbox's own events.  What
 * becomes of it (which of them is told, to whom, how many at most) is decided
 * later and elsewhere, by outbox_internal.tell_events() in the schedule worker:
 * a settlement asks nobody, runs nothing of users and waits for nothing.
 *
 * Nothing is kept of the answer whether anybody wants them, which takes a look
 * into an index that is empty otherwise; only who has a death asks.
 *
 * Process: any, in a transaction with an active snapshot.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_EVENT_QUEUE_H
#define OUTBOX_EVENT_QUEUE_H

#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "table/row_writer.h"

typedef struct OutboxDeath
{
	pg_uuid_t	message_id;
	int32		handler_id;
	TimestampTz died_at;
	int32		attempts;
	int			http_status;	/* 0: none */
	const char *code;			/* NULL or empty: none */
	const char *error;			/* NULL: none */
} OutboxDeath;

/* Does any handler take events?  If somebody's lock is in the way of looking, yes. */
extern bool outbox_events_are_wanted(void);

/* Leave the row; the caller tells the schedule worker (outbox_doorbell_note_schedules()). */
extern void outbox_event_queue_death(OutboxWriter *writer, const OutboxDeath *death);

#endif							/* OUTBOX_EVENT_QUEUE_H */
