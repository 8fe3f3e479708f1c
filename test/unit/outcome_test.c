/*-------------------------------------------------------------------------
 *
 * outcome_test.c
 *		The outcome table, rules, backoff and what receivers say in headers.
 *
 * Plain C, linked with libpgport and libpgcommon; run by "make unit-check".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "policy/answer_headers.h"
#include "policy/http_date.h"
#include "policy/outcome.h"
#include "policy/rules.h"

#include "tap.h"

/* Sun, 06 Nov 1994 08:49:37 GMT, the date of RFC 9110's examples. */
#define EXAMPLE_DATE INT64CONST(784111777)
#define NOW_US (INT64CONST(1760000000) * 1000000)

static const OutboxRetryPolicy default_policy = {
	.max_attempts = 8,
	.backoff_base = 2000,
	.backoff_max = 900000,
	.jitter = 0,
	.retry_after_max = 3600000
};

static OutboxVerdict
judge_with(const OutboxRetryPolicy *policy, int status, const char *failure,
		   const char *retry_after, const char *outcome, int spent,
		   const char *last_code, int last_streak)
{
	OutboxAnswer answer = {status, failure, retry_after, outcome};
	OutboxVerdict verdict;

	outbox_judge(policy, &answer, spent, last_code, last_streak, NOW_US, 0.5, &verdict);
	return verdict;
}

static OutboxVerdict
judge(int status, const char *retry_after, const char *outcome)
{
	return judge_with(&default_policy, status, NULL, retry_after, outcome, 1, NULL, 0);
}

static void
test_backoff(void)
{
	OutboxRetryPolicy policy = default_policy;
	static const int64 schedule[] = {1000, 60000, 5000};

	is_int(outbox_backoff(&policy, 1, 0), 2000, "first delay is the base");
	is_int(outbox_backoff(&policy, 2, 0), 4000, "it doubles");
	is_int(outbox_backoff(&policy, 9, 0), 512000, "and doubles");
	is_int(outbox_backoff(&policy, 10, 0), 900000, "up to the maximum");
	is_int(outbox_backoff(&policy, INT_MAX, 0), 900000, "for ever");
	is_int(outbox_backoff(&policy, 0, 0), 2000, "an attempt count below one is taken for one");
	is_int(outbox_backoff(&policy, -5, 0), 2000, "a negative one too");

	policy.backoff_max = PG_INT64_MAX;
	is_int(outbox_backoff(&policy, 1000, 0.999), PG_INT64_MAX, "no overflow without a cap");
	policy.backoff_base = 0;
	is_int(outbox_backoff(&policy, INT_MAX, 0), 0, "a base of zero stays zero");
	policy.backoff_base = 5000;
	policy.backoff_max = 1000;
	is_int(outbox_backoff(&policy, 1, 0), 1000, "a base above the maximum is capped");

	policy = default_policy;
	policy.jitter = 0.2;
	is_int(outbox_backoff(&policy, 1, 0), 1600, "jitter takes at most its share away");
	is_int(outbox_backoff(&policy, 1, 0.5), 1800, "half of it in the middle");
	ok(outbox_backoff(&policy, 40, 0.999999) <= 900000, "jitter never passes the maximum");
	policy.jitter = 1;
	is_int(outbox_backoff(&policy, 1, 0), 0, "full jitter starts at zero");
	policy.jitter = 5;
	is_int(outbox_backoff(&policy, 1, 0), 0, "absurd jitter is full jitter");

	policy = default_policy;
	policy.nbackoff = 3;
	policy.backoff = schedule;
	is_int(outbox_backoff(&policy, 1, 0), 1000, "schedule: first");
	is_int(outbox_backoff(&policy, 2, 0), 60000, "schedule: second");
	is_int(outbox_backoff(&policy, 3, 0), 5000, "schedule: last");
	is_int(outbox_backoff(&policy, 7, 0), 5000, "schedule: the last repeats");
}

