/*-------------------------------------------------------------------------
 *
 * result_set.c
 *		Functions that return their rows all at once.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/tuplestore.h"

#include "common/result_set.h"

ReturnSetInfo *
outbox_begin_result_set(FunctionCallInfo fcinfo, int columns)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext oldcontext;

	if (result == NULL || !IsA(result, ReturnSetInfo) || !(result->allowedModes & SFRM_Materialize) ||
		result->expectedDesc == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("set-valued function called in context that cannot accept a set"),
				 errhint("Call it in the FROM clause.")));
	if (result->expectedDesc->natts != columns)
		elog(ERROR, "function is declared to return %d columns instead of %d",
			 result->expectedDesc->natts, columns);

	oldcontext = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
	result->returnMode = SFRM_Materialize;
	result->setDesc = CreateTupleDescCopy(result->expectedDesc);
	result->setResult = tuplestore_begin_heap((result->allowedModes & SFRM_Materialize_Random) != 0, false, work_mem);
	MemoryContextSwitchTo(oldcontext);
	return result;
}
