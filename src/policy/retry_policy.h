/*-------------------------------------------------------------------------
 *
 * retry_policy.h
 *		A handler's retry policy, as a query returns it.
 *
 * Processes: the dispatcher, the on_settle workers and consumers' backends, each
 * in a query of its own over outbox.handler.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RETRY_POLICY_H
#define OUTBOX_RETRY_POLICY_H

#include "executor/spi.h"

#include "policy/outcome.h"

/* An interval column of outbox.handler h in milliseconds. */
#define OUTBOX_MS_COLUMN(column) \
	"(pg_catalog.date_part('epoch', h." column ") OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8"

/* The columns to select from outbox.handler h, and how many they are. */
#define OUTBOX_RETRY_COLUMNS \
	"h.max_attempts, " OUTBOX_MS_COLUMN("backoff_base") ", " OUTBOX_MS_COLUMN("backoff_max") ", h.jitter, " \
	OUTBOX_MS_COLUMN("retry_after_max") ", " \
	"(SELECT pg_catalog.array_agg((pg_catalog.date_part('epoch', b.step) OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8 ORDER BY b.ord) " \
	" FROM pg_catalog.unnest(h.backoff) WITH ORDINALITY AS b(step, ord)), " \
	"h.rules"
#define OUTBOX_RETRY_NCOLUMNS 7

/* Read them, the first being number first of the row; allocates in the current memory context. */
extern void outbox_read_retry_policy(HeapTuple tuple, TupleDesc desc, int first, OutboxRetryPolicy *policy);

#endif							/* OUTBOX_RETRY_POLICY_H */
