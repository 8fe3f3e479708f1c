/*-------------------------------------------------------------------------
 *
 * new_message.c
 *		A message about to be staged, and what makes it acceptable.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "format/own_headers.h"
#include "guc.h"
#include "stage/body.h"
#include "stage/new_message.h"
#include "stage/payload.h"
#include "stage/topic.h"

static const char too_far_hint[] = "A message can be scheduled up to 100 years ahead.";
static const char end_too_far_hint[] = "A message can expire up to 100 years from now; leave it out if it never does.";

static bool
check_name(const char *what, const text *value, OutboxFault *fault)
{
	int			len;

	if (value == NULL)
		return true;
	len = VARSIZE_ANY_EXHDR(value);
	if (len == 0)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"Pass NULL, or leave it out, if there is none.",
							"%s must not be empty", what);
	if (len > OUTBOX_NAME_MAX)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							psprintf("At most %d bytes are allowed; a longer one can be hashed.", OUTBOX_NAME_MAX),
							"%s is too long: %d bytes", what, len);
	return true;
}

/* Does the delay fit, each of its parts by itself, so that adding it cannot overflow? */
static bool
is_bounded(const Interval *delay)
{
	return abs(delay->month) <= OUTBOX_MAX_DELAY_DAYS / 30 &&
		abs(delay->day) <= OUTBOX_MAX_DELAY_DAYS &&
		delay->time <= OUTBOX_MAX_DELAY_DAYS * USECS_PER_DAY &&
		delay->time >= -OUTBOX_MAX_DELAY_DAYS * USECS_PER_DAY;
}

static bool
check_times(OutboxStageArguments *arguments, TimestampTz now, OutboxFault *fault)
{
	TimestampTz latest = now + OUTBOX_MAX_DELAY_DAYS * USECS_PER_DAY;

	arguments->staged_at = now;
	arguments->due_at = now;

	if (arguments->has_deliver_at && arguments->delay)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"deliver_at is a point in time, delay counts from now; pass one of them.",
							"deliver_at and delay cannot be given together");
	if (arguments->has_deliver_at)
	{
		if (TIMESTAMP_NOT_FINITE(arguments->deliver_at) || arguments->deliver_at > latest)
			return outbox_fault(fault, ERRCODE_DATETIME_FIELD_OVERFLOW, too_far_hint,
								"deliver_at is infinite or too far ahead");
		/* The past means now: lanes read forward. */
		arguments->due_at = Max(now, arguments->deliver_at);
	}
	else if (arguments->delay)
	{
		if (is_bounded(arguments->delay))
			arguments->due_at = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
																	   TimestampTzGetDatum(now),
																	   PointerGetDatum(arguments->delay)));
		if (!is_bounded(arguments->delay) || arguments->due_at > latest)
			return outbox_fault(fault, ERRCODE_DATETIME_FIELD_OVERFLOW, too_far_hint,
								"delay is infinite or too long");
		if (arguments->due_at < now)
			return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
								"Leave delay out to deliver at once.",
								"delay must not be negative");
	}
	return true;
}

static bool
check_max_delay(const OutboxStageArguments *arguments, OutboxFault *fault)
{
	TimestampTz latest;

	if (arguments->max_delay == NULL)
		return true;
	if (!is_bounded(arguments->max_delay))
		return outbox_fault(fault, ERRCODE_DATETIME_FIELD_OVERFLOW, too_far_hint,
							"max_delay is infinite or too long");
	latest = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
													 TimestampTzGetDatum(arguments->staged_at),
													 PointerGetDatum(arguments->max_delay)));
	if (latest < arguments->staged_at)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"Leave max_delay out if a message may be put off without end.",
							"max_delay must not be negative");
	return true;
}

