/*-------------------------------------------------------------------------
 *
 * settle.h
 *		Records the outcomes of attempts, a batch in one transaction.
 *
 * Who else may change a delivery, and from which state to which: doc/architecture.md,
 * "States of a delivery".
 *
 * Process: the dispatcher.  Outcomes wait in memory until they are settled.
 * A row is changed only if it is still what was read: outstanding, same
 * attempt, not requeued since.  A row that somebody else holds is settled
 * later; one that an operator cancelled stays cancelled.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SETTLE_H
#define OUTBOX_SETTLE_H

#include "dispatch/lane.h"

/*
 * An attempt has ended: delivery->verdict and its companions are set.  The
 * delivery waits for settlement and counts as unsettled of its lane.
 */
extern void outbox_outcome_add(OutboxDelivery *delivery);

/* Take up those whose error text has been redacted by now, or has to be withheld (redact.h). */
extern void outbox_outcomes_take_redacted(TimestampTz now);

/* How many wait, and when the one that has waited longest was added (DT_NOEND: none). */
extern int	outbox_outcomes_waiting(void);
extern TimestampTz outbox_outcomes_oldest(void);

/* When rows that were held by somebody are to be tried again; DT_NOEND: there are none. */
extern TimestampTz outbox_outcomes_next_locked(void);

/*
 * Settle what waits, in the current transaction with its active snapshot.
 * False if a lock on the table is in the way: nothing was done.
 */
extern bool outbox_settle(TimestampTz now);

/* The transaction has committed: tell the lanes, free what is settled. */
extern void outbox_settle_finish(TimestampTz now);

/* The transaction has failed: everything waits on. */
extern void outbox_settle_abort(void);

/*
 * After that, when what failed was the settlement.  If the error is one that
 * lasts, the outcome that it came with is put aside, to be tried again after
 * pauses of its own and apart from all others, and so is what else waits of
 * its handler once some have failed in a row; if it came with none, the next
 * transaction takes half as many.  True if there is no use in trying the
 * others at once.
 */
extern bool outbox_settle_failed(const char *error, bool lasts, TimestampTz now);

/*
 * The process is about to end: each that is aside is tried once more, at once.
 * Is there any outcome that may be written yet: one that waits, whose row
 * somebody holds, or that has not had its last chance?
 */
extern void outbox_outcomes_last_chance(void);
extern bool outbox_outcomes_may_be_written(void);

/* When one that is aside is to be tried again; and why there are any, in words (NULL: there are none). */
extern TimestampTz outbox_outcomes_next_aside(void);
extern const char *outbox_outcomes_problem(void);

/*
 * Plain successes are those whose settlement is a receipt and nothing else:
 * they can go to the settler (settler.h).  How many wait; and take up to max
 * of them, oldest first.
 */
extern int	outbox_outcomes_plain(void);
extern int	outbox_outcomes_take_plain(dlist_head *to, int max);

/* What was taken waits again, ahead of all others. */
extern void outbox_outcomes_give_back(dlist_head *from);

/*
 * The settler has written the receipt of one that was taken, durably: tell
 * its lane, free it.  If a reader has met it outstanding meanwhile, it is
 * expected again.
 */
extern void outbox_outcome_written(OutboxDelivery *delivery, TimestampTz now);

#endif							/* OUTBOX_SETTLE_H */
