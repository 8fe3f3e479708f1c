/*-------------------------------------------------------------------------
 *
 * cron.c
 *		Cron expressions: what they say, and when they say it next.
 *
 * See cron.h.  The search goes from one stretch of time with a constant
 * offset to the next.  Within a stretch it is one over local time, where days
 * have 24 hours: month by month, day by day, then within the day.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <time.h>

#include "common/ascii.h"
#include "port/pg_bitutils.h"
#include "schedule/cron.h"

#define DAY 86400
#define NO_VALUE (-1)

/* A change of the clocks by more than this is not one between summer and winter. */
#define LARGEST_SHIFT (3 * 3600)

/* Nothing that occurs at all leaves out more: February 29 on a given weekday leaves out 40 years at most. */
#define HORIZON_MONTHS (100 * 12)

typedef enum FieldKind
{
	SECOND,
	MINUTE,
	HOUR,
	DAY_OF_MONTH,
	MONTH,
	DAY_OF_WEEK,
	FIELDS
} FieldKind;

typedef struct Field
{
	const char *name;
	int			low;
	int			high;
	int			first_name;		/* the value of the first of the names */
	const char *names;			/* three letters each; NULL: it has none */
} Field;

static const Field fields[FIELDS] = {
	{"second", 0, 59, 0, NULL},
	{"minute", 0, 59, 0, NULL},
	{"hour", 0, 23, 0, NULL},
	{"day of the month", 1, 31, 0, NULL},
	{"month", 1, 12, 1, "janfebmaraprmayjunjulaugsepoctnovdec"},
	{"day of the week", 0, 7, 0, "sunmontuewedthufrisat"},
};

static const struct
{
	const char *name;
	const char *means;
}			macros[] = {
	{"@yearly", "0 0 1 1 *"},
	{"@annually", "0 0 1 1 *"},
	{"@monthly", "0 0 1 * *"},
	{"@weekly", "0 0 * * 0"},
	{"@daily", "0 0 * * *"},
	{"@midnight", "0 0 * * *"},
	{"@hourly", "0 * * * *"},
	{"@minutely", "* * * * *"},
};

typedef struct Parser
{
	const char *text;
	const char *at;
	OutboxCron *cron;
	OutboxCronError *error;
	bool		starred[FIELDS];	/* the field begins with * */
} Parser;

static bool refuse(const Parser *parser, const char *where, const char *format,...) pg_attribute_printf(3, 4);

/* Always false, for whoever refuses. */
static bool
refuse(const Parser *parser, const char *where, const char *format,...)
{
	va_list		args;

	parser->error->position = where - parser->text;
	va_start(args, format);
	vsnprintf(parser->error->reason, sizeof(parser->error->reason), format, args);
	va_end(args);
	return false;
}

static bool
is_blank(char c)
{
	return c == ' ' || c == '\t';
}

/* The end of the word that begins here, for errors that show it. */
static int
word_length(const char *at)
{
	int			n = 0;

	while (n < 20 && (outbox_is_alnum(at[n]) || at[n] == '_'))
		n++;
	return n;
}

/* A number; one that is too large for any field becomes 1000. */
static int
take_number(Parser *parser)
{
	int			value = 0;

	for (; outbox_is_digit(*parser->at); parser->at++)
		value = Min(1000, value * 10 + (*parser->at - '0'));
	return value;
}

/* A name of three letters, in any case; NO_VALUE if it is none.  An L may follow that of a weekday. */
static int
take_name(Parser *parser, const Field *field)
{
	if (field->names == NULL)
		return NO_VALUE;
	for (int i = 0; field->names[i * 3] != '\0'; i++)
	{
		int			n = 0;

		while (n < 3 && outbox_lower(parser->at[n]) == field->names[i * 3 + n])
			n++;
		if (n == 3)
		{
			parser->at += 3;
			return field->first_name + i;
		}
	}
	return NO_VALUE;
}

static bool
take_value(Parser *parser, FieldKind kind, int *value)
{
	const Field *field = &fields[kind];
	const char *begin = parser->at;

	if (outbox_is_digit(*begin))
		*value = take_number(parser);
	else
		*value = take_name(parser, field);
	if (*value == NO_VALUE && word_length(begin) > 0)
		return refuse(parser, begin, "\"%.*s\" is no %s", word_length(begin), begin, field->name);
	if (*value == NO_VALUE)
		return refuse(parser, begin, "a %s is missing", field->name);
	if (*value < field->low || *value > field->high)
		return refuse(parser, begin, "%.*s is no %s, which is from %d to %d",
					  (int) (parser->at - begin), begin, field->name, field->low, field->high);
	return true;
}

