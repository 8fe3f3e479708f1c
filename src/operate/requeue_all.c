/*-------------------------------------------------------------------------
 *
 * requeue_all.c
 *		CALL outbox.requeue_all(): bring any number of deliveries back.
 *
 * Promises: each batch is a transaction of its own, so that no row is locked
 * for long, memory does not grow with their number, and what has been brought
 * back stays so whatever becomes of the rest.  What a batch does, and where
 * the next one goes on, is said in SQL, by outbox_internal.requeue_batch().
 *
 * Runs in the operator's backend, outside any transaction block.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/uuid.h"

#include "common/query_row.h"
#include "common/session.h"
#include "compat.h"

PG_FUNCTION_INFO_V1(outbox_sql_requeue_all);

/* What it is called with, and what goes from batch to batch behind that. */
#define ARGUMENTS 10
#define CARRIED 5
#define ENDED (CARRIED + 1)

static OutboxPlan batch_plan = {
	.sql = "SELECT began, action_id, total, done, reached, ended "
	"FROM outbox_internal.requeue_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
	.nargs = ARGUMENTS + CARRIED,
	.argtypes = {
		TEXTOID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, BOOLOID, BOOLOID, INTERVALOID, TEXTOID,
		TIMESTAMPTZOID, INT8OID, INT8OID, INT8OID, UUIDOID
	}
};

/* Take over what the next batch begins with, in memory that outlives this one's transaction. */
static void
carry(const OutboxQueryRow *row, Datum *values, char *nulls, pg_uuid_t *reached)
{
	for (int i = 0; i < CARRIED; i++)
	{
		bool		isnull;

		values[ARGUMENTS + i] = outbox_query_datum(row, i + 1, &isnull);
		nulls[ARGUMENTS + i] = isnull ? 'n' : ' ';
		if (!isnull && i == CARRIED - 1)
		{
			*reached = *DatumGetUUIDP(values[ARGUMENTS + i]);
			values[ARGUMENTS + i] = UUIDPGetDatum(reached);
		}
	}
}

/* One batch, committed.  False if it was the last. */
static bool
do_batch(Datum *values, char *nulls, pg_uuid_t *reached)
{
	OutboxSecurity caller;
	OutboxQueryRow row;
	bool		ended;

	CHECK_FOR_INTERRUPTS();
	outbox_become_owner(&caller);
	outbox_execute(&batch_plan, values, nulls, false, 1, SPI_OK_SELECT);
	row = outbox_query_row(0);
	carry(&row, values, nulls, reached);
	ended = outbox_query_bool(&row, ENDED);
	SPI_freetuptable(SPI_tuptable);
	outbox_become_caller(&caller);
	SPI_commit();
	return !ended;
}

/* CALL outbox.requeue_all(handler, topic, tenant, code, since, until, include_delivered, include_cancelled, spread, reason) */
Datum
outbox_sql_requeue_all(PG_FUNCTION_ARGS)
{
	Datum		values[ARGUMENTS + CARRIED];
	char		nulls[ARGUMENTS + CARRIED];
	pg_uuid_t	reached;

	if (outbox_called_in_transaction_block(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("outbox.requeue_all() cannot run inside a transaction block"),
				 errdetail("Each batch is a transaction of its own."),
				 errhint("CALL it by itself, or use outbox.requeue_where() with max_rows.")));
	outbox_require_writable("outbox.requeue_all()");

	for (int i = 0; i < ARGUMENTS; i++)
	{
		values[i] = PG_GETARG_DATUM(i);
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
	}
	memset(nulls + ARGUMENTS, 'n', CARRIED);
	memset(values + ARGUMENTS, 0, sizeof(Datum) * CARRIED);

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	while (do_batch(values, nulls, &reached))
		;
	SPI_finish();
	PG_RETURN_VOID();
}
