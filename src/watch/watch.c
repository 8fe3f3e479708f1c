/*-------------------------------------------------------------------------
 *
 * watch.c
 *		A watched table: what of its changes is announced, and how.
 *
 * See watch.h.  What was looked up for a trigger is kept for the life of the
 * backend.  A relcache message about its table only marks it: the next change
 * looks it up anew, and what is in use then goes with the transaction, since a
 * trigger on outbox's own tables may have led back here.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "stage/topic.h"
#include "watch/watch.h"

const char *const outbox_change_names[OUTBOX_CHANGE_KINDS] = {"created", "updated", "deleted", "truncated"};

/* The operations after which rows are created, updated and deleted. */
static const char *const operation_names[] = {"insert", "update", "delete"};

/* What payloads say anyway. */
static const char *const own_fields[] =
{"model", "kind", "recordId", "previousRecordId", "tenantId", "changedFields", "restored", "values"};

typedef struct WatchEntry
{
	Oid			trigger;		/* hash key */
	Oid			relid;
	bool		stale;
	MemoryContext context;
	OutboxWatch *watch;
} WatchEntry;

static HTAB *entries = NULL;

/* What is read, and of which table. */
typedef struct Reading
{
	OutboxWatch *watch;
	Jsonb	   *options;
	Relation	rel;
	bool		same_table;		/* are the recorded numbers of columns those of this table? */
	bool		checking;		/* for outbox.watch(): everything has to be there */
	StringInfoData columns;		/* what is to be recorded of them */
} Reading;

/* An element of an option: of an array, one of an object with its key, or a text by itself. */
typedef struct NamePair
{
	char	   *field;
	char	   *name;
} NamePair;

static const char again_hint[] =
"Call outbox.watch() again with columns that the table has now, or outbox.unwatch().";

static void
relation_changed(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS status;
	WatchEntry *entry;

	hash_seq_init(&status, entries);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (relid == InvalidOid || relid == entry->relid)
			entry->stale = true;
	}
}

static JsonbValue *
find_member(Jsonb *object, const char *name)
{
	return getKeyJsonValueFromContainer(&object->root, name, strlen(name), NULL);
}

static char *
string_of(const JsonbValue *value, const char *option)
{
	if (value->type != jbvString)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s has a value that is not a text", option),
				 errhint("It is an object of names of the payload and what goes there, as in '{\"ownerId\": \"owner_id\"}'.")));
	return pnstrdup(value->val.string.val, value->val.string.len);
}

static void
add_pair(NamePair **pairs, int *n, char *field, char *name)
{
	*pairs = *n == 0 ? palloc(sizeof(NamePair)) : repalloc(*pairs, sizeof(NamePair) * (*n + 1));
	(*pairs)[*n].field = field ? field : name;
	(*pairs)[*n].name = name;
	(*n)++;
}

static NamePair *
read_names(Reading *reading, const char *option, int *n)
{
	JsonbValue *value = find_member(reading->options, option);
	JsonbIterator *it;
	JsonbIteratorToken token;
	JsonbValue	element;
	NamePair   *pairs = NULL;
	char	   *field = NULL;

	*n = 0;
	if (value == NULL)
		return NULL;
	if (value->type != jbvBinary)
	{
		add_pair(&pairs, n, NULL, string_of(value, option));
		return pairs;
	}
	it = JsonbIteratorInit(value->val.binary.data);
	while ((token = JsonbIteratorNext(&it, &element, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			field = string_of(&element, option);
		else if (token == WJB_VALUE || token == WJB_ELEM)
		{
			add_pair(&pairs, n, field, string_of(&element, option));
			field = NULL;
		}
	}
	return pairs;
}

/* The name that a column has now which had this one when the table was watched. */
static char *
renamed_column(Reading *reading, const char *name)
{
	JsonbValue *columns = find_member(reading->options, "columns");
	JsonbValue *number;

	if (!reading->same_table || columns == NULL || columns->type != jbvBinary)
		return NULL;
	number = getKeyJsonValueFromContainer(columns->val.binary.data, name, strlen(name), NULL);
	if (number == NULL || number->type != jbvNumeric)
		return NULL;
	return get_attname(reading->watch->root,
					   DatumGetInt16(DirectFunctionCall1(numeric_int2, NumericGetDatum(number->val.numeric))), true);
}

static void
raise_no_column(Reading *reading, const char *option, const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg("column \"%s\" of relation \"%s\" does not exist", name, RelationGetRelationName(reading->rel)),
			 errdetail("It was named as %s of outbox.watch().", option),
			 errhint("%s", reading->checking ? "Name columns as the catalog has them, in upper and lower case." : again_hint)));
}

