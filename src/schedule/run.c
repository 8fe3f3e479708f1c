/*-------------------------------------------------------------------------
 *
 * run.c
 *		Has due occurrences of schedules take place.
 *
 * See run.h; and the same by hand, outbox.run_schedules() and outbox.run_now(),
 * in the caller's backend.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "common/query_row.h"
#include "common/redaction.h"
#include "common/session.h"
#include "common/sql_version.h"
#include "common/user_function.h"
#include "compat.h"
#include "schedule/run.h"

PG_FUNCTION_INFO_V1(outbox_sql_run_schedules);
PG_FUNCTION_INFO_V1(outbox_sql_run_now);

/* Schedules that one transaction looks after: fewer than the subtransactions that a backend shows to others. */
#define MESSAGES_AT_ONCE "50"

/* A call of outbox.run_schedules() goes on for so long. */
#define LONGEST_CALL_US (60 * USECS_PER_SEC)

static OutboxPlan messages_plan = {
	.sql = "SELECT outbox_internal.run_messages(" MESSAGES_AT_ONCE ")",
};

static OutboxPlan begin_plan = {
	.sql = "SELECT function, timeout_ms, occurrence, schedule_id, scheduled_at, attempt, passed, following "
	"FROM outbox_internal.begin_occurrence()",
};

/* What an occurrence with a function begins with. */
typedef enum BeginColumn
{
	COL_FUNCTION = 1,
	COL_TIMEOUT,
	COL_OCCURRENCE,
	COL_SCHEDULE_ID
} BeginColumn;

static OutboxPlan end_plan = {
	.sql = "SELECT outbox_internal.end_occurrence($1, $2, $3, $4, $5, $6)",
	.nargs = 6,
	.argtypes = {INT4OID, TIMESTAMPTZOID, INT4OID, INT8OID, TIMESTAMPTZOID, TEXTOID},
};

static OutboxPlan now_plan = {
	.sql = "SELECT function, timeout_ms, occurrence, message_id FROM outbox_internal.run_now($1, $2)",
	.nargs = 2,
	.argtypes = {TEXTOID, TIMESTAMPTZOID},
};

static OutboxPlan check_plan = {
	.sql = "SELECT outbox_internal.check_may_run()",
};

static OutboxPlan events_plan = {
	.sql = "SELECT outbox_internal.tell_events()",
};

bool
outbox_schedules_tell_events(void)
{
	OutboxQueryRow row;

	outbox_execute(&events_plan, NULL, NULL, false, 1, SPI_OK_SELECT);
	row = outbox_query_row(0);
	return outbox_query_bool(&row, 1);
}

int
outbox_schedules_run_messages(void)
{
	OutboxQueryRow row;

	outbox_execute(&messages_plan, NULL, NULL, false, 1, SPI_OK_SELECT);
	row = outbox_query_row(0);
	return outbox_query_int32(&row, 1);
}

/* Run the function that a row names, for the occurrence in it.  Returns why it failed, or NULL. */
static char *
call_function(const OutboxQueryRow *row)
{
	bool		isnull;
	OutboxUserFunction function = {
		.what = "function",
		.name = outbox_query_text(row, COL_FUNCTION),
		.type = SPI_gettypeid(row->desc, COL_OCCURRENCE),
		.argument = outbox_query_datum(row, COL_OCCURRENCE, &isnull),
		.timeout_ms = outbox_query_int32(row, COL_TIMEOUT),
		.timeout_option = "the schedule's timeout"
	};

	return outbox_redact_failure(outbox_user_function_call(&function));
}

bool
outbox_schedules_run_function(bool (*begin) (int32 schedule_id))
{
	OutboxQueryRow row;
	Datum		values[6];
	char		nulls[6];
	const char *failure;
	int32		schedule_id;
	bool		isnull;

	outbox_execute(&begin_plan, NULL, NULL, false, 1, SPI_OK_SELECT);
	row = outbox_query_row(0);
	schedule_id = outbox_query_int32(&row, COL_SCHEDULE_ID);
	if (schedule_id == 0)
		return false;

	if (begin != NULL && !begin(schedule_id))
		failure = "function did not stop when it was cancelled, after the schedule's timeout";
	else
		failure = call_function(&row);
	for (int i = 0; i < 5; i++)
	{
		values[i] = outbox_query_datum(&row, COL_SCHEDULE_ID + i, &isnull);
		nulls[i] = isnull ? 'n' : ' ';
	}
	nulls[5] = ' ';
	outbox_bind_text(values, nulls, 5, failure);
	outbox_execute(&end_plan, values, nulls, false, 1, SPI_OK_SELECT);
	return true;
}

