/*-------------------------------------------------------------------------
 *
 * work.h
 *		The bracket around a worker's work in the database: one transaction.
 *
 *		PG_TRY();
 *		{
 *			outbox_work_begin(true);
 *			...
 *			outbox_work_commit();
 *		}
 *		PG_CATCH();
 *		{
 *			edata = outbox_work_abort(context, now);
 *		}
 *		PG_END_TRY();
 *
 * Promises: within it, and nowhere else, a request to end or to cancel
 * interrupts the worker (interrupt.h); the statistics system hears of what
 * was written; a failure is said in the log, but not again and again.
 *
 * Processes: all workers.  The dispatcher has signals blocked in between.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_WORK_H
#define OUTBOX_WORK_H

#include "postgres.h"

#include "datatype/timestamp.h"

/*
 * Begin a transaction and take a snapshot.  As the owner, for work on the
 * extension's tables: their owner may have put something of his own there.
 */
extern void outbox_work_begin(bool as_owner);

/* Commit it.  The memory context is TopMemoryContext or what it was before any transaction. */
extern void outbox_work_commit(void);

/*
 * It has failed: report the error, roll back, and return a copy of the error
 * in the context, which becomes the current one.  In PG_CATCH().
 */
extern ErrorData *outbox_work_abort(MemoryContext context, TimestampTz now);

#endif							/* OUTBOX_WORK_H */
