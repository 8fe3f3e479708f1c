/*-------------------------------------------------------------------------
 *
 * name_table.h
 *		Hash tables whose keys are names that are not NUL-terminated.
 *
 * An entry begins with an OutboxNameKey.  Tables and the names in them live
 * as long as the memory context they were made in.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_NAME_TABLE_H
#define OUTBOX_NAME_TABLE_H

#include "outbox.h"

#include "utils/hsearch.h"

typedef struct OutboxNameKey
{
	const char *name;
	int			len;
} OutboxNameKey;

extern HTAB *outbox_name_table_create(const char *title, Size entrysize, MemoryContext context);

/* Find an entry; NULL if there is none. */
extern void *outbox_name_table_find(HTAB *table, const char *name, int len);

/* Find or make an entry; a new one gets its own copy of the name in context. */
extern void *outbox_name_table_enter(HTAB *table, const char *name, int len, MemoryContext context, bool *found);

#endif							/* OUTBOX_NAME_TABLE_H */
