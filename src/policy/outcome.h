/*-------------------------------------------------------------------------
 *
 * outcome.h
 *		What an answer means: delivered, retry later, dead or cancelled.
 *
 * Pure functions: no SPI, no curl, no clock, no state.  The
 * dispatcher asks for push, outbox.retry() and outbox.fail() do for pull.
 *
 * Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_OUTCOME_H
#define OUTBOX_OUTCOME_H

#include "outbox.h"

#define OUTBOX_CODE_LEN 64

/*
 * A receiver that refuses for load (429, 503) may do so this many times
 * max_attempts in a row before a delivery is given up; and that spends no
 * attempt.
 */
#define OUTBOX_REFUSALS_PER_ATTEMPT 10

/* The highest streak worth counting: what outbox.delivery.streak holds. */
#define OUTBOX_STREAK_MAX 32767

/* The retry policy of a handler, as its row says it.  Milliseconds throughout. */
typedef struct OutboxRetryPolicy
{
	int			max_attempts;
	int64		backoff_base;
	int64		backoff_max;
	double		jitter;			/* 0 to 1: the share of the delay that is random */
	int			nbackoff;		/* explicit schedule; 0: base doubling to max */
	const int64 *backoff;
	int64		retry_after_max;
	const struct OutboxRules *rules;	/* NULL: none */
} OutboxRetryPolicy;

/* What came back, in the terms of the outcome table. */
typedef struct OutboxAnswer
{
	int			status;			/* HTTP status, 0 when there was none */
	const char *failure;		/* NULL, or "timeout", "connect", "dns", "tls", "body", "blocked", "other" */
	const char *retry_after;	/* header value, or NULL */
	const char *outcome;		/* outbox-outcome header value, or NULL */
	bool		outage;			/* it came while the handler as a whole was known to be down */
} OutboxAnswer;

/* What to do with a delivery: what a receiver may ask for and a rule may order. */
typedef enum OutboxAction
{
	OUTBOX_ACTION_NONE,			/* nobody said */
	OUTBOX_ACTION_OK,
	OUTBOX_ACTION_RETRY,
	OUTBOX_ACTION_FAIL,
	OUTBOX_ACTION_CANCEL
} OutboxAction;

/* What a receiver or consumer said of one delivery, in so many words. */
typedef struct OutboxDisposition
{
	OutboxAction action;
	char		code[OUTBOX_CODE_LEN];	/* "" when it named none */
	int64		after;			/* ms it asks to be left alone, -1 when it did not say */
} OutboxDisposition;

/* What is to be done with the delivery, and with its lane. */
typedef struct OutboxVerdict
{
	OutboxState state;			/* RETRYING, DELIVERED, DEAD or CANCELLED */
	char		code[OUTBOX_CODE_LEN];	/* "404", "timeout", a receiver's code; "" when delivered */
	int			streak;			/* how often this code came in a row, this one included; 0 when delivered */
	int64		delay;			/* ms until the next attempt, when RETRYING */
	int64		lane_wait;		/* ms the whole lane waits, 0: not at all */
	bool		pause_handler;	/* 410: the receiver said stop */
	bool		handler_failed; /* counts against the circuit breaker */
	bool		refused;		/* for load: the lane is to slow down */
	bool		spares_budget;	/* RETRYING, and the attempt is not one of max_attempts */
} OutboxVerdict;

/*
 * Judge an answer.  spent is how many attempts of the present budget are
 * used, the one just made included; last_code and last_streak are those of
 * the attempt before (NULL or "" and 0 when there was none).  now_us (Unix
 * microseconds) and random (0 <= random < 1) are passed in, so that the same
 * arguments always give the same verdict.
 *
 * What the receiver says in outbox-outcome wins over the status, and a rule
 * of the handler wins over both.  A status of 429 or 503 without such words
 * is a refusal for load.
 *
 * In an outage a failure of the handler itself says nothing of the message:
 * it is retried, spends nothing of any budget, and its streak stands still.
 */
extern void outbox_judge(const OutboxRetryPolicy *policy, const OutboxAnswer *answer,
						 int spent, const char *last_code, int last_streak,
						 int64 now_us, double random, OutboxVerdict *verdict);

/*
 * The same for an outcome that did not come as an HTTP answer: a pull
 * consumer's retry() or fail(), a failed on_settle function.  A missing code
 * becomes "retry", "failed" or "cancelled".
 */
extern void outbox_judge_disposition(const OutboxRetryPolicy *policy, const OutboxDisposition *disposition,
							  int spent, const char *last_code, int last_streak,
							  double random, OutboxVerdict *verdict);

/*
 * What becomes of a delivery before it is tried: RETRYING as a rule, but DEAD
 * or CANCELLED if no attempt is left of its budget, because somebody has set
 * attempts by hand or lowered max_attempts.
 */
extern OutboxState outbox_judge_untried(const OutboxRetryPolicy *policy, int spent,
										const char *last_code, int last_streak);

/* What becomes of a delivery whose message is gone: it cannot be tried, now or later.  And what is to be said of it. */
#define OUTBOX_MESSAGE_MISSING_ERROR "the message was removed from outbox.message"
extern void outbox_judge_missing(OutboxVerdict *verdict);

/* The delay in ms after the spent-th failed attempt, before Retry-After and rules. */
extern int64 outbox_backoff(const OutboxRetryPolicy *policy, int spent, double random);

#endif							/* OUTBOX_OUTCOME_H */
