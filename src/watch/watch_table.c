/*-------------------------------------------------------------------------
 *
 * watch_table.c
 *		outbox.watch() and outbox.unwatch().
 *
 * They make and drop triggers as their caller, who has to own the table, and
 * leave no other trace.  A trigger for each operation: a condition becomes
 * PostgreSQL's own WHEN, and rows that do not meet it cost next to nothing.
 *
 * Called again, outbox.watch() brings the table to exactly what it is told;
 * nothing is locked if that is what there is.
 *
 * Runs in the caller's backend.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/sysattr.h"
#include "access/xact.h"
#include "catalog/catalog.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"

#include "common/session.h"
#include "common/sql_version.h"
#include "common/text_array.h"
#include "compat.h"
#include "watch/condition.h"
#include "watch/watch.h"

PG_FUNCTION_INFO_V1(outbox_sql_watch);
PG_FUNCTION_INFO_V1(outbox_sql_unwatch);

/* Where outbox.watch() has its arguments. */
enum
{
	ARG_RELATION,
	ARG_PREFIX,
	ARG_MODEL,
	ARG_RECORD_ID,
	ARG_TENANT,
	ARG_KEY,
	ARG_INCLUDE,
	ARG_IGNORE,
	ARG_SOFT_DELETE,
	ARG_ACTOR,
	ARG_CONTEXT,
	ARG_CONDITION,
	ARG_OPERATIONS,
	ARG_TRUNCATE
};

/* The triggers of a watched table. */
enum
{
	ON_INSERT,
	ON_UPDATE,
	ON_DELETE,
	ON_TRUNCATE,
	TRIGGERS
};

static const struct
{
	const char *name;
	const char *event;
	const char *missing_row;	/* that a condition cannot name; NULL: none */
}			triggers[TRIGGERS] = {
	[ON_INSERT] = {"outbox_watch_insert", "INSERT", "old"},
	[ON_UPDATE] = {"outbox_watch_update", "UPDATE", NULL},
	[ON_DELETE] = {"outbox_watch_delete", "DELETE", "new"},
	[ON_TRUNCATE] = {"outbox_watch_truncate", "TRUNCATE", NULL},
};

/* A table as it was found, and what it is to be. */
typedef struct Table
{
	char	   *name;			/* qualified and quoted */
	bool		has[TRIGGERS];
	char	   *options[TRIGGERS];	/* of the triggers that it has */
	bool		wants[TRIGGERS];
	const char *wanted;			/* the options of all of them */
	const char *condition;		/* NULL: none */
	bool		refuses_truncate;
} Table;

static void
raise_not_watchable(Relation rel, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_WRONG_OBJECT_TYPE),
			 errmsg("cannot watch \"%s\"", RelationGetRelationName(rel)),
			 errhint("%s", hint)));
}

/* Nothing is locked before it is known that the caller may. */
static Relation
open_own_table(FunctionCallInfo fcinfo)
{
	Oid			relid;
	Relation	rel;

	if (PG_ARGISNULL(ARG_RELATION))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("relation must not be NULL"),
				 errhint("Name a table, as in outbox.watch('shop.orders').")));
	relid = PG_GETARG_OID(ARG_RELATION);
	if (get_rel_name(relid) == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid),
				 errhint("Name a table, as in outbox.watch('shop.orders').")));
	if (!outbox_owns_table(relid, GetUserId()))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table %s", get_rel_name(relid)),
				 errhint("What is announced of a table is its owner's to say: ask that role, or a superuser.")));
	rel = relation_open(relid, AccessShareLock);
	if (rel->rd_rel->relkind != RELKIND_RELATION && rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		raise_not_watchable(rel, "Only tables are watched, partitioned ones among them.");
	if (IsSystemRelation(rel) || strcmp(get_namespace_name(RelationGetNamespace(rel)), OUTBOX_SCHEMA) == 0)
		raise_not_watchable(rel, "Neither PostgreSQL's own tables nor those of outbox are watched.");
	return rel;
}

/* A table below a watched one has its triggers from there. */
static void
note_trigger(Table *table, Relation rel, const Trigger *trigger, Oid announce)
{
	for (int t = 0; t < TRIGGERS; t++)
	{
		if (strcmp(trigger->tgname, triggers[t].name) != 0)
			continue;
		if (trigger->tgfoid != announce)
			ereport(ERROR,
					(errcode(ERRCODE_DUPLICATE_OBJECT),
					 errmsg("table \"%s\" has a trigger of its own with the name \"%s\"", RelationGetRelationName(rel), trigger->tgname),
					 errhint("Rename that trigger.")));
		if (trigger->tgisclone)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" is a partition of a watched table", RelationGetRelationName(rel)),
					 errhint("Call outbox.watch() and outbox.unwatch() for that table.")));
		table->has[t] = true;
		table->options[t] = trigger->tgnargs == 1 ? pstrdup(trigger->tgargs[0]) : "";
	}
}

