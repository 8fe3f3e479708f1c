/*-------------------------------------------------------------------------
 *
 * http1_parser.c
 *		Reads the answer to one POST; see http1_parser.h.
 *
 * A state machine over bytes that handles runs of equal meaning at once.
 * Each step takes at least one byte or changes the state, so that it ends.
 *
 *-------------------------------------------------------------------------
 */
#include "http/fast/http1_parser.h"

#include <string.h>

#include "common/ascii.h"

enum State
{
	STATUS_LINE,				/* "HTTP/1.x SSS" */
	REASON,						/* up to the end of the status line */
	LINE,						/* the first byte of a header line */
	BLANK,						/* a CR stood there: the LF that ends the headers */
	NAME,
	VALUE,
	BODY_COUNTED,
	BODY_TO_EOF,
	CHUNK_SIZE,
	CHUNK_EXTENSION,
	CHUNK_DATA,
	CHUNK_END,
	FINISHED
};

enum Kind
{
	ANY_HEADER,					/* not looked at */
	CONTENT_LENGTH,
	TRANSFER_ENCODING,
	CONNECTION,
	FOR_CALLER
};

/* One input and how far it has been read. */
typedef struct Reader
{
	Http1Parser *parser;
	const char *at;
	const char *end;
	const Http1Sink *sink;
	void	   *arg;
} Reader;

static const char *const too_many_headers = "the headers of the answer are too long";

static Http1Result
bad(Reader *reader, const char *error)
{
	reader->parser->error = error;
	return HTTP1_BAD;
}

static bool
is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static bool
has_body(int code)
{
	return code != 204 && code != 304;
}

void
outbox_http1_start(Http1Parser *parser)
{
	/* The kept values need no clearing: their lengths say what is in them. */
	memset(parser, 0, offsetof(Http1Parser, name));
	parser->state = STATUS_LINE;
}

/* Count header bytes.  False: there are too many. */
static bool
count(Http1Parser *parser, size_t bytes)
{
	parser->header_bytes += bytes;
	return parser->header_bytes <= HTTP1_MAX_HEADERS;
}

/* The part of a line that is there, without its end. */
typedef struct Line
{
	const char *data;
	size_t		len;
	bool		ended;			/* the end has come */
} Line;

/*
 * Take what is there of a line.  A CR at the end of the input is remembered:
 * the next byte must be an LF.  False: the line is bad.
 */
static bool
take_line(Reader *reader, Line *line)
{
	Http1Parser *parser = reader->parser;
	const char *start = reader->at;
	size_t		available = reader->end - start;
	const char *lf = memchr(start, '\n', available);
	size_t		len = lf != NULL ? (size_t) (lf - start) : available;
	const char *cr = memchr(start, '\r', len);

	reader->at = lf != NULL ? lf + 1 : reader->end;
	if ((parser->cr && len > 0) || (cr != NULL && cr != start + len - 1))
	{
		bad(reader, "a header of the answer holds a bare CR");
		return false;
	}
	parser->cr = cr != NULL && lf == NULL;
	if (cr != NULL)
		len--;
	if (memchr(start, '\0', len) != NULL)
	{
		bad(reader, "a header of the answer holds a NUL byte");
		return false;
	}

	/* The lines between chunks are part of the body, of which there may be more than of headers. */
	if (parser->state == CHUNK_EXTENSION)
	{
		parser->chunk_lines += reader->at - start;
		if (parser->chunk_lines > HTTP1_MAX_CHUNK_LINES)
		{
			bad(reader, "the lines between the chunks of the answer are too long");
			return false;
		}
	}
	else if (!count(parser, reader->at - start))
	{
		bad(reader, too_many_headers);
		return false;
	}
	line->data = start;
	line->len = len;
	line->ended = lf != NULL;
	return true;
}

/*
 * The status line
 */

