/*-------------------------------------------------------------------------
 *
 * shmem.c
 *		What the launcher, the dispatchers and the backends share.
 *
 * See shmem.h.  A slot is allocated under the LWLock and never moves.  A
 * backend remembers where its own database's slot is and checks that it
 * still is: the launcher gives slots of databases without the extension
 * back, and the extension can be dropped and created again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "guc.h"
#include "shared/counters.h"
#include "shared/pull_state.h"
#include "shared/shmem.h"

/* After a crash, and after how long without one a server counts as one that does not keep crashing. */
#define LONGEST_CRASH_PAUSE_US (60 * USECS_PER_SEC)
#define HEALTHY_US (60 * USECS_PER_SEC)

OutboxShared *outbox_shared = NULL;

static OutboxDatabase *my_database = NULL;

static shmem_startup_hook_type prev_shmem_startup_hook = NULL;
#ifdef OUTBOX_HAVE_SHMEM_REQUEST_HOOK
static shmem_request_hook_type prev_shmem_request_hook = NULL;
#endif

static Size
shared_size(int ndatabases)
{
	return add_size(offsetof(OutboxShared, databases), mul_size(ndatabases, sizeof(OutboxDatabase)));
}

static void
request_shared_memory(void)
{
#ifdef OUTBOX_HAVE_SHMEM_REQUEST_HOOK
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
#endif
	RequestAddinShmemSpace(shared_size(outbox_max_databases));
	RequestAddinShmemSpace(outbox_pull_shmem_size());
	RequestAddinShmemSpace(outbox_counters_shmem_size());
	RequestNamedLWLockTranche("outbox", 1);
}

/* Nobody is there, and nothing is known of who was.  Caller holds the slot's mutex. */
static void
reset_function_slots(OutboxDatabase *db)
{
	memset(db->function_slots, 0, sizeof(db->function_slots));
	for (int i = 0; i < OUTBOX_FUNCTION_PLACES; i++)
		db->function_slots[i].procno = -1;
}

static void
init_database_slot(OutboxDatabase *db)
{
	memset(db, 0, sizeof(OutboxDatabase));
	SpinLockInit(&db->mutex);
	db->procno = -1;
	db->end_noted = db->end_known = DT_NOEND;
	reset_function_slots(db);
	pg_atomic_init_u32(&db->handler_generation, 1);
	pg_atomic_init_u32(&db->route_generation, 1);
	pg_atomic_init_u32(&db->schedule_generation, 1);
	pg_atomic_init_u32(&db->ids_seeded, 0);
}

/*
 * Hand a slot over to a database, or to nobody.  Caller holds the lock
 * exclusively.  The generations go on, so that nobody who remembers one
 * takes an old answer for a new one.
 */
static void
assign_slot(OutboxDatabase *db, Oid dboid)
{
	TimestampTz now = GetCurrentTimestamp();

	/* Another extension there would number its handlers anew. */
	if (OidIsValid(db->dboid))
		outbox_counters_forget_database(db->dboid);
	SpinLockAcquire(&db->mutex);
	db->dboid = dboid;
	db->pid = 0;
	db->procno = -1;
	db->state = OUTBOX_DISPATCHER_STOPPED;
	db->since = now;
	db->moved_at = 0;
	db->in_flight = 0;
	db->sends_nothing = false;
	reset_function_slots(db);
	db->on_settle_wanted = false;
	/* One that is still about leaves nothing behind: it clears only its own entry. */
	db->settler_pid = 0;
	db->last_error[0] = '\0';
	db->naside = 0;
	memset(db->locked_out_by, 0, sizeof(db->locked_out_by));
	db->wanted = false;
	db->installed = false;
	db->nnotices = 0;
	db->overflow = false;
	db->rescan = false;
	db->end_noted = db->end_known = DT_NOEND;
	memset(db->unrouted, 0, sizeof(db->unrouted));
	SpinLockRelease(&db->mutex);
	pg_atomic_write_u32(&db->ids_seeded, 0);
	pg_atomic_fetch_add_u32(&db->handler_generation, 1);
	pg_atomic_fetch_add_u32(&db->route_generation, 1);
	pg_atomic_fetch_add_u32(&db->schedule_generation, 1);
}

int64
outbox_crash_pause(int crashes)
{
	return crashes == 0 ? 0 : Min(LONGEST_CRASH_PAUSE_US, USECS_PER_SEC << Min(crashes - 1, 10));
}

/*
 * Called when the memory is made, by the postmaster, which outlives it: any
 * time but the first is after a crash.  A server that has run for a while
 * since it had waited has got over the crashes before.
 */
static int
count_crashes(void)
{
	static TimestampTz made = 0;
	static int	crashes = 0;
	TimestampTz now = GetCurrentTimestamp();

	if (made != 0)
	{
		if (now - made > outbox_crash_pause(crashes) + HEALTHY_US)
			crashes = 0;
		crashes++;
	}
	made = now;
	return crashes;
}

