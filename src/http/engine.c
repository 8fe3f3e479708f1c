/*-------------------------------------------------------------------------
 *
 * engine.c
 *		libcurl, driven by our poller; see engine.h.
 *
 *-------------------------------------------------------------------------
 */
#include "http/engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/addresses.h"
#include "http/clock.h"
#include "http/connection_map.h"
#include "http/job.h"
#include "http/sockets.h"

#define MAX_ENGINES 2

/*
 * Connections are used so long at most unless the options say otherwise, in
 * ms: a name that leads elsewhere by now is to be followed however busy they
 * are.
 */
#define CONNECTION_LIFETIME_MS 60000

static struct
{
	int			users;
	HttpTransportOptions options;
	char	   *authorities;
	unsigned	settings;
	OutboxEngine *engines[MAX_ENGINES];
} shared;

int
outbox_engine_capacity(void)
{
	int			capacity = outbox_sockets_capacity();

	return shared.options.max_in_flight < capacity ? shared.options.max_in_flight : capacity;
}

bool
outbox_engine_refuses(const void *address, size_t len)
{
	const struct sockaddr *sa = address;

	return shared.options.blocked != NULL && sa->sa_family != AF_UNIX &&
		shared.options.blocked(shared.options.blocked_arg, address, len);
}

/*
 * What libcurl calls
 */

static int
watch_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *socket_arg)
{
	OutboxEngine *engine = arg;
	unsigned	events = 0;

	/*
	 * A connection that rests between two exchanges stays registered.  Every
	 * other descriptor (a lookup's pair, an address that lost the race to
	 * another one) is closed by libcurl without a word.
	 */
	if (what == CURL_POLL_REMOVE)
	{
		if (outbox_socket_is_open(fd))
		{
			outbox_poller_rest(fd);
			if (outbox_connection_is_doomed(fd))
				outbox_connection_end(fd);
		}
		else
			outbox_poller_drop(fd);
		return 0;
	}
	if (!outbox_poller_registered(fd))
		(void) outbox_socket_is_ours(fd);
	if (what & CURL_POLL_IN)
		events |= OUTBOX_POLL_IN;
	if (what & CURL_POLL_OUT)
		events |= OUTBOX_POLL_OUT;
	return outbox_poller_want(fd, events, &engine->polled) ? 0 : -1;
}

static int
set_timer(CURLM *multi, long timeout_ms, void *arg)
{
	OutboxEngine *engine = arg;

	engine->timer_at = timeout_ms < 0 ? -1 : outbox_clock_us() + (int64_t) timeout_ms * 1000;
	return 0;
}

/*
 * Engines
 */

/*
 * Tell the jobs that libcurl is done with, and let go what it has sent.  After
 * each of its actions, or they wait for the next one.
 */
static void
reap(OutboxEngine *engine)
{
	CURLMsg    *message;
	int			left;

	outbox_connections_let_go();
	while (engine->refused != NULL)
	{
		OutboxJob  *job = engine->refused;

		engine->refused = job->next_refused;
		outbox_job_hurry(job);
	}
	while ((message = curl_multi_info_read(engine->multi, &left)) != NULL)
	{
		OutboxJob  *job;
		CURLcode	result = message->data.result;

		if (message->msg == CURLMSG_DONE &&
			curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **) &job) == CURLE_OK)
			outbox_job_finished(job, result);
	}
}

static void
sockets_ready(OutboxPolled *polled, int fd, unsigned events)
{
	OutboxEngine *engine = (OutboxEngine *) polled;
	int			mask = 0;
	int			running;

	if (events & OUTBOX_POLL_IN)
		mask |= CURL_CSELECT_IN;
	if (events & OUTBOX_POLL_OUT)
		mask |= CURL_CSELECT_OUT;
	if (events & OUTBOX_POLL_ERROR)
		mask |= CURL_CSELECT_ERR;
	curl_multi_socket_action(engine->multi, fd, mask, &running);
	reap(engine);
}

