/*-------------------------------------------------------------------------
 *
 * launcher.c
 *		Finds the databases that have an outbox and keeps a dispatcher
 *		running in each.
 *
 * One static worker per server, connected to no database.  Which database
 * has the extension only shows inside it, so a dispatcher is started in
 * every database that can be connected to; where the extension is missing
 * it leaves at once and is not started again until CREATE EXTENSION marks
 * its slot as wanted.  Template databases never get one, and nothing runs
 * before recovery has ended, so a standby is silent, or for pg_upgrade.
 *
 *		unknown --start--> started --ended--> waiting --delay over--> started
 *		   ^                  |
 *		   |                  +--no extension--> none
 *		   +------------------------wanted--------+
 *
 * A launcher that ends is started again by the postmaster.  Dispatchers go
 * on meanwhile, and the next launcher takes them over.
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/counters.h"
#include "shared/lockout.h"
#include "shared/shmem.h"
#include "worker/backoff.h"
#include "worker/interrupt.h"
#include "worker/settings.h"
#include "worker/work.h"
#include "worker/worker.h"

/* Dispatchers that may be starting at once, so that 200 databases do not need 200 workers. */
#define MAX_STARTING 4

/* A database whose SQL objects do not match the library is looked at again after this time. */
#define MISMATCH_DELAY_US (60 * USECS_PER_SEC)

/* Databases are looked up again after this time even if nobody rings. */
#define LOOK_AGAIN_US (60 * USECS_PER_SEC)

/* When no worker could be registered or no slot was free. */
#define NO_ROOM_DELAY_US (5 * USECS_PER_SEC)

/* A database that is locked out is looked at again after this time: whoever locked it out may have died. */
#define LOCKED_OUT_DELAY_US (1 * USECS_PER_SEC)

/* So many launchers in a row may end early before the next ones wait. */
#define MAX_QUICK_ENDS 3
#define QUICK_END_US (60 * USECS_PER_SEC)
#define LONGEST_WAIT_US (60 * USECS_PER_SEC)

typedef enum DatabaseState
{
	DATABASE_UNKNOWN,			/* to be started */
	DATABASE_STARTED,			/* registered: starting or running */
	DATABASE_WAITING,			/* failed: to be started again after a pause */
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
	OutboxBackoff backoff;		/* while it waits: until it is started again */
	bool		mismatch_logged;	/* since it last ran */
	bool		lacks_slot;		/* why it waits: no slot, */
	bool		lacks_worker;	/* or no background worker */
} DatabaseEntry;

/* What the slot of a database says, as far as the launcher is concerned. */
typedef struct SlotView
{
	OutboxDatabase *slot;		/* NULL: it has none */
	pid_t		pid;
	OutboxDispatcherState state;
	bool		locked_out;
	char		error[OUTBOX_ERROR_LEN];
} SlotView;

static HTAB *databases = NULL;
static MemoryContext databases_context = NULL;
static TimestampTz next_look = DT_NOBEGIN;
static bool out_of_workers = false;
static bool out_of_slots = false;
static List *refusing = NIL;	/* databases that nobody can connect to */

static void
leave_shared_memory(int code, Datum arg)
{
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&outbox_shared->mutex);
	outbox_shared->launcher_pid = 0;
	outbox_shared->launcher_procno = -1;
	if (now - outbox_shared->launcher_started < QUICK_END_US)
		outbox_shared->launcher_quick_ends++;
	else
		outbox_shared->launcher_quick_ends = 0;
	SpinLockRelease(&outbox_shared->mutex);
}

/* Returns how many launchers in a row have ended early before this one. */
static int
enter_shared_memory(void)
{
	TimestampTz now = GetCurrentTimestamp();
	int			quick_ends;

	SpinLockAcquire(&outbox_shared->mutex);
	outbox_shared->launcher_pid = MyProcPid;
	outbox_shared->launcher_procno = outbox_my_procno();
	outbox_shared->launcher_started = now;
	outbox_shared->launcher_look = true;
	quick_ends = outbox_shared->launcher_quick_ends;
	SpinLockRelease(&outbox_shared->mutex);
	before_shmem_exit(leave_shared_memory, (Datum) 0);
	return quick_ends;
}

