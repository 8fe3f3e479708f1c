/*-------------------------------------------------------------------------
 *
 * session.c
 *		Acting as the extension's owner, and statements that are planned once.
 *
 * What is remembered here is per process and is looked up again whenever
 * pg_namespace changes, so DROP EXTENSION and CREATE EXTENSION in one session
 * leave nothing stale behind.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "common/session.h"

static bool callback_registered = false;
static Oid	cached_namespace = InvalidOid;
static Oid	cached_owner = InvalidOid;

/* Schemas changed: whatever we knew of ours may be gone. */
static void
namespace_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	cached_namespace = InvalidOid;
	cached_owner = InvalidOid;
}

static void
register_callbacks(void)
{
	if (callback_registered)
		return;
	CacheRegisterSyscacheCallback(NAMESPACEOID, namespace_changed, (Datum) 0);
	callback_registered = true;
}

void
outbox_raise_not_installed(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("extension \"outbox\" is not installed in this database"),
			 errhint("Run CREATE EXTENSION outbox.")));
}

/* False if there is no schema outbox. */
static bool
find_namespace(void)
{
	HeapTuple	tuple;

	register_callbacks();
	if (OidIsValid(cached_namespace))
		return true;

	tuple = SearchSysCache1(NAMESPACENAME, CStringGetDatum(OUTBOX_SCHEMA));
	if (!HeapTupleIsValid(tuple))
		return false;
	cached_owner = ((Form_pg_namespace) GETSTRUCT(tuple))->nspowner;
	cached_namespace = ((Form_pg_namespace) GETSTRUCT(tuple))->oid;
	ReleaseSysCache(tuple);
	return true;
}

static void
load_namespace(void)
{
	if (!find_namespace())
		outbox_raise_not_installed();
}

void
outbox_become_owner(OutboxSecurity *saved)
{
	load_namespace();
	GetUserIdAndSecContext(&saved->user, &saved->context);
	SetUserIdAndSecContext(cached_owner, saved->context | SECURITY_LOCAL_USERID_CHANGE);
	saved->nestlevel = 0;
}

/* Lock a table for writing: then nobody can add a trigger to those that it has. */
static bool
has_ordinary_triggers(const char *table)
{
	Relation	rel = table_open(outbox_relation_oid(table, false), RowExclusiveLock);
	TriggerDesc *triggers = rel->trigdesc;
	bool		found = false;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		found = found || triggers->triggers[i].tgenabled != TRIGGER_FIRES_ALWAYS;
	table_close(rel, NoLock);
	return found;
}

