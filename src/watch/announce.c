/*-------------------------------------------------------------------------
 *
 * announce.c
 *		outbox.announce(), the trigger function of watched tables.
 *
 * It runs for each row, after it was written, and once before or after a
 * TRUNCATE.  One row at a time: triggers of partitioned tables see rows no
 * other way, and a message costs what another trigger would for one INSERT.
 *
 * In whose name: the writer needs no right on outbox, the table's owner does.
 * Whoever owns a table decides what its triggers do, and a message says of a
 * row no more than a trigger of that owner could stage; so the owner has to be
 * allowed to execute this function, which producers are, at each change and
 * not only when the table was watched.  Of a partition that is the owner of
 * the table that was watched.  Nothing runs with the extension's rights but
 * the writing of the message.
 *
 * Runs in the writer's backend and transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "common/session.h"
#include "common/sql_version.h"
#include "compat.h"
#include "stage/stage.h"
#include "watch/change.h"
#include "watch/watch.h"

PG_FUNCTION_INFO_V1(outbox_sql_announce);

static Oid
table_owner(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

static void
require_right(const OutboxWatch *watch, Oid function)
{
	Oid			owner = table_owner(watch->root);

	if (outbox_may_execute(function, owner))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("owner \"%s\" of watched table \"%s\" may not announce its changes",
					GetUserNameFromId(owner, false), get_rel_name(watch->root)),
			 errhint("Make the owner a producer with outbox.grant_producer(), or end the watch with outbox.unwatch().")));
}

static void
stage_change(const OutboxChange *change)
{
	OutboxStageArguments arguments = {.topic = change->watch->topics[change->kind]};
	OutboxNewMessage message = {0};

	arguments.tenant = outbox_change_tenant(change);
	message.payload = outbox_change_payload(change);
	message.key = outbox_change_key(change);
	outbox_stage(&arguments, &message);
}

static void
announce_row(const OutboxWatch *watch, const TriggerData *data, Oid function)
{
	bool		is_insert = TRIGGER_FIRED_BY_INSERT(data->tg_event);
	bool		is_update = TRIGGER_FIRED_BY_UPDATE(data->tg_event);
	HeapTuple	old = is_insert ? NULL : data->tg_trigtuple;
	HeapTuple	new = is_insert ? data->tg_trigtuple : is_update ? data->tg_newtuple : NULL;
	OutboxChange change;

	if (!outbox_change_of_row(&change, watch, RelationGetDescr(data->tg_relation), old, new))
		return;
	require_right(watch, function);
	stage_change(&change);
}

static void
announce_truncate(const OutboxWatch *watch, Oid function)
{
	OutboxChange change;

	if (watch->refuses_truncate)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot truncate watched table \"%s\"", get_rel_name(watch->root)),
				 errhint("DELETE announces each row; or call outbox.watch() with truncate => 'announce'.")));
	require_right(watch, function);
	outbox_change_of_table(&change, watch);
	stage_change(&change);
}

/* A statement that fails here was about the writer's own table: say whose doing it is. */
static void
add_context(void *arg)
{
	errcontext("announcing a change of watched table \"%s\"", RelationGetRelationName((Relation) arg));
}

Datum
outbox_sql_announce(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	ErrorContextCallback context;
	const OutboxWatch *watch;

	if (!CALLED_AS_TRIGGER(fcinfo) || (TRIGGER_FIRED_FOR_ROW(data->tg_event) && !TRIGGER_FIRED_AFTER(data->tg_event)))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("outbox.announce() is for the triggers of watched tables"),
				 errhint("Call outbox.watch().")));

	context.callback = add_context;
	context.arg = data->tg_relation;
	context.previous = error_context_stack;
	error_context_stack = &context;

	outbox_require_sql(OUTBOX_MAY_STAGE);
	watch = outbox_watch_of(data->tg_trigger, data->tg_relation);
	if (TRIGGER_FIRED_BY_TRUNCATE(data->tg_event))
		announce_truncate(watch, fcinfo->flinfo->fn_oid);
	else
		announce_row(watch, data, fcinfo->flinfo->fn_oid);

	error_context_stack = context.previous;
	return PointerGetDatum(NULL);
}
