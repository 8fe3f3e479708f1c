/*-------------------------------------------------------------------------
 *
 * topic_rules.c
 *		What outbox.create_topic() asks of messages, cached per backend.
 *
 * The rows of outbox.topic are filed under the keys of their patterns (see
 * topic.h), one row under each, so that a topic of n segments is looked up
 * with n + 1 probes.  They live in one memory context below
 * CacheMemoryContext, which is reset when outbox.topic has changed.  A call
 * works with copies of what concerns it: while a function checks a payload, the
 * cache may be built anew.
 *
 * Functions are named in the table, and looked up again when any function or
 * schema has changed.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "common/session.h"
#include "common/text_array.h"
#include "common/user_function.h"
#include "compat.h"
#include "guc.h"
#include "stage/name_table.h"
#include "stage/payload.h"
#include "stage/topic.h"
#include "stage/topic_rules.h"
#include "table/relation.h"

PG_FUNCTION_INFO_V1(outbox_sql_check_require);

/* Arguments that a topic can require of its messages. */
typedef enum Required
{
	REQUIRED_KEY,
	REQUIRED_DEDUPE_KEY,
	REQUIRED_TENANT,
	REQUIRED_CORRELATION_ID,
	REQUIRED_HEADERS,
	REQUIRED_MIN_VERSION,
	REQUIRED_REPLACE_KEY,
	REQUIRED_EXPIRES_AT,		/* or a ttl */
	NUM_REQUIRED
} Required;

static const char *const required_names[NUM_REQUIRED] = {
	"key", "dedupe_key", "tenant", "correlation_id", "headers", "min_version", "replace_key", "expires_at"
};

/* What a function's name meant when functions_generation was this. */
typedef struct FunctionLookup
{
	Oid			oid;
	uint32		generation;
} FunctionLookup;

/* A row of outbox.topic. */
typedef struct TopicRule
{
	char	   *topic;			/* its pattern, for messages */
	char	   *description;	/* NULL: none */
	uint32		required;		/* a bit for each */
	int			max_payload;	/* 0: none */
	char	   *check_function; /* NULL: none */
	text	   *schema;			/* JSON text; NULL: none */
	FunctionLookup check;
	OutboxUserTest test;		/* in a copy: the check_function */
} TopicRule;

typedef struct RuleEntry
{
	OutboxNameKey key;
	TopicRule	rule;
} RuleEntry;

struct OutboxTopicRules
{
	int			n;
	TopicRule	rule[FLEXIBLE_ARRAY_MEMBER];
};

static MemoryContext rules_context = NULL;
static HTAB *rules_table = NULL;	/* NULL while there are none */
static bool rules_built = false;	/* the table is complete */
static bool rules_stale = false;	/* outbox.topic has changed since the building began */
static long rules_count = 0;
static Oid	topic_relid = InvalidOid;	/* the table that they were read from */

static bool callbacks_registered = false;
static uint32 functions_generation = 1;

/* Functions of pg_jsonschema: does a payload match, and if not, why? */
static FunctionLookup matches_schema;
static FunctionLookup schema_errors;

void
outbox_topic_rules_relation_changed(Oid relid)
{
	/* Where there was no such table, any relation may be one that has come. */
	if (relid == topic_relid || relid == InvalidOid || topic_relid == InvalidOid)
		rules_stale = true;
}

static void
functions_changed(Datum arg, int cacheid, uint32 hashvalue)
{
	functions_generation++;
}

static void
forget_rules(void)
{
	rules_built = false;
	rules_count = 0;
	if (rules_context == NULL)
		rules_context = AllocSetContextCreate(CacheMemoryContext, "outbox topic rules", ALLOCSET_SMALL_SIZES);
	MemoryContextReset(rules_context);
	rules_table = NULL;
}

static int
required_of_name(const char *name)
{
	for (int i = 0; i < NUM_REQUIRED; i++)
	{
		if (strcmp(name, required_names[i]) == 0)
			return i;
	}
	return -1;
}

static uint32
read_required(Datum array)
{
	text	  **names;
	int			n = outbox_text_array(array, &names);
	uint32		required = 0;

	for (int i = 0; i < n; i++)
	{
		int			which = names[i] == NULL ? -1 : required_of_name(text_to_cstring(names[i]));

		if (which >= 0)
			required |= 1u << which;
	}
	return required;
}

/* Where outbox.topic has what. */
typedef struct TopicColumns
{
	AttrNumber	topic;
	AttrNumber	description;
	AttrNumber	require;
	AttrNumber	max_payload;
	AttrNumber	check_function;
	AttrNumber	schema;
} TopicColumns;

