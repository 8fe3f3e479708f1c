/*-------------------------------------------------------------------------
 *
 * curl_transport.c
 *		The transport "curl": ordinary libcurl transfers.
 *
 * Carries everything, HTTP/2 included.  An easy handle keeps its target's
 * options between requests, so that a request sets only its body; the list of
 * its header lines is our own and points to the caller's strings.
 *
 * The total timeout is ours, not libcurl's: libcurl judges it before it looks
 * at the socket, and would call an answer late that has been waiting there
 * while the dispatcher was busy with the database.
 *
 * Process: the dispatcher; see transport.h.
 *
 *-------------------------------------------------------------------------
 */
#include "http/curl_transport.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/ascii.h"
#include "http/clock.h"
#include "http/curl_answer.h"
#include "http/deadline.h"
#include "http/exchange.h"
#include "http/factory.h"
#include "http/fast/http1_request.h"
#include "http/job.h"
#include "http/list.h"
#include "http/sockets.h"

/* Idle easy handles kept for a target: as many as it may use at once, and at least so many. */
#define KEPT_TRANSFERS 16

/* At most so many lines keep libcurl from adding headers of its own or are ours, and one node may stand for many. */
#define EXTRA_NODES 5

/* Of shorter bodies no release of libcurl asks beforehand whether they are welcome. */
#define EXPECT_MIN_BODY 1024

struct CurlTarget;

typedef struct CurlTransfer
{
	OutboxJob	job;			/* first */
	OutboxDeadline deadline;
	struct CurlTarget *target;
	HttpExchange *exchange;		/* NULL: idle */
	struct curl_slist *nodes;	/* the list of header lines that libcurl reads */
	int			room;			/* of nodes */
	Http1Buffer block;			/* the lines that go as one */
	int			part;			/* of a body in parts, the one that libcurl reads */
	size_t		part_done;
	CurlAnswer	answer;
	struct CurlTransfer *next;	/* among the idle ones of its target */
	OutboxLink	out;			/* among all that are out */
} CurlTransfer;

typedef struct CurlTarget
{
	OutboxTargetState state;	/* first */
	bool		broken;			/* one of its headers cannot be sent */
	CurlTransfer *idle;
	int			nidle;
	int			nout;
	int			generation;		/* of its connections of HTTP/2 */
	int64_t		generation_since;	/* 0: none was opened yet */
	CurlTransfer *pioneer;		/* opens the first of the next generation, NULL: none does */
} CurlTarget;

/* So many generations there are, of which one follows the other. */
#define GENERATIONS 4

static OutboxEngine engine;
static OutboxDeadlines deadlines;
static OutboxLink out = OUTBOX_LIST(out);

/*
 * Transfers
 */

static void
free_transfer(CurlTransfer *transfer)
{
	if (transfer->target->pioneer == transfer)
		transfer->target->pioneer = NULL;
	outbox_job_free(&transfer->job);
	outbox_http1_free(&transfer->block);
	free(transfer->nodes);
	free(transfer);
}

/*
 * A connection of HTTP/2 that is busy all the time would live for ever, and
 * one that is dead would be used until it is found to be.  So there are
 * generations of them: what is sent from now on uses none of those before.
 */
static void
begin_generation(CurlTarget *target, int64_t now)
{
	target->generation = (target->generation + 1) % GENERATIONS;
	target->generation_since = now;
}

/* What is sent from now on is not to use this transfer's connection of HTTP/2. */
static void
leave_generation(const CurlTransfer *transfer)
{
	if (transfer->job.generation == transfer->target->generation)
		begin_generation(transfer->target, outbox_clock_us());
}

/* Take a transfer from libcurl and make it idle. */
static void
retire(CurlTransfer *transfer)
{
	CurlTarget *target = transfer->target;
	int			kept = transfer->job.target->max_connections;

	outbox_job_stop(&transfer->job);
	if (target->pioneer == transfer)
	{
		target->pioneer = NULL;
		if (transfer->job.connected)
			begin_generation(target, outbox_clock_us());
	}
	outbox_deadline_clear(&deadlines, &transfer->deadline);
	outbox_list_remove(&transfer->out);
	target->nout--;
	transfer->exchange = NULL;
	if (target->nidle >= kept && target->nidle >= KEPT_TRANSFERS)
	{
		free_transfer(transfer);
		return;
	}
	transfer->next = target->idle;
	target->idle = transfer;
	target->nidle++;
}

