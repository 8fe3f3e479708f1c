/*-------------------------------------------------------------------------
 *
 * slot.c
 *		A dispatcher's hold on its database's slot in shared memory.
 *
 * See slot.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/slot.h"

static OutboxDatabase *slot = NULL;
static OutboxDispatcherState leave_state = OUTBOX_DISPATCHER_FAILED;

static void
wake_launcher(void)
{
	int			procno;

	SpinLockAcquire(&outbox_shared->mutex);
	procno = outbox_shared->launcher_procno;
	SpinLockRelease(&outbox_shared->mutex);
	outbox_set_latch(procno);
}

/* Whatever way the process ends, the slot does not name it any more. */
static void
leave_slot(int code, Datum arg)
{
	SpinLockAcquire(&slot->mutex);
	slot->pid = 0;
	slot->procno = -1;
	slot->in_flight = 0;
	slot->state = leave_state;
	slot->since = GetCurrentTimestamp();
	SpinLockRelease(&slot->mutex);
	wake_launcher();
}

OutboxDatabase *
outbox_slot_take(Oid dboid)
{
	OutboxDatabase *db = outbox_reserve_database(dboid);
	bool		taken;

	if (db == NULL)
		return NULL;

	SpinLockAcquire(&db->mutex);
	taken = (db->pid == 0 && db->barred_by == 0);
	if (taken)
	{
		db->pid = MyProcPid;
		db->procno = outbox_my_procno();
		db->state = OUTBOX_DISPATCHER_STARTING;
		db->since = GetCurrentTimestamp();
	}
	SpinLockRelease(&db->mutex);
	if (!taken)
		return NULL;

	slot = db;
	before_shmem_exit(leave_slot, (Datum) 0);
	return db;
}

/*
 * The slot is read from databases of any encoding, so only ASCII goes in.
 * Done before the spinlock is taken.
 */
static void
to_ascii(char *out, const char *text)
{
	int			i = 0;

	for (; text != NULL && text[i] != '\0' && i < OUTBOX_ERROR_LEN - 1; i++)
		out[i] = (unsigned char) text[i] < 0x80 ? text[i] : '?';
	out[i] = '\0';
}

void
outbox_slot_state(OutboxDispatcherState state, const char *text)
{
	TimestampTz now = GetCurrentTimestamp();
	char		error[OUTBOX_ERROR_LEN];

	to_ascii(error, text);
	SpinLockAcquire(&slot->mutex);
	if (slot->state != state)
		slot->since = now;
	slot->state = state;
	memcpy(slot->last_error, error, sizeof(error));
	SpinLockRelease(&slot->mutex);
}

void
outbox_slot_error(const char *text)
{
	char		error[OUTBOX_ERROR_LEN];

	to_ascii(error, text);
	SpinLockAcquire(&slot->mutex);
	memcpy(slot->last_error, error, sizeof(error));
	SpinLockRelease(&slot->mutex);
}

void
outbox_slot_in_flight(int in_flight)
{
	/* A single word that only this process writes: no need for the lock. */
	slot->in_flight = in_flight;
}

bool
outbox_slot_is_barred(void)
{
	pid_t		barred_by;

	SpinLockAcquire(&slot->mutex);
	barred_by = slot->barred_by;
	SpinLockRelease(&slot->mutex);
	return barred_by != 0;
}

void
outbox_slot_leave(OutboxDispatcherState state)
{
	leave_state = state;
}
