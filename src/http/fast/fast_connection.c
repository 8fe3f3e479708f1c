/*-------------------------------------------------------------------------
 *
 * fast_connection.c
 *		One connection of the transport "fast"; see fast_connection.h.
 *
 * In the steady state an exchange costs one sendmsg, one recv and its share
 * of an epoll_wait: the socket stays registered, nothing is allocated, and an
 * answer that comes in one piece is read without a second call.
 *
 * A receiver may close a connection that rests at any time, or send on it what
 * nobody asked for.  So each is looked at before it is used again.  Where an
 * end shows only after the request was written, and before a byte of an answer
 * came, the request goes out once more on a new connection, and the exchange
 * says so.
 *
 * A connection may also die without a word, with whatever lies between: then a
 * request is sent into the void.  That shows by its not being acknowledged, or
 * by the timeout; others that rest are given up with it, so that each costs a
 * request at most, and the next goes out on a new connection.
 *
 *-------------------------------------------------------------------------
 */
#include "http/fast/fast_connection.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include "http/clock.h"
#include "http/http1_answer.h"
#include "http/sockets.h"

/* Rests longer than this are ended by us, when there is an occasion. */
#define LONGEST_REST_US (60 * INT64_C(1000000))

/* The lifetimes of connections that were opened together end in so many steps, within a quarter of a lifetime. */
#define LIFETIME_STEPS 16

/* Closed connections whose memory a target keeps. */
#define KEPT_SPARES 8

/* Bodies up to this size are sent in one TLS record with their head. */
#define JOINED_BODY 8192

/* Bytes read at once, and how often before the next connection has its turn. */
#define READ_SIZE 65536
#define READ_ROUNDS 16

/* Bytes of a body written at once, and how often before the next connection has its turn. */
#define WRITE_SIZE (128 * 1024)
#define WRITE_ROUNDS 4

/* How old a connection may get by libcurl's reckoning, in seconds: any age, as we reckon ourselves. */
#define ANY_AGE (10 * 365 * 24 * 3600L)

typedef enum Phase
{
	OPENING,					/* libcurl is at work */
	BUSY,						/* carries an exchange */
	RESTING,
	SPARE						/* closed */
} Phase;

typedef struct Connection
{
	OutboxJob	job;			/* first: opens it, and is it as long as it lives under TLS */
	OutboxPolled polled;
	OutboxDeadline deadline;
	OutboxLink	all;			/* among all but the spare ones */
	OutboxLink	resting;		/* among the resting ones of every target, or nowhere */
	OutboxLink	of_target;		/* among the resting or the spare ones of its target */
	OutboxLink	unread;			/* among those with more to read than their turn allowed, or nowhere */
	FastTarget *target;
	HttpExchange *exchange;		/* NULL: RESTING or SPARE */
	Phase		phase;
	int			fd;
	bool		used;			/* has carried an exchange */
	bool		cut;			/* its request could not be written whole */
	bool		gone;			/* libcurl found it dead and closed it */
	bool		second;			/* carries an exchange that was sent before on another one */
	bool		enough;			/* has been read of the answer's body */
	int64_t		rests_since;
	int64_t		lives_until;	/* not to be used again after that */
	Http1Buffer out;			/* the head, and the body where it is joined */
	size_t		out_done;
	size_t		body_len;		/* of the body that is not joined */
	size_t		body_done;
	int			part;			/* of a body in parts, the one that is being written */
	size_t		part_done;
	Http1Parser parser;
	struct sockaddr_storage peer;
	socklen_t	peer_len;
} Connection;

/* What an attempt to read or write came to, when it was no number of bytes. */
#define IO_AGAIN (-1)
#define IO_DEAD (-2)

static OutboxEngine engine;
static OutboxDeadlines deadlines;
static OutboxLink all = OUTBOX_LIST(all);
static OutboxLink resting = OUTBOX_LIST(resting);	/* longest first */
static OutboxLink unread = OUTBOX_LIST(unread);
static int	nconnections;
static char read_buffer[READ_SIZE];

static bool open_connection(FastTarget *target, HttpExchange *exchange, int descriptors, bool second);

/*
 * Sockets
 */

