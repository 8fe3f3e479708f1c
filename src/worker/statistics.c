/*-------------------------------------------------------------------------
 *
 * statistics.c
 *		Lets the statistics system know what was written.
 *
 * See statistics.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pgstat.h"
#include "utils/timestamp.h"

#include "worker/statistics.h"

static TimestampTz last_report = 0;
static bool pending = false;

void
outbox_statistics_note(void)
{
	pending = true;
}

bool
outbox_statistics_pending(void)
{
	return pending;
}

void
outbox_statistics_report(TimestampTz now, bool idle)
{
	if (!pending || (!idle && now - last_report < USECS_PER_SEC))
		return;
	pgstat_report_stat(true);
	last_report = now;
	pending = false;
}
