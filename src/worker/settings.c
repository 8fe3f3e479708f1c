/*-------------------------------------------------------------------------
 *
 * settings.c
 *		What workers do not leave to the server's configuration.
 *
 * See settings.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_db_role_setting.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "common/session.h"
#include "guc.h"
#include "worker/settings.h"

static const struct
{
	const char *name;
	const char *value;
}			pinned[] =
{
	/* A role set for the database would take the worker's rights. */
	{"role", "none"},
	{"search_path", "pg_catalog, pg_temp"},
	{"default_transaction_isolation", "read committed"},
	{"default_transaction_read_only", "off"},
	{"default_transaction_deferrable", "off"},
	{"statement_timeout", "0"},
	{"lock_timeout", "0"},
	{"idle_in_transaction_session_timeout", "0"},
	{"idle_session_timeout", "0"},
	{"transaction_timeout", "0"},
	/*
	 * Of two that wait for each other the one that looks first gives way.
	 * That is to be the worker, which tries again, and not whoever drops or
	 * alters what it works with.
	 */
	{"deadlock_timeout", "100ms"},
	/* Errors are dealt with; they must not end the process. */
	{"exit_on_error", "off"},
	{"session_replication_role", "origin"},
	{"row_security", "off"},
	{"default_tablespace", ""},
	{"default_table_access_method", "heap"},
	{"max_parallel_workers_per_gather", "0"},
	{"jit", "off"},
	/* What is sent and what is settled must not be read in the server's log. */
	{"debug_print_parse", "off"},
	{"debug_print_rewritten", "off"},
	{"debug_print_plan", "off"},
	{"auto_explain.log_verbose", "off"},
	{"auto_explain.log_parameter_max_length", "0"},
};

void
outbox_pin(const char *name, const char *value)
{
	if (GetConfigOption(name, true, false) != NULL)
		SetConfigOption(name, value, PGC_SUSET, PGC_S_OVERRIDE);
}

void
outbox_pin_settings(void)
{
	for (int i = 0; i < lengthof(pinned); i++)
		outbox_pin(pinned[i].name, pinned[i].value);
}

void
outbox_pin_settling(const char *lock_timeout)
{
	outbox_pin_settings();
	outbox_pin("lock_timeout", lock_timeout);
	outbox_pin("client_encoding", "UTF8");
}

static const char *
synchronous_commit_of_receipts(void)
{
	return outbox_settle_synchronous_commit == SYNCHRONOUS_COMMIT_OFF ? "off" : "local";
}

void
outbox_pin_settling_alone(const char *lock_timeout)
{
	outbox_pin_settling(lock_timeout);
	outbox_pin("synchronous_commit", synchronous_commit_of_receipts());
	outbox_pin("session_replication_role", "replica");
}

