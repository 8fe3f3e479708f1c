/*
 * What becomes of kept connections: both transports against receivers that
 * send on them what nobody asked for, or are gone without a word, and a kernel
 * that refuses new ones.
 *
 * socket(), connect() and getaddrinfo() are this program's own, so that they
 * fail as a test needs.
 */
#include <curl/curl.h>
#include <dlfcn.h>
#include <netdb.h>
#include <sys/resource.h>

#include "transport_harness.h"

static int	server_port;

/*
 * The kernel
 */

static atomic_int socket_errno; /* what socket() fails with, 0: it does not */
static atomic_int connect_errno;	/* the same of connect() */

__attribute__((visibility("default"))) int
socket(int family, int type, int protocol)
{
	int			(*real) (int, int, int) = (int (*) (int, int, int)) dlsym(RTLD_NEXT, "socket");

	if (socket_errno != 0 && family != AF_UNIX && (type & 0xf) == SOCK_STREAM)
	{
		errno = socket_errno;
		return -1;
	}
	return real(family, type, protocol);
}

typedef int (*Connect) (int, const struct sockaddr *, socklen_t);

/* Where connections to 127.0.2.x lead: to a port that lets nobody in. */
static struct sockaddr_in nowhere = {.sin_family = AF_INET};

static bool
is_dead(const struct sockaddr *address)
{
	return address->sa_family == AF_INET &&
		(ntohl(((const struct sockaddr_in *) address)->sin_addr.s_addr) >> 8) == 0x7f0002;
}

static atomic_int dead_tried;

__attribute__((visibility("default"))) int
connect(int fd, const struct sockaddr *address, socklen_t len)
{
	Connect		real = (Connect) dlsym(RTLD_NEXT, "connect");
	int			type = 0;
	socklen_t	type_len = sizeof(type);

	getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_len);
	if (connect_errno != 0 && address->sa_family != AF_UNIX && type == SOCK_STREAM)
	{
		errno = connect_errno;
		return -1;
	}
	if (is_dead(address) && type == SOCK_STREAM)
	{
		dead_tried++;
		return real(fd, (struct sockaddr *) &nowhere, sizeof(nowhere));
	}
	return real(fd, address, len);
}

/* "manyN.test" leads to N dead addresses, 127.0.2.1 and so on, and to 127.0.0.1 behind them; "deadN.test" only to those. */
__attribute__((visibility("default"))) int
getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
	typedef int (*Lookup) (const char *, const char *, const struct addrinfo *, struct addrinfo **);
	Lookup		real = (Lookup) dlsym(RTLD_NEXT, "getaddrinfo");
	struct addrinfo **end = result;
	int			n = 0;
	int			status = 0;
	bool		alive = name != NULL && sscanf(name, "many%d.test", &n) == 1;

	if (!alive && (name == NULL || sscanf(name, "dead%d.test", &n) != 1))
		return real(name, service, hints, result);
	for (int i = 1; i <= n + alive && status == 0; i++)
	{
		char		text[32];

		snprintf(text, sizeof(text), i <= n ? "127.0.2.%d" : "127.0.0.1", i);
		status = real(text, service, hints, end);
		if (status == 0)
			end = &(*end)->ai_next;
	}
	return status;
}

static HttpTransportOptions
usual_options(void)
{
	HttpTransportOptions options = {.max_in_flight = 100};

	return options;
}

static void
set_up(Call *call, const char *path)
{
	char		url[256];

	snprintf(url, sizeof(url), "http://127.0.0.1:%d%s", server_port, path);
	set_up_url(call, url);
}

/* Several calls to one target. */
static void
set_up_many(Call *calls, int n, const char *path)
{
	set_up(&calls[0], path);
	for (int i = 1; i < n; i++)
	{
		calls[i] = calls[0];
		calls[i].exchange.target = &calls[0].target;
		calls[i].exchange.owner = &calls[i];
	}
}

