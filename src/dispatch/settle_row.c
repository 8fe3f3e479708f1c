/*-------------------------------------------------------------------------
 *
 * settle_row.c
 *		Writes one outcome of a push delivery into its row.
 *
 * See settle_row.h.  Each row is found where it was read, or by primary key,
 * locked if nobody else holds it, compared with what was read, and written:
 * the steps that logical replication takes to apply an update, so no planner
 * can choose another way.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "dispatch/settle_row.h"
#include "shared/doorbell.h"
#include "table/delivery.h"
#include "table/relation.h"

/* What is open while a transaction settles. */
static OutboxDeliveryTable table;

/* What settling touches: locked at once, so that writing cannot wait later. */
static const OutboxTableLock settle_locks[] = {
	{"delivery", RowExclusiveLock}, {"receipt", RowExclusiveLock}, {"attempt", RowExclusiveLock}, {"on_settle_queue", RowExclusiveLock}
};

/* What a death touches besides: few transactions have one. */
static const OutboxTableLock death_locks[] = {{"event_queue", RowExclusiveLock}};
static bool may_bury = false;

bool
outbox_settle_rows_begin(void)
{
	if (!outbox_lock_all_if_free(settle_locks, lengthof(settle_locks)))
		return false;
	outbox_deliveries_open(&table, true);
	may_bury = false;
	return true;
}

void
outbox_settle_rows_end(void)
{
	outbox_deliveries_close(&table);
}

static bool
find_row(const OutboxDelivery *delivery, OutboxDeliveryRow *row)
{
	if (!outbox_deliveries_find_at(&table, &delivery->tid, &delivery->id, delivery->handler_id))
		return false;
	outbox_deliveries_read(table.slot, row);
	return row->state < OUTBOX_DELIVERED;
}

/*
 * The fence: is the row, outstanding, still what was read?  An answer counts
 * whatever end the row has by now; one that has not gone out has expired only
 * if nobody has given it another end.
 */
static bool
is_as_read(const OutboxDelivery *delivery, const OutboxDeliveryRow *row)
{
	return row->attempts == delivery->attempts && row->budget_from == delivery->budget_from &&
		(delivery->attempted || row->end_at == delivery->end_at);
}

/* False if somebody is in the way: the death is written later, as if its row were held. */
static bool
lock_for_death(void)
{
	if (!may_bury)
		may_bury = outbox_lock_all_if_free(death_locks, lengthof(death_locks));
	return may_bury;
}

/* Handed over: nobody is to try it until an on_settle worker has settled it. */
static bool
write_row(const OutboxDelivery *delivery, const OutboxDeliveryRow *row, TimestampTz now)
{
	OutboxOutcome outcome = {
		.state = delivery->verdict.state,
		.attempts = delivery->attempted ? outbox_next_attempt(row->attempts) : row->attempts,
		/* An attempt that is not to count moves the start of the budget along with it. */
		.budget_from = row->budget_from + (delivery->verdict.spares_budget ? 1 : 0),
		.streak = delivery->verdict.streak,
		.http_status = delivery->http_status,
		.code = delivery->verdict.code,
		.error = delivery->error,
		.due_at = delivery->next_due_at,
		.settled_at = now
	};

	if (delivery->has_on_settle)
		return outbox_deliveries_lease(&table, outcome.attempts, outcome.budget_from, DT_NOEND, NULL, false);
	if (outcome.state == OUTBOX_DEAD && !lock_for_death())
		return false;
	if (!outbox_deliveries_settle(&table, &outcome, false))
		return false;
	if (table.has_events)
		outbox_doorbell_note_schedules();
	return true;
}

OutboxSettleResult
outbox_settle_row(const OutboxDelivery *delivery, TimestampTz now)
{
	OutboxDeliveryRow row;

	if (!find_row(delivery, &row) || !is_as_read(delivery, &row))
		return OUTBOX_SETTLE_OBSOLETE;
	return write_row(delivery, &row, now) ? OUTBOX_SETTLED : OUTBOX_SETTLE_LOCKED;
}

TimestampTz
outbox_settle_row_due_at(const OutboxDelivery *delivery)
{
	OutboxDeliveryRow row;

	return find_row(delivery, &row) ? row.key.due_at : DT_NOEND;
}

void
outbox_settle_receipts(const OutboxReceipt *receipts, int n, bool *written, TimestampTz now)
{
	OutboxDelivery delivery = {.attempted = true, .verdict.state = OUTBOX_DELIVERED};

	if (!outbox_settle_rows_begin())
		return;
	for (int i = 0; i < n; i++)
	{
		delivery.id = receipts[i].id;
		delivery.handler_id = receipts[i].handler_id;
		delivery.attempts = receipts[i].attempts;
		delivery.budget_from = receipts[i].budget_from;
		delivery.http_status = receipts[i].http_status;
		delivery.tid = receipts[i].tid;
		written[i] = (outbox_settle_row(&delivery, now) == OUTBOX_SETTLED);
	}
	outbox_settle_rows_end();
}
