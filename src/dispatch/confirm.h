/*-------------------------------------------------------------------------
 *
 * confirm.h
 *		Settlements that a standby has yet to confirm.
 *
 * Promises: nobody ever waits for a standby.  Settlements commit locally, and
 * where outbox.settle_synchronous_commit asks for more they count as unsettled
 * of their lane until a synchronous standby has them.  A lane stops at its
 * limit of those, so that what is sent again after a failover is bounded; and
 * a standby that is away stops nothing else.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_CONFIRM_H
#define OUTBOX_CONFIRM_H

#include "datatype/timestamp.h"
#include "dispatch/lane.h"

/*
 * So many of the lane's deliveries were settled by transactions that have
 * committed, of this process or another: they are no longer unsettled, at
 * once or when a standby has the WAL that is safe here by now.  Raises nothing.
 */
extern void outbox_confirm_settled(OutboxLane *lane, int n);

/* Let go what has been confirmed by now, or needs it no longer. */
extern void outbox_confirm_look(TimestampTz now);

/* When to look again; DT_NOEND: nothing has to be confirmed. */
extern TimestampTz outbox_confirm_next(void);

#endif							/* OUTBOX_CONFIRM_H */
