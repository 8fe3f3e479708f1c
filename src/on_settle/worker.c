/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background worker that settles deliveries of handlers with an
 *		on_settle function.
 *
 * A user's function may take its time, so it runs here and not in the
 * dispatcher: one delivery, one transaction.  What is to be settled is in
 * outbox.on_settle_queue, which only the dispatcher adds to, one transaction after the
 * other; so its ids become visible in their order, and reading on from the
 * last one misses nothing and does not step over what has been settled.
 *
 * Worker 0 serves every handler.  While it is busy with a slow function,
 * worker 1, the spare, serves the others; it leaves a handler whose function
 * was slow with it to worker 0 from then on.  So slow functions wait for
 * each other, and nobody else waits for them.
 *
 * The worker ends with its dispatcher.  SIGTERM ends it wherever it is while
 * a transaction is running, which rolls back; the hand-over is still there
 * for the next worker.  An error of the database work puts the hand-over
 * aside for a growing time.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "compat.h"
#include "guc.h"
#include "on_settle/apply.h"
#include "on_settle/call.h"
#include "on_settle/queue.h"
#include "on_settle/worker.h"
#include "shared/on_settle_slot.h"
#include "worker/failure.h"
#include "worker/installation.h"
#include "worker/settings.h"
#include "worker/statistics.h"

#define SPARE 1

/* The spare leaves a handler with a slow function alone for so long, and leaves when idle for so long. */
#define SLOW_MEMORY_US (60 * USECS_PER_SEC)
#define SPARE_IDLE_US (10 * USECS_PER_SEC)

/* A delivery that somebody holds, and a handler that the other worker is at, are tried again after this time. */
#define HELD_RETRY_US (100 * 1000)

/* Reading what has been handed over takes less, unless something is in the way. */
#define LONG_READ_US (10 * 1000)

/* Pauses after failed database work. */
#define FIRST_PAUSE_US (100 * 1000)
#define MAX_PAUSE_US (10 * USECS_PER_SEC)

/* For the worker's own statements. */
#define LOCK_TIMEOUT "5s"

static int	number;
static MemoryContext iteration_context = NULL;
static volatile sig_atomic_t working = false;	/* a transaction is running */

static int64 read_up_to = 0;
static bool more = true;		/* rows behind read_up_to */
static TimestampTz next_rescan = 0;

static int	failures = 0;
static TimestampTz paused_until = 0;

static TimestampTz last_served = 0;

static void
handle_sigterm(SIGNAL_ARGS)
{
	if (working)
		die(postgres_signal_arg);
	else
		SignalHandlerForShutdownRequest(postgres_signal_arg);
}

/* Timeouts and pg_cancel_backend(). */
static void
handle_sigint(SIGNAL_ARGS)
{
	if (working)
		StatementCancelHandler(postgres_signal_arg);
}

static void
begin_work(void)
{
	working = true;
	outbox_statistics_note();
}

static void
end_work(void)
{
	working = false;
	/* A cancel that came too late is nobody's. */
	QueryCancelPending = false;
	/* A request to end that came in between has not been served. */
	if (ProcDiePending)
		ShutdownRequestPending = true;
}

/* The database work has failed: nothing of it is left.  Says how long to pause. */
static void
fail_work(void)
{
	TimestampTz now = GetCurrentTimestamp();
	ErrorData  *edata;

	MemoryContextSwitchTo(iteration_context);
	edata = CopyErrorData();
	HOLD_INTERRUPTS();
	outbox_failure_report(edata, now);
	AbortCurrentTransaction();
	FlushErrorState();
	RESUME_INTERRUPTS();
	outbox_on_settle_slot_end();
	outbox_on_settle_clean_up();
	MemoryContextSwitchTo(iteration_context);

	failures++;
	paused_until = now + Min(MAX_PAUSE_US, FIRST_PAUSE_US << Min(failures - 1, 10));
}

static void
note_found(int32 handler_id, int64 queue_id)
{
	outbox_on_settle_queue_add(handler_id, queue_id, DT_NOBEGIN);
}

/* Read what has been handed over since the last look. */
static void
read_on(void)
{
	TimestampTz begin = GetCurrentTimestamp();

	begin_work();
	PG_TRY();
	{
		if (!outbox_on_settle_read(&read_up_to, note_found, &more))
		{
			more = true;
			paused_until = begin + HELD_RETRY_US;
		}
		MemoryContextSwitchTo(iteration_context);
	}
	PG_CATCH();
	{
		more = true;
		fail_work();
	}
	PG_END_TRY();
	end_work();
	/* It has waited for something, and that may have swallowed somebody's ring. */
	if (GetCurrentTimestamp() - begin > LONG_READ_US)
		SetLatch(MyLatch);
}

/* Now and then everything is read anew, for rows that were put right by hand. */
static void
rescan(TimestampTz now)
{
	next_rescan = now + outbox_rescan_interval * INT64CONST(1000);
	outbox_on_settle_queues_clear();
	read_up_to = 0;
	more = true;
}

/* The function that ended the worker before this one is not run again. */
static const char *
reason_to_give_up(int64 queue_id)
{
	if (!outbox_on_settle_slot_has_overrun(queue_id))
		return NULL;
	return psprintf("on_settle function did not stop when it was cancelled after %d ms (outbox.on_settle_timeout)",
					outbox_on_settle_timeout);
}

