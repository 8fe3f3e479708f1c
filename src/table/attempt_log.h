/*-------------------------------------------------------------------------
 *
 * attempt_log.h
 *		Rows of outbox.attempt, as far as outbox.log_attempts asks for them.
 *
 * Processes: the dispatcher and the on_settle workers for push, any backend
 * for pull.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_ATTEMPT_LOG_H
#define OUTBOX_ATTEMPT_LOG_H

#include "outbox.h"

/*
 * A delivery that is tried for ever must not fill the disk: of its attempts
 * so many are kept, the first and the last ones.
 */
#define OUTBOX_LOGGED_FIRST 100
#define OUTBOX_LOGGED_LAST 100

typedef struct OutboxAttempt
{
	pg_uuid_t	message_id;
	int32		handler_id;
	int32		attempt;
	TimestampTz finished_at;
	int64		duration_us;	/* -1: not known */
	OutboxState outcome;		/* the state it led to */
	int			http_status;	/* 0: none */
	const char *code;			/* NULL or empty: none */
	const char *error;			/* NULL: none */
	const char *response_headers;	/* a JSON object; NULL: none */
} OutboxAttempt;

/* Is an attempt with this outcome to be logged? */
extern bool outbox_should_log(OutboxState outcome);

/* Log it.  Must be connected to SPI, with the owner's rights. */
extern void outbox_log_attempt(const OutboxAttempt *attempt);

#endif							/* OUTBOX_ATTEMPT_LOG_H */
