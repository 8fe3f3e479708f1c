/*-------------------------------------------------------------------------
 *
 * decode.h
 *		Undoes the content coding of a body that was captured.
 *
 * Receivers are asked for none, so this is for those that use one all the
 * same.  One coding only, gzip or deflate, into a buffer of a given size: the
 * work is bounded by what was captured and by what there is room for,
 * whatever a receiver has nested or inflated.  Built without zlib it decodes
 * nothing.  Pure.  Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP_DECODE_H
#define OUTBOX_HTTP_DECODE_H

#include <stddef.h>

typedef enum OutboxDecoded
{
	OUTBOX_DECODED,				/* all of it */
	OUTBOX_DECODED_PART,		/* a beginning: the input ends early, or the room does */
	OUTBOX_NOT_DECODED			/* another coding, several of them, or not in that coding */
} OutboxDecoded;

/* Decode len bytes in that coding into out, which has room for so many; *out_len: how many came. */
extern OutboxDecoded outbox_decode(const char *coding, const char *data, size_t len,
								   char *out, size_t room, size_t *out_len);

#endif							/* OUTBOX_HTTP_DECODE_H */
