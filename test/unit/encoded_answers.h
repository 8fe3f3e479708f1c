/*-------------------------------------------------------------------------
 *
 * encoded_answers.h
 *		Answers in content codings, for the transports' tests.
 *
 * The decoded body is ENCODED_BODY but for the bomb, which is 60,000 zeros.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ENCODED_ANSWERS_H
#define OUTBOX_ENCODED_ANSWERS_H

#include "hostile_server.h"

#define ENCODED_BODY "{\"failed\":[0]}"

#define GZIPPED \
	"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x4a\x4b\xcc\xcc\x49\x4d\x51\xb2\x8a\x36\x88\xad" \
	"\x05\x00\x53\x53\x9f\x39\x0e\x00\x00\x00"
#define GZIPPED_TWICE \
	"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x93\xef\xe6\x60\x00\x01\x26\xe6\xd5\x61\x5e\xde\x67\xce" \
	"\x78\xfa\x06\x6e\xea\x32\xeb\x58\xcb\xca\x10\x1c\x3c\xdf\x92\x0f\x28\x03\x00\x40\x0d\x4e\x11\x22" \
	"\x00\x00\x00"
#define DEFLATED \
	"\x78\xda\xab\x56\x4a\x4b\xcc\xcc\x49\x4d\x51\xb2\x8a\x36\x88\xad\x05\x00\x24\x60\x04\xc4"
#define DEFLATED_BARE \
	"\xab\x56\x4a\x4b\xcc\xcc\x49\x4d\x51\xb2\x8a\x36\x88\xad\x05\x00"
#define BOMB \
	"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xed\xc1\x31\x01\x00\x00\x00\xc2\xa0\xf5\x4f\x6d\x0d\x0f" \
	"\xa0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" \
	"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" \
	"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xbe\x0c\x05\xaa\x27\x51\x60\xea\x00\x00"

#define IN_CODING(name, coding, bytes) \
	{name, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: " coding "\r\n\r\n" bytes, \
		sizeof("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: " coding "\r\n\r\n" bytes) - 1, true}

static const RawAnswer encoded_answers[] = {
	IN_CODING("gzip", "gzip", GZIPPED),
	IN_CODING("x-gzip", "X-GZip", GZIPPED),
	IN_CODING("gzip-members", "gzip", GZIPPED GZIPPED),
	IN_CODING("deflate", "deflate", DEFLATED),
	IN_CODING("deflate-bare", "deflate", DEFLATED_BARE),
	IN_CODING("identity", "identity", ENCODED_BODY),
	IN_CODING("empty", "gzip", ""),
	IN_CODING("bomb", "gzip", BOMB),
	IN_CODING("gzip-twice", "gzip, gzip", GZIPPED_TWICE),
	IN_CODING("gzip-twice-in-two", "gzip\r\nContent-Encoding: gzip", GZIPPED_TWICE),
	IN_CODING("broken", "gzip", ENCODED_BODY),
	IN_CODING("brotli", "br", ENCODED_BODY),
};

#define NENCODED_ANSWERS (sizeof(encoded_answers) / sizeof(encoded_answers[0]))

#endif							/* OUTBOX_ENCODED_ANSWERS_H */
