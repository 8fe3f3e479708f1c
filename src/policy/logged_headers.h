/*-------------------------------------------------------------------------
 *
 * logged_headers.h
 *		The setting outbox.log_response_headers, parsed.
 *
 * Hooks for guc.c, and the names as they are now for the dispatcher.  Written
 * only by the GUC machinery.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_LOGGED_HEADERS_H
#define OUTBOX_LOGGED_HEADERS_H

#include "postgres.h"

#include "utils/guc.h"

/* So many headers can be named, with so many bytes each. */
#define OUTBOX_MAX_LOGGED_HEADERS 16
#define OUTBOX_LOGGED_HEADER_LEN 64

/* A copy of the names, in lower case, in the current memory context; returns how many there are. */
extern int	outbox_logged_headers_copy(const char *const **names);

extern bool outbox_check_logged_headers(char **newval, void **extra, GucSource source);
extern void outbox_assign_logged_headers(const char *newval, void *extra);

#endif							/* OUTBOX_LOGGED_HEADERS_H */
