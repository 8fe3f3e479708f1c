/*-------------------------------------------------------------------------
 *
 * send.c
 *		Turns queued deliveries into requests, and answers into outcomes.
 *
 * See send.h.  A request carries one delivery, or up to batch_size of them
 * on a handler that takes batches.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/send.h"
#include "dispatch/settle.h"
#include "format/printable.h"
#include "format/request.h"
#include "guc.h"
#include "policy/outcome.h"

/* When the transport could not even start a request, its lane waits so long. */
#define NOT_SENT_WAIT_US (100 * 1000)

typedef struct Outgoing
{
	HttpExchange exchange;
	OutboxLane *lane;
	OutboxHandler *handler;
	OutboxRequest written;
	int			n;
	OutboxDelivery *deliveries[FLEXIBLE_ARRAY_MEMBER];
} Outgoing;

static const HttpTransport *transport = NULL;
static MemoryContext requests_context = NULL;

static HttpTransportOptions
transport_options(void)
{
	HttpTransportOptions options;

	memset(&options, 0, sizeof(options));
	options.max_in_flight = outbox_max_in_flight;
	options.user_agent = outbox_user_agent;
	return options;
}

void
outbox_send_init(MemoryContext context)
{
	HttpTransportFactory factory;
	HttpTransportOptions options = transport_options();
	const char *failure;

	requests_context = context;
	factory = (HttpTransportFactory) load_external_function("$libdir/outbox_http", OUTBOX_HTTP_FACTORY, true, NULL);
	transport = factory(outbox_transport == OUTBOX_TRANSPORT_CURL ? "curl" : "fast");
	if (transport == NULL)
		transport = factory("curl");
	failure = transport->startup(&options);
	if (failure != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("could not start HTTP transport \"%s\": %s", transport->name, failure)));
}

void
outbox_send_configure(void)
{
	HttpTransportOptions options = transport_options();

	transport->configure(&options);
}

int
outbox_send_fd(void)
{
	return transport->fd();
}

long
outbox_send_timeout(void)
{
	return transport->timeout();
}

int
outbox_send_in_flight(void)
{
	return transport->in_flight();
}

bool
outbox_send_is_full(void)
{
	return transport->in_flight() >= outbox_max_in_flight;
}

static void
free_handler_if_unused(OutboxHandler *handler)
{
	if (handler->current || handler->requests > 0)
		return;
	transport->forget(&handler->target);
	MemoryContextDelete(handler->context);
}

void
outbox_send_retire(OutboxHandler *handler)
{
	handler->current = false;
	free_handler_if_unused(handler);
}

static Outgoing *
make_request(OutboxLane *lane)
{
	int			n = Min(lane->nqueued, lane->handler->batch_size);
	Outgoing *request = MemoryContextAllocZero(requests_context,
													offsetof(Outgoing, deliveries) + sizeof(OutboxDelivery *) * n);

	request->lane = lane;
	request->handler = lane->handler;
	request->n = n;
	for (int i = 0; i < n; i++)
	{
		request->deliveries[i] = outbox_lane_dequeue(lane);
		request->deliveries[i]->phase = OUTBOX_PHASE_SENT;
	}
	return request;
}

static void
write_request(Outgoing *request)
{
	OutboxHandler *handler = request->handler;
	HttpExchange *exchange = &request->exchange;
	OutboxRequestItem *items = palloc(sizeof(OutboxRequestItem) * request->n);
	MemoryContext oldcontext = MemoryContextSwitchTo(requests_context);

	for (int i = 0; i < request->n; i++)
	{
		items[i].message = request->deliveries[i]->message;
		items[i].attempt = request->deliveries[i]->attempts + 1;
	}
	outbox_request_write(&request->written, handler->form, items, request->n, GetCurrentTimestamp());
	MemoryContextSwitchTo(oldcontext);
	pfree(items);

	exchange->target = &handler->target;
	exchange->headers = request->written.headers;
	exchange->nheaders = request->written.nheaders;
	exchange->body = request->written.body;
	exchange->body_len = request->written.body_len;
	exchange->capture_limit = outbox_max_response_capture;
	exchange->owner = request;
}

/* The request is over: give everything but its deliveries back. */
static void
free_request(Outgoing *request)
{
	OutboxHandler *handler = request->handler;

	handler->requests--;
	request->lane->in_flight--;
	outbox_request_free(&request->written);
	pfree(request);
	free_handler_if_unused(handler);
}

