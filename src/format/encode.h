/*-------------------------------------------------------------------------
 *
 * encode.h
 *		Small pieces of text that requests are made of.
 *
 * All append to a StringInfo.  Neither SPI nor curl.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ENCODE_H
#define OUTBOX_ENCODE_H

#include "outbox.h"

#include "lib/stringinfo.h"

/* Text of a uuid in its usual 36 characters. */
#define OUTBOX_UUID_TEXT_LEN 36

extern void outbox_append_uuid(StringInfo out, const pg_uuid_t *id);

/* UTC with microseconds, as RFC 3339 writes it: 2025-10-09T08:53:20.000000Z. */
extern void outbox_append_rfc3339(StringInfo out, TimestampTz at);

extern void outbox_append_int(StringInfo out, int64 value);

/*
 * What a header value may keep of the bytes it carries.  Either way nothing
 * that could end the line is left, and a byte that is not kept becomes
 * "%" and two hexadecimal digits of its UTF-8 form.
 */
typedef enum OutboxHeaderValue
{
	/* Reversible: blanks, quotes and the percent sign are encoded too. */
	OUTBOX_VALUE_DATA,
	/* As its author wrote it, as far as that is visible ASCII or a blank within. */
	OUTBOX_VALUE_WRITTEN
} OutboxHeaderValue;

/* Append text in the server's encoding as a header value. */
extern void outbox_append_header_value(StringInfo out, const char *text, size_t len,
									   OutboxHeaderValue kind);

/*
 * Text of the server's encoding in UTF-8: itself where nothing needs to be
 * done, else palloc'd.  In a database of another encoding than UTF-8 it must
 * run inside a transaction (or with client_encoding set to UTF8), and raises
 * for a character that UTF-8 does not have.  SQL_ASCII has no conversion:
 * its bytes are returned as they are.
 */
extern const char *outbox_to_utf8(const char *text, size_t len, size_t *utf8_len);

#endif							/* OUTBOX_ENCODE_H */
