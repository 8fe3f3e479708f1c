/*-------------------------------------------------------------------------
 *
 * transport.h
 *		The small interface between the dispatcher and whatever speaks HTTP.
 *
 * Implementations live in a library of their own (outbox_http), which only
 * the dispatcher loads, so that no backend ever maps libcurl.  That library
 * knows nothing of PostgreSQL: it includes no header of the server, never
 * raises, never pallocs, and is entered with every signal blocked.
 *
 * Process: the dispatcher only.  Not thread-safe.  Every call returns without
 * waiting for the network; the caller waits on fd() and timeout().
 *
 * Ownership: the caller owns HttpTarget and HttpExchange and everything they
 * point to, and keeps them unchanged from submit() until next_done() hands
 * the exchange back (or cancel() returned).  The response belongs to the
 * transport until release().
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TRANSPORT_H
#define OUTBOX_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define HTTP_ERROR_LEN 256
#define HTTP_HEADER_LEN 256
#define HTTP_KEPT_LEN 2048

/*
 * An answer is read so far and no further (or to capture_limit, where that is
 * more): the connection is closed then, and the status counts.
 */
#define HTTP_LONGEST_ANSWER (1024 * 1024)

/* How an exchange ended, when it was not by a complete answer. */
typedef enum HttpFailure
{
	HTTP_ANSWERED,				/* a complete answer: look at status */
	HTTP_FAILED_DNS,
	HTTP_FAILED_CONNECT,
	HTTP_FAILED_TLS,
	HTTP_FAILED_TIMEOUT,
	HTTP_FAILED_BODY,			/* an answer that is broken, cut short or not HTTP */
	HTTP_FAILED_BLOCKED,		/* the address is in blocked_networks */
	HTTP_FAILED_OTHER,
	HTTP_NOT_SENT				/* nothing left this machine (descriptors, shutdown): no attempt spent */
} HttpFailure;

/* What this machine lacks, when nothing left it. */
typedef enum HttpShortage
{
	HTTP_LACKS_NOTHING,			/* or nobody knows */
	HTTP_LACKS_PORTS,
	HTTP_LACKS_DESCRIPTORS,
	HTTP_LACKS_MEMORY,
	HTTP_LACKS_PERMISSION
} HttpShortage;

/*
 * Where one handler's requests go.  Compared by address: a changed handler
 * gets a new target, and requests already out finish with the old one.
 */
typedef struct HttpTarget
{
	const char *url;
	long		timeout_ms;		/* whole exchange, from sending */
	long		connect_timeout_ms;
	int			http_version;	/* 11 or 20 */
	int			max_connections;	/* the handler's concurrency */
	const char *unix_socket;	/* NULL: TCP */
	const char *tls_ca_file;	/* NULL: the system's */
	const char *tls_certificate_file;
	const char *tls_key_file;
	const char **headers;		/* static "name: value" lines, without line ends */
	int			nheaders;
	void	   *transport_data; /* the transport's own, NULL before the first submit */
} HttpTarget;

typedef struct HttpExchange
{
	/* the request */
	HttpTarget *target;
	const char **headers;		/* "name: value" lines of this message */
	int			nheaders;
	const char *body;
	size_t		body_len;
	const struct iovec *parts;	/* of the body instead, none of them empty */
	int			nparts;			/* 0: it is in body */
	size_t		capture_limit;	/* keep at most so much of the response body */
	const char *const *kept_names;	/* keep headers of these names, at most 255 of them */
	int			nkept_names;

	/* the answer, valid from next_done() to release() */
	HttpFailure failure;
	HttpShortage shortage;		/* with HTTP_NOT_SENT */
	int			status;			/* 0 when none came */
	char		error[HTTP_ERROR_LEN];	/* one line, UTF-8 or ASCII not guaranteed; "" if nothing is wrong */
	char		retry_after[HTTP_HEADER_LEN];	/* "" when absent; cut, never overrun */
	char		outcome[HTTP_HEADER_LEN];	/* outbox-outcome */
	char		content_type[HTTP_HEADER_LEN];	/* the same way */
	char		content_encoding[HTTP_HEADER_LEN];
	char		location[HTTP_HEADER_LEN];	/* where a redirect points, which nobody follows */
	const char *kept;			/* of each header to be kept the number of its name, its value, and NUL */
	size_t		kept_len;		/* at most HTTP_KEPT_LEN; what is more is cut or left out */
	bool		encoded;		/* in a content coding that could not be undone: error says which */
	const char *response;		/* captured start of the body, any bytes, decoded unless encoded */
	size_t		response_len;
	uint64_t	response_total; /* bytes that came, captured or not; > response_len: there is more */
	bool		reused;			/* on a connection that had carried an exchange before */
	bool		resent;			/* the transport sent it twice: a kept connection was found dead */
	int64_t		sent_us;		/* CLOCK_MONOTONIC, microseconds */
	int64_t		done_us;

	void	   *owner;			/* the caller's own */
	void	   *transport_data; /* the transport's own */
	struct HttpExchange *next;	/* the transport's own */
} HttpExchange;

