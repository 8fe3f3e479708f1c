/*-------------------------------------------------------------------------
 *
 * rescan.h
 *		The slow look at every outstanding delivery.
 *
 * Process: the dispatcher.  Catches what no doorbell told: prepared
 * transactions, a promoted standby, rows put right by hand, deliveries that
 * committed after their handler was dropped.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RESCAN_H
#define OUTBOX_RESCAN_H

#include "outbox.h"

/* Ask for one now, because rows have changed, nobody says which: forgets what is in memory and not sent yet. */
extern void outbox_rescan_request(void);

extern bool outbox_rescan_is_due(TimestampTz now);
extern TimestampTz outbox_rescan_next(void);

/*
 * Have every lane with outstanding rows read them again, in slices, and look
 * after pull handlers (consume/pull_sweep.h); in a transaction.
 */
extern void outbox_rescan(TimestampTz now);

#endif							/* OUTBOX_RESCAN_H */
