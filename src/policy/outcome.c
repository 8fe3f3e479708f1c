/*-------------------------------------------------------------------------
 *
 * outcome.c
 *		The outcome table, and the delay before the next attempt.
 *
 * Promises: see outcome.h.  Pure; any process.
 *
 * A verdict is made in three steps: what the answer means by itself (the
 * table, or what the receiver said in outbox-outcome), what the handler's
 * rules make of that, and, if it is to be retried, whether the budget allows
 * another attempt and when.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "policy/answer_headers.h"
#include "policy/outcome.h"
#include "policy/rules.h"

/* What an answer means before rules and budget have their say. */
typedef struct Meaning
{
	OutboxAction action;
	char		code[OUTBOX_CODE_LEN];
	bool		handler_failed; /* if it is retried: the handler's fault, not the message's */
	bool		refused;		/* the receiver has too much to do just now */
	bool		stop;			/* the receiver wants no more of this handler's messages */
	bool		outage;			/* the handler is known to be down */
	int64		after;			/* ms the receiver named for this delivery, -1: none */
	int64		at_least;		/* ms the receiver asks everybody to wait, -1: none */
} Meaning;

/*
 * A share of the delay is random, so that messages which failed together do
 * not come back together; it only shortens, so that a cap stays one.
 */
static int64
apply_jitter(int64 delay, double jitter, double random)
{
	double		kept;

	if (!(jitter > 0))
		return delay;
	kept = 1.0 - Min(jitter, 1.0) * (1.0 - random);
	return (int64) ((double) delay * kept);
}

/* base doubled spent - 1 times, but no further than max. */
static int64
doubled(int64 base, int64 max, int spent)
{
	int64		delay = base;

	for (int i = 1; i < spent && delay > 0 && delay < max; i++)
		delay = delay > max / 2 ? max : delay * 2;
	return Min(delay, max);
}

static int64
capped_backoff(const OutboxRetryPolicy *policy, int spent, int64 cap, double random)
{
	int64		delay;

	if (policy->nbackoff > 0)
	{
		int			step = Min(Max(spent, 1), policy->nbackoff) - 1;

		delay = policy->backoff[step];
		if (cap != OUTBOX_RULE_UNSET)
			delay = Min(delay, cap);
	}
	else
		delay = doubled(policy->backoff_base,
						cap != OUTBOX_RULE_UNSET ? cap : policy->backoff_max, spent);

	return apply_jitter(Max(delay, 0), policy->jitter, random);
}

void
outbox_judge_missing(OutboxVerdict *verdict)
{
	memset(verdict, 0, sizeof(*verdict));
	verdict->state = OUTBOX_DEAD;
	strlcpy(verdict->code, "message_missing", sizeof(verdict->code));
}

int64
outbox_backoff(const OutboxRetryPolicy *policy, int spent, double random)
{
	return capped_backoff(policy, spent, OUTBOX_RULE_UNSET, random);
}

/*
 * Statuses below 500 that say something of the handler, whatever the message
 * was: it moved, it wants other credentials, it is not there.  The breaker
 * counts them like a server's own failure.
 */
static bool
status_is_handlers_fault(int status)
{
	switch (status)
	{
		case 401:
		case 403:
		case 404:
		case 405:
		case 407:
		case 408:
			return true;
		default:
			return status < 200 || (status >= 300 && status < 400) || status >= 500;
	}
}

static bool
refuses_for_load(int status)
{
	return status == 429 || status == 503;
}

/* The outcome table, read by status. */
static void
mean_status(int status, Meaning *meaning)
{
	snprintf(meaning->code, sizeof(meaning->code), "%d", status);
	if (status >= 200 && status < 300)
		meaning->action = OUTBOX_ACTION_OK;
	else if (status == 410)
	{
		meaning->action = OUTBOX_ACTION_FAIL;
		meaning->stop = true;
	}
	else
	{
		meaning->action = OUTBOX_ACTION_RETRY;
		meaning->handler_failed = status_is_handlers_fault(status);
		meaning->refused = refuses_for_load(status);
	}
}