/* Somebody asks the launcher to look: at what has changed, or at everything. */
static bool
take_request(bool *everywhere)
{
	bool		requested;

	SpinLockAcquire(&outbox_shared->mutex);
	requested = outbox_shared->launcher_look;
	*everywhere = outbox_shared->launcher_look_everywhere;
	outbox_shared->launcher_look = false;
	outbox_shared->launcher_look_everywhere = false;
	SpinLockRelease(&outbox_shared->mutex);
	return requested || *everywhere;
}

static void
view_slot(Oid dboid, SlotView *view)
{
	memset(view, 0, sizeof(*view));
	view->state = OUTBOX_DISPATCHER_FAILED;
	view->slot = outbox_find_database(dboid);
	if (view->slot == NULL)
		return;
	SpinLockAcquire(&view->slot->mutex);
	view->pid = view->slot->pid;
	view->state = view->slot->state;
	memcpy(view->error, view->slot->last_error, sizeof(view->error));
	SpinLockRelease(&view->slot->mutex);
	view->locked_out = outbox_lockout_is_up(view->slot);
}

/* For a database without a dispatcher: say why it has none.  error may be NULL: keep what is there. */
static void
set_slot_state(OutboxDatabase *slot, OutboxDispatcherState state, const char *error)
{
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&slot->mutex);
	if (slot->pid == 0)
	{
		if (slot->state != state)
			slot->since = now;
		slot->state = state;
		if (error)
			strlcpy(slot->last_error, error, sizeof(slot->last_error));
	}
	SpinLockRelease(&slot->mutex);
}

/* Is a look at this database wanted?  With clear, the wish is taken as granted. */
static bool
is_wanted(OutboxDatabase *slot, bool clear)
{
	bool		wanted;

	SpinLockAcquire(&slot->mutex);
	wanted = slot->wanted;
	if (clear)
		slot->wanted = false;
	SpinLockRelease(&slot->mutex);
	return wanted;
}

static bool
is_installed(OutboxDatabase *slot)
{
	bool		installed;

	SpinLockAcquire(&slot->mutex);
	installed = slot->installed;
	SpinLockRelease(&slot->mutex);
	return installed;
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

static void
note_refusing(Oid dboid)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(databases_context);

	refusing = lappend_oid(refusing, dboid);
	MemoryContextSwitchTo(oldcontext);
}

/* Databases that are gone, that have become templates or that refuse connections are forgotten. */
static void
forget_unlisted(void)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;
	SlotView	view;

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->listed)
			continue;
		/* Where one still runs it is asked to leave, as it would not be started again either. */
		view_slot(entry->dboid, &view);
		if (view.pid != 0)
			kill(view.pid, SIGTERM);
		if (entry->handle)
			pfree(entry->handle);
		hash_search(databases, &entry->dboid, HASH_REMOVE, NULL);
	}
}

/*
 * Go through the slots: what somebody wants a look at is to be started, and
 * slots of databases that are gone or have no extension are given back.
 */
static void
look_at_slots(bool everywhere)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;

	for (int i = 0; i < outbox_shared->ndatabases; i++)
	{
		OutboxDatabase *slot = &outbox_shared->databases[i];
		Oid			dboid = slot->dboid;

		if (!OidIsValid(dboid))
			continue;
		entry = hash_search(databases, &dboid, HASH_FIND, NULL);
		if (entry == NULL)
		{
			/* It may be too new for this look; then somebody asks for another one. */
			(void) is_wanted(slot, true);
			/* What had a dispatcher keeps its slot, where it is said why there is none. */
			if (!is_installed(slot) || !list_member_oid(refusing, dboid))
				outbox_release_database(dboid);
		}
		else if (is_wanted(slot, false))
		{
			if (entry->state == DATABASE_NONE || entry->state == DATABASE_WAITING)
				entry->state = DATABASE_UNKNOWN;
		}
		else if (entry->state == DATABASE_NONE)
			outbox_release_database(dboid);
	}

	if (!everywhere)
		return;
	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->state == DATABASE_NONE)
			entry->state = DATABASE_UNKNOWN;
	}
}

