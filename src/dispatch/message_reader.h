/*-------------------------------------------------------------------------
 *
 * message_reader.h
 *		Reads messages as the request formats want them.
 *
 * Process: the dispatcher, inside a transaction.  By primary key, with an
 * index scan of its own: there is no plan that could go wrong.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_MESSAGE_READER_H
#define OUTBOX_MESSAGE_READER_H

#include "utils/snapshot.h"

#include "format/message.h"

/*
 * Open the table under a snapshot.  False if somebody holds a lock that
 * conflicts: nothing is open then.  To be closed in the same transaction, or
 * forgotten when that has failed.
 */
extern bool outbox_message_reader_open(Snapshot snapshot);
extern void outbox_message_reader_close(void);
extern void outbox_message_reader_forget(void);

/*
 * The message of that id, as one chunk in a memory context; NULL if there is
 * none (deleted by hand).  A large payload (memory.h) is left out: it has
 * none then, but the length of its stored form.
 */
extern OutboxMessage *outbox_message_read(const pg_uuid_t *id, MemoryContext context);

/*
 * Its payload by itself, in the stored form, decompressed, in a memory
 * context; NULL if there is no such message.  Raises if it is of another kind
 * by now.
 */
extern struct varlena *outbox_message_read_payload(const pg_uuid_t *id, OutboxPayloadKind kind, MemoryContext context);

/* The one that was read must be durable before it is sent (durable.h). */
extern void outbox_message_note_durability(void);

#endif							/* OUTBOX_MESSAGE_READER_H */
