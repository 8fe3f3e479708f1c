/*-------------------------------------------------------------------------
 *
 * outbox.h
 *		The words that every room shares: delivery states, keys, names.
 *
 * Promises: nothing here allocates, raises or keeps state. A constant that
 * SQL also knows (a state number, the SQL version) is written here once and
 * checked against the install script by a regression test.
 *
 * Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_H
#define OUTBOX_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "utils/uuid.h"

/* The version of the SQL objects this library speaks to. */
#define OUTBOX_SQL_VERSION "0.9"

#define OUTBOX_SCHEMA "outbox"

/* Bytes of a topic at most. */
#define OUTBOX_TOPIC_MAX 255

/*
 * Delivery states as stored in outbox.delivery and outbox.receipt.
 * Everything below OUTBOX_DELIVERED is outstanding and in the first, the
 * others are final and in the second.
 */
typedef enum OutboxState
{
	OUTBOX_PENDING = 0,
	OUTBOX_RETRYING = 1,
	OUTBOX_LEASED = 2,
	OUTBOX_DELIVERED = 3,
	OUTBOX_DEAD = 4,
	OUTBOX_CANCELLED = 5
} OutboxState;

/* Where a delivery stands in its handler's queue: the order lanes read in. */
typedef struct OutboxQueuePosition
{
	TimestampTz due_at;
	pg_uuid_t	id;
} OutboxQueuePosition;

/* The version of a delivery that any consumer may claim. */
#define OUTBOX_ANY_VERSION PG_INT32_MIN

/* The built-in handler that keeps messages nobody takes when outbox.unrouted = dead. */
#define OUTBOX_UNROUTED_HANDLER 0

/*
 * Compare two queue keys the way the index (handler_id, due_at, message_id)
 * does.  Returns less than, equal to or greater than zero.
 */
static inline int
outbox_position_cmp(const OutboxQueuePosition *a, const OutboxQueuePosition *b)
{
	if (a->due_at != b->due_at)
		return a->due_at < b->due_at ? -1 : 1;
	return memcmp(a->id.data, b->id.data, UUID_LEN);
}

/* Microseconds since 1970, which is how the world outside counts. */
static inline int64
outbox_unix_microseconds(TimestampTz t)
{
	return t + (int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY * USECS_PER_SEC;
}

#endif							/* OUTBOX_H */
