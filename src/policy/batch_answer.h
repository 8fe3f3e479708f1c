/*-------------------------------------------------------------------------
 *
 * batch_answer.h
 *		Which messages of a batch failed, in the receiver's own words.
 *
 * A 2xx answer to a batch takes all of its messages, unless its body is a
 * JSON object that names some of them as failed:
 *
 *		{"failed": [{"id": "0199c000-...", "action": "retry",
 *					 "code": "busy", "after": 30},
 *					{"index": 4}, "0199c001-...", 7]}
 *
 * A message goes by its id or by its place in the batch, counted from 0.
 * action is "retry" (the default), "fail" or "cancel"; code and after
 * (seconds) mean what they do in the header outbox-outcome.
 *
 * Only what can be read counts as success.  A body that is empty, or that its
 * first character or its content type shows to be no JSON, names nobody.
 * Any other has to be JSON to its last byte, in UTF-8 without a byte order
 * mark, without a content coding and not cut; if it is not, all messages are
 * to be retried, with OUTBOX_BATCH_ANSWER_CODE.
 *
 * The bytes come from outside: the reader is bounded and raises nothing but
 * for want of memory, of which it takes a few hundred bytes.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_BATCH_ANSWER_H
#define OUTBOX_BATCH_ANSWER_H

#include "policy/outcome.h"

/* The code of messages whose receiver gave an answer that cannot be read. */
#define OUTBOX_BATCH_ANSWER_CODE "batch_answer"

typedef enum OutboxBatchAnswer
{
	OUTBOX_BATCH_ALL_OK,		/* the body names nobody */
	OUTBOX_BATCH_SOME_FAILED,
	OUTBOX_BATCH_UNREADABLE		/* it may name somebody: retry all of them */
} OutboxBatchAnswer;

/* The body of an answer, as it came. */
typedef struct OutboxAnswerBody
{
	const char *bytes;			/* need not be text, nor end with NUL */
	size_t		len;
	bool		complete;		/* this is all that came */
	bool		encoded;		/* in a content coding that nobody undid */
	const char *content_type;	/* the header's value; NULL or "": none */
} OutboxAnswerBody;

/*
 * Read the body of a 2xx answer.  ids are those of the batch's messages in
 * order.  said gets, for each message, what outbox_judge_disposition() takes: OK, or
 * what the receiver wants; for UNREADABLE a retry with
 * OUTBOX_BATCH_ANSWER_CODE.
 */
extern OutboxBatchAnswer outbox_parse_batch_answer(const OutboxAnswerBody *body,
												   int nmessages, const pg_uuid_t *ids,
												   OutboxDisposition *said);

#endif							/* OUTBOX_BATCH_ANSWER_H */
