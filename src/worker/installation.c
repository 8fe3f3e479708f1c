/*-------------------------------------------------------------------------
 *
 * installation.c
 *		Whether this database may send.
 *
 * See installation.h.  The identity is the cluster's system identifier and
 * the database's OID, with an id that CREATE EXTENSION makes: renaming,
 * moving to another tablespace, crash restart and physical failover keep
 * them; every logical copy changes one of them.  Handlers carry the id as
 * well, because the rows of a copy arrive in any order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/extension.h"

#include "common/session.h"
#include "compat.h"
#include "worker/installation.h"

/* One definition of what a copy is, for the dispatcher and for operators. */
static OutboxPlan is_copy_plan = {
	.sql = "SELECT outbox._is_copy()",
};

static bool
read_is_copy(void)
{
	bool		isnull;
	bool		is_copy;

	SPI_connect();
	outbox_execute(&is_copy_plan, NULL, NULL, true, 1, SPI_OK_SELECT);
	is_copy = DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
	return is_copy;
}

void
outbox_installation_read(OutboxInstallation *installation)
{
	char	   *version = outbox_installed_version();

	memset(installation, 0, sizeof(*installation));
	installation->installed = (version != NULL);
	if (version == NULL)
		return;

	installation->extension = get_extension_oid("outbox", false);
	installation->version_matches = strcmp(version, OUTBOX_SQL_VERSION) == 0;
	if (!installation->version_matches)
	{
		snprintf(installation->problem, sizeof(installation->problem),
				 "SQL objects are of version %s but the library is version %s; run ALTER EXTENSION outbox UPDATE, "
				 "or restart the server if the library was replaced while it ran", version, OUTBOX_SQL_VERSION);
		return;
	}
	installation->is_copy = read_is_copy();
}
