/*-------------------------------------------------------------------------
 *
 * payload_text.c
 *		A payload as it stands in a body, written piece by piece.
 *
 * Promises: see payload_text.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/base64.h"

#include "format/payload_text.h"

/* Bytes that become base64 at once, a multiple of three so that nothing is filled up in between. */
#define BASE64_PIECE (3 * 1024)

void
outbox_payload_text_begin_json(OutboxPayloadText *text, const Jsonb *value)
{
	memset(text, 0, sizeof(*text));
	text->kind = OUTBOX_PAYLOAD_JSON;
	outbox_json_text_begin(&text->json, value);
}

void
outbox_payload_text_begin(OutboxPayloadText *text, OutboxPayloadKind kind,
						  const char *payload, size_t len, bool embedded)
{
	memset(text, 0, sizeof(*text));
	text->kind = kind;
	text->embedded = embedded && outbox_payload_is_quoted(kind);
	text->rest = payload;
	text->rest_len = len;
	if (text->embedded && kind == OUTBOX_PAYLOAD_TEXT)
		outbox_json_text_begin_string(&text->json, payload, (int) len);
}

static bool
copy(OutboxPayloadText *text, StringInfo out, int max)
{
	size_t		n = Min(text->rest_len, (size_t) max);

	appendBinaryStringInfo(out, text->rest, (int) n);
	text->rest += n;
	text->rest_len -= n;
	return text->rest_len == 0;
}

static void
append_base64(StringInfo out, const char *bytes, size_t len)
{
	int			room = pg_b64_enc_len((int) len);
	int			written;

	enlargeStringInfo(out, room);
	written = pg_b64_encode((const void *) bytes, (int) len, out->data + out->len, room);
	if (written < 0)
		elog(ERROR, "could not encode %zu bytes in base64", len);
	out->len += written;
	out->data[out->len] = '\0';
}

static bool
encode(OutboxPayloadText *text, StringInfo out, int max)
{
	if (!text->begun)
		appendStringInfoCharMacro(out, '"');
	text->begun = true;
	while (text->rest_len > 0 && max > 0)
	{
		size_t		n = Min(text->rest_len, BASE64_PIECE);

		append_base64(out, text->rest, n);
		text->rest += n;
		text->rest_len -= n;
		max -= BASE64_PIECE / 3 * 4;
	}
	if (text->rest_len > 0)
		return false;
	appendStringInfoCharMacro(out, '"');
	return true;
}

bool
outbox_payload_text_write(OutboxPayloadText *text, StringInfo out, int max)
{
	if (text->kind == OUTBOX_PAYLOAD_JSON || (text->kind == OUTBOX_PAYLOAD_TEXT && text->embedded))
		return outbox_json_text_write(&text->json, out, max);
	if (text->embedded)
		return encode(text, out, max);
	return copy(text, out, max);
}

size_t
outbox_payload_text_length(OutboxPayloadKind kind, const char *payload, size_t len)
{
	switch (kind)
	{
		case OUTBOX_PAYLOAD_JSON:
		case OUTBOX_PAYLOAD_JSON_TEXT:
			return len;
		case OUTBOX_PAYLOAD_TEXT:
			return outbox_json_string_length(payload, len);
		case OUTBOX_PAYLOAD_BYTES:
			return (len + 2) / 3 * 4 + 2;
	}
	return len;
}
