/*-------------------------------------------------------------------------
 *
 * job.c
 *		One easy handle; see job.h.
 *
 *-------------------------------------------------------------------------
 */
#include "http/job.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "http/connection_map.h"
#include "http/exchange.h"
#include "http/fast/http1_parser.h"
#include "http/poller.h"
#include "http/sockets.h"
#include "http/tls_guard.h"

/* A connect timeout that libcurl never reaches, in ms. */
#define NO_TIMEOUT (24 * 3600 * 1000L)

/* Idle connections older than this are not trusted to be alive, in seconds. */
#define IDLE_LIMIT 60L

/* What a name led to is looked up again after so many seconds. */
#define NAMES_KEPT 15L

static void
return_reserved(OutboxJob *job)
{
	outbox_sockets_reserve(-job->reserved);
	job->reserved = 0;
}

/*
 * What libcurl calls
 */

/* No socket for this address, as we will have it. */
static curl_socket_t
refuse(OutboxJob *job)
{
	if (!job->refused)
	{
		job->refused = true;
		job->next_refused = job->engine->refused;
		job->engine->refused = job;
	}
	return CURL_SOCKET_BAD;
}

static curl_socket_t
open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	OutboxJob  *job = arg;
	int			fd;
	int			shortage;

	if (outbox_engine_refuses(&address->addr, address->addrlen))
	{
		job->blocked = true;
		return refuse(job);
	}
	if (!job->last_resort && outbox_address_is_passed_over(&address->addr))
	{
		job->passed_over = true;
		return refuse(job);
	}
	return_reserved(job);
	job->opened = true;
	fd = outbox_socket_open(address->family, address->socktype, address->protocol, job->target, &shortage);
	if (fd >= 0)
	{
		outbox_connection_unnote(fd);
		job->sockets[job->nsockets++ % OUTBOX_JOB_SOCKETS] = fd;
		outbox_trials_begin(&job->trials, &address->addr);
		return fd;
	}
	if (job->shortage == 0)
		job->shortage = shortage;
	return refuse(job);
}

static bool
is_tls(const OutboxJob *job)
{
	return strncmp(job->target->url, "http:", 5) != 0;
}

/*
 * Some receivers answer before they have read everything, and close.  libcurl
 * gives up when it cannot write, without a look at what there is to read.  On
 * a kept connection that may be an answer to nobody; there the request is
 * repeated.
 */
static void
hear_last_words(int fd)
{
	static char words[16384];
	OutboxJob  *job = outbox_connection_user(fd);
	ssize_t		n;

	if (job == NULL || job->last_words == NULL || job->reused || is_tls(job))
		return;
	n = recv(fd, words, sizeof(words), MSG_DONTWAIT);
	if (n > 0)
		job->last_words(job, words, n);
}

/* libcurl says nothing of an answer that ends within its first line. */
static void
note_last_words(int fd)
{
	OutboxJob  *job = outbox_connection_user(fd);

	if (job != NULL && job->fd == fd)
		job->spoken_to = outbox_connection_has_spoken(fd, is_tls(job));
}

static int
close_socket(void *arg, curl_socket_t fd)
{
	OutboxPolled *owner = outbox_poller_owner(fd);

	if (outbox_socket_is_adopted(fd))
		return 0;
	note_last_words(fd);
	hear_last_words(fd);
	if (owner != NULL && owner->closed != NULL)
		owner->closed(owner, fd);
	outbox_connection_unnote(fd);
	outbox_socket_close(fd);
	return 0;
}

/* The address of a connection, as libcurl spells it. */
static bool
refuses_text(const char *ip)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

	if (inet_pton(AF_INET, ip, &v4.sin_addr) == 1)
		return outbox_engine_refuses(&v4, sizeof(v4));
	if (inet_pton(AF_INET6, ip, &v6.sin6_addr) == 1)
		return outbox_engine_refuses(&v6, sizeof(v6));
	return false;
}

