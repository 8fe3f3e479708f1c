/*-------------------------------------------------------------------------
 *
 * header_log.c
 *		Headers of an answer, as the log of attempts keeps them.
 *
 * See header_log.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/json.h"

#include "format/header_log.h"
#include "format/printable.h"

/* All values of one name, in the order in which they came; false if there are none. */
static bool
collect(StringInfo values, int name, const char *kept, size_t len)
{
	const char *end = kept + len;
	bool		found = false;

	resetStringInfo(values);
	for (const char *pos = kept; pos < end; pos += 1 + strlen(pos + 1) + 1)
	{
		char	   *text;

		if ((unsigned char) *pos != name)
			continue;
		/* A byte may become four characters. */
		text = outbox_error_text(pos + 1, strlen(pos + 1), 4 * strlen(pos + 1));
		appendStringInfo(values, "%s%s", found ? ", " : "", text);
		pfree(text);
		found = true;
	}
	return found;
}

char *
outbox_header_log(const char *const *names, int nnames, const char *kept, size_t len)
{
	StringInfoData json;
	StringInfoData values;

	if (len == 0)
		return NULL;
	initStringInfo(&json);
	initStringInfo(&values);
	for (int i = 0; i < nnames; i++)
	{
		if (!collect(&values, i, kept, len))
			continue;
		appendStringInfoString(&json, json.len == 0 ? "{" : ", ");
		escape_json(&json, names[i]);
		appendStringInfoString(&json, ": ");
		escape_json(&json, values.data);
	}
	pfree(values.data);
	if (json.len == 0)
	{
		pfree(json.data);
		return NULL;
	}
	appendStringInfoChar(&json, '}');
	return json.data;
}
