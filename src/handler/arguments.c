/*-------------------------------------------------------------------------
 *
 * arguments.c
 *		The arguments of a running call as names and texts.
 *
 * See arguments.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "handler/arguments.h"

/* The argument that holds others. */
#define OPTIONS "options"

/* Longer words are not compared with the names there are. */
#define MAX_WORD NAMEDATALEN

/* What the running function takes, and what it was given. */
typedef struct Call
{
	FunctionCallInfo fcinfo;
	Oid		   *types;
	char	  **names;
	Datum	   *given_names;
	Datum	   *given_texts;
	int			given;
	OutboxWithheld *withheld;
} Call;

/* The text of an argument; names of functions with their schema, whatever search_path says. */
static char *
argument_text(Datum value, Oid type)
{
	Oid			output;
	bool		is_varlena;

	if (type == REGPROCEDUREOID)
		return format_procedure_qualified(DatumGetObjectId(value));
	getTypeOutputInfo(type, &output, &is_varlena);
	return OidOutputFunctionCall(output, value);
}

static void
add_argument(Call *call, int i, char *text)
{
	/* No statement is to see a secret: secret.h. */
	if (outbox_is_secret_option(call->names[i]))
	{
		outbox_withhold(call->withheld, call->names[i], text);
		text = OUTBOX_WITHHELD;
	}
	call->given_names[call->given] = CStringGetTextDatum(call->names[i]);
	call->given_texts[call->given] = CStringGetTextDatum(text);
	call->given++;
}

/* The first argument says whose options they are, and options hold no options. */
static bool
is_option(const Call *call, int i)
{
	return i > 0 && strcmp(call->names[i], OPTIONS) != 0;
}

/* The name that is nearest to a mistyped one; NULL if none is near. */
static const char *
nearest_option(const Call *call, const char *word)
{
	const char *nearest = NULL;
	int			length = strlen(word);
	int			limit = Min(length / 2, 4);
	char	   *lower = pstrdup(word);

	if (length > MAX_WORD)
		return NULL;
	for (char *c = lower; *c != '\0'; c++)
		*c = pg_ascii_tolower((unsigned char) *c);
	for (int i = 0; i < call->fcinfo->nargs; i++)
	{
		int			distance;

		if (!is_option(call, i))
			continue;
		distance = varstr_levenshtein_less_equal(lower, length, call->names[i], strlen(call->names[i]), 1, 1, 1, limit, true);
		if (distance <= limit)
		{
			nearest = call->names[i];
			limit = distance - 1;
		}
	}
	return nearest;
}

static char *
list_of_options(const Call *call)
{
	StringInfoData list;

	initStringInfo(&list);
	for (int i = 0; i < call->fcinfo->nargs; i++)
	{
		if (is_option(call, i))
			appendStringInfo(&list, "%s%s", list.len > 0 ? ", " : "", call->names[i]);
	}
	return list.data;
}

static int
find_option(const Call *call, const char *name)
{
	const char *nearest;

	for (int i = 0; i < call->fcinfo->nargs; i++)
	{
		if (is_option(call, i) && strcmp(call->names[i], name) == 0)
			return i;
	}
	nearest = nearest_option(call, name);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("outbox.%s() has no option \"%.*s\"", get_func_name(call->fcinfo->flinfo->fn_oid),
					pg_mbcliplen(name, strlen(name), MAX_WORD), name),
			 nearest != NULL ? errhint("Perhaps you mean \"%s\".", nearest)
			 : errhint("Options are %s.", list_of_options(call))));
}

static char *
scalar_text(const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvString:
			return pnstrdup(value->val.string.val, value->val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric)));
		case jbvBool:
			return pstrdup(value->val.boolean ? "true" : "false");
		default:
			return NULL;
	}
}

/* A list of texts, as an array of whatever type is written. */
static char *
array_text(JsonbContainer *list)
{
	JsonbIterator *it = JsonbIteratorInit(list);
	int			n = JsonContainerSize(list);
	Datum	   *texts = palloc(sizeof(Datum) * Max(n, 1));
	bool	   *nulls = palloc(sizeof(bool) * Max(n, 1));
	int			lower_bound = 1;
	JsonbIteratorToken token;
	JsonbValue	value;
	int			i = 0;

	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		char	   *text;

		if (token != WJB_ELEM)
			continue;
		text = value.type == jbvBinary ? JsonbToCString(NULL, value.val.binary.data, value.val.binary.len) : scalar_text(&value);
		nulls[i] = text == NULL;
		texts[i++] = text == NULL ? (Datum) 0 : CStringGetTextDatum(text);
	}
	return OidOutputFunctionCall(F_ARRAY_OUT, PointerGetDatum(construct_md_array(texts, nulls, 1, &n, &lower_bound, TEXTOID, -1, false, TYPALIGN_INT)));
}

