/*-------------------------------------------------------------------------
 *
 * http1_request.c
 *		Writes the head of a POST in HTTP/1.1; see http1_request.h.
 *
 *-------------------------------------------------------------------------
 */
#include "http/fast/http1_request.h"

#include <stdlib.h>
#include <string.h>

#include "common/ascii.h"
#include "http/exchange.h"

#define FIRST_ROOM 1024

bool
outbox_http1_reserve(Http1Buffer *buffer, size_t more)
{
	size_t		room = buffer->room > 0 ? buffer->room : FIRST_ROOM;
	char	   *data;

	if (buffer->room - buffer->len >= more)
		return true;
	while (room - buffer->len < more)
		room *= 2;
	data = realloc(buffer->data, room);
	if (data == NULL)
		return false;
	buffer->data = data;
	buffer->room = room;
	return true;
}

void
outbox_http1_append(Http1Buffer *buffer, const char *data, size_t len)
{
	memcpy(buffer->data + buffer->len, data, len);
	buffer->len += len;
}

void
outbox_http1_free(Http1Buffer *buffer)
{
	free(buffer->data);
	memset(buffer, 0, sizeof(*buffer));
}

/* Reserve and append three pieces, any of which may be empty. */
static bool
write_pieces(Http1Buffer *buffer, const char *a, const char *b, const char *c)
{
	size_t		a_len = strlen(a),
				b_len = strlen(b),
				c_len = strlen(c);

	if (!outbox_http1_reserve(buffer, a_len + b_len + c_len))
		return false;
	outbox_http1_append(buffer, a, a_len);
	outbox_http1_append(buffer, b, b_len);
	outbox_http1_append(buffer, c, c_len);
	return true;
}

static bool
write_lines(Http1Buffer *buffer, const char **lines, int nlines)
{
	for (int i = 0; i < nlines; i++)
		if (outbox_header_is_sendable(lines[i]) && !write_pieces(buffer, lines[i], "\r\n", ""))
			return false;
	return true;
}

bool
outbox_http1_write_shared(Http1Buffer *buffer, const HttpTarget *target,
						  const char *resource, const char *authority)
{
	buffer->len = 0;
	return write_pieces(buffer, "POST ", resource, " HTTP/1.1\r\n") &&
		write_pieces(buffer, "host: ", authority, "\r\n") &&
		write_pieces(buffer, OUTBOX_ACCEPT_ENCODING, "\r\n", "") &&
		write_lines(buffer, target->headers, target->nheaders);
}

/* "content-length: N" and the blank line.  Written backwards from the end of a small text. */
static bool
write_length(Http1Buffer *buffer, size_t len)
{
	char		text[32];
	char	   *digit = text + sizeof(text);

	*--digit = '\0';
	do
	{
		*--digit = '0' + len % 10;
		len /= 10;
	} while (len > 0);
	return write_pieces(buffer, "content-length: ", digit, "\r\n\r\n");
}

bool
outbox_http1_write_head(Http1Buffer *buffer, const Http1Buffer *shared, const HttpExchange *exchange)
{
	buffer->len = 0;
	if (!outbox_http1_reserve(buffer, shared->len))
		return false;
	outbox_http1_append(buffer, shared->data, shared->len);
	return write_lines(buffer, exchange->headers, exchange->nheaders) &&
		write_length(buffer, exchange->body_len);
}
