/*-------------------------------------------------------------------------
 *
 * condition.c
 *		A condition over OLD and NEW where there is but one of them.
 *
 * See condition.h.  PostgreSQL's own scanner finds where the words are, so that
 * nothing within strings, comments and quoted names is taken for one of them.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "parser/scanner.h"

#include "watch/condition.h"

typedef struct Token
{
	int			code;			/* a character, or what the scanner calls it */
	int			start;
} Token;

/* All words are alike to us. */
static const ScanKeywordList no_keywords = {.max_kw_len = 0};

/* The last one has code 0, at the end of the text. */
static Token *
scan(const char *text)
{
	core_yy_extra_type extra;
	core_yyscan_t scanner = scanner_init(text, &extra, &no_keywords, ScanKeywordTokens);
	Token	   *tokens = palloc(sizeof(Token) * (strlen(text) + 1));
	int			n = -1;

	do
	{
		core_YYSTYPE value;
		YYLTYPE		start;

		n++;
		tokens[n].code = core_yylex(&value, &start, scanner);
		tokens[n].start = start;
	} while (tokens[n].code != 0);
	tokens[n].start = strlen(text);
	scanner_finish(scanner);
	return tokens;
}

static bool
is_name_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		c == '_' || c == '$' || IS_HIGHBIT_SET(c);
}

/* How long the name of the row is that begins here; 0 if it is another one. */
static int
row_name_length(const char *text, const char *row)
{
	int			len = strlen(row);

	if (pg_strncasecmp(text, row, len) == 0 && !is_name_char(text[len]))
		return len;
	if (text[0] == '"' && strncmp(text + 1, row, len) == 0 && text[len + 1] == '"' && text[len + 2] != '"')
		return len + 2;
	return 0;
}

char *
outbox_condition_without(const char *condition, const char *row, const char *relation)
{
	Token	   *tokens = scan(condition);
	StringInfoData result;
	int			copied = 0;

	initStringInfo(&result);
	for (int i = 0; tokens[i].code != 0; i++)
	{
		int			len = row_name_length(condition + tokens[i].start, row);

		/* A column, or a function, may have that name. */
		if (len == 0 || (i > 0 && tokens[i - 1].code == '.') || tokens[i + 1].code == '(')
			continue;
		appendBinaryStringInfo(&result, condition + copied, tokens[i].start - copied);
		appendStringInfo(&result, "(NULL::%s)", relation);
		copied = tokens[i].start + len;
		/* "OLD.*" is the row as "OLD" is; of other rows it would be their columns. */
		if (tokens[i + 1].code == '.' && tokens[i + 2].code == '*')
			copied = tokens[i + 2].start + 1;
	}
	appendStringInfoString(&result, condition + copied);
	return result.data;
}
