/*-------------------------------------------------------------------------
 *
 * routes.c
 *		Which handlers take a topic: the answer, cached per backend.
 *
 * Two hash tables.  One files every handler under the keys of its patterns
 * (see topic.h), so that a topic of n segments is routed with n + 1 probes
 * however many handlers there are.  The other remembers the answers for the
 * topics lately staged; it is emptied when it grows past MAX_TOPICS.
 *
 * Everything lives in one memory context below CacheMemoryContext that is
 * reset when a handler changed.  The table is read with the latest snapshot:
 * under REPEATABLE READ the transaction's own may be hours old, and an
 * answer taken from it would also mislead this backend's later transactions.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "executor/tuptable.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "common/text_array.h"
#include "compat.h"
#include "shared/shmem.h"
#include "stage/name_table.h"
#include "stage/routes.h"
#include "stage/topic.h"
#include "stage/topic_rules.h"
#include "table/relation.h"

/* A producer that makes topics up as it goes must not fill the backend's memory. */
#define MAX_TOPICS 1024

typedef struct PatternEntry
{
	OutboxNameKey key;
	int			n;
	int			size;
	OutboxRoute *routes;
} PatternEntry;

typedef struct TopicEntry
{
	OutboxNameKey key;
	OutboxRoutes *routes;
} TopicEntry;

static MemoryContext routes_context = NULL; /* patterns; reset when a handler changed */
static MemoryContext topics_context = NULL; /* its child, emptied alone as well */
static HTAB *patterns = NULL;
static HTAB *topics = NULL;

static bool callback_registered = false;
static bool routes_built = false;	/* the tables are complete */
static bool routes_stale = false;	/* a handler changed since the building began */
static Oid	handler_relid = InvalidOid; /* the table that routes were read from */
static uint32 routes_generation = 0;

/* A process has few places for such a callback, so this one serves for the topics' rules as well. */
static void
relation_changed(Datum arg, Oid relid)
{
	if (relid == handler_relid || relid == InvalidOid)
		routes_stale = true;
	outbox_topic_rules_relation_changed(relid);
}

static uint32
current_generation(void)
{
	OutboxDatabase *db = outbox_my_database();

	return db ? pg_atomic_read_u32(&db->route_generation) : 0;
}

static void
forget_topics(void)
{
	topics = NULL;
	MemoryContextReset(topics_context);
	topics = outbox_name_table_create("outbox topics", sizeof(TopicEntry), topics_context);
}