static void
test_table(void)
{
	static const struct
	{
		int			status;
		OutboxState state;
		bool		handler_failed;
		bool		pause;
	}			rows[] = {
		{200, OUTBOX_DELIVERED, false, false},
		{201, OUTBOX_DELIVERED, false, false},
		{204, OUTBOX_DELIVERED, false, false},
		{299, OUTBOX_DELIVERED, false, false},
		{101, OUTBOX_RETRYING, true, false},
		{301, OUTBOX_RETRYING, true, false},
		{304, OUTBOX_RETRYING, true, false},
		{308, OUTBOX_RETRYING, true, false},
		{400, OUTBOX_RETRYING, false, false},
		{401, OUTBOX_RETRYING, true, false},
		{404, OUTBOX_RETRYING, true, false},
		{408, OUTBOX_RETRYING, true, false},
		{409, OUTBOX_RETRYING, false, false},
		{410, OUTBOX_DEAD, false, true},
		{413, OUTBOX_RETRYING, false, false},
		{422, OUTBOX_RETRYING, false, false},
		{425, OUTBOX_RETRYING, false, false},
		{429, OUTBOX_RETRYING, false, false},
		{500, OUTBOX_RETRYING, true, false},
		{503, OUTBOX_RETRYING, true, false},
		{599, OUTBOX_RETRYING, true, false},
		{999, OUTBOX_RETRYING, true, false},
	};
	static const char *const failures[] = {
		"timeout", "connect", "dns", "tls", "body", "blocked", "other"
	};
	OutboxVerdict verdict;
	char		name[64];

	for (int i = 0; i < (int) lengthof(rows); i++)
	{
		snprintf(name, sizeof(name), "status %d", rows[i].status);
		verdict = judge(rows[i].status, NULL, NULL);
		is_int(verdict.state, rows[i].state, "%s", name);
		is_int(verdict.handler_failed, rows[i].handler_failed, "%s", name);
		is_int(verdict.pause_handler, rows[i].pause, "%s", name);
		is_int(verdict.lane_wait, 0, "%s", name);
		snprintf(name, sizeof(name), "%d", rows[i].status);
		is_str(verdict.code, rows[i].state == OUTBOX_DELIVERED ? "" : name, "its code");
		is_int(verdict.streak, rows[i].state == OUTBOX_DELIVERED ? 0 : 1, "its streak");
		is_int(verdict.delay, rows[i].state == OUTBOX_RETRYING ? 2000 : 0, "its delay");
	}

	for (int i = 0; i < (int) lengthof(failures); i++)
	{
		verdict = judge_with(&default_policy, 0, failures[i], NULL, NULL, 1, NULL, 0);
		is_int(verdict.state, OUTBOX_RETRYING, "%s", failures[i]);
		is_str(verdict.code, failures[i], "%s", failures[i]);
		ok(verdict.handler_failed, "%s", failures[i]);
	}

	verdict = judge_with(&default_policy, 200, "body", "100", "ok", 1, NULL, 0);
	is_int(verdict.state, OUTBOX_RETRYING, "a broken answer is no answer, whatever its headers say");
	is_int(verdict.delay, 2000, "and its Retry-After does not count");
	verdict = judge_with(&default_policy, 0, NULL, NULL, NULL, 1, NULL, 0);
	is_str(verdict.code, "other", "no status and no failure");

	verdict = judge_with(&default_policy, 500, NULL, NULL, NULL, 7, "500", 6);
	is_int(verdict.state, OUTBOX_RETRYING, "the last but one attempt is retried");
	is_int(verdict.delay, 128000, "after 2^6 times the base");
	is_int(verdict.streak, 7, "the streak goes on");
	verdict = judge_with(&default_policy, 500, NULL, "9999", NULL, 8, "503", 6);
	is_int(verdict.state, OUTBOX_DEAD, "the last attempt kills");
	is_int(verdict.streak, 1, "another code starts a new streak");
	is_int(verdict.delay, 0, "the dead do not wait");
	verdict = judge_with(&default_policy, 200, NULL, NULL, NULL, 8, "500", 7);
	is_int(verdict.state, OUTBOX_DELIVERED, "the last attempt may succeed");
	verdict = judge_with(&default_policy, 500, NULL, NULL, NULL, 1, "500", INT_MAX);
	is_int(verdict.streak, OUTBOX_STREAK_MAX, "a streak stops at what its column holds");
}

