/*-------------------------------------------------------------------------
 *
 * occurrences.c
 *		Has the schedule workers there when occurrences of schedules are due,
 *		and when retention is.
 *
 * See occurrences.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "common/query_row.h"
#include "common/session.h"
#include "dispatch/crew.h"
#include "dispatch/occurrences.h"
#include "guc.h"
#include "shared/errand.h"
#include "table/relation.h"
#include "worker/clock.h"
#include "worker/worker.h"

/* A worker is started so long before it is needed. */
#define AHEAD_US USECS_PER_SEC

/* When a table lock is in the way. */
#define LOCKED_RETRY_US USECS_PER_SEC

/*
 * What a look may take of the time, however often somebody asks for one: of
 * events that were told there may be much that vacuum cannot remove yet.
 */
#define LOOK_DUTY 20

/* When somebody lacks a background worker slot. */
#define LACKING_RETRY_US (10 * USECS_PER_SEC)

/* The two kinds of schedules, each with its worker. */
typedef struct Kind
{
	OutboxFunctionPlace place;
	TimestampTz wake_at;		/* by the wall clock: when there is something to do; DT_NOEND: never */
	TimestampTz retain_at;		/* the same of retention */
	bool		was_there;
} Kind;

static Kind kinds[2] = {
	{OUTBOX_PLACE_MESSAGES, DT_NOEND, DT_NOEND},
	{OUTBOX_PLACE_FUNCTIONS, DT_NOEND, DT_NOEND},
};

static OutboxDatabase *database = NULL;
static uint32 generation = 0;	/* of what was read last */
static bool requested = true;
static TimestampTz not_before = DT_NOBEGIN; /* a lock was in the way */
static TimestampTz rest_until = DT_NOBEGIN; /* the last look has just been */
static TimestampTz next_start = DT_NOEND;

void
outbox_occurrences_init(OutboxDatabase *db)
{
	database = db;
}

void
outbox_occurrences_request(void)
{
	requested = true;
}

/* Somebody has changed something, or asks for a look. */
static bool
look_is_wanted(void)
{
	return requested || pg_atomic_read_u32(&database->schedule_generation) != generation;
}

TimestampTz
outbox_occurrences_look_next(void)
{
	return look_is_wanted() ? Max(not_before, rest_until) : DT_NOEND;
}

static OutboxPlan look_plan = {
	.sql = "SELECT outbox_internal.next_wake(false), outbox_internal.next_wake(true), outbox_internal.next_retention(), outbox_internal.next_event()",
};

static const OutboxTableLock look_locks[] = {
	{"installation", AccessShareLock}, {"schedule", AccessShareLock}, {"schedule_status", AccessShareLock},
	{"retention_status", AccessShareLock}, {"event_queue", AccessShareLock}, {"event_rate", AccessShareLock}
};

static TimestampTz
read_time(const OutboxQueryRow *row, int column)
{
	bool		isnull;
	Datum		found = outbox_query_datum(row, column, &isnull);

	return isnull ? DT_NOEND : DatumGetTimestampTz(found);
}

bool
outbox_occurrences_look(TimestampTz now)
{
	uint32		generation_now = pg_atomic_read_u32(&database->schedule_generation);
	TimestampTz begin = outbox_steady_time();
	TimestampTz end;
	OutboxQueryRow row;

	if (!outbox_lock_all_if_free(look_locks, lengthof(look_locks)))
	{
		not_before = now + LOCKED_RETRY_US;
		return false;
	}
	SPI_connect();
	outbox_execute(&look_plan, NULL, NULL, true, 1, SPI_OK_SELECT);
	row = outbox_query_row(0);
	for (int i = 0; i < lengthof(kinds); i++)
		kinds[i].wake_at = read_time(&row, i + 1);
	/* Whoever stages messages of schedules tells events, too, and looks after retention in between. */
	kinds[0].wake_at = Min(kinds[0].wake_at, read_time(&row, lengthof(kinds) + 2));
	kinds[0].retain_at = outbox_auto_prune && !outbox_errand_runs() ? read_time(&row, lengthof(kinds) + 1) : DT_NOEND;
	SPI_finish();

	/* Workers that are there look for themselves. */
	if (generation != generation_now)
		outbox_function_slots_wake(database);
	generation = generation_now;
	requested = false;
	end = outbox_steady_time();
	not_before = DT_NOBEGIN;
	rest_until = end + (end - begin) * LOOK_DUTY;
	return true;
}

/* When it is to be started.  Retention leaves the last worker slots to others. */
static TimestampTz
start_time(const Kind *kind, TimestampTz now)
{
	TimestampTz wake = outbox_to_steady(kind->wake_at);
	TimestampTz retain = outbox_to_steady(kind->retain_at);

	if (!TIMESTAMP_NOT_FINITE(wake))
		wake -= AHEAD_US;
	if (retain <= now && outbox_workers_are_lacking(outbox_to_wall(now)))
		retain = now + LACKING_RETRY_US;
	return Max(Min(wake, retain), outbox_crew_may_start_at(kind->place));
}

static void
attend(Kind *kind, TimestampTz now)
{
	OutboxFunctionSlotView view;
	bool		is_there = outbox_crew_look(kind->place, &view, now);

	if (kind->was_there && !is_there)
	{
		/* It has moved the time on. */
		requested = true;
		kind->wake_at = DT_NOEND;
		kind->retain_at = DT_NOEND;
	}
	if (!is_there && Min(kind->wake_at, kind->retain_at) != DT_NOEND)
	{
		TimestampTz start_at = start_time(kind, now);

		if (start_at <= now)
			outbox_crew_start(kind->place, now);
		is_there = outbox_crew_is_there(kind->place);
		if (!is_there)
			next_start = Min(next_start, Max(start_at, outbox_crew_may_start_at(kind->place)));
	}
	kind->was_there = is_there;
}

void
outbox_occurrences_attend(TimestampTz now, bool allowed)
{
	next_start = DT_NOEND;
	if (outbox_crew_is_leaving())
		return;
	for (int i = 0; i < lengthof(kinds); i++)
	{
		if (allowed)
			attend(&kinds[i], now);
		else
			outbox_crew_dismiss(kinds[i].place);
	}
}

TimestampTz
outbox_occurrences_next(void)
{
	return next_start;
}

bool
outbox_occurrences_are_over(TimestampTz now)
{
	for (int i = 0; i < lengthof(kinds); i++)
	{
		if (outbox_to_steady(kinds[i].wake_at) <= now)
			return false;
	}
	/* A look that is wanted and has to rest, or to wait for a lock, says nothing yet. */
	return !look_is_wanted();
}

const char *
outbox_occurrences_problem(void)
{
	static char text[OUTBOX_ERROR_LEN];

	for (int i = 0; i < lengthof(kinds); i++)
	{
		if (!outbox_crew_lacks(kinds[i].place) || kinds[i].wake_at > GetCurrentTimestamp())
			continue;
		snprintf(text, sizeof(text),
				 "schedules are not run, as no background worker slot is free: max_worker_processes is %d, and at least %d is needed",
				 max_worker_processes, max_worker_processes + 1);
		return text;
	}
	return NULL;
}
