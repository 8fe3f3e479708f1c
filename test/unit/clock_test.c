/*-------------------------------------------------------------------------
 *
 * clock_test.c
 *		A clock that nobody sets, and times that go from rows and back.
 *
 * The wall clock is the test's: GetCurrentTimestamp() is defined here.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "portability/instr_time.h"
#include "utils/timestamp.h"

#include "worker/clock.h"

#include "tap.h"

#define SECOND INT64CONST(1000000)

/* Some time in 2026, and what is put upon it. */
static TimestampTz wall = INT64CONST(820000000) * SECOND;

/* So long the process is made to wait before and after the wall clock is read. */
static int	wait_before = 0;
static int	wait_after = 0;

static int64
monotonic(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return (int64) INSTR_TIME_GET_MICROSEC(now);
}

static void
wait_us(int us)
{
	int64		until = monotonic() + us;

	while (us > 0 && monotonic() < until)
		;
}

TimestampTz
GetCurrentTimestamp(void)
{
	TimestampTz now;

	wait_us(wait_before);
	now = wall + monotonic();
	wait_us(wait_after);
	return now;
}

static bool
look(int before, int after)
{
	bool		was_set;

	wait_before = before;
	wait_after = after;
	was_set = outbox_clock_look();
	wait_before = wait_after = 0;
	return was_set;
}

/* Of many looks one is not interrupted by whatever else runs on this machine. */
static void
look_well(void)
{
	for (int i = 0; i < 100; i++)
		look(0, 0);
}

static void
test_rows(void)
{
	TimestampTz row = wall + 17;
	TimestampTz steady;
	bool		was_set = false;
	bool		same = true;

	look_well();
	steady = outbox_to_steady(row);
	for (int i = 0; i < 1000; i++)
	{
		was_set |= look(i % 7 * 50, i % 5 * 50);
		same &= outbox_to_wall(steady) == row;
	}
	ok(same, "a row's time goes back as it was, whatever came between two looks at the clocks");
	ok(!was_set, "nobody has set the clock");
	is_int(outbox_to_wall(DT_NOEND), DT_NOEND, "infinity stays what it is");
	is_int(outbox_to_steady(DT_NOBEGIN), DT_NOBEGIN, "there and back");
}

static void
test_steps(int64 step)
{
	TimestampTz before = outbox_steady_time();
	TimestampTz error;

	wall += step;
	is_int(look(0, 0), Max(step, -step) > SECOND / 10, "the clock was set by %lld us", (long long) step);
	look_well();
	ok(outbox_steady_time() - before < 10 * SECOND && outbox_steady_time() >= before, "the steady one was not");
	error = outbox_to_wall(outbox_steady_time()) - GetCurrentTimestamp();
	ok(error > -SECOND / 1000 && error <= SECOND / 1000, "the wall time is known");
}

int
main(void)
{
	/* Where the process waits when both are read first, they begin apart. */
	wait_after = 200;
	outbox_steady_time();
	wait_after = 0;
	test_rows();
	test_steps(7200 * SECOND);
	test_steps(-86400 * SECOND);
	test_steps(SECOND / 20);
	test_steps(-SECOND / 20);
	return tap_done();
}
