/*-------------------------------------------------------------------------
 *
 * restored.h
 *		Whether this data directory was restored from a backup.
 *
 * The original of a restored backup may be sending what the backup holds, so
 * nothing is sent there until outbox.adopt(); a standby that is promoted goes
 * on.  When all is done nothing tells the two apart, but before recovery
 * begins the files in the data directory do.  What they say is noted in a
 * file of our own, outbox.restored, with an id that no other restore has; the
 * dispatcher compares it with what outbox.installation has been told of.
 *
 * The file stays: it is this data directory's, and whatever is copied from
 * it is told apart by its own start, or, a standby, is a standby of it.  Only a
 * standby that was made of a recovery before that ended removes it.
 *
 * Process: noted by the postmaster (or a single-user server) when it loads
 * the library; may be asked by any process.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_RESTORED_H
#define OUTBOX_RESTORED_H

#include "postgres.h"

/* The file, in the data directory. */
#define OUTBOX_RESTORED_FILE "outbox.restored"

/*
 * Note what the files in the data directory say of it.  Called once, from
 * _PG_init, in a process that is nobody's child and has yet to recover; what
 * cannot be noted keeps the server from starting.
 */
extern void outbox_restored_note(void);

/* The id of the restore that this data directory comes from; NULL if it comes from none. */
extern const char *outbox_restored_as(void);

#endif							/* OUTBOX_RESTORED_H */
