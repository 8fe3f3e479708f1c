/*-------------------------------------------------------------------------
 *
 * curl_answer.c
 *		The answer to one request of libcurl's; see curl_answer.h.
 *
 * A callback that takes fewer bytes than it was given ends the transfer and,
 * in HTTP/1.x, its connection.  That is how an answer is refused, how reading
 * stops when there was enough, and how a connection is kept from being used
 * again on which more came than belonged to the answer.
 *
 *-------------------------------------------------------------------------
 */
#include "http/curl_answer.h"

#include <string.h>

#include "common/ascii.h"
#include "http/exchange.h"
#include "http/http1_answer.h"

/* Has libcurl sent the whole body of the request? */
static bool
is_request_sent(const CurlAnswer *answer)
{
	curl_off_t	sent = 0;

	return answer->exchange->body_len == 0 ||
		(curl_easy_getinfo(answer->job->easy, CURLINFO_SIZE_UPLOAD_T, &sent) == CURLE_OK &&
		 (size_t) sent >= answer->exchange->body_len);
}

/*
 * HTTP/1.x
 */

/* True: go on. */
static bool
parse(CurlAnswer *answer, const char *data, size_t len)
{
	size_t		used;

	switch (outbox_http1_read_answer(&answer->parser, data, len, &used, answer->exchange, &answer->enough))
	{
		case HTTP1_MORE:
			return !answer->enough;
		case HTTP1_BAD:
			answer->fault = answer->parser.error;
			return false;
		case HTTP1_DONE:
			break;
	}
	answer->complete = true;
	if (!answer->parser.reusable)
		outbox_job_forbid_reuse(answer->job);

	/* Whoever answers before having read the request need not read the rest of it. */
	return used == len && is_request_sent(answer);
}

/*
 * HTTP/2
 */

/* "HTTP/2 200"; 0 for what is no status. */
static int
status_of(const char *line, size_t len)
{
	const char *space = memchr(line, ' ', len);
	int			status = 0;

	if (space == NULL)
		return 0;
	for (const char *p = space + 1; p < line + len && outbox_is_digit(*p) && status < 1000; p++)
		status = status * 10 + (*p - '0');
	return status < 1000 ? status : 0;
}

static void
take_framed_header(CurlAnswer *answer, const char *line, size_t len)
{
	const char *colon = memchr(line, ':', len);
	const char *value;
	const char *end = line + len;

	if (colon == NULL)
		return;
	value = colon + 1;
	while (value < end && (*value == ' ' || *value == '\t'))
		value++;
	while (end > value && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ' || end[-1] == '\t'))
		end--;
	outbox_exchange_header(answer->exchange, line, colon - line, value, end - value);
	if (!outbox_same_word(line, colon - line, "content-length") || end - value > 18)
		return;
	answer->announced = 0;
	for (; value < end && outbox_is_digit(*value); value++)
		answer->announced = answer->announced * 10 + (*value - '0');
}

/* Is everything there that the headers announced?  Unless they left that open. */
static bool
is_framed_whole(const CurlAnswer *answer)
{
	int			status = answer->exchange->status;

	return !answer->in_headers && status >= 200 &&
		(status == 204 || status == 304 ||
		 (answer->announced >= 0 && answer->exchange->response_total >= (uint64_t) answer->announced));
}

static bool
framed_line_came(CurlAnswer *answer, const char *line, size_t len, bool blank)
{
	HttpExchange *exchange = answer->exchange;

	if (blank)
	{
		/* What follows a final answer's headers is its body, then trailers. */
		if (exchange->status >= 200)
			answer->in_headers = false;
		answer->complete = is_framed_whole(answer);
		return !answer->complete || is_request_sent(answer);
	}
	if (len >= 6 && memcmp(line, "HTTP/2", 6) == 0)
	{
		outbox_exchange_clear_answer(exchange);
		exchange->status = status_of(line, len);
		answer->announced = -1;
	}
	else
		take_framed_header(answer, line, len);
	return true;
}

/*
 * What libcurl calls
 */

/* The first line of an answer: who reads it?  False: it is none to this request. */
static bool
begin(CurlAnswer *answer, const char *line, size_t len)
{
	answer->framed = len >= 6 && memcmp(line, "HTTP/2", 6) == 0 && answer->job->target->http_version == 20;
	if (answer->framed)
		outbox_job_set_shared(answer->job);
	else if (outbox_job_came_unasked(answer->job))
		return false;
	answer->begun = true;
	return true;
}

/* One line of an answer, its line end included; trailers too, which mean nothing to us. */
static size_t
header_came(char *line, size_t size, size_t n, void *arg)
{
	CurlAnswer *answer = arg;
	size_t		len = size * n;
	bool		blank = len == 1 || (len == 2 && line[0] == '\r');
	bool		go_on;

	if (!answer->in_headers)
		return len;
	if (!answer->begun && !begin(answer, line, len))
		return 0;
	if (answer->framed)
		go_on = framed_line_came(answer, line, len, blank);
	else
	{
		go_on = parse(answer, line, len);
		if (blank && answer->exchange->status >= 200)
			answer->in_headers = false;
	}
	return go_on ? len : 0;
}

static size_t
body_came(char *data, size_t size, size_t n, void *arg)
{
	CurlAnswer *answer = arg;
	size_t		len = size * n;
	bool		go_on;

	if (len == 0)
		return 0;
	if (!answer->framed)
		go_on = !answer->complete && parse(answer, data, len);
	else
	{
		answer->enough = !outbox_exchange_body(answer->exchange, data, len);
		answer->complete = is_framed_whole(answer);
		go_on = !answer->enough && (!answer->complete || is_request_sent(answer));
	}
	return go_on ? len : 0;
}

CURLcode
outbox_answer_listen(CurlAnswer *answer, CURL *easy)
{
	CURLcode	result = curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, header_came);

	if (result == CURLE_OK)
		result = curl_easy_setopt(easy, CURLOPT_HEADERDATA, answer);
	if (result == CURLE_OK)
		result = curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, body_came);
	if (result == CURLE_OK)
		result = curl_easy_setopt(easy, CURLOPT_WRITEDATA, answer);

	/* The parser takes chunks apart itself.  libcurl still finds their end. */
	if (result == CURLE_OK)
		result = curl_easy_setopt(easy, CURLOPT_HTTP_TRANSFER_DECODING, 0L);
	return result;
}

