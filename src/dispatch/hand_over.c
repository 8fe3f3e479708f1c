/*-------------------------------------------------------------------------
 *
 * hand_over.c
 *		Hands outcomes over to the workers that run on_settle functions, and
 *		says when those are needed.
 *
 * See hand_over.h.  Worker 0 runs while some handler has an on_settle function or
 * something is handed over.  The spare is started when worker 0 has been
 * busy with one function for long and other handlers wait; it leaves by
 * itself.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "common/redaction.h"
#include "common/session.h"
#include "compat.h"
#include "dispatch/confirm.h"
#include "dispatch/crew.h"
#include "dispatch/hand_over.h"
#include "dispatch/redact.h"
#include "dispatch/schedule.h"
#include "shared/function_slot.h"
#include "table/delivery.h"
#include "table/relation.h"
#include "worker/clock.h"

/* Counts that have not moved for so long are taken anew. */
#define RECOUNT_US (10 * USECS_PER_SEC)

static OutboxDatabase *database = NULL;
static bool wanted = false;		/* by a handler, or to redact error texts */
static bool handlers_want = false;
static int	handed_over = 0;	/* all lanes together, and what has no lane */
static TimestampTz recount_at = DT_NOBEGIN;
static TimestampTz next_start = DT_NOEND;

void
outbox_on_settle_init(OutboxDatabase *db)
{
	database = db;
}

static OutboxPlan insert_plan = {
	.sql = "INSERT INTO outbox.on_settle_queue (message_id, handler_id, attempt, finished_at, duration_us, due_at, state, streak, "
	"http_status, code, error, response, response_headers) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::pg_catalog.jsonb)",
	.nargs = 13,
	.argtypes = {UUIDOID, INT4OID, INT4OID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID, INT2OID, INT2OID,
	INT2OID, TEXTOID, TEXTOID, TEXTOID, TEXTOID},
};

void
outbox_on_settle_hand_over(const OutboxDelivery *delivery)
{
	const OutboxVerdict *verdict = &delivery->verdict;
	bool		retrying = (verdict->state == OUTBOX_RETRYING);
	Datum		values[13] = {0};
	char		nulls[14] = "             ";

	values[0] = UUIDPGetDatum(&delivery->id);
	values[1] = Int32GetDatum(delivery->handler_id);
	values[2] = Int32GetDatum(outbox_next_attempt(delivery->attempts));
	values[3] = TimestampTzGetDatum(delivery->finished_at);
	values[4] = Int64GetDatum(delivery->duration_us);
	values[5] = TimestampTzGetDatum(retrying ? delivery->next_due_at : delivery->due_at);
	values[6] = Int16GetDatum(verdict->state);
	values[7] = Int16GetDatum(Min(verdict->streak, OUTBOX_STREAK_MAX));
	values[8] = Int16GetDatum(delivery->http_status);
	if (delivery->http_status == 0)
		nulls[8] = 'n';
	outbox_bind_text(values, nulls, 9, verdict->code);
	outbox_bind_text(values, nulls, 10, delivery->error);
	outbox_bind_text(values, nulls, 11, delivery->response);
	outbox_bind_text(values, nulls, 12, delivery->response_headers);
	outbox_execute(&insert_plan, values, nulls, false, 0, SPI_OK_INSERT);
}

static void
put_off_recount(TimestampTz now)
{
	recount_at = handed_over > 0 ? now + RECOUNT_US : DT_NOEND;
}

void
outbox_on_settle_handed_over(OutboxLane *lane)
{
	lane->handed_over++;
	handed_over++;
	if (recount_at == DT_NOEND)
		put_off_recount(outbox_steady_time());
}

int
outbox_on_settle_outstanding(void)
{
	return handed_over;
}

void
outbox_on_settle_notify(void)
{
	outbox_function_slots_wake(database);
}

void
outbox_on_settle_ended(OutboxLane *lane, int n)
{
	handed_over = Max(0, handed_over - n);
	if (recount_at != DT_NOBEGIN)
		put_off_recount(outbox_steady_time());
	if (lane == NULL)
		return;
	n = Min(n, lane->handed_over);
	lane->handed_over -= n;
	outbox_confirm_settled(lane, n);
	outbox_lane_ready(lane);
}

static void
look_for_function(OutboxLane *lane, void *arg)
{
	if (lane->handler != NULL && lane->handler->on_settle != NULL)
		*(bool *) arg = true;
}

/* Are there functions to run? */
static void
decide_what_is_wanted(void)
{
	bool		now_wanted = handlers_want || outbox_redaction_is_set();

	if (wanted == now_wanted)
		return;
	wanted = now_wanted;
	/* A single word that only this process writes: no need for the lock. */
	database->on_settle_wanted = wanted;
	if (!wanted)
		outbox_function_slots_wake(database);
}

void
outbox_on_settle_handlers_changed(void)
{
	handlers_want = false;
	outbox_lanes_each(look_for_function, &handlers_want);
	decide_what_is_wanted();
}

