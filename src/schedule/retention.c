/*-------------------------------------------------------------------------
 *
 * retention.c
 *		Has messages that are past retention removed, a batch at a time.
 *
 * See retention.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/query_row.h"
#include "common/session.h"
#include "compat.h"
#include "guc.h"
#include "schedule/retention.h"
#include "shared/function_slot.h"
#include "table/relation.h"
#include "worker/backoff.h"
#include "worker/function_worker.h"
#include "worker/work.h"
#include "worker/worker.h"

/* The pause after a batch, in lengths of the batch: beside a dispatcher that is busy, and otherwise. */
#define BUSY_PAUSE 19
#define BEHIND_PAUSE 2

/* It has fallen behind. */
#define BEHIND_US USECS_PER_HOUR

/* However long a batch took. */
#define LONGEST_PAUSE_US (10 * USECS_PER_SEC)

/* Somebody holds a table or the status row. */
#define LOCKED_RETRY_US USECS_PER_SEC

/* Somebody lacks a worker slot, or nothing is to be done. */
#define AWAY_US (60 * USECS_PER_SEC)

static OutboxBackoff trouble;
static OutboxBackoff rest;
static TimestampTz next_at = DT_NOBEGIN;	/* DT_NOBEGIN: not known yet */

/* What a batch touches. */
static const OutboxTableLock locks[] = {
	{"installation", AccessShareLock}, {"handler", AccessShareLock}, {"tenant_retention", AccessShareLock},
	{"message", RowExclusiveLock}, {"delivery", AccessShareLock}, {"receipt", RowExclusiveLock}, {"attempt", RowExclusiveLock},
	{"inbox", RowExclusiveLock}, {"action", RowExclusiveLock}, {"dedupe_key", RowExclusiveLock},
	{"prune_position", RowExclusiveLock}, {"retention_status", RowExclusiveLock}, {"event_queue", RowExclusiveLock}
};

static OutboxPlan retain_plan = {
	.sql = "SELECT r.did_some, pg_catalog.date_part('epoch', r.behind) FROM outbox_internal.retain() r",
};

/* After the batch, whose status it is to see. */
static OutboxPlan next_plan = {
	.sql = "SELECT outbox_internal.next_retention()",
};

static OutboxPlan error_plan = {
	.sql = "SELECT outbox_internal.note_retention_error($1)",
	.nargs = 1,
	.argtypes = {TEXTOID},
};

/* What is lost of this in a crash is removed again: no need to wait for the disk. */
static void
commit_later(void)
{
	(void) set_config_option("synchronous_commit", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL, true, 0, false);
}

/* One batch.  False if there was nothing to do, or somebody is in the way. */
static bool
retain(TimestampTz now, int64 *behind)
{
	bool		did_some = false;
	OutboxQueryRow row;

	*behind = 0;
	outbox_work_begin(true);
	/* Without the table the extension is being dropped. */
	if (!OidIsValid(outbox_relation_oid("retention_status", true)))
		next_at = DT_NOEND;
	else if (!outbox_lock_all_if_free(locks, lengthof(locks)))
		next_at = now + LOCKED_RETRY_US;
	else
	{
		SPI_connect();
		commit_later();
		outbox_execute(&retain_plan, NULL, NULL, false, 1, SPI_OK_SELECT);
		row = outbox_query_row(0);
		did_some = outbox_query_bool(&row, 1);
		*behind = (int64) (outbox_query_double(&row, 2) * USECS_PER_SEC);
		outbox_execute(&next_plan, NULL, NULL, false, 1, SPI_OK_SELECT);
		row = outbox_query_row(0);
		next_at = outbox_query_int64(&row, 1);
		/* It is due and there was nothing to do: somebody else is at it. */
		if (!did_some && next_at <= now)
			next_at = now + LOCKED_RETRY_US;
		SPI_finish();
	}
	outbox_work_commit();
	return did_some;
}

/* So that the view shows it.  If that fails, too, the log has both. */
static void
note_error(const char *message, TimestampTz now)
{
	Datum		values[1] = {CStringGetTextDatum(message)};

	PG_TRY();
	{
		outbox_work_begin(true);
		if (OidIsValid(outbox_relation_oid("retention_status", true)) && outbox_lock_all_if_free(locks, lengthof(locks)))
		{
			SPI_connect();
			outbox_execute(&error_plan, values, NULL, false, 1, SPI_OK_SELECT);
			SPI_finish();
		}
		outbox_work_commit();
	}
	PG_CATCH();
	{
		(void) outbox_work_abort(outbox_function_worker_context(), now);
	}
	PG_END_TRY();
}

/* How long not to go on after a batch that took so long. */
static int64
pause_after(int64 took, int64 behind)
{
	int64		lengths = 0;

	if (outbox_function_slot_dispatcher_is_busy())
		lengths = behind > BEHIND_US ? BEHIND_PAUSE : BUSY_PAUSE;
	return Min(took * lengths, LONGEST_PAUSE_US);
}

static void
try_to_retain(TimestampTz now)
{
	int64		behind;

	pgstat_report_activity(STATE_RUNNING, "retention");
	PG_TRY();
	{
		if (retain(now, &behind))
			outbox_backoff_wait(&rest, pause_after(GetCurrentTimestamp() - now, behind), GetCurrentTimestamp());
		outbox_backoff_succeed(&trouble);
	}
	PG_CATCH();
	{
		ErrorData  *edata = outbox_work_abort(outbox_function_worker_context(), now);

		outbox_backoff_fail(&trouble, &outbox_work_pauses, GetCurrentTimestamp());
		note_error(edata->message, now);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(outbox_function_worker_context());
}

void
outbox_retention_work(TimestampTz now)
{
	if (!outbox_auto_prune || next_at > now || !outbox_backoff_is_over(&rest, now) || !outbox_backoff_is_over(&trouble, now))
		return;
	if (outbox_workers_are_lacking(now))
		next_at = now + AWAY_US;
	else
		try_to_retain(now);
}

TimestampTz
outbox_retention_next(TimestampTz now)
{
	if (!outbox_auto_prune)
		return DT_NOEND;
	return Max(next_at, Max(outbox_backoff_until(&rest), outbox_backoff_until(&trouble)));
}
