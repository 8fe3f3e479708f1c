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

#endif							/* OUTBOX_STAGE_H */