void
outbox_answer_expect(CurlAnswer *answer, OutboxJob *job, HttpExchange *exchange)
{
	answer->job = job;
	answer->exchange = exchange;
	answer->framed = false;
	answer->begun = false;
	answer->in_headers = true;
	answer->complete = false;
	answer->enough = false;
	answer->announced = -1;
	answer->fault = NULL;
	outbox_http1_start(&answer->parser);
}

void
outbox_answer_last_words(CurlAnswer *answer, const char *data, size_t len)
{
	/* Once libcurl has begun to read there may be a part of a line that only it knows. */
	if (answer->begun || len == 0)
		return;
	answer->begun = true;
	(void) parse(answer, data, len);
}

/*
 * Verdicts
 */

/* The transfer is over, but the answer was not complete by itself. */
static HttpFailure
judge_end(CurlAnswer *answer, CURLcode result, const char **message)
{
	if (result == CURLE_OK && !answer->framed)
	{
		if (outbox_http1_eof(&answer->parser) == HTTP1_DONE)
			return HTTP_ANSWERED;
		*message = answer->parser.error;
		return HTTP_FAILED_BODY;
	}
	if (answer->framed && !answer->in_headers && answer->exchange->status >= 200 &&
		(result == CURLE_OK || outbox_job_was_closed_cleanly(answer->job)))
		return HTTP_ANSWERED;
	if (result == CURLE_OK)
	{
		*message = "the stream was closed within the headers of the answer";
		return HTTP_FAILED_BODY;
	}
	if (result == CURLE_PARTIAL_FILE && !answer->framed && outbox_http1_eof(&answer->parser) != HTTP1_DONE)
		*message = answer->parser.error;
	else
		*message = outbox_job_message(answer->job, HTTP_FAILED_BODY, result);
	return HTTP_FAILED_BODY;
}

/* Less than a line has come, which libcurl keeps to itself. */
static bool
ended_in_first_line(const CurlAnswer *answer, CURLcode result)
{
	return answer->job->spoken_to && !outbox_job_is_shared(answer->job) &&
		(result == CURLE_GOT_NOTHING || result == CURLE_RECV_ERROR || result == CURLE_ABORTED_BY_CALLBACK);
}

HttpFailure
outbox_answer_judge(CurlAnswer *answer, CURLcode result, const char **message)
{
	HttpFailure failure;

	*message = NULL;
	if (answer->fault != NULL)
	{
		*message = answer->fault;
		return HTTP_FAILED_BODY;
	}
	if (answer->complete || answer->enough)
		return HTTP_ANSWERED;
	if (answer->begun || result == CURLE_OK)
		return judge_end(answer, result, message);
	if (ended_in_first_line(answer, result))
	{
		*message = "the connection was closed within the headers of the answer";
		return HTTP_FAILED_BODY;
	}
	failure = outbox_job_failure(answer->job, result, false);
	*message = outbox_job_message(answer->job, failure, result);
	return failure;
}