/* Is the socket, one of those opened for a job, bound to that port (0: of a unix socket)? */
static bool
is_bound_to(int fd, int port)
{
	struct sockaddr_storage address;
	socklen_t	len = sizeof(address);

	if (!outbox_socket_is_open(fd) || getsockname(fd, (struct sockaddr *) &address, &len) < 0)
		return false;
	switch (address.ss_family)
	{
		case AF_INET:
			return ntohs(((struct sockaddr_in *) &address)->sin_port) == port;
		case AF_INET6:
			return ntohs(((struct sockaddr_in6 *) &address)->sin6_port) == port;
		default:
			return true;
	}
}

/* The connection is a new one: note which of the sockets that were opened for it has made it. */
static int
new_socket(const OutboxJob *job, uint64_t name, int local_port)
{
	for (int i = job->nsockets - 1; i >= 0 && i >= job->nsockets - OUTBOX_JOB_SOCKETS; i--)
	{
		int			fd = job->sockets[i % OUTBOX_JOB_SOCKETS];

		if (!is_bound_to(fd, local_port))
			continue;
		outbox_connection_note(fd, name);
		return fd;
	}
	return -1;
}

/*
 * The connection is a kept one: look at it before it is used.  What has come
 * on it meanwhile is an end, or an answer that nobody asked for and that would
 * be taken for the next request's.  Under TLS it may be a ticket, which cannot
 * be told.  False: it must not be used.
 *
 * Over a unix socket all connections to one place have the same name, so that
 * all of those that rest are looked at.
 */
static bool
is_fit(OutboxJob *job, uint64_t name)
{
	bool		fit = true;

	for (int fd = -1; (fd = outbox_connection_socket(name, fd + 1)) >= 0;)
	{
		job->fd = fd;
		if (outbox_connection_is_doomed(fd))
		{
			fit = false;
			continue;
		}
		if (!outbox_socket_is_open(fd) || outbox_poller_wanted(fd) || outbox_connection_is_shared(fd) ||
			outbox_connection_is_quiet(fd))
			continue;
		outbox_connection_end(fd);
		fit = false;
	}
	return fit && !outbox_tls_holds_bytes(job->easy);
}

/*
 * A connection is there, new or kept, and the request is next.  When this
 * happens again for the same job, libcurl found a kept connection dead, and
 * what it had sent by then tells whether it is about to repeat itself.  Once
 * is enough, so that once goes over a new connection: a receiver that was
 * restarted leaves many dead ones behind, and since 8.20 libcurl does not look
 * at those that were in use a moment ago.
 */
