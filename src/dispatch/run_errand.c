/*-------------------------------------------------------------------------
 *
 * run_errand.c
 *		When the errand of a dispatcher is over.
 *
 * See run_errand.h.  What has been staged by a function or a schedule can be
 * seen a moment before its transaction rings, so an errand that seems to be
 * over reads everything once more before it is.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/builtins.h"

#include "common/query_row.h"
#include "common/session.h"
#include "compat.h"
#include "dispatch/confirm.h"
#include "dispatch/duties.h"
#include "dispatch/hand_over.h"
#include "dispatch/life.h"
#include "dispatch/occurrences.h"
#include "dispatch/payload.h"
#include "dispatch/reading.h"
#include "dispatch/redact.h"
#include "dispatch/reload.h"
#include "dispatch/run_errand.h"
#include "dispatch/schedule.h"
#include "dispatch/send.h"
#include "dispatch/settle.h"
#include "shared/errand.h"
#include "table/relation.h"
#include "worker/settings.h"
#include "worker/work.h"

/* While schedules have something to do it is looked at so often whether they still have. */
#define OCCURRENCES_LOOK_US (20 * 1000)

/* When a table lock is in the way. */
#define LOCKED_RETRY_US (50 * 1000)

/* A worker that could not be started has been tried twice by then (crew.c). */
#define WORKER_PATIENCE_US (6 * USECS_PER_SEC)

/* Between two tries to be the only one. */
#define TURN_MS 10

/* What sessions change that cannot ring is looked for so often. */
#define UNHEARD_US USECS_PER_SEC

static bool read_again = false; /* since anything was under way */
static TimestampTz look_at = DT_NOEND;
static TimestampTz next_occurrences_look = DT_NOBEGIN;
static TimestampTz next = DT_NOEND;
static bool said = false;		/* that something is in the way */

static int	rounds = 0;			/* so often something was brought forward */
static int64 action_id = 0;		/* 0: none yet */

/* What the look that is running has found. */
static int64 brought = 0;
static char *endless = NULL;	/* what still comes back, after the last round */

void
outbox_errand_begin(void)
{
	bool		mine = false;
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, OUTBOX_ERRAND_LOCK_WORKER, 0, OUTBOX_ERRAND_LOCK_CLASS);
	outbox_pin_settings();
	while (!mine && !ShutdownRequestPending)
	{
		outbox_work_begin(false);
		/* For as long as the process lives. */
		mine = LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
		outbox_work_commit();
		if (!mine)
		{
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, TURN_MS, PG_WAIT_EXTENSION);
			ResetLatch(MyLatch);
		}
	}
}

static void
look_for_unsent(OutboxLane *lane, void *arg)
{
	TimestampTz *latest = arg;

	if (lane->handler != NULL && !lane->paused)
		*latest = Max(*latest, lane->unsent_until);
}

/* Has something that could not leave this machine to be tried again? */
static bool
is_unsent(TimestampTz now)
{
	TimestampTz latest = 0;

	outbox_lanes_each(look_for_unsent, &latest);
	return latest > now;
}

/* Schedules tell when they are to be looked at, not that what they had to do is done. */
static bool
occurrences_are_over(TimestampTz now)
{
	if (outbox_occurrences_are_over(now))
		return true;
	if (now >= next_occurrences_look)
	{
		outbox_occurrences_request();
		next_occurrences_look = now + OCCURRENCES_LOOK_US;
	}
	next = Min(next, next_occurrences_look);
	return false;
}

/* Is there anything that will have an end by itself? */
static bool
is_under_way(TimestampTz now)
{
	return outbox_send_in_flight() > 0 || outbox_redact_is_busy() || outbox_outcomes_may_be_written() || outbox_outcomes_problem() != NULL ||
		outbox_on_settle_outstanding() > 0 || outbox_confirm_next() != DT_NOEND ||
		outbox_duties_pause(now) || is_unsent(now) || !occurrences_are_over(now);
}

/* Will the loop come round by itself, because there is something to read, to write or to send? */
static bool
is_at_work(TimestampTz now)
{
	return outbox_lanes_any_ready() || outbox_lanes_any_crowded() || outbox_lanes_next_timer() <= now ||
		outbox_payloads_asked() || outbox_payloads_writing() || outbox_duties_next(now, true) <= now;
}

/* For the session, should it have no time to wait any longer. */
static void
say_what_is_in_the_way(void)
{
	const char *problem = outbox_life_problem();

	if (problem != NULL || said)
		outbox_errand_say(OUTBOX_ERRAND_UNDERWAY, problem);
	said = problem != NULL;
}

/*
 * What cannot end well need not be waited for.  A worker that is lacking is
 * tried again, as that of the dispatcher before may just be ending.
 */
