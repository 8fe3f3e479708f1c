/*-------------------------------------------------------------------------
 *
 * topic_test.c
 *		Topics, patterns, and that filing patterns under keys finds the same
 *		ones as matching them one by one.
 *
 * Takes every string of a small alphabet up to a length, as a topic and as a
 * pattern.  Plain C; run by "make unit-check".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "handler/url.h"
#include "stage/topic.h"

#include "tap.h"

#define ALPHABET "a1.*"
#define MAX_LEN 6
#define MAX_STRINGS 6000

static char strings[MAX_STRINGS][MAX_LEN + 1];
static int	nstrings = 0;

/* What the checkers say is wrong; the server's version would format it. */
bool
outbox_fault(OutboxFault *fault, int sqlstate, const char *hint, const char *format, ...)
{
	fault->sqlstate = sqlstate;
	fault->message = format;
	fault->hint = hint;
	return false;
}

static void
make_strings(char *prefix, int len)
{
	if (len > 0)
		memcpy(strings[nstrings++], prefix, len + 1);
	if (len == MAX_LEN)
		return;
	for (const char *c = ALPHABET; *c; c++)
	{
		prefix[len] = *c;
		prefix[len + 1] = '\0';
		make_strings(prefix, len + 1);
	}
	prefix[len] = '\0';
}

/* The grammar once more, by another way: split at dots. */
static bool
is_topic(const char *text)
{
	const char *segment = text;

	for (;;)
	{
		size_t		len = strspn(segment, "a1");

		if (len == 0)
			return false;
		if (segment[len] == '\0')
			return true;
		if (segment[len] != '.')
			return false;
		segment += len + 1;
	}
}

static bool
is_pattern(const char *text)
{
	char		copy[MAX_LEN + 1];
	size_t		len = strlen(text);

	if (strcmp(text, "*") == 0)
		return true;
	strcpy(copy, text);
	if (len > 2 && strcmp(&copy[len - 2], ".*") == 0)
		copy[len - 2] = '\0';
	return is_topic(copy);
}

/* What a pattern takes, as the documentation words it. */
static bool
takes(const char *pattern, const char *topic)
{
	size_t		len = strlen(pattern);

	if (strcmp(pattern, "*") == 0)
		return true;
	if (pattern[len - 1] != '*')
		return strcmp(pattern, topic) == 0;
	return strlen(topic) > len - 1 && strncmp(topic, pattern, len - 1) == 0;
}

/* Is the pattern filed under one of the topic's keys? */
static bool
found_by_key(const char *pattern, const char *topic)
{
	int			key_len = outbox_pattern_key(pattern, strlen(pattern));
	int			position = 0;
	int			len;
	int			hits = 0;

	while (outbox_next_topic_key(topic, strlen(topic), &position, &len))
	{
		if (len == key_len && memcmp(topic, pattern, len) == 0)
			hits++;
	}
	return hits == 1;
}

static void
test_grammar(void)
{
	OutboxFault fault;
	int			topics = 0;
	int			wrong = 0;

	for (int i = 0; i < nstrings; i++)
	{
		bool		topic = outbox_check_topic(strings[i], strlen(strings[i]), &fault);
		bool		pattern = outbox_check_pattern(strings[i], strlen(strings[i]), &fault);

		topics += topic;
		if (topic != is_topic(strings[i]) || pattern != is_pattern(strings[i]))
			wrong++;
	}
	ok(nstrings == 4 + 16 + 64 + 256 + 1024 + 4096, "all strings were made: %d", nstrings);
	ok(topics > 100, "there are topics among them: %d", topics);
	is_int(wrong, 0, "the grammar of topics and patterns");
}

static void
test_matching(void)
{
	OutboxFault fault;
	int			matches = 0;
	int			wrong = 0;

	for (int p = 0; p < nstrings; p++)
	{
		if (!outbox_check_pattern(strings[p], strlen(strings[p]), &fault))
			continue;
		for (int t = 0; t < nstrings; t++)
		{
			bool		expected;

			if (!outbox_check_topic(strings[t], strlen(strings[t]), &fault))
				continue;
			expected = takes(strings[p], strings[t]);
			matches += expected;
			if (found_by_key(strings[p], strings[t]) != expected ||
				outbox_pattern_takes(strings[p], strlen(strings[p]), strings[t], strlen(strings[t])) != expected)
				wrong++;
		}
	}
	ok(matches > 1000, "there are matches: %d", matches);
	is_int(wrong, 0, "patterns take what they should, one by one and by key");
}

