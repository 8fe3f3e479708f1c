/*-------------------------------------------------------------------------
 *
 * routes.h
 *		Which handlers take a topic: the answer, cached per backend.
 *
 * Promises: the answer is what had committed, plus what this transaction
 * itself did, when the call was made, whatever the isolation level and age
 * of the caller's snapshot.  A changed handler invalidates the cache through
 * a relcache message and through the shared route generation.
 *
 * Process: any backend, outside any parallel worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ROUTES_H
#define OUTBOX_ROUTES_H

#include "outbox.h"

typedef struct OutboxRoute
{
	int32		handler_id;
	bool		is_pull;
	bool		ordered;
	int64		max_age;		/* us for which its deliveries may wait once they are due; 0: for ever */
} OutboxRoute;

typedef struct OutboxRoutes
{
	int			n;
	OutboxRoute route[FLEXIBLE_ARRAY_MEMBER];	/* by ascending handler_id */
} OutboxRoutes;

/*
 * The handlers that take a valid topic; never NULL.  The result is read-only
 * and stays valid until the caller next gives up control to the executor,
 * SPI or anything else that accepts invalidations: copy what must last.
 */
extern const OutboxRoutes *outbox_routes(const char *topic, int len);

#endif							/* OUTBOX_ROUTES_H */
