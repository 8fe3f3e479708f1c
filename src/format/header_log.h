/*-------------------------------------------------------------------------
 *
 * header_log.h
 *		Headers of an answer, as the log of attempts keeps them.
 *
 * Pure.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_HEADER_LOG_H
#define OUTBOX_HEADER_LOG_H

#include "outbox.h"

/*
 * A palloc'd JSON object of what a transport has kept (HttpExchange.kept):
 * for each header the number of its name, its value, and NUL.  Values are
 * made printable, those of a name that came several times are one list.
 * NULL if there is none.
 */
extern char *outbox_header_log(const char *const *names, int nnames, const char *kept, size_t len);

#endif							/* OUTBOX_HEADER_LOG_H */
