/*-------------------------------------------------------------------------
 *
 * answer_headers.h
 *		What a receiver may say in the headers of its answer.
 *
 * Reads Retry-After and outbox-outcome.  The bytes come from outside: these
 * parsers are strict, bounded, allocate nothing and raise nothing, and take
 * what they do not understand for silence.  Pure.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ANSWER_HEADERS_H
#define OUTBOX_ANSWER_HEADERS_H

#include "policy/outcome.h"

/*
 * A header value this long may have been cut (HTTP_HEADER_LEN of the
 * transport), so its end cannot be trusted: it is not read at all.
 */
#define OUTBOX_ANSWER_HEADER_MAX 254

/*
 * Retry-After in ms from now: seconds, or an HTTP date.  Returns -1 for a
 * date in the past and for anything that is neither; a number too large to
 * hold becomes PG_INT64_MAX.  value may be NULL.
 */
extern int64 outbox_parse_retry_after(const char *value, int64 now_us);

/*
 * outbox-outcome: "ok", "retry", "fail" or "cancel", then any of
 * "; code=<code>" and "; after=<seconds>".  Other parameters are passed
 * over.  Returns false, with said empty, when the value is not of that form
 * (a parameter given twice, a code that is not one, a negative number).
 * value may be NULL.
 */
extern bool outbox_parse_outcome(const char *value, OutboxDisposition *said);

/*
 * True for a code: 1 to OUTBOX_CODE_LEN - 1 letters, digits, dots, dashes
 * and underscores.  len bytes, which need not end with NUL.
 */
extern bool outbox_code_is_valid(const char *code, size_t len);

#endif							/* OUTBOX_ANSWER_HEADERS_H */
