/*-------------------------------------------------------------------------
 *
 * secret.h
 *		Secrets on their way from a caller's argument into handler_secret.
 *
 * A value that is a parameter of a statement can be logged by whoever
 * watches statements (pgaudit, auto_explain, log_parameter_max_length), and
 * no list of their settings is ever complete.  So secrets are in no
 * parameter: as_owner.c withholds them from the statement it runs, and the
 * SQL function that it calls has them stored by outbox_internal.store_secret(), which
 * writes the row without a statement.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HANDLER_SECRET_H
#define OUTBOX_HANDLER_SECRET_H

#include "outbox.h"

#include "nodes/pg_list.h"

/* What stands for a secret among the arguments that a statement sees. */
#define OUTBOX_WITHHELD "withheld"

/* The secrets that were given to one call, an element a secret; lives as long as the call. */
typedef struct OutboxWithheld
{
	List	   *options;		/* names of arguments */
	List	   *values;			/* their texts, beside them */
	struct OutboxWithheld *outer;	/* of the call that led to this one */
} OutboxWithheld;

/* Is the argument of this name a secret? */
extern bool outbox_is_secret_option(const char *name);

/* Note the value of such an argument; name and value have to live as long as the call. */
extern void outbox_withhold(OutboxWithheld *withheld, char *name, char *value);

/* From now on, and no longer, these are what outbox_internal.store_secret() takes. */
extern void outbox_withheld_begin(OutboxWithheld *withheld);
extern void outbox_withheld_end(OutboxWithheld *withheld);

#endif							/* OUTBOX_HANDLER_SECRET_H */
