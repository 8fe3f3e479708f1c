/*-------------------------------------------------------------------------
 *
 * message.h
 *		A message as the request formats see it.
 *
 * Filled in by the dispatcher when it reads a delivery (src/dispatch/fetch.c),
 * read by everything in src/format.  One palloc'd chunk: the strings and the
 * JSON text lie behind the struct, so that one pfree gives all of it back; but
 * for the text of a large payload, which several messages of this kind share.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_MESSAGE_H
#define OUTBOX_MESSAGE_H

#include "outbox.h"

#include "utils/jsonb.h"

typedef struct OutboxMessage
{
	pg_uuid_t	id;
	TimestampTz staged_at;
	const char *topic;
	const char *key;			/* NULL: none, as for all below */
	const char *tenant;
	const char *correlation_id;
	const Jsonb *headers;		/* an object of strings */
	const char *payload;		/* JSON text in the server encoding, not terminated */
	size_t		payload_len;
	bool		large;			/* payload lies elsewhere, and in UTF-8: requests point to it; NULL until it has been read */
} OutboxMessage;

#endif							/* OUTBOX_MESSAGE_H */
