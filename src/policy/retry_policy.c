/*-------------------------------------------------------------------------
 *
 * retry_policy.c
 *		A handler's retry policy, as a query returns it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "policy/retry_policy.h"
#include "policy/rules_parse.h"

/* The value of a column that is never NULL in outbox.handler. */
static Datum
column(HeapTuple tuple, TupleDesc desc, int number)
{
	bool		isnull;
	Datum		value = SPI_getbinval(tuple, desc, number, &isnull);

	if (isnull)
		elog(ERROR, "column %d of a retry policy is null", number);
	return value;
}

static void
read_schedule(Datum array, OutboxRetryPolicy *policy)
{
	Datum	   *elems;
	int64	   *steps;

	deconstruct_array(DatumGetArrayTypeP(array), INT8OID, sizeof(int64), FLOAT8PASSBYVAL,
					  TYPALIGN_DOUBLE, &elems, NULL, &policy->nbackoff);
	steps = palloc(sizeof(int64) * Max(1, policy->nbackoff));
	for (int i = 0; i < policy->nbackoff; i++)
		steps[i] = DatumGetInt64(elems[i]);
	policy->backoff = steps;
	pfree(elems);
}

void
outbox_read_retry_policy(HeapTuple tuple, TupleDesc desc, int first, OutboxRetryPolicy *policy)
{
	bool		isnull;
	Datum		value;

	policy->max_attempts = DatumGetInt32(column(tuple, desc, first));
	policy->backoff_base = DatumGetInt64(column(tuple, desc, first + 1));
	policy->backoff_max = DatumGetInt64(column(tuple, desc, first + 2));
	policy->jitter = DatumGetFloat8(column(tuple, desc, first + 3));
	policy->retry_after_max = DatumGetInt64(column(tuple, desc, first + 4));

	policy->nbackoff = 0;
	policy->backoff = NULL;
	value = SPI_getbinval(tuple, desc, first + 5, &isnull);
	if (!isnull)
		read_schedule(value, policy);

	value = SPI_getbinval(tuple, desc, first + 6, &isnull);
	policy->rules = isnull ? NULL : outbox_rules_parse(DatumGetJsonbP(value));
}