/* Read pg_database. */
static void
look_at_databases(TimestampTz now)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
		entry->listed = false;

	list_free(refusing);
	refusing = NIL;
	outbox_work_begin(false);
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		if (form->datallowconn && !form->datistemplate && outbox_database_is_valid(form))
			note_database(form);
		else if (!form->datallowconn && outbox_database_is_valid(form))
			note_refusing(form->oid);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	outbox_work_commit();
	/* A wait inside may have swallowed somebody's ring. */
	SetLatch(MyLatch);

	forget_unlisted();
	next_look = now + LOOK_AGAIN_US;
}

/* Is there such a database, as far as the last look at pg_database saw? */
static bool
is_known(Oid dboid)
{
	return hash_search(databases, &dboid, HASH_FIND, NULL) != NULL || list_member_oid(refusing, dboid);
}

static bool
register_dispatcher(DatabaseEntry *entry)
{
	const OutboxWorker worker = {
		.type = "outbox dispatcher", .database = NameStr(entry->name), .main = "outbox_dispatcher_main",
		.arg = ObjectIdGetDatum(entry->dboid)
	};

	if (entry->handle)
		pfree(entry->handle);
	entry->handle = outbox_register_worker(&worker);
	return entry->handle != NULL;
}

/* Databases that wait for a slot, or for a worker, this one included.  Of a worker that ends at once there need be only one. */
static int
count_lacking(bool workers)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;
	int			lacking = 0;
	bool		unknown = false;

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		OutboxDatabase *slot = outbox_find_database(entry->dboid);

		if (workers ? !entry->lacks_worker : !entry->lacks_slot)
			continue;
		if (slot != NULL && is_installed(slot))
			lacking++;
		else
			unknown = true;
	}
	return lacking + (unknown ? 1 : 0);
}

/*
 * Say once that a limit is in the way, until nobody waits for room any more;
 * and where the database's dispatcher is looked for, as long as it is.
 */
static void
report_limit(bool *reported, DatabaseEntry *entry, const char *what, const char *setting, int now, int needed)
{
	OutboxDatabase *slot = outbox_find_database(entry->dboid);
	char		text[OUTBOX_ERROR_LEN];

	snprintf(text, sizeof(text), "%s: %s is %d, and at least %d is needed", what, setting, now, needed);
	if (slot != NULL)
		set_slot_state(slot, OUTBOX_DISPATCHER_FAILED, text);
	if (!*reported)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("outbox cannot start a dispatcher in database \"%s\": %s", NameStr(entry->name), what),
				 errhint("Increase %s from %d to at least %d and restart the server.", setting, now, needed)));
	*reported = true;
}

static void
wait_for_room(DatabaseEntry *entry, TimestampTz now)
{
	entry->state = DATABASE_WAITING;
	outbox_backoff_wait(&entry->backoff, NO_ROOM_DELAY_US, now);
}

/*
 * Returns false if there is no room now, but others are starting: most of
 * them only look whether there is an extension and make room before long.
 */
static bool
start_dispatcher(DatabaseEntry *entry, bool others, TimestampTz now)
{
	OutboxDatabase *slot = outbox_reserve_database(entry->dboid);

	if (slot == NULL)
	{
		if (others)
			return false;
		entry->lacks_slot = true;
		report_limit(&out_of_slots, entry, "all slots for databases are in use", "outbox.max_databases",
					 outbox_shared->ndatabases, outbox_shared->ndatabases + count_lacking(false));
		wait_for_room(entry, now);
		return true;
	}
	entry->lacks_slot = false;

	/* From here on a new wish is one that this start may not fulfil. */
	(void) is_wanted(slot, true);
	set_slot_state(slot, OUTBOX_DISPATCHER_STARTING, NULL);
	if (!register_dispatcher(entry))
	{
		if (others)
			return false;
		entry->lacks_worker = true;
		report_limit(&out_of_workers, entry, "no background worker slot is free", "max_worker_processes",
					 max_worker_processes, max_worker_processes + count_lacking(true));
		outbox_workers_lack(now);
		wait_for_room(entry, now);
		return true;
	}
	entry->lacks_worker = false;
	entry->state = DATABASE_STARTED;
	entry->started = now;
	return true;
}

