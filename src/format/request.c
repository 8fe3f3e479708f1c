/*-------------------------------------------------------------------------
 *
 * request.c
 *		From messages to what is sent: body and header lines.
 *
 * Promises: see request.h.
 *
 * A request is written into one buffer: first the body, which the signature
 * needs, then the header lines, each ended by a NUL.  Lines are remembered
 * by their offset while the buffer may still move, and become pointers at
 * the end.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/timestamp.h"

#include "format/body.h"
#include "format/encode.h"
#include "format/own_headers.h"
#include "format/request.h"
#include "format/trace.h"

#define SOURCE_PREFIX "/outbox/"
#define CE_SOURCE "ce-source"

/* Lines that request.c itself writes for one request, and then some. */
#define MAX_FIXED_HEADERS 24

/* A request's buffer that grew beyond this is not kept for the next one. */
#define KEEP_BUFFER_SIZE (128 * 1024)

/* 1970-01-01 in the server's own count of seconds. */
#define UNIX_EPOCH_OFFSET ((POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * INT64CONST(86400))

static const struct
{
	const char *name;
	OutboxFormat format;
}			formats[] = {
	{"raw", OUTBOX_FORMAT_RAW},
	{"envelope", OUTBOX_FORMAT_ENVELOPE},
	{"cloudevents", OUTBOX_FORMAT_CLOUDEVENTS},
	{"cloudevents-binary", OUTBOX_FORMAT_CLOUDEVENTS_BINARY}
};

bool
outbox_format_by_name(const char *name, OutboxFormat *format)
{
	for (int i = 0; i < (int) lengthof(formats); i++)
	{
		if (strcmp(formats[i].name, name) == 0)
		{
			*format = formats[i].format;
			return true;
		}
	}
	return false;
}

/* Begin a line; what is appended next belongs to it.  name is a literal. */
#define start_line(request, name) \
	do { \
		note_line(request); \
		appendBinaryStringInfo(&(request)->buffer, name ": ", sizeof(name ": ") - 1); \
	} while (0)

#define end_line(request) appendStringInfoCharMacro(&(request)->buffer, '\0')

static inline void
note_line(OutboxRequest *request)
{
	if (request->nheaders >= request->max_headers)
	{
		request->max_headers *= 2;
		request->headers = repalloc(request->headers,
									request->max_headers * sizeof(const char *));
	}
	request->headers[request->nheaders++] = (const char *) (uintptr_t) request->buffer.len;
}

/* Now that the buffer has come to rest, turn offsets into pointers. */
static void
settle_lines(OutboxRequest *request)
{
	for (int i = 0; i < request->nheaders; i++)
		request->headers[i] = request->buffer.data + (uintptr_t) request->headers[i];
}

static void
begin(OutboxRequest *request)
{
	if (request->buffer.data != NULL && request->buffer.maxlen > KEEP_BUFFER_SIZE)
		outbox_request_free(request);
	if (request->buffer.data == NULL)
	{
		initStringInfo(&request->buffer);
		request->max_headers = MAX_FIXED_HEADERS;
		request->headers = palloc(request->max_headers * sizeof(const char *));
	}
	resetStringInfo(&request->buffer);
	request->nheaders = 0;
}

/* A line whose value comes from data; none if there is no value. */
#define data_line(request, name, text) \
	do { \
		if ((text) != NULL) \
		{ \
			start_line(request, name); \
			outbox_append_header_value(&(request)->buffer, text, strlen(text), OUTBOX_VALUE_DATA); \
			end_line(request); \
		} \
	} while (0)

#define int_line(request, name, number) \
	do { \
		start_line(request, name); \
		outbox_append_int(&(request)->buffer, number); \
		end_line(request); \
	} while (0)

static void
own_line(OutboxRequest *request, const char *name, size_t name_len,
		 const char *value, size_t value_len)
{
	note_line(request);
	outbox_append_own_header(&request->buffer, name, name_len, value, value_len);
}

/*
 * The handler's own lines.  Those that say something the form decides (the
 * type of a structured body, the source of events) are dealt with there.
 */