/* A text in the memory of the rules; NULL for none. */
static char *
keep_text(TupleTableSlot *slot, AttrNumber column)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column, &isnull);

	return isnull ? NULL : MemoryContextStrdup(rules_context, TextDatumGetCString(value));
}

static text *
keep_schema(TupleTableSlot *slot, AttrNumber column)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, column, &isnull);
	Jsonb	   *schema;
	MemoryContext old;
	text	   *result;

	if (isnull)
		return NULL;
	schema = DatumGetJsonbP(value);
	old = MemoryContextSwitchTo(rules_context);
	result = cstring_to_text(JsonbToCString(NULL, &schema->root, VARSIZE(schema)));
	MemoryContextSwitchTo(old);
	return result;
}

static void
read_topic(TupleTableSlot *slot, const void *passed)
{
	const TopicColumns *columns = passed;
	char	   *topic = keep_text(slot, columns->topic);
	int			len = strlen(topic);
	RuleEntry  *entry;
	TopicRule  *rule;
	bool		isnull;
	bool		found;
	Datum		value;

	/* Only one that was written by hand is empty. */
	if (len == 0)
		return;
	if (rules_table == NULL)
		rules_table = outbox_name_table_create("outbox topic rules", sizeof(RuleEntry), rules_context);
	entry = outbox_name_table_enter(rules_table, topic, outbox_pattern_key(topic, len), rules_context, &found);
	rule = &entry->rule;
	memset(rule, 0, sizeof(TopicRule));
	rule->topic = topic;
	rule->description = keep_text(slot, columns->description);
	value = slot_getattr(slot, columns->require, &isnull);
	rule->required = isnull ? 0 : read_required(value);
	value = slot_getattr(slot, columns->max_payload, &isnull);
	rule->max_payload = isnull ? 0 : DatumGetInt32(value);
	rule->check_function = keep_text(slot, columns->check_function);
	rule->schema = keep_schema(slot, columns->schema);
	rules_count++;
}

static void
read_topics(void)
{
	Relation	rel = outbox_table_open("topic", AccessShareLock);
	TopicColumns columns;

	columns.topic = outbox_table_column(rel, "topic");
	columns.description = outbox_table_column(rel, "description");
	columns.require = outbox_table_column(rel, "require");
	columns.max_payload = outbox_table_column(rel, "max_payload");
	columns.check_function = outbox_table_column(rel, "check_function");
	columns.schema = outbox_table_column(rel, "schema");

	outbox_table_read_latest(rel, read_topic, &columns);
	table_close(rel, AccessShareLock);
}

/* The stale mark is cleared before the snapshot is taken, as in routes.c. */
static void
build_rules(void)
{
	if (!callbacks_registered)
	{
		CacheRegisterSyscacheCallback(PROCOID, functions_changed, (Datum) 0);
		CacheRegisterSyscacheCallback(NAMESPACEOID, functions_changed, (Datum) 0);
		callbacks_registered = true;
	}
	forget_rules();
	/* Objects of an older version have no such table. */
	topic_relid = outbox_relation_oid("topic", true);
	rules_stale = false;
	if (OidIsValid(topic_relid))
		read_topics();
	rules_built = true;
}

/*
 * Functions of the extension pg_jsonschema, wherever it was installed.  Only
 * a superuser can make one in C, so that nobody else can put one in its place.
 */
static Oid
find_schema_function(const char *name)
{
	static OutboxPlan find_plan = {
		.sql = "SELECT outbox_internal.schema_function($1)",
		.nargs = 1,
		.argtypes = {TEXTOID},
	};

	return outbox_user_function_ask(&find_plan, name);
}

/* What a name means now, with the owner's rights to look it up; InvalidOid for nothing. */
static Oid
look_up(FunctionLookup *lookup, Oid (*find) (const char *name), const char *name)
{
	OutboxSecurity caller;
	uint32		generation = functions_generation;

	/* What changes while it is looked up is noticed the next time. */
	if (lookup->generation == generation)
		return lookup->oid;
	SPI_connect();
	outbox_become_owner(&caller);
	lookup->oid = find(name);
	outbox_become_caller(&caller);
	SPI_finish();
	lookup->generation = generation;
	return lookup->oid;
}

static void
prepare_check(TopicRule *rule, TopicRule *copy)
{
	Oid			function = look_up(&rule->check, outbox_user_function_find, rule->check_function);

	if (!OidIsValid(function))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("check_function %s of topic \"%s\" does not exist", rule->check_function, rule->topic),
				 errhint("Create it again, or change the topic with outbox.alter_topic().")));
	outbox_user_test_begin(&copy->test, function, "check_function", rule->check_function);
}

