/*-------------------------------------------------------------------------
 *
 * payload.c
 *		Large payloads, which are read when they are about to be sent.
 *
 * See payload.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

#include "dispatch/memory.h"
#include "dispatch/message_reader.h"
#include "dispatch/pacing.h"
#include "dispatch/payload.h"
#include "dispatch/schedule.h"
#include "dispatch/settle.h"
#include "format/encode.h"
#include "format/message.h"
#include "format/payload_text.h"
#include "format/request.h"
#include "worker/clock.h"

/* So much is written at once, and for so long in one turn of the loop. */
#define SLICE (32 * 1024)
#define WRITE_TURN_US 2000

/* A number is written whole, whatever that makes of a slice. */
#define LONGEST_NUMBER (160 * 1024)

/* One character of a server encoding is at most so many times as long in UTF-8. */
#define MAX_GROWTH 4

/* Stored bytes that one transaction reads, unless a single one has more. */
#define MAX_READ_BYTES (512 * 1024)

/* A lane for whose payload there was no memory for so long goes first: nobody is given any before it. */
#define PATIENCE_US (2 * USECS_PER_SEC)

/* When memory has run out, its lane waits so long. */
#define NO_MEMORY_WAIT_US (100 * 1000)

typedef enum PayloadState
{
	ASKED,						/* in the list asked */
	READ,						/* by the running transaction, in the list just_read */
	WRITING,					/* in the list writing */
	THERE
} PayloadState;

/* A payload is kept in the shape it is sent in, of which some have two. */
typedef struct PayloadKey
{
	pg_uuid_t	id;				/* of the message */
	bool		embedded;		/* as it stands in JSON of ours, if that is not as it stands by itself */
} PayloadKey;

struct OutboxPayload
{
	PayloadKey	key;
	OutboxPayloadKind kind;
	PayloadState state;
	dlist_node	link;
	dlist_head	deliveries;		/* that share it */
	size_t		stored_size;
	size_t		memory;			/* what it is counted with */

	/* while it is written */
	MemoryContext context;		/* holds the stored form and what writing needs; NULL: there is none */
	struct varlena *stored;		/* NULL: READ found no such message */
	OutboxPayloadText writer;
	StringInfoData slice;		/* in another encoding than UTF-8: written, not converted yet */

	StringInfoData text;		/* in UTF-8, or bytes; data is NULL before it is begun */
};

typedef struct PayloadEntry
{
	PayloadKey	key;
	OutboxPayload *payload;
} PayloadEntry;

static MemoryContext payloads_context = NULL;
static HTAB *payloads = NULL;
static dlist_head asked = DLIST_STATIC_INIT(asked);
static dlist_head just_read = DLIST_STATIC_INIT(just_read);
static dlist_head writing = DLIST_STATIC_INIT(writing); /* whose turn it is first */
static OutboxPayload *reading = NULL;
static OutboxPayload *exceeding = NULL; /* turned out longer than there is memory for, and goes on */

/* The lane that has waited longest for memory for a payload, and since when. */
static const OutboxLane *first_in_line = NULL;
static TimestampTz in_line_since;

