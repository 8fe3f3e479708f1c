/*-------------------------------------------------------------------------
 *
 * change.c
 *		A change of a watched row, and the message that announces it.
 *
 * See change.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"

#include "stage/new_message.h"
#include "watch/change.h"

static OutboxRow *
deform(HeapTuple tuple, TupleDesc desc)
{
	OutboxRow  *row = palloc(sizeof(OutboxRow));

	row->values = palloc(sizeof(Datum) * desc->natts);
	row->nulls = palloc(sizeof(bool) * desc->natts);
	heap_deform_tuple(tuple, desc, row->values, row->nulls);
	return row;
}

/* The same bytes?  A large value that was left alone is still at the same place, and not fetched. */
static bool
same_value(const OutboxRow *a, const OutboxRow *b, int i, Form_pg_attribute attribute)
{
	if (a->nulls[i] || b->nulls[i])
		return a->nulls[i] && b->nulls[i];
	if (attribute->attlen == -1)
	{
		struct varlena *left = (struct varlena *) DatumGetPointer(a->values[i]);
		struct varlena *right = (struct varlena *) DatumGetPointer(b->values[i]);

		if (VARATT_IS_EXTERNAL_ONDISK(left) && VARATT_IS_EXTERNAL_ONDISK(right) &&
			memcmp(left, right, VARSIZE_EXTERNAL(left)) == 0)
			return true;
	}
	return datum_image_eq(a->values[i], b->values[i], attribute->attbyval, attribute->attlen);
}

/* The columns that an update has changed, but for those to ignore. */
static Bitmapset *
changed_columns(const OutboxWatch *watch, TupleDesc desc, const OutboxRow *old, const OutboxRow *now)
{
	Bitmapset  *changed = NULL;

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(desc, i);

		if (!attribute->attisdropped && !bms_is_member(attribute->attnum, watch->ignored) &&
			!same_value(old, now, i, attribute))
			changed = bms_add_member(changed, attribute->attnum);
	}
	return changed;
}

/* Does a row say that it is deleted? */
static bool
is_stamped(const OutboxWatch *watch, const OutboxRow *row)
{
	int			i = watch->soft_delete - 1;

	if (watch->soft_delete == InvalidAttrNumber || row->nulls[i])
		return false;
	return !watch->soft_delete_is_flag || DatumGetBool(row->values[i]);
}

/* False: nothing that counts. */
static bool
classify_update(OutboxChange *change)
{
	bool		was_deleted = is_stamped(change->watch, change->old);
	bool		is_deleted = is_stamped(change->watch, change->now);

	change->changed = changed_columns(change->watch, change->desc, change->old, change->now);
	change->kind = OUTBOX_UPDATED;
	change->restored = was_deleted && !is_deleted;
	if (change->restored)
		change->kind = OUTBOX_CREATED;
	else if (is_deleted && !was_deleted)
		change->kind = OUTBOX_REMOVED;
	else if (change->changed == NULL)
		return false;
	return true;
}

bool
outbox_change_of_row(OutboxChange *change, const OutboxWatch *watch, TupleDesc desc,
					 HeapTuple old, HeapTuple new)
{
	memset(change, 0, sizeof(OutboxChange));
	change->watch = watch;
	change->desc = desc;
	change->old = old ? deform(old, desc) : NULL;
	change->now = new ? deform(new, desc) : change->old;
	if (old != NULL && new != NULL)
	{
		if (!classify_update(change))
			return false;
	}
	else
		change->kind = old != NULL ? OUTBOX_REMOVED : OUTBOX_CREATED;
	return watch->announces[change->kind];
}

void
outbox_change_of_table(OutboxChange *change, const OutboxWatch *watch)
{
	memset(change, 0, sizeof(OutboxChange));
	change->watch = watch;
	change->kind = OUTBOX_TRUNCATED;
}

static void
push_string(JsonbParseState **state, JsonbIteratorToken token, const char *string)
{
	JsonbValue	value = {.type = jbvString};

	value.val.string.val = unconstify(char *, string);
	value.val.string.len = strlen(string);
	(void) pushJsonbValue(state, token, &value);
}

static void
push_field(JsonbParseState **state, const char *field, const char *string)
{
	push_string(state, WJB_KEY, field);
	push_string(state, WJB_VALUE, string);
}

static void
push_value(JsonbParseState **state, const OutboxWatchColumn *column, const OutboxRow *row)
{
	int			i = column->attnum - 1;
	JsonbValue	value = {.type = jbvNull};

	if (!row->nulls[i])
	{
		/* The function is read-only here but for what it remembers. */
		Jsonb	   *json = DatumGetJsonbP(FunctionCall1(unconstify(FmgrInfo *, &column->to_jsonb), row->values[i]));

		if (!JB_ROOT_IS_SCALAR(json) || !JsonbExtractScalar(&json->root, &value))
		{
			value.type = jbvBinary;
			value.val.binary.data = &json->root;
			value.val.binary.len = VARSIZE(json) - VARHDRSZ;
		}
	}
	(void) pushJsonbValue(state, WJB_VALUE, &value);
}

static void
push_columns(JsonbParseState **state, const OutboxWatchColumns *columns, const OutboxRow *row)
{
	for (int i = 0; i < columns->n; i++)
	{
		push_string(state, WJB_KEY, columns->column[i].field);
		push_value(state, &columns->column[i], row);
	}
}