/* Nothing left this machine: the deliveries go back to the front of their queue, no attempt spent. */
static void
take_back(Outgoing *request)
{
	OutboxLane *lane = request->lane;
	TimestampTz now = GetCurrentTimestamp();

	for (int i = request->n - 1; i >= 0; i--)
		outbox_lane_requeue(lane, request->deliveries[i]);
	lane->hold_until = Max(lane->hold_until, now + NOT_SENT_WAIT_US);
	outbox_lane_wake_at(lane, lane->hold_until);
	free_request(request);
	outbox_lane_ready(lane);
}

void
outbox_send_lane(OutboxLane *lane, TimestampTz now)
{
	while (!outbox_send_is_full() && outbox_lane_may_send(lane, now))
	{
		Outgoing *request = make_request(lane);

		lane->in_flight++;
		lane->handler->requests++;
		write_request(request);
		if (!transport->submit(&request->exchange))
		{
			take_back(request);
			break;
		}
	}
}

static const char *
failure_code(HttpFailure failure)
{
	switch (failure)
	{
		case HTTP_ANSWERED:
			return NULL;
		case HTTP_FAILED_DNS:
			return "dns";
		case HTTP_FAILED_CONNECT:
			return "connect";
		case HTTP_FAILED_TLS:
			return "tls";
		case HTTP_FAILED_TIMEOUT:
			return "timeout";
		case HTTP_FAILED_BODY:
			return "body";
		case HTTP_FAILED_BLOCKED:
			return "blocked";
		case HTTP_FAILED_OTHER:
		case HTTP_NOT_SENT:
			break;
	}
	return "other";
}

/* What an operator wants to read about a failed attempt: the failure, or the start of the response. */
static char *
describe_failure(const HttpExchange *exchange)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(requests_context);
	char	   *text;

	if (exchange->failure != HTTP_ANSWERED && exchange->error[0])
		text = outbox_printable(exchange->error, strlen(exchange->error));
	else if (exchange->response_len > 0)
		text = outbox_printable(exchange->response, exchange->response_len);
	else
		text = NULL;
	MemoryContextSwitchTo(oldcontext);
	return text;
}

static void
judge_delivery(OutboxDelivery *delivery, const OutboxHandler *handler,
			   const OutboxAnswer *answer, const HttpExchange *exchange, TimestampTz now)
{
	OutboxVerdict *verdict = &delivery->verdict;

	outbox_judge(&handler->retry, answer, delivery->attempts + 1 - delivery->budget_from,
				 delivery->code, delivery->streak, outbox_unix_microseconds(now),
				 outbox_random_fraction(), verdict);
	delivery->attempted = true;
	delivery->finished_at = now;
	delivery->duration_us = exchange->done_us - exchange->sent_us;
	delivery->http_status = exchange->status;
	if (verdict->state != OUTBOX_DELIVERED)
		delivery->error = describe_failure(exchange);
	if (verdict->state == OUTBOX_RETRYING)
		delivery->next_due_at = now + verdict->delay * 1000;
	if (verdict->lane_wait > 0)
		delivery->lane->hold_until = Max(delivery->lane->hold_until, now + verdict->lane_wait * 1000);
	outbox_outcome_add(delivery);
}

static void
finish_request(Outgoing *request, TimestampTz now)
{
	HttpExchange *exchange = &request->exchange;
	OutboxLane *lane = request->lane;
	OutboxAnswer answer;

	if (exchange->failure == HTTP_NOT_SENT)
	{
		transport->release(exchange);
		take_back(request);
		return;
	}

	answer.status = exchange->status;
	answer.failure = failure_code(exchange->failure);
	answer.retry_after = exchange->retry_after[0] ? exchange->retry_after : NULL;
	answer.outcome = exchange->outcome[0] ? exchange->outcome : NULL;
	for (int i = 0; i < request->n; i++)
		judge_delivery(request->deliveries[i], request->handler, &answer, exchange, now);
	transport->release(exchange);
	free_request(request);
	outbox_lane_ready(lane);
}

int
outbox_send_drive(bool after_long_absence)
{
	HttpExchange *exchange;
	int			n = 0;
	TimestampTz now = 0;

	if (after_long_absence)
		transport->catch_up();
	transport->drive();
	while ((exchange = transport->next_done()) != NULL)
	{
		if (n++ == 0)
			now = GetCurrentTimestamp();
		finish_request(exchange->owner, now);
	}
	return n;
}