void
outbox_engine_run_timer(OutboxEngine *engine, int64_t now)
{
	int			running;

	if (engine->timer_at < 0 || engine->timer_at > now)
		return;
	engine->timer_at = -1;
	curl_multi_socket_action(engine->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	reap(engine);
}

static void
apply_limits(OutboxEngine *engine)
{
	long		connections = outbox_engine_capacity();

	if (!engine->pools)
		return;
	curl_multi_setopt(engine->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, connections);
	curl_multi_setopt(engine->multi, CURLMOPT_MAXCONNECTS, connections);
}

const char *
outbox_engine_open(OutboxEngine *engine, bool pools)
{
	int			place = shared.engines[0] == NULL ? 0 : 1;

	engine->polled.ready = sockets_ready;
	engine->pools = pools;
	engine->timer_at = -1;
	engine->multi = curl_multi_init();
	if (engine->multi == NULL)
		return "could not create a libcurl multi handle";
	curl_multi_setopt(engine->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
	curl_multi_setopt(engine->multi, CURLMOPT_SOCKETDATA, engine);
	curl_multi_setopt(engine->multi, CURLMOPT_TIMERFUNCTION, set_timer);
	curl_multi_setopt(engine->multi, CURLMOPT_TIMERDATA, engine);
	apply_limits(engine);
#if LIBCURL_VERSION_NUM >= 0x081400
	/* Lookups share threads since 8.20: there must be enough, and none is waited for. */
	curl_multi_setopt(engine->multi, CURLMOPT_RESOLVE_THREADS_MAX, (long) outbox_engine_capacity());
	curl_multi_setopt(engine->multi, CURLMOPT_QUICK_EXIT, 1L);
#endif
	shared.engines[place] = engine;
	return NULL;
}

void
outbox_engine_close(OutboxEngine *engine)
{
	for (int i = 0; i < MAX_ENGINES; i++)
		if (shared.engines[i] == engine)
			shared.engines[i] = NULL;
	if (engine->multi != NULL)
		curl_multi_cleanup(engine->multi);
	engine->multi = NULL;
}

void
outbox_engine_configure(const HttpTransportOptions *options)
{
	if (options->connection_lifetime_ms != shared.options.connection_lifetime_ms)
		shared.settings++;
	shared.options = *options;
	outbox_sockets_configure(options);
	for (int i = 0; i < MAX_ENGINES; i++)
		if (shared.engines[i] != NULL)
			apply_limits(shared.engines[i]);
}

static char *
find_authorities(void)
{
	CURL	   *easy = curl_easy_init();
	char	   *file = NULL;

	if (easy == NULL)
		return NULL;
	if (curl_easy_getinfo(easy, CURLINFO_CAINFO, &file) == CURLE_OK && file != NULL && access(file, R_OK) == 0)
		file = strdup(file);
	else
		file = NULL;
	curl_easy_cleanup(easy);
	return file;
}

const char *
outbox_engine_startup(const HttpTransportOptions *options)
{
	const char *problem;

	if (shared.users++ > 0)
		return NULL;
	problem = "could not initialize libcurl";
	if (curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK)
	{
		if (!outbox_sockets_start(options))
			problem = "too few file descriptors are left for connections";
		else
			problem = outbox_poller_open();
		if (problem == NULL)
		{
			shared.authorities = find_authorities();
			outbox_engine_configure(options);
			return NULL;
		}
		curl_global_cleanup();
	}
	shared.users--;
	return problem;
}

void
outbox_engine_shutdown(void)
{
	if (shared.users == 0 || --shared.users > 0)
		return;
	outbox_poller_close();
	outbox_sockets_end();
	outbox_addresses_reset();
	outbox_connection_reset();
	free(shared.authorities);
	memset(&shared, 0, sizeof(shared));
	curl_global_cleanup();
}

void
outbox_engine_forget(OutboxEngine *engine, const HttpTarget *target)
{
	/*
	 * libcurl cannot close one idle connection.  Since 8.16 it can close all
	 * of them; before, it looks at each before it uses it again, and closes
	 * those that it finds dead.
	 */
#if LIBCURL_VERSION_NUM >= 0x081000
	if (outbox_sockets_forget(target, false) > 0)
		curl_multi_setopt(engine->multi, CURLMOPT_NETWORK_CHANGED, CURLMNWC_CLEAR_CONNS);
#else
	outbox_sockets_forget(target, true);
#endif
}

int64_t
outbox_engine_lifetime_us(void)
{
	long		ms = shared.options.connection_lifetime_ms;

	return (int64_t) (ms > 0 ? ms : CONNECTION_LIFETIME_MS) * 1000;
}

const char *
outbox_engine_authorities(void)
{
	return shared.authorities;
}

unsigned
outbox_engine_settings(void)
{
	return shared.settings;
}
