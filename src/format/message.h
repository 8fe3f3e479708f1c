/*-------------------------------------------------------------------------
 *
 * message.h
 *		A message as the request formats see it.
 *
 * Filled in by the dispatcher when it reads a delivery (src/dispatch/fetch.c),
 * read by everything in src/format.  One palloc'd chunk: the strings and the
 * payload lie behind the struct, so that one pfree gives all of it back; but
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

/* What a payload is. */
typedef enum OutboxPayloadKind
{
	OUTBOX_PAYLOAD_JSON,		/* a jsonb value */
	OUTBOX_PAYLOAD_JSON_TEXT,	/* JSON as its producer wrote it */
	OUTBOX_PAYLOAD_TEXT,		/* any other text */
	OUTBOX_PAYLOAD_BYTES
} OutboxPayloadKind;

typedef struct OutboxMessage
{
	pg_uuid_t	id;
	TimestampTz staged_at;
	const char *topic;
	const char *key;			/* NULL: none, as for all below */
	const char *tenant;
	const char *correlation_id;
	const Jsonb *headers;		/* an object of strings */
	const char *content_type;	/* of what is no jsonb value */
	OutboxPayloadKind kind;
	const char *payload;		/* as text in the server encoding, or bytes; not terminated */
	size_t		payload_len;
	bool		large;			/* payload lies elsewhere, in UTF-8 and in the form the request needs, which points to it; NULL until it has been read */
} OutboxMessage;

#endif							/* OUTBOX_MESSAGE_H */
