/*-------------------------------------------------------------------------
 *
 * duties.c
 *		What the dispatcher does in the database.
 *
 * See duties.h.  As long as all goes well, an iteration's writing and reading
 * share one transaction, which saves a commit.  Once one of them has failed,
 * each has its own until it succeeds again.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "dispatch/duties.h"
#include "dispatch/expiry.h"
#include "dispatch/fetch.h"
#include "dispatch/hand_over.h"
#include "dispatch/handler_status.h"
#include "dispatch/life.h"
#include "dispatch/occurrences.h"
#include "dispatch/order.h"
#include "dispatch/payload.h"
#include "dispatch/reload.h"
#include "dispatch/rescan.h"
#include "dispatch/run_errand.h"
#include "dispatch/schedule.h"
#include "dispatch/send.h"
#include "dispatch/settle.h"
#include "guc.h"
#include "shared/counters.h"
#include "worker/backoff.h"
#include "worker/clock.h"
#include "worker/failure.h"
#include "worker/settings.h"
#include "worker/waitset.h"
#include "worker/work.h"

/* So many outcomes are settled without waiting for more. */
#define SETTLE_BATCH 2000

/* Lanes that one transaction reads. */
#define MAX_LANES_PER_READ 64

/* A lock that nobody gives must not keep the loop from its sockets. */
#define LOCK_TIMEOUT "2s"

/* When a table lock is in the way. */
#define LOCKED_PAUSE_US (50 * 1000)

/* A delivery that so many failures in a row have met is to be blamed for them. */
#define MAX_FAILURES 5

typedef enum Duty
{
	SETTINGS,
	RELOAD,
	RECOUNT,
	RESCAN,
	SCHEDULES,
	EXPIRY,
	ERRAND,
	STATUS,						/* this one and those behind it can share a transaction */
	SETTLE,
	READ,
	DUTIES
} Duty;

static OutboxDatabase *database = NULL;
static MemoryContext idle_context = NULL;

static OutboxBackoff troubles[DUTIES];
static Duty current;			/* whose failure it is if there is one now */
static char problem[OUTBOX_ERROR_LEN];	/* the latest error, as long as something fails */

static bool settings_pending = false;
static bool settings_known = false;

static OutboxLane *to_read[MAX_LANES_PER_READ];
static int	nto_read = 0;

void
outbox_duties_init(OutboxDatabase *db, MemoryContext context)
{
	database = db;
	idle_context = context;
}

static bool
may_try(Duty duty, TimestampTz now)
{
	return outbox_backoff_is_over(&troubles[duty], now);
}

static bool
anything_fails(void)
{
	for (int i = 0; i < DUTIES; i++)
	{
		if (troubles[i].failures > 0)
			return true;
	}
	return false;
}

const char *
outbox_duties_problem(void)
{
	return problem[0] != '\0' ? problem : NULL;
}

static void
succeed(Duty duty)
{
	outbox_backoff_succeed(&troubles[duty]);
	if (problem[0] != '\0' && !anything_fails())
		problem[0] = '\0';
}

/* Brackets around work in the database: signals are let in only there. */
static void
begin_work(bool as_owner)
{
	outbox_signals_open();
	outbox_work_begin(as_owner);
}

static void
commit_work(void)
{
	outbox_work_commit();
	outbox_signals_block();
	outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_TRANSACTIONS, 1);
	/* A wait inside may have swallowed somebody's ring: the loop comes round once more. */
	SetLatch(MyLatch);
	MemoryContextSwitchTo(idle_context);
}

bool
outbox_duties_pause(TimestampTz now)
{
	for (int i = 0; i < DUTIES; i++)
	{
		if (!may_try(i, now))
			return true;
	}
	return false;
}

/* One delivery could not be read; the others of its lane must not suffer. */
static void
bury_poison(OutboxDelivery *delivery, const char *message)
{
	delivery->verdict.state = OUTBOX_DEAD;
	strlcpy(delivery->verdict.code, "unreadable", sizeof(delivery->verdict.code));
	delivery->error = MemoryContextStrdup(TopMemoryContext, message);
	delivery->error_is_raw = true;
	outbox_outcome_add(delivery);
}

