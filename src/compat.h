/*-------------------------------------------------------------------------
 *
 * compat.h
 *		The only place that knows PostgreSQL versions apart.
 *
 * Promises: every other file compiles unchanged on PostgreSQL 14 to 18.
 * A difference between versions is hidden here behind one macro or inline
 * function, named after what it does, never after the version.
 *
 * Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_COMPAT_H
#define OUTBOX_COMPAT_H

#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_proc.h"
#include "commands/dbcommands.h"
#include "common/jsonapi.h"
#include "executor/executor.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shm_mq.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/tuplestore.h"

#if PG_VERSION_NUM >= 150000
#include "common/pg_prng.h"
#else
#include "postmaster/autovacuum.h"
#include "postmaster/bgworker_internals.h"
#include "replication/walsender.h"
#endif

#if PG_VERSION_NUM < 140000 || PG_VERSION_NUM >= 190000
#error "outbox needs PostgreSQL 14 to 18"
#endif

/* PostgreSQL 18 spells it this way; earlier ones want it behind the function. */
#ifndef pg_noreturn
#define pg_noreturn __attribute__((noreturn))
#endif

/* PostgreSQL 15 moved shared memory requests into a hook of their own. */
#if PG_VERSION_NUM >= 150000
#define OUTBOX_HAVE_SHMEM_REQUEST_HOOK 1
#endif

/* PostgreSQL 15 refuses unknown settings below a reserved prefix. */
#if PG_VERSION_NUM >= 150000
#define outbox_reserve_setting_prefix(prefix) MarkGUCPrefixReserved(prefix)
#else
#define outbox_reserve_setting_prefix(prefix) EmitWarningsOnPlaceholders(prefix)
#endif

/* PostgreSQL 17 names a backend by ProcNumber. */
#if PG_VERSION_NUM >= 170000
#include "storage/procnumber.h"
#define outbox_my_procno() ((int) MyProcNumber)
#else
#define outbox_my_procno() (MyProc->pgprocno)
#endif

/*
 * How many backends there can be at most, each with a number below that.
 * Before PostgreSQL 15 shared memory is asked for before the server has
 * worked it out, so it is done here in the same way.
 */
static inline int
outbox_max_backends(void)
{
#if PG_VERSION_NUM < 150000
	if (MaxBackends == 0)
		return MaxConnections + autovacuum_max_workers + 1 + max_worker_processes + max_wal_senders;
#endif
	return MaxBackends;
}

/*
 * The place up to which WAL can be flushed when the next record goes to
 * insert: that may lie behind the header of a page that holds nothing yet,
 * and the end of WAL is then the start of that page.  Only the first page of
 * a segment has the long header.
 */
static inline XLogRecPtr
outbox_wal_before(XLogRecPtr insert, int segment_size)
{
	uint64		header = insert % segment_size < XLOG_BLCKSZ ? SizeOfXLogLongPHD : SizeOfXLogShortPHD;

	return insert % XLOG_BLCKSZ == header ? insert - header : insert;
}

/* The end of the WAL written so far, as a place that can be flushed to. */
static inline XLogRecPtr
outbox_wal_end(void)
{
	return outbox_wal_before(GetXLogInsertRecPtr(), wal_segment_size);
}

/* The end of the WAL that is safe on this server. */
static inline XLogRecPtr
outbox_wal_flushed(void)
{
#if PG_VERSION_NUM >= 150000
	return GetFlushRecPtr(NULL);
#else
	return GetFlushRecPtr();
#endif
}

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