/*
 * Answers that nobody asked for
 */

static void
check_strays(void)
{
	Call		call;
	int			n = 0;

	/* A moment after the answer; so soon after that the connection is used again. */
	set_up(&call, "/twice/1");
	for (int i = 0; i < 20; i++)
	{
		int			before = seen.strays;

		perform(&call);
		n += call.exchange.status == 200;
		release(&call);
		wait_for_count(&seen.strays, before + 1);
	}
	is_int(n, 20, "%s: a stray answer is nobody's", transport->name);
	finish(&call);

	/* Within the time that the next request takes to get there. */
	seen.strays = 0;
	seen.may_stray = false;
	set_up(&call, "/before");
	perform(&call);
	ok(answered_with(&call, 200), "%s: answered", transport->name);
	release(&call);
	ok(submit(&call), "%s: sent again", transport->name);
	seen.may_stray = true;
	is_int(run(1), 1, "%s: and over", transport->name);
	ok(answered_with(&call, 200), "%s: what was sent before the request came is no answer to it", transport->name);
	ok(call.exchange.resent, "%s: which went out again", transport->name);
	finish(&call);
}

/*
 * Connections that are dead without a word
 */

#define DEAF 5

/* Have so many connections rest of which the receiver knows nothing any more. */
static void
rest_deaf(Call *calls)
{
	set_up_many(calls, DEAF, "/deaf");
	for (int i = 0; i < DEAF; i++)
		ok(submit(&calls[i]), "%s: sent", transport->name);
	is_int(run(DEAF), DEAF, "%s: answered, all of them", transport->name);
	for (int i = 0; i < DEAF; i++)
		release(&calls[i]);
	snprintf(calls[0].url, sizeof(calls[0].url), "http://127.0.0.1:%d/deaf", server_port);
}

static void
check_silent_death(void)
{
	Call		calls[DEAF];
	struct iovec parts[] = {{"{", 1}, {"}", 1}};

	/* Each could cost an attempt, but the first does for all. */
	rest_deaf(calls);
	calls[0].target.timeout_ms = 300;
	perform(&calls[0]);
	ok(failed_as(&calls[0], HTTP_FAILED_TIMEOUT) && calls[0].exchange.reused, "%s: one goes into the void", transport->name);
	release(&calls[0]);
	calls[0].target.timeout_ms = patience_ms();
	perform(&calls[0]);
	ok(answered_with(&calls[0], 200) && !calls[0].exchange.reused, "%s: the next has a new connection", transport->name);
	finish(&calls[0]);

	/* Where there is time for it, none has to fail.  Its body is in parts, all of which go out again. */
	rest_deaf(calls);
	calls[0].target.connect_timeout_ms = 1000;
	calls[0].exchange.body = NULL;
	calls[0].exchange.parts = parts;
	calls[0].exchange.nparts = 2;
	perform(&calls[0]);
	ok(answered_with(&calls[0], 200) && calls[0].exchange.resent, "%s: one that nobody acknowledges goes out again", transport->name);
	finish(&calls[0]);

	/* A receiver that is there, and slow, is left in peace. */
	set_up(&calls[0], "/later/500");
	calls[0].target.connect_timeout_ms = 50;
	for (int i = 0; i < 2; i++)
	{
		perform(&calls[0]);
		ok(answered_with(&calls[0], 200) && !calls[0].exchange.resent && calls[0].exchange.reused == (i == 1),
		   "%s: a slow answer is waited for", transport->name);
		release(&calls[0]);
	}
	transport->forget(&calls[0].target);
}

