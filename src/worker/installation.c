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
 * Of a restore the row has the id of the last one that it was told of, and
 * whether it is still to be adopted.  Any other id in the data directory is
 * one of which it knows nothing yet, and which holds all the same.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/extension.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "common/session.h"
#include "common/sql_version.h"
#include "compat.h"
#include "guc.h"
#include "worker/installation.h"
#include "worker/restored.h"

/* One definition of what a copy is, for the dispatcher, consumers and operators. */
static OutboxPlan read_plan = {
	.sql = "SELECT outbox_internal.why_copy(), outbox_internal.place_is_news()",
};

static OutboxPlan note_plan = {
	.sql = "SELECT outbox_internal.note_place()",
};

static void
read_place(OutboxInstallation *installation)
{
	bool		isnull;
	char	   *why;

	SPI_connect();
	outbox_execute(&read_plan, NULL, NULL, true, 1, SPI_OK_SELECT);
	why = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (why != NULL)
		strlcpy(installation->why_copy, why, sizeof(installation->why_copy));
	installation->is_news = DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 2, &isnull));
	SPI_finish();
}

void
outbox_installation_note(void)
{
	SPI_connect();
	outbox_execute(&note_plan, NULL, NULL, false, 1, SPI_OK_SELECT);
	SPI_finish();
}

void
outbox_installation_read(OutboxInstallation *installation)
{
	memset(installation, 0, sizeof(*installation));
	installation->extension = get_extension_oid("outbox", true);
	installation->installed = OidIsValid(installation->extension);
	if (!installation->installed)
		return;
	installation->served = outbox_sql_allows(OUTBOX_MAY_DISPATCH, installation->problem, sizeof(installation->problem));
	if (installation->served)
		read_place(installation);
}

PG_FUNCTION_INFO_V1(outbox_sql_place);

/* outbox_internal.place(OUT restored_as, OUT site): what this data directory and this server's settings say of where it is */
Datum
outbox_sql_place(PG_FUNCTION_ARGS)
{
	const char *restored_as = outbox_restored_as();
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {restored_as == NULL, false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = restored_as == NULL ? (Datum) 0 : CStringGetTextDatum(restored_as);
	values[1] = CStringGetTextDatum(outbox_site);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