/*
 * The error came while this message was read: is it to be blamed?  Failures
 * that may end by themselves are another's fault, unless the same one meets
 * them again and again.
 */
static bool
is_unreadable(const pg_uuid_t *id, int sqlstate)
{
	static pg_uuid_t suspect;
	static int	times = 0;

	if (memcmp(&suspect, id, UUID_LEN) != 0)
		times = 0;
	suspect = *id;
	return !outbox_failure_may_end(sqlstate) || ++times > MAX_FAILURES;
}

/* The transaction has failed: everything is as it was before, and its duty pauses.  In PG_CATCH(). */
static void
fail_work(void)
{
	OutboxDelivery *poison = outbox_fetch_abort();
	const pg_uuid_t *poison_payload = outbox_payloads_abort();
	TimestampTz now = outbox_steady_time();
	ErrorData  *edata;

	outbox_settle_abort();
	outbox_handler_status_abort();
	edata = outbox_work_abort(idle_context, now);
	outbox_signals_block();
	outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_FAILURES, 1);
	SetLatch(MyLatch);

	if (poison != NULL && is_unreadable(&poison->id, edata->sqlerrcode))
	{
		bury_poison(poison, edata->message);
		return;
	}
	if (poison_payload != NULL && is_unreadable(poison_payload, edata->sqlerrcode))
	{
		outbox_payload_bury(poison_payload, edata->message);
		return;
	}
	if (poison != NULL)
		outbox_order_discard(poison);
	if (current == SETTLE && !outbox_settle_failed(edata->message, !outbox_failure_may_end(edata->sqlerrcode), now))
		return;
	if (current == EXPIRY && !outbox_expiry_failed(!outbox_failure_may_end(edata->sqlerrcode)))
		return;
	outbox_backoff_fail(&troubles[current], &outbox_work_pauses, now);
	strlcpy(problem, edata->message, sizeof(problem));
}

/* One duty in a transaction of its own.  False if it failed or did not do it. */
static bool
perform(Duty duty, bool as_owner, bool (*work) (TimestampTz now), TimestampTz now)
{
	volatile bool done = false;

	current = duty;
	PG_TRY();
	{
		begin_work(as_owner);
		done = work(now);
		commit_work();
		succeed(duty);
	}
	PG_CATCH();
	{
		done = false;
		fail_work();
	}
	PG_END_TRY();
	return done;
}

bool
outbox_duties_take_settings(void)
{
	if (!outbox_apply_database_settings())
		return false;
	outbox_pin_settling_alone(LOCK_TIMEOUT);
	/* A handler is known to have changed by its text. */
	outbox_pin("extra_float_digits", "1");
	settings_known = true;
	settings_pending = false;
	return true;
}

void
outbox_duties_request_settings(void)
{
	settings_pending = true;
}

bool
outbox_duties_know_settings(void)
{
	return settings_known;
}

static bool
take_settings(TimestampTz now)
{
	return outbox_duties_take_settings();
}

static void
reload_settings(TimestampTz now)
{
	if (perform(SETTINGS, false, take_settings, now))
	{
		outbox_send_configure();
		outbox_reload_request();
		/* Retention may be on now. */
		outbox_occurrences_request();
	}
	else if (troubles[SETTINGS].failures == 0)
		outbox_backoff_wait(&troubles[SETTINGS], LOCKED_PAUSE_US, now);
}

static bool
reload(TimestampTz now)
{
	if (!perform(RELOAD, true, outbox_reload, now))
		return false;
	outbox_reload_finish();
	outbox_on_settle_handlers_changed();
	return true;
}

/* Until the handlers are known, and once they are gone, there is nothing to count for. */
static bool
may_recount(void)
{
	return outbox_reload_is_known() && !outbox_reload_is_gone();
}

static bool
rescan(TimestampTz now)
{
	outbox_rescan(now);
	outbox_occurrences_request();
	return true;
}