void
outbox_commit_receipts(void)
{
	(void) set_config_option("synchronous_commit", synchronous_commit_of_receipts(),
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

/* Names of our settings that were set for the database or the role at some time. */
static List *ever_set = NIL;

static OutboxPlan names_plan = {
	.sql = "SELECT DISTINCT pg_catalog.lower(pg_catalog.split_part(c, '=', 1)) "
	"FROM pg_catalog.pg_db_role_setting s, pg_catalog.unnest(s.setconfig) c "
	"WHERE s.setdatabase OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, $1]) "
	"AND s.setrole OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, $2]) "
	"AND pg_catalog.starts_with(pg_catalog.lower(c), 'outbox.')",
	.nargs = 2,
	.argtypes = {OIDOID, OIDOID},
};

/*
 * What one of our settings is to be: as the database or the role says, the
 * more particular one first, else the configuration files, else its built-in
 * value.
 */
static OutboxPlan value_plan = {
	.sql = "SELECT COALESCE((SELECT pg_catalog.substr(c, pg_catalog.strpos(c, '=') OPERATOR(pg_catalog.+) 1) "
	" FROM pg_catalog.pg_db_role_setting s, pg_catalog.unnest(s.setconfig) c "
	" WHERE s.setdatabase OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, $2]) "
	" AND s.setrole OPERATOR(pg_catalog.=) ANY (ARRAY[0::pg_catalog.oid, $3]) "
	" AND pg_catalog.lower(pg_catalog.split_part(c, '=', 1)) OPERATOR(pg_catalog.=) $1 "
	" ORDER BY s.setrole OPERATOR(pg_catalog.<>) 0::pg_catalog.oid DESC, s.setdatabase OPERATOR(pg_catalog.<>) 0::pg_catalog.oid DESC LIMIT 1), "
	"(SELECT f.setting FROM pg_catalog.pg_file_settings f "
	" WHERE pg_catalog.lower(f.name) OPERATOR(pg_catalog.=) $1 AND f.error IS NULL "
	" ORDER BY f.seqno DESC LIMIT 1), g.boot_val, '') "
	"FROM pg_catalog.pg_settings g WHERE g.name OPERATOR(pg_catalog.=) $1",
	.nargs = 3,
	.argtypes = {TEXTOID, OIDOID, OIDOID},
};

static bool
contains(List *names, const char *name)
{
	ListCell   *lc;

	foreach(lc, names)
	{
		if (strcmp(lfirst(lc), name) == 0)
			return true;
	}
	return false;
}

/* Names of our settings that are set for the database or the role now. */
static List *
names_set(void)
{
	Datum		values[2] = {ObjectIdGetDatum(MyDatabaseId), ObjectIdGetDatum(GetSessionUserId())};
	uint64		n = outbox_execute(&names_plan, values, NULL, true, 0, SPI_OK_SELECT);
	List	   *names = NIL;

	for (uint64 i = 0; i < n; i++)
		names = lappend(names, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1));
	return names;
}

/*
 * A setting that is or was set for the database or the role.  When it was
 * taken back, neither a reload nor what is left of the others touches it,
 * because what was particular outranks what is not; so its value is looked
 * up, and given the rank that everything else gives way to.
 */
static void
set_again(const char *name)
{
	Datum		values[3] = {
		CStringGetTextDatum(name), ObjectIdGetDatum(MyDatabaseId), ObjectIdGetDatum(GetSessionUserId())
	};

	if (outbox_execute(&value_plan, values, NULL, true, 1, SPI_OK_SELECT) == 1)
		(void) set_config_option(name, SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1),
								 PGC_SUSET, PGC_S_DATABASE_USER, GUC_ACTION_SET, true, WARNING, false);
}

/* The same rows in the same order as at the start of a session.  The relation is locked. */
static void
apply_settings(void)
{
	Oid			role = GetSessionUserId();
	Relation	rel = table_open(DbRoleSettingRelationId, NoLock);
	Snapshot	snapshot = RegisterSnapshot(GetCatalogSnapshot(DbRoleSettingRelationId));

	ApplySetting(snapshot, MyDatabaseId, role, rel, PGC_S_DATABASE_USER);
	ApplySetting(snapshot, InvalidOid, role, rel, PGC_S_USER);
	ApplySetting(snapshot, MyDatabaseId, InvalidOid, rel, PGC_S_DATABASE);
	ApplySetting(snapshot, InvalidOid, InvalidOid, rel, PGC_S_GLOBAL);
	UnregisterSnapshot(snapshot);
	table_close(rel, NoLock);
}

/* Add names to those that were ever set. */
static void
remember(List *names)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(TopMemoryContext);
	ListCell   *lc;

	foreach(lc, names)
	{
		if (!contains(ever_set, lfirst(lc)))
			ever_set = lappend(ever_set, pstrdup(lfirst(lc)));
	}
	MemoryContextSwitchTo(oldcontext);
}

bool
outbox_apply_database_settings(void)
{
	ListCell   *lc;

	if (!ConditionalLockRelationOid(DbRoleSettingRelationId, AccessShareLock))
		return false;
	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	apply_settings();
	remember(names_set());
	foreach(lc, ever_set)
		set_again(lfirst(lc));
	SPI_finish();
	PopActiveSnapshot();
	return true;
}