static void
find_triggers(Table *table, Relation rel)
{
	Oid			announce = DatumGetObjectId(DirectFunctionCall1(regprocedurein, CStringGetDatum("outbox.announce()")));

	table->name = quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)), RelationGetRelationName(rel));
	for (int i = 0; rel->trigdesc != NULL && i < rel->trigdesc->numtriggers; i++)
		note_trigger(table, rel, &rel->trigdesc->triggers[i], announce);
}

static void
begin_option(StringInfo options, const char *name)
{
	appendStringInfoString(options, options->len > 1 ? ", " : "");
	escape_json(options, name);
	appendStringInfoString(options, ": ");
}

static void
add_text(StringInfo options, const char *name, const char *value)
{
	if (value == NULL)
		return;
	begin_option(options, name);
	escape_json(options, value);
}

static void
add_list(StringInfo options, const char *name, const List *values)
{
	ListCell   *cell;

	if (values == NIL)
		return;
	begin_option(options, name);
	foreach(cell, values)
	{
		appendStringInfoString(options, cell == list_head(values) ? "[" : ", ");
		escape_json(options, lfirst(cell));
	}
	appendStringInfoChar(options, ']');
}

static char *
text_argument(FunctionCallInfo fcinfo, int n)
{
	return PG_ARGISNULL(n) ? NULL : text_to_cstring(PG_GETARG_TEXT_PP(n));
}

static List *
list_argument(FunctionCallInfo fcinfo, int n, const char *name)
{
	List	   *list = NIL;
	text	  **elements;
	int			nelements;

	if (PG_ARGISNULL(n))
		return NIL;
	nelements = outbox_text_array(PG_GETARG_DATUM(n), &elements);
	for (int i = 0; i < nelements; i++)
	{
		if (elements[i] == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not have an element that is NULL", name),
					 errhint("Leave it out.")));
		list = lappend(list, text_to_cstring(elements[i]));
	}
	return list;
}

static void
add_json(StringInfo options, FunctionCallInfo fcinfo, int n, const char *name)
{
	Jsonb	   *json;

	if (PG_ARGISNULL(n))
		return;
	json = PG_GETARG_JSONB_P(n);
	if (JB_ROOT_IS_SCALAR(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be a JSON object", name),
				 errhint("It says what the payload's fields are called and where their values come from, as in '{\"ownerId\": \"owner_id\"}'.")));
	begin_option(options, name);
	(void) JsonbToCString(options, &json->root, VARSIZE(json));
}

/* What tells the table's rows apart, if nothing else is named. */
static List *
primary_key(Relation rel)
{
	Bitmapset  *key = RelationGetIndexAttrBitmap(rel, INDEX_ATTR_BITMAP_PRIMARY_KEY);
	List	   *names = NIL;
	int			i = -1;

	while ((i = bms_next_member(key, i)) >= 0)
		names = lappend(names, NameStr(TupleDescAttr(RelationGetDescr(rel), i + FirstLowInvalidHeapAttributeNumber - 1)->attname));
	if (names == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("table \"%s\" has no primary key", RelationGetRelationName(rel)),
				 errhint("Name the columns that tell its rows apart: record_id => ARRAY['code'].")));
	return names;
}

/* The options that are given, as one JSON object. */
static void
collect_options(FunctionCallInfo fcinfo, Relation rel, StringInfo options)
{
	List	   *record_id = list_argument(fcinfo, ARG_RECORD_ID, "record_id");
	char	   *prefix = text_argument(fcinfo, ARG_PREFIX);
	char	   *model = text_argument(fcinfo, ARG_MODEL);

	initStringInfo(options);
	appendStringInfoChar(options, '{');
	add_text(options, "prefix", prefix ? prefix : "model");
	add_text(options, "model", model ? model : RelationGetRelationName(rel));
	add_list(options, "operations", list_argument(fcinfo, ARG_OPERATIONS, "operations"));
	add_text(options, "truncate", text_argument(fcinfo, ARG_TRUNCATE));
	add_list(options, "record_id", record_id != NIL ? record_id : primary_key(rel));
	add_text(options, "tenant", text_argument(fcinfo, ARG_TENANT));
	add_text(options, "key", text_argument(fcinfo, ARG_KEY));
	add_list(options, "include", list_argument(fcinfo, ARG_INCLUDE, "include"));
	add_list(options, "ignore", list_argument(fcinfo, ARG_IGNORE, "ignore"));
	add_text(options, "soft_delete", text_argument(fcinfo, ARG_SOFT_DELETE));
	add_json(options, fcinfo, ARG_ACTOR, "actor");
	add_json(options, fcinfo, ARG_CONTEXT, "context");
	add_text(options, "condition", text_argument(fcinfo, ARG_CONDITION));
	appendStringInfoChar(options, '}');
}