static void
check_column(Reading *reading, const char *option, const char *name, AttrNumber attnum)
{
	Form_pg_attribute attribute = TupleDescAttr(RelationGetDescr(reading->rel), attnum - 1);

	if (outbox_is_virtual_column(attribute))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("%s cannot be column \"%s\", which is computed when it is read", option, name),
				 errhint("Make it a STORED generated column, or name the columns that it is computed from.")));
	appendStringInfoString(&reading->columns, reading->columns.len > 0 ? ", " : "");
	escape_json(&reading->columns, name);
	appendStringInfo(&reading->columns, ": %d", attnum);
}

/* A column by its name; InvalidAttrNumber if it is gone, and need not be there. */
static AttrNumber
find_column(Reading *reading, const char *option, const char *name, bool needed)
{
	AttrNumber	attnum = get_attnum(RelationGetRelid(reading->rel), name);

	if (attnum == InvalidAttrNumber)
	{
		char	   *now = renamed_column(reading, name);

		if (now != NULL)
			attnum = get_attnum(RelationGetRelid(reading->rel), now);
	}
	if (attnum <= 0)
	{
		if (needed || reading->checking)
			raise_no_column(reading, option, name);
		return InvalidAttrNumber;
	}
	if (reading->checking)
		check_column(reading, option, name, attnum);
	return attnum;
}

static void
set_up_column(OutboxWatchColumn *column, Form_pg_attribute attribute)
{
	Oid			output;
	bool		is_varlena;

	column->attnum = attribute->attnum;
	getTypeOutputInfo(attribute->atttypid, &output, &is_varlena);
	fmgr_info(output, &column->to_text);
	/* to_jsonb() asks what type its argument has. */
	fmgr_info(F_TO_JSONB, &column->to_jsonb);
	fmgr_info_set_expr((Node *) makeFuncExpr(F_TO_JSONB, JSONBOID,
											 list_make1(makeNullConst(attribute->atttypid, attribute->atttypmod, attribute->attcollation)),
											 InvalidOid, InvalidOid, COERCE_EXPLICIT_CALL),
					   &column->to_jsonb);
}

/* Columns are called in payloads what they are called now, unless an object says how. */
static void
read_columns(Reading *reading, const char *option, bool needed, OutboxWatchColumns *columns)
{
	int			n;
	NamePair   *pairs = read_names(reading, option, &n);

	columns->n = 0;
	columns->column = palloc0(sizeof(OutboxWatchColumn) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		AttrNumber	attnum = find_column(reading, option, pairs[i].name, needed);
		OutboxWatchColumn *column = &columns->column[columns->n];
		Form_pg_attribute attribute;

		if (attnum == InvalidAttrNumber)
			continue;
		attribute = TupleDescAttr(RelationGetDescr(reading->rel), attnum - 1);
		set_up_column(column, attribute);
		column->field = pairs[i].field == pairs[i].name ? pstrdup(NameStr(attribute->attname)) : pairs[i].field;
		columns->n++;
	}
}

static void
read_ignored(Reading *reading)
{
	int			n;
	NamePair   *pairs = read_names(reading, "ignore", &n);

	for (int i = 0; i < n; i++)
	{
		AttrNumber	attnum = find_column(reading, "ignore", pairs[i].name, false);

		if (attnum != InvalidAttrNumber)
			reading->watch->ignored = bms_add_member(reading->watch->ignored, attnum);
	}
}

static void
read_soft_delete(Reading *reading)
{
	int			n;
	NamePair   *pairs = read_names(reading, "soft_delete", &n);
	AttrNumber	attnum = n > 0 ? find_column(reading, "soft_delete", pairs[0].name, false) : InvalidAttrNumber;

	reading->watch->soft_delete = attnum;
	if (attnum != InvalidAttrNumber)
		reading->watch->soft_delete_is_flag =
			getBaseType(TupleDescAttr(RelationGetDescr(reading->rel), attnum - 1)->atttypid) == BOOLOID;
}

