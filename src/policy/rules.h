/*-------------------------------------------------------------------------
 *
 * rules.h
 *		A handler's own say on what an outcome code leads to.
 *
 * Pure: matching allocates nothing and raises nothing.  Process: any.  Rules
 * are read from jsonb by rules_parse.h.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RULES_H
#define OUTBOX_RULES_H

#include "policy/outcome.h"

/* More rules than anybody writes; matching looks at each of them. */
#define OUTBOX_MAX_RULES 200

/* A limit that a rule does not mention, and one that it lifts (JSON null). */
#define OUTBOX_RULE_UNSET (-1)
#define OUTBOX_RULE_UNLIMITED 0

/*
 * What one rule says of the codes it takes.  Fields it does not mention are
 * taken from the next less specific rule that does.
 */
typedef struct OutboxRule
{
	/* "404", "4xx", "timeout", "rate_limited" or "*" */
	char		match[OUTBOX_CODE_LEN];
	OutboxAction action;		/* NONE: as the table or the receiver says */
	int			streak;			/* give up after so many of the same code in a row */
	int			max_attempts;	/* in place of the handler's */
	int64		backoff_max;	/* ms, caps the backoff in place of the handler's; UNSET or >= 0 */
	OutboxState on_exhaustion;	/* DEAD or CANCELLED; PENDING: not mentioned */
} OutboxRule;

/* A rule that mentions nothing. */
#define OUTBOX_RULE_SILENT \
	{ \
		.action = OUTBOX_ACTION_NONE, .streak = OUTBOX_RULE_UNSET, \
		.max_attempts = OUTBOX_RULE_UNSET, .backoff_max = OUTBOX_RULE_UNSET, \
		.on_exhaustion = OUTBOX_PENDING \
	}

typedef struct OutboxRules
{
	int			nrules;
	OutboxRule	rules[FLEXIBLE_ARRAY_MEMBER];
} OutboxRules;

/*
 * Everything the rules say of a code, each field from the most specific rule
 * that mentions it: the code itself, then its class ("4xx"), then "*".  An
 * outcome that is a success is taken only by rules that name it or its class,
 * never by "*".
 */
extern void outbox_rules_match(const OutboxRules *rules, const char *code, bool success,
							   OutboxRule *effective);

#endif							/* OUTBOX_RULES_H */
