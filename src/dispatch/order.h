/*-------------------------------------------------------------------------
 *
 * order.h
 *		Which delivery of a message key may go next, on ordered lanes.
 *
 * Process: the dispatcher.  An ordered lane knows the keys of the deliveries
 * it has in memory, its members, in this order:
 *
 *		answered, not settled | out: queued or sent | waiting | just read
 *
 * At most one of a key is out, or the consecutive ones that share a request.
 * The next one goes out as soon as the one before has been answered with
 * success, before that is settled; whatever else an answer says, what waits
 * behind it is forgotten and read again when its turn comes.  Outcomes of a
 * key are settled in the order of their answers.  So after a crash a receiver
 * may see the last messages of a key again, in order and without a gap, but
 * never sees one for the first time before the one it follows.  On a handler
 * with an on_settle function nothing is sent ahead: only when the function's
 * transaction has committed has an answer been a success.
 *
 * Rows that cannot go yet are passed by and forgotten: what ends their wait
 * (a settlement, a notice, a due time, a rescan) makes the key wanted, and then
 * it is scanned in the index.  What is remembered of keys without members is
 * bounded: that their head is not due yet, or where a key scan may start.
 *
 * Nothing here reads the database (key_scan.c does) or the network.
 *
 * The states in a picture: doc/architecture.md, "The ordered key".
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ORDER_H
#define OUTBOX_ORDER_H

#include "dispatch/lane.h"
#include "shared/shmem.h"

/* A key that has members, is wanted, or is remembered. */
typedef struct OutboxOrderKey OutboxOrderKey;

/* What it is called. */
extern const char *outbox_order_key_text(const OutboxOrderKey *key);

/* Make an ordered lane of one that is not yet, and let go of what it knows. */
extern void outbox_order_create(OutboxLane *lane, MemoryContext context);
extern void outbox_order_free(OutboxLane *lane);

/* True if any lane is ordered. */
extern bool outbox_order_exists(void);

/*
 * Reading.  A row of a key that is not in memory was met: returns the key if
 * it has to be scanned_key, NULL if the row can be passed by.
 */
extern OutboxOrderKey *outbox_order_meet(OutboxOrder *order, const char *key,
										 const pg_uuid_t *id, TimestampTz now);

/* The next key to be scanned_key, NULL for none. */
extern OutboxOrderKey *outbox_order_next_wanted(OutboxOrder *order);
extern bool outbox_order_has_wanted(const OutboxOrder *order);

/* Lanes that have such keys and may read, up to max of them. */
extern int	outbox_order_lanes(OutboxLane **lanes, int max);

/* A key scan begins, and the key is no longer wanted; and ends, and the key may be gone. */
extern void outbox_order_begin_key_scan(OutboxOrderKey *key);

/* The id to start from.  False if that is not the floor, but the last member's. */
extern bool outbox_order_start(OutboxOrderKey *key, pg_uuid_t *id);
extern void outbox_order_end_key_scan(OutboxOrderKey *key);

/* How many deliveries the key scan may take: 0 if none, whatever it finds. */
extern int	outbox_order_room(const OutboxOrderKey *key);

/* Would one that it takes be the first to go? */
extern bool outbox_order_goes_first(const OutboxOrderKey *key);

/* Is this member, which the scan meets outstanding, no obstacle to those behind it? */
extern bool outbox_order_is_under_way(const OutboxDelivery *delivery);

/* Nothing before this id is outstanding; and the scan has stepped over so many entries of settled rows. */
extern void outbox_order_raise_floor(OutboxOrderKey *key, const pg_uuid_t *id);
extern void outbox_order_stepped_over(OutboxOrderKey *key, int entries);

/* The scan stops: rows are left; and all up to the last member has been seen. */
extern void outbox_order_leaves_rows(OutboxOrderKey *key);
extern void outbox_order_is_complete(OutboxOrderKey *key);

/* What a key scan found: the key's head blocks it; or the key is to be scanned again. */
extern void outbox_order_block(OutboxOrderKey *key, const pg_uuid_t *head, TimestampTz until);
extern void outbox_order_want(OutboxOrderKey *key);

/* It takes a delivery: those of the key that are not out yet and have a greater id are forgotten. */
extern void outbox_order_take(OutboxOrderKey *key, OutboxDelivery *delivery);

/* The transaction that read it has committed: true if it may go out, false if it waits. */
extern bool outbox_order_arrived(OutboxDelivery *delivery);

/* How many wait on the lane for one of their key. */
extern int	outbox_order_waiting(const OutboxOrder *order);

/*
 * Sending.  The delivery that may follow this one in the same request; NULL
 * for none.  And one that comes back unsent: true if it has to wait behind
 * another one of its key that comes back too.
 */
extern OutboxDelivery *outbox_order_follower(OutboxDelivery *delivery);
extern bool outbox_order_taken_back(OutboxDelivery *delivery);

/*
 * Answered, with its verdict: lets the next one go, or forgets those behind.
 * False if it shared a request with an earlier one of its key that was not
 * done with: then it counts as not tried, and has to be forgotten.
 */
extern bool outbox_order_answered(OutboxDelivery *delivery);

/*
 * Settling.  True if an earlier one of the key has been answered and is not
 * settled yet.  Somebody holds the row: until it leaves memory, nothing that
 * waits behind it goes.  Then what became of it in the running transaction,
 * and that this has failed.
 */
extern bool outbox_order_must_wait(const OutboxDelivery *delivery);
extern void outbox_order_pin(OutboxDelivery *delivery);
extern void outbox_order_settled(OutboxDelivery *delivery, bool outstanding, TimestampTz due_at);
extern void outbox_order_unsettled(OutboxDelivery *delivery);

/* A delivery leaves memory, settled or forgotten, whether it has a key or not. */
extern void outbox_order_discard(OutboxDelivery *delivery);

/* Rows changed: what waits may be stale, and what is out may have been requeued. */
extern void outbox_order_changed(OutboxOrder *order, const OutboxNotice *notice);

/* Forget what waits behind others; or that heads block their keys. */
extern void outbox_order_forget_waiting(OutboxOrder *order);
extern void outbox_order_forget_blocked(OutboxOrder *order);

#endif							/* OUTBOX_ORDER_H */
