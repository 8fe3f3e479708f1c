/*-------------------------------------------------------------------------
 *
 * settle.c
 *		outbox.complete(), retry(), fail(), release() and extend(), each also in
 *		bulk.
 *
 * They run in the consumer's backend and in its own transaction, so that its
 * business writes and the settlement commit together.  The fence: a row is
 * changed only if it is leased and its attempt is the one the consumer
 * claimed, so a consumer that has lost its lease changes nothing, and twice
 * is once.  A lease that has run out but that nobody has claimed since still
 * counts.  Nothing is waited for but the row.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "common/redaction.h"
#include "common/session.h"
#include "consume/arguments.h"
#include "consume/obligations.h"
#include "consume/outcome_row.h"
#include "consume/pull_handler.h"
#include "table/delivery.h"

#define MAX_SETTLE 10000

/* What one call does to each of its deliveries. */
typedef struct Settlement
{
	OutboxPullHandler handler;
	OutboxDisposition disposition;			/* action NONE: extend the lease, or give it back */
	bool		releasing;
	const char *error;
	TimestampTz now;
	bool		has_due_at;		/* the end of the lease, or when to try again */
	TimestampTz due_at;
	OutboxDeliveryTable table;
	List	   *attempts;
} Settlement;

/* A delivery as the consumer names it. */
typedef struct Claimed
{
	pg_uuid_t	id;
	int32		attempt;
	int			position;		/* in the caller's arrays */
} Claimed;

static bool
is_fenced_off(const OutboxDeliveryRow *row, int32 attempt)
{
	return row->state != OUTBOX_LEASED || row->attempts != attempt;
}

static void
extend_lease(Settlement *s, const OutboxDeliveryRow *row)
{
	OutboxQueuePosition key = {s->due_at, row->key.id};

	(void) outbox_deliveries_lease(&s->table, row->attempts, row->budget_from, s->due_at, NULL, true);
	outbox_consume_moved(&s->handler.ref, &key);
}

static void
apply(Settlement *s, const OutboxDeliveryRow *row)
{
	OutboxVerdict verdict;
	TimestampTz due_at;

	if (s->releasing)
	{
		outbox_write_release(&s->handler, &s->table, row, s->has_due_at ? s->due_at : s->now);
		return;
	}
	if (s->disposition.action == OUTBOX_ACTION_NONE)
	{
		extend_lease(s, row);
		return;
	}
	outbox_judge_row(&s->handler, s->table.slot, row, &s->disposition, &verdict);
	/* A time that the consumer names is taken at its word. */
	due_at = s->has_due_at ? s->due_at : s->now + verdict.delay * 1000;
	outbox_write_outcome(&s->handler, &s->table, row, &verdict, s->error, due_at, s->now, &s->attempts);
}

/* Settle one delivery.  False if its lease is lost, or never was. */
static bool
settle_one(Settlement *s, const Claimed *claimed)
{
	OutboxDeliveryRow row;

	if (!outbox_deliveries_find(&s->table, &claimed->id, s->handler.id))
		return false;
	/* Attempts never decrease, so what is lost under any snapshot is lost for good. */
	outbox_deliveries_read(s->table.slot, &row);
	if (is_fenced_off(&row, claimed->attempt))
		return false;

	outbox_consume_hold(&s->handler.ref, &row.key, false);
	if (outbox_deliveries_lock(&s->table, LockWaitBlock) != TM_Ok)
		return false;
	outbox_deliveries_read(s->table.slot, &row);
	/* The version that was waited for may have another key. */
	outbox_consume_hold(&s->handler.ref, &row.key, false);
	if (is_fenced_off(&row, claimed->attempt))
	{
		/* Locked until the transaction ends, it is passed by others, who have to be told then. */
		if (row.state < OUTBOX_DELIVERED)
			outbox_consume_moved(&s->handler.ref, &row.key);
		return false;
	}
	apply(s, &row);
	return true;
}

/* By id, the order in which everybody locks deliveries; of equal ones the first in the arrays. */
static int
compare_claimed(const void *a, const void *b)
{
	const Claimed *first = a;
	const Claimed *second = b;
	int			result = memcmp(first->id.data, second->id.data, UUID_LEN);

	return result != 0 ? result : first->position - second->position;
}

static void
settle_all(Settlement *s, Claimed *claimed, int n, bool *settled)
{
	if (n > 1)
		qsort(claimed, n, sizeof(Claimed), compare_claimed);
	PushActiveSnapshot(GetLatestSnapshot());
	outbox_deliveries_open(&s->table, true);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		settled[claimed[i].position] = settle_one(s, &claimed[i]);
	}
	outbox_deliveries_close(&s->table);
	PopActiveSnapshot();
	outbox_log_noted_attempts(s->attempts);
}

