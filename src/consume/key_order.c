/*-------------------------------------------------------------------------
 *
 * key_order.c
 *		On ordered handlers: which delivery of a message key may go next.
 *
 * Heads are found in partial indexes: delivery_keyed has the outstanding rows
 * by (handler, key, id), delivery_leased the leased ones among them, and
 * dead_key.h finds the dead.  A key that has been drained for long leaves many
 * dead index entries; its floor (watermark.h) skips them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/uuid.h"

#include "compat.h"
#include "consume/key_order.h"
#include "consume/obligations.h"

/* Dead entries stepped over before a floor is worth keeping. */
#define FLOOR_WORTH 32

/* Sets our locks apart from those of pg_advisory_lock() and its kin, which use 1 and 2. */
#define KEY_LOCK_CLASS 4242

static void
clear_cache(OutboxKeyOrder *order)
{
	for (int i = 0; i < OUTBOX_HEAD_CACHE; i++)
		order->cache[i].len = -1;
}

void
outbox_key_order_open(OutboxKeyOrder *order, const OutboxPullHandler *handler,
					  OutboxDeliveryTable *table, const OutboxClaimStart *start)
{
	memset(order, 0, sizeof(OutboxKeyOrder));
	order->handler = handler;
	order->table = table;
	order->start = start;
	if (!handler->ordered)
		return;
	order->keyed = outbox_deliveries_index(table, "delivery_keyed");
	order->leased = outbox_deliveries_index(table, "delivery_leased");
	if (handler->block_on_dead)
		(void) outbox_dead_keys_open(&order->dead, false);
	order->slot = table_slot_create(table->rel, NULL);
	order->cache = palloc(sizeof(OutboxCachedHead) * OUTBOX_HEAD_CACHE);
	clear_cache(order);
}

static void
end_scans(OutboxKeyOrder *order)
{
	if (order->keyed_scan)
		index_endscan(order->keyed_scan);
	if (order->leased_scan)
		index_endscan(order->leased_scan);
	order->keyed_scan = NULL;
	order->leased_scan = NULL;
	outbox_dead_keys_new_snapshot(&order->dead);
}

void
outbox_key_order_new_snapshot(OutboxKeyOrder *order)
{
	if (!order->handler->ordered)
		return;
	end_scans(order);
	clear_cache(order);
}

void
outbox_key_order_close(OutboxKeyOrder *order)
{
	if (!order->handler->ordered)
		return;
	end_scans(order);
	ExecDropSingleTupleTableSlot(order->slot);
	outbox_dead_keys_close(&order->dead);
	index_close(order->leased, NoLock);
	index_close(order->keyed, NoLock);
}

static void
begin_scans(OutboxKeyOrder *order)
{
	order->keyed_scan = outbox_index_beginscan(order->table->rel, order->keyed, GetActiveSnapshot(), 3);
	order->leased_scan = outbox_index_beginscan(order->table->rel, order->leased, GetActiveSnapshot(), 3);
}

/* The leased row of the key, with an id from floor on. */
static bool
find_leased(OutboxKeyOrder *order, const text *key, const pg_uuid_t *floor)
{
	ScanKeyData keys[3];

	outbox_init_key_scan(keys, order->leased, order->handler->id, key);
	ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_UUID_GE, UUIDPGetDatum(floor));
	index_rescan(order->leased_scan, keys, 3, NULL, 0);
	return index_getnext_slot(order->leased_scan, ForwardScanDirection, order->slot);
}

static pg_uuid_t
slot_id(TupleTableSlot *slot)
{
	bool		isnull;

	return *DatumGetUUIDP(slot_getattr(slot, Anum_delivery_message_id, &isnull));
}

/* The outstanding row of the key with the smallest id. */
static bool
find_smallest(OutboxKeyOrder *order, const text *key, const pg_uuid_t *floor)
{
	ScanKeyData keys[3];
	int			entries = 0;
	bool		found = false;

	outbox_init_key_scan(keys, order->keyed, order->handler->id, key);
	ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_UUID_GE, UUIDPGetDatum(floor));
	index_rescan(order->keyed_scan, keys, 3, NULL, 0);
	while (!found && index_getnext_tid(order->keyed_scan, ForwardScanDirection) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		entries++;
		found = index_fetch_heap(order->keyed_scan, order->slot);
	}
	if (found && entries > FLOOR_WORTH)
	{
		pg_uuid_t	id = slot_id(order->slot);

		if (outbox_consume_bound(&order->handler->ref, &id))
			outbox_key_floor_raise(&order->handler->ref, order->start,
								   VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), &id);
	}
	return found;
}