static void
test_retry_after(void)
{
	OutboxVerdict verdict;

	is_int(judge(500, "30", NULL).delay, 30000, "Retry-After in seconds");
	is_int(judge(500, "1", NULL).delay, 2000, "is a lower bound");
	is_int(judge(500, "0", NULL).delay, 2000, "zero means normal backoff");
	is_int(judge(500, " 30\t", NULL).delay, 30000, "blanks around it");
	is_int(judge(500, "86400", NULL).delay, 3600000, "capped");
	is_int(judge(500, "99999999999999999999999999999999", NULL).delay, 3600000, "a number no integer holds");
	is_int(judge(500, "-5", NULL).delay, 2000, "negative");
	is_int(judge(500, "", NULL).delay, 2000, "empty");
	is_int(judge(500, "1.5", NULL).delay, 2000, "fraction");
	is_int(judge(500, "30s", NULL).delay, 2000, "garbage");
	is_int(judge(500, "Sun, 06 Nov 1994 08:49:37 GMT", NULL).delay, 2000, "a date in the past");
	/* 1760000000 is Thu, 09 Oct 2025 08:53:20 GMT */
	is_int(judge(500, "Thu, 09 Oct 2025 08:55:20 GMT", NULL).delay, 120000, "a date in two minutes");
	is_int(judge(500, "Thursday, 09-Oct-25 08:55:20 GMT", NULL).delay, 120000, "its obsolete form");
	is_int(judge(500, "Thu Oct  9 08:55:20 2025", NULL).delay, 120000, "its C form");
	is_int(judge(500, "Fri, 31 Dec 9999 23:59:59 GMT", NULL).delay, 3600000, "a date too far");

	verdict = judge(429, "30", NULL);
	is_int(verdict.lane_wait, 30000, "429: the lane waits");
	is_int(verdict.delay, 30000, "and so does the delivery");
	is_int(judge(503, "7200", NULL).lane_wait, 3600000, "503: the lane waits, capped");
	is_int(judge(503, "Thu, 09 Oct 2025 08:55:20 GMT", NULL).lane_wait, 120000, "until a date");
	is_int(judge(503, "yesterday", NULL).lane_wait, 0, "503 with garbage");
	is_int(judge(500, "30", NULL).lane_wait, 0, "500 speaks for itself only");
	is_int(judge(429, NULL, "retry; code=slow; after=40").lane_wait, 40000, "429 with after");
	is_int(judge(429, "50", "fail; code=no").lane_wait, 50000, "429 with a death still slows the lane");
}

static void
test_outcome_header(void)
{
	static const char *const garbage[] = {
		"", " ", "maybe", "retry;", "retry; ;", "retry; code", "retry; code=", "retry; code=a b",
		"retry; code=\"a\"", "retry, code=a", "retry; code=a; code=b", "retry; after=1; after=1",
		"retry; after=-1", "retry; after=1.5", "retry; code=a\r\nx: y", "; retry", "retry code=a",
		"retry; =x", "retry; code=\xff", "ok ok", "retry; after=soon"
	};
	OutboxVerdict verdict;
	OutboxDisposition disposition;
	char		text[300];

	verdict = judge(200, NULL, "retry; code=rate_limited; after=30");
	is_int(verdict.state, OUTBOX_RETRYING, "retry wins over 200");
	is_str(verdict.code, "rate_limited", "with its code");
	is_int(verdict.delay, 30000, "and its delay");
	ok(!verdict.handler_failed, "and is no failure of the handler");
	verdict = judge(500, "100", "retry; after=0");
	is_int(verdict.delay, 0, "after replaces backoff and Retry-After");
	is_str(verdict.code, "retry", "a code is not required");
	is_int(judge(500, NULL, "retry; after=99999999999999999999").delay, 3600000, "after is capped");
	is_int(judge(500, "60", "retry").delay, 60000, "Retry-After counts when after is not said");
	verdict = judge(503, NULL, "fail; code=bad.payload-1");
	is_int(verdict.state, OUTBOX_DEAD, "fail");
	is_str(verdict.code, "bad.payload-1", "fail's code");
	is_str(judge(503, NULL, "fail").code, "failed", "fail's default code");
	verdict = judge(200, NULL, "CANCEL;CODE=obsolete;x=y");
	is_int(verdict.state, OUTBOX_CANCELLED, "cancel, in capitals, with a parameter nobody knows");
	is_str(verdict.code, "obsolete", "cancel's code");
	is_str(judge(200, NULL, "cancel").code, "cancelled", "cancel's default code");
	is_int(judge(500, NULL, "ok").state, OUTBOX_DELIVERED, "ok wins over 500");
	verdict = judge(410, NULL, "fail; code=gone");
	ok(!verdict.pause_handler, "410 with an outcome is about this message only");

	for (int i = 0; i < (int) lengthof(garbage); i++)
	{
		is_int(judge(200, NULL, garbage[i]).state, OUTBOX_DELIVERED, "garbage %d", i);
		is_str(judge(500, NULL, garbage[i]).code, "500", "garbage %d", i);
		ok(!outbox_parse_outcome(garbage[i], &disposition), "garbage %d", i);
		ok(disposition.action == OUTBOX_ACTION_NONE && disposition.code[0] == '\0' && disposition.after == -1,
		   "garbage leaves nothing behind");
	}

	strcpy(text, "fail; code=");
	memset(text + 11, 'a', 63);
	text[74] = '\0';
	is_str(judge(500, NULL, text).code, text + 11, "the longest code");
	strcat(text, "a");
	is_str(judge(500, NULL, text).code, "500", "a longer one");
	memset(text, ' ', 255);
	memcpy(text, "fail", 4);
	text[254] = '\0';
	is_str(judge(500, NULL, text).code, "failed", "the longest header");
	strcat(text, " ");
	is_str(judge(500, NULL, text).code, "500", "one that may have been cut");
}

