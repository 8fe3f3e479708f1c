/*-------------------------------------------------------------------------
 *
 * stage.c
 *		outbox.stage(), its kin for texts and bytes, outbox.try_stage() and
 *		outbox.stage_many().
 *
 * A call checks everything first, then writes: the message, one delivery
 * for each handler that takes its topic, and a note for the doorbell.  What
 * is wrong with the arguments is a value (see fault.h), which stage() raises
 * and try_stage() returns.
 *
 * A message with a dedupe_key is inserted by a statement, because ON
 * CONFLICT knows how to wait for a concurrent duplicate; all other rows are
 * inserted directly (see insert.h).
 *
 * Runs in the producer's backend and transaction.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "common/session.h"
#include "common/sql_version.h"
#include "compat.h"
#include "guc.h"
#include "shared/counting.h"
#include "shared/doorbell.h"
#include "shared/unrouted.h"
#include "stage/dedupe.h"
#include "stage/insert.h"
#include "stage/message_id.h"
#include "stage/new_message.h"
#include "stage/replace.h"
#include "stage/routes.h"
#include "stage/stage.h"
#include "stage/topic_rules.h"

PG_FUNCTION_INFO_V1(outbox_sql_stage);
PG_FUNCTION_INFO_V1(outbox_sql_stage_text);
PG_FUNCTION_INFO_V1(outbox_sql_stage_bytes);
PG_FUNCTION_INFO_V1(outbox_sql_try_stage);
PG_FUNCTION_INFO_V1(outbox_sql_stage_many);

/* Where the three functions have their arguments. */
enum
{
	ARG_TOPIC,
	ARG_PAYLOAD,				/* an array for stage_many, as are the next two */
	ARG_KEY,
	ARG_DEDUPE_KEY,
	ARG_TENANT,
	ARG_CORRELATION_ID,
	ARG_HEADERS,
	ARG_DELIVER_AT,
	ARG_DELAY,
	ARG_MIN_VERSION,
	ARG_REPLACE_KEY,			/* not of stage_many, nor is the next */
	ARG_MAX_DELAY,
	ARG_EXPIRES_AT,
	ARG_TTL,
	ARG_CONTENT_TYPE = ARG_PAYLOAD + 1	/* of stage_text and stage_bytes, where the others come one later */
};

/* stage_many() has the last two where the others have what it does not have. */
#define ARG_OF_MANY(arg) ((arg) - (ARG_EXPIRES_AT - ARG_REPLACE_KEY))

/* What became of a message. */
typedef enum StageStatus
{
	STAGE_CREATED,
	STAGE_EXISTS,				/* the id is that of the first message with this dedupe_key */
	STAGE_DEDUPE_CONFLICT,
	STAGE_INVALID
} StageStatus;

static const char *const status_names[] = {"created", "exists", "dedupe_conflict", "invalid"};

/* What one call works with. */
typedef struct Staging
{
	OutboxStageArguments *arguments;
	OutboxRoutes *routes;
	OutboxTopicRules *rules;	/* NULL: none */
	OutboxWriter writer;
	OutboxFault fault;			/* when a status says that something is wrong */
} Staging;

/* A duplicate of an uncommitted message waits here until that one has committed or rolled back. */
static OutboxPlan insert_unless_repeated = {
	.sql = "INSERT INTO outbox.message (id, staged_at, min_version, topic, key, dedupe_key, tenant, correlation_id, headers, payload, deliver_at, expires_at, "
	"content_type, payload_text, payload_bytes) "
	"VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) "
	"ON CONFLICT ((COALESCE(tenant, '')), dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING",
	.nargs = 15,
	.argtypes = {UUIDOID, TIMESTAMPTZOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, TEXTOID, JSONBOID, JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID,
	TEXTOID, TEXTOID, BYTEAOID}
};

