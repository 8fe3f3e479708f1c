/*-------------------------------------------------------------------------
 *
 * durability.c
 *		When a row that can be seen is safe.
 *
 * See durability.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "access/xact.h"

#include "table/durability.h"

XLogRecPtr
outbox_row_flush_point(TupleTableSlot *slot, TransactionId safe_below)
{
	TransactionId xmin;

	if (!TTS_IS_BUFFERTUPLE(slot))
		return InvalidXLogRecPtr;
	/* Not the raw one: that stays when a row is frozen, and means another transaction after a wraparound. */
	xmin = HeapTupleHeaderGetXmin(((BufferHeapTupleTableSlot *) slot)->base.tuple->t_data);
	if (!TransactionIdIsNormal(xmin) || TransactionIdIsCurrentTransactionId(xmin) ||
		(TransactionIdIsValid(safe_below) && TransactionIdPrecedes(xmin, safe_below)))
		return InvalidXLogRecPtr;
	return TransactionIdGetCommitLSN(xmin);
}
