/*-------------------------------------------------------------------------
 *
 * exchange.c
 *		An exchange on its way through this library; see exchange.h.
 *
 * While an exchange is out, HttpExchange.transport_data belongs to the
 * transport that carries it; the response pointer tells whether a buffer is
 * held.  A buffer is preceded by its header, so nothing else remembers it.
 *
 *-------------------------------------------------------------------------
 */
#include "http/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/ascii.h"
#include "http/clock.h"
#include "http/decode.h"

#define FIRST_CAPTURE 512
#define KEPT_CAPTURE_SIZE 8192	/* larger buffers are not kept for reuse */
#define KEPT_CAPTURES 256

typedef struct Capture
{
	struct Capture *next;
	size_t		size;
	char		data[];
} Capture;

static Capture *kept;
static int	nkept;

static HttpExchange *first_done;
static HttpExchange *last_done;
static int	nout;

static Capture *
capture_of(const HttpExchange *exchange)
{
	return (Capture *) (exchange->response - offsetof(Capture, data));
}

static void
drop_capture(HttpExchange *exchange)
{
	Capture    *capture;

	if (exchange->response == NULL)
		return;
	capture = capture_of(exchange);
	exchange->response = NULL;
	if (capture->size > KEPT_CAPTURE_SIZE || nkept >= KEPT_CAPTURES)
	{
		free(capture);
		return;
	}
	capture->next = kept;
	kept = capture;
	nkept++;
}

/* A buffer that holds len bytes; false when there is no memory for it. */
static bool
grow_capture(HttpExchange *exchange, size_t len)
{
	Capture    *capture = exchange->response != NULL ? capture_of(exchange) : NULL;
	size_t		size;

	if (capture == NULL && kept != NULL)
	{
		capture = kept;
		kept = capture->next;
		nkept--;
		exchange->response = capture->data;
	}
	if (capture != NULL && capture->size >= len)
		return true;
	size = capture != NULL ? capture->size : FIRST_CAPTURE;
	while (size < len)
		size *= 2;
	capture = realloc(capture, offsetof(Capture, data) + size);
	if (capture == NULL)
		return false;
	capture->size = size;
	exchange->response = capture->data;
	return true;
}

static void
drop_kept(HttpExchange *exchange)
{
	free((char *) exchange->kept);
	exchange->kept = NULL;
	exchange->kept_len = 0;
}

void
outbox_exchange_clear_answer(HttpExchange *exchange)
{
	drop_capture(exchange);
	drop_kept(exchange);
	exchange->status = 0;
	exchange->retry_after[0] = '\0';
	exchange->outcome[0] = '\0';
	exchange->content_type[0] = '\0';
	exchange->content_encoding[0] = '\0';
	exchange->location[0] = '\0';
	exchange->encoded = false;
	exchange->response_len = 0;
	exchange->response_total = 0;
}

void
outbox_exchange_begin(HttpExchange *exchange)
{
	exchange->failure = HTTP_ANSWERED;
	exchange->shortage = HTTP_LACKS_NOTHING;
	exchange->error[0] = '\0';
	exchange->response = NULL;
	exchange->kept = NULL;
	exchange->reused = false;
	exchange->resent = false;
	exchange->next = NULL;
	exchange->sent_us = outbox_clock_us();
	exchange->done_us = 0;
	outbox_exchange_clear_answer(exchange);
	nout++;
}

static void
keep_value(char *where, const char *value, size_t len)
{
	/* The first of several counts, as it does for libcurl. */
	if (where[0] != '\0')
		return;
	if (len >= HTTP_HEADER_LEN)
		len = HTTP_HEADER_LEN - 1;
	memcpy(where, value, len);
	where[len] = '\0';
}

/* Several headers are one list.  One that is too long is none that could be undone, so may be cut. */
static void
keep_coding(HttpExchange *exchange, const char *value, size_t len)
{
	char	   *where = exchange->content_encoding;
	size_t		before = strlen(where);

	if (before == 0)
		keep_value(where, value, len);
	else
		snprintf(where + before, HTTP_HEADER_LEN - before, ", %.*s", (int) len, value);
}

