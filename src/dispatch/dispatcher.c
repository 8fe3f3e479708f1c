/*-------------------------------------------------------------------------
 *
 * dispatcher.c
 *		The background worker that delivers one database's messages.
 *
 * One loop: empty the doorbell, settle what has been answered and read what
 * is due in one short transaction, send, collect answers, wait.  No
 * transaction, snapshot or lock is held while a request is out.
 *
 * An error of the database work is reported once; outcomes stay in memory
 * and the work is tried again with growing pauses while answers are still
 * collected, so that a full disk loses nothing.  Errors that keep coming and
 * are not for want of resources end the process; the launcher restarts it.
 *
 * How this fits into the whole: doc/architecture.md, "Processes" and "Lanes".
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
#include "dispatch/fetch.h"
#include "dispatch/hand_over.h"
#include "dispatch/handler_status.h"
#include "dispatch/lane.h"
#include "dispatch/order.h"
#include "dispatch/reading.h"
#include "dispatch/reload.h"
#include "dispatch/rescan.h"
#include "dispatch/schedule.h"
#include "dispatch/send.h"
#include "dispatch/settle.h"
#include "dispatch/settler.h"
#include "dispatch/unsent.h"
#include "guc.h"
#include "shared/doorbell.h"
#include "worker/installation.h"
#include "worker/interrupt.h"
#include "worker/settings.h"
#include "worker/slot.h"
#include "worker/statistics.h"
#include "worker/waitset.h"
#include "worker/work.h"
#include "worker/worker.h"

/* So many outcomes are settled without waiting for more. */
#define SETTLE_BATCH 2000

/* Lanes that one transaction reads. */
#define MAX_LANES_PER_READ 64

/* How long answers are awaited when the process has been asked to end. */
#define GRACE_US (2 * USECS_PER_SEC)

/* Pauses after failed database work, and how many in a row end the process. */
#define FIRST_PAUSE_US (100 * 1000)
#define MAX_PAUSE_US (10 * USECS_PER_SEC)
#define MAX_FAILURES 5

/* A lock that nobody gives must not keep the loop from its sockets. */
#define LOCK_TIMEOUT "2s"

/* When a table lock is in the way. */
#define LOCKED_PAUSE_US (50 * 1000)

/* Away from the sockets for so long, they are read before timeouts are judged. */
#define LONG_ABSENCE_US (100 * 1000)

static OutboxDatabase *database = NULL;
static MemoryContext iteration_context = NULL;

static bool sending = true;		/* outbox.enabled, not held, not shutting down */
static TimestampTz grace_ends = 0;	/* set once the process is to end */
static TimestampTz work_paused_until = 0;
static int	failures = 0;

static void note_state(TimestampTz now);

static OutboxLane *to_read[MAX_LANES_PER_READ];
static int	nto_read = 0;

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
	/* A wait inside may have swallowed somebody's ring: the loop comes round once more. */
	SetLatch(MyLatch);
	MemoryContextSwitchTo(iteration_context);
}

/* What is set for the database, but for what this process needs.  In a transaction. */
static void
take_settings(void)
{
	outbox_apply_database_settings();
	outbox_pin_settling_alone(LOCK_TIMEOUT);
	/* A handler is known to have changed by its text. */
	outbox_pin("extra_float_digits", "1");
}

static void
reload_settings(void)
{
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	begin_work(false);
	take_settings();
	commit_work();
	outbox_send_configure();
	outbox_reload_request();
}

/* What the doorbell says goes to the lanes; for a handler that is not known yet, loading it reads all. */
static void
empty_doorbell(TimestampTz now)
{
	static OutboxNotice notices[OUTBOX_MAX_NOTICES];
	bool		overflow;
	bool		rescan;
	TimestampTz overflow_due;
	int			n = outbox_doorbell_empty(database, notices, &overflow, &overflow_due, &rescan);

	for (int i = 0; i < n; i++)
	{
		OutboxLane *lane = outbox_lane_find(notices[i].handler_id);

		if (notices[i].kind == OUTBOX_NOTICE_ON_SETTLED)
			outbox_on_settle_ended(lane, notices[i].count);
		else if (lane != NULL)
			outbox_lane_ring(lane, &notices[i], now);
	}
	if (overflow)
	{
		outbox_lanes_reread(overflow_due);
		outbox_on_settle_distrust_counts();
	}
	if (rescan)
		outbox_rescan_request();
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
	if (grace_ends != 0 || outbox_outcomes_waiting() >= SETTLE_BATCH ||
		(outbox_send_in_flight() == 0 && nto_read == 0))
		return now;
	return outbox_outcomes_oldest() + outbox_settle_interval * 1000L;
}

