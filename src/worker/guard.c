/*-------------------------------------------------------------------------
 *
 * guard.c
 *		Gets the dispatcher out of the way of commands on its database.
 *
 * See guard.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "tcop/utility.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "compat.h"
#include "shared/doorbell.h"
#include "shared/lockout.h"
#include "shared/prepared.h"
#include "shared/shmem.h"
#include "worker/guard.h"

/* A dispatcher that has not left by then is left to PostgreSQL's own check. */
#define LEAVE_TIMEOUT_US (10 * USECS_PER_SEC)

/* One that does not listen for so long is waiting for something in the database. */
#define SIGNAL_AFTER_US (2500 * 1000)

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

/* The running transaction changes which databases can be connected to. */
static bool look_at_end = false;

/* What the command asks of the database it is about. */
typedef struct GuardedCommand
{
	const char *database;		/* must be empty of dispatchers; NULL: no such command */
	bool		creates;		/* takes it as a template */
	bool		changes_list;	/* of databases that can be connected to */
	const char *commits_prepared;	/* the transaction's name; NULL: none */
	bool		drops_extension;
} GuardedCommand;

/* More outstanding deliveries than this are many. */
#define MANY 1000

static const char *
string_option(List *options, const char *name, const char *otherwise)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst(lc);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return otherwise;
}

static bool
names_outbox(List *objects)
{
	ListCell   *lc;

	foreach(lc, objects)
	{
		if (strcmp(strVal(lfirst(lc)), "outbox") == 0)
			return true;
	}
	return false;
}

static void
classify(Node *parsetree, GuardedCommand *command)
{
	memset(command, 0, sizeof(*command));
	switch (nodeTag(parsetree))
	{
		case T_DropdbStmt:
			command->database = ((DropdbStmt *) parsetree)->dbname;
			command->changes_list = true;
			break;
		case T_CreatedbStmt:
			command->database = string_option(((CreatedbStmt *) parsetree)->options, "template", "template1");
			command->creates = true;
			command->changes_list = true;
			break;
		case T_AlterDatabaseStmt:
			if (string_option(((AlterDatabaseStmt *) parsetree)->options, "tablespace", NULL) != NULL)
				command->database = ((AlterDatabaseStmt *) parsetree)->dbname;
			command->changes_list = true;
			break;
		case T_RenameStmt:
			if (((RenameStmt *) parsetree)->renameType == OBJECT_DATABASE)
				command->database = ((RenameStmt *) parsetree)->subname;
			break;
		case T_TransactionStmt:
			if (((TransactionStmt *) parsetree)->kind == TRANS_STMT_COMMIT_PREPARED)
				command->commits_prepared = ((TransactionStmt *) parsetree)->gid;
			break;
		case T_DropStmt:
			if (((DropStmt *) parsetree)->removeType == OBJECT_EXTENSION)
				command->drops_extension = names_outbox(((DropStmt *) parsetree)->objects);
			break;
		default:
			break;
	}
}

/* How many deliveries are outstanding here; no more than MANY are counted. */
static int
count_outstanding(void)
{
	Oid			relid = OidIsValid(get_extension_oid("outbox", true)) ? outbox_relation_oid("delivery", true) : InvalidOid;
	Relation	rel;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;
	int			n = 0;

	if (!OidIsValid(relid))
		return 0;
	rel = table_open(relid, AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	scan = table_beginscan(rel, snapshot, 0, NULL);
	while (n < MANY && table_scan_getnextslot(scan, ForwardScanDirection, slot))
		n++;
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return n;
}

static void
warn_of_outstanding(int n)
{
	if (n == 0)
		return;
	ereport(WARNING,
			(n < MANY ? errmsg("outstanding deliveries that were dropped with extension \"outbox\": %d", n)
			 : errmsg("outstanding deliveries that were dropped with extension \"outbox\": %d or more", n),
			 errhint("If they are still to be sent, ROLLBACK. outbox.backlog shows whose they are; CALL outbox.drain() waits for them.")));
}

/* Would PostgreSQL let this user run the command?  Others must not be able to disturb a dispatcher. */
static bool
may_run(const GuardedCommand *command, Oid dboid)
{
	HeapTuple	tuple;
	bool		template;

	if (outbox_owns_database(dboid, GetUserId()))
		return !command->creates || outbox_may_create_databases();
	if (!command->creates || !outbox_may_create_databases())
		return false;

	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(dboid));
	if (!HeapTupleIsValid(tuple))
		return false;
	template = ((Form_pg_database) GETSTRUCT(tuple))->datistemplate;
	ReleaseSysCache(tuple);
	return template;
}

