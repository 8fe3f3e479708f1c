/*
 * Both transports against a receiver that misbehaves in every way it can.
 *
 * getaddrinfo() is this program's own, so that names resolve to what a test
 * needs, slowly, or never.
 */
#include <curl/curl.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "encoded_answers.h"
#include "transport_harness.h"
#include "transport_storm.h"
#include "turkish.h"

#define TEXT(literal) literal, sizeof(literal) - 1
#define OK_STATUS "HTTP/1.1 200 OK\r\n"

static const RawAnswer raw_table[] = {
	{"204", TEXT("HTTP/1.1 204 No Content\r\n\r\n"), false},
	{"304", TEXT("HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n"), false},
	{"302", TEXT("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/meta-data/\r\nContent-Length: 0\r\n\r\n"), false},
	{"410", TEXT("HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n"), false},
	{"503", TEXT("HTTP/1.1 503 x\r\nretry-AFTER: \t120 \r\nOutbox-Outcome: retry; code=busy; after=30\r\nContent-Length: 4\r\n\r\nbusy"), false},
	{"1xx", TEXT("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nRetry-After: 9\r\nOutbox-Outcome: ok\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), false},
	{"101", TEXT("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), false},
	{"trailers", TEXT(OK_STATUS "Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nRetry-After: 9\r\nOutbox-Outcome: fail; code=x\r\n\r\n"), false},
	{"to-eof", TEXT(OK_STATUS "\r\nuntil the end"), true},
	{"http10", TEXT("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"), true},
	{"bytes", TEXT("HTTP/1.1 500 x\r\nContent-Length: 8\r\n\r\na\0b\xff\xfe\xc3\x28\x80"), false},
	{"http2", TEXT("\0\0\x06\4\0\0\0\0\0\0\3\0\0\0\x80\0\0\4\x08\0\0\0\0\0\0\1"), true},
	{"coded-chunks", TEXT(OK_STATUS "Transfer-Encoding: gzip, gzip, gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), false},
	{"bad-chunk", TEXT(OK_STATUS "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n"), false},
	{"short-body", TEXT(OK_STATUS "Content-Length: 10\r\n\r\nshort"), true},
	{"short-chunk", TEXT(OK_STATUS "Transfer-Encoding: chunked\r\n\r\n5\r\nab"), true},
	{"short-headers", TEXT(OK_STATUS "Content-Length: 0\r\n"), true},
	{"http09", TEXT("<html>hello</html>"), true},
	{"nul", TEXT(OK_STATUS "X: a\0b\r\nContent-Length: 0\r\n\r\n"), false},
	{"bad-length", TEXT(OK_STATUS "Content-Length: -1\r\n\r\n"), false},
	{"no-colon", TEXT(OK_STATUS "rubbish\r\n\r\n"), false},
	{"rubbish-behind", TEXT(OK_STATUS "Content-Length: 2\r\n\r\nokrubbish"), false},
};

/*
 * Names
 */

static int	server_port;
static atomic_bool lookups_hang = true;

typedef int (*Lookup) (const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* Two addresses, one behind the other. */
static int
two_addresses(Lookup real, const char *first, const char *second, const char *service,
			  const struct addrinfo *hints, struct addrinfo **result)
{
	struct addrinfo *more;
	struct addrinfo any = *hints;

	any.ai_family = AF_UNSPEC;
	any.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
	if (real(first, service, &any, result) != 0)
		return EAI_NONAME;
	if (real(second, service, &any, &more) != 0)
		return EAI_NONAME;
	(*result)->ai_next = more;
	return 0;
}

/* Since PostgreSQL 16 its flags hide what is not marked, and libcurl must find this one. */
__attribute__((visibility("default"))) int
getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
	Lookup		real = (Lookup) dlsym(RTLD_NEXT, "getaddrinfo");

	if (name == NULL)
		return real(name, service, hints, result);
	if (strcmp(name, "never.test") == 0)
	{
		while (lookups_hang)
			pause_ms(10);
		return EAI_AGAIN;
	}
	if (strcmp(name, "unknown.test") == 0)
		return EAI_NONAME;
	if (strcmp(name, "here.test") == 0)
		return real("127.0.0.1", service, hints, result);
	if (strcmp(name, "both.test") == 0)
		return two_addresses(real, "::1", "127.0.0.1", service, hints, result);
	return real(name, service, hints, result);
}

/*
 * The filter
 */

static atomic_int refuse_family;	/* AF_INET, AF_INET6, or 0 */
static int	refused;

static bool
refuse(void *arg, const void *address, size_t len)
{
	const struct sockaddr *sa = address;

	if (arg != &refuse_family || (sa->sa_family != AF_INET && sa->sa_family != AF_INET6))
		abort();
	if (sa->sa_family != refuse_family)
		return false;
	refused++;
	return true;
}

static HttpTransportOptions
usual_options(void)
{
	HttpTransportOptions options = {
		.max_in_flight = 500,
		.blocked = refuse,
		.blocked_arg = &refuse_family
	};

	return options;
}

/*
 * Answers
 */

static void
set_up(Call *call, const char *path)
{
	char		url[256];

	snprintf(url, sizeof(url), "http://127.0.0.1:%d%s", server_port, path);
	set_up_url(call, url);
}

/* A whole call to a path: performed, checked, finished. */
static void
expect_failure(const char *path, HttpFailure failure, const char *what)
{
	Call		call;

	set_up(&call, path);
	perform(&call);
	ok(failed_as(&call, failure), "%s: %s", transport->name, what);
	ok(call.exchange.error[0] != '\0', "%s: %s: it says why: %s", transport->name, what, call.exchange.error);
	finish(&call);
}

static void
expect_status(const char *path, int status, const char *what)
{
	Call		call;

	set_up(&call, path);
	perform(&call);
	ok(answered_with(&call, status), "%s: %s", transport->name, what);
	finish(&call);
}

static void
check_answers(void)
{
	Call		call;

	set_up(&call, "/ok");
	perform(&call);
	ok(answered_with(&call, 200), "%s: an ordinary answer", transport->name);
	ok(call.exchange.response_len == 5 && memcmp(call.exchange.response, "hello", 5) == 0, "%s: its body", transport->name);
	is_int(call.exchange.response_total, 5, "%s: its length", transport->name);
	is_str(call.exchange.error, "", "%s: no error", transport->name);
	ok(!call.exchange.reused && !call.exchange.resent, "%s: on a new connection", transport->name);
	ok(call.exchange.done_us >= call.exchange.sent_us, "%s: took some time", transport->name);
	is_int(transport->in_flight(), 0, "%s: nothing is out", transport->name);
	release(&call);
	perform(&call);
	ok(answered_with(&call, 200) && call.exchange.reused && !call.exchange.resent, "%s: the connection is kept", transport->name);
	finish(&call);

	set_up(&call, "/raw/503");
	perform(&call);
	ok(answered_with(&call, 503), "%s: 503", transport->name);
	is_str(call.exchange.retry_after, "120", "%s: retry-after", transport->name);
	is_str(call.exchange.outcome, "retry; code=busy; after=30", "%s: outbox-outcome", transport->name);
	finish(&call);

	set_up(&call, "/raw/1xx");
	perform(&call);
	ok(answered_with(&call, 200), "%s: provisional answers are passed over", transport->name);
	is_str(call.exchange.retry_after, "", "%s: with their retry-after", transport->name);
	is_str(call.exchange.outcome, "", "%s: and their outbox-outcome", transport->name);
	finish(&call);

	set_up(&call, "/raw/trailers");
	perform(&call);
	ok(answered_with(&call, 200) && call.exchange.response_total == 3, "%s: chunks", transport->name);
	ok(call.exchange.retry_after[0] == '\0' && call.exchange.outcome[0] == '\0', "%s: trailers say nothing", transport->name);
	finish(&call);

	set_up(&call, "/raw/bytes");
	perform(&call);
	ok(answered_with(&call, 500) && call.exchange.response_len == 8 &&
	   memcmp(call.exchange.response, "a\0b\xff\xfe\xc3\x28\x80", 8) == 0, "%s: any bytes are captured", transport->name);
	finish(&call);

	set_up(&call, "/raw/302");
	perform(&call);
	ok(answered_with(&call, 302), "%s: a redirect is an answer and not followed", transport->name);
	finish(&call);

	expect_status("/raw/204", 204, "204");
	expect_status("/raw/304", 304, "304 with a length");
	expect_status("/raw/410", 410, "410");
	expect_status("/raw/to-eof", 200, "a body up to the end of the connection");
	expect_status("/raw/http10", 200, "HTTP/1.0");
	expect_status("/raw/rubbish-behind", 200, "rubbish behind an answer");

	set_up(&call, "/ok");
	call.exchange.capture_limit = 0;
	perform(&call);
	ok(answered_with(&call, 200) && call.exchange.response_len == 0 && call.exchange.response_total == 5,
	   "%s: nothing is captured where nothing is wanted", transport->name);
	release(&call);
	call.exchange.capture_limit = 3;
	perform(&call);
	ok(call.exchange.response_len == 3 && memcmp(call.exchange.response, "hel", 3) == 0, "%s: no more is captured than wanted", transport->name);
	finish(&call);
}

static void
check_broken_answers(void)
{
	Call		call;

	/* A receiver of HTTP/2 without TLS. */
	set_up(&call, "/raw/http2");
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_BODY) && strstr(call.exchange.error, "HTTP/2 is spoken over TLS only") != NULL,
	   "%s: HTTP/2: %s", transport->name, call.exchange.error);
	finish(&call);

	/* Some releases of libcurl would undo these unasked, and give gigabytes of a few hundred bytes. */
	set_up(&call, "/raw/coded-chunks");
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_BODY) && strstr(call.exchange.error, "transfer-encoding") != NULL,
	   "%s: codings within chunks: %s", transport->name, call.exchange.error);
	finish(&call);

	expect_failure("/raw/101", HTTP_FAILED_BODY, "101");
	expect_failure("/raw/bad-chunk", HTTP_FAILED_BODY, "a bad chunk");
	expect_failure("/raw/short-body", HTTP_FAILED_BODY, "a short body");
	expect_failure("/raw/short-chunk", HTTP_FAILED_BODY, "a short chunk");
	expect_failure("/raw/short-headers", HTTP_FAILED_BODY, "headers that are cut short");
	expect_failure("/raw/http09", HTTP_FAILED_BODY, "HTTP/0.9");
	expect_failure("/raw/nul", HTTP_FAILED_BODY, "a NUL in a header");
	expect_failure("/raw/bad-length", HTTP_FAILED_BODY, "a negative length");
	expect_failure("/raw/no-colon", HTTP_FAILED_BODY, "a header without a colon");
	expect_failure("/flood", HTTP_FAILED_BODY, "headers without end");
	expect_failure("/reset", HTTP_FAILED_CONNECT, "a reset before an answer");
}

/* The receiver closes after each possible number of bytes. */
static void
check_cuts(void)
{
	for (int n = 0; n <= WHOLE; n++)
	{
		Call		call;
		char		path[64];

		snprintf(path, sizeof(path), "/cut/%d", n);
		set_up(&call, path);
		perform(&call);
		if (n == WHOLE)
			ok(answered_with(&call, 200), "%s: closed behind the answer", transport->name);
		else if (n == 0)
			ok(failed_as(&call, HTTP_FAILED_CONNECT), "%s: closed before the answer", transport->name);
		else
			ok(failed_as(&call, is_fast() || n > 17 ? HTTP_FAILED_BODY : call.exchange.failure) &&
			   call.exchange.failure != HTTP_ANSWERED,
			   "%s: closed after %d bytes of the answer", transport->name, n);
		ok(!call.exchange.resent, "%s: closed after %d bytes: not sent again", transport->name, n);
		finish(&call);
	}
}

/* The same on the second request of a connection. */
static void
check_cuts_of_kept(const char *how)
{
	for (int n = 0; n <= WHOLE; n++)
	{
		Call		call;
		char		path[64];
		int			before = seen.requests;

		snprintf(path, sizeof(path), "/%s-second/%d", how, n);
		set_up(&call, path);
		perform(&call);
		ok(answered_with(&call, 200), "%s: %s %d: the first is answered", transport->name, how, n);
		release(&call);
		perform(&call);

		/*
		 * A reset may overtake the bytes before it, so that none arrives.
		 * libcurl counts whole lines: it sends again although some of a
		 * status line came.
		 */
		if (call.exchange.resent)
		{
			ok(answered_with(&call, 200) && (n == 0 || (n <= 17 && !is_fast()) || strcmp(how, "reset") == 0),
			   "%s: %s %d: sent again and answered", transport->name, how, n);
			is_int(seen.requests - before, 3, "%s: %s %d: three requests", transport->name, how, n);
		}
		else
		{
			ok(n == WHOLE ? answered_with(&call, 200) || strcmp(how, "reset") == 0 :
			   failed_as(&call, HTTP_FAILED_BODY) && n > 0,
			   "%s: %s %d: not sent again", transport->name, how, n);
			is_int(seen.requests - before, 2, "%s: %s %d: two requests", transport->name, how, n);
		}
		finish(&call);
	}
}

/* The newest libcurls do not look at a connection that rested for a moment only. */
static bool
looks_before_reuse(void)
{
	return is_fast() || curl_version_info(CURLVERSION_NOW)->version_num < 0x081400;
}

static void
check_keeping(void)
{
	Call		call;
	Call		calls[50];
	int			before;
	int			connections;

	/* Closed behind each answer, and noticed before the next request.  Nobody has been there yet. */
	server_port = hostile_listen(NULL);
	set_up(&call, "/close-after");
	for (int i = 0; i < 3; i++)
	{
		before = seen.closed;
		perform(&call);
		ok(answered_with(&call, 200) && (!call.exchange.resent || !looks_before_reuse()), "%s: closed behind answer %d (reused %d, resent %d)",
		   transport->name, i, call.exchange.reused, call.exchange.resent);
		ok(wait_for_count(&seen.closed, before + 1), "%s: the receiver closed", transport->name);
		release(&call);
		turn(50);
	}
	before = seen.closed;
	perform(&call);
	wait_for_count(&seen.closed, before + 1);
	release(&call);
	perform(&call);
	ok(answered_with(&call, 200), "%s: closed, and sent to without a look", transport->name);
	finish(&call);

	/* A receiver that ends all its connections: the next request meets the first of many dead ones. */
	set_up(&calls[0], "/close-after");
	for (int i = 1; i < 8; i++)
	{
		calls[i] = calls[0];
		calls[i].exchange.target = &calls[0].target;
		calls[i].exchange.owner = &calls[i];
	}
	for (int round = 0; round < 2; round++)
	{
		before = seen.closed;
		for (int i = 0; i < 8; i++)
			ok(submit(&calls[i]), "%s: taken", transport->name);
		is_int(run(8), 8, "%s: eight at once", transport->name);
		ok(wait_for_count(&seen.closed, before + 8), "%s: and all closed", transport->name);
		for (int i = 0; i < 8; i++)
		{
			ok(answered_with(&calls[i], 200), "%s: round %d: answered (resent %d)", transport->name, round, calls[i].exchange.resent);
			release(&calls[i]);
		}
	}
	before = seen.requests;
	perform(&calls[0]);
	ok(answered_with(&calls[0], 200), "%s: many dead connections are one at most to a request", transport->name);
	ok(seen.requests - before == 1, "%s: and it came once", transport->name);
	finish(&calls[0]);

	/* Many at once, twice: the second time on the connections of the first. */
	connections = seen.connections;
	set_up(&calls[0], "/ok");
	for (int i = 1; i < 50; i++)
	{
		calls[i] = calls[0];
		calls[i].exchange.target = &calls[0].target;
		calls[i].exchange.owner = &calls[i];
	}
	for (int round = 0; round < 2; round++)
	{
		int			reused = 0;

		for (int i = 0; i < 50; i++)
			ok(submit(&calls[i]), "%s: taken", transport->name);
		is_int(run(50), 50, "%s: fifty at once", transport->name);
		for (int i = 0; i < 50; i++)
		{
			reused += calls[i].exchange.reused;
			ok(answered_with(&calls[i], 200), "%s: answered", transport->name);
			release(&calls[i]);
		}
		is_int(reused, round * 50, "%s: round %d: connections reused", transport->name, round);
	}
	is_int(seen.connections - connections, 50, "%s: fifty connections", transport->name);

	/* Forgetting the target closes them. */
	before = seen.ended;
	transport->forget(&calls[0].target);
	ok(wait_for_count(&seen.ended, before + 50), "%s: a forgotten target's connections are closed", transport->name);

	/* The other transport shares them among targets: one may be in use by another when its own is forgotten. */
	before = seen.ended;
	connections = seen.connections;
	set_up(&call, "/ok");
	perform(&call);
	set_up(&calls[0], "/later/50");
	ok(submit(&calls[0]), "%s: taken", transport->name);
	turn(0);
	turn(0);
	finish(&call);
	run(1);
	ok(answered_with(&calls[0], 200), "%s: a target outlives another to the same place", transport->name);
	finish(&calls[0]);
	turn(0);
	ok(wait_for_count(&seen.ended, before + seen.connections - connections), "%s: and no connection outlives both", transport->name);

	/* Never more idle ones than the target may use. */
	set_up(&call, "/ok");
	call.target.max_connections = 1;
	perform(&call);
	release(&call);
	perform(&call);
	ok(call.exchange.reused, "%s: one connection is kept for a concurrency of one", transport->name);
	finish(&call);
}

/*
 * Time
 */

static void
check_time(void)
{
	Call		call;
	Call		other;
	int64_t		begin;
	int64_t		took;
	int			ended;

	set_up(&call, "/slow/3");
	perform(&call);
	ok(answered_with(&call, 200), "%s: a slow answer", transport->name);
	finish(&call);

	for (int i = 0; i < 3; i++)
	{
		static const char *const paths[] = {"/silent", "/slow/20", "/later/800"};

		ended = seen.closed;
		set_up(&call, paths[i]);
		call.target.timeout_ms = 200;
		begin = now_ms();
		perform(&call);
		took = now_ms() - begin;
		ok(failed_as(&call, HTTP_FAILED_TIMEOUT), "%s: %s times out", transport->name, paths[i]);
		ok(took >= 195 && took < 5000, "%s: %s: after %ld ms", transport->name, paths[i], (long) took);
		ok(strstr(call.exchange.error, "200 ms") != NULL, "%s: %s", transport->name, call.exchange.error);
		finish(&call);
		ok(wait_for_count(&seen.closed, ended + 1), "%s: %s: its connection is closed", transport->name, paths[i]);
	}

	/* The answer has been there for long when the caller comes back. */
	set_up(&call, "/later/50");
	call.target.timeout_ms = 200;
	ok(submit(&call), "%s: sent", transport->name);
	for (int i = 0; i < 20; i++)
		turn(1);
	pause_ms(400);
	timed_drive(transport->catch_up);
	timed_drive(transport->drive);
	is_int(run(1), 1, "%s: done after an absence", transport->name);
	ok(answered_with(&call, 200), "%s: an answer that was there in time counts", transport->name);
	finish(&call);

	/* So has the connection. */
	set_up(&call, "/ok");
	call.target.connect_timeout_ms = 100;
	ok(submit(&call), "%s: sent", transport->name);
	timed_drive(transport->drive);
	pause_ms(300);
	timed_drive(transport->catch_up);
	timed_drive(transport->drive);
	run(1);
	ok(answered_with(&call, 200), "%s: a connection that was there in time counts", transport->name);
	finish(&call);

	/* One that waits does not hold up another. */
	set_up(&call, "/silent");
	call.target.timeout_ms = 300;
	set_up(&other, "/ok");
	ok(submit(&call) && perform(&other), "%s: others go on", transport->name);
	ok(answered_with(&other, 200) && !call.done, "%s: while one is silent", transport->name);
	run(1);
	ok(failed_as(&call, HTTP_FAILED_TIMEOUT), "%s: which times out", transport->name);
	finish(&call);
	finish(&other);
	is_int(transport->timeout(), -1, "%s: nothing to wake up for", transport->name);
}

/* A listener whose backlog is full lets nobody in. */
static void
check_connect_timeout(void)
{
	Call		call;
	int			port;
	int			fd = bound_socket(AF_INET, &port);
	int			fillers[4];
	int64_t		begin;
	char		url[64];

	if (listen(fd, 0) < 0)
		abort();
	for (int i = 0; i < 4; i++)
	{
		struct sockaddr_in address = {.sin_family = AF_INET,.sin_port = htons(port)};

		address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		connect(fillers[i], (struct sockaddr *) &address, sizeof(address));
	}
	pause_ms(50);
	snprintf(url, sizeof(url), "http://127.0.0.1:%d/", port);
	set_up_url(&call, url);
	call.target.connect_timeout_ms = 150;
	begin = now_ms();
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_TIMEOUT), "%s: connecting times out", transport->name);
	ok(now_ms() - begin >= 145 && now_ms() - begin < 4000, "%s: in time", transport->name);
	finish(&call);

	/* The total timeout bounds it too. */
	set_up_url(&call, url);
	call.target.timeout_ms = 100;
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_TIMEOUT), "%s: the total timeout counts from the start", transport->name);
	finish(&call);
	for (int i = 0; i < 4; i++)
		close(fillers[i]);
	close(fd);
}

