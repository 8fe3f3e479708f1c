/*-------------------------------------------------------------------------
 *
 * batch_answer.c
 *		Which messages of a batch failed, in the receiver's own words.
 *
 * Promises: see batch_answer.h.
 *
 * An answer is read in three steps.  First, whether it can name anybody at
 * all: prose and pages of HTML cannot.  Then a walk over the text, which
 * looks into the member "failed" of the top-level object and skips everything
 * else.  Last, PostgreSQL's own parser says whether that text was JSON, for
 * the walk forgives what it does not look at.  It comes second because it
 * recurses, and the walk has found by then that nothing nests deeply.
 *
 * Whatever cannot be read may name somebody who failed: then all are retried,
 * since a message too many is better than one too few.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "common/ascii.h"
#include "compat.h"
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

/* Take the four digits of a \u escape. */
static bool
take_code_unit(Reader *reader, unsigned int *unit)
{
	*unit = 0;
	for (int i = 0; i < 4; i++)
	{
		int			value = reader->pos < reader->end ? outbox_hex_value(*reader->pos++) : -1;

		if (value < 0)
			return false;
		*unit = *unit << 4 | (unsigned int) value;
	}
	return true;
}

/* Take what follows a backslash.  c is NUL for a character that is not ASCII. */
static bool
take_escape(Reader *reader, char *c)
{
	static const char from[] = "\"\\/bfnrt";
	static const char to[] = "\"\\/\b\f\n\r\t";
	const char *found;
	unsigned int unit;

	if (reader->pos >= reader->end || *reader->pos == '\0')
		return false;
	if (*reader->pos == 'u')
	{
		reader->pos++;
		if (!take_code_unit(reader, &unit))
			return false;
		*c = unit < 0x80 ? (char) unit : '\0';
		return true;
	}
	found = strchr(from, *reader->pos++);
	if (found == NULL)
		return false;
	*c = to[found - from];
	return true;
}

/*
 * Take a string into text, which has MAX_STRING + 1 bytes.  Nothing that is
 * compared with it is long or has characters that are not ASCII; a string
 * that is longer, or escapes such a character, becomes a text that equals
 * nothing.
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

		if ((unsigned char) c < ' ' || (c == '\\' && !take_escape(reader, &c)))
			return false;
		if (c != '\0' && len < MAX_STRING)
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
		high = outbox_hex_value(pos[0]);
		low = high < 0 ? -1 : outbox_hex_value(pos[1]);
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
	OutboxDisposition	said;
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

/* Walk over the members of the top-level object, whose brace is taken. */
static bool
take_members(Reader *reader, Batch *batch)
{
	char		name[MAX_STRING + 1];

	if (take(reader, '}'))
		return true;
	do
	{
		if (!take_name(reader, name))
			return false;
		if (!(strcmp(name, "failed") == 0 ? take_failed(reader, batch) : skip_value(reader)))
			return false;
	} while (take(reader, ','));
	return take(reader, '}');
}

/* Walk over the text, which is one value with nothing but blanks around it. */
static bool
take_text(Reader *reader, Batch *batch)
{
	if (!(take(reader, '{') ? take_members(reader, batch) : skip_value(reader)))
		return false;
	skip_blanks(reader);
	return reader->pos == reader->end;
}

/* What the header content-type says of the body. */
typedef enum Kind
{
	KIND_UNKNOWN,				/* nothing, or just that it is bytes */
	KIND_JSON,
	KIND_OTHER
} Kind;

static Kind
kind_of(const char *content_type)
{
	static const char octets[] = "application/octet-stream";
	static const char json_suffix[] = "+json";
	const size_t suffix_len = sizeof(json_suffix) - 1;
	size_t		len;

	if (content_type == NULL)
		return KIND_UNKNOWN;
	content_type += strspn(content_type, " \t");
	len = strcspn(content_type, "; \t");
	if (len == 0 || outbox_same_word(content_type, len, octets))
		return KIND_UNKNOWN;
	if (outbox_same_word(content_type, len, "application/json") ||
		outbox_same_word(content_type, len, "text/json") ||
		(len > suffix_len &&
		 outbox_same_word(content_type + len - suffix_len, suffix_len, json_suffix)))
		return KIND_JSON;
	return KIND_OTHER;
}

/*
 * What the body begins with, behind blanks.  A byte order mark is passed over
 * here only: a page may have one, JSON must not.  NUL if there is nothing,
 * which is what UTF-16 begins with too.
 */
static char
first_character(const OutboxAnswerBody *body)
{
	static const char mark[] = "\xEF\xBB\xBF";
	Reader		reader = {body->bytes, body->bytes + body->len};

	if (body->len >= 3 && memcmp(body->bytes, mark, 3) == 0)
		reader.pos += 3;
	skip_blanks(&reader);
	return reader.pos < reader.end ? *reader.pos : '\0';
}

static bool
is_blank(const OutboxAnswerBody *body)
{
	Reader		reader = {body->bytes, body->bytes + body->len};

	skip_blanks(&reader);
	return reader.pos == reader.end;
}

/*
 * Might it name messages that failed?  Only an object can, so what is not
 * encoded, is text and has no brace where one would have to be, cannot: "ok",
 * "thanks" and a page of HTML are as good as nothing.  Where content-type
 * promises JSON, a brace anywhere is enough to have it read.
 */
static bool
may_name_failures(const OutboxAnswerBody *body)
{
	Kind		kind = kind_of(body->content_type);
	char		first;

	if (is_blank(body))
		return !body->complete;
	if (body->encoded)
		return true;

	first = first_character(body);
	if (first == '{' || first == '\0' || memcmp(body->bytes, "\xFE\xFF", Min(body->len, 2)) == 0 ||
		memcmp(body->bytes, "\xFF\xFE", Min(body->len, 2)) == 0)
		return true;
	if (first == '[' || first < ' ' || first > '~')
		return kind != KIND_OTHER;
	return kind == KIND_JSON &&
		(!body->complete || memchr(body->bytes, '{', body->len) != NULL);
}

/* Read what it says of each message.  False, with said in any state, if it cannot be read. */
static bool
read_body(const OutboxAnswerBody *body, Batch *batch)
{
	Reader		reader = {body->bytes, body->bytes + body->len};

	return body->complete && !body->encoded && take_text(&reader, batch) &&
		pg_encoding_verifymbstr(PG_UTF8, body->bytes, (int) body->len) == (int) body->len &&
		outbox_is_json(body->bytes, body->len, PG_UTF8);
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
outbox_parse_batch_answer(const OutboxAnswerBody *body,
						  int nmessages, const pg_uuid_t *ids, OutboxDisposition *said)
{
	Batch		batch = {nmessages, ids, said, false};

	say_of_all(&batch, OUTBOX_ACTION_OK, "");
	if (!may_name_failures(body))
		return OUTBOX_BATCH_ALL_OK;
	if (!read_body(body, &batch))
	{
		say_of_all(&batch, OUTBOX_ACTION_RETRY, OUTBOX_BATCH_ANSWER_CODE);
		return OUTBOX_BATCH_UNREADABLE;
	}
	return batch.some_failed ? OUTBOX_BATCH_SOME_FAILED : OUTBOX_BATCH_ALL_OK;
}
