/*-------------------------------------------------------------------------
 *
 * installation.c
 *		Whether this database may send.
 *
 * See installation.h.  The identity is the cluster's system identifier and
 * the database's OID: renaming, moving to another tablespace, crash restart
 * and physical failover keep both; every logical copy changes one of them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "common/session.h"
#include "compat.h"
#include "dispatch/installation.h"

static OutboxPlan identity_plan = {
	.sql = "SELECT COALESCE(pg_catalog.bool_and(i.system_identifier OPERATOR(pg_catalog.=) $1 "
	"AND i.database_oid OPERATOR(pg_catalog.=) $2), false) FROM outbox.installation i",
	.nargs = 2,
	.argtypes = {INT8OID, OIDOID},
};

/* True if every row of outbox.installation names this database, and there is one. */
static bool
is_own(void)
{
	Datum		values[2] = {Int64GetDatum((int64) GetSystemIdentifier()), ObjectIdGetDatum(MyDatabaseId)};
	bool		isnull;
	bool		own;

	SPI_connect();
	outbox_execute(&identity_plan, values, NULL, true, 1, SPI_OK_SELECT);
	own = DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
	return own;
}

void
outbox_installation_read(OutboxInstallation *installation)
{
	char	   *version = outbox_installed_version();

	memset(installation, 0, sizeof(*installation));
	installation->installed = (version != NULL);
	if (version == NULL)
		return;

	installation->version_matches = strcmp(version, OUTBOX_SQL_VERSION) == 0;
	if (!installation->version_matches)
	{
		snprintf(installation->problem, sizeof(installation->problem),
				 "SQL objects are of version %s but the library is version %s; run ALTER EXTENSION outbox UPDATE, "
				 "or restart the server if the library was replaced while it ran", version, OUTBOX_SQL_VERSION);
		return;
	}
	installation->held = !is_own();
}
