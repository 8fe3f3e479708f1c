/*-------------------------------------------------------------------------
 *
 * handler_status.c
 *		What the dispatcher itself writes into outbox.handler_status.
 *
 * See handler_status.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "common/query_row.h"
#include "common/session.h"
#include "dispatch/handler_status.h"
#include "dispatch/reading.h"
#include "table/relation.h"
#include "worker/clock.h"

/* A row or table that somebody holds is tried again after this time. */
#define HELD_RETRY_US (100 * 1000)

/*
 * A lane whose attempts fail is looked at so often, and what is shown of it is
 * at most so old if only the numbers have changed.
 */
#define WATCH_US (2 * USECS_PER_SEC)
#define REFRESH_LOOKS 10

/* Lanes that one look takes. */
#define MAX_LOOKS 100

/* Lanes with news to be written, and those whose news the running transaction has written. */
static dlist_head dirty = DLIST_STATIC_INIT(dirty);
static dlist_head written = DLIST_STATIC_INIT(written);
static TimestampTz retry_at = DT_NOBEGIN;

/* Lanes some of whose last attempts failed, the one to be looked at next first. */
static dlist_head watched = DLIST_STATIC_INIT(watched);

/*
 * An operator who pauses a handler holds its row until the end of a
 * transaction that may be a long one.  The row is therefore locked only if
 * nobody else has it; the lane already does what is to be written.
 */
static OutboxPlan lock_plan = {
	.sql = "SELECT s.breaker OPERATOR(pg_catalog.<>) 'closed', s.paused_at IS NULL FROM outbox.handler_status s "
	"WHERE s.handler_id OPERATOR(pg_catalog.=) $1 FOR NO KEY UPDATE SKIP LOCKED",
	.nargs = 1,
	.argtypes = {INT4OID},
};

static OutboxPlan exists_plan = {
	.sql = "SELECT FROM outbox.handler_status WHERE handler_id OPERATOR(pg_catalog.=) $1",
	.nargs = 1,
	.argtypes = {INT4OID},
};

static OutboxPlan update_plan = {
	.sql = "UPDATE outbox.handler_status SET breaker = $2, breaker_reason = $3, breaker_until = $4, failing_since = $5, throttled_to = $6, "
	"held_until = $7, down_since = $8, recent_attempts = $9, recent_failures = $10 "
	"WHERE handler_id OPERATOR(pg_catalog.=) $1",
	.nargs = 10,
	.argtypes = {INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, FLOAT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, INT4OID},
};

/*
 * For a handler without a row, which create_handler() does not leave.  The
 * statement trigger on inserts makes everybody read the handlers again,
 * which a breaker does not need, so inserting is not the rule.
 */
static OutboxPlan insert_plan = {
	.sql = "INSERT INTO outbox.handler_status (handler_id, breaker, breaker_reason, breaker_until, failing_since, throttled_to, "
	"held_until, down_since, recent_attempts, recent_failures) "
	"SELECT h.id, $2, $3, $4, $5, $6, $7, $8, $9, $10 FROM outbox.handler h WHERE h.id OPERATOR(pg_catalog.=) $1 AND h.dropped_at IS NULL ON CONFLICT DO NOTHING",
	.nargs = 10,
	.argtypes = {INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, FLOAT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID, INT4OID},
};

static OutboxPlan pause_plan = {
	.sql = "UPDATE outbox.handler_status SET paused_at = pg_catalog.clock_timestamp(), paused_by = $2, paused_reason = $3 "
	"WHERE handler_id OPERATOR(pg_catalog.=) $1 AND paused_at IS NULL",
	.nargs = 3,
	.argtypes = {INT4OID, TEXTOID, TEXTOID},
};

/* For handlers that take events: the beginning and the end of an outage, and a pause. */
static OutboxPlan event_plan = {
	.sql = "SELECT outbox_internal.note_event($1, $2, NULL, pg_catalog.jsonb_build_object('by', $3, 'reason', $4, 'since', $5))",
	.nargs = 5,
	.argtypes = {TEXTOID, INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID},
};

static void
note(OutboxLane *lane)
{
	if (lane->status_listed)
		return;
	lane->status_listed = true;
	dlist_push_tail(&dirty, &lane->status_link);
	retry_at = DT_NOBEGIN;
}

