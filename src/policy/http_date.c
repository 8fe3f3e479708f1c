/*-------------------------------------------------------------------------
 *
 * http_date.c
 *		The three forms of an HTTP date.
 *
 * Promises: see http_date.h.  Pure; any process.
 *
 * Names of days and months are taken in any case, and the day of the week
 * is not checked against the date: a server that gets it wrong still means
 * the date.  Everything else is as strict as the grammar.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/ascii.h"
#include "policy/http_date.h"

static const char *const month_names[] = {
	"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"
};

static const char *const day_names[] = {
	"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"
};

/* A date as it was written; month counts from 1. */
typedef struct DateParts
{
	int			year;
	int			month;
	int			day;
	int			hour;
	int			minute;
	int			second;
} DateParts;

/* Take the literal text if it is next. */
static bool
take_text(const char **pos, const char *text)
{
	size_t		len = strlen(text);

	if (!outbox_same_start(*pos, text, len))
		return false;
	*pos += len;
	return true;
}

/* Take exactly ndigits decimal digits. */
static bool
take_number(const char **pos, int ndigits, int *value)
{
	int			result = 0;

	for (int i = 0; i < ndigits; i++)
	{
		char		c = (*pos)[i];

		if (!outbox_is_digit(c))
			return false;
		result = result * 10 + (c - '0');
	}
	*pos += ndigits;
	*value = result;
	return true;
}

static bool
take_month(const char **pos, int *month)
{
	for (int i = 0; i < (int) lengthof(month_names); i++)
	{
		if (take_text(pos, month_names[i]))
		{
			*month = i + 1;
			return true;
		}
	}
	return false;
}

/* Take "hh:mm:ss"; a leap second is written 60. */
static bool
take_time(const char **pos, DateParts *date)
{
	return take_number(pos, 2, &date->hour) && date->hour <= 23 &&
		take_text(pos, ":") &&
		take_number(pos, 2, &date->minute) && date->minute <= 59 &&
		take_text(pos, ":") &&
		take_number(pos, 2, &date->second) && date->second <= 60;
}

/* The rest of "06 Nov 1994 08:49:37 GMT". */
static bool
take_fixed_form(const char *pos, DateParts *date)
{
	return take_number(&pos, 2, &date->day) && take_text(&pos, " ") &&
		take_month(&pos, &date->month) && take_text(&pos, " ") &&
		take_number(&pos, 4, &date->year) && take_text(&pos, " ") &&
		take_time(&pos, date) && take_text(&pos, " GMT") && *pos == '\0';
}

/* The rest of "06-Nov-94 08:49:37 GMT"; the year is still without its century. */
static bool
take_old_form(const char *pos, DateParts *date)
{
	return take_number(&pos, 2, &date->day) && take_text(&pos, "-") &&
		take_month(&pos, &date->month) && take_text(&pos, "-") &&
		take_number(&pos, 2, &date->year) && take_text(&pos, " ") &&
		take_time(&pos, date) && take_text(&pos, " GMT") && *pos == '\0';
}

/* The rest of "Nov  6 08:49:37 1994": a day below ten is padded with a space. */
static bool
take_c_form(const char *pos, DateParts *date)
{
	bool		day_read;

	if (!take_month(&pos, &date->month) || !take_text(&pos, " "))
		return false;
	if (*pos == ' ')
	{
		pos++;
		day_read = take_number(&pos, 1, &date->day);
	}
	else
		day_read = take_number(&pos, 2, &date->day);

	return day_read && take_text(&pos, " ") && take_time(&pos, date) &&
		take_text(&pos, " ") && take_number(&pos, 4, &date->year) && *pos == '\0';
}

static int
days_in_month(int year, int month)
{
	static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	bool		leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

	return (month == 2 && leap) ? 29 : days[month - 1];
}

/*
 * Days from 1970-01-01 to a date of the Gregorian calendar.  Years are
 * counted from March, so that the leap day is a year's last.
 */
static int64
days_since_epoch(int year, int month, int day)
{
	int64		y = month > 2 ? year : year - 1;
	int64		m = month > 2 ? month - 3 : month + 9;
	int64		day_of_year = (153 * m + 2) / 5 + day - 1;

	return y * 365 + y / 4 - y / 100 + y / 400 + day_of_year - INT64CONST(719468);
}

static int64
seconds_since_epoch(const DateParts *date)
{
	return days_since_epoch(date->year, date->month, date->day) * 86400 +
		date->hour * 3600 + date->minute * 60 + date->second;
}

/*
 * Give a two-digit year its century: the latest one that does not put it
 * more than 50 years ahead of now.
 */
static void
settle_century(DateParts *date, int64 now_s)
{
	/* A clock outside of years 1970 to 9999 is no guide; clamp it. */
	int64		days = Min(Max(now_s, 0) / 86400, INT64CONST(2932896));
	int			latest = 1970 + (int) (days * 400 / 146097) + 50;

	date->year += (latest - date->year) / 100 * 100;
}

/* Read the date with the help of one day's name; false if it does not start with it. */
static bool
read_with_day(const char *text, const char *day_name, int64 now_s, DateParts *date)
{
	char		short_name[4];
	const char *pos = text;

	if (take_text(&pos, day_name) && take_text(&pos, ", "))
	{
		if (!take_old_form(pos, date))
			return false;
		settle_century(date, now_s);
		return true;
	}

	strlcpy(short_name, day_name, sizeof(short_name));
	pos = text;
	if (!take_text(&pos, short_name))
		return false;
	if (take_text(&pos, ", "))
		return take_fixed_form(pos, date);
	return take_text(&pos, " ") && take_c_form(pos, date);
}

bool
outbox_parse_http_date(const char *text, int64 now_s, int64 *unix_seconds)
{
	DateParts	date = {0};
	bool		read = false;

	for (int i = 0; i < (int) lengthof(day_names) && !read; i++)
		read = read_with_day(text, day_names[i], now_s, &date);

	if (!read || date.year < 1 || date.day < 1 ||
		date.day > days_in_month(date.year, date.month))
		return false;

	*unix_seconds = seconds_since_epoch(&date);
	return true;
}
