/*-------------------------------------------------------------------------
 *
 * failing.c
 *		How much of what a handler is sent fails, and since when all of it.
 *
 * Promises: see failing.h.  Pure.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "policy/failing.h"

#define MINUTE INT64CONST(60000000)

/* Forget the minutes that are over for too long. */
static void
advance(OutboxFailing *failing, int64 now)
{
	int64		minute = now / MINUTE;
	int64		passed = Min(minute - failing->minute, OUTBOX_FAILING_MINUTES);

	for (int64 i = 0; i < passed; i++)
	{
		failing->attempts[(minute - i) % OUTBOX_FAILING_MINUTES] = 0;
		failing->failures[(minute - i) % OUTBOX_FAILING_MINUTES] = 0;
	}
	failing->minute = Max(failing->minute, minute);
}

void
outbox_failing_note(OutboxFailing *failing, bool failed, int64 now)
{
	int			at;

	advance(failing, now);
	at = failing->minute % OUTBOX_FAILING_MINUTES;
	failing->attempts[at]++;
	if (!failed)
		failing->since = 0;
	else
	{
		failing->failures[at]++;
		if (failing->since == 0)
			failing->since = now;
	}
}

void
outbox_failing_count(OutboxFailing *failing, int64 now, int *attempts, int *failures)
{
	advance(failing, now);
	*attempts = *failures = 0;
	for (int i = 0; i < OUTBOX_FAILING_MINUTES; i++)
	{
		*attempts += failing->attempts[i];
		*failures += failing->failures[i];
	}
}
