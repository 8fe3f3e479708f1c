/*-------------------------------------------------------------------------
 *
 * settle.c
 *		Records the outcomes of attempts, a batch in one transaction.
 *
 * See settle.h.  Outcomes wait in lists, are written by settle_row.c, and
 * leave memory once the transaction has committed; what cannot be written is
 * put aside, so that nothing else waits for it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "executor/spi.h"
#include "utils/timestamp.h"

#include "dispatch/confirm.h"
#include "dispatch/expiry.h"
#include "dispatch/hand_over.h"
#include "dispatch/order.h"
#include "dispatch/reading.h"
#include "dispatch/redact.h"
#include "dispatch/schedule.h"
#include "dispatch/settle.h"
#include "dispatch/settle_row.h"
#include "shared/counting.h"
#include "table/attempt_log.h"
#include "table/delivery.h"
#include "worker/clock.h"
#include "worker/slot.h"

/* Outcomes settled by one transaction. */
#define MAX_BATCH 2000

/* Pauses of an outcome that is aside. */
static const OutboxPauses aside_pauses = {100 * 1000, 60 * USECS_PER_SEC};
static const OutboxPauses aside_gaps = {10 * 1000, 1 * USECS_PER_SEC};

/* After so many in a row, what else waits of the same handler is put aside as well. */
#define MAX_FAILED_IN_A_ROW 3

/* A row that somebody holds is tried again after this time. */
#define LOCKED_RETRY_US (100 * 1000)

/* Outcomes that wait, oldest first: plain successes apart, and those whose row somebody holds. */
static dlist_head waiting = DLIST_STATIC_INIT(waiting);
static dlist_head plain = DLIST_STATIC_INIT(plain);
static dlist_head locked_rows = DLIST_STATIC_INIT(locked_rows);
static int	nwaiting = 0;		/* of the first two */
static int	nplain = 0;

/*
 * Outcomes that could not be written, in no order: each is tried again after
 * a pause of its own, apart from all others, and counts as unsettled.
 */
static dlist_head aside = DLIST_STATIC_INIT(aside);
static int	naside = 0;
static int	aside_batch = 1;	/* so many at once, while they can be written */
static OutboxBackoff aside_gap; /* between two that cannot */
static char aside_error[OUTBOX_ERROR_LEN];
static bool last_chance = false;	/* the process is about to end: each is tried once more, without pauses */

/* What the running transaction does, for the case that it fails. */
static int	batch_limit = MAX_BATCH;	/* it takes no more outcomes than these */
static int	taken = 0;			/* it has taken so many */
static bool apart = false;		/* which were aside */
static OutboxDelivery *at_hand = NULL;	/* and is writing this one */
static int	failed_in_a_row = 0;	/* so many were put aside since any was written */

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
	outbox_delivery_drop_message(delivery);
	if (delivery->finished_at == 0)
		delivery->finished_at = GetCurrentTimestamp();
	delivery->answered_at = outbox_steady_time();
	delivery->lane->unsettled++;
	if (!outbox_redact_keep(delivery))
		dlist_push_tail(start_waiting(delivery), &delivery->link);
}

void
outbox_outcomes_take_redacted(TimestampTz now)
{
	OutboxDelivery *delivery;

	while ((delivery = outbox_redact_next_done(now)) != NULL)
		dlist_push_tail(start_waiting(delivery), &delivery->link);
}

int
outbox_outcomes_waiting(void)
{
	return nwaiting;
}

