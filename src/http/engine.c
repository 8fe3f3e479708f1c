/*-------------------------------------------------------------------------
 *
 * engine.c
 *		libcurl, driven by our poller; see engine.h.
 *
 * Descriptors: libcurl opens sockets when it likes, so a job is admitted only
 * while the budget holds what it may need at once, a socket of any kind is
 * refused beyond the budget, and a refusal (ours or the kernel's) is told
 * apart from a receiver that cannot be reached.
 *
 *-------------------------------------------------------------------------
 */
#include "http/engine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "http/clock.h"
#include "http/exchange.h"

/* Descriptors that a lookup takes for a moment: libcurl's pair, and the resolver's own two. */
#define LOOKUP_DESCRIPTORS 4

/* What libcurl, the poller and their like keep open all the time. */
#define STANDING_DESCRIPTORS 8

/* Fewer than this and nothing can be sent at all. */
#define LEAST_DESCRIPTORS 16

/* A connect timeout that libcurl never reaches, in ms. */
#define NO_TIMEOUT (24 * 3600 * 1000L)

/* Idle connections older than this are not trusted to be alive, in seconds. */
#define IDLE_LIMIT 90L

typedef struct OpenSocket
{
	bool		open;
	bool		adopted;		/* libcurl may not close it */
	ino_t		inode;			/* which socket it is, should libcurl close it without a word */
	const HttpTarget *target;	/* who opened it, until forgotten */
} OpenSocket;

static struct
{
	int			users;
	HttpTransportOptions options;
	char	   *user_agent;
	unsigned	settings;
	int			budget;			/* descriptors we may have open */
	int			reserved;		/* of them, set aside for jobs that have no socket yet */
	int			nopen;			/* sockets open, as far as we were told */
	OpenSocket *sockets;		/* by descriptor */
	int			nsockets;
	OutboxEngine *engines[2];
} shared;

/*
 * Descriptors
 */

/*
 * How many descriptors are ours.  The server sized its own use of them by the
 * limit it started with, so the limit is raised (for this process) by what we
 * are going to need; where that is not allowed, the server gives up half.
 */
static int
find_budget(const HttpTransportOptions *options)
{
	struct rlimit limit;
	rlim_t		server,
				wanted;

	if (options->max_descriptors > 0)
		return options->max_descriptors;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return 256;
	if (limit.rlim_cur == RLIM_INFINITY)
		return 1 << 20;
	server = limit.rlim_cur;
	wanted = server + 2 * (rlim_t) options->max_in_flight + 64;
	if (limit.rlim_max != RLIM_INFINITY && wanted > limit.rlim_max)
		wanted = limit.rlim_max;
	if (wanted > server)
	{
		limit.rlim_cur = wanted;
		if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
			wanted = server;
	}
	return (int) (wanted - server + server / 2);
}

static bool
reserve_sockets(int fd)
{
	OpenSocket *more;
	int			room = shared.nsockets > 0 ? shared.nsockets : 64;

	if (fd < shared.nsockets)
		return true;
	while (room <= fd)
		room *= 2;
	more = realloc(shared.sockets, room * sizeof(OpenSocket));
	if (more == NULL)
		return false;
	memset(more + shared.nsockets, 0, (room - shared.nsockets) * sizeof(OpenSocket));
	shared.sockets = more;
	shared.nsockets = room;
	return true;
}

static void
forget_socket(int fd)
{
	if (fd >= shared.nsockets || !shared.sockets[fd].open)
		return;
	shared.sockets[fd].open = false;
	shared.nopen--;
}

/* Is the socket that we opened under this number still the one? */
static bool
is_our_socket(int fd)
{
	struct stat st;

	if (fd >= shared.nsockets || !shared.sockets[fd].open)
		return false;
	if (fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == shared.sockets[fd].inode)
		return true;
	forget_socket(fd);
	return false;
}

/* Count again, after sockets that libcurl closed behind our back. */
static void
recount_sockets(void)
{
	for (int fd = 0; fd < shared.nsockets; fd++)
		(void) is_our_socket(fd);
}

static bool
note_socket(int fd, const HttpTarget *target)
{
	struct stat st;

	if (!reserve_sockets(fd) || !outbox_poller_opened(fd) || fstat(fd, &st) < 0)
		return false;
	forget_socket(fd);
	shared.sockets[fd].open = true;
	shared.sockets[fd].adopted = false;
	shared.sockets[fd].inode = st.st_ino;
	shared.sockets[fd].target = target;
	shared.nopen++;
	return true;
}

