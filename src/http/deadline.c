/*-------------------------------------------------------------------------
 *
 * deadline.c
 *		What must happen when; see deadline.h.
 *
 *-------------------------------------------------------------------------
 */
#include "http/deadline.h"

#include <stdlib.h>

#define DEADLINES_FIRST_ROOM 64

static void
put(OutboxDeadlines *all, int place, OutboxDeadline *entry)
{
	all->heap[place] = entry;
	entry->place = place;
}

static void
sift_up(OutboxDeadlines *all, int place, OutboxDeadline *entry)
{
	while (place > 1 && all->heap[place / 2]->at > entry->at)
	{
		put(all, place, all->heap[place / 2]);
		place /= 2;
	}
	put(all, place, entry);
}

static void
sift_down(OutboxDeadlines *all, int place, OutboxDeadline *entry)
{
	for (;;)
	{
		int			child = place * 2;

		if (child > all->count)
			break;
		if (child < all->count && all->heap[child + 1]->at < all->heap[child]->at)
			child++;
		if (all->heap[child]->at >= entry->at)
			break;
		put(all, place, all->heap[child]);
		place = child;
	}
	put(all, place, entry);
}

/* Put an entry where it belongs, starting from a place that is free. */
static void
settle_in(OutboxDeadlines *all, int place, OutboxDeadline *entry)
{
	if (place > 1 && all->heap[place / 2]->at > entry->at)
		sift_up(all, place, entry);
	else
		sift_down(all, place, entry);
}

bool
outbox_deadlines_reserve(OutboxDeadlines *all)
{
	OutboxDeadline **heap;
	int			room;

	if (all->count + 1 < all->room)
		return true;
	room = all->room > 0 ? all->room * 2 : DEADLINES_FIRST_ROOM;
	heap = realloc(all->heap, room * sizeof(*heap));
	if (heap == NULL)
		return false;
	all->heap = heap;
	all->room = room;
	return true;
}

void
outbox_deadline_set(OutboxDeadlines *all, OutboxDeadline *entry, int64_t at)
{
	entry->at = at;
	if (entry->place == 0)
		sift_up(all, ++all->count, entry);
	else
		settle_in(all, entry->place, entry);
}

void
outbox_deadline_clear(OutboxDeadlines *all, OutboxDeadline *entry)
{
	int			place = entry->place;
	OutboxDeadline *last;

	if (place == 0)
		return;
	entry->place = 0;
	last = all->heap[all->count--];
	if (last != entry)
		settle_in(all, place, last);
}

void
outbox_deadlines_free(OutboxDeadlines *all)
{
	free(all->heap);
	all->heap = NULL;
	all->count = 0;
	all->room = 0;
}
