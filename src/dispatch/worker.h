/*-------------------------------------------------------------------------
 *
 * worker.h
 *		Processes that a dispatcher starts beside itself.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_WORKER_H
#define OUTBOX_WORKER_H

#include "postgres.h"

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

#endif							/* OUTBOX_WORKER_H */
