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
#include "dispatch/expiry.h"
#include "dispatch/handler_status.h"
#include "dispatch/order.h"
#include "dispatch/pacing.h"
#include "dispatch/payload.h"
#include "dispatch/schedule.h"
#include "dispatch/send.h"
#include "dispatch/settle.h"
#include "dispatch/unsent.h"
#include "format/header_log.h"
#include "format/printable.h"
#include "format/request.h"
#include "guc.h"
#include "policy/answer_headers.h"
#include "policy/batch_answer.h"
#include "policy/blocked_networks.h"
#include "policy/outcome.h"
#include "shared/counters.h"
#include "shared/errand.h"
#include "table/attempt_log.h"
#include "worker/clock.h"

/* One in so many of outbox.max_in_flight is kept for lanes that have no request out. */
#define KEPT_SHARE 10

/* When the transport could not even start a request, its lane waits so long. */
#define NOT_SENT_WAIT_US (100 * 1000)

/* An answer to a batch is read whole up to this size, since it may name messages that failed. */
#define BATCH_CAPTURE (64 * 1024)

typedef struct Outgoing
{
	HttpExchange exchange;
	OutboxLane *lane;
	OutboxHandler *handler;
	OutboxRequest written;
	int			renewals;		/* of the lane, when it was sent */
	int			n;
	OutboxDelivery *deliveries[FLEXIBLE_ARRAY_MEMBER];
} Outgoing;

static const HttpTransport *transport = NULL;
static MemoryContext requests_context = NULL;
static int	deliveries_out = 0;

static HttpTransportOptions
transport_options(void)
{
	HttpTransportOptions options;

	memset(&options, 0, sizeof(options));
	options.max_in_flight = outbox_max_in_flight;
	options.blocked = outbox_address_is_blocked;
	return options;
}

/* Say once that fewer requests than configured can be out, and again when that changes. */
static void
report_capacity(void)
{
	static int	reported = 0;
	int			capacity = transport->capacity();

	if (capacity < outbox_max_in_flight && capacity != reported)
		ereport(WARNING,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("outbox dispatcher can have %d requests out at once, not %d", capacity, outbox_max_in_flight),
				 errdetail("The limit of open files of a process does not allow more."),
				 errhint("Raise the limit of open files with which the server is started (ulimit -n), or lower outbox.max_in_flight.")));
	reported = capacity < outbox_max_in_flight ? capacity : 0;
}

void
outbox_send_init(MemoryContext context)
{
	HttpTransportFactory factory;
	HttpTransportOptions options = transport_options();
	const char *failure;

	requests_context = context;
	factory = (HttpTransportFactory) load_external_function("$libdir/outbox_http", OUTBOX_HTTP_FACTORY, false, NULL);
	if (factory == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("library outbox_http is of another build than library outbox"),
				 errhint("Restart the server if they were replaced while it ran, or install both from one build.")));
	transport = factory(outbox_transport == OUTBOX_TRANSPORT_CURL ? "curl" : "fast");
	if (transport == NULL)
		transport = factory("curl");
	failure = transport->startup(&options);
	if (failure != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_SYSTEM_ERROR),
				 errmsg("could not start HTTP transport \"%s\": %s", transport->name, failure)));
	report_capacity();
}

