/*-------------------------------------------------------------------------
 *
 * format.c
 *		The formats in which messages are sent.
 *
 * Promises: see format.h.
 *
 * A body does not depend on the attempt, so that every attempt of a message
 * sends the same bytes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/json.h"

#include "format/format.h"
#include "format/lines.h"
#include "format/trace.h"

#define append_literal(out, text) appendBinaryStringInfo(out, text, sizeof(text) - 1)

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

/* As the JSON format of CloudEvents calls it. */
static void
append_data_name(StringInfo out, const OutboxMessage *message)
{
	if (message->kind == OUTBOX_PAYLOAD_BYTES)
		append_literal(out, ",\"data_base64\":");
	else
		append_literal(out, ",\"data\":");
}

static void
append_envelope_head(StringInfo out, const OutboxMessage *message, const char *source)
{
	appendStringInfoCharMacro(out, '{');
	append_id_and_time(out, message, ",\"timestamp\":\"");
	append_member(out, "key", message->key);
	append_member(out, "tenant", message->tenant);
	append_member(out, "correlation_id", message->correlation_id);
	append_member(out, "content_type", message->content_type);
	append_data_name(out, message);
}

/* The distributed tracing extension of CloudEvents. */
static void
append_trace(StringInfo out, const OutboxMessage *message)
{
	OutboxTrace trace;

	if (!outbox_find_trace(message->headers, &trace))
		return;
	append_literal(out, ",\"traceparent\":\"");
	appendBinaryStringInfo(out, trace.parent, (int) trace.parent_len);
	appendStringInfoCharMacro(out, '"');
	if (trace.state != NULL)
	{
		char	   *text = pnstrdup(trace.state, trace.state_len);

		append_literal(out, ",\"tracestate\":");
		escape_json(out, text);
		pfree(text);
	}
}

static void
append_event_head(StringInfo out, const OutboxMessage *message, const char *source)
{
	append_literal(out, "{\"specversion\":\"1.0\",");
	append_id_and_time(out, message, ",\"time\":\"");
	append_member(out, "source", source);
	append_member(out, "subject", message->key);
	append_member(out, "partitionkey", message->key);
	append_member(out, "tenant", message->tenant);
	append_member(out, "correlationid", message->correlation_id);
	append_trace(out, message);
	if (message->content_type == NULL)
		append_literal(out, ",\"datacontenttype\":\"application/json\"");
	append_member(out, "datacontenttype", message->content_type);
	append_data_name(out, message);
}

/*
 * CloudEvents in binary mode: the attributes are header lines, written as its
 * HTTP binding wants it: percent signs, quotes, blanks and what is not
 * visible ASCII are percent-encoded in every value.
 */
static void
write_event_source(OutboxRequest *lines, const OutboxRequestForm *form)
{
	data_line(lines, "ce-specversion", "1.0");
	data_line(lines, "ce-source", form->source);
}

static void
write_event_trace(OutboxRequest *request, const Jsonb *headers)
{
	OutboxTrace trace;

	if (!outbox_find_trace(headers, &trace))
		return;
	data_line_with_len(request, "ce-traceparent", trace.parent, trace.parent_len);
	if (trace.state != NULL)
		data_line_with_len(request, "ce-tracestate", trace.state, trace.state_len);
}

static void
write_event_lines(OutboxRequest *request, const OutboxMessage *message)
{
	uuid_line(request, "ce-id", &message->id);
	data_line(request, "ce-type", message->topic);
	start_line(request, "ce-time");
	outbox_append_rfc3339(&request->buffer, message->staged_at);
	end_line(request);
	data_line(request, "ce-subject", message->key);
	data_line(request, "ce-partitionkey", message->key);
	data_line(request, "ce-tenant", message->tenant);
	data_line(request, "ce-correlationid", message->correlation_id);
	write_event_trace(request, message->headers);
}

/* Every format there is.  The order is that in which errors and outbox_internal.formats() name them. */
static const OutboxFormat formats[] = {
	{
		.name = "raw",
		.content_type = "application/json",
		.batch_content_type = "application/json",
		.own_content_type = true,
		.batch_items = "envelope"
	},
	{
		.name = "envelope",
		.content_type = "application/json",
		.batch_content_type = "application/json",
		.own_content_type = true,
		.append_head = append_envelope_head,
		.tail = "}"
	},
	{
		.name = "cloudevents",
		.content_type = "application/cloudevents+json",
		.batch_content_type = "application/cloudevents-batch+json",
		.append_head = append_event_head,
		.tail = "}"
	},
	{
		.name = "cloudevents-binary",
		.content_type = "application/json",
		.own_content_type = true,
		.write_form_lines = write_event_source,
		.write_message_lines = write_event_lines
	}
};

const OutboxFormat *
outbox_format_at(int index)
{
	return index >= 0 && index < (int) lengthof(formats) ? &formats[index] : NULL;
}

const OutboxFormat *
outbox_format_by_name(const char *name)
{
	for (int i = 0; i < (int) lengthof(formats); i++)
	{
		if (strcmp(formats[i].name, name) == 0)
			return &formats[i];
	}
	return NULL;
}
