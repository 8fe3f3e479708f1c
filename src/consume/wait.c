/*-------------------------------------------------------------------------
 *
 * wait.c
 *		CALL outbox.wait(): sleep until something can be claimed.
 *
 * Runs in the consumer's backend, as a procedure called outside a
 * transaction block: it commits first, and again after each look, so that
 * while it sleeps it holds no snapshot, lock or transaction id.
 *
 * It enters itself into the list of waiters, then looks, then sleeps: what
 * commits after the look finds it in the list and sets its latch.  The head
 * of the list, the keeper, also looks when something falls due by itself
 * (waiters.h).
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "common/session.h"
#include "consume/arguments.h"
#include "consume/waiters.h"
#include "consume/walk.h"

#define MAX_WAIT_DAYS 1

/* Nobody tells when an operator lets go of a row, so the keeper looks again after this time. */
#define LOCKED_RECHECK_US (1 * USECS_PER_SEC)

/* One call of outbox.wait(). */
typedef struct Wait
{
	const char *name;			/* of the handler, allocated to outlive transactions */
	int32		version;
	TimestampTz deadline;
	OutboxPullRef ref;
	bool		owes;			/* it was woken and has not looked yet */
	bool		checking;		/* the keeper's alarm has gone off, and the next one is not set */
} Wait;

static OutboxVisit
count(OutboxWalk *walk, const OutboxQueuePosition *key)
{
	return OUTBOX_VISIT_TAKEN;
}

/*
 * Look, in a transaction of its own.  Returns how many deliveries can be
 * claimed, up to limit; next_due, if asked for, is set to when the next one
 * falls due.  Looks the handler up again: it may have been paused or
 * resumed, or dropped, which raises.
 */
static int
look(Wait *wait, int limit, TimestampTz *next_due)
{
	OutboxPullHandler handler;
	OutboxWalk	walk = {
		.handler = &handler,
		.version = wait->version,
		.now = GetCurrentTimestamp(),
		.wanted = limit,
		.visitor = count,
		.want_next_due = next_due != NULL
	};

	outbox_pull_handler(wait->name, OUTBOX_PULL_CLAIM, &handler);
	if (handler.paused)
		walk.next_due = DT_NOEND;
	else
		outbox_walk(&walk);
	if (next_due != NULL)
		*next_due = walk.found_locked ? Min(walk.next_due, walk.now + LOCKED_RECHECK_US) : walk.next_due;
	SPI_commit();
	SPI_start_transaction();
	return walk.taken;
}

/* The keeper's duty: wake as many as there is something for, and set the next alarm. */
static void
check(Wait *wait, int nwaiters)
{
	TimestampTz next_due;
	int			n;

	wait->checking = true;
	outbox_waiters_begin_check(&wait->ref);
	n = look(wait, nwaiters, &next_due);
	outbox_waiters_due_at(&wait->ref, next_due);
	wait->checking = false;
	outbox_waiters_wake(&wait->ref, n, GetCurrentTimestamp());
}

static long
milliseconds_until(TimestampTz at, TimestampTz now)
{
	/* Rounded up: waking before it is due would only mean to sleep again. */
	return at <= now ? 0 : (long) Min((at - now + 999) / 1000, INT_MAX);
}

static void
refuse_without_memory(const Wait *wait)
{
	if (outbox_pull_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("outbox.wait() needs the library to be preloaded"),
				 errhint("Add outbox to shared_preload_libraries in postgresql.conf and restart the server.")));
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("no room to wait on handler \"%s\"", wait->name),
			 errdetail("Consumers of about %d pull handlers can wait on one server at a time.", OUTBOX_PULL_STATES),
			 errhint("Poll with outbox.claim() instead.")));
}

/* Into the list, with a look at what is there already still to come. */
static void
enter(Wait *wait)
{
	OutboxPullHandler handler;

	outbox_pull_handler(wait->name, OUTBOX_PULL_CLAIM, &handler);
	wait->ref = handler.ref;
	if (!outbox_waiter_enter(&wait->ref, wait->version))
		refuse_without_memory(wait);
	wait->owes = true;
}

/* Returns when something can be claimed, or when time is up. */
static void
wait_in_list(Wait *wait)
{
	enter(wait);
	for (;;)
	{
		OutboxWaiterDuty duty;
		TimestampTz now = GetCurrentTimestamp();
		TimestampTz alarm = wait->deadline;

		CHECK_FOR_INTERRUPTS();
		AcceptInvalidationMessages();
		outbox_waiter_duty(&wait->ref, &duty);
		wait->owes |= duty.woken;
		if (duty.lost)
		{
			enter(wait);
			continue;
		}
		/* First of all: a keeper that goes leaves the check to the next one, which is told. */
		if (wait->owes && look(wait, 1, NULL) > 0)
			return;
		wait->owes = false;
		if (duty.keeper && duty.next_check <= now)
		{
			check(wait, duty.nwaiters);
			continue;
		}
		if (now >= wait->deadline)
			return;
		if (duty.keeper)
			alarm = Min(alarm, duty.next_check);
		WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
				  milliseconds_until(alarm, GetCurrentTimestamp()), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/*
 * Leave the list in any event.  A wake-up that nobody has looked after goes to
 * the next waiter, a check that was not finished to the next keeper.
 */
static void
leave(int code, Datum arg)
{
	Wait	   *wait = (Wait *) DatumGetPointer(arg);

	if (outbox_waiter_leave(&wait->ref) || wait->owes)
		outbox_waiters_wake(&wait->ref, 1, GetCurrentTimestamp());
	if (wait->checking)
		outbox_waiters_due_at(&wait->ref, DT_NOBEGIN);
}

static void
wait_for_message(Wait *wait)
{
	PG_ENSURE_ERROR_CLEANUP(leave, PointerGetDatum(wait));
	{
		wait_in_list(wait);
	}
	PG_END_ENSURE_ERROR_CLEANUP(leave, PointerGetDatum(wait));
	/* The caller will claim now; a second wake-up is not for it. */
	wait->owes = false;
	leave(0, PointerGetDatum(wait));
}

static void
refuse_in_transaction(FunctionCallInfo fcinfo)
{
	if (outbox_called_in_transaction_block(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("outbox.wait() cannot run inside a transaction block or function"),
				 errdetail("It would hold the transaction's snapshot and locks while it waits."),
				 errhint("CALL it as a statement of its own, with the driver in autocommit mode.")));
}

PG_FUNCTION_INFO_V1(outbox_sql_wait);

/* outbox.wait(handler, timeout, version) */
Datum
outbox_sql_wait(PG_FUNCTION_ARGS)
{
	Wait		wait = {0};
	TimestampTz now = GetCurrentTimestamp();

	refuse_in_transaction(fcinfo);
	if (RecoveryInProgress())
		outbox_require_writable("outbox.wait()");
	wait.deadline = outbox_interval_argument(fcinfo, 1, "timeout", now, true, MAX_WAIT_DAYS);
	wait.version = PG_ARGISNULL(2) ? OUTBOX_VERSION_DEFAULT :
		outbox_int_argument(fcinfo, 2, "version", 0, PG_INT32_MAX);
	wait.name = MemoryContextStrdup(PortalContext, outbox_handler_argument(fcinfo, 0));

	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	SPI_commit();
	SPI_start_transaction();
	wait_for_message(&wait);
	SPI_finish();
	PG_RETURN_VOID();
}