/* Of our connection to the server: is it watched over? */
static void
check_watched(void)
{
	Call		call;
	int			n = 0;
	struct rlimit limit;

	set_up(&call, "/ok");
	perform(&call);
	getrlimit(RLIMIT_NOFILE, &limit);
	for (int fd = 0; fd < 1024; fd++)
	{
		struct sockaddr_in peer;
		socklen_t	len = sizeof(peer);
		int			keepalive = 0;
		unsigned	unheard = 0;

		if (getpeername(fd, (struct sockaddr *) &peer, &len) < 0 || peer.sin_family != AF_INET ||
			ntohs(peer.sin_port) != server_port)
			continue;
		len = sizeof(keepalive);
		getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &keepalive, &len);
		len = sizeof(unheard);
		getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unheard, &len);
		n++;
		ok(keepalive == 1 && unheard >= call.target.timeout_ms, "%s: the kernel watches over a connection", transport->name);
	}
	is_int(n, 1, "%s: of which there is one", transport->name);
	finish(&call);
}

/*
 * Age
 */

static void
check_lifetime(void)
{
	HttpTransportOptions options = usual_options();
	Call		call;
	int			connections;
	int64_t		begin = now_ms();
	int64_t		end = begin + patience_ms();

	options.connection_lifetime_ms = 1000;
	transport->configure(&options);
	set_up(&call, "/ok");
	connections = seen.connections;

	/* Busy all along. */
	while (seen.connections < connections + 2 && now_ms() < end)
	{
		if (!perform(&call))
			break;
		release(&call);
	}
	is_int(seen.connections - connections, 2, "%s: a connection has an end, however busy", transport->name);
	ok(now_ms() - begin > 700, "%s: but not too soon", transport->name);
	finish(&call);
	options = usual_options();
	transport->configure(&options);
}

/*
 * A kernel that refuses
 */

/* Sent on a kept connection that turns out to be dead, and then there is no socket for another. */
static void
check_second_opening(void)
{
	Call		call;

	set_up(&call, "/cut-second/0");
	perform(&call);
	ok(answered_with(&call, 200), "%s: answered", transport->name);
	release(&call);
	socket_errno = EMFILE;
	perform(&call);
	socket_errno = 0;
	ok(failed_as(&call, HTTP_FAILED_CONNECT), "%s: what was sent once is not unsent: %s", transport->name, call.exchange.error);
	finish(&call);
}

static bool
leads_nowhere(const char *text)
{
	struct sockaddr_in6 address = {.sin6_family = AF_INET6,.sin6_port = htons(1)};
	int			fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool		nowhere_at_all;

	inet_pton(AF_INET6, text, &address.sin6_addr);
	nowhere_at_all = fd >= 0 && connect(fd, (struct sockaddr *) &address, sizeof(address)) < 0;
	close(fd);
	return nowhere_at_all;
}

/* Whatever this machine has too little of is not the receiver's fault. */
static void
check_local_causes(void)
{
	static const struct
	{
		int			error;
		const char *says;
	}			causes[] = {
		{EADDRNOTAVAIL, "local port"},
		{EADDRINUSE, "local port"},
		{EAGAIN, "local port"},
		{EACCES, "permit"},
		{EPERM, "permit"},
		{ENOBUFS, "memory"},
		{ENOMEM, "memory"},
		{EMFILE, "descriptor"},
		{ENFILE, "descriptor"},
	};
	static const int others[] = {ECONNREFUSED, ENETUNREACH, EHOSTUNREACH, EAFNOSUPPORT};
	Call		call;

	set_up(&call, "/ok");
	for (size_t i = 0; i < 2 * sizeof(causes) / sizeof(causes[0]); i++)
	{
		atomic_int *where = i % 2 ? &socket_errno : &connect_errno;
		const char *call_name = i % 2 ? "socket" : "connect";
		int			error = causes[i / 2].error;

		/* Newer versions of libcurl take it for a connection that is under way.  (For TCP, Linux does not say it.) */
		if (where == &connect_errno && error == EAGAIN && curl_version_info(CURLVERSION_NOW)->version_num >= 0x080e00)
			continue;
		*where = error;
		perform(&call);
		*where = 0;
		ok(failed_as(&call, HTTP_NOT_SENT), "%s: %s: %s", transport->name, call_name, strerror(error));
		ok(strstr(call.exchange.error, "this machine") != NULL && strstr(call.exchange.error, causes[i / 2].says) != NULL,
		   "%s: %s: %s", transport->name, call_name, call.exchange.error);
		release(&call);
	}
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
	{
		connect_errno = others[i];
		perform(&call);
		connect_errno = 0;
		ok(failed_as(&call, HTTP_FAILED_CONNECT), "%s: connect: %s", transport->name, strerror(others[i]));
		release(&call);
	}
	perform(&call);
	ok(answered_with(&call, 200), "%s: and then it goes on", transport->name);
	finish(&call);

	/* Where no address of this machine leads, no local port would help. */
	if (leads_nowhere("fe80::1"))
	{
		set_up_url(&call, "http://[fe80::1]:1/");
		connect_errno = EADDRNOTAVAIL;
		perform(&call);
		connect_errno = 0;
		ok(failed_as(&call, HTTP_FAILED_CONNECT), "%s: connect: no way to the address", transport->name);
		finish(&call);
	}
}

