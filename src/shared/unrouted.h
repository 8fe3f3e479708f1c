/*-------------------------------------------------------------------------
 *
 * unrouted.h
 *		Counts the messages that no handler takes, by topic.
 *
 * A topic or a pattern that is mistyped shows nowhere else: such messages are
 * kept, or refused, and nobody is told.  They are counted in shared memory
 * when they commit, since the server started; those that are refused are
 * counted at once, for their transaction will not commit.  Of a message in a
 * savepoint that was rolled back the count stays.  The last topics are kept
 * by name, the counts of others together.
 *
 * Processes: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_UNROUTED_H
#define OUTBOX_UNROUTED_H

#include "shared/shmem.h"

/* This transaction has staged a message of a topic (len bytes, at most OUTBOX_TOPIC_MAX) that nobody takes. */
extern void outbox_unrouted_note(const char *topic, int len);

/* Messages of the topic were refused. */
extern void outbox_unrouted_refused(const char *topic, int len);

/* Called by the library's transaction callback.  Never fail. */
extern void outbox_unrouted_at_commit(void);
extern void outbox_unrouted_at_abort(void);

#endif							/* OUTBOX_UNROUTED_H */