/*
 * Was a request ended by its connection, which it shared with others, and not
 * by an answer of its own?  One of them may have made the receiver end it, and
 * nobody can tell which.  So each goes out once more by itself: whichever it
 * was ends nothing but its own connection then, and the others are answered.
 */
static bool
lost_its_connection(const CurlTransfer *transfer, HttpFailure failure, CURLcode result)
{
	const OutboxJob *job = &transfer->job;

	if (failure == HTTP_ANSWERED || job->alone || !outbox_job_is_shared(job) || transfer->answer.fault != NULL)
		return false;
	switch (result)
	{
		case CURLE_HTTP2:
		case CURLE_HTTP2_STREAM:
			return !outbox_job_was_reset(job);
		case CURLE_SEND_ERROR:
		case CURLE_RECV_ERROR:
		case CURLE_GOT_NOTHING:
		case CURLE_PARTIAL_FILE:
		case CURLE_ABORTED_BY_CALLBACK:
			return true;
		default:
			return false;
	}
}

static void
transfer_done(OutboxJob *job, CURLcode result)
{
	CurlTransfer *transfer = (CurlTransfer *) job;
	HttpExchange *exchange = transfer->exchange;
	const char *message;
	HttpFailure failure = outbox_answer_judge(&transfer->answer, result, &message);

	if (lost_its_connection(transfer, failure, result) && outbox_job_again_alone(job))
	{
		outbox_exchange_clear_answer(exchange);
		outbox_answer_expect(&transfer->answer, job, exchange);
		return;
	}
	if (exchange->status < 200)
		exchange->status = 0;
	if (job->connected)
		transfer->target->state.reached = true;
	exchange->resent = job->resent;
	exchange->reused = job->connected && job->reused;
	if (failure == HTTP_NOT_SENT)
		exchange->shortage = outbox_job_shortage(job, result);

	/* What the receiver still has to say on a stream that we left may be a burden to those that follow. */
	if (transfer->answer.enough)
	{
		outbox_job_doom_connection(job);
		leave_generation(transfer);
	}
	outbox_exchange_finish(exchange, failure, message);
	retire(transfer);
}

/* libcurl rewinds what it repeats by itself, but not what is started again. */
static void
begins(OutboxJob *job)
{
	CurlTransfer *transfer = (CurlTransfer *) job;

	transfer->part = 0;
	transfer->part_done = 0;
}

static bool
is_unanswered(const OutboxJob *job)
{
	return !((const CurlTransfer *) job)->answer.begun && !job->spoken_to;
}

static void
last_words(OutboxJob *job, const char *data, size_t len)
{
	outbox_answer_last_words(&((CurlTransfer *) job)->answer, data, len);
}

static CurlTransfer *
new_transfer(CurlTarget *target)
{
	CurlTransfer *transfer = calloc(1, sizeof(CurlTransfer));

	if (transfer == NULL)
		return NULL;
	transfer->target = target;
	transfer->job.done = transfer_done;
	transfer->job.begins = begins;
	transfer->job.is_unanswered = is_unanswered;
	transfer->job.last_words = last_words;
	return transfer;
}

/* libcurl asks for more of a body that is in parts. */
static size_t
read_body(char *to, size_t size, size_t n, void *arg)
{
	CurlTransfer *transfer = arg;
	const HttpExchange *exchange = transfer->exchange;
	size_t		room = size * n;
	size_t		len = 0;

	while (len < room && transfer->part < exchange->nparts)
	{
		const struct iovec *part = &exchange->parts[transfer->part];
		size_t		more = part->iov_len - transfer->part_done;

		if (more > room - len)
			more = room - len;
		memcpy(to + len, (const char *) part->iov_base + transfer->part_done, more);
		len += more;
		transfer->part_done += more;
		if (transfer->part_done == part->iov_len)
		{
			transfer->part++;
			transfer->part_done = 0;
		}
	}
	return len;
}

