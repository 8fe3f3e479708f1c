/*-------------------------------------------------------------------------
 *
 * user_function.h
 *		Runs a function of somebody else with the rights of its owner.
 *
 * The function is somebody's code in a process that may belong to a superuser.
 * It runs as the role that owns it, never as a superuser, inside a
 * security-restricted operation: it cannot change roles, create temporary
 * objects or leave anything behind in the session.  Settings it changes are
 * put back, deferrable constraints are checked at once, and timers end it
 * when it takes too long.
 *
 * Process: a worker that runs functions, or a backend; in a transaction.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_USER_FUNCTION_H
#define OUTBOX_USER_FUNCTION_H

#include "outbox.h"

/* What the process wants to hear of, in a signal handler; NULL: nothing. */
typedef struct OutboxUserFunctionWatch
{
	int			slow_ms;
	void		(*slow) (void);	/* it has been running for slow_ms */
	void		(*overran) (void);	/* it was cancelled and has not stopped: the process ends */
} OutboxUserFunctionWatch;

typedef struct OutboxUserFunction
{
	const char *what;			/* what messages call it, such as "on_settle function" */
	const char *name;			/* its schema, name and argument's type, as regprocedure shows them */
	Oid			type;			/* of its one argument */
	Datum		argument;
	int			timeout_ms;
	const char *timeout_option; /* what that was set by, for the message */
} OutboxUserFunction;

/*
 * For a worker, once per process, before it runs any: it has no user who could
 * cancel a function, so that a function that is cancelled has failed.
 */
extern void outbox_user_functions_watch(const OutboxUserFunctionWatch *new_watch);

/*
 * Run the function in a subtransaction.  Returns NULL if it succeeded: what
 * it wrote is now part of the transaction.  Otherwise nothing of it is left,
 * and the result says why, in the current memory context.  In a backend a
 * cancellation by its user is raised.  Must be connected to SPI, with rights
 * that let it find the function.
 */
extern char *outbox_user_function_call(const OutboxUserFunction *function);

/* Outside a transaction: take back what a function may have left in a worker's session. */
extern void outbox_user_functions_clean_up(void);

#endif							/* OUTBOX_USER_FUNCTION_H */
