/*-------------------------------------------------------------------------
 *
 * reload.h
 *		Keeps the lanes in step with the handlers' rows.
 *
 * Process: the dispatcher.  Due whenever the shared generation has moved:
 * somebody changed a handler, a pause, a secret or the installation.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RELOAD_H
#define OUTBOX_RELOAD_H

#include "shared/shmem.h"

/* Ask for one, whatever the generation says (settings changed). */
extern void outbox_reload_request(void);

/* True if the handlers must be read; notes the generation, before the snapshot is taken. */
extern bool outbox_reload_is_due(OutboxDatabase *db, TimestampTz now);

/* When it will be due if it is not yet, for the main loop's wait. */
extern TimestampTz outbox_reload_next(OutboxDatabase *db);

/*
 * Read the handlers, in a transaction; false if somebody's lock is in the
 * way.  After its commit, let go of what is no longer used.
 */
extern bool outbox_reload(TimestampTz now);
extern void outbox_reload_finish(void);

/* Has there been a reload yet?  Until then nothing may be sent. */
extern bool outbox_reload_is_known(void);

/*
 * What the last reload found out: the extension is gone (or has been
 * dropped and created again, which is another one), or is of another version
 * (mismatch says so, NULL otherwise); this database is a copy (why_copy says
 * which kind of one, NULL otherwise).
 */
extern bool outbox_reload_is_gone(void);
extern const char *outbox_reload_mismatch(void);
extern const char *outbox_reload_why_copy(void);

#endif							/* OUTBOX_RELOAD_H */
