/*-------------------------------------------------------------------------
 *
 * lane_status.c
 *		What the dispatcher itself writes into outbox.handler_status.
 *
 * See lane_status.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "dispatch/lane_status.h"

static dlist_head dirty = DLIST_STATIC_INIT(dirty);
static dlist_head written = DLIST_STATIC_INIT(written);

/*
 * The row is updated if there is one and inserted otherwise, rather than
 * with ON CONFLICT: the statement trigger on inserts makes everybody read
 * the handlers again, which a breaker does not need.
 */
static OutboxPlan update_breaker_plan = {
	.sql = "UPDATE outbox.handler_status SET breaker = $2, breaker_reason = $3, breaker_until = $4, failing_since = $5 "
	"WHERE handler_id OPERATOR(pg_catalog.=) $1",
	.nargs = 5,
	.argtypes = {INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
};

static OutboxPlan insert_breaker_plan = {
	.sql = "INSERT INTO outbox.handler_status (handler_id, breaker, breaker_reason, breaker_until, failing_since) "
	"VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
	.nargs = 5,
	.argtypes = {INT4OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID},
};

static OutboxPlan pause_plan = {
	.sql = "UPDATE outbox.handler_status SET paused_at = pg_catalog.clock_timestamp(), paused_by = $2, paused_reason = $3 "
	"WHERE handler_id OPERATOR(pg_catalog.=) $1 AND paused_at IS NULL",
	.nargs = 3,
	.argtypes = {INT4OID, TEXTOID, TEXTOID},
};

static void
note(OutboxLane *lane)
{
	if (lane->status_listed)
		return;
	lane->status_listed = true;
	dlist_push_tail(&dirty, &lane->status_link);
}

void
outbox_lane_status_changed(OutboxLane *lane)
{
	note(lane);
}

void
outbox_lane_pause(OutboxLane *lane, const char *by, const char *reason)
{
	lane->paused = true;
	outbox_lane_forget_queued(lane, NULL, NULL);
	strlcpy(lane->pause_by, by, sizeof(lane->pause_by));
	strlcpy(lane->pause_reason, reason, sizeof(lane->pause_reason));
	note(lane);
}

bool
outbox_lane_status_waits(void)
{
	return !dlist_is_empty(&dirty);
}

static void
write_breaker(OutboxLane *lane)
{
	const OutboxBreaker *breaker = &lane->breaker;
	Datum		values[5];
	char		nulls[6] = "     ";

	values[0] = Int32GetDatum(lane->handler_id);
	values[1] = CStringGetTextDatum(outbox_breaker_state_name(breaker->state));
	values[2] = CStringGetTextDatum(breaker->reason);
	values[3] = TimestampTzGetDatum(breaker->until);
	values[4] = TimestampTzGetDatum(breaker->failing_since);
	if (breaker->reason[0] == '\0')
		nulls[2] = 'n';
	if (breaker->state != OUTBOX_BREAKER_OPEN)
		nulls[3] = 'n';
	if (breaker->failing_since == 0)
		nulls[4] = 'n';

	if (outbox_execute(&update_breaker_plan, values, nulls, false, 0, SPI_OK_UPDATE) == 0)
		outbox_execute(&insert_breaker_plan, values, nulls, false, 0, SPI_OK_INSERT);
}

static void
write_pause(OutboxLane *lane)
{
	Datum		values[3];

	values[0] = Int32GetDatum(lane->handler_id);
	values[1] = CStringGetTextDatum(lane->pause_by);
	values[2] = CStringGetTextDatum(lane->pause_reason);
	outbox_execute(&pause_plan, values, NULL, false, 0, SPI_OK_UPDATE);
	ereport(LOG,
			(errmsg("outbox paused handler \"%s\": %s",
					lane->handler ? lane->handler->name : "", lane->pause_reason)));
}

void
outbox_lane_status_write(void)
{
	if (dlist_is_empty(&dirty))
		return;
	SPI_connect();
	while (!dlist_is_empty(&dirty))
	{
		OutboxLane *lane = dlist_container(OutboxLane, status_link, dlist_pop_head_node(&dirty));

		dlist_push_tail(&written, &lane->status_link);
		write_breaker(lane);
		if (lane->pause_by[0])
			write_pause(lane);
	}
	SPI_finish();
}

void
outbox_lane_status_finish(void)
{
	while (!dlist_is_empty(&written))
	{
		OutboxLane *lane = dlist_container(OutboxLane, status_link, dlist_pop_head_node(&written));

		lane->status_listed = false;
		lane->pause_by[0] = '\0';
	}
}

void
outbox_lane_status_abort(void)
{
	while (!dlist_is_empty(&written))
		dlist_push_head(&dirty, dlist_pop_head_node(&written));
}

void
outbox_lane_status_forget(OutboxLane *lane)
{
	if (lane->status_listed)
		dlist_delete(&lane->status_link);
	lane->status_listed = false;
}
