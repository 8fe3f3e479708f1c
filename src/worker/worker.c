/*-------------------------------------------------------------------------
 *
 * worker.c
 *		How the extension's background workers are registered.
 *
 * See worker.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "shared/shmem.h"
#include "worker/worker.h"

#define LIBRARY "outbox"

/* The postmaster starts a launcher that has ended again after so many seconds. */
#define LAUNCHER_RESTART_S 1

/* Whoever lacks one tries again sooner than that, and says so again. */
#define LACK_US (30 * USECS_PER_SEC)

/* What all of them have in common. */
static void
describe(BackgroundWorker *worker, const char *type, const char *main, int restart_time)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	/* Nothing runs before recovery has ended, so a standby is silent. */
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = restart_time;
	strlcpy(worker->bgw_library_name, LIBRARY, sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, main, sizeof(worker->bgw_function_name));
	strlcpy(worker->bgw_name, type, BGW_MAXLEN);
	strlcpy(worker->bgw_type, type, BGW_MAXLEN);
}

void
outbox_register_launcher(void)
{
	BackgroundWorker worker;

	/* pg_upgrade starts servers whose databases are nobody's to work on, least of all ours. */
	if (IsBinaryUpgrade)
		return;
	describe(&worker, "outbox launcher", "outbox_launcher_main", LAUNCHER_RESTART_S);
	RegisterBackgroundWorker(&worker);
}

/* The name says of which database; one that a dispatcher starts has the end of its name. */
static void
name_worker(BackgroundWorker *worker, const OutboxWorker *what)
{
	if (what->database != NULL)
		snprintf(worker->bgw_name, BGW_MAXLEN, "%s for database \"%s\"", what->type, what->database);
	else
		snprintf(worker->bgw_name, BGW_MAXLEN, "%s %s", what->type, strstr(MyBgworkerEntry->bgw_name, "for database"));
}

BackgroundWorkerHandle *
outbox_register_worker(const OutboxWorker *what)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	bool		registered;

	describe(&worker, what->type, what->main, BGW_NEVER_RESTART);
	name_worker(&worker, what);
	worker.bgw_main_arg = what->arg;
	worker.bgw_notify_pid = MyProcPid;
	Assert(what->extra_size <= BGW_EXTRALEN);
	if (what->extra_size > 0)
		memcpy(worker.bgw_extra, what->extra, what->extra_size);
	registered = RegisterDynamicBackgroundWorker(&worker, &handle);
	MemoryContextSwitchTo(oldcontext);
	return registered ? handle : NULL;
}

void
outbox_workers_lack(TimestampTz now)
{
	pg_atomic_write_u64(&outbox_shared->workers_lack_until, (uint64) (now + LACK_US));
}

bool
outbox_workers_are_lacking(TimestampTz now)
{
	return now < (TimestampTz) pg_atomic_read_u64(&outbox_shared->workers_lack_until);
}