/* Put the values of a range into the set of a field. */
static void
add_values(OutboxCron *cron, FieldKind kind, int low, int high, int step)
{
	for (int value = low; value <= high; value += step)
	{
		switch (kind)
		{
			case SECOND:
				cron->seconds |= UINT64CONST(1) << value;
				break;
			case MINUTE:
				cron->minutes |= UINT64CONST(1) << value;
				break;
			case HOUR:
				cron->hours |= 1U << value;
				break;
			case DAY_OF_MONTH:
				cron->days |= 1U << value;
				break;
			case MONTH:
				cron->months |= 1U << value;
				break;
			default:
				/* Sunday is 0 and 7. */
				cron->weekdays |= 1U << (value % 7);
		}
	}
}

/* What may follow a range or *: a step. */
static bool
take_step(Parser *parser, FieldKind kind, int *step)
{
	const Field *field = &fields[kind];
	const char *begin;

	*step = 1;
	if (*parser->at != '/')
		return true;
	begin = ++parser->at;
	if (!outbox_is_digit(*begin))
		return refuse(parser, begin, "a step is a number");
	*step = take_number(parser);
	if (*step < 1 || *step > field->high)
		return refuse(parser, begin, "a step of %s is from 1 to %d", field->name, field->high);
	return true;
}

/* What follows L in the days of the month: how many days before the last one. */
static bool
take_last_day(Parser *parser)
{
	const char *begin;
	int			before = 0;

	parser->at++;
	if (*parser->at == '-')
	{
		begin = ++parser->at;
		before = outbox_is_digit(*begin) ? take_number(parser) : NO_VALUE;
		if (before < 1 || before > 30)
			return refuse(parser, begin, "L- takes 1 to 30 days before the last one of the month");
	}
	parser->cron->last_days |= 1U << before;
	return true;
}

/* A weekday's # and number, or L, if one follows. */
static bool
take_nth(Parser *parser, int weekday, bool *taken)
{
	const char *begin = parser->at;
	int			nth = OUTBOX_CRON_LAST_BIT;

	*taken = (*begin == '#' || outbox_lower(*begin) == 'l');
	if (!*taken)
		return true;
	parser->at++;
	if (*begin == '#')
	{
		begin = parser->at;
		nth = outbox_is_digit(*begin) ? take_number(parser) - 1 : NO_VALUE;
		if (nth < 0 || nth > 4)
			return refuse(parser, begin, "# takes 1 to 5, for the first to the fifth of its weekday in a month");
	}
	parser->cron->nth_weekdays[weekday % 7] |= 1U << nth;
	return true;
}

/* A value, or a range. */
static bool
take_range(Parser *parser, FieldKind kind, int *low, int *high)
{
	const char *begin = parser->at;

	*high = *low;
	if (*parser->at != '-')
		return true;
	begin = ++parser->at;
	if (!take_value(parser, kind, high))
		return false;
	/* Fridays to Sundays: as the end of a range, Sunday is the last day. */
	if (kind == DAY_OF_WEEK && *high == 0)
		*high = 7;
	if (*high < *low)
		return refuse(parser, begin, "a range ends before it begins: write it as two, with a comma");
	return true;
}

/* One part of a list. */
static bool
take_item(Parser *parser, FieldKind kind)
{
	int			low = fields[kind].low;
	int			high = fields[kind].high;
	int			step;

	if (*parser->at == '*')
		parser->at++;
	else if (kind == DAY_OF_MONTH && outbox_lower(*parser->at) == 'l')
		return take_last_day(parser);
	else
	{
		bool		taken = false;

		if (!take_value(parser, kind, &low))
			return false;
		if (kind == DAY_OF_WEEK && !take_nth(parser, low, &taken))
			return false;
		if (taken)
			return true;
		if (!take_range(parser, kind, &low, &high))
			return false;
		if (low == high && *parser->at == '/')
			return refuse(parser, parser->at, "a step needs * or a range before it, such as %d-%d", low, fields[kind].high);
	}
	if (!take_step(parser, kind, &step))
		return false;
	add_values(parser->cron, kind, low, high, step);
	return true;
}

static bool
take_field(Parser *parser, FieldKind kind)
{
	if (*parser->at == '\0')
		return refuse(parser, parser->at, "the %s is missing: there are five fields, or six with seconds in front", fields[kind].name);
	parser->starred[kind] = (*parser->at == '*');
	for (;;)
	{
		if (!take_item(parser, kind))
			return false;
		if (*parser->at != ',')
			break;
		parser->at++;
	}
	if (*parser->at != '\0' && !is_blank(*parser->at))
		return refuse(parser, parser->at, "a %s does not go on like this", fields[kind].name);
	while (is_blank(*parser->at))
		parser->at++;
	return true;
}

