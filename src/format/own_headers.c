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

#include "format/encode.h"
#include "format/own_headers.h"

/*
 * Names that nobody sets: they frame the request or belong to one connection
 * (set by the transport), or say what only the outbox knows.  A name that
 * ends with a dash stands for all that begin with it.
 */
static const char *const reserved_names[] = {
	"connection", "content-length", "expect", "host", "http2-settings", "idempotency-key",
	"keep-alive", "outbox-", "proxy-", "te", "trailer", "transfer-encoding", "upgrade",
	"webhook-"
};

/*
 * Names that only a handler's operator sets: credentials, what the body is,
 * and the attributes of a CloudEvent.
 */
static const char *const operator_names[] = {
	"authorization", "ce-", "content-encoding", "content-type", "cookie", "user-agent"
};

static bool
name_is(const char *name, size_t len, const char *reserved)
{
	size_t		reserved_len = strlen(reserved);

	if (reserved[reserved_len - 1] == '-')
		return len >= reserved_len && pg_strncasecmp(name, reserved, reserved_len) == 0;
	return len == reserved_len && pg_strncasecmp(name, reserved, len) == 0;
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
		char		c = name[i];

		if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
			  (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL)))
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

bool
outbox_header_is_allowed(const char *name, size_t len, OutboxHeaderAuthor author)
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
			outbox_header_is_allowed(name->val.string.val, name->val.string.len, author))
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
		appendStringInfoCharMacro(out, pg_ascii_tolower((unsigned char) name[i]));
	appendBinaryStringInfo(out, ": ", 2);
	outbox_append_header_value(out, value, value_len, OUTBOX_VALUE_WRITTEN);
	appendStringInfoCharMacro(out, '\0');
}

static void
refuse_name(const JsonbValue *name, OutboxHeaderAuthor author)
{
	char	   *text = pnstrdup(name->val.string.val, name->val.string.len);

	if (!is_name(text, name->val.string.len))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid header name \"%s\"", text),
				 errhint("A header name is 1 to %d letters, digits, dashes or underscores.",
						 OUTBOX_MAX_HEADER_NAME)));
	if (author == OUTBOX_HEADERS_OF_MESSAGE &&
		outbox_header_is_allowed(text, name->val.string.len, OUTBOX_HEADERS_OF_HANDLER))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("header \"%s\" cannot be set by a message", text),
				 errhint("Set it on the handler.")));
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("header \"%s\" is reserved", text),
			 errhint("It is set by the outbox itself; use another name.")));
}

static void
check_value(const JsonbValue *name, const JsonbValue *value)
{
	char	   *text = pnstrdup(name->val.string.val, name->val.string.len);

	if (value->type != jbvString)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("value of header \"%s\" is not a string", text),
				 errhint("Write it as a JSON string, for example {\"x-priority\": \"5\"}.")));
	if (value->val.string.len > OUTBOX_MAX_HEADER_VALUE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("value of header \"%s\" is too long", text),
				 errdetail("It has %d bytes; at most %d are allowed.",
						   value->val.string.len, OUTBOX_MAX_HEADER_VALUE)));
	for (int i = 0; i < value->val.string.len; i++)
	{
		unsigned char c = (unsigned char) value->val.string.val[i];

		if ((c < ' ' && c != '\t') || c == 0x7f)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("value of header \"%s\" contains a control character", text),
					 errhint("Line breaks and other control characters cannot be sent in a header.")));
	}
}

void
outbox_check_headers(const Jsonb *headers, OutboxHeaderAuthor author)
{
	JsonbIterator *iterator;
	JsonbIteratorToken token;
	JsonbValue	name;
	JsonbValue	value;
	int			nheaders = 0;

	if (headers == NULL)
		return;
	if (!JB_ROOT_IS_OBJECT(headers))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("headers must be a JSON object"),
				 errhint("Write them as names and strings, for example {\"x-priority\": \"5\"}.")));

	iterator = JsonbIteratorInit((JsonbContainer *) &headers->root);
	while ((token = JsonbIteratorNext(&iterator, &name, true)) != WJB_DONE)
	{
		if (token != WJB_KEY)
			continue;
		(void) JsonbIteratorNext(&iterator, &value, true);
		if (!outbox_header_is_allowed(name.val.string.val, name.val.string.len, author))
			refuse_name(&name, author);
		check_value(&name, &value);
		nheaders++;
	}
	if (nheaders > OUTBOX_MAX_OWN_HEADERS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("too many headers"),
				 errdetail("There are %d; at most %d are allowed.",
						   nheaders, OUTBOX_MAX_OWN_HEADERS)));
}