static OutboxPlan find_first = {
	.sql = "SELECT m.id, m.topic FROM outbox.message m "
	"WHERE COALESCE(m.tenant, '') OPERATOR(pg_catalog.=) COALESCE($1, '') "
	"AND m.dedupe_key OPERATOR(pg_catalog.=) $2",
	.nargs = 2,
	.argtypes = {TEXTOID, TEXTOID}
};

/* The same, and nobody can remove it before this transaction has ended. */
static OutboxPlan hold_first = {
	.sql = "SELECT m.id, m.topic, m.staged_at FROM outbox.message m "
	"WHERE COALESCE(m.tenant, '') OPERATOR(pg_catalog.=) COALESCE($1, '') "
	"AND m.dedupe_key OPERATOR(pg_catalog.=) $2 FOR KEY SHARE",
	.nargs = 2,
	.argtypes = {TEXTOID, TEXTOID}
};

/* Objects of an older version have fewer arguments. */
static bool
is_given(FunctionCallInfo fcinfo, int n)
{
	return n < PG_NARGS() && !PG_ARGISNULL(n);
}

static text *
text_arg(FunctionCallInfo fcinfo, int n)
{
	return is_given(fcinfo, n) ? PG_GETARG_TEXT_PP(n) : NULL;
}

static Jsonb *
payload_arg(FunctionCallInfo fcinfo)
{
	return PG_ARGISNULL(ARG_PAYLOAD) ? NULL : PG_GETARG_JSONB_P(ARG_PAYLOAD);
}

static Interval *
interval_arg(FunctionCallInfo fcinfo, int n)
{
	return is_given(fcinfo, n) ? PG_GETARG_INTERVAL_P(n) : NULL;
}

static void
read_arguments(FunctionCallInfo fcinfo, OutboxStageArguments *arguments, int expires_at, int ttl)
{
	/* Other versions have other arguments. */
	outbox_require_sql(OUTBOX_MAY_STAGE);
	memset(arguments, 0, sizeof(OutboxStageArguments));
	arguments->topic = text_arg(fcinfo, ARG_TOPIC);
	arguments->tenant = text_arg(fcinfo, ARG_TENANT);
	arguments->correlation_id = text_arg(fcinfo, ARG_CORRELATION_ID);
	arguments->headers = PG_ARGISNULL(ARG_HEADERS) ? NULL : PG_GETARG_JSONB_P(ARG_HEADERS);
	arguments->has_deliver_at = !PG_ARGISNULL(ARG_DELIVER_AT);
	if (arguments->has_deliver_at)
		arguments->deliver_at = PG_GETARG_TIMESTAMPTZ(ARG_DELIVER_AT);
	arguments->delay = interval_arg(fcinfo, ARG_DELAY);
	arguments->has_min_version = !PG_ARGISNULL(ARG_MIN_VERSION);
	if (arguments->has_min_version)
		arguments->min_version = PG_GETARG_INT32(ARG_MIN_VERSION);
	arguments->has_expires_at = is_given(fcinfo, expires_at);
	if (arguments->has_expires_at)
		arguments->expires_at = PG_GETARG_TIMESTAMPTZ(expires_at);
	arguments->ttl = interval_arg(fcinfo, ttl);
}

static void
require_writable(const char *function)
{
	outbox_require_writable(function);
	PreventCommandIfParallelMode(function);
}

static OutboxRoutes *
copy_routes(const OutboxRoutes *routes)
{
	Size		size = offsetof(OutboxRoutes, route) + sizeof(OutboxRoute) * routes->n;

	return memcpy(palloc(size), routes, size);
}

/* Check what the call's messages share and route their topic. */
static bool
begin_staging(Staging *staging, OutboxStageArguments *arguments)
{
	char	   *topic;
	int			len;

	staging->arguments = arguments;
	if (!outbox_check_arguments(arguments, GetCurrentTimestamp(), &staging->fault))
		return false;

	topic = VARDATA_ANY(arguments->topic);
	len = VARSIZE_ANY_EXHDR(arguments->topic);
	staging->routes = copy_routes(outbox_routes(topic, len));
	if (!outbox_topic_rules_find(topic, len, &staging->rules, &staging->fault))
		return false;
	if (staging->routes->n > 0 || outbox_unrouted != OUTBOX_UNROUTED_ERROR)
		return true;
	outbox_unrouted_refused(topic, len);
	return outbox_fault(&staging->fault, ERRCODE_UNDEFINED_OBJECT,
						"Create a handler that takes it, or set outbox.unrouted to delivered or dead.",
						"no handler takes topic \"%.*s\"", len, topic);
}