void
outbox_on_settle_distrust_counts(void)
{
	recount_at = DT_NOBEGIN;
}

TimestampTz
outbox_on_settle_recount_next(void)
{
	return recount_at;
}

bool
outbox_on_settle_recount_is_due(TimestampTz now)
{
	return recount_at <= now;
}

static OutboxPlan count_plan = {
	.sql = "SELECT k.handler_id, pg_catalog.count(*)::pg_catalog.int4 FROM outbox.on_settle_queue k "
	"WHERE EXISTS (SELECT FROM outbox.handler h WHERE h.id OPERATOR(pg_catalog.=) k.handler_id) GROUP BY k.handler_id",
};

static void
forget_count(OutboxLane *lane, void *arg)
{
	lane->unsettled -= lane->handed_over;
	lane->handed_over = 0;
	outbox_lane_ready(lane);
}

static void
set_count(int32 handler_id, int n)
{
	OutboxLane *lane = outbox_lane_find(handler_id);

	handed_over += n;
	if (lane == NULL)
		return;
	lane->handed_over = n;
	lane->unsettled += n;
}

bool
outbox_on_settle_recount(TimestampTz now)
{
	uint64		n;

	if (!outbox_lock_if_free("on_settle_queue", AccessShareLock) || !outbox_lock_if_free("handler", AccessShareLock))
	{
		recount_at = now + USECS_PER_SEC;
		return false;
	}
	SPI_connect();
	n = outbox_execute(&count_plan, NULL, NULL, true, 0, SPI_OK_SELECT);
	handed_over = 0;
	outbox_lanes_each(forget_count, NULL);
	for (uint64 i = 0; i < n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		bool		isnull;

		set_count(DatumGetInt32(SPI_getbinval(row, SPI_tuptable->tupdesc, 1, &isnull)),
				  DatumGetInt32(SPI_getbinval(row, SPI_tuptable->tupdesc, 2, &isnull)));
	}
	SPI_finish();
	put_off_recount(now);
	outbox_function_slots_wake(database);
	return true;
}

/* Do handlers wait that the first worker, busy with a slow function, does not serve? */
static bool
others_wait(const OutboxFunctionSlotView *first, TimestampTz now)
{
	OutboxLane *busy;

	if (first->owner == 0 || outbox_to_wall(now) - first->since < OUTBOX_SLOW_FUNCTION_MS * 1000)
		return false;
	if (outbox_redact_is_busy())
		return true;
	busy = outbox_lane_find(first->owner);
	return handed_over > (busy ? busy->handed_over : 0);
}

static void
start_if(OutboxFunctionPlace place, bool needed, TimestampTz now)
{
	if (!needed || outbox_crew_is_there(place))
		return;
	outbox_crew_start(place, now);
	if (!outbox_crew_is_there(place))
		next_start = Min(next_start, outbox_crew_may_start_at(place));
}

void
outbox_on_settle_attend(TimestampTz now, bool allowed)
{
	OutboxFunctionSlotView first;
	OutboxFunctionSlotView spare;

	next_start = DT_NOEND;
	if (outbox_crew_is_leaving())
		return;
	decide_what_is_wanted();
	if (!allowed)
	{
		outbox_crew_dismiss(OUTBOX_PLACE_ON_SETTLE);
		outbox_crew_dismiss(OUTBOX_PLACE_SPARE);
		return;
	}
	if (!wanted && handed_over == 0 && !outbox_crew_is_there(OUTBOX_PLACE_ON_SETTLE) && !outbox_crew_is_there(OUTBOX_PLACE_SPARE))
		return;
	(void) outbox_crew_look(OUTBOX_PLACE_ON_SETTLE, &first, now);
	(void) outbox_crew_look(OUTBOX_PLACE_SPARE, &spare, now);
	start_if(OUTBOX_PLACE_ON_SETTLE, wanted || handed_over > 0, now);
	start_if(OUTBOX_PLACE_SPARE, others_wait(&first, now), now);
}

TimestampTz
outbox_on_settle_next(void)
{
	return next_start;
}

/* The spare is a help; without the first worker nothing of what it is for is done. */
static const char *
say_what_is_lacking(bool needed, const char *consequence)
{
	static char text[OUTBOX_ERROR_LEN];

	if (!needed || !outbox_crew_lacks(OUTBOX_PLACE_ON_SETTLE))
		return NULL;
	snprintf(text, sizeof(text),
			 "%s, as no background worker slot is free: max_worker_processes is %d, and at least %d is needed",
			 consequence, max_worker_processes, max_worker_processes + 1);
	return text;
}

const char *
outbox_on_settle_problem(void)
{
	return say_what_is_lacking(handlers_want || handed_over > 0, "on_settle functions are not run");
}

const char *
outbox_redaction_problem(void)
{
	return say_what_is_lacking(outbox_redaction_is_set(), "error texts are withheld");
}
