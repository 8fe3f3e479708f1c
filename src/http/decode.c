/*-------------------------------------------------------------------------
 *
 * decode.c
 *		Undoes the content coding of a body; see decode.h.
 *
 *-------------------------------------------------------------------------
 */
#include "http/decode.h"

#include <string.h>

#include "common/ascii.h"

#ifdef OUTBOX_HAVE_ZLIB

#include <zlib.h>

/* What zlib is told of its input: gzip or zlib's own wrapping, whichever it is; or none. */
#define ANY_WRAPPING (15 + 32)
#define NO_WRAPPING (-15)

static OutboxDecoded
inflate_all(int window_bits, const char *data, size_t len, char *out, size_t room, size_t *out_len)
{
	z_stream	stream;
	int			result;

	memset(&stream, 0, sizeof(stream));
	*out_len = 0;
	if (inflateInit2(&stream, window_bits) != Z_OK)
		return OUTBOX_NOT_DECODED;
	stream.next_in = (unsigned char *) data;
	stream.avail_in = (uInt) len;
	stream.next_out = (unsigned char *) out;
	stream.avail_out = (uInt) room;
	do
	{
		result = inflate(&stream, Z_NO_FLUSH);

		/* A file of gzip may have several members, one behind the other. */
	} while (result == Z_STREAM_END && stream.avail_in > 0 && inflateReset(&stream) == Z_OK);
	*out_len = room - stream.avail_out;
	inflateEnd(&stream);
	if (result == Z_STREAM_END)
		return OUTBOX_DECODED;
	return result == Z_OK || result == Z_BUF_ERROR ? OUTBOX_DECODED_PART : OUTBOX_NOT_DECODED;
}

OutboxDecoded
outbox_decode(const char *coding, const char *data, size_t len, char *out, size_t room, size_t *out_len)
{
	bool		deflate = outbox_same_word(coding, strlen(coding), "deflate");
	OutboxDecoded decoded;

	*out_len = 0;
	if (!deflate && !outbox_same_word(coding, strlen(coding), "gzip") &&
		!outbox_same_word(coding, strlen(coding), "x-gzip"))
		return OUTBOX_NOT_DECODED;
	decoded = inflate_all(ANY_WRAPPING, data, len, out, room, out_len);

	/* What some call deflate lacks the wrapping that belongs to it. */
	if (decoded == OUTBOX_NOT_DECODED && deflate)
		decoded = inflate_all(NO_WRAPPING, data, len, out, room, out_len);
	return decoded;
}

#else

OutboxDecoded
outbox_decode(const char *coding, const char *data, size_t len, char *out, size_t room, size_t *out_len)
{
	*out_len = 0;
	return OUTBOX_NOT_DECODED;
}

#endif