static int
count_fields(const char *text)
{
	int			n = 0;

	for (const char *at = text; *at != '\0'; at++)
	{
		if (!is_blank(*at) && (at == text || is_blank(at[-1])))
			n++;
	}
	return n;
}

static bool
take_fields(Parser *parser)
{
	OutboxCron *cron = parser->cron;
	FieldKind	first = count_fields(parser->at) > FIELDS - 1 ? SECOND : MINUTE;

	for (FieldKind kind = first; kind < FIELDS; kind++)
	{
		if (!take_field(parser, kind))
			return false;
	}
	if (*parser->at != '\0')
		return refuse(parser, parser->at, "there are more than six fields");
	if (first == MINUTE)
		cron->seconds = 1;
	cron->either_day = !parser->starred[DAY_OF_MONTH] && !parser->starred[DAY_OF_WEEK];
	cron->fixed = !parser->starred[SECOND] && !parser->starred[MINUTE] && !parser->starred[HOUR];
	return true;
}

/* @daily and the like, which stand alone. */
static bool
take_macro(Parser *parser)
{
	const char *begin = parser->at;
	int			length = 1 + word_length(begin + 1);

	for (const char *rest = begin + length; *rest != '\0'; rest++)
	{
		if (!is_blank(*rest))
			return refuse(parser, rest, "nothing may follow %.*s", length, begin);
	}
	for (int i = 0; i < lengthof(macros); i++)
	{
		Parser		meant = *parser;

		if (!outbox_same_word(begin, length, macros[i].name))
			continue;
		meant.at = macros[i].means;
		return take_fields(&meant);
	}
	return refuse(parser, begin, "%.*s is not known: @yearly, @monthly, @weekly, @daily and @hourly are", length, begin);
}

/* A month of the calendar. */
typedef struct Month
{
	int64		first;			/* its first day, counted from 1970-01-01 */
	int			days;
	int			weekday;		/* of the first one */
	int			number;			/* 1 to 12 */
	int			year;			/* since 1900 */
} Month;

static int64
begin_month(int year, int number, int *weekday)
{
	struct tm	tm = {.tm_year = year, .tm_mon = number - 1, .tm_mday = 1};
	time_t		begin = timegm(&tm);

	*weekday = tm.tm_wday;
	return begin / DAY;
}

static void
set_month(Month *month, int year, int number)
{
	int			ignored;

	month->year = number > 12 ? year + 1 : year;
	month->number = number > 12 ? 1 : number;
	month->first = begin_month(month->year, month->number, &month->weekday);
	month->days = begin_month(month->year, month->number + 1, &ignored) - month->first;
}

/* The month that a day is in. */
static void
find_month(Month *month, int64 day)
{
	time_t		noon = day * DAY + DAY / 2;
	struct tm	tm;

	gmtime_r(&noon, &tm);
	set_month(month, tm.tm_year, tm.tm_mon + 1);
}

/* Does the rule take this day of the month, from 1? */
static bool
takes_day(const OutboxCron *cron, const Month *month, int day)
{
	int			weekday = (month->weekday + day - 1) % 7;
	uint8		nth = cron->nth_weekdays[weekday];
	bool		by_date = (cron->days >> day & 1) || (cron->last_days >> (month->days - day) & 1);
	bool		by_weekday = (cron->weekdays >> weekday & 1) || (nth >> (day - 1) / 7 & 1) ||
		((nth >> OUTBOX_CRON_LAST_BIT & 1) && day + 7 > month->days);

	return cron->either_day ? by_date || by_weekday : by_date && by_weekday;
}

/* The lowest member of a set that is not below low; NO_VALUE for none. */
static int
lowest_from(uint64 set, int low)
{
	if (low > 63 || (set >> low) == 0)
		return NO_VALUE;
	return low + pg_rightmost_one_pos64(set >> low);
}

