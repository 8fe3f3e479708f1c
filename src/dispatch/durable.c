/*-------------------------------------------------------------------------
 *
 * durable.c
 *		Makes sure that what was read is durable before it is acted upon.
 *
 * See durable.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xlog.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/durable.h"
#include "table/durability.h"
#include "worker/clock.h"

/* How often the horizon moves. */
#define HORIZON_US (60 * USECS_PER_SEC)

static XLogRecPtr flush_point = InvalidXLogRecPtr;
static TransactionId safe_below = InvalidTransactionId;
static TimestampTz safe_since = 0;

/*
 * Every transaction below the snapshot's xmin has ended; once WAL is flushed
 * up to here, all of them are durable for good and need no look at the
 * commit log.  Refreshed now and then, so that what is looked up there is
 * always recent.
 */
void
outbox_durable_begin(Snapshot snapshot)
{
	TimestampTz now = outbox_steady_time();

	if (TransactionIdIsValid(safe_below) && now - safe_since < HORIZON_US)
		return;
	XLogFlush(outbox_wal_end());
	safe_below = snapshot->xmin;
	safe_since = now;
}

void
outbox_durable_note(TupleTableSlot *slot)
{
	XLogRecPtr	lsn = outbox_row_flush_point(slot, safe_below);

	if (lsn > flush_point)
		flush_point = lsn;
}

void
outbox_durable_flush(void)
{
	if (!XLogRecPtrIsInvalid(flush_point))
		XLogFlush(flush_point);
	flush_point = InvalidXLogRecPtr;
}

void
outbox_durable_forget(void)
{
	flush_point = InvalidXLogRecPtr;
}
