/*-------------------------------------------------------------------------
 *
 * memory.c
 *		How much memory payloads may take: outbox.max_memory.
 *
 * See memory.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "dispatch/memory.h"
#include "guc.h"

/* A lane may have so many times what is free. */
#define SHARE 2

/* The last row that is read may take what is not free any more: that much is never given away. */
#define RESERVE (4 * OUTBOX_LARGE_PAYLOAD)

static int64 held[OUTBOX_MEMORIES];
static bool wanted = false;
static bool freed = false;

void
outbox_memory_init(void)
{
	/*
	 * Left to itself, the C library serves large pieces from its heap once one
	 * of that size has been freed, and the heap shrinks only at its end.
	 */
#ifdef __GLIBC__
	(void) mallopt(M_MMAP_THRESHOLD, 512 * 1024);
	(void) mallopt(M_TRIM_THRESHOLD, 2 * 1024 * 1024);
#endif
}

void
outbox_memory_count(OutboxMemory which, int64 bytes)
{
	held[which] += bytes;
	if (bytes < 0)
		freed = true;
}

int64
outbox_memory_free(OutboxMemory which)
{
	int64		half = (int64) outbox_max_memory * 1024 / OUTBOX_MEMORIES;

	return half - held[which] - (which == OUTBOX_MEMORY_DELIVERIES ? RESERVE : 0);
}

int64
outbox_memory_allowance(OutboxMemory which, const OutboxLane *lane)
{
	int64		available = outbox_memory_free(which);

	return Min(available, SHARE * available - (int64) lane->memory[which]);
}

bool
outbox_memory_is_unused(OutboxMemory which)
{
	return held[which] == 0;
}

void
outbox_memory_is_wanted(OutboxMemory which, size_t bytes)
{
	if ((int64) bytes > outbox_memory_free(which))
		wanted = true;
}

bool
outbox_memory_was_wanted(void)
{
	bool		result = wanted;

	wanted = false;
	return result;
}

bool
outbox_memory_was_freed(void)
{
	bool		result = freed;

	freed = false;
	return result;
}
