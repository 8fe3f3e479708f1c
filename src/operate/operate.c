/*-------------------------------------------------------------------------
 *
 * operate.c
 *		What the operators' SQL functions need from C: the match of topics,
 *		the retention settings, and whose transaction wrote a row.
 *
 * Promises: each function here is a thin cover over the room that owns the
 * logic, so that SQL and C cannot come to differ.  Runs in backends; keeps
 * no state and reads no table.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "common/text_array.h"
#include "guc.h"
#include "stage/topic.h"

PG_FUNCTION_INFO_V1(outbox_sql_topic_taken);
PG_FUNCTION_INFO_V1(outbox_sql_retention_settings);
PG_FUNCTION_INFO_V1(outbox_sql_is_own);

/* outbox_internal.topic_taken(patterns text[], topic text) */
Datum
outbox_sql_topic_taken(PG_FUNCTION_ARGS)
{
	text	  **patterns;
	int			n = outbox_text_array(PG_GETARG_DATUM(0), &patterns);
	text	   *topic = PG_GETARG_TEXT_PP(1);
	bool		taken = false;

	for (int i = 0; i < n; i++)
	{
		text	   *pattern = patterns[i];
		OutboxFault fault;

		if (pattern == NULL)
			continue;
		if (!outbox_check_pattern(VARDATA_ANY(pattern), VARSIZE_ANY_EXHDR(pattern), &fault))
			outbox_raise_fault(&fault);
		if (outbox_pattern_takes(VARDATA_ANY(pattern), VARSIZE_ANY_EXHDR(pattern),
								 VARDATA_ANY(topic), VARSIZE_ANY_EXHDR(topic)))
			taken = true;
	}
	PG_RETURN_BOOL(taken);
}

static Datum
microseconds_to_interval(int64 microseconds)
{
	Interval   *span = palloc0(sizeof(Interval));

	span->time = microseconds;
	return IntervalPGetDatum(span);
}

/* outbox_internal.retention_settings() */
Datum
outbox_sql_retention_settings(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[6];
	bool		nulls[6] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = microseconds_to_interval(outbox_delivered_retention * USECS_PER_SEC);
	values[1] = microseconds_to_interval(outbox_dead_retention * USECS_PER_SEC);
	values[2] = Int32GetDatum(outbox_prune_batch_size);
	values[3] = BoolGetDatum(outbox_auto_prune);
	values[4] = microseconds_to_interval(outbox_prune_interval * INT64CONST(1000));
	values[5] = microseconds_to_interval(outbox_action_retention * USECS_PER_SEC);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* outbox_internal.is_own(xid): is that this transaction, or a savepoint of it? */
Datum
outbox_sql_is_own(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(TransactionIdIsCurrentTransactionId(PG_GETARG_TRANSACTIONID(0)));
}