void
outbox_become_owner_to_write(OutboxSecurity *saved, const char *table)
{
	outbox_become_owner(saved);
	/* The setting is left alone where it does nothing: each change of it discards all plans of the session. */
	if (!has_ordinary_triggers(table))
		return;
	saved->nestlevel = NewGUCNestLevel();
	(void) set_config_option("session_replication_role", "replica", PGC_SUSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

void
outbox_become_caller(const OutboxSecurity *saved)
{
	if (saved->nestlevel != 0)
		AtEOXact_GUC(true, saved->nestlevel);
	SetUserIdAndSecContext(saved->user, saved->context);
}

void
outbox_act_as_owner(void)
{
	if (find_namespace())
		SetUserIdAndSecContext(cached_owner, SECURITY_LOCAL_USERID_CHANGE);
}

void
outbox_act_as_worker(void)
{
	SetUserIdAndSecContext(GetSessionUserId(), 0);
}

static SPIPlanPtr
kept_plan(OutboxPlan *plan)
{
	if (plan->plan == NULL)
	{
		SPIPlanPtr	prepared = SPI_prepare(plan->sql, plan->nargs, plan->argtypes);

		if (prepared == NULL)
			elog(ERROR, "SPI_prepare failed: %s", SPI_result_code_string(SPI_result));
		if (SPI_keepplan(prepared) != 0)
			elog(ERROR, "SPI_keepplan failed");
		plan->plan = prepared;
	}
	return plan->plan;
}

void
outbox_bind_text(Datum *values, char *nulls, int i, const char *value)
{
	if (value == NULL || value[0] == '\0')
		nulls[i] = 'n';
	else
		values[i] = CStringGetTextDatum(value);
}

uint64
outbox_execute(OutboxPlan *plan, Datum *values, const char *nulls,
			   bool read_only, long count, int expected)
{
	int			rc = SPI_execute_plan(kept_plan(plan), values, nulls, read_only, count);

	if (rc != expected)
		elog(ERROR, "unexpected result of a statement: %s", SPI_result_code_string(rc));
	return SPI_processed;
}

/* What has the plans of nested statements in the server's log. */
static const char *const plans_in_log = "auto_explain.log_min_duration";

/* What leaves a plan in there without the values that it was made for. */
static const struct
{
	const char *name;
	const char *value;
}			hiding[] =
{
	{"debug_print_parse", "off"},
	{"debug_print_rewritten", "off"},
	{"debug_print_plan", "off"},
	/* A plan that was made for one call has constants where others have parameters. */
	{"auto_explain.log_verbose", "off"},
	{"auto_explain.log_parameter_max_length", "0"},
};

/* Leaves alone what is so already, and what belongs to a library that is not loaded. */
static void
set_for_now(const char *name, const char *value)
{
	const char *old = GetConfigOption(name, true, false);

	if (old != NULL && strcmp(old, value) != 0)
		(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

static bool
plans_are_logged(void)
{
	const char *duration;

	if (Debug_print_parse || Debug_print_rewritten || Debug_print_plan)
		return true;
	duration = GetConfigOption(plans_in_log, true, false);
	return duration != NULL && strcmp(duration, "-1") != 0;
}

void
outbox_hide_values(void)
{
	if (!plans_are_logged())
		return;
	for (int i = 0; i < lengthof(hiding); i++)
		set_for_now(hiding[i].name, hiding[i].value);
}

void
outbox_stay_unseen(void)
{
	outbox_hide_values();
	set_for_now(plans_in_log, "-1");
}

uint64
outbox_execute_unseen(OutboxPlan *plan, Datum *values, const char *nulls,
					  bool read_only, long count, int expected)
{
	int			nestlevel;
	uint64		n;

	if (!plans_are_logged())
		return outbox_execute(plan, values, nulls, read_only, count, expected);
	nestlevel = NewGUCNestLevel();
	outbox_stay_unseen();
	n = outbox_execute(plan, values, nulls, read_only, count, expected);
	AtEOXact_GUC(false, nestlevel);
	return n;
}

/* The plan may be made at any call: the one before may have been taken back meanwhile. */
uint64
outbox_execute_by_index(OutboxPlan *plan, Datum *values, const char *nulls, long count)
{
	static const char *const settings[] = {"enable_seqscan", "enable_bitmapscan"};
	int			nestlevel = NewGUCNestLevel();
	uint64		n;

	for (int i = 0; i < lengthof(settings); i++)
		(void) set_config_option(settings[i], "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	n = outbox_execute(plan, values, nulls, false, count, SPI_OK_SELECT);
	AtEOXact_GUC(false, nestlevel);
	return n;
}

bool
outbox_called_in_transaction_block(FunctionCallInfo fcinfo)
{
	return fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic;
}

void
outbox_require_writable(const char *function)
{
	if (!XactReadOnly)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
			 errmsg("cannot execute %s in a read-only transaction", function),
			 RecoveryInProgress() ? errhint("This server is a standby. Call it on the primary.")
			 : errhint("Begin the transaction READ WRITE; default_transaction_read_only says what it is otherwise.")));
}

void
outbox_hint_at_snapshot(void *arg)
{
	if (geterrcode() == ERRCODE_T_R_SERIALIZATION_FAILURE)
		errhint("Another transaction has committed the same since this one took its snapshot. Run the transaction again.");
}

Oid
outbox_relation_oid(const char *name, bool missing_ok)
{
	Oid			relid;

	register_callbacks();
	if (!OidIsValid(cached_namespace))
	{
		if (missing_ok && !OidIsValid(get_namespace_oid(OUTBOX_SCHEMA, true)))
			return InvalidOid;
		load_namespace();
	}
	relid = get_relname_relid(name, cached_namespace);
	if (!OidIsValid(relid) && !missing_ok)
		outbox_raise_not_installed();
	return relid;
}