/* Check what is a message's own, then what its topic asks of it. */
static bool
check_message(Staging *staging, OutboxNewMessage *message)
{
	return outbox_check_new_message(message, &staging->fault) &&
		outbox_topic_rules_hold(staging->rules, message, &staging->fault);
}

/* Draw n timestamps for ids; returns the first. */
static uint64
begin_writing(Staging *staging, int n)
{
	outbox_writer_begin(&staging->writer);
	outbox_message_ids_seed();
	return outbox_message_ids_reserve(staging->arguments->staged_at, n);
}

static void
set_value(Datum *values, char *nulls, int n, const void *value)
{
	values[n] = PointerGetDatum(value);
	nulls[n] = value ? ' ' : 'n';
}

static bool
insert_if_first(const OutboxNewMessage *message)
{
	const OutboxStageArguments *arguments = message->arguments;
	bool		is_bytes = message->kind == OUTBOX_PAYLOAD_BYTES;
	Datum		values[15];
	char		nulls[15];

	set_value(values, nulls, 0, &message->id);
	values[1] = TimestampTzGetDatum(arguments->staged_at);
	nulls[1] = ' ';
	values[2] = Int32GetDatum(arguments->min_version);
	nulls[2] = arguments->has_min_version ? ' ' : 'n';
	set_value(values, nulls, 3, arguments->topic);
	set_value(values, nulls, 4, message->key);
	set_value(values, nulls, 5, message->dedupe_key);
	set_value(values, nulls, 6, arguments->tenant);
	set_value(values, nulls, 7, arguments->correlation_id);
	set_value(values, nulls, 8, arguments->headers);
	set_value(values, nulls, 9, message->payload);
	values[10] = TimestampTzGetDatum(arguments->due_at);
	nulls[10] = arguments->due_at > arguments->staged_at ? ' ' : 'n';
	values[11] = TimestampTzGetDatum(arguments->end_at);
	nulls[11] = arguments->end_at != DT_NOEND ? ' ' : 'n';
	set_value(values, nulls, 12, message->content_type);
	set_value(values, nulls, 13, is_bytes ? NULL : message->body);
	set_value(values, nulls, 14, is_bytes ? message->body : NULL);
	return outbox_execute_unseen(&insert_unless_repeated, values, nulls, false, 0, SPI_OK_INSERT) > 0;
}

/* Find the message that has the dedupe_key in its row; false if it has gone since. */
static bool
look_up_first(const OutboxNewMessage *message, OutboxFirst *first, bool *over)
{
	Datum		values[2];
	char		nulls[2];
	HeapTuple	row;
	TupleDesc	desc;
	bool		isnull;
	text	   *first_topic;
	text	   *topic = message->arguments->topic;

	set_value(values, nulls, 0, message->arguments->tenant);
	set_value(values, nulls, 1, message->dedupe_key);
	if (outbox_execute_by_index(outbox_dedupe_window > 0 ? &hold_first : &find_first, values, nulls, 1) == 0)
		return false;

	row = SPI_tuptable->vals[0];
	desc = SPI_tuptable->tupdesc;
	first->id = *DatumGetUUIDP(SPI_getbinval(row, desc, 1, &isnull));
	first_topic = DatumGetTextPP(SPI_getbinval(row, desc, 2, &isnull));
	first->same_topic = VARSIZE_ANY_EXHDR(first_topic) == VARSIZE_ANY_EXHDR(topic) &&
		memcmp(VARDATA_ANY(first_topic), VARDATA_ANY(topic), VARSIZE_ANY_EXHDR(topic)) == 0;
	*over = outbox_dedupe_window > 0 &&
		outbox_dedupe_is_over(message, DatumGetTimestampTz(SPI_getbinval(row, desc, 3, &isnull)));
	return true;
}

