/*-------------------------------------------------------------------------
 *
 * zone.c
 *		PostgreSQL's time zones, for schedules.
 *
 * See zone.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "pgtime.h"

#include "schedule/zone.h"

static void
look(const void *arg, int64 at, int32 *offset, int64 *until)
{
	pg_time_t	t = at;
	pg_time_t	boundary;
	long		before = 0;
	long		after;
	int			before_is_dst;
	int			after_is_dst;

	if (pg_next_dst_boundary(&t, &before, &before_is_dst, &boundary, &after, &after_is_dst, arg) == 1)
		*until = boundary;
	else
		*until = PG_INT64_MAX;
	*offset = before;
}

void
outbox_zone_find(const char *name, OutboxZone *zone)
{
	pg_tz	   *tz = pg_tzset(name);

	if (tz == NULL || !pg_tz_acceptable(tz))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("time zone \"%s\" is not known", name),
				 errhint("The view pg_timezone_names lists the names there are, such as Europe/Berlin.")));
	zone->look = look;
	zone->arg = tz;
}
