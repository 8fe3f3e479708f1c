/*-------------------------------------------------------------------------
 *
 * waitset.h
 *		The one place where the dispatcher waits.
 *
 * Waits on the latch, on the postmaster's death (which ends the process) and
 * on one descriptor that stands for all sockets of the transport.  Signals
 * are open only here and inside SQL; outbox_signals_block() closes them
 * again for the rest of the loop's iteration, because libcurl must never be
 * interrupted by a handler.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_WAITSET_H
#define OUTBOX_WAITSET_H

#include "postgres.h"

extern void outbox_waitset_init(int transport_fd);

/* Wait for timeout_ms at most (-1: without limit), with signals open. */
extern void outbox_wait(long timeout_ms);

extern void outbox_signals_block(void);
extern void outbox_signals_open(void);

#endif							/* OUTBOX_WAITSET_H */