/* Settle one; false if the database work failed. */
static bool
settle(int32 handler_id, int64 queue_id, OutboxOnSettleResult *result)
{
	volatile bool done = false;

	begin_work();
	PG_TRY();
	{
		*result = outbox_on_settle_settle(queue_id, reason_to_give_up(queue_id));
		MemoryContextSwitchTo(iteration_context);
		done = true;
		failures = 0;
		outbox_failure_forget();
	}
	PG_CATCH();
	{
		fail_work();
	}
	PG_END_TRY();
	end_work();
	return done;
}

/* A slow function: the other worker may have waited for its handler, and the spare is not to take it again. */
static void
note_duration(OutboxOnSettleQueue *queue, TimestampTz begin, TimestampTz now)
{
	if (now - begin < OUTBOX_ON_SETTLE_SLOW_MS * 1000)
		return;
	if (number == SPARE)
		queue->not_before = now + SLOW_MEMORY_US;
	outbox_on_settle_slot_wake_other();
}

static void
serve(OutboxOnSettleQueue *queue, TimestampTz begin)
{
	int32		handler_id = queue->handler_id;
	int64		queue_id = outbox_on_settle_queue_take(queue);
	OutboxOnSettleResult result;
	TimestampTz now;

	if (!settle(handler_id, queue_id, &result))
	{
		outbox_on_settle_queue_add(handler_id, queue_id, paused_until);
		return;
	}
	now = GetCurrentTimestamp();
	if (result == OUTBOX_ON_SETTLE_DONE)
		last_served = now;
	if (result == OUTBOX_ON_SETTLE_ROW_LOCKED || result == OUTBOX_ON_SETTLE_BUSY)
		outbox_on_settle_queue_add(handler_id, queue_id, now + HELD_RETRY_US);
	note_duration(queue, begin, now);
	/* A wait inside the work, for a lock or a page, may have swallowed somebody's ring. */
	SetLatch(MyLatch);
}

/* Settings of the server or of this database have changed. */
static void
reload_settings(void)
{
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	begin_work();
	StartTransactionCommand();
	outbox_apply_database_settings();
	CommitTransactionCommand();
	end_work();
	outbox_pin_settling(LOCK_TIMEOUT);
}

/* Nobody needs this worker at the moment. */
static bool
is_idle_for_good(TimestampTz now)
{
	if (number == SPARE)
		return now - last_served >= SPARE_IDLE_US;
	return outbox_on_settle_queues_are_empty() && !more && !outbox_on_settle_slot_is_wanted();
}

/* Let the statistics system know what was written, or autovacuum would never come. */
static void
report_idle(void)
{
	outbox_statistics_report(GetCurrentTimestamp(), true);
	pgstat_report_activity(STATE_IDLE, "waiting for outcomes");
}

static void
wait_until(TimestampTz until, TimestampTz now)
{
	long		ms = until <= now ? 0 : (long) Min((until - now + 999) / 1000, INT_MAX);
	int			events;

	report_idle();
	events = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION);
	if (events & WL_LATCH_SET)
	{
		ResetLatch(MyLatch);
		more = true;
	}
}

/* When to look again although nobody has asked for it. */
static TimestampTz
next_wake_up(TimestampTz now)
{
	TimestampTz when = Max(next_rescan, paused_until);

	/* The other worker may be done with its handler, which wakes nobody if it was quick. */
	if (!outbox_on_settle_queues_are_empty())
		when = Min(when, now + HELD_RETRY_US);
	if (number == SPARE)
		when = Min(when, last_served + SPARE_IDLE_US);
	return when;
}

static void
main_loop(void)
{
	last_served = GetCurrentTimestamp();
	while (!ShutdownRequestPending && !outbox_on_settle_slot_must_leave())
	{
		TimestampTz now = GetCurrentTimestamp();
		TimestampTz until = DT_NOEND;
		OutboxOnSettleQueue *queue = NULL;

		MemoryContextReset(iteration_context);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
			reload_settings();

		if (now >= paused_until)
		{
			if (now >= next_rescan)
				rescan(now);
			if (more)
				read_on();
			queue = outbox_on_settle_queue_next(outbox_on_settle_slot_other(), now, &until);
		}
		else
			until = paused_until;

		if (queue != NULL)
			serve(queue, now);
		else if (is_idle_for_good(now))
			break;
		else if (!more || now < paused_until)
		{
			wait_until(Min(until, next_wake_up(now)), now);
		}
	}
}

static bool
is_installed(void)
{
	OutboxInstallation installation;

	begin_work();
	outbox_pin_settings();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	outbox_pin_settling(LOCK_TIMEOUT);
	outbox_act_as_owner();
	outbox_installation_read(&installation);
	PopActiveSnapshot();
	CommitTransactionCommand();
	outbox_act_as_worker();
	end_work();
	return installation.installed && installation.version_matches && !installation.is_copy;
}

void
outbox_on_settle_main(Datum main_arg)
{
	Oid			dboid = DatumGetObjectId(main_arg);

	memcpy(&number, MyBgworkerEntry->bgw_extra, sizeof(number));
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	pqsignal(SIGINT, handle_sigint);
	BackgroundWorkerUnblockSignals();
	if (outbox_on_settle_slot_take(dboid, number) == NULL)
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);
	pqsignal(SIGTERM, handle_sigterm);

	iteration_context = AllocSetContextCreate(TopMemoryContext, "outbox iteration", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(iteration_context);
	outbox_on_settle_queues_init(TopMemoryContext);
	outbox_on_settle_call_init();
	if (is_installed())
		main_loop();
	outbox_on_settle_slot_leave();
	proc_exit(0);
}
