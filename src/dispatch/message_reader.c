/*-------------------------------------------------------------------------
 *
 * message_reader.c
 *		Reads messages as the request formats want them.
 *
 * See message_reader.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/relation.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "access/tableam.h"
#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/jsonb.h"
#include "utils/rel.h"

#include "compat.h"
#include "dispatch/durable.h"
#include "dispatch/memory.h"
#include "dispatch/message_reader.h"
#include "format/content_type.h"
#include "table/columns.h"
#include "table/relation.h"

/* Messages that are stepped over before the index is descended again. */
#define MAX_STEPS 4

/* What is open while a transaction reads. */
typedef struct Reader
{
	Relation	message;
	Relation	pkey;
	IndexScanDesc scan;
	pg_uuid_t	start;			/* where the scan was begun, which it looks at for as long as it lasts */
	bool		stands;			/* the scan does, on the entry of at */
	pg_uuid_t	at;
	bool		fetched;		/* and its row is in the slot: fetching it again would go by the row's own place, not the chain's */
	TupleTableSlot *slot;
} Reader;

static Reader reader;

bool
outbox_message_reader_open(Snapshot snapshot)
{
	memset(&reader, 0, sizeof(reader));
	if ((reader.message = outbox_table_open_if_free("message", AccessShareLock)) == NULL)
		return false;
	if ((reader.pkey = outbox_index_open_if_free(reader.message, "message_pkey", AccessShareLock)) == NULL)
	{
		relation_close(reader.message, NoLock);
		return false;
	}
	reader.scan = outbox_index_beginscan(reader.message, reader.pkey, snapshot, 1);
	reader.scan->xs_want_itup = true;
	reader.slot = table_slot_create(reader.message, NULL);
	return true;
}

void
outbox_message_reader_close(void)
{
	ExecDropSingleTupleTableSlot(reader.slot);
	index_endscan(reader.scan);
	relation_close(reader.pkey, NoLock);
	relation_close(reader.message, NoLock);
	outbox_message_reader_forget();
}

void
outbox_message_reader_forget(void)
{
	memset(&reader, 0, sizeof(reader));
}

static Datum
get(AttrNumber column, bool *isnull)
{
	return slot_getattr(reader.slot, column, isnull);
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

/* What is to be copied as it is.  Nothing is appended behind it that needs an alignment. */
static size_t
append_body(StringInfo buf, Datum value, size_t *len)
{
	size_t		offset = buf->len;
	struct varlena *body = PG_DETOAST_DATUM_PACKED(value);

	*len = VARSIZE_ANY_EXHDR(body);
	appendBinaryStringInfo(buf, VARDATA_ANY(body), (int) *len);
	if ((Pointer) body != DatumGetPointer(value))
		pfree(body);
	return offset;
}

/* The payload of the message in the slot, which has one of three columns, and what it is. */
static Datum
get_payload(OutboxPayloadKind *kind)
{
	OutboxContentType type;
	bool		isnull;
	Datum		value;
	Datum		content_type;

	*kind = OUTBOX_PAYLOAD_JSON;
	value = get(Anum_message_payload, &isnull);
	if (!isnull)
		return value;
	*kind = OUTBOX_PAYLOAD_BYTES;
	value = get(Anum_message_payload_bytes, &isnull);
	if (!isnull)
		return value;
	*kind = OUTBOX_PAYLOAD_TEXT;
	value = get(Anum_message_payload_text, &isnull);
	if (isnull)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("message has no payload"),
				 errhint("Its row was changed by hand: payload, payload_text and payload_bytes are all NULL.")));
	content_type = get(Anum_message_content_type, &isnull);
	if (!isnull)
	{
		text	   *t = DatumGetTextPP(content_type);

		if (outbox_content_type_read(VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t), &type) && type.is_json)
			*kind = OUTBOX_PAYLOAD_JSON_TEXT;
	}
	return value;
}

static const char *
string_at(const OutboxMessage *message, size_t offset)
{
	return offset == 0 ? NULL : (const char *) message + offset;
}

static size_t
append_content_type(StringInfo buf)
{
	bool		isnull;
	Datum		value = get(Anum_message_content_type, &isnull);

	return append_text(buf, value, isnull);
}

/*
 * The message in the slot, as one chunk in a context.  It is put together in
 * the transaction's, where the output function of jsonb may leave what it
 * likes.
 */
