/*-------------------------------------------------------------------------
 *
 * event.c
 *		What outbox itself has to tell, as messages: the SQL functions.
 *
 * outbox_internal.tell_events() decides what is told; these are its two
 * questions to the library.
 *
 * Process: the schedule worker; any backend that creates or changes a handler,
 * or calls outbox.run_schedules().
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/uuid.h"

#include "common/text_array.h"
#include "stage/stage.h"
#include "stage/topic.h"

PG_FUNCTION_INFO_V1(outbox_sql_takes_events);
PG_FUNCTION_INFO_V1(outbox_sql_stage_event);

/* outbox_internal.takes_events(patterns text[]) */
Datum
outbox_sql_takes_events(PG_FUNCTION_ARGS)
{
	text	  **patterns;
	int			n = outbox_text_array(PG_GETARG_DATUM(0), &patterns);
	bool		takes = false;

	for (int i = 0; i < n && !takes; i++)
		takes = patterns[i] != NULL && outbox_is_event_topic(VARDATA_ANY(patterns[i]), VARSIZE_ANY_EXHDR(patterns[i]));
	PG_RETURN_BOOL(takes);
}

/* An argument that may be NULL. */
static text *
text_or_null(FunctionCallInfo fcinfo, int n)
{
	return PG_ARGISNULL(n) ? NULL : PG_GETARG_TEXT_PP(n);
}

/* outbox_internal.stage_event(topic, payload, key, tenant, correlation_id, about) */
Datum
outbox_sql_stage_event(PG_FUNCTION_ARGS)
{
	OutboxStageArguments arguments = {0};
	OutboxNewMessage message = {0};
	pg_uuid_t  *id;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		elog(ERROR, "an event has a topic and a payload");
	arguments.topic = PG_GETARG_TEXT_PP(0);
	message.payload = PG_GETARG_JSONB_P(1);
	message.key = text_or_null(fcinfo, 2);
	arguments.tenant = text_or_null(fcinfo, 3);
	arguments.correlation_id = text_or_null(fcinfo, 4);
	if (!outbox_stage_event(&arguments, &message, PG_ARGISNULL(5) ? 0 : PG_GETARG_INT32(5)))
		PG_RETURN_NULL();
	id = palloc(sizeof(pg_uuid_t));
	*id = message.id;
	PG_RETURN_UUID_P(id);
}
