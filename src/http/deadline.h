/*-------------------------------------------------------------------------
 *
 * deadline.h
 *		What must happen when: the timeouts of everything that is out.
 *
 * A binary heap of entries embedded in their owners.  A new deadline is as a
 * rule the latest one, so that setting and clearing cost a few compares.
 * Pure: no clock, no curl.  Process: the dispatcher.  Single-threaded.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_DEADLINE_H
#define OUTBOX_HTTP_DEADLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct OutboxDeadline
{
	int64_t		at;				/* in the unit of clock.h */
	int			place;			/* 1 and up: where in the heap; 0: not in it */
} OutboxDeadline;

typedef struct OutboxDeadlines
{
	OutboxDeadline **heap;		/* heap[1] is the earliest */
	int			count;
	int			room;
} OutboxDeadlines;

/* Make room for one more entry than there are.  False: out of memory. */
extern bool outbox_deadlines_reserve(OutboxDeadlines *all);

/* Set or move an entry.  Room for a new one must have been reserved. */
extern void outbox_deadline_set(OutboxDeadlines *all, OutboxDeadline *entry, int64_t at);

/* Take an entry out; nothing happens when it is not in. */
extern void outbox_deadline_clear(OutboxDeadlines *all, OutboxDeadline *entry);

/* The earliest entry, or NULL. */
static inline OutboxDeadline *
outbox_deadlines_first(const OutboxDeadlines *all)
{
	return all->count > 0 ? all->heap[1] : NULL;
}

/* Forget every entry and give the memory back. */
extern void outbox_deadlines_free(OutboxDeadlines *all);

#endif							/* OUTBOX_HTTP_DEADLINE_H */
