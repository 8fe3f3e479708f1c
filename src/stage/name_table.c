/*-------------------------------------------------------------------------
 *
 * name_table.c
 *		Hash tables whose keys are names that are not NUL-terminated.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "utils/memutils.h"

#include "stage/name_table.h"

static uint32
name_hash(const void *key, Size keysize)
{
	const OutboxNameKey *name = key;

	return hash_bytes((const unsigned char *) name->name, name->len);
}

static int
name_match(const void *a, const void *b, Size keysize)
{
	const OutboxNameKey *left = a;
	const OutboxNameKey *right = b;

	if (left->len != right->len)
		return 1;
	return memcmp(left->name, right->name, left->len);
}

HTAB *
outbox_name_table_create(const char *title, Size entrysize, MemoryContext context)
{
	HASHCTL		ctl = {0};

	ctl.keysize = sizeof(OutboxNameKey);
	ctl.entrysize = entrysize;
	ctl.hash = name_hash;
	ctl.match = name_match;
	ctl.hcxt = context;
	return hash_create(title, 256, &ctl, HASH_ELEM | HASH_FUNCTION | HASH_COMPARE | HASH_CONTEXT);
}

void *
outbox_name_table_find(HTAB *table, const char *name, int len)
{
	OutboxNameKey key = {name, len};

	return hash_search(table, &key, HASH_FIND, NULL);
}

void *
outbox_name_table_enter(HTAB *table, const char *name, int len, MemoryContext context, bool *found)
{
	OutboxNameKey key = {name, len};
	char	   *copy;

	if (hash_search(table, &key, HASH_FIND, found) == NULL)
	{
		copy = MemoryContextAlloc(context, Max(len, 1));
		memcpy(copy, name, len);
		key.name = copy;
	}
	return hash_search(table, &key, HASH_ENTER, found);
}
