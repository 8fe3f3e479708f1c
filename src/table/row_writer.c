/*-------------------------------------------------------------------------
 *
 * row_writer.c
 *		Inserts, changes and deletes single rows without a plan.
 *
 * See row_writer.h.  What the executor works with (the table's constraints,
 * its indexes and their predicates) costs as much to set up as some rows to
 * write, so it is kept as a table's upkeep until the relcache says that the
 * table or an index has changed.  Only the relations are opened anew.  A table
 * with triggers, or with indexes that keep a state between insertions, is set
 * up each time; so is one that is being written already when a trigger's
 * function comes back here.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "common/session.h"
#include "compat.h"
#include "table/relation.h"
#include "table/row_writer.h"

typedef struct OutboxUpkeep
{
	bool		valid;
	bool		changed;		/* something was changed since the last set-up began */
	uint64		user;			/* of the present use; 0: free */
	MemoryContext context;		/* everything below, and the executor's state */
	Oid			relid;
	int			nindexes;
	Oid		   *indexes;
	EState	   *estate;
	ResultRelInfo *result;
	TupleDesc  *shapes;
} OutboxUpkeep;

/* Frees the upkeep if the memory of its user goes away: the transaction has failed. */
typedef struct UpkeepUse
{
	MemoryContextCallback callback;
	OutboxUpkeep *upkeep;
	uint64		user;
} UpkeepUse;

static const struct
{
	const char *name;
	int			natts;
	bool		many;			/* of which a writer often inserts several */
}			tables[OUTBOX_TABLES] = {
	[OUTBOX_TABLE_MESSAGE] = {"message", Natts_message, false},
	[OUTBOX_TABLE_DELIVERY] = {"delivery", Natts_delivery, true},
	[OUTBOX_TABLE_RECEIPT] = {"receipt", Natts_receipt, true},
	[OUTBOX_TABLE_HANDLER_SECRET] = {"handler_secret", Natts_handler_secret, false},
	[OUTBOX_TABLE_EVENT_QUEUE] = {"event_queue", Natts_event_queue, false},
};

/*
 * Rows that may wait: more than one transaction of the dispatcher settles, so
 * that it is never told of one row's error while it writes another.
 */
#define MAX_WAITING 4096

/* Rows that are handed over at once. */
#define INSERTED_AT_ONCE 64

static OutboxUpkeep upkeeps[OUTBOX_TABLES];

static void
relation_changed(Datum arg, Oid relid)
{
	for (int t = 0; t < OUTBOX_TABLES; t++)
	{
		OutboxUpkeep *upkeep = &upkeeps[t];
		bool		ours = relid == InvalidOid || relid == upkeep->relid;

		for (int i = 0; i < upkeep->nindexes && !ours; i++)
			ours = relid == upkeep->indexes[i];
		if (!ours)
			continue;
		upkeep->valid = false;
		upkeep->changed = true;
	}
}

static void
forget_user(void *arg)
{
	UpkeepUse  *use = arg;

	if (use->upkeep->user == use->user)
		use->upkeep->user = 0;
}

static void
use_upkeep(OutboxUpkeep *upkeep)
{
	static uint64 last_user = 0;
	UpkeepUse  *use = palloc0(sizeof(UpkeepUse));

	upkeep->user = use->user = ++last_user;
	use->upkeep = upkeep;
	use->callback.func = forget_user;
	use->callback.arg = use;
	MemoryContextRegisterResetCallback(CurrentMemoryContext, &use->callback);
}

/*
 * Triggers with transition tables would find none: a row that no statement
 * wrote is in no such table, and the trigger's function would raise.
 */
static bool
can_fire(const Trigger *trigger)
{
	return trigger->tgenabled == TRIGGER_FIRES_ALWAYS && trigger->tgoldtable == NULL && trigger->tgnewtable == NULL;
}

static bool
fires_triggers(Relation rel)
{
	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
	{
		if (can_fire(&rel->trigdesc->triggers[i]))
			return true;
	}
	return false;
}

/* Other kinds of indexes keep a state between insertions that must not outlive the relation. */
static bool
can_be_kept(const ResultRelInfo *result)
{
	for (int i = 0; i < result->ri_NumIndices; i++)
	{
		if (result->ri_IndexRelationDescs[i]->rd_rel->relam != BTREE_AM_OID)
			return false;
	}
	return true;
}

