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

#include "format/printable.h"

/* Length of the printable character at s, or 0 if there is none. */
static int
printable_length(const unsigned char *s, size_t len)
{
	int			n;

	if (*s < 0x80)
		return (*s >= 0x20 && *s != 0x7f) || *s == '\n' || *s == '\t' || *s == '\r' ? 1 : 0;
	if (GetDatabaseEncoding() != PG_UTF8)
		return 0;
	n = pg_encoding_verifymbchar(PG_UTF8, (const char *) s, (int) Min(len, 8));
	return Max(n, 0);
}

char *
outbox_printable(const char *bytes, size_t len)
{
	const unsigned char *s = (const unsigned char *) bytes;
	StringInfoData out;

	initStringInfo(&out);
	while (len > 0)
	{
		int			n = printable_length(s, len);

		if (n > 0)
			appendBinaryStringInfo(&out, (const char *) s, n);
		else
			appendStringInfo(&out, "\\x%02x", *s);
		n = Max(n, 1);
		s += n;
		len -= n;
	}
	return out.data;
}
