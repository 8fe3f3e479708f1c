/*-------------------------------------------------------------------------
 *
 * printable.h
 *		Makes text of whatever bytes a receiver sent.
 *
 * Pure; any process.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_PRINTABLE_H
#define OUTBOX_PRINTABLE_H

#include "outbox.h"

/*
 * A palloc'd string that is valid in the server's encoding: line ends and
 * tabs stay, every byte that is a control character or not valid UTF-8 is
 * shown as \xHH.  In a database of another encoding everything that is not
 * ASCII is shown so.
 */
extern char *outbox_printable(const char *bytes, size_t len);

#endif							/* OUTBOX_PRINTABLE_H */
