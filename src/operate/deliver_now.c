/*-------------------------------------------------------------------------
 *
 * deliver_now.c
 *		CALL outbox.deliver_now(): deliver what there is to deliver, and say
 *		what has become of it.
 *
 * The session delivers nothing itself.  It starts a dispatcher for the
 * purpose, a background worker, and waits until that has ended: so what is
 * sent, judged and settled is what the server's own dispatcher would have
 * made of it, no session ever loads libcurl, and one that is cancelled leaves
 * what is out to a process that settles it.  A background worker can be
 * started on any server, preloaded or not (shared/errand.h).
 *
 * Promises: while it waits, the session holds no snapshot, no row and no
 * table, nothing but an advisory lock that only these calls take.  One call
 * at a time has the database; others wait for their turn.
 *
 * Runs in the caller's backend, outside any transaction block.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "common/query_row.h"
#include "common/session.h"
#include "compat.h"
#include "shared/errand.h"
#include "shared/lockout.h"
#include "shared/shmem.h"
#include "worker/guard.h"
#include "worker/worker.h"

PG_FUNCTION_INFO_V1(outbox_sql_deliver_now);

/* So long a background worker slot may take to become free, looked at so often. */
#define SLOT_PATIENCE_US (2 * USECS_PER_SEC)
#define SLOT_WAIT_MS 10

/* Places of what it is called with, and of what it answers. */
enum
{
	SKIP_AHEAD,
	MAX_ROUNDS,
	TIMEOUT
};

enum
{
	DELIVERED,
	RETRIED,
	DEAD,
	CANCELLED,
	EXPIRED,
	WAITING,
	ANSWERS
};

typedef struct Call
{
	bool		skip_ahead;
	int			max_rounds;
	TimestampTz deadline;

	OutboxDatabase *slot;		/* NULL: the server has no memory of ours */
	dsm_segment *segment;
	OutboxErrand *errand;
	BackgroundWorkerHandle *worker;
} Call;

static OutboxPlan copy_plan = {
	.sql = "SELECT outbox_internal.why_copy()"
};

static OutboxPlan waiting_plan = {
	.sql = "SELECT pg_catalog.count(*) FROM outbox.delivery"
};

static void
refuse_null(FunctionCallInfo fcinfo)
{
	static const char *const names[] = {"skip_ahead", "max_rounds", "timeout"};

	for (int i = 0; i < lengthof(names); i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not be null", names[i]),
					 errhint("Leave it out for its default.")));
	}
}

static void
read_arguments(FunctionCallInfo fcinfo, Call *call)
{
	TimestampTz now = GetCurrentTimestamp();

	refuse_null(fcinfo);
	call->skip_ahead = PG_GETARG_BOOL(SKIP_AHEAD);
	call->max_rounds = PG_GETARG_INT32(MAX_ROUNDS);
	if (call->max_rounds < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_rounds must not be negative"),
				 errhint("It is how often skip_ahead brings forward what is to come, for example 100.")));
	call->deadline = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval, TimestampTzGetDatum(now),
															 PG_GETARG_DATUM(TIMEOUT)));
	if (call->deadline < now)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout must not be negative"),
				 errhint("It is how long to wait at most, for example '30 s'.")));
}

/* One value of a statement, as the owner; it is the connection's. */
static Datum
look_up(OutboxPlan *plan, bool *isnull)
{
	OutboxSecurity caller;
	OutboxQueryRow row;

	outbox_become_owner(&caller);
	outbox_execute(plan, NULL, NULL, false, 1, SPI_OK_SELECT);
	outbox_become_caller(&caller);
	row = outbox_query_row(0);
	return outbox_query_datum(&row, 1, isnull);
}

/* A copy sends nothing, whoever asks. */
static void
refuse_copy(void)
{
	bool		isnull;
	Datum		why = look_up(&copy_plan, &isnull);

	if (!isnull)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("deliveries are held: %s", TextDatumGetCString(why)),
				 errhint("Call outbox.adopt() if this database is to send. The original may be sending the same messages.")));
}

