/*-------------------------------------------------------------------------
 *
 * table_lock.h
 *		Locks that workers take only if nobody is in the way.
 *
 * Promises: who locks the tables that a transaction is about to touch with
 * this waits for nobody: not for a table lock, nor for one of an index, which
 * can be locked by itself (ALTER INDEX ... SET TABLESPACE).
 *
 * Processes: the dispatcher and the workers beside it, in a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TABLE_LOCK_H
#define OUTBOX_TABLE_LOCK_H

#include "postgres.h"

#include "storage/lockdefs.h"

/*
 * Lock a table of the extension and its indexes.  False if somebody is in the
 * way; what was locked until then stays so until the transaction ends.
 * Raises if there is no such table.
 */
extern bool outbox_lock_if_free(const char *table, LOCKMODE mode);

#endif							/* OUTBOX_TABLE_LOCK_H */