static Http1Result
read_status_line(Reader *reader)
{
	static const char pattern[] = "HTTP/1.m ddd";
	Http1Parser *parser = reader->parser;

	for (; parser->place < 12 && reader->at < reader->end; parser->place++)
	{
		char		c = *reader->at++;
		char		expected = pattern[parser->place];

		if (!count(parser, 1))
			return bad(reader, too_many_headers);
		if (expected == 'm' && (c == '0' || c == '1'))
			parser->minor = c - '0';
		else if (expected == 'd' && outbox_is_digit(c))
			parser->code = parser->code * 10 + (c - '0');
		else if (expected == 'm' || expected == 'd' || c != expected)
			return bad(reader, OUTBOX_NOT_HTTP);
	}
	if (parser->place < 12 || reader->at == reader->end)
		return HTTP1_MORE;
	if (*reader->at != ' ' && *reader->at != '\r' && *reader->at != '\n')
		return bad(reader, "the status line of the answer is malformed");
	if (parser->code < 100)
		return bad(reader, "the status of the answer is not a valid one");
	if (parser->code == 101)
		return bad(reader, "the receiver switched to another protocol");
	if (parser->code >= 200)
	{
		parser->status = parser->code;
		reader->sink->status(reader->arg, parser->code);
	}
	parser->state = REASON;
	return HTTP1_MORE;
}

static Http1Result
read_reason(Reader *reader)
{
	Http1Parser *parser = reader->parser;
	Line		line;

	if (!take_line(reader, &line))
		return HTTP1_BAD;
	if (line.ended)
	{
		parser->state = LINE;
		parser->folds = false;
		parser->kind = ANY_HEADER;
	}
	return HTTP1_MORE;
}

/*
 * Headers
 */

static bool
is_called(const Http1Parser *parser, const char *name, size_t len)
{
	return parser->name_len == len && outbox_same_start(parser->name, name, len);
}

/* What a header is to us, now that its name is known. */
static enum Kind
kind_of_header(const Http1Parser *parser)
{
	/* Behind the body nothing counts any more, and 1xx answers say nothing. */
	if (parser->trailer || parser->code < 200)
		return ANY_HEADER;
	switch (parser->name_len)
	{
		case 8:
			return is_called(parser, "location", 8) ? FOR_CALLER : ANY_HEADER;
		case 10:
			return is_called(parser, "connection", 10) ? CONNECTION : ANY_HEADER;
		case 11:
			return is_called(parser, "retry-after", 11) ? FOR_CALLER : ANY_HEADER;
		case 12:
			return is_called(parser, "content-type", 12) ? FOR_CALLER : ANY_HEADER;
		case 14:
			if (is_called(parser, "content-length", 14))
				return CONTENT_LENGTH;
			return is_called(parser, "outbox-outcome", 14) ? FOR_CALLER : ANY_HEADER;
		case 16:
			return is_called(parser, "content-encoding", 16) ? FOR_CALLER : ANY_HEADER;
		case 17:
			return is_called(parser, "transfer-encoding", 17) ? TRANSFER_ENCODING : ANY_HEADER;
		default:
			return ANY_HEADER;
	}
}

/* Does the caller want it?  Then it is kept, whatever it is to us. */
static bool
is_wanted(const Reader *reader)
{
	const Http1Parser *parser = reader->parser;

	if (parser->kind == FOR_CALLER)
		return true;
	return reader->sink->wants != NULL && !parser->trailer && parser->code >= 200 && parser->name_len <= HTTP1_NAME_LEN &&
		reader->sink->wants(reader->arg, parser->name, parser->name_len);
}

static Http1Result
take_content_length(Reader *reader, const char *value, size_t len)
{
	Http1Parser *parser = reader->parser;
	int64_t		length = 0;

	if (!has_body(parser->code))
	{
		/* There is none, but a receiver that announces one may send it yet. */
		if (len != 1 || value[0] != '0')
			parser->says_close = true;
		return HTTP1_MORE;
	}
	if (len == 0)
		return bad(reader, "the content-length of the answer is not a number");
	for (size_t i = 0; i < len; i++)
	{
		int			digit = value[i] - '0';

		if (digit < 0 || digit > 9)
			return bad(reader, "the content-length of the answer is not a number");
		if (length > (INT64_MAX - digit) / 10)
			return bad(reader, "the content-length of the answer is out of range");
		length = length * 10 + digit;
	}
	if (parser->has_length && parser->left != length)
		return bad(reader, "the answer has two different content-lengths");
	parser->has_length = true;
	parser->left = length;
	return HTTP1_MORE;
}

