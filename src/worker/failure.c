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

static int	last_sqlstate = 0;
static TimestampTz last_reported = 0;

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

void
outbox_failure_report(const ErrorData *edata, TimestampTz now)
{
	if (edata->sqlerrcode == last_sqlstate && now - last_reported < REPORT_AGAIN_US)
		return;
	last_sqlstate = edata->sqlerrcode;
	last_reported = now;
	emit(edata);
}

void
outbox_failure_forget(void)
{
	last_sqlstate = 0;
}
