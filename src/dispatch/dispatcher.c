/*-------------------------------------------------------------------------
 *
 * dispatcher.c
 *		The background worker that delivers one database's messages.
 *
 * One loop: empty the doorbell, settle what has been answered and read what
 * is due in one short transaction, send, collect answers, wait.  No
 * transaction, snapshot or lock is held while a request is out.
 *
 * What it does in the database is in duties.c, when it ends in life.c.
 * Started by the launcher, one per database; or by a session that calls
 * outbox.deliver_now(), for that alone and in the place of the other one
 * (shared/errand.h).  How this fits into the whole: doc/architecture.md,
 * "Processes" and "Lanes".
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "compat.h"
#include "dispatch/confirm.h"
#include "dispatch/crew.h"
#include "dispatch/duties.h"
#include "dispatch/expiry.h"
#include "dispatch/fetch.h"
#include "dispatch/hand_over.h"
#include "dispatch/lane.h"
#include "dispatch/life.h"
#include "dispatch/occurrences.h"
#include "dispatch/pacing.h"
#include "dispatch/memory.h"
#include "dispatch/payload.h"
#include "dispatch/reading.h"
#include "dispatch/redact.h"
#include "dispatch/reload.h"
#include "dispatch/rescan.h"
#include "dispatch/run_errand.h"
#include "dispatch/schedule.h"
#include "dispatch/send.h"
#include "dispatch/settle.h"
#include "dispatch/settler.h"
#include "shared/counters.h"
#include "shared/doorbell.h"
#include "shared/errand.h"
#include "worker/clock.h"
#include "worker/installation.h"
#include "worker/interrupt.h"
#include "worker/settings.h"
#include "worker/slot.h"
#include "worker/statistics.h"
#include "worker/waitset.h"
#include "worker/work.h"
#include "worker/worker.h"

/* A lock that nobody gives must not keep the process from starting over. */
#define LOCK_TIMEOUT "2s"

/* Lanes that are looked at before the loop goes on. */
#define MAX_VISITS 64

/* Lanes are asked to give back memory at most so often. */
#define GIVE_BACK_EVERY_US (100 * 1000)

/* Away from the sockets for so long, they are read before timeouts are judged. */
#define LONG_ABSENCE_US (100 * 1000)

/* The loop comes round at least so often: what falls due by the wall clock falls due sooner if that is set forward. */
#define LONGEST_SLEEP_MS (10 * 1000)

static OutboxDatabase *database = NULL;
static MemoryContext iteration_context = NULL;

/* How long the transaction that rang waited to be heard. */
static void
count_wake_up(OutboxLane *lane, const OutboxNotice *notice, TimestampTz now)
{
	if (notice->rung_at != 0 && notice->kind == OUTBOX_NOTICE_DUE)
		outbox_count_time(&lane->counted, OUTBOX_TIME_WAKE_UP, outbox_to_wall(now) - notice->rung_at);
}

/* What the doorbell says goes to the lanes; for a handler that is not known yet, loading it reads all. */
static void
empty_doorbell(TimestampTz now)
{
	static OutboxNotice notices[OUTBOX_MAX_NOTICES];
	bool		overflow;
	bool		rescan;
	TimestampTz overflow_due;
	TimestampTz end_noted;
	int			n = outbox_doorbell_empty(database, notices, &overflow, &overflow_due, &rescan, outbox_expiry_expected(), &end_noted);

	for (int i = 0; i < n; i++)
	{
		OutboxLane *lane = outbox_lane_find(notices[i].handler_id);

		if (notices[i].kind == OUTBOX_NOTICE_ON_SETTLED)
			outbox_on_settle_ended(lane, notices[i].count);
		else if (lane != NULL)
		{
			count_wake_up(lane, &notices[i], now);
			outbox_lane_ring(lane, &notices[i], now);
			if (notices[i].urgent)
				outbox_lane_hurry(lane, now);
		}
	}
	if (overflow)
	{
		outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_OVERFLOWS, 1);
		outbox_lanes_reread(overflow_due);
		outbox_on_settle_distrust_counts();
	}
	outbox_expiry_expect(end_noted);
	if (rescan)
		outbox_rescan_request();
}

/*
 * Go through the lanes that have something to look at: send what they may
 * send, and note which want to read if the database work comes next.
 */
