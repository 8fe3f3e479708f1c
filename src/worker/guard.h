/*-------------------------------------------------------------------------
 *
 * guard.h
 *		Gets the dispatcher out of the way of commands on its database.
 *
 * DROP DATABASE, ALTER DATABASE RENAME and SET TABLESPACE, and CREATE
 * DATABASE with it as template refuse to run while anybody is connected.
 * The guard asks the dispatcher to leave first and locks it out until the
 * command's transaction has ended.  It also notices COMMIT PREPARED and
 * a dropped or updated extension.
 *
 * Process: any backend, the one that issues the command.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_GUARD_H
#define OUTBOX_GUARD_H

#include "shared/shmem.h"

/* Install the hooks; from _PG_init when preloaded. */
extern void outbox_guard_init(void);

/*
 * Lock dispatchers out of this slot's database until the transaction ends, ask
 * the one that is there to leave, and wait until it has, together with what it
 * has started.  False if it has not within ten seconds.
 */
extern bool outbox_guard_clear(OutboxDatabase *slot);

/* The transaction has ended: what was locked out may come back.  Called by the transaction callback; never fails. */
extern void outbox_guard_at_end(void);

#endif							/* OUTBOX_GUARD_H */