static void
forget_routes(void)
{
	routes_built = false;
	patterns = NULL;
	topics = NULL;
	topics_context = NULL;
	if (routes_context == NULL)
		routes_context = AllocSetContextCreate(CacheMemoryContext, "outbox routes",
											   ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(routes_context);
	topics_context = AllocSetContextCreate(routes_context, "outbox topics",
										   ALLOCSET_DEFAULT_SIZES);
	patterns = outbox_name_table_create("outbox patterns", sizeof(PatternEntry), routes_context);
	forget_topics();
}

static void
file_pattern(const char *pattern, int len, const OutboxRoute *route)
{
	PatternEntry *entry;
	bool		found;

	if (len == 0)
		return;
	entry = outbox_name_table_enter(patterns, pattern, outbox_pattern_key(pattern, len), routes_context, &found);
	if (!found)
	{
		entry->n = 0;
		entry->size = 1;
		entry->routes = MemoryContextAlloc(routes_context, sizeof(OutboxRoute));
	}
	else if (entry->n == entry->size)
	{
		entry->size *= 2;
		entry->routes = repalloc(entry->routes, sizeof(OutboxRoute) * entry->size);
	}
	entry->routes[entry->n++] = *route;
}

static void
file_handler(const OutboxRoute *route, Datum topics_array)
{
	text	  **patterns;
	int			n = outbox_text_array(topics_array, &patterns);

	for (int i = 0; i < n; i++)
	{
		if (patterns[i] != NULL)
			file_pattern(VARDATA_ANY(patterns[i]), VARSIZE_ANY_EXHDR(patterns[i]), route);
	}
}

/* Where outbox.handler keeps what routing needs. */
typedef struct HandlerColumns
{
	AttrNumber	id;
	AttrNumber	topics;
	AttrNumber	url;
	AttrNumber	ordered;
	AttrNumber	dropped_at;
	AttrNumber	max_age;
} HandlerColumns;

/* As extract(epoch) counts it: a day has 24 hours, whatever the clocks do. */
static int64
interval_us(const Interval *interval)
{
	return interval->time + (interval->day + interval->month % MONTHS_PER_YEAR * INT64CONST(30)) * USECS_PER_DAY +
		(int64) (interval->month / MONTHS_PER_YEAR * DAYS_PER_YEAR * USECS_PER_DAY);
}

static void
read_handler(TupleTableSlot *slot, const void *passed)
{
	const HandlerColumns *columns = passed;
	OutboxRoute route;
	Datum		max_age;
	bool		isnull;
	Datum		topics_array;

	(void) slot_getattr(slot, columns->dropped_at, &isnull);
	if (!isnull)
		return;
	route.handler_id = DatumGetInt32(slot_getattr(slot, columns->id, &isnull));
	route.ordered = DatumGetBool(slot_getattr(slot, columns->ordered, &isnull));
	(void) slot_getattr(slot, columns->url, &isnull);
	route.is_pull = isnull;
	max_age = slot_getattr(slot, columns->max_age, &isnull);
	route.max_age = isnull ? 0 : interval_us(DatumGetIntervalP(max_age));
	topics_array = slot_getattr(slot, columns->topics, &isnull);
	file_handler(&route, topics_array);
}

static void
read_handlers(void)
{
	Relation	rel = outbox_table_open("handler", AccessShareLock);
	HandlerColumns columns;

	columns.id = outbox_table_column(rel, "id");
	columns.topics = outbox_table_column(rel, "topics");
	columns.url = outbox_table_column(rel, "url");
	columns.ordered = outbox_table_column(rel, "ordered");
	columns.dropped_at = outbox_table_column(rel, "dropped_at");
	columns.max_age = outbox_table_column(rel, "max_age");

	outbox_table_read_latest(rel, read_handler, &columns);
	table_close(rel, AccessShareLock);
}

/*
 * The generation is read and the stale mark cleared before the snapshot is
 * taken.  So a change that commits meanwhile may or may not be in this
 * answer, as it may for any concurrent commit, but never stays unnoticed:
 * the next call finds the routes stale and reads again.
 */
static void
build_routes(void)
{
	if (!callback_registered)
	{
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
		callback_registered = true;
	}
	forget_routes();
	handler_relid = outbox_relation_oid("handler", false);
	routes_generation = current_generation();
	routes_stale = false;
	read_handlers();
	routes_built = true;
}

static int
compare_routes(const void *a, const void *b)
{
	int32		left = ((const OutboxRoute *) a)->handler_id;
	int32		right = ((const OutboxRoute *) b)->handler_id;

	return left < right ? -1 : left > right;
}

/* Gather what is filed under each key of the topic, each handler once. */
static OutboxRoutes *
find_routes(const char *topic, int len, MemoryContext context)
{
	PatternEntry *found[OUTBOX_TOPIC_MAX + 2];
	OutboxRoutes *result;
	int			nfound = 0;
	int			n = 0;
	int			size = 0;
	int			position = 0;
	int			key_len;

	while (outbox_next_topic_key(topic, len, &position, &key_len))
	{
		PatternEntry *entry = outbox_name_table_find(patterns, topic, key_len);

		if (entry)
		{
			found[nfound++] = entry;
			size += entry->n;
		}
	}

	result = MemoryContextAlloc(context, offsetof(OutboxRoutes, route) + sizeof(OutboxRoute) * size);
	for (int i = 0; i < nfound; i++)
	{
		memcpy(&result->route[n], found[i]->routes, sizeof(OutboxRoute) * found[i]->n);
		n += found[i]->n;
	}

	qsort(result->route, n, sizeof(OutboxRoute), compare_routes);
	result->n = 0;
	for (int i = 0; i < n; i++)
	{
		if (i == 0 || result->route[i].handler_id != result->route[result->n - 1].handler_id)
			result->route[result->n++] = result->route[i];
	}
	return result;
}

const OutboxRoutes *
outbox_routes(const char *topic, int len)
{
	TopicEntry *entry;
	OutboxRoutes *routes;
	bool		found;

	AcceptInvalidationMessages();
	if (!routes_built || routes_stale || routes_generation != current_generation())
		build_routes();

	entry = outbox_name_table_find(topics, topic, len);
	if (entry)
		return entry->routes;

	if (hash_get_num_entries(topics) >= MAX_TOPICS)
		forget_topics();
	routes = find_routes(topic, len, topics_context);
	entry = outbox_name_table_enter(topics, topic, len, topics_context, &found);
	entry->routes = routes;
	return routes;
}
