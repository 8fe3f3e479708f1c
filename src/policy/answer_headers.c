/*-------------------------------------------------------------------------
 *
 * answer_headers.c
 *		Retry-After and outbox-outcome, as a receiver sent them.
 *
 * Promises: see answer_headers.h.  Pure; any process.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/ascii.h"
#include "policy/answer_headers.h"
#include "policy/http_date.h"

/* Part of a header value, not ended by NUL. */
typedef struct Span
{
	const char *start;
	size_t		len;
} Span;

static bool
is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static Span
trim(const char *value)
{
	Span		span;

	while (is_blank(*value))
		value++;
	span.start = value;
	span.len = strlen(value);
	while (span.len > 0 && is_blank(span.start[span.len - 1]))
		span.len--;
	return span;
}

static bool
span_is(Span span, const char *text)
{
	return outbox_same_word(span.start, span.len, text);
}

/* Decimal seconds as ms.  False unless all of it is digits; saturates. */
static bool
read_seconds(Span span, int64 *ms)
{
	int64		seconds = 0;

	if (span.len == 0)
		return false;
	for (size_t i = 0; i < span.len; i++)
	{
		if (!outbox_is_digit(span.start[i]))
			return false;
		if (seconds < PG_INT64_MAX / 20000)
			seconds = seconds * 10 + (span.start[i] - '0');
		else
			seconds = PG_INT64_MAX / 1000 + 1;
	}
	*ms = seconds > PG_INT64_MAX / 1000 ? PG_INT64_MAX : seconds * 1000;
	return true;
}

int64
outbox_parse_retry_after(const char *value, int64 now_us)
{
	char		date[OUTBOX_ANSWER_HEADER_MAX + 1];
	Span		span;
	int64		ms;
	int64		then_s;

	if (value == NULL || strlen(value) > OUTBOX_ANSWER_HEADER_MAX)
		return -1;
	span = trim(value);
	if (read_seconds(span, &ms))
		return ms;

	memcpy(date, span.start, span.len);
	date[span.len] = '\0';
	if (!outbox_parse_http_date(date, now_us / 1000000, &then_s))
		return -1;

	/* Four-digit years: neither product nor difference can overflow. */
	ms = then_s * 1000 - now_us / 1000;
	return ms > 0 ? ms : -1;
}

bool
outbox_code_is_valid(const char *code, size_t len)
{
	if (len == 0 || len >= OUTBOX_CODE_LEN)
		return false;
	for (size_t i = 0; i < len; i++)
	{
		if (!outbox_is_alnum(code[i]) && code[i] != '_' && code[i] != '-' && code[i] != '.')
			return false;
	}
	return true;
}

static OutboxAction
read_action(Span word)
{
	if (span_is(word, "ok"))
		return OUTBOX_ACTION_OK;
	if (span_is(word, "retry"))
		return OUTBOX_ACTION_RETRY;
	if (span_is(word, "fail"))
		return OUTBOX_ACTION_FAIL;
	if (span_is(word, "cancel"))
		return OUTBOX_ACTION_CANCEL;
	return OUTBOX_ACTION_NONE;
}

/* Take a token, and white space before and after it. */
static bool
take_token(Span *rest, Span *token)
{
	const char *end = rest->start + rest->len;
	const char *pos = rest->start;

	while (pos < end && is_blank(*pos))
		pos++;
	token->start = pos;
	while (pos < end && outbox_is_token_char(*pos))
		pos++;
	token->len = pos - token->start;
	while (pos < end && is_blank(*pos))
		pos++;

	rest->start = pos;
	rest->len = end - pos;
	return token->len > 0;
}

static bool
take_char(Span *rest, char c)
{
	if (rest->len == 0 || rest->start[0] != c)
		return false;
	rest->start++;
	rest->len--;
	return true;
}

/* Take over one parameter.  False if it is given twice or makes no sense. */
static bool
read_parameter(Span name, Span value, OutboxDisposition *said)
{
	if (span_is(name, "code"))
	{
		if (said->code[0] != '\0' || !outbox_code_is_valid(value.start, value.len))
			return false;
		memcpy(said->code, value.start, value.len);
		said->code[value.len] = '\0';
	}
	else if (span_is(name, "after"))
		return said->after < 0 && read_seconds(value, &said->after);
	return true;
}

static bool
read_outcome(Span rest, OutboxDisposition *said)
{
	Span		name;
	Span		value;

	if (!take_token(&rest, &name))
		return false;
	said->action = read_action(name);
	if (said->action == OUTBOX_ACTION_NONE)
		return false;

	while (rest.len > 0)
	{
		if (!take_char(&rest, ';') || !take_token(&rest, &name) ||
			!take_char(&rest, '=') || !take_token(&rest, &value) ||
			!read_parameter(name, value, said))
			return false;
	}
	return true;
}

bool
outbox_parse_outcome(const char *value, OutboxDisposition *said)
{
	memset(said, 0, sizeof(*said));
	said->after = -1;

	if (value == NULL || strlen(value) > OUTBOX_ANSWER_HEADER_MAX)
		return false;
	if (read_outcome(trim(value), said))
		return true;

	memset(said, 0, sizeof(*said));
	said->after = -1;
	return false;
}
