/*-------------------------------------------------------------------------
 *
 * request.c
 *		From messages to what is sent: body and header lines.
 *
 * Promises: see request.h.
 *
 * How lines are written: see lines.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "mb/pg_wchar.h"
#include "utils/timestamp.h"

#include "common/ascii.h"
#include "format/encode.h"
#include "format/lines.h"
#include "format/own_headers.h"
#include "format/payload_text.h"
#include "format/request.h"
#include "format/trace.h"

#define SOURCE_PREFIX "/outbox/"
#define CE_SOURCE "ce-source"

/* Lines that request.c itself writes for one request, and then some. */
#define MAX_FIXED_HEADERS 24

/* A request's buffer that grew beyond this is not kept for the next one. */
#define KEEP_BUFFER_SIZE (128 * 1024)

/* What header lines take, as a rule. */
#define LINES_ROOM 1024

/* 1970-01-01 in the server's own count of seconds. */
#define UNIX_EPOCH_OFFSET ((POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * INT64CONST(86400))

/*
 * Now that the buffer has come to rest, turn offsets into pointers.  Of the
 * parts of a body every second one is a large payload.
 */
static void
settle_lines(OutboxRequest *request)
{
	for (int i = 0; i < request->nheaders; i++)
		request->headers[i] = request->buffer.data + (uintptr_t) request->headers[i];
	for (int i = 0; i < request->nparts; i += 2)
		request->parts[i].iov_base = request->buffer.data + (uintptr_t) request->parts[i].iov_base;
}

static void
begin(OutboxRequest *request)
{
	if (request->buffer.data != NULL && request->buffer.maxlen > KEEP_BUFFER_SIZE)
		outbox_request_free(request);
	if (request->buffer.data == NULL)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(request->context ? request->context : CurrentMemoryContext);

		/* The buffer last: that it is there says that all is. */
		request->max_headers = MAX_FIXED_HEADERS;
		request->headers = palloc(request->max_headers * sizeof(const char *));
		initStringInfo(&request->buffer);
		MemoryContextSwitchTo(oldcontext);
	}
	resetStringInfo(&request->buffer);
	request->nheaders = 0;
	request->nparts = 0;
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

		if (outbox_same_word(text, len, "content-type") ||
			outbox_same_word(text, len, "user-agent") ||
			outbox_same_word(text, len, CE_SOURCE) ||
			(outbox_same_word(text, len, "authorization") && options->authorization != NULL))
			continue;
		outbox_own_line(lines, text, len, value.val.string.val, value.val.string.len);
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
		if (outbox_same_word(name.val.string.val, name.val.string.len, wanted))
			return pnstrdup(value.val.string.val, value.val.string.len);
	}
	return NULL;
}

static void
written_line(OutboxRequest *lines, const char *name, const char *value)
{
	if (value != NULL)
		outbox_own_line(lines, name, strlen(name), value, strlen(value));
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
		if (outbox_is_alnum((char) c) || c == '-' || c == '.' || c == '_' || c == '~')
			appendStringInfoChar(&source, c);
		else
			appendStringInfo(&source, "%%%02X", c);
	}
	if (utf8 != database)
		pfree((void *) utf8);
	return source.data;
}

static void
set_content_type(OutboxRequestForm *form, const char *value)
{
	StringInfoData line;

	initStringInfo(&line);
	outbox_append_own_header(&line, "content-type", strlen("content-type"), value, strlen(value));
	form->content_type = line.data;
	form->content_type_len = (int) strlen(line.data);
}

OutboxRequestForm *
outbox_request_form(const OutboxRequestOptions *options)
{
	OutboxRequestForm *form = palloc0(sizeof(OutboxRequestForm));
	OutboxRequest lines = {0};
	const OutboxFormat *format = options->format;
	const char *content_type = options->batch ? format->batch_content_type : format->content_type;
	const char *own;

	if (content_type == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("format %s cannot be sent in batches", format->name)));
	form->format = format;
	form->batch = options->batch;
	form->embeds = options->batch || format->append_head != NULL;
	own = handler_header(options, CE_SOURCE);
	form->source = own ? own : pstrdup(options->source);
	if (options->nsecrets > 0)
		form->signer = outbox_signer_create(options->nsecrets, options->secrets);

	begin(&lines);
	own = format->own_content_type ? handler_header(options, "content-type") : NULL;
	if (form->embeds)
		written_line(&lines, "content-type", own ? own : content_type);
	else
		set_content_type(form, own ? own : content_type);
	own = handler_header(options, "user-agent");
	written_line(&lines, "user-agent", own ? own : options->user_agent);
	data_line(&lines, "outbox-handler", options->handler);
	if (format->write_form_lines != NULL)
		format->write_form_lines(&lines, form);
	written_line(&lines, "authorization", options->authorization);
	write_handler_headers(&lines, options);
	settle_lines(&lines);

	form->headers = lines.headers;
	form->nheaders = lines.nheaders;
	return form;
}

