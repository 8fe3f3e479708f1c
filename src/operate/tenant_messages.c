/*-------------------------------------------------------------------------
 *
 * tenant_messages.c
 *		Which messages of a tenant have something outstanding, dead or cancelled.
 *
 * Deliveries say nothing of tenants, and messages nothing of states; but two
 * indexes have the ids of messages in the same order: that of the tenant's
 * messages, and that of what is outstanding or buried.  They are read side by
 * side, newest first, and whichever is ahead of the other skips to it.  So this
 * takes no longer than reading the shorter one, and no row is fetched.
 *
 * What it returns are entries of indexes.  Whether the snapshot shows them, and
 * which state and handler they are of, their rows say: the caller has to look.
 *
 * Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"
#include "utils/uuid.h"

#include "common/result_set.h"
#include "compat.h"
#include "outbox.h"
#include "table/relation.h"

/* So many entries are stepped over before the index is searched instead. */
#define MOST_STEPS 16

/* One of the two indexes, and the id it is at. */
typedef struct Side
{
	Relation	rel;
	Relation	index;
	IndexScanDesc scan;
	AttrNumber	id_column;		/* of the index */
	const text *tenant;			/* its first column, if that is not the id */
	pg_uuid_t	lowest;			/* bounds of the scan, which looks at them for as long as it lasts */
	pg_uuid_t	highest;
	pg_uuid_t	id;
	bool		ended;
} Side;

static void
open_side(Side *side, const char *table, const char *index, const text *tenant, const pg_uuid_t *lowest)
{
	memset(side, 0, sizeof(Side));
	side->rel = outbox_table_open(table, AccessShareLock);
	side->index = outbox_index_open(side->rel, index, AccessShareLock);
	side->tenant = tenant;
	side->id_column = tenant != NULL ? 2 : 1;
	side->lowest = *lowest;
	side->scan = outbox_index_beginscan(side->rel, side->index, GetActiveSnapshot(), side->id_column + 1);
	side->scan->xs_want_itup = true;
}

static void
close_side(Side *side)
{
	index_endscan(side->scan);
	index_close(side->index, NoLock);
	table_close(side->rel, NoLock);
}

static void
step(Side *side)
{
	bool		isnull;

	CHECK_FOR_INTERRUPTS();
	if (index_getnext_tid(side->scan, BackwardScanDirection) == NULL)
		side->ended = true;
	else
		side->id = *DatumGetUUIDP(index_getattr(side->scan->xs_itup, side->id_column, side->scan->xs_itupdesc, &isnull));
}

/* Go to the last entry that is at most highest, or below it. */
static void
seek(Side *side, pg_uuid_t highest, bool below)
{
	ScanKeyData keys[3];
	int			n = 0;

	side->highest = highest;
	if (side->tenant != NULL)
		ScanKeyEntryInitialize(&keys[n++], 0, 1, BTEqualStrategyNumber, InvalidOid, side->index->rd_indcollation[0],
							   F_TEXTEQ, PointerGetDatum(side->tenant));
	ScanKeyInit(&keys[n++], side->id_column, BTGreaterEqualStrategyNumber, F_UUID_GE, UUIDPGetDatum(&side->lowest));
	if (below)
		ScanKeyInit(&keys[n++], side->id_column, BTLessStrategyNumber, F_UUID_LT, UUIDPGetDatum(&side->highest));
	else
		ScanKeyInit(&keys[n++], side->id_column, BTLessEqualStrategyNumber, F_UUID_LE, UUIDPGetDatum(&side->highest));
	index_rescan(side->scan, keys, n, NULL, 0);
	step(side);
}

static int
compare(const Side *a, const Side *b)
{
	return memcmp(&a->id, &b->id, sizeof(pg_uuid_t));
}

/* The side that is at the newer id goes on to that of the other one, or past it. */
static void
catch_up(Side *side, const Side *other)
{
	pg_uuid_t	highest = other->id;

	for (int i = 0; i < MOST_STEPS; i++)
	{
		step(side);
		if (side->ended || compare(side, other) <= 0)
			return;
	}
	seek(side, highest, false);
}

PG_FUNCTION_INFO_V1(outbox_sql_tenant_messages);

/*
 * outbox_internal.tenant_messages(tenant text, outstanding boolean, lowest uuid,
 * highest uuid, below boolean, most int)
 */
Datum
outbox_sql_tenant_messages(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = outbox_begin_result_set(fcinfo, 1);
	const text *tenant = PG_GETARG_TEXT_PP(0);
	bool		outstanding = PG_GETARG_BOOL(1);
	const pg_uuid_t *lowest = PG_GETARG_UUID_P(2);
	const pg_uuid_t *highest = PG_GETARG_UUID_P(3);
	bool		below = PG_GETARG_BOOL(4);
	int			left = PG_GETARG_INT32(5);
	Side		messages;
	Side		deliveries;

	open_side(&messages, "message", "message_tenant", tenant, lowest);
	if (outstanding)
		open_side(&deliveries, "delivery", "delivery_pkey", NULL, lowest);
	else
		open_side(&deliveries, "receipt", "receipt_buried", NULL, lowest);
	seek(&messages, *highest, below);
	seek(&deliveries, *highest, below);
	while (left > 0 && !messages.ended && !deliveries.ended)
	{
		int			order = compare(&messages, &deliveries);

		if (order > 0)
			catch_up(&messages, &deliveries);
		else if (order < 0)
			catch_up(&deliveries, &messages);
		else
		{
			Datum		values[1] = {UUIDPGetDatum(&messages.id)};
			bool		isnull[1] = {false};

			tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
			left--;
			step(&messages);
		}
	}
	close_side(&deliveries);
	close_side(&messages);
	PG_RETURN_NULL();
}
