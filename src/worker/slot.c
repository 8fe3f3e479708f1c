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
#include "shared/errand.h"
#include "shared/lockout.h"
#include "worker/slot.h"

static OutboxDatabase *slot = NULL;
static OutboxDispatcherState leave_state = OUTBOX_DISPATCHER_FAILED;
static char database_name[NAMEDATALEN] = "";

/* Whatever way the process ends, the slot does not name it any more. */
static void
leave_slot(int code, Datum arg)
{
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&slot->mutex);
	slot->pid = 0;
	slot->procno = -1;
	slot->in_flight = 0;
	slot->naside = 0;
	slot->sends_nothing = false;
	slot->shortage[0] = '\0';
	slot->state = leave_state;
	if (leave_state == OUTBOX_DISPATCHER_STOPPED)
	{
		slot->installed = false;
		/* Another extension here would number its rows anew. */
		for (int i = 0; i < OUTBOX_FUNCTION_PLACES; i++)
			slot->function_slots[i].overran = 0;
	}
	slot->since = now;
	SpinLockRelease(&slot->mutex);
	outbox_wake_launcher(false);
}

typedef enum TakeResult
{
	TAKEN,
	REFUSED,					/* occupied or locked out */
	MOVED						/* the launcher has given the slot to somebody else */
} TakeResult;

static TakeResult
try_take(OutboxDatabase *db, Oid dboid)
{
	TimestampTz now = GetCurrentTimestamp();
	TakeResult	result = REFUSED;

	SpinLockAcquire(&db->mutex);
	if (db->dboid != dboid)
		result = MOVED;
	else if (db->pid == 0 && outbox_is_locked_out_locked(db))
	{
		/* The launcher is not to take this for a failure. */
		db->state = OUTBOX_DISPATCHER_LOCKED_OUT;
		db->since = now;
	}
	else if (db->pid == 0)
	{
		db->pid = MyProcPid;
		db->procno = outbox_my_procno();
		db->moved_at = 0;
		db->state = OUTBOX_DISPATCHER_STARTING;
		db->since = now;
		result = TAKEN;
	}
	SpinLockRelease(&db->mutex);
	return result;
}

OutboxDatabase *
outbox_slot_take(Oid dboid)
{
	OutboxDatabase *db;
	TakeResult	result;

	do
	{
		db = outbox_reserve_database(dboid);
		if (db == NULL)
			return NULL;
		result = try_take(db, dboid);
	} while (result == MOVED);
	if (result == REFUSED)
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
outbox_slot_name(const char *database)
{
	strlcpy(database_name, database, sizeof(database_name));
	SpinLockAcquire(&slot->mutex);
	slot->installed = true;
	SpinLockRelease(&slot->mutex);
}

/* One line for each change of state, for whoever reads only the log. */
static void
log_state(OutboxDispatcherState state, const char *text)
{
	switch (state)
	{
		case OUTBOX_DISPATCHER_RUNNING:
			ereport(LOG, (errmsg("outbox dispatcher for database \"%s\" is running", database_name)));
			break;
		case OUTBOX_DISPATCHER_DISABLED:
			ereport(LOG, (errmsg("outbox dispatcher for database \"%s\" sends nothing: outbox.enabled is off", database_name)));
			break;
		case OUTBOX_DISPATCHER_HELD:
			ereport(LOG,
					(errmsg("outbox dispatcher for database \"%s\" holds its deliveries", database_name),
					 errdetail("%c%s.", pg_toupper((unsigned char) text[0]), text + 1)));
			break;
		default:
			break;
	}
}

void
outbox_slot_state(OutboxDispatcherState state, const char *text)
{
	TimestampTz now = GetCurrentTimestamp();
	OutboxDispatcherState before;
	char		error[OUTBOX_ERROR_LEN];

	to_ascii(error, text);
	SpinLockAcquire(&slot->mutex);
	before = slot->state;
	if (before != state)
		slot->since = now;
	slot->state = state;
	memcpy(slot->last_error, error, sizeof(error));
	SpinLockRelease(&slot->mutex);

	if (before != state && !outbox_errand_runs())
		log_state(state, text);
	/* The launcher starts only so many at a time. */
	if (before == OUTBOX_DISPATCHER_STARTING)
		outbox_wake_launcher(false);
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
outbox_slot_moves(int in_flight, TimestampTz now)
{
	/* Single words that only this process writes: no need for the lock. */
	slot->in_flight = in_flight;
	slot->moved_at = now;
}

void
outbox_slot_shortage(const char *text, TimestampTz since)
{
	char		shortage[OUTBOX_ERROR_LEN];

	/* As a rule there is none, and was none. */
	if (text == NULL && slot->shortage[0] == '\0')
		return;
	to_ascii(shortage, text);
	SpinLockAcquire(&slot->mutex);
	memcpy(slot->shortage, shortage, sizeof(shortage));
	slot->shortage_since = since;
	SpinLockRelease(&slot->mutex);
}

void
outbox_slot_aside(const OutboxAside *aside, int n)
{
	SpinLockAcquire(&slot->mutex);
	slot->naside = n;
	memcpy(slot->aside, aside, sizeof(OutboxAside) * n);
	SpinLockRelease(&slot->mutex);
}

void
outbox_slot_sends(bool sends)
{
	SpinLockAcquire(&slot->mutex);
	slot->sends_nothing = !sends;
	SpinLockRelease(&slot->mutex);
}

bool
outbox_slot_is_locked_out(void)
{
	bool		locked_out;

	SpinLockAcquire(&slot->mutex);
	locked_out = outbox_is_locked_out_locked(slot);
	SpinLockRelease(&slot->mutex);
	return locked_out;
}

void
outbox_slot_leave(OutboxDispatcherState state, const char *text)
{
	leave_state = state;
	if (text)
		outbox_slot_error(text);
}