static bool
settlement_is_due(TimestampTz now)
{
	return outbox_outcomes_next_locked() <= now || outbox_handler_status_next() <= now || settlement_time(now) <= now;
}

/*
 * Go through the lanes that have something to look at: send what they may
 * send, and note which want to read if the database work comes next.
 */
static void
visit_ready_lanes(TimestampTz now, bool collect)
{
	OutboxLane *lane;
	OutboxLane *again[MAX_LANES_PER_READ];
	int			nagain = 0;

	while (sending && nagain < MAX_LANES_PER_READ && (lane = outbox_lane_next_ready()) != NULL)
	{
		outbox_send_lane(lane, now);
		outbox_lane_watch_clock(lane, now);
		if (outbox_lane_wants_read(lane, now))
		{
			if (collect && nto_read < MAX_LANES_PER_READ)
				to_read[nto_read++] = lane;
			else
				again[nagain++] = lane;
		}
	}
	for (int i = 0; i < nagain; i++)
		outbox_lane_ready(again[i]);
}

/* One delivery could not be read; the others of its lane must not suffer. */
static void
bury_poison(OutboxDelivery *delivery, const char *message)
{
	delivery->verdict.state = OUTBOX_DEAD;
	strlcpy(delivery->verdict.code, "unreadable", sizeof(delivery->verdict.code));
	delivery->error = MemoryContextStrdup(TopMemoryContext, message);
	outbox_outcome_add(delivery);
}

/* Failures that end by themselves or by an operator's hand, however long that takes. */
static bool
is_worth_waiting(int sqlstate)
{
	return ERRCODE_TO_CATEGORY(sqlstate) == ERRCODE_INSUFFICIENT_RESOURCES ||
		sqlstate == ERRCODE_IO_ERROR ||
		sqlstate == ERRCODE_LOCK_NOT_AVAILABLE ||
		sqlstate == ERRCODE_T_R_DEADLOCK_DETECTED ||
		sqlstate == ERRCODE_QUERY_CANCELED;
}

/*
 * The error came while this delivery was read: is it to be blamed?  Failures
 * that may end by themselves are another's fault, unless the same delivery
 * meets them again and again.
 */
static bool
is_unreadable(const OutboxDelivery *delivery, int sqlstate)
{
	static pg_uuid_t suspect;
	static int	times = 0;

	if (memcmp(&suspect, &delivery->id, UUID_LEN) != 0)
		times = 0;
	suspect = delivery->id;
	return !is_worth_waiting(sqlstate) || ++times > MAX_FAILURES;
}

/* The transaction of the database work has failed: put everything back and pause. */
static void
fail_work(void)
{
	ErrorData  *edata;
	OutboxDelivery *poison;
	TimestampTz now = GetCurrentTimestamp();

	poison = outbox_fetch_abort();
	outbox_settle_abort();
	outbox_handler_status_abort();
	edata = outbox_work_abort(iteration_context, now);
	outbox_slot_error(edata->message);
	outbox_signals_block();
	SetLatch(MyLatch);

	if (poison != NULL && is_unreadable(poison, edata->sqlerrcode))
	{
		bury_poison(poison, edata->message);
		return;
	}
	if (poison != NULL)
		outbox_order_discard(poison);
	failures++;
	work_paused_until = now + Min(MAX_PAUSE_US, FIRST_PAUSE_US << Min(failures - 1, 10));
	if (failures >= MAX_FAILURES && !is_worth_waiting(edata->sqlerrcode))
		ereport(FATAL,
				(errcode(edata->sqlerrcode),
				 errmsg("outbox dispatcher gives up after %d failures in a row: %s", failures, edata->message)));
}

static void
succeed_work(void)
{
	if (failures > 0)
		outbox_slot_error(NULL);
	failures = 0;
}

/*
 * Lanes that wanted to read are looked at again, whether they could or not:
 * what they have in memory may still wait for room, a bound may have stopped
 * them before they met a row, and they have timers to set.
 */
static void
put_back_readers(void)
{
	for (int i = 0; i < nto_read; i++)
		outbox_lane_ready(to_read[i]);
	nto_read = 0;
}

/* On ordered lanes: what has just been settled may let the next of its key go. */
static bool
successors_wanted(void)
{
	OutboxLane *lane;

	return sending && outbox_order_lanes(&lane, 1) > 0;
}

/*
 * The database work of one iteration, in one short transaction: settle,
 * then read.  The doorbell was emptied before, so the snapshot taken here
 * sees whatever it rang for.
 */
