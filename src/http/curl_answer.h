/*-------------------------------------------------------------------------
 *
 * curl_answer.h
 *		The answer to one request of libcurl's, and what it comes to.
 *
 * Promises: one verdict for the same bytes whichever transport carried them.
 * libcurl finds where an answer of HTTP/1.x ends, but it takes much for an
 * answer that is none; so all that it reads is handed to our own parser, and
 * what that says counts.  HTTP/2 has no bytes to be parsed: there libcurl's
 * word is taken, together with what the headers announced.
 *
 * Two things it cannot give the same verdict of as the other transport, since
 * only libcurl has seen what counts.  Since 8.18 it unfolds header lines before
 * it hands them over: then what the parser would refuse of a line that
 * continues the status line has become a part of that, and a folded value can
 * have other blanks.  And when it cannot write the rest of a large body over
 * TLS, it gives the connection up, together with what TLS has not decoded yet:
 * where a receiver answers before it has read the request and resets the
 * connection at that moment, the answer may be lost, and the attempt fails as
 * "connect".  (Without TLS it is read from the socket before that is closed.)
 *
 * Process: the dispatcher.  Its callbacks neither raise nor leave by a jump.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_CURL_ANSWER_H
#define OUTBOX_HTTP_CURL_ANSWER_H

#include "http/fast/http1_parser.h"
#include "http/job.h"

typedef struct CurlAnswer
{
	OutboxJob  *job;
	HttpExchange *exchange;
	Http1Parser parser;			/* of HTTP/1.x */
	bool		framed;			/* by HTTP/2: the parser has no part in it */
	bool		begun;			/* something has come */
	bool		in_headers;		/* of the final answer, or before it */
	bool		complete;
	bool		enough;			/* has been read of its body */
	int64_t		announced;		/* the length of a framed body, -1: unknown */
	const char *fault;			/* static; why it is no answer */
} CurlAnswer;

/* Set the options of a handle through which an answer is heard.  They stay. */
extern CURLcode outbox_answer_listen(CurlAnswer *answer, CURL *easy);

/* Expect the answer to an exchange that a job is about to carry. */
extern void outbox_answer_expect(CurlAnswer *answer, OutboxJob *job, HttpExchange *exchange);

/*
 * The connection is about to be closed, and this has come on it that libcurl
 * did not read.
 */
extern void outbox_answer_last_words(CurlAnswer *answer, const char *data, size_t len);

/*
 * What it came to, now that libcurl is done: *message is for failures, NULL
 * if there is nothing to say.
 */
extern HttpFailure outbox_answer_judge(CurlAnswer *answer, CURLcode result, const char **message);

#endif							/* OUTBOX_HTTP_CURL_ANSWER_H */