static bool
find_head(OutboxKeyOrder *order, const text *key)
{
	static const pg_uuid_t nil = {{0}};
	pg_uuid_t	floor = nil;
	pg_uuid_t	head;

	outbox_key_floor_get(&order->handler->ref, VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key), &floor);
	if (find_leased(order, key, &floor))
		return true;
	if (order->handler->block_on_dead)
	{
		pg_uuid_t	dead_id;
		bool		dead = outbox_dead_keys_find(&order->dead, order->handler->id, key, &dead_id);

		if (!find_smallest(order, key, &floor))
			return false;
		head = slot_id(order->slot);
		return !dead || memcmp(head.data, dead_id.data, UUID_LEN) < 0;
	}
	return find_smallest(order, key, &floor);
}

bool
outbox_key_head(OutboxKeyOrder *order, const text *key)
{
	if (order->keyed_scan == NULL)
		begin_scans(order);
	return find_head(order, key);
}

bool
outbox_key_is_head(OutboxKeyOrder *order, const text *key, const pg_uuid_t *id)
{
	int			len = VARSIZE_ANY_EXHDR(key);
	uint32		hash = hash_bytes((const unsigned char *) VARDATA_ANY(key), len);
	OutboxCachedHead *cached = &order->cache[hash % OUTBOX_HEAD_CACHE];

	if (cached->len != len || cached->hash != hash || memcmp(cached->key, VARDATA_ANY(key), len) != 0)
	{
		if (cached->len >= 0)
			pfree(cached->key);
		cached->len = -1;
		cached->exists = outbox_key_head(order, key);
		if (cached->exists)
			cached->id = slot_id(order->slot);
		cached->hash = hash;
		cached->key = palloc(Max(1, len));
		memcpy(cached->key, VARDATA_ANY(key), len);
		cached->len = len;
	}
	return cached->exists && memcmp(cached->id.data, id->data, UUID_LEN) == 0;
}

/* Keys with the same hash share a lock, which costs no more than a moment's delay of one of them. */
static void
set_key_tag(LOCKTAG *tag, const OutboxPullHandler *handler, const text *key)
{
	uint32		hash = hash_bytes((const unsigned char *) VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));

	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) handler->id, hash, KEY_LOCK_CLASS);
}

bool
outbox_key_lock(const OutboxPullHandler *handler, const text *key, bool *acquired)
{
	LOCKTAG		tag;
	LockAcquireResult result;

	set_key_tag(&tag, handler, key);
	result = LockAcquire(&tag, ExclusiveLock, false, true);
	*acquired = result == LOCKACQUIRE_OK;
	return result != LOCKACQUIRE_NOT_AVAIL;
}

void
outbox_key_unlock(const OutboxPullHandler *handler, const text *key)
{
	LOCKTAG		tag;

	set_key_tag(&tag, handler, key);
	LockRelease(&tag, ExclusiveLock, false);
}

bool
outbox_key_is_head_now(OutboxKeyOrder *order, const text *key, const pg_uuid_t *id)
{
	OutboxKeyOrder now = *order;
	pg_uuid_t	head;
	bool		is_head;

	now.keyed_scan = NULL;
	now.leased_scan = NULL;
	now.dead.scan = NULL;

	PushActiveSnapshot(GetLatestSnapshot());
	is_head = outbox_key_head(&now, key);
	if (is_head)
	{
		head = slot_id(now.slot);
		is_head = memcmp(head.data, id->data, UUID_LEN) == 0;
	}
	ExecClearTuple(now.slot);
	end_scans(&now);
	PopActiveSnapshot();
	return is_head;
}

int
outbox_key_lock_limit(void)
{
	return Max(1, max_locks_per_xact / 2);
}
