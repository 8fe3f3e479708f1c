/*-------------------------------------------------------------------------
 *
 * own_headers.c
 *		Headers that handlers and messages bring themselves.
 *
 * Promises: see own_headers.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "common/ascii.h"
#include "format/encode.h"
#include "format/own_headers.h"

/*
 * Names that nobody sets: they frame the request or belong to one connection
 * (set by the transport), say how the answer may be written, or say what only
 * the outbox knows.  A name that ends with a dash stands for all that begin
 * with it.
 */
static const char *const reserved_names[] = {
	"accept-encoding", "connection", "content-length", "expect", "host", "http2-settings",
	"idempotency-key", "keep-alive", "outbox-", "proxy-", "te", "trailer", "transfer-encoding",
	"upgrade", "webhook-"
};

/*
 * Names that only a handler's operator sets, for what they say is not a
 * producer's to say: credentials; what the body is, and what is wanted for an
 * answer; the attributes of a CloudEvent; and, to the proxies and frameworks
 * on the way, another method, URL, host or client than the request's own, or
 * that a browser or a cache asks.
 */
static const char *const operator_names[] = {
	"accept", "authorization", "ce-", "cf-", "content-encoding", "content-type", "cookie",
	"fastly-", "forwarded", "from", "if-", "origin", "range", "referer", "remote-", "sec-",
	"true-client-", "user-agent", "via", "x-client-", "x-cluster-", "x-envoy-", "x-forwarded",
	"x-forwarded-", "x-host", "x-http-", "x-method", "x-method-", "x-original-", "x-originating-",
	"x-proxy-", "x-real-", "x-remote-", "x-requested-with", "x-rewrite-"
};

static bool
name_is(const char *name, size_t len, const char *reserved)
{
	size_t		reserved_len = strlen(reserved);

	if (reserved[reserved_len - 1] == '-')
		return len >= reserved_len && outbox_same_start(name, reserved, reserved_len);
	return outbox_same_word(name, len, reserved);
}

static bool
is_among(const char *name, size_t len, const char *const *names, int nnames)
{
	for (int i = 0; i < nnames; i++)
	{
		if (name_is(name, len, names[i]))
			return true;
	}
	return false;
}

/* A name as HTTP allows it: a token. */
static bool
is_name(const char *name, size_t len)
{
	if (len == 0 || len > OUTBOX_MAX_HEADER_NAME)
		return false;
	for (size_t i = 0; i < len; i++)
	{
		if (!outbox_is_token_char(name[i]))
			return false;
	}
	return true;
}

/* The one CloudEvents attribute that is an operator's to set: where events come from. */
static bool
is_source(const char *name, size_t len)
{
	return name_is(name, len, "ce-source");
}

/* True if the author may set a header of this name (len bytes, any case). */
static bool
header_is_allowed(const char *name, size_t len, OutboxHeaderAuthor author)
{
	if (!is_name(name, len) ||
		is_among(name, len, reserved_names, lengthof(reserved_names)))
		return false;
	if (author == OUTBOX_HEADERS_OF_HANDLER)
		return is_source(name, len) || !name_is(name, len, "ce-");
	return !is_among(name, len, operator_names, lengthof(operator_names));
}

const char *
outbox_header_get(const Jsonb *headers, const char *name, size_t *len)
{
	JsonbValue	value;

	if (headers == NULL || !JB_ROOT_IS_OBJECT(headers) ||
		getKeyJsonValueFromContainer((JsonbContainer *) &headers->root, name,
									 (int) strlen(name), &value) == NULL ||
		value.type != jbvString)
		return NULL;
	*len = value.val.string.len;
	return value.val.string.val;
}

bool
outbox_header_next(const Jsonb *headers, OutboxHeaderAuthor author,
				   JsonbIterator **iterator, JsonbValue *name, JsonbValue *value)
{
	JsonbIteratorToken token;

	if (*iterator == NULL)
	{
		if (headers == NULL || !JB_ROOT_IS_OBJECT(headers))
			return false;
		*iterator = JsonbIteratorInit((JsonbContainer *) &headers->root);
	}
	while ((token = JsonbIteratorNext(iterator, name, true)) != WJB_DONE)
	{
		if (token != WJB_KEY)
			continue;
		if (JsonbIteratorNext(iterator, value, true) == WJB_VALUE &&
			value->type == jbvString &&
			header_is_allowed(name->val.string.val, name->val.string.len, author))
			return true;
	}
	return false;
}

void
outbox_append_own_header(StringInfo out, const char *name, size_t name_len,
						 const char *value, size_t value_len)
{
	enlargeStringInfo(out, (int) (name_len + value_len + 4));
	for (size_t i = 0; i < name_len; i++)
		appendStringInfoCharMacro(out, outbox_lower(name[i]));
	appendBinaryStringInfo(out, ": ", 2);
	outbox_append_header_value(out, value, value_len, OUTBOX_VALUE_WRITTEN);
	appendStringInfoCharMacro(out, '\0');
}