static Http1Result
take_transfer_encoding(Reader *reader, const char *value, size_t len)
{
	Http1Parser *parser = reader->parser;

	if (!has_body(parser->code))
	{
		parser->says_close = true;
		return HTTP1_MORE;
	}
	if (parser->has_coding)
		return bad(reader, "the answer has more than one transfer-encoding");
	parser->has_coding = true;
	if (len == 7 && outbox_same_start(value, "chunked", 7))
		parser->chunked = true;
	else if (len != 8 || !outbox_same_start(value, "identity", 8))
		return bad(reader, "the answer has an unknown transfer-encoding");
	return HTTP1_MORE;
}

static void
take_connection(Http1Parser *parser, const char *value, size_t len)
{
	const char *end = value + len;

	while (value < end)
	{
		const char *comma = memchr(value, ',', end - value);
		const char *stop = comma != NULL ? comma : end;
		const char *token = value;

		value = comma != NULL ? comma + 1 : end;
		while (token < stop && is_blank(*token))
			token++;
		while (stop > token && is_blank(stop[-1]))
			stop--;
		if (stop - token == 5 && outbox_same_start(token, "close", 5))
			parser->says_close = true;
		else if (stop - token == 10 && outbox_same_start(token, "keep-alive", 10))
			parser->says_keep_alive = true;
	}
}

/* A header is complete: the line behind it shows that it is not continued. */
static Http1Result
finish_header(Reader *reader)
{
	Http1Parser *parser = reader->parser;
	const char *value = parser->value;
	bool		cut = parser->value_len == HTTP1_VALUE_LEN;
	size_t		len = cut ? HTTP1_VALUE_LEN - 1 : parser->value_len;
	enum Kind	kind = parser->kind;

	parser->kind = ANY_HEADER;
	while (!cut && len > 0 && is_blank(value[len - 1]))
		len--;
	if (parser->wanted)
		reader->sink->header(reader->arg, parser->name, parser->name_len, value, len);
	parser->wanted = false;
	switch (kind)
	{
		case CONTENT_LENGTH:
			return take_content_length(reader, value, cut ? 0 : len);
		case TRANSFER_ENCODING:
			return take_transfer_encoding(reader, value, cut ? 0 : len);
		case CONNECTION:
			/* What was cut off might have said close. */
			parser->says_close = parser->says_close || cut;
			take_connection(parser, value, len);
			return HTTP1_MORE;
		case FOR_CALLER:
		case ANY_HEADER:
			return HTTP1_MORE;
	}
	return HTTP1_MORE;
}

static Http1Result
finish(Reader *reader)
{
	Http1Parser *parser = reader->parser;

	parser->state = FINISHED;
	parser->reusable = !parser->says_close && (parser->minor == 1 || parser->says_keep_alive);
	return HTTP1_DONE;
}

/* The blank line behind the headers or the trailers. */
static Http1Result
end_headers(Reader *reader)
{
	Http1Parser *parser = reader->parser;

	if (parser->trailer)
		return finish(reader);
	if (parser->code < 200)
	{
		parser->state = STATUS_LINE;
		parser->place = 0;
		parser->code = 0;
		return HTTP1_MORE;
	}
	if (!has_body(parser->code))
		return finish(reader);
	if (parser->has_coding)
	{
		/*
		 * A transfer coding overrules a length.  Whoever sends both, or
		 * chunks in HTTP/1.0, may mean something else by what follows.
		 */
		if (parser->has_length || parser->minor == 0)
			parser->says_close = true;
		parser->place = 0;
		parser->left = 0;
		parser->state = parser->chunked ? CHUNK_SIZE : BODY_TO_EOF;
		return HTTP1_MORE;
	}
	if (!parser->has_length)
	{
		parser->state = BODY_TO_EOF;
		return HTTP1_MORE;
	}
	if (parser->left == 0)
		return finish(reader);
	parser->state = BODY_COUNTED;
	return HTTP1_MORE;
}