static TupleDesc *
make_shapes(Relation rel)
{
	return palloc0(sizeof(TupleDesc) * (RelationGetNumberOfAttributes(rel) + 1));
}

/* What a tuple of the first columns is made by.  Of no row type: it is not a value of the table's. */
static TupleDesc
shape_of(OutboxTarget *target, int natts)
{
	TupleDesc  *shape = &target->shapes[natts];

	if (*shape == NULL)
	{
		MemoryContext oldcontext = MemoryContextSwitchTo(GetMemoryChunkContext(target->shapes));

		*shape = outbox_first_columns(RelationGetDescr(target->rel), natts);
		(*shape)->tdtypeid = RECORDOID;
		(*shape)->tdtypmod = -1;
		MemoryContextSwitchTo(oldcontext);
	}
	return *shape;
}

static ResultRelInfo *
make_result(Relation rel)
{
	ResultRelInfo *result = makeNode(ResultRelInfo);

	/* In no range table: no statement is being executed. */
	InitResultRelInfo(result, rel, 0, NULL, 0);
	ExecOpenIndices(result, false);
	return result;
}

static void
set_up_upkeep(OutboxUpkeep *upkeep, Relation rel)
{
	MemoryContext oldcontext;

	if (upkeep->context == NULL)
		upkeep->context = AllocSetContextCreate(TopMemoryContext, "outbox table upkeep", ALLOCSET_SMALL_SIZES);
	upkeep->valid = false;
	upkeep->changed = false;
	upkeep->nindexes = 0;
	/* Deletes the executor's state of last time as well. */
	MemoryContextReset(upkeep->context);
	oldcontext = MemoryContextSwitchTo(upkeep->context);
	upkeep->relid = RelationGetRelid(rel);
	upkeep->estate = CreateExecutorState();
	upkeep->result = make_result(rel);
	/* None of them is ENABLE ALWAYS. */
	upkeep->result->ri_TrigDesc = NULL;
	upkeep->indexes = palloc(sizeof(Oid) * Max(1, upkeep->result->ri_NumIndices));
	for (int i = 0; i < upkeep->result->ri_NumIndices; i++)
		upkeep->indexes[i] = RelationGetRelid(upkeep->result->ri_IndexRelationDescs[i]);
	upkeep->nindexes = upkeep->result->ri_NumIndices;
	upkeep->shapes = make_shapes(rel);
	upkeep->valid = !upkeep->changed && can_be_kept(upkeep->result);
	MemoryContextSwitchTo(oldcontext);
}

/* The table is locked, so that no index comes or goes. */
static void
open_with_upkeep(OutboxTarget *target, OutboxUpkeep *upkeep)
{
	if (upkeep->valid && upkeep->relid == RelationGetRelid(target->rel))
	{
		upkeep->result->ri_RelationDesc = target->rel;
		for (int i = 0; i < upkeep->nindexes; i++)
			upkeep->result->ri_IndexRelationDescs[i] = index_open(upkeep->indexes[i], RowExclusiveLock);
	}
	else
		set_up_upkeep(upkeep, target->rel);
	target->upkeep = upkeep;
	target->estate = upkeep->estate;
	target->result = upkeep->result;
	use_upkeep(upkeep);
}

/* In the executor's own copy.  No more than the owner of the table wants fires. */
static void
disable_ordinary_triggers(TriggerDesc *triggers)
{
	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		if (!can_fire(&triggers->triggers[i]))
			triggers->triggers[i].tgenabled = TRIGGER_DISABLED;
	}
}

static void
open_with_triggers(OutboxWriter *writer, OutboxTarget *target)
{
	if (writer->trigger_estate == NULL)
	{
		writer->trigger_estate = CreateExecutorState();
		outbox_eval_plan_qual_init(&writer->epq, writer->trigger_estate);
		AfterTriggerBeginQuery();
	}
	target->has_triggers = true;
	target->estate = writer->trigger_estate;
	target->result = make_result(target->rel);
	disable_ordinary_triggers(target->result->ri_TrigDesc);
	target->estate->es_opened_result_relations =
		lappend(target->estate->es_opened_result_relations, target->result);
}

/* A generated column would have to be computed from a row that is whole. */
static bool
is_plain(const OutboxTarget *target)
{
	const TupleConstr *constr = RelationGetDescr(target->rel)->constr;

	return !target->has_triggers && !target->rel->rd_rel->relispartition &&
		(constr == NULL || !constr->has_generated_stored);
}

