/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background worker that settles deliveries of handlers with an
 *		on_settle function.
 *
 * A user's function may take its time, so it runs here and not in the
 * dispatcher: one delivery, one transaction.  What is to be settled is in
 * outbox.on_settle_queue, which only the dispatcher adds to, one transaction after the
 * other; so its ids become visible in their order, and reading on from the
 * last one misses nothing and does not step over what has been settled.
 *
 * Worker 0 serves every handler.  While it is busy with a slow function,
 * worker 1, the spare, serves the others; it leaves a handler whose function
 * was slow with it to worker 0 from then on.  So slow functions wait for
 * each other, and nobody else waits for them.
 *
 * The worker ends with its dispatcher.  SIGTERM ends it wherever it is while
 * a transaction is running, which rolls back; the hand-over is still there
 * for the next worker.  A hand-over that cannot be settled is put aside alone,
 * for a growing time; only when several of them fail in a row does all of the
 * work pause.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/redaction.h"
#include "compat.h"
#include "guc.h"
#include "on_settle/apply.h"
#include "on_settle/queue.h"
#include "shared/function_slot.h"
#include "shared/redactions.h"
#include "worker/backoff.h"
#include "worker/function_worker.h"
#include "worker/work.h"
#include "worker/worker.h"

/* The spare leaves a handler with a slow function alone for so long, and leaves when idle for so long. */
#define SLOW_MEMORY_US (60 * USECS_PER_SEC)
#define SPARE_IDLE_US (10 * USECS_PER_SEC)

/* A delivery that somebody holds, and a handler that the other worker is at, are tried again after this time. */
#define LOCKED_RETRY_US (100 * 1000)

/* So many error texts are redacted before anything else is done. */
#define REDACTIONS_AT_ONCE 100

/* Reading what has been handed over takes less, unless something is in the way. */
#define LONG_READ_US (10 * 1000)

/* Pauses of one hand-over that cannot be settled: it is in nobody's way. */
static const OutboxPauses hand_over_pauses = {100 * 1000, 60 * USECS_PER_SEC};

/* The dispatcher may start the spare while a function is slow; the next worker is told of one that cannot be stopped. */
static const OutboxUserFunctionWatch watch = {
	OUTBOX_SLOW_FUNCTION_MS, outbox_function_slot_wake_dispatcher, outbox_function_slot_set_overran
};

static int	number;
static MemoryContext iteration_context = NULL;
static int64 read_up_to = 0;
static bool more = true;		/* rows behind read_up_to */
static TimestampTz next_rescan = 0;

static OutboxBackoff trouble;	/* with the database, whatever is to be done there */
static int64 last_failed = 0;	/* the hand-over that could not be settled last, if none was since */

static TimestampTz last_served = 0;
static int	nredacted = 0;

static void
note_found(int32 handler_id, int64 queue_id)
{
	outbox_on_settle_queue_add(handler_id, queue_id);
}

/* Read what has been handed over since the last look. */
static void
read_on(void)
{
	TimestampTz begin = GetCurrentTimestamp();

	PG_TRY();
	{
		if (!outbox_on_settle_read(&read_up_to, note_found, &more))
		{
			more = true;
			outbox_backoff_wait(&trouble, LOCKED_RETRY_US, begin);
		}
		MemoryContextSwitchTo(iteration_context);
	}
	PG_CATCH();
	{
		more = true;
		outbox_function_worker_fail(begin);
		outbox_backoff_fail(&trouble, &outbox_work_pauses, begin);
	}
	PG_END_TRY();
	/* It has waited for something, and that may have swallowed somebody's ring. */
	if (GetCurrentTimestamp() - begin > LONG_READ_US)
		SetLatch(MyLatch);
}

/* Now and then everything is read anew, for rows that were put right by hand. */
static void
rescan(TimestampTz now)
{
	next_rescan = now + outbox_rescan_interval * INT64CONST(1000);
	outbox_on_settle_queues_clear();
	read_up_to = 0;
	more = true;
}

/* The function that ended the worker before this one is not run again. */
static const char *
reason_to_give_up(int64 queue_id)
{
	if (!outbox_function_slot_has_overrun(queue_id))
		return NULL;
	return psprintf("on_settle function did not stop when it was cancelled after %d ms (outbox.on_settle_timeout)",
					outbox_on_settle_timeout);
}

/* One could not be settled.  Another one that failed just before shows that it is not to blame alone. */
static void
note_failure(OutboxHandOver *hand_over, TimestampTz now)
{
	outbox_backoff_fail(&hand_over->backoff, &hand_over_pauses, now);
	if (last_failed != 0 && last_failed != hand_over->queue_id)
		outbox_backoff_fail(&trouble, &outbox_work_pauses, now);
	last_failed = hand_over->queue_id;
}

