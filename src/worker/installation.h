/*-------------------------------------------------------------------------
 *
 * installation.h
 *		Whether this database may send: is the extension here, of a version that
 *		this library serves, and is this the database it was installed in?
 *
 * A dump, a template copy or a logical subscriber carries the identity of
 * the database it was copied from.  A restored backup carries its own, and is
 * known by what restored.h noted; a copy of the data directory that nothing
 * else tells, by the name of the site where it runs.  In all of them
 * deliveries are held until outbox.adopt(), which notes where that was.
 *
 * Process: the dispatcher and the on_settle worker, in a transaction with a
 * snapshot; the function that tells SQL where this is, any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_INSTALLATION_H
#define OUTBOX_INSTALLATION_H

#include "outbox.h"

typedef struct OutboxInstallation
{
	bool		installed;
	Oid			extension;		/* another one after DROP and CREATE */
	bool		served;			/* by this library */
	char		why_copy[256];	/* it is a copy, and which kind of one; empty if it is none */
	bool		is_news;		/* outbox.installation is yet to be told of the restore or the site */
	char		problem[256];	/* when it is not served */
} OutboxInstallation;

/* In a transaction that acts as the owner, whose function says whether this is a copy. */
extern void outbox_installation_read(OutboxInstallation *installation);

/*
 * Write down in outbox.installation what is news, in such a transaction; only
 * the dispatcher does.  So a standby of a restored backup knows when it is
 * promoted that it may not send, without a file of its own.
 */
extern void outbox_installation_note(void);

#endif							/* OUTBOX_INSTALLATION_H */