static ssize_t
io_result(ssize_t n)
{
	if (n >= 0)
		return n;

	/* A kernel that is short of memory may have some later. */
	return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ||
		errno == ENOBUFS || errno == ENOMEM ? IO_AGAIN : IO_DEAD;
}

/* What curl_easy_send() or curl_easy_recv() came to. */
static ssize_t
curl_io_result(CURLcode result, size_t n)
{
	if (result == CURLE_OK)
		return (ssize_t) n;
	return result == CURLE_AGAIN ? IO_AGAIN : IO_DEAD;
}

static ssize_t
receive(Connection *connection)
{
	CURLcode	result;
	size_t		n = 0;

	if (!connection->target->tls)
		return io_result(recv(connection->fd, read_buffer, READ_SIZE, 0));
	result = curl_easy_recv(connection->job.easy, read_buffer, READ_SIZE, &n);
	return curl_io_result(result, n);
}

static ssize_t
transmit_tls(Connection *connection, const char *data, size_t len)
{
	size_t		n = 0;
	CURLcode	result = curl_easy_send(connection->job.easy, data, len, &n);

	return curl_io_result(result, n);
}

static ssize_t
transmit_plain(Connection *connection, const char *head, size_t head_len, const char *body, size_t body_len)
{
	struct iovec parts[2] = {
		{.iov_base = (char *) head,.iov_len = head_len},
		{.iov_base = (char *) body,.iov_len = body_len}
	};
	struct msghdr message = {.msg_iov = parts,.msg_iovlen = body_len > 0 ? 2 : 1};

	return io_result(sendmsg(connection->fd, &message, MSG_NOSIGNAL));
}

/* Where the rest of the body begins, and how much of it lies there. */
static const char *
rest_of_body(const Connection *connection, size_t *len)
{
	const HttpExchange *exchange = connection->exchange;
	const struct iovec *part;

	*len = connection->body_len - connection->body_done;
	if (*len == 0 || exchange->nparts == 0)
		return exchange->body + connection->body_done;
	part = &exchange->parts[connection->part];
	*len = part->iov_len - connection->part_done;
	return (const char *) part->iov_base + connection->part_done;
}

/*
 * Write some of what is left of the request, which is not nothing.  Of a large
 * body so much that there is an end to it; TLS wants the same again if it
 * could not be written.
 */
static ssize_t
transmit(Connection *connection)
{
	const char *head = connection->out.data + connection->out_done;
	size_t		head_len = connection->out.len - connection->out_done;
	size_t		body_len;
	const char *body = rest_of_body(connection, &body_len);
	ssize_t		n;

	if (body_len > WRITE_SIZE)
		body_len = WRITE_SIZE;

	if (!connection->target->tls)
		n = transmit_plain(connection, head, head_len, body, body_len);
	else if (head_len > 0)
		n = transmit_tls(connection, head, head_len);
	else
		n = transmit_tls(connection, body, body_len);
	return n == 0 ? IO_AGAIN : n;
}

static bool
is_written(const Connection *connection)
{
	return connection->out_done == connection->out.len && connection->body_done == connection->body_len;
}

static void
free_connection(Connection *connection)
{
	outbox_job_free(&connection->job);
	outbox_http1_free(&connection->out);
	free(connection);
}

static void
close_connection(Connection *connection)
{
	FastTarget *target = connection->target;

	if (connection->phase == OPENING || target->tls)
		outbox_job_stop(&connection->job);
	else
		outbox_socket_close(connection->fd);
	connection->fd = -1;
	outbox_deadline_clear(&deadlines, &connection->deadline);
	outbox_list_remove(&connection->all);
	outbox_list_remove(&connection->resting);
	outbox_list_remove(&connection->of_target);
	outbox_list_remove(&connection->unread);
	connection->phase = SPARE;
	connection->exchange = NULL;
	nconnections--;
	target->nconnections--;
	if (target->nspare < KEPT_SPARES)
	{
		outbox_list_append(&target->spare, &connection->of_target);
		target->nspare++;
		return;
	}
	free_connection(connection);
}

/*
 * What a connection's life tells of those beside it
 */

