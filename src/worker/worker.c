/*-------------------------------------------------------------------------
 *
 * worker.c
 *		Processes that a dispatcher starts beside itself.
 *
 * See worker.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"

#include "dispatch/dispatcher.h"
#include "shared/shmem.h"
#include "worker/worker.h"

/* Whoever lacks one tries again sooner than that, and says so again. */
#define LACK_US (30 * USECS_PER_SEC)

BackgroundWorkerHandle *
outbox_register_worker(const char *type, const char *main, Datum arg, const void *extra, Size extra_size)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	bool		registered;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = arg;
	worker.bgw_notify_pid = MyProcPid;
	Assert(extra_size <= BGW_EXTRALEN);
	memcpy(worker.bgw_extra, extra, extra_size);
	strlcpy(worker.bgw_library_name, OUTBOX_LIBRARY, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, main, sizeof(worker.bgw_function_name));
	/* The dispatcher's own name ends with the name of the database. */
	snprintf(worker.bgw_name, BGW_MAXLEN, "%s %s", type, strstr(MyBgworkerEntry->bgw_name, "for database"));
	strlcpy(worker.bgw_type, type, BGW_MAXLEN);
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
