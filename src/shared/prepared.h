/*-------------------------------------------------------------------------
 *
 * prepared.h
 *		What prepared transactions have noted for the doorbell.
 *
 * The notes of a transaction cannot travel with PREPARE TRANSACTION.  What it
 * has of each kind is marked by a lock that nobody ever waits for, because
 * the locks of a prepared transaction outlive its session and the server's
 * restart; COMMIT PREPARED looks for them.  A transaction that has noted
 * nothing costs nobody anything.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_PREPARED_H
#define OUTBOX_PREPARED_H

#include "postgres.h"

#define OUTBOX_PREPARED_ROWS 1		/* deliveries: what is new or has changed is to be looked for */
#define OUTBOX_PREPARED_HANDLERS 2	/* handlers, the installation, or the extension itself */

/* The running transaction is about to be prepared, and has noted this. */
extern void outbox_prepared_mark(int what);

/* What the prepared transaction of this name has noted.  Before it is committed. */
extern int	outbox_prepared_marks(const char *gid);

#endif							/* OUTBOX_PREPARED_H */
