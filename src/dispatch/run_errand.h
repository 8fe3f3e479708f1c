/*-------------------------------------------------------------------------
 *
 * run_errand.h
 *		When the errand of a dispatcher is over (shared/errand.h).
 *
 * An errand is over when nothing is out, nothing waits to be written, nobody's
 * function runs, and what is left of the deliveries cannot go now.  One that
 * skips ahead then makes due what is to come, and goes on until there is
 * nothing like that any more, or has done so often enough.
 *
 * Process: the dispatcher that a session has started.  In others nothing here
 * does anything.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RUN_ERRAND_H
#define OUTBOX_RUN_ERRAND_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* Wait until the dispatcher of an errand before this one has gone.  First of all, connected to the database. */
extern void outbox_errand_begin(void);

/* Once per iteration, at its end; and when to come back if nothing happens before. */
extern void outbox_errand_attend(TimestampTz now);
extern TimestampTz outbox_errand_next(void);

/*
 * Look what is to come, and make it due: when, in a transaction with a
 * snapshot (false if somebody's lock is in the way), and once it has committed.
 */
extern TimestampTz outbox_errand_look_next(void);
extern bool outbox_errand_look(TimestampTz now);
extern void outbox_errand_looked(void);

#endif							/* OUTBOX_RUN_ERRAND_H */