void
outbox_handler_status_changed(OutboxLane *lane)
{
	note(lane);
}

void
outbox_lane_pause(OutboxLane *lane, const char *by, const char *reason)
{
	lane->paused = true;
	outbox_lane_forget_unsent(lane, NULL, NULL);
	strlcpy(lane->pause_by, by, sizeof(lane->pause_by));
	strlcpy(lane->pause_reason, reason, sizeof(lane->pause_reason));
	note(lane);
}

static void
watch(OutboxLane *lane, TimestampTz now)
{
	lane->watched = true;
	lane->watch_at = now + WATCH_US;
	dlist_push_tail(&watched, &lane->watch_link);
}

void
outbox_handler_status_attempted(OutboxLane *lane, bool failed, TimestampTz now)
{
	outbox_failing_note(&lane->failing, failed, now);
	if (!lane->watched && (failed || lane->shown_since != lane->failing.since))
		watch(lane, now);
}

/* Differs what is shown of the lane from what there is, for long enough? */
static bool
has_news(OutboxLane *lane, int attempts, int failures)
{
	if (lane->shown_since != lane->failing.since)
		return true;
	if (lane->shown_attempts == attempts && lane->shown_failures == failures)
		return false;
	/* Numbers alone are worth a row's update now and then only, but for the last one. */
	return ++lane->looks >= REFRESH_LOOKS || lane->shown_attempts == 0 || failures == 0;
}

static void
look_at(OutboxLane *lane, TimestampTz now)
{
	int			attempts;
	int			failures;

	outbox_failing_count(&lane->failing, now, &attempts, &failures);
	if (has_news(lane, attempts, failures))
		note(lane);
	if (failures > 0)
		watch(lane, now);
}

static TimestampTz
next_look(void)
{
	return dlist_is_empty(&watched) ? DT_NOEND : dlist_head_element(OutboxLane, watch_link, &watched)->watch_at;
}

/* All wait equally long, so the first is the next. */
void
outbox_handler_status_look(TimestampTz now)
{
	for (int i = 0; i < MAX_LOOKS && next_look() <= now; i++)
	{
		OutboxLane *lane = dlist_container(OutboxLane, watch_link, dlist_pop_head_node(&watched));

		lane->watched = false;
		look_at(lane, now);
	}
}

TimestampTz
outbox_handler_status_next(void)
{
	return Min(dlist_is_empty(&dirty) ? DT_NOEND : retry_at, next_look());
}

/* A steady time as a column: 0 is NULL. */
static void
set_time(Datum *values, char *nulls, int n, TimestampTz steady)
{
	values[n] = TimestampTzGetDatum(outbox_to_wall(steady));
	nulls[n] = steady == 0 ? 'n' : ' ';
}

static void
write_limits(OutboxLane *lane, bool exists)
{
	const OutboxBreaker *breaker = &lane->breaker;
	TimestampTz now = outbox_steady_time();
	Datum		values[10];
	char		nulls[11] = "          ";

	outbox_failing_count(&lane->failing, now, &lane->shown_attempts, &lane->shown_failures);
	lane->shown_since = lane->failing.since;
	lane->looks = 0;

	values[0] = Int32GetDatum(lane->handler_id);
	values[1] = CStringGetTextDatum(outbox_breaker_state_name(breaker->state));
	values[2] = CStringGetTextDatum(breaker->reason);
	nulls[2] = breaker->reason[0] == '\0' ? 'n' : ' ';
	set_time(values, nulls, 3, breaker->state == OUTBOX_BREAKER_OPEN ? breaker->until : 0);
	set_time(values, nulls, 4, lane->failing.since);
	values[5] = Float8GetDatum(lane->throttle.rate);
	nulls[5] = lane->throttle.rate <= 0 ? 'n' : ' ';
	set_time(values, nulls, 6, lane->hold_until > now ? lane->hold_until : 0);
	set_time(values, nulls, 7, breaker->failing_since);
	values[8] = Int32GetDatum(lane->shown_attempts);
	values[9] = Int32GetDatum(lane->shown_failures);

	if (exists)
		outbox_execute(&update_plan, values, nulls, false, 0, SPI_OK_UPDATE);
	else
		outbox_execute(&insert_plan, values, nulls, false, 0, SPI_OK_INSERT);
}