/*
 * Ways not to get there
 */

static int
closed_port(void)
{
	int			port;

	close(bound_socket(AF_INET, &port));
	return port;
}

static void
check_unreachable(void)
{
	Call		call;
	static Call calls[200];
	char		url[64];
	int			n = 0;

	snprintf(url, sizeof(url), "http://127.0.0.1:%d/", closed_port());
	set_up_url(&call, url);
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_CONNECT), "%s: nobody listens", transport->name);
	finish(&call);

	for (int i = 0; i < 200; i++)
		set_up_url(&calls[i], url);
	for (int i = 0; i < 200; i++)
		n += submit(&calls[i]);
	is_int(n, 200, "%s: two hundred at once are taken", transport->name);
	is_int(run(200), 200, "%s: and over", transport->name);
	for (int i = n = 0; i < 200; i++)
	{
		n += calls[i].exchange.failure == HTTP_FAILED_CONNECT;
		finish(&calls[i]);
	}
	is_int(n, 200, "%s: all of them refused", transport->name);

	set_up_url(&call, "http://unknown.test/");
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_DNS), "%s: a name that nobody knows", transport->name);
	finish(&call);

	set_up_url(&call, "ftp://127.0.0.1/");
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_OTHER), "%s: another protocol", transport->name);
	finish(&call);

	set_up_url(&call, "http://user:secret@127.0.0.1/");
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_OTHER), "%s: credentials in the URL", transport->name);
	ok(strstr(call.exchange.error, "secret") == NULL, "%s: which are not repeated", transport->name);
	finish(&call);

	snprintf(url, sizeof(url), "https://127.0.0.1:%d/", server_port);
	set_up_url(&call, url);
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_TLS), "%s: TLS to a receiver that speaks none", transport->name);
	finish(&call);
}