/* So long from its opening a connection may be used, and not all that were opened at once end at once. */
static int64_t
lifetime(void)
{
	static unsigned opened_so_far;
	int64_t		most = outbox_engine_lifetime_us();

	return most - most / 4 * (opened_so_far++ % LIFETIME_STEPS) / LIFETIME_STEPS;
}

/* One that had rested was dead: so may be the others.  The next request gets a new one. */
static void
distrust_resting(FastTarget *target)
{
	while (!outbox_list_is_empty(&target->resting))
		close_connection(OUTBOX_LINKED(Connection, of_target, target->resting.next));
}

/* Has the receiver's kernel acknowledged none of what was written of this request? */
static bool
is_unacknowledged(const Connection *connection)
{
	size_t		written = connection->out_done + connection->body_done;
	int			bytes;

	return connection->peer.ss_family != AF_UNIX && ioctl(connection->fd, SIOCOUTQ, &bytes) == 0 &&
		written > 0 && (size_t) bytes >= written;
}

/*
 * Has nobody heard of this request although the kernel sent it again?  A
 * receiver that is merely slow has a kernel that acknowledges.
 */
static bool
is_unheard(const Connection *connection)
{
	struct tcp_info info;
	socklen_t	len = sizeof(info);

	return is_unacknowledged(connection) &&
		getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_retransmits > 0;
}

/*
 * Did the receiver send what has just come before any of the request had
 * reached it?  Then it is no answer to that, whatever it looks like: what a
 * receiver sends acknowledges all that it has received by then.  Of long
 * requests under TLS it is not known how many bytes they are on the wire.
 */
static bool
came_unasked(const Connection *connection)
{
	return !(connection->target->tls && connection->body_len > 0) && is_unacknowledged(connection);
}

/*
 * Ends of exchanges
 */

static void
let_rest(Connection *connection)
{
	FastTarget *target = connection->target;
	int			most = target->target->max_connections;

	outbox_list_remove(&connection->unread);
	connection->phase = RESTING;
	connection->rests_since = connection->exchange->done_us;
	connection->exchange = NULL;
	connection->used = true;
	outbox_deadline_clear(&deadlines, &connection->deadline);
	outbox_list_append(&target->resting, &connection->of_target);
	outbox_list_append(&resting, &connection->resting);
	if ((most > 0 && target->nconnections > most) || connection->rests_since >= connection->lives_until)
		close_connection(connection);
}

/* The exchange is over and the connection with it. */
static void
fail(Connection *connection, HttpFailure failure, const char *message)
{
	/* What could not be sent a second time was sent once. */
	if (failure == HTTP_NOT_SENT && connection->second)
		failure = HTTP_FAILED_CONNECT;
	outbox_exchange_finish(connection->exchange, failure, message);
	close_connection(connection);
}

/* There is no memory to send with. */
static void
fail_for_memory(Connection *connection)
{
	connection->exchange->shortage = HTTP_LACKS_MEMORY;
	fail(connection, HTTP_NOT_SENT, "out of memory");
}

static void
answered(Connection *connection, bool more_came)
{
	outbox_exchange_finish(connection->exchange, HTTP_ANSWERED, NULL);
	if (connection->parser.reusable && is_written(connection) && !connection->cut && !more_came)
		let_rest(connection);
	else
		close_connection(connection);
}

/*
 * The connection ended before the exchange did.  One that had rested may
 * have been closed by the receiver meanwhile: if it said nothing at all, the
 * request goes out again, once, because a new connection has not rested.
 */
static void
connection_lost(Connection *connection, const char *error)
{
	FastTarget *target = connection->target;
	HttpExchange *exchange = connection->exchange;
	bool		sent = connection->out_done > 0;

	if (connection->parser.started)
	{
		fail(connection, HTTP_FAILED_BODY, error);
		return;
	}
	if (!connection->used)
	{
		if (target->tls && outbox_job_was_alerted(&connection->job))
			fail(connection, HTTP_FAILED_TLS, connection->job.error);
		else
			fail(connection, HTTP_FAILED_CONNECT, error);
		return;
	}
	close_connection(connection);
	if (!open_connection(target, exchange, 1, sent))
		outbox_exchange_finish(exchange, sent ? HTTP_FAILED_CONNECT : HTTP_NOT_SENT,
							   "a kept connection was closed, and no other could be opened");
}

