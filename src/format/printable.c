/*-------------------------------------------------------------------------
 *
 * printable.c
 *		Makes text of whatever bytes a receiver sent.
 *
 * See printable.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"

#include "common/ascii.h"
#include "format/printable.h"

/* What is yet to be read. */
typedef struct Source
{
	const char *pos;
	const char *end;
} Source;

static bool
is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Length of the printable character that comes next, or 0 if there is none. */
static int
printable_length(const Source *source)
{
	unsigned char c = (unsigned char) *source->pos;
	int			n;

	if (c < 0x80)
		return (c >= 0x20 && c != 0x7f) || is_blank((char) c) ? 1 : 0;
	if (GetDatabaseEncoding() != PG_UTF8)
		return 0;
	n = pg_encoding_verifymbchar(PG_UTF8, source->pos, (int) Min(source->end - source->pos, 8));
	return Max(n, 0);
}

/* Append the next character, or byte, as it may be shown.  False if that would be longer than max. */
static bool
append_next(StringInfo out, Source *source, size_t max)
{
	char		escape[sizeof("\\xHH")];
	const char *shown = source->pos;
	int			n = printable_length(source);
	int			shown_len = n;

	if (n == 0)
	{
		n = 1;
		shown = escape;
		shown_len = snprintf(escape, sizeof(escape), "\\x%02x", (unsigned char) *source->pos);
	}
	if ((size_t) (out->len + shown_len) > max)
		return false;
	appendBinaryStringInfo(out, shown, shown_len);
	source->pos += n;
	return true;
}

char *
outbox_printable(const char *bytes, size_t len, size_t max)
{
	Source		source = {bytes, bytes + len};
	StringInfoData out;

	initStringInfo(&out);
	while (source.pos < source.end && append_next(&out, &source, max))
		;
	return out.data;
}

/* Does this text, whatever its case, come next? */
static bool
next_is(const Source *source, const char *text)
{
	size_t		len = strlen(text);

	return (size_t) (source->end - source->pos) >= len && outbox_same_start(source->pos, text, len);
}

static void
skip_blanks(Source *source)
{
	while (source->pos < source->end && is_blank(*source->pos))
		source->pos++;
}

/* Go behind the next occurrence of a text, or to the end. */
static void
skip_past(Source *source, const char *text)
{
	while (source->pos < source->end && !next_is(source, text))
		source->pos++;
	source->pos += Min((size_t) (source->end - source->pos), strlen(text));
}

/* Go behind a tag, with all it encloses where that is nothing to read. */
static void
skip_tag(Source *source)
{
	if (next_is(source, "<!--"))
		skip_past(source, "-->");
	else if (next_is(source, "<style"))
		skip_past(source, "</style>");
	else if (next_is(source, "<script"))
		skip_past(source, "</script>");
	else
		skip_past(source, ">");
}

static bool
is_page(Source source)
{
	skip_blanks(&source);
	return next_is(&source, "<!doctype html") || next_is(&source, "<html");
}

/* On one line; without its tags if it is a page of HTML. */
static void
append_line(StringInfo out, Source source, bool page, size_t max)
{
	bool		blank = false;

	while (source.pos < source.end)
	{
		if (is_blank(*source.pos))
		{
			skip_blanks(&source);
			blank = true;
		}
		else if (page && *source.pos == '<')
		{
			skip_tag(&source);
			blank = true;
		}
		else
		{
			if (blank && out->len > 0)
			{
				if ((size_t) out->len >= max)
					break;
				appendStringInfoCharMacro(out, ' ');
			}
			blank = false;
			if (!append_next(out, &source, max))
				break;
		}
	}
}

char *
outbox_error_text(const char *bytes, size_t len, size_t max)
{
	Source		source = {bytes, bytes + len};
	StringInfoData out;

	initStringInfo(&out);
	append_line(&out, source, is_page(source), max);
	if (out.len == 0)
		append_line(&out, source, false, max);
	return out.data;
}