static void
check_names(void)
{
	Call		call;
	Call		other;
	char		url[64];
	int			port;
	int			fd;

	snprintf(url, sizeof(url), "http://here.test:%d/ok", server_port);
	set_up_url(&call, url);
	perform(&call);
	ok(answered_with(&call, 200), "%s: a name is looked up", transport->name);
	pthread_mutex_lock(&seen.lock);
	snprintf(url, sizeof(url), "Host: here.test:%d\r\n", server_port);
	ok(strcasestr(seen.head, url) != NULL, "%s: and stands in the host header", transport->name);
	pthread_mutex_unlock(&seen.lock);
	finish(&call);

	/* The first address refuses, the second answers. */
	snprintf(url, sizeof(url), "http://both.test:%d/ok", server_port);
	set_up_url(&call, url);
	perform(&call);
	ok(answered_with(&call, 200), "%s: a dead IPv6 address with a live IPv4 one", transport->name);
	finish(&call);

	/* Only IPv6. */
	fd = bound_socket(AF_INET6, &port);
	if (fd >= 0 && listen(fd, 10) == 0)
	{
		start_accepting(fd, NULL);
		snprintf(url, sizeof(url), "http://[::1]:%d/ok", port);
		set_up_url(&call, url);
		perform(&call);
		ok(answered_with(&call, 200), "%s: IPv6 only", transport->name);
		finish(&call);
	}

	/* A lookup that never ends, while another exchange goes on. */
	set_up_url(&call, "http://never.test/");
	call.target.connect_timeout_ms = 300;
	set_up(&other, "/ok");
	longest_drive = 0;
	ok(submit(&call), "%s: a lookup without end", transport->name);
	ok(perform(&other) && answered_with(&other, 200), "%s: holds nobody up", transport->name);
	run(1);
	ok(failed_as(&call, HTTP_FAILED_TIMEOUT), "%s: and times out", transport->name);
	finish(&call);
	set_up_url(&call, "http://never.test/");
	ok(submit(&call), "%s: another lookup without end", transport->name);
	turn(0);
	timed_drive(transport->drive);
	cancel(&call);
	transport->forget(&call.target);
	finish(&other);
	ok(longest_drive < 500, "%s: the loop stalled for %ld ms at most", transport->name, (long) longest_drive);
}

