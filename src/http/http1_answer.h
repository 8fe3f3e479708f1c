/*-------------------------------------------------------------------------
 *
 * http1_answer.h
 *		Answers of HTTP/1.x on their way from the parser into their exchange.
 *
 * Both transports read with the same parser (fast/http1_parser.h), and what
 * it finds goes where HttpExchange says.  No curl, no sockets.  Process: the
 * dispatcher.  Single-threaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_HTTP1_ANSWER_H
#define OUTBOX_HTTP_HTTP1_ANSWER_H

#include "http/exchange.h"
#include "http/fast/http1_parser.h"

/*
 * Read on, as outbox_http1_feed() does.  *enough is set once no more of the
 * body is wanted: whatever has come then counts as the whole.
 */
extern Http1Result outbox_http1_read_answer(Http1Parser *parser, const char *data, size_t len, size_t *used,
											HttpExchange *exchange, bool *enough);

#endif							/* OUTBOX_HTTP_HTTP1_ANSWER_H */
