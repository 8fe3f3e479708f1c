/*-------------------------------------------------------------------------
 *
 * memory.h
 *		How much memory payloads may take: outbox.max_memory.
 *
 * One half of it is for deliveries, with what they carry and with the requests
 * that it goes into; the other for large payloads (payload.h).  Neither waits
 * for the other.  Of each half a lane may have twice what is free of it, so
 * that the more lanes want some the less each may have, and something is left
 * for one that had none: a slow receiver with much to come leaves the others
 * in peace.
 *
 * Process: the dispatcher.  This only counts.  Who wants memory and finds none
 * says so, and is looked at again when some has been given back.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_DISPATCH_MEMORY_H
#define OUTBOX_DISPATCH_MEMORY_H

#include "dispatch/lane.h"

/* A payload whose stored form, decompressed, is longer than this is large. */
#define OUTBOX_LARGE_PAYLOAD (64 * 1024)

/* Once per process: have memory that is given back leave it. */
extern void outbox_memory_init(void);

/* So much more is held, or less; what each lane has of it is the caller's to count. */
extern void outbox_memory_count(OutboxMemory which, int64 bytes);

/* What is free; and how much of that a lane may have, not above zero if it has to wait. */
extern int64 outbox_memory_free(OutboxMemory which);
extern int64 outbox_memory_allowance(OutboxMemory which, const OutboxLane *lane);

/* Is nothing held of it? */
extern bool outbox_memory_is_unused(OutboxMemory which);

/* So much is wanted, and will be looked for if it is not free; was any, since this was asked last? */
extern void outbox_memory_is_wanted(OutboxMemory which, size_t bytes);
extern bool outbox_memory_was_wanted(void);

/* Was any given back since this was asked last? */
extern bool outbox_memory_was_freed(void);

#endif							/* OUTBOX_DISPATCH_MEMORY_H */
