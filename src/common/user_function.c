/*-------------------------------------------------------------------------
 *
 * user_function.c
 *		Runs a function of somebody else with the rights of its owner.
 *
 * See user_function.h.  Up to three timers run with each call: a short one
 * after which somebody may be told that it is slow, one which cancels the
 * function, and in a worker a last one for a function that has caught the
 * cancellation and goes on: it ends the process.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/resowner.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "common/query_row.h"
#include "common/session.h"
#include "common/user_function.h"
#include "compat.h"

/* What is kept of an error. */
#define MAX_ERROR_LEN 2000

static const OutboxUserFunctionWatch *watch = NULL;
static bool timers_registered = false;
static TimeoutId slow_timer;
static TimeoutId cancel_timer;
static TimeoutId overrun_timer;
static TimestampTz timers_started;
static bool timers_run = false;

/* In a signal handler: somebody else may be waiting. */
static void
note_slow(void)
{
	watch->slow();
}

/* In a signal handler: it has taken too long. */
static void
cancel_function(void)
{
	QueryCancelPending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

/* In a signal handler: the function was cancelled and has not stopped. */
static void
end_process(void)
{
	watch->overran();
	ProcDiePending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

static void
register_timers(void)
{
	if (timers_registered)
		return;
	slow_timer = RegisterTimeout(USER_TIMEOUT, note_slow);
	cancel_timer = RegisterTimeout(USER_TIMEOUT, cancel_function);
	overrun_timer = RegisterTimeout(USER_TIMEOUT, end_process);
	timers_registered = true;
}

void
outbox_user_functions_watch(const OutboxUserFunctionWatch *new_watch)
{
	watch = new_watch;
	register_timers();
}

static void
start_timers(int timeout_ms)
{
	EnableTimeoutParams timers[] = {
		{.id = cancel_timer, .type = TMPARAM_AFTER, .delay_ms = timeout_ms},
		{.id = overrun_timer, .type = TMPARAM_AFTER, .delay_ms = timeout_ms + Max(1000, timeout_ms / 2)},
		{.id = slow_timer, .type = TMPARAM_AFTER, .delay_ms = watch != NULL ? watch->slow_ms : 0},
	};
	int			n = watch == NULL ? 1 : watch->slow == NULL ? 2 : 3;

	timers_started = GetCurrentTimestamp();
	timers_run = true;
	enable_timeouts(timers, n);
}

static void
stop_timers(void)
{
	DisableTimeoutParams timers[] = {{slow_timer, false}, {cancel_timer, false}, {overrun_timer, false}};

	disable_timeouts(timers, lengthof(timers));
	timers_run = false;
}

Oid
outbox_user_function_ask(OutboxPlan *plan, const char *name)
{
	Datum		values[1] = {CStringGetTextDatum(name)};
	OutboxQueryRow row;
	bool		isnull;
	Datum		oid;

	outbox_execute(plan, values, NULL, true, 1, SPI_OK_SELECT);
	row = outbox_query_row(0);
	oid = outbox_query_datum(&row, 1, &isnull);
	return isnull ? InvalidOid : DatumGetObjectId(oid);
}

Oid
outbox_user_function_find(const char *signature)
{
	static OutboxPlan find_plan = {
		.sql = "SELECT pg_catalog.to_regprocedure($1)::pg_catalog.oid",
		.nargs = 1,
		.argtypes = {TEXTOID},
	};

	return outbox_user_function_ask(&find_plan, signature);
}

/*
 * Whose rights the function has: its owner's, which the catalog says.  What
 * rows of ours say of roles is no part of it: who can change those must not
 * become others by it.
 */
static Oid
choose_role(const char *what, const char *name, Oid owner)
{
	if (superuser_arg(owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("%s %s would run as a superuser", what, name)));
	return owner;
}

/* SELECT schema.function($1), which checks all the rights that a caller needs. */
static char *
call_statement(const OutboxUserFunction *function, Oid *role)
{
	HeapTuple	tuple;
	Form_pg_proc proc;
	char	   *statement;

	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(outbox_user_function_find(function->name)));
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("%s %s does not exist", function->what, function->name)));
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	*role = choose_role(function->what, function->name, proc->proowner);
	statement = psprintf("SELECT %s($1)",
						 quote_qualified_identifier(get_namespace_name(proc->pronamespace), NameStr(proc->proname)));
	ReleaseSysCache(tuple);
	return statement;
}

