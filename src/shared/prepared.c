/*-------------------------------------------------------------------------
 *
 * prepared.c
 *		What prepared transactions have noted for the doorbell.
 *
 * See prepared.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "common/session.h"
#include "shared/prepared.h"

static const int kinds[] = {OUTBOX_PREPARED_ROWS, OUTBOX_PREPARED_HANDLERS};

void
outbox_prepared_mark(int what)
{
	for (int i = 0; i < lengthof(kinds); i++)
	{
		/* An extension of OID 0 is nobody's: no other lock has this name. */
		if (what & kinds[i])
			LockDatabaseObject(ExtensionRelationId, InvalidOid, kinds[i], AccessShareLock);
	}
}

static OutboxPlan xid_plan = {
	.sql = "SELECT p.transaction FROM pg_catalog.pg_prepared_xact() p WHERE p.gid OPERATOR(pg_catalog.=) $1",
	.nargs = 1,
	.argtypes = {TEXTOID},
};

/* InvalidTransactionId if there is no such transaction. */
static TransactionId
xid_of_gid(const char *gid)
{
	Datum		values[1] = {CStringGetTextDatum(gid)};
	TransactionId xid = InvalidTransactionId;
	bool		isnull;

	PushActiveSnapshot(GetTransactionSnapshot());
	SPI_connect();
	if (outbox_execute(&xid_plan, values, NULL, true, 1, SPI_OK_SELECT) == 1)
		xid = DatumGetTransactionId(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
	PopActiveSnapshot();
	return xid;
}

/* Is this holder of a lock that transaction?  In doubt it is. */
static bool
is_transaction(VirtualTransactionId holder, TransactionId xid)
{
	bool		have_more = false;

	if (VirtualTransactionIdIsRecoveredPreparedXact(holder))
		return holder.localTransactionId == xid;
	return TwoPhaseGetXidByVirtualXID(holder, &have_more) == xid || have_more;
}

int
outbox_prepared_marks(const char *gid)
{
	TransactionId xid = InvalidTransactionId;
	int			marks = 0;

	for (int i = 0; i < lengthof(kinds); i++)
	{
		LOCKTAG		tag;
		VirtualTransactionId *holders;
		int			n;

		SET_LOCKTAG_OBJECT(tag, MyDatabaseId, ExtensionRelationId, InvalidOid, kinds[i]);
		holders = GetLockConflicts(&tag, AccessExclusiveLock, &n);
		/* Only now is it worth finding out which transaction that is. */
		if (n > 0 && !TransactionIdIsValid(xid))
			xid = xid_of_gid(gid);
		for (int j = 0; j < n; j++)
		{
			if (is_transaction(holders[j], xid))
				marks |= kinds[i];
		}
	}
	return marks;
}
