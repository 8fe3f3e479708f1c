/*-------------------------------------------------------------------------
 *
 * function_worker.c
 *		What workers that run functions of users have in common: how they
 *		begin, and their settings.
 *
 * See function_worker.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/session.h"
#include "compat.h"
#include "shared/errand.h"
#include "worker/backoff.h"
#include "worker/function_worker.h"
#include "worker/installation.h"
#include "worker/interrupt.h"
#include "worker/settings.h"
#include "worker/statistics.h"
#include "worker/work.h"
#include "worker/worker.h"

/* Settings that could not be read are tried again after this time. */
#define SETTINGS_RETRY_US USECS_PER_SEC

/* For the worker's own statements. */
#define LOCK_TIMEOUT "5s"

static MemoryContext iteration_context = NULL;
static bool settings_pending = false;	/* could not be read yet */
static OutboxBackoff settings_wait;

MemoryContext
outbox_function_worker_context(void)
{
	return iteration_context;
}

static bool
is_installed(void)
{
	OutboxInstallation installation;

	outbox_pin_settings();
	outbox_work_begin(false);
	outbox_pin_settling(LOCK_TIMEOUT);
	settings_pending = !outbox_apply_database_settings();
	outbox_act_as_owner();
	outbox_installation_read(&installation);
	outbox_work_commit();
	return installation.installed && installation.served && installation.why_copy[0] == '\0';
}

OutboxFunctionPlace
outbox_function_worker_place(void)
{
	OutboxFunctionWorkerExtra extra;

	memcpy(&extra, MyBgworkerEntry->bgw_extra, sizeof(extra));
	return extra.place;
}

/* Serve the errand that the dispatcher serves, if it does.  False: that has ended. */
static bool
join_errand(void)
{
	OutboxFunctionWorkerExtra extra;

	memcpy(&extra, MyBgworkerEntry->bgw_extra, sizeof(extra));
	return extra.errand == DSM_HANDLE_INVALID || outbox_errand_join(extra.errand);
}

bool
outbox_function_worker_begin(Oid dboid, OutboxFunctionPlace place, const OutboxUserFunctionWatch *watch)
{
	outbox_interrupts_before_connection();
	if (!join_errand())
		proc_exit(0);
	if (outbox_function_slot_take(dboid, place) == NULL)
		proc_exit(0);
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);
	outbox_interrupts_init(true);

	iteration_context = AllocSetContextCreate(TopMemoryContext, "outbox iteration", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(iteration_context);
	outbox_user_functions_watch(watch);
	return is_installed();
}

void
outbox_function_worker_fail(TimestampTz now)
{
	(void) outbox_work_abort(iteration_context, now);
	outbox_function_slot_end();
	outbox_user_functions_clean_up();
}

/*
 * Settings of the server or of this database have changed.  Whatever is in
 * the way of reading them, functions go on with those that there were.
 */
static void
reload_settings(TimestampTz now)
{
	if (ConfigReloadPending)
		ProcessConfigFile(PGC_SIGHUP);
	ConfigReloadPending = false;
	settings_pending = true;
	PG_TRY();
	{
		outbox_work_begin(false);
		settings_pending = !outbox_apply_database_settings();
		outbox_work_commit();
		outbox_pin_settling(LOCK_TIMEOUT);
	}
	PG_CATCH();
	{
		outbox_function_worker_fail(now);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(iteration_context);
	if (settings_pending)
		outbox_backoff_wait(&settings_wait, SETTINGS_RETRY_US, now);
}

void
outbox_function_worker_settings(TimestampTz now)
{
	if (ConfigReloadPending || (settings_pending && outbox_backoff_is_over(&settings_wait, now)))
		reload_settings(now);
}

bool
outbox_function_worker_wait(TimestampTz until, TimestampTz now, const char *activity)
{
	long		ms = until <= now ? 0 : (long) Min((until - now + 999) / 1000, INT_MAX);
	int			events;

	/* Let the statistics system know what was written, or autovacuum would never come. */
	outbox_statistics_report(GetCurrentTimestamp(), true);
	pgstat_report_activity(STATE_IDLE, activity);
	events = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION);
	if (events & WL_LATCH_SET)
		ResetLatch(MyLatch);
	return (events & WL_LATCH_SET) != 0;
}

void
outbox_function_worker_end(void)
{
	outbox_function_slot_leave();
	proc_exit(0);
}
