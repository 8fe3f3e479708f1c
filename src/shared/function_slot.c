/*-------------------------------------------------------------------------
 *
 * function_slot.c
 *		Where a database's workers that run functions of users are, and what
 *		each is doing.
 *
 * See function_slot.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/function_slot.h"
#include "shared/lockout.h"

static OutboxDatabase *database = NULL;
static OutboxFunctionSlot *place = NULL;
static OutboxFunctionSlot *other = NULL;	/* of on_settle workers */
static pid_t dispatcher = 0;
static int	dispatcher_procno = -1;
static volatile sig_atomic_t overran = false;

/* Whatever way the process ends, the place does not name it any more. */
static void
leave_place(int code, Datum arg)
{
	SpinLockAcquire(&database->mutex);
	place->pid = 0;
	place->procno = -1;
	/* Ids are not used again while the extension is there, so this may stay. */
	if (overran)
		place->overran = place->piece;
	place->owner = 0;
	place->piece = 0;
	SpinLockRelease(&database->mutex);

	if (overran)
		ereport(LOG,
				(errmsg("%s ends because a function did not stop when it was cancelled", MyBgworkerEntry->bgw_type)));
	outbox_set_latch(dispatcher_procno);
}

OutboxDatabase *
outbox_function_slot_take(Oid dboid, OutboxFunctionPlace number)
{
	OutboxDatabase *db = outbox_find_database(dboid);
	bool		taken;

	if (db == NULL)
		return NULL;

	place = &db->function_slots[number];
	if (number <= OUTBOX_PLACE_SPARE)
		other = &db->function_slots[OUTBOX_PLACE_SPARE - number];
	SpinLockAcquire(&db->mutex);
	taken = (db->dboid == dboid && db->pid != 0 && !outbox_is_locked_out_locked(db) && place->pid == 0);
	if (taken)
	{
		place->pid = MyProcPid;
		place->procno = outbox_my_procno();
		place->failed = true;	/* until it leaves of its own accord */
		dispatcher = db->pid;
		dispatcher_procno = db->procno;
	}
	SpinLockRelease(&db->mutex);
	if (!taken)
		return NULL;

	database = db;
	before_shmem_exit(leave_place, (Datum) 0);
	return db;
}

bool
outbox_function_slot_must_leave(void)
{
	bool		leave;

	SpinLockAcquire(&database->mutex);
	leave = (database->pid != dispatcher || outbox_is_locked_out_locked(database));
	SpinLockRelease(&database->mutex);
	return leave;
}

bool
outbox_function_slot_on_settle_is_wanted(void)
{
	/* A single word: no need for the lock. */
	return database->on_settle_wanted;
}

bool
outbox_function_slot_begin(int32 owner, int64 piece)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		begun;

	SpinLockAcquire(&database->mutex);
	begun = (other == NULL || other->owner != owner);
	if (begun)
	{
		place->owner = owner;
		place->piece = piece;
		place->since = now;
	}
	SpinLockRelease(&database->mutex);
	return begun;
}

void
outbox_function_slot_end(void)
{
	SpinLockAcquire(&database->mutex);
	place->owner = 0;
	place->piece = 0;
	SpinLockRelease(&database->mutex);
}

int32
outbox_function_slot_other(void)
{
	int32		owner;

	SpinLockAcquire(&database->mutex);
	owner = other->owner;
	SpinLockRelease(&database->mutex);
	return owner;
}

void
outbox_function_slot_wake_other(void)
{
	int			procno;

	SpinLockAcquire(&database->mutex);
	procno = other->pid != 0 ? other->procno : -1;
	SpinLockRelease(&database->mutex);
	outbox_set_latch(procno);
}

void
outbox_function_slot_wake_dispatcher(void)
{
	outbox_set_latch(dispatcher_procno);
}

void
outbox_function_slot_set_overran(void)
{
	overran = true;
}

bool
outbox_function_slot_has_overrun(int64 piece)
{
	bool		found;

	SpinLockAcquire(&database->mutex);
	found = (place->overran == piece || (other != NULL && other->overran == piece));
	SpinLockRelease(&database->mutex);
	return found;
}

void
outbox_function_slot_forget_overrun(void)
{
	SpinLockAcquire(&database->mutex);
	place->overran = 0;
	SpinLockRelease(&database->mutex);
}

bool
outbox_function_slot_dispatcher_is_busy(void)
{
	bool		busy;

	SpinLockAcquire(&database->mutex);
	busy = database->in_flight > 0 || database->settler_pid != 0;
	SpinLockRelease(&database->mutex);
	return busy;
}

void
outbox_function_slot_leave(void)
{
	SpinLockAcquire(&database->mutex);
	place->failed = false;
	SpinLockRelease(&database->mutex);
}

void
outbox_function_slot_view(OutboxDatabase *db, OutboxFunctionPlace number, OutboxFunctionSlotView *view)
{
	const OutboxFunctionSlot *slot = &db->function_slots[number];

	SpinLockAcquire(&db->mutex);
	view->pid = slot->pid;
	view->procno = slot->procno;
	view->failed = slot->failed;
	view->owner = slot->owner;
	view->since = slot->since;
	SpinLockRelease(&db->mutex);
}

void
outbox_function_slots_wake(OutboxDatabase *db)
{
	for (int i = 0; i < OUTBOX_FUNCTION_PLACES; i++)
	{
		OutboxFunctionSlotView view;

		outbox_function_slot_view(db, i, &view);
		if (view.pid != 0)
			outbox_set_latch(view.procno);
	}
}

void
outbox_function_slots_terminate(OutboxDatabase *db)
{
	for (int i = 0; i < OUTBOX_FUNCTION_PLACES; i++)
	{
		OutboxFunctionSlotView view;

		outbox_function_slot_view(db, i, &view);
		if (view.pid != 0)
			kill(view.pid, SIGTERM);
	}
}