static void
check_filter(void)
{
	Call		call;
	char		url[64];
	int			before = seen.connections;

	refuse_family = AF_INET;
	refused = 0;
	set_up(&call, "/ok");
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_BLOCKED), "%s: a blocked address", transport->name);
	is_int(refused, 1, "%s: the filter was asked once", transport->name);
	is_int(seen.connections, before, "%s: nothing connected", transport->name);
	refuse_family = 0;
	release(&call);

	perform(&call);
	ok(answered_with(&call, 200), "%s: not blocked any more", transport->name);
	release(&call);
	before = seen.requests;
	refuse_family = AF_INET;
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_BLOCKED), "%s: blocked while the connection was kept", transport->name);
	is_int(seen.requests, before, "%s: nothing was sent", transport->name);
	refuse_family = 0;
	finish(&call);

	/* One of two addresses is enough. */
	refuse_family = AF_INET6;
	snprintf(url, sizeof(url), "http://both.test:%d/ok", server_port);
	set_up_url(&call, url);
	perform(&call);
	ok(answered_with(&call, 200), "%s: the address that is not blocked is used", transport->name);
	finish(&call);
	refuse_family = AF_INET;
	set_up_url(&call, url);
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_CONNECT), "%s: one refuses, and that the other is blocked does not hide it", transport->name);
	finish(&call);
	refuse_family = 0;
}