/* With nobody in it. */
static void
init_shared(OutboxShared *memory, int ndatabases)
{
	memset(memory, 0, offsetof(OutboxShared, databases));
	SpinLockInit(&memory->mutex);
	memory->launcher_procno = -1;
	pg_atomic_init_u64(&memory->workers_lack_until, 0);
	pg_atomic_init_u64(&memory->last_id, 0);
	memory->ndatabases = ndatabases;
	for (int i = 0; i < ndatabases; i++)
		init_database_slot(&memory->databases[i]);
}

static void
startup_shared_memory(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	outbox_shared = ShmemInitStruct("outbox", shared_size(outbox_max_databases), &found);
	if (!found)
	{
		init_shared(outbox_shared, outbox_max_databases);
		outbox_shared->lock = &(GetNamedLWLockTranche("outbox"))->lock;
		outbox_shared->crashes = count_crashes();
	}
	outbox_pull_shmem_startup();
	outbox_counters_shmem_startup();
	LWLockRelease(AddinShmemInitLock);
}

void
outbox_shmem_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
#ifdef OUTBOX_HAVE_SHMEM_REQUEST_HOOK
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shared_memory;
#else
	request_shared_memory();
#endif
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup_shared_memory;
}

Size
outbox_shmem_single_size(void)
{
	return shared_size(1);
}

void
outbox_shmem_single_init(OutboxShared *memory, Oid dboid)
{
	init_shared(memory, 1);
	memory->databases[0].dboid = dboid;
}

void
outbox_shmem_use(OutboxShared *memory)
{
	Assert(outbox_shared == NULL && my_database == NULL);
	outbox_shared = memory;
}

static void
lock_slots(LWLockMode mode)
{
	if (outbox_shared->lock != NULL)
		LWLockAcquire(outbox_shared->lock, mode);
}

static void
unlock_slots(void)
{
	if (outbox_shared->lock != NULL)
		LWLockRelease(outbox_shared->lock);
}

/* Caller holds the lock. */
static OutboxDatabase *
slot_of(Oid dboid)
{
	for (int i = 0; i < outbox_shared->ndatabases; i++)
	{
		if (outbox_shared->databases[i].dboid == dboid)
			return &outbox_shared->databases[i];
	}
	return NULL;
}

OutboxDatabase *
outbox_find_database(Oid dboid)
{
	OutboxDatabase *db;

	if (outbox_shared == NULL)
		return NULL;
	lock_slots(LW_SHARED);
	db = slot_of(dboid);
	unlock_slots();
	return db;
}

OutboxDatabase *
outbox_reserve_database(Oid dboid)
{
	OutboxDatabase *db = outbox_find_database(dboid);

	if (db != NULL || outbox_shared == NULL)
		return db;

	lock_slots(LW_EXCLUSIVE);
	db = slot_of(dboid);
	if (db == NULL && (db = slot_of(InvalidOid)) != NULL)
		assign_slot(db, dboid);
	unlock_slots();
	return db;
}

pid_t
outbox_database_process_locked(const OutboxDatabase *db)
{
	if (db->pid != 0)
		return db->pid;
	for (int i = 0; i < OUTBOX_FUNCTION_PLACES; i++)
	{
		if (db->function_slots[i].pid != 0)
			return db->function_slots[i].pid;
	}
	return db->settler_pid;
}

static bool
is_in_use(OutboxDatabase *db)
{
	bool		in_use;

	SpinLockAcquire(&db->mutex);
	in_use = db->wanted || outbox_database_process_locked(db) != 0;
	SpinLockRelease(&db->mutex);
	return in_use;
}

void
outbox_release_database(Oid dboid)
{
	OutboxDatabase *db;

	if (outbox_shared == NULL)
		return;
	lock_slots(LW_EXCLUSIVE);
	db = slot_of(dboid);
	if (db != NULL && !is_in_use(db))
		assign_slot(db, InvalidOid);
	unlock_slots();
}

OutboxDatabase *
outbox_my_database(void)
{
	/* Read without a lock: where it matters, whoever writes to the slot looks again. */
	if (my_database == NULL || my_database->dboid != MyDatabaseId)
		my_database = outbox_reserve_database(MyDatabaseId);
	return my_database;
}

OutboxDatabase *
outbox_remembered_database(void)
{
	return my_database;
}

void
outbox_wake_launcher(bool look)
{
	int			procno;

	if (outbox_shared == NULL)
		return;
	SpinLockAcquire(&outbox_shared->mutex);
	if (look)
		outbox_shared->launcher_look = true;
	procno = outbox_shared->launcher_procno;
	SpinLockRelease(&outbox_shared->mutex);
	outbox_set_latch(procno);
}

void
outbox_set_latch(int procno)
{
	if (procno >= 0)
		SetLatch(&ProcGlobal->allProcs[procno].procLatch);
}
