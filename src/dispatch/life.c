/*-------------------------------------------------------------------------
 *
 * life.c
 *		Whether the dispatcher sends, holds or leaves.
 *
 * See life.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

#include "dispatch/crew.h"
#include "dispatch/duties.h"
#include "dispatch/expiry.h"
#include "dispatch/hand_over.h"
#include "dispatch/life.h"
#include "dispatch/occurrences.h"
#include "dispatch/reload.h"
#include "dispatch/send.h"
#include "dispatch/settle.h"
#include "dispatch/settler.h"
#include "dispatch/unsent.h"
#include "guc.h"
#include "shared/errand.h"
#include "worker/slot.h"

/* Whoever needs the database for a command waits no longer than that, whatever the grace is. */
#define LOCKED_OUT_GRACE_US (2 * USECS_PER_SEC)

static bool serving = false;
static bool sending = false;
static bool leaving = false;
static TimestampTz grace_ends = DT_NOEND;

bool
outbox_life_sends(void)
{
	return sending;
}

bool
outbox_life_serves(void)
{
	return serving;
}

bool
outbox_life_is_leaving(void)
{
	return leaving;
}

TimestampTz
outbox_life_grace_end(void)
{
	return grace_ends;
}

static int64
grace(void)
{
	int64		wanted = outbox_shutdown_grace * INT64CONST(1000);

	return outbox_slot_is_locked_out() ? Min(wanted, LOCKED_OUT_GRACE_US) : wanted;
}

/* The process is to end: give what is out a little time, and say in the slot why it left. */
static void
start_leaving(TimestampTz now)
{
	leaving = true;
	grace_ends = now + grace();
	outbox_crew_leave();
	outbox_settler_leave();
	outbox_duties_last_chance();

	/* Who has served an errand makes room for the one whose place it took. */
	if (outbox_slot_is_locked_out() || outbox_errand_runs())
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

/* Who calls outbox.deliver_now() has said that something is to be sent. */
static bool
may_send(void)
{
	return outbox_enabled || outbox_errand_runs();
}

const char *
outbox_life_problem(void)
{
	const char *problem = outbox_duties_problem();
	TimestampTz since;

	if (problem == NULL)
		problem = outbox_outcomes_problem();
	if (problem == NULL)
		problem = outbox_expiry_problem();
	if (problem == NULL)
		problem = outbox_on_settle_problem();
	if (problem == NULL)
		problem = outbox_redaction_problem();
	if (problem == NULL)
		problem = outbox_occurrences_problem();
	if (problem == NULL)
		problem = outbox_unsent_problem(&since);
	return problem;
}

/* What outbox.dispatchers shows of one that stays. */
static void
show_state(void)
{
	TimestampTz since = 0;
	const char *shortage = outbox_unsent_problem(&since);
	const char *problem = outbox_life_problem();

	outbox_slot_shortage(shortage, since);
	if (!outbox_reload_is_known())
		outbox_slot_error(outbox_duties_problem());
	else if (outbox_reload_why_copy() != NULL)
		outbox_slot_state(OUTBOX_DISPATCHER_HELD, outbox_reload_why_copy());
	else if (!may_send())
		outbox_slot_state(OUTBOX_DISPATCHER_DISABLED, problem);
	else
		outbox_slot_state(OUTBOX_DISPATCHER_RUNNING, problem);
}

void
outbox_life_note(TimestampTz now)
{
	if (!leaving && (ShutdownRequestPending || outbox_slot_is_locked_out() || outbox_reload_is_gone() || outbox_errand_is_over()))
		start_leaving(now);
	serving = !leaving && outbox_duties_know_settings() &&
		outbox_reload_is_known() && outbox_reload_why_copy() == NULL;
	set_sending(serving && may_send());
	if (!leaving)
		show_state();
}

bool
outbox_life_is_over(TimestampTz now)
{
	if (!leaving)
		return false;
	/* A clock that was set back lets the grace be no longer than it is. */
	grace_ends = Min(grace_ends, now + grace());
	if (now >= grace_ends || outbox_reload_is_gone())
		return true;
	return outbox_send_in_flight() == 0 && !outbox_outcomes_may_be_written() && outbox_settler_outstanding() == 0 &&
		outbox_crew_is_gone() && outbox_settler_is_gone();
}
