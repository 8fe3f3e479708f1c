/*-------------------------------------------------------------------------
 *
 * launcher.c
 *		Finds the databases that have an outbox and keeps a dispatcher
 *		running in each.
 *
 * One static worker per server, connected to no database.  Which database
 * has the extension only shows inside it, so a dispatcher is started in
 * every database that can be connected to; where the extension is missing
 * it leaves at once and is not started again until CREATE EXTENSION rings.
 * Template databases never get one, and nothing runs before recovery has
 * ended, so a standby is silent.
 *
 *		unknown --start--> starting --found--> running --ended--> waiting
 *		                      |                                     |
 *		                      +--no extension--> none      (backoff) +--> starting
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/procarray.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/dispatcher.h"
#include "dispatch/shmem.h"
#include "guc.h"

/* Restart delays after failures: the first is short, since most failures are somebody's kill. */
#define FIRST_DELAY_US (500 * 1000)
#define MAX_DELAY_US (60 * USECS_PER_SEC)

/* A dispatcher that ran for so long is not one that keeps failing. */
#define HEALTHY_US (60 * USECS_PER_SEC)

/* Dispatchers that may be starting at once, so that 200 databases do not need 200 workers. */
#define MAX_STARTING 4

/* Databases are looked up again after this time even if nobody rings. */
#define LOOK_AGAIN_US (60 * USECS_PER_SEC)

/* When no worker could be registered. */
#define NO_WORKER_DELAY_US (5 * USECS_PER_SEC)

typedef enum DatabaseState
{
	DATABASE_UNKNOWN,			/* to be started */
	DATABASE_STARTED,			/* registered: starting or running */
	DATABASE_WAITING,			/* failed: to be started again at next_start */
	DATABASE_NONE				/* no extension: nothing to do until somebody rings */
} DatabaseState;

typedef struct DatabaseEntry
{
	Oid			dboid;
	DatabaseState state;
	bool		listed;			/* by the last look at pg_database */
	NameData	name;
	BackgroundWorkerHandle *handle; /* NULL: it was running before this launcher */
	TimestampTz started;
	TimestampTz next_start;
	int64		delay;
} DatabaseEntry;

static HTAB *databases = NULL;
static MemoryContext databases_context = NULL;
static TimestampTz next_look = DT_NOBEGIN;
static bool out_of_workers = false;
static bool out_of_slots = false;

void
outbox_register_launcher(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, OUTBOX_LIBRARY, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, OUTBOX_LAUNCHER_MAIN, sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "outbox launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "outbox launcher", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

static void
leave_shared_memory(int code, Datum arg)
{
	SpinLockAcquire(&outbox_shared->mutex);
	outbox_shared->launcher_pid = 0;
	outbox_shared->launcher_procno = -1;
	SpinLockRelease(&outbox_shared->mutex);
}

static void
enter_shared_memory(void)
{
	SpinLockAcquire(&outbox_shared->mutex);
	outbox_shared->launcher_pid = MyProcPid;
	outbox_shared->launcher_procno = outbox_my_procno();
	outbox_shared->launcher_rescan = true;
	SpinLockRelease(&outbox_shared->mutex);
	before_shmem_exit(leave_shared_memory, (Datum) 0);
}

static bool
take_rescan_request(void)
{
	bool		requested;

	SpinLockAcquire(&outbox_shared->mutex);
	requested = outbox_shared->launcher_rescan;
	outbox_shared->launcher_rescan = false;
	SpinLockRelease(&outbox_shared->mutex);
	return requested;
}

static void
note_database(Form_pg_database form)
{
	bool		found;
	DatabaseEntry *entry = hash_search(databases, &form->oid, HASH_ENTER, &found);

	if (!found)
	{
		memset((char *) entry + sizeof(Oid), 0, sizeof(DatabaseEntry) - sizeof(Oid));
		entry->state = DATABASE_UNKNOWN;
	}
	entry->listed = true;
	entry->name = form->datname;
}

/* Databases that are gone, or that nobody may connect to any more, are forgotten. */
static void
forget_unlisted(void)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->listed)
			continue;
		outbox_release_database(entry->dboid);
		if (entry->handle)
			pfree(entry->handle);
		hash_search(databases, &entry->dboid, HASH_REMOVE, NULL);
	}
}

