/*-------------------------------------------------------------------------
 *
 * run.h
 *		Has due occurrences of schedules take place.
 *
 * Which of them, and what becomes of them, is the business of SQL functions
 * (outbox_internal.choose_occurrence() and around it).  An occurrence, with
 * what it stages, and the step of its schedule to the next one are one
 * transaction: so it takes place once, whoever is killed.
 *
 * Process: a worker that runs schedules, or a backend; in a transaction, as
 * the owner.
 *
 *-------------------------------------------------------------------------
 */
#ifndef OUTBOX_SCHEDULE_RUN_H
#define OUTBOX_SCHEDULE_RUN_H

#include "postgres.h"

/* Stage the messages of some that are due.  How many schedules were looked after: 0 for none is due. */
extern int	outbox_schedules_run_messages(void);

/* Tell handlers of some of what has happened, as messages.  False: there was nothing, or somebody else is at it. */
extern bool outbox_schedules_tell_events(void);

/*
 * Run the function of one that is due.  False: none is.  begin, if given, is
 * told of which schedule; where it returns false the function is not run any
 * more: it could not be stopped before, and has failed.
 */
extern bool outbox_schedules_run_function(bool (*begin) (int32 schedule_id));

#endif							/* OUTBOX_SCHEDULE_RUN_H */
