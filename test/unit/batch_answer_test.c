/*-------------------------------------------------------------------------
 *
 * batch_answer_test.c
 *		What a receiver may say of the messages of a batch.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "policy/batch_answer.h"

#include "tap.h"

#define NMESSAGES 3

static pg_uuid_t ids[NMESSAGES];
static OutboxDisposition said[NMESSAGES];

static OutboxBatchAnswer
parse_body(OutboxAnswerBody body)
{
	/* A copy of exactly that length, so that a byte read too far is noticed. */
	char	   *copy = malloc(body.len ? body.len : 1);
	OutboxBatchAnswer answer;

	memcpy(copy, body.bytes, body.len);
	body.bytes = copy;
	memset(said, 0x55, sizeof(said));
	answer = outbox_parse_batch_answer(&body, NMESSAGES, ids, said);
	free(copy);
	return answer;
}

static OutboxBatchAnswer
parse_part(const char *bytes, size_t len, bool complete)
{
	OutboxAnswerBody body = {bytes, len, complete, false, NULL};

	return parse_body(body);
}

static OutboxBatchAnswer
parse(const char *body)
{
	return parse_part(body, strlen(body), true);
}

static OutboxBatchAnswer
parse_typed(const char *content_type, const char *bytes)
{
	OutboxAnswerBody body = {bytes, strlen(bytes), true, false, content_type};

	return parse_body(body);
}

/* The messages' actions in a row: o, r, f or c. */
static const char *
actions(void)
{
	static char text[NMESSAGES + 1];

	for (int i = 0; i < NMESSAGES; i++)
		text[i] = "-orfc"[said[i].action];
	return text;
}

static void
test_all_ok(void)
{
	static const char *const bodies[] = {
		"", " ", "ok", "<html>failed</html>", "[]", "[{\"failed\":[0]}]", "null", "{}", " { } ",
		"{\"failed\":[]}", "{\"failed\": [ ] }", "{\"failed\":null}", "{\"failed\":false}",
		"{\"failed\":0}", "{\"ok\":true}", "{\"a\":{\"failed\":[0]}}", "{\"a\":[{\"failed\":[0]}]}",
		"{\"a\":\"failed\",\"b\":[1,2.5e3,-4,true,false,null,\"\\u0041\\n\"]}", "{\"Failed\":[0]}",
		"{\"failed\\u0000\":[0]}", "{\"f\\u0430iled\":[0]}", "{\"note\":\"\\ud83d\\ude00 \\u20ac \xc3\xa9\"}",
		"thanks", "2 taken", "-- done", "\"{\"", "true"
	};

	for (int i = 0; i < (int) lengthof(bodies); i++)
	{
		is_int(parse(bodies[i]), OUTBOX_BATCH_ALL_OK, "names nobody: %s", bodies[i]);
		is_str(actions(), "ooo", "all taken");
		ok(said[0].after == -1 && said[0].code[0] == '\0', "and nothing else said");
	}
}

static void
test_some_failed(void)
{
	is_int(parse("{\"failed\":[1]}"), OUTBOX_BATCH_SOME_FAILED, "by index");
	is_str(actions(), "oro", "just that one");
	is_int(said[1].after, -1, "with the usual backoff");
	is_str(said[1].code, "", "and the usual code");
	is_int(parse("{\"failed\":[0,1,2]}"), OUTBOX_BATCH_SOME_FAILED, "all of them");
	is_str(actions(), "rrr", "all of them");
	is_int(parse("{\"failed\":[\"0199c000-0000-7000-8000-00000000000B\"]}"), OUTBOX_BATCH_SOME_FAILED,
		   "by id, in capitals");
	is_str(actions(), "oro", "found");
	is_int(parse(" {\"note\":{\"x\":[{},[],[[]],{\"y\":{}}]},\r\n\t\"failed\" : [ {\"index\":0,\"action\":\"fail\","
				 "\"code\":\"bad.one\",\"detail\":[{\"a\":[]}]} , {\"id\":\"0199c000-0000-7000-8000-00000000000c\","
				 "\"after\":30,\"action\":\"retry\"} ], \"more\" : 1 }\r\n"),
		   OUTBOX_BATCH_SOME_FAILED, "objects among other things");
	is_str(actions(), "for", "each as it is said");
	is_str(said[0].code, "bad.one", "with its code");
	is_int(said[2].after, 30000, "and its delay");
	is_int(parse("{\"failed\":[{\"index\":1,\"action\":\"cancel\"},{\"index\":1,\"action\":\"fail\"}]}"),
		   OUTBOX_BATCH_SOME_FAILED, "twice");
	is_str(actions(), "ofo", "the last word counts");
	is_int(parse("{\"f\\u0061il\\u0065d\":[{\"\\u0069ndex\":2,\"code\":\"\\u0062usy\"}]}"),
		   OUTBOX_BATCH_SOME_FAILED, "names that are escaped");
	is_str(actions(), "oor", "are what they stand for");
	is_str(said[2].code, "busy", "and so are values");
}

