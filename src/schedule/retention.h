/*-------------------------------------------------------------------------
 *
 * retention.h
 *		Has messages that are past retention removed, a batch at a time.
 *
 * What is removed is said in SQL, by outbox_internal.retain(), which shares
 * its steps with outbox.prune(); when, and how much of the time, is said here.
 *
 * Promises: each batch is a transaction of its own and takes no table lock
 * that somebody else holds.  While the dispatcher has something to do, what
 * follows a batch is a pause of many times its length; a shorter one if
 * retention has fallen far behind, for nothing is gained by a table that only
 * grows.  Nothing is done while somebody lacks a background worker slot.
 * Nothing here raises, and what fails is tried again after a growing pause.
 *
 * Process: the schedule worker that stages messages, between two occurrences.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RETENTION_H
#define OUTBOX_RETENTION_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* Do a batch, if its time has come. */
extern void outbox_retention_work(TimestampTz now);

/* When that is the next time; DT_NOEND: never. */
extern TimestampTz outbox_retention_next(TimestampTz now);

#endif							/* OUTBOX_RETENTION_H */
