/*-------------------------------------------------------------------------
 *
 * confirm.c
 *		Settlements that a standby has yet to confirm.
 *
 * See confirm.h.  What a standby has confirmed is in shared memory, whether
 * or not anybody waits for it; nobody is woken for it, so it is looked up at
 * intervals that grow while it does not move.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/ilist.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/lwlock.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/confirm.h"
#include "dispatch/schedule.h"
#include "worker/clock.h"
#include "guc.h"

/* Between two looks, from the first one to those while a standby is away. */
#define FIRST_LOOK_US (5 * 1000)
#define MAX_LOOK_US (1000 * 1000)

/* That a standby is awaited is said after this time, once until one confirms something again. */
#define SAY_AFTER_US (3 * USECS_PER_SEC)

/* One lane's part of what has been settled up to a place in the WAL. */
typedef struct Awaited
{
	dlist_node	link;
	XLogRecPtr	at;
	int32		handler_id;
	int			n;
} Awaited;

/* In the order of their places. */
static dlist_head awaited = DLIST_STATIC_INIT(awaited);
static TimestampTz next_look = DT_NOEND;
static int64 pause_us = FIRST_LOOK_US;
static TimestampTz silent_since = 0;	/* when something was confirmed last, or the first began to wait */
static bool said = false;

static bool
is_wanted(void)
{
	return outbox_settle_synchronous_commit > SYNCHRONOUS_COMMIT_LOCAL_FLUSH &&
		max_wal_senders > 0 && SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0';
}

static XLogRecPtr
confirmed_up_to(void)
{
	int			mode = outbox_settle_synchronous_commit == SYNCHRONOUS_COMMIT_REMOTE_WRITE ?
		SYNC_REP_WAIT_WRITE : SYNC_REP_WAIT_FLUSH;
	XLogRecPtr	at;

	LWLockAcquire(SyncRepLock, LW_SHARED);
	at = WalSndCtl->lsn[mode];
	LWLockRelease(SyncRepLock);
	return at;
}

static void
let_go(OutboxLane *lane, int n)
{
	lane->unsettled -= n;
	outbox_lane_ready(lane);
}

/* False: out of memory. */
static bool
await(OutboxLane *lane, int n)
{
	XLogRecPtr	at = outbox_wal_flushed();
	Awaited    *entry;

	if (!dlist_is_empty(&awaited))
	{
		entry = dlist_tail_element(Awaited, link, &awaited);
		if (entry->at == at && entry->handler_id == lane->handler_id)
		{
			entry->n += n;
			return true;
		}
	}
	entry = MemoryContextAllocExtended(TopMemoryContext, sizeof(Awaited), MCXT_ALLOC_NO_OOM);
	if (entry == NULL)
		return false;
	entry->at = at;
	entry->handler_id = lane->handler_id;
	entry->n = n;
	dlist_push_tail(&awaited, &entry->link);
	return true;
}

void
outbox_confirm_settled(OutboxLane *lane, int n)
{
	if (!is_wanted() || !await(lane, n))
	{
		let_go(lane, n);
		return;
	}
	if (next_look == DT_NOEND)
	{
		pause_us = FIRST_LOOK_US;
		silent_since = outbox_steady_time();
		next_look = silent_since + pause_us;
	}
}

static void
say_if_long(TimestampTz now)
{
	if (said || now - silent_since < SAY_AFTER_US)
		return;
	said = true;
	ereport(WARNING,
			(errmsg("no synchronous standby confirms what outbox has settled"),
			 errdetail("Handlers stop when too many of their answers have not been confirmed."),
			 errhint("Bring a standby back, or change synchronous_standby_names or outbox.settle_synchronous_commit.")));
}

/* Forget those that end at or before that place; were there any? */
static bool
let_go_up_to(XLogRecPtr confirmed)
{
	bool		any = false;

	while (!dlist_is_empty(&awaited))
	{
		Awaited    *entry = dlist_head_element(Awaited, link, &awaited);
		OutboxLane *lane;

		if (entry->at > confirmed)
			break;
		lane = outbox_lane_find(entry->handler_id);
		if (lane != NULL)
			let_go(lane, entry->n);
		dlist_delete(&entry->link);
		pfree(entry);
		any = true;
	}
	return any;
}

void
outbox_confirm_look(TimestampTz now)
{
	if (now < next_look)
		return;
	if (let_go_up_to(is_wanted() ? confirmed_up_to() : PG_UINT64_MAX))
	{
		pause_us = FIRST_LOOK_US;
		silent_since = now;
		said = false;
	}
	else
	{
		pause_us = Min(2 * pause_us, MAX_LOOK_US);
		say_if_long(now);
	}
	next_look = dlist_is_empty(&awaited) ? DT_NOEND : now + pause_us;
}

TimestampTz
outbox_confirm_next(void)
{
	return next_look;
}