/*
 * What came is no answer to this request.  On a kept connection it belongs to
 * an earlier one, as would all that follows: the request goes out again on a
 * new one, as if nothing had come.
 */
static void
lost_step(Connection *connection)
{
	static const char error[] = "an answer came before the request could have been received";

	if (connection->used)
		connection_lost(connection, error);
	else
		fail(connection, HTTP_FAILED_BODY, error);
}

/*
 * Reading
 */

/* Read what is there.  The exchange may be over afterwards, and the connection gone. */
static void
read_answer(Connection *connection)
{
	for (int round = 0; round < READ_ROUNDS; round++)
	{
		ssize_t		n = receive(connection);
		size_t		used;

		if (n == IO_AGAIN)
			return;
		if (n == IO_DEAD)
		{
			if (connection->used)
				distrust_resting(connection->target);
			connection_lost(connection, "the connection was reset");
			return;
		}
		if (n > 0 && !connection->parser.started && !connection->cut && came_unasked(connection))
		{
			lost_step(connection);
			return;
		}
		if (n == 0)
		{
			if (outbox_http1_eof(&connection->parser) == HTTP1_DONE)
				answered(connection, false);
			else
				connection_lost(connection, connection->parser.error);
			return;
		}
		switch (outbox_http1_read_answer(&connection->parser, read_buffer, n, &used, connection->exchange, &connection->enough))
		{
			case HTTP1_DONE:
				answered(connection, used < (size_t) n);
				return;
			case HTTP1_BAD:
				fail(connection, HTTP_FAILED_BODY, connection->parser.error);
				return;
			case HTTP1_MORE:
				break;
		}
		if (connection->enough)
		{
			answered(connection, true);
			return;
		}

		/* A plain socket is empty now; TLS may hold back what it has decoded. */
		if (n < READ_SIZE && !connection->target->tls)
			return;
	}

	/* What TLS holds back makes no socket readable. */
	outbox_list_remove(&connection->unread);
	outbox_list_append(&unread, &connection->unread);
}

/* Give everybody who had more to read than a turn allowed another turn. */
static void
read_unread(void)
{
	OutboxLink	turn = OUTBOX_LIST(turn);

	/* Those that still have more go to the list anew, for the next time. */
	outbox_list_move(&turn, &unread);
	while (!outbox_list_is_empty(&turn))
	{
		Connection *connection = OUTBOX_LINKED(Connection, unread, turn.next);

		outbox_list_remove(&connection->unread);
		read_answer(connection);
	}
}

/*
 * Writing
 */

static void
advance_body(Connection *connection, size_t n)
{
	const HttpExchange *exchange = connection->exchange;

	connection->body_done += n;
	if (exchange->nparts == 0)
		return;
	connection->part_done += n;
	if (connection->part_done == exchange->parts[connection->part].iov_len)
	{
		connection->part++;
		connection->part_done = 0;
	}
}

/* Write what the socket takes, and a turn allows. False: the exchange is over or elsewhere. */
static bool
write_request(Connection *connection)
{
	for (int round = 0; !is_written(connection); round++)
	{
		ssize_t		n = round < WRITE_ROUNDS ? transmit(connection) : IO_AGAIN;
		size_t		of_head = connection->out.len - connection->out_done;

		if (n == IO_AGAIN)
		{
			outbox_poller_want(connection->fd, OUTBOX_POLL_IN | OUTBOX_POLL_OUT, &connection->polled);
			return true;
		}
		if (n == IO_DEAD)
		{
			/* Some answer before they have read everything, and close. */
			connection->cut = true;
			connection->out.len = connection->out_done;
			connection->body_len = connection->body_done;
			break;
		}
		if (connection->second)
			connection->exchange->resent = true;
		if ((size_t) n < of_head)
			of_head = n;
		connection->out_done += of_head;
		if ((size_t) n > of_head)
			advance_body(connection, n - of_head);
	}
	outbox_poller_want(connection->fd, OUTBOX_POLL_IN, &connection->polled);
	if (!connection->cut)
		return true;
	read_answer(connection);
	return false;
}