/* No extension there; but it may have been created while that was found out. */
static void
note_stopped(DatabaseEntry *entry, SlotView *view)
{
	outbox_backoff_succeed(&entry->backoff);
	entry->state = DATABASE_NONE;
	if (view->slot == NULL)
		return;
	if (is_wanted(view->slot, false))
		entry->state = DATABASE_UNKNOWN;
	else
		outbox_release_database(entry->dboid);
}

static void
note_mismatch(DatabaseEntry *entry, SlotView *view, TimestampTz now)
{
	if (!entry->mismatch_logged)
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("outbox sends nothing in database \"%s\"", NameStr(entry->name)),
				 errdetail("%s.", view->error)));
	entry->mismatch_logged = true;
	entry->state = DATABASE_WAITING;
	outbox_backoff_wait(&entry->backoff, MISMATCH_DELAY_US, now);
}

static void
note_failure(DatabaseEntry *entry, SlotView *view, TimestampTz now)
{
	/* Whatever else the slot says, its process is gone. */
	if (view->slot != NULL)
		set_slot_state(view->slot, OUTBOX_DISPATCHER_FAILED, NULL);
	outbox_backoff_process_ended(&entry->backoff, true, entry->started, now);
	entry->state = DATABASE_WAITING;
	/* Perhaps there is no such database any more: see before it is tried again. */
	next_look = Min(next_look, outbox_backoff_until(&entry->backoff));
}

/* The dispatcher of a database has ended: decide whether and when it is started again. */
static void
note_end(DatabaseEntry *entry, SlotView *view, TimestampTz now)
{
	switch (view->state)
	{
		case OUTBOX_DISPATCHER_STOPPED:
			note_stopped(entry, view);
			break;
		case OUTBOX_DISPATCHER_LOCKED_OUT:
			outbox_backoff_succeed(&entry->backoff);
			entry->state = DATABASE_WAITING;
			break;
		case OUTBOX_DISPATCHER_TERMINATED:
			outbox_backoff_process_ended(&entry->backoff, false, entry->started, now);
			entry->state = DATABASE_WAITING;
			/* Whoever did it may have been about to change something. */
			next_look = Min(next_look, outbox_backoff_until(&entry->backoff));
			break;
		case OUTBOX_DISPATCHER_MISMATCH:
			note_mismatch(entry, view, now);
			break;
		default:
			note_failure(entry, view, now);
			break;
	}
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

/* Registered, and not known yet whether it stays. */
static bool
is_starting(DatabaseEntry *entry, SlotView *view)
{
	return entry->state == DATABASE_STARTED &&
		(view->pid == 0 || view->state == OUTBOX_DISPATCHER_STARTING);
}

/* See what has become of a dispatcher. */
static void
follow_up(DatabaseEntry *entry, SlotView *view, TimestampTz now)
{
	/* One that was running before this launcher is simply taken over. */
	if (view->pid != 0 && entry->state != DATABASE_STARTED)
	{
		entry->state = DATABASE_STARTED;
		entry->started = now;
	}
	if (view->pid != 0 && view->state != OUTBOX_DISPATCHER_STARTING)
		entry->mismatch_logged = false;
	if (entry->state == DATABASE_STARTED && has_ended(entry, view->pid))
		note_end(entry, view, now);
}

static bool
is_to_start(DatabaseEntry *entry, SlotView *view, TimestampTz now)
{
	if (entry->state != DATABASE_WAITING)
		return entry->state == DATABASE_UNKNOWN && !view->locked_out;
	if (!outbox_backoff_is_over(&entry->backoff, now))
		return false;
	if (view->locked_out)
		outbox_backoff_wait(&entry->backoff, LOCKED_OUT_DELAY_US, now);
	return !view->locked_out;
}

/* Their dispatchers were asked to leave, and leave without knowing why. */
static void
attend_refusing(void)
{
	ListCell   *lc;

	foreach(lc, refusing)
	{
		OutboxDatabase *slot = outbox_find_database(lfirst_oid(lc));

		if (slot != NULL)
			set_slot_state(slot, OUTBOX_DISPATCHER_STOPPED,
						   "this database allows no connections (ALTER DATABASE ... ALLOW_CONNECTIONS)");
	}
}

static void
attend_all(TimestampTz now)
{
	HASH_SEQ_STATUS status;
	DatabaseEntry *entry;
	SlotView	view;
	int			starting = 0;
	bool		lack_slots = false;
	bool		lack_workers = false;

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		view_slot(entry->dboid, &view);
		follow_up(entry, &view, now);
		if (is_starting(entry, &view))
			starting++;
		lack_slots |= entry->lacks_slot;
		lack_workers |= entry->lacks_worker;
	}
	out_of_slots &= lack_slots;
	out_of_workers &= lack_workers;

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		view_slot(entry->dboid, &view);
		if (starting >= MAX_STARTING || !is_to_start(entry, &view, now))
			continue;
		if (!start_dispatcher(entry, starting > 0, now))
			starting = MAX_STARTING;
		else if (entry->state == DATABASE_STARTED)
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

	hash_seq_init(&status, databases);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->state == DATABASE_WAITING)
			until = Min(until, outbox_backoff_until(&entry->backoff));
		/* Those that start set the latch when they are done, and then it is these's turn. */
		else if (entry->state == DATABASE_UNKNOWN)
			until = Min(until, now + LOCKED_OUT_DELAY_US);
	}
	/* What is due and could not be started waits for room. */
	if (until <= now)
		return 100;
	return (long) ((until - now + 999) / 1000);
}

