/*-------------------------------------------------------------------------
 *
 * batch_answer.c
 *		Which messages of a batch failed, in the receiver's own words.
 *
 * Promises: see batch_answer.h.
 *
 * A reader of just as much JSON as is needed: it walks over the top-level
 * object once, looks into the member "failed" and skips everything else.
 * Whatever is not JSON, or no object, is no answer of this kind and means
 * what its status says.  Once "failed" was seen, though, or when the body was
 * cut before its end, somebody may have failed without our knowing: then all
 * are retried, since a message too many is better than one too few.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "policy/answer_headers.h"
#include "policy/batch_answer.h"

/* Deeper nesting than this is taken for an attack. */
#define MAX_DEPTH 64

/* Strings are kept up to this length; longer ones match nothing. */
#define MAX_STRING 96

#define UUID_TEXT_LEN 36

typedef struct Reader
{
	const char *pos;
	const char *end;
} Reader;

static void
skip_blanks(Reader *reader)
{
	while (reader->pos < reader->end &&
		   (*reader->pos == ' ' || *reader->pos == '\t' ||
			*reader->pos == '\n' || *reader->pos == '\r'))
		reader->pos++;
}

/* Take a character, and blanks before it. */
static bool
take(Reader *reader, char c)
{
	skip_blanks(reader);
	if (reader->pos >= reader->end || *reader->pos != c)
		return false;
	reader->pos++;
	return true;
}

static bool
next_is(Reader *reader, char c)
{
	skip_blanks(reader);
	return reader->pos < reader->end && *reader->pos == c;
}

static bool
take_word(Reader *reader, const char *word)
{
	size_t		len = strlen(word);

	skip_blanks(reader);
	if ((size_t) (reader->end - reader->pos) < len || memcmp(reader->pos, word, len) != 0)
		return false;
	reader->pos += len;
	return true;
}

/* The character that an escape stands for; 0 for \u, whose digits are skipped as they come. */
static bool
unescape(char c, char *result)
{
	static const char from[] = "\"\\/bfnrtu";
	static const char to[] = "\"\\/\b\f\n\r\t";
	const char *found = c == '\0' ? NULL : strchr(from, c);

	if (found == NULL)
		return false;
	*result = to[found - from];
	return true;
}

/*
 * Take a string into text, which has MAX_STRING + 1 bytes.  Nothing that is
 * compared with it needs \u escapes or is long, so a string that has one or
 * is longer becomes a text that equals nothing.
 */
static bool
take_string(Reader *reader, char *text)
{
	size_t		len = 0;
	bool		odd = false;

	if (!take(reader, '"'))
		return false;
	while (reader->pos < reader->end && *reader->pos != '"')
	{
		char		c = *reader->pos++;

		if ((unsigned char) c < ' ')
			return false;
		if (c == '\\')
		{
			if (reader->pos >= reader->end || !unescape(*reader->pos++, &c))
				return false;
			if (c == '\0')
				odd = true;
		}
		if (len < MAX_STRING)
			text[len++] = c;
		else
			odd = true;
	}
	if (reader->pos >= reader->end)
		return false;
	reader->pos++;
	text[len] = '\0';
	if (odd)
		strcpy(text, "?");
	return true;
}

/* Take a number; value is set if it is a whole one that an int32 holds, else to -1. */
static bool
take_number(Reader *reader, int64 *value)
{
	const char *start;
	size_t		len = 0;
	bool		whole = true;

	skip_blanks(reader);
	start = reader->pos;
	while (reader->pos < reader->end && *reader->pos != '\0' &&
		   strchr("+-.eE0123456789", *reader->pos) != NULL)
	{
		if (*reader->pos < '0' || *reader->pos > '9')
			whole = false;
		reader->pos++;
		len++;
	}
	if (len == 0)
		return false;

	*value = -1;
	if (whole && len <= 9)
	{
		*value = 0;
		for (size_t i = 0; i < len; i++)
			*value = *value * 10 + (start[i] - '0');
	}
	return true;
}

static bool
take_scalar(Reader *reader)
{
	char		text[MAX_STRING + 1];
	int64		number;

	if (next_is(reader, '"'))
		return take_string(reader, text);
	return take_word(reader, "true") || take_word(reader, "false") ||
		take_word(reader, "null") || take_number(reader, &number);
}

/* Take a member's name and its colon. */
static bool
take_name(Reader *reader, char *name)
{
	return take_string(reader, name) && take(reader, ':');
}

/* Take any value whatever, and throw it away. */
static bool
skip_value(Reader *reader)
{
	char		closers[MAX_DEPTH];
	char		name[MAX_STRING + 1];
	int			depth = 0;

	for (;;)
	{
		bool		opened = false;

		if (next_is(reader, '{') || next_is(reader, '['))
		{
			if (depth >= MAX_DEPTH)
				return false;
			closers[depth++] = *reader->pos++ == '{' ? '}' : ']';
			opened = true;
		}
		else if (!take_scalar(reader))
			return false;

		/* Close what ends here, then go on to the next member or element. */
		while (depth > 0 && take(reader, closers[depth - 1]))
		{
			depth--;
			opened = false;
		}
		if (depth == 0)
			return true;
		if (!opened && !take(reader, ','))
			return false;
		if (closers[depth - 1] == '}' && !take_name(reader, name))
			return false;
	}
}

static int
hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static bool
read_uuid(const char *text, pg_uuid_t *id)
{
	const char *pos = text;

	if (strlen(text) != UUID_TEXT_LEN)
		return false;
	for (int i = 0; i < UUID_LEN; i++)
	{
		int			high;
		int			low;

		if ((i == 4 || i == 6 || i == 8 || i == 10) && *pos++ != '-')
			return false;
		high = hex_value(pos[0]);
		low = high < 0 ? -1 : hex_value(pos[1]);
		if (low < 0)
			return false;
		id->data[i] = (unsigned char) (high << 4 | low);
		pos += 2;
	}
	return true;
}

