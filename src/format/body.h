/*-------------------------------------------------------------------------
 *
 * body.h
 *		What a message looks like inside a request's body.
 *
 * Used by request.c only.  Appends text in the server's encoding; neither
 * SPI nor curl.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_BODY_H
#define OUTBOX_BODY_H

#include "format/request.h"

/* The body for these items: one message, or an array of all. */
extern void outbox_append_body(StringInfo out, const OutboxRequestForm *form,
							   const OutboxRequestItem *items, int nitems);

/* What the body is, for content-type. */
extern const char *outbox_content_type(OutboxFormat format, bool batch);

#endif							/* OUTBOX_BODY_H */
