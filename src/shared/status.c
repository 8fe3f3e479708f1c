/*-------------------------------------------------------------------------
 *
 * status.c
 *		What outbox.dispatchers shows, and which outcomes cannot be written.
 *
 * Runs in any backend; reads shared memory only.  There is always a row for
 * this database, but on a standby: it says what keeps its dispatcher from
 * running, and what to do about it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/uuid.h"

#include "common/result_set.h"
#include "compat.h"
#include "shared/shmem.h"

PG_FUNCTION_INFO_V1(outbox_sql_dispatchers);
PG_FUNCTION_INFO_V1(outbox_sql_aside);

#define DISPATCHERS_COLUMNS 9
#define ASIDE_COLUMNS 3

static const char *
state_name(OutboxDispatcherState state)
{
	switch (state)
	{
		case OUTBOX_DISPATCHER_STOPPED:
			return "stopped";
		case OUTBOX_DISPATCHER_STARTING:
			return "starting";
		case OUTBOX_DISPATCHER_RUNNING:
			return "running";
		case OUTBOX_DISPATCHER_DISABLED:
			return "disabled";
		case OUTBOX_DISPATCHER_HELD:
			return "held";
		case OUTBOX_DISPATCHER_LOCKED_OUT:
			return "locked out";
		case OUTBOX_DISPATCHER_TERMINATED:
			return "terminated";
		case OUTBOX_DISPATCHER_FAILED:
			return "failed";
		case OUTBOX_DISPATCHER_MISMATCH:
			return "version mismatch";
	}
	return "unknown";
}

static void
put_text(Datum *value, bool *isnull, const char *text)
{
	*isnull = (text == NULL || text[0] == '\0');
	if (!*isnull)
		*value = CStringGetTextDatum(text);
}

/* The row of one slot.  False for one that is free, or whose database is gone or has no outbox. */
static bool
describe_slot(OutboxDatabase *slot, Datum *values, bool *nulls)
{
	Oid			dboid;
	pid_t		pid;
	OutboxDispatcherState state;
	int			in_flight;
	TimestampTz since;
	TimestampTz moved_at;
	TimestampTz shortage_since;
	char		error[OUTBOX_ERROR_LEN];
	char		shortage[OUTBOX_ERROR_LEN];
	char	   *name;

	SpinLockAcquire(&slot->mutex);
	/* Whoever asks could call this function, so there is an outbox here. */
	dboid = slot->installed || slot->dboid == MyDatabaseId ? slot->dboid : InvalidOid;
	pid = slot->pid;
	state = slot->state;
	in_flight = slot->in_flight;
	since = slot->since;
	moved_at = slot->moved_at;
	memcpy(error, slot->last_error, sizeof(error));
	memcpy(shortage, slot->shortage, sizeof(shortage));
	shortage_since = slot->shortage_since;
	SpinLockRelease(&slot->mutex);

	if (!OidIsValid(dboid) || (name = get_database_name(dboid)) == NULL)
		return false;

	memset(nulls, 0, sizeof(bool) * DISPATCHERS_COLUMNS);
	values[0] = DirectFunctionCall1(namein, CStringGetDatum(name));
	nulls[1] = (pid == 0);
	values[1] = Int32GetDatum(pid);
	values[2] = CStringGetTextDatum(state_name(state));
	values[3] = Int32GetDatum(in_flight);
	values[5] = TimestampTzGetDatum(since);
	put_text(&values[4], &nulls[4], error);
	put_text(&values[6], &nulls[6], shortage);
	nulls[7] = nulls[6];
	values[7] = TimestampTzGetDatum(shortage_since);
	nulls[8] = (pid == 0 || moved_at == 0);
	values[8] = TimestampTzGetDatum(moved_at);
	return true;
}

/* A row for this database, of which no slot knows anything. */
static void
describe_database(const char *state, const char *text, Datum *values, bool *nulls)
{
	memset(nulls, 0, sizeof(bool) * DISPATCHERS_COLUMNS);
	values[0] = DirectFunctionCall1(namein, CStringGetDatum(get_database_name(MyDatabaseId)));
	nulls[1] = true;
	values[2] = CStringGetTextDatum(state);
	values[3] = Int32GetDatum(0);
	put_text(&values[4], &nulls[4], text);
	nulls[5] = nulls[6] = nulls[7] = nulls[8] = true;
}

/* The server's dispatchers are not there yet, or no longer, or find no room. */
static const char *
reason_without_slot(void)
{
	TimestampTz waits_until;
	pid_t		launcher;
	int			crashes = outbox_shared->crashes;

	SpinLockAcquire(&outbox_shared->mutex);
	launcher = outbox_shared->launcher_pid;
	waits_until = outbox_shared->launcher_waits_until;
	SpinLockRelease(&outbox_shared->mutex);
	if (launcher == 0)
		return "the outbox launcher is not running";
	if (waits_until > GetCurrentTimestamp())
		return psprintf("the server has crashed (%d times in a row): dispatchers are started again at %s",
						Max(crashes, 1), timestamptz_to_str(waits_until));
	if (outbox_find_database(InvalidOid) == NULL)
		return psprintf("all slots for databases are in use: outbox.max_databases is %d, and at least %d is needed",
						outbox_shared->ndatabases, outbox_shared->ndatabases + 1);
	return NULL;
}

/* outbox_internal.dispatchers() */
Datum
outbox_sql_dispatchers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = outbox_begin_result_set(fcinfo, DISPATCHERS_COLUMNS);
	Datum		values[DISPATCHERS_COLUMNS];
	bool		nulls[DISPATCHERS_COLUMNS];

	if (outbox_shared == NULL)
		describe_database("not preloaded",
						  "nothing is pushed: add outbox to shared_preload_libraries in postgresql.conf "
						  "(shared_preload_libraries = 'outbox') and restart the server", values, nulls);
	else if (outbox_find_database(MyDatabaseId) == NULL && !RecoveryInProgress())
		describe_database("stopped", reason_without_slot(), values, nulls);
	else
		nulls[0] = true;
	if (!nulls[0])
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	if (outbox_shared == NULL)
		return (Datum) 0;

	for (int i = 0; i < outbox_shared->ndatabases; i++)
	{
		if (describe_slot(&outbox_shared->databases[i], values, nulls))
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* outbox_internal.aside() */
Datum
outbox_sql_aside(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = outbox_begin_result_set(fcinfo, ASIDE_COLUMNS);
	OutboxDatabase *slot = outbox_shared == NULL ? NULL : outbox_find_database(MyDatabaseId);
	OutboxAside aside[OUTBOX_MAX_ASIDE];
	int			n;

	if (slot == NULL)
		return (Datum) 0;
	SpinLockAcquire(&slot->mutex);
	n = slot->naside;
	memcpy(aside, slot->aside, sizeof(OutboxAside) * n);
	SpinLockRelease(&slot->mutex);

	for (int i = 0; i < n; i++)
	{
		Datum		values[ASIDE_COLUMNS];
		bool		nulls[ASIDE_COLUMNS] = {false};

		values[0] = UUIDPGetDatum(&aside[i].message_id);
		values[1] = Int32GetDatum(aside[i].handler_id);
		values[2] = TimestampTzGetDatum(aside[i].until);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
