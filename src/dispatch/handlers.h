/*-------------------------------------------------------------------------
 *
 * handlers.h
 *		The push handlers as the dispatcher knows them.
 *
 * Process: the dispatcher.  A handler's configuration is immutable once
 * loaded; when its row changes a new OutboxHandler takes its place in the
 * lane, and the old one lives until the last request that uses it has ended.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HANDLERS_H
#define OUTBOX_HANDLERS_H

#include "outbox.h"

#include "format/request.h"
#include "http/transport.h"
#include "policy/breaker.h"
#include "policy/outcome.h"

/* An option is read into its member as a row of the table in handlers.c says. */
typedef struct OutboxHandler
{
	int32		id;
	char	   *name;
	OutboxRequestForm *form;	/* how its requests are written */
	const char *const *logged_headers;	/* of its answers, that are kept in the log */
	int			nlogged_headers;
	int64		fingerprint;	/* of everything below: changed means loaded anew */
	bool		ordered;
	bool		block_on_dead;
	int			concurrency;
	int			batch_size;
	int64		batch_wait;		/* ms */
	double		rate_limit;		/* requests per second, 0: none */
	int			rate_burst;
	OutboxBreakerPolicy breaker;
	char	   *on_settle;		/* NULL: none */
	OutboxRetryPolicy retry;
	HttpTarget	target;
	OutboxRequestOptions request;	/* what form was made of */

	bool		current;		/* a lane points here */
	int			requests;		/* requests that are out with it */
	MemoryContext context;		/* holds all of it */
} OutboxHandler;

/* What one row says: the configuration, or only that it has not changed. */
typedef struct OutboxHandlerRow
{
	int32		id;
	bool		paused;
	int64		fingerprint;

	/* the breaker as it was last written, for a lane that is new */
	OutboxBreakerState breaker;
	TimestampTz breaker_until;	/* 0: NULL, as below */
	TimestampTz failing_since;
	char		breaker_reason[OUTBOX_BREAKER_REASON_LEN];

	TimestampTz down_since;		/* of the failures that the breaker counts */

	/* what its rate was cut to, 0: it was not; and until when its receiver wants to be left alone */
	double		throttled_to;
	TimestampTz held_until;

	int			recent_failures;
	int			renewals;		/* how often operators have given it a fresh start */
} OutboxHandlerRow;

/*
 * Read every live push handler.  For each, calls row(arg, &row); when that
 * returns a context, the full configuration is built in it and handed to
 * loaded(arg, handler).  Must be in a transaction with a snapshot.
 */
typedef MemoryContext (*OutboxHandlerRowCallback) (void *arg, const OutboxHandlerRow *row);
typedef void (*OutboxHandlerLoadedCallback) (void *arg, OutboxHandler *handler);

extern void outbox_load_handlers(OutboxHandlerRowCallback row,
								 OutboxHandlerLoadedCallback loaded, void *arg);

#endif							/* OUTBOX_HANDLERS_H */
