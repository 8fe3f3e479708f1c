/*-------------------------------------------------------------------------
 *
 * fetch.c
 *		Reads what is due, lane by lane.
 *
 * See fetch.h.  Durability: rows of an asynchronous commit are visible
 * before they are safe.  The xmin of every row that is read is looked up in
 * the commit log, which knows up to where WAL must be flushed for it; as a
 * rule that is nowhere, because the commit was synchronous.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "access/relation.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "compat.h"
#include "dispatch/fetch.h"
#include "dispatch/key_scan.h"
#include "dispatch/order.h"
#include "dispatch/settle.h"
#include "format/message.h"
#include "table/outstanding.h"
#include "table/relation.h"

/* Index entries that one look at a lane may examine, and one slice of a rescan. */
#define MAX_ENTRIES 20000
#define MAX_RESCAN_ENTRIES 2000

/* Payload bytes that one look at a lane may read. */
#define MAX_READ_BYTES (1024 * 1024)

/* Lanes whose successors one transaction reads. */
#define MAX_SUCCESSOR_LANES 64

/* Messages between two of a lane that are stepped over before the index is descended again. */
#define MAX_MESSAGE_STEPS 4

/* After a slice of a rescan the lane's next one waits this many times its duration. */
#define RESCAN_DUTY 30

/* Where a lane stood before this transaction read it. */
typedef struct SavedLane
{
	OutboxLane *lane;
	OutboxQueuePosition position;
	bool		more;
	TimestampTz next_due;
	int			nspans;
	OutboxSpan	spans[OUTBOX_MAX_SPANS];
} SavedLane;

/* What is open while a transaction reads. */
typedef struct Reader
{
	Relation	delivery;
	Relation	outstanding;
	Relation	message;
	Relation	message_pkey;
	IndexScanDesc scan;
	OutboxOutstandingStart start;
	IndexScanDesc message_scan;
	bool		message_scan_stands;	/* on an entry: message_at */
	pg_uuid_t	message_at;
	TupleTableSlot *slot;
	TupleTableSlot *message_slot;
} Reader;

typedef enum ReadEnd
{
	READ_DONE,					/* nothing further in the range */
	READ_FUTURE,				/* what follows is not due yet */
	READ_ENOUGH					/* a bound was reached: there may be more */
} ReadEnd;

typedef enum DeliveryColumn
{
	D_ATTEMPTS, D_BUDGET_FROM, D_STREAK, D_CODE, D_COLUMNS
} DeliveryColumn;

static const char *const delivery_column_names[D_COLUMNS] = {
	"attempts", "budget_from", "streak", "code"
};

typedef enum MessageColumn
{
	M_HEADERS, M_TOPIC, M_KEY, M_TENANT, M_CORRELATION_ID, M_PAYLOAD, M_STAGED_AT, M_COLUMNS
} MessageColumn;

static const char *const message_column_names[M_COLUMNS] = {
	"headers", "topic", "key", "tenant", "correlation_id", "payload", "staged_at"
};

static AttrNumber delivery_columns[D_COLUMNS];
static AttrNumber message_columns[M_COLUMNS];

static MemoryContext deliveries_context = NULL;
static Reader reader;
static List *saved_lanes = NIL; /* outlives the transaction, which can fail after its commit */
static dlist_head fetched = DLIST_STATIC_INIT(fetched);
static OutboxDelivery *reading = NULL;	/* the one whose message is being read */

static XLogRecPtr flush_point = InvalidXLogRecPtr;
static TransactionId durable_below = InvalidTransactionId;
static TimestampTz durable_since = 0;

void
outbox_fetch_init(MemoryContext context)
{
	deliveries_context = context;
}

/*
 * Every transaction below the snapshot's xmin has ended; once WAL is flushed
 * up to here, all of them are durable for good and need no look at the
 * commit log.  Refreshed now and then, so that what is looked up there is
 * always recent.
 */