/* by and reason: empty for none; since: a steady time, 0 for none */
static void
tell(OutboxLane *lane, const char *topic, const char *by, const char *reason, TimestampTz since)
{
	Datum		values[5];
	char		nulls[6] = "     ";

	values[0] = CStringGetTextDatum(topic);
	values[1] = Int32GetDatum(lane->handler_id);
	outbox_bind_text(values, nulls, 2, by);
	outbox_bind_text(values, nulls, 3, reason);
	set_time(values, nulls, 4, since);
	outbox_execute(&event_plan, values, nulls, false, 0, SPI_OK_SELECT);
}

/* An outage lasts from the breaker's opening to its closing, whatever probes there were: the row says what was told last. */
static void
tell_of_outage(OutboxLane *lane, bool was_down)
{
	const OutboxBreaker *breaker = &lane->breaker;
	bool		is_down = breaker->state != OUTBOX_BREAKER_CLOSED;

	if (is_down && !was_down)
		tell(lane, "outbox.handler.failing", "", breaker->reason, breaker->failing_since);
	else if (was_down && !is_down)
		tell(lane, "outbox.handler.recovered", "", "", 0);
}

static void
write_pause(OutboxLane *lane, bool is_new)
{
	Datum		values[3];

	values[0] = Int32GetDatum(lane->handler_id);
	values[1] = CStringGetTextDatum(lane->pause_by);
	values[2] = CStringGetTextDatum(lane->pause_reason);
	outbox_execute(&pause_plan, values, NULL, false, 0, SPI_OK_UPDATE);
	if (is_new)
		tell(lane, "outbox.handler.paused", lane->pause_by, lane->pause_reason, 0);
	ereport(LOG,
			(errmsg("outbox paused handler \"%s\": %s",
					lane->handler ? lane->handler->name : "", lane->pause_reason)));
}

/* Write a lane's news; false if somebody holds its row. */
static bool
write_lane(OutboxLane *lane)
{
	Datum		handler_id = Int32GetDatum(lane->handler_id);
	bool		locked = outbox_execute(&lock_plan, &handler_id, NULL, false, 0, SPI_OK_SELECT) > 0;
	bool		was_down = false;
	bool		was_running = false;

	if (locked)
	{
		OutboxQueryRow row = outbox_query_row(0);

		was_down = outbox_query_bool(&row, 1);
		was_running = outbox_query_bool(&row, 2);
	}
	else if (outbox_execute(&exists_plan, &handler_id, NULL, false, 0, SPI_OK_SELECT) > 0)
		return false;
	write_limits(lane, locked);
	if (locked)
		tell_of_outage(lane, was_down);
	if (lane->pause_by[0])
		write_pause(lane, was_running);
	return true;
}

static const OutboxTableLock status_locks[] = {
	{"handler_status", RowExclusiveLock}, {"handler", AccessShareLock}, {"event_queue", RowExclusiveLock}
};

void
outbox_handler_status_write(TimestampTz now)
{
	dlist_mutable_iter iter;

	if (dlist_is_empty(&dirty) || retry_at > now)
		return;
	retry_at = now + HELD_RETRY_US;
	if (!outbox_lock_all_if_free(status_locks, lengthof(status_locks)))
		return;

	SPI_connect();
	dlist_foreach_modify(iter, &dirty)
	{
		OutboxLane *lane = dlist_container(OutboxLane, status_link, iter.cur);

		if (!write_lane(lane))
			continue;
		dlist_delete(iter.cur);
		dlist_push_tail(&written, iter.cur);
	}
	SPI_finish();
}

void
outbox_handler_status_finish(void)
{
	while (!dlist_is_empty(&written))
	{
		OutboxLane *lane = dlist_container(OutboxLane, status_link, dlist_pop_head_node(&written));

		lane->status_listed = false;
		lane->pause_by[0] = '\0';
	}
}

void
outbox_handler_status_abort(void)
{
	while (!dlist_is_empty(&written))
		dlist_push_head(&dirty, dlist_pop_head_node(&written));
}

void
outbox_handler_status_forget(OutboxLane *lane)
{
	if (lane->status_listed)
		dlist_delete(&lane->status_link);
	lane->status_listed = false;
	if (lane->watched)
		dlist_delete(&lane->watch_link);
	lane->watched = false;
}
