/*
 * Unit test of the parser of answers: every case is read whole, byte by byte
 * and cut in two at each place, and must mean the same each time.
 */
#include "http1_corpus.h"
#include "http1_record.h"
#include "tap.h"
#include "turkish.h"

static size_t
piece_at(void *arg)
{
	size_t	   *cut = arg;
	size_t		piece = *cut;

	*cut = (size_t) -1;
	return piece;
}

static bool
same_for_every_cut(const Record *whole, const char *input, size_t len)
{
	static Record other;

	record_run(&other, input, len, piece_one, NULL);
	if (!record_same(whole, &other))
		return false;
	for (size_t i = 1; i < len; i++)
	{
		size_t		cut = i;

		record_run(&other, input, len, piece_at, &cut);
		if (!record_same(whole, &other))
		{
			printf("# differs when cut at %zu\n", i);
			return false;
		}
	}
	return true;
}

static void
check(const Case *c)
{
	static Record whole;

	record_run(&whole, c->input, c->len, piece_all, NULL);
	is_int(whole.result, c->result, "%s: %s", c->name, c->result == HTTP1_DONE ? "an answer" : "none");
	if (whole.error != NULL)
		printf("# %s\n", whole.error);
	ok(same_for_every_cut(&whole, c->input, c->len), "%s: the same for every cut", c->name);
	if (c->result != HTTP1_DONE)
		return;
	is_int(whole.status, c->status, "%s: status", c->name);
	is_str(whole.body, c->body, "%s: body", c->name);
	is_int(whole.reusable, c->reusable, "%s: %s", c->name, c->reusable ? "kept" : "closed");
	is_int(c->len - whole.used, c->rest, "%s: ends where it should", c->name);
	is_str(whole.retry_after, c->retry_after, "%s: retry-after", c->name);
}

/* An answer with so many bytes of one header's value. */
static Http1Result
answer_with_header(const char *name, size_t value_len, Record *record)
{
	size_t		room = value_len + 200;
	char	   *input = malloc(room);
	int			len = snprintf(input, room, "HTTP/1.1 503 x\r\nContent-Length: 0\r\n%s: ", name);

	memset(input + len, 'v', value_len);
	len += value_len;
	memcpy(input + len, "\r\n\r\n", 4);
	record_run(record, input, len + 4, piece_all, NULL);
	ok(same_for_every_cut(record, input, value_len > 1000 ? 0 : len + 4) || value_len > 1000,
	   "%s with %zu bytes: the same for every cut", name, value_len);
	free(input);
	return record->result;
}

static void
check_limits(void)
{
	static Record record;

	is_int(answer_with_header("x", HTTP1_MAX_HEADERS - 100, &record), HTTP1_DONE, "headers just below the limit");
	is_int(answer_with_header("x", HTTP1_MAX_HEADERS, &record), HTTP1_BAD, "headers beyond the limit");
	is_int(answer_with_header("retry-after", HTTP1_VALUE_LEN - 1, &record), HTTP1_DONE, "the longest value that is kept whole");
	is_int(strlen(record.retry_after), HTTP1_VALUE_LEN - 1, "it is kept whole");
	is_int(answer_with_header("outbox-outcome", 5000, &record), HTTP1_DONE, "a longer value is no error");
	is_int(strlen(record.outcome), HTTP1_VALUE_LEN - 1, "it is cut");
	is_int(answer_with_header("connection", 300, &record), HTTP1_DONE, "a connection header too long to be kept");
	ok(!record.reusable, "it closes the connection");
	is_int(answer_with_header("content-length", 300, &record), HTTP1_BAD, "a length too long to be kept");
	is_int(answer_with_header("transfer-encoding", 300, &record), HTTP1_BAD, "a coding too long to be kept");
}

/* What the caller has named comes whatever it is to the parser: of a final answer, from its headers. */
static void
check_wanted(void)
{
	static const char answer[] = "HTTP/1.1 103 x\r\nContent-Length: 7\r\n\r\n"
	"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n"
	"X-Wanted-0123456789-0123456789-0123456789-0123456789-0123456789: yes \r\n"
	"X-Wanted-0123456789-0123456789-0123456789-0123456789-01234567890: no\r\n\r\n"
	"0\r\nX-Wanted-0123456789-0123456789-0123456789-0123456789-0123456789: late\r\n\r\n";
	static Record record;

	record_run(&record, answer, sizeof(answer) - 1, piece_all, NULL);
	is_int(record.result, HTTP1_DONE, "an answer with a header that is wanted");
	is_int(record.nwanted, 1, "it comes once");
	is_str(record.wanted, "yes", "its value");
	ok(same_for_every_cut(&record, answer, sizeof(answer) - 1), "the same for every cut");
	is_int(answer_with_header("x", 10, &record), HTTP1_DONE, "an answer with a length");
	is_str(record.wanted, "0", "which is wanted, too");
	is_int(record.body_total, 0, "and holds");
}

/* Provisional answers without end, and chunks without end. */
static void
check_floods(void)
{
	static const char provisional[] = "HTTP/1.1 100 x\r\n\r\n";
	static Record record;
	size_t		n = HTTP1_MAX_HEADERS / (sizeof(provisional) - 1) + 2;
	char	   *input = malloc(n * sizeof(provisional));
	size_t		len = 0;

	for (size_t i = 0; i < n; i++)
	{
		memcpy(input + len, provisional, sizeof(provisional) - 1);
		len += sizeof(provisional) - 1;
	}
	record_run(&record, input, len, piece_all, NULL);
	is_int(record.result, HTTP1_BAD, "provisional answers are bounded");
	is_int(record.status, 0, "they have no status");
	free(input);

	/* Small chunks are no header bytes: a long body may come in them. */
	n = HTTP1_MAX_HEADERS;
	input = malloc(n * 6 + 200);
	len = sprintf(input, "%s", CHUNKED);
	for (size_t i = 0; i < n; i++)
	{
		memcpy(input + len, "1\r\na\r\n", 6);
		len += 6;
	}
	len += sprintf(input + len, "0\r\n\r\n");
	record_run(&record, input, len, piece_all, NULL);
	is_int(record.result, HTTP1_DONE, "many small chunks");
	is_int(record.body_total, n, "all of them");
	free(input);
}

int
main(void)
{
	for (size_t i = 0; i < NCASES; i++)
		check(&cases[i]);
	check_limits();
	check_wanted();
	check_floods();
	return tap_done();
}
