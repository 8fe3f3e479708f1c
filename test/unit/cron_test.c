/*-------------------------------------------------------------------------
 *
 * cron_test.c
 *		Cron expressions, against a slow and obvious implementation.
 *
 * The slow one knows nothing of the fast one: it draws sets of values, writes
 * them down as an expression, and goes through years minute by minute, or
 * through days second by second, with a clock on the wall that jumps.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "schedule/cron.h"

#include "tap.h"

#define MINUTES 60
#define HOURS 3600
#define DAYS 86400

/* A zone whose clocks change at some times. */
typedef struct Change
{
	int64		at;
	int32		offset;			/* from then on */
} Change;

typedef struct TestZone
{
	const char *name;
	int32		offset;			/* at first */
	int			nchanges;
	Change		changes[12];
} TestZone;

static void
look(const void *arg, int64 at, int32 *offset, int64 *until)
{
	const TestZone *zone = arg;

	*offset = zone->offset;
	*until = PG_INT64_MAX;
	for (int i = 0; i < zone->nchanges; i++)
	{
		if (zone->changes[i].at > at)
		{
			*until = zone->changes[i].at;
			return;
		}
		*offset = zone->changes[i].offset;
	}
}

static int64
utc(int year, int month, int day, int hour, int minute)
{
	struct tm	tm = {.tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day, .tm_hour = hour, .tm_min = minute};

	return timegm(&tm);
}

static TestZone zones[10];
static int	nzones = 0;

static TestZone *
add_zone(const char *name, int32 offset)
{
	TestZone   *zone = &zones[nzones++];

	zone->name = name;
	zone->offset = offset;
	return zone;
}

static void
add_change(TestZone *zone, int64 at, int32 offset)
{
	zone->changes[zone->nchanges++] = (Change) {at, offset};
}

/* 2023 to 2025, as they were; and some that are only possible. */
static void
make_zones(void)
{
	TestZone   *zone = add_zone("UTC", 0);

	zone = add_zone("Berlin", 3600);
	for (int year = 2023; year <= 2025; year++)
	{
		add_change(zone, utc(year, 3, 31 - (5 * year / 4 + 4) % 7, 1, 0), 7200);
		add_change(zone, utc(year, 10, 31 - (5 * year / 4 + 1) % 7, 1, 0), 3600);
	}
	/* Half an hour, at 2 o'clock; backwards first. */
	zone = add_zone("Lord Howe", 39600);
	add_change(zone, utc(2023, 4, 1, 15, 0), 37800);
	add_change(zone, utc(2023, 9, 30, 15, 30), 39600);
	add_change(zone, utc(2024, 4, 6, 15, 0), 37800);
	add_change(zone, utc(2024, 10, 5, 15, 30), 39600);
	/* Forward from midnight to 1 o'clock, back from midnight to 23 o'clock. */
	zone = add_zone("Beirut", 7200);
	add_change(zone, utc(2024, 3, 30, 22, 0), 10800);
	add_change(zone, utc(2024, 10, 26, 21, 0), 7200);
	/* A day that there was not, and one that there was twice. */
	zone = add_zone("Apia", -36000);
	add_change(zone, utc(2024, 12, 30, 10, 0), -36000 + DAYS);
	add_change(zone, utc(2025, 6, 1, 10, 0), -36000);
	/* Two hours, and to a change that is not on a full hour. */
	zone = add_zone("Troll", 0);
	add_change(zone, utc(2024, 3, 31, 1, 0), 7200);
	add_change(zone, utc(2024, 10, 27, 1, 0), 0);
	add_change(zone, utc(2025, 2, 3, 4, 17), 1020);
	add_change(zone, utc(2025, 5, 3, 4, 17), -7 * MINUTES);
}

static uint64 seed = 1;

static int
draw(int n)
{
	seed = seed * UINT64CONST(6364136223846793005) + 1442695040888963407;
	return (seed >> 33) % n;
}

/* What the slow implementation knows of a rule. */
typedef struct Slow
{
	char		text[400];
	bool		second[60];
	bool		minute[60];
	bool		hour[24];
	bool		day[32];
	bool		last[31];		/* so many days before the last */
	bool		month[13];
	bool		weekday[7];
	bool		nth[7][6];		/* 1 to 5; 0: the last one */
	bool		star_hour_minute_second;
	bool		star_day;
	bool		star_weekday;
} Slow;

