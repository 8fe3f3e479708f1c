/*-------------------------------------------------------------------------
 *
 * fast_connection.h
 *		One connection of the transport "fast", and the exchange it carries.
 *
 * libcurl looks the name up, connects, does TLS and asks the address filter;
 * from then on requests are written and answers read here.  A plain socket is
 * taken over from libcurl, a TLS connection stays its own and is written and
 * read through it.
 *
 * A connection carries one exchange at a time.  When it is done the
 * connection rests with its target or is closed.
 *
 * Process: the dispatcher.  Single-threaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_FAST_CONNECTION_H
#define OUTBOX_FAST_CONNECTION_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "http/deadline.h"
#include "http/exchange.h"
#include "http/fast/http1_parser.h"
#include "http/fast/http1_request.h"
#include "http/job.h"
#include "http/list.h"

/* A target that the fast transport carries. */
typedef struct FastTarget
{
	OutboxTargetState state;	/* first */
	HttpTarget *target;
	bool		broken;			/* one of its headers cannot be sent */
	bool		tls;
	char	   *resource;		/* path and query */
	char	   *authority;		/* of the host header */
	Http1Buffer shared;			/* what its requests begin with */
	bool		shared_written;
	OutboxLink	resting;		/* connections without an exchange, the latest used last */
	OutboxLink	spare;			/* closed ones, kept for their memory */
	int			nspare;
	int			nconnections;	/* open or opening */
} FastTarget;

/* The state that all connections share.  NULL or a static message. */
extern const char *outbox_fast_open(void);
extern void outbox_fast_close(void);

/* How many connections are open or opening. */
extern int	outbox_fast_connections(void);

/* Carry an exchange that has begun on a new connection.  False: out of memory. */
extern bool outbox_fast_connect(FastTarget *target, HttpExchange *exchange, int descriptors);

typedef enum FastReuse
{
	FAST_NONE_RESTING,
	FAST_TAKEN,					/* the exchange is on its way, or over */
	FAST_REFUSED				/* the filter refuses the address now; the connection is closed */
} FastReuse;

/* Carry an exchange that has begun on a resting connection, if one is alive. */
extern FastReuse outbox_fast_reuse(FastTarget *target, HttpExchange *exchange);

/* Stop carrying an exchange, whose connection is closed. */
extern void outbox_fast_cancel(HttpExchange *exchange);

/* Close the connection that has rested longest, of any target.  False: none rests. */
extern bool outbox_fast_close_oldest(void);

/* Close every connection of a target; none carries an exchange. */
extern void outbox_fast_close_target(FastTarget *target);

/* The parts of drive() and timeout() besides the sockets. */
extern void outbox_fast_run_timer(int64_t now);
extern void outbox_fast_judge_timeouts(int64_t now);
extern int64_t outbox_fast_next_event(void);

/* No timeout of a connection that is opening is judged while they are held. */
extern void outbox_fast_hold_timeouts(bool hold);

#endif							/* OUTBOX_FAST_CONNECTION_H */