static void
open_rows(OutboxTarget *target, OutboxTable table)
{
	TupleDesc	desc = RelationGetDescr(target->rel);

	target->row = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	if (!is_plain(target))
		return;
	target->shapes = target->upkeep != NULL ? target->upkeep->shapes : make_shapes(target->rel);
	target->stored = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
	target->may_wait = tables[table].many;
}

static void
open_target(OutboxWriter *writer, OutboxTable table)
{
	static bool listening = false;
	OutboxTarget *target = &writer->targets[table];
	OutboxUpkeep *upkeep = &upkeeps[table];
	MemoryContext oldcontext = MemoryContextSwitchTo(writer->context);

	if (!listening)
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	listening = true;

	target->rel = outbox_table_open(tables[table].name, RowExclusiveLock);
	if (RelationGetNumberOfAttributes(target->rel) < tables[table].natts)
		elog(ERROR, "table outbox.%s has %d columns instead of %d", tables[table].name,
			 RelationGetNumberOfAttributes(target->rel), tables[table].natts);
	if (fires_triggers(target->rel))
		open_with_triggers(writer, target);
	else if (upkeep->user == 0)
		open_with_upkeep(target, upkeep);
	else
	{
		target->estate = CreateExecutorState();
		target->result = make_result(target->rel);
		target->result->ri_TrigDesc = NULL;
	}
	open_rows(target, table);
	MemoryContextSwitchTo(oldcontext);
}

void
outbox_writer_begin(OutboxWriter *writer)
{
	memset(writer, 0, sizeof(OutboxWriter));
	writer->context = CurrentMemoryContext;
}

/* The target, ready for one operation. */
static OutboxTarget *
target_for(OutboxWriter *writer, OutboxTable table)
{
	OutboxTarget *target = &writer->targets[table];

	if (target->rel == NULL)
		open_target(writer, table);
	target->estate->es_output_cid = GetCurrentCommandId(true);
	if (ActiveSnapshotSet())
		target->estate->es_snapshot = GetActiveSnapshot();
	return target;
}

TupleTableSlot *
outbox_writer_start(OutboxWriter *writer, OutboxTable table)
{
	TupleTableSlot *row = target_for(writer, table)->row;

	ExecClearTuple(row);
	memset(row->tts_isnull, true, sizeof(bool) * row->tts_tupleDescriptor->natts);
	return row;
}

TupleTableSlot *
outbox_writer_start_from(OutboxWriter *writer, OutboxTable table, TupleTableSlot *found)
{
	TupleTableSlot *row = target_for(writer, table)->row;
	int			natts = row->tts_tupleDescriptor->natts;

	slot_getallattrs(found);
	ExecClearTuple(row);
	memcpy(row->tts_values, found->tts_values, sizeof(Datum) * natts);
	memcpy(row->tts_isnull, found->tts_isnull, sizeof(bool) * natts);
	return row;
}

void
outbox_row_set_text(TupleTableSlot *row, AttrNumber column, const char *value)
{
	if (value == NULL || value[0] == '\0')
		outbox_row_set_null(row, column);
	else
		outbox_row_set(row, column, CStringGetTextDatum(value));
}

/* Triggers run with the owner's rights, as they do for a statement of the extension. */
static void
begin_operation(OutboxTarget *target, OutboxSecurity *security)
{
	if (target->has_triggers)
		outbox_become_owner(security);
}

static void
end_operation(OutboxTarget *target, const OutboxSecurity *security)
{
	if (target->has_triggers)
		outbox_become_caller(security);
	ResetPerTupleExprContext(target->estate);
}

/* Does a row that ends before this column say the same of it? */
static bool
goes_without(TupleDesc desc, TupleTableSlot *row, int i)
{
	Form_pg_attribute attribute = TupleDescAttr(desc, i);
	bool		isnull;
	Datum		missing;

	if (!attribute->atthasmissing)
		return row->tts_isnull[i];
	missing = getmissingattr(desc, i + 1, &isnull);
	if (isnull || row->tts_isnull[i])
		return isnull && row->tts_isnull[i];
	return datumIsEqual(row->tts_values[i], missing, attribute->attbyval, attribute->attlen);
}

