/*-------------------------------------------------------------------------
 *
 * dead_key.h
 *		Dead deliveries that bar a key of an ordered handler (on_dead = block).
 *
 * Process: any, in a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DEAD_KEY_H
#define OUTBOX_DEAD_KEY_H

#include "access/genam.h"
#include "executor/tuptable.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

typedef struct OutboxDeadKeys
{
	Relation	rel;			/* NULL: not open */
	Relation	index;
	IndexScanDesc scan;			/* NULL until used under the present snapshot */
	TupleTableSlot *slot;
} OutboxDeadKeys;

/* Open for reading.  With if_free false, and nothing is open, if somebody holds a lock that conflicts. */
extern bool outbox_dead_keys_open(OutboxDeadKeys *dead, bool if_free);
extern void outbox_dead_keys_close(OutboxDeadKeys *dead);

/* The active snapshot has changed: later finds use the new one. */
extern void outbox_dead_keys_new_snapshot(OutboxDeadKeys *dead);

/* The one of the key with the smallest id, under the active snapshot. */
extern bool outbox_dead_keys_find(OutboxDeadKeys *dead, int32 handler_id, const text *key, pg_uuid_t *id);

#endif							/* OUTBOX_DEAD_KEY_H */
