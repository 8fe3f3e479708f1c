/*-------------------------------------------------------------------------
 *
 * durability.h
 *		When a row that can be seen is safe.
 *
 * Rows of an asynchronous commit are visible before they are safe.  The
 * commit log knows up to where WAL must be flushed for the transaction that
 * wrote a row; as a rule that is nowhere, because its commit was synchronous.
 *
 * Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DURABILITY_H
#define OUTBOX_DURABILITY_H

#include "access/xlogdefs.h"
#include "executor/tuptable.h"

/*
 * How far WAL must be flushed before what a visible row says may be acted
 * upon: InvalidXLogRecPtr if it is safe.  A frozen row is, and the commit log
 * may have forgotten its transaction long ago.  So is what this transaction
 * has written itself, as far as it is concerned, and what is from before
 * safe_below.
 */
extern XLogRecPtr outbox_row_flush_point(TupleTableSlot *slot, TransactionId safe_below);

#endif							/* OUTBOX_DURABILITY_H */
