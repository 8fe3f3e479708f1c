/*-------------------------------------------------------------------------
 *
 * format.h
 *		The formats in which messages are sent.
 *
 * A format is one row of the table in format.c: its name, what it says of the
 * body, how a message looks in it, and the header lines that it adds.
 * Nothing else in the source knows one format from another; which of them
 * there are, SQL asks with outbox_internal.formats().
 *
 * Neither SPI nor curl.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_FORMAT_H
#define OUTBOX_FORMAT_H

#include "lib/stringinfo.h"

#include "format/message.h"

struct OutboxRequest;
struct OutboxRequestForm;

typedef struct OutboxFormat
{
	const char *name;			/* as the option format has it */

	/*
	 * The header content-type: of one message, and of an array of them.  NULL:
	 * it cannot be sent in batches.  A message's own takes its place where the
	 * body is nothing but the payload.
	 */
	const char *content_type;
	const char *batch_content_type;
	bool		own_content_type;	/* a handler's own header content-type takes its place */

	/*
	 * A message is its payload, as payload_text.h writes it, between what these
	 * two say.  The first appends what stands before, in the server's
	 * encoding; source is where events come from.  NULL: nothing stands
	 * before or behind: it is sent as it is, and need not be copied.
	 */
	void		(*append_head) (StringInfo out, const OutboxMessage *message, const char *source);
	const char *tail;

	/*
	 * The format of an item of a batch; NULL: this one.  Each item says which
	 * message it is, for a batch's own id says nothing of its items once they
	 * come again in other company.
	 */
	const char *batch_items;

	/* Header lines that are the same for all requests of a handler; NULL: none. */
	void		(*write_form_lines) (struct OutboxRequest *lines, const struct OutboxRequestForm *form);

	/* Header lines of one message, when it is sent by itself; NULL: none. */
	void		(*write_message_lines) (struct OutboxRequest *request, const OutboxMessage *message);
} OutboxFormat;

/* The format of that name, NULL if there is none. */
extern const OutboxFormat *outbox_format_by_name(const char *name);

/* The formats one after the other, counted from 0; NULL behind the last. */
extern const OutboxFormat *outbox_format_at(int index);

#endif							/* OUTBOX_FORMAT_H */
