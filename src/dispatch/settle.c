/*-------------------------------------------------------------------------
 *
 * settle.c
 *		Records the outcomes of attempts, a batch in one transaction.
 *
 * See settle.h.  Each row is found where it was read, or by primary key,
 * locked if nobody else holds it, compared with what was read, and updated:
 * the steps that logical replication takes to apply an update, so no planner
 * can choose another way.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/relation.h"
#include "access/skey.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/confirm.h"
#include "dispatch/hand_over.h"
#include "dispatch/order.h"
#include "dispatch/reading.h"
#include "dispatch/schedule.h"
#include "dispatch/settle.h"
#include "table/attempt_log.h"
#include "table/relation.h"

/* Outcomes settled by one transaction. */
#define MAX_BATCH 2000

/* A row that somebody holds is tried again after this time. */
#define LOCKED_RETRY_US (100 * 1000)

typedef enum SettleResult
{
	SETTLED,
	ROW_LOCKED,						/* somebody has locked or just changed the row */
	OBSOLETE					/* the row is no longer what was read */
} SettleResult;

typedef enum Column
{
	C_MESSAGE_ID, C_HANDLER_ID, C_DUE_AT, C_SETTLED_AT, C_ATTEMPTS, C_BUDGET_FROM, C_STATE, C_STREAK, C_HTTP_STATUS, C_CODE, C_ERROR, COLUMNS
} Column;

static const char *const column_names[COLUMNS] = {
	"message_id", "handler_id", "due_at", "settled_at", "attempts", "budget_from", "state", "streak", "http_status", "code", "error"
};

static AttrNumber columns[COLUMNS];

/* What is open while a transaction settles. */
typedef struct RowWriter
{
	Relation	delivery;
	Relation	pkey;
	IndexScanDesc scan;
	BlockNumber nblocks;		/* of the table; what was read may lie beyond it after a TRUNCATE */
	TupleTableSlot *found;
	TupleTableSlot *changed;
	EState	   *estate;
	ResultRelInfo *result;
} RowWriter;

static RowWriter writer;

/* Outcomes that wait, oldest first: plain successes apart, and those whose row somebody holds. */
static dlist_head waiting = DLIST_STATIC_INIT(waiting);
static dlist_head plain = DLIST_STATIC_INIT(plain);
static dlist_head locked_rows = DLIST_STATIC_INIT(locked_rows);
static int	nwaiting = 0;		/* of the first two */
static int	nplain = 0;

/* Outcomes that the running transaction has settled or found obsolete. */
static dlist_head settled = DLIST_STATIC_INIT(settled);

/* Would the settlement write more than a receipt, or must it go in order? */
static bool
is_plain(const OutboxDelivery *delivery)
{
	return delivery->verdict.state == OUTBOX_DELIVERED && delivery->attempted &&
		!delivery->has_on_settle && !delivery->settle_here && delivery->order_key == NULL &&
		delivery->error == NULL && delivery->verdict.code[0] == '\0' && delivery->verdict.streak == 0 &&
		!outbox_should_log(OUTBOX_DELIVERED);
}

/* They are told apart when they start to wait, so that no look at them has to pass the others. */
static dlist_head *
start_waiting(OutboxDelivery *delivery)
{
	delivery->is_plain = is_plain(delivery);
	delivery->with_settler = false;
	nwaiting++;
	if (delivery->is_plain)
		nplain++;
	return delivery->is_plain ? &plain : &waiting;
}

static void
stop_waiting(OutboxDelivery *delivery)
{
	dlist_delete(&delivery->link);
	nwaiting--;
	if (delivery->is_plain)
		nplain--;
}

static OutboxDelivery *
first_waiting(void)
{
	return dlist_head_element(OutboxDelivery, link, dlist_is_empty(&waiting) ? &plain : &waiting);
}

void
outbox_outcome_add(OutboxDelivery *delivery)
{
	if (!outbox_order_answered(delivery))
	{
		outbox_order_discard(delivery);
		return;
	}
	delivery->phase = OUTBOX_PHASE_ANSWERED;
	if (delivery->finished_at == 0)
		delivery->finished_at = GetCurrentTimestamp();
	dlist_push_tail(start_waiting(delivery), &delivery->link);
	delivery->lane->unsettled++;
}

int
outbox_outcomes_waiting(void)
{
	return nwaiting;
}

static TimestampTz
oldest_of(dlist_head *list)
{
	return dlist_is_empty(list) ? DT_NOEND : dlist_head_element(OutboxDelivery, link, list)->finished_at;
}

TimestampTz
outbox_outcomes_oldest(void)
{
	return Min(oldest_of(&waiting), oldest_of(&plain));
}

