/*-------------------------------------------------------------------------
 *
 * sql_version.h
 *		Which versions of the SQL objects this library works with.
 *
 * A server takes up a new library when it starts, a database new SQL objects
 * with ALTER EXTENSION outbox UPDATE, and neither waits for the other.  So a
 * library serves the objects of the release before it as well as its own: it
 * knows them, and sql_version.c lists them.  Of objects that are younger than
 * itself it knows nothing, but they know of it: outbox_internal.library_can()
 * says what an older library may do with them, and what it does not name is
 * refused.
 *
 * How objects may change so that this holds: CONTRIBUTING.md, "Growing".
 *
 * Process: any, in a transaction.  What is found out is remembered until the
 * extension changes.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SQL_VERSION_H
#define OUTBOX_SQL_VERSION_H

#include "postgres.h"

/* What a library does with the SQL objects; a bit each. */
typedef enum OutboxDuty
{
	OUTBOX_MAY_STAGE = 1,
	OUTBOX_MAY_CONSUME = 2,		/* claim, settle, wait */
	OUTBOX_MAY_CONFIGURE = 4,	/* handlers */
	OUTBOX_MAY_DISPATCH = 8		/* push, and run on_settle functions */
} OutboxDuty;

/*
 * Raise object_not_in_prerequisite_state unless this library may do this with
 * the SQL objects that are installed, undefined_object if none are.  Cheap
 * after the first call of a backend.
 */
extern void outbox_require_sql(OutboxDuty duty);

/*
 * May this library do this with the installed objects?  If not, what is wrong
 * and what helps goes into problem; nothing if there are none.
 */
extern bool outbox_sql_allows(OutboxDuty duty, char *problem, Size size);

#endif							/* OUTBOX_SQL_VERSION_H */
