/*-------------------------------------------------------------------------
 *
 * content_type.c
 *		What a content type says, as HTTP writes it.
 *
 * Promises: see content_type.h.
 *
 *-------------------------------------------------------------------------
 */
#include "format/content_type.h"

#include "common/ascii.h"

/* What is left to be read. */
typedef struct Rest
{
	const char *at;
	const char *end;
} Rest;

static bool
skip_char(Rest *rest, char c)
{
	if (rest->at == rest->end || *rest->at != c)
		return false;
	rest->at++;
	return true;
}

static void
skip_blanks(Rest *rest)
{
	while (rest->at < rest->end && (*rest->at == ' ' || *rest->at == '\t'))
		rest->at++;
}

/* Returns its length, 0 if there is none. */
static size_t
read_token(Rest *rest, const char **token)
{
	*token = rest->at;
	while (rest->at < rest->end && outbox_is_token_char(*rest->at))
		rest->at++;
	return rest->at - *token;
}

/* Does a character within quotes stand for itself, or behind a backslash? */
static bool
is_quotable(char c)
{
	return c == '\t' || (c >= ' ' && c <= '~');
}

/*
 * A quoted string, from its first quote on.  Is what it says the word, but
 * for upper and lower case?
 */
static bool
read_quoted(Rest *rest, const char *word, bool *is_word)
{
	size_t		len = strlen(word);
	size_t		n = 0;

	*is_word = true;
	rest->at++;
	while (rest->at < rest->end && *rest->at != '"')
	{
		if (*rest->at == '\\')
			rest->at++;
		if (rest->at == rest->end || !is_quotable(*rest->at))
			return false;
		if (n >= len || outbox_lower(*rest->at) != word[n])
			*is_word = false;
		n++;
		rest->at++;
	}
	*is_word = *is_word && n == len;
	return skip_char(rest, '"');
}

static bool
read_parameter(Rest *rest, OutboxContentType *type)
{
	const char *name;
	const char *value;
	size_t		name_len = read_token(rest, &name);
	size_t		value_len;
	bool		is_utf8;

	if (name_len == 0 || !skip_char(rest, '='))
		return false;
	if (rest->at < rest->end && *rest->at == '"')
	{
		if (!read_quoted(rest, "utf-8", &is_utf8))
			return false;
	}
	else
	{
		value_len = read_token(rest, &value);
		if (value_len == 0)
			return false;
		is_utf8 = outbox_same_word(value, value_len, "utf-8");
	}
	if (outbox_same_word(name, name_len, "charset") && !is_utf8)
		type->other_charset = true;
	return true;
}

static bool
says_json(const char *subtype, size_t len)
{
	return outbox_same_word(subtype, len, "json") ||
		(len > 5 && outbox_same_word(subtype + len - 5, 5, "+json"));
}

bool
outbox_content_type_read(const char *text, size_t len, OutboxContentType *type)
{
	Rest		rest = {text, text + len};
	const char *token;
	size_t		token_len;

	type->is_json = false;
	type->other_charset = false;
	if (read_token(&rest, &token) == 0 || !skip_char(&rest, '/'))
		return false;
	token_len = read_token(&rest, &token);
	if (token_len == 0)
		return false;
	type->is_json = says_json(token, token_len);

	while (rest.at < rest.end)
	{
		skip_blanks(&rest);
		if (!skip_char(&rest, ';'))
			return false;
		skip_blanks(&rest);
		if (!read_parameter(&rest, type))
			return false;
	}
	return true;
}
