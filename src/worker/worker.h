/*-------------------------------------------------------------------------
 *
 * worker.h
 *		Processes that a dispatcher starts beside itself.
 *
 * Processes: the dispatcher; the launcher says what it lacks.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_WORKER_H
#define OUTBOX_WORKER_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "postmaster/bgworker.h"

/*
 * Register a worker that will be connected to this database and is not
 * restarted: type is what pg_stat_activity calls it, main its entry point in
 * this library, extra goes into bgw_extra.  The dispatcher's latch is set
 * when it starts and ends.  Returns its handle, to be freed with pfree(), or
 * NULL if no background worker slot is free.
 */
extern BackgroundWorkerHandle *outbox_register_worker(const char *type, const char *main, Datum arg,
													  const void *extra, Size extra_size);

/*
 * No slot was free for a worker that is needed: those that merely help, of
 * whatever database, make room and stay away for a while.
 */
extern void outbox_workers_lack(TimestampTz now);
extern bool outbox_workers_are_lacking(TimestampTz now);

#endif							/* OUTBOX_WORKER_H */