static bool
refuse_name(const JsonbValue *name, OutboxHeaderAuthor author, OutboxFault *fault)
{
	const char *text = name->val.string.val;
	int			len = name->val.string.len;

	if (!is_name(text, len))
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							psprintf("A header name is 1 to %d letters, digits, dashes or underscores.",
									 OUTBOX_MAX_HEADER_NAME),
							"invalid header name \"%.*s\"", len, text);
	if (name_is(text, len, "authorization"))
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"Use the handler's option authorization, which is kept secret.",
							"header \"%.*s\" is reserved", len, text);
	if (author == OUTBOX_HEADERS_OF_MESSAGE && name_is(text, len, "content-type"))
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"Pass it as content_type to outbox.stage_text() or outbox.stage_bytes(), or set it on the handler for its JSON.",
							"header \"%.*s\" cannot be set by a message", len, text);
	if (author == OUTBOX_HEADERS_OF_MESSAGE &&
		header_is_allowed(text, len, OUTBOX_HEADERS_OF_HANDLER))
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"Set it on the handler.",
							"header \"%.*s\" cannot be set by a message", len, text);
	return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
						"It is set by the outbox itself; use another name.",
						"header \"%.*s\" is reserved", len, text);
}

static bool
check_value(const JsonbValue *name, const JsonbValue *value, OutboxFault *fault)
{
	const char *text = name->val.string.val;
	int			len = name->val.string.len;

	if (value->type != jbvString)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"Write it as a JSON string, for example {\"x-priority\": \"5\"}.",
							"value of header \"%.*s\" is not a string", len, text);
	if (value->val.string.len == 0)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"Leave the header out instead.",
							"value of header \"%.*s\" is empty", len, text);
	if (value->val.string.len > OUTBOX_MAX_HEADER_VALUE)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							psprintf("At most %d bytes are allowed.", OUTBOX_MAX_HEADER_VALUE),
							"value of header \"%.*s\" is too long: %d bytes",
							len, text, value->val.string.len);
	for (int i = 0; i < value->val.string.len; i++)
	{
		unsigned char c = (unsigned char) value->val.string.val[i];

		if ((c < ' ' && c != '\t') || c == 0x7f)
			return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
								"Line breaks and other control characters cannot be sent in a header.",
								"value of header \"%.*s\" contains a control character", len, text);
	}
	return true;
}

/* HTTP does not tell X-Source from x-source; JSON does. */
static bool
check_not_repeated(const JsonbValue *names, int nnames, OutboxFault *fault)
{
	const JsonbValue *last = &names[nnames - 1];

	for (int i = 0; i < nnames - 1; i++)
	{
		if (names[i].val.string.len == last->val.string.len &&
			outbox_same_start(names[i].val.string.val, last->val.string.val, last->val.string.len))
			return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
								"Header names do not depend on upper and lower case.",
								"header \"%.*s\" is given twice",
								last->val.string.len, last->val.string.val);
	}
	return true;
}

bool
outbox_check_headers(const Jsonb *headers, OutboxHeaderAuthor author, OutboxFault *fault)
{
	JsonbValue	names[OUTBOX_MAX_OWN_HEADERS];
	JsonbIterator *iterator;
	JsonbIteratorToken token;
	JsonbValue	name;
	JsonbValue	value;
	int			nheaders = 0;
	int			bytes = 0;

	if (headers == NULL)
		return true;
	if (!JB_ROOT_IS_OBJECT(headers))
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							"Write them as names and strings, for example {\"x-priority\": \"5\"}.",
							"headers must be a JSON object");
	if (JB_ROOT_COUNT(headers) > OUTBOX_MAX_OWN_HEADERS)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							psprintf("At most %d are allowed.", OUTBOX_MAX_OWN_HEADERS),
							"too many headers: %d", (int) JB_ROOT_COUNT(headers));

	iterator = JsonbIteratorInit((JsonbContainer *) &headers->root);
	while ((token = JsonbIteratorNext(&iterator, &name, true)) != WJB_DONE)
	{
		if (token != WJB_KEY)
			continue;
		(void) JsonbIteratorNext(&iterator, &value, true);
		names[nheaders++] = name;
		/* A handler's authorization could be sent, but would be there for all to read. */
		if (name_is(name.val.string.val, name.val.string.len, "authorization") ||
			!header_is_allowed(name.val.string.val, name.val.string.len, author))
			return refuse_name(&name, author, fault);
		if (!check_value(&name, &value, fault) || !check_not_repeated(names, nheaders, fault))
			return false;
		bytes += name.val.string.len + value.val.string.len;
	}
	if (bytes > OUTBOX_MAX_OWN_HEADER_BYTES)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							psprintf("Names and values together may have %d bytes.",
									 OUTBOX_MAX_OWN_HEADER_BYTES),
							"headers are too long: %d bytes", bytes);
	return true;
}