static void
set_for_function(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* What is right for our own statements is not for the function, or not enough. */
static void
set_settings(int timeout_ms)
{
	char		lock_timeout[32];

	snprintf(lock_timeout, sizeof(lock_timeout), "%dms", Max(1, timeout_ms / 2));
	set_for_function("search_path", "pg_catalog, pg_temp");
	set_for_function("row_security", "on");
	set_for_function("lock_timeout", lock_timeout);
}

static void
execute(const char *statement, Oid type, Datum argument, int expected)
{
	int			rc = SPI_execute_with_args(statement, OidIsValid(type) ? 1 : 0, &type, &argument, NULL, false, 0);

	if (rc != expected)
		elog(ERROR, "unexpected result of \"%s\": %s", statement, SPI_result_code_string(rc));
}

/*
 * All of a call that can fail because of the function.
 *
 * Nothing of it may be left for the end of the transaction, which comes with
 * other rights.  So deferrable constraints are checked at once, and a
 * function that defers them again gets PostgreSQL's error: within a
 * security-restricted operation no trigger can be deferred.
 */
static void
call_as_owner(const OutboxUserFunction *function)
{
	Oid			role;
	char	   *statement = call_statement(function, &role);
	OutboxSecurity own;
	int			nestlevel = NewGUCNestLevel();

	set_settings(function->timeout_ms);
	GetUserIdAndSecContext(&own.user, &own.context);
	SetUserIdAndSecContext(role, own.context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);

	start_timers(function->timeout_ms);
	execute("SET CONSTRAINTS ALL IMMEDIATE", InvalidOid, (Datum) 0, SPI_OK_UTILITY);
	execute(statement, function->type, function->argument, SPI_OK_SELECT);
	stop_timers();
	/* One that fired at the last moment still counts. */
	CHECK_FOR_INTERRUPTS();

	AtEOXact_GUC(false, nestlevel);
	SetUserIdAndSecContext(own.user, own.context);
}

/* Has the function been cancelled, and by our timer? */
static bool
was_cancelled(const ErrorData *edata)
{
	return edata->sqlerrcode == ERRCODE_QUERY_CANCELED;
}

static bool
took_too_long(const OutboxUserFunction *function)
{
	return TimestampDifferenceExceeds(timers_started, GetCurrentTimestamp(), function->timeout_ms);
}

/* As much of it as is kept. */
static char *
clip_error(char *text)
{
	text[pg_mbcliplen(text, strlen(text), MAX_ERROR_LEN)] = '\0';
	return text;
}

static char *
error_text(const ErrorData *edata)
{
	if (edata->detail)
		return psprintf("%s: %s", edata->message, edata->detail);
	return pstrdup(edata->message ? edata->message : "error without message");
}

/* An error in words, cut to what is kept of one. */
static char *
describe_error(const OutboxUserFunction *function, const ErrorData *edata)
{
	if (was_cancelled(edata) && took_too_long(function))
		return psprintf("%s was cancelled after %d ms (%s)", function->what, function->timeout_ms, function->timeout_option);
	return clip_error(error_text(edata));
}

char *
outbox_user_function_call(const OutboxUserFunction *function)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	char	   *volatile failure = NULL;

	register_timers();
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		call_as_owner(function);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		stop_timers();
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		/* The timer may have fired just after another error. */
		QueryCancelPending = false;
		FlushErrorState();
		/* Gives us our own rights and settings back, too. */
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (watch == NULL && was_cancelled(edata) && !took_too_long(function))
			ReThrowError(edata);
		failure = describe_error(function, edata);
		FreeErrorData(edata);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return failure;
}

