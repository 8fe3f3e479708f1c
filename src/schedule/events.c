/*-------------------------------------------------------------------------
 *
 * events.c
 *		Tells handlers that take outbox's own events what has happened.
 *
 * See events.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "pgstat.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "schedule/events.h"
#include "schedule/run.h"
#include "table/relation.h"
#include "worker/backoff.h"
#include "worker/function_worker.h"
#include "worker/work.h"

/* Somebody holds a table, or is at it already. */
#define LOCKED_RETRY_US (100 * 1000)

static OutboxBackoff trouble;
static TimestampTz next_at = DT_NOEND;

/* What a batch touches. */
static const OutboxTableLock locks[] = {
	{"handler", AccessShareLock}, {"schedule", AccessShareLock}, {"message", RowExclusiveLock}, {"delivery", RowExclusiveLock},
	{"event_queue", RowExclusiveLock}, {"event_rate", RowExclusiveLock}
};

void
outbox_events_expect(TimestampTz at)
{
	next_at = at;
}

/* When nothing is told, the worker looks for itself when there will be something. */
static void
tell(TimestampTz now)
{
	outbox_work_begin(true);
	next_at = now + LOCKED_RETRY_US;
	/* Without the table the extension is being dropped. */
	if (!OidIsValid(outbox_relation_oid("event_queue", true)))
		next_at = DT_NOEND;
	else if (outbox_lock_all_if_free(locks, lengthof(locks)))
	{
		SPI_connect();
		if (outbox_schedules_tell_events())
			next_at = now;
		SPI_finish();
	}
	outbox_work_commit();
}

void
outbox_events_work(TimestampTz now)
{
	if (next_at > now || !outbox_backoff_is_over(&trouble, now))
		return;
	pgstat_report_activity(STATE_RUNNING, "events for handlers");
	PG_TRY();
	{
		tell(now);
		outbox_backoff_succeed(&trouble);
	}
	PG_CATCH();
	{
		(void) outbox_work_abort(outbox_function_worker_context(), now);
		outbox_backoff_fail(&trouble, &outbox_work_pauses, GetCurrentTimestamp());
	}
	PG_END_TRY();
	MemoryContextSwitchTo(outbox_function_worker_context());
}

TimestampTz
outbox_events_next(void)
{
	return next_at == DT_NOEND ? DT_NOEND : Max(next_at, outbox_backoff_until(&trouble));
}
