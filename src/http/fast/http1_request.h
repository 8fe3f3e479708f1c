/*-------------------------------------------------------------------------
 *
 * http1_request.h
 *		Writes the head of a POST in HTTP/1.1.
 *
 * Pure: text in, text out, into buffers that are kept and grow to what is
 * usual.  The part that all requests of a target share is written once.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP1_REQUEST_H
#define OUTBOX_HTTP1_REQUEST_H

#include "http/transport.h"

typedef struct Http1Buffer
{
	char	   *data;
	size_t		len;
	size_t		room;
} Http1Buffer;

/* Room for so many more bytes.  False: out of memory, and nothing has changed. */
extern bool outbox_http1_reserve(Http1Buffer *buffer, size_t more);

/* Append; room must have been reserved. */
extern void outbox_http1_append(Http1Buffer *buffer, const char *data, size_t len);

extern void outbox_http1_free(Http1Buffer *buffer);

/*
 * What the requests of a target begin with: request line, host, its own lines.
 * resource is path and query, authority is what the host header says.
 * False: out of memory.
 */
extern bool outbox_http1_write_shared(Http1Buffer *buffer, const HttpTarget *target,
									  const char *resource, const char *authority);

/* A whole head: what is shared, the exchange's lines, the length of its body. */
extern bool outbox_http1_write_head(Http1Buffer *buffer, const Http1Buffer *shared,
									const HttpExchange *exchange);

#endif							/* OUTBOX_HTTP1_REQUEST_H */
