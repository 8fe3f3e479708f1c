/*-------------------------------------------------------------------------
 *
 * fault.c
 *		What is wrong with an argument, as a value.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"

#include "common/fault.h"

bool
outbox_fault(OutboxFault *fault, int sqlstate, const char *hint, const char *format, ...)
{
	StringInfoData message;

	initStringInfo(&message);
	for (;;)
	{
		va_list		args;
		int			needed;

		va_start(args, format);
		needed = appendStringInfoVA(&message, format, args);
		va_end(args);
		if (needed == 0)
			break;
		enlargeStringInfo(&message, needed);
	}
	fault->sqlstate = sqlstate;
	fault->message = message.data;
	fault->hint = hint;
	return false;
}

void
outbox_raise_fault(const OutboxFault *fault)
{
	ereport(ERROR,
			(errcode(fault->sqlstate),
			 errmsg("%s", fault->message),
			 fault->hint ? errhint("%s", fault->hint) : 0));
}
