/*-------------------------------------------------------------------------
 *
 * recurrence.h
 *		When a schedule occurs: by a cron expression or at an interval.
 *
 * Promises: pure, as cron.h is, but for what a timestamp is.  None of the
 * times given are infinite.
 *
 * Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RECURRENCE_H
#define OUTBOX_RECURRENCE_H

#include "datatype/timestamp.h"
#include "schedule/cron.h"

typedef struct OutboxRecurrence
{
	int64		every;			/* in microseconds; 0: by the cron expression */
	TimestampTz anchor;			/* of an interval: an occurrence, and none is before it */
	OutboxCron	cron;
	OutboxZone	zone;			/* of the cron expression */
} OutboxRecurrence;

/* The first occurrence after a time; DT_NOEND for none that a timestamp holds. */
extern TimestampTz outbox_occurrence_after(const OutboxRecurrence *recurrence, TimestampTz after);

/* So many occurrences are counted one by one. */
#define OUTBOX_MOST_COUNTED 10000

/* So many can be kept. */
#define OUTBOX_MOST_KEPT 1000

/*
 * Of the occurrences from first, which is one, up to a time not before it: the
 * earliest of the newest keep, from 1 to OUTBOX_MOST_KEPT of them.  *passed is
 * how many lie before that one, of a cron expression at most
 * OUTBOX_MOST_COUNTED of them.  Takes no longer for a first that lies years
 * back.
 */
extern TimestampTz outbox_occurrence_among_newest(const OutboxRecurrence *recurrence, TimestampTz first, TimestampTz until,
												  int keep, int64 *passed);

#endif							/* OUTBOX_RECURRENCE_H */
