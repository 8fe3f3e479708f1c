/*-------------------------------------------------------------------------
 *
 * payload_text.h
 *		A payload as it stands in a body, written piece by piece.
 *
 * By itself a payload is what its producer gave: JSON text, a text, bytes.
 * Embedded in JSON of ours, JSON stays as it is, a text becomes a string, and
 * bytes become a string of their base64, as CloudEvents has it.
 *
 * What is written is in the server's encoding, but for bytes, which have none.
 *
 * Process: the dispatcher.  No catalog is looked at, so no transaction is
 * needed.  Raises when memory runs out or the text becomes longer than a
 * StringInfo can hold.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_PAYLOAD_TEXT_H
#define OUTBOX_PAYLOAD_TEXT_H

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

#include "format/json_text.h"
#include "format/message.h"

/* Does a payload of this kind look otherwise embedded than by itself? */
static inline bool
outbox_payload_is_quoted(OutboxPayloadKind kind)
{
	return kind == OUTBOX_PAYLOAD_TEXT || kind == OUTBOX_PAYLOAD_BYTES;
}

/* Private; lies wherever its owner likes. */
typedef struct OutboxPayloadText
{
	OutboxPayloadKind kind;
	bool		embedded;
	OutboxJsonText json;		/* of a jsonb value, and of a text that becomes a string */
	const char *rest;			/* of what is copied, or becomes base64 */
	size_t		rest_len;
	bool		begun;
} OutboxPayloadText;

/*
 * Begin with a jsonb value, or with the len bytes of a payload of another
 * kind.  They must stay until they are written.  What is allocated meanwhile
 * lies in the memory context that is current in each call, which has to be the
 * same one.
 */
extern void outbox_payload_text_begin_json(OutboxPayloadText *text, const Jsonb *value);
extern void outbox_payload_text_begin(OutboxPayloadText *text, OutboxPayloadKind kind,
									  const char *payload, size_t len, bool embedded);

/* Append about max bytes more to out.  True when that was the rest. */
extern bool outbox_payload_text_write(OutboxPayloadText *text, StringInfo out, int max);

/* How long len bytes of a payload are embedded; by itself it is as long as it is. */
extern size_t outbox_payload_text_length(OutboxPayloadKind kind, const char *payload, size_t len);

#endif							/* OUTBOX_PAYLOAD_TEXT_H */