void
outbox_send_configure(void)
{
	HttpTransportOptions options = transport_options();

	transport->configure(&options);
	report_capacity();
	outbox_lanes_have_room();
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

int
outbox_send_deliveries_out(void)
{
	return deliveries_out;
}

/*
 * The last requests that may be out are for lanes that have none out, so that
 * slow receivers which take up all others do not keep everybody waiting.
 */
static bool
is_crowded(const OutboxLane *lane)
{
	int			capacity = transport->capacity();
	int			kept = lane->in_flight > 0 ? capacity / KEPT_SHARE : 0;

	return transport->in_flight() >= capacity - kept;
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

/* It comes back unsent. */
static void
put_back(OutboxDelivery *delivery)
{
	bool		waits = outbox_order_taken_back(delivery);

	outbox_payload_fit(delivery, waits);
	if (!waits)
		outbox_lane_put_back(delivery->lane, delivery);
}

/* Nothing of the lane goes before that; then it looks again. */
static void
hold_unsent(OutboxLane *lane, TimestampTz until)
{
	lane->unsent_until = until;
	outbox_lane_wake_at(lane, until);
}

/*
 * May it go into a request?  One that has expired is settled instead; while
 * it is in doubt whether one has, nothing of its lane goes.
 */
static bool
may_go(OutboxDelivery *delivery, TimestampTz now)
{
	switch (outbox_expiry_judge(delivery, now))
	{
		case OUTBOX_FRESH:
			return true;
		case OUTBOX_EXPIRED:
			outbox_expiry_verdict(delivery);
			outbox_outcome_add(delivery);
			return false;
		case OUTBOX_DOUBTFUL:
			break;
	}
	hold_unsent(delivery->lane, outbox_expiry_doubt_ends());
	put_back(delivery);
	return false;
}

/* The next one of the queue that may go; NULL for none. */
static OutboxDelivery *
next_to_go(OutboxLane *lane, TimestampTz now)
{
	while (lane->unsent_until <= now)
	{
		OutboxDelivery *delivery = outbox_lane_dequeue(lane);

		if (delivery == NULL || may_go(delivery, now))
			return delivery;
	}
	return NULL;
}

/* The one of its key that may go along with it; NULL for none. */
static OutboxDelivery *
follower_to_go(OutboxDelivery *delivery, TimestampTz now)
{
	OutboxDelivery *follower = outbox_order_follower(delivery);

	return follower != NULL && may_go(follower, now) ? follower : NULL;
}

/* NULL if there is none to go. */
static Outgoing *
make_request(OutboxLane *lane, TimestampTz now)
{
	int			max = Min(lane->nqueued + outbox_order_waiting(lane->order), lane->handler->batch_size);
	Outgoing   *request = MemoryContextAllocZero(requests_context,
												 offsetof(Outgoing, deliveries) + sizeof(OutboxDelivery *) * max);
	OutboxDelivery *delivery = next_to_go(lane, now);

	request->lane = lane;
	request->handler = lane->handler;
	request->renewals = lane->renewals;
	request->written.context = requests_context;
	while (delivery != NULL)
	{
		delivery->phase = OUTBOX_PHASE_SENT;
		request->deliveries[request->n++] = delivery;
		if (request->n == max)
			break;
		delivery = follower_to_go(delivery, now);
		if (delivery == NULL)
			delivery = next_to_go(lane, now);
	}
	if (request->n > 0)
		return request;
	pfree(request);
	return NULL;
}

/* Write a request for n deliveries into request, which need not carry just those. */
static void
write_request(Outgoing *request, OutboxDelivery **deliveries, int n)
{
	OutboxHandler *handler = request->handler;
	HttpExchange *exchange = &request->exchange;
	OutboxRequestItem *items = palloc(sizeof(OutboxRequestItem) * n);

	for (int i = 0; i < n; i++)
	{
		items[i].message = deliveries[i]->message;
		items[i].attempt = deliveries[i]->attempts + 1;
	}
	outbox_request_write(&request->written, handler->form, items, n, GetCurrentTimestamp());
	pfree(items);

	exchange->target = &handler->target;
	exchange->headers = request->written.headers;
	exchange->nheaders = request->written.nheaders;
	exchange->body = request->written.body;
	exchange->parts = request->written.parts;
	exchange->nparts = request->written.nparts;
	exchange->body_len = request->written.body_len;
	exchange->capture_limit = handler->form->batch ?
		Max(outbox_max_response_capture, BATCH_CAPTURE) : outbox_max_response_capture;
	exchange->kept_names = handler->logged_headers;
	exchange->nkept_names = handler->nlogged_headers;
	exchange->owner = request;
}

/*
 * The same, but an error comes back as data (NULL: none).  What can fail
 * here touches memory only, so no transaction is needed to recover.
 */
static ErrorData *
try_write_request(Outgoing *request, OutboxDelivery **deliveries, int n)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	ErrorData  *volatile failure = NULL;

	PG_TRY();
	{
		write_request(request, deliveries, n);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(oldcontext);
		failure = CopyErrorData();
		FlushErrorState();
	}
	PG_END_TRY();
	return failure;
}

/*
 * A message that cannot be written (a character that UTF-8 does not have)
 * can never be sent: it becomes a dead letter, and those that were to share
 * its request go back to the front of the queue.  So does everything when it
 * was only that memory has run out.  Returns how many became dead letters.
 */
static int
bury_unwritable(Outgoing *request)
{
	int			buried = 0;

	for (int i = request->n - 1; i >= 0; i--)
	{
		OutboxDelivery *delivery = request->deliveries[i];
		ErrorData  *failure = try_write_request(request, &delivery, 1);

		if (failure == NULL || failure->sqlerrcode == ERRCODE_OUT_OF_MEMORY)
		{
			put_back(delivery);
			continue;
		}
		delivery->verdict.state = OUTBOX_DEAD;
		strlcpy(delivery->verdict.code, "unreadable", sizeof(delivery->verdict.code));
		delivery->error = MemoryContextStrdup(requests_context, failure->message);
		delivery->error_is_raw = true;
		outbox_outcome_add(delivery);
		buried++;
	}
	return buried;
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

/* Nothing left this machine.  Its deliveries are back in their queue; the lane tries again a little later. */
static void
free_unsent(Outgoing *request)
{
	OutboxLane *lane = request->lane;
	TimestampTz now = outbox_steady_time();

	outbox_breaker_not_sent(&lane->breaker, now);
	hold_unsent(lane, now + NOT_SENT_WAIT_US);
	free_request(request);
	outbox_lane_ready(lane);
}

/* The transport could not send it: the deliveries go back to the front of their queue, no attempt spent. */
static void
take_back(Outgoing *request)
{
	for (int i = request->n - 1; i >= 0; i--)
		put_back(request->deliveries[i]);
	free_unsent(request);
}

/* Write a request and hand it to the transport.  False if the lane has to wait. */
static bool
send_request(Outgoing *request, TimestampTz now)
{
	OutboxLane *lane = request->lane;

	if (try_write_request(request, request->deliveries, request->n) == NULL)
	{
		if (transport->submit(&request->exchange))
		{
			deliveries_out += request->n;
			return true;
		}
		/* While others are out it only waits for its turn. */
		if (transport->in_flight() == 0)
			outbox_unsent_report(request->handler->name, HTTP_LACKS_MEMORY, "this machine has no memory free for a request");
		take_back(request);
		return false;
	}
	if (bury_unwritable(request) == 0)
	{
		outbox_unsent_report(request->handler->name, HTTP_LACKS_MEMORY, "this machine has no memory free to write a request");
		free_unsent(request);
		return false;
	}
	outbox_breaker_not_sent(&lane->breaker, now);
	free_request(request);
	return true;
}

void
outbox_send_lane(OutboxLane *lane, TimestampTz now)
{
	while (outbox_lane_may_send(lane, now))
	{
		Outgoing   *request;

		if (is_crowded(lane))
		{
			outbox_lane_crowded(lane);
			break;
		}
		request = make_request(lane, now);
		if (request == NULL)
			continue;
		lane->in_flight++;
		lane->handler->requests++;
		outbox_rate_limit_take(&lane->rate, now);
		outbox_throttle_take(&lane->throttle, now);
		if (outbox_breaker_sent(&lane->breaker))
			outbox_handler_status_changed(lane);
		if (!send_request(request, now))
			break;
	}
	if (!outbox_payloads_ask(lane, now))
		outbox_lane_crowded(lane);
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

/* The start of the response; NULL if there was none. */
static char *
capture_response(const HttpExchange *exchange)
{
	MemoryContext oldcontext;
	char	   *text;

	if (exchange->failure != HTTP_ANSWERED || exchange->response_len == 0)
		return NULL;
	oldcontext = MemoryContextSwitchTo(requests_context);
	text = outbox_printable(exchange->response, Min(exchange->response_len, outbox_max_response_capture),
							outbox_max_response_capture);
	MemoryContextSwitchTo(oldcontext);
	return text;
}

/* Nobody follows it, so that is what to tell; its body is a page for browsers. */
static char *
describe_redirect(const HttpExchange *exchange)
{
	StringInfoData text;

	initStringInfo(&text);
	appendStringInfo(&text, "the receiver answered %d, and redirects are not followed", exchange->status);
	if (exchange->location[0])
		appendStringInfo(&text, "; it points to %s", outbox_error_text(exchange->location, strlen(exchange->location), HTTP_HEADER_LEN));
	return text.data;
}

/* What an operator wants to read about a failed attempt: the failure, or the start of the response. */
static char *
describe_failure(const HttpExchange *exchange)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(requests_context);
	char	   *text;

	/* An answer has one too if its body cannot be read. */
	if (exchange->failure == HTTP_ANSWERED && exchange->status >= 300 && exchange->status < 400 && exchange->status != 304)
		text = describe_redirect(exchange);
	else if (exchange->error[0])
		text = outbox_error_text(exchange->error, strlen(exchange->error), HTTP_ERROR_LEN);
	else if (exchange->failure == HTTP_ANSWERED && exchange->response_len > 0)
		text = outbox_error_text(exchange->response, exchange->response_len, outbox_max_response_capture);
	else
		text = psprintf("the receiver answered %d with an empty body", exchange->status);
	MemoryContextSwitchTo(oldcontext);
	return text;
}

/* The headers that the log is to have; NULL for none. */
static char *
log_headers(const HttpExchange *exchange)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(requests_context);
	char	   *json = outbox_header_log(exchange->kept_names, exchange->nkept_names, exchange->kept, exchange->kept_len);

	MemoryContextSwitchTo(oldcontext);
	return json;
}

/* The receiver wants everything of the lane to wait. */
static void
hold_lane(OutboxLane *lane, TimestampTz until)
{
	if (until <= lane->hold_until)
		return;
	lane->hold_until = until;
	outbox_handler_status_changed(lane);
}

/* The verdict is in: note what else the delivery's row and its lane have to know. */
static void
note_verdict(OutboxDelivery *delivery, const HttpExchange *exchange, TimestampTz now)
{
	const OutboxVerdict *verdict = &delivery->verdict;
	OutboxLane *lane = delivery->lane;

	delivery->attempted = true;
	delivery->finished_at = outbox_to_wall(now);
	delivery->duration_us = exchange->done_us - exchange->sent_us;
	delivery->http_status = exchange->status;
	if (verdict->state != OUTBOX_DELIVERED)
	{
		delivery->error = describe_failure(exchange);
		delivery->error_is_raw = true;
	}
	if (delivery->has_on_settle)
		delivery->response = capture_response(exchange);
	if (exchange->kept_len > 0 && (delivery->has_on_settle || outbox_should_log(verdict->state)))
		delivery->response_headers = log_headers(exchange);
	if (verdict->state == OUTBOX_RETRYING)
		delivery->next_due_at = outbox_to_wall(now) + verdict->delay * 1000;
	if (verdict->pause_handler && !lane->paused)
		outbox_lane_pause(lane, "receiver", "the receiver answered 410 Gone");
	outbox_outcome_add(delivery);
}

/*
 * One answer for all, with one random number for all: what failed together
 * in a batch comes back together, in the same order and so as the same batch.
 */
static void
judge_answer(Outgoing *request, const OutboxAnswer *answer, TimestampTz now)
{
	double		random = outbox_random_fraction();

	for (int i = 0; i < request->n; i++)
	{
		OutboxDelivery *delivery = request->deliveries[i];

		outbox_judge(&request->handler->retry, answer, delivery->attempts + 1 - delivery->budget_from,
					 delivery->code, delivery->streak, outbox_unix_microseconds(outbox_to_wall(now)),
					 random, &delivery->verdict);
	}
}

/* A batch was taken, but its answer may name messages that were not. */
static void
judge_batch(Outgoing *request)
{
	const HttpExchange *exchange = &request->exchange;
	double		random = outbox_random_fraction();
	pg_uuid_t  *ids = palloc(sizeof(pg_uuid_t) * request->n);
	OutboxDisposition *said = palloc(sizeof(OutboxDisposition) * request->n);
	OutboxAnswerBody body = {
		.bytes = exchange->response,
		.len = exchange->response_len,
		.complete = exchange->response_total == exchange->response_len,
		.encoded = exchange->encoded,
		.content_type = exchange->content_type
	};

	for (int i = 0; i < request->n; i++)
		ids[i] = request->deliveries[i]->id;
	outbox_parse_batch_answer(&body, request->n, ids, said);
	for (int i = 0; i < request->n; i++)
	{
		OutboxDelivery *delivery = request->deliveries[i];

		outbox_judge_disposition(&request->handler->retry, &said[i], delivery->attempts + 1 - delivery->budget_from,
						  delivery->code, delivery->streak, random, &delivery->verdict);
	}
	pfree(said);
	pfree(ids);
}

/* True if the answer speaks for each message of a batch by itself. */
static bool
is_batch_answer(const Outgoing *request, const OutboxAnswer *answer)
{
	OutboxDisposition said;

	return request->handler->form->batch && answer->failure == NULL &&
		answer->status >= 200 && answer->status < 300 &&
		(answer->outcome == NULL || !outbox_parse_outcome(answer->outcome, &said));
}

/* The breaker hears once per request, whatever the number of its messages. */
static void
tell_breaker(OutboxLane *lane, const OutboxHandler *handler, const OutboxVerdict *verdict, TimestampTz now)
{
	switch (outbox_breaker_note(&lane->breaker, &handler->breaker, verdict->handler_failed, verdict->code, now))
	{
		case OUTBOX_BREAKER_SAME:
			break;
		case OUTBOX_BREAKER_CHANGED:
			outbox_handler_status_changed(lane);
			break;
		case OUTBOX_BREAKER_DISABLE:
			if (!lane->paused)
				outbox_lane_pause(lane, "breaker", lane->breaker.reason);
			break;
	}
}

/* Whatever came back, if anything did, tells how fast the receiver can be asked. */
static void
tell_throttle(OutboxLane *lane, const HttpExchange *exchange, const OutboxVerdict *verdict, TimestampTz now)
{
	bool		is_news;

	if (exchange->failure != HTTP_ANSWERED)
		return;
	if (verdict->refused)
		is_news = outbox_throttle_refused(&lane->throttle, now - (exchange->done_us - exchange->sent_us), now);
	else
		is_news = outbox_throttle_taken(&lane->throttle, now);
	if (is_news)
		outbox_handler_status_changed(lane);
}

/*
 * What the answer says of the handler, for its lane.  Not of one that an
 * operator has given a fresh start since: it was another receiver's, or came
 * from before whatever the operator has put right.
 */
static void
tell_lane(Outgoing *request, TimestampTz now)
{
	OutboxLane *lane = request->lane;
	const OutboxVerdict *verdict = &request->deliveries[0]->verdict;

	if (request->renewals != lane->renewals)
		return;
	/* Who does not wait has nothing to learn for how long to. */
	if (!outbox_errand_skips())
	{
		tell_breaker(lane, request->handler, verdict, now);
		tell_throttle(lane, &request->exchange, verdict, now);
		if (verdict->lane_wait > 0)
			hold_lane(lane, now + verdict->lane_wait * 1000);
	}
	for (int i = 0; i < request->n; i++)
	{
		OutboxState state = request->deliveries[i]->verdict.state;

		outbox_handler_status_attempted(lane, state == OUTBOX_RETRYING || state == OUTBOX_DEAD, now);
	}
}

/* What an attempt counts as. */
static OutboxCounter
attempt_counter(const HttpExchange *exchange)
{
	switch (exchange->failure)
	{
		case HTTP_ANSWERED:
			if (exchange->status >= 200 && exchange->status < 600)
				return OUTBOX_COUNT_2XX + exchange->status / 100 - 2;
			break;
		case HTTP_FAILED_TIMEOUT:
			return OUTBOX_COUNT_TIMEOUT;
		case HTTP_FAILED_DNS:
		case HTTP_FAILED_CONNECT:
			return OUTBOX_COUNT_CONNECT;
		case HTTP_FAILED_TLS:
			return OUTBOX_COUNT_TLS;
		case HTTP_FAILED_BLOCKED:
			return OUTBOX_COUNT_BLOCKED;
		default:
			break;
	}
	return OUTBOX_COUNT_OTHER;
}

static void
count_request(const Outgoing *request, TimestampTz now)
{
	const HttpExchange *exchange = &request->exchange;
	OutboxCounted *counted = &request->lane->counted;
	TimestampTz answered_at = outbox_to_wall(now);

	outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_REQUESTS, 1);
	if (exchange->reused)
		outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_REUSED, 1);
	outbox_count(counted, attempt_counter(exchange), request->n);
	outbox_count(counted, OUTBOX_COUNT_BYTES, exchange->body_len);
	outbox_count_time(counted, OUTBOX_TIME_REQUEST, exchange->done_us - exchange->sent_us);
	for (int i = 0; i < request->n; i++)
	{
		if (request->deliveries[i]->verdict.state == OUTBOX_DELIVERED)
			outbox_count_time(counted, OUTBOX_TIME_DELIVERY, answered_at - request->deliveries[i]->waits_since);
	}
}