/* The first time of the day, in seconds, that is not before second; NO_VALUE for none. */
static int
first_time_from(const OutboxCron *cron, int second)
{
	int			h = second / 3600;
	int			m = second / 60 % 60;
	int			s = lowest_from(cron->seconds, second % 60);

	if (lowest_from(cron->hours, h) != h)
		m = s = NO_VALUE;
	else if (s == NO_VALUE || lowest_from(cron->minutes, m) != m)
	{
		s = NO_VALUE;
		m = lowest_from(cron->minutes, m + (lowest_from(cron->minutes, m) == m));
	}
	if (m == NO_VALUE)
	{
		h = lowest_from(cron->hours, h + (lowest_from(cron->hours, h) == h));
		m = lowest_from(cron->minutes, 0);
	}
	if (h == NO_VALUE)
		return NO_VALUE;
	if (s == NO_VALUE)
		s = lowest_from(cron->seconds, 0);
	return h * 3600 + m * 60 + s;
}

/* The first local time that is not before local; OUTBOX_CRON_NEVER for none. */
static int64
first_local_from(const OutboxCron *cron, int64 local)
{
	int64		day = local / DAY - (local % DAY < 0);
	int			time = first_time_from(cron, local - day * DAY);
	Month		month;

	if (time == NO_VALUE)
	{
		day++;
		time = first_time_from(cron, 0);
	}
	find_month(&month, day);
	for (int n = 0; n < HORIZON_MONTHS; n++)
	{
		bool		taken = cron->months >> month.number & 1;

		for (int d = day - month.first + 1; taken && d <= month.days; d++)
		{
			if (takes_day(cron, &month, d))
				return (month.first + d - 1) * DAY + (month.first + d - 1 == day ? time : first_time_from(cron, 0));
		}
		day = month.first + month.days;
		time = first_time_from(cron, 0);
		set_month(&month, month.year, month.number + 1);
	}
	return OUTBOX_CRON_NEVER;
}

bool
outbox_cron_parse(const char *text, OutboxCron *cron, OutboxCronError *error)
{
	Parser		parser = {.text = text, .at = text, .cron = cron, .error = error};

	memset(cron, 0, sizeof(*cron));
	while (is_blank(*parser.at))
		parser.at++;
	if (*parser.at == '\0')
		return refuse(&parser, parser.at, "it is empty");
	if (!(*parser.at == '@' ? take_macro(&parser) : take_fields(&parser)))
		return false;
	if (first_local_from(cron, 0) == OUTBOX_CRON_NEVER)
		return refuse(&parser, text, "there is no such day in any year");
	return true;
}

/* A stretch of time with one offset. */
typedef struct Stretch
{
	int64		begin;
	int64		end;			/* the first second that is not of it */
	int32		offset;
	int32		offset_before;	/* of the stretch before it */
} Stretch;

static void
go_on(const OutboxZone *zone, Stretch *stretch)
{
	int64		begin = stretch->end;
	int32		before = stretch->offset;

	zone->look(zone->arg, begin, &stretch->offset, &stretch->end);
	stretch->begin = begin;
	stretch->offset_before = before;
}

/* The stretch that a time is in, with what is known of the change before it if that was not long ago. */
static void
find_stretch(const OutboxZone *zone, int64 at, Stretch *stretch)
{
	stretch->begin = at - LARGEST_SHIFT;
	zone->look(zone->arg, stretch->begin, &stretch->offset, &stretch->end);
	stretch->offset_before = stretch->offset;
	while (stretch->end <= at)
		go_on(zone, stretch);
}

/* By how much the clocks were set forward when the stretch began, as far as fixed times care. */
static int32
shift(const OutboxCron *cron, const Stretch *stretch)
{
	int32		by = stretch->offset - stretch->offset_before;

	return cron->fixed && by >= -LARGEST_SHIFT && by <= LARGEST_SHIFT ? by : 0;
}

/* Is there a fixed time among those that were left out when the stretch began? */
static bool
makes_up(const OutboxCron *cron, const Stretch *stretch)
{
	return shift(cron, stretch) > 0 &&
		first_local_from(cron, stretch->begin + stretch->offset_before) < stretch->begin + stretch->offset;
}

int64
outbox_cron_next(const OutboxCron *cron, const OutboxZone *zone, int64 after)
{
	int64		from = after + 1;
	Stretch		stretch;

	find_stretch(zone, from, &stretch);
	for (;;)
	{
		int64		local = from + stretch.offset;
		int64		found;

		if (from == stretch.begin && makes_up(cron, &stretch))
			return from;
		/* What has been once before the clocks were set back. */
		if (shift(cron, &stretch) < 0)
			local = Max(local, stretch.begin + stretch.offset_before);
		found = first_local_from(cron, local);
		if (found == OUTBOX_CRON_NEVER)
			return OUTBOX_CRON_NEVER;
		if (found - stretch.offset < stretch.end)
			return found - stretch.offset;
		from = stretch.end;
		go_on(zone, &stretch);
	}
}