/* When the message expires; that has to lie behind the time when it is due. */
static bool
check_end(OutboxStageArguments *arguments, OutboxFault *fault)
{
	TimestampTz latest = arguments->staged_at + OUTBOX_MAX_DELAY_DAYS * USECS_PER_DAY;

	arguments->end_at = DT_NOEND;
	if (arguments->has_expires_at && arguments->ttl)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"expires_at is a point in time, ttl counts from now; pass one of them.",
							"expires_at and ttl cannot be given together");
	if (!arguments->has_expires_at && arguments->ttl == NULL)
		return true;
	if (arguments->has_expires_at)
	{
		if (TIMESTAMP_NOT_FINITE(arguments->expires_at) || arguments->expires_at > latest)
			return outbox_fault(fault, ERRCODE_DATETIME_FIELD_OVERFLOW, end_too_far_hint,
								"expires_at is infinite or too far ahead");
		arguments->end_at = arguments->expires_at;
	}
	else
	{
		if (is_bounded(arguments->ttl))
			arguments->end_at = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
																	   TimestampTzGetDatum(arguments->staged_at),
																	   PointerGetDatum(arguments->ttl)));
		if (!is_bounded(arguments->ttl) || arguments->end_at > latest)
			return outbox_fault(fault, ERRCODE_DATETIME_FIELD_OVERFLOW, end_too_far_hint,
								"ttl is infinite or too long");
	}
	if (arguments->end_at <= arguments->due_at)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"It would never be delivered. It is due now, or when deliver_at or delay say; pass a later end.",
							"the message expires before it is due");
	return true;
}

/* Whoever takes events has to be able to believe them. */
static bool
check_reserved(const OutboxStageArguments *arguments, OutboxFault *fault)
{
	if (arguments->is_event || !outbox_is_event_topic(VARDATA_ANY(arguments->topic), VARSIZE_ANY_EXHDR(arguments->topic)))
		return true;
	return outbox_fault(fault, ERRCODE_RESERVED_NAME,
						"Topics that begin with outbox. are for what outbox itself has to tell; choose another one.",
						"topic \"%.*s\" is reserved", (int) VARSIZE_ANY_EXHDR(arguments->topic), VARDATA_ANY(arguments->topic));
}

bool
outbox_check_arguments(OutboxStageArguments *arguments, TimestampTz now, OutboxFault *fault)
{
	if (arguments->topic == NULL)
		return outbox_fault(fault, ERRCODE_NULL_VALUE_NOT_ALLOWED,
							"A topic is a name such as billing.invoice.paid.",
							"topic must not be NULL");
	if (!outbox_check_topic(VARDATA_ANY(arguments->topic), VARSIZE_ANY_EXHDR(arguments->topic), fault) ||
		!check_reserved(arguments, fault) ||
		!check_name("tenant", arguments->tenant, fault) ||
		!check_name("correlation_id", arguments->correlation_id, fault) ||
		!check_times(arguments, now, fault) ||
		!check_max_delay(arguments, fault) ||
		!check_end(arguments, fault))
		return false;
	if (arguments->headers && !outbox_check_headers(arguments->headers, OUTBOX_HEADERS_OF_MESSAGE, fault))
		return false;
	if (arguments->has_min_version && arguments->min_version < 1)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"Versions of consumers count from 1; leave min_version out if every one may take the message.",
							"min_version must be positive: %d", arguments->min_version);
	return true;
}

bool
outbox_fail_for_size(OutboxFault *fault)
{
	return outbox_fault(fault, ERRCODE_PROGRAM_LIMIT_EXCEEDED,
						"Stage a reference to the data instead, or raise outbox.max_payload_size.",
						"payload is larger than outbox.max_payload_size, %d bytes", outbox_max_payload_size);
}

bool
outbox_check_new_message(OutboxNewMessage *message, OutboxFault *fault)
{
	if (message->kind == OUTBOX_PAYLOAD_JSON && message->payload == NULL)
		return outbox_fault(fault, ERRCODE_NULL_VALUE_NOT_ALLOWED,
							"Leave payload out for an empty object; the JSON value null is allowed: 'null'::jsonb.",
							"payload must not be NULL");
	if (!check_name("key", message->key, fault) ||
		!check_name("dedupe_key", message->dedupe_key, fault) ||
		!check_name("replace_key", message->replace_key, fault))
		return false;
	if (message->dedupe_key && message->replace_key)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"dedupe_key keeps the first message, replace_key the last; pass one of them.",
							"dedupe_key and replace_key cannot be given together");
	if (message->arguments->max_delay && message->replace_key == NULL)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"It bounds for how long messages of one replace_key can put each other off.",
							"max_delay needs a replace_key");
	if (message->kind != OUTBOX_PAYLOAD_JSON)
		return outbox_check_body(message, fault);
	if (outbox_payload_exceeds(message->payload, outbox_max_payload_size))
		return outbox_fail_for_size(fault);
	return true;
}