TimestampTz
outbox_outcomes_next_locked(void)
{
	if (dlist_is_empty(&locked_rows))
		return DT_NOEND;
	return dlist_head_element(OutboxDelivery, link, &locked_rows)->settle_after;
}

static void
wait_again(dlist_node *node)
{
	dlist_push_head(start_waiting(dlist_container(OutboxDelivery, link, node)), node);
}

int
outbox_outcomes_plain(void)
{
	return nplain;
}

int
outbox_outcomes_take_plain(dlist_head *to, int max)
{
	int			n = 0;

	for (; n < max && nplain > 0; n++)
	{
		OutboxDelivery *delivery = dlist_head_element(OutboxDelivery, link, &plain);

		stop_waiting(delivery);
		delivery->with_settler = true;
		/* Unless it is met again meanwhile. */
		delivery->found_due_at = DT_NOEND;
		dlist_push_tail(to, &delivery->link);
	}
	return n;
}

void
outbox_outcomes_give_back(dlist_head *from)
{
	while (!dlist_is_empty(from))
	{
		dlist_node *node = dlist_tail_node(from);

		dlist_delete(node);
		wait_again(node);
	}
}

/*
 * Locked rows whose time has come wait again.  All wait equally long, so the
 * first is the earliest, and it stays the first.
 */
static void
retry_locked(TimestampTz now)
{
	dlist_head	due = DLIST_STATIC_INIT(due);

	while (outbox_outcomes_next_locked() <= now)
		dlist_push_head(&due, dlist_pop_head_node(&locked_rows));
	while (!dlist_is_empty(&due))
		wait_again(dlist_pop_head_node(&due));
}

static bool
open_writer(void)
{
	/* The other tables are locked here as well, so that writing to them cannot wait later. */
	if (!outbox_lock_if_free("delivery", RowExclusiveLock) || !outbox_lock_if_free("attempt", RowExclusiveLock) ||
		!outbox_lock_if_free("on_settle_queue", RowExclusiveLock))
		return false;
	writer.delivery = outbox_table_open("delivery", NoLock);
	writer.pkey = outbox_index_open(writer.delivery, "delivery_pkey", NoLock);

	for (int i = 0; i < COLUMNS; i++)
	{
		if (columns[i] == 0)
			columns[i] = get_attnum(RelationGetRelid(writer.delivery), column_names[i]);
	}

	writer.nblocks = RelationGetNumberOfBlocks(writer.delivery);
	writer.estate = CreateExecutorState();
	writer.result = makeNode(ResultRelInfo);
	/* In no range table: no statement is being executed. */
	InitResultRelInfo(writer.result, writer.delivery, 0, NULL, 0);
	ExecOpenIndices(writer.result, false);
	writer.found = table_slot_create(writer.delivery, NULL);
	writer.changed = table_slot_create(writer.delivery, NULL);
	writer.scan = outbox_index_beginscan(writer.delivery, writer.pkey, GetActiveSnapshot(), 2);
	return true;
}

static void
close_writer(void)
{
	index_endscan(writer.scan);
	ExecDropSingleTupleTableSlot(writer.changed);
	ExecDropSingleTupleTableSlot(writer.found);
	ExecCloseIndices(writer.result);
	FreeExecutorState(writer.estate);
	index_close(writer.pkey, NoLock);
	relation_close(writer.delivery, NoLock);
}

static bool
find_by_key(const OutboxDelivery *delivery)
{
	ScanKeyData keys[2];

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(&delivery->id));
	ScanKeyInit(&keys[1], 2, BTEqualStrategyNumber, F_INT4EQ, Int32GetDatum(delivery->handler_id));
	index_rescan(writer.scan, keys, 2, NULL, 0);
	return index_getnext_slot(writer.scan, ForwardScanDirection, writer.found);
}

static bool
is_same_delivery(const OutboxDelivery *delivery)
{
	bool		isnull;
	Datum		id = slot_getattr(writer.found, columns[C_MESSAGE_ID], &isnull);

	return memcmp(DatumGetUUIDP(id), &delivery->id, UUID_LEN) == 0 &&
		DatumGetInt32(slot_getattr(writer.found, columns[C_HANDLER_ID], &isnull)) == delivery->handler_id;
}

/*
 * The row is as a rule still where it was read, which saves a descent of the
 * index.  If it moved, or another row took its place (VACUUM FULL, or an
 * update and a vacuum), the key finds it.
 */
static bool
find_row(const OutboxDelivery *delivery)
{
	ItemPointerData tid = delivery->tid;

	if (ItemPointerIsValid(&tid) && ItemPointerGetBlockNumber(&tid) < writer.nblocks &&
		table_tuple_fetch_row_version(writer.delivery, &tid, GetActiveSnapshot(), writer.found) &&
		is_same_delivery(delivery))
		return true;
	return find_by_key(delivery);
}

