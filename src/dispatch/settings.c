/*-------------------------------------------------------------------------
 *
 * settings.c
 *		What the launcher and the dispatchers do not leave to the server's
 *		configuration.
 *
 * See settings.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_db_role_setting.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "dispatch/settings.h"
#include "guc.h"

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
	/* Errors are dealt with; they must not end the process. */
	{"exit_on_error", "off"},
	{"session_replication_role", "origin"},
	{"row_security", "off"},
	{"default_tablespace", ""},
	{"default_table_access_method", "heap"},
	{"max_parallel_workers_per_gather", "0"},
	{"jit", "off"},
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

static const char *
settle_synchronous_commit_name(void)
{
	switch (outbox_settle_synchronous_commit)
	{
		case SYNCHRONOUS_COMMIT_OFF:
			return "off";
		case SYNCHRONOUS_COMMIT_LOCAL_FLUSH:
			return "local";
		case SYNCHRONOUS_COMMIT_REMOTE_WRITE:
			return "remote_write";
		case SYNCHRONOUS_COMMIT_REMOTE_APPLY:
			return "remote_apply";
		default:
			return "on";
	}
}

void
outbox_pin_settling(const char *lock_timeout)
{
	outbox_pin_settings();
	outbox_pin("lock_timeout", lock_timeout);
	outbox_pin("client_encoding", "UTF8");
	outbox_pin("synchronous_commit", settle_synchronous_commit_name());
}

void
outbox_apply_database_settings(void)
{
	Relation	rel = table_open(DbRoleSettingRelationId, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetCatalogSnapshot(DbRoleSettingRelationId));

	ApplySetting(snapshot, MyDatabaseId, InvalidOid, rel, PGC_S_DATABASE);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}