/* Describe a conflict, outside SPI's memory. */
static void
describe_conflict(Staging *staging, const OutboxNewMessage *message)
{
	outbox_fault(&staging->fault, ERRCODE_UNIQUE_VIOLATION,
				 "A dedupe_key is unique within a tenant, over all topics; prefix it with what it is about.",
				 "dedupe_key \"%s\" was used for a message of another topic",
				 text_to_cstring(message->dedupe_key));
}

/*
 * With a window of its own the key may be kept without its message, or be over
 * while that is still there: see dedupe.h.
 */
static bool
insert_within_window(OutboxNewMessage *message, OutboxFirst *first, bool *created)
{
	bool		over;

	*created = false;
	/* As a rule it is not there; if it is, nothing is written in vain. */
	if (outbox_dedupe_find(message, first))
		return true;
	if (insert_if_first(message))
	{
		*created = !outbox_dedupe_find(message, first);
		if (!*created)
			outbox_dedupe_withdraw(message);
		return true;
	}
	if (!look_up_first(message, first, &over))
		return false;
	if (!over)
		return true;
	*created = message->reuses_key = outbox_dedupe_take_over(message);
	return *created;
}

/* Insert it, or find the first one.  False if that has gone in between. */
static bool
insert_or_find(OutboxNewMessage *message, OutboxFirst *first, bool *created)
{
	bool		over;

	if (outbox_dedupe_window > 0)
		return insert_within_window(message, first, created);
	*created = insert_if_first(message);
	return *created || look_up_first(message, first, &over);
}

/*
 * Insert a message with a dedupe_key, or find the first one that has it.  In
 * between that one may be removed, hence the loop.  Under REPEATABLE READ
 * the insertion itself fails if the first one is invisible to the snapshot.
 */
static StageStatus
insert_deduplicated(Staging *staging, OutboxNewMessage *message)
{
	OutboxSecurity caller;
	OutboxFirst first;
	bool		created;
	ErrorContextCallback context = {error_context_stack, outbox_hint_at_snapshot, NULL};

	SPI_connect();
	outbox_become_owner_to_write(&caller, "message");
	error_context_stack = &context;
	while (!insert_or_find(message, &first, &created))
		CHECK_FOR_INTERRUPTS();
	error_context_stack = context.previous;
	outbox_become_caller(&caller);
	SPI_finish();

	if (created)
	{
		if (message->reuses_key)
			outbox_insert_message(&staging->writer, message);
		return STAGE_CREATED;
	}
	message->id = first.id;
	if (first.same_topic)
		return STAGE_EXISTS;
	describe_conflict(staging, message);
	return STAGE_DEDUPE_CONFLICT;
}

static void
insert_deliveries(Staging *staging, const OutboxNewMessage *message)
{
	for (int i = 0; i < staging->routes->n; i++)
	{
		const OutboxRoute *route = &staging->routes->route[i];

		CHECK_FOR_INTERRUPTS();
		outbox_insert_delivery(&staging->writer, message, route);
		outbox_doorbell_note(route->handler_id, OUTBOX_NOTICE_DUE, message->arguments->due_at, &message->id);
		outbox_doorbell_note_end(outbox_delivery_end(message, route));
		outbox_count_at_commit(route->handler_id, OUTBOX_COUNT_STAGED, 1);
	}
	if (staging->routes->n > 0)
		return;
	outbox_unrouted_note(VARDATA_ANY(message->arguments->topic), VARSIZE_ANY_EXHDR(message->arguments->topic));
	if (outbox_unrouted != OUTBOX_UNROUTED_DEAD)
		return;
	if (outbox_insert_unrouted(&staging->writer, message))
		outbox_doorbell_note_schedules();
	outbox_count_at_commit(OUTBOX_UNROUTED_HANDLER, OUTBOX_COUNT_STAGED, 1);
	outbox_count_outcome_at_commit(OUTBOX_UNROUTED_HANDLER, OUTBOX_DEAD, NULL);
}