/* Should the dispatcher be waiting itself, for a lock or a standby, the signal ends that. */
bool
outbox_guard_clear(OutboxDatabase *slot)
{
	TimestampTz begin = GetCurrentTimestamp();
	bool		signalled = false;
	pid_t		pid;
	int			procno;

	for (;;)
	{
		bool		locked_out = outbox_lockout_raise(slot, &pid, &procno);
		TimestampTz waited = GetCurrentTimestamp() - begin;

		if ((locked_out && pid == 0) || waited >= LEAVE_TIMEOUT_US)
			return locked_out && pid == 0;
		outbox_set_latch(procno);
		if (pid != 0 && !signalled && waited >= SIGNAL_AFTER_US)
		{
			kill(pid, SIGTERM);
			signalled = true;
		}
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* Clear the way for a command that needs a database for itself. */
static void
clear_database(const GuardedCommand *command)
{
	Oid			dboid = get_database_oid(command->database, true);
	OutboxDatabase *slot = OidIsValid(dboid) ? outbox_find_database(dboid) : NULL;

	if (slot != NULL && may_run(command, dboid))
		(void) outbox_guard_clear(slot);
}

static void
run_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree, ProcessUtilityContext context,
			ParamListInfo params, QueryEnvironment *env, DestReceiver *dest, QueryCompletion *qc)
{
	if (prev_process_utility)
		prev_process_utility(pstmt, query, read_only_tree, context, params, env, dest, qc);
	else
		standard_ProcessUtility(pstmt, query, read_only_tree, context, params, env, dest, qc);
}

static void
guard_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree, ProcessUtilityContext context,
			  ParamListInfo params, QueryEnvironment *env, DestReceiver *dest, QueryCompletion *qc)
{
	GuardedCommand command;
	int			marks = 0;
	int			outstanding = 0;

	classify(pstmt->utilityStmt, &command);
	if (command.database != NULL)
		clear_database(&command);

	/* What its notes would have rung for is looked up while it can be. */
	if (command.commits_prepared != NULL)
		marks = outbox_prepared_marks(command.commits_prepared);

	if (command.drops_extension)
		outstanding = count_outstanding();
	run_utility(pstmt, query, read_only_tree, context, params, env, dest, qc);
	warn_of_outstanding(outstanding);

	/* The tree may be gone by now: COMMIT frees what holds it. */
	if (command.changes_list)
		look_at_end = true;
	if (marks != 0)
		outbox_doorbell_note_prepared(marks);
}

void
outbox_guard_at_end(void)
{
	outbox_lockouts_lower();
	if (look_at_end)
		outbox_wake_launcher(true);
	look_at_end = false;
}

/*
 * However the extension is dropped (CASCADE included) or updated, its
 * dispatcher is to notice at commit; one that had left because its version
 * did not match is to be started.
 */
static void
guard_object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);

	if (classId == ExtensionRelationId && (access == OAT_DROP || access == OAT_POST_ALTER))
	{
		char	   *name = get_extension_name(objectId);

		if (name != NULL && strcmp(name, "outbox") == 0)
		{
			outbox_doorbell_note_handlers();
			if (access == OAT_POST_ALTER)
				outbox_doorbell_note_launcher();
		}
	}
}

void
outbox_guard_init(void)
{
	prev_process_utility = ProcessUtility_hook;
	ProcessUtility_hook = guard_utility;
	prev_object_access = object_access_hook;
	object_access_hook = guard_object_access;
}