/* Settle one; false if the database work failed. */
static bool
settle(OutboxHandOver *hand_over, OutboxOnSettleResult *result)
{
	volatile bool done = false;

	PG_TRY();
	{
		*result = outbox_on_settle_settle(hand_over->queue_id, reason_to_give_up(hand_over->queue_id));
		MemoryContextSwitchTo(iteration_context);
		done = true;
		last_failed = 0;
		outbox_backoff_succeed(&trouble);
	}
	PG_CATCH();
	{
		TimestampTz now = GetCurrentTimestamp();

		outbox_function_worker_fail(now);
		note_failure(hand_over, now);
	}
	PG_END_TRY();
	return done;
}

/* Redact one error text for the dispatcher.  False: there is none. */
static bool
redact(void)
{
	OutboxDatabase *database = outbox_my_database();
	char	   *text;
	const char *volatile answer = OUTBOX_TEXT_WITHHELD;
	int			place = outbox_redaction_take(database, &text);

	if (place < 0)
		return false;
	PG_TRY();
	{
		answer = outbox_on_settle_redact(text);
	}
	PG_CATCH();
	{
		outbox_function_worker_fail(GetCurrentTimestamp());
	}
	PG_END_TRY();
	MemoryContextSwitchTo(iteration_context);
	outbox_redaction_answer(database, place, answer);
	outbox_function_slot_wake_dispatcher();
	return true;
}

/* A slow function: the other worker may have waited for its handler, and the spare is not to take it again. */
static void
note_duration(OutboxOnSettleQueue *queue, TimestampTz begin, TimestampTz now)
{
	if (now - begin < OUTBOX_SLOW_FUNCTION_MS * 1000)
		return;
	if (number == OUTBOX_PLACE_SPARE)
		queue->not_before = now + SLOW_MEMORY_US;
	outbox_function_slot_wake_other();
}

static void
serve(OutboxOnSettleQueue *queue, TimestampTz begin)
{
	OutboxHandOver *hand_over = outbox_on_settle_queue_take(queue);
	OutboxOnSettleResult result;
	TimestampTz now;

	if (!settle(hand_over, &result))
	{
		outbox_on_settle_queue_keep(hand_over);
		return;
	}
	now = GetCurrentTimestamp();
	if (result == OUTBOX_ON_SETTLE_DONE)
		last_served = now;
	if (result == OUTBOX_ON_SETTLE_ROW_LOCKED || result == OUTBOX_ON_SETTLE_BUSY)
	{
		outbox_backoff_wait(&hand_over->backoff, LOCKED_RETRY_US, now);
		outbox_on_settle_queue_keep(hand_over);
	}
	else
		outbox_on_settle_queue_done(hand_over);
	note_duration(queue, begin, now);
	/* A wait inside the work, for a lock or a page, may have swallowed somebody's ring. */
	SetLatch(MyLatch);
}

/* Nobody needs this worker at the moment. */
static bool
is_idle_for_good(TimestampTz now)
{
	if (number == OUTBOX_PLACE_SPARE)
		return now - last_served >= SPARE_IDLE_US;
	return outbox_on_settle_queues_are_empty() && !more && !outbox_function_slot_on_settle_is_wanted();
}

static void
wait_until(TimestampTz until, TimestampTz now)
{
	if (outbox_function_worker_wait(until, now, "waiting for outcomes"))
		more = true;
}

/* When to look again although nobody has asked for it. */
static TimestampTz
next_wake_up(void)
{
	TimestampTz when = Max(next_rescan, outbox_backoff_until(&trouble));

	if (number == OUTBOX_PLACE_SPARE)
		when = Min(when, last_served + SPARE_IDLE_US);
	return when;
}

static void
main_loop(void)
{
	last_served = GetCurrentTimestamp();
	while (!ShutdownRequestPending && !outbox_function_slot_must_leave())
	{
		TimestampTz now = GetCurrentTimestamp();
		TimestampTz until = DT_NOEND;
		OutboxOnSettleQueue *queue = NULL;

		MemoryContextReset(iteration_context);
		CHECK_FOR_INTERRUPTS();
		outbox_function_worker_settings(now);

		if (redact())
		{
			last_served = now;
			/* Whatever else there is to do is looked for when no text waits any more, or this has come round. */
			SetLatch(MyLatch);
			if (outbox_redaction_is_asked(outbox_my_database()) && ++nredacted % REDACTIONS_AT_ONCE != 0)
				continue;
		}

		if (outbox_backoff_is_over(&trouble, now))
		{
			if (now >= next_rescan)
				rescan(now);
			if (more)
				read_on();
			queue = outbox_on_settle_queue_next(outbox_function_slot_other(), now, &until);
		}
		else
			until = outbox_backoff_until(&trouble);

		if (queue != NULL)
			serve(queue, now);
		else if (is_idle_for_good(now))
			break;
		else if (!more || !outbox_backoff_is_over(&trouble, now))
		{
			wait_until(Min(until, next_wake_up()), now);
		}
	}
}

void
outbox_on_settle_main(Datum main_arg)
{
	number = outbox_function_worker_place();
	if (outbox_function_worker_begin(DatumGetObjectId(main_arg), number, &watch))
	{
		iteration_context = outbox_function_worker_context();
		outbox_on_settle_queues_init(TopMemoryContext);
		main_loop();
	}
	outbox_function_worker_end();
}
