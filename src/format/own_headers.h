/*-------------------------------------------------------------------------
 *
 * own_headers.h
 *		Headers that handlers and messages bring themselves.
 *
 * Both come as a jsonb object of strings.  create_handler(), alter_handler()
 * and stage() refuse what must not be sent; building a request passes over
 * it once more, so that a row put in by hand cannot forge or inject a
 * header.  Neither SPI nor curl.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_OWN_HEADERS_H
#define OUTBOX_OWN_HEADERS_H

#include "outbox.h"

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

#include "common/fault.h"

#define OUTBOX_MAX_OWN_HEADERS 64
#define OUTBOX_MAX_HEADER_NAME 128
#define OUTBOX_MAX_HEADER_VALUE 4096
#define OUTBOX_MAX_OWN_HEADER_BYTES 8192	/* names and values together */

/* Whose headers: what a producer may set is less than what an operator may. */
typedef enum OutboxHeaderAuthor
{
	OUTBOX_HEADERS_OF_HANDLER,
	OUTBOX_HEADERS_OF_MESSAGE
} OutboxHeaderAuthor;

/*
 * Fill fault and return false unless headers is an object of at most
 * OUTBOX_MAX_OWN_HEADERS strings with names that its author may set, none of
 * them twice, and values without control characters.  NULL is fine.
 */
extern bool outbox_check_headers(const Jsonb *headers, OutboxHeaderAuthor author,
								 OutboxFault *fault);

/* The string value of a key of the object, or NULL; not terminated. */
extern const char *outbox_header_get(const Jsonb *headers, const char *name, size_t *len);

/*
 * Walk over the headers that may be sent.  Start with an iterator of NULL;
 * returns false at the end.  name and value are not terminated.
 */
extern bool outbox_header_next(const Jsonb *headers, OutboxHeaderAuthor author,
							   JsonbIterator **iterator, JsonbValue *name, JsonbValue *value);

/* Append "name: value" and a NUL, the name in lower case, the value made safe. */
extern void outbox_append_own_header(StringInfo out, const char *name, size_t name_len,
									 const char *value, size_t value_len);

#endif							/* OUTBOX_OWN_HEADERS_H */