/*
 * Requests
 */

/* How often a head has this line. */
static int
times_in(const char *head, const char *line)
{
	char		whole[256];
	int			n = 0;

	snprintf(whole, sizeof(whole), "\r\n%s\r\n", line);
	for (const char *at = head; (at = strcasestr(at, whole)) != NULL; at += 2)
		n++;
	return n;
}

/* However a transport hands lines over, each arrives as one. */
static void
check_lines(void)
{
	static const char *static_lines[] = {"outbox-handler: shop", "x-shop: 1", "cookie: a=b"};
	static const char *lines[] = {
		"webhook-id: 7", "webhook-timestamp: 1", "webhook-signature: v1,x v1,y", "idempotency-key: 7",
		"accept: text/plain", "outbox-topic: a.b", "x-one: two", "y-three: four", "x: y"
	};
	char		head[HOSTILE_HEAD];
	Call		call;
	int			n = 0;

	set_up(&call, "/ok");
	call.target.headers = static_lines;
	call.target.nheaders = 3;
	call.exchange.headers = lines;
	for (int i = 0; i < 2; i++)
	{
		/* Fewer at the second time, so that what is left of the first would show. */
		call.exchange.nheaders = i == 0 ? 9 : 2;
		perform(&call);
		ok(answered_with(&call, 200), "%s: many lines are sent", transport->name);
		pthread_mutex_lock(&seen.lock);
		strcpy(head, seen.head);
		pthread_mutex_unlock(&seen.lock);
		transport->release(&call.exchange);
		for (int j = n = 0; j < 9; j++)
			n += times_in(head, lines[j]);
		is_int(n, call.exchange.nheaders, "%s: each once", transport->name);
		for (int j = n = 0; j < 3; j++)
			n += times_in(head, static_lines[j]);
		is_int(n, 3, "%s: and each of the target's", transport->name);
		ok(strcasestr(head, "content-type") == NULL && strcasestr(head, "*/*") == NULL, "%s: and no others", transport->name);
	}
	finish(&call);
}