static void
refresh_durable_horizon(Snapshot snapshot)
{
	TimestampTz now = GetCurrentTimestamp();

	if (TransactionIdIsValid(durable_below) && now - durable_since < 60 * USECS_PER_SEC)
		return;
	XLogFlush(outbox_wal_end());
	durable_below = snapshot->xmin;
	durable_since = now;
}

/* Remember how far WAL must be flushed before what this row says may be acted upon. */
static void
note_durability(TupleTableSlot *slot)
{
	bool		isnull;
	TransactionId xmin = DatumGetTransactionId(slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull));
	XLogRecPtr	lsn;

	if (isnull || !TransactionIdIsNormal(xmin) || TransactionIdPrecedes(xmin, durable_below))
		return;
	lsn = TransactionIdGetCommitLSN(xmin);
	if (lsn > flush_point)
		flush_point = lsn;
}

static void
close_relations(void)
{
	if (reader.message_pkey)
		relation_close(reader.message_pkey, NoLock);
	if (reader.message)
		relation_close(reader.message, NoLock);
	if (reader.outstanding)
		relation_close(reader.outstanding, NoLock);
	if (reader.delivery)
		relation_close(reader.delivery, NoLock);
	memset(&reader, 0, sizeof(reader));
}

/* Columns are found by name, so that the install script alone decides their order. */
static void
find_columns(Relation rel, const char *const *names, AttrNumber *attnos, int n, Oid *found_in)
{
	if (*found_in == RelationGetRelid(rel))
		return;
	for (int i = 0; i < n; i++)
	{
		attnos[i] = get_attnum(RelationGetRelid(rel), names[i]);
		if (attnos[i] == InvalidAttrNumber)
			elog(ERROR, "column \"%s\" of relation \"%s\" does not exist",
				 names[i], RelationGetRelationName(rel));
	}
	*found_in = RelationGetRelid(rel);
}

static void
find_all_columns(void)
{
	static Oid	delivery_found_in = InvalidOid;
	static Oid	message_found_in = InvalidOid;

	find_columns(reader.delivery, delivery_column_names, delivery_columns, D_COLUMNS, &delivery_found_in);
	find_columns(reader.message, message_column_names, message_columns, M_COLUMNS, &message_found_in);
}

bool
outbox_fetch_begin(void)
{
	Snapshot	snapshot = GetActiveSnapshot();

	memset(&reader, 0, sizeof(reader));
	if ((reader.delivery = outbox_table_open_if_free("delivery", RowExclusiveLock)) == NULL ||
		(reader.outstanding = outbox_index_open_if_free(reader.delivery, "delivery_outstanding", AccessShareLock)) == NULL ||
		(reader.message = outbox_table_open_if_free("message", AccessShareLock)) == NULL ||
		(reader.message_pkey = outbox_index_open_if_free(reader.message, "message_pkey", AccessShareLock)) == NULL ||
		!outbox_key_scan_begin(reader.delivery, snapshot))
	{
		close_relations();
		return false;
	}

	find_all_columns();
	refresh_durable_horizon(snapshot);
	reader.scan = outbox_index_beginscan(reader.delivery, reader.outstanding, snapshot, 2);
	/* The key of an entry is needed even where its row is dead. */
	reader.scan->xs_want_itup = true;
	reader.message_scan = outbox_index_beginscan(reader.message, reader.message_pkey, snapshot, 1);
	reader.message_scan->xs_want_itup = true;
	reader.slot = table_slot_create(reader.delivery, NULL);
	reader.message_slot = table_slot_create(reader.message, NULL);
	return true;
}

void
outbox_fetch_end(void)
{
	ExecDropSingleTupleTableSlot(reader.message_slot);
	ExecDropSingleTupleTableSlot(reader.slot);
	index_endscan(reader.message_scan);
	index_endscan(reader.scan);
	outbox_key_scan_end();
	close_relations();
}

static Datum
delivery_column(TupleTableSlot *slot, DeliveryColumn column, bool *isnull)
{
	return slot_getattr(slot, delivery_columns[column], isnull);
}

static Datum
message_column(MessageColumn column, bool *isnull)
{
	return slot_getattr(reader.message_slot, message_columns[column], isnull);
}

