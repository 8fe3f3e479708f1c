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

#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "tcop/utility.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "consume/transaction.h"
#include "dispatch/doorbell.h"
#include "dispatch/guard.h"
#include "dispatch/shmem.h"

/* A dispatcher that has not left by then is left to PostgreSQL's own check. */
#define LEAVE_TIMEOUT_US (10 * USECS_PER_SEC)

static ProcessUtility_hook_type prev_process_utility = NULL;
static object_access_hook_type prev_object_access = NULL;

/* What the command asks of the database it is about. */
typedef struct GuardedCommand
{
	const char *database;		/* must be empty of dispatchers; NULL: no such command */
	bool		creates;		/* a new database may carry the extension */
	bool		drops;
	bool		commits_prepared;
	bool		alters;			/* a database may have become connectable */
} GuardedCommand;

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

static void
classify(Node *parsetree, GuardedCommand *command)
{
	memset(command, 0, sizeof(*command));
	switch (nodeTag(parsetree))
	{
		case T_DropdbStmt:
			command->database = ((DropdbStmt *) parsetree)->dbname;
			command->drops = true;
			break;
		case T_CreatedbStmt:
			command->database = string_option(((CreatedbStmt *) parsetree)->options, "template", "template1");
			command->creates = true;
			break;
		case T_AlterDatabaseStmt:
			if (string_option(((AlterDatabaseStmt *) parsetree)->options, "tablespace", NULL) != NULL)
				command->database = ((AlterDatabaseStmt *) parsetree)->dbname;
			command->alters = true;
			break;
		case T_RenameStmt:
			if (((RenameStmt *) parsetree)->renameType == OBJECT_DATABASE)
				command->database = ((RenameStmt *) parsetree)->subname;
			break;
		case T_TransactionStmt:
			command->commits_prepared = ((TransactionStmt *) parsetree)->kind == TRANS_STMT_COMMIT_PREPARED;
			break;
		default:
			break;
	}
}

static void
wake_launcher(void)
{
	int			procno;

	SpinLockAcquire(&outbox_shared->mutex);
	outbox_shared->launcher_rescan = true;
	procno = outbox_shared->launcher_procno;
	SpinLockRelease(&outbox_shared->mutex);
	outbox_set_latch(procno);
}

/* Raise the bar, unless somebody else has; tells who dispatches at the moment. */
static void
raise_bar(OutboxDatabase *slot, pid_t *pid, int *procno)
{
	SpinLockAcquire(&slot->mutex);
	if (slot->barred_by == 0)
		slot->barred_by = MyProcPid;
	*pid = slot->pid;
	*procno = slot->procno;
	SpinLockRelease(&slot->mutex);
}

static void
lower_bar(OutboxDatabase *slot)
{
	SpinLockAcquire(&slot->mutex);
	if (slot->barred_by == MyProcPid)
		slot->barred_by = 0;
	SpinLockRelease(&slot->mutex);
	wake_launcher();
}

/* Ask the dispatcher to leave, and wait until it has. */
static void
wait_for_departure(OutboxDatabase *slot)
{
	TimestampTz give_up = GetCurrentTimestamp() + LEAVE_TIMEOUT_US;
	pid_t		pid;
	int			procno;

	for (;;)
	{
		raise_bar(slot, &pid, &procno);
		if (pid == 0 || GetCurrentTimestamp() >= give_up)
			return;
		outbox_set_latch(procno);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* The slot of a database that the command needs for itself, or NULL. */
static OutboxDatabase *
guarded_slot(const char *database, Oid *dboid)
{
	*dboid = get_database_oid(database, true);
	return OidIsValid(*dboid) ? outbox_find_database(*dboid) : NULL;
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

/* COMMIT PREPARED has made rows visible whose notes did not survive PREPARE. */
static void
ask_for_rescan(void)
{
	OutboxDatabase *slot = outbox_find_database(MyDatabaseId);
	int			procno;

	outbox_consume_rescan(MyDatabaseId);
	if (slot == NULL)
		return;
	SpinLockAcquire(&slot->mutex);
	slot->rescan = true;
	procno = slot->procno;
	SpinLockRelease(&slot->mutex);
	outbox_set_latch(procno);
}

static void
guard_utility(PlannedStmt *pstmt, const char *query, bool read_only_tree, ProcessUtilityContext context,
			  ParamListInfo params, QueryEnvironment *env, DestReceiver *dest, QueryCompletion *qc)
{
	GuardedCommand command;
	OutboxDatabase *slot = NULL;
	Oid			dboid = InvalidOid;

	classify(pstmt->utilityStmt, &command);
	if (command.database != NULL)
		slot = guarded_slot(command.database, &dboid);

	if (slot == NULL)
		run_utility(pstmt, query, read_only_tree, context, params, env, dest, qc);
	else
	{
		PG_TRY();
		{
			wait_for_departure(slot);
			run_utility(pstmt, query, read_only_tree, context, params, env, dest, qc);
			if (command.drops)
				outbox_release_database(dboid);
		}
		PG_FINALLY();
		{
			lower_bar(slot);
		}
		PG_END_TRY();
	}

	if (command.creates || command.alters)
		wake_launcher();
	if (command.commits_prepared)
		ask_for_rescan();
}

/* However the extension is dropped (CASCADE included), its dispatcher is to notice at commit. */
static void
guard_object_access(ObjectAccessType access, Oid classId, Oid objectId, int subId, void *arg)
{
	if (prev_object_access)
		prev_object_access(access, classId, objectId, subId, arg);

	if (access == OAT_DROP && classId == ExtensionRelationId)
	{
		char	   *name = get_extension_name(objectId);

		if (name != NULL && strcmp(name, "outbox") == 0)
			outbox_doorbell_note_handlers();
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
