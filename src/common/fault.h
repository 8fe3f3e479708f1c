/*-------------------------------------------------------------------------
 *
 * fault.h
 *		What is wrong with an argument, as a value.
 *
 * Promises: a checker that finds something wrong fills in an OutboxFault
 * and returns false, so that its caller can choose between raising it
 * (stage) and returning it (try_stage) without catching errors.  Pure:
 * allocates in the current memory context, touches nothing else.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_FAULT_H
#define OUTBOX_FAULT_H

#include "compat.h"
#include "outbox.h"

typedef struct OutboxFault
{
	int			sqlstate;
	const char *message;
	const char *hint;			/* NULL: none */
} OutboxFault;

/* Note what is wrong.  Always returns false, so that checkers can return it. */
extern bool outbox_fault(OutboxFault *fault, int sqlstate, const char *hint,
						 const char *format, ...) pg_attribute_printf(4, 5);

/* Raise it as an error. */
pg_noreturn extern void outbox_raise_fault(const OutboxFault *fault);

#endif							/* OUTBOX_FAULT_H */