static void
check_requests(void)
{
	Call		call;
	const char *static_lines[] = {"authorization: Bearer x", "Content-Length: 99", "Expect: 100-continue"};
	const char *lines[] = {"content-type: text/plain", "TRANSFER-ENCODING: chunked", "CONNECTION: close", "host: elsewhere", "x-empty-not: y"};
	const char *broken[] = {"x: y\r\nInjected: z"};
	const char *nameless[] = {": y"};
	char		head[HOSTILE_HEAD];
	static char body[2 * 1024 * 1024];
	static struct iovec parts[64];
	int			nparts = 0;
	uint64_t	sum = 0;
	char		expected[64];
	char		host[64];

	set_up(&call, "/a/path?with=query&x=%20#fragment");
	call.target.headers = static_lines;
	call.target.nheaders = 3;
	call.exchange.headers = lines;
	call.exchange.nheaders = 5;
	perform(&call);
	ok(answered_with(&call, 200), "%s: sent", transport->name);
	pthread_mutex_lock(&seen.lock);
	strcpy(head, seen.head);
	pthread_mutex_unlock(&seen.lock);
	finish(&call);
	printf("# %.*s\n", (int) strcspn(head, "\r"), head);
	ok(strncmp(head, "POST /a/path?with=query&x=%20 HTTP/1.1\r\n", 40) == 0, "%s: request line", transport->name);
	snprintf(host, sizeof(host), "\r\nhost: 127.0.0.1:%d\r\n", server_port);
	ok(strcasestr(head, host) != NULL && strcasestr(head, "elsewhere") == NULL, "%s: host", transport->name);
	ok(strcasestr(head, "\r\nuser-agent:") == NULL, "%s: no user agent but what the lines say", transport->name);
	ok(strcasestr(head, "\r\nauthorization: Bearer x\r\n") != NULL, "%s: a line of the target", transport->name);
	ok(strcasestr(head, "\r\ncontent-type: text/plain\r\n") != NULL, "%s: a line of the exchange", transport->name);
	ok(strcasestr(head, "\r\nx-empty-not: y\r\n") != NULL, "%s: the last line of the exchange", transport->name);
	ok(strcasestr(head, "\r\ncontent-length: 2\r\n") != NULL && strcasestr(head, "content-length: 99") == NULL, "%s: length", transport->name);
	ok(strcasestr(head, "transfer-encoding") == NULL && strcasestr(head, "connection") == NULL &&
	   strcasestr(head, "expect") == NULL, "%s: lines that frame are the transport's own", transport->name);
	ok(strcasestr(head, "accept:") == NULL && strcasestr(head, "cookie") == NULL && strcasestr(head, "urlencoded") == NULL,
	   "%s: nothing is added", transport->name);
	is_int(times_in(head, "accept-encoding: identity"), 1, "%s: but that answers are to come as they are", transport->name);

	set_up(&call, "/ok");
	call.exchange.headers = broken;
	call.exchange.nheaders = 1;
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_OTHER), "%s: a line break in a header", transport->name);
	release(&call);
	call.exchange.headers = nameless;
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_OTHER), "%s: a header without a name", transport->name);
	finish(&call);
	set_up(&call, "/ok");
	call.target.headers = broken;
	call.target.nheaders = 1;
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_OTHER), "%s: a line break in a header of the target", transport->name);
	finish(&call);

	for (size_t i = 0; i < sizeof(body); i++)
	{
		body[i] = "abcdefghijklmnopqrstuvwxyz"[i * 7919 % 26];
		sum = sum * 31 + (unsigned char) body[i];
	}
	snprintf(expected, sizeof(expected), "%zu %llu", sizeof(body), (unsigned long long) sum);
	set_up(&call, "/received");
	call.exchange.body = body;
	call.exchange.body_len = sizeof(body);
	for (int i = 0; i < 2; i++)
	{
		int64_t		begin = now_ms();

		perform(&call);
		ok(answered_with(&call, 200) && call.exchange.response_len == strlen(expected) &&
		   memcmp(call.exchange.response, expected, strlen(expected)) == 0, "%s: 2 MB arrive whole", transport->name);
		ok(now_ms() - begin < 900, "%s: without waiting for 100 Continue", transport->name);
		release(&call);
	}

	/* The same in parts: of one byte, of a few, and longer than is written at once. */
	for (size_t at = 0; at < sizeof(body); nparts++)
	{
		size_t		len = nparts % 3 == 0 ? 1 : nparts % 3 == 1 ? (size_t) nparts * 7919 : 400000;

		if (len > sizeof(body) - at)
			len = sizeof(body) - at;
		parts[nparts] = (struct iovec) {body + at, len};
		at += len;
	}
	call.exchange.body = NULL;
	call.exchange.parts = parts;
	call.exchange.nparts = nparts;
	for (int i = 0; i < 2; i++)
	{
		perform(&call);
		ok(answered_with(&call, 200) && call.exchange.response_len == strlen(expected) &&
		   memcmp(call.exchange.response, expected, strlen(expected)) == 0, "%s: %d parts arrive whole", transport->name, nparts);
		release(&call);
	}
	call.exchange.nparts = 0;
	call.exchange.body_len = 0;
	perform(&call);
	ok(answered_with(&call, 200) && memcmp(call.exchange.response, "0 0", 3) == 0, "%s: an empty body", transport->name);
	finish(&call);

	set_up(&call, "/early");
	call.exchange.body = body;
	call.exchange.body_len = sizeof(body);
	perform(&call);
	ok(answered_with(&call, 413), "%s: answered before everything was sent", transport->name);
	finish(&call);
}

static long
peak_memory_kb(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_maxrss;
}

/* An answer is read so far and no further, whether or not it would end. */
static void
check_huge(void)
{
	static const char *const paths[] = {"/huge/%llu", "/huge-chunked/%llu", "/huge-to-eof/%llu"};
	const unsigned long long sizes[] = {HTTP_LONGEST_ANSWER, 200ULL * 1024 * 1024, 1ULL << 60};
	long		before = peak_memory_kb();

	for (int i = 0; i < 9; i++)
	{
		Call		call;
		char		path[64];
		unsigned long long size = sizes[i / 3];
		uint64_t	came;
		int			ended = seen.closed;

		snprintf(path, sizeof(path), paths[i % 3], size);
		set_up(&call, path);
		perform(&call);
		came = call.exchange.response_total;
		ok(answered_with(&call, 200) && !call.exchange.reused, "%s: %s", transport->name, path);
		if (size == HTTP_LONGEST_ANSWER)
			ok(came == size, "%s: is read whole", transport->name);
		else
			ok(came > HTTP_LONGEST_ANSWER && came < 2 * HTTP_LONGEST_ANSWER && wait_for_count(&seen.closed, ended + 1),
			   "%s: is read so far, and its connection closed", transport->name);
		is_int(call.exchange.response_len, 1024, "%s: and not kept", transport->name);
		finish(&call);
	}
	ok(peak_memory_kb() - before < 8192, "%s: nor is memory: %ld kB more", transport->name, peak_memory_kb() - before);
}

