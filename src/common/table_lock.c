/*-------------------------------------------------------------------------
 *
 * table_lock.c
 *		Locks that workers take only if nobody is in the way.
 *
 * See table_lock.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "nodes/pg_list.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "common/session.h"
#include "common/table_lock.h"

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
