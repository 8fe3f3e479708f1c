/*-------------------------------------------------------------------------
 *
 * dedupe.h
 *		Dedupe keys that live longer, or shorter, than their messages.
 *
 * A dedupe_key is in its message's row, and unique there, for as long as that
 * is kept; nothing here is called then.  With outbox.dedupe_window a key counts
 * for that long from when its message was staged, and no longer.  Keys that no
 * message's row can hold are in outbox.dedupe_key: those that outbox.prune() has
 * put there along with the removal of their messages, and those that were used
 * again while an older message, whose row is never changed, has them still.  The
 * new message has such a key as its reused_key.
 *
 * Never two within the window.  Whoever has put a key into a message's row looks
 * here after that: either the row that had it before was there, and was in the
 * way, or it has gone, and its key is here.  Whoever takes a key over here holds
 * the old message against removal until the end of the transaction, so that
 * others go on meeting it, and wait here.
 *
 * Process: any backend, in a transaction that may write, with SPI connected and
 * the owner's rights.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DEDUPE_H
#define OUTBOX_DEDUPE_H

#include "stage/new_message.h"

/* The message that had a dedupe_key before. */
typedef struct OutboxFirst
{
	pg_uuid_t	id;
	bool		same_topic;
} OutboxFirst;

/* Is it over for the key of a message that was staged then? */
extern bool outbox_dedupe_is_over(const OutboxNewMessage *message, TimestampTz staged_at);

/* Is the message's key one of those that are kept here, and not over?  As of now, whatever the transaction's snapshot. */
extern bool outbox_dedupe_find(const OutboxNewMessage *message, OutboxFirst *first);

/*
 * The message that has the key in its row, and is held, is over: take the key
 * for this one.  False if another one has, and that is not over.
 */
extern bool outbox_dedupe_take_over(const OutboxNewMessage *message);

/* Take back the row of this message, which this transaction has inserted. */
extern void outbox_dedupe_withdraw(const OutboxNewMessage *message);

#endif							/* OUTBOX_DEDUPE_H */
