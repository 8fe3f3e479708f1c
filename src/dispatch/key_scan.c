/*-------------------------------------------------------------------------
 *
 * key_scan.c
 *		Looks up what may go next of a message key, on ordered lanes.
 *
 * See key_scan.h.  The rows of a key are walked in the index delivery_keyed, by
 * id, from the key's floor or from the last member on: entries of settled
 * rows that vacuum has not removed are stepped over once, not at every key scan.
 * A walk is bounded by the entries it looks at and goes on where it stopped.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/key_scan.h"
#include "dispatch/order.h"
#include "table/columns.h"
#include "table/dead_key.h"
#include "table/outstanding.h"
#include "table/relation.h"
#include "worker/clock.h"

/* Read ahead, a scan steps over so many entries of settled rows behind the last one it has met. */
#define MAX_ENTRIES_AHEAD 1000

/* Passing a row by costs its heap page, as much as so many entries that are skipped. */
#define PASSING_COST 4

/* What is open while a transaction reads. */
typedef struct KeyScan
{
	Relation	keyed;
	IndexScanDesc keyed_scan;
	OutboxDeadKeys dead;
	TupleTableSlot *slot;
	text	   *key;			/* what keyed_scan looks for */
	pg_uuid_t	start;			/* and from where */
} KeyScan;

static KeyScan key_scan;
static OutboxOrderKey *scanned_key = NULL;	/* the key that is being scanned */
bool
outbox_key_scan_begin(Relation delivery, Snapshot snapshot)
{
	memset(&key_scan, 0, sizeof(key_scan));
	if (!outbox_order_exists())
		return true;
	if ((key_scan.keyed = outbox_index_open_if_free(delivery, "delivery_keyed", AccessShareLock)) == NULL ||
		!outbox_dead_keys_open(&key_scan.dead, true))
	{
		outbox_key_scan_end();
		return false;
	}
	key_scan.keyed_scan = outbox_index_beginscan(delivery, key_scan.keyed, snapshot, 3);
	/* The id of an entry is needed even where its row is dead. */
	key_scan.keyed_scan->xs_want_itup = true;
	key_scan.slot = table_slot_create(delivery, NULL);
	return true;
}

void
outbox_key_scan_end(void)
{
	if (key_scan.slot)
		ExecDropSingleTupleTableSlot(key_scan.slot);
	if (key_scan.keyed_scan)
		index_endscan(key_scan.keyed_scan);
	outbox_dead_keys_close(&key_scan.dead);
	if (key_scan.keyed)
		relation_close(key_scan.keyed, NoLock);
	memset(&key_scan, 0, sizeof(key_scan));
}

void
outbox_key_scan_abort(void)
{
	memset(&key_scan, 0, sizeof(key_scan));
	if (scanned_key == NULL)
		return;
	outbox_order_want(scanned_key);
	outbox_order_end_key_scan(scanned_key);
	scanned_key = NULL;
}

static TimestampTz
slot_due_at(void)
{
	bool		isnull;

	return DatumGetTimestampTz(slot_getattr(key_scan.slot, Anum_delivery_due_at, &isnull));
}

/* Start walking the key's rows that are or were outstanding.  False if that is not from its floor on. */
static bool
start_walk(int32 handler_id, OutboxOrderKey *key)
{
	ScanKeyData keys[3];
	bool		from_floor = outbox_order_start(key, &key_scan.start);

	if (key_scan.key)
		pfree(key_scan.key);
	key_scan.key = cstring_to_text(outbox_order_key_text(key));
	outbox_init_key_scan(keys, key_scan.keyed, handler_id, key_scan.key);
	ScanKeyInit(&keys[2], 3, BTGreaterEqualStrategyNumber, F_UUID_GE, UUIDPGetDatum(&key_scan.start));
	index_rescan(key_scan.keyed_scan, keys, 3, NULL, 0);
	return from_floor;
}

static pg_uuid_t
entry_id(void)
{
	bool		isnull;

	return *DatumGetUUIDP(index_getattr(key_scan.keyed_scan->xs_itup, 3, key_scan.keyed_scan->xs_itupdesc, &isnull));
}

/* The dead letter of the key with the smallest id, where those block. */
static bool
find_dead(const OutboxLane *lane, pg_uuid_t *id)
{
	return lane->handler->block_on_dead &&
		outbox_dead_keys_find(&key_scan.dead, lane->handler_id, key_scan.key, id);
}

/*
 * One outstanding row of the walk, in the slot.  Returns true if the walk
 * goes on behind it.
 */