/* The value of a key of one column, an object of several. */
static void
push_record_id(JsonbParseState **state, const OutboxWatchColumns *columns, const OutboxRow *row)
{
	if (columns->n == 1)
	{
		push_value(state, &columns->column[0], row);
		return;
	}
	(void) pushJsonbValue(state, WJB_BEGIN_OBJECT, NULL);
	push_columns(state, columns, row);
	(void) pushJsonbValue(state, WJB_END_OBJECT, NULL);
}

static bool
record_id_changed(const OutboxChange *change)
{
	const OutboxWatchColumns *columns = &change->watch->record_id;

	if (change->old == NULL || change->old == change->now)
		return false;
	for (int i = 0; i < columns->n; i++)
	{
		int			attnum = columns->column[i].attnum;

		if (!same_value(change->old, change->now, attnum - 1, TupleDescAttr(change->desc, attnum - 1)))
			return true;
	}
	return false;
}

static void
push_changed_fields(JsonbParseState **state, const OutboxChange *change)
{
	int			attnum = -1;

	push_string(state, WJB_KEY, "changedFields");
	(void) pushJsonbValue(state, WJB_BEGIN_ARRAY, NULL);
	while ((attnum = bms_next_member(change->changed, attnum)) >= 0)
		push_string(state, WJB_ELEM, NameStr(TupleDescAttr(change->desc, attnum - 1)->attname));
	(void) pushJsonbValue(state, WJB_END_ARRAY, NULL);
}

static void
push_row(JsonbParseState **state, const OutboxChange *change)
{
	const OutboxWatch *watch = change->watch;

	push_string(state, WJB_KEY, "recordId");
	push_record_id(state, &watch->record_id, change->now);
	if (record_id_changed(change))
	{
		push_string(state, WJB_KEY, "previousRecordId");
		push_record_id(state, &watch->record_id, change->old);
	}
	if (watch->tenant.n > 0)
	{
		push_string(state, WJB_KEY, "tenantId");
		push_value(state, &watch->tenant.column[0], change->now);
	}
	if (change->old != NULL && change->old != change->now)
		push_changed_fields(state, change);
	if (change->restored)
	{
		JsonbValue	yes = {.type = jbvBool, .val.boolean = true};

		push_string(state, WJB_KEY, "restored");
		(void) pushJsonbValue(state, WJB_VALUE, &yes);
	}
	push_columns(state, &watch->context, change->now);
	if (watch->include.n > 0)
	{
		push_string(state, WJB_KEY, "values");
		(void) pushJsonbValue(state, WJB_BEGIN_OBJECT, NULL);
		push_columns(state, &watch->include, change->now);
		(void) pushJsonbValue(state, WJB_END_OBJECT, NULL);
	}
}

/* Settings that are not set are left out; one that was set in an earlier transaction is empty. */
static void
push_actors(JsonbParseState **state, const OutboxWatch *watch)
{
	for (int i = 0; i < watch->nactors; i++)
	{
		const char *value = GetConfigOption(watch->actors[i].setting, true, true);

		if (value != NULL && value[0] != '\0')
			push_field(state, watch->actors[i].field, value);
	}
}

Jsonb *
outbox_change_payload(const OutboxChange *change)
{
	JsonbParseState *state = NULL;

	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	push_field(&state, "model", change->watch->model);
	push_field(&state, "kind", outbox_change_names[change->kind]);
	if (change->now != NULL)
		push_row(&state, change);
	push_actors(&state, change->watch);
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

/* The text of a column, of none or one; NULL if it has none. */
static char *
column_text(const OutboxWatchColumns *columns, const OutboxRow *row)
{
	int			i;

	if (columns->n == 0 || row == NULL)
		return NULL;
	i = columns->column[0].attnum - 1;
	if (row->nulls[i])
		return NULL;
	return OutputFunctionCall(&columns->column[0].to_text, row->values[i]);
}

/* Messages have no empty tenants and keys. */
static text *
text_or_none(const char *string)
{
	return string != NULL && string[0] != '\0' ? cstring_to_text(string) : NULL;
}

text *
outbox_change_tenant(const OutboxChange *change)
{
	return text_or_none(column_text(&change->watch->tenant, change->now));
}

/* Keys have a limit; a digest is as good as the key to tell records apart. */
static text *
bounded(text *key)
{
	bytea	   *digest;
	char		hex[2 * 32];

	if (key == NULL || VARSIZE_ANY_EXHDR(key) <= OUTBOX_NAME_MAX)
		return key;
	digest = DatumGetByteaPP(DirectFunctionCall1(sha256_bytea, PointerGetDatum(key)));
	Assert(VARSIZE_ANY_EXHDR(digest) == 32);
	(void) hex_encode(VARDATA_ANY(digest), 32, hex);
	return cstring_to_text_with_len(hex, sizeof(hex));
}

/* The record, unless a column is to say what belongs together. */
static char *
record_key(const OutboxChange *change)
{
	const OutboxWatchColumns *columns = &change->watch->record_id;
	char	   *id;

	if (columns->n == 1)
		id = column_text(columns, change->now);
	else
	{
		JsonbParseState *state = NULL;
		Jsonb	   *object;

		(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
		push_columns(&state, columns, change->now);
		object = JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
		id = JsonbToCString(NULL, &object->root, VARSIZE(object));
	}
	return id != NULL ? psprintf("%s:%s", change->watch->model, id) : NULL;
}

text *
outbox_change_key(const OutboxChange *change)
{
	if (change->now == NULL)
		return NULL;
	return bounded(text_or_none(change->watch->key.n > 0 ? column_text(&change->watch->key, change->now) : record_key(change)));
}
