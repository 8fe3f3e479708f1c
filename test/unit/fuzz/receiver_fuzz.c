/*-------------------------------------------------------------------------
 *
 * receiver_fuzz.c
 *		A libFuzzer harness for everything that is read of an answer once its
 *		HTTP has been parsed.
 *
 * The first byte picks the parser, the rest is what the receiver sent.  Built
 * and run by "make fuzz-policy" with address and undefined-behaviour
 * sanitizers; beyond what those catch, it traps when a verdict breaks a
 * promise of outcome.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "compat.h"
#include "format/printable.h"
#include "policy/answer_headers.h"
#include "policy/batch_answer.h"
#include "policy/http_date.h"
#include "policy/rules.h"

#define NMESSAGES 4
#define NOW_US (INT64CONST(1760000000) * 1000000)

#define must(condition) \
	do { \
		if (!(condition)) \
			__builtin_trap(); \
	} while (0)

extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const OutboxRetryPolicy policy = {
	.max_attempts = 8,
	.backoff_base = 2000,
	.backoff_max = 900000,
	.jitter = 0.2,
	.retry_after_max = 3600000
};

static void
check_said(const OutboxDisposition *said)
{
	must(said->after >= -1);
	must(said->code[0] == '\0' || outbox_code_is_valid(said->code, strlen(said->code)));
}

static void
fuzz_retry_after(const char *text)
{
	int64		ms = outbox_parse_retry_after(text, NOW_US);
	int64		seconds;

	must(ms >= -1);
	(void) outbox_parse_http_date(text, PG_INT64_MAX, &seconds);
	(void) outbox_parse_http_date(text, PG_INT64_MIN, &seconds);
	if (outbox_parse_http_date(text, NOW_US / 1000000, &seconds))
		must(seconds >= INT64CONST(-62135596800) && seconds <= INT64CONST(253402300800));
}

static void
fuzz_outcome(const char *text)
{
	OutboxDisposition said;
	bool		read = outbox_parse_outcome(text, &said);

	check_said(&said);
	must(read == (said.action != OUTBOX_ACTION_NONE));
}

/* Two lines: Retry-After and outbox-outcome; the status from the first bytes. */
static void
fuzz_verdict(char *text, size_t len)
{
	OutboxAnswer answer = {0};
	OutboxVerdict verdict;
	char	   *second = memchr(text, '\n', len);

	answer.status = len > 1 ? ((unsigned char) text[0] << 2 | ((unsigned char) text[1] & 3)) : 0;
	answer.retry_after = len > 2 ? text + 2 : "";
	if (second != NULL && second > text + 1)
	{
		*second = '\0';
		answer.outcome = second + 1;
	}
	outbox_judge(&policy, &answer, 3, "503", 2, NOW_US, 0.5, &verdict);
	must(verdict.delay >= 0 && verdict.delay <= 3600000);
	must(verdict.lane_wait >= 0 && verdict.lane_wait <= 3600000);
	must((verdict.state == OUTBOX_DELIVERED) == (verdict.code[0] == '\0'));
	must(verdict.state >= OUTBOX_DELIVERED || verdict.state == OUTBOX_RETRYING);
	must(!verdict.pause_handler || answer.status == 410);
	must(memchr(verdict.code, '\0', sizeof(verdict.code)) != NULL);
}

/* The second byte says what is known of the body beside its bytes. */
static void
fuzz_batch_answer(const uint8_t *data, size_t size, bool complete)
{
	static const char *const types[] = {NULL, "application/json", "text/html; x", "application/octet-stream"};
	OutboxAnswerBody body = {.complete = complete};
	pg_uuid_t	ids[NMESSAGES] = {0};
	OutboxDisposition said[NMESSAGES];
	OutboxBatchAnswer answer;
	int			failed = 0;

	if (size > 0)
	{
		body.content_type = types[data[0] % 4];
		body.encoded = data[0] % 32 == 31;
		data++;
		size--;
	}
	/* No copy: the sanitizer knows where the input ends. */
	body.bytes = (const char *) data;
	body.len = size;
	for (int i = 0; i < NMESSAGES; i++)
		ids[i].data[15] = (unsigned char) i;
	answer = outbox_parse_batch_answer(&body, NMESSAGES, ids, said);
	for (int i = 0; i < NMESSAGES; i++)
	{
		check_said(&said[i]);
		must(said[i].action != OUTBOX_ACTION_NONE);
		if (said[i].action != OUTBOX_ACTION_OK)
			failed++;
	}
	must(answer == OUTBOX_BATCH_ALL_OK ? failed == 0 : failed > 0);
	must(answer != OUTBOX_BATCH_UNREADABLE || failed == NMESSAGES);

	/* An object that is not JSON to PostgreSQL, or not whole, is never taken for success. */
	if (size > 0 && data[0] == '{')
		must(answer == OUTBOX_BATCH_UNREADABLE || (complete && !body.encoded && outbox_is_json(body.bytes, size, PG_UTF8)));
}

/* What printable.c asks the server. */
int
GetDatabaseEncoding(void)
{
	return PG_UTF8;
}

/* What is kept of an answer is text, in one encoding, no longer than it may be. */
static void
check_text(char *text, size_t max, bool one_line)
{
	size_t		len = strlen(text);

	must(len <= max);
	must(pg_encoding_verifymbstr(PG_UTF8, text, (int) len) == (int) len);
	for (size_t i = 0; i < len; i++)
	{
		must((unsigned char) text[i] >= 0x20 || text[i] == '\n' || text[i] == '\t' || text[i] == '\r');
		must(!one_line || (unsigned char) text[i] >= 0x20);
	}
	pfree(text);
}

static void
fuzz_printable(const uint8_t *data, size_t size)
{
	size_t		max = size > 0 && data[0] % 2 == 0 ? data[0] : 4 * size;
	const char *bytes = (const char *) data;

	check_text(outbox_printable(bytes, size, max), max, false);
	check_text(outbox_error_text(bytes, size, max), max, true);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char	   *text;

	if (size == 0)
		return 0;
	text = malloc(size);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';

	switch (data[0] % 6)
	{
		case 0:
			fuzz_retry_after(text);
			break;
		case 1:
			fuzz_outcome(text);
			break;
		case 2:
			fuzz_verdict(text, size - 1);
			break;
		case 3:
			fuzz_printable(data + 1, size - 1);
			break;
		default:
			fuzz_batch_answer(data + 1, size - 1, data[0] % 6 == 4);
			break;
	}
	free(text);
	return 0;
}
