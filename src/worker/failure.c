/*-------------------------------------------------------------------------
 *
 * failure.c
 *		Says in the server's log why database work has failed.
 *
 * See failure.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "worker/failure.h"

/* The same failure is reported again after this time. */
#define REPORT_AGAIN_US (60 * USECS_PER_SEC)

/* What was reported, the latest of so many. */
#define REMEMBERED 8

static struct
{
	int			sqlstate;
	TimestampTz at;
}			reported[REMEMBERED];
static int	oldest = 0;

bool
outbox_failure_may_end(int sqlstate)
{
	return ERRCODE_TO_CATEGORY(sqlstate) == ERRCODE_INSUFFICIENT_RESOURCES ||
		sqlstate == ERRCODE_IO_ERROR ||
		sqlstate == ERRCODE_LOCK_NOT_AVAILABLE ||
		sqlstate == ERRCODE_T_R_DEADLOCK_DETECTED ||
		sqlstate == ERRCODE_QUERY_CANCELED;
}

/* A violated constraint comes with the row that violates it, where an answer may repeat what was sent. */
static void
emit(const ErrorData *edata)
{
	if (ERRCODE_TO_CATEGORY(edata->sqlerrcode) != ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION)
	{
		EmitErrorReport();
		return;
	}
	ereport(LOG,
			(errcode(edata->sqlerrcode),
			 errmsg("outbox could not write what it had to: %s", edata->message),
			 errdetail("The row is not shown, because an answer may be part of it.")));
}

/* Has it been reported of late?  If not, it is taken as reported now. */
static bool
is_known(int sqlstate, TimestampTz now)
{
	int			i = 0;

	while (i < REMEMBERED && reported[i].sqlstate != sqlstate)
		i++;
	if (i < REMEMBERED && now >= reported[i].at && now - reported[i].at < REPORT_AGAIN_US)
		return true;
	if (i == REMEMBERED)
	{
		i = oldest;
		oldest = (oldest + 1) % REMEMBERED;
	}
	reported[i].sqlstate = sqlstate;
	reported[i].at = now;
	return false;
}

void
outbox_failure_report(const ErrorData *edata, TimestampTz now)
{
	if (!is_known(edata->sqlerrcode, now))
		emit(edata);
}
