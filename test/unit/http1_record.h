/*-------------------------------------------------------------------------
 *
 * http1_record.h
 *		Runs the answer parser over an input that is cut in pieces, and
 *		writes down everything it said.  For its unit test and its fuzzer.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HTTP1_RECORD_H
#define OUTBOX_HTTP1_RECORD_H

#include <stdlib.h>
#include <string.h>

#include "common/ascii.h"
#include "http/fast/http1_parser.h"

#define RECORD_BODY 4096

typedef struct Record
{
	Http1Result result;
	const char *error;
	bool		reusable;
	int			status;
	int			nstatus;
	int			nheaders;
	char		retry_after[HTTP1_VALUE_LEN];
	char		outcome[HTTP1_VALUE_LEN];
	int			nwanted;
	char		wanted[HTTP1_VALUE_LEN];	/* the latest */
	size_t		used;			/* bytes of the input that belonged to the answer */
	size_t		body_total;
	unsigned long body_sum;		/* depends on every byte and its place */
	char		body[RECORD_BODY];	/* the start */
} Record;

static void
record_status(void *arg, int status)
{
	Record	   *record = arg;

	record->status = status;
	record->nstatus++;
}

/* One that means something to the parser itself, and one of the longest name that can be wanted. */
static bool
record_wants(void *arg, const char *name, size_t name_len)
{
	static const char longest[] = "x-wanted-0123456789-0123456789-0123456789-0123456789-0123456789";

	return outbox_same_word(name, name_len, "content-length") || outbox_same_word(name, name_len, longest);
}

static void
record_header(void *arg, const char *name, size_t name_len, const char *value, size_t value_len)
{
	Record	   *record = arg;
	char	   *where = name_len == 11 ? record->retry_after : record->outcome;

	if (record_wants(arg, name, name_len))
	{
		if (value_len >= HTTP1_VALUE_LEN)
			abort();
		record->nwanted++;
		memcpy(record->wanted, value, value_len);
		record->wanted[value_len] = '\0';
		return;
	}
	if (name_len != 8 && name_len != 11 && name_len != 12 && name_len != 14 && name_len != 16)
		abort();
	if (value_len >= HTTP1_VALUE_LEN)
		abort();
	record->nheaders++;
	if (name_len == 8 || name_len == 12 || name_len == 16)
		return;
	memcpy(where, value, value_len);
	where[value_len] = '\0';
}

static void
record_body(void *arg, const char *data, size_t len)
{
	Record	   *record = arg;

	if (len == 0)
		abort();
	for (size_t i = 0; i < len; i++)
	{
		if (record->body_total < RECORD_BODY)
			record->body[record->body_total] = data[i];
		record->body_total++;
		record->body_sum = record->body_sum * 31 + (unsigned char) data[i];
	}
}

/*
 * Feed the input, next_piece(arg) bytes at a time (0 counts as 1), and then
 * its end if the answer is not complete by then.
 */
static void
record_run(Record *record, const char *input, size_t len, size_t (*next_piece) (void *), void *arg)
{
	static const Http1Sink sink = {record_status, record_header, record_body, record_wants};
	Http1Parser parser;
	Http1Result result = HTTP1_MORE;
	size_t		at = 0;

	memset(record, 0, sizeof(*record));
	memset(&parser, 0xa5, sizeof(parser));
	outbox_http1_start(&parser);
	while (at < len && result == HTTP1_MORE)
	{
		size_t		piece = next_piece(arg);
		size_t		used;
		char	   *copy;

		if (piece == 0)
			piece = 1;
		if (piece > len - at)
			piece = len - at;

		/* A block of exactly that size, so that reading beyond it is noticed. */
		copy = malloc(piece);
		memcpy(copy, input + at, piece);
		result = outbox_http1_feed(&parser, copy, piece, &used, &sink, record);
		free(copy);
		if (used > piece || (result == HTTP1_MORE && used != piece))
			abort();
		at += used;
	}
	record->used = at;
	if (result == HTTP1_MORE)
		result = outbox_http1_eof(&parser);
	record->result = result;
	record->error = result == HTTP1_BAD ? parser.error : NULL;
	record->reusable = result == HTTP1_DONE && parser.reusable;
	if (record->status != parser.status || record->nstatus > 1)
		abort();
	if ((result == HTTP1_BAD) != (parser.error != NULL) || result == HTTP1_MORE)
		abort();
}

/*
 * Did both runs hear the same?  How far a bad answer was read, and which of
 * its faults was seen first, may differ.
 */
static bool
record_same(const Record *a, const Record *b)
{
	if (a->result != b->result)
		return false;
	if (a->result == HTTP1_BAD)
		return a->status == b->status;
	return a->reusable == b->reusable && a->status == b->status &&
		a->nheaders == b->nheaders && a->used == b->used &&
		a->nwanted == b->nwanted && strcmp(a->wanted, b->wanted) == 0 &&
		strcmp(a->retry_after, b->retry_after) == 0 && strcmp(a->outcome, b->outcome) == 0 &&
		a->body_total == b->body_total && a->body_sum == b->body_sum;
}

static size_t
piece_all(void *arg)
{
	return (size_t) -1;
}

static size_t
piece_one(void *arg)
{
	return 1;
}

#endif							/* OUTBOX_HTTP1_RECORD_H */
