/*-------------------------------------------------------------------------
 *
 * apply.c
 *		Settles one delivery together with its handler's on_settle function.
 *
 * See on_settle/apply.h.  The delivery is locked before the function runs, so
 * that no operator can change it in between; what the function itself does
 * to its delivery (it might cancel it) stands.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"
#include "utils/uuid.h"

#include "common/query_row.h"
#include "common/redaction.h"
#include "common/session.h"
#include "common/user_function.h"
#include "compat.h"
#include "guc.h"
#include "on_settle/apply.h"
#include "policy/retry_policy.h"
#include "shared/counting.h"
#include "shared/doorbell.h"
#include "shared/function_slot.h"
#include "table/attempt_log.h"
#include "table/delivery.h"
#include "table/relation.h"
#include "worker/settings.h"
#include "worker/work.h"

/* Rows that one look at outbox.on_settle_queue takes. */
#define READ_AT_ONCE 1000

/* The code of an attempt whose function failed. */
#define ON_SETTLE_FAILED "on_settle_failed"

static OutboxPlan load_plan = {
	.sql = "SELECT k.message_id, k.handler_id, k.attempt, k.state, k.streak, k.http_status, k.code, k.error, k.response, "
	"k.due_at, k.finished_at, k.duration_us, k.response_headers::pg_catalog.text, h.name, h.on_settle, "
	"m.topic, m.payload, m.key, m.tenant, m.correlation_id, m.content_type, m.payload_text, m.payload_bytes, " OUTBOX_RETRY_COLUMNS " "
	"FROM outbox.on_settle_queue k LEFT JOIN outbox.handler h ON h.id OPERATOR(pg_catalog.=) k.handler_id "
	"LEFT JOIN outbox.message m ON m.id OPERATOR(pg_catalog.=) k.message_id "
	"WHERE k.id OPERATOR(pg_catalog.=) $1 FOR UPDATE OF k SKIP LOCKED",
	.nargs = 1,
	.argtypes = {INT8OID},
};

typedef enum LoadColumn
{
	COL_MESSAGE_ID = 1,
	COL_HANDLER_ID,
	COL_ATTEMPT,
	COL_STATE,
	COL_STREAK,
	COL_HTTP_STATUS,
	COL_CODE,
	COL_ERROR,
	COL_RESPONSE,
	COL_DUE_AT,
	COL_FINISHED_AT,
	COL_DURATION_US,
	COL_RESPONSE_HEADERS,
	COL_HANDLER,
	COL_ON_SETTLE,
	COL_TOPIC,
	COL_PAYLOAD,
	COL_KEY,
	COL_TENANT,
	COL_CORRELATION_ID,
	COL_CONTENT_TYPE,
	COL_PAYLOAD_TEXT,
	COL_PAYLOAD_BYTES,
	COL_RETRY
} LoadColumn;

static OutboxPlan delete_plan = {
	.sql = "DELETE FROM outbox.on_settle_queue k WHERE k.id OPERATOR(pg_catalog.=) $1",
	.nargs = 1,
	.argtypes = {INT8OID},
};

/* The delivery of the same key that comes next on an ordered handler. */
static OutboxPlan successor_plan = {
	.sql = "SELECT d.due_at, d.message_id FROM outbox.delivery d "
	"WHERE d.handler_id OPERATOR(pg_catalog.=) $1 AND d.key OPERATOR(pg_catalog.=) $2 "
	"AND d.message_id OPERATOR(pg_catalog.>) $3 ORDER BY d.message_id LIMIT 1",
	.nargs = 3,
	.argtypes = {INT4OID, TEXTOID, UUIDOID},
};

static OutboxPlan exists_plan = {
	.sql = "SELECT FROM outbox.on_settle_queue k WHERE k.id OPERATOR(pg_catalog.=) $1",
	.nargs = 1,
	.argtypes = {INT8OID},
};

/* A hand-over being settled.  Lives as long as its transaction. */
typedef struct HandOver
{
	int64		queue_id;
	OutboxQueryRow row;
	pg_uuid_t	message_id;
	int32		handler_id;
	int32		attempt;
	TimestampTz now;

	/* the transition */
	OutboxVerdict verdict;
	const char *error;
	TimestampTz due_at;
	bool		holds_writes;	/* of the function, which has succeeded */
} HandOver;

/*
 * The worker's own statements find single rows by their keys, whatever the
 * planner thinks of the tables' sizes.  The function runs with the server's
 * settings, so these are set around the statements only.
 */