/* Write a message that has been checked. */
static StageStatus
write_message(Staging *staging, OutboxNewMessage *message, uint64 timestamp)
{
	outbox_message_id_make(timestamp, &message->id);
	message->reuses_key = false;
	if (message->dedupe_key)
	{
		StageStatus status = insert_deduplicated(staging, message);

		if (status != STAGE_CREATED)
			return status;
	}
	else
		outbox_insert_message(&staging->writer, message);
	insert_deliveries(staging, message);
	return STAGE_CREATED;
}

/* Stage one message; what is wrong with it is told in the fault. */
static StageStatus
stage_one(Staging *staging, OutboxStageArguments *arguments, OutboxNewMessage *message)
{
	OutboxReplaced replaced;
	StageStatus status;
	uint64		timestamp;

	message->arguments = arguments;
	if (!begin_staging(staging, arguments))
		return STAGE_INVALID;
	if (!check_message(staging, message))
		return STAGE_INVALID;

	/* Before an id is drawn: those of one key are to be in the order of their transactions. */
	if (message->replace_key)
		outbox_replace_find(message, arguments, &replaced);
	timestamp = begin_writing(staging, 1);
	status = write_message(staging, message, timestamp);
	outbox_writer_end(&staging->writer);
	if (message->replace_key)
		outbox_replace(&replaced);
	return status;
}

/* The arguments of stage() and try_stage(), but for the payload. */
static void
read_message(FunctionCallInfo fcinfo, OutboxStageArguments *arguments, OutboxNewMessage *message)
{
	read_arguments(fcinfo, arguments, ARG_EXPIRES_AT, ARG_TTL);
	arguments->max_delay = interval_arg(fcinfo, ARG_MAX_DELAY);
	memset(message, 0, sizeof(OutboxNewMessage));
	message->key = text_arg(fcinfo, ARG_KEY);
	message->dedupe_key = text_arg(fcinfo, ARG_DEDUPE_KEY);
	message->replace_key = text_arg(fcinfo, ARG_REPLACE_KEY);
}

void
outbox_stage(OutboxStageArguments *arguments, OutboxNewMessage *message)
{
	Staging		staging;
	StageStatus status = stage_one(&staging, arguments, message);

	if (status != STAGE_CREATED && status != STAGE_EXISTS)
		outbox_raise_fault(&staging.fault);
}

/* Take a handler out of those that the topic is routed to. */
static void
leave_out(OutboxRoutes *routes, int32 handler_id)
{
	int			n = 0;

	for (int i = 0; i < routes->n; i++)
	{
		if (routes->route[i].handler_id != handler_id)
			routes->route[n++] = routes->route[i];
	}
	routes->n = n;
}

bool
outbox_stage_event(OutboxStageArguments *arguments, OutboxNewMessage *message, int32 about)
{
	Staging		staging;
	uint64		timestamp;

	arguments->is_event = true;
	message->arguments = staging.arguments = arguments;
	if (!outbox_check_arguments(arguments, GetCurrentTimestamp(), &staging.fault))
		outbox_raise_fault(&staging.fault);
	staging.routes = copy_routes(outbox_routes(VARDATA_ANY(arguments->topic), VARSIZE_ANY_EXHDR(arguments->topic)));
	leave_out(staging.routes, about);
	if (staging.routes->n == 0)
		return false;
	timestamp = begin_writing(&staging, 1);
	(void) write_message(&staging, message, timestamp);
	outbox_writer_end(&staging.writer);
	return true;
}

static Datum
return_id(FunctionCallInfo fcinfo, const pg_uuid_t *id)
{
	pg_uuid_t  *result = palloc(sizeof(pg_uuid_t));

	*result = *id;
	PG_RETURN_UUID_P(result);
}