/* Append a text column to the strings behind a message; returns its offset, 0 for NULL. */
static size_t
append_text(StringInfo buf, Datum value, bool isnull)
{
	size_t		offset = buf->len;
	text	   *t;

	if (isnull)
		return 0;
	t = DatumGetTextPP(value);
	appendBinaryStringInfo(buf, VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
	appendStringInfoChar(buf, '\0');
	if ((Pointer) t != DatumGetPointer(value))
		pfree(t);
	return offset;
}

static size_t
append_headers(StringInfo buf, Datum value, bool isnull)
{
	size_t		offset;
	Jsonb	   *headers;

	if (isnull)
		return 0;
	while (buf->len % MAXIMUM_ALIGNOF != 0)
		appendStringInfoChar(buf, '\0');
	offset = buf->len;
	headers = DatumGetJsonbP(value);
	appendBinaryStringInfo(buf, (char *) headers, VARSIZE(headers));
	return offset;
}

static size_t
append_payload(StringInfo buf, Datum value, size_t *len)
{
	size_t		offset = buf->len;
	Jsonb	   *payload = DatumGetJsonbP(value);

	(void) JsonbToCString(buf, &payload->root, VARSIZE(payload));
	*len = buf->len - offset;
	if ((Pointer) payload != DatumGetPointer(value))
		pfree(payload);
	return offset;
}

static const char *
string_at(const OutboxMessage *message, size_t offset)
{
	return offset == 0 ? NULL : (const char *) message + offset;
}

/*
 * The message in message_slot, as one chunk in the deliveries' context.  It
 * is put together in the transaction's, where the output function of jsonb
 * may leave what it likes.
 */
static OutboxMessage *
build_message(const pg_uuid_t *id)
{
	StringInfoData buf;
	OutboxMessage *message;
	bool		isnull;
	Datum		value;
	size_t		topic;
	size_t		key;
	size_t		tenant;
	size_t		correlation_id;
	size_t		headers;
	size_t		payload;
	size_t		payload_len;

	initStringInfo(&buf);
	appendStringInfoSpaces(&buf, MAXALIGN(sizeof(OutboxMessage)));

	value = message_column(M_HEADERS, &isnull);
	headers = append_headers(&buf, value, isnull);
	value = message_column(M_TOPIC, &isnull);
	topic = append_text(&buf, value, isnull);
	value = message_column(M_KEY, &isnull);
	key = append_text(&buf, value, isnull);
	value = message_column(M_TENANT, &isnull);
	tenant = append_text(&buf, value, isnull);
	value = message_column(M_CORRELATION_ID, &isnull);
	correlation_id = append_text(&buf, value, isnull);
	value = message_column(M_PAYLOAD, &isnull);
	payload = append_payload(&buf, value, &payload_len);

	message = MemoryContextAlloc(deliveries_context, buf.len);
	memcpy(message, buf.data, buf.len);
	pfree(buf.data);
	message->id = *id;
	message->staged_at = DatumGetTimestampTz(message_column(M_STAGED_AT, &isnull));
	message->topic = string_at(message, topic);
	message->key = string_at(message, key);
	message->tenant = string_at(message, tenant);
	message->correlation_id = string_at(message, correlation_id);
	message->headers = (const Jsonb *) string_at(message, headers);
	message->payload = string_at(message, payload);
	message->payload_len = payload_len;
	return message;
}

static void
note_message_at(void)
{
	bool		isnull;

	reader.message_at = *DatumGetUUIDP(index_getattr(reader.message_scan->xs_itup, 1,
													 reader.message_scan->xs_itupdesc, &isnull));
}

/*
 * A lane reads roughly in the order in which messages were staged, so the
 * next one it wants is as a rule the next one in the index.  Stepping there
 * is cheaper than descending again, unless too many others lie between.
 */
static bool
step_to_message(const pg_uuid_t *id)
{
	int			steps = 0;

	while (reader.message_scan_stands)
	{
		int			cmp = memcmp(reader.message_at.data, id->data, UUID_LEN);

		if (cmp >= 0 || steps++ >= MAX_MESSAGE_STEPS)
			return cmp == 0;
		reader.message_scan_stands = index_getnext_tid(reader.message_scan, ForwardScanDirection) != NULL;
		if (reader.message_scan_stands)
			note_message_at();
	}
	return false;
}

/* Find the message of a delivery.  False if there is none (deleted by hand). */
static bool
find_message(const pg_uuid_t *id)
{
	ScanKeyData key;

	if (!step_to_message(id))
	{
		ScanKeyInit(&key, 1, BTGreaterEqualStrategyNumber, F_UUID_GE, UUIDPGetDatum(id));
		index_rescan(reader.message_scan, &key, 1, NULL, 0);
		reader.message_scan_stands = index_getnext_tid(reader.message_scan, ForwardScanDirection) != NULL;
		if (!reader.message_scan_stands)
			return false;
		note_message_at();
		if (memcmp(reader.message_at.data, id->data, UUID_LEN) != 0)
			return false;
	}
	return index_fetch_heap(reader.message_scan, reader.message_slot);
}

/* The delivery in slot, without its message, in the deliveries' context and in their table. */
static OutboxDelivery *
build_delivery(OutboxLane *lane, const OutboxQueuePosition *key, TupleTableSlot *slot)
{
	OutboxDelivery *delivery = MemoryContextAllocZero(deliveries_context, sizeof(OutboxDelivery));
	bool		isnull;
	Datum		value;

	delivery->id = key->id;
	delivery->handler_id = lane->handler_id;
	delivery->lane = lane;
	delivery->tid = slot->tts_tid;
	delivery->due_at = key->due_at;
	delivery->attempts = DatumGetInt32(delivery_column(slot, D_ATTEMPTS, &isnull));
	delivery->budget_from = DatumGetInt32(delivery_column(slot, D_BUDGET_FROM, &isnull));
	delivery->streak = DatumGetInt16(delivery_column(slot, D_STREAK, &isnull));
	value = delivery_column(slot, D_CODE, &isnull);
	if (!isnull)
		text_to_cstring_buffer(DatumGetTextPP(value), delivery->code, sizeof(delivery->code));
	delivery->bytes = sizeof(OutboxDelivery);
	outbox_delivery_add(delivery);

	/* Should its message be unreadable, outbox_fetch_abort() knows whose it was. */
	reading = delivery;
	return delivery;
}

/* A delivery whose message is gone cannot be sent, now or later. */
static void
bury_without_message(OutboxDelivery *delivery)
{
	delivery->verdict.state = OUTBOX_DEAD;
	strlcpy(delivery->verdict.code, "message_missing", sizeof(delivery->verdict.code));
}

/* Both are kept until the transaction is over; then they are queued. */
void
outbox_fetch_take(OutboxLane *lane, const OutboxQueuePosition *key, TupleTableSlot *slot,
				  struct OutboxOrderKey *order_key, OutboxReadBounds *bounds)
{
	OutboxDelivery *delivery = build_delivery(lane, key, slot);

	note_durability(slot);
	if (order_key != NULL)
		outbox_order_take(order_key, delivery);

	if (find_message(&key->id))
	{
		note_durability(reader.message_slot);
		delivery->message = build_message(&key->id);
		outbox_delivery_grow(delivery, GetMemoryChunkSpace(delivery->message));
	}
	else
		bury_without_message(delivery);
	reading = NULL;

	dlist_push_tail(&fetched, &delivery->link);
	bounds->bytes -= delivery->bytes;
}

/* A row that is due, in reader.slot, and not in memory. */
static void
see_row(OutboxLane *lane, const OutboxQueuePosition *key, OutboxReadBounds *bounds, TimestampTz now)
{
	if (lane->order != NULL && outbox_key_scan_row(lane, reader.slot, &key->id, bounds, now))
		return;
	bounds->rows--;
	outbox_fetch_take(lane, key, reader.slot, NULL, bounds);
}

/*
 * Read the lane's keys from at on, up to and including hi (NULL: no end).
 * at moves with the entries that were looked at.
 */
static ReadEnd
read_range(OutboxLane *lane, OutboxQueuePosition *at, bool *after, const OutboxQueuePosition *hi,
		   OutboxReadBounds *bounds, TimestampTz now, TimestampTz *future)
{
	outbox_outstanding_rescan(reader.scan, &reader.start, lane->handler_id, at, *after);
	while (index_getnext_tid(reader.scan, ForwardScanDirection) != NULL)
	{
		OutboxDelivery *known;
		OutboxQueuePosition key;

		outbox_outstanding_key(reader.scan, &key);
		if (hi != NULL && outbox_position_cmp(&key, hi) > 0)
			return READ_DONE;
		if (key.due_at > now)
		{
			*future = key.due_at;
			return READ_FUTURE;
		}
		if (bounds->rows <= 0 || bounds->bytes <= 0 || bounds->entries-- <= 0)
			return READ_ENOUGH;

		*at = key;
		*after = true;
		known = outbox_delivery_find(&key.id, lane->handler_id);
		if (known == NULL && index_fetch_heap(reader.scan, reader.slot))
			see_row(lane, &key, bounds, now);
		/* Its receipt may be written and it may be replayed, before the settler has answered. */
		else if (known != NULL && known->with_settler && index_fetch_heap(reader.scan, reader.slot))
			known->found_due_at = key.due_at;
	}
	return READ_DONE;
}

static void
save_lane(OutboxLane *lane)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(deliveries_context);
	SavedLane  *saved = palloc(sizeof(SavedLane));

	saved->lane = lane;
	saved->position = lane->position;
	saved->more = lane->more;
	saved->next_due = lane->next_due;
	saved->nspans = lane->nspans;
	memcpy(saved->spans, lane->spans, sizeof(OutboxSpan) * lane->nspans);
	saved_lanes = lappend(saved_lanes, saved);
	MemoryContextSwitchTo(oldcontext);
}

