/*-------------------------------------------------------------------------
 *
 * recurrence.c
 *		When a schedule occurs: by a cron expression or at an interval.
 *
 * See recurrence.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "schedule/recurrence.h"

/* Where the newest occurrences are looked for at first, in seconds, and by how much longer then. */
#define FIRST_WINDOW 60
#define WINDOW_GROWTH 4

/* Between PostgreSQL's epoch and that of Unix, in seconds. */
#define EPOCHS ((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * SECS_PER_DAY)

/* Whole seconds since 1970, rounded down. */
static int64
to_seconds(TimestampTz t)
{
	return t / USECS_PER_SEC - (t % USECS_PER_SEC < 0) + EPOCHS;
}

static TimestampTz
from_seconds(int64 seconds)
{
	return seconds < END_TIMESTAMP / USECS_PER_SEC + EPOCHS ? (seconds - EPOCHS) * USECS_PER_SEC : DT_NOEND;
}

static TimestampTz
interval_after(const OutboxRecurrence *recurrence, TimestampTz after)
{
	TimestampTz at = recurrence->anchor;

	if (after >= at)
		at += ((after - at) / recurrence->every + 1) * recurrence->every;
	return at < END_TIMESTAMP ? at : DT_NOEND;
}

TimestampTz
outbox_occurrence_after(const OutboxRecurrence *recurrence, TimestampTz after)
{
	if (recurrence->every > 0)
		return interval_after(recurrence, after);
	return from_seconds(outbox_cron_next(&recurrence->cron, &recurrence->zone, to_seconds(after)));
}

/* The earliest of the newest keep occurrences after a time up to another one; false if there are fewer. */
static bool
find_newest(const OutboxRecurrence *recurrence, TimestampTz after, TimestampTz until, int keep, TimestampTz *found)
{
	TimestampTz newest[OUTBOX_MOST_KEPT];
	int64		n = 0;

	for (TimestampTz at = outbox_occurrence_after(recurrence, after); at <= until; at = outbox_occurrence_after(recurrence, at))
		newest[n++ % keep] = at;
	if (n < keep)
		return false;
	*found = newest[n % keep];
	return true;
}

static TimestampTz
among_newest_of_cron(const OutboxRecurrence *recurrence, TimestampTz first, TimestampTz until, int keep, int64 *passed)
{
	TimestampTz found = first;

	/* How many there are is not known, but there are few in a window that is not much longer than one with too few. */
	for (int64 window = FIRST_WINDOW * USECS_PER_SEC; until - window >= first; window *= WINDOW_GROWTH)
	{
		if (find_newest(recurrence, until - window, until, keep, &found))
			break;
	}
	if (found == first)
		(void) find_newest(recurrence, first - 1, until, keep, &found);

	*passed = 0;
	for (TimestampTz at = first; at < found && *passed < OUTBOX_MOST_COUNTED; at = outbox_occurrence_after(recurrence, at))
		(*passed)++;
	return found;
}

TimestampTz
outbox_occurrence_among_newest(const OutboxRecurrence *recurrence, TimestampTz first, TimestampTz until,
							   int keep, int64 *passed)
{
	if (recurrence->every == 0)
		return among_newest_of_cron(recurrence, first, until, keep, passed);
	*passed = Max(0, (until - first) / recurrence->every + 1 - keep);
	return first + *passed * recurrence->every;
}
