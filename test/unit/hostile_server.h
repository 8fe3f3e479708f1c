/*-------------------------------------------------------------------------
 *
 * hostile_server.h
 *		A receiver within the test's own process that does what it is told
 *		by the path of each request, all of it wrong if need be.
 *
 * One thread accepts, one thread serves each connection.  It speaks TCP and,
 * with hostile_listen_unix(), over a unix socket; behind a HostileWire it
 * speaks whatever the test puts there (TLS).  What it saw is counted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HOSTILE_SERVER_H
#define OUTBOX_HOSTILE_SERVER_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HOSTILE_HEAD 65536

/* How bytes travel, when it is not plainly.  session is what accept() returned; NULL: no session. */
typedef struct HostileWire
{
	void	   *(*accept) (const struct HostileWire *wire, int fd);
	ssize_t		(*read) (void *session, char *data, size_t len);
	ssize_t		(*write) (void *session, const char *data, size_t len);
	void		(*close) (const struct HostileWire *wire, void *session);
	bool		(*nag) (void *session); /* a message of the wire's own, without bytes */
	void	   *context;
	bool		rude;			/* ends without saying so */
} HostileWire;

typedef struct Peer
{
	int			fd;
	const HostileWire *wire;
	void	   *session;
	char		buffer[HOSTILE_HEAD];
	size_t		len;			/* bytes in it */
	int			nrequests;		/* on this connection, the present one included */

	/* the present request */
	size_t		head_len;
	size_t		body_len;		/* as announced */
	uint64_t	body_sum;
	char		path[128];
} Peer;

typedef enum After
{
	KEEP,						/* wait for another request */
	CLOSE,
	RESET
} After;

static struct
{
	atomic_int	connections;
	atomic_int	closed;			/* connections that we closed */
	atomic_int	ended;			/* connections that the other side closed while we waited */
	atomic_int	requests;
	atomic_int	nags;			/* messages of the wire's own that were sent */
	atomic_int	strays;			/* answers that nobody had asked for */
	atomic_bool may_stray;		/* answer the request that is still on its way */
	pthread_mutex_t lock;
	char		head[HOSTILE_HEAD]; /* of the last request, under lock */
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char whole_answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello";

#define WHOLE ((int) sizeof(whole_answer) - 1)

/* Answers that are sent as they are, by name; the connection stays open unless they say so. */
typedef struct RawAnswer
{
	const char *name;
	const char *bytes;
	size_t		len;
	bool		close;			/* behind it */
	bool		dribble;		/* a byte at a time */
	const char *stray;			/* what nobody asked for, behind it; NULL: nothing */
	long		stray_ms;		/* so much later, 0: in the same packet */
} RawAnswer;

static const RawAnswer *raw_answers;
static size_t nraw_answers;

static inline int64_t
now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void
pause_ms(long ms)
{
	struct timespec wait = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&wait, NULL);
}

/* How long to wait for what has to come, as for the servers' tests. */
static inline long
patience_ms(void)
{
	const char *seconds = getenv("PG_TEST_TIMEOUT_DEFAULT");

	return 1000 * (seconds != NULL && atol(seconds) > 0 ? atol(seconds) : 60);
}

static inline ssize_t
peer_read(Peer *peer, char *data, size_t len)
{
	if (peer->wire != NULL)
		return peer->wire->read(peer->session, data, len);
	return recv(peer->fd, data, len, 0);
}

/* Send all of it.  False: the other side has gone. */
static inline bool
say(Peer *peer, const char *data, size_t len)
{
	while (len > 0)
	{
		ssize_t		n = peer->wire != NULL ? peer->wire->write(peer->session, data, len) :
			send(peer->fd, data, len, MSG_NOSIGNAL);

		if (n <= 0)
			return false;
		data += n;
		len -= n;
	}
	return true;
}

static inline bool
say_text(Peer *peer, const char *text)
{
	return say(peer, text, strlen(text));
}

static inline const char *
peer_header(Peer *peer, const char *name)
{
	size_t		name_len = strlen(name);

	for (char *line = peer->buffer; line != NULL && line < peer->buffer + peer->head_len; line = strchr(line, '\n'))
	{
		if (*line == '\n')
			line++;
		if (strncasecmp(line, name, name_len) == 0 && line[name_len] == ':')
			return line + name_len + 1;
	}
	return NULL;
}