static void
check_may_run(FunctionCallInfo fcinfo)
{
	OutboxSecurity caller;

	if (outbox_called_in_transaction_block(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("outbox.run_schedules() cannot run inside a transaction block"),
				 errdetail("Each occurrence is a transaction of its own."),
				 errhint("CALL it by itself.")));
	outbox_require_writable("outbox.run_schedules()");
	outbox_require_sql(OUTBOX_MAY_STAGE);
	outbox_become_owner(&caller);
	outbox_execute(&check_plan, NULL, NULL, false, 1, SPI_OK_SELECT);
	outbox_become_caller(&caller);
}

static bool
run_messages(void)
{
	return outbox_schedules_run_messages() > 0;
}

static bool
run_function(void)
{
	return outbox_schedules_run_function(NULL);
}

/* Some of what is due, in a transaction that ends with it; false if nothing is. */
static bool
run_some(bool (*run) (void))
{
	OutboxSecurity caller;
	bool		ran;
	int			nestlevel;

	CHECK_FOR_INTERRUPTS();
	outbox_become_owner(&caller);
	nestlevel = NewGUCNestLevel();
	outbox_hide_values();
	ran = run();
	AtEOXact_GUC(false, nestlevel);
	outbox_become_caller(&caller);
	SPI_commit();
	return ran;
}

/* CALL outbox.run_schedules() */
Datum
outbox_sql_run_schedules(PG_FUNCTION_ARGS)
{
	TimestampTz begin = GetCurrentTimestamp();
	bool		ran = true;

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	check_may_run(fcinfo);
	while (ran && !TimestampDifferenceExceeds(begin, GetCurrentTimestamp(), LONGEST_CALL_US / 1000))
	{
		/* A function may take its time: first what does not. */
		while (run_some(run_messages))
			;
		while (run_some(outbox_schedules_tell_events))
			;
		ran = run_some(run_function);
	}
	SPI_finish();
	PG_RETURN_VOID();
}

/* outbox.run_now(name, scheduled_at) */
Datum
outbox_sql_run_now(PG_FUNCTION_ARGS)
{
	OutboxSecurity caller;
	Datum		values[2] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1)};
	char		nulls[3] = {PG_ARGISNULL(0) ? 'n' : ' ', PG_ARGISNULL(1) ? 'n' : ' ', '\0'};
	OutboxQueryRow row;
	bool		isnull;
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));
	Datum		found;
	char	   *failure = NULL;
	int			nestlevel;

	outbox_require_writable("outbox.run_now()");
	outbox_require_sql(OUTBOX_MAY_STAGE);
	SPI_connect();
	outbox_become_owner(&caller);
	nestlevel = NewGUCNestLevel();
	outbox_hide_values();
	outbox_execute(&now_plan, values, nulls, false, 1, SPI_OK_SELECT);
	row = outbox_query_row(0);
	(void) outbox_query_datum(&row, COL_FUNCTION, &isnull);
	if (!isnull)
		failure = call_function(&row);
	if (failure != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("the function of schedule \"%s\" failed", text_to_cstring(DatumGetTextPP(values[0]))),
				 errdetail_internal("%s", failure),
				 errhint("Nothing that it wrote stays.")));
	found = outbox_query_datum(&row, COL_OCCURRENCE + 1, &isnull);
	if (!isnull)
		*id = *DatumGetUUIDP(found);
	AtEOXact_GUC(false, nestlevel);
	outbox_become_caller(&caller);
	SPI_finish();
	if (isnull)
		PG_RETURN_NULL();
	PG_RETURN_UUID_P(id);
}
