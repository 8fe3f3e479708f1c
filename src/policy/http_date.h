/*-------------------------------------------------------------------------
 *
 * http_date.h
 *		The three forms of an HTTP date (RFC 9110, section 5.6.7).
 *
 * Pure: allocates nothing, raises nothing, never reads past the string's
 * NUL.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_DATE_H
#define OUTBOX_HTTP_DATE_H

#include "outbox.h"

/*
 * Read "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT" or
 * "Sun Nov  6 08:49:37 1994" into Unix seconds.  Returns false for anything
 * else; the caller has trimmed white space.  now_s (Unix seconds) settles
 * the century of a two-digit year: one that looks more than 50 years ahead
 * is in the past.
 */
extern bool outbox_parse_http_date(const char *text, int64 now_s, int64 *unix_seconds);

#endif							/* OUTBOX_HTTP_DATE_H */
