/*-------------------------------------------------------------------------
 *
 * content_type.h
 *		What a content type says, as HTTP writes it.
 *
 * type/subtype and any number of parameters, as RFC 9110 has media types
 * (section 8.3.1); but nothing outside of visible ASCII and blanks within,
 * so that whatever passes can stand in a header line as it is.
 *
 * Pure, and knows nothing of the server.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_CONTENT_TYPE_H
#define OUTBOX_CONTENT_TYPE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct OutboxContentType
{
	bool		is_json;		/* its subtype is json, or ends with +json */
	bool		other_charset;	/* it has a parameter charset, and that is not UTF-8 */
} OutboxContentType;

/* Read a content type.  False if it is none. */
extern bool outbox_content_type_read(const char *text, size_t len, OutboxContentType *type);

#endif							/* OUTBOX_CONTENT_TYPE_H */