/* What an element of "failed" says, and of which message; -1 while it is not known. */
typedef struct FailedItem
{
	int			index;
	OutboxDisposition said;
} FailedItem;

/* The batch as the reader of its answer sees it. */
typedef struct Batch
{
	int			nmessages;
	const pg_uuid_t *ids;
	OutboxDisposition *said;
	bool		some_failed;
} Batch;

static bool
find_by_id(const Batch *batch, const char *text, FailedItem *item)
{
	pg_uuid_t	id;

	if (!read_uuid(text, &id))
		return false;
	for (int i = 0; i < batch->nmessages; i++)
	{
		if (memcmp(batch->ids[i].data, id.data, UUID_LEN) == 0)
		{
			item->index = i;
			return true;
		}
	}
	return false;
}

static bool
find_by_index(const Batch *batch, int64 index, FailedItem *item)
{
	if (index < 0 || index >= batch->nmessages)
		return false;
	item->index = (int) index;
	return true;
}

static bool
read_action(const char *text, OutboxDisposition *said)
{
	if (strcmp(text, "retry") == 0)
		said->action = OUTBOX_ACTION_RETRY;
	else if (strcmp(text, "fail") == 0)
		said->action = OUTBOX_ACTION_FAIL;
	else if (strcmp(text, "cancel") == 0)
		said->action = OUTBOX_ACTION_CANCEL;
	else
		return false;
	return true;
}

/* Take the value of a member of an element. */
static bool
take_member(Reader *reader, const Batch *batch, const char *name, FailedItem *item)
{
	char		text[MAX_STRING + 1];
	int64		number;

	if (strcmp(name, "id") == 0)
		return take_string(reader, text) && find_by_id(batch, text, item);
	if (strcmp(name, "index") == 0)
		return take_number(reader, &number) && find_by_index(batch, number, item);
	if (strcmp(name, "action") == 0)
		return take_string(reader, text) && read_action(text, &item->said);
	if (strcmp(name, "code") == 0)
	{
		if (!take_string(reader, text) || !outbox_code_is_valid(text, strlen(text)))
			return false;
		strlcpy(item->said.code, text, sizeof(item->said.code));
		return true;
	}
	if (strcmp(name, "after") == 0)
	{
		if (!take_number(reader, &number) || number < 0)
			return false;
		item->said.after = number * 1000;
		return true;
	}
	return skip_value(reader);
}

/* Take an element of "failed": an object, an id, or an index. */
static bool
take_item(Reader *reader, const Batch *batch, FailedItem *item)
{
	char		text[MAX_STRING + 1];
	int64		number;

	if (next_is(reader, '"'))
		return take_string(reader, text) && find_by_id(batch, text, item);
	if (!take(reader, '{'))
		return take_number(reader, &number) && find_by_index(batch, number, item);

	do
	{
		if (!take_name(reader, text) || !take_member(reader, batch, text, item))
			return false;
	} while (take(reader, ','));
	return take(reader, '}') && item->index >= 0;
}

/* Take the value of "failed". */
static bool
take_failed(Reader *reader, Batch *batch)
{
	int64		number;

	/* Nobody, said in other ways. */
	if (take_word(reader, "null") || take_word(reader, "false"))
		return true;
	if (!take(reader, '['))
		return take_number(reader, &number) && number == 0;
	if (take(reader, ']'))
		return true;

	do
	{
		FailedItem	item = {-1, {OUTBOX_ACTION_RETRY, "", -1}};

		if (!take_item(reader, batch, &item))
			return false;
		batch->said[item.index] = item.said;
		batch->some_failed = true;
	} while (take(reader, ','));
	return take(reader, ']');
}

/* Walk over the top-level object.  failed_seen: the member was there. */
static bool
take_answer(Reader *reader, Batch *batch, bool *failed_seen)
{
	char		name[MAX_STRING + 1];

	if (take(reader, '}'))
		return true;
	do
	{
		if (!take_name(reader, name))
			return false;
		if (strcmp(name, "failed") == 0)
		{
			*failed_seen = true;
			if (!take_failed(reader, batch))
				return false;
		}
		else if (!skip_value(reader))
			return false;
	} while (take(reader, ','));
	return take(reader, '}');
}

static void
say_of_all(Batch *batch, OutboxAction action, const char *code)
{
	for (int i = 0; i < batch->nmessages; i++)
	{
		memset(&batch->said[i], 0, sizeof(batch->said[i]));
		batch->said[i].action = action;
		batch->said[i].after = -1;
		strlcpy(batch->said[i].code, code, sizeof(batch->said[i].code));
	}
}

OutboxBatchAnswer
outbox_parse_batch_answer(const char *body, size_t len, bool complete,
						  int nmessages, const pg_uuid_t *ids, OutboxDisposition *said)
{
	Reader		reader = {body, body + len};
	Batch		batch = {nmessages, ids, said, false};
	bool		failed_seen = false;

	say_of_all(&batch, OUTBOX_ACTION_OK, "");
	if (!take(&reader, '{'))
		return OUTBOX_BATCH_ALL_OK;

	if (!take_answer(&reader, &batch, &failed_seen) && (failed_seen || !complete))
	{
		say_of_all(&batch, OUTBOX_ACTION_RETRY, OUTBOX_BATCH_ANSWER_CODE);
		return OUTBOX_BATCH_UNREADABLE;
	}
	return batch.some_failed ? OUTBOX_BATCH_SOME_FAILED : OUTBOX_BATCH_ALL_OK;
}
