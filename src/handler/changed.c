/*-------------------------------------------------------------------------
 *
 * changed.c
 *		Triggers on the configuration tables: whoever changes a handler or a topic
 *		by hand, every backend's cache and the dispatcher learn of it.
 *
 * For edits by hand only.  The extension's own functions say what they change
 * themselves (outbox_internal.ring_handlers(), outbox_internal.ring_status()), because a
 * trigger can be switched off: pg_restore --disable-triggers leaves those that
 * were ENABLE ALWAYS as ordinary ones, which do not fire for a replica.
 *
 * Runs in the backend that makes the change.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/inval.h"
#include "utils/rel.h"

#include "common/session.h"
#include "shared/doorbell.h"

PG_FUNCTION_INFO_V1(outbox_sql_handler_changed);
PG_FUNCTION_INFO_V1(outbox_sql_status_changed);
PG_FUNCTION_INFO_V1(outbox_sql_topic_changed);
PG_FUNCTION_INFO_V1(outbox_sql_ring_topics);

static void
check_called_as_trigger(FunctionCallInfo fcinfo)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("must be called as trigger")));
}

/*
 * outbox_internal.handler_changed(): the relcache message is what invalidates the
 * routes of every backend when this transaction commits.
 */
Datum
outbox_sql_handler_changed(PG_FUNCTION_ARGS)
{
	check_called_as_trigger(fcinfo);
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	outbox_doorbell_note_handlers();
	return PointerGetDatum(NULL);
}

/* outbox_internal.status_changed(): routes do not depend on pauses and secrets, only the dispatcher does. */
Datum
outbox_sql_status_changed(PG_FUNCTION_ARGS)
{
	check_called_as_trigger(fcinfo);
	outbox_doorbell_note_status();
	return PointerGetDatum(NULL);
}

/* outbox_internal.topic_changed(): only the rules that backends have cached depend on topics. */
Datum
outbox_sql_topic_changed(PG_FUNCTION_ARGS)
{
	check_called_as_trigger(fcinfo);
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	return PointerGetDatum(NULL);
}

/* outbox_internal.ring_topics(): the same, for who has changed them with a function of the extension. */
Datum
outbox_sql_ring_topics(PG_FUNCTION_ARGS)
{
	CacheInvalidateRelcacheByRelid(outbox_relation_oid("topic", false));
	PG_RETURN_VOID();
}
