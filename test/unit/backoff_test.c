/*-------------------------------------------------------------------------
 *
 * backoff_test.c
 *		Pauses that grow while something keeps failing.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "worker/backoff.h"

#include "tap.h"

#define SECOND INT64CONST(1000000)

static const OutboxPauses pauses = {1 * SECOND, 5 * SECOND};
static const TimestampTz start = 1000 * SECOND;

static void
test_growth(void)
{
	OutboxBackoff backoff = {0};

	ok(outbox_backoff_is_over(&backoff, start), "nothing has failed: nothing waits");
	ok(outbox_backoff_until(&backoff) == DT_NOBEGIN, "and there is no time to wait for");
	outbox_backoff_fail(&backoff, &pauses, start);
	is_int(outbox_backoff_until(&backoff), start + 1 * SECOND, "the first pause");
	ok(!outbox_backoff_is_over(&backoff, start + SECOND - 1), "lasts as long as that");
	ok(outbox_backoff_is_over(&backoff, start + SECOND), "and is over then");
	outbox_backoff_fail(&backoff, &pauses, start);
	is_int(backoff.pause, 2 * SECOND, "the second is twice as long");
	outbox_backoff_fail(&backoff, &pauses, start);
	outbox_backoff_fail(&backoff, &pauses, start);
	outbox_backoff_fail(&backoff, &pauses, start);
	is_int(backoff.pause, 5 * SECOND, "up to the longest");
	is_int(backoff.failures, 5, "failures are counted");
	outbox_backoff_succeed(&backoff);
	ok(outbox_backoff_is_over(&backoff, start), "a success ends the wait");
	outbox_backoff_fail(&backoff, &pauses, start);
	is_int(backoff.pause, 1 * SECOND, "and the next failure is a first one");
}

static void
test_clock(void)
{
	OutboxBackoff backoff = {0};

	outbox_backoff_fail(&backoff, &pauses, start);
	ok(!outbox_backoff_is_over(&backoff, start - 500 * SECOND), "the clock was set back: it is not over at once");
	ok(outbox_backoff_is_over(&backoff, start - 499 * SECOND), "but lasts no longer than the pause");
}

static void
test_processes(void)
{
	OutboxBackoff backoff = {0};

	outbox_backoff_process_ended(&backoff, true, start, start + SECOND);
	is_int(backoff.pause, SECOND / 2, "a process that failed comes back soon");
	outbox_backoff_process_ended(&backoff, true, start, start + SECOND);
	is_int(backoff.pause, SECOND, "later when it fails again");
	outbox_backoff_process_ended(&backoff, false, start, start + SECOND);
	is_int(backoff.pause, SECOND / 2, "soon when it left of its own accord");
	for (int i = 0; i < 20; i++)
		outbox_backoff_process_ended(&backoff, true, start, start + SECOND);
	is_int(backoff.pause, 60 * SECOND, "never later than that");
	outbox_backoff_process_ended(&backoff, true, start, start + 61 * SECOND);
	is_int(backoff.pause, SECOND / 2, "one that has lived for long does not keep failing");
}

int
main(void)
{
	test_growth();
	test_clock();
	test_processes();
	return tap_done();
}