static void
mean_said(const OutboxDisposition *disposition, Meaning *meaning)
{
	const char *code = disposition->code;

	if (code[0] == '\0')
	{
		code = disposition->action == OUTBOX_ACTION_RETRY ? "retry" :
			disposition->action == OUTBOX_ACTION_FAIL ? "failed" :
			disposition->action == OUTBOX_ACTION_CANCEL ? "cancelled" : "ok";
	}
	strlcpy(meaning->code, code, sizeof(meaning->code));
	meaning->action = disposition->action;
	meaning->after = disposition->after;
}

static void
mean_answer(const OutboxAnswer *answer, int64 now_us, Meaning *meaning)
{
	OutboxDisposition disposition;

	if (answer->failure != NULL || answer->status <= 0)
	{
		/* Headers of an answer that never was complete count for nothing. */
		strlcpy(meaning->code, answer->failure ? answer->failure : "other",
				sizeof(meaning->code));
		meaning->action = OUTBOX_ACTION_RETRY;
		meaning->handler_failed = true;
		return;
	}

	if (outbox_parse_outcome(answer->outcome, &disposition))
		mean_said(&disposition, meaning);
	else
		mean_status(answer->status, meaning);
	meaning->at_least = outbox_parse_retry_after(answer->retry_after, now_us);
}

/* Let the handler's rules overrule the action.  A rule knows what it does: 410 no longer pauses. */
static void
overrule(const OutboxRule *rule, Meaning *meaning)
{
	if (rule->action == OUTBOX_ACTION_NONE)
		return;
	meaning->action = rule->action;
	meaning->stop = false;
}

static bool
budget_is_spent(const OutboxRetryPolicy *policy, const OutboxRule *rule, int spent, int streak)
{
	int			max_attempts = rule->max_attempts;

	if (max_attempts == OUTBOX_RULE_UNSET)
		max_attempts = policy->max_attempts;
	return (max_attempts != OUTBOX_RULE_UNLIMITED && spent >= max_attempts) ||
		(rule->streak > OUTBOX_RULE_UNLIMITED && streak >= rule->streak);
}

/*
 * Refusals for load have a budget of their own, of those in a row.  A rule
 * that says how many attempts its codes have means just these.
 */
static bool
patience_is_spent(const OutboxRetryPolicy *policy, const OutboxRule *rule, int streak)
{
	int64		most = Min((int64) policy->max_attempts * OUTBOX_REFUSALS_PER_ATTEMPT, OUTBOX_STREAK_MAX);

	if (rule->max_attempts != OUTBOX_RULE_UNSET || rule->streak > OUTBOX_RULE_UNLIMITED)
		return budget_is_spent(policy, rule, streak, streak);
	return streak >= most;
}

/* Does an answer go on what the last one began?  Refusals for load do, whichever of the two codes they have. */
static bool
continues(const Meaning *meaning, const char *last_code)
{
	return strcmp(last_code, meaning->code) == 0 ||
		(meaning->refused && (strcmp(last_code, "429") == 0 || strcmp(last_code, "503") == 0));
}

static OutboxState
exhausted_state(const OutboxRule *rule)
{
	return rule->on_exhaustion == OUTBOX_CANCELLED ? OUTBOX_CANCELLED : OUTBOX_DEAD;
}

/* How often the code came in a row, this time included. */
static int
count_streak(const Meaning *meaning, const char *last_code, int last_streak)
{
	if (last_code != NULL && continues(meaning, last_code) && last_streak > 0)
		return Min(last_streak, OUTBOX_STREAK_MAX - 1) + 1;
	return 1;
}

/* How long to wait, given that there is to be another attempt. */
static int64
retry_delay(const OutboxRetryPolicy *policy, const OutboxRule *rule, const Meaning *meaning,
			int spent, double random)
{
	int64		delay;

	/* "after" is meant for this very delivery, so it replaces the backoff. */
	if (meaning->after >= 0)
		return Min(meaning->after, policy->retry_after_max);

	delay = capped_backoff(policy, spent, rule->backoff_max, random);
	if (meaning->at_least >= 0)
		delay = Max(delay, Min(meaning->at_least, policy->retry_after_max));
	return delay;
}

