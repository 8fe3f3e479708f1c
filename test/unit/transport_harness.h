/*-------------------------------------------------------------------------
 *
 * transport_harness.h
 *		Drives a transport as the dispatcher does, for the transports' tests.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TRANSPORT_HARNESS_H
#define OUTBOX_TRANSPORT_HARNESS_H

#include "hostile_server.h"
#include "http/factory.h"
#include "tap.h"

/* An exchange with its own target. */
typedef struct Call
{
	HttpExchange exchange;
	HttpTarget	target;
	char		url[256];
	const char *headers[2];
	bool		out;			/* taken, and neither come out nor cancelled */
	bool		done;
} Call;

static const HttpTransport *transport;

/* The longest that one call of drive() or catch_up() took, in ms. */
static int64_t longest_drive;

static inline bool
is_fast(void)
{
	return strcmp(transport->name, "fast") == 0;
}

/*
 * A call to a URL, with body "{}", and timeouts that only strike where a test
 * is about to fail: those that are meant to are set by the test.
 */
static inline void
set_up_url(Call *call, const char *url)
{
	memset(call, 0, sizeof(*call));
	snprintf(call->url, sizeof(call->url), "%s", url);
	call->headers[0] = "content-type: application/json";
	call->headers[1] = "webhook-id: 1";
	call->target.url = call->url;
	call->target.timeout_ms = patience_ms();
	call->target.connect_timeout_ms = patience_ms();
	call->target.http_version = 11;
	call->target.max_connections = 100;
	call->exchange.target = &call->target;
	call->exchange.headers = call->headers;
	call->exchange.nheaders = 2;
	call->exchange.body = "{}";
	call->exchange.body_len = 2;
	call->exchange.capture_limit = 1024;
	call->exchange.owner = call;
}

static inline void
timed_drive(void (*drive) (void))
{
	int64_t		begin = now_ms();

	drive();
	if (now_ms() - begin > longest_drive)
		longest_drive = now_ms() - begin;
}

/* One turn of the loop: wait, at most so long, then drive. */
static inline void
turn(int most_ms)
{
	struct pollfd fd = {.fd = transport->fd(),.events = POLLIN};
	long		timeout = transport->timeout();

	poll(&fd, 1, timeout >= 0 && timeout < most_ms ? (int) timeout : most_ms);
	timed_drive(transport->drive);
}

/*
 * Loop until n more exchanges are done, or for longer than they may take.
 * Returns how many were.
 */
static inline int
run(int n)
{
	int64_t		end = now_ms() + 2 * patience_ms();
	int			ndone = 0;

	for (;;)
	{
		HttpExchange *exchange;

		while ((exchange = transport->next_done()) != NULL)
		{
			Call	   *call = exchange->owner;

			call->out = false;
			call->done = true;
			ndone++;
		}
		if (ndone >= n || now_ms() > end)
			return ndone;
		turn(1000);
	}
}

static inline bool
submit(Call *call)
{
	call->done = false;
	call->out = transport->submit(&call->exchange);
	return call->out;
}

static inline void
cancel(Call *call)
{
	transport->cancel(&call->exchange);
	call->out = false;
}

/* Submit, and wait for the end.  False: it was refused or has not ended. */
static inline bool
perform(Call *call)
{
	return submit(call) && run(1) == 1 && call->done;
}

/* The call is over, or nobody waits for it any more: what is out may not outlive its target. */
static inline void
release(Call *call)
{
	if (call->out)
		cancel(call);
	else
		transport->release(&call->exchange);
}

static inline void
finish(Call *call)
{
	release(call);
	transport->forget(&call->target);
}

static inline bool
failed_as(const Call *call, HttpFailure failure)
{
	if (call->done && call->exchange.failure == failure)
		return true;
	printf("# done %d failure %d status %d error \"%s\"\n", call->done, call->exchange.failure,
		   call->exchange.status, call->exchange.error);
	return false;
}

static inline bool
answered_with(const Call *call, int status)
{
	return failed_as(call, HTTP_ANSWERED) && call->exchange.status == status;
}

static inline void
start_transport(const char *name, const HttpTransportOptions *options)
{
	const char *problem;

	transport = outbox_http_find_transport(name);
	if (transport == NULL)
		abort();
	problem = transport->startup(options);
	ok(problem == NULL, "%s: starts%s%s", name, problem ? ": " : "", problem ? problem : "");
	if (problem != NULL)
		exit(tap_done());
}

#endif							/* OUTBOX_TRANSPORT_HARNESS_H */