/* Without memory, or room, the header is lost; the answer still counts. */
static void
keep_header(HttpExchange *exchange, int name, const char *value, size_t len)
{
	char	   *where;

	if (exchange->kept == NULL)
		exchange->kept = malloc(HTTP_KEPT_LEN);
	if (exchange->kept == NULL || exchange->kept_len + 2 > HTTP_KEPT_LEN)
		return;
	if (len >= HTTP_HEADER_LEN)
		len = HTTP_HEADER_LEN - 1;
	if (len > HTTP_KEPT_LEN - exchange->kept_len - 2)
		len = HTTP_KEPT_LEN - exchange->kept_len - 2;
	/* A value ends where it has a NUL, which no transport lets through. */
	if (memchr(value, '\0', len) != NULL)
		return;
	where = (char *) exchange->kept + exchange->kept_len;
	where[0] = (char) name;
	memcpy(where + 1, value, len);
	where[1 + len] = '\0';
	exchange->kept_len += len + 2;
}

/* Which of the names it is; -1 for none. */
static int
find_kept_name(const HttpExchange *exchange, const char *name, size_t name_len)
{
	for (int i = 0; i < exchange->nkept_names; i++)
	{
		if (outbox_same_word(name, name_len, exchange->kept_names[i]))
			return i;
	}
	return -1;
}

bool
outbox_exchange_wants(const HttpExchange *exchange, const char *name, size_t name_len)
{
	return find_kept_name(exchange, name, name_len) >= 0;
}

void
outbox_exchange_header(HttpExchange *exchange, const char *name, size_t name_len,
					   const char *value, size_t value_len)
{
	int			kept = find_kept_name(exchange, name, name_len);

	if (kept >= 0)
		keep_header(exchange, kept, value, value_len);
	if (outbox_same_word(name, name_len, "retry-after"))
		keep_value(exchange->retry_after, value, value_len);
	else if (outbox_same_word(name, name_len, "outbox-outcome"))
		keep_value(exchange->outcome, value, value_len);
	else if (outbox_same_word(name, name_len, "content-type"))
		keep_value(exchange->content_type, value, value_len);
	else if (outbox_same_word(name, name_len, "content-encoding"))
		keep_coding(exchange, value, value_len);
	else if (outbox_same_word(name, name_len, "location"))
		keep_value(exchange->location, value, value_len);
}

static size_t
longest_answer(const HttpExchange *exchange)
{
	return exchange->capture_limit > HTTP_LONGEST_ANSWER ? exchange->capture_limit : HTTP_LONGEST_ANSWER;
}

bool
outbox_exchange_body(HttpExchange *exchange, const char *data, size_t len)
{
	size_t		wanted = exchange->capture_limit - exchange->response_len;

	exchange->response_total += len;
	if (len < wanted)
		wanted = len;

	/* Without memory the body is lost; the answer still counts. */
	if (wanted > 0 && grow_capture(exchange, exchange->response_len + wanted))
	{
		memcpy((char *) exchange->response + exchange->response_len, data, wanted);
		exchange->response_len += wanted;
	}
	return exchange->response_total <= longest_answer(exchange);
}

/* The captured body is of no use to anybody. */
static void
give_up_body(HttpExchange *exchange)
{
	exchange->encoded = true;
	drop_capture(exchange);
	exchange->response_len = 0;
	if (exchange->capture_limit > 0)
		snprintf(exchange->error, HTTP_ERROR_LEN,
				 "the receiver answered %d with a body in the content coding \"%.100s\", which could not be read",
				 exchange->status, exchange->content_encoding);
}

