/*-------------------------------------------------------------------------
 *
 * ahead.h
 *		Messages that were staged while the clock was ahead.
 *
 * A message is due when it is staged, by the clock of that moment.  If that
 * was ahead and has been set back, the message would wait until the clock
 * has caught up, and on ordered handlers the newer ones of its key with it.
 * Ids follow the clock and never go down, so the highest one tells; such
 * deliveries are due at once.  What was put off on purpose stays: a delay, a
 * time to deliver at, a retry.
 *
 * Process: the dispatcher, in a transaction that acts as the owner and in
 * which the tables are locked already.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_AHEAD_H
#define OUTBOX_AHEAD_H

#include "outbox.h"

/* Look whether the clock has fallen behind, and move what waits for it, some at a time; true if there may be more. */
extern bool outbox_ahead_look(void);

#endif							/* OUTBOX_AHEAD_H */
