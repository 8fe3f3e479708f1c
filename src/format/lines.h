/*-------------------------------------------------------------------------
 *
 * lines.h
 *		How the header lines of a request are written.
 *
 * For request.c and format.c.  A request is written into one buffer: first
 * the body, which the signature needs, then the header lines, each ended by a
 * NUL.  Lines are remembered by their offset while the buffer may still move;
 * request.c makes pointers of them at the end.
 *
 * Every request passes here several times, so what has a literal for a name
 * is a macro that knows its length.  Neither SPI nor curl.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_LINES_H
#define OUTBOX_LINES_H

#include "format/encode.h"
#include "format/own_headers.h"
#include "format/request.h"

/* Remember that a line begins here. */
static inline void
outbox_note_line(OutboxRequest *request)
{
	if (request->nheaders >= request->max_headers)
	{
		/* What is noted must be true if there is no memory, too: the request is written again then. */
		request->headers = repalloc(request->headers,
									2 * request->max_headers * sizeof(const char *));
		request->max_headers *= 2;
	}
	request->headers[request->nheaders++] = (const char *) (uintptr_t) request->buffer.len;
}

/* Begin a line; what is appended next belongs to it.  name is a literal. */
#define start_line(request, name) \
	do { \
		outbox_note_line(request); \
		appendBinaryStringInfo(&(request)->buffer, name ": ", sizeof(name ": ") - 1); \
	} while (0)

#define end_line(request) appendStringInfoCharMacro(&(request)->buffer, '\0')

/* A line whose value comes from data; none if there is no value. */
#define data_line(request, name, text) \
	do { \
		if ((text) != NULL) \
			data_line_with_len(request, name, text, strlen(text)); \
	} while (0)

#define data_line_with_len(request, name, text, len) \
	do { \
		start_line(request, name); \
		outbox_append_header_value(&(request)->buffer, text, len, OUTBOX_VALUE_DATA); \
		end_line(request); \
	} while (0)

#define int_line(request, name, number) \
	do { \
		start_line(request, name); \
		outbox_append_int(&(request)->buffer, number); \
		end_line(request); \
	} while (0)

#define uuid_line(request, name, id) \
	do { \
		start_line(request, name); \
		outbox_append_uuid(&(request)->buffer, id); \
		end_line(request); \
	} while (0)

/* A line as its author wrote it; the name is not a literal. */
static inline void
outbox_own_line(OutboxRequest *request, const char *name, size_t name_len,
				const char *value, size_t value_len)
{
	outbox_note_line(request);
	outbox_append_own_header(&request->buffer, name, name_len, value, value_len);
}

#endif							/* OUTBOX_LINES_H */
