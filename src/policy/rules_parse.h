/*-------------------------------------------------------------------------
 *
 * rules_parse.h
 *		A handler's rules, from jsonb.
 *
 * create_handler() and alter_handler() check with it (outbox_internal.check_rules),
 * the dispatcher reads with it.  No SPI.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RULES_PARSE_H
#define OUTBOX_RULES_PARSE_H

#include "utils/jsonb.h"

#include "policy/rules.h"

/*
 * Read rules: an object with a rule for each match, which is an action or an
 * object of fields.  palloc'd as one chunk; NULL for NULL.  Raises
 * invalid_parameter_value that names the rule and the field, with a hint.
 */
extern OutboxRules *outbox_rules_parse(Jsonb *jsonb);

#endif							/* OUTBOX_RULES_PARSE_H */
