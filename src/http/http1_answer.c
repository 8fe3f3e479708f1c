/*-------------------------------------------------------------------------
 *
 * http1_answer.c
 *		Answers of HTTP/1.x on their way from the parser into their exchange.
 *
 *-------------------------------------------------------------------------
 */
#include "http/http1_answer.h"

typedef struct Reading
{
	HttpExchange *exchange;
	bool	   *enough;
} Reading;

static void
status_came(void *arg, int status)
{
	Reading    *reading = arg;

	reading->exchange->status = status;
}

static void
header_came(void *arg, const char *name, size_t name_len, const char *value, size_t value_len)
{
	Reading    *reading = arg;

	outbox_exchange_header(reading->exchange, name, name_len, value, value_len);
}

static void
piece_came(void *arg, const char *data, size_t len)
{
	Reading    *reading = arg;

	if (!outbox_exchange_body(reading->exchange, data, len))
		*reading->enough = true;
}

static bool
is_wanted(void *arg, const char *name, size_t name_len)
{
	return outbox_exchange_wants(((Reading *) arg)->exchange, name, name_len);
}

Http1Result
outbox_http1_read_answer(Http1Parser *parser, const char *data, size_t len, size_t *used,
						 HttpExchange *exchange, bool *enough)
{
	static const Http1Sink plain = {status_came, header_came, piece_came, NULL};
	static const Http1Sink keeping = {status_came, header_came, piece_came, is_wanted};
	Reading		reading = {exchange, enough};

	return outbox_http1_feed(parser, data, len, used, exchange->nkept_names > 0 ? &keeping : &plain, &reading);
}