/* Others that call wait here, as for any lock, but no longer than they were told to; until the transaction ends. */
static void
take_turn(const Call *call)
{
	long		left = Max(TimestampDifferenceMilliseconds(GetCurrentTimestamp(), call->deadline), 1);
	int			nestlevel = NewGUCNestLevel();
	char		ms[32];
	LOCKTAG		tag;

	snprintf(ms, sizeof(ms), "%d", (int) Min(left, INT_MAX));
	if (LockTimeout == 0 || LockTimeout > left)
		(void) set_config_option("lock_timeout", ms, PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, OUTBOX_ERRAND_LOCK_SESSION, 0, OUTBOX_ERRAND_LOCK_CLASS);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	AtEOXact_GUC(false, nestlevel);
}

/* Where the database has a dispatcher, or could have: that is locked out until the transaction ends. */
static void
take_place(Call *call)
{
	if (outbox_shared == NULL)
		return;
	call->slot = outbox_reserve_database(MyDatabaseId);
	if (call->slot == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("all slots for databases are in use"),
				 errhint("Increase outbox.max_databases from %d to at least %d and restart the server.",
						 outbox_shared->ndatabases, outbox_shared->ndatabases + 1)));
	if (!outbox_guard_clear(call->slot))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("the dispatcher of this database does not make room"),
				 errhint("See outbox.dispatchers for what it is doing, and try again.")));
}

/* Its dispatcher is started again at once, not at the launcher's next look. */
static void
give_place_back(Call *call)
{
	if (call->slot == NULL)
		return;
	SpinLockAcquire(&call->slot->mutex);
	if (call->slot->dboid == MyDatabaseId)
		call->slot->wanted = true;
	SpinLockRelease(&call->slot->mutex);
	outbox_lockouts_lower();
}

/*
 * The slot of the dispatcher that has made room is free when the postmaster
 * has noticed; and where workers that merely help have some, they are asked to
 * give them up.
 */
static void
wait_for_slot(void)
{
	if (outbox_shared != NULL)
		outbox_workers_lack(GetCurrentTimestamp());
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, SLOT_WAIT_MS, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

static void
start_worker(Call *call)
{
	TimestampTz give_up_at = GetCurrentTimestamp() + SLOT_PATIENCE_US;
	OutboxWorker what = {
		.type = "outbox dispatcher", .database = get_database_name(MyDatabaseId), .main = "outbox_errand_main"
	};

	call->segment = dsm_create(outbox_errand_size(), 0);
	call->errand = outbox_errand_make(call->segment, GetUserNameFromId(GetOuterUserId(), false));
	call->errand->skip_ahead = call->skip_ahead;
	call->errand->max_rounds = call->max_rounds;
	what.arg = UInt32GetDatum(dsm_segment_handle(call->segment));
	while ((call->worker = outbox_register_worker(&what)) == NULL && GetCurrentTimestamp() < give_up_at)
		wait_for_slot();
	if (call->worker == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("outbox cannot deliver: no background worker slot is free"),
				 errhint("Increase max_worker_processes from %d to at least %d and restart the server.",
						 max_worker_processes, max_worker_processes + 1)));
}

/* However this session's call ends, what it has started ends too, once it has settled what is out. */
static void
end_worker(int code, Datum arg)
{
	BackgroundWorkerHandle *worker = (BackgroundWorkerHandle *) DatumGetPointer(arg);

	TerminateBackgroundWorker(worker);
	pfree(worker);
}

static void
raise_timeout(Call *call)
{
	char		text[OUTBOX_ERRAND_TEXT];

	(void) outbox_errand_fate(call->errand, text);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("outbox.deliver_now() has not come to an end within its timeout"),
			 text[0] != '\0' ? errdetail("%s", text) : 0,
			 errhint("See outbox.backlog and outbox.waiting for what is left, and pass a longer timeout if it only needs more time.")));
}