static void
test_unreadable(void)
{
	static const char *const bodies[] = {
		"{\"failed\":[3]}", "{\"failed\":[-1]}", "{\"failed\":[0.5]}", "{\"failed\":[1e0]}",
		"{\"failed\":[99999999999999999999]}", "{\"failed\":[\"x\"]}", "{\"failed\":[null]}",
		"{\"failed\":[\"0199c000-0000-7000-8000-00000000000f\"]}", "{\"failed\":[[0]]}",
		"{\"failed\":[\"0199c000-0000-7000-8000-00000000000g\"]}",
		"{\"failed\":[\"0199c000-0000-7000-8000-0000000000\\u0663b\"]}",
		"{\"failed\":[\"0199c00000007000800000000000000a----\"]}",
		"{\"failed\":1}", "{\"failed\":true}", "{\"failed\":\"all\"}", "{\"failed\":{}}",
		"{\"failed\":[{}]}", "{\"failed\":[{\"action\":\"fail\"}]}", "{\"failed\":[{\"index\":\"0\"}]}",
		"{\"failed\":[{\"index\":0,\"action\":\"ok\"}]}", "{\"failed\":[{\"index\":0,\"action\":1}]}",
		"{\"failed\":[{\"index\":0,\"code\":\"a b\"}]}", "{\"failed\":[{\"index\":0,\"code\":\"\"}]}",
		"{\"failed\":[{\"index\":0,\"after\":-1}]}", "{\"failed\":[{\"index\":0,\"after\":\"1\"}]}",
		"{\"failed\":[0", "{\"failed\":[0,", "{\"failed\":[0 1]}", "{\"failed\":[0]", "{\"failed\":",
		"{\"failed\":[0],\"a\"", "{\"failed\":[0],}", "{\"failed\":[0,]}", "{\"failed\":[{\"index\":0,}]}",
		/* what would be no JSON before "failed", behind it, or without it */
		"{oops", "{\"a\"", "{\"a\":}", "{\"a\":1", "{a:1,\"failed\":[0]}", "{'failed':[0]}", "{\"a\":01}", "{\"a\":+1}",
		"{\"a\":1e}", "{\"a\":truex}", "{\"a\":\"\\x\"}", "{\"a\":\"\\u12\"}", "{\"a\":\"\n\"}", "{} {\"failed\":[0]}",
		"{\"failed\":[]} trailing", "[", "[OK] taken", "[1,]", "{\"a\":\"\xff\"}", "{\"a\":\"\xc3\"}", "{\"a\":\"\xe9t\xe9\"}",
		/* byte order marks, and what is no text */
		"\xef\xbb\xbf{\"failed\":[0]}", "\xef\xbb\xbf{}", "\xef\xbb\xbf", "\xff\xfe{", "\xfe\xff", "\x1f\x8b\x08", "\xe9t\xe9"
	};
	const char *whole = "{\"id\":\"x\",\"list\":[1,2],\"failed\":[1]}";

	for (int i = 0; i < (int) lengthof(bodies); i++)
	{
		is_int(parse(bodies[i]), OUTBOX_BATCH_UNREADABLE, "cannot be read: %s", bodies[i]);
		is_str(actions(), "rrr", "so all are retried");
		is_str(said[2].code, OUTBOX_BATCH_ANSWER_CODE, "with a code that says so");
	}

	for (size_t len = 1; len < strlen(whole); len++)
		is_int(parse_part(whole, len, false), OUTBOX_BATCH_UNREADABLE, "cut after %d bytes", (int) len);
	is_int(parse_part(whole, 0, false), OUTBOX_BATCH_UNREADABLE, "cut before it began");
	is_int(parse_part("   ", 3, false), OUTBOX_BATCH_UNREADABLE, "blanks, cut");
	is_int(parse_part("<html>", 6, false), OUTBOX_BATCH_ALL_OK, "something else, cut");
	is_int(parse_part(whole, strlen(whole), false), OUTBOX_BATCH_UNREADABLE, "cut behind its end");
}

/* UTF-16 and UTF-32, with and without a byte order mark. */
static void
test_wide(void)
{
	const char *text = "{\"failed\":[0]}";
	char		bytes[256];

	for (int width = 2; width <= 4; width += 2)
		for (int low_first = 0; low_first <= 1; low_first++)
			for (int mark = 0; mark <= 1; mark++)
			{
				int			len = 0;

				memset(bytes, 0, sizeof(bytes));
				if (mark)
				{
					bytes[low_first ? 0 : width - 1] = '\xff';
					bytes[low_first ? 1 : width - 2] = '\xfe';
					len += width;
				}
				for (const char *c = text; *c; c++, len += width)
					bytes[len + (low_first ? 0 : width - 1)] = *c;
				is_int(parse_part(bytes, len, true), OUTBOX_BATCH_UNREADABLE,
					   "UTF-%d, low byte first %d, mark %d", width * 8, low_first, mark);
			}
}