static void
wait_for_something(long timeout_ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout_ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* How long to wait because the last few launchers did not live long. */
static int64
pause_after_launchers(int quick_ends)
{
	if (quick_ends <= MAX_QUICK_ENDS)
		return 0;
	return Min(LONGEST_WAIT_US, USECS_PER_SEC << Min(quick_ends - MAX_QUICK_ENDS, 6));
}

/*
 * A message that crashes its dispatcher would take the whole server down
 * again and again: what is known of dispatchers that fail dies with the
 * shared memory.  So after a crash none is started for a while, which doubles
 * as long as crashes follow on each other.
 */
static int64
pause_after_crashes(void)
{
	int64		pause = outbox_crash_pause(outbox_shared->crashes);

	if (pause > 0)
		ereport(LOG,
				(errmsg("outbox starts no dispatcher for %d s, because the server has crashed", (int) (pause / USECS_PER_SEC)),
				 errdetail("Crashes in a row: %d.", outbox_shared->crashes)));
	return pause;
}

/* Those that were running before this launcher go on meanwhile. */
static void
wait_before_start(int quick_ends)
{
	int64		pause = Max(pause_after_launchers(quick_ends), quick_ends == 0 ? pause_after_crashes() : 0);
	TimestampTz begin = GetCurrentTimestamp();
	TimestampTz now = begin;

	outbox_shared->launcher_waits_until = begin + pause;
	while (!ShutdownRequestPending && now >= begin && now < begin + pause)
	{
		wait_for_something((begin + pause - now) / 1000 + 1);
		now = GetCurrentTimestamp();
	}
}

static void
initialize(void)
{
	HASHCTL		ctl;

	outbox_interrupts_before_connection();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	outbox_interrupts_init(false);
	pgstat_report_appname("outbox launcher");
	outbox_pin_settings();
	wait_before_start(enter_shared_memory());

	databases_context = AllocSetContextCreate(TopMemoryContext, "outbox databases", ALLOCSET_DEFAULT_SIZES);
	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(DatabaseEntry);
	ctl.hcxt = databases_context;
	databases = hash_create("outbox databases", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

void
outbox_launcher_main(Datum main_arg)
{
	initialize();
	pgstat_report_activity(STATE_IDLE, "waiting for databases");

	while (!ShutdownRequestPending)
	{
		TimestampTz now = GetCurrentTimestamp();
		bool		everywhere;

		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		if (take_request(&everywhere) || next_look <= now)
		{
			look_at_databases(now);
			look_at_slots(everywhere);
			outbox_counters_keep(is_known);
		}
		attend_all(now);
		attend_refusing();
		wait_for_something(sleep_time(now));
	}

	/* Not zero: a launcher that was asked to end comes back unless the server stops. */
	proc_exit(1);
}
