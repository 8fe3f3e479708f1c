/*-------------------------------------------------------------------------
 *
 * worker.h
 *		The background worker that settles deliveries of handlers with an
 *		on_settle function.
 *
 * Started by the dispatcher (hand_over.c) of its database.  Its argument is the
 * OID of the database; bgw_extra holds its number as an int.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ON_SETTLE_WORKER_H
#define OUTBOX_ON_SETTLE_WORKER_H

#include "postgres.h"

/* The name under which the postmaster finds the entry point in this library. */
#define OUTBOX_ON_SETTLE_MAIN "outbox_on_settle_main"

/* A function that runs for longer than this is a slow one. */
#define OUTBOX_ON_SETTLE_SLOW_MS 100

extern PGDLLEXPORT void outbox_on_settle_main(Datum main_arg);

#endif							/* OUTBOX_ON_SETTLE_WORKER_H */
