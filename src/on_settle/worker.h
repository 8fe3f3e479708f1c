/*-------------------------------------------------------------------------
 *
 * worker.h
 *		The background worker that settles deliveries of handlers with an
 *		on_settle function.
 *
 * Started by the dispatcher (hook.c) of its database.  Its argument is the
 * OID of the database; bgw_extra holds its number as an int.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HOOK_WORKER_H
#define OUTBOX_HOOK_WORKER_H

#include "postgres.h"

/* The name under which the postmaster finds the entry point in this library. */
#define OUTBOX_HOOK_MAIN "outbox_hook_main"

/* A function that runs for longer than this is a slow one. */
#define OUTBOX_HOOK_SLOW_MS 100

extern PGDLLEXPORT void outbox_hook_main(Datum main_arg);

#endif							/* OUTBOX_HOOK_WORKER_H */