/* The value of an option as somebody would write it in SQL. */
static char *
option_text(JsonbValue *value, Oid type)
{
	if (type == JSONBOID)
	{
		Jsonb	   *json = JsonbValueToJsonb(value);

		return JsonbToCString(NULL, &json->root, VARSIZE(json));
	}
	if (value->type != jbvBinary)
		return scalar_text(value);
	if (OidIsValid(get_element_type(type)) && JsonContainerIsArray(value->val.binary.data))
		return array_text(value->val.binary.data);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("the option is no JSON %s", JsonContainerIsArray(value->val.binary.data) ? "array" : "object"),
			 errhint("Write it as a string or a number.")));
}

static void
name_option(void *name)
{
	errcontext("option \"%s\"", (char *) name);
}

/* As if the value had been passed as the argument itself. */
static char *
read_option(const Call *call, int i, JsonbValue *value)
{
	ErrorContextCallback context = {error_context_stack, name_option, call->names[i]};
	char	   *text;
	Oid			input;
	Oid			ioparam;

	error_context_stack = &context;
	getTypeInputInfo(call->types[i], &input, &ioparam);
	text = argument_text(OidInputFunctionCall(input, option_text(value, call->types[i]), ioparam, -1), call->types[i]);
	error_context_stack = context.previous;
	return text;
}

static void
add_options(Call *call, Jsonb *options)
{
	JsonbIterator *it = JsonbIteratorInit(&options->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	int			i = 0;

	if (!JB_ROOT_IS_OBJECT(options))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options must be a JSON object"),
				 errhint("Its names are those of the options, as in {\"timeout\": \"20 s\"}.")));
	while ((token = JsonbIteratorNext(&it, &value, true)) != WJB_DONE)
	{
		if (token == WJB_KEY)
			i = find_option(call, scalar_text(&value));
		if (token != WJB_VALUE || value.type == jbvNull)
			continue;
		if (!call->fcinfo->args[i].isnull)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("option \"%s\" is given twice", call->names[i]),
					 errhint("Give it by itself or in options.")));
		add_argument(call, i, read_option(call, i, &value));
	}
}

static void
look_up_function(Call *call)
{
	HeapTuple	proc = SearchSysCache1(PROCOID, ObjectIdGetDatum(call->fcinfo->flinfo->fn_oid));
	char	   *modes;

	if (!HeapTupleIsValid(proc))
		elog(ERROR, "cache lookup failed for function %u", call->fcinfo->flinfo->fn_oid);
	if (get_func_arg_info(proc, &call->types, &call->names, &modes) != call->fcinfo->nargs || call->names == NULL)
		elog(ERROR, "function %u does not name its arguments", call->fcinfo->flinfo->fn_oid);
	ReleaseSysCache(proc);
}

void
outbox_collect_arguments(FunctionCallInfo fcinfo, Datum *names, Datum *texts, OutboxWithheld *withheld)
{
	Call		call = {.fcinfo = fcinfo, .withheld = withheld};

	look_up_function(&call);
	call.given_names = palloc(sizeof(Datum) * PG_NARGS());
	call.given_texts = palloc(sizeof(Datum) * PG_NARGS());
	for (int i = 0; i < PG_NARGS(); i++)
	{
		if (PG_ARGISNULL(i))
			continue;
		if (strcmp(call.names[i], OPTIONS) == 0)
			add_options(&call, PG_GETARG_JSONB_P(i));
		else
			add_argument(&call, i, argument_text(PG_GETARG_DATUM(i), call.types[i]));
	}
	*names = PointerGetDatum(construct_array(call.given_names, call.given, TEXTOID, -1, false, TYPALIGN_INT));
	*texts = PointerGetDatum(construct_array(call.given_texts, call.given, TEXTOID, -1, false, TYPALIGN_INT));
}