static void
begin_settlement(Settlement *s, FunctionCallInfo fcinfo, const char *function, OutboxAction action)
{
	memset(s, 0, sizeof(Settlement));
	s->now = GetCurrentTimestamp();
	s->disposition.action = action;
	s->disposition.after = -1;
	outbox_require_writable(function);
	outbox_pull_handler(outbox_handler_argument(fcinfo, 0), OUTBOX_PULL_SETTLE, &s->handler);
}

/* code and error: arguments of that number */
static void
set_outcome(Settlement *s, FunctionCallInfo fcinfo, int code, int error)
{
	char	   *given = outbox_code_argument(fcinfo, code);

	if (given != NULL)
		strlcpy(s->disposition.code, given, sizeof(s->disposition.code));
	s->error = outbox_redact(outbox_error_argument(fcinfo, error));
}

static void
set_after(Settlement *s, FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		return;
	s->due_at = outbox_interval_argument(fcinfo, n, "after", s->now, true, OUTBOX_MAX_AFTER_DAYS);
	s->has_due_at = true;
}

static void
set_lease(Settlement *s, FunctionCallInfo fcinfo, int n)
{
	s->due_at = outbox_lease_argument(fcinfo, n, s->now);
	s->has_due_at = true;
}

/* The delivery named by arguments 1 and 2. */
static Datum
settle_single(Settlement *s, FunctionCallInfo fcinfo)
{
	Claimed		claimed = {0};
	bool		settled;

	claimed.id = *outbox_id_argument(fcinfo, 1);
	claimed.attempt = outbox_int_argument(fcinfo, 2, "attempt", 1, PG_INT32_MAX);
	settle_all(s, &claimed, 1, &settled);
	PG_RETURN_BOOL(settled);
}

/* The elements of an array argument, none of them NULL. */
static Datum *
array_argument(FunctionCallInfo fcinfo, int n, const char *name, Oid type, int *nelems)
{
	ArrayType  *array;
	Datum	   *elems;

	if (PG_ARGISNULL(n) || ARR_NDIM(PG_GETARG_ARRAYTYPE_P(n)) > 1 ||
		array_contains_nulls(PG_GETARG_ARRAYTYPE_P(n)))
		ereport(ERROR,
				(errcode(PG_ARGISNULL(n) ? ERRCODE_NULL_VALUE_NOT_ALLOWED : ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be an array of one dimension without nulls", name),
				 errhint("Pass the ids and the attempts that outbox.claim() returned, in the same order.")));
	array = PG_GETARG_ARRAYTYPE_P(n);
	if (type == UUIDOID)
		deconstruct_array(array, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR, &elems, NULL, nelems);
	else
		deconstruct_array(array, INT4OID, sizeof(int32), true, TYPALIGN_INT, &elems, NULL, nelems);
	return elems;
}

/* The deliveries named by the arrays in arguments 1 and 2; returns an array of booleans in their order. */
static Datum
settle_many(Settlement *s, FunctionCallInfo fcinfo)
{
	int			nids;
	int			nattempts;
	Datum	   *ids = array_argument(fcinfo, 1, "ids", UUIDOID, &nids);
	Datum	   *attempts = array_argument(fcinfo, 2, "attempts", INT4OID, &nattempts);
	Claimed    *claimed;
	bool	   *settled;
	Datum	   *result;

	if (nids != nattempts || nids > MAX_SETTLE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%d ids and %d attempts", nids, nattempts),
				 errhint("Pass as many attempts as ids, and at most %d of them.", MAX_SETTLE)));
	claimed = palloc(sizeof(Claimed) * Max(1, nids));
	settled = palloc(sizeof(bool) * Max(1, nids));
	result = palloc(sizeof(Datum) * Max(1, nids));
	for (int i = 0; i < nids; i++)
		claimed[i] = (Claimed) {*DatumGetUUIDP(ids[i]), DatumGetInt32(attempts[i]), i};
	settle_all(s, claimed, nids, settled);
	for (int i = 0; i < nids; i++)
		result[i] = BoolGetDatum(settled[i]);
	PG_RETURN_ARRAYTYPE_P(construct_array(result, nids, BOOLOID, sizeof(bool), true, TYPALIGN_CHAR));
}

