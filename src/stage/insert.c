/*-------------------------------------------------------------------------
 *
 * insert.c
 *		Rows for outbox.message and outbox.delivery, without a plan.
 *
 * Columns are addressed by number, as the install script defines them.
 * Later versions of the extension append columns, in the install script too,
 * and never move them; a regression test compares the two.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/executor.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/uuid.h"

#include "compat.h"
#include "stage/insert.h"
#include "table/relation.h"

/* outbox.message */
enum
{
	MESSAGE_ID,
	MESSAGE_STAGED_AT,
	MESSAGE_MIN_VERSION,
	MESSAGE_TOPIC,
	MESSAGE_KEY,
	MESSAGE_DEDUPE_KEY,
	MESSAGE_TENANT,
	MESSAGE_CORRELATION_ID,
	MESSAGE_HEADERS,
	MESSAGE_PAYLOAD,
	MESSAGE_COLUMNS
};

/* outbox.delivery */
enum
{
	DELIVERY_MESSAGE_ID,
	DELIVERY_DUE_AT,
	DELIVERY_SETTLED_AT,
	DELIVERY_HANDLER_ID,
	DELIVERY_ATTEMPTS,
	DELIVERY_BUDGET_FROM,
	DELIVERY_STATE,
	DELIVERY_STREAK,
	DELIVERY_HTTP_STATUS,
	DELIVERY_MIN_VERSION,
	DELIVERY_KEY,
	DELIVERY_CODE,
	DELIVERY_ERROR,
	DELIVERY_COLUMNS
};

/* In the executor's own copy.  No more than the owner of the table wants fires. */
static void
disable_ordinary_triggers(TriggerDesc *triggers)
{
	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		if (triggers->triggers[i].tgenabled != TRIGGER_FIRES_ALWAYS)
			triggers->triggers[i].tgenabled = TRIGGER_DISABLED;
	}
}

static void
open_table(OutboxTable *table, EState *estate, const char *name, int columns)
{
	table->rel = outbox_table_open(name, RowExclusiveLock);
	if (RelationGetNumberOfAttributes(table->rel) < columns)
		elog(ERROR, "table outbox.%s has %d columns instead of %d",
			 name, RelationGetNumberOfAttributes(table->rel), columns);

	table->result = makeNode(ResultRelInfo);
	InitResultRelInfo(table->result, table->rel, 0, NULL, 0);
	disable_ordinary_triggers(table->result->ri_TrigDesc);
	ExecOpenIndices(table->result, false);
	estate->es_opened_result_relations = lappend(estate->es_opened_result_relations, table->result);
	table->slot = ExecInitExtraTupleSlot(estate, RelationGetDescr(table->rel), &TTSOpsVirtual);
	ExecBSInsertTriggers(estate, table->result);
}

void
outbox_inserter_open(OutboxInserter *inserter)
{
	EState	   *estate = CreateExecutorState();

	estate->es_output_cid = GetCurrentCommandId(true);
	inserter->estate = estate;
	AfterTriggerBeginQuery();
	open_table(&inserter->message, estate, "message", MESSAGE_COLUMNS);
	open_table(&inserter->delivery, estate, "delivery", DELIVERY_COLUMNS);
}

void
outbox_inserter_close(OutboxInserter *inserter)
{
	EState	   *estate = inserter->estate;

	ExecASInsertTriggers(estate, inserter->message.result, NULL);
	ExecASInsertTriggers(estate, inserter->delivery.result, NULL);
	AfterTriggerEndQuery(estate);
	ExecCloseResultRelations(estate);
	table_close(inserter->delivery.rel, NoLock);
	table_close(inserter->message.rel, NoLock);
	ExecResetTupleTable(estate->es_tupleTable, false);
	FreeExecutorState(estate);
	CommandCounterIncrement();
}

