/*-------------------------------------------------------------------------
 *
 * claim.c
 *		outbox.claim(): lease what is due to a consumer.
 *
 * Runs in the consumer's backend and transaction.  The lease is a row in
 * state leased whose due_at is the end of the lease and whose attempts was
 * counted up, so a consumer that dies has spent its attempt.  An expired
 * lease is met like any row that is due: if its attempt was the last one the
 * delivery is buried here, else it is leased anew.
 *
 * Nothing is waited for but relation locks and, for a moment, our turn
 * (turn.h).  The claim looks under the latest snapshot in every isolation
 * level, because what is claimed already is not for its transaction's snapshot
 * to decide.  But a message that the snapshot of the calling statement does
 * not show is left alone: its consumer would not find the rows that were
 * written along with it, take that for their absence, and complete it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/uuid.h"

#include "common/result_set.h"
#include "common/session.h"
#include "consume/arguments.h"
#include "consume/obligations.h"
#include "consume/outcome_row.h"
#include "consume/walk.h"
#include "shared/counting.h"
#include "table/durability.h"
#include "table/message.h"

#define MAX_CLAIM 10000

/* The columns that claim() returns. */
enum
{
	OUT_ID,
	OUT_ATTEMPT,
	OUT_TOPIC,
	OUT_PAYLOAD,
	OUT_KEY,
	OUT_TENANT,
	OUT_CORRELATION_ID,
	OUT_HEADERS,
	OUT_STAGED_AT,
	OUT_LEASED_UNTIL,
	OUT_CONTENT_TYPE,
	OUT_PAYLOAD_TEXT,
	OUT_PAYLOAD_BYTES,
	OUT_COLUMNS
};

typedef struct Claim
{
	TimestampTz leased_until;
	Snapshot	caller;			/* what the calling statement sees */
	OutboxMessageTable messages;
	ReturnSetInfo *result;
	XLogRecPtr	flush_point;	/* WAL up to here makes durable what is handed out */
	List	   *attempts;
} Claim;

/* What is handed out must be safe first. */
static void
note_durability(Claim *claim, TupleTableSlot *slot)
{
	XLogRecPtr	lsn = outbox_row_flush_point(slot, InvalidTransactionId);

	if (lsn > claim->flush_point)
		claim->flush_point = lsn;
}

/* Lock the row that is offered; PASSED when it is locked, what else to make of it otherwise. */
static bool
lock_offered(OutboxWalk *walk, OutboxVisit *visit)
{
	const OutboxPullRef *ref = &walk->handler->ref;
	TransactionId holder;

	outbox_consume_claim(ref);
	switch (outbox_deliveries_lock(&walk->table, LockWaitSkip))
	{
		case TM_Ok:
			return true;
		case TM_WouldBlock:
			holder = outbox_deliveries_holder(walk->table.slot);
			*visit = TransactionIdIsValid(holder) && outbox_claimant_is(ref, holder) ?
				OUTBOX_VISIT_PASSED : OUTBOX_VISIT_UNRESOLVED;
			return false;
		default:
			/* Changed since the snapshot: the next claim will see into what. */
			*visit = OUTBOX_VISIT_UNRESOLVED;
			return false;
	}
}

static void
bury_without_message(OutboxWalk *walk, const OutboxDeliveryRow *row, List **attempts)
{
	OutboxVerdict verdict;

	outbox_judge_missing(&verdict);
	outbox_write_outcome(walk->handler, &walk->table, row, &verdict, OUTBOX_MESSAGE_MISSING_ERROR,
						 row->key.due_at, walk->now, attempts);
}

/* The attempt whose lease ran out is over.  True if it was the last one: the row is settled then. */
static bool
end_expired(OutboxWalk *walk, const OutboxDeliveryRow *row, OutboxVerdict *verdict)
{
	const char *error = OUTBOX_LEASE_EXPIRED_ERROR;
	Claim	   *claim = walk->arg;

	if (outbox_lease_exhausts(walk->handler, walk->table.slot, row, verdict))
	{
		outbox_write_outcome(walk->handler, &walk->table, row, verdict, error, row->key.due_at,
							 walk->now, &claim->attempts);
		return true;
	}
	outbox_note_attempt(walk->handler, row, OUTBOX_RETRYING, verdict->code, error, walk->now, &claim->attempts);
	return false;
}

static void
write_lease(OutboxWalk *walk, const OutboxDeliveryRow *row, const OutboxVerdict *expired)
{
	Claim	   *claim = walk->arg;
	OutboxQueuePosition key = {claim->leased_until, row->key.id};
	OutboxOutcome lapsed = {0};

	if (expired != NULL)
	{
		lapsed.code = expired->code;
		lapsed.streak = expired->streak;
	}
	(void) outbox_deliveries_lease(&walk->table, outbox_next_attempt(row->attempts), row->budget_from,
								   claim->leased_until, expired != NULL ? &lapsed : NULL, true);
	outbox_consume_moved(&walk->handler->ref, &key);
}

static void
copy_column(Claim *claim, int out, AttrNumber column, Datum *values, bool *isnull)
{
	values[out] = slot_getattr(claim->messages.slot, column, &isnull[out]);
}

