/*
 * What a receiver may do on the wire beside answering, and what becomes of the
 * requests that follow: the same over both transports, TCP and TLS.
 */
#include <curl/curl.h>

#include "tls_wire.h"
#include "transport_harness.h"

#define TEXT(literal) literal, sizeof(literal) - 1
#define STRAY "HTTP/1.1 500 Stray\r\nContent-Length: 0\r\n\r\n"
#define LATE "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
#define COUNTED_ANSWER "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
#define CHUNKED_ANSWER "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"

/* Each is the answer to every request on its connection; what stands behind it is nobody's. */
static const RawAnswer answers[] = {
	{"a second answer with the first", TEXT(COUNTED_ANSWER), false, false, STRAY, 0},
	{"a second answer with one in chunks", TEXT(CHUNKED_ANSWER), false, false, STRAY, 0},
	{"a second answer with a 204", TEXT("HTTP/1.1 204 x\r\n\r\n"), false, false, STRAY, 0},
	{"a second answer with an empty one", TEXT("HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n"), false, false, STRAY, 0},
	{"a second answer later", TEXT(COUNTED_ANSWER), false, false, STRAY, 1},
	{"a second answer later, in chunks", TEXT(CHUNKED_ANSWER), false, false, STRAY, 1},
	{"a late 408", TEXT(COUNTED_ANSWER), true, false, LATE, 1},
	{"a late 408, kept open", TEXT(COUNTED_ANSWER), false, false, LATE, 1},
	{"a body longer than its length", TEXT("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"), false, false, " world", 0},
	{"a body behind a 304 that announces one", TEXT("HTTP/1.1 304 x\r\nContent-Length: 45\r\n\r\n"), false, false, STRAY, 1},
	{"a length and chunks", TEXT("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), false, false, STRAY, 1},
	{"half an answer", TEXT(COUNTED_ANSWER), false, false, "HTTP/1.1 500 St", 1},
	{"a blank line", TEXT(COUNTED_ANSWER), false, false, "\r\n", 1},
};

#define NANSWERS ((int) (sizeof(answers) / sizeof(answers[0])))
#define ROUNDS 5

static Identity identity;
static RawAnswer numbered[NANSWERS];
static char numbers[NANSWERS][8];

static void
set_up_at(Call *call, const char *origin, const char *path)
{
	char		url[128];

	snprintf(url, sizeof(url), "%s%s", origin, path);
	set_up_url(call, url);
	call->target.tls_ca_file = identity.certificate_file;
}

/* None of several requests in a row may hear what was said unasked. */
static void
check_strays(const char *origin, int answer)
{
	int			expected = atoi(answers[answer].bytes + 9);
	int			n = 0;
	Call		call;
	char		path[32];

	snprintf(path, sizeof(path), "/raw/%s", numbers[answer]);
	set_up_at(&call, origin, path);
	for (int i = 0; i < ROUNDS; i++)
	{
		int			before = seen.strays;

		perform(&call);
		if (call.exchange.failure == HTTP_ANSWERED && call.exchange.status == expected)
			n++;
		else
			printf("# failure %d status %d %s\n", call.exchange.failure, call.exchange.status, call.exchange.error);
		release(&call);
		wait_for_count(&seen.strays, before + 1);
	}
	is_int(n, ROUNDS, "%s, %.5s: %s", transport->name, origin, answers[answer].name);
	transport->forget(&call.target);
}

/*
 * A receiver need not read what it has answered.  When it closes at once, a
 * reset follows the answer, and libcurl, which is still writing, gives up a
 * TLS connection without reading what has come.
 */
static void
check_unread(const char *origin, const char *path)
{
	bool		may_be_lost = !is_fast() && strncmp(origin, "https", 5) == 0 && strcmp(path, "/unread-close") == 0;
	static char body[8 * 1024 * 1024];
	int			n = 0;
	Call		call;

	set_up_at(&call, origin, path);
	call.exchange.body = body;
	call.exchange.body_len = sizeof(body);
	for (int i = 0; i < ROUNDS; i++)
	{
		perform(&call);
		if ((call.exchange.failure == HTTP_ANSWERED && call.exchange.status == 200) ||
			(may_be_lost && call.exchange.failure == HTTP_FAILED_CONNECT))
			n++;
		else
			printf("# failure %d status %d %s\n", call.exchange.failure, call.exchange.status, call.exchange.error);
		release(&call);
	}
	is_int(n, ROUNDS, "%s, %.5s: %s", transport->name, origin, path);
	transport->forget(&call.target);
}

int
main(void)
{
	static const char *const names[] = {"curl", "fast"};
	HttpTransportOptions options = {.max_in_flight = 10};
	char		origins[2][64];

	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < NANSWERS; i++)
	{
		snprintf(numbers[i], sizeof(numbers[i]), "%d", i);
		numbered[i] = answers[i];
		numbered[i].name = numbers[i];
	}
	raw_answers = numbered;
	nraw_answers = NANSWERS;
	make_folder();
	make_identity(&identity, "localhost", "DNS:localhost", -3600, 3600, NULL);
	snprintf(origins[0], sizeof(origins[0]), "http://localhost:%d", hostile_listen(NULL));
	snprintf(origins[1], sizeof(origins[1]), "https://localhost:%d", tls_listen(tls_context(&identity), false));
	for (int t = 0; t < 2; t++)
	{
		start_transport(names[t], &options);
		for (int o = 0; o < 2; o++)
		{
			for (int i = 0; i < NANSWERS; i++)
				check_strays(origins[o], i);
			check_unread(origins[o], "/unread");
			check_unread(origins[o], "/unread-close");
		}
		transport->shutdown();
	}
	drop_identity(&identity);
	rmdir(folder);
	return tap_done();
}