static void
test_http_date(void)
{
	static const struct
	{
		const char *text;
		int64		seconds;
	}			good[] = {
		{"Sun, 06 Nov 1994 08:49:37 GMT", EXAMPLE_DATE},
		{"Sunday, 06-Nov-94 08:49:37 GMT", EXAMPLE_DATE},
		{"Sun Nov  6 08:49:37 1994", EXAMPLE_DATE},
		{"Sun Nov 06 08:49:37 1994", EXAMPLE_DATE},
		{"sun, 06 nov 1994 08:49:37 gmt", EXAMPLE_DATE},
		{"Mon, 06 Nov 1994 08:49:37 GMT", EXAMPLE_DATE},
		{"Thu, 01 Jan 1970 00:00:00 GMT", 0},
		{"Wed, 31 Dec 1969 23:59:59 GMT", -1},
		{"Tue, 29 Feb 2000 12:00:00 GMT", INT64CONST(951825600)},
		{"Thu, 29 Feb 2024 00:00:00 GMT", INT64CONST(1709164800)},
		{"Fri, 31 Dec 2038 23:59:60 GMT", INT64CONST(2177452800)},
		{"Mon, 01 Jan 0001 00:00:00 GMT", INT64CONST(-62135596800)},
		{"Fri, 31 Dec 9999 23:59:59 GMT", INT64CONST(253402300799)},
	};
	static const char *const bad[] = {
		"", "Sun", "Sun,", "Sunday", "Sun, ", "06 Nov 1994 08:49:37 GMT",
		"Sun, 6 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 94 08:49:37 GMT",
		"Sunday, 06-Nov-1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37",
		"Sun, 06 Nov 1994 08:49:37 UTC", "Sun, 06 Nov 1994 08:49:37 GMT ",
		"Sun, 06 Nov 1994 08:49:37 +0000", "Sun, 06 Now 1994 08:49:37 GMT",
		"Sun, 00 Nov 1994 08:49:37 GMT", "Sun, 31 Nov 1994 08:49:37 GMT",
		"Sun, 29 Feb 1900 08:49:37 GMT", "Sun, 29 Feb 2023 08:49:37 GMT",
		"Sun, 06 Nov 1994 24:00:00 GMT", "Sun, 06 Nov 1994 08:60:00 GMT",
		"Sun, 06 Nov 1994 08:49:61 GMT", "Sun, 06 Nov 0000 08:49:37 GMT",
		"Sun Nov  6 08:49:37 94", "Sun Nov 6 08:49:37 1994", "Sun Nov  6 08:49:37 1994 GMT",
		"Sun, 06 Nov 19945 08:49:37 GMT", "Sun,06 Nov 1994 08:49:37 GMT",
		"\xff\xfe", "Sun, -6 Nov 1994 08:49:37 GMT"
	};
	int64		seconds;

	for (int i = 0; i < (int) lengthof(good); i++)
	{
		seconds = 12345;
		ok(outbox_parse_http_date(good[i].text, NOW_US / 1000000, &seconds), "%s", good[i].text);
		is_int(seconds, good[i].seconds, "%s", good[i].text);
	}
	for (int i = 0; i < (int) lengthof(bad); i++)
		ok(!outbox_parse_http_date(bad[i], NOW_US / 1000000, &seconds), "bad date %d", i);

	/* Two-digit years, seen from 2025, from the last day of 1999 and from a broken clock. */
	ok(outbox_parse_http_date("Friday, 01-Jan-75 00:00:00 GMT", NOW_US / 1000000, &seconds) &&
	   seconds == INT64CONST(3313526400), "75 is 2075 in 2025");
	ok(outbox_parse_http_date("Friday, 01-Jan-76 00:00:00 GMT", NOW_US / 1000000, &seconds) &&
	   seconds == INT64CONST(189302400), "76 is 1976 in 2025");
	ok(outbox_parse_http_date("Saturday, 01-Jan-00 00:01:00 GMT", INT64CONST(946684740), &seconds) &&
	   seconds == INT64CONST(946684860), "00 is next minute's year on the last day of 1999");
	ok(outbox_parse_http_date("Friday, 01-Jan-99 00:00:00 GMT", PG_INT64_MIN, &seconds) &&
	   outbox_parse_http_date("Friday, 01-Jan-99 00:00:00 GMT", PG_INT64_MAX, &seconds),
	   "a broken clock breaks nothing");
}

