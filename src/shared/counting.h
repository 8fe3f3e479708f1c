/*-------------------------------------------------------------------------
 *
 * counting.h
 *		Numbers of what a transaction does, counted when it commits.
 *
 * What it stages, settles or cancels is noted while it runs, and added to the
 * counters (counters.h) by the library's transaction callback.  What was noted
 * within a savepoint that is rolled back is taken off again.  A transaction
 * that is prepared is counted then: it is likely to commit, and its notes
 * cannot travel with it.
 *
 * Process: any.  Notes may raise out of memory; what runs at the end of a
 * transaction neither raises nor allocates.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_COUNTING_H
#define OUTBOX_COUNTING_H

#include "access/xact.h"

#include "shared/counters.h"

/* If the transaction commits, count n of this of the handler; or a time. */
extern void outbox_count_at_commit(int32 handler_id, OutboxCounter counter, int64 n);
extern void outbox_count_time_at_commit(int32 handler_id, OutboxHistogram histogram, int64 us);

/* The code of a delivery that was given up for its age. */
#define OUTBOX_CODE_EXPIRED "expired"

/* The same of a delivery's way into this state, which is RETRYING or settled, with that code (NULL: none). */
extern void outbox_count_outcome_at_commit(int32 handler_id, OutboxState state, const char *code);

/* What such a transition counts as. */
extern OutboxCounter outbox_state_counter(OutboxState state);

/* Called by the library's transaction callbacks.  The first two never fail. */
extern void outbox_counting_at_commit(void);
extern void outbox_counting_at_abort(void);
extern void outbox_counting_at_subtransaction(SubXactEvent event, SubTransactionId subid,
											  SubTransactionId parent, void *arg);

#endif							/* OUTBOX_COUNTING_H */
