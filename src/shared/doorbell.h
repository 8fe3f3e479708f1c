/*-------------------------------------------------------------------------
 *
 * doorbell.h
 *		How a committing transaction tells the dispatcher what is new.
 *
 * Backends note keys while their transaction runs (that may allocate and
 * fail, which is fine then); the one transaction callback of the library
 * rings at commit, which allocates nothing, raises nothing and takes only a
 * spinlock.  A savepoint that rolls back may leave its notes: ringing for
 * nothing is harmless.
 *
 * The dispatcher empties the doorbell first and takes its snapshot second, so
 * that a row is either seen by the snapshot or still among the notices.  Pull
 * handlers have no lane: what concerns them goes to their claims and waiters,
 * and whoever keeps those listens here.
 *
 * The protocol step by step: doc/architecture.md, "The doorbell".
 *
 * Processes: any backend rings, the dispatcher empties.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DOORBELL_H
#define OUTBOX_DOORBELL_H

#include "shared/shmem.h"

/*
 * Backend side.  All of these are remembered until the end of the top-level
 * transaction and act only if it commits.
 */

/* A delivery of handler_id with this key is new, due or changed (kind). May raise out of memory. */
extern void outbox_doorbell_note(int32 handler_id, OutboxNoticeKind kind,
								 TimestampTz due_at, const pg_uuid_t *id);

/* An outstanding delivery, of whatever handler, expires then; DT_NOEND: never. */
extern void outbox_doorbell_note_end(TimestampTz end_at);

/* Has this transaction noted that outstanding deliveries of the handler changed? */
extern bool outbox_doorbell_changed(int32 handler_id);

/* A handler changed: where messages go, and everything else that is known of it. */
extern void outbox_doorbell_note_handlers(void);

/* A handler's status, its secrets, its consumers or the installation changed: routes are as they were. */
extern void outbox_doorbell_note_status(void);

/* When something is to be done for a schedule has changed. */
extern void outbox_doorbell_note_schedules(void);

/* Has this transaction noted such a change?  Then what is cached of handlers may differ from what it sees. */
extern bool outbox_doorbell_handlers_noted(void);

/* The extension was created or changed here: this database may need a dispatcher. */
extern void outbox_doorbell_note_launcher(void);

/* What a prepared transaction that is being committed has noted. */
extern void outbox_doorbell_note_prepared(int marks);

/* The dispatcher should look at everything once (COMMIT PREPARED, bulk operator functions). */
extern void outbox_doorbell_note_rescan(void);

/*
 * Who else listens: pull handlers have no lane, so what concerns them goes to
 * their claims and waiters.  Called at commit, so none of these may fail.
 */
typedef struct OutboxDoorbellListener
{
	/* Is this notice for the listener, and not for the dispatcher?  Then it has been heard. */
	bool		(*ring) (Oid dboid, const OutboxNotice *notice, TimestampTz now);

	/* Handlers of the database have changed. */
	void		(*handlers_changed) (Oid dboid);

	/* Anything may have changed; also called while a transaction that asks for a rescan runs. */
	void		(*rescan) (Oid dboid);
} OutboxDoorbellListener;

/* Register the one listener, from _PG_init. */
extern void outbox_doorbell_listen(const OutboxDoorbellListener *new_listener);

/*
 * Called by the library's transaction callback while the transaction still
 * runs: tells whoever created the extension if there is nobody to ring for.
 * CREATE EXTENSION silences notices of its script, so it comes this late.
 */
extern void outbox_doorbell_before_commit(void);

/* Called by the library's transaction callback: ring, or forget.  Never fails. */
extern void outbox_doorbell_at_commit(void);
extern void outbox_doorbell_at_abort(void);

/*
 * PREPARE TRANSACTION: nothing rings, and what was noted is marked (prepared.h)
 * before, which may fail.  COMMIT PREPARED notes anew.
 */
extern void outbox_doorbell_before_prepare(void);
extern void outbox_doorbell_at_prepare(void);

/* Ring at once, outside any transaction: an on_settle worker has settled a delivery.  Never fails. */
extern void outbox_doorbell_ring_now(OutboxDatabase *db, const OutboxNotice *notice);

/*
 * Dispatcher side.  Moves all notices into out (room for OUTBOX_MAX_NOTICES),
 * reports and clears the overflow and rescan flags.  end_known is the earliest
 * time at which something expires as far as the dispatcher knows, end_noted
 * that of what was noted.  Nobody wakes it for what expires later than either.
 * Returns the number moved.
 */
extern int	outbox_doorbell_empty(OutboxDatabase *db, OutboxNotice *out,
								  bool *overflow, TimestampTz *overflow_due, bool *rescan, TimestampTz end_known, TimestampTz *end_noted);

#endif							/* OUTBOX_DOORBELL_H */