static int64_t
answer_due(const Connection *connection)
{
	const HttpExchange *exchange = connection->exchange;

	return exchange->sent_us + (int64_t) exchange->target->timeout_ms * 1000;
}

/*
 * A connection that had rested may be dead.  A new one would be open within
 * the time for connecting: by then see whether anybody is there.
 */
static void
judge_early(Connection *connection)
{
	int64_t		at = connection->exchange->sent_us + (int64_t) connection->target->target->connect_timeout_ms * 1000;

	if (at < connection->deadline.at)
		outbox_deadline_set(&deadlines, &connection->deadline, at);
}

/* The connection is open and nothing else is on it: send. */
static void
send_request(Connection *connection)
{
	FastTarget *target = connection->target;
	HttpExchange *exchange = connection->exchange;
	Http1Buffer *out = &connection->out;
	bool		joined = target->tls && exchange->nparts == 0 && exchange->body_len <= JOINED_BODY;

	outbox_http1_start(&connection->parser);
	connection->phase = BUSY;
	connection->cut = false;
	connection->enough = false;
	connection->out_done = 0;
	connection->body_done = 0;
	connection->part = 0;
	connection->part_done = 0;
	connection->body_len = joined ? 0 : exchange->body_len;
	exchange->reused = connection->used;
	if (!outbox_http1_write_head(out, &target->shared, exchange) ||
		(joined && !outbox_http1_reserve(out, exchange->body_len)))
	{
		fail_for_memory(connection);
		return;
	}
	if (joined && exchange->body_len > 0)
		outbox_http1_append(out, exchange->body, exchange->body_len);
	outbox_deadline_set(&deadlines, &connection->deadline, answer_due(connection));
	if (connection->used)
		judge_early(connection);
	write_request(connection);
}

/*
 * Opening
 */

/* libcurl has connected, or given up. */
static void
opened(OutboxJob *job, CURLcode result)
{
	Connection *connection = (Connection *) job;
	HttpFailure failure = outbox_job_failure(job, result, false);
	curl_socket_t fd = CURL_SOCKET_BAD;

	if (failure != HTTP_ANSWERED)
	{
		if (failure == HTTP_NOT_SENT)
			connection->exchange->shortage = outbox_job_shortage(job, result);
		fail(connection, failure, outbox_job_message(job, failure, result));
		return;
	}
	connection->target->state.reached = true;
	if (curl_easy_getinfo(job->easy, CURLINFO_ACTIVESOCKET, &fd) != CURLE_OK || fd == CURL_SOCKET_BAD)
	{
		fail(connection, HTTP_NOT_SENT, "the connection was closed before it was used");
		return;
	}
	if (!connection->target->tls)
	{
		outbox_socket_adopt(fd);
		outbox_job_stop(job);
	}
	connection->phase = BUSY;
	connection->fd = fd;
	connection->peer_len = sizeof(connection->peer);
	if (getpeername(fd, (struct sockaddr *) &connection->peer, &connection->peer_len) < 0)
		connection->peer_len = 0;
	if (outbox_poller_want(fd, OUTBOX_POLL_IN, &connection->polled))
		send_request(connection);
	else
		fail_for_memory(connection);
}

/*
 * Is a resting connection open, and has nothing come on it?  Under TLS a new
 * ticket may have, which is none of our business, and what came with the last
 * answer may have been read and decoded already: only reading tells.
 */
static bool
is_still_alive(Connection *connection)
{
	char		byte;

	if (connection->gone)
		return false;
	if (connection->target->tls)
		return receive(connection) == IO_AGAIN;
	return io_result(recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT)) == IO_AGAIN;
}

static void
socket_ready(OutboxPolled *polled, int fd, unsigned events)
{
	Connection *connection = OUTBOX_LINKED(Connection, polled, polled);

	if (connection->phase == RESTING)
	{
		if (!is_still_alive(connection))
			close_connection(connection);
		return;
	}
	if ((events & OUTBOX_POLL_OUT) && !write_request(connection))
		return;
	if (events & OUTBOX_POLL_IN)
		read_answer(connection);
}