/* Is it one argument of type jsonb, a boolean for an answer, and no writing? */
static bool
is_test(Form_pg_proc proc)
{
	return proc->prokind == PROKIND_FUNCTION && !proc->proretset && proc->prorettype == BOOLOID &&
		proc->pronargs == 1 && proc->proargtypes.values[0] == JSONBOID && proc->provolatile != PROVOLATILE_VOLATILE;
}

void
outbox_user_test_begin(OutboxUserTest *test, Oid function, const char *what, const char *name)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	bool		fits;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("%s %s does not exist", what, name)));
	fits = is_test((Form_pg_proc) GETSTRUCT(tuple));
	test->owner = ((Form_pg_proc) GETSTRUCT(tuple))->proowner;
	ReleaseSysCache(tuple);
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
				 errmsg("%s %s is not a stable or immutable function of one jsonb that returns boolean", what, name)));
	choose_role(what, name, test->owner);
	if (!outbox_may_execute(function, test->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for %s %s", what, name),
				 errhint("Role \"%s\", as which it runs, needs EXECUTE on it.", GetUserNameFromId(test->owner, false))));
	fmgr_info(function, &test->call);
}

/*
 * What the session may have set otherwise, and what then would be found, seen
 * or read otherwise than the function's owner wrote it.  What its statements are
 * told of a payload is hidden beside.
 */
static const struct
{
	const char *name;
	const char *value;
}			test_settings[] =
{
	{"search_path", "pg_catalog, pg_temp"},
	{"row_security", "on"},
	{"standard_conforming_strings", "on"},
	{"transform_null_equals", "off"},
	{"array_nulls", "on"},
};

/* Those that are so already are left alone: a change has plans looked at again. */
static void
apply_test_settings(void)
{
	for (int i = 0; i < lengthof(test_settings); i++)
	{
		if (strcmp(GetConfigOption(test_settings[i].name, false, false), test_settings[i].value) != 0)
			set_for_function(test_settings[i].name, test_settings[i].value);
	}
	outbox_hide_values();
}

/*
 * A function that is stable may still call one that is not: what that would
 * write it is told that it cannot, by a transaction that is read-only until the
 * subtransaction ends, and which nobody within it can make anything else.
 * Deferrable constraints are left alone, which are the caller's transaction's:
 * within a security-restricted operation no trigger can be deferred.
 */
static bool
call_test_as_owner(OutboxUserTest *test, Datum value)
{
	LOCAL_FCINFO(fcinfo, 1);
	OutboxSecurity own;
	int			nestlevel = NewGUCNestLevel();
	Datum		answer;

	apply_test_settings();
	GetUserIdAndSecContext(&own.user, &own.context);
	SetUserIdAndSecContext(test->owner, own.context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);

	InitFunctionCallInfoData(*fcinfo, &test->call, 1, InvalidOid, NULL, NULL);
	fcinfo->args[0].value = value;
	fcinfo->args[0].isnull = false;
	XactReadOnly = true;
	answer = FunctionCallInvoke(fcinfo);

	AtEOXact_GUC(false, nestlevel);
	SetUserIdAndSecContext(own.user, own.context);
	return !fcinfo->isnull && DatumGetBool(answer);
}

/* Does an error say something of the value?  Others are for whoever can put the function right. */
static bool
is_about_value(int sqlstate)
{
	int			category = ERRCODE_TO_CATEGORY(sqlstate);

	return category == ERRCODE_DATA_EXCEPTION || category == ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION ||
		category == ERRCODE_TO_CATEGORY(ERRCODE_PLPGSQL_ERROR);
}