static void
settle_and_read(bool settle, TimestampTz now)
{
	bool		locked = false;

	begin_work(true);
	if (settle)
	{
		outbox_handler_status_write(now);
		if (!outbox_settle(now))
			locked = true;
		PopActiveSnapshot();
		PushActiveSnapshot(GetTransactionSnapshot());
	}
	if (!locked && (nto_read > 0 || successors_wanted()))
	{
		if (outbox_fetch_begin())
		{
			for (int i = 0; i < nto_read; i++)
				outbox_fetch_lane(to_read[i], now);
			if (sending)
				outbox_fetch_successors(now);
			outbox_fetch_end();
		}
		else
			locked = true;
	}
	commit_work();
	outbox_fetch_flush();

	/* Nothing raises from here on. */
	if (settle)
	{
		outbox_handler_status_finish();
		outbox_settle_finish(now);
	}
	outbox_fetch_finish();
	if (locked)
		work_paused_until = now + LOCKED_PAUSE_US;
}

/* Handlers that changed and the periodic look at everything.  Never raises. */
static void
do_maintenance(TimestampTz now)
{
	if (now < work_paused_until)
		return;

	PG_TRY();
	{
		if (outbox_reload_is_due(database, now))
		{
			bool		done;

			begin_work(true);
			done = outbox_reload(now);
			commit_work();
			succeed_work();
			if (done)
			{
				outbox_reload_finish();
				outbox_on_settle_handlers_changed();
				note_state(now);
			}
		}
		if (outbox_on_settle_recount_is_due(now) && outbox_reload_is_known() && !outbox_reload_is_gone())
		{
			begin_work(true);
			outbox_on_settle_recount(now);
			commit_work();
			succeed_work();
		}
		if (sending && outbox_rescan_is_due(now))
		{
			begin_work(true);
			outbox_rescan(now);
			commit_work();
			succeed_work();
		}
	}
	PG_CATCH();
	{
		fail_work();
	}
	PG_END_TRY();
}

/* Settle and read, if that is due.  Never raises. */
static void
do_database_work(TimestampTz now)
{
	bool		settle = settlement_is_due(now);

	if (now >= work_paused_until && (settle || nto_read > 0))
	{
		PG_TRY();
		{
			settle_and_read(settle, now);
			succeed_work();
		}
		PG_CATCH();
		{
			fail_work();
		}
		PG_END_TRY();
	}
	put_back_readers();
}

static TimestampTz
earlier(TimestampTz a, TimestampTz b)
{
	return a < b ? a : b;
}

/* How long the loop may sleep, in ms. */
static long
sleep_time(TimestampTz now)
{
	TimestampTz until = outbox_outcomes_next_locked();
	long		curl = outbox_send_timeout();
	long		ms;

	if (sending)
	{
		until = earlier(until, outbox_lanes_next_timer());
		until = earlier(until, outbox_rescan_next());
		if (outbox_lanes_any_ready())
			until = now;
	}
	until = earlier(until, outbox_reload_next(database));
	until = earlier(until, outbox_on_settle_next());
	until = earlier(until, outbox_settler_next());
	until = earlier(until, settlement_time(now));
	until = earlier(until, outbox_handler_status_next());
	until = earlier(until, outbox_confirm_next());
	if (work_paused_until > now && until != DT_NOEND)
		until = Max(until, work_paused_until);
	if (grace_ends != 0)
		until = earlier(until, grace_ends);

	ms = until == DT_NOEND ? -1 : until <= now ? 0 : (long) Min((until - now + 999) / 1000, INT_MAX);
	if (curl >= 0 && (ms < 0 || curl < ms))
		ms = curl;
	return ms;
}

static void
report_activity(void)
{
	static int	last = -1;
	int			in_flight = outbox_send_in_flight();

	outbox_slot_in_flight(in_flight);
	if ((in_flight > 0) == (last > 0) && last >= 0)
		return;
	last = in_flight;
	if (in_flight > 0)
		pgstat_report_activity(STATE_RUNNING, "delivering messages");
	else
		pgstat_report_activity(STATE_IDLE, "waiting for messages");
}

/* The process is to end: give what is out a little time, and say in the slot why it left. */
static void
start_leaving(TimestampTz now)
{
	grace_ends = now + GRACE_US;
	outbox_on_settle_leave();
	outbox_settler_leave();

	if (outbox_slot_is_locked_out())
		outbox_slot_leave(OUTBOX_DISPATCHER_LOCKED_OUT, NULL);
	else if (outbox_reload_mismatch() != NULL)
		outbox_slot_leave(OUTBOX_DISPATCHER_MISMATCH, outbox_reload_mismatch());
	else if (outbox_reload_is_gone())
		outbox_slot_leave(OUTBOX_DISPATCHER_STOPPED, NULL);
	else
		outbox_slot_leave(OUTBOX_DISPATCHER_TERMINATED, NULL);
}