/* The first byte of a line: a continuation, the blank line, or a name. */
static Http1Result
read_line_start(Reader *reader)
{
	Http1Parser *parser = reader->parser;
	char		c = *reader->at;

	if (is_blank(c))
	{
		if (!parser->folds)
			return bad(reader, "the first header of the answer begins with a blank");
		if (parser->kind == CONTENT_LENGTH || parser->kind == TRANSFER_ENCODING || parser->kind == CONNECTION)
			return bad(reader, "a header that frames the answer is folded");

		/* The line break and the blanks around it count as one blank. */
		if (parser->value_len > 0 && parser->value_len < HTTP1_VALUE_LEN)
			parser->value[parser->value_len++] = ' ';
		parser->leading = true;
		parser->state = VALUE;
		return HTTP1_MORE;
	}
	if (finish_header(reader) == HTTP1_BAD)
		return HTTP1_BAD;
	if (c == '\r' || c == '\n')
	{
		reader->at++;
		if (!count(parser, 1))
			return bad(reader, too_many_headers);
		if (c == '\n')
			return end_headers(reader);
		parser->state = BLANK;
		return HTTP1_MORE;
	}
	parser->state = NAME;
	parser->name_len = 0;
	return HTTP1_MORE;
}

static Http1Result
read_blank(Reader *reader)
{
	if (*reader->at++ != '\n')
		return bad(reader, "a header of the answer holds a bare CR");
	if (!count(reader->parser, 1))
		return bad(reader, too_many_headers);
	return end_headers(reader);
}

static Http1Result
read_name(Reader *reader)
{
	Http1Parser *parser = reader->parser;
	const char *start = reader->at;

	while (reader->at < reader->end && outbox_is_token_char(*reader->at))
	{
		if (parser->name_len < HTTP1_NAME_LEN)
			parser->name[parser->name_len] = *reader->at;
		parser->name_len++;
		reader->at++;
	}
	if (!count(parser, reader->at - start))
		return bad(reader, too_many_headers);
	if (reader->at == reader->end)
		return HTTP1_MORE;
	if (*reader->at != ':' || parser->name_len == 0)
		return bad(reader, "a header of the answer has no valid name");
	reader->at++;
	if (!count(parser, 1))
		return bad(reader, too_many_headers);
	parser->kind = kind_of_header(parser);
	parser->wanted = is_wanted(reader);
	parser->value_len = 0;
	parser->leading = true;
	parser->folds = true;
	parser->state = VALUE;
	return HTTP1_MORE;
}

/* Keep what fits of a value; the blanks in front of it, or behind a fold, are not part of it. */
static void
keep_value(Http1Parser *parser, const char *data, size_t len)
{
	size_t		room = HTTP1_VALUE_LEN - parser->value_len;

	while (parser->leading && len > 0 && is_blank(*data))
	{
		data++;
		len--;
	}
	if (len == 0)
		return;
	parser->leading = false;
	if (len > room)
		len = room;
	memcpy(parser->value + parser->value_len, data, len);
	parser->value_len += len;
}

static Http1Result
read_value(Reader *reader)
{
	Http1Parser *parser = reader->parser;
	Line		line;

	if (!take_line(reader, &line))
		return HTTP1_BAD;
	if (parser->kind != ANY_HEADER || parser->wanted)
		keep_value(parser, line.data, line.len);
	if (line.ended)
		parser->state = LINE;
	return HTTP1_MORE;
}

/*
 * Bodies
 */

static void
give_body(Reader *reader, size_t len)
{
	if (len > 0)
		reader->sink->body(reader->arg, reader->at, len);
	reader->at += len;
}

/* As much as is there of what is left. */
static void
give_counted(Reader *reader)
{
	Http1Parser *parser = reader->parser;
	size_t		available = reader->end - reader->at;
	size_t		len = (uint64_t) parser->left < available ? (size_t) parser->left : available;

	parser->left -= len;
	give_body(reader, len);
}

