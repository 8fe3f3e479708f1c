/*-------------------------------------------------------------------------
 *
 * outbox_unit.c
 *		SQL-callable doors to the modules of src/format, for tests.
 *
 * These modules need a backend (memory contexts, jsonb, encodings) but
 * neither a dispatcher nor SPI.  A library of its own, loaded by test/t only
 * and never installed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "format/encode.h"
#include "format/content_type.h"
#include "format/json_text.h"
#include "format/payload_text.h"
#include "format/request.h"
#include "format/signature.h"
#include "shared/pull_state.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(unit_request);
PG_FUNCTION_INFO_V1(unit_request_ns);
PG_FUNCTION_INFO_V1(unit_request_growth);
PG_FUNCTION_INFO_V1(unit_sign);
PG_FUNCTION_INFO_V1(unit_turn);
PG_FUNCTION_INFO_V1(unit_json_text);
PG_FUNCTION_INFO_V1(unit_payload_text);
PG_FUNCTION_INFO_V1(unit_content_type);
PG_FUNCTION_INFO_V1(unit_wal_before);
PG_FUNCTION_INFO_V1(unit_matches_schema);
PG_FUNCTION_INFO_V1(unit_schema_errors);
PG_FUNCTION_INFO_V1(unit_schema_is_valid);

/* A member of a JSON object as text, NULL if it is missing or null. */
static char *
member(Jsonb *object, const char *name)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&object->root, name, (int) strlen(name), &value) == NULL ||
		value.type == jbvNull)
		return NULL;
	if (value.type == jbvString)
		return pnstrdup(value.val.string.val, value.val.string.len);
	if (value.type == jbvNumeric)
		return DatumGetCString(DirectFunctionCall1(numeric_out,
												   NumericGetDatum(value.val.numeric)));
	if (value.type == jbvBool)
		return pstrdup(value.val.boolean ? "true" : "false");
	{
		Jsonb	   *part = JsonbValueToJsonb(&value);

		return JsonbToCString(NULL, &part->root, VARSIZE(part));
	}
}

static Jsonb *
member_jsonb(Jsonb *object, const char *name)
{
	JsonbValue	value;

	if (getKeyJsonValueFromContainer(&object->root, name, (int) strlen(name), &value) == NULL)
		return NULL;
	return JsonbValueToJsonb(&value);
}

static TimestampTz
read_timestamp(const char *text)
{
	return DatumGetTimestampTz(DirectFunctionCall3(timestamptz_in, CStringGetDatum(text),
												   ObjectIdGetDatum(InvalidOid),
												   Int32GetDatum(-1)));
}

/* payload_text, or payload_hex for bytes. */
static void
read_body(Jsonb *object, OutboxMessage *message)
{
	OutboxContentType type;
	char	   *hex = member(object, "payload_hex");
	bytea	   *bytes;

	if (hex != NULL)
	{
		bytes = DatumGetByteaPP(DirectFunctionCall1(byteain, CStringGetDatum(psprintf("\\x%s", hex))));
		message->kind = OUTBOX_PAYLOAD_BYTES;
		message->payload = VARDATA_ANY(bytes);
		message->payload_len = VARSIZE_ANY_EXHDR(bytes);
		return;
	}
	message->payload = member(object, "payload_text");
	message->payload_len = strlen(message->payload);
	message->kind = OUTBOX_PAYLOAD_TEXT;
	if (outbox_content_type_read(message->content_type, strlen(message->content_type), &type) && type.is_json)
		message->kind = OUTBOX_PAYLOAD_JSON_TEXT;
}

static OutboxRequestItem
read_item(Jsonb *object)
{
	OutboxMessage *message = palloc0(sizeof(OutboxMessage));
	OutboxRequestItem item = {message, 1};
	char	   *attempt = member(object, "attempt");
	Jsonb	   *payload = member_jsonb(object, "payload");

	message->id = *DatumGetUUIDP(DirectFunctionCall1(uuid_in,
													 CStringGetDatum(member(object, "id"))));
	message->staged_at = read_timestamp(member(object, "staged_at"));
	message->topic = member(object, "topic");
	message->key = member(object, "key");
	message->tenant = member(object, "tenant");
	message->correlation_id = member(object, "correlation_id");
	message->headers = member_jsonb(object, "headers");
	message->content_type = member(object, "content_type");
	if (payload != NULL)
	{
		message->payload = JsonbToCString(NULL, &payload->root, VARSIZE(payload));
		message->payload_len = strlen(message->payload);
	}
	else
		read_body(object, message);
	message->large = member(object, "large") != NULL;
	if (message->large)
		message->payload = outbox_to_utf8(message->payload, message->payload_len, &message->payload_len);
	if (attempt != NULL)
		item.attempt = pg_strtoint32(attempt);
	return item;
}