/* Who sends again looks at the doorbell next, which was rung without waking it. */
static void
set_sending(bool sends)
{
	if (sending == sends)
		return;
	sending = sends;
	outbox_slot_sends(sends);
	if (sends)
		SetLatch(MyLatch);
}

/*
 * Decide whether to send, to hold or to leave, and show it.  Asked again
 * after a reload, which can change all of it.
 */
static void
note_state(TimestampTz now)
{
	bool		leave;

	leave = ShutdownRequestPending || outbox_slot_is_locked_out() || outbox_reload_is_gone();
	if (leave && grace_ends == 0)
		start_leaving(now);

	set_sending(outbox_enabled && grace_ends == 0 && outbox_reload_is_known() && outbox_reload_why_copy() == NULL);
	if (grace_ends == 0 && outbox_reload_is_known())
	{
		if (outbox_reload_why_copy() != NULL)
			outbox_slot_state(OUTBOX_DISPATCHER_HELD, outbox_reload_why_copy());
		else if (!outbox_enabled)
			outbox_slot_state(OUTBOX_DISPATCHER_DISABLED, NULL);
		else if (failures == 0)
			outbox_slot_state(OUTBOX_DISPATCHER_RUNNING, outbox_unsent_problem());
	}
}

/* React to signals, settings and whoever asks the dispatcher to leave. */
static void
handle_requests(TimestampTz now)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
		reload_settings();

	note_state(now);
}

/* True once nothing keeps the process from ending. */
static bool
may_end(TimestampTz now)
{
	if (grace_ends == 0)
		return false;
	if (now >= grace_ends || outbox_reload_is_gone())
		return true;
	return outbox_send_in_flight() == 0 && outbox_outcomes_waiting() == 0 && outbox_settler_outstanding() == 0 &&
		outbox_on_settle_is_gone() && outbox_settler_is_gone();
}

static void
main_loop(void)
{
	TimestampTz now = GetCurrentTimestamp();

	for (;;)
	{
		TimestampTz begin;
		bool		idle;

		MemoryContextReset(iteration_context);
		MemoryContextSwitchTo(iteration_context);
		handle_requests(now);
		outbox_signals_block();
		if (may_end(now))
			break;

		empty_doorbell(now);
		begin = now;
		do_maintenance(now);
		outbox_confirm_look(now);
		outbox_lanes_fire_timers(now);
		visit_ready_lanes(now, true);
		do_database_work(now);
		now = GetCurrentTimestamp();
		visit_ready_lanes(now, false);
		/* Now that as much is out as can be. */
		outbox_settler_attend(now, now >= work_paused_until, outbox_send_deliveries_out());
		outbox_send_drive(now - begin > LONG_ABSENCE_US);

		/* After the database work: what that has handed over may need another worker. */
		outbox_on_settle_attend(now, outbox_reload_is_known() && outbox_reload_why_copy() == NULL && !outbox_reload_is_gone());
		report_activity();
		idle = outbox_send_in_flight() == 0 && outbox_outcomes_waiting() == 0 && outbox_settler_outstanding() == 0;
		outbox_statistics_report(now, idle);
		outbox_wait(sleep_time(now));
		now = GetCurrentTimestamp();
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

	outbox_on_settle_init(database);
	outbox_settler_init();
	iteration_context = AllocSetContextCreate(TopMemoryContext, "outbox iteration", ALLOCSET_DEFAULT_SIZES);
	outbox_schedule_init();
	outbox_lanes_init(AllocSetContextCreate(TopMemoryContext, "outbox lanes", ALLOCSET_DEFAULT_SIZES));
	outbox_deliveries_init(TopMemoryContext);
	outbox_fetch_init(AllocSetContextCreate(TopMemoryContext, "outbox deliveries", ALLOCSET_DEFAULT_SIZES));
}

/* Leave without a fuss if the extension is not here, with a hint if it is of another version. */
static void
check_installation(void)
{
	OutboxInstallation installation;

	outbox_pin_settings();
	outbox_work_begin(false);
	outbox_pin_settling(LOCK_TIMEOUT);
	take_settings();
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
	if (!installation.version_matches)
	{
		outbox_slot_leave(OUTBOX_DISPATCHER_MISMATCH, installation.problem);
		proc_exit(0);
	}
}

/* Everything that is done connected to the database. */
static void
run(void)
{
	check_installation();
	outbox_send_init(AllocSetContextCreate(TopMemoryContext, "outbox requests", ALLOCSET_DEFAULT_SIZES));
	outbox_waitset_init(outbox_send_fd());
	main_loop();
}

void
outbox_dispatcher_main(Datum main_arg)
{
	initialize(DatumGetObjectId(main_arg));
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
		PG_RE_THROW();
	}
	PG_END_TRY();
	proc_exit(0);
}
