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

#include "schedule/cron.h"

/* The zone that has this name where TimeZone is set; lives as long as the process.  Raises invalid_parameter_value if there is none. */
extern void outbox_zone_find(const char *name, OutboxZone *zone);

#endif							/* OUTBOX_ZONE_H */