static int
about_to_send(void *arg, char *ip, char *local_ip, int port, int local_port)
{
	OutboxJob  *job = arg;
	long		sent = 0;
	uint64_t	name = outbox_connection_name(ip != NULL ? ip : "", port, local_ip != NULL ? local_ip : "", local_port);

	return_reserved(job);
	outbox_trials_end(&job->trials, true);
	if (job->connected)
		curl_easy_getinfo(job->easy, CURLINFO_REQUEST_SIZE, &sent);
	job->connected = true;
	if (ip != NULL && refuses_text(ip))
	{
		job->blocked = true;
		return CURL_PREREQFUNC_ABORT;
	}
	if (sent > job->sent)
	{
		if (job->resent || job->spoken_to)
			return CURL_PREREQFUNC_ABORT;
		job->resent = true;
		job->sent = sent;
		job->afresh = !job->opened;
	}
	job->reused = !job->opened;
	outbox_connection_leave(job->fd, job);
	job->fd = -1;
	if (job->opened)
		job->fd = new_socket(job, name, local_port);
	else if (!is_fit(job, name))
		job->afresh = true;
	if (job->target->http_version == 20 && outbox_tls_agreed_on_http2(job->easy))
		outbox_job_set_shared(job);
	job->acknowledged = job->reused && job->fd >= 0 ? outbox_connection_acknowledged(job->fd) : -1;
	job->opened = false;
	job->spoken_to = false;
	if (job->fd >= 0 && !job->afresh)
	{
		outbox_connection_set_user(job->fd, job);
		outbox_connection_listen(job->fd);
		if (is_tls(job))
			outbox_tls_listen(job->easy, job->fd);
	}
	if (outbox_connection_is_shared(job->fd))
		outbox_connection_gather(job->fd);
	return job->afresh ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

/*
 * Options
 */

#define SET(option, value) \
	do { \
		if (result == CURLE_OK) \
			result = curl_easy_setopt(easy, option, value); \
	} while (0)

/* The longest that libcurl may use a connection, which it wants in seconds. */
static long
lifetime_s(void)
{
	return (long) ((outbox_engine_lifetime_us() + 999999) / 1000000);
}

/* What every request of this library has in common. */
static CURLcode
set_rules(CURL *easy, OutboxJob *job)
{
	CURLcode	result = CURLE_OK;

	SET(CURLOPT_PRIVATE, job);
	SET(CURLOPT_ERRORBUFFER, job->error);
	SET(CURLOPT_NOSIGNAL, 1L);
	SET(CURLOPT_QUICK_EXIT, 1L);
	SET(CURLOPT_PROTOCOLS_STR, "http,https");
	SET(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
	SET(CURLOPT_FOLLOWLOCATION, 0L);
	SET(CURLOPT_PROXY, "");
	SET(CURLOPT_NOPROXY, "*");
	SET(CURLOPT_NETRC, (long) CURL_NETRC_IGNORED);
	SET(CURLOPT_HTTP09_ALLOWED, 0L);
	SET(CURLOPT_TCP_NODELAY, 1L);
	SET(CURLOPT_MAXAGE_CONN, IDLE_LIMIT);
	SET(CURLOPT_DNS_CACHE_TIMEOUT, NAMES_KEPT);
	SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
	SET(CURLOPT_OPENSOCKETDATA, job);
	SET(CURLOPT_CLOSESOCKETFUNCTION, close_socket);
	SET(CURLOPT_CLOSESOCKETDATA, NULL);
	SET(CURLOPT_PREREQFUNCTION, about_to_send);
	SET(CURLOPT_PREREQDATA, job);
	return result;
}

static CURLcode
set_tls(CURL *easy, const HttpTarget *target)
{
	CURLcode	result = CURLE_OK;
	long		versions = CURL_SSLVERSION_TLSv1_2;

	/*
	 * libcurl would send a request that asks for HTTP/2 on a kept HTTP/1.1
	 * connection to the same place.  It keeps apart what differs in the
	 * options of TLS, so name the highest version that there is as well.
	 */
	if (target->http_version == 20)
		versions |= CURL_SSLVERSION_MAX_TLSv1_3;
	SET(CURLOPT_SSLVERSION, versions);
	SET(CURLOPT_SSL_VERIFYPEER, 1L);
	SET(CURLOPT_SSL_VERIFYHOST, 2L);
	if (target->tls_ca_file != NULL)
	{
		/* A private authority replaces the system's: none of those is asked. */
		SET(CURLOPT_CAINFO, target->tls_ca_file);
		SET(CURLOPT_CAPATH, NULL);
	}
	else if (outbox_engine_authorities() != NULL)
	{
		/*
		 * libcurl remembers what it has read of a file, but where it is to
		 * look into a folder as well, it reads both for each connection,
		 * which takes some 50 ms.
		 */
		SET(CURLOPT_CAINFO, outbox_engine_authorities());
		SET(CURLOPT_CAPATH, NULL);
	}
	if (target->tls_certificate_file != NULL)
		SET(CURLOPT_SSLCERT, target->tls_certificate_file);
	if (target->tls_key_file != NULL)
		SET(CURLOPT_SSLKEY, target->tls_key_file);
	if (result == CURLE_OK)
		result = outbox_tls_guard(easy);
	return result;
}

/* Given the text, libcurl would take it apart, and put it together again, for every request. */
static CURLcode
set_url(CURL *easy, OutboxJob *job, const HttpTarget *target)
{
	CURLUcode	problem;

	job->url = curl_url();
	if (job->url == NULL)
		return CURLE_OUT_OF_MEMORY;
	problem = curl_url_set(job->url, CURLUPART_URL, target->url,
						   CURLU_NON_SUPPORT_SCHEME | CURLU_DISALLOW_USER);
	if (problem == CURLUE_OUT_OF_MEMORY)
		return CURLE_OUT_OF_MEMORY;
	if (problem != CURLUE_OK)
	{
		snprintf(job->error, sizeof(job->error), "%s",
				 problem == CURLUE_USER_NOT_ALLOWED ? "the URL holds credentials" : curl_url_strerror(problem));
		return CURLE_URL_MALFORMAT;
	}
	return curl_easy_setopt(easy, CURLOPT_CURLU, job->url);
}

static CURLcode
set_target(CURL *easy, OutboxJob *job, const HttpTarget *target)
{
	CURLcode	result = set_url(easy, job, target);

	SET(CURLOPT_CONNECTTIMEOUT_MS, target->connect_timeout_ms);
	if (target->unix_socket != NULL)
		SET(CURLOPT_UNIX_SOCKET_PATH, target->unix_socket);
	if (target->http_version == 20)
	{
		SET(CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_2TLS);
		SET(CURLOPT_PIPEWAIT, 1L);
	}
	else
		SET(CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
	if (result == CURLE_OK)
		result = set_tls(easy, target);
	return result;
}

/*
 * libcurl keeps connections apart whose options of TLS differ.  These three
 * mean nothing to connections of TLS 1.2 and later with OpenSSL, so they can
 * tell generations apart: there are as many as the first two allow, and a
 * connection has ended long before its number comes again.  The third is for
 * those that nobody shares.
 */
#define GENERATION_LOW CURLSSLOPT_ALLOW_BEAST
#define GENERATION_HIGH CURLSSLOPT_REVOKE_BEST_EFFORT
#define NOBODY_ELSE CURLSSLOPT_NO_REVOKE

static CURLcode
set_apart(OutboxJob *job)
{
	long		options = 0;

	if (job->generation & 1)
		options |= GENERATION_LOW;
	if (job->generation & 2)
		options |= GENERATION_HIGH;
	if (job->alone)
		options |= NOBODY_ELSE;
	return curl_easy_setopt(job->easy, CURLOPT_SSL_OPTIONS, options);
}

/* Newer versions of libcurl have a message of their own, with no more than the option's number. */
bool
outbox_job_accepts(OutboxJob *job, CURLcode result)
{
	char		said[100];

	if (result == CURLE_OK)
		return true;
	if (result == CURLE_OUT_OF_MEMORY)
		job->error[0] = '\0';
	else
	{
		snprintf(said, sizeof(said), "%.99s", job->error[0] != '\0' ? job->error : curl_easy_strerror(result));
		snprintf(job->error, sizeof(job->error), "libcurl refuses an option of the handler: %s", said);
	}
	return false;
}

bool
outbox_job_prepare(OutboxJob *job, HttpTarget *target)
{
	CURL	   *easy = job->easy;
	CURLcode	result = CURLE_OK;

	job->target = target;
	job->connected = false;
	job->resent = false;
	job->sent = 0;
	job->opened = false;
	job->nsockets = 0;
	job->fd = -1;
	job->reused = false;
	job->spoken_to = false;
	job->shared = false;
	job->afresh = false;
	job->blocked = false;
	job->shortage = 0;
	job->passed_over = false;
	job->last_resort = false;
	memset(&job->trials, 0, sizeof(job->trials));
	job->error[0] = '\0';
	if (easy == NULL)
	{
		easy = job->easy = curl_easy_init();
		if (easy == NULL)
			return false;
		job->settings = outbox_engine_settings() - 1;
		job->fresh_only = false;
		job->forbids_reuse = false;
		job->alone = false;
		job->generation = 0;
		result = set_rules(easy, job);
		if (result == CURLE_OK)
			result = set_target(easy, job, target);
	}
	if (result == CURLE_OK && job->settings != outbox_engine_settings())
	{
		SET(CURLOPT_MAXLIFETIME_CONN, lifetime_s());
		job->settings = outbox_engine_settings();
	}
	if (job->fresh_only)
	{
		SET(CURLOPT_FRESH_CONNECT, 0L);
		job->fresh_only = false;
	}
	if (job->forbids_reuse)
	{
		SET(CURLOPT_FORBID_REUSE, 0L);
		job->forbids_reuse = false;
	}
	if (job->alone)
	{
		job->alone = false;
		if (result == CURLE_OK)
			result = set_apart(job);
	}
	if (outbox_job_accepts(job, result))
		return true;
	outbox_job_free(job);
	return false;
}

bool
outbox_job_start(OutboxEngine *engine, OutboxJob *job, int descriptors)
{
	if (job->begins != NULL)
		job->begins(job);
	job->engine = engine;
	job->reserved = descriptors;
	outbox_sockets_reserve(descriptors);
	if (curl_multi_add_handle(engine->multi, job->easy) == CURLM_OK)
		return true;
	return_reserved(job);
	return false;
}

void
outbox_job_stop(OutboxJob *job)
{
	return_reserved(job);
	outbox_trials_end(&job->trials, false);
	outbox_connection_leave(job->fd, job);
	curl_multi_remove_handle(job->engine->multi, job->easy);
}

/* Start a job again, once libcurl has ended it.  False: there is no room for a connection. */
static bool
start_again(OutboxJob *job)
{
	int			descriptors = outbox_sockets_needed(job->target, true);

	if (!outbox_sockets_fit(descriptors))
		return false;
	job->error[0] = '\0';
	curl_multi_remove_handle(job->engine->multi, job->easy);
	return outbox_job_start(job->engine, job, descriptors);
}

/*
 * Start a job again over a new connection, which was stopped before it could
 * be repeated over a kept one.
 */
static bool
start_afresh(OutboxJob *job)
{
	if (curl_easy_setopt(job->easy, CURLOPT_FRESH_CONNECT, 1L) != CURLE_OK)
		return false;
	job->fresh_only = true;
	job->afresh = false;
	job->sent = 0;
	return start_again(job);
}

/* Start a job again that none of the other addresses let in, with those that were left out. */
static bool
start_with_all(OutboxJob *job)
{
	job->last_resort = true;
	return start_again(job);
}

/*
 * Was a request lost with a kept connection, which its receiver closed just
 * then?  libcurl repeats what failed so when it reads, but not what failed
 * when it wrote.
 */
static bool
was_lost(const OutboxJob *job, CURLcode result)
{
	return job->is_unanswered != NULL && job->reused && !job->resent && job->is_unanswered(job) &&
		(result == CURLE_SEND_ERROR || result == CURLE_RECV_ERROR || result == CURLE_GOT_NOTHING);
}

void
outbox_job_finished(OutboxJob *job, CURLcode result)
{
	return_reserved(job);
	outbox_trials_end(&job->trials, result == CURLE_OK);
	outbox_connection_leave(job->fd, job);
	if (was_lost(job, result))
	{
		job->afresh = job->resent = true;
		outbox_sockets_distrust(job->target);
	}
	if (job->afresh && start_afresh(job))
		return;

	/* libcurl calls it a timeout if its last failure, even of an earlier job, was one; ours bounds both tries. */
	if ((result == CURLE_COULDNT_CONNECT || result == CURLE_OPERATION_TIMEDOUT) &&
		job->passed_over && !job->last_resort && start_with_all(job))
		return;
	job->done(job, result);
}

void
outbox_job_hurry(OutboxJob *job)
{
	/*
	 * Some releases of libcurl start with the next address and then wait for
	 * an event of a socket that was never opened.  To be let go on after a
	 * pause is what makes it look at a transfer at once.
	 */
	job->refused = false;
	curl_easy_pause(job->easy, CURLPAUSE_SEND);
	curl_easy_pause(job->easy, CURLPAUSE_CONT);
}

void
outbox_job_forbid_reuse(OutboxJob *job)
{
	job->forbids_reuse = curl_easy_setopt(job->easy, CURLOPT_FORBID_REUSE, 1L) == CURLE_OK;
}

void
outbox_job_doom_connection(OutboxJob *job)
{
	if (!job->shared || job->fd < 0 || !outbox_socket_is_open(job->fd))
		return;
	outbox_connection_doom(job->fd);
	if (!outbox_poller_wanted(job->fd))
		outbox_connection_end(job->fd);
}

void
outbox_job_set_shared(OutboxJob *job)
{
	job->shared = true;
	outbox_connection_set_shared(job->fd);
}

bool
outbox_job_is_shared(const OutboxJob *job)
{
	return job->shared || outbox_connection_is_shared(job->fd);
}

/* libcurl has one code for a stream that was reset and for one that lost its connection; its texts differ. */
bool
outbox_job_was_reset(const OutboxJob *job)
{
	return strstr(job->error, "(err ") != NULL || (strstr(job->error, "stream ") != NULL && strstr(job->error, "reset by") != NULL);
}

bool
outbox_job_was_closed_cleanly(const OutboxJob *job)
{
	return strstr(job->error, "(err 0)") != NULL || strstr(job->error, "(error 0x0 ") != NULL;
}

CURLcode
outbox_job_use_generation(OutboxJob *job, int generation)
{
	if (job->generation == generation)
		return CURLE_OK;
	job->generation = generation;
	return set_apart(job);
}

bool
outbox_job_is_unheard(const OutboxJob *job)
{
	return job->reused && !job->resent && job->fd >= 0 &&
		outbox_connection_is_unheard(job->fd, job->acknowledged);
}

bool
outbox_job_again(OutboxJob *job)
{
	outbox_connection_leave(job->fd, job);
	job->resent = true;
	return start_afresh(job);
}

bool
outbox_job_again_alone(OutboxJob *job)
{
	job->alone = true;
	job->resent = true;
	if (set_apart(job) != CURLE_OK)
		return false;
	outbox_job_forbid_reuse(job);
	return start_afresh(job);
}

bool
outbox_job_came_unasked(OutboxJob *job)
{
	/* What a receiver sends acknowledges all that it has received by then. */
	if (!job->reused || job->resent || job->fd < 0 || job->acknowledged < 0 ||
		outbox_connection_acknowledged(job->fd) != job->acknowledged)
		return false;
	job->afresh = job->resent = true;
	return true;
}

void
outbox_job_free(OutboxJob *job)
{
	if (job->easy != NULL)
		curl_easy_cleanup(job->easy);
	/* Not before the handle, which only points to it. */
	curl_url_cleanup(job->url);
	job->easy = NULL;
	job->url = NULL;
}

void
outbox_job_hold_timeout(OutboxJob *job, bool hold)
{
	curl_easy_setopt(job->easy, CURLOPT_CONNECTTIMEOUT_MS,
					 hold ? NO_TIMEOUT : job->target->connect_timeout_ms);
}

/*
 * Results
 */

bool
outbox_job_was_alerted(const OutboxJob *job)
{
	return strstr(job->error, " alert ") != NULL;
}

/*
 * Is this why the present machine, and nobody else, refused a connection?  A
 * connection that no address of this machine can lead to is another matter:
 * then no local port would help, and asking for one that needs none tells.
 */
static bool
is_local(int error, const struct sockaddr *address)
{
	socklen_t	len = address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	bool		leads_there;
	int			fd;

	switch (error)
	{
		case EMFILE:
		case ENFILE:
		case ENOBUFS:
		case ENOMEM:
		case EPERM:
		case EAGAIN:
		case EADDRINUSE:
			return true;

			/* Over IPv6 a router or the receiver may say so, by ICMP: then nothing is forbidden here. */
		case EACCES:
			if (address->sa_family != AF_INET6)
				return true;
			fd = socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
			if (fd < 0)
				return true;
			leads_there = connect(fd, address, len) == 0;
			close(fd);
			return !leads_there;
		case EADDRNOTAVAIL:
			fd = socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
			if (fd < 0)
				return true;
			leads_there = connect(fd, address, len) == 0;
			close(fd);
			return leads_there;
		default:
			return false;
	}
}

/* Why this machine let no connection come about, an errno; 0: it is not to blame. */
static int
local_cause(const OutboxJob *job)
{
	long		error = 0;
	const OutboxTrial *last = job->trials.v6.since > job->trials.v4.since ? &job->trials.v6 : &job->trials.v4;

	if (job->shortage != 0)
		return job->shortage;
	if (last->address.any.sa_family == AF_UNSPEC ||
		curl_easy_getinfo(job->easy, CURLINFO_OS_ERRNO, &error) != CURLE_OK ||
		!is_local((int) error, &last->address.any))
		return 0;
	return (int) error;
}

/* Does what libcurl says of a lookup mean that it could not begin? */
static bool
lookup_was_stillborn(const OutboxJob *job)
{
	return outbox_sockets_are_out() || strstr(job->error, "thread failed to start") != NULL;
}

/* Has some of the request left this machine, over a kept connection maybe? */
static bool
was_sent(const OutboxJob *job)
{
	long		sent = 0;

	return job->resent || (curl_easy_getinfo(job->easy, CURLINFO_REQUEST_SIZE, &sent) == CURLE_OK && sent > 0);
}

static HttpFailure
meaning_of(const OutboxJob *job, CURLcode result, bool answered)
{
	switch (result)
	{
		case CURLE_OK:
			return HTTP_ANSWERED;

		case CURLE_COULDNT_RESOLVE_HOST:
		case CURLE_COULDNT_RESOLVE_PROXY:
			return lookup_was_stillborn(job) ? HTTP_NOT_SENT : HTTP_FAILED_DNS;

		case CURLE_COULDNT_CONNECT:
		case CURLE_INTERFACE_FAILED:
			/* Blocked is what could not be tried at all; otherwise it is the receiver that failed. */
			if (job->blocked && !job->opened && !job->passed_over)
				return HTTP_FAILED_BLOCKED;
			return local_cause(job) != 0 ? HTTP_NOT_SENT : HTTP_FAILED_CONNECT;

		case CURLE_ABORTED_BY_CALLBACK:
			if (job->blocked)
				return HTTP_FAILED_BLOCKED;
			return job->afresh ? HTTP_NOT_SENT : HTTP_FAILED_CONNECT;

			/* A file that cannot be read may only have met a want of descriptors. */
		case CURLE_SSL_CERTPROBLEM:
		case CURLE_SSL_CACERT_BADFILE:
			return outbox_sockets_are_out() ? HTTP_NOT_SENT : HTTP_FAILED_TLS;

		case CURLE_SSL_CONNECT_ERROR:
		case CURLE_SSL_CIPHER:
		case CURLE_SSL_ENGINE_NOTFOUND:
		case CURLE_SSL_ENGINE_SETFAILED:
		case CURLE_SSL_ENGINE_INITFAILED:
		case CURLE_SSL_CRL_BADFILE:
		case CURLE_SSL_ISSUER_ERROR:
		case CURLE_SSL_SHUTDOWN_FAILED:
		case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
		case CURLE_SSL_INVALIDCERTSTATUS:
		case CURLE_SSL_CLIENTCERT:
		case CURLE_PEER_FAILED_VERIFICATION:
		case CURLE_USE_SSL_FAILED:
			return HTTP_FAILED_TLS;

			/* What the newest releases say of a key that does not fit. */
		case CURLE_BAD_FUNCTION_ARGUMENT:
			return job->target->tls_key_file != NULL ? HTTP_FAILED_TLS : HTTP_FAILED_OTHER;

		case CURLE_OPERATION_TIMEDOUT:
			return HTTP_FAILED_TIMEOUT;

		case CURLE_GOT_NOTHING:
		case CURLE_SEND_ERROR:
		case CURLE_SEND_FAIL_REWIND:
		case CURLE_RECV_ERROR:
			if (answered)
				return HTTP_FAILED_BODY;
			return outbox_job_was_alerted(job) ? HTTP_FAILED_TLS : HTTP_FAILED_CONNECT;

		case CURLE_PARTIAL_FILE:
		case CURLE_WEIRD_SERVER_REPLY:
		case CURLE_BAD_CONTENT_ENCODING:
		case CURLE_WRITE_ERROR:
		case CURLE_READ_ERROR:
		case CURLE_FILESIZE_EXCEEDED:
		case CURLE_CHUNK_FAILED:
		case CURLE_HTTP2:
		case CURLE_HTTP2_STREAM:
			return HTTP_FAILED_BODY;

			/* What libcurl says of an answer that is not HTTP at all. */
		case CURLE_UNSUPPORTED_PROTOCOL:
			return job->connected ? HTTP_FAILED_BODY : HTTP_FAILED_OTHER;

		case CURLE_OUT_OF_MEMORY:
		case CURLE_FAILED_INIT:
		case CURLE_NO_CONNECTION_AVAILABLE:
			if (!job->connected)
				return HTTP_NOT_SENT;
			return answered ? HTTP_FAILED_BODY : HTTP_FAILED_OTHER;

		default:
			return answered ? HTTP_FAILED_BODY : HTTP_FAILED_OTHER;
	}
}

HttpFailure
outbox_job_failure(const OutboxJob *job, CURLcode result, bool answered)
{
	HttpFailure failure = meaning_of(job, result, answered);

	/* What could not be sent a second time was sent once. */
	return failure == HTTP_NOT_SENT && was_sent(job) ? HTTP_FAILED_CONNECT : failure;
}

HttpShortage
outbox_job_shortage(const OutboxJob *job, CURLcode result)
{
	switch (result == CURLE_OUT_OF_MEMORY ? ENOMEM : local_cause(job))
	{
		case EADDRNOTAVAIL:
		case EADDRINUSE:
		case EAGAIN:
			return HTTP_LACKS_PORTS;
		case EACCES:
		case EPERM:
			return HTTP_LACKS_PERMISSION;
		case ENOBUFS:
		case ENOMEM:
			return HTTP_LACKS_MEMORY;
		default:
			return HTTP_LACKS_DESCRIPTORS;
	}
}

/* One line about a cause that lies on this machine. */
static const char *
describe_shortage(HttpShortage shortage)
{
	switch (shortage)
	{
		case HTTP_LACKS_PORTS:
			return "this machine has no local port free for a connection to the receiver";
		case HTTP_LACKS_PERMISSION:
			return "this machine does not permit a connection to the receiver";
		case HTTP_LACKS_MEMORY:
			return "this machine has no memory free for a connection";
		case HTTP_LACKS_DESCRIPTORS:
		case HTTP_LACKS_NOTHING:
			break;
	}
	return "this machine has no file descriptor free for a connection";
}

const char *
outbox_job_message(const OutboxJob *job, HttpFailure failure, CURLcode result)
{
	if (failure == HTTP_FAILED_BLOCKED)
		return OUTBOX_BLOCKED_ADDRESS;
	if (failure == HTTP_FAILED_CONNECT && (job->shortage != 0 || job->afresh))
		return "a kept connection was closed, and no other could be opened";
	if (failure == HTTP_NOT_SENT)
		return describe_shortage(outbox_job_shortage(job, result));
	if (result == CURLE_ABORTED_BY_CALLBACK)
		return "the connection was closed before an answer, twice";
	if (result == CURLE_UNSUPPORTED_PROTOCOL && job->connected)
		return OUTBOX_NOT_HTTP;
	return job->error[0] != '\0' ? job->error : curl_easy_strerror(result);
}
