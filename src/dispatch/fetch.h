/*-------------------------------------------------------------------------
 *
 * fetch.h
 *		Reads what is due, lane by lane.
 *
 * Process: the dispatcher, inside a transaction.  Rows are read with index
 * scans of our own choosing rather than with SQL: there is no plan that
 * could go wrong on a table of settled rows, and a read can be bounded by
 * the index entries it looks at, dead ones included.
 *
 * What is read becomes sendable only after outbox_fetch_flush() has made sure
 * that all of it is durable.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_FETCH_H
#define OUTBOX_FETCH_H

#include "dispatch/lane.h"

/* Prepare, once per process. */
extern void outbox_fetch_init(MemoryContext context);

/*
 * Open the tables for reading under the active snapshot.  False if somebody
 * holds a lock that conflicts: nothing is open then, try again later.
 */
extern bool outbox_fetch_begin(void);

/* Read a lane's spans and then forward from its position, as far as it has room. */
extern void outbox_fetch_lane(OutboxLane *lane, TimestampTz now);

/* Read only what follows on settled deliveries of the same key, on ordered lanes. */
extern void outbox_fetch_successors(TimestampTz now);

/* Close the tables.  To be called in the transaction, before it commits. */
extern void outbox_fetch_end(void);

/*
 * The transaction has committed: flush WAL past the commits that were read;
 * if that does not fail, queue the deliveries in their lanes, which cannot.
 */
extern void outbox_fetch_flush(void);
extern void outbox_fetch_finish(void);

/*
 * The transaction, or the flush, has failed: forget what was read and put the
 * lanes back to where they were.  If one particular delivery could not be
 * read, it is returned, not queued, else NULL.
 */
extern OutboxDelivery *outbox_fetch_abort(void);

/*
 * Handlers with outstanding deliveries, found by skipping from one to the
 * next in the index.  Starts behind after; returns false at the end.
 */
extern bool outbox_fetch_next_handler(int32 after, int32 *handler_id);

#endif							/* OUTBOX_FETCH_H */