static void
prepare_schema(const TopicRule *rule)
{
	if (!OidIsValid(look_up(&matches_schema, find_schema_function, "jsonb_matches_schema")))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("the schema of topic \"%s\" needs extension pg_jsonschema", rule->topic),
				 errhint("Install it, or change the topic with outbox.alter_topic().")));
}

/* What one call works with: its own, whatever becomes of the cache. */
static void
copy_rule(TopicRule *rule, TopicRule *copy)
{
	*copy = *rule;
	copy->topic = pstrdup(rule->topic);
	copy->description = rule->description ? pstrdup(rule->description) : NULL;
	copy->check_function = rule->check_function ? pstrdup(rule->check_function) : NULL;
	copy->schema = rule->schema ? DatumGetTextPCopy(PointerGetDatum(rule->schema)) : NULL;
	if (rule->check_function)
		prepare_check(rule, copy);
	if (rule->schema)
		prepare_schema(rule);
}

static OutboxTopicRules *
copy_rules(RuleEntry **found, int n)
{
	OutboxTopicRules *result = palloc(offsetof(OutboxTopicRules, rule) + sizeof(TopicRule) * n);

	result->n = n;
	for (int i = 0; i < n; i++)
		copy_rule(&found[i]->rule, &result->rule[i]);
	return result;
}

bool
outbox_topic_rules_find(const char *topic, int len, OutboxTopicRules **rules, OutboxFault *fault)
{
	RuleEntry  *found[OUTBOX_TOPIC_MAX + 2];
	int			n = 0;
	int			position = 0;
	int			key_len;

	*rules = NULL;
	if (!rules_built || rules_stale)
		build_rules();
	if (rules_count > 0)
	{
		/* From "*" to the topic itself. */
		while (outbox_next_topic_key(topic, len, &position, &key_len))
		{
			RuleEntry  *entry = outbox_name_table_find(rules_table, topic, key_len);

			if (entry)
				found[n++] = entry;
		}
	}
	if (n > 0)
		*rules = copy_rules(found, n);
	else if (outbox_unknown_topics == OUTBOX_UNKNOWN_TOPICS_ERROR)
		return outbox_fault(fault, ERRCODE_UNDEFINED_OBJECT,
							"The view outbox.topics lists those there are, outbox.create_topic() adds one; outbox.unknown_topics says whether others are allowed.",
							"topic \"%.*s\" is unknown", len, topic);
	return true;
}

static bool
has_argument(const OutboxNewMessage *message, Required which)
{
	switch (which)
	{
		case REQUIRED_KEY:
			return message->key != NULL;
		case REQUIRED_DEDUPE_KEY:
			return message->dedupe_key != NULL;
		case REQUIRED_TENANT:
			return message->arguments->tenant != NULL;
		case REQUIRED_CORRELATION_ID:
			return message->arguments->correlation_id != NULL;
		case REQUIRED_HEADERS:
			return message->arguments->headers != NULL;
		case REQUIRED_MIN_VERSION:
			return message->arguments->has_min_version;
		case REQUIRED_REPLACE_KEY:
			return message->replace_key != NULL;
		case REQUIRED_EXPIRES_AT:
			return message->arguments->has_expires_at || message->arguments->ttl != NULL;
		case NUM_REQUIRED:
			break;
	}
	return true;
}

/* What the topic is, for whoever has broken a rule of it. */
static const char *
hint_of(const TopicRule *rule)
{
	if (rule->description)
		return psprintf("Topic \"%s\": %s", rule->topic, rule->description);
	return "The view outbox.topics shows what is asked of messages.";
}

static bool
check_required(const TopicRule *rule, const OutboxNewMessage *message, OutboxFault *fault)
{
	for (int i = 0; i < NUM_REQUIRED; i++)
	{
		if ((rule->required & (1u << i)) && !has_argument(message, i))
			return outbox_fault(fault, ERRCODE_NULL_VALUE_NOT_ALLOWED, hint_of(rule),
								"topic \"%s\" requires %s", rule->topic, required_names[i]);
	}
	return true;
}

static bool
exceeds(const OutboxNewMessage *message, int limit)
{
	if (message->kind == OUTBOX_PAYLOAD_JSON)
		return outbox_payload_exceeds(message->payload, limit);
	return VARSIZE_ANY_EXHDR(message->body) > (size_t) limit;
}

static bool
check_size(const TopicRule *rule, const OutboxNewMessage *message, OutboxFault *fault)
{
	if (rule->max_payload > 0 && exceeds(message, rule->max_payload))
		return outbox_fault(fault, ERRCODE_PROGRAM_LIMIT_EXCEEDED, hint_of(rule),
							"payload is larger than max_payload of topic \"%s\", %d bytes", rule->topic, rule->max_payload);
	return true;
}

