/*
 * What becomes of requests that share a connection of HTTP/2: one that makes
 * the receiver end it costs the others nothing.
 */
#include <curl/curl.h>

#include "http2_server.h"
#include "transport_harness.h"

#define MANY 20

static Identity identity;
static int	port;

static Call calls[MANY + 1];

/* So many good requests and a last one, all on one connection that gathers them. */
static void
send_together(const char *last)
{
	char		url[64];

	snprintf(url, sizeof(url), "https://localhost:%d/", port);
	set_up_url(&calls[0], url);
	calls[0].target.tls_ca_file = identity.certificate_file;
	calls[0].target.http_version = 20;
	calls[0].exchange.body = "good";
	calls[0].exchange.body_len = 4;
	for (int i = 1; i <= MANY; i++)
	{
		calls[i] = calls[0];
		calls[i].exchange.target = &calls[0].target;
		calls[i].exchange.owner = &calls[i];
	}
	calls[MANY / 2].exchange.body = last;
	calls[MANY / 2].exchange.body_len = strlen(last);
	http2.gather = MANY + 1;
	http2.connections = 0;
	http2.requests = 0;
	for (int i = 0; i <= MANY; i++)
		submit(&calls[i]);
	is_int(run(MANY + 1), MANY + 1, "%s: all are over", transport->name);
}

static int
count_answered(bool resent)
{
	int			n = 0;

	for (int i = 0; i <= MANY; i++)
	{
		const HttpExchange *exchange = &calls[i].exchange;

		if (i == MANY / 2)
			continue;
		if (exchange->failure == HTTP_ANSWERED && exchange->status == 200 && exchange->resent == resent)
			n++;
		else
			printf("# %d: failure %d status %d resent %d %s\n", i, exchange->failure, exchange->status, exchange->resent, exchange->error);
	}
	return n;
}

static void
forget_all(void)
{
	for (int i = 0; i <= MANY; i++)
		release(&calls[i]);
	transport->forget(&calls[0].target);
}

static void
check_poison(Http2End end, const char *how)
{
	const HttpExchange *poison = &calls[MANY / 2].exchange;

	http2.end = end;
	for (int round = 0; round < 2; round++)
	{
		send_together("poison");
		is_int(count_answered(true), MANY, "%s: %s: the others are answered, each on a connection of its own", transport->name, how);
		ok(poison->failure != HTTP_ANSWERED && poison->status == 0, "%s: %s: what caused it is not: %s", transport->name, how, poison->error);
		ok(http2.requests <= 3 * (MANY + 1), "%s: %s: nothing was sent more than three times, libcurl's own repetition included", transport->name, how);
		forget_all();
	}
}

static void
check_reset_stream(void)
{
	const HttpExchange *reset = &calls[MANY / 2].exchange;

	http2.end = END_CALM;
	send_together("reset");
	is_int(count_answered(false), MANY, "%s: a stream that is reset: the others are answered", transport->name);
	ok(reset->failure == HTTP_FAILED_BODY && !reset->resent, "%s: and it was its own fault: %s", transport->name, reset->error);
	is_int(http2.connections, 1, "%s: which costs no connection", transport->name);
	forget_all();
}

static void
check_graceful(void)
{
	int			n = 0;

	http2.end = END_GRACEFUL;
	send_together("good");
	for (int i = 0; i <= MANY; i++)
		n += calls[i].exchange.failure == HTTP_ANSWERED && calls[i].exchange.status == 200;
	count_answered(true);
	is_int(n, MANY + 1, "%s: what a receiver has not taken when it goes away is sent again", transport->name);
	forget_all();
}

static void
set_up_one(Call *call)
{
	char		url[64];

	snprintf(url, sizeof(url), "https://localhost:%d/", port);
	set_up_url(call, url);
	call->target.tls_ca_file = identity.certificate_file;
	call->target.http_version = 20;
	call->exchange.body = "good";
	call->exchange.body_len = 4;
}