static OutboxMessage *
build(const pg_uuid_t *id, MemoryContext context)
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
	size_t		content_type = 0;
	OutboxPayloadKind kind;
	size_t		payload = 0;
	size_t		payload_len;
	bool		large;

	initStringInfo(&buf);
	appendStringInfoSpaces(&buf, MAXALIGN(sizeof(OutboxMessage)));

	value = get(Anum_message_headers, &isnull);
	headers = append_headers(&buf, value, isnull);
	value = get(Anum_message_topic, &isnull);
	topic = append_text(&buf, value, isnull);
	value = get(Anum_message_key, &isnull);
	key = append_text(&buf, value, isnull);
	value = get(Anum_message_tenant, &isnull);
	tenant = append_text(&buf, value, isnull);
	value = get(Anum_message_correlation_id, &isnull);
	correlation_id = append_text(&buf, value, isnull);
	value = get_payload(&kind);
	if (kind != OUTBOX_PAYLOAD_JSON)
		content_type = append_content_type(&buf);
	payload_len = toast_raw_datum_size(value);
	large = payload_len > OUTBOX_LARGE_PAYLOAD;
	if (!large)
		payload = kind == OUTBOX_PAYLOAD_JSON ? append_payload(&buf, value, &payload_len) : append_body(&buf, value, &payload_len);

	message = MemoryContextAlloc(context, buf.len);
	memcpy(message, buf.data, buf.len);
	pfree(buf.data);
	message->id = *id;
	message->staged_at = DatumGetTimestampTz(get(Anum_message_staged_at, &isnull));
	message->topic = string_at(message, topic);
	message->key = string_at(message, key);
	message->tenant = string_at(message, tenant);
	message->correlation_id = string_at(message, correlation_id);
	message->headers = (const Jsonb *) string_at(message, headers);
	message->content_type = string_at(message, content_type);
	message->kind = kind;
	message->payload = string_at(message, payload);
	message->payload_len = payload_len;
	message->large = large;
	return message;
}

/* To the next entry of the index, dead or not.  False at its end. */
static bool
step_on(void)
{
	bool		isnull;

	reader.fetched = false;
	reader.stands = index_getnext_tid(reader.scan, ForwardScanDirection) != NULL;
	if (reader.stands)
		reader.at = *DatumGetUUIDP(index_getattr(reader.scan->xs_itup, 1, reader.scan->xs_itupdesc, &isnull));
	return reader.stands;
}

/*
 * A lane reads roughly in the order in which messages were staged, so the
 * next one it wants is as a rule the next one in the index.  Stepping there
 * is cheaper than descending again, unless too many others lie between.
 */
static bool
step_to(const pg_uuid_t *id)
{
	int			steps = 0;

	while (reader.stands)
	{
		int			cmp = memcmp(reader.at.data, id->data, UUID_LEN);

		if (cmp >= 0 || steps++ >= MAX_STEPS)
			return cmp == 0;
		(void) step_on();
	}
	return false;
}

/* Have the message in the slot.  False if there is none. */
static bool
find(const pg_uuid_t *id)
{
	ScanKeyData key;

	/* Of a message for several handlers. */
	if (reader.fetched && memcmp(reader.at.data, id->data, UUID_LEN) == 0)
		return true;
	if (!step_to(id))
	{
		reader.start = *id;
		ScanKeyInit(&key, 1, BTGreaterEqualStrategyNumber, F_UUID_GE, UUIDPGetDatum(&reader.start));
		index_rescan(reader.scan, &key, 1, NULL, 0);
		if (!step_on() || memcmp(reader.at.data, id->data, UUID_LEN) != 0)
			return false;
	}
	/* One whose row was updated by hand has several entries, dead ones first. */
	while (!index_fetch_heap(reader.scan, reader.slot))
	{
		if (!step_on() || memcmp(reader.at.data, id->data, UUID_LEN) != 0)
			return false;
	}
	reader.fetched = true;
	return true;
}

OutboxMessage *
outbox_message_read(const pg_uuid_t *id, MemoryContext context)
{
	return find(id) ? build(id, context) : NULL;
}

struct varlena *
outbox_message_read_payload(const pg_uuid_t *id, OutboxPayloadKind kind, MemoryContext context)
{
	MemoryContext oldcontext;
	OutboxPayloadKind found;
	struct varlena *payload;

	if (!find(id))
		return NULL;
	oldcontext = MemoryContextSwitchTo(context);
	payload = PG_DETOAST_DATUM_COPY(get_payload(&found));
	MemoryContextSwitchTo(oldcontext);
	if (found != kind)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("payload of a message has become one of another kind"),
				 errhint("Its row was changed by hand.")));
	return payload;
}

void
outbox_message_note_durability(void)
{
	outbox_durable_note(reader.slot);
}
