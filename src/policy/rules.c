/*-------------------------------------------------------------------------
 *
 * rules.c
 *		Which rules take a code, and what they say together.
 *
 * Promises: see rules.h.  Pure; any process.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "policy/rules.h"

static const OutboxRule silent_rule = OUTBOX_RULE_SILENT;

/* The class of a status code ("4xx" for "404"), "" for any other code. */
static void
class_of(const char *code, char *class)
{
	class[0] = '\0';
	if (strlen(code) == 3 && code[0] >= '1' && code[0] <= '5' &&
		code[1] >= '0' && code[1] <= '9' && code[2] >= '0' && code[2] <= '9')
	{
		class[0] = code[0];
		strcpy(class + 1, "xx");
	}
}

/* Let a less specific rule fill in what the more specific ones left open. */
static void
fill_in(OutboxRule *effective, const OutboxRule *rule)
{
	if (effective->action == OUTBOX_ACTION_NONE)
		effective->action = rule->action;
	if (effective->streak == OUTBOX_RULE_UNSET)
		effective->streak = rule->streak;
	if (effective->max_attempts == OUTBOX_RULE_UNSET)
		effective->max_attempts = rule->max_attempts;
	if (effective->backoff_max == OUTBOX_RULE_UNSET)
		effective->backoff_max = rule->backoff_max;
	if (effective->on_exhaustion == OUTBOX_PENDING)
		effective->on_exhaustion = rule->on_exhaustion;
}

static void
fill_in_matching(OutboxRule *effective, const OutboxRules *rules, const char *match)
{
	for (int i = 0; i < rules->nrules; i++)
	{
		if (strcmp(rules->rules[i].match, match) == 0)
			fill_in(effective, &rules->rules[i]);
	}
}

void
outbox_rules_match(const OutboxRules *rules, const char *code, bool success,
				   OutboxRule *effective)
{
	char		class[4];

	*effective = silent_rule;
	strlcpy(effective->match, code, sizeof(effective->match));

	class_of(code, class);
	if (rules == NULL)
		return;
	fill_in_matching(effective, rules, code);
	if (class[0] != '\0')
		fill_in_matching(effective, rules, class);
	if (!success)
		fill_in_matching(effective, rules, "*");
}
