/*-------------------------------------------------------------------------
 *
 * replace.h
 *		The latest message of a replace_key takes the place of the one before.
 *
 * Stagers of one key in one tenant wait for each other until the end of their
 * transactions, so ids of its messages increase as they commit, and the one
 * before is the one with the highest id.  Only its deliveries have to be
 * looked at: it has replaced those before it in the same way.  What is found
 * is found under the latest snapshot, at every isolation level.
 *
 * A delivery that has been tried, or leased, stays; so does one that an
 * operator has requeued after that, and one that somebody has locked, who is
 * about to do the one or the other.
 *
 * Process: any backend, in a transaction that may write.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_REPLACE_H
#define OUTBOX_REPLACE_H

#include "stage/new_message.h"

/* The message before. */
typedef struct OutboxReplaced
{
	bool		is_outstanding; /* has it deliveries that were not tried? */
	pg_uuid_t	id;
	TimestampTz since;			/* when the first message was staged of those that have replaced each other */
} OutboxReplaced;

/*
 * Wait for the key, and find what the message is to replace.  If there is
 * something, the message is not put off beyond max_delay after the first of
 * those; arguments->due_at is set accordingly.
 */
extern void outbox_replace_find(OutboxNewMessage *message, OutboxStageArguments *arguments, OutboxReplaced *replaced);

/*
 * Cancel what was found, with code "replaced", but for what was tried
 * meanwhile, and have the dispatcher hear of it.
 */
extern void outbox_replace(const OutboxReplaced *replaced);

#endif							/* OUTBOX_REPLACE_H */