/* Hand the message that was found to the consumer. */
static void
return_message(Claim *claim, const OutboxDeliveryRow *row)
{
	Datum		values[OUT_COLUMNS];
	bool		isnull[OUT_COLUMNS] = {false};

	slot_getallattrs(claim->messages.slot);
	values[OUT_ID] = UUIDPGetDatum(&row->key.id);
	values[OUT_ATTEMPT] = Int32GetDatum(outbox_next_attempt(row->attempts));
	copy_column(claim, OUT_TOPIC, Anum_message_topic, values, isnull);
	copy_column(claim, OUT_PAYLOAD, Anum_message_payload, values, isnull);
	copy_column(claim, OUT_KEY, Anum_message_key, values, isnull);
	copy_column(claim, OUT_TENANT, Anum_message_tenant, values, isnull);
	copy_column(claim, OUT_CORRELATION_ID, Anum_message_correlation_id, values, isnull);
	copy_column(claim, OUT_HEADERS, Anum_message_headers, values, isnull);
	copy_column(claim, OUT_STAGED_AT, Anum_message_staged_at, values, isnull);
	values[OUT_LEASED_UNTIL] = TimestampTzGetDatum(claim->leased_until);
	copy_column(claim, OUT_CONTENT_TYPE, Anum_message_content_type, values, isnull);
	copy_column(claim, OUT_PAYLOAD_TEXT, Anum_message_payload_text, values, isnull);
	copy_column(claim, OUT_PAYLOAD_BYTES, Anum_message_payload_bytes, values, isnull);
	tuplestore_putvalues(claim->result->setResult, claim->result->setDesc, values, isnull);
}

/* The walk's visitor: lease the row. */
static OutboxVisit
take(OutboxWalk *walk, const OutboxQueuePosition *key)
{
	Claim	   *claim = walk->arg;
	bool		has_message = outbox_messages_find(&claim->messages, &key->id);
	OutboxDeliveryRow row;
	OutboxVerdict verdict;
	OutboxVisit visit;
	bool		expired;

	/* Asked before the row is locked, since others can have it. */
	if (has_message && !outbox_messages_found_in(&claim->messages, claim->caller))
	{
		walk->nunseen++;
		return OUTBOX_VISIT_UNRESOLVED;
	}
	if (!lock_offered(walk, &visit))
		return visit;
	note_durability(claim, walk->table.slot);
	outbox_deliveries_read(walk->table.slot, &row);

	expired = row.state == OUTBOX_LEASED;
	if (expired && end_expired(walk, &row, &verdict))
		return OUTBOX_VISIT_PASSED;
	if (!has_message)
	{
		bury_without_message(walk, &row, &claim->attempts);
		return OUTBOX_VISIT_PASSED;
	}
	if (row.attempts == 0)
		outbox_count_time_at_commit(walk->handler->id, OUTBOX_TIME_DELIVERY, walk->now - row.key.due_at);
	write_lease(walk, &row, expired ? &verdict : NULL);
	return_message(claim, &row);
	return OUTBOX_VISIT_TAKEN;
}

static int
wanted_by(const OutboxPullHandler *handler, int max_messages)
{
	/* Each key takes a lock that is held until the transaction ends. */
	return handler->ordered ? Min(max_messages, outbox_key_lock_limit()) : max_messages;
}

static void
claim_messages(const OutboxPullHandler *handler, int32 version, int max_messages, Claim *claim, TimestampTz now)
{
	OutboxWalk	walk = {
		.handler = handler,
		.version = version,
		.now = now,
		.wanted = wanted_by(handler, max_messages),
		.writing = true,
		.visitor = take,
		.arg = claim
	};

	outbox_messages_open(&claim->messages);
	outbox_walk(&walk);
	outbox_messages_close(&claim->messages);
	outbox_log_noted_attempts(claim->attempts);
	if (walk.taken > 0 && !XLogRecPtrIsInvalid(claim->flush_point))
		XLogFlush(claim->flush_point);
}

PG_FUNCTION_INFO_V1(outbox_sql_claim);

/* outbox.claim(handler, max_messages, lease, version) */
Datum
outbox_sql_claim(PG_FUNCTION_ARGS)
{
	char	   *name = outbox_handler_argument(fcinfo, 0);
	int32		max_messages = outbox_int_argument(fcinfo, 1, "max_messages", 1, MAX_CLAIM);
	int32		version = PG_ARGISNULL(3) ? OUTBOX_VERSION_DEFAULT :
		outbox_int_argument(fcinfo, 3, "version", 0, PG_INT32_MAX);
	TimestampTz now = GetCurrentTimestamp();
	Claim		claim = {0};
	OutboxPullHandler handler;

	claim.leased_until = outbox_lease_argument(fcinfo, 2, now);
	claim.caller = GetActiveSnapshot();
	outbox_require_writable("outbox.claim()");
	claim.result = outbox_begin_result_set(fcinfo, OUT_COLUMNS);

	outbox_pull_handler(name, OUTBOX_PULL_CLAIM, &handler);
	if (!handler.paused)
		claim_messages(&handler, version, max_messages, &claim, now);
	PG_RETURN_NULL();
}
