/*-------------------------------------------------------------------------
 *
 * interrupt.h
 *		How the launcher and the dispatchers are asked to end.
 *
 * SIGTERM is a request: the worker ends when its loop comes round, with its
 * outcomes settled.  But database work can wait for what may never come, a
 * lock or an absent synchronous standby, and a server that is to stop waits
 * for its workers.  So SIGTERM, and SIGINT, also cancel a running piece of
 * database work: a lock wait fails, a commit stops waiting for its standby.
 *
 * Processes: the launcher and the dispatchers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_INTERRUPT_H
#define OUTBOX_INTERRUPT_H

#include "postgres.h"

/*
 * Until the worker is connected to its database, SIGTERM ends it wherever it
 * waits: there is nothing to settle.
 */
extern void outbox_interrupts_before_connection(void);

/* From then on. */
extern void outbox_interrupts_init(void);

/*
 * Brackets around database work.  Outside of them nothing is cancelled; a
 * cancel that came too late is forgotten at the end.  The latch is set at the
 * end, so that the loop comes round once more before it waits: whatever
 * waits inside the work resets the latch.
 */
extern void outbox_work_begin(void);
extern void outbox_work_end(void);

#endif							/* OUTBOX_INTERRUPT_H */