/* A connection on which nothing was answered in time is not used again, though others still wait on it. */
static void
check_timeout(void)
{
	Call		call;
	Call		waiting;

	http2.connections = 0;
	http2.end = END_CALM;
	set_up_one(&call);
	perform(&call);
	ok(answered_with(&call, 200), "%s: answered", transport->name);
	release(&call);
	waiting = call;
	waiting.exchange.target = &call.target;
	waiting.exchange.owner = &waiting;
	waiting.exchange.body = "silent";
	waiting.exchange.body_len = 6;
	call.exchange.body = "silent";
	call.exchange.body_len = 6;
	call.target.timeout_ms = 200;
	submit(&call);
	run(1);
	ok(failed_as(&call, HTTP_FAILED_TIMEOUT) && call.exchange.reused, "%s: silence times out", transport->name);
	release(&call);
	call.target.timeout_ms = patience_ms();
	submit(&waiting);
	call.exchange.body = "good";
	call.exchange.body_len = 4;
	for (int i = 0; i < 3; i++)
	{
		perform(&call);
		ok(answered_with(&call, 200), "%s: answered", transport->name);
		release(&call);
	}
	ok(http2.connections == 2 || http2.connections == 3, "%s: on new connections, of which libcurl may open two at once", transport->name);
	cancel(&waiting);
	finish(&call);
}

/* A receiver need not read what it has answered, and may say that it will not. */
static void
check_unread(void)
{
	static char body[4 * 1024 * 1024] = "unread";
	Call		call;

	http2.end = END_CALM;
	set_up_one(&call);
	for (int i = 0; i < 5; i++)
	{
		call.exchange.body = body;
		call.exchange.body_len = i == 0 ? 20 : i < 3 ? 100000 : sizeof(body);
		perform(&call);
		ok(answered_with(&call, 204) && !call.exchange.resent, "%s: 204 before the body was read", transport->name);
		release(&call);
	}
	transport->forget(&call.target);
}

/* However busy, a connection is not used for ever. */
static void
check_lifetime(void)
{
	HttpTransportOptions options = {.max_in_flight = 100,.connection_lifetime_ms = 300};
	Call		calls_of_two[2];
	int64_t		end = now_ms() + patience_ms();
	int			n = 0;

	transport->configure(&options);
	http2.connections = 0;
	http2.end = END_CALM;
	set_up_one(&calls_of_two[0]);
	calls_of_two[1] = calls_of_two[0];
	calls_of_two[1].exchange.target = &calls_of_two[0].target;
	calls_of_two[1].exchange.owner = &calls_of_two[1];

	/* One of them is always out. */
	submit(&calls_of_two[0]);
	for (int i = 1; http2.connections < 3 && now_ms() < end; i = 1 - i)
	{
		submit(&calls_of_two[i]);
		while (!calls_of_two[1 - i].done && now_ms() < end)
			run(1);
		n += calls_of_two[1 - i].exchange.status != 200;
		release(&calls_of_two[1 - i]);
	}
	while (transport->in_flight() > 0 && now_ms() < end)
		run(1);
	is_int(n, 0, "%s: all are answered", transport->name);
	ok(http2.connections >= 3, "%s: over one connection after the other", transport->name);
	transport->forget(&calls_of_two[0].target);
	options.connection_lifetime_ms = 0;
	transport->configure(&options);
}

int
main(void)
{
	static const char *const names[] = {"curl", "fast"};
	HttpTransportOptions options = {.max_in_flight = 100};

	signal(SIGPIPE, SIG_IGN);
	if ((curl_version_info(CURLVERSION_NOW)->features & CURL_VERSION_HTTP2) == 0)
	{
		skip("libcurl was built without HTTP/2");
		return tap_done();
	}
	make_folder();
	make_identity(&identity, "localhost", "DNS:localhost", -3600, 3600, NULL);
	port = http2_listen(&identity);
	for (int t = 0; t < 2; t++)
	{
		start_transport(names[t], &options);
		check_poison(END_CALM, "told to calm down");
		check_poison(END_SILENTLY, "ended without a word");
		check_poison(END_RESET, "reset");
		check_reset_stream();
		check_graceful();
		check_unread();
		check_timeout();
		check_lifetime();
		transport->shutdown();
	}
	drop_identity(&identity);
	rmdir(folder);
	return tap_done();
}
