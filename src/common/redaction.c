/*-------------------------------------------------------------------------
 *
 * redaction.c
 *		The setting outbox.redact_function, and what it makes of error texts.
 *
 * See redaction.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/elog.h"
#include "utils/varlena.h"

#include "common/redaction.h"
#include "common/user_function.h"
#include "compat.h"

/* Its name, taken apart. */
typedef struct RedactFunction
{
	char		schema[NAMEDATALEN];
	char		name[NAMEDATALEN];
} RedactFunction;

static const RedactFunction *function_now = NULL;

/* It is about to be called: what it calls itself is not to come here again. */
static bool at_work = false;

bool
outbox_redaction_is_set(void)
{
	return function_now != NULL && function_now->name[0] != '\0';
}

bool
outbox_check_redact_function(char **newval, void **extra, GucSource source)
{
	RedactFunction *function;
	char	   *copy = pstrdup(*newval);
	List	   *names = NIL;

	/* With an argument it would be the name of another function. */
	if (!SplitIdentifierString(copy, '.', &names) || strchr(*newval, '(') != NULL || (names != NIL && list_length(names) != 2))
	{
		list_free(names);
		pfree(copy);
		GUC_check_errdetail("A function is named by its schema and its name.");
		GUC_check_errhint("Write it without its argument, such as app.redact; it takes a text and returns one.");
		return false;
	}
	function = outbox_guc_malloc(sizeof(RedactFunction));
	if (function != NULL)
	{
		memset(function, 0, sizeof(RedactFunction));
		if (names != NIL)
		{
			strlcpy(function->schema, linitial(names), NAMEDATALEN);
			strlcpy(function->name, lsecond(names), NAMEDATALEN);
		}
	}
	list_free(names);
	pfree(copy);
	if (function == NULL)
		return false;
	*extra = function;
	return true;
}

void
outbox_assign_redact_function(const char *newval, void *extra)
{
	function_now = extra;
}

static char *
clip(char *text)
{
	int			len = strlen(text);

	if (len >= OUTBOX_REDACTION_LEN)
		text[pg_mbcliplen(text, len, OUTBOX_REDACTION_LEN - 1)] = '\0';
	return text;
}

char *
outbox_redact(char *text)
{
	char	   *answer = NULL;
	int			sqlstate;
	bool		done;

	if (text == NULL || text[0] == '\0' || !outbox_redaction_is_set())
		return text;
	if (at_work)
		return pstrdup(OUTBOX_TEXT_WITHHELD);

	at_work = true;
	PG_TRY();
	{
		done = outbox_user_text_function_call(function_now->schema, function_now->name, text, OUTBOX_REDACTION_TIMEOUT_MS, &answer, &sqlstate);
	}
	PG_FINALLY();
	{
		at_work = false;
	}
	PG_END_TRY();
	if (!done)
		return psprintf(OUTBOX_TEXT_WITHHELD_BECAUSE, psprintf("outbox.redact_function failed (%s)", unpack_sql_state(sqlstate)));
	return answer == NULL ? NULL : clip(answer);
}

char *
outbox_redact_failure(char *text)
{
	char	   *kept = outbox_redact(text);

	return text != NULL && (kept == NULL || kept[0] == '\0') ? pstrdup("(not kept)") : kept;
}
