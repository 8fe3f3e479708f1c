/*-------------------------------------------------------------------------
 *
 * zone.h
 *		PostgreSQL's time zones, for schedules.
 *
 * The changes of a zone's clocks come from the server's own code and its own
 * database of time zones, so a schedule and SQL never disagree about the time.
 *
 * Process: any that is connected to a database.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ZONE_H
#define OUTBOX_ZONE_H

#include "datatype/timestamp.h"
#include "schedule/cron.h"

/* The zone that has this name where TimeZone is set; lives as long as the process.  Raises invalid_parameter_value if there is none. */
extern void outbox_zone_find(const char *name, OutboxZone *zone);

/* Whole seconds since 1970, rounded down, and back: false for a time that no timestamp holds, or for never. */
extern int64 outbox_unix_seconds(TimestampTz t);
extern bool outbox_from_unix_seconds(int64 seconds, TimestampTz *t);

#endif							/* OUTBOX_ZONE_H */