/* It sends the body anew, as a rule from its beginning. */
static int
seek_body(void *arg, curl_off_t offset, int origin)
{
	CurlTransfer *transfer = arg;
	const HttpExchange *exchange = transfer->exchange;
	size_t		rest = (size_t) offset;

	if (origin != SEEK_SET)
		return CURL_SEEKFUNC_CANTSEEK;
	for (transfer->part = 0; transfer->part < exchange->nparts; transfer->part++)
	{
		if (rest < exchange->parts[transfer->part].iov_len)
			break;
		rest -= exchange->parts[transfer->part].iov_len;
	}
	transfer->part_done = rest;
	return rest > 0 && transfer->part == exchange->nparts ? CURL_SEEKFUNC_FAIL : CURL_SEEKFUNC_OK;
}

/* Options that stay, beyond those of every job. */
static CURLcode
set_callbacks(CurlTransfer *transfer)
{
	CURL	   *easy = transfer->job.easy;
	CURLcode	result = curl_easy_setopt(easy, CURLOPT_POST, 1L);

	if (result == CURLE_OK)
		result = curl_easy_setopt(easy, CURLOPT_READFUNCTION, read_body);
	if (result == CURLE_OK)
		result = curl_easy_setopt(easy, CURLOPT_READDATA, transfer);
	if (result == CURLE_OK)
		result = curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, seek_body);
	if (result == CURLE_OK)
		result = curl_easy_setopt(easy, CURLOPT_SEEKDATA, transfer);
	return result == CURLE_OK ? outbox_answer_listen(&transfer->answer, transfer->job.easy) : result;
}

/* Room for n nodes. */
static CURLcode
reserve_nodes(CurlTransfer *transfer, int n)
{
	struct curl_slist *more;

	if (n <= transfer->room)
		return CURLE_OK;
	more = realloc(transfer->nodes, n * sizeof(struct curl_slist));
	if (more == NULL)
		return CURLE_OUT_OF_MEMORY;
	transfer->nodes = more;
	transfer->room = n;
	return curl_easy_setopt(transfer->job.easy, CURLOPT_HTTPHEADER, more);
}

/*
 * Does this line mean nothing to libcurl?  It looks through its list a dozen
 * times a request, for names such as "accept" or "cookie", and passes on
 * verbatim what it has found no use for: so the lines of which that is certain
 * go as one, with line ends in between.  Not so for HTTP/2, which takes a list
 * apart again.
 */
static bool
joins_block(const HttpTarget *target, const char *line)
{
	if (target->http_version == 20)
		return false;
	return outbox_same_start(line, "webhook-", 8) || outbox_same_start(line, "outbox-", 7) ||
		outbox_same_start(line, "idempotency-key:", 16) || outbox_same_start(line, "x-", 2);
}

static bool
add_to_block(Http1Buffer *block, const char *line)
{
	size_t		len = strlen(line);

	/* Room for the line, what separates it from the one before, and the end. */
	if (!outbox_http1_reserve(block, len + 3))
		return false;
	if (block->len > 0)
		outbox_http1_append(block, "\r\n", 2);
	outbox_http1_append(block, line, len);
	return true;
}

static void
add_node(CurlTransfer *transfer, int *n, const char *line)
{
	transfer->nodes[(*n)++].data = (char *) line;
}

/* False: out of memory. */
static bool
add_lines(CurlTransfer *transfer, int *n, const char **lines, int nlines)
{
	for (int i = 0; i < nlines; i++)
	{
		if (!outbox_header_is_sendable(lines[i]))
			continue;
		if (!joins_block(transfer->job.target, lines[i]))
			add_node(transfer, n, lines[i]);
		else if (!add_to_block(&transfer->block, lines[i]))
			return false;
	}
	return true;
}

