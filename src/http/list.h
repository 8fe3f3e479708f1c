/*-------------------------------------------------------------------------
 *
 * list.h
 *		Doubly linked lists of what embeds a link.
 *
 * A list is a link of its own that points to itself when empty.  Pure.
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_LIST_H
#define OUTBOX_HTTP_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct OutboxLink
{
	struct OutboxLink *previous;
	struct OutboxLink *next;
} OutboxLink;

/* An empty list, for static and for later initialization. */
#define OUTBOX_LIST(name) {&(name), &(name)}

static inline void
outbox_list_init(OutboxLink *list)
{
	list->previous = list->next = list;
}

static inline bool
outbox_list_is_empty(const OutboxLink *list)
{
	return list->next == list;
}

/* Add at the end. */
static inline void
outbox_list_append(OutboxLink *list, OutboxLink *link)
{
	link->next = list;
	link->previous = list->previous;
	list->previous->next = link;
	list->previous = link;
}

/* Take a link out of whatever list it is in. */
static inline void
outbox_list_remove(OutboxLink *link)
{
	link->previous->next = link->next;
	link->next->previous = link->previous;
	link->previous = link->next = link;
}

/* Move all links of one list to another, which is empty. */
static inline void
outbox_list_move(OutboxLink *to, OutboxLink *from)
{
	if (outbox_list_is_empty(from))
		return;
	*to = *from;
	to->previous->next = to->next->previous = to;
	outbox_list_init(from);
}

/* What embeds a link under that name. */
#define OUTBOX_LINKED(type, member, link) \
	((type *) ((char *) (link) - offsetof(type, member)))

#endif							/* OUTBOX_HTTP_LIST_H */