/* Of "*" is everything but what outbox itself tells. */
static void
test_events(void)
{
	static const struct
	{
		const char *topic;
		bool		is_event;
	}			topics[] = {
		{"outbox", true}, {"outbox.a", true}, {"outbox.a.b", true},
		{"outboxes", false}, {"outbox-a.b", false}, {"outbo", false}, {"o", false}, {"a.outbox", false}, {"a.outbox.b", false}
	};
	static const char *const patterns[] = {"*", "outbox", "outbox.*", "outbox.a", "outbox.a.*", "outbox.a.b", "outboxes", "outbox-a.*", "a.*"};
	int			wrong = 0;

	for (int t = 0; t < lengthof(topics); t++)
	{
		const char *topic = topics[t].topic;

		if (outbox_is_event_topic(topic, strlen(topic)) != topics[t].is_event)
			wrong++;
		for (int p = 0; p < lengthof(patterns); p++)
		{
			bool		expected = takes(patterns[p], topic) && !(topics[t].is_event && p == 0);

			if (found_by_key(patterns[p], topic) != expected ||
				outbox_pattern_takes(patterns[p], strlen(patterns[p]), topic, strlen(topic)) != expected)
				wrong++;
		}
	}
	is_int(wrong, 0, "events are for those who name outbox");
	ok(outbox_is_event_topic("outbox.*", 8) && !outbox_is_event_topic("*", 1), "and so is their pattern");
}

static void
test_limits(void)
{
	char		longest[OUTBOX_TOPIC_MAX + 2];
	OutboxFault fault;
	int			position = 0;
	int			len;
	int			keys = 0;
	int			wrong = 0;

	memset(longest, 'a', sizeof(longest));
	ok(outbox_check_topic(longest, OUTBOX_TOPIC_MAX, &fault), "the longest topic");
	ok(!outbox_check_topic(longest, OUTBOX_TOPIC_MAX + 1, &fault), "one byte more");
	ok(!outbox_check_topic(longest, 0, &fault), "no byte");
	is_int(fault.sqlstate, ERRCODE_INVALID_PARAMETER_VALUE, "invalid_parameter_value");

	for (int i = 1; i < OUTBOX_TOPIC_MAX; i += 2)
		longest[i] = '.';
	while (outbox_next_topic_key(longest, OUTBOX_TOPIC_MAX, &position, &len))
		keys++;
	is_int(keys, OUTBOX_TOPIC_MAX / 2 + 2, "a topic of 128 segments has 129 keys");
	for (int c = 0; c < 256; c++)
	{
		char		topic[] = {'a', (char) c, 'a'};
		bool		expected = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';

		if (outbox_check_topic(topic, 3, &fault) != expected)
			wrong++;
	}
	is_int(wrong, 0, "no other byte in a topic");
}

/* Every byte in every part of a URL: none that is not printable gets through. */
static void
test_url_bytes(void)
{
	static const char *const urls[] = {"http://a?/", "http://?.example/", "https://example.com/?path", "http://a/?", "http://[::?]/", "http://a:8?/"};
	OutboxFault fault;
	int			accepted = 0;
	int			wrong = 0;

	for (int u = 0; u < lengthof(urls); u++)
	{
		char		url[64];
		char	   *place;

		strlcpy(url, urls[u], sizeof(url));
		place = strchr(url, '?');
		for (int c = 1; c < 256; c++)
		{
			*place = (char) c;
			if (!outbox_check_url(url, &fault))
				continue;
			accepted++;
			if (c <= ' ' || c >= 0x7f || c == '\\' || c == '#' || c == '"' || (c == '@' && u != 2 && u != 3))
				wrong++;
		}
	}
	ok(accepted > 300, "URLs with all sorts of bytes are accepted: %d", accepted);
	is_int(wrong, 0, "but none with a byte that does not belong there");
}

int
main(void)
{
	char		prefix[MAX_LEN + 1] = "";

	make_strings(prefix, 0);
	test_grammar();
	test_matching();
	test_events();
	test_limits();
	test_url_bytes();
	return tap_done();
}
