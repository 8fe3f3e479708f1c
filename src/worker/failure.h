/*-------------------------------------------------------------------------
 *
 * failure.h
 *		Says in the server's log why database work has failed.
 *
 * Promises: failures of one SQLSTATE are reported once a minute at most, so
 * that what keeps failing beside what succeeds does not fill the log; nothing
 * is shown of the rows that were written.
 *
 * Processes: the dispatchers, the on_settle workers and the settlers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_FAILURE_H
#define OUTBOX_FAILURE_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* Is it a failure that ends by itself or by an operator's hand, however long that takes? */
extern bool outbox_failure_may_end(int sqlstate);

/* The current error, of which edata is a copy.  Called before it is flushed. */
extern void outbox_failure_report(const ErrorData *edata, TimestampTz now);

#endif							/* OUTBOX_FAILURE_H */
