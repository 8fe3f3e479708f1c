/*-------------------------------------------------------------------------
 *
 * secret.c
 *		Secrets on their way from a caller's argument into handler_secret.
 *
 * See secret.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "format/signature.h"
#include "handler/secret.h"
#include "shared/doorbell.h"
#include "table/relation.h"

/* The longest value of a header authorization. */
#define MAX_AUTHORIZATION 4096

PG_FUNCTION_INFO_V1(outbox_sql_store_secret);

static const char *const secret_options[] = {"secret", "authorization"};

static OutboxWithheld *current = NULL;

bool
outbox_is_secret_option(const char *name)
{
	for (int i = 0; i < lengthof(secret_options); i++)
	{
		if (strcmp(name, secret_options[i]) == 0)
			return true;
	}
	return false;
}

void
outbox_withhold(OutboxWithheld *withheld, char *name, char *value)
{
	withheld->options = lappend(withheld->options, name);
	withheld->values = lappend(withheld->values, value);
}

void
outbox_withheld_begin(OutboxWithheld *withheld)
{
	withheld->outer = current;
	current = withheld;
}

void
outbox_withheld_end(OutboxWithheld *withheld)
{
	current = withheld->outer;
}

/* What was given for the option to the call that is running. */
static char *
withheld_value(const char *option)
{
	ListCell   *name;
	ListCell   *value;

	if (current != NULL)
	{
		forboth(name, current->options, value, current->values)
		{
			if (strcmp(lfirst(name), option) == 0)
				return lfirst(value);
		}
	}
	elog(ERROR, "no value of option \"%s\" was given", option);
}

static void
check_authorization(const char *value)
{
	size_t		len = strlen(value);
	bool		has_control = false;

	for (size_t i = 0; i < len; i++)
		has_control = has_control || (unsigned char) value[i] < ' ' || value[i] == 0x7f;
	if (has_control || len == 0 || len > MAX_AUTHORIZATION)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("authorization is empty, too long or has a control character"),
				 errhint("It is the value of the header authorization, such as Bearer and a token, of up to %d bytes.",
						 MAX_AUTHORIZATION)));
}

static void
set_column(TupleTableSlot *slot, const char *name, Datum value)
{
	AttrNumber	column = get_attnum(slot->tts_tableOid, name);

	if (column == InvalidAttrNumber)
		elog(ERROR, "column \"%s\" of outbox.handler_secret is missing", name);
	slot->tts_values[column - 1] = value;
	slot->tts_isnull[column - 1] = false;
}

/* The row, with its indexes, checks and row triggers, as the executor would insert it. */
static void
insert_secret(int32 handler_id, const char *kind, const char *secret, TimestampTz created_at)
{
	Relation	rel = outbox_table_open("handler_secret", RowExclusiveLock);
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *result = makeNode(ResultRelInfo);
	TupleTableSlot *slot = table_slot_create(rel, NULL);

	InitResultRelInfo(result, rel, 0, NULL, 0);
	ExecOpenIndices(result, false);
	/* Where triggers look for the table they belong to. */
	estate->es_opened_result_relations = lappend(NIL, result);
	slot->tts_tableOid = RelationGetRelid(rel);
	memset(slot->tts_isnull, true, sizeof(bool) * slot->tts_tupleDescriptor->natts);
	set_column(slot, "handler_id", Int32GetDatum(handler_id));
	set_column(slot, "kind", CStringGetTextDatum(kind));
	set_column(slot, "secret", CStringGetTextDatum(secret));
	set_column(slot, "created_at", TimestampTzGetDatum(created_at));
	ExecStoreVirtualTuple(slot);

	AfterTriggerBeginQuery();
	ExecSimpleRelationInsert(result, estate, slot);
	AfterTriggerEndQuery(estate);

	ExecCloseResultRelations(estate);
	ExecDropSingleTupleTableSlot(slot);
	FreeExecutorState(estate);
	table_close(rel, NoLock);
	CommandCounterIncrement();

	/* Triggers for each statement do not fire for what is no statement. */
	outbox_doorbell_note_status();
}

/*
 * outbox_internal.store_secret(handler_id, kind, source, created_at)
 *
 * source is whsec or whsk for a new signing secret of that kind, else the
 * option that the secret was given with.  Returns what a receiver needs to
 * verify with it: the public key, if it has one, or the secret itself.
 */
Datum
outbox_sql_store_secret(PG_FUNCTION_ARGS)
{
	int32		handler_id = PG_GETARG_INT32(0);
	char	   *kind = text_to_cstring(PG_GETARG_TEXT_PP(1));
	char	   *source = text_to_cstring(PG_GETARG_TEXT_PP(2));
	TimestampTz created_at = PG_GETARG_TIMESTAMPTZ(3);
	bool		signs = strcmp(kind, "signing") == 0;
	char	   *secret;
	char	   *public_key;

	if (outbox_is_secret_option(source))
		secret = withheld_value(source);
	else
		secret = outbox_generate_secret(strcmp(source, "whsk") == 0);

	if (signs)
		outbox_check_secret(secret);
	else
		check_authorization(secret);
	insert_secret(handler_id, kind, secret, created_at);

	if (!signs)
		PG_RETURN_NULL();
	public_key = outbox_public_key(secret);
	PG_RETURN_TEXT_P(cstring_to_text(public_key != NULL ? public_key : secret));
}
