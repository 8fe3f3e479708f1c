/*-------------------------------------------------------------------------
 *
 * topic_rules.h
 *		What outbox.create_topic() asks of messages, cached per backend.
 *
 * Promises: as those of routes, the rules are those that had committed, plus
 * what this transaction itself did, when the call was made, whatever the
 * isolation level and age of the caller's snapshot.  All rules hold whose
 * pattern takes the topic, those of the most general pattern first.  Without
 * any topic registered nothing is looked up but that there is none.
 *
 * Functions that check payloads run with the rights of their owners
 * (common/user_function.h), never with those of the extension's.
 *
 * Process: any backend, outside any parallel worker.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TOPIC_RULES_H
#define OUTBOX_TOPIC_RULES_H

#include "stage/new_message.h"

/* The rules of one topic, in the memory context of the call. */
typedef struct OutboxTopicRules OutboxTopicRules;

/*
 * Look up the rules of a valid topic, after outbox_routes(), which takes in
 * what has changed.  *rules is NULL if there are none.  False, with the fault
 * filled in, if the topic is unknown and outbox.unknown_topics forbids that.
 * Raises undefined_function, insufficient_privilege or
 * invalid_function_definition for a check_function that cannot be called, and
 * feature_not_supported for a schema without pg_jsonschema.
 */
extern bool outbox_topic_rules_find(const char *topic, int len, OutboxTopicRules **rules, OutboxFault *fault);

/*
 * Does a message keep to them?  Fills fault if not.  Errors of a check_function
 * that say nothing of the payload are raised.
 */
extern bool outbox_topic_rules_hold(OutboxTopicRules *rules, const OutboxNewMessage *message, OutboxFault *fault);

/* Called from the relcache callback of routes.c: this relation has changed. */
extern void outbox_topic_rules_relation_changed(Oid relid);

#endif							/* OUTBOX_TOPIC_RULES_H */