/*
 * Asked with each address about to be connected to (struct sockaddr *) and
 * again when a kept connection is about to be used: true refuses it.  Must
 * not raise or allocate.
 */
typedef bool (*HttpAddressFilter) (void *arg, const void *sockaddr, size_t len);

typedef struct HttpTransportOptions
{
	int			max_in_flight;	/* a bound on connections kept and used */
	int			max_descriptors;	/* 0: what getrlimit says, less a reserve */
	long		connection_lifetime_ms; /* from opening to last use, 0: one minute */
	HttpAddressFilter blocked;	/* NULL: nothing is */
	void	   *blocked_arg;
} HttpTransportOptions;

typedef struct HttpTransport
{
	const char *name;

	/* Once per process.  Returns NULL or a static message that says what failed. */
	const char *(*startup) (const HttpTransportOptions *options);

	/* Change max_in_flight or connection_lifetime_ms later. */
	void		(*configure) (const HttpTransportOptions *options);

	/* One descriptor (epoll or kqueue) that is readable when drive() has something to do. */
	int			(*fd) (void);

	/* Milliseconds until drive() must be called even if fd() stays quiet; -1 for never. */
	long		(*timeout) (void);

	/*
	 * Start an exchange.  True when taken; it will come out of next_done().
	 * False when no descriptor or slot is free now: submit again later.
	 */
	bool		(*submit) (HttpExchange *exchange);

	/* Read and write whatever is ready, judge timeouts, without waiting. */
	void		(*drive) (void);

	/*
	 * Read what has arrived without judging any timeout: called first after
	 * the caller was away for long, so that an answer that is already here
	 * is not taken for late.
	 */
	void		(*catch_up) (void);

	/* The next finished exchange, or NULL. */
	HttpExchange *(*next_done) (void);

	/* Give the response buffers of a finished exchange back. */
	void		(*release) (HttpExchange *exchange);

	/* Abandon an exchange that is out. It does not come out of next_done(). */
	void		(*cancel) (HttpExchange *exchange);

	/* Forget a target: close its idle connections.  Nothing of it may be out. */
	void		(*forget) (HttpTarget *target);

	/*
	 * How many exchanges may be out at once: max_in_flight, or fewer if the
	 * process may not have as many descriptors.  Changes with configure().
	 */
	int			(*capacity) (void);

	/* How many exchanges are out. */
	int			(*in_flight) (void);

	void		(*shutdown) (void);
} HttpTransport;

/* What outbox_http exports; looked up by name with load_external_function. */
typedef const HttpTransport *(*HttpTransportFactory) (const char *name);

/*
 * The exported name carries a checksum of this file, from the Makefile.  Both
 * libraries may have been replaced while a server runs that has loaded only
 * the first: the second is then refused rather than called with structures
 * that it does not know.
 */
#define OUTBOX_HTTP_CONCAT_(a, b) a##b
#define OUTBOX_HTTP_CONCAT(a, b) OUTBOX_HTTP_CONCAT_(a, b)
#define OUTBOX_HTTP_STRING_(x) #x
#define OUTBOX_HTTP_STRING(x) OUTBOX_HTTP_STRING_(x)
#define outbox_http_transport OUTBOX_HTTP_CONCAT(outbox_http_transport_, OUTBOX_TRANSPORT_ABI)
#define OUTBOX_HTTP_FACTORY OUTBOX_HTTP_STRING(outbox_http_transport)

/* name: "curl" (ordinary libcurl transfers) or "fast"; NULL for an unknown one. */
extern const HttpTransport *outbox_http_transport(const char *name);

#endif							/* OUTBOX_TRANSPORT_H */
