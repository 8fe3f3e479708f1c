/*-------------------------------------------------------------------------
 *
 * relation.h
 *		Opening and locking the extension's tables and their indexes.
 *
 * Promises: what is read and written below SQL is an ordinary table, by an
 * index of its own.  An owner can rename a table and put a view or a
 * partitioned table in its place, or a copy while the indexes stay with the
 * original; then this raises.  And whatever says "if free" waits for nobody's
 * lock, so that no operator's open transaction can stall a worker.
 *
 * Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RELATION_H
#define OUTBOX_RELATION_H

#include "postgres.h"

#include "access/attnum.h"
#include "executor/tuptable.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

/* mode is NoLock if it is locked already. */
extern Relation outbox_table_open(const char *name, LOCKMODE mode);
extern Relation outbox_index_open(Relation table, const char *name, LOCKMODE mode);

/* The number of a column of an open table of ours.  Raises if there is none of that name. */
extern AttrNumber outbox_table_column(Relation rel, const char *name);

/*
 * Hand each row of an open table to a function, along with what the caller
 * passes, under a snapshot taken now whatever the transaction's is.  Memory that
 * read takes is freed after each row.
 */
typedef void (*OutboxRowReader) (TupleTableSlot *slot, const void *passed);
extern void outbox_table_read_latest(Relation rel, OutboxRowReader read, const void *passed);

/* The first two, but NULL if somebody's lock is in the way. */
extern Relation outbox_table_open_if_free(const char *name, LOCKMODE mode);
extern Relation outbox_index_open_if_free(Relation table, const char *name, LOCKMODE mode);

/*
 * Lock a table and all its indexes, each of which can be locked by itself
 * (ALTER INDEX ... SET TABLESPACE).  False if somebody is in the way; what was
 * locked until then stays so until the transaction ends.
 */
extern bool outbox_lock_if_free(const char *table, LOCKMODE mode);

typedef struct OutboxTableLock
{
	const char *name;
	LOCKMODE	mode;
} OutboxTableLock;

/*
 * The same for all that a transaction will touch, before it touches any: who
 * has locked one table and waits for another is in the way of DROP EXTENSION
 * and its like.  False also if one of them is gone.
 */
extern bool outbox_lock_all_if_free(const OutboxTableLock *tables, int n);

#endif							/* OUTBOX_RELATION_H */
