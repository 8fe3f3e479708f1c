/*-------------------------------------------------------------------------
 *
 * trace.h
 *		W3C Trace Context: what of it is fit to be sent on?
 *
 * Allocates nothing, raises nothing.  The values come from producers; bytes
 * need not end with NUL.  Process: any.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_TRACE_H
#define OUTBOX_TRACE_H

#include "outbox.h"

#include "utils/jsonb.h"

/* The trace context that a message's headers carry; points into them. */
typedef struct OutboxTrace
{
	const char *parent;
	size_t		parent_len;
	const char *state;			/* NULL: none, or none that is sound */
	size_t		state_len;
} OutboxTrace;

/* False if there is no sound traceparent among the headers, which may be NULL. */
extern bool outbox_find_trace(const Jsonb *headers, OutboxTrace *trace);

#endif							/* OUTBOX_TRACE_H */
