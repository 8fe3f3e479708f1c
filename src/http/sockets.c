/*-------------------------------------------------------------------------
 *
 * sockets.c
 *		The sockets of this library; see sockets.h.
 *
 *-------------------------------------------------------------------------
 */
#include "http/sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "http/clock.h"
#include "http/poller.h"

/* Descriptors that a lookup takes for a moment: libcurl's pair, and the resolver's own two. */
#define LOOKUP_DESCRIPTORS 4

/* What libcurl, the poller and their like keep open all the time. */
#define STANDING_DESCRIPTORS 8

/* Fewer than this and nothing can be sent at all. */
#define LEAST_DESCRIPTORS 16

/* Sockets are counted again no more often than this. */
#define RECOUNT_US 100000

/*
 * A connection on which nothing happens is asked for a sign of life after so
 * many seconds, and again, and given up when there is none: whatever lies
 * between may forget it without telling either side.
 */
#define KEEPALIVE_IDLE_S 15
#define KEEPALIVE_INTERVAL_S 5
#define KEEPALIVE_PROBES 3

/*
 * Bytes that nobody acknowledges, or takes, end a connection after an
 * exchange's timeout, and no sooner than after so many ms, as connections may
 * be shared among targets.
 */
#define LEAST_USER_TIMEOUT_MS 30000

typedef struct OpenSocket
{
	bool		open;
	bool		adopted;
	ino_t		inode;			/* which socket it is */
	const HttpTarget *target;	/* who opened it, until forgotten */
} OpenSocket;

static rlim_t server_limit;		/* of open descriptors, as the server started with it */
static int	budget;				/* descriptors we may have open */
static int	reserved;			/* of them, set aside */
static int	nopen;				/* sockets open, as far as we were told */
static OpenSocket *sockets;		/* by descriptor */
static int	nsockets;
static int64_t counted_at;

/*
 * How many descriptors are ours.  The server sized its own use of them by the
 * limit it started with, so the limit is raised (for this process) by what we
 * are going to need; where that is not allowed, the server gives up half.
 */
static int
find_budget(const HttpTransportOptions *options)
{
	struct rlimit limit;
	rlim_t		wanted;

	if (options->max_descriptors > 0)
		return options->max_descriptors;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return 256;
	if (limit.rlim_cur == RLIM_INFINITY)
		return 1 << 20;
	if (server_limit == 0)
		server_limit = limit.rlim_cur;
	wanted = server_limit + 2 * (rlim_t) options->max_in_flight + 64;
	if (limit.rlim_max != RLIM_INFINITY && wanted > limit.rlim_max)
		wanted = limit.rlim_max;
	if (wanted > limit.rlim_cur)
	{
		rlim_t		before = limit.rlim_cur;

		limit.rlim_cur = wanted;
		if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
			wanted = before;
	}
	return (int) (wanted - server_limit + server_limit / 2);
}

bool
outbox_sockets_start(const HttpTransportOptions *options)
{
	outbox_sockets_configure(options);
	return budget >= LEAST_DESCRIPTORS;
}

void
outbox_sockets_configure(const HttpTransportOptions *options)
{
	budget = find_budget(options);
}

void
outbox_sockets_end(void)
{
	free(sockets);
	sockets = NULL;
	nsockets = nopen = reserved = 0;
	counted_at = 0;
}

static bool
make_room(int fd)
{
	OpenSocket *more;
	int			room = nsockets > 0 ? nsockets : 64;

	if (fd < nsockets)
		return true;
	while (room <= fd)
		room *= 2;
	more = realloc(sockets, room * sizeof(OpenSocket));
	if (more == NULL)
		return false;
	memset(more + nsockets, 0, (room - nsockets) * sizeof(OpenSocket));
	sockets = more;
	nsockets = room;
	return true;
}

static void
note_closed(int fd)
{
	if (!outbox_socket_is_open(fd))
		return;
	sockets[fd].open = false;
	nopen--;
}

static bool
note_opened(int fd, const HttpTarget *target)
{
	struct stat st;

	if (!make_room(fd) || !outbox_poller_opened(fd) || fstat(fd, &st) < 0)
		return false;
	note_closed(fd);
	sockets[fd].open = true;
	sockets[fd].adopted = false;
	sockets[fd].inode = st.st_ino;
	sockets[fd].target = target;
	nopen++;
	return true;
}