/* The id that a batch goes by: the same for the same messages in the same order. */
static void
make_batch_id(const OutboxRequestItem *items, int nitems, pg_uuid_t *id)
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
		struct iovec whole = {(void *) request->body, request->body_len};
		struct iovec *body = &whole;
		int			nparts = 1;

		/* The buffer may move while the signature is appended to it. */
		memcpy(id_text, buffer->data + id_at, OUTBOX_UUID_TEXT_LEN);
		memcpy(time_text, buffer->data + time_at, time_len);
		enlargeStringInfo(buffer, outbox_signer_room(form->signer) + 32);
		if (request->nparts > 0)
		{
			nparts = request->nparts;
			body = palloc(sizeof(struct iovec) * nparts);
			memcpy(body, request->parts, sizeof(struct iovec) * nparts);
			for (int i = 0; i < nparts; i += 2)
				body[i].iov_base = buffer->data + (uintptr_t) body[i].iov_base;
		}
		else if (request->body == NULL)
			whole.iov_base = buffer->data;

		start_line(request, "webhook-signature");
		if (outbox_signer_append(form->signer, buffer, now, id_text, OUTBOX_UUID_TEXT_LEN,
								 time_text, time_len, body, nparts))
			end_line(request);
		else
			buffer->len = (int) (uintptr_t) request->headers[--request->nheaders];
		if (body != &whole)
			pfree(body);
	}

	uuid_line(request, "idempotency-key", id);
}

/* True if the form already has a line of this name: the handler's word counts. */
static bool
form_has_line(const OutboxRequestForm *form, const char *name, size_t len)
{
	for (int i = 0; i < form->nheaders; i++)
	{
		if (outbox_same_start(form->headers[i], name, len) && form->headers[i][len] == ':')
			return true;
	}
	return false;
}

/*
 * The message's traceparent and tracestate, which belong together: neither of
 * them if the handler has a word of its own in this.
 */
static void
write_trace(OutboxRequest *request, const OutboxRequestForm *form, const Jsonb *headers)
{
	OutboxTrace trace;

	if (!outbox_find_trace(headers, &trace) ||
		form_has_line(form, "traceparent", 11) || form_has_line(form, "tracestate", 10))
		return;
	outbox_own_line(request, "traceparent", 11, trace.parent, trace.parent_len);
	if (trace.state != NULL)
		outbox_own_line(request, "tracestate", 10, trace.state, trace.state_len);
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

		if (outbox_same_word(text, len, "traceparent") ||
			outbox_same_word(text, len, "tracestate") ||
			form_has_line(form, text, len))
			continue;
		outbox_own_line(request, text, len, value.val.string.val, value.val.string.len);
		written++;
	}
}

static void
write_content_type(OutboxRequest *request, const OutboxRequestForm *form, const OutboxMessage *message)
{
	if (message->content_type != NULL)
	{
		written_line(request, "content-type", message->content_type);
		return;
	}
	outbox_note_line(request);
	appendBinaryStringInfo(&request->buffer, form->content_type, form->content_type_len + 1);
}