bool
outbox_user_test_passes(OutboxUserTest *test, Datum value, char **failure)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool passes = false;

	*failure = NULL;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		passes = call_test_as_owner(test, value);
		/* What a transaction that is read-only may do, such as NOTIFY, is not left either. */
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		/* Gives the caller its own rights and settings back, too. */
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (!is_about_value(edata->sqlerrcode))
			ReThrowError(edata);
		*failure = clip_error(error_text(edata));
		FreeErrorData(edata);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return passes;
}

/* A function of one text that returns one, and does not write. */
static Oid
find_text_function(const char *schema, const char *name, Oid *owner)
{
	Oid			argtype = TEXTOID;
	Oid			namespace = get_namespace_oid(schema, true);
	HeapTuple	tuple = NULL;
	Form_pg_proc proc;
	Oid			function;
	bool		fits;

	if (OidIsValid(namespace))
		tuple = SearchSysCache3(PROCNAMEARGSNSP, CStringGetDatum(name), PointerGetDatum(buildoidvector(&argtype, 1)),
								ObjectIdGetDatum(namespace));
	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function does not exist")));
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	fits = proc->prokind == PROKIND_FUNCTION && !proc->proretset && proc->prorettype == TEXTOID &&
		proc->provolatile != PROVOLATILE_VOLATILE;
	function = proc->oid;
	*owner = proc->proowner;
	ReleaseSysCache(tuple);
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_FUNCTION_DEFINITION),
				 errmsg("function is not a stable or immutable one of one text that returns text")));
	(void) choose_role("function", name, *owner);
	if (!outbox_may_execute(function, *owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for function")));
	return function;
}

/* As call_test_as_owner(). */
static char *
call_text_function_as_owner(const char *schema, const char *name, const char *given)
{
	LOCAL_FCINFO(fcinfo, 1);
	FmgrInfo	call;
	Oid			owner;
	OutboxSecurity own;
	int			nestlevel = NewGUCNestLevel();
	Datum		answer;

	fmgr_info(find_text_function(schema, name, &owner), &call);
	InitFunctionCallInfoData(*fcinfo, &call, 1, DEFAULT_COLLATION_OID, NULL, NULL);
	fcinfo->args[0].value = CStringGetTextDatum(given);
	fcinfo->args[0].isnull = false;

	apply_test_settings();
	GetUserIdAndSecContext(&own.user, &own.context);
	SetUserIdAndSecContext(owner, own.context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	XactReadOnly = true;
	answer = FunctionCallInvoke(fcinfo);
	AtEOXact_GUC(false, nestlevel);
	SetUserIdAndSecContext(own.user, own.context);
	return fcinfo->isnull ? NULL : TextDatumGetCString(answer);
}

bool
outbox_user_text_function_call(const char *schema, const char *name, const char *text, int timeout_ms,
							   char **answer, int *sqlstate)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool done = false;
	bool		timed;

	register_timers();
	/* Within another function of a user the timers are that one's. */
	timed = !timers_run;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		if (timed)
			start_timers(timeout_ms);
		*answer = call_text_function_as_owner(schema, name, text);
		if (timed)
			stop_timers();
		/* One that fired at the last moment still counts. */
		CHECK_FOR_INTERRUPTS();
		RollbackAndReleaseCurrentSubTransaction();
		done = true;
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		if (timed)
			stop_timers();
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (timed)
			QueryCancelPending = false;
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		/* The user's, or that of the function around this one. */
		if (was_cancelled(edata) && (!timed || (watch == NULL && !TimestampDifferenceExceeds(timers_started, GetCurrentTimestamp(), timeout_ms))))
			ReThrowError(edata);
		*sqlstate = edata->sqlerrcode;
		FreeErrorData(edata);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return done;
}

void
outbox_user_functions_clean_up(void)
{
	/* Advisory locks of the session outlive even a rollback. */
	LockReleaseSession(USER_LOCKMETHOD);
}
