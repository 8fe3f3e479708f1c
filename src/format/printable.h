/*-------------------------------------------------------------------------
 *
 * printable.h
 *		Makes text of whatever bytes a receiver sent.
 *
 * Pure.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_PRINTABLE_H
#define OUTBOX_PRINTABLE_H

#include "outbox.h"

/*
 * A palloc'd string that is valid in the server's encoding, of at most max
 * bytes: line ends and tabs stay, every byte that is a control character or
 * not valid UTF-8 is shown as \xHH.  In a database of another encoding
 * everything that is not ASCII is shown so.
 */
extern char *outbox_printable(const char *bytes, size_t len, size_t max);

/*
 * The same for the column error of views and the server's log: on one line,
 * blanks in a row being one, so that tables hold; and of a page of HTML only
 * what is to be read.
 */
extern char *outbox_error_text(const char *bytes, size_t len, size_t max);

#endif							/* OUTBOX_PRINTABLE_H */