/* A set of rules with one for each match, as the callers fill them. */
static OutboxRules *
make_rules(int nrules, const OutboxRule *rules)
{
	OutboxRules *result = malloc(offsetof(OutboxRules, rules) + nrules * sizeof(OutboxRule));

	result->nrules = nrules;
	memcpy(result->rules, rules, nrules * sizeof(OutboxRule));
	return result;
}

static void
test_rules(void)
{
	OutboxRule	silent = OUTBOX_RULE_SILENT;
	OutboxRule	list[8];
	OutboxRetryPolicy policy = default_policy;
	OutboxRules *rules;
	OutboxVerdict verdict;
	OutboxRule	effective;

	for (int i = 0; i < 8; i++)
		list[i] = silent;
	strcpy(list[0].match, "404");
	list[0].action = OUTBOX_ACTION_CANCEL;
	strcpy(list[1].match, "4xx");
	list[1].max_attempts = 3;
	list[1].on_exhaustion = OUTBOX_CANCELLED;
	strcpy(list[2].match, "*");
	list[2].max_attempts = 20;
	list[2].backoff_max = 3000;
	strcpy(list[3].match, "rate_limited");
	list[3].max_attempts = OUTBOX_RULE_UNLIMITED;
	strcpy(list[4].match, "503");
	list[4].streak = 2;
	strcpy(list[5].match, "202");
	list[5].action = OUTBOX_ACTION_RETRY;
	strcpy(list[6].match, "410");
	list[6].action = OUTBOX_ACTION_RETRY;
	strcpy(list[7].match, "409");
	list[7].action = OUTBOX_ACTION_OK;
	rules = make_rules(8, list);
	policy.rules = rules;

#define judged(status, failure, outcome, spent, last, streak) \
	(verdict = judge_with(&policy, status, failure, NULL, outcome, spent, last, streak))

	is_int(judged(404, NULL, NULL, 1, NULL, 0).state, OUTBOX_CANCELLED, "an exact rule");
	ok(!verdict.handler_failed, "what a rule cancels is not the handler's fault");
	is_int(judged(409, NULL, NULL, 1, NULL, 0).state, OUTBOX_DELIVERED, "a conflict taken for success");
	is_str(verdict.code, "", "leaves no code");
	is_int(judged(400, NULL, NULL, 2, NULL, 0).state, OUTBOX_RETRYING, "a class rule below its limit");
	is_int(judged(400, NULL, NULL, 3, NULL, 0).state, OUTBOX_CANCELLED, "and at it: cancelled");
	is_int(judged(500, NULL, NULL, 19, NULL, 0).state, OUTBOX_RETRYING, "* gives more attempts than the handler");
	is_int(verdict.delay, 3000, "and caps the delay");
	is_int(judged(500, NULL, NULL, 20, NULL, 0).state, OUTBOX_DEAD, "up to its own limit");
	is_int(judged(400, NULL, NULL, 2, NULL, 0).delay, 3000, "* fills in what the class leaves open");
	is_int(judged(429, NULL, "retry; code=rate_limited", 100000, NULL, 0).state, OUTBOX_RETRYING,
		   "a receiver's code without a limit");
	is_int(judged(503, NULL, NULL, 2, "503", 0).state, OUTBOX_RETRYING, "a streak of one");
	is_int(judged(503, NULL, NULL, 2, "503", 1).state, OUTBOX_DEAD, "a streak of two");
	is_int(judged(503, NULL, NULL, 3, "500", 2).state, OUTBOX_RETRYING, "an interrupted streak");
	is_int(judged(202, NULL, NULL, 1, NULL, 0).state, OUTBOX_RETRYING, "a rule for a status of success");
	is_int(judged(200, NULL, NULL, 30, NULL, 0).state, OUTBOX_DELIVERED, "* does not take successes");
	is_int(judged(500, NULL, "ok", 30, NULL, 0).state, OUTBOX_DELIVERED, "nor what the receiver calls one");
	is_int(judged(410, NULL, NULL, 1, NULL, 0).state, OUTBOX_RETRYING, "410 overruled");
	ok(!verdict.pause_handler, "does not pause");
	is_int(judge_with(&default_policy, 0, "timeout", NULL, NULL, 7, "timeout", 6).state, OUTBOX_RETRYING,
		   "timeouts are retried as long as other failures");

	strcpy(rules->rules[4].match, "timeout");
	is_int(judged(0, "timeout", NULL, 2, "timeout", 1).state, OUTBOX_DEAD, "unless a rule says otherwise");
	rules->rules[4].streak = OUTBOX_RULE_UNLIMITED;
	is_int(judged(0, "timeout", NULL, 9, "timeout", 8).state, OUTBOX_RETRYING, "or lifts the limit");

	outbox_rules_match(rules, "4xx1", false, &effective);
	is_int(effective.max_attempts, 20, "a class takes only three-digit statuses");
	outbox_rules_match(rules, "600", false, &effective);
	is_int(effective.max_attempts, 20, "600 has no class");
	free(rules);
}