static void
say(Slow *slow, const char *format,...) pg_attribute_printf(2, 3);

static void
say(Slow *slow, const char *format,...)
{
	size_t		n = strlen(slow->text);
	va_list		args;

	va_start(args, format);
	vsnprintf(slow->text + n, sizeof(slow->text) - n, format, args);
	va_end(args);
}

/* Draw a field: *, a step, or a list of values and ranges.  True if it begins with *. */
static bool
draw_field(Slow *slow, bool *set, int low, int high, int star_in, const char *const *names)
{
	int			parts = 1 + draw(3);
	int			kind = draw(star_in);

	if (kind == 0)
	{
		say(slow, "*");
		for (int i = low; i <= high; i++)
			set[i] = true;
		return true;
	}
	if (kind == 1)
	{
		int			step = 1 + draw(Min(high, 20));

		say(slow, "*/%d", step);
		for (int i = low; i <= high; i += step)
			set[i] = true;
		return true;
	}
	for (int part = 0; part < parts; part++)
	{
		int			from = low + draw(high - low + 1);
		int			to = draw(2) ? from : from + draw(high - from + 1);
		int			step = to > from && draw(2) ? 1 + draw(7) : 1;

		step = Min(step, high);
		if (part > 0)
			say(slow, ",");
		if (names && draw(2))
			say(slow, "%s", names[from]);
		else
			say(slow, "%d", from);
		if (to > from)
			say(slow, "-%d", to);
		if (step > 1)
			say(slow, "/%d", step);
		for (int i = from; i <= to; i += step)
			set[i] = true;
	}
	return false;
}

static void
draw_days(Slow *slow)
{
	slow->star_day = draw_field(slow, slow->day, 1, 31, 3, NULL);
	if (!slow->star_day && draw(3) == 0)
	{
		int			before = draw(3);

		if (before == 0)
			say(slow, ",L");
		else
			say(slow, ",l-%d", before);
		slow->last[before] = true;
	}
}

static void
draw_weekdays(Slow *slow)
{
	static const char *const names[] = {"sun", "MON", "Tue", "wed", "THU", "fri", "sat"};
	int			weekday = draw(7);
	int			nth = draw(6);

	if (draw(4) > 0)
	{
		slow->star_weekday = draw_field(slow, slow->weekday, 0, 6, 2, names);
		return;
	}
	slow->star_weekday = false;
	if (nth > 0)
		say(slow, "%s#%d", names[weekday], nth);
	else
		say(slow, "%dL", weekday);
	slow->nth[weekday][nth] = true;
}

