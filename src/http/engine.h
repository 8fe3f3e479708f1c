/*-------------------------------------------------------------------------
 *
 * engine.h
 *		libcurl, driven by our poller: what both transports share.
 *
 * Promises: the one place that starts libcurl, that asks the address filter,
 * and that hears what libcurl has to say of its sockets and its timer.  An
 * engine is one multi handle; the jobs that it runs are in job.h.
 *
 * Process: the dispatcher.  Single-threaded, every signal blocked.  The
 * callbacks that libcurl calls neither raise nor leave by a jump.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_ENGINE_H
#define OUTBOX_HTTP_ENGINE_H

#include <curl/curl.h>

#include "http/poller.h"
#include "http/transport.h"

#if LIBCURL_VERSION_NUM < 0x075700
#error "outbox needs libcurl 7.87 or later"
#endif

typedef struct OutboxEngine
{
	OutboxPolled polled;		/* first: libcurl's sockets in the poller */
	CURLM	   *multi;
	bool		pools;			/* it keeps connections, and bounds them */
	int64_t		timer_at;		/* when libcurl wants to be called, -1: never */
	struct OutboxJob *refused;	/* jobs that were refused a socket by us in libcurl's present action */
} OutboxEngine;

/* Start and stop what the whole process shares.  Counted: every transport calls both. */
extern const char *outbox_engine_startup(const HttpTransportOptions *options);
extern void outbox_engine_configure(const HttpTransportOptions *options);
extern void outbox_engine_shutdown(void);

/* Open and close one multi handle.  NULL or a static message. */
extern const char *outbox_engine_open(OutboxEngine *engine, bool pools);
extern void outbox_engine_close(OutboxEngine *engine);

/* How many exchanges may be out at once. */
extern int	outbox_engine_capacity(void);

/* Does the filter refuse this address?  Never one of a unix socket. */
extern bool outbox_engine_refuses(const void *address, size_t len);

/* Run libcurl's timer if it is due at now, and tell jobs that they are done. */
extern void outbox_engine_run_timer(OutboxEngine *engine, int64_t now);

/* Close the idle connections of a target in an engine that pools. */
extern void outbox_engine_forget(OutboxEngine *engine, const HttpTarget *target);

/* The file of the system's authorities that libcurl was built to use; NULL if it has none or that is not there. */
extern const char *outbox_engine_authorities(void);

/* How long a connection may be used from its opening. */
extern int64_t outbox_engine_lifetime_us(void);

/* Changes whenever outbox_engine_configure() changed something options come from. */
extern unsigned outbox_engine_settings(void);

#endif							/* OUTBOX_HTTP_ENGINE_H */
