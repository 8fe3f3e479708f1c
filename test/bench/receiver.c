/*-------------------------------------------------------------------------
 *
 * receiver.c
 *		A small, fast HTTP/1.1 receiver for benchmarks and load tests.
 *
 * Listens on 127.0.0.1, prints "port N" and answers every POST.  One process,
 * one thread, epoll.  Requests may be pipelined.  Counters are printed on
 * SIGUSR1 and at the end (SIGTERM, SIGINT) as one line:
 *
 *		requests N distinct N duplicates N failed N connections N
 *
 * distinct and duplicates count webhook-id values, and only with --distinct.
 *
 *	--port N		listen on this port instead of a free one
 *	--status N		answer with this status (204)
 *	--body TEXT		answer with this body (none; a status other than 204 is implied: 200)
 *	--delay-ms N	wait so long before each answer
 *	--fail-every N	answer every Nth request with 500
 *	--fail-key KEY	answer requests with this outbox-key with 500
 *	--distinct		count distinct webhook-ids and repeated ones
 *	--record FILE	append "arrival-microseconds webhook-id" for each request
 *					(CLOCK_REALTIME)
 *
 *-------------------------------------------------------------------------
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define FIRST_BUFFER 4096
#define MAX_REQUEST (300 * 1024 * 1024)
#define MAX_ID 64

typedef struct Connection
{
	int			fd;
	char	   *in;
	size_t		in_len;
	size_t		in_room;
	char	   *out;
	size_t		out_len;
	size_t		out_room;
	int			waiting;		/* answers that are being delayed */
	bool		closing;		/* the sender has finished */
	bool		dead;			/* close once nothing is delayed any more */
} Connection;

/* An answer that is to be sent later.  The delay is constant: a queue will do. */
typedef struct Delayed
{
	Connection *connection;
	int64_t		due_us;
	bool		fail;
} Delayed;

static int	status = 204;
static const char *answer_body = "";
static long delay_ms;
static long fail_every;
static const char *fail_key;
static bool count_distinct;
static FILE *record;

static int	poll_fd;
static int	timer_fd;

static char ok_answer[4096];
static size_t ok_len;
static char fail_answer[256];
static size_t fail_len;

static uint64_t requests;
static uint64_t duplicates;
static uint64_t failed;
static uint64_t connections;

/* Ids seen, in an open hash table of their text. */
static char (*ids)[MAX_ID];
static size_t ids_room;
static size_t nids;

/* A ring of delayed answers. */
static Delayed *delayed;
static size_t delayed_room;
static size_t delayed_first;
static size_t ndelayed;