static void
forget_saved_lanes(void)
{
	list_free_deep(saved_lanes);
	saved_lanes = NIL;
}

/* A slice of a rescan: bounded in entries, and then the lane has peace for a while. */
static ReadEnd
read_rescan_slice(OutboxLane *lane, OutboxSpan *span, OutboxReadBounds *bounds, TimestampTz now,
				  TimestampTz *future)
{
	OutboxReadBounds slice = *bounds;
	TimestampTz begin = GetCurrentTimestamp();
	ReadEnd		end;

	slice.entries = MAX_RESCAN_ENTRIES;
	end = read_range(lane, &span->at, &span->after, &span->hi, &slice, now, future);
	bounds->rows = slice.rows;
	bounds->bytes = slice.bytes;
	lane->rescan_after = now + (GetCurrentTimestamp() - begin) * RESCAN_DUTY;
	return end;
}

/* Read what was rung for behind the position.  Returns false if a bound was reached. */
static bool
read_spans(OutboxLane *lane, OutboxReadBounds *bounds, TimestampTz now)
{
	int			i = 0;

	while (i < lane->nspans)
	{
		OutboxSpan *span = &lane->spans[i];
		TimestampTz future = DT_NOEND;
		ReadEnd		end;

		if (outbox_lane_span_time(lane, span) > now)
		{
			i++;
			continue;
		}
		if (span->rescan)
			end = read_rescan_slice(lane, span, bounds, now, &future);
		else
			end = read_range(lane, &span->at, &span->after, &span->hi, bounds, now, &future);

		if (end == READ_ENOUGH)
		{
			if (!span->rescan)
				return false;
			i++;
			continue;
		}
		/* Reading forward would not meet it, so the span waits for it. */
		if (end == READ_FUTURE)
		{
			span->not_before = future;
			i++;
			continue;
		}
		memmove(span, span + 1, sizeof(OutboxSpan) * (lane->nspans - i - 1));
		lane->nspans--;
	}
	return true;
}

