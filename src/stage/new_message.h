/*-------------------------------------------------------------------------
 *
 * new_message.h
 *		A message about to be staged, and what makes it acceptable.
 *
 * Promises: a message that passes outbox_check_new_message() breaks no limit and
 * no header; one that does not is described by a fault, never by an error.
 * Pure but for the payload limit, a setting.  Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_NEW_MESSAGE_H
#define OUTBOX_NEW_MESSAGE_H

#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "common/fault.h"
#include "format/message.h"

/* Most bytes of a key, dedupe_key, tenant or correlation_id: each goes into an index or a header. */
#define OUTBOX_NAME_MAX 255

/* How far ahead a message may be scheduled. */
#define OUTBOX_MAX_DELAY_DAYS 36525

/*
 * What every message of one call shares.  NULL means not given; an SQL NULL
 * topic is NULL here too and is refused.
 */
typedef struct OutboxStageArguments
{
	text	   *topic;
	text	   *tenant;
	text	   *correlation_id;
	Jsonb	   *headers;
	bool		has_deliver_at;
	TimestampTz deliver_at;
	Interval   *delay;
	bool		has_min_version;
	int32		min_version;
	Interval   *max_delay;
	bool		has_expires_at;
	TimestampTz expires_at;
	Interval   *ttl;
	bool		is_event;		/* one of outbox's own, whose topics are for nobody else */

	/* set by outbox_check_arguments() */
	TimestampTz staged_at;		/* the clock at the call */
	TimestampTz due_at;			/* never before staged_at */
	TimestampTz end_at;			/* by when it has to have gone out; DT_NOEND: it never expires */
} OutboxStageArguments;

/* What is a message's own. */
typedef struct OutboxNewMessage
{
	const OutboxStageArguments *arguments;
	OutboxPayloadKind kind;
	Jsonb	   *payload;			/* a jsonb value; NULL: it has a body */
	struct varlena *body;		/* a text, or bytes */
	text	   *content_type;	/* of a body */
	text	   *key;
	text	   *dedupe_key;
	bool		reuses_key;		/* an older message has the dedupe_key in its row: set when it is staged */
	text	   *replace_key;
	TimestampTz replace_since;	/* of one with a replace_key: set when it is staged, as is the next */
	pg_uuid_t	id;
} OutboxNewMessage;

/* Check what the messages of a call share, and work out when they are due. */
extern bool outbox_check_arguments(OutboxStageArguments *arguments, TimestampTz now, OutboxFault *fault);

/* Check what is a message's own.  Of a body that is a text it finds out whether it is JSON. */
extern bool outbox_check_new_message(OutboxNewMessage *message, OutboxFault *fault);

/* Say that its payload is too large.  Returns false. */
extern bool outbox_fail_for_size(OutboxFault *fault);

#endif							/* OUTBOX_NEW_MESSAGE_H */