/*
 * Many addresses
 */

/* Until it is answered or so often. Returns how often it failed. */
static int
perform_until_answered(Call *call, int most)
{
	for (int i = 0; i < most; i++)
	{
		perform(call);
		release(call);
		if (call->exchange.failure == HTTP_ANSWERED)
			return i;
	}
	return most;
}

static void
check_many_addresses(void)
{
	Call		call;
	char		url[64];
	int			failed;
	int			before;

	snprintf(url, sizeof(url), "http://many12.test:%d/ok", server_port);
	set_up_url(&call, url);
	call.target.connect_timeout_ms = 1000;
	failed = perform_until_answered(&call, 12);
	ok(failed < 12, "%s: behind twelve dead addresses is a live one: found after %d failures", transport->name, failed);
	transport->forget(&call.target);

	/* The next connection need not find out again. */
	before = dead_tried;
	set_up_url(&call, url);
	call.target.connect_timeout_ms = 1000;
	perform(&call);
	ok(answered_with(&call, 200), "%s: and is remembered", transport->name);
	ok(dead_tried - before <= 2, "%s: %d of the others were tried again", transport->name, dead_tried - before);
	finish(&call);

	/* Where there is no other, a silent one is tried again. */
	snprintf(url, sizeof(url), "http://dead1.test:%d/ok", server_port);
	set_up_url(&call, url);
	call.target.connect_timeout_ms = 400;
	for (int i = 0; i < 3; i++)
	{
		before = dead_tried;
		perform(&call);
		ok(failed_as(&call, HTTP_FAILED_TIMEOUT) && dead_tried == before + 1, "%s: the only address is tried each time (%d)", transport->name, dead_tried - before);
		release(&call);
	}
	transport->forget(&call.target);
}

/* Have a port that lets nobody in: its backlog is full. */
static void
open_nowhere(void)
{
	int			port;
	int			fd = bound_socket(AF_INET, &port);

	if (listen(fd, 0) < 0)
		abort();
	nowhere.sin_port = htons(port);
	nowhere.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (int i = 0; i < 4; i++)
	{
		int			filler = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

		connect(filler, (struct sockaddr *) &nowhere, sizeof(nowhere));
	}
	pause_ms(50);
}

int
main(void)
{
	static const char *const names[] = {"curl", "fast"};

	signal(SIGPIPE, SIG_IGN);
	server_port = hostile_listen(NULL);
	open_nowhere();
	for (int i = 0; i < 2; i++)
	{
		HttpTransportOptions options = usual_options();

		start_transport(names[i], &options);
		check_strays();
		check_silent_death();
		check_second_opening();
		check_local_causes();
		check_many_addresses();
		check_watched();
		check_lifetime();
		transport->shutdown();
	}
	return tap_done();
}
