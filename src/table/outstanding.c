/*-------------------------------------------------------------------------
 *
 * outstanding.c
 *		Reading the index of outstanding deliveries in queue order.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/itup.h"
#include "access/relscan.h"
#include "access/skey.h"
#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "table/outstanding.h"

void
outbox_outstanding_rescan(IndexScanDesc scan, OutboxOutstandingStart *start,
						  int32 handler_id, const OutboxQueuePosition *at, bool after)
{
	StrategyNumber strategy = after ? BTGreaterStrategyNumber : BTGreaterEqualStrategyNumber;
	ScanKeyData keys[2];

	start->key = *at;
	ScanKeyEntryInitialize(&start->row[0], SK_ROW_MEMBER, 2, strategy, TIMESTAMPTZOID, InvalidOid,
						   F_TIMESTAMPTZ_CMP, TimestampTzGetDatum(start->key.due_at));
	ScanKeyEntryInitialize(&start->row[1], SK_ROW_MEMBER | SK_ROW_END, 3, strategy, UUIDOID, InvalidOid,
						   F_UUID_CMP, UUIDPGetDatum(&start->key.id));

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(handler_id));
	memset(&keys[1], 0, sizeof(ScanKeyData));
	keys[1].sk_flags = SK_ROW_HEADER;
	keys[1].sk_attno = 2;
	keys[1].sk_strategy = strategy;
	keys[1].sk_argument = PointerGetDatum(start->row);

	index_rescan(scan, keys, 2, NULL, 0);
}

void
outbox_outstanding_key(IndexScanDesc scan, OutboxQueuePosition *key)
{
	bool		isnull;

	key->due_at = DatumGetTimestampTz(index_getattr(scan->xs_itup, 2, scan->xs_itupdesc, &isnull));
	key->id = *DatumGetUUIDP(index_getattr(scan->xs_itup, 3, scan->xs_itupdesc, &isnull));
}

void
outbox_init_key_scan(ScanKey keys, Relation index, int32 handler_id, const text *key)
{
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(handler_id));
	ScanKeyEntryInitialize(&keys[1], 0, 2, BTEqualStrategyNumber, InvalidOid,
						   index->rd_indcollation[1], F_TEXTEQ, PointerGetDatum(key));
}
