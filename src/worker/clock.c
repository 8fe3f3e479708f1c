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

/* They are read one after the other: what is no more than this, and the time between, is no difference. */
#define CLOSE_US 10

static TimestampTz started_at = 0;	/* 0: nobody has looked yet */
static instr_time started;
static int64 ahead = 0;			/* of the wall clock, at the last look */

static int64
since_start(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	INSTR_TIME_SUBTRACT(now, started);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

/* Read both clocks, anew while the process was made to wait in between. */
static void
start(void)
{
	int			tries = 0;

	do
	{
		INSTR_TIME_SET_CURRENT(started);
		started_at = GetCurrentTimestamp();
	} while (since_start() > CLOSE_US / 2 && ++tries < 10);
}

TimestampTz
outbox_steady_time(void)
{
	if (started_at == 0)
		start();
	return started_at + since_start();
}

/*
 * A wall time that comes from a row is to go back there as it was, also from
 * another process.  So the difference between the clocks stays what it is
 * until it is known to be another one.
 */
bool
outbox_clock_look(void)
{
	int64		before = ahead;
	TimestampTz earliest = outbox_steady_time() - CLOSE_US;
	TimestampTz wall = GetCurrentTimestamp();
	TimestampTz latest = outbox_steady_time() + CLOSE_US;

	if (ahead < wall - latest || ahead > wall - earliest)
		ahead = wall - (earliest + (latest - earliest) / 2);
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