/*
 * The attempt was a probe of a handler that is down, or came too late to be
 * anything else: it is as if it had not been made, whatever its rule limits.
 */
static void
spare(const OutboxRetryPolicy *policy, const OutboxRule *rule, const Meaning *meaning,
	  int spent, double random, OutboxVerdict *verdict)
{
	verdict->state = OUTBOX_RETRYING;
	verdict->handler_failed = true;
	verdict->spares_budget = true;
	verdict->streak--;
	verdict->delay = retry_delay(policy, rule, meaning, Max(spent - 1, 1), random);
}

static void
decide(const OutboxRetryPolicy *policy, Meaning *meaning, int spent,
	   const char *last_code, int last_streak, double random, OutboxVerdict *verdict)
{
	OutboxRule	rule;

	outbox_rules_match(policy->rules, meaning->code, meaning->action == OUTBOX_ACTION_OK,
					   &rule);
	overrule(&rule, meaning);

	if (meaning->action == OUTBOX_ACTION_OK)
	{
		verdict->state = OUTBOX_DELIVERED;
		return;
	}

	strlcpy(verdict->code, meaning->code, sizeof(verdict->code));
	verdict->streak = count_streak(meaning, last_code, last_streak);
	verdict->pause_handler = meaning->stop;

	if (meaning->action == OUTBOX_ACTION_FAIL)
		verdict->state = OUTBOX_DEAD;
	else if (meaning->action == OUTBOX_ACTION_CANCEL)
		verdict->state = OUTBOX_CANCELLED;
	else if (meaning->outage && meaning->handler_failed)
		spare(policy, &rule, meaning, spent, random, verdict);
	else
	{
		bool		is_spent = meaning->refused ? patience_is_spent(policy, &rule, verdict->streak) :
			budget_is_spent(policy, &rule, spent, verdict->streak);

		verdict->handler_failed = meaning->handler_failed;
		verdict->state = is_spent ? exhausted_state(&rule) : OUTBOX_RETRYING;
		verdict->spares_budget = meaning->refused && !is_spent;
		if (!is_spent)
			verdict->delay = retry_delay(policy, &rule, meaning, meaning->refused ? verdict->streak : spent, random);
	}
}

/*
 * 429 and 503 speak for the whole receiver, so everything of the lane waits
 * as long as they ask.
 */
static int64
lane_wait(const OutboxRetryPolicy *policy, const OutboxAnswer *answer, const Meaning *meaning)
{
	if (answer->failure != NULL || !refuses_for_load(answer->status))
		return 0;
	return Min(Max(Max(meaning->at_least, meaning->after), 0), policy->retry_after_max);
}

void
outbox_judge(const OutboxRetryPolicy *policy, const OutboxAnswer *answer, int spent,
			 const char *last_code, int last_streak, int64 now_us, double random,
			 OutboxVerdict *verdict)
{
	Meaning		meaning = {.after = -1, .at_least = -1};

	memset(verdict, 0, sizeof(*verdict));
	mean_answer(answer, now_us, &meaning);
	meaning.outage = answer->outage;
	verdict->lane_wait = lane_wait(policy, answer, &meaning);
	verdict->refused = meaning.refused;
	decide(policy, &meaning, spent, last_code, last_streak, random, verdict);
}

OutboxState
outbox_judge_untried(const OutboxRetryPolicy *policy, int spent, const char *last_code, int last_streak)
{
	OutboxRule	rule;

	outbox_rules_match(policy->rules, last_code, false, &rule);
	return budget_is_spent(policy, &rule, spent, last_streak) ? exhausted_state(&rule) : OUTBOX_RETRYING;
}

void
outbox_judge_disposition(const OutboxRetryPolicy *policy, const OutboxDisposition *disposition, int spent,
				  const char *last_code, int last_streak, double random,
				  OutboxVerdict *verdict)
{
	Meaning		meaning = {.after = -1, .at_least = -1};

	memset(verdict, 0, sizeof(*verdict));
	mean_said(disposition, &meaning);
	decide(policy, &meaning, spent, last_code, last_streak, random, verdict);
}
