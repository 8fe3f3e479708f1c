/*-------------------------------------------------------------------------
 *
 * connection_map.c
 *		Which socket carries which connection; see connection_map.h.
 *
 * An array by descriptor.  It is searched from the beginning: a process has
 * some hundreds of connections, and a look at each costs nothing beside the
 * request that follows.
 *
 *-------------------------------------------------------------------------
 */
#include "http/connection_map.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* The state of a connection whose other side has sent its end; the kernel's own header has no name for it. */
#define OUTBOX_TCP_CLOSE_WAIT 8

/* So many sockets at most gather at once what is sent on them; others send it as it comes. */
#define MOST_GATHERING 16

typedef struct Noted
{
	uint64_t	name;			/* 0: no connection */
	bool		shared;
	bool		doomed;
	bool		spoke;			/* TLS has decoded something since the request */
	int64_t		received;		/* bytes by then, -1: not known */
	void	   *user;
} Noted;

static Noted *noted;			/* by descriptor */
static int	nnoted;
static int	gathering[MOST_GATHERING];
static int	ngathering;

/* FNV-1a */
static uint64_t
mix(uint64_t hash, const void *data, size_t len)
{
	const unsigned char *bytes = data;

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
	return hash;
}

uint64_t
outbox_connection_name(const char *ip, int port, const char *local_ip, int local_port)
{
	uint64_t	hash = UINT64_C(14695981039346656037);

	hash = mix(hash, ip, strlen(ip) + 1);
	hash = mix(hash, &port, sizeof(port));
	hash = mix(hash, local_ip, strlen(local_ip) + 1);
	hash = mix(hash, &local_port, sizeof(local_port));
	return hash != 0 ? hash : 1;
}

void
outbox_connection_note(int fd, uint64_t name)
{
	if (fd >= nnoted)
	{
		int			room = nnoted > 0 ? nnoted : 64;
		Noted	   *more;

		while (room <= fd)
			room *= 2;
		more = realloc(noted, room * sizeof(Noted));
		if (more == NULL)
			return;
		memset(more + nnoted, 0, (room - nnoted) * sizeof(Noted));
		noted = more;
		nnoted = room;
	}
	noted[fd].name = name;
	noted[fd].shared = false;
	noted[fd].doomed = false;
	noted[fd].spoke = false;
	noted[fd].received = -1;
	noted[fd].user = NULL;
}

void
outbox_connection_unnote(int fd)
{
	if (fd < nnoted)
		noted[fd].name = 0;
}

int
outbox_connection_socket(uint64_t name, int fd)
{
	for (; fd < nnoted; fd++)
		if (noted[fd].name == name)
			return fd;
	return -1;
}

void
outbox_connection_set_shared(int fd)
{
	if (fd >= 0 && fd < nnoted)
		noted[fd].shared = true;
}

bool
outbox_connection_is_shared(int fd)
{
	return fd >= 0 && fd < nnoted && noted[fd].shared;
}

static void
cork(int fd, int on)
{
	(void) setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
}

void
outbox_connection_gather(int fd)
{
	for (int i = 0; i < ngathering; i++)
		if (gathering[i] == fd)
			return;
	if (ngathering == MOST_GATHERING)
		return;
	gathering[ngathering++] = fd;
	cork(fd, 1);
}

void
outbox_connections_let_go(void)
{
	while (ngathering > 0)
		cork(gathering[--ngathering], 0);
}

void
outbox_connection_doom(int fd)
{
	if (fd >= 0 && fd < nnoted)
		noted[fd].doomed = true;
}

bool
outbox_connection_is_doomed(int fd)
{
	return fd >= 0 && fd < nnoted && noted[fd].name != 0 && noted[fd].doomed;
}

void
outbox_connection_set_user(int fd, void *job)
{
	if (fd >= 0 && fd < nnoted)
		noted[fd].user = job;
}

void
outbox_connection_leave(int fd, const void *job)
{
	if (fd >= 0 && fd < nnoted && noted[fd].user == job)
		noted[fd].user = NULL;
}

void *
outbox_connection_user(int fd)
{
	return fd >= 0 && fd < nnoted && noted[fd].name != 0 ? noted[fd].user : NULL;
}

bool
outbox_connection_is_quiet(int fd)
{
	char		byte;

	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

void
outbox_connection_end(int fd)
{
	shutdown(fd, SHUT_RDWR);
}

/* False where the kernel does not tell how much was acknowledged. */
static bool
ask_kernel(int fd, struct tcp_info *info)
{
	socklen_t	len = sizeof(*info);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) == 0 &&
		len >= offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof(info->tcpi_bytes_acked);
}

int64_t
outbox_connection_acknowledged(int fd)
{
	struct tcp_info info;

	return ask_kernel(fd, &info) ? (int64_t) info.tcpi_bytes_acked : -1;
}

bool
outbox_connection_is_unheard(int fd, int64_t acknowledged)
{
	struct tcp_info info;

	return acknowledged >= 0 && ask_kernel(fd, &info) &&
		(int64_t) info.tcpi_bytes_acked == acknowledged && info.tcpi_retransmits > 0;
}

/* How many bytes have come, the end of the connection not among them, which Linux counts as one. */
static int64_t
bytes_received(int fd)
{
	struct tcp_info info;
	socklen_t	len = sizeof(info);

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
		len < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received))
		return -1;
	return (int64_t) info.tcpi_bytes_received - (info.tcpi_state == OUTBOX_TCP_CLOSE_WAIT ? 1 : 0);
}

void
outbox_connection_listen(int fd)
{
	if (fd < 0 || fd >= nnoted)
		return;
	noted[fd].spoke = false;
	noted[fd].received = bytes_received(fd);
}

void
outbox_connection_spoke(int fd)
{
	if (fd >= 0 && fd < nnoted)
		noted[fd].spoke = true;
}

bool
outbox_connection_has_spoken(int fd, bool tls)
{
	if (fd < 0 || fd >= nnoted)
		return false;
	return tls ? noted[fd].spoke : noted[fd].received >= 0 && bytes_received(fd) > noted[fd].received;
}

void
outbox_connection_reset(void)
{
	free(noted);
	noted = NULL;
	nnoted = ngathering = 0;
}