static void
read_forward(OutboxLane *lane, OutboxReadBounds *bounds, TimestampTz now)
{
	bool		after = true;
	TimestampTz future = DT_NOEND;

	outbox_lane_watch_clock(lane, now);
	if (!lane->more)
		return;
	if (read_range(lane, &lane->position, &after, NULL, bounds, now, &future) != READ_ENOUGH)
	{
		lane->more = false;
		lane->next_due = future;
	}
}

static void
set_bounds(const OutboxLane *lane, OutboxReadBounds *bounds)
{
	bounds->rows = outbox_lane_room(lane);
	bounds->entries = MAX_ENTRIES;
	bounds->bytes = MAX_READ_BYTES;
}

void
outbox_fetch_lane(OutboxLane *lane, TimestampTz now)
{
	OutboxReadBounds bounds;

	save_lane(lane);
	outbox_lane_adapt_read_ahead(lane, now);
	set_bounds(lane, &bounds);
	outbox_key_scan_wanted(lane, &bounds, now);
	if (read_spans(lane, &bounds, now))
		read_forward(lane, &bounds, now);
}

void
outbox_fetch_successors(TimestampTz now)
{
	OutboxLane *lanes[MAX_SUCCESSOR_LANES];
	int			n = outbox_order_lanes(lanes, MAX_SUCCESSOR_LANES);

	for (int i = 0; i < n; i++)
	{
		OutboxReadBounds bounds;

		/* Where others are yet to be read, those come along with them. */
		if (lanes[i]->more)
			continue;
		set_bounds(lanes[i], &bounds);
		outbox_key_scan_wanted(lanes[i], &bounds, now);
	}
}

