/*-------------------------------------------------------------------------
 *
 * pull_handler.c
 *		A pull handler as consumers' backends know it, and who may consume it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "common/query_row.h"
#include "common/session.h"
#include "common/sql_version.h"
#include "consume/pull_handler.h"
#include "guc.h"
#include "policy/retry_policy.h"
#include "shared/doorbell.h"
#include "shared/shmem.h"

/* What is cached of a handler. */
typedef struct CachedHandler
{
	char		name[NAMEDATALEN];	/* hash key; names of handlers are no longer */
	bool		push;
	OutboxPullHandler handler;
	char	   *why_copy;		/* NULL: nothing is held */
	int			nconsumers;
	Oid		   *consumers;		/* roles */
} CachedHandler;

static MemoryContext cache_context = NULL;
static HTAB *cache = NULL;
static uint32 cache_generation = 0;
static char cache_site[NAMEDATALEN];	/* outbox.site, which what is held goes by */

/* $1 names the handler; the order of the columns is that of the enum below. */
#define SELECT_HANDLER \
	"SELECT h.id, h.url IS NOT NULL, h.dropped_at IS NOT NULL, s.paused_at IS NOT NULL, h.ordered, " \
	"h.on_dead OPERATOR(pg_catalog.=) 'block', " \
	"outbox_internal.why_copy(), " \
	"(SELECT pg_catalog.array_agg(c.role_oid) FROM outbox.consumer c " \
	" WHERE c.handler_id OPERATOR(pg_catalog.=) h.id AND c.home OPERATOR(pg_catalog.=) outbox_internal.home()), " \
	OUTBOX_RETRY_COLUMNS " " \
	"FROM outbox.handler h LEFT JOIN outbox.handler_status s ON s.handler_id OPERATOR(pg_catalog.=) h.id "

/* The live handler of the name, else the one dropped last. */
static OutboxPlan by_name_plan = {
	.sql = SELECT_HANDLER "WHERE h.name OPERATOR(pg_catalog.=) $1 AND h.id OPERATOR(pg_catalog.<>) 0 "
	"ORDER BY h.dropped_at IS NULL DESC, h.id DESC LIMIT 1",
	.nargs = 1,
	.argtypes = {TEXTOID},
};

static OutboxPlan by_id_plan = {
	.sql = SELECT_HANDLER "WHERE h.id OPERATOR(pg_catalog.=) $1 AND h.dropped_at IS NULL AND h.id OPERATOR(pg_catalog.<>) 0",
	.nargs = 1,
	.argtypes = {INT4OID},
};

enum
{
	COL_ID = 1,
	COL_PUSH,
	COL_DROPPED,
	COL_PAUSED,
	COL_ORDERED,
	COL_BLOCK,
	COL_WHY_COPY,
	COL_CONSUMERS,
	COL_RETRY
};

static void
read_consumers(CachedHandler *entry, Datum array)
{
	Datum	   *elems;

	deconstruct_array(DatumGetArrayTypeP(array), OIDOID, sizeof(Oid), true, TYPALIGN_INT,
					  &elems, NULL, &entry->nconsumers);
	entry->consumers = palloc(sizeof(Oid) * Max(1, entry->nconsumers));
	for (int i = 0; i < entry->nconsumers; i++)
		entry->consumers[i] = DatumGetObjectId(elems[i]);
	pfree(elems);
}

/* Read a row into entry, everything it points to in context. */
static void
read_handler(CachedHandler *entry, const OutboxQueryRow *row, MemoryContext context)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	OutboxPullHandler *handler = &entry->handler;
	bool		isnull;
	Datum		consumers;

	memset(handler, 0, sizeof(OutboxPullHandler));
	handler->id = outbox_query_int32(row, COL_ID);
	entry->push = outbox_query_bool(row, COL_PUSH);
	handler->dropped = outbox_query_bool(row, COL_DROPPED);
	handler->paused = outbox_query_bool(row, COL_PAUSED);
	handler->ordered = outbox_query_bool(row, COL_ORDERED);
	handler->block_on_dead = outbox_query_bool(row, COL_BLOCK);
	entry->why_copy = outbox_query_text(row, COL_WHY_COPY);
	entry->nconsumers = 0;
	consumers = outbox_query_datum(row, COL_CONSUMERS, &isnull);
	if (!isnull)
		read_consumers(entry, consumers);
	outbox_read_retry_policy(row->tuple, row->desc, COL_RETRY, &handler->retry);
	MemoryContextSwitchTo(oldcontext);
}

/*
 * Read the handler as it is committed now, whatever snapshot the caller has:
 * what is read under an old one must not be cached as the present state.
 */
static bool
load_handler(OutboxPlan *plan, Datum which, CachedHandler *entry, MemoryContext context)
{
	Datum		values[1] = {which};
	OutboxSecurity security;
	bool		found;

	outbox_become_owner(&security);
	PushActiveSnapshot(GetLatestSnapshot());
	SPI_connect();
	found = outbox_execute(plan, values, NULL, true, 0, SPI_OK_SELECT) > 0;
	if (found)
	{
		OutboxQueryRow row = outbox_query_row(0);

		read_handler(entry, &row, context);
	}
	SPI_finish();
	PopActiveSnapshot();
	outbox_become_caller(&security);
	return found;
}

