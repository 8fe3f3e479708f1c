/*-------------------------------------------------------------------------
 *
 * transport_storm.h
 *		Everything at once: targets come and go while requests are out, as
 *		handlers do that are altered and dropped under load.
 *
 * As in the dispatcher, a request stays with the target it was sent with, and
 * a target is forgotten by whoever is the last to need it: the change that
 * replaces it, or the end of its last request.  Unlike there, requests are
 * cancelled, too.  Everything is freed as soon as it may be, for sanitizers
 * and valgrind to see who still looks at it.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TRANSPORT_STORM_H
#define OUTBOX_TRANSPORT_STORM_H

#include "transport_harness.h"

#define STORM_HANDLERS 8
#define STORM_CALLS 60
#define STORM_BODY 300000

typedef struct StormTarget
{
	HttpTarget	target;
	char		url[128];
	bool		reliable;		/* its receiver is well */
	bool		current;
	int			out;
} StormTarget;

typedef struct StormCall
{
	HttpExchange exchange;
	StormTarget *target;
} StormCall;

typedef struct Storm
{
	const char *origins[2];		/* URLs up to their path, of a receiver that is well and of another one */
	const char *ca_file;
	StormTarget *handlers[STORM_HANDLERS];
	StormCall  *calls[STORM_CALLS]; /* those that are out */
	int			ncalls;
	int			taken;
	int			ended;
	int			cancelled;
	int			surprises;
} Storm;

/* What receivers do, and a timeout that is to strike; the first ones are done well. */
static const struct
{
	const char *path;
	int			most;			/* of the number that is put in */
	long		timeout_ms;		/* 0: none */
}			storm_paths[] = {
	{"/ok", 0, 0},
	{"/later/%d", 20, 0},
	{"/huge/%d", 500000, 0},
	{"/huge-chunked/%d", 500000, 0},
	{"/close-after", 0, 0},
	{"/cut/%d", WHOLE, 0},
	{"/cut-second/%d", WHOLE, 0},
	{"/reset-second/%d", WHOLE, 0},
	{"/reset", 0, 0},
	{"/slow/1", 0, 20},
	{"/silent", 0, 30},
	{"/later/%d", 20, 10},
};

#define STORM_PATHS ((int) (sizeof(storm_paths) / sizeof(storm_paths[0])))
#define STORM_RELIABLE 4

static inline int
storm_random(int n)
{
	static uint32_t state = 20261130;

	state = state * 1664525 + 1013904223;
	return (int) ((state >> 8) % n);
}

static inline StormTarget *
storm_target(const Storm *storm)
{
	StormTarget *target = calloc(1, sizeof(StormTarget));
	int			i = storm_random(STORM_PATHS);
	char		path[64];

	snprintf(path, sizeof(path), storm_paths[i].path, storm_random(storm_paths[i].most + 1));
	target->reliable = i < STORM_RELIABLE;
	snprintf(target->url, sizeof(target->url), "%s%s", storm->origins[target->reliable ? 0 : 1], path);
	target->target.url = target->url;
	target->target.timeout_ms = storm_paths[i].timeout_ms > 0 ? storm_paths[i].timeout_ms : patience_ms();
	target->target.connect_timeout_ms = patience_ms();
	target->target.http_version = storm_random(5) == 0 ? 20 : 11;
	target->target.max_connections = 1 + storm_random(20);
	target->target.tls_ca_file = storm->ca_file;
	target->current = true;
	return target;
}

static inline void
storm_forget_if_unused(StormTarget *target)
{
	if (target->current || target->out > 0)
		return;
	transport->forget(&target->target);
	memset(target, 0x7f, sizeof(*target));
	free(target);
}

static inline void
storm_alter(Storm *storm)
{
	StormTarget **handler = &storm->handlers[storm_random(STORM_HANDLERS)];

	(*handler)->current = false;
	storm_forget_if_unused(*handler);
	*handler = storm_target(storm);
}