/* The tuple of the row that was filled in, no longer than it has to be. */
static HeapTuple
form_tuple(OutboxWriter *writer, OutboxTarget *target)
{
	TupleDesc	desc = RelationGetDescr(target->rel);
	MemoryContext oldcontext = MemoryContextSwitchTo(writer->context);
	int			natts = desc->natts;
	HeapTuple	tuple;

	while (natts > 1 && goes_without(desc, target->row, natts - 1))
		natts--;
	tuple = heap_form_tuple(shape_of(target, natts), target->row->tts_values, target->row->tts_isnull);
	MemoryContextSwitchTo(oldcontext);
	return tuple;
}

/* The row that was filled in, in the slot that the executor takes it from. */
static TupleTableSlot *
finish_row(OutboxWriter *writer, OutboxTarget *target)
{
	ExecStoreVirtualTuple(target->row);
	if (target->shapes == NULL)
		return target->row;
	return ExecStoreHeapTuple(form_tuple(writer, target), target->stored, true);
}

/* Tuples that their constraints allow. */
static void
insert_at_once(OutboxTarget *target, TupleTableSlot **slots, int n)
{
	table_multi_insert(target->rel, slots, n, target->estate->es_output_cid, 0, NULL);
	for (int i = 0; i < n; i++)
	{
		outbox_insert_index_entries(target->result, slots[i], target->estate);
		ResetPerTupleExprContext(target->estate);
		ExecClearTuple(slots[i]);
	}
}

static void
insert_in_slots(OutboxTarget *target, HeapTuple *tuples, int n)
{
	TupleTableSlot *slots[INSERTED_AT_ONCE];
	int			nslots = Min(n, INSERTED_AT_ONCE);

	for (int i = 0; i < nslots; i++)
		slots[i] = MakeSingleTupleTableSlot(RelationGetDescr(target->rel), &TTSOpsHeapTuple);
	for (int from = 0; from < n; from += nslots)
	{
		int			at_once = Min(nslots, n - from);

		for (int i = 0; i < at_once; i++)
			ExecStoreHeapTuple(tuples[from + i], slots[i], true);
		insert_at_once(target, slots, at_once);
	}
	for (int i = 0; i < nslots; i++)
		ExecDropSingleTupleTableSlot(slots[i]);
}

/* Insert the rows that wait.  A single one takes less WAL by itself. */
static void
insert_waiting(OutboxWriter *writer, OutboxTable table)
{
	OutboxTarget *target = target_for(writer, table);
	int			n = target->nwaiting;
	MemoryContext oldcontext = MemoryContextSwitchTo(writer->context);

	target->nwaiting = 0;
	if (n == 1)
	{
		ExecSimpleRelationInsert(target->result, target->estate, ExecStoreHeapTuple(target->waiting[0], target->stored, true));
		ResetPerTupleExprContext(target->estate);
	}
	else
		insert_in_slots(target, target->waiting, n);
	MemoryContextSwitchTo(oldcontext);
}

static void
insert_later(OutboxWriter *writer, OutboxTable table)
{
	OutboxTarget *target = &writer->targets[table];

	if (target->nwaiting == MAX_WAITING)
		insert_waiting(writer, table);
	if (target->nwaiting == target->max_waiting)
	{
		target->max_waiting = target->max_waiting == 0 ? 16 : 2 * target->max_waiting;
		target->waiting = target->waiting == NULL ?
			MemoryContextAlloc(writer->context, sizeof(HeapTuple) * target->max_waiting) :
			repalloc(target->waiting, sizeof(HeapTuple) * target->max_waiting);
	}
	ExecStoreVirtualTuple(target->row);
	if (RelationGetDescr(target->rel)->constr != NULL)
		ExecConstraints(target->result, target->row, target->estate);
	target->waiting[target->nwaiting++] = form_tuple(writer, target);
	ResetPerTupleExprContext(target->estate);
}

void
outbox_writer_insert(OutboxWriter *writer, OutboxTable table)
{
	OutboxTarget *target = target_for(writer, table);
	OutboxSecurity security;

	if (target->may_wait)
	{
		insert_later(writer, table);
		return;
	}
	begin_operation(target, &security);
	if (target->has_triggers && !target->inserted)
		ExecBSInsertTriggers(target->estate, target->result);
	target->inserted = true;
	ExecSimpleRelationInsert(target->result, target->estate, finish_row(writer, target));
	end_operation(target, &security);
}

