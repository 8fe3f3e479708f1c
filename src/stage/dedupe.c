/*-------------------------------------------------------------------------
 *
 * dedupe.c
 *		Dedupe keys that live longer, or shorter, than their messages.
 *
 * See dedupe.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/skey.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "compat.h"
#include "guc.h"
#include "stage/dedupe.h"
#include "table/columns.h"
#include "table/relation.h"

static const text *
tenant_of(const OutboxNewMessage *message)
{
	return message->arguments->tenant != NULL ? message->arguments->tenant : cstring_to_text("");
}

/* What was staged by then is over. */
static TimestampTz
cutoff(const OutboxNewMessage *message)
{
	return message->arguments->staged_at - outbox_dedupe_window * USECS_PER_SEC;
}

bool
outbox_dedupe_is_over(const OutboxNewMessage *message, TimestampTz staged_at)
{
	return staged_at <= cutoff(message);
}

static bool
same_text(const text *a, const text *b)
{
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) && memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* The row of the key is in the slot. */
static bool
read_first(const OutboxNewMessage *message, TupleTableSlot *slot, OutboxFirst *first)
{
	bool		isnull;

	if (outbox_dedupe_is_over(message, DatumGetTimestampTz(slot_getattr(slot, Anum_dedupe_key_staged_at, &isnull))))
		return false;
	first->id = *DatumGetUUIDP(slot_getattr(slot, Anum_dedupe_key_message_id, &isnull));
	first->same_topic = same_text(DatumGetTextPP(slot_getattr(slot, Anum_dedupe_key_topic, &isnull)), message->arguments->topic);
	return true;
}

bool
outbox_dedupe_find(const OutboxNewMessage *message, OutboxFirst *first)
{
	Relation	rel = outbox_table_open("dedupe_key", AccessShareLock);
	Relation	index = outbox_index_open(rel, "dedupe_key_pkey", AccessShareLock);
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	IndexScanDesc scan;
	ScanKeyData keys[2];
	bool		found;

	PushActiveSnapshot(GetLatestSnapshot());
	scan = outbox_index_beginscan(rel, index, GetActiveSnapshot(), 2);
	ScanKeyEntryInitialize(&keys[0], 0, 1, BTEqualStrategyNumber, InvalidOid, index->rd_indcollation[0], F_TEXTEQ, PointerGetDatum(tenant_of(message)));
	ScanKeyEntryInitialize(&keys[1], 0, 2, BTEqualStrategyNumber, InvalidOid, index->rd_indcollation[1], F_TEXTEQ, PointerGetDatum(message->dedupe_key));
	index_rescan(scan, keys, 2, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot) && read_first(message, slot, first);
	index_endscan(scan);
	PopActiveSnapshot();
	ExecDropSingleTupleTableSlot(slot);
	index_close(index, NoLock);
	table_close(rel, NoLock);
	return found;
}

/* One that is being taken over by somebody else is waited for. */
static OutboxPlan take_over_plan = {
	.sql = "INSERT INTO outbox.dedupe_key AS k (tenant, dedupe_key, staged_at, message_id, topic, key, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $8) "
	"ON CONFLICT (tenant, dedupe_key) DO UPDATE SET staged_at = EXCLUDED.staged_at, message_id = EXCLUDED.message_id, "
	"topic = EXCLUDED.topic, key = EXCLUDED.key, expires_at = EXCLUDED.expires_at WHERE k.staged_at OPERATOR(pg_catalog.<=) $7",
	.nargs = 8,
	.argtypes = {TEXTOID, TEXTOID, TIMESTAMPTZOID, UUIDOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
};

bool
outbox_dedupe_take_over(const OutboxNewMessage *message)
{
	OutboxSecurity security;
	Datum		values[8] = {
		PointerGetDatum(tenant_of(message)), PointerGetDatum(message->dedupe_key),
		TimestampTzGetDatum(message->arguments->staged_at), UUIDPGetDatum(&message->id),
		PointerGetDatum(message->arguments->topic), PointerGetDatum(message->key), TimestampTzGetDatum(cutoff(message)),
		TimestampTzGetDatum(message->arguments->staged_at + outbox_dedupe_window * USECS_PER_SEC)
	};
	char		nulls[9] = "        ";
	bool		taken;

	if (message->key == NULL)
		nulls[5] = 'n';
	outbox_become_owner_to_write(&security, "dedupe_key");
	taken = outbox_execute_unseen(&take_over_plan, values, nulls, false, 0, SPI_OK_INSERT) > 0;
	outbox_become_caller(&security);
	return taken;
}

static OutboxPlan withdraw_plan = {
	.sql = "DELETE FROM outbox.message m WHERE m.id OPERATOR(pg_catalog.=) $1",
	.nargs = 1,
	.argtypes = {UUIDOID},
};

void
outbox_dedupe_withdraw(const OutboxNewMessage *message)
{
	Datum		values[1] = {UUIDPGetDatum(&message->id)};

	(void) outbox_execute(&withdraw_plan, values, NULL, false, 0, SPI_OK_DELETE);
}

PG_FUNCTION_INFO_V1(outbox_sql_dedupe_window);

/* outbox_internal.dedupe_window() */
Datum
outbox_sql_dedupe_window(PG_FUNCTION_ARGS)
{
	Interval   *window;

	if (outbox_dedupe_window == 0)
		PG_RETURN_NULL();
	window = palloc0(sizeof(Interval));
	window->time = outbox_dedupe_window * USECS_PER_SEC;
	PG_RETURN_INTERVAL_P(window);
}
