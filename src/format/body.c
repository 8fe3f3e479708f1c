/*-------------------------------------------------------------------------
 *
 * body.c
 *		What a message looks like inside a request's body.
 *
 * Promises: see body.h.
 *
 * A body does not depend on the attempt, so that every attempt of a message
 * sends the same bytes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/json.h"

#include "format/body.h"
#include "format/encode.h"
#include "format/own_headers.h"
#include "format/trace.h"

#define append_literal(out, text) appendBinaryStringInfo(out, text, sizeof(text) - 1)

const char *
outbox_content_type(OutboxFormat format, bool batch)
{
	switch (format)
	{
		case OUTBOX_FORMAT_RAW:
		case OUTBOX_FORMAT_ENVELOPE:
			return "application/json";
		case OUTBOX_FORMAT_CLOUDEVENTS:
			return batch ? "application/cloudevents-batch+json" : "application/cloudevents+json";
		case OUTBOX_FORMAT_CLOUDEVENTS_BINARY:
			/* Binary mode knows no batches: they are structured. */
			return batch ? "application/cloudevents-batch+json" : "application/json";
	}
	elog(ERROR, "unrecognized request format %d", (int) format);
	return NULL;				/* keep compiler quiet */
}

/* Append ,"name":"value" unless there is no value.  name is a literal. */
#define append_member(out, name, value) \
	do { \
		if ((value) != NULL) \
		{ \
			append_literal(out, ",\"" name "\":"); \
			escape_json(out, value); \
		} \
	} while (0)

static void
append_id_and_time(StringInfo out, const OutboxMessage *message, const char *time_name)
{
	append_literal(out, "\"id\":\"");
	outbox_append_uuid(out, &message->id);
	append_literal(out, "\",\"type\":");
	escape_json(out, message->topic);
	appendStringInfoString(out, time_name);
	outbox_append_rfc3339(out, message->staged_at);
	appendStringInfoCharMacro(out, '"');
}

static void
append_data(StringInfo out, const OutboxMessage *message, const char *data_name)
{
	appendStringInfoString(out, data_name);
	appendBinaryStringInfo(out, message->payload, (int) message->payload_len);
	appendStringInfoCharMacro(out, '}');
}

static void
append_envelope(StringInfo out, const OutboxMessage *message)
{
	appendStringInfoCharMacro(out, '{');
	append_id_and_time(out, message, ",\"timestamp\":\"");
	append_member(out, "key", message->key);
	append_member(out, "tenant", message->tenant);
	append_member(out, "correlation_id", message->correlation_id);
	append_data(out, message, ",\"data\":");
}

/* The distributed tracing extension of CloudEvents. */
static void
append_trace(StringInfo out, const OutboxMessage *message)
{
	size_t		len;
	const char *value = outbox_header_get(message->headers, "traceparent", &len);

	if (value == NULL || !outbox_traceparent_is_valid(value, len))
		return;
	append_literal(out, ",\"traceparent\":\"");
	appendBinaryStringInfo(out, value, (int) len);
	appendStringInfoCharMacro(out, '"');

	value = outbox_header_get(message->headers, "tracestate", &len);
	if (value != NULL && outbox_tracestate_is_valid(value, len))
	{
		char	   *text = pnstrdup(value, len);

		append_literal(out, ",\"tracestate\":");
		escape_json(out, text);
		pfree(text);
	}
}

static void
append_cloudevent(StringInfo out, const OutboxMessage *message, const char *source)
{
	append_literal(out, "{\"specversion\":\"1.0\",");
	append_id_and_time(out, message, ",\"time\":\"");
	append_member(out, "source", source);
	append_member(out, "subject", message->key);
	append_member(out, "partitionkey", message->key);
	append_member(out, "tenant", message->tenant);
	append_member(out, "correlationid", message->correlation_id);
	append_trace(out, message);
	append_data(out, message, ",\"datacontenttype\":\"application/json\",\"data\":");
}

static void
append_item(StringInfo out, const OutboxRequestForm *form, const OutboxMessage *message)
{
	if (form->format == OUTBOX_FORMAT_ENVELOPE)
		append_envelope(out, message);
	else if (form->format == OUTBOX_FORMAT_CLOUDEVENTS ||
			 (form->format == OUTBOX_FORMAT_CLOUDEVENTS_BINARY && form->batch))
		append_cloudevent(out, message, form->source);
	else
		appendBinaryStringInfo(out, message->payload, (int) message->payload_len);
}

void
outbox_append_body(StringInfo out, const OutboxRequestForm *form,
				   const OutboxRequestItem *items, int nitems)
{
	if (!form->batch)
	{
		append_item(out, form, items[0].message);
		return;
	}
	for (int i = 0; i < nitems; i++)
	{
		appendStringInfoCharMacro(out, i == 0 ? '[' : ',');
		append_item(out, form, items[i].message);
	}
	appendStringInfoCharMacro(out, ']');
}
