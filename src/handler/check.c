/*-------------------------------------------------------------------------
 *
 * check.c
 *		SQL functions that check a handler's options and raise what is wrong.
 *
 * Called by outbox_internal.check_handler() in the backend of whoever creates or
 * alters a handler.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"

#include "common/fault.h"
#include "common/result_set.h"
#include "format/format.h"
#include "format/own_headers.h"
#include "handler/url.h"
#include "stage/topic.h"

PG_FUNCTION_INFO_V1(outbox_sql_check_pattern);
PG_FUNCTION_INFO_V1(outbox_sql_check_url);
PG_FUNCTION_INFO_V1(outbox_sql_check_headers);
PG_FUNCTION_INFO_V1(outbox_sql_formats);

/* outbox_internal.check_pattern(pattern) */
Datum
outbox_sql_check_pattern(PG_FUNCTION_ARGS)
{
	text	   *pattern = PG_GETARG_TEXT_PP(0);
	OutboxFault fault;

	if (!outbox_check_pattern(VARDATA_ANY(pattern), VARSIZE_ANY_EXHDR(pattern), &fault))
		outbox_raise_fault(&fault);
	PG_RETURN_VOID();
}

/* outbox_internal.check_url(url) */
Datum
outbox_sql_check_url(PG_FUNCTION_ARGS)
{
	OutboxFault fault;

	if (!outbox_check_url(text_to_cstring(PG_GETARG_TEXT_PP(0)), &fault))
		outbox_raise_fault(&fault);
	PG_RETURN_VOID();
}

/* outbox_internal.check_headers(headers): those of a handler */
Datum
outbox_sql_check_headers(PG_FUNCTION_ARGS)
{
	OutboxFault fault;

	if (!outbox_check_headers(PG_GETARG_JSONB_P(0), OUTBOX_HEADERS_OF_HANDLER, &fault))
		outbox_raise_fault(&fault);
	PG_RETURN_VOID();
}

/* outbox_internal.formats(OUT name, OUT batches) */
Datum
outbox_sql_formats(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = outbox_begin_result_set(fcinfo, 2);
	const OutboxFormat *format;

	for (int i = 0; (format = outbox_format_at(i)) != NULL; i++)
	{
		Datum		values[2] = {CStringGetTextDatum(format->name), BoolGetDatum(format->batch_content_type != NULL)};
		bool		nulls[2] = {false, false};

		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	PG_RETURN_NULL();
}
