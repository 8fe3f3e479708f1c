/*-------------------------------------------------------------------------
 *
 * sql_version.c
 *		Which versions of the SQL objects this library works with.
 *
 * See sql_version.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "common/session.h"
#include "common/sql_version.h"
#include "common/text_array.h"
#include "compat.h"
#include "outbox.h"

/*
 * The versions that this library was written for: its own first, then those
 * that a server may still have that is being updated.  The one place that says
 * so.  Code that has to tell them apart does it by what it finds in the
 * catalog (a column, a number of arguments) and not by version.
 */
static const char *const served_versions[] = {
	OUTBOX_SQL_VERSION,
};

static const struct
{
	OutboxDuty	duty;
	const char *name;			/* in outbox_internal.library_can() */
}			duties[] =
{
	{OUTBOX_MAY_STAGE, "stage"},
	{OUTBOX_MAY_CONSUME, "consume"},
	{OUTBOX_MAY_CONFIGURE, "configure"},
	{OUTBOX_MAY_DISPATCH, "dispatch"},
};

#define OUTBOX_MAY_ALL (OUTBOX_MAY_STAGE | OUTBOX_MAY_CONSUME | OUTBOX_MAY_CONFIGURE | OUTBOX_MAY_DISPATCH)

/* What has been found out, in this process. */
static bool known = false;
static int	allowed = 0;

static OutboxPlan library_can_plan = {
	.sql = "SELECT outbox_internal.library_can($1)",
	.nargs = 1,
	.argtypes = {TEXTOID},
};

/*
 * pg_extension has no syscache to hang a callback on.  An update of the
 * extension makes functions, which pg_proc's syscache does tell; DROP and
 * CREATE EXTENSION make schemas as well.
 */
static void
catalog_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	known = false;
}

static void
register_callbacks(void)
{
	static bool registered = false;

	if (registered)
		return;
	CacheRegisterSyscacheCallback(NAMESPACEOID, catalog_changed, (Datum) 0);
	CacheRegisterSyscacheCallback(PROCOID, catalog_changed, (Datum) 0);
	registered = true;
}

/* The installed version of the extension, palloc'd; NULL if it is not installed. */
static char *
installed_version(void)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	char	   *version = NULL;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("outbox"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		bool		isnull;
		Datum		datum = heap_getattr(tuple, Anum_pg_extension_extversion,
										 RelationGetDescr(rel), &isnull);

		if (!isnull)
			version = TextDatumGetCString(datum);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return version;
}

static bool
is_served(const char *version)
{
	for (int i = 0; i < lengthof(served_versions); i++)
	{
		if (strcmp(version, served_versions[i]) == 0)
			return true;
	}
	return false;
}

/* Versions are numbers with dots between them: is the first one the younger? */
static bool
is_younger(const char *version, const char *other)
{
	long		left;
	long		right;
	char	   *version_end;
	char	   *other_end;

	do
	{
		left = strtol(version, &version_end, 10);
		right = strtol(other, &other_end, 10);
		version = version_end + (*version_end == '.');
		other = other_end + (*other_end == '.');
	} while (left == right && (*version_end == '.' || *other_end == '.'));
	return left > right;
}

static int
duties_in(Datum names)
{
	text	  **elements;
	int			n = outbox_text_array(names, &elements);
	int			result = 0;

	for (int i = 0; i < n; i++)
	{
		for (int j = 0; elements[i] != NULL && j < lengthof(duties); j++)
		{
			if (strcmp(text_to_cstring(elements[i]), duties[j].name) == 0)
				result |= duties[j].duty;
		}
	}
	return result;
}

/* What objects that this library does not know let it do. */
static int
ask_objects(void)
{
	Oid			argtypes[1] = {TEXTOID};
	Datum		values[1] = {CStringGetTextDatum(served_versions[0])};
	List	   *function = list_make2(makeString("outbox_internal"), makeString("library_can"));
	OutboxSecurity caller;
	bool		isnull;
	Datum		names;
	int			result = 0;

	/* Whoever asks may not even use the schema. */
	outbox_become_owner(&caller);
	if (OidIsValid(LookupFuncName(function, 1, argtypes, true)))
	{
		SPI_connect();
		outbox_execute(&library_can_plan, values, NULL, true, 1, SPI_OK_SELECT);
		names = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
		result = isnull ? 0 : duties_in(names);
		SPI_finish();
	}
	outbox_become_caller(&caller);
	return result;
}

/* "stage and consume": what is allowed, or what is not. */
static char *
list_duties(bool which)
{
	StringInfoData list;
	int			n = 0;
	int			left = 0;

	for (int i = 0; i < lengthof(duties); i++)
		left += ((allowed & duties[i].duty) != 0) == which;
	initStringInfo(&list);
	for (int i = 0; i < lengthof(duties); i++)
	{
		if (((allowed & duties[i].duty) != 0) != which)
			continue;
		if (n > 0)
			appendStringInfoString(&list, n == left - 1 ? " and " : ", ");
		appendStringInfoString(&list, duties[i].name);
		n++;
	}
	return list.data;
}

/* Find out what is allowed; the installed version, NULL if there is none. */
static char *
look_up(void)
{
	char	   *version;

	register_callbacks();
	version = installed_version();
	if (version == NULL)
		return NULL;
	/* What is told meanwhile makes it unknown again. */
	known = true;
	allowed = 0;
	allowed = is_served(version) ? OUTBOX_MAY_ALL : ask_objects();
	return version;
}

static const char *
what_helps(const char *version)
{
	return is_younger(version, served_versions[0]) ?
		"Restart the server if the library was replaced while it ran; otherwise install the library of that version first." :
		"Run ALTER EXTENSION outbox UPDATE.";
}

void
outbox_require_sql(OutboxDuty duty)
{
	char	   *version;

	if (known && (allowed & duty) != 0)
		return;

	version = look_up();
	if (version == NULL)
		outbox_raise_not_installed();
	if ((allowed & duty) == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"outbox\" has SQL objects of version %s but its library is version %s",
						version, served_versions[0]),
				 allowed == 0 ? errdetail("This library knows nothing of these objects.") :
				 errdetail("With these objects this library can %s, but not %s.", list_duties(true), list_duties(false)),
				 errhint("%s", what_helps(version))));
	pfree(version);
}

bool
outbox_sql_allows(OutboxDuty duty, char *problem, Size size)
{
	char	   *version = look_up();

	if (version == NULL)
		return false;
	if ((allowed & duty) == 0)
		snprintf(problem, size, "SQL objects are of version %s but the library is version %s: %s",
				 version, served_versions[0], what_helps(version));
	return (allowed & duty) != 0;
}

PG_FUNCTION_INFO_V1(outbox_sql_library);

/* outbox_internal.library(): the version of the SQL objects that the loaded library was written for */
Datum
outbox_sql_library(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(served_versions[0]));
}

PG_FUNCTION_INFO_V1(outbox_sql_require_library);

/* outbox_internal.require_library(version) */
Datum
outbox_sql_require_library(PG_FUNCTION_ARGS)
{
	char	   *version = text_to_cstring(PG_GETARG_TEXT_PP(0));

	/* An older one that is not served any more is on the way to one that is. */
	if (!is_served(version) && is_younger(version, served_versions[0]))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("SQL objects of version %s need a younger library than the one that is loaded, %s",
						version, served_versions[0]),
				 errdetail("Nothing has been changed, and everything goes on as before."),
				 errhint("Restart the server, which takes up the library that is installed, and then run ALTER EXTENSION outbox UPDATE.")));
	PG_RETURN_VOID();
}
