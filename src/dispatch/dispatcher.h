/*-------------------------------------------------------------------------
 *
 * dispatcher.h
 *		The background worker that delivers one database's messages.
 *
 * Started by the launcher (launcher.c), one per database.  Its argument is
 * the OID of the database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DISPATCHER_H
#define OUTBOX_DISPATCHER_H

#include "postgres.h"

/* Names under which the postmaster finds the entry points in this library. */
#define OUTBOX_LIBRARY "outbox"
#define OUTBOX_DISPATCHER_MAIN "outbox_dispatcher_main"
#define OUTBOX_LAUNCHER_MAIN "outbox_launcher_main"

extern PGDLLEXPORT void outbox_dispatcher_main(Datum main_arg);
extern PGDLLEXPORT void outbox_launcher_main(Datum main_arg);

/* Register the launcher with the postmaster; from _PG_init when preloaded. */
extern void outbox_register_launcher(void);

#endif							/* OUTBOX_DISPATCHER_H */