static bool
fits(int more)
{
	int			limit = shared.budget - STANDING_DESCRIPTORS;

	if (shared.nopen + shared.reserved + more <= limit)
		return true;
	recount_sockets();
	return shared.nopen + shared.reserved + more <= limit;
}

int
outbox_engine_descriptors(const HttpTarget *target, bool reached)
{
	return reached || target->unix_socket != NULL ? 1 : 1 + LOOKUP_DESCRIPTORS;
}

static void
return_reserved(OutboxJob *job)
{
	shared.reserved -= job->reserved;
	job->reserved = 0;
}

void
outbox_engine_adopt(int fd)
{
	if (fd < shared.nsockets)
		shared.sockets[fd].adopted = true;
}

void
outbox_engine_close_socket(int fd)
{
	forget_socket(fd);
	outbox_poller_closed(fd);
	close(fd);
}

int
outbox_engine_capacity(void)
{
	int			room = (shared.budget - STANDING_DESCRIPTORS) / 2;

	return shared.options.max_in_flight < room ? shared.options.max_in_flight : room;
}

bool
outbox_engine_admits(int descriptors)
{
	return fits(descriptors);
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

static curl_socket_t
open_socket(void *arg, curlsocktype purpose, struct curl_sockaddr *address)
{
	OutboxJob  *job = arg;
	int			fd;

	if (outbox_engine_refuses(&address->addr, address->addrlen))
	{
		job->blocked = true;
		return CURL_SOCKET_BAD;
	}
	return_reserved(job);
	if (!fits(1))
	{
		job->starved = true;
		return CURL_SOCKET_BAD;
	}
	fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
	if (fd < 0)
	{
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			job->starved = true;
		return CURL_SOCKET_BAD;
	}
	if (!note_socket(fd, job->target))
	{
		close(fd);
		job->starved = true;
		return CURL_SOCKET_BAD;
	}
	return fd;
}

static int
close_socket(void *arg, curl_socket_t fd)
{
	OutboxPolled *owner = outbox_poller_owner(fd);

	if (fd < shared.nsockets && shared.sockets[fd].open && shared.sockets[fd].adopted)
		return 0;
	if (owner != NULL && owner->closed != NULL)
		owner->closed(owner, fd);
	outbox_engine_close_socket(fd);
	return 0;
}

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
		if (fd < shared.nsockets && shared.sockets[fd].open)
			outbox_poller_rest(fd);
		else
			outbox_poller_drop(fd);
		return 0;
	}
	if (!outbox_poller_registered(fd))
		(void) is_our_socket(fd);
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

/*
 * A connection is there, new or kept, and the request is next.  That this
 * happens again for the same job is how libcurl's silent repetition of a
 * request on a dead connection becomes visible; once is enough.
 */
static int
about_to_send(void *arg, char *ip, char *local_ip, int port, int local_port)
{
	OutboxJob  *job = arg;

	return_reserved(job);
	if (shared.options.blocked != NULL && ip != NULL && refuses_text(ip))
	{
		job->blocked = true;
		return CURL_PREREQFUNC_ABORT;
	}
	if (job->sends == 2)
		return CURL_PREREQFUNC_ABORT;
	job->sends++;
	return CURL_PREREQFUNC_OK;
}

/*
 * Engines
 */

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
	outbox_engine_reap(engine);
}

void
outbox_engine_run_timer(OutboxEngine *engine, int64_t now)
{
	int			running;

	if (engine->timer_at < 0 || engine->timer_at > now)
		return;
	engine->timer_at = -1;
	curl_multi_socket_action(engine->multi, CURL_SOCKET_TIMEOUT, 0, &running);
	outbox_engine_reap(engine);
}

void
outbox_engine_reap(OutboxEngine *engine)
{
	CURLMsg    *message;
	int			left;

	while ((message = curl_multi_info_read(engine->multi, &left)) != NULL)
	{
		OutboxJob  *job;
		CURLcode	result = message->data.result;

		if (message->msg != CURLMSG_DONE ||
			curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **) &job) != CURLE_OK)
			continue;
		return_reserved(job);
		job->done(job, result);
	}
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
	shared.engines[place] = engine;
	return NULL;
}

