/*-------------------------------------------------------------------------
 *
 * as_owner.c
 *		Functions that act with the owner's rights and know who called them.
 *
 * A SECURITY DEFINER function cannot tell: its current_user is the owner,
 * and session_user is whoever logged in, who may be a superuser calling
 * somebody else's function.  What a handler's on_settle function may later do hangs on
 * this, so the public functions are written in C: one body that notes the
 * immediate caller and hands over to the PL/pgSQL function of the same name
 * in schema outbox_internal, as the owner:
 *
 *		outbox.pause_handler(handler => 'x', reason => 'y')
 *		outbox_internal.pause_handler(caller, '{handler, reason}', '{x, y}')
 *
 * Arguments travel as their names and texts (arguments.h); those that are
 * NULL, or were left out, do not travel.  Whoever may execute the public function need
 * not, and cannot, execute the other one.
 *
 * Some of them are secrets, which no statement is to see (secret.h), and what
 * the session has set must not change any on the way: see own_settings.  No
 * statement in between gets into the server's log, for its plan would show
 * the values.
 *
 * Runs in the caller's backend.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "common/session.h"
#include "common/sql_version.h"
#include "handler/arguments.h"

PG_FUNCTION_INFO_V1(outbox_sql_as_owner);

/*
 * In force until the function returns, whatever the session has set: texts
 * that lose nothing and are read as they were written.  Triggers fire as
 * outbox_become_owner_to_write() says.
 */
static const struct
{
	const char *name;
	const char *value;
}			own_settings[] =
{
	{"extra_float_digits", "1"},
	{"datestyle", "ISO"},
	{"array_nulls", "on"},
	{"standard_conforming_strings", "on"},
	{"transform_null_equals", "off"},
	{"quote_all_identifiers", "off"},
	{"session_replication_role", "replica"},
};

static void
apply_own_settings(void)
{
	for (int i = 0; i < lengthof(own_settings); i++)
		(void) set_config_option(own_settings[i].name, own_settings[i].value, PGC_SUSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	outbox_stay_unseen();
}

/* The result of the other function, for the caller of this one. */
static Datum
take_result(Oid type, bool *isnull)
{
	Datum		result = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, isnull);
	int16		length;
	bool		by_value;

	if (*isnull)
		return (Datum) 0;
	get_typlenbyval(type, &length, &by_value);
	return SPI_datumTransfer(result, by_value, length);
}

/* Call the other function, as the owner.  Its result is the caller's to copy. */
static void
call_as_owner(const char *function, Datum *values, OutboxWithheld *withheld)
{
	Oid			argtypes[3] = {TEXTOID, TEXTARRAYOID, TEXTARRAYOID};
	char	   *command = psprintf("SELECT outbox_internal.%s($1, $2, $3)", quote_identifier(function));

	outbox_withheld_begin(withheld);
	PG_TRY();
	{
		if (SPI_execute_with_args(command, 3, argtypes, values, NULL, false, 1) != SPI_OK_SELECT ||
			SPI_processed != 1)
			elog(ERROR, "outbox_internal.%s() did not return one row", function);
	}
	PG_FINALLY();
	{
		outbox_withheld_end(withheld);
	}
	PG_END_TRY();
}

/* create_handler() and the others: see above. */
Datum
outbox_sql_as_owner(PG_FUNCTION_ARGS)
{
	Datum		values[3];
	char	   *function = get_func_name(fcinfo->flinfo->fn_oid);
	OutboxWithheld withheld = {0};
	int			nestlevel;
	OutboxSecurity caller;
	Datum		result;
	bool		isnull;

	outbox_require_writable(psprintf("outbox.%s()", function));
	outbox_require_sql(OUTBOX_MAY_CONFIGURE);
	nestlevel = NewGUCNestLevel();
	apply_own_settings();

	values[0] = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
	outbox_collect_arguments(fcinfo, &values[1], &values[2], &withheld);

	SPI_connect();
	outbox_become_owner(&caller);
	call_as_owner(function, values, &withheld);
	result = take_result(get_func_rettype(fcinfo->flinfo->fn_oid), &isnull);
	outbox_become_caller(&caller);
	SPI_finish();
	AtEOXact_GUC(true, nestlevel);

	if (isnull)
		PG_RETURN_NULL();
	return result;
}
