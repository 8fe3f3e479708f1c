/*-------------------------------------------------------------------------
 *
 * rescan.c
 *		The slow look at every outstanding delivery.
 *
 * See rescan.h.  This only finds the handlers that have outstanding rows, by
 * skipping through the index; the lanes read in slices of their own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "consume/pull_sweep.h"
#include "dispatch/ahead.h"
#include "dispatch/expiry.h"
#include "dispatch/fetch.h"
#include "dispatch/reading.h"
#include "dispatch/rescan.h"
#include "guc.h"
#include "shared/counters.h"
#include "table/relation.h"

/* When a table lock is in the way. */
#define LOCKED_RETRY_US (1 * USECS_PER_SEC)

static TimestampTz last_scan = 0;	/* 0: there was none, or another one is asked for */
static TimestampTz not_before = DT_NOBEGIN; /* a lock was in the way */
static bool incomplete = false; /* something was left for the next one */

/*
 * Whoever asks has committed changes that the doorbell did not tell of, one
 * by one: what is in memory may be stale, and a slice of a running rescan may
 * have passed by.  So every lane reads again from the start.
 */
void
outbox_rescan_request(void)
{
	last_scan = 0;
	outbox_lanes_reread(DT_NOBEGIN);
}

/* Worked out anew each time, so that a changed setting counts at once. */
static TimestampTz
next_scan(void)
{
	TimestampTz next = last_scan == 0 ? DT_NOBEGIN : last_scan + outbox_rescan_interval * INT64CONST(1000);

	return Max(next, not_before);
}

bool
outbox_rescan_is_due(TimestampTz now)
{
	return outbox_rescan_next() <= now;
}

TimestampTz
outbox_rescan_next(void)
{
	return Min(next_scan(), outbox_pull_sweep_next());
}

/*
 * Deliveries of a handler that was dropped: a thousand at a time, skipping
 * what is locked.  A dropped handler keeps its row, so one without a row is
 * not known yet: a restore has come to its deliveries first.
 */
static OutboxPlan cancel_plan = {
	.sql = "SELECT outbox_internal.cancel_dropped($1, 1000)",
	.nargs = 1,
	.argtypes = {INT4OID},
};

static const OutboxTableLock cancel_locks[] = {
	{"handler", AccessShareLock}, {"delivery", RowExclusiveLock}, {"receipt", RowExclusiveLock}
};

static void
cancel_orphans(int32 handler_id)
{
	Datum		values[1] = {Int32GetDatum(handler_id)};
	bool		isnull;

	SPI_connect();
	outbox_execute(&cancel_plan, values, NULL, false, 0, SPI_OK_SELECT);
	if (DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull)) >= 1000)
		incomplete = true;
	SPI_finish();
}

/*
 * Which of these were dropped, or are of an extension that was here before.
 * What has been counted was committed, so a handler's row was, too: before
 * the snapshot that this takes.
 */
static OutboxPlan dropped_plan = {
	.sql = "SELECT c.id FROM pg_catalog.unnest($1) c (id) "
	"WHERE NOT EXISTS (SELECT FROM outbox.handler h WHERE h.id OPERATOR(pg_catalog.=) c.id AND h.dropped_at IS NULL)",
	.nargs = 1,
	.argtypes = {INT4ARRAYOID},
};

/* Handlers that were dropped make room in the counters for others. */
static void
forget_counters(void)
{
	int			max = outbox_counters_size();
	int32	   *handlers = palloc(sizeof(int32) * Max(max, 1));
	int			n = outbox_counters_handlers(handlers, max);
	Datum	   *ids = palloc(sizeof(Datum) * Max(n, 1));
	Datum		values[1];
	uint64		ndropped;

	if (n == 0 || !outbox_lock_if_free("handler", AccessShareLock))
		return;
	for (int i = 0; i < n; i++)
		ids[i] = Int32GetDatum(handlers[i]);
	values[0] = PointerGetDatum(construct_array(ids, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
	SPI_connect();
	ndropped = outbox_execute(&dropped_plan, values, NULL, false, 0, SPI_OK_SELECT);
	for (uint64 i = 0; i < ndropped; i++)
	{
		bool		isnull;

		outbox_counters_forget(DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull)));
	}
	SPI_finish();
}

static void
scan_handlers(TimestampTz now)
{
	List	   *unknown = NIL;
	ListCell   *lc;
	int32		handler_id = INT_MIN;

	if (!outbox_fetch_begin())
	{
		not_before = now + LOCKED_RETRY_US;
		return;
	}
	while (outbox_fetch_next_handler(handler_id, &handler_id))
	{
		OutboxLane *lane = outbox_lane_find(handler_id);

		if (lane != NULL && lane->handler != NULL)
			outbox_lane_rescan(lane);
		else
			unknown = lappend_int(unknown, handler_id);
		CHECK_FOR_INTERRUPTS();
	}
	outbox_fetch_end();

	incomplete = outbox_ahead_look();
	outbox_expiry_request();
	if (unknown != NIL &&
		!outbox_lock_all_if_free(cancel_locks, lengthof(cancel_locks)))
	{
		not_before = now + LOCKED_RETRY_US;
		return;
	}
	foreach(lc, unknown)
		cancel_orphans(lfirst_int(lc));
	outbox_pull_sweep_begin(unknown);
	forget_counters();
	last_scan = incomplete ? 0 : now;
}

void
outbox_rescan(TimestampTz now)
{
	if (next_scan() <= now)
		scan_handlers(now);
	if (outbox_pull_sweep_next() <= now)
		outbox_pull_sweep_slice(now);
}
