/*-------------------------------------------------------------------------
 *
 * installation.h
 *		Whether this database may send: is the extension here, of the right
 *		version, and is this the database it was installed in?
 *
 * A dump, a template copy or a logical subscriber carries the identity of
 * the database it was copied from.  There deliveries are held until
 * outbox.adopt().
 *
 * Process: the dispatcher, in a transaction with a snapshot.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_INSTALLATION_H
#define OUTBOX_INSTALLATION_H

#include "outbox.h"

#define OUTBOX_HELD_MESSAGE \
	"this database is a copy of another one: nothing is sent until SELECT outbox.adopt() makes it the sender"

typedef struct OutboxInstallation
{
	bool		installed;
	Oid			extension;		/* another one after DROP and CREATE */
	bool		version_matches;
	bool		is_copy;			/* a copy */
	char		problem[256];	/* when the version does not match */
} OutboxInstallation;

/* In a transaction that acts as the owner, whose function says whether this is a copy. */
extern void outbox_installation_read(OutboxInstallation *installation);

#endif							/* OUTBOX_INSTALLATION_H */