static void
write_handler_headers(OutboxRequest *lines, const OutboxRequestOptions *options)
{
	JsonbIterator *iterator = NULL;
	JsonbValue	name;
	JsonbValue	value;

	while (outbox_header_next(options->headers, OUTBOX_HEADERS_OF_HANDLER,
							  &iterator, &name, &value))
	{
		const char *text = name.val.string.val;
		int			len = name.val.string.len;

		if ((len == 12 && pg_strncasecmp(text, "content-type", len) == 0) ||
			(len == 10 && pg_strncasecmp(text, "user-agent", len) == 0) ||
			(len == 13 && pg_strncasecmp(text, "authorization", len) == 0 &&
			 options->authorization != NULL) ||
			(len == 9 && pg_strncasecmp(text, CE_SOURCE, len) == 0))
			continue;
		own_line(lines, text, len, value.val.string.val, value.val.string.len);
	}
}

/* The handler's own value for a header that has a default, in any case of its name. */
static const char *
handler_header(const OutboxRequestOptions *options, const char *wanted)
{
	JsonbIterator *iterator = NULL;
	JsonbValue	name;
	JsonbValue	value;

	while (outbox_header_next(options->headers, OUTBOX_HEADERS_OF_HANDLER,
							  &iterator, &name, &value))
	{
		if (name.val.string.len == (int) strlen(wanted) &&
			pg_strncasecmp(name.val.string.val, wanted, name.val.string.len) == 0)
			return pnstrdup(value.val.string.val, value.val.string.len);
	}
	return NULL;
}

static bool
body_is_structured(OutboxFormat format, bool batch)
{
	return format == OUTBOX_FORMAT_CLOUDEVENTS ||
		(format == OUTBOX_FORMAT_CLOUDEVENTS_BINARY && batch);
}

static void
written_line(OutboxRequest *lines, const char *name, const char *value)
{
	if (value != NULL)
		own_line(lines, name, strlen(name), value, strlen(value));
}

char *
outbox_event_source(const char *database)
{
	StringInfoData source;
	size_t		len;
	const char *utf8 = outbox_to_utf8(database, strlen(database), &len);

	initStringInfo(&source);
	appendStringInfoString(&source, SOURCE_PREFIX);
	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) utf8[i];

		/* The unreserved characters of RFC 3986. */
		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			c == '-' || c == '.' || c == '_' || c == '~')
			appendStringInfoChar(&source, c);
		else
			appendStringInfo(&source, "%%%02X", c);
	}
	return source.data;
}

OutboxRequestForm *
outbox_request_form(const OutboxRequestOptions *options)
{
	OutboxRequestForm *form = palloc0(sizeof(OutboxRequestForm));
	OutboxRequest lines = {0};
	const char *own;

	form->format = options->format;
	form->batch = options->batch;
	own = handler_header(options, CE_SOURCE);
	form->source = own ? own : pstrdup(options->source);
	if (options->nsecrets > 0)
		form->signer = outbox_signer_create(options->nsecrets, options->secrets);

	begin(&lines);
	own = body_is_structured(form->format, form->batch) ? NULL :
		handler_header(options, "content-type");
	written_line(&lines, "content-type",
				 own ? own : outbox_content_type(form->format, form->batch));
	own = handler_header(options, "user-agent");
	written_line(&lines, "user-agent", own ? own : options->user_agent);
	data_line(&lines, "outbox-handler", options->handler);
	if (form->format == OUTBOX_FORMAT_CLOUDEVENTS_BINARY && !form->batch)
	{
		written_line(&lines, "ce-specversion", "1.0");
		written_line(&lines, CE_SOURCE, form->source);
	}
	written_line(&lines, "authorization", options->authorization);
	write_handler_headers(&lines, options);
	settle_lines(&lines);

	form->headers = lines.headers;
	form->nheaders = lines.nheaders;
	return form;
}

void
outbox_batch_id(const OutboxRequestItem *items, int nitems, pg_uuid_t *id)
{
	uint64		high = UINT64CONST(0x6f7574626f782d68);
	uint64		low = UINT64CONST(0x6f7574626f782d6c);

	for (int i = 0; i < nitems; i++)
	{
		const unsigned char *bytes = items[i].message->id.data;

		high = hash_bytes_extended(bytes, UUID_LEN, high);
		low = hash_bytes_extended(bytes, UUID_LEN, low);
	}
	for (int i = 0; i < 8; i++)
	{
		id->data[i] = (unsigned char) (high >> (56 - 8 * i));
		id->data[8 + i] = (unsigned char) (low >> (56 - 8 * i));
	}

	/* Version 8: made by a rule of one's own; variant of RFC 9562. */
	id->data[6] = (id->data[6] & 0x0f) | 0x80;
	id->data[8] = (id->data[8] & 0x3f) | 0x80;
}

