/*-------------------------------------------------------------------------
 *
 * failing_test.c
 *		How much of what a handler is sent fails, and since when.
 *
 * Plain C, linked with libpgport and libpgcommon; run by "make unit-check".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "policy/failing.h"

#include "tap.h"

#define SECOND INT64CONST(1000000)
#define MINUTE (60 * SECOND)

/* A time at the beginning of a minute. */
#define START (MINUTE * 13000000)

static OutboxFailing failing;
static int	attempts;
static int	failures;

static void
count(int64 now)
{
	outbox_failing_count(&failing, now, &attempts, &failures);
}

static void
test_since(void)
{
	memset(&failing, 0, sizeof(failing));
	outbox_failing_note(&failing, false, START);
	is_int(failing.since, 0, "a success is no failure");
	outbox_failing_note(&failing, true, START + SECOND);
	outbox_failing_note(&failing, true, START + 2 * SECOND);
	is_int(failing.since, START + SECOND, "the first of the failures in a row");
	outbox_failing_note(&failing, false, START + 3 * SECOND);
	is_int(failing.since, 0, "until a success");
	outbox_failing_note(&failing, true, START + 4 * SECOND);
	is_int(failing.since, START + 4 * SECOND, "and then anew");
	count(START + 24 * 60 * MINUTE);
	is_int(failing.since, START + 4 * SECOND, "however long nothing is tried");
}

static void
test_counts(void)
{
	memset(&failing, 0, sizeof(failing));
	count(START);
	ok(attempts == 0 && failures == 0, "nothing was tried");
	for (int i = 0; i < 10; i++)
	{
		outbox_failing_note(&failing, true, START + i * MINUTE);
		outbox_failing_note(&failing, false, START + i * MINUTE + 59 * SECOND);
		count(START + i * MINUTE + 59 * SECOND);
		is_int(attempts, 2 * Min(i + 1, OUTBOX_FAILING_MINUTES), "attempts of the last minutes, %d", i);
		is_int(failures, Min(i + 1, OUTBOX_FAILING_MINUTES), "their failures");
	}
	count(START + 12 * MINUTE);
	is_int(attempts, 4, "minutes in which nothing is tried push the others out");
	count(START + 14 * MINUTE);
	is_int(attempts, 0, "until none is left");

	outbox_failing_note(&failing, true, START + 1000 * MINUTE);
	count(START + 1000 * MINUTE);
	ok(attempts == 1 && failures == 1, "after a long rest");
	outbox_failing_note(&failing, true, START);
	count(START);
	ok(attempts == 2 && failures == 2, "a clock that was set back loses nothing");
}

int
main(void)
{
	test_since();
	test_counts();
	return tap_done();
}