/* A soft delete is an update, as is a row that comes back. */
static void
choose_triggers(Table *table, const OutboxWatch *watch)
{
	table->wants[ON_INSERT] = watch->announces[OUTBOX_CREATED];
	table->wants[ON_UPDATE] = watch->announces[OUTBOX_UPDATED] || watch->soft_delete != InvalidAttrNumber;
	table->wants[ON_DELETE] = watch->announces[OUTBOX_REMOVED];
	table->wants[ON_TRUNCATE] = watch->announces[OUTBOX_TRUNCATED] || watch->refuses_truncate;
	table->refuses_truncate = watch->refuses_truncate;
}

static void
run(const char *command)
{
	int			rc = SPI_execute(command, false, 0);

	if (rc != SPI_OK_UTILITY)
		elog(ERROR, "unexpected result of \"%s\": %s", command, SPI_result_code_string(rc));
}

static void
make_trigger(const Table *table, int t)
{
	StringInfoData command;

	initStringInfo(&command);
	appendStringInfo(&command, "CREATE OR REPLACE TRIGGER %s %s %s ON %s FOR EACH %s ", triggers[t].name,
					 t == ON_TRUNCATE && table->refuses_truncate ? "BEFORE" : "AFTER",
					 triggers[t].event, table->name, t == ON_TRUNCATE ? "STATEMENT" : "ROW");
	/* On lines of its own: it may end with a comment. */
	if (table->condition != NULL && t != ON_TRUNCATE)
		appendStringInfo(&command, "WHEN (\n%s\n) ",
						 triggers[t].missing_row == NULL ? table->condition :
						 outbox_condition_without(table->condition, triggers[t].missing_row, table->name));
	appendStringInfo(&command, "EXECUTE FUNCTION outbox.announce(%s)", quote_literal_cstr(table->wanted));
	run(command.data);
}

static bool
is_as_wanted(const Table *table)
{
	for (int t = 0; t < TRIGGERS; t++)
	{
		if (table->has[t] != table->wants[t] || (table->has[t] && strcmp(table->options[t], table->wanted) != 0))
			return false;
	}
	return true;
}

static bool
is_watched(const Table *table)
{
	for (int t = 0; t < TRIGGERS; t++)
	{
		if (table->has[t])
			return true;
	}
	return false;
}

static void
apply(const Table *table)
{
	SPI_connect();
	for (int t = 0; t < TRIGGERS; t++)
	{
		if (table->wants[t])
			make_trigger(table, t);
		else if (table->has[t])
			run(psprintf("DROP TRIGGER %s ON %s", triggers[t].name, table->name));
	}
	SPI_finish();
}

/* outbox.watch(relation, prefix, ...) */
Datum
outbox_sql_watch(PG_FUNCTION_ARGS)
{
	Relation	rel;
	StringInfoData options;
	Table		table = {0};
	bool		was_watched;

	outbox_require_writable("outbox.watch()");
	outbox_require_sql(OUTBOX_MAY_CONFIGURE);
	rel = open_own_table(fcinfo);
	find_triggers(&table, rel);
	collect_options(fcinfo, rel, &options);
	choose_triggers(&table, outbox_watch_check(&options, rel));
	table.wanted = options.data;
	table.condition = text_argument(fcinfo, ARG_CONDITION);
	/* DROP TRIGGER wants nobody else to have it open. */
	relation_close(rel, NoLock);

	was_watched = is_watched(&table);
	if (is_as_wanted(&table))
		PG_RETURN_TEXT_P(cstring_to_text("unchanged"));
	apply(&table);
	PG_RETURN_TEXT_P(cstring_to_text(was_watched ? "changed" : "created"));
}

/* outbox.unwatch(relation) */
Datum
outbox_sql_unwatch(PG_FUNCTION_ARGS)
{
	Relation	rel;
	Table		table = {0};

	outbox_require_writable("outbox.unwatch()");
	outbox_require_sql(OUTBOX_MAY_CONFIGURE);
	rel = open_own_table(fcinfo);
	find_triggers(&table, rel);
	relation_close(rel, NoLock);
	apply(&table);
	PG_RETURN_BOOL(is_watched(&table));
}