static void
visit_ready_lanes(TimestampTz now, bool collect)
{
	OutboxLane *lane;
	OutboxLane *again[MAX_VISITS];
	int			nagain = 0;

	while (outbox_life_sends() && nagain < MAX_VISITS && (lane = outbox_lane_next_ready()) != NULL)
	{
		outbox_send_lane(lane, now);
		outbox_lane_watch_clock(lane, now);
		if (!outbox_lane_wants_read(lane, now))
			continue;
		if (outbox_memory_allowance(OUTBOX_MEMORY_DELIVERIES, lane) <= 0)
		{
			outbox_memory_is_wanted(OUTBOX_MEMORY_DELIVERIES, 1);
			outbox_lane_crowded(lane);
		}
		else if (!(collect && outbox_duties_want_read(lane)))
			again[nagain++] = lane;
	}
	for (int i = 0; i < nagain; i++)
		outbox_lane_ready(again[i]);
}

static void
give_back(OutboxLane *lane, void *arg)
{
	outbox_lane_give_back(lane, *(TimestampTz *) arg);
}

/*
 * Who waits for memory gets what others cannot use now, and another look when
 * there is some.  Returns when to come again for that.
 */
static TimestampTz
attend_memory(TimestampTz now)
{
	static bool wanted = false;
	static TimestampTz next_look = DT_NOBEGIN;

	wanted = outbox_memory_was_wanted() || wanted;
	if (wanted && now >= next_look)
	{
		outbox_lanes_each(give_back, &now);
		next_look = now + GIVE_BACK_EVERY_US;
		wanted = false;
	}
	if (outbox_memory_was_freed())
		outbox_lanes_have_room();
	return wanted ? next_look : DT_NOEND;
}

/* How long the loop may sleep, in ms. */
static long
sleep_time(TimestampTz now, TimestampTz memory_due)
{
	bool		sends = outbox_life_sends();
	TimestampTz until = outbox_duties_next(now, sends);
	long		transport = outbox_send_timeout();
	long		ms = LONGEST_SLEEP_MS;

	if (sends)
		until = Min(until, outbox_lanes_any_ready() || outbox_payloads_writing() ? now : outbox_lanes_next_timer());
	until = Min(until, outbox_on_settle_next());
	until = Min(until, outbox_occurrences_next());
	until = Min(until, outbox_settler_next());
	until = Min(until, outbox_redact_next());
	until = Min(until, outbox_confirm_next());
	until = Min(until, outbox_life_grace_end());
	until = Min(until, outbox_errand_next());
	until = Min(until, memory_due);

	if (until < now + ms * 1000)
		ms = until <= now ? 0 : (long) ((until - now + 999) / 1000);
	return transport >= 0 ? Min(transport, ms) : ms;
}

static void
report_activity(TimestampTz now)
{
	static int	last = -1;
	int			in_flight = outbox_send_in_flight();

	outbox_slot_moves(in_flight, outbox_to_wall(now));
	if ((in_flight > 0) == (last > 0) && last >= 0)
		return;
	last = in_flight;
	if (in_flight > 0)
		pgstat_report_activity(STATE_RUNNING, "delivering messages");
	else
		pgstat_report_activity(STATE_IDLE, "waiting for messages");
}

/* React to signals, settings and whoever asks the dispatcher to leave. */
static void
handle_requests(TimestampTz now)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		outbox_duties_request_settings();
	}
	outbox_life_note(now);
}

/* May on_settle workers run here? */
static bool
may_run_functions(void)
{
	return outbox_reload_is_known() && outbox_reload_why_copy() == NULL && !outbox_reload_is_gone();
}

/* The wall clock was set: what the lane waits for may be due, or not yet. */
static void
look_again(OutboxLane *lane, void *arg)
{
	/* It may have been in doubt whether something of it has expired. */
	lane->unsent_until = 0;
	outbox_lane_ready(lane);
}

/* Wait, and count what has passed since the turn began: begin, now that it ends, and when it is over. */
static TimestampTz
wait_and_count(TimestampTz begin, long timeout)
{
	TimestampTz end = outbox_steady_time();
	TimestampTz next;

	outbox_wait(timeout);
	next = outbox_steady_time();
	outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_TURNS, 1);
	outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_BUSY_US, end - begin);
	outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_WAITING_US, next - end);
	return next;
}

