/*-------------------------------------------------------------------------
 *
 * encode.c
 *		Small pieces of text that requests are made of.
 *
 * Promises: see encode.h.  Every request passes here several times, hence
 * the tables and the absence of printf.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/timestamp.h"

#include "format/encode.h"

static const char lower_hex[] = "0123456789abcdef";
static const char upper_hex[] = "0123456789ABCDEF";

void
outbox_append_uuid(StringInfo out, const pg_uuid_t *id)
{
	char		text[OUTBOX_UUID_TEXT_LEN];
	char	   *pos = text;

	for (int i = 0; i < UUID_LEN; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*pos++ = '-';
		*pos++ = lower_hex[id->data[i] >> 4];
		*pos++ = lower_hex[id->data[i] & 0x0f];
	}
	appendBinaryStringInfo(out, text, OUTBOX_UUID_TEXT_LEN);
}

/* Write a number with leading zeros; returns the end. */
static char *
put_digits(char *pos, int value, int ndigits)
{
	for (int i = ndigits - 1; i >= 0; i--)
	{
		pos[i] = (char) ('0' + value % 10);
		value /= 10;
	}
	return pos + ndigits;
}

void
outbox_append_rfc3339(StringInfo out, TimestampTz at)
{
	char		text[48];
	char	   *pos = text;
	int64		days = at / USECS_PER_DAY;
	int64		rest = at % USECS_PER_DAY;
	int			year;
	int			month;
	int			day;

	if (rest < 0)
	{
		rest += USECS_PER_DAY;
		days--;
	}
	j2date((int) (days + POSTGRES_EPOCH_JDATE), &year, &month, &day);

	/* The format has four digits for the year; what needs more is no time anybody staged at. */
	pos = put_digits(pos, Min(Max(year, 0), 9999), 4);
	*pos++ = '-';
	pos = put_digits(pos, month, 2);
	*pos++ = '-';
	pos = put_digits(pos, day, 2);
	*pos++ = 'T';
	pos = put_digits(pos, (int) (rest / USECS_PER_HOUR), 2);
	*pos++ = ':';
	pos = put_digits(pos, (int) (rest / USECS_PER_MINUTE % 60), 2);
	*pos++ = ':';
	pos = put_digits(pos, (int) (rest / USECS_PER_SEC % 60), 2);
	*pos++ = '.';
	pos = put_digits(pos, (int) (rest % USECS_PER_SEC), 6);
	*pos++ = 'Z';
	appendBinaryStringInfo(out, text, (int) (pos - text));
}

void
outbox_append_int(StringInfo out, int64 value)
{
	char		text[MAXINT8LEN + 1];

	appendBinaryStringInfo(out, text, pg_lltoa(value, text));
}

const char *
outbox_to_utf8(const char *text, size_t len, size_t *utf8_len)
{
	char	   *converted;

	*utf8_len = len;
	if (GetDatabaseEncoding() == PG_UTF8 || GetDatabaseEncoding() == PG_SQL_ASCII)
		return text;
	converted = pg_server_to_any(text, (int) len, PG_UTF8);
	if (converted != text)
		*utf8_len = strlen(converted);
	return converted;
}

/* May this byte stand in a header value as it is? */
static inline bool
is_kept(unsigned char c, OutboxHeaderValue kind)
{
	if (c <= ' ' || c >= 0x7f)
		return kind == OUTBOX_VALUE_WRITTEN && (c == ' ' || c == '\t');
	return kind == OUTBOX_VALUE_WRITTEN || (c != '%' && c != '"');
}

/* Blanks around a value would be lost on the way. */
static inline bool
is_outer_blank(const char *text, size_t len, size_t i)
{
	return (i == 0 || i == len - 1) && (text[i] == ' ' || text[i] == '\t');
}

static void
append_encoded(StringInfo out, const char *text, size_t len, OutboxHeaderValue kind)
{
	enlargeStringInfo(out, (int) len * 3);
	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) text[i];

		if (is_kept(c, kind) && !is_outer_blank(text, len, i))
			appendStringInfoCharMacro(out, c);
		else
		{
			appendStringInfoCharMacro(out, '%');
			appendStringInfoCharMacro(out, upper_hex[c >> 4]);
			appendStringInfoCharMacro(out, upper_hex[c & 0x0f]);
		}
	}
}

void
outbox_append_header_value(StringInfo out, const char *text, size_t len, OutboxHeaderValue kind)
{
	size_t		kept = 0;
	bool		ascii = true;

	while (kept < len && is_kept((unsigned char) text[kept], kind) &&
		   !is_outer_blank(text, len, kept))
		kept++;
	appendBinaryStringInfo(out, text, (int) kept);
	if (kept == len)
		return;

	/* is_outer_blank() looks at both ends, so the whole of it is done again. */
	out->len -= (int) kept;
	for (size_t i = kept; i < len && ascii; i++)
		ascii = !IS_HIGHBIT_SET(text[i]);
	if (ascii)
		append_encoded(out, text, len, kind);
	else
	{
		const char *utf8 = outbox_to_utf8(text, len, &len);

		append_encoded(out, utf8, len, kind);
		if (utf8 != text)
			pfree((void *) utf8);
	}
}
