/*-------------------------------------------------------------------------
 *
 * life.h
 *		Whether the dispatcher sends, holds or leaves.
 *
 * It leaves when it is asked to by SIGTERM, when a command needs the database
 * for itself, when its errand is over (shared/errand.h), and when the extension
 * is gone or of another version.  What is
 * out then gets a grace (outbox.shutdown_grace) to be answered and settled;
 * what is not settled at its end is sent again by the next dispatcher.
 *
 * Process: the dispatcher.  Nothing here raises.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_LIFE_H
#define OUTBOX_LIFE_H

#include "datatype/timestamp.h"

/* Decide, and show it in outbox.dispatchers.  Asked again after a reload, which can change all of it. */
extern void outbox_life_note(TimestampTz now);

/* May requests be sent?  Until the first outbox_life_note(), no. */
extern bool outbox_life_sends(void);

/* Is this database's outbox in its hands?  Also while it is to send nothing (outbox.enabled is off). */
extern bool outbox_life_serves(void);

/* What cannot be done at the moment, whoever it is that cannot, in words; NULL: all goes well. */
extern const char *outbox_life_problem(void);

/* Has it been decided that the process ends?  When its grace ends; DT_NOEND: it stays. */
extern bool outbox_life_is_leaving(void);
extern TimestampTz outbox_life_grace_end(void);

/* True once nothing keeps the process from ending. */
extern bool outbox_life_is_over(TimestampTz now);

#endif							/* OUTBOX_LIFE_H */