static void
write_message_headers(OutboxRequest *request, const OutboxRequestForm *form,
					  const OutboxRequestItem *item)
{
	const OutboxMessage *message = item->message;

	if (form->content_type != NULL)
		write_content_type(request, form, message);
	data_line(request, "outbox-topic", message->topic);
	int_line(request, "outbox-attempt", item->attempt);
	data_line(request, "outbox-tenant", message->tenant);
	data_line(request, "outbox-key", message->key);
	data_line(request, "outbox-correlation-id", message->correlation_id);
	if (form->format->write_message_lines != NULL)
		form->format->write_message_lines(request, message);
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

/* Append a payload that is not large to JSON of ours. */
static void
append_embedded(StringInfo buffer, const OutboxMessage *message)
{
	OutboxPayloadText text;

	if (!outbox_payload_is_quoted(message->kind))
	{
		appendBinaryStringInfo(buffer, message->payload, (int) message->payload_len);
		return;
	}
	outbox_payload_text_begin(&text, message->kind, message->payload, message->payload_len, true);
	while (!outbox_payload_text_write(&text, buffer, PG_INT32_MAX))
		;
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

static void
add_part(OutboxRequest *request, const void *base, size_t len)
{
	if (request->nparts >= request->max_parts)
	{
		int			more = Max(4, 2 * request->max_parts);

		request->parts = request->parts == NULL ?
			MemoryContextAlloc(GetMemoryChunkContext(request->buffer.data), sizeof(struct iovec) * more) :
			repalloc(request->parts, sizeof(struct iovec) * more);
		request->max_parts = more;
	}
	request->parts[request->nparts++] = (struct iovec) {(void *) base, len};
	request->body_len += len;
}

/* Of what a database without an encoding holds, only this is JSON to anybody else. */
static void
check_utf8(const char *text, size_t len)
{
	if (GetDatabaseEncoding() == PG_SQL_ASCII)
		(void) pg_verify_mbstr(PG_UTF8, text, (int) len, false);
}

/* What the buffer holds from start on is a part of the body. */
static void
end_part(OutboxRequest *request, int start)
{
	StringInfo	buffer = &request->buffer;
	const char *text = buffer->data + start;
	size_t		len;
	const char *utf8 = outbox_to_utf8(text, buffer->len - start, &len);

	check_utf8(utf8, len);
	if (utf8 != text)
	{
		buffer->len = start;
		appendBinaryStringInfo(buffer, utf8, (int) len);
		pfree((void *) utf8);
	}
	add_part(request, (const void *) (uintptr_t) start, len);
}

/*
 * Append the messages to the buffer; but what is large is a part by itself,
 * between parts that lie in the buffer.
 */
static void
append_messages(OutboxRequest *request, const OutboxRequestForm *form,
				const OutboxRequestItem *items, int nitems)
{
	const OutboxFormat *format = form->batch && form->format->batch_items != NULL ?
		outbox_format_by_name(form->format->batch_items) : form->format;
	StringInfo	buffer = &request->buffer;
	int			start = 0;

	request->body_len = 0;
	for (int i = 0; i < nitems; i++)
	{
		const OutboxMessage *message = items[i].message;

		if (form->batch)
			appendStringInfoCharMacro(buffer, i == 0 ? '[' : ',');
		if (format->append_head != NULL)
			format->append_head(buffer, message, form->source);
		if (message->large)
		{
			end_part(request, start);
			add_part(request, message->payload, message->payload_len);
			start = buffer->len;
		}
		else
			append_embedded(buffer, message);
		if (format->tail != NULL)
			appendStringInfoString(buffer, format->tail);
	}
	if (form->batch)
		appendStringInfoCharMacro(buffer, ']');
	if (request->nparts > 0)
		end_part(request, start);
}

/*
 * Write the body, or let it be the message's own bytes where those are the
 * body already.  request->body stays NULL while it lies in the buffer, or in
 * parts.
 */
static void
write_body(OutboxRequest *request, const OutboxRequestForm *form,
		   const OutboxRequestItem *items, int nitems)
{
	const OutboxMessage *message = items[0].message;
	const char *text;
	const char *utf8;
	size_t		len;

	request->body = NULL;
	/* Nobody converts bytes, and a large text is in UTF-8 already. */
	if (!form->embeds && (message->large || message->kind == OUTBOX_PAYLOAD_BYTES))
	{
		request->body = message->payload;
		request->body_len = message->payload_len;
		return;
	}
	if (!form->embeds)
	{
		text = message->payload;
		len = message->payload_len;
	}
	else
	{
		append_messages(request, form, items, nitems);
		if (request->nparts > 0)
			return;
		text = request->buffer.data;
		len = request->buffer.len;
	}

	utf8 = outbox_to_utf8(text, len, &len);
	check_utf8(utf8, len);
	if (!form->embeds && utf8 == text)
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

		make_batch_id(items, nitems, &id);
		write_webhook_headers(request, form, &id, now);
		write_batch_headers(request, items, nitems);
	}
	else
	{
		write_webhook_headers(request, form, &items[0].message->id, now);
		write_message_headers(request, form, &items[0]);
	}
	settle_lines(request);
	if (request->body == NULL && request->nparts == 0)
		request->body = request->buffer.data;
}

size_t
outbox_request_room(const OutboxRequestForm *form, const OutboxMessage *message, size_t message_size)
{
	size_t		room = message_size + (form->batch ? 0 : LINES_ROOM);

	if (form->embeds && !message->large && outbox_payload_is_quoted(message->kind))
		room += outbox_payload_text_length(message->kind, message->payload, message->payload_len) - message->payload_len;
	/* The buffer doubles as it grows. */
	return 2 * room;
}

void
outbox_request_free(OutboxRequest *request)
{
	MemoryContext context = request->context;

	if (request->buffer.data != NULL)
	{
		pfree(request->buffer.data);
		pfree(request->headers);
		if (request->parts != NULL)
			pfree(request->parts);
	}
	memset(request, 0, sizeof(*request));
	request->context = context;
}
