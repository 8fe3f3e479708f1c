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
parse_part(const char *body, size_t len, bool complete)
{
	/* A copy of exactly that length, so that a byte read too far is noticed. */
	char	   *copy = malloc(len ? len : 1);
	OutboxBatchAnswer answer;

	memcpy(copy, body, len);
	memset(said, 0x55, sizeof(said));
	answer = outbox_parse_batch_answer(copy, len, complete, NMESSAGES, ids, said);
	free(copy);
	return answer;
}

static OutboxBatchAnswer
parse(const char *body)
{
	return parse_part(body, strlen(body), true);
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
		"{\"a\":\"failed\",\"b\":[1,2.5e3,-4,true,false,null,\"\\u0041\\n\"]}",
		"{oops", "{\"a\"", "{\"a\":}", "{\"a\":1", "{\"Failed\":[0]}", "{\"f\\u0061iled\":[0]}"
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
				 "\"after\":30,\"action\":\"retry\"} ], \"more\" : 1 } trailing"),
		   OUTBOX_BATCH_SOME_FAILED, "objects among other things");
	is_str(actions(), "for", "each as it is said");
	is_str(said[0].code, "bad.one", "with its code");
	is_int(said[2].after, 30000, "and its delay");
	is_int(parse("{\"failed\":[{\"index\":1,\"action\":\"cancel\"},{\"index\":1,\"action\":\"fail\"}]}"),
		   OUTBOX_BATCH_SOME_FAILED, "twice");
	is_str(actions(), "ofo", "the last word counts");
}

static void
test_unreadable(void)
{
	static const char *const bodies[] = {
		"{\"failed\":[3]}", "{\"failed\":[-1]}", "{\"failed\":[0.5]}", "{\"failed\":[1e0]}",
		"{\"failed\":[99999999999999999999]}", "{\"failed\":[\"x\"]}", "{\"failed\":[null]}",
		"{\"failed\":[\"0199c000-0000-7000-8000-00000000000f\"]}", "{\"failed\":[[0]]}",
		"{\"failed\":[\"0199c000-0000-7000-8000-00000000000g\"]}",
		"{\"failed\":[\"0199c000-0000-7000-8000-0000000000\\u00340\"]}",
		"{\"failed\":[\"0199c00000007000800000000000000a----\"]}",
		"{\"failed\":1}", "{\"failed\":true}", "{\"failed\":\"all\"}", "{\"failed\":{}}",
		"{\"failed\":[{}]}", "{\"failed\":[{\"action\":\"fail\"}]}", "{\"failed\":[{\"index\":\"0\"}]}",
		"{\"failed\":[{\"index\":0,\"action\":\"ok\"}]}", "{\"failed\":[{\"index\":0,\"action\":1}]}",
		"{\"failed\":[{\"index\":0,\"code\":\"a b\"}]}", "{\"failed\":[{\"index\":0,\"code\":\"\"}]}",
		"{\"failed\":[{\"index\":0,\"after\":-1}]}", "{\"failed\":[{\"index\":0,\"after\":\"1\"}]}",
		"{\"failed\":[0", "{\"failed\":[0,", "{\"failed\":[0 1]}", "{\"failed\":[0]", "{\"failed\":",
		"{\"failed\":[0],\"a\"", "{\"failed\":[0],}", "{\"failed\":[0,]}", "{\"failed\":[{\"index\":0,}]}"
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
	is_int(parse_part(whole, 0, false), OUTBOX_BATCH_ALL_OK, "cut before it began");
	is_int(parse_part("<html>", 6, false), OUTBOX_BATCH_ALL_OK, "something else, cut");
	is_int(parse_part(whole, strlen(whole), false), OUTBOX_BATCH_SOME_FAILED, "cut behind its end");
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
	test_depth();
	return tap_done();
}
