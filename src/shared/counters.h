/*-------------------------------------------------------------------------
 *
 * counters.h
 *		What has happened so far, in numbers: for each handler, and for each
 *		database's dispatcher.
 *
 * A table of fixed size in shared memory, one entry for each handler of any
 * database that something has been counted of (outbox.max_stat_handlers), and
 * one for each dispatcher.  Numbers only ever grow, until somebody resets them.
 * They survive a restart of the server (counters_file.c) and no crash.  What
 * finds no room is not counted, and that is.
 *
 * Whatever takes part in a transaction is noted while that runs and counted
 * when it commits (counting.h); what is true whether or not anything commits is
 * counted here, at once: a request was sent, an answer came.
 *
 * Counting is an atomic addition to a word of the entry, and may be done by
 * any process at any time; it never fails, waits or allocates.  Whoever counts
 * while an entry changes hands may add to the new owner's numbers.
 *
 * Process: any.  Without shared memory nothing is counted.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_COUNTERS_H
#define OUTBOX_COUNTERS_H

#include "outbox.h"

#include "port/atomics.h"
#include "storage/spin.h"

/* Times are sorted into buckets by these upper bounds, and one for what lies above. */
#define OUTBOX_HISTOGRAM_BOUNDS 25
#define OUTBOX_BUCKETS (OUTBOX_HISTOGRAM_BOUNDS + 1)
extern const int64 outbox_histogram_bounds[OUTBOX_HISTOGRAM_BOUNDS];	/* microseconds */

typedef enum OutboxHistogram
{
	OUTBOX_TIME_REQUEST,		/* from sending a request to its end */
	OUTBOX_TIME_DELIVERY,		/* from a commit to the answer that delivered */
	OUTBOX_TIME_WAKE_UP,		/* from a commit to the dispatcher that hears of it */
	OUTBOX_HISTOGRAMS
} OutboxHistogram;

/*
 * What is counted of a handler.  The first ones are written by backends, and
 * lie apart from those of the dispatcher, which has many.
 */
typedef enum OutboxCounter
{
	OUTBOX_COUNT_STAGED,		/* deliveries, routed again included */
	OUTBOX_COUNT_REQUEUED,		/* settled ones brought back */
	OUTBOX_COUNT_CONSUMED,		/* attempts of consumers: that completed, */
	OUTBOX_COUNT_REFUSED,		/* that ended in retry() or fail(), */
	OUTBOX_COUNT_LEASE_EXPIRED, /* that ran out of time */
	OUTBOX_COUNT_EXPIRED,		/* given up for their age, beside the state that they end in */
	OUTBOX_COUNT_SPARE_1,
	OUTBOX_COUNT_SPARE_2,

	OUTBOX_COUNT_DELIVERED,		/* transitions of deliveries */
	OUTBOX_COUNT_RETRIED,
	OUTBOX_COUNT_DEAD,
	OUTBOX_COUNT_CANCELLED,
	OUTBOX_COUNT_2XX,			/* attempts at pushing, by what came back */
	OUTBOX_COUNT_3XX,
	OUTBOX_COUNT_4XX,
	OUTBOX_COUNT_5XX,
	OUTBOX_COUNT_TIMEOUT,
	OUTBOX_COUNT_CONNECT,		/* names and connections */
	OUTBOX_COUNT_TLS,
	OUTBOX_COUNT_BLOCKED,
	OUTBOX_COUNT_OTHER,
	OUTBOX_COUNT_BYTES,			/* of bodies that were sent */

	OUTBOX_COUNT_TIMES,			/* for each OutboxHistogram: a sum in microseconds, then its buckets */
	OUTBOX_COUNTERS = OUTBOX_COUNT_TIMES + OUTBOX_HISTOGRAMS * (1 + OUTBOX_BUCKETS)
} OutboxCounter;

