/*-------------------------------------------------------------------------
 *
 * request.h
 *		From messages to what is sent: body and header lines.
 *
 * A handler's settings are turned into an OutboxRequestForm once; each
 * request is then written with it.  Neither SPI nor curl; the dispatcher is
 * the caller, tests are others.
 *
 * Writing may raise: out of memory, or a character that UTF-8 does not have
 * in a database of another encoding (where it also needs a transaction, see
 * encode.h).
 *
 * Process: the dispatcher.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_REQUEST_H
#define OUTBOX_REQUEST_H

#include <sys/uio.h>

#include "lib/stringinfo.h"

#include "format/format.h"
#include "format/message.h"
#include "format/signature.h"

/* What a handler says of its requests. */
typedef struct OutboxRequestOptions
{
	const char *handler;		/* its name */
	const OutboxFormat *format;
	bool		batch;			/* batch_size > 1: the body is always an array */
	const char *source;			/* where CloudEvents come from, see outbox_event_source() */
	const char *user_agent;
	const char *authorization;	/* value of the header of that name, or NULL */
	const Jsonb *headers;		/* the handler's own, or NULL */
	int			nsecrets;		/* signing secrets, newest first */
	const OutboxSecret *secrets;
} OutboxRequestOptions;

/*
 * What all requests of one handler share.  Everything it points to lies in
 * the memory context in which it was made.
 */
typedef struct OutboxRequestForm
{
	const OutboxFormat *format;
	bool		batch;
	bool		embeds;			/* payloads are embedded in JSON of ours, see payload_text.h */
	const char *source;
	OutboxSigner *signer;		/* NULL: requests are not signed */

	/* "name: value" lines for HttpTarget */
	const char **headers;
	int			nheaders;
	const char *content_type;	/* the line that a message's own may take the place of; NULL: it is among those */
	int			content_type_len;
} OutboxRequestForm;

/*
 * The source of a database's CloudEvents, unless a handler's own header
 * ce-source names another: the URI reference "/outbox/<database>", palloc'd.
 */
extern char *outbox_event_source(const char *database);

/*
 * Copies what it needs.  Raises for a secret that is none, and for batches of
 * a format that has none.
 */
extern OutboxRequestForm *outbox_request_form(const OutboxRequestOptions *options);

/* One message and the number of the attempt about to be made. */
typedef struct OutboxRequestItem
{
	const OutboxMessage *message;
	int			attempt;
} OutboxRequestItem;

/*
 * A request as the transport takes it.  Zero it before its first use; after
 * that it may be written again and again, reusing its memory.  body may
 * point into the message, which must stay as long as the request.  Where
 * large payloads are in it, the body is in parts, of which they are some; they
 * have to be in the form's own shape, embedded or not.
 *
 * What writing needs for a moment it takes from the current context, and
 * frees; what an error leaves behind goes with that context.
 */
typedef struct OutboxRequest
{
	const char **headers;		/* "name: value" lines of this request */
	int			nheaders;
	const char *body;			/* NULL: it is in parts */
	struct iovec *parts;
	int			nparts;
	size_t		body_len;

	MemoryContext context;		/* where its memory lies; NULL: where it is first written */

	/* private */
	StringInfoData buffer;		/* data is NULL before the first use */
	int			max_headers;
	int			max_parts;
} OutboxRequest;

/* How much memory a message, a chunk of that size, takes in a request at most, but for a large payload. */
extern size_t outbox_request_room(const OutboxRequestForm *form, const OutboxMessage *message, size_t message_size);

/*
 * Write the request for nitems messages: one, unless the form is for
 * batches.  now goes into webhook-timestamp.
 */
extern void outbox_request_write(OutboxRequest *request, const OutboxRequestForm *form,
								 const OutboxRequestItem *items, int nitems, TimestampTz now);

/* Give its memory back.  It may be written again. */
extern void outbox_request_free(OutboxRequest *request);

#endif							/* OUTBOX_REQUEST_H */
