/*-------------------------------------------------------------------------
 *
 * function_worker.h
 *		What workers that run functions of users have in common: how they
 *		begin, and their settings.
 *
 * Processes: the on_settle workers and the schedule workers.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_FUNCTION_WORKER_H
#define OUTBOX_FUNCTION_WORKER_H

#include "common/user_function.h"
#include "shared/function_slot.h"

/* The place that this worker was started for. */
extern OutboxFunctionPlace outbox_function_worker_place(void);

/*
 * Take the place and connect to the database; ends the process if that cannot
 * be.  False if nothing may run here: the extension is not there, of another
 * version, or in a copy.
 */
extern bool outbox_function_worker_begin(Oid dboid, OutboxFunctionPlace place, const OutboxUserFunctionWatch *watch);

/* Reset at each turn of the worker's loop, and current between two pieces of work. */
extern MemoryContext outbox_function_worker_context(void);

/* Take up settings that have changed, if any have.  At each turn of the loop. */
extern void outbox_function_worker_settings(TimestampTz now);

/* The database work has failed: nothing of it is left.  In PG_CATCH(). */
extern void outbox_function_worker_fail(TimestampTz now);

/*
 * Sleep until a time, unless the latch is set before; what pg_stat_activity
 * says meanwhile.  True if the latch was set.
 */
extern bool outbox_function_worker_wait(TimestampTz until, TimestampTz now, const char *activity);

/* It has ended of its own accord. */
pg_noreturn extern void outbox_function_worker_end(void);

#endif							/* OUTBOX_FUNCTION_WORKER_H */
