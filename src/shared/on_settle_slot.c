/*-------------------------------------------------------------------------
 *
 * on_settle_slot.c
 *		Where a database's on_settle workers are, and what each is doing.
 *
 * See on_settle_slot.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/lockout.h"
#include "shared/on_settle_slot.h"

static OutboxDatabase *database = NULL;
static OutboxOnSettleSlot *place = NULL;
static OutboxOnSettleSlot *other = NULL;
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
		place->overran = place->queue_id;
	place->handler_id = 0;
	place->queue_id = 0;
	SpinLockRelease(&database->mutex);

	if (overran)
		ereport(LOG,
				(errmsg("outbox on_settle worker ends because an on_settle function did not stop when it was cancelled")));
	outbox_set_latch(dispatcher_procno);
}

OutboxDatabase *
outbox_on_settle_slot_take(Oid dboid, int number)
{
	OutboxDatabase *db = outbox_find_database(dboid);
	bool		taken;

	if (db == NULL)
		return NULL;

	place = &db->on_settle_slots[number];
	other = &db->on_settle_slots[1 - number];
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
outbox_on_settle_slot_must_leave(void)
{
	bool		leave;

	SpinLockAcquire(&database->mutex);
	leave = (database->pid != dispatcher || outbox_is_locked_out_locked(database));
	SpinLockRelease(&database->mutex);
	return leave;
}

bool
outbox_on_settle_slot_is_wanted(void)
{
	/* A single word: no need for the lock. */
	return database->on_settle_wanted;
}

bool
outbox_on_settle_slot_begin(int32 handler_id, int64 queue_id)
{
	TimestampTz now = GetCurrentTimestamp();
	bool		begun;

	SpinLockAcquire(&database->mutex);
	begun = (other->handler_id != handler_id);
	if (begun)
	{
		place->handler_id = handler_id;
		place->queue_id = queue_id;
		place->since = now;
	}
	SpinLockRelease(&database->mutex);
	return begun;
}

void
outbox_on_settle_slot_end(void)
{
	SpinLockAcquire(&database->mutex);
	place->handler_id = 0;
	place->queue_id = 0;
	SpinLockRelease(&database->mutex);
}

int32
outbox_on_settle_slot_other(void)
{
	int32		handler_id;

	SpinLockAcquire(&database->mutex);
	handler_id = other->handler_id;
	SpinLockRelease(&database->mutex);
	return handler_id;
}

void
outbox_on_settle_slot_wake_other(void)
{
	int			procno;

	SpinLockAcquire(&database->mutex);
	procno = other->pid != 0 ? other->procno : -1;
	SpinLockRelease(&database->mutex);
	outbox_set_latch(procno);
}

void
outbox_on_settle_slot_wake_dispatcher(void)
{
	outbox_set_latch(dispatcher_procno);
}

void
outbox_on_settle_slot_set_overran(void)
{
	overran = true;
}

bool
outbox_on_settle_slot_has_overrun(int64 queue_id)
{
	bool		found;

	SpinLockAcquire(&database->mutex);
	found = (place->overran == queue_id || other->overran == queue_id);
	SpinLockRelease(&database->mutex);
	return found;
}

void
outbox_on_settle_slot_leave(void)
{
	SpinLockAcquire(&database->mutex);
	place->failed = false;
	SpinLockRelease(&database->mutex);
}

void
outbox_on_settle_view(OutboxDatabase *db, int number, OutboxOnSettleView *view)
{
	const OutboxOnSettleSlot *slot = &db->on_settle_slots[number];

	SpinLockAcquire(&db->mutex);
	view->pid = slot->pid;
	view->procno = slot->procno;
	view->failed = slot->failed;
	view->handler_id = slot->handler_id;
	view->since = slot->since;
	SpinLockRelease(&db->mutex);
}

void
outbox_on_settle_wake(OutboxDatabase *db)
{
	for (int i = 0; i < OUTBOX_ON_SETTLE_WORKERS; i++)
	{
		OutboxOnSettleView view;

		outbox_on_settle_view(db, i, &view);
		if (view.pid != 0)
			outbox_set_latch(view.procno);
	}
}

void
outbox_on_settle_terminate(OutboxDatabase *db)
{
	for (int i = 0; i < OUTBOX_ON_SETTLE_WORKERS; i++)
	{
		OutboxOnSettleView view;

		outbox_on_settle_view(db, i, &view);
		if (view.pid != 0)
			kill(view.pid, SIGTERM);
	}
}
