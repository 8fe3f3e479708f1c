/*-------------------------------------------------------------------------
 *
 * reload.c
 *		Keeps the lanes in step with the handlers' rows.
 *
 * See reload.h.  A new lane reads everything from the beginning, so rings
 * for a handler that is not known yet need not be kept.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "compat.h"
#include "dispatch/handler_status.h"
#include "dispatch/handlers.h"
#include "dispatch/lane.h"
#include "dispatch/order.h"
#include "dispatch/pacing.h"
#include "dispatch/reading.h"
#include "dispatch/reload.h"
#include "dispatch/schedule.h"
#include "dispatch/send.h"
#include "format/request.h"
#include "shared/errand.h"
#include "table/relation.h"
#include "worker/clock.h"
#include "worker/installation.h"

/* Reading thousands of handlers again and again would take all the time: rest for a multiple of it. */
#define REST_FACTOR 5

/* When a table lock is in the way. */
#define LOCKED_RETRY_US (100 * 1000)

static bool requested = true;
static uint32 generation = 0;
static TimestampTz not_before = DT_NOBEGIN;
static bool known = false;		/* there has been one */
static bool gone = false;
static Oid	extension = InvalidOid;	/* the one that all of this is about */
static char mismatch[OUTBOX_ERROR_LEN];
static char why_copy[OUTBOX_ERROR_LEN];
static OutboxHandlerRow seen_row;	/* the one being loaded */
static TimestampTz seen_now = 0;	/* of the reload */

/* Configurations that this reload has replaced; let go of once it has committed. */
static List *retired = NIL;
static MemoryContext retired_context = NULL;

void
outbox_reload_request(void)
{
	requested = true;
}

static bool
has_moved(OutboxDatabase *db)
{
	return requested || pg_atomic_read_u32(&db->handler_generation) != generation;
}

bool
outbox_reload_is_due(OutboxDatabase *db, TimestampTz now)
{
	if (!has_moved(db) || now < not_before)
		return false;
	generation = pg_atomic_read_u32(&db->handler_generation);
	requested = true;			/* until outbox_reload() has succeeded */
	return true;
}

TimestampTz
outbox_reload_next(OutboxDatabase *db)
{
	return has_moved(db) ? not_before : DT_NOEND;
}

bool
outbox_reload_is_known(void)
{
	return known;
}

bool
outbox_reload_is_gone(void)
{
	return gone;
}

const char *
outbox_reload_mismatch(void)
{
	return mismatch[0] ? mismatch : NULL;
}

const char *
outbox_reload_why_copy(void)
{
	return why_copy[0] ? why_copy : NULL;
}

static void
retire(OutboxHandler *handler)
{
	MemoryContext oldcontext;

	if (handler == NULL)
		return;
	if (retired_context == NULL)
		retired_context = AllocSetContextCreate(TopMemoryContext, "outbox retired handlers", ALLOCSET_SMALL_SIZES);
	oldcontext = MemoryContextSwitchTo(retired_context);
	retired = lappend(retired, handler);
	MemoryContextSwitchTo(oldcontext);
}

static void
set_paused(OutboxLane *lane, bool paused)
{
	if (paused && !lane->paused)
		outbox_lane_forget_unsent(lane, NULL, NULL);
	else if (!paused && lane->paused)
	{
		lane->reads_after = 0;
		outbox_lane_reread(lane, DT_NOBEGIN);
	}
	lane->paused = paused;
}

/* Whoever resumes a handler, or leads it elsewhere, gives it a fresh start. */
static void
renew(OutboxLane *lane, int renewals)
{
	if (lane->renewals == renewals)
		return;
	lane->renewals = renewals;
	outbox_lane_renew(lane);
	outbox_lane_ready(lane);
}

static MemoryContext
see_row(void *arg, const OutboxHandlerRow *row)
{
	OutboxLane *lane = outbox_lane_find(row->id);

	if (lane == NULL)
	{
		lane = outbox_lane_create(row->id);
		lane->renewals = row->renewals;
		outbox_lane_ready(lane);
	}
	lane->seen = true;
	renew(lane, row->renewals);
	/* A pause that is still to be written has been decided already. */
	if (lane->pause_by[0] == '\0')
		set_paused(lane, row->paused);
	seen_row = *row;
	if (lane->handler != NULL && lane->handler->fingerprint == row->fingerprint)
		return NULL;
	return AllocSetContextCreate(TopMemoryContext, "outbox handler", ALLOCSET_SMALL_SIZES);
}

/* What used to block a key may not any more: have everything looked at again. */
static void
set_order(OutboxLane *lane, const OutboxHandler *handler)
{
	outbox_order_create(lane, GetMemoryChunkContext(lane));
	if (lane->handler == NULL || lane->handler->block_on_dead == handler->block_on_dead)
		return;
	outbox_order_forget_blocked(lane->order);
	outbox_lane_reread(lane, DT_NOBEGIN);
}

/* A time of the row, no later than now; 0 for NULL. */
static TimestampTz
past_time(TimestampTz wall)
{
	return wall == 0 ? 0 : Min(outbox_to_steady(wall), seen_now);
}

/*
 * Large payloads are in memory as the handler's format wants them.  If that
 * has changed, they are read anew.
 */
static void
set_form(OutboxLane *lane, const OutboxHandler *handler)
{
	if (lane->handler == NULL || lane->handler->form->embeds == handler->form->embeds)
		return;
	outbox_lane_forget_unsent(lane, NULL, NULL);
	lane->reads_after = 0;
	outbox_lane_reread(lane, DT_NOBEGIN);
}

