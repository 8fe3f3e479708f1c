/*-------------------------------------------------------------------------
 *
 * lockout.c
 *		Keeps dispatchers out of a database that a command needs for itself.
 *
 * See lockout.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/procarray.h"

#include "shared/lockout.h"

static bool raised = false;		/* this backend has a lockout somewhere */
static pid_t exempt_from = 0;	/* whose lockouts do not count here; 0: nobody's */

/* Caller holds the mutex. */
static pid_t *
entry_of(OutboxDatabase *slot, pid_t pid)
{
	for (int i = 0; i < OUTBOX_MAX_LOCKOUTS; i++)
	{
		if (slot->locked_out_by[i] == pid)
			return &slot->locked_out_by[i];
	}
	return NULL;
}

bool
outbox_lockout_raise(OutboxDatabase *slot, pid_t *pid, int *procno)
{
	pid_t	   *entry;

	SpinLockAcquire(&slot->mutex);
	entry = entry_of(slot, MyProcPid);
	if (entry == NULL)
		entry = entry_of(slot, 0);
	if (entry != NULL)
		*entry = MyProcPid;
	/* What the dispatcher has started ends with it, but may take a little longer. */
	*pid = outbox_database_process_locked(slot);
	*procno = slot->procno;
	SpinLockRelease(&slot->mutex);

	if (entry != NULL)
		raised = true;
	return entry != NULL;
}

void
outbox_lockouts_lower(void)
{
	if (!raised)
		return;
	raised = false;
	for (int i = 0; i < outbox_shared->ndatabases; i++)
	{
		OutboxDatabase *slot = &outbox_shared->databases[i];
		pid_t	   *entry;

		SpinLockAcquire(&slot->mutex);
		entry = entry_of(slot, MyProcPid);
		if (entry != NULL)
			*entry = 0;
		SpinLockRelease(&slot->mutex);
	}
	outbox_wake_launcher(true);
}

void
outbox_lockout_exempt(pid_t session)
{
	exempt_from = session;
}

bool
outbox_is_locked_out_locked(const OutboxDatabase *slot)
{
	for (int i = 0; i < OUTBOX_MAX_LOCKOUTS; i++)
	{
		if (slot->locked_out_by[i] != 0 && slot->locked_out_by[i] != exempt_from)
			return true;
	}
	return false;
}

bool
outbox_lockout_is_up(OutboxDatabase *slot)
{
	pid_t		pids[OUTBOX_MAX_LOCKOUTS];
	bool		up = false;

	SpinLockAcquire(&slot->mutex);
	memcpy(pids, slot->locked_out_by, sizeof(pids));
	SpinLockRelease(&slot->mutex);

	for (int i = 0; i < OUTBOX_MAX_LOCKOUTS; i++)
	{
		if (pids[i] == 0)
			continue;
		if (BackendPidGetProc(pids[i]) != NULL)
		{
			up = true;
			continue;
		}
		SpinLockAcquire(&slot->mutex);
		if (slot->locked_out_by[i] == pids[i])
			slot->locked_out_by[i] = 0;
		SpinLockRelease(&slot->mutex);
	}
	return up;
}