static bool
has_content_type(const CurlTransfer *transfer, int n)
{
	for (int i = 0; i < n; i++)
		if (outbox_same_start(transfer->nodes[i].data, "content-type:", 13))
			return true;
	return false;
}

/* Keep libcurl from adding headers of its own. */
static void
add_suppressors(CurlTransfer *transfer, int *n, const HttpExchange *exchange)
{
	if (!has_content_type(transfer, *n))
		add_node(transfer, n, "Content-Type:");
	add_node(transfer, n, "Accept:");
	add_node(transfer, n, OUTBOX_ACCEPT_ENCODING);
	if (exchange->body_len >= EXPECT_MIN_BODY)
		add_node(transfer, n, "Expect:");
}

/* libcurl only reads the list, so its nodes may point to the caller's lines. */
static CURLcode
set_lines(CurlTransfer *transfer, const HttpExchange *exchange)
{
	const HttpTarget *target = exchange->target;
	Http1Buffer *block = &transfer->block;
	CURLcode	result = reserve_nodes(transfer, exchange->nheaders + target->nheaders + EXTRA_NODES);
	int			n = 0;

	block->len = 0;
	if (result != CURLE_OK)
		return result;
	if (!add_lines(transfer, &n, exchange->headers, exchange->nheaders) ||
		!add_lines(transfer, &n, target->headers, target->nheaders))
		return CURLE_OUT_OF_MEMORY;
	add_suppressors(transfer, &n, exchange);
	if (block->len > 0)
	{
		block->data[block->len] = '\0';
		add_node(transfer, &n, block->data);
	}
	for (int i = 0; i < n; i++)
		transfer->nodes[i].next = i + 1 < n ? &transfer->nodes[i + 1] : NULL;
	return CURLE_OK;
}

static CURLcode
set_body(CurlTransfer *transfer, const HttpExchange *exchange)
{
	CURL	   *easy = transfer->job.easy;
	CURLcode	result = curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) exchange->body_len);
	const char *body = exchange->body != NULL ? exchange->body : "";

	/* Without fields it reads. */
	if (result == CURLE_OK)
		result = curl_easy_setopt(easy, CURLOPT_POSTFIELDS, exchange->nparts > 0 ? NULL : body);
	return result;
}

/* Which connections of HTTP/2 a request may use. */
static CURLcode
choose_generation(CurlTransfer *transfer, int64_t now)
{
	CurlTarget *target = transfer->target;

	if (transfer->job.target->http_version != 20)
		return CURLE_OK;
	if (target->generation_since == 0)
		target->generation_since = now;
	else if (now - target->generation_since >= outbox_engine_lifetime_us() && target->pioneer == NULL)
	{
		/* One goes ahead; if all did, each would open a connection. */
		target->pioneer = transfer;
		return outbox_job_use_generation(&transfer->job, (target->generation + 1) % GENERATIONS);
	}
	return outbox_job_use_generation(&transfer->job, target->generation);
}

/*
 * An idle transfer of this target with everything set, or NULL.  problem, of
 * HTTP_ERROR_LEN bytes: what is wrong with the target, or empty.
 */
static CurlTransfer *
ready_transfer(CurlTarget *target, HttpExchange *exchange, char *problem)
{
	CurlTransfer *transfer = target->idle;
	OutboxJob  *job;
	bool		fresh;

	problem[0] = '\0';
	if (transfer != NULL)
	{
		target->idle = transfer->next;
		target->nidle--;
	}
	else
		transfer = new_transfer(target);
	if (transfer == NULL)
		return NULL;
	job = &transfer->job;
	fresh = job->easy == NULL;
	if (outbox_job_prepare(job, exchange->target) &&
		outbox_job_accepts(job, fresh ? set_callbacks(transfer) : CURLE_OK) &&
		outbox_job_accepts(job, choose_generation(transfer, exchange->sent_us)) &&
		outbox_job_accepts(job, set_lines(transfer, exchange)) &&
		outbox_job_accepts(job, set_body(transfer, exchange)))
		return transfer;
	snprintf(problem, HTTP_ERROR_LEN, "%s", job->error);
	free_transfer(transfer);
	return NULL;
}

