/*-------------------------------------------------------------------------
 *
 * pull_handler.h
 *		A pull handler as consumers' backends know it, and who may consume it.
 *
 * The configuration is cached per backend and read again when the shared
 * handler generation has moved; without shared memory, and in a transaction
 * that has itself changed handlers, it is read each time.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_PULL_HANDLER_H
#define OUTBOX_PULL_HANDLER_H

#include "nodes/pg_list.h"

#include "policy/outcome.h"
#include "shared/pull_state.h"

typedef struct OutboxPullHandler
{
	int32		id;
	bool		dropped;
	bool		paused;
	bool		ordered;
	bool		block_on_dead;
	OutboxRetryPolicy retry;
	OutboxPullRef ref;			/* with the state as of the lookup */
} OutboxPullHandler;

typedef enum OutboxPullUse
{
	OUTBOX_PULL_CLAIM,			/* the handler must be there */
	OUTBOX_PULL_SETTLE			/* it may have been dropped since the claim */
} OutboxPullUse;

/*
 * The handler of that name, for the current user.  The result is a copy that
 * lives in the current memory context, except for the retry policy, which
 * stays valid until the next call.  Raises undefined_object for
 * one that does not exist or was dropped, wrong_object_type for a push
 * handler, insufficient_privilege when the user may not consume it, and
 * object_not_in_prerequisite_state when SQL objects and library differ.
 */
extern void outbox_pull_handler(const char *name, OutboxPullUse use, OutboxPullHandler *handler);

/* The live pull handler with this id, whoever asks; false if there is none.  Read anew each time. */
extern bool outbox_pull_handler_by_id(int32 id, OutboxPullHandler *handler);

#endif							/* OUTBOX_PULL_HANDLER_H */
