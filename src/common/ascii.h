/*-------------------------------------------------------------------------
 *
 * ascii.h
 *		Characters and words of protocols, whatever the locale is.
 *
 * What HTTP, URLs and JSON are made of is ASCII.  The C library and
 * pg_strncasecmp() go by the locale of the process instead: under Turkish
 * ISO 8859-9 a byte above 127 equals the letter i.  Nothing that is compared
 * with a word of a protocol may depend on that.
 *
 * Pure, and knows nothing of the server.  Process: any, any thread.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ASCII_H
#define OUTBOX_ASCII_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static inline bool
outbox_is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static inline bool
outbox_is_alnum(char c)
{
	return outbox_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The value of a hexadecimal digit; -1 if it is none. */
static inline int
outbox_hex_value(char c)
{
	if (outbox_is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static inline char
outbox_lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char) (c + ('a' - 'A')) : c;
}

/*
 * Does text begin with the len bytes of word, but for upper and lower case?
 * Stops at the first difference, so text may end before.
 */
static inline bool
outbox_same_start(const char *text, const char *word, size_t len)
{
	for (size_t i = 0; i < len; i++)
	{
		if (outbox_lower(text[i]) != outbox_lower(word[i]))
			return false;
	}
	return true;
}

/* Are the len bytes at text this word, but for upper and lower case? */
static inline bool
outbox_same_word(const char *text, size_t len, const char *word)
{
	return len == strlen(word) && outbox_same_start(text, word, len);
}

/* The characters of an HTTP token (RFC 9110, section 5.6.2). */
static inline bool
outbox_is_token_char(char c)
{
	return outbox_is_alnum(c) || (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

#endif							/* OUTBOX_ASCII_H */