static void
test_said(void)
{
	OutboxDisposition disposition = {OUTBOX_ACTION_RETRY, "busy", -1};
	OutboxVerdict verdict;

	outbox_judge_disposition(&default_policy, &disposition, 1, "busy", 2, 0.5, &verdict);
	is_int(verdict.state, OUTBOX_RETRYING, "a consumer's retry");
	is_str(verdict.code, "busy", "its code");
	is_int(verdict.streak, 3, "its streak");
	is_int(verdict.delay, 2000, "its backoff");
	disposition.after = 10000;
	outbox_judge_disposition(&default_policy, &disposition, 8, "busy", 2, 0.5, &verdict);
	is_int(verdict.state, OUTBOX_DEAD, "the budget holds for consumers too");
	disposition.action = OUTBOX_ACTION_FAIL;
	disposition.code[0] = '\0';
	outbox_judge_disposition(&default_policy, &disposition, 1, NULL, 0, 0.5, &verdict);
	is_int(verdict.state, OUTBOX_DEAD, "a consumer's fail");
	is_str(verdict.code, "failed", "its default code");
}

/* 429 and 503 have a budget of their own. */
static void
test_refusals(void)
{
	OutboxRetryPolicy policy = default_policy;
	OutboxVerdict verdict = judge_with(&policy, 429, NULL, NULL, NULL, 8, "429", 7);

	ok(verdict.refused && verdict.spares_budget, "a refusal slows the lane down and spends no attempt");
	is_int(verdict.state, OUTBOX_RETRYING, "so it is retried, whatever has been spent");
	is_int(verdict.delay, 256000, "later and later");
	verdict = judge_with(&policy, 503, NULL, "60", NULL, 1, NULL, 0);
	ok(verdict.refused && verdict.spares_budget && verdict.lane_wait == 60000, "one that names a time too");
	verdict = judge_with(&policy, 503, NULL, NULL, NULL, 3, "503", 79);
	is_int(verdict.state, OUTBOX_DEAD, "ten times as many as attempts in a row are too many");
	ok(verdict.refused && !verdict.spares_budget, "and the last one counts");
	verdict = judge_with(&policy, 503, NULL, NULL, NULL, 1, "429", 7);
	is_int(verdict.streak, 8, "503 goes on what 429 began");
	verdict = judge_with(&policy, 429, NULL, NULL, NULL, 1, "503", 7);
	is_int(verdict.streak, 8, "and the other way round");
	verdict = judge_with(&policy, 500, NULL, NULL, NULL, 1, "503", 7);
	is_int(verdict.streak, 1, "a failure begins anew");
	verdict = judge_with(&policy, 500, NULL, NULL, NULL, 1, NULL, 0);
	ok(!verdict.refused && !verdict.spares_budget, "a failure is no refusal");
	verdict = judge_with(&policy, 429, "timeout", NULL, NULL, 1, NULL, 0);
	ok(!verdict.refused && !verdict.spares_budget, "nor is one that broke off");
	verdict = judge_with(&policy, 503, NULL, NULL, "retry", 8, NULL, 0);
	ok(!verdict.refused && verdict.state == OUTBOX_DEAD, "nor are words of the receiver's own");
}

