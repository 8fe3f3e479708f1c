/*-------------------------------------------------------------------------
 *
 * json_text.c
 *		A jsonb value, or a string, as JSON text, written piece by piece.
 *
 * Promises: see json_text.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/numeric.h"

#include "format/json_text.h"

#define append_literal(out, text) appendBinaryStringInfo(out, text, sizeof(text) - 1)

void
outbox_json_text_begin(OutboxJsonText *text, const Jsonb *value)
{
	memset(text, 0, sizeof(*text));
	text->iterator = JsonbIteratorInit((JsonbContainer *) &value->root);
	text->is_first = true;
}

void
outbox_json_text_begin_string(OutboxJsonText *text, const char *string, int len)
{
	memset(text, 0, sizeof(*text));
	text->string = string;
	text->string_len = len;
	text->behind = "\"";
	text->is_unquoted = true;
}

/* How many bytes from the start need no escape. */
static int
plain_length(const char *string, int len)
{
	int			n = 0;

	while (n < len && (unsigned char) string[n] >= ' ' && string[n] != '"' && string[n] != '\\')
		n++;
	return n;
}

static void
append_escape(StringInfo out, unsigned char c)
{
	switch (c)
	{
		case '"':
			append_literal(out, "\\\"");
			break;
		case '\\':
			append_literal(out, "\\\\");
			break;
		case '\b':
			append_literal(out, "\\b");
			break;
		case '\f':
			append_literal(out, "\\f");
			break;
		case '\n':
			append_literal(out, "\\n");
			break;
		case '\r':
			append_literal(out, "\\r");
			break;
		case '\t':
			append_literal(out, "\\t");
			break;
		default:
			appendStringInfo(out, "\\u%04x", c);
	}
}

/*
 * Go on with a string, up to that length of out.  No byte of a multibyte
 * character of a server encoding is one that needs an escape.
 */
static void
write_string(OutboxJsonText *text, StringInfo out, int end)
{
	while (text->string_len > 0 && out->len < end)
	{
		int			plain = plain_length(text->string, Min(text->string_len, end - out->len));

		appendBinaryStringInfo(out, text->string, plain);
		text->string += plain;
		text->string_len -= plain;
		if (text->string_len > 0 && out->len < end)
		{
			append_escape(out, (unsigned char) *text->string++);
			text->string_len--;
		}
	}
	if (text->string_len > 0)
		return;
	appendStringInfoString(out, text->behind);
	text->string = NULL;
}

static void
begin_string(OutboxJsonText *text, StringInfo out, const JsonbValue *value, const char *behind, int end)
{
	appendStringInfoCharMacro(out, '"');
	text->string = value->val.string.val;
	text->string_len = value->val.string.len;
	text->behind = behind;
	write_string(text, out, end);
}

static void
write_scalar(OutboxJsonText *text, StringInfo out, const JsonbValue *value, int end)
{
	char	   *number;

	switch (value->type)
	{
		case jbvNull:
			append_literal(out, "null");
			break;
		case jbvBool:
			appendStringInfoString(out, value->val.boolean ? "true" : "false");
			break;
		case jbvString:
			begin_string(text, out, value, "\"", end);
			break;
		case jbvNumeric:
			number = DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric)));
			appendStringInfoString(out, number);
			pfree(number);
			break;
		default:
			elog(ERROR, "unexpected type of a jsonb scalar: %d", (int) value->type);
	}
}

/* Before a key, an element, or an array or object within an array. */
static void
separate(OutboxJsonText *text, StringInfo out)
{
	if (!text->is_first)
		append_literal(out, ", ");
	text->is_first = false;
}

static void
open_container(OutboxJsonText *text, StringInfo out, char bracket)
{
	separate(text, out);
	appendStringInfoCharMacro(out, bracket);
	text->is_first = true;
}

static void
close_container(OutboxJsonText *text, StringInfo out, char bracket)
{
	appendStringInfoCharMacro(out, bracket);
	text->is_first = false;
}

/* The next token of the value.  False: there is none. */
static bool
write_token(OutboxJsonText *text, StringInfo out, int end)
{
	JsonbValue	value;

	switch (JsonbIteratorNext(&text->iterator, &value, false))
	{
		case WJB_DONE:
			return false;
		case WJB_BEGIN_ARRAY:
			if (value.val.array.rawScalar)
				text->is_scalar = true;
			else
				open_container(text, out, '[');
			break;
		case WJB_END_ARRAY:
			if (!text->is_scalar)
				close_container(text, out, ']');
			break;
		case WJB_BEGIN_OBJECT:
			open_container(text, out, '{');
			break;
		case WJB_END_OBJECT:
			close_container(text, out, '}');
			break;
		case WJB_KEY:
			separate(text, out);
			text->is_first = true;	/* no comma between it and its value */
			begin_string(text, out, &value, "\": ", end);
			break;
		case WJB_ELEM:
			separate(text, out);
			write_scalar(text, out, &value, end);
			break;
		case WJB_VALUE:
			text->is_first = false;
			write_scalar(text, out, &value, end);
			break;
	}
	return true;
}

bool
outbox_json_text_write(OutboxJsonText *text, StringInfo out, int max)
{
	int			end = max > PG_INT32_MAX - out->len ? PG_INT32_MAX : out->len + max;

	if (text->is_unquoted)
		appendStringInfoCharMacro(out, '"');
	text->is_unquoted = false;
	while (out->len < end)
	{
		if (text->string != NULL)
			write_string(text, out, end);
		else if (text->iterator == NULL || !write_token(text, out, end))
			return true;
	}
	return false;
}

size_t
outbox_json_string_length(const char *string, size_t len)
{
	size_t		length = len + 2;

	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) string[i];

		if (c == '"' || c == '\\' || c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t')
			length += 1;
		else if (c < ' ')
			length += 5;
	}
	return length;
}
