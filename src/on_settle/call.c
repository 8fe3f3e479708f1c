/*-------------------------------------------------------------------------
 *
 * call.c
 *		Runs a handler's on_settle function with the rights of its owner.
 *
 * See on_settle/call.h.  Three timers run with each call: a short one after which
 * the dispatcher may start the spare worker, outbox.on_settle_timeout which
 * cancels the function, and a last one for a function that has caught the
 * cancellation and goes on: it ends the process.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
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
#include "utils/typcache.h"

#include "common/session.h"
#include "compat.h"
#include "guc.h"
#include "on_settle/call.h"
#include "shared/on_settle_slot.h"
#include "shared/on_settle_slot.h"

/* What is kept of an error. */
#define MAX_ERROR_LEN 2000

static TimeoutId slow_timer;
static TimeoutId overrun_timer;
static TimestampTz timers_started;

/* In a signal handler: somebody else may be waiting. */
static void
note_slow(void)
{
	outbox_on_settle_slot_wake_dispatcher();
}

/* In a signal handler: the function was cancelled and has not stopped. */
static void
end_process(void)
{
	outbox_on_settle_slot_set_overran();
	ProcDiePending = true;
	InterruptPending = true;
	SetLatch(MyLatch);
}

void
outbox_on_settle_call_init(void)
{
	slow_timer = RegisterTimeout(USER_TIMEOUT, note_slow);
	overrun_timer = RegisterTimeout(USER_TIMEOUT, end_process);
}

static void
start_timers(void)
{
	EnableTimeoutParams timers[] = {
		{.id = slow_timer, .type = TMPARAM_AFTER, .delay_ms = OUTBOX_ON_SETTLE_SLOW_MS},
		{.id = STATEMENT_TIMEOUT, .type = TMPARAM_AFTER, .delay_ms = outbox_on_settle_timeout},
		{.id = overrun_timer, .type = TMPARAM_AFTER, .delay_ms = outbox_on_settle_timeout + Max(1000, outbox_on_settle_timeout / 2)},
	};

	timers_started = GetCurrentTimestamp();
	enable_timeouts(timers, lengthof(timers));
}

static void
stop_timers(void)
{
	DisableTimeoutParams timers[] = {{slow_timer, false}, {STATEMENT_TIMEOUT, false}, {overrun_timer, false}};

	disable_timeouts(timers, lengthof(timers));
}

static bool
find_function(const char *signature, HeapTuple *proc)
{
	static OutboxPlan find_plan = {
		.sql = "SELECT pg_catalog.to_regprocedure($1)::pg_catalog.oid",
		.nargs = 1,
		.argtypes = {TEXTOID},
	};
	Datum		values[1] = {CStringGetTextDatum(signature)};
	bool		isnull;
	Datum		oid;

	outbox_execute(&find_plan, values, NULL, true, 1, SPI_OK_SELECT);
	oid = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);
	if (isnull)
		return false;
	*proc = SearchSysCache1(PROCOID, oid);
	return HeapTupleIsValid(*proc);
}

/*
 * Whose rights the function has: its owner's, which the catalog says.  What
 * the rows of handlers say of roles is no part of it: who can change those
 * must not become others by it.
 */
static Oid
choose_role(const OutboxOnSettleCall *call, Oid function_owner)
{
	if (superuser_arg(function_owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("on_settle function %s would run as a superuser", call->function)));
	return function_owner;
}

/* SELECT schema.function($1), which checks all the rights that a caller needs. */
static char *
call_statement(const OutboxOnSettleCall *call, Oid *role)
{
	HeapTuple	tuple;
	Form_pg_proc proc;
	char	   *statement;

	if (!find_function(call->function, &tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("on_settle function %s does not exist", call->function)));
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	*role = choose_role(call, proc->proowner);
	statement = psprintf("SELECT %s($1)",
						 quote_qualified_identifier(get_namespace_name(proc->pronamespace), NameStr(proc->proname)));
	ReleaseSysCache(tuple);
	return statement;
}

static Datum
make_argument(const OutboxOnSettleCall *call, Oid *type)
{
	TupleDesc	desc;
	HeapTuple	tuple;

	*type = get_rel_type_id(outbox_relation_oid("settlement", false));
	desc = lookup_rowtype_tupdesc(*type, -1);
	if (desc->natts != OUTBOX_SETTLEMENT_COLUMNS)
		elog(ERROR, "type outbox.settlement has %d columns instead of %d", desc->natts, OUTBOX_SETTLEMENT_COLUMNS);
	/* It takes arrays that are not const, and does not write to them. */
	tuple = heap_form_tuple(desc, unconstify(OutboxOnSettleCall *, call)->values, unconstify(OutboxOnSettleCall *, call)->nulls);
	ReleaseTupleDesc(desc);
	return HeapTupleGetDatum(tuple);
}

static void
set_for_function(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

/* What is pinned for the worker's own statements is not right for the function, or not enough. */
static void
set_settings(void)
{
	char		lock_timeout[32];

	snprintf(lock_timeout, sizeof(lock_timeout), "%dms", Max(1, outbox_on_settle_timeout / 2));
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
 * the worker's own rights.  So deferrable constraints are checked at once,
 * and a function that defers them again gets PostgreSQL's error: within a
 * security-restricted operation no trigger can be deferred.
 */
static void
call_as_owner(const OutboxOnSettleCall *call)
{
	Oid			role;
	char	   *statement = call_statement(call, &role);
	Oid			type;
	Datum		argument = make_argument(call, &type);
	OutboxSecurity own;
	int			nestlevel = NewGUCNestLevel();

	set_settings();
	GetUserIdAndSecContext(&own.user, &own.context);
	SetUserIdAndSecContext(role, own.context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);

	start_timers();
	execute("SET CONSTRAINTS ALL IMMEDIATE", InvalidOid, (Datum) 0, SPI_OK_UTILITY);
	execute(statement, type, argument, SPI_OK_SELECT);
	stop_timers();
	/* One that fired at the last moment still counts. */
	CHECK_FOR_INTERRUPTS();

	AtEOXact_GUC(false, nestlevel);
	SetUserIdAndSecContext(own.user, own.context);
}

/* An error in words, cut to what is kept of one. */
static char *
describe_error(const ErrorData *edata)
{
	char	   *text;

	if (edata->sqlerrcode == ERRCODE_QUERY_CANCELED &&
		TimestampDifferenceExceeds(timers_started, GetCurrentTimestamp(), outbox_on_settle_timeout))
		text = psprintf("on_settle function was cancelled after %d ms (outbox.on_settle_timeout)", outbox_on_settle_timeout);
	else if (edata->detail)
		text = psprintf("%s: %s", edata->message, edata->detail);
	else
		text = pstrdup(edata->message ? edata->message : "error without message");
	text[pg_mbcliplen(text, strlen(text), MAX_ERROR_LEN)] = '\0';
	return text;
}

char *
outbox_on_settle_call(const OutboxOnSettleCall *call)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	char	   *volatile failure = NULL;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		call_as_owner(call);
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		stop_timers();
		/* The timer may have fired just after another error. */
		QueryCancelPending = false;
		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		/* Gives the worker its own rights and settings back, too. */
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		failure = describe_error(edata);
		FreeErrorData(edata);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return failure;
}

void
outbox_on_settle_clean_up(void)
{
	/* Advisory locks of the session outlive even a rollback. */
	LockReleaseSession(USER_LOCKMETHOD);
}