void
outbox_payloads_init(MemoryContext context)
{
	HASHCTL		ctl;

	payloads_context = context;
	memset(&ctl, 0, sizeof(ctl));
	ctl.hcxt = context;
	ctl.keysize = sizeof(PayloadKey);
	ctl.entrysize = sizeof(PayloadEntry);
	payloads = hash_create("outbox large payloads", 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static OutboxPayload *
find_payload(const PayloadKey *key)
{
	PayloadEntry *entry = hash_search(payloads, key, HASH_FIND, NULL);

	return entry ? entry->payload : NULL;
}

/* Count it as so large, for every lane that has a share in it. */
static void
count_memory(OutboxPayload *payload, size_t bytes)
{
	int64		more = (int64) bytes - (int64) payload->memory;
	dlist_iter	iter;

	if (more == 0)
		return;
	dlist_foreach(iter, &payload->deliveries)
		dlist_container(OutboxDelivery, payload_link, iter.cur)->lane->memory[OUTBOX_MEMORY_PAYLOADS] += more;
	payload->memory = bytes;
	outbox_memory_count(OUTBOX_MEMORY_PAYLOADS, more);
}

static void
free_payload(OutboxPayload *payload)
{
	(void) hash_search(payloads, &payload->key, HASH_REMOVE, NULL);
	if (payload->state != THERE)
		dlist_delete(&payload->link);
	if (payload->context != NULL)
		MemoryContextDelete(payload->context);
	if (payload->text.data != NULL)
		pfree(payload->text.data);
	if (exceeding == payload)
		exceeding = NULL;
	count_memory(payload, 0);
	pfree(payload);
}

/* The shape in which the delivery's lane sends it. */
static PayloadKey
wanted_shape(const OutboxDelivery *delivery)
{
	PayloadKey	key;

	memset(&key, 0, sizeof(key));
	key.id = delivery->id;
	key.embedded = delivery->lane->handler->form->embeds && outbox_payload_is_quoted(delivery->message->kind);
	return key;
}

/* How much text there will be, about as much as of the stored form; of base64 a third more. */
static size_t
expected_length(OutboxPayloadKind kind, bool embedded, size_t stored_size)
{
	if (kind == OUTBOX_PAYLOAD_BYTES && embedded)
		return outbox_payload_text_length(kind, NULL, stored_size);
	return stored_size;
}

/* What it takes until it has been written. */
static size_t
first_estimate(const OutboxMessage *message, bool embedded)
{
	return message->payload_len + expected_length(message->kind, embedded, message->payload_len) + SLICE + LONGEST_NUMBER;
}

static OutboxPayload *
create_payload(const OutboxMessage *message, const PayloadKey *key)
{
	OutboxPayload *payload = MemoryContextAllocZero(payloads_context, sizeof(OutboxPayload));
	PayloadEntry *entry = hash_search(payloads, key, HASH_ENTER, NULL);

	entry->payload = payload;
	payload->key = *key;
	payload->kind = message->kind;
	payload->state = ASKED;
	payload->stored_size = message->payload_len;
	dlist_init(&payload->deliveries);
	dlist_push_tail(&asked, &payload->link);
	count_memory(payload, first_estimate(message, key->embedded));
	return payload;
}

/* A delivery in its lane gets a share. */
static void
share(OutboxPayload *payload, OutboxDelivery *delivery)
{
	dlist_push_tail(&payload->deliveries, &delivery->payload_link);
	delivery->payload = payload;
	delivery->lane->nloaded++;
	delivery->lane->memory[OUTBOX_MEMORY_PAYLOADS] += payload->memory;
}

void
outbox_payload_release(OutboxDelivery *delivery)
{
	OutboxPayload *payload = delivery->payload;

	dlist_delete(&delivery->payload_link);
	delivery->payload = NULL;
	delivery->lane->memory[OUTBOX_MEMORY_PAYLOADS] -= payload->memory;
	if (dlist_is_empty(&payload->deliveries))
		free_payload(payload);
}

/* The text is there: the delivery can be sent. */
static void
provide(OutboxPayload *payload, OutboxDelivery *delivery)
{
	outbox_lane_unqueue(delivery->lane, delivery);
	delivery->awaits_payload = false;
	delivery->message->payload = payload->text.data;
	delivery->message->payload_len = payload->text.len;
	outbox_lane_enqueue(delivery->lane, delivery);
}

void
outbox_payload_fit(OutboxDelivery *delivery, bool waits)
{
	const OutboxPayload *payload = delivery->payload;

	if (payload == NULL || !outbox_payload_is_quoted(payload->kind) || delivery->lane->handler == NULL)
		return;
	if (!waits && wanted_shape(delivery).embedded == payload->key.embedded)
		return;
	delivery->message->payload = NULL;
	delivery->message->payload_len = payload->stored_size;
	outbox_payload_release(delivery);
	delivery->awaits_payload = true;
}

/*
 * Asking
 */

void
outbox_payloads_let_others_go(const OutboxLane *lane)
{
	if (first_in_line != lane)
		return;
	first_in_line = NULL;
	/* They have been waiting for it. */
	outbox_lanes_have_room();
}

/* May the lane have so much?  More than there is it may if nothing else is there. */
static bool
has_memory(const OutboxLane *lane, size_t bytes)
{
	return outbox_memory_is_unused(OUTBOX_MEMORY_PAYLOADS) ||
		(outbox_memory_allowance(OUTBOX_MEMORY_PAYLOADS, lane) > 0 &&
		 (int64) bytes <= outbox_memory_free(OUTBOX_MEMORY_PAYLOADS));
}

/* May it have a payload that is not there?  The same, unless another lane has waited for too long. */
static bool
may_have(const OutboxLane *lane, size_t bytes, TimestampTz now)
{
	if (first_in_line != NULL && first_in_line != lane && now - in_line_since > PATIENCE_US)
		return false;
	if (has_memory(lane, bytes))
	{
		outbox_payloads_let_others_go(lane);
		return true;
	}
	/* One that has some of its own has no claim to be the first. */
	if (lane->memory[OUTBOX_MEMORY_PAYLOADS] > 0)
		outbox_payloads_let_others_go(lane);
	else if (first_in_line == NULL)
	{
		first_in_line = lane;
		in_line_since = now;
	}
	return false;
}

/* And one that is?  It takes no more memory, but takes it longer. */
static bool
may_share(const OutboxLane *lane)
{
	return lane->memory[OUTBOX_MEMORY_PAYLOADS] == 0 || has_memory(lane, 0);
}

/* The next one of the lane whose payload has not been asked for; NULL: there is none. */
static OutboxDelivery *
next_unasked(OutboxLane *lane)
{
	dlist_iter	iter;

	dlist_foreach(iter, &lane->large)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);

		if (delivery->payload == NULL)
			return delivery;
	}
	return NULL;
}

