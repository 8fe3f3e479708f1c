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

#include "fmgr.h"

#include "common/session.h"

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

/* The function of that name and argument's type; InvalidOid if there is none.  As above. */
extern Oid	outbox_user_function_find(const char *name);

/* What a query of one row, of a function's oid or NULL, answers to a text; InvalidOid for NULL.  As above. */
extern Oid	outbox_user_function_ask(OutboxPlan *plan, const char *name);

/*
 * A function that looks at a value and says whether it will do: one argument
 * of type jsonb, and a boolean for an answer.  For those that are called in
 * the midst of somebody's transaction, often: stable or immutable, and in a
 * transaction that is read-only for it, so that neither it nor what it calls
 * writes anything; without timers, as the user can cancel it.
 */
typedef struct OutboxUserTest
{
	Oid			owner;
	FmgrInfo	call;
} OutboxUserTest;

/*
 * Look whether the function can be called so, as its owner, who must not be a
 * superuser.  What it needs is in the current memory context, and holds as long
 * as the caller does not give up control for anything but the function itself.
 * Raises undefined_function, invalid_function_definition and
 * insufficient_privilege.
 */
extern void outbox_user_test_begin(OutboxUserTest *test, Oid function, const char *what, const char *name);

/*
 * Does the value pass?  If not, *failure is what the function raised about it
 * (SQLSTATE classes 22, 23 and P0), NULL if it has just said no.  Other errors
 * are raised.  Nothing of what the function does is left.
 */
extern bool outbox_user_test_passes(OutboxUserTest *test, Datum value, char **failure);

/*
 * Run a function that makes a text of a text: schema.name(text), stable or
 * immutable, with the rights of its owner, who must not be a superuser, and in
 * the midst of somebody's transaction.  *answer: what it returned, NULL for
 * NULL, in the current memory context.  False if it cannot be called, takes
 * longer, or fails: *sqlstate says why.  Nothing else is left of what it does.
 * In a backend a cancellation by its user is raised.
 */
extern bool outbox_user_text_function_call(const char *schema, const char *name, const char *text, int timeout_ms,
										   char **answer, int *sqlstate);

/* Outside a transaction: take back what a function may have left in a worker's session. */
extern void outbox_user_functions_clean_up(void);

#endif							/* OUTBOX_USER_FUNCTION_H */