void
outbox_writer_update(OutboxWriter *writer, OutboxTable table, TupleTableSlot *found)
{
	OutboxTarget *target = target_for(writer, table);
	OutboxSecurity security;

	begin_operation(target, &security);
	if (target->has_triggers && !target->updated)
		ExecBSUpdateTriggers(target->estate, target->result);
	target->updated = true;
	ExecSimpleRelationUpdate(target->result, target->estate, &writer->epq, found, finish_row(writer, target));
	end_operation(target, &security);
}

/* Without waiting for anybody, but for ourselves who have it locked. */
static bool
delete_tuple(OutboxTarget *target, TupleTableSlot *found, bool locked)
{
	TM_FailureData failure;

	return table_tuple_delete(target->rel, &found->tts_tid, target->estate->es_output_cid,
							  target->estate->es_snapshot, InvalidSnapshot, locked,
							  &failure, false) == TM_Ok;
}

static bool
lock_tuple(OutboxTarget *target, TupleTableSlot *found)
{
	TM_FailureData failure;
	ItemPointerData tid = found->tts_tid;

	return table_tuple_lock(target->rel, &tid, target->estate->es_snapshot, found,
							target->estate->es_output_cid, LockTupleExclusive,
							LockWaitSkip, 0, &failure) == TM_Ok;
}

bool
outbox_writer_delete(OutboxWriter *writer, OutboxTable table, TupleTableSlot *found, bool locked)
{
	OutboxTarget *target = target_for(writer, table);
	OutboxSecurity security;

	if (!target->has_triggers)
		return delete_tuple(target, found, locked);
	/* The executor waits for others, which a lock that is taken before it spares us. */
	if (!locked && !lock_tuple(target, found))
		return false;
	begin_operation(target, &security);
	if (!target->deleted)
		ExecBSDeleteTriggers(target->estate, target->result);
	target->deleted = true;
	ExecSimpleRelationDelete(target->result, target->estate, &writer->epq, found);
	end_operation(target, &security);
	return true;
}

static void
fire_statement_triggers(OutboxTarget *target)
{
	if (target->inserted)
		ExecASInsertTriggers(target->estate, target->result, NULL);
	if (target->updated)
		ExecASUpdateTriggers(target->estate, target->result, NULL);
	if (target->deleted)
		ExecASDeleteTriggers(target->estate, target->result, NULL);
}

static void
fire_after_triggers(OutboxWriter *writer)
{
	OutboxSecurity security;

	outbox_become_owner(&security);
	for (int t = 0; t < OUTBOX_TABLES; t++)
	{
		if (writer->targets[t].has_triggers)
			fire_statement_triggers(&writer->targets[t]);
	}
	AfterTriggerEndQuery(writer->trigger_estate);
	outbox_become_caller(&security);
}

static void
close_target(OutboxTarget *target)
{
	ExecDropSingleTupleTableSlot(target->row);
	if (target->stored != NULL)
		ExecDropSingleTupleTableSlot(target->stored);
	/* Those of tables with triggers are closed all at once. */
	if (!target->has_triggers)
		ExecCloseIndices(target->result);
	if (target->upkeep != NULL)
		target->upkeep->user = 0;
	else if (!target->has_triggers)
		FreeExecutorState(target->estate);
	table_close(target->rel, NoLock);
}

static void
close_trigger_estate(OutboxWriter *writer)
{
	EvalPlanQualEnd(&writer->epq);
	ExecCloseResultRelations(writer->trigger_estate);
	ExecResetTupleTable(writer->trigger_estate->es_tupleTable, false);
	FreeExecutorState(writer->trigger_estate);
}

void
outbox_writer_end(OutboxWriter *writer)
{
	bool		wrote = false;

	for (int t = 0; t < OUTBOX_TABLES; t++)
	{
		if (writer->targets[t].nwaiting > 0)
			insert_waiting(writer, t);
	}
	if (writer->trigger_estate != NULL)
	{
		fire_after_triggers(writer);
		close_trigger_estate(writer);
	}
	for (int t = 0; t < OUTBOX_TABLES; t++)
	{
		OutboxTarget *target = &writer->targets[t];

		if (target->rel == NULL)
			continue;
		wrote = true;
		close_target(target);
	}
	if (wrote)
		CommandCounterIncrement();
}