/* The answer's body is what it is without its content coding, or nothing. */
static void
check_encoded(void)
{
	const RawAnswer *others = raw_answers;
	size_t		nothers = nraw_answers;

	raw_answers = encoded_answers;
	nraw_answers = NENCODED_ANSWERS;
	for (size_t i = 0; i < NENCODED_ANSWERS; i++)
	{
		const char *name = encoded_answers[i].name;
		Call		call;
		HttpExchange *exchange = &call.exchange;
		char		path[64];

		snprintf(path, sizeof(path), "/raw/%s", name);
		set_up(&call, path);
		perform(&call);
		ok(answered_with(&call, 200), "%s: an answer in content coding %s", transport->name, name);
		ok(strcmp(exchange->content_type, "application/json") == 0, "%s: its content type", transport->name);
		if (i >= 8)
			ok(exchange->encoded && exchange->response_len == 0 && exchange->response_total > 0 &&
			   strstr(exchange->error, "content coding") != NULL, "%s: is said not to be readable: %s", transport->name, exchange->error);
		else if (strcmp(name, "bomb") == 0)
			ok(!exchange->encoded && exchange->response_len == 1024 && exchange->response_total > 1024,
			   "%s: is known to be incomplete", transport->name);
		else
			ok(!exchange->encoded && exchange->error[0] == '\0' && exchange->response_len == exchange->response_total &&
			   exchange->response_len == (strcmp(name, "empty") == 0 ? 0 : strcmp(name, "gzip-members") == 0 ? 28 : 14) &&
			   (exchange->response_len == 0 || memcmp(exchange->response, ENCODED_BODY, 14) == 0),
			   "%s: is decoded: %.*s", transport->name, (int) exchange->response_len, exchange->response);
		finish(&call);

		set_up(&call, path);
		exchange->capture_limit = 0;
		perform(&call);
		ok(answered_with(&call, 200) && exchange->response_len == 0 && exchange->error[0] == '\0', "%s: of which nothing is wanted", transport->name);
		finish(&call);
	}
	raw_answers = others;
	nraw_answers = nothers;
}

static void
check_cancel(void)
{
	Call		call;
	Call		other;
	int			ended = seen.ended;

	set_up(&call, "/silent");
	ok(submit(&call), "%s: sent", transport->name);
	for (int i = 0; i < 20; i++)
		turn(1);
	is_int(transport->in_flight(), 1, "%s: it is out", transport->name);
	cancel(&call);
	is_int(transport->in_flight(), 0, "%s: it is not, once cancelled", transport->name);
	ok(transport->next_done() == NULL, "%s: and does not come out", transport->name);
	transport->forget(&call.target);
	turn(0);
	ok(wait_for_count(&seen.ended, ended + 1), "%s: its connection is closed", transport->name);

	/* Cancelled at once, before anything happened; and when it is over. */
	set_up(&call, "/ok");
	ok(submit(&call), "%s: sent", transport->name);
	cancel(&call);
	set_up(&other, "/ok");
	ok(submit(&call) && submit(&other), "%s: two are sent", transport->name);
	for (int64_t end = now_ms() + patience_ms(); transport->in_flight() > 0 && now_ms() < end;)
		turn(100);
	cancel(&call);
	ok(transport->next_done() == &other.exchange && transport->next_done() == NULL, "%s: only the other comes out", transport->name);
	other.out = false;
	other.done = true;
	ok(answered_with(&other, 200), "%s: answered", transport->name);
	release(&other);
	transport->forget(&call.target);
	transport->forget(&other.target);
}

static void
check_unix_socket(void)
{
	Call		call;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int			fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/outbox-transport-test.%d",
			 getenv("TMPDIR") != NULL && strlen(getenv("TMPDIR")) < 60 ? getenv("TMPDIR") : "/tmp", (int) getpid());
	unlink(address.sun_path);
	if (bind(fd, (struct sockaddr *) &address, sizeof(address)) < 0 || listen(fd, 10) < 0)
		abort();
	start_accepting(fd, NULL);
	refuse_family = AF_INET;
	set_up_url(&call, "http://localhost/ok");
	call.target.unix_socket = address.sun_path;
	perform(&call);
	ok(answered_with(&call, 200), "%s: a unix socket", transport->name);
	release(&call);
	perform(&call);
	ok(answered_with(&call, 200) && call.exchange.reused, "%s: which is kept", transport->name);
	finish(&call);
	refuse_family = 0;
	unlink(address.sun_path);
	set_up_url(&call, "http://localhost/ok");
	call.target.unix_socket = address.sun_path;
	perform(&call);
	ok(failed_as(&call, HTTP_FAILED_CONNECT), "%s: a unix socket that is not there", transport->name);
	finish(&call);
}

static void
check_configure(void)
{
	HttpTransportOptions options = usual_options();
	Call		call;

	set_up(&call, "/ok");
	perform(&call);
	release(&call);
	options.max_in_flight = 1;
	transport->configure(&options);
	perform(&call);
	release(&call);
	{
		Call		second;

		set_up(&second, "/ok");
		is_int(transport->capacity(), 1, "%s: says that one may be out", transport->name);
		ok(submit(&call), "%s: one may be out", transport->name);
		ok(!submit(&second), "%s: a second may not", transport->name);
		run(1);
		release(&call);
		perform(&second);
		ok(answered_with(&second, 200), "%s: but after the first", transport->name);
		finish(&second);
	}
	options = usual_options();
	transport->configure(&options);
	finish(&call);
}

static void
check_changes(void)
{
	char		good[64];
	char		bad[64];

	snprintf(good, sizeof(good), "http://127.0.0.1:%d", server_port);
	snprintf(bad, sizeof(bad), "http://127.0.0.1:%d", hostile_listen(NULL));
	check_storm(good, bad, NULL, 3000);
}

/*
 * Descriptors
 */

