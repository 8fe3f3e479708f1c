/*-------------------------------------------------------------------------
 *
 * compat.h
 *		The only place that knows PostgreSQL versions apart.
 *
 * Promises: every other file compiles unchanged on PostgreSQL 14 to 18.
 * A difference between versions is hidden here behind one macro or inline
 * function, named after what it does, never after the version.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_COMPAT_H
#define OUTBOX_COMPAT_H

#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"

#if PG_VERSION_NUM < 140000 || PG_VERSION_NUM >= 190000
#error "outbox needs PostgreSQL 14 to 18"
#endif

/* PostgreSQL 15 moved shared memory requests into a hook of their own. */
#if PG_VERSION_NUM >= 150000
#define OUTBOX_HAVE_SHMEM_REQUEST_HOOK 1
#endif

/* PostgreSQL 17 names a backend by ProcNumber. */
#if PG_VERSION_NUM >= 170000
#include "storage/procnumber.h"
#define outbox_my_procno() ((int) MyProcNumber)
#else
#define outbox_my_procno() (MyProc->pgprocno)
#endif

/* PostgreSQL 18 lets an index scan report into instrumentation. */
static inline IndexScanDesc
outbox_index_beginscan(Relation heap, Relation index, Snapshot snapshot, int nkeys)
{
#if PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0);
#else
	return index_beginscan(heap, index, snapshot, nkeys, 0);
#endif
}

/* PostgreSQL 17 lets a wait set belong to a resource owner; ours outlives every transaction. */
static inline WaitEventSet *
outbox_create_wait_set(int nevents)
{
#if PG_VERSION_NUM >= 170000
	return CreateWaitEventSet(NULL, nevents);
#else
	return CreateWaitEventSet(TopMemoryContext, nevents);
#endif
}

#endif							/* OUTBOX_COMPAT_H */