/* Read pg_database.  rung: somebody says that a database may have gained the extension. */
static void
look_at_databases(bool rung, TimestampTz now)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		entry->listed = false;
		if (rung && entry->state == DATABASE_NONE)
			entry->state = DATABASE_UNKNOWN;
	}

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (form->datallowconn && !form->datistemplate && outbox_database_is_valid(form))
			note_database(form);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();

	forget_unlisted();
	next_look = now + LOOK_AGAIN_US;
}

/* What the slot of a database says, for the decisions below. */
static void
read_slot(Oid dboid, pid_t *pid, OutboxDispatcherState *state, pid_t *barred_by)
{
	OutboxDatabase *slot = outbox_find_database(dboid);

	*pid = 0;
	*barred_by = 0;
	*state = OUTBOX_DISPATCHER_STOPPED;
	if (slot == NULL)
		return;
	SpinLockAcquire(&slot->mutex);
	*pid = slot->pid;
	*state = slot->state;
	*barred_by = slot->barred_by;
	SpinLockRelease(&slot->mutex);
}

/* A bar counts only as long as the backend that raised it lives. */
static bool
is_barred(Oid dboid, pid_t barred_by)
{
	OutboxDatabase *slot;

	if (barred_by == 0)
		return false;
	if (BackendPidGetProc(barred_by) != NULL)
		return true;

	slot = outbox_find_database(dboid);
	if (slot != NULL)
	{
		SpinLockAcquire(&slot->mutex);
		if (slot->barred_by == barred_by)
			slot->barred_by = 0;
		SpinLockRelease(&slot->mutex);
	}
	return false;
}

static void
set_slot_state(OutboxDatabase *slot, OutboxDispatcherState state)
{
	SpinLockAcquire(&slot->mutex);
	if (slot->pid == 0)
	{
		slot->state = state;
		slot->since = GetCurrentTimestamp();
	}
	SpinLockRelease(&slot->mutex);
}

static bool
register_dispatcher(DatabaseEntry *entry)
{
	BackgroundWorker worker;
	MemoryContext oldcontext = MemoryContextSwitchTo(databases_context);
	bool		registered;

	if (entry->handle)
		pfree(entry->handle);
	entry->handle = NULL;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(entry->dboid);
	worker.bgw_notify_pid = MyProcPid;
	strlcpy(worker.bgw_library_name, OUTBOX_LIBRARY, sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, OUTBOX_DISPATCHER_MAIN, sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, BGW_MAXLEN, "outbox dispatcher for database \"%s\"", NameStr(entry->name));
	strlcpy(worker.bgw_type, "outbox dispatcher", BGW_MAXLEN);
	registered = RegisterDynamicBackgroundWorker(&worker, &entry->handle);
	MemoryContextSwitchTo(oldcontext);
	return registered;
}

/* Say once that a limit is in the way, and once that it no longer is. */
static void
report_limit(bool *in_the_way, bool now_in_the_way, const char *what, const char *hint)
{
	if (now_in_the_way && !*in_the_way)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("outbox cannot start a dispatcher: %s", what),
				 errhint("%s", hint)));
	*in_the_way = now_in_the_way;
}

static void
start_dispatcher(DatabaseEntry *entry, TimestampTz now)
{
	OutboxDatabase *slot = outbox_reserve_database(entry->dboid);

	report_limit(&out_of_slots, slot == NULL, "too many databases have an outbox",
				 "Increase outbox.max_databases and restart the server.");
	if (slot == NULL)
	{
		entry->state = DATABASE_WAITING;
		entry->next_start = now + NO_WORKER_DELAY_US;
		return;
	}

	set_slot_state(slot, OUTBOX_DISPATCHER_STARTING);
	if (!register_dispatcher(entry))
	{
		report_limit(&out_of_workers, true, "no background worker slot is free",
					 "Increase max_worker_processes and restart the server.");
		set_slot_state(slot, OUTBOX_DISPATCHER_FAILED);
		entry->state = DATABASE_WAITING;
		entry->next_start = now + NO_WORKER_DELAY_US;
		return;
	}
	report_limit(&out_of_workers, false, NULL, NULL);
	entry->state = DATABASE_STARTED;
	entry->started = now;
}

