/*-------------------------------------------------------------------------
 *
 * settler_worker.h
 *		The background worker that writes receipts (settler.h).
 *
 * Process: its own, at most one per database, registered by the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SETTLER_WORKER_H
#define OUTBOX_SETTLER_WORKER_H

#include "postgres.h"

/* The name under which the postmaster finds the entry point in this library. */
#define OUTBOX_SETTLER_MAIN "outbox_settler_main"

extern PGDLLEXPORT void outbox_settler_main(Datum main_arg);

#endif							/* OUTBOX_SETTLER_WORKER_H */
