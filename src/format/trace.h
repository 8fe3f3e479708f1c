/*-------------------------------------------------------------------------
 *
 * trace.h
 *		W3C Trace Context: are these values fit to be sent on?
 *
 * Pure: allocates nothing, raises nothing.  The values come from producers;
 * bytes need not end with NUL.  Any process.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TRACE_H
#define OUTBOX_TRACE_H

#include "outbox.h"

extern bool outbox_traceparent_is_valid(const char *value, size_t len);

/* At most 512 bytes and 32 members; only of use beside a valid traceparent. */
extern bool outbox_tracestate_is_valid(const char *value, size_t len);

#endif							/* OUTBOX_TRACE_H */