/* In a process of its own, whose limit is small. */
static void
check_descriptors(const char *name)
{
	HttpTransportOptions options = usual_options();
	struct rlimit limit = {80, 80};
	int			taken[200];
	int			ntaken = 0;
	static Call calls[200];
	Call		call;
	int			n = 0;
	int			answered = 0;
	int			not_sent = 0;

	/* Valgrind refuses; what would come of that limit can be asked for as well. */
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		options.max_descriptors = 40;
	start_transport(name, &options);

	/* Far more at once than there are descriptors. */
	set_up(&calls[0], "/later/20");
	for (int i = 1; i < 200; i++)
	{
		calls[i] = calls[0];
		calls[i].exchange.target = &calls[0].target;
		calls[i].exchange.owner = &calls[i];
	}
	for (int i = 0; i < 200; i++)
		n += submit(&calls[i]);
	ok(n > 0 && n < 40, "%s: %d of 200 are taken with 80 descriptors", name, n);
	ok((taken[0] = dup(0)) >= 0, "%s: some are left to others", name);
	close(taken[0]);
	is_int(run(n), n, "%s: all of them end", name);
	for (int i = 0; i < 200; i++)
	{
		answered += calls[i].done && calls[i].exchange.failure == HTTP_ANSWERED;
		release(&calls[i]);
	}
	is_int(answered, n, "%s: and are answered", name);
	transport->forget(&calls[0].target);
	transport->drive();

	/* Idle connections give way to another target. */
	for (int i = 0; i < 60; i++)
		set_up(&calls[i], "/ok");
	for (int round = 0; round < 3; round++)
	{
		for (int i = 0; i < 60; i++)
		{
			if (perform(&calls[i]))
				answered += calls[i].exchange.failure == HTTP_ANSWERED;
			release(&calls[i]);
		}
	}
	is_int(answered, n + 180, "%s: sixty targets take turns", name);
	for (int i = 0; i < 60; i++)
		transport->forget(&calls[i].target);

	/*
	 * None at all, for a receiver that no connection is kept to, once the
	 * server's own ends of the earlier connections are gone.
	 */
	transport->shutdown();
	start_transport(name, &options);
	server_port = hostile_listen(NULL);
	ok(wait_for_count(&seen.closed, seen.connections), "%s: every connection was closed", name);
	while (ntaken < (int) (sizeof(taken) / sizeof(taken[0])) && (taken[ntaken] = open("/dev/null", O_RDONLY)) >= 0)
		ntaken++;
	if (ntaken == (int) (sizeof(taken) / sizeof(taken[0])))
	{
		/* Under valgrind there are more than the soft limit allows. */
		printf("# descriptors do not end\n");
		while (ntaken > 0)
			close(taken[--ntaken]);
		transport->shutdown();
		return;
	}
	set_up(&call, "/ok");
	if (submit(&call))
	{
		run(1);
		ok(failed_as(&call, HTTP_NOT_SENT), "%s: without a descriptor nothing is sent", name);
		release(&call);
	}
	else
		ok(true, "%s: without a descriptor nothing is taken", name);
	snprintf(call.url, sizeof(call.url), "http://here.test:%d/ok", server_port);
	transport->forget(&call.target);
	if (submit(&call))
	{
		run(1);
		not_sent = call.exchange.failure == HTTP_NOT_SENT;
		release(&call);
	}
	else
		not_sent = 1;
	ok(not_sent, "%s: nor is a name looked up in vain: failure %d %s", name, call.exchange.failure, call.exchange.error);
	while (ntaken > 0)
		close(taken[--ntaken]);
	transport->forget(&call.target);
	perform(&call);
	ok(answered_with(&call, 200), "%s: with descriptors it is", name);
	finish(&call);
	transport->shutdown();
}

/* Fewer descriptors than a transport can work with. */
static void
check_too_few_descriptors(const char *name)
{
	HttpTransportOptions options = usual_options();

	options.max_descriptors = 4;
	ok(outbox_http_find_transport(name)->startup(&options) != NULL, "%s: does not start with four descriptors", name);
}

static void
in_child(void (*test) (const char *), const char *name)
{
	FILE	   *output;
	char		line[1024];
	int			ends[2];
	pid_t		pid;
	int			status = -1;

	fflush(stdout);
	if (pipe(ends) < 0)
		abort();
	pid = fork();
	if (pid == 0)
	{
		dup2(ends[1], 1);
		close(ends[0]);
		close(ends[1]);
		tap_ran = tap_failed = 0;
		server_port = hostile_listen(NULL);
		test(name);
		fflush(stdout);
		_exit(tap_failed > 0 ? 1 : 0);
	}
	close(ends[1]);
	output = fdopen(ends[0], "r");
	while (fgets(line, sizeof(line), output) != NULL)
		printf("    %s", line);
	fclose(output);
	waitpid(pid, &status, 0);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: with few descriptors", name);
}

static void
check_transport(const char *name)
{
	HttpTransportOptions options = usual_options();

	start_transport(name, &options);
	check_answers();
	check_broken_answers();
	check_cuts();
	check_cuts_of_kept("cut");
	check_cuts_of_kept("reset");
	check_keeping();
	check_time();
	check_connect_timeout();
	check_unreachable();
	check_names();
	check_filter();
	check_lines();
	check_requests();
	check_huge();
	check_encoded();
	check_cancel();
	check_unix_socket();
	check_configure();
	check_changes();
	transport->shutdown();

	/* Again, as after a change of the setting. */
	start_transport(name, &options);
	expect_status("/ok", 200, "works after a restart");
	transport->shutdown();
}

int
main(void)
{
	static const char *const names[] = {"curl", "fast"};

	signal(SIGPIPE, SIG_IGN);
	raw_answers = raw_table;
	nraw_answers = sizeof(raw_table) / sizeof(raw_table[0]);

	/* First, while there is one thread. */
	for (int i = 0; i < 2; i++)
	{
		in_child(check_descriptors, names[i]);
		in_child(check_too_few_descriptors, names[i]);
	}
	server_port = hostile_listen(NULL);
	ok(outbox_http_find_transport("nothing") == NULL, "there is no transport of another name");
	for (int i = 0; i < 2; i++)
		check_transport(names[i]);
	lookups_hang = false;
	return tap_done();
}
