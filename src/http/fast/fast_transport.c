/*-------------------------------------------------------------------------
 *
 * fast_transport.c
 *		The transport "fast": libcurl connects, HTTP/1.1 is spoken here.
 *
 * Carries targets with HTTP/1.1 over TCP, TLS and unix sockets.  Everything
 * else (HTTP/2, a host name that is not ASCII, a URL that libcurl should
 * refuse in its own words) goes to the transport "curl", which runs beside it
 * on the same poller.
 *
 * Process: the dispatcher; see transport.h.
 *
 *-------------------------------------------------------------------------
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/clock.h"
#include "http/curl_transport.h"
#include "http/factory.h"
#include "http/fast/fast_connection.h"
#include "http/sockets.h"

/*
 * Targets
 */

/* A part of a URL, to be freed with curl_free(); NULL if there is none. */
static char *
url_part(CURLU *url, CURLUPart part, unsigned flags)
{
	char	   *text = NULL;

	return curl_url_get(url, part, &text, flags) == CURLUE_OK ? text : NULL;
}

static bool
is_ascii(const char *text)
{
	for (; *text != '\0'; text++)
		if (*text <= ' ' || *text > '~')
			return false;
	return true;
}

/* Two texts with a separator where there is a second.  NULL: out of memory. */
static char *
join(const char *a, char separator, const char *b)
{
	size_t		room = strlen(a) + (b != NULL ? strlen(b) + 1 : 0) + 1;
	char	   *text = malloc(room);

	if (text != NULL && b != NULL)
		snprintf(text, room, "%s%c%s", a, separator, b);
	else if (text != NULL)
		memcpy(text, a, room);
	return text;
}

/* Fill in what comes from the URL.  False: it is none for us. */
static bool
take_url(FastTarget *state, CURLU *url)
{
	char	   *scheme = url_part(url, CURLUPART_SCHEME, 0);
	char	   *user = url_part(url, CURLUPART_USER, 0);
	char	   *host = url_part(url, CURLUPART_HOST, 0);
	char	   *port = url_part(url, CURLUPART_PORT, CURLU_NO_DEFAULT_PORT);
	char	   *path = url_part(url, CURLUPART_PATH, 0);
	char	   *query = url_part(url, CURLUPART_QUERY, 0);
	bool		ours = scheme != NULL && host != NULL && path != NULL && user == NULL &&
		is_ascii(host) && is_ascii(path) && (query == NULL || is_ascii(query));

	if (ours && strcmp(scheme, "https") == 0)
		state->tls = true;
	else if (ours && strcmp(scheme, "http") != 0)
		ours = false;
	if (ours)
	{
		state->resource = join(path, '?', query);
		state->authority = join(host, ':', port);
	}
	curl_free(scheme);
	curl_free(user);
	curl_free(host);
	curl_free(port);
	curl_free(path);
	curl_free(query);
	return ours && state->resource != NULL && state->authority != NULL;
}

static void
free_target(FastTarget *state)
{
	free(state->resource);
	free(state->authority);
	outbox_http1_free(&state->shared);
	free(state);
}

/* The state of a target that is ours, or NULL. */
static FastTarget *
new_target(HttpTarget *target)
{
	CURLU	   *url;
	FastTarget *state;
	bool		ours;

	if (target->http_version != 11)
		return NULL;
	url = curl_url();
	state = calloc(1, sizeof(FastTarget));
	ours = url != NULL && state != NULL &&
		curl_url_set(url, CURLUPART_URL, target->url, 0) == CURLUE_OK && take_url(state, url);
	curl_url_cleanup(url);
	if (!ours)
	{
		if (state != NULL)
			free_target(state);
		return NULL;
	}
	state->state.route = &outbox_fast_transport;
	state->target = target;
	state->broken = outbox_headers_are_broken(target->headers, target->nheaders);
	outbox_list_init(&state->resting);
	outbox_list_init(&state->spare);
	return state;
}

/* Who carries this target's exchanges. */
static const HttpTransport *
route(HttpTarget *target)
{
	OutboxTargetState *state;

	if (target->transport_data == NULL)
		target->transport_data = new_target(target);
	state = target->transport_data;
	return state != NULL ? state->route : &outbox_curl_transport;
}

/* What its requests begin with, written once.  False: out of memory. */
static bool
write_shared(FastTarget *state)
{
	return state->shared_written ||
		(state->shared_written = outbox_http1_write_shared(&state->shared, state->target, state->resource, state->authority));
}