static void
read_actors(Reading *reading)
{
	OutboxWatch *watch = reading->watch;
	int			n;
	NamePair   *pairs = read_names(reading, "actor", &n);

	watch->nactors = n;
	watch->actors = palloc(sizeof(OutboxWatchActor) * Max(n, 1));
	for (int i = 0; i < n; i++)
	{
		watch->actors[i].field = pairs[i].field;
		watch->actors[i].setting = pairs[i].name;
	}
}

static void
read_operations(Reading *reading)
{
	int			n;
	NamePair   *pairs = read_names(reading, "operations", &n);

	for (int i = 0; i < n; i++)
	{
		bool		known = false;

		for (int kind = 0; kind < lengthof(operation_names); kind++)
		{
			if (strcmp(pairs[i].name, operation_names[kind]) != 0)
				continue;
			known = true;
			reading->watch->announces[kind] = true;
		}
		if (!known)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid operation: \"%s\"", pairs[i].name),
					 errhint("Operations are insert, update and delete; what becomes of TRUNCATE is the option truncate.")));
	}
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("operations must not be empty"),
				 errhint("Name some of insert, update and delete; outbox.unwatch() ends a watch.")));
}

static void
read_truncate(Reading *reading)
{
	OutboxWatch *watch = reading->watch;
	JsonbValue *value = find_member(reading->options, "truncate");
	char	   *choice;

	/* A table of which everything may be deleted without a word can be emptied so. */
	watch->announces[OUTBOX_TRUNCATED] = watch->announces[OUTBOX_REMOVED];
	if (value == NULL)
		return;
	choice = string_of(value, "truncate");
	watch->announces[OUTBOX_TRUNCATED] = strcmp(choice, "announce") == 0;
	watch->refuses_truncate = strcmp(choice, "refuse") == 0;
	if (!watch->announces[OUTBOX_TRUNCATED] && !watch->refuses_truncate && strcmp(choice, "ignore") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid truncate: \"%s\"", choice),
				 errhint("It is one of announce, refuse and ignore.")));
}

static char *
read_text(Reading *reading, const char *option)
{
	JsonbValue *value = find_member(reading->options, option);

	if (value == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is missing among the options of a watched table", option),
				 errhint("Triggers that call outbox.announce() are made by outbox.watch() alone.")));
	return string_of(value, option);
}

static void
read_topics(Reading *reading)
{
	char	   *prefix = read_text(reading, "prefix");

	for (int kind = 0; kind < OUTBOX_CHANGE_KINDS; kind++)
	{
		char	   *topic = psprintf("%s.%s", prefix, outbox_change_names[kind]);
		OutboxFault fault;

		if (!outbox_check_topic(topic, strlen(topic), &fault))
			outbox_raise_fault(&fault);
		if (outbox_is_event_topic(topic, strlen(topic)))
			ereport(ERROR,
					(errcode(ERRCODE_RESERVED_NAME),
					 errmsg("topic \"%s\" is reserved", topic),
					 errhint("Topics that begin with outbox. are for what outbox itself has to tell; choose another prefix.")));
		reading->watch->topics[kind] = cstring_to_text(topic);
	}
}

static OutboxWatch *
read_watch(Reading *reading, Oid root)
{
	OutboxWatch *watch = reading->watch = palloc0(sizeof(OutboxWatch));
	JsonbValue *recorded = find_member(reading->options, "relation");

	watch->root = root;
	reading->same_table = recorded != NULL && recorded->type == jbvNumeric &&
		DatumGetInt64(DirectFunctionCall1(numeric_int8, NumericGetDatum(recorded->val.numeric))) == (int64) root;
	watch->model = read_text(reading, "model");
	read_topics(reading);
	read_operations(reading);
	read_truncate(reading);
	read_columns(reading, "record_id", true, &watch->record_id);
	read_columns(reading, "tenant", true, &watch->tenant);
	read_columns(reading, "key", true, &watch->key);
	read_columns(reading, "include", false, &watch->include);
	read_columns(reading, "context", false, &watch->context);
	read_ignored(reading);
	read_soft_delete(reading);
	read_actors(reading);
	return watch;
}

static Jsonb *
parse_options(char *text)
{
	Jsonb	   *options = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text)));

	if (!JB_ROOT_IS_OBJECT(options))
		elog(ERROR, "options of a watched table are no object");
	return options;
}

