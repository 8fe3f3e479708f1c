/*-------------------------------------------------------------------------
 *
 * settings.h
 *		What workers do not leave to the server's configuration.
 *
 * Timeouts, isolation levels and the like are set for sessions, for a role
 * or a database, and for good reasons; a worker that obeyed them would fail.
 * They are pinned with a source that no reload overrides.
 *
 * Processes: all workers, once they are connected.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SETTINGS_H
#define OUTBOX_SETTINGS_H

#include "postgres.h"

/* Give a setting a value for good.  One that this server does not have is passed over. */
extern void outbox_pin(const char *name, const char *value);

/*
 * Everything that would hurt any worker.  Before its first transaction: that
 * would have the isolation level of the server, the database or the role.
 */
extern void outbox_pin_settings(void);

/*
 * The same for a worker that settles deliveries: also for how long it may
 * wait for a lock.  In a transaction.
 */
extern void outbox_pin_settling(const char *lock_timeout);

/*
 * The same for one that runs nobody's functions, as an on_settle worker does:
 * of triggers on the extension's tables only those that their owner made
 * ENABLE ALWAYS fire, and no commit waits for a standby.
 */
extern void outbox_pin_settling_alone(const char *lock_timeout);

/*
 * The running transaction holds receipts and nothing that a user's function
 * wrote: it waits for no standby.  Whoever wants one to have them counts what
 * it has not (dispatch/confirm.h).
 */
extern void outbox_commit_receipts(void);

/*
 * Take up what ALTER DATABASE and ALTER ROLE have set and reset since the
 * last call, as a new session would.  In a transaction, at start and after
 * each reload of the configuration, and before pinning.  False if somebody's
 * lock is in the way: nothing was read, try again later.
 */
extern bool outbox_apply_database_settings(void);

#endif							/* OUTBOX_SETTINGS_H */