/* What a handler that is down answers spends nothing. */
static void
test_outage(void)
{
	static const OutboxRule limits[] = {
		{.match = "500", .streak = 2, .max_attempts = 3, .backoff_max = OUTBOX_RULE_UNSET},
		{.match = "502", .action = OUTBOX_ACTION_CANCEL, .streak = OUTBOX_RULE_UNSET, .max_attempts = OUTBOX_RULE_UNSET}
	};
	OutboxRetryPolicy policy = default_policy;
	OutboxAnswer answer = {.status = 500, .outage = true};
	OutboxVerdict verdict;
	OutboxRules *rules = make_rules(lengthof(limits), limits);

#define judge_outage(spent, code, streak) \
	outbox_judge(&policy, &answer, spent, code, streak, NOW_US, 0.5, &verdict)

	judge_outage(8, "500", 7);
	ok(verdict.state == OUTBOX_RETRYING && verdict.spares_budget, "the last attempt is not the last in an outage");
	ok(verdict.handler_failed, "which goes on");
	is_int(verdict.streak, 7, "the streak stands still");
	is_int(verdict.delay, 128000, "and so does the backoff");
	judge_outage(1, NULL, 0);
	is_int(verdict.streak, 0, "none has begun");
	is_int(verdict.delay, 2000, "the first wait is the first");
	policy.rules = rules;
	judge_outage(8, "500", 7);
	is_int(verdict.state, OUTBOX_RETRYING, "no limit of a rule counts either");
	answer.status = 502;
	judge_outage(1, NULL, 0);
	is_int(verdict.state, OUTBOX_CANCELLED, "but its action does");
	answer.status = 503;
	judge_outage(1, "503", 79);
	ok(verdict.state == OUTBOX_RETRYING && verdict.refused, "nor is there an end of patience");
	answer.status = 422;
	judge_outage(8, "422", 0);
	ok(verdict.state == OUTBOX_DEAD && !verdict.spares_budget, "an answer that blames the message is one");
	answer.status = 200;
	judge_outage(8, "500", 7);
	is_int(verdict.state, OUTBOX_DELIVERED, "as is a success");
	free(rules);
}

static void
test_untried(void)
{
	is_int(outbox_judge_untried(&default_policy, 0, "", 0), OUTBOX_RETRYING, "one that is new is tried");
	is_int(outbox_judge_untried(&default_policy, 7, "500", 7), OUTBOX_RETRYING, "so is one with an attempt left");
	is_int(outbox_judge_untried(&default_policy, 8, "500", 8), OUTBOX_DEAD, "one without is dead");
	is_int(outbox_judge_untried(&default_policy, 2000000000, "", 0), OUTBOX_DEAD, "however far above");
	is_int(outbox_judge_untried(&default_policy, -5, "", 0), OUTBOX_RETRYING, "one below zero has many left");
}

int
main(void)
{
	test_backoff();
	test_table();
	test_retry_after();
	test_outcome_header();
	test_http_date();
	test_rules();
	test_said();
	test_refusals();
	test_outage();
	test_untried();
	return tap_done();
}
