/*-------------------------------------------------------------------------
 *
 * rules_parse.c
 *		Rules as jsonb, read and checked.
 *
 * Promises: see rules_parse.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"

#include "common/ascii.h"
#include "policy/answer_headers.h"
#include "policy/rules_parse.h"

#define RULES_EXAMPLE \
	"{\"404\": \"cancel\", \"timeout\": {\"streak\": 3}, " \
	"\"5xx\": {\"max_attempts\": 20, \"backoff_max\": \"1 h\", \"on_exhaustion\": \"cancel\"}}"

/* Where in the rules something is wrong, for errors that other code raises. */
typedef struct RulePath
{
	const char *match;
	const char *field;
} RulePath;

static void
add_path_to_error(void *arg)
{
	RulePath   *path = arg;

	errcontext("field \"%s\" of rule \"%s\"", path->field, path->match);
}

static void
refuse_match(const char *match)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("rule \"%s\" does not name an outcome", match),
			 errhint("Rules are for an HTTP status (\"404\"), a class of them (\"4xx\"), "
					 "\"timeout\", \"connect\", \"dns\", \"tls\", \"body\", \"blocked\", "
					 "a receiver's own code, or \"*\".")));
}

/* A status is three digits and a class has two x; other codes are the receivers'. */
static void
check_match(const char *match)
{
	size_t		len = strlen(match);

	if (strcmp(match, "*") == 0)
		return;
	if (!outbox_code_is_valid(match, len))
		refuse_match(match);
	if (strspn(match, "0123456789") == len &&
		(len != 3 || match[0] < '1' || match[0] > '5'))
		refuse_match(match);
	if (len == 3 && outbox_same_word(match + 1, 2, "xx") &&
		(match[0] < '1' || match[0] > '5' || strcmp(match + 1, "xx") != 0))
		refuse_match(match);
}

static char *
string_of(const JsonbValue *value)
{
	return value->type == jbvString ?
		pnstrdup(value->val.string.val, value->val.string.len) : NULL;
}

static OutboxAction
read_action(const RulePath *path, const JsonbValue *value)
{
	char	   *name = string_of(value);

	if (name != NULL)
	{
		if (strcmp(name, "retry") == 0)
			return OUTBOX_ACTION_RETRY;
		if (strcmp(name, "fail") == 0)
			return OUTBOX_ACTION_FAIL;
		if (strcmp(name, "cancel") == 0)
			return OUTBOX_ACTION_CANCEL;
		if (strcmp(name, "ok") == 0)
			return OUTBOX_ACTION_OK;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid action in rule \"%s\"", path->match),
			 errhint("An action is \"retry\", \"fail\", \"cancel\" or \"ok\".")));
	return OUTBOX_ACTION_NONE;	/* keep compiler quiet */
}

/* A whole number from 1 to max, or null for no limit. */
static int
read_limit(const RulePath *path, const JsonbValue *value, int max)
{
	if (value->type == jbvNull)
		return OUTBOX_RULE_UNLIMITED;
	if (value->type == jbvNumeric)
	{
		char	   *text = DatumGetCString(DirectFunctionCall1(numeric_out,
															   NumericGetDatum(value->val.numeric)));

		if (strspn(text, "0123456789") == strlen(text) && strlen(text) <= 9 &&
			atoi(text) >= 1 && atoi(text) <= max)
			return atoi(text);
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid %s in rule \"%s\"", path->field, path->match),
			 errhint("It is a whole number from 1 to %d, or null for no limit.", max)));
	return 0;					/* keep compiler quiet */
}

static int64
read_interval(RulePath *path, const JsonbValue *value)
{
	ErrorContextCallback callback;
	char	   *text = string_of(value);
	Interval   *interval = NULL;
	double		ms = -1;

	if (text != NULL)
	{
		callback.callback = add_path_to_error;
		callback.arg = path;
		callback.previous = error_context_stack;
		error_context_stack = &callback;
		interval = DatumGetIntervalP(DirectFunctionCall3(interval_in, CStringGetDatum(text),
														 ObjectIdGetDatum(InvalidOid),
														 Int32GetDatum(-1)));
		error_context_stack = callback.previous;
		ms = interval->time / 1000.0 + interval->day * 86400000.0 +
			interval->month * 30.0 * 86400000.0;
	}

	/* A year is longer than anybody waits; it also keeps infinity out. */
	if (ms < 0 || ms > 366.0 * 86400000.0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid %s in rule \"%s\"", path->field, path->match),
				 errhint("It is an interval of at most a year, such as \"15 min\".")));
	return (int64) ms;
}

