/*-------------------------------------------------------------------------
 *
 * topic.h
 *		Topics and the patterns handlers take them by.
 *
 * A topic is one or more segments of lowercase letters, digits, "_" and
 * "-", joined by single dots, at most OUTBOX_TOPIC_MAX bytes in all:
 * "billing.invoice.paid".  A pattern is a topic, a topic followed by ".*"
 * (every topic below it, at any depth, but not itself), or "*" (every
 * topic but those of outbox's own events, which begin with "outbox": who
 * takes everything did not ask for what happens to the messages themselves).
 *
 * Pure functions over bytes; no allocation but for a fault's text.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TOPIC_H
#define OUTBOX_TOPIC_H

#include "outbox.h"

#include "common/fault.h"

/* Is it a topic?  Fills fault if not. */
extern bool outbox_check_topic(const char *topic, int len, OutboxFault *fault);

/* Is it a pattern?  Fills fault if not. */
extern bool outbox_check_pattern(const char *pattern, int len, OutboxFault *fault);

/* Is it a topic of outbox's own events, or a pattern for such?  Nobody else may stage any. */
extern bool outbox_is_event_topic(const char *topic, int len);

/*
 * The key a pattern is filed under: the topic itself for an exact one, the
 * prefix with its last dot for a trailing wildcard, nothing for "*".  No
 * topic ends with a dot, so the three kinds never meet.  Returns the length
 * of the key, which begins where the pattern begins.
 */
extern int	outbox_pattern_key(const char *pattern, int len);

/*
 * The keys under which patterns that take this topic are filed, one by one:
 * start with *position = 0 and go on while it returns true.  *key_len is
 * the length of a key that begins where the topic begins.
 */
extern bool outbox_next_topic_key(const char *topic, int len, int *position, int *key_len);

/* Does the pattern take the topic?  Both must be valid. */
extern bool outbox_pattern_takes(const char *pattern, int pattern_len,
								 const char *topic, int topic_len);

#endif							/* OUTBOX_TOPIC_H */