/* A row of NULLs to be filled in. */
static TupleTableSlot *
start_row(OutboxTable *table)
{
	TupleTableSlot *slot = table->slot;

	ExecClearTuple(slot);
	memset(slot->tts_isnull, true, sizeof(bool) * slot->tts_tupleDescriptor->natts);
	return slot;
}

static inline void
set_column(TupleTableSlot *slot, int column, Datum value)
{
	slot->tts_values[column] = value;
	slot->tts_isnull[column] = false;
}

static inline void
set_pointer(TupleTableSlot *slot, int column, const void *value)
{
	if (value)
		set_column(slot, column, PointerGetDatum(value));
}

static void
store_row(OutboxInserter *inserter, OutboxTable *table)
{
	ExecStoreVirtualTuple(table->slot);
	ExecSimpleRelationInsert(table->result, inserter->estate, table->slot);
	ResetPerTupleExprContext(inserter->estate);
}

void
outbox_insert_message(OutboxInserter *inserter, const OutboxNewMessage *message)
{
	const OutboxStageArguments *arguments = message->arguments;
	TupleTableSlot *row = start_row(&inserter->message);

	set_pointer(row, MESSAGE_ID, &message->id);
	set_column(row, MESSAGE_STAGED_AT, TimestampTzGetDatum(arguments->staged_at));
	if (arguments->has_min_version)
		set_column(row, MESSAGE_MIN_VERSION, Int32GetDatum(arguments->min_version));
	set_pointer(row, MESSAGE_TOPIC, arguments->topic);
	set_pointer(row, MESSAGE_KEY, message->key);
	set_pointer(row, MESSAGE_DEDUPE_KEY, message->dedupe_key);
	set_pointer(row, MESSAGE_TENANT, arguments->tenant);
	set_pointer(row, MESSAGE_CORRELATION_ID, arguments->correlation_id);
	set_pointer(row, MESSAGE_HEADERS, arguments->headers);
	set_pointer(row, MESSAGE_PAYLOAD, message->payload);
	store_row(inserter, &inserter->message);
}

static TupleTableSlot *
start_delivery(OutboxInserter *inserter, const OutboxNewMessage *message, int32 handler_id,
			   OutboxState state)
{
	TupleTableSlot *row = start_row(&inserter->delivery);

	set_pointer(row, DELIVERY_MESSAGE_ID, &message->id);
	set_column(row, DELIVERY_DUE_AT, TimestampTzGetDatum(message->arguments->due_at));
	set_column(row, DELIVERY_HANDLER_ID, Int32GetDatum(handler_id));
	set_column(row, DELIVERY_ATTEMPTS, Int32GetDatum(0));
	set_column(row, DELIVERY_BUDGET_FROM, Int32GetDatum(0));
	set_column(row, DELIVERY_STATE, Int16GetDatum(state));
	set_column(row, DELIVERY_STREAK, Int16GetDatum(0));
	return row;
}

void
outbox_insert_delivery(OutboxInserter *inserter, const OutboxNewMessage *message,
					   const OutboxRoute *route)
{
	TupleTableSlot *row = start_delivery(inserter, message, route->handler_id, OUTBOX_PENDING);

	if (route->ordered)
		set_pointer(row, DELIVERY_KEY, message->key);
	if (route->is_pull && message->arguments->has_min_version)
		set_column(row, DELIVERY_MIN_VERSION, Int32GetDatum(message->arguments->min_version));
	store_row(inserter, &inserter->delivery);
}

void
outbox_insert_unrouted(OutboxInserter *inserter, const OutboxNewMessage *message)
{
	TupleTableSlot *row = start_delivery(inserter, message, OUTBOX_UNROUTED_HANDLER, OUTBOX_DEAD);

	set_column(row, DELIVERY_SETTLED_AT, TimestampTzGetDatum(message->arguments->staged_at));
	set_column(row, DELIVERY_CODE, CStringGetTextDatum("unrouted"));
	set_column(row, DELIVERY_ERROR, CStringGetTextDatum("no handler takes this topic"));
	store_row(inserter, &inserter->delivery);
}
