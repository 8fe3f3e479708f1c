/*-------------------------------------------------------------------------
 *
 * obligations.h
 *		What a transaction that claims or settles owes when it ends.
 *
 * While it runs, a transaction notes the rows it holds and the rows it
 * leaves behind in a new state.  If it aborts, the held ones are reported as
 * claimable again; if it commits, the changed ones are.  Savepoints have
 * their notes apart, so that rolling one back reports at once.
 *
 * Process: any backend.  Notes may raise out of memory; what runs at the end
 * of a transaction neither raises nor allocates.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_OBLIGATIONS_H
#define OUTBOX_OBLIGATIONS_H

#include "access/xact.h"

#include "shared/pull_state.h"

/*
 * Before a delivery's row is locked: its key goes back if this transaction
 * aborts.  Assigns a transaction id and registers it as a claimant.  claim
 * says that the row is about to be leased: then the transaction cannot be
 * prepared.
 */
extern void outbox_consume_hold(const OutboxPullRef *ref, const OutboxQueuePosition *key, bool claim);

/* As claim, for a row whose key is owed already. */
extern void outbox_consume_claim(const OutboxPullRef *ref);

/* A stray was taken off, or the position passes a row: the key goes back if this transaction aborts. */
extern void outbox_consume_owe(const OutboxPullRef *ref, const OutboxQueuePosition *key);

/* At commit this delivery is outstanding with a new key: a lease, a retry. */
extern void outbox_consume_moved(const OutboxPullRef *ref, const OutboxQueuePosition *key);

/* At commit the key of this message on an ordered handler may have a new head. */
extern void outbox_consume_revisit(const OutboxPullRef *ref, const pg_uuid_t *id);

/*
 * Lower id to the lowest one that this transaction holds of the handler's
 * deliveries: what it sees settled from there on may yet be rolled back.
 * False if that is not known.
 */
extern bool outbox_consume_bound(const OutboxPullRef *ref, pg_uuid_t *id);

/* Called by the library's transaction callbacks. */
extern void outbox_consume_before_prepare(void);
extern void outbox_consume_at_prepare(void);
extern void outbox_consume_at_commit(void);
extern void outbox_consume_at_abort(void);
extern void outbox_consume_at_subtransaction(SubXactEvent event, SubTransactionId subid,
											 SubTransactionId parent, void *arg);

/* Have pull handlers hear the doorbell (shared/doorbell.h).  Once, from _PG_init. */
extern void outbox_consume_listen(void);

#endif							/* OUTBOX_OBLIGATIONS_H */