static Http1Result
read_counted(Reader *reader)
{
	give_counted(reader);
	return reader->parser->left == 0 ? finish(reader) : HTTP1_MORE;
}

static Http1Result
read_chunk_size(Reader *reader)
{
	Http1Parser *parser = reader->parser;

	while (reader->at < reader->end)
	{
		int			digit = outbox_hex_value(*reader->at);

		if (digit < 0)
		{
			char		c = *reader->at;

			if (parser->place == 0 || (c != ';' && !is_blank(c) && c != '\r' && c != '\n'))
				return bad(reader, "a chunk size of the answer is malformed");
			parser->state = CHUNK_EXTENSION;
			return HTTP1_MORE;
		}
		if (++parser->place > 16 || parser->left > (INT64_MAX >> 4))
			return bad(reader, "a chunk size of the answer is out of range");
		parser->left = parser->left * 16 + digit;
		reader->at++;
	}
	return HTTP1_MORE;
}

/* Whatever follows a chunk's size on its line means nothing. */
static Http1Result
read_chunk_extension(Reader *reader)
{
	Http1Parser *parser = reader->parser;
	Line		line;

	if (!take_line(reader, &line))
		return HTTP1_BAD;
	if (!line.ended)
		return HTTP1_MORE;
	if (parser->left > 0)
	{
		parser->state = CHUNK_DATA;
		return HTTP1_MORE;
	}
	parser->trailer = true;
	parser->folds = false;
	parser->kind = ANY_HEADER;
	parser->state = LINE;
	return HTTP1_MORE;
}

static Http1Result
read_chunk_data(Reader *reader)
{
	give_counted(reader);
	if (reader->parser->left == 0)
		reader->parser->state = CHUNK_END;
	return HTTP1_MORE;
}

/* The line end behind a chunk. */
static Http1Result
read_chunk_end(Reader *reader)
{
	Http1Parser *parser = reader->parser;
	char		c = *reader->at++;

	if (c == '\r' && !parser->cr)
	{
		parser->cr = true;
		return HTTP1_MORE;
	}
	if (c != '\n')
		return bad(reader, "a chunk of the answer is longer than its size");
	parser->cr = false;
	parser->place = 0;
	parser->state = CHUNK_SIZE;
	return HTTP1_MORE;
}

static Http1Result
step(Reader *reader)
{
	switch (reader->parser->state)
	{
		case STATUS_LINE:
			return read_status_line(reader);
		case REASON:
			return read_reason(reader);
		case LINE:
			return read_line_start(reader);
		case BLANK:
			return read_blank(reader);
		case NAME:
			return read_name(reader);
		case VALUE:
			return read_value(reader);
		case BODY_COUNTED:
			return read_counted(reader);
		case BODY_TO_EOF:
			give_body(reader, reader->end - reader->at);
			return HTTP1_MORE;
		case CHUNK_SIZE:
			return read_chunk_size(reader);
		case CHUNK_EXTENSION:
			return read_chunk_extension(reader);
		case CHUNK_DATA:
			return read_chunk_data(reader);
		case CHUNK_END:
			return read_chunk_end(reader);
		default:
			return bad(reader, "the answer was complete already");
	}
}

Http1Result
outbox_http1_feed(Http1Parser *parser, const char *data, size_t len, size_t *used,
				  const Http1Sink *sink, void *arg)
{
	Reader		reader = {parser, data, data + len, sink, arg};
	Http1Result result = HTTP1_MORE;

	if (len > 0)
		parser->started = true;
	while (result == HTTP1_MORE && reader.at < reader.end)
		result = step(&reader);
	*used = reader.at - data;
	return result;
}

Http1Result
outbox_http1_eof(Http1Parser *parser)
{
	parser->reusable = false;
	if (parser->state == BODY_TO_EOF)
	{
		parser->state = FINISHED;
		return HTTP1_DONE;
	}
	if (!parser->started)
		parser->error = "the connection was closed before an answer";
	else if (parser->status == 0)
		parser->error = "the connection was closed within the headers of the answer";
	else
		parser->error = "the answer was cut short";
	return HTTP1_BAD;
}