static bool
visit(OutboxLane *lane, OutboxOrderKey *key, const pg_uuid_t *id, int *room,
	  OutboxReadBounds *bounds, TimestampTz now)
{
	const OutboxDelivery *delivery = outbox_delivery_find(id, lane->handler_id);
	OutboxQueuePosition row = {slot_due_at(), *id};
	bool		goes_first = outbox_order_goes_first(key);

	if (delivery != NULL && outbox_order_is_under_way(delivery))
		return true;
	if (delivery != NULL || row.due_at > outbox_to_wall(now))
	{
		outbox_order_block(key, id, row.due_at);
		return false;
	}
	if (goes_first && (bounds->rows <= 0 || bounds->bytes <= 0))
	{
		outbox_order_want(key);
		return false;
	}
	if (*room <= 0 || bounds->bytes <= 0)
	{
		outbox_order_leaves_rows(key);
		outbox_order_is_complete(key);
		return false;
	}
	/* Those that wait do not take up the lane's queue. */
	if (goes_first)
		bounds->rows--;
	(*room)--;
	outbox_take(lane, &row, key_scan.slot, key, bounds);
	return true;
}

/*
 * There are more entries of settled rows in a row than may be looked at now.
 * Looking for the head goes on from here; reading ahead has time until those
 * that were met have gone.  What lies between here and the last member is
 * not known to be settled, so the next scan starts from the floor again.
 */
static void
stop_among_settled(OutboxOrderKey *key, bool found)
{
	if (found)
		outbox_order_leaves_rows(key);
	else
		outbox_order_want(key);
}

static void
walk(OutboxLane *lane, OutboxOrderKey *key, OutboxReadBounds *bounds, TimestampTz now)
{
	int			room = outbox_order_room(key);
	int			ahead = MAX_ENTRIES_AHEAD;
	bool		found;
	pg_uuid_t	dead_id;
	bool		dead;

	if (room == 0)
	{
		outbox_order_leaves_rows(key);
		return;
	}
	found = !start_walk(lane->handler_id, key);
	dead = find_dead(lane, &dead_id);
	while (index_getnext_tid(key_scan.keyed_scan, ForwardScanDirection) != NULL)
	{
		pg_uuid_t	id = entry_id();

		bounds->entries--;
		if (!found)
			outbox_order_raise_floor(key, &id);
		if (dead && memcmp(dead_id.data, id.data, UUID_LEN) < 0)
		{
			outbox_order_block(key, &dead_id, DT_NOEND);
			return;
		}
		if (index_fetch_heap(key_scan.keyed_scan, key_scan.slot))
		{
			found = true;
			ahead = MAX_ENTRIES_AHEAD;
			if (!visit(lane, key, &id, &room, bounds, now))
				return;
		}
		else
		{
			outbox_order_stepped_over(key, 1);
			if (bounds->entries > 0 && (!found || ahead-- > 0))
				continue;
			stop_among_settled(key, found);
			return;
		}
	}
	outbox_order_is_complete(key);
}

static void
scan_key(OutboxLane *lane, OutboxOrderKey *key, OutboxReadBounds *bounds, TimestampTz now)
{
	outbox_order_begin_key_scan(key);
	scanned_key = key;
	walk(lane, key, bounds, now);
	scanned_key = NULL;
	outbox_order_end_key_scan(key);
}

bool
outbox_key_scan_row(OutboxLane *lane, TupleTableSlot *slot, const pg_uuid_t *id,
				 OutboxReadBounds *bounds, TimestampTz now)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, Anum_delivery_key, &isnull);
	char	   *name;
	OutboxOrderKey *key;

	if (isnull)
		return false;
	name = TextDatumGetCString(value);
	key = outbox_order_meet(lane->order, name, id, outbox_to_wall(now));
	pfree(name);
	if (key == NULL)
		bounds->entries -= PASSING_COST - 1;
	else
		scan_key(lane, key, bounds, now);
	return true;
}

void
outbox_key_scan_wanted(OutboxLane *lane, OutboxReadBounds *bounds, TimestampTz now)
{
	OutboxOrderKey *key;
	/* Keys that are under way leave half of the room to others. */
	int			reserved = lane->more ? bounds->rows / 2 : 0;

	while (bounds->rows > reserved && bounds->bytes > 0 && bounds->entries > 0 &&
		   (key = outbox_order_next_wanted(lane->order)) != NULL)
		scan_key(lane, key, bounds, now);
}