PG_FUNCTION_INFO_V1(outbox_sql_complete);
PG_FUNCTION_INFO_V1(outbox_sql_complete_many);
PG_FUNCTION_INFO_V1(outbox_sql_retry);
PG_FUNCTION_INFO_V1(outbox_sql_retry_many);
PG_FUNCTION_INFO_V1(outbox_sql_fail);
PG_FUNCTION_INFO_V1(outbox_sql_fail_many);
PG_FUNCTION_INFO_V1(outbox_sql_release);
PG_FUNCTION_INFO_V1(outbox_sql_release_many);
PG_FUNCTION_INFO_V1(outbox_sql_extend);
PG_FUNCTION_INFO_V1(outbox_sql_extend_many);

/* outbox.complete(handler, id, attempt) */
Datum
outbox_sql_complete(PG_FUNCTION_ARGS)
{
	Settlement	s;

	begin_settlement(&s, fcinfo, "outbox.complete()", OUTBOX_ACTION_OK);
	return settle_single(&s, fcinfo);
}

/* outbox.complete_many(handler, ids, attempts) */
Datum
outbox_sql_complete_many(PG_FUNCTION_ARGS)
{
	Settlement	s;

	begin_settlement(&s, fcinfo, "outbox.complete_many()", OUTBOX_ACTION_OK);
	return settle_many(&s, fcinfo);
}

/* outbox.retry(handler, id, attempt, code, after, error) */
Datum
outbox_sql_retry(PG_FUNCTION_ARGS)
{
	Settlement	s;

	begin_settlement(&s, fcinfo, "outbox.retry()", OUTBOX_ACTION_RETRY);
	set_outcome(&s, fcinfo, 3, 5);
	set_after(&s, fcinfo, 4);
	return settle_single(&s, fcinfo);
}

/* outbox.retry_many(handler, ids, attempts, code, after, error) */
Datum
outbox_sql_retry_many(PG_FUNCTION_ARGS)
{
	Settlement	s;

	begin_settlement(&s, fcinfo, "outbox.retry_many()", OUTBOX_ACTION_RETRY);
	set_outcome(&s, fcinfo, 3, 5);
	set_after(&s, fcinfo, 4);
	return settle_many(&s, fcinfo);
}

/* outbox.fail(handler, id, attempt, code, error) */
Datum
outbox_sql_fail(PG_FUNCTION_ARGS)
{
	Settlement	s;

	begin_settlement(&s, fcinfo, "outbox.fail()", OUTBOX_ACTION_FAIL);
	set_outcome(&s, fcinfo, 3, 4);
	return settle_single(&s, fcinfo);
}

/* outbox.fail_many(handler, ids, attempts, code, error) */
Datum
outbox_sql_fail_many(PG_FUNCTION_ARGS)
{
	Settlement	s;

	begin_settlement(&s, fcinfo, "outbox.fail_many()", OUTBOX_ACTION_FAIL);
	set_outcome(&s, fcinfo, 3, 4);
	return settle_many(&s, fcinfo);
}

/* outbox.release(handler, id, attempt, after) */
Datum
outbox_sql_release(PG_FUNCTION_ARGS)
{
	Settlement	s;

	begin_settlement(&s, fcinfo, "outbox.release()", OUTBOX_ACTION_NONE);
	s.releasing = true;
	set_after(&s, fcinfo, 3);
	return settle_single(&s, fcinfo);
}

/* outbox.release_many(handler, ids, attempts, after) */
Datum
outbox_sql_release_many(PG_FUNCTION_ARGS)
{
	Settlement	s;

	begin_settlement(&s, fcinfo, "outbox.release_many()", OUTBOX_ACTION_NONE);
	s.releasing = true;
	set_after(&s, fcinfo, 3);
	return settle_many(&s, fcinfo);
}

/* outbox.extend(handler, id, attempt, lease) */
Datum
outbox_sql_extend(PG_FUNCTION_ARGS)
{
	Settlement	s;

	begin_settlement(&s, fcinfo, "outbox.extend()", OUTBOX_ACTION_NONE);
	set_lease(&s, fcinfo, 3);
	return settle_single(&s, fcinfo);
}

/* outbox.extend_many(handler, ids, attempts, lease) */
Datum
outbox_sql_extend_many(PG_FUNCTION_ARGS)
{
	Settlement	s;

	begin_settlement(&s, fcinfo, "outbox.extend_many()", OUTBOX_ACTION_NONE);
	set_lease(&s, fcinfo, 3);
	return settle_many(&s, fcinfo);
}
