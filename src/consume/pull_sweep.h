/*-------------------------------------------------------------------------
 *
 * pull_sweep.h
 *		Looks after pull handlers that no consumer may be looking after.
 *
 * Part of the dispatcher's periodic rescan.  Goes through what is due on
 * each pull handler, in slices: a lease that has run out on its last attempt
 * becomes a dead letter that operators see even if no consumer comes any
 * more, and a delivery behind the position that nobody reported (put right
 * by hand, say) is reported.
 *
 * Process: the dispatcher, in a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_PULL_SWEEP_H
#define OUTBOX_PULL_SWEEP_H

#include "nodes/pg_list.h"

#include "outbox.h"

/* Begin a round over the handlers of which these are ids; others among them are passed over. */
extern void outbox_pull_sweep_begin(List *handler_ids);

/* When the next slice is due; DT_NOEND: the round is over. */
extern TimestampTz outbox_pull_sweep_next(void);

/* Do a slice.  Waits for no lock: if one is in the way it is done later. */
extern void outbox_pull_sweep_slice(TimestampTz now);

#endif							/* OUTBOX_PULL_SWEEP_H */