static Datum
found_column(Column column)
{
	bool		isnull;

	/* Only columns that are NOT NULL are asked for. */
	return slot_getattr(writer.found, columns[column], &isnull);
}

static bool
is_outstanding(void)
{
	return DatumGetInt16(found_column(C_STATE)) < OUTBOX_DELIVERED;
}

/* The fence: is the row still what was read? */
static bool
is_as_read(const OutboxDelivery *delivery)
{
	return is_outstanding() &&
		DatumGetInt32(found_column(C_ATTEMPTS)) == delivery->attempts &&
		DatumGetInt32(found_column(C_BUDGET_FROM)) == delivery->budget_from;
}

static void
set_column(Column column, Datum value, bool isnull)
{
	writer.changed->tts_values[columns[column] - 1] = value;
	writer.changed->tts_isnull[columns[column] - 1] = isnull;
}

static void
set_text(Column column, const char *value)
{
	bool		isnull = (value == NULL || value[0] == '\0');

	set_column(column, isnull ? (Datum) 0 : CStringGetTextDatum(value), isnull);
}

static void
put_outcome(const OutboxDelivery *delivery, TimestampTz now)
{
	bool		final = delivery->verdict.state >= OUTBOX_DELIVERED;

	set_column(C_STATE, Int16GetDatum(delivery->verdict.state), false);
	set_column(C_STREAK, Int16GetDatum(Min(delivery->verdict.streak, PG_INT16_MAX)), false);
	set_column(C_HTTP_STATUS, Int16GetDatum(delivery->http_status), delivery->http_status == 0);
	set_text(C_CODE, delivery->verdict.code);
	set_text(C_ERROR, delivery->error);
	set_column(C_SETTLED_AT, TimestampTzGetDatum(now), !final);
	if (!final)
		set_column(C_DUE_AT, TimestampTzGetDatum(delivery->next_due_at), false);
}

/* Handed over: nobody is to try it until an on_settle worker has settled it; what the attempt before left stays. */
static void
put_hand_over(void)
{
	set_column(C_STATE, Int16GetDatum(OUTBOX_LEASED), false);
	set_column(C_DUE_AT, TimestampTzGetDatum(DT_NOEND), false);
}

/* The row as it is to be: the found one with the outcome put in. */
static void
fill_changed(const OutboxDelivery *delivery, TimestampTz now)
{
	int			natts = writer.found->tts_tupleDescriptor->natts;

	slot_getallattrs(writer.found);
	ExecClearTuple(writer.changed);
	memcpy(writer.changed->tts_values, writer.found->tts_values, sizeof(Datum) * natts);
	memcpy(writer.changed->tts_isnull, writer.found->tts_isnull, sizeof(bool) * natts);

	set_column(C_ATTEMPTS, Int32GetDatum(delivery->attempts + (delivery->attempted ? 1 : 0)), false);
	/* An attempt that is not to count moves the start of the budget along with it. */
	if (delivery->verdict.spares_budget)
		set_column(C_BUDGET_FROM, Int32GetDatum(delivery->budget_from + 1), false);
	if (delivery->has_on_settle)
		put_hand_over();
	else
		put_outcome(delivery, now);
	ExecStoreVirtualTuple(writer.changed);
}

/* Lock the found row unless somebody else has it. */
static bool
lock_row(void)
{
	TM_FailureData failure;
	ItemPointerData tid = writer.found->tts_tid;

	return table_tuple_lock(writer.delivery, &tid, GetActiveSnapshot(), writer.found,
							GetCurrentCommandId(false), LockTupleNoKeyExclusive,
							LockWaitSkip, 0, &failure) == TM_Ok;
}

static SettleResult
settle_one(const OutboxDelivery *delivery, TimestampTz now)
{
	if (!find_row(delivery) || !is_as_read(delivery))
		return OBSOLETE;
	if (!lock_row())
		return ROW_LOCKED;
	fill_changed(delivery, now);
	if (!outbox_update_row(writer.delivery, writer.found, writer.changed,
						   writer.result, writer.estate))
		return ROW_LOCKED;
	ResetPerTupleExprContext(writer.estate);
	return SETTLED;
}

/* Has the running, or just committed, transaction handed it over? */
static bool
is_handed_over(const OutboxDelivery *delivery)
{
	return delivery->has_on_settle && !delivery->obsolete;
}

static void
log_attempt(const OutboxDelivery *delivery)
{
	OutboxAttempt attempt = {
		.message_id = delivery->id,
		.handler_id = delivery->handler_id,
		.attempt = delivery->attempts + 1,
		.finished_at = delivery->finished_at,
		.duration_us = delivery->duration_us,
		.outcome = delivery->verdict.state,
		.http_status = delivery->http_status,
		.code = delivery->verdict.code,
		.error = delivery->error
	};

	outbox_log_attempt(&attempt);
}