/* Does a rule look at the payload's value?  A text that is JSON need not have one: jsonb has no \u0000. */
static bool
is_for_values(const TopicRule *rule)
{
	return rule->check_function != NULL || rule->schema != NULL;
}

/* The payload as a value; NULL if it is none. */
static Jsonb *
payload_value(const OutboxNewMessage *message)
{
	if (message->kind == OUTBOX_PAYLOAD_JSON_TEXT)
		return DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text_to_cstring((text *) message->body))));
	return message->payload;
}

/* A rule for JSON is none for other payloads: nobody has said what they may be. */
static bool
check_is_json(const TopicRule *rule, const Jsonb *payload, OutboxFault *fault)
{
	if (payload != NULL)
		return true;
	return outbox_fault(fault, ERRCODE_CHECK_VIOLATION, hint_of(rule),
						"payload is not JSON, which %s of topic \"%s\" is for",
						rule->schema ? "the schema" : "check_function", rule->topic);
}

static bool
check_by_function(TopicRule *rule, Jsonb *payload, OutboxFault *fault)
{
	char	   *failure;

	if (rule->check_function == NULL ||
		outbox_user_test_passes(&rule->test, JsonbPGetDatum(payload), &failure))
		return true;
	return outbox_fault(fault, ERRCODE_CHECK_VIOLATION, hint_of(rule),
						"payload is refused by check_function %.*s() of topic \"%s\"%s%s",
						(int) strcspn(rule->check_function, "("), rule->check_function, rule->topic, failure ? ": " : "", failure ? failure : "");
}

/* What does not match, in the words of pg_jsonschema; NULL if it does not say. */
static char *
schema_error(const TopicRule *rule, Jsonb *payload)
{
	Oid			function = look_up(&schema_errors, find_schema_function, "jsonschema_validation_errors");
	Datum		errors;
	text	  **elements;

	if (!OidIsValid(function))
		return NULL;
	errors = OidFunctionCall2(function, PointerGetDatum(rule->schema),
							  CStringGetTextDatum(JsonbToCString(NULL, &payload->root, VARSIZE(payload))));
	return outbox_text_array(errors, &elements) > 0 && elements[0] != NULL ? text_to_cstring(elements[0]) : NULL;
}

/* A function in C of data alone, so that it does not matter with whose rights. */
static bool
check_by_schema(const TopicRule *rule, Jsonb *payload, OutboxFault *fault)
{
	char	   *error;

	if (rule->schema == NULL ||
		DatumGetBool(OidFunctionCall2(matches_schema.oid, PointerGetDatum(rule->schema), JsonbPGetDatum(payload))))
		return true;
	error = schema_error(rule, payload);
	return outbox_fault(fault, ERRCODE_CHECK_VIOLATION, hint_of(rule),
						"payload does not match the schema of topic \"%s\"%s%s", rule->topic, error ? ": " : "", error ? error : "");
}

bool
outbox_topic_rules_hold(OutboxTopicRules *rules, const OutboxNewMessage *message, OutboxFault *fault)
{
	Jsonb	   *payload = NULL;

	if (rules == NULL)
		return true;
	/* What costs nothing comes first. */
	for (int i = 0; i < rules->n; i++)
	{
		if (!check_required(&rules->rule[i], message, fault) || !check_size(&rules->rule[i], message, fault))
			return false;
	}
	for (int i = 0; i < rules->n; i++)
	{
		if (!is_for_values(&rules->rule[i]))
			continue;
		if (payload == NULL)
			payload = payload_value(message);
		if (!check_is_json(&rules->rule[i], payload, fault) ||
			!check_by_schema(&rules->rule[i], payload, fault) ||
			!check_by_function(&rules->rule[i], payload, fault))
			return false;
	}
	return true;
}

/* outbox_internal.check_require(require) */
Datum
outbox_sql_check_require(PG_FUNCTION_ARGS)
{
	text	  **names;
	int			n = outbox_text_array(PG_GETARG_DATUM(0), &names);

	for (int i = 0; i < n; i++)
	{
		char	   *name = names[i] == NULL ? "NULL" : text_to_cstring(names[i]);
		StringInfoData list;

		if (required_of_name(name) >= 0)
			continue;
		initStringInfo(&list);
		for (int j = 0; j < NUM_REQUIRED; j++)
			appendStringInfo(&list, "%s%s", j > 0 ? ", " : "", required_names[j]);
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("a topic cannot require \"%s\"", name),
				 errhint("It can require %s.", list.data)));
	}
	PG_RETURN_VOID();
}