static OutboxState
read_exhaustion(const RulePath *path, const JsonbValue *value)
{
	char	   *name = string_of(value);

	if (name != NULL && strcmp(name, "dead") == 0)
		return OUTBOX_DEAD;
	if (name != NULL && strcmp(name, "cancel") == 0)
		return OUTBOX_CANCELLED;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid on_exhaustion in rule \"%s\"", path->match),
			 errhint("It is \"dead\" or \"cancel\".")));
	return OUTBOX_PENDING;		/* keep compiler quiet */
}

static void
read_field(RulePath *path, const JsonbValue *value, OutboxRule *rule)
{
	if (strcmp(path->field, "action") == 0)
		rule->action = read_action(path, value);
	else if (strcmp(path->field, "streak") == 0)
		rule->streak = read_limit(path, value, OUTBOX_STREAK_MAX);
	else if (strcmp(path->field, "max_attempts") == 0)
		rule->max_attempts = read_limit(path, value, 1000000);
	else if (strcmp(path->field, "backoff_max") == 0)
		rule->backoff_max = read_interval(path, value);
	else if (strcmp(path->field, "on_exhaustion") == 0)
		rule->on_exhaustion = read_exhaustion(path, value);
	else
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("unrecognized field \"%s\" in rule \"%s\"", path->field, path->match),
				 errhint("A rule has action, streak, max_attempts, backoff_max and on_exhaustion.")));
}

/* A rule is an object, or short for one: just the action. */
static void
read_rule(const char *match, JsonbValue *value, OutboxRule *rule)
{
	RulePath	path = {match, "action"};
	JsonbIterator *iterator;
	JsonbIteratorToken token;
	JsonbValue	name;
	JsonbValue	field;

	*rule = (OutboxRule) OUTBOX_RULE_SILENT;
	check_match(match);
	strlcpy(rule->match, match, sizeof(rule->match));

	if (value->type == jbvString)
	{
		rule->action = read_action(&path, value);
		return;
	}
	if (value->type != jbvBinary || !JsonContainerIsObject(value->val.binary.data))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("rule \"%s\" is neither an action nor an object", match),
				 errhint("Write rules like this: %s.", RULES_EXAMPLE)));

	iterator = JsonbIteratorInit(value->val.binary.data);
	while ((token = JsonbIteratorNext(&iterator, &name, true)) != WJB_DONE)
	{
		if (token != WJB_KEY)
			continue;
		(void) JsonbIteratorNext(&iterator, &field, true);
		path.field = string_of(&name);
		read_field(&path, &field, rule);
	}
}

OutboxRules *
outbox_rules_parse(Jsonb *jsonb)
{
	OutboxRules *rules;
	JsonbIterator *iterator;
	JsonbIteratorToken token;
	JsonbValue	name;
	JsonbValue	value;

	if (jsonb == NULL)
		return NULL;
	if (!JB_ROOT_IS_OBJECT(jsonb))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("rules must be a JSON object"),
				 errhint("Write rules like this: %s.", RULES_EXAMPLE)));
	if (JB_ROOT_COUNT(jsonb) > OUTBOX_MAX_RULES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("too many rules"),
				 errdetail("There are %d; at most %d are allowed.",
						   (int) JB_ROOT_COUNT(jsonb), OUTBOX_MAX_RULES),
				 errhint("A class such as \"5xx\", or \"*\", stands for many.")));

	rules = palloc0(offsetof(OutboxRules, rules) + JB_ROOT_COUNT(jsonb) * sizeof(OutboxRule));
	iterator = JsonbIteratorInit(&jsonb->root);
	while ((token = JsonbIteratorNext(&iterator, &name, true)) != WJB_DONE)
	{
		if (token != WJB_KEY)
			continue;
		(void) JsonbIteratorNext(&iterator, &value, true);
		read_rule(string_of(&name), &value, &rules->rules[rules->nrules++]);
	}
	return rules;
}

PG_FUNCTION_INFO_V1(outbox_sql_check_rules);

/* outbox_internal.check_rules(rules jsonb) */
Datum
outbox_sql_check_rules(PG_FUNCTION_ARGS)
{
	(void) outbox_rules_parse(PG_GETARG_JSONB_P(0));
	PG_RETURN_VOID();
}