/* What else is to be written of the settled ones: those handed over, and the log of the others. */
static void
write_beside(void)
{
	dlist_iter	iter;
	bool		connected = false;

	dlist_foreach(iter, &settled)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);

		if (delivery->obsolete ||
			(!delivery->has_on_settle && (!delivery->attempted || !outbox_should_log(delivery->verdict.state))))
			continue;
		if (!connected)
			SPI_connect();
		connected = true;
		if (delivery->has_on_settle)
			outbox_on_settle_hand_over(delivery);
		else
			log_attempt(delivery);
	}
	if (connected)
		SPI_finish();
}

/* An obsolete outcome whose row is outstanding all the same (requeued): its lane must read it again. */
static void
note_obsolete(OutboxDelivery *delivery)
{
	delivery->found_due_at = DT_NOEND;
	if (find_row(delivery) && is_outstanding())
		delivery->found_due_at = DatumGetTimestampTz(found_column(C_DUE_AT));
}

static void
settle_into(OutboxDelivery *delivery, TimestampTz now)
{
	SettleResult result = outbox_order_must_wait(delivery) ? ROW_LOCKED : settle_one(delivery, now);

	delivery->obsolete = (result == OBSOLETE);
	if (delivery->obsolete)
		note_obsolete(delivery);

	/* Nothing raises from here on: until now it waited, so that an error would lose nothing. */
	stop_waiting(delivery);
	if (result == ROW_LOCKED)
	{
		delivery->settle_after = now + LOCKED_RETRY_US;
		outbox_order_pin(delivery);
		dlist_push_tail(&locked_rows, &delivery->link);
		return;
	}
	if (!delivery->obsolete)
		delivery->found_due_at = delivery->verdict.state == OUTBOX_RETRYING && !delivery->has_on_settle ?
			delivery->next_due_at : DT_NOEND;
	/* Until an on_settle worker has settled it, what is handed over blocks its key. */
	outbox_order_settled(delivery, delivery->found_due_at != DT_NOEND || is_handed_over(delivery), delivery->found_due_at);
	dlist_push_tail(&settled, &delivery->link);
}

bool
outbox_settle(TimestampTz now)
{
	retry_locked(now);
	if (nwaiting == 0)
		return true;
	if (!open_writer())
		return false;

	for (int n = 0; n < MAX_BATCH && nwaiting > 0; n++)
		settle_into(first_waiting(), now);
	close_writer();
	CommandCounterIncrement();
	write_beside();
	return true;
}

/*
 * A settled delivery leaves memory; one that is still outstanding is expected
 * back when it is due.  One that was handed over still counts as unsettled.
 */
static void
finish_one(OutboxDelivery *delivery, TimestampTz now)
{
	OutboxLane *lane = delivery->lane;
	pg_uuid_t	id = delivery->id;
	TimestampTz due_at = delivery->found_due_at;

	if (is_handed_over(delivery))
		outbox_on_settle_handed_over(lane);
	else
		outbox_confirm_settled(lane, 1);
	outbox_order_discard(delivery);
	if (due_at != DT_NOEND)
		outbox_lane_expect(lane, due_at, &id, now);
	outbox_lane_ready(lane);
}

void
outbox_outcome_written(OutboxDelivery *delivery, TimestampTz now)
{
	finish_one(delivery, now);
}

void
outbox_settle_finish(TimestampTz now)
{
	bool		handed_over = false;

	while (!dlist_is_empty(&settled))
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, dlist_pop_head_node(&settled));

		handed_over = handed_over || is_handed_over(delivery);
		finish_one(delivery, now);
	}
	if (handed_over)
		outbox_on_settle_notify();
}

void
outbox_settle_abort(void)
{
	memset(&writer, 0, sizeof(writer));
	/* What was taken off goes back to the front, so that the oldest stays first. */
	while (!dlist_is_empty(&settled))
	{
		dlist_node *node = dlist_tail_node(&settled);

		dlist_delete(node);
		outbox_order_unsettled(dlist_container(OutboxDelivery, link, node));
		wait_again(node);
	}
}

void
outbox_settle_receipts(const OutboxReceipt *receipts, int n, bool *written, TimestampTz now)
{
	OutboxDelivery delivery = {.attempted = true, .verdict.state = OUTBOX_DELIVERED};

	if (!open_writer())
		return;
	for (int i = 0; i < n; i++)
	{
		delivery.id = receipts[i].id;
		delivery.handler_id = receipts[i].handler_id;
		delivery.attempts = receipts[i].attempts;
		delivery.budget_from = receipts[i].budget_from;
		delivery.http_status = receipts[i].http_status;
		delivery.tid = receipts[i].tid;
		written[i] = (settle_one(&delivery, now) == SETTLED);
	}
	close_writer();
}
