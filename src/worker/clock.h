/*-------------------------------------------------------------------------
 *
 * clock.h
 *		A clock that nobody sets.
 *
 * The wall clock says when a message is due and what is written into rows; it
 * may be set forward or back by any amount, at any time.  What a process
 * waits for by itself (a pause, a rate, a breaker, the next rescan) it
 * measures on a steady clock, which starts as the wall clock was when it was
 * first looked at and from then on only goes on.  Both are TimestampTz, so
 * that a name has to tell them apart: in the dispatcher now is the steady one.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_CLOCK_H
#define OUTBOX_CLOCK_H

#include "postgres.h"

#include "datatype/timestamp.h"

/* The steady time. */
extern TimestampTz outbox_steady_time(void);

/*
 * Compare both clocks: what the next two functions go by.  True if the wall
 * clock was set since the last time.
 */
extern bool outbox_clock_look(void);

/* The wall time at a steady time and back; infinities stay what they are. */
extern TimestampTz outbox_to_wall(TimestampTz steady);
extern TimestampTz outbox_to_steady(TimestampTz wall);

#endif							/* OUTBOX_CLOCK_H */
