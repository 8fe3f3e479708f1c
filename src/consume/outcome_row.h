/*-------------------------------------------------------------------------
 *
 * outcome_row.h
 *		Writing the outcome of an attempt into its delivery.
 *
 * For consumers' own outcomes and for leases that have run out.  What these
 * functions change is reported at commit; attempts are collected and logged
 * together.  Process: any backend.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_OUTCOME_ROW_H
#define OUTBOX_OUTCOME_ROW_H

#include "nodes/pg_list.h"

#include "consume/pull_handler.h"
#include "table/delivery.h"

/* What a lease that ran out is called. */
#define OUTBOX_LEASE_EXPIRED "lease_expired"
#define OUTBOX_LEASE_EXPIRED_ERROR "the lease ran out before the consumer settled it"

/* Judge what was said of the attempt that is now leased to somebody. */
extern void outbox_judge_row(const OutboxPullHandler *handler, TupleTableSlot *slot,
							 const OutboxDeliveryRow *row, const OutboxDisposition *disposition,
							 OutboxVerdict *verdict);

/* Has the attempt of this expired lease been the last one? */
extern bool outbox_lease_exhausts(const OutboxPullHandler *handler, TupleTableSlot *slot,
								  const OutboxDeliveryRow *row, OutboxVerdict *verdict);

/*
 * Settle the locked row in table->slot, or put it off: state, code, error
 * and times as the verdict says.  attempts collects what is to be logged.
 */
extern void outbox_write_outcome(const OutboxPullHandler *handler, OutboxDeliveryTable *table,
								 const OutboxDeliveryRow *row, const OutboxVerdict *verdict,
								 const char *error, TimestampTz due_at, TimestampTz now, List **attempts);

/*
 * The locked row in table->slot, which is leased, is as it was before it was
 * claimed, but for its attempt number and that it is due at due_at: the budget
 * grows by the attempt that was not made.
 */
extern void outbox_write_release(const OutboxPullHandler *handler, OutboxDeliveryTable *table,
								 const OutboxDeliveryRow *row, TimestampTz due_at);

/* Note an attempt for outbox_log_noted_attempts(), if it is to be logged. */
extern void outbox_note_attempt(const OutboxPullHandler *handler, const OutboxDeliveryRow *row,
								OutboxState outcome, const char *code, const char *error,
								TimestampTz now, List **attempts);

/* Log what was collected. */
extern void outbox_log_noted_attempts(List *attempts);

#endif							/* OUTBOX_OUTCOME_ROW_H */