/*
 * The interface
 */

/* Room for one more connection, made by closing resting ones if need be. */
static bool
make_room(int descriptors)
{
	while (outbox_fast_connections() >= outbox_engine_capacity() || !outbox_sockets_fit(descriptors))
		if (!outbox_fast_close_oldest())
			return false;
	return true;
}

static bool
fast_submit(HttpExchange *exchange)
{
	FastTarget *state;
	int			descriptors;

	if (route(exchange->target) != &outbox_fast_transport)
		return outbox_curl_transport.submit(exchange);
	state = exchange->target->transport_data;
	if (outbox_exchange_in_flight() >= outbox_engine_capacity() || !write_shared(state))
		return false;
	outbox_exchange_begin(exchange);
	if (state->broken || outbox_headers_are_broken(exchange->headers, exchange->nheaders))
	{
		outbox_exchange_finish(exchange, HTTP_FAILED_OTHER, OUTBOX_BROKEN_HEADER);
		return true;
	}
	switch (outbox_fast_reuse(state, exchange))
	{
		case FAST_TAKEN:
			return true;
		case FAST_REFUSED:
			outbox_exchange_finish(exchange, HTTP_FAILED_BLOCKED, OUTBOX_BLOCKED_ADDRESS);
			return true;
		case FAST_NONE_RESTING:
			break;
	}
	descriptors = outbox_sockets_needed(exchange->target, state->state.reached);
	if (make_room(descriptors) && outbox_fast_connect(state, exchange, descriptors))
		return true;
	outbox_exchange_abandon(exchange);
	return false;
}

static long
fast_timeout(void)
{
	if (!outbox_poller_is_flushed())
		return 0;
	return outbox_clock_ms_until(outbox_clock_earlier(outbox_curl_next_event(), outbox_fast_next_event()));
}

static void
fast_drive(void)
{
	int64_t		now;

	outbox_poller_dispatch();
	now = outbox_clock_us();
	outbox_curl_run_timer(now);
	outbox_fast_run_timer(now);
	outbox_curl_judge_timeouts(now);
	outbox_fast_judge_timeouts(now);
	outbox_poller_flush();
}

static void
fast_catch_up(void)
{
	outbox_curl_hold_timeouts(true);
	outbox_fast_hold_timeouts(true);
	outbox_poller_dispatch_all();
	outbox_curl_hold_timeouts(false);
	outbox_fast_hold_timeouts(false);
	outbox_poller_flush();
}

static void
fast_cancel(HttpExchange *exchange)
{
	if (exchange->transport_data == NULL || route(exchange->target) != &outbox_fast_transport)
	{
		outbox_curl_transport.cancel(exchange);
		return;
	}
	outbox_fast_cancel(exchange);
	outbox_exchange_abandon(exchange);
}

static void
fast_forget(HttpTarget *target)
{
	OutboxTargetState *state = target->transport_data;

	if (state == NULL)
		return;
	if (state->route != &outbox_fast_transport)
	{
		outbox_curl_transport.forget(target);
		return;
	}
	outbox_fast_close_target((FastTarget *) state);
	assert(((FastTarget *) state)->nconnections == 0);
	free_target((FastTarget *) state);
	target->transport_data = NULL;
}

static const char *
fast_startup(const HttpTransportOptions *options)
{
	const char *problem = outbox_curl_transport.startup(options);

	if (problem != NULL)
		return problem;
	problem = outbox_fast_open();
	if (problem != NULL)
		outbox_curl_transport.shutdown();
	return problem;
}

static void
fast_shutdown(void)
{
	outbox_fast_close();
	outbox_curl_transport.shutdown();
}

const HttpTransport outbox_fast_transport = {
	.name = "fast",
	.startup = fast_startup,
	.configure = outbox_engine_configure,
	.fd = outbox_poller_fd,
	.timeout = fast_timeout,
	.submit = fast_submit,
	.drive = fast_drive,
	.catch_up = fast_catch_up,
	.next_done = outbox_exchange_next_done,
	.release = outbox_exchange_release,
	.cancel = fast_cancel,
	.forget = fast_forget,
	.capacity = outbox_engine_capacity,
	.in_flight = outbox_exchange_in_flight,
	.shutdown = fast_shutdown,
};