/* Decode what was captured, if the receiver has encoded it. */
static void
undo_encoding(HttpExchange *exchange)
{
	const char *coding = exchange->content_encoding;
	bool		whole = exchange->response_len == exchange->response_total;
	Capture    *capture;
	size_t		len;

	if (coding[0] == '\0' || exchange->response_total == 0 ||
		outbox_same_word(coding, strlen(coding), "identity"))
		return;
	capture = exchange->response_len > 0 ? malloc(offsetof(Capture, data) + exchange->capture_limit) : NULL;
	if (capture == NULL)
	{
		give_up_body(exchange);
		return;
	}
	capture->size = exchange->capture_limit;
	switch (outbox_decode(coding, exchange->response, exchange->response_len, capture->data, capture->size, &len))
	{
		case OUTBOX_DECODED:
			break;
		case OUTBOX_DECODED_PART:
			whole = false;
			break;
		case OUTBOX_NOT_DECODED:
			free(capture);
			give_up_body(exchange);
			return;
	}
	drop_capture(exchange);
	exchange->response = capture->data;
	exchange->response_len = len;
	exchange->response_total = whole ? len : len + 1;
}

void
outbox_exchange_finish(HttpExchange *exchange, HttpFailure failure, const char *message)
{
	exchange->failure = failure;
	exchange->done_us = outbox_clock_us();
	if (message != NULL)
	{
		strncpy(exchange->error, message, HTTP_ERROR_LEN - 1);
		exchange->error[HTTP_ERROR_LEN - 1] = '\0';
	}
	if (failure == HTTP_ANSWERED)
		undo_encoding(exchange);
	exchange->transport_data = NULL;
	exchange->next = NULL;
	if (last_done != NULL)
		last_done->next = exchange;
	else
		first_done = exchange;
	last_done = exchange;
	nout--;
}

/* Has it been finished and not been handed back? */
static bool
is_queued(const HttpExchange *exchange)
{
	return exchange->next != NULL || exchange == last_done;
}

void
outbox_exchange_abandon(HttpExchange *exchange)
{
	HttpExchange *previous = NULL;

	if (!is_queued(exchange))
		nout--;
	else
	{
		for (HttpExchange *e = first_done; e != exchange; e = e->next)
			previous = e;
		if (previous != NULL)
			previous->next = exchange->next;
		else
			first_done = exchange->next;
		if (last_done == exchange)
			last_done = previous;
		exchange->next = NULL;
	}
	exchange->transport_data = NULL;
	outbox_exchange_release(exchange);
}

HttpExchange *
outbox_exchange_next_done(void)
{
	HttpExchange *exchange = first_done;

	if (exchange == NULL)
		return NULL;
	first_done = exchange->next;
	if (first_done == NULL)
		last_done = NULL;
	exchange->next = NULL;
	return exchange;
}

void
outbox_exchange_release(HttpExchange *exchange)
{
	drop_capture(exchange);
	drop_kept(exchange);
	exchange->response_len = 0;
}

int
outbox_exchange_in_flight(void)
{
	return nout;
}

void
outbox_exchange_reset(void)
{
	while (kept != NULL)
	{
		Capture    *capture = kept;

		kept = capture->next;
		free(capture);
	}
	nkept = 0;
	first_done = last_done = NULL;
	nout = 0;
}

static bool
is_named(const char *line, const char *name)
{
	size_t		len = strlen(name);

	return outbox_same_start(line, name, len) && line[len] == ':';
}

bool
outbox_header_is_sendable(const char *line)
{
	switch (line[0] | 0x20)
	{
		case 'a':
			return !is_named(line, "accept-encoding");
		case 'c':
			return !is_named(line, "content-length") && !is_named(line, "connection");
		case 'e':
			return !is_named(line, "expect");
		case 'h':
			return !is_named(line, "host");
		case 'k':
			return !is_named(line, "keep-alive");
		case 'p':
			return !is_named(line, "proxy-connection");
		case 't':
			return !is_named(line, "transfer-encoding") && !is_named(line, "te") &&
				!is_named(line, "trailer");
		case 'u':
			return !is_named(line, "upgrade");
		default:
			return true;
	}
}

bool
outbox_headers_are_broken(const char **lines, int nlines)
{
	for (int i = 0; i < nlines; i++)
	{
		size_t		len = strlen(lines[i]);
		const char *colon = memchr(lines[i], ':', len);

		if (colon == NULL || colon == lines[i] ||
			memchr(lines[i], '\n', len) != NULL || memchr(lines[i], '\r', len) != NULL)
			return true;
	}
	return false;
}
