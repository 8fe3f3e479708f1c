/*-------------------------------------------------------------------------
 *
 * statistics.h
 *		Lets the statistics system know what was written, or autovacuum would
 *		never come.
 *
 * Processes: the dispatchers, the on_settle workers and the settlers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_STATISTICS_H
#define OUTBOX_STATISTICS_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* A transaction has ended: there may be something to tell. */
extern void outbox_statistics_note(void);

/* Is there something that has not been told? */
extern bool outbox_statistics_pending(void);

/* Tell it: at once when idle, else once a second.  Outside of transactions. */
extern void outbox_statistics_report(TimestampTz now, bool idle);

#endif							/* OUTBOX_STATISTICS_H */