/*
 * libcurl, about to open another connection, found this one dead and closes
 * it.  What follows from that has to wait until it is done with that.
 */
static void
socket_closed(OutboxPolled *polled, int fd)
{
	Connection *connection = OUTBOX_LINKED(Connection, polled, polled);

	connection->gone = true;
	if (connection->phase == BUSY)
		outbox_deadline_set(&deadlines, &connection->deadline, 0);
}

/* A closed connection to use again, or a new one. */
static Connection *
unused_connection(FastTarget *target)
{
	Connection *connection;

	if (target->nspare > 0)
	{
		connection = OUTBOX_LINKED(Connection, of_target, target->spare.next);
		outbox_list_remove(&connection->of_target);
		target->nspare--;
		return connection;
	}
	connection = calloc(1, sizeof(Connection));
	if (connection == NULL)
		return NULL;
	connection->target = target;
	connection->job.done = opened;
	connection->polled.ready = socket_ready;
	connection->polled.closed = socket_closed;
	outbox_list_init(&connection->all);
	outbox_list_init(&connection->resting);
	outbox_list_init(&connection->of_target);
	outbox_list_init(&connection->unread);
	return connection;
}

static bool
prepare(Connection *connection)
{
	OutboxJob  *job = &connection->job;

	return outbox_job_prepare(job, connection->target->target) &&
		outbox_job_accepts(job, curl_easy_setopt(job->easy, CURLOPT_CONNECT_ONLY, 1L)) &&
		outbox_job_accepts(job, curl_easy_setopt(job->easy, CURLOPT_MAXAGE_CONN, ANY_AGE)) &&
		outbox_job_accepts(job, curl_easy_setopt(job->easy, CURLOPT_MAXLIFETIME_CONN, ANY_AGE));
}

/*
 * Have libcurl open a connection for an exchange.  second: it has been sent on
 * another one.  False: there is no room for one; else it is on its way, or over.
 */
static bool
open_connection(FastTarget *target, HttpExchange *exchange, int descriptors, bool second)
{
	Connection *connection;
	int64_t		now = outbox_clock_us();
	int64_t		connected_at,
				answered_at;

	if (!outbox_sockets_fit(descriptors) || !outbox_deadlines_reserve(&deadlines))
		return false;
	connection = unused_connection(target);
	if (connection == NULL)
		return false;
	if (!prepare(connection) || !outbox_job_start(&engine, &connection->job, descriptors))
	{
		bool		refused = connection->job.error[0] != '\0';

		/* What libcurl refuses now it will always refuse: that is the end of the exchange. */
		if (refused)
			outbox_exchange_finish(exchange, HTTP_FAILED_OTHER, connection->job.error);
		free_connection(connection);
		return refused;
	}
	connection->phase = OPENING;
	connection->exchange = exchange;
	connection->fd = -1;
	connection->used = false;
	connection->gone = false;
	connection->second = second;
	connection->lives_until = now + lifetime();
	connection->parser.started = false;
	exchange->transport_data = connection;
	outbox_list_append(&all, &connection->all);
	nconnections++;
	target->nconnections++;
	connected_at = now + (int64_t) target->target->connect_timeout_ms * 1000;
	answered_at = exchange->sent_us + (int64_t) target->target->timeout_ms * 1000;
	outbox_deadline_set(&deadlines, &connection->deadline,
						connected_at < answered_at ? connected_at : answered_at);
	return true;
}

bool
outbox_fast_connect(FastTarget *target, HttpExchange *exchange, int descriptors)
{
	return open_connection(target, exchange, descriptors, false);
}

/*
 * Resting connections
 */

FastReuse
outbox_fast_reuse(FastTarget *target, HttpExchange *exchange)
{
	while (!outbox_list_is_empty(&target->resting))
	{
		/* The one used last is the most likely to be alive. */
		Connection *connection = OUTBOX_LINKED(Connection, of_target, target->resting.previous);

		if (exchange->sent_us >= connection->lives_until || !is_still_alive(connection))
		{
			close_connection(connection);
			continue;
		}
		if (connection->peer_len > 0 && outbox_engine_refuses(&connection->peer, connection->peer_len))
		{
			close_connection(connection);
			return FAST_REFUSED;
		}
		if (!outbox_deadlines_reserve(&deadlines))
			return FAST_NONE_RESTING;
		outbox_list_remove(&connection->resting);
		outbox_list_remove(&connection->of_target);
		connection->exchange = exchange;
		connection->second = false;
		exchange->transport_data = connection;
		send_request(connection);
		return FAST_TAKEN;
	}
	return FAST_NONE_RESTING;
}

