/*-------------------------------------------------------------------------
 *
 * engine.h
 *		libcurl, driven by our poller: what both transports share.
 *
 * Promises: the one place that starts libcurl, that turns a target into
 * options of an easy handle, that counts descriptors, that asks the address
 * filter and that says what a CURLcode means.  An engine is one multi handle;
 * a job is one easy handle that it runs.
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
	bool		pools;
	int64_t		timer_at;		/* when libcurl wants to be called, -1: never */
} OutboxEngine;

/* One easy handle and what its callbacks found out. */
typedef struct OutboxJob
{
	CURL	   *easy;
	OutboxEngine *engine;
	HttpTarget *target;
	void		(*done) (struct OutboxJob *job, CURLcode result);
	int			reserved;		/* descriptors set aside until its socket is open */
	int			sends;			/* how often it was about to send: beyond 1 libcurl sent it again */
	bool		blocked;		/* the filter refused an address */
	bool		starved;		/* no descriptor was left for a socket */
	unsigned	settings;		/* which configuration its options come from */
	char		error[CURL_ERROR_SIZE];
} OutboxJob;

/* Start and stop what the whole process shares.  Counted: every transport calls both. */
extern const char *outbox_engine_startup(const HttpTransportOptions *options);
extern void outbox_engine_configure(const HttpTransportOptions *options);
extern void outbox_engine_shutdown(void);

/* Open and close one multi handle.  pools: it keeps connections, and bounds them.  NULL or a static message. */
extern const char *outbox_engine_open(OutboxEngine *engine, bool pools);
extern void outbox_engine_close(OutboxEngine *engine);

/* How many exchanges may be out at once, whatever each of them needs. */
extern int	outbox_engine_capacity(void);

/*
 * How many descriptors an exchange may need until its connection is open: a
 * lookup takes some for a moment, unless the target has been reached before,
 * when a kept connection or libcurl's memory of the address serves as a rule.
 */
extern int	outbox_engine_descriptors(const HttpTarget *target, bool reached);

/* Are so many free? */
extern bool outbox_engine_admits(int descriptors);

/* Does the filter refuse this address? */
extern bool outbox_engine_refuses(const void *address, size_t len);

/*
 * Make job->easy ready for a target: create it with every option that stays,
 * or bring it up to date.  False: out of memory or options that libcurl
 * refuses; job->error says so.
 */
extern bool outbox_job_prepare(OutboxJob *job, HttpTarget *target);

/* Hand a job to libcurl, take it back (before it is done), dispose of it. */
extern bool outbox_job_start(OutboxEngine *engine, OutboxJob *job, int descriptors);
extern void outbox_job_stop(OutboxJob *job);
extern void outbox_job_free(OutboxJob *job);

/* What a result means; answered: some of an answer had come. */
extern HttpFailure outbox_job_failure(const OutboxJob *job, CURLcode result, bool answered);

/*
 * Did the receiver refuse by an alert of TLS?  In TLS 1.3 it may do so, for
 * want of a client certificate say, when the handshake is over for us.
 */
extern bool outbox_job_was_alerted(const OutboxJob *job);

/* One line about a failure and the result it comes from. */
extern const char *outbox_job_message(const OutboxJob *job, HttpFailure failure, CURLcode result);

/* Run libcurl's timer if it is due at now, and tell jobs that they are done. */
extern void outbox_engine_run_timer(OutboxEngine *engine, int64_t now);
extern void outbox_engine_reap(OutboxEngine *engine);

/* Have libcurl judge no connect timeout of a job until it is let again. */
extern void outbox_job_hold_timeout(OutboxJob *job, bool hold);

/* Take an open socket over from libcurl, which is about to close it; and close it. */
extern void outbox_engine_adopt(int fd);
extern void outbox_engine_close_socket(int fd);

/* Close the connections that a target opened and nobody uses. */
extern void outbox_engine_forget(const HttpTarget *target);

/* The user agent, never NULL; "" for none.  Valid until the next configure. */
extern const char *outbox_engine_user_agent(void);

/* Changes whenever outbox_engine_configure() changed something options come from. */
extern unsigned outbox_engine_settings(void);

#endif							/* OUTBOX_HTTP_ENGINE_H */