bool
outbox_duties_maintain(TimestampTz now)
{
	bool		reloaded = false;

	if (settings_pending && may_try(SETTINGS, now))
		reload_settings(now);
	if (may_try(RELOAD, now) && outbox_reload_is_due(database, now))
		reloaded = reload(now);
	if (may_recount() && may_try(RECOUNT, now) && outbox_on_settle_recount_is_due(now))
		(void) perform(RECOUNT, true, outbox_on_settle_recount, now);
	/* Also while nothing is to be sent: consumers go on. */
	if (outbox_life_serves() && may_try(RESCAN, now) && outbox_rescan_is_due(now))
		(void) perform(RESCAN, true, rescan, now);
	if (outbox_life_sends() && may_try(SCHEDULES, now) && outbox_occurrences_look_next() <= now)
		(void) perform(SCHEDULES, true, outbox_occurrences_look, now);
	/* Also while nothing is to be sent.  What a look has left behind that failed is not known. */
	if (outbox_life_serves() && may_try(EXPIRY, now) && outbox_expiry_next() <= now &&
		!perform(EXPIRY, true, outbox_expiry_look, now))
		outbox_expiry_request();
	if (outbox_life_sends() && may_try(ERRAND, now) && outbox_errand_look_next() <= now &&
		perform(ERRAND, true, outbox_errand_look, now))
		outbox_errand_looked();
	return reloaded;
}

bool
outbox_duties_want_read(OutboxLane *lane)
{
	if (nto_read == MAX_LANES_PER_READ)
		return false;
	to_read[nto_read++] = lane;
	return true;
}

/*
 * Lanes that wanted to read are looked at again, whether they could or not:
 * what they have in memory may still wait for room, a bound may have stopped
 * them before they met a row, and they have timers to set.  In a pause there
 * is no use in looking at once.
 */
static void
put_back_readers(TimestampTz now)
{
	bool		pause = !may_try(READ, now);

	for (int i = 0; i < nto_read; i++)
	{
		if (pause)
			outbox_lane_wake_at(to_read[i], outbox_backoff_until(&troubles[READ]));
		else
			outbox_lane_ready(to_read[i]);
	}
	nto_read = 0;
}

/*
 * When the outcomes that wait are to be settled.  A settlement costs a flush
 * of WAL, during which nothing is sent, so they are gathered while there is
 * something else to do: requests that are out, or rows to read.  Who is about
 * to leave has no time for that: what is not settled by then is sent again.
 */
static TimestampTz
settlement_time(TimestampTz now)
{
	if (outbox_outcomes_waiting() == 0)
		return DT_NOEND;
	if (outbox_life_is_leaving() || outbox_outcomes_waiting() >= SETTLE_BATCH ||
		(outbox_send_in_flight() == 0 && nto_read == 0))
		return now;
	return outbox_outcomes_oldest() + outbox_settle_interval * 1000L;
}

static bool
settlement_is_due(TimestampTz now)
{
	return outbox_outcomes_next_locked() <= now || outbox_outcomes_next_aside() <= now || settlement_time(now) <= now;
}

bool
outbox_duties_may_settle(TimestampTz now)
{
	return may_try(SETTLE, now);
}

void
outbox_duties_last_chance(void)
{
	outbox_backoff_wait(&troubles[SETTLE], 0, outbox_steady_time());
	outbox_outcomes_last_chance();
}

/* On ordered lanes: what has just been settled may let the next of its key go. */
static bool
successors_wanted(void)
{
	OutboxLane *lane;

	return outbox_order_lanes(&lane, 1) > 0;
}

/* Is there something to read for which no lane stands?  Successors are read along, unless they were missed. */
static bool
others_wanted(bool sends)
{
	return sends && (outbox_payloads_asked() || (troubles[READ].pause > 0 && successors_wanted()));
}

/* The doorbell was emptied before, so the snapshot taken here sees whatever it rang for. */
static bool
read_lanes(TimestampTz now, bool sends)
{
	if (nto_read == 0 && !(sends && (successors_wanted() || outbox_payloads_asked())))
		return true;
	/* What was written in this transaction is to be seen. */
	PopActiveSnapshot();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (!outbox_fetch_begin())
		return false;
	for (int i = 0; i < nto_read; i++)
		outbox_fetch_lane(to_read[i], now);
	if (sends)
	{
		outbox_fetch_successors(now);
		outbox_payloads_read();
	}
	outbox_fetch_end();
	return true;
}