static OutboxRequestForm *
read_form(Jsonb *object)
{
	OutboxRequestOptions options = {0};
	char	   *batch = member(object, "batch");
	Jsonb	   *secrets = member_jsonb(object, "secrets");
	char	   *format = member(object, "format");

	options.format = outbox_format_by_name(format ? format : "raw");
	if (options.format == NULL)
		elog(ERROR, "no format \"%s\"", format);
	options.handler = member(object, "handler");
	options.batch = batch != NULL && strcmp(batch, "true") == 0;
	options.source = member(object, "source");
	if (options.source == NULL)
		options.source = outbox_event_source("büro 1");
	options.user_agent = member(object, "user_agent");
	options.authorization = member(object, "authorization");
	options.headers = member_jsonb(object, "headers");
	if (secrets != NULL)
	{
		OutboxSecret *list;

		options.nsecrets = JB_ROOT_COUNT(secrets);
		options.secrets = list = palloc0(sizeof(OutboxSecret) * options.nsecrets);
		for (int i = 0; i < options.nsecrets; i++)
		{
			JsonbValue *value = getIthJsonbValueFromContainer(&secrets->root, i);

			list[i].text = pnstrdup(value->val.string.val, value->val.string.len);
			list[i].expires_at = DT_NOEND;
		}
	}
	return outbox_request_form(&options);
}

static Datum
text_array(const char *const *lines, int nlines)
{
	Datum	   *elements = palloc(sizeof(Datum) * Max(nlines, 1));

	for (int i = 0; i < nlines; i++)
		elements[i] = CStringGetTextDatum(lines[i]);
	return PointerGetDatum(construct_array(elements, nlines, TEXTOID, -1, false, TYPALIGN_INT));
}

static OutboxRequestItem *
read_items(ArrayType *array, int *nitems)
{
	Datum	   *messages;
	OutboxRequestItem *items;

	deconstruct_array(array, JSONBOID, -1, false, TYPALIGN_INT, &messages, NULL, nitems);
	items = palloc(sizeof(OutboxRequestItem) * *nitems);
	for (int i = 0; i < *nitems; i++)
		items[i] = read_item(DatumGetJsonbP(messages[i]));
	return items;
}

static text *
body_of(const OutboxRequest *request)
{
	StringInfoData body;

	if (request->nparts == 0)
		return cstring_to_text_with_len(request->body, (int) request->body_len);
	initStringInfo(&body);
	for (int i = 0; i < request->nparts; i++)
		appendBinaryStringInfo(&body, request->parts[i].iov_base, (int) request->parts[i].iov_len);
	if ((size_t) body.len != request->body_len)
		elog(ERROR, "the parts are %d bytes, not %zu", body.len, request->body_len);
	return cstring_to_text_with_len(body.data, body.len);
}

/*
 * unit_request(form jsonb, messages jsonb[], now timestamptz,
 *				OUT handler_lines text[], OUT lines text[], OUT body bytea)
 *
 * Written twice with the same OutboxRequest, so that reuse is tested too.
 */
Datum
unit_request(PG_FUNCTION_ARGS)
{
	OutboxRequestForm *form = read_form(PG_GETARG_JSONB_P(0));
	TimestampTz now = PG_GETARG_TIMESTAMPTZ(2);
	OutboxRequest request = {0};
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};
	int			nitems;
	OutboxRequestItem *items = read_items(PG_GETARG_ARRAYTYPE_P(1), &nitems);

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	outbox_request_write(&request, form, items, nitems, now);
	outbox_request_write(&request, form, items, nitems, now);
	values[0] = text_array(form->headers, form->nheaders);
	values[1] = text_array(request.headers, request.nheaders);
	values[2] = PointerGetDatum(body_of(&request));
	outbox_request_free(&request);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/* unit_request_ns(form jsonb, messages jsonb[], rounds int) RETURNS float8: nanoseconds a request */
Datum
unit_request_ns(PG_FUNCTION_ARGS)
{
	OutboxRequestForm *form = read_form(PG_GETARG_JSONB_P(0));
	int			rounds = PG_GETARG_INT32(2);
	TimestampTz now = GetCurrentTimestamp();
	OutboxRequest request = {0};
	instr_time	start;
	instr_time	end;
	int			nitems;
	OutboxRequestItem *items = read_items(PG_GETARG_ARRAYTYPE_P(1), &nitems);

	INSTR_TIME_SET_CURRENT(start);
	for (int i = 0; i < rounds; i++)
		outbox_request_write(&request, form, items, nitems, now);
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	PG_RETURN_FLOAT8(INSTR_TIME_GET_DOUBLE(end) * 1e9 / rounds);
}