/* Read until the head of a request is there.  False: the connection has ended. */
static inline bool
read_head(Peer *peer)
{
	for (;;)
	{
		char	   *end = memmem(peer->buffer, peer->len, "\r\n\r\n", 4);
		const char *value;
		ssize_t		n;

		if (end != NULL)
		{
			peer->head_len = end + 4 - peer->buffer;
			end[2] = '\0';
			peer->path[0] = '\0';
			sscanf(peer->buffer, "POST %127s", peer->path);
			value = peer_header(peer, "content-length");
			peer->body_len = value != NULL ? strtoull(value, NULL, 10) : 0;
			pthread_mutex_lock(&seen.lock);
			strcpy(seen.head, peer->buffer);
			pthread_mutex_unlock(&seen.lock);
			peer->nrequests++;
			seen.requests++;
			return true;
		}
		n = peer_read(peer, peer->buffer + peer->len, sizeof(peer->buffer) - peer->len);
		if (n <= 0)
			return false;
		peer->len += n;

		/* A TLS handshake where plain HTTP is spoken. */
		if (peer->buffer[0] == 0x16)
		{
			send(peer->fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
			return false;
		}
	}
}

/* Read the body of the present request and forget the request's bytes. */
static inline bool
read_body(Peer *peer)
{
	size_t		left = peer->body_len;
	size_t		at = peer->head_len;

	peer->body_sum = 0;
	for (;;)
	{
		ssize_t		n;

		for (; at < peer->len && left > 0; at++, left--)
			peer->body_sum = peer->body_sum * 31 + (unsigned char) peer->buffer[at];
		if (left == 0)
			break;
		at = peer->len = 0;
		n = peer_read(peer, peer->buffer, sizeof(peer->buffer));
		if (n <= 0)
			return false;
		peer->len = n;
	}
	memmove(peer->buffer, peer->buffer + at, peer->len - at);
	peer->len -= at;
	return true;
}

/* Wait until the other side closes, taking whatever it sends. */
static inline After
wait_for_end(Peer *peer)
{
	char		rest[4096];

	while (peer_read(peer, rest, sizeof(rest)) > 0)
	{
	}
	seen.ended++;
	return CLOSE;
}

typedef enum Framing
{
	COUNTED,
	IN_CHUNKS,
	UP_TO_THE_END
} Framing;

static inline After
say_huge(Peer *peer, uint64_t total, Framing framing)
{
	static char block[65536];
	char		head[128];
	bool		chunked = framing == IN_CHUNKS;

	if (framing == COUNTED)
	{
		snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %llu\r\n\r\n", (unsigned long long) total);
		say_text(peer, head);
	}
	else
		say_text(peer, chunked ? "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" : "HTTP/1.1 200 OK\r\n\r\n");
	while (total > 0)
	{
		size_t		len = total < sizeof(block) ? total : sizeof(block);

		snprintf(head, sizeof(head), "%zx\r\n", len);
		if ((chunked && !say_text(peer, head)) || !say(peer, block, len) ||
			(chunked && !say_text(peer, "\r\n")))
			return CLOSE;
		total -= len;
	}
	if (chunked)
		say_text(peer, "0\r\n\r\n");
	return framing == UP_TO_THE_END ? CLOSE : KEEP;
}

/* So many messages of the wire's own are as good as endless. */
#define MANY_NAGS 100000

/* Say nothing, but keep the wire busy. */
static inline After
nag(Peer *peer)
{
	for (int i = 0; i < MANY_NAGS && peer->wire->nag(peer->session); i++)
		seen.nags++;
	return CLOSE;
}

/* Headers without end. */
static inline After
say_flood(Peer *peer)
{
	say_text(peer, "HTTP/1.1 200 OK\r\n");
	while (say_text(peer, "X-Flood: 0123456789012345678901234567890123456789012345678901234567890123456789\r\n"))
	{
	}
	return CLOSE;
}

static inline After
say_slowly(Peer *peer, long ms)
{
	for (int i = 0; i < WHOLE; i++)
	{
		if (!say(peer, whole_answer + i, 1))
			return CLOSE;
		pause_ms(ms);
	}
	return KEEP;
}

/* What was received, as the body of the answer. */
static inline After
say_received(Peer *peer)
{
	char		body[64];
	char		answer[256];

	snprintf(body, sizeof(body), "%zu %llu", peer->body_len, (unsigned long long) peer->body_sum);
	snprintf(answer, sizeof(answer), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
	return say_text(peer, answer) ? KEEP : CLOSE;
}

/* Answer and, a moment later or in the same packet, say something else. */
static inline After
say_with_stray(Peer *peer, const char *answer, size_t len, const char *stray, long ms)
{
	int			cork = 1;

	if (ms == 0)
		setsockopt(peer->fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof(cork));
	say(peer, answer, len);
	if (ms > 0)
		pause_ms(ms);
	say_text(peer, stray);
	cork = 0;
	setsockopt(peer->fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof(cork));
	seen.strays++;
	return KEEP;
}

static inline After
say_twice(Peer *peer, long ms)
{
	return say_with_stray(peer, whole_answer, WHOLE, "HTTP/1.1 500 Stray\r\nContent-Length: 0\r\n\r\n", ms);
}

static inline After
say_raw(Peer *peer, const char *name)
{
	for (size_t i = 0; i < nraw_answers; i++)
	{
		if (strcmp(raw_answers[i].name, name) != 0)
			continue;
		if (raw_answers[i].stray != NULL)
		{
			say_with_stray(peer, raw_answers[i].bytes, raw_answers[i].len, raw_answers[i].stray, raw_answers[i].stray_ms);
			return raw_answers[i].close ? CLOSE : KEEP;
		}
		for (size_t at = 0; at < raw_answers[i].len;)
		{
			size_t		piece = raw_answers[i].dribble ? 1 : raw_answers[i].len;

			if (!say(peer, raw_answers[i].bytes + at, piece))
				return CLOSE;
			at += piece;
		}
		return raw_answers[i].close ? CLOSE : KEEP;
	}
	say_text(peer, "HTTP/1.1 404 No such answer\r\nContent-Length: 0\r\n\r\n");
	return KEEP;
}

/*
 * Whatever else comes is dropped before it arrives, as by a firewall that has
 * forgotten the connection: this asks for more hops to live than the kernel
 * gives a packet.
 */
static inline void
go_deaf(Peer *peer)
{
	int			hops = 255;

	if (setsockopt(peer->fd, IPPROTO_IP, IP_MINTTL, &hops, sizeof(hops)) < 0)
		abort();
}

/* Answer, and then answer the next request before it can have come. */
static inline After
say_before(Peer *peer)
{
	go_deaf(peer);
	say(peer, whole_answer, WHOLE);
	while (!seen.may_stray)
		pause_ms(1);
	say_text(peer, "HTTP/1.1 500 Stray\r\nContent-Length: 0\r\n\r\n");
	seen.strays++;
	return KEEP;
}

/* The number behind a path's prefix; -1 if it has another prefix. */
static inline long
path_number(const Peer *peer, const char *prefix)
{
	size_t		len = strlen(prefix);

	return strncmp(peer->path, prefix, len) == 0 ? atol(peer->path + len) : -1;
}

static inline After
answer_request(Peer *peer)
{
	long		n;
	char		byte;

	if (strcmp(peer->path, "/early") == 0)
	{
		say_text(peer, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig");
		return wait_for_end(peer);
	}
	if (strcmp(peer->path, "/unread") == 0)
	{
		/* Enough, whatever else there is to be read; and nothing of that is. */
		say(peer, whole_answer, WHOLE);
		while (recv(peer->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno == EAGAIN)
			pause_ms(1);
		return CLOSE;
	}
	if (strcmp(peer->path, "/unread-close") == 0)
		return say(peer, whole_answer, WHOLE) ? CLOSE : RESET;
	if (!read_body(peer))
	{
		seen.ended++;
		return CLOSE;
	}
	if ((n = path_number(peer, "/cut/")) >= 0)
	{
		say(peer, whole_answer, n);
		return CLOSE;
	}
	if ((n = path_number(peer, "/cut-second/")) >= 0 && peer->nrequests > 1)
	{
		say(peer, whole_answer, n);
		return CLOSE;
	}
	if ((n = path_number(peer, "/reset-second/")) >= 0 && peer->nrequests > 1)
	{
		say(peer, whole_answer, n);
		return RESET;
	}
	if (strcmp(peer->path, "/reset") == 0)
		return RESET;
	if (strcmp(peer->path, "/close-after") == 0)
	{
		say(peer, whole_answer, WHOLE);
		return CLOSE;
	}
	if (strcmp(peer->path, "/silent") == 0)
		return wait_for_end(peer);
	if ((n = path_number(peer, "/slow/")) >= 0)
		return say_slowly(peer, n);
	if ((n = path_number(peer, "/later/")) >= 0)
		pause_ms(n);
	if ((n = path_number(peer, "/huge/")) >= 0)
		return say_huge(peer, n, COUNTED);
	if ((n = path_number(peer, "/huge-chunked/")) >= 0)
		return say_huge(peer, n, IN_CHUNKS);
	if ((n = path_number(peer, "/huge-to-eof/")) >= 0)
		return say_huge(peer, n, UP_TO_THE_END);
	if (strcmp(peer->path, "/nag") == 0)
		return nag(peer);
	if (strcmp(peer->path, "/nag-afterwards") == 0)
		return say(peer, whole_answer, WHOLE) ? nag(peer) : CLOSE;
	if (strcmp(peer->path, "/deaf") == 0)
		go_deaf(peer);
	if ((n = path_number(peer, "/twice/")) >= 0)
		return say_twice(peer, n);
	if (strcmp(peer->path, "/before") == 0 && seen.strays == 0)
		return say_before(peer);
	if (strcmp(peer->path, "/flood") == 0)
		return say_flood(peer);
	if (strcmp(peer->path, "/received") == 0)
		return say_received(peer);
	if (strncmp(peer->path, "/raw/", 5) == 0)
		return say_raw(peer, peer->path + 5);
	say(peer, whole_answer, WHOLE);
	return KEEP;
}

static inline void
serve_peer(Peer *peer)
{
	After		after = KEEP;
	struct linger abort_it = {1, 0};

	while (after == KEEP)
	{
		if (!read_head(peer))
		{
			seen.ended++;
			break;
		}
		after = answer_request(peer);
	}
	if (after == RESET)
		setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &abort_it, sizeof(abort_it));
}

static inline void *
peer_thread(void *arg)
{
	Peer	   *peer = arg;

	if (peer->wire != NULL)
		peer->session = peer->wire->accept(peer->wire, peer->fd);
	if (peer->wire == NULL || peer->session != NULL)
		serve_peer(peer);
	if (peer->session != NULL)
		peer->wire->close(peer->wire, peer->session);
	close(peer->fd);
	seen.closed++;
	free(peer);
	return NULL;
}

typedef struct Listener
{
	int			fd;
	const HostileWire *wire;
} Listener;

static inline void *
accept_thread(void *arg)
{
	Listener   *listener = arg;
	int			fd;

	for (;;)
	{
		Peer	   *peer;
		int			one = 1;
		pthread_t	thread;

		/* The test may have taken every descriptor for a while. */
		fd = accept(listener->fd, NULL, NULL);
		if (fd < 0)
		{
			pause_ms(1);
			continue;
		}
		peer = calloc(1, sizeof(Peer));
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		peer->fd = fd;
		peer->wire = listener->wire;
		seen.connections++;
		if (pthread_create(&thread, NULL, peer_thread, peer) != 0)
			abort();
		pthread_detach(thread);
	}
	return NULL;
}

static inline void
start_accepting(int fd, const HostileWire *wire)
{
	Listener   *listener = malloc(sizeof(Listener));
	pthread_t	thread;

	listener->fd = fd;
	listener->wire = wire;
	if (pthread_create(&thread, NULL, accept_thread, listener) != 0)
		abort();
	pthread_detach(thread);
}

/* A socket bound to a free port of the loopback, not listening. */
static inline int
bound_socket(int family, int *port)
{
	struct sockaddr_storage address = {.ss_family = family};
	struct sockaddr_in *v4 = (struct sockaddr_in *) &address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *) &address;
	socklen_t	len = family == AF_INET ? sizeof(*v4) : sizeof(*v6);
	int			fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*port = 0;

	if (family == AF_INET)
		v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		v6->sin6_addr = in6addr_loopback;
	if (fd < 0 || bind(fd, (struct sockaddr *) &address, len) < 0 ||
		getsockname(fd, (struct sockaddr *) &address, &len) < 0)
		return -1;
	*port = ntohs(family == AF_INET ? v4->sin_port : v6->sin6_port);
	return fd;
}

/* Serve on a free port of 127.0.0.1, which is returned. */
static inline int
hostile_listen(const HostileWire *wire)
{
	int			port;
	int			fd = bound_socket(AF_INET, &port);

	if (fd < 0 || listen(fd, 1024) < 0)
		abort();
	start_accepting(fd, wire);
	return port;
}

/* Wait until a counter has reached a value.  False: it did not as long as patience lasted. */
static inline bool
wait_for_count(atomic_int *counter, int value)
{
	for (int64_t end = now_ms() + patience_ms(); now_ms() < end; pause_ms(1))
		if (*counter >= value)
			return true;
	return false;
}

#endif							/* OUTBOX_HOSTILE_SERVER_H */
