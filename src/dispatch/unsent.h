/*-------------------------------------------------------------------------
 *
 * unsent.h
 *		Tells an operator that requests cannot leave this machine.
 *
 * Such requests spend no attempt, so nothing of them is in the log of
 * attempts: they go out a little later, and would go on to for ever without a
 * trace.  The server's log says so, once a minute at most; for as long as it
 * lasts outbox.dispatchers and outbox.health() say what is short, since when,
 * and what lifts it.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_UNSENT_H
#define OUTBOX_UNSENT_H

#include "http/transport.h"

/* A request to this handler was not sent; problem says it in words. */
extern void outbox_unsent_report(const char *handler, HttpShortage shortage, const char *problem);

/* A request to this handler was sent. */
extern void outbox_unsent_over(const char *handler);

/* What this machine lacks at present, and by the wall clock since when; NULL: nothing. */
extern const char *outbox_unsent_problem(TimestampTz *since);

#endif							/* OUTBOX_UNSENT_H */