static TimestampTz
oldest_of(dlist_head *list)
{
	return dlist_is_empty(list) ? DT_NOEND : dlist_head_element(OutboxDelivery, link, list)->answered_at;
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

TimestampTz
outbox_outcomes_next_aside(void)
{
	TimestampTz next = DT_NOEND;
	dlist_iter	iter;

	dlist_foreach(iter, &aside)
		next = Min(next, outbox_backoff_until(&dlist_container(OutboxDelivery, link, iter.cur)->trouble));
	return next == DT_NOEND ? DT_NOEND : Max(next, outbox_backoff_until(&aside_gap));
}

void
outbox_outcomes_last_chance(void)
{
	dlist_iter	iter;

	last_chance = true;
	outbox_redact_give_up();
	outbox_outcomes_take_redacted(outbox_steady_time());
	outbox_backoff_succeed(&aside_gap);
	dlist_foreach(iter, &aside)
		outbox_backoff_succeed(&dlist_container(OutboxDelivery, link, iter.cur)->trouble);
}

bool
outbox_outcomes_may_be_written(void)
{
	dlist_iter	iter;

	if (nwaiting > 0 || !dlist_is_empty(&locked_rows))
		return true;
	dlist_foreach(iter, &aside)
	{
		if (dlist_container(OutboxDelivery, link, iter.cur)->trouble.failures == 0)
			return true;
	}
	return false;
}

const char *
outbox_outcomes_problem(void)
{
	static char text[OUTBOX_ERROR_LEN];

	if (naside == 0)
		return NULL;
	snprintf(text, sizeof(text), "outcomes that cannot be written: %d, the latest for: %s", naside, aside_error);
	return text;
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
		.attempt = outbox_next_attempt(delivery->attempts),
		.finished_at = delivery->finished_at,
		.duration_us = delivery->duration_us,
		.outcome = delivery->verdict.state,
		.http_status = delivery->http_status,
		.code = delivery->verdict.code,
		.error = delivery->error,
		.response_headers = delivery->response_headers
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
		at_hand = delivery;
		if (delivery->has_on_settle)
			outbox_on_settle_hand_over(delivery);
		else
			log_attempt(delivery);
	}
	at_hand = NULL;
	if (connected)
		SPI_finish();
}

static void
settle_into(OutboxDelivery *delivery, TimestampTz now)
{
	OutboxSettleResult result;

	at_hand = delivery;
	result = outbox_order_must_wait(delivery) ? OUTBOX_SETTLE_LOCKED : outbox_settle_row(delivery, outbox_to_wall(now));
	delivery->obsolete = (result == OUTBOX_SETTLE_OBSOLETE);
	/* Requeued, it is outstanding all the same: its lane must read it again. */
	if (delivery->obsolete)
		delivery->found_due_at = outbox_settle_row_due_at(delivery);

	/* Nothing raises from here on: until now it waited, so that an error would lose nothing. */
	at_hand = NULL;
	stop_waiting(delivery);
	if (result == OUTBOX_SETTLE_LOCKED)
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

static void
put_aside(OutboxDelivery *delivery, TimestampTz now)
{
	stop_waiting(delivery);
	outbox_backoff_fail(&delivery->trouble, &aside_pauses, now);
	outbox_order_pin(delivery);
	dlist_push_tail(&aside, &delivery->link);
	naside++;
}

static void
put_list_aside(dlist_head *list, OutboxLane *lane, TimestampTz now)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, list)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);

		if (delivery->lane == lane)
			put_aside(delivery, now);
	}
}

/* Let operators see some of those that are aside. */
static void
show_aside(void)
{
	OutboxAside shown[OUTBOX_MAX_ASIDE];
	int			n = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &aside)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);
		TimestampTz until = Max(outbox_backoff_until(&delivery->trouble), outbox_backoff_until(&aside_gap));

		if (n == OUTBOX_MAX_ASIDE)
			break;
		shown[n++] = (OutboxAside) {delivery->id, delivery->handler_id, outbox_to_wall(until)};
	}
	outbox_slot_aside(shown, n);
}

/* Those whose pause is over wait again, ahead of all others.  Returns how many there are. */
static int
take_from_aside(TimestampTz now)
{
	dlist_mutable_iter iter;
	int			n = 0;

	if (naside == 0 || !outbox_backoff_is_over(&aside_gap, now))
		return 0;
	dlist_foreach_modify(iter, &aside)
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, iter.cur);

		if (n == aside_batch)
			break;
		if (!outbox_backoff_is_over(&delivery->trouble, now))
			continue;
		dlist_delete(iter.cur);
		naside--;
		/* Nobody but this process has a use for one that is hard to write. */
		delivery->settle_here = true;
		wait_again(iter.cur);
		n++;
	}
	show_aside();
	return n;
}