/* The dispatcher of a database has ended: decide whether and when it is started again. */
static void
note_end(DatabaseEntry *entry, OutboxDispatcherState state, TimestampTz now)
{
	OutboxDatabase *slot;

	switch (state)
	{
		case OUTBOX_DISPATCHER_STOPPED:
			outbox_release_database(entry->dboid);
			entry->state = DATABASE_NONE;
			return;
		case OUTBOX_DISPATCHER_BARRED:
			entry->state = DATABASE_WAITING;
			entry->next_start = now;
			return;
		case OUTBOX_DISPATCHER_MISMATCH:
			entry->delay = MAX_DELAY_US;
			break;
		default:
			/* Whatever else the slot says, its process is gone. */
			slot = outbox_find_database(entry->dboid);
			if (slot != NULL)
				set_slot_state(slot, OUTBOX_DISPATCHER_FAILED);
			if (entry->delay == 0 || now - entry->started > HEALTHY_US)
				entry->delay = FIRST_DELAY_US;
			else
				entry->delay = Min(entry->delay * 2, MAX_DELAY_US);
			break;
	}
	entry->state = DATABASE_WAITING;
	entry->next_start = now + entry->delay;
}

static bool
has_ended(DatabaseEntry *entry, pid_t slot_pid)
{
	pid_t		pid;

	if (slot_pid != 0)
		return false;
	if (entry->handle == NULL)
		return true;
	return GetBackgroundWorkerPid(entry->handle, &pid) == BGWH_STOPPED;
}

/* Take one database a step further.  Returns true if it is starting. */
static bool
attend(DatabaseEntry *entry, int starting, TimestampTz now)
{
	pid_t		pid;
	pid_t		barred_by;
	OutboxDispatcherState state;

	read_slot(entry->dboid, &pid, &state, &barred_by);

	/* One that was running before this launcher is simply taken over. */
	if (pid != 0 && entry->state != DATABASE_STARTED)
	{
		entry->state = DATABASE_STARTED;
		entry->started = now;
	}
	if (entry->state == DATABASE_STARTED && has_ended(entry, pid))
		note_end(entry, state, now);

	if (entry->state == DATABASE_UNKNOWN ||
		(entry->state == DATABASE_WAITING && entry->next_start <= now))
	{
		if (starting < MAX_STARTING && !is_barred(entry->dboid, barred_by))
			start_dispatcher(entry, now);
	}
	return entry->state == DATABASE_STARTED && pid == 0;
}

static void
attend_all(TimestampTz now)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;
	int			starting = 0;

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (attend(entry, starting, now))
			starting++;
	}
}

/* How long nothing will happen unless somebody rings, in ms. */
static long
sleep_time(TimestampTz now)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;
	TimestampTz until = next_look;
	bool		unstarted = false;

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->state == DATABASE_WAITING)
			until = Min(until, entry->next_start);
		if (entry->state == DATABASE_UNKNOWN)
			unstarted = true;
	}
	/* Those that start set the latch when they are done; barred ones are looked at now and then. */
	if (unstarted || until <= now)
		return 100;
	return (long) ((until - now + 999) / 1000);
}

static void
initialize(void)
{
	HASHCTL		ctl;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	pgstat_report_appname("outbox launcher");
	SetConfigOption("default_transaction_isolation", "read committed", PGC_SUSET, PGC_S_OVERRIDE);

	databases_context = AllocSetContextCreate(TopMemoryContext, "outbox databases", ALLOCSET_DEFAULT_SIZES);
	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(DatabaseEntry);
	ctl.hcxt = databases_context;
	databases = hash_create("outbox databases", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	enter_shared_memory();
}

void
outbox_launcher_main(Datum main_arg)
{
	initialize();
	pgstat_report_activity(STATE_IDLE, "waiting for databases");

	while (!ShutdownRequestPending)
	{
		TimestampTz now = GetCurrentTimestamp();
		bool		rung;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		rung = take_rescan_request();
		if (rung || next_look <= now)
			look_at_databases(rung, now);
		attend_all(now);

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 sleep_time(now), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}

	/* Not zero: a launcher that was asked to end comes back unless the server stops. */
	proc_exit(1);
}