static void
main_loop(void)
{
	TimestampTz now = outbox_steady_time();

	outbox_count_dispatcher(OUTBOX_DISPATCHER_COUNT_STARTS, 1);
	for (;;)
	{
		TimestampTz begin;
		TimestampTz memory_due;
		bool		idle;

		MemoryContextReset(iteration_context);
		MemoryContextSwitchTo(iteration_context);
		handle_requests(now);
		outbox_signals_block();
		if (outbox_life_is_over(now))
			break;

		if (outbox_clock_look())
			outbox_lanes_each(look_again, NULL);
		outbox_expiry_watch_clock(now);
		empty_doorbell(now);
		outbox_outcomes_take_redacted(now);
		begin = now;
		if (outbox_duties_maintain(now))
			outbox_life_note(now);
		outbox_confirm_look(now);
		outbox_lanes_fire_timers(now);
		visit_ready_lanes(now, true);
		outbox_duties_settle_and_read(now, outbox_life_sends());
		now = outbox_steady_time();
		if (outbox_life_sends())
			outbox_payloads_write(now);
		visit_ready_lanes(now, false);
		/* Now that as much is out as can be. */
		outbox_settler_attend(now, outbox_duties_may_settle(now), outbox_send_deliveries_out());
		outbox_send_drive(now - begin > LONG_ABSENCE_US);

		/* After the database work: what that has handed over may need another worker. */
		outbox_on_settle_attend(now, may_run_functions());
		outbox_occurrences_attend(now, outbox_life_sends());
		report_activity(now);
		memory_due = attend_memory(now);
		idle = outbox_send_in_flight() == 0 && outbox_outcomes_waiting() == 0 && outbox_settler_outstanding() == 0;
		outbox_statistics_report(now, idle);
		if (outbox_errand_runs())
			outbox_errand_attend(now);
		now = wait_and_count(begin, sleep_time(now, memory_due));
	}
}

static void
initialize(Oid dboid)
{
	outbox_interrupts_before_connection();
	database = outbox_slot_take(dboid);
	if (database == NULL)
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);
	outbox_interrupts_init(false);

	outbox_crew_init(database);
	outbox_on_settle_init(database);
	outbox_redact_init(database);
	outbox_occurrences_init(database);
	outbox_settler_init();
	iteration_context = AllocSetContextCreate(TopMemoryContext, "outbox iteration", ALLOCSET_DEFAULT_SIZES);
	outbox_duties_init(database, iteration_context);
	outbox_schedule_init();
	outbox_lanes_init(AllocSetContextCreate(TopMemoryContext, "outbox lanes", ALLOCSET_DEFAULT_SIZES));
	outbox_deliveries_init(TopMemoryContext);
	outbox_fetch_init(AllocSetContextCreate(TopMemoryContext, "outbox deliveries", ALLOCSET_DEFAULT_SIZES));
	outbox_memory_init();
	outbox_payloads_init(AllocSetContextCreate(TopMemoryContext, "outbox payloads", ALLOCSET_DEFAULT_SIZES));
}

/* Leave without a fuss if the extension is not here, with a hint if it is of another version. */
static void
check_installation(void)
{
	OutboxInstallation installation;

	outbox_pin_settings();
	outbox_work_begin(false);
	outbox_pin_settling_alone(LOCK_TIMEOUT);
	if (!outbox_duties_take_settings())
		outbox_duties_request_settings();
	outbox_act_as_owner();
	outbox_installation_read(&installation);
	if (installation.installed)
		outbox_slot_name(get_database_name(MyDatabaseId));
	outbox_work_commit();

	if (!installation.installed)
	{
		outbox_slot_leave(OUTBOX_DISPATCHER_STOPPED, NULL);
		proc_exit(0);
	}
	if (!installation.served)
	{
		outbox_errand_say(OUTBOX_ERRAND_FAILED, installation.problem);
		outbox_slot_leave(OUTBOX_DISPATCHER_MISMATCH, installation.problem);
		proc_exit(0);
	}
}

/* Everything that is done connected to the database. */
static void
run(void)
{
	if (outbox_errand_runs())
		outbox_errand_begin();
	check_installation();
	outbox_send_init(AllocSetContextCreate(TopMemoryContext, "outbox requests", ALLOCSET_DEFAULT_SIZES));
	outbox_waitset_init(outbox_send_fd());
	main_loop();
}

static void
dispatch(Oid dboid)
{
	initialize(dboid);
	PG_TRY();
	{
		run();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		/* The log tells it all; outbox.dispatchers tells what it was. */
		MemoryContextSwitchTo(iteration_context);
		edata = CopyErrorData();
		outbox_slot_error(edata->message);
		outbox_errand_say(OUTBOX_ERRAND_FAILED, edata->message);
		PG_RE_THROW();
	}
	PG_END_TRY();
	proc_exit(0);
}

void
outbox_dispatcher_main(Datum main_arg)
{
	dispatch(DatumGetObjectId(main_arg));
}

void
outbox_errand_main(Datum main_arg)
{
	if (outbox_errand_join(DatumGetUInt32(main_arg)))
		dispatch(outbox_errand_database());
}
