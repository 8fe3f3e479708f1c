/*-------------------------------------------------------------------------
 *
 * redactions.h
 *		Texts on their way to outbox.redact_function and back.
 *
 * A dispatcher, which runs nobody's function, puts a text into one of a few
 * places of its database's slot; an on_settle worker takes it from there, and
 * puts back what the function made of it.  Each place is written by one of
 * the two at a time, whose it is by its state, which changes under the slot's
 * mutex.  Nothing of a text is left in a place that is free.
 *
 * Processes: the dispatcher, and its on_settle workers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_REDACTIONS_H
#define OUTBOX_REDACTIONS_H

#include "shared/shmem.h"

/* The dispatcher begins: whatever is there is of one before it. */
extern void outbox_redactions_reset(OutboxDatabase *db);

/* Ask for a text, which is cut to fit.  False if no place is free. */
extern bool outbox_redaction_ask(OutboxDatabase *db, uint64 ticket, const char *text);

/* The next answer, if there is one: text is palloc'd, or NULL. */
extern bool outbox_redaction_collect(OutboxDatabase *db, uint64 *ticket, char **text);

/* Does a text wait for a worker? */
extern bool outbox_redaction_is_asked(OutboxDatabase *db);

/* A worker takes a text, palloc'd, which it has to answer; -1: there is none. */
extern int	outbox_redaction_take(OutboxDatabase *db, char **text);
extern void outbox_redaction_answer(OutboxDatabase *db, int place, const char *text);

#endif							/* OUTBOX_REDACTIONS_H */