/* outbox.stage(topic, payload, key, ...) */
Datum
outbox_sql_stage(PG_FUNCTION_ARGS)
{
	OutboxStageArguments arguments;
	OutboxNewMessage message;

	require_writable("outbox.stage()");
	read_message(fcinfo, &arguments, &message);
	message.payload = payload_arg(fcinfo);
	outbox_stage(&arguments, &message);
	return return_id(fcinfo, &message.id);
}

/*
 * The functions for texts and bytes have the arguments of stage(), but for the
 * payload's type, and content_type behind it.
 */
static Datum
stage_body(FunctionCallInfo fcinfo, OutboxPayloadKind kind)
{
	LOCAL_FCINFO(as_stage, FUNC_MAX_ARGS);
	OutboxStageArguments arguments;
	OutboxNewMessage message;
	int			n = 0;

	InitFunctionCallInfoData(*as_stage, fcinfo->flinfo, PG_NARGS() - 1, fcinfo->fncollation, NULL, NULL);
	for (int i = 0; i < PG_NARGS(); i++)
	{
		if (i != ARG_CONTENT_TYPE)
			as_stage->args[n++] = fcinfo->args[i];
	}
	read_message(as_stage, &arguments, &message);
	message.kind = kind;
	message.body = PG_ARGISNULL(ARG_PAYLOAD) ? NULL : PG_GETARG_VARLENA_PP(ARG_PAYLOAD);
	message.content_type = text_arg(fcinfo, ARG_CONTENT_TYPE);
	outbox_stage(&arguments, &message);
	return return_id(fcinfo, &message.id);
}

/* outbox.stage_text(topic, payload, content_type, key, ...) */
Datum
outbox_sql_stage_text(PG_FUNCTION_ARGS)
{
	require_writable("outbox.stage_text()");
	return stage_body(fcinfo, OUTBOX_PAYLOAD_TEXT);
}

/* outbox.stage_bytes(topic, payload, content_type, key, ...) */
Datum
outbox_sql_stage_bytes(PG_FUNCTION_ARGS)
{
	require_writable("outbox.stage_bytes()");
	return stage_body(fcinfo, OUTBOX_PAYLOAD_BYTES);
}

/* outbox.try_stage(topic, payload, key, ...) */
Datum
outbox_sql_try_stage(PG_FUNCTION_ARGS)
{
	Staging		staging;
	OutboxStageArguments arguments;
	OutboxNewMessage message;
	StageStatus status;
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false, false, true};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	require_writable("outbox.try_stage()");
	read_message(fcinfo, &arguments, &message);
	message.payload = payload_arg(fcinfo);
	status = stage_one(&staging, &arguments, &message);

	/* The id of a conflict is that of the message that has the dedupe_key. */
	values[0] = UUIDPGetDatum(&message.id);
	nulls[0] = status == STAGE_INVALID;
	values[1] = CStringGetTextDatum(status_names[status]);
	if (status == STAGE_INVALID || status == STAGE_DEDUPE_CONFLICT)
	{
		values[2] = CStringGetTextDatum(staging.fault.message);
		nulls[2] = false;
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* The elements of an array argument; NULL if it is not given. */
static Datum *
array_arg(FunctionCallInfo fcinfo, int n, const char *name, Oid type, bool **nulls, int *nelems)
{
	ArrayType  *array;
	Datum	   *elems;

	*nulls = NULL;
	*nelems = 0;
	if (PG_ARGISNULL(n))
		return NULL;
	array = PG_GETARG_ARRAYTYPE_P(n);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("%s must be an array of one dimension", name),
				 errhint("Pass one element for each message.")));
	deconstruct_array(array, type, -1, false, TYPALIGN_INT, &elems, nulls, nelems);
	return elems;
}