/* What is counted of a dispatcher, in an entry of the same kind. */
typedef enum OutboxDispatcherCounter
{
	OUTBOX_DISPATCHER_COUNT_UNCOUNTED,	/* what found no room, of any handler of the database */
	OUTBOX_DISPATCHER_COUNT_STARTS = OUTBOX_COUNT_DELIVERED,	/* written by backends up to there, by the dispatcher from there on */
	OUTBOX_DISPATCHER_COUNT_TURNS,	/* of its loop */
	OUTBOX_DISPATCHER_COUNT_BUSY_US,
	OUTBOX_DISPATCHER_COUNT_WAITING_US,
	OUTBOX_DISPATCHER_COUNT_TRANSACTIONS,
	OUTBOX_DISPATCHER_COUNT_FAILURES,	/* transactions that failed */
	OUTBOX_DISPATCHER_COUNT_READ,	/* deliveries into memory */
	OUTBOX_DISPATCHER_COUNT_REQUESTS,
	OUTBOX_DISPATCHER_COUNT_REUSED, /* of these, on a connection that had carried another */
	OUTBOX_DISPATCHER_COUNT_UNSENT, /* nothing left this machine */
	OUTBOX_DISPATCHER_COUNT_SETTLED,	/* by itself */
	OUTBOX_DISPATCHER_COUNT_GIVEN_AWAY, /* by the settler */
	OUTBOX_DISPATCHER_COUNT_OVERFLOWS,	/* of the doorbell */
	OUTBOX_DISPATCHER_COUNTERS
} OutboxDispatcherCounter;

/* Who it is that is counted, where it is no handler. */
#define OUTBOX_COUNTED_DISPATCHER (-1)

typedef struct OutboxCounters
{
	/* Whose it is: database OID and handler id in one word.  0: never used. */
	pg_atomic_uint64 owner;
	pg_atomic_uint64 reset_at;	/* a TimestampTz */
	char		pad[PG_CACHE_LINE_SIZE - 2 * sizeof(pg_atomic_uint64)];
	pg_atomic_uint64 counts[OUTBOX_COUNTERS];
} OutboxCounters;

/* Who is counted, and where that was last; zero but for the id to begin with. */
typedef struct OutboxCounted
{
	int32		handler_id;
	OutboxCounters *counters;
} OutboxCounted;

/* Called by outbox_shmem_init()'s hooks: the size of this area, and its setup. */
extern Size outbox_counters_shmem_size(void);
extern void outbox_counters_shmem_startup(void);

/*
 * Count what is done in this process in these as well, by OutboxCounter: there
 * are OUTBOX_COUNT_TIMES of them, for all handlers together (errand.h).  Also
 * without shared memory.
 */
extern void outbox_counters_tally(pg_atomic_uint64 *counts);

/* Is there anything to count in? */
extern bool outbox_counters_wanted(void);

/* Count something of this database at once. */
extern void outbox_count(OutboxCounted *counted, int counter, int64 n);
extern void outbox_count_time(OutboxCounted *counted, OutboxHistogram histogram, int64 us);

/* The same of this database's dispatcher. */
extern void outbox_count_dispatcher(OutboxDispatcherCounter counter, int64 n);

/* The counter that a time goes to. */
extern int	outbox_bucket_counter(OutboxHistogram histogram, int64 us);

static inline int
outbox_sum_counter(OutboxHistogram histogram)
{
	return OUTBOX_COUNT_TIMES + histogram * (1 + OUTBOX_BUCKETS);
}

/* Handlers of this database that have an entry, in no order: how many, at most max of them. */
extern int	outbox_counters_handlers(int32 *handler_ids, int max);

/* So many entries there are for all. */
extern int	outbox_counters_size(void);

/* Give back the entry of a handler of this database, or all those of a database. */
extern void outbox_counters_forget(int32 handler_id);
extern void outbox_counters_forget_database(Oid dboid);

/* Give back the entries of databases that are gone. */
extern void outbox_counters_keep(bool (*exists) (Oid dboid));

/* For counters_file.c: the entries as they lie, and one made for an owner (NULL: no room). */
extern OutboxCounters *outbox_counters_entries(void);
extern OutboxCounters *outbox_counters_make(uint64 owner);

/* Is this the word of an entry that is somebody's? */
extern bool outbox_counters_is_owner(uint64 owner);

/* counters_file.c; the postmaster only: read the file that the last shutdown left, and see to it that the next one leaves one. */
extern void outbox_counters_file_startup(void);

#endif							/* OUTBOX_COUNTERS_H */