/* Could the lane send more than it has the payloads of? */
static bool
could_send_more(OutboxLane *lane, TimestampTz now)
{
	int64		requests;

	if (!outbox_lane_is_free(lane, now))
		return false;
	requests = lane->handler->concurrency - lane->in_flight;
	return lane->nloaded < requests * lane->handler->batch_size;
}

bool
outbox_payloads_ask(OutboxLane *lane, TimestampTz now)
{
	OutboxDelivery *delivery;

	while (lane->nlarge > 0 && could_send_more(lane, now) && (delivery = next_unasked(lane)) != NULL)
	{
		PayloadKey	key = wanted_shape(delivery);
		OutboxPayload *payload = find_payload(&key);
		size_t		bytes = first_estimate(delivery->message, key.embedded);

		if (payload != NULL ? !may_share(lane) : !may_have(lane, bytes, now))
		{
			outbox_memory_is_wanted(OUTBOX_MEMORY_PAYLOADS, bytes);
			return false;
		}
		if (payload == NULL)
			payload = create_payload(delivery->message, &key);
		share(payload, delivery);
		if (payload->state == THERE)
			provide(payload, delivery);
	}
	outbox_payloads_let_others_go(lane);
	return true;
}

/*
 * Reading
 */

bool
outbox_payloads_asked(void)
{
	return !dlist_is_empty(&asked);
}

static void
set_state(OutboxPayload *payload, PayloadState state, dlist_head *list)
{
	dlist_delete(&payload->link);
	payload->state = state;
	dlist_push_tail(list, &payload->link);
}

void
outbox_payloads_read(void)
{
	int64		bytes = MAX_READ_BYTES;

	while (bytes > 0 && !dlist_is_empty(&asked))
	{
		OutboxPayload *payload = dlist_head_element(OutboxPayload, link, &asked);

		reading = payload;
		payload->context = AllocSetContextCreate(payloads_context, "outbox payload", ALLOCSET_SMALL_SIZES);
		payload->stored = outbox_message_read_payload(&payload->key.id, payload->kind, payload->context);
		reading = NULL;
		if (payload->stored != NULL)
			outbox_message_note_durability();
		set_state(payload, READ, &just_read);
		bytes -= payload->stored_size;
	}
}

static void
drop_stored(OutboxPayload *payload)
{
	if (payload->context != NULL)
		MemoryContextDelete(payload->context);
	payload->context = NULL;
	payload->stored = NULL;
}

/*
 * Its deliveries become dead letters, which frees it.  They are of as many
 * handlers, so that burying one concerns none of the others.
 */
static void
bury(OutboxPayload *payload, const OutboxVerdict *verdict, const char *error)
{
	int			n = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &payload->deliveries)
		n++;
	while (n-- > 0)
	{
		OutboxDelivery *delivery = dlist_head_element(OutboxDelivery, payload_link, &payload->deliveries);

		outbox_lane_unqueue(delivery->lane, delivery);
		delivery->verdict = *verdict;
		delivery->error = MemoryContextStrdup(payloads_context, error);
		delivery->error_is_raw = true;
		outbox_lane_ready(delivery->lane);
		outbox_outcome_add(delivery);
	}
}

static void
bury_unreadable(OutboxPayload *payload, const char *error)
{
	OutboxVerdict verdict = {.state = OUTBOX_DEAD, .code = "unreadable"};

	bury(payload, &verdict, error);
}