/* Write it; false if that raised an error. */
static bool
try_write(OutboxRequest *request, const OutboxRequestForm *form, const OutboxRequestItem *items, int nitems)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool written = false;

	PG_TRY();
	{
		outbox_request_write(request, form, items, nitems, GetCurrentTimestamp());
		written = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
	return written;
}

/*
 * unit_request_growth(form jsonb, messages jsonb[], rounds int,
 *					   OUT failures int, OUT kept bigint, OUT grew boolean)
 *
 * How much more memory the context of the request, and the current one, hold
 * after so many rounds than after the first.
 */
Datum
unit_request_growth(PG_FUNCTION_ARGS)
{
	OutboxRequestForm *form = read_form(PG_GETARG_JSONB_P(0));
	MemoryContext kept = AllocSetContextCreate(CurrentMemoryContext, "request", ALLOCSET_SMALL_SIZES);
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext, "scratch", ALLOCSET_SMALL_SIZES);
	MemoryContext before = CurrentMemoryContext;
	OutboxRequest request = {.context = kept};
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};
	int			nitems;
	OutboxRequestItem *items = read_items(PG_GETARG_ARRAYTYPE_P(1), &nitems);
	Size		kept_first = 0;
	Size		scratch_first = 0;
	int			failures = 0;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	for (int i = 0; i < PG_GETARG_INT32(2); i++)
	{
		MemoryContextSwitchTo(scratch);
		failures += !try_write(&request, form, items, nitems);
		MemoryContextSwitchTo(before);
		if (i == 0)
		{
			kept_first = MemoryContextMemAllocated(kept, true);
			scratch_first = MemoryContextMemAllocated(scratch, true);
		}
	}
	values[0] = Int32GetDatum(failures);
	values[1] = Int64GetDatum((int64) MemoryContextMemAllocated(kept, true) - (int64) kept_first);
	values[2] = BoolGetDatum(MemoryContextMemAllocated(scratch, true) > scratch_first);
	MemoryContextDelete(scratch);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, values, nulls)));
}

/* unit_sign(secrets text[], expires timestamptz[], id text, at timestamptz, stamp text, body text) */
Datum
unit_sign(PG_FUNCTION_ARGS)
{
	Datum	   *secrets;
	Datum	   *expiries;
	int			nsecrets;
	int			nexpiries;
	OutboxSecret *list;
	StringInfoData out;
	char	   *id = text_to_cstring(PG_GETARG_TEXT_PP(2));
	char	   *stamp = text_to_cstring(PG_GETARG_TEXT_PP(4));
	char	   *body = text_to_cstring(PG_GETARG_TEXT_PP(5));
	struct iovec parts[2];
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "signer",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext before = MemoryContextSwitchTo(context);
	OutboxSigner *signer;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false, TYPALIGN_INT,
					  &secrets, NULL, &nsecrets);
	deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TIMESTAMPTZOID, 8, FLOAT8PASSBYVAL,
					  TYPALIGN_DOUBLE, &expiries, NULL, &nexpiries);
	list = palloc(sizeof(OutboxSecret) * Max(nsecrets, 1));
	for (int i = 0; i < nsecrets; i++)
	{
		list[i].text = TextDatumGetCString(secrets[i]);
		list[i].expires_at = i < nexpiries ? DatumGetTimestampTz(expiries[i]) : DT_NOEND;
	}
	signer = outbox_signer_create(nsecrets, list);
	MemoryContextSwitchTo(before);

	initStringInfo(&out);
	parts[0] = (struct iovec) {body, strlen(body) / 2};
	parts[1] = (struct iovec) {body + strlen(body) / 2, strlen(body) - strlen(body) / 2};
	if (!outbox_signer_append(signer, &out, PG_GETARG_TIMESTAMPTZ(3), id, strlen(id),
							  stamp, strlen(stamp), parts, lengthof(parts)))
		PG_RETURN_NULL();
	if (out.len > outbox_signer_room(signer))
		elog(ERROR, "a signature took more room than was said");
	MemoryContextDelete(context);
	PG_RETURN_TEXT_P(cstring_to_text(out.data));
}