static void
judge_request(Outgoing *request, TimestampTz now)
{
	const HttpExchange *exchange = &request->exchange;
	OutboxAnswer answer;

	answer.status = exchange->status;
	answer.failure = failure_code(exchange->failure);
	answer.retry_after = exchange->retry_after[0] ? exchange->retry_after : NULL;
	answer.outcome = exchange->outcome[0] ? exchange->outcome : NULL;
	answer.outage = request->lane->breaker.state != OUTBOX_BREAKER_CLOSED;

	if (is_batch_answer(request, &answer))
		judge_batch(request);
	else
		judge_answer(request, &answer, now);
	tell_lane(request, now);
	count_request(request, now);
	for (int i = 0; i < request->n; i++)
	{
		request->deliveries[i]->has_on_settle = (request->handler->on_settle != NULL);
		note_verdict(request->deliveries[i], exchange, now);
	}
}

static void
finish_request(Outgoing *request, TimestampTz now)
{
	OutboxLane *lane = request->lane;

	deliveries_out -= request->n;
	if (request->exchange.failure == HTTP_NOT_SENT)
	{
		outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_UNSENT, 1);
		outbox_unsent_report(request->handler->name, request->exchange.shortage, request->exchange.error);
		transport->release(&request->exchange);
		take_back(request);
		return;
	}
	outbox_unsent_over(request->handler->name);
	judge_request(request, now);
	transport->release(&request->exchange);
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
			now = outbox_steady_time();
		finish_request(exchange->owner, now);
	}
	if (n > 0)
		outbox_lanes_have_room();
	return n;
}
