/*-------------------------------------------------------------------------
 *
 * durable.h
 *		Makes sure that what was read is durable before it is acted upon.
 *
 * Process: the dispatcher.  Every row that a transaction takes is noted; once
 * it has committed, WAL is flushed past all of them.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DURABLE_H
#define OUTBOX_DURABLE_H

#include "executor/tuptable.h"
#include "utils/snapshot.h"

/* In a transaction, before rows are noted. */
extern void outbox_durable_begin(Snapshot snapshot);

/* This row is acted upon. */
extern void outbox_durable_note(TupleTableSlot *slot);

/* Outside the transaction: flush WAL past what was noted, which may raise; or forget it. */
extern void outbox_durable_flush(void);
extern void outbox_durable_forget(void);

#endif							/* OUTBOX_DURABLE_H */
