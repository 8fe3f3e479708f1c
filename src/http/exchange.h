/*-------------------------------------------------------------------------
 *
 * exchange.h
 *		An exchange on its way through this library, whichever transport
 *		carries it: begun, answered, finished, handed back, released.
 *
 * Promises: the one queue of finished exchanges and the one place where
 * response bodies are kept.  Buffers are reused; what is kept for reuse is
 * bounded.  No curl, no sockets.  Process: the dispatcher.  Single-threaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_EXCHANGE_H
#define OUTBOX_HTTP_EXCHANGE_H

#include "http/transport.h"

/* What a transport keeps at HttpTarget.transport_data begins with this. */
typedef struct OutboxTargetState
{
	const HttpTransport *route; /* who carries this target's exchanges */
	bool		reached;		/* a connection to it has been open */
} OutboxTargetState;

/* Clear the answer and count the exchange as out. */
extern void outbox_exchange_begin(HttpExchange *exchange);

/* Forget what came of an answer: another one follows (1xx, or a second try). */
extern void outbox_exchange_clear_answer(HttpExchange *exchange);

/* Is a header of that name to be kept for the caller? */
extern bool outbox_exchange_wants(const HttpExchange *exchange, const char *name, size_t name_len);

/* A header of the final answer. */
extern void outbox_exchange_header(HttpExchange *exchange, const char *name, size_t name_len,
								   const char *value, size_t value_len);

/*
 * Some of the body.  What exceeds the capture limit is counted, not kept.
 * False: no answer need be longer.  Whatever has come of it counts as the
 * whole, and the connection is of no further use.
 */
extern bool outbox_exchange_body(HttpExchange *exchange, const char *data, size_t len);

/*
 * The exchange is over: queue it for next_done().  message: one line, or NULL.
 * The body of an answer is decoded, or dropped where that cannot be done.
 */
extern void outbox_exchange_finish(HttpExchange *exchange, HttpFailure failure, const char *message);

/* Not to be handed back after all.  Releases the response. */
extern void outbox_exchange_abandon(HttpExchange *exchange);

/* What HttpTransport.next_done, release and in_flight are. */
extern HttpExchange *outbox_exchange_next_done(void);
extern void outbox_exchange_release(HttpExchange *exchange);
extern int	outbox_exchange_in_flight(void);

/* Forget everything, at shutdown. */
extern void outbox_exchange_reset(void);

/*
 * May the caller send this line?  Those that frame the message, steer the
 * connection or invite codings are the transport's own business and left out.
 */
extern bool outbox_header_is_sendable(const char *line);

/* What every request says, so that answers come as they are. */
#define OUTBOX_ACCEPT_ENCODING "accept-encoding: identity"

/* What the caller reads of requests that never left, whichever transport refused them. */
#define OUTBOX_BROKEN_HEADER "a request header holds a line break or has no name"
#define OUTBOX_BLOCKED_ADDRESS "the address is in a blocked network"

/* Does one of the lines hold a line break, or no name? */
extern bool outbox_headers_are_broken(const char **lines, int nlines);

#endif							/* OUTBOX_HTTP_EXCHANGE_H */
