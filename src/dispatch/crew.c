/*-------------------------------------------------------------------------
 *
 * crew.c
 *		Starts and watches the workers that run functions of users.
 *
 * See crew.h.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"

#include "compat.h"
#include "dispatch/crew.h"
#include "shared/errand.h"
#include "worker/backoff.h"
#include "worker/clock.h"
#include "worker/worker.h"

/* When no worker could be registered. */
#define NO_WORKER_DELAY_US (5 * USECS_PER_SEC)

typedef struct CrewMember
{
	const char *type;
	const char *main;
	const char *duty;			/* what cannot be done without it */
	BackgroundWorkerHandle *handle; /* NULL: not running */
	TimestampTz started;
	OutboxBackoff backoff;		/* until it is started again */
} CrewMember;

static CrewMember crew[OUTBOX_FUNCTION_PLACES] = {
	[OUTBOX_PLACE_ON_SETTLE] = {"outbox on_settle worker", "outbox_on_settle_main", "run on_settle functions"},
	[OUTBOX_PLACE_SPARE] = {"outbox on_settle worker", "outbox_on_settle_main", "run on_settle functions"},
	[OUTBOX_PLACE_MESSAGES] = {"outbox schedule worker", "outbox_schedule_main", "stage messages of schedules"},
	[OUTBOX_PLACE_FUNCTIONS] = {"outbox schedule worker", "outbox_schedule_main", "run functions of schedules"},
};

static OutboxDatabase *database = NULL;
static bool leaving = false;
static bool out_of_workers = false;

/* Whatever way the dispatcher ends, its workers end, too. */
static void
end_workers(int code, Datum arg)
{
	outbox_function_slots_terminate(database);
}

void
outbox_crew_init(OutboxDatabase *db)
{
	database = db;
	before_shmem_exit(end_workers, (Datum) 0);
}

/* A worker has ended: when may it be started again? */
static void
note_end(CrewMember *member, bool failed, TimestampTz now)
{
	pfree(member->handle);
	member->handle = NULL;
	outbox_backoff_process_ended(&member->backoff, failed, member->started, now);
}

bool
outbox_crew_look(OutboxFunctionPlace place, OutboxFunctionSlotView *view, TimestampTz now)
{
	CrewMember *member = &crew[place];
	pid_t		pid;

	outbox_function_slot_view(database, place, view);
	if (member->handle != NULL && view->pid == 0 &&
		GetBackgroundWorkerPid(member->handle, &pid) == BGWH_STOPPED)
		note_end(member, view->failed, now);
	return member->handle != NULL;
}

bool
outbox_crew_is_there(OutboxFunctionPlace place)
{
	return crew[place].handle != NULL;
}

void
outbox_crew_start(OutboxFunctionPlace place, TimestampTz now)
{
	CrewMember *member = &crew[place];
	const OutboxFunctionWorkerExtra extra = {place, outbox_errand_handle()};
	const OutboxWorker what = {
		.type = member->type, .main = member->main, .arg = ObjectIdGetDatum(MyDatabaseId),
		.extra = &extra, .extra_size = sizeof(extra)
	};

	if (leaving || member->handle != NULL || !outbox_backoff_is_over(&member->backoff, now))
		return;
	member->handle = outbox_register_worker(&what);
	if (member->handle == NULL)
	{
		if (!out_of_workers)
			ereport(WARNING,
					(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
					 errmsg("outbox cannot %s: no background worker slot is free", member->duty),
					 errhint("Increase max_worker_processes from %d to at least %d and restart the server.",
							 max_worker_processes, max_worker_processes + 1)));
		out_of_workers = true;
		outbox_workers_lack(outbox_to_wall(now));
		outbox_backoff_wait(&member->backoff, NO_WORKER_DELAY_US, now);
		return;
	}
	out_of_workers = false;
	member->started = now;
}

TimestampTz
outbox_crew_may_start_at(OutboxFunctionPlace place)
{
	return outbox_backoff_until(&crew[place].backoff);
}

bool
outbox_crew_lacks(OutboxFunctionPlace place)
{
	return out_of_workers && crew[place].handle == NULL;
}

void
outbox_crew_dismiss(OutboxFunctionPlace place)
{
	if (crew[place].handle != NULL)
		TerminateBackgroundWorker(crew[place].handle);
}

void
outbox_crew_leave(void)
{
	leaving = true;
	for (int place = 0; place < OUTBOX_FUNCTION_PLACES; place++)
		outbox_crew_dismiss(place);
}

bool
outbox_crew_is_leaving(void)
{
	return leaving;
}

bool
outbox_crew_is_gone(void)
{
	for (int place = 0; place < OUTBOX_FUNCTION_PLACES; place++)
	{
		pid_t		pid;

		if (crew[place].handle != NULL && GetBackgroundWorkerPid(crew[place].handle, &pid) != BGWH_STOPPED)
			return false;
	}
	return true;
}