static void
die(const char *what)
{
	fprintf(stderr, "receiver: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void *
must(void *memory)
{
	if (memory == NULL)
		die("out of memory");
	return memory;
}

static int64_t
clock_us(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void
print_counters(void)
{
	printf("requests %llu distinct %zu duplicates %llu failed %llu connections %llu\n",
		   (unsigned long long) requests, nids, (unsigned long long) duplicates,
		   (unsigned long long) failed, (unsigned long long) connections);
	fflush(stdout);
	if (record != NULL)
		fflush(record);
}

/*
 * Ids
 */

static size_t
hash_id(const char *id)
{
	uint64_t	hash = 14695981039346656037ULL;

	while (*id != '\0')
		hash = (hash ^ (unsigned char) *id++) * 1099511628211ULL;
	return (size_t) (hash ^ (hash >> 29));
}

/* Where an id is or would be. */
static size_t
find_id(const char *id)
{
	size_t		place = hash_id(id) & (ids_room - 1);

	while (ids[place][0] != '\0' && strcmp(ids[place], id) != 0)
		place = (place + 1) & (ids_room - 1);
	return place;
}

static void
grow_ids(void)
{
	char		(*old)[MAX_ID] = ids;
	size_t		old_room = ids_room;

	ids_room = old_room > 0 ? old_room * 2 : 1 << 16;
	ids = must(calloc(ids_room, MAX_ID));
	for (size_t i = 0; i < old_room; i++)
		if (old[i][0] != '\0')
			memcpy(ids[find_id(old[i])], old[i], MAX_ID);
	free(old);
}

static void
note_id(const char *id)
{
	size_t		place;

	if (nids * 2 >= ids_room)
		grow_ids();
	place = find_id(id);
	if (ids[place][0] != '\0')
	{
		duplicates++;
		return;
	}
	strcpy(ids[place], id);
	nids++;
}

/*
 * Connections
 */

static void
watch(Connection *c, int operation, uint32_t events)
{
	struct epoll_event event = {.events = events,.data.ptr = c};

	if (epoll_ctl(poll_fd, operation, c->fd, &event) < 0)
		die("epoll_ctl");
}

static void
close_connection(Connection *c)
{
	if (!c->dead)
	{
		close(c->fd);
		c->dead = true;
	}
	if (c->waiting > 0)
		return;
	free(c->in);
	free(c->out);
	free(c);
}

static void
append(Connection *c, const char *data, size_t len)
{
	if (c->out_len + len > c->out_room)
	{
		while (c->out_len + len > c->out_room)
			c->out_room = c->out_room > 0 ? c->out_room * 2 : FIRST_BUFFER;
		c->out = must(realloc(c->out, c->out_room));
	}
	memcpy(c->out + c->out_len, data, len);
	c->out_len += len;
}

/* Send what there is.  False: the connection is gone. */
static bool
flush(Connection *c)
{
	ssize_t		sent;

	if (c->out_len == 0)
		return true;
	sent = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);
	if (sent < 0 && errno != EAGAIN)
		return false;
	if (sent == (ssize_t) c->out_len)
	{
		c->out_len = 0;
		return true;
	}
	if (sent > 0)
	{
		memmove(c->out, c->out + sent, c->out_len - sent);
		c->out_len -= sent;
	}
	watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
	return true;
}

static void
arm_timer(void)
{
	struct itimerspec when = {0};
	int64_t		due = delayed[delayed_first].due_us;

	when.it_value.tv_sec = due / 1000000;
	when.it_value.tv_nsec = due % 1000000 * 1000;
	timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void
answer_later(Connection *c, bool fail)
{
	if (ndelayed == delayed_room)
	{
		size_t		room = delayed_room > 0 ? delayed_room * 2 : 1024;
		Delayed    *more = must(malloc(room * sizeof(Delayed)));

		for (size_t i = 0; i < ndelayed; i++)
			more[i] = delayed[(delayed_first + i) % delayed_room];
		free(delayed);
		delayed = more;
		delayed_room = room;
		delayed_first = 0;
	}
	delayed[(delayed_first + ndelayed) % delayed_room] = (Delayed)
	{
		.connection = c,.due_us = clock_us(CLOCK_MONOTONIC) + delay_ms * 1000,.fail = fail
	};
	c->waiting++;
	if (ndelayed++ == 0)
		arm_timer();
}

static void
answer(Connection *c, bool fail)
{
	if (fail)
		append(c, fail_answer, fail_len);
	else
		append(c, ok_answer, ok_len);
}

static void
send_due_answers(void)
{
	int64_t		now = clock_us(CLOCK_MONOTONIC);

	while (ndelayed > 0 && delayed[delayed_first].due_us <= now)
	{
		Delayed		d = delayed[delayed_first];
		Connection *c = d.connection;

		delayed_first = (delayed_first + 1) % delayed_room;
		ndelayed--;
		c->waiting--;
		if (!c->dead)
			answer(c, d.fail);
		if (c->dead || !flush(c) || (c->closing && c->waiting == 0 && c->out_len == 0))
			close_connection(c);
	}
	if (ndelayed > 0)
		arm_timer();
}

/* The value of a header within a request's head, or NULL. */
static const char *
find_header(const char *head, const char *end, const char *name, size_t *len)
{
	size_t		name_len = strlen(name);

	for (const char *line = memchr(head, '\n', end - head); line != NULL && ++line < end;
		 line = memchr(line, '\n', end - line))
	{
		const char *value;
		const char *stop;

		if ((size_t) (end - line) <= name_len || line[name_len] != ':' ||
			strncasecmp(line, name, name_len) != 0)
			continue;
		value = line + name_len + 1;
		while (*value == ' ')
			value++;
		stop = memchr(value, '\r', end - value);
		*len = stop != NULL ? (size_t) (stop - value) : 0;
		return value;
	}
	return NULL;
}

static void
note_request(const char *head, const char *end)
{
	char		id[MAX_ID] = "";
	const char *value;
	size_t		len;

	requests++;
	if (!count_distinct && record == NULL)
		return;
	value = find_header(head, end, "webhook-id", &len);
	if (value != NULL)
	{
		if (len >= MAX_ID)
			len = MAX_ID - 1;
		memcpy(id, value, len);
	}
	if (count_distinct && id[0] != '\0')
		note_id(id);
	if (record != NULL)
		fprintf(record, "%lld %s\n", (long long) clock_us(CLOCK_REALTIME), id);
}

static bool
has_key(const char *head, const char *end, const char *key)
{
	size_t		len;
	const char *value = find_header(head, end, "outbox-key", &len);

	return value != NULL && len == strlen(key) && memcmp(value, key, len) == 0;
}

/* How long the first request in the buffer is; 0: not all of it is there; -1: nonsense. */
static ssize_t
request_length(Connection *c, const char *head, size_t available, size_t *head_len)
{
	const char *end = memmem(head, available, "\r\n\r\n", 4);
	const char *value;
	size_t		len;
	size_t		total;

	if (end == NULL)
		return available > FIRST_BUFFER * 32 ? -1 : 0;
	*head_len = end + 4 - head;
	value = find_header(head, end + 2, "content-length", &len);
	total = *head_len + (value != NULL ? strtoull(value, NULL, 10) : 0);
	if (total > MAX_REQUEST)
		return -1;
	return total <= available ? (ssize_t) total : 0;
}

/* Answer every request that is complete.  False: the connection is to be closed. */
static bool
take_requests(Connection *c)
{
	size_t		done = 0;

	for (;;)
	{
		size_t		head_len;
		ssize_t		len = request_length(c, c->in + done, c->in_len - done, &head_len);
		bool		fail;

		if (len < 0)
			return false;
		if (len == 0)
			break;
		note_request(c->in + done, c->in + done + head_len);
		fail = (fail_every > 0 && requests % fail_every == 0) ||
			(fail_key != NULL && has_key(c->in + done, c->in + done + head_len, fail_key));
		if (fail)
			failed++;
		if (delay_ms > 0)
			answer_later(c, fail);
		else
			answer(c, fail);
		done += len;
	}
	if (done > 0)
	{
		memmove(c->in, c->in + done, c->in_len - done);
		c->in_len -= done;
	}
	return true;
}

static void
serve(Connection *c, uint32_t events)
{
	ssize_t		got;

	if (events & EPOLLOUT)
		watch(c, EPOLL_CTL_MOD, EPOLLIN);
	if (c->in_len == c->in_room)
	{
		c->in_room *= 2;
		c->in = must(realloc(c->in, c->in_room));
	}
	got = recv(c->fd, c->in + c->in_len, c->in_room - c->in_len, 0);
	if (got > 0)
		c->in_len += got;
	else if (got == 0)
	{
		c->closing = true;
		if (c->waiting > 0)
		{
			/* The sender half-closed; it may still read what is delayed. */
			watch(c, EPOLL_CTL_MOD, 0);
			return;
		}
	}
	if ((got < 0 && errno != EAGAIN) || !take_requests(c) || !flush(c) ||
		(c->closing && c->waiting == 0 && c->out_len == 0))
		close_connection(c);
}

static void
accept_all(int listener)
{
	int			one = 1;
	int			fd;

	while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
	{
		Connection *c = must(calloc(1, sizeof(Connection)));

		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		c->fd = fd;
		c->in_room = FIRST_BUFFER;
		c->in = must(malloc(c->in_room));
		connections++;
		watch(c, EPOLL_CTL_ADD, EPOLLIN);
	}
}

/*
 * Setting up
 */

static void
prepare_answers(void)
{
	if (answer_body[0] != '\0' || status != 204)
		ok_len = snprintf(ok_answer, sizeof(ok_answer),
						  "HTTP/1.1 %d Answer\r\nContent-Length: %zu\r\n\r\n%s",
						  answer_body[0] != '\0' && status == 204 ? 200 : status,
						  strlen(answer_body), answer_body);
	else
		ok_len = snprintf(ok_answer, sizeof(ok_answer), "HTTP/1.1 204 No Content\r\n\r\n");
	if (ok_len >= sizeof(ok_answer))
	{
		fprintf(stderr, "receiver: the body is too long\n");
		exit(1);
	}
	fail_len = snprintf(fail_answer, sizeof(fail_answer),
						"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 6\r\n\r\nfailed");
}

static int
listen_on(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t	len = sizeof(address);
	int			one = 1;
	int			fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address.sin_port = htons(port);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (struct sockaddr *) &address, sizeof(address)) < 0 || listen(fd, 4096) < 0 ||
		getsockname(fd, (struct sockaddr *) &address, &len) < 0)
		die("could not listen");
	printf("port %d\n", ntohs(address.sin_port));
	fflush(stdout);
	return fd;
}

static int
watch_signals(void)
{
	sigset_t	set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static int
read_options(int argc, char **argv)
{
	static const struct option options[] = {
		{"port", required_argument, NULL, 'p'},
		{"status", required_argument, NULL, 's'},
		{"body", required_argument, NULL, 'b'},
		{"delay-ms", required_argument, NULL, 'd'},
		{"fail-every", required_argument, NULL, 'f'},
		{"fail-key", required_argument, NULL, 'k'},
		{"distinct", no_argument, NULL, 'u'},
		{"record", required_argument, NULL, 'r'},
		{0}
	};
	int			port = 0;
	int			c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
	{
		switch (c)
		{
			case 'p':
				port = atoi(optarg);
				break;
			case 's':
				status = atoi(optarg);
				break;
			case 'b':
				answer_body = optarg;
				break;
			case 'd':
				delay_ms = atol(optarg);
				break;
			case 'f':
				fail_every = atol(optarg);
				break;
			case 'k':
				fail_key = optarg;
				break;
			case 'u':
				count_distinct = true;
				break;
			case 'r':
				record = fopen(optarg, "a");
				if (record == NULL)
					die(optarg);
				/* Whoever measures latency reads along. */
				setvbuf(record, NULL, _IOLBF, 0);
				break;
			default:
				exit(2);
		}
	}
	return port;
}

int
main(int argc, char **argv)
{
	static int	listener;
	static int	signal_fd;
	struct epoll_event events[256];
	int			port = read_options(argc, argv);

	prepare_answers();
	signal_fd = watch_signals();
	poll_fd = epoll_create1(EPOLL_CLOEXEC);
	timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (poll_fd < 0 || timer_fd < 0 || signal_fd < 0)
		die("could not start");
	listener = listen_on(port);
	epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener,
			  &(struct epoll_event) {.events = EPOLLIN,.data.ptr = &listener});
	epoll_ctl(poll_fd, EPOLL_CTL_ADD, signal_fd,
			  &(struct epoll_event) {.events = EPOLLIN,.data.ptr = &signal_fd});
	epoll_ctl(poll_fd, EPOLL_CTL_ADD, timer_fd,
			  &(struct epoll_event) {.events = EPOLLIN,.data.ptr = &timer_fd});
	for (;;)
	{
		int			n = epoll_wait(poll_fd, events, 256, -1);

		for (int i = 0; i < n; i++)
		{
			void	   *who = events[i].data.ptr;
			struct signalfd_siginfo info;
			uint64_t	expirations;

			if (who == &listener)
				accept_all(listener);
			else if (who == &timer_fd)
			{
				if (read(timer_fd, &expirations, sizeof(expirations)) > 0)
					send_due_answers();
			}
			else if (who == &signal_fd)
			{
				if (read(signal_fd, &info, sizeof(info)) != sizeof(info))
					continue;
				print_counters();
				if (info.ssi_signo != SIGUSR1)
					return 0;
			}
			else
				serve(who, events[i].events);
		}
	}
}
