/*-------------------------------------------------------------------------
 *
 * relation.c
 *		Opening and locking the extension's tables and their indexes.
 *
 * See relation.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/lmgr.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "common/session.h"
#include "table/relation.h"

static void
raise_replaced(const char *name, const char *problem)
{
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("\"outbox.%s\" is not %s", name, problem),
			 errhint("Somebody has put it in the place of what CREATE EXTENSION made. Put that back.")));
}

/* Already locked. */
static Relation
open_table(Oid relid, const char *name)
{
	Relation	rel = relation_open(relid, NoLock);

	if (rel->rd_rel->relkind != RELKIND_RELATION)
		raise_replaced(name, "an ordinary table");
	return rel;
}

static Relation
open_index(Oid relid, Relation table, const char *name)
{
	Relation	rel = index_open(relid, NoLock);

	if (rel->rd_index->indrelid != RelationGetRelid(table))
		raise_replaced(name, psprintf("an index of \"outbox.%s\"", RelationGetRelationName(table)));
	return rel;
}

Relation
outbox_table_open(const char *name, LOCKMODE mode)
{
	Oid			relid = outbox_relation_oid(name, false);

	if (mode != NoLock)
		LockRelationOid(relid, mode);
	return open_table(relid, name);
}

AttrNumber
outbox_table_column(Relation rel, const char *name)
{
	AttrNumber	attnum = get_attnum(RelationGetRelid(rel), name);

	if (attnum == InvalidAttrNumber)
		elog(ERROR, "table outbox.%s has no column \"%s\"", RelationGetRelationName(rel), name);
	return attnum;
}

Relation
outbox_index_open(Relation table, const char *name, LOCKMODE mode)
{
	Oid			relid = outbox_relation_oid(name, false);

	if (mode != NoLock)
		LockRelationOid(relid, mode);
	return open_index(relid, table, name);
}

Relation
outbox_table_open_if_free(const char *name, LOCKMODE mode)
{
	Oid			relid = outbox_relation_oid(name, false);

	return ConditionalLockRelationOid(relid, mode) ? open_table(relid, name) : NULL;
}

Relation
outbox_index_open_if_free(Relation table, const char *name, LOCKMODE mode)
{
	Oid			relid = outbox_relation_oid(name, false);

	return ConditionalLockRelationOid(relid, mode) ? open_index(relid, table, name) : NULL;
}

/* Of a table that is locked, so that no index comes or goes. */
static bool
lock_indexes(Relation rel, LOCKMODE mode)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;
	bool		locked = true;

	foreach(lc, indexes)
		locked = locked && ConditionalLockRelationOid(lfirst_oid(lc), mode);
	list_free(indexes);
	return locked;
}

bool
outbox_lock_if_free(const char *table, LOCKMODE mode)
{
	Oid			relid = outbox_relation_oid(table, false);
	Relation	rel;
	bool		locked;

	if (!ConditionalLockRelationOid(relid, mode))
		return false;
	rel = relation_open(relid, NoLock);
	locked = lock_indexes(rel, mode);
	relation_close(rel, NoLock);
	return locked;
}

bool
outbox_lock_all_if_free(const OutboxTableLock *tables, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (!OidIsValid(outbox_relation_oid(tables[i].name, true)) ||
			!outbox_lock_if_free(tables[i].name, tables[i].mode))
			return false;
	}
	return true;
}

void
outbox_table_read_latest(Relation rel, OutboxRowReader read, const void *passed)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "outbox row", ALLOCSET_DEFAULT_SIZES);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(rel, snapshot, 0, NULL);
	MemoryContext old;

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		old = MemoryContextSwitchTo(scratch);
		read(slot, passed);
		MemoryContextSwitchTo(old);
		MemoryContextReset(scratch);
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(scratch);
}
