/*-------------------------------------------------------------------------
 *
 * interrupt.h
 *		How workers are asked to end, to cancel what they do, and to read
 *		their settings again.
 *
 * SIGTERM is a request: the worker ends when its loop comes round, with its
 * outcomes settled.  But database work can wait for what may never come, a
 * lock or an absent synchronous standby, and a server that is to stop waits
 * for its workers.  So SIGTERM, and SIGINT, also cancel a running piece of
 * database work: a lock wait fails, a commit stops waiting for its standby.
 *
 * An on_settle worker runs functions, which could catch the error of a
 * cancelled statement and go on; so there SIGTERM ends the process when it
 * comes during database work, which rolls back.
 *
 * Processes: all workers.
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

/* From then on; ends_in_work says that SIGTERM ends the process in the midst of database work. */
extern void outbox_interrupts_init(bool ends_in_work);

/*
 * Brackets around database work (work.h).  Outside of them nothing is
 * cancelled; a cancel that came too late is forgotten at the end.  A wait
 * inside resets the latch, and with it somebody's ring: whoever waits for
 * rings lets its loop come round once more before it waits.
 */
extern void outbox_interrupts_admit(void);
extern void outbox_interrupts_refuse(void);

#endif							/* OUTBOX_INTERRUPT_H */
