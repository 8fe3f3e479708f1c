/*-------------------------------------------------------------------------
 *
 * clock.c
 *		A clock that nobody sets.
 *
 * See clock.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "portability/instr_time.h"
#include "utils/timestamp.h"

#include "worker/clock.h"

/* The clocks run apart by less than this by themselves, between two looks. */
#define STEP_US (100 * 1000)

static TimestampTz started_at = 0;	/* 0: nobody has looked yet */
static instr_time started;
static int64 ahead = 0;			/* of the wall clock, at the last look */

TimestampTz
outbox_steady_time(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	if (started_at == 0)
	{
		started_at = GetCurrentTimestamp();
		started = now;
	}
	INSTR_TIME_SUBTRACT(now, started);
	return started_at + (TimestampTz) INSTR_TIME_GET_MICROSEC(now);
}

bool
outbox_clock_look(void)
{
	int64		before = ahead;

	ahead = -outbox_steady_time();
	ahead += GetCurrentTimestamp();
	return Max(ahead - before, before - ahead) > STEP_US;
}

TimestampTz
outbox_to_wall(TimestampTz steady)
{
	return TIMESTAMP_NOT_FINITE(steady) ? steady : steady + ahead;
}

TimestampTz
outbox_to_steady(TimestampTz wall)
{
	return TIMESTAMP_NOT_FINITE(wall) ? wall : wall - ahead;
}
