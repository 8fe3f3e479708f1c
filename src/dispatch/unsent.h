/*-------------------------------------------------------------------------
 *
 * unsent.h
 *		Tells an operator that requests cannot leave this machine.
 *
 * Such requests spend no attempt, so nothing of them is in the log of
 * attempts: they go out a little later, and would go on to for ever without a
 * trace.  The server's log says so, once a minute at most, and
 * outbox.dispatchers for as long as it lasts.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_UNSENT_H
#define OUTBOX_UNSENT_H

/* A request to this handler was not sent; problem is what this machine lacks. */
extern void outbox_unsent_report(const char *handler, const char *problem);

/* A request was sent. */
extern void outbox_unsent_over(void);

/* What this machine lacks at present, or NULL. */
extern const char *outbox_unsent_problem(void);

#endif							/* OUTBOX_UNSENT_H */