static int
pin_plans(void)
{
	static const char *const off[] = {"enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "enable_sort"};
	int			nestlevel = NewGUCNestLevel();

	for (int i = 0; i < lengthof(off); i++)
		(void) set_config_option(off[i], "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	return nestlevel;
}

static void
unpin_plans(int nestlevel)
{
	AtEOXact_GUC(false, nestlevel);
}

/* What settling one touches. */
static const OutboxTableLock settle_locks[] = {
	{"on_settle_queue", RowExclusiveLock}, {"delivery", RowExclusiveLock}, {"receipt", RowExclusiveLock}, {"attempt", RowExclusiveLock},
	{"handler", AccessShareLock}, {"message", AccessShareLock}, {"event_queue", RowExclusiveLock}
};

/* What reading touches. */
static const OutboxTableLock read_locks[] = {
	{"on_settle_queue", AccessShareLock}, {"handler", AccessShareLock}
};

/* Run one of the worker's own statements about this row. */
static uint64
execute_for_row(const HandOver *h, OutboxPlan *plan, bool read_only, int expected)
{
	Datum		values[1] = {Int64GetDatum(h->queue_id)};
	int			nestlevel = pin_plans();
	uint64		n = outbox_execute(plan, values, NULL, read_only, 0, expected);

	unpin_plans(nestlevel);
	return n;
}

/* Lock and read the row.  Otherwise says why not: it is gone, or locked. */
static bool
load(HandOver *h, OutboxOnSettleResult *otherwise)
{
	bool		isnull;

	if (execute_for_row(h, &load_plan, false, SPI_OK_SELECT) == 0)
	{
		/* Whoever has it may still fail and leave it. */
		*otherwise = execute_for_row(h, &exists_plan, true, SPI_OK_SELECT) > 0 ? OUTBOX_ON_SETTLE_BUSY : OUTBOX_ON_SETTLE_GONE;
		return false;
	}
	h->row = outbox_query_row(0);
	h->message_id = *DatumGetUUIDP(outbox_query_datum(&h->row, COL_MESSAGE_ID, &isnull));
	h->handler_id = outbox_query_int32(&h->row, COL_HANDLER_ID);
	h->attempt = outbox_query_int32(&h->row, COL_ATTEMPT);
	h->due_at = outbox_query_int64(&h->row, COL_DUE_AT);
	h->error = outbox_query_text(&h->row, COL_ERROR);
	h->verdict.state = outbox_query_int16(&h->row, COL_STATE);
	h->verdict.streak = outbox_query_int16(&h->row, COL_STREAK);
	if (outbox_query_text(&h->row, COL_CODE) != NULL)
		strlcpy(h->verdict.code, outbox_query_text(&h->row, COL_CODE), sizeof(h->verdict.code));
	return true;
}

/* The fence: is the delivery still the one that was handed over? */
static bool
is_handed_over(const HandOver *h, const OutboxDeliveryRow *row)
{
	return row->state == OUTBOX_LEASED && row->attempts == h->attempt;
}

typedef enum DeliveryFate
{
	DELIVERY_LOCKED,
	DELIVERY_HELD,
	DELIVERY_CHANGED			/* gone, or no longer the one that was handed over */
} DeliveryFate;

/* Lock the delivery until the transaction ends.  Nothing stays open while the function runs. */
static DeliveryFate
lock_delivery(const HandOver *h)
{
	OutboxDeliveryTable table;
	OutboxDeliveryRow row;
	DeliveryFate fate = DELIVERY_CHANGED;

	outbox_deliveries_open(&table, true);
	if (outbox_deliveries_find(&table, &h->message_id, h->handler_id))
	{
		outbox_deliveries_read(table.slot, &row);
		if (is_handed_over(h, &row))
			fate = outbox_deliveries_lock(&table, LockWaitSkip) == TM_Ok ? DELIVERY_LOCKED : DELIVERY_HELD;
	}
	outbox_deliveries_close(&table);
	return fate;
}

static const char *
outcome_name(OutboxState state)
{
	switch (state)
	{
		case OUTBOX_DELIVERED:
			return "delivered";
		case OUTBOX_DEAD:
			return "dead";
		case OUTBOX_CANCELLED:
			return "cancelled";
		default:
			return "retrying";
	}
}

#define SETTLEMENT_COLUMNS 16

/* What the function is told: a value of type outbox.settlement. */
static Datum
make_argument(const HandOver *h, Oid *type)
{
	static const LoadColumn copied[] = {
		COL_MESSAGE_ID, COL_HANDLER, COL_TOPIC, COL_PAYLOAD, COL_KEY, COL_TENANT, COL_CORRELATION_ID, COL_ATTEMPT
	};
	Datum		values[SETTLEMENT_COLUMNS];
	bool		nulls[SETTLEMENT_COLUMNS];
	TupleDesc	desc;
	HeapTuple	tuple;
	int			n;

	for (n = 0; n < lengthof(copied); n++)
		values[n] = outbox_query_datum(&h->row, copied[n], &nulls[n]);

	values[n] = CStringGetTextDatum(outcome_name(h->verdict.state));
	nulls[n++] = false;
	values[n] = outbox_query_datum(&h->row, COL_CODE, &nulls[n]);
	n++;
	values[n] = Int32GetDatum(outbox_query_int16(&h->row, COL_HTTP_STATUS));
	(void) outbox_query_datum(&h->row, COL_HTTP_STATUS, &nulls[n]);
	n++;
	values[n] = outbox_query_datum(&h->row, COL_RESPONSE, &nulls[n]);
	n++;
	values[n] = TimestampTzGetDatum(h->now);
	nulls[n++] = false;
	for (LoadColumn column = COL_CONTENT_TYPE; column <= COL_PAYLOAD_BYTES; column++, n++)
		values[n] = outbox_query_datum(&h->row, column, &nulls[n]);
	Assert(n == SETTLEMENT_COLUMNS);

	*type = get_rel_type_id(outbox_relation_oid("settlement", false));
	desc = lookup_rowtype_tupdesc(*type, -1);
	if (desc->natts != SETTLEMENT_COLUMNS)
		elog(ERROR, "type outbox.settlement has %d columns instead of %d", desc->natts, SETTLEMENT_COLUMNS);
	tuple = heap_form_tuple(desc, values, nulls);
	ReleaseTupleDesc(desc);
	return HeapTupleGetDatum(tuple);
}

static void
report_call(const HandOver *h)
{
	char	   *activity = psprintf("on_settle of handler \"%s\"", outbox_query_text(&h->row, COL_HANDLER));

	pgstat_report_activity(STATE_RUNNING, activity);
	pfree(activity);
}

/* Run the function, if there still is one.  Returns why it failed, or NULL. */
static char *
run_function(HandOver *h)
{
	OutboxUserFunction function = {
		.what = "on_settle function",
		.name = outbox_query_text(&h->row, COL_ON_SETTLE),
		.timeout_ms = outbox_on_settle_timeout,
		.timeout_option = "outbox.on_settle_timeout"
	};
	char	   *failure;

	if (function.name == NULL)
		return NULL;
	function.argument = make_argument(h, &function.type);
	report_call(h);
	/* The owner may not know the schema that the function is in. */
	outbox_act_as_worker();
	failure = outbox_redact_failure(outbox_user_function_call(&function));
	outbox_act_as_owner();
	return failure;
}

/* The attempt has failed, whatever the receiver said. */
static void
fail(HandOver *h, const OutboxDeliveryRow *row, TupleTableSlot *slot, const char *failure)
{
	OutboxDisposition disposition = {OUTBOX_ACTION_RETRY, ON_SETTLE_FAILED, -1};
	OutboxRetryPolicy policy = {.max_attempts = 1};

	/* Without a handler, whose row was deleted by hand, there is nothing to try again. */
	if (outbox_query_text(&h->row, COL_HANDLER) != NULL)
		outbox_read_retry_policy(h->row.tuple, h->row.desc, COL_RETRY, &policy);
	/* The row still has the code and streak of the attempt before. */
	outbox_judge_disposition(&policy, &disposition, row->attempts - row->budget_from,
					  outbox_deliveries_text(slot, Anum_delivery_code), row->streak,
					  outbox_random_fraction(), &h->verdict);
	h->error = failure;
	h->due_at = h->now;
	if (h->verdict.state == OUTBOX_RETRYING)
		h->due_at += h->verdict.delay * 1000;
}

static void
change_delivery(const HandOver *h, const OutboxDeliveryRow *row, OutboxDeliveryTable *table)
{
	OutboxOutcome outcome = {
		.state = h->verdict.state,
		.attempts = row->attempts,
		.budget_from = row->budget_from,
		.streak = h->verdict.streak,
		.http_status = outbox_query_int16(&h->row, COL_HTTP_STATUS),
		.code = h->verdict.code,
		.error = h->error,
		.due_at = h->due_at,
		.settled_at = h->now
	};

	/* While it was handed over it could not expire. */
	if (outcome.state < OUTBOX_DELIVERED)
		outbox_doorbell_note_end(row->end_at);
	(void) outbox_deliveries_settle(table, &outcome, true);
	if (table->has_events)
		outbox_doorbell_note_schedules();
	outbox_count_outcome_at_commit(h->handler_id, outcome.state, outcome.code);
}

static void
log_attempt(const HandOver *h)
{
	OutboxAttempt attempt = {
		.message_id = h->message_id,
		.handler_id = h->handler_id,
		.attempt = h->attempt,
		.outcome = h->verdict.state,
		.http_status = outbox_query_int16(&h->row, COL_HTTP_STATUS),
		.code = h->verdict.code,
		.error = h->error
	};
	OutboxSecurity security;

	if (!outbox_should_log(h->verdict.state))
		return;
	attempt.finished_at = outbox_query_int64(&h->row, COL_FINISHED_AT);
	attempt.duration_us = outbox_query_int64(&h->row, COL_DURATION_US);
	attempt.response_headers = outbox_query_text(&h->row, COL_RESPONSE_HEADERS);
	outbox_become_owner_to_write(&security, "attempt");
	outbox_log_attempt(&attempt);
	outbox_become_caller(&security);
}

/* The next one of its key may go now. */
static void
ring_for_successor(const HandOver *h, const char *key)
{
	Datum		values[3] = {Int32GetDatum(h->handler_id), CStringGetTextDatum(key), UUIDPGetDatum(&h->message_id)};
	int			nestlevel = pin_plans();
	uint64		n = outbox_execute(&successor_plan, values, NULL, true, 1, SPI_OK_SELECT);
	bool		isnull;

	unpin_plans(nestlevel);
	if (n > 0)
	{
		OutboxQueryRow next = outbox_query_row(0);

		outbox_doorbell_note(h->handler_id, OUTBOX_NOTICE_DUE, outbox_query_int64(&next, 1),
							 DatumGetUUIDP(outbox_query_datum(&next, 2, &isnull)));
	}
}

/* Tell the dispatcher at commit what has become due; of a key, that this one blocks it no more. */
static void
ring(const HandOver *h, const char *key)
{
	if (h->verdict.state == OUTBOX_RETRYING)
		outbox_doorbell_note(h->handler_id, OUTBOX_NOTICE_DUE, h->due_at, &h->message_id);
	else if (key != NULL)
	{
		outbox_doorbell_note(h->handler_id, OUTBOX_NOTICE_REREAD, DT_NOEND, &h->message_id);
		ring_for_successor(h, key);
	}
}

/* Write the transition, unless the function has changed the delivery itself. */
static void
write_transition(HandOver *h, const char *failure)
{
	OutboxDeliveryTable table;
	OutboxDeliveryRow row;
	char	   *key = NULL;
	bool		written = false;

	outbox_deliveries_open(&table, true);
	if (outbox_deliveries_find(&table, &h->message_id, h->handler_id))
	{
		outbox_deliveries_read(table.slot, &row);
		if (row.message_key != NULL)
			key = text_to_cstring(row.message_key);
		if (is_handed_over(h, &row))
		{
			if (failure != NULL)
				fail(h, &row, table.slot, failure);
			change_delivery(h, &row, &table);
			written = true;
		}
	}
	outbox_deliveries_close(&table);

	if (written)
	{
		log_attempt(h);
		ring(h, key);
	}
}

static void
delete_row(const HandOver *h)
{
	OutboxSecurity security;

	outbox_become_owner_to_write(&security, "on_settle_queue");
	(void) execute_for_row(h, &delete_plan, false, SPI_OK_DELETE);
	outbox_become_caller(&security);
}

/* What was written so far becomes visible. */
static void
take_new_snapshot(void)
{
	CommandCounterIncrement();
	PopActiveSnapshot();
	PushActiveSnapshot(GetTransactionSnapshot());
}

/* Everything but the beginning and the end of the transaction. */
static OutboxOnSettleResult
settle_in_transaction(HandOver *h, const char *give_up)
{
	const char *failure = give_up;
	OutboxOnSettleResult otherwise;

	if (!outbox_lock_all_if_free(settle_locks, lengthof(settle_locks)))
		return OUTBOX_ON_SETTLE_ROW_LOCKED;
	if (!load(h, &otherwise))
		return otherwise;
	switch (lock_delivery(h))
	{
		case DELIVERY_CHANGED:
			delete_row(h);
			return OUTBOX_ON_SETTLE_DONE;
		case DELIVERY_HELD:
			return OUTBOX_ON_SETTLE_ROW_LOCKED;
		case DELIVERY_LOCKED:
			break;
	}
	if (!outbox_function_slot_begin(h->handler_id, h->queue_id))
		return OUTBOX_ON_SETTLE_BUSY;

	if (give_up == NULL)
		failure = run_function(h);
	h->holds_writes = (failure == NULL && outbox_query_text(&h->row, COL_ON_SETTLE) != NULL);
	take_new_snapshot();
	write_transition(h, failure);
	delete_row(h);
	return OUTBOX_ON_SETTLE_DONE;
}

/* The dispatcher counts what it has handed over, so that it can stop in time. */
static void
ring_back(const HandOver *h)
{
	OutboxNotice ring = {.handler_id = h->handler_id, .kind = OUTBOX_NOTICE_ON_SETTLED, .count = 1};

	outbox_doorbell_ring_now(outbox_my_database(), &ring);
}

OutboxOnSettleResult
outbox_on_settle_settle(int64 queue_id, const char *give_up)
{
	MemoryContext context = CurrentMemoryContext;
	HandOver	h = {.queue_id = queue_id};
	OutboxOnSettleResult result;

	outbox_work_begin(true);
	h.now = GetCurrentTimestamp();
	SPI_connect();
	result = settle_in_transaction(&h, give_up);
	SPI_finish();
	if (!h.holds_writes)
		outbox_commit_receipts();
	outbox_work_commit();

	MemoryContextSwitchTo(context);
	outbox_function_slot_end();
	outbox_user_functions_clean_up();
	if (result == OUTBOX_ON_SETTLE_DONE)
		ring_back(&h);
	return result;
}

const char *
outbox_on_settle_redact(char *text)
{
	MemoryContext context = CurrentMemoryContext;
	char	   *kept;

	/* The dispatcher knows of it, and this process does not yet. */
	if (!outbox_redaction_is_set())
		return OUTBOX_TEXT_WITHHELD;
	pgstat_report_activity(STATE_RUNNING, "redacting an error text");
	outbox_work_begin(false);
	MemoryContextSwitchTo(context);
	kept = outbox_redact(text);
	outbox_work_commit();
	MemoryContextSwitchTo(context);
	outbox_user_functions_clean_up();
	return kept;
}

/* One whose handler has no row is not known yet: a restore has come to the outcomes first. */
static OutboxPlan read_plan = {
	.sql = "SELECT k.id, k.handler_id FROM outbox.on_settle_queue k WHERE k.id OPERATOR(pg_catalog.>) $1 "
	"AND EXISTS (SELECT FROM outbox.handler h WHERE h.id OPERATOR(pg_catalog.=) k.handler_id) "
	"ORDER BY k.id LIMIT " CppAsString2(READ_AT_ONCE),
	.nargs = 1,
	.argtypes = {INT8OID},
};

static void
read_in_transaction(int64 *after, void (*found) (int32 handler_id, int64 queue_id), bool *more)
{
	Datum		values[1] = {Int64GetDatum(*after)};
	int			nestlevel;
	uint64		n;

	SPI_connect();
	nestlevel = pin_plans();
	n = outbox_execute(&read_plan, values, NULL, true, 0, SPI_OK_SELECT);
	unpin_plans(nestlevel);
	for (uint64 i = 0; i < n; i++)
	{
		OutboxQueryRow row = outbox_query_row(i);

		*after = outbox_query_int64(&row, 1);
		found(outbox_query_int32(&row, 2), *after);
	}
	SPI_finish();
	*more = (n == READ_AT_ONCE);
}

bool
outbox_on_settle_read(int64 *after, void (*found) (int32 handler_id, int64 queue_id), bool *more)
{
	bool		locked = false;

	outbox_work_begin(true);
	*more = false;
	/* Without the table, the extension is being dropped, and this worker ends with its dispatcher. */
	if (OidIsValid(outbox_relation_oid("on_settle_queue", true)))
	{
		locked = !outbox_lock_all_if_free(read_locks, lengthof(read_locks));
		if (!locked)
			read_in_transaction(after, found, more);
	}
	outbox_work_commit();
	return !locked;
}