/* Do one part of a transaction.  False if somebody's lock is in the way. */
static bool
do_part(Duty duty, TimestampTz now, bool sends)
{
	switch (duty)
	{
		case STATUS:
			outbox_handler_status_write(now);
			return true;
		case SETTLE:
			return outbox_settle(now);
		default:
			return read_lanes(now, sends);
	}
}

/* The parts that are wanted, in one short transaction. */
static void
do_parts(const bool *wanted, TimestampTz now, bool sends)
{
	Duty		last = STATUS;
	bool		locked = false;

	begin_work(true);
	for (Duty duty = STATUS; duty < DUTIES && !locked; duty++)
	{
		if (!wanted[duty])
			continue;
		current = last = duty;
		locked = !do_part(duty, now, sends);
	}
	/* What fails at commit is what was written. */
	current = wanted[SETTLE] ? SETTLE : last;
	commit_work();
	outbox_fetch_flush();

	/* Nothing raises from here on. */
	if (wanted[STATUS])
		outbox_handler_status_finish();
	if (wanted[SETTLE])
		outbox_settle_finish(now);
	outbox_fetch_finish();
	outbox_payloads_finish();
	for (Duty duty = STATUS; duty <= last; duty++)
	{
		if (wanted[duty])
			succeed(duty);
	}
	if (locked)
		outbox_backoff_wait(&troubles[last], LOCKED_PAUSE_US, now);
}

static void
try_parts(const bool *wanted, TimestampTz now, bool sends)
{
	PG_TRY();
	{
		do_parts(wanted, now, sends);
	}
	PG_CATCH();
	{
		fail_work();
	}
	PG_END_TRY();
}

static void
try_alone(Duty duty, TimestampTz now, bool sends)
{
	bool		wanted[DUTIES] = {false};

	wanted[duty] = true;
	try_parts(wanted, now, sends);
}

void
outbox_duties_settle_and_read(TimestampTz now, bool sends)
{
	bool		wanted[DUTIES] = {false};
	bool		settle = settlement_is_due(now);

	outbox_handler_status_look(now);
	wanted[SETTLE] = settle && may_try(SETTLE, now);
	wanted[STATUS] = (wanted[SETTLE] || outbox_handler_status_next() <= now) && may_try(STATUS, now);
	wanted[READ] = (nto_read > 0 || wanted[SETTLE] || others_wanted(sends)) && may_try(READ, now);

	if (troubles[STATUS].failures + troubles[SETTLE].failures + troubles[READ].failures > 0)
	{
		for (Duty duty = STATUS; duty < DUTIES; duty++)
		{
			if (wanted[duty])
				try_alone(duty, now, sends);
		}
	}
	else if (wanted[STATUS] || wanted[SETTLE] || wanted[READ])
		try_parts(wanted, now, sends);
	put_back_readers(now);
}

/* When a duty that is due then may be done. */
static TimestampTz
not_before_pause(Duty duty, TimestampTz due)
{
	return due == DT_NOEND ? DT_NOEND : Max(due, outbox_backoff_until(&troubles[duty]));
}

TimestampTz
outbox_duties_next(TimestampTz now, bool sends)
{
	TimestampTz next = not_before_pause(RELOAD, outbox_reload_next(database));

	if (settings_pending)
		next = Min(next, not_before_pause(SETTINGS, now));
	if (may_recount())
		next = Min(next, not_before_pause(RECOUNT, outbox_on_settle_recount_next()));
	if (outbox_life_serves())
	{
		next = Min(next, not_before_pause(RESCAN, outbox_rescan_next()));
		next = Min(next, not_before_pause(EXPIRY, outbox_expiry_next()));
	}
	if (sends)
	{
		next = Min(next, not_before_pause(SCHEDULES, outbox_occurrences_look_next()));
		next = Min(next, not_before_pause(ERRAND, outbox_errand_look_next()));
	}
	if (others_wanted(sends))
		next = Min(next, not_before_pause(READ, now));
	next = Min(next, not_before_pause(STATUS, outbox_handler_status_next()));
	next = Min(next, not_before_pause(SETTLE, Min(outbox_outcomes_next_locked(), outbox_outcomes_next_aside())));
	return Min(next, not_before_pause(SETTLE, settlement_time(now)));
}
