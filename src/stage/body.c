/*-------------------------------------------------------------------------
 *
 * body.c
 *		A payload that is a text, or bytes, and what makes it acceptable.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "compat.h"
#include "format/content_type.h"
#include "format/encode.h"
#include "guc.h"
#include "stage/body.h"

/* One character of a server encoding is at most so many times as long in UTF-8. */
#define MAX_GROWTH 4

/* Its length as it is sent, but for base64. */
static size_t
length_to_send(const OutboxNewMessage *message)
{
	const char *data = VARDATA_ANY(message->body);
	size_t		len = VARSIZE_ANY_EXHDR(message->body);
	size_t		utf8_len;
	const char *utf8;

	if (message->kind == OUTBOX_PAYLOAD_BYTES || len > (size_t) outbox_max_payload_size ||
		len * MAX_GROWTH <= (size_t) outbox_max_payload_size)
		return len;
	utf8 = outbox_to_utf8(data, len, &utf8_len);
	if (utf8 != data)
		pfree((void *) utf8);
	return utf8_len;
}

static bool
check_content_type(const OutboxNewMessage *message, OutboxContentType *type, OutboxFault *fault)
{
	const char *text = VARDATA_ANY(message->content_type);
	int			len = VARSIZE_ANY_EXHDR(message->content_type);

	if (len > OUTBOX_CONTENT_TYPE_MAX)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							psprintf("At most %d bytes are allowed.", OUTBOX_CONTENT_TYPE_MAX),
							"content_type is too long: %d bytes", len);
	if (!outbox_content_type_read(text, len, type))
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"A content type is type/subtype and parameters, as HTTP writes it: application/xml, or text/csv; charset=utf-8; header=present.",
							"content_type is not valid");
	if (message->kind == OUTBOX_PAYLOAD_TEXT && type->other_charset)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"A text is sent in UTF-8. For another charset pass convert_to(payload, charset) to outbox.stage_bytes().",
							"content_type of a text must not have a charset other than utf-8");
	return true;
}

bool
outbox_check_body(OutboxNewMessage *message, OutboxFault *fault)
{
	OutboxContentType type;

	if (message->body == NULL)
		return outbox_fault(fault, ERRCODE_NULL_VALUE_NOT_ALLOWED,
							"An empty one is allowed.",
							"payload must not be NULL");
	if (message->content_type == NULL)
		return outbox_fault(fault, ERRCODE_NULL_VALUE_NOT_ALLOWED,
							"Leave content_type out for the default.",
							"content_type must not be NULL");
	if (!check_content_type(message, &type, fault))
		return false;
	if (length_to_send(message) > (size_t) outbox_max_payload_size)
		return outbox_fail_for_size(fault);
	if (message->kind == OUTBOX_PAYLOAD_BYTES || !type.is_json)
		return true;
	if (!outbox_is_json(VARDATA_ANY(message->body), VARSIZE_ANY_EXHDR(message->body), GetDatabaseEncoding()))
		return outbox_fault(fault, ERRCODE_INVALID_TEXT_REPRESENTATION,
							"Its content_type says that it is; payload::json says what is wrong with it. Pass another content_type if it is not meant to be JSON.",
							"payload is not JSON");
	message->kind = OUTBOX_PAYLOAD_JSON_TEXT;
	return true;
}
