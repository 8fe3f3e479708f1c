/*-------------------------------------------------------------------------
 *
 * watermark.h
 *		Where claims on a pull handler start reading.
 *
 * Settled deliveries leave index entries behind that vacuum cannot remove
 * while somebody holds an old snapshot.  So that claims need not step over
 * them again and again, each pull handler has a position: claims read the
 * index from there on.  What has to be looked at behind the position is kept
 * as single keys, the strays.
 *
 * The invariant.  A committed delivery that could be claimed and whose key
 * lies below the position is one of these:
 *   (a) a stray,
 *   (b) held by a running transaction that makes it a stray if it aborts,
 *   (c) just committed, and its transaction is about to report it,
 *   (d) blocked, on an ordered handler, by another delivery of its message
 *       key, whose settlement will be reported as a stray.
 *
 * How a claim keeps it:
 *   1. outbox_watermark_start() takes strays off, reads the position and
 *      remembers how many keys have been reported so far.
 *   2. Then, and not before, the claim takes its snapshot S.
 *   3. It looks at the strays and at the index from the position on.  Of
 *      each row it passes it either sees in S that it cannot be claimed,
 *      or it claims it (b), or it notes it as unresolved.
 *   4. outbox_watermark_finish() raises the position to where it got to,
 *      puts unresolved keys back as strays, and adds every key that was
 *      reported since step 1 and lies below.
 *
 * A claim that takes turns (turn.h) does not claim a row in step 3 but
 * chooses it: it owes its key, which makes the row one of (b), and claims it
 * after step 4.  If it cannot have it then, the same holds as in step 3: its
 * holder will report it, or it is unresolved and becomes a stray.
 *
 * Why nothing is lost.  A row that S does not show, because its transaction
 * had not committed yet, is reported after that commit, hence after S, hence
 * after step 1.  If the report comes before step 4, step 4 makes it a stray;
 * if it comes later, the report itself finds the raised position and makes
 * it a stray.  A report before step 1 is of a transaction that S shows.
 * A stray taken off in step 1 was reported before S, so S shows its row.
 * When more is reported during one claim than is remembered, the claim does
 * not raise the position; a report of several deliveries at once lets it
 * rise no further than the lowest of their keys.  A stray that finds no room
 * takes the position back to its key; claims that had started from beyond do
 * not raise it again.
 *
 * test/unit/watermark_model_test.c plays these steps in random orders.
 *
 * A row locked by somebody else: by a transaction that has registered as a
 * claimant, it is (b) and may be passed, because that transaction reports
 * what it held when it aborts, again after S; by anybody else (an operator),
 * it is unresolved.
 *
 * Aborts report from the transaction callbacks, which allocate nothing.
 * PREPARE TRANSACTION is refused for claims, since nobody would report for a
 * prepared transaction that is rolled back.  Crash restart empties shared
 * memory: claims begin at the beginning.  What nobody reported (rows put
 * right by hand, COMMIT PREPARED) is found when the dispatcher rescans.
 *
 * Versions.  A delivery may ask for a minimum consumer version.  Consumers
 * of each version have a position of their own, so that an older one leaves
 * newer deliveries behind without reading them again.
 *
 * Process: any backend; spinlocks only, nothing here raises or allocates.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_WATERMARK_H
#define OUTBOX_WATERMARK_H

#include "shared/pull_state.h"

/* What a claim knows when it starts. */
typedef struct OutboxClaimStart
{
	bool		tracked;		/* there is shared state: what follows was read from it */
	uint32		incarnation;
	uint64		nrecent;
	OutboxQueuePosition from;
	int			nstrays;
	OutboxQueuePosition strays[OUTBOX_STRAYS];
	bool		more_strays;	/* there were more than asked for */
} OutboxClaimStart;

/* A key to be put back, and who may claim its row. */
typedef struct OutboxUnresolved
{
	OutboxQueuePosition key;
	int32		min_version;
} OutboxUnresolved;

/*
 * Step 1.  Takes up to max_strays off, the earliest first; with peek, only
 * copies them.  now is when the handler was last used.
 */
extern void outbox_watermark_start(const OutboxPullRef *ref, int32 version, TimestampTz now,
								   int max_strays, bool peek, OutboxClaimStart *start);

/* Step 4.  reached: everything below it has been dealt with; NULL: do not raise. */
extern void outbox_watermark_finish(const OutboxPullRef *ref, int32 version,
									const OutboxClaimStart *start, const OutboxQueuePosition *reached,
									const OutboxUnresolved *unresolved, int nunresolved);

/* The highest position of the consumer versions that may claim such a row. */
extern bool outbox_watermark_is_behind(const OutboxPullRef *ref, const OutboxQueuePosition *key, int32 min_version);

/* Report a delivery: it has committed, or its claim has been rolled back. */
extern void outbox_watermark_report(const OutboxPullRef *ref, const OutboxQueuePosition *key);

/* Report several at once by the lowest of their keys and the lowest of their ids. */
extern void outbox_watermark_report_several(const OutboxPullRef *ref, const OutboxQueuePosition *lowest,
											const pg_uuid_t *lowest_id);

/* Report that a message left its place on an ordered handler: its key may have a new head. */
extern void outbox_watermark_revisit(const OutboxPullRef *ref, const pg_uuid_t *id);

/* Anything may have changed: claims begin at the beginning. */
extern void outbox_watermark_reset(const OutboxPullRef *ref);

/* Claimants: transactions whose row locks mean that they have claimed.  False: no room, which is allowed. */
extern bool outbox_claimant_add(const OutboxPullRef *ref, TransactionId xid);
extern void outbox_claimant_remove(const OutboxPullRef *ref, TransactionId xid);
extern bool outbox_claimant_is(const OutboxPullRef *ref, TransactionId xid);

/*
 * Ordered handlers: the id below which nothing of a message key is
 * outstanding, so that a long drained key is not read from its beginning.
 * Kept by the same rules as the position.  False when none is known.
 */
extern bool outbox_key_floor_get(const OutboxPullRef *ref, const char *key, int len, pg_uuid_t *id);
extern void outbox_key_floor_raise(const OutboxPullRef *ref, const OutboxClaimStart *start,
								   const char *key, int len, const pg_uuid_t *id);

#endif							/* OUTBOX_WATERMARK_H */
