/*-------------------------------------------------------------------------
 *
 * times.c
 *		What SQL asks about the times of schedules.
 *
 * outbox.next_runs() for everybody who writes a cron expression, and what the
 * functions of schedules need.  Runs in a backend or in a worker that runs
 * schedules; reads no table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/result_set.h"
#include "schedule/recurrence.h"
#include "schedule/zone.h"

#define MOST_RUNS 1000

PG_FUNCTION_INFO_V1(outbox_sql_next_runs);
PG_FUNCTION_INFO_V1(outbox_sql_next_run);
PG_FUNCTION_INFO_V1(outbox_sql_due_runs);

static void
parse(const char *text, OutboxCron *cron)
{
	OutboxCronError error;

	if (!outbox_cron_parse(text, cron, &error))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid cron expression \"%s\": %s", text, error.reason),
				 errdetail("The error is at character %d.", pg_mbstrlen_with_len(text, error.position) + 1),
				 errhint("It has five fields: minute, hour, day of the month, month and day of the week, or six with seconds in front. outbox.next_runs() shows what one means.")));
}

static void
set_cron(OutboxRecurrence *recurrence, const char *cron, const char *timezone)
{
	recurrence->every = 0;
	parse(cron, &recurrence->cron);
	outbox_zone_find(timezone, &recurrence->zone);
}

static int
number_of_runs(FunctionCallInfo fcinfo, int argno)
{
	int			n = PG_ARGISNULL(argno) ? 0 : PG_GETARG_INT32(argno);

	if (n < 1 || n > MOST_RUNS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid number of runs: %d", n),
				 errhint("It is a number from 1 to %d.", MOST_RUNS)));
	return n;
}

static TimestampTz
time_to_begin(FunctionCallInfo fcinfo, int argno)
{
	TimestampTz after = PG_ARGISNULL(argno) ? GetCurrentTimestamp() : PG_GETARG_TIMESTAMPTZ(argno);

	if (TIMESTAMP_NOT_FINITE(after))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"after\" must be a finite time"),
				 errhint("Leave it out for now.")));
	return after;
}

/* outbox.next_runs(cron, timezone, after, n) */
Datum
outbox_sql_next_runs(PG_FUNCTION_ARGS)
{
	OutboxRecurrence recurrence;
	TimestampTz at;
	int			n;
	ReturnSetInfo *result;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("cron and timezone must not be null"),
				 errhint("Leave timezone out for UTC.")));
	set_cron(&recurrence, text_to_cstring(PG_GETARG_TEXT_PP(0)), text_to_cstring(PG_GETARG_TEXT_PP(1)));
	at = time_to_begin(fcinfo, 2);
	n = number_of_runs(fcinfo, 3);

	result = outbox_begin_result_set(fcinfo, 1);
	while (n-- > 0)
	{
		Datum		value;
		bool		isnull = false;

		CHECK_FOR_INTERRUPTS();
		at = outbox_occurrence_after(&recurrence, at);
		if (at == DT_NOEND)
			break;
		value = TimestampTzGetDatum(at);
		tuplestore_putvalues(result->setResult, result->setDesc, &value, &isnull);
	}
	return (Datum) 0;
}

/*
 * What the first four arguments say: cron, timezone, every and the anchor of
 * that.  False if too many of those, or of what comes behind, are null.
 */
static bool
get_recurrence(FunctionCallInfo fcinfo, OutboxRecurrence *recurrence)
{
	for (int i = 4; i < PG_NARGS(); i++)
	{
		if (PG_ARGISNULL(i))
			return false;
	}
	if (PG_ARGISNULL(2) ? PG_ARGISNULL(0) || PG_ARGISNULL(1) : PG_ARGISNULL(3))
		return false;
	if (!PG_ARGISNULL(2))
	{
		Interval   *every = PG_GETARG_INTERVAL_P(2);

		recurrence->every = every->time + every->day * USECS_PER_DAY;
		recurrence->anchor = PG_GETARG_TIMESTAMPTZ(3);
	}
	else
		set_cron(recurrence, text_to_cstring(PG_GETARG_TEXT_PP(0)), text_to_cstring(PG_GETARG_TEXT_PP(1)));
	return true;
}

/* outbox_internal.next_run(cron, timezone, every, anchor, after) */
Datum
outbox_sql_next_run(PG_FUNCTION_ARGS)
{
	OutboxRecurrence recurrence;
	TimestampTz run;

	if (!get_recurrence(fcinfo, &recurrence))
		PG_RETURN_NULL();
	run = outbox_occurrence_after(&recurrence, PG_GETARG_TIMESTAMPTZ(4));
	if (run == DT_NOEND)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(run);
}

/* outbox_internal.due_runs(cron, timezone, every, anchor, first, until, keep) */
Datum
outbox_sql_due_runs(PG_FUNCTION_ARGS)
{
	OutboxRecurrence recurrence;
	int64		passed;
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {false, false};

	if (!get_recurrence(fcinfo, &recurrence))
		PG_RETURN_NULL();
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = TimestampTzGetDatum(outbox_occurrence_among_newest(&recurrence, PG_GETARG_TIMESTAMPTZ(4), PG_GETARG_TIMESTAMPTZ(5),
																   Min(PG_GETARG_INT32(6), OUTBOX_MOST_KEPT), &passed));
	values[1] = Int64GetDatum(passed);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
