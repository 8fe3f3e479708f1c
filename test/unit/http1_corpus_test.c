/*
 * The corpus of answers over real sockets, through both transports: what the
 * parser makes of each of them beside what libcurl does.  Every answer comes
 * in one piece and byte by byte.
 */
#include <curl/curl.h>

#include "http1_corpus.h"
#include "transport_harness.h"

typedef struct Verdict
{
	HttpFailure failure;
	int			status;
	uint64_t	total;
	char		retry_after[HTTP_HEADER_LEN];
	char		body[64];
} Verdict;

static const char *const names[] = {"curl", "fast"};

static Verdict verdicts[2][2][NCASES];
static RawAnswer answers[2 * NCASES];
static char answer_names[2 * NCASES][16];
static int	server_port;

static void
name_answers(void)
{
	for (size_t i = 0; i < 2 * NCASES; i++)
	{
		bool		dribbles = i >= NCASES;

		snprintf(answer_names[i], sizeof(answer_names[i]), "%zu%s", i % NCASES, dribbles ? "-dribbled" : "");
		answers[i] = (RawAnswer)
		{
			answer_names[i], cases[i % NCASES].input, cases[i % NCASES].len, true, dribbles
		};
	}
	raw_answers = answers;
	nraw_answers = 2 * NCASES;
}

static void
hear(Verdict *verdict, size_t answer)
{
	Call		call;
	char		url[128];

	snprintf(url, sizeof(url), "http://127.0.0.1:%d/raw/%s", server_port, answer_names[answer]);
	set_up_url(&call, url);
	perform(&call);
	verdict->failure = call.exchange.failure;
	verdict->status = call.exchange.status;
	verdict->total = call.exchange.response_total;
	strcpy(verdict->retry_after, call.exchange.retry_after);
	if (call.exchange.response_len > 0 && call.exchange.response_len < sizeof(verdict->body))
		memcpy(verdict->body, call.exchange.response, call.exchange.response_len);
	finish(&call);
}

static bool
is_same(const Verdict *a, const Verdict *b)
{
	return a->failure == b->failure && a->status == b->status && a->total == b->total &&
		strcmp(a->retry_after, b->retry_after) == 0 && memcmp(a->body, b->body, sizeof(a->body)) == 0;
}

/* The same as the corpus says? */
static bool
is_as_expected(const Verdict *verdict, const Case *c)
{
	if (c->result == HTTP1_BAD)
		return verdict->failure == (c->len == 0 ? HTTP_FAILED_CONNECT : HTTP_FAILED_BODY);
	return verdict->failure == HTTP_ANSWERED && verdict->status == c->status &&
		strcmp(verdict->body, c->body) == 0 && strcmp(verdict->retry_after, c->retry_after) == 0;
}

static void
print_verdict(const char *who, const Verdict *verdict)
{
	printf("# %s: failure %d, status %d, %llu bytes \"%s\", retry-after \"%s\"\n", who, verdict->failure,
		   verdict->status, (unsigned long long) verdict->total, verdict->body, verdict->retry_after);
}

/*
 * What an older libcurl takes, a newer one may refuse as we do; and what the
 * newest ones make of these answers is for nobody to hold fast.
 */
static bool
may_agree(const Verdict *by_curl)
{
	return curl_version_info(CURLVERSION_NOW)->version_num >= 0x080000 && by_curl->failure != HTTP_ANSWERED;
}

static bool
is_compared(void)
{
	return curl_version_info(CURLVERSION_NOW)->version_num < 0x081400;
}

/* libcurl's verdict beside the parser's. */
static void
compare(const Case *c, const Verdict *by_curl, const Verdict *by_us, const char *how)
{
	bool		expected = true;

	switch (c->libcurl)
	{
		case AGREES:
			expected = is_as_expected(by_curl, c) ||
				(c->result == HTTP1_BAD && by_curl->failure != HTTP_ANSWERED);
			ok(expected, "%s, %s: libcurl agrees", c->name, how);
			break;
		case TAKES_IT:
			expected = c->result == HTTP1_BAD && (by_curl->failure == HTTP_ANSWERED || may_agree(by_curl));
			ok(expected, "%s, %s: libcurl takes it", c->name, how);
			break;
		case TAKES_OTHERWISE:
			expected = c->result == HTTP1_DONE &&
				(by_curl->failure == HTTP_ANSWERED ? !is_same(by_curl, by_us) : may_agree(by_curl));
			ok(expected, "%s, %s: libcurl takes it otherwise", c->name, how);
			break;
		case VARIES:
			break;
	}
	if (!expected)
	{
		print_verdict("libcurl", by_curl);
		print_verdict("parser", by_us);
	}
}

int
main(void)
{
	HttpTransportOptions options = {.max_in_flight = 10};

	signal(SIGPIPE, SIG_IGN);
	name_answers();
	server_port = hostile_listen(NULL);
	for (int t = 0; t < 2; t++)
	{
		start_transport(names[t], &options);
		for (size_t i = 0; i < 2 * NCASES; i++)
			hear(&verdicts[t][i / NCASES][i % NCASES], i);
		transport->shutdown();
	}
	for (int dribbled = 0; dribbled < 2; dribbled++)
	{
		const char *how = dribbled ? "byte by byte" : "at once";

		for (size_t i = 0; i < NCASES; i++)
		{
			const Verdict *by_us = &verdicts[1][dribbled][i];

			if (!ok(is_as_expected(by_us, &cases[i]), "%s, %s: as the parser says", cases[i].name, how))
				print_verdict("parser", by_us);
			if (is_compared())
				compare(&cases[i], &verdicts[0][dribbled][i], by_us, how);
		}
	}
	return tap_done();
}
