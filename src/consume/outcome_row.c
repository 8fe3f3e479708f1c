/*-------------------------------------------------------------------------
 *
 * outcome_row.c
 *		Writing the outcome of an attempt into its delivery.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "compat.h"
#include "consume/obligations.h"
#include "consume/outcome_row.h"
#include "shared/counting.h"
#include "shared/doorbell.h"
#include "table/attempt_log.h"

void
outbox_judge_row(const OutboxPullHandler *handler, TupleTableSlot *slot, const OutboxDeliveryRow *row,
				 const OutboxDisposition *disposition, OutboxVerdict *verdict)
{
	const char *last_code = outbox_deliveries_text(slot, Anum_delivery_code);

	outbox_judge_disposition(&handler->retry, disposition, row->attempts - row->budget_from, last_code, row->streak,
					  outbox_random_fraction(), verdict);
}

bool
outbox_lease_exhausts(const OutboxPullHandler *handler, TupleTableSlot *slot,
					  const OutboxDeliveryRow *row, OutboxVerdict *verdict)
{
	OutboxDisposition disposition = {OUTBOX_ACTION_RETRY, OUTBOX_LEASE_EXPIRED, -1};

	outbox_judge_row(handler, slot, row, &disposition, verdict);
	return verdict->state != OUTBOX_RETRYING;
}

/* One that was not claimed has had no attempt: its message is gone. */
static void
count_attempt(const OutboxPullHandler *handler, const OutboxDeliveryRow *row, OutboxState outcome, const char *code)
{
	OutboxCounter counter = OUTBOX_COUNT_REFUSED;

	if (row->state == OUTBOX_LEASED)
	{
		if (outcome == OUTBOX_DELIVERED)
			counter = OUTBOX_COUNT_CONSUMED;
		else if (code != NULL && strcmp(code, OUTBOX_LEASE_EXPIRED) == 0)
			counter = OUTBOX_COUNT_LEASE_EXPIRED;
		outbox_count_at_commit(handler->id, counter, 1);
	}
	outbox_count_outcome_at_commit(handler->id, outcome, code);
}

void
outbox_note_attempt(const OutboxPullHandler *handler, const OutboxDeliveryRow *row,
					OutboxState outcome, const char *code, const char *error,
					TimestampTz now, List **attempts)
{
	OutboxAttempt *attempt;

	count_attempt(handler, row, outcome, code);
	if (!outbox_should_log(outcome))
		return;
	attempt = palloc(sizeof(OutboxAttempt));
	attempt->message_id = row->key.id;
	attempt->handler_id = handler->id;
	attempt->attempt = row->attempts;
	attempt->finished_at = now;
	/* When the lease began is not kept. */
	attempt->duration_us = -1;
	attempt->outcome = outcome;
	attempt->http_status = 0;
	attempt->code = code ? pstrdup(code) : NULL;
	attempt->error = error;
	attempt->response_headers = NULL;
	*attempts = lappend(*attempts, attempt);
}

void
outbox_log_noted_attempts(List *attempts)
{
	OutboxSecurity security;
	ListCell   *lc;

	if (attempts == NIL)
		return;
	outbox_become_owner_to_write(&security, "attempt");
	SPI_connect();
	foreach(lc, attempts)
		outbox_log_attempt(lfirst(lc));
	SPI_finish();
	outbox_become_caller(&security);
}

/* Write it, and note what is to be reported at commit. */
static void
write_row(const OutboxPullHandler *handler, OutboxDeliveryTable *table, const OutboxDeliveryRow *row,
		  const OutboxOutcome *outcome)
{
	OutboxQueuePosition key = {outcome->due_at, row->key.id};

	(void) outbox_deliveries_settle(table, outcome, true);
	if (table->has_events)
		outbox_doorbell_note_schedules();
	if (outcome->state < OUTBOX_DELIVERED)
	{
		outbox_consume_moved(&handler->ref, &key);
		/* While it was leased it could not expire. */
		outbox_doorbell_note_end(row->end_at);
	}
	/* What came after it may go now; even if it is tried again, something before it may. */
	if (handler->ordered && row->message_key != NULL)
		outbox_consume_revisit(&handler->ref, &row->key.id);
}

void
outbox_write_outcome(const OutboxPullHandler *handler, OutboxDeliveryTable *table,
					 const OutboxDeliveryRow *row, const OutboxVerdict *verdict,
					 const char *error, TimestampTz due_at, TimestampTz now, List **attempts)
{
	OutboxOutcome outcome = {
		.state = verdict->state,
		.attempts = row->attempts,
		.budget_from = row->budget_from,
		.streak = verdict->streak,
		.code = verdict->code,
		.error = error,
		.due_at = due_at,
		.settled_at = now
	};

	outbox_note_attempt(handler, row, verdict->state, verdict->code, error, now, attempts);
	write_row(handler, table, row, &outcome);
}

void
outbox_write_release(const OutboxPullHandler *handler, OutboxDeliveryTable *table, const OutboxDeliveryRow *row,
					 TimestampTz due_at)
{
	OutboxOutcome outcome = {
		.attempts = row->attempts,
		.budget_from = Min(row->budget_from, row->attempts - 1) + 1,
		.streak = row->streak,
		.code = outbox_deliveries_text(table->slot, Anum_delivery_code),
		.error = outbox_deliveries_text(table->slot, Anum_delivery_error),
		.due_at = due_at
	};

	outcome.state = outcome.budget_from < outcome.attempts ? OUTBOX_RETRYING : OUTBOX_PENDING;
	write_row(handler, table, row, &outcome);
}