/* Until it has ended: its latch is this session's. */
static void
wait_for_worker(Call *call)
{
	for (;;)
	{
		pid_t		pid;
		BgwHandleStatus status = GetBackgroundWorkerPid(call->worker, &pid);
		TimestampTz now = GetCurrentTimestamp();

		if (status == BGWH_STOPPED)
			return;
		if (status == BGWH_POSTMASTER_DIED)
			proc_exit(1);
		if (now >= call->deadline)
			raise_timeout(call);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) Min(TimestampDifferenceMilliseconds(now, call->deadline) + 1, 60 * 1000), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

/* It has ended: has it done what it was for? */
static void
check_fate(Call *call)
{
	char		text[OUTBOX_ERRAND_TEXT];

	switch (outbox_errand_fate(call->errand, text))
	{
		case OUTBOX_ERRAND_DONE:
			break;
		case OUTBOX_ERRAND_ENDLESS:
			ereport(ERROR,
					(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
					 errmsg("outbox.deliver_now() has not come to an end after %d rounds", call->max_rounds),
					 errdetail("Still to come: %s", text),
					 errhint("A round is one step ahead. Give the handler a smaller max_attempts, or pass a greater max_rounds.")));
			break;
		case OUTBOX_ERRAND_FAILED:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("outbox cannot deliver: %s", text),
					 errhint("The server's log may say more.")));
			break;
		case OUTBOX_ERRAND_UNDERWAY:
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("outbox cannot deliver: the background worker for it has been ended"),
					 text[0] != '\0' ? errdetail("%s", text) : 0,
					 errhint("The server's log may say why; otherwise call it again.")));
			break;
	}
}

/* What its processes have counted goes with the segment. */
static void
take_counts(Call *call, int64 *answers)
{
	static const OutboxCounter counters[] = {
		[DELIVERED] = OUTBOX_COUNT_DELIVERED,
		[RETRIED] = OUTBOX_COUNT_RETRIED,
		[DEAD] = OUTBOX_COUNT_DEAD,
		[CANCELLED] = OUTBOX_COUNT_CANCELLED,
		[EXPIRED] = OUTBOX_COUNT_EXPIRED
	};

	for (int i = 0; i < lengthof(counters); i++)
		answers[i] = (int64) pg_atomic_read_u64(&call->errand->counts[counters[i]]);
	dsm_detach(call->segment);
}

/* The dispatcher's part, in a transaction that has no snapshot. */
static void
deliver(Call *call, int64 *answers)
{
	take_turn(call);
	take_place(call);
	start_worker(call);
	PG_ENSURE_ERROR_CLEANUP(end_worker, PointerGetDatum(call->worker));
	{
		wait_for_worker(call);
	}
	PG_END_ENSURE_ERROR_CLEANUP(end_worker, PointerGetDatum(call->worker));
	pfree(call->worker);
	give_place_back(call);
	check_fate(call);
	take_counts(call, answers);
}

static Datum
make_answer(FunctionCallInfo fcinfo, const int64 *answers)
{
	TupleDesc	desc;
	Datum		values[ANSWERS];
	bool		nulls[ANSWERS] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	for (int i = 0; i < ANSWERS; i++)
		values[i] = Int64GetDatum(answers[i]);
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls));
}

/* CALL outbox.deliver_now(skip_ahead, max_rounds, timeout, INOUT delivered, retried, dead, cancelled, expired, waiting) */
Datum
outbox_sql_deliver_now(PG_FUNCTION_ARGS)
{
	Call		call = {0};
	int64		answers[ANSWERS];
	bool		isnull;

	if (outbox_called_in_transaction_block(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("outbox.deliver_now() cannot run inside a transaction block"),
				 errdetail("What this transaction has staged is delivered after its commit, if at all."),
				 errhint("CALL it by itself, after COMMIT.")));
	outbox_require_writable("outbox.deliver_now()");
	read_arguments(fcinfo, &call);

	SPI_connect_ext(SPI_OPT_NONATOMIC);
	refuse_copy();
	SPI_commit();
	deliver(&call, answers);
	/* Not before the others may have their turn. */
	SPI_commit();
	answers[WAITING] = DatumGetInt64(look_up(&waiting_plan, &isnull));
	SPI_finish();
	return make_answer(fcinfo, answers);
}