/* What the last dispatcher knew of the handler. */
static void
restore(OutboxLane *lane, const OutboxHandler *handler)
{
	const OutboxHandlerRow *row = &seen_row;

	lane->failing.since = lane->shown_since = past_time(row->failing_since);
	/* Its attempts are counted anew. */
	if (row->recent_failures > 0)
		outbox_handler_status_changed(lane);
	if (outbox_errand_skips())
	{
		/* As if that time had passed, and it had gone well since. */
		if (row->breaker != OUTBOX_BREAKER_CLOSED || row->throttled_to > 0 || row->held_until != 0)
			outbox_handler_status_changed(lane);
		return;
	}
	if (row->breaker != OUTBOX_BREAKER_CLOSED)
		outbox_breaker_restore(&lane->breaker, &handler->breaker, row->breaker, outbox_to_steady(row->breaker_until),
							   past_time(row->down_since), row->breaker_reason, seen_now);
	outbox_throttle_restore(&lane->throttle, row->throttled_to, seen_now);
	if (row->held_until != 0)
		lane->hold_until = outbox_to_steady(row->held_until);
}

/* No wait is longer than the handler's options allow, as they are now. */
static void
limit_waits(OutboxLane *lane, const OutboxHandler *handler)
{
	const OutboxBreakerPolicy *policy = &handler->breaker;

	if (lane->hold_until <= seen_now && lane->breaker.state == OUTBOX_BREAKER_CLOSED)
		return;
	lane->hold_until = Min(lane->hold_until, seen_now + handler->retry.retry_after_max * 1000);
	if (lane->breaker.state == OUTBOX_BREAKER_OPEN)
		lane->breaker.until = Min(lane->breaker.until, seen_now + Max(policy->wait, policy->wait_max));
	if (lane->breaker.state != OUTBOX_BREAKER_CLOSED && policy->threshold == 0)
		memset(&lane->breaker, 0, sizeof(lane->breaker));
	outbox_handler_status_changed(lane);
}

static void
take_handler(void *arg, OutboxHandler *handler)
{
	OutboxLane *lane = outbox_lane_find(handler->id);

	if (lane->handler == NULL)
		restore(lane, handler);
	limit_waits(lane, handler);
	if (handler->ordered)
		set_order(lane, handler);
	set_form(lane, handler);
	retire(lane->handler);
	handler->current = true;
	lane->handler = handler;
	lane->reads_after = 0;
	outbox_rate_limit_set(&lane->rate, handler->rate_limit, handler->rate_burst);
	outbox_lane_ready(lane);
}

static void
forget_seen(OutboxLane *lane, void *arg)
{
	lane->seen = false;
}

/* Its row is gone: requests that are out may end, nothing new is sent. */
static void
drop_unseen(OutboxLane *lane, void *arg)
{
	if (lane->seen)
		return;
	outbox_lane_forget_unsent(lane, NULL, NULL);
	retire(lane->handler);
	lane->handler = NULL;
}

static void
free_if_over(OutboxLane *lane, void *arg)
{
	if (lane->seen || lane->in_flight > 0 || lane->unsettled > 0)
		return;
	outbox_lane_forget_unsent(lane, NULL, NULL);
	outbox_order_free(lane);
	outbox_handler_status_forget(lane);
	outbox_lane_unschedule(lane);
	outbox_lane_free(lane);
}

/* Nobody's lock on what is to be read may stall the dispatcher. */
static bool
lock_tables(void)
{
	static const char *const names[] = {"installation", "handler", "handler_status", "handler_secret"};

	for (int i = 0; i < lengthof(names); i++)
	{
		if (OidIsValid(outbox_relation_oid(names[i], true)) && !outbox_lock_if_free(names[i], AccessShareLock))
			return false;
	}
	return true;
}

bool
outbox_reload(TimestampTz now)
{
	OutboxInstallation installation;
	TimestampTz begin = outbox_steady_time();

	if (!lock_tables())
	{
		not_before = now + LOCKED_RETRY_US;
		return false;
	}
	outbox_installation_read(&installation);
	if (!known)
		extension = installation.extension;
	/* One that was dropped and created again has other handlers, of the same ids. */
	gone = !installation.installed || !installation.served || installation.extension != extension;
	strlcpy(mismatch, installation.problem, sizeof(mismatch));
	if (gone)
		return true;
	if (installation.is_news)
	{
		if (!outbox_lock_if_free("installation", RowExclusiveLock))
		{
			not_before = now + LOCKED_RETRY_US;
			return false;
		}
		outbox_installation_note();
	}
	strlcpy(why_copy, installation.why_copy, sizeof(why_copy));

	seen_now = now;
	outbox_lanes_each(forget_seen, NULL);
	outbox_load_handlers(see_row, take_handler, NULL);
	outbox_lanes_each(drop_unseen, NULL);

	not_before = now + (outbox_steady_time() - begin) * REST_FACTOR;
	return true;
}

void
outbox_reload_finish(void)
{
	ListCell   *lc;

	requested = false;
	known = true;
	foreach(lc, retired)
		outbox_send_retire(lfirst(lc));
	retired = NIL;
	if (retired_context)
		MemoryContextReset(retired_context);
	if (!gone)
		outbox_lanes_each(free_if_over, NULL);
}