/* This one has made the transaction fail. */
static void
blame(OutboxDelivery *culprit, const char *error, TimestampTz now)
{
	OutboxLane *lane = culprit->lane;

	strlcpy(aside_error, error, sizeof(aside_error));
	put_aside(culprit, now);
	/* Those before it could be written. */
	batch_limit = Max(taken, 1);
	if (apart)
		aside_batch = 1;
	if (last_chance)
		return;
	if (apart)
		outbox_backoff_fail(&aside_gap, &aside_gaps, now);
	else if (++failed_in_a_row > MAX_FAILED_IN_A_ROW)
	{
		put_list_aside(&waiting, lane, now);
		put_list_aside(&plain, lane, now);
	}
	show_aside();
}

bool
outbox_settle_failed(const char *error, bool lasts, TimestampTz now)
{
	OutboxDelivery *culprit = at_hand;

	at_hand = NULL;
	if (culprit == NULL && taken == 1 && nwaiting > 0)
		culprit = first_waiting();
	/* What may end by itself is nobody's fault; nor is what came before any was taken. */
	if (!lasts || (culprit == NULL && taken <= 1))
		return true;
	if (culprit != NULL)
		blame(culprit, error, now);
	else
		batch_limit = taken / 2;
	return false;
}

/* The transaction has committed. */
static void
note_success(void)
{
	if (taken == 0)
		return;
	batch_limit = Min(2 * batch_limit, MAX_BATCH);
	if (apart)
	{
		aside_batch = Min(2 * aside_batch, MAX_BATCH);
		outbox_backoff_succeed(&aside_gap);
	}
	else
		failed_in_a_row = 0;
	taken = 0;
}

bool
outbox_settle(TimestampTz now)
{
	int			limit;
	int			from_aside;

	taken = 0;
	retry_locked(now);
	from_aside = take_from_aside(now);
	apart = from_aside > 0;
	if (nwaiting == 0)
		return true;
	if (!outbox_settle_rows_begin())
		return false;

	for (limit = apart ? from_aside : batch_limit; taken < limit && nwaiting > 0; taken++)
		settle_into(first_waiting(), now);
	outbox_settle_rows_end();
	write_beside();
	return true;
}

static void
count_outcome(const OutboxDelivery *delivery)
{
	OutboxCounted *counted = &delivery->lane->counted;

	if (delivery->obsolete)
		return;
	outbox_count(counted, outbox_state_counter(delivery->verdict.state), 1);
	if (delivery->verdict.state > OUTBOX_DELIVERED && strcmp(delivery->verdict.code, OUTBOX_CODE_EXPIRED) == 0)
		outbox_count(counted, OUTBOX_COUNT_EXPIRED, 1);
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

	/* While it was out it could not expire. */
	if (due_at != DT_NOEND)
		outbox_expiry_expect(delivery->end_at);
	if (is_handed_over(delivery))
		outbox_on_settle_handed_over(lane);
	else
	{
		count_outcome(delivery);
		outbox_confirm_settled(lane, 1);
	}
	outbox_order_discard(delivery);
	if (due_at != DT_NOEND)
		outbox_lane_expect(lane, due_at, &id, now);
	outbox_lane_ready(lane);
}

void
outbox_outcome_written(OutboxDelivery *delivery, TimestampTz now)
{
	outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_GIVEN_AWAY, 1);
	finish_one(delivery, now);
}

void
outbox_settle_finish(TimestampTz now)
{
	bool		handed_over = false;
	int			n = 0;

	note_success();
	while (!dlist_is_empty(&settled))
	{
		OutboxDelivery *delivery = dlist_container(OutboxDelivery, link, dlist_pop_head_node(&settled));

		handed_over = handed_over || is_handed_over(delivery);
		n++;
		finish_one(delivery, now);
	}
	if (n > 0)
		outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_SETTLED, n);
	if (handed_over)
		outbox_on_settle_notify();
}

void
outbox_settle_abort(void)
{
	/* What was taken off goes back to the front, so that the oldest stays first. */
	while (!dlist_is_empty(&settled))
	{
		dlist_node *node = dlist_tail_node(&settled);

		dlist_delete(node);
		outbox_order_unsettled(dlist_container(OutboxDelivery, link, node));
		wait_again(node);
	}
}
