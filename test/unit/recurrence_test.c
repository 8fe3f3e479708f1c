/*-------------------------------------------------------------------------
 *
 * recurrence_test.c
 *		The newest of the occurrences of a schedule, against all of them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "datatype/timestamp.h"
#include "schedule/recurrence.h"

#include "tap.h"

#define SECOND USECS_PER_SEC
#define DAY USECS_PER_DAY

static void
look(const void *arg, int64 at, int32 *offset, int64 *until)
{
	*offset = 0;
	*until = PG_INT64_MAX;
}

static OutboxRecurrence
by_cron(const char *text)
{
	OutboxRecurrence recurrence = {.zone = {look, NULL}};
	OutboxCronError error;

	if (!outbox_cron_parse(text, &recurrence.cron, &error))
	{
		printf("Bail out! %s: %s\n", text, error.reason);
		exit(1);
	}
	return recurrence;
}

static OutboxRecurrence
by_interval(int64 every, int64 anchor)
{
	return (OutboxRecurrence) {.every = every, .anchor = anchor};
}

/* Go through all of them. */
static void
check(const char *name, const OutboxRecurrence *recurrence, int64 first, int64 until, int keep)
{
	static TimestampTz all[200000];
	int			n = 0;
	int			passed;
	int64		got_passed;
	int64		got;

	for (TimestampTz at = first; at <= until && n < lengthof(all); at = outbox_occurrence_after(recurrence, at))
		all[n++] = at;
	passed = Max(0, n - keep);
	got = outbox_occurrence_among_newest(recurrence, first, until, keep, &got_passed);
	ok(got == all[passed] && got_passed == (recurrence->every > 0 ? passed : Min(passed, OUTBOX_MOST_COUNTED)),
	   "%s: of %d the newest %d", name, n, keep);
}

static void
check_cron(const char *text, int64 span)
{
	OutboxRecurrence recurrence = by_cron(text);
	int64		first = outbox_occurrence_after(&recurrence, 700000000 * SECOND);

	for (int keep = 1; keep <= OUTBOX_MOST_KEPT; keep = keep * 3 + 1)
	{
		check(text, &recurrence, first, first, keep);
		check(text, &recurrence, first, first + span, keep);
		check(text, &recurrence, first, first + span + 12345678, keep);
	}
}

int
main(void)
{
	OutboxRecurrence recurrence;
	int64		passed;

	check_cron("* * * * *", 40 * DAY);
	check_cron("* * * * * *", DAY);
	check_cron("0 0 * * *", 3000 * DAY);
	check_cron("0 0 29 2 *", 12000 * DAY);
	/* Many at once, and then none for long. */
	check_cron("* * * 1 1 *", 400 * DAY);
	check_cron("* * * 1 1 *", 700 * DAY);

	recurrence = by_interval(90 * SECOND, 500 * SECOND + 5);
	is_int(outbox_occurrence_after(&recurrence, 0), 500 * SECOND + 5, "an interval begins with its anchor");
	is_int(outbox_occurrence_after(&recurrence, 500 * SECOND + 4), 500 * SECOND + 5, "just before it");
	is_int(outbox_occurrence_after(&recurrence, 500 * SECOND + 5), 590 * SECOND + 5, "and just after");
	is_int(outbox_occurrence_after(&recurrence, 591 * SECOND), 680 * SECOND + 5, "then goes on");
	check("an interval", &recurrence, 500 * SECOND + 5, 20 * DAY, 1);
	check("an interval", &recurrence, 500 * SECOND + 5, 20 * DAY, 1000);
	check("an interval", &recurrence, 590 * SECOND + 5, 600 * SECOND, 7);

	/* Over a hundred years it takes no longer: this would not end. */
	recurrence = by_cron("* * * * * *");
	is_int(outbox_occurrence_among_newest(&recurrence, 0, 36500 * DAY, 1000, &passed), 36500 * DAY - 999 * SECOND, "each second for a hundred years");
	is_int(passed, OUTBOX_MOST_COUNTED, "which are not counted one by one");
	return tap_done();
}