/* The table whose trigger this one was cloned from. */
static Oid
root_of(Oid trigger)
{
	Relation	catalog = table_open(TriggerRelationId, AccessShareLock);
	Oid			root = InvalidOid;

	while (OidIsValid(trigger))
	{
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	tuple;

		ScanKeyInit(&key, Anum_pg_trigger_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(trigger));
		scan = systable_beginscan(catalog, TriggerOidIndexId, true, NULL, 1, &key);
		tuple = systable_getnext(scan);
		if (!HeapTupleIsValid(tuple))
			elog(ERROR, "could not find trigger %u", trigger);
		root = ((Form_pg_trigger) GETSTRUCT(tuple))->tgrelid;
		trigger = ((Form_pg_trigger) GETSTRUCT(tuple))->tgparentid;
		systable_endscan(scan);
	}
	table_close(catalog, AccessShareLock);
	return root;
}

static OutboxWatch *
look_up(const Trigger *trigger, Relation rel)
{
	Reading		reading = {.rel = rel};

	if (trigger->tgnargs != 1)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger \"%s\" was not made by outbox.watch()", trigger->tgname),
				 errhint("Drop it, and call outbox.watch().")));
	reading.options = parse_options(trigger->tgargs[0]);
	return read_watch(&reading, trigger->tgisclone ? root_of(trigger->tgoid) : RelationGetRelid(rel));
}

static void
renew(WatchEntry *entry, const Trigger *trigger, Relation rel)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "outbox watch", ALLOCSET_SMALL_SIZES);
	MemoryContext oldcontext = MemoryContextSwitchTo(context);
	OutboxWatch *watch;

	/* What changes from here on is to be seen the next time. */
	entry->relid = RelationGetRelid(rel);
	entry->stale = false;
	watch = look_up(trigger, rel);
	MemoryContextSwitchTo(oldcontext);

	MemoryContextSetParent(context, CacheMemoryContext);
	if (entry->context != NULL)
		MemoryContextSetParent(entry->context, TopTransactionContext);
	entry->context = context;
	entry->watch = watch;
}

const OutboxWatch *
outbox_watch_of(const Trigger *trigger, Relation rel)
{
	WatchEntry *entry;
	bool		found;

	if (entries == NULL)
	{
		HASHCTL		control = {.keysize = sizeof(Oid), .entrysize = sizeof(WatchEntry), .hcxt = CacheMemoryContext};

		entries = hash_create("outbox watches", 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		CacheRegisterRelcacheCallback(relation_changed, (Datum) 0);
	}
	entry = hash_search(entries, &trigger->tgoid, HASH_ENTER, &found);
	if (!found)
	{
		entry->relid = InvalidOid;
		entry->stale = true;
		entry->context = NULL;
		entry->watch = NULL;
	}
	if (entry->stale || entry->watch == NULL)
		renew(entry, trigger, rel);
	return entry->watch;
}

/* What goes beside what payloads say anyway has a name of its own. */
static void
check_fields(Reading *reading)
{
	static const char *const options[] = {"actor", "context"};
	NamePair   *taken = NULL;
	int			ntaken = 0;

	for (int i = 0; i < lengthof(own_fields); i++)
		add_pair(&taken, &ntaken, NULL, pstrdup(own_fields[i]));
	for (int o = 0; o < lengthof(options); o++)
	{
		int			n;
		NamePair   *pairs = read_names(reading, options[o], &n);

		for (int i = 0; i < n; i++)
		{
			for (int t = 0; t < ntaken; t++)
			{
				if (strcmp(pairs[i].field, taken[t].name) == 0)
					ereport(ERROR,
							(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
							 errmsg("the payload has two fields of the name \"%s\"", pairs[i].field),
							 errhint("Choose another name in option %s.", options[o])));
			}
			add_pair(&taken, &ntaken, NULL, pairs[i].field);
		}
	}
}

OutboxWatch *
outbox_watch_check(StringInfo options, Relation rel)
{
	Reading		reading = {.rel = rel, .checking = true};
	OutboxWatch *watch;

	initStringInfo(&reading.columns);
	reading.options = parse_options(options->data);
	watch = read_watch(&reading, RelationGetRelid(rel));
	check_fields(&reading);

	Assert(options->data[options->len - 1] == '}');
	options->data[--options->len] = '\0';
	appendStringInfo(options, ", \"relation\": %u, \"columns\": {%s}}", RelationGetRelid(rel), reading.columns.data);
	return watch;
}