/* What content-type and a coding change. */
static void
test_types(void)
{
	static const char *const json[] = {
		"application/json", "Application/JSON; charset=utf-8", " text/json", "application/problem+json", "application/vnd.x+JSON ;v=1"
	};
	static const char *const others[] = {"text/html", "text/plain; charset=utf-8", "application/xml", "application/jsonlines", "+json"};
	static const char *const silent[] = {"", " ", "application/octet-stream", ";charset=utf-8"};
	OutboxAnswerBody gzip = {"\x1f\x8b\x08", 3, true, true, "text/html"};
	OutboxAnswerBody nothing = {"", 0, true, true, "application/json"};
	OutboxAnswerBody page = {"<html>", 6, false, false, "text/html"};
	OutboxAnswerBody cut = {"ok", 2, false, false, "application/json"};

	for (int i = 0; i < (int) lengthof(json); i++)
	{
		is_int(parse_typed(json[i], ")]}',\n{\"failed\":[0]}"), OUTBOX_BATCH_UNREADABLE, "a prefix, %s", json[i]);
		is_int(parse_typed(json[i], "while(1);{}"), OUTBOX_BATCH_UNREADABLE, "another prefix, %s", json[i]);
		is_int(parse_typed(json[i], "ok"), OUTBOX_BATCH_ALL_OK, "a word, %s", json[i]);
		is_int(parse_typed(json[i], "{\"failed\":[1]}"), OUTBOX_BATCH_SOME_FAILED, "an answer, %s", json[i]);
		is_int(parse_typed(json[i], "\xe9"), OUTBOX_BATCH_UNREADABLE, "no text, %s", json[i]);
	}
	for (int i = 0; i < (int) lengthof(others); i++)
	{
		is_int(parse_typed(others[i], "[OK] taken"), OUTBOX_BATCH_ALL_OK, "prose, %s", others[i]);
		is_int(parse_typed(others[i], "\xe9t\xe9"), OUTBOX_BATCH_ALL_OK, "prose in Latin 1, %s", others[i]);
		is_int(parse_typed(others[i], "\xef\xbb\xbf<html>{}"), OUTBOX_BATCH_ALL_OK, "a page with a mark, %s", others[i]);
		is_int(parse_typed(others[i], "{\"failed\":[1]}"), OUTBOX_BATCH_SOME_FAILED, "an answer all the same, %s", others[i]);
		is_int(parse_typed(others[i], "{\"failed\":[1]}<br>"), OUTBOX_BATCH_UNREADABLE, "one that is spoilt, %s", others[i]);
		is_int(parse_typed(others[i], "\xef\xbb\xbf{\"failed\":[1]}"), OUTBOX_BATCH_UNREADABLE, "one with a mark, %s", others[i]);
	}
	for (int i = 0; i < (int) lengthof(silent); i++)
	{
		is_int(parse_typed(silent[i], "thanks {}"), OUTBOX_BATCH_ALL_OK, "prose, '%s'", silent[i]);
		is_int(parse_typed(silent[i], "[OK] taken"), OUTBOX_BATCH_UNREADABLE, "what may be JSON, '%s'", silent[i]);
	}
	is_int(parse_body(gzip), OUTBOX_BATCH_UNREADABLE, "a coding, whatever the type");
	is_int(parse_body(nothing), OUTBOX_BATCH_ALL_OK, "nothing, in a coding");
	is_int(parse_body(page), OUTBOX_BATCH_ALL_OK, "a page that was cut");
	is_int(parse_body(cut), OUTBOX_BATCH_UNREADABLE, "promised JSON that was cut");
}

static void
test_depth(void)
{
	char		body[4096];
	int			len;

	len = snprintf(body, sizeof(body), "{\"a\":%*s", 60, "");
	memset(body + len - 60, '[', 60);
	memset(body + len, ']', 60);
	strcpy(body + len + 60, ",\"failed\":[0]}");
	is_int(parse(body), OUTBOX_BATCH_SOME_FAILED, "60 levels are fine");

	len = snprintf(body, sizeof(body), "{\"failed\":[{\"index\":0,\"x\":");
	memset(body + len, '[', 2000);
	is_int(parse_part(body, len + 2000, true), OUTBOX_BATCH_UNREADABLE, "2000 are not");

	memset(body, '[', 2000);
	memset(body + 2000, ']', 2000);
	is_int(parse_part(body, 4000, true), OUTBOX_BATCH_UNREADABLE, "whatever is in them");
}

int
main(void)
{
	for (int i = 0; i < NMESSAGES; i++)
	{
		static const unsigned char prefix[] = {0x01, 0x99, 0xc0, 0x00, 0x00, 0x00, 0x70, 0x00, 0x80};

		memset(&ids[i], 0, sizeof(ids[i]));
		memcpy(ids[i].data, prefix, sizeof(prefix));
		ids[i].data[15] = 10 + i;
	}
	test_all_ok();
	test_some_failed();
	test_unreadable();
	test_wide();
	test_types();
	test_depth();
	return tap_done();
}
