/*-------------------------------------------------------------------------
 *
 * stage.h
 *		Staging a message from C.
 *
 * Promises what outbox.stage() does, without its check of rights: whoever
 * calls it knows in whose name.
 *
 * Process: any backend, in a transaction that may write, with an active
 * snapshot.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_STAGE_H
#define OUTBOX_STAGE_H

#include "stage/new_message.h"

/*
 * Stage a message of these arguments.  Raises what outbox.stage() does.  Its
 * id is left in the message: that of the first one, if its dedupe_key repeats.
 */
extern void outbox_stage(OutboxStageArguments *arguments, OutboxNewMessage *message);

/*
 * Stage an event of outbox itself, whose topic nobody else may use, with a
 * payload that is a jsonb value.  It is for every handler that takes the topic
 * but the one that it is about (0: about none); if there is none, nothing is
 * written and false is returned.  Nothing that users have set is in its way: no
 * rule of a topic, no limit to a payload, and not outbox.unrouted.
 */
extern bool outbox_stage_event(OutboxStageArguments *arguments, OutboxNewMessage *message, int32 about);

#endif							/* OUTBOX_STAGE_H */
