/*-------------------------------------------------------------------------
 *
 * dead_key.c
 *		Dead deliveries that bar a key of an ordered handler (on_dead = block).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "table/columns.h"
#include "table/dead_key.h"
#include "table/outstanding.h"
#include "table/relation.h"

bool
outbox_dead_keys_open(OutboxDeadKeys *dead, bool if_free)
{
	memset(dead, 0, sizeof(OutboxDeadKeys));
	if (if_free)
	{
		dead->rel = outbox_table_open_if_free("receipt", AccessShareLock);
		if (dead->rel == NULL)
			return false;
		dead->index = outbox_index_open_if_free(dead->rel, "receipt_blocking", AccessShareLock);
		if (dead->index == NULL)
		{
			table_close(dead->rel, NoLock);
			dead->rel = NULL;
			return false;
		}
	}
	else
	{
		dead->rel = outbox_table_open("receipt", AccessShareLock);
		dead->index = outbox_index_open(dead->rel, "receipt_blocking", AccessShareLock);
	}
	dead->slot = table_slot_create(dead->rel, NULL);
	return true;
}

void
outbox_dead_keys_new_snapshot(OutboxDeadKeys *dead)
{
	if (dead->scan != NULL)
		index_endscan(dead->scan);
	dead->scan = NULL;
}

void
outbox_dead_keys_close(OutboxDeadKeys *dead)
{
	if (dead->rel == NULL)
		return;
	outbox_dead_keys_new_snapshot(dead);
	ExecDropSingleTupleTableSlot(dead->slot);
	index_close(dead->index, NoLock);
	table_close(dead->rel, NoLock);
	dead->rel = NULL;
}

bool
outbox_dead_keys_find(OutboxDeadKeys *dead, int32 handler_id, const text *key, pg_uuid_t *id)
{
	ScanKeyData keys[2];
	bool		isnull;

	if (dead->scan == NULL)
		dead->scan = outbox_index_beginscan(dead->rel, dead->index, GetActiveSnapshot(), 2);
	outbox_init_key_scan(keys, dead->index, handler_id, key);
	index_rescan(dead->scan, keys, 2, NULL, 0);
	if (!index_getnext_slot(dead->scan, ForwardScanDirection, dead->slot))
		return false;
	*id = *DatumGetUUIDP(slot_getattr(dead->slot, Anum_receipt_message_id, &isnull));
	return true;
}