void
outbox_engine_close(OutboxEngine *engine)
{
	for (int i = 0; i < 2; i++)
		if (shared.engines[i] == engine)
			shared.engines[i] = NULL;
	if (engine->multi != NULL)
		curl_multi_cleanup(engine->multi);
	engine->multi = NULL;
}

static bool
same_text(const char *a, const char *b)
{
	return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

void
outbox_engine_configure(const HttpTransportOptions *options)
{
	int			max_descriptors = shared.options.max_descriptors;

	if (!same_text(options->user_agent, shared.user_agent))
	{
		free(shared.user_agent);
		shared.user_agent = options->user_agent != NULL ? strdup(options->user_agent) : NULL;
		shared.settings++;
	}
	shared.options = *options;
	shared.options.user_agent = shared.user_agent;
	shared.options.max_descriptors = max_descriptors;
	for (int i = 0; i < 2; i++)
		if (shared.engines[i] != NULL)
			apply_limits(shared.engines[i]);
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
		shared.budget = find_budget(options);
		if (shared.budget < LEAST_DESCRIPTORS)
			problem = "too few file descriptors are left for connections";
		else
			problem = outbox_poller_open();
		if (problem == NULL)
		{
			shared.options.max_descriptors = options->max_descriptors;
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
	free(shared.user_agent);
	free(shared.sockets);
	memset(&shared, 0, sizeof(shared));
	curl_global_cleanup();
}

void
outbox_engine_forget(const HttpTarget *target)
{
	for (int fd = 0; fd < shared.nsockets; fd++)
	{
		if (!shared.sockets[fd].open || shared.sockets[fd].target != target)
			continue;
		shared.sockets[fd].target = NULL;

		/*
		 * libcurl has no call that closes one idle connection.  It closes it
		 * when it finds it dead, which it now is.
		 */
		if (!outbox_poller_wanted(fd) && is_our_socket(fd))
			shutdown(fd, SHUT_RDWR);
	}
}

const char *
outbox_engine_user_agent(void)
{
	return shared.user_agent != NULL ? shared.user_agent : "";
}

unsigned
outbox_engine_settings(void)
{
	return shared.settings;
}

/*
 * Jobs
 */

#define SET(option, value) \
	do { \
		if (result == CURLE_OK) \
			result = curl_easy_setopt(easy, option, value); \
	} while (0)

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
	SET(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
	SET(CURLOPT_TCP_NODELAY, 1L);
	SET(CURLOPT_MAXAGE_CONN, IDLE_LIMIT);
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

	SET(CURLOPT_SSLVERSION, (long) CURL_SSLVERSION_TLSv1_2);
	SET(CURLOPT_SSL_VERIFYPEER, 1L);
	SET(CURLOPT_SSL_VERIFYHOST, 2L);
	if (target->tls_ca_file != NULL)
	{
		/* A private authority replaces the system's: none of those is asked. */
		SET(CURLOPT_CAINFO, target->tls_ca_file);
		SET(CURLOPT_CAPATH, NULL);
	}
	if (target->tls_certificate_file != NULL)
		SET(CURLOPT_SSLCERT, target->tls_certificate_file);
	if (target->tls_key_file != NULL)
		SET(CURLOPT_SSLKEY, target->tls_key_file);
	return result;
}

static CURLcode
set_target(CURL *easy, const HttpTarget *target)
{
	CURLcode	result = CURLE_OK;

	SET(CURLOPT_URL, target->url);
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

bool
outbox_job_prepare(OutboxJob *job, HttpTarget *target)
{
	CURL	   *easy = job->easy;
	CURLcode	result = CURLE_OK;

	job->target = target;
	job->sends = 0;
	job->blocked = false;
	job->starved = false;
	job->error[0] = '\0';
	if (easy == NULL)
	{
		easy = job->easy = curl_easy_init();
		if (easy == NULL)
			return false;
		job->settings = shared.settings - 1;
		result = set_rules(easy, job);
		if (result == CURLE_OK)
			result = set_target(easy, target);
	}
	if (result == CURLE_OK && job->settings != shared.settings)
	{
		SET(CURLOPT_USERAGENT, shared.user_agent);
		job->settings = shared.settings;
	}
	if (result == CURLE_OK)
		return true;
	if (job->error[0] == '\0')
	{
		strncpy(job->error, curl_easy_strerror(result), sizeof(job->error) - 1);
		job->error[sizeof(job->error) - 1] = '\0';
	}
	curl_easy_cleanup(easy);
	job->easy = NULL;
	return false;
}

bool
outbox_job_start(OutboxEngine *engine, OutboxJob *job, int descriptors)
{
	job->engine = engine;
	job->reserved = descriptors;
	shared.reserved += job->reserved;
	if (curl_multi_add_handle(engine->multi, job->easy) == CURLM_OK)
		return true;
	return_reserved(job);
	return false;
}

void
outbox_job_stop(OutboxJob *job)
{
	return_reserved(job);
	curl_multi_remove_handle(job->engine->multi, job->easy);
}

void
outbox_job_free(OutboxJob *job)
{
	if (job->easy != NULL)
		curl_easy_cleanup(job->easy);
	job->easy = NULL;
}

void
outbox_job_hold_timeout(OutboxJob *job, bool hold)
{
	curl_easy_setopt(job->easy, CURLOPT_CONNECTTIMEOUT_MS,
					 hold ? NO_TIMEOUT : job->target->connect_timeout_ms);
}

/* A lookup fails when it cannot open its own descriptors, and says nothing of the reason. */
static bool
descriptors_are_out(void)
{
	int			fds[LOOKUP_DESCRIPTORS];
	int			n = 0;
	bool		out;

	while (n < LOOKUP_DESCRIPTORS && (fds[n] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0)
		n++;
	out = n < LOOKUP_DESCRIPTORS && (errno == EMFILE || errno == ENFILE);
	while (n > 0)
		close(fds[--n]);
	return out;
}

bool
outbox_job_was_alerted(const OutboxJob *job)
{
	return strstr(job->error, " alert ") != NULL;
}

HttpFailure
outbox_job_failure(const OutboxJob *job, CURLcode result, bool answered)
{
	switch (result)
	{
		case CURLE_OK:
			return HTTP_ANSWERED;

		case CURLE_COULDNT_RESOLVE_HOST:
		case CURLE_COULDNT_RESOLVE_PROXY:
			return descriptors_are_out() ? HTTP_NOT_SENT : HTTP_FAILED_DNS;

		case CURLE_COULDNT_CONNECT:
		case CURLE_INTERFACE_FAILED:
			if (job->blocked)
				return HTTP_FAILED_BLOCKED;
			return job->starved ? HTTP_NOT_SENT : HTTP_FAILED_CONNECT;

		case CURLE_ABORTED_BY_CALLBACK:
			if (job->blocked)
				return HTTP_FAILED_BLOCKED;
			return HTTP_FAILED_CONNECT;

		case CURLE_SSL_CONNECT_ERROR:
		case CURLE_SSL_CERTPROBLEM:
		case CURLE_SSL_CIPHER:
		case CURLE_SSL_ENGINE_NOTFOUND:
		case CURLE_SSL_ENGINE_SETFAILED:
		case CURLE_SSL_ENGINE_INITFAILED:
		case CURLE_SSL_CACERT_BADFILE:
		case CURLE_SSL_CRL_BADFILE:
		case CURLE_SSL_ISSUER_ERROR:
		case CURLE_SSL_SHUTDOWN_FAILED:
		case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
		case CURLE_SSL_INVALIDCERTSTATUS:
		case CURLE_SSL_CLIENTCERT:
		case CURLE_PEER_FAILED_VERIFICATION:
		case CURLE_USE_SSL_FAILED:
			return HTTP_FAILED_TLS;

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
			return job->sends > 0 ? HTTP_FAILED_BODY : HTTP_FAILED_OTHER;

		case CURLE_OUT_OF_MEMORY:
		case CURLE_FAILED_INIT:
		case CURLE_NO_CONNECTION_AVAILABLE:
			if (job->sends == 0)
				return HTTP_NOT_SENT;
			return answered ? HTTP_FAILED_BODY : HTTP_FAILED_OTHER;

		default:
			return answered ? HTTP_FAILED_BODY : HTTP_FAILED_OTHER;
	}
}

const char *
outbox_job_message(const OutboxJob *job, HttpFailure failure, CURLcode result)
{
	if (failure == HTTP_FAILED_BLOCKED)
		return OUTBOX_BLOCKED_ADDRESS;
	if (failure == HTTP_NOT_SENT)
		return "no file descriptor was free";
	if (result == CURLE_ABORTED_BY_CALLBACK)
		return "the connection was closed before an answer, twice";
	return job->error[0] != '\0' ? job->error : curl_easy_strerror(result);
}