static inline void
storm_send(Storm *storm)
{
	static char body[STORM_BODY];
	static const char *headers[] = {"content-type: text/plain"};
	static const size_t sizes[] = {0, 2, 200, 9000, STORM_BODY};
	StormCall  *call = calloc(1, sizeof(StormCall));

	call->target = storm->handlers[storm_random(STORM_HANDLERS)];
	call->exchange.target = &call->target->target;
	call->exchange.headers = headers;
	call->exchange.nheaders = 1;
	call->exchange.body = body;
	call->exchange.body_len = sizes[storm_random(5)];
	call->exchange.capture_limit = storm_random(2) * 1000;
	call->exchange.owner = call;
	if (!transport->submit(&call->exchange))
	{
		free(call);
		return;
	}
	call->target->out++;
	storm->calls[storm->ncalls++] = call;
	storm->taken++;
}

/* A call is over: as the dispatcher does, let go of the target when it was the last. */
static inline void
storm_end(Storm *storm, StormCall *call)
{
	int			i = 0;

	while (storm->calls[i] != call)
		i++;
	storm->calls[i] = storm->calls[--storm->ncalls];
	call->target->out--;
	storm_forget_if_unused(call->target);
	memset(call, 0x7f, sizeof(*call));
	free(call);
}

static inline void
storm_cancel(Storm *storm)
{
	StormCall  *call = storm->calls[storm_random(storm->ncalls)];

	transport->cancel(&call->exchange);
	storm->cancelled++;
	storm_end(storm, call);
}

static inline void
storm_collect(Storm *storm)
{
	HttpExchange *exchange;

	while ((exchange = transport->next_done()) != NULL)
	{
		StormCall  *call = exchange->owner;

		storm->ended++;
		if (call->target->reliable && (exchange->failure != HTTP_ANSWERED || exchange->status != 200))
		{
			storm->surprises++;
			printf("# %s: failure %d, status %d, %s\n", call->target->url, exchange->failure, exchange->status, exchange->error);
		}
		transport->release(exchange);
		storm_end(storm, call);
	}
}

/*
 * So many steps, most of them requests.  Some answers are left where they are
 * for a while, so that targets change and calls are cancelled behind them.
 */
static inline void
check_storm(const char *good, const char *bad, const char *ca_file, int steps)
{
	Storm		storm = {.origins = {good, bad},.ca_file = ca_file};
	int64_t		end;

	for (int i = 0; i < STORM_HANDLERS; i++)
		storm.handlers[i] = storm_target(&storm);
	for (int step = 0; step < steps; step++)
	{
		int			what = storm_random(100);

		if (storm.ncalls < STORM_CALLS)
			storm_send(&storm);
		if (what < 10)
			storm_alter(&storm);
		else if (what < 15 && storm.ncalls > 0)
			storm_cancel(&storm);
		else if (what < 16)
			transport->catch_up();
		else if (what < 17)
			pause_ms(7);		/* longer than a rest that is trusted */
		if (what % 2 == 0 || storm.ncalls == STORM_CALLS)
			turn(storm.ncalls == STORM_CALLS ? 100 : 0);
		if (what % 5 != 0)
			storm_collect(&storm);
	}
	for (end = now_ms() + 2 * patience_ms(); storm.ncalls > 0 && now_ms() < end; storm_collect(&storm))
		turn(100);
	is_int(storm.ncalls, 0, "%s: storm: every request ends", transport->name);
	is_int(storm.ended + storm.cancelled, storm.taken, "%s: storm: once", transport->name);
	ok(storm.taken > steps / 2, "%s: storm: %d requests, %d of them cancelled", transport->name, storm.taken, storm.cancelled);
	is_int(storm.surprises, 0, "%s: storm: who is answered well hears so", transport->name);
	is_int(transport->in_flight(), 0, "%s: storm: nothing is out", transport->name);
	while (storm.ncalls > 0)
		storm_cancel(&storm);
	for (int i = 0; i < STORM_HANDLERS; i++)
	{
		storm.handlers[i]->current = false;
		storm_forget_if_unused(storm.handlers[i]);
	}
	transport->drive();
	/* Newer releases of libcurl give a receiver two seconds to hear that a connection of TLS ends. */
	for (end = now_ms() + patience_ms(); transport->timeout() >= 0 && now_ms() < end;)
		turn(100);
	is_int(transport->timeout(), -1, "%s: storm: nor is anything left to wake up for", transport->name);
}

#endif							/* OUTBOX_TRANSPORT_STORM_H */