/* The lines of Standard Webhooks, and the idempotency key, which is the same id. */
static void
write_webhook_headers(OutboxRequest *request, const OutboxRequestForm *form,
					  const pg_uuid_t *id, TimestampTz now)
{
	StringInfo	buffer = &request->buffer;
	int			id_at;
	int			time_at;
	int			time_len;
	int64		seconds = now / USECS_PER_SEC - (now % USECS_PER_SEC < 0 ? 1 : 0);

	start_line(request, "webhook-id");
	id_at = buffer->len;
	outbox_append_uuid(buffer, id);
	end_line(request);

	start_line(request, "webhook-timestamp");
	time_at = buffer->len;
	outbox_append_int(buffer, seconds + UNIX_EPOCH_OFFSET);
	time_len = buffer->len - time_at;
	end_line(request);

	if (form->signer != NULL)
	{
		char		id_text[OUTBOX_UUID_TEXT_LEN];
		char		time_text[32];
		const char *body = request->body;

		/* The buffer may move while the signature is appended to it. */
		memcpy(id_text, buffer->data + id_at, OUTBOX_UUID_TEXT_LEN);
		memcpy(time_text, buffer->data + time_at, time_len);
		enlargeStringInfo(buffer, outbox_signer_room(form->signer) + 32);
		if (body == NULL)
			body = buffer->data;

		start_line(request, "webhook-signature");
		if (outbox_signer_append(form->signer, buffer, now, id_text, OUTBOX_UUID_TEXT_LEN,
								 time_text, time_len, body, request->body_len))
			end_line(request);
		else
			buffer->len = (int) (uintptr_t) request->headers[--request->nheaders];
	}

	start_line(request, "idempotency-key");
	outbox_append_uuid(buffer, id);
	end_line(request);
}

/* traceparent and tracestate; true if the first is there and sound. */
static void
write_trace(OutboxRequest *request, const OutboxRequestForm *form, const Jsonb *headers)
{
	bool		event = form->format == OUTBOX_FORMAT_CLOUDEVENTS_BINARY;
	size_t		len;
	const char *value = outbox_header_get(headers, "traceparent", &len);

	if (value == NULL || !outbox_traceparent_is_valid(value, len))
		return;
	own_line(request, "traceparent", 11, value, len);
	if (event)
		own_line(request, "ce-traceparent", 14, value, len);

	value = outbox_header_get(headers, "tracestate", &len);
	if (value == NULL || !outbox_tracestate_is_valid(value, len))
		return;
	own_line(request, "tracestate", 10, value, len);
	if (event)
		own_line(request, "ce-tracestate", 13, value, len);
}

/* True if the form already has a line of this name: the handler's word counts. */
static bool
form_has_line(const OutboxRequestForm *form, const char *name, size_t len)
{
	for (int i = 0; i < form->nheaders; i++)
	{
		if (pg_strncasecmp(form->headers[i], name, len) == 0 && form->headers[i][len] == ':')
			return true;
	}
	return false;
}

static void
write_own_headers(OutboxRequest *request, const OutboxRequestForm *form, const Jsonb *headers)
{
	JsonbIterator *iterator = NULL;
	JsonbValue	name;
	JsonbValue	value;
	int			written = 0;

	while (written < OUTBOX_MAX_OWN_HEADERS &&
		   outbox_header_next(headers, OUTBOX_HEADERS_OF_MESSAGE, &iterator, &name, &value))
	{
		const char *text = name.val.string.val;
		int			len = name.val.string.len;

		if ((len == 11 && pg_strncasecmp(text, "traceparent", len) == 0) ||
			(len == 10 && pg_strncasecmp(text, "tracestate", len) == 0) ||
			form_has_line(form, text, len))
			continue;
		own_line(request, text, len, value.val.string.val, value.val.string.len);
		written++;
	}
}

static void
write_event_headers(OutboxRequest *request, const OutboxMessage *message)
{
	start_line(request, "ce-id");
	outbox_append_uuid(&request->buffer, &message->id);
	end_line(request);
	data_line(request, "ce-type", message->topic);
	start_line(request, "ce-time");
	outbox_append_rfc3339(&request->buffer, message->staged_at);
	end_line(request);
	data_line(request, "ce-subject", message->key);
	data_line(request, "ce-partitionkey", message->key);
	data_line(request, "ce-tenant", message->tenant);
	data_line(request, "ce-correlationid", message->correlation_id);
}

