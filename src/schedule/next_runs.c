/*-------------------------------------------------------------------------
 *
 * next_runs.c
 *		outbox.next_runs(): what a cron expression means.
 *
 * Runs in the caller's backend; reads no table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/result_set.h"
#include "schedule/cron.h"
#include "schedule/zone.h"

#define MOST_RUNS 1000

PG_FUNCTION_INFO_V1(outbox_sql_next_runs);

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
	OutboxCron	cron;
	OutboxZone	zone;
	int64		seconds;
	int			n;
	ReturnSetInfo *result;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("cron and timezone must not be null"),
				 errhint("Leave timezone out for UTC.")));
	parse(text_to_cstring(PG_GETARG_TEXT_PP(0)), &cron);
	outbox_zone_find(text_to_cstring(PG_GETARG_TEXT_PP(1)), &zone);
	seconds = outbox_unix_seconds(time_to_begin(fcinfo, 2));
	n = number_of_runs(fcinfo, 3);

	result = outbox_begin_result_set(fcinfo, 1);
	while (n-- > 0)
	{
		TimestampTz run;
		Datum		value;
		bool		isnull = false;

		CHECK_FOR_INTERRUPTS();
		seconds = outbox_cron_next(&cron, &zone, seconds);
		if (!outbox_from_unix_seconds(seconds, &run))
			break;
		value = TimestampTzGetDatum(run);
		tuplestore_putvalues(result->setResult, result->setDesc, &value, &isnull);
	}
	return (Datum) 0;
}
