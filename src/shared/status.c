/*-------------------------------------------------------------------------
 *
 * status.c
 *		What outbox.dispatchers shows.
 *
 * Runs in any backend; reads shared memory only.  Without preload it shows
 * one row for this database that says what to do about it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/result_set.h"
#include "compat.h"
#include "shared/shmem.h"

PG_FUNCTION_INFO_V1(outbox_sql_dispatchers);

#define DISPATCHERS_COLUMNS 6

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
	char		error[OUTBOX_ERROR_LEN];
	char	   *name;

	SpinLockAcquire(&slot->mutex);
	dboid = slot->installed ? slot->dboid : InvalidOid;
	pid = slot->pid;
	state = slot->state;
	in_flight = slot->in_flight;
	since = slot->since;
	memcpy(error, slot->last_error, sizeof(error));
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
	return true;
}

/* The one row to be shown when the server does not preload the library. */
static void
describe_not_preloaded(Datum *values, bool *nulls)
{
	memset(nulls, 0, sizeof(bool) * DISPATCHERS_COLUMNS);
	values[0] = DirectFunctionCall1(namein, CStringGetDatum(get_database_name(MyDatabaseId)));
	nulls[1] = true;
	values[2] = CStringGetTextDatum("not preloaded");
	values[3] = Int32GetDatum(0);
	values[4] = CStringGetTextDatum("nothing is pushed: add outbox to shared_preload_libraries in postgresql.conf "
									"(shared_preload_libraries = 'outbox') and restart the server");
	nulls[5] = true;
}

/* outbox._dispatchers() */
Datum
outbox_sql_dispatchers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = outbox_begin_result_set(fcinfo, DISPATCHERS_COLUMNS);
	Datum		values[DISPATCHERS_COLUMNS];
	bool		nulls[DISPATCHERS_COLUMNS];

	if (outbox_shared == NULL)
	{
		describe_not_preloaded(values, nulls);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		return (Datum) 0;
	}

	for (int i = 0; i < outbox_shared->ndatabases; i++)
	{
		if (describe_slot(&outbox_shared->databases[i], values, nulls))
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