/* Hand what was read to its lanes, or to settlement what cannot be sent. */
static void
deliver_fetched(void)
{
	while (!dlist_is_empty(&fetched))
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, dlist_pop_head_node(&fetched));

		if (delivery->message == NULL)
			outbox_outcome_add(delivery);
		else if (outbox_order_arrived(delivery))
		{
			outbox_lane_enqueue(delivery->lane, delivery);
			outbox_lane_ready(delivery->lane);
		}
	}
}

void
outbox_fetch_flush(void)
{
	if (!XLogRecPtrIsInvalid(flush_point))
		XLogFlush(flush_point);
	flush_point = InvalidXLogRecPtr;
}

void
outbox_fetch_finish(void)
{
	forget_saved_lanes();
	deliver_fetched();
}

OutboxDelivery *
outbox_fetch_abort(void)
{
	OutboxDelivery *poison = reading;
	ListCell   *lc;

	foreach(lc, saved_lanes)
	{
		SavedLane  *saved = lfirst(lc);

		saved->lane->position = saved->position;
		saved->lane->more = true;
		saved->lane->next_due = saved->next_due;
		saved->lane->nspans = saved->nspans;
		memcpy(saved->lane->spans, saved->spans, sizeof(OutboxSpan) * saved->nspans);
	}
	forget_saved_lanes();

	while (!dlist_is_empty(&fetched))
		outbox_delivery_free(dlist_container(OutboxDelivery, link, dlist_pop_head_node(&fetched)));
	reading = NULL;
	flush_point = InvalidXLogRecPtr;
	outbox_key_scan_abort();
	memset(&reader, 0, sizeof(reader));
	return poison;
}

bool
outbox_fetch_next_handler(int32 after, int32 *handler_id)
{
	ScanKeyData keys[2];
	bool		isnull;

	/* The scan always takes two keys; the second one excludes nothing. */
	ScanKeyInit(&keys[0], 1, BTGreaterStrategyNumber, F_INT4GT, Int32GetDatum(after));
	ScanKeyInit(&keys[1], 1, BTLessEqualStrategyNumber, F_INT4LE, Int32GetDatum(PG_INT32_MAX));
	index_rescan(reader.scan, keys, 2, NULL, 0);
	if (index_getnext_tid(reader.scan, ForwardScanDirection) == NULL)
		return false;
	*handler_id = DatumGetInt32(index_getattr(reader.scan->xs_itup, 1, reader.scan->xs_itupdesc, &isnull));
	return true;
}
