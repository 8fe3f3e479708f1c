/*-------------------------------------------------------------------------
 *
 * failure.h
 *		Says in the server's log why database work has failed.
 *
 * Promises: the same failure is reported once, and again only after a minute
 * or when another one came in between; nothing of the rows that were written.
 *
 * Processes: the dispatchers, the on_settle workers and the settlers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_FAILURE_H
#define OUTBOX_FAILURE_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* The current error, of which edata is a copy.  Called before it is flushed. */
extern void outbox_failure_report(const ErrorData *edata, TimestampTz now);

/* The work has succeeded: the next failure is a new one. */
extern void outbox_failure_forget(void);

#endif							/* OUTBOX_FAILURE_H */