/* Make the cache empty if it is not of this generation, or of another site. */
static void
prepare_cache(uint32 generation)
{
	HASHCTL		ctl;

	if (cache != NULL && cache_generation == generation && strcmp(cache_site, outbox_site) == 0)
		return;
	cache = NULL;
	if (cache_context == NULL)
		cache_context = AllocSetContextCreate(TopMemoryContext, "outbox pull handlers",
											  ALLOCSET_SMALL_SIZES);
	else
		MemoryContextReset(cache_context);
	ctl.keysize = NAMEDATALEN;
	ctl.entrysize = sizeof(CachedHandler);
	ctl.hcxt = cache_context;
	cache = hash_create("outbox pull handlers", 16, &ctl, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
	cache_generation = generation;
	strlcpy(cache_site, outbox_site, sizeof(cache_site));
}

static CachedHandler *
lookup_cached(OutboxDatabase *db, const char *name)
{
	uint32		generation = pg_atomic_read_u32(&db->handler_generation);
	CachedHandler *entry;
	CachedHandler loaded;

	prepare_cache(generation);
	entry = hash_search(cache, name, HASH_FIND, NULL);
	if (entry != NULL)
		return entry;

	/* Read after the generation was: a change that this does not see moves the generation. */
	if (!load_handler(&by_name_plan, CStringGetTextDatum(name), &loaded, cache_context))
		return NULL;
	strlcpy(loaded.name, name, NAMEDATALEN);
	entry = hash_search(cache, name, HASH_ENTER, NULL);
	*entry = loaded;
	return entry;
}

static CachedHandler *
lookup(const char *name)
{
	OutboxDatabase *db = outbox_my_database();
	CachedHandler *entry;

	if (strlen(name) >= NAMEDATALEN)
		return NULL;
	if (db != NULL && !outbox_doorbell_handlers_noted())
		return lookup_cached(db, name);
	entry = palloc(sizeof(CachedHandler));
	return load_handler(&by_name_plan, CStringGetTextDatum(name), entry, CurrentMemoryContext) ? entry : NULL;
}

static Oid
extension_owner(void)
{
	OutboxSecurity security;
	Oid			owner;

	outbox_become_owner(&security);
	owner = GetUserId();
	outbox_become_caller(&security);
	return owner;
}

/*
 * The owner, and members of the roles that outbox.grant_consumer() named.
 * Oids of dropped roles are nobody's: they are not given out again.
 */
static bool
may_consume(const CachedHandler *entry, Oid user)
{
	if (has_privs_of_role(user, extension_owner()))
		return true;
	for (int i = 0; i < entry->nconsumers; i++)
	{
		if (OidIsValid(entry->consumers[i]) && has_privs_of_role(user, entry->consumers[i]))
			return true;
	}
	return false;
}

static void
set_ref(OutboxPullHandler *handler, bool create)
{
	handler->ref.dboid = MyDatabaseId;
	handler->ref.handler_id = handler->id;
	/* Without a slot the database's commits are not reported, so there must be no position. */
	handler->ref.state = outbox_my_database() == NULL ? NULL :
		outbox_pull_state(MyDatabaseId, handler->id, create);
}

void
outbox_pull_handler(const char *name, OutboxPullUse use, OutboxPullHandler *handler)
{
	CachedHandler *entry;

	outbox_require_sql(OUTBOX_MAY_CONSUME);
	entry = lookup(name);
	if (entry == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("handler \"%s\" does not exist", name),
				 errhint("Create it with outbox.create_handler() and no URL.")));
	/* First of all: whoever may not consume it learns nothing more of the handler. */
	if (!may_consume(entry, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied to consume handler \"%s\"", name),
				 errhint("Its owner can allow it: SELECT outbox.grant_consumer(%s, %s).",
						 quote_literal_cstr(name), quote_literal_cstr(GetUserNameFromId(GetUserId(), false)))));
	if (entry->handler.dropped && use == OUTBOX_PULL_CLAIM)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("handler \"%s\" was dropped", name),
				 errhint("Nothing can be claimed from a dropped handler; create one.")));
	if (entry->push)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("handler \"%s\" is a push handler", name),
				 errdetail("It has a URL, and the dispatcher delivers its messages there."),
				 errhint("Create a handler of its own, without a URL, to claim messages from.")));
	if (entry->why_copy != NULL && use == OUTBOX_PULL_CLAIM)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("deliveries are held because this database is a copy"),
				 errdetail("%c%s.", pg_toupper((unsigned char) entry->why_copy[0]), entry->why_copy + 1),
				 errhint("Once it is certain that the original does not deliver them, call outbox.adopt().")));

	*handler = entry->handler;
	set_ref(handler, true);
}

bool
outbox_pull_handler_by_id(int32 id, OutboxPullHandler *handler)
{
	CachedHandler entry;

	if (!load_handler(&by_id_plan, Int32GetDatum(id), &entry, CurrentMemoryContext) || entry.push)
		return false;
	*handler = entry.handler;
	set_ref(handler, false);
	return true;
}