/* Send a message to another process without waiting; PostgreSQL 15 wants to be told that it is to be seen at once. */
static inline shm_mq_result
outbox_mq_send(shm_mq_handle *queue, Size size, const void *data)
{
#if PG_VERSION_NUM >= 150000
	return shm_mq_send(queue, size, data, true, true);
#else
	return shm_mq_send(queue, size, data, true);
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

/* PostgreSQL 16 wants to know which relations a re-check would be about: none. */
#if PG_VERSION_NUM >= 160000
#define outbox_eval_plan_qual_init(epq, estate) EvalPlanQualInit(epq, estate, NULL, NIL, -1, NIL)
#else
#define outbox_eval_plan_qual_init(epq, estate) EvalPlanQualInit(epq, estate, NULL, NIL, -1)
#endif

/* A copy of a row's description that ends behind so many columns; PostgreSQL 18 keeps them where the number alone would not do. */
static inline TupleDesc
outbox_first_columns(TupleDesc desc, int natts)
{
#if PG_VERSION_NUM >= 180000
	return CreateTupleDescTruncatedCopy(desc, natts);
#else
	TupleDesc	copy = CreateTupleDescCopy(desc);

	copy->natts = natts;
	return copy;
#endif
}

/* The entries of a row that was just inserted, in all indexes of its table; PostgreSQL 16 wants to know that none are left out. */
static inline void
outbox_insert_index_entries(ResultRelInfo *result, TupleTableSlot *slot, EState *estate)
{
	if (result->ri_NumIndices == 0)
		return;
#if PG_VERSION_NUM >= 160000
	list_free(ExecInsertIndexTuples(result, slot, estate, false, false, NULL, NIL, false));
#else
	list_free(ExecInsertIndexTuples(result, slot, estate, false, false, NULL, NIL));
#endif
}

/*
 * A database whose DROP was interrupted cannot be connected to.  PostgreSQL
 * 17, and minor releases before it, mark one.
 */
#ifdef DATCONNLIMIT_INVALID_DB
#define outbox_database_is_valid(form) ((form)->datconnlimit != DATCONNLIMIT_INVALID_DB)
#else
#define outbox_database_is_valid(form) ((form)->datconnlimit >= -1)
#endif

/* PostgreSQL 16 has one function for all kinds of owned objects. */
#if PG_VERSION_NUM >= 160000
#define outbox_owns_database(dboid, roleid) object_ownercheck(DatabaseRelationId, dboid, roleid)
#else
#define outbox_owns_database(dboid, roleid) pg_database_ownercheck(dboid, roleid)
#endif

#if PG_VERSION_NUM >= 160000
#define outbox_owns_table(relid, roleid) object_ownercheck(RelationRelationId, relid, roleid)
#define outbox_may_execute(function, roleid) (object_aclcheck(ProcedureRelationId, function, roleid, ACL_EXECUTE) == ACLCHECK_OK)
#else
#define outbox_owns_table(relid, roleid) pg_class_ownercheck(relid, roleid)
#define outbox_may_execute(function, roleid) (pg_proc_aclcheck(function, roleid, ACL_EXECUTE) == ACLCHECK_OK)
#endif

/* A generated column that is stored nowhere: PostgreSQL 18 has them, and earlier ones none of this kind. */
#define outbox_is_virtual_column(attribute) ((attribute)->attgenerated == 'v')

/*
 * May the current user create databases?  Not every minor release exports the
 * server's own function for it.
 */
static inline bool
outbox_may_create_databases(void)
{
	HeapTuple	tuple;
	bool		may;

	if (superuser())
		return true;
	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(GetUserId()));
	if (!HeapTupleIsValid(tuple))
		return false;
	may = ((Form_pg_authid) GETSTRUCT(tuple))->rolcreatedb;
	ReleaseSysCache(tuple);
	return may;
}

/* A random number from 0 to just below 1.  PostgreSQL 15 has a generator of its own. */
static inline double
outbox_random_fraction(void)
{
#if PG_VERSION_NUM >= 150000
	return pg_prng_double(&pg_global_prng_state);
#else
	return (double) random() / ((double) MAX_RANDOM_VALUE + 1);
#endif
}

/*
 * Is this JSON, to PostgreSQL's own parser?  It recurses as deeply as the text
 * nests, and raises where that is too deep for the stack.  PostgreSQL 17 can
 * have the parser's state on the stack.
 */
static inline bool
outbox_is_json(const char *text, size_t len, int encoding)
{
#if PG_VERSION_NUM >= 170000
	JsonLexContext lex;
	JsonParseErrorType result;

	makeJsonLexContextCstringLen(&lex, text, len, encoding, false);
	result = pg_parse_json(&lex, &nullSemAction);
	freeJsonLexContext(&lex);
	return result == JSON_SUCCESS;
#else
	JsonLexContext *lex = makeJsonLexContextCstringLen((char *) text, (int) len, encoding, false);
	bool		result = pg_parse_json(lex, &nullSemAction) == JSON_SUCCESS;

	pfree(lex);
	return result;
#endif
}

/* PostgreSQL 16 gave the GUC machinery a memory context of its own. */
#if PG_VERSION_NUM >= 160000
#include "utils/guc.h"
#define outbox_guc_malloc(size) guc_malloc(LOG, size)
#define outbox_guc_free(pointer) guc_free(pointer)
#else
#define outbox_guc_malloc(size) malloc(size)
#define outbox_guc_free(pointer) free(pointer)
#endif

#endif							/* OUTBOX_COMPAT_H */
