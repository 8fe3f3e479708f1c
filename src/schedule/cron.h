/*-------------------------------------------------------------------------
 *
 * cron.h
 *		Cron expressions: what they say, and when they say it next.
 *
 * Promises: pure.  It knows nothing of the server, of clocks or of the
 * database of time zones: a zone is whatever answers which offset from UTC is
 * in force at a time.  Times are seconds since 1970.
 *
 * Five fields (minute, hour, day of the month, month, day of the week), or six
 * with the seconds in front, or a name such as @daily.  The days follow
 * cron's rule: if neither of the two day fields begins with *, a day that
 * suits one of them will do.
 *
 * Where the clocks change, by three hours at most, as Vixie cron does it.  A
 * rule for fixed times of the day (none of seconds, minutes and hours begins
 * with *) occurs once for each of them: what falls into time that is left out
 * occurs at the moment of the change, all of it at once, and what falls into
 * time that comes twice occurs the first time only.  Any other rule goes by
 * the clock on the wall: nothing while time is left out, and twice what comes
 * twice.  Larger changes, as of a country that crosses the date line, have
 * every rule go by the clock on the wall.
 *
 * Allocates nothing and raises nothing.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_CRON_H
#define OUTBOX_CRON_H

#include "postgres.h"

/* A parsed expression.  Sets are bitmaps: bit n stands for the value n. */
typedef struct OutboxCron
{
	uint64		seconds;
	uint64		minutes;
	uint32		hours;
	uint32		days;
	uint32		last_days;		/* bit n: n days before the last one of the month */
	uint16		months;
	uint8		weekdays;		/* bit 0: Sunday */
	uint8		nth_weekdays[7];	/* of each weekday, bit n: the one after n others of its month; OUTBOX_CRON_LAST_BIT: the last */
	bool		either_day;		/* one of the two day fields is enough */
	bool		fixed;			/* for fixed times of the day */
} OutboxCron;

#define OUTBOX_CRON_LAST_BIT 5

typedef struct OutboxCronError
{
	int			position;		/* of the first byte that is wrong, from 0 */
	char		reason[128];	/* a clause, in lower case */
} OutboxCronError;

/* False, and the error says where and why, if the text is no cron expression or one that never occurs. */
extern bool outbox_cron_parse(const char *text, OutboxCron *cron, OutboxCronError *error);

/*
 * A time zone: the offset from UTC (east is positive) that is in force at a
 * time, and the first later time from which there may be another one,
 * PG_INT64_MAX for never.
 */
typedef struct OutboxZone
{
	void		(*look) (const void *arg, int64 at, int32 *offset, int64 *until);
	const void *arg;
} OutboxZone;

#define OUTBOX_CRON_NEVER PG_INT64_MAX

/* The first occurrence after a time; OUTBOX_CRON_NEVER if there is none within a hundred years. */
extern int64 outbox_cron_next(const OutboxCron *cron, const OutboxZone *zone, int64 after);

#endif							/* OUTBOX_CRON_H */