static void
bury_missing(OutboxPayload *payload)
{
	OutboxVerdict verdict;

	outbox_judge_missing(&verdict);
	bury(payload, &verdict, OUTBOX_MESSAGE_MISSING_ERROR);
}

void
outbox_payloads_finish(void)
{
	while (!dlist_is_empty(&just_read))
	{
		OutboxPayload *payload = dlist_head_element(OutboxPayload, link, &just_read);

		set_state(payload, WRITING, &writing);
		if (payload->stored == NULL)
			bury_missing(payload);
	}
}

const pg_uuid_t *
outbox_payloads_abort(void)
{
	static pg_uuid_t culprit;
	bool		found = reading != NULL;

	if (found)
	{
		culprit = reading->key.id;
		drop_stored(reading);
	}
	reading = NULL;
	while (!dlist_is_empty(&just_read))
	{
		OutboxPayload *payload = dlist_tail_element(OutboxPayload, link, &just_read);

		drop_stored(payload);
		set_state(payload, ASKED, &asked);
	}
	return found ? &culprit : NULL;
}

void
outbox_payload_bury(const pg_uuid_t *id, const char *error)
{
	PayloadKey	key;

	memset(&key, 0, sizeof(key));
	key.id = *id;
	for (int embedded = 0; embedded <= 1; embedded++)
	{
		OutboxPayload *payload;

		key.embedded = embedded == 1;
		payload = find_payload(&key);
		if (payload != NULL && payload->state == ASKED)
			bury_unreadable(payload, error);
	}
}

/*
 * Writing
 */

bool
outbox_payloads_writing(void)
{
	return !dlist_is_empty(&writing);
}

/* Is what is written not what is sent? */
static bool
is_other_encoding(const OutboxPayload *payload)
{
	return GetDatabaseEncoding() != PG_UTF8 && payload->kind != OUTBOX_PAYLOAD_BYTES;
}

/* There is no encoding where SQL_ASCII is: only UTF-8 is JSON to anybody else. */
static int
encoding_of_slice(void)
{
	return GetDatabaseEncoding() == PG_SQL_ASCII ? PG_UTF8 : GetDatabaseEncoding();
}

static void
begin_text(OutboxPayload *payload)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(payload->context);
	size_t		expected = expected_length(payload->kind, payload->key.embedded, payload->stored_size);

	if (payload->kind == OUTBOX_PAYLOAD_JSON)
		outbox_payload_text_begin_json(&payload->writer, (const Jsonb *) payload->stored);
	else
		outbox_payload_text_begin(&payload->writer, payload->kind, VARDATA(payload->stored),
								  VARSIZE(payload->stored) - VARHDRSZ, payload->key.embedded);
	if (is_other_encoding(payload))
		initStringInfo(&payload->slice);
	MemoryContextSwitchTo(oldcontext);

	payload->text.maxlen = (int) Min(expected + SLICE + LONGEST_NUMBER, MaxAllocSize);
	payload->text.data = MemoryContextAlloc(payloads_context, payload->text.maxlen);
	resetStringInfo(&payload->text);
}

/*
 * Have room for a slice.  The text may turn out longer than was thought: then
 * it grows if there is memory for that, else it waits for others to end; but
 * one of those that are being written waits for nobody.
 */
static bool
reserve_slice(OutboxPayload *payload)
{
	int64		slice = SLICE + LONGEST_NUMBER;
	int64		room = payload->text.maxlen - payload->text.len;
	int64		more;

	if (is_other_encoding(payload))
		slice *= MAX_GROWTH;
	if (room > slice || payload->text.maxlen == MaxAllocSize)
		return true;
	more = Min(slice - room + payload->text.maxlen / 4, (int64) MaxAllocSize - payload->text.maxlen);
	if (payload->memory < payload->stored_size + payload->text.maxlen + more)
	{
		if (more > outbox_memory_free(OUTBOX_MEMORY_PAYLOADS))
		{
			if (exceeding == NULL)
				exceeding = payload;
			if (exceeding != payload)
				return false;
		}
		count_memory(payload, payload->stored_size + payload->text.maxlen + more);
	}
	payload->text.data = repalloc(payload->text.data, payload->text.maxlen + more);
	payload->text.maxlen += (int) more;
	return true;
}

