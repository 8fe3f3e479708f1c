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

#include "utils/guc.h"

#include "dispatch/settings.h"

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
