/*-------------------------------------------------------------------------
 *
 * unrouted.c
 *		Counts the messages that no handler takes, by topic.
 *
 * See unrouted.h.  The commit copies a few counts under the slot's mutex and
 * compares hashes before it compares names, so it holds that for about as
 * long as to leave a notice or two.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "common/result_set.h"
#include "shared/unrouted.h"

PG_FUNCTION_INFO_V1(outbox_sql_unrouted);

#define UNROUTED_COLUMNS 5

/* Topics that one transaction tells apart. */
#define MAX_NOTED 8

/* What the running transaction has staged; the topics are copies. */
static OutboxUnroutedTopic noted[MAX_NOTED];
static int	nnoted = 0;

static bool
is_topic(const OutboxUnroutedTopic *entry, uint32 hash, const char *topic, int len)
{
	return entry->hash == hash && entry->len == len && memcmp(entry->topic, topic, len) == 0;
}

static void
name_entry(OutboxUnroutedTopic *entry, uint32 hash, const char *topic, int len)
{
	memset(entry, 0, sizeof(*entry));
	entry->hash = hash;
	entry->len = len;
	memcpy(entry->topic, topic, len);
}

void
outbox_unrouted_note(const char *topic, int len)
{
	uint32		hash = hash_bytes((const unsigned char *) topic, len);
	int			i = 0;

	/* The slot is looked up while that may still wait. */
	if (outbox_my_database() == NULL || len > OUTBOX_TOPIC_MAX)
		return;
	while (i < nnoted && !is_topic(&noted[i], hash, topic, len))
		i++;
	if (i == nnoted)
	{
		/* One transaction with so many topics that nobody takes tells enough by its first ones. */
		if (nnoted == MAX_NOTED)
			return;
		name_entry(&noted[nnoted++], hash, topic, len);
	}
	noted[i].messages++;
}

/* The entry of a topic, in place of the one that was met least recently if need be.  Caller holds the mutex. */
static OutboxUnroutedTopic *
find_entry(OutboxDatabase *db, const OutboxUnroutedTopic *of, TimestampTz now)
{
	OutboxUnroutedTopic *oldest = NULL;

	for (int i = 0; i < OUTBOX_UNROUTED_TOPICS; i++)
	{
		OutboxUnroutedTopic *entry = &db->unrouted[i];

		if (is_topic(entry, of->hash, of->topic, of->len))
			return entry;
		if (oldest == NULL || entry->last_at < oldest->last_at)
			oldest = entry;
	}
	name_entry(oldest, of->hash, of->topic, of->len);
	oldest->first_at = now;
	return oldest;
}

/* Add counts to those of the database, unless its slot has changed hands. */
static void
count(OutboxDatabase *db, const OutboxUnroutedTopic *counts, int n)
{
	TimestampTz now = GetCurrentTimestamp();

	SpinLockAcquire(&db->mutex);
	for (int i = 0; i < n && db->dboid == MyDatabaseId; i++)
	{
		OutboxUnroutedTopic *entry = find_entry(db, &counts[i], now);

		entry->messages += counts[i].messages;
		entry->refused += counts[i].refused;
		entry->last_at = now;
	}
	SpinLockRelease(&db->mutex);
}

void
outbox_unrouted_refused(const char *topic, int len)
{
	OutboxDatabase *db = outbox_my_database();
	OutboxUnroutedTopic entry;

	if (db == NULL || len > OUTBOX_TOPIC_MAX)
		return;
	name_entry(&entry, hash_bytes((const unsigned char *) topic, len), topic, len);
	entry.refused = 1;
	count(db, &entry, 1);
}

void
outbox_unrouted_at_commit(void)
{
	OutboxDatabase *db;

	if (nnoted == 0)
		return;
	db = outbox_remembered_database();
	if (db != NULL)
		count(db, noted, nnoted);
	nnoted = 0;
}

void
outbox_unrouted_at_abort(void)
{
	nnoted = 0;
}

/* outbox_internal.unrouted() */
Datum
outbox_sql_unrouted(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = outbox_begin_result_set(fcinfo, UNROUTED_COLUMNS);
	OutboxDatabase *db = outbox_shared ? outbox_find_database(MyDatabaseId) : NULL;
	OutboxUnroutedTopic *entries;

	if (db == NULL)
		return (Datum) 0;
	entries = palloc(sizeof(db->unrouted));
	SpinLockAcquire(&db->mutex);
	memcpy(entries, db->unrouted, sizeof(db->unrouted));
	SpinLockRelease(&db->mutex);

	for (int i = 0; i < OUTBOX_UNROUTED_TOPICS; i++)
	{
		Datum		values[UNROUTED_COLUMNS];
		bool		nulls[UNROUTED_COLUMNS] = {false};

		if (entries[i].len == 0)
			continue;
		values[0] = PointerGetDatum(cstring_to_text_with_len(entries[i].topic, entries[i].len));
		values[1] = Int64GetDatum(entries[i].messages);
		values[2] = Int64GetDatum(entries[i].refused);
		values[3] = TimestampTzGetDatum(entries[i].first_at);
		values[4] = TimestampTzGetDatum(entries[i].last_at);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