/* unit_turn(handler int): whose turn it is to choose rows on a pull handler, 0 if nobody's. */
Datum
unit_turn(PG_FUNCTION_ARGS)
{
	OutboxPullRef ref = {MyDatabaseId, PG_GETARG_INT32(0), NULL};
	uint64		turn = 0;

	/* Where libraries keep their symbols to themselves, ours has yet to find the memory. */
	if (outbox_pull_shared == NULL)
		outbox_pull_shmem_startup();
	ref.state = outbox_pull_state(ref.dboid, ref.handler_id, false);
	if (outbox_pull_state_lock(&ref))
	{
		turn = ref.state->turn;
		outbox_pull_state_unlock(&ref);
	}
	PG_RETURN_INT64((int64) turn);
}

/* unit.json_text(value, step): the text of it, written so many bytes at a time. */
Datum
unit_json_text(PG_FUNCTION_ARGS)
{
	OutboxJsonText text;
	StringInfoData out;

	initStringInfo(&out);
	outbox_json_text_begin(&text, PG_GETARG_JSONB_P(0));
	while (!outbox_json_text_write(&text, &out, PG_GETARG_INT32(1)))
		CHECK_FOR_INTERRUPTS();
	PG_RETURN_TEXT_P(cstring_to_text_with_len(out.data, out.len));
}

/* unit.payload_text(kind, payload, step): embedded, written so many bytes at a time; NULL if it is not as long as it was said to be. */
Datum
unit_payload_text(PG_FUNCTION_ARGS)
{
	OutboxPayloadKind kind = strcmp(text_to_cstring(PG_GETARG_TEXT_PP(0)), "text") == 0 ? OUTBOX_PAYLOAD_TEXT : OUTBOX_PAYLOAD_BYTES;
	bytea	   *payload = PG_GETARG_BYTEA_PP(1);
	OutboxPayloadText text;
	StringInfoData out;

	initStringInfo(&out);
	outbox_payload_text_begin(&text, kind, VARDATA_ANY(payload), VARSIZE_ANY_EXHDR(payload), true);
	while (!outbox_payload_text_write(&text, &out, PG_GETARG_INT32(2)))
		CHECK_FOR_INTERRUPTS();
	if ((size_t) out.len != outbox_payload_text_length(kind, VARDATA_ANY(payload), VARSIZE_ANY_EXHDR(payload)))
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text_with_len(out.data, out.len));
}

/* unit.content_type(text): what it says in words; NULL if it is none. */
Datum
unit_content_type(PG_FUNCTION_ARGS)
{
	text	   *value = PG_GETARG_TEXT_PP(0);
	OutboxContentType type;

	if (!outbox_content_type_read(VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value), &type))
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(psprintf("%s%s", type.is_json ? "json" : "other", type.other_charset ? ", charset" : "")));
}

/* unit.wal_before(insert, segment_size): where WAL ends when the next record goes there. */
Datum
unit_wal_before(PG_FUNCTION_ARGS)
{
	PG_RETURN_LSN(outbox_wal_before(PG_GETARG_LSN(0), PG_GETARG_INT32(1)));
}

/*
 * In the place of pg_jsonschema's functions, for a schema that is an object
 * with a string "required", the name that an instance must have; with "bad" it
 * is no valid one.
 */
static char *
required_name(FunctionCallInfo fcinfo)
{
	char	   *schema = text_to_cstring(PG_GETARG_TEXT_PP(0));

	return member(DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(schema))), "required");
}

static bool
has_name(Jsonb *instance, char *name)
{
	JsonbValue	value;

	return JB_ROOT_IS_OBJECT(instance) && getKeyJsonValueFromContainer(&instance->root, name, (int) strlen(name), &value) != NULL;
}

/* jsonb_matches_schema(schema json, instance jsonb) */
Datum
unit_matches_schema(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(has_name(PG_GETARG_JSONB_P(1), required_name(fcinfo)));
}

/* jsonschema_validation_errors(schema json, instance json) */
Datum
unit_schema_errors(PG_FUNCTION_ARGS)
{
	char	   *name = required_name(fcinfo);
	char	   *instance = text_to_cstring(PG_GETARG_TEXT_PP(1));
	Datum		error = CStringGetTextDatum(psprintf("\"%s\" is a required property", name));
	bool		matches = has_name(DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(instance))), name);

	PG_RETURN_ARRAYTYPE_P(construct_array(&error, matches ? 0 : 1, TEXTOID, -1, false, TYPALIGN_INT));
}

/* jsonschema_is_valid(schema json) */
Datum
unit_schema_is_valid(PG_FUNCTION_ARGS)
{
	char	   *schema = text_to_cstring(PG_GETARG_TEXT_PP(0));

	PG_RETURN_BOOL(!has_name(DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(schema))), "bad"));
}