static void
write_message_headers(OutboxRequest *request, const OutboxRequestForm *form,
					  const OutboxRequestItem *item)
{
	const OutboxMessage *message = item->message;

	data_line(request, "outbox-topic", message->topic);
	int_line(request, "outbox-attempt", item->attempt);
	data_line(request, "outbox-tenant", message->tenant);
	data_line(request, "outbox-key", message->key);
	data_line(request, "outbox-correlation-id", message->correlation_id);
	if (form->format == OUTBOX_FORMAT_CLOUDEVENTS_BINARY)
		write_event_headers(request, message);
	if (message->headers != NULL)
	{
		write_trace(request, form, message->headers);
		write_own_headers(request, form, message->headers);
	}
}

static bool
same_text(const char *a, const char *b)
{
	return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* A batch says of all its messages only what holds for each of them. */
static void
write_batch_headers(OutboxRequest *request, const OutboxRequestItem *items, int nitems)
{
	const char *topic = items[0].message->topic;
	const char *tenant = items[0].message->tenant;
	int			attempt = items[0].attempt;

	for (int i = 1; i < nitems; i++)
	{
		if (!same_text(topic, items[i].message->topic))
			topic = NULL;
		if (!same_text(tenant, items[i].message->tenant))
			tenant = NULL;
		attempt = Max(attempt, items[i].attempt);
	}
	int_line(request, "outbox-batch", nitems);
	data_line(request, "outbox-topic", topic);
	int_line(request, "outbox-attempt", attempt);
	data_line(request, "outbox-tenant", tenant);
}

/* Leave text as the body in the buffer, given that it is all the buffer holds, or lies outside of it. */
static void
keep_body(OutboxRequest *request, const char *text, size_t len)
{
	StringInfo	buffer = &request->buffer;

	if (text != buffer->data)
	{
		resetStringInfo(buffer);
		appendBinaryStringInfo(buffer, text, (int) len);
	}
	request->body_len = len;
	end_line(request);
}

/*
 * Write the body, or let it be the message's own bytes where those are the
 * body already.  request->body stays NULL while it lies in the buffer.
 */
static void
write_body(OutboxRequest *request, const OutboxRequestForm *form,
		   const OutboxRequestItem *items, int nitems)
{
	const OutboxMessage *message = items[0].message;
	bool		own_bytes = !form->batch && form->format != OUTBOX_FORMAT_ENVELOPE &&
		form->format != OUTBOX_FORMAT_CLOUDEVENTS;
	const char *text;
	const char *utf8;
	size_t		len;

	request->body = NULL;
	if (own_bytes)
	{
		text = message->payload;
		len = message->payload_len;
	}
	else
	{
		outbox_append_body(&request->buffer, form, items, nitems);
		text = request->buffer.data;
		len = request->buffer.len;
	}

	utf8 = outbox_to_utf8(text, len, &len);
	if (own_bytes && utf8 == text)
	{
		request->body = text;
		request->body_len = len;
		return;
	}
	keep_body(request, utf8, len);
	if (utf8 != text)
		pfree((void *) utf8);
}

void
outbox_request_write(OutboxRequest *request, const OutboxRequestForm *form,
					 const OutboxRequestItem *items, int nitems, TimestampTz now)
{
	Assert(nitems >= 1 && (form->batch || nitems == 1));

	begin(request);
	write_body(request, form, items, nitems);
	if (form->batch)
	{
		pg_uuid_t	id;

		outbox_batch_id(items, nitems, &id);
		write_webhook_headers(request, form, &id, now);
		write_batch_headers(request, items, nitems);
	}
	else
	{
		write_webhook_headers(request, form, &items[0].message->id, now);
		write_message_headers(request, form, &items[0]);
	}
	settle_lines(request);
	if (request->body == NULL)
		request->body = request->buffer.data;
}

void
outbox_request_free(OutboxRequest *request)
{
	if (request->buffer.data != NULL)
	{
		pfree(request->buffer.data);
		pfree(request->headers);
	}
	memset(request, 0, sizeof(*request));
}
