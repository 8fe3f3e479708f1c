/*-------------------------------------------------------------------------
 *
 * backoff.c
 *		Pauses that grow while something keeps failing.
 *
 * See backoff.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "worker/backoff.h"

const OutboxPauses outbox_work_pauses = {100 * 1000, 10 * USECS_PER_SEC};

/* For processes: the first one is short, since most failures are somebody's kill. */
static const OutboxPauses restart_pauses = {500 * 1000, 60 * USECS_PER_SEC};

/* A process that ran for so long is not one that keeps failing. */
#define HEALTHY_US (60 * USECS_PER_SEC)

void
outbox_backoff_fail(OutboxBackoff *backoff, const OutboxPauses *pauses, TimestampTz now)
{
	backoff->failures = Min(backoff->failures + 1, PG_INT32_MAX - 1);
	backoff->pause = backoff->pause == 0 ? pauses->first : Min(2 * backoff->pause, pauses->longest);
	backoff->until = now + backoff->pause;
}

void
outbox_backoff_succeed(OutboxBackoff *backoff)
{
	memset(backoff, 0, sizeof(*backoff));
}

void
outbox_backoff_wait(OutboxBackoff *backoff, int64 pause, TimestampTz now)
{
	backoff->pause = pause;
	backoff->until = now + pause;
}

void
outbox_backoff_process_ended(OutboxBackoff *backoff, bool failed, TimestampTz started, TimestampTz now)
{
	if (!failed || now - started > HEALTHY_US)
		outbox_backoff_succeed(backoff);
	outbox_backoff_fail(backoff, &restart_pauses, now);
}

bool
outbox_backoff_is_over(OutboxBackoff *backoff, TimestampTz now)
{
	if (backoff->until - now > backoff->pause)
		backoff->until = now + backoff->pause;
	return backoff->pause == 0 || now >= backoff->until;
}

TimestampTz
outbox_backoff_until(const OutboxBackoff *backoff)
{
	return backoff->pause == 0 ? DT_NOBEGIN : backoff->until;
}
