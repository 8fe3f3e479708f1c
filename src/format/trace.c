/*-------------------------------------------------------------------------
 *
 * trace.c
 *		W3C Trace Context, level 1.
 *
 * Promises: see trace.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "format/own_headers.h"
#include "format/trace.h"

#define TRACEPARENT_LEN 55
#define TRACESTATE_MAX_LEN 512
#define TRACESTATE_MAX_MEMBERS 32
#define TRACESTATE_MAX_KEY 256
#define TRACESTATE_MAX_VALUE 256

/* Lowercase hexadecimal digits; all_zero tells whether they are all zero. */
static bool
is_hex(const char *value, int len, bool *all_zero)
{
	*all_zero = true;
	for (int i = 0; i < len; i++)
	{
		char		c = value[i];

		if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
			return false;
		if (c != '0')
			*all_zero = false;
	}
	return true;
}

/* version "-" trace-id "-" parent-id "-" trace-flags, and more in later versions */
static bool
is_traceparent(const char *value, size_t len)
{
	bool		zero_version;
	bool		zero_trace;
	bool		zero_parent;
	bool		zero_flags;

	if (len < TRACEPARENT_LEN || len > TRACESTATE_MAX_LEN ||
		value[2] != '-' || value[35] != '-' || value[52] != '-' ||
		!is_hex(value, 2, &zero_version) || !is_hex(value + 3, 32, &zero_trace) ||
		!is_hex(value + 36, 16, &zero_parent) || !is_hex(value + 53, 2, &zero_flags) ||
		zero_trace || zero_parent || memcmp(value, "ff", 2) == 0)
		return false;

	if (len == TRACEPARENT_LEN)
		return true;
	if (zero_version || value[TRACEPARENT_LEN] != '-')
		return false;
	for (size_t i = TRACEPARENT_LEN; i < len; i++)
	{
		if (value[i] <= ' ' || value[i] >= 0x7f)
			return false;
	}
	return true;
}

static bool
is_key_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
		c == '_' || c == '-' || c == '*' || c == '/' || c == '@';
}

/* One "key=value", without blanks around it. */
static bool
is_member(const char *member, size_t len)
{
	size_t		key = 0;

	while (key < len && is_key_char(member[key]))
		key++;
	if (key == 0 || key > TRACESTATE_MAX_KEY || key >= len - 1 || member[key] != '=' ||
		len - key - 1 > TRACESTATE_MAX_VALUE)
		return false;
	for (size_t i = key + 1; i < len; i++)
	{
		if (member[i] < ' ' || member[i] >= 0x7f || member[i] == '=')
			return false;
	}
	return true;
}

/* At most 512 bytes and 32 members; only of use beside a valid traceparent. */
static bool
is_tracestate(const char *value, size_t len)
{
	int			members = 0;
	size_t		pos = 0;

	if (len > TRACESTATE_MAX_LEN)
		return false;
	while (pos < len)
	{
		size_t		end = pos;
		size_t		next;

		while (end < len && value[end] != ',')
			end++;
		next = end + 1;
		while (pos < end && (value[pos] == ' ' || value[pos] == '\t'))
			pos++;
		while (end > pos && (value[end - 1] == ' ' || value[end - 1] == '\t'))
			end--;

		/* Empty members are allowed and count for nothing. */
		if (end > pos && (!is_member(value + pos, end - pos) ||
						  ++members > TRACESTATE_MAX_MEMBERS))
			return false;
		pos = next;
	}
	return members > 0;
}

bool
outbox_find_trace(const Jsonb *headers, OutboxTrace *trace)
{
	trace->parent = outbox_header_get(headers, "traceparent", &trace->parent_len);
	if (trace->parent == NULL || !is_traceparent(trace->parent, trace->parent_len))
		return false;
	trace->state = outbox_header_get(headers, "tracestate", &trace->state_len);
	if (trace->state != NULL && !is_tracestate(trace->state, trace->state_len))
		trace->state = NULL;
	return true;
}
