/*-------------------------------------------------------------------------
 *
 * breaker.h
 *		The circuit breaker of a lane.
 *
 * Counts failures of the handler itself (OutboxVerdict.handler_failed) in a
 * row.  After threshold of them the lane stops sending: its messages stay
 * pending and spend no attempts.  One request is let through as a probe,
 * at growing intervals, until one succeeds.
 *
 * Pure: no clock (times are passed in, in microseconds of one clock), no
 * allocation.  Process: the dispatcher, in a lane.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_BREAKER_H
#define OUTBOX_BREAKER_H


#define OUTBOX_BREAKER_REASON_LEN 128

/* Failures below this many never disable a handler, however long ago the first of them was. */
#define OUTBOX_BREAKER_MIN_FAILURES 20

/* When nothing is due by itself. */
#define OUTBOX_BREAKER_NEVER PG_INT64_MAX

typedef enum OutboxBreakerState
{
	OUTBOX_BREAKER_CLOSED,		/* requests flow */
	OUTBOX_BREAKER_OPEN,		/* nothing is sent until the next probe */
	OUTBOX_BREAKER_HALF_OPEN	/* a probe is out */
} OutboxBreakerState;

typedef struct OutboxBreakerPolicy
{
	int			threshold;		/* failures in a row that open it; 0: never */
	int64		wait;			/* us until the first probe */
	int64		wait_max;		/* us, what doubling the wait ends at */
	int64		disable_after;	/* us of failing that disable the handler; 0: never */
} OutboxBreakerPolicy;

/* Zeroed: closed, nothing known. */
typedef struct OutboxBreaker
{
	OutboxBreakerState state;
	int			failures;		/* in a row */
	int64		wait;			/* between the last two probes */
	int64		until;			/* OPEN: when the next probe may go */
	int64		failing_since;	/* of the first failure in a row, 0: not failing */
	char		reason[OUTBOX_BREAKER_REASON_LEN];	/* why it is not closed, else "" */
} OutboxBreaker;

/* What noting an answer changed: what outbox.handler_status has to be told. */
typedef enum OutboxBreakerChange
{
	OUTBOX_BREAKER_SAME,		/* nothing to write */
	OUTBOX_BREAKER_CHANGED,		/* state, until, failing_since or reason */
	OUTBOX_BREAKER_DISABLE		/* as CHANGED, and the handler is to be paused with the reason */
} OutboxBreakerChange;

/* May a request go now?  True for a probe once its time has come; see outbox_breaker_sent(). */
extern bool outbox_breaker_allows(const OutboxBreaker *breaker, int64 now);

/* When to ask again, OUTBOX_BREAKER_NEVER if an answer has to come first or requests flow. */
extern int64 outbox_breaker_next(const OutboxBreaker *breaker);

/* A request was sent: in an open breaker that was the probe.  True if the state changed. */
extern bool outbox_breaker_sent(OutboxBreaker *breaker);

/* A request that was sent came back without having left this machine. */
extern void outbox_breaker_not_sent(OutboxBreaker *breaker, int64 now);

/*
 * An answer came.  failed says whether it was the handler's failure; code is
 * the verdict's, for the reason.  Late answers of requests sent before the
 * breaker opened may arrive at any time: a success closes it, a failure
 * changes nothing while it is open.
 */
extern OutboxBreakerChange outbox_breaker_note(OutboxBreaker *breaker,
											   const OutboxBreakerPolicy *policy,
											   bool failed, const char *code, int64 now);

/*
 * Take up what outbox.handler_status says after a restart, however long ago
 * it was written and whatever the clock was then: no wait is longer than the
 * policy's, and nothing has failed since later than now.
 */
extern void outbox_breaker_restore(OutboxBreaker *breaker, const OutboxBreakerPolicy *policy,
								   OutboxBreakerState state, int64 until,
								   int64 failing_since, const char *reason, int64 now);

/* "closed", "open", "half-open": as outbox.handler_status writes it. */
extern const char *outbox_breaker_state_name(OutboxBreakerState state);

#endif							/* OUTBOX_BREAKER_H */
