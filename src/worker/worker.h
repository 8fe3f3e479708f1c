/*-------------------------------------------------------------------------
 *
 * worker.h
 *		The extension's background workers: their entry points, and how they
 *		are registered.
 *
 *		launcher			one per server, registered by the postmaster at start
 *		dispatcher			one per database that has the extension, by the launcher;
 *							in its place one for a call of outbox.deliver_now(), by
 *							the session that calls
 *		on_settle worker	one per database that has on_settle functions, and a
 *							spare, by the dispatcher
 *		schedule worker		two per database at most, around occurrences of schedules,
 *							by the dispatcher
 *		settler				under load, at most one per database, by the dispatcher
 *
 * Background worker slots are scarce: a new duty uses one of these.
 *
 * What wakes and ends each of them: doc/architecture.md, "Processes".
 *
 * Processes: all workers, and sessions that start one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_WORKER_H
#define OUTBOX_WORKER_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "postmaster/bgworker.h"
#include "storage/dsm.h"

/* Entry points, each in the file of its process; the postmaster finds them by name. */
extern PGDLLEXPORT void outbox_launcher_main(Datum main_arg);

/* The argument is the OID of the database. */
extern PGDLLEXPORT void outbox_dispatcher_main(Datum main_arg);

/* The same for one call of outbox.deliver_now(); the argument is the handle of a segment of dynamic shared memory (shared/errand.h). */
extern PGDLLEXPORT void outbox_errand_main(Datum main_arg);

/* The argument is the OID of the database; extra is an OutboxFunctionWorkerExtra. */
extern PGDLLEXPORT void outbox_on_settle_main(Datum main_arg);

/* The same, for the places of schedules. */
extern PGDLLEXPORT void outbox_schedule_main(Datum main_arg);

/* The argument is the handle of a segment of dynamic shared memory (dispatch/receipt.h); extra is the OID of the database. */
extern PGDLLEXPORT void outbox_settler_main(Datum main_arg);

/* What workers that run functions of users are told. */
typedef struct OutboxFunctionWorkerExtra
{
	int			place;			/* an OutboxFunctionPlace */
	dsm_handle	errand;			/* that its dispatcher serves; DSM_HANDLE_INVALID: none */
} OutboxFunctionWorkerExtra;

/* Register the launcher with the postmaster; from _PG_init when preloaded. */
extern void outbox_register_launcher(void);

/* A worker that will be connected to one database and that nobody but its starter starts again. */
typedef struct OutboxWorker
{
	const char *type;			/* what pg_stat_activity calls it */
	const char *database;		/* NULL: the one that this process is connected to */
	const char *main;			/* the entry point's name */
	Datum		arg;
	const void *extra;			/* goes into bgw_extra */
	Size		extra_size;
} OutboxWorker;

/*
 * Register a worker.  The latch of this process is set when it starts and
 * ends.  Returns its handle, to be freed with pfree(), or NULL if no
 * background worker slot is free.
 */
extern BackgroundWorkerHandle *outbox_register_worker(const OutboxWorker *worker);

/*
 * No slot was free for a worker that is needed: those that merely help, of
 * whatever database, make room and stay away for a while.
 */
extern void outbox_workers_lack(TimestampTz now);
extern bool outbox_workers_are_lacking(TimestampTz now);

#endif							/* OUTBOX_WORKER_H */
