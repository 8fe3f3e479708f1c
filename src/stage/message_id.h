/*-------------------------------------------------------------------------
 *
 * message_id.h
 *		Message ids: uuid v7, strictly increasing on one server.
 *
 * The first 60 bits of an id that are not version or variant are a
 * timestamp: 48 bits of Unix milliseconds and 12 bits of fraction, in units
 * of 1/4096 ms.  The other 62 bits are random.  The highest timestamp handed
 * out is in shared memory; the next is the clock or one more than that,
 * whichever is higher, so ids go on increasing when the clock steps back.
 * Without shared memory they increase within each backend only.
 *
 * The id of a message staged at time t sorts at or after
 * outbox_internal.id_floor(t), so "id >= floor(since)" misses nothing.  There
 * is no such bound from above while the clock is behind the ids.
 *
 * Process: any backend; the lead may be asked by any process.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_MESSAGE_ID_H
#define OUTBOX_MESSAGE_ID_H

#include "outbox.h"

/*
 * Before a backend's first id: make sure that no id will be handed out that
 * is not above those already in the table.  Cheap once done; reads the end
 * of the primary key the first time.  Needs an active snapshot.
 */
extern void outbox_message_ids_seed(void);

/* The next n timestamps for ids, all in a row; returns the first.  now is the clock. */
extern uint64 outbox_message_ids_reserve(TimestampTz now, int n);

/* Make an id of a reserved timestamp.  Raises only if there is no randomness to be had. */
extern void outbox_message_id_make(uint64 timestamp, pg_uuid_t *id);

/*
 * By how many milliseconds the last id is ahead of the clock: zero or less
 * as a rule, more when the clock stepped back.  0 without shared memory.
 */
extern int64 outbox_message_id_lead(void);

#endif							/* OUTBOX_MESSAGE_ID_H */