static void
draw_rule(Slow *slow, bool with_seconds)
{
	static const char *const months[] = {"", "jan", "Feb", "MAR", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"};
	bool		star = false;

	memset(slow, 0, sizeof(*slow));
	slow->second[0] = true;
	if (with_seconds)
	{
		slow->second[0] = false;
		star |= draw_field(slow, slow->second, 0, 59, 4, NULL);
		say(slow, " ");
	}
	star |= draw_field(slow, slow->minute, 0, 59, 5, NULL);
	say(slow, " ");
	star |= draw_field(slow, slow->hour, 0, 23, 4, NULL);
	say(slow, "  ");
	draw_days(slow);
	say(slow, " ");
	draw_field(slow, slow->month, 1, 12, 2, months);
	say(slow, "\t");
	draw_weekdays(slow);
	slow->star_hour_minute_second = star;
}

/* Does the clock on the wall say what the rule waits for? */
static bool
slow_matches(const Slow *slow, int64 local)
{
	static int64 last_day = -1;
	static struct tm tm;
	static int	days_in_month;
	int64		day = local / DAYS;
	int			second = local % DAYS;
	bool		by_date;
	bool		by_weekday;

	if (!slow->second[second % 60] || !slow->minute[second / 60 % 60] || !slow->hour[second / 3600])
		return false;
	if (day != last_day)
	{
		static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
		time_t		noon = day * DAYS + 12 * HOURS;

		gmtime_r(&noon, &tm);
		days_in_month = lengths[tm.tm_mon] + (tm.tm_mon == 1 && tm.tm_year % 4 == 0);
		last_day = day;
	}
	if (!slow->month[tm.tm_mon + 1])
		return false;
	by_date = slow->day[tm.tm_mday] || slow->last[days_in_month - tm.tm_mday];
	by_weekday = slow->weekday[tm.tm_wday] || slow->nth[tm.tm_wday][(tm.tm_mday + 6) / 7] ||
		(slow->nth[tm.tm_wday][0] && tm.tm_mday + 7 > days_in_month);
	if (slow->star_day || slow->star_weekday)
		return by_date && by_weekday;
	return by_date || by_weekday;
}

/*
 * What occurs at this step of the clock?  The clock on the wall shows local
 * now; it has shown everything up to shown before, and at the step before
 * it showed previous.
 */
static bool
slow_occurs(const Slow *slow, int64 local, int64 previous, int64 shown, int step)
{
	int64		jump = local - (previous + step);

	if (slow->star_hour_minute_second || jump > 3 * HOURS)
		return slow_matches(slow, local);
	/* Twice. */
	if (local <= shown && shown - local < 3 * HOURS)
		return false;
	/* Left out: made up for now. */
	for (int64 missing = previous + step; jump > 0 && missing < local; missing += step)
	{
		if (slow_matches(slow, missing))
			return true;
	}
	return slow_matches(slow, local);
}

/* Compare both over a range of time; what they first differ in goes to the log. */
static bool
agree(const Slow *slow, const OutboxCron *cron, const TestZone *test_zone, int64 from, int64 until, int step)
{
	OutboxZone	zone = {look, test_zone};
	int64		next = outbox_cron_next(cron, &zone, from - 1);
	int64		previous = 0;
	int64		shown = PG_INT64_MIN;

	for (int64 now = from - 4 * HOURS; now < until; now += step)
	{
		int32		offset;
		int64		change;
		int64		local;
		bool		occurs;

		look(test_zone, now, &offset, &change);
		local = now + offset;
		/* After a change too large for summer time everything is as new. */
		if (shown == PG_INT64_MIN || local + 3 * HOURS <= shown)
		{
			previous = local - step;
			shown = local - step;
		}
		occurs = slow_occurs(slow, local, previous, shown, step);
		previous = local;
		shown = Max(shown, local);
		if (now < from)
			continue;
		if (occurs != (now == next))
		{
			printf("# \"%s\" in %s at %lld (local %lld): %s, next is %lld\n", slow->text, test_zone->name,
				   (long long) now, (long long) local, occurs ? "occurs" : "does not occur", (long long) next);
			return false;
		}
		if (occurs)
			next = outbox_cron_next(cron, &zone, now);
	}
	return true;
}

static void
compare(int rules, bool with_seconds, int64 from, int64 until, int step)
{
	for (int z = 0; z < nzones; z++)
	{
		int			agreed = 0;

		for (int i = 0; i < rules; i++)
		{
			Slow		slow;
			OutboxCron	cron;
			OutboxCronError error;

			draw_rule(&slow, with_seconds);
			if (!outbox_cron_parse(slow.text, &cron, &error))
			{
				/* February 30 and the like. */
				if (strcmp(error.reason, "there is no such day in any year") == 0)
					agreed++;
				else
					printf("# \"%s\": %s at %d\n", slow.text, error.reason, error.position);
				continue;
			}
			agreed += agree(&slow, &cron, &zones[z], from, until, step);
		}
		is_int(agreed, rules, "%s by %s: %d rules agree", zones[z].name, step == 1 ? "seconds" : "minutes", rules);
	}
}

/* The occurrences after a time as local times, in words. */
static const char *
occurrences(const char *text, const TestZone *test_zone, int64 after, int n)
{
	static char said[1000];
	OutboxZone	zone = {look, test_zone};
	OutboxCron	cron;
	OutboxCronError error;

	if (!outbox_cron_parse(text, &cron, &error))
	{
		snprintf(said, sizeof(said), "%s at %d", error.reason, error.position);
		return said;
	}
	said[0] = '\0';
	while (n-- > 0)
	{
		int32		offset;
		int64		until;
		time_t		local;
		struct tm	tm;
		size_t		length = strlen(said);

		after = outbox_cron_next(&cron, &zone, after);
		look(test_zone, after, &offset, &until);
		local = after + offset;
		gmtime_r(&local, &tm);
		strftime(said + length, sizeof(said) - length, length > 0 ? ", %Y-%m-%d %H:%M:%S" : "%Y-%m-%d %H:%M:%S", &tm);
	}
	return said;
}

static void
test_known(void)
{
	const TestZone *none = &zones[0];
	const TestZone *berlin = &zones[1];
	int64		spring = utc(2024, 3, 30, 12, 0);
	int64		autumn = utc(2024, 10, 26, 12, 0);

	is_str(occurrences("0 0 29 2 *", none, utc(2024, 3, 1, 0, 0), 2), "2028-02-29 00:00:00, 2032-02-29 00:00:00", "leap days");
	is_str(occurrences("0 0 29 FEB *", none, utc(2096, 3, 1, 0, 0), 1), "2104-02-29 00:00:00", "2100 is no leap year");
	is_str(occurrences("0 12 L * *", none, utc(2024, 1, 31, 12, 0), 3), "2024-02-29 12:00:00, 2024-03-31 12:00:00, 2024-04-30 12:00:00", "month ends");
	is_str(occurrences("0 12 L-1 2 *", none, utc(2024, 1, 1, 0, 0), 2), "2024-02-28 12:00:00, 2025-02-27 12:00:00", "the day before");
	is_str(occurrences("0 12 31 * *", none, utc(2024, 1, 31, 12, 0), 2), "2024-03-31 12:00:00, 2024-05-31 12:00:00", "months of 31 days");
	is_str(occurrences("30 8 * * MON#2", none, utc(2024, 1, 1, 0, 0), 2), "2024-01-08 08:30:00, 2024-02-12 08:30:00", "second Mondays");
	is_str(occurrences("30 8 * * friL", none, utc(2024, 1, 1, 0, 0), 2), "2024-01-26 08:30:00, 2024-02-23 08:30:00", "last Fridays");
	is_str(occurrences("0 0 * * FRI-SUN", none, utc(2024, 1, 1, 0, 0), 4), "2024-01-05 00:00:00, 2024-01-06 00:00:00, 2024-01-07 00:00:00, 2024-01-12 00:00:00", "to Sunday");
	is_str(occurrences("0 0 13 * 5", none, utc(2024, 1, 1, 0, 0), 3), "2024-01-05 00:00:00, 2024-01-12 00:00:00, 2024-01-13 00:00:00", "one of two day fields will do");
	is_str(occurrences("0 0 */2 * 1", none, utc(2024, 1, 1, 0, 0), 2), "2024-01-15 00:00:00, 2024-01-29 00:00:00", "but not if one begins with *");
	is_str(occurrences("15 30 9 1 1 *", none, utc(2024, 1, 1, 0, 0), 1), "2024-01-01 09:30:15", "seconds come first");
	is_str(occurrences(" @Hourly ", none, utc(2024, 1, 1, 0, 30), 1), "2024-01-01 01:00:00", "a name");
	is_str(occurrences("@weekly", none, utc(2024, 1, 1, 0, 0), 1), "2024-01-07 00:00:00", "the week begins on Sunday");

	is_str(occurrences("30 2 * * *", berlin, spring, 2), "2024-03-31 03:00:00, 2024-04-01 02:30:00", "an hour that there is not: at its end");
	is_str(occurrences("15,45 2,3 * * *", berlin, spring, 3), "2024-03-31 03:00:00, 2024-03-31 03:15:00, 2024-03-31 03:45:00", "all that is left out, once");
	is_str(occurrences("*/30 2 * * *", berlin, spring, 1), "2024-04-01 02:00:00", "what goes by the clock on the wall is left out");
	is_str(occurrences("30 * * * *", berlin, utc(2024, 3, 31, 0, 0), 2), "2024-03-31 01:30:00, 2024-03-31 03:30:00", "each hour that there is");
	is_str(occurrences("30 2 * * *", berlin, autumn, 2), "2024-10-27 02:30:00, 2024-10-28 02:30:00", "an hour that comes twice: the first time");
	is_str(occurrences("30 * * * *", berlin, utc(2024, 10, 26, 23, 45), 3), "2024-10-27 02:30:00, 2024-10-27 02:30:00, 2024-10-27 03:30:00", "each hour, both of them");
	is_str(occurrences("0 0 * * *", &zones[3], utc(2024, 3, 30, 12, 0), 2), "2024-03-31 01:00:00, 2024-04-01 00:00:00", "a day without midnight");
	is_str(occurrences("30 23 * * *", &zones[3], utc(2024, 10, 26, 12, 0), 2), "2024-10-26 23:30:00, 2024-10-27 23:30:00", "23 o'clock twice");
}

static void
test_errors(void)
{
	static const struct
	{
		const char *text;
		const char *error;
	}			wrong[] = {
		{"", "it is empty at 0"},
		{"   ", "it is empty at 3"},
		{"* * * *", "the day of the week is missing: there are five fields, or six with seconds in front at 7"},
		{"* * * * * * *", "there are more than six fields at 12"},
		{"60 * * * *", "60 is no minute, which is from 0 to 59 at 0"},
		{"* 24 * * *", "24 is no hour, which is from 0 to 23 at 2"},
		{"* * 0 * *", "0 is no day of the month, which is from 1 to 31 at 4"},
		{"* * * 13 *", "13 is no month, which is from 1 to 12 at 6"},
		{"* * * * 8", "8 is no day of the week, which is from 0 to 7 at 8"},
		{"99999999999999999999 * * * *", "99999999999999999999 is no minute, which is from 0 to 59 at 0"},
		{"* * * foo *", "\"foo\" is no month at 6"},
		{"* * * january *", "a month does not go on like this at 9"},
		{"* monday * * *", "\"monday\" is no hour at 2"},
		{"5-1 * * * *", "a range ends before it begins: write it as two, with a comma at 2"},
		{"*/0 * * * *", "a step of minute is from 1 to 59 at 2"},
		{"*/60 * * * *", "a step of minute is from 1 to 59 at 2"},
		{"*/x * * * *", "a step is a number at 2"},
		{"5/10 * * * *", "a step needs * or a range before it, such as 5-59 at 1"},
		{"1,,2 * * * *", "a minute is missing at 2"},
		{"1, * * * *", "a minute is missing at 2"},
		{"-1 * * * *", "a minute is missing at 0"},
		{"1-  * * * *", "a minute is missing at 2"},
		{"? * * * *", "a minute is missing at 0"},
		{"*5 * * * *", "a minute does not go on like this at 1"},
		{"1.5 * * * *", "a minute does not go on like this at 1"},
		{"0 0 L-31 * *", "L- takes 1 to 30 days before the last one of the month at 6"},
		{"0 0 LW * *", "a day of the month does not go on like this at 5"},
		{"0 0 * * MON#6", "# takes 1 to 5, for the first to the fifth of its weekday in a month at 12"},
		{"0 0 * * L", "\"L\" is no day of the week at 8"},
		{"0 0 * * MON#2-3", "a day of the week does not go on like this at 13"},
		{"0 0 30 2 *", "there is no such day in any year at 0"},
		{"0 0 31 4,6,9,11 *", "there is no such day in any year at 0"},
		{"@reboot", "@reboot is not known: @yearly, @monthly, @weekly, @daily and @hourly are at 0"},
		{"@daily 5", "nothing may follow @daily at 7"},
		{"@", "@ is not known: @yearly, @monthly, @weekly, @daily and @hourly are at 0"},
	};

	for (int i = 0; i < lengthof(wrong); i++)
		is_str(occurrences(wrong[i].text, &zones[0], 0, 1), wrong[i].error, "refused: \"%s\"", wrong[i].text);
}

int
main(void)
{
	make_zones();
	test_known();
	test_errors();
	compare(40, false, utc(2023, 1, 1, 0, 0), utc(2025, 12, 31, 0, 0), MINUTES);
	compare(30, true, utc(2024, 10, 26, 0, 0), utc(2024, 10, 28, 0, 0), 1);
	compare(30, true, utc(2024, 3, 30, 0, 0), utc(2024, 4, 1, 0, 0), 1);
	return tap_done();
}
