/*-------------------------------------------------------------------------
 *
 * turkish.h
 *		What the C library's comparisons without case are in Turkish, where
 *		an I is no capital of i, for a test whose objects must not use them.
 *
 * The dispatcher has its database's locale, which this machine may not have.
 * Of this program's objects only: libcurl and the C library keep their own.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TURKISH_H
#define OUTBOX_TURKISH_H

#include <strings.h>

#define ONLY_HERE __attribute__((visibility("hidden")))

ONLY_HERE int tolower(int c);
ONLY_HERE int strncasecmp(const char *a, const char *b, size_t n);
ONLY_HERE int strcasecmp(const char *a, const char *b);

int
tolower(int c)
{
	return c >= 'A' && c <= 'Z' && c != 'I' ? c + 32 : c;
}

int
strncasecmp(const char *a, const char *b, size_t n)
{
	for (; n > 0; a++, b++, n--)
		if (tolower(*a) != tolower(*b) || *a == '\0')
			return tolower(*a) - tolower(*b);
	return 0;
}

int
strcasecmp(const char *a, const char *b)
{
	return strncasecmp(a, b, (size_t) -1);
}

#endif							/* OUTBOX_TURKISH_H */
