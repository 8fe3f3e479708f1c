/*-------------------------------------------------------------------------
 *
 * work.c
 *		The bracket around a worker's work in the database: one transaction.
 *
 * See work.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "common/session.h"
#include "worker/failure.h"
#include "worker/interrupt.h"
#include "worker/statistics.h"
#include "worker/work.h"

void
outbox_work_begin(bool as_owner)
{
	outbox_interrupts_admit();
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (as_owner)
		outbox_act_as_owner();
}

void
outbox_work_commit(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	outbox_act_as_worker();
	outbox_statistics_note();
	outbox_interrupts_refuse();
}

ErrorData *
outbox_work_abort(MemoryContext context, TimestampTz now)
{
	ErrorData  *edata;

	MemoryContextSwitchTo(context);
	edata = CopyErrorData();
	HOLD_INTERRUPTS();
	outbox_failure_report(edata, now);
	AbortCurrentTransaction();
	FlushErrorState();
	outbox_statistics_note();
	outbox_interrupts_refuse();
	RESUME_INTERRUPTS();
	MemoryContextSwitchTo(context);
	return edata;
}
