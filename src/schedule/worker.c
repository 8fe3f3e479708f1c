/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background worker that has occurrences of schedules take place.
 *
 * There are two of them, each for one kind of schedule: what stages a message
 * takes no time, and does not wait for functions that take theirs.  One is
 * started a little before something is to be done and leaves when nothing is
 * for a while (dispatch/occurrences.h), so that schedules need background
 * worker slots only around their occurrences.
 *
 * The one that stages messages also tells handlers that take outbox's own
 * events what has happened (events.h), and has what is past retention removed, in the
 * time that is left between two occurrences (retention.h): a batch of either
 * takes some milliseconds, so no occurrence is late for it.
 *
 * Whoever changes a schedule tells the dispatcher, which wakes the workers.
 * Functions run as those of on_settle workers do, one after the other.  One
 * that has to be ended together with its process has failed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/query_row.h"
#include "common/session.h"
#include "compat.h"
#include "schedule/events.h"
#include "schedule/retention.h"
#include "schedule/run.h"
#include "shared/errand.h"
#include "shared/function_slot.h"
#include "table/relation.h"
#include "worker/backoff.h"
#include "worker/function_worker.h"
#include "worker/work.h"
#include "worker/worker.h"

/* It leaves when there is nothing to do for so long. */
#define IDLE_US (10 * USECS_PER_SEC)

/* Somebody holds a row or a table that is needed: again after this time. */
#define LOCKED_RETRY_US (100 * 1000)

static const OutboxUserFunctionWatch watch = {
	.overran = outbox_function_slot_set_overran
};

static OutboxFunctionPlace place;
static OutboxBackoff trouble;
static TimestampTz wake_at = DT_NOBEGIN;	/* when there is something to do; DT_NOEND: never */
static bool gave_up = false;	/* the function of this transaction, which had ended a process */

/* What an occurrence touches. */
static const OutboxTableLock locks[] = {
	{"installation", AccessShareLock}, {"schedule", AccessShareLock}, {"schedule_status", RowExclusiveLock},
	{"handler", AccessShareLock}, {"message", RowExclusiveLock}, {"delivery", RowExclusiveLock}, {"receipt", RowExclusiveLock},
	{"event_queue", RowExclusiveLock}, {"event_rate", AccessShareLock}
};

static OutboxPlan wake_plan = {
	.sql = "SELECT outbox_internal.next_wake($1), CASE WHEN NOT $1 THEN outbox_internal.next_event() END",
	.nargs = 1,
	.argtypes = {BOOLOID},
};

/* A function is about to run, unless it could not be stopped before. */
static bool
begin_function(int32 schedule_id)
{
	gave_up = outbox_function_slot_has_overrun(schedule_id);
	(void) outbox_function_slot_begin(schedule_id, schedule_id);
	return !gave_up;
}

static bool
do_some(void)
{
	if (place == OUTBOX_PLACE_MESSAGES)
		return outbox_schedules_run_messages() > 0;
	return outbox_schedules_run_function(begin_function);
}

static TimestampTz
read_wake(void)
{
	Datum		values[1] = {BoolGetDatum(place == OUTBOX_PLACE_FUNCTIONS)};
	OutboxQueryRow row;
	bool		isnull;
	Datum		found;

	outbox_execute(&wake_plan, values, NULL, true, 1, SPI_OK_SELECT);
	row = outbox_query_row(0);
	found = outbox_query_datum(&row, 2, &isnull);
	outbox_events_expect(isnull ? DT_NOEND : DatumGetTimestampTz(found));
	found = outbox_query_datum(&row, 1, &isnull);
	return isnull ? DT_NOEND : DatumGetTimestampTz(found);
}

/* Do what is due, or learn when something will be. */
static bool
work(TimestampTz now)
{
	bool		did_some = false;

	outbox_work_begin(true);
	gave_up = false;
	/* Without the table the extension is being dropped, and this worker ends with its dispatcher. */
	if (!OidIsValid(outbox_relation_oid("schedule_status", true)))
		wake_at = DT_NOEND;
	else if (!outbox_lock_all_if_free(locks, lengthof(locks)))
		outbox_backoff_wait(&trouble, LOCKED_RETRY_US, now);
	else
	{
		SPI_connect();
		did_some = do_some();
		if (!did_some)
			wake_at = read_wake();
		SPI_finish();
	}
	outbox_work_commit();

	MemoryContextSwitchTo(outbox_function_worker_context());
	outbox_function_slot_end();
	outbox_user_functions_clean_up();
	if (gave_up)
		outbox_function_slot_forget_overrun();
	return did_some;
}

static bool
try_to_work(TimestampTz now)
{
	volatile bool did_some = false;

	pgstat_report_activity(STATE_RUNNING, "occurrences of schedules");
	PG_TRY();
	{
		did_some = work(now);
		if (trouble.failures > 0)
			outbox_backoff_succeed(&trouble);
	}
	PG_CATCH();
	{
		outbox_function_worker_fail(now);
		outbox_backoff_fail(&trouble, &outbox_work_pauses, GetCurrentTimestamp());
	}
	PG_END_TRY();
	return did_some;
}

static void
main_loop(void)
{
	/* Who delivers on an errand removes nothing. */
	bool		retains = place == OUTBOX_PLACE_MESSAGES && !outbox_errand_runs();

	while (!ShutdownRequestPending && !outbox_function_slot_must_leave())
	{
		TimestampTz now = GetCurrentTimestamp();
		TimestampTz until;
		TimestampTz aside_at = DT_NOEND;

		MemoryContextReset(outbox_function_worker_context());
		CHECK_FOR_INTERRUPTS();
		outbox_function_worker_settings(now);
		if (outbox_backoff_is_over(&trouble, now) && try_to_work(now))
			continue;
		if (place == OUTBOX_PLACE_MESSAGES)
			outbox_events_work(GetCurrentTimestamp());
		if (retains)
			outbox_retention_work(GetCurrentTimestamp());

		now = GetCurrentTimestamp();
		if (place == OUTBOX_PLACE_MESSAGES)
			aside_at = Min(outbox_events_next(), retains ? outbox_retention_next(now) : DT_NOEND);
		if (!outbox_backoff_is_over(&trouble, now))
			until = outbox_backoff_until(&trouble);
		else if (Min(wake_at, aside_at) > now + IDLE_US)
			break;
		else
			/* What is due and was not done is held by somebody. */
			until = wake_at > now ? wake_at : now + LOCKED_RETRY_US;
		until = Min(until, aside_at);
		(void) outbox_function_worker_wait(until, now, "waiting for occurrences");
	}
}

void
outbox_schedule_main(Datum main_arg)
{
	place = outbox_function_worker_place();
	if (outbox_function_worker_begin(DatumGetObjectId(main_arg), place, &watch))
		main_loop();
	outbox_function_worker_end();
}
