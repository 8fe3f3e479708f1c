/*-------------------------------------------------------------------------
 *
 * redact.h
 *		Outcomes whose error text is being redacted before it is written.
 *
 * While outbox.redact_function is set, an outcome with a text that came from
 * elsewhere waits here, in memory, until an on_settle worker has run the
 * function (shared/redactions.h), two seconds at most.  A text that is not
 * back by then is withheld.  So what is written was redacted or says nothing,
 * and nothing else ever leaves memory.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DISPATCH_REDACT_H
#define OUTBOX_DISPATCH_REDACT_H

#include "dispatch/delivery.h"
#include "shared/shmem.h"

extern void outbox_redact_init(OutboxDatabase *db);

/* An outcome is in.  True: it is kept here, and comes out of outbox_redact_next_done(). */
extern bool outbox_redact_keep(OutboxDelivery *delivery);

/* The next one that can be written; NULL for none. */
extern OutboxDelivery *outbox_redact_next_done(TimestampTz now);

/* When one is to be written whatever becomes of its text. */
extern TimestampTz outbox_redact_next(void);

/* Do any wait? */
extern bool outbox_redact_is_busy(void);

/* The process is to end: from now on every text is withheld. */
extern void outbox_redact_give_up(void);

#endif							/* OUTBOX_DISPATCH_REDACT_H */
