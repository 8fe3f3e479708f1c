/*-------------------------------------------------------------------------
 *
 * body.h
 *		A payload that is a text, or bytes, and what makes it acceptable.
 *
 * Promises: what passes can be sent as it is, with its content type as a
 * header.  A text is sent in UTF-8, whatever the database's encoding is, so
 * its content type must not name another charset; one whose content type says
 * JSON is JSON, so that it can be embedded.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_STAGE_BODY_H
#define OUTBOX_STAGE_BODY_H

#include "stage/new_message.h"

/* Most bytes of a content type. */
#define OUTBOX_CONTENT_TYPE_MAX 255

/*
 * Check body and content_type; a text's kind becomes OUTBOX_PAYLOAD_JSON_TEXT
 * if it is that.  Raises, instead of filling fault, for a text that UTF-8
 * does not have a character of, or that is JSON nested too deeply.
 */
extern bool outbox_check_body(OutboxNewMessage *message, OutboxFault *fault);

#endif							/* OUTBOX_STAGE_BODY_H */