/* Convert what is whole of the slice: its last character may be cut. */
static void
convert_slice(OutboxPayload *payload, bool whole)
{
	StringInfo	slice = &payload->slice;
	int			len = whole ? slice->len : pg_encoding_mbcliplen(encoding_of_slice(), slice->data, slice->len, slice->len);
	size_t		utf8_len;
	const char *utf8 = outbox_to_utf8(slice->data, len, &utf8_len);

	if (GetDatabaseEncoding() == PG_SQL_ASCII)
		(void) pg_verify_mbstr(PG_UTF8, utf8, (int) utf8_len, false);
	appendBinaryStringInfo(&payload->text, utf8, (int) utf8_len);
	if (utf8 != slice->data)
		pfree((void *) utf8);
	memmove(slice->data, slice->data + len, slice->len - len);
	slice->len -= len;
}

/* True when that was the last. */
static bool
write_slice(OutboxPayload *payload)
{
	MemoryContext oldcontext = MemoryContextSwitchTo(payload->context);
	bool		whole;

	whole = outbox_payload_text_write(&payload->writer, is_other_encoding(payload) ? &payload->slice : &payload->text, SLICE);
	if (is_other_encoding(payload))
		convert_slice(payload, whole);
	MemoryContextSwitchTo(oldcontext);
	return whole;
}

/* The text is whole: who waits for it can be sent. */
static void
finish_text(OutboxPayload *payload)
{
	dlist_iter	iter;

	dlist_delete(&payload->link);
	payload->state = THERE;
	if (exceeding == payload)
		exceeding = NULL;
	drop_stored(payload);
	count_memory(payload, payload->text.maxlen);
	dlist_foreach(iter, &payload->deliveries)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, payload_link, iter.cur);

		provide(payload, delivery);
		outbox_lane_ready(delivery->lane);
	}
}

/* Memory has run out: as if it had never been asked for. */
static void
take_back(OutboxPayload *payload, TimestampTz now)
{
	bool		last = false;

	while (!last)
	{
		OutboxDelivery *delivery = dlist_head_element(OutboxDelivery, payload_link, &payload->deliveries);

		last = !dlist_has_next(&payload->deliveries, &delivery->payload_link);
		delivery->lane->nloaded--;
		delivery->lane->unsent_until = Max(delivery->lane->unsent_until, now + NO_MEMORY_WAIT_US);
		outbox_lane_ready(delivery->lane);
		outbox_payload_release(delivery);
	}
}

typedef enum Progress
{
	WENT_ON,
	HAS_TO_WAIT,
	FAILED						/* and is gone */
} Progress;

static Progress
go_on(OutboxPayload *payload)
{
	if (payload->text.data == NULL)
		begin_text(payload);
	if (!reserve_slice(payload))
		return HAS_TO_WAIT;
	if (write_slice(payload))
	{
		payload->text.maxlen = payload->text.len + 1;
		payload->text.data = repalloc(payload->text.data, payload->text.maxlen);
		finish_text(payload);
	}
	return WENT_ON;
}

/* The same, but what fails concerns nobody else.  It touches memory only, so no transaction is needed to recover. */
static Progress
try_to_go_on(OutboxPayload *payload, TimestampTz now)
{
	MemoryContext oldcontext = CurrentMemoryContext;
	volatile Progress result = FAILED;

	PG_TRY();
	{
		result = go_on(payload);
	}
	PG_CATCH();
	{
		ErrorData  *failure;

		MemoryContextSwitchTo(oldcontext);
		failure = CopyErrorData();
		FlushErrorState();
		if (failure->sqlerrcode == ERRCODE_OUT_OF_MEMORY)
			take_back(payload, now);
		else
			bury_unreadable(payload, failure->message);
		FreeErrorData(failure);
	}
	PG_END_TRY();
	return result;
}

/* A slice of each in turn, so that a short one does not wait for a long one. */
void
outbox_payloads_write(TimestampTz now)
{
	TimestampTz end = outbox_steady_time() + WRITE_TURN_US;
	const OutboxPayload *stuck = NULL;

	while (!dlist_is_empty(&writing) && outbox_steady_time() < end)
	{
		OutboxPayload *payload = dlist_head_element(OutboxPayload, link, &writing);

		/* All of them have to wait. */
		if (payload == stuck)
			break;
		set_state(payload, WRITING, &writing);
		switch (try_to_go_on(payload, now))
		{
			case HAS_TO_WAIT:
				if (stuck == NULL)
					stuck = payload;
				break;
			case WENT_ON:
			case FAILED:
				stuck = NULL;
				break;
		}
	}
}