static CurlTarget *
target_state(HttpTarget *target)
{
	CurlTarget *state = target->transport_data;

	if (state != NULL)
		return state;
	state = calloc(1, sizeof(CurlTarget));
	if (state != NULL)
	{
		state->state.route = &outbox_curl_transport;
		state->broken = outbox_headers_are_broken(target->headers, target->nheaders);
	}
	target->transport_data = state;
	return state;
}

static int64_t
connect_deadline(const HttpExchange *exchange)
{
	const HttpTarget *target = exchange->target;
	long		ms = target->connect_timeout_ms < target->timeout_ms ?
		target->connect_timeout_ms : target->timeout_ms;

	return exchange->sent_us + (int64_t) ms * 1000;
}

/* Nothing of a broken request leaves; the exchange fails at once. */
static bool
fail_at_once(HttpExchange *exchange, const char *message)
{
	outbox_exchange_finish(exchange, HTTP_FAILED_OTHER, message);
	return true;
}

/*
 * The interface
 */

static bool
curl_submit(HttpExchange *exchange)
{
	CurlTarget *target = target_state(exchange->target);
	CurlTransfer *transfer;
	char		problem[HTTP_ERROR_LEN];
	int			descriptors;

	if (target == NULL || outbox_exchange_in_flight() >= outbox_engine_capacity())
		return false;
	descriptors = outbox_sockets_needed(exchange->target, target->state.reached);
	if (!outbox_sockets_fit(descriptors) || !outbox_deadlines_reserve(&deadlines))
		return false;

	outbox_exchange_begin(exchange);
	if (target->broken || outbox_headers_are_broken(exchange->headers, exchange->nheaders))
		return fail_at_once(exchange, OUTBOX_BROKEN_HEADER);
	transfer = ready_transfer(target, exchange, problem);
	if (transfer == NULL && problem[0] != '\0')
		return fail_at_once(exchange, problem);
	if (transfer == NULL || !outbox_job_start(&engine, &transfer->job, descriptors))
	{
		if (transfer != NULL)
			free_transfer(transfer);
		outbox_exchange_abandon(exchange);
		return false;
	}
	transfer->exchange = exchange;
	outbox_answer_expect(&transfer->answer, &transfer->job, exchange);
	exchange->transport_data = transfer;
	outbox_list_append(&out, &transfer->out);
	target->nout++;
	outbox_deadline_set(&deadlines, &transfer->deadline, connect_deadline(exchange));
	return true;
}

/* The kept connection of a transfer may be dead, and so may others: those that follow use none of them. */
static void
distrust(CurlTransfer *transfer)
{
	OutboxJob  *job = &transfer->job;

	if (!job->reused)
		return;
	outbox_sockets_distrust(job->target);
	leave_generation(transfer);
}

static void
time_out(CurlTransfer *transfer)
{
	HttpExchange *exchange = transfer->exchange;
	char		message[HTTP_ERROR_LEN];

	if (!transfer->job.connected)
		snprintf(message, sizeof(message), "no connection within %ld ms",
				 (long) ((transfer->deadline.at - exchange->sent_us) / 1000));
	else
		snprintf(message, sizeof(message), "no complete answer within %ld ms",
				 exchange->target->timeout_ms);
	exchange->resent = transfer->job.resent;
	exchange->reused = transfer->job.connected && transfer->job.reused;
	distrust(transfer);
	outbox_exchange_finish(exchange, HTTP_FAILED_TIMEOUT, message);
	retire(transfer);
}

/* A kept connection that nobody acknowledges is dead: go on over a new one.  False: it is not, or there is none. */
static bool
leave_dead(CurlTransfer *transfer)
{
	if (transfer->answer.begun || !outbox_job_is_unheard(&transfer->job))
		return false;
	distrust(transfer);
	return outbox_job_again(&transfer->job);
}

