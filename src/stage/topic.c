/*-------------------------------------------------------------------------
 *
 * topic.c
 *		Topics and the patterns handlers take them by.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "stage/topic.h"

static const char topic_hint[] =
"A topic is lowercase words of a-z, 0-9, \"_\" and \"-\" joined by dots, such as billing.invoice.paid.";
static const char pattern_hint[] =
"A pattern is a topic (invoice.paid), a topic followed by .* (invoice.*) or * for every topic.";

static inline bool
is_segment_char(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Segments joined by single dots, none of them empty. */
static bool
has_topic_form(const char *topic, int len)
{
	bool		in_segment = false;

	for (int i = 0; i < len; i++)
	{
		if (is_segment_char(topic[i]))
			in_segment = true;
		else if (topic[i] == '.' && in_segment)
			in_segment = false;
		else
			return false;
	}
	return in_segment;
}

static bool
check_length(const char *what, const char *hint, int len, OutboxFault *fault)
{
	if (len == 0)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE, hint,
							"%s must not be empty", what);
	if (len > OUTBOX_TOPIC_MAX)
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE,
							psprintf("At most %d bytes are allowed.", OUTBOX_TOPIC_MAX),
							"%s is too long: %d bytes", what, len);
	return true;
}

bool
outbox_check_topic(const char *topic, int len, OutboxFault *fault)
{
	if (!check_length("topic", topic_hint, len, fault))
		return false;
	if (!has_topic_form(topic, len))
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE, topic_hint,
							"invalid topic: \"%.*s\"", len, topic);
	return true;
}

bool
outbox_check_pattern(const char *pattern, int len, OutboxFault *fault)
{
	int			topic_len = len;

	if (!check_length("topic pattern", pattern_hint, len, fault))
		return false;
	if (len == 1 && pattern[0] == '*')
		return true;
	if (len > 2 && pattern[len - 1] == '*' && pattern[len - 2] == '.')
		topic_len = len - 2;
	if (!has_topic_form(pattern, topic_len))
		return outbox_fault(fault, ERRCODE_INVALID_PARAMETER_VALUE, pattern_hint,
							"invalid topic pattern: \"%.*s\"", len, pattern);
	return true;
}

bool
outbox_is_event_topic(const char *topic, int len)
{
	static const char own[] = "outbox";
	const int	own_len = sizeof(own) - 1;

	return len >= own_len && memcmp(topic, own, own_len) == 0 && (len == own_len || topic[own_len] == '.');
}

int
outbox_pattern_key(const char *pattern, int len)
{
	return pattern[len - 1] == '*' ? len - 1 : len;
}

bool
outbox_next_topic_key(const char *topic, int len, int *position, int *key_len)
{
	/* Position 0 stands for "*", len for the topic itself, len + 1 for the end. */
	int			i = *position;

	if (i > len)
		return false;
	/* Events are not for "*". */
	if (i == 0 && outbox_is_event_topic(topic, len))
		i = Min(len, (int) strlen("outbox."));
	*key_len = i;
	if (i == len)
	{
		*position = len + 1;
		return true;
	}
	for (i++; i < len; i++)
	{
		if (topic[i - 1] == '.')
			break;
	}
	*position = i;
	return true;
}

bool
outbox_pattern_takes(const char *pattern, int pattern_len, const char *topic, int topic_len)
{
	int			key_len = outbox_pattern_key(pattern, pattern_len);

	if (key_len == pattern_len)
		return topic_len == key_len && memcmp(pattern, topic, key_len) == 0;
	if (key_len == 0)
		return !outbox_is_event_topic(topic, topic_len);
	return topic_len > key_len && memcmp(pattern, topic, key_len) == 0;
}