/* An optional array of texts, one for each message. */
static void
read_texts(FunctionCallInfo fcinfo, int arg, const char *name, OutboxNewMessage *messages, int n,
		   size_t field)
{
	bool	   *nulls;
	int			nelems;
	Datum	   *elems = array_arg(fcinfo, arg, name, TEXTOID, &nulls, &nelems);

	if (elems == NULL)
		return;
	if (nelems != n)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("payloads has %d elements but %s has %d", n, name, nelems),
				 errhint("Pass one element for each payload, NULL where there is none.")));
	for (int i = 0; i < n; i++)
	{
		if (!nulls[i])
			*(text **) ((char *) &messages[i] + field) = DatumGetTextPP(elems[i]);
	}
}

/*
 * Read the messages of stage_many() and check every one of them.  NULL is what
 * array_agg() makes of no rows, which are no messages.
 */
static OutboxNewMessage *
read_messages(FunctionCallInfo fcinfo, Staging *staging, int *n)
{
	bool	   *nulls;
	Datum	   *payloads = array_arg(fcinfo, ARG_PAYLOAD, "payloads", JSONBOID, &nulls, n);
	OutboxNewMessage *messages;

	messages = MemoryContextAllocExtended(CurrentMemoryContext, sizeof(OutboxNewMessage) * Max(*n, 1),
										  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	read_texts(fcinfo, ARG_KEY, "keys", messages, *n, offsetof(OutboxNewMessage, key));
	read_texts(fcinfo, ARG_DEDUPE_KEY, "dedupe_keys", messages, *n, offsetof(OutboxNewMessage, dedupe_key));
	for (int i = 0; i < *n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		messages[i].arguments = staging->arguments;
		messages[i].payload = nulls[i] ? NULL : DatumGetJsonbP(payloads[i]);
		if (!check_message(staging, &messages[i]))
		{
			staging->fault.message = psprintf("message %d: %s", i + 1, staging->fault.message);
			outbox_raise_fault(&staging->fault);
		}
	}
	return messages;
}

/* Stage them all; the ids are left in the messages. */
static OutboxNewMessage *
stage_all(FunctionCallInfo fcinfo, int *n)
{
	Staging		staging;
	OutboxStageArguments arguments;
	OutboxNewMessage *messages;
	uint64		timestamp;

	read_arguments(fcinfo, &arguments, ARG_OF_MANY(ARG_EXPIRES_AT), ARG_OF_MANY(ARG_TTL));
	if (!begin_staging(&staging, &arguments))
		outbox_raise_fault(&staging.fault);
	messages = read_messages(fcinfo, &staging, n);
	if (*n == 0)
		return messages;

	timestamp = begin_writing(&staging, *n);
	for (int i = 0; i < *n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (write_message(&staging, &messages[i], timestamp + i) == STAGE_DEDUPE_CONFLICT)
			outbox_raise_fault(&staging.fault);
	}
	outbox_writer_end(&staging.writer);
	return messages;
}

/* outbox.stage_many(topic, payloads, keys, dedupe_keys, ...) */
Datum
outbox_sql_stage_many(PG_FUNCTION_ARGS)
{
	FuncCallContext *call;
	pg_uuid_t  *ids;

	if (SRF_IS_FIRSTCALL())
	{
		OutboxNewMessage *messages;
		int			n;

		require_writable("outbox.stage_many()");
		call = SRF_FIRSTCALL_INIT();
		messages = stage_all(fcinfo, &n);
		ids = MemoryContextAllocHuge(call->multi_call_memory_ctx, sizeof(pg_uuid_t) * Max(n, 1));
		for (int i = 0; i < n; i++)
			ids[i] = messages[i].id;
		call->user_fctx = ids;
		call->max_calls = n;
	}

	call = SRF_PERCALL_SETUP();
	ids = call->user_fctx;
	if (call->call_cntr < call->max_calls)
	{
		/* The macro counts before it evaluates what it returns. */
		Datum		id = return_id(fcinfo, &ids[call->call_cntr]);

		SRF_RETURN_NEXT(call, id);
	}
	SRF_RETURN_DONE(call);
}