void
outbox_curl_judge_timeouts(int64_t now)
{
	OutboxDeadline *first;

	while ((first = outbox_deadlines_first(&deadlines)) != NULL && first->at <= now)
	{
		CurlTransfer *transfer = OUTBOX_LINKED(CurlTransfer, deadline, first);
		int64_t		total = transfer->exchange->sent_us +
			(int64_t) transfer->exchange->target->timeout_ms * 1000;

		/* Connected in time: from here on the whole exchange is timed. */
		if (transfer->job.connected && total > now)
		{
			(void) leave_dead(transfer);
			outbox_deadline_set(&deadlines, first, total);
		}
		else
			time_out(transfer);
	}
}

int64_t
outbox_curl_next_event(void)
{
	OutboxDeadline *first = outbox_deadlines_first(&deadlines);

	return outbox_clock_earlier(engine.timer_at, first != NULL ? first->at : -1);
}

static long
curl_timeout(void)
{
	if (!outbox_poller_is_flushed())
		return 0;
	return outbox_clock_ms_until(outbox_curl_next_event());
}

void
outbox_curl_run_timer(int64_t now)
{
	outbox_engine_run_timer(&engine, now);
}

static void
curl_drive(void)
{
	int64_t		now;

	outbox_poller_dispatch();
	now = outbox_clock_us();
	outbox_curl_run_timer(now);
	outbox_curl_judge_timeouts(now);
	outbox_poller_flush();
}

void
outbox_curl_hold_timeouts(bool hold)
{
	for (OutboxLink *link = out.next; link != &out; link = link->next)
	{
		CurlTransfer *transfer = OUTBOX_LINKED(CurlTransfer, out, link);

		if (!transfer->job.connected)
			outbox_job_hold_timeout(&transfer->job, hold);
	}
}

static void
curl_catch_up(void)
{
	outbox_curl_hold_timeouts(true);
	outbox_poller_dispatch_all();
	outbox_curl_hold_timeouts(false);
	outbox_poller_flush();
}

static void
curl_cancel(HttpExchange *exchange)
{
	CurlTransfer *transfer = exchange->transport_data;

	if (transfer != NULL)
		retire(transfer);
	outbox_exchange_abandon(exchange);
}

static void
curl_forget(HttpTarget *target)
{
	CurlTarget *state = target->transport_data;

	if (state == NULL)
		return;
	assert(state->nout == 0);
	while (state->idle != NULL)
	{
		CurlTransfer *transfer = state->idle;

		state->idle = transfer->next;
		free_transfer(transfer);
	}
	free(state);
	target->transport_data = NULL;
	outbox_engine_forget(&engine, target);
}

static const char *
curl_startup(const HttpTransportOptions *options)
{
	const char *problem = outbox_engine_startup(options);

	if (problem != NULL)
		return problem;
	problem = outbox_engine_open(&engine, true);
	if (problem != NULL)
		outbox_engine_shutdown();
	return problem;
}

static void
curl_shutdown(void)
{
	/*
	 * Targets may be forgotten only while the transport runs, so whoever
	 * shuts down with targets left has no further use for them.
	 */
	while (!outbox_list_is_empty(&out))
	{
		CurlTransfer *transfer = OUTBOX_LINKED(CurlTransfer, out, out.next);
		HttpExchange *exchange = transfer->exchange;

		retire(transfer);
		outbox_exchange_abandon(exchange);
	}
	outbox_engine_close(&engine);
	outbox_deadlines_free(&deadlines);
	outbox_exchange_reset();
	outbox_engine_shutdown();
}

const HttpTransport outbox_curl_transport = {
	.name = "curl",
	.startup = curl_startup,
	.configure = outbox_engine_configure,
	.fd = outbox_poller_fd,
	.timeout = curl_timeout,
	.submit = curl_submit,
	.drive = curl_drive,
	.catch_up = curl_catch_up,
	.next_done = outbox_exchange_next_done,
	.release = outbox_exchange_release,
	.cancel = curl_cancel,
	.forget = curl_forget,
	.capacity = outbox_engine_capacity,
	.in_flight = outbox_exchange_in_flight,
	.shutdown = curl_shutdown,
};
