/*-------------------------------------------------------------------------
 *
 * key_scan.h
 *		Looks up what may go next of a message key, on ordered lanes.
 *
 * Process: the dispatcher, inside a transaction, between the begin and end
 * of a fetch.  Of a key only the outstanding delivery with the smallest id
 * may be taken, and those that follow it; a handler that blocks on dead
 * letters takes nothing behind one.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_KEY_SCAN_H
#define OUTBOX_KEY_SCAN_H

#include "executor/tuptable.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "dispatch/take.h"

/* Open the indexes, if any lane is ordered.  False if somebody holds a lock that conflicts. */
extern bool outbox_key_scan_begin(Relation delivery, Snapshot snapshot);
extern void outbox_key_scan_end(void);

/* The transaction has failed: nothing is open any more. */
extern void outbox_key_scan_abort(void);

/*
 * A due row of an ordered lane, in slot, that is not in memory.  False if it
 * has no key and goes freely.  Otherwise it is passed by, or its key scanned.
 */
extern bool outbox_key_scan_row(OutboxLane *lane, TupleTableSlot *slot, const pg_uuid_t *id,
							 OutboxReadBounds *bounds, TimestampTz now);

/* Scan the lane's keys that are wanted, as far as the bounds go. */
extern void outbox_key_scan_wanted(OutboxLane *lane, OutboxReadBounds *bounds, TimestampTz now);

#endif							/* OUTBOX_KEY_SCAN_H */