bool
outbox_socket_is_open(int fd)
{
	return fd < nsockets && sockets[fd].open;
}

bool
outbox_socket_is_ours(int fd)
{
	struct stat st;

	if (!outbox_socket_is_open(fd))
		return false;
	if (fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == sockets[fd].inode)
		return true;
	note_closed(fd);
	return false;
}

/* Count again, after sockets that libcurl closed behind our back. */
static void
recount(void)
{
	int64_t		now = outbox_clock_us();

	if (now - counted_at < RECOUNT_US)
		return;
	counted_at = now;
	for (int fd = 0; fd < nsockets; fd++)
		(void) outbox_socket_is_ours(fd);
}

bool
outbox_sockets_fit(int descriptors)
{
	int			limit = budget - STANDING_DESCRIPTORS;

	if (nopen + reserved + descriptors <= limit)
		return true;
	recount();
	return nopen + reserved + descriptors <= limit;
}

int
outbox_sockets_capacity(void)
{
	return (budget - STANDING_DESCRIPTORS) / 2;
}

int
outbox_sockets_needed(const HttpTarget *target, bool reached)
{
	return reached || target->unix_socket != NULL ? 1 : 1 + LOOKUP_DESCRIPTORS;
}

void
outbox_sockets_reserve(int descriptors)
{
	reserved += descriptors;
}

bool
outbox_sockets_are_out(void)
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

/* Have the kernel notice when a connection's other end is gone.  Kernels that cannot do all of it do without. */
static void
watch_over(int fd, const HttpTarget *target)
{
	int			on = 1;
	int			idle = KEEPALIVE_IDLE_S;
	int			interval = KEEPALIVE_INTERVAL_S;
	int			probes = KEEPALIVE_PROBES;
	unsigned	unheard = target->timeout_ms > LEAST_USER_TIMEOUT_MS ? target->timeout_ms : LEAST_USER_TIMEOUT_MS;

	(void) setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	(void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	(void) setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	(void) setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unheard, sizeof(unheard));
}

int
outbox_socket_open(int family, int type, int protocol, const HttpTarget *target, int *shortage)
{
	int			fd;

	*shortage = EMFILE;
	if (!outbox_sockets_fit(1))
		return -1;
	fd = socket(family, type | SOCK_CLOEXEC, protocol);
	if (fd < 0)
	{
		*shortage = errno == EAFNOSUPPORT || errno == EPROTONOSUPPORT ? 0 : errno;
		return -1;
	}
	if (note_opened(fd, target))
	{
		if (family != AF_UNIX)
			watch_over(fd, target);
		return fd;
	}
	close(fd);
	*shortage = ENOMEM;
	return -1;
}

void
outbox_socket_close(int fd)
{
	note_closed(fd);
	outbox_poller_closed(fd);
	close(fd);
}

void
outbox_socket_adopt(int fd)
{
	if (outbox_socket_is_open(fd))
		sockets[fd].adopted = true;
}

bool
outbox_socket_is_adopted(int fd)
{
	return outbox_socket_is_open(fd) && sockets[fd].adopted;
}

int
outbox_sockets_forget(const HttpTarget *target, bool end)
{
	int			idle = 0;

	/*
	 * libcurl shares connections among targets that lead to the same place,
	 * so one may have been busy for another target when its own was forgotten.
	 */
	for (int fd = 0; fd < nsockets; fd++)
	{
		if (!sockets[fd].open || (sockets[fd].target != target && sockets[fd].target != NULL))
			continue;
		sockets[fd].target = NULL;
		if (outbox_poller_wanted(fd) || !outbox_socket_is_ours(fd))
			continue;
		idle++;
		if (end)
			shutdown(fd, SHUT_RDWR);
	}
	return idle;
}

void
outbox_sockets_distrust(const HttpTarget *target)
{
	for (int fd = 0; fd < nsockets; fd++)
		if (sockets[fd].open && sockets[fd].target == target && !outbox_poller_wanted(fd) && outbox_socket_is_ours(fd))
			shutdown(fd, SHUT_RDWR);
}