bool
outbox_fast_close_oldest(void)
{
	if (outbox_list_is_empty(&resting))
		return false;
	close_connection(OUTBOX_LINKED(Connection, resting, resting.next));
	return true;
}

void
outbox_fast_cancel(HttpExchange *exchange)
{
	close_connection(exchange->transport_data);
}

void
outbox_fast_close_target(FastTarget *target)
{
	distrust_resting(target);
	while (!outbox_list_is_empty(&target->spare))
	{
		Connection *connection = OUTBOX_LINKED(Connection, of_target, target->spare.next);

		outbox_list_remove(&connection->of_target);
		free_connection(connection);
	}
	target->nspare = 0;
}

/*
 * Time
 */

static void
time_out(Connection *connection)
{
	HttpExchange *exchange = connection->exchange;
	char		message[HTTP_ERROR_LEN];

	if (connection->phase == OPENING)
		snprintf(message, sizeof(message), "no connection within %ld ms",
				 (long) ((connection->deadline.at - exchange->sent_us) / 1000));
	else
		snprintf(message, sizeof(message), "no complete answer within %ld ms", exchange->target->timeout_ms);
	if (connection->used)
		distrust_resting(connection->target);
	fail(connection, HTTP_FAILED_TIMEOUT, message);
}

/* It is early to judge a request on a kept connection, but high time to see whether that is dead. */
static void
look_after(Connection *connection)
{
	if (connection->parser.started || !is_unheard(connection))
	{
		outbox_deadline_set(&deadlines, &connection->deadline, answer_due(connection));
		return;
	}
	distrust_resting(connection->target);
	connection_lost(connection, "a kept connection was dead");
}

void
outbox_fast_judge_timeouts(int64_t now)
{
	OutboxDeadline *first;

	while ((first = outbox_deadlines_first(&deadlines)) != NULL && first->at <= now)
	{
		Connection *connection = OUTBOX_LINKED(Connection, deadline, first);

		if (connection->gone)
			connection_lost(connection, "the connection was closed before an answer");
		else if (connection->phase == BUSY && now < answer_due(connection))
			look_after(connection);
		else
			time_out(connection);
	}
	while (!outbox_list_is_empty(&resting) &&
		   now - OUTBOX_LINKED(Connection, resting, resting.next)->rests_since > LONGEST_REST_US)
		outbox_fast_close_oldest();
}

int64_t
outbox_fast_next_event(void)
{
	OutboxDeadline *first = outbox_deadlines_first(&deadlines);

	if (!outbox_list_is_empty(&unread))
		return 0;
	return outbox_clock_earlier(engine.timer_at, first != NULL ? first->at : -1);
}

void
outbox_fast_run_timer(int64_t now)
{
	outbox_engine_run_timer(&engine, now);
	read_unread();
}

void
outbox_fast_hold_timeouts(bool hold)
{
	for (OutboxLink *link = all.next; link != &all; link = link->next)
	{
		Connection *connection = OUTBOX_LINKED(Connection, all, link);

		if (connection->phase == OPENING)
			outbox_job_hold_timeout(&connection->job, hold);
	}
}

int
outbox_fast_connections(void)
{
	return nconnections;
}

/*
 * Start and end
 */

const char *
outbox_fast_open(void)
{
	return outbox_engine_open(&engine, false);
}

void
outbox_fast_close(void)
{
	while (!outbox_list_is_empty(&all))
	{
		Connection *connection = OUTBOX_LINKED(Connection, all, all.next);
		HttpExchange *exchange = connection->exchange;

		close_connection(connection);
		if (exchange != NULL)
			outbox_exchange_abandon(exchange);
	}
	outbox_engine_close(&engine);
	outbox_deadlines_free(&deadlines);
}
