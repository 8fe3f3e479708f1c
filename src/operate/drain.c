/*-------------------------------------------------------------------------
 *
 * drain.c
 *		CALL outbox.drain(): wait until nothing outstanding is due.
 *
 * Promises: each look is a transaction of its own; between two looks the
 * session holds no snapshot, no lock and no row, so a long drain holds back
 * neither vacuum nor DDL.  Runs in the operator's backend, outside any
 * transaction block.  It looks again at growing intervals rather than being
 * told: it is for deployments and tests, not for a hot path.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "compat.h"

PG_FUNCTION_INFO_V1(outbox_sql_drain);

#define FIRST_WAIT_MS 5
#define LONGEST_WAIT_MS 200

/* The id of a live handler; raises like every operator function. */
static OutboxPlan handler_plan = {
	.sql = "SELECT outbox_internal.live_handler($1)",
	.nargs = 1,
	.argtypes = {TEXTOID}
};

/*
 * How many deliveries are due, up to a thousand.  $1 NULL: of those handlers
 * that get rid of theirs by themselves; consumers may be away for good, and
 * what is paused waits for an operator.  The time is a query by itself: what
 * changes while a query runs is no condition of an index, and all that is
 * scheduled would be read at each look.
 */
static OutboxPlan due_plan = {
	.sql = "SELECT pg_catalog.count(*) FROM ("
	"SELECT d.message_id FROM outbox.handler h"
	" LEFT JOIN outbox.handler_status s ON s.handler_id OPERATOR(pg_catalog.=) h.id CROSS JOIN LATERAL ("
	"SELECT d.message_id FROM outbox.delivery d"
	" WHERE d.handler_id OPERATOR(pg_catalog.=) h.id"
	" AND d.due_at OPERATOR(pg_catalog.<=) (SELECT pg_catalog.clock_timestamp())"
	" ORDER BY d.due_at, d.message_id LIMIT 1000) d"
	" WHERE h.id OPERATOR(pg_catalog.=) $1"
	" OR ($1 IS NULL AND h.url IS NOT NULL AND s.paused_at IS NULL) LIMIT 1000) due",
	.nargs = 1,
	.argtypes = {INT4OID}
};

static OutboxPlan paused_plan = {
	.sql = "SELECT EXISTS (SELECT FROM outbox.handler_status s"
	" WHERE s.handler_id OPERATOR(pg_catalog.=) $1 AND s.paused_at IS NOT NULL)",
	.nargs = 1,
	.argtypes = {INT4OID}
};

/* Run a statement of one argument that yields one value, as the owner. */
static Datum
look_up(OutboxPlan *plan, Datum arg, bool arg_is_null)
{
	OutboxSecurity saved;
	char		nulls[1] = {arg_is_null ? 'n' : ' '};
	bool		isnull;
	Datum		result;

	outbox_become_owner(&saved);
	outbox_execute(plan, &arg, nulls, false, 1, SPI_OK_SELECT);
	outbox_become_caller(&saved);
	result = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	if (isnull)
		elog(ERROR, "unexpected null");
	return result;
}

/* Sleep without a transaction's snapshot; longer each time. */
static void
pause_between_looks(long *wait_ms, TimestampTz deadline)
{
	long		left = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), deadline);

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 Min(*wait_ms, Max(left, 1)), PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	*wait_ms = Min(*wait_ms * 2, LONGEST_WAIT_MS);
}

static TimestampTz
deadline_of(Interval *timeout)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz deadline = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
																   TimestampTzGetDatum(now),
																   IntervalPGetDatum(timeout)));

	if (deadline < now)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout must not be negative"),
				 errhint("It is how long to wait at most, for example '30 s'.")));
	return deadline;
}

/* Waiting for a handler that is paused would be in vain. */
static void
refuse_paused(const char *handler, int32 handler_id)
{
	if (!DatumGetBool(look_up(&paused_plan, Int32GetDatum(handler_id), false)))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("handler \"%s\" is paused and has due deliveries", handler),
			 errhint("Call outbox.resume_handler() first.")));
}

/* CALL outbox.drain(handler text, timeout interval) */
Datum
outbox_sql_drain(PG_FUNCTION_ARGS)
{
	char	   *handler;
	int32		handler_id = 0;
	TimestampTz deadline;
	long		wait_ms = FIRST_WAIT_MS;

	if (outbox_called_in_transaction_block(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("outbox.drain() cannot run inside a transaction block"),
				 errdetail("What it waits for could not become visible to this transaction."),
				 errhint("CALL it by itself.")));
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("timeout must not be null"),
				 errhint("Leave it out for one minute.")));

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	deadline = deadline_of(PG_GETARG_INTERVAL_P(1));
	handler = PG_ARGISNULL(0) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(0));
	if (handler)
		handler_id = DatumGetInt32(look_up(&handler_plan, CStringGetTextDatum(handler), false));

	for (;;)
	{
		int64		due = DatumGetInt64(look_up(&due_plan, Int32GetDatum(handler_id), handler == NULL));

		SPI_freetuptable(SPI_tuptable);
		if (due > 0 && handler != NULL)
			refuse_paused(handler, handler_id);
		SPI_commit();
		if (due == 0)
			break;
		if (GetCurrentTimestamp() >= deadline)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 handler ?
					 errmsg("handler \"%s\" still has due deliveries", handler) :
					 errmsg("there are still due deliveries"),
					 due < 1000 ?
					 errdetail("There are %lld.", (long long) due) :
					 errdetail("There are 1000 or more."),
					 errhint("See outbox.backlog and outbox.health().")));
		pause_between_looks(&wait_ms, deadline);
	}

	SPI_finish();
	PG_RETURN_VOID();
}