static const char *
why_in_vain(TimestampTz now)
{
	static TimestampTz lacking_since = DT_NOEND;
	const char *lacking = outbox_on_settle_problem();

	if (outbox_reload_is_known() && outbox_reload_why_copy() != NULL)
		return outbox_reload_why_copy();
	if (lacking == NULL)
		lacking = outbox_occurrences_problem();
	lacking_since = lacking == NULL ? DT_NOEND : Min(lacking_since, now);
	if (lacking == NULL || now - lacking_since >= WORKER_PATIENCE_US)
		return lacking;
	next = Min(next, lacking_since + WORKER_PATIENCE_US);
	return NULL;
}

/*
 * Where the server has no memory for a doorbell nobody can tell that deliveries
 * were cancelled, erased or brought forward, or that a handler was paused or
 * changed.  A large payload that is being read is not begun anew for that.
 */
static void
look_for_unheard(TimestampTz now)
{
	static TimestampTz look_next = DT_NOBEGIN;

	if (outbox_errand_is_heard())
		return;
	if (look_next == DT_NOBEGIN)
		look_next = now + UNHEARD_US;
	if (now >= look_next)
	{
		outbox_reload_request();
		if (!outbox_payloads_asked() && !outbox_payloads_writing())
			outbox_lanes_reread(DT_NOBEGIN);
		look_next = now + UNHEARD_US;
	}
	next = Min(next, look_next);
}

void
outbox_errand_attend(TimestampTz now)
{
	const char *vain;

	next = DT_NOEND;
	if (outbox_errand_is_over() || outbox_life_is_leaving())
		return;
	look_for_unheard(now);
	say_what_is_in_the_way();
	vain = why_in_vain(now);
	if (vain != NULL)
	{
		outbox_errand_say(OUTBOX_ERRAND_FAILED, vain);
		SetLatch(MyLatch);
		return;
	}
	if (!outbox_life_sends())
		return;
	if (is_under_way(now))
	{
		read_again = false;
		return;
	}
	if (is_at_work(now) || look_at != DT_NOEND)
		return;
	if (!read_again)
	{
		read_again = true;
		outbox_lanes_reread(DT_NOBEGIN);
	}
	else if (outbox_errand_skips())
		look_at = now;
	else
		outbox_errand_say(OUTBOX_ERRAND_DONE, NULL);
	SetLatch(MyLatch);
}

TimestampTz
outbox_errand_next(void)
{
	return next;
}

TimestampTz
outbox_errand_look_next(void)
{
	return look_at;
}

static const OutboxTableLock look_locks[] = {
	{"handler", AccessShareLock}, {"handler_status", AccessShareLock}, {"delivery", RowExclusiveLock},
	{"schedule", AccessShareLock}, {"schedule_status", RowExclusiveLock}, {"action", RowExclusiveLock}
};

static OutboxPlan skip_plan = {
	.sql = "SELECT brought, action_id FROM outbox_internal.skip_ahead($1, $2, $3)",
	.nargs = 3,
	.argtypes = {BOOLOID, TEXTOID, INT8OID},
};

static OutboxPlan ahead_plan = {
	.sql = "SELECT outbox_internal.describe_ahead()",
};

static void
skip(void)
{
	Datum		values[3] = {BoolGetDatum(rounds == 0), CStringGetTextDatum(outbox_errand_caller()), Int64GetDatum(action_id)};
	char		nulls[] = {' ', ' ', action_id == 0 ? 'n' : ' '};
	OutboxQueryRow row;

	outbox_execute(&skip_plan, values, nulls, false, 1, SPI_OK_SELECT);
	row = outbox_query_row(0);
	brought = outbox_query_int64(&row, 1);
	if (brought > 0)
		action_id = outbox_query_int64(&row, 2);
}

static void
describe_what_comes_back(void)
{
	OutboxQueryRow row;

	outbox_execute(&ahead_plan, NULL, NULL, false, 1, SPI_OK_SELECT);
	row = outbox_query_row(0);
	endless = outbox_query_text(&row, 1);
	if (endless != NULL)
		endless = MemoryContextStrdup(TopMemoryContext, endless);
}

bool
outbox_errand_look(TimestampTz now)
{
	brought = 0;
	endless = NULL;
	if (!outbox_lock_all_if_free(look_locks, lengthof(look_locks)))
	{
		look_at = now + LOCKED_RETRY_US;
		return false;
	}
	SPI_connect();
	if (rounds < outbox_errand_max_rounds())
		skip();
	else
		describe_what_comes_back();
	SPI_finish();
	return true;
}

void
outbox_errand_looked(void)
{
	look_at = DT_NOEND;
	if (endless != NULL)
		outbox_errand_say(OUTBOX_ERRAND_ENDLESS, endless);
	else if (brought == 0)
		outbox_errand_say(OUTBOX_ERRAND_DONE, NULL);
	else
	{
		rounds++;
		read_again = false;
		outbox_lanes_reread(DT_NOBEGIN);
		outbox_occurrences_request();
	}
}
